//! When goroutines did not run in their ops: they waited and were let go on, or were ready all the time.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use darc_analysis::off_cpu::{self, Away, Interval, OtherId};
use darc_analysis::{Analysis, Callee, FnodeId, Hz, Nanos};
use darc_process::Process;
use darc_process::clock::Moment;
use darc_process::modules::{CodeRef, Modules};
use darc_record::Op;
use darc_tracer::addr::TargetAddr;
use darc_tracer::cgroup::{CpuLimits, HeldBack};
use darc_tracer::engine::Absence;
use darc_tracer::threads::{self, Turns};

use crate::session::catalog::{Another, Catalog};

/// What a person is told where the times are not known.
pub const NOT_TOLD: &str =
    "when goroutines are ready and do not run is not told from what they wait for or do themselves";
/// The function by which goroutines stop and go on.
pub const STATUSES: &str = "runtime.casgstatus";

/// So many times of a goroutine are kept until its op is there: more than one op has.
const KEPT: usize = 768;
/// No more goroutines are followed at a time, by far. The target may write any number.
const MOST_GOROUTINES: usize = 1 << 13;
/// Wakers are known by so many stacks.
const MOST_STACKS: usize = 1 << 12;
/// With this one the run-time goes over to the thread's own stack. What is further in lets the goroutine go on for whoever does.
const SYSTEM_STACK: &str = "runtime.systemstack";
/// With this one all goroutines begin.
const OUTERMOST: &str = "runtime.goexit";
/// By these functions timers do.
const OF_TIMERS: [&str; 3] = [
    "runtime.runOneTimer",
    "runtime.(*timer).unlockAndRun",
    "runtime.goroutineReady",
];

/// By these functions a goroutine lets others run of its own will (`runtime.Gosched`): it waits, for nothing but its turn.
const YIELDS: [&str; 3] = [
    "runtime.gosched_m",
    "runtime.goschedguarded_m",
    "runtime.goyield_m",
];
/// It looks at the network where no processor has done so for 10 ms.
const MONITOR: &str = "runtime.sysmon";
/// By these the run-time lets goroutines go on that others do not know of.
const OF_RUN_TIME: [&str; 2] = ["runtime.injectglist", "runtime.startTheWorldWithSema"];

/// From this part of the time in which threads would have run on it is told that they were kept from it.
const KEPT_FROM_RUNNING: f64 = 0.1;

/// So often the kernel is asked how threads were kept from running.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// The times in which goroutines did not run.
#[derive(Debug, Default)]
pub struct Absences {
    /// What the kernel knows of the process's threads.
    watched: Watched,
    /// When the session began.
    began: Option<Moment>,
    /// Of each goroutine, in order.
    known: HashMap<i32, VecDeque<Absence>>,
    /// What the stacks say that were met.
    stacks: HashMap<Vec<TargetAddr>, Stack>,
    /// How many there were in which one was ready all along.
    told: u64,
}

/// What the kernel tells of the turns of a process's threads.
#[derive(Debug, Default)]
struct Watched {
    /// What it told when the session began, by thread,
    before: HashMap<i32, Turns>,
    /// and last: also of those that have ended since.
    last: HashMap<i32, Turns>,
    /// Of threads that have ended, and whose ids others have since.
    gone: Turns,
    /// When that was.
    looked: Option<Instant>,
    limits: CpuLimits,
}

impl Watched {
    fn begin(pid: i32) -> Watched {
        let before = told_of_turns(pid);
        Watched {
            last: before.clone(),
            before,
            looked: Some(Instant::now()),
            limits: CpuLimits::of(pid),
            ..Watched::default()
        }
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

    /// A warning where it is much, or may be much of what is said of an analysis that knows of it.
    #[must_use]
    pub fn caveat(&self, analysis: &Analysis) -> Option<String> {
        let peaks = analysis.peaks();
        let mut peaks = peaks.iter();
        let matters = match peaks.any(|peak| analysis.kept_from_deciding(peak.number).is_some()) {
            true => Matters::Much,
            false if analysis.may_be_kept_from_running() => Matters::Maybe,
            false => Matters::Little,
        };
        self.in_words(matters)
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

/// What the stack of who lets a goroutine stop or go on says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stack {
    /// Who that is, where it is told.
    by: Option<OtherId>,
    /// Whether the goroutine lets others run of its own will.
    yields: bool,
}

impl Absences {
    /// Of a process from now on.
    #[must_use]
    pub fn of_process(pid: i32) -> Absences {
        Absences {
            watched: Watched::begin(pid),
            began: Some(Moment::now()),
            ..Absences::default()
        }
    }

    /// Looks now and then for how long threads were kept from running: when the process has ended it is too late.
    pub fn look(&mut self, pid: i32) {
        let looked = self.watched.looked;
        if looked.is_none_or(|at| at.elapsed() >= BETWEEN_LOOKS) {
            self.look_again(pid);
        }
    }

    /// Looks for the last time.
    pub fn look_again(&mut self, pid: i32) {
        self.watched.take(told_of_turns(pid));
        self.watched.looked = Some(Instant::now());
    }

    /// How threads were kept from running since the session began, as far as that is known.
    #[must_use]
    pub fn kept(&self) -> Kept {
        let Turns { ran, waited, count } = self.watched.turns();
        let would_have_run = (waited + ran).as_secs_f64();
        Kept {
            time: waited,
            turn: waited.div_f64(count.max(1) as f64),
            part: match would_have_run > 0.0 {
                true => waited.as_secs_f64() / would_have_run,
                false => 0.0,
            },
            held_back: self.watched.limits.held_back(),
        }
    }

    /// The rate of the counter that ops are measured by.
    #[must_use]
    pub fn rate(&self) -> Option<Hz> {
        self.began.as_ref().map(Moment::rate)
    }

    /// Keeps one until its op is there.
    pub fn add(&mut self, absence: Absence) {
        self.told += u64::from(absence.ready == absence.left);
        if self.known.len() > MOST_GOROUTINES {
            self.known.clear();
        }
        let known = self.known.entry(absence.tid).or_default();
        if known.len() == KEPT {
            known.pop_front();
        }
        known.push_back(absence);
    }

    /// Those in an op, in order; what was before it is forgotten.
    pub fn of(&mut self, op: &Op, modules: &Modules, catalog: &mut Catalog) -> Vec<Interval> {
        let known = self.known.remove(&op.tid).unwrap_or_default();
        // One in which it called something has another begin than is known.
        let ran = |absence: &Absence| {
            let mut touched = op.touched.iter();
            touched.any(|it| absence.left < it.max_start && it.max_start < absence.back)
        };
        let within =
            |absence: &Absence| op.start <= absence.left && absence.back <= op.end && !ran(absence);
        let known = known.into_iter().filter(within);
        known
            .map(|absence| Interval {
                from: absence.left,
                to: absence.back,
                why: self.why(&absence, modules, catalog),
            })
            .collect()
    }

    fn why(&mut self, absence: &Absence, modules: &Modules, catalog: &mut Catalog) -> Away {
        let Stack { by, yields } = self.stack(&absence.waker, modules, catalog);
        match absence.ready == absence.left {
            true if !yields => Away::Preempted { by: None },
            true => Away::Blocked {
                woken: Some(absence.left),
                by: None,
            },
            false => Away::Blocked {
                woken: Some(absence.ready),
                by,
            },
        }
    }

    fn stack(&mut self, waker: &[TargetAddr], modules: &Modules, catalog: &mut Catalog) -> Stack {
        if let Some(&known) = self.stacks.get(waker) {
            return known;
        }
        if self.stacks.len() > MOST_STACKS {
            self.stacks.clear();
        }
        let stack = told(waker, modules, catalog);
        self.stacks.insert(waker.to_vec(), stack);
        stack
    }

    /// A warning where of some times nothing is told.
    #[must_use]
    pub fn caveat(&self, untold: u64) -> Option<String> {
        let all = self.told.saturating_add(untold);
        (untold > 0).then(|| {
            format!("of {all} times at which goroutines were ready in an op and did not run {untold} are not told of: ops of which that is a third decide nothing, and in others it is the time of the functions in which they were")
        })
    }
}

/// The fnodes at whose ends a goroutine does not run, or the kernel works for it.
#[must_use]
pub fn others(analysis: &Analysis, process: &Process<'_>, catalog: &Catalog) -> BTreeSet<FnodeId> {
    let fnodes = analysis.ftree().fnodes();
    let others = fnodes.filter(|fnode| {
        let Callee::Function(callee) = fnode.callee else {
            return false;
        };
        let entry = process.modules().locate(catalog.callee_at(callee));
        entry.is_some_and(|entry| process.is_opaque(entry))
    });
    others.map(|fnode| fnode.id).collect()
}

/// What these return addresses say.
fn told(waker: &[TargetAddr], modules: &Modules, catalog: &mut Catalog) -> Stack {
    // A call may be the last of its function.
    let calls = waker.iter().map(|addr| TargetAddr(addr.0.wrapping_sub(1)));
    let mut functions: Vec<CodeRef> = calls
        .map_while(|at| modules.function_around(modules.place(at)?))
        .collect();
    // The innermost may be there twice: by its return address, and by its frame.
    if !functions.is_empty() && waker.len() > 1 && waker[0] == waker[1] {
        functions.remove(0);
    }
    let names: Vec<String> = functions.iter().map(|&at| modules.name(at)).collect();
    let has = |known: &[&str]| names.iter().any(|name| known.contains(&name.as_str()));
    let by = (!names.is_empty()).then(|| {
        catalog.other(Another {
            name: who(&names).to_owned(),
            stack: match has(&OF_RUN_TIME) {
                // Of another's doing.
                true => Vec::new(),
                false => functions[telling(&names)].to_vec(),
            },
            ..Another::default()
        })
    });
    Stack {
        by,
        yields: has(&YIELDS),
    }
}

/// Which of the functions on a stack say something.
fn telling(names: &[String]) -> Range<usize> {
    let is = |name: &String, which| name.strip_suffix(".abi0").unwrap_or(name) == which;
    let begin = names.iter().rposition(|name| is(name, SYSTEM_STACK));
    let end = names.iter().position(|name| is(name, OUTERMOST));
    let begin = begin.map_or(0, |at| at + 1);
    begin..end.unwrap_or(names.len()).max(begin)
}

fn who(names: &[String]) -> &'static str {
    let is_timer = |name: &String| OF_TIMERS.contains(&name.as_str());
    let is_its_own = |name: &String| OF_RUN_TIME.contains(&name.as_str());
    match names {
        names if names.iter().any(|name| name == MONITOR) => {
            "the run-time's monitor, for no processor had looked for 10 ms or more"
        }
        names if names.iter().any(is_its_own) => "the run-time",
        names if names.iter().any(is_timer) => "a timer",
        names if names.iter().all(|name| is_of_run_time(name)) => "the run-time",
        _ => "a goroutine",
    }
}

/// Whether a function is the run-time's own, by its name.
#[must_use]
pub fn is_of_run_time(name: &str) -> bool {
    name.starts_with("runtime.") || name.starts_with("internal/runtime/")
}

#[cfg(test)]
mod tests {
    use darc_process::modules::Modules;
    use darc_record::{Ticks, Tsc};

    use super::*;

    fn absence(tid: i32, [left, ready, back]: [u64; 3]) -> Absence {
        Absence {
            tid,
            left: Tsc(left),
            ready: Tsc(ready),
            back: Tsc(back),
            waker: Vec::new(),
        }
    }

    #[test]
    fn absences_are_those_of_the_goroutines_op() {
        let mut absences = Absences::default();
        absences.add(absence(1, [50, 60, 70]));
        absences.add(absence(1, [110, 120, 130]));
        absences.add(absence(2, [110, 120, 130]));
        absences.add(absence(1, [140, 140, 150]));
        let op = Op {
            tid: 1,
            start: Tsc(100),
            end: Tsc(200),
            latency: Ticks(100),
            arguments: Default::default(),
            touched: Vec::new(),
        };
        let modules = Modules::default();
        let mut catalog = Catalog::default();
        let found = absences.of(&op, &modules, &mut catalog);
        let [waited, let_run] = &found[..] else {
            panic!("two: {found:?}");
        };
        assert!(matches!(
            waited.why,
            Away::Blocked {
                woken: Some(Tsc(120)),
                by: None
            }
        ));
        assert_eq!(let_run.why, Away::Preempted { by: None });
        assert!(absences.of(&op, &modules, &mut catalog).is_empty());
    }

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

    #[test]
    fn who_lets_a_goroutine_go_on_is_told_from_the_functions() {
        let who = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            who(&names)
        };
        assert_eq!(
            who(&["runtime.ready", "runtime.goready", "main.f"]),
            "a goroutine"
        );
        assert_eq!(
            who(&["runtime.ready", "runtime.runOneTimer", "runtime.schedule"]),
            "a timer"
        );
        assert_eq!(
            who(&[
                "runtime.injectglist",
                "runtime.startTheWorldWithSema",
                "main.f"
            ]),
            "the run-time"
        );
        let late = who(&["runtime.injectglist", "runtime.sysmon", "runtime.mstart1"]);
        assert!(late.ends_with("for no processor had looked for 10 ms or more"));
    }

    #[test]
    fn of_a_stack_is_told_what_the_program_knows() {
        let telling = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            names[telling(&names)].join(" ")
        };
        let sent = [
            "runtime.ready",
            "runtime.systemstack.abi0",
            "runtime.send",
            "main.f",
            "runtime.goexit.abi0",
        ];
        assert_eq!(telling(&sent), "runtime.send main.f");
        assert_eq!(telling(&["runtime.schedule"]), "runtime.schedule");
    }
}
