//! Letting go of the target: first everything is put back while it runs, then each thread is stopped
//! for an instant and detached.

use std::time::Instant;

use crate::error::{Error, Result, unless_gone};
use crate::event::{Event, Spawn};
use crate::stopped::Stopped;
use crate::threads;

use super::calls::FrameKind;
use super::{Int3, JMP_INDIRECT};

impl Int3 {
    /// Restores text and stacks and detaches from every thread.
    pub(super) fn let_go(&mut self) -> Result<()> {
        self.disarm_all()?;
        self.reveal_all();
        for &end in self.syscall_ends.keys() {
            // Threads blocked in a copied system call go on by themselves from now on.
            let _ = self.memory.write(end, &JMP_INDIRECT[..1]);
        }
        let since = Instant::now();
        if let Some(thread) = self.parked.take() {
            self.threads.remove(&thread.tid());
            unless_gone(thread.detach())?;
        }
        let mut stopped = self.stop_everyone()?;
        self.unmap_arena(&mut stopped)?;
        for (thread, _) in stopped {
            unless_gone(thread.detach())?;
        }
        for borrower in std::mem::take(&mut self.borrowers) {
            // It shares the memory that is clean now; it is waiting for its parent in no way.
            if threads::interrupt(borrower)? && threads::wait_stopped(borrower)?.is_some() {
                unless_gone(Stopped::observed(borrower, 0).detach())?;
            }
        }
        self.counters.pauses.push(since.elapsed());
        Ok(())
    }

    /// Stops every thread, wherever it is, with its registers pointing into the program's own code.
    fn stop_everyone(&mut self) -> Result<Vec<(Stopped, Event)>> {
        let mut stopped = Vec::new();
        let mut seen = std::collections::BTreeSet::new();
        loop {
            let known: Vec<i32> = self.threads.keys().copied().collect();
            let listed = threads::list(self.pid).unwrap_or_default();
            let waiting: Vec<i32> = known
                .into_iter()
                .chain(listed)
                .filter(|&tid| seen.insert(tid))
                .collect();
            if waiting.is_empty() {
                return Ok(stopped);
            }
            let mut asked = Vec::new();
            for tid in waiting {
                if threads::interrupt(tid)? {
                    asked.push(tid);
                }
            }
            for tid in asked {
                let Some(event) = threads::wait_stopped(tid)? else {
                    self.threads.remove(&tid);
                    continue;
                };
                let thread = match event {
                    Event::Exited(_) | Event::Killed(_) => {
                        self.note_end(tid, event);
                        continue;
                    }
                    Event::Signal(signal) => Stopped::observed(tid, signal),
                    Event::Spawned(Spawn::Fork | Spawn::Vfork) => {
                        self.clean_child_of(tid)?;
                        Stopped::observed(tid, 0)
                    }
                    _ => Stopped::observed(tid, 0),
                };
                if let Some(thread) = unless_gone(self.clean(thread))? {
                    stopped.push((thread, event));
                }
            }
        }
    }

    /// Leads a stopped thread out of our code: it may have just run into a breakpoint, or returned to
    /// the landing pad, or sit in a copied instruction.
    fn clean(&mut self, mut thread: Stopped) -> Result<Stopped> {
        let mut registers = thread.registers()?;
        let before = registers.rip();
        let trapped_at = before.offset(-1);
        if thread.pending() == libc::SIGTRAP {
            let slot = registers.rsp().wrapping_sub(8);
            if trapped_at == self.landing {
                let frames = self
                    .threads
                    .get(&thread.tid())
                    .map(|calls| calls.frames())
                    .unwrap_or_default();
                let own = frames
                    .iter()
                    .rev()
                    .find(|frame| frame.slot == slot)
                    .map(|frame| frame.return_to)
                    .or_else(|| self.abandoned.get(&slot).copied());
                if let Some(to) = own {
                    registers.set_rip(crate::addr::TargetAddr(to));
                    thread.suppress_signal();
                }
            } else if self.points.was_armed(trapped_at) {
                registers.set_rip(trapped_at);
                thread.suppress_signal();
            } else if let Some(&next) = self.syscall_ends.get(&trapped_at) {
                registers.set_rip(next);
                thread.suppress_signal();
                self.forget_syscall(thread.tid());
            }
        } else if let Some(&next) = self.syscall_ends.get(&before) {
            // Still in the copied system call: its `syscall` instruction is as long as the original.
            registers.set_rip(next);
            self.forget_syscall(thread.tid());
        }
        let led_out = registers;
        if registers.hide_interruption() {
            let due =
                threads::SignalMasks::of(thread.tid()).is_some_and(|masks| masks.handler_due());
            if due {
                registers = led_out;
            }
        }
        thread.set_registers(&registers)?;
        Ok(thread)
    }

    fn forget_syscall(&mut self, tid: i32) {
        if let Some(calls) = self.threads.get_mut(&tid) {
            calls.forget_syscall();
        }
    }

    /// Gives the arena back when no thread can come to it any more.
    fn unmap_arena(&mut self, stopped: &mut [(Stopped, Event)]) -> Result<()> {
        let (Some(arena), Some(caller)) = (self.arena.take(), self.caller) else {
            return Ok(());
        };
        let mut led_inside = false;
        for (thread, _) in stopped.iter() {
            led_inside |= thread
                .registers()
                .is_ok_and(|registers| arena.contains(registers.rip()));
        }
        let in_call = self
            .threads
            .values()
            .flat_map(|calls| calls.frames())
            .any(|frame| matches!(frame.kind, FrameKind::Syscall(_)));
        if led_inside || in_call {
            // A few kilobytes stay mapped until the process ends; nothing jumps there from its text.
            return Ok(());
        }
        // A thread in a group stop will do as well: it is stopped again when it is let go.
        match stopped.first_mut() {
            Some((thread, _)) => match arena.unmap(caller, thread) {
                // Under a seccomp filter the memory stays: a few kilobytes that nothing jumps to.
                Ok(()) | Err(Error::ThreadGone { .. } | Error::Unsuitable(_)) => Ok(()),
                Err(error) => Err(error),
            },
            None => Ok(()),
        }
    }
}
