//! A stopped thread that is in our own code: what it was about to do, and its registers without our code's
//! doing. Nobody else is to see it there: neither a signal handler nor whoever comes after us.

use crate::addr::TargetAddr;
use crate::error::Result;
use crate::stopped::Registers;
use darc_record::Tsc;

use super::Int3;
use super::landing::{self, LANDING, Progress, Saved};

/// Bytes of a `syscall` instruction.
const SYSCALL_BYTES: i64 = 2;

/// In which of our pieces of code a thread is, and how it would go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inside {
    /// In the program's own code, or in none of those below.
    Elsewhere,
    /// It goes on after a stop: its registers are those of the program there.
    Departing,
    /// It has returned to the landing pad.
    Landing {
        /// How far it came there.
        progress: Progress,
        /// What it read of the clock.
        stamp: Option<Tsc>,
    },
    /// In the measured copy of a system call instruction.
    Syscall {
        /// How far into the copy.
        offset: u64,
        /// Where the program goes on.
        next: TargetAddr,
        /// What it read of the clock.
        stamp: Option<Tsc>,
    },
}

impl Inside {
    /// When the thread came to the trap there, as far as it has read the clock itself.
    #[must_use]
    pub fn stamp(self) -> Option<Tsc> {
        match self {
            Inside::Landing { stamp, .. } | Inside::Syscall { stamp, .. } => stamp,
            Inside::Elsewhere | Inside::Departing => None,
        }
    }
}

impl Int3 {
    /// Finds out where a stopped thread is. Its registers are changed to what they would be without our code,
    /// but for the instruction pointer of a return or a system call.
    pub(super) fn inside(&self, tid: i32, registers: &mut Registers) -> Result<Inside> {
        let departing = self
            .departures
            .as_ref()
            .is_some_and(|departures| departures.lead_out(tid, registers));
        let rip = registers.rip();
        if !self.arena.as_ref().is_some_and(|arena| arena.contains(rip)) {
            return Ok(match departing {
                true => Inside::Departing,
                false => Inside::Elsewhere,
            });
        }
        if let Some(original) = self.original_of(rip) {
            registers.set_rip(original);
            return Ok(Inside::Departing);
        }
        if let Some(next) = self.behind_plain_syscall(rip) {
            registers.set_rip(next);
            registers.0.rcx = next.0;
            return Ok(Inside::Departing);
        }
        let offset = rip.0.wrapping_sub(self.landing.0);
        if offset < LANDING.len() as u64
            && let Some(progress) = landing::in_landing(offset)
        {
            let mut stack = [0; 16];
            if progress.saved != Saved::Nothing {
                self.memory.read(TargetAddr(registers.rsp()), &mut stack)?;
            }
            let words = [&stack[..8], &stack[8..]]
                .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
            let stamp = landing::undo_landing(registers, progress, words);
            return Ok(Inside::Landing { progress, stamp });
        }
        for offset in landing::SYSCALL_OFFSETS {
            let start = TargetAddr(rip.0.wrapping_sub(offset));
            if let Some(&next) = self.measured_syscalls.get(&start) {
                let stamp = landing::undo_syscall(registers, offset, next.0);
                return Ok(Inside::Syscall {
                    offset,
                    next,
                    stamp,
                });
            }
        }
        Ok(Inside::Elsewhere)
    }

    /// Which instruction of the program a thread in a copy of one is about to execute.
    fn original_of(&self, rip: TargetAddr) -> Option<TargetAddr> {
        let copied = self.continuations.original_of(rip);
        copied.or_else(|| {
            let mut copies = self.syscall_copies.iter();
            copies.find_map(|(&addr, copies)| (copies.plain == rip).then_some(addr))
        })
    }

    /// Where a thread goes on that is in or just behind a system call that is not measured.
    fn behind_plain_syscall(&self, rip: TargetAddr) -> Option<TargetAddr> {
        let mut copies = self.syscall_copies.iter();
        copies.find_map(|(&addr, copies)| {
            (copies.plain.offset(SYSCALL_BYTES) == rip).then_some(addr.offset(SYSCALL_BYTES))
        })
    }
}
