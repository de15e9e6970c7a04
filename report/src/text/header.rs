//! What was analysed, how, and how far it came.

use super::Page;
use crate::escape::control;
use crate::model::Report;
use crate::outcome;
use crate::words::{self, source};

pub(super) fn write(page: &mut Page, report: &Report) {
    let f0 = &report.f0;
    page.heading(&format!("Latency of {}", control(&f0.name)));
    page.field("target", &words::target(&report.target));
    let mut place = format!("{}+{:#x}", control(&f0.module), f0.offset);
    if let Some(source) = source(f0.file.as_deref(), f0.line) {
        place = format!("{source} ({place})");
    }
    // A library that was waited for may never have come.
    if !f0.module.is_empty() {
        page.field("defined at", &place);
    }
    if let Some(futures) = &report.futures {
        page.field("an op", words::life(futures));
        page.sentence(14, words::between_polls(futures));
        let of = if futures.coroutines {
            "coroutines"
        } else {
            "futures"
        };
        page.sentence(2, &format!("{of:<10}  {}", words::futures(futures)));
    }
    page.field("engine", words::engine(report.engine));
    let outcome = outcome::outcome(report);
    page.sentence(2, &format!("status      {outcome}"));
    let profile = &report.profile;
    let ops = match profile.total.checked_div(profile.ops) {
        Some(mean) => format!(
            "{}, {} each on average, {} together",
            profile.ops,
            page.time(mean),
            page.time(profile.total)
        ),
        None if report.time.is_some() => {
            "it runs all the time; what takes its time was analysed instead".to_owned()
        }
        None => "none completed".to_owned(),
    };
    page.field("ops", &ops);
    if let Some(percentiles) = words::percentiles(page.hz, profile) {
        page.field("latency", &percentiles);
    }
    if let Some(unseen) = words::unseen(profile) {
        page.sentence(2, &unseen);
    }
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
