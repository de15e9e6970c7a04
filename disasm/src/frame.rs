//! How far the stack pointer is below where it was at the function's entry. A jump through a
//! register is a tail call only when the function has given its stack frame back.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use crate::Cfg;

/// Stack pointer and frame pointer, as bytes below the stack pointer at entry; None: unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    rsp: Option<i64>,
    rbp: Option<i64>,
}

/// Depth of the stack frame before each instruction of a function.
#[derive(Debug)]
pub struct Frames {
    depths: Vec<Option<i64>>,
}

impl Frames {
    /// Follows the stack pointer through the function.
    #[must_use]
    pub fn new(cfg: &Cfg) -> Self {
        let blocks = cfg.blocks();
        let mut at_start: Vec<Option<Frame>> = vec![None; blocks.len()];
        let mut open = Vec::new();
        if let Some(entry) = cfg.block_of(cfg.entry()) {
            at_start[entry] = Some(Frame {
                rsp: Some(0),
                rbp: None,
            });
            open.push(entry);
        }
        let mut depths = vec![None; cfg.instructions().len()];
        while let Some(block) = open.pop() {
            let Some(mut frame) = at_start[block] else {
                continue;
            };
            for at in blocks[block].instructions.clone() {
                depths[at] = frame.rsp;
                frame = frame.after(&cfg.instructions()[at]);
            }
            for &next in &blocks[block].successors {
                let merged = match at_start[next] {
                    Some(known) => known.merge(frame),
                    None => frame,
                };
                if at_start[next] != Some(merged) {
                    at_start[next] = Some(merged);
                    open.push(next);
                }
            }
        }
        Self { depths }
    }

    /// How many bytes below where it was at entry the stack pointer is before the instruction at position `at`, where that is
    /// known and always the same.
    #[must_use]
    pub fn depth_at(&self, at: usize) -> Option<i64> {
        self.depths.get(at).copied().flatten()
    }

    /// Whether at the instruction at position `at` the stack pointer is where it was at entry.
    #[must_use]
    pub fn is_returned(&self, at: usize) -> bool {
        self.depth_at(at) == Some(0)
    }
}

impl Frame {
    /// What two paths agree on.
    fn merge(self, other: Self) -> Self {
        Self {
            rsp: self.rsp.filter(|_| self.rsp == other.rsp),
            rbp: self.rbp.filter(|_| self.rbp == other.rbp),
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
            Mnemonic::Call => self,
            Mnemonic::Leave => Self {
                rsp: self.rbp.and_then(|d| d.checked_sub(8)),
                rbp: None,
            },
            Mnemonic::Enter => Self {
                rsp: None,
                rbp: None,
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
