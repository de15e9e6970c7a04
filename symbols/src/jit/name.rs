//! The parts of a name as run-times write them, and what people type of them.
//!
//! CPython writes `py::Class.method:/srv/app.py`, V8 `JS:*handle file:///srv/app.js:3:10` (with `~`, `^`, `+` or `*` for how far
//! it is compiled), agents for Java `com.foo.App::handle` or `Lcom/foo/App;::handle`.

use std::path::Path;

/// A name in its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JitName<'a> {
    /// The function's own name, with classes and packages.
    pub function: &'a str,
    /// Its source file.
    pub file: Option<&'a str>,
}

/// What run-times and people write in front of a name.
const KINDS: [&str; 9] = [
    "py::",
    "python:",
    "JS:",
    "js:",
    "LazyCompile:",
    "Function:",
    "Script:",
    "Eval:",
    "java:",
];

impl<'a> JitName<'a> {
    /// Takes a name apart.
    #[must_use]
    pub fn parse(name: &'a str) -> JitName<'a> {
        let rest = KINDS.iter().find_map(|kind| name.strip_prefix(kind));
        let Some(rest) = rest else {
            // Without a kind a colon alone parts a file from a name.
            return match split_file(name, ':') {
                Some((function, file)) if file.contains('.') => JitName {
                    function,
                    file: Some(file),
                },
                _ => JitName {
                    function: name,
                    file: None,
                },
            };
        };
        let rest = rest.trim_start_matches(['~', '^', '+', '*']);
        let parted = split_file(rest, ' ').or_else(|| split_file(rest, ':'));
        match parted {
            Some((function, file)) => JitName {
                function,
                file: Some(without_lines(file)),
            },
            None => JitName {
                function: rest,
                file: None,
            },
        }
    }

    /// Whether a person means this one: the name, or its last part, and the end of the file's path, if one was typed.
    #[must_use]
    pub fn is_meant_by(&self, typed: &JitName<'_>) -> bool {
        let function = self.function == typed.function
            || ['.', ':', '/']
                .iter()
                .any(|&part| self.function.rsplit(part).next() == Some(typed.function));
        let file = match (typed.file, self.file) {
            (None, _) => true,
            (Some(typed), Some(file)) => {
                let file = file.strip_prefix("file://").unwrap_or(file);
                Path::new(file).ends_with(without_lines(typed))
            }
            (Some(_), None) => false,
        };
        function && file && !typed.function.is_empty()
    }
}

/// Parts a name from the file behind it, at the first single separator.
fn split_file(text: &str, separator: char) -> Option<(&str, &str)> {
    let mut from = 0;
    while let Some(at) = text[from..].find(separator).map(|at| at + from) {
        let behind = &text[at + 1..];
        if separator == ':' && behind.starts_with(':') {
            from = at + 2;
            continue;
        }
        return (at > 0 && !behind.is_empty()).then(|| (&text[..at], behind));
    }
    None
}

/// `/srv/app.js:3:10` without line and column.
fn without_lines(file: &str) -> &str {
    let mut file = file;
    while let Some((front, digits)) = file.rsplit_once(':')
        && !digits.is_empty()
        && digits.bytes().all(|byte| byte.is_ascii_digit())
    {
        file = front;
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_type_parts_of_names() {
        let python = "py::Server.handle:/srv/app.py";
        let node = "JS:*handle file:///srv/app.js:3:10";
        let java = "com.foo.App::handle";
        for (name, typed, is) in [
            (python, "py::Server.handle:/srv/app.py", true),
            (python, "python:handle", true),
            (python, "handle", true),
            (python, "py::handle:app.py", true),
            (python, "handle:srv/app.py", true),
            (python, "handle:pp.py", false),
            (python, "andle", false),
            (node, "handle", true),
            (node, "js:handle", true),
            (node, "js:handle:app.js", true),
            (node, "handle:other.js", false),
            (java, "handle", true),
            (java, "com.foo.App::handle", true),
            ("Lcom/foo/App;::handle", "handle", true),
            (java, "", false),
            (python, ":", false),
        ] {
            let (parsed, typed_name) = (JitName::parse(name), JitName::parse(typed));
            assert_eq!(parsed.is_meant_by(&typed_name), is, "{name} {typed}");
        }
    }
}
