//! Looks at the Python functions that run, added up. Pure, and bounded.

use std::collections::{HashMap, HashSet};

use darc_process::python::{PythonFunction, PythonLook};
use serde::Serialize;

/// So many functions are told apart.
const MOST_FUNCTIONS: usize = 10_000;

/// The looks of a recording.
#[derive(Debug, Default)]
pub struct PythonLooks {
    looks: u64,
    unread: u64,
    functions: HashMap<PythonFunction, (u64, u64)>,
}

/// Which Python functions ran.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PythonProfile {
    /// Stacks of running threads that were read.
    pub looks: u64,
    /// Those that could not be, as they changed meanwhile.
    pub unread: u64,
    /// The functions, the busiest first.
    pub functions: Vec<PythonEntry>,
}

/// A Python function.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PythonEntry {
    /// Its name.
    pub name: String,
    /// Its file, as the interpreter has it.
    pub file: String,
    /// The line of its definition.
    pub line: u32,
    /// Looks that found it, or what is not written in Python below it.
    pub own: u64,
    /// Looks that found it, or anything below it.
    pub total: u64,
}

impl PythonLooks {
    /// Adds a look.
    pub fn add(&mut self, look: PythonLook) {
        self.unread += look.unread;
        for stack in look.stacks {
            self.looks += 1;
            let mut counted = HashSet::new();
            for (depth, function) in stack.into_iter().enumerate() {
                let is_first = counted.insert(function.clone());
                self.count(function, u64::from(depth == 0), u64::from(is_first));
            }
        }
    }

    fn count(&mut self, function: PythonFunction, own: u64, total: u64) {
        let has_room = self.functions.len() < MOST_FUNCTIONS;
        if has_room || self.functions.contains_key(&function) {
            let sums = self.functions.entry(function).or_default();
            sums.0 += own;
            sums.1 += total;
        }
    }

    /// The functions; nothing where no Python function ran.
    #[must_use]
    pub fn profile(&self) -> Option<PythonProfile> {
        let entry = |(function, &(own, total)): (&PythonFunction, &(u64, u64))| PythonEntry {
            name: function.name.clone(),
            file: function.file.clone(),
            line: function.line,
            own,
            total,
        };
        let mut functions: Vec<PythonEntry> = self.functions.iter().map(entry).collect();
        functions.sort_by(|a, b| {
            let place = |it: &PythonEntry| (it.file.clone(), it.line, it.name.clone());
            (b.own, b.total)
                .cmp(&(a.own, a.total))
                .then_with(|| place(a).cmp(&place(b)))
        });
        (self.looks > 0).then_some(PythonProfile {
            looks: self.looks,
            unread: self.unread,
            functions,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str) -> PythonFunction {
        PythonFunction {
            name: name.to_owned(),
            file: "app.py".to_owned(),
            line: 1,
        }
    }

    #[test]
    fn a_function_that_calls_itself_is_in_a_look_once() {
        let mut looks = PythonLooks::default();
        assert_eq!(looks.profile(), None);
        let stack = ["f", "g", "f"].map(function).to_vec();
        looks.add(PythonLook {
            stacks: vec![stack, vec![function("g")]],
            unread: 3,
        });
        let profile = looks.profile().unwrap();
        assert_eq!((profile.looks, profile.unread), (2, 3));
        let figures = profile
            .functions
            .iter()
            .map(|it| (it.name.as_str(), it.own, it.total));
        assert_eq!(figures.collect::<Vec<_>>(), [("g", 1, 2), ("f", 1, 1)]);
    }
}
