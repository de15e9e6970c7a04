//! Names of functions that people can read: those of C++ and Rust carry all their types.

/// Shorter names are shown as they are.
const LONG: usize = 48;

/// The name without what is inside of its angle brackets, and, where it is long still, without its parameters. A bracket that begins a
/// name (`<Type as Trait>::call`) says whose function it is: it stays.
#[must_use]
pub(super) fn short(name: &str) -> String {
    if name.chars().count() <= LONG {
        return name.to_owned();
    }
    let without_types = without(name, Brackets::Angle);
    match without_types.chars().count() <= LONG {
        true => without_types,
        false => without(&without_types, Brackets::Round),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Brackets {
    Angle,
    Round,
}

impl Brackets {
    fn pair(self) -> (char, char) {
        match self {
            Brackets::Angle => ('<', '>'),
            Brackets::Round => ('(', ')'),
        }
    }

    /// Whether a bracket behind this text opens what can be left out.
    fn opens(self, before: &str) -> bool {
        let is_operator = before.trim_end_matches(['<', '(']).ends_with("operator");
        let last = before.chars().next_back();
        let is_behind_name = last.is_some_and(|last| {
            last.is_alphanumeric() || matches!(last, '_' | ':' | '>' | '…' | ']')
        });
        is_behind_name && !is_operator && !(self == Brackets::Round && before.ends_with("::"))
    }
}

/// The text without what is inside of these brackets. Where they do not match, the text.
fn without(text: &str, brackets: Brackets) -> String {
    let (open, close) = brackets.pair();
    let mut left = String::with_capacity(text.len());
    let mut depth = 0_usize;
    let mut before = ' ';
    for char in text.chars() {
        // The arrow of a return type closes nothing.
        let is_arrow = char == '>' && before == '-';
        before = char;
        if depth == 0 {
            if char == open && brackets.opens(&left) {
                depth = 1;
                left.push(open);
                left.push('…');
            } else {
                left.push(char);
            }
        } else if char == open {
            depth += 1;
        } else if char == close && !is_arrow {
            depth -= 1;
            if depth == 0 {
                left.push(close);
            }
        }
    }
    match depth {
        0 => left,
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_left_out_of_long_names() {
        let cases = [
            (
                "std::_Hashtable<std::__cxx11::basic_string<char, std::char_traits<char> >, int>::_M_rehash(unsigned long, unsigned long const&)",
                "std::_Hashtable<…>::_M_rehash(…)",
            ),
            (
                "Sorter::apply(std::vector<int, std::allocator<int> >&)",
                "Sorter::apply(std::vector<…>&)",
            ),
            (
                "<alloc::vec::Vec<T, A> as core::iter::traits::collect::Extend<T>>::extend",
                "<alloc::vec::Vec<…> as core::iter::traits::collect::Extend<…>>::extend",
            ),
            (
                "std::ostream& operator<< <std::char_traits<char> >(std::ostream&, char const*)",
                "std::ostream& operator<< <std::char_traits<…> >(…)",
            ),
            (
                "(anonymous namespace)::Table::operator()(std::map<int, std::string> const&) const",
                "(anonymous namespace)::Table::operator()(std::map<…> const&) const",
            ),
            (
                "core::ops::function::FnOnce::call_once{{vtable.shim}}::h0123456789abcdef",
                "core::ops::function::FnOnce::call_once{{vtable.shim}}::h0123456789abcdef",
            ),
        ];
        for (name, expected) in cases {
            assert_eq!(short(name), expected);
        }
        assert_eq!(
            short("operator<<(std::ostream&, Key)"),
            "operator<<(std::ostream&, Key)"
        );
        let torn = "a_function_with_a_name_of_many_characters<of<types<that<never<end";
        assert_eq!(short(torn), torn);
    }
}
