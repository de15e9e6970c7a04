//! What came of an analysis, in a line.

use super::model::{Ended, PeakEntry, Report, Status};
use super::words::{self, percent};

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

/// The status of an analysis: how much of the time has a cause, and why no more has, where it is not all; and which part of a
/// process was looked at, where darc chose it and there is more.
pub(super) fn outcome(report: &Report) -> String {
    let by_signal = report.target.exit_status.map(words::by_signal);
    let words = match (report.ended, by_signal) {
        (Some(Ended::Target), Some(by_signal)) => {
            let ended = format!("the target ended{by_signal}; ");
            said(report.status, &ended, &report.peaks)
        }
        _ => of_peaks(report.status, report.ended, &report.peaks),
    };
    let time = report.time.as_ref();
    let looked_at = time.and_then(|time| time.share_of_cpu);
    let looked_at = looked_at.filter(|&share| share < NEARLY_ALL);
    let looked_at = looked_at.map(|share| {
        let share = percent(share);
        format!("; the threads that were looked at took {share} of the CPU time")
    });
    let not_running = time.and_then(|time| time.not_running);
    let not_running = not_running.filter(|&share| share >= MUCH);
    let not_running = not_running.map(|share| {
        let share = percent(share);
        format!("; for {share} of the time threads were ready, but did not run")
    });
    let effort = report.probes.effort.as_ref();
    let is_open = matches!(report.status, Status::Undecided | Status::InProgress);
    let effort = effort.filter(|it| is_open && it.of(it.rested) >= HALF);
    let rested = effort.map(|effort| {
        let (measured, budget) = (1.0 - effort.of(effort.rested), effort.budget);
        format!(
            "; calls were measured for {} of the time only, to keep below --budget {}",
            percent(measured.max(0.0)),
            percent(budget)
        )
    });
    let rest = [looked_at, not_running, rested];
    words + &rest.map(Option::unwrap_or_default).concat()
}

/// Where darc rested for so long more effort would have told more.
const HALF: f64 = 0.5;

/// Threads with this part of the CPU time are the process.
const NEARLY_ALL: f64 = 0.95;

/// For such a part of the time threads wait for a processor, so that what is said of functions is said of that, too.
const MUCH: f64 = 0.1;

/// The status, as far as peaks tell.
fn of_peaks(status: Status, ended: Option<Ended>, peaks: &[PeakEntry]) -> String {
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
    said(status, stopped, peaks)
}

/// ... behind what ended the analysis.
fn said(status: Status, stopped: &str, peaks: &[PeakEntry]) -> String {
    let is_known = |peak: &&PeakEntry| peak.status == Status::RootCauseFound;
    let known = peaks.iter().filter(is_known);
    let share: f64 = known.map(|peak| peak.share_of_time).sum();
    let words = self::status(status);
    match status {
        Status::Undecided if share > 0.0 => format!(
            "{stopped}{words}: peaks with {} of the time have a root cause",
            percent(share)
        ),
        Status::Undecided => format!("{stopped}{words}"),
        Status::Spread if share > 0.0 => format!(
            "{words} of all of it; peaks with {} of the time have a root cause",
            percent(share)
        ),
        Status::RootCauseFound | Status::MaxDepthReached => words.to_owned() + &still_open(peaks),
        _ => words.to_owned(),
    }
}

/// The peaks without a root cause, which have little of the time.
fn still_open(peaks: &[PeakEntry]) -> String {
    let is_open = [Status::Undecided, Status::Spread, Status::InProgress];
    let open = peaks.iter().filter(|peak| is_open.contains(&peak.status));
    let open = open.map(|peak| format!("; peak {}: {}", peak.peak, status(peak.status)));
    open.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::model::TimeTable;

    #[test]
    fn a_peak_without_a_cause_is_named_however_little_time_it_has() {
        let mut peaks = fixture::report(1_000).peaks;
        peaks.truncate(2);
        (peaks[0].status, peaks[1].status) = (Status::RootCauseFound, Status::Undecided);
        assert_eq!(
            of_peaks(Status::RootCauseFound, None, &peaks),
            format!("root cause found; peak {}: not decided", peaks[1].peak)
        );
    }

    #[test]
    fn the_signal_is_told_that_ended_the_target() {
        let mut report = fixture::report(200).ended(Ended::Target);
        report.target.exit_status = Some(139);
        let said = outcome(&report);
        let so = "the target ended, as by signal 11 (SIGSEGV); not decided";
        assert!(said.starts_with(so), "{said}");
        report.target.exit_status = Some(1);
        let said = outcome(&report);
        assert!(said.starts_with("the target ended; "), "{said}");
    }

    #[test]
    fn where_little_is_decided_for_want_of_effort_that_is_said() {
        let mut report = fixture::report(200);
        report.status = Status::Undecided;
        assert!(!outcome(&report).contains("--budget"));
        report.probes.effort.as_mut().unwrap().rested = 10.0;
        let so = "; calls were measured for 20.0% of the time only, to keep below --budget 3.0%";
        assert!(outcome(&report).ends_with(so));
        report.status = Status::Spread;
        assert!(!outcome(&report).contains("--budget"));
    }

    #[test]
    fn a_path_that_may_not_become_longer_is_no_root_cause() {
        let mut peaks = fixture::report(1_000).peaks;
        peaks.truncate(2);
        peaks[0].status = Status::Undecided;
        peaks[1].status = Status::MaxDepthReached;
        let said = of_peaks(Status::Undecided, None, &peaks);
        assert_eq!(said, "not decided");
        peaks[1].status = Status::RootCauseFound;
        let said = of_peaks(Status::Undecided, None, &peaks);
        assert!(said.starts_with("not decided: peaks with "), "{said}");
    }

    #[test]
    fn where_some_of_the_time_is_spread_it_is_said_which_has_a_cause() {
        let mut peaks = fixture::report(1_000).peaks;
        peaks.truncate(2);
        peaks[0].status = Status::Spread;
        peaks[1].status = Status::RootCauseFound;
        let said = of_peaks(Status::Spread, None, &peaks);
        assert!(
            said.starts_with("no single cause of all of it; peaks with "),
            "{said}"
        );
        peaks[1].status = Status::Spread;
        assert_eq!(of_peaks(Status::Spread, None, &peaks), "no single cause");
    }

    #[test]
    fn which_part_of_a_process_was_looked_at_is_said_where_it_is_not_all() {
        let said = |share_of_cpu| {
            let mut report = fixture::report(1_000);
            report.status = Status::Undecided;
            report.peaks.clear();
            report.time = Some(TimeTable {
                share_of_cpu,
                ..TimeTable::default()
            });
            outcome(&report)
        };
        assert_eq!(
            said(Some(0.184)),
            "not decided; the threads that were looked at took 18.4% of the CPU time"
        );
        assert_eq!(said(Some(0.99)), "not decided");
        assert_eq!(said(None), "not decided");
    }

    #[test]
    fn time_without_a_processor_is_said_where_it_is_much() {
        let said = |not_running| {
            let mut report = fixture::report(1_000);
            report.status = Status::RootCauseFound;
            report.peaks.clear();
            report.time = Some(TimeTable {
                not_running,
                ..TimeTable::default()
            });
            outcome(&report)
        };
        assert_eq!(
            said(Some(0.456)),
            "root cause found; for 45.6% of the time threads were ready, but did not run"
        );
        assert_eq!(said(Some(0.05)), "root cause found");
        assert_eq!(said(None), "root cause found");
    }
}
