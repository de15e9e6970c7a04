//! A set of profiles for people: a table of all, then the histograms of those that matter, and over time
//! where there are segments.

use darc_analysis::Resolution;

use super::{Color, Page, Style, histogram};
use crate::escape::control;
use crate::profiles::heat::{Column, Heat};
use crate::profiles::{FunctionProfile, ProfileSet, Source, assemble, matter};
use crate::words::{self, percent};

/// Functions without a probe that are named one by one.
const FEW: usize = 5;

/// The whole set, ending with a newline.
#[must_use]
pub fn render(set: &ProfileSet, style: Style<'_>) -> String {
    let mut page = Page::new(set.clock.hz, style);
    header(&mut page, set);
    if !set.profiles.is_empty() {
        page.blank();
        table(&mut page, set);
    }
    for profile in matter(set) {
        page.blank();
        one(&mut page, profile, set);
    }
    notes(&mut page, set);
    page.text
}

fn header(page: &mut Page, set: &ProfileSet) {
    page.heading(match set.source {
        Source::Functions => "Latency profiles of functions",
        Source::SystemCalls => "Latency profiles of system calls",
    });
    page.field("target", &words::target(&set.target));
    let measured = page.time(set.measured);
    page.field("measured", &measured);
    let calls = set
        .profiles
        .iter()
        .fold(0_u64, |sum, profile| sum.saturating_add(profile.calls));
    let what = match (set.source, set.profiles.len()) {
        (Source::Functions, 1) => "function",
        (Source::Functions, _) => "functions",
        (Source::SystemCalls, 1) => "system call",
        (Source::SystemCalls, _) => "system calls",
    };
    let plural = if calls == 1 { "" } else { "s" };
    let mut seen = format!("{} {what} called, {calls} call{plural}", set.profiles.len());
    if set.never_called > 0 {
        seen.push_str(&format!(", {} never called", set.never_called));
    }
    page.field("seen", &seen);
}

fn table(page: &mut Page, set: &ProfileSet) {
    let all = set.profiles.iter().fold(0_u64, |sum, profile| {
        sum.saturating_add(profile.profile.total)
    });
    page.heading(&format!(
        "  {:>12}  {:>8}  {:>6}  {:>8}  {:>8}  {:>9}  function",
        "calls", "total", "share", "mean", "max", "concurr."
    ));
    let room = page.columns().saturating_sub(65).max(20);
    for entry in &set.profiles {
        let (ops, total) = (entry.profile.ops, entry.profile.total);
        let mean = total
            .checked_div(ops)
            .map_or_else(|| "-".to_owned(), |mean| page.time(mean));
        let max = match ops {
            0 => "-".to_owned(),
            _ => page.time(entry.max),
        };
        let row = format!(
            "  {:>12}  {:>8}  {:>6}  {mean:>8}  {max:>8}  {:>9.3}  {}",
            entry.calls,
            page.time(total),
            percent(total as f64 / all.max(1) as f64),
            entry.concurrency,
            page.fitted(&control(&entry.function.name), page.room(room))
        );
        page.line(&row);
    }
}

fn one(page: &mut Page, entry: &FunctionProfile, set: &ProfileSet) {
    let mut title = control(&entry.function.name).into_owned();
    let place = words::source(entry.function.file.as_deref(), entry.function.line);
    if let Some(place) = place {
        title.push_str(&format!("  {place}"));
    }
    page.heading(&title);
    let odd = [
        (entry.unfinished, "not returned yet"),
        (entry.ended_otherwise, "ended otherwise than by returning"),
        (
            entry.missed,
            "too deep in recursion, or made by an unwinder: not timed",
        ),
    ];
    for (number, what) in odd.into_iter().filter(|&(number, _)| number > 0) {
        page.line(&format!("  {number} of {} calls {what}", entry.calls));
    }
    if entry.profile.ops > 0 {
        histogram::buckets(page, &entry.profile, &assemble::entries(&entry.peaks));
    }
    // Left of the picture stand latencies.
    let width = page.columns().saturating_sub(20).clamp(10, 100);
    if let Some(heat) = Heat::of(entry, &set.segments, width) {
        heat_map(page, &heat, entry.profile.resolution);
    }
}

/// Unicode shades, or a ramp of colours (xterm's 256, from blue to red) where escape sequences are understood.
fn heat_map(page: &mut Page, heat: &Heat, resolution: u32) {
    const SHADES: [char; 5] = [' ', '░', '▒', '▓', '█'];
    const RAMP: [u8; 9] = [17, 19, 26, 31, 36, 106, 178, 208, 196];
    let resolution = Resolution::new(resolution).unwrap_or_default();
    let each = heat.columns.first().map_or(0, |column| column.length);
    let line = format!(
        "  over time, {} a column; darker: more calls (logarithmic)",
        page.time(each)
    );
    page.line(&line);
    for row in (0..heat.rows()).rev() {
        let bucket = heat.first_bucket.saturating_add(row as u32);
        let Some((first, _)) = resolution.bounds(bucket) else {
            continue;
        };
        let cell = |column: &Column| match page.color {
            Color::Never => SHADES[heat.level(column, row, SHADES.len() - 1)].to_string(),
            Color::Always => match heat.level(column, row, RAMP.len()) {
                0 => " ".to_owned(),
                level => format!("\x1b[48;5;{}m \x1b[0m", RAMP[level - 1]),
            },
        };
        let cells: String = heat.columns.iter().map(cell).collect();
        let line = format!("  {:>12} │{cells}", format!("≥ {}", page.time(first.0)));
        page.line(&line);
    }
    let end = heat
        .columns
        .last()
        .map_or(0, |last| last.start.saturating_add(last.length));
    let end = page.time(end);
    let width = heat.columns.len();
    page.line(&format!("  {:>12} └{}", "", "─".repeat(width)));
    let start = "0";
    let gap = width.saturating_sub(end.chars().count() + start.len());
    page.line(&format!("  {:>12}  {start}{}{end}", "", " ".repeat(gap)));
}

fn notes(page: &mut Page, set: &ProfileSet) {
    if set.source == Source::Functions {
        page.blank();
        page.heading("Probes");
        let cost = format!(
            "{} inside and {} outside of each call, taken out",
            page.time(set.cost_inside),
            page.time(set.cost_outside)
        );
        page.field("cost", &cost);
    }
    if let Some(pauses) = set.pauses {
        let text = format!(
            "{} times for {} (median), {} at most",
            pauses.count,
            words::microseconds(pauses.p50_us),
            words::microseconds(pauses.max_us)
        );
        page.field("stopped", &text);
        let differing = set.bytes_differing_after_detach;
        page.field("text", &format!("{differing} bytes differ after detach"));
    }
    if !set.not_profiled.is_empty() {
        let count = set.not_profiled.len();
        page.field("left out", &format!("{count} functions carry no probe"));
        for entry in set.not_profiled.iter().take(FEW) {
            page.line(&format!(
                "    {}: {}",
                control(&entry.name),
                control(&entry.reason)
            ));
        }
        if count > FEW {
            page.line(&format!("    … and {} more", count - FEW));
        }
    }
    if !set.warnings.is_empty() {
        page.blank();
        page.heading("Warnings");
        for warning in &set.warnings {
            page.line(&format!("  {}", control(warning)));
        }
    }
}
