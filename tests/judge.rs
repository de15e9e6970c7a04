//! Judges results by the ground truth of the program: right, unfinished or wrong.
//!
//! Peaks are matched by latency: the truth says how long the ops of each of its peaks take, in cycles of the counter that
//! darc uses too, so a range of buckets either has them or not.

use darc_testprogs::{Cause, GroundTruth, Peak};
use serde_json::Value;

use crate::harness::{Miss, Unfinished, Verdict, Wrong};
use crate::report::{Cause as Named, Report, is_path};

/// A disturbed machine makes peaks that no truth knows. What has not ended there is a claim when the peak has this part of the
/// ops or of the time.
const RELEVANT: f64 = 0.1;

/// A disturbance is the truth about a peak when it took this part of the peak's time.
const TRUTHFUL: f64 = 0.1;

/// ... or when it was a main contributor of this part of the peak's ops, which are then named whatever their time (docs/method.md).
const OFTEN: f64 = 0.2;

/// How much shorter and longer than the truth says a latency may be.
const TOLERANCE: (f64, f64) = (0.7, 1.5);

/// The counter in whose microseconds truths are written down (`work.h`).
const CYCLES_PER_US: f64 = 2300.0;

impl Report {
    /// Whether nothing is named that is not so.
    pub fn says_nothing_wrong(&self, truth: &GroundTruth) -> Verdict {
        self.named(truth).map(drop)
    }

    /// For each peak that the truth knows which of its causes were named, unless something was that is not so.
    fn named<'a>(&self, truth: &'a GroundTruth) -> Result<Vec<Vec<&'a Cause>>, Miss> {
        let all = |what: String| format!("{}: {what} in {:#}", truth.program, self.0);
        let mut named = vec![Vec::new(); truth.peaks.len()];
        for peak in self.peaks() {
            let here: Vec<usize> = (0..truth.peaks.len())
                .filter(|&index| overlap(peak, self.resolution(), &truth.peaks[index]))
                .collect();
            if has_darc_among_wakers(peak) {
                return Err(Wrong(all("darc woke a thread as any process".to_owned())));
            }
            for cause in Report::causes(peak) {
                match claim(&cause, peak, truth, &here) {
                    Claim::Right(right) => here.iter().for_each(|&index| named[index].push(right)),
                    Claim::Open | Claim::Disturbance => {}
                    Claim::Wrong => {
                        let number = &peak["peak"];
                        return Err(Wrong(all(format!("peak {number} is said to be {cause:?}"))));
                    }
                }
            }
        }
        Ok(named)
    }

    /// Whether the causes of every peak that the truth knows were named, and nothing that is not so.
    pub fn judge(&self, truth: &GroundTruth) -> Verdict {
        let all = |what: String| format!("{}: {what} in {:#}", truth.program, self.0);
        let named = self.named(truth)?;
        let is_spread = |peak: &Peak| peak.causes.is_empty();
        let ends: &[&str] = match truth.peaks.iter().filter(|peak| is_spread(peak)).count() {
            0 => &["root-cause-found"],
            count if count == truth.peaks.len() => &["spread"],
            // It depends on how much of the time is in which of them.
            _ => &["root-cause-found", "spread"],
        };
        if !ends.contains(&self.status()) {
            return Err(Unfinished(all(format!("the status is {}", self.status()))));
        }
        for (peak, named) in truth.peaks.iter().zip(named) {
            if let Some(missing) = peak.causes.iter().find(|cause| !named.contains(cause)) {
                return Err(Unfinished(all(format!("{missing:?} was not named"))));
            }
        }
        Ok(())
    }

    /// How many buckets there are for each doubling of the latency.
    fn resolution(&self) -> f64 {
        self.at("/profile/resolution").as_f64().expect("a number")
    }
}

/// Whether darc's stops are told as if another program's thread had ended the waits.
fn has_darc_among_wakers(peak: &Value) -> bool {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let causes = list(&peak["root_causes"]).into_iter();
    let others = causes.flat_map(|cause| list(&cause["waits"]["others"]));
    let mut processes = others.map(|other| other["process"]["command"].clone());
    processes.any(|command| command == "darc")
}

/// Whether a peak's buckets have the latencies of the truth's peak.
fn overlap(peak: &Value, resolution: f64, truth: &Peak) -> bool {
    let number = |key: &str| peak[key].as_f64().expect("a bucket");
    let from = (number("first_bucket") / resolution).exp2();
    let to = ((number("last_bucket") + 1.0) / resolution).exp2();
    let (shortest, longest) = (truth.us.0 * TOLERANCE.0, truth.us.1 * TOLERANCE.1);
    from < longest * CYCLES_PER_US && to > shortest * CYCLES_PER_US
}

/// What it means that a cause is named for a peak.
enum Claim<'a> {
    Right(&'a Cause),
    /// The path has not come to its end, or it is said that it could not; so far it is right.
    Open,
    /// The machine's doing.
    Disturbance,
    Wrong,
}

/// Judges one cause of a peak that has the latencies of these peaks of the truth, or of none.
fn claim<'a>(named: &Named, peak: &Value, truth: &'a GroundTruth, here: &[usize]) -> Claim<'a> {
    // It is said of the peak that its ops are those that were struck: they may be of any other one.
    let are_struck = peak["off_cpu"]["is_of_struck_ops"] == true && peak["status"] == "undecided";
    let peaks: Vec<&Peak> = match here {
        _ if are_struck => truth.peaks.iter().collect(),
        [] => truth.peaks.iter().collect(),
        _ => here.iter().map(|&index| &truth.peaks[index]).collect(),
    };
    let causes = peaks.iter().flat_map(|peak| &peak.causes);
    if let Some(right) = causes.clone().find(|cause| is_cause(named, cause)) {
        return Claim::Right(right);
    }
    let is_spread = named.stop == "spread";
    let has_ended = is_spread || ["self", "no-calls"].contains(&named.stop.as_str());
    if (is_spread || !has_ended) && peaks.iter().any(|peak| peak.causes.is_empty()) {
        return Claim::Open;
    }
    // The time of a loop is in its calls.
    let is_below = |cause: &Cause| cause.kind == "loop" && named.path.starts_with(&cause.path);
    let mut on_the_way =
        causes.filter(|cause| is_on_the_way(&named.path, &cause.path) || is_below(cause));
    if !has_ended && on_the_way.next().is_some() {
        return Claim::Open;
    }
    let mut wrong = peaks.iter().flat_map(|peak| &peak.wrong);
    let share = |of: &str| peak[of].as_f64().expect("a share");
    match is_disturbance(named, peak, here) {
        true => Claim::Disturbance,
        false if has_ended || wrong.any(|path| is_path(&named.path, path)) => Claim::Wrong,
        false if share("share_of_ops").max(share("share_of_time")) > RELEVANT => Claim::Wrong,
        false => Claim::Open,
    }
}

fn is_cause(named: &Named, truth: &Cause) -> bool {
    named.kind == truth.kind
        && is_path(&named.path, &truth.path)
        && (truth.kind != "loop" || named.stop == "self")
}

/// Whether a path that has not ended leads to a cause.
fn is_on_the_way(path: &[String], cause: &[String]) -> bool {
    (1..=cause.len()).any(|length| is_path(path, &cause[..length]))
}

/// Whether it is the machine that is blamed, and rightly: in a peak of its own, or for a good part of a peak's time.
fn is_disturbance(named: &Named, peak: &Value, here: &[usize]) -> bool {
    let taken = |keys: &[&str]| {
        let time = |key: &str| peak["off_cpu"][key].as_f64().unwrap_or(0.0);
        keys.iter().map(|key| time(key)).sum::<f64>() / time("time").max(1.0)
    };
    let part = match named.kind.as_str() {
        "preemption" => taken(&["preempted", "runnable"]),
        "interrupt" | "local-interrupt" | "soft-interrupt" => taken(&["interrupted"]),
        _ => return false,
    };
    here.is_empty() || part > TRUTHFUL || was_often_seen(named, peak)
}

/// Whether it is said of enough ops that another thread ran instead, and which.
fn was_often_seen(named: &Named, peak: &Value) -> bool {
    let causes = peak["root_causes"].as_array().expect("a list");
    let meant = causes.iter().filter(|cause| cause["kind"] == named.kind);
    meant.into_iter().any(|cause| {
        let is_often = cause["share_of_ops"].as_f64().expect("a share") >= OFTEN;
        let others = cause["waits"]["others"].as_array();
        is_often && others.is_some_and(|others| !others.is_empty())
    })
}
