//! Warnings: one line each on stderr, whatever strangers wrote into them.

use std::fmt::Write as _;
use std::io::Write as _;

/// The text on one line: control characters and the like are escaped, so that a name from a
/// file or a process can neither break the line nor drive the terminal.
#[must_use]
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => line.push_str("\\n"),
            '\t' => line.push_str("\\t"),
            '\r' => line.push_str("\\r"),
            c if c.is_ascii_control() => {
                let _ = write!(line, "\\x{:02x}", u32::from(c));
            }
            c if c.is_control() || changes_direction(c) => {
                let _ = write!(line, "\\u{{{:x}}}", u32::from(c));
            }
            c => line.push(c),
        }
    }
    line
}

/// Unicode's line separators, and the characters that reorder what follows them.
fn changes_direction(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The line of a warning, without a line feed.
#[must_use]
pub fn warning_line(message: &str) -> String {
    format!("darc: warning: {}", one_line(message))
}

/// Writes a warning to stderr. A closed stderr is no reason to stop.
pub fn print(message: &str) {
    let _ = writeln!(std::io::stderr(), "{}", warning_line(message));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_cannot_break_the_line() {
        assert_eq!(
            warning_line("a\nb\x1b[2J\u{85}\u{202e}ü"),
            "darc: warning: a\\nb\\x1b[2J\\u{85}\\u{202e}ü"
        );
    }
}
