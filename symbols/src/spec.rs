//! What a person types to name a function.

use std::fmt;

use crate::addr::FileAddr;
use crate::demangle::{demangle, escape, try_demangle};
use crate::symtab::without_version;

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
    /// `lib:0x1234`: an address in the file.
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
            NameSpec::ModuleAddress { module, addr } => write!(f, "{}:{addr}", escape(module)),
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

/// How well a symbol fits a name, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fit {
    /// The mangled or the whole demangled name.
    Exact,
    /// All but the arguments.
    NoArguments,
    /// All but arguments and generics.
    NoGenerics,
    /// The last components.
    Tail,
}

/// How well a symbol's raw name fits a typed name; `None` when it does not.
pub(crate) fn fit(raw: &str, demangled: Option<&str>, name: &str) -> Option<Fit> {
    if raw == name {
        return Some(Fit::Exact);
    }
    let name = squeeze(name);
    let full = squeeze(demangled.unwrap_or(raw));
    if full == name {
        return Some(Fit::Exact);
    }
    let short = without_arguments(&full);
    if short == name {
        return Some(Fit::NoArguments);
    }
    let bare = without_generics(short);
    // Generics that were typed must be there.
    if bare == name
        || (without_generics(without_arguments(&name)) == name && bare == without_generics(&name))
    {
        return Some(Fit::NoGenerics);
    }
    let tail = |candidate: &str| {
        candidate
            .strip_suffix(name.as_str())
            .is_some_and(|front| front.ends_with("::"))
    };
    (tail(&full) || tail(short) || tail(&bare)).then_some(Fit::Tail)
}

/// Whether a raw name is one of the names meant, without regard of how well.
pub(crate) fn is_called(raw: &str, name: &str) -> bool {
    let raw = without_version(raw);
    fit(raw, try_demangle(raw).as_deref(), name).is_some()
}

/// Removes spaces that do not separate words: `f(int, char *)` and `f(int,char*)` are the same.
fn squeeze(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut pending = false;
    for c in name.chars() {
        if c.is_whitespace() {
            pending = true;
            continue;
        }
        if pending && is_word(c) && out.ends_with(is_word) {
            out.push(' ');
        }
        pending = false;
        out.push(c);
    }
    out
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

/// `ns::f(int) const` → `ns::f`. The parentheses of `operator()` and of an anonymous namespace are no arguments.
pub(crate) fn without_arguments(name: &str) -> &str {
    let mut rest = name;
    // `[clone .part.0]`, as demanglers add it.
    while let Some(front) = rest
        .strip_suffix(']')
        .and_then(|front| front.rsplit_once("[clone "))
    {
        rest = front.0.trim_end();
    }
    if let Some(front) = rest
        .strip_suffix(']')
        .and_then(|front| front.rsplit_once("[clone."))
    {
        rest = front.0;
    }
    for qualifier in ["&&", "&", "volatile", "const"] {
        rest = rest
            .strip_suffix(qualifier)
            .filter(|front| front.trim_end().ends_with(')'))
            .map_or(rest, str::trim_end);
    }
    if !rest.ends_with(')') {
        return name;
    }
    let mut depth = 0usize;
    for (at, byte) in rest.bytes().enumerate().rev() {
        match byte {
            b')' => depth += 1,
            b'(' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            let front = &rest[..at];
            let is_operator = front.ends_with("operator") && &rest[at..] == "()";
            return if at == 0 || is_operator || front.ends_with("::") {
                name
            } else {
                front
            };
        }
    }
    name
}

/// `ns::f<int>` → `ns::f`, `vec::Vec<T>::push::<u8>` → `vec::Vec::push`. A bracket that begins a component (Rust's
/// `<T as Trait>::f`) and the operators `<`, `<<`, `->` stay.
pub(crate) fn without_generics(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut depth = 0usize;
    let mut previous = ' ';
    for c in name.chars() {
        if depth > 0 {
            match c {
                '<' => depth += 1,
                '>' if previous != '-' => depth -= 1,
                _ => {}
            }
        } else if c == '<'
            && !out.ends_with("operator")
            && !out.ends_with("operator<")
            && opens_generics(&out)
        {
            if out.ends_with("::") {
                out.truncate(out.len() - 2);
            }
            depth = 1;
        } else {
            out.push(c);
        }
        previous = c;
    }
    out
}

fn opens_generics(front: &str) -> bool {
    let front = front.strip_suffix("::").unwrap_or(front);
    front.ends_with(is_word) || front.ends_with('>')
}

/// The last component of a name, without arguments and generics: `ns::Class<int>::method(int)` → `method`.
pub(crate) fn last_component(name: &str) -> String {
    let squeezed = squeeze(name);
    let bare = without_generics(without_arguments(&squeezed));
    bare.rsplit("::").next().unwrap_or_default().to_owned()
}

/// An identifier that must occur in the mangled name of every function that `name` means; empty when there is none.
pub(crate) fn last_identifier(name: &str) -> String {
    if try_demangle(name).is_some() {
        return last_component(&demangle(name));
    }
    let squeezed = squeeze(name);
    let bare = without_generics(without_arguments(&squeezed));
    let plain = |part: &&str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'$' || b == b'.')
    };
    let mut components = bare.rsplit("::");
    let last = components.next().unwrap_or_default();
    // The ABI abbreviates the constructors and destructors of some types.
    let owner = components.next().unwrap_or_default();
    let last = last.strip_prefix('~').unwrap_or(last);
    if last == owner && bare.starts_with("std::") {
        return String::new();
    }
    Some(last)
        .filter(plain)
        .filter(|last| !last.starts_with("operator"))
        .unwrap_or_default()
        .to_owned()
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
            NameSpec::parse("a/b.c:12"),
            Ok(NameSpec::Line {
                file: "a/b.c".into(),
                line: 12
            })
        );
        assert_eq!(NameSpec::parse(""), Err(InvalidSpec::Empty));
        assert_eq!(NameSpec::parse("libc:"), Err(InvalidSpec::Empty));
        for bad in ["0x", "0xg", "0x11112222333344445", "0x+1", "l:0xyz"] {
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

    #[test]
    fn arguments_and_generics_are_removed() {
        for (name, bare) in [
            ("f(int)", "f"),
            ("f()", "f"),
            ("a::f(int)const", "a::f"),
            ("F::operator()(int)const", "F::operator()"),
            ("F::operator()", "F::operator()"),
            ("(anonymous namespace)::f", "(anonymous namespace)::f"),
            (
                "(anonymous namespace)::f(void(*)(int))",
                "(anonymous namespace)::f",
            ),
            ("f(int)[clone .part.0]", "f"),
        ] {
            assert_eq!(without_arguments(name), bare, "{name}");
        }
        for (name, bare) in [
            ("f<int>", "f"),
            ("a<b<c>>::f", "a::f"),
            ("f::<u8>", "f"),
            ("<T as X>::f", "<T as X>::f"),
            ("operator<<", "operator<<"),
            ("operator<", "operator<"),
            ("operator<< <int>", "operator<< <int>"),
            ("A<int>::operator->", "A::operator->"),
            ("f<&(a->b)>", "f"),
        ] {
            assert_eq!(without_generics(name), bare, "{name}");
        }
        assert_eq!(
            last_component("ns::Class<int, std::pair<a, b>>::method(int, char*)"),
            "method"
        );
        assert_eq!(last_identifier("Foo::~Foo()"), "Foo");
        assert_eq!(last_identifier("std::string::string"), "");
        assert_eq!(last_identifier("operator+"), "");
        assert_eq!(last_identifier("a::{{closure}}"), "");
        assert_eq!(last_identifier("_ZN2ns1fEi"), "f");
    }

    #[test]
    fn fits_are_ranked() {
        let raw = "_ZN2ns5Class6methodIiEEvi";
        let demangled = demangle(raw);
        assert_eq!(demangled, "ns::Class::method<int>(int)");
        for (name, expected) in [
            (raw, Some(Fit::Exact)),
            ("ns::Class::method<int>(int)", Some(Fit::Exact)),
            ("ns::Class::method<int>( int )", Some(Fit::Exact)),
            ("ns::Class::method<int>", Some(Fit::NoArguments)),
            ("ns::Class::method", Some(Fit::NoGenerics)),
            ("Class::method", Some(Fit::Tail)),
            ("method", Some(Fit::Tail)),
            ("ethod", None),
            ("ns::Class::method<char>", None),
            ("ns::Class::method(char)", None),
        ] {
            assert_eq!(fit(raw, Some(&demangled), name), expected, "{name}");
        }
    }
}
