//! The report as one HTML page that needs nothing beside itself: no script, no network, no fonts.
//!
//! It is read with a mouse, with the keyboard alone (everything that opens is a `details` element), on
//! paper, and in light or dark. A content security policy forbids what the page does not need, should
//! a name ever become markup.

mod causes;
mod contrast;
mod flame;
mod ftree;
mod handover;
mod proof;
mod time;

use darc_analysis::{Hz, Resolution};

use crate::contrast::{Rows, tree};
use crate::escape::control;
use crate::markup::Markup;
use crate::model::{FtreeNode, PeakEntry, ProfileTable, Report, ValueContrast};
use crate::next;
use crate::telling::in_words;
use crate::text::Style;
use crate::{answer, outcome, svg, words};

pub(super) const POLICY: &str = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">";

/// The report as a page.
#[must_use]
pub fn render(report: &Report, style: Style<'_>) -> String {
    let mut page = Page {
        markup: Markup::default(),
        hz: Hz::new(report.clock.hz),
        rows: style.rows,
    };
    page.head(report);
    page.header(report);
    page.raw("<main>\n");
    if let Some(table) = &report.time {
        page.time_section(table);
    }
    if report.profile.ops > 0 || report.time.is_none() {
        page.analysis(&Analysis {
            prefix: Prefix::F0,
            title: format!("Latency of {}", report.f0.name),
            profile: &report.profile,
            peaks: &report.peaks,
            ftree: &report.ftree,
            values: &report.values,
        });
    }
    for (number, focus) in (1_u32..).zip(&report.focus) {
        page.raw("<section><h2 id=\"below-")
            .number(number)
            .raw(match focus.handover {
                Some(_) => "\">Served by <span class=\"name\">",
                None => "\">Below <span class=\"name\">",
            });
        page.words(words::path(&focus.path)).raw("</span></h2>\n");
        match &focus.handover {
            Some(handover) => page.handover(handover, &report.peaks),
            None => {
                page.raw("<p>").text(words::percent(focus.share_of_time));
                page.raw(" of the time, ").number(focus.calls);
                page.raw(" calls</p>");
            }
        }
        page.raw("</section>\n");
        page.analysis(&Analysis {
            prefix: Prefix::Below(number),
            title: format!("Latency of {}", focus.path.join(" → ")),
            profile: &focus.profile,
            peaks: &focus.peaks,
            ftree: &focus.ftree,
            values: &focus.values,
        });
    }
    page.proofs(&report.proofs, &report.effects);
    page.probes(report);
    page.next(report, style.file);
    page.raw("</main>\n<footer><p class=\"place\">darc ")
        .text(&report.darc);
    page.raw("</p></footer>\n</body>\n</html>\n");
    page.markup.finish()
}

/// What the ids of an analysis' sections begin with.
#[derive(Clone, Copy)]
enum Prefix {
    F0,
    Below(u32),
}

/// One profile with what was found about it.
struct Analysis<'a> {
    prefix: Prefix,
    title: String,
    profile: &'a ProfileTable,
    peaks: &'a [PeakEntry],
    ftree: &'a FtreeNode,
    values: &'a [ValueContrast],
}

/// The page, how cycles become time, and which rows the table of calls has.
struct Page {
    markup: Markup,
    hz: Option<Hz>,
    rows: Rows,
}

impl std::ops::Deref for Page {
    type Target = Markup;

    fn deref(&self) -> &Markup {
        &self.markup
    }
}

impl std::ops::DerefMut for Page {
    fn deref_mut(&mut self) -> &mut Markup {
        &mut self.markup
    }
}

impl Page {
    fn time(&self, cycles: u64) -> String {
        words::time(self.hz, cycles)
    }

    fn head(&mut self, report: &Report) {
        self.raw("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
        self.raw("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n")
            .raw(POLICY);
        self.raw("\n<meta name=\"color-scheme\" content=\"light dark\">\n<title>Latency of ");
        self.text(&report.f0.name)
            .raw("</title>\n<style>")
            .raw(svg::STYLE);
        self.raw(include_str!("page.css"))
            .raw("</style>\n</head>\n<body>\n");
    }

    fn header(&mut self, report: &Report) {
        self.raw("<header>\n<h1>Latency of <span class=\"name\">")
            .text(&report.f0.name)
            .raw("</span></h1>\n<dl>\n");
        self.field("target", &words::target(&report.target));
        let f0 = &report.f0;
        let place = format!("{}+{:#x}", control(&f0.module), f0.offset);
        self.field(
            "defined at",
            &match words::source(f0.file.as_deref(), f0.line) {
                Some(source) => format!("{source} ({place})"),
                None => place,
            },
        );
        if let Some(futures) = &report.futures {
            self.field(
                "an op",
                &format!(
                    "{}; {}",
                    words::life(futures),
                    words::between_polls(futures)
                ),
            );
            let of = if futures.coroutines {
                "coroutines"
            } else {
                "futures"
            };
            self.field(of, &words::futures(futures));
        }
        self.field("engine", words::engine(report.engine));
        self.field("status", &outcome::outcome(report));
        let profile = &report.profile;
        self.field(
            "ops",
            &match profile.total.checked_div(profile.ops) {
                Some(mean) => format!(
                    "{}, {} each on average, {} together",
                    profile.ops,
                    self.time(mean),
                    self.time(profile.total)
                ),
                None if report.time.is_some() => "it runs all the time".to_owned(),
                None => "none completed".to_owned(),
            },
        );
        if let Some(percentiles) = words::percentiles(self.hz, profile) {
            self.field("latency", &percentiles);
        }
        if let Some(unseen) = words::unseen(profile) {
            self.field("not seen", &unseen);
        }
        if let Some(comparison) = &report.comparison {
            let verdict = if comparison.changed {
                "differs from the stored one"
            } else {
                "is like the stored one"
            };
            let distance = comparison
                .earth_movers_distance
                .map_or("undefined".to_owned(), |emd| format!("{emd:.3}"));
            self.field(
                "profile",
                &format!("{verdict} (Earth Mover's Distance {distance})"),
            );
            for change in &comparison.peaks {
                self.field("", &control(change));
            }
        }
        self.raw("</dl>\n");
        self.answers(&report.peaks, profile, &report.ftree);
        if let Some(above) = words::above(report) {
            self.raw("<p>").words(above).raw("</p>\n");
        }
        if !report.warnings.is_empty() {
            self.raw("<section class=\"warnings\" aria-labelledby=\"warnings\"><h2 id=\"warnings\">Warnings</h2>\n<ul>\n");
            for warning in &report.warnings {
                self.raw("<li>").text(warning).raw("</li>\n");
            }
            self.raw("</ul></section>\n");
        }
        self.raw("<nav aria-label=\"Sections\"><ul>\n");
        if report.time.is_some() {
            self.raw("<li><a href=\"#time\">Where the time goes</a></li>\n");
        }
        if report.profile.ops > 0 || report.time.is_none() {
            self.raw("<li><a href=\"#distribution\">Distribution</a></li>\n");
        }
        if !report.peaks.is_empty() {
            self.raw("<li><a href=\"#peaks\">Peaks and their causes</a></li>\n<li><a href=\"#contrast\">What slow ops do</a></li>\n");
            self.raw("<li><a href=\"#calls\">Calls</a></li>\n");
        }
        for (number, focus) in (1_u32..).zip(&report.focus) {
            self.raw("<li><a href=\"#below-").number(number).raw("\">");
            match focus.handover {
                Some(_) => self.raw("Handed over, and served"),
                None => self.raw("Below ").number(number),
            };
            self.raw("</a></li>\n");
        }
        if !(report.proofs.is_empty() && report.effects.is_empty()) {
            self.raw("<li><a href=\"#experiments\">Experiments</a></li>\n");
        }
        self.raw("<li><a href=\"#probes\">Probes</a></li>\n</ul></nav>\n</header>\n");
    }

    /// The answer, in a line for each peak.
    fn answers(&mut self, peaks: &[PeakEntry], profile: &ProfileTable, ftree: &FtreeNode) {
        if peaks.is_empty() {
            return;
        }
        self.raw("<ul class=\"answers\">\n");
        for peak in peaks {
            let line = answer::line(self.hz, peak, peaks, profile, ftree);
            self.raw("<li>").words(line).raw("</li>\n");
        }
        self.raw("</ul>\n");
    }

    fn field(&mut self, label: &'static str, value: &str) {
        self.raw("<dt>")
            .raw(label)
            .raw("</dt><dd>")
            .words(value)
            .raw("</dd>\n");
    }

    fn analysis(&mut self, analysis: &Analysis<'_>) {
        let hz = self.hz;
        self.section(analysis.prefix, "distribution", "Distribution");
        self.raw("<div class=\"wide\" tabindex=\"0\">");
        self.markup(svg::element(
            &analysis.title,
            analysis.profile,
            analysis.peaks,
            hz,
        ));
        self.raw("</div>\n");
        self.buckets(analysis);
        self.raw("</section>\n");
        if analysis.peaks.is_empty() {
            return;
        }
        self.section(analysis.prefix, "peaks", "Peaks and their causes");
        self.raw("<div class=\"peaks\">\n");
        let calls = tree(analysis.ftree, analysis.peaks);
        for (column, peak) in analysis.peaks.iter().enumerate() {
            self.peak(peak, analysis.profile.resolution, analysis.ftree);
            self.flame(&calls, column, analysis.peaks);
            self.raw("</details>\n");
        }
        self.raw("</div></section>\n");
        self.section(analysis.prefix, "contrast", "What the ops of each peak do");
        self.contrast(analysis);
        if !analysis.values.is_empty() {
            self.raw("<p>Arguments that tell the peaks apart:</p>\n<ul>\n");
            for contrast in analysis.values {
                self.raw("<li>").words(in_words(contrast)).raw("</li>\n");
            }
            self.raw("</ul>\n");
        }
        self.raw("</section>\n");
        self.section(analysis.prefix, "calls", "Calls");
        self.raw("<p>The tree of calls below the function; a number marks the peaks that have a call on a root-cause path.</p>\n");
        self.raw("<div class=\"tree\"><ul>\n");
        self.node(analysis.ftree);
        self.raw("</ul></div></section>\n");
    }

    fn section(&mut self, prefix: Prefix, id: &'static str, heading: &'static str) {
        self.raw("<section><h2 id=\"");
        if let Prefix::Below(number) = prefix {
            self.raw("below-").number(number).raw("-");
        }
        self.raw(id).raw("\">").raw(heading).raw("</h2>\n");
    }

    /// The histogram in figures.
    fn buckets(&mut self, analysis: &Analysis<'_>) {
        let profile = analysis.profile;
        let resolution = Resolution::new(profile.resolution).unwrap_or_default();
        if profile.buckets.is_empty() {
            return;
        }
        self.raw("<details><summary>In figures</summary>\n<div class=\"wide\" tabindex=\"0\"><table>\n<thead><tr>");
        self.raw(
            "<th scope=\"col\">peak</th><th scope=\"col\">cycles</th><th scope=\"col\">time</th>",
        );
        self.raw("<th scope=\"col\">ops</th><th scope=\"col\">time together</th></tr></thead>\n<tbody>\n");
        for entry in &profile.buckets {
            let inside =
                |peak: &&PeakEntry| (peak.first_bucket..=peak.last_bucket).contains(&entry.bucket);
            self.raw("<tr><td>");
            self.badge(analysis.peaks.iter().find(inside).map(|peak| peak.peak));
            self.raw("</td><td>");
            if let Some((first, last)) = resolution.bounds(entry.bucket) {
                let time = format!(
                    "{} to {}",
                    self.time(first.0),
                    self.time(last.0.saturating_add(1))
                );
                self.number(first.0)
                    .raw(" to ")
                    .number(last.0)
                    .raw("</td><td>")
                    .text(time);
            } else {
                self.raw("</td><td>");
            }
            let together = self.time(entry.total);
            self.raw("</td><td>")
                .number(entry.ops)
                .raw("</td><td>")
                .text(together)
                .raw("</td></tr>\n");
        }
        self.raw("</tbody></table></div></details>\n");
    }

    fn badge(&mut self, peak: Option<u32>) {
        self.raw("<span class=\"badge b")
            .number(svg::colour(peak))
            .raw("\">");
        match peak {
            Some(peak) => self.number(peak),
            None => self.raw("-"),
        };
        self.raw("</span>");
    }

    /// What to type next.
    fn next(&mut self, report: &Report, file: Option<&str>) {
        let steps = next::steps(report, file);
        if steps.is_empty() {
            return;
        }
        self.raw("<section><h2 id=\"next\">Next</h2>\n<dl class=\"next\">\n");
        for step in steps {
            self.raw("<dt><code>")
                .text(step.command)
                .raw("</code></dt><dd>")
                .raw(step.tells)
                .raw("</dd>\n");
        }
        self.raw("</dl></section>\n");
    }

    fn probes(&mut self, report: &Report) {
        let probes = &report.probes;
        self.raw("<section><h2 id=\"probes\">Probes</h2>\n<dl>\n");
        self.field(
            "sites",
            &format!(
                "{} instrumented, {} skipped",
                probes.sites,
                probes.skipped.len()
            ),
        );
        let cost = probes.cost_cycles;
        self.field(
            "cost",
            &format!(
                "{} inside of each measured call (taken out), {} outside",
                self.time(cost.inside),
                self.time(cost.outside)
            ),
        );
        self.field("records", &words::records(probes));
        self.field(
            "pauses",
            &format!(
                "{} typical, {} at most",
                words::microseconds(probes.pause_us.p50),
                words::microseconds(probes.pause_us.max)
            ),
        );
        let effort = probes.effort.iter().flat_map(words::effort);
        for (line, name) in effort.zip(["effort", "", "", ""]) {
            self.field(name, &line);
        }
        self.field("code", &words::restored(probes));
        self.raw("</dl>\n");
        if !probes.skipped.is_empty() {
            self.raw("<details><summary>Skipped sites</summary>\n<ul>\n");
            for line in words::skipped(probes) {
                self.raw("<li>").words(line).raw("</li>\n");
            }
            self.raw("</ul></details>\n");
        }
        self.raw("</section>\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    /// Names of open elements must close in order; this catches what a browser would mend silently.
    fn is_balanced(html: &str) -> Result<(), String> {
        let body = html.split_once("</style>").ok_or("no style")?.1;
        let mut open: Vec<&str> = vec!["html", "head"];
        for tag in body.split('<').skip(1) {
            let (tag, _) = tag.split_once('>').ok_or("a tag does not end")?;
            let name = tag
                .trim_end_matches('/')
                .split([' ', '\n'])
                .next()
                .unwrap_or("");
            if let Some(name) = name.strip_prefix('/') {
                if open.pop() != Some(name) {
                    return Err(format!("</{name}>"));
                }
            } else if !tag.ends_with('/') && !matches!(name, "br" | "meta") {
                open.push(name);
            }
        }
        open.is_empty().then_some(()).ok_or(format!("{open:?}"))
    }

    #[test]
    fn every_element_closes_whatever_there_is_to_say() {
        for ops in [0, 50, 330, 30_000] {
            assert_eq!(
                is_balanced(&render(&fixture::report(ops), Style::default())),
                Ok(()),
                "{ops}"
            );
        }
        let served = crate::tests::golden::handed_over();
        assert_eq!(is_balanced(&render(&served, Style::default())), Ok(()));
    }

    #[test]
    fn small_causes_are_folded() {
        let mut report = fixture::report(30_000);
        let causes = &mut report.peaks[0].root_causes;
        let mut small = causes[0].clone();
        small.share_of_time = 0.004;
        small.known_from = 9;
        causes.insert(0, small);
        let text = render(&report, Style::default());
        let folded = "<details><summary>one more path with 0.40%</summary>\n<p";
        assert_eq!(text.matches(folded).count(), 1, "{text}");
        assert_eq!(is_balanced(&text), Ok(()));
    }

    #[test]
    fn nothing_is_loaded_and_nothing_runs() {
        let text = render(&fixture::report(30_000), Style::default());
        for forbidden in [
            "<script",
            "src=",
            "@import",
            "url(",
            "javascript:",
            "<link",
            "<iframe",
        ] {
            assert!(!text.contains(forbidden), "{forbidden}");
        }
        let links = text.matches("http").count();
        let namespace_and_policy = text.matches("http://www.w3.org/2000/svg").count() + 1;
        assert_eq!(links, namespace_and_policy);
    }

    #[test]
    fn reasons_are_escaped_once() {
        let mut report = fixture::report(30_000);
        report.probes.skipped[0].reason = "a\\b".to_owned();
        let text = render(&report, Style::default());
        assert!(text.contains(": a\\\\b</li>"), "{text}");
    }

    #[test]
    fn hostile_names_stay_text() {
        let evil = "</title><script>alert(1)</script>\u{202e}\" onload='x' &amp;";
        let mut report = fixture::report(30_000);
        report.f0.name = evil.to_owned();
        report.f0.file = Some(evil.to_owned());
        report.target.command = vec![evil.to_owned()];
        report.warnings.push(evil.to_owned());
        report.ftree.name = evil.to_owned();
        report.ftree.children[0].name = evil.to_owned();
        report.ftree.children[0].file = Some(evil.to_owned());
        report.peaks[0].root_causes[0].frames[1].name = evil.to_owned();
        report.probes.skipped[0].reason = evil.to_owned();
        let mut focus = crate::tests::golden::handed_over().focus;
        let handover = focus[0].handover.as_mut().unwrap();
        handover.enqueue.name = evil.to_owned();
        handover.served_object = evil.to_owned();
        report.focus = focus;
        let text = render(&report, Style::default());
        assert!(
            !text.contains("<script") && !text.contains('\u{202e}') && !text.contains("onload='")
        );
        assert_eq!(is_balanced(&text), Ok(()));
    }
}
