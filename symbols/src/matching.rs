//! The functions of one file that a name means.

use std::collections::HashSet;
use std::path::Path;

use crate::addr::FileAddr;
use crate::demangle::{demangle, is_mangled, is_of_rust, try_demangle};
use crate::functions::{Function, FunctionKind};
use crate::go_names;
use crate::image::Image;
use crate::lines::Statement;
use crate::names::{self, Fit};
use crate::spec::NameSpec;
use crate::symtab::Version;

/// How well a function fits what was typed, best first. Only the best matches of all are considered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MatchRank {
    /// The mangled name, the whole demangled name, or the address.
    Exact,
    /// All but arguments and generics: overloads and templates of one name are several functions.
    WithoutArguments,
    /// A version of the symbol that only old programs use (`memcpy@GLIBC_2.2.5`), when there is no other.
    OldVersion,
    /// A clone that the optimizer made (`.isra.0`, `.constprop.0`, `.part.0`), when the function itself is not there.
    Clone,
    /// The last components of the name.
    Tail,
    /// A pattern.
    Pattern,
    /// It contains the source line.
    Line,
}

/// A function, and how it fits.
#[derive(Clone, Debug)]
pub struct Match<'a> {
    /// The function.
    pub function: &'a Function,
    /// The symbol (raw) by which it was found; empty when it has none.
    pub symbol: &'a str,
    /// How well it fits.
    pub rank: MatchRank,
}

/// The matches of the best rank in one image, sorted by address, one a function.
pub(crate) fn find<'a>(image: &'a Image, spec: &NameSpec) -> Vec<Match<'a>> {
    if !image.is_meant(spec) {
        return Vec::new();
    }
    let mut matches = match spec {
        NameSpec::Address(_) => Vec::new(),
        NameSpec::ModuleAddress { addr, .. } => at_address(image, *addr),
        NameSpec::Line { file, line } => at_line(image, file, *line),
        NameSpec::Name { name, .. } => {
            let mut found = named(image, name);
            if found.is_empty() {
                found.extend(unnamed(image, name));
            }
            if found.is_empty() && is_pattern(name) {
                found = by_pattern(image, name);
            }
            found
        }
    };
    let best = matches.iter().map(|found| found.rank).min();
    matches.retain(|found| Some(found.rank) == best);
    matches.dedup_by_key(|found| found.function.addr);
    matches
}

fn at_address(image: &Image, addr: FileAddr) -> Vec<Match<'_>> {
    let function = image
        .function_at(addr)
        .filter(|function| function.addr == addr);
    function
        .into_iter()
        .map(|function| matched(function, MatchRank::Exact))
        .collect()
}

/// The function without a symbol that disassemblers call `sub_1380`.
fn unnamed<'a>(image: &'a Image, name: &str) -> Option<Match<'a>> {
    let addr = u64::from_str_radix(name.strip_prefix("sub_")?, 16).ok()?;
    let mut found = at_address(image, FileAddr(addr)).into_iter();
    found.find(|found| found.symbol.is_empty())
}

fn matched(function: &Function, rank: MatchRank) -> Match<'_> {
    Match {
        function,
        symbol: function.raw_name().unwrap_or_default(),
        rank,
    }
}

fn named<'a>(image: &'a Image, name: &str) -> Vec<Match<'a>> {
    let filter = Prefilter::new(name);
    let of_go = image.is_go().then(|| go_names::needle(name));
    let rank = |symbol: &str| {
        let of_go = of_go
            .as_ref()
            .filter(|needle| symbol.contains(needle.as_str()));
        let fit = of_go.and_then(|_| go_names::fit(symbol, name));
        match fit {
            Some(fit) => Some(of_fit(fit)),
            None => rank(symbol, name, &filter),
        }
    };
    let best = |function: &'a Function| {
        let ranked = function.symbols().filter_map(|(symbol, version)| {
            let rank = rank(symbol)?;
            let old = version == Version::Old && rank < MatchRank::OldVersion;
            Some((if old { MatchRank::OldVersion } else { rank }, symbol))
        });
        let (rank, symbol) = ranked.min_by_key(|(rank, _)| *rank)?;
        Some(Match {
            function,
            symbol,
            rank,
        })
    };
    image.functions().iter().filter_map(best).collect()
}

fn rank(symbol: &str, name: &str, filter: &Prefilter) -> Option<MatchRank> {
    if !filter.may_match(symbol) {
        return None;
    }
    let rank = |raw: &str| names::fit(raw, try_demangle(raw).as_deref(), name);
    match rank(symbol).or_else(|| rank(renamed(symbol)?)) {
        Some(fit) => Some(of_fit(fit)),
        None => (rank(clone_of(symbol)?)? < Fit::Tail).then_some(MatchRank::Clone),
    }
}

fn of_fit(fit: Fit) -> MatchRank {
    match fit {
        Fit::Exact => MatchRank::Exact,
        Fit::NoArguments => MatchRank::WithoutArguments,
        Fit::Tail => MatchRank::Tail,
    }
}

/// What a symbol was called before it was renamed for link-time optimisation, where that of another file may have the same name:
/// `foo.lto_priv.0` → `foo`. It is no clone.
pub(crate) fn renamed(symbol: &str) -> Option<&str> {
    let suffixes = [".lto_priv.", ".llvm."].into_iter();
    let mut cuts = suffixes.filter_map(|suffix| symbol.rsplit_once(suffix));
    let is_number = |end: &str| end.bytes().all(|byte| byte.is_ascii_digit());
    cuts.find_map(|(front, end)| is_number(end).then_some(front))
}

/// The function that a symbol is a clone of, by its suffix: `foo.constprop.0.isra.0` → `foo`.
pub(crate) fn clone_of(symbol: &str) -> Option<&str> {
    let suffixes = [
        ".constprop.",
        ".isra.",
        ".part.",
        ".cold",
        ".lto_priv.",
        ".llvm.",
        ".localalias",
    ];
    let cut = suffixes
        .iter()
        .filter_map(|suffix| symbol.find(suffix))
        .min()?;
    (cut > 0).then(|| &symbol[..cut])
}

/// What a symbol was called before link-time optimisation renamed it, or the optimizer made a clone of the whole function; that of a part of
/// one (`.cold`, `.part`) is itself.
#[must_use]
pub fn as_compiled(symbol: &str) -> &str {
    let is_part = [".cold", ".part."].iter().any(|part| symbol.contains(part));
    clone_of(symbol).filter(|_| !is_part).unwrap_or(symbol)
}

/// Tells in a few nanoseconds that a symbol cannot match, so that a library with 300,000 mangled names is searched without
/// demangling them. Both manglings write an identifier as its length and itself.
struct Prefilter {
    plain: String,
    mangled: Option<[String; 2]>,
}

impl Prefilter {
    fn new(name: &str) -> Prefilter {
        let ident = names::last_identifier(name);
        let mangled = (!ident.is_empty()).then(|| {
            let len = ident.len();
            // The newer Rust mangling separates an identifier that begins with a digit or `_`.
            [format!("{len}{ident}"), format!("{len}_{ident}")]
        });
        Prefilter {
            plain: name.to_owned(),
            mangled,
        }
    }

    fn may_match(&self, symbol: &str) -> bool {
        if symbol == self.plain {
            return true;
        }
        if !is_mangled(symbol) {
            return symbol.starts_with(self.plain.as_str());
        }
        let Some([needle, separated]) = &self.mangled else {
            return true;
        };
        symbol.contains(needle.as_str()) || symbol.contains(separated.as_str())
    }
}

fn is_pattern(name: &str) -> bool {
    name.contains(['*', '?', '['])
}

fn by_pattern<'a>(image: &'a Image, pattern: &str) -> Vec<Match<'a>> {
    let of_rust = names::is_of_rust(pattern);
    let fits = |symbol: &str| {
        let name = || match of_rust && !is_of_rust(symbol) {
            true => None,
            false => try_demangle(symbol),
        };
        glob(pattern, symbol)
            || name().is_some_and(|name| {
                glob(pattern, &name) || glob(pattern, names::without_arguments(&name))
            })
    };
    // An ifunc's code is never what a pattern is after, only the functions it chooses from.
    let functions = image.functions().iter();
    functions
        .filter(|function| function.kind == FunctionKind::Code)
        .filter_map(|function| {
            let symbol = function.names().find(|symbol| fits(symbol))?;
            Some(Match {
                function,
                symbol,
                rank: MatchRank::Pattern,
            })
        })
        .collect()
}

/// Matches `*`, `?` and `[a-z]`, `[!a-z]` against a whole name. Takes at most the product of both lengths.
pub(crate) fn glob(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    let (mut p, mut t) = (0, 0);
    let mut retry = None;
    loop {
        if pattern.get(p) == Some(&'*') {
            p += 1;
            retry = Some((p, t));
            continue;
        }
        if p == pattern.len() && t == text.len() {
            return true;
        }
        match text.get(t).and_then(|&c| one(&pattern[p..], c)) {
            Some(used) => (p, t) = (p + used, t + 1),
            None => match retry {
                Some((after, from)) if from < text.len() => {
                    (p, t) = (after, from + 1);
                    retry = Some((after, from + 1));
                }
                _ => return false,
            },
        }
    }
}

/// Whether one pattern element matches a character: how long the element is.
fn one(pattern: &[char], c: char) -> Option<usize> {
    match pattern {
        ['?', ..] => Some(1),
        ['[', rest @ ..] if let Some(end) = rest.iter().skip(1).position(|&c| c == ']') => {
            let set = &rest[..=end];
            let (negated, set) = match set {
                ['!' | '^', set @ ..] if !set.is_empty() => (true, set),
                set => (false, set),
            };
            (in_set(set, c) != negated).then_some(end + 3)
        }
        [literal, ..] => (*literal == c).then_some(1),
        [] => None,
    }
}

fn in_set(mut set: &[char], c: char) -> bool {
    loop {
        match set {
            [low, '-', high, rest @ ..] => {
                if (*low..=*high).contains(&c) {
                    return true;
                }
                set = rest;
            }
            [single, rest @ ..] => {
                if *single == c {
                    return true;
                }
                set = rest;
            }
            [] => return false,
        }
    }
}

/// The functions whose own code (not that of an inlined copy) has statements of the line.
fn at_line<'a>(image: &'a Image, file: &str, line: u32) -> Vec<Match<'a>> {
    let mut seen = HashSet::new();
    let mut matches = Vec::new();
    for statement in image.statements(file, line) {
        let Some(function) = image.function_at(statement.addr) else {
            continue;
        };
        if !seen.contains(&function.addr) && is_own(image, function, statement, file) {
            seen.insert(function.addr);
            matches.push(matched(function, MatchRank::Line));
        }
    }
    matches.sort_by_key(|found| found.function.addr);
    matches
}

/// Whether a statement belongs to the function itself: nothing is inlined there, or the function's own line calls what is
/// inlined (the copy may begin at the very same address), or it is the line that opens the function.
fn is_own(image: &Image, function: &Function, statement: Statement, file: &str) -> bool {
    let frames = image.frames(statement.addr);
    let [.., _, outermost] = frames.as_slice() else {
        return true;
    };
    let path = outermost.file.as_ref().map(Path::new);
    let calls =
        outermost.line == Some(statement.line) && path.is_some_and(|path| path.ends_with(file));
    calls || (statement.addr == function.addr && statement.is_first)
}

/// The name of a match for people.
pub(crate) fn shown(image: &Image, found: &Match<'_>) -> String {
    if found.symbol.is_empty() {
        image.name_of(found.function)
    } else {
        demangle(found.symbol)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, text, is) in [
            ("*", "", true),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxbyy", false),
            ("?", "é", true),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]x]", "]", true),
            ("f[", "f[", true),
            ("operator[]", "operator[]", true),
            ("a*", "b", false),
            ("**a", "bba", true),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(glob(pattern, text), is, "{pattern} {text}");
        }
        assert!(!glob(&"*a".repeat(50), &"a".repeat(49)));
    }

    #[test]
    fn clones_are_recognised() {
        assert_eq!(clone_of("foo.constprop.0.isra.1"), Some("foo"));
        assert_eq!(clone_of("foo.part.0.cold"), Some("foo"));
        assert_eq!(clone_of("foo"), None);
        assert_eq!(clone_of(".cold"), None);
        for (symbol, as_written) in [
            ("_Z5servev.Frame.actor.lto_priv.0", "_Z5servev.Frame.actor"),
            ("_ZL5servem.isra.0", "_ZL5servem"),
            ("_ZL5servem.constprop.0.cold", "_ZL5servem.constprop.0.cold"),
            ("_ZL5servem", "_ZL5servem"),
        ] {
            assert_eq!(as_compiled(symbol), as_written);
        }
    }

    #[test]
    fn prefilter_keeps_what_matches() {
        for (name, symbol, may) in [
            ("f", "_ZN2ns1fEi", true),
            ("f", "_ZN2ns2ffEi", false),
            ("f", "f", true),
            ("f", "f.part.0", true),
            ("_foo", "_RNvCs1_1a4__foo", true),
            ("a::operator+", "_ZN1aplEi", true),
            ("f", "g", false),
            (
                "a::{{closure}}",
                "_ZN1a28_$u7b$$u7b$closure$u7d$$u7d$17h0123456789abcdefE",
                true,
            ),
            ("a::{closure#0}", "_RNCNvCs1_5crate1a0", true),
            (
                "a::{{closure}}",
                "_ZN1b28_$u7b$$u7b$closure$u7d$$u7d$17h0123456789abcdefE",
                false,
            ),
        ] {
            assert_eq!(
                Prefilter::new(name).may_match(symbol),
                may,
                "{name} {symbol}"
            );
        }
    }
}
