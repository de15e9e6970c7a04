use super::super::off_cpu::Why;
use super::super::record::{Stamp, Task};
use super::*;
use crate::patience::wait_until;

/// What was dropped came after the last record of that CPU, and before the one that tells of it.
#[test]
fn of_times_in_which_records_were_dropped_nothing_is_known() {
    let own = std::process::id() as i32;
    let Some(mut switches) = followed() else {
        return;
    };
    // A CPU that is none, so that nothing of the machine comes between.
    let stamp = |time| Stamp {
        time,
        pid: own,
        tid: own,
        cpu: u32::MAX,
    };
    let now = clock::now();
    let [before, last, lost, after] = [0, 1, 2, 3].map(|ms| now + ms * 1_000_000);
    switches.take(Record::In(stamp(before)));
    switches.take(Record::In(stamp(last)));
    switches.take(Record::Lost(stamp(lost), 7));
    switches.take(Record::In(stamp(after)));
    let clock = Clock::calibrate();
    let middle = |from: u64, to: u64| clock.tsc(u64::midpoint(from, to));
    let [known, gap, later] = [
        middle(before, last),
        middle(last, lost),
        middle(lost, after),
    ];
    assert!(switches.misses(own, gap, gap) && switches.misses(own, known, later));
    assert!(!switches.misses(own, known, known) && !switches.misses(own, later, later));
}

/// A thread that a worker makes is called as the worker is, not as the process.
#[test]
fn a_new_thread_has_the_name_of_its_maker() {
    let Some(mut switches) = followed() else {
        return;
    };
    let stamp = Stamp::default();
    // More than the kernel allows.
    let (process, worker, new) = (1 << 25, (1 << 25) + 1, (1 << 25) + 2);
    for (tid, name) in [(process, "server"), (worker, "worker")] {
        switches.take(Record::Named {
            stamp,
            pid: process,
            tid,
            name: name.into(),
            naming: Naming::Asked,
        });
    }
    switches.take(Record::Forked(Task {
        stamp,
        pid: process,
        parent: process,
        tid: new,
        maker: worker,
    }));
    assert_eq!(switches.name(new), "worker");
}

/// This thread lets another run that is on its processor, too: to the kernel both could have gone on.
#[test]
fn who_lets_others_run_is_seen() {
    use nix::sched::{CpuSet, sched_getcpu, sched_setaffinity};
    use nix::unistd::Pid;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering};

    let Some(mut switches) = with_tracepoints() else {
        return;
    };
    switches.ask_for_yields();
    if switches.yields.group.is_none() {
        eprintln!("not tested: no tracepoint of sched_yield(2)");
        return;
    }
    let on_one = |cpu| {
        let mut one = CpuSet::new();
        one.set(cpu).unwrap();
        sched_setaffinity(Pid::from_raw(0), &one).unwrap();
    };
    let cpu = sched_getcpu().unwrap();
    on_one(cpu);
    let (stop, are_there) = (AtomicBool::new(false), Barrier::new(2));
    let tid = nix::unistd::gettid().as_raw();
    let before = crate::tsc();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            on_one(cpu);
            are_there.wait();
            while !stop.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
        });
        are_there.wait();
        (0..200).for_each(|_| std::thread::yield_now());
        stop.store(true, Ordering::Relaxed);
    });
    let after = crate::tsc();
    while switches.complete() < after {
        switches.read();
    }
    let away = switches.between(tid, before, after);
    let is = |wanted: Why| away.iter().filter(|away| away.why == wanted).count();
    assert!(is(Why::Yielded) > 10, "{away:?}");
}

/// A thread touches new memory: it is seen which. It is not the one that reads, which touches more of its own than is kept.
#[test]
fn what_memory_a_fault_is_of_is_seen() {
    let Some(mut switches) = with_tracepoints() else {
        return;
    };
    let touches = std::thread::spawn(|| {
        let before = crate::tsc();
        let memory = vec![1_u8; 1 << 22];
        let after = crate::tsc();
        (nix::unistd::gettid().as_raw(), before, memory, after)
    });
    let (tid, before, memory, after) = touches.join().unwrap();
    while switches.complete() < after {
        switches.read();
    }
    let away = switches.between(tid, before, after);
    let faults = away
        .iter()
        .filter(|away| matches!(away.why, Why::Faulted(_)));
    let touched: Vec<u64> = faults
        .filter_map(|fault| switches.fault(tid, fault.from, fault.to))
        .collect();
    let bounds = memory.as_ptr_range();
    let bounds = bounds.start.addr() as u64..bounds.end.addr() as u64;
    let within = touched.iter().filter(|address| bounds.contains(address));
    assert!(within.count() > 0, "{bounds:x?}: {touched:x?}, {away:?}");
}

/// While they are recorded all system calls of the machine take longer.
#[test]
fn the_ends_of_handlers_are_recorded_as_long_as_there_are_handlers() {
    let Some(mut switches) = with_tracepoints() else {
        return;
    };
    let is_told = switches
        .tracepoints
        .as_mut()
        .is_ok_and(|it| it.handler_end().is_some());
    if !is_told {
        eprintln!("not tested: no tracepoint of rt_sigreturn(2)");
        return;
    }
    crate::sys::take_note_of(libc::SIGURG);
    let (own, tid) = (std::process::id() as i32, nix::unistd::gettid().as_raw());
    let raise = |switches: &mut Switches| {
        crate::sys::send_to_thread(own, tid, libc::SIGURG).unwrap();
        switches.read_rest();
    };
    for rests in [false, true] {
        let Some(mut switches) = with_tracepoints() else {
            return;
        };
        wait_until(|| {
            raise(&mut switches);
            switches.handler_ends.group.is_some()
        });
        if rests {
            switches.rest();
        }
        // Other tests' threads may run handlers.
        wait_until(|| {
            switches.handler_ends.last = 0;
            switches.read_rest();
            switches.handler_ends.group.is_none()
        });
        if rests {
            switches.go_on();
            assert!(switches.handler_ends.group.is_some());
        }
        let from = crate::tsc();
        wait_until(|| {
            raise(&mut switches);
            let away = switches.between(tid, from, crate::tsc());
            away.iter().any(|away| matches!(away.why, Why::Handled(_)))
        });
        // Those that come again, however seldom, are told from then on.
        switches.handler_ends.last = 0;
        switches.read_rest();
        assert!(switches.handler_ends.group.is_some());
    }
}

/// This thread sleeps: it is seen to block, for as long as the sleep took on the same clock.
#[test]
fn a_sleep_is_seen() {
    let Some(mut switches) = followed() else {
        return;
    };
    let tid = nix::unistd::gettid().as_raw();
    let before = crate::tsc();
    std::thread::sleep(Duration::from_millis(20));
    let after = crate::tsc();
    while switches.complete() < after {
        switches.read();
    }
    let off = switches.between(tid, before, after);
    let blocked: u64 = off
        .iter()
        .filter(|away| matches!(away.why, Why::Blocked(_)))
        .map(|away| (away.to - away.from).0)
        .sum();
    let all = (after - before).0;
    assert!(
        blocked > all / 2 && blocked <= all,
        "{blocked} of {all}: {off:?}"
    );
}

/// Another thread answers over a connection to the same machine: that one is the waker, and no deferred work.
#[test]
fn who_answers_over_a_connection_to_the_same_machine_is_the_waker() {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    const QUESTIONS: usize = 40;
    let Some(mut switches) = with_tracepoints() else {
        return;
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut there, _) = listener.accept().unwrap();
    let answers = std::thread::spawn(move || {
        let mut question = [0];
        while there.read_exact(&mut question).is_ok() {
            std::thread::sleep(Duration::from_millis(1));
            // What is sent soon after an interrupt, as that of the timer, may be its deferred work.
            let woken = crate::tsc();
            while (crate::tsc() - woken).0 < 1_000_000 {}
            there.write_all(&question).unwrap();
        }
        nix::unistd::gettid().as_raw()
    });
    let tid = nix::unistd::gettid().as_raw();
    let before = crate::tsc();
    for _ in 0..QUESTIONS {
        here.write_all(&[1]).unwrap();
        here.read_exact(&mut [0]).unwrap();
    }
    let after = crate::tsc();
    drop(here);
    let answers = answers.join().unwrap();
    while switches.complete() < after {
        switches.read();
    }
    let waits = switches.between(tid, before, after);
    let wakers = waits.iter().filter_map(|away| match away.why {
        Why::Blocked(Some(wake)) => Some(wake.by),
        _ => None,
    });
    let wakers: Vec<Waker> = wakers.collect();
    let with_stack = |waker: &&Waker| matches!(waker, Waker::Thread { tid, stack: Some(_), .. } if *tid == answers);
    let seen = wakers.iter().filter(with_stack).count();
    assert!(seen > QUESTIONS / 2, "{answers}: {wakers:?}");
}

fn followed() -> Option<Switches> {
    let switches = Switches::follow(std::process::id() as i32);
    switches
        .inspect_err(|refusal| eprintln!("not tested: {refusal}"))
        .ok()
}

fn with_tracepoints() -> Option<Switches> {
    let switches = Switches::follow(std::process::id() as i32);
    let switches = switches.ok().filter(|it| it.untold().is_none());
    if switches.is_none() {
        eprintln!("not tested: no tracepoints");
    }
    switches
}

/// The same, where wakings are asked for by the threads' names.
fn with_named_threads() -> Option<Switches> {
    let mut switches = with_tracepoints()?;
    let wakings = switches.wakings.as_mut().unwrap();
    assert!(wakings.name(&switches.collector));
    Some(switches)
}

#[test]
fn who_ends_a_wait_is_seen() {
    if let Some(mut switches) = with_tracepoints() {
        see_who_ends_a_wait(&mut switches);
    }
}

#[test]
fn who_ends_a_wait_is_seen_where_threads_are_named() {
    let Some(mut switches) = with_named_threads() else {
        return;
    };
    see_who_ends_a_wait(&mut switches);
}

/// The first process is there for long, and makes no threads.
#[test]
fn threads_that_are_there_for_long_are_named_at_once() {
    let Some(mut switches) = Switches::follow(1).ok().filter(|it| it.wakings.is_some()) else {
        eprintln!("not tested: no tracepoints");
        return;
    };
    switches.read();
    assert!(switches.wakings.unwrap().are_named());
}

#[test]
fn a_thread_that_comes_is_seen_to_wait_soon() {
    let Some(mut switches) = with_named_threads() else {
        return;
    };
    let another = std::thread::spawn(move || {
        while switches.wakings.as_ref().unwrap().are_named() {
            switches.read();
        }
        see_who_ends_a_wait(&mut switches);
    });
    another.join().unwrap();
}

/// This thread waits until another one writes into a pipe: that one is the waker, and it is seen where it is.
fn see_who_ends_a_wait(switches: &mut Switches) {
    use std::io::{Read, Write};

    let tid = nix::unistd::gettid().as_raw();
    let (mut read, mut write) = std::io::pipe().unwrap();
    let before = crate::tsc();
    let writer = std::thread::spawn(move || {
        let stat = format!("/proc/self/task/{tid}/stat");
        wait_until(|| std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") S ")));
        let fault = vec![1_u8; 1 << 22];
        write.write_all(&fault[..1]).unwrap();
        nix::unistd::gettid().as_raw()
    });
    read.read_exact(&mut [0]).unwrap();
    let after = crate::tsc();
    let writer = writer.join().unwrap();
    while switches.complete() < after {
        switches.read();
    }
    let waits = switches.between(tid, before, after);
    // The threads of other tests may hold the address space before and afterwards.
    let stack = waits.iter().find_map(|away| match away.why {
        Why::Blocked(Some(wake)) => match wake.by {
            Waker::Thread { pid, tid, stack } if tid == writer => {
                assert_eq!(pid, std::process::id() as i32);
                Some(stack)
            }
            _ => None,
        },
        _ => None,
    });
    let stack = stack.unwrap_or_else(|| panic!("it was not {writer} that woke it: {waits:?}"));
    let stack = switches.stack(stack.expect("a stack")).expect("kept");
    assert!(stack.ip != 0 && stack.sp != 0 && stack.bytes.len() > 64);
    let faults = switches.between(writer, before, after);
    let is_fault = |away: &Away| matches!(away.why, Why::Faulted(_));
    assert!(faults.iter().any(is_fault), "{faults:?}");
}
