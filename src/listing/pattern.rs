//! Which functions are listed: names that contain a text, or fit a pattern as a shell has it.

/// A text that a name contains, or a pattern with `*` and `?` that the whole name fits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pattern(String);

impl Pattern {
    /// Any text is a pattern.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The pattern as it was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it has characters that stand for others.
    #[must_use]
    pub fn is_glob(&self) -> bool {
        self.0.contains(['*', '?'])
    }

    /// Whether a name is meant.
    #[must_use]
    pub fn fits(&self, name: &str) -> bool {
        if self.is_glob() {
            glob(self.0.as_bytes(), name.as_bytes())
        } else {
            name.contains(&self.0)
        }
    }
}

/// Goes back to the last `*` only, which is enough and keeps the time below length × length. Works on bytes: a
/// `?` is one byte of a name.
fn glob(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&byte) if byte == b'?' || byte == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    p = at + 1;
                    n = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_contained_and_patterns_fit_the_whole_name() {
        let cases = [
            ("map", "std::map<int>::at", true),
            ("Map", "std::map<int>::at", false),
            ("", "anything", true),
            ("std::*", "std::map", true),
            ("std::*", "boost::std::map", false),
            ("*map*at", "std::map<int>::at", true),
            ("f?o", "foo", true),
            ("f?o", "fo", false),
            ("*", "", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-b-b-d", false),
        ];
        for (pattern, name, fits) in cases {
            assert_eq!(Pattern::new(pattern).fits(name), fits, "{pattern} {name}");
        }
    }

    #[test]
    fn many_stars_take_no_time() {
        let pattern = Pattern::new("*a".repeat(1_000) + "b");
        assert!(!pattern.fits(&"a".repeat(100_000)));
    }
}
