//! A function's code divided into the groups of instructions that patches replace.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use darc_disasm::{CallSite, Cfg, Condition, FunctionCode, NoMemory, SiteKind, Target, call_sites};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};

use crate::addr::TargetAddr;
use crate::memory::Memory;

use super::layout::journal;
use super::ops::Ops;
use super::prepare::Reason;
use super::spans::{Last, NoRoom, View};
use super::stubs::{Callee, CountedSite, F0End, Item, Kind, Region, Site, SiteFlags};
use super::tree::{Tree, told_apart};

/// System calls that return somewhere else, twice, or not at all.
const NOT_MEASURED: [(u32, &str); 5] = [
    (15, "rt_sigreturn"),
    (56, "clone"),
    (57, "fork"),
    (58, "vfork"),
    (435, "clone3"),
];

/// Whether calls of this number must be left alone.
#[must_use]
pub fn returns_strangely(number: u64) -> bool {
    NOT_MEASURED
        .iter()
        .any(|&(known, _)| u64::from(known) == number)
}

/// A function that is instrumented: its instructions in the groups that patches replace.
#[derive(Debug)]
pub struct Function {
    /// As the plan has it.
    own: Arc<FunctionCode>,
    /// With padding, where that was needed.
    code: Arc<FunctionCode>,
    view: View,
    calls: HashMap<u64, CallSite>,
    groups: Vec<Group>,
    refused: HashMap<u64, Reason>,
    end: F0End,
    part: Part,
    /// The descriptor of the frame of it that is on a stack already.
    running: Option<u64>,
    /// Which of its calls are ops, and of what.
    ops: Ops,
    /// Sites whose calls are counted.
    counted: BTreeMap<u64, CountedSite>,
    /// Who jumps where, found when it is first asked for.
    branches: OnceCell<Cfg>,
}

/// Instructions that one patch replaces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    range: Range<usize>,
    purpose: Purpose,
}

/// What a group is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Sites alone.
    Sites,
    /// The function's entry, and sites that overlap it.
    Entry,
    /// A `ret`, and sites that overlap what is displaced for it.
    Ret,
}

/// Which part a function plays.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Part {
    /// Its calls are measured.
    Callee,
    /// Its entry is patched.
    Entered,
    /// Its entry is patched, and its ends are to be noticed.
    F0,
}

impl Function {
    /// Divides a function's code into groups.
    #[must_use]
    pub fn new(code: Arc<FunctionCode>, part: Part) -> Function {
        let own = Arc::clone(&code);
        Function::padded(own, code, part)
    }

    /// As [`Function::new`], for code that has the padding behind the function in addition.
    #[must_use]
    pub fn padded(own: Arc<FunctionCode>, code: Arc<FunctionCode>, part: Part) -> Function {
        let (own_end, end) = (own.parts()[0].end(), code.parts()[0].end());
        let view = View::new(&code).with_padding(own_end..end);
        let sites = call_sites(&code, &NoMemory).sites;
        let calls = sites.into_iter().map(|call| (call.addr, call)).collect();
        let mut function = Function {
            own,
            code,
            view,
            calls,
            groups: Vec::new(),
            refused: HashMap::new(),
            end: F0End::HiddenReturn,
            part,
            running: None,
            ops: Ops::default(),
            counted: BTreeMap::new(),
            branches: OnceCell::new(),
        };
        if part == Part::F0 && function.divide_with_returns() {
            function.end = F0End::PatchedReturns;
        } else {
            function.divide(part, &[]);
        }
        function
    }

    /// Whether it is about the same code.
    #[must_use]
    pub fn is_of(&self, code: &FunctionCode) -> bool {
        *self.own == *code
    }

    /// Says by which descriptor the stubs know the frame of it that was on a stack before they came.
    pub fn set_running(&mut self, running: Option<u64>) {
        self.running = running;
    }

    /// Says which of its sites' calls are counted.
    pub fn set_counted(&mut self, counted: BTreeMap<u64, CountedSite>) {
        self.counted = counted;
    }

    /// The sites whose calls are counted.
    #[must_use]
    pub fn counted(&self) -> &BTreeMap<u64, CountedSite> {
        &self.counted
    }

    /// Says which calls of it are ops, and of what.
    pub fn set_ops(&mut self, ops: Ops) {
        self.ops = ops;
    }

    /// Which calls of it are ops, and of what.
    #[must_use]
    pub fn ops(&self) -> &Ops {
        &self.ops
    }

    /// The descriptor of its frame that was there before the stubs.
    #[must_use]
    pub fn running(&self) -> Option<u64> {
        self.running
    }

    /// Gives up noticing the ends of f0 at its `ret`s. False when that had not been tried.
    pub fn hide_returns(&mut self) -> bool {
        let patched = self.end == F0End::PatchedReturns;
        if patched {
            self.end = F0End::HiddenReturn;
            self.divide(self.part, &[]);
        }
        patched
    }

    /// Whether there is room for a jump at the entry.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.view.at_entry(self.code.entry()).is_ok()
    }

    /// The program's own bytes, when all of them lie in one part.
    #[must_use]
    pub fn bytes_at(&self, addr: u64, len: usize) -> Option<&[u8]> {
        self.code.bytes_at(addr, len)
    }

    /// What its ends are noticed by, if it is f0.
    #[must_use]
    pub fn end(&self) -> F0End {
        self.end
    }

    /// Who jumps where. Jump tables and cold parts elsewhere are known only with the target's memory.
    #[must_use]
    pub fn branches(&self, memory: &Memory) -> &Cfg {
        self.branches.get_or_init(|| Cfg::build(&self.code, memory))
    }

    /// Whether it was divided for this part.
    #[must_use]
    pub fn plays(&self, part: Part) -> bool {
        self.part == part
    }

    /// Divides so that all ends of f0 are noticed at its `ret`s; false when that is not possible.
    fn divide_with_returns(&mut self) -> bool {
        let instructions = self.view.instructions();
        let entry = self.code.entry();
        let Ok(first) = self.view.at_entry(entry) else {
            return false;
        };
        // A jump to the entry is no new call, which only a hidden return address tells. The same
        // holds for what leaves by a jump: it returns elsewhere.
        let plain = !self.view.is_target(entry)
            && !self.view.is_target(instructions[first.start].ip())
            && instructions.iter().all(|i| !i.is_invalid())
            && !self
                .calls
                .values()
                .any(|call| matches!(call.kind, SiteKind::TailJump { .. }));
        let ends = instructions
            .iter()
            .filter(|i| i.flow_control() == FlowControl::Return);
        let returns: Option<Vec<_>> = ends
            .map(|ret| self.view.before(ret.ip(), Last::Included).ok())
            .collect();
        match returns {
            Some(returns) if plain && !returns.is_empty() => self.divide(Part::F0, &returns),
            _ => false,
        }
    }

    /// Makes groups of everything that can be patched; ranges that overlap become one. False when a
    /// return is not among them.
    fn divide(&mut self, part: Part, returns: &[Range<usize>]) -> bool {
        self.groups.clear();
        self.refused.clear();
        let mut wanted: Vec<(Range<usize>, Purpose, u64)> = Vec::new();
        if part != Part::Callee
            && let Ok(range) = self.view.at_entry(self.code.entry())
        {
            wanted.push((range, Purpose::Entry, 0));
        }
        wanted.extend(returns.iter().map(|range| (range.clone(), Purpose::Ret, 0)));
        let mut calls: Vec<CallSite> = self.calls.values().copied().collect();
        calls.sort_unstable_by_key(|call| call.addr);
        for call in calls {
            match self.room(&call) {
                Ok(range) => wanted.push((range, Purpose::Sites, call.addr)),
                Err(reason) => drop(self.refused.insert(call.addr, reason)),
            }
        }
        let mut complete = true;
        // What must be there comes first, so that what is merely wanted gives way.
        for (range, purpose, addr) in wanted {
            let added = self.add(Group { range, purpose });
            if added.is_err() && purpose == Purpose::Ret {
                complete = false;
            } else if let Err(reason) = added {
                self.refused.insert(addr, reason.to_string());
            }
        }
        self.groups.sort_unstable_by_key(|group| group.range.start);
        complete
    }

    fn room(&self, call: &CallSite) -> std::result::Result<Range<usize>, Reason> {
        let last = match call.kind {
            SiteKind::Syscall { number } => {
                let strange = NOT_MEASURED
                    .iter()
                    .find(|(known, _)| Some(*known) == number);
                if let Some((_, name)) = strange {
                    return Err(format!("{name} does not return like other system calls"));
                }
                Last::Excluded
            }
            _ => Last::Included,
        };
        self.view
            .before(call.addr, last)
            .map_err(|reason| reason.to_string())
    }

    /// Adds a group, merged with those that it overlaps.
    fn add(&mut self, group: Group) -> std::result::Result<(), NoRoom> {
        let mut merged = group;
        let mut rest = Vec::new();
        for other in &self.groups {
            let apart =
                other.range.end <= merged.range.start || merged.range.end <= other.range.start;
            if apart {
                rest.push(other.clone());
                continue;
            }
            // Only the last instruction can be a return, and only one purpose beside sites is possible.
            let purpose = match (other.purpose, merged.purpose) {
                (Purpose::Sites, purpose) | (purpose, Purpose::Sites) => purpose,
                _ => return Err(NoRoom::TooShort),
            };
            merged = Group {
                range: self.view.union(&other.range, &merged.range)?,
                purpose,
            };
        }
        let bytes = self
            .bytes(&merged.range)
            .map_or(usize::MAX, |(_, bytes)| bytes.len());
        if bytes > journal::MAX_LEN {
            return Err(NoRoom::TooShort);
        }
        rest.push(merged);
        self.groups = rest;
        Ok(())
    }

    fn bytes(&self, range: &Range<usize>) -> Option<(u64, Vec<u8>)> {
        let instructions = &self.view.instructions()[range.clone()];
        let (first, last) = (instructions.first()?, instructions.last()?);
        let len = usize::try_from(last.next_ip().checked_sub(first.ip())?).ok()?;
        Some((first.ip(), self.code.bytes_at(first.ip(), len)?.to_vec()))
    }

    /// The address of the group that the site at `addr` is in: what is to be prepared for it.
    ///
    /// # Errors
    /// Why it is in none.
    pub fn group_of_site(&self, addr: u64) -> std::result::Result<u64, Reason> {
        if let Some(reason) = self.refused.get(&addr) {
            return Err(reason.clone());
        }
        let is_syscall = matches!(
            self.calls.get(&addr).map(|call| call.kind),
            Some(SiteKind::Syscall { .. })
        );
        let instructions = self.view.instructions();
        let group = self.groups.iter().find(|group| {
            let range = &group.range;
            match is_syscall {
                // The instruction itself stays behind the group.
                true => instructions[range.end - 1].next_ip() == addr,
                false => instructions[range.clone()].iter().any(|i| i.ip() == addr),
            }
        });
        group
            .map(|group| instructions[group.range.start].ip())
            .ok_or_else(|| NoRoom::NoInstruction.to_string())
    }

    /// The addresses of the groups that make the function f0, or hook it: its returns, its entry last.
    ///
    /// # Errors
    /// Why there is no room for a jump at its entry.
    pub fn entry_groups(&self) -> std::result::Result<Vec<u64>, Reason> {
        self.view
            .at_entry(self.code.entry())
            .map_err(|reason| reason.to_string())?;
        let at = |purpose| {
            let groups = self
                .groups
                .iter()
                .filter(move |group| group.purpose == purpose);
            groups.map(|group| self.view.instructions()[group.range.start].ip())
        };
        // The entry last: an op that has begun must find its end.
        Ok(at(Purpose::Ret).chain(at(Purpose::Entry)).collect())
    }

    /// What the group at an address displaces.
    pub fn region(&self, at: u64, tree: &mut Tree) -> Option<(Region, Purpose)> {
        let instructions = self.view.instructions();
        let group = self
            .groups
            .iter()
            .find(|group| instructions[group.range.start].ip() == at)?;
        let displaced = &instructions[group.range.clone()];
        let next = displaced.last()?.next_ip();
        let is_call = |i: &Instruction| {
            matches!(
                i.flow_control(),
                FlowControl::Call | FlowControl::IndirectCall
            )
        };
        if displaced
            .iter()
            .any(|i| is_call(i) && !self.calls.contains_key(&i.ip()))
        {
            // A call whose return address means something (reading the program counter).
            return None;
        }
        let mut items: Vec<Item> = displaced
            .iter()
            .map(|instruction| match self.calls.get(&instruction.ip()) {
                Some(call) => Item::Site(self.site(call, tree)),
                None if group.purpose == Purpose::Ret
                    && instruction.flow_control() == FlowControl::Return =>
                {
                    Item::Ret(*instruction)
                }
                None => Item::Plain(*instruction),
            })
            .collect();
        let behind = self
            .calls
            .get(&next)
            .filter(|call| matches!(call.kind, SiteKind::Syscall { .. }));
        if let Some(call) = behind.filter(|call| !self.refused.contains_key(&call.addr)) {
            items.push(Item::Site(self.site(call, tree)));
        }
        Some((Region { items, next }, group.purpose))
    }

    fn site(&self, call: &CallSite, tree: &mut Tree) -> Site {
        let place = tree.place(self.code.entry(), call.addr);
        let kind = match call.kind {
            SiteKind::Call(target) => Kind::Call(callee(target)),
            SiteKind::TailJump { target, condition } => {
                Kind::Tail(callee(target), condition.map(Condition::to_iced))
            }
            SiteKind::Syscall { .. } => Kind::Syscall {
                by_number: told_apart(&call.kind),
            },
        };
        Site {
            function: place.function,
            local: place.local,
            kind,
            addr: call.addr,
            next: call.next(),
            running: self.running,
            flags: SiteFlags::default(),
            counted: self.counted.get(&call.addr).copied(),
        }
    }
}

fn callee(target: Target) -> Callee {
    match target {
        Target::Direct(to) => Callee::Direct(to),
        Target::Indirect(operand) => Callee::Indirect(operand),
    }
}

/// The beginning of a function of which nothing is known but its address.
#[must_use]
pub fn beginning(memory: &Memory, addr: TargetAddr) -> Option<Function> {
    const BYTES: usize = 64;
    let mut bytes = vec![0; BYTES];
    memory.read(addr, &mut bytes).ok()?;
    let part = darc_disasm::CodePart {
        start: addr.0,
        bytes,
    };
    FunctionCode::new(vec![part]).map(|code| Function::new(Arc::new(code), Part::Entered))
}

/// The function with the padding behind it, up to where the next function may begin, if all that is
/// there are instructions that nobody runs. `read` reads the program's own code.
#[must_use]
pub fn with_padding(
    code: &FunctionCode,
    read: impl FnOnce(u64, &mut [u8]) -> bool,
) -> Option<Arc<FunctionCode>> {
    /// What compilers align functions to.
    const ALIGNMENT: u64 = 16;
    let (first, rest) = code.parts().split_first()?;
    let len = first.end().next_multiple_of(ALIGNMENT) - first.end();
    let mut padding = vec![0; len as usize];
    if len == 0 || !read(first.end(), &mut padding) {
        return None;
    }
    let decoded = Decoder::with_ip(64, &padding, first.end(), DecoderOptions::NONE);
    let filling = |i: &Instruction| matches!(i.mnemonic(), Mnemonic::Nop | Mnemonic::Int3);
    if !decoded.into_iter().all(|instruction| filling(&instruction)) {
        return None;
    }
    let bytes = [&first.bytes[..], &padding].concat();
    let first = darc_disasm::CodePart {
        start: first.start,
        bytes,
    };
    let parts = std::iter::once(first).chain(rest.iter().cloned()).collect();
    FunctionCode::new(parts).map(Arc::new)
}
