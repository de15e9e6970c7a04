//! What a traced thread's stop asks for, other than our own breakpoints: signals, group stops, new
//! threads and processes, exec, exit. Source: ptrace(2).

use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::child_signal;
use crate::children;
use crate::engine::{Notice, Sink};
use crate::error::{Error, Result, unless_gone};
use crate::event::{Event, Spawn, decode};
use crate::guests;
use crate::memory::Memory;
use crate::proc;
use crate::stopped::Stopped;
use crate::sys;
use crate::threads::{self, SignalMasks};

use super::Int3;
use super::calls::ThreadCalls;
use super::delivery::Noticed;
use super::inside::Inside;
use super::points::Roles;
use super::probes::Trap;

impl Int3 {
    /// Handles one wait status, which has been looked at and not been taken.
    pub(super) fn stop(
        &mut self,
        tid: i32,
        event: Event,
        noticed: Noticed,
        sink: &mut dyn Sink,
    ) -> Result<Option<Notice>> {
        match event {
            Event::Exited(_) | Event::Killed(_) => {
                let _ = sys::wait_now(tid);
                return Ok(self.note_end(tid, event));
            }
            // What it has made stops for the first time, and has a turn from then on.
            Event::Spawned(_) => {
                self.turns.join(sys::event_message(tid));
                sys::take_stop(tid);
            }
            // It is the thread's own until that goes on, or has been led out of our code: we may be killed meanwhile.
            Event::Signal(_) => {}
            _ => sys::take_stop(tid),
        }
        self.dumps_no_core(tid);
        let handled = self.handle(tid, event, noticed, sink);
        if let Err(error) = &handled {
            sys::take_stop(tid);
            if !error.is_gone() {
                self.left_stopped.entry(tid).or_insert(event);
            }
        }
        Ok(unless_gone(handled)?.flatten())
    }

    /// Handles a stop of a thread that lives.
    fn handle(
        &mut self,
        tid: i32,
        event: Event,
        noticed: Noticed,
        sink: &mut dyn Sink,
    ) -> Result<Option<Notice>> {
        if event == Event::Exec {
            return self.exec(tid);
        }
        if !self.threads.contains_key(&tid) && !self.borrowers.contains(&tid) && !self.adopt(tid)? {
            return Ok(None);
        }
        match event {
            Event::Signal(libc::SIGTRAP) => {
                self.trap(Stopped::observed(tid, libc::SIGTRAP), noticed, sink)?;
            }
            Event::Signal(signal) => {
                self.signal(Stopped::observed(tid, signal), noticed, sink)?;
            }
            Event::GroupStop(_) => Stopped::observed(tid, 0).listen()?,
            event => {
                let mut thread = Stopped::observed(tid, 0);
                self.leave_lane(&mut thread)?;
                self.pause(tid, noticed, None);
                if let Event::Spawned(spawn) = event
                    && (spawn != Spawn::Clone || self.has_made_process(tid))
                {
                    self.clean_child_of(tid)?;
                }
                self.go_on_as_it_is(thread)?;
            }
        }
        let changed = std::mem::take(&mut self.libraries_changed);
        Ok(changed.then_some(Notice::LibrariesChanged))
    }

    /// Has a thread that has not run since it was to go on do that past its lane, which nobody knows it to be in from now on: a
    /// signal that comes next would return there.
    fn leave_lane(&self, thread: &mut Stopped) -> Result<()> {
        let mut registers = thread.registers()?;
        let departures = self.departures.as_ref();
        match departures.is_some_and(|of| of.lead_out(thread.tid(), &mut registers)) {
            true => thread.set_registers(&registers),
            false => Ok(()),
        }
    }

    /// Whether what a thread has made by clone(2) is a process: the kernel reports one whose end is told by another signal than SIGCHLD, or
    /// by none, as it reports a thread.
    fn has_made_process(&self, parent: i32) -> bool {
        let child = sys::event_message(parent).ok();
        let process = child.and_then(threads::process_of);
        process.is_some_and(|process| process != self.pid)
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

    /// Waits until an interrupted thread stands still for that, or has ended, when nothing is armed yet. A signal goes first: should
    /// we be killed while the thread makes calls of ours, it would be lost.
    pub(super) fn wait_before_arming(&mut self, tid: i32) -> Result<Option<Event>> {
        loop {
            match self.wait_for_report(tid)? {
                Some(Event::Signal(signal)) => {
                    unless_gone(Stopped::observed(tid, signal).resume())?;
                }
                found => {
                    if let Some(Event::Spawned(_)) = found {
                        self.turns.join(sys::event_message(tid));
                    }
                    return Ok(found);
                }
            }
        }
    }

    /// Waits until an interrupted thread reports, as [`threads::wait_stopped`] does. It may wait for a child that borrows its
    /// memory: that one goes on meanwhile.
    fn wait_for_report(&mut self, tid: i32) -> Result<Option<Event>> {
        const LOOK_AGAIN: Duration = Duration::from_millis(1);
        /// One that waits in the kernel for long is not the only one, or it is tried again later.
        const PATIENCE: Duration = Duration::from_secs(1);
        let deadline = Instant::now() + PATIENCE;
        loop {
            if self.borrowers.is_empty() || deadline <= Instant::now() {
                return threads::wait_stopped_until(tid, Some(deadline));
            }
            match sys::wait_but_for_signals(tid) {
                Ok(Some((_, status))) => return Ok(Some(decode(status))),
                Ok(None) if matches!(threads::state(tid), None | Some('Z' | 'X')) => {
                    return Ok(None);
                }
                Ok(None) | Err(Errno::EINTR) => {}
                Err(Errno::ECHILD | Errno::ESRCH) => return Ok(None),
                Err(errno) => return Err(Error::ptrace("wait for", tid, errno)),
            }
            for borrower in self.borrowers.clone() {
                let event = match sys::wait_now(borrower) {
                    Ok(Some((_, status))) => decode(status),
                    Ok(None) | Err(_) => continue,
                };
                self.dumps_no_core(borrower);
                let stopped = |signal| Stopped::observed(borrower, signal);
                let handled = match event {
                    Event::Exited(_) | Event::Killed(_) => {
                        self.borrowers.remove(&borrower);
                        continue;
                    }
                    Event::Exec => {
                        self.borrowers.remove(&borrower);
                        stopped(0).detach()
                    }
                    Event::GroupStop(_) => stopped(0).listen(),
                    Event::Signal(signal) => stopped(signal).resume(),
                    Event::Spawned(_) => {
                        self.turns.join(sys::event_message(borrower));
                        self.clean_child_of(borrower)?;
                        stopped(0).resume()
                    }
                    _ => stopped(0).resume(),
                };
                unless_gone(handled)?;
            }
            child_signal::wait(LOOK_AGAIN);
        }
    }

    /// A thread seen for the first time: one of ours, or a child process. False when it was let go.
    pub(super) fn adopt(&mut self, tid: i32) -> Result<bool> {
        if threads::process_of(tid) == Some(self.pid) {
            self.threads.insert(tid, ThreadCalls::new(tid));
            return Ok(true);
        }
        let child = Stopped::observed(tid, 0);
        if self.is_borrower(&child) {
            self.borrowers.insert(tid);
            return Ok(true);
        }
        // A forked child has its own copy of our breakpoints and of the hidden return addresses.
        if let Ok(copy) = Memory::open(tid) {
            self.points.restore_copy(&copy);
            self.reveal_copy(&copy);
            // Where it was made in a signal handler, that may return to one.
            self.pass_syscalls(&copy);
        }
        if let Ok(mut registers) = child.registers() {
            // It comes out of the system call that made it, maybe in a copy of the instruction.
            if let Ok(Inside::Syscall { next, .. }) = self.inside(tid, &mut registers) {
                registers.set_rip(next);
            }
            unless_gone(child.set_registers(&registers))?;
        }
        unless_gone(child.detach())?;
        Ok(false)
    }

    /// Whether a child process that has not run yet shares the target's memory.
    fn is_borrower(&self, child: &Stopped) -> bool {
        let made = || {
            child.registers().is_ok_and(|registers| {
                let registers = registers.0;
                let number = registers.orig_rax.cast_signed();
                guests::are_made_by(&self.memory, number, registers.rdi)
            })
        };
        guests::share_memory(self.pid, child.tid()).unwrap_or_else(made)
    }

    /// A thread has ended. The notice when the process has ended with it.
    pub(super) fn note_end(&mut self, tid: i32, event: Event) -> Option<Notice> {
        let is_own = !self.borrowers.contains(&tid);
        self.forget_thread(tid);
        let end = match event {
            Event::Exited(status) => Some(Notice::Exited(status)),
            Event::Killed(signal) => Some(Notice::Killed(signal)),
            _ => None,
        };
        if tid == self.pid {
            self.end = end;
            return self.end;
        }
        // The last thread ends as the process does.
        if is_own {
            self.last_end = end;
        }
        None
    }

    /// Whether the process has ended without a report of that: it comes of its first thread, which is not traced when it had
    /// ended before the others were.
    pub(super) fn has_ended_unreported(&mut self) -> bool {
        if self.threads.is_empty() && proc::is_ending(self.pid) {
            let told = children::end_of_other(self.pid).map(|end| Notice::of_end(Some(end)));
            self.end = told.or(self.last_end).or(Some(Notice::of_end(None)));
        }
        self.end.is_some()
    }

    pub(super) fn forget_thread(&mut self, tid: i32) {
        if self.borrowers.remove(&tid) {
            // A process of its own, that has died of it with a core dump that is its own.
            self.dumps_no_core(tid);
        }
        self.stop_times.forget(tid);
        if let Some(departures) = &mut self.departures {
            departures.forget(tid);
        }
        if let Some(calls) = self.threads.remove(&tid) {
            // Another thread may go on with its stack.
            self.abandon(calls.frames());
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
        self.forget_abandoned();
        self.arena = None;
        self.continuations.forget();
        self.syscall_copies.clear();
        self.measured_syscalls.clear();
        for debt in self.arena_debts.drain(..) {
            self.ledger.strike(debt);
        }
        self.departures = None;
        self.memory = Memory::open(self.pid)?;
        self.threads.insert(tid, ThreadCalls::new(tid));
        unless_gone(Stopped::observed(tid, 0).resume())?;
        Ok(Some(Notice::Exec))
    }

    /// A signal is about to be delivered.
    fn signal(&mut self, thread: Stopped, noticed: Noticed, sink: &mut dyn Sink) -> Result<()> {
        let (trap, inside) = self.look_at(&thread, noticed)?;
        self.pass_on(thread, trap, inside, sink)
    }

    /// Passes a signal on as if nobody were watching: its handler never finds the thread in code of ours,
    /// measured system calls excepted.
    pub(super) fn pass_on(
        &mut self,
        mut thread: Stopped,
        mut trap: Trap,
        inside: Inside,
        sink: &mut dyn Sink,
    ) -> Result<()> {
        let faulted = self.is_our_fault(&thread, inside)?;
        let led_out = match inside {
            Inside::Elsewhere => false,
            Inside::Departing => true,
            Inside::Landing { .. } => self.returned(&mut trap),
            Inside::Syscall {
                offset: 0, next, ..
            } => {
                // Not made yet: the program's own instruction traps again.
                self.forget_syscall(trap.tid);
                trap.registers.set_rip(next.offset(-2));
                true
            }
            Inside::Syscall { next, .. } if faulted => {
                self.syscall_returned(&mut trap, next);
                true
            }
            Inside::Syscall { .. } => {
                // The kernel may restart the call, and so the thread stays in the copy.
                self.returns_to_arena = true;
                false
            }
        };
        if led_out {
            if thread.has_stepped() {
                thread.owe_step(trap.registers.rip())?;
            }
            thread.set_registers(&trap.registers)?;
            self.settle(&trap.paid);
            self.deliver(trap.completed.take(), sink);
            if faulted {
                thread.suppress_signal();
                return self.go_on_as_it_is(thread);
            }
        }
        // A signal that the process ignores never reaches an untraced process, so it must not end its system calls either.
        thread.hide_interruption()?;
        self.clean_for_core(&thread)?;
        self.go_on_as_it_is(thread)
    }

    /// Whether a fault was raised by our own code: a program may forbid itself to read the clock (prctl(2),
    /// PR_SET_TSC), and a stack may end where the landing pad needs it.
    fn is_our_fault(&mut self, thread: &Stopped, inside: Inside) -> Result<bool> {
        if !matches!(thread.pending(), libc::SIGSEGV | libc::SIGBUS) || !thread.is_own_fault() {
            return Ok(false);
        }
        let rip = thread.registers()?.rip();
        if let Some(departures) = &mut self.departures
            && departures.contain(rip)
        {
            departures.give_up();
            return Ok(true);
        }
        Ok(match inside {
            Inside::Landing { .. } => true,
            Inside::Syscall { offset, .. } => offset > 0,
            Inside::Elsewhere | Inside::Departing => false,
        })
    }

    /// Before a signal that dumps core: the dump is to show the program's own text and stack, and so nothing is armed
    /// until the process ends.
    pub(super) fn clean_for_core(&mut self, thread: &Stopped) -> Result<()> {
        let (tid, signal) = (thread.tid(), thread.pending());
        let dumps = threads::CORE_SIGNALS.contains(&signal)
            && SignalMasks::of(tid).is_some_and(|masks| masks.dumps_core(signal))
            && !threads::is_of_first_process(tid);
        if dumps {
            self.dumps_core.insert(tid);
            let rsp = thread.registers().map_or(0, |registers| registers.rsp());
            self.take_out_all(rsp)?;
        }
        Ok(())
    }

    /// Puts all text back, and what is hidden, before a thread with this stack pointer goes on. Ops in progress are given up.
    pub(super) fn take_out_all(&mut self, rsp: u64) -> Result<()> {
        // In this order: other threads run, and may throw.
        self.reveal_around(rsp);
        self.disarm_all()?;
        // Nothing tells when they end.
        for calls in self.threads.values_mut() {
            self.counters.ended_otherwise += u64::from(calls.give_up_op());
        }
        Ok(())
    }

    /// A thread has dumped its core, or has not. Its process lives where nobody else of it dumps one, and may have its probes again.
    fn dumps_no_core(&mut self, tid: i32) {
        self.probes_are_out |= self.dumps_core.remove(&tid) && self.dumps_core.is_empty();
    }

    /// Puts all text back that can be.
    pub(super) fn disarm_all(&mut self) -> Result<()> {
        self.disarm_where(|_| true)
    }

    /// Puts the text back that can be, where the breakpoint stands for something of this kind.
    pub(super) fn disarm_where(&mut self, is_meant: impl Fn(&Roles) -> bool) -> Result<()> {
        let mut outcome = Ok(());
        for addr in self.points.addresses_where(is_meant) {
            let disarmed = self.points.disarm(&self.memory, &mut self.ledger, addr);
            outcome = outcome.and(unless_gone(disarmed).map(drop));
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use darc_testprogs::{Opt, program};
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    use crate::addr::TargetAddr;
    use crate::engine::Engine as _;
    use crate::engine::calibration::of_child;
    use crate::engine::int3::Guarding;
    use crate::engine::int3::calibrate::{Calls, empty, plan_of};
    use crate::engine::int3::delivery::Attention;
    use crate::killed::{Nobody, Target, results};

    use crate::patience::{wait_for, wait_until};

    use super::*;

    /// A core dump takes its time, in which the analysis goes on: what it arms then would be in the dump.
    #[test]
    fn nothing_is_armed_while_a_core_dump_is_written() {
        /// No thread has this id.
        const GUEST: i32 = i32::MAX;
        child_signal::block().unwrap();
        let work = || {
            loop {
                empty();
            }
        };
        let entry = TargetAddr(empty as extern "C" fn() as usize as u64);
        of_child(work, |pid| {
            let mut engine = Int3::attach(pid, Guarding::Unguarded)?;
            let plan = plan_of(entry.0, &engine.memory)?;
            let mut bytes = [0];
            engine.memory.read(entry, &mut bytes)?;
            let armed = |engine: &Int3| {
                let mut byte = [0];
                engine
                    .memory
                    .read(entry, &mut byte)
                    .map(|()| byte[0] != bytes[0])
            };
            engine.apply(&plan)?;
            assert!(armed(&engine)?);
            // SIGQUIT is ignored where a shell runs the tests in the background.
            engine.clean_for_core(&Stopped::observed(pid, libc::SIGABRT))?;
            // A child in its memory does as well.
            engine.borrowers.insert(GUEST);
            engine.dumps_core.insert(GUEST);
            engine.apply(&plan)?;
            assert!(!armed(&engine)?);
            // A process that stops for something else did not end.
            kill(Pid::from_raw(pid), Signal::SIGURG).unwrap();
            let (wait, mut calls) = (Duration::from_millis(20), Calls::default());
            wait_until(|| {
                assert_eq!(engine.poll(wait, &mut calls).unwrap(), None);
                !engine.dumps_core.contains(&pid)
            });
            assert_eq!(engine.poll(Duration::ZERO, &mut calls)?, None);
            engine.apply(&plan)?;
            assert!(!armed(&engine)?, "the child's is not written yet");
            engine.forget_thread(GUEST);
            let notice = engine.poll(wait, &mut calls)?;
            assert_eq!(notice, Some(Notice::ProbesTakenOut));
            engine.apply(&plan)?;
            assert!(armed(&engine)?);
            Ok(())
        })
        .unwrap();
    }

    /// Its copy of the stack is to be clean before the frames that it has are gone.
    #[test]
    fn a_process_that_was_made_like_a_thread_is_let_go_at_once() {
        child_signal::block().unwrap();
        let target = Target::start("clones");
        let pid = target.pid();
        let mut engine = Int3::attach(pid, Guarding::Unguarded).unwrap();
        engine.apply(&target.code.plan(true)).unwrap();
        // One may have been made before there were breakpoints.
        engine.poll(Duration::from_millis(20), &mut Nobody).unwrap();
        for _ in 0..200 {
            let child = next_clone_of(pid, &mut engine);
            let tracer = threads::status_field(child, "TracerPid");
            assert!(tracer.is_none_or(|tracer| tracer == "0"));
        }
        engine.finish().unwrap();
        assert_eq!(target.end("clones"), (0, results("clones")));
    }

    /// Handles the stops of this thread alone, until it has made a child by clone(2).
    fn next_clone_of(pid: i32, engine: &mut Int3) -> i32 {
        wait_for(|| {
            let (_, status) = sys::look_now(pid).ok()??;
            let event = decode(status);
            let child = sys::event_message(pid).unwrap();
            let noticed = Noticed {
                at: sys::tsc(),
                attention: Attention::Awake,
            };
            engine.stop(pid, event, noticed, &mut Nobody).unwrap();
            (event == Event::Spawned(Spawn::Clone)).then_some(child)
        })
    }

    /// What belongs to a process is not to be seen of its first thread when that has ended.
    #[test]
    fn a_guest_of_a_process_without_its_first_thread_is_known() {
        child_signal::block().unwrap();
        let mut target = Command::new(program("vfork_without_leader", Opt::O2));
        let piped = target.arg("1000000").stdout(Stdio::null());
        let mut target = piped.spawn().unwrap();
        let pid = target.id() as i32;
        wait_until(|| threads::is_dead(pid));
        let mut engine = Int3::attach(pid, Guarding::Unguarded).unwrap();
        let at_first = engine.borrowers.clone();
        let mut calls = Calls::default();
        let guest = wait_for(|| {
            let wait = Duration::from_millis(20);
            engine.poll(wait, &mut calls).unwrap();
            let makers = threads::list(pid).unwrap().into_iter();
            let mut made = makers.filter_map(threads::children).flatten();
            // It sleeps: its first stop has been handled.
            let new =
                |child: &i32| !at_first.contains(child) && threads::state(*child) == Some('S');
            made.find(new)
        });
        assert!(engine.borrowers.contains(&guest));
        engine.finish().unwrap();
        target.kill().unwrap();
        target.wait().unwrap();
    }

    /// A thread of which a stop could not be handled would not report a second time.
    #[test]
    fn a_thread_that_was_left_stopped_is_let_go() {
        child_signal::block().unwrap();
        let work = || {
            loop {
                empty();
            }
        };
        of_child(work, |pid| {
            let mut engine = Int3::attach(pid, Guarding::Unguarded)?;
            assert!(threads::interrupt(pid)?);
            let event = threads::wait_stopped(pid)?.unwrap();
            engine.left_stopped.insert(pid, event);
            engine.finish()?;
            assert_eq!(
                threads::status_field(pid, "TracerPid").as_deref(),
                Some("0")
            );
            assert_ne!(threads::state(pid), Some('t'));
            Ok(())
        })
        .unwrap();
    }
}
