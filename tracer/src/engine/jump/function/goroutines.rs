//! Where functions of Go's register-based calling convention can be diverted.
//!
//! The run-time may stop a goroutine between any two instructions of a function and keep their address, so that single
//! instructions are replaced, of which nobody is in the middle; and what faults must fault where it is, for the run-time looks
//! its address up to turn the fault into a panic.
//!
//! Source: Go's `src/cmd/compile/abi-internal.md`, `src/cmd/internal/obj/x86/obj6.go` (the stack check and the frame) and
//! `src/runtime/preempt.go`.

use darc_disasm::Gpr;
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};

use super::super::spans::JUMP;

/// An instruction to be replaced, by its position, and how far above the stack pointer the return address is before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spot {
    pub at: usize,
    pub depth: i32,
}

/// Where an f0 begins and ends.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Spots {
    /// Behind its stack check, if it has one: at the entry it would begin again when the stack has been moved.
    pub beginning: Option<Spot>,
    /// One before each `ret`.
    pub ends: Vec<Spot>,
}

/// Registers that probes lose, and the stack pointer.
pub const OF_PROBES: [Gpr; 3] = [Gpr::R12, Gpr::R13, Gpr::Rsp];

/// Bytes of code in which a stack check is, at a function's entry.
pub const CHECK: usize = 48;

/// `stackguard0` in `runtime.g`.
const GUARD: u64 = 16;

/// The number of instructions of the stack check that a function begins with.
///
/// Functions with one follow the convention: those written in assembly have none, or read their goroutine from elsewhere.
#[must_use]
pub fn stack_check(code: &[Instruction]) -> Option<usize> {
    let compares = |i: &Instruction, register| {
        i.code() == Code::Cmp_r64_rm64
            && i.op0_register() == register
            && i.memory_base() == Register::R14
            && i.memory_index() == Register::None
            && i.memory_displacement64() == GUARD
            && i.segment_prefix() == Register::None
    };
    let grows = |i: &Instruction| i.mnemonic() == Mnemonic::Jbe && is_near(i);
    let moved = |i: &Instruction| {
        i.code() == Code::Lea_r64_m
            && i.op0_register() == Register::R12
            && i.memory_base() == Register::RSP
            && i.memory_index() == Register::None
    };
    let is_r12 = |i: &Instruction| i.op_count() > 1 && i.op0_register() == Register::R12;
    let takes = |copy: &Instruction, less: &Instruction| {
        copy.mnemonic() == Mnemonic::Mov
            && copy.op1_register() == Register::RSP
            && less.mnemonic() == Mnemonic::Sub
            && is_r12(copy)
            && is_r12(less)
    };
    let wraps = |i: &Instruction| i.mnemonic() == Mnemonic::Jb && is_near(i);
    match code {
        [check, jump, ..] if compares(check, Register::RSP) && grows(jump) => Some(2),
        [lea, check, jump, ..] if moved(lea) && compares(check, Register::R12) && grows(jump) => {
            Some(3)
        }
        // A frame so large that the difference may be below zero.
        [copy, less, wrap, check, jump, ..]
            if takes(copy, less)
                && wraps(wrap)
                && compares(check, Register::R12)
                && grows(jump) =>
        {
            Some(5)
        }
        _ => None,
    }
}

/// As [`stack_check`], of the bytes at a function's entry.
#[must_use]
pub fn is_checked(bytes: &[u8; CHECK], entry: u64) -> bool {
    let decoder = Decoder::with_ip(64, bytes, entry, DecoderOptions::NONE);
    let code: Vec<Instruction> = decoder.into_iter().take(6).collect();
    stack_check(&code).is_some()
}

fn is_near(i: &Instruction) -> bool {
    i.op0_kind() == OpKind::NearBranch64
}

/// Why a function's calls must be left alone, if they must. Of one that is not known to be compiled (`is_compiled`) it is seen
/// by its stack check. Threads keep their goroutine at `kept`.
#[must_use]
pub fn strange(code: &[Instruction], is_compiled: bool, kept: i32) -> Option<&'static str> {
    if !is_compiled && stack_check(code).is_none() {
        return Some("it is written in assembly");
    }
    let writes = |i: &Instruction| {
        let changed = i.op_count() > 0
            && i.op0_kind() == OpKind::Register
            && i.op0_register().full_register() == Register::R14
            && !matches!(
                i.mnemonic(),
                Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push
            );
        changed
            || i.segment_prefix() == Register::FS
            || i.mnemonic() == Mnemonic::Xchg && uses_r14(i)
    };
    let mut rest = code;
    let mut is_strange = false;
    while let [first, behind @ ..] = rest {
        rest = match reload(rest, kept) {
            Some(reload) => &rest[reload..],
            None => {
                is_strange |= first.is_invalid() || writes(first);
                behind
            }
        };
    }
    match !is_strange {
        true => None,
        false => Some("it changes where its goroutine is found"),
    }
}

/// How many instructions, if any, code begins with that read the address of the goroutine's descriptor from where the run-time keeps
/// it for the thread: as behind a call by the older convention, which does not keep r14. Where the program may lie anywhere they are two.
fn reload(code: &[Instruction], kept: i32) -> Option<usize> {
    let kept = i64::from(kept) as u64;
    let is_r14 = |i: &Instruction| i.op_count() > 0 && i.op0_register() == Register::R14;
    let reads = |i: &Instruction, base, displacement| {
        i.code() == Code::Mov_r64_rm64
            && is_r14(i)
            && i.segment_prefix() == Register::FS
            && i.memory_base() == base
            && i.memory_index() == Register::None
            && i.memory_displacement64() == displacement
    };
    let says = |i: &Instruction| {
        i.code() == Code::Mov_rm64_imm32 && is_r14(i) && i.immediate32to64() as u64 == kept
    };
    match code {
        [read, ..] if reads(read, Register::None, kept) => Some(1),
        [at, read, ..] if says(at) && reads(read, Register::R14, 0) => Some(2),
        _ => None,
    }
}

/// Whether an instruction is the one that is behind each call by the older convention, before [`reload`]: zero for x15.
#[must_use]
pub fn is_reset(i: &Instruction) -> bool {
    i.code() == Code::Xorps_xmm_xmmm128
        && i.op0_register() == Register::XMM15
        && i.op_kind(1) == OpKind::Register
        && i.op1_register() == Register::XMM15
}

/// The position behind a call at which a function goes on as behind one by the older convention.
#[must_use]
pub fn follows_older_convention(code: &[Instruction], next: usize, kept: i32) -> bool {
    let behind = code.get(next..).unwrap_or_default();
    matches!(behind, [reset, rest @ ..] if is_reset(reset) && reload(rest, kept).is_some())
}

/// The position of the call by which the stack check has the stack grow, or lets another goroutine run.
#[must_use]
pub fn growth(code: &[Instruction]) -> Option<usize> {
    let jump = code.get(stack_check(code)?.checked_sub(1)?)?;
    let to = jump.near_branch_target();
    let at = code.binary_search_by_key(&to, Instruction::ip).ok()?;
    let spills = |i: &&Instruction| i.flow_control() == FlowControl::Next;
    let call = at + code[at..].iter().take_while(spills).count();
    let is_call = code.get(call)?.code() == Code::Call_rel32_64;
    is_call.then_some(call)
}

fn uses_r14(i: &Instruction) -> bool {
    (0..i.op_count()).any(|at| {
        i.op_kind(at) == OpKind::Register && i.op_register(at).full_register() == Register::R14
    })
}

/// Whether an instruction does the same elsewhere, and cannot fault: what it reads and writes is on the stack, in the
/// program's own data, or in registers.
#[must_use]
pub fn is_harmless(i: &Instruction) -> bool {
    let is_plain = |at: u32| match i.op_kind(at) {
        OpKind::Memory => {
            let base = i.memory_base();
            let on_stack = base == Register::RSP && i.memory_index() == Register::None;
            let touches_nothing = matches!(i.mnemonic(), Mnemonic::Lea | Mnemonic::Nop);
            let own = on_stack || i.is_ip_rel_memory_operand();
            (own || touches_nothing) && i.segment_prefix() == Register::None
        }
        OpKind::Register
        | OpKind::Immediate8
        | OpKind::Immediate16
        | OpKind::Immediate32
        | OpKind::Immediate64
        | OpKind::Immediate8to16
        | OpKind::Immediate8to32
        | OpKind::Immediate8to64
        | OpKind::Immediate32to64 => true,
        _ => false,
    };
    let divides = matches!(i.mnemonic(), Mnemonic::Div | Mnemonic::Idiv);
    !i.is_invalid()
        && i.flow_control() == FlowControl::Next
        && !divides
        && !i.is_privileged()
        && (0..i.op_count()).all(is_plain)
}

/// Whether an instruction leaves by a jump to somewhere that is known, whatever the flags.
#[must_use]
pub fn is_jump(i: &Instruction) -> bool {
    i.flow_control() == FlowControl::UnconditionalBranch && is_near(i)
}

/// How many bytes the stack pointer goes down by it, if it belongs to a frame's making.
fn makes_frame(i: &Instruction) -> Option<i32> {
    let is_rbp = |at: u32| i.op_kind(at) == OpKind::Register && i.op_register(at) == Register::RBP;
    let on_stack = i.memory_base() == Register::RSP && i.memory_index() == Register::None;
    match i.mnemonic() {
        Mnemonic::Push if is_rbp(0) => Some(8),
        Mnemonic::Sub | Mnemonic::Add => rises(i).filter(|&by| by < 0).and_then(i32::checked_neg),
        Mnemonic::Mov if is_rbp(0) && i.op1_register() == Register::RSP => Some(0),
        Mnemonic::Mov if i.op0_kind() == OpKind::Memory && on_stack && is_rbp(1) => Some(0),
        Mnemonic::Lea if is_rbp(0) && on_stack => Some(0),
        Mnemonic::Nop => Some(0),
        _ => None,
    }
}

/// How many bytes the stack pointer goes up by it, if it belongs to a frame's end.
fn unmakes_frame(i: &Instruction) -> Option<i32> {
    let is_rbp =
        i.op_count() > 0 && i.op0_kind() == OpKind::Register && i.op0_register() == Register::RBP;
    let on_stack = i.memory_base() == Register::RSP && i.memory_index() == Register::None;
    match i.mnemonic() {
        Mnemonic::Pop if is_rbp => Some(8),
        Mnemonic::Add | Mnemonic::Sub => rises(i).filter(|&by| by > 0),
        Mnemonic::Mov if is_rbp && i.op1_kind() == OpKind::Memory && on_stack => Some(0),
        Mnemonic::Nop => Some(0),
        _ => None,
    }
}

/// How many bytes the stack pointer goes up by an `add` or a `sub`. To add -128 is shorter than to subtract 128.
fn rises(i: &Instruction) -> Option<i32> {
    let immediate = match i.op1_kind() {
        OpKind::Immediate8to64 => i.immediate8to64(),
        OpKind::Immediate32to64 => i.immediate32to64(),
        _ => return None,
    };
    let by = i32::try_from(immediate).ok()?;
    match i.mnemonic() {
        _ if i.op0_register() != Register::RSP => None,
        Mnemonic::Add => Some(by),
        _ => by.checked_neg(),
    }
}

/// Where an f0 that is not [`strange`] begins and ends. `is_target` tells whether something jumps to an address.
///
/// # Errors
/// Why that cannot be noticed.
pub fn spots(
    code: &[Instruction],
    kept: i32,
    is_target: impl Fn(u64) -> bool,
) -> Result<Spots, &'static str> {
    let reloads = || (0..code.len()).any(|at| reload(&code[at..], kept).is_some());
    if stack_check(code).is_none() && reloads() {
        return Err("who calls it need not say which goroutine it is of");
    }
    let (beginning, frame) = begins(code, &is_target)?;
    let returns = code
        .iter()
        .enumerate()
        .filter(|(_, i)| i.flow_control() == FlowControl::Return);
    let mut ends = Vec::new();
    for (at, ret) in returns {
        if ret.code() != Code::Retnq || is_target(ret.ip()) {
            return Err("one of its returns is led to in an unusual way");
        }
        let end = epilogue(code, at, frame, &is_target);
        ends.push(end.ok_or("there is no room for a jump before one of its returns")?);
    }
    match ends.is_empty() {
        true => Err("it does not return"),
        false => Ok(Spots {
            beginning: Some(beginning),
            ends,
        }),
    }
}

/// Where a function that is not [`strange`] begins, and how large its frame is.
fn begins(
    code: &[Instruction],
    is_target: impl Fn(u64) -> bool,
) -> Result<(Spot, i32), &'static str> {
    // One without a stack check begins where its code does.
    let first = stack_check(code).unwrap_or_default();
    let mut depth = 0;
    let mut candidates = Vec::new();
    for (at, i) in code.iter().enumerate().skip(first) {
        let Some(grown) = makes_frame(i).filter(|_| !is_target(i.ip())) else {
            break;
        };
        candidates.push(Spot { at, depth });
        let Some(deeper) = depth.checked_add(grown) else {
            break;
        };
        depth = deeper;
    }
    let beginning =
        best(code, &candidates).ok_or("behind its stack check there is no room for a jump")?;
    Ok((beginning, depth))
}

/// Where a function whose ends do not matter begins.
///
/// # Errors
/// As [`spots`].
pub fn beginning(
    code: &[Instruction],
    is_target: impl Fn(u64) -> bool,
) -> Result<Spots, &'static str> {
    let (beginning, _) = begins(code, is_target)?;
    Ok(Spots {
        beginning: Some(beginning),
        ends: Vec::new(),
    })
}

/// Where to notice the end before the `ret` at a position.
fn epilogue(
    code: &[Instruction],
    ret: usize,
    frame: i32,
    is_target: impl Fn(u64) -> bool,
) -> Option<Spot> {
    let mut depth = 0;
    let mut candidates = Vec::new();
    let mut at = ret;
    while depth < frame || candidates.is_empty() {
        at = at.checked_sub(1)?;
        let i = &code[at];
        let grown = unmakes_frame(i).filter(|_| i.next_ip() == code[at + 1].ip())?;
        depth = i32::checked_add(depth, grown)?;
        candidates.push(Spot { at, depth });
        if is_target(i.ip()) {
            break;
        }
    }
    // What restores the frame pointer from the stack may come before what gives the frame back.
    let before = at.checked_sub(1).filter(|&before| {
        let restores = unmakes_frame(&code[before]) == Some(0);
        restores && code[before].next_ip() == code[at].ip() && !is_target(code[at].ip())
    });
    candidates.extend(before.map(|at| Spot { at, depth }));
    (depth == frame).then(|| best(code, &candidates))?
}

/// The one with most room: a whole jump, or else a punned one.
fn best(code: &[Instruction], candidates: &[Spot]) -> Option<Spot> {
    const LEAST: usize = 4;
    let harmless = candidates.iter().filter(|spot| is_harmless(&code[spot.at]));
    let room = |spot: &&Spot| code[spot.at].len().min(JUMP as usize);
    harmless
        .filter(|spot| code[spot.at].len() >= LEAST)
        .max_by_key(room)
        .copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(bytes: &[u8]) -> Vec<Instruction> {
        Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE)
            .into_iter()
            .collect()
    }

    const KEPT: i32 = -8;

    /// cmp 0x10(%r14),%rsp; jbe
    const CHECK: [u8; 6] = [0x49, 0x3b, 0x66, 0x10, 0x76, 0x20];

    #[test]
    fn an_f0_of_go_1_19_begins_and_ends_where_the_frame_pointer_is_kept() {
        // sub $0x28,%rsp; mov %rbp,0x20(%rsp); lea 0x20(%rsp),%rbp; mov 0x20(%rsp),%rbp; add $0x28,%rsp; ret
        let bytes = [
            &CHECK[..],
            &[0x48, 0x83, 0xec, 0x28, 0x48, 0x89, 0x6c, 0x24, 0x20],
            &[0x48, 0x8d, 0x6c, 0x24, 0x20],
            &[0x48, 0x8b, 0x6c, 0x24, 0x20, 0x48, 0x83, 0xc4, 0x28, 0xc3],
        ];
        let spots = spots(&code(&bytes.concat()), KEPT, |_| false).unwrap();
        assert!(matches!(
            spots.beginning,
            Some(Spot {
                at: 3 | 4,
                depth: 0x28
            })
        ));
        assert_eq!(spots.ends, [Spot { at: 5, depth: 0x28 }]);
    }

    #[test]
    fn an_f0_of_newer_versions_begins_and_ends_where_its_frame_does() {
        // push %rbp; mov %rsp,%rbp; sub $0x20,%rsp; nop; add $0x20,%rsp; pop %rbp; ret
        let bytes = [
            &CHECK[..],
            &[0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x20, 0x31, 0xc0],
            &[0x48, 0x83, 0xc4, 0x20, 0x5d, 0xc3],
        ];
        let spots = spots(&code(&bytes.concat()), KEPT, |_| false).unwrap();
        assert_eq!(spots.beginning, Some(Spot { at: 4, depth: 8 }));
        assert_eq!(spots.ends, [Spot { at: 6, depth: 0x28 }]);
    }

    #[test]
    fn a_large_frame_is_checked_otherwise() {
        // mov %rsp,%r12; sub $0x3e40,%r12; jb; cmp 0x10(%r14),%r12; jbe; push %rbp; sub $0x3ec0,%rsp; add; pop %rbp; ret
        let bytes = [
            &[0x49, 0x89, 0xe4, 0x49, 0x81, 0xec, 0x40, 0x3e, 0, 0][..],
            &[0x72, 0x70, 0x4d, 0x3b, 0x66, 0x10, 0x76, 0x70],
            &[0x55, 0x48, 0x81, 0xec, 0xc0, 0x3e, 0, 0],
            &[0x48, 0x81, 0xc4, 0xc0, 0x3e, 0, 0, 0x5d, 0xc3],
        ];
        let code = code(&bytes.concat());
        assert_eq!(stack_check(&code), Some(5));
        let spots = spots(&code, KEPT, |_| false).unwrap();
        assert_eq!(spots.beginning, Some(Spot { at: 6, depth: 8 }));
    }

    #[test]
    fn frames_that_no_stack_holds_are_survived() {
        // add $-0x80000000,%rsp, and sub $0x7fffffff,%rsp twice; each undone as often, and ret
        let lowest = [0x48, 0x81, 0xc4, 0, 0, 0, 0x80];
        let largest = [0x48, 0x81, 0xec, 0xff, 0xff, 0xff, 0x7f];
        let undone = [0x48, 0x81, 0xc4, 0xff, 0xff, 0xff, 0x7f];
        for made in [lowest, largest] {
            let bytes = [&CHECK[..], &made, &made, &undone, &undone, &[0xc3]];
            let _ = spots(&code(&bytes.concat()), KEPT, |_| false);
        }
    }

    #[test]
    fn a_frame_of_128_bytes_is_made_by_an_addition() {
        // add $-128,%rsp; mov %rbp,0x78(%rsp); nop; mov 0x78(%rsp),%rbp; sub $-128,%rsp; ret
        let bytes = [
            &CHECK[..],
            &[0x48, 0x83, 0xc4, 0x80, 0x48, 0x89, 0x6c, 0x24, 0x78],
            &[0x31, 0xc0, 0x48, 0x8b, 0x6c, 0x24, 0x78],
            &[0x48, 0x83, 0xec, 0x80, 0xc3],
        ];
        let spots = spots(&code(&bytes.concat()), KEPT, |_| false).unwrap();
        let expected = Spot { at: 3, depth: 128 };
        assert_eq!(spots.beginning, Some(expected));
        assert_eq!(spots.ends, [Spot { at: 5, depth: 128 }]);
    }

    #[test]
    fn a_return_may_be_filled_up() {
        // push %rbp; sub $0x20,%rsp; nop; add $0x20,%rsp; pop %rbp; nop; ret
        let bytes = [
            &CHECK[..],
            &[0x55, 0x48, 0x83, 0xec, 0x20, 0x31, 0xc0],
            &[0x48, 0x83, 0xc4, 0x20, 0x5d, 0x90, 0xc3],
        ];
        let spots = spots(&code(&bytes.concat()), KEPT, |_| false).unwrap();
        assert_eq!(spots.ends, [Spot { at: 5, depth: 0x28 }]);
    }

    #[test]
    fn what_is_no_such_function_is_refused() {
        // push %rbp; ret
        let bytes = code(&[0x55, 0xc3]);
        assert!(strange(&bytes, false, KEPT).is_some() && strange(&bytes, true, KEPT).is_none());
        assert!(spots(&bytes, KEPT, |_| false).is_err());
        // The check; mov %fs:-16,%r14; ret
        let abi = [0x64, 0x4c, 0x8b, 0x34, 0x25, 0xf0, 0xff, 0xff, 0xff, 0xc3];
        assert!(strange(&code(&[&CHECK[..], &abi].concat()), true, KEPT).is_some());
        // The check; ret: no frame
        assert!(spots(&code(&[&CHECK[..], &[0xc3]].concat()), KEPT, |_| false).is_err());
    }

    #[test]
    fn calls_that_are_made_otherwise_are_known() {
        // The check, to the end; ret; mov %rax,8(%rsp); call; mov 8(%rsp),%rax; jmp
        let bytes = [
            &[0x49, 0x3b, 0x66, 0x10, 0x76, 0x01, 0xc3][..],
            &[0x48, 0x89, 0x44, 0x24, 0x08, 0xe8, 0, 1, 0, 0],
            &[0x48, 0x8b, 0x44, 0x24, 0x08, 0xeb, 0xe2],
        ];
        let bytes = code(&bytes.concat());
        assert_eq!(growth(&bytes), Some(4));
        assert!(is_jump(&bytes[6]) && !is_jump(&bytes[1]));
        // The check; call; xorps %xmm15,%xmm15; mov %fs:-8,%r14; ret
        let older = [
            &CHECK[..],
            &[0xe8, 0, 1, 0, 0, 0x45, 0x0f, 0x57, 0xff],
            &[0x64, 0x4c, 0x8b, 0x34, 0x25, 0xf8, 0xff, 0xff, 0xff, 0xc3],
        ];
        let older = code(&older.concat());
        assert!(
            follows_older_convention(&older, 3, KEPT) && !follows_older_convention(&older, 4, KEPT)
        );
        assert_eq!(strange(&older, false, KEPT), None);
        assert_eq!(growth(&older), None);
    }

    #[test]
    fn where_the_goroutine_is_kept_is_read_as_the_program_does() {
        // The check; call; xorps %xmm15,%xmm15; mov $-24,%r14; mov %fs:(%r14),%r14; ret
        let older = [
            &CHECK[..],
            &[0xe8, 0, 1, 0, 0, 0x45, 0x0f, 0x57, 0xff],
            &[0x49, 0xc7, 0xc6, 0xe8, 0xff, 0xff, 0xff],
            &[0x64, 0x4d, 0x8b, 0x36, 0xc3],
        ];
        let older = code(&older.concat());
        assert!(follows_older_convention(&older, 3, -24));
        assert_eq!(strange(&older, true, -24), None);
        // Of another thread-local variable.
        assert!(!follows_older_convention(&older, 3, KEPT));
        assert!(strange(&older, true, KEPT).is_some());
        // The first of the two alone.
        let half = [&older[..5], &older[6..]].concat();
        assert!(strange(&half, true, -24).is_some());
    }

    #[test]
    fn what_may_fault_stays_where_it_is() {
        for (bytes, harmless) in [
            (&[0x48, 0x8b, 0x44, 0x24, 0x08][..], true), // mov 8(%rsp),%rax
            (&[0x48, 0x8b, 0x40, 0x08], false),          // mov 8(%rax),%rax
            (&[0x84, 0x00], false),                      // test %al,(%rax)
            (&[0x48, 0x8d, 0x40, 0x08], true),           // lea 8(%rax),%rax
            (&[0x0f, 0x1f, 0x40, 0x00], true),           // nopl 0(%rax)
            (&[0x48, 0xf7, 0xf9], false),                // idiv %rcx
            (&[0x83, 0x3d, 0, 1, 0, 0, 0], true),        // cmpl $0,0x100(%rip)
            (&[0x76, 0x10], false),                      // jbe
            (&[0xf3, 0x48, 0xab], false),                // rep stos
        ] {
            assert_eq!(is_harmless(&code(bytes)[0]), harmless, "{bytes:x?}");
        }
    }
}
