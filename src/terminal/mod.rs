//! The conversation with the person: progress, questions, warnings, interrupts. On stderr only;
//! stdout belongs to the report, or to the target.

pub(crate) mod interrupts;
pub(crate) mod keys;
pub(crate) mod live;
pub mod log;
pub(crate) mod prompt;
pub(crate) mod reporting;
pub(crate) mod warning;
pub(crate) mod watch;

use std::io::IsTerminal;

use crate::options::ColorChoice;

/// Whether text for one stream may contain colours (ANSI SGR sequences).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Color {
    /// No escape sequences.
    Plain,
    /// Colours are understood there.
    Ansi,
}

impl Color {
    /// The decision for `stream`: the person's choice, else a terminal that is not `TERM=dumb`,
    /// and `NO_COLOR` (no-color.org) unset or empty.
    #[must_use]
    pub fn of(choice: ColorChoice, stream: &impl IsTerminal) -> Self {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty());
        match choice {
            ColorChoice::Always => Color::Ansi,
            ColorChoice::Auto if stream.is_terminal() && !unwanted && !dumb => Color::Ansi,
            ColorChoice::Auto | ColorChoice::Never => Color::Plain,
        }
    }
}

/// Columns of the terminal that shows `stream`, never less than 20 (a window of one column cannot be helped). `None` where it is
/// no terminal.
#[must_use]
pub fn width(stream: impl std::os::fd::AsFd) -> Option<usize> {
    let (width, _) = terminal_size::terminal_size_of(stream)?;
    Some(usize::from(width.0).max(20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_plain_unless_the_person_insists() {
        let (pipe, _writer) = std::io::pipe().unwrap();
        let pipe = std::os::fd::OwnedFd::from(pipe);
        assert_eq!(Color::of(ColorChoice::Auto, &pipe), Color::Plain);
        assert_eq!(Color::of(ColorChoice::Always, &pipe), Color::Ansi);
        assert_eq!(width(&pipe), None);
    }
}
