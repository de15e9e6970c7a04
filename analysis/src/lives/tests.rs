//! Lives from polls, and what takes their time.

use super::*;
use crate::descent::ftree::{Callee, CalleeId};
use crate::{CauseKind, Params, Request, SiteId, Status};

fn poll(future: u64, states: (u32, u32), start: u64, end: u64) -> Poll {
    Poll {
        future,
        states,
        op: Op {
            tid: (start % 3) as i32,
            start: Tsc(start),
            end: Tsc(end),
            latency: Ticks(end - start),
            arguments: Arguments::default(),
            touched: Vec::new(),
        },
        is_whole: true,
    }
}

fn waiting() -> Lives {
    Lives::new(Of::Futures, BTreeSet::from([3, 4, 5]))
}

fn settled(lives: &mut Lives, polls: &[Poll]) -> Vec<Life> {
    for poll in polls {
        lives.hold(poll.clone(), Tsc(u64::MAX));
    }
    lives.settle(Tsc(u64::MAX))
}

/// Two threads poll one future, and their records are read in the other order.
#[test]
fn a_life_is_all_polls_of_a_future_and_its_waits_by_their_places() {
    let mut lives = waiting();
    let polls = [
        poll(8, (4, 1), 700, 710),
        poll(8, (3, 3), 300, 330),
        poll(8, (3, 4), 400, 405),
        poll(8, (0, 3), 100, 120),
        poll(9, (0, 1), 105, 125),
    ];
    let ended = settled(&mut lives, &polls);
    assert_eq!(ended.len(), 2);
    assert_eq!(ended[0].op.latency, Ticks(20), "in one poll");
    let life = &ended[1];
    assert_eq!((life.op.start, life.op.end), (Tsc(100), Tsc(710)));
    assert_eq!(life.op.latency, Ticks(610));
    let awaits = [(3, (Tsc(120), Ticks(250))), (4, (Tsc(405), Ticks(295)))];
    assert_eq!(life.awaits, BTreeMap::from(awaits));
    let fates = Fates {
        polls: 5,
        ..Fates::default()
    };
    assert_eq!(lives.fates(), fates);
}

#[test]
fn polls_are_held_until_all_before_them_are_known() {
    let mut lives = waiting();
    lives.hold(poll(8, (3, 1), 300, 310), Tsc(310));
    assert_eq!(lives.settle(Tsc(305)), []);
    lives.hold(poll(8, (0, 3), 100, 110), Tsc(310));
    assert_eq!(lives.settle(Tsc(310)).len(), 1);
}

#[test]
fn futures_that_do_not_return_are_counted_and_their_places_are_used_again() {
    let mut lives = waiting();
    let polls = [
        poll(8, (4, 3), 10, 20),
        poll(8, (3, 1), 30, 40),
        poll(8, (0, 3), 100, 110),
        poll(8, (0, 3), 200, 210),
        poll(8, (3, 1), 220, 230),
        poll(7, (0, 3), 300, 310),
    ];
    let ended = settled(&mut lives, &polls);
    assert_eq!(ended.len(), 1);
    assert_eq!(ended[0].op.start, Tsc(200));
    let fates = lives.fates();
    assert_eq!((fates.begun_before, fates.dropped), (1, 1));
    assert_eq!((fates.lost, fates.under_way), (0, 1));
}

#[test]
fn what_does_not_fit_together_is_no_op() {
    for states in [(4, 1), (2, 1), (1, 1), (u32::MAX, 1), (3, 0), (3, 2)] {
        let mut lives = waiting();
        let polls = [poll(8, (0, 3), 10, 20), poll(8, states, 30, 40)];
        assert_eq!(settled(&mut lives, &polls), [], "{states:?}");
        assert_eq!(lives.fates().lost, 1, "{states:?}");
    }
    let mut lives = waiting();
    let overlapping = [poll(8, (0, 3), 10, 20), poll(8, (3, 1), 15, 40)];
    assert_eq!(settled(&mut lives, &overlapping), []);
}

#[test]
fn where_polls_went_unseen_no_life_is_put_together() {
    let two = |start: u64| {
        [
            poll(8, (0, 3), start, start + 10),
            poll(8, (3, 1), start + 20, start + 30),
        ]
    };
    let mut lives = waiting();
    lives.unseen(Tsc(115), Tsc(117));
    assert_eq!(settled(&mut lives, &two(10)).len(), 1);
    assert_eq!(settled(&mut lives, &two(100)), []);
    assert_eq!(settled(&mut lives, &two(300)).len(), 1);
    lives.unseen(Tsc(420), Tsc(430));
    let again = [poll(8, (0, 3), 400, 410), poll(8, (0, 3), 440, 450)];
    assert_eq!(settled(&mut lives, &again), []);
    assert_eq!((lives.fates().lost, lives.fates().dropped), (2, 0));
}

/// Records are found lost since a look that was before a change of probes.
#[test]
fn a_gap_covers_all_of_the_time_in_which_polls_may_have_been() {
    let mut lives = waiting();
    lives.unseen(Tsc(50), Tsc(60));
    lives.unseen(Tsc(200), Tsc(300));
    lives.unseen(Tsc(100), Tsc(400));
    assert!(lives.may_miss(Tsc(110), Tsc(120)) && lives.may_miss(Tsc(390), Tsc(395)));
    assert!(!lives.may_miss(Tsc(60), Tsc(100)) && !lives.may_miss(Tsc(400), Tsc(500)));
    assert_eq!(lives.gaps.len(), 2);
    for at in 0..2 * MOST_GAPS as u64 {
        lives.unseen(Tsc(1000 + 2 * at), Tsc(1001 + 2 * at));
    }
    assert!(lives.gaps.len() <= MOST_GAPS);
    assert!(lives.may_miss(Tsc(16_000), Tsc(16_001)) && lives.may_miss(Tsc(51), Tsc(52)));
}

#[test]
fn what_makes_no_sense_is_lost_at_once() {
    let mut lives = waiting();
    lives.hold(poll(8, (0, 1), 10, 20), Tsc(15));
    let mut backwards = poll(8, (0, 1), 10, 20);
    backwards.op.start = Tsc(30);
    lives.hold(backwards, Tsc(40));
    assert_eq!(lives.settle(Tsc(u64::MAX)), []);
    assert_eq!(lives.fates().lost, 2);
    assert!(lives.held.is_empty());
    assert_eq!(settled(&mut lives, &[poll(9, (0, 77), 100, 110)]), []);
    assert!(lives.open.is_empty(), "no future waits in that state");
}

#[test]
fn futures_that_nobody_polls_again_take_no_memory_without_end() {
    let mut lives = waiting();
    for future in 0..3 * MOST as u64 {
        let poll = poll(8 * future, (0, 3), 10 * future, 10 * future + 5);
        lives.hold(poll, Tsc(u64::MAX));
        lives.settle(Tsc(u64::MAX));
    }
    let fates = lives.fates();
    assert!(lives.open.len() <= MOST);
    assert_eq!(fates.forgotten + fates.under_way, 3 * MOST as u64);
}

/// Most lives are short; every fourth waits at the place of states 4 and 5; every eighth works in a callee of f0.
#[test]
fn waiting_and_working_compete_for_the_peaks_of_lives() {
    let mut analysis = Analysis::new(Params::default());
    analysis.expect_awaits([3, 4].into_iter());
    let (mut lives, mut work) = (waiting(), None);
    for turn in 0..8_000_u64 {
        let at = turn * 1_000_000;
        let mut worked = poll(8, (0, 4), at, at + 1_000);
        if turn % 8 == 3 {
            worked.op.end = Tsc(at + 60_000);
            worked.op.latency = Ticks(60_000);
            worked.op.touched.extend(work.map(|fnode| Touched {
                fnode,
                max: Ticks(59_000),
                max_start: Tsc(at + 500),
                long: Ticks(0),
                sum: Ticks(59_000),
                count: 1,
            }));
        }
        let waited = if turn % 4 == 0 { 400_000 } else { 200 };
        let second = worked.op.end.0 + waited;
        let third = second + 100 + waited;
        let polls = [
            worked,
            poll(8, (4, 5), second, second + 100),
            poll(8, (5, 1), third, third + 100),
        ];
        for life in settled(&mut lives, &polls) {
            analysis.life(&life, |state| state.min(4));
        }
        for request in analysis.requests() {
            if let Request::Expand(fnode) = request {
                if fnode == FnodeId::ROOT {
                    let callee = Callee::Function(CalleeId(1));
                    work = Some(analysis.add_child(fnode, SiteId(1), callee));
                    analysis.expanded(fnode, Tsc(0));
                } else {
                    analysis.cannot_expand(fnode, crate::Stop::NoCalls);
                }
            }
        }
    }
    assert_eq!(analysis.status(), Status::RootCauseFound);
    let ends: Vec<Vec<_>> = analysis
        .peaks()
        .iter()
        .map(|peak| {
            let causes = analysis.root_causes(peak.number).into_iter();
            causes
                .map(|it| (it.kind, it.path.len(), it.share > 0.9))
                .collect()
        })
        .collect();
    let expected = [
        vec![
            (CauseKind::Function, 1, false),
            (CauseKind::Await, 2, false),
        ],
        vec![(CauseKind::Function, 2, true)],
        vec![(CauseKind::Await, 2, true)],
    ];
    assert_eq!(ends, expected);
}

#[test]
fn the_calls_of_all_polls_are_added_up() {
    let of_poll = |max, max_start, long| Touched {
        fnode: FnodeId(2),
        max: Ticks(max),
        max_start: Tsc(max_start),
        sum: Ticks(max + 100),
        count: 2,
        long: Ticks(long),
    };
    let mut known = of_poll(9_000, 10, 9_000);
    super::add(&mut known, &of_poll(20_000, 30, 20_000));
    let all = Touched {
        sum: Ticks(29_200),
        count: 4,
        ..of_poll(20_000, 30, 29_000)
    };
    assert_eq!(known, all);
}
