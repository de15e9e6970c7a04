//! Letting go of the target: first its code is put back while it runs, then each thread is stopped
//! for an instant, in which the stacks are put back, and detached.
//!
//! The breakpoints at unwinders stay until the stacks are put back: a thread may throw at any moment.

use std::time::{Duration, Instant};

use crate::addr::TargetAddr;
use crate::error::{Error, Result, unless_gone};
use crate::event::{Event, decode};
use crate::maps;
use crate::memory::Memory;
use crate::stopped::Stopped;
use crate::sys;
use crate::threads::{self, SignalMasks};

use super::Int3;
use super::calls::FrameKind;
use super::inside::Inside;
use super::landing::{PASS, SYSCALL_TRAP};
use super::points::Roles;
use super::returns::EVERYWHERE;

/// So often it is tried to take out what cannot be taken out at once,
const ATTEMPTS: u32 = 5;
/// after a pause each time.
const BETWEEN: Duration = Duration::from_millis(20);

/// For so long threads are waited for, while the others stand still: one in an uninterruptible wait stops only after that.
const PATIENCE: Duration = Duration::from_secs(1);

impl Int3 {
    /// Restores text and stacks and detaches from every thread. Of a process that has ended nothing is left to restore, but
    /// for those that outlive it.
    pub(super) fn let_go(&mut self) -> Result<()> {
        if self.end.is_some() {
            return self.let_heirs_go();
        }
        // What stays is tried again below.
        let _ = self.disarm_patiently(|roles| !roles.unwinder);
        self.pass_syscalls(&self.memory);
        let since = Instant::now();
        let mut stopped = Vec::new();
        let mut outcome = self.let_borrowers_go();
        outcome = outcome.and(self.stop_everyone(&mut stopped));
        // A thread may have been in the middle of making another one.
        outcome = outcome.and(self.let_borrowers_go());
        self.reveal_all();
        let restored = match self.disarm_patiently(|_| true) {
            // It has executed another program meanwhile.
            Err(_) if self.is_lost() => Ok(()),
            restored => restored,
        };
        if outcome.is_ok() {
            outcome = self.unmap_arena(&mut stopped);
        }
        for (thread, _) in stopped {
            outcome = outcome.and(unless_gone(thread.detach()).map(drop));
        }
        self.counters.pauses.push(since.elapsed());
        restored.and(outcome)
    }

    /// Lets go of those that outlive the process: children that share its memory, and such as it had just made.
    fn let_heirs_go(&mut self) -> Result<()> {
        let mut outcome = self.take_reports();
        if self.borrowers.is_empty() {
            return outcome;
        }
        outcome = outcome.and(self.disarm_all());
        self.pass_syscalls(&self.memory);
        outcome.and(self.let_borrowers_go())
    }

    /// Takes the reports that nobody has looked at since the process ended.
    fn take_reports(&mut self) -> Result<()> {
        let mut outcome = Ok(());
        while let Ok(Some((tid, status))) = sys::wait_any() {
            let taken = self.take_report(tid, decode(status));
            outcome = outcome.and(unless_gone(taken).map(drop));
        }
        outcome
    }

    fn take_report(&mut self, tid: i32, event: Event) -> Result<()> {
        match event {
            Event::Exited(_) | Event::Killed(_) => self.forget_thread(tid),
            Event::Exec => {
                self.borrowers.remove(&tid);
                observed(tid, event).detach()?;
            }
            _ if self.borrowers.contains(&tid) || self.adopt(tid)? => {
                self.left_stopped.insert(tid, event);
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes the traps out of the measured copies of system calls, in the target's memory or in a copy of it: threads that are
    /// blocked there, or return there from a signal handler, go on by themselves.
    pub(super) fn pass_syscalls(&self, memory: &Memory) {
        for copy in self.measured_syscalls.keys() {
            let _ = memory.write(copy.offset(SYSCALL_TRAP as i64), &[PASS]);
        }
    }

    /// Puts the text back where the breakpoint stands for something of this kind. Whoever is let go meets what stays: nobody is there
    /// for it.
    fn disarm_patiently(&mut self, is_meant: impl Fn(&Roles) -> bool) -> Result<()> {
        for _ in 1..ATTEMPTS {
            if self.disarm_where(&is_meant).is_ok() {
                return Ok(());
            }
            std::thread::sleep(BETWEEN);
        }
        self.disarm_where(is_meant)
    }

    /// Lets go of the processes that share the target's memory, which is clean then: their parents wait for
    /// them, so they come first.
    fn let_borrowers_go(&mut self) -> Result<()> {
        let borrowers: Vec<i32> = std::mem::take(&mut self.borrowers).into_iter().collect();
        let (mut stopped, mut outcome) = (Vec::new(), Ok(()));
        let (left, others): (Vec<i32>, Vec<i32>) = borrowers
            .into_iter()
            .partition(|borrower| self.left_stopped.contains_key(borrower));
        for borrower in left {
            if let Some(event) = self.left_stopped.remove(&borrower) {
                outcome = outcome.and(self.hold(borrower, event, &mut stopped));
            }
        }
        outcome = outcome.and(self.stop_all(others, &mut stopped));
        if !stopped.is_empty() {
            // Threads that run may throw when the last breakpoints are out.
            self.reveal_all_frames();
            outcome = outcome.and(self.disarm_all());
        }
        for (thread, _) in stopped {
            if let Ok(registers) = thread.registers() {
                self.reveal_stack(registers.rsp());
            }
            outcome = outcome.and(unless_gone(thread.detach()).map(drop));
        }
        outcome
    }

    /// Stops every thread, wherever it is, with its registers pointing into the program's own code.
    fn stop_everyone(&mut self, stopped: &mut Vec<(Stopped, Event)>) -> Result<()> {
        let mut seen = std::collections::BTreeSet::new();
        let mut outcome = Ok(());
        if let Some(thread) = self.parked.take() {
            seen.insert(thread.tid());
            outcome = self.hold_clean(thread, Event::Stopped, stopped);
        }
        for (tid, event) in std::mem::take(&mut self.left_stopped) {
            seen.insert(tid);
            outcome = outcome.and(self.hold(tid, event, stopped));
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
            outcome = outcome.and(self.stop_all(waiting, stopped));
        }
    }

    /// Stops these: all are interrupted before any is waited for.
    fn stop_all(&mut self, tids: Vec<i32>, stopped: &mut Vec<(Stopped, Event)>) -> Result<()> {
        let (mut asked, mut outcome) = (Vec::new(), Ok(()));
        for tid in tids {
            match threads::interrupt(tid) {
                Ok(true) => asked.push(tid),
                Ok(false) => {}
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        let deadline = Instant::now() + PATIENCE;
        for tid in asked {
            match threads::look_stopped_until(tid, Some(deadline)) {
                Ok(Some(event)) => outcome = outcome.and(self.hold(tid, event, stopped)),
                Ok(None) => self.forget_thread(tid),
                Err(Error::Busy(reason)) => {
                    // It goes on in memory that stays mapped.
                    tracing::debug!(target: "tracer", %reason, "let go later");
                    threads::leave_behind(tid);
                    self.returns_to_arena = true;
                    self.reveal_frames(tid, &EVERYWHERE);
                    self.forget_thread(tid);
                }
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome
    }

    /// Adds a thread that has reported this to those that stand still, unless that was its end.
    fn hold(&mut self, tid: i32, event: Event, stopped: &mut Vec<(Stopped, Event)>) -> Result<()> {
        let cleaned = match event {
            Event::Exited(_) | Event::Killed(_) => {
                self.note_end(tid, event);
                return Ok(());
            }
            Event::Spawned(_) => self.clean_child_of(tid),
            _ => Ok(()),
        };
        cleaned.and(self.hold_clean(observed(tid, event), event, stopped))
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
        let stepped = thread.has_stepped();
        let trapped_at = registers.rip().offset(-1);
        match inside {
            Inside::Elsewhere if trapped && !stepped && self.points.was_armed(trapped_at) => {
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
                let known = frames
                    .iter()
                    .rev()
                    .find(|frame| frame.slot == slot)
                    .map(|frame| frame.return_to)
                    // The stack may have come from another thread.
                    .or_else(|| self.destination(slot));
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
                if trapped && (offset > SYSCALL_TRAP || stepped) {
                    thread.suppress_signal();
                }
                self.forget_syscall(thread.tid());
            }
        }
        registers.hide_interruption();
        if stepped && thread.pending() != 0 {
            thread.owe_step(registers.rip())?;
        }
        thread.set_registers(&registers)?;
        if thread.pending() == 0 {
            // Now that it is led out, it need not die of the trap should we be killed.
            sys::take_stop(thread.tid());
        }
        Ok(thread)
    }

    /// Has a thread report the trap of a breakpoint that it ran into, or of a step that it has made in our code: the kernel
    /// reports an interrupt first, even when it came later, and the trap would meet the program when we are gone.
    fn with_its_trap(&mut self, thread: Stopped) -> Result<Stopped> {
        let tid = thread.tid();
        // One that is blocked was sent by somebody: the kernel unblocks it for a trap.
        let owes = || SignalMasks::of(tid).is_some_and(|masks| masks.is_due(libc::SIGTRAP));
        if thread.pending() == libc::SIGTRAP || !self.may_have_trapped(&thread)? || !owes() {
            return Ok(thread);
        }
        /// It may report other stops first.
        const MOST: usize = 8;
        let mut thread = thread;
        for _ in 0..MOST {
            thread.resume()?;
            let deadline = Instant::now() + PATIENCE;
            match threads::look_stopped_until(tid, Some(deadline))? {
                Some(event @ (Event::Exited(_) | Event::Killed(_))) => {
                    self.note_end(tid, event);
                    return Err(Error::ThreadGone { tid });
                }
                Some(event) => thread = observed(tid, event),
                None => return Err(Error::ThreadGone { tid }),
            }
            if thread.pending() == libc::SIGTRAP {
                break;
            }
        }
        Ok(thread)
    }

    fn may_have_trapped(&self, thread: &Stopped) -> Result<bool> {
        let mut registers = thread.registers()?;
        let stepping = registers.are_stepping();
        let trapped_at = registers.rip().offset(-1);
        Ok(match self.inside(thread.tid(), &mut registers)? {
            Inside::Landing { progress, .. } => progress.trapped || stepping,
            // It was led to the first instruction.
            Inside::Syscall { offset, .. } => {
                offset == SYSCALL_TRAP + 1 || (stepping && offset > 0)
            }
            Inside::Elsewhere => self.points.was_armed(trapped_at),
            Inside::Departing => stepping,
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
        if stopped.iter().any(|(_, event)| *event == Event::Exec) {
            // It is another program's memory by now.
            return Ok(());
        }
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
        let unmapped = caller.borrow(threads, &mappings, |worker| arena.unmap(worker));
        if unmapped.is_ok() {
            for debt in self.arena_debts.drain(..) {
                self.ledger.strike(debt);
            }
        }
        match unmapped {
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

#[cfg(test)]
mod tests;
