//! Sequences that every stub is made of. Pure: they append instructions to an assembler.

use iced_x86::BlockEncoderOptions;
use iced_x86::IcedError;
use iced_x86::code_asm::*;

use darc_record::{Field, Hz};

use crate::plan::Goroutines;

use super::flags::Flags;
use super::layout::{HASH, HASH_SHIFT, LIVE, STACKS, STACKS_SHIFT, block};

/// A result of assembling; failures are mistakes of this engine or addresses out of reach.
pub type Emitted<T> = Result<T, IcedError>;

/// What the stubs are told about their surroundings.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings {
    /// The process's id, as it sees it itself.
    pub pid: i32,
    /// Address of the control mapping.
    pub control: u64,
    /// Address of the ring mapping.
    pub rings: u64,
    /// Bytes of the ring mapping that each block has.
    pub ring_bytes: u64,
    /// Cycles that an empty measured call reads.
    pub inside: i32,
    /// Cycles that a measured call takes from its caller.
    pub outside: i32,
    /// Cycles that an empty f0 reads.
    pub inside_f0: i32,
    /// Cycles that an empty counted call reads, and that it takes from its caller.
    pub counted: (i32, i32),
    /// How calls can be delayed, if they can.
    pub delays: Option<Delaying>,
    /// Where, from the thread pointer, the C library keeps the thread's id.
    pub tid_offset: Option<u32>,
    /// Whether programs may ask where their thread pointer leads (`rdfsbase`).
    pub tells_pointer: bool,
    /// Where a goroutine's number is in its descriptor, where the threads run goroutines.
    pub goroutines: Option<Goroutines>,
    /// What is noted when an op of f0 begins and when it ends.
    pub field: Option<Field>,
}

/// What a thread does while its call is delayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delaying {
    /// It looks at the clock.
    Spinning,
    /// It sleeps, but for the last 60 µs, which it looks at the clock: the kernel wakes late, not early. In a delay that is so
    /// short itself it lets others run meanwhile.
    Sleeping(Nap),
}

impl Delaying {
    /// Sleeping, by a clock of this frequency.
    #[must_use]
    pub fn sleeping(clock: Hz) -> Delaying {
        /// The kernel rounds up by 50 µs, and takes some time to wake.
        const SLACK_PER_SECOND: u64 = 16_667;
        Delaying::Sleeping(Nap {
            scale: ((1_000_000_000_u128 << 32) / u128::from(clock.get().max(1))) as u64,
            slack: clock.get() / SLACK_PER_SECOND,
        })
    }
}

/// How a stub sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nap {
    /// Nanoseconds of a cycle, times 2^32.
    pub scale: u64,
    /// So many cycles before the end it is awake.
    pub slack: u64,
}

/// Machine code with the addresses of its labels.
pub struct Code(CodeAssemblerResult);

impl Code {
    /// Assembles for the address where the code will run.
    pub fn assemble(a: &mut CodeAssembler, at: u64) -> Emitted<Code> {
        a.assemble_options(at, BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS)
            .map(Code)
    }

    /// The bytes.
    pub fn bytes(self) -> Vec<u8> {
        self.0.inner.code_buffer
    }

    /// Where a label came to lie.
    pub fn address(&self, label: &CodeLabel) -> Emitted<u64> {
        self.0.label_ip(label)
    }
}

/// Bytes that [`save`] takes.
pub const SAVED: i32 = 48;

/// Where [`save`] puts the registers, from the stack pointer on; rax is above all, the flags below it.
const FRAME: [AsmRegister64; 4] = [rdi, rsi, rdx, rcx];
/// Where it puts the flags, or nothing.
pub const FLAGS: i32 = SAVED - 16;
/// Where it puts rax.
pub const RAX: i32 = SAVED - 8;

/// Saves what the stubs use: rax, rcx, rdx, rsi, rdi, and the flags where they matter. Only where the
/// red zone is free.
///
/// The flags are kept by `lahf` and `seto` because `pushfq` and `popfq` take tens of cycles.
pub fn save(a: &mut CodeAssembler, flags: Flags) -> Emitted<()> {
    a.lea(rsp, qword_ptr(rsp - SAVED))?;
    a.mov(qword_ptr(rsp + RAX), rax)?;
    if flags == Flags::Matter {
        a.lahf()?;
        a.seto(al)?;
        a.mov(qword_ptr(rsp + FLAGS), rax)?;
    }
    for (at, register) in (0..).step_by(8).zip(FRAME) {
        a.mov(qword_ptr(rsp + at), register)?;
    }
    Ok(())
}

/// Undoes [`save`].
pub fn restore(a: &mut CodeAssembler, flags: Flags) -> Emitted<()> {
    for (at, register) in (0..).step_by(8).zip(FRAME) {
        a.mov(register, qword_ptr(rsp + at))?;
    }
    if flags == Flags::Matter {
        a.mov(rax, qword_ptr(rsp + FLAGS))?;
        // Overflows exactly when seto had found the overflow flag set; sahf brings the others back.
        a.add(al, 0x7f)?;
        a.sahf()?;
    }
    a.mov(rax, qword_ptr(rsp + RAX))?;
    a.lea(rsp, qword_ptr(rsp + SAVED))
}

/// Reads the cycle counter into rax, when all that was read before has come; rdx is lost. Without the fence a function that waits for
/// memory ends before it has waited, if only a branch depends on that, and what comes next seems to have taken the time
/// (Intel SDM volume 2, RDTSC and LFENCE; AMD64 APM volume 2, 13.2.4; the kernel's `rdtsc_ordered`).
pub fn tsc(a: &mut CodeAssembler) -> Emitted<()> {
    a.lfence()?;
    a.rdtsc()?;
    a.shl(rdx, 32)?;
    a.or(rax, rdx)
}

/// Where a goroutine's descriptor has that of its thread (`runtime.g`), in all versions since Go 1.5.
pub const THREAD: i32 = 48;

/// rax becomes the kernel's number of the thread that this goroutine runs on, zero where that is not known.
pub fn thread(a: &mut CodeAssembler, around: &Surroundings) -> Emitted<()> {
    let known = around.goroutines.as_ref();
    let Some(number) = known.and_then(Goroutines::thread_id) else {
        return a.xor(eax, eax);
    };
    let mut unknown = a.create_label();
    a.mov(rax, qword_ptr(r14 + THREAD))?;
    a.test(rax, rax)?;
    a.je(unknown)?;
    a.mov(eax, dword_ptr(rax + number))?;
    a.set_label(&mut unknown)?;
    a.nop()
}

/// Finds the thread's block: rcx. At `miss` rax is the thread pointer; see [`hash`]. In a forked child it goes by `forked`,
/// which comes back to `live`; see [`has_pointer`].
pub fn acquire(
    a: &mut CodeAssembler,
    control: u64,
    forked: CodeLabel,
    live: &mut CodeLabel,
    miss: CodeLabel,
) -> Emitted<()> {
    a.mov(rdx, rsp)?;
    a.mov(rcx, control)?;
    a.cmp(dword_ptr(rcx + LIVE as i32), 0)?;
    a.je(forked)?;
    a.set_label(live)?;
    a.shr(rdx, STACKS_SHIFT)?;
    a.movzx(edx, dx)?;
    a.mov(edx, dword_ptr(rcx + rdx * 4 + STACKS as i32))?;
    a.mov(rax, qword_ptr(0).fs())?;
    a.add(rcx, rdx)?;
    // Where nothing is known this is the generation of the plan, which no thread pointer is as small as.
    a.cmp(field(block::THREAD), rax)?;
    a.jne(miss)
}

/// Makes for `without` in a child that was made without a thread pointer (CLONE_SETTLS in clone(2)), in which nothing is at it;
/// for `live` elsewhere. rax is lost.
///
/// To ask for the pointer takes as long as half of a measured call, so that only forked children are asked.
pub fn has_pointer(
    a: &mut CodeAssembler,
    tells_pointer: bool,
    without: CodeLabel,
    live: CodeLabel,
) -> Emitted<()> {
    if tells_pointer {
        a.rdfsbase(rax)?;
        a.test(rax, rax)?;
        a.je(without)?;
    }
    a.jmp(live)
}

/// The table offset of the thread pointer in rax: rdx.
pub fn hash(a: &mut CodeAssembler) -> Emitted<()> {
    a.imul_3(edx, eax, HASH)?;
    a.shr(edx, HASH_SHIFT)?;
    a.shl(edx, 4)
}

/// The end of the stack of the goroutine whose descriptor is in r14 (`stack.hi` in runtime.g, which begins with `stack`, in
/// all versions since Go 1.5).
pub fn stack_end() -> AsmMemoryOperand {
    qword_ptr(r14 + 8)
}

/// A field of the block that rcx points to.
pub fn field(offset: u64) -> AsmMemoryOperand {
    qword_ptr(rcx + offset as i32)
}

/// A 32-bit field of the block that rcx points to.
pub fn field32(offset: u64) -> AsmMemoryOperand {
    dword_ptr(rcx + offset as i32)
}

/// A field of the shadow entry that `rsi + from` points to.
pub fn shadow(from: i32, offset: u64) -> AsmMemoryOperand {
    qword_ptr(rsi + (from + offset as i32))
}

/// The offset of the top entry from the first free one.
pub const TOP: i32 = -(super::layout::entry::SIZE as i32);

/// Makes rsi the first free entry of the shadow stack.
pub fn top(a: &mut CodeAssembler) -> Emitted<()> {
    a.mov(rsi, field(block::TOP))
}
