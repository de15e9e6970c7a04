//! Names of functions that people can read: those of C++ and Rust carry all their types.

/// Shorter names are shown as they are.
const LONG: usize = 48;

/// The name without what is inside of its angle brackets, and, where it is long still, without its parameters. A bracket that begins a
/// name (`<Type as Trait>::call`) says whose function it is: it stays, and so does a function without a name of its own (a lambda).
/// A thunk has the name of what it leads to.
#[must_use]
pub(super) fn short(name: &str) -> String {
    if let Some(function) = behind_thunk(name) {
        return format!("{} [thunk]", short(function));
    }
    if name.chars().count() <= LONG {
        return name.to_owned();
    }
    let without_types = without(name, Brackets::Angle);
    match without_types.chars().count() <= LONG {
        true => without_types,
        false => without(&without_types, Brackets::Round),
    }
}

/// The name without the namespaces, modules and crates that it and its types begin with: what begins with a small letter and is
/// followed by `::`. What a closure is in stays.
#[must_use]
pub(super) fn without_namespaces(name: &str) -> String {
    let mut left = String::with_capacity(name.len());
    let mut word = 0;
    let mut rest = name.char_indices().peekable();
    while let Some((at, char)) = rest.next() {
        if char.is_alphanumeric() || char == '_' {
            continue;
        }
        let begun = &name[word..at];
        word = at + char.len_utf8();
        let is_space = begun.starts_with(|first: char| first.is_lowercase() || first == '_');
        let behind = name[at..].strip_prefix("::");
        match behind.filter(|behind| is_space && !behind.starts_with(['{', '('])) {
            Some(_) => {
                rest.next();
                word += 1;
            }
            None => {
                left.push_str(begun);
                left.push(char);
            }
        }
    }
    left.push_str(&name[word..]);
    left
}

/// `{virtual override thunk({offset(-16)}, Slow::eval(long))}` → `Slow::eval(long)`.
fn behind_thunk(name: &str) -> Option<&str> {
    let inner = name.strip_prefix('{')?.strip_suffix(")}")?;
    let (_, inner) = inner.split_once(" thunk({")?;
    let (_, mut function) = inner.split_once("}, ").or(inner.split_once(", "))?;
    // A covariant one adjusts what is returned as well.
    while function.starts_with("{offset(") || function.starts_with("{virtual offset(") {
        (_, function) = function.split_once("}, ")?;
    }
    Some(function)
}

/// The first function without a name of its own that a text names: `void (Key&), main::{lambda(Key&)#2}` → `main::{lambda#2}`.
fn nameless(text: &str) -> Option<String> {
    let at = text.find("{lambda(")?;
    let begin = beginning(&text[..at]);
    let parameters = at + "{lambda".len();
    let mut depth = 0_usize;
    let (close, _) = text[parameters..].char_indices().find(|&(_, char)| {
        match char {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0
    })?;
    let number = text[parameters + close..].strip_prefix(")#")?;
    let number = &number[..number.find('}')?];
    Some(format!("{}{{lambda#{number}}}", &text[begin..at]))
}

/// Where the name begins at which a text ends: `void (), Pool<int, char>::run(int) const::` → that of `Pool`.
fn beginning(text: &str) -> usize {
    let mut depth = 0_usize;
    for (at, char) in text.char_indices().rev() {
        let is_arrow = char == '>' && text[..at].ends_with('-');
        let ends = match char {
            ')' | '>' if !is_arrow => {
                depth += 1;
                false
            }
            '(' | '<' if depth > 0 => {
                depth -= 1;
                false
            }
            ' ' => {
                let behind = &text[at + 1..];
                depth == 0
                    && !["const::", "volatile::"]
                        .iter()
                        .any(|it| behind.starts_with(it))
            }
            _ => depth == 0 && matches!(char, ',' | '<' | '(' | '&' | '*'),
        };
        if ends {
            return at + char.len_utf8();
        }
    }
    0
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
    let mut inside = 0;
    for (at, char) in text.char_indices() {
        // The arrow of a return type closes nothing.
        let is_arrow = char == '>' && before == '-';
        before = char;
        if depth == 0 {
            if char == open && brackets.opens(&left) {
                (depth, inside) = (1, at + open.len_utf8());
                left.push(open);
            } else {
                left.push(char);
            }
        } else if char == open {
            depth += 1;
        } else if char == close && !is_arrow {
            depth -= 1;
            if depth == 0 {
                let lambda = (brackets == Brackets::Angle).then(|| nameless(&text[inside..at]));
                left.push_str(lambda.flatten().as_deref().unwrap_or("…"));
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
    fn functions_without_names_are_found_in_templates() {
        for (text, name) in [
            ("void (Key&), main::{lambda(Key&)#2}", "main::{lambda#2}"),
            (
                "void (), Pool<int>::start()::{lambda()#1}",
                "Pool<int>::start()::{lambda#1}",
            ),
            (
                "void (), A<int, char>::f(int)::{lambda(B<int>)#3}",
                "A<int, char>::f(int)::{lambda#3}",
            ),
            (
                "int, C::get() const::{lambda()#1}",
                "C::get() const::{lambda#1}",
            ),
            ("f()::{lambda(g()::{lambda()#1})#2}", "f()::{lambda#2}"),
            ("{lambda(int)#1}", "{lambda#1}"),
        ] {
            assert_eq!(nameless(text).as_deref(), Some(name), "{text}");
        }
        for text in ["", "{lambda(", "{lambda()", "{lambda()#", "a{lambda(()#1}"] {
            assert_eq!(nameless(text), None, "{text}");
        }
        let thunk = "{virtual override thunk({offset(-16)}, A<f()::{lambda()#1}, int>::g())}";
        assert_eq!(behind_thunk(thunk), Some("A<f()::{lambda()#1}, int>::g()"));
    }

    #[test]
    fn namespaces_go() {
        for (name, expected) in [
            ("darc::command::demo::write_log", "write_log"),
            ("std::vector<ns::Key>::push_back", "vector<Key>::push_back"),
            ("<a::B as core::c::D>::run", "<B as D>::run"),
            ("tokio::task::{{closure}}", "task::{{closure}}"),
            ("(anonymous namespace)::Ü::f", "(anonymous namespace)::Ü::f"),
            ("serve", "serve"),
            ("a::", ""),
            ("", ""),
        ] {
            assert_eq!(without_namespaces(name), expected, "{name}");
        }
    }

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
        let cases = [
            (
                "std::_Function_handler<void (Req&), main::{lambda(Req&)#2}>::_M_invoke(std::_Any_data const&, Req&)",
                "std::_Function_handler<main::{lambda#2}>::_M_invoke(…)",
            ),
            (
                "std::thread::_State_impl<std::thread::_Invoker<std::tuple<Pool::start(int)::{lambda()#1}> > >::_M_run()",
                "std::thread::_State_impl<Pool::start(…)::{lambda#1}>::_M_run(…)",
            ),
            (
                "{virtual override thunk({virtual offset(0, -32)}, Slow::eval(long))}",
                "Slow::eval(long) [thunk]",
            ),
            (
                "{virtual override thunk({offset(-16)}, A::f())}",
                "A::f() [thunk]",
            ),
            (
                "{virtual override thunk({offset(-8)}, {offset(-16)}, A::f(int, char))}",
                "A::f(int, char) [thunk]",
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
