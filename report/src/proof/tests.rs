//! What is told of experiments.

use super::*;

fn entry(entry: &ProofEntry) -> String {
    lines(std::slice::from_ref(entry), &[]).join("\n") + "\n"
}

fn proven() -> ProofEntry {
    ProofEntry {
        peak: 2,
        path: ["serve", "rebuild", "fs\x1bync"]
            .map(str::to_owned)
            .to_vec(),
        elsewhere: false,
        verdict: Verdict::Proven,
        reason: None,
        latencies: None,
        measured: Some(Measured {
            delay_ns: 1e5,
            slept: false,
            added_ns: 1.2e5,
            meant_ns: 1.1e5,
            overran: false,
            slope: 0.99,
            interval: [0.94, 1.05],
            linear: Some(true),
            half_slope: Some(0.97),
            ops_without: 400,
            ops_with: 50,
            added_share: 0.013,
            time_ns: 5e9,
        }),
        gain: vec![
            GainEntry {
                percentile: 50.0,
                now_ns: 1e4,
                without_ns: 1e4,
                without_interval_ns: None,
            },
            GainEntry {
                percentile: 99.9,
                now_ns: 1.4e7,
                without_ns: 1.9e6,
                without_interval_ns: Some([1.7e6, 2.2e6]),
            },
        ],
    }
}

#[test]
fn a_proof_in_words() {
    let text = entry(&proven());
    assert_eq!(
        text,
        "Peak 2  serve → rebuild → fs\\u{1b}ync\n  \
         proven: 120 µs more in fs\\u{1b}ync makes these calls 119 µs longer\n  \
         slope 0.99 (95%: 0.94 to 1.05), from 50 calls with a delay and 400 without, in 5.0 s; delays took 1.3% of the time\n  \
         half of the delay makes them longer by half as much (slope 0.97)\n  \
         without fs\\u{1b}ync in calls of this peak p99.9 would be 1.9 ms (95%: 1.7 ms to 2.2 ms) instead of 14 ms (of all calls, if nothing else takes its place)\n"
    );
}

#[test]
fn more_than_what_was_added_proves_nothing() {
    let measured = proven().measured.map(|it| Measured {
        slope: 1.9,
        interval: [1.1, 2.7],
        ..it
    });
    let late = ProofEntry {
        verdict: Verdict::NotDecided,
        measured,
        ..proven()
    };
    assert!(
        entry(&late).contains("not decided: 120 µs more in")
            && entry(&late).contains("calls queue for"),
        "{}",
        entry(&late)
    );
}

#[test]
fn a_small_part_is_told_as_such() {
    let with = |interval| ProofEntry {
        verdict: Verdict::NotOnPath,
        measured: proven().measured.map(|it| Measured { interval, ..it }),
        ..proven()
    };
    let little = entry(&with([-0.04, 0.182]));
    assert!(
        little.contains("makes them longer by 19% of that at most"),
        "{little}"
    );
    let less = entry(&with([-0.14, -0.02]));
    assert!(less.contains("by 0% of that at most"), "{less}");
}

/// Half of these calls may wait for all of it: a percentile may be that of the others.
#[test]
fn of_what_is_partly_on_the_path_no_gain_is_told() {
    let partly = ProofEntry {
        verdict: Verdict::Partly,
        ..proven()
    };
    let text = entry(&partly);
    assert!(
        text.contains("partly on the path: 120 µs more in"),
        "{text}"
    );
    assert!(
        text.contains("was not measured") && !text.contains("would be"),
        "{text}"
    );
}

#[test]
fn a_gain_has_no_interval_without_a_width() {
    let mut entry = proven();
    entry.gain[1].without_interval_ns = Some([1.9e6, 1.9e6]);
    let text = self::entry(&entry);
    assert!(
        text.contains("p99.9 would be 1.9 ms instead of 14 ms"),
        "{text}"
    );
}

#[test]
fn delays_that_took_too_long_are_told() {
    let late = ProofEntry {
        verdict: Verdict::NotDecided,
        measured: proven().measured.map(|it| Measured {
            meant_ns: 4e4,
            overran: true,
            ..it
        }),
        ..proven()
    };
    let text = entry(&late);
    assert!(
        text.contains("not decided: delays of 40 µs took 120 µs"),
        "{text}"
    );
}

#[test]
fn what_half_of_the_delay_does_is_told() {
    let with = |verdict, linear| ProofEntry {
        verdict,
        measured: proven().measured.map(|it| Measured {
            linear,
            half_slope: Some(0.04),
            ..it
        }),
        ..proven()
    };
    let bent = entry(&with(Verdict::NotLinear, Some(false)));
    assert!(
        bent.contains("not in proportion: 120 µs more in")
            && bent.contains("for half of the delay the slope is 0.04")
            && !bent.contains("would be"),
        "{bent}"
    );
    let open = entry(&with(Verdict::Proven, None));
    assert!(open.contains("by half as much is not known"), "{open}");
}

#[test]
fn a_wait_is_not_taken_for_a_cause_without_a_doubt() {
    let waits = ProofEntry {
        path: ["serve", "futex"].map(str::to_owned).to_vec(),
        ..proven()
    };
    assert!(entry(&waits).contains("--delay-by sleep tells"));
    let slept = proven().measured.map(|it| Measured { slept: true, ..it });
    let slept = ProofEntry {
        measured: slept,
        ..waits
    };
    assert!(!entry(&slept).contains("--delay-by sleep"));
}

#[test]
fn a_lock_that_a_function_takes_itself_is_kept_no_longer() {
    let said = |elsewhere, verdict| {
        entry(&ProofEntry {
            elsewhere,
            verdict,
            ..proven()
        })
        .contains("a lock that it takes itself was kept no longer")
    };
    assert!(said(true, Verdict::NotOnPath));
    assert!(!said(true, Verdict::Proven) && !said(false, Verdict::NotOnPath));
}

#[test]
fn what_other_threads_and_probes_do_in_words() {
    let elsewhere = ProofEntry {
        path: ["serve", "fetch"].map(str::to_owned).to_vec(),
        elsewhere: true,
        ..proven()
    };
    assert!(entry(&elsewhere).starts_with("Peak 2  serve … fetch on other threads\n"));
    let effect = EffectEntry {
        peak: 1,
        path: ["serve", "parse"].map(str::to_owned).to_vec(),
        reason: None,
        ops: Some(EffectOn {
            ns: 60.0,
            interval_ns: [40.0, 80.0],
        }),
        told: Some(EffectOn {
            ns: -4.0,
            interval_ns: [-20.0, 12.0],
        }),
        time_ns: 1e9,
    };
    let lines = lines(&[], &[effect]);
    assert!(
        lines[1].contains("take 60 ns (95%: 40 ns to 80 ns) more than with those of serve alone")
    );
    assert!(
        lines[2].contains("-4.0 ns (95%: -20 ns to 12 ns)"),
        "{lines:?}"
    );
}

#[test]
fn what_is_not_known_is_said() {
    let wide = ProofEntry {
        verdict: Verdict::NotDecided,
        ..proven()
    };
    let text = entry(&wide);
    assert!(text.contains("not decided after 5.0 s"), "{text}");
    assert!(!text.contains("would be"), "{text}");
    let refused = ProofEntry {
        verdict: Verdict::NotTested,
        reason: Some("it is no call".to_owned()),
        measured: None,
        gain: Vec::new(),
        ..proven()
    };
    assert!(entry(&refused).contains("not tested: it is no call"));
}
