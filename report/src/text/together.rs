//! Several processes of one program, analysed side by side: what their calls spend their time on together, and each by itself.

use std::collections::BTreeSet;

use super::{Page, Style, answers, time};
use crate::answer;
use crate::escape::control;
use crate::model::{Report, TimePart};
use crate::outcome;
use crate::spread;
use crate::words::{self, path, percent};

/// A part this small of the time is not shown by itself.
const LEAST: f64 = 0.01;
/// Of so many processes the numbers are named.
const NAMED: usize = 8;

/// What one or more processes spend time on.
struct Part {
    place: String,
    /// In cycles.
    time: f64,
    processes: BTreeSet<i32>,
}

/// The reports of several processes, ending with a newline. Those of one build of one function are added up.
#[must_use]
pub fn render(reports: &[Report], style: Style<'_>) -> String {
    let hz = reports.first().map_or(0, |report| report.clock.hz);
    let mut page = Page::new(hz, style);
    let mut open: Vec<&Report> = reports.iter().collect();
    while let Some(first) = open.first().copied() {
        let (same, others): (Vec<_>, Vec<_>) =
            open.into_iter().partition(|other| is_alike(first, other));
        group(&mut page, &same);
        open = others;
    }
    page.text
}

/// Whether the same code of the same build was analysed.
fn is_alike(one: &Report, other: &Report) -> bool {
    (&one.f0.name, &one.f0.module, one.f0.offset)
        == (&other.f0.name, &other.f0.module, other.f0.offset)
        && one.target.build_id == other.target.build_id
}

fn group(page: &mut Page, reports: &[&Report]) {
    let Some(first) = reports.first() else {
        return;
    };
    if !page.text.is_empty() {
        page.blank();
    }
    let processes: BTreeSet<i32> = reports
        .iter()
        .filter_map(|report| report.target.pid)
        .collect();
    page.heading(&format!(
        "{} in {} of {}",
        control(&first.f0.name),
        named(&processes),
        control(&first.target.exe)
    ));
    let (ops, total) = reports.iter().fold((0_u64, 0_u64), |(ops, total), report| {
        (ops + report.profile.ops, total + time_of(report))
    });
    let calls = match ops {
        0 => "of all threads together".to_owned(),
        _ => format!("in {ops} calls"),
    };
    page.line(&format!("  {} {calls}", page.time(total)));
    page.blank();
    page.heading("Together");
    parts(page, reports, total as f64);
    for report in reports {
        page.blank();
        each(page, report);
    }
}

/// What the report tells the parts of.
fn time_of(report: &Report) -> u64 {
    match &report.time {
        Some(table) if report.profile.ops == 0 => table.total,
        _ => report.profile.total,
    }
}

fn parts(page: &mut Page, reports: &[&Report], total: f64) {
    let mut parts = added_up(reports);
    parts.sort_by(|one, other| other.time.total_cmp(&one.time));
    let share = |time: f64| if total > 0.0 { time / total } else { 0.0 };
    let shown: Vec<&Part> = parts
        .iter()
        .filter(|part| share(part.time) >= LEAST)
        .collect();
    for part in &shown {
        let only = match part.processes.len() < reports.len() {
            true => format!("  (in {})", named(&part.processes)),
            false => String::new(),
        };
        let share = percent(share(part.time));
        page.sentence(
            2,
            &format!(
                "{share:>7} {:>9} {}{only}",
                page.time(part.time as u64),
                part.place
            ),
        );
    }
    let rest = total - shown.iter().map(|part| part.time).sum::<f64>();
    if share(rest) >= LEAST {
        let share = percent(share(rest));
        page.sentence(
            2,
            &format!("{share:>7} {:>9} all else", page.time(rest as u64)),
        );
    }
}

fn added_up(reports: &[&Report]) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for report in reports {
        for (place, time) in places(report) {
            let known = parts.iter().position(|part| part.place == place);
            let at = known.unwrap_or_else(|| {
                parts.push(Part {
                    place,
                    time: 0.0,
                    processes: BTreeSet::new(),
                });
                parts.len() - 1
            });
            parts[at].time += time;
            parts[at].processes.extend(report.target.pid);
        }
    }
    parts
}

/// The places that a report names, each with its time in cycles.
fn places(report: &Report) -> Vec<(String, f64)> {
    if let Some(table) = report.time.as_ref().filter(|_| report.profile.ops == 0) {
        let place = |part: &TimePart| format!("{}{}", path(&part.path), time::remark(part));
        let parts = table.parts.iter();
        return parts.map(|part| (place(part), part.time as f64)).collect();
    }
    let peaks = report.peaks.iter();
    peaks
        .flat_map(|peak| {
            let causes = spread::together(peak).into_iter();
            causes.map(|cause| {
                let (within, place) = answer::located(&cause, &[]);
                let blocked = words::blocked(&cause).map(|_| "in or below");
                let place = match within.or(blocked) {
                    Some(within) => format!("{within} {place}"),
                    None => place,
                };
                (place, cause.share_of_time * peak.total as f64)
            })
        })
        .collect()
}

fn each(page: &mut Page, report: &Report) {
    let pid = report.target.pid.unwrap_or_default();
    let outcome = outcome::outcome(report);
    page.heading(&format!("Process {pid}: {outcome}"));
    let profile = &report.profile;
    if let Some(mean) = profile.total.checked_div(profile.ops) {
        page.line(&format!(
            "  {} calls, {} each on average",
            profile.ops,
            page.time(mean)
        ));
        if let Some(percentiles) = words::percentiles(page.hz, profile) {
            page.line(&format!("  {percentiles}"));
        }
        answers(page, &report.peaks, profile, &report.ftree);
    } else if report.time.is_none() {
        page.line("  no call completed");
    }
    for focus in &report.focus {
        answers(page, &focus.peaks, &focus.profile, &focus.ftree);
    }
}

/// Processes for people.
fn named(processes: &BTreeSet<i32>) -> String {
    let numbers: Vec<String> = processes.iter().map(ToString::to_string).collect();
    match numbers.as_slice() {
        [one] => format!("process {one}"),
        few if few.len() <= NAMED => format!("processes {}", few.join(", ")),
        many => format!("{} processes", many.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::golden::{finished, golden};

    #[test]
    fn processes_that_differ_are_kept_apart() {
        let process = |pid| {
            let mut report = crate::fixture::report(30_000);
            report.target.pid = Some(pid);
            report
        };
        let mut other = process(12);
        for cause in other
            .peaks
            .iter_mut()
            .flat_map(|peak| &mut peak.root_causes)
        {
            cause.path.push("elsewhere".to_owned());
        }
        let mut rebuilt = process(13);
        rebuilt.target.build_id = Some("00".to_owned());
        let reports = [process(10), process(11), other, rebuilt];
        golden("together.txt", &render(&reports, Style::default()));
    }

    #[test]
    fn of_one_that_runs_all_the_time_the_parts_are_added_up() {
        let mut report = finished();
        report.profile.ops = 0;
        report.profile.total = 0;
        let shown = render(&[report.clone(), report], Style::default());
        assert!(shown.contains("of all threads together"), "{shown}");
        assert!(!shown.contains("all else"), "{shown}");
    }
}
