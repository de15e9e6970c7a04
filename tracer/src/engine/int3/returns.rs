//! Hidden return addresses: which stack slots lead to the landing pad, and putting them back.

use crate::addr::TargetAddr;
use crate::error::Result;
use crate::ledger::Debt;
use crate::memory::Memory;

use super::Int3;
use super::calls::{Frame, FrameKind};

impl Int3 {
    /// Replaces the return address in a slot by the landing pad and enters the debt.
    pub(super) fn hide(&mut self, slot: u64, return_to: u64) -> Result<Option<u32>> {
        let debt = Debt::Slot {
            addr: slot,
            return_to,
            hidden: self.landing.0,
        };
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
            if frame.hidden {
                self.abandoned.insert(frame.slot, frame.return_to);
            }
            if let Some(index) = frame.ledger {
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
    fn reveal_abandoned(&self) {
        for (&slot, &return_to) in &self.abandoned {
            put_back(&self.memory, self.landing, slot, return_to);
        }
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
        for (slot, return_to) in hidden.chain(self.abandoned.iter().map(|(&slot, &to)| (slot, to)))
        {
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
