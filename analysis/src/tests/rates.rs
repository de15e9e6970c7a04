//! How often the descent is right, by simulation: thousands of descents of programs whose causes are known.
//!
//! `cargo test -p darc-analysis rates -- --nocapture` prints the table of `docs/method.md`.

use std::collections::BTreeSet;

use darc_record::SiteId;

use crate::descent::Analysis;
use crate::descent::ftree::{Callee, CalleeId};
use crate::descent::params::Params;
use crate::descent::peak_record::Stop;
use crate::simulate::{Program, Run, Session, call};

/// So many descents of each program.
const DESCENTS: u64 = 500;

/// A program, what is right to name, and what is wrong.
struct Case {
    name: &'static str,
    program: Program,
    /// All of these are to be named; `spread` at the end of a path says that there is no single cause there.
    right: &'static [&'static str],
    /// None of these is one, and everything else may be named or not.
    wrong: &'static [&'static str],
}

/// What came of the descents of a program.
struct Rates {
    /// All causes named.
    complete: f64,
    /// Something named that is no cause.
    wrong: f64,
    /// The same answer by two descents.
    same: f64,
    /// Ops that the middle one of the descents took.
    ops: u64,
}

const UNIT: f64 = 10_000.0;

/// f0 with the callees `c1` to `cN`.
fn callees(count: u32, f0: fn(&mut Run<'_>), callee: fn(&mut Run<'_>)) -> Program {
    const NAMES: [&str; 10] = ["c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8", "c9", "c10"];
    let sites: Vec<_> = (1..=count).map(|id| (id, call(id))).collect();
    let program = Program::default().function(0, "f0", &sites, f0);
    (1..=count).zip(NAMES).fold(program, |program, (id, name)| {
        program.function(id, name, &[], callee)
    })
}

/// Calls a callee that takes this part of the time.
fn take(run: &mut Run<'_>, callee: u32, part: f64) {
    run.level = (part * UNIT) as u64;
    run.call(callee, callee);
}

/// What a callee does.
fn takes(run: &mut Run<'_>) {
    run.work(run.level);
}

/// As far around the middle as is usual: 0.7 to 1.3.
fn some(run: &Run<'_>, name: u64) -> f64 {
    0.7 + 0.6 * run.random(name)
}

fn alternate(run: &mut Run<'_>, part: f64) {
    let callee = 1 + u32::from(run.random(0) >= part);
    let time = 0.95 * some(run, 1);
    run.work((0.05 * UNIT) as u64);
    take(run, callee, time);
}

fn ten_equal(run: &mut Run<'_>) {
    for callee in 1..=10 {
        let time = 0.1 * (0.5 + run.random(u64::from(callee)));
        take(run, callee, time);
    }
}

/// f0 with the callees `c1` to `cN`, each of which calls `lock`.
fn with_lock(count: u32, f0: fn(&mut Run<'_>), callee: fn(&mut Run<'_>)) -> Program {
    let mut program = callees(count, f0, callee).function(11, "lock", &[], takes);
    for id in 1..=count {
        let callee = program.functions.get_mut(&id);
        callee
            .into_iter()
            .for_each(|it| it.sites.push((SiteId(20 + id), call(11))));
    }
    program
}

/// Takes this part of the callee's time in `lock`, and the rest itself.
fn lock_for(run: &mut Run<'_>, part: f64) {
    let (all, callee) = (run.level & 0xffff_ffff, (run.level >> 32) as u32);
    run.level = (part * all as f64) as u64;
    run.work(all - run.level);
    run.call(20 + callee, 11);
}

fn equal_parts(run: &mut Run<'_>, count: u32) {
    for callee in 1..=count {
        let time = UNIT / f64::from(count) * (0.5 + run.random(u64::from(callee)));
        run.level = time as u64 | u64::from(callee) << 32;
        run.call(callee, callee);
    }
}

fn ten_exponential(run: &mut Run<'_>) {
    for callee in 1..=10 {
        let time = -0.1 * (1.0 - run.random(u64::from(callee))).ln();
        take(run, callee, time);
    }
}

fn one_of_ten(run: &mut Run<'_>) {
    let time = 0.8 * some(run, 0);
    take(run, 1, time);
    for callee in 2..=10 {
        let time = 0.02 * some(run, u64::from(callee));
        take(run, callee, time);
    }
}

/// A callee takes all of the time of one op of 20.
fn rarely_another(run: &mut Run<'_>) {
    let callee = if run.random(0) < 0.95 { 1 } else { 2 };
    let time = some(run, 1);
    take(run, callee, time);
}

/// Another callee takes the time of one op of ten, and these are longer: a fifth of the time.
fn seldom_and_long(run: &mut Run<'_>) {
    let (callee, long) = match run.random(0) < 0.9 {
        true => (1, 1.0),
        false => (2, 2.5),
    };
    let time = long * some(run, 1);
    take(run, callee, time);
}

/// Another callee takes the time of one op of 16, and these are longer, in the same hump.
fn seldom_in_the_hump(run: &mut Run<'_>) {
    let (callee, long) = match run.random(0) < 15.0 / 16.0 {
        true => (1, 1.0),
        false => (2, 2.5),
    };
    let time = long * (0.9 + 0.2 * run.random(1));
    take(run, callee, time);
}

/// A callee is asked in every op; in one of 16 it does not have the answer, and the op takes 2.5 times as long.
fn always_asked(run: &mut Run<'_>) {
    let is_missed = run.random(0) < 1.0 / 16.0;
    let usual = 0.98 * (0.9 + 0.2 * run.random(1));
    take(run, 1, usual);
    take(run, 2, if is_missed { 1.5 } else { 0.02 });
}

/// f0 takes 5 to 500 units itself, as many in each doubling; a callee takes a twentieth.
fn own_time(run: &mut Run<'_>) {
    let time = 100_f64.powf(run.random(0));
    run.work((time * UNIT) as u64);
    take(run, 1, 0.05 * time);
}

fn three(run: &mut Run<'_>) {
    for (callee, part) in [(1, 0.45), (2, 0.35), (3, 0.2)] {
        let time = part * some(run, u64::from(callee));
        take(run, callee, time);
    }
}

/// Five levels, at the second of which two causes alternate.
fn deep() -> Program {
    let chain = |run: &mut Run<'_>| run.call(1, 1);
    Program::default()
        .function(0, "f0", &[(1, call(1))], chain)
        .function(1, "a", &[(2, call(2)), (3, call(3))], |run| {
            let callee = 2 + u32::from(run.random(0) >= 0.6);
            run.call(callee, callee);
        })
        .function(2, "b", &[(4, call(4))], |run| run.call(4, 4))
        .function(3, "c", &[(5, call(4))], |run| run.call(5, 4))
        .function(4, "work", &[], |run| {
            let time = some(run, 1);
            run.work((time * UNIT) as u64);
        })
}

/// A cache, which a third of its callers miss: `f0` calls it at these sites.
fn cache(sites: &[(u32, Callee)], f0: fn(&mut Run<'_>)) -> Program {
    Program::default()
        .function(0, "f0", sites, f0)
        .function(1, "get", &[(20, call(2)), (21, call(3))], |run| {
            let is_missed = run.level % 2 == 1;
            run.call(20 + u32::from(is_missed), 2 + u32::from(is_missed));
        })
        .function(2, "hit", &[], takes)
        .function(3, "miss", &[], takes)
}

const TWELVE: [(u32, Callee); 12] = {
    let mut sites = [(0, Callee::Unknown); 12];
    let mut at = 0;
    while at < sites.len() {
        sites[at] = (at as u32 + 1, Callee::Function(CalleeId(1)));
        at += 1;
    }
    sites
};

const SIX_AND_ANOTHER: [(u32, Callee); 7] = {
    let mut sites = [TWELVE[0]; 7];
    let mut at = 1;
    while at < 6 {
        sites[at] = TWELVE[at];
        at += 1;
    }
    sites[6] = (30, Callee::Function(CalleeId(30)));
    sites
};

/// Twelve sites call the same function, each in one op of twelve. A third of them lead elsewhere.
fn one_of_twelve(run: &mut Run<'_>) {
    let site = 1 + (12.0 * run.random(0)) as u32;
    run.level = (some(run, 1) * UNIT) as u64 / 2 * 2 + u64::from(site.is_multiple_of(3));
    run.call(site, 1);
}

/// Six sites call a function for half of the time, each in one op of six, and it does one or the other thing.
fn six_beside_another(run: &mut Run<'_>) {
    let (site, is_missed) = (1 + (6.0 * run.random(0)) as u32, run.random(2) < 0.4);
    run.level = (0.5 * some(run, 1) * UNIT) as u64 / 2 * 2 + u64::from(is_missed);
    run.call(site, 1);
    let time = 0.5 * some(run, 3);
    take(run, 30, time);
}

/// One site calls the function five times, and the longest of the calls leads elsewhere.
fn longest_of_five(run: &mut Run<'_>) {
    for turn in 0..5 {
        let is_missed = turn == 2;
        let time = if is_missed { 0.3 } else { 0.2 } * some(run, turn);
        run.level = (time * UNIT) as u64 / 2 * 2 + u64::from(is_missed);
        run.call(1, 1);
    }
}

fn cases() -> Vec<Case> {
    let case = |name, program, right, wrong| Case {
        name,
        program,
        right,
        wrong,
    };
    const OTHERS: &[&str] = &[
        "f0", "f0/c2", "f0/c3", "f0/c4", "f0/c5", "f0/c6", "f0/c7", "f0/c8", "f0/c9", "f0/c10",
    ];
    const TEN: &[&str] = &[
        "f0", "f0/c1", "f0/c2", "f0/c3", "f0/c4", "f0/c5", "f0/c6", "f0/c7", "f0/c8", "f0/c9",
        "f0/c10",
    ];
    const BOTH: &[&str] = &["f0/c1", "f0/c2"];
    vec![
        case(
            "one cause of 80%, nine of 2%",
            callees(10, one_of_ten, takes),
            &["f0/c1"],
            OTHERS,
        ),
        case(
            "one cause, another one in 5% of the ops, as long",
            callees(2, rarely_another, takes),
            &["f0/c1"],
            &["f0", "f0/c2"],
        ),
        case(
            "one cause, another one in 10% of the ops, 20% of the time",
            callees(2, seldom_and_long, takes),
            BOTH,
            &["f0"],
        ),
        case(
            "one cause, another one in 6% of the ops, 2.5 times as long",
            callees(2, seldom_in_the_hump, takes),
            BOTH,
            &["f0"],
        ),
        case(
            "one cause, another one asked in all ops, in 6% of them for long",
            callees(2, always_asked, takes),
            BOTH,
            &["f0"],
        ),
        case(
            "own time over two decades, a callee of 5%",
            callees(1, own_time, takes),
            &["f0"],
            &["f0/c1"],
        ),
        case(
            "two causes in turn, 50:50",
            callees(2, |run| alternate(run, 0.5), takes),
            BOTH,
            &["f0"],
        ),
        case(
            "two causes in turn, 60:40",
            callees(2, |run| alternate(run, 0.6), takes),
            BOTH,
            &["f0"],
        ),
        case(
            "two causes in turn, 75:25",
            callees(2, |run| alternate(run, 0.75), takes),
            BOTH,
            &["f0"],
        ),
        case(
            "two causes in turn below a callee, 60:40",
            deep(),
            &["f0/a/b/work", "f0/a/c/work"],
            &["f0", "f0/a", "f0/a/b", "f0/a/c"],
        ),
        case(
            "twelve calls of one function, of which four lead elsewhere",
            cache(&TWELVE, one_of_twelve),
            &["f0/get/hit", "f0/get/miss"],
            &["f0", "f0/get"],
        ),
        case(
            "six calls of one function of half of the time, which does one or the other",
            cache(&SIX_AND_ANOTHER, six_beside_another).function(30, "another", &[], takes),
            &["f0/another", "f0/get/hit", "f0/get/miss"],
            &["f0", "f0/get", "f0/get spread"],
        ),
        case(
            "five calls of one function, of which the longest leads elsewhere",
            cache(&TWELVE[..1], longest_of_five),
            &["f0/get/hit", "f0/get/miss"],
            &["f0", "f0/get"],
        ),
        case(
            "three at once, 45:35:20",
            callees(3, three, takes),
            &["f0/c1", "f0/c2", "f0/c3"],
            &["f0"],
        ),
        case(
            "ten equal callees, ±50%",
            callees(10, ten_equal, takes),
            &["f0 spread"],
            TEN,
        ),
        case(
            "six equal callees, each with 96% of its time in calls of one function",
            with_lock(6, |run| equal_parts(run, 6), |run| lock_for(run, 0.96)),
            &[
                "f0/c1/lock",
                "f0/c2/lock",
                "f0/c3/lock",
                "f0/c4/lock",
                "f0/c5/lock",
                "f0/c6/lock",
            ],
            TEN,
        ),
        case(
            "ten equal callees, each with 5% of its time in calls of one function",
            with_lock(10, |run| equal_parts(run, 10), |run| lock_for(run, 0.05)),
            &["f0 spread"],
            &[
                "f0/c1",
                "f0/c2",
                "f0/c3",
                "f0/c4",
                "f0/c5",
                "f0/c6",
                "f0/c7",
                "f0/c8",
                "f0/c9",
                "f0/c10",
                "f0/c1/lock",
                "f0/c2/lock",
                "f0/c3/lock",
                "f0/c4/lock",
                "f0/c5/lock",
                "f0/c6/lock",
                "f0/c7/lock",
                "f0/c8/lock",
                "f0/c9/lock",
                "f0/c10/lock",
            ],
        ),
        case(
            "ten equal callees, exponential",
            callees(10, ten_exponential, takes),
            &["f0 spread"],
            TEN,
        ),
    ]
}

/// One descent: what it names, and how many ops it took.
fn descent(program: &Program, seed: u64) -> (BTreeSet<String>, u64) {
    let mut session = Session::new(program.clone(), Params::default());
    session.next_op = seed << 20;
    session.run(20_000);
    let causes = (1..=session.analysis.peaks().len() as u32).flat_map(|peak| session.causes(peak));
    let named = causes.map(|(path, _, stop)| match stop {
        Stop::Spread => path + " spread",
        _ => path,
    });
    (named.collect(), session.next_op - (seed << 20))
}

fn rates(case: &Case) -> Rates {
    let found: Vec<_> = (1..=DESCENTS)
        .map(|seed| descent(&case.program, seed))
        .collect();
    let part = |is: &dyn Fn(&BTreeSet<String>) -> bool| {
        found.iter().filter(|(named, _)| is(named)).count() as f64 / found.len() as f64
    };
    let has =
        |named: &BTreeSet<String>, paths: &[&str]| paths.iter().any(|&path| named.contains(path));
    let pairs = found.chunks_exact(2);
    let same = pairs.clone().filter(|pair| pair[0].0 == pair[1].0).count();
    let mut ops: Vec<u64> = found.iter().map(|(_, ops)| *ops).collect();
    ops.sort_unstable();
    Rates {
        complete: part(&|named| case.right.iter().all(|&path| named.contains(path))),
        wrong: part(&|named| has(named, case.wrong)),
        same: same as f64 / pairs.len() as f64,
        ops: ops[ops.len() / 2],
    }
}

#[test]
fn rates_hold() {
    let percent = |part: f64| format!("{:.1}%", part * 100.0);
    println!("| program | all causes named | one named that is none | same answer twice | ops |");
    println!("| --- | --- | --- | --- | --- |");
    let mut bad = Vec::new();
    for case in cases() {
        let of = rates(&case);
        let (complete, wrong, same) = (percent(of.complete), percent(of.wrong), percent(of.same));
        println!(
            "| {} | {complete} | {wrong} | {same} | {} |",
            case.name, of.ops
        );
        if of.complete < 0.95 || of.same < 0.95 || of.wrong > 0.01 {
            bad.push(case.name);
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
}

/// Seldom peaks: of one op in so many.
const SELDOM: [u64; 3] = [100, 1_000, 10_000];
/// So many ops are counted before the peaks are cut anew: those of three seconds, with 100,000 in each.
const COUNTED: u64 = 300_000;
/// ... and so many times 20 ops of the peak may go by until its cause is known.
const PATIENCE: u64 = 3;

/// f0 takes fifty times as long, in another callee, in one op of [`SELDOM`].
fn seldom(run: &mut Run<'_>, at: usize) {
    let is_slow = run.random(0) < 1.0 / SELDOM[at] as f64;
    let (callee, long) = if is_slow { (2, 50.0) } else { (1, 1.0) };
    let time = long * some(run, 1);
    take(run, callee, time);
}

/// Whether the seldom peak is there at the end, and has its cause and nothing else as one.
fn is_found(program: &Program, seed: u64, one_in: u64) -> bool {
    let mut analysis = Analysis::new(Params::default());
    analysis.look_on();
    let mut session = Session::over(program.clone(), analysis);
    session.next_op = seed << 24;
    session.run(COUNTED);
    session.analysis.seen_enough();
    session.serve();
    session.run(PATIENCE * 20 * one_in);
    let peaks = session.analysis.peaks().into_iter();
    let slow = peaks.max_by_key(|peak| peak.first_bucket);
    slow.is_some_and(|peak| {
        let causes = session.causes(peak.number);
        causes.len() == 1 && causes[0].0 == "f0/c2" && causes[0].2 == Stop::NoCalls
    })
}

/// `DARC_RUNS=200` looks at so many of each.
#[test]
fn rates_of_seldom_peaks_hold() {
    let given = std::env::var("DARC_RUNS").ok();
    let runs: u64 = given.map_or(10, |runs| runs.parse().expect("DARC_RUNS is a number"));
    let bodies: [fn(&mut Run<'_>); 3] = [
        |run| seldom(run, 0),
        |run| seldom(run, 1),
        |run| seldom(run, 2),
    ];
    println!("| a peak of | found, with its cause |");
    println!("| --- | --- |");
    for (one_in, body) in SELDOM.into_iter().zip(bodies) {
        let program = callees(2, body, takes);
        let found = (1..=runs).filter(|&seed| is_found(&program, seed, one_in));
        let part = found.count() as f64 / runs as f64;
        println!("| 1 op in {one_in} | {:.1}% |", part * 100.0);
        assert!(
            part >= if one_in > 100 { 0.9 } else { 0.95 },
            "1 in {one_in}"
        );
    }
}
