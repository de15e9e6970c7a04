//! Runs emitted stubs inside the test process, around tiny programs, and compares every register,
//! the flags and the red zone with an undisturbed run.
#![allow(unsafe_code)]

use std::ptr;

use darc_disasm::{Gpr, MemoryOperand, Operand, Segment};
use iced_x86::code_asm::*;
use iced_x86::{Decoder, DecoderOptions, Instruction};

use super::asm::Surroundings;
use super::flags::Flags;
use super::layout::*;
use super::ops::Ops;
use super::runtime::{self, Runtime};
use super::stubs::{self, Callee, F0End, Item, Kind, Region, Site, SiteFlags, Stub};

const CODE_BYTES: usize = 1 << 16;
const BLOCK_COUNT: u64 = 2;

/// Memory of this process in which a test plays the target.
struct Arena {
    code: u64,
    used: u64,
    control: u64,
    rings: u64,
    around: Surroundings,
    runtime: Runtime,
}

fn map(len: usize, protection: i32) -> u64 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh anonymous mapping disturbs nothing.
    let at = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at as u64
}

fn word(at: u64) -> u64 {
    // SAFETY: the tests only pass addresses in their own mappings.
    unsafe { ptr::read_volatile(at as *const u64) }
}

fn word32(at: u64) -> u32 {
    word(at) as u32
}

fn set(at: u64, value: u64) {
    // SAFETY: as in `word`.
    unsafe { ptr::write_volatile(at as *mut u64, value) }
}

fn set32(at: u64, value: u32) {
    // SAFETY: as in `word`.
    unsafe { ptr::write_volatile(at as *mut u32, value) }
}

impl Arena {
    fn new() -> Arena {
        let data = libc::PROT_READ | libc::PROT_WRITE;
        let code = map(CODE_BYTES, data | libc::PROT_EXEC);
        let control = map((BLOCKS + BLOCK_COUNT * block::SIZE) as usize, data);
        let rings = map((BLOCK_COUNT * ring::SIZE) as usize, data);
        let around = Surroundings {
            pid: std::process::id() as i32,
            control,
            rings,
            ring_bytes: ring::SIZE,
            inside: 0,
            outside: 0,
            inside_f0: 0,
            counted: (0, 0),
            tid_offset: None,
        };
        let mut arena = Arena {
            code,
            used: 0,
            control,
            rings,
            around,
            runtime: Runtime::default(),
        };
        let (bytes, runtime) = runtime::emit(code, &around).unwrap();
        arena.place(&bytes);
        arena.runtime = runtime;
        set32(control + LIVE, 1);
        arena.filter(&[(0, u64::MAX, ring::BUDGETS)]);
        set32(control + HEADER + header::BLOCKS, BLOCK_COUNT as u32);
        for fnode in 0..FNODES {
            arena.descriptor(fnode, descriptor::NO_FUNCTION, 0);
        }
        arena
    }

    /// Sets the latency ranges: first, last, where their budget is.
    fn filter(&self, ranges: &[(u64, u64, u64)]) {
        let last = (0, u64::MAX, 0);
        for (index, &(first, last, budget)) in (0..).zip(ranges.iter().chain([&last])) {
            let at = self.control + HEADER + header::FILTER + index * filter::SIZE;
            set(at + filter::FIRST, first);
            set(at + filter::LAST, last);
            set(at + filter::BUDGET, budget);
        }
    }

    fn next(&self) -> u64 {
        self.code + self.used
    }

    fn place(&mut self, bytes: &[u8]) -> u64 {
        let at = self.next();
        self.write(at, bytes);
        self.used = (self.used + bytes.len() as u64).next_multiple_of(16);
        at
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        assert!(at >= self.code && at + (bytes.len() as u64) < self.code + CODE_BYTES as u64);
        // SAFETY: checked to lie in the mapping; no code in it is running.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
    }

    fn assemble(&mut self, emit: impl Fn(&mut CodeAssembler)) -> u64 {
        let mut a = CodeAssembler::new(64).unwrap();
        emit(&mut a);
        let bytes = a.assemble(self.next()).unwrap();
        self.place(&bytes)
    }

    fn descriptor(&self, fnode: u64, function: u32, children: u64) {
        let at = self.descriptor_at(fnode);
        set32(
            at + descriptor::NODE,
            (block::NODES + fnode * node::SIZE) as u32,
        );
        set32(at + descriptor::FUNCTION, function);
        set(at + descriptor::CHILDREN, children);
    }

    fn descriptor_at(&self, fnode: u64) -> u64 {
        self.control + DESCRIPTORS + fnode * descriptor::SIZE
    }

    /// Makes `fnode` one whose function is `function`, with the child at its only site.
    fn expand(&self, fnode: u64, function: u32, child: u64) {
        let list = self.control + HEAP + fnode * 8;
        set(list, child);
        self.descriptor(fnode, function, list);
    }

    fn patch(&mut self, at: u64, len: usize, emit: impl Fn(u64, &Surroundings, &Runtime) -> Stub) {
        let stub = emit(self.next(), &self.around, &self.runtime);
        decodes(&stub.bytes, self.next());
        self.place(&stub.bytes);
        let mut bytes = vec![0x90; len];
        bytes[0] = 0xe9;
        bytes[1..5].copy_from_slice(&(stub.entry.wrapping_sub(at + 5) as u32).to_le_bytes());
        self.write(at, &bytes);
    }

    fn instructions(&self, at: u64, len: usize) -> Vec<Instruction> {
        // SAFETY: inside the code mapping.
        let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, len) };
        Decoder::with_ip(64, bytes, at, DecoderOptions::NONE)
            .into_iter()
            .collect()
    }

    fn patch_f0(&mut self, entry: u64, displaced: usize, end: F0End) {
        self.patch_entry(entry, displaced, end, Flags::Matter);
    }

    fn patch_entry(&mut self, entry: u64, displaced: usize, end: F0End, flags: Flags) {
        let entry_code = Region {
            items: self
                .instructions(entry, displaced)
                .into_iter()
                .map(Item::Plain)
                .collect(),
            next: entry + displaced as u64,
        };
        self.patch(entry, displaced, |at, around, runtime| {
            let f0 = stubs::F0 {
                end,
                ops: &Ops::default(),
                root: around.control + DESCRIPTORS + descriptor::SIZE,
                flags,
            };
            stubs::f0(at, &entry_code, f0, around, runtime).unwrap()
        });
    }

    fn patch_site(&mut self, at: u64, len: usize, site: &Site) {
        self.patch_region(at, len, &[], Item::Site(site.clone()));
    }

    fn patch_region(&mut self, at: u64, len: usize, before: &[Instruction], last: Item) {
        let items = before
            .iter()
            .copied()
            .map(Item::Plain)
            .chain([last])
            .collect();
        let region = Region {
            items,
            next: at + len as u64,
        };
        self.patch(at, len, |at, around, runtime| {
            stubs::region(at, &region, around, runtime).unwrap()
        });
    }

    fn ops(&self) -> Vec<Vec<u64>> {
        let end = word(self.rings + ring::HEAD);
        let mut at = 0;
        let mut records = Vec::new();
        while at < end {
            let record = self.rings + ring::DATA + at;
            let len = word32(record);
            records.push(
                (0..u64::from(len) / 8)
                    .map(|i| word(record + 8 * i))
                    .collect(),
            );
            at += u64::from(len);
        }
        records
    }

    fn block(&self, offset: u64) -> u64 {
        word(self.control + BLOCKS + offset)
    }
}

/// What was emitted are instructions up to the data at the end.
fn decodes(bytes: &[u8], at: u64) {
    let code = &bytes[..bytes.len().min(40)];
    let mut decoder = Decoder::with_ip(64, code, at, DecoderOptions::NONE);
    for _ in 0..4 {
        assert!(!decoder.decode().is_invalid());
    }
}

/// All general registers but rsp, then the flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
struct State {
    registers: [u64; 15],
    flags: u64,
}

const REGISTERS: [AsmRegister64; 15] = [
    rax, rcx, rdx, rbx, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15,
];

impl State {
    fn arbitrary(flags: u64) -> State {
        State {
            registers: std::array::from_fn(|i| 0x0101_0101_0101_0101 * (i as u64 + 1)),
            flags,
        }
    }

    /// rdi, rsi, rdx, rcx, r8, r9.
    fn arguments(&self) -> [u64; 6] {
        [6, 5, 2, 1, 7, 8].map(|index: usize| self.registers[index])
    }
}

/// Emits `extern "C" fn(&mut State)`: takes the state, calls `program`, stores the state.
fn trampoline(arena: &mut Arena, program: u64) -> extern "C" fn(&mut State) {
    let at = arena.assemble(|a| {
        for register in [rbx, rbp, r12, r13, r14, r15] {
            a.push(register).unwrap();
        }
        a.push(rdi).unwrap();
        a.push(qword_ptr(rdi + 15 * 8)).unwrap();
        for (i, register) in REGISTERS.into_iter().enumerate() {
            if register != rdi {
                a.mov(register, qword_ptr(rdi + 8 * i)).unwrap();
            }
        }
        a.mov(rdi, qword_ptr(rdi + 8 * 6)).unwrap();
        a.popfq().unwrap();
        a.call(program).unwrap();
        a.pushfq().unwrap();
        a.push(rdi).unwrap();
        a.mov(rdi, qword_ptr(rsp + 16)).unwrap();
        for (i, register) in REGISTERS.into_iter().enumerate() {
            if register != rdi {
                a.mov(qword_ptr(rdi + 8 * i), register).unwrap();
            }
        }
        a.pop(rax).unwrap();
        a.mov(qword_ptr(rdi + 8 * 6), rax).unwrap();
        a.pop(rax).unwrap();
        a.mov(qword_ptr(rdi + 15 * 8), rax).unwrap();
        a.pop(rdi).unwrap();
        for register in [r15, r14, r13, r12, rbp, rbx] {
            a.pop(register).unwrap();
        }
        a.cld().unwrap();
        a.ret().unwrap();
    });
    // SAFETY: the code just emitted has this signature and keeps what the ABI wants kept.
    unsafe { std::mem::transmute::<u64, extern "C" fn(&mut State)>(at) }
}

/// Flags to try: none, all arithmetic ones with the direction flag, and single ones.
const FLAGS: [u64; 6] = [0x202, 0xed7, 0x203, 0xa02, 0x282, 0x246];

/// Runs the program plainly and patched, from every set of flags, and compares.
fn compare(arena: &mut Arena, program: u64, patch: impl FnOnce(&mut Arena)) {
    let run = trampoline(arena, program);
    let all = |run: extern "C" fn(&mut State)| {
        FLAGS.map(|flags| {
            let mut state = State::arbitrary(flags);
            run(&mut state);
            state
        })
    };
    let plain = all(run);
    patch(arena);
    let patched = all(run);
    assert_eq!(plain, patched);
}

/// A callee that changes what a callee may change, and depends on what it is passed.
fn callee(arena: &mut Arena) -> u64 {
    arena.assemble(|a| {
        a.lea(r10, qword_ptr(rdi + rsi)).unwrap();
        a.add(rdi, 7).unwrap();
        a.xor(r9, qword_ptr(rsp + 8)).unwrap();
        a.add(rax, rcx).unwrap();
        a.stc().unwrap();
        a.ret().unwrap();
    })
}

struct Program {
    f0: u64,
    site: u64,
    after: u64,
}

/// f0 with one call site in the middle, of `len` bytes made by `call`.
fn program(arena: &mut Arena, len: u64, call: impl Fn(&mut CodeAssembler)) -> Program {
    let before = |a: &mut CodeAssembler| {
        a.push(rbx).unwrap();
        a.sub(rsp, 32).unwrap();
        a.mov(qword_ptr(rsp), r12).unwrap();
        a.lea(rbx, qword_ptr(rdi + 3)).unwrap();
    };
    let site = {
        let mut a = CodeAssembler::new(64).unwrap();
        before(&mut a);
        arena.next() + a.assemble(arena.next()).unwrap().len() as u64
    };
    let f0 = arena.assemble(|a| {
        before(a);
        call(a);
        a.adc(rax, rbx).unwrap();
        a.lea(rsp, qword_ptr(rsp + 32)).unwrap();
        a.pop(rbx).unwrap();
        a.ret().unwrap();
    });
    Program {
        f0,
        site,
        after: site + len,
    }
}

fn call_site(kind: Kind, next: u64) -> Site {
    Site {
        function: 5,
        local: 0,
        kind,
        addr: 0,
        next,
        running: None,
        flags: SiteFlags::default(),
        counted: None,
    }
}

const OPS: u64 = FLAGS.len() as u64;
/// The first word of a record's items.
const FIRST_ITEM: usize = (record::HEAD / 8) as usize;

fn check_ops(arena: &Arena, children: &[u64]) {
    let ops = arena.ops();
    assert_eq!(ops.len() as u64, OPS);
    for op in ops {
        let (start, end, latency) = (op[1], op[2], op[3]);
        assert!(start < end && latency == end - start, "{op:?}");
        let state = State::arbitrary(FLAGS[0]);
        let arguments = &op[(record::ARGUMENTS / 8) as usize..][..6];
        assert_eq!(arguments, state.arguments(), "{op:?}");
        assert_eq!(op[6] as u32, std::process::id().max(op[6] as u32));
        assert_eq!(op[5] as u32 as usize, children.len());
        for (item, &child) in op[FIRST_ITEM..].chunks(5).zip(children) {
            let [at, count, sum, max, max_start] = item else {
                panic!("{item:?}")
            };
            assert_eq!(*at, block::NODES + child * node::SIZE);
            assert_eq!((*count, *sum), (1, *max));
            assert!(*max > 0 && *max < latency && start < *max_start && *max_start < end);
        }
    }
    assert_eq!(arena.block(block::TOP), arena.block(block::BASE));
    assert_eq!(arena.block(block::CURRENT), arena.descriptor_at(0));
    assert_eq!(
        word(arena.rings + ring::ENDED_OTHERWISE) + word(arena.rings + ring::DROPPED),
        0
    );
}

#[test]
fn a_direct_call_is_measured_and_nothing_is_disturbed() {
    let mut arena = Arena::new();
    let child = callee(&mut arena);
    let p = program(&mut arena, 5, |a| a.call(child).unwrap());
    arena.expand(1, 5, arena.descriptor_at(2));
    compare(&mut arena, p.f0, |arena| {
        arena.patch_f0(p.f0, 5, F0End::HiddenReturn);
        arena.patch_site(
            p.site,
            5,
            &call_site(Kind::Call(Callee::Direct(child)), p.after),
        );
    });
    check_ops(&arena, &[2]);
}

#[test]
fn flags_that_nobody_looks_at_are_not_missed() {
    for end in [F0End::HiddenReturn, F0End::PatchedReturns] {
        let mut arena = Arena::new();
        let child = callee(&mut arena);
        let p = program(&mut arena, 5, |a| a.call(child).unwrap());
        let tail = arena.instructions(p.after, 10);
        arena.expand(1, 5, arena.descriptor_at(2));
        compare(&mut arena, p.f0, |arena| {
            arena.patch_entry(p.f0, 5, end, Flags::Overwritten);
            let mut site = call_site(Kind::Call(Callee::Direct(child)), p.after);
            site.flags.entering = Flags::Overwritten;
            arena.patch_site(p.site, 5, &site);
            if end == F0End::PatchedReturns {
                arena.patch_region(p.after + 3, 7, &tail[1..3], Item::Ret(tail[3]));
            }
        });
        check_ops(&arena, &[2]);
    }
}

#[test]
fn a_call_outside_of_the_tree_passes_with_its_own_return_address() {
    let mut arena = Arena::new();
    let child = callee(&mut arena);
    let p = program(&mut arena, 5, |a| a.call(child).unwrap());
    compare(&mut arena, p.f0, |arena| {
        arena.patch_f0(p.f0, 5, F0End::HiddenReturn);
        arena.patch_site(
            p.site,
            5,
            &call_site(Kind::Call(Callee::Direct(child)), p.after),
        );
    });
    check_ops(&arena, &[]);
}

#[test]
fn an_indirect_call_is_told_apart_by_its_callee() {
    let operands = [
        Operand::Register(Gpr::Rax),
        Operand::Register(Gpr::R11),
        Operand::Memory(MemoryOperand {
            segment: Segment::None,
            base: Some(Gpr::Rsp),
            index: None,
            displacement: 8,
        }),
    ];
    for operand in operands {
        let mut arena = Arena::new();
        let child = callee(&mut arena);
        let load = |a: &mut CodeAssembler| {
            a.mov(rax, child).unwrap();
            a.mov(r11, rax).unwrap();
            a.mov(qword_ptr(rsp + 8), rax).unwrap();
            a.nop_1::<AsmMemoryOperand>(dword_ptr(rax + rax)).unwrap();
        };
        let call = |a: &mut CodeAssembler| match operand {
            Operand::Register(Gpr::Rax) => a.call(rax).unwrap(),
            Operand::Register(_) => a.call(r11).unwrap(),
            Operand::Memory(_) => a.call(qword_ptr(rsp + 8)).unwrap(),
        };
        let whole = |a: &mut CodeAssembler| {
            load(a);
            call(a);
        };
        let len = |emit: &dyn Fn(&mut CodeAssembler)| {
            let mut a = CodeAssembler::new(64).unwrap();
            emit(&mut a);
            a.assemble(child).unwrap().len() as u64
        };
        let loads = len(&load);
        let p = program(&mut arena, len(&whole), whole);
        let before = arena.instructions(p.site, loads as usize);
        let table = arena.control + HEAP + 4096;
        arena.expand(1, 5, table);
        compare(&mut arena, p.f0, |arena| {
            arena.patch_f0(p.f0, 5, F0End::HiddenReturn);
            let site = call_site(Kind::Call(Callee::Indirect(operand)), p.after);
            arena.patch_region(
                p.site,
                (p.after - p.site) as usize,
                &before,
                Item::Site(site),
            );
        });
        // The first op announced the callee; nobody answered.
        let mut records = arena.ops();
        let announced = records.remove(0);
        assert_eq!(announced[0] >> 32, u64::from(record::TARGET));
        assert_eq!(
            (announced[1], announced[3]),
            (arena.descriptor_at(1), child)
        );
        assert_eq!(records.len() as u64, OPS);
        assert!(records.iter().all(|op| op[5] as u32 == 0));
        // With an answer it has an fnode of its own.
        set(announced[4], arena.descriptor_at(3));
        let run = trampoline(&mut arena, p.f0);
        run(&mut State::arbitrary(0x202));
        let last = arena.ops().pop().unwrap();
        assert_eq!(last[FIRST_ITEM], block::NODES + 3 * node::SIZE);
    }
}

#[test]
fn a_tail_call_and_the_call_it_replaces_are_both_measured() {
    let mut arena = Arena::new();
    let end = callee(&mut arena);
    let middle = arena.assemble(|a| {
        a.lea(rdi, qword_ptr(rdi + rdi)).unwrap();
        a.jmp(end).unwrap();
        a.nop().unwrap();
        a.nop().unwrap();
        a.nop().unwrap();
    });
    let jump = middle + 4;
    let p = program(&mut arena, 5, |a| a.call(middle).unwrap());
    arena.expand(1, 5, arena.descriptor_at(2));
    arena.expand(2, 6, arena.descriptor_at(3));
    compare(&mut arena, p.f0, |arena| {
        arena.patch_f0(p.f0, 5, F0End::HiddenReturn);
        arena.patch_site(
            p.site,
            5,
            &call_site(Kind::Call(Callee::Direct(middle)), p.after),
        );
        let mut site = call_site(Kind::Tail(Callee::Direct(end), None), jump + 5);
        site.function = 6;
        arena.patch_site(jump, 5, &site);
    });
    let ops = arena.ops();
    assert_eq!(ops.len() as u64, OPS);
    for op in ops {
        assert_eq!(op[FIRST_ITEM], block::NODES + 3 * node::SIZE);
        assert_eq!(op[FIRST_ITEM + 5], block::NODES + 2 * node::SIZE);
        assert!(op[FIRST_ITEM + 3] < op[FIRST_ITEM + 8]);
    }
}

#[test]
fn patched_returns_end_an_op_without_a_hidden_return_address() {
    let mut arena = Arena::new();
    let child = callee(&mut arena);
    let p = program(&mut arena, 5, |a| a.call(child).unwrap());
    arena.expand(1, 5, arena.descriptor_at(2));
    let tail = arena.instructions(p.after, 10);
    // adc rax,rbx (3); lea rsp,[rsp+32] (5); pop rbx (1); ret (1)
    assert_eq!(
        tail.iter().map(|i| i.len()).collect::<Vec<_>>(),
        [3, 5, 1, 1]
    );
    compare(&mut arena, p.f0, |arena| {
        arena.patch_f0(p.f0, 5, F0End::PatchedReturns);
        arena.patch_site(
            p.site,
            5,
            &call_site(Kind::Call(Callee::Direct(child)), p.after),
        );
        arena.patch_region(p.after + 3, 7, &tail[1..3], Item::Ret(tail[3]));
    });
    check_ops(&arena, &[2]);
}

#[test]
fn a_system_call_is_measured_and_the_red_zone_kept() {
    let mut arena = Arena::new();
    let f0 = arena.assemble(|a| {
        a.push(rbx).unwrap();
        a.mov(rbx, rax).unwrap();
        a.nop().unwrap();
        a.mov(qword_ptr(rsp - 8), r12).unwrap();
        a.mov(qword_ptr(rsp - 128), r13).unwrap();
        a.cmp(r12, r13).unwrap();
        a.mov(eax, libc::SYS_getpid as i32).unwrap();
        a.syscall().unwrap();
        // The instruction changes r11 and rcx; these depend on the flags and on where it is.
        a.mov(r8, qword_ptr(rsp - 8)).unwrap();
        a.mov(r9, qword_ptr(rsp - 128)).unwrap();
        a.pop(rbx).unwrap();
        a.ret().unwrap();
    });
    let code = arena.instructions(f0, 48);
    let at = code
        .iter()
        .position(|i| i.mnemonic() == iced_x86::Mnemonic::Syscall)
        .unwrap();
    let (load, call) = (code[at - 1], code[at]);
    arena.expand(1, 5, arena.descriptor_at(2));
    compare(&mut arena, f0, |arena| {
        arena.patch_f0(f0, 5, F0End::HiddenReturn);
        let site = call_site(Kind::Syscall { by_number: false }, call.next_ip());
        arena.patch_region(load.ip(), load.len(), &[load], Item::Site(site));
    });
    check_ops(&arena, &[2]);
}

#[test]
fn ops_outside_of_the_filter_are_only_counted() {
    let mut arena = Arena::new();
    let child = callee(&mut arena);
    let p = program(&mut arena, 5, |a| a.call(child).unwrap());
    arena.filter(&[(u64::MAX - 1, u64::MAX, ring::BUDGETS)]);
    compare(&mut arena, p.f0, |arena| {
        arena.patch_f0(p.f0, 5, F0End::HiddenReturn)
    });
    assert!(arena.ops().is_empty());
    assert_eq!(word(arena.rings + ring::SAMPLED), 0);
    check_histogram(&arena, OPS);
}

/// All of so many ops are in the histogram, each where it belongs.
fn check_histogram(arena: &Arena, expected: u64) {
    let histogram: Vec<_> = (0..ring::BUCKETS)
        .map(|i| arena.rings + ring::HISTOGRAM + 16 * i)
        .map(|at| (word(at), word(at + 8)))
        .enumerate()
        .filter(|(_, (ops, _))| *ops > 0)
        .collect();
    let ops = histogram.iter().map(|(_, (ops, _))| ops).sum::<u64>();
    assert_eq!(ops, expected);
    assert_eq!(word(arena.rings + ring::COUNTED), expected);
    for (index, (ops, total)) in histogram {
        assert_eq!(bucket(total / ops), index as u64);
    }
}

#[test]
fn when_a_budget_is_used_up_ops_are_only_counted() {
    let mut arena = Arena::new();
    let child = callee(&mut arena);
    let p = program(&mut arena, 5, |a| a.call(child).unwrap());
    // The first range never fits; the second has the second budget.
    let budget = ring::BUDGETS + 8;
    arena.filter(&[(u64::MAX, u64::MAX, ring::BUDGETS), (0, u64::MAX, budget)]);
    arena.patch_f0(p.f0, 5, F0End::HiddenReturn);
    let run = trampoline(&mut arena, p.f0);
    for _ in 0..ring::BUDGET + 5 {
        run(&mut State::arbitrary(0x202));
    }
    assert_eq!(arena.ops().len() as u64, ring::BUDGET);
    assert_eq!(word(arena.rings + ring::SAMPLED), 5);
    check_histogram(&arena, 5);
    set(arena.rings + budget, 2);
    for _ in 0..3 {
        run(&mut State::arbitrary(0x202));
    }
    assert_eq!(arena.ops().len() as u64, ring::BUDGET + 2);
    assert_eq!(word(arena.rings + ring::SAMPLED), 6);
    check_histogram(&arena, 6);
}

#[test]
fn when_all_budgets_are_used_up_calls_are_not_measured() {
    let mut arena = Arena::new();
    let child = callee(&mut arena);
    let p = program(&mut arena, 5, |a| a.call(child).unwrap());
    arena.expand(1, 5, arena.descriptor_at(2));
    // A range that never fits must not keep the other one's ops from passing: it has no budget either.
    let other = ring::BUDGETS + 8;
    arena.filter(&[(u64::MAX, u64::MAX, other), (0, u64::MAX, ring::BUDGETS)]);
    compare(&mut arena, p.f0, |arena| {
        arena.patch_f0(p.f0, 5, F0End::HiddenReturn);
        let site = call_site(Kind::Call(Callee::Direct(child)), p.after);
        arena.patch_site(p.site, 5, &site);
        set(arena.rings + other, 1);
    });
    let run = trampoline(&mut arena, p.f0);
    let recorded = arena.ops().len();
    set(arena.rings + ring::BUDGETS, 1);
    run(&mut State::arbitrary(0x202));
    assert_eq!(word(arena.rings + ring::SPENT), 0, "one range has a budget");
    set(arena.rings + other, 0);
    set(arena.rings + ring::BUDGETS, 1);
    run(&mut State::arbitrary(0x202));
    assert_eq!(word(arena.rings + ring::SPENT), 1);
    let ops = arena.ops();
    assert_eq!(ops.len(), recorded + 2);
    let epoch = arena.block(block::EPOCH);
    // Budgets that come in the middle of an op whose calls passed change nothing for it.
    set(arena.rings + ring::BUDGETS, 5);
    run(&mut State::arbitrary(0x202));
    assert_eq!(arena.ops().len(), recorded + 2);
    assert_eq!(arena.block(block::EPOCH), epoch + 1);
    assert_eq!(
        arena.block(block::TOUCHED) as u32,
        0,
        "no call was credited"
    );
    set(arena.rings + ring::SPENT, 0);
    run(&mut State::arbitrary(0x202));
    assert_eq!(arena.ops().len(), recorded + 3);
    assert_eq!(arena.block(block::TOUCHED) as u32, 1);
}

#[test]
fn a_full_ring_drops_records_and_says_so() {
    let mut arena = Arena::new();
    let child = callee(&mut arena);
    let p = program(&mut arena, 5, |a| a.call(child).unwrap());
    arena.patch_f0(p.f0, 5, F0End::HiddenReturn);
    let run = trampoline(&mut arena, p.f0);
    let room = ring::DATA_BYTES / record::HEAD;
    for _ in 0..room + 3 {
        run(&mut State::arbitrary(0x202));
        set(arena.rings + ring::SPENT, 0);
        set(arena.rings + ring::BUDGETS, 1);
    }
    assert_eq!(arena.ops().len() as u64, room);
    assert_eq!(word(arena.rings + ring::DROPPED), 3);
    check_histogram(&arena, 3);
}

#[test]
fn a_forked_child_writes_nothing() {
    let mut arena = Arena::new();
    let child = callee(&mut arena);
    let p = program(&mut arena, 5, |a| a.call(child).unwrap());
    arena.patch_f0(p.f0, 5, F0End::HiddenReturn);
    let run = trampoline(&mut arena, p.f0);
    run(&mut State::arbitrary(0x202));
    set32(arena.control + LIVE, 0);
    run(&mut State::arbitrary(0x202));
    assert_eq!(arena.ops().len(), 1);
}

#[test]
fn a_running_function_is_cut_into_windows() {
    let mut arena = Arena::new();
    let child = callee(&mut arena);
    let p = program(&mut arena, 5, |a| a.call(child).unwrap());
    arena.expand(1, 5, arena.descriptor_at(2));
    compare(&mut arena, p.f0, |arena| {
        let mut site = call_site(Kind::Call(Callee::Direct(child)), p.after);
        site.running = Some(arena.descriptor_at(1));
        arena.patch_site(p.site, 5, &site);
    });
    let window = arena.control + BLOCKS + block::SHADOW + entry::SIZE;
    assert_eq!(word(window + entry::SLOT), entry::WINDOW_SLOT as i64 as u64);
    assert_eq!(arena.block(block::CURRENT), arena.descriptor_at(1));
    assert!(arena.ops().is_empty(), "it is too young to end");
    let begun = word(window + entry::START) - 2 * WINDOW_CYCLES as u64;
    set(window + entry::START, begun);
    set(
        window + entry::ADJUSTED,
        word(window + entry::ADJUSTED) - 2 * WINDOW_CYCLES as u64,
    );
    let run = trampoline(&mut arena, p.f0);
    run(&mut State::arbitrary(FLAGS[0]));
    let [op] = &arena.ops()[..] else {
        panic!("{:?}", arena.ops())
    };
    assert_eq!((op[1], op[5] as u32), (begun, 1));
    assert_eq!(
        (op[FIRST_ITEM + 1], op[FIRST_ITEM]),
        (OPS + 1, block::NODES + 2 * node::SIZE)
    );
    assert_eq!(
        word(window + entry::START),
        op[2],
        "the next one began at once"
    );
    assert_eq!(arena.block(block::CURRENT), arena.descriptor_at(1));
    // A site of a function in which nothing is measured opens none.
    arena.descriptor(1, descriptor::NO_FUNCTION, 0);
    set(
        arena.control + BLOCKS + block::TOP,
        arena.block(block::BASE),
    );
    set(
        arena.control + BLOCKS + block::CURRENT,
        arena.descriptor_at(0),
    );
    run(&mut State::arbitrary(FLAGS[0]));
    assert_eq!(arena.block(block::TOP), arena.block(block::BASE));
}

#[test]
fn only_calls_from_the_named_callers_are_ops() {
    for (wanted, expected) in [(0, 0), (1, 1)] {
        let mut arena = Arena::new();
        let child = callee(&mut arena);
        let p = program(&mut arena, 5, |a| a.call(child).unwrap());
        // The program calls its callee, which plays f0 here.
        let ops = Ops {
            callers: vec![p.after ^ 0x1000, if wanted == 1 { p.after } else { 1 }],
            ..Ops::default()
        };
        let displaced = arena.instructions(child, 8);
        let entry_code = Region {
            items: displaced[..2].iter().copied().map(Item::Plain).collect(),
            next: displaced[1].next_ip(),
        };
        compare(&mut arena, p.f0, |arena| {
            arena.patch(child, 8, |at, around, runtime| {
                let f0 = stubs::F0 {
                    flags: Flags::Matter,
                    end: F0End::HiddenReturn,
                    ops: &ops,
                    root: around.control + DESCRIPTORS + descriptor::SIZE,
                };
                stubs::f0(at, &entry_code, f0, around, runtime).unwrap()
            });
        });
        assert_eq!(arena.ops().len() as u64, expected * OPS);
    }
}

mod counted;
mod requests;

/// Prints cycles an op: `cargo test -p darc-tracer what_an_op_costs -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn what_an_op_costs() {
    for (calls, ends) in [
        (0, F0End::PatchedReturns),
        (1, F0End::PatchedReturns),
        (3, F0End::PatchedReturns),
        (0, F0End::HiddenReturn),
        (3, F0End::HiddenReturn),
    ] {
        let mut arena = Arena::new();
        let child = arena.assemble(|a| {
            a.lea(rax, qword_ptr(rdi + 3)).unwrap();
            a.ret().unwrap();
        });
        let f0 = arena.assemble(|a| {
            a.push(rbx).unwrap();
            a.sub(rsp, 16).unwrap();
            for _ in 0..calls {
                a.call(child).unwrap();
            }
            a.add(rsp, 16).unwrap();
            a.pop(rbx).unwrap();
            a.ret().unwrap();
        });
        let ops = arena.assemble(|a| {
            let mut again = a.create_label();
            a.push(rbx).unwrap();
            a.mov(rbx, 20_000_u64).unwrap();
            a.set_label(&mut again).unwrap();
            a.call(f0).unwrap();
            a.dec(rbx).unwrap();
            a.jne(again).unwrap();
            a.pop(rbx).unwrap();
            a.ret().unwrap();
        });
        // SAFETY: the code just emitted has this signature and keeps what the ABI wants kept.
        let run = unsafe { std::mem::transmute::<u64, extern "C" fn()>(ops) };
        let least = || {
            (0..200)
                .map(|_| {
                    let since = crate::tsc().0;
                    run();
                    crate::tsc().0 - since
                })
                .min()
                .unwrap() as f64
                / 20_000.0
        };
        let bare = least();
        let list = arena.control + HEAP + 8;
        arena.descriptor(1, 5, list);
        for local in 0..calls {
            set(list + 8 * local, arena.descriptor_at(2 + local));
        }
        let first = 5;
        arena.patch_entry(f0, first, ends, Flags::Overwritten);
        for local in 0..calls {
            let at = f0 + first as u64 + 5 * local;
            let mut site = call_site(Kind::Call(Callee::Direct(child)), at + 5);
            site.local = local as u32;
            site.flags.entering = Flags::Overwritten;
            site.flags.returning = Flags::Overwritten;
            arena.patch_site(at, 5, &site);
        }
        let tail_at = f0 + first as u64 + 5 * calls;
        let tail = arena.instructions(tail_at, 6);
        if ends == F0End::PatchedReturns {
            arena.patch_region(tail_at, 6, &tail[..2], Item::Ret(tail[2]));
        }
        let probed = least();
        eprintln!(
            "{calls} calls, {ends:?}: {bare:.1} bare, {probed:.1} probed, {} records",
            arena.ops().len()
        );
    }
}
