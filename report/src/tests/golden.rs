//! The formats, letter by letter. Set `DARC_BLESS=1` to take what is written now for right.

use std::path::Path;

use crate::fixture;
use crate::model::{Ended, Report};
use crate::text::{self, Color, Names, Rows, Style};
use crate::{Format, json, render};

/// Compares with the file of this name, line by line for a readable failure.
pub(crate) fn golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src/tests/golden")
        .join(name);
    if std::env::var_os("DARC_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    for (number, (ours, theirs)) in (1..).zip(text.lines().zip(expected.lines())) {
        assert_eq!(ours, theirs, "{name}:{number}");
    }
    assert_eq!(text, expected, "{name}");
}

fn rendered(report: &Report, format: Format) -> String {
    String::from_utf8(render(report, format, Style::default()).unwrap()).unwrap()
}

/// A finished analysis with one more below it.
pub(crate) fn finished() -> Report {
    let mut report = fixture::report(30_000);
    report.time = Some(fixture::time());
    report.focus = vec![crate::model::Focus {
        path: vec!["main".to_owned(), "put".to_owned()],
        function: report.f0.clone(),
        callers: Vec::new(),
        status: report.status,
        share_of_time: 0.87,
        calls: 2_152,
        profile: report.profile.clone(),
        peaks: report.peaks[..1].to_vec(),
        values: Vec::new(),
        ftree: report.ftree.clone(),
        handover: None,
    }];
    report
}

/// An analysis of which requests are followed to another thread that serves them.
pub(crate) fn handed_over() -> Report {
    let mut report = finished();
    let served = &mut report.focus[0];
    served.path = ["put", "enqueue", "serve"].map(str::to_owned).to_vec();
    served.function.name = "serve".to_owned();
    served.ftree.name = "serve".to_owned();
    served.handover = Some(fixture::handover(&report.profile));
    for peak in &mut served.peaks {
        if let Some(example) = &mut peak.example {
            example.waited = Some(3_000_000);
        }
    }
    report
}

/// An f0 that runs all the time.
pub(crate) fn running() -> Report {
    let mut report = finished();
    let nothing = fixture::report(0);
    report.profile = nothing.profile;
    report.peaks = Vec::new();
    report.ftree = nothing.ftree;
    report.f0.name = "main".to_owned();
    report.target.exit_status = None;
    report.ended(Ended::Finished)
}

#[test]
fn a_function_that_runs_all_the_time() {
    golden("running.txt", &text::render(&running(), Style::default()));
    golden(
        "running.html",
        &crate::html::render(&running(), Style::default()),
    );
}

#[test]
fn a_finished_analysis_for_people() {
    golden("finished.txt", &text::render(&finished(), Style::default()));
    let all = Style {
        rows: Rows::All,
        ..Style::default()
    };
    golden("finished-all.txt", &text::render(&finished(), all));
}

#[test]
fn of_the_measuring_only_what_is_missing_is_told() {
    let mut report = finished();
    report.probes.skipped.clear();
    let shown = |report: &Report| text::render(report, Style::default());
    assert!(!shown(&report).contains("\nProbes\n"));
    report.probes.dropped = 3;
    assert!(shown(&report).contains(", 3 dropped"));
    report.probes.bytes_differing_after_detach = 1;
    assert!(shown(&report).contains("1 bytes differ"));
}

#[test]
fn requests_that_are_handed_over() {
    let text = text::render(&handed_over(), Style::default());
    golden("handed-over.txt", &text);
    golden(
        "handed-over.html",
        &crate::html::render(&handed_over(), Style::default()),
    );
}

#[test]
fn an_unfinished_analysis_on_a_narrow_page_in_colour() {
    let style = Style {
        width: 72,
        names: Names::Fitted,
        color: Color::Always,
        rows: Rows::Main,
        file: Some("out.txt"),
    };
    let mut report = fixture::report(200);
    report.target.exit_status = None;
    let text = text::render(&report.ended(Ended::Duration), style);
    golden("unfinished-narrow.txt", &text);
    let wide = text.lines().filter(|line| line.chars().count() > 72 + 8);
    // Names of sites and places are never cut.
    assert!(
        wide.clone().all(|line| line.contains("+0x")),
        "{:?}",
        wide.collect::<Vec<_>>()
    );
}

#[test]
fn an_analysis_without_ops() {
    let mut report = fixture::report(0);
    report.clock.hz = 0;
    report.comparison = None;
    golden("empty.txt", &text::render(&report, Style::default()));
}

#[test]
fn a_finished_analysis_for_programs() {
    golden("finished.json", &json::render(&finished()).unwrap());
}

#[test]
fn a_finished_analysis_for_other_tools() {
    let formats = [
        ("finished.folded", Format::Folded),
        ("finished.speedscope.json", Format::Speedscope),
        ("finished.callgrind", Format::Callgrind),
        ("finished.svg", Format::Svg),
        ("finished.html", Format::Html),
        ("finished.trace.json", Format::Chrome),
    ];
    for (name, format) in formats {
        golden(name, &rendered(&finished(), format));
    }
}

#[test]
fn requests_that_another_thread_serves() {
    let trace = rendered(&handed_over(), Format::Chrome);
    golden("handed-over.trace.json", &trace);
}

#[test]
fn the_result_file() {
    golden("out.txt", &crate::state::write(&finished()));
}
