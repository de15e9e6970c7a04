//! The file format of pprof, for `go tool pprof`, `pprof` and the profilers that take its files.
//!
//! Each sample is a path with the time in which its last function was at the top; its label `peak` says in the ops of
//! which peak.

mod encode;

use darc_analysis::Hz;

pub use encode::{Frame, Profile};

use super::attribution::{self, Call};
use super::escape::control;
use super::folded::count;
use super::model::{FtreeNode, Report};

/// The report as a compressed file.
#[must_use]
pub fn render(report: &Report) -> Vec<u8> {
    let hz = Hz::new(report.clock.hz);
    let unit = if hz.is_some() {
        "nanoseconds"
    } else {
        "cycles"
    };
    let mut file = File {
        profile: Profile::new(&[("time", unit)]),
        hz,
    };
    for share in attribution::of(report) {
        let above = share.above.iter().map(|name| {
            let name = &control(name);
            file.profile.frame(&Frame {
                name,
                ..Frame::default()
            })
        });
        let mut stack: Vec<u64> = above.collect();
        file.add(&share.root, &mut stack, &share.ops.name(hz));
    }
    file.profile.finish()
}

struct File {
    profile: Profile,
    hz: Option<Hz>,
}

impl File {
    /// Adds a call and what is below it; `stack` has the frames above it, the outermost first.
    fn add(&mut self, call: &Call<'_>, stack: &mut Vec<u64>, peak: &str) {
        let time = count(call.own, self.hz);
        if time > 0 {
            let top = self.frame(call.node, call.node.callee_line);
            let inwards: Vec<u64> = [top]
                .into_iter()
                .chain(stack.iter().rev().copied())
                .collect();
            self.profile.sample(&inwards, &[time], ("peak", peak));
        }
        for callee in &call.callees {
            // A call that was inlined stands in another file than the function.
            let is_here = callee.node.file == call.node.callee_file;
            let line = callee.node.line.filter(|_| is_here);
            stack.push(self.frame(call.node, line.or(call.node.callee_line)));
            self.add(callee, stack, peak);
            stack.pop();
        }
    }

    fn frame(&mut self, node: &FtreeNode, line: Option<u32>) -> u64 {
        let module = node.callee.as_ref().map_or("", |place| &place.module);
        self.profile.frame(&Frame {
            name: &control(&node.name),
            module: &control(module),
            file: &control(node.callee_file.as_deref().unwrap_or_default()),
            defined: node.callee_line.unwrap_or(0),
            line: line.unwrap_or(0),
        })
    }
}
