//! Where the time of a function went that was running already: the parts, the largest first.

use super::Page;
use crate::model::{TimePart, TimeTable, Whose};
use crate::words::{path, percent, survey};

/// A part this small is not shown by itself.
const LEAST: f64 = 0.005;

pub(super) fn write(page: &mut Page, table: &TimeTable) {
    page.blank();
    page.heading("Where the time goes");
    if table.parts.is_empty() {
        page.line("  nothing on the stack returned while darc was watching, so nothing is known");
        return;
    }
    page.line(&format!(
        "  {} windows, {} of all threads together{}",
        table.windows,
        page.time(table.total),
        survey(table.survey)
    ));
    page.line(&format!(
        "  {:>7}{:>10}{:>12}{:>10}{:>10}  {}",
        "share", "time", "calls", "mean", "longest", "function"
    ));
    let (shown, rest): (Vec<_>, Vec<_>) = table
        .parts
        .iter()
        .partition(|part| part.share_of_time >= LEAST);
    for part in &shown {
        line(page, part);
    }
    if !rest.is_empty() {
        let share: f64 = rest.iter().map(|part| part.share_of_time).sum();
        let time = rest.iter().map(|part| part.time).sum();
        page.line(&format!(
            "  {:>7}{:>10}{:>12}{:>10}{:>10}  {} more",
            percent(share),
            page.time(time),
            "",
            "",
            "",
            rest.len()
        ));
    }
}

fn line(page: &mut Page, part: &TimePart) {
    let calls = match part.whose {
        Whose::Itself => String::new(),
        Whose::Callee | Whose::Waiting => part.calls.to_string(),
    };
    let time = |cycles: Option<u64>| cycles.map_or_else(String::new, |cycles| page.time(cycles));
    let mean = time(part.time.checked_div(part.calls));
    let max = time((part.calls > 0).then_some(part.max));
    let remark = remark(part);
    let room = page.columns().saturating_sub(53 + remark.len());
    page.line(&format!(
        "  {:>7}{:>10}{calls:>12}{mean:>10}{max:>10}  {}{remark}",
        percent(part.share_of_time),
        page.time(part.time),
        page.fitted(&path(&part.path), page.room(room))
    ));
}

/// What is said of a part behind its path.
pub(super) fn remark(part: &TimePart) -> &'static str {
    match part.whose {
        Whose::Itself if part.is_partly_measured() => " (itself, or unmeasured calls)",
        Whose::Itself => " (itself)",
        Whose::Callee => "",
        Whose::Waiting => " (waiting)",
    }
}
