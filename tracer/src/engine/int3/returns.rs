//! Hidden return addresses: which stack slots lead to the landing pad, and putting them back.

use std::ops::Range;

use crate::addr::TargetAddr;
use crate::error::Result;
use crate::ledger::Debt;
use crate::memory::Memory;

use super::Int3;
use super::calls::{Frame, FrameKind};

/// All of the memory.
pub(super) const EVERYWHERE: Range<u64> = 0..u64::MAX;

/// So many slots of frames that were given up are no matter.
const MANY: usize = 64;

/// What belongs into a slot that held the landing pad when its frame was given up.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Abandoned {
    pub(super) return_to: u64,
    /// Where it stands in the ledger, until it has been put back: the slot may still be returned through.
    debt: Option<u32>,
}

impl Int3 {
    /// Replaces the return address in a slot by the landing pad and enters the debt.
    pub(super) fn hide(&mut self, slot: u64, return_to: u64) -> Result<Option<u32>> {
        let debt = Debt::Slot {
            addr: slot,
            return_to,
            hidden: self.landing.0,
        };
        self.settle_abandoned(slot);
        let index = self.ledger.enter(debt);
        match self.memory.write_word(TargetAddr(slot), self.landing.0) {
            Ok(()) => {
                self.abandoned.remove(&slot);
                Ok(index)
            }
            Err(error) => {
                index
                    .into_iter()
                    .for_each(|index| self.ledger.strike(index));
                Err(error)
            }
        }
    }

    /// Keeps in mind what belongs into the slots of frames that were given up: should one be
    /// returned through after all, the target must not suffer from our mistake.
    pub(super) fn abandon(&mut self, frames: &[Frame]) {
        for frame in frames {
            let mut settled = frame.ledger;
            if frame.hidden {
                let abandoned = self.abandoned.entry(frame.slot).or_default();
                abandoned.return_to = frame.return_to;
                if settled.is_some() {
                    settled = std::mem::replace(&mut abandoned.debt, settled);
                }
            }
            if let Some(index) = settled {
                self.ledger.strike(index);
            }
            if frame.kind == FrameKind::F0 {
                self.counters.ended_otherwise += 1;
            }
        }
        self.forget_overwritten();
    }

    /// Puts the return addresses back of a thread that is stopped with this stack pointer: somebody is about to read or unwind its
    /// stack. Frames on it that were given up may be read, too, and those of another thread, which has left the stack to this one.
    pub(super) fn reveal(&mut self, tid: i32, rsp: u64) {
        let stack = self.stacks.around(self.pid, rsp);
        let above = rsp..stack.end;
        for (&owner, calls) in &mut self.threads {
            let is_read = |frame: &Frame| owner == tid || above.contains(&frame.slot);
            let frames = calls.frames_mut().iter_mut();
            for frame in frames.filter(|frame| frame.hidden && is_read(frame)) {
                frame.unwinder = rsp;
            }
        }
        self.reveal_frames(tid, &EVERYWHERE);
        self.reveal_frames_of_all(&above);
        self.reveal_abandoned(&stack);
    }

    /// Puts back every return address on the stack of a process that is stopped there and shares the memory of the one whose
    /// frames they are.
    pub(super) fn reveal_stack(&mut self, rsp: u64) {
        let stack = self.stacks.around(self.pid, rsp);
        self.reveal_frames_of_all(&stack);
        self.reveal_abandoned(&stack);
    }

    /// Puts back every return address that is awaited, and all on the stack of a thread that is stopped with this stack pointer.
    pub(super) fn reveal_around(&mut self, rsp: u64) {
        let stack = self.stacks.around(self.pid, rsp);
        self.reveal_all_frames();
        self.reveal_abandoned(&stack);
    }

    /// Puts back every return address of every thread that is awaited. Threads may run.
    pub(super) fn reveal_all_frames(&mut self) {
        self.reveal_frames_of_all(&EVERYWHERE);
    }

    /// Puts back every return address of every thread, abandoned ones too. All threads are stopped.
    pub(super) fn reveal_all(&mut self) {
        self.reveal_all_frames();
        self.reveal_abandoned(&EVERYWHERE);
    }

    fn reveal_frames_of_all(&mut self, within: &Range<u64>) {
        let tids: Vec<i32> = self.threads.keys().copied().collect();
        for tid in tids {
            self.reveal_frames(tid, within);
        }
    }

    /// Puts the return addresses of one thread's frames back.
    pub(super) fn reveal_frames(&mut self, tid: i32, within: &Range<u64>) {
        let Some(calls) = self.threads.get_mut(&tid) else {
            return;
        };
        let hidden = |frame: &&mut Frame| frame.hidden && within.contains(&frame.slot);
        for frame in calls.frames_mut().iter_mut().filter(hidden) {
            put_back(&self.memory, self.landing, frame.slot, frame.return_to);
            frame.hidden = false;
            if let Some(index) = frame.ledger.take() {
                self.ledger.strike(index);
            }
        }
    }

    /// Puts back what belongs into the slots of frames that were given up, where nobody runs who could be about to use one for
    /// something else: it may look as before when it is read, and be the program's own when it is written. They are kept in
    /// mind: a thread whose stack is in the same mapping may be on its way through one at this moment.
    fn reveal_abandoned(&mut self, within: &Range<u64>) {
        for (&slot, abandoned) in &mut self.abandoned {
            if within.contains(&slot) {
                put_back(&self.memory, self.landing, slot, abandoned.return_to);
                if let Some(index) = abandoned.debt.take() {
                    self.ledger.strike(index);
                }
            }
        }
    }

    /// Forgets slots that hold something else by now, when there are many: nobody comes to the landing pad through them any more. Of
    /// one in which what belongs there was put back somebody may be on the way.
    fn forget_overwritten(&mut self) {
        if self.abandoned.len() < self.most_abandoned {
            return;
        }
        let (memory, landing, ledger) = (&self.memory, self.landing, &mut self.ledger);
        self.abandoned.retain(|&slot, abandoned| {
            let stands = holds(memory, landing, slot)
                || holds(memory, TargetAddr(abandoned.return_to), slot);
            if !stands {
                abandoned
                    .debt
                    .into_iter()
                    .for_each(|index| ledger.strike(index));
            }
            stands
        });
        self.most_abandoned = MANY.max(2 * self.abandoned.len());
    }

    /// Nothing is owed any more in the slot of a frame that was given up: another one uses it.
    fn settle_abandoned(&mut self, slot: u64) {
        let abandoned = self.abandoned.get_mut(&slot);
        if let Some(index) = abandoned.and_then(|abandoned| abandoned.debt.take()) {
            self.ledger.strike(index);
        }
    }

    /// A frame that was given up has been returned through: where it leads, and the debt that stands for it.
    fn take_abandoned(&mut self, slot: u64) -> Option<(u64, Option<u32>)> {
        let abandoned = self.abandoned.remove(&slot)?;
        Some((abandoned.return_to, abandoned.debt))
    }

    /// Where a frame that was given up leads.
    fn abandoned(&self, slot: u64) -> Option<u64> {
        self.abandoned
            .get(&slot)
            .map(|abandoned| abandoned.return_to)
    }

    /// A thread that awaits a return by a slot, which is `hidden` at the moment or was put back, and where it leads.
    fn awaited(&self, slot: u64, hidden: bool) -> Option<(i32, u64)> {
        let is_wanted = |frame: &&Frame| {
            let returns = !matches!(frame.kind, FrameKind::Syscall(_));
            returns && (frame.slot, frame.hidden) == (slot, hidden)
        };
        self.threads.iter().find_map(|(&tid, calls)| {
            let frame = calls.frames().iter().find(is_wanted)?;
            Some((tid, frame.return_to))
        })
    }

    /// Where a return leads by which a thread has come to the landing pad, whoever was to make it. What was put back comes last: it may
    /// be of a call that has ended since, and matters to who was on the way already.
    pub(super) fn destination(&self, slot: u64) -> Option<u64> {
        let awaited = |hidden| self.awaited(slot, hidden).map(|(_, return_to)| return_to);
        awaited(true)
            .or_else(|| self.abandoned(slot))
            .or_else(|| awaited(false))
    }

    /// The same of a return that this thread did not enter, and the debt that stands for it: a vfork child using its parent's frame,
    /// which is not measured, a stack that moved to another thread, a frame that was given up.
    pub(super) fn return_of_another(
        &mut self,
        slot: u64,
        is_measured: bool,
    ) -> Option<(u64, Option<u32>)> {
        if !is_measured {
            return self.destination(slot).map(|return_to| (return_to, None));
        }
        if let Some((owner, _)) = self.awaited(slot, true) {
            self.take_from(owner, slot);
        }
        self.take_abandoned(slot).or_else(|| {
            let (owner, return_to) = self.awaited(slot, false)?;
            self.take_from(owner, slot);
            Some((return_to, None))
        })
    }

    fn take_from(&mut self, owner: i32, slot: u64) {
        let calls = self.threads.get_mut(&owner);
        let taken = calls.map(|calls| calls.take(slot)).unwrap_or_default();
        self.abandon(&taken);
    }

    /// Forgets the frames that were given up: their memory is gone.
    pub(super) fn forget_abandoned(&mut self) {
        let debts = self
            .abandoned
            .drain()
            .filter_map(|(_, abandoned)| abandoned.debt);
        debts.for_each(|index| self.ledger.strike(index));
    }

    /// Hides the return addresses again that [`Int3::reveal`] put back, where the frames still stand. An exception was caught with this
    /// stack pointer: unwinders below it have ended. One above it goes on when what it has called is done, and so may one on another
    /// stack, which this thread has left for a signal handler.
    pub(super) fn hide_again(&mut self, tid: i32, rsp: u64) {
        let Some(calls) = self.threads.get(&tid) else {
            return;
        };
        let stack = self.stacks.around(self.pid, rsp);
        let has_ended = |unwinder| unwinder < rsp && stack.contains(&unwinder);
        let mut slots: Vec<(u64, u64)> = calls
            .frames()
            .iter()
            .filter(|frame| !frame.hidden && !matches!(frame.kind, FrameKind::Syscall(_)))
            .filter(|frame| frame.unwinder == 0 || has_ended(frame.unwinder))
            .map(|frame| (frame.slot, frame.return_to))
            .collect();
        slots.dedup();
        for (slot, return_to) in slots {
            let stands = self
                .memory
                .read_word(TargetAddr(slot))
                .is_ok_and(|word| word == return_to);
            let Some(debt) = stands.then(|| self.hide(slot, return_to).ok()).flatten() else {
                continue;
            };
            let calls = self.threads.get_mut(&tid).expect("looked up above");
            for frame in calls
                .frames_mut()
                .iter_mut()
                .filter(|frame| frame.slot == slot)
            {
                (frame.hidden, frame.unwinder) = (true, 0);
            }
            if let Some(frame) = calls
                .frames_mut()
                .iter_mut()
                .find(|frame| frame.slot == slot)
            {
                frame.ledger = debt;
            }
        }
    }

    /// Puts back the return addresses in a copy of the memory (a forked child's).
    pub(super) fn reveal_copy(&self, copy: &Memory) {
        let frames = self.threads.values().flat_map(|calls| calls.frames());
        // Those that have been put back since the copy was made, too.
        let hidden = frames.map(|frame| (frame.slot, frame.return_to));
        let abandoned = self.abandoned.iter();
        let abandoned = abandoned.map(|(&slot, abandoned)| (slot, abandoned.return_to));
        for (slot, return_to) in hidden.chain(abandoned) {
            put_back(copy, self.landing, slot, return_to);
        }
    }
}

/// Writes a return address where the landing pad still stands in its place.
fn put_back(memory: &Memory, landing: TargetAddr, slot: u64, return_to: u64) {
    if holds(memory, landing, slot) {
        let _ = memory.write_word(TargetAddr(slot), return_to);
    }
}

/// Whether a slot holds this address.
fn holds(memory: &Memory, word: TargetAddr, slot: u64) -> bool {
    let held = memory.read_word(TargetAddr(slot));
    held.is_ok_and(|held| held == word.0)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use darc_record::{FnodeId, Ticks, Tsc};

    use crate::child_signal;
    use crate::engine::Engine as _;
    use crate::engine::calibration::of_child;
    use crate::engine::int3::Guarding;
    use crate::engine::int3::calls::ThreadCalls;
    use crate::ledger;
    use crate::stopped::Stopped;

    use super::*;

    const PROGRAMS: u64 = 0x1000;

    /// Measures, with no frame yet, a child process that does nothing, whose memory is a copy of ours.
    fn of_idle_child(work: impl FnOnce(&mut Int3) -> Result<()>) {
        child_signal::block().unwrap();
        let wait = || loop {
            std::hint::spin_loop();
        };
        let measured = of_child(wait, |pid| {
            let mut engine = Int3::attach(pid, Guarding::Unguarded)?;
            engine.landing = TargetAddr(0x2000);
            work(&mut engine)?;
            engine.finish()
        });
        measured.unwrap();
    }

    /// Has a frame with this slot given up.
    fn give_up(engine: &mut Int3, slot: u64) -> Result<()> {
        let debt = engine.hide(slot, PROGRAMS)?;
        let mut calls = ThreadCalls::new(engine.pid);
        calls.enter(FrameKind::Ignored, slot, PROGRAMS, 0);
        let frame = &mut calls.frames_mut()[0];
        (frame.hidden, frame.ledger) = (true, debt);
        engine.abandon(calls.frames());
        Ok(())
    }

    /// Has a thread make a call with this slot, which hides where it returns to.
    fn call(
        engine: &mut Int3,
        tid: i32,
        kind: FrameKind,
        (slot, return_to): (u64, u64),
    ) -> Result<()> {
        let debt = engine.hide(slot, return_to)?;
        let calls = engine.threads.entry(tid);
        let calls = calls.or_insert_with(|| ThreadCalls::new(tid));
        calls.enter(kind, slot, return_to, 0);
        let frame = calls.frames_mut().last_mut().unwrap();
        (frame.hidden, frame.ledger) = (true, debt);
        Ok(())
    }

    fn owed(engine: &Int3) -> usize {
        ledger::read(engine.ledger.file()).len()
    }

    /// A thread that returns there when nobody listens any more would stay in the landing pad for ever.
    #[test]
    fn a_frame_that_was_given_up_is_owed_while_it_is_hidden() {
        let stack = [PROGRAMS; 1];
        let slot = stack.as_ptr() as u64;
        of_idle_child(|engine| {
            give_up(engine, slot)?;
            assert_eq!(owed(engine), 1);
            // The slot is used again.
            give_up(engine, slot)?;
            assert_eq!(owed(engine), 1);
            engine.reveal_all();
            assert_eq!(owed(engine), 0);
            assert_eq!(engine.memory.read_word(TargetAddr(slot))?, PROGRAMS);
            give_up(engine, slot)?;
            let (return_to, debt) = engine.take_abandoned(slot).unwrap();
            assert_eq!(return_to, PROGRAMS);
            engine.settle(&[debt.unwrap()]);
            assert_eq!(owed(engine), 0);
            Ok(())
        });
        std::hint::black_box(&stack);
    }

    /// What runs on another stack may be about to use such a slot for something else.
    #[test]
    fn what_was_given_up_on_another_stack_is_left_alone() {
        /// Beside no stack.
        static OTHER: AtomicU64 = AtomicU64::new(PROGRAMS);
        let stack = [PROGRAMS; 1];
        let slots = [stack.as_ptr() as u64, OTHER.as_ptr() as u64];
        of_idle_child(|engine| {
            let word = |engine: &Int3, slot| engine.memory.read_word(TargetAddr(slot));
            for slot in slots {
                give_up(engine, slot)?;
            }
            engine.reveal(engine.pid, slots[0]);
            assert_eq!(word(engine, slots[0])?, PROGRAMS);
            assert_eq!(word(engine, slots[1])?, engine.landing.0);
            assert_eq!(owed(engine), 1);
            // In the end nobody runs.
            let memory = engine.memory.again()?;
            engine.finish()?;
            assert_eq!(memory.read_word(TargetAddr(slots[1]))?, PROGRAMS);
            Ok(())
        });
        std::hint::black_box(&stack);
    }

    /// Whoever came to the landing pad before it was put back does not come there of its own.
    #[test]
    fn a_return_that_was_put_back_is_known_to_who_is_on_the_way() {
        /// No thread has this id.
        const OTHER: i32 = i32::MAX;
        let stack = [PROGRAMS; 1];
        let slot = stack.as_ptr() as u64;
        of_idle_child(|engine| {
            let pid = engine.pid;
            call(engine, pid, FrameKind::Ignored, (slot, PROGRAMS))?;
            engine.reveal(pid, slot);
            // A child in the program's memory, on its parent's stack.
            assert_eq!(
                engine.return_of_another(slot, false),
                Some((PROGRAMS, None))
            );
            // That call has ended, and its stack is another thread's by now.
            call(engine, OTHER, FrameKind::Ignored, (slot, PROGRAMS + 1))?;
            assert_eq!(engine.destination(slot), Some(PROGRAMS + 1));
            let calls = engine.threads.remove(&OTHER).unwrap();
            engine.abandon(calls.frames());
            assert_eq!(engine.destination(slot), Some(PROGRAMS + 1));
            let (return_to, debt) = engine.return_of_another(slot, true).unwrap();
            engine.settle(&[debt.unwrap()]);
            assert_eq!(return_to, PROGRAMS + 1);
            // A thread that goes on with the stack.
            assert_eq!(engine.return_of_another(slot, true), Some((PROGRAMS, None)));
            assert_eq!(engine.return_of_another(slot, true), None);
            // A system call is not returned from by a slot.
            let calls = engine.threads.get_mut(&pid).unwrap();
            calls.enter(FrameKind::Syscall(FnodeId::ROOT), slot, PROGRAMS, 0);
            assert_eq!(engine.destination(slot), None);
            Ok(())
        });
        std::hint::black_box(&stack);
    }

    /// A coroutine goes on in another thread when the one that began it has ended.
    #[test]
    fn what_a_thread_has_hidden_is_owed_when_it_has_ended() {
        /// No thread has this id.
        const OTHER: i32 = i32::MAX;
        let stack = [PROGRAMS; 1];
        let slot = stack.as_ptr() as u64;
        of_idle_child(|engine| {
            call(engine, OTHER, FrameKind::F0, (slot, PROGRAMS))?;
            engine.forget_thread(OTHER);
            assert_eq!(engine.counters().ended_otherwise, 1);
            assert_eq!(owed(engine), 1);
            assert_eq!(engine.destination(slot), Some(PROGRAMS));
            engine.reveal_all();
            assert_eq!(owed(engine), 0);
            assert_eq!(engine.memory.read_word(TargetAddr(slot))?, PROGRAMS);
            Ok(())
        });
        std::hint::black_box(&stack);
    }

    /// An exception passes what the thread had called that left the stack to this one.
    #[test]
    fn what_another_thread_has_hidden_on_a_stack_is_put_back_for_an_unwinder() {
        /// No thread has this id.
        const OTHER: i32 = i32::MAX;
        let stack = [PROGRAMS; 3];
        let slots: Vec<u64> = stack
            .iter()
            .map(|word| std::ptr::from_ref(word) as u64)
            .collect();
        of_idle_child(|engine| {
            let pid = engine.pid;
            for slot in [slots[2], slots[0]] {
                call(engine, OTHER, FrameKind::F0, (slot, PROGRAMS))?;
            }
            engine.reveal(pid, slots[1]);
            let word = |engine: &Int3, slot| engine.memory.read_word(TargetAddr(slot));
            assert_eq!(word(engine, slots[2])?, PROGRAMS);
            // Of a call below the unwinder nobody reads where it returns to.
            assert_eq!(word(engine, slots[0])?, engine.landing.0);
            assert_eq!(owed(engine), 1);
            engine.reveal_all();
            Ok(())
        });
        std::hint::black_box(&stack);
    }

    /// Nobody sees its end, and a later call of f0 has its return address in the same place.
    #[test]
    fn an_op_that_was_under_way_before_a_core_dump_is_not_timed() {
        let stack = [PROGRAMS; 1];
        let slot = stack.as_ptr() as u64;
        of_idle_child(|engine| {
            let pid = engine.pid;
            call(engine, pid, FrameKind::F0, (slot, PROGRAMS))?;
            engine.clean_for_core(&Stopped::observed(pid, libc::SIGABRT))?;
            assert_eq!(engine.counters().ended_otherwise, 1);
            assert_eq!(engine.memory.read_word(TargetAddr(slot))?, PROGRAMS);
            engine.hide_again(pid, slot);
            assert_eq!(engine.memory.read_word(TargetAddr(slot))?, engine.landing.0);
            let calls = engine.threads.get_mut(&pid).unwrap();
            let (ended, op) = calls.leave(slot, Tsc(1), Ticks(0)).unwrap();
            assert_eq!((ended[0].return_to, op), (PROGRAMS, None));
            engine.abandon(&ended);
            assert_eq!(engine.counters().ended_otherwise, 1);
            Ok(())
        });
        std::hint::black_box(&stack);
    }

    /// A callback of `_Unwind_Backtrace` may throw, and a signal handler may do it in the middle of an unwinder.
    #[test]
    fn nothing_is_hidden_again_from_an_unwinder_that_is_still_at_work() {
        let stack = [PROGRAMS; 8];
        let slots: Vec<u64> = stack
            .iter()
            .map(|word| std::ptr::from_ref(word) as u64)
            .collect();
        of_idle_child(|engine| {
            let (pid, slot) = (engine.pid, slots[7]);
            let word = |engine: &Int3| engine.memory.read_word(TargetAddr(slot));
            call(engine, pid, FrameKind::Ignored, (slot, PROGRAMS))?;
            let (outer, inner) = (slots[5], slots[1]);
            engine.reveal(pid, outer);
            engine.reveal(pid, inner);
            engine.hide_again(pid, slots[3]);
            assert_eq!(word(engine)?, PROGRAMS);
            // On a stack of its own.
            engine.hide_again(pid, engine.landing.0);
            assert_eq!(word(engine)?, PROGRAMS);
            engine.hide_again(pid, slots[6]);
            assert_eq!(word(engine)?, engine.landing.0);
            // The next one is another one.
            engine.reveal(pid, inner);
            engine.hide_again(pid, slots[3]);
            assert_eq!(word(engine)?, engine.landing.0);
            Ok(())
        });
        std::hint::black_box(&stack);
    }

    /// A program may leave calls by exceptions for years.
    #[test]
    fn slots_that_hold_something_else_are_forgotten() {
        let stack = [PROGRAMS; 8 * MANY];
        let slots = stack.iter().map(|word| std::ptr::from_ref(word) as u64);
        of_idle_child(|engine| {
            for slot in slots {
                give_up(engine, slot)?;
                engine.memory.write_word(TargetAddr(slot), 0)?;
                assert!(engine.abandoned.len() <= MANY);
                assert_eq!(owed(engine), engine.abandoned.len());
            }
            Ok(())
        });
        std::hint::black_box(&stack);
    }
}
