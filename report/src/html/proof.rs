//! What experiments say: in words, and the latencies of the calls with and without a delay over each other.

use darc_record::Nanos;

use super::Page;
use crate::markup::Markup;
use crate::model::{ComparedOps, EffectEntry, ProofEntry};
use crate::proof::{title, told, told_of_probes};
use crate::svg::{LEFT, RIGHT, open};
use crate::words;

/// Where the columns stand.
const HEIGHT: f64 = 200.0;
const TOP: f64 = 20.0;
const BOTTOM: f64 = HEIGHT - 45.0;

impl Page {
    /// The section; nothing without experiments.
    pub(super) fn proofs(&mut self, proofs: &[ProofEntry], effects: &[EffectEntry]) {
        if proofs.is_empty() && effects.is_empty() {
            return;
        }
        self.raw("<section><h2 id=\"experiments\">Experiments</h2>\n");
        for proof in proofs {
            let title = title(proof);
            self.raw("<h3>").words(&title).raw("</h3>\n");
            self.lines(&told(proof));
            if let Some(compared) = &proof.latencies {
                self.markup(picture(compared, &title));
            }
        }
        for effect in effects {
            let title = format!("Peak {}  {}", effect.peak, words::path(&effect.path));
            self.raw("<h3>Probes: ").words(title).raw("</h3>\n");
            self.lines(&told_of_probes(effect));
        }
        self.raw("</section>\n");
    }

    fn lines(&mut self, lines: &[String]) {
        self.raw("<ul>\n");
        for line in lines {
            self.raw("<li>").words(line).raw("</li>\n");
        }
        self.raw("</ul>\n");
    }
}

/// The calls without a delay as an area, those with one as a line over it, each as parts of its own number.
fn picture(compared: &ComparedOps, title: &str) -> Markup {
    let mut page = Markup::default();
    open(
        &mut page,
        HEIGHT,
        &format!("{title}: latencies without and with a delay"),
    );
    let (without, with) = (parts(&compared.without), parts(&compared.with));
    let highest = without
        .iter()
        .chain(&with)
        .copied()
        .fold(f64::MIN_POSITIVE, f64::max);
    let width = (RIGHT - LEFT) / without.len().max(1) as f64;
    let height = |part: f64| part / highest * (BOTTOM - TOP);
    for (column, &part) in without.iter().enumerate().filter(|(_, part)| **part > 0.0) {
        page.raw("<rect class=\"f0\" x=\"")
            .number(round(LEFT + width * column as f64))
            .raw("\" y=\"")
            .number(round(BOTTOM - height(part)))
            .raw("\" width=\"")
            .number(round(width))
            .raw("\" height=\"")
            .number(round(height(part)))
            .raw("\"/>\n");
    }
    page.raw("<path fill=\"none\" stroke=\"var(--c2)\" stroke-width=\"2\" d=\"M")
        .number(LEFT)
        .raw(" ")
        .number(BOTTOM);
    for (column, &part) in with.iter().enumerate() {
        page.raw("V").number(round(BOTTOM - height(part)));
        page.raw("H")
            .number(round(LEFT + width * (column + 1) as f64));
    }
    page.raw("V").number(BOTTOM).raw("\"/>\n");
    page.raw("<line class=\"axis\" x1=\"")
        .number(LEFT)
        .raw("\" x2=\"")
        .number(RIGHT);
    page.raw("\" y1=\"")
        .number(BOTTOM)
        .raw("\" y2=\"")
        .number(BOTTOM)
        .raw("\"/>\n");
    let last = compared.from_ns + compared.width_ns * without.len() as f64;
    label(
        &mut page,
        LEFT,
        BOTTOM + 18.0,
        "start",
        &Nanos(compared.from_ns).to_string(),
    );
    label(
        &mut page,
        RIGHT,
        BOTTOM + 18.0,
        "end",
        &Nanos(last).to_string(),
    );
    let said =
        "filled: calls without a delay; line: calls with one; each as parts of its own number";
    label(&mut page, LEFT, BOTTOM + 36.0, "start", said);
    page.raw("</svg>\n");
    page
}

fn label(page: &mut Markup, x: f64, y: f64, anchor: &'static str, text: &str) {
    page.raw("<text x=\"").number(x).raw("\" y=\"").number(y);
    page.raw("\" text-anchor=\"")
        .raw(anchor)
        .raw("\">")
        .text(text)
        .raw("</text>\n");
}

fn parts(counts: &[u64]) -> Vec<f64> {
    let all = counts
        .iter()
        .fold(0, |all: u64, &count| all.saturating_add(count));
    counts
        .iter()
        .map(|&count| count as f64 / all.max(1) as f64)
        .collect()
}

/// To a tenth of a pixel.
fn round(length: f64) -> f64 {
    (length * 10.0).round() / 10.0
}
