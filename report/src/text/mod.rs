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
mod probes;
pub mod profiles;
mod time;
pub mod together;

use darc_analysis::Hz;

use super::answer;
pub use super::contrast::Rows;
use super::model::{FtreeNode, PeakEntry, ProfileTable, Report};
use super::names::{short, without_namespaces};
use super::next::{self, Step};
use super::outcome;
use super::proof;
use super::words::{self, path, percent};

/// How a report is laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Style<'a> {
    /// Columns of the page; below 60 counts as 60.
    pub width: usize,
    /// Whether names may be wider than the page has room for.
    pub names: Names,
    /// Whether headings stand out.
    pub color: Color,
    /// Which rows the table of calls has.
    pub rows: Rows,
    /// The file that has the results so that they can be read again, as the person named it.
    pub file: Option<&'a str>,
}

/// What becomes of names that are wider than their column.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Names {
    /// They stay whole as far as a wide line has room for them: in files and pipes.
    #[default]
    Whole,
    /// They are made to fit: on terminals.
    Fitted,
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

impl Default for Style<'_> {
    fn default() -> Self {
        Self {
            width: 100,
            names: Names::Whole,
            color: Color::Never,
            rows: Rows::Main,
            file: None,
        }
    }
}

/// The whole report, ending with a newline.
#[must_use]
pub fn render(report: &Report, style: Style<'_>) -> String {
    let mut page = Page::new(report.clock.hz, style);
    header::write(&mut page, report);
    match &report.time {
        Some(table) if report.profile.ops == 0 => time::write(&mut page, table),
        _ => {
            answers(&mut page, &report.peaks, &report.profile, &report.ftree);
            if let Some(above) = words::above(report) {
                page.sentence(0, &above);
            }
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
                outcome::status(focus.status)
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
        if focus.peaks.is_empty() {
            page.blank();
            page.line(&causes::no_peaks(report, focus.profile.ops));
        }
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
    next(&mut page, report, style.file);
    page.text
}

/// The lines of the peaks of one profile; nothing without peaks.
fn answers(page: &mut Page, peaks: &[PeakEntry], profile: &ProfileTable, ftree: &FtreeNode) {
    if peaks.is_empty() {
        return;
    }
    page.blank();
    for peak in peaks {
        let line = answer::line(page.hz, peak, peaks, profile, ftree);
        page.sentence(0, &line);
    }
}

/// What to type next; a remark behind it where there is room.
fn next(page: &mut Page, report: &Report, file: Option<&str>) {
    let steps = next::steps(report, file);
    if steps.is_empty() {
        return;
    }
    page.blank();
    page.heading("Next");
    let widest = steps.iter().map(|step| step.command.chars().count()).max();
    let widest = widest.unwrap_or(0);
    for Step { command, tells } in steps {
        let line = format!("  {command:widest$}  # {tells}");
        match line.chars().count() <= page.width {
            true => page.line(&line),
            false => page.line(&format!("  {command}")),
        }
    }
}

/// The page that sections write on.
struct Page {
    text: String,
    width: usize,
    names: Names,
    color: Color,
    rows: Rows,
    hz: Option<Hz>,
}

impl Page {
    fn new(hz: u64, style: Style<'_>) -> Self {
        Self {
            text: String::new(),
            width: style.width.max(60),
            names: style.names,
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

/// Tables in files and pipes are no wider, but where all is wanted.
const WIDEST: usize = 160;

/// What stands between the names of a path.
const ARROW: &str = " → ";

impl Page {
    /// How many columns a table has.
    fn columns(&self) -> usize {
        match (self.names, self.rows) {
            (Names::Whole, Rows::Main) => self.width.min(WIDEST),
            _ => self.width,
        }
    }

    /// How many columns names have in it, for which so many are left.
    fn room(&self, left: usize) -> usize {
        match (self.names, self.rows) {
            (Names::Fitted, _) => left,
            (Names::Whole, Rows::Main) => left + WIDEST.saturating_sub(self.width),
            (Names::Whole, Rows::All) => usize::MAX,
        }
    }

    /// A name, or a path of names, in so many columns: without types and parameters, then without the namespaces
    /// or crates that they begin with; what is too long still loses its middle.
    fn fitted(&self, text: &str, width: usize) -> String {
        let fits = |text: &str| text.chars().count() <= width;
        if fits(text) {
            return text.to_owned();
        }
        let each = |shorter: fn(&str) -> String| -> String {
            let names = text.split(ARROW).map(shorter);
            names.collect::<Vec<_>>().join(ARROW)
        };
        let without_types = each(short);
        if fits(&without_types) {
            return without_types;
        }
        let bare = each(|name| without_namespaces(&short(name)));
        match fits(&bare) {
            true => bare,
            false => shorten(&bare, width),
        }
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
    fn names_lose_their_namespaces_before_their_middle() {
        let page = |names| {
            let style = Style {
                names,
                ..Style::default()
            };
            Page::new(0, style)
        };
        let name = "darc::command::demo::write_log";
        let whole = page(Names::Whole);
        assert_eq!(whole.room(20), 80, "60 columns are left of 160");
        assert_eq!(whole.fitted(name, whole.room(20)), name);
        let style = Style {
            width: usize::MAX,
            ..Style::default()
        };
        assert_eq!(Page::new(0, style).columns(), 160, "of a pipe");
        let page = page(Names::Fitted);
        assert_eq!(page.room(20), 20);
        assert_eq!(page.fitted(name, 30), name);
        assert_eq!(page.fitted(name, 20), "write_log");
        assert_eq!(page.fitted(name, 7), "wri…log");
        let path = "main → store::db::Table<store::Key>::flush → fsync";
        assert_eq!(page.fitted(path, 40), "main → Table<Key>::flush → fsync");
        assert_eq!(page.fitted("<a::B as c::D>::run", 13), "<B as D>::run");
    }

    #[test]
    fn long_names_keep_both_ends() {
        assert_eq!(shorten("std::vector<int>::push_back", 11), "std::…_back");
        assert_eq!(shorten("short", 5), "short");
        assert_eq!(shorten("höher", 3), "h…r");
    }
}
