//! Basic blocks of a function, and who branches into a range of its bytes.
//!
//! Overwriting several instructions is safe only when nothing jumps between them. [`Cfg`] therefore
//! knows the ways to arrive at an address other than from the instruction before it: direct branches,
//! recovered jump tables, jumps back from parts of the function that lie elsewhere, entrances that others
//! are known to use ([`FunctionCode::entrances`]: code of other functions, and unwinders, which go on at the landing pads
//! of exceptions), and addresses inside the function that its code takes. Where it cannot know (an indirect jump that was
//! not recovered, bytes that are no instruction, code outside that goes on for too long) it says so.

use std::ops::Range;

use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind};

use crate::detached::Explorer;
use crate::tables::{self, IndirectJump, JumpTable};
use crate::values::Orphans;
use crate::{FunctionCode, Memory, thunks};

/// A run of instructions that is entered only at its first and left only after its last one.
/// Calls do not end a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Address of the first instruction.
    pub start: u64,
    /// Address after the last instruction.
    pub end: u64,
    /// Positions in [`Cfg::blocks`] of the blocks that may run next inside the function.
    pub successors: Vec<usize>,
    /// Positions in [`Cfg::blocks`] of the blocks that may have run before.
    pub predecessors: Vec<usize>,
    /// Positions in [`Cfg::instructions`] of the block's instructions.
    pub instructions: Range<usize>,
}

/// Whether something branches strictly inside a range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchInto {
    /// Nothing does.
    None,
    /// The instruction at this address does.
    From(u64),
    /// It cannot be known.
    Unknown(UnknownBranch),
}

/// Why the branches of a function are not all known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum UnknownBranch {
    /// The indirect jump at this address may go anywhere in the function.
    #[error("the targets of the indirect jump at {0:#x} are not known")]
    IndirectJump(u64),
    /// The bytes at this address are no instruction.
    #[error("the bytes at {0:#x} are no instruction")]
    Undecodable(u64),
    /// The return at this address goes to where the function itself has written on top of the stack.
    #[error("where the return at {0:#x} goes, in place of an indirect jump, is not known")]
    Return(u64),
    /// The code at this address, to which the function jumps, is too much to be followed: it may be a part of the
    /// function.
    #[error("the code at {0:#x}, to which the function jumps, was not followed to its end")]
    Outside(u64),
}

/// A way to arrive at an address other than from the instruction before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Arrival {
    target: u64,
    from: u64,
}

/// The control flow of a function.
#[derive(Clone, Debug)]
pub struct Cfg {
    entry: u64,
    instructions: Vec<Instruction>,
    blocks: Vec<Block>,
    arrivals: Vec<Arrival>,
    jumps: Vec<(usize, IndirectJump)>,
    unknown: Vec<UnknownBranch>,
    outside: Explorer,
}

/// How often jump tables are looked for again with the blocks that the last round has found.
const ROUNDS: usize = 8;

impl Cfg {
    /// The control flow of `code`. Jump tables are read from `memory`.
    pub fn build(code: &FunctionCode, memory: &dyn Memory) -> Self {
        let mut instructions: Vec<_> = code.instructions().collect();
        instructions.sort_by_key(Instruction::ip);
        let jumps: Vec<_> = (0..instructions.len())
            .filter(|&i| {
                is_near_indirect_jump(&instructions[i])
                    || is_through_thunk(&instructions[i], code, memory)
            })
            .map(|i| (i, IndirectJump::Unknown))
            .collect();
        let mut cfg = Self {
            entry: code.entry(),
            instructions,
            blocks: Vec::new(),
            arrivals: Vec::new(),
            jumps,
            unknown: Vec::new(),
            outside: Explorer::default(),
        };
        cfg.connect(code, memory);
        // A table's address may come from a block that only another table leads to.
        for round in 0.. {
            let found = tables::recover(&cfg, code, memory, Orphans::Cases);
            if found == cfg.jumps {
                break;
            }
            cfg.jumps = found;
            if round == ROUNDS {
                for (_, jump) in &mut cfg.jumps {
                    *jump = IndirectJump::Unknown;
                }
            }
            cfg.connect(code, memory);
            if round == ROUNDS {
                break;
            }
        }
        cfg.doubt(code, memory);
        cfg
    }

    /// Gives up the tables that are others when what nothing leads to is entered with any values.
    fn doubt(&mut self, code: &FunctionCode, memory: &dyn Memory) {
        let entry = self.block_of(self.entry);
        let is_left = |block| Some(block) != entry && self.is_orphan(block);
        if !(0..self.blocks.len()).any(is_left) {
            return;
        }
        let doubted = tables::recover(self, code, memory, Orphans::Entered);
        if doubted == self.jumps {
            return;
        }
        for ((_, jump), (_, doubted)) in self.jumps.iter_mut().zip(doubted) {
            if *jump != doubted {
                *jump = IndirectJump::Unknown;
            }
        }
        self.connect(code, memory);
    }

    /// Address of the function's first instruction.
    pub fn entry(&self) -> u64 {
        self.entry
    }

    /// All instructions, by address. Those with [`Instruction::is_invalid`] set stand for bytes that
    /// are no instruction.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// All blocks, by address.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// The jump tables that were recovered.
    pub fn tables(&self) -> impl Iterator<Item = &JumpTable> {
        self.jumps.iter().filter_map(|(_, jump)| match jump {
            IndirectJump::Table(table) => Some(table),
            _ => None,
        })
    }

    /// The table of the indirect jump at `addr`, when it was recovered.
    pub fn table_of(&self, addr: u64) -> Option<&JumpTable> {
        let at = self.instruction_at(addr)?;
        match self.jump_at(at)? {
            IndirectJump::Table(table) => Some(table),
            _ => None,
        }
    }

    pub(crate) fn jump_at(&self, at: usize) -> Option<&IndirectJump> {
        let found = self.jumps.binary_search_by_key(&at, |(at, _)| *at);
        found.ok().map(|at| &self.jumps[at].1)
    }

    /// Position of the instruction that begins at `addr`.
    pub fn instruction_at(&self, addr: u64) -> Option<usize> {
        self.instructions
            .binary_search_by_key(&addr, Instruction::ip)
            .ok()
    }

    /// Position of the block that contains `addr`.
    pub fn block_of(&self, addr: u64) -> Option<usize> {
        let after = self.blocks.partition_point(|b| b.start <= addr);
        let at = after.checked_sub(1)?;
        (addr < self.blocks[at].end).then_some(at)
    }

    /// Whether something may arrive at `addr` other than from the instruction before it.
    pub fn is_arrival(&self, addr: u64) -> bool {
        addr == self.entry
            || self
                .arrivals_in(addr..addr.saturating_add(1))
                .next()
                .is_some()
    }

    /// Whether any branch, jump table or taken address leads strictly inside `range`.
    /// Unknown branches are taken to lead to any instruction, but not between the bytes of one.
    pub fn branches_into(&self, range: Range<u64>) -> BranchInto {
        let inside = range.start.saturating_add(1)..range.end;
        if let Some(arrival) = self.arrivals_in(inside.clone()).next() {
            return BranchInto::From(arrival.from);
        }
        let first = self.instructions.partition_point(|i| i.ip() < inside.start);
        let splits = self
            .instructions
            .get(first)
            .is_some_and(|i| inside.contains(&i.ip()));
        match self.unknown.first() {
            Some(&unknown) if splits => BranchInto::Unknown(unknown),
            _ => BranchInto::None,
        }
    }

    /// Whether the code at `addr`, to which the function jumps, is a part of the function that
    /// [`FunctionCode`] lacks: it jumps back into the middle of the function.
    pub fn is_missing_part(&self, addr: u64) -> bool {
        self.outside.is_part(addr)
    }

    /// Why branches of the function may be missing from the blocks' edges.
    pub fn unknown(&self) -> &[UnknownBranch] {
        &self.unknown
    }

    /// The indirect jumps, those by a thunk included, and what is known of them, by position of the instruction.
    pub(crate) fn jumps(&self) -> &[(usize, IndirectJump)] {
        &self.jumps
    }

    /// Whether no block leads to a block but for padding that none leads to, and it is more than padding.
    pub(crate) fn is_orphan(&self, block: usize) -> bool {
        let is_idle =
            |&from: &usize| self.is_padding(from) && self.blocks[from].predecessors.is_empty();
        !self.is_padding(block) && self.blocks[block].predecessors.iter().all(is_idle)
    }

    /// Whether something comes to a block's start that is no edge between blocks: the function's caller, code outside, what
    /// makes a jump to an address that is taken, an unwinder.
    pub(crate) fn is_entered(&self, block: usize) -> bool {
        let start = self.blocks[block].start;
        let is_edge = |arrival: &Arrival| {
            let from = self
                .block_of(arrival.from)
                .filter(|_| arrival.from != start);
            // They are in the order of the blocks.
            from.is_some_and(|from| self.blocks[block].predecessors.binary_search(&from).is_ok())
        };
        let mut arrivals = self.arrivals_in(start..start.saturating_add(1));
        start == self.entry || arrivals.any(|arrival| !is_edge(arrival))
    }

    fn is_padding(&self, block: usize) -> bool {
        let pads = |i: &Instruction| matches!(i.mnemonic(), Mnemonic::Nop | Mnemonic::Int3);
        let instructions = &self.instructions[self.blocks[block].instructions.clone()];
        instructions.iter().all(pads)
    }

    /// Whether there are blocks to which nothing leads that is known: perhaps the labels of computed jumps.
    pub(crate) fn has_labels(&self, code: &FunctionCode) -> bool {
        let is_known = |start: u64| {
            // That an indirect branch may come there does not say which.
            let mut arrivals = self.arrivals_in(start..start.saturating_add(1));
            start == self.entry
                || code.entrances().contains(&start)
                || arrivals.any(|arrival| arrival.from != start)
        };
        let mut blocks = 0..self.blocks.len();
        blocks.any(|block| self.is_orphan(block) && !is_known(self.blocks[block].start))
    }

    fn arrivals_in(&self, range: Range<u64>) -> impl Iterator<Item = &Arrival> {
        let first = self.arrivals.partition_point(|a| a.target < range.start);
        self.arrivals[first..]
            .iter()
            .take_while(move |a| a.target < range.end)
    }

    /// Sets blocks, arrivals and unknown branches from the instructions and the indirect jumps.
    fn connect(&mut self, code: &FunctionCode, memory: &dyn Memory) {
        let leaves = |target: &u64| !code.contains(*target);
        let direct = self.instructions.iter().filter_map(direct_target);
        let tables = self.tables().flat_map(|t| t.targets.iter().copied());
        let starts: Vec<_> = direct.chain(tables).filter(leaves).collect();
        for start in starts {
            self.outside.explore(code, memory, start);
        }
        self.outside.conclude();
        self.unknown = self.unknown_branches();
        self.arrivals = self.find_arrivals(code);
        self.blocks = self.split();
        for from in 0..self.blocks.len() {
            let mut successors = self.successors(from);
            successors.sort_unstable();
            successors.dedup();
            for &to in &successors {
                self.blocks[to].predecessors.push(from);
            }
            self.blocks[from].successors = successors;
        }
    }

    fn unknown_branches(&self) -> Vec<UnknownBranch> {
        let jumps = self.jumps.iter().filter_map(|(at, jump)| match jump {
            IndirectJump::Unknown => Some(UnknownBranch::IndirectJump(self.instructions[*at].ip())),
            IndirectJump::Table(_) | IndirectJump::Leaves => None,
        });
        let returns = self.instructions.iter().filter_map(|call| {
            let decode = |addr| Some(self.instructions[self.instruction_at(addr)?]);
            thunks::return_of(call, decode).map(UnknownBranch::Return)
        });
        let holes = self.instructions.iter().filter(|i| i.is_invalid());
        let outside = self.outside.exhausted.iter();
        jumps
            .chain(returns)
            .chain(holes.map(|i| UnknownBranch::Undecodable(i.ip())))
            .chain(outside.map(|&start| UnknownBranch::Outside(start)))
            .collect()
    }

    fn find_arrivals(&self, code: &FunctionCode) -> Vec<Arrival> {
        let named = self.instructions.iter().flat_map(|i| {
            addresses_named_by(i).map(|target| Arrival {
                target,
                from: i.ip(),
            })
        });
        let tables = self.tables().flat_map(|table| {
            table.targets.iter().map(|&target| Arrival {
                target,
                from: table.jump,
            })
        });
        // An indirect branch may come to each: after setjmp, to a landing pad, to a label.
        let marked = self
            .instructions
            .iter()
            .filter(|i| i.code() == Code::Endbr64);
        let marked = marked.map(|i| Arrival {
            target: i.ip(),
            from: i.ip(),
        });
        let outside = self.outside.found.iter().map(|jump| Arrival {
            target: jump.target,
            from: jump.from,
        });
        let others = code.entrances().iter().map(|&target| Arrival {
            target,
            from: target,
        });
        let mut arrivals: Vec<_> = named
            .chain(tables)
            .chain(outside)
            .chain(marked)
            .chain(others)
            .filter(|a| code.contains(a.target))
            .collect();
        arrivals.sort_unstable();
        arrivals.dedup();
        arrivals
    }

    /// Cuts the instructions into blocks without edges.
    fn split(&self) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::new();
        let mut open = false;
        for (at, instruction) in self.instructions.iter().enumerate() {
            let addr = instruction.ip();
            if instruction.is_invalid() {
                open = false;
                continue;
            }
            match blocks.last_mut() {
                Some(block) if open && block.end == addr && !self.is_arrival(addr) => {
                    block.end = instruction.next_ip();
                    block.instructions.end = at + 1;
                }
                _ => blocks.push(Block {
                    start: addr,
                    end: instruction.next_ip(),
                    successors: Vec::new(),
                    predecessors: Vec::new(),
                    instructions: at..at + 1,
                }),
            }
            open = !ends_block(instruction);
        }
        blocks
    }

    fn successors(&self, from: usize) -> Vec<usize> {
        let block = &self.blocks[from];
        let last = block.instructions.end - 1;
        let instruction = &self.instructions[last];
        let mut targets: Vec<u64> = Vec::new();
        targets.extend(direct_target(instruction));
        if falls_through(instruction) {
            targets.push(instruction.next_ip());
        }
        if let Some(IndirectJump::Table(table)) = self.jump_at(last) {
            targets.extend(&table.targets);
        }
        targets.iter().filter_map(|&t| self.block_of(t)).collect()
    }
}

/// The target of a direct near jump, conditional or not.
pub(crate) fn direct_target(instruction: &Instruction) -> Option<u64> {
    let jump = matches!(
        instruction.flow_control(),
        FlowControl::UnconditionalBranch
            | FlowControl::ConditionalBranch
            | FlowControl::XbeginXabortXend
    );
    (jump && has_near_target(instruction)).then(|| instruction.near_branch_target())
}

fn has_near_target(instruction: &Instruction) -> bool {
    matches!(
        instruction.op0_kind(),
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
    )
}

fn is_near_indirect_jump(instruction: &Instruction) -> bool {
    instruction.flow_control() == FlowControl::IndirectBranch && !instruction.is_jmp_far_indirect()
}

/// Whether it jumps to code outside that goes where a register says: perhaps back.
fn is_through_thunk(instruction: &Instruction, code: &FunctionCode, memory: &dyn Memory) -> bool {
    let target = direct_target(instruction).filter(|&target| !code.contains(target));
    target.is_some_and(|target| thunks::is_thunk(memory, target))
}

/// Whether the instruction after `instruction` may run next.
pub(crate) fn falls_through(instruction: &Instruction) -> bool {
    match instruction.flow_control() {
        FlowControl::Return
        | FlowControl::UnconditionalBranch
        | FlowControl::IndirectBranch
        | FlowControl::Exception => false,
        FlowControl::Interrupt => instruction.code() != Code::Int3,
        FlowControl::Next => instruction.code() != Code::Hlt,
        _ => !instruction.is_invalid(),
    }
}

fn ends_block(instruction: &Instruction) -> bool {
    !falls_through(instruction) || direct_target(instruction).is_some()
}

/// The code addresses that an instruction names: branch targets, and addresses that it takes, which
/// may be jumped to later.
fn addresses_named_by(instruction: &Instruction) -> impl Iterator<Item = u64> {
    let branch = has_near_target(instruction).then(|| instruction.near_branch_target());
    let taken = (instruction.code() == Code::Lea_r64_m && instruction.is_ip_rel_memory_operand())
        .then(|| instruction.ip_rel_memory_address());
    let immediate = (0..instruction.op_count()).find_map(|operand| {
        matches!(
            instruction.op_kind(operand),
            OpKind::Immediate32 | OpKind::Immediate64 | OpKind::Immediate32to64
        )
        .then(|| instruction.immediate(operand))
    });
    branch.into_iter().chain(taken).chain(immediate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CodePart, NoMemory};

    const BASE: u64 = 0x40_1000;

    fn cfg(bytes: &[u8]) -> Cfg {
        let part = CodePart {
            start: BASE,
            bytes: bytes.to_vec(),
        };
        Cfg::build(&FunctionCode::new(vec![part]).unwrap(), &NoMemory)
    }

    fn shape(cfg: &Cfg) -> Vec<(u64, u64, &[usize])> {
        let relative = |b: &Block| (b.start - BASE, b.end - BASE);
        cfg.blocks()
            .iter()
            .map(|b| (relative(b).0, relative(b).1, &b.successors[..]))
            .collect()
    }

    #[test]
    fn blocks_end_at_branches_and_begin_at_their_targets() {
        // 0: test %edi,%edi; 2: je 6; 4: nop; 5: nop; 6: call .+0x100; b: jne 4; d: ret
        let cfg = cfg(&[
            0x85, 0xff, 0x74, 2, 0x90, 0x90, 0xe8, 0, 1, 0, 0, 0x75, 0xf7, 0xc3,
        ]);
        assert_eq!(
            shape(&cfg),
            [
                (0, 4, &[1, 2][..]),
                (4, 6, &[2]),
                (6, 13, &[1, 3]),
                (13, 14, &[])
            ]
        );
        assert_eq!(cfg.blocks()[1].predecessors, [0, 2]);
        assert_eq!(cfg.block_of(BASE + 5), Some(1));
        assert_eq!(cfg.block_of(BASE + 14), None);
        assert_eq!(
            cfg.branches_into(BASE + 2..BASE + 7),
            BranchInto::From(BASE + 0xb)
        );
        assert_eq!(cfg.branches_into(BASE + 4..BASE + 6), BranchInto::None);
        assert_eq!(
            cfg.branches_into(BASE + 5..BASE + 7),
            BranchInto::From(BASE + 2)
        );
    }

    #[test]
    fn a_jump_over_a_prefix_goes_into_an_instruction() {
        // 0: je 3; 2: lock cmpxchg %ecx,(%rdx) (3 is the instruction without lock); 6: ret
        let cfg = cfg(&[0x74, 1, 0xf0, 0x0f, 0xb1, 0x0a, 0xc3]);
        assert_eq!(
            cfg.branches_into(BASE + 2..BASE + 7),
            BranchInto::From(BASE)
        );
        assert_eq!(shape(&cfg), [(0, 2, &[1][..]), (2, 7, &[])]);
    }

    #[test]
    fn taken_addresses_count_as_branches() {
        // 0: lea 1(%rip),%rax; 7: nop; 8: nop; 9: ret
        let cfg = cfg(&[0x48, 0x8d, 0x05, 1, 0, 0, 0, 0x90, 0x90, 0xc3]);
        assert_eq!(
            cfg.branches_into(BASE + 7..BASE + 10),
            BranchInto::From(BASE)
        );
        assert_eq!(cfg.branches_into(BASE..BASE + 8), BranchInto::None);
        // mov $0x401006,%eax; nop; nop; ret: an address in code that is not position-independent
        let cfg = self::cfg(&[0xb8, 6, 0x10, 0x40, 0, 0x90, 0x90, 0xc3]);
        assert_eq!(
            cfg.branches_into(BASE + 5..BASE + 8),
            BranchInto::From(BASE)
        );
    }

    #[test]
    fn unknown_jumps_and_bytes_make_every_boundary_suspect() {
        // 0: push %rbx; 1: jmp *(%rdi,%rax,8); 4: nop; 5: mov $1,%eax; a: ret
        let cfg = cfg(&[0x53, 0xff, 0x24, 0xc7, 0x90, 0xb8, 1, 0, 0, 0, 0xc3]);
        let unknown = BranchInto::Unknown(UnknownBranch::IndirectJump(BASE + 1));
        assert_eq!(cfg.branches_into(BASE + 4..BASE + 10), unknown);
        assert_eq!(cfg.branches_into(BASE + 5..BASE + 10), BranchInto::None); // one instruction
        let cfg = self::cfg(&[0x90, 0x90, 0xc3, 0x06]);
        let unknown = BranchInto::Unknown(UnknownBranch::Undecodable(BASE + 3));
        assert_eq!(cfg.branches_into(BASE..BASE + 3), unknown);
    }
}
