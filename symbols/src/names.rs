//! How a demangled name is composed, and how well a symbol fits a name that a person typed.

use crate::demangle::{demangle, try_demangle};
use crate::matching::clone_of;
use crate::symtab::without_version;

/// How well a symbol fits a name, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fit {
    /// The mangled or the whole demangled name.
    Exact,
    /// All but arguments and generics.
    NoArguments,
    /// The last components.
    Tail,
}

/// How well a symbol's raw name fits a typed name; `None` when it does not.
pub(crate) fn fit(raw: &str, demangled: Option<&str>, name: &str) -> Option<Fit> {
    if raw == name {
        return Some(Fit::Exact);
    }
    let (name, full) = (squeeze(name), squeeze(demangled.unwrap_or(raw)));
    let full = match name.contains(ABI_TAG) {
        true => full,
        false => without_abi_tags(full),
    };
    let (name, full) = (without_impl(name), without_impl(full));
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
        return Some(Fit::NoArguments);
    }
    let tail = |candidate: &str| {
        candidate
            .strip_suffix(name.as_str())
            .is_some_and(|front| front.ends_with("::"))
    };
    (tail(&full) || tail(short) || tail(&bare)).then_some(Fit::Tail)
}

/// What the compiler adds to the names of functions whose types are of one kind of several.
const ABI_TAG: &str = "[abi:";

/// `format[abi:cxx11](int)` → `format(int)`: the source has no such tag.
fn without_abi_tags(mut name: String) -> String {
    while let Some(at) = name.find(ABI_TAG) {
        let Some(length) = name[at..].find(']') else {
            break;
        };
        name.replace_range(at..=at + length, "");
    }
    name
}

/// Whether a symbol (raw) is one that a name means, without regard of how well: whole, or without arguments, generics or
/// the components in front.
pub fn is_called(raw: &str, name: &str) -> bool {
    let raw = without_version(raw);
    fit(raw, try_demangle(raw).as_deref(), name).is_some()
}

/// Rust's newer mangling calls a type's own method `<path::Type>::method`; people type `path::Type::method`.
fn without_impl(name: String) -> String {
    let Some(rest) = name.strip_prefix('<') else {
        return name;
    };
    let mut depth = 1usize;
    let mut previous = '<';
    for (at, c) in rest.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if previous != '-' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            let (own, behind) = (&rest[..at], &rest[at + 1..]);
            let is_path = own.chars().all(|c| is_word(c) || c == ':');
            return match is_path && behind.starts_with("::") {
                true => format!("{own}{behind}"),
                false => name,
            };
        }
        previous = c;
    }
    name
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

/// The name of the function that a symbol is of, demangled and without arguments; of a clone that the optimizer made, the name of
/// the function that it was made of.
pub fn original(raw: &str) -> String {
    let name = demangle(clone_of(raw).unwrap_or(raw));
    without_arguments(&name).to_owned()
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
    // A method may have several, in any order.
    while let Some(front) = ["&", "volatile", "const"]
        .iter()
        .find_map(|qualifier| rest.strip_suffix(qualifier))
    {
        rest = front.trim_end();
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

/// Whether a component of a name stands for a closure. Only Rust calls them so.
fn is_closure(component: &str) -> bool {
    component == "{{closure}}" || component.starts_with("{closure#")
}

/// Whether only a function of Rust may have such a name.
pub(crate) fn is_of_rust(name: &str) -> bool {
    name.rsplit("::").next().is_some_and(is_closure)
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
    // A closure has no identifier of its own.
    let mut components = bare.rsplit("::").skip_while(|part| is_closure(part));
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
            ("a::f()const&", "a::f"),
            ("a::f() const &", "a::f"),
            ("a::f()const volatile&&", "a::f"),
            ("a::operator&", "a::operator&"),
            ("a::operator&()const", "a::operator&"),
            ("a::operator b const&()const", "a::operator b const&"),
            ("f(int)xconst", "f(int)xconst"),
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
        assert_eq!(last_identifier("a::{{closure}}"), "a");
        assert_eq!(last_identifier("a::{closure#0}::{closure#1}"), "a");
        assert_eq!(last_identifier("_ZN2ns1fEi"), "f");
    }

    #[test]
    fn what_a_symbol_is_of_has_no_arguments() {
        for (raw, name) in [
            ("serve", "serve"),
            ("serve.part.0", "serve"),
            ("_ZN12_GLOBAL__N_15serveEi", "(anonymous namespace)::serve"),
            (
                "_ZN12_GLOBAL__N_15serveEi.isra.0",
                "(anonymous namespace)::serve",
            ),
            ("_ZN2ns5Class6methodIiEEvi", "ns::Class::method<int>"),
        ] {
            assert_eq!(original(raw), name);
        }
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
            ("ns::Class::method", Some(Fit::NoArguments)),
            ("Class::method", Some(Fit::Tail)),
            ("method", Some(Fit::Tail)),
            ("ethod", None),
            ("ns::Class::method<char>", None),
            ("ns::Class::method(char)", None),
        ] {
            assert_eq!(fit(raw, Some(&demangled), name), expected, "{name}");
        }
        let raw = "_ZN2ns6reportB5cxx11Ei";
        let demangled = demangle(raw);
        for (name, expected) in [
            ("ns::report", Some(Fit::NoArguments)),
            ("report", Some(Fit::Tail)),
            ("ns::report[abi:cxx11]", Some(Fit::NoArguments)),
            ("ns::report[abi:other]", None),
        ] {
            assert_eq!(
                fit(raw, Some(&demangled), name),
                expected,
                "{name} {demangled}"
            );
        }
        let raw = "_ZNKR1A1fEv";
        let demangled = demangle(raw);
        assert_eq!(
            fit(raw, Some(&demangled), "A::f"),
            Some(Fit::NoArguments),
            "{demangled}"
        );
    }
}
