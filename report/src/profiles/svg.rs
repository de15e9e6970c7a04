//! The profiles that matter as pictures: the histogram of each, and over time where there are segments.

use darc_analysis::{Hz, Resolution};

use super::heat::Heat;
use super::{FunctionProfile, ProfileSet, Segment, assemble, matter};
use crate::markup::Markup;
use crate::svg::{self, HEIGHT, LEFT, RIGHT, STYLE, WIDTH};
use crate::words;

/// Pixels of a row of the heat map, and of its title and axis.
const ROW: f64 = 14.0;
const TITLE: f64 = 34.0;
const AXIS: f64 = 36.0;
/// More columns than pixels are not seen.
const COLUMNS: usize = 600;
/// Shades of a cell.
const LEVELS: usize = 9;

/// The set as an SVG document.
#[must_use]
pub fn render(set: &ProfileSet) -> String {
    let hz = Hz::new(set.clock.hz);
    let mut figures: Vec<(Markup, f64)> = Vec::new();
    for entry in matter(set) {
        let title = format!("Latency of {}", entry.function.name);
        let peaks = assemble::entries(&entry.peaks);
        let histogram = svg::figure(&title, &entry.profile, &peaks, hz);
        figures.push((histogram, HEIGHT));
        figures.extend(heat_figure(entry, &set.segments, hz));
    }
    let mut page = Markup::default();
    let height = figures.iter().map(|(_, height)| height).sum::<f64>();
    page.raw("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    svg::open(&mut page, height.max(TITLE), "Latency profiles");
    page.raw("<style>")
        .raw(STYLE)
        .raw("svg{background:var(--paper)}</style>\n");
    if figures.is_empty() {
        page.raw("<text x=\"16\" y=\"22\">no call was measured</text>\n");
    }
    let mut y = 0.0;
    for (figure, height) in figures {
        page.raw("<g transform=\"translate(0 ")
            .number(y)
            .raw(")\">\n");
        page.markup(figure).raw("</g>\n");
        y += height;
    }
    page.raw("</svg>\n");
    page.finish()
}

/// The heat map of a function as an element of a page that has [`STYLE`].
pub fn heat_element(
    entry: &FunctionProfile,
    segments: &[Segment],
    hz: Option<Hz>,
) -> Option<Markup> {
    let (figure, height) = heat_figure(entry, segments, hz)?;
    let mut page = Markup::default();
    let title = format!("Latency of {} over time", entry.function.name);
    svg::open(&mut page, height, &title);
    page.markup(figure).raw("</svg>\n");
    Some(page)
}

fn heat_figure(
    entry: &FunctionProfile,
    segments: &[Segment],
    hz: Option<Hz>,
) -> Option<(Markup, f64)> {
    let heat = Heat::of(entry, segments, COLUMNS)?;
    let resolution = Resolution::new(entry.profile.resolution)?;
    let mut page = Markup::default();
    let title = format!("Latency of {} over time", entry.function.name);
    page.raw("<text class=\"title\" x=\"")
        .number(LEFT)
        .raw("\" y=\"20\">");
    page.text(svg::shortened(&title)).raw("</text>\n");
    let end = heat
        .columns
        .last()
        .map_or(1, |last| last.start.saturating_add(last.length));
    let x = |cycles: u64| LEFT + (RIGHT - LEFT) * cycles as f64 / end.max(1) as f64;
    let bottom = TITLE + ROW * heat.rows() as f64;
    let y = |row: usize| bottom - ROW * (row as f64 + 1.0);
    for column in &heat.columns {
        let (left, right) = (
            x(column.start),
            x(column.start.saturating_add(column.length)),
        );
        for row in 0..heat.rows() {
            let level = heat.level(column, row, LEVELS);
            if level == 0 {
                continue;
            }
            // A colour for all, its strength by the count: one hue is read in any kind of colour vision.
            page.raw("<rect class=\"f1\" fill-opacity=\"")
                .text(format!("{:.2}", level as f64 / LEVELS as f64))
                .raw("\" x=\"")
                .number(left)
                .raw("\" y=\"")
                .number(y(row));
            page.raw("\" width=\"")
                .number((right - left).max(0.5))
                .raw("\" height=\"")
                .number(ROW);
            page.raw("\"><title>")
                .text(format!(
                    "{} calls, from {} on",
                    column.ops[row],
                    words::time(hz, column.start)
                ))
                .raw("</title></rect>\n");
        }
    }
    let every = heat.rows().div_ceil(12);
    for row in (0..heat.rows()).step_by(every) {
        let bucket = heat.first_bucket.saturating_add(row as u32);
        let Some((first, _)) = resolution.bounds(bucket) else {
            continue;
        };
        page.raw("<text text-anchor=\"end\" x=\"")
            .number(LEFT - 6.0)
            .raw("\" y=\"")
            .number(y(row) + ROW);
        page.raw("\">")
            .text(words::time(hz, first.0))
            .raw("</text>\n");
    }
    page.raw("<line class=\"axis\" x1=\"")
        .number(LEFT)
        .raw("\" x2=\"")
        .number(RIGHT);
    page.raw("\" y1=\"")
        .number(bottom)
        .raw("\" y2=\"")
        .number(bottom)
        .raw("\"/>\n");
    for (cycles, anchor) in [(0, "start"), (end / 2, "middle"), (end, "end")] {
        page.raw("<text text-anchor=\"")
            .raw(anchor)
            .raw("\" x=\"")
            .number(x(cycles).min(WIDTH))
            .raw("\" y=\"")
            .number(bottom + 18.0);
        page.raw("\">")
            .text(words::time(hz, cycles))
            .raw("</text>\n");
    }
    Some((page, bottom + AXIS))
}
