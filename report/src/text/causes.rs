//! One block per peak: how much it matters, and the paths to what takes the time.

use super::{Page, Rows, narrowed};
use crate::doubts;
use crate::loops::in_loops;
use crate::model::{
    FtreeNode, PeakEntry, ProfileTable, Report, RootCauseEntry, Status, StopReason,
};
use crate::outcome::status;
use crate::spread::{spread, told_status, without_depths};
use crate::waiting::{arguments, away, elsewhere, waiting};
use crate::words::{self, frame_lines, hops, in_words, path, percent};

pub(super) fn write(page: &mut Page, report: &Report) {
    if report.peaks.is_empty() {
        page.blank();
        page.line(&no_peaks(report));
    }
    peaks(page, &report.peaks, &report.profile, &report.ftree);
}

/// That there are too few ops for peaks.
pub(super) fn no_peaks(report: &Report) -> String {
    format!(
        "No peaks yet: they are looked for after {} ops (--start-ops), where these take longer than a second after a tenth as many.",
        report.parameters.start_ops
    )
}

/// The blocks of several peaks of one profile.
pub(super) fn peaks(
    page: &mut Page,
    peaks: &[PeakEntry],
    profile: &ProfileTable,
    ftree: &FtreeNode,
) {
    for peak in peaks {
        let range = words::range(page.hz, peak, profile.resolution)
            .map_or_else(String::new, |range| format!(", {range}"));
        page.blank();
        page.heading(&format!(
            "Peak {}{range}: {}",
            peak.peak,
            status(told_status(peak))
        ));
        page.line(&format!(
            "  {} ops: {} of all, {} of the time",
            peak.ops,
            percent(peak.share_of_ops),
            percent(peak.share_of_time)
        ));
        if let Some(away) = away(peak) {
            page.line(&format!("  {away}"));
        }
        for doubt in doubts::doubts(peak, ftree, page.hz) {
            page.sentence(2, &doubt);
        }
        if peak.root_causes.is_empty() && peak.status == Status::RootCauseFound {
            page.line("  no path was found");
        }
        let (told, left_out) = by_share(without_depths(peak), page.rows);
        for cause in &told {
            root_cause(page, cause, peak, ftree);
        }
        if let Some(left_out) = in_short(&left_out) {
            page.sentence(2, &left_out);
        }
        if let Some(spread) = spread(peak, ftree) {
            page.sentence(2, &spread);
        }
        for place in elsewhere(peak) {
            page.line(&format!("  also waited: {}", path(&place.path)));
            for line in waiting(page.hz, &place.waits) {
                page.line(&format!("    {line}"));
            }
        }
    }
}

/// A cause with less of its peak's time is left out,
const LEAST: f64 = 0.01;
/// ... or with less than this where it is not decided.
const LEAST_OPEN: f64 = 0.05;

/// The causes that are told, the largest first, and those that are left out. The largest is told, and so is one of which no part is known.
fn by_share(
    mut causes: Vec<RootCauseEntry>,
    rows: Rows,
) -> (Vec<RootCauseEntry>, Vec<RootCauseEntry>) {
    causes.sort_by(|one, other| {
        let [one, other] = [one, other].map(|cause| part(cause).unwrap_or(0.0));
        other.total_cmp(&one)
    });
    let is_small = |cause: &RootCauseEntry| {
        let least = match cause.stop {
            StopReason::StillDescending | StopReason::TooRare => LEAST_OPEN,
            _ => LEAST,
        };
        part(cause).is_some_and(|part| part < least)
    };
    let mut is_first = true;
    let is_told = |cause: &RootCauseEntry| {
        std::mem::take(&mut is_first) || rows == Rows::All || !is_small(cause)
    };
    causes.into_iter().partition(is_told)
}

/// The part of its peak's time that a cause explains, or that is in its last function where more is not known.
fn part(cause: &RootCauseEntry) -> Option<f64> {
    let in_last = || cause.frames.last().map(|frame| frame.share_of_time);
    let share = match cause.known_from {
        0 => in_last(),
        _ => Some(cause.share_of_time),
    };
    share.filter(|&share| share > 0.0)
}

/// The causes that were left out, in a sentence.
fn in_short(causes: &[RootCauseEntry]) -> Option<String> {
    let paths = match causes.len() {
        0 => return None,
        1 => "one more path".to_owned(),
        more => format!("{more} more paths"),
    };
    let share: f64 = causes.iter().filter_map(part).sum();
    let share = percent(share.min(1.0));
    let together = if causes.len() > 1 { " together" } else { "" };
    Some(format!(
        "… and {paths} with {share}{together}: darc report --all"
    ))
}

fn root_cause(page: &mut Page, cause: &RootCauseEntry, peak: &PeakEntry, ftree: &FtreeNode) {
    page.sentence(2, &hops(cause));
    page.sentence(4, &in_words(cause, peak));
    for calls in in_loops(cause, peak.peak, ftree, page.hz) {
        page.sentence(4, &calls);
    }
    for line in arguments(cause) {
        page.line(&format!("    {line}"));
    }
    let hz = page.hz;
    for line in cause.waits.iter().flat_map(|waits| waiting(hz, waits)) {
        page.line(&format!("    {line}"));
    }
    for line in cause.narrowed.iter().flat_map(narrowed::lines) {
        page.line(&format!("    {line}"));
    }
    for frame in &cause.frames {
        for line in frame_lines(frame) {
            page.line(&format!("      {line}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[test]
    fn small_causes_are_left_out_and_large_ones_come_first() {
        let report = fixture::report(30_000);
        let model = report.peaks[0].root_causes[0].clone();
        let cause = |share_of_time, stop| RootCauseEntry {
            share_of_time,
            stop,
            known_from: 9,
            ..model.clone()
        };
        let (own, open) = (StopReason::SelfTime, StopReason::TooRare);
        let causes = vec![
            cause(0.005, own),
            cause(0.02, own),
            cause(0.6, own),
            cause(0.04, open),
            cause(0.06, open),
        ];
        let shares = |causes: &[RootCauseEntry]| -> Vec<f64> {
            causes.iter().map(|cause| cause.share_of_time).collect()
        };
        let (told, left_out) = by_share(causes.clone(), Rows::Main);
        assert_eq!(shares(&told), [0.6, 0.06, 0.02]);
        assert_eq!(
            in_short(&left_out).as_deref(),
            Some("… and 2 more paths with 4.5% together: darc report --all")
        );
        let (told, left_out) = by_share(causes, Rows::All);
        assert_eq!((told.len(), in_short(&left_out)), (5, None));
        let (told, _) = by_share(vec![cause(0.005, own)], Rows::Main);
        assert_eq!(told.len(), 1, "there is no larger one");
        let unknown = RootCauseEntry {
            known_from: 0,
            frames: Vec::new(),
            ..cause(0.0, own)
        };
        let (told, _) = by_share(vec![cause(0.6, own), unknown], Rows::Main);
        assert_eq!(told.len(), 2, "what is not known is not little");
    }
}
