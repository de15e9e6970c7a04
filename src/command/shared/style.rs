//! How text is laid out, by where it goes.

use std::io::IsTerminal;
use std::os::fd::AsFd;

use darc_report::text::{self, Names, Style};

use crate::options::ColorChoice;
use crate::terminal::{self, Color};

/// As wide as `stream` is, in colours if the person wants them there. What is no terminal is as wide as anything needs.
pub fn style_of(choice: ColorChoice, stream: &(impl IsTerminal + AsFd)) -> Style<'static> {
    let width = terminal::width(stream);
    Style {
        width: width.unwrap_or(usize::MAX),
        names: match width {
            Some(_) => Names::Fitted,
            None => Names::Whole,
        },
        color: match Color::of(choice, stream) {
            Color::Ansi => text::Color::Always,
            Color::Plain => text::Color::Never,
        },
        ..Style::default()
    }
}
