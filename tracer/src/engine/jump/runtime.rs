//! The routines that all stubs of an arena share: everything that is not the common case.
//!
//! Pure: bytes for an address. Conventions: rcx is the thread's block; rsi the first free entry of
//! the shadow stack; rdi a stack slot or a clock reading. The stubs have saved rax, rcx, rdx, rsi, rdi
//! and the flags; a routine keeps all other registers.

use iced_x86::code_asm::*;

use super::asm::{Code, Emitted, Surroundings, TOP, field, field32, shadow, tsc};
use super::layout::{
    BLOCKS, DESCRIPTORS, HEADER, LIVE, PROBES, TABLE, TABLE_BYTES, block, entry, header, node,
    place, record, ring, targets,
};

/// How far apart two slots may be and still be taken for frames of one stack when one of them decides
/// that the other is gone. Wrong guesses cost measurements, never the target's correctness.
const SAME_STACK: i32 = 64 << 10;
/// How far above the stack pointer frames of the same stack are looked for before an unwind.
const DEEPEST_STACK: i32 = 8 << 20;

/// Addresses of the routines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Runtime {
    /// rax thread pointer, rdx table offset → rcx block, zero for an unknown thread.
    pub lookup: u64,
    /// As `lookup`, but gives an unknown thread a block when there is one.
    pub register: u64,
    /// The thread pointer belongs to a new thread: forget what the old one did.
    pub renew: u64,
    /// rax accumulator, rsi its entry: begins the accumulator's op.
    pub first: u64,
    /// rdi slot of a new frame: gives up entries that it shows to be dead. Sets rsi.
    pub stale: u64,
    /// rdi slot of a new frame; the shadow stack is full or return addresses were revealed.
    /// Zero flag: pass; else try again.
    pub slow: u64,
    /// rdx slot, rsi top: finds the entry of that slot. Zero flag: found, rsi behind it.
    pub find: u64,
    /// rsi top, rdi slot of a call of f0 while entries are awaited → eax: 0 pass, 1 op, 2 ignore. Sets rsi.
    pub nested: u64,
    /// rsi entry of an f0 that returned at rdi: delivers the op, takes the entry off.
    pub end: u64,
    /// rdi slot: puts all hidden return addresses above it back.
    pub reveal: u64,
    /// rdi slot: an unwind arrived; ends what it left and hides the rest again.
    pub caught: u64,
    /// rax target table, rdx callee, rsi place of the site → rax fnode, zero for none.
    pub target: u64,
    /// rdx slot: finds a hidden return address in any thread's entries → rax, zero for none.
    pub anywhere: u64,
}

/// What [`Runtime::nested`] answers.
pub mod nested {
    /// Not to be measured and not to be followed.
    pub const PASS: i32 = 0;
    /// An op of its own.
    pub const OP: i32 = 1;
    /// To be followed, so that nothing in it is measured.
    pub const IGNORE: i32 = 2;
}

/// Emits the routines for an address.
pub fn emit(at: u64, around: &Surroundings) -> Emitted<(Vec<u8>, Runtime)> {
    let mut a = CodeAssembler::new(64)?;
    let mut labels = Labels::new(&mut a);
    let [
        mut lookup,
        mut register,
        mut renew,
        mut first,
        mut stale,
        mut slow,
        mut find,
    ] = std::array::from_fn(|_| a.create_label());
    let [
        mut nested,
        mut end,
        mut reveal,
        mut caught,
        mut target,
        mut anywhere,
    ] = std::array::from_fn(|_| a.create_label());
    emit_lookup(&mut a, &mut lookup, around)?;
    emit_register(&mut a, &mut register, lookup, around)?;
    emit_renew(&mut a, &mut renew, around)?;
    emit_first(&mut a, &mut first)?;
    emit_count(&mut a, &mut labels.count, first, around)?;
    emit_readable(&mut a, &mut labels.readable)?;
    let mut give_up = labels.give_up;
    emit_give_up(&mut a, &mut give_up, &labels)?;
    labels.give_up = give_up;
    emit_stale(&mut a, &mut stale, &labels)?;
    let mut resync = labels.resync;
    emit_resync(&mut a, &mut resync, &labels)?;
    labels.resync = resync;
    emit_slow(&mut a, &mut slow, &labels)?;
    emit_caught(&mut a, &mut caught, &labels)?;
    emit_find(&mut a, &mut find, &labels)?;
    emit_nested(&mut a, &mut nested, &labels)?;
    emit_reveal(&mut a, &mut reveal, &labels)?;
    emit_reserve(&mut a, &mut labels.reserve)?;
    emit_end(&mut a, &mut end, &labels, around)?;
    emit_target(&mut a, &mut target, &labels, around)?;
    emit_anywhere(&mut a, &mut anywhere, around)?;
    let code = Code::assemble(&mut a, at)?;
    let runtime = Runtime {
        lookup: code.address(&lookup)?,
        register: code.address(&register)?,
        renew: code.address(&renew)?,
        first: code.address(&first)?,
        stale: code.address(&stale)?,
        slow: code.address(&slow)?,
        find: code.address(&find)?,
        nested: code.address(&nested)?,
        end: code.address(&end)?,
        reveal: code.address(&reveal)?,
        caught: code.address(&caught)?,
        target: code.address(&target)?,
        anywhere: code.address(&anywhere)?,
    };
    Ok((code.bytes(), runtime))
}

/// Routines that only routines call.
struct Labels {
    /// rsi entry, rdi clock reading: credits the call to its fnode. Changes rax, rdx.
    count: CodeLabel,
    /// Whether rax can be read.
    readable: CodeLabel,
    /// rsi top: takes the top entry off without a return. Changes rax, rdx; sets rsi.
    give_up: CodeLabel,
    /// rdi slot, eax one to credit calls: gives up entries below, hides the others again.
    resync: CodeLabel,
    /// rax length → r8 where to write the record (zero: no room), r9 new head. Changes r10, r11, rdx.
    reserve: CodeLabel,
}

impl Labels {
    fn new(a: &mut CodeAssembler) -> Labels {
        Labels {
            count: a.create_label(),
            readable: a.create_label(),
            give_up: a.create_label(),
            resync: a.create_label(),
            reserve: a.create_label(),
        }
    }
}

fn none(around: &Surroundings) -> u64 {
    around.control + DESCRIPTORS
}

fn emit_lookup(a: &mut CodeAssembler, start: &mut CodeLabel, around: &Surroundings) -> Emitted<()> {
    let (mut again, mut unknown, mut found) =
        (a.create_label(), a.create_label(), a.create_label());
    a.set_label(start)?;
    a.push(r8)?;
    a.mov(rcx, around.control + TABLE)?;
    a.mov(r8d, PROBES)?;
    a.set_label(&mut again)?;
    a.cmp(qword_ptr(rcx + rdx), rax)?;
    a.je(found)?;
    a.cmp(qword_ptr(rcx + rdx), 0)?;
    a.je(unknown)?;
    a.add(edx, 16)?;
    a.and(edx, (TABLE_BYTES - 1) as i32)?;
    a.dec(r8d)?;
    a.jne(again)?;
    a.set_label(&mut unknown)?;
    a.xor(ecx, ecx)?;
    a.pop(r8)?;
    a.ret()?;
    a.set_label(&mut found)?;
    a.mov(rcx, qword_ptr(rcx + rdx + 8))?;
    a.pop(r8)?;
    a.ret()
}

/// A signal handler that comes in between may give the thread a second block, which is never used.
fn emit_register(
    a: &mut CodeAssembler,
    start: &mut CodeLabel,
    lookup: CodeLabel,
    around: &Surroundings,
) -> Emitted<()> {
    let [
        mut unknown,
        mut full,
        mut without,
        mut insert,
        mut won,
        mut done,
    ] = std::array::from_fn(|_| a.create_label());
    a.set_label(start)?;
    a.push(rdx)?;
    a.call(lookup)?;
    a.pop(rdx)?;
    a.test(rcx, rcx)?;
    a.je(unknown)?;
    a.ret()?;
    a.set_label(&mut unknown)?;
    a.push(r8)?;
    a.push(r9)?;
    a.push(r10)?;
    a.push(r11)?;
    // A forked child registers nobody: the ring is not its own.
    a.mov(r8, around.control + LIVE)?;
    a.cmp(dword_ptr(r8), 0)?;
    a.je(done)?;
    a.mov(r8, around.control + HEADER)?;
    a.mov(ecx, 1)?;
    a.lock()
        .xadd(dword_ptr(r8 + header::NEXT_BLOCK as i32), ecx)?;
    a.cmp(ecx, dword_ptr(r8 + header::BLOCKS as i32))?;
    a.jae(full)?;
    a.mov(r10d, ecx)?;
    a.imul_3(r9, r10, block::SIZE as i32)?;
    a.mov(rcx, around.control + BLOCKS)?;
    a.add(rcx, r9)?;
    a.mov(field(block::THREAD), rax)?;
    a.mov(r9, none(around))?;
    a.mov(field(block::CURRENT), r9)?;
    a.lea(r9, qword_ptr(rcx + block::SHADOW as i32))?;
    a.mov(qword_ptr(r9 + entry::SLOT as i32), -1)?;
    a.add(r9, entry::SIZE as i32)?;
    a.mov(field(block::BASE), r9)?;
    a.mov(field(block::TOP), r9)?;
    a.lea(r9, qword_ptr(rcx + block::SHADOW_END as i32))?;
    a.mov(field(block::REAL_LIMIT), r9)?;
    a.mov(field(block::LIMIT), r9)?;
    a.imul_3(r9, r10, ring::SIZE as i32)?;
    a.mov(r10, around.rings)?;
    a.add(r9, r10)?;
    a.mov(field(block::RING), r9)?;
    match around.tid_offset {
        Some(offset) => {
            a.mov(r9d, dword_ptr(offset).fs())?;
            a.mov(field32(block::TID), r9d)?;
        }
        None => {
            a.push(rax)?;
            a.push(rcx)?;
            a.mov(eax, libc::SYS_gettid as i32)?;
            a.syscall()?;
            a.pop(rcx)?;
            a.mov(field32(block::TID), eax)?;
            a.pop(rax)?;
        }
    }
    a.mov(r8, around.control + TABLE)?;
    a.mov(r11d, PROBES)?;
    a.set_label(&mut insert)?;
    a.lea(r9, qword_ptr(r8 + rdx))?;
    a.push(rax)?;
    a.xor(eax, eax)?;
    a.mov(r10d, 1)?;
    a.lock().cmpxchg(qword_ptr(r9), r10)?;
    a.pop(rax)?;
    a.je(won)?;
    a.add(edx, 16)?;
    a.and(edx, (TABLE_BYTES - 1) as i32)?;
    a.dec(r11d)?;
    a.jne(insert)?;
    // The table is crowded; the block is lost, for another thread has counted on by now.
    a.mov(r8, around.control + HEADER)?;
    a.jmp(without)?;
    a.set_label(&mut full)?;
    a.lock().dec(dword_ptr(r8 + header::NEXT_BLOCK as i32))?;
    a.set_label(&mut without)?;
    a.lock().inc(dword_ptr(r8 + header::UNREGISTERED as i32))?;
    a.xor(ecx, ecx)?;
    a.jmp(done)?;
    a.set_label(&mut won)?;
    // The block first: whoever sees the key must find it.
    a.mov(qword_ptr(r9 + 8), rcx)?;
    a.mov(qword_ptr(r9), rax)?;
    a.set_label(&mut done)?;
    a.pop(r11)?;
    a.pop(r10)?;
    a.pop(r9)?;
    a.pop(r8)?;
    a.ret()
}

fn emit_renew(a: &mut CodeAssembler, start: &mut CodeLabel, around: &Surroundings) -> Emitted<()> {
    let mut idle = a.create_label();
    a.set_label(start)?;
    a.mov(rdx, field(block::BASE))?;
    a.cmp(rdx, field(block::TOP))?;
    a.je(idle)?;
    a.inc(field(block::ENDED_OTHERWISE))?;
    a.mov(field(block::TOP), rdx)?;
    a.set_label(&mut idle)?;
    a.mov(rdx, none(around))?;
    a.mov(field(block::CURRENT), rdx)?;
    a.mov(rdx, field(block::REAL_LIMIT))?;
    a.mov(field(block::LIMIT), rdx)?;
    a.mov(field32(block::BUSY), 0)?;
    if let Some(offset) = around.tid_offset {
        a.mov(edx, dword_ptr(offset).fs())?;
        a.mov(field32(block::TID), edx)?;
    }
    a.ret()
}

fn emit_first(a: &mut CodeAssembler, start: &mut CodeLabel) -> Emitted<()> {
    a.set_label(start)?;
    a.mov(rdx, field(block::EPOCH))?;
    a.mov(qword_ptr(rax + node::EPOCH as i32), rdx)?;
    a.mov(qword_ptr(rax + node::COUNT as i32), 0)?;
    a.mov(qword_ptr(rax + node::SUM as i32), 0)?;
    a.mov(qword_ptr(rax + node::MAX as i32), 0)?;
    a.mov(rdx, shadow(0, entry::START))?;
    a.mov(qword_ptr(rax + node::MAX_START as i32), rdx)?;
    // Each accumulator is entered once an op, so the list cannot overflow.
    a.push(rax)?;
    a.sub(rax, rcx)?;
    a.mov(edx, field32(block::TOUCHED))?;
    a.mov(dword_ptr(rcx + rdx * 4 + block::TOUCH as i32), eax)?;
    a.inc(edx)?;
    a.mov(field32(block::TOUCHED), edx)?;
    a.pop(rax)?;
    a.ret()
}

/// The latency of the entry at rsi that ended at rdi, in rdi; rdx is lost.
pub fn latency(a: &mut CodeAssembler, cost: i32) -> Emitted<()> {
    a.sub(rdi, field(block::STOLEN))?;
    a.sub(rdi, shadow(0, entry::ADJUSTED))?;
    a.mov(edx, 0)?;
    a.sub(rdi, cost)?;
    a.cmovs(rdi, rdx)
}

/// Credits the latency in rdi to the accumulator at rax; `first` begins its op. rdx is lost.
pub fn credit(
    a: &mut CodeAssembler,
    mut accumulate: CodeLabel,
    mut done: CodeLabel,
    begin: CodeLabel,
) -> Emitted<()> {
    a.mov(rdx, field(block::EPOCH))?;
    a.cmp(rdx, qword_ptr(rax + node::EPOCH as i32))?;
    a.jne(begin)?;
    a.set_label(&mut accumulate)?;
    a.inc(qword_ptr(rax + node::COUNT as i32))?;
    a.add(qword_ptr(rax + node::SUM as i32), rdi)?;
    a.cmp(qword_ptr(rax + node::MAX as i32), rdi)?;
    a.jae(done)?;
    a.mov(qword_ptr(rax + node::MAX as i32), rdi)?;
    a.mov(rdx, shadow(0, entry::START))?;
    a.mov(qword_ptr(rax + node::MAX_START as i32), rdx)?;
    a.set_label(&mut done)
}

fn emit_count(
    a: &mut CodeAssembler,
    start: &mut CodeLabel,
    first: CodeLabel,
    around: &Surroundings,
) -> Emitted<()> {
    let (accumulate, done, mut begin) = (a.create_label(), a.create_label(), a.create_label());
    a.set_label(start)?;
    a.push(rdi)?;
    latency(a, around.inside)?;
    a.add(field(block::STOLEN), around.outside)?;
    a.mov(rax, shadow(0, entry::CHILD))?;
    a.mov(eax, dword_ptr(rax))?;
    a.add(rax, rcx)?;
    credit(a, accumulate, done, begin)?;
    a.pop(rdi)?;
    a.ret()?;
    a.set_label(&mut begin)?;
    a.call(first)?;
    a.jmp(accumulate)
}

/// Tells by the zero flag whether the word at rax can be read; all registers are kept.
///
/// The kernel reads the new mask before it looks at what is to be done with it (rt_sigprocmask(2)),
/// so a request that makes no sense fails with EFAULT exactly when the address is bad.
fn emit_readable(a: &mut CodeAssembler, start: &mut CodeLabel) -> Emitted<()> {
    const NO_REQUEST: i32 = -1;
    const MASK_BYTES: i32 = 8;
    let scratch = [rax, rcx, rdx, rsi, rdi, r10, r11];
    a.set_label(start)?;
    for register in scratch {
        a.push(register)?;
    }
    a.mov(rsi, rax)?;
    a.mov(edi, NO_REQUEST)?;
    a.xor(edx, edx)?;
    a.mov(r10d, MASK_BYTES)?;
    a.mov(eax, libc::SYS_rt_sigprocmask as i32)?;
    a.syscall()?;
    a.cmp(eax, -libc::EINVAL)?;
    for register in scratch.into_iter().rev() {
        a.pop(register)?;
    }
    a.ret()
}

fn emit_give_up(a: &mut CodeAssembler, start: &mut CodeLabel, labels: &Labels) -> Emitted<()> {
    let [mut off, mut not_op, mut known] = std::array::from_fn(|_| a.create_label());
    a.set_label(start)?;
    a.push(rdi)?;
    a.sub(rsi, entry::SIZE as i32)?;
    a.mov(rax, shadow(0, entry::PLACE))?;
    a.cmp(dword_ptr(rax + place::KIND as i32), place::F0 as i32)?;
    a.jne(not_op)?;
    a.inc(field(block::ENDED_OTHERWISE))?;
    a.set_label(&mut not_op)?;
    // Should the frame be there after all, it returns without us: no stub is waited for by nobody's entry.
    a.mov(rdi, qword_ptr(rax + place::RETURN_TO as i32))?;
    a.mov(rdx, qword_ptr(rax + place::HIDDEN as i32))?;
    a.test(rdx, rdx)?;
    a.je(off)?;
    a.test(rdi, rdi)?;
    a.jne(known)?;
    a.mov(rdi, shadow(0, entry::RETURN_TO))?;
    a.set_label(&mut known)?;
    a.mov(rax, shadow(0, entry::SLOT))?;
    a.call(labels.readable)?;
    a.jne(off)?;
    a.cmp(qword_ptr(rax), rdx)?;
    a.jne(off)?;
    a.mov(qword_ptr(rax), rdi)?;
    a.set_label(&mut off)?;
    a.mov(rdx, shadow(0, entry::SAVED))?;
    a.mov(field(block::CURRENT), rdx)?;
    a.mov(field(block::TOP), rsi)?;
    a.pop(rdi)?;
    a.ret()
}

fn emit_stale(a: &mut CodeAssembler, start: &mut CodeLabel, labels: &Labels) -> Emitted<()> {
    let mut done = a.create_label();
    a.set_label(start)?;
    a.mov(rax, rdi)?;
    a.sub(rax, shadow(TOP, entry::SLOT))?;
    // A top entry that is older (or on another stack) makes a huge unsigned number.
    a.cmp(rax, SAME_STACK)?;
    a.ja(done)?;
    a.call(labels.give_up)?;
    a.jmp(*start)?;
    a.set_label(&mut done)?;
    a.ret()
}

fn emit_resync(a: &mut CodeAssembler, start: &mut CodeLabel, labels: &Labels) -> Emitted<()> {
    let [
        mut below,
        mut uncounted,
        mut rest,
        mut hide,
        mut next,
        mut known,
        mut done,
    ] = std::array::from_fn(|_| a.create_label());
    a.set_label(start)?;
    a.push(r8)?;
    a.mov(r8d, eax)?;
    a.mov(rdx, field(block::REAL_LIMIT))?;
    a.mov(field(block::LIMIT), rdx)?;
    a.mov(rsi, field(block::TOP))?;
    a.set_label(&mut below)?;
    a.mov(rax, rdi)?;
    a.sub(rax, shadow(TOP, entry::SLOT))?;
    a.cmp(rax, DEEPEST_STACK)?;
    a.ja(rest)?;
    a.test(r8d, r8d)?;
    a.je(uncounted)?;
    a.mov(rax, shadow(TOP, entry::PLACE))?;
    a.cmp(dword_ptr(rax + place::KIND as i32), place::CALL as i32)?;
    a.jne(uncounted)?;
    a.push(rdi)?;
    tsc(a)?;
    a.mov(rdi, rax)?;
    a.sub(rsi, entry::SIZE as i32)?;
    a.call(labels.count)?;
    a.add(rsi, entry::SIZE as i32)?;
    a.pop(rdi)?;
    a.set_label(&mut uncounted)?;
    a.call(labels.give_up)?;
    a.jmp(below)?;
    a.set_label(&mut rest)?;
    // From the oldest on: in this order two entries of one slot were hidden.
    a.mov(rsi, field(block::BASE))?;
    a.set_label(&mut hide)?;
    a.cmp(rsi, field(block::TOP))?;
    a.jae(done)?;
    a.mov(rax, shadow(0, entry::PLACE))?;
    a.cmp(qword_ptr(rax + place::HIDDEN as i32), 0)?;
    a.je(next)?;
    a.mov(rdx, qword_ptr(rax + place::RETURN_TO as i32))?;
    a.test(rdx, rdx)?;
    a.jne(known)?;
    a.mov(rdx, shadow(0, entry::RETURN_TO))?;
    a.set_label(&mut known)?;
    a.mov(rax, shadow(0, entry::SLOT))?;
    a.call(labels.readable)?;
    a.jne(next)?;
    a.cmp(qword_ptr(rax), rdx)?;
    a.jne(next)?;
    a.mov(rdx, shadow(0, entry::PLACE))?;
    a.mov(rdx, qword_ptr(rdx + place::HIDDEN as i32))?;
    a.mov(qword_ptr(rax), rdx)?;
    a.set_label(&mut next)?;
    a.add(rsi, entry::SIZE as i32)?;
    a.jmp(hide)?;
    a.set_label(&mut done)?;
    a.pop(r8)?;
    a.ret()
}

fn emit_slow(a: &mut CodeAssembler, start: &mut CodeLabel, labels: &Labels) -> Emitted<()> {
    let mut revealed = a.create_label();
    a.set_label(start)?;
    // Whatever the reason, some call of this op goes or went unseen.
    a.mov(field32(block::TAINTED), 1)?;
    a.cmp(field(block::LIMIT), 0)?;
    a.je(revealed)?;
    a.cmp(eax, eax)?;
    a.ret()?;
    a.set_label(&mut revealed)?;
    a.xor(eax, eax)?;
    a.call(labels.resync)?;
    a.or(eax, 1)?;
    a.ret()
}

fn emit_caught(a: &mut CodeAssembler, start: &mut CodeLabel, labels: &Labels) -> Emitted<()> {
    let mut revealed = a.create_label();
    a.set_label(start)?;
    a.cmp(field(block::LIMIT), 0)?;
    a.je(revealed)?;
    a.ret()?;
    a.set_label(&mut revealed)?;
    a.mov(eax, 1)?;
    a.jmp(labels.resync)
}

fn emit_find(a: &mut CodeAssembler, start: &mut CodeLabel, labels: &Labels) -> Emitted<()> {
    let [mut again, mut lost, mut above, mut done] = std::array::from_fn(|_| a.create_label());
    a.set_label(start)?;
    a.mov(rax, rsi)?;
    a.set_label(&mut again)?;
    a.sub(rax, entry::SIZE as i32)?;
    a.cmp(rax, field(block::BASE))?;
    a.jb(lost)?;
    a.cmp(rdx, qword_ptr(rax + entry::SLOT as i32))?;
    a.jne(again)?;
    // What lies above was left without a return, or waits on another stack.
    a.push(r8)?;
    a.lea(r8, qword_ptr(rax + entry::SIZE as i32))?;
    a.set_label(&mut above)?;
    a.cmp(rsi, r8)?;
    a.jbe(done)?;
    a.call(labels.give_up)?;
    a.jmp(above)?;
    a.set_label(&mut done)?;
    a.pop(r8)?;
    a.cmp(eax, eax)?;
    a.ret()?;
    a.set_label(&mut lost)?;
    a.or(eax, 1)?;
    a.ret()
}

fn emit_nested(a: &mut CodeAssembler, start: &mut CodeLabel, labels: &Labels) -> Emitted<()> {
    let [mut again, mut op, mut pass, mut other, mut gone] =
        std::array::from_fn(|_| a.create_label());
    a.set_label(start)?;
    a.cmp(field(block::LIMIT), 0)?;
    a.jne(again)?;
    a.mov(field32(block::TAINTED), 1)?;
    a.xor(eax, eax)?;
    a.call(labels.resync)?;
    a.mov(rsi, field(block::TOP))?;
    a.set_label(&mut again)?;
    a.cmp(rsi, field(block::BASE))?;
    a.je(op)?;
    a.mov(rdx, shadow(TOP, entry::SLOT))?;
    a.cmp(rdx, rdi)?;
    a.jne(other)?;
    // The same slot: either the call that the entry stands for has come here (by its site, or round
    // to the entry), or the slot has been used anew.
    a.mov(rax, shadow(TOP, entry::PLACE))?;
    a.mov(rax, qword_ptr(rax + place::HIDDEN as i32))?;
    a.test(rax, rax)?;
    a.je(gone)?;
    a.cmp(qword_ptr(rdi), rax)?;
    a.je(pass)?;
    a.set_label(&mut gone)?;
    a.call(labels.give_up)?;
    a.jmp(again)?;
    a.set_label(&mut other)?;
    a.mov(rax, rdi)?;
    a.sub(rax, rdx)?;
    a.cmp(rax, SAME_STACK)?;
    a.jbe(gone)?;
    a.mov(rax, field(block::CURRENT))?;
    a.cmp(
        qword_ptr(rax + super::layout::descriptor::CHILDREN as i32),
        0,
    )?;
    a.je(pass)?;
    a.cmp(rsi, field(block::LIMIT))?;
    a.jae(pass)?;
    a.mov(eax, nested::IGNORE)?;
    a.ret()?;
    a.set_label(&mut op)?;
    a.mov(eax, nested::OP)?;
    a.ret()?;
    a.set_label(&mut pass)?;
    a.mov(eax, nested::PASS)?;
    a.ret()
}

fn emit_reveal(a: &mut CodeAssembler, start: &mut CodeLabel, labels: &Labels) -> Emitted<()> {
    let [mut again, mut known, mut done] = std::array::from_fn(|_| a.create_label());
    a.set_label(start)?;
    a.mov(rsi, field(block::TOP))?;
    a.set_label(&mut again)?;
    a.cmp(rsi, field(block::BASE))?;
    a.jbe(done)?;
    a.sub(rsi, entry::SIZE as i32)?;
    a.mov(field(block::LIMIT), 0)?;
    a.mov(rax, shadow(0, entry::PLACE))?;
    a.mov(rdx, qword_ptr(rax + place::HIDDEN as i32))?;
    a.test(rdx, rdx)?;
    a.je(again)?;
    a.mov(rdi, qword_ptr(rax + place::RETURN_TO as i32))?;
    a.test(rdi, rdi)?;
    a.jne(known)?;
    a.mov(rdi, shadow(0, entry::RETURN_TO))?;
    a.set_label(&mut known)?;
    a.mov(rax, shadow(0, entry::SLOT))?;
    a.call(labels.readable)?;
    a.jne(again)?;
    a.cmp(qword_ptr(rax), rdx)?;
    a.jne(again)?;
    a.mov(qword_ptr(rax), rdi)?;
    a.jmp(again)?;
    a.set_label(&mut done)?;
    a.ret()
}

fn emit_reserve(a: &mut CodeAssembler, start: &mut CodeLabel) -> Emitted<()> {
    let [mut fits, mut write, mut full] = std::array::from_fn(|_| a.create_label());
    a.set_label(start)?;
    a.cmp(field32(block::BUSY), 0)?;
    a.jne(full)?;
    a.mov(r10, field(block::RING))?;
    a.mov(r9, field(block::HEAD))?;
    a.mov(r8, r9)?;
    a.sub(r8, qword_ptr(r10 + ring::TAIL as i32))?;
    a.mov(rdx, r9)?;
    a.and(edx, (ring::DATA_BYTES - 1) as i32)?;
    a.lea(r11, qword_ptr(rdx + rax))?;
    a.cmp(r11, ring::DATA_BYTES as i32)?;
    a.mov(r11d, 0)?;
    a.jbe(fits)?;
    a.mov(r11d, ring::DATA_BYTES as i32)?;
    a.sub(r11d, edx)?;
    a.set_label(&mut fits)?;
    a.add(r8, r11)?;
    a.add(r8, rax)?;
    a.cmp(r8, ring::DATA_BYTES as i32)?;
    a.ja(full)?;
    a.mov(field32(block::BUSY), 1)?;
    a.lea(r8, qword_ptr(r10 + rdx + ring::DATA as i32))?;
    a.test(r11d, r11d)?;
    a.je(write)?;
    a.mov(dword_ptr(r8 + record::LEN as i32), r11d)?;
    a.mov(dword_ptr(r8 + record::KIND as i32), record::PADDING as i32)?;
    a.add(r9, r11)?;
    a.lea(r8, qword_ptr(r10 + ring::DATA as i32))?;
    a.set_label(&mut write)?;
    a.add(r9, rax)?;
    a.ret()?;
    a.set_label(&mut full)?;
    a.inc(field(block::DROPPED))?;
    a.xor(r8d, r8d)?;
    a.ret()
}

/// Makes what was written at r8 visible to the reader; r10 is the ring, r9 the new head.
fn publish(a: &mut CodeAssembler) -> Emitted<()> {
    a.mov(field(block::HEAD), r9)?;
    a.mov(qword_ptr(r10 + ring::HEAD as i32), r9)?;
    a.mov(field32(block::BUSY), 0)
}

fn to_record(offset: u64) -> AsmMemoryOperand {
    qword_ptr(r8 + offset as i32)
}

fn to_record32(offset: u64) -> AsmMemoryOperand {
    dword_ptr(r8 + offset as i32)
}

fn emit_end(
    a: &mut CodeAssembler,
    start: &mut CodeLabel,
    labels: &Labels,
    around: &Surroundings,
) -> Emitted<()> {
    let [
        mut off,
        mut filter,
        mut write,
        mut item,
        mut items,
        mut done,
    ] = std::array::from_fn(|_| a.create_label());
    let mut bucket = a.create_label();
    a.set_label(start)?;
    a.mov(rax, shadow(0, entry::PLACE))?;
    a.cmp(dword_ptr(rax + place::KIND as i32), place::F0 as i32)?;
    a.jne(off)?;
    // Nothing that a signal handler calls from here on belongs to the op.
    a.mov(rax, none(around))?;
    a.mov(field(block::CURRENT), rax)?;
    for register in [r8, r9, r10, r11, rbx] {
        a.push(register)?;
    }
    a.mov(rbx, rdi)?;
    latency(a, around.inside_f0)?;
    a.mov(r8, around.control + LIVE)?;
    a.cmp(dword_ptr(r8), 0)?;
    a.je(done)?;
    // The filter.
    a.add(r8, (HEADER - LIVE) as i32)?;
    a.mov(r9d, dword_ptr(r8 + header::FILTERS as i32))?;
    a.test(r9d, r9d)?;
    a.je(write)?;
    a.add(r8, header::FILTER as i32)?;
    a.set_label(&mut filter)?;
    let mut next_range = a.create_label();
    a.cmp(rdi, qword_ptr(r8))?;
    a.jb(next_range)?;
    a.cmp(rdi, qword_ptr(r8 + 8))?;
    a.jbe(write)?;
    a.set_label(&mut next_range)?;
    a.add(r8, 16)?;
    a.dec(r9d)?;
    a.jne(filter)?;
    a.mov(r10, field(block::RING))?;
    a.mov(rax, rdi)?;
    a.cmp(rdi, 16)?;
    a.jb(bucket)?;
    a.push(rcx)?;
    a.bsr(rcx, rdi)?;
    a.sub(ecx, 3)?;
    a.shr(rax, cl)?;
    a.lea(rax, qword_ptr(rax + rcx * 8))?;
    a.pop(rcx)?;
    a.set_label(&mut bucket)?;
    a.shl(eax, 4)?;
    a.inc(qword_ptr(r10 + rax + ring::HISTOGRAM as i32))?;
    a.add(qword_ptr(r10 + rax + (ring::HISTOGRAM + 8) as i32), rdi)?;
    a.jmp(done)?;
    // The record.
    a.set_label(&mut write)?;
    a.mov(eax, field32(block::TOUCHED))?;
    a.imul_3(rax, rax, record::ITEM as i32)?;
    a.add(rax, record::HEAD as i32)?;
    a.call(labels.reserve)?;
    a.test(r8, r8)?;
    a.je(done)?;
    a.mov(to_record32(record::LEN), eax)?;
    a.mov(to_record32(record::KIND), record::OP as i32)?;
    a.mov(rax, shadow(0, entry::START))?;
    a.mov(to_record(record::START), rax)?;
    a.mov(to_record(record::END), rbx)?;
    a.mov(to_record(record::LATENCY), rdi)?;
    a.mov(eax, field32(block::GENERATION))?;
    a.mov(to_record32(record::BEGAN), eax)?;
    a.mov(rax, around.control + LIVE)?;
    a.mov(eax, dword_ptr(rax))?;
    a.mov(to_record32(record::ENDED), eax)?;
    a.mov(eax, field32(block::TAINTED))?;
    a.mov(to_record32(record::TAINTED), eax)?;
    a.mov(eax, field32(block::TID))?;
    a.mov(to_record32(record::TID), eax)?;
    a.mov(r11d, field32(block::TOUCHED))?;
    a.mov(to_record32(record::ITEMS), r11d)?;
    a.lea(rdx, qword_ptr(rcx + block::TOUCH as i32))?;
    a.add(r8, record::HEAD as i32)?;
    a.set_label(&mut item)?;
    a.test(r11d, r11d)?;
    a.je(items)?;
    a.mov(eax, dword_ptr(rdx))?;
    a.mov(to_record(record::ITEM_NODE), rax)?;
    for (word, offset) in [node::COUNT, node::SUM, node::MAX, node::MAX_START]
        .into_iter()
        .enumerate()
    {
        a.mov(rbx, qword_ptr(rcx + rax + offset as i32))?;
        a.mov(to_record(record::ITEM_VALUES + 8 * word as u64), rbx)?;
    }
    a.add(rdx, 4)?;
    a.add(r8, record::ITEM as i32)?;
    a.dec(r11d)?;
    a.jmp(item)?;
    a.set_label(&mut items)?;
    publish(a)?;
    a.set_label(&mut done)?;
    for register in [rbx, r11, r10, r9, r8] {
        a.pop(register)?;
    }
    a.set_label(&mut off)?;
    a.mov(rax, shadow(0, entry::SAVED))?;
    a.mov(field(block::CURRENT), rax)?;
    a.mov(field(block::TOP), rsi)?;
    a.ret()
}

fn emit_target(
    a: &mut CodeAssembler,
    start: &mut CodeLabel,
    labels: &Labels,
    around: &Surroundings,
) -> Emitted<()> {
    let scratch = [r8, r9, r10, r11, rbx];
    let [
        mut again,
        mut next,
        mut known,
        mut any,
        mut report,
        mut written,
        mut done,
    ] = std::array::from_fn(|_| a.create_label());
    a.set_label(start)?;
    for register in scratch {
        a.push(register)?;
    }
    a.mov(rbx, rax)?;
    a.mov(r9, rdx)?;
    a.shr(r9, 4)?;
    a.mov(r11d, targets::COUNT as i32)?;
    a.set_label(&mut again)?;
    a.and(r9d, (targets::COUNT - 1) as i32)?;
    a.mov(r10d, r9d)?;
    a.shl(r10d, 4)?;
    a.lea(r10, qword_ptr(rbx + r10 + targets::SLOTS as i32))?;
    a.cmp(qword_ptr(r10), rdx)?;
    a.je(known)?;
    a.xor(eax, eax)?;
    a.cmp(qword_ptr(r10), rax)?;
    a.jne(next)?;
    a.lock().cmpxchg(qword_ptr(r10), rdx)?;
    a.je(report)?;
    a.cmp(rax, rdx)?;
    a.je(known)?;
    a.set_label(&mut next)?;
    a.inc(r9d)?;
    a.dec(r11d)?;
    a.jne(again)?;
    a.set_label(&mut any)?;
    a.mov(rax, qword_ptr(rbx + targets::ANY as i32))?;
    a.set_label(&mut done)?;
    for register in scratch.into_iter().rev() {
        a.pop(register)?;
    }
    a.ret()?;
    a.set_label(&mut known)?;
    a.mov(rax, qword_ptr(r10 + 8))?;
    a.cmp(rax, targets::UNMEASURED as i32)?;
    a.ja(done)?;
    a.jb(any)?;
    a.xor(eax, eax)?;
    a.jmp(done)?;
    // Nobody has asked about this callee yet. Until there is an answer it is one among others.
    a.set_label(&mut report)?;
    a.mov(rax, around.control + LIVE)?;
    a.cmp(dword_ptr(rax), 0)?;
    a.je(any)?;
    a.push(rdx)?;
    a.push(r10)?;
    a.mov(eax, record::HEAD as i32)?;
    a.call(labels.reserve)?;
    a.pop(r11)?;
    a.pop(rdx)?;
    a.test(r8, r8)?;
    a.jne(written)?;
    a.mov(qword_ptr(r11), 0)?;
    a.jmp(any)?;
    a.set_label(&mut written)?;
    a.mov(to_record32(record::LEN), record::HEAD as i32)?;
    a.mov(to_record32(record::KIND), record::TARGET as i32)?;
    a.mov(rax, field(block::CURRENT))?;
    a.mov(to_record(record::PARENT), rax)?;
    a.mov(to_record(record::PLACE), rsi)?;
    a.mov(to_record(record::CALLEE), rdx)?;
    a.add(r11, 8)?;
    a.mov(to_record(record::ANSWER), r11)?;
    publish(a)?;
    a.jmp(any)
}

fn emit_anywhere(
    a: &mut CodeAssembler,
    start: &mut CodeLabel,
    around: &Surroundings,
) -> Emitted<()> {
    let scratch = [rcx, rsi, r8, r9];
    let [mut next_block, mut again, mut advance, mut done] =
        std::array::from_fn(|_| a.create_label());
    a.set_label(start)?;
    for register in scratch {
        a.push(register)?;
    }
    a.mov(r8, around.control + HEADER)?;
    a.mov(r8d, dword_ptr(r8 + header::NEXT_BLOCK as i32))?;
    a.mov(rcx, around.control + BLOCKS)?;
    a.set_label(&mut next_block)?;
    a.xor(eax, eax)?;
    a.dec(r8d)?;
    a.js(done)?;
    a.mov(rsi, field(block::TOP))?;
    a.set_label(&mut again)?;
    a.cmp(rsi, field(block::BASE))?;
    a.jbe(advance)?;
    a.sub(rsi, entry::SIZE as i32)?;
    a.cmp(shadow(0, entry::SLOT), rdx)?;
    a.jne(again)?;
    a.mov(r9, shadow(0, entry::PLACE))?;
    a.cmp(qword_ptr(r9 + place::RETURN_TO as i32), 0)?;
    a.jne(again)?;
    a.mov(rax, shadow(0, entry::RETURN_TO))?;
    a.jmp(done)?;
    a.set_label(&mut advance)?;
    a.add(rcx, block::SIZE as i32)?;
    a.jmp(next_block)?;
    a.set_label(&mut done)?;
    for register in scratch.into_iter().rev() {
        a.pop(register)?;
    }
    a.ret()
}
