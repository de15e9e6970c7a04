//! How text is laid out, by where it goes.

use std::io::IsTerminal;
use std::os::fd::AsFd;

use darc_report::text::{self, Style};

use crate::options::ColorChoice;
use crate::terminal::{self, Color};

/// As wide as `stream` is, in colours if the person wants them there.
pub fn style_of(choice: ColorChoice, stream: &(impl IsTerminal + AsFd)) -> Style {
    Style {
        width: terminal::width(stream),
        color: match Color::of(choice, stream) {
            Color::Ansi => text::Color::Always,
            Color::Plain => text::Color::Never,
        },
        ..Style::default()
    }
}
