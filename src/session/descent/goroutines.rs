//! When goroutines did not run in their ops: they waited and were let go on, or were ready all the time.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Range;

use darc_analysis::off_cpu::{Away, Interval, OtherId};
use darc_analysis::{Analysis, Callee, FnodeId};
use darc_process::Process;
use darc_process::modules::{CodeRef, Modules};
use darc_record::Op;
use darc_tracer::addr::TargetAddr;
use darc_tracer::effort::Pacing;
use darc_tracer::engine::Absence;
use darc_tracer::perf::switches::Switches;

use crate::options::Preemption;
use crate::session::catalog::{Another, Catalog};
use crate::session::descent::investigation::Investigation;
use crate::session::descent::kept::Watched;
use crate::session::descent::turns::{Threads, Turn};

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

/// The times in which goroutines did not run.
#[derive(Debug, Default)]
pub struct Absences {
    /// How the kernel let the process's threads run, where it tells of every switch,
    threads: Option<Box<Threads>>,
    /// and the sums, for ops of which that is not known.
    watched: Watched,
    /// Of each goroutine, in order.
    known: HashMap<i32, VecDeque<Absence>>,
    /// What the stacks say that were met.
    stacks: HashMap<Vec<TargetAddr>, Stack>,
    /// How many there were in which one was ready all along.
    told: u64,
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
    /// Of a process from now on; why the kernel does not tell when it runs other threads, where it was asked and does not.
    #[must_use]
    pub fn of_process(pid: i32, preemption: Preemption) -> (Absences, Option<String>) {
        let (threads, refused) = match preemption {
            Preemption::Counted => (None, None),
            Preemption::Apart => match Threads::follow(pid) {
                Ok(threads) => (Some(Box::new(threads)), None),
                Err(why) => (None, Some(why)),
            },
        };
        let absences = Absences {
            threads,
            watched: Watched::begin(pid),
            ..Absences::default()
        };
        (absences, refused)
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

    /// Those of an op's goroutine; what was before it is forgotten.
    pub fn of(&mut self, op: &Op) -> VecDeque<Absence> {
        self.known.remove(&op.tid).unwrap_or_default()
    }

    /// The op with the times in it at which its goroutine did not run, in order; nothing where these are not all known yet.
    pub fn take(
        &mut self,
        op: Op,
        modules: &Modules,
        catalog: &mut Catalog,
    ) -> Option<(Op, Vec<Interval>)> {
        let known = self.of(&op);
        let within = |absence: &&Absence| op.start <= absence.left && absence.back <= op.end;
        let known: Vec<&Absence> = known.iter().filter(within).collect();
        let turns = turns(&op, &known);
        // One in which it called something has another begin than is known.
        let ran = |absence: &Absence| {
            let mut touched = op.touched.iter();
            touched.any(|it| absence.left < it.max_start && it.max_start < absence.back)
        };
        let known = known.into_iter().filter(|absence| !ran(absence));
        let away: Vec<Interval> = known
            .map(|absence| Interval {
                from: absence.left,
                to: absence.back,
                why: self.why(absence, modules, catalog),
            })
            .collect();
        match &mut self.threads {
            Some(threads) => {
                threads.hold(op, away, turns);
                None
            }
            None => Some((op, away)),
        }
    }

    /// The kernel's records of switches, where it tells of them.
    pub fn switches(&mut self) -> Option<&mut Switches> {
        self.threads.as_mut().map(|threads| threads.switches())
    }

    /// Hands on the ops of which all is known by now.
    pub fn advance(
        &mut self,
        pacing: &Pacing,
        process: &Process<'_>,
        catalog: &mut Catalog,
        investigation: &mut Investigation,
    ) {
        self.watched.look(process.pid());
        if let Some(threads) = &mut self.threads {
            threads.advance(pacing, catalog, investigation);
        }
    }

    /// Hands on all others: nothing more will come.
    pub fn finish(
        &mut self,
        pacing: &Pacing,
        process: &Process<'_>,
        catalog: &mut Catalog,
        investigation: &mut Investigation,
    ) {
        let untold = process.engine().counters().untold_absences;
        investigation.warnings.extend(self.caveat(untold));
        let unknown = self.threads.as_mut().map(|threads| {
            threads.finish(pacing, catalog, investigation);
            threads.unknown()
        });
        if unknown == Some(0) {
            return;
        }
        self.watched.look_again(process.pid());
        let kept = self.watched.kept();
        let analysis = &mut investigation.analysis;
        if let Some(hz) = self.watched.rate() {
            let others = others(analysis, process, catalog);
            analysis.kept_from_running(kept.in_ticks(hz), others);
        }
        let caveat = kept.caveat(analysis, unknown.is_none());
        investigation.warnings.extend(caveat);
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

/// On which threads the op's goroutine ran, and when, in order; nothing where that is not known of all of its time.
fn turns(op: &Op, absences: &[&Absence]) -> Vec<Turn> {
    let (mut thread, went_on) = op.arguments.field;
    let mut from = op.start;
    let mut turns = Vec::new();
    for absence in absences {
        turns.push(Turn {
            thread,
            from,
            to: absence.left,
        });
        (thread, from) = (absence.thread as u32, absence.back);
    }
    turns.push(Turn {
        thread,
        from,
        to: op.end,
    });
    let are_known = turns.iter().all(|turn| turn.thread != 0);
    match are_known && absences.len() == went_on as usize {
        true => turns,
        false => Vec::new(),
    }
}

/// The fnodes at whose ends a goroutine does not run, or the kernel works for it.
fn others(analysis: &Analysis, process: &Process<'_>, catalog: &Catalog) -> BTreeSet<FnodeId> {
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
    use darc_record::{Arguments, Ticks, Tsc};

    use super::*;

    fn absence(tid: i32, [left, ready, back]: [u64; 3], thread: i32) -> Absence {
        Absence {
            tid,
            left: Tsc(left),
            ready: Tsc(ready),
            back: Tsc(back),
            thread,
            waker: Vec::new(),
        }
    }

    fn op(field: (u32, u32)) -> Op {
        Op {
            tid: 1,
            start: Tsc(100),
            end: Tsc(200),
            latency: Ticks(100),
            arguments: Arguments {
                field,
                ..Arguments::default()
            },
            touched: Vec::new(),
        }
    }

    #[test]
    fn absences_are_those_of_the_goroutines_op() {
        let mut absences = Absences::default();
        absences.add(absence(1, [50, 60, 70], 0));
        absences.add(absence(1, [110, 120, 130], 0));
        absences.add(absence(2, [110, 120, 130], 0));
        absences.add(absence(1, [140, 140, 150], 0));
        let modules = Modules::default();
        let mut catalog = Catalog::default();
        let mut found = || absences.take(op((0, 2)), &modules, &mut catalog);
        let (_, away) = found().expect("the kernel tells nothing");
        let [waited, let_run] = &away[..] else {
            panic!("two: {away:?}");
        };
        assert!(matches!(
            waited.why,
            Away::Blocked {
                woken: Some(Tsc(120)),
                by: None
            }
        ));
        assert_eq!(let_run.why, Away::Preempted { by: None });
        assert!(found().is_some_and(|(_, away)| away.is_empty()));
    }

    #[test]
    fn the_kernel_is_not_asked_for_turns_that_nobody_wants_to_know() {
        let pid = nix::unistd::getpid().as_raw();
        let (mut absences, refused) = Absences::of_process(pid, Preemption::Counted);
        assert!(absences.switches().is_none());
        assert_eq!(refused, None);
    }

    #[test]
    fn on_which_threads_an_op_ran_is_known_where_all_times_are_in_which_it_did_not() {
        let waited = absence(1, [110, 120, 130], 12);
        let turn = |thread, from, to| Turn {
            thread,
            from: Tsc(from),
            to: Tsc(to),
        };
        let both = [turn(11, 100, 110), turn(12, 130, 200)];
        assert_eq!(turns(&op((11, 1)), &[&waited]), both);
        assert_eq!(turns(&op((11, 0)), &[]), [turn(11, 100, 200)]);
        // Another one is not told; its thread is not known.
        assert_eq!(turns(&op((11, 2)), &[&waited]), []);
        assert_eq!(turns(&op((0, 0)), &[]), []);
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
