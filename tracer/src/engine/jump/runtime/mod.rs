//! The routines that all stubs of an arena share: everything that is not the common case.
//!
//! Pure: bytes for an address. Conventions: rcx is the thread's block; rsi the first free entry of
//! the shadow stack; rdi a stack slot or a clock reading. The stubs have saved rax, rcx, rdx, rsi, rdi
//! and the flags; a routine keeps all other registers.

mod accounts;
mod counted;
mod frames;
mod reads;
mod records;
mod threads;
mod windows;

use iced_x86::code_asm::*;

use super::asm::{Code, Emitted, Surroundings};
use super::layout::{DESCRIPTORS, place};

pub use accounts::{credit, latency};
use counted::Noticed;
pub use frames::DEEPEST_STACK;
use frames::{By, SameSlot};

/// Addresses of the routines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Runtime {
    /// rax thread pointer, rdx table offset → rcx block, zero for an unknown thread.
    pub lookup: u64,
    /// As `lookup`, but gives an unknown thread a block when there is one.
    pub register: u64,
    /// rcx block, r13 its number, rax the descriptor of the goroutine whose it is from now on, rdx table offset → rcx the
    /// same, zero where the table is crowded.
    pub adopt: u64,
    /// rcx block: the guess for this stack from now on. rax, rdx are lost.
    pub remember: u64,
    /// The thread pointer belongs to a new thread: forget what the old one did. Zero flag: done; else the
    /// block is not the thread's. rax, rdx are lost.
    pub renew: u64,
    /// rax accumulator, rsi its entry, rdx the op, rdi latency: begins the accumulator's op with this
    /// call. rax and rdx are lost.
    pub first: u64,
    /// rdi slot of a new frame: gives up entries that it shows to be dead. Sets rsi.
    pub stale: u64,
    /// As `stale`, for a tail call: an entry with the same slot is that of the frame which it replaces.
    pub stale_at_tail: u64,
    /// rdi slot of a new frame; the shadow stack is full or return addresses were revealed.
    /// Zero flag: pass; else try again.
    pub slow: u64,
    /// rdx slot, rsi top: finds the entry of that slot. Zero flag: found, rsi behind it.
    pub find: u64,
    /// As `find`, but only the entry of a call that returns to the address in rdi.
    pub find_landing: u64,
    /// The thread is on another stack than that of the frames that are awaited: notes that. Changes the flags only.
    pub switched: u64,
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
    /// rcx block of a goroutine, rsi when it stopped running, rdi when it could go on: tells of it. r12 and r14 are kept, rcx,
    /// rbx, rbp and r15 as well.
    pub absence: u64,
    /// rdx what a function was called with, in memory: tells that a request is handed over. rax is lost.
    pub enqueued: u64,
    /// rax address → rax the word there. Zero flag: it could be read.
    pub read: u64,
    /// rdi slot, rdx place: begins a counted call. Zero flag: rsi its entry, rcx its counts, rdi what was
    /// stolen so far; else pass.
    pub count_in: u64,
    /// rdi clock reading, rdx slot: ends the counted call whose return address is hidden there, and puts
    /// that back. Zero flag: done; else the slot is unknown.
    pub count_out: u64,
    /// rdi clock reading, rdx slot: ends the counted call that returns by it, if there is one.
    pub count_ret: u64,
    /// As `count_ret`, for calls that are counted at their site.
    pub count_back: u64,
    /// rax descriptor of a function that runs already, rdx its function, rsi top. Zero flag: look at the
    /// site again; else pass.
    pub window: u64,
    /// rax that descriptor, rsi top: a call returned to it.
    pub cut: u64,
}

impl Runtime {
    /// The addresses of all of them.
    #[must_use]
    pub fn all(&self) -> [u64; 27] {
        [
            self.lookup,
            self.register,
            self.adopt,
            self.remember,
            self.renew,
            self.first,
            self.stale,
            self.stale_at_tail,
            self.slow,
            self.find,
            self.find_landing,
            self.switched,
            self.nested,
            self.end,
            self.reveal,
            self.caught,
            self.target,
            self.anywhere,
            self.absence,
            self.enqueued,
            self.read,
            self.count_in,
            self.count_out,
            self.count_ret,
            self.count_back,
            self.window,
            self.cut,
        ]
    }
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
        mut remember,
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
    let [mut window, mut cut, mut open, mut window_place] =
        std::array::from_fn(|_| a.create_label());
    let [mut count_in, mut count_out, mut count_ret, mut count_back] =
        std::array::from_fn(|_| a.create_label());
    threads::lookup(&mut a, &mut lookup, around)?;
    let mut adopt = a.create_label();
    threads::register(&mut a, &mut register, &mut adopt, lookup, around)?;
    threads::remember(&mut a, &mut remember, around)?;
    threads::renew(&mut a, &mut renew, &labels, around)?;
    accounts::first(&mut a, &mut first)?;
    accounts::count(&mut a, &mut labels.count, first, around)?;
    frames::readable(&mut a, &mut labels.readable)?;
    frames::switched(&mut a, &mut labels.switched, around)?;
    let mut abandon = labels.abandon;
    counted::abandon(&mut a, &mut abandon, around)?;
    labels.abandon = abandon;
    let mut give_up = labels.give_up;
    frames::give_up(&mut a, &mut give_up, &labels, around)?;
    labels.give_up = give_up;
    frames::stale(&mut a, &mut stale, SameSlot::Dead, &labels, around)?;
    let mut stale_at_tail = a.create_label();
    frames::stale(
        &mut a,
        &mut stale_at_tail,
        SameSlot::Replaced,
        &labels,
        around,
    )?;
    let mut resync = labels.resync;
    frames::resync(&mut a, &mut resync, &labels)?;
    labels.resync = resync;
    frames::slow(&mut a, &mut slow, &labels)?;
    frames::caught(&mut a, &mut caught, &labels)?;
    frames::find(&mut a, &mut find, By::Slot, &labels, around)?;
    let mut find_landing = a.create_label();
    frames::find(
        &mut a,
        &mut find_landing,
        By::SlotAndLanding,
        &labels,
        around,
    )?;
    frames::nested(&mut a, &mut nested, &labels, around)?;
    frames::reveal(&mut a, &mut reveal, &labels)?;
    records::reserve(&mut a, &mut labels.reserve)?;
    records::end(&mut a, &mut end, &labels, around)?;
    records::target(&mut a, &mut target, &labels, around)?;
    let [mut enqueued, mut read] = std::array::from_fn(|_| a.create_label());
    records::enqueued(&mut a, &mut enqueued, &labels)?;
    let mut absence = a.create_label();
    records::absence(&mut a, &mut absence, around, &labels)?;
    reads::read(&mut a, &mut read, around)?;
    threads::anywhere(&mut a, &mut anywhere, around)?;
    let threads = counted::Threads { register, renew };
    counted::enter(&mut a, &mut count_in, threads, slow, &labels, around)?;
    counted::leave(
        &mut a,
        &mut count_out,
        Noticed::HiddenReturn,
        lookup,
        find,
        around,
    )?;
    counted::leave(&mut a, &mut count_ret, Noticed::Ret, lookup, find, around)?;
    counted::leave(
        &mut a,
        &mut count_back,
        Noticed::BySite,
        lookup,
        find,
        around,
    )?;
    windows::window(&mut a, &mut window, open, around)?;
    let opening = open;
    windows::open(&mut a, &mut open, window_place, around)?;
    windows::cut(&mut a, &mut cut, opening, end, around)?;
    a.set_label(&mut window_place)?;
    a.dq(&[0, 0, u64::from(place::F0), 0])?;
    let code = Code::assemble(&mut a, at)?;
    let runtime = Runtime {
        lookup: code.address(&lookup)?,
        register: code.address(&register)?,
        adopt: code.address(&adopt)?,
        remember: code.address(&remember)?,
        renew: code.address(&renew)?,
        first: code.address(&first)?,
        stale: code.address(&stale)?,
        stale_at_tail: code.address(&stale_at_tail)?,
        slow: code.address(&slow)?,
        find: code.address(&find)?,
        find_landing: code.address(&find_landing)?,
        switched: code.address(&labels.switched)?,
        nested: code.address(&nested)?,
        end: code.address(&end)?,
        reveal: code.address(&reveal)?,
        caught: code.address(&caught)?,
        target: code.address(&target)?,
        anywhere: code.address(&anywhere)?,
        absence: code.address(&absence)?,
        enqueued: code.address(&enqueued)?,
        read: code.address(&read)?,
        count_in: code.address(&count_in)?,
        count_out: code.address(&count_out)?,
        count_ret: code.address(&count_ret)?,
        count_back: code.address(&count_back)?,
        window: code.address(&window)?,
        cut: code.address(&cut)?,
    };
    Ok((code.bytes(), runtime))
}

/// Routines that only routines call.
struct Labels {
    /// rsi entry, rdi clock reading: credits the call to its fnode. Changes rax, rdx.
    count: CodeLabel,
    /// Whether rax can be read.
    readable: CodeLabel,
    /// The thread is on another stack than that of the frames that are awaited: notes that.
    switched: CodeLabel,
    /// rsi top: takes the top entry off without a return; a call has lasted until now. Changes rax, rdx; sets rsi.
    give_up: CodeLabel,
    /// rdi slot: gives up entries below, hides the others again.
    resync: CodeLabel,
    /// rsi entry, rax its place: a counted call will not be seen to return. Changes rdx, rdi.
    abandon: CodeLabel,
    /// rax length → r8 where to write the record (zero: no room), r9 new head. Changes r10, r11, rdx.
    reserve: CodeLabel,
}

impl Labels {
    fn new(a: &mut CodeAssembler) -> Labels {
        Labels {
            count: a.create_label(),
            readable: a.create_label(),
            switched: a.create_label(),
            give_up: a.create_label(),
            resync: a.create_label(),
            abandon: a.create_label(),
            reserve: a.create_label(),
        }
    }
}

fn none(around: &Surroundings) -> u64 {
    around.control + DESCRIPTORS
}
