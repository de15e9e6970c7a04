//! Text inside of SVG and HTML: what comes from the target can never become markup.

use std::fmt::Write as _;

use super::escape::control;

/// A document in the making. Only markup that stands in this program's source is written as it is.
#[derive(Default)]
pub(super) struct Markup(String);

impl Markup {
    /// Markup.
    pub(super) fn raw(&mut self, markup: &'static str) -> &mut Self {
        self.0.push_str(markup);
        self
    }

    /// Text, or the value of an attribute in double quotes.
    pub(super) fn text(&mut self, text: impl AsRef<str>) -> &mut Self {
        for char in control(text.as_ref()).chars() {
            match char {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                // No characters of XML.
                '\u{fffe}' | '\u{ffff}' => {
                    let _ = write!(self.0, "\\u{{{:x}}}", u32::from(char));
                }
                char => self.0.push(char),
            }
        }
        self
    }

    /// Text that is escaped for terminals already, as the report's words are.
    pub(super) fn words(&mut self, words: impl AsRef<str>) -> &mut Self {
        // A backslash that was doubled once is not doubled again.
        let words = words.as_ref();
        match super::escape::unescape(words) {
            Some(plain) => self.text(plain),
            None => self.text(words),
        }
    }

    /// A number.
    pub(super) fn number(&mut self, number: impl Into<Number>) -> &mut Self {
        let _ = match number.into() {
            Number::Whole(number) => write!(self.0, "{number}"),
            // Pixels: tenths are enough.
            Number::Pixels(number) => write!(self.0, "{:.1}", number),
        };
        self
    }

    /// Other markup.
    pub(super) fn markup(&mut self, other: Markup) -> &mut Self {
        self.0.push_str(&other.0);
        self
    }

    /// The document.
    pub(super) fn finish(self) -> String {
        self.0
    }
}

/// What [`Markup::number`] takes.
pub(super) enum Number {
    Whole(u64),
    Pixels(f64),
}

impl From<u64> for Number {
    fn from(number: u64) -> Self {
        Number::Whole(number)
    }
}

impl From<u32> for Number {
    fn from(number: u32) -> Self {
        Number::Whole(number.into())
    }
}

impl From<usize> for Number {
    fn from(number: usize) -> Self {
        Number::Whole(number as u64)
    }
}

impl From<f64> for Number {
    fn from(number: f64) -> Self {
        Number::Pixels(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> String {
        let mut markup = Markup::default();
        markup.text(text);
        markup.finish()
    }

    #[test]
    fn text_stays_text() {
        assert_eq!(
            text("operator<< & \"x\" 'y'"),
            "operator&lt;&lt; &amp; &quot;x&quot; &#39;y&#39;"
        );
        assert_eq!(
            text("</script>\0\u{202e}\u{ffff}"),
            "&lt;/script&gt;\\u{0}\\u{202e}\\u{ffff}"
        );
    }

    #[test]
    fn words_are_escaped_once() {
        let mut markup = Markup::default();
        markup.words("a\\nb").words("c\\q");
        assert_eq!(markup.finish(), "a\\nbc\\\\q");
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_a_tag_or_ends_an_attribute(name: String) {
            let escaped = text(&name);
            proptest::prop_assert!(!escaped.contains(['<', '>', '"', '\'']));
            proptest::prop_assert!(!escaped.chars().any(char::is_control));
        }
    }
}
