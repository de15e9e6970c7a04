//! What a person types to name a function.

use std::fmt;

use crate::addr::FileAddr;
use crate::demangle::escape;

/// Longer texts name nothing.
const MAX_SPEC: usize = 16 << 10;

/// A function as a person named it. Which functions it means is decided by [`crate::resolve`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameSpec {
    /// `btree_insert`, `ns::Class::method`, `f(int)`, `_Z1fi`, `crate::module::f`, `insert_*`; with `lib:` in front only in
    /// that module.
    Name {
        /// File name, or the front of it, of the module: `libc`, `libc.so.6`.
        module: Option<String>,
        /// The name or pattern.
        name: String,
    },
    /// `0x7f12…`: an address in the running target, which the caller converts.
    Address(u64),
    /// `lib+0x1234`, `lib:0x1234`: an address in the file.
    ModuleAddress {
        /// File name, or the front of it, of the module.
        module: String,
        /// Link-time address.
        addr: FileAddr,
    },
    /// `file.c:123`: the function that contains this line.
    Line {
        /// File name, with as many directories as needed.
        file: String,
        /// Line, from 1 on.
        line: u32,
    },
}

/// The text names no function.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSpec {
    /// Nothing there.
    #[error("the function's name is empty")]
    Empty,
    /// Too long.
    #[error("the function's name is longer than 16 KiB")]
    TooLong,
    /// `0x` and no hexadecimal number of 64 bits behind it.
    #[error("`{}`: not an address; expected 0x and up to 16 hexadecimal digits", escape(.0))]
    Address(String),
    /// `file:0`, or a line number beyond 32 bits.
    #[error("`{}`: not a line number; lines count from 1", escape(.0))]
    Line(String),
}

impl NameSpec {
    /// Reads what a person typed.
    ///
    /// # Errors
    /// Empty or endless text, an address or a line number that is none.
    pub fn parse(text: &str) -> Result<NameSpec, InvalidSpec> {
        let text = text.trim();
        if text.is_empty() {
            return Err(InvalidSpec::Empty);
        }
        if text.len() > MAX_SPEC {
            return Err(InvalidSpec::TooLong);
        }
        if let Some(digits) = hex_digits(text) {
            return Ok(NameSpec::Address(address(digits, text)?));
        }
        if let Some((module, digits)) = text.rsplit_once("+0x")
            && !module.is_empty()
            && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
        {
            return Ok(NameSpec::ModuleAddress {
                module: module.to_owned(),
                addr: FileAddr(address(digits, text)?),
            });
        }
        let Some((left, right)) = split_module(text) else {
            return Ok(NameSpec::Name {
                module: None,
                name: text.to_owned(),
            });
        };
        if right.is_empty() {
            return Err(InvalidSpec::Empty);
        }
        if right.bytes().all(|byte| byte.is_ascii_digit()) {
            let line = right.parse().ok().filter(|&line| line > 0);
            let line = line.ok_or_else(|| InvalidSpec::Line(text.to_owned()))?;
            return Ok(NameSpec::Line {
                file: left.to_owned(),
                line,
            });
        }
        let module = left.to_owned();
        if let Some(digits) = hex_digits(right) {
            return Ok(NameSpec::ModuleAddress {
                module,
                addr: FileAddr(address(digits, text)?),
            });
        }
        Ok(NameSpec::Name {
            module: Some(module),
            name: right.to_owned(),
        })
    }

    /// Whether a module of this file name is meant.
    pub fn allows_module(&self, file_name: &str) -> bool {
        match self {
            NameSpec::Name {
                module: Some(module),
                ..
            }
            | NameSpec::ModuleAddress { module, .. } => is_module(file_name, module),
            _ => true,
        }
    }
}

impl fmt::Display for NameSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NameSpec::Name {
                module: Some(module),
                name,
            } => write!(f, "{}:{}", escape(module), escape(name)),
            NameSpec::Name { module: None, name } => write!(f, "{}", escape(name)),
            NameSpec::Address(addr) => write!(f, "{addr:#x}"),
            NameSpec::ModuleAddress { module, addr } => write!(f, "{}+{addr}", escape(module)),
            NameSpec::Line { file, line } => write!(f, "{}:{line}", escape(file)),
        }
    }
}

/// `libc` means `libc.so.6` and `libc-2.31.so`, not `libcurl.so`.
fn is_module(file_name: &str, module: &str) -> bool {
    let rest = file_name.strip_prefix(module);
    rest.is_some_and(|rest| {
        rest.is_empty() || rest.starts_with(['.', '-']) || module.ends_with(['.', '-'])
    })
}

fn hex_digits(text: &str) -> Option<&str> {
    text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"))
}

fn address(digits: &str, text: &str) -> Result<u64, InvalidSpec> {
    let valid = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let addr = valid
        .then(|| u64::from_str_radix(digits, 16).ok())
        .flatten();
    addr.ok_or_else(|| InvalidSpec::Address(text.to_owned()))
}

/// Splits at the first single colon outside of all brackets; double ones separate components of a name.
fn split_module(text: &str) -> Option<(&str, &str)> {
    let bytes = text.as_bytes();
    let mut depth = 0u32;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'(' | b'<' | b'{' | b'[' => depth += 1,
            b')' | b'>' | b'}' | b']' => depth = depth.saturating_sub(1),
            b':' if bytes.get(at + 1) == Some(&b':') => at += 1,
            b':' if depth == 0 && at > 0 => return Some((&text[..at], &text[at + 1..])),
            _ => {}
        }
        at += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_are_told_apart() {
        let name = |module: Option<&str>, name: &str| {
            Ok(NameSpec::Name {
                module: module.map(str::to_owned),
                name: name.to_owned(),
            })
        };
        assert_eq!(NameSpec::parse(" main "), name(None, "main"));
        assert_eq!(
            NameSpec::parse("ns::f(std::pair<int, a::b>)"),
            name(None, "ns::f(std::pair<int, a::b>)")
        );
        assert_eq!(NameSpec::parse("libc:read"), name(Some("libc"), "read"));
        assert_eq!(
            NameSpec::parse("lib.so:ns::f"),
            name(Some("lib.so"), "ns::f")
        );
        assert_eq!(NameSpec::parse("::f"), name(None, "::f"));
        assert_eq!(
            NameSpec::parse("<a as b::C>::f"),
            name(None, "<a as b::C>::f")
        );
        assert_eq!(NameSpec::parse("0x1F"), Ok(NameSpec::Address(31)));
        assert_eq!(
            NameSpec::parse("libc:0x10"),
            Ok(NameSpec::ModuleAddress {
                module: "libc".into(),
                addr: FileAddr(16)
            })
        );
        assert_eq!(
            NameSpec::parse("libstdc++.so.6+0x10"),
            Ok(NameSpec::ModuleAddress {
                module: "libstdc++.so.6".into(),
                addr: FileAddr(16)
            })
        );
        assert_eq!(
            NameSpec::parse("operator+"),
            name(None, "operator+"),
            "a name"
        );
        assert_eq!(
            NameSpec::parse("a/b.c:12"),
            Ok(NameSpec::Line {
                file: "a/b.c".into(),
                line: 12
            })
        );
        assert_eq!(NameSpec::parse(""), Err(InvalidSpec::Empty));
        assert_eq!(NameSpec::parse("libc:"), Err(InvalidSpec::Empty));
        for bad in ["0x", "0xg", "0x11112222333344445", "0x+1", "l:0xyz", "l+0x"] {
            assert!(
                matches!(NameSpec::parse(bad), Err(InvalidSpec::Address(_))),
                "{bad}"
            );
        }
        for bad in ["a.c:0", "a.c:99999999999"] {
            assert!(
                matches!(NameSpec::parse(bad), Err(InvalidSpec::Line(_))),
                "{bad}"
            );
        }
    }

    #[test]
    fn modules_match_by_the_front_of_their_name() {
        for (file, module, is) in [
            ("libc.so.6", "libc", true),
            ("libc.so.6", "libc.so", true),
            ("libc.so.6", "libc.so.6", true),
            ("libc-2.31.so", "libc", true),
            ("libcurl.so.4", "libc", false),
            ("prog", "prog", true),
            ("prog2", "prog", false),
        ] {
            assert_eq!(is_module(file, module), is, "{file} {module}");
        }
    }
}
