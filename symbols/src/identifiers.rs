//! The identifiers in a mangled name, found without demangling it: both C++'s and Rust's manglings write an identifier as its
//! length and itself.

/// Nothing is looked for behind this many bytes.
const MAX_SCANNED: usize = 4096;

/// What may be the identifiers of a mangled name, in order. There may be others among them: a digit may mean something else.
pub(crate) fn identifiers(mangled: &str) -> impl Iterator<Item = &str> {
    let bytes = mangled.as_bytes();
    // The newer Rust mangling separates an identifier that begins with a digit or `_`.
    let separator = mangled.starts_with("_R");
    let mut at = 0;
    // An identifier may end in digits, behind which the next length begins.
    let mut last_end = 0;
    std::iter::from_fn(move || {
        loop {
            // Names of people have some dozens.
            if at >= MAX_SCANNED {
                return None;
            }
            let digit = bytes.get(at)?.is_ascii_digit();
            let begins = digit && (at == 0 || !bytes[at - 1].is_ascii_digit() || at == last_end);
            if !begins {
                at += 1;
                continue;
            }
            let digits = bytes[at..].iter().take_while(|it| it.is_ascii_digit());
            let start = at + digits.count();
            let length: Option<usize> = mangled.get(at..start).and_then(|it| it.parse().ok());
            at += 1;
            let start = start + usize::from(separator && bytes.get(start) == Some(&b'_'));
            let end = length.and_then(|length| start.checked_add(length));
            let found = end.and_then(|end| mangled.get(start..end));
            if let Some(identifier) = found.filter(|it| !it.is_empty()) {
                last_end = start + identifier.len();
                return Some(identifier);
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_of_both_languages_are_found() {
        for (mangled, expected) in [
            ("_ZN2ns5Class6methodEi", &["ns", "Class", "method"][..]),
            ("_ZN2a13fooEv", &["a1", "foo"]),
            ("_ZN12_GLOBAL__N_16hiddenEi", &["hidden"]),
            ("_RNvCs1234_7mycrate3foo", &["mycrate", "foo"]),
            ("_RNvCs1_1a4__foo", &["_foo"]),
        ] {
            let found: Vec<&str> = identifiers(mangled).collect();
            for name in expected {
                assert!(found.contains(name), "{mangled}: {found:?}");
            }
        }
        for damaged in ["_Z99999999999999999999999999x", "_Z9", "", "_Zé5ö", "_Z3öö"] {
            let _ = identifiers(damaged).count();
        }
    }
}
