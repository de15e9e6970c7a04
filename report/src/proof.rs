//! What came of putting causes to the test, as text and JSON.

use std::fmt::Write as _;

use serde::Serialize;

use crate::escape::control;
use crate::words::percent;
use darc_record::Nanos;

/// The tests of one function's causes.
#[derive(Clone, PartialEq, Default, Serialize, Debug)]
pub struct Proofs {
    /// The version of this format.
    pub schema: u32,
    /// darc's version.
    pub darc: String,
    /// The process.
    pub pid: i32,
    /// f0.
    pub function: String,
    /// The part of the time that delays were to take at most, 0 to 1.
    pub budget: f64,
    /// One entry for each cause.
    pub causes: Vec<ProofEntry>,
    /// What the person should know.
    pub warnings: Vec<String>,
}

/// The version of the JSON.
pub const SCHEMA: u32 = 1;

/// The test of one cause.
#[derive(Clone, PartialEq, Serialize, Debug)]
pub struct ProofEntry {
    /// The peak, numbered from 1.
    pub peak: u32,
    /// The functions on the path, f0 first, the cause last.
    pub path: Vec<String>,
    /// What follows.
    pub verdict: Verdict,
    /// Why there is no more to say, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What was measured, where something was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
    /// What would be gained without the cause.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gain: Vec<GainEntry>,
}

/// What a test says.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Longer calls make the peak's ops longer, by half of that at least.
    Proven,
    /// By less, certainly not by all of it.
    Partly,
    /// By nothing, or a fifth at most.
    NotOnPath,
    /// The interval does not tell.
    NotDecided,
    /// It was not tried.
    NotTested,
}

/// What delays did.
#[derive(Clone, PartialEq, Serialize, Debug)]
pub struct Measured {
    /// What each call was delayed by, in nanoseconds; in some spans of time by twice that.
    pub delay_ns: f64,
    /// The mean delay of an op that had one, in nanoseconds.
    pub added_ns: f64,
    /// The part of a delay that made ops longer.
    pub slope: f64,
    /// The bounds of its interval.
    pub interval: [f64; 2],
    /// Ops without delay that this is known from.
    pub ops_without: u64,
    /// Ops with a delay.
    pub ops_with: u64,
    /// The part of the time that all delays took, 0 to 1.
    pub added_share: f64,
    /// For how long it was tried, in nanoseconds.
    pub time_ns: f64,
}

/// A percentile of all ops' latencies, now and without the cause.
#[derive(Clone, PartialEq, Serialize, Debug)]
pub struct GainEntry {
    /// The percentile, 0 to 100.
    pub percentile: f64,
    /// Now, in nanoseconds.
    pub now_ns: f64,
    /// If the cause took no time and nothing took its place, in nanoseconds.
    pub without_ns: f64,
}

/// A larger slope is not that of the path alone.
const MORE: f64 = 1.3;
/// A change of less than this part is none.
const SAME: f64 = 0.02;

/// The tests for people.
#[must_use]
pub fn text(proofs: &Proofs) -> String {
    let mut text = format!(
        "Experiments with {} in process {}\n",
        control(&proofs.function),
        proofs.pid
    );
    for entry in &proofs.causes {
        text += &self::entry(entry);
    }
    for warning in &proofs.warnings {
        let _ = writeln!(text, "warning: {}", control(warning));
    }
    text
}

/// One test for people: the path, what follows, what that is known from, the gain.
#[must_use]
pub fn entry(entry: &ProofEntry) -> String {
    let names: Vec<_> = entry.path.iter().map(|name| control(name)).collect();
    let mut text = format!("Peak {}  {}\n", entry.peak, names.join(" → "));
    let cause = names.last().map_or("it", AsRef::as_ref);
    let _ = writeln!(text, "  {}", sentence(entry, cause));
    if let Some(measured) = &entry.measured {
        let _ = writeln!(text, "  {}", known_from(measured));
    }
    if let Some(gain) = self::gain(entry, cause) {
        let _ = writeln!(text, "  {gain}");
    }
    text
}

fn sentence(entry: &ProofEntry, cause: &str) -> String {
    let moved = |measured: &Measured| {
        let by = Nanos(measured.added_ns);
        let longer = Nanos((measured.slope * measured.added_ns).max(0.0));
        format!("{by} more in {cause} makes these calls {longer} longer")
    };
    match (entry.verdict, &entry.measured) {
        (Verdict::Proven, Some(measured)) if measured.slope > MORE => format!(
            "proven: {}; that is more than what was added: what comes after it is late as well, as on a machine without an idle CPU",
            moved(measured)
        ),
        (Verdict::Proven, Some(measured)) => format!("proven: {}", moved(measured)),
        (Verdict::Partly, Some(measured)) => format!(
            "partly on the path: {}; the rest passes while something else is waited for",
            moved(measured)
        ),
        (Verdict::NotOnPath, Some(measured)) => format!(
            "not on the path of these calls: {} more in {cause} does not make them longer; what they wait for goes on meanwhile, or is elsewhere",
            Nanos(measured.added_ns)
        ),
        (Verdict::NotDecided, Some(measured)) => format!(
            "not decided after {}: the interval is too wide; --time tries longer",
            Nanos(measured.time_ns)
        ),
        _ => {
            let why = entry.reason.as_deref().unwrap_or_default();
            let verdict = match entry.verdict {
                Verdict::NotTested => "not tested",
                _ => "not decided",
            };
            format!("{verdict}: {}", control(why))
        }
    }
}

fn known_from(measured: &Measured) -> String {
    let [low, high] = measured.interval;
    format!(
        "slope {:.2} (95%: {low:.2} to {high:.2}), from {} calls with a delay and {} without, in {}; delays took {} of the time",
        measured.slope,
        measured.ops_with,
        measured.ops_without,
        Nanos(measured.time_ns),
        percent(measured.added_share)
    )
}

/// What would be gained, where that is known and something.
fn gain(entry: &ProofEntry, cause: &str) -> Option<String> {
    if !matches!(entry.verdict, Verdict::Proven | Verdict::Partly) {
        return None;
    }
    let shorter = |gain: &&GainEntry| gain.without_ns < gain.now_ns * (1.0 - SAME);
    let gains = entry.gain.iter().filter(shorter).map(|gain| {
        format!(
            "p{} would be {} instead of {}",
            gain.percentile,
            Nanos(gain.without_ns),
            Nanos(gain.now_ns)
        )
    });
    let gains: Vec<String> = gains.collect();
    (!gains.is_empty()).then(|| {
        format!(
            "without {cause} in calls of this peak {} (of all calls, if nothing else takes its place)",
            gains.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proven() -> ProofEntry {
        ProofEntry {
            peak: 2,
            path: ["serve", "rebuild", "fs\x1bync"]
                .map(str::to_owned)
                .to_vec(),
            verdict: Verdict::Proven,
            reason: None,
            measured: Some(Measured {
                delay_ns: 1e5,
                added_ns: 1.2e5,
                slope: 0.99,
                interval: [0.94, 1.05],
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
                },
                GainEntry {
                    percentile: 99.9,
                    now_ns: 1.4e7,
                    without_ns: 1.9e6,
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
             without fs\\u{1b}ync in calls of this peak p99.9 would be 1.9 ms instead of 14 ms (of all calls, if nothing else takes its place)\n"
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
}
