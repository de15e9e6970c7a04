//! Paths of functions that call themselves, directly or through others, as people would tell them.

use super::model::{Kind, RootCauseEntry};

/// A function on a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Step<'a> {
    /// Its name.
    pub(super) name: &'a str,
    /// Where on the path it is called first.
    pub(super) first: usize,
    /// Whether it calls itself further down on the path.
    pub(super) is_recursive: bool,
}

/// The path of a cause with each function once: what lies between a function and its own call further down is left out. A wrapper and
/// its system call are of one name, and no recursion.
pub(super) fn steps(cause: &RootCauseEntry) -> Vec<Step<'_>> {
    let (functions, call) = match cause.path.split_last() {
        Some((call, functions)) if cause.kind == Kind::Syscall => (functions, Some(call)),
        _ => (&cause.path[..], None),
    };
    let mut steps: Vec<Step<'_>> = Vec::new();
    for (first, name) in functions.iter().enumerate() {
        // Functions of one name in two modules are two.
        let module = |at: usize| cause.frames.get(at).and_then(|frame| frame.module.as_ref());
        let is_same = |step: &Step<'_>| step.name == name && module(step.first) == module(first);
        match steps.iter().position(is_same) {
            Some(known) => {
                steps.truncate(known + 1);
                steps[known].is_recursive = true;
            }
            None => steps.push(Step {
                name,
                first,
                is_recursive: false,
            }),
        }
    }
    steps.extend(call.map(|name| Step {
        name,
        first: functions.len(),
        is_recursive: false,
    }));
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    fn told(kind: Kind, path: &str) -> String {
        let report = fixture::report(1_000);
        let mut cause = report.peaks[0].root_causes[0].clone();
        cause.kind = kind;
        cause.path = path.split(' ').map(str::to_owned).collect();
        cause.frames.truncate(1);
        let steps = steps(&cause).into_iter().map(|step| {
            let mark = if step.is_recursive { "*" } else { "" };
            format!("{}{mark}@{}", step.name, step.first)
        });
        steps.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_function_that_calls_itself_is_told_once() {
        assert_eq!(told(Kind::Function, "serve read"), "serve@0 read@1");
        assert_eq!(
            told(Kind::Function, "serve sort sort sort compare"),
            "serve@0 sort*@1 compare@4"
        );
        assert_eq!(
            told(Kind::Loop, "serve eval call eval call add"),
            "serve@0 eval*@1 call@4 add@5"
        );
        assert_eq!(
            told(Kind::Syscall, "serve eval eval fsync fsync"),
            "serve@0 eval*@1 fsync@3 fsync@4"
        );
    }
}
