//! One block per peak: how much it matters, and the paths to what takes the time.

use super::header::status;
use super::{Page, path, percent, source};
use crate::analysis::Resolution;
use crate::report::escape::control;
use crate::report::model::{Frame, Kind, PeakEntry, Report, RootCauseEntry, Status, StopReason};

pub(super) fn write(page: &mut Page, report: &Report) {
    if report.peaks.is_empty() {
        page.blank();
        page.line(&format!(
            "No peaks yet: they are looked for after {} ops.",
            report.parameters.start_ops
        ));
    }
    peaks(page, &report.peaks, report.profile.resolution);
}

/// The blocks of several peaks of one profile.
pub(super) fn peaks(page: &mut Page, peaks: &[PeakEntry], resolution: u32) {
    let resolution = Resolution::new(resolution).unwrap_or_default();
    for peak in peaks {
        let bound = |bucket| resolution.bounds(bucket);
        let range = match (bound(peak.first_bucket), bound(peak.last_bucket)) {
            (Some((first, _)), Some((_, last))) => format!(
                ", {} to {}",
                page.time(first.0),
                page.time(last.0.saturating_add(1))
            ),
            _ => String::new(),
        };
        page.blank();
        page.heading(&format!(
            "Peak {}{range}: {}",
            peak.peak,
            status(peak.status)
        ));
        page.line(&format!(
            "  {} ops: {} of all, {} of the time",
            peak.ops,
            percent(peak.share_of_ops),
            percent(peak.share_of_time)
        ));
        if peak.root_causes.is_empty() && peak.status == Status::RootCauseFound {
            page.line("  no path was found");
        }
        for cause in &peak.root_causes {
            root_cause(page, cause);
        }
    }
}

fn root_cause(page: &mut Page, cause: &RootCauseEntry) {
    page.line(&format!("  {}", path(&cause.path)));
    page.line(&format!("    {}", in_words(cause)));
    for frame in &cause.frames {
        for line in frame_lines(frame) {
            page.line(&format!("      {line}"));
        }
    }
}

/// What the end of the path means.
fn in_words(cause: &RootCauseEntry) -> String {
    let last = cause.path.last().map_or("", String::as_str);
    let last = control(last);
    let what = match (cause.kind, cause.stop) {
        (_, StopReason::StillDescending) => {
            format!("the time is in {last} or below it; more ops are needed to tell")
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
        (Kind::Loop, _) => format!("{last} takes the time itself, in many short calls (a loop)"),
        (Kind::Syscall, _) => format!("the time is in the system call {last}"),
        (Kind::Preemption, _) => format!("the thread did not run while in {last}"),
        (Kind::Interrupt, _) => format!("an interrupt ran while in {last}"),
        (Kind::Function, StopReason::NoCalls) => {
            format!("{last} takes the time itself; it makes no calls")
        }
        (Kind::Function, StopReason::SelfTime) => format!("{last} takes the time itself"),
    };
    match cause.maxcount {
        0 => what,
        maxcount => format!("{what} (maxcount {maxcount})"),
    }
}

/// A frame with its call site, and the inlined functions that the call stands in.
fn frame_lines(frame: &Frame) -> Vec<String> {
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
