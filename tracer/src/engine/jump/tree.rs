//! The ftree as the stubs read it: descriptors, child lists and target tables in the control mapping.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use darc_disasm::{FunctionCode, SiteKind, Target};

use crate::addr::TargetAddr;
use crate::engine::{DELAYS, Refused};
use crate::error::Result;
use crate::memory::Memory;
use crate::plan::Plan;
use darc_record::{FnodeId, SiteId, Ticks, Tsc};

use super::layout::{DESCRIPTORS, FNODES, HEAP, HEAP_BYTES, descriptor, targets};

/// A site as the stubs name it: its function, and its index there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Place {
    /// The function.
    pub function: u32,
    /// The site in it.
    pub local: u32,
}

#[derive(Default, Debug)]
struct Function {
    index: u32,
    sites: HashMap<u64, u32>,
}

/// The list of children of one fnode.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Row {
    function: u32,
    at: u64,
    children: Vec<u64>,
    room: usize,
}

/// What the stubs are to know, and where it is written.
#[derive(Debug)]
pub struct Tree {
    control: u64,
    heap_used: u64,
    functions: HashMap<u64, Function>,
    indices: HashMap<FnodeId, u32>,
    fnodes: Vec<FnodeId>,
    /// Whether calls may have been delayed.
    delays: bool,
    rows: BTreeMap<u32, Row>,
    tables: HashMap<(u32, Place), u64>,
    sites: HashMap<Place, SiteId>,
    /// Sites that jump, to wherever a register says: those that stay in their function call nothing.
    jumps: HashMap<Place, Arc<FunctionCode>>,
    /// What is called by a jump out of its function that has no fnode of its own.
    others: HashMap<(FnodeId, Place), u32>,
}

/// Why the calls through a site are not measured in some fnode.
const NO_ROOM: &str = "there is no room left for what the probes have to know of so many calls";

/// What one indirect site in one fnode leads to.
#[derive(Default)]
struct Exits {
    any: Option<u32>,
    targets: Vec<(u64, u32)>,
}

/// Target tables to be written while nothing runs.
#[must_use]
pub struct TargetChanges(Vec<(u64, Exits)>);

impl Tree {
    /// An empty tree in the control mapping at `control`.
    #[must_use]
    pub fn new(control: u64) -> Tree {
        Tree {
            control,
            heap_used: 0,
            functions: HashMap::new(),
            indices: HashMap::from([(FnodeId::ROOT, 1)]),
            fnodes: vec![DELAYS, FnodeId::ROOT],
            delays: false,
            rows: BTreeMap::new(),
            tables: HashMap::new(),
            sites: HashMap::new(),
            jumps: HashMap::new(),
            others: HashMap::new(),
        }
    }

    /// The name of a site; the same for ever.
    pub fn place(&mut self, function: u64, site: u64) -> Place {
        let index = self.functions.len() as u32;
        let function = self.functions.entry(function).or_insert_with(|| Function {
            index,
            ..Function::default()
        });
        let next = function.sites.len() as u32;
        Place {
            function: function.index,
            local: *function.sites.entry(site).or_insert(next),
        }
    }

    /// The fnode of an index in a record.
    #[must_use]
    pub fn fnode(&self, index: u32) -> Option<FnodeId> {
        self.fnodes.get(index as usize).copied()
    }

    /// The fnode that an op may say to have called, or [`DELAYS`].
    #[must_use]
    pub fn touched(&self, index: u32) -> Option<FnodeId> {
        let touched = self.fnode(index)?;
        (touched != FnodeId::ROOT && (touched != DELAYS || self.delays)).then_some(touched)
    }

    /// The fnode whose descriptor is at an address.
    #[must_use]
    pub fn fnode_of_descriptor(&self, at: u64) -> Option<FnodeId> {
        let offset = at.checked_sub(self.control + DESCRIPTORS)?;
        let index = u32::try_from(offset / descriptor::SIZE).ok()?;
        (offset % descriptor::SIZE == 0)
            .then(|| self.fnode(index))
            .flatten()
    }

    /// The site of a place, as the plan names it.
    #[must_use]
    pub fn site(&self, place: Place) -> Option<SiteId> {
        self.sites.get(&place).copied()
    }

    /// Whether a site has jumped to an address of its own function.
    #[must_use]
    pub fn stays_inside(&self, place: Place, to: u64) -> bool {
        self.jumps.get(&place).is_some_and(|code| code.contains(to))
    }

    /// The word of a target table for a callee without an fnode of its own.
    #[must_use]
    pub fn any_target(&self, parent: FnodeId, place: Place) -> u64 {
        match (
            self.jumps.contains_key(&place),
            self.others.get(&(parent, place)),
        ) {
            (false, _) => targets::PENDING,
            (true, Some(&any)) => self.descriptor_at(any),
            (true, None) => targets::UNMEASURED,
        }
    }

    /// The address of an fnode's descriptor; `None` when there are too many fnodes.
    pub fn descriptor(&mut self, fnode: FnodeId) -> Option<u64> {
        self.index(fnode).map(|index| self.descriptor_at(index))
    }

    fn descriptor_at(&self, index: u32) -> u64 {
        self.control + DESCRIPTORS + u64::from(index) * descriptor::SIZE
    }

    fn index(&mut self, fnode: FnodeId) -> Option<u32> {
        if let Some(&known) = self.indices.get(&fnode) {
            return Some(known);
        }
        let index = u32::try_from(self.fnodes.len())
            .ok()
            .filter(|&index| u64::from(index) < FNODES)?;
        self.fnodes.push(fnode);
        self.indices.insert(fnode, index);
        Some(index)
    }

    /// Has the calls of an fnode delayed until a reading of the clock. The target may run.
    ///
    /// # Errors
    /// When the target is gone.
    pub fn delay(&mut self, memory: &Memory, fnode: FnodeId, by: Ticks, until: Tsc) -> Result<()> {
        let Some(&index) = self.indices.get(&fnode) else {
            return Ok(());
        };
        self.delays = true;
        let at = self.descriptor_at(index);
        // Between the writes nothing is delayed, or one call by the delay before.
        memory.write_word(TargetAddr(at + descriptor::UNTIL), 0)?;
        memory.write_word(TargetAddr(at + descriptor::DELAY), by.0)?;
        memory.write_word(TargetAddr(at + descriptor::UNTIL), until.0)
    }

    fn reserve(&mut self, bytes: u64) -> Option<u64> {
        let end = self.heap_used.checked_add(bytes.next_multiple_of(16))?;
        let at = self.control + HEAP + self.heap_used;
        (end <= HEAP_BYTES).then(|| {
            self.heap_used = end;
            at
        })
    }

    /// Whether an address lies in the heap, so that an answer may be written there.
    #[must_use]
    pub fn is_heap(&self, at: u64) -> bool {
        at.is_multiple_of(8)
            && (self.control + HEAP..self.control + HEAP + HEAP_BYTES).contains(&at)
    }

    /// Writes the plan's edges. The target may run: what is in progress is of an older generation.
    /// Returns the sites of edges for which there is no room: calls through them are not measured.
    ///
    /// # Errors
    /// When the target is gone.
    pub fn write(
        &mut self,
        memory: &Memory,
        plan: &Plan,
        unmeasured: &BTreeSet<u64>,
    ) -> Result<(TargetChanges, Vec<Refused>)> {
        let mut places = HashMap::new();
        let mut addresses = HashMap::new();
        self.others.clear();
        for function in &plan.functions {
            // The stub of another probe may have a copy of one that is refused, and calls from there pass unmeasured, too.
            let measured = function.sites.iter();
            let measured = measured.filter(|(_, call)| !unmeasured.contains(&call.addr));
            for (id, call) in measured {
                let place = self.place(function.code.entry(), call.addr);
                self.sites.insert(place, *id);
                places.insert(*id, (place, told_apart(&call.kind)));
                if let SiteKind::TailJump {
                    target: Target::Indirect(_),
                    ..
                } = call.kind
                {
                    self.jumps.insert(place, Arc::clone(&function.code));
                }
                addresses.insert(place, call.addr);
            }
        }
        let mut left_out = BTreeSet::new();
        let mut wanted: BTreeMap<u32, (u32, BTreeMap<u32, u64>)> = BTreeMap::new();
        let mut exits: BTreeMap<(u32, Place), Exits> = BTreeMap::new();
        for edge in &plan.edges {
            let known = places.get(&edge.site).copied();
            let Some((place, told_apart)) = known else {
                continue;
            };
            let (Some(parent), Some(child)) = (self.index(edge.parent), self.index(edge.child))
            else {
                left_out.insert(place);
                continue;
            };
            let (_, children) = wanted
                .entry(parent)
                .or_insert_with(|| (place.function, BTreeMap::new()));
            if !told_apart {
                children.insert(place.local, self.descriptor_at(child));
                continue;
            }
            let exit = exits.entry((parent, place)).or_default();
            match edge.target {
                // Until somebody has looked where it leads it is no call.
                None if self.jumps.contains_key(&place) => {
                    self.others.insert((edge.parent, place), child);
                }
                None => exit.any = Some(child),
                Some(target) if self.stays_inside(place, target.0) => {}
                Some(target) => exit.targets.push((target.0, child)),
            }
        }
        let mut changes = Vec::new();
        for ((parent, place), exit) in exits {
            let known = self.tables.get(&(parent, place)).copied();
            let Some(table) = known.or_else(|| self.reserve(targets::SIZE)) else {
                left_out.insert(place);
                continue;
            };
            self.tables.insert((parent, place), table);
            if let Some((_, children)) = wanted.get_mut(&parent) {
                children.insert(place.local, table);
            }
            changes.push((table, exit));
        }
        left_out.extend(self.write_rows(memory, wanted)?);
        let refused = left_out.iter().filter_map(|place| {
            let addr = TargetAddr(*addresses.get(place)?);
            let reason = NO_ROOM.to_owned();
            Some(Refused { addr, reason })
        });
        Ok((TargetChanges(changes), refused.collect()))
    }

    fn write_rows(
        &mut self,
        memory: &Memory,
        wanted: BTreeMap<u32, (u32, BTreeMap<u32, u64>)>,
    ) -> Result<Vec<Place>> {
        let mut left_out = Vec::new();
        let rows = self.rows.iter();
        let gone: Vec<u32> = rows
            .filter(|(index, row)| !row.children.is_empty() && !wanted.contains_key(index))
            .map(|(&index, _)| index)
            .collect();
        for index in gone {
            // The list stays for a stub that is just reading it, and for children that come back.
            self.write_descriptor(memory, index, descriptor::NO_FUNCTION, 0)?;
            if let Some(row) = self.rows.get_mut(&index) {
                row.children.clear();
            }
        }
        for (index, (function, children)) in wanted {
            // Sites of the function that have no edge now may get one later, and their stubs look here already.
            let sites = self
                .functions
                .values()
                .find(|known| known.index == function)
                .map_or(0, |known| known.sites.len());
            let mut list = vec![0; sites];
            for (local, child) in children {
                list[local as usize] = child;
            }
            let old = self.rows.get(&index);
            if old.is_some_and(|old| old.function == function && old.children == list) {
                continue;
            }
            let place = match old {
                Some(old) if old.room >= list.len() && old.function == function => {
                    Some((old.at, old.room))
                }
                _ => {
                    let room = list.len() + 8;
                    self.reserve(room as u64 * 8).map(|at| (at, room))
                }
            };
            let Some((at, room)) = place else {
                // Stubs of sites that the old list does not reach would read what lies behind it.
                self.write_descriptor(memory, index, descriptor::NO_FUNCTION, 0)?;
                self.rows.remove(&index);
                let locals = (0..).zip(&list).filter(|(_, child)| **child != 0);
                left_out.extend(locals.map(|(local, _)| Place { function, local }));
                continue;
            };
            let bytes: Vec<u8> = list
                .iter()
                .flat_map(|child: &u64| child.to_le_bytes())
                .collect();
            memory.write(TargetAddr(at), &bytes)?;
            self.write_descriptor(memory, index, function, at)?;
            let children = list;
            self.rows.insert(
                index,
                Row {
                    function,
                    at,
                    children,
                    room,
                },
            );
        }
        Ok(left_out)
    }

    /// The function and the list change at once: a stub compares the one and then reads the other, so
    /// the list is there before the function and goes after it.
    fn write_descriptor(
        &self,
        memory: &Memory,
        index: u32,
        function: u32,
        children: u64,
    ) -> Result<()> {
        let at = self.descriptor_at(index);
        let (list, name) = (
            TargetAddr(at + descriptor::CHILDREN),
            TargetAddr(at + descriptor::FUNCTION),
        );
        if function == descriptor::NO_FUNCTION {
            memory.write(name, &function.to_le_bytes())
        } else {
            memory.write(list, &children.to_le_bytes())?;
            memory.write(name, &function.to_le_bytes())
        }
    }

    /// Writes the target tables. Nothing may run: stubs enter callees there too.
    ///
    /// # Errors
    /// When the target is gone.
    pub fn write_targets(&self, memory: &Memory, changes: &TargetChanges) -> Result<()> {
        for (table, exits) in &changes.0 {
            let mut bytes = vec![0; targets::SIZE as usize];
            memory.read(TargetAddr(*table), &mut bytes)?;
            let mut words: Vec<u64> = bytes
                .chunks_exact(8)
                .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
                .collect();
            words[0] = exits.any.map_or(0, |any| self.descriptor_at(any));
            for &(target, child) in &exits.targets {
                if let Some(slot) = find_slot(&words, target) {
                    words[slot] = target;
                    words[slot + 1] = self.descriptor_at(child);
                }
            }
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            memory.write(TargetAddr(*table), &bytes)?;
        }
        Ok(())
    }
}

/// Whether calls through a site are told apart by what they reach.
#[must_use]
pub fn told_apart(kind: &SiteKind) -> bool {
    match kind {
        SiteKind::Call(target) | SiteKind::TailJump { target, .. } => {
            matches!(target, Target::Indirect(_))
        }
        SiteKind::Syscall { number } => number.is_none(),
    }
}

/// The word of a target table in which a callee is, or could be, by the stubs' own rule.
fn find_slot(words: &[u64], target: u64) -> Option<usize> {
    (0..targets::COUNT)
        .map(|step| ((target >> 4) + step) & (targets::COUNT - 1))
        .map(|index| (targets::SLOTS / 8 + index * 2) as usize)
        .find(|&slot| words[slot] == target || words[slot] == 0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use darc_disasm::{CallSite, CodePart, FunctionCode};

    use crate::plan::{Edge, PlannedFunction};

    use super::super::layout::JOURNAL;
    use super::*;

    #[test]
    fn a_place_is_the_same_for_ever() {
        let mut tree = Tree::new(0);
        let first = tree.place(0x1000, 0x1004);
        let second = tree.place(0x1000, 0x1010);
        assert_eq!((first.local, second.local), (0, 1));
        assert_ne!(tree.place(0x2000, 0x2004).function, first.function);
        assert_eq!(tree.place(0x1000, 0x1004), first);
    }

    #[test]
    fn fnodes_are_found_by_their_descriptors() {
        let mut tree = Tree::new(0x10_0000);
        let at = tree.descriptor(FnodeId(77)).unwrap();
        assert_eq!(tree.fnode_of_descriptor(at), Some(FnodeId(77)));
        assert_eq!(tree.fnode_of_descriptor(at + 8), None);
        assert_eq!(tree.fnode_of_descriptor(7), None);
        assert_eq!(tree.fnode(1), Some(FnodeId::ROOT));
    }

    #[test]
    fn no_op_calls_f0_or_tells_of_delays_that_nobody_asked_for() {
        let mut tree = Tree::new(0x10_0000);
        tree.descriptor(FnodeId(77)).unwrap();
        let touched = |tree: &Tree| [0, 1, 2, 3].map(|index| tree.touched(index));
        assert_eq!(touched(&tree), [None, None, Some(FnodeId(77)), None]);
        tree.delays = true;
        assert_eq!(tree.touched(0), Some(DELAYS));
    }

    /// A plan in which a function's first `sites` calls lead on from f0.
    fn plan(sites: u64) -> Plan {
        let part = CodePart {
            start: 0x1000,
            bytes: vec![0x90; 64],
        };
        let code = FunctionCode::new(vec![part]).unwrap();
        let site = |index: u64| {
            let call = CallSite {
                addr: 0x1000 + 5 * index,
                len: 5,
                kind: SiteKind::Call(Target::Direct(0x2000)),
            };
            (SiteId(index as u32), call)
        };
        let edge = |index: u64| Edge {
            parent: FnodeId::ROOT,
            site: SiteId(index as u32),
            target: None,
            child: FnodeId(2 + index as u32),
        };
        Plan {
            functions: vec![PlannedFunction {
                code: Arc::new(code),
                sites: (0..sites).map(site).collect(),
                seen_through: BTreeSet::new(),
            }],
            edges: (0..sites).map(edge).collect(),
            ..Plan::default()
        }
    }

    /// The function whose sites f0's children are at, as the stubs read it.
    fn function_of_f0(memory: &Memory, tree: &mut Tree) -> u32 {
        let at = tree.descriptor(FnodeId::ROOT).unwrap() + descriptor::FUNCTION;
        memory.read_word(TargetAddr(at)).unwrap() as u32
    }

    #[test]
    fn where_the_heap_is_full_no_stub_reads_beyond_an_old_list() {
        let none = BTreeSet::new();
        // This process plays the target.
        let memory = Memory::open(std::process::id() as i32).unwrap();
        let control = vec![0_u64; (JOURNAL / 8) as usize];
        let mut tree = Tree::new(control.as_ptr() as u64);
        let function_of_f0 = |tree: &mut Tree| function_of_f0(&memory, tree);
        let (_, refused) = tree.write(&memory, &plan(1), &none).unwrap();
        assert_eq!(refused.len(), 0);
        let room = tree.rows[&1].room as u64;
        let function = tree.place(0x1000, 0x1000).function;
        assert_eq!(function_of_f0(&mut tree), function, "calls are measured");
        while tree.reserve(16).is_some() {}
        let (_, refused) = tree.write(&memory, &plan(room + 1), &none).unwrap();
        assert_eq!(function_of_f0(&mut tree), descriptor::NO_FUNCTION);
        assert_eq!(refused.len() as u64, room + 1);
        assert_eq!(refused[0].addr, TargetAddr(0x1000));
        // What needs no more room than there was is not measured either: its list is not known any more.
        let (_, refused) = tree.write(&memory, &plan(1), &none).unwrap();
        assert_eq!(refused.len(), 1);
        drop(control);
    }

    #[test]
    fn children_that_come_back_need_no_more_room() {
        let none = BTreeSet::new();
        // This process plays the target.
        let memory = Memory::open(std::process::id() as i32).unwrap();
        let control = vec![0_u64; (JOURNAL / 8) as usize];
        let mut tree = Tree::new(control.as_ptr() as u64);
        let function = |tree: &mut Tree| function_of_f0(&memory, tree);
        let _ = tree.write(&memory, &plan(2), &none).unwrap();
        let (known, used) = (function(&mut tree), tree.heap_used);
        for _ in 0..3 {
            let _ = tree.write(&memory, &Plan::default(), &none).unwrap();
            assert_eq!(function(&mut tree), descriptor::NO_FUNCTION);
            let _ = tree.write(&memory, &plan(2), &none).unwrap();
            assert_eq!((function(&mut tree), tree.heap_used), (known, used));
        }
        drop(control);
    }

    #[test]
    fn a_site_that_is_refused_is_measured_from_no_copy() {
        // This process plays the target.
        let memory = Memory::open(std::process::id() as i32).unwrap();
        let control = vec![0_u64; (JOURNAL / 8) as usize];
        let mut tree = Tree::new(control.as_ptr() as u64);
        let first = |tree: &mut Tree| {
            let at = tree.descriptor(FnodeId::ROOT).unwrap();
            let row = memory
                .read_word(TargetAddr(at + descriptor::CHILDREN))
                .unwrap();
            memory.read_word(TargetAddr(row)).unwrap()
        };
        let _ = tree.write(&memory, &plan(2), &BTreeSet::new()).unwrap();
        assert_ne!(first(&mut tree), 0);
        let refused = BTreeSet::from([0x1000]);
        let _ = tree.write(&memory, &plan(2), &refused).unwrap();
        assert_eq!(first(&mut tree), 0);
        drop(control);
    }

    #[test]
    fn there_are_only_so_many_fnodes() {
        let mut tree = Tree::new(0);
        let made = (2..FNODES as u32 + 1000)
            .filter(|&id| tree.descriptor(FnodeId(id)).is_some())
            .count();
        assert_eq!(made as u64, FNODES - 2);
    }

    #[test]
    fn a_callee_is_where_the_stubs_look_for_it() {
        let mut words = vec![0; (targets::SIZE / 8) as usize];
        let slot = find_slot(&words, 0x1230).unwrap();
        words[slot] = 0x1230;
        assert_eq!(find_slot(&words, 0x1230), Some(slot));
        // Another of the same first position is beside it.
        let same = 0x1230 + (targets::COUNT << 4);
        assert_eq!(find_slot(&words, same), Some(slot + 2));
    }
}
