use super::*;
use crate::CalleeId;

const HZ: u64 = 1_000_000;

fn totals() -> Totals {
    let mut totals = Totals::new(100, 16, Hz::new(HZ).unwrap());
    totals.expanded(FnodeId::ROOT);
    totals
}

fn child(totals: &mut Totals, parent: FnodeId, site: u32, callee: u32) -> FnodeId {
    totals.add_child(parent, SiteId(site), Callee::Function(CalleeId(callee)))
}

fn window(totals: &mut Totals, at: u64, length: u64, touched: &[(FnodeId, u64, u64)]) {
    window_of(totals, 1, at, length, touched);
}

fn window_of(totals: &mut Totals, tid: i32, at: u64, length: u64, touched: &[(FnodeId, u64, u64)]) {
    totals.window(&Op {
        arguments: darc_record::Arguments::default(),
        tid,
        start: Tsc(at),
        end: Tsc(at + length),
        latency: Ticks(length),
        touched: touched
            .iter()
            .map(|&(fnode, sum, count)| Touched {
                fnode,
                max: Ticks(sum / count),
                max_start: Tsc(at),
                long: Ticks(0),
                sum: Ticks(sum),
                count,
            })
            .collect(),
    });
}

#[test]
fn frequent_callees_are_arrived_at_and_rare_ones_gone_into() {
    let mut totals = totals();
    let (often, rarely) = (
        child(&mut totals, FnodeId::ROOT, 1, 1),
        child(&mut totals, FnodeId::ROOT, 2, 2),
    );
    for at in 0..30 {
        let touched = [(often, 4_000, 50), (rarely, 5_000, 1)];
        window(&mut totals, at * 10_000, 10_000, &touched);
    }
    assert!(totals.is_round_complete(&|_| Doing::Work));
    let found: Vec<_> = totals
        .shares()
        .into_iter()
        .map(|share| (share.fnodes[0], share.of, (share.share * 100.0).round()))
        .collect();
    // A hundred calls a second are few compared with five thousand, but enough for an analysis.
    assert_eq!(
        found,
        [
            (rarely, ShareOf::Frequent, 50.0),
            (often, ShareOf::Frequent, 40.0),
            (FnodeId::ROOT, ShareOf::Itself, 10.0)
        ]
    );
    assert!(totals.to_expand(&|_| Doing::Work).is_empty());
}

#[test]
fn a_round_awaits_long_calls_of_threads_that_are_known() {
    let mut totals = totals();
    let [short, long] = [1, 2].map(|at| child(&mut totals, FnodeId::ROOT, at, at));
    totals.set_running(1, FnodeId::ROOT);
    totals.set_running(2, FnodeId::ROOT);
    for at in 0..20 {
        window_of(&mut totals, 1, at * 10_000, 10_000, &[(short, 9_000, 9)]);
    }
    let silent: Vec<i32> = totals.silent().collect();
    assert_eq!(silent, [2]);
    let work = |_: &Share| Doing::Work;
    assert!(!totals.is_short_beside_calls(&work));
    window_of(&mut totals, 2, 100, 60_000, &[(long, 59_000, 1)]);
    assert_eq!(totals.silent().count(), 0);
    assert!(totals.is_short_beside_calls(&work));
    assert!(!totals.is_short_beside_calls(&|_| Doing::Waits));
    window_of(&mut totals, 2, 240_000, 60_000, &[(long, 59_000, 1)]);
    assert!(!totals.is_short_beside_calls(&work));
}

#[test]
fn a_system_call_is_an_end() {
    let mut totals = totals();
    let function = child(&mut totals, FnodeId::ROOT, 1, 1);
    let write = totals.add_child(FnodeId::ROOT, SiteId(2), Callee::Syscall(Some(1)));
    assert_eq!(totals.reason(write), Some(NO_CALLS));
    assert_eq!(totals.reason(function), None, "it may be gone into");
}

#[test]
fn what_threads_do_is_looked_at_however_long_they_wait() {
    let mut totals = totals();
    let (wait, serve, tidy) = (
        child(&mut totals, FnodeId::ROOT, 1, 1),
        child(&mut totals, FnodeId::ROOT, 2, 2),
        child(&mut totals, FnodeId::ROOT, 3, 3),
    );
    let doing = |share: &Share| match share.fnodes[0] == wait {
        true => Doing::Waits,
        false => Doing::Work,
    };
    let mut at = 0;
    let mut window = |totals: &mut Totals| {
        // Eight threads at a time, seven of which do nothing.
        for _ in 0..7 {
            window(totals, at, 10_000, &[(wait, 10_000, 1)]);
        }
        let touched = [(wait, 9_000, 1), (serve, 980, 7), (tidy, 20, 1)];
        window(totals, at, 10_000, &touched);
        at += 10_000;
    };
    for _ in 0..5 {
        window(&mut totals);
    }
    let (windows, time) = totals.so_far();
    assert!(windows >= ROUND_WINDOWS && time.0 >= HZ / ROUNDS_A_SECOND);
    assert!(!totals.is_round_complete(&doing), "5 ms of work");
    for _ in 0..6 {
        window(&mut totals);
    }
    assert!(totals.is_round_complete(&doing));
    let worthwhile = totals.worthwhile(&doing);
    let found: Vec<_> = worthwhile
        .iter()
        .map(|share| (share.fnodes[0], share.of))
        .collect();
    // 700 calls a second are many, by the clock.
    assert_eq!(found, [(serve, ShareOf::Frequent)]);
}

#[test]
fn the_descent_goes_down_through_rare_calls() {
    let mut totals = totals();
    let phase = child(&mut totals, FnodeId::ROOT, 1, 1);
    for at in 0..10 {
        window(&mut totals, at * 100_000, 100_000, &[(phase, 95_000, 1)]);
    }
    assert_eq!(totals.to_expand(&|_| Doing::Work), [phase]);
    totals.expanded(phase);
    let step = child(&mut totals, phase, 7, 3);
    totals.next_round(Tsc(2_000_000));
    window(&mut totals, 0, 100_000, &[(phase, 95_000, 1)]);
    assert_eq!(totals.so_far(), (0, Ticks(0)), "it began before the round");
    for at in 20..30 {
        let touched = [(phase, 95_000, 1), (step, 60_000, 600)];
        window(&mut totals, at * 100_000, 100_000, &touched);
    }
    let shares = totals.shares();
    let found: Vec<_> = shares
        .iter()
        .map(|share| (share.fnodes[0], share.of, (share.share * 100.0).round()))
        .collect();
    assert_eq!(
        found,
        [
            (step, ShareOf::Frequent, 60.0),
            (phase, ShareOf::Itself, 35.0),
            (FnodeId::ROOT, ShareOf::Itself, 5.0)
        ]
    );
    assert!(totals.to_expand(&|_| Doing::Work).is_empty());
}

#[test]
fn a_frame_that_runs_is_no_call_and_its_callees_are_the_roots_time() {
    let mut totals = totals();
    let serve = child(&mut totals, FnodeId::ROOT, 1, 1);
    totals.set_running(1, serve);
    totals.expanded(serve);
    let wait = totals.add_child(serve, SiteId(4), Callee::Syscall(Some(232)));
    for at in 0..10 {
        window(&mut totals, at * 100_000, 100_000, &[(wait, 80_000, 2)]);
    }
    let shares = totals.shares();
    assert_eq!((shares[0].fnodes[0], shares[0].of), (wait, ShareOf::Rare));
    assert_eq!(
        (shares[1].fnodes[0], shares[1].of),
        (serve, ShareOf::Itself)
    );
    assert!(
        totals.to_expand(&|_| Doing::Work).is_empty(),
        "nothing is inside of the kernel"
    );
}

#[test]
fn a_frame_that_returns_is_a_callee_like_others() {
    let mut totals = totals();
    let build = child(&mut totals, FnodeId::ROOT, 1, 1);
    let insert = child(&mut totals, build, 2, 2);
    let split = child(&mut totals, insert, 3, 3);
    for running in [build, insert] {
        totals.set_running(1, running);
        totals.expanded(running);
    }
    assert_eq!(totals.needed().collect::<Vec<_>>(), [build, insert, split]);
    window(
        &mut totals,
        0,
        100_000,
        &[(insert, 70_000, 900), (split, 10_000, 50)],
    );
    assert!(totals.forget_returned());
    assert_eq!(totals.running().collect::<Vec<_>>(), [FnodeId::ROOT, build]);
    assert_eq!(totals.needed().collect::<Vec<_>>(), [build, insert]);
    assert!(!totals.forget_returned());
    let shares = totals.shares();
    assert_eq!(
        (shares[0].fnodes[0], shares[0].of),
        (insert, ShareOf::Frequent)
    );
}

#[test]
fn a_threads_own_time_is_that_of_the_function_it_is_in() {
    let mut totals = totals();
    let compute = child(&mut totals, FnodeId::ROOT, 1, 1);
    let wait = child(&mut totals, FnodeId::ROOT, 2, 2);
    let step = child(&mut totals, compute, 3, 3);
    for (tid, running) in [(1, compute), (2, wait)] {
        totals.set_running(tid, FnodeId::ROOT);
        totals.set_running(tid, running);
        totals.expanded(running);
    }
    window(&mut totals, 0, 100, &[(step, 30, 3)]);
    window_of(&mut totals, 2, 0, 50, &[]);
    // Of this one it is only known that it is in what all are in.
    window_of(&mut totals, 3, 0, 20, &[]);
    let shares = totals.shares();
    let found = shares.iter();
    let found = found.map(|share| (share.fnodes[0], share.total.time.0));
    assert_eq!(
        found.collect::<Vec<_>>(),
        [(compute, 70), (wait, 50), (step, 30), (FnodeId::ROOT, 20)]
    );
}

/// What jumped to a function that runs is not on the stack, and is called anew as that is.
#[test]
fn what_jumped_to_a_frame_that_returned_is_a_callee_like_others() {
    let mut totals = totals();
    let request = child(&mut totals, FnodeId::ROOT, 1, 1);
    let fetch = child(&mut totals, request, 2, 2);
    totals.expanded(request);
    totals.set_running(1, fetch);
    totals.expanded(fetch);
    let called = [(request, 80_000, 900), (fetch, 70_000, 900)];
    window(&mut totals, 0, 100_000, &called);
    assert!(totals.forget_returned());
    assert_eq!(totals.needed().collect::<Vec<_>>(), [request]);
    let shares = totals.shares();
    assert_eq!(
        (shares[0].fnodes[0], shares[0].of),
        (request, ShareOf::Frequent)
    );
}

/// What waits for the next job is called as often as what handles it.
#[test]
fn frequent_callees_that_were_seen_to_wait_are_gone_into() {
    let mut totals = totals();
    let take = child(&mut totals, FnodeId::ROOT, 1, 1);
    let poll = child(&mut totals, FnodeId::ROOT, 2, 2);
    let (wait, wait_too) = (
        child(&mut totals, take, 3, 3),
        child(&mut totals, poll, 4, 3),
    );
    let handle = child(&mut totals, poll, 5, 4);
    let doing = |share: &Share| match share.fnodes[0] {
        fnode if [wait, wait_too].contains(&fnode) => Doing::Waits,
        fnode if [take, poll].contains(&fnode) => Doing::SeenToWait,
        _ => Doing::Work,
    };
    let round = |totals: &mut Totals| {
        for at in 0..30 {
            let below = [(take, 5_000, 50), (wait, 4_990, 50)];
            let both = [
                (poll, 4_600, 50),
                (wait_too, 3_600, 50),
                (handle, 1_000, 50),
            ];
            window(totals, at * 10_000, 10_000, &[&below[..], &both].concat());
        }
    };
    round(&mut totals);
    assert_eq!(totals.to_expand(&doing), [take, poll]);
    totals.expanded(take);
    totals.expanded(poll);
    totals.next_round(Tsc(0));
    round(&mut totals);
    assert!(totals.to_expand(&doing).is_empty());
    let found = totals.to_analyse(&doing);
    let found: Vec<_> = found.iter().map(|share| share.fnodes[0]).collect();
    assert_eq!(
        found,
        [poll],
        "take does nothing else, and handle is a part of poll"
    );
}

#[test]
fn sites_of_one_callee_in_one_function_go_together() {
    let mut totals = totals();
    let first = child(&mut totals, FnodeId::ROOT, 1, 1);
    let second = child(&mut totals, FnodeId::ROOT, 2, 1);
    window(&mut totals, 0, 100, &[(first, 30, 3), (second, 50, 1)]);
    let shares = totals.shares();
    assert_eq!(shares[0].fnodes, [first, second]);
    let Total { time, calls, max } = shares[0].total;
    assert_eq!((time, calls, max), (Ticks(80), 4, Ticks(50)));
}
