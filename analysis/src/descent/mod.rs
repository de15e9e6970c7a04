//! The descent: from f0 down the ftree to what takes the time, for every peak at once.
//!
//! A state machine without input or output. [`Analysis::op`] takes what was measured; whenever something
//! is to be done to the target a [`Request`] is queued, which the session carries out off the target's
//! path and answers. DARC, SIGMETRICS 2008, section 3; beyond the paper the peaks share one ftree, and
//! maxcounts and states are kept per (fnode, peak).

pub(crate) mod batches;
mod blur;
mod checks;
pub(crate) mod contribute;
mod decision;
mod depths;
pub mod early;
pub mod ftree;
mod known_peaks;
mod looking_on;
mod loops;
pub mod noise;
mod off_cpu;
pub mod params;
pub mod peak_record;
pub mod range;
pub(crate) mod recursion;
pub mod resume;
pub mod root_cause;
mod settle;
pub(crate) mod share;
mod side_by_side;
pub mod stall;
mod ways;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::RangeInclusive;

use darc_record::Chain;
use darc_record::{FnodeId, Op, SiteId, Ticks, Touched, Tsc};

use crate::descent::blur::Blur;
use crate::descent::checks::Sample;
use crate::descent::decision::Contribution;
use crate::descent::ftree::{Callee, Expansion, Ftree, Probe};
use crate::descent::looking_on::Looking;
use crate::descent::noise::Noise;
use crate::descent::params::{Params, PeakChoice};
use crate::descent::peak_record::{PathState, Stop};
use crate::descent::root_cause::{PeakStatus, RootCause, Status};
use crate::descent::side_by_side::SideBySide;
use crate::descent::stall::Fruitless;
use crate::profile::histogram::{Bucket, Profile, Resolution};
use crate::profile::peaks::Peak;
use crate::values::expression::Expression;
use crate::values::{self, Telling, Values};

/// As long as more than this part of the time is in ops of which nothing is known, the root cause is not found.
const MOST_UNEXPLAINED: f64 = 0.1;

/// What the session is to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Measure all calls of this fnode's function in the fnode's context. The session answers with
    /// [`Analysis::add_child`] for each call and then [`Analysis::expanded`], or with
    /// [`Analysis::cannot_expand`]. The same fnode may be asked for again after calls of it were retired;
    /// `add_child` then returns the fnodes that exist.
    Expand(FnodeId),
    /// Only ops of these latencies are of interest from now on; the others need only be counted
    /// ([`Analysis::add_unrecorded`]).
    FilterChanged(Vec<RangeInclusive<Ticks>>),
    /// No peak needs the probes of these fnodes any more.
    Retire(Vec<FnodeId>),
    /// Every path of every peak has ended: take all instrumentation away.
    Finished,
}

/// The whole analysis of one f0.
#[derive(Clone, Debug)]
pub struct Analysis {
    pub(crate) params: Params,
    pub(crate) profile: Profile,
    /// The same ops at [`Resolution::FINE`].
    pub(crate) fine: Profile,
    /// The longest latency of one op.
    pub(crate) longest: Ticks,
    /// For how long ops could be seen to end.
    pub(crate) side_by_side: SideBySide,
    /// The part of the profile that an earlier run had stored.
    pub(crate) stored: Option<Profile>,
    /// Peak `n` is at index `n - 1`.
    pub(crate) peaks: Vec<PeakAnalysis>,
    /// Peaks are looked for again when this many ops have been counted, at `start_ops` at the latest.
    pub(crate) next_look: u64,
    pub(crate) ftree: Ftree,
    /// The fnodes that are measured as parents: whose calls are all probed.
    pub(crate) measured: Vec<FnodeId>,
    pub(crate) requests: VecDeque<Request>,
    /// See [`Analysis::renumberings`].
    pub(crate) renumberings: Vec<Vec<Option<u32>>>,
    pub(crate) filter: Vec<RangeInclusive<Ticks>>,
    pub(crate) finished: bool,
    pub(crate) looking: Looking,
    /// What was known before the peaks were cut anew.
    pub(crate) before_cut: Option<Box<Analysis>>,
    /// By fnode and peak: what the decisions were made with that are being held against later ops.
    pub(crate) checks: HashMap<(FnodeId, u32), Sample>,
    /// By fnode and peak: what was begun although its caller is not decided, or is decided and no cause was found there
    /// ([`ways`]).
    pub(crate) early: BTreeSet<(FnodeId, u32)>,
    /// See [`Analysis::steps`].
    pub(crate) steps: u64,
    /// Where the record of each fnode is in the op at hand; kept to save allocations.
    pub(crate) touched_at: Vec<Option<usize>>,
    pub(crate) noise: Noise,
    pub(crate) blur: Blur,
    /// By fnode and peak: the ops since its state changed that brought the path no nearer to its decision.
    pub(crate) fruitless: HashMap<(FnodeId, u32), Fruitless>,
    /// What is computed from the arguments of each op.
    expressions: Vec<Expression>,
    /// What the kernel told of time away; nothing when nobody asked.
    pub(crate) off_cpu: Option<off_cpu::OffCpuTable>,
    /// How long the kernel's records of a page fault take.
    fault_records: Ticks,
}

/// Where an op counts.
#[derive(Debug)]
pub(crate) struct CountedOp {
    /// The bucket of the profile.
    bucket: u32,
    /// Whether that is the one of its latency.
    is_clear: bool,
    /// The op as it counts there, where too much was taken out of it.
    given_back: Option<Op>,
}

#[derive(Clone, Debug)]
pub(crate) struct PeakAnalysis {
    /// The range: when it was found, and what it grew by since.
    pub(crate) peak: Peak,
    /// How many (fnode, peak) pairs are waiting or collecting; none before the descent begins.
    pub(crate) open: Option<usize>,
    /// Ops since its last decision that were too short for what was measured in them to mean anything.
    pub(crate) unresolved: u64,
    /// What the expressions were in its ops.
    pub(crate) values: Values,
    /// The op of it in which most fnodes were seen.
    pub(crate) example: Option<Op>,
}

impl Analysis {
    /// An analysis that has seen nothing yet.
    #[must_use]
    pub fn new(params: Params) -> Self {
        Self {
            params,
            profile: Profile::new(params.resolution),
            fine: Profile::new(Resolution::FINE),
            longest: Ticks(0),
            side_by_side: SideBySide::default(),
            stored: None,
            peaks: Vec::new(),
            next_look: Self::first_look(params.start_ops),
            ftree: Ftree::new(),
            measured: Vec::new(),
            requests: VecDeque::new(),
            renumberings: Vec::new(),
            filter: Vec::new(),
            finished: false,
            looking: Looking::default(),
            before_cut: None,
            checks: HashMap::new(),
            early: BTreeSet::new(),
            steps: 0,
            touched_at: Vec::new(),
            noise: Noise::default(),
            blur: Blur::new(params.resolution),
            fruitless: HashMap::new(),
            expressions: Expression::arguments(),
            off_cpu: None,
            fault_records: Ticks(0),
        }
    }

    /// Computes this from the arguments of each op, in the place of the arguments themselves.
    pub fn set_expression(&mut self, expression: Expression) {
        self.expressions = vec![expression];
    }

    /// In how many ops of peaks what an expression points to could not be read.
    #[must_use]
    pub fn unread_values(&self) -> u64 {
        self.peaks.iter().map(|peak| peak.values.unread()).sum()
    }

    /// What is to be read when f0 is entered.
    #[must_use]
    pub fn chain(&self) -> Option<Chain> {
        self.expressions.iter().find_map(Expression::chain)
    }

    /// An op of this run in the peak: the one in which most fnodes were seen.
    #[must_use]
    pub fn example(&self, peak: u32) -> Option<&Op> {
        self.analysis_of(peak)?.example.as_ref()
    }

    /// For each pair of peaks, by their numbers, what tells their ops apart best.
    #[must_use]
    pub fn tellings(&self) -> Vec<(u32, u32, Telling<'_>)> {
        let mut found = Vec::new();
        for (index, one) in self.peaks.iter().enumerate() {
            for other in &self.peaks[index + 1..] {
                let telling = values::telling(&self.expressions, &one.values, &other.values);
                found.extend(telling.map(|it| (one.peak.number, other.peak.number, it)));
            }
        }
        found
    }

    /// Records one op. Requests may be waiting afterwards.
    pub fn op(&mut self, op: &Op) {
        let place = self.counted(op, op.latency);
        self.learn_from(place.given_back.as_ref().unwrap_or(op), &place);
    }

    /// Counts an op: where, and as what. It is so long without the kernel's records.
    pub(crate) fn counted(&mut self, op: &Op, without_records: Ticks) -> CountedOp {
        self.ran_beside(op);
        let bucket = self.count(op, without_records);
        CountedOp {
            bucket,
            is_clear: bucket == self.bucket(op.latency),
            given_back: self.given_back(op, bucket),
        }
    }

    /// Learns from an op that counts there.
    pub(crate) fn learn_from(&mut self, op: &Op, place: &CountedOp) {
        let bucket = place.bucket;
        let peak = self.peak_of(bucket);
        tracing::trace!(
            target: "descent::op",
            tid = op.tid,
            start = op.start.0,
            latency = op.latency.0,
            peak,
            called = op.touched.len(),
            arg1 = op.arguments.registers[0],
            "op (cycles)"
        );
        let Some(peak) = peak else {
            return;
        };
        self.look_at(op, peak, bucket);
        self.peaks[peak as usize - 1]
            .values
            .add(&self.expressions, &op.arguments);
        let example = &mut self.peaks[peak as usize - 1].example;
        if example
            .as_ref()
            .is_none_or(|known| known.touched.len() < op.touched.len())
        {
            *example = Some(op.clone());
        }
        if !place.is_clear && place.given_back.is_none() {
            return;
        }
        if self.is_unresolved(op) {
            self.count_unresolved(peak);
            return;
        }
        let root = Touched {
            fnode: FnodeId::ROOT,
            max: op.latency,
            max_start: op.start,
            sum: op.latency,
            count: 1,
            long: op.latency,
        };
        let f0 = self.ftree.fnode_mut(FnodeId::ROOT);
        f0.record_mut(peak).stats.add(&root);
        self.index_touched(op);
        let Some(reach) = self.reach_of(peak) else {
            return;
        };
        let (mut stalled, mut counted) = (Vec::new(), Vec::new());
        for index in 0..self.measured.len() {
            let fnode = self.measured[index];
            if !self.counts_for(fnode, op, reach) {
                continue;
            }
            let call = match fnode {
                FnodeId::ROOT => Some(root),
                _ => self.touched_at[fnode.0 as usize].map(|at| self.whole(&op.touched[at])),
            };
            self.measure(op, peak, fnode, call.as_ref());
            if self.ftree.fnode(fnode).record(peak).state != PathState::Collecting {
                continue;
            }
            let said = call.map_or(Contribution::Silent, |call| self.contribute(op, peak, call));
            if said == Contribution::Counted {
                counted.push(fnode);
            }
            let stall = self.stalls_at(fnode, peak, said);
            stalled.extend(stall.map(|why| (fnode, why)));
        }
        // What is measured changes with it.
        self.stall_paths(peak, stalled);
        self.decide(peak);
        self.begin_early(peak, &counted, op.end);
        if !self.finished && self.peaks[peak as usize - 1].open == Some(0) {
            self.filter_ops();
        }
    }

    /// Counts an op of which it is not known who took its time.
    pub fn add_unseen(&mut self, op: &Op) {
        self.count(op, op.latency);
    }

    /// An op of this bucket was looked at, whether it tells what takes its time or not.
    fn look_at(&mut self, op: &Op, peak: u32, bucket: u32) {
        for index in 0..self.measured.len() {
            let fnode = self.ftree.fnode_mut(self.measured[index]);
            let is_meant =
                matches!(fnode.expansion, Expansion::Complete(since) if op.start >= since);
            let record = fnode.record_mut(peak);
            if is_meant && record.state == PathState::Collecting {
                record.longest_bucket = record.longest_bucket.max(bucket);
            }
        }
    }

    /// Adds an op to the profile; its bucket there.
    fn count(&mut self, op: &Op, without_records: Ticks) -> u32 {
        let latency = self.latency_of(op);
        self.learn_of_clear(op, without_records);
        let bucket = self.profile.add(latency);
        self.fine.add(latency);
        self.longest = self.longest.max(latency);
        self.look_for_peaks();
        bucket
    }

    /// Counts ops that the engine counted but did not deliver, because no peak of interest holds them: some that are as long as each
    /// other to an eighth of an octave, and `total` together. They stand where their mean does, for the border of two buckets may
    /// be among them. `with_calls` says whether calls may have been measured in them.
    pub fn add_unrecorded(&mut self, ops: u64, total: Ticks, with_calls: bool) {
        if ops == 0 {
            return;
        }
        let latency = Ticks(total.0 / ops);
        let content = Bucket { ops, total };
        let resolved = self.latency_of_unrecorded(latency, content, with_calls);
        let resolved = self.noise.resolved(resolved);
        let total = match resolved == latency {
            true => total,
            false => Ticks(resolved.0.saturating_mul(ops)),
        };
        let content = Bucket { ops, total };
        self.profile
            .put(self.params.resolution.bucket(resolved), content);
        self.fine.put(Resolution::FINE.bucket(resolved), content);
        self.longest = self.longest.max(Ticks(total.0 / ops));
        self.look_for_peaks();
    }

    /// The latency that this part of f0's ops (0 to 1) does not exceed, to some 10%. `None` without ops, and when results
    /// are gone on with that do not tell.
    #[must_use]
    pub fn percentile(&self, part: f64) -> Option<Ticks> {
        if self.fine.count() < self.profile.count() {
            return None;
        }
        let found = self.fine.percentile(part)?;
        Some(if part >= 1.0 {
            self.longest.max(found)
        } else {
            found
        })
    }

    /// f0's profile at [`Resolution::FINE`]; less than [`Analysis::profile`] when results are gone on with that do not
    /// tell it.
    #[must_use]
    pub fn fine_profile(&self) -> &Profile {
        &self.fine
    }

    /// What the session is to do, oldest first; each request is handed out once.
    pub fn requests(&mut self) -> Vec<Request> {
        self.requests.drain(..).collect()
    }

    /// How peaks were given other numbers, oldest first: the one that peak `n` has from then on is at index `n - 1`, none where it is no
    /// peak any more. Each is handed out once.
    pub fn renumberings(&mut self) -> Vec<Vec<Option<u32>>> {
        std::mem::take(&mut self.renumberings)
    }

    /// Chooses the peaks to analyse; for [`PeakChoice::Later`] once the person has been asked, or to turn
    /// to other peaks while the analysis runs. A descent that has begun is not taken back.
    pub fn choose(&mut self, peak: PeakChoice) {
        self.params.peak = peak;
        self.begin_descents();
    }

    /// A call that the session will measure below `parent`. Also for targets of an indirect call that are
    /// seen later. The same call always gives the same fnode.
    ///
    /// # Panics
    /// When the parent is no fnode of this analysis.
    pub fn add_child(&mut self, parent: FnodeId, site: SiteId, callee: Callee) -> FnodeId {
        let is_new = self.ftree.known_child(parent, site, callee).is_none();
        let child = self.ftree.add_child(parent, site, callee);
        if is_new {
            self.miss_earlier_ops(parent, child);
        }
        self.ftree.fnode_mut(child).probe = Probe::Wanted;
        child
    }

    /// A call by a site whose other calls are measured, and which never will be: what it takes is not told from what `parent` takes itself.
    ///
    /// # Panics
    /// When the parent is no fnode of this analysis.
    pub fn add_unmeasured_child(&mut self, parent: FnodeId, site: SiteId, callee: Callee) {
        if self.ftree.known_child(parent, site, callee).is_none() {
            let child = self.ftree.add_child(parent, site, callee);
            self.ftree.refuse_one(child);
        }
    }

    /// Nothing can be known of the calls through these sites, of whatever fnode: they carry no probe. Holds until
    /// [`Analysis::add_child`] says otherwise.
    pub fn refuse(&mut self, sites: &BTreeSet<SiteId>) {
        self.ftree.refuse(sites);
    }

    /// Answers [`Request::Expand`]: all calls are measured in ops that began at `since` or later. Ops that
    /// were on their way through the queue when the probes were put in do not count for the fnode. An
    /// fnode without children makes no calls.
    pub fn expanded(&mut self, fnode: FnodeId, since: Tsc) {
        let mut children = self.ftree.fnode(fnode).children.iter();
        let calls = children.any(|&child| self.ftree.fnode(child).site.is_some());
        if !calls && self.open_at(fnode).is_empty() {
            // What was begun early was forgotten before its calls were added: whether it makes any is not known.
            self.ftree.fnode_mut(fnode).expansion = Expansion::None;
            return;
        }
        if self.ftree.fnode(fnode).children.is_empty() {
            self.cannot_expand(fnode, Stop::NoCalls);
            return;
        }
        self.ftree.fnode_mut(fnode).expansion = Expansion::Complete(since);
        // The session names the calls in the code. What an indirect one was seen to reach when another peak was looked
        // at is measured apart again, or its ops would count for an fnode without a probe.
        for child in self.ftree.fnode(fnode).children.clone() {
            let child = self.ftree.fnode_mut(child);
            if child.site.is_some() && child.probe == Probe::Retired {
                child.probe = Probe::Wanted;
            }
        }
        if !self.measured.contains(&fnode) {
            self.measured.push(fnode);
        }
        for peak in self.waiting_for(fnode) {
            self.set_state(fnode, peak, PathState::Collecting);
        }
        self.settle();
    }

    /// A callee of an indirect call of the fnode's function is told apart from now on: in ops that began
    /// before `since` its calls were still those of [`Callee::Unknown`], so they do not count for the fnode.
    pub fn told_apart(&mut self, fnode: FnodeId, since: Tsc) {
        if let Expansion::Complete(before) = &mut self.ftree.fnode_mut(fnode).expansion {
            *before = (*before).max(since);
        }
    }

    /// Not all calls of the fnode's function have their probes, until [`Analysis::placed`]: ops do not count for it.
    pub fn unplaced(&mut self, fnode: FnodeId) {
        self.told_apart(fnode, Tsc(u64::MAX));
    }

    /// All calls of the fnode's function have their probes again, in ops that began at `since` or later.
    pub fn placed(&mut self, fnode: FnodeId, since: Tsc) {
        if let Expansion::Complete(before) = &mut self.ftree.fnode_mut(fnode).expansion {
            *before = since;
        }
    }

    /// Answers [`Request::Expand`]: the fnode's calls cannot be measured; every path to it ends there.
    pub fn cannot_expand(&mut self, fnode: FnodeId, why: Stop) {
        // Peaks that collect there, too: they may be at another batch of its calls.
        self.end_at(fnode, why);
    }

    /// How often the descent has gone on by now: decisions, calls that began to be measured, paths that ended.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The parameters.
    #[must_use]
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// f0's profile; after a resume with the ops of the earlier runs.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The peaks found so far, by number, each with the ops that its range holds by now.
    #[must_use]
    pub fn peaks(&self) -> Vec<Peak> {
        self.peaks
            .iter()
            .map(|at| Peak {
                content: self
                    .profile
                    .range(at.peak.first_bucket, at.peak.last_bucket),
                ..at.peak
            })
            .collect()
    }

    /// The ftree.
    #[must_use]
    pub fn ftree(&self) -> &Ftree {
        &self.ftree
    }

    /// The fnodes whose probes the target has to carry, f0 left out.
    pub fn needed_probes(&self) -> impl Iterator<Item = FnodeId> + '_ {
        self.ftree
            .fnodes()
            .skip(1)
            .filter(|fnode| fnode.is_probe_needed())
            .map(|fnode| fnode.id)
    }

    /// Where the whole analysis stands: that of the peaks that the person chose, weighed by their time.
    #[must_use]
    pub fn status(&self) -> Status {
        if !self.is_finished() {
            return Status::InProgress;
        }
        let time = |is_meant: &dyn Fn(PeakStatus) -> bool| -> u64 {
            let peaks = self.peaks().into_iter();
            let meant = peaks.filter(|peak| is_meant(self.peak_status(peak.number)));
            meant.fold(0, |sum, peak| sum.saturating_add(peak.content.total.0))
        };
        let whole = match self.params.is_asked_for() {
            false => self.profile.total().0,
            true => time(&|status| status != PeakStatus::NotAnalysed),
        };
        let is_known = |status| {
            matches!(
                status,
                PeakStatus::RootCauseFound | PeakStatus::MaxDepthReached
            )
        };
        let known = time(&is_known);
        let spread = time(&|status| status == PeakStatus::Spread);
        let is_reached = time(&|status| status == PeakStatus::MaxDepthReached) > 0;
        let is_enough = |time: u64| time as f64 >= (1.0 - MOST_UNEXPLAINED) * whole as f64;
        match is_enough(known) {
            true if is_reached => Status::MaxDepthReached,
            true => Status::RootCauseFound,
            false if is_enough(known.saturating_add(spread)) => Status::Spread,
            false => Status::Undecided,
        }
    }

    /// Whether the answer is there. Others may still be looked for ([`Analysis::look_on`]).
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.finished || self.is_answered() && !self.is_checking()
    }

    /// Where one peak stands.
    #[must_use]
    pub fn peak_status(&self, peak: u32) -> PeakStatus {
        match self.analysis_of(peak).map(|at| at.open) {
            None | Some(None) => PeakStatus::NotAnalysed,
            Some(Some(_)) => match root_cause::peak_status(&self.root_causes(peak)) {
                PeakStatus::RootCauseFound | PeakStatus::MaxDepthReached | PeakStatus::Spread
                    if self.is_of_struck_ops(peak) || self.kept_from_deciding(peak).is_some() =>
                {
                    PeakStatus::Undecided
                }
                status => status,
            },
        }
    }

    /// The root-cause paths of one peak, unfinished ones included.
    #[must_use]
    pub fn root_causes(&self, peak: u32) -> Vec<RootCause> {
        let mut causes = root_cause::root_causes(&self.ftree, peak, self.noise.of_caller());
        self.tell_waits(peak, &mut causes);
        causes
    }

    fn analysis_of(&self, peak: u32) -> Option<&PeakAnalysis> {
        self.peaks.get((peak as usize).checked_sub(1)?)
    }

    /// The peak that an op is of.
    #[must_use]
    pub fn peak_of_op(&self, op: &Op) -> Option<u32> {
        self.peak_of(self.bucket_of(op))
    }

    /// The bucket of the profile in which an op counts.
    #[must_use]
    pub fn bucket_of(&self, op: &Op) -> u32 {
        self.bucket(self.latency_of(op))
    }

    /// The bucket of the profile in which an op of this latency is counted.
    #[must_use]
    pub fn bucket(&self, latency: Ticks) -> u32 {
        let resolved = self.noise.resolved(latency);
        self.params.resolution.bucket(resolved)
    }

    /// The peak that a bucket of the profile is of.
    #[must_use]
    pub fn peak_of(&self, bucket: u32) -> Option<u32> {
        self.peaks
            .iter()
            .find(|at| at.peak.contains(bucket))
            .map(|at| at.peak.number)
    }

    /// Begins at f0 for every chosen peak that has not begun.
    pub(crate) fn begin_descents(&mut self) {
        for number in 1..=self.peaks.len() as u32 {
            let chosen = match self.params.peak {
                PeakChoice::All => true,
                PeakChoice::One(one) => one == number,
                PeakChoice::Later | PeakChoice::Nothing => false,
            };
            let at = &mut self.peaks[number as usize - 1];
            if chosen && at.open.is_none() {
                at.open = Some(0);
                self.finished = false;
                self.begin_path(FnodeId::ROOT, number);
            }
        }
        self.settle();
    }

    fn index_touched(&mut self, op: &Op) {
        self.touched_at.clear();
        self.touched_at.resize(self.ftree.len() + 1, None);
        for (at, touched) in op.touched.iter().enumerate() {
            if touched.count > 0
                && let Some(slot) = self.touched_at.get_mut(touched.fnode.0 as usize)
            {
                *slot = Some(at);
            }
        }
    }

    /// Whether all calls of the fnode were measured when the op began, and ops of this reach that began when they were, or after
    /// the last change of probes, have ended as well.
    fn counts_for(&self, fnode: FnodeId, op: &Op, reach: Ticks) -> bool {
        match self.ftree.fnode(fnode).expansion {
            Expansion::Complete(since) => {
                op.start >= since && self.side_by_side.undisturbed(op, since) >= reach
            }
            _ => false,
        }
    }
}
