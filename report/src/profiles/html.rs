//! The set as one HTML page that needs nothing beside itself: no script, no network, no fonts.

use darc_analysis::Hz;

use super::{FunctionProfile, ProfileSet, Source, assemble, matter, svg};
use crate::html::POLICY;
use crate::markup::Markup;
use crate::svg::{self as picture, STYLE};
use crate::words;

const LAYOUT: &str = "
body{font:15px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:60rem;margin:1.5rem auto;padding:0 1rem}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin:1.6rem 0 .4rem;overflow-wrap:anywhere}
table{border-collapse:collapse;width:100%}th,td{padding:.15rem .5rem;text-align:right;border-bottom:1px solid var(--line)}
th:last-child,td:last-child{text-align:left;overflow-wrap:anywhere}.faint{color:var(--faint)}svg{width:100%;height:auto}
a{color:inherit}section{break-inside:avoid}
";

/// The set as a page.
#[must_use]
pub fn render(set: &ProfileSet) -> String {
    let hz = Hz::new(set.clock.hz);
    let mut page = Markup::default();
    let title = match set.source {
        Source::Functions => "Latency profiles of functions",
        Source::SystemCalls => "Latency profiles of system calls",
    };
    page.raw("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    page.raw(POLICY)
        .raw("\n<meta name=\"viewport\" content=\"width=device-width\">\n<title>")
        .raw(title)
        .raw("</title>\n<style>")
        .raw(STYLE)
        .raw(LAYOUT)
        .raw("</style>\n</head>\n<body>\n<h1>")
        .raw(title)
        .raw("</h1>\n<p>");
    page.words(words::target(&set.target))
        .raw("<br><span class=\"faint\">")
        .text(format!(
            "{} measured, {} called",
            words::time(hz, set.measured),
            set.profiles.len()
        ))
        .raw("</span></p>\n");
    match set.profiles.is_empty() {
        true => drop(page.raw("<p>No call was measured.</p>\n")),
        false => table(&mut page, set, hz),
    }
    for (number, entry) in (1_u32..).zip(matter(set)) {
        section(&mut page, number, entry, set, hz);
    }
    notes(&mut page, set);
    page.raw("<footer><p class=\"faint\">darc ").text(&set.darc);
    page.raw("</p></footer>\n</body>\n</html>\n");
    page.finish()
}

fn table(page: &mut Markup, set: &ProfileSet, hz: Option<Hz>) {
    let all = set
        .profiles
        .iter()
        .fold(0_u64, |sum, entry| sum.saturating_add(entry.profile.total));
    let shown = matter(set).count();
    page.raw("<table>\n<thead><tr><th>calls</th><th>total</th><th>share</th><th>mean</th><th>max</th><th>concurrency</th><th>function</th></tr></thead>\n<tbody>\n");
    for (number, entry) in (1_usize..).zip(&set.profiles) {
        let total = entry.profile.total;
        let mean = total.checked_div(entry.profile.ops);
        page.raw("<tr>");
        for cell in [
            entry.calls.to_string(),
            words::time(hz, total),
            words::percent(total as f64 / all.max(1) as f64),
            mean.map_or_else(|| "-".to_owned(), |mean| words::time(hz, mean)),
            words::time(hz, entry.max),
            format!("{:.3}", entry.concurrency),
        ] {
            page.raw("<td>").text(cell).raw("</td>");
        }
        page.raw("<td>");
        if number <= shown {
            page.raw("<a href=\"#f").number(number).raw("\">");
            page.text(&entry.function.name).raw("</a>");
        } else {
            page.text(&entry.function.name);
        }
        page.raw("</td></tr>\n");
    }
    page.raw("</tbody>\n</table>\n");
}

fn section(
    page: &mut Markup,
    number: u32,
    entry: &FunctionProfile,
    set: &ProfileSet,
    hz: Option<Hz>,
) {
    page.raw("<section>\n<h2 id=\"f").number(number).raw("\">");
    page.text(&entry.function.name).raw("</h2>\n");
    let place = words::source(entry.function.file.as_deref(), entry.function.line);
    if let Some(place) = place {
        page.raw("<p class=\"faint\">").words(place).raw("</p>\n");
    }
    let title = format!("Latency of {}", entry.function.name);
    let peaks = assemble::entries(&entry.peaks);
    page.markup(picture::element(&title, &entry.profile, &peaks, hz));
    if let Some(heat) = svg::heat_element(entry, &set.segments, hz) {
        page.markup(heat);
    }
    page.raw("</section>\n");
}

fn notes(page: &mut Markup, set: &ProfileSet) {
    if !set.not_profiled.is_empty() {
        page.raw("<details><summary>")
            .number(set.not_profiled.len())
            .raw(" functions carry no probe</summary>\n<ul>\n");
        for entry in &set.not_profiled {
            page.raw("<li>")
                .text(&entry.name)
                .raw(": ")
                .text(&entry.reason)
                .raw("</li>\n");
        }
        page.raw("</ul></details>\n");
    }
    if !set.warnings.is_empty() {
        page.raw("<h2>Warnings</h2>\n<ul>\n");
        for warning in &set.warnings {
            page.raw("<li>").text(warning).raw("</li>\n");
        }
        page.raw("</ul>\n");
    }
}
