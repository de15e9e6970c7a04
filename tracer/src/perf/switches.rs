//! When the threads of one process were off their CPUs, and why: from the kernel's records of context switches.
//!
//! Where the user may watch whole CPUs, one event a CPU tells of every switch, and who got the CPU. Otherwise each
//! thread has events of its own, and the threads that it makes inherit them.
//! Source: perf_event_open(2), `context_switch` and PERF_RECORD_SWITCH_CPU_WIDE.

use std::collections::{HashMap, VecDeque};

use super::attributes::{Attributes, Follow};
use super::clock::{self, Clock};
use super::collector::Collector;
use super::record::{Left, Record};
use super::refusal::Refusal;
use crate::record::Tsc;
use crate::threads;

/// A time in which a thread did not run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OffCpu {
    /// When it left its CPU.
    pub out: Tsc,
    /// When it got one again.
    pub back: Tsc,
    /// How it left.
    pub left: Left,
    /// The thread that ran there for the longest part of it, where that is known; 0 for none.
    pub instead: Option<i32>,
}

/// How much is seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// Every switch of the machine, and so who runs instead.
    Machine,
    /// The process's own switches.
    Process,
}

/// Intervals that are kept for each thread. An op with more of them loses the oldest.
const KEPT: usize = 1 << 14;
/// Threads that are remembered after their end.
const MOST_THREADS: usize = 1 << 12;
/// More events than this are not opened: a descriptor each.
const MOST_EVENTS: usize = 1 << 13;
/// A record may be under way on another CPU while the rings are read, so what is younger is not complete.
const UNDER_WAY: u64 = 1_000_000;

/// One thread's times off its CPU. Pure.
#[derive(Debug, Default)]
struct Thread {
    done: VecDeque<OffCpu>,
    /// When, how, and from which CPU it left.
    out: Option<(Tsc, Left, u32)>,
    life: Life,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Life {
    #[default]
    Runs,
    Ended,
}

impl Thread {
    fn left(&mut self, at: Tsc, left: Left, cpu: u32) {
        self.out = Some((at, left, cpu));
    }

    fn returned(&mut self, at: Tsc, cpus: &HashMap<u32, Runners>) {
        let Some((out, left, cpu)) = self.out.take() else {
            return;
        };
        let runners = cpus.get(&cpu).filter(|_| left == Left::Preempted);
        if self.done.len() >= KEPT {
            self.done.pop_front();
        }
        self.done.push_back(OffCpu {
            out,
            back: at.max(out),
            left,
            instead: runners.and_then(|runners| runners.longest(out, at)),
        });
    }

    /// Those that meet `from..to`, cut to it.
    fn between(&self, from: Tsc, to: Tsc) -> Vec<OffCpu> {
        let first = self.done.partition_point(|off| off.back <= from);
        self.done
            .range(first..)
            .take_while(|off| off.out < to)
            .map(|off| OffCpu {
                out: off.out.max(from),
                back: off.back.min(to),
                ..*off
            })
            .collect()
    }
}

/// Who ran on a CPU lately: from when on, which thread. Pure.
#[derive(Debug, Default)]
struct Runners(VecDeque<(Tsc, i32)>);

impl Runners {
    fn runs(&mut self, at: Tsc, tid: i32) {
        if self.0.len() >= KEPT {
            self.0.pop_front();
        }
        self.0.push_back((at, tid));
    }

    /// Who ran for the longest part of a time.
    fn longest(&self, from: Tsc, to: Tsc) -> Option<i32> {
        let mut sums: HashMap<i32, u64> = HashMap::new();
        let first = self.0.partition_point(|&(at, _)| at < from);
        let mut runners = self.0.range(first..).peekable();
        while let Some(&(at, tid)) = runners.next() {
            if at >= to {
                break;
            }
            let until = runners.peek().map_or(to, |&&(next, _)| next.min(to));
            *sums.entry(tid).or_default() += (until - at).0;
        }
        // The thread's number decides between equals, so that the same records give the same answer.
        let longest = sums.into_iter().max_by_key(|&(tid, sum)| (sum, tid));
        longest.map(|(tid, _)| tid)
    }
}

/// Follows the threads of a process.
#[derive(Debug)]
pub struct Switches {
    pid: i32,
    collector: Collector,
    reach: Reach,
    clock: Clock,
    threads: HashMap<i32, Thread>,
    /// By CPU; empty where only the process is seen.
    cpus: HashMap<u32, Runners>,
    /// Names of threads that ran instead, as far as they were asked for or told of.
    names: HashMap<i32, String>,
    complete: Tsc,
    lost: u64,
}

/// Names that are remembered.
const MOST_NAMES: usize = 1 << 16;

impl Switches {
    /// Begins to follow.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn follow(pid: i32) -> Result<Switches, Refusal> {
        let (collector, reach) = match watch_machine() {
            Ok(collector) => (collector, Reach::Machine),
            Err(_) => (watch_process(pid)?, Reach::Process),
        };
        collector.enable();
        Ok(Switches {
            pid,
            collector,
            reach,
            clock: Clock::calibrate(),
            threads: HashMap::new(),
            cpus: HashMap::new(),
            names: HashMap::new(),
            complete: Tsc(0),
            lost: 0,
        })
    }

    /// How much is seen.
    #[must_use]
    pub fn reach(&self) -> Reach {
        self.reach
    }

    /// Reads what has come.
    pub fn read(&mut self) {
        let until = clock::now().saturating_sub(UNDER_WAY);
        self.clock.tick();
        let records = self.collector.read_rest().records;
        let lost = self.lost;
        for record in records {
            self.take(record);
        }
        if self.lost > lost && self.reach == Reach::Machine {
            self.see_less();
        }
        self.complete = self.clock.tsc(until);
    }

    /// The whole machine switches too often for this reader: follows the process alone from now on.
    fn see_less(&mut self) {
        if let Ok(collector) = watch_process(self.pid) {
            collector.enable();
            self.collector = collector;
            self.reach = Reach::Process;
            self.forget_who_is_out();
        }
    }

    /// Some may have come back without a word: better none of their absence than too much.
    fn forget_who_is_out(&mut self) {
        for thread in self.threads.values_mut() {
            thread.out = None;
        }
        self.cpus.clear();
    }

    fn take(&mut self, record: Record) {
        match record {
            Record::Out { stamp, left, next } => {
                let at = self.clock.tsc(stamp.time);
                if let Some(next) = next {
                    self.cpus.entry(stamp.cpu).or_default().runs(at, next);
                }
                if stamp.pid == self.pid {
                    let thread = self.threads.entry(stamp.tid).or_default();
                    thread.left(at, left, stamp.cpu);
                }
            }
            Record::In(stamp) if stamp.pid == self.pid => {
                let at = self.clock.tsc(stamp.time);
                let thread = self.threads.entry(stamp.tid).or_default();
                thread.returned(at, &self.cpus);
            }
            Record::Exited(task) if task.pid == self.pid => {
                if let Some(thread) = self.threads.get_mut(&task.tid) {
                    thread.life = Life::Ended;
                }
                // Its ops are on their way yet, so it is forgotten only when there are too many.
                if self.threads.len() > MOST_THREADS {
                    self.threads.retain(|_, thread| thread.life == Life::Runs);
                }
            }
            Record::Named { tid, name, .. } if self.names.len() < MOST_NAMES => {
                self.names
                    .insert(tid, String::from_utf8_lossy(&name).into_owned());
            }
            Record::Forked(task) => {
                // A thread id that is used again has its maker's name at first.
                let name = self.names.get(&task.parent).cloned();
                match name {
                    Some(name) if self.names.len() < MOST_NAMES => {
                        self.names.insert(task.tid, name);
                    }
                    _ => {
                        self.names.remove(&task.tid);
                    }
                }
                if task.pid == self.pid {
                    self.threads.remove(&task.tid);
                }
            }
            Record::Lost(_, count) => {
                self.lost += count;
                self.forget_who_is_out();
            }
            _ => {}
        }
    }

    /// Until when everything is known.
    #[must_use]
    pub fn complete(&self) -> Tsc {
        self.complete
    }

    /// When the thread was off its CPU, within these bounds.
    #[must_use]
    pub fn between(&self, tid: i32, from: Tsc, to: Tsc) -> Vec<OffCpu> {
        let thread = self.threads.get(&tid);
        thread.map_or_else(Vec::new, |thread| thread.between(from, to))
    }

    /// The name of a thread, as far as it can still be told.
    pub fn name(&mut self, tid: i32) -> String {
        if let Some(name) = self.names.get(&tid) {
            return name.clone();
        }
        let comm = std::fs::read(format!("/proc/{tid}/comm")).unwrap_or_default();
        let name = String::from_utf8_lossy(comm.strip_suffix(b"\n").unwrap_or(&comm)).into_owned();
        let name = match name.is_empty() {
            true => format!("thread {tid}"),
            false => name,
        };
        if self.names.len() < MOST_NAMES {
            self.names.insert(tid, name.clone());
        }
        name
    }

    /// Records that the kernel dropped.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

fn watch_machine() -> Result<Collector, Refusal> {
    let mut collector = Collector::new(Attributes::switches())?;
    collector.add_system()?;
    Ok(collector)
}

fn watch_process(pid: i32) -> Result<Collector, Refusal> {
    let mut collector = Collector::new(Attributes::switches().follow(Follow::Children))?;
    // A thread that is made meanwhile by one without events yet is listed the next time; one that inherits them is too,
    // and then tells everything twice, which does no harm.
    let mut known = std::collections::HashSet::new();
    for _ in 0..4 {
        let Ok(listed) = threads::list(pid) else {
            return Ok(collector);
        };
        if known.len().saturating_add(listed.len()) * collector.cpus() > MOST_EVENTS {
            return Err(Refusal::Descriptors);
        }
        let new: Vec<i32> = listed
            .into_iter()
            .filter(|&tid| known.insert(tid))
            .collect();
        if new.is_empty() {
            break;
        }
        for tid in new {
            collector.add_thread(tid)?;
        }
    }
    Ok(collector)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_cut_to_what_is_asked_for() {
        let (mut thread, cpus) = (Thread::default(), HashMap::new());
        thread.returned(Tsc(5), &cpus);
        assert_eq!(
            thread.between(Tsc(0), Tsc(100)),
            [],
            "it was never seen to leave"
        );
        thread.left(Tsc(10), Left::Preempted, 0);
        thread.returned(Tsc(20), &cpus);
        thread.left(Tsc(30), Left::Blocked, 0);
        thread.returned(Tsc(50), &cpus);
        thread.left(Tsc(60), Left::Blocked, 0);
        let between = |from, to| -> Vec<(u64, u64)> {
            let found = thread.between(Tsc(from), Tsc(to));
            found.iter().map(|off| (off.out.0, off.back.0)).collect()
        };
        assert_eq!(between(0, 100), [(10, 20), (30, 50)]);
        assert_eq!(between(15, 40), [(15, 20), (30, 40)]);
        assert_eq!(between(20, 30), []);
        // A record that comes twice, as inherited events make it.
        thread.left(Tsc(60), Left::Blocked, 0);
        thread.returned(Tsc(70), &cpus);
        thread.returned(Tsc(70), &cpus);
        assert_eq!(thread.done.len(), 3);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let (mut thread, cpus) = (Thread::default(), HashMap::new());
        for at in 0..KEPT as u64 + 10 {
            thread.left(Tsc(10 * at), Left::Preempted, 0);
            thread.returned(Tsc(10 * at + 5), &cpus);
        }
        assert_eq!(thread.done.len(), KEPT);
        assert_eq!(thread.done[0].out, Tsc(100));
    }

    #[test]
    fn who_ran_longest_is_told() {
        let mut runners = Runners::default();
        for (at, tid) in [(5, 1), (10, 2), (12, 3), (30, 2), (50, 9)] {
            runners.runs(Tsc(at), tid);
        }
        assert_eq!(runners.longest(Tsc(10), Tsc(50)), Some(2));
        assert_eq!(runners.longest(Tsc(10), Tsc(30)), Some(3));
        assert_eq!(runners.longest(Tsc(60), Tsc(70)), None);
        let mut thread = Thread::default();
        thread.left(Tsc(10), Left::Preempted, 4);
        thread.returned(Tsc(30), &HashMap::from([(4, runners)]));
        assert_eq!(thread.done[0].instead, Some(3));
    }

    /// This thread sleeps: it is seen to block, for as long as the sleep took on the same clock.
    #[test]
    fn a_sleep_is_seen() {
        let own = std::process::id() as i32;
        let mut switches = match Switches::follow(own) {
            Ok(switches) => switches,
            Err(refusal) => {
                eprintln!("not tested: {refusal}");
                return;
            }
        };
        let tid = nix::unistd::gettid().as_raw();
        let before = crate::tsc();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let after = crate::tsc();
        while switches.complete() < after {
            switches.read();
        }
        let off = switches.between(tid, before, after);
        let blocked: u64 = off
            .iter()
            .filter(|off| off.left == Left::Blocked)
            .map(|off| (off.back - off.out).0)
            .sum();
        let all = (after - before).0;
        assert!(
            blocked > all / 2 && blocked <= all,
            "{blocked} of {all}: {off:?}"
        );
    }
}
