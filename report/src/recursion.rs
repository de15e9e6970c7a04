//! Paths of functions that call themselves, directly or through others, as people would tell them.

use super::escape::control;
use super::model::{Frame, Kind, RootCauseEntry};
use super::names::short;
use super::place::Place;

/// A function on a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Step<'a> {
    /// Its name.
    pub(super) name: &'a str,
    /// What tells it from other functions of its name.
    pub(super) which: Option<&'a str>,
    /// Where on the path it is called first.
    pub(super) first: usize,
    /// Whether it calls itself further down on the path.
    pub(super) is_recursive: bool,
}

impl Step<'_> {
    /// What people read, without its place on the path.
    pub(super) fn shown(&self) -> String {
        let name = short(self.name);
        let which = self.which.map(|which| format!(" ({})", control(which)));
        let mark = if self.is_recursive {
            " (recursive)"
        } else {
            ""
        };
        format!("{}{}{mark}", control(&name), which.unwrap_or_default())
    }
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
        // Functions of one name in two places are two.
        let frame = |at: usize| cause.frames.get(at);
        let is_same = |step: &Step<'_>| {
            let frames = frame(step.first).zip(frame(first));
            step.name == name && frames.is_none_or(|(one, other)| one.is_of(other))
        };
        match steps.iter().position(is_same) {
            Some(known) => {
                steps.truncate(known + 1);
                steps[known].is_recursive = true;
            }
            None => steps.push(Step {
                name,
                which: frame(first).and_then(|frame| frame.which.as_deref()),
                first,
                is_recursive: false,
            }),
        }
    }
    steps.extend(call.map(|name| Step {
        name,
        which: None,
        first: functions.len(),
        is_recursive: false,
    }));
    steps
}

/// Keeps the line of a function's definition only where another one on these paths has its name, and its place instead where these
/// have one line.
pub(super) fn tell_apart(causes: &mut [RootCauseEntry]) {
    let all: Vec<Frame> = causes
        .iter()
        .flat_map(|cause| cause.frames.clone())
        .collect();
    for frame in causes.iter_mut().flat_map(|cause| &mut cause.frames) {
        let others = all
            .iter()
            .filter(|other| other.name == frame.name && !other.is_of(frame));
        let others: Vec<&Frame> = others.collect();
        if others.is_empty() || others.iter().any(|other| other.which == frame.which) {
            let place = frame.module.clone().zip(frame.offset);
            let place = place.map(|(module, offset)| Place { module, offset }.to_string());
            frame.which = place.filter(|_| !others.is_empty());
        }
    }
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
    fn functions_of_one_name_have_the_line_that_tells_them_apart() {
        let mut causes = fixture::report(1_000).peaks.remove(0).root_causes;
        causes.truncate(1);
        let of = |name: &str, offset, which: &str| Frame {
            name: name.to_owned(),
            module: Some("prog".to_owned()),
            offset: Some(offset),
            which: Some(which.to_owned()),
            ..Frame::default()
        };
        causes[0].frames = vec![
            of("serve", 1, "a.c:1"),
            of("process", 2, "a.c:9"),
            of("process", 3, "b.c:9"),
            of("call_once", 4, "function.rs:250"),
            of("call_once", 5, "function.rs:250"),
            of("process", 2, "a.c:9"),
        ];
        tell_apart(&mut causes);
        let frames = causes[0].frames.iter();
        let which: Vec<_> = frames.map(|frame| frame.which.as_deref()).collect();
        let (one, other) = (Some("a.c:9"), Some("b.c:9"));
        let places = [Some("prog+0x4"), Some("prog+0x5")];
        assert_eq!(which, [None, one, other, places[0], places[1], one]);
    }

    #[test]
    fn two_functions_of_one_name_are_no_recursion() {
        let mut cause = fixture::report(1_000).peaks[0].root_causes[0].clone();
        cause.kind = Kind::Function;
        cause.path = ["serve", "process", "decode", "process"]
            .map(str::to_owned)
            .to_vec();
        let of = |(name, offset): (&String, u64)| Frame {
            name: name.clone(),
            offset: Some(offset),
            which: (name == "process").then(|| format!("{offset}.c:1")),
            ..Frame::default()
        };
        cause.frames = cause.path.iter().zip(0..).map(of).collect();
        let shown = |cause: &RootCauseEntry| {
            let steps = steps(cause).into_iter().map(|step| step.shown());
            steps.collect::<Vec<_>>().join(" → ")
        };
        assert_eq!(
            shown(&cause),
            "serve → process (1.c:1) → decode → process (3.c:1)"
        );
        (cause.frames[3].offset, cause.frames[1].which) = (Some(1), None);
        assert_eq!(shown(&cause), "serve → process (recursive)");
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
