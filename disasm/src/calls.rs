//! The call sites of a function: near calls, tail jumps and system calls.
//!
//! What is no call: `call` to the next instruction or to a `pop` of the same function (the idiom
//! that reads the program counter), jumps inside the function (loops, the entry included) and jumps
//! through a recovered jump table. Nor is what only a thread does that the function has just made.

use std::ops::RangeInclusive;

use iced_x86::{
    Code, ConditionCode, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register,
};

use crate::blocks::direct_target;
use crate::tables::IndirectJump;
use crate::{BranchInto, Cfg, Frames, FunctionCode, Memory, Operand};

/// Where a call or jump goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// To this run-time address.
    Direct(u64),
    /// To the value of this operand.
    Indirect(Operand),
}

/// The condition of a conditional jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Condition(ConditionCode);

impl Condition {
    /// The condition of `instruction`, when it is a conditional jump on flags.
    pub fn of(instruction: &Instruction) -> Option<Self> {
        (instruction.is_jcc_short_or_near()).then(|| Self(instruction.condition_code()))
    }

    /// Whether the jump is taken with these flags (Intel SDM volume 1, appendix B).
    pub fn holds(&self, rflags: u64) -> bool {
        let flag = |bit: u32| rflags >> bit & 1 == 1;
        let (carry, parity, zero, sign, overflow) = (flag(0), flag(2), flag(6), flag(7), flag(11));
        match self.0 {
            ConditionCode::None => true,
            ConditionCode::o => overflow,
            ConditionCode::no => !overflow,
            ConditionCode::b => carry,
            ConditionCode::ae => !carry,
            ConditionCode::e => zero,
            ConditionCode::ne => !zero,
            ConditionCode::be => carry || zero,
            ConditionCode::a => !carry && !zero,
            ConditionCode::s => sign,
            ConditionCode::ns => !sign,
            ConditionCode::p => parity,
            ConditionCode::np => !parity,
            ConditionCode::l => sign != overflow,
            ConditionCode::ge => sign == overflow,
            ConditionCode::le => zero || sign != overflow,
            ConditionCode::g => !zero && sign == overflow,
        }
    }

    /// The condition in iced-x86's terms.
    pub fn to_iced(self) -> ConditionCode {
        self.0
    }
}

/// What kind of call a site makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SiteKind {
    /// A `call` instruction.
    Call(Target),
    /// A jump out of the function, which has given its stack frame back: the callee returns to the function's caller. An
    /// indirect jump is one only when its target lies outside the function, which shows at run time.
    TailJump {
        /// Where it goes.
        target: Target,
        /// When it is taken; None: always.
        condition: Option<Condition>,
    },
    /// A `syscall` instruction.
    Syscall {
        /// The number, when the same block loads it as a constant.
        number: Option<u32>,
    },
}

/// An instruction that enters another function or the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallSite {
    /// Run-time address of the instruction, prefixes included.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u8,
    /// What it calls.
    pub kind: SiteKind,
}

impl CallSite {
    /// The address after the instruction: where the callee of a `call` returns to.
    pub fn next(&self) -> u64 {
        self.addr.wrapping_add(self.len.into())
    }

    /// Whether it is a `call`: neither a jump out of the function nor a system call.
    #[must_use]
    pub fn is_call(&self) -> bool {
        matches!(self.kind, SiteKind::Call(_))
    }
}

/// A place that might call, but that cannot be instrumented or understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SkippedSite {
    /// Run-time address.
    pub addr: u64,
    /// Why it is skipped.
    pub reason: SkipReason,
}

/// Why a call site is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum SkipReason {
    /// The sweep of the part ends here.
    #[error("bytes that are no instruction; the rest of this part was not searched")]
    Undecodable,
    /// A far call or jump, which loads a segment.
    #[error("far call or jump")]
    Far,
    /// A branch with 16- or 32-bit operand.
    #[error("call or jump with an operand that is not 64 bits wide")]
    OperandSize,
    /// A branch through memory with a 32-bit address.
    #[error("call or jump through memory with a 32-bit address")]
    AddressSize,
    /// `jrcxz` or `loop` that leaves the function.
    #[error("jump out of the function that depends on %rcx")]
    CounterJump,
    /// A jump out of the function, perhaps. Where the stack frame is still there it is none: the word on top of the stack is
    /// not a return address.
    #[error("jump that may lead out of the function, at an unknown depth of the stack")]
    UnknownFrame,
    /// A call into the middle of the function itself.
    #[error("call of a subroutine inside the same function")]
    LocalCall,
    /// A jump to a part of the function that was not known to be one.
    #[error("jump to a part of the function that lies elsewhere")]
    MissingPart,
    /// `int 0x80`, `sysenter`: no 64-bit system call.
    #[error("32-bit system call")]
    LegacySystemCall,
}

/// The call sites of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sites {
    /// In the order of the function's parts, by address within a part.
    pub sites: Vec<CallSite>,
    /// What was left out, in the same order.
    pub skipped: Vec<SkippedSite>,
}

/// Finds the call sites of `code`. Jump tables are read from `memory`.
pub fn call_sites(code: &FunctionCode, memory: &dyn Memory) -> Sites {
    call_sites_in(code, &Cfg::build(code, memory))
}

/// Finds the call sites of `code`, of which `cfg` is the control flow.
pub fn call_sites_in(code: &FunctionCode, cfg: &Cfg) -> Sites {
    let mut found = Sites::default();
    let frames = Frames::new(cfg);
    for instruction in code.instructions() {
        let addr = instruction.ip();
        let kind = classify(code, cfg, &instruction);
        match kind.and_then(|kind| in_its_frame(kind, cfg, &frames, addr)) {
            Ok(None) => {}
            Ok(Some(kind)) => found.sites.push(CallSite {
                addr,
                len: instruction.len() as u8,
                kind,
            }),
            Err(reason) => found.skipped.push(SkippedSite { addr, reason }),
        }
    }
    let begins = begins_of_threads(code, &found.sites);
    let is_begin = |site: &CallSite| begins.iter().any(|begin| begin.contains(&site.addr));
    found.sites.retain(|site| !is_begin(site));
    found
}

/// Where threads begin that the function makes, each up to the system call that ends it: as in the C library's `clone`, behind a system
/// call that makes one and the way back to the caller, and nothing returns from there. Such a thread runs on a stack of its own, and with
/// the thread pointer of the one that made it as long as it was given none (clone(2), `CLONE_VM` without `CLONE_SETTLS`, as by
/// posix_spawn(3)).
fn begins_of_threads(code: &FunctionCode, sites: &[CallSite]) -> Vec<RangeInclusive<u64>> {
    const CLONE: u32 = 56;
    const CLONE3: u32 = 435;
    const EXIT: u32 = 60;
    let number = |site: &CallSite| match site.kind {
        SiteKind::Syscall { number } => number,
        _ => None,
    };
    let returns: Vec<u64> = (code.instructions())
        .filter(|instruction| instruction.flow_control() == FlowControl::Return)
        .map(|instruction| instruction.ip())
        .collect();
    let makes = |site: &&CallSite| matches!(number(site), Some(CLONE | CLONE3));
    let begins = sites.iter().filter(makes).filter_map(|made| {
        let back = *returns.iter().find(|&&at| at > made.addr)?;
        let end = sites
            .iter()
            .find(|site| site.addr > back && number(site) == Some(EXIT))?;
        let is_left = returns.iter().any(|&at| at > back && at < end.addr);
        (!is_left).then_some(back..=end.addr)
    });
    begins.collect()
}

/// What a jump of this kind at `addr` is, for the stack frame that the function has there.
fn in_its_frame(
    kind: Option<SiteKind>,
    cfg: &Cfg,
    frames: &Frames,
    addr: u64,
) -> Result<Option<SiteKind>, SkipReason> {
    let Some(SiteKind::TailJump { target, .. }) = kind else {
        return Ok(kind);
    };
    let at = cfg.instruction_at(addr);
    // By a thunk: where to, nobody looks at run time.
    let thunk = at.and_then(|at| cfg.jump_at(at));
    let thunk = thunk.filter(|_| matches!(target, Target::Direct(_)));
    let is_indirect = thunk.is_some() || matches!(target, Target::Indirect(_));
    match (at.and_then(|at| frames.depth_at(at)), target) {
        (Some(0), _) if thunk == Some(&IndirectJump::Unknown) => Err(SkipReason::UnknownFrame),
        (Some(0), _) => Ok(kind),
        // A computed `goto`, if the depth is not a guess that may be wrong.
        (Some(depth), _) if is_indirect && depth > 0 && is_sure(at, frames) => Ok(None),
        (Some(_), Target::Indirect(_)) => Err(SkipReason::UnknownFrame),
        (Some(_), Target::Direct(_)) => Err(SkipReason::MissingPart),
        (None, _) => Err(SkipReason::UnknownFrame),
    }
}

/// Whether the depth of an instruction is known, or guessed to be that of the jumps to the function's labels.
fn is_sure(at: Option<usize>, frames: &Frames) -> bool {
    at.is_some_and(|at| frames.is_proven(at) || frames.is_as_labels(at))
}

/// What call `instruction` makes, if any.
fn classify(
    code: &FunctionCode,
    cfg: &Cfg,
    instruction: &Instruction,
) -> Result<Option<SiteKind>, SkipReason> {
    let leaves = |target: u64| !code.contains(target);
    if direct_target(instruction).is_some_and(|t| leaves(t) && cfg.is_missing_part(t)) {
        return Err(SkipReason::MissingPart);
    }
    if instruction.is_invalid() {
        return Err(SkipReason::Undecodable);
    }
    if enters_code(instruction) && has_data16_prefix(code, instruction) {
        return Err(SkipReason::OperandSize);
    }
    Ok(match instruction.flow_control() {
        FlowControl::Call => match instruction.code() {
            Code::Call_rel32_64 => {
                let target = instruction.near_branch_target();
                match call_inside(code, instruction, target) {
                    CallInside::No => Some(SiteKind::Call(Target::Direct(target))),
                    CallInside::ReadsProgramCounter => None,
                    CallInside::Subroutine => return Err(SkipReason::LocalCall),
                }
            }
            Code::Syscall => Some(SiteKind::Syscall {
                number: system_call_number(cfg, instruction.ip()),
            }),
            Code::Sysenter => return Err(SkipReason::LegacySystemCall),
            Code::Call_rel16 => return Err(SkipReason::OperandSize),
            _ if instruction.is_call_far() => return Err(SkipReason::Far),
            _ => None, // vmcall and the like do not enter code of this machine
        },
        FlowControl::IndirectCall if instruction.is_call_far_indirect() => {
            return Err(SkipReason::Far);
        }
        FlowControl::IndirectCall => Some(SiteKind::Call(Target::Indirect(Operand::of_branch(
            instruction,
        )?))),
        FlowControl::UnconditionalBranch if instruction.is_jmp_far() => {
            return Err(SkipReason::Far);
        }
        FlowControl::UnconditionalBranch => match direct_target(instruction) {
            Some(target) if leaves(target) => Some(SiteKind::TailJump {
                target: Target::Direct(target),
                condition: None,
            }),
            _ => None,
        },
        FlowControl::ConditionalBranch => match direct_target(instruction) {
            Some(target) if leaves(target) => match Condition::of(instruction) {
                None => return Err(SkipReason::CounterJump),
                condition => Some(SiteKind::TailJump {
                    target: Target::Direct(target),
                    condition,
                }),
            },
            _ => None,
        },
        FlowControl::IndirectBranch if instruction.is_jmp_far_indirect() => {
            return Err(SkipReason::Far);
        }
        FlowControl::IndirectBranch if cfg.table_of(instruction.ip()).is_some() => None,
        FlowControl::IndirectBranch => Some(SiteKind::TailJump {
            target: Target::Indirect(Operand::of_branch(instruction)?),
            condition: None,
        }),
        FlowControl::Interrupt
            if instruction.code() == Code::Int_imm8 && instruction.immediate8() == 0x80 =>
        {
            return Err(SkipReason::LegacySystemCall);
        }
        _ => None,
    })
}

/// Whether `instruction` is a near call or jump.
fn enters_code(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::Call
            | FlowControl::IndirectCall
            | FlowControl::UnconditionalBranch
            | FlowControl::ConditionalBranch
            | FlowControl::IndirectBranch
    ) && instruction.code() != Code::Syscall
}

/// Whether `instruction` has an operand-size prefix that no `REX.W` overrides. Intel's processors
/// ignore it on near branches, AMD's take it for a 16-bit operand: what such code does is unknown.
fn has_data16_prefix(code: &FunctionCode, instruction: &Instruction) -> bool {
    let bytes = code
        .bytes_at(instruction.ip(), instruction.len())
        .unwrap_or_default();
    let prefix = |b: &&u8| {
        matches!(
            **b,
            0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3
        )
    };
    let prefixes = bytes.iter().take_while(prefix).count();
    let wide = bytes.get(prefixes).is_some_and(|b| b & 0xf8 == 0x48);
    bytes[..prefixes].contains(&0x66) && !wide
}

/// A direct call seen from the function it lies in.
enum CallInside {
    /// It calls another function, or this one from its entry.
    No,
    /// It only pushes its own address.
    ReadsProgramCounter,
    /// It calls something in the middle of the function.
    Subroutine,
}

fn call_inside(code: &FunctionCode, call: &Instruction, target: u64) -> CallInside {
    let pops = || {
        code.instruction_at(target)
            .is_some_and(|i| i.mnemonic() == Mnemonic::Pop)
    };
    if target == call.next_ip() || target != code.entry() && code.contains(target) && pops() {
        CallInside::ReadsProgramCounter
    } else if target != code.entry() && code.contains(target) {
        CallInside::Subroutine
    } else {
        CallInside::No
    }
}

/// The number of the system call at `addr`, when its block loads a constant into `eax` before it and
/// nothing but that load leads to it.
fn system_call_number(cfg: &Cfg, addr: u64) -> Option<u32> {
    let load = number_load(cfg, addr)?;
    Some(match load.mnemonic() {
        Mnemonic::Xor => 0,
        _ => load.immediate(1) as u32,
    })
}

/// The instruction that loads the number of the system call at `addr`.
pub(crate) fn number_load(cfg: &Cfg, addr: u64) -> Option<&Instruction> {
    let block = &cfg.blocks()[cfg.block_of(addr)?];
    let before = block.instructions.start..cfg.instruction_at(addr)?;
    let mut info = InstructionInfoFactory::new();
    for load in cfg.instructions()[before].iter().rev() {
        if loads_constant(load) {
            let sole = cfg.branches_into(load.ip()..addr.checked_add(1)?) == BranchInto::None;
            return sole.then_some(load);
        }
        let writes_rax = info.info(load).used_registers().iter().any(|used| {
            used.register().full_register() == Register::RAX
                && !matches!(used.access(), OpAccess::Read | OpAccess::CondRead)
        });
        if writes_rax || load.flow_control() != FlowControl::Next {
            return None;
        }
    }
    None
}

/// `mov $constant,%eax`, `mov $constant,%rax` or `xor %eax,%eax`.
fn loads_constant(instruction: &Instruction) -> bool {
    match instruction.code() {
        Code::Mov_r32_imm32 | Code::Mov_r64_imm64 | Code::Mov_rm64_imm32 | Code::Mov_rm32_imm32 => {
            instruction.op0_kind() == OpKind::Register
                && instruction.op0_register().full_register() == Register::RAX
        }
        Code::Xor_r32_rm32 | Code::Xor_rm32_r32 => {
            instruction.op1_kind() == OpKind::Register
                && instruction.op0_kind() == OpKind::Register
                && instruction.op0_register() == Register::EAX
                && instruction.op1_register() == Register::EAX
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CodePart, Gpr, NoMemory};

    const BASE: u64 = 0x40_1000;

    fn sites(bytes: &[u8]) -> Sites {
        let part = CodePart {
            start: BASE,
            bytes: bytes.to_vec(),
        };
        call_sites(&FunctionCode::new(vec![part]).unwrap(), &NoMemory)
    }

    /// The kinds of the sites of code in which nothing is skipped.
    fn kinds(bytes: &[u8]) -> Vec<SiteKind> {
        let found = sites(bytes);
        assert_eq!(found.skipped, []);
        found.sites.iter().map(|site| site.kind).collect()
    }

    fn skipped(bytes: &[u8]) -> SkipReason {
        let found = sites(bytes);
        assert_eq!(found.sites, []);
        found.skipped[0].reason
    }

    fn call(target: u64) -> Vec<SiteKind> {
        vec![SiteKind::Call(Target::Direct(target))]
    }

    fn jump(target: u64) -> Vec<SiteKind> {
        vec![SiteKind::TailJump {
            target: Target::Direct(target),
            condition: None,
        }]
    }

    #[test]
    fn direct_calls() {
        let found = sites(&[0x90, 0xe8, 0, 1, 0, 0, 0xc3]); // nop; call .+0x105; ret
        assert_eq!(
            found.sites,
            [CallSite {
                addr: BASE + 1,
                len: 5,
                kind: SiteKind::Call(Target::Direct(BASE + 0x106)),
            }]
        );
        assert_eq!(found.sites[0].next(), BASE + 6);
        // data16 data16 rex.W call: __tls_get_addr in general-dynamic code
        let tls = [0x66, 0x66, 0x48, 0xe8, 0, 1, 0, 0];
        assert_eq!(kinds(&tls), call(BASE + 0x108));
        assert_eq!(kinds(&[0xf2, 0xe8, 0, 1, 0, 0]), call(BASE + 0x106)); // bnd call
        assert_eq!(kinds(&[0xe8, 0xfb, 0xff, 0xff, 0xff]), call(BASE)); // recursion
    }

    #[test]
    fn indirect_calls() {
        let rax = Target::Indirect(Operand::Register(Gpr::Rax));
        assert_eq!(kinds(&[0xff, 0xd0]), [SiteKind::Call(rax)]); // call *%rax
        assert_eq!(kinds(&[0x3e, 0xff, 0xd0]), [SiteKind::Call(rax)]); // notrack call *%rax
        assert_eq!(kinds(&[0xf2, 0xff, 0xd0]), [SiteKind::Call(rax)]); // bnd call *%rax
        assert_eq!(kinds(&[0x48, 0xff, 0xd0]), [SiteKind::Call(rax)]); // rex.W call *%rax
        assert!(matches!(
            kinds(&[0xff, 0x15, 0x10, 0, 0, 0])[..], // call *16(%rip)
            [SiteKind::Call(Target::Indirect(Operand::Memory(m)))]
                if m.displacement == BASE as i64 + 0x16
        ));
    }

    #[test]
    fn reading_the_program_counter_is_no_call() {
        assert_eq!(kinds(&[0xe8, 0, 0, 0, 0, 0x58, 0xc3]), []); // call .+5; pop %rax; ret
        // jmp 1f; 0: pop %rax; ret; 1: call 0b
        assert_eq!(
            kinds(&[0xeb, 2, 0x58, 0xc3, 0xe8, 0xf9, 0xff, 0xff, 0xff]),
            []
        );
        // call 1f; 0: pause; jmp 0b; 1: mov %rax,(%rsp); ret
        let retpoline = [
            0xe8, 4, 0, 0, 0, 0xf3, 0x90, 0xeb, 0xfc, 0x48, 0x89, 0x04, 0x24, 0xc3,
        ];
        assert_eq!(skipped(&retpoline), SkipReason::LocalCall);
    }

    #[test]
    fn jumps_out_of_the_function_are_tail_jumps() {
        assert_eq!(kinds(&[0xe9, 0, 1, 0, 0]), jump(BASE + 0x105));
        assert_eq!(kinds(&[0xeb, 0x10]), jump(BASE + 0x12));
        assert_eq!(kinds(&[0xf2, 0xe9, 0, 1, 0, 0]), jump(BASE + 0x106)); // bnd jmp
        let found = kinds(&[0x0f, 0x84, 0, 1, 0, 0]); // je
        let SiteKind::TailJump {
            target: Target::Direct(target),
            condition: Some(condition),
        } = found[0]
        else {
            panic!("{found:?}");
        };
        assert_eq!(target, BASE + 0x106);
        assert!(condition.holds(1 << 6) && !condition.holds(!(1 << 6)));
        assert_eq!(
            kinds(&[0xff, 0xe0]), // jmp *%rax
            [SiteKind::TailJump {
                target: Target::Indirect(Operand::Register(Gpr::Rax)),
                condition: None,
            }]
        );
    }

    #[test]
    fn jumps_inside_the_function_are_none() {
        assert_eq!(kinds(&[0x90, 0xeb, 0xfd]), []); // nop; jmp to the entry
        assert_eq!(kinds(&[0x74, 1, 0x90, 0xc3]), []); // je over a nop
        let hot = CodePart {
            start: BASE,
            bytes: vec![0xe9, 0xfb, 0, 0, 0], // jmp to the cold part
        };
        let cold = CodePart {
            start: BASE + 0x100,
            bytes: vec![0xe9, 0xfb, 0xfe, 0xff, 0xff], // jmp to the entry
        };
        let code = FunctionCode::new(vec![hot, cold]).unwrap();
        assert_eq!(call_sites(&code, &NoMemory), Sites::default());
    }

    #[test]
    fn what_cannot_be_a_site_has_a_reason() {
        assert_eq!(skipped(&[0xe3, 0x10]), SkipReason::CounterJump); // jrcxz
        assert_eq!(skipped(&[0xe2, 0x10]), SkipReason::CounterJump); // loop
        assert_eq!(skipped(&[0xff, 0x18]), SkipReason::Far); // lcall *(%rax)
        assert_eq!(skipped(&[0x48, 0xff, 0x28]), SkipReason::Far); // ljmp *(%rax)
        assert_eq!(skipped(&[0x66, 0xff, 0xd0]), SkipReason::OperandSize); // callw *%ax
        assert_eq!(skipped(&[0x66, 0xe8, 0, 0, 1, 0]), SkipReason::OperandSize);
        assert_eq!(skipped(&[0x67, 0xff, 0x10]), SkipReason::AddressSize); // call *(%eax)
        assert_eq!(skipped(&[0xcd, 0x80]), SkipReason::LegacySystemCall); // int $0x80
        assert_eq!(skipped(&[0x06]), SkipReason::Undecodable);
        assert_eq!(skipped(&[0xe8, 0, 0]), SkipReason::Undecodable); // cut off
    }

    fn number(bytes: &[u8]) -> Option<u32> {
        match kinds(bytes)[..] {
            [SiteKind::Syscall { number }] => number,
            ref other => panic!("{other:?}"),
        }
    }

    #[test]
    fn system_call_numbers() {
        assert_eq!(number(&[0xb8, 0xca, 0, 0, 0, 0x0f, 0x05]), Some(202)); // mov $202,%eax
        assert_eq!(
            number(&[0xb8, 1, 0, 0, 0, 0x49, 0x89, 0xca, 0x0f, 0x05]), // mov %rcx,%r10 between
            Some(1)
        );
        let rex = [0x48, 0xc7, 0xc0, 60, 0, 0, 0, 0x0f, 0x05]; // mov $60,%rax
        assert_eq!(number(&rex), Some(60));
        assert_eq!(number(&[0x31, 0xc0, 0x0f, 0x05]), Some(0)); // xor %eax,%eax
        assert_eq!(number(&[0x0f, 0x05]), None);
        assert_eq!(number(&[0x48, 0x89, 0xf8, 0x0f, 0x05]), None); // mov %rdi,%rax
        // mov $1,%eax; mov $2,%al
        assert_eq!(number(&[0xb8, 1, 0, 0, 0, 0xb0, 2, 0x0f, 0x05]), None);
        // mov $1,%eax; 0: syscall; je 0b: another way to the system call
        assert_eq!(number(&[0xb8, 1, 0, 0, 0, 0x0f, 0x05, 0x74, 0xfc]), None);
    }

    #[test]
    fn what_only_a_new_thread_does_is_no_call() {
        let call = [0xff, 0xd0]; // call *%rax
        let clone = [0xb8, 0xb3, 1, 0, 0, 0x0f, 0x05]; // mov $435,%eax; syscall
        let exit = [0xb8, 60, 0, 0, 0, 0x0f, 0x05]; // mov $60,%eax; syscall
        let ret = [0xc3];
        let count = |parts: &[&[u8]]| sites(&parts.concat()).sites.len();
        // As in the C library.
        assert_eq!(count(&[&call, &clone, &ret, &call, &exit]), 2);
        // What comes behind the end, before the way back, or returns may be its caller's.
        assert_eq!(count(&[&clone, &ret, &call, &exit, &call, &ret]), 2);
        assert_eq!(count(&[&clone, &call, &ret, &call, &exit]), 2);
        assert_eq!(count(&[&clone, &ret, &call, &ret, &exit]), 3);
        assert_eq!(count(&[&clone, &call, &exit, &ret]), 3);
        assert_eq!(count(&[&ret, &call, &exit]), 2);
    }

    #[test]
    fn conditions_follow_the_flags() {
        let condition = |opcode| {
            let code = [0x0f, opcode, 0, 1, 0, 0];
            match sites(&code).sites[0].kind {
                SiteKind::TailJump { condition, .. } => condition.unwrap(),
                other => panic!("{other:?}"),
            }
        };
        let (carry, parity, zero, sign, overflow) = (1, 4, 0x40, 0x80, 0x800);
        // Opcodes 80 to 8e, even: the condition; the odd one beside it is its opposite.
        let taken: [(u8, &dyn Fn(u64) -> bool); 8] = [
            (0x80, &|f| f & overflow != 0),
            (0x82, &|f| f & carry != 0),
            (0x84, &|f| f & zero != 0),
            (0x86, &|f| f & (carry | zero) != 0),
            (0x88, &|f| f & sign != 0),
            (0x8a, &|f| f & parity != 0),
            (0x8c, &|f| (f & sign != 0) != (f & overflow != 0)),
            (0x8e, &|f| {
                f & zero != 0 || (f & sign != 0) != (f & overflow != 0)
            }),
        ];
        for (opcode, expected) in taken {
            for flags in (0..0x1000).filter(|f| f & !(carry | parity | zero | sign | overflow) == 0)
            {
                assert_eq!(condition(opcode).holds(flags), expected(flags));
                assert_eq!(condition(opcode + 1).holds(flags), !expected(flags));
            }
        }
    }
}
