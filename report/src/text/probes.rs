//! What the measuring did to the target, and what the person should know.

use super::{Page, Rows};
use crate::escape::control;
use crate::model::{Probes, Report};
use crate::words::{self, microseconds};

pub(super) fn write(page: &mut Page, report: &Report) {
    probes(page, &report.probes);
    if !report.warnings.is_empty() {
        page.blank();
        page.heading("Warnings");
        for warning in &report.warnings {
            page.line(&format!("  {}", control(warning)));
        }
    }
}

/// Everything, where all is wanted. Otherwise only what is missing in the results, or was not put back.
fn probes(page: &mut Page, probes: &Probes) {
    let is_all = page.rows == Rows::All;
    let is_lost = probes.dropped > 0 || probes.ended_otherwise > 0;
    let is_changed = probes.bytes_differing_after_detach > 0;
    if !(is_all || is_lost || is_changed || !probes.skipped.is_empty()) {
        return;
    }
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
    if is_lost && !is_all {
        page.field("records", &words::records(probes));
    }
    if is_changed && !is_all {
        page.field("code", &words::restored(probes));
    }
    if !is_all {
        return;
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
}
