//! Names for people: C++ and Rust names demangled, hostile names made harmless.

use std::fmt::{self, Write};

use cpp_demangle::{BorrowedSymbol, DemangleOptions};

use crate::{go_names, mangling};

/// Longer names are not demangled: substitutions may multiply them.
const MAX_RAW: usize = 16 << 10;
/// Demangling stops when it has written this much.
const MAX_DEMANGLED: usize = 16 << 10;
/// [`escape`] shows at most this many characters.
const MAX_SHOWN: usize = 1024;

/// Writes into a string until a bound is met.
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MAX_DEMANGLED {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// The name as it was written in the source: Itanium C++ and both Rust manglings, without Rust's hash and
/// C++'s return types; generic functions of Go as people write them. Any other name is returned as it is.
pub fn demangle(raw: &str) -> String {
    try_demangle(raw).unwrap_or_else(|| go_names::shown(raw))
}

/// As [`demangle`]; `None` when the name is not a mangled one.
pub(crate) fn try_demangle(raw: &str) -> Option<String> {
    if !is_mangled(raw) || raw.len() > MAX_RAW {
        return None;
    }
    let mut out = Bounded(String::new());
    if let Ok(name) = rustc_demangle::try_demangle(raw) {
        return write!(out, "{name:#}").is_ok().then_some(out.0);
    }
    if !mangling::is_plain(raw) {
        return None;
    }
    let symbol = BorrowedSymbol::new(raw.as_bytes()).ok()?;
    let options = DemangleOptions::new().no_return_type();
    symbol
        .structured_demangle(&mut out, &options)
        .is_ok()
        .then_some(out.0)
}

/// Whether it is a symbol that Rust has mangled.
pub(crate) fn is_of_rust(raw: &str) -> bool {
    is_mangled(raw) && raw.len() <= MAX_RAW && rustc_demangle::try_demangle(raw).is_ok()
}

/// Whether the name has the prefix of a mangling.
pub(crate) fn is_mangled(raw: &str) -> bool {
    raw.starts_with("_Z") || raw.starts_with("_R") || raw.starts_with("__Z")
}

/// A name that is safe to show in a terminal and in a line of a file: control characters and characters that
/// change the direction of text become visible escapes, and what is longer than 1024 characters is cut off.
pub fn escape(name: &str) -> String {
    let mut shown = String::with_capacity(name.len().min(MAX_SHOWN));
    for (count, c) in name.chars().enumerate() {
        if count == MAX_SHOWN {
            shown.push('…');
            break;
        }
        if c.is_control() || is_invisible(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Format characters that reorder or hide text (Unicode general category Cf, the parts that matter), and the
/// separators that end a line.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_languages_are_demangled() {
        assert_eq!(demangle("_ZN2ns5Class6methodEi"), "ns::Class::method(int)");
        assert_eq!(demangle("_Z3fooIiEiT_"), "foo<int>(int)");
        assert_eq!(
            demangle("_ZN4core3ptr13drop_in_place17h0123456789abcdefE"),
            "core::ptr::drop_in_place"
        );
        assert_eq!(demangle("_RNvCs1234_7mycrate3foo"), "mycrate::foo");
        assert_eq!(demangle("main"), "main");
        assert_eq!(demangle("_Znotmangled"), "_Znotmangled");
    }

    #[test]
    fn multiplying_substitutions_are_bounded() {
        // Each level doubles the one before.
        let mut name = String::from("_Z1fSt4pairIiiE");
        for level in 0..60 {
            let reference = match level {
                0 => "S_".to_owned(),
                n => format!(
                    "S{}_",
                    char::from_digit(n - 1, 36).unwrap().to_ascii_uppercase()
                ),
            };
            name += &format!("St4pairI{reference}{reference}E");
            if level >= 35 {
                break;
            }
        }
        assert!(demangle(&name).len() <= MAX_DEMANGLED);
    }

    #[test]
    fn names_that_are_tried_in_many_ways_are_left_alone() {
        // Each of these keeps a backtracking demangler busy for minutes.
        for name in [
            format!("_ZN1a1bI{}C1Z", "nw".repeat(45)),
            format!("_Z1fIX{}cvcv", "na".repeat(40)),
            format!("_ZN1a1bI{}B1a", "3fooUtStFE".repeat(30)),
        ] {
            assert_eq!(demangle(&name), name);
        }
    }

    #[test]
    fn deep_nesting_neither_overflows_nor_hangs() {
        for unit in ["P", "I", "N", "F", "St4pairI", "L_Z"] {
            let _ = demangle(&format!("_Z1f{}i", unit.repeat(5000)));
            let _ = demangle(&format!("_RNv{}", unit.repeat(5000)));
        }
    }

    #[test]
    fn hostile_names_are_made_visible() {
        assert_eq!(
            escape("a\x1b[31mb\nc\u{202e}d"),
            "a\\u{1b}[31mb\\nc\\u{202e}d"
        );
        assert_eq!(escape(&"x".repeat(5000)).chars().count(), MAX_SHOWN + 1);
        assert_eq!(escape("größe"), "größe");
    }
}
