//! The answer in one line for each peak, before all that it rests on.

use std::borrow::Cow;

use darc_analysis::Hz;

use crate::escape::control;
use crate::model::{Kind, PeakEntry, ProfileTable, RootCauseEntry, Status, StopReason};
use crate::names::short;
use crate::recursion;
use crate::spread::{is_spread, together};
use crate::words::{self, percent, status};

/// So many causes of a peak are named in its line.
const CAUSES: usize = 2;
/// So many functions of a path are named, the last ones and f0.
const NAMES: usize = 4;

/// `Peak 2  214 µs to 14 ms  14% of calls, 94% of time → fsync ← flush ← serve explains 97%`
pub(super) fn line(hz: Option<Hz>, peak: &PeakEntry, profile: &ProfileTable) -> String {
    let range = words::range(hz, peak, profile.resolution).unwrap_or_default();
    let head = format!(
        "Peak {}  {range}  {} of calls, {} of time",
        peak.peak,
        percent(peak.share_of_ops),
        percent(peak.share_of_time)
    );
    format!("{head} → {}", answer(peak))
}

/// What a peak's calls spend their time on.
fn answer(peak: &PeakEntry) -> String {
    let causes = together(peak);
    let Some(first) = causes.first() else {
        return status(peak.status).to_owned();
    };
    if is_spread(peak) {
        let largest = match first.share_of_time {
            share if share > 0.0 => format!(" (largest part {})", percent(share)),
            _ => String::new(),
        };
        return format!("no single cause: the time is spread{largest}");
    }
    // Of what is spread below a small part nothing more is known than that.
    let is_known = |cause: &&RootCauseEntry| cause.stop != StopReason::Spread;
    let is_any = causes.iter().any(|cause| is_known(&cause));
    let told = causes.iter().filter(|cause| !is_any || is_known(cause));
    let mut parts: Vec<String> = told.take(CAUSES).map(self::cause).collect();
    let more = causes.len().saturating_sub(parts.len());
    if more > 0 {
        parts.push(format!("{more} more"));
    }
    let parts = parts.join(", and ");
    match peak.status {
        Status::RootCauseFound | Status::MaxDepthReached => parts,
        open => format!("{}: {parts}", status(open)),
    }
}

/// A cause: where it is, and how much of the time it explains.
fn cause(cause: &RootCauseEntry) -> String {
    let names = recursion::steps(cause).into_iter().map(|step| {
        let name = short(step.name);
        let name = control(&name);
        match step.is_recursive {
            true => format!("{name} (recursive)"),
            false => name.into_owned(),
        }
    });
    let mut names: Vec<Cow<'_, str>> = names.map(Cow::Owned).collect();
    // A wrapper and its system call are one to who reads.
    names.dedup();
    names.reverse();
    let place = self::place(&names);
    let file = cause.arguments.first();
    let on = file.map_or_else(String::new, |file| {
        format!(" on {}", what_is_open(&file.value))
    });
    let place = match place.split_once(ARROW) {
        Some((last, callers)) => format!("{last}{on}{ARROW}{callers}"),
        None => format!("{place}{on}"),
    };
    let share = Some(cause.share_of_time).filter(|&share| cause.known_from > 0 && share > 0.0);
    if let Some(away) = words::blocked(cause) {
        let away = percent(away);
        return format!("in or below {place}, whose thread was blocked for {away} of that");
    }
    let within = match cause.stop {
        StopReason::PartlyMeasured => Some("in or below"),
        StopReason::Spread => Some("spread below"),
        StopReason::StillDescending
        | StopReason::TooRare
        | StopReason::MaxDepth
        | StopReason::NotInstrumentable => Some("below"),
        StopReason::SelfTime | StopReason::NoCalls => None,
    };
    let place = match cause.kind {
        Kind::Loop => format!("many short calls in {place}"),
        _ => place,
    };
    match (within, share) {
        (Some(within), Some(share)) => format!("{} is {within} {place}", percent(share)),
        (Some(within), None) => format!("{within} {place}"),
        (None, Some(share)) => format!("{place} explains {}", percent(share)),
        (None, None) => place,
    }
}

/// Between a function and the one that calls it.
const ARROW: &str = " ← ";

/// The last function of a path, its nearest callers, f0. Where not all of them fit, those come first that have names, and names
/// that are not a library's own (`__futex_abstimed_wait_common`): these tell who reads a report of their program little.
fn place(names: &[Cow<'_, str>]) -> String {
    let (Some((last, callers)), true) = (names.split_first(), names.len() > NAMES) else {
        return names.join(ARROW);
    };
    let Some((f0, between)) = callers.split_last() else {
        return last.clone().into_owned();
    };
    let is_named = |name: &&Cow<'_, str>| !name.contains("+0x") && !name.starts_with("__");
    let mut parts = vec![last.as_ref()];
    let named = between.iter().filter(is_named).map(AsRef::as_ref);
    parts.extend(named.take(NAMES - 2));
    parts.extend(["…", f0.as_ref()]);
    parts.join(ARROW)
}

/// A file without the number by which the program knows it.
fn what_is_open(value: &str) -> Cow<'_, str> {
    let name = value
        .strip_prefix("fd ")
        .and_then(|rest| rest.split_once(", "));
    control(name.map_or(value, |(_, name)| name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_path_both_ends_and_names_are_shown() {
        let names = |names: &[&'static str]| -> Vec<Cow<'static, str>> {
            names.iter().map(|&name| name.into()).collect()
        };
        assert_eq!(
            place(&names(&["read", "fill", "serve"])),
            "read ← fill ← serve"
        );
        let long = names(&[
            "sync", "a+0x10", "write", "b+0x20", "flush", "commit", "serve",
        ]);
        assert_eq!(place(&long), "sync ← write ← flush ← … ← serve");
        let inside = names(&[
            "futex",
            "__futex_abstimed_wait_common",
            "pthread_cond_wait",
            "wait_result",
            "request",
        ]);
        assert_eq!(
            place(&inside),
            "futex ← pthread_cond_wait ← wait_result ← … ← request"
        );
        assert_eq!(what_is_open("fd 28, /data/log"), "/data/log");
        assert_eq!(what_is_open("a socket"), "a socket");
    }
}
