//! What a traced thread's stop asks for, other than our own breakpoints: signals, group stops, new
//! threads and processes, exec, exit. Source: ptrace(2).

use crate::engine::{Notice, Sink};
use crate::error::{Error, Result, unless_gone};
use crate::event::{Event, Spawn};
use crate::memory::Memory;
use crate::record::Tsc;
use crate::stopped::Stopped;
use crate::sys;
use crate::threads::{self, SignalMasks};

use super::Int3;
use super::calls::{FrameKind, ThreadCalls};

impl Int3 {
    /// Handles one wait status, noticed at `trap`.
    pub(super) fn stop(
        &mut self,
        tid: i32,
        event: Event,
        trap: Tsc,
        sink: &mut dyn Sink,
    ) -> Result<Option<Notice>> {
        match event {
            Event::Exited(_) | Event::Killed(_) => return Ok(self.note_end(tid, event)),
            Event::Exec => return self.exec(tid),
            _ => {}
        }
        if !self.threads.contains_key(&tid) && !self.borrowers.contains(&tid) && !self.adopt(tid)? {
            return Ok(None);
        }
        let handled = match event {
            Event::Signal(libc::SIGTRAP) => {
                self.trap(Stopped::observed(tid, libc::SIGTRAP), trap, sink)
            }
            Event::Signal(signal) => self.signal(Stopped::observed(tid, signal)),
            Event::GroupStop(_) => Stopped::observed(tid, 0).listen(),
            Event::Spawned(Spawn::Fork | Spawn::Vfork) => {
                self.clean_child_of(tid)?;
                Stopped::observed(tid, 0).resume()
            }
            _ => Stopped::observed(tid, 0).resume(),
        };
        unless_gone(handled)?;
        let changed = std::mem::take(&mut self.libraries_changed);
        Ok(changed.then_some(Notice::LibrariesChanged))
    }

    /// Takes care of a child that a thread, stopped at its fork, has just made. Now, for the frames that
    /// the child has a copy of may be gone as soon as the parent goes on.
    pub(super) fn clean_child_of(&mut self, parent: i32) -> Result<()> {
        let Ok(child) = sys::event_message(parent) else {
            return Ok(());
        };
        let known = self.threads.contains_key(&child) || self.borrowers.contains(&child);
        if known || threads::wait_stopped(child)?.is_none() {
            return Ok(());
        }
        if self.adopt(child)? {
            unless_gone(Stopped::observed(child, 0).resume())?;
        }
        Ok(())
    }

    /// A thread seen for the first time: one of ours, or a child process. False when it was let go.
    fn adopt(&mut self, tid: i32) -> Result<bool> {
        if threads::process_of(tid) == Some(self.pid) {
            self.threads.insert(tid, ThreadCalls::new(tid));
            return Ok(true);
        }
        if sys::shares_memory(self.pid, tid) == Some(true) {
            self.borrowers.insert(tid);
            return Ok(true);
        }
        // A forked child has its own copy of our breakpoints and of the hidden return addresses.
        if let Ok(copy) = Memory::open(tid) {
            self.points.restore_copy(&copy);
            self.reveal_copy(&copy);
        }
        unless_gone(Stopped::observed(tid, 0).detach())?;
        Ok(false)
    }

    /// A thread has ended. The notice when the process has ended with it.
    pub(super) fn note_end(&mut self, tid: i32, event: Event) -> Option<Notice> {
        self.forget_thread(tid);
        if tid == self.pid {
            self.end = match event {
                Event::Exited(status) => Some(Notice::Exited(status)),
                Event::Killed(signal) => Some(Notice::Killed(signal)),
                _ => None,
            };
            return self.end;
        }
        None
    }

    fn forget_thread(&mut self, tid: i32) {
        self.borrowers.remove(&tid);
        if let Some(calls) = self.threads.remove(&tid) {
            let lost = calls
                .frames()
                .iter()
                .filter(|frame| frame.kind == FrameKind::F0)
                .count();
            self.counters.ended_otherwise += lost as u64;
            for frame in calls.frames() {
                frame
                    .ledger
                    .into_iter()
                    .for_each(|index| self.ledger.strike(index));
            }
        }
    }

    fn exec(&mut self, tid: i32) -> Result<Option<Notice>> {
        if tid != self.pid {
            // A child that borrowed the memory, or one that we had no business with: let it go.
            self.borrowers.remove(&tid);
            unless_gone(Stopped::observed(tid, 0).detach())?;
            return Ok(None);
        }
        // All other threads are gone, and whichever called exec has the leader's id now.
        let threads: Vec<i32> = self.threads.keys().copied().collect();
        for thread in threads {
            self.forget_thread(thread);
        }
        self.points.forget(&mut self.ledger);
        self.abandoned.clear();
        self.arena = None;
        self.continuations.clear();
        self.syscall_copies.clear();
        self.syscall_ends.clear();
        self.memory = Memory::open(self.pid)?;
        self.threads.insert(tid, ThreadCalls::new(tid));
        unless_gone(Stopped::observed(tid, 0).resume())?;
        Ok(Some(Notice::Exec))
    }

    /// Passes a signal on as if nobody were watching.
    fn signal(&mut self, mut thread: Stopped) -> Result<()> {
        let signal = thread.pending();
        let mut registers = thread.registers()?;
        if registers.hide_interruption() {
            // A signal that the process ignores never reaches an untraced process, so it must not
            // end its system calls either.
            if SignalMasks::of(thread.tid()).is_some_and(|masks| masks.discards(signal)) {
                thread.set_registers(&registers)?;
                thread.suppress_signal();
            }
        } else if matches!(
            signal,
            libc::SIGSEGV
                | libc::SIGABRT
                | libc::SIGBUS
                | libc::SIGILL
                | libc::SIGFPE
                | libc::SIGQUIT
                | libc::SIGSYS
                | libc::SIGXCPU
                | libc::SIGXFSZ
        ) {
            self.clean_for_core(thread.tid(), signal)?;
        }
        thread.resume()
    }

    /// Before a signal that dumps core: the dump is to show the program's own text and stack.
    pub(super) fn clean_for_core(&mut self, tid: i32, signal: i32) -> Result<()> {
        if SignalMasks::of(tid).is_some_and(|masks| masks.dumps_core(signal)) {
            self.disarm_all()?;
            self.reveal_all();
        }
        Ok(())
    }

    /// Puts all text back.
    pub(super) fn disarm_all(&mut self) -> Result<()> {
        let armed: Vec<_> = self.points.addresses().collect();
        for addr in armed {
            match self.points.disarm(&self.memory, &mut self.ledger, addr) {
                Ok(()) | Err(Error::ThreadGone { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
