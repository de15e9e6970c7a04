//! What came of putting causes to the test, as text and JSON.

use std::fmt::Write as _;

use serde::Serialize;

use crate::escape::control;
use crate::model::Report;
use crate::model::{EffectEntry, EffectOn, GainEntry, Measured, ProofEntry, Verdict};
use crate::words::{path, percent};
use darc_record::Nanos;

#[cfg(test)]
mod tests;

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
    /// What the probes themselves do, where that was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub effects: Vec<EffectEntry>,
    /// What the person should know.
    pub warnings: Vec<String>,
}

impl Report {
    /// Adds what experiments have found. What was known of the same causes is replaced.
    pub fn add(&mut self, proofs: Proofs) {
        let of = |proof: &ProofEntry| (proof.peak, proof.elsewhere, proof.path.clone());
        let known: Vec<_> = proofs.causes.iter().map(of).collect();
        self.proofs.retain(|proof| !known.contains(&of(proof)));
        self.proofs.extend(proofs.causes);
        let known: Vec<u32> = proofs.effects.iter().map(|effect| effect.peak).collect();
        self.effects.retain(|effect| !known.contains(&effect.peak));
        self.effects.extend(proofs.effects);
    }
}

/// The version of the JSON.
pub const SCHEMA: u32 = 1;

/// System calls that wait until others have done something.
const WAITS: [&str; 12] = [
    "futex",
    "poll",
    "ppoll",
    "select",
    "pselect6",
    "epoll_wait",
    "epoll_pwait",
    "wait4",
    "waitid",
    "recvfrom",
    "recvmsg",
    "accept4",
];
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
    for line in lines(&proofs.causes, &proofs.effects) {
        let _ = writeln!(text, "{line}");
    }
    for warning in &proofs.warnings {
        let _ = writeln!(text, "warning: {}", control(warning));
    }
    text
}

/// The tests for people, a line each; what belongs to one is indented below its first.
#[must_use]
pub fn lines(proofs: &[ProofEntry], effects: &[EffectEntry]) -> Vec<String> {
    let proofs = proofs.iter().flat_map(|entry| {
        let below = told(entry).into_iter().map(|line| format!("  {line}"));
        std::iter::once(title(entry)).chain(below)
    });
    let effects = effects.iter().flat_map(|effect| {
        let title = format!("Peak {}  {}", effect.peak, path(&effect.path));
        let below = told_of_probes(effect).into_iter();
        std::iter::once(title).chain(below.map(|line| format!("  {line}")))
    });
    proofs.chain(effects).collect()
}

/// Which cause of which peak it is.
#[must_use]
pub fn title(entry: &ProofEntry) -> String {
    match (entry.elsewhere, &entry.path[..]) {
        (true, [f0, cause]) => format!(
            "Peak {}  {} … {} on other threads",
            entry.peak,
            control(f0),
            control(cause)
        ),
        _ => format!("Peak {}  {}", entry.peak, path(&entry.path)),
    }
}

/// What follows, what that is known from, the gain.
#[must_use]
pub fn told(entry: &ProofEntry) -> Vec<String> {
    let cause = entry.path.last().map_or("it".into(), |name| control(name));
    let known = entry.measured.as_ref().map(known_from);
    let linear = entry.measured.as_ref().and_then(|it| linear(entry, it));
    let gain = self::gain(entry, &cause);
    let sentence = sentence(entry, &cause);
    let said = std::iter::once(sentence).chain(known).chain(linear);
    let said = said.chain(gain);
    said.chain(doubt(entry)).collect()
}

/// What a delay does not tell: one that works, of calls that wait for others; any, of a lock that the function takes itself.
fn doubt(entry: &ProofEntry) -> Option<String> {
    let reaches = matches!(entry.verdict, Verdict::Proven | Verdict::Partly);
    let worked = entry.measured.as_ref().is_some_and(|it| !it.slept);
    let waits = entry
        .path
        .last()
        .is_some_and(|it| WAITS.contains(&it.as_str()));
    let said = match entry.elsewhere {
        false if reaches && worked && waits => {
            "it waits for others, whom a thread that works in its place may keep from a processor; --delay-by sleep tells whether that is all"
        }
        true if entry.verdict == Verdict::NotOnPath => {
            "delays come before its calls: a lock that it takes itself was kept no longer; --cause with what it calls meanwhile tests that"
        }
        _ => return None,
    };
    Some(said.to_owned())
}

/// What darc's own probes do.
#[must_use]
pub fn told_of_probes(effect: &EffectEntry) -> Vec<String> {
    let interval = |on: &EffectOn| {
        let [low, high] = on.interval_ns.map(signed);
        format!("{} (95%: {low} to {high})", signed(on.ns))
    };
    let ops = effect.ops.as_ref().map(|on| {
        format!(
            "with the probes on this path these calls take {} more than with those of {} alone",
            interval(on),
            effect
                .path
                .first()
                .map_or("f0".into(), |name| control(name))
        )
    });
    let told = effect.told.as_ref().map(|on| {
        format!(
            "the latencies that are told have {} of that left: what probes cost is taken out",
            interval(on)
        )
    });
    let reason = effect
        .reason
        .as_ref()
        .map(|why| format!("not known: {}", control(why)));
    let none = (ops.is_none() && reason.is_none())
        .then(|| "not known: the interval is too wide; --time tries longer".to_owned());
    ops.into_iter()
        .chain(told)
        .chain(reason)
        .chain(none)
        .collect()
}

fn signed(ns: f64) -> String {
    match ns < 0.0 {
        true => format!("-{}", Nanos(-ns)),
        false => Nanos(ns).to_string(),
    }
}

fn sentence(entry: &ProofEntry, cause: &str) -> String {
    let moved = |measured: &Measured| {
        let by = Nanos(measured.added_ns);
        let longer = Nanos((measured.slope * measured.added_ns).max(0.0));
        format!("{by} more in {cause} makes these calls {longer} longer")
    };
    match (entry.verdict, &entry.measured) {
        (Verdict::Proven, Some(measured)) => format!("proven: {}", moved(measured)),
        (Verdict::NotLinear, Some(measured)) => format!(
            "not in proportion: {}, but for half of the delay the slope is {:.2}: what shorter calls would do does not follow",
            moved(measured),
            measured.half_slope.unwrap_or_default()
        ),
        (Verdict::Partly, Some(measured)) => format!(
            "partly on the path: {}; whether some of them wait for all of it, and others for none, was not measured",
            moved(measured)
        ),
        (Verdict::NotOnPath, Some(measured)) => format!(
            "not on the path of these calls: {} more in {cause} makes them longer by {:.0}% of that at most",
            Nanos(measured.added_ns),
            (100.0 * measured.interval[1].max(0.0)).ceil()
        ),
        (Verdict::NotDecided, Some(measured)) if measured.overran => format!(
            "not decided: delays of {} took {}, as where more is to be done than processors can do; that may be longer than what hides short ones",
            Nanos(measured.meant_ns),
            Nanos(measured.added_ns)
        ),
        (Verdict::NotDecided, Some(measured)) if measured.interval[0] > 1.0 => format!(
            "not decided: {}, which is more than what was added: something else makes them late as well, as where no CPU is idle, or where calls queue for what this one keeps",
            moved(measured)
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

/// Whether half of the delay did half of that, where all of it did something.
fn linear(entry: &ProofEntry, measured: &Measured) -> Option<String> {
    if !matches!(entry.verdict, Verdict::Proven | Verdict::Partly) {
        return None;
    }
    Some(match (measured.linear, measured.half_slope) {
        (Some(true), Some(slope)) => {
            format!("half of the delay makes them longer by half as much (slope {slope:.2})")
        }
        _ => "whether half of the delay makes them longer by half as much is not known".to_owned(),
    })
}

/// What would be gained, where that is known and something: what is partly on the path may be so in none of the calls at a
/// percentile.
fn gain(entry: &ProofEntry, cause: &str) -> Option<String> {
    if entry.verdict != Verdict::Proven {
        return None;
    }
    let shorter = |gain: &&GainEntry| gain.without_ns < gain.now_ns * (1.0 - SAME);
    let gains = entry.gain.iter().filter(shorter).map(|gain| {
        let interval = gain.without_interval_ns.map(|bounds| bounds.map(Nanos));
        // One without a width says more than is known.
        let interval = interval.filter(|[low, high]| low.to_string() != high.to_string());
        let interval = interval.map_or(String::new(), |[low, high]| {
            format!(" (95%: {low} to {high})")
        });
        format!(
            "p{} would be {}{interval} instead of {}",
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
