//! One thread's measured calls: the frames whose return is awaited, the current fnode, the op in
//! progress. Pure: stack pointers and clock readings in, decisions out.
//!
//! The rules are those of call-path filtering (DARC, sections 3.1, 3.2, 3.5): a site moves the
//! current fnode to its own child and the return moves it back; where there is no such child nothing
//! is measured.

use crate::record::{FnodeId, Op, Ticks, Touched, Tsc};

/// What a frame stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameKind {
    /// The outermost call of f0: its return completes an op.
    F0,
    /// A measured call.
    Call(FnodeId),
    /// A measured tail call; shares its stack slot with the frame that it replaced.
    TailCall(FnodeId),
    /// A measured system call.
    Syscall(FnodeId),
    /// A call of f0 inside an op that came by no instrumented path; nothing is measured until it returns.
    Ignored,
}

/// A call whose return is awaited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    /// What it stands for.
    pub kind: FrameKind,
    /// The stack slot that holds its return address (for a system call: an address below the red zone).
    pub slot: u64,
    /// The return address that belongs there.
    pub return_to: u64,
    /// Whether the slot holds the landing pad's address at the moment.
    pub hidden: bool,
    /// Where in the ledger of the guardian the slot stands.
    pub ledger: Option<u32>,
    saved: Option<FnodeId>,
    start: Tsc,
    start_clock: u64,
}

/// A thread's clock: cycles without those that the tracer itself took.
#[derive(Clone, Copy, Default, Debug)]
struct Clock {
    stolen: u64,
}

impl Clock {
    fn at(self, tsc: Tsc) -> u64 {
        tsc.0.wrapping_sub(self.stolen)
    }
}

/// The measured calls of one thread.
#[derive(Debug)]
pub struct ThreadCalls {
    tid: i32,
    clock: Clock,
    current: Option<FnodeId>,
    frames: Vec<Frame>,
    unstarted: usize,
    touched: Vec<Touched>,
    /// Of which generation of the plan the op in progress is; an older op is incomplete.
    op_generation: u64,
}

/// A completed op, and whether the instrumentation stayed the same while it ran.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Completed {
    /// The op.
    pub op: Op,
    /// The generation of the plan at its start.
    pub generation: u64,
}

impl ThreadCalls {
    /// A thread in which nothing is measured yet.
    #[must_use]
    pub fn new(tid: i32) -> ThreadCalls {
        ThreadCalls {
            tid,
            clock: Clock::default(),
            current: None,
            frames: Vec::new(),
            unstarted: 0,
            touched: Vec::new(),
            op_generation: 0,
        }
    }

    /// The fnode that execution is in, on a root-cause path from f0.
    #[must_use]
    pub fn current(&self) -> Option<FnodeId> {
        self.current
    }

    /// Whether an op is in progress.
    #[must_use]
    pub fn in_op(&self) -> bool {
        self.frames.iter().any(|frame| frame.kind == FrameKind::F0)
    }

    /// The awaited returns, outermost first.
    #[must_use]
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// The awaited returns, for marking what was hidden or put back.
    pub fn frames_mut(&mut self) -> &mut [Frame] {
        &mut self.frames
    }

    /// Begins to await a return. The time starts with [`ThreadCalls::resumed`].
    pub fn enter(&mut self, kind: FrameKind, slot: u64, return_to: u64, generation: u64) {
        let inside = match kind {
            FrameKind::F0 => {
                self.touched.clear();
                self.op_generation = generation;
                Some(FnodeId::ROOT)
            }
            FrameKind::Call(fnode) | FrameKind::TailCall(fnode) | FrameKind::Syscall(fnode) => {
                Some(fnode)
            }
            FrameKind::Ignored => None,
        };
        let saved = std::mem::replace(&mut self.current, inside);
        self.frames.push(Frame {
            kind,
            slot,
            return_to,
            hidden: false,
            ledger: None,
            saved,
            start: Tsc(0),
            start_clock: 0,
        });
        self.unstarted += 1;
    }

    /// The tracer has handled a stop that it noticed at `trap`, and resumes the thread at `resume`;
    /// `delivery` is what a stop costs beyond that.
    pub fn resumed(&mut self, trap: Tsc, resume: Tsc, delivery: Ticks) {
        let taken = (resume - trap).0.wrapping_add(delivery.0);
        self.clock.stolen = self.clock.stolen.wrapping_add(taken);
        let started = self.frames.len().saturating_sub(self.unstarted);
        for frame in &mut self.frames[started..] {
            frame.start = resume;
            frame.start_clock = self.clock.at(resume);
        }
        self.unstarted = 0;
    }

    /// Takes off the frames that were left without returning: those below `rsp` on the same stack
    /// (longjmp, an exception).
    ///
    /// Stack order says nothing across stacks, so `same_stack` decides whether it may be used.
    pub fn drop_dead(&mut self, rsp: u64, same_stack: impl Fn(u64) -> bool) -> Vec<Frame> {
        let alive = self
            .frames
            .iter()
            .rposition(|frame| frame.slot >= rsp || !same_stack(frame.slot));
        let dead = self.frames.split_off(alive.map_or(0, |index| index + 1));
        if let Some(outermost) = dead.first() {
            self.current = outermost.saved;
        }
        dead
    }

    /// An exception was caught at `rsp`: the calls it passed through end now, as far as they are inside
    /// the op. Frames taken off are returned; when f0's is among them the op is lost.
    pub fn unwound(
        &mut self,
        rsp: u64,
        trap: Tsc,
        delivery: Ticks,
        same_stack: impl Fn(u64) -> bool,
    ) -> Vec<Frame> {
        let alive = self
            .frames
            .iter()
            .rposition(|frame| frame.slot >= rsp || !same_stack(frame.slot));
        let keep = alive.map_or(0, |index| index + 1);
        for index in (keep..self.frames.len()).rev() {
            let frame = self.frames[index];
            self.count(&frame, trap, delivery);
        }
        self.drop_dead(rsp, same_stack)
    }

    /// A call returned through the landing pad; `slot` is the stack slot it returned by.
    ///
    /// Returns the frames that end with it, outermost first (a tail call ends with the frame it
    /// replaced), and the op when one is complete. `None` when no frame of this thread has the slot.
    pub fn leave(
        &mut self,
        slot: u64,
        trap: Tsc,
        delivery: Ticks,
    ) -> Option<(Vec<Frame>, Option<Completed>)> {
        let last = self.frames.iter().rposition(|frame| frame.slot == slot)?;
        let first = self.frames[..=last]
            .iter()
            .rposition(|frame| frame.slot != slot)
            .map_or(0, |index| index + 1);
        for index in (first..=last).rev() {
            let frame = self.frames[index];
            self.count(&frame, trap, delivery);
        }
        let ended = self.frames.split_off(first);
        let outermost = ended[0];
        self.current = outermost.saved;
        let op = (outermost.kind == FrameKind::F0).then(|| Completed {
            op: Op {
                tid: self.tid,
                start: outermost.start,
                end: trap,
                latency: self.latency(&outermost, trap, delivery),
                touched: std::mem::take(&mut self.touched),
            },
            generation: self.op_generation,
        });
        Some((ended, op))
    }

    /// Takes one frame out wherever it stands (its stack was continued by another thread).
    pub fn take(&mut self, slot: u64) -> Vec<Frame> {
        let Some(first) = self.frames.iter().position(|frame| frame.slot == slot) else {
            return Vec::new();
        };
        let taken = self.frames.split_off(first);
        self.current = taken[0].saved;
        taken
    }

    /// The system call that the thread was in has been led out of its copy: nothing is awaited there.
    pub fn forget_syscall(&mut self) {
        if self
            .frames
            .last()
            .is_some_and(|top| matches!(top.kind, FrameKind::Syscall(_)))
        {
            self.frames.pop();
        }
    }

    /// How long the innermost call with this stack slot has taken until `end`, as measured: the cost of
    /// one stop included.
    #[must_use]
    pub fn window(&self, slot: u64, end: Tsc) -> Option<Ticks> {
        let frame = self.frames.iter().rfind(|frame| frame.slot == slot)?;
        Some(self.latency(frame, end, Ticks(0)))
    }

    fn latency(&self, frame: &Frame, end: Tsc, delivery: Ticks) -> Ticks {
        let raw = self.clock.at(end).wrapping_sub(frame.start_clock);
        Ticks(if raw > i64::MAX as u64 { 0 } else { raw }).saturating_sub(delivery)
    }

    fn count(&mut self, frame: &Frame, end: Tsc, delivery: Ticks) {
        let (FrameKind::Call(fnode) | FrameKind::TailCall(fnode) | FrameKind::Syscall(fnode)) =
            frame.kind
        else {
            return;
        };
        let latency = self.latency(frame, end, delivery);
        match self
            .touched
            .iter_mut()
            .find(|touched| touched.fnode == fnode)
        {
            Some(touched) => {
                if latency > touched.max {
                    touched.max = latency;
                    touched.max_start = frame.start;
                }
                touched.sum = touched.sum + latency;
                touched.count += 1;
            }
            None => self.touched.push(Touched {
                fnode,
                max: latency,
                max_start: frame.start,
                sum: latency,
                count: 1,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHILD: FnodeId = FnodeId(2);
    const TAIL: FnodeId = FnodeId(3);
    const NO_COST: Ticks = Ticks(0);

    fn started(kind: FrameKind, slot: u64, at: u64, calls: &mut ThreadCalls) {
        calls.enter(kind, slot, 0x1000, 0);
        calls.resumed(Tsc(at), Tsc(at), NO_COST);
    }

    #[test]
    fn the_longest_call_the_sum_and_the_count_are_kept() {
        let mut calls = ThreadCalls::new(7);
        started(FrameKind::F0, 100, 0, &mut calls);
        for (from, to) in [(10, 40), (50, 60)] {
            started(FrameKind::Call(CHILD), 92, from, &mut calls);
            assert_eq!(calls.current(), Some(CHILD));
            calls.leave(92, Tsc(to), NO_COST).unwrap();
            assert_eq!(calls.current(), Some(FnodeId::ROOT));
        }
        let (_, op) = calls.leave(100, Tsc(100), NO_COST).unwrap();
        let op = op.unwrap().op;
        assert_eq!((op.latency, op.tid), (Ticks(100), 7));
        let child = Touched {
            fnode: CHILD,
            max: Ticks(30),
            max_start: Tsc(10),
            sum: Ticks(40),
            count: 2,
        };
        assert_eq!(op.touched, [child]);
        assert!(!calls.in_op());
    }

    #[test]
    fn the_tracers_own_time_is_taken_out_of_every_enclosing_call() {
        let mut calls = ThreadCalls::new(1);
        let delivery = Ticks(4);
        calls.enter(FrameKind::F0, 100, 0, 0);
        calls.resumed(Tsc(0), Tsc(10), delivery); // handled for 10
        calls.enter(FrameKind::Call(CHILD), 92, 0, 0);
        // 20 cycles of f0 and one delivery later the site traps, and is handled for 30.
        calls.resumed(Tsc(34), Tsc(64), delivery);
        // The child runs for 5.
        let (_, none) = calls.leave(92, Tsc(73), delivery).unwrap();
        assert!(none.is_none());
        calls.resumed(Tsc(73), Tsc(100), delivery);
        // 7 more cycles of f0.
        let (_, op) = calls.leave(100, Tsc(111), delivery).unwrap();
        let op = op.unwrap().op;
        assert_eq!(op.touched[0].max, Ticks(5));
        assert_eq!(op.latency, Ticks(20 + 5 + 7));
    }

    #[test]
    fn a_tail_call_ends_together_with_the_frame_it_replaced() {
        let mut calls = ThreadCalls::new(1);
        started(FrameKind::F0, 100, 0, &mut calls);
        started(FrameKind::Call(CHILD), 92, 10, &mut calls);
        started(FrameKind::TailCall(TAIL), 92, 20, &mut calls);
        let (ended, op) = calls.leave(92, Tsc(50), NO_COST).unwrap();
        assert_eq!((ended.len(), op), (2, None));
        assert_eq!(calls.current(), Some(FnodeId::ROOT));
        let (_, op) = calls.leave(100, Tsc(60), NO_COST).unwrap();
        let mut maxima: Vec<_> = op
            .unwrap()
            .op
            .touched
            .iter()
            .map(|t| (t.fnode, t.max.0))
            .collect();
        maxima.sort_unstable();
        assert_eq!(maxima, [(CHILD, 40), (TAIL, 30)]);
    }

    #[test]
    fn frames_that_a_longjmp_passed_are_dropped_and_not_measured() {
        let mut calls = ThreadCalls::new(1);
        started(FrameKind::F0, 100, 0, &mut calls);
        started(FrameKind::Call(CHILD), 60, 10, &mut calls);
        started(FrameKind::Ignored, 40, 20, &mut calls);
        assert_eq!(calls.current(), None);
        let dead = calls.drop_dead(80, |_| true);
        assert_eq!(dead.len(), 2);
        assert_eq!(calls.current(), Some(FnodeId::ROOT));
        let (_, op) = calls.leave(100, Tsc(60), NO_COST).unwrap();
        assert!(op.unwrap().op.touched.is_empty());
    }

    #[test]
    fn stack_order_decides_nothing_across_stacks() {
        let mut calls = ThreadCalls::new(1);
        started(FrameKind::F0, 100, 0, &mut calls);
        assert!(calls.drop_dead(5000, |slot| slot > 4000).is_empty());
        assert!(calls.in_op());
    }

    #[test]
    fn a_caught_exception_ends_the_calls_that_it_left() {
        let mut calls = ThreadCalls::new(1);
        started(FrameKind::F0, 100, 0, &mut calls);
        started(FrameKind::Call(CHILD), 60, 10, &mut calls);
        assert_eq!(calls.unwound(80, Tsc(30), NO_COST, |_| true).len(), 1);
        let (_, op) = calls.leave(100, Tsc(60), NO_COST).unwrap();
        assert_eq!(op.unwrap().op.touched[0].max, Ticks(20));
    }
}
