//! The ftree: one fnode for every call site in the context of its call path.
//!
//! A proper tree, rooted at f0, without sharing and without loops (DARC, SIGMETRICS 2008, section 3).
//! Beyond the paper each fnode keeps its maxcount, its statistics and its state once *per peak*.

use std::collections::HashMap;

use darc_tracer::record::{FnodeId, SiteId, Ticks, Touched, Tsc};

/// A function as the session numbers them; opaque here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CalleeId(pub u32);

/// What keeps a thread from its work.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Absence {
    /// Another thread runs.
    Preempted,
    /// Its CPU serves the device's interrupt of this number.
    Interrupt(u32),
    /// Its CPU serves an interrupt of the CPUs' own, by its vector.
    LocalInterrupt(u32),
    /// Its CPU does the deferred work of interrupts of this number (softirq).
    SoftInterrupt(u32),
    /// A page of its memory is brought in or copied.
    PageFault,
}

/// What a call site calls.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Callee {
    /// A function.
    Function(CalleeId),
    /// The kernel; the number of the system call where the site tells it.
    Syscall(Option<u32>),
    /// An indirect call: all targets that have no fnode of their own yet.
    Unknown,
    /// Nobody: the thread did not do its work while the parent was current, or anything below it. Such fnodes have no
    /// call site.
    Absence(Absence),
}

/// Why a root-cause path ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The function itself (or the system call) takes the time.
    SelfTime,
    /// The function makes no calls.
    NoCalls,
    /// The path is as long as it may become.
    MaxDepth,
    /// The function's calls cannot be measured, and why.
    NotInstrumentable(String),
    /// It does not end yet: ops are still being collected.
    StillDescending,
    /// Next to no ops of the peak come any more.
    TooRare,
}

/// What a decision found to be the cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The function itself: the path ends.
    Itself,
    /// Some of its callees: the path goes on in them.
    Callees,
    /// Both.
    Both,
}

/// Where an fnode stands in the descent for one peak.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum PathState {
    /// On no root-cause path.
    #[default]
    NotChosen,
    /// Chosen; its calls are not measured yet.
    Waiting,
    /// Chosen; ops are collected for the decision.
    Collecting,
    /// Decided after `decision_ops` ops.
    Decided(Outcome),
    /// Chosen, and the path ends here without a decision of its own.
    Ended(Stop),
}

/// What was measured of an fnode in the ops of one peak: for f0 in all of them, for others in those in which
/// all calls of its parent were measured.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stats {
    /// Ops in which it was called.
    pub ops: u64,
    /// The longest call.
    pub max: Ticks,
    /// All calls together.
    pub sum: Ticks,
    /// How many calls.
    pub count: u64,
}

/// What an fnode knows about one peak.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct PeakRecord {
    /// How often the fnode was among the largest contributors of its parent.
    pub maxcount: u64,
    /// The least part of an op, in millionths, that the fnode took when it was among the largest contributors of
    /// its parent; `None` when it never was.
    pub least_part: Option<u32>,
    /// How often the fnode itself was among the largest contributors, against its own callees.
    pub self_maxcount: u64,
    /// Ops that count for the fnode's own decision so far.
    pub decision_ops: u64,
    /// Ops of the peak in which the fnode's callees were measured.
    pub measured_ops: u64,
    /// The fnode's own latency in those ops, all calls together.
    pub measured_time: Ticks,
    /// The time of the function itself in the ops that `self_maxcount` counts.
    pub self_time: Ticks,
    /// The part of `self_time` that was spent in repeated calls, each of them short.
    pub loop_time: Ticks,
    /// What was measured.
    pub stats: Stats,
    /// Where the descent stands.
    pub state: PathState,
    /// Which portion of the fnode's calls is measured for it.
    pub round: usize,
    /// The part of `maxcount` that is from earlier portions of the parent's calls.
    pub before: u64,
}

/// Whether an fnode's calls are measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Expansion {
    /// Nobody asked for it.
    None,
    /// The session was asked for it.
    Requested,
    /// All calls are measured in the ops that began at this time or later.
    Complete(Tsc),
    /// Probes of some calls have been taken away again.
    Partial,
    /// It cannot be.
    Impossible(Stop),
}

/// Whether the target carries an fnode's probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Probe {
    /// It does, or will shortly.
    Wanted,
    /// Not needed any more.
    Retired,
}

/// One call site in the context of its call path.
#[derive(Clone, Debug)]
pub struct Fnode {
    /// Its id.
    pub id: FnodeId,
    /// The fnode whose function contains the site; none for f0.
    pub parent: Option<FnodeId>,
    /// The call site; none for f0 and for time away.
    pub site: Option<SiteId>,
    /// What is called there.
    pub callee: Callee,
    /// Its callees, in the order in which they were added.
    pub children: Vec<FnodeId>,
    /// How many fnodes the path from f0 to here has: 1 for f0.
    pub depth: usize,
    /// In how many portions its calls are measured, one after the other.
    pub(crate) rounds: usize,
    /// In which of its parent's portions its call is.
    pub(crate) in_round: usize,
    pub(crate) expansion: Expansion,
    pub(crate) probe: Probe,
    records: Vec<PeakRecord>,
}

/// All fnodes.
#[derive(Clone, Debug)]
pub struct Ftree {
    /// Fnode `n` is at index `n - 1`.
    fnodes: Vec<Fnode>,
    by_call: HashMap<(FnodeId, SiteId, Callee), FnodeId>,
    absences: HashMap<(FnodeId, Absence), FnodeId>,
}

static NO_RECORD: PeakRecord = PeakRecord {
    maxcount: 0,
    self_maxcount: 0,
    least_part: None,
    decision_ops: 0,
    measured_ops: 0,
    measured_time: Ticks(0),
    self_time: Ticks(0),
    loop_time: Ticks(0),
    stats: Stats {
        ops: 0,
        max: Ticks(0),
        sum: Ticks(0),
        count: 0,
    },
    state: PathState::NotChosen,
    round: 0,
    before: 0,
};

impl Stats {
    pub(crate) fn add(&mut self, touched: &Touched) {
        self.ops = self.ops.saturating_add(1);
        self.max = self.max.max(touched.max);
        self.sum = self.sum + touched.sum;
        self.count = self.count.saturating_add(touched.count);
    }

    /// The mean latency of one call; zero when there was none.
    #[must_use]
    pub fn mean(&self) -> Ticks {
        Ticks(self.sum.0.checked_div(self.count).unwrap_or(0))
    }
}

impl PathState {
    /// Whether the descent goes on here.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self, PathState::Waiting | PathState::Collecting)
    }
}

impl Fnode {
    /// What is known about one peak (numbered from 1).
    #[must_use]
    pub fn record(&self, peak: u32) -> &PeakRecord {
        (peak as usize)
            .checked_sub(1)
            .and_then(|index| self.records.get(index))
            .unwrap_or(&NO_RECORD)
    }

    /// The peaks about which something is known, with what is known.
    pub fn records(&self) -> impl Iterator<Item = (u32, &PeakRecord)> {
        (1..)
            .zip(&self.records)
            .filter(|(_, record)| **record != NO_RECORD)
    }

    pub(crate) fn record_mut(&mut self, peak: u32) -> &mut PeakRecord {
        assert!(peak > 0, "peaks are numbered from 1");
        let index = peak as usize - 1;
        if self.records.len() <= index {
            self.records.resize(index + 1, PeakRecord::default());
        }
        &mut self.records[index]
    }

    /// The latency statistics over the ops of all peaks.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.records
            .iter()
            .fold(Stats::default(), |all, record| Stats {
                ops: all.ops.saturating_add(record.stats.ops),
                max: all.max.max(record.stats.max),
                sum: all.sum + record.stats.sum,
                count: all.count.saturating_add(record.stats.count),
            })
    }

    /// Whether a call that it makes is measured for a peak, or would be: its time away always is, and so is what was
    /// chosen already.
    #[must_use]
    pub(crate) fn measures(&self, child: &Fnode, peak: u32) -> bool {
        child.site.is_none()
            || self.rounds <= 1
            || child.in_round == self.record(peak).round
            || child.record(peak).state != PathState::NotChosen
    }

    /// Whether its function's calls are measured in portions.
    #[must_use]
    pub(crate) fn is_in_portions(&self) -> bool {
        self.rounds > 1
    }

    /// Whether the target has to carry this fnode's probe.
    #[must_use]
    pub fn is_probe_needed(&self) -> bool {
        self.probe == Probe::Wanted
    }
}

impl Ftree {
    /// A tree of f0 alone.
    #[must_use]
    pub fn new() -> Self {
        let root = Fnode {
            id: FnodeId::ROOT,
            parent: None,
            site: None,
            callee: Callee::Unknown,
            children: Vec::new(),
            depth: 1,
            rounds: 1,
            in_round: 0,
            expansion: Expansion::None,
            probe: Probe::Wanted,
            records: Vec::new(),
        };
        Self {
            fnodes: vec![root],
            by_call: HashMap::new(),
            absences: HashMap::new(),
        }
    }

    /// The fnode of a call, created when there is none yet.
    ///
    /// # Panics
    /// When the parent is no fnode of this tree.
    pub fn add_child(&mut self, parent: FnodeId, site: SiteId, callee: Callee) -> FnodeId {
        if let Some(&known) = self.by_call.get(&(parent, site, callee)) {
            return known;
        }
        let depth = self.fnode(parent).depth + 1;
        let id = u32::try_from(self.fnodes.len() + 1).expect("fnodes are numbered with 32 bits");
        let id = FnodeId(id);
        // Other callees of the same site are there already.
        let siblings = self.fnode(parent).children.iter();
        let in_round = siblings
            .map(|&sibling| self.fnode(sibling))
            .find(|sibling| sibling.site == Some(site))
            .map_or(0, |sibling| sibling.in_round);
        self.fnodes.push(Fnode {
            id,
            parent: Some(parent),
            site: Some(site),
            callee,
            children: Vec::new(),
            depth,
            rounds: 1,
            in_round,
            expansion: Expansion::None,
            probe: Probe::Wanted,
            records: Vec::new(),
        });
        self.fnode_mut(parent).children.push(id);
        self.by_call.insert((parent, site, callee), id);
        id
    }

    /// The fnode of a call, if there is one.
    #[must_use]
    pub(crate) fn known_child(
        &self,
        parent: FnodeId,
        site: SiteId,
        callee: Callee,
    ) -> Option<FnodeId> {
        self.by_call.get(&(parent, site, callee)).copied()
    }

    /// Puts back how an earlier run went over an fnode's calls: in how many portions, and in which of its parent's
    /// portions its own call was (from 0).
    ///
    /// # Panics
    /// When there is no such fnode.
    pub fn set_portions(&mut self, fnode: FnodeId, portions: usize, portion: usize) {
        let fnode = self.fnode_mut(fnode);
        fnode.rounds = portions.max(1);
        fnode.in_round = portion;
    }

    /// The fnode that stands for time away in calls of the parent, created when there is none yet.
    ///
    /// # Panics
    /// When the parent is no fnode of this tree.
    pub fn absence(&mut self, parent: FnodeId, kind: Absence) -> FnodeId {
        if let Some(&known) = self.absences.get(&(parent, kind)) {
            return known;
        }
        let depth = self.fnode(parent).depth + 1;
        let id = u32::try_from(self.fnodes.len() + 1).expect("fnodes are numbered with 32 bits");
        let id = FnodeId(id);
        self.fnodes.push(Fnode {
            id,
            parent: Some(parent),
            site: None,
            callee: Callee::Absence(kind),
            children: Vec::new(),
            depth,
            rounds: 1,
            in_round: 0,
            expansion: Expansion::None,
            probe: Probe::Retired,
            records: Vec::new(),
        });
        self.fnode_mut(parent).children.push(id);
        self.absences.insert((parent, kind), id);
        id
    }

    /// The fnode that stands for time away in calls of the parent, if there is one.
    #[must_use]
    pub fn known_absence(&self, parent: FnodeId, kind: Absence) -> Option<FnodeId> {
        self.absences.get(&(parent, kind)).copied()
    }

    /// The target is a new one: it carries no probe.
    pub(crate) fn forget_probes(&mut self) {
        for fnode in &mut self.fnodes {
            fnode.expansion = Expansion::None;
            if fnode.parent.is_some() {
                fnode.probe = Probe::Retired;
            }
        }
    }

    /// Puts back what an earlier run knew about an fnode and a peak (numbered from 1).
    ///
    /// # Panics
    /// When there is no such fnode, or the peak is 0.
    pub fn set_record(&mut self, fnode: FnodeId, peak: u32, record: PeakRecord) {
        *self.fnode_mut(fnode).record_mut(peak) = record;
    }

    /// An fnode, if there is one of this id.
    #[must_use]
    pub fn get(&self, id: FnodeId) -> Option<&Fnode> {
        self.fnodes.get(Self::index(id)?)
    }

    fn index(id: FnodeId) -> Option<usize> {
        (id.0 as usize).checked_sub(1)
    }

    /// f0.
    #[must_use]
    pub fn root(&self) -> &Fnode {
        &self.fnodes[0]
    }

    /// An fnode that exists.
    ///
    /// # Panics
    /// When it does not: ids are handed out by this tree only.
    #[must_use]
    pub fn fnode(&self, id: FnodeId) -> &Fnode {
        self.get(id).expect("an fnode of this ftree")
    }

    pub(crate) fn fnode_mut(&mut self, id: FnodeId) -> &mut Fnode {
        Self::index(id)
            .and_then(|index| self.fnodes.get_mut(index))
            .expect("an fnode of this ftree")
    }

    /// All fnodes, parents before their children.
    pub fn fnodes(&self) -> impl DoubleEndedIterator<Item = &Fnode> + ExactSizeIterator {
        self.fnodes.iter()
    }

    /// How many fnodes there are, f0 included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.fnodes.len()
    }

    /// Never: f0 is always there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fnodes.is_empty()
    }

    /// The chain of fnodes from f0 down to this one.
    #[must_use]
    pub fn path(&self, id: FnodeId) -> Vec<FnodeId> {
        let mut path: Vec<FnodeId> =
            std::iter::successors(Some(id), |&at| self.fnode(at).parent).collect();
        path.reverse();
        path
    }
}

impl Default for Ftree {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_site_is_an_fnode_once_for_every_path() {
        let mut tree = Ftree::new();
        let g = Callee::Function(CalleeId(7));
        let first = tree.add_child(FnodeId::ROOT, SiteId(1), g);
        let second = tree.add_child(FnodeId::ROOT, SiteId(2), g);
        let below_first = tree.add_child(first, SiteId(9), Callee::Unknown);
        let below_second = tree.add_child(second, SiteId(9), Callee::Unknown);
        assert_ne!(first, second);
        assert_ne!(below_first, below_second);
        assert_eq!(tree.add_child(FnodeId::ROOT, SiteId(1), g), first);
        assert_eq!(
            tree.path(below_second),
            [FnodeId::ROOT, second, below_second]
        );
        assert_eq!(tree.fnode(below_first).depth, 3);
        assert_eq!(tree.get(FnodeId(0)).map(|fnode| fnode.id), None);
    }
}
