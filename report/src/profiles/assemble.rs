//! From profiles to entries of a set: tables, peaks, shares.

use darc_analysis::{Profile, find_peaks};

use super::PeakRange;
use crate::model::PeakEntry;
use crate::model::Status;

/// The peaks of a profile.
#[must_use]
pub fn peaks(profile: &Profile) -> Vec<PeakRange> {
    let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
    find_peaks(profile)
        .into_iter()
        .map(|peak| PeakRange {
            peak: peak.number,
            first_bucket: peak.first_bucket,
            last_bucket: peak.last_bucket,
            ops: peak.content.ops,
            total: peak.content.total.0,
            share_of_ops: share(peak.content.ops, profile.count()),
            share_of_time: share(peak.content.total.0, profile.total().0),
        })
        .collect()
}

/// The peaks as those of an analysis that was not asked for their causes.
#[must_use]
pub fn entries(peaks: &[PeakRange]) -> Vec<PeakEntry> {
    let entry = |peak: &PeakRange| PeakEntry {
        begins_untold: false,
        peak: peak.peak,
        first_bucket: peak.first_bucket,
        last_bucket: peak.last_bucket,
        ops: peak.ops,
        total: peak.total,
        share_of_ops: peak.share_of_ops,
        share_of_time: peak.share_of_time,
        status: Status::NotAnalysed,
        root_causes: Vec::new(),
        kept_from_running: None,
        example: None,
        off_cpu: None,
    };
    peaks.iter().map(entry).collect()
}
