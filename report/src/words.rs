//! What people read in more than one format: shares, places, durations, what the end of a path means.
//! Texts from the target are escaped here, once more as the format demands it elsewhere.

use darc_analysis::{Hz, Nanos, Resolution, Ticks};

use super::escape::control;
use super::goroutines;
use super::model::{
    Effort, Ended, Engine, Frame, Kind, PeakEntry, Probes, ProfileTable, RootCauseEntry,
    SkippedSite, Status, StopReason, Survey, Target,
};
use super::names::short;
use super::recursion;

/// How many ops were written in full, and what became of the other calls of f0.
pub(super) fn records(probes: &Probes) -> String {
    let sampled = match probes.sampled {
        0 => String::new(),
        sampled => format!(", {sampled} more counted in the profile only"),
    };
    let otherwise = match probes.ended_otherwise {
        0 => String::new(),
        calls => format!("; {calls} calls that did not end by returning are not timed"),
    };
    format!(
        "{}{sampled}, {} dropped{otherwise}",
        probes.records, probes.dropped
    )
}

/// Latencies that take as much of a processor have a line.
const WORTH_A_WORD: f64 = 0.001;

/// What measuring took, of what, and what was left out because of that.
pub(super) fn effort(effort: &Effort) -> Vec<String> {
    let share = |seconds| percent(effort.of(seconds));
    let taken = format!(
        "{} of a processor for {}; budget {}",
        share(effort.reading + effort.calls + effort.records),
        Nanos(effort.elapsed * 1e9),
        percent(effort.budget),
    );
    let parts = format!(
        "darc {}, calls about {}, the kernel's records about {}",
        share(effort.reading),
        share(effort.calls),
        share(effort.records),
    );
    let latencies = format!(
        "beside the budget, latencies of all calls: about {}",
        share(effort.latencies)
    );
    let rested = format!(
        "latencies alone for {} of the time, to keep below the budget",
        share(effort.rested)
    );
    let mut lines = vec![taken, parts];
    if effort.of(effort.latencies) >= WORTH_A_WORD {
        lines.push(latencies);
    }
    if effort.rested > 0.0 {
        lines.push(rested);
    }
    lines
}

/// What is to be added to the windows of a time table.
pub(super) fn survey(survey: Survey) -> &'static str {
    match survey {
        Survey::Complete => "",
        Survey::Unfinished => "; which functions are to be analysed is not known yet",
    }
}

/// Which call sites have no probe, a line for each function and reason.
pub(super) fn skipped(probes: &Probes) -> Vec<String> {
    let mut grouped: Vec<(&SkippedSite, usize)> = Vec::new();
    for site in &probes.skipped {
        let alike =
            |known: &SkippedSite| known.function == site.function && known.reason == site.reason;
        match grouped.iter_mut().find(|(known, _)| alike(known)) {
            Some((_, sites)) => *sites += 1,
            None => grouped.push((site, 1)),
        }
    }
    let line = |(of, sites): (&SkippedSite, usize)| {
        let place = match (of.function.is_empty(), of.of_sites, sites) {
            (true, ..) | (_, 0, 1) => of.site.to_string(),
            (_, 0, sites) => format!("{}, {sites} places", of.function),
            (_, all, sites) => format!("{}, {sites} of {all} call sites", of.function),
        };
        format!("{}: {}", control(&place), control(&of.reason))
    };
    grouped.into_iter().map(line).collect()
}

/// What was compared after detaching, and whether it is as it was.
pub(super) fn restored(probes: &Probes) -> String {
    let differing = format!(
        "{} bytes differ after detaching",
        probes.bytes_differing_after_detach
    );
    match probes.bytes_compared_after_detach {
        0 => differing,
        bytes => format!(
            "{differing}, {} KiB compared with the files",
            bytes.div_ceil(1024)
        ),
    }
}

/// A duration for people; cycles where the clock's rate is not known.
pub(super) fn time(hz: Option<Hz>, cycles: u64) -> String {
    match hz {
        Some(hz) => hz.nanos(Ticks(cycles)).to_string(),
        None => format!("{cycles} cycles"),
    }
}

/// Microseconds as a duration for people.
pub(super) fn microseconds(us: f64) -> String {
    Nanos(us * 1e3).to_string()
}

/// The latencies of a peak, `262 µs to 1.0 ms`; `None` when its buckets do not exist.
pub(super) fn range(hz: Option<Hz>, peak: &PeakEntry, resolution: u32) -> Option<String> {
    let resolution = Resolution::new(resolution).unwrap_or_default();
    let (first, _) = resolution.bounds(peak.first_bucket)?;
    let (_, last) = resolution.bounds(peak.last_bucket)?;
    if peak.begins_untold {
        return Some(format!("below {}", time(hz, last.0.saturating_add(1))));
    }
    if last.0 == u64::MAX {
        return Some(format!("{} and more", time(hz, first.0)));
    }
    Some(format!(
        "{} to {}",
        time(hz, first.0),
        time(hz, last.0.saturating_add(1))
    ))
}

/// The engine's name.
pub(super) fn engine(engine: Engine) -> &'static str {
    match engine {
        Engine::Jump => "jump",
        Engine::Int3 => "int3",
    }
}

/// Names of a path in one line.
pub(super) fn path(names: &[String]) -> String {
    let names = names.iter().map(|name| control(&short(name)).into_owned());
    let names: Vec<_> = names.collect();
    names.join(" → ")
}

/// A share for people: two digits, and never "0%" or "100%" for what is not.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if share <= 0.0 {
        "0%".to_owned()
    } else if percent < 0.01 {
        "<0.01%".to_owned()
    } else if percent < 1.0 {
        format!("{percent:.2}%")
    } else if percent < 99.95 {
        format!("{percent:.1}%")
    } else if share < 1.0 {
        ">99.9%".to_owned()
    } else {
        "100%".to_owned()
    }
}

/// `file:line`, as far as known.
pub(crate) fn source(file: Option<&str>, line: Option<u32>) -> Option<String> {
    let file = control(file?);
    Some(match line {
        Some(line) => format!("{file}:{line}"),
        None => file.into_owned(),
    })
}

/// A status in words.
pub(super) fn status(status: Status) -> &'static str {
    match status {
        Status::RootCauseFound => "root cause found",
        Status::MaxDepthReached => "maximum depth reached",
        Status::Undecided => "not decided",
        Status::Spread => "no single cause",
        Status::InProgress => "in progress",
        Status::NotAnalysed => "not analysed",
    }
}

/// The status of an analysis: how much of the time has a cause, and why no more has, where it is not all.
pub(super) fn outcome(status: Status, ended: Option<Ended>, peaks: &[PeakEntry]) -> String {
    let is_known = |peak: &&PeakEntry| {
        matches!(
            peak.status,
            Status::RootCauseFound | Status::MaxDepthReached
        )
    };
    let known = peaks.iter().filter(is_known);
    let share: f64 = known.map(|peak| peak.share_of_time).sum();
    let stopped = match ended {
        None | Some(Ended::Finished) => "",
        Some(Ended::Duration) => "stopped by --duration; ",
        Some(Ended::Interrupted) => "interrupted; ",
        Some(Ended::Mark) => "ended as it was told to; ",
        Some(Ended::Changed) => "stopped, since its latencies are not as stored; ",
        Some(Ended::Running) => "no call of it returned; ",
        Some(Ended::Target) => "the target ended; ",
        Some(Ended::Failed) => "measuring ended early; ",
    };
    let words = self::status(status);
    match status {
        Status::Undecided if share > 0.0 => format!(
            "{stopped}{words}: peaks with {} of the time have a root cause",
            percent(share)
        ),
        Status::Undecided => format!("{stopped}{words}"),
        _ => words.to_owned(),
    }
}

/// What could not have been seen in so many ops; nothing without ops.
pub(super) fn unseen(ops: u64) -> Option<String> {
    // A peak has three ops at least, and with 6.3 expected ones there are as many in 95 of 100 cases (Poisson).
    let rarest = ops as f64 / 6.3;
    (rarest >= 1.0).then(|| {
        format!(
            "ops rarer than 1 in {rarest:.0} would not have shown (95%); --start-ops looks longer"
        )
    })
}

/// The percentiles of f0's latency; nothing where they are not known.
pub(super) fn percentiles(hz: Option<Hz>, profile: &ProfileTable) -> Option<String> {
    let at = profile.percentiles?;
    let parts = [
        ("p50", at.p50),
        ("p90", at.p90),
        ("p99", at.p99),
        ("p99.9", at.p99_9),
        ("max", at.max),
    ];
    let shortest = profile.told_from.unwrap_or(0);
    let parts = parts.map(|(name, latency)| match latency < shortest {
        true => format!("{name} below {}", time(hz, shortest)),
        false => format!("{name} {}", time(hz, latency)),
    });
    Some(parts.join("  "))
}

/// The process: its command, its id, how it ended.
pub(super) fn target(target: &Target) -> String {
    let mut text = if target.command.is_empty() {
        control(&target.exe).into_owned()
    } else {
        let words: Vec<_> = target.command.iter().map(|word| control(word)).collect();
        // Programs that name themselves leave blanks behind.
        words.join(" ").trim_end().to_owned()
    };
    if let Some(pid) = target.pid {
        text.push_str(&format!(" (pid {pid})"));
    }
    if let Some(status) = target.exit_status {
        text.push_str(&format!(", ended with {status}"));
    }
    text
}

/// The path of a cause in one line, with the part of the peak's time that passed in each function.
pub(super) fn hops(cause: &RootCauseEntry) -> String {
    let names = recursion::steps(cause).into_iter().map(|step| {
        let name = short(step.name);
        let name = control(&name);
        let mark = if step.is_recursive {
            " (recursive)"
        } else {
            ""
        };
        let frame = cause.frames.get(step.first);
        match frame.map_or(0.0, |frame| frame.share_of_time) {
            share if share > 0.0 && step.first > 0 => {
                format!("{name}{mark} {}", percent(share))
            }
            _ => format!("{name}{mark}"),
        }
    });
    names.collect::<Vec<_>>().join(" → ")
}

/// What the end of the path means, and which part of the peak's time that is.
pub(super) fn in_words(cause: &RootCauseEntry, peak: &PeakEntry) -> String {
    let what = what(cause) + &often(cause, peak);
    let known = match (cause.known_from, cause.share_of_time) {
        (0, _) => return what,
        (known, share) if share > 0.0 => {
            let ops = format!("(known from {known} of {} ops)", peak.ops.max(known));
            format!("{what}: {} of this peak's time {ops}", percent(share))
        }
        _ => what,
    };
    match blocked(cause) {
        Some(share) => format!(
            "{known}, but its thread was blocked for {} of that, in a call that was not measured",
            percent(share)
        ),
        None => known,
    }
}

/// In which part of the ops it is a cause, where it is not in nearly all.
fn often(cause: &RootCauseEntry, peak: &PeakEntry) -> String {
    let share = cause.share_of_ops;
    if share <= 0.0 || share >= NEARLY_ALL {
        return String::new();
    }
    // Of several calls of one function an op counts for the longest.
    let of_path = |other: &&RootCauseEntry| other.path == cause.path && other.kind == cause.kind;
    let which = match peak.root_causes.iter().filter(of_path).count() {
        0 | 1 => "",
        _ => "the longest such call ",
    };
    format!(", {which}in {} of the ops", percent(share))
}

/// What is a cause in this part of the ops is one in all but a few.
const NEARLY_ALL: f64 = 0.9;

/// The part of the time of a function, said to take it itself, in which its thread waited; nothing where it did not for
/// most of it.
pub(super) fn blocked(cause: &RootCauseEntry) -> Option<f64> {
    cause.blocked.filter(|&share| share > MOST_BLOCKED)
}

/// A function that takes the time itself does not wait for longer than this part of it.
const MOST_BLOCKED: f64 = 0.5;

/// So many functions are named that are called where there is no probe.
const CALLEES: usize = 5;

/// What the end of the path means.
fn what(cause: &RootCauseEntry) -> String {
    let waits = match (cause.kind, cause.stop) {
        (Kind::Function, StopReason::NoCalls) => goroutines::waiting(&cause.path),
        _ => None,
    };
    if let Some(waits) = waits {
        return waits;
    }
    let last = short(cause.path.last().map_or("", String::as_str));
    let last = control(&last);
    match (cause.kind, cause.stop) {
        (_, StopReason::StillDescending) => {
            format!("the time is in {last} or below it; more ops are needed to tell")
        }
        (_, StopReason::TooRare) => format!(
            "the time is in {last} or below it; ops that tell came too seldom to go on (--peak waits for them)"
        ),
        (_, StopReason::Spread) => {
            format!(
                "the time of {last} is spread: neither it nor anything that it calls has much of it"
            )
        }
        (_, StopReason::MaxDepth) => {
            format!("the time is in {last} or below it; the path may not become longer")
        }
        (_, StopReason::NotInstrumentable) => {
            let why = cause
                .reason
                .as_deref()
                .unwrap_or("its calls cannot be measured");
            format!("the time is in {last} or below it: {}", control(why))
        }
        (_, StopReason::PartlyMeasured) => {
            let unmeasured = cause.unmeasured.as_ref().map_or_else(
                || "some of its call sites".to_owned(),
                |sites| match sites.callees.is_empty() {
                    true => format!("{} of its {} call sites", sites.sites, sites.of_sites),
                    false => {
                        let named = sites.callees.iter().take(CALLEES);
                        let mut callees: Vec<_> = named.map(|it| control(it)).collect();
                        let more = sites.callees.len() - callees.len();
                        if more > 0 {
                            callees.push(format!("{more} more").into());
                        }
                        let (callees, all) = (callees.join(", "), sites.of_sites);
                        format!("{} of its {all} call sites ({callees})", sites.sites)
                    }
                },
            );
            format!(
                "the time is in {last} itself, or in what it calls at {unmeasured}, which could not be measured"
            )
        }
        (Kind::Loop, _) => format!("{last} takes the time itself, in many short calls (a loop)"),
        (Kind::Syscall, _) => format!("the time is in the system call {last}"),
        (Kind::Preemption, _) => "the thread was ready, but another one ran".to_owned(),
        (Kind::Interrupt, _) => "the CPU served an interrupt".to_owned(),
        (Kind::SoftInterrupt, _) => "the CPU did deferred work of interrupts (softirq)".to_owned(),
        (Kind::PageFault, _) => "pages of the program's memory were brought in".to_owned(),
        (Kind::Signal, _) => {
            "the handler of a signal ran (with it as --f0 its own causes are found)".to_owned()
        }
        (Kind::Function, StopReason::NoCalls) => {
            format!("{last} takes the time itself; it makes no calls")
        }
        (Kind::Function, StopReason::SelfTime) => format!("{last} takes the time itself"),
    }
}

/// A frame with its call site, and the inlined functions that the call stands in.
pub(super) fn frame_lines(frame: &Frame) -> Vec<String> {
    let name = control(&frame.name);
    let source_line = source(frame.file.as_deref(), frame.line);
    let site = frame.call_site.as_ref().map(ToString::to_string);
    let site = site.as_deref().map(control);
    let first = match (source_line, site) {
        (Some(line), Some(site)) => format!("{name}  called at {line} ({site})"),
        (None, Some(site)) => format!("{name}  called at {site}"),
        (Some(line), None) => format!("{name}  {line}"),
        (None, None) => name.into_owned(),
    };
    let inlined = frame.inlined_from.iter().map(|inlined| {
        let name = control(&inlined.name);
        match source(inlined.file.as_deref(), inlined.line) {
            Some(line) => format!("  in {name}, inlined at {line}"),
            None => format!("  in {name}, inlined"),
        }
    });
    std::iter::once(first).chain(inlined).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_never_rounded_to_all_or_nothing() {
        let cases = [
            (0.0, "0%"),
            (0.000_01, "<0.01%"),
            (0.004, "0.40%"),
            (0.123, "12.3%"),
            (0.999_9, ">99.9%"),
            (1.0, "100%"),
        ];
        for (share, text) in cases {
            assert_eq!(percent(share), text);
        }
    }
}
