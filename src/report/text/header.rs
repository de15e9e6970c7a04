//! What was analysed, how, and how far it came.

use super::{Page, source};
use crate::report::escape::control;
use crate::report::model::{Engine, Report, Status, Target};

pub(super) fn write(page: &mut Page, report: &Report) {
    let f0 = &report.f0;
    page.heading(&format!("Latency of {}", control(&f0.name)));
    page.field("target", &target(&report.target));
    let mut place = format!("{}+{:#x}", control(&f0.module), f0.offset);
    if let Some(source) = source(f0.file.as_deref(), f0.line) {
        place = format!("{source} ({place})");
    }
    page.field("defined at", &place);
    let engine = match report.engine {
        Engine::Jump => "jump",
        Engine::Int3 => "int3",
    };
    page.field("engine", engine);
    page.field("status", status(report.status));
    let profile = &report.profile;
    let ops = match profile.total.checked_div(profile.ops) {
        Some(mean) => format!(
            "{}, {} each on average, {} together",
            profile.ops,
            page.time(mean),
            page.time(profile.total)
        ),
        None => "none completed".to_owned(),
    };
    page.field("ops", &ops);
    if let Some(comparison) = &report.comparison {
        let verdict = if comparison.changed {
            "differs from the stored one"
        } else {
            "is like the stored one"
        };
        let distance = match comparison.earth_movers_distance {
            Some(distance) => format!("{distance:.3}"),
            None => "undefined".to_owned(),
        };
        page.field(
            "profile",
            &format!("{verdict} (Earth Mover's Distance {distance})"),
        );
        for change in &comparison.peaks {
            page.field("", &control(change));
        }
    }
}

/// A status in words.
pub(super) fn status(status: Status) -> &'static str {
    match status {
        Status::RootCauseFound => "root cause found",
        Status::MaxDepthReached => "maximum depth reached",
        Status::InProgress => "in progress",
        Status::NotAnalysed => "not analysed",
    }
}

fn target(target: &Target) -> String {
    let mut text = if target.command.is_empty() {
        control(&target.exe).into_owned()
    } else {
        let words: Vec<_> = target.command.iter().map(|word| control(word)).collect();
        words.join(" ")
    };
    if let Some(pid) = target.pid {
        text.push_str(&format!(" (pid {pid})"));
    }
    if let Some(status) = target.exit_status {
        text.push_str(&format!(", ended with {status}"));
    }
    text
}
