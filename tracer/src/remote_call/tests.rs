//! Calls in the names of child processes.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Command, Stdio};

use darc_testprogs::{Opt, program};

use crate::engine::jump::world;
use crate::maps;
use crate::patience::wait_until;

use super::*;

/// A program that waits in a system call of the C library, which it has loaded.
pub fn who_waits() -> std::process::Child {
    let mut cat = Command::new("cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    cat.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    cat.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    cat
}

/// Has a process make one system call.
pub fn call_in(pid: i32, number: i64, arguments: [u64; 6]) -> u64 {
    let memory = Memory::open(pid).unwrap();
    let mappings = maps::read(pid).unwrap();
    let caller = RemoteCaller::find(pid, &memory, &mappings).unwrap();
    let made = world::stopped(pid, |world| {
        caller.borrow(world.workers()?, &mappings, |worker| {
            worker.call("a call of the test", number, arguments)
        })
    });
    made.unwrap().0
}

/// The first thread's end is reported when the others' ends have been taken, and those are traced by the same tracer.
#[test]
fn the_end_of_a_first_thread_is_noticed_before_that_of_the_others() {
    let child = Child::doing(|| {
        nix::unistd::pause();
    });
    for tid in [child.pid, child.tid] {
        sys::seize(tid, 0).unwrap();
        sys::interrupt(tid).unwrap();
        wait(tid).unwrap();
    }
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(child.pid),
        nix::sys::signal::SIGKILL,
    )
    .unwrap();
    assert!(matches!(wait(child.pid), Err(Error::ThreadGone { .. })));
    for tid in [child.tid, child.pid] {
        let (_, status) = sys::wait_for(tid).unwrap();
        assert_eq!(decode(status), Event::Killed(libc::SIGKILL));
    }
}

/// Or kept for them, when it comes just when the thread's status is taken.
#[test]
fn the_end_of_a_thread_is_left_to_whoever_waits_for_it() {
    for _ in 0..100 {
        let child = sys::fork_into(|| sys::exit_now(7)).unwrap();
        assert!(matches!(wait(child), Err(Error::ThreadGone { .. })));
        assert_eq!(children::end_of(child), Some(children::End::Exited(7)));
    }
}

/// Works with all registers, vectors included, and exits with 7 when everything was right.
fn work() {
    let sum = |from: u64| {
        let floats = (from..from + 1000).map(|n| (n as f64).sqrt());
        std::hint::black_box(floats.sum::<f64>().to_bits() ^ from.rotate_left(7))
    };
    let expected: [u64; 8] = std::array::from_fn(|from| sum(from as u64));
    let right = (0..60_000).all(|round: u64| {
        let from = round % 8;
        sum(std::hint::black_box(from)) == expected[from as usize]
    });
    leave(right);
}

/// Exits with 7 when everything was right, signals included.
fn leave(right: bool) -> ! {
    let mask = nix::sys::signal::SigSet::thread_get_mask().unwrap();
    let unblocked = !mask.contains(nix::sys::signal::Signal::SIGUSR1);
    sys::exit_now(if right && unblocked { 7 } else { 9 });
}

/// A child process, in which a thread other than the first does `work`.
struct Child {
    pid: i32,
    tid: i32,
}

impl Child {
    fn doing(work: impl FnOnce() + Send + 'static) -> Child {
        let (from, to) = nix::unistd::pipe().unwrap();
        let pid = sys::fork_into(|| {
            let tid = move || {
                let tid = nix::unistd::gettid().as_raw().to_le_bytes();
                nix::unistd::write(&to, &tid).unwrap();
                work();
            };
            std::thread::spawn(tid).join().unwrap();
        });
        let mut tid = [0; 4];
        assert_eq!(nix::unistd::read(&from, &mut tid), Ok(4));
        let (pid, tid) = (pid.unwrap(), i32::from_le_bytes(tid));
        Child { pid, tid }
    }

    /// Attaches to the thread and stops it; false when it has ended.
    fn stop(&self) -> bool {
        let seized = sys::seize(self.tid, 0).and_then(|()| sys::interrupt(self.tid));
        seized.is_ok() && wait(self.tid).is_ok()
    }

    /// Whether it ends with everything right.
    fn ends_well(self) {
        assert_eq!(sys::wait_for(self.pid), Ok((self.pid, 7 << 8)));
    }
}

/// A tracer that ends in the middle of its calls; whether it came so far.
fn abandon(child: &Child, calls: usize) -> bool {
    let tracer = sys::fork_into(|| {
        let memory = Memory::open(child.pid).unwrap();
        let mappings = crate::maps::read(child.pid).unwrap();
        let caller = RemoteCaller::find(child.pid, &memory, &mappings).unwrap();
        assert!(caller.gadgets.is_some());
        if !child.stop() {
            sys::exit_now(6);
        }
        let mut thread = Stopped::observed(child.tid, 0);
        let _ = caller.borrow([&mut thread], &mappings, |worker| -> Result<()> {
            for _ in 0..calls {
                worker.call("getppid", libc::SYS_getppid, [0; 6])?;
            }
            sys::exit_now(5)
        });
        sys::exit_now(6);
    });
    let (_, status) = sys::wait_for(tracer.unwrap()).unwrap();
    status == 5 << 8
}

#[test]
fn a_thread_finds_its_way_back_when_its_tracer_ends() {
    let child = Child::doing(work);
    let abandoned = (0..40).filter(|&round| abandon(&child, round % 3)).count();
    child.ends_well();
    assert!(abandoned > 0);
}

/// Those of vectors too, also where the processor has state that the thread may not use.
#[test]
fn wide_registers_outlive_the_tracer() {
    let mut command = Command::new(program("wide_registers", Opt::O2));
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut target = piped.spawn().unwrap();
    let mut output = BufReader::new(target.stdout.take().unwrap());
    let mut line = String::new();
    if output.read_line(&mut line).unwrap() == 0 {
        assert_eq!(target.wait().unwrap().code(), Some(77));
        eprintln!("not tested: the processor has none");
        return;
    }
    let (pid, tid) = (target.id() as i32, target.id() as i32);
    let abandoned = (0..20).filter(|&round| abandon(&Child { pid, tid }, round % 3));
    assert!(abandoned.count() > 0);
    drop(target.stdin.take());
    line.clear();
    output.read_line(&mut line).unwrap();
    target.wait().unwrap();
    assert_eq!(line, "registers=ok\n");
}

/// One thread's filter says nothing of the others.
#[test]
fn calls_are_made_by_a_thread_that_may() {
    for is_first in [true, false] {
        let (told, tell) = nix::unistd::pipe().unwrap();
        let (ready, made) = nix::unistd::pipe().unwrap();
        let own = std::process::id() as i32;
        let pid = sys::fork_into(|| {
            sys::die_with_parent(own);
            let wait = |refuse: bool| {
                if refuse {
                    sys::refuse_kcmp();
                }
                let _ = nix::unistd::write(&made, &[1]);
                let _ = nix::unistd::read(&told, &mut [0]);
            };
            std::thread::scope(|scope| {
                scope.spawn(|| wait(!is_first));
                wait(is_first);
            });
            sys::exit_now(7);
        });
        let pid = pid.unwrap();
        for _ in 0..2 {
            assert_eq!(nix::unistd::read(&ready, &mut [0]), Ok(1));
        }
        let parent = call_in(pid, libc::SYS_getppid, [0; 6]);
        assert_eq!(parent, own as u64);
        nix::unistd::write(&tell, &[1, 1]).unwrap();
        assert_eq!(sys::wait_for(pid).unwrap().1, 7 << 8);
    }
}

#[test]
fn a_call_that_was_interrupted_goes_on_when_the_tracer_ends() {
    let (from, to) = nix::unistd::pipe().unwrap();
    let child = Child::doing(move || {
        let mut byte = [0];
        let read = nix::unistd::read(&from, &mut byte);
        leave(read == Ok(1) && byte == [3]);
    });
    for round in 0..6 {
        assert!(abandon(&child, round % 3), "round {round}");
    }
    nix::unistd::write(&to, &[3]).unwrap();
    child.ends_well();
}

/// The kernel goes on with some calls by another one, which a signal handler's return forbids.
#[test]
fn a_call_with_a_timeout_goes_on_when_the_tracer_ends() {
    use std::os::fd::AsFd as _;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    let (from, to) = nix::unistd::pipe().unwrap();
    let child = Child::doing(move || {
        let mut fds = [PollFd::new(from.as_fd(), PollFlags::POLLIN)];
        let hour = PollTimeout::try_from(3_600_000).unwrap();
        leave(poll(&mut fds, hour) == Ok(1));
    });
    for round in 0..6 {
        assert!(abandon(&child, round % 3), "round {round}");
    }
    nix::unistd::write(&to, &[3]).unwrap();
    child.ends_well();
}

#[test]
fn a_process_that_is_stopped_meanwhile_stays_stopped() {
    for continued in [false, true] {
        let (from, to) = nix::unistd::pipe().unwrap();
        let child = Child::doing(move || {
            let read = nix::unistd::read(&from, &mut [0]);
            leave(read == Ok(1));
        });
        let memory = Memory::open(child.pid).unwrap();
        let mappings = crate::maps::read(child.pid).unwrap();
        let caller = RemoteCaller::find(child.pid, &memory, &mappings).unwrap();
        assert!(child.stop());
        let mut thread = Stopped::observed(child.tid, 0);
        let send = |signal| sys::send_to_thread(child.pid, child.tid, signal).unwrap();
        let outcome = caller.borrow([&mut thread], &mappings, |worker| {
            send(libc::SIGSTOP);
            worker.call("getppid", libc::SYS_getppid, [0; 6])?;
            // All others have stopped.
            wait_until(|| threads::state(child.pid) == Some('T'));
            if continued {
                send(libc::SIGCONT);
            }
            worker.call("getppid", libc::SYS_getppid, [0; 6])
        });
        assert_eq!(outcome.unwrap(), std::process::id().into());
        thread.detach().unwrap();
        nix::unistd::write(&to, &[3]).unwrap();
        if !continued {
            wait_until(|| threads::state(child.tid) == Some('T'));
            send(libc::SIGCONT);
        }
        child.ends_well();
    }
}

/// The kernel lets a thread go that comes to a stop for a tracer that has just died: that is no signal for it.
#[test]
fn a_thread_at_a_system_call_survives_its_tracer() {
    let (from, to) = nix::unistd::pipe2(nix::fcntl::OFlag::O_NONBLOCK).unwrap();
    let child = Child::doing(move || {
        let mut byte = [0];
        while nix::unistd::read(&from, &mut byte) == Err(Errno::EAGAIN) {}
        leave(byte == [3]);
    });
    for _ in 0..60 {
        let tracer = sys::fork_into(|| {
            if child.stop() {
                sys::cont_to_syscall(child.tid, 0).unwrap();
            }
            nix::sys::signal::raise(nix::sys::signal::SIGKILL).unwrap();
        });
        sys::wait_for(tracer.unwrap()).unwrap();
    }
    nix::unistd::write(&to, &[3]).unwrap();
    child.ends_well();
}

/// A stack of another kind may have no room below it.
#[test]
fn a_thread_on_another_stack_is_taken_last() {
    let line = |start: u64, end: u64, name: &str| {
        format!("{start:x}-{end:x} rw-p 00000000 00:00 0 {name}\n")
    };
    let maps = [
        line(0x1000, 0x9000, ""),
        line(0xa000, 0xb000, ""),
        line(0xf0000, 0xf8000, "[stack]"),
    ];
    let mappings = crate::maps::parse(maps.concat().as_bytes());
    let is_home = |is_first, at, descriptor| is_on_its_stack(is_first, (at, descriptor), &mappings);
    assert!(is_home(true, 0xf4000, 0x8f00));
    assert!(is_home(false, 0x4000, 0x8f00));
    // A mapping of the first thread's, next to its descriptor.
    assert!(!is_home(true, 0x4000, 0x8f00));
    assert!(!is_home(false, 0xa800, 0x8f00));
    assert!(!is_home(false, 0xc000, 0x8f00));
}

/// The kernel does not notice that a thread was interrupted in such a sequence when it makes calls for us meanwhile.
#[test]
fn a_restartable_sequence_starts_again() {
    const BORROWED: usize = 200;
    let mut command = Command::new(program("restarts", Opt::O2));
    // A thread has one area, which the C library would take.
    command.env("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let output = child.stdout.as_mut().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    let numbers = line.split_whitespace();
    let numbers: Vec<u64> = numbers
        .map(|number| u64::from_str_radix(number, 16).unwrap())
        .collect();
    let [begin, end, area] = numbers[..] else {
        panic!("{line:?}: the kernel has no restartable sequences");
    };
    let pid = child.id() as i32;
    let memory = Memory::open(pid).unwrap();
    let mappings = maps::read(pid).unwrap();
    let caller = RemoteCaller::find(pid, &memory, &mappings).unwrap();
    sys::seize(pid, 0).unwrap();
    let (mut inside, mut unnoticed) = (0, 0);
    for _ in 0..BORROWED {
        sys::interrupt(pid).unwrap();
        wait(pid).unwrap();
        let mut thread = Stopped::observed(pid, 0);
        let rip = thread.registers().unwrap().rip().0;
        inside += usize::from((begin..end).contains(&rip));
        let called = caller.borrow([&mut thread], &mappings, |worker| {
            worker.call("getppid", libc::SYS_getppid, [0; 6])
        });
        called.unwrap();
        let rip = thread.registers().unwrap().rip().0;
        let known = memory.read_word(TargetAddr(area + 8)).unwrap() != 0;
        unnoticed += usize::from(!known && (begin..end).contains(&rip));
        thread.resume().unwrap();
        std::thread::sleep(Duration::from_micros(200));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(inside > BORROWED / 2, "{inside}");
    assert_eq!(unnoticed, 0, "of {inside}");
}
