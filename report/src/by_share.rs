//! Which causes of a peak are told, and in which order.

use crate::contrast::Rows;
use crate::model::{RootCauseEntry, StopReason};
use crate::words::percent;

/// A cause with less of its peak's time is left out,
const LEAST: f64 = 0.01;
/// ... or with less than this where it is not decided.
const LEAST_OPEN: f64 = 0.05;

/// The causes that are told, the largest first, and those that are left out. The largest is told, and so is one of which no part is known.
pub fn by_share(
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
pub fn in_short(causes: &[RootCauseEntry]) -> Option<String> {
    let paths = match causes.len() {
        0 => return None,
        1 => "one more path".to_owned(),
        more => format!("{more} more paths"),
    };
    let share: f64 = causes.iter().filter_map(part).sum();
    let share = percent(share.min(1.0));
    let together = if causes.len() > 1 { " together" } else { "" };
    Some(format!("{paths} with {share}{together}"))
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
            Some("2 more paths with 4.5% together")
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
