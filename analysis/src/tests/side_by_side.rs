//! Ops of many threads at the same time: short ones end first.

use std::collections::BTreeMap;

use darc_record::{Arguments, FnodeId, Op, SiteId, Ticks, Touched, Tsc};

use crate::{Analysis, Callee, Params, Request, Stop};

/// Called by ops that are shorter than this.
const QUICK: FnodeId = FnodeId(2);
const LONGEST_QUICK: u64 = 4_000_000;
/// Called by the others, which have nearly all of the time.
const SLOW: FnodeId = FnodeId(3);
const THREADS: i32 = 300;

/// The op that a thread begins: of one broad hump, half a million to some sixty million cycles.
fn begun(tid: i32, at: u64, random: &mut u64) -> Op {
    *random = random
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    let octaves = (*random >> 40) as f64 / f64::from(1 << 24) * 7.0;
    let latency = (500_000.0 * octaves.exp2()) as u64;
    let callee = match latency < LONGEST_QUICK {
        true => QUICK,
        false => SLOW,
    };
    Op {
        arguments: Arguments::default(),
        tid,
        start: Tsc(at),
        end: Tsc(at + latency),
        latency: Ticks(latency),
        touched: vec![Touched {
            fnode: callee,
            max: Ticks(latency),
            max_start: Tsc(at),
            long: Ticks(0),
            sum: Ticks(latency),
            count: 1,
        }],
    }
}

fn answer(analysis: &mut Analysis, now: u64) {
    for request in analysis.requests() {
        match request {
            Request::Expand(FnodeId::ROOT) => {
                for site in [SiteId(1), SiteId(2)] {
                    analysis.add_child(FnodeId::ROOT, site, Callee::Unknown);
                }
                analysis.expanded(FnodeId::ROOT, Tsc(now));
            }
            Request::Expand(fnode) => analysis.cannot_expand(fnode, Stop::NoCalls),
            _ => {}
        }
    }
}

#[test]
fn what_short_ops_do_is_not_taken_for_what_long_ones_do() {
    long_ops_decide(|tid| tid);
}

/// Lives of futures overlap, all on one thread.
#[test]
fn what_short_lives_do_on_one_thread_is_not_taken_for_what_long_ones_do() {
    long_ops_decide(|_| 1);
}

fn long_ops_decide(runs_on: impl Fn(i32) -> i32) {
    let mut analysis = Analysis::new(Params::default());
    let mut random = 1;
    let mut under_way: BTreeMap<(u64, i32), Op> = BTreeMap::new();
    for tid in 1..=THREADS {
        let op = begun(tid, 0, &mut random);
        under_way.insert((op.end.0, tid), op);
    }
    for _ in 0..20_000 {
        let ((now, tid), op) = under_way.pop_first().expect("all threads work");
        analysis.op(&Op {
            tid: runs_on(tid),
            ..op
        });
        answer(&mut analysis, now);
        let next = begun(tid, now, &mut random);
        under_way.insert((next.end.0, tid), next);
    }
    let causes = analysis.root_causes(1);
    let most = causes
        .iter()
        .max_by(|one, other| one.share.total_cmp(&other.share));
    let most = most.expect("the peak has a cause");
    assert_eq!(most.path.last(), Some(&SLOW), "{causes:?}");
    assert!(most.share > 0.85, "{causes:?}");
}
