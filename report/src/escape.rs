//! Names come from strangers: nothing in them may steer a terminal or break a line.

use std::borrow::Cow;
use std::fmt::Write as _;

/// The text with control characters, characters that change the direction of writing and invisible
/// separators written as `\n`, `\u{1b}` and so on, and the backslash doubled; fit for a terminal.
#[must_use]
pub fn control(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|char| char == '\\' || is_unfit(char)) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for char in text.chars() {
        match char {
            '\\' => escaped.push_str("\\\\"),
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\t' => escaped.push_str("\\t"),
            char if is_unfit(char) => {
                let _ = write!(escaped, "\\u{{{:x}}}", u32::from(char));
            }
            char => escaped.push(char),
        }
    }
    Cow::Owned(escaped)
}

/// Takes [`control`] back. `None` for what it never writes.
#[must_use]
pub fn unescape(text: &str) -> Option<Cow<'_, str>> {
    if text.chars().any(is_unfit) {
        return None;
    }
    if !text.contains('\\') {
        return Some(Cow::Borrowed(text));
    }
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        if char != '\\' {
            plain.push(char);
            continue;
        }
        match chars.next()? {
            '\\' => plain.push('\\'),
            'n' => plain.push('\n'),
            'r' => plain.push('\r'),
            't' => plain.push('\t'),
            'u' => {
                let (digits, rest) = chars.as_str().strip_prefix('{')?.split_once('}')?;
                let char = char::from_u32(u32::from_str_radix(digits, 16).ok()?)?;
                if !is_unfit(char) || format!("{:x}", u32::from(char)) != digits {
                    return None;
                }
                plain.push(char);
                chars = rest.chars();
            }
            _ => return None,
        }
    }
    Some(Cow::Owned(plain))
}

fn is_unfit(char: char) -> bool {
    char.is_control()
        || matches!(char,
            '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_name_cannot_steer_the_terminal() {
        assert_eq!(control("operator+"), "operator+");
        assert_eq!(
            control("\x1b[2Jgone\n\u{202e}"),
            "\\u{1b}[2Jgone\\n\\u{202e}"
        );
        assert_eq!(unescape("\\u{41}"), None);
        assert_eq!(unescape("\\q"), None);
        assert_eq!(unescape("\\"), None);
    }

    proptest! {
        #[test]
        fn escaping_is_undone_by_unescaping(text: String) {
            let escaped = control(&text);
            prop_assert!(!escaped.chars().any(char::is_control));
            let plain = unescape(&escaped);
            prop_assert_eq!(plain.as_deref(), Some(text.as_str()));
        }
    }
}
