//! One thread's measured calls: the frames whose return is awaited, the current fnode, the op in
//! progress. Pure: stack pointers and clock readings in, decisions out.
//!
//! The rules are those of call-path filtering (DARC, sections 3.1, 3.2, 3.5): a site moves the
//! current fnode to its own child and the return moves it back; where there is no such child nothing
//! is measured.

use darc_record::{Arguments, FnodeId, Op, Ticks, Touched, Tsc};

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
    /// The stack pointer with which the unwinder began for which the slot was put back; zero for none.
    pub unwinder: u64,
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

    fn steal(&mut self, ticks: Ticks) {
        self.stolen = self.stolen.wrapping_add(ticks.0);
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
    /// Since when the thread is stopped.
    paused_at: Option<Tsc>,
    touched: Vec<Touched>,
    /// Of which generation of the plan the op in progress is; one of another is incomplete.
    op_generation: u64,
    /// What f0 was called with in the op in progress.
    arguments: Arguments,
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
            paused_at: None,
            touched: Vec::new(),
            op_generation: 0,
            arguments: Arguments::default(),
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

    /// f0 is called with these.
    pub fn set_arguments(&mut self, arguments: Arguments) {
        self.arguments = arguments;
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
            unwinder: 0,
            saved,
            start: Tsc(0),
            start_clock: 0,
        });
        self.unstarted += 1;
    }

    /// The thread stopped at `at`: from then on its clock stands still.
    pub fn paused(&mut self, at: Tsc) {
        self.paused_at = Some(at);
    }

    /// The thread went on at `at`. Frames entered at the stop begin now.
    pub fn resumed(&mut self, at: Tsc) {
        if let Some(paused_at) = self.paused_at.take() {
            self.clock.steal(at - paused_at);
        }
        let started = self.frames.len().saturating_sub(self.unstarted);
        for frame in &mut self.frames[started..] {
            frame.start = at;
            frame.start_clock = self.clock.at(at);
        }
        self.unstarted = 0;
    }

    /// Takes off the frames that were left without returning: those below `rsp` on the same stack
    /// (longjmp, an exception), or that returned unseen.
    ///
    /// Stack order says nothing across stacks, so `same_stack` decides whether it may be used.
    pub fn drop_dead(&mut self, rsp: u64, same_stack: impl Fn(u64) -> bool) -> Vec<Frame> {
        let dead = self.split_dead(rsp, same_stack);
        self.doubt(&dead);
        dead
    }

    fn split_dead(&mut self, rsp: u64, same_stack: impl Fn(u64) -> bool) -> Vec<Frame> {
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

    /// Has the op in progress tell nothing but its latency where frames were dropped of which the return address had been put back:
    /// such a call may have returned unseen, and nobody knows when.
    fn doubt(&mut self, dropped: &[Frame]) {
        let is_call =
            |frame: &Frame| matches!(frame.kind, FrameKind::Call(_) | FrameKind::TailCall(_));
        if dropped.iter().any(|frame| is_call(frame) && !frame.hidden) {
            self.op_generation = u64::MAX;
        }
    }

    /// An exception was caught at `rsp`: the calls it passed through end now, as far as they are inside
    /// the op. Frames taken off are returned; when f0's is among them the op is lost. `inside` is what
    /// reads of a call that takes no time.
    pub fn unwound(
        &mut self,
        rsp: u64,
        end: Tsc,
        inside: Ticks,
        same_stack: impl Fn(u64) -> bool,
    ) -> Vec<Frame> {
        let alive = self
            .frames
            .iter()
            .rposition(|frame| frame.slot >= rsp || !same_stack(frame.slot));
        let keep = alive.map_or(0, |index| index + 1);
        for index in (keep..self.frames.len()).rev() {
            let frame = self.frames[index];
            self.count(&frame, end, inside);
        }
        self.split_dead(rsp, same_stack)
    }

    /// A call returned at `end`; `slot` is the stack slot it returned by, `inside` what reads of a call that
    /// takes no time.
    ///
    /// Returns the frames that end with it, outermost first (a tail call ends with the frame it
    /// replaced), and the op when one is complete. `None` when no frame of this thread has the slot.
    pub fn leave(
        &mut self,
        slot: u64,
        end: Tsc,
        inside: Ticks,
    ) -> Option<(Vec<Frame>, Option<Completed>)> {
        let last = self.frames.iter().rposition(|frame| frame.slot == slot)?;
        let first = self.frames[..=last]
            .iter()
            .rposition(|frame| frame.slot != slot)
            .map_or(0, |index| index + 1);
        for index in (first..=last).rev() {
            let frame = self.frames[index];
            self.count(&frame, end, inside);
        }
        let ended = self.frames.split_off(first);
        self.doubt(&ended[last + 1 - first..]);
        let outermost = ended[0];
        let latency = self.latency(&outermost, end, inside);
        // What is no time of the callee is no time of its caller either.
        self.clock.steal(inside);
        self.current = outermost.saved;
        let op = (outermost.kind == FrameKind::F0).then(|| Completed {
            op: Op {
                tid: self.tid,
                start: outermost.start,
                end,
                latency,
                arguments: self.arguments,
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
        self.doubt(&taken);
        self.current = taken[0].saved;
        taken
    }

    /// Gives up the op in progress. Its returns are awaited still, and tell nothing: the thread may be on its way by one. False where
    /// there is no op.
    pub fn give_up_op(&mut self) -> bool {
        let is_f0 = |frame: &Frame| frame.kind == FrameKind::F0;
        let Some(first) = self.frames.iter().position(is_f0) else {
            return false;
        };
        for frame in &mut self.frames[first..] {
            frame.saved = None;
            if !matches!(frame.kind, FrameKind::Syscall(_)) {
                frame.kind = FrameKind::Ignored;
            }
        }
        self.current = None;
        true
    }

    /// The system call that the thread was in has been led out of its copy: nothing is awaited there.
    pub fn forget_syscall(&mut self) {
        let is_syscall = |top: &mut Frame| matches!(top.kind, FrameKind::Syscall(_));
        if let Some(top) = self.frames.pop_if(is_syscall) {
            self.current = top.saved;
        }
    }

    fn latency(&self, frame: &Frame, end: Tsc, inside: Ticks) -> Ticks {
        let raw = self.clock.at(end).wrapping_sub(frame.start_clock);
        Ticks(if raw > i64::MAX as u64 { 0 } else { raw }).saturating_sub(inside)
    }

    fn count(&mut self, frame: &Frame, end: Tsc, inside: Ticks) {
        let (FrameKind::Call(fnode) | FrameKind::TailCall(fnode) | FrameKind::Syscall(fnode)) =
            frame.kind
        else {
            return;
        };
        let latency = self.latency(frame, end, inside);
        let is_long = latency >= Touched::LONG;
        let long = if is_long { latency } else { Ticks(0) };
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
                touched.long = touched.long + long;
            }
            None => self.touched.push(Touched {
                fnode,
                max: latency,
                max_start: frame.start,
                sum: latency,
                count: 1,
                long,
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
        calls.paused(Tsc(at));
        calls.resumed(Tsc(at));
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
            long: Ticks(0),
            sum: Ticks(40),
            count: 2,
        };
        assert_eq!(op.touched, [child]);
        assert!(!calls.in_op());
    }

    /// A signal comes before the call: what the caller calls next is its own call.
    #[test]
    fn behind_a_system_call_that_is_not_awaited_the_caller_goes_on() {
        let mut calls = ThreadCalls::new(7);
        started(FrameKind::F0, 100, 0, &mut calls);
        started(FrameKind::Syscall(CHILD), 92, 10, &mut calls);
        assert_eq!(calls.current(), Some(CHILD));
        calls.forget_syscall();
        assert_eq!(calls.current(), Some(FnodeId::ROOT));
        calls.forget_syscall();
        assert!(calls.in_op(), "f0's own frame is no system call's");
    }

    #[test]
    fn the_tracers_own_time_is_taken_out_of_every_enclosing_call() {
        let mut calls = ThreadCalls::new(1);
        let inside = Ticks(4);
        calls.enter(FrameKind::F0, 100, 0, 0);
        calls.paused(Tsc(0));
        calls.resumed(Tsc(10));
        // After 20 cycles of f0 the site traps, and is handled for 30.
        calls.enter(FrameKind::Call(CHILD), 92, 0, 0);
        calls.paused(Tsc(30));
        calls.resumed(Tsc(60));
        // The child runs for 5.
        let (_, none) = calls.leave(92, Tsc(69), inside).unwrap();
        assert!(none.is_none());
        calls.paused(Tsc(69));
        calls.resumed(Tsc(100));
        // 7 more cycles of f0.
        let (_, op) = calls.leave(100, Tsc(111), inside).unwrap();
        let op = op.unwrap().op;
        assert_eq!(op.touched[0].max, Ticks(5));
        assert_eq!(op.latency, Ticks(20 + 5 + 7));
        assert_eq!((op.start, op.end), (Tsc(10), Tsc(111)));
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

    /// `backtrace` has put its return address back, and it returned unseen: its time is no time of f0 itself.
    #[test]
    fn an_op_with_a_call_that_ended_unseen_is_incomplete() {
        type Find = fn(&mut ThreadCalls);
        let finds: [(Find, bool); 4] = [
            (|calls| drop(calls.drop_dead(80, |_| true)), false),
            (|calls| drop(calls.take(60)), false),
            (|_| {}, false),
            (
                |calls| drop(calls.unwound(80, Tsc(30), NO_COST, |_| true)),
                true,
            ),
        ];
        for hidden in [true, false] {
            for (at, (find, is_seen)) in finds.iter().enumerate() {
                let mut calls = ThreadCalls::new(1);
                started(FrameKind::F0, 100, 0, &mut calls);
                started(FrameKind::Call(CHILD), 60, 10, &mut calls);
                calls.frames_mut()[1].hidden = hidden;
                find(&mut calls);
                let (_, op) = calls.leave(100, Tsc(60), NO_COST).unwrap();
                let is_complete = op.unwrap().generation == 0;
                assert_eq!(is_complete, hidden || *is_seen, "{at}");
            }
        }
    }

    #[test]
    fn stack_order_decides_nothing_across_stacks() {
        let mut calls = ThreadCalls::new(1);
        started(FrameKind::F0, 100, 0, &mut calls);
        assert!(calls.drop_dead(5000, |slot| slot > 4000).is_empty());
        assert!(calls.in_op());
    }

    #[test]
    fn an_op_that_was_given_up_is_never_complete() {
        let mut calls = ThreadCalls::new(1);
        started(FrameKind::F0, 100, 0, &mut calls);
        started(FrameKind::Call(CHILD), 92, 10, &mut calls);
        started(FrameKind::Syscall(TAIL), 80, 20, &mut calls);
        assert!(calls.give_up_op());
        assert!(!calls.give_up_op());
        for slot in [80, 92, 100] {
            assert_eq!(calls.current(), None);
            let (ended, op) = calls.leave(slot, Tsc(60), NO_COST).unwrap();
            assert_eq!((ended.len(), op), (1, None));
        }
        started(FrameKind::F0, 100, 100, &mut calls);
        let (_, op) = calls.leave(100, Tsc(130), NO_COST).unwrap();
        let op = op.unwrap().op;
        assert_eq!((op.latency, op.touched.len()), (Ticks(30), 0));
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
