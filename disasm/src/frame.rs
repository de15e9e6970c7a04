//! How far the stack pointer is below where it was at the function's entry. A jump out of a function is a tail call only
//! when the function has given its stack frame back: only then the word on top of the stack is its return address.

use std::collections::BTreeSet;

use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};

use crate::Cfg;
use crate::tables::IndirectJump;

/// What calls that do not return hide of others shows when they are known. Beyond so many there the depth stays unknown.
const ROUNDS: usize = 4;

/// Stack pointer and frame pointer, as bytes below the stack pointer at entry; None: unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    rsp: Option<i64>,
    rbp: Option<i64>,
    /// Whether no way to it leads from a call to where an unwinder comes, too: the call may not return, and the frame be that of the call.
    is_followed: bool,
}

/// Depth of the stack frame before each instruction of a function.
#[derive(Debug)]
pub struct Frames {
    depths: Vec<Option<i64>>,
    /// Whether what is known leads from the entry to the instruction.
    proven: Vec<bool>,
    /// Where the entry leads to jumps that may be computed ones, other than at the entry's own depth.
    computed: BTreeSet<i64>,
}

impl Frames {
    /// Follows the stack pointer through the function.
    #[must_use]
    pub fn new(cfg: &Cfg) -> Self {
        let blocks = cfg.blocks();
        let mut search = Search::from_entry(cfg, BTreeSet::new());
        for _ in 0..ROUNDS {
            let more = search.endless_calls();
            if more.is_empty() {
                break;
            }
            let known = std::mem::take(&mut search.endless);
            search = Search::from_entry(cfg, known.union(&more).copied().collect());
        }
        let proven = search.before.iter().map(Option::is_some).collect();
        let computed = search.computed_jumps();
        // The labels of computed jumps, and the handlers of exceptions, which calls lead to.
        if let Some(frame) = search.common_frame(&computed) {
            for block in 0..blocks.len() {
                if search.is_unexplained(block) {
                    search.arrive(block, frame);
                }
            }
            search.follow();
        }
        let depth = |frame: &Option<Frame>| frame.and_then(|frame| frame.rsp);
        Self {
            depths: search.before.iter().map(depth).collect(),
            proven,
            computed,
        }
    }

    /// How many bytes below where it was at entry the stack pointer is before the instruction at position `at`, where that is
    /// known and always the same.
    #[must_use]
    pub fn depth_at(&self, at: usize) -> Option<i64> {
        self.depths.get(at).copied().flatten()
    }

    /// Whether it is known how control comes from the entry to the instruction at position `at`. The depth of others is a guess.
    #[must_use]
    pub fn is_proven(&self, at: usize) -> bool {
        self.proven.get(at) == Some(&true)
    }

    /// Whether jumps with a stack frame lead to the function's labels. Compilers have all labels follow upon all computed jumps,
    /// so that one depth is that of all: who gave the frame back leads to none.
    #[must_use]
    pub fn have_labels(&self) -> bool {
        !self.computed.is_empty()
    }

    /// Whether it is as deep at the instruction at position `at` as where a computed jump is.
    #[must_use]
    pub fn is_as_labels(&self, at: usize) -> bool {
        let depth = self.depth_at(at);
        depth.is_some_and(|depth| self.computed.contains(&depth))
    }

    /// Whether at the instruction at position `at` the stack pointer is where it was at entry.
    #[must_use]
    pub fn is_returned(&self, at: usize) -> bool {
        self.depth_at(at) == Some(0)
    }
}

/// The frames before instructions, as far as they are known yet.
struct Search<'a> {
    cfg: &'a Cfg,
    /// By block.
    at_start: Vec<Option<Frame>>,
    /// By instruction.
    before: Vec<Option<Frame>>,
    /// By block, of those that control leaves at their end.
    at_end: Vec<Option<Frame>>,
    /// Blocks of which the frame at the start is newly known.
    open: Vec<usize>,
    /// Blocks that end in a call that does not return.
    endless: BTreeSet<usize>,
}

impl<'a> Search<'a> {
    /// Follows all ways from the entry, but for those behind calls that do not return.
    fn from_entry(cfg: &'a Cfg, endless: BTreeSet<usize>) -> Self {
        let blocks = cfg.blocks().len();
        let mut search = Search {
            cfg,
            at_start: vec![None; blocks],
            before: vec![None; cfg.instructions().len()],
            at_end: vec![None; blocks],
            open: Vec::new(),
            endless,
        };
        if let Some(entry) = cfg.block_of(cfg.entry()) {
            let frame = Frame {
                rsp: Some(0),
                rbp: None,
                is_followed: true,
            };
            search.arrive(entry, frame);
        }
        search.follow();
        search
    }

    /// The blocks that end in a call behind which the stack would be deeper than where jumps lead to the same place. It has one depth there
    /// (x86-64 ABI, section 6.2: a CFA for each address), and who calls what does not return aligns the stack for that and leaves it so.
    fn endless_calls(&self) -> BTreeSet<usize> {
        let depth = |from: &usize| self.at_end[*from].and_then(|frame| frame.rsp);
        let mut endless = BTreeSet::new();
        for block in self.cfg.blocks() {
            let known = block.predecessors.iter().copied();
            let known = known.filter(|from| !self.endless.contains(from) && depth(from).is_some());
            let (called, jumped): (Vec<usize>, Vec<usize>) =
                known.partition(|&from| self.ends_in_call(from));
            let jumped = jumped.into_iter();
            let jumped = jumped.filter(|&from| self.at_end[from].is_some_and(|it| it.is_followed));
            let depths: BTreeSet<Option<i64>> = jumped.map(|from| depth(&from)).collect();
            if let (Some(&least), 1) = (depths.first(), depths.len()) {
                endless.extend(called.into_iter().filter(|from| depth(from) > least));
            }
        }
        endless
    }

    /// Whether a block ends in a call, or a system call, with nothing behind it that does anything.
    fn ends_in_call(&self, block: usize) -> bool {
        let instructions = &self.cfg.instructions()[self.cfg.blocks()[block].instructions.clone()];
        let mut last = instructions.iter().rev();
        let last = last.find(|instruction| instruction.mnemonic() != Mnemonic::Nop);
        last.is_some_and(|last| match last.flow_control() {
            // To what is behind it: it reads the program counter.
            FlowControl::Call => last.near_branch_target() != last.next_ip(),
            FlowControl::IndirectCall => true,
            _ => false,
        })
    }

    fn arrive(&mut self, block: usize, frame: Frame) {
        let merged = match self.at_start[block] {
            Some(known) => known.merge(frame),
            None => frame,
        };
        if self.at_start[block] != Some(merged) {
            self.at_start[block] = Some(merged);
            self.open.push(block);
        }
    }

    fn follow(&mut self) {
        let cfg = self.cfg;
        while let Some(block) = self.open.pop() {
            let Some(mut frame) = self.at_start[block] else {
                continue;
            };
            for at in cfg.blocks()[block].instructions.clone() {
                self.before[at] = Some(frame);
                frame = frame.after(&cfg.instructions()[at]);
            }
            self.at_end[block] = Some(frame);
            if self.endless.contains(&block) {
                continue;
            }
            let is_called = self.ends_in_call(block);
            for &next in &cfg.blocks()[block].successors {
                let is_followed = frame.is_followed && !(is_called && cfg.is_entered(next));
                self.arrive(
                    next,
                    Frame {
                        is_followed,
                        ..frame
                    },
                );
            }
        }
    }

    /// The frame in which jumps are made of which nobody knows where they lead; where there are none, that of calls. Where
    /// there are several of calls it is the smallest: arguments on the stack are no part of it. `None` where there are none.
    ///
    /// That another one is right does no harm to who asks for the depth of the entry: who gives that one back does not come there.
    fn common_frame(&self, computed: &BTreeSet<i64>) -> Option<Frame> {
        let leads_on = |at: usize| {
            let flow = self.cfg.instructions()[at].flow_control();
            matches!(flow, FlowControl::Call | FlowControl::IndirectCall) || self.is_computed(at)
        };
        let frames = self.before.iter().enumerate();
        let frames = frames.filter_map(|(at, frame)| frame.filter(|_| leads_on(at)));
        let frames: Vec<Frame> = frames.collect();
        let first = frames.first()?;
        // Without a frame it leaves the function, unless all of them are.
        let deep = frames.iter().filter_map(|frame| frame.rsp);
        let deep = deep.filter(|&depth| depth != 0).min();
        let flat = frames.iter().all(|frame| frame.rsp == Some(0));
        Some(Frame {
            rsp: match computed.len() {
                0 => deep.or(flat.then_some(0)),
                1 => computed.first().copied(),
                _ => None,
            },
            is_followed: false,
            rbp: first
                .rbp
                .filter(|_| frames.iter().all(|frame| frame.rbp == first.rbp)),
        })
    }

    /// Whether the instruction is an indirect jump of which no table is known.
    fn is_computed(&self, at: usize) -> bool {
        let jump = self.cfg.jump_at(at);
        jump.is_some_and(|jump| !matches!(jump, IndirectJump::Table(_)))
    }

    /// The depths at which the entry leads to such jumps, but for its own.
    fn computed_jumps(&self) -> BTreeSet<i64> {
        let jumps = self.cfg.jumps().iter();
        let jumps = jumps.filter(|&&(at, _)| self.is_computed(at));
        let depths = jumps.filter_map(|&(at, _)| self.before[at]?.rsp);
        depths.filter(|&depth| depth > 0).collect()
    }

    /// Whether nothing that is known leads to a block, and it is more than padding.
    fn is_unexplained(&self, block: usize) -> bool {
        self.at_start[block].is_none() && self.cfg.is_orphan(block)
    }
}

impl Frame {
    /// What two paths agree on.
    fn merge(self, other: Self) -> Self {
        Self {
            rsp: self.rsp.filter(|_| self.rsp == other.rsp),
            rbp: self.rbp.filter(|_| self.rbp == other.rbp),
            is_followed: self.is_followed && other.is_followed,
        }
    }

    fn after(self, instruction: &Instruction) -> Self {
        let lowered = |bytes: i64| self.rsp.and_then(|d| d.checked_add(bytes));
        let target = instruction.op0_register();
        let writes = instruction.op_count() > 0
            && instruction.op0_kind() == OpKind::Register
            && !matches!(instruction.mnemonic(), Mnemonic::Cmp | Mnemonic::Test);
        let constant = || match instruction.op1_kind() {
            OpKind::Immediate8to64 | OpKind::Immediate32to64 => {
                Some(instruction.immediate(1) as i64)
            }
            _ => None,
        };
        match instruction.mnemonic() {
            // To what is behind it: the idiom that reads the program counter, whose `pop` is to come.
            Mnemonic::Call if instruction.near_branch_target() == instruction.next_ip() => Self {
                rsp: lowered(8),
                ..self
            },
            Mnemonic::Call => self,
            Mnemonic::Xchg | Mnemonic::Xadd | Mnemonic::Cmpxchg => {
                let touches = |register| {
                    [instruction.op0_register(), instruction.op1_register()]
                        .iter()
                        .any(|it| it.full_register() == register)
                };
                Self {
                    rsp: self.rsp.filter(|_| !touches(Register::RSP)),
                    rbp: self.rbp.filter(|_| !touches(Register::RBP)),
                    ..self
                }
            }
            _ if writes && target != Register::RSP && target.full_register() == Register::RSP => {
                Self { rsp: None, ..self }
            }
            Mnemonic::Leave => Self {
                rsp: self.rbp.and_then(|d| d.checked_sub(8)),
                rbp: None,
                ..self
            },
            Mnemonic::Enter => Self {
                rsp: None,
                rbp: None,
                ..self
            },
            Mnemonic::Pop | Mnemonic::Push => Self {
                rsp: (target != Register::RSP
                    || !writes
                    || instruction.mnemonic() == Mnemonic::Push)
                    .then(|| lowered(-i64::from(instruction.stack_pointer_increment())))
                    .flatten(),
                rbp: self.rbp.filter(|_| {
                    target != Register::RBP || instruction.mnemonic() == Mnemonic::Push
                }),
                ..self
            },
            _ if writes && target == Register::RSP => Self {
                rsp: match instruction.mnemonic() {
                    Mnemonic::Sub => constant().and_then(lowered),
                    Mnemonic::Add => constant().and_then(i64::checked_neg).and_then(lowered),
                    Mnemonic::Lea if instruction.memory_index() == Register::None => {
                        let base = match instruction.memory_base() {
                            Register::RBP => self.rbp,
                            Register::RSP => self.rsp,
                            _ => None,
                        };
                        base.and_then(|d| d.checked_sub(instruction.memory_displacement64() as i64))
                    }
                    Mnemonic::Mov if instruction.op1_register() == Register::RBP => self.rbp,
                    _ => None,
                },
                ..self
            },
            _ if writes && target.full_register() == Register::RBP => Self {
                rbp: match instruction.mnemonic() {
                    Mnemonic::Mov if instruction.op1_register() == Register::RSP => self.rsp,
                    _ => None,
                },
                ..self
            },
            _ => Self {
                rsp: lowered(-i64::from(instruction.stack_pointer_increment())),
                ..self
            },
        }
    }
}
