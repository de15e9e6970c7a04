//! Ops and the kernel's records of when threads were off their CPUs, brought together on one time line.
//!
//! Records come a little later than the ops that they belong to, so ops are held until all records of their time
//! are known.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use darc_analysis::off_cpu::{Away, Interval, OtherId};
use darc_analysis::{Absence as Kind, Analysis};
use darc_process::Process;
use darc_process::clock::Moment;
use darc_process::modules::Modules;
use darc_record::{Enqueued, FnodeId, Op, SiteId, Tsc};
use darc_report::model::OtherProcess;
use darc_report::{assemble, goroutines};
use darc_tracer::addr::TargetAddr;
use darc_tracer::cgroup::CpuLimits;
use darc_tracer::effort::Pacing;
use darc_tracer::engine::{Absence, Counted, NewTarget, Served, Sink};
use darc_tracer::perf::off_cpu::{self, Waker, Why};
use darc_tracer::perf::switches::Switches;
use darc_tracer::perf::tracepoints::{NoTracepoints, Service};
use darc_tracer::threads;
use nix::sys::signal::Signal;

use crate::session::asynchronous::{Serving, Settle};
use crate::session::catalog::{Another, Catalog};
use crate::session::descent::arguments::telling;
use crate::session::descent::futures::Ops;
use crate::session::descent::goroutines::Absences;
use crate::session::descent::held_back;
use crate::session::descent::investigation::Investigation;
use crate::session::descent::wakers::Wakers;

/// The thread that a CPU runs when it has none to run: as where the hypervisor, or a limit of CPU time, keeps ours from running.
const IDLE: i32 = 0;

/// What is known about the threads of the process while it is measured.
#[derive(Debug)]
pub enum Timeline {
    /// Nobody asks: the engine stops threads itself, and to the kernel that looks as if they waited.
    Unused,
    /// The kernel tells of every switch.
    Switches(Box<SwitchLog>),
    /// The run-time of a Go program lets goroutines run, not the kernel.
    Goroutines(Box<Absences>),
    /// It does not, to this user: there are sums only.
    Sums {
        /// For how long threads were ready without running, when the session began.
        waited: Duration,
    },
}

/// The analysis that an op is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Whose {
    F0,
    Serving,
}

/// Context switches, and the ops that are held until theirs are complete.
#[derive(Debug)]
pub struct SwitchLog {
    switches: Switches,
    wakers: Wakers,
    /// The system calls whose arguments were asked for.
    asked: BTreeSet<&'static str>,
    held: VecDeque<(Whose, Op)>,
    /// What limits of CPU time had done when the session began.
    limits: CpuLimits,
    /// When that was.
    began: Moment,
}

impl Timeline {
    /// Begins to follow the process. What cannot be had is said in the investigation's warnings, once.
    #[must_use]
    pub fn follow(pid: i32, investigation: &mut Investigation) -> Timeline {
        let refused = match is_numbered_like_us(pid) {
            false => "the process is in another pid namespace than darc".to_owned(),
            true => match Switches::follow(pid) {
                Ok(switches) => {
                    expect_absences(&switches, &mut investigation.analysis);
                    warn_of_untold(&switches, investigation);
                    return Timeline::Switches(Box::new(SwitchLog {
                        switches,
                        wakers: Wakers::default(),
                        asked: BTreeSet::new(),
                        held: VecDeque::new(),
                        limits: CpuLimits::of(pid),
                        began: Moment::now(),
                    }));
                }
                Err(refusal) => refusal.to_string(),
            },
        };
        investigation.warn(untold_preemption(&refused));
        Timeline::Sums {
            waited: waited(pid),
        }
    }

    /// Has an analysis expect what the kernel tells, if it does.
    pub fn is_followed_by(&self, analysis: &mut Analysis) {
        if let Timeline::Switches(known) = self {
            expect_absences(&known.switches, analysis);
        }
    }

    /// Begins to follow goroutines, and, where the investigation is to tell when the kernel runs other threads, those that they are on.
    #[must_use]
    pub fn of_goroutines(
        pid: i32,
        investigation: &mut Investigation,
        catalog: &mut Catalog,
    ) -> Timeline {
        investigation.analysis.expect_absences();
        investigation.analysis.tells_waits_by_calls();
        catalog.name_absence(Kind::Preempted, || goroutines::NOT_RUNNING.to_owned());
        let (absences, refused) = Absences::of_process(pid, investigation.preemption);
        if let Some(why) = refused {
            investigation.warn(untold_preemption(&why));
        }
        Timeline::Goroutines(Box::new(absences))
    }

    /// Reads the kernel's records, and hands on the ops of which all is known.
    pub fn advance(
        &mut self,
        pacing: &Pacing,
        process: &Process<'_>,
        catalog: &mut Catalog,
        investigation: &mut Investigation,
        mut serving: Option<&mut Serving>,
    ) {
        self.settle(Settle::Ripe, serving.as_deref_mut());
        // What an indirect call turned out to be is asked for here.
        self.ask_for_calls(investigation, serving.as_deref());
        if let Timeline::Switches(known) = self {
            known.switches.read();
            let complete = known.switches.complete();
            known.deliver(complete, pacing, process, catalog, investigation, serving);
        }
        if let Timeline::Goroutines(absences) = self {
            absences.advance(pacing, process, catalog, investigation);
        }
    }

    /// The kernel's records, where it tells of every switch.
    fn switches(&mut self) -> Option<&mut Switches> {
        match self {
            Timeline::Switches(known) => Some(&mut known.switches),
            Timeline::Goroutines(absences) => absences.switches(),
            Timeline::Sums { .. } | Timeline::Unused => None,
        }
    }

    /// Whether the kernel's records may be read a few times more seldom without losing any.
    #[must_use]
    pub fn has_room(&mut self) -> bool {
        self.switches().is_none_or(|switches| switches.has_room())
    }

    /// What the kernel's records took since the last time.
    pub fn take_price(&mut self) -> Duration {
        self.switches().map_or(Duration::ZERO, Switches::take_price)
    }

    /// Has the kernel record nothing from now on.
    pub fn rest(&mut self) {
        if let Some(switches) = self.switches() {
            switches.rest();
        }
    }

    /// Has it record again.
    pub fn go_on(&mut self) {
        if let Some(switches) = self.switches() {
            switches.go_on();
        }
    }

    /// Asks for the arguments of the system calls that are measured and were not asked for yet.
    pub fn ask_for_calls(&mut self, investigation: &Investigation, serving: Option<&Serving>) {
        let Timeline::Switches(known) = self else {
            return;
        };
        let both = serving.map(|serving| &serving.investigation);
        for own in std::iter::once(investigation).chain(both) {
            let fnodes = own.analysis.ftree().fnodes();
            let telling = fnodes.filter_map(|fnode| telling(fnode.callee));
            for name in telling {
                if known.asked.insert(name) {
                    known.switches.ask_for_calls(name);
                }
            }
        }
    }

    /// Takes the ops that serve requests of f0.
    fn settle(&mut self, which: Settle, serving: Option<&mut Serving>) {
        let Some(serving) = serving else { return };
        serving.settle(which, |investigation, op| match self {
            Timeline::Switches(known) => known.held.push_back((Whose::Serving, op)),
            // Only threads serve requests of others.
            Timeline::Goroutines(_) | Timeline::Sums { .. } | Timeline::Unused => {
                investigation.take_op(&op, &[]);
            }
        });
    }

    /// Hands on everything: nothing more will come.
    pub fn finish(
        &mut self,
        pacing: &Pacing,
        process: &Process<'_>,
        catalog: &mut Catalog,
        investigation: &mut Investigation,
        mut serving: Option<&mut Serving>,
    ) {
        self.settle(Settle::All, serving.as_deref_mut());
        match self {
            Timeline::Switches(known) => {
                known.switches.read_rest();
                known.deliver(
                    Tsc(u64::MAX),
                    pacing,
                    process,
                    catalog,
                    investigation,
                    serving,
                );
                warn_of_untold(&known.switches, investigation);
                let limited = known.limits.held_back();
                let (analysis, hz) = (&investigation.analysis, known.began.rate());
                investigation.held_back = held_back::for_most(limited, analysis, hz);
                let warning = held_back::warning(limited, analysis);
                investigation.warnings.extend(warning);
                let lost = dropped(known.switches.lost());
                investigation.warnings.extend(lost);
            }
            Timeline::Goroutines(absences) => {
                absences.finish(pacing, process, catalog, investigation);
            }
            Timeline::Unused => {}
            Timeline::Sums { waited: before } => {
                let waited = waited(process.pid()).saturating_sub(*before);
                if waited >= Duration::from_millis(10) {
                    investigation.warnings.push(format!(
                        "while it was analysed, threads of the process were ready but did not run for {:.2} s together (/proc/PID/task/*/schedstat)",
                        waited.as_secs_f64()
                    ));
                }
            }
        }
    }
}

fn untold_preemption(why: &str) -> String {
    format!("preemption is not told from a function's own time: {why}")
}

/// That ops decide nothing of which records are missing.
pub(super) fn dropped(lost: u64) -> Option<String> {
    (lost > 0).then(|| {
        format!(
            "the kernel dropped {lost} records of context switches and page faults, which came faster than they could be read: ops of these times decide nothing"
        )
    })
}

/// Who had the processor that a thread was ready for, as far as that is told.
pub(super) fn ran_instead(
    switches: &mut Switches,
    instead: Option<i32>,
    catalog: &mut Catalog,
) -> Option<OtherId> {
    let another = match instead? {
        // In a container this is any thread of another one.
        IDLE if switches.untold() == Some(&NoTracepoints::OtherNumbers) => return None,
        IDLE => Another {
            name: assemble::IDLE.to_owned(),
            ..Another::default()
        },
        tid => Another {
            name: switches.name(tid),
            tid: Some(tid),
            ..Another::default()
        },
    };
    Some(catalog.other(another))
}

/// Says once what the kernel's tracepoints do not tell, and why.
fn warn_of_untold(switches: &Switches, investigation: &mut Investigation) {
    match switches.untold() {
        Some(NoTracepoints::TooManyFaults) => investigation.warn(
            "page faults came faster than they could be read: from then on they count as a function's own time"
                .to_owned(),
        ),
        Some(why @ NoTracepoints::OtherNumbers) => {
            investigation.warn(format!("who ends waits is not told: {why}"));
        }
        Some(why) => investigation.warn(format!(
            "who ends waits, interrupts and page faults are not told: {why}"
        )),
        None => {}
    }
}

impl SwitchLog {
    fn deliver(
        &mut self,
        complete: Tsc,
        pacing: &Pacing,
        process: &Process<'_>,
        catalog: &mut Catalog,
        investigation: &mut Investigation,
        mut serving: Option<&mut Serving>,
    ) {
        let modules = process.modules();
        while self.held.front().is_some_and(|(_, op)| op.end <= complete) {
            let Some((whose, op)) = self.held.pop_front() else {
                break;
            };
            let is_seen = pacing.have_measured(op.start, op.end)
                && !self.switches.misses(op.tid, op.start, op.end);
            let off = self.switches.between(op.tid, op.start, op.end);
            if off.iter().any(|off| is_long_beside(off, &op)) {
                self.switches.ask_for_yields();
            }
            let away: Vec<Interval> = off
                .iter()
                .map(|off| self.interval(off, catalog, process))
                .collect();
            let switches = &self.switches;
            let own = match (whose, &mut serving) {
                (Whose::F0, _) => &mut *investigation,
                (Whose::Serving, Some(serving)) => &mut serving.investigation,
                (Whose::Serving, None) => continue,
            };
            if !is_seen {
                own.take_unseen_op(&op);
                continue;
            }
            let find = |number, from, to| switches.call(op.tid, number, from, to);
            let (pid, faults) = (switches.pid(), faults(switches, &op, &away));
            own.renumber();
            let arguments = &mut own.arguments;
            arguments.take(&op, &own.analysis, modules, pid, find);
            arguments.take_faults(&op, &own.analysis, modules, pid, &faults);
            own.take_op(&op, &away);
        }
    }

    fn interval(
        &mut self,
        away: &off_cpu::Away,
        catalog: &mut Catalog,
        process: &Process<'_>,
    ) -> Interval {
        let why = match away.why {
            Why::Preempted(instead) => Away::Preempted {
                by: ran_instead(&mut self.switches, instead, catalog),
            },
            // What it let pass is no other's doing: it is the time of the call.
            Why::Yielded => Away::Blocked {
                woken: Some(away.from),
                by: None,
            },
            Why::Blocked(wake) => Away::Blocked {
                woken: wake.map(|wake| wake.at),
                by: wake.map(|wake| self.waker(wake.by, catalog, process)),
            },
            Why::Faulted(waited) => Away::Faulted {
                blocked: waited.blocked,
                by: waited.by.map(|by| self.waker(by, catalog, process)),
            },
            Why::Served(service) => {
                let absence = absence(service);
                catalog.name_absence(absence, || format!("({})", self.service(service)));
                Away::Interrupted(absence)
            }
            Why::Handled(handler) => {
                let absence = Kind::Signal(handler.signal);
                catalog.name_handler(
                    handler.signal,
                    handler.function,
                    || handled(&handler, process.modules()),
                    || format!("({}: several handlers)", signal(&handler)),
                );
                Away::Interrupted(absence)
            }
        };
        Interval {
            from: away.from,
            to: away.to,
            why,
        }
    }

    fn waker(&mut self, waker: Waker, catalog: &mut Catalog, process: &Process<'_>) -> OtherId {
        match waker {
            // A wait goes on behind a stop.
            Waker::Thread { pid, .. } if pid.cast_unsigned() == std::process::id() => catalog
                .other(Another {
                    name: OURSELVES.to_owned(),
                    ..Another::default()
                }),
            Waker::Thread { pid, tid, stack } => {
                let of = (pid != self.switches.pid()).then(|| self.other_process(pid));
                self.thread(tid, of, stack, catalog, process)
            }
            Waker::Interrupt(service) => catalog.other(Another {
                name: match service {
                    Some(service) => self.service(service),
                    None => "an interrupt".to_owned(),
                },
                ..Another::default()
            }),
        }
    }

    fn thread(
        &mut self,
        tid: i32,
        of: Option<OtherProcess>,
        stack: Option<u64>,
        catalog: &mut Catalog,
        process: &Process<'_>,
    ) -> OtherId {
        let stack = stack.and_then(|number| self.switches.stack(number));
        let stack = stack.map(|stack| self.wakers.functions(process, stack));
        catalog.other(Another {
            name: self.switches.name(tid),
            tid: Some(tid),
            process: of,
            stack: stack.unwrap_or_default(),
        })
    }

    /// A process that woke a thread of this one.
    fn other_process(&mut self, pid: i32) -> OtherProcess {
        // Its command line is in its own memory, which may be such that who reads it waits for ever.
        let command = self.switches.name(pid);
        OtherProcess { pid, command }
    }

    /// What a CPU does beside its threads, in words.
    fn service(&self, service: Service) -> String {
        let name = self.switches.service_name(service);
        let with = |words: String| match name {
            Some(name) => format!("{words} {name}"),
            None => words,
        };
        match service {
            Service::Interrupt(number) | Service::LocalInterrupt(number) => {
                with(format!("interrupt {number}"))
            }
            Service::SoftInterrupt(number) => match name {
                Some(name) => format!("softirq {name}"),
                None => format!("softirq {number}"),
            },
            Service::PageFault => "page fault".to_owned(),
        }
    }
}

fn expect_absences(switches: &Switches, analysis: &mut Analysis) {
    analysis.expect_absences();
    analysis.faults_are_recorded(switches.fault_records());
}

/// Whether it looks as if another thread had taken much of an op.
fn is_long_beside(off: &off_cpu::Away, op: &Op) -> bool {
    const LONG: f64 = 0.1;
    let len = (off.to - off.from).0 as f64;
    matches!(off.why, Why::Preempted(_)) && len >= LONG * op.latency.0 as f64
}

/// The page faults in an op, with what was touched.
fn faults(switches: &Switches, op: &Op, away: &[Interval]) -> Vec<(Interval, u64)> {
    let is_fault = |it: &&Interval| matches!(it.why, Away::Faulted { .. });
    let faults = away.iter().filter(is_fault);
    let with_address = faults.filter_map(|&fault| {
        let address = switches.fault(op.tid, fault.from, fault.to)?;
        Some((fault, address))
    });
    with_address.collect()
}

fn signal(handler: &off_cpu::Handler) -> String {
    let signal = i32::try_from(handler.signal).ok();
    match signal.and_then(|signal| Signal::try_from(signal).ok()) {
        Some(signal) => signal.as_str().to_owned(),
        None => format!("signal {}", handler.signal),
    }
}

/// The handler of a signal, in words.
fn handled(handler: &off_cpu::Handler, modules: &Modules) -> String {
    let signal = signal(handler);
    match modules.place(TargetAddr(handler.function)) {
        Some(place) => format!("({signal}: {})", modules.name(place)),
        None => format!("({signal})"),
    }
}

fn absence(service: Service) -> Kind {
    match service {
        Service::Interrupt(number) => Kind::Interrupt(number),
        Service::LocalInterrupt(vector) => Kind::LocalInterrupt(vector),
        Service::SoftInterrupt(number) => Kind::SoftInterrupt(number),
        Service::PageFault => Kind::PageFault,
    }
}

/// Where an engine's ops go while the time line is behind.
pub struct Holding<'a> {
    /// The files.
    pub modules: &'a Modules,
    /// What ids stand for.
    pub catalog: &'a mut Catalog,
    /// What is known.
    pub investigation: &'a mut Investigation,
    /// What f0 hands to other threads.
    pub serving: Option<&'a mut Serving>,
    /// The time line.
    pub timeline: &'a mut Timeline,
    /// When it is measured.
    pub pacing: &'a mut Pacing,
}

impl Holding<'_> {
    fn op_ended(&mut self, op: &Op) {
        if let Some(serving) = &mut self.serving {
            serving.op_ended(self.investigation, op);
        }
    }
}

impl Sink for Holding<'_> {
    fn op(&mut self, op: Op) {
        if let Ops::Lives(followed) = &mut self.investigation.ops {
            followed.hold(op, true);
            return;
        }
        // In a rest a new thread may have room for records before anybody has looked, and calls no probes.
        let began_seen = self.pacing.have_measured(op.start, op.start);
        if !began_seen && !matches!(self.timeline, Timeline::Switches(_)) {
            self.chosen_by_room(op);
            return;
        }
        self.op_ended(&op);
        self.pacing.expect(&op);
        match self.timeline {
            Timeline::Switches(known) => {
                known.held.push_back((Whose::F0, op));
            }
            Timeline::Goroutines(absences) => {
                if let Some((op, away)) = absences.take(op, self.modules, self.catalog) {
                    self.investigation.take_op(&op, &away);
                }
            }
            Timeline::Sums { .. } | Timeline::Unused => self.investigation.take_op(&op, &[]),
        }
    }

    fn absence(&mut self, absence: Absence) {
        if let Timeline::Goroutines(absences) = self.timeline {
            absences.add(absence);
        }
    }

    fn latency_only(&mut self, counted: Counted) {
        // Polls that were counted alone are no lives.
        if matches!(self.investigation.ops, Ops::Lives(_)) {
            return;
        }
        self.investigation.latency_only(counted);
    }

    fn chosen_by_room(&mut self, op: Op) {
        if let Ops::Lives(followed) = &mut self.investigation.ops {
            followed.hold(op, true);
            return;
        }
        if let Timeline::Goroutines(absences) = self.timeline {
            absences.of(&op);
        }
        // Others of its thread wait for their records meanwhile: it comes before its turn.
        self.op_ended(&op);
        self.pacing.expect(&op);
        self.investigation.analysis.add_unseen(&op);
    }

    fn partly(&mut self, op: Op) {
        if let Ops::Lives(followed) = &mut self.investigation.ops {
            followed.hold(op, false);
            return;
        }
        self.op_ended(&op);
        self.pacing.expect(&op);
        self.investigation.analysis.ran_beside(&op);
        self.investigation.analysis.add_unseen(&op);
    }

    fn new_target(&mut self, parent: FnodeId, site: SiteId, target: TargetAddr) -> NewTarget {
        let serving = self.serving.as_deref_mut();
        let (modules, catalog) = (self.modules, &mut *self.catalog);
        let of_serving =
            serving.and_then(|it| it.new_target(modules, catalog, parent, site, target));
        of_serving.unwrap_or_else(|| {
            let own = &mut self.investigation;
            own.new_target(modules, catalog, parent, site, target)
        })
    }

    fn enqueued(&mut self, enqueued: Enqueued) {
        if let Some(serving) = &mut self.serving {
            serving.enqueued(&enqueued);
        }
    }

    fn served(&mut self, served: Served) {
        if let Some(serving) = &mut self.serving {
            serving.served(served);
        }
    }
}

/// Who wakes a thread to stop it.
const OURSELVES: &str = "darc itself, which stopped the thread for a moment";

/// Whether threads have the same numbers for the process and for darc.
pub(super) fn is_numbered_like_us(pid: i32) -> bool {
    let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    match (namespace("self"), namespace(&pid.to_string())) {
        (Some(ours), Some(theirs)) => ours == theirs,
        _ => true,
    }
}

/// For how long the threads of a process were ready without running.
fn waited(pid: i32) -> Duration {
    let threads = threads::list(pid).unwrap_or_default().into_iter();
    threads.filter_map(|tid| threads::waited(pid, tid)).sum()
}
