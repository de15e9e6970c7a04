use super::*;
use crate::off_cpu::OtherId;
use crate::off_cpu::apart::tests::{BY, interval, op, touched};
use crate::{CalleeId, Params, Request, Status};
use darc_record::SiteId;
use darc_record::Tsc;

/// An op that begins when all others have ended.
fn follow(analysis: &mut Analysis, mut op: Op, away: &[Interval]) {
    let by = 2 * analysis.profile().total().0;
    let later = |at: Tsc| Tsc(at.0 + by);
    (op.start, op.end) = (later(op.start), later(op.end));
    for touched in &mut op.touched {
        touched.max_start = later(touched.max_start);
    }
    let away = away.iter().map(|it| Interval {
        from: later(it.from),
        to: later(it.to),
        why: match it.why {
            Away::Blocked { woken, by } => Away::Blocked {
                woken: woken.map(later),
                by,
            },
            why => why,
        },
    });
    analysis.op_with(&op, &away.collect::<Vec<_>>());
}

/// Measures what is asked for, of a program whose f0 calls g and nothing else: g, where that was f0's calls.
fn serve(analysis: &mut Analysis) -> Option<FnodeId> {
    let mut g = None;
    for request in analysis.requests() {
        if let Request::Expand(fnode) = request {
            if fnode == FnodeId::ROOT {
                let callee = Callee::Function(CalleeId(1));
                g = Some(analysis.add_child(fnode, SiteId(1), callee));
            }
            analysis.expanded(fnode, Tsc(0));
        }
    }
    g
}

/// Preemption in a callee that is investigated is no part of that callee: f0 tells it, with all that struck elsewhere.
#[test]
fn preemption_below_f0_is_told_at_f0() {
    let mut analysis = Analysis::new(Params::default());
    analysis.expect_absences();
    let callee = Callee::Function(CalleeId(1));
    let mut fnodes = Vec::new();
    // f0 takes 100 µs, g in it nearly all; in g are ten calls of h, 4 µs each, and another thread: for 5 µs until g is
    // looked at, for 30 µs in the ops that decide there.
    for _ in 0..5_000 {
        let mut called = Vec::new();
        if let Some(&g) = fnodes.first() {
            called.push(touched(g, 2_000, 95_000));
        }
        if let Some(&h) = fnodes.get(1) {
            let ten = Touched {
                sum: Ticks(40_000),
                count: 10,
                ..touched(h, 3_000, 4_000)
            };
            called.push(ten);
        }
        let taken = if fnodes.len() < 2 { 5_000 } else { 30_000 };
        let away = [interval(40_000, 40_000 + taken, BY)];
        follow(&mut analysis, op(100_000, called), &away);
        for request in analysis.requests() {
            if let Request::Expand(fnode) = request {
                if fnodes.len() < 2 {
                    let site = SiteId(fnodes.len() as u32);
                    fnodes.push(analysis.add_child(fnode, site, callee));
                }
                analysis.expanded(fnode, Tsc(0));
            }
        }
    }
    let g = fnodes[0];
    let there = analysis.ftree().known_absence(g, Absence::Preempted);
    let there = analysis.ftree().fnode(there.expect("an fnode in g"));
    assert_eq!(there.parent, Some(g));
    assert_eq!(there.record(1).stats.mean(), Ticks(30_000));
    let causes = analysis.root_causes(1);
    assert!(causes.iter().all(|cause| !cause.path.contains(&there.id)));
    let explained: f64 = causes.iter().map(|cause| cause.share).sum();
    assert!(explained <= 1.0, "{causes:?}");
}

/// The ops of the slow peak are asked for, and with them the slowest of the fast one, all of which were interrupted.
#[test]
fn ops_that_come_along_tell_nothing_of_time_away() {
    let mut analysis = Analysis::new(Params::default());
    analysis.expect_absences();
    let kind = Away::Interrupted(Absence::Interrupt(1));
    for turn in 0..400 {
        let latency = if turn % 5 == 4 { 1_000_000 } else { 1_000 };
        follow(&mut analysis, op(latency, Vec::new()), &[]);
    }
    let fast = analysis.peak_of(analysis.bucket(Ticks(1_000)));
    let fast = fast.expect("a peak");
    let before = analysis.off_cpu(fast).map_or(0, |all| all.ops);
    analysis.filter = vec![Ticks(1_010)..=Ticks(u64::MAX)];
    for _ in 0..100 {
        let away = [interval(1_100, 1_900, kind)];
        follow(&mut analysis, op(1_020, Vec::new()), &away);
    }
    // As much was taken out as if the interrupt had been measured, too.
    analysis.filter.clear();
    follow(
        &mut analysis,
        op(990, Vec::new()),
        &[interval(1_000, 9_000, kind)],
    );
    let all = analysis.off_cpu(fast).copied().unwrap_or_default();
    assert_eq!((all.ops, all.interrupted), (before, Ticks(0)));
}

/// Short ops that call g, and far ones in which g was preempted: the far peak's cause is the preemption.
#[test]
fn preemption_is_the_cause_of_a_far_peak() {
    let mut analysis = Analysis::new(Params::default());
    analysis.expect_absences();
    let mut g = None;
    for turn in 0..5_000 {
        let far = turn % 5 == 4;
        let called = g.map(|g| {
            let took = if far { 1_000_900 } else { 900 };
            touched(g, 1_050, took)
        });
        let latency = if far { 1_001_000 } else { 1_000 };
        let away = [interval(1_500, 1_001_500, BY)];
        let away = if far { &away[..] } else { &[] };
        follow(
            &mut analysis,
            op(latency, called.into_iter().collect()),
            away,
        );
        g = serve(&mut analysis).or(g);
    }
    assert_eq!(analysis.status(), Status::RootCauseFound);
    let ends = |peak| -> Vec<(CauseKind, usize)> {
        let causes = analysis.root_causes(peak);
        causes
            .iter()
            .map(|cause| (cause.kind, cause.path.len()))
            .collect()
    };
    let far = analysis
        .peaks()
        .iter()
        .max_by_key(|peak| peak.first_bucket)
        .unwrap()
        .number;
    let near = analysis
        .peaks()
        .iter()
        .min_by_key(|peak| peak.first_bucket)
        .unwrap()
        .number;
    assert_eq!(ends(near), [(CauseKind::Function, 2)]);
    assert_eq!(ends(far), [(CauseKind::Preemption, 2)]);
    let cause = &analysis.root_causes(far)[0];
    let waits = analysis.waits(*cause.path.last().unwrap(), far).unwrap();
    assert!(waits.others[&OtherId(7)].0 > 20, "{waits:?}");
}

/// g touches new memory in the slow ops alone, and makes no calls: the page faults are told below it, and once.
#[test]
fn page_faults_have_a_place() {
    let mut analysis = Analysis::new(Params::default());
    analysis.expect_absences();
    let mut g = None;
    let fault = Away::Faulted {
        blocked: Ticks(30_000),
        by: Some(OtherId(7)),
    };
    for turn in 0..5_000 {
        let slow = turn % 5 == 4;
        let (took, latency) = if slow { (48_500, 50_000) } else { (900, 1_000) };
        let called = g.map(|g| touched(g, 1_050, took));
        // The estimate is longer than the call.
        let away = [interval(1_000, 50_000, fault)];
        let away = if slow { &away[..] } else { &[] };
        follow(
            &mut analysis,
            op(latency, called.into_iter().collect()),
            away,
        );
        g = serve(&mut analysis).or(g);
    }
    assert_eq!(analysis.status(), Status::RootCauseFound);
    let peaks = analysis.peaks();
    let ends = |peak: u32| -> Vec<_> {
        let causes = analysis.root_causes(peak).into_iter();
        causes.map(|it| (it.kind, it.path.len())).collect()
    };
    assert_eq!(ends(peaks[0].number), [(CauseKind::Function, 2)]);
    assert_eq!(ends(peaks[1].number), [(CauseKind::PageFault, 3)]);
    // What they waited for is told with them.
    let causes = analysis.root_causes(peaks[1].number);
    let last = *causes[0].path.last().expect("a path");
    let waits = analysis.waits(last, peaks[1].number).expect("seen");
    assert_eq!(waits.blocked, Ticks(30_000 * waits.count));
    assert_eq!(waits.preempted, Ticks(49_000 * waits.count));
    assert_eq!(waits.others[&OtherId(7)], (waits.count, waits.blocked));
    let cause = &analysis.root_causes(peaks[1].number)[0];
    assert!((0.9..=1.0).contains(&cause.share), "{cause:?}");
}

/// Half of the ops call g, half of whose time is the records of a page fault, and the others take the time themselves.
#[test]
fn records_of_page_faults_are_nobodys_time() {
    let mut analysis = Analysis::new(Params::default());
    analysis.expect_absences();
    analysis.faults_are_recorded(Ticks(50_000));
    let mut g = None;
    let fault = Away::Faulted {
        blocked: Ticks(0),
        by: None,
    };
    for turn in 0..2_000 {
        let faults = turn % 2 == 0;
        let called = g.filter(|_| faults).map(|g| touched(g, 1_000, 100_000));
        let away = [interval(1_500, 100_500, fault)];
        let away = if faults { &away[..] } else { &[] };
        follow(
            &mut analysis,
            op(100_000, called.into_iter().collect()),
            away,
        );
        g = serve(&mut analysis).or(g);
    }
    let causes = analysis.root_causes(1);
    let share = |length: usize| -> f64 {
        let of_length = causes.iter().filter(|cause| cause.path.len() >= length);
        of_length.map(|cause| cause.share).sum()
    };
    // 50 of 150 thousand cycles, where it were 100 of 200.
    assert!((0.28..0.38).contains(&share(2)), "{causes:?}");
    assert!(share(1) > 0.9, "{causes:?}");
}

/// Another thread runs for half of each of the first ops, and never again.
#[test]
fn a_burst_of_preemption_is_no_cause_in_the_end() {
    let mut analysis = Analysis::new(Params::default());
    analysis.expect_absences();
    analysis.look_on();
    let mut g = None;
    for turn in 0..3_000 {
        let called = g.map(|g| touched(g, 1_500, 99_000));
        let away = [interval(20_000, 70_000, BY)];
        let away = if turn < 180 { &away[..] } else { &[] };
        follow(
            &mut analysis,
            op(100_000, called.into_iter().collect()),
            away,
        );
        if turn == 2_000 {
            analysis.seen_enough();
        }
        for request in analysis.requests() {
            if let Request::Expand(fnode) = request {
                if g.is_none() {
                    g = Some(analysis.add_child(fnode, SiteId(1), Callee::Function(CalleeId(1))));
                }
                analysis.expanded(fnode, Tsc(0));
            }
        }
        if turn == 1_000 {
            let kinds = analysis.root_causes(1).into_iter().map(|cause| cause.kind);
            assert!(kinds.collect::<Vec<_>>().contains(&CauseKind::Preemption));
        }
    }
    let causes = analysis.root_causes(1);
    assert!(analysis.is_finished(), "{causes:?}");
    assert!(
        causes.iter().all(|cause| cause.kind == CauseKind::Function),
        "{causes:?}"
    );
    assert_eq!(analysis.status(), Status::RootCauseFound);
}

/// f0 calls g, g calls h, and in h another thread runs for half of the time.
#[test]
fn time_away_is_in_the_share_of_no_function() {
    let mut analysis = Analysis::new(Params::default());
    analysis.expect_absences();
    let mut below = Vec::new();
    for _ in 0..1_000 {
        let called = below.iter().zip(1..);
        let called = called.map(|(&fnode, depth)| touched(fnode, 1_000 + depth * 10, 99_000));
        let away = [interval(20_000, 70_000, BY)];
        follow(&mut analysis, op(100_000, called.collect()), &away);
        for request in analysis.requests() {
            if let Request::Expand(fnode) = request {
                if below.len() < 2 {
                    let callee = Callee::Function(CalleeId(below.len() as u32));
                    below.push(analysis.add_child(fnode, SiteId(below.len() as u32), callee));
                }
                analysis.expanded(fnode, Tsc(0));
            }
        }
    }
    let causes = analysis.root_causes(1);
    let h = causes.iter().find(|cause| cause.path.len() == 3);
    let h = h.unwrap_or_else(|| panic!("{causes:?}"));
    assert!(h.shares[1] > 0.48 && h.shares[2] > 0.48, "{h:?}");
    let shares: f64 = causes.iter().map(|cause| cause.share).sum();
    assert!((0.95..1.0).contains(&shares), "{causes:?}");
}

fn prepared() -> Analysis {
    let mut analysis = Analysis::new(Params::default());
    analysis.expect_absences();
    analysis
}

fn with_a_call(start: u64, length: u64, away: &[Interval]) -> Analysis {
    with_calls(|g| touched(g, start, length), away)
}

fn with_calls(calls: impl Fn(FnodeId) -> Touched, away: &[Interval]) -> Analysis {
    let mut analysis = prepared();
    call(&mut analysis, calls, away);
    analysis
}

/// Ops of f0 with such calls of g in each, while the thread is away for these times.
fn call(analysis: &mut Analysis, calls: impl Fn(FnodeId) -> Touched, away: &[Interval]) {
    let mut g = None;
    for _ in 0..1_000 {
        let called = g.map(&calls);
        let called = called.into_iter().collect();
        follow(analysis, op(100_000, called), away);
        g = serve(analysis).or(g);
    }
}

const WAIT: Away = Away::Blocked {
    woken: None,
    by: None,
};

/// f0 waits itself for a tenth of the op, and for most of it in g, also while only f0 is measured.
#[test]
fn a_wait_in_a_callee_is_none_of_the_function_itself() {
    let away = [
        interval(2_000, 12_000, WAIT),
        interval(42_000, 100_000, WAIT),
    ];
    let causes = with_a_call(41_000, 60_000, &away).root_causes(1);
    let itself = causes.iter().find(|cause| cause.path.len() == 1);
    let blocked = itself.and_then(|cause| cause.blocked).expect("seen");
    assert!((blocked - 0.25).abs() < 0.01, "{causes:?}");
}

/// The kernel tells of the switch to another thread alone, as where page faults are not told.
#[test]
fn a_function_without_calls_that_waits_does_not_take_its_time() {
    for (waited, is_known) in [(90_000, false), (20_000, true)] {
        let away = [interval(5_000, 5_000 + waited, WAIT)];
        let analysis = with_a_call(4_000, 95_000, &away);
        let cause = &analysis.root_causes(1)[0];
        assert_eq!((cause.path.len(), &cause.stop), (2, &Stop::NoCalls));
        let expected = waited as f64 / 95_000.0;
        assert!((cause.blocked.unwrap() - expected).abs() < 0.1, "{cause:?}");
        let is_found = analysis.status() == Status::RootCauseFound;
        assert_eq!(is_found, is_known, "{waited}");
    }
}

/// As many as three calls that wait, of which the longest is known alone: the others are as that is.
#[test]
fn a_function_that_waits_in_each_of_its_calls_does_not_take_its_time() {
    let three = |g| Touched {
        sum: Ticks(90_000),
        count: 3,
        ..touched(g, 5_000, 30_000)
    };
    for (waited, is_known) in [(27_000, false), (5_000, true)] {
        let call = |begin| interval(begin, begin + waited, WAIT);
        let away = [call(6_000), call(37_000), call(68_000)];
        let analysis = with_calls(three, &away);
        let cause = &analysis.root_causes(1)[0];
        assert_eq!((cause.path.len(), &cause.stop), (2, &Stop::NoCalls));
        let expected = waited as f64 / 30_000.0;
        assert!((cause.blocked.unwrap() - expected).abs() < 0.1, "{cause:?}");
        let is_found = analysis.status() == Status::RootCauseFound;
        assert_eq!(is_found, is_known, "{waited}");
    }
}

/// f0 calls g twice, and takes most of the time itself, in which its thread ran or did not: nothing tells of its waits apart.
#[test]
fn a_function_that_takes_longer_than_its_thread_ran_does_not_take_its_time() {
    let twice = |g| Touched {
        sum: Ticks(4_000),
        count: 2,
        ..touched(g, 2_000, 2_000)
    };
    for (waited, is_known) in [(80_000, false), (30_000, true)] {
        let analysis = with_calls(twice, &[interval(10_000, 10_000 + waited, WAIT)]);
        let cause = &analysis.root_causes(1)[0];
        assert_eq!((cause.path.len(), cause.kind), (1, CauseKind::Function));
        let is_found = analysis.status() == Status::RootCauseFound;
        assert_eq!(is_found, is_known, "{waited}: {cause:?}");
        assert_eq!(cause.blocked.is_some_and(|part| part > 0.5), !is_known);
    }
}

/// g does not wait, so that it is f0 that did, whose waits are not known apart.
#[test]
fn a_function_that_ran_has_no_part_in_the_waits_of_others() {
    let twice = |g| Touched {
        sum: Ticks(24_000),
        count: 2,
        ..touched(g, 2_000, 12_000)
    };
    let analysis = with_calls(twice, &[interval(30_000, 94_000, WAIT)]);
    let causes = analysis.root_causes(1);
    let of = |depth| causes.iter().find(|cause| cause.path.len() == depth);
    assert_eq!(of(2).unwrap().blocked, Some(0.0), "{causes:?}");
    assert!(of(1).unwrap().blocked.unwrap() > 0.5, "{causes:?}");
    assert_eq!(analysis.status(), Status::Undecided);
}

/// Where what a function waits for is told by what it calls, it is no unknown wait.
#[test]
fn who_is_called_to_wait_is_no_unknown() {
    let mut analysis = with_a_call(4_000, 95_000, &[interval(5_000, 95_000, WAIT)]);
    assert_eq!(analysis.status(), Status::Undecided);
    analysis.tells_waits_by_calls();
    assert_eq!(analysis.status(), Status::RootCauseFound);
}

/// ... nor is the wait of a function whose call to wait was inlined.
#[test]
fn who_was_inlined_to_wait_is_no_unknown() {
    let away = [interval(10_000, 95_000, WAIT)];
    let mut analysis = prepared();
    call(&mut analysis, |g| touched(g, 4_000, 5_000), &away);
    assert_eq!(analysis.status(), Status::Undecided);
    let mut analysis = prepared();
    analysis.tells_waits_by_calls();
    call(&mut analysis, |g| touched(g, 4_000, 5_000), &away);
    assert_eq!(analysis.status(), Status::RootCauseFound);
}

/// Where threads were kept from running for much of the time, a function's own time is not known; what it waits for is. So it is where
/// that was too little to matter in these ops, and where the function lets others run.
#[test]
fn own_time_is_not_known_where_threads_were_kept_from_running() {
    // 1,000 ops of 100,000 each.
    let kept = |part, time, turn| Kept {
        part,
        time: Ticks(time),
        turn: Ticks(turn),
    };
    let much = kept(0.4, 80_000_000, 50_000);
    let cases = [
        Kept::default(),
        kept(0.2, 80_000_000, 50_000),
        kept(0.4, 80_000_000, 5_000),
        kept(0.4, 20_000_000, 50_000),
        much,
    ];
    let told = |away: &[Interval]| {
        let mut analysis = with_a_call(4_000, 95_000, away);
        analysis.tells_waits_by_calls();
        cases.map(|kept| {
            analysis.kept_from_running(kept, BTreeSet::new());
            (analysis.status(), analysis.may_be_kept_from_running())
        })
    };
    use Status::{RootCauseFound, Undecided};
    let found = (RootCauseFound, false);
    let may_be = (RootCauseFound, true);
    assert_eq!(told(&[]), [found, may_be, found, found, (Undecided, true)]);
    let waits = [interval(5_000, 95_000, WAIT)];
    assert_eq!(told(&waits), [found; 5]);
    let mut analysis = with_a_call(4_000, 95_000, &[]);
    let causes = analysis.root_causes(1).into_iter();
    let ends = causes.filter_map(|cause| cause.path.last().copied());
    analysis.kept_from_running(much, ends.collect());
    assert_eq!(analysis.kept_from_deciding(1), None);
    assert_eq!(analysis.status(), RootCauseFound);
    // It is known of nearly all ops of the peak when that was, and then it is not.
    let mut analysis = with_a_call(4_000, 95_000, &[]);
    analysis.kept_from_running(much, BTreeSet::new());
    let of_peak = op(100_000, Vec::new());
    for number in 0..100 {
        analysis.knows_when_kept(&of_peak, number >= 9);
    }
    assert_eq!(analysis.kept_from_deciding(1), None);
    analysis.knows_when_kept(&of_peak, false);
    analysis.knows_when_kept(&of_peak, false);
    assert_eq!(analysis.kept_from_deciding(1), Some(0.4));
}

#[test]
fn a_function_without_calls_says_so_all_the_same() {
    let mut analysis = Analysis::new(Params::default());
    analysis.expect_absences();
    for _ in 0..1_000 {
        follow(&mut analysis, op(1_000, Vec::new()), &[]);
        for request in analysis.requests() {
            if let Request::Expand(fnode) = request {
                analysis.expanded(fnode, Tsc(0));
            }
        }
    }
    assert_eq!(analysis.status(), Status::RootCauseFound);
    assert_eq!(analysis.root_causes(1)[0].stop, Stop::NoCalls);
}
