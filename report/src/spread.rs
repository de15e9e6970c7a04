//! Whether the causes of a peak explain its time, in words.

use super::attribution;
use super::model::{FtreeNode, PeakEntry, RootCauseEntry, Status};
use super::words::{path, percent};

/// A cause that explains less of a peak's time than this is not the cause of it.
const SINGLE: f64 = 0.3;
/// Causes that explain less together leave most of the time unexplained.
const MOST: f64 = 0.5;
/// So many of the largest parts of the time are named where no part is large.
const NAMED: usize = 3;

/// The causes of a peak, the largest first; those whose paths differ in their call sites alone are one, with all of their shares.
pub(super) fn together(peak: &PeakEntry) -> Vec<RootCauseEntry> {
    let mut causes: Vec<RootCauseEntry> = Vec::new();
    for cause in &peak.root_causes {
        let is_same = |known: &&mut RootCauseEntry| {
            (&known.path, known.kind, known.stop) == (&cause.path, cause.kind, cause.stop)
        };
        match causes.iter_mut().find(is_same) {
            Some(known) => {
                known.share_of_time = (known.share_of_time + cause.share_of_time).min(1.0);
                known.known_from = known.known_from.max(cause.known_from);
            }
            None => causes.push(cause.clone()),
        }
    }
    causes.sort_by(|one, other| other.share_of_time.total_cmp(&one.share_of_time));
    causes
}

/// The shares of a peak's time that its causes explain, where that is known; the largest first.
fn shares(peak: &PeakEntry) -> Vec<f64> {
    let causes = together(peak).into_iter();
    let known = causes.filter(|cause| cause.known_from > 0);
    known.map(|cause| cause.share_of_time).collect()
}

/// Whether a peak has no single cause: that was decided, or what was found explains little, one by one and together.
pub(super) fn is_spread(peak: &PeakEntry) -> bool {
    match peak.status {
        Status::Spread => true,
        Status::InProgress | Status::Undecided | Status::NotAnalysed => false,
        Status::RootCauseFound | Status::MaxDepthReached => {
            let shares = shares(peak);
            let largest = shares.first().copied();
            largest.is_some_and(|largest| largest < SINGLE) && shares.iter().sum::<f64>() < MOST
        }
    }
}

/// What is to be said of causes that explain little of a peak's time; nothing where they explain most of it, and where it
/// is not known what they explain.
pub(super) fn spread(peak: &PeakEntry, ftree: &FtreeNode) -> Option<String> {
    if is_spread(peak) {
        let parts = attribution::largest(ftree, peak, NAMED).into_iter();
        let parts: Vec<String> = parts
            .map(|(names, share)| format!("{} {}", path(&names), percent(share)))
            .collect();
        return Some(format!(
            "no single cause: the time is spread; the largest parts are {}",
            parts.join(", ")
        ));
    }
    let shares = shares(peak);
    let together: f64 = shares.iter().sum();
    let is_open = peak.status == Status::InProgress || shares.is_empty();
    (!is_open && together < MOST).then(|| {
        format!(
            "together that is {} of this peak's time; the rest is spread",
            percent(together)
        )
    })
}
