use super::*;

fn thread(at: u64, tid: i32, stack: Option<u64>) -> Wake {
    Wake {
        at: Tsc(at),
        by: Waker::Thread { pid: 1, tid, stack },
    }
}

fn piece(service: Service, from: u64, to: u64) -> Piece {
    Piece {
        tid: 1,
        service,
        from: Tsc(from),
        to: Tsc(to),
    }
}

fn times(thread: &Thread) -> Vec<(u64, u64)> {
    let all = thread.between(Tsc(0), Tsc(u64::MAX));
    all.iter().map(|away| (away.from.0, away.to.0)).collect()
}

#[test]
fn intervals_are_cut_to_what_is_asked_for() {
    let (mut thread, cpus) = (Thread::default(), HashMap::new());
    thread.returned(Tsc(5), 0, &cpus);
    assert_eq!(times(&thread), [], "it was never seen to leave");
    thread.left(Tsc(10), Left::Preempted, 0);
    thread.returned(Tsc(20), 0, &cpus);
    thread.left(Tsc(30), Left::Blocked, 0);
    thread.returned(Tsc(50), 0, &cpus);
    thread.left(Tsc(60), Left::Blocked, 0);
    let between = |from, to| -> Vec<(u64, u64)> {
        let found = thread.between(Tsc(from), Tsc(to));
        found.iter().map(|away| (away.from.0, away.to.0)).collect()
    };
    assert_eq!(between(0, 100), [(10, 20), (30, 50)]);
    assert_eq!(between(15, 40), [(15, 20), (30, 40)]);
    assert_eq!(between(20, 30), []);
    // A record that comes twice, as inherited events make it.
    thread.left(Tsc(60), Left::Blocked, 0);
    thread.returned(Tsc(70), 0, &cpus);
    thread.returned(Tsc(70), 0, &cpus);
    assert_eq!(times(&thread).len(), 3);
}

#[test]
fn who_lets_others_run_is_not_preempted() {
    let (mut thread, cpus) = (Thread::default(), HashMap::new());
    thread.yields(Tsc(1_000));
    assert!(thread.is_yielding(Tsc(3_000)));
    assert!(!thread.is_yielding(Tsc(4_000)), "one call, one switch");
    thread.yields(Tsc(10_000));
    assert!(!thread.is_yielding(Tsc(1_000_000)), "nobody else was there");
    thread.left(Tsc(3_000), Left::Yielded, 0);
    thread.returned(Tsc(9_000), 0, &cpus);
    let all = thread.between(Tsc(0), Tsc(10_000));
    assert_eq!(all[0].why, Why::Yielded);
    assert!(!thread.has_yielded(), "once of three times");
    for at in 1..=20 {
        thread.yields(Tsc(at * 1_000_000));
        thread.is_yielding(Tsc(at * 1_000_000 + 100));
    }
    assert!(thread.has_yielded());
}

#[test]
fn a_call_that_is_forgotten_is_not_taken_for_a_later_one() {
    let mut thread = Thread::default();
    for call in 0..KEPT_CALLS as u64 + 2 {
        thread.called(Tsc(10 * call), 202, [call; 6]);
        thread.faulted(Tsc(10 * call), 100 + call);
    }
    // The first two are forgotten.
    let (from, to) = (Tsc(10), Tsc(50));
    assert_eq!(thread.call(202, from, to), None);
    assert_eq!(thread.fault(from, to), None);
    let from = Tsc(11);
    assert_eq!(thread.call(202, from, to), Some([2; 6]));
    assert_eq!(thread.call(0, from, to), None);
    assert_eq!(thread.fault(from, to), Some(102));
    assert_eq!(thread.fault(from, Tsc(20)), None);
}

#[test]
fn what_is_kept_is_bounded() {
    let (mut thread, cpus) = (Thread::default(), HashMap::new());
    for at in 0..KEPT as u64 + 10 {
        thread.left(Tsc(10 * at + 1), Left::Preempted, 0);
        thread.returned(Tsc(10 * at + 5), 0, &cpus);
    }
    assert_eq!(thread.done.kept.len(), KEPT);
    assert_eq!(thread.done.kept[0].from, Tsc(101));
    // The last one that is forgotten ended then.
    assert_eq!(thread.forgot(Tsc(95)), Forgotten::Nothing);
    assert_eq!(thread.forgot(Tsc(94)), Forgotten::Some);
    // From then on there is room for the ops of such a thread.
    for at in 0..2 * KEPT as u64 {
        let at = 1_000_000 + 10 * at;
        thread.left(Tsc(at + 1), Left::Preempted, 0);
        thread.returned(Tsc(at + 5), 0, &cpus);
    }
    assert_eq!(thread.forgot(Tsc(1_000_000)), Forgotten::Nothing);
    // What was forgotten before there was more room asks for no more.
    assert_eq!(thread.forgot(Tsc(0)), Forgotten::Some);
    assert_eq!(thread.done.most, 4 * KEPT);
    for at in 0..2 * MOST_KEPT as u64 {
        let at = 10_000_000 + 10 * at;
        thread.left(Tsc(at + 1), Left::Preempted, 0);
        thread.returned(Tsc(at + 5), 0, &cpus);
        if thread.done.kept.len() == 4 * KEPT && thread.done.most == 4 * KEPT {
            assert_eq!(thread.forgot(Tsc(0)), Forgotten::Some);
        }
    }
    assert_eq!(thread.done.most, MOST_KEPT);
    assert_eq!(thread.forgot(Tsc(10_000_000)), Forgotten::All);
}

#[test]
fn who_ran_longest_is_told() {
    let mut runners = Runners::default();
    for (at, tid) in [(5, 1), (10, 2), (12, 3), (30, 2), (50, 9)] {
        runners.runs(Tsc(at), tid);
    }
    assert_eq!(runners.longest(Tsc(10), Tsc(50)), Some(2));
    assert_eq!(runners.longest(Tsc(10), Tsc(30)), Some(3));
    assert_eq!(runners.longest(Tsc(60), Tsc(70)), None);
    let mut thread = Thread::default();
    let (mut same, mut other) = (Runners::default(), Runners::default());
    same.runs(Tsc(5), 3);
    other.runs(Tsc(15), 8);
    let cpus = HashMap::from([(4, runners), (5, same), (6, other)]);
    // It comes back where it was, and on CPUs on which the same thread ran, or another one, or nobody is known to have.
    for (onto, by) in [(4, Some(3)), (5, Some(3)), (6, None), (7, None)] {
        thread.left(Tsc(10), Left::Preempted, 4);
        thread.returned(Tsc(30), onto, &cpus);
        assert_eq!(thread.done.kept[0].why, Why::Preempted(by), "{onto}");
        thread = Thread::default();
    }
}

#[test]
fn the_first_waking_ends_a_wait() {
    let (mut waiting, cpus) = (Thread::default(), HashMap::new());
    let mut wait = |wakes: &[Wake]| {
        let begin = waiting.done.kept.back().map_or(0, |last| last.to.0);
        waiting.left(Tsc(begin + 10), Left::Blocked, 0);
        for &wake in wakes {
            waiting.woken(wake);
        }
        waiting.returned(Tsc(begin + 100), 0, &cpus);
        waiting.done.kept.back().map(|away| away.why)
    };
    // Of one waking there may be two records, and later ones change nothing.
    let wakes = [
        thread(50, 7, None),
        thread(51, 7, Some(3)),
        thread(60, 8, None),
    ];
    assert_eq!(
        wait(&wakes),
        Some(Why::Blocked(Some(thread(50, 7, Some(3)))))
    );
    assert_eq!(wait(&[]), Some(Why::Blocked(None)));
    // Before it was off its CPU: it was ready all the time.
    assert_eq!(
        wait(&[thread(205, 7, None)]),
        Some(Why::Blocked(Some(thread(210, 7, None))))
    );
    // While it ran, long before.
    waiting.woken(thread(250, 9, None));
    let mut wait = |at: u64| {
        waiting.left(Tsc(at), Left::Blocked, 0);
        waiting.returned(Tsc(at + 5), 0, &cpus);
        waiting.done.kept.back().map(|away| away.why)
    };
    assert_eq!(wait(400), Some(Why::Blocked(None)));
}

#[test]
fn a_fault_keeps_its_wait_and_gives_away_interrupts() {
    let (mut thread, cpus) = (Thread::default(), HashMap::new());
    let timer = Service::LocalInterrupt(236);
    thread.served(piece(timer, 20, 25));
    thread.left(Tsc(30), Left::Blocked, 0);
    thread.returned(Tsc(40), 0, &cpus);
    thread.left(Tsc(50), Left::Blocked, 0);
    let waker = self::thread(78, 7, Some(3));
    thread.woken(waker);
    thread.returned(Tsc(80), 0, &cpus);
    thread.served(piece(Service::PageFault, 10, 90));
    // What it waited for is told once: who ended the longer wait, and how long both were until then.
    let fault = Why::Faulted(Waited::default());
    let waited = Why::Faulted(Waited {
        blocked: Ticks(38),
        by: Some(waker.by),
        longest: Ticks(28),
    });
    let found = thread.between(Tsc(0), Tsc(100));
    let whys: Vec<Why> = found.iter().map(|away| away.why).collect();
    assert_eq!(times(&thread), [(10, 20), (20, 25), (25, 90)]);
    assert_eq!(whys, [fault, Why::Served(timer), waited]);
    // An interrupt that came in while it was being told of.
    thread.served(piece(timer, 95, 97));
    assert_eq!(times(&thread).len(), 4);
}

#[test]
fn a_handler_keeps_what_it_waits_for() {
    let (mut thread, cpus) = (Thread::default(), HashMap::new());
    let whys = |thread: &Thread, from, to| -> Vec<(u64, u64, Option<u32>)> {
        let found = thread.between(Tsc(from), Tsc(to));
        let signal = |why| match why {
            Why::Handled(handler) => Some(handler.signal),
            _ => None,
        };
        let found = found.iter();
        found
            .map(|away| (away.from.0, away.to.0, signal(away.why)))
            .collect()
    };
    // One is left by a jump, which nothing tells.
    thread.signalled(Tsc(5), 10, 0x900);
    thread.signalled(Tsc(10), 14, 0x1000);
    thread.served(piece(Service::PageFault, 12, 14));
    thread.left(Tsc(20), Left::Blocked, 0);
    thread.returned(Tsc(40), 0, &cpus);
    // Another signal in it, and another thread.
    thread.signalled(Tsc(50), 15, 0x2000);
    thread.handler_ended(Tsc(60));
    thread.left(Tsc(70), Left::Preempted, 0);
    thread.returned(Tsc(80), 0, &cpus);
    thread.handler_ended(Tsc(90));
    let own = |from, to| (from, to, Some(14));
    let all = [
        own(10, 50),
        (50, 60, Some(15)),
        own(60, 70),
        (70, 80, None),
        own(80, 90),
    ];
    assert_eq!(whys(&thread, 0, 100), all);
    // What is called in the handler is work, with waits of its own.
    let other = [(20, 40, None), (50, 60, Some(15)), (70, 80, None)];
    assert_eq!(whys(&thread, 15, 85), other);
    // Of what came later all is told.
    thread.left(Tsc(95), Left::Blocked, 0);
    thread.returned(Tsc(97), 0, &cpus);
    assert_eq!(whys(&thread, 65, 100), [(70, 80, None), (95, 97, None)]);
    assert_eq!(whys(&thread, 0, 100)[5], (95, 97, None));
}
