//! A function's code divided into the groups of instructions that patches replace.

mod ends;
pub mod goroutines;
mod landings;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use darc_disasm::{
    CallSite, Condition, FunctionCode, NoMemory, Operand, Segment, SiteKind, Sites, Target,
};
use iced_x86::{FlowControl, Instruction, Mnemonic, Register};

use crate::addr::TargetAddr;
use crate::engine::TAKES_ARGUMENTS;
use crate::memory::Memory;
use crate::plan::Callees;

use super::flags::Flags;
use super::ops::Ops;
use super::prepare::Reason;
use super::spans::{JUMP, NoRoom, Span, View};
use super::stubs::{
    Arrival, CallReturns, Callee, CountedSite, F0End, Item, Kind, Landing, RED_ZONE, Region, Site,
    SiteFlags,
};
use super::tree::{Tree, told_apart};

use goroutines::Spots;

/// System calls that return somewhere else, twice, or not at all.
const NOT_MEASURED: [(u32, &str); 5] = [
    (15, "rt_sigreturn"),
    (56, "clone"),
    (57, "fork"),
    (58, "vfork"),
    (435, "clone3"),
];

/// Why a call must be left alone.
fn strange(call: &CallSite) -> Option<Reason> {
    let SiteKind::Syscall { number } = call.kind else {
        return None;
    };
    let mut known = NOT_MEASURED.iter();
    let (_, name) = known.find(|(known, _)| Some(*known) == number)?;
    Some(format!("{name} does not return like other system calls"))
}

/// Whether an instruction moves the stack pointer otherwise than by pushing or popping: what lies below the stack before it
/// may be in use behind it, as where a function saves registers before it makes its frame.
fn moves_stack(i: &Instruction) -> bool {
    let is_operand = |at: u32| i.op_count() > at && i.op_register(at) == Register::RSP;
    let pushes = matches!(i.mnemonic(), Mnemonic::Push | Mnemonic::Pop);
    (is_operand(0) && !pushes)
        || (is_operand(1) && matches!(i.mnemonic(), Mnemonic::Xchg | Mnemonic::Xadd))
        || matches!(i.mnemonic(), Mnemonic::Leave | Mnemonic::Enter)
}

fn is_return(instruction: &Instruction) -> bool {
    instruction.flow_control() == FlowControl::Return
}

/// Whether a jump may go where the first word of what it passes on says, as to a coroutine: not where a fixed place says, nor one further
/// on, as for a virtual function.
fn may_be_first_word(operand: Operand) -> bool {
    match operand {
        Operand::Register(_) => true,
        Operand::Memory(at) => {
            (at.segment, at.index, at.displacement) == (Segment::None, None, 0) && at.base.is_some()
        }
    }
}

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
    code: Arc<FunctionCode>,
    view: View,
    calls: HashMap<u64, CallSite>,
    groups: Vec<Group>,
    refused: HashMap<u64, Reason>,
    end: F0End,
    /// Whether its jumps through pointers end it as well.
    is_left: bool,
    part: Part,
    /// The descriptor of the frame of it that is on a stack already.
    running: Option<u64>,
    /// Which of its calls are ops, and of what.
    ops: Ops,
    /// Sites whose calls are counted.
    counted: BTreeMap<u64, CountedSite>,
    noticed: Landings,
    /// The calls that return to an address at which that is noticed: the addresses of their instructions.
    landings: HashMap<u64, u64>,
    /// Calls of which that was tried in vain.
    unnoticed: HashSet<u64>,
    /// Calls behind which the compiler expects nobody.
    unreturning: HashSet<u64>,
    /// Where an f0 of goroutines begins and ends, or why that is not noticed.
    spots: std::result::Result<Spots, &'static str>,
}

/// Instructions that one patch replaces.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Group {
    span: Span,
    purpose: Purpose,
}

/// What a group is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Purpose {
    /// Sites alone, and where they return to.
    Sites,
    /// A `ret`, and sites that overlap what is displaced for it.
    Ret,
    /// The function's entry, and whatever overlaps it.
    Entry,
}

/// Whether it is noticed where calls return to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Landings {
    /// By code at their return addresses, wherever there is room for a jump.
    Noticed,
    /// It is not.
    Left,
    /// As [`Landings::Noticed`], in a program of goroutines: in the place of single instructions, and no return address is
    /// ever hidden.
    OfGoroutines {
        /// Whether the compiler is known to have made the function.
        is_compiled: bool,
        /// Where a thread keeps its goroutine ([`crate::plan::Goroutines::kept`]).
        kept: i32,
    },
}

/// Whether a measured call may have another return address than the program's own, where there is no room for a landing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hiding {
    /// It may.
    Allowed,
    /// It may not: what is called looks at it.
    Forbidden,
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
    /// Divides a function's code into groups. Jump tables are read from `memory`.
    #[must_use]
    pub fn new(
        code: Arc<FunctionCode>,
        part: Part,
        landings: Landings,
        memory: &dyn darc_disasm::Memory,
    ) -> Function {
        let mut view = View::new(Arc::clone(&code), memory);
        let mut spots = Ok(Spots::default());
        if let Landings::OfGoroutines { is_compiled, kept } = landings {
            view.replace_alone();
            let code = view.instructions();
            spots = match (goroutines::strange(code, is_compiled, kept), part) {
                (Some(reason), _) => Err(reason),
                (None, Part::F0) => goroutines::spots(code, kept, |addr| view.is_target(addr)),
                (None, Part::Entered) => goroutines::beginning(code, |addr| view.is_target(addr)),
                (None, Part::Callee) => Ok(Spots::default()),
            };
        }
        let sites = &view.sites().sites;
        let calls = sites.iter().map(|&call| (call.addr, call));
        let mut function = Function {
            calls: calls.collect(),
            noticed: landings,
            landings: HashMap::new(),
            unnoticed: HashSet::new(),
            unreturning: HashSet::new(),
            code,
            view,
            groups: Vec::new(),
            refused: HashMap::new(),
            end: F0End::HiddenReturn,
            is_left: false,
            part,
            running: None,
            ops: Ops::default(),
            counted: BTreeMap::new(),
            spots,
        };
        if function.is_of_goroutines() {
            function.end = F0End::PatchedReturns;
            function.divide();
        } else if part == Part::F0 && function.returns_plainly() {
            function.end = F0End::PatchedReturns;
            function.divide();
            if function.misses_ends() {
                function.hide_returns();
            }
        } else {
            function.divide();
        }
        function
    }

    /// The calls that it makes, and what looks like one.
    #[must_use]
    pub fn sites(&self) -> &Sites {
        self.view.sites()
    }

    /// Whether it is about the same code. Somebody may have set a breakpoint at its entry since, beside the probe there.
    #[must_use]
    pub fn is_of(&self, code: &FunctionCode) -> bool {
        *self.code == *code || code.is_but_for_breakpoint(&self.code)
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

    fn is_of_goroutines(&self) -> bool {
        matches!(self.noticed, Landings::OfGoroutines { .. })
    }

    /// How far above the stack pointer the return address is where an f0 of goroutines begins.
    #[must_use]
    pub fn depth(&self) -> i32 {
        let spots = self.spots.as_ref().ok();
        let beginning = spots.and_then(|spots| spots.beginning);
        beginning.map_or(0, |spot| spot.depth)
    }

    /// Whether it was divided so that it is, or is not, noticed where its calls return to.
    #[must_use]
    pub fn notices(&self, landings: Landings) -> bool {
        self.noticed == landings
    }

    /// Whether it was divided for this part.
    #[must_use]
    pub fn plays(&self, part: Part) -> bool {
        self.part == part
    }

    /// Makes groups of everything that can be patched.
    fn divide(&mut self) {
        self.groups.clear();
        self.refused.clear();
        for (at, purpose) in self.places() {
            let last = self.groups.last_mut();
            if let Some(group) = last.filter(|group| self.view.covers(&group.span, at)) {
                group.purpose = group.purpose.max(purpose);
                continue;
            }
            let before = self.groups.last().map(|group| &group.span);
            match self.view.span(at, before) {
                Ok(span) => self.add(Group { span, purpose }),
                Err(reason) => {
                    let addr = self.view.instructions()[at].ip();
                    self.refused.insert(addr, reason.to_string());
                }
            }
        }
        self.divide_landings();
    }

    /// Where control is to be diverted: positions, in order. Its entry and its `ret`s are among them whatever part the function plays:
    /// it may play another one later, and a thread that is in a stub of now goes on behind what that displaces.
    fn places(&mut self) -> BTreeMap<usize, Purpose> {
        if self.is_of_goroutines() {
            return self.places_of_goroutines();
        }
        let mut places = BTreeMap::new();
        let calls = self.calls.values();
        let measured = calls.filter(|call| strange(call).is_none() && !self.leaves_by(call));
        let sites = measured.filter_map(|call| self.view.position(call.addr));
        places.extend(sites.map(|at| (at, Purpose::Sites)));
        let instructions = self.view.instructions().iter().enumerate();
        let ends = instructions.filter(|(_, i)| is_return(i) || self.ends_at(i));
        places.extend(ends.map(|(at, i)| match self.ends_at(i) {
            true => (at, Purpose::Ret),
            false => (at, Purpose::Sites),
        }));
        if let Some(entry) = self.entry_position() {
            match self.part {
                Part::Callee => drop(places.entry(entry).or_insert(Purpose::Sites)),
                Part::Entered | Part::F0 => drop(places.insert(entry, Purpose::Entry)),
            }
        }
        let takes_arguments = self.code.takes_arguments();
        for call in self.calls.values() {
            let is_tail = matches!(call.kind, SiteKind::TailJump { .. });
            let reason = (takes_arguments && is_tail).then(|| TAKES_ARGUMENTS.to_owned());
            if let Some(reason) = strange(call).or(reason) {
                self.refused.insert(call.addr, reason);
            }
        }
        places
    }

    /// As [`Function::places`], in a program of goroutines.
    fn places_of_goroutines(&mut self) -> BTreeMap<usize, Purpose> {
        let mut places = BTreeMap::new();
        for call in self.calls.values() {
            let reason = match (&self.spots, call.kind) {
                (Err(reason), _) => Some(*reason),
                (Ok(_), SiteKind::Call(Target::Direct(_))) => None,
                (Ok(_), SiteKind::Call(Target::Indirect(Operand::Register(register))))
                    if !goroutines::OF_PROBES.contains(&register) =>
                {
                    None
                }
                (Ok(_), SiteKind::Call(_)) => Some("where it finds its callee probes find none"),
                (Ok(_), _) => Some("in Go programs calls are measured only"),
            };
            match (reason, self.view.position(call.addr)) {
                (None, Some(at)) => drop(places.insert(at, Purpose::Sites)),
                (reason, _) => {
                    let reason = reason.unwrap_or("there is no instruction at this address");
                    self.refused.insert(call.addr, reason.to_owned());
                }
            }
        }
        if let Ok(spots) = &self.spots {
            places.extend(spots.ends.iter().map(|spot| (spot.at, Purpose::Ret)));
            places.extend(spots.beginning.iter().map(|spot| (spot.at, Purpose::Entry)));
        }
        places
    }

    /// Whether a call in a program of goroutines expects no more than the calling convention says. Of one that does not return that
    /// is noted. `is_checked` tells whether a function begins with a stack check.
    ///
    /// # Errors
    /// Why it cannot be measured.
    pub fn ordinary(
        &mut self,
        call: &CallSite,
        callees: &Callees,
        is_checked: impl Fn(u64) -> bool,
    ) -> std::result::Result<(), &'static str> {
        let has = |entries: &[u64], to| entries.binary_search(&to).is_ok();
        let is_ordinary = match call.kind {
            SiteKind::Call(Target::Direct(to)) => {
                if has(&callees.unreturning, to) {
                    self.expect_no_return(call);
                }
                has(&callees.compiled, to)
                    || has(&callees.ordinary, to)
                    || self.is_plain_call(call)
                    || is_checked(to)
            }
            // Values of functions, and methods of interfaces, are of the convention.
            SiteKind::Call(Target::Indirect(_)) => true,
            _ => false,
        };
        match is_ordinary {
            true => Ok(()),
            false => Err("what it calls has a calling convention of its own"),
        }
    }

    /// Says that a call never returns, in a program of goroutines.
    fn expect_no_return(&mut self, call: &CallSite) {
        // What is behind it is reached otherwise, and may need the registers that a landing does not keep.
        if self.lands(call) {
            self.landings.remove(&call.next());
        }
        self.unreturning.insert(call.addr);
    }

    /// Whether a call in a program of goroutines is one to which nothing matters but what the older convention keeps, or the
    /// stack check's own.
    #[must_use]
    pub fn is_plain_call(&self, call: &CallSite) -> bool {
        let Landings::OfGoroutines { kept, .. } = self.noticed else {
            return false;
        };
        let code = self.view.instructions();
        let at = self.view.position(call.addr);
        at.is_some_and(|at| {
            goroutines::growth(code) == Some(at)
                || goroutines::follows_older_convention(code, at + 1, kept)
        })
    }

    /// The end of an f0 of goroutines that an instruction is.
    fn end_at(&self, instruction: &Instruction) -> Option<i32> {
        let spots = self.spots.as_ref().ok()?;
        let at = self.view.position(instruction.ip())?;
        let mut ends = spots.ends.iter();
        ends.find(|spot| spot.at == at).map(|spot| spot.depth)
    }

    /// Adds a group, which may have taken in the one before it.
    fn add(&mut self, mut group: Group) {
        let taken = |last: &&mut Group| last.span.range.end > group.span.range.start;
        if let Some(last) = self.groups.last_mut().filter(taken) {
            group.purpose = group.purpose.max(last.purpose);
            *last = group;
        } else {
            self.groups.push(group);
        }
    }

    fn group(&self, at: u64) -> Option<&Group> {
        let position = self.view.position(at)?;
        let mut groups = self.groups.iter();
        groups.find(|group| group.span.range.start == position)
    }

    /// The addresses of the groups by which a site is measured: where it returns to first.
    ///
    /// # Errors
    /// Why it cannot be measured.
    pub fn groups_of_site(
        &self,
        call: &CallSite,
        hiding: Hiding,
    ) -> std::result::Result<Vec<u64>, Reason> {
        let landing = self.lands(call).then(|| call.next());
        let is_missed = landing.is_none() && !self.hides_nothing(call);
        let must_land = self.is_of_goroutines() || hiding == Hiding::Forbidden;
        if must_land && is_missed && !self.refused.contains_key(&call.addr) {
            return Err("where it returns to there is no room for a jump".to_owned());
        }
        let site = self.group_at(call.addr)?;
        Ok(landing.into_iter().chain([site]).collect())
    }

    /// The address of the group that diverts control at an instruction: what is to be prepared for it.
    ///
    /// # Errors
    /// Why there is none.
    fn group_at(&self, addr: u64) -> std::result::Result<u64, Reason> {
        if let Some(reason) = self.refused.get(&addr) {
            return Err(reason.clone());
        }
        let position = self.view.position(addr);
        let group = position.and_then(|at| {
            let mut groups = self.groups.iter();
            groups.find(|group| self.view.covers(&group.span, at))
        });
        group
            .map(|group| self.view.instructions()[group.span.range.start].ip())
            .ok_or_else(|| NoRoom::NoInstruction.to_string())
    }

    /// The program's own bytes that a group replaces.
    #[must_use]
    pub fn bytes(&self, at: u64) -> Option<Vec<u8>> {
        let (_, bytes) = self.view.bytes(&self.group(at)?.span)?;
        Some(bytes)
    }

    /// What the group at an address displaces.
    pub fn region(&self, at: u64, tree: &mut Tree) -> Option<(Region, Purpose)> {
        let group = self.group(at)?;
        let Group { span, purpose } = group;
        let lowered = self.lowered(group);
        let start = span.range.start - usize::from(lowered.is_some());
        let displaced = &self.view.instructions()[start..span.range.end];
        let next = displaced.last()?.next_ip();
        let mut items = Vec::new();
        for instruction in displaced {
            if self.landings.contains_key(&instruction.ip()) {
                items.push(Item::Landing(Landing {
                    addr: instruction.ip(),
                    running: self.running,
                    flags: Flags::default(),
                }));
            }
            let call = self.calls.get(&instruction.ip());
            items.push(match call.filter(|call| !self.leaves_by(call)) {
                Some(call) => Item::Site(self.site(call, tree)),
                None if self.is_of_goroutines() => match self.end_at(instruction) {
                    Some(depth) => Item::End(*instruction, depth),
                    None => Item::Plain(*instruction),
                },
                None if self.ends_at(instruction) => Item::Ret(*instruction),
                None => Item::Plain(*instruction),
            });
        }
        if span.syscall_behind {
            items.push(Item::Site(self.site(self.calls.get(&next)?, tree)));
        }
        let arrival = match lowered {
            _ if self.arrives_by_call(span, *purpose) => Arrival::Call,
            Some(lowered) => Arrival::BehindFirst(lowered),
            None => Arrival::Jump,
        };
        let region = Region {
            items,
            next,
            arrival,
        };
        Some((region, *purpose))
    }

    /// Whether the text can keep a call in place of the program's, which pushes the same return address.
    fn arrives_by_call(&self, span: &Span, purpose: Purpose) -> bool {
        /// The longest instruction (Intel SDM volume 2, section 2.3.11).
        const LONGEST: u64 = 15;
        let displaced = &self.view.instructions()[span.range.clone()];
        let [before @ .., last] = displaced else {
            return false;
        };
        // The word below the stack is overwritten before they run. What leaves by a branch would have made no call.
        let unfit = |i: &Instruction| {
            i.memory_base() == Register::RSP && (i.memory_displacement64() as i64) < 0
                || moves_stack(i)
                || i.flow_control() != FlowControl::Next
        };
        let call = self.calls.get(&last.ip());
        call.is_some_and(|call| self.hides_nothing(call))
            && purpose != Purpose::Entry
            && (JUMP..=LONGEST).contains(&self.view.len(span))
            && !before.iter().any(unfit)
    }

    /// How far below its caller's slot that of a call is, as the stub of its kind takes it.
    fn distance(&self, call: &CallSite) -> Option<i32> {
        let depth = self.view.depth_at(call.addr)?;
        let below = match call.kind {
            SiteKind::Call(_) => 8,
            SiteKind::TailJump { .. } => 0,
            SiteKind::Syscall { .. } => i64::from(RED_ZONE) + 8,
        };
        i32::try_from(depth.checked_add(below)?).ok()
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
            returns: match self.hides_nothing(call) {
                true => CallReturns::ToLanding,
                false => CallReturns::ToStub,
            },
            distance: self.distance(call),
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
    let code = FunctionCode::new(vec![part])?;
    // The last instruction may be cut off.
    let whole = code.instructions().filter(|i| !i.is_invalid());
    let len = whole.map(|i| i.len()).sum();
    let part = darc_disasm::CodePart {
        start: addr.0,
        bytes: code.bytes_at(addr.0, len)?.to_vec(),
    };
    let code = FunctionCode::new(vec![part])?;
    let code = Arc::new(code);
    Some(Function::new(
        code,
        Part::Entered,
        Landings::Left,
        &NoMemory,
    ))
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions};

    use super::*;

    #[test]
    fn what_moves_the_stack_is_known() {
        let moves = |bytes: &[u8]| {
            let mut decoder = Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE);
            moves_stack(&decoder.decode())
        };
        // sub rsp,0x18; and rsp,-16; mov rsp,rbp; xchg rsp,rax; leave
        for bytes in [
            &[0x48, 0x83, 0xec, 0x18][..],
            &[0x48, 0x83, 0xe4, 0xf0],
            &[0x48, 0x89, 0xec],
            &[0x48, 0x94],
            &[0xc9],
        ] {
            assert!(moves(bytes), "{bytes:x?}");
        }
        // push rax; pop rax; mov rbp,rsp; lea rax,[rsp+8]; mov rdi,rax
        for bytes in [
            &[0x50][..],
            &[0x58],
            &[0x48, 0x89, 0xe5],
            &[0x48, 0x8d, 0x44, 0x24, 0x08],
            &[0x48, 0x89, 0xc7],
        ] {
            assert!(!moves(bytes), "{bytes:x?}");
        }
    }
}
