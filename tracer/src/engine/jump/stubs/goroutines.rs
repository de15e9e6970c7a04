//! The same stubs for programs whose threads run goroutines (Go's register-based calling convention, since 1.17).
//!
//! A goroutine's stack is as small as its functions need it, moves, and is read by the run-time, which must find nothing of
//! ours there. So these stubs use none: they run on a stack in the goroutine's block, found by the goroutine's descriptor in
//! r14, and keep everything but r12, r13 and the flags, which nobody expects to keep at any of these places (Go's
//! `src/cmd/compile/abi-internal.md`). Frames are told apart by their distance from the end of the stack, which stays the same
//! when it moves. A goroutine cannot be preempted in a stub: the run-time does so only in code that it knows.

use darc_disasm::Operand;
use iced_x86::Instruction;
use iced_x86::code_asm::*;

use crate::engine::jump::asm::{
    Emitted, FLAGS, Surroundings, THREAD, TOP, field, field32, hash, restore, save, shadow,
    stack_end, top, tsc,
};
use crate::engine::jump::flags::Flags;
use crate::engine::jump::layout::{
    BLOCKS, DESCRIPTORS, GOROUTINES, HASH, HASH_SHIFT, HEADER, LIVE, NO_THREAD, PROBES, TABLE,
    TABLE_BYTES, TABLE_DELETED, block, entry, header, place, record, ring,
};
use crate::engine::jump::runtime::{Runtime, nested};
use crate::plan::Goroutines;

use super::builder::{Builder, PlaceData, Returns};
use super::entries::begin_op;
use super::later::Later;
use super::sites::{ReturnAddress, register, site_place};
use super::{Callee, F0, Landing, Region, Site, Stub};

/// r12 becomes the goroutine's block, or control goes to `unknown`. r13 and the flags are lost.
fn find(a: &mut CodeAssembler, control: u64, unknown: CodeLabel) -> Emitted<()> {
    find_of(a, (r14, r14d), control, unknown)
}

/// As [`find`], of the goroutine whose descriptor is in a register.
fn find_of(
    a: &mut CodeAssembler,
    descriptor: (AsmRegister64, AsmRegister32),
    control: u64,
    unknown: CodeLabel,
) -> Emitted<()> {
    find_entry(a, descriptor, control, unknown)?;
    a.mov(r12, qword_ptr(r12 + 8))
}

/// r12 becomes the address of the entry that leads to the goroutine's block.
///
/// One of another goroutine may come or go meanwhile: entries are taken back by a key that is no descriptor, so that none
/// that is behind it gets lost. No descriptor (zero) is found nowhere: threads that C code has made have none before they are the
/// run-time's, and once they are not any more.
fn find_entry(
    a: &mut CodeAssembler,
    (descriptor, half): (AsmRegister64, AsmRegister32),
    control: u64,
    unknown: CodeLabel,
) -> Emitted<()> {
    let [mut again, mut found] = std::array::from_fn(|_| a.create_label());
    a.mov(r12, control + TABLE)?;
    a.imul_3(r13d, half, HASH)?;
    a.shr(r13d, HASH_SHIFT)?;
    a.shl(r13d, 4)?;
    a.add(r12, r13)?;
    a.mov(r13d, PROBES)?;
    a.set_label(&mut again)?;
    a.cmp(qword_ptr(r12), 0)?;
    a.je(unknown)?;
    a.cmp(qword_ptr(r12), descriptor)?;
    a.je(found)?;
    a.add(r12, 16)?;
    a.dec(r13d)?;
    a.jne(again)?;
    a.jmp(unknown)?;
    a.set_label(&mut found)?;
    a.nop()
}

// A place for a new goroutine is found near by: most entries are free.
const _: () = assert!((GOROUTINES as u64) * 64 <= TABLE_BYTES);

/// From here on the stub has the block's stack, and all registers are kept: rcx is the block, rsi its first free entry.
fn begin(a: &mut CodeAssembler) -> Emitted<()> {
    a.mov(qword_ptr(r12 + block::STACK_POINTER as i32), rsp)?;
    a.lea(rsp, qword_ptr(r12 + block::PRIVATE_STACK as i32))?;
    save(a, Flags::Overwritten)?;
    a.mov(rcx, r12)?;
    top(a)
}

/// Undoes [`begin`].
fn end(a: &mut CodeAssembler) -> Emitted<()> {
    restore(a, Flags::Overwritten)?;
    a.mov(rsp, qword_ptr(r12 + block::STACK_POINTER as i32))
}

/// The slot of a return address that is `above` the stack pointer: how far it is from the end of the stack, which is
/// negative, so that slots compare as addresses do.
fn slot(a: &mut CodeAssembler, register: AsmRegister64, above: i32) -> Emitted<()> {
    a.mov(register, field(block::STACK_POINTER))?;
    a.sub(register, stack_end())?;
    a.lea(register, qword_ptr(register + above))
}

/// Emits the stub of f0's beginning, behind its stack check; its return address is `depth` bytes above the stack pointer.
pub fn f0(
    at: u64,
    region: &Region,
    f0: F0<'_>,
    depth: i32,
    around: &Surroundings,
    runtime: &Runtime,
) -> Emitted<Stub> {
    let mut b = Builder::new(region.start(), around, runtime)?;
    let [mut start, mut unknown, mut known, mut pass, mut out] = std::array::from_fn(|_| b.label());
    let [mut renew, mut same, mut busy, mut begin_label] = std::array::from_fn(|_| b.label());
    let of_kind = |kind| PlaceData {
        return_to: 0,
        kind,
        function: 0,
        local: 0,
        above: 0,
    };
    let ignored = b.place(of_kind(place::IGNORED));
    let op = b.place(of_kind(f0.ops.tree.kind()));
    b.a.set_label(&mut start)?;
    find(&mut b.a, around.control, unknown)?;
    begin(&mut b.a)?;
    b.a.set_label(&mut known)?;
    let number = around
        .goroutines
        .map_or(0, |Goroutines { number, .. }| number);
    b.a.mov(rax, qword_ptr(r14 + number))?;
    b.a.cmp(rax, field(block::GOROUTINE))?;
    b.a.jne(renew)?;
    b.a.set_label(&mut same)?;
    slot(&mut b.a, rdi, depth)?;
    b.a.cmp(rsi, field(block::BASE))?;
    b.a.jne(busy)?;
    b.a.set_label(&mut begin_label)?;
    begin_op(&mut b, f0.ops, f0.root, pass)?;
    b.enter(op, Returns::ToPlace)?;
    // By which it is seen later whether the frame is still there.
    b.a.mov(rax, stack_end())?;
    b.a.mov(rax, qword_ptr(rdi + rax))?;
    b.a.mov(shadow(TOP, entry::RETURN_TO), rax)?;
    b.start()?;
    b.a.set_label(&mut pass)?;
    end(&mut b.a)?;
    b.a.set_label(&mut out)?;
    b.a.nop()?;
    b.region(region)?;
    // Another goroutine has the descriptor: what is awaited is of one that has ended.
    b.a.set_label(&mut renew)?;
    b.a.mov(field(block::GOROUTINE), rax)?;
    b.a.call(runtime.renew)?;
    b.a.jne(pass)?;
    top(&mut b.a)?;
    b.a.jmp(same)?;
    // Entries are awaited already.
    b.a.set_label(&mut busy)?;
    b.a.call(runtime.nested)?;
    b.a.cmp(eax, nested::OP)?;
    b.a.je(begin_label)?;
    b.a.jb(pass)?;
    b.a.mov(rdx, field(block::CURRENT))?;
    b.a.mov(rax, around.control + DESCRIPTORS)?;
    b.enter(ignored, Returns::ToPlace)?;
    b.a.jmp(pass)?;
    b.a.set_label(&mut unknown)?;
    adopt(&mut b, known, pass, out)?;
    b.finish(at, start)
}

/// Gives the goroutine a block and goes on at `known`, as behind [`begin`]; without one makes for `out`, or for `pass` with
/// a block that is lost.
fn adopt(b: &mut Builder<'_>, known: CodeLabel, pass: CodeLabel, out: CodeLabel) -> Emitted<()> {
    let (control, rings) = (b.around.control, b.around.rings);
    let adopt = b.runtime.adopt;
    let goroutines = b.around.goroutines;
    let [mut full, mut again, mut next, mut taken] = std::array::from_fn(|_| b.label());
    let a = &mut b.a;
    if let Some(Goroutines { number, .. }) = goroutines.filter(|it| it.calls_c) {
        // A thread without a descriptor, and one on its own stack or that of its signal handlers, whose goroutines have no number: where
        // that of a thread ends that C code has made changes from call to call.
        a.test(r14, r14)?;
        a.je(out)?;
        a.cmp(qword_ptr(r14 + number), 0)?;
        a.je(out)?;
    }
    // A forked child registers nobody: the ring is not its own.
    a.mov(r12, control + LIVE)?;
    a.cmp(dword_ptr(r12), 0)?;
    a.je(out)?;
    // First one that a goroutine has left: whoever clears its bit has it.
    let last = header::LEFT_BYTES as i32 - 1;
    a.mov(r12, control + HEADER + header::LEFT)?;
    a.set_label(&mut again)?;
    a.bsf(r13, qword_ptr(r12))?;
    a.je(next)?;
    a.lock().btr(qword_ptr(r12), r13)?;
    a.jae(again)?;
    a.and(r12d, last)?;
    a.shl(r12d, 3)?;
    a.add(r13d, r12d)?;
    a.jmp(taken)?;
    a.set_label(&mut next)?;
    a.add(r12, 8)?;
    a.test(r12d, last)?;
    a.jne(again)?;
    a.mov(r12, control + HEADER)?;
    a.mov(r13d, 1)?;
    a.lock()
        .xadd(dword_ptr(r12 + header::NEXT_BLOCK as i32), r13d)?;
    a.cmp(r13d, dword_ptr(r12 + header::BLOCKS as i32))?;
    a.jae(full)?;
    a.set_label(&mut taken)?;
    a.imul_3(r13, r13, block::SIZE as i32)?;
    a.mov(r12, control + BLOCKS)?;
    a.add(r12, r13)?;
    begin(a)?;
    a.mov(rax, r13)?;
    a.xor(edx, edx)?;
    a.mov(edi, block::SIZE as i32)?;
    a.div(rdi)?;
    a.mov(r13, rax)?;
    a.mov(rax, r14)?;
    hash(a)?;
    a.call(adopt)?;
    a.test(rcx, rcx)?;
    a.je(pass)?;
    top(a)?;
    a.jmp(known)?;
    a.set_label(&mut full)?;
    a.lock().dec(dword_ptr(r12 + header::NEXT_BLOCK as i32))?;
    a.mov(r12, rings)?;
    a.lock().inc(qword_ptr(r12 + ring::UNREGISTERED as i32))?;
    a.jmp(out)
}

/// Emits the stub of the function by which goroutines change their status: (rax descriptor, ebx old status, ecx new status).
/// When one stops and is ready again is kept in its block, and when it runs again in an op that is written to its ring. One
/// that ends leaves its block to others: from here on it runs nothing of its own, and whoever gets its descriptor is known to nobody.
///
/// Its return address is `depth` bytes above the stack pointer. It is where no argument is in another register, and has what else there is but rbp, r14 and r15. A goroutine's block is
/// nobody else's meanwhile: one that stops or goes on is the thread's own that changes its status, and one that waits is his who
/// lets it go on.
pub fn statuses(
    at: u64,
    region: &Region,
    depth: i32,
    around: &Surroundings,
    runtime: &Runtime,
) -> Emitted<Stub> {
    let mut b = Builder::new(region.start(), around, runtime)?;
    let [
        mut start,
        mut ready,
        mut runs,
        mut waited,
        mut tell,
        mut forgotten,
        mut at_once,
        mut told,
        mut dead,
        mut out,
    ] = std::array::from_fn(|_| b.label());
    let a = &mut b.a;
    a.set_label(&mut start)?;
    a.mov(rdx, around.control + LIVE)?;
    a.cmp(dword_ptr(rdx), 0)?;
    a.je(out)?;
    a.cmp(ecx, status::RUNNING)?;
    a.je(runs)?;
    a.cmp(ecx, status::RUNNABLE)?;
    a.je(ready)?;
    for status in [status::DEAD, status::DEAD_EXTRA] {
        a.cmp(ecx, status)?;
        a.je(dead)?;
    }
    a.cmp(ecx, status::WAITING)?;
    a.jne(out)?;
    find_of(a, (rax, eax), around.control, out)?;
    now(a)?;
    a.mov(in_block(block::LEFT), rdx)?;
    a.mov(in_block(block::READY), 0)?;
    give_up_what_was_left(a, runtime)?;
    a.jmp(out)?;

    a.set_label(&mut dead)?;
    find_entry(a, (rax, eax), around.control, out)?;
    a.mov(r8, r12)?;
    a.mov(r12, qword_ptr(r12 + 8))?;
    give_up(a, runtime)?;
    a.mov(edx, dword_ptr(r12 + block::TID as i32))?;
    a.sub(edx, NO_THREAD)?;
    a.mov(qword_ptr(r8), TABLE_DELETED as i32)?;
    // Last: from now on the block may be another's.
    a.mov(r8, around.control + HEADER + header::LEFT)?;
    a.lock().bts(qword_ptr(r8), rdx)?;
    a.jmp(out)?;

    a.set_label(&mut ready)?;
    find_of(a, (rax, eax), around.control, out)?;
    now(a)?;
    a.mov(in_block(block::READY), rdx)?;
    a.cmp(ebx, status::WAITING)?;
    a.jne(at_once)?;
    a.cmp(in_block(block::LEFT), 0)?;
    a.je(at_once)?;
    a.jmp(told)?;
    // It did not wait, or it is not known since when.
    a.set_label(&mut at_once)?;
    a.mov(in_block(block::LEFT), rdx)?;
    a.set_label(&mut told)?;
    let mut before = a.create_label();
    a.cmp(ebx, status::RUNNING)?;
    a.jne(before)?;
    give_up_what_was_left(a, runtime)?;
    a.set_label(&mut before)?;
    waker(a, depth, around)?;
    a.jmp(out)?;

    a.set_label(&mut runs)?;
    a.cmp(ebx, status::SYSCALL)?;
    a.je(out)?;
    find_of(a, (rax, eax), around.control, out)?;
    a.mov(rsi, in_block(block::LEFT))?;
    a.mov(rdi, in_block(block::READY))?;
    a.mov(in_block(block::LEFT), 0)?;
    a.mov(in_block(block::READY), 0)?;
    // One that waits by name alone has run all the time: it stops the world, or works for the collector.
    a.cmp(ebx, status::RUNNABLE)?;
    a.jne(out)?;
    a.test(rdi, rdi)?;
    a.je(out)?;
    a.mov(rdx, in_block(block::TOP))?;
    a.cmp(rdx, in_block(block::BASE))?;
    a.je(out)?;
    a.test(dword_ptr(r12 + block::TAINTED as i32), block::BARE as i32)?;
    a.jne(out)?;
    a.inc(dword_ptr(r12 + (block::FIELD + 4) as i32))?;
    let most = block::MOST_ABSENCES as i32;
    a.cmp(rsi, rdi)?;
    a.jne(waited)?;
    a.cmp(dword_ptr(r12 + block::ABSENCES as i32), most)?;
    a.jae(forgotten)?;
    a.inc(dword_ptr(r12 + block::ABSENCES as i32))?;
    a.jmp(tell)?;
    // Without a record it is in the time of its call.
    a.set_label(&mut waited)?;
    a.cmp(dword_ptr(r12 + block::WAITS as i32), most)?;
    a.jae(out)?;
    a.inc(dword_ptr(r12 + block::WAITS as i32))?;
    a.set_label(&mut tell)?;
    a.mov(in_block(block::STACK_POINTER), rsp)?;
    a.lea(rsp, in_block(block::PRIVATE_STACK))?;
    a.push(rax)?;
    a.push(rcx)?;
    a.mov(rcx, r12)?;
    a.call(runtime.absence)?;
    a.pop(rcx)?;
    a.pop(rax)?;
    a.mov(rsp, in_block(block::STACK_POINTER))?;
    a.jmp(out)?;
    a.set_label(&mut forgotten)?;
    now(a)?;
    a.sub(rdx, rdi)?;
    a.add(in_block(block::UNTOLD_READY), rdx)?;
    a.mov(rdx, in_block(block::RING))?;
    a.inc(qword_ptr(rdx + ring::UNTOLD as i32))?;
    a.set_label(&mut out)?;
    a.nop()?;
    b.region(region)?;
    b.finish(at, start)
}

/// Go's statuses of goroutines (`src/runtime/runtime2.go`).
mod status {
    pub const RUNNABLE: i32 = 1;
    pub const RUNNING: i32 = 2;
    pub const SYSCALL: i32 = 3;
    pub const WAITING: i32 = 4;
    pub const DEAD: i32 = 6;
    /// It is of a thread that C code has made, which has left Go's code (in Go 1.27; 1.24 has no such status).
    pub const DEAD_EXTRA: i32 = 11;
}

/// Ends all that the goroutine of the block at r12 awaits. rdx is lost.
fn give_up(a: &mut CodeAssembler, runtime: &Runtime) -> Emitted<()> {
    a.mov(in_block(block::STACK_POINTER), rsp)?;
    a.lea(rsp, in_block(block::PRIVATE_STACK))?;
    a.push(rax)?;
    a.push(rcx)?;
    a.mov(rcx, r12)?;
    a.call(runtime.renew)?;
    a.pop(rcx)?;
    a.pop(rax)?;
    a.mov(rsp, in_block(block::STACK_POINTER))
}

/// Where the goroutine that stops, whose descriptor is in rax, is no longer in the op that its block has, a panic has ended
/// that. Loses rdx, rsi and rdi.
fn give_up_what_was_left(a: &mut CodeAssembler, runtime: &Runtime) -> Emitted<()> {
    /// Where a descriptor has the stack pointer of a goroutine that a thread has left for a stack of its own (`runtime.g`'s `sched`), in
    /// all versions since Go 1.5.
    const STACK_POINTER: i32 = 56;
    let [mut own, mut left, mut done] = std::array::from_fn(|_| a.create_label());
    a.mov(rdx, in_block(block::BASE))?;
    a.cmp(rdx, in_block(block::TOP))?;
    a.je(done)?;
    a.mov(rdi, rsp)?;
    a.cmp(rax, r14)?;
    a.je(own)?;
    a.mov(rdi, qword_ptr(rax + STACK_POINTER))?;
    a.set_label(&mut own)?;
    a.mov(rsi, qword_ptr(rdx + entry::SLOT as i32))?;
    a.add(rsi, qword_ptr(rax + 8))?;
    a.cmp(rsi, rdi)?;
    a.jb(left)?;
    a.cmp(rsi, qword_ptr(rax))?;
    a.jb(left)?;
    a.mov(rdx, qword_ptr(rdx + entry::RETURN_TO as i32))?;
    a.cmp(rdx, qword_ptr(rsi))?;
    a.je(done)?;
    a.set_label(&mut left)?;
    give_up(a, runtime)?;
    a.set_label(&mut done)?;
    a.nop()
}

/// A field of the block that r12 points to.
fn in_block(offset: u64) -> AsmMemoryOperand {
    qword_ptr(r12 + offset as i32)
}

/// rdx becomes the reading of the cycle counter; rsi is lost.
fn now(a: &mut CodeAssembler) -> Emitted<()> {
    a.mov(rsi, rax)?;
    a.rdtsc()?;
    a.shl(rdx, 32)?;
    a.or(rdx, rax)?;
    a.mov(rax, rsi)
}

/// Keeps the return address that is `depth` bytes above the stack pointer, and those that the frame pointers lead to from here on: on the
/// stack that this thread runs on, then on that of its goroutine, for which it may work on a stack of its own. A collection may exchange the
/// latter meanwhile (its descriptor's `isShrinkStackSafe` in Go 1.19): what is read then may be of the former one, whose memory the run-time
/// keeps. Loses rsi, rdi and r8 to r11 and r13.
fn waker(a: &mut CodeAssembler, depth: i32, around: &Surroundings) -> Emitted<()> {
    let [mut next, mut elsewhere, mut done] = std::array::from_fn(|_| a.create_label());
    let current = around.goroutines.map_or(0, |goroutines| goroutines.current);
    a.mov(r10, qword_ptr(rsp + depth))?;
    a.mov(in_block(block::WAKER), r10)?;
    a.lea(r13, in_block(block::WAKER + 8))?;
    a.mov(edi, record::WAKER_WORDS as i32 - 1)?;
    a.mov(rsi, rbp)?;
    a.mov(r8, rsp)?;
    a.mov(r9, stack_end())?;
    a.set_label(&mut next)?;
    a.test(esi, 7)?;
    a.jne(done)?;
    a.cmp(rsi, r8)?;
    a.jb(elsewhere)?;
    // A frame pointer and a return address.
    a.lea(r10, qword_ptr(r9 - 16))?;
    a.cmp(rsi, r10)?;
    a.ja(elsewhere)?;
    a.mov(r10, qword_ptr(rsi + 8))?;
    a.mov(qword_ptr(r13), r10)?;
    a.add(r13, 8)?;
    a.mov(rsi, qword_ptr(rsi))?;
    a.dec(edi)?;
    a.jne(next)?;
    a.jmp(done)?;
    a.set_label(&mut elsewhere)?;
    if current != 0 {
        a.mov(r10, qword_ptr(r14 + THREAD))?;
        a.test(r10, r10)?;
        a.je(done)?;
        a.mov(r10, qword_ptr(r10 + current))?;
        a.test(r10, r10)?;
        a.je(done)?;
        a.mov(r11, qword_ptr(r10 + 8))?;
        a.cmp(r11, r9)?;
        a.je(done)?;
        a.mov(r8, qword_ptr(r10))?;
        a.mov(r9, r11)?;
        // Read while the stack is exchanged the two are of no one stack: the size of one is a power of two.
        a.sub(r11, r8)?;
        a.je(done)?;
        a.lea(r10, qword_ptr(r11 - 1))?;
        a.test(r10, r11)?;
        a.jne(done)?;
        a.jmp(next)?;
    }
    a.set_label(&mut done)?;
    a.test(edi, edi)?;
    let mut full = a.create_label();
    a.je(full)?;
    a.mov(qword_ptr(r13), 0)?;
    a.set_label(&mut full)?;
    a.nop()
}

/// Appends an instruction before a `ret` of f0, at which the op ends.
pub fn end_op(b: &mut Builder<'_>, instruction: Instruction, depth: i32) -> Emitted<()> {
    let [mut matched, search, mut leave, mut out] = std::array::from_fn(|_| b.label());
    let runtime = b.runtime;
    find(&mut b.a, b.around.control, out)?;
    begin(&mut b.a)?;
    tsc(&mut b.a)?;
    b.a.mov(rdi, rax)?;
    slot(&mut b.a, rdx, depth)?;
    b.a.cmp(rdx, shadow(TOP, entry::SLOT))?;
    b.a.jne(search)?;
    b.a.set_label(&mut matched)?;
    // A measured call that leads here shares the slot; it notices its return by itself.
    b.a.mov(rax, shadow(TOP, entry::PLACE))?;
    b.a.cmp(dword_ptr(rax + place::KIND as i32), place::CALL as i32)?;
    b.a.je(leave)?;
    b.a.sub(rsi, entry::SIZE as i32)?;
    look_at_untold(&mut b.a)?;
    b.a.call(runtime.end)?;
    b.a.set_label(&mut leave)?;
    end(&mut b.a)?;
    b.a.set_label(&mut out)?;
    b.copy(instruction)?;
    b.later.push(Later::Choose {
        at: search,
        routine: runtime.find,
        zero: matched,
        other: leave,
    });
    Ok(())
}

/// An op that ends at rdi, whose entry is at rsi and place at rax, decides nothing where a third of it is time in which it was ready without running, and
/// of which there is no record. A call of f0 within one is no op, and nobody knows when it began.
fn look_at_untold(a: &mut CodeAssembler) -> Emitted<()> {
    let mut little = a.create_label();
    a.cmp(dword_ptr(rax + place::KIND as i32), place::F0 as i32)?;
    a.jne(little)?;
    a.mov(rax, rdi)?;
    a.sub(rax, shadow(0, entry::START))?;
    a.imul_3(rdx, field(block::UNTOLD_READY), 3)?;
    a.cmp(rdx, rax)?;
    a.jbe(little)?;
    a.or(field32(block::TAINTED), block::UNSEEN as i32)?;
    a.set_label(&mut little)?;
    a.nop()
}

/// Appends a call that returns to its landing. `return_address` says where the text's own call has left its own. An indirect
/// callee is in a register that stays as it is.
pub fn call(
    b: &mut Builder<'_>,
    site: &Site,
    callee: Callee,
    return_address: ReturnAddress,
) -> Emitted<()> {
    let indirect = match callee {
        Callee::Indirect(Operand::Register(gpr)) => Some(register(gpr)),
        _ => None,
    };
    let [stale, slow, mut fresh, mut pass, mut out] = std::array::from_fn(|_| b.label());
    let place = site_place(b, site, site.next);
    if return_address != ReturnAddress::Pushed {
        b.a.push(qword_ptr(place))?;
    }
    find(&mut b.a, b.around.control, out)?;
    if let Some(register) = indirect {
        b.a.mov(r13, register)?;
    }
    begin(&mut b.a)?;
    if indirect.is_some() {
        b.a.mov(qword_ptr(rsp + FLAGS), r13)?;
    }
    slot(&mut b.a, rdi, 0)?;
    b.a.cmp(rdi, shadow(TOP, entry::SLOT))?;
    b.a.jae(stale)?;
    b.a.set_label(&mut fresh)?;
    b.child(site, place, indirect.map(|_| FLAGS), pass, pass)?;
    b.a.cmp(rsi, field(block::LIMIT))?;
    b.a.jae(slow)?;
    b.enter(place, Returns::ToPlace)?;
    b.start()?;
    b.a.set_label(&mut pass)?;
    end(&mut b.a)?;
    b.a.set_label(&mut out)?;
    match (callee, indirect) {
        (Callee::Direct(to), _) => b.a.jmp(to)?,
        (Callee::Indirect(_), Some(register)) => b.a.jmp(register)?,
        // Never asked for.
        (Callee::Indirect(_), None) => b.a.ud2()?,
    }
    b.later.push(Later::Call {
        at: stale,
        routine: b.runtime.stale,
        back: fresh,
    });
    // The shadow stack is full: the routine only notes that.
    b.later.push(Later::Call {
        at: slow,
        routine: b.runtime.slow,
        back: pass,
    });
    Ok(())
}

/// Appends the end of the call that has returned to a landing, if one is awaited there. Behind calls that do not keep r14
/// (`is_reset`) the program reads it anew in a moment, and the stub does so before.
pub fn land(b: &mut Builder<'_>, landing: &Landing, is_reset: bool) -> Emitted<()> {
    let [mut pass, later, mut found, mut out] = std::array::from_fn(|_| b.label());
    if let Some(Goroutines { kept, .. }) = b.around.goroutines.filter(|_| is_reset) {
        b.a.mov(r14, qword_ptr(kept).fs())?;
    }
    find(&mut b.a, b.around.control, out)?;
    begin(&mut b.a)?;
    // The return address has just been popped.
    slot(&mut b.a, rdx, -8)?;
    b.a.mov(rdi, landing.addr)?;
    b.a.cmp(rdx, shadow(TOP, entry::SLOT))?;
    // What is awaited further out is not awaited here.
    b.a.jb(pass)?;
    b.a.jne(later)?;
    b.a.mov(rax, shadow(TOP, entry::PLACE))?;
    b.a.cmp(rdi, qword_ptr(rax + place::RETURN_TO as i32))?;
    b.a.jne(pass)?;
    b.a.set_label(&mut found)?;
    tsc(&mut b.a)?;
    b.a.mov(rdi, rax)?;
    b.take_off(None)?;
    b.later.push(Later::Choose {
        at: later,
        routine: b.runtime.find_landing,
        zero: found,
        other: pass,
    });
    b.a.set_label(&mut pass)?;
    end(&mut b.a)?;
    b.a.set_label(&mut out)?;
    b.a.nop()
}
