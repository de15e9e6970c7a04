//! Folded stacks: one line a path, `frame;frame;frame count`, as flame graph tools read them.
//!
//! The first frame is the peak, so that the peaks stand side by side; the count is the time in which the
//! last frame was at the top, in nanoseconds (cycles where the clock's rate is not known).

use std::fmt::Write as _;

use darc_analysis::{Hz, Ticks};

use super::attribution::{self, Call};
use super::escape::control;
use super::model::Report;

/// Each line repeats the names of its path: a file of a stranger must not grow without bound. What would come after
/// so many bytes is left out.
const LARGEST: usize = 256 << 20;

/// The report as folded stacks. Empty when there were no ops.
#[must_use]
pub fn render(report: &Report) -> String {
    let hz = Hz::new(report.clock.hz);
    let mut text = String::new();
    for share in attribution::of(report) {
        let mut stack = share.ops.name(hz);
        for name in share.above {
            push(&mut stack, name);
        }
        write(&mut text, &mut stack, &share.root, hz);
    }
    text
}

fn write(text: &mut String, stack: &mut String, call: &Call<'_>, hz: Option<Hz>) {
    let length = stack.len();
    push(stack, &call.node.name);
    let count = count(call.own, hz);
    if count > 0 && text.len().saturating_add(stack.len()) < LARGEST {
        let _ = writeln!(text, "{stack} {count}");
    }
    for callee in &call.callees {
        write(text, stack, callee, hz);
    }
    stack.truncate(length);
}

/// Adds a frame; a semicolon in a name is written `\u{3b}`, as it parts frames.
fn push(stack: &mut String, name: &str) {
    stack.push(';');
    stack.push_str(&control(name).replace(';', "\\u{3b}"));
}

/// Whole nanoseconds, or cycles.
pub(super) fn count(cycles: u64, hz: Option<Hz>) -> u64 {
    hz.map_or(cycles, |hz| hz.nanos(Ticks(cycles)).0.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[test]
    fn a_name_cannot_make_a_frame_or_a_line() {
        let mut report = fixture::report(30_000);
        report.ftree.children[0].name = "a;b\nc 1".to_owned();
        let text = render(&report);
        assert!(text.contains(";put;a\\u{3b}b\\nc 1 "), "{text}");
        for line in text.lines() {
            let (_, count) = line.rsplit_once(' ').unwrap();
            assert!(count.parse::<u64>().is_ok(), "{line}");
        }
    }

    #[test]
    fn without_ops_there_are_no_stacks() {
        assert_eq!(render(&fixture::report(0)), "");
    }
}
