//! Hidden return addresses: which stack slots lead to the landing pad, and putting them back.

use crate::addr::TargetAddr;
use crate::error::Result;
use crate::ledger::Debt;
use crate::memory::Memory;

use super::Int3;
use super::calls::{Frame, FrameKind};

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
    }

    /// Puts one thread's return addresses back: somebody is about to read or unwind its stack.
    pub(super) fn reveal(&mut self, tid: i32) {
        let Some(calls) = self.threads.get_mut(&tid) else {
            return;
        };
        for frame in calls.frames_mut().iter_mut().filter(|frame| frame.hidden) {
            put_back(&self.memory, self.landing, frame.slot, frame.return_to);
            frame.hidden = false;
            if let Some(index) = frame.ledger.take() {
                self.ledger.strike(index);
            }
        }
        self.reveal_abandoned();
    }

    /// Frames that were given up may be read, too. They are kept in mind: another thread may be on its way through
    /// one at this moment.
    fn reveal_abandoned(&mut self) {
        for (&slot, abandoned) in &mut self.abandoned {
            put_back(&self.memory, self.landing, slot, abandoned.return_to);
            if let Some(index) = abandoned.debt.take() {
                self.ledger.strike(index);
            }
        }
    }

    /// Nothing is owed any more in the slot of a frame that was given up: another one uses it.
    fn settle_abandoned(&mut self, slot: u64) {
        let abandoned = self.abandoned.get_mut(&slot);
        if let Some(index) = abandoned.and_then(|abandoned| abandoned.debt.take()) {
            self.ledger.strike(index);
        }
    }

    /// A frame that was given up has been returned through: where it leads, and the debt that stands for it.
    pub(super) fn take_abandoned(&mut self, slot: u64) -> Option<(u64, Option<u32>)> {
        let abandoned = self.abandoned.remove(&slot)?;
        Some((abandoned.return_to, abandoned.debt))
    }

    /// Where a frame that was given up leads.
    pub(super) fn abandoned(&self, slot: u64) -> Option<u64> {
        self.abandoned
            .get(&slot)
            .map(|abandoned| abandoned.return_to)
    }

    /// Forgets the frames that were given up: their memory is gone.
    pub(super) fn forget_abandoned(&mut self) {
        let debts = self
            .abandoned
            .drain()
            .filter_map(|(_, abandoned)| abandoned.debt);
        debts.for_each(|index| self.ledger.strike(index));
    }

    /// Hides the return addresses again that [`Int3::reveal`] put back, where the frames still stand.
    pub(super) fn hide_again(&mut self, tid: i32) {
        let Some(calls) = self.threads.get(&tid) else {
            return;
        };
        let mut slots: Vec<(u64, u64)> = calls
            .frames()
            .iter()
            .filter(|frame| !frame.hidden && !matches!(frame.kind, FrameKind::Syscall(_)))
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
                frame.hidden = true;
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

    /// Puts back every return address of every thread, abandoned ones too.
    pub(super) fn reveal_all(&mut self) {
        let tids: Vec<i32> = self.threads.keys().copied().collect();
        for tid in tids {
            self.reveal(tid);
        }
        self.reveal_abandoned();
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
    if memory
        .read_word(TargetAddr(slot))
        .is_ok_and(|word| word == landing.0)
    {
        let _ = memory.write_word(TargetAddr(slot), return_to);
    }
}

#[cfg(test)]
mod tests {
    use crate::child_signal;
    use crate::engine::Engine as _;
    use crate::engine::calibration::of_child;
    use crate::engine::int3::Guarding;
    use crate::engine::int3::calls::ThreadCalls;
    use crate::ledger;

    use super::*;

    /// A thread that returns there when nobody listens any more would stay in the landing pad for ever.
    #[test]
    fn a_frame_that_was_given_up_is_owed_while_it_is_hidden() {
        const PROGRAMS: u64 = 0x1000;
        child_signal::block().unwrap();
        // At the same place in the child.
        let stack = [PROGRAMS; 1];
        let slot = stack.as_ptr() as u64;
        let work = || {
            loop {
                std::hint::black_box(&stack);
            }
        };
        of_child(work, |pid| {
            let mut engine = Int3::attach(pid, Guarding::Unguarded)?;
            engine.landing = TargetAddr(0x2000);
            let owed = |engine: &Int3| ledger::read(engine.ledger.file()).len();
            let give_up = |engine: &mut Int3| {
                let debt = engine.hide(slot, PROGRAMS)?;
                let mut calls = ThreadCalls::new(pid);
                calls.enter(FrameKind::Ignored, slot, PROGRAMS, 0);
                let frame = &mut calls.frames_mut()[0];
                (frame.hidden, frame.ledger) = (true, debt);
                engine.abandon(calls.frames());
                Ok::<_, crate::error::Error>(())
            };
            give_up(&mut engine)?;
            assert_eq!(owed(&engine), 1);
            // The slot is used again.
            give_up(&mut engine)?;
            assert_eq!(owed(&engine), 1);
            engine.reveal_all();
            assert_eq!(owed(&engine), 0);
            assert_eq!(engine.memory.read_word(TargetAddr(slot))?, PROGRAMS);
            give_up(&mut engine)?;
            let (return_to, debt) = engine.take_abandoned(slot).unwrap();
            assert_eq!(return_to, PROGRAMS);
            engine.settle(&[debt.unwrap()]);
            assert_eq!(owed(&engine), 0);
            engine.finish()
        })
        .unwrap();
    }
}
