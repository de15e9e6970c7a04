//! Experiments with synthetic programs whose slope is known.

use darc_record::Hz;

use super::*;

/// The true slope, calls an op, and how much the machine's speed wanders from span to span.
#[derive(Clone, Copy)]
struct Program {
    slope: f64,
    calls: u64,
    wanders: f64,
}

const PEAK: RangeInclusive<Ticks> = Ticks(600_000)..=Ticks(1_600_000);

/// What calls are delayed by in a span.
fn dose(random: &mut Random) -> Dose {
    match random.below(10) {
        0..5 => Dose::Nothing,
        5 => Dose::Half,
        _ => Dose::Whole,
    }
}

/// How long it is.
fn of(dose: Dose, delay: u64) -> Ticks {
    Ticks(match dose {
        Dose::Nothing => 0,
        Dose::Half => delay / 2,
        Dose::Whole => delay,
    })
}

/// Spans of a program with ops of two peaks, the cause called in both.
fn spans(program: Program, seed: u64, count: usize, each: usize) -> Vec<Span> {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..8 {
        random.part();
    }
    let span = |_| {
        let dose = dose(&mut random);
        let delay = of(dose, 20_000);
        let speed = 1.0 + program.wanders * (random.part() - 0.5);
        let op = |_| {
            let base = match random.below(4) {
                0 => 30_000.0 + 10_000.0 * random.part(),
                _ => 800_000.0 + 400_000.0 * random.part() * random.part(),
            };
            let calls = 1 + random.below(2 * program.calls as usize - 1) as u64;
            let added = calls * delay.0;
            let latency = speed * base + program.slope * added as f64;
            Delayed {
                latency: Ticks(latency as u64),
                added: Ticks(added),
                meant: Ticks(added),
            }
        };
        Span {
            dose,
            ops: (0..each).map(op).collect(),
        }
    };
    (0..count).map(span).collect()
}

#[test]
fn the_interval_holds_the_true_slope() {
    for (slope, calls) in [(1.0, 10), (0.0, 10), (1.0, 1)] {
        let program = Program {
            slope,
            calls,
            wanders: 0.05,
        };
        let mut decided = 0;
        for seed in 1..=6 {
            let spans = spans(program, seed, 120, 12);
            let found = super::slope(&spans, &PEAK, risk(9)).unwrap();
            assert!(
                (found.low..=found.high).contains(&slope),
                "{slope}: {found:?}"
            );
            decided += u32::from(found.verdict() != Verdict::NotDecided);
        }
        // Where one call of 10,000 cycles is added to an op of a million, the interval says that it does not know.
        let expected = if calls > 1 { 4..=6 } else { 0..=2 };
        assert!(expected.contains(&decided), "{slope}: {decided}");
    }
}

/// What else makes latencies differ.
#[derive(Clone, Copy, Debug)]
enum Noise {
    /// One op in twenty takes up to five times as long as the others.
    FewLong,
    /// The logarithm is normal, with a standard deviation of a fifth.
    Lognormal,
    /// As many as there are of some length are a third of those of half that length (Pareto), without a variance.
    HeavyTailed,
    /// The machine's speed wanders slowly: each span's is nearly that of the one before.
    Wandering,
}

impl Noise {
    /// How many times as long as the shortest an op is.
    fn longer(self, random: &mut Random) -> f64 {
        match self {
            Noise::FewLong if random.below(20) == 0 => 1.0 + 4.0 * random.part(),
            Noise::FewLong | Noise::Wandering => 1.0 + 0.1 * random.part() * random.part(),
            Noise::Lognormal => (0.2 * normal(random)).exp(),
            Noise::HeavyTailed => 1.0 + 0.05 * ((1.0 - random.part()).powf(-1.0 / 1.5) - 1.0),
        }
    }

    /// The speed of the next span.
    fn speed(self, before: f64, random: &mut Random) -> f64 {
        match self {
            Noise::Wandering => 1.0 + 0.95 * (before - 1.0) + 0.015 * normal(random),
            _ => 1.0 + 0.04 * (random.part() - 0.5),
        }
    }

    /// By what calls are delayed, and the ops that are looked at.
    fn delay(self) -> (u64, RangeInclusive<Ticks>) {
        match self {
            Noise::FewLong => (200_000, Ticks(900_000)..=Ticks(1_200_000)),
            Noise::Lognormal => (500_000, Ticks(500_000)..=Ticks(1_900_000)),
            Noise::HeavyTailed => (200_000, Ticks(900_000)..=Ticks(1_900_000)),
            Noise::Wandering => (200_000, Ticks(600_000)..=Ticks(1_600_000)),
        }
    }
}

/// A normal variable, nearly.
fn normal(random: &mut Random) -> f64 {
    (0..12).map(|_| random.part()).sum::<f64>() - 6.0
}

fn experiment(noise: Noise, slope: f64, seed: u64) -> Option<Slope> {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..8 {
        random.part();
    }
    let (delay, peak) = noise.delay();
    let mut speed = 1.0;
    let span = |_| {
        let dose = dose(&mut random);
        let delay = of(dose, delay);
        speed = noise.speed(speed, &mut random);
        let op = |_| {
            let latency = speed * 1e6 * noise.longer(&mut random) + slope * delay.0 as f64;
            Delayed {
                latency: Ticks(latency as u64),
                added: delay,
                meant: delay,
            }
        };
        Span {
            dose,
            ops: (0..4).map(op).collect(),
        }
    };
    let spans: Vec<Span> = (0..60).map(span).collect();
    super::slope(&spans, &peak, 0.05)
}

/// How many of so many experiments have an answer, an interval without the true slope, a verdict that is not true, one at all,
/// and know that the delays do what is in proportion to them.
fn misses(noise: Noise, slope: f64, seeds: std::ops::Range<u64>) -> [usize; 5] {
    let found: Vec<Slope> = seeds
        .filter_map(|seed| experiment(noise, slope, seed))
        .collect();
    let is_outside = |it: &&Slope| !(it.low..=it.high).contains(&slope);
    let is_wrong = |it: &&Slope| match it.verdict() {
        Verdict::Proven => slope < PROVEN,
        Verdict::NotOnPath => slope > NOT_ON_PATH,
        Verdict::Partly => slope <= 0.0 || slope > PARTLY,
        Verdict::NotLinear => true,
        Verdict::NotDecided => false,
    };
    let outside = found.iter().filter(is_outside).count();
    let wrong = found.iter().filter(is_wrong).count();
    let decided = found.iter().filter(|it| it.is_decided()).count();
    let linear = found.iter().filter(|it| it.linear() == Linear::Yes).count();
    [found.len(), outside, wrong, decided, linear]
}

/// Ops of a thousandth of a second that are longer by what a delay does.
fn bent(does: impl Fn(f64) -> f64, wanders: f64) -> Slope {
    let mut random = Random(0x9e37_79b9);
    let span = |_| {
        let dose = dose(&mut random);
        let delay = of(dose, 200_000);
        let speed = 1.0 + wanders * (random.part() - 0.5);
        let op = |_| Delayed {
            latency: Ticks((speed * 1e6 + 1e4 * random.part() + does(delay.0 as f64)) as u64),
            added: delay,
            meant: delay,
        };
        Span {
            dose,
            ops: (0..6).map(op).collect(),
        }
    };
    let spans: Vec<Span> = (0..200).map(span).collect();
    super::slope(&spans, &(Ticks(700_000)..=Ticks(1_500_000)), 0.05).unwrap()
}

#[test]
fn half_of_a_delay_tells_whether_all_of_it_acts_in_proportion() {
    // What something else takes, as long as the call and half of the delay, hides that half.
    let cases = [
        (1.0, 0.0, 0.05, Verdict::Proven, Linear::Yes),
        (0.0, 0.0, 0.05, Verdict::NotOnPath, Linear::Yes),
        (0.6, 0.0, 0.02, Verdict::Proven, Linear::Yes),
        (1.0, 1e5, 0.02, Verdict::NotLinear, Linear::No),
        (1.0, 0.0, 0.4, Verdict::Proven, Linear::NotKnown),
    ];
    for (slope, hides, wanders, verdict, linear) in cases {
        let found = bent(|delay| slope * (delay - hides).max(0.0), wanders);
        assert_eq!(
            (found.verdict(), found.linear()),
            (verdict, linear),
            "{found:?}"
        );
    }
}

#[test]
fn calls_that_queue_wait_for_the_delays_of_others_too() {
    for queue in [4.0, 8.0, 14.0] {
        let found = bent(|delay| queue * delay, 0.05);
        assert!(
            (found.low..=found.high).contains(&queue) && found.low > MORE,
            "{queue}: {found:?}"
        );
        assert_eq!(found.verdict(), Verdict::NotDecided);
    }
}

#[test]
fn a_delay_that_reaches_half_of_the_ops_is_half_of_one() {
    for (seed, reached) in (1..=12).zip([0.4, 0.5, 0.6].into_iter().cycle()) {
        let mut random = Random((seed * 0x9e37_79b9) | 1);
        for _ in 0..8 {
            random.part();
        }
        let span = |_| {
            let dose = dose(&mut random);
            let delay = of(dose, 200_000);
            let op = |_| {
                let slope = if random.part() < reached { 1.0 } else { 0.0 };
                let latency = 1e6 * (1.0 + 0.02 * random.part()) + slope * delay.0 as f64;
                Delayed {
                    latency: Ticks(latency as u64),
                    added: delay,
                    meant: delay,
                }
            };
            Span {
                dose,
                ops: (0..12).map(op).collect(),
            }
        };
        let spans: Vec<Span> = (0..120).map(span).collect();
        let wide = slope(&spans, &(Ticks(700_000)..=Ticks(1_500_000)), 0.05).unwrap();
        assert!((wide.at - reached).abs() < 0.15, "{reached}: {wide:?}");
        // Of those that it does not reach, some seem to be of no peak.
        let narrow = slope(&spans, &(Ticks(920_000)..=Ticks(1_200_000)), 0.05);
        assert!(
            narrow.is_none_or(|it| (it.at - reached).abs() < 0.25),
            "{reached}: {narrow:?}"
        );
    }
}

/// `DARC_RUNS=10000` looks at so many experiments of each slope and noise, and prints what came of them.
#[test]
fn nineteen_of_twenty_intervals_hold_the_true_slope() {
    let given = std::env::var("DARC_RUNS").ok();
    let runs: u64 = given.map_or(5, |runs| runs.parse().expect("DARC_RUNS is a number"));
    let noises = [
        Noise::FewLong,
        Noise::Lognormal,
        Noise::HeavyTailed,
        Noise::Wandering,
    ];
    std::thread::scope(|scope| {
        for noise in noises {
            scope.spawn(move || {
                let slopes = [0.0, 0.3, 0.6, 1.0];
                let counted = slopes.map(|slope| misses(noise, slope, 1..runs + 1));
                let of = |at: usize| counted.iter().map(|it| it[at]).sum::<usize>();
                let told = format!(
                    "{noise:?}: of {runs} each [known, outside, wrong, decided, linear] {counted:?}"
                );
                println!("{told}");
                assert!(2 * of(0) > 4 * runs as usize, "{told}");
                // The same seed has the same noise with each slope: one more or less is chance.
                assert!(of(1) * 20 <= of(0) + 20 * slopes.len(), "{told}");
                assert!(of(2) * 20 <= of(0), "{told}");
            });
        }
    });
}

#[test]
fn too_few_ops_say_nothing() {
    let program = Program {
        slope: 1.0,
        calls: 1,
        wanders: 0.0,
    };
    assert_eq!(slope(&[], &PEAK, 0.05), None);
    assert_eq!(slope(&spans(program, 1, 4, 3), &PEAK, 0.05), None);
    // Ops of another peak alone.
    let other = Ticks(5_000_000)..=Ticks(6_000_000);
    assert_eq!(slope(&spans(program, 1, 100, 10), &other, 0.05), None);
}

/// Spans of ops of which the part `lower` takes `below`, and the others `base`, one to twenty parts in a thousand more.
fn two_latencies(below: f64, base: f64, lower: f64, slope: f64) -> Vec<Span> {
    two_latencies_of(120, below, base, lower, slope)
}

fn two_latencies_of(spans: usize, below: f64, base: f64, lower: f64, slope: f64) -> Vec<Span> {
    let mut random = Random(77);
    let span = |_| {
        let dose = dose(&mut random);
        let delay = of(dose, base as u64 / 5);
        let op = |_| {
            let of = if random.part() < lower { below } else { base };
            let latency = of * (1.0 + 0.02 * random.part()) + slope * delay.0 as f64;
            Delayed {
                latency: Ticks(latency as u64),
                added: delay,
                meant: delay,
            }
        };
        Span {
            dose,
            ops: (0..12).map(op).collect(),
        }
    };
    (0..spans).map(span).collect()
}

#[test]
fn a_peak_that_is_narrower_than_the_delays_has_its_slope() {
    let spans = two_latencies(1e5, 1e5, 0.0, 0.97);
    let found = slope(&spans, &(Ticks(98_000)..=Ticks(105_000)), 0.05).unwrap();
    assert!((found.at - 0.97).abs() < 0.05, "{found:?}");
    assert_eq!(found.verdict(), Verdict::Proven);
}

#[test]
fn a_peak_of_few_among_many_ops_has_its_slope() {
    let spans = two_latencies_of(4_200, 1e5, 1e6, 0.98, 1.0);
    let ops: usize = spans.iter().map(|span| span.ops.len()).sum();
    assert!(ops > 50_000, "{ops}");
    let found = slope(&spans, &(Ticks(900_000)..=Ticks(1_100_000)), 0.05).unwrap();
    assert_eq!(found.verdict(), Verdict::Proven, "{found:?}");
    assert!(found.with + found.without > 700, "{found:?}");
}

/// Of twenty ops three are of a peak above, of which delayed ones would be of this one with a larger slope.
#[test]
fn neighbours_are_not_counted() {
    let spans = two_latencies(1.4e5, 1e5, 0.15, 1.0);
    let delayed = spans.iter().filter(|span| span.dose == Dose::Whole);
    let delayed = delayed.flat_map(|span| &span.ops).count() as f64;
    let found = slope(&spans, &(Ticks(95_000)..=Ticks(130_000)), 0.05).unwrap();
    let part = found.with as f64 / delayed;
    assert!((0.8..0.9).contains(&part), "{part}: {found:?}");
}

#[test]
fn a_larger_peak_just_below_makes_no_wrong_slope() {
    for truth in [0.0, 0.8, 0.97] {
        let spans = two_latencies(0.8e5, 1e5, 0.7, truth);
        let found = slope(&spans, &(Ticks(90_000)..=Ticks(130_000)), 0.05);
        let is_wrong = |found: Slope| match found.verdict() {
            Verdict::NotOnPath => truth > 0.2,
            Verdict::Proven => truth < 0.5,
            Verdict::NotLinear => true,
            Verdict::Partly | Verdict::NotDecided => false,
        };
        assert!(!found.is_some_and(is_wrong), "{truth}: {found:?}");
    }
}

#[test]
fn a_verdict_follows_from_the_interval() {
    let slope = |low, at, high| Slope {
        at,
        low,
        high,
        without: 100,
        with: 100,
        added: Ticks(10),
        meant: Ticks(10),
        latency: Ticks(50),
        half: None,
    };
    assert_eq!(slope(0.9, 1.0, 1.1).verdict(), Verdict::Proven);
    // What half of the ops wait for must not be taken for a cause by a hair.
    assert_eq!(slope(0.51, 1.0, 1.7).verdict(), Verdict::NotDecided);
    assert_eq!(slope(0.2, 0.3, 0.4).verdict(), Verdict::Partly);
    assert_eq!(slope(0.01, 0.1, 0.23).verdict(), Verdict::NotDecided);
    assert_eq!(slope(0.1, 0.9, 1.4).verdict(), Verdict::NotDecided);
    assert_eq!(slope(-0.1, 0.0, 0.1).verdict(), Verdict::NotOnPath);
    // A thread without an idle processor.
    assert_eq!(slope(1.1, 1.9, 2.7).verdict(), Verdict::NotDecided);
    assert_eq!(slope(0.6, 1.5, 2.4).verdict(), Verdict::Proven);
    assert_eq!(slope(-0.5, 0.9, 2.0).verdict(), Verdict::NotDecided);
    assert!(!slope(0.1, 0.9, 2.0).is_decided());
    assert!(slope(0.9, 1.0, 1.1).is_decided());
    // Delays of more than half of the latency, when they were to be shorter, may have outlasted what hides short ones.
    let long = |added, slope| Slope {
        added: Ticks(added),
        ..slope
    };
    let is_proven = |added| long(added, slope(0.6, 0.67, 0.74)).verdict() == Verdict::Proven;
    assert_eq!([24, 26].map(is_proven), [true, false]);
    let part = long(16, slope(0.2, 0.3, 0.4));
    assert_eq!(part.verdict(), Verdict::NotDecided);
    // What they do not reach a shorter one does not.
    let none = long(26, slope(-0.1, 0.0, 0.1));
    assert_eq!(none.verdict(), Verdict::NotOnPath);
}

fn limits() -> Limits {
    Limits {
        time: Ticks(10_000_000_000),
        delay: Ticks(10_000_000),
        budget: 0.02,
        clock: Hz::new(1_000_000_000).unwrap(),
    }
}

const BASELINE: Baseline = Baseline {
    time: Ticks(1_000_000_000),
    ops: 500,
    others: 0,
    latency: Ticks(1_000_000),
    spread: Ticks(50_000),
    longest: Ticks(1_500_000),
    calls: 2.0,
    all_calls: 1_000,
};

#[test]
fn delays_stay_within_the_budget() {
    let design = design(&BASELINE, &limits()).unwrap();
    let rate = 1_000.0 / 1e9;
    let price = rate * design.delay.0 as f64 * design.part;
    assert!(price <= 0.0201, "{design:?}");
    assert!(design.delay.0 >= 12_500, "{design:?}");
    let mut random = Random(7);
    let spans: Vec<_> = (0..1_000).map(|_| design.next(&mut random)).collect();
    let with = |dose: Dose| spans.iter().filter(|span| span.0 == dose).count() as f64;
    let (half, whole) = (with(Dose::Half), with(Dose::Whole));
    assert!(
        ((half + whole) / 1_000.0 - design.part).abs() < 0.05 && half < whole / 2.0 && half > 0.0,
        "{half} and {whole} of {design:?}"
    );
}

#[test]
fn delays_are_longer_where_latencies_differ() {
    let of = |spread| {
        let baseline = Baseline {
            spread: Ticks(spread),
            all_calls: 100,
            calls: 1.0,
            ..BASELINE
        };
        design(&baseline, &limits()).unwrap().delay.0
    };
    assert_eq!(
        [of(0), of(150_000), of(5_000_000)],
        [200_000, 300_000, 500_000]
    );
}

#[test]
fn what_cannot_tell_is_refused_before_it_begins() {
    let few = Baseline {
        ops: 1,
        all_calls: 1,
        ..BASELINE
    };
    assert!(matches!(
        design(&few, &limits()),
        Err(Refusal::TooFew { .. })
    ));
    let none = Baseline { ops: 0, ..BASELINE };
    let others = BASELINE.all_calls;
    assert_eq!(design(&none, &limits()), Err(Refusal::NotCalled { others }));
    let costly = Baseline {
        all_calls: 1_000_000_000,
        ..BASELINE
    };
    assert_eq!(design(&costly, &limits()), Err(Refusal::Budget));
}

/// Six times as many ops in a second, or six times as many seconds, are enough where sixty with a delay are needed.
#[test]
fn how_many_ops_are_needed_is_said_before_it_begins() {
    let of = |ops, seconds: u64| {
        let baseline = Baseline {
            ops,
            all_calls: ops,
            ..BASELINE
        };
        let limits = Limits {
            time: Ticks(seconds * 1_000_000_000),
            ..limits()
        };
        design(&baseline, &limits)
    };
    let (expected, needed) = (20, 60);
    assert_eq!(of(5, 10), Err(Refusal::TooFew { expected, needed }));
    assert!(of(30, 10).is_ok() && of(5, 60).is_ok());
}

/// What began in a span's first moments may still wait for what was delayed in the one before.
#[test]
fn ops_near_either_end_of_a_span_are_left_out() {
    let design = design(&BASELINE, &limits()).unwrap();
    let needed = design.longest + design.delay + design.delay;
    let less = needed.saturating_sub(Ticks(1));
    assert!(design.fits(2, needed, needed));
    assert!(!design.fits(2, less, needed) && !design.fits(2, needed, less));
    assert!(design.span >= needed + needed);
}

#[test]
fn the_gain_is_what_the_cause_takes_on_the_path() {
    let ops: Vec<_> = (0..100)
        .map(|index| {
            (
                Ticks(1_000 + index),
                Ticks(if index < 95 { 0 } else { 800 }),
            )
        })
        .collect();
    let all = Ticks(0)..=Ticks(5_000);
    let exactly = |at| Reach {
        at,
        low: at,
        high: at,
    };
    // Above the 99th percentile there is one op, which says nothing.
    let gains = gain(&ops, &all, exactly(1.0), &[0.5, 0.9, 0.99]);
    assert_eq!(gains.len(), 2);
    assert_eq!(gains[0].now, Ticks(1_050));
    assert_eq!(
        (gains[1].now, gains[1].without),
        (Ticks(1_090), Ticks(1_085))
    );
    // A slope that is known exactly leaves what a hundred ops do not tell of a percentile.
    assert_eq!(gains[0].bounds, [1_032, 1_057].map(Ticks));
    assert_eq!(
        gain(&ops, &all, exactly(0.0), &[0.9])[0].without,
        Ticks(1_090)
    );
    let others = Ticks(0)..=Ticks(500);
    assert_eq!(
        gain(&ops, &others, exactly(1.0), &[0.9])[0].without,
        Ticks(1_090)
    );
    assert_eq!(gain(&[], &all, exactly(1.0), &[0.99]), vec![]);
    let slope = Reach {
        at: 0.5,
        low: -0.1,
        high: 1.2,
    };
    let alike: Vec<_> = (0..100).map(|_| (Ticks(1_000), Ticks(800))).collect();
    let found = gain(&alike, &all, slope, &[0.5])[0].clone();
    assert_eq!(
        (found.without, found.bounds),
        (Ticks(600), [200, 1_000].map(Ticks))
    );
}
