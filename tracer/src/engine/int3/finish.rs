//! Letting go of the target: first everything is put back while it runs, then each thread is stopped
//! for an instant and detached.

use std::time::{Duration, Instant};

use crate::addr::TargetAddr;
use crate::error::{Error, Result, unless_gone};
use crate::event::{Event, Spawn};
use crate::maps;
use crate::stopped::Stopped;
use crate::threads::{self, SignalMasks};

use super::Int3;
use super::calls::FrameKind;
use super::inside::Inside;
use super::landing::{PASS, SYSCALL_TRAP};

/// So often it is tried to take out what cannot be taken out at once,
const ATTEMPTS: u32 = 5;
/// after a pause each time.
const BETWEEN: Duration = Duration::from_millis(20);

/// For so long all threads together are waited for, while the others stand still: one in an uninterruptible wait stops only
/// after that.
const PATIENCE: Duration = Duration::from_secs(1);

impl Int3 {
    /// Restores text and stacks and detaches from every thread. Of a process that has ended nothing is left to restore.
    pub(super) fn let_go(&mut self) -> Result<()> {
        if self.end.is_some() {
            return Ok(());
        }
        let mut restored = self.disarm_all();
        for _ in 1..ATTEMPTS {
            if restored.is_ok() {
                break;
            }
            // Whoever is let go meets what stays: nobody is there for it.
            std::thread::sleep(BETWEEN);
            restored = self.disarm_all();
        }
        self.reveal_all();
        for copy in self.measured_syscalls.keys() {
            // Threads blocked in a copied system call go on by themselves from now on.
            let trap = copy.offset(SYSCALL_TRAP as i64);
            let _ = self.memory.write(trap, &[PASS]);
        }
        let since = Instant::now();
        // Who waits for the end of the program that it has started can as well wait for its threads.
        let deadline = (!self.is_started).then(|| since + PATIENCE);
        let mut stopped = Vec::new();
        let mut outcome = self.let_everyone_go(deadline, &mut stopped);
        for (thread, _) in stopped {
            outcome = outcome.and(unless_gone(thread.detach()).map(drop));
        }
        self.counters.pauses.push(since.elapsed());
        restored.and(outcome)
    }

    /// Stops every thread and gives the arena back. Those that stand still, which are to be detached, are in `stopped` whatever
    /// becomes of the others.
    fn let_everyone_go(
        &mut self,
        deadline: Option<Instant>,
        stopped: &mut Vec<(Stopped, Event)>,
    ) -> Result<()> {
        self.let_borrowers_go(deadline)?;
        self.stop_everyone(deadline, stopped)?;
        // A thread may have been in the middle of making another one.
        self.let_borrowers_go(deadline)?;
        self.unmap_arena(stopped)
    }

    /// Lets go of the processes that share the target's memory, which is clean by now: their parents wait for
    /// them, so they come first.
    fn let_borrowers_go(&mut self, deadline: Option<Instant>) -> Result<()> {
        for borrower in std::mem::take(&mut self.borrowers) {
            if !threads::interrupt(borrower)? {
                continue;
            }
            let outcome = match self.wait_for_stop(borrower, deadline)? {
                None | Some(Event::Exited(_) | Event::Killed(_)) => continue,
                Some(Event::Exec) => Stopped::observed(borrower, 0).detach(),
                Some(event) => self
                    .clean(observed(borrower, event))
                    .and_then(Stopped::detach),
            };
            unless_gone(outcome)?;
        }
        Ok(())
    }

    /// Waits for an interrupted thread's report, as [`threads::wait_stopped_until`] does. `None` also where it does not come in
    /// time: the kernel lets go of such a thread when the tracer ends, and until then it goes on in memory that stays mapped.
    fn wait_for_stop(&mut self, tid: i32, deadline: Option<Instant>) -> Result<Option<Event>> {
        match threads::wait_stopped_until(tid, deadline) {
            Err(Error::Busy(reason)) => {
                tracing::debug!(target: "tracer", %reason, "let go without being stopped");
                self.returns_to_arena = true;
                Ok(None)
            }
            outcome => outcome,
        }
    }

    /// Stops every thread, wherever it is, with its registers pointing into the program's own code.
    fn stop_everyone(
        &mut self,
        deadline: Option<Instant>,
        stopped: &mut Vec<(Stopped, Event)>,
    ) -> Result<()> {
        let mut seen = std::collections::BTreeSet::new();
        let parked = self.parked.take().map(|thread| (thread, Event::Stopped));
        let held = std::mem::take(&mut self.left_stopped).into_iter();
        let held = held.map(|(tid, event)| (observed(tid, event), event));
        let mut outcome = Ok(());
        for (thread, event) in parked.into_iter().chain(held) {
            seen.insert(thread.tid());
            outcome = outcome.and(self.hold_clean(thread, event, stopped));
        }
        loop {
            let known: Vec<i32> = self.threads.keys().copied().collect();
            let listed = threads::list(self.pid).unwrap_or_default();
            let waiting: Vec<i32> = known
                .into_iter()
                .chain(listed)
                .filter(|&tid| seen.insert(tid))
                .collect();
            if waiting.is_empty() {
                return outcome;
            }
            let mut asked = Vec::new();
            for tid in waiting {
                if threads::interrupt(tid)? {
                    asked.push(tid);
                }
            }
            for tid in asked {
                let Some(event) = self.wait_for_stop(tid, deadline)? else {
                    self.forget_thread(tid);
                    continue;
                };
                match event {
                    Event::Exited(_) | Event::Killed(_) => {
                        self.note_end(tid, event);
                        continue;
                    }
                    Event::Spawned(Spawn::Fork | Spawn::Vfork) => {
                        outcome = outcome.and(self.clean_child_of(tid));
                    }
                    _ => {}
                }
                outcome = outcome.and(self.hold_clean(observed(tid, event), event, stopped));
            }
        }
    }

    /// Adds a stopped thread to those that stand still, led out of our code where that can be.
    fn hold_clean(
        &mut self,
        thread: Stopped,
        event: Event,
        stopped: &mut Vec<(Stopped, Event)>,
    ) -> Result<()> {
        let tid = thread.tid();
        match unless_gone(self.clean(thread)) {
            Ok(thread) => {
                // One that is gone was not where it was thought to be.
                self.returns_to_arena |= thread.is_none();
                stopped.extend(thread.map(|thread| (thread, event)));
                Ok(())
            }
            Err(error) => {
                self.returns_to_arena = true;
                let mut thread = observed(tid, event);
                if thread.pending() == libc::SIGTRAP {
                    thread.suppress_signal();
                }
                stopped.push((thread, event));
                Err(error)
            }
        }
    }

    /// Leads a stopped thread out of our code: it may have just run into a breakpoint, or returned to
    /// the landing pad, or sit in a copied instruction.
    fn clean(&mut self, thread: Stopped) -> Result<Stopped> {
        let mut thread = self.with_its_trap(thread)?;
        let found = thread.registers()?;
        let mut registers = found;
        let inside = self.inside(thread.tid(), &mut registers)?;
        let trapped = thread.pending() == libc::SIGTRAP;
        let trapped_at = registers.rip().offset(-1);
        match inside {
            Inside::Elsewhere if trapped && self.points.was_armed(trapped_at) => {
                registers.set_rip(trapped_at);
                thread.suppress_signal();
            }
            Inside::Elsewhere | Inside::Departing => {}
            Inside::Landing { progress, .. } => {
                let slot = registers.rsp().wrapping_sub(8);
                let frames = self
                    .threads
                    .get(&thread.tid())
                    .map(|calls| calls.frames())
                    .unwrap_or_default();
                // The stack may have come from another thread.
                let others = || self.threads.values().flat_map(|calls| calls.frames());
                let known = frames
                    .iter()
                    .rev()
                    .find(|frame| frame.slot == slot)
                    .or_else(|| others().find(|frame| frame.slot == slot))
                    .map(|frame| frame.return_to)
                    .or_else(|| self.abandoned.get(&slot).copied());
                match known {
                    Some(to) => {
                        registers.set_rip(TargetAddr(to));
                        if trapped && progress.trapped {
                            thread.suppress_signal();
                        }
                    }
                    None => registers = found,
                }
            }
            Inside::Syscall { offset, next, .. } => {
                // Still in the system call: its instruction is as long as the original.
                registers.set_rip(match offset {
                    0 => next.offset(-2),
                    _ => next,
                });
                if trapped && offset > SYSCALL_TRAP {
                    thread.suppress_signal();
                }
                self.forget_syscall(thread.tid());
            }
        }
        registers.hide_interruption();
        thread.set_registers(&registers)?;
        Ok(thread)
    }

    /// Has a thread report the trap of a breakpoint that it ran into: the kernel reports an interrupt first,
    /// even when it came later, and the trap would meet the program when we are gone.
    fn with_its_trap(&mut self, thread: Stopped) -> Result<Stopped> {
        let tid = thread.tid();
        let owes = || SignalMasks::of(tid).is_some_and(|masks| masks.is_pending(libc::SIGTRAP));
        if thread.pending() == libc::SIGTRAP || !self.is_behind_breakpoint(&thread)? || !owes() {
            return Ok(thread);
        }
        thread.resume()?;
        match threads::wait_stopped(tid)? {
            Some(Event::Signal(signal)) => Ok(Stopped::observed(tid, signal)),
            Some(event @ (Event::Exited(_) | Event::Killed(_))) => {
                self.note_end(tid, event);
                Err(Error::ThreadGone { tid })
            }
            Some(_) => Ok(Stopped::observed(tid, 0)),
            None => Err(Error::ThreadGone { tid }),
        }
    }

    fn is_behind_breakpoint(&self, thread: &Stopped) -> Result<bool> {
        let mut registers = thread.registers()?;
        let trapped_at = registers.rip().offset(-1);
        Ok(match self.inside(thread.tid(), &mut registers)? {
            Inside::Landing { progress, .. } => progress.trapped,
            Inside::Syscall { offset, .. } => offset == SYSCALL_TRAP + 1,
            Inside::Elsewhere => self.points.was_armed(trapped_at),
            Inside::Departing => false,
        })
    }

    pub(super) fn forget_syscall(&mut self, tid: i32) {
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
        if led_inside || in_call || self.returns_to_arena {
            // A few kilobytes stay mapped until the process ends; nothing jumps there from its text.
            return Ok(());
        }
        let mappings = maps::read(self.pid).unwrap_or_default();
        // A thread in a group stop will do as well: it is stopped again when it is let go.
        let threads = stopped.iter_mut().map(|(thread, _)| thread);
        match caller.borrow(threads, &mappings, |worker| arena.unmap(worker)) {
            // Under a seccomp filter the memory stays: a few kilobytes that nothing jumps to.
            Ok(()) | Err(Error::ThreadGone { .. } | Error::Unsuitable(_) | Error::Busy(_)) => {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

/// A thread that stopped with this event, and the signal that it is owed with it.
fn observed(tid: i32, event: Event) -> Stopped {
    let pending = match event {
        Event::Signal(signal) => signal,
        _ => 0,
    };
    Stopped::observed(tid, pending)
}
