//! The histogram as a picture: logarithmic axes, each peak in a colour and with its number, latencies in
//! time below and in cycles above.

use darc_analysis::{Hz, Nanos, Resolution, Ticks};

use super::markup::Markup;
use super::model::{PeakEntry, ProfileTable, Report};
use super::words;

/// The picture's size in pixels, before it is scaled.
pub(super) const WIDTH: f64 = 800.0;
pub(super) const HEIGHT: f64 = 330.0;
/// Where the bars stand.
pub(super) const LEFT: f64 = 70.0;
pub(super) const RIGHT: f64 = WIDTH - 20.0;
const TOP: f64 = 70.0;
const BOTTOM: f64 = HEIGHT - 50.0;
/// How many colours there are; further peaks begin again with the first.
const COLOURS: u32 = 6;
/// Two labels need this much room beside each other.
const LABEL: f64 = 52.0;

/// Colours that are told apart with any kind of colour vision (Okabe and Ito), on white and on black.
pub(super) const STYLE: &str = "
:root{--ink:#1b1b1b;--paper:#fff;--faint:#6b6b6b;--line:#d8d8d8;--c0:#9a9a9a;--c1:#0072b2;--c2:#d55e00;--c3:#009e73;--c4:#b0488a;--c5:#b07d00;--c6:#3d8fc0}
@media (prefers-color-scheme:dark){:root{--ink:#e8e8e8;--paper:#16181c;--faint:#9a9a9a;--line:#3a3e46;--c0:#808080;--c1:#56b4e9;--c2:#f08a45;--c3:#35c79a;--c4:#e09cc4;--c5:#e6b93c;--c6:#8fc7ea}}
@media print{:root{--ink:#000;--paper:#fff;--faint:#555;--line:#ccc;--c0:#9a9a9a;--c1:#0072b2;--c2:#d55e00;--c3:#009e73;--c4:#b0488a;--c5:#b07d00;--c6:#3d8fc0}}
.plot text{font:12px system-ui,sans-serif;fill:var(--ink)}.plot .title{font-weight:600;font-size:14px}.plot .unit{fill:var(--faint)}
.plot line{stroke:var(--line)}.plot .axis{stroke:var(--faint)}
.plot .f0{fill:var(--c0)}.plot .f1{fill:var(--c1)}.plot .f2{fill:var(--c2)}.plot .f3{fill:var(--c3)}.plot .f4{fill:var(--c4)}.plot .f5{fill:var(--c5)}.plot .f6{fill:var(--c6)}
";

/// The report's histograms as an SVG document.
#[must_use]
pub fn render(report: &Report) -> String {
    let hz = Hz::new(report.clock.hz);
    let mut figures = Vec::new();
    if report.profile.ops > 0 || report.focus.is_empty() {
        let title = format!("Latency of {}", report.f0.name);
        figures.push(figure(&title, &report.profile, &report.peaks, hz));
    }
    for focus in &report.focus {
        let title = format!("Latency of {}", focus.path.join(" → "));
        figures.push(figure(&title, &focus.profile, &focus.peaks, hz));
    }
    let mut page = Markup::default();
    let height = HEIGHT * figures.len() as f64;
    page.raw("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    open(&mut page, height, &format!("Latency of {}", report.f0.name));
    page.raw("<style>")
        .raw(STYLE)
        .raw("svg{background:var(--paper)}</style>\n");
    for (number, figure) in figures.into_iter().enumerate() {
        page.raw("<g transform=\"translate(0 ")
            .number(HEIGHT * number as f64)
            .raw(")\">\n");
        page.markup(figure).raw("</g>\n");
    }
    page.raw("</svg>\n");
    page.finish()
}

/// One histogram, as an element of an HTML page that has [`STYLE`].
pub(super) fn element(
    title: &str,
    profile: &ProfileTable,
    peaks: &[PeakEntry],
    hz: Option<Hz>,
) -> Markup {
    let mut page = Markup::default();
    open(&mut page, HEIGHT, title);
    page.markup(figure(title, profile, peaks, hz))
        .raw("</svg>\n");
    page
}

pub(super) fn open(page: &mut Markup, height: f64, title: &str) {
    page.raw(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"plot\" role=\"img\" viewBox=\"0 0 ",
    );
    page.number(WIDTH)
        .raw(" ")
        .number(height)
        .raw("\" aria-label=\"")
        .text(title)
        .raw("\">\n");
}

/// The number of a peak's colour; 0 is for ops of no peak.
pub(super) fn colour(peak: Option<u32>) -> u32 {
    peak.map_or(0, |peak| peak.saturating_sub(1) % COLOURS + 1)
}

/// Where latencies and counts are in the picture.
struct Scale {
    resolution: Resolution,
    /// The leftmost and rightmost bucket shown.
    first: u32,
    last: u32,
    /// log10 of the count at the top; the axis begins at half an op.
    highest: f64,
}

impl Scale {
    fn of(profile: &ProfileTable) -> Option<Scale> {
        let resolution = Resolution::new(profile.resolution).unwrap_or_default();
        let (first, last) = (profile.buckets.first()?, profile.buckets.last()?);
        let most = profile.buckets.iter().map(|entry| entry.ops).max()?;
        Some(Scale {
            resolution,
            first: first.bucket.saturating_sub(resolution.get()),
            last: last.bucket.saturating_add(resolution.get()),
            // Room for a label above the highest bar.
            highest: (most.max(10) as f64).log10() * 1.1 + 0.05,
        })
    }

    /// The left edge of a bucket, or of a fraction of one.
    fn x(&self, bucket: f64) -> f64 {
        let buckets = f64::from(self.last) + 1.0 - f64::from(self.first);
        LEFT + (RIGHT - LEFT) * (bucket - f64::from(self.first)) / buckets
    }

    /// Where a latency is; `None` outside of the picture.
    fn x_of(&self, cycles: f64) -> Option<f64> {
        let x = self.x(cycles.log2() * f64::from(self.resolution.get()));
        (LEFT..=RIGHT).contains(&x).then_some(x)
    }

    fn y(&self, ops: f64) -> f64 {
        let lowest = 0.5_f64.log10();
        BOTTOM - (BOTTOM - TOP) * (ops.log10() - lowest) / (self.highest - lowest)
    }

    /// Latencies at both edges, in cycles.
    fn edges(&self) -> (f64, f64) {
        let at = |bucket: f64| f64::exp2(bucket / f64::from(self.resolution.get()));
        (at(f64::from(self.first)), at(f64::from(self.last) + 1.0))
    }
}

/// One histogram, without the element around it.
pub(super) fn figure(
    title: &str,
    profile: &ProfileTable,
    peaks: &[PeakEntry],
    hz: Option<Hz>,
) -> Markup {
    let mut page = Markup::default();
    page.raw("<text class=\"title\" x=\"")
        .number(LEFT)
        .raw("\" y=\"20\">");
    page.text(shortened(title)).raw("</text>\n");
    let Some(scale) = Scale::of(profile) else {
        page.raw("<text class=\"unit\" x=\"")
            .number(LEFT)
            .raw("\" y=\"50\">no op completed</text>\n");
        return page;
    };
    count_axis(&mut page, &scale);
    latency_axes(&mut page, &scale, hz);
    bars(&mut page, &scale, profile, peaks, hz);
    labels(&mut page, &scale, profile, peaks);
    page
}

/// A title that is no wider than the picture.
pub(super) fn shortened(title: &str) -> String {
    const LONGEST: usize = 90;
    match title.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &title[..end]),
        None => title.to_owned(),
    }
}

fn count_axis(page: &mut Markup, scale: &Scale) {
    let mut count = 1_u64;
    while (count as f64).log10() <= scale.highest + 1e-9 {
        let y = scale.y(count as f64);
        page.raw("<line x1=\"")
            .number(LEFT)
            .raw("\" x2=\"")
            .number(RIGHT);
        page.raw("\" y1=\"")
            .number(y)
            .raw("\" y2=\"")
            .number(y)
            .raw("\"/>");
        page.raw("<text text-anchor=\"end\" x=\"")
            .number(LEFT - 8.0)
            .raw("\" y=\"")
            .number(y + 4.0);
        page.raw("\">").text(short(count)).raw("</text>\n");
        match count.checked_mul(10) {
            Some(next) => count = next,
            None => break,
        }
    }
    page.raw("<text class=\"unit\" text-anchor=\"middle\" transform=\"translate(16 ");
    page.number((TOP + BOTTOM) / 2.0)
        .raw(") rotate(-90)\">ops</text>\n");
}

fn latency_axes(page: &mut Markup, scale: &Scale, hz: Option<Hz>) {
    for y in [TOP, BOTTOM] {
        page.raw("<line class=\"axis\" x1=\"")
            .number(LEFT)
            .raw("\" x2=\"")
            .number(RIGHT);
        page.raw("\" y1=\"")
            .number(y)
            .raw("\" y2=\"")
            .number(y)
            .raw("\"/>\n");
    }
    let (lowest, highest) = scale.edges();
    for cycles in round_values(lowest, highest) {
        tick(page, scale, cycles, TOP - 8.0, &short(cycles as u64));
    }
    unit(page, TOP - 8.0, "cycles");
    let Some(hz) = hz else { return };
    let nanos = 1e9 / hz.get() as f64;
    for time in round_values(lowest * nanos, highest * nanos) {
        let label = Nanos(time).to_string().replace(".0 ", " ");
        tick(page, scale, time / nanos, BOTTOM + 18.0, &label);
    }
    unit(page, BOTTOM + 38.0, "latency");
}

fn unit(page: &mut Markup, y: f64, unit: &'static str) {
    let (x, anchor) = if y < TOP {
        (LEFT - 8.0, "end")
    } else {
        ((LEFT + RIGHT) / 2.0, "middle")
    };
    page.raw("<text class=\"unit\" text-anchor=\"")
        .raw(anchor)
        .raw("\" x=\"")
        .number(x);
    page.raw("\" y=\"")
        .number(y)
        .raw("\">")
        .raw(unit)
        .raw("</text>\n");
}

fn tick(page: &mut Markup, scale: &Scale, cycles: f64, y: f64, label: &str) {
    let Some(x) = scale.x_of(cycles) else { return };
    let edge = if y < TOP { TOP } else { BOTTOM };
    let outside = if y < TOP { TOP - 5.0 } else { BOTTOM + 5.0 };
    page.raw("<line class=\"axis\" x1=\"")
        .number(x)
        .raw("\" x2=\"")
        .number(x);
    page.raw("\" y1=\"")
        .number(edge)
        .raw("\" y2=\"")
        .number(outside)
        .raw("\"/>");
    page.raw("<text text-anchor=\"middle\" x=\"")
        .number(x)
        .raw("\" y=\"")
        .number(y);
    page.raw("\">").text(label).raw("</text>\n");
}

/// Powers of ten from `lowest` to `highest`; where those are few, twice and five times them too; and where they are
/// many, every third only.
fn round_values(lowest: f64, highest: f64) -> Vec<f64> {
    let lowest = lowest.max(1e-3);
    let decades = (highest / lowest).log10();
    let steps: &[f64] = if decades < 3.0 {
        &[1.0, 2.0, 5.0]
    } else {
        &[1.0]
    };
    let every = if decades > 9.0 { 3 } else { 1 };
    let first = lowest.log10().floor() as i32;
    (first..=first + decades.ceil() as i32 + 1)
        .filter(|exponent| exponent % every == 0)
        .flat_map(|exponent| steps.iter().map(move |step| step * 10_f64.powi(exponent)))
        .filter(|value| (lowest..=highest).contains(value))
        .collect()
}

/// A count with a prefix of the SI: `200`, `2k`, `50M`.
fn short(count: u64) -> String {
    let prefixes = ["", "k", "M", "G", "T", "P", "E"];
    let (mut value, mut prefix) = (count, 0);
    while value >= 1_000 && value % 1_000 == 0 && prefix + 1 < prefixes.len() {
        value /= 1_000;
        prefix += 1;
    }
    format!("{value}{}", prefixes[prefix])
}

fn peak_of(peaks: &[PeakEntry], bucket: u32) -> Option<u32> {
    let peak = peaks
        .iter()
        .find(|peak| (peak.first_bucket..=peak.last_bucket).contains(&bucket));
    peak.map(|peak| peak.peak)
}

fn bars(
    page: &mut Markup,
    scale: &Scale,
    profile: &ProfileTable,
    peaks: &[PeakEntry],
    hz: Option<Hz>,
) {
    for entry in &profile.buckets {
        let peak = peak_of(peaks, entry.bucket);
        let (left, right) = (
            scale.x(entry.bucket.into()),
            scale.x(f64::from(entry.bucket) + 1.0),
        );
        let gap = ((right - left) / 10.0).min(2.0);
        let y = scale.y(entry.ops as f64);
        page.raw("<rect class=\"f")
            .number(colour(peak))
            .raw("\" x=\"")
            .number(left + gap / 2.0);
        page.raw("\" y=\"")
            .number(y)
            .raw("\" width=\"")
            .number(right - left - gap);
        page.raw("\" height=\"")
            .number(BOTTOM - y)
            .raw("\"><title>");
        match peak {
            Some(peak) => page.raw("peak ").number(peak),
            None => page.raw("no peak"),
        };
        let (first, last) = scale
            .resolution
            .bounds(entry.bucket)
            .unwrap_or((Ticks(0), Ticks(0)));
        // All that is shorter than can be told is in this bucket, too.
        let is_untold = profile.told_from.is_some_and(|from| from > first.0);
        if hz.is_some() {
            match is_untold {
                true => page.raw(", below "),
                false => page.raw(", ").text(words::time(hz, first.0)).raw(" to "),
            };
            page.text(words::time(hz, last.0.saturating_add(1)));
        }
        page.raw(" (")
            .number(if is_untold { 0 } else { first.0 })
            .raw(" to ")
            .number(last.0)
            .raw(" cycles): ");
        page.number(entry.ops).raw(" ops</title></rect>\n");
    }
}

/// The number of each peak above its highest bar.
fn labels(page: &mut Markup, scale: &Scale, profile: &ProfileTable, peaks: &[PeakEntry]) {
    let mut placed: Vec<(f64, f64)> = Vec::new();
    for peak in peaks {
        let range = peak.first_bucket..=peak.last_bucket;
        let inside = profile
            .buckets
            .iter()
            .filter(|entry| range.contains(&entry.bucket));
        let Some(top) = inside.max_by_key(|entry| entry.ops) else {
            continue;
        };
        let x = scale.x(f64::from(top.bucket) + 0.5);
        let mut y = scale.y(top.ops as f64) - 5.0;
        // Labels of neighbours stand above one another. Above the picture there is room for two.
        let meets = |&(other_x, other_y): &(f64, f64), y: f64| {
            (other_x - x).abs() < LABEL && (other_y - y).abs() < 13.0
        };
        while placed.iter().any(|other| meets(other, y)) && y > TOP - 20.0 {
            y -= 13.0;
        }
        placed.push((x, y));
        page.raw("<text class=\"f").number(colour(Some(peak.peak)));
        page.raw("\" text-anchor=\"middle\" font-weight=\"600\" x=\"")
            .number(x)
            .raw("\" y=\"")
            .number(y);
        page.raw("\">peak ").number(peak.peak).raw("</text>\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[test]
    fn axes_have_round_figures() {
        assert_eq!(round_values(900.0, 2_000_000.0), [1e3, 1e4, 1e5, 1e6]);
        assert_eq!(round_values(90.0, 1_500.0), [100.0, 200.0, 500.0, 1_000.0]);
        assert_eq!(
            [short(1), short(20_000), short(1_500)],
            ["1", "20k", "1500"]
        );
    }

    #[test]
    fn everything_stays_inside_of_the_picture() {
        for resolution in [1, 16] {
            let mut report = fixture::report(30_000);
            report.profile.resolution = resolution;
            for entry in &mut report.profile.buckets {
                entry.bucket *= resolution;
            }
            let scale = Scale::of(&report.profile).unwrap();
            for entry in &report.profile.buckets {
                let x = scale.x(entry.bucket.into());
                assert!((LEFT..RIGHT).contains(&x), "{x}");
                assert!((TOP..BOTTOM).contains(&scale.y(entry.ops as f64)));
            }
        }
    }

    #[test]
    fn what_is_too_short_to_be_told_is_one_bar_without_a_beginning() {
        let mut report = fixture::report(30_000);
        let first = report.profile.buckets[0].bucket;
        let (begin, end) = Resolution::default().bounds(first).unwrap();
        assert!(!render(&report).contains("below"));
        report.profile.told_from = Some(end.0);
        let picture = render(&report);
        assert_eq!(picture.matches(", below ").count(), 1);
        assert!(picture.contains(&format!(" (0 to {} cycles)", end.0)));
        assert!(!picture.contains(&format!(" ({} to {} cycles)", begin.0, end.0)));
    }

    #[test]
    fn hostile_names_and_figures_make_no_markup() {
        let mut report = fixture::report(30_000);
        report.f0.name = "</svg><script>x\u{0}\"".to_owned();
        report.clock.hz = u64::MAX;
        let last = report.profile.buckets.last_mut().unwrap();
        (last.bucket, last.ops) = (63, u64::MAX);
        let text = render(&report);
        assert!(!text.contains("<script"));
        assert!(!text.contains("NaN") && !text.contains("inf"));
        assert_eq!(text.matches("</svg>").count(), 1);
    }

    #[test]
    fn an_empty_profile_is_said_to_be_empty() {
        assert!(render(&fixture::report(0)).contains("no op completed"));
    }
}
