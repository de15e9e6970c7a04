//! One block per peak: how much it matters, and the paths to what takes the time.

use darc_analysis::Range;

use super::Page;
use crate::by_share::{by_share, in_short};
use crate::doubts;
use crate::loops::in_loops;
use crate::model::{FtreeNode, PeakEntry, ProfileTable, Report, RootCauseEntry, Status};
use crate::narrowed;
use crate::outcome::status;
use crate::spread::{spread, without_depths};
use crate::waiting::{arguments, away, elsewhere, waiting};
use crate::words::{self, frame_lines, hops, in_words, path, percent};

pub(super) fn write(page: &mut Page, report: &Report) {
    if report.peaks.is_empty() {
        page.blank();
        page.line(&no_peaks(report, report.profile.ops));
    }
    peaks(page, &report.peaks, &report.profile, &report.ftree);
}

/// That there are too few ops of a function for peaks, or why there are none though there are as many.
pub(super) fn no_peaks(report: &Report, ops: u64) -> String {
    let parameters = &report.parameters;
    let start = parameters.start_ops;
    let above = parameters.range.and_then(|range| range.above);
    let enough = above
        .map_or(0, |above| Range::Above(above).enough())
        .max(start);
    match above {
        Some(above) if ops < enough => format!(
            "No peak yet: where the calls above {} begin is known after {enough} ops.",
            words::percentile(above)
        ),
        _ if ops >= start && report.ended.is_some() => format!(
            "No peaks: none had been found when the analysis ended, after {ops} ops (they are looked for after {start}, --start-ops)."
        ),
        _ => format!(
            "No peaks yet: they are looked for after {start} ops (--start-ops), where these take longer than a second after a tenth as many."
        ),
    }
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
            status(peak.status)
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
            page.sentence(2, &format!("… and {left_out}: darc report --all"));
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
    use super::no_peaks;
    use crate::fixture;
    use crate::model::{Ended, RangeEntry};

    #[test]
    fn why_there_are_no_peaks_is_said() {
        let mut report = fixture::report(1_000);
        report.parameters.start_ops = 100;
        report.ended = None;
        assert!(
            no_peaks(&report, 119).starts_with("No peaks yet: they are looked for after 100 ops")
        );
        report.ended = Some(Ended::Duration);
        assert!(
            no_peaks(&report, 99).starts_with("No peaks yet: they are looked for after 100 ops")
        );
        assert_eq!(
            no_peaks(&report, 119),
            "No peaks: none had been found when the analysis ended, after 119 ops (they are looked for after 100, --start-ops)."
        );
        report.parameters.range = Some(RangeEntry {
            above: Some(990_000),
            ..RangeEntry::default()
        });
        assert_eq!(
            no_peaks(&report, 119),
            "No peak yet: where the calls above p99 begin is known after 1000 ops."
        );
    }
}
