//! What the measuring did to the target, and what the person should know.

use super::Page;
use crate::escape::control;
use crate::model::Report;
use crate::words::{self, microseconds};

pub(super) fn write(page: &mut Page, report: &Report) {
    let probes = &report.probes;
    page.blank();
    page.heading("Probes");
    page.field(
        "sites",
        &format!(
            "{} instrumented, {} skipped",
            probes.sites,
            probes.skipped.len()
        ),
    );
    for line in words::skipped(probes) {
        page.field("", &line);
    }
    let cost = probes.cost_cycles;
    page.field(
        "cost",
        &format!(
            "{} inside of each measured call (taken out), {} outside",
            page.time(cost.inside),
            page.time(cost.outside)
        ),
    );
    page.field("records", &words::records(probes));
    page.field(
        "pauses",
        &format!(
            "{} typical, {} at most",
            microseconds(probes.pause_us.p50),
            microseconds(probes.pause_us.max)
        ),
    );
    let effort = probes.effort.iter().flat_map(words::effort);
    for (line, name) in effort.zip(["effort", "", "", ""]) {
        page.field(name, &line);
    }
    page.field("code", &words::restored(probes));
    if !report.warnings.is_empty() {
        page.blank();
        page.heading("Warnings");
        for warning in &report.warnings {
            page.line(&format!("  {}", control(warning)));
        }
    }
}
