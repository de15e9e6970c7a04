//! Draws the view.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{
    Block, Clear, List, ListItem, ListState, Paragraph, Sparkline, Table, TableState,
};

use super::State;

/// What is shown beside the person's own doing.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Picture {
    /// What is watched: the process, and the path that was stepped along.
    pub title: String,
    /// One row a function.
    pub rows: Vec<Row>,
}

/// One function.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Row {
    /// Its name, fit for a terminal.
    pub name: String,
    /// Calls a second, concurrency, three percentiles of the latency, in words.
    pub figures: [String; 5],
    /// Calls a second over time, from the oldest to the newest.
    pub calls: Vec<f64>,
    /// Concurrency over time.
    pub concurrency: Vec<f64>,
    /// The 99th percentile of the latency over time, in nanoseconds.
    pub slowest: Vec<f64>,
}

const TITLES: [&str; 7] = [
    "function",
    "calls/s",
    "concurr.",
    "p50",
    "p90",
    "p99",
    "calls/s over time",
];
const KEYS: &str =
    " a add   Enter step into   Backspace step out   d drop   s sort   ↑↓ choose   q quit ";

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, picture: &Picture, state: &State) {
    let [title, table, plots, message, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(4),
        Constraint::Length(9),
        Constraint::Length(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let reversed = Style::new().add_modifier(Modifier::REVERSED);
    frame.render_widget(Line::styled(picture.title.as_str(), bold), title);
    rows(frame, table, picture, state, reversed);
    if let Some(row) = picture.rows.get(state.row) {
        plot(frame, plots, row);
    }
    frame.render_widget(Line::from(state.message.as_str()), message);
    frame.render_widget(Line::styled(KEYS, reversed), keys);
    if state.typing.is_some() {
        typing(frame, state, reversed);
    }
}

fn rows(frame: &mut Frame<'_>, area: Rect, picture: &Picture, state: &State, chosen: Style) {
    if picture.rows.is_empty() {
        let text = "nothing is watched yet; press a to add a function";
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let lines = picture.rows.iter().map(|row| {
        let bars = bars(&row.calls, 30);
        let cells = std::iter::once(row.name.clone()).chain(row.figures.clone());
        ratatui::widgets::Row::new(cells.chain([bars]))
    });
    let widths = [
        Constraint::Fill(2),
        Constraint::Length(10),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Fill(1),
    ];
    let header = Style::new().add_modifier(Modifier::UNDERLINED);
    let table = Table::new(lines, widths)
        .header(ratatui::widgets::Row::new(TITLES).style(header))
        .row_highlight_style(chosen);
    let mut at = TableState::default().with_selected(state.row);
    frame.render_stateful_widget(table, area, &mut at);
}

/// The newest values as bars of a height each.
fn bars(values: &[f64], width: usize) -> String {
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let newest = &values[values.len().saturating_sub(width)..];
    let most = newest.iter().copied().fold(0.0, f64::max);
    let bar = |&value: &f64| match most > 0.0 && value > 0.0 {
        true => BARS[((value / most * 8.0).ceil() as usize).clamp(1, 8)],
        false => BARS[0],
    };
    newest.iter().map(bar).collect()
}

fn plot(frame: &mut Frame<'_>, area: Rect, row: &Row) {
    let areas: [Rect; 3] = Layout::horizontal([Constraint::Fill(1); 3]).areas(area);
    let [calls, concurrency, _, _, slowest] = &row.figures;
    let plots = [
        (format!("{}: calls/s {calls}", row.name), &row.calls),
        (format!("concurrency {concurrency}"), &row.concurrency),
        (format!("99% within {slowest}"), &row.slowest),
    ];
    for (area, (title, values)) in areas.into_iter().zip(plots) {
        let width = usize::from(area.width.saturating_sub(2));
        let newest = &values[values.len().saturating_sub(width)..];
        let most = newest.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        // Sparklines draw whole numbers.
        let heights: Vec<u64> = newest
            .iter()
            .map(|value| (value / most * 1000.0).round().max(0.0) as u64)
            .collect();
        let plot = Sparkline::default()
            .block(Block::bordered().title(title))
            .max(1000)
            .data(heights);
        frame.render_widget(plot, area);
    }
}

/// The line that is typed, and below it the names that it may become.
fn typing(frame: &mut Frame<'_>, state: &State, chosen: Style) {
    let Some(typing) = &state.typing else { return };
    let all = frame.area();
    let height = (typing.offered.len() as u16 + 3).min(all.height);
    let area = Rect {
        x: all.x + all.width / 8,
        y: all.y + 2.min(all.height.saturating_sub(height)),
        width: all.width * 3 / 4,
        height,
    };
    frame.render_widget(Clear, area);
    let block = Block::bordered().title(" add a function: Tab chooses, Enter adds, Esc leaves ");
    let inside = block.inner(area);
    frame.render_widget(block, area);
    let [line, names] =
        Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(inside);
    frame.render_widget(Line::from(format!("> {}", typing.text)), line);
    let offered = typing
        .offered
        .iter()
        .map(|name| ListItem::new(name.as_str()));
    let mut at = ListState::default().with_selected(typing.chosen);
    let list = List::new(offered).highlight_style(chosen);
    frame.render_stateful_widget(list, names, &mut at);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    #[test]
    fn a_function_is_a_row_and_three_plots() {
        let picture = Picture {
            title: "process 7 inside serve".to_owned(),
            rows: vec![Row {
                name: "lookup".to_owned(),
                figures: ["120", "0.500", "1.0 µs", "2.0 µs", "9.0 ms"].map(str::to_owned),
                calls: vec![1.0, 4.0],
                concurrency: vec![0.5, 0.0],
                slowest: vec![9e6, 1.0],
            }],
        };
        for (width, height) in [(100, 30), (20, 5), (1, 1)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal
                .draw(|frame| draw(frame, &picture, &State::default()))
                .unwrap();
            let text = terminal.backend().to_string();
            if width == 100 {
                for part in [
                    "inside serve",
                    "lookup",
                    "0.500",
                    "▂█",
                    "99% within 9.0 ms",
                    "step into",
                ] {
                    assert!(text.contains(part), "{part}: {text}");
                }
            }
        }
    }

    #[test]
    fn bars_are_relative_to_the_largest() {
        assert_eq!(bars(&[0.0, 1.0, 4.0, 8.0], 3), "▁▄█");
        assert_eq!(bars(&[], 3), "");
    }
}
