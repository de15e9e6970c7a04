//! The stacks of the threads that are looked at, followed to where they began, however far that is.

use std::collections::BTreeSet;
use std::time::Duration;

use darc_process::modules::Modules;
use darc_process::stacks::{StackFrame, Unwinder};
use darc_tracer::addr::TargetAddr;
use darc_tracer::stacks::{self, Stack};

use crate::session::descent::investigation::Investigation;

/// Of so many threads whose stacks are deep more is copied at a time: nobody runs meanwhile.
const MOST_DEEP: usize = 16;

/// The stack of a thread.
pub(super) struct ThreadStack {
    pub(super) tid: i32,
    /// Where the thread is.
    pub(super) rip: TargetAddr,
    /// The number of the system call that it is in.
    pub(super) call: Option<u32>,
    /// The frames, the innermost first, as far as they lead.
    pub(super) frames: Vec<StackFrame>,
}

/// Reads stacks of a process.
pub(super) struct Stacks<'m> {
    modules: &'m Modules,
    unwinder: Unwinder,
}

impl<'m> Stacks<'m> {
    /// For a process that runs these files.
    pub(super) fn new(modules: &'m Modules) -> Stacks<'m> {
        Stacks {
            modules,
            unwinder: Unwinder::new(modules),
        }
    }

    /// Those of the threads that are measured, and for how long the process was stopped. Only of these is the beginning of a deep stack
    /// looked for, in a second moment.
    pub(super) fn read(
        &mut self,
        pid: i32,
        investigation: &Investigation,
        is_followed: impl Fn(i32) -> bool,
    ) -> Option<(Vec<ThreadStack>, Duration)> {
        let (copies, mut pause) = stacks::snapshot(pid).ok()?;
        let (mut found, mut deep) = (Vec::new(), BTreeSet::new());
        for stack in investigation.of_chosen_threads(copies) {
            let followed = self.unwinder.follow_shallow(self.modules, &stack);
            if followed.is_cut && deep.len() < MOST_DEEP && is_followed(stack.tid) {
                deep.insert(stack.tid);
            }
            found.push(of(&stack, followed.frames));
        }
        if !deep.is_empty()
            && let Ok((copies, longer)) = stacks::deep(pid, &deep)
        {
            pause += longer;
            for stack in copies {
                let followed = self.unwinder.follow_deep(self.modules, &stack);
                found.retain(|other| other.tid != stack.tid);
                found.push(of(&stack, followed.frames));
            }
        }
        Some((found, pause))
    }
}

fn of(stack: &Stack, frames: Vec<StackFrame>) -> ThreadStack {
    ThreadStack {
        tid: stack.tid,
        rip: stack.rip,
        call: stack.call,
        frames,
    }
}
