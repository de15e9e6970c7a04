//! From an analysis to the parts of a report that it knows, with names from the session.

use std::collections::{BTreeMap, BTreeSet};

use darc_analysis::lives::{Fates, Of};
use darc_analysis::off_cpu::{OtherId, is_absence};
use darc_analysis::profile::compare::{Comparison, PeakChange};
use darc_analysis::profile::histogram::Bucket;
use darc_analysis::requests::of_ops::OpRequests;
use darc_analysis::values::Counted;
use darc_analysis::{
    self, Absence, Analysis, Callee, CalleeId, CauseKind, Fnode, FnodeId, Ftree, Outcome, Params,
    Part, PathState, Peak, PeakChoice, PeakRecord, PeakStatus, Profile, Range, RootCause, SiteId,
    Stop,
};
use darc_record::{Op, Ticks};

use super::model::{
    BucketEntry, CalleeKind, DecisionSums, DescentState, ExampleCall, ExampleOp, FnodePeak, Frame,
    FtreeNode, Function, Futures, HandedOver, InlinedFrame, Kind, OtherProcess, Parameters,
    PartEntry, PeakEntry, PeakValues, Percentiles, ProfileComparison, ProfileTable, RangeEntry,
    RootCauseEntry, Status, StopReason, UnmeasuredEntry, ValueContrast, ValueShare,
};
use super::off_cpu::{off_cpu, waits_entry};
use super::place::Place;
use super::recursion;
use super::spread::of_found;
use super::words;

/// A call site as it is shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Site {
    /// Where it is.
    pub place: Place,
    /// The source file.
    pub file: Option<String>,
    /// The line there.
    pub line: Option<u32>,
    /// The inlined functions it stands in, the innermost first.
    pub inlined_from: Vec<InlinedFrame>,
}

/// Who ran instead of a thread that was ready, where no thread did.
pub const IDLE: &str = "no thread: the processor was idle (a limit of CPU time, or the hypervisor)";

/// Who ran instead of a goroutine's thread, where it is known that the kernel did not run that, and no more.
pub const UNTOLD: &str = "another thread, or none: the kernel does not tell which";

/// Who ran instead, or woke a thread.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Other {
    /// The name.
    pub name: String,
    /// The thread; none for an interrupt.
    pub tid: Option<i32>,
    /// The process that it is of, where that is another one.
    pub process: Option<OtherProcess>,
    /// The functions on its stack, the outermost first; none where it was not seen.
    pub doing: Vec<String>,
}

/// The session's knowledge of what the analysis' ids stand for.
pub trait Names {
    /// f0.
    fn f0(&self) -> Function;
    /// A function that is called.
    fn function(&self, callee: CalleeId) -> Function;
    /// A call site.
    fn site(&self, site: SiteId) -> Site;
    /// A system call, `None` where its number is not known.
    fn syscall(&self, number: Option<u32>) -> String;
    /// Time in which the thread did not do its work.
    fn absence(&self, absence: Absence) -> String {
        self::absence(absence)
    }
    /// Another thread, or an interrupt.
    fn other(&self, other: OtherId) -> Other {
        Other {
            name: format!("thread {}", other.0),
            ..Other::default()
        }
    }
    /// What an fnode is called whose target is not known.
    fn unknown(&self) -> String {
        "(indirect call)".to_owned()
    }
    /// What an fnode is called.
    fn name_of(&self, fnode: &Fnode) -> String {
        match fnode.callee {
            _ if fnode.id == FnodeId::ROOT => self.f0().name,
            Callee::Function(callee) => self.function(callee).name,
            Callee::Syscall(number) => self.syscall(number),
            Callee::Unknown => self.unknown(),
            Callee::Absence(absence) => self.absence(absence),
        }
    }
    /// What the fnodes of a path are called.
    fn path(&self, ftree: &Ftree, path: &[FnodeId]) -> Vec<String> {
        let fnodes = path.iter().map(|&id| ftree.fnode(id));
        fnodes.map(|fnode| self.name_of(fnode)).collect()
    }
}

/// Time in which the thread did not do its work, where nothing but its kind and number is known.
#[must_use]
pub fn absence(absence: Absence) -> String {
    match absence {
        Absence::Preempted => "(preemption)".to_owned(),
        Absence::Interrupt(number) | Absence::LocalInterrupt(number) => {
            format!("(interrupt {number})")
        }
        Absence::SoftInterrupt(number) => format!("(softirq {number})"),
        Absence::PageFault => "(page fault)".to_owned(),
        Absence::Signal(number) => format!("(signal {number})"),
        Absence::Awaiting(state) => format!("(await, state {state})"),
    }
}

/// What became of futures.
#[must_use]
pub fn futures(fates: &Fates) -> Futures {
    Futures {
        coroutines: fates.of == Of::Coroutines,
        polls: fates.polls,
        dropped: fates.dropped,
        begun_before: fates.begun_before,
        lost: fates.lost,
        forgotten: fates.forgotten,
        under_way: fates.under_way,
    }
}

/// The parameters.
#[must_use]
pub fn parameters(params: &Params) -> Parameters {
    Parameters {
        start_ops: params.start_ops,
        decision_ops: params.decision_ops,
        max_depth: params.max_depth as u64,
        peak: match params.peak {
            PeakChoice::One(peak) => Some(peak),
            PeakChoice::All | PeakChoice::Later | PeakChoice::Nothing => None,
        },
        range: params.range.map(|range| match range {
            Range::Between(from, to) => RangeEntry {
                from: from.0,
                to: to.0,
                above: None,
            },
            Range::Above(percentile) => RangeEntry {
                above: Some(percentile),
                ..RangeEntry::default()
            },
        }),
    }
}

/// Where the analysis stands that has these peaks: where many small causes make up much of the time, there is no single one.
#[must_use]
pub fn status(analysis: &Analysis, peaks: &[PeakEntry]) -> Status {
    let found = match analysis.status() {
        darc_analysis::Status::InProgress => return Status::InProgress,
        darc_analysis::Status::Undecided => return Status::Undecided,
        darc_analysis::Status::Spread => return Status::Spread,
        darc_analysis::Status::MaxDepthReached => Status::MaxDepthReached,
        darc_analysis::Status::RootCauseFound => Status::RootCauseFound,
    };
    match Status::of_peaks(peaks) {
        Status::Spread => Status::Spread,
        _ => found,
    }
}

/// A profile.
#[must_use]
pub fn profile(profile: &Profile) -> ProfileTable {
    ProfileTable {
        resolution: profile.resolution().get(),
        ops: profile.count(),
        total: profile.total().0,
        buckets: buckets(profile),
        percentiles: None,
        told_from: None,
        fine: Vec::new(),
    }
}

fn buckets(profile: &Profile) -> Vec<BucketEntry> {
    let entry = |(bucket, content): (u32, Bucket)| BucketEntry {
        bucket,
        ops: content.ops,
        total: content.total.0,
    };
    profile.buckets().map(entry).collect()
}

/// f0's profile, with percentiles.
#[must_use]
pub fn latencies(analysis: &Analysis) -> ProfileTable {
    let at = |part: f64| analysis.percentile(part).map(|latency| latency.0);
    let percentiles = || {
        Some(Percentiles {
            p50: at(0.5)?,
            p90: at(0.9)?,
            p99: at(0.99)?,
            p99_9: at(0.999)?,
            max: at(1.0)?,
        })
    };
    let percentiles = percentiles();
    ProfileTable {
        told_from: analysis.told_from().map(|shortest| shortest.0),
        fine: match percentiles {
            Some(_) => buckets(analysis.fine_profile()),
            None => Vec::new(),
        },
        percentiles,
        ..profile(analysis.profile())
    }
}

/// What became of the requests of each peak's ops.
#[must_use]
pub fn handed_over(requests: &OpRequests, analysis: &Analysis) -> Vec<HandedOver> {
    let by_peak = requests.by_peak(&analysis.peaks()).into_iter();
    by_peak
        .map(|(peak, handed)| HandedOver {
            peak,
            ops: handed.ops,
            requests: handed.requests,
            waits: profile(&handed.waits),
            services: profile(&handed.services),
        })
        .collect()
}

/// A comparison with a stored profile.
#[must_use]
pub fn comparison(comparison: &Comparison) -> ProfileComparison {
    let range = |peak: &Peak| format!("buckets {} to {}", peak.first_bucket, peak.last_bucket);
    ProfileComparison {
        earth_movers_distance: Some(comparison.emd).filter(|emd| emd.is_finite()),
        chi_square: comparison.chi_square,
        ops: comparison.ops,
        mean_latency: comparison.mean_latency,
        total_latency: comparison.total_latency,
        changed: comparison.is_changed(),
        peaks: comparison
            .peaks
            .iter()
            .map(|change| match change {
                PeakChange::Appeared(peak) => format!("a peak appeared in {}", range(peak)),
                PeakChange::Vanished(peak) => format!("the peak in {} vanished", range(peak)),
                PeakChange::Moved(before, after) => {
                    format!("the peak in {} is now in {}", range(before), range(after))
                }
            })
            .collect(),
    }
}

/// The peaks with their root causes.
#[must_use]
pub fn peaks(analysis: &Analysis, names: &dyn Names) -> Vec<PeakEntry> {
    let all = analysis.profile();
    let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
    let entries = analysis.peaks().into_iter().map(|peak| PeakEntry {
        peak: peak.number,
        first_bucket: peak.first_bucket,
        last_bucket: peak.last_bucket,
        begins_untold: analysis.told_from().is_some() && peak.contains(analysis.bucket(Ticks(0))),
        ops: peak.content.ops,
        total: peak.content.total.0,
        share_of_ops: share(peak.content.ops, all.count()),
        share_of_time: share(peak.content.total.0, all.total().0),
        status: match analysis.peak_status(peak.number) {
            PeakStatus::NotAnalysed => Status::NotAnalysed,
            PeakStatus::InProgress => Status::InProgress,
            PeakStatus::Undecided => Status::Undecided,
            PeakStatus::Spread => Status::Spread,
            PeakStatus::MaxDepthReached => Status::MaxDepthReached,
            PeakStatus::RootCauseFound => Status::RootCauseFound,
        },
        root_causes: root_causes(analysis, peak.number, names),
        kept_from_running: analysis.kept_from_deciding(peak.number),
        example: analysis
            .example(peak.number)
            .map(|op| example(analysis, op, names)),
        off_cpu: analysis
            .off_cpu(peak.number)
            .map(|all| off_cpu(analysis, peak.number, all, names)),
    });
    let mut entries: Vec<PeakEntry> = entries.collect();
    for entry in &mut entries {
        entry.status = of_found(entry);
    }
    entries
}

fn example(analysis: &Analysis, op: &Op, names: &dyn Names) -> ExampleOp {
    let ftree = analysis.ftree();
    let mut calls: Vec<ExampleCall> = op
        .touched
        .iter()
        .filter_map(|touched| {
            let fnode = ftree.get(touched.fnode)?;
            Some(ExampleCall {
                name: names.name_of(fnode),
                depth: fnode.depth as u32 - 1,
                start: (touched.max_start - op.start).0,
                max: touched.max.0,
                sum: touched.sum.0,
                count: touched.count,
            })
        })
        .collect();
    calls.sort_by_key(|call| (call.start, call.depth));
    ExampleOp {
        tid: op.tid,
        latency: op.latency.0,
        waited: None,
        calls,
    }
}

fn root_causes(analysis: &Analysis, peak: u32, names: &dyn Names) -> Vec<RootCauseEntry> {
    let causes = analysis.root_causes(peak);
    let causes = causes
        .iter()
        .map(|cause| root_cause(analysis, peak, cause, names));
    let mut causes: Vec<RootCauseEntry> = causes.collect();
    recursion::tell_apart(&mut causes);
    causes
}

fn root_cause(
    analysis: &Analysis,
    peak: u32,
    cause: &RootCause,
    names: &dyn Names,
) -> RootCauseEntry {
    let ftree = analysis.ftree();
    let shares = cause.path.iter().zip(&cause.shares);
    let frames: Vec<Frame> = shares
        .map(|(&id, &share_of_time)| Frame {
            share_of_time,
            ..frame(ftree.fnode(id), names)
        })
        .collect();
    let (stop, reason) = stop_reason(&cause.stop);
    RootCauseEntry {
        path: frames.iter().map(|frame| frame.name.clone()).collect(),
        kind: match cause.kind {
            CauseKind::Function => Kind::Function,
            CauseKind::Loop => Kind::Loop,
            CauseKind::Syscall => Kind::Syscall,
            CauseKind::Preemption => Kind::Preemption,
            CauseKind::Interrupt => Kind::Interrupt,
            CauseKind::SoftInterrupt => Kind::SoftInterrupt,
            CauseKind::PageFault => Kind::PageFault,
            CauseKind::Signal => Kind::Signal,
            CauseKind::Await => Kind::Await,
        },
        maxcount: cause.maxcount,
        share_of_ops: cause.share_of_ops,
        share_of_time: cause.share,
        assumed: cause.assumed,
        known_from: cause.known_from,
        blocked: cause.blocked,
        in_calls: cause.in_calls,
        unmeasured: cause
            .path
            .last()
            .and_then(|&last| unmeasured(ftree, last, names)),
        stop,
        reason,
        frames,
        arguments: Vec::new(),
        waits: cause
            .path
            .last()
            .and_then(|&last| analysis.waits(last, peak))
            .map(|waits| waits_entry(waits, names)),
        inlined: None,
        narrowed: None,
    }
}

/// The calls of an fnode's function that could not be measured; none where all could.
fn unmeasured(ftree: &Ftree, id: FnodeId, names: &dyn Names) -> Option<UnmeasuredEntry> {
    let sites = ftree.sites(id);
    let callees = sites.unmeasured.iter().map(|&id| ftree.fnode(id));
    let known = callees.filter(|fnode| fnode.callee != Callee::Unknown);
    let mut callees: Vec<String> = known.map(|fnode| names.name_of(fnode)).collect();
    callees.sort();
    callees.dedup();
    (!sites.unmeasured.is_empty()).then_some(UnmeasuredEntry {
        sites: sites.unmeasured.len() as u64,
        of_sites: sites.known as u64,
        callees,
    })
}

fn frame(fnode: &Fnode, names: &dyn Names) -> Frame {
    let callee = callee(fnode, names);
    let mut frame = Frame {
        name: callee.name,
        offset: callee.place.as_ref().map(|place| place.offset),
        module: callee.place.map(|place| place.module),
        which: words::source(callee.file.as_deref(), callee.line),
        // Where f0 is called is not known.
        file: callee.file,
        line: callee.line,
        ..Frame::default()
    };
    if let Some(site) = fnode.site.map(|site| names.site(site)) {
        frame.call_site = Some(site.place);
        frame.file = site.file;
        frame.line = site.line;
        frame.inlined_from = site.inlined_from;
    }
    frame
}

struct NamedCallee {
    kind: CalleeKind,
    name: String,
    place: Option<Place>,
    file: Option<String>,
    line: Option<u32>,
    syscall: Option<u32>,
}

fn callee(fnode: &Fnode, names: &dyn Names) -> NamedCallee {
    let function = |function: Function| NamedCallee {
        kind: CalleeKind::Function,
        name: function.name,
        place: Some(Place {
            module: function.module,
            offset: function.offset,
        }),
        file: function.file,
        line: function.line,
        syscall: None,
    };
    let (kind, syscall) = match fnode.callee {
        _ if fnode.id == FnodeId::ROOT => return function(names.f0()),
        Callee::Function(callee) => return function(names.function(callee)),
        Callee::Syscall(number) => (CalleeKind::Syscall, number),
        Callee::Unknown => (CalleeKind::Unknown, None),
        Callee::Absence(Absence::Preempted) => (CalleeKind::Preemption, None),
        Callee::Absence(Absence::Interrupt(_)) => (CalleeKind::Interrupt, None),
        Callee::Absence(Absence::LocalInterrupt(_)) => (CalleeKind::LocalInterrupt, None),
        Callee::Absence(Absence::SoftInterrupt(_)) => (CalleeKind::SoftInterrupt, None),
        Callee::Absence(Absence::PageFault) => (CalleeKind::PageFault, None),
        Callee::Absence(Absence::Signal(_)) => (CalleeKind::Signal, None),
        Callee::Absence(Absence::Awaiting(_)) => (CalleeKind::Await, None),
    };
    NamedCallee {
        kind,
        name: names.name_of(fnode),
        place: None,
        file: None,
        line: None,
        syscall,
    }
}

fn stop_reason(stop: &Stop) -> (StopReason, Option<String>) {
    match stop {
        Stop::SelfTime => (StopReason::SelfTime, None),
        Stop::NoCalls => (StopReason::NoCalls, None),
        Stop::PartlyMeasured => (StopReason::PartlyMeasured, None),
        Stop::Spread => (StopReason::Spread, None),
        Stop::Recursion => (StopReason::Recursion, None),
        Stop::MaxDepth => (StopReason::MaxDepth, None),
        Stop::NotInstrumentable(why) => (StopReason::NotInstrumentable, Some(why.clone())),
        Stop::StillDescending => (StopReason::StillDescending, None),
        Stop::TooRare => (StopReason::TooRare, None),
    }
}

/// The arguments that tell peaks apart.
#[must_use]
pub fn values(analysis: &Analysis) -> Vec<ValueContrast> {
    /// Nobody reads more values than this.
    const MOST: usize = 5;
    let side = |peak: u32, counted: &Counted| {
        let (lowest, highest) = counted.range();
        PeakValues {
            peak,
            values: counted
                .values()
                .unwrap_or_default()
                .into_iter()
                .take(MOST)
                .map(|(value, share)| ValueShare { value, share })
                .collect(),
            lowest,
            highest,
        }
    };
    let tellings = analysis.tellings().into_iter();
    tellings
        .map(|(one, other, telling)| ValueContrast {
            expression: telling.expression.to_string(),
            share: telling.share,
            values: [side(one, telling.one), side(other, telling.other)],
        })
        .collect()
}

/// The ftree.
#[must_use]
pub fn ftree(analysis: &Analysis, names: &dyn Names) -> FtreeNode {
    // From the last fnode to the first, so that a node's children are complete before it is.
    let mut below: BTreeMap<FnodeId, Vec<FtreeNode>> = BTreeMap::new();
    let on_paths = on_paths(analysis);
    for fnode in analysis.ftree().fnodes().rev() {
        let mut children = below.remove(&fnode.id).unwrap_or_default();
        children.reverse();
        if is_absence(fnode.callee) && fnode.records().next().is_none() {
            // It did not occur.
            continue;
        }
        let of = on_paths.range((fnode.id, 0)..=(fnode.id, u32::MAX));
        let root_cause_of = of.map(|&(_, peak)| peak).collect();
        let mut node = FtreeNode {
            root_cause_of,
            ..node(fnode, children, names)
        };
        let parent = fnode.parent.map(|parent| analysis.ftree().fnode(parent));
        if parent.is_some_and(Fnode::is_in_batches) && fnode.site.is_some() {
            node.portion = ordinal(fnode.in_batch);
        }
        match fnode.parent {
            Some(parent) => below.entry(parent).or_default().push(node),
            None => return node,
        }
    }
    unreachable!("the ftree begins with f0")
}

/// The fnodes on root-cause paths, each with the peaks that these are of.
fn on_paths(analysis: &Analysis) -> BTreeSet<(FnodeId, u32)> {
    let peaks = analysis.peaks().into_iter().map(|peak| peak.number);
    let causes = peaks.flat_map(|peak| {
        let causes = analysis.root_causes(peak).into_iter();
        causes.map(move |cause| (peak, cause.path))
    });
    let steps = causes.flat_map(|(peak, path)| path.into_iter().map(move |id| (id, peak)));
    steps.collect()
}

fn node(fnode: &Fnode, children: Vec<FtreeNode>, names: &dyn Names) -> FtreeNode {
    let callee = callee(fnode, names);
    let site = fnode.site.map(|site| names.site(site));
    let stats = fnode.stats();
    let counts = |count: fn(&PeakRecord) -> u64| {
        fnode
            .records()
            .map(|(peak, record)| (peak, count(record)))
            .filter(|&(_, count)| count > 0)
            .collect()
    };
    FtreeNode {
        name: callee.name,
        kind: callee.kind,
        callee: callee.place,
        callee_file: callee.file,
        callee_line: callee.line,
        syscall: callee.syscall,
        interrupt: match fnode.callee {
            Callee::Absence(
                Absence::Interrupt(number)
                | Absence::LocalInterrupt(number)
                | Absence::SoftInterrupt(number)
                | Absence::Signal(number)
                | Absence::Awaiting(number),
            ) => Some(number),
            _ => None,
        },
        file: site.as_ref().and_then(|site| site.file.clone()),
        line: site.as_ref().and_then(|site| site.line),
        site: site.map(|site| site.place),
        unmeasured: fnode.is_unmeasured(),
        portions: match fnode.is_in_batches() {
            true => ordinal(fnode.batches - 1),
            false => 0,
        },
        portion: 0,
        maxcount: counts(|record| record.maxcount),
        self_maxcount: counts(|record| record.self_maxcount),
        root_cause_of: Vec::new(),
        max: stats.max.0,
        mean: stats.mean().0,
        count: stats.count,
        peaks: fnode
            .records()
            .map(|(peak, record)| (peak, fnode_peak(fnode, record)))
            .collect(),
        children,
    }
}

/// What is counted from 0, counted from 1.
fn ordinal(number: usize) -> u32 {
    u32::try_from(number).map_or(u32::MAX, |number| number.saturating_add(1))
}

/// The sums of a part; nothing where there are none.
fn part(part: &Part) -> Option<PartEntry> {
    (*part != Part::default()).then_some(PartEntry {
        time: part.time.0,
        squares: part.squares,
        products: part.products,
    })
}

fn fnode_peak(fnode: &Fnode, record: &PeakRecord) -> FnodePeak {
    let (state, stop) = match &record.state {
        PathState::NotChosen => (DescentState::NotChosen, None),
        PathState::Waiting => (DescentState::Waiting, None),
        PathState::Collecting => (DescentState::Collecting, None),
        PathState::Decided(Outcome::Itself) => (DescentState::DecidedSelf, None),
        PathState::Decided(Outcome::Callees) => (DescentState::DecidedCallees, None),
        PathState::Decided(Outcome::Both) => (DescentState::DecidedBoth, None),
        PathState::Decided(Outcome::Spread) => (DescentState::DecidedSpread, None),
        PathState::Ended(stop) => (DescentState::Ended, Some(stop_reason(stop))),
    };
    let (stop, reason) = stop.unzip();
    FnodePeak {
        state,
        stop,
        reason: reason.flatten(),
        least_part: record.least_part.unwrap_or(0),
        portion: match fnode.is_in_batches() && record.state != PathState::NotChosen {
            true => ordinal(record.batch),
            false => 0,
        },
        maxcount_before: record.before,
        decision_ops: record.decision_ops,
        measured_ops: record.measured_ops,
        measured_time: record.measured_time.0,
        missed_ops: record.missed_ops,
        ops: record.stats.ops,
        max: record.stats.max.0,
        sum: record.stats.sum.0,
        count: record.stats.count,
        self_time: record.own.time.0,
        loop_time: record.loop_time.0,
        self_seen: record.own_seen.0,
        self_blocked: record.own_blocked.0,
        decision: (record.decision_ops > 0).then_some(DecisionSums {
            time: record.whole.time.0,
            squares: record.whole.squares,
            own_squares: record.own.squares,
            own_products: record.own.products,
        }),
        part: part(&record.part),
    }
}
