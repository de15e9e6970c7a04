//! How well the name of a Go function fits one that a person typed, as Go's stack traces and sources have it.
//!
//! Source: Go's `src/cmd/internal/objabi/path.go` (dots in the last element of a package's path are `%2e`),
//! `src/cmd/compile/internal/types/fmt.go` (type arguments are shapes, `go.shape.int`; Go 1.18 and 1.19 number them,
//! `go.shape.int_0`) and `src/runtime/traceback.go` (which prints them as `[...]`).

use crate::names::Fit;

/// What stands for any type arguments: in stack traces, and in the table that the run-time reads.
const ANY: &str = "...";
/// The beginning of the compiler's name for all types that have the same code.
const SHAPE: &str = "go.shape.";
/// What it calls any pointer then.
const POINTER: &str = "*uint8";

/// How well a symbol fits a typed name; `None` when it does not. The tail of a name begins behind a dot or a slash, type
/// arguments need not be typed, nor that the receiver is a pointer.
pub fn fit(symbol: &str, name: &str) -> Option<Fit> {
    if symbol == name {
        return Some(Fit::Exact);
    }
    let (symbol, name) = (Parts::of(symbol), Parts::of(name));
    if !symbol.has_arguments(&name.arguments) {
        return None;
    }
    let any_receiver = (!name.bare.contains("(*")).then(|| without_pointer(&symbol.bare));
    let candidates = [Some(symbol.bare), any_receiver];
    let fits = candidates.into_iter().flatten().filter_map(|candidate| {
        let front = candidate.strip_suffix(name.bare.as_str())?;
        match front {
            "" => Some(Fit::NoArguments),
            _ => front.ends_with(['.', '/']).then_some(Fit::Tail),
        }
    });
    fits.min()
}

/// What every symbol contains that a name may mean.
pub fn needle(name: &str) -> String {
    let bare = Parts::of(name).bare;
    bare.rsplit('.').next().unwrap_or_default().to_owned()
}

/// A name of the compiler's as people write it: `main.largest[go.shape.int]` → `main.largest[int]`. All pointers have the same code
/// ([`ANY`]); types that are named have that of what they are made of.
pub fn shown(symbol: &str) -> String {
    let mut shown = String::with_capacity(symbol.len());
    let mut rest = symbol;
    while let Some((before, behind)) = rest.split_once(SHAPE) {
        shown.push_str(before);
        // To the next shape, or to the end of this argument.
        let next = behind.find(SHAPE).unwrap_or(behind.len());
        let mut depth = 0_usize;
        let ends = |c: char| {
            let is_last = depth == 0 && matches!(c, ']' | ',');
            depth = nested(depth, c);
            is_last
        };
        let end = behind[..next].find(ends).unwrap_or(next);
        shown.push_str(&plain_shape(&behind[..end]));
        rest = &behind[end..];
    }
    shown.push_str(rest);
    shown
}

/// `main.(*T).f` → `main.T.f`
fn without_pointer(name: &str) -> String {
    name.replace("(*", "").replace(')', "")
}

/// A name in two parts.
struct Parts {
    /// Without type arguments.
    bare: String,
    /// What is in the brackets, in their order.
    arguments: Vec<String>,
}

impl Parts {
    fn of(name: &str) -> Parts {
        let mut parts = Parts {
            bare: String::with_capacity(name.len()),
            arguments: Vec::new(),
        };
        let mut depth = 0usize;
        let mut inside = String::new();
        for c in name.replace("%2e", ".").chars().filter(|c| *c != ' ') {
            match c {
                '[' => depth += 1,
                ']' if depth == 1 => parts.arguments.push(shown(&std::mem::take(&mut inside))),
                _ if depth == 0 => parts.bare.push(c),
                _ => {}
            }
            if c == ']' {
                depth = depth.saturating_sub(1);
            }
            if depth > 1 || depth == 1 && c != '[' {
                inside.push(c);
            }
        }
        parts
    }

    /// Whether a name with these type arguments may mean this one.
    fn has_arguments(&self, typed: &[String]) -> bool {
        let is_any = |argument: &String| argument == ANY;
        let own = self.arguments.len().checked_sub(typed.len());
        let own = own.map(|at| &self.arguments[at..]);
        typed.iter().all(is_any)
            || self.arguments.iter().any(is_any)
            || own.is_some_and(|own| {
                own.iter()
                    .zip(typed)
                    .all(|(own, typed)| are_alike(own, typed))
            })
    }
}

/// Whether lists of type arguments may be the same, each of which may be [`ANY`].
fn are_alike(one: &str, other: &str) -> bool {
    let (one, other) = (apart(one), apart(other));
    let mut pairs = one.iter().zip(&other);
    one.len() == other.len()
        && pairs.all(|(one, other)| one == other || [one, other].contains(&&ANY))
}

/// How deep in brackets one is behind a character.
fn nested(depth: usize, c: char) -> usize {
    match c {
        '[' | '(' | '{' => depth + 1,
        ']' | ')' | '}' => depth.saturating_sub(1),
        _ => depth,
    }
}

/// Type arguments one by one; a comma within brackets is one's own.
fn apart(arguments: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    let at_comma = |c: char| {
        depth = nested(depth, c);
        c == ',' && depth == 0
    };
    arguments.split(at_comma).collect()
}

/// A shape behind [`SHAPE`], without its number.
fn plain_shape(shape: &str) -> String {
    let front = shape.trim_end_matches(|c: char| c.is_ascii_digit());
    let numbered = front.strip_suffix('_').filter(|_| front != shape);
    match numbered.unwrap_or(shape) {
        POINTER => ANY.to_owned(),
        plain => plain.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn go_functions_have_the_names_that_people_type() {
        const EXACT: Option<Fit> = Some(Fit::Exact);
        const WHOLE: Option<Fit> = Some(Fit::NoArguments);
        const TAIL: Option<Fit> = Some(Fit::Tail);
        for (symbol, name, expected) in [
            ("main.handle", "main.handle", EXACT),
            ("main.handle", "handle", TAIL),
            ("main.handle", "andle", None),
            ("main.handle.func1", "handle.func1", TAIL),
            ("main.handle.func1", "main.handle", None),
            ("main.(*Server).handle", "(*Server).handle", TAIL),
            ("main.(*Server).handle", "Server.handle", TAIL),
            ("main.(*Server).handle", "main.Server.handle", WHOLE),
            ("main.Server.handle", "main.(*Server).handle", None),
            ("example.org/a/b.(*T).f", "b.(*T).f", TAIL),
            ("example.org/a/b.f", "a/b.f", TAIL),
            ("gopkg.in/yaml%2ev3.f", "gopkg.in/yaml.v3.f", WHOLE),
            ("main.largest[go.shape.int]", "main.largest", WHOLE),
            ("main.largest[go.shape.int]", "main.largest[...]", WHOLE),
            ("main.largest[go.shape.int]", "main.largest[int]", WHOLE),
            ("main.largest[go.shape.int_0]", "largest[int]", TAIL),
            ("main.largest[go.shape.int]", "main.largest[string]", None),
            ("main.largest[...]", "main.largest[int]", WHOLE),
            (
                "main.two[go.shape.int_0,go.shape.string_1]",
                "main.two[int, string]",
                WHOLE,
            ),
            ("main.(*Of[go.shape.[]uint8]).f", "main.(*Of).f", WHOLE),
            ("main.(*Of[go.shape.[]uint8]).f", "Of[[]uint8].f", TAIL),
            ("main.(*Of[go.shape.[]uint8]).f", "Of[uint8].f", None),
            ("main.each[go.shape.*uint8]", "main.each[*Server]", WHOLE),
            (
                "main.two[go.shape.int,go.shape.*uint8]",
                "two[int, *T]",
                TAIL,
            ),
            (
                "main.two[go.shape.int,go.shape.*uint8]",
                "two[string, ...]",
                None,
            ),
            (
                "main.of[go.shape.map[string]int]",
                "main.of[map[string]int]",
                WHOLE,
            ),
        ] {
            assert_eq!(fit(symbol, name), expected, "{symbol} {name}");
            if expected.is_some() {
                assert!(symbol.contains(&needle(name)), "{symbol} {name}");
            }
        }
    }

    #[test]
    fn names_are_shown_as_people_write_them() {
        for (symbol, expected) in [
            ("main.handle", "main.handle"),
            ("main.largest[go.shape.int]", "main.largest[int]"),
            ("main.largest[go.shape.int_0]", "main.largest[int]"),
            (
                "main.largest[go.shape.int].func1",
                "main.largest[int].func1",
            ),
            ("main.each[go.shape.*uint8]", "main.each[...]"),
            (
                "main.(*Of[go.shape.[]uint8,go.shape.string_1]).f",
                "main.(*Of[[]uint8,string]).f",
            ),
            (
                "main.of[go.shape.map[string]int]",
                "main.of[map[string]int]",
            ),
            ("main.of[go.shape.[]go.shape.int_0]", "main.of[[]int]"),
            ("go.shape.", ""),
        ] {
            let said = shown(symbol);
            assert_eq!(said, expected);
            assert!(
                symbol == "go.shape." || fit(symbol, &said).is_some(),
                "{symbol}"
            );
        }
    }

    proptest! {
        #[test]
        fn what_fits_has_what_every_one_contains(symbol in "[a-b.(*)\\[\\]%2e/ ]{0,20}", name in "[a-b.(*)\\[\\]/]{1,8}") {
            if fit(&symbol, &name).is_some_and(|fit| fit != Fit::Exact) && !symbol.contains('%') {
                let plain = without_pointer(&symbol.replace(' ', ""));
                prop_assert!(plain.contains(&without_pointer(&needle(&name))));
            }
        }
    }
}
