//! The report for people.
//!
//! Sections in the order of the questions: what was analysed, the answer in a line for each peak, what the latencies look like,
//! why each peak is there, what the ops of one peak do that those of another do not, and what the measuring did.
//! Everything that came from the target is escaped here.

mod causes;
mod contrast;
mod handover;
mod header;
mod histogram;
mod narrowed;
mod probes;
pub mod profiles;
mod time;
pub mod together;

use darc_analysis::Hz;

use super::answer;
pub use super::contrast::Rows;
use super::model::{FtreeNode, PeakEntry, ProfileTable, Report};
use super::proof;
use super::words::{self, path, percent};

/// How a report is laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Style {
    /// Columns of the page; below 60 counts as 60.
    pub width: usize,
    /// Whether headings stand out.
    pub color: Color,
    /// Which rows the table of calls has.
    pub rows: Rows,
}

/// Whether escape sequences are written.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Color {
    /// Never: for files and pipes.
    #[default]
    Never,
    /// Always.
    Always,
}

impl Default for Style {
    fn default() -> Self {
        Self {
            width: 100,
            color: Color::Never,
            rows: Rows::Main,
        }
    }
}

/// The whole report, ending with a newline.
#[must_use]
pub fn render(report: &Report, style: Style) -> String {
    let mut page = Page::new(report.clock.hz, style);
    header::write(&mut page, report);
    match &report.time {
        Some(table) if report.profile.ops == 0 => time::write(&mut page, table),
        _ => {
            answers(&mut page, &report.peaks, &report.profile, &report.ftree);
            histogram::write(&mut page, report);
            causes::write(&mut page, report);
            contrast::write(&mut page, &report.ftree, &report.peaks, &report.values);
        }
    }
    for focus in &report.focus {
        page.blank();
        match &focus.handover {
            Some(handover) => handover::write(&mut page, focus, handover, &report.peaks),
            None => page.heading(&format!(
                "Below {}: {} of the time, {} calls: {}",
                path(&focus.path),
                percent(focus.share_of_time),
                focus.calls,
                words::status(focus.status)
            )),
        }
        let Some(mean) = focus.profile.total.checked_div(focus.profile.ops) else {
            page.line("  none of them was measured");
            continue;
        };
        page.line(&format!(
            "  {} of them measured, {} each on average",
            focus.profile.ops,
            page.time(mean)
        ));
        if let Some(percentiles) = words::percentiles(page.hz, &focus.profile) {
            page.line(&format!("  {percentiles}"));
        }
        answers(&mut page, &focus.peaks, &focus.profile, &focus.ftree);
        page.blank();
        histogram::buckets(&mut page, &focus.profile, &focus.peaks);
        causes::peaks(&mut page, &focus.peaks, &focus.profile, &focus.ftree);
        contrast::write(&mut page, &focus.ftree, &focus.peaks, &focus.values);
    }
    if !(report.proofs.is_empty() && report.effects.is_empty()) {
        page.blank();
        page.heading("Experiments");
        for line in proof::lines(&report.proofs, &report.effects) {
            let indent = line.len() - line.trim_start().len();
            page.sentence(2 + indent, line.trim_start());
        }
    }
    probes::write(&mut page, report);
    page.text
}

/// The lines of the peaks of one profile; nothing without peaks.
fn answers(page: &mut Page, peaks: &[PeakEntry], profile: &ProfileTable, ftree: &FtreeNode) {
    if peaks.is_empty() {
        return;
    }
    page.blank();
    for peak in peaks {
        let line = answer::line(page.hz, peak, profile, ftree);
        page.sentence(0, &line);
    }
}

/// The page that sections write on.
struct Page {
    text: String,
    width: usize,
    color: Color,
    rows: Rows,
    hz: Option<Hz>,
}

impl Page {
    fn new(hz: u64, style: Style) -> Self {
        Self {
            text: String::new(),
            width: style.width.max(60),
            color: style.color,
            rows: style.rows,
            hz: Hz::new(hz),
        }
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    /// A sentence, over as many lines as it needs; those after the first are indented by two more columns.
    fn sentence(&mut self, indent: usize, sentence: &str) {
        let mut line = " ".repeat(indent);
        let mut is_begun = false;
        for word in sentence.split(' ') {
            let length = line.chars().count() + 1 + word.chars().count();
            if is_begun && length > self.width {
                self.line(&line);
                line = " ".repeat(indent + 2);
                is_begun = false;
            }
            if is_begun {
                line.push(' ');
            }
            line.push_str(word);
            is_begun = true;
        }
        self.line(&line);
    }

    fn blank(&mut self) {
        self.text.push('\n');
    }

    fn heading(&mut self, heading: &str) {
        match self.color {
            Color::Never => self.line(heading),
            Color::Always => self.line(&format!("\x1b[1m{heading}\x1b[0m")),
        }
    }

    /// `label` in the left column, what it is in the right one.
    fn field(&mut self, label: &str, value: &str) {
        self.line(&format!("  {label:<12}{value}"));
    }

    /// A duration for people; cycles where the clock's rate is not known.
    fn time(&self, cycles: u64) -> String {
        words::time(self.hz, cycles)
    }
}

/// The text cut in its middle to at most `width` characters: both ends of a long name matter.
fn shorten(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width || width == 0 {
        return text.to_owned();
    }
    let head = (width - 1).div_ceil(2);
    let tail = width - 1 - head;
    let begin = text.chars().take(head);
    let end = text.chars().skip(length - tail);
    begin.chain(std::iter::once('…')).chain(end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_keep_both_ends() {
        assert_eq!(shorten("std::vector<int>::push_back", 11), "std::…_back");
        assert_eq!(shorten("short", 5), "short");
        assert_eq!(shorten("höher", 3), "h…r");
    }
}
