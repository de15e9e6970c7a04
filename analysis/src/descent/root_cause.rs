//! What the analysis answers: for each peak, the paths from f0 to what takes the time.

use darc_record::{FnodeId, Ticks};

use crate::descent::ftree::{Absence, Callee, Ftree};
use crate::descent::loops;
use crate::descent::peak_record::{Outcome, PathState, PeakRecord, Stop};
use crate::descent::recursion;
use crate::descent::share::LEAST;
use crate::descent::ways;
use crate::off_cpu::is_absence;

/// The causes that are found explain this part of the time at least.
pub const HALF: f64 = 0.5;
/// So much of a function's own time in calls that it repeats is told.
const MUCH: f64 = 0.2;
/// Paths that are undecided leave less than this part of the time unexplained where the others' causes are the peak's: whatever
/// has as much has a path of its own.
pub const SMALL: f64 = 0.2;

/// What takes the time at the end of a root-cause path.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CauseKind {
    /// The function's own code.
    Function,
    /// The function's many calls, each of them short, or such that no single thing below them takes their time.
    Loop,
    /// The kernel, in a system call.
    Syscall,
    /// Another thread, which ran instead.
    Preemption,
    /// An interrupt.
    Interrupt,
    /// Deferred work of interrupts.
    SoftInterrupt,
    /// A page fault.
    PageFault,
    /// The handler of a signal.
    Signal,
    /// Waiting of the future that f0 polls, between its polls.
    Await,
}

/// One root-cause path.
#[derive(Clone, PartialEq, Debug)]
pub struct RootCause {
    /// From f0 down to the cause.
    pub path: Vec<FnodeId>,
    /// What takes the time there.
    pub kind: CauseKind,
    /// In how many ops it was a main contributor.
    pub maxcount: u64,
    /// The part of the ops in which each step of the path was a main contributor where it was decided, 0 to 1.
    pub share_of_ops: f64,
    /// Why the path ends.
    pub stop: Stop,
    /// For each fnode of the path the part of the time of the peak's ops that passed in it and below it, 0 to 1.
    pub shares: Vec<f64>,
    /// The part of that time that the cause itself explains, 0 to 1.
    pub share: f64,
    /// The part of that time in calls of the path's functions that were not gone on with, from other sites: they are taken to go
    /// where the others go.
    pub assumed: f64,
    /// The ops that this is known from: those that it was called in.
    pub known_from: u64,
    /// Of a function that takes the time itself: the part of that time in which it waited for something, 0 to 1. Nothing
    /// where too little is known of it.
    pub blocked: Option<f64>,
    /// Of a loop: the part of what it explains that is in its calls, 0 to 1. The rest is the function's own code.
    pub in_calls: Option<f64>,
}

/// Where the analysis of one peak stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeakStatus {
    /// The person did not choose it.
    NotAnalysed,
    /// Some path does not end yet.
    InProgress,
    /// Every path ends, one at least because it may not become longer, and together they explain half of the time at least.
    MaxDepthReached,
    /// Every path ends, those with a fifth of the time or more in functions of which it is not known whether they or what they
    /// call take it. Or the ops are those that were struck ([`crate::Analysis::is_of_struck_ops`]), or threads were kept from running
    /// for much of their time ([`crate::Analysis::kept_from_running`]).
    Undecided,
    /// Every path ends, but most of the time is spread.
    Spread,
    /// Every path ends, and together they explain half of the time at least.
    RootCauseFound,
}

/// Where the whole analysis stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// Peaks are still looked for, or some path does not end yet.
    InProgress,
    /// Every path ends, one at least because it may not become longer, and nearly all of the time is in peaks of which it is known
    /// where it goes.
    MaxDepthReached,
    /// Every path ends, but of too much of the time it is not known what takes it.
    Undecided,
    /// Every path ends, and too much of the time is spread.
    Spread,
    /// Every path ends, and nearly all of the time is in peaks whose causes are known.
    RootCauseFound,
}

/// How a path ends that is not decided.
const STILL: (CauseKind, Stop) = (CauseKind::Function, Stop::StillDescending);

/// All root-cause paths of a peak, from left to right in the ftree. What was begun below a function that is not decided is told in its
/// place, and is not decided either. A function's own time may be off by `noise` for each measured call that it makes.
#[must_use]
pub fn root_causes(ftree: &Ftree, peak: u32, noise: Ticks) -> Vec<RootCause> {
    let found = Found {
        ftree,
        peak,
        noise,
        is_way: false,
    };
    let mut causes = Vec::new();
    found.add(FnodeId::ROOT, None, &mut causes);
    recursion::gather(ftree, peak, &mut causes);
    causes
}

/// What the paths of a peak end in.
#[derive(Clone, Copy)]
struct Found<'a> {
    ftree: &'a Ftree,
    peak: u32,
    noise: Ticks,
    /// Whether only the ends of ways through a function that is spread are of interest ([`ways`]).
    is_way: bool,
}

impl Found<'_> {
    /// Adds the causes at and below an fnode, and why what is above it is not decided, if it is not.
    fn add(self, id: FnodeId, open: Option<&Stop>, causes: &mut Vec<RootCause>) {
        let fnode = self.ftree.fnode(id);
        let state = &fnode.record(self.peak).state;
        if *state == PathState::Decided(Outcome::Spread) && open.is_none() {
            return self.add_spread(id, causes);
        }
        let end = end_at(self.ftree, self.peak, id, self.noise);
        match open {
            None => causes.extend(end),
            Some(stop) => causes.extend(end.map(|cause| as_undecided(cause, stop))),
        }
        match state {
            PathState::Decided(Outcome::Spread) => {}
            PathState::Decided(_) => self.add_below(id, open, causes),
            PathState::Waiting | PathState::Collecting => {
                self.add_below(id, open.or(Some(&Stop::StillDescending)), causes);
            }
            PathState::Ended(Stop::TooRare) => {
                self.add_below(id, open.or(Some(&Stop::TooRare)), causes);
            }
            PathState::NotChosen | PathState::Ended(_) => {}
        }
    }

    fn add_below(self, id: FnodeId, open: Option<&Stop>, causes: &mut Vec<RootCause>) {
        for &child in &self.ftree.fnode(id).children {
            // What was foreseen, and no op has told of yet, may have nothing to do with it.
            let is_called = self.ftree.fnode(child).record(self.peak).stats.ops > 0;
            if open.is_none() || is_called {
                self.add(child, open, causes);
            }
        }
    }

    /// Adds what takes the time of a function that is spread over its callees.
    fn add_spread(self, id: FnodeId, causes: &mut Vec<RootCause>) {
        let spread = spread(self.ftree, self.peak, id);
        if let Some(around) = loops::around(self.ftree, self.peak, &spread) {
            return loops::add(causes, around);
        }
        if self.is_way {
            return self.add_below(id, None, causes);
        }
        let mut ends = Vec::new();
        Found {
            is_way: true,
            ..self
        }
        .add_below(id, None, &mut ends);
        let whole = spread.shares.last().copied().unwrap_or(0.0);
        match ends.iter().any(|end| end.stop == Stop::StillDescending) {
            // Whether they end alike is not known yet.
            true => causes.push(as_undecided(spread, &Stop::StillDescending)),
            false => causes.extend(ways::of_ends(self.ftree, whole, ends).unwrap_or(vec![spread])),
        }
    }
}

/// What a path's last fnode says, if a path ends there.
fn end_at(ftree: &Ftree, peak: u32, id: FnodeId, noise: Ticks) -> Option<RootCause> {
    let fnode = ftree.fnode(id);
    match &fnode.record(peak).state {
        PathState::NotChosen | PathState::Decided(Outcome::Callees) => None,
        // Earlier versions had such ends.
        PathState::Ended(_) if is_told_at_f0(ftree, id) => None,
        PathState::Waiting | PathState::Collecting => {
            undecided(ftree, peak, id, Stop::StillDescending)
        }
        PathState::Ended(Stop::TooRare) => undecided(ftree, peak, id, Stop::TooRare),
        PathState::Ended(stop) => {
            let end = (kind_of(fnode.callee), stop.clone());
            Some(below_decisions(ftree, peak, id, end))
        }
        PathState::Decided(Outcome::Spread) => Some(below_decisions(ftree, peak, id, STILL)),
        PathState::Decided(Outcome::Itself) => Some(itself(ftree, peak, id, noise)),
        PathState::Decided(Outcome::Both) => {
            // Calls that are gone into in most ops, and seem to be a loop's in a few.
            let is_little = |cause: &RootCause| {
                let all = cause.shares.last().copied().unwrap_or(0.0);
                cause.kind == CauseKind::Loop && cause.share < LEAST * all
            };
            Some(itself(ftree, peak, id, noise)).filter(|cause| !is_little(cause))
        }
    }
}

/// A cause below a function that is not decided, for this reason.
fn as_undecided(cause: RootCause, open: &Stop) -> RootCause {
    let kind = match cause.kind {
        CauseKind::Loop => CauseKind::Function,
        kind => kind,
    };
    RootCause {
        kind,
        stop: open.clone(),
        blocked: None,
        in_calls: None,
        ..cause
    }
}

/// What is known of a function that is not decided: of the part of its time that is not where it was gone on with.
fn undecided(ftree: &Ftree, peak: u32, id: FnodeId, open: Stop) -> Option<RootCause> {
    let cause = below_decisions(ftree, peak, id, (CauseKind::Function, open));
    let begun = ftree.fnode(id).children.iter().copied();
    let begun = begun.filter(|&child| ftree.fnode(child).record(peak).is_chosen());
    let of = |at| part_of(ftree, peak, id, at);
    let below: f64 = begun
        .map(|child| with_unfollowed(ftree, peak, child, &of))
        .sum();
    let rest = (1.0 - below).max(0.0);
    (below <= 0.0 || cause.share * rest >= LEAST).then_some(RootCause {
        share: cause.share * rest,
        assumed: cause.assumed * rest,
        ..cause
    })
}

fn kind_of(callee: Callee) -> CauseKind {
    match callee {
        Callee::Syscall(_) => CauseKind::Syscall,
        Callee::Function(_) | Callee::Unknown => CauseKind::Function,
        Callee::Absence(Absence::Preempted) => CauseKind::Preemption,
        Callee::Absence(Absence::Interrupt(_) | Absence::LocalInterrupt(_)) => CauseKind::Interrupt,
        Callee::Absence(Absence::SoftInterrupt(_)) => CauseKind::SoftInterrupt,
        Callee::Absence(Absence::PageFault) => CauseKind::PageFault,
        Callee::Absence(Absence::Signal(_)) => CauseKind::Signal,
        Callee::Absence(Absence::Awaiting(_)) => CauseKind::Await,
    }
}

/// A path that ends without a decision of its own: known from the one at its caller.
fn below_decisions(
    ftree: &Ftree,
    peak: u32,
    id: FnodeId,
    (kind, stop): (CauseKind, Stop),
) -> RootCause {
    let fnode = ftree.fnode(id);
    let path = ftree.path(id);
    let shares = shares(ftree, peak, &path);
    let share = shares.last().copied().unwrap_or(0.0);
    RootCause {
        kind,
        maxcount: fnode.record(peak).maxcount,
        share_of_ops: share_of_ops(ftree, peak, &path),
        stop,
        share,
        assumed: share * (1.0 - gone_on_with(ftree, peak, &path)),
        shares,
        known_from: match fnode.parent {
            Some(_) => fnode.record(peak).stats.ops,
            None => fnode.record(peak).known_from(),
        },
        blocked: None,
        in_calls: None,
        path,
    }
}

/// A function that takes the time itself.
fn itself(ftree: &Ftree, peak: u32, id: FnodeId, noise: Ticks) -> RootCause {
    let fnode = ftree.fnode(id);
    let record = fnode.record(peak);
    let kind = match is_loop(record) {
        true => CauseKind::Loop,
        false => CauseKind::Function,
    };
    let part = match kind {
        CauseKind::Loop if record.whole.time > Ticks(0) => {
            (record.own.time.0 as f64 / record.whole.time.0 as f64).min(1.0)
        }
        _ => (1.0 - in_callees(ftree, peak, id)).max(0.0),
    };
    // Time away is no call that it makes.
    let calls = fnode
        .children
        .iter()
        .any(|&child| !is_absence(ftree.fnode(child).callee));
    let unmeasured = ftree.sites(id).unmeasured;
    let is_system_call = |&at: &FnodeId| makes_a_thread(ftree.fnode(at).callee);
    let is_the_loop =
        || kind == CauseKind::Loop && beside_loop(ftree, peak, id, noise) < LEAST * part;
    let stop = match calls {
        // Nothing is called below a system call that returns twice, and it never has a probe: the path ends here all the same.
        _ if !unmeasured.iter().all(is_system_call) && !is_the_loop() => Stop::PartlyMeasured,
        true => Stop::SelfTime,
        false => Stop::NoCalls,
    };
    let cause = below_decisions(ftree, peak, id, (kind, stop));
    let often = record.self_maxcount as f64 / record.decision_ops.max(1) as f64;
    RootCause {
        maxcount: record.self_maxcount,
        share_of_ops: cause.share_of_ops * often.min(1.0),
        share: cause.share * part,
        assumed: cause.assumed * part,
        known_from: record.known_from(),
        // In its system call a function may wait, as in vfork(2).
        blocked: blocked(record, kind).filter(|_| unmeasured.is_empty()),
        in_calls: (kind == CauseKind::Loop).then(|| in_calls(record)),
        ..cause
    }
}

/// The part of a function's time that is not in its measured calls, 0 to 1, at most: calls that could not be measured have no
/// more than that.
fn beside_loop(ftree: &Ftree, peak: u32, id: FnodeId, noise: Ticks) -> f64 {
    let fnode = ftree.fnode(id);
    let record = fnode.record(peak);
    let counts = fnode.children.iter().map(|&callee| {
        let stats = ftree.fnode(callee).record(peak).stats;
        stats.count as f64 / stats.ops.max(1) as f64
    });
    let calls: f64 = counts.sum();
    let mean = record.measured_time.0 as f64 / record.measured_ops.max(1) as f64;
    let own = (1.0 - in_callees(ftree, peak, id)).max(0.0);
    let own = own + calls * noise.0 as f64 / mean.max(1.0);
    // In the ops that it was decided from.
    own.max(1.0 - in_calls(record)).min(1.0)
}

/// Whether it is a system call that makes a thread or a process, as these are numbered on x86-64.
fn makes_a_thread(callee: Callee) -> bool {
    const CLONE: u32 = 56;
    const FORK: u32 = 57;
    const VFORK: u32 = 58;
    const CLONE3: u32 = 435;
    matches!(callee, Callee::Syscall(Some(CLONE | FORK | VFORK | CLONE3)))
}

/// The part of a function's own time in which it waited; of what is mostly a loop that is its callees' doing.
fn blocked(record: &PeakRecord, kind: CauseKind) -> Option<f64> {
    let (own, seen) = (record.own.time.0 as f64, record.own_seen.0 as f64);
    let is_its_own = kind == CauseKind::Function || in_calls(record) <= HALF;
    let is_known = is_its_own && seen > 0.0 && seen >= HALF * own;
    is_known.then(|| record.own_blocked.0 as f64 / seen)
}

/// Whether much of a function's own time went into calls that were repeated.
fn is_loop(record: &PeakRecord) -> bool {
    let is_named = matches!(
        record.state,
        PathState::Decided(Outcome::Itself | Outcome::Both)
    );
    is_named && record.loop_time.0 as f64 > MUCH * record.own.time.0 as f64
}

/// The part of a function's own time that went into calls that were repeated.
fn in_calls(record: &PeakRecord) -> f64 {
    (record.loop_time.0 as f64 / record.own.time.0.max(1) as f64).min(1.0)
}

/// A function whose time is spread over itself and what it calls: that explains nothing.
fn spread(ftree: &Ftree, peak: u32, id: FnodeId) -> RootCause {
    RootCause {
        share: 0.0,
        assumed: 0.0,
        known_from: ftree.fnode(id).record(peak).known_from(),
        ..below_decisions(ftree, peak, id, (CauseKind::Function, Stop::Spread))
    }
}

/// The part of the time of a peak's ops that passed in each fnode of a path, and below it.
pub(crate) fn shares(ftree: &Ftree, peak: u32, path: &[FnodeId]) -> Vec<f64> {
    let mut share = 1.0;
    let below = path.windows(2).map(|pair| {
        let without_loop = without_loop(ftree, peak, pair[0], pair[1]);
        let of = |at| without_loop * part_of(ftree, peak, pair[0], at);
        share *= with_unfollowed(ftree, peak, pair[1], &of).min(1.0);
        share
    });
    std::iter::once(1.0).chain(below).collect()
}

/// The part of the time at the end of a path that was seen there: not in calls that were not gone on with.
fn gone_on_with(ftree: &Ftree, peak: u32, path: &[FnodeId]) -> f64 {
    let steps = path.windows(2).map(|pair| {
        let of = |at| part_of(ftree, peak, pair[0], at);
        match with_unfollowed(ftree, peak, pair[1], &of) {
            all if all > 0.0 => of(pair[1]) / all,
            _ => 1.0,
        }
    });
    steps.product()
}

/// The part of a callee's time that is not in the short calls of its caller's loop: these are told there.
fn without_loop(ftree: &Ftree, peak: u32, id: FnodeId, callee: FnodeId) -> f64 {
    let caller = ftree.fnode(id);
    let record = caller.record(peak);
    if !is_loop(record) || !caller.measures(ftree.fnode(callee), peak) {
        return 1.0;
    }
    // Calls of the same function from a site where they are few are in no loop, as far as they were not told there.
    let is_few = |&at: &FnodeId| loops::is_few(ftree, peak, id, at);
    let first = ftree.first_alike(callee);
    let alike = caller.children.iter().copied();
    let alike = alike.filter(|&at| ftree.first_alike(at) == first);
    let (few, many): (Vec<_>, Vec<_>) = alike.partition(is_few);
    let together = |sites: Vec<FnodeId>| -> f64 {
        let parts = sites.into_iter().map(|at| part_of(ftree, peak, id, at));
        parts.sum()
    };
    let part = ftree.fnode(first).record(peak).part.time.0 as f64;
    let part = part / record.whole.time.0.max(1) as f64;
    let (few, many) = (together(few), together(many));
    let (part, all) = match is_few(&callee) {
        true => (part, few),
        false => ((part - few).max(0.0), many),
    };
    if all > part { part / all } else { 1.0 }
}

/// The part of the ops in which each step of a path was a main contributor, as far as that was decided.
fn share_of_ops(ftree: &Ftree, peak: u32, path: &[FnodeId]) -> f64 {
    let steps = path.windows(2).map(|pair| {
        let ops = ftree.fnode(pair[0]).record(peak).decision_ops.max(1) as f64;
        let of = |at| {
            let record = ftree.fnode(at).record(peak);
            record.maxcount.saturating_sub(record.before) as f64 / ops
        };
        with_unfollowed(ftree, peak, pair[1], &of).min(1.0)
    });
    steps.product()
}

/// A value of a call on a path, with that of the calls of the same function that were not gone on with: they are as those
/// that were.
fn with_unfollowed(ftree: &Ftree, peak: u32, id: FnodeId, of: &dyn Fn(FnodeId) -> f64) -> f64 {
    let first = ftree.first_alike(id);
    let parent = ftree.fnode(id).parent;
    let siblings = parent.map_or(&[][..], |at| &ftree.fnode(at).children);
    let alike = siblings
        .iter()
        .filter(|&&at| ftree.first_alike(at) == first);
    let (followed, left): (Vec<FnodeId>, Vec<FnodeId>) =
        alike.partition(|&&at| ftree.fnode(at).record(peak).is_chosen());
    let left: f64 = left.into_iter().map(of).sum();
    of(id) + left / followed.len().max(1) as f64
}

/// The part of an fnode's time that its callees account for.
pub(crate) fn in_callees(ftree: &Ftree, peak: u32, id: FnodeId) -> f64 {
    let callees = ftree.fnode(id).children.iter();
    callees
        .filter(|&&callee| !is_told_at_f0(ftree, callee))
        .map(|&callee| part_of(ftree, peak, id, callee))
        .sum()
}

/// Whether it stands for time away below f0: that is in f0's time away, too, competes there, and is taken out of all callees
/// of f0. What else the machine does comes in bursts, so a share of it that other ops tell below f0 may not be added to that
/// of f0. Page faults are told where they struck alone.
pub(crate) fn is_told_at_f0(ftree: &Ftree, id: FnodeId) -> bool {
    let fnode = ftree.fnode(id);
    is_absence(fnode.callee)
        && fnode.callee != Callee::Absence(Absence::PageFault)
        && fnode.parent != Some(FnodeId::ROOT)
}

/// The part of an fnode's time that one of its callees accounts for; each may have been measured in other ops. All of them
/// account for no more than all of it: of short calls the clock may tell more than of their caller.
pub(crate) fn part_of(ftree: &Ftree, peak: u32, id: FnodeId, callee: FnodeId) -> f64 {
    let caller = ftree.fnode(id).record(peak);
    let mean = |sum: Ticks, ops: u64| sum.0 as f64 / ops.max(1) as f64;
    let of = |callee: FnodeId| {
        let callee = ftree.fnode(callee).record(peak);
        let seen = caller.measured_ops.saturating_sub(callee.missed_ops);
        mean(callee.stats.sum, seen)
    };
    let children = || ftree.fnode(id).children.iter().copied();
    let away = children().filter(|&child| is_told_at_f0(ftree, child));
    let away = away.map(|child| ftree.fnode(child).record(peak).stats.sum);
    let away = away.fold(Ticks(0), |sum, time| sum + time);
    let whole = mean(
        caller.measured_time.saturating_sub(away),
        caller.measured_ops,
    );
    // Of some it is known from few ops, which may have been long ones.
    let part = |callee| of(callee).min(whole);
    let callees = children().filter(|&child| !is_told_at_f0(ftree, child));
    let together: f64 = callees.map(part).sum();
    match whole.max(together) {
        all if all > 0.0 => part(callee) / all,
        _ => 0.0,
    }
}

/// Where a peak stands whose descent has begun and has these causes.
pub(crate) fn peak_status(causes: &[RootCause]) -> PeakStatus {
    let any = |stop: &dyn Fn(&Stop) -> bool| causes.iter().any(|cause| stop(&cause.stop));
    if any(&|stop| *stop == Stop::StillDescending) {
        PeakStatus::InProgress
    } else if causes.iter().any(is_undecided) && !is_small(causes) && !is_spread(causes) {
        PeakStatus::Undecided
    } else {
        match by_explained(causes) {
            PeakStatus::RootCauseFound if any(&|stop| *stop == Stop::MaxDepth) => {
                PeakStatus::MaxDepthReached
            }
            status => status,
        }
    }
}

/// Whether it is not known what takes the time where a path ends so: a function that takes it itself does not wait.
fn is_undecided(cause: &RootCause) -> bool {
    is_open(&cause.stop) || cause.blocked.is_some_and(|blocked| blocked > HALF)
}

/// Whether a path ended before that was known.
pub(crate) fn is_open(stop: &Stop) -> bool {
    matches!(
        stop,
        Stop::TooRare | Stop::NotInstrumentable(_) | Stop::PartlyMeasured
    )
}

/// Whether the paths at whose ends that is not known are a small part of the time, and the others explain half of it.
fn is_small(causes: &[RootCause]) -> bool {
    let (open, known): (Vec<_>, Vec<_>) = causes.iter().partition(|cause| is_undecided(cause));
    let together = |causes: &[&RootCause]| causes.iter().map(|cause| cause.share).sum::<f64>();
    together(&open) < SMALL && together(&known) >= HALF
}

/// Whether the paths at whose ends that is not known are a small part of the time, and with the others no half of it: whatever
/// is at their ends, the time is in parts none of which is a cause.
fn is_spread(causes: &[RootCause]) -> bool {
    let share =
        |causes: &mut dyn Iterator<Item = &RootCause>| causes.map(|cause| cause.share).sum::<f64>();
    let open = share(&mut causes.iter().filter(|cause| is_undecided(cause)));
    open < SMALL && share(&mut causes.iter()) < HALF
}

/// Where a peak stands of which every path ends: what they explain has to be half of its time.
fn by_explained(causes: &[RootCause]) -> PeakStatus {
    let explained: f64 = causes.iter().map(|cause| cause.share).sum();
    match explained >= HALF {
        true => PeakStatus::RootCauseFound,
        // The rest was measured and is in parts none of which is a cause.
        false => PeakStatus::Spread,
    }
}
