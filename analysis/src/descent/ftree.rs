//! The ftree: one fnode for every call site in the context of its call path.
//!
//! A proper tree, rooted at f0, without sharing and without loops (DARC, SIGMETRICS 2008, section 3).
//! Beyond the paper each fnode keeps its maxcount, its statistics and its state once *per peak*.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use darc_record::{FnodeId, SiteId, Tsc};

use crate::descent::peak_record::{NO_RECORD, PathState, PeakRecord, Stats, Stop};

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
    /// It runs the handler of the signal of this number.
    Signal(u32),
    /// Nothing is to be done yet for the future that it polls, which waits in the state of this number.
    Awaiting(u32),
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
    /// The call site cannot carry one: nothing is known of the calls.
    Refused,
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
    /// In how many batches its calls are measured, one after the other.
    pub batches: usize,
    /// In which of its parent's batches its call is.
    pub in_batch: usize,
    pub(crate) expansion: Expansion,
    pub(crate) probe: Probe,
    records: Vec<PeakRecord>,
}

/// The call sites of a function.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Sites {
    /// How many there are.
    pub known: usize,
    /// One fnode for each that could not be measured.
    pub unmeasured: Vec<FnodeId>,
}

/// All fnodes.
#[derive(Clone, Debug)]
pub struct Ftree {
    /// Fnode `n` is at index `n - 1`.
    fnodes: Vec<Fnode>,
    by_call: HashMap<(FnodeId, SiteId, Callee), FnodeId>,
    /// The calls of the same, in the order of the parent's children.
    by_callee: HashMap<(FnodeId, Callee), Vec<FnodeId>>,
    absences: HashMap<(FnodeId, Absence), FnodeId>,
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
            || self.batches <= 1
            || child.in_batch == self.record(peak).batch
            || child.record(peak).state != PathState::NotChosen
    }

    /// Whether its call site cannot carry a probe, so that nothing is known of its calls.
    #[must_use]
    pub fn is_unmeasured(&self) -> bool {
        self.probe == Probe::Refused
    }

    /// Whether its function's calls are measured in batches.
    #[must_use]
    pub fn is_in_batches(&self) -> bool {
        self.batches > 1
    }

    /// Whether the calls are measured in ops in which those of its parent are: time away always is.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        self.site.is_none() || self.is_probe_needed()
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
            batches: 1,
            in_batch: 0,
            expansion: Expansion::None,
            probe: Probe::Wanted,
            records: Vec::new(),
        };
        Self {
            fnodes: vec![root],
            by_call: HashMap::new(),
            by_callee: HashMap::new(),
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
        let in_batch = siblings
            .map(|&sibling| self.fnode(sibling))
            .find(|sibling| sibling.site == Some(site))
            .map_or(0, |sibling| sibling.in_batch);
        self.fnodes.push(Fnode {
            id,
            parent: Some(parent),
            site: Some(site),
            callee,
            children: Vec::new(),
            depth,
            batches: 1,
            in_batch,
            expansion: Expansion::None,
            probe: Probe::Wanted,
            records: Vec::new(),
        });
        self.fnode_mut(parent).children.push(id);
        self.by_call.insert((parent, site, callee), id);
        self.by_callee.entry((parent, callee)).or_default().push(id);
        id
    }

    /// The first of the parent's calls that call the same, in the same batch of its calls: together they are one part of
    /// the parent's time. What is not known to be the same is not.
    #[must_use]
    pub(crate) fn first_alike(&self, id: FnodeId) -> FnodeId {
        let fnode = self.fnode(id);
        let (Some(parent), false) = (
            fnode.parent,
            matches!(fnode.callee, Callee::Unknown | Callee::Syscall(None)),
        ) else {
            return id;
        };
        let alike = self.by_callee.get(&(parent, fnode.callee));
        let mut alike = alike.into_iter().flatten().copied();
        let in_batch = fnode.in_batch;
        alike
            .find(|&at| self.fnode(at).in_batch == in_batch)
            .unwrap_or(id)
    }

    /// The fnode of a call, if there is one.
    #[must_use]
    pub fn known_child(&self, parent: FnodeId, site: SiteId, callee: Callee) -> Option<FnodeId> {
        self.by_call.get(&(parent, site, callee)).copied()
    }

    /// Puts back how an earlier run went over an fnode's calls: in how many batches, and in which of its parent's
    /// batches its own call was (from 0).
    ///
    /// # Panics
    /// When there is no such fnode.
    pub fn set_batches(&mut self, fnode: FnodeId, batches: usize, batch: usize) {
        let fnode = self.fnode_mut(fnode);
        fnode.batches = batches.max(1);
        fnode.in_batch = batch;
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
            batches: 1,
            in_batch: 0,
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

    /// The target is a new one: it carries no probe. What could not carry one is tried again when it is asked for.
    pub(crate) fn forget_probes(&mut self) {
        for fnode in &mut self.fnodes {
            fnode.expansion = Expansion::None;
            if fnode.parent.is_some() && fnode.probe == Probe::Wanted {
                fnode.probe = Probe::Retired;
            }
        }
    }

    /// Nothing is known of the calls through these sites: they cannot carry a probe.
    pub fn refuse(&mut self, sites: &BTreeSet<SiteId>) {
        let is_refused = |fnode: &&mut Fnode| fnode.site.is_some_and(|site| sites.contains(&site));
        for fnode in self.fnodes.iter_mut().filter(is_refused) {
            fnode.probe = Probe::Refused;
        }
    }

    /// Nothing is known of these calls, whatever is known of others by the same site.
    ///
    /// # Panics
    /// When there is no such fnode.
    pub fn refuse_one(&mut self, fnode: FnodeId) {
        self.fnode_mut(fnode).probe = Probe::Refused;
    }

    /// The call sites of an fnode's function that are known, and those among them that could not be measured, each once.
    #[must_use]
    pub fn sites(&self, id: FnodeId) -> Sites {
        let mut known = BTreeSet::new();
        let mut unmeasured = BTreeMap::new();
        for child in self
            .fnode(id)
            .children
            .iter()
            .map(|&child| self.fnode(child))
        {
            known.extend(child.site);
            if let Some(site) = child.site.filter(|_| child.is_unmeasured()) {
                unmeasured.entry(site).or_insert(child.id);
            }
        }
        Sites {
            known: known.len(),
            unmeasured: unmeasured.into_values().collect(),
        }
    }

    /// Puts back what an earlier run knew about an fnode and a peak (numbered from 1).
    ///
    /// # Panics
    /// When there is no such fnode, or the peak is 0.
    pub fn set_record(&mut self, fnode: FnodeId, peak: u32, record: PeakRecord) {
        *self.fnode_mut(fnode).record_mut(peak) = record;
    }

    /// Gives peaks other numbers: that of peak `n` is at index `n - 1`, none where what is known of it is forgotten.
    pub(crate) fn renumber_peaks(&mut self, now: &[Option<u32>]) {
        for fnode in &mut self.fnodes {
            let records = std::mem::take(&mut fnode.records);
            for (record, number) in records.into_iter().zip(now) {
                if let Some(number) = *number {
                    *fnode.record_mut(number) = record;
                }
            }
        }
    }

    /// Takes what an earlier state of this tree knew of the peaks: nothing of fnodes that it had not yet.
    pub(crate) fn take_records(&mut self, before: &mut Ftree) {
        let mut known = before.fnodes.iter_mut();
        for fnode in &mut self.fnodes {
            let records = known.next().map(|known| &mut known.records);
            fnode.records = records.map(std::mem::take).unwrap_or_default();
        }
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
