//! Runs emitted stubs inside the test process, around tiny programs, and compares every register,
//! the flags and the red zone with an undisturbed run.
#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr;

use darc_disasm::{Gpr, MemoryOperand, Operand, Segment};
use darc_record::Touched;
use iced_x86::code_asm::*;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};

use super::asm::Surroundings;
use super::flags::Flags;
use super::layout::*;
use super::ops::Ops;
use super::runtime::{self, Runtime};
use super::stubs::{self, Callee, F0End, Item, Kind, Region, Site, SiteFlags, Stub};
use crate::plan::Goroutines;

use super::unwinding::{self, Anchor, Calls, Row};

mod budgets;
mod calls;
mod cost;
mod counted;
mod delays;
mod ends;
mod frames;
mod goroutines;
mod interrupted;
mod landings;
mod requests;
mod unwinders;
mod windows;

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
    /// What is known of the code that was emitted, by its extent.
    frames: Vec<(Range<u64>, Vec<Row>)>,
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
    // SAFETY: as in `word`.
    unsafe { ptr::read_volatile(at as *const u32) }
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
        Arena::with(|_| {})
    }

    /// One in which the stubs follow goroutines, if that is known of them.
    fn of(goroutines: Option<Goroutines>) -> Arena {
        Arena::with(|around| around.goroutines = goroutines)
    }

    /// One for other surroundings than usual.
    fn with(change: impl Fn(&mut Surroundings)) -> Arena {
        let data = libc::PROT_READ | libc::PROT_WRITE;
        let code = map(CODE_BYTES, data | libc::PROT_EXEC);
        // With room behind the last block, in which nobody has any business.
        let control = map((BLOCKS + (BLOCK_COUNT + 1) * block::SIZE) as usize, data);
        let rings = map((BLOCK_COUNT * ring::SIZE) as usize, data);
        let mut around = Surroundings {
            pid: std::process::id() as i32,
            control,
            rings,
            ring_bytes: ring::SIZE,
            inside: 0,
            outside: 0,
            inside_f0: 0,
            counted: (0, 0),
            delays: None,
            tid_offset: None,
            tells_pointer: crate::sys::tells_thread_pointer(),
            goroutines: None,
            field: None,
        };
        change(&mut around);
        let mut arena = Arena {
            code,
            used: 0,
            control,
            rings,
            around,
            runtime: Runtime::default(),
            frames: Vec::new(),
        };
        let (bytes, runtime) = runtime::emit(code, &around).unwrap();
        let routines = runtime.all().map(Anchor::called);
        let rows = unwinding::rows(&bytes, code, Calls::Return, &routines);
        arena.frames.push((code..code + bytes.len() as u64, rows));
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
        self.patch_arriving(at, len, stubs::Arrival::Jump, emit);
    }

    fn patch_arriving(
        &mut self,
        at: u64,
        len: usize,
        arrival: stubs::Arrival,
        emit: impl Fn(u64, &Surroundings, &Runtime) -> Stub,
    ) {
        let stub = emit(self.next(), &self.around, &self.runtime);
        decodes(&stub.bytes, self.next());
        let at_stub = self.place(&stub.bytes);
        let extent = at_stub..at_stub + stub.bytes.len() as u64;
        self.frames.push((extent, stub.frames));
        // A call ends where what it replaces ends.
        let (opcode, filling, from) = match arrival {
            stubs::Arrival::Jump | stubs::Arrival::BehindFirst(_) => (0xe9, 0x90, 0),
            stubs::Arrival::Call => (0xe8, 0x2e, len - 5),
        };
        let mut bytes = vec![filling; len];
        bytes[from] = opcode;
        let behind = at + from as u64 + 5;
        let distance = stub.entry.wrapping_sub(behind) as u32;
        bytes[from + 1..from + 5].copy_from_slice(&distance.to_le_bytes());
        self.write(at, &bytes);
    }

    fn instructions(&self, at: u64, len: usize) -> Vec<Instruction> {
        // SAFETY: inside the code mapping.
        let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, len) };
        Decoder::with_ip(64, bytes, at, DecoderOptions::NONE)
            .into_iter()
            .collect()
    }

    /// What is displaced for an entry, which may have a `ret` among it.
    fn entry_items(&self, entry: u64, displaced: usize, end: F0End) -> Vec<Item> {
        let instructions = self.instructions(entry, displaced).into_iter();
        let ends = |i: &Instruction| {
            end == F0End::PatchedReturns && i.flow_control() == FlowControl::Return
        };
        let items = instructions.map(|instruction| match ends(&instruction) {
            true => Item::Ret(instruction),
            false => Item::Plain(instruction),
        });
        items.collect()
    }

    fn patch_f0(&mut self, entry: u64, displaced: usize, end: F0End) {
        self.patch_entry(entry, displaced, end, Flags::Matter);
    }

    fn patch_entry(&mut self, entry: u64, displaced: usize, end: F0End, flags: Flags) {
        self.patch_f0_at(entry, entry, displaced, end, flags, stubs::Arrival::Jump);
    }

    /// The entry of an f0, behind its first instruction, which takes `first` bytes and lowers the stack pointer.
    fn patch_f0_behind(
        &mut self,
        entry: u64,
        first: usize,
        lowers: i32,
        displaced: usize,
        end: F0End,
    ) {
        let arrival = stubs::Arrival::BehindFirst(lowers);
        let at = entry + first as u64;
        self.patch_f0_at(entry, at, displaced - first, end, Flags::Matter, arrival);
    }

    fn patch_f0_at(
        &mut self,
        entry: u64,
        at: u64,
        len: usize,
        end: F0End,
        flags: Flags,
        arrival: stubs::Arrival,
    ) {
        let next = at + len as u64;
        let entry_code = Region {
            items: self.entry_items(entry, (next - entry) as usize, end),
            next,
            arrival,
        };
        self.patch_arriving(at, len, arrival, |at, around, runtime| {
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

    fn patch_region(&mut self, at: u64, len: usize, before: &[Instruction], mut last: Item) {
        if let Item::Site(site) = &mut last {
            site.addr = before.last().map_or(at, Instruction::next_ip);
        }
        let items = before
            .iter()
            .copied()
            .map(Item::Plain)
            .chain([last])
            .collect();
        let region = Region {
            items,
            next: at + len as u64,
            arrival: stubs::Arrival::Jump,
        };
        self.patch(at, len, |at, around, runtime| {
            stubs::region(at, &region, around, runtime).unwrap()
        });
    }

    /// What is known of an address, where it is of the code that was emitted.
    fn row(&self, at: u64) -> Option<Row> {
        let mut extents = self.frames.iter();
        let (_, rows) = extents.find(|(extent, _)| extent.contains(&at))?;
        rows.iter().rfind(|row| row.from <= at).copied()
    }

    fn ops(&self) -> Vec<Vec<u64>> {
        self.ops_of(0)
    }

    /// The records in the ring of a block.
    fn ops_of(&self, index: u64) -> Vec<Vec<u64>> {
        let ring = self.rings + index * ring::SIZE;
        let end = word(ring + ring::HEAD);
        let mut at = 0;
        let mut records = Vec::new();
        while at < end {
            let record = ring + ring::DATA + at;
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
    let seen = frames::seen(arena, run);
    patch(arena);
    // In children, so that nothing of it is measured here.
    let (arrived, unknown) = frames::unwind_everywhere(arena, run, &seen);
    assert!(arrived > 100 * unknown, "{arrived} {unknown}");
    let patched = all(run);
    assert_eq!(plain, patched);
}

/// A function of five bytes.
fn short(arena: &mut Arena) -> u64 {
    arena.assemble(|a| {
        a.lea(rax, qword_ptr(rdi + 1)).unwrap();
        a.ret().unwrap();
    })
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
        returns: stubs::CallReturns::ToStub,
        distance: None,
    }
}

const OPS: u64 = FLAGS.len() as u64;
/// The first word of a record's items.
const FIRST_ITEM: usize = (record::HEAD / 8) as usize;

/// Where an item's accumulator is in the block.
fn node_of(item: u64) -> u64 {
    u64::from(item as u32)
}

fn check_ops(arena: &Arena, children: &[u64]) {
    let ops = arena.ops();
    assert_eq!(ops.len() as u64, OPS);
    for op in ops {
        let (start, end, latency) = (op[1], op[2], op[3]);
        assert!(start < end && latency == end - start, "{op:?}");
        let state = State::arbitrary(FLAGS[0]);
        let arguments = &op[(record::ARGUMENTS / 8) as usize..][..6];
        assert_eq!(arguments, state.arguments(), "{op:?}");
        assert_eq!(op[6] as i32, nix::unistd::gettid().as_raw());
        assert_eq!(op[5] as u32 as usize, children.len());
        for (item, &child) in op[FIRST_ITEM..].chunks(5).zip(children) {
            let [at_and_long, count, sum, max, max_start] = item else {
                panic!("{item:?}")
            };
            assert_eq!(node_of(*at_and_long), block::NODES + child * node::SIZE);
            assert_eq!((*count, *sum), (1, *max));
            let is_long = *max >= Touched::LONG.0;
            let long = if is_long { *max } else { 0 };
            assert_eq!(*at_and_long >> 32, long >> record::ITEM_LONG_BITS);
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
