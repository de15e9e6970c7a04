//! The difference for people.

use darc_analysis::{Hz, Resolution};

use super::{BucketPair, Cause, Change, Difference, Method, Pair, PeakDifference, Totals, hz};
use crate::escape::control;
use crate::text::{Color, Style};
use crate::words::{path, percent, time};

/// So many pairs are shown with their histograms, the others by their rating.
const MOST_WHOLE: usize = 10;

/// So many causes of a peak are told.
const MOST_CAUSES: usize = 3;

/// The whole comparison, ending with a newline.
#[must_use]
pub fn render(difference: &Difference, style: Style<'_>) -> String {
    let mut page = Page {
        text: String::new(),
        style,
        hz: hz(difference),
    };
    let files = [&difference.before.file, &difference.after.file].map(|file| control(file));
    page.heading(&format!("From {} to {}", files[0], files[1]));
    let (whole, rest) = difference
        .pairs
        .split_at(difference.pairs.len().min(MOST_WHOLE));
    for pair in whole {
        page.line("");
        page.pair(pair, difference.method);
    }
    if !rest.is_empty() {
        page.line("");
        page.heading("Rated lower");
    }
    for pair in rest {
        let rating = pair
            .rating
            .map_or_else(|| "undefined".to_owned(), |rating| format!("{rating:.3}"));
        page.line(&format!("  {rating:>9}  {}", control(&pair.name)));
    }
    let near = "near-equal totals or less than 1% of the time";
    match (difference.pairs.len(), difference.left_out) {
        (0, 0) => page.line("  no function is in both"),
        (0, left_out) => page.line(&format!("  no difference: {left_out} with {near}")),
        (_, 0) => {}
        (_, left_out) => {
            page.line("");
            page.line(&format!("{left_out} more with {near}"));
        }
    }
    for (file, names) in [
        (&files[0], &difference.only_before),
        (&files[1], &difference.only_after),
    ] {
        for name in names {
            page.line(&format!("only in {file}: {}", control(name)));
        }
    }
    if !difference.warnings.is_empty() {
        page.line("");
        page.heading("Warnings");
        for warning in &difference.warnings {
            page.line(&format!("  {}", control(warning)));
        }
    }
    if !difference.failed_on.is_empty() {
        page.line("");
        page.line(&format!("Holds: {}", difference.failed_on.join(", ")));
    }
    page.line("");
    page.line(&verdict(difference));
    page.text
}

/// The line for who reads no other.
fn verdict(difference: &Difference) -> String {
    let changed = || difference.pairs.iter().filter(|pair| pair.changed);
    let Some(first) = changed().next() else {
        if difference.pairs.is_empty() && difference.left_out == 0 {
            return "Verdict: nothing could be compared".to_owned();
        }
        let of_all = difference.pairs.iter().flat_map(|pair| &pair.peaks);
        return match peaks(of_all) {
            None => "Verdict: no distribution has changed".to_owned(),
            Some(peaks) => format!("Verdict: no clear change: {peaks}, which may be chance"),
        };
    };
    let more = match changed().count() {
        1 => String::new(),
        count => format!(", and {} more", count - 1),
    };
    let means = [first.before, first.after].map(Totals::mean);
    let mean = match means {
        [Some(before), Some(after)] => format!(": mean latency {}", change(before, after)),
        _ => String::new(),
    };
    let p99 = [first.before, first.after].map(|side| Some(side.percentiles?.p99));
    let p99 = match p99 {
        [Some(before), Some(after)] if before.max(after) / 2 >= before.min(after) => {
            format!(", p99 {}", change(before, after))
        }
        _ => String::new(),
    };
    // By the test that --fail-on has.
    let certain = first.peaks.iter().filter(|peak| !peak.may_be_chance);
    let peaks = peaks(certain).map_or_else(String::new, |peaks| format!(", {peaks}"));
    format!(
        "Verdict: changed: {}{more}{mean}{p99}{peaks}",
        control(&first.name)
    )
}

/// How many of the peaks appeared and vanished, if any did.
fn peaks<'a>(of: impl IntoIterator<Item = &'a PeakDifference>) -> Option<String> {
    let (mut new, mut gone) = (0, 0);
    for peak in of {
        match peak.change {
            Change::Appeared => new += 1,
            Change::Vanished => gone += 1,
            Change::Moved => {}
        }
    }
    let told = |count, one: &str, many: &str| match count {
        0 => None,
        1 => Some(one.to_owned()),
        count => Some(format!("{count} {many}")),
    };
    let told = [
        told(new, "a new peak", "new peaks"),
        told(gone, "a peak vanished", "peaks vanished"),
    ];
    let told: Vec<String> = told.into_iter().flatten().collect();
    (!told.is_empty()).then(|| told.join(", "))
}

/// By how much a figure has changed: in percent of what it was, as a factor where it is ten times that or more.
fn change(before: u64, after: u64) -> String {
    let factor = after as f64 / before as f64;
    match () {
        () if before == after => "same".to_owned(),
        () if before == 0 => "new".to_owned(),
        () if factor >= 10.0 => format!("×{factor:.0}"),
        () => format!("{:+.1}%", 100.0 * (factor - 1.0)),
    }
}

struct Page<'a> {
    text: String,
    style: Style<'a>,
    hz: Option<Hz>,
}

impl Page<'_> {
    fn line(&mut self, line: &str) {
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    fn heading(&mut self, heading: &str) {
        match self.style.color {
            Color::Never => self.line(heading),
            Color::Always => self.line(&format!("\x1b[1m{heading}\x1b[0m")),
        }
    }

    fn pair(&mut self, pair: &Pair, method: Method) {
        let verdict = if pair.changed {
            "another distribution"
        } else {
            "the same distribution"
        };
        let rating = pair
            .rating
            .map_or_else(|| "undefined".to_owned(), |rating| format!("{rating:.3}"));
        let name = match method {
            Method::Emd => "Earth Mover's Distance",
            Method::ChiSquare => "chi-square",
            Method::Ops => "difference of ops",
            Method::Latency => "difference of total latency",
        };
        self.heading(&format!(
            "{}: {verdict} ({name} {rating})",
            control(&pair.name)
        ));
        let (before, after) = (pair.before, pair.after);
        let both = |figure: fn(Totals) -> Option<u64>| [figure(before), figure(after)];
        let rows = [
            ("calls", both(|side| Some(side.ops)), false),
            ("mean latency", both(Totals::mean), true),
            ("total latency", both(|side| Some(side.total)), true),
            ("p50", both(|side| Some(side.percentiles?.p50)), true),
            ("p99", both(|side| Some(side.percentiles?.p99)), true),
            ("longest", both(|side| Some(side.percentiles?.max)), true),
        ];
        self.line(&format!(
            "  {:<24}{:>12}{:>12}{:>12}",
            "", "before", "after", "change"
        ));
        for (label, [before, after], is_time) in rows {
            let (Some(before), Some(after)) = (before, after) else {
                continue;
            };
            let shown = |figure: u64| match is_time {
                true => time(self.hz, figure),
                false => figure.to_string(),
            };
            self.line(&format!(
                "  {label:<24}{:>12}{:>12}{:>12}",
                shown(before),
                shown(after),
                change(before, after)
            ));
        }
        let emd = pair
            .earth_movers_distance
            .map_or_else(|| "undefined".to_owned(), |emd| format!("{emd:.3}"));
        self.line(&format!("  {:<48}{emd:>12}", "Earth Mover's Distance"));
        self.line(&format!("  {:<48}{:>12.3}", "chi-square", pair.chi_square));
        self.buckets(pair);
        for peak in &pair.peaks {
            self.peak(peak, pair);
        }
        if pair.peaks.is_empty() {
            self.line("  peaks: as before");
        }
    }

    /// Both histograms: each side's share of its ops.
    fn buckets(&mut self, pair: &Pair) {
        let share = |ops: u64, all: u64| ops as f64 / all.max(1) as f64;
        let bar = self
            .style
            .width
            .saturating_sub(2 + 24 + 2 * 9 + 4)
            .clamp(10, 50)
            / 2;
        self.line(&format!("  {:<24}{:>9}{:>9}", "latency", "before", "after"));
        for entry in &pair.buckets {
            let before = share(entry.before, pair.before.ops);
            let after = share(entry.after, pair.after.ops);
            let length = |share: f64| {
                if share > 0.0 {
                    ((bar as f64 * share).round() as usize).max(1)
                } else {
                    0
                }
            };
            let left = format!("{:<bar$}", "░".repeat(length(before)));
            self.line(&format!(
                "  {:<24}{:>9}{:>9}  {left} {}",
                self.range([entry.bucket, entry.bucket], pair.resolution),
                percent(before),
                percent(after),
                "█".repeat(length(after))
            ));
        }
    }

    fn range(&self, [first, last]: [u32; 2], resolution: u32) -> String {
        let resolution = Resolution::new(resolution).unwrap_or_default();
        match (resolution.bounds(first), resolution.bounds(last)) {
            (Some((first, _)), Some((_, last))) => {
                format!(
                    "{} to {}",
                    time(self.hz, first.0),
                    time(self.hz, last.0.saturating_add(1))
                )
            }
            _ => format!("buckets {first} to {last}"),
        }
    }

    fn peak(&mut self, peak: &PeakDifference, pair: &Pair) {
        let range = |range: Option<[u32; 2]>| {
            range.map_or_else(String::new, |range| self.range(range, pair.resolution))
        };
        let (before, after) = (range(peak.before), range(peak.after));
        let chance = match (peak.may_be_chance, peak.before.or(peak.after)) {
            (true, Some([first, last])) => {
                let within = |entry: &&BucketPair| (first..=last).contains(&entry.bucket);
                let entries = pair.buckets.iter().filter(within);
                let [old, new] = entries.fold([0, 0], |[old, new], entry| {
                    [old + entry.before, new + entry.after]
                });
                format!(", of {old} calls before and {new} after, which may be chance")
            }
            _ => String::new(),
        };
        self.line(&match peak.change {
            Change::Appeared => format!("  a peak appeared: {after}{chance}"),
            Change::Vanished => format!("  a peak vanished: {before}{chance}"),
            Change::Moved => format!("  a peak moved: {before}, now {after}"),
        });
        let mut causes: Vec<&Cause> = peak.root_causes.iter().collect();
        causes.sort_by(|one, other| other.share_of_time.total_cmp(&one.share_of_time));
        let (told, rest) = causes.split_at(causes.len().min(MOST_CAUSES));
        for cause in told {
            self.line(&format!("    {}", path(&cause.path)));
            self.line(&format!("      {}", cause.words));
        }
        if !rest.is_empty() {
            let paths = match rest.len() {
                1 => "one more path".to_owned(),
                more => format!("{more} more paths"),
            };
            self.line(&format!("    … and {paths}: darc report --all"));
        }
    }
}
