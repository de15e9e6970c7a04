//! What comes in between anywhere in the stubs: signals, with handlers that look at the stack, leave it or make calls, and the end of
//! the tracer.

use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};

use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::*;
use crate::addr::TargetAddr;
use crate::engine::jump::removal;
use crate::memory::Memory;
use crate::sys;

/// What a signal handler does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Handler {
    /// Looks at the stack, as `backtrace` does, and returns.
    Backtrace,
    /// Throws an exception, which is caught where all began.
    Throw,
    /// Jumps to where all began, as `siglongjmp` does.
    Jump,
    /// Makes calls that are measured, and returns.
    Call,
    /// There is none: the tracer has been killed, and the next one puts the return addresses back.
    None,
}

thread_local! {
    /// The function at which the stubs put return addresses back.
    static UNWINDER: Cell<u64> = const { Cell::new(0) };
    /// A function that makes measured calls, as many as its fifth argument has groups of twenty bits.
    static CALLER: Cell<u64> = const { Cell::new(0) };
}

extern "C" fn call(_: i32) {
    // SAFETY: the function was emitted by the test, and keeps what the ABI wants kept.
    let caller: extern "C" fn(u64, u64, u64, u64, u64) =
        unsafe { std::mem::transmute(CALLER.get()) };
    caller(1, 2, 3, 4, 1 << 40);
}

extern "C" fn look_at_the_stack(_: i32) {
    // SAFETY: the function was emitted by the test, and returns at once.
    let unwinder: extern "C" fn() = unsafe { std::mem::transmute(UNWINDER.get()) };
    unwinder();
}

extern "C" fn throw(signal: i32) {
    look_at_the_stack(signal);
    // Here the test moves the child to where it is caught.
    let _ = raise(Signal::SIGTRAP);
}

fn install(handler: Handler) {
    let function = match handler {
        Handler::Backtrace => look_at_the_stack,
        Handler::Throw | Handler::Jump => throw,
        Handler::Call | Handler::None => call,
    };
    // SAFETY: an all-zero action is a valid one, and the handler has the signature that it is called with.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = function as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, ptr::null_mut()), 0);
    }
}

/// Runs the code in a child whose handler is called when it comes to an instruction for the n-th time. How the child ended.
fn interrupt(
    arena: &Arena,
    run: extern "C" fn(&mut State),
    (at, times): (u64, usize),
    handler: Handler,
    judge: &dyn Fn(&State) -> i32,
) -> WaitStatus {
    let child = sys::fork_into(|| {
        let mut state = State::arbitrary(FLAGS[0]);
        install(handler);
        let _ = ptrace::traceme();
        let _ = raise(Signal::SIGSTOP);
        run(&mut state);
        sys::exit_now(judge(&state));
    })
    .unwrap();
    let child = Pid::from_raw(child);
    let stopped = || waitpid(child, None).unwrap();
    let arrive = |place: u64| {
        let address = place as ptrace::AddressType;
        let own = ptrace::read(child, address).unwrap();
        ptrace::write(child, address, own & !0xff | 0xcc).unwrap();
        ptrace::cont(child, None).unwrap();
        assert_eq!(stopped(), WaitStatus::Stopped(child, Signal::SIGTRAP));
        ptrace::write(child, address, own).unwrap();
        let mut registers = ptrace::getregs(child).unwrap();
        registers.rip -= 1;
        assert_eq!(registers.rip, place);
        ptrace::setregs(child, registers).unwrap();
        registers
    };
    let begin_again = |from| {
        ptrace::setregs(child, from).unwrap();
        ptrace::cont(child, None).unwrap();
        stopped()
    };
    assert_eq!(stopped(), WaitStatus::Stopped(child, Signal::SIGSTOP));
    let began = arrive(run as *const () as u64);
    for _ in 1..times {
        arrive(at);
        ptrace::step(child, None).unwrap();
        assert_eq!(stopped(), WaitStatus::Stopped(child, Signal::SIGTRAP));
    }
    arrive(at);
    let end = match handler {
        Handler::Jump => begin_again(began),
        Handler::None => {
            // Above are seven registers that the test's own caller has had, maybe with addresses of stubs.
            reveal(arena, child, began.rsp - 7 * 8);
            ptrace::cont(child, None).unwrap();
            stopped()
        }
        Handler::Backtrace | Handler::Throw | Handler::Call => {
            ptrace::cont(child, Signal::SIGUSR1).unwrap();
            match (handler, stopped()) {
                (Handler::Throw, WaitStatus::Stopped(_, Signal::SIGTRAP)) => begin_again(began),
                (_, end) => end,
            }
        }
    };
    if matches!(end, WaitStatus::Stopped(..)) {
        ptrace::kill(child).unwrap();
        stopped();
    }
    end
}

/// What stubs have return addresses replaced by: of what is among their bytes these alone are addresses in themselves.
fn hiding(arena: &Arena, memory: &Memory) -> HashSet<u64> {
    let words = arena.frames.iter().flat_map(|(stub, _)| {
        let mut bytes = vec![0; (stub.end - stub.start) as usize];
        memory.read(TargetAddr(stub.start), &mut bytes).unwrap();
        let words = bytes.windows(8);
        let words = words.map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        words.filter(|word| stub.contains(word)).collect::<Vec<_>>()
    });
    words.collect()
}

/// As the next tracer does it. Return addresses are hidden on the stack, which began at `base`, and none is afterwards.
fn reveal(arena: &Arena, child: Pid, base: u64) {
    let memory = Memory::open(child.as_raw()).unwrap();
    let stack = ptrace::getregs(child).unwrap().rsp;
    let ours = hiding(arena, &memory);
    let hidden = || {
        let words = (stack..base).step_by(8);
        let words = words.map(|at| memory.read_word(TargetAddr(at)).unwrap());
        words.filter(|word| ours.contains(word)).count()
    };
    assert!(hidden() > 0);
    let mut installed = removal::tests::installed(child.as_raw(), arena.code, None);
    installed.code = std::iter::once(arena.code..arena.code + CODE_BYTES as u64).collect();
    (installed.around, installed.blocks) = (arena.around, BLOCK_COUNT as u32);
    installed.set_generation(&memory, 0).unwrap();
    installed.reveal(&memory, &[]);
    assert_eq!(hidden(), 0);
}

/// A function whose entry is hooked.
pub fn hooked(arena: &mut Arena, unwinding: stubs::Unwinding) -> u64 {
    hooked_before(arena, unwinding, |_| {})
}

/// The same of one that does something behind the hook.
pub fn hooked_before(
    arena: &mut Arena,
    unwinding: stubs::Unwinding,
    body: impl Fn(&mut CodeAssembler),
) -> u64 {
    let at = arena.assemble(|a| {
        a.nop_1::<AsmMemoryOperand>(dword_ptr(rax + rax)).unwrap();
        a.nop_1::<AsmMemoryOperand>(dword_ptr(rax + rax)).unwrap();
        body(a);
        a.ret().unwrap();
    });
    let items: Vec<Item> = (arena.instructions(at, 8).into_iter().map(Item::Plain)).collect();
    let region = Region {
        items,
        next: at + 8,
        arrival: stubs::Arrival::Jump,
    };
    arena.patch(at, 8, |at, around, runtime| {
        stubs::unwinding(at, &region, unwinding, around, runtime).unwrap()
    });
    at
}

/// Afterwards the thread has a block, of which the shadow stack is as if it had never been used.
fn run_unseen(arena: &Arena, run: extern "C" fn(&mut State)) {
    run(&mut State::arbitrary(FLAGS[0]));
    let shadow = arena.control + BLOCKS + block::SHADOW + entry::SIZE;
    for at in (shadow..arena.block(block::REAL_LIMIT)).step_by(8) {
        set(at, 0);
    }
}

/// Calls a handler before every instruction of darc's that a call of f0 comes to.
fn everywhere(ends: F0End, handler: Handler) {
    const DIFFERS: i32 = 2;
    const NOTHING_RECORDED: i32 = 3;
    const DROPPED: i32 = 4;
    let mut arena = Arena::new();
    let child = callee(&mut arena);
    let p = program(&mut arena, 5, |a| a.call(child).unwrap());
    let tail = arena.instructions(p.after, 10);
    let unwinder = hooked(&mut arena, stubs::Unwinding::Begins);
    let catcher = hooked(&mut arena, stubs::Unwinding::Arrived);
    let main = arena.assemble(|a| {
        a.call(catcher).unwrap();
        a.call(p.f0).unwrap();
        a.ret().unwrap();
    });
    arena.expand(1, 5, arena.descriptor_at(2));
    let run = trampoline(&mut arena, main);
    let mut plain = State::arbitrary(FLAGS[0]);
    run(&mut plain);
    arena.patch_f0(p.f0, 5, ends);
    let site = call_site(Kind::Call(Callee::Direct(child)), p.after);
    arena.patch_site(p.site, 5, &site);
    if ends == F0End::PatchedReturns {
        arena.patch_region(p.after + 3, 7, &tail[1..3], Item::Ret(tail[3]));
    }
    UNWINDER.set(unwinder);
    run_unseen(&arena, run);
    let head = word(arena.rings + ring::HEAD);
    assert!(head > 0);
    let judge = |state: &State| match () {
        () if *state != plain => DIFFERS,
        () if word(arena.rings + ring::DROPPED) != 0 => DROPPED,
        // Who walks the stack has the return address of f0 put back, and nobody notices its end.
        () if handler == Handler::Backtrace && ends == F0End::HiddenReturn => 0,
        () if word(arena.rings + ring::HEAD) == head => NOTHING_RECORDED,
        () => 0,
    };
    let places = frames::visited(&arena, run);
    assert!(places.len() > 200, "{}", places.len());
    for at in places {
        let end = interrupt(&arena, run, (at, 1), handler, &judge);
        let wanted = matches!(end, WaitStatus::Exited(_, 0));
        assert!(wanted, "{handler:?} before {at:#x}: {end:?}");
    }
}

#[test]
fn a_signal_handler_may_look_at_the_stack_anywhere() {
    everywhere(F0End::HiddenReturn, Handler::Backtrace);
}

#[test]
fn a_signal_handler_may_throw_anywhere() {
    everywhere(F0End::PatchedReturns, Handler::Throw);
}

#[test]
fn a_signal_handler_may_jump_away_anywhere() {
    everywhere(F0End::HiddenReturn, Handler::Jump);
}

/// Where a tail call calls itself, the return address that is hidden is one of ours already. Whatever comes in between, it returns there.
fn in_tail_calls(handler: Handler) {
    /// More than there are calls.
    const DIFFERS: i32 = 64;
    let mut arena = Arena::new();
    let end = callee(&mut arena);
    let start = arena.next();
    let again = arena.assemble(|a| {
        let mut done = a.create_label();
        a.lea(rdi, qword_ptr(rdi + rdi)).unwrap();
        a.shr(r8, 20).unwrap();
        a.je(done).unwrap();
        a.jmp(start).unwrap();
        for _ in 0..3 {
            a.nop().unwrap();
        }
        a.set_label(&mut done).unwrap();
        a.jmp(end).unwrap();
    });
    let lengths = arena.instructions(again, 12);
    let lengths: Vec<_> = lengths.iter().map(Instruction::len).collect();
    assert_eq!(lengths, [4, 4, 2, 2]);
    let p = program(&mut arena, 5, |a| a.call(again).unwrap());
    let unwinder = hooked(&mut arena, stubs::Unwinding::Begins);
    for (fnode, function) in [(1, 5), (2, 6), (3, 6)] {
        arena.expand(fnode, function, arena.descriptor_at(fnode + 1));
    }
    let run = trampoline(&mut arena, p.f0);
    let mut plain = State::arbitrary(FLAGS[0]);
    run(&mut plain);
    arena.patch_f0(p.f0, 5, F0End::HiddenReturn);
    let site = call_site(Kind::Call(Callee::Direct(again)), p.after);
    arena.patch_site(p.site, 5, &site);
    let jump = again + 10;
    let mut site = call_site(Kind::Tail(Callee::Direct(again), None), jump + 5);
    site.function = 6;
    arena.patch_site(jump, 5, &site);
    let (stub, _) = arena.frames.last().unwrap().clone();
    UNWINDER.set(unwinder);
    CALLER.set(again);
    run_unseen(&arena, run);
    // How many calls the last op has measured.
    let measured = || {
        let ops = arena.ops();
        let items = ops.last().unwrap()[FIRST_ITEM..].chunks(5);
        items.map(|item| item[1]).sum::<u64>()
    };
    assert_eq!(measured(), 3, "both tail calls are measured");
    let mut places = BTreeMap::new();
    frames::step(run, |moment| {
        if stub.contains(&moment.pc) {
            *places.entry(moment.pc).or_insert(0) += 1;
        }
    });
    assert!(places.len() > 60, "{}", places.len());
    let judge = |state: &State| match *state == plain {
        true => measured() as i32,
        false => DIFFERS,
    };
    let (mut runs, mut more) = (0, 0);
    for (at, times) in places {
        for times in 1..=times {
            let end = interrupt(&arena, run, (at, times), handler, &judge);
            let least = match handler {
                // Each is counted, and so are the handler's where what it interrupts has come to a function that makes such.
                Handler::Call => 3,
                // Of calls whose return addresses have been put back nobody notices the end.
                _ => 0,
            };
            let measured = match end {
                WaitStatus::Exited(_, measured) if (least..DIFFERS).contains(&measured) => measured,
                _ => panic!("{handler:?} before {at:#x}, {times}: {end:?}"),
            };
            runs += 1;
            more += usize::from(measured > 3);
        }
    }
    match handler {
        Handler::Call => assert!(more > runs / 2, "{more} of {runs}"),
        _ => assert_eq!(more, 0),
    }
}

#[test]
fn a_signal_handler_may_look_at_the_stack_in_tail_calls() {
    in_tail_calls(Handler::Backtrace);
}

#[test]
fn a_signal_handler_may_make_calls_in_tail_calls() {
    in_tail_calls(Handler::Call);
}

#[test]
fn the_tracer_may_be_killed_in_tail_calls() {
    in_tail_calls(Handler::None);
}
