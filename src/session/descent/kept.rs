//! For how long the kernel kept a Go program's threads from running, where it is not known when: sums alone.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use darc_analysis::{Analysis, Hz, Nanos, off_cpu};
use darc_process::clock::Moment;
use darc_tracer::cgroup::{CpuLimits, HeldBack};
use darc_tracer::threads::{self, Turns};

/// From this part of the time in which threads would have run on it is told that they were kept from it.
const KEPT_FROM_RUNNING: f64 = 0.1;

/// So often the kernel is asked how threads were kept from running.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// What the kernel tells of the turns of a process's threads.
#[derive(Debug, Default)]
pub struct Watched {
    /// What it told when the session began, by thread,
    before: HashMap<i32, Turns>,
    /// and last: also of those that have ended since.
    last: HashMap<i32, Turns>,
    /// Of threads that have ended, and whose ids others have since.
    gone: Turns,
    /// When that was.
    looked: Option<Instant>,
    limits: CpuLimits,
    /// When the session began.
    began: Option<Moment>,
}

impl Watched {
    /// Begins with what it tells now.
    #[must_use]
    pub fn begin(pid: i32) -> Watched {
        let before = told_of_turns(pid);
        Watched {
            last: before.clone(),
            before,
            looked: Some(Instant::now()),
            limits: CpuLimits::of(pid),
            began: Some(Moment::now()),
            ..Watched::default()
        }
    }

    /// Looks now and then for how long threads were kept from running: when the process has ended it is too late.
    pub fn look(&mut self, pid: i32) {
        let looked = self.looked;
        if looked.is_none_or(|at| at.elapsed() >= BETWEEN_LOOKS) {
            self.look_again(pid);
        }
    }

    /// Looks for the last time.
    pub fn look_again(&mut self, pid: i32) {
        self.take(told_of_turns(pid));
        self.looked = Some(Instant::now());
    }

    /// How threads were kept from running since the session began, as far as that is known.
    #[must_use]
    pub fn kept(&self) -> Kept {
        let Turns { ran, waited, count } = self.turns();
        let would_have_run = (waited + ran).as_secs_f64();
        Kept {
            time: waited,
            turn: waited.div_f64(count.max(1) as f64),
            part: match would_have_run > 0.0 {
                true => waited.as_secs_f64() / would_have_run,
                false => 0.0,
            },
            held_back: self.limits.held_back(),
        }
    }

    /// The rate of the counter that ops are measured by.
    #[must_use]
    pub fn rate(&self) -> Option<Hz> {
        self.began.as_ref().map(Moment::rate)
    }

    /// Takes what the kernel tells of threads now; of a process that has ended that is nothing.
    fn take(&mut self, told: HashMap<i32, Turns>) {
        for (tid, turns) in told {
            let last = self.last.insert(tid, turns).unwrap_or_default();
            if turns.ran < last.ran || turns.count < last.count {
                // Another thread has its id.
                let before = self.before.remove(&tid).unwrap_or_default();
                self.gone = sum(self.gone, since(last, before));
            }
        }
    }

    /// The turns of all threads together, since the session began.
    fn turns(&self) -> Turns {
        let before = |tid| self.before.get(tid).copied().unwrap_or_default();
        let turns = self.last.iter();
        let turns = turns.map(|(tid, &last)| since(last, before(tid)));
        turns.fold(self.gone, sum)
    }
}

fn told_of_turns(pid: i32) -> HashMap<i32, Turns> {
    let threads = threads::list(pid).unwrap_or_default().into_iter();
    let told = threads.filter_map(|tid| Some((tid, threads::turns(pid, tid)?)));
    told.collect()
}

fn sum(one: Turns, other: Turns) -> Turns {
    Turns {
        ran: one.ran + other.ran,
        waited: one.waited + other.waited,
        count: one.count + other.count,
    }
}

fn since(last: Turns, before: Turns) -> Turns {
    Turns {
        ran: last.ran.saturating_sub(before.ran),
        waited: last.waited.saturating_sub(before.waited),
        count: last.count.saturating_sub(before.count),
    }
}

/// How the kernel kept threads from running.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Kept {
    /// For how long they were ready together, and did not run.
    time: Duration,
    /// For how long each time that one of them was given a processor.
    turn: Duration,
    /// The part that this is of the time in which they would have run.
    part: f64,
    held_back: HeldBack,
}

impl Kept {
    /// In cycles.
    #[must_use]
    pub fn in_ticks(&self, hz: Hz) -> off_cpu::Kept {
        let ticks = |time: Duration| hz.ticks(Nanos(time.as_secs_f64() * 1e9));
        off_cpu::Kept {
            part: self.part,
            time: ticks(self.time),
            turn: ticks(self.turn),
        }
    }

    /// A warning where it may be much of what is said of an analysis that knows of it, or, where of no op is known when that was, is much.
    #[must_use]
    pub fn caveat(&self, analysis: &Analysis, is_of_all: bool) -> Option<String> {
        let peaks = analysis.peaks();
        let mut peaks = peaks.iter();
        let matters = match peaks.any(|peak| analysis.kept_from_deciding(peak.number).is_some()) {
            true => Matters::Much,
            false if analysis.may_be_kept_from_running() => Matters::Maybe,
            false => Matters::Little,
        };
        match is_of_all || matters != Matters::Little {
            true => self.in_words(matters),
            false => None,
        }
    }

    fn in_words(&self, matters: Matters) -> Option<String> {
        let HeldBack { times, time } = self.held_back;
        if times > 0 && self.time.is_zero() {
            return Some(format!(
                "a limit of CPU time on the process's control group (cpu.max) struck {times} times, for {:.2} s on all processors together: it is a part of the functions in which its threads were, and of which is not known",
                time.as_secs_f64()
            ));
        }
        let limit = match times {
            0 => String::new(),
            _ => format!(
                " (a limit of CPU time on its control group, cpu.max, struck {times} times, for {:.2} s on all processors together)",
                time.as_secs_f64()
            ),
        };
        let so = match matters {
            Matters::Little => "",
            Matters::Maybe => ", and may be much of the own time of those in a peak",
            Matters::Much => ", so that peaks of their own time are not decided",
        };
        let is_told = times > 0 || matters != Matters::Little || self.part >= KEPT_FROM_RUNNING;
        is_told.then(|| {
            format!(
                "the kernel kept threads of the process from running for {:.2} s together{limit}, {:.0}% of the time in which they would have run: it is a part of the functions in which they were{so}",
                self.time.as_secs_f64(),
                100.0 * self.part
            )
        })
    }
}

/// What it means for peaks that threads were kept from running.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Matters {
    Little,
    /// It may be much of one's own time.
    Maybe,
    /// One is not decided for it.
    Much,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_have_ended_were_kept_from_running_all_the_same() {
        let turns = |ran, waited, count| Turns {
            ran: Duration::from_millis(ran),
            waited: Duration::from_millis(waited),
            count,
        };
        let first = HashMap::from([(1, turns(100, 50, 10))]);
        let mut watched = Watched {
            before: first.clone(),
            last: first,
            ..Watched::default()
        };
        watched.take(HashMap::from([
            (1, turns(110, 70, 12)),
            (2, turns(5, 5, 1)),
        ]));
        assert_eq!(watched.turns(), turns(15, 25, 3));
        // The first has ended, and another one has the id of the second.
        watched.take(HashMap::from([(2, turns(1, 2, 1))]));
        assert_eq!(watched.turns(), turns(16, 27, 4));
        // The process has ended.
        watched.take(HashMap::new());
        assert_eq!(watched.turns(), turns(16, 27, 4));
    }

    #[test]
    fn what_the_kernel_keeps_from_running_is_told_where_it_is_much() {
        let kept = |part, times| Kept {
            time: Duration::from_millis(1_500),
            turn: Duration::from_millis(3),
            part,
            held_back: HeldBack {
                times,
                time: Duration::from_secs(2),
            },
        };
        use Matters::{Little, Maybe, Much};
        assert_eq!(kept(0.05, 0).in_words(Little), None);
        let said = kept(0.05, 0)
            .in_words(Maybe)
            .expect("it may be all of a peak");
        assert!(
            said.ends_with("may be much of the own time of those in a peak"),
            "{said}"
        );
        let said = kept(0.4, 0).in_words(Little).expect("it is much");
        assert!(
            said.contains("1.50 s together, 40%") && !said.contains("decided"),
            "{said}"
        );
        let said = kept(0.4, 0).in_words(Much).expect("it is much");
        assert!(
            said.ends_with("so that peaks of their own time are not decided"),
            "{said}"
        );
        let said = kept(0.05, 7).in_words(Little).expect("there is a limit");
        assert!(said.contains("struck 7 times, for 2.00 s"), "{said}");
        let unknown = Kept {
            time: Duration::ZERO,
            ..kept(0.0, 7)
        };
        let said = unknown.in_words(Little).expect("there is a limit");
        assert!(
            said.contains("struck 7 times") && !said.contains("0%"),
            "{said}"
        );
    }
}
