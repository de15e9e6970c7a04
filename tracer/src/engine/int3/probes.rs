//! What happens at our own breakpoints: f0's entry, call sites, landing pads, hooks.

use darc_disasm::{Registers as _, SiteKind, Target};

use crate::addr::TargetAddr;
use crate::engine::{Counted, Sink};
use crate::error::Result;
use crate::event::Event;
use crate::stopped::{Registers, Stopped};
use crate::sys;
use darc_record::{Arguments, FnodeId, Tsc};

use super::Int3;
use super::calls::{Completed, Frame, FrameKind};
use super::continuations::Continuation;
use super::delivery::Noticed;
use super::inside::Inside;
use super::landing::SYSCALL_TRAP;
use super::points::{Point, Site};

/// What the ABI lets a function keep below its stack pointer (System V ABI for AMD64, 3.2.2).
const RED_ZONE: u64 = 128;

/// A stop being handled.
pub(super) struct Trap {
    pub tid: i32,
    /// When the thread trapped.
    pub at: Tsc,
    pub registers: Registers,
    /// Whether the thread is one of the target's.
    measured: bool,
    /// Whether a call was being measured.
    timed: bool,
    /// Debts for slots that the thread has returned by: paid when its registers lead it on.
    pub(super) paid: Vec<u32>,
    /// The op that ended.
    pub(super) completed: Option<Completed>,
    /// Whether the thread has been led behind an instruction as if it had executed that.
    emulated: bool,
}

impl Trap {
    /// The instruction counts as executed, and `to` comes next.
    fn led_to(&mut self, to: TargetAddr) {
        self.registers.set_rip(to);
        self.emulated = true;
    }
}

impl Int3 {
    /// Handles a SIGTRAP: ours, or the program's own.
    pub(super) fn trap(
        &mut self,
        mut thread: Stopped,
        noticed: Noticed,
        sink: &mut dyn Sink,
    ) -> Result<()> {
        let (mut trap, inside) = self.look_at(&thread, noticed)?;
        let addr = trap.registers.rip().offset(-1);
        let stepped = trap.registers.are_stepping() && thread.has_stepped();
        match inside {
            Inside::Landing { progress, .. } if progress.trapped => {
                sys::take_stop(trap.tid);
                if !self.returned(&mut trap) {
                    // Nobody's return: the program jumped to our landing pad by itself.
                    return self.go_on_as_it_is(thread);
                }
            }
            // A step behind the call is one of ours. The program's own comes behind what follows there.
            Inside::Syscall { offset, next, .. } if offset > SYSCALL_TRAP || stepped => {
                sys::take_stop(trap.tid);
                self.syscall_returned(&mut trap, next);
            }
            Inside::Elsewhere
                if !stepped && self.points.was_armed(addr) && !self.is_programs_own(addr) =>
            {
                return self.met(addr, thread, trap, sink);
            }
            _ => return self.pass_on(thread, trap, inside, sink),
        }
        thread.suppress_signal();
        let completed = trap.completed.take();
        let gone_on = self.go_on(thread, trap);
        self.deliver(completed, sink);
        gone_on
    }

    /// Whether a breakpoint is the program's own: where one of ours was, and other code is by now.
    fn is_programs_own(&self, addr: TargetAddr) -> bool {
        const INT3: u8 = 0xcc;
        let mut byte = [0];
        self.points.get(addr).is_none()
            && self.memory.read(addr, &mut byte).is_ok()
            && byte[0] == INT3
    }

    /// A thread ran into one of our breakpoints, which may have been taken out since. First of all it is led back: should we be
    /// killed, it meets the program's own instruction, and not the rest of it. Only then is the stop taken, and with it
    /// the signal, of which the thread would die.
    fn met(
        &mut self,
        addr: TargetAddr,
        mut thread: Stopped,
        mut trap: Trap,
        sink: &mut dyn Sink,
    ) -> Result<()> {
        trap.registers.set_rip(addr);
        thread.set_registers(&trap.registers)?;
        sys::take_stop(trap.tid);
        let (tid, point) = (trap.tid, self.points.get(addr).cloned());
        let handled = point.map_or(Ok(()), |point| self.point(addr, &point, &mut trap, sink));
        let gone_on = handled.and_then(|()| {
            match trap.emulated && trap.registers.are_stepping() {
                // As the processor does behind the instruction.
                true => thread.owe_step(trap.registers.rip())?,
                false => thread.suppress_signal(),
            }
            self.go_on(thread, trap)
        });
        if gone_on.as_ref().is_err_and(|error| !error.is_gone()) {
            self.left_stopped.insert(tid, Event::Stopped);
        }
        gone_on
    }

    /// A thread that has stopped: its registers without our code's doing, and when it stopped. Its clock
    /// stands still from then on.
    pub(super) fn look_at(&mut self, thread: &Stopped, noticed: Noticed) -> Result<(Trap, Inside)> {
        let tid = thread.tid();
        let mut registers = thread.registers()?;
        let inside = self.inside(tid, &mut registers)?;
        let paused = self.pause(tid, noticed, inside.stamp());
        let trap = Trap {
            tid,
            at: paused.or(inside.stamp()).unwrap_or(noticed.at),
            registers,
            measured: self.threads.contains_key(&tid),
            timed: paused.is_some(),
            paid: Vec::new(),
            completed: None,
            emulated: false,
        };
        Ok((trap, inside))
    }

    /// Has the clock of a stopped thread stand still, from when it stopped; `None` when nothing is measured
    /// on it.
    pub(super) fn pause(&mut self, tid: i32, noticed: Noticed, stamp: Option<Tsc>) -> Option<Tsc> {
        let departed = self
            .departures
            .as_mut()
            .and_then(|departures| departures.departed(&self.memory, tid));
        let calls = self.threads.get_mut(&tid)?;
        if departed.is_none() && calls.frames().is_empty() {
            return None;
        }
        let latest = stamp.unwrap_or(noticed.at);
        let departed = self
            .stop_times
            .stopped(tid, departed)
            .map(|departed| departed.min(latest));
        if let Some(departed) = departed {
            calls.resumed(departed);
        }
        let at = self.stop_times.trapped(tid, noticed, departed, stamp);
        calls.paused(at);
        Some(at)
    }

    /// Lets a thread go on with these registers, so that it will be known when it did. One that steps through itself goes on where
    /// they point to: it would hear of each instruction of its lane.
    pub(super) fn go_on(&mut self, thread: Stopped, mut trap: Trap) -> Result<()> {
        if self.is_measuring(trap.tid)
            && let Some(departures) = &mut self.departures
        {
            if !trap.timed {
                self.stop_times.stopped(trap.tid, None);
            }
            match trap.registers.are_stepping() {
                true => departures.past(trap.tid),
                false => departures.through(&self.memory, trap.tid, &mut trap.registers)?,
            }
        }
        thread.set_registers(&trap.registers)?;
        self.settle(&trap.paid);
        self.clean_for_core(&thread)?;
        if self.libraries_changed {
            // Whatever the libraries bring is looked at before any of it runs.
            self.parked = Some(thread);
            return Ok(());
        }
        thread.resume()
    }

    /// Lets a thread go on where it is; when it does is known from us alone.
    pub(super) fn go_on_as_it_is(&mut self, thread: Stopped) -> Result<()> {
        if self.is_measuring(thread.tid())
            && let Some(departures) = &mut self.departures
        {
            departures.past(thread.tid());
        }
        thread.resume()
    }

    fn is_measuring(&self, tid: i32) -> bool {
        let calls = self.threads.get(&tid);
        calls.is_some_and(|calls| !calls.frames().is_empty())
    }

    fn point(
        &mut self,
        addr: TargetAddr,
        point: &Point,
        trap: &mut Trap,
        sink: &mut dyn Sink,
    ) -> Result<()> {
        if trap.measured {
            // What an exception has left ends where it is caught, and is seen there.
            if !point.roles.catcher {
                self.drop_dead(trap.tid, trap.registers.rsp());
            }
            if point.roles.unwinder {
                self.reveal(trap.tid, trap.registers.rsp());
            }
            if point.roles.catcher {
                self.caught(trap);
            }
            if point.roles.f0 {
                self.entered(trap)?;
            }
        }
        self.libraries_changed |= point.roles.loader;
        if let Some(site) = &point.roles.site {
            return self.site(addr, site, trap, sink);
        }
        // The program may have written the instruction anew, but for its first byte.
        match self.continuation(addr) {
            Ok(Continuation::Skip(to)) => {
                trap.led_to(to);
                Ok(())
            }
            Ok(Continuation::Copy { at, .. }) => {
                trap.registers.set_rip(at);
                Ok(())
            }
            Ok(Continuation::Call { to, next }) => {
                let slot = trap.registers.rsp().wrapping_sub(8);
                if self.memory.write_word(TargetAddr(slot), next.0).is_err() {
                    return self.execute_natively(addr, trap);
                }
                trap.registers.0.rsp = slot;
                trap.led_to(to);
                Ok(())
            }
            Err(_) => self.execute_natively(addr, trap),
        }
    }

    /// Gives up a breakpoint whose instruction cannot be emulated now, so that the program meets its
    /// own instruction (and, if it must, its own fault). Without one at an unwinder nothing may be hidden: all are given up, until the plan is
    /// applied anew.
    pub(super) fn execute_natively(&mut self, addr: TargetAddr, trap: &mut Trap) -> Result<()> {
        let point = self.points.get(addr);
        if point.is_some_and(|point| point.roles.unwinder) {
            self.take_out_all(trap.registers.rsp())?;
            self.probes_are_out = true;
        } else {
            self.points.disarm(&self.memory, &mut self.ledger, addr)?;
        }
        trap.registers.set_rip(addr);
        Ok(())
    }

    fn drop_dead(&mut self, tid: i32, rsp: u64) {
        let (Some(calls), stacks) = (self.threads.get_mut(&tid), &mut self.stacks) else {
            return;
        };
        if calls.frames().last().is_none_or(|top| top.slot >= rsp) {
            return;
        }
        let stacks = std::cell::RefCell::new(stacks);
        let dead = calls.drop_dead(rsp, |slot| stacks.borrow_mut().same(self.pid, rsp, slot));
        self.abandon(&dead);
    }

    fn caught(&mut self, trap: &Trap) {
        // The handler's own call of this hook has its return address in the slot of the call that it caught
        // the exception from: that frame is gone too.
        let rsp = trap.registers.rsp().wrapping_add(8);
        let (Some(calls), stacks) = (self.threads.get_mut(&trap.tid), &mut self.stacks) else {
            return;
        };
        let stacks = std::cell::RefCell::new(stacks);
        let same = |slot| stacks.borrow_mut().same(self.pid, rsp, slot);
        let left = calls.unwound(rsp, trap.at, self.cost.inside, same);
        self.abandon(&left);
        self.hide_again(trap.tid, rsp);
    }

    /// f0 was entered; the return address is on top of the stack.
    fn entered(&mut self, trap: &Trap) -> Result<()> {
        let slot = trap.registers.rsp();
        let return_to = self.memory.read_word(TargetAddr(slot))?;
        if return_to == self.landing.0 {
            // Through an instrumented site or a tail call: the frame is there already.
            return Ok(());
        }
        self.give_up_lost_op(trap.tid);
        let calls = &self.threads[&trap.tid];
        let kind = match (calls.in_op(), calls.current()) {
            (false, _) => FrameKind::F0,
            (true, Some(fnode)) if self.edges.is_expanded(fnode) => FrameKind::Ignored,
            (true, _) => return Ok(()),
        };
        // A frame left by longjmp may have used this very slot.
        let stale = self
            .threads
            .get_mut(&trap.tid)
            .map(|calls| calls.take(slot))
            .unwrap_or_default();
        self.abandon(&stale);
        let debt = self.hide(slot, return_to)?;
        self.await_return(trap.tid, kind, slot, return_to, debt);
        if kind == FrameKind::F0
            && let Some(calls) = self.threads.get_mut(&trap.tid)
        {
            calls.set_arguments(Arguments {
                read: self.chain.as_ref().and_then(|chain| {
                    chain.read(&trap.registers.arguments(), |addr| {
                        self.memory.read_word(TargetAddr(addr)).ok()
                    })
                }),
                ..trap.registers.arguments()
            });
        }
        Ok(())
    }

    /// An op whose hidden return address is no longer in its place was left by longjmp, an exception, or
    /// lost to a stack walker: it will never be seen to return.
    fn give_up_lost_op(&mut self, tid: i32) {
        let frames = self.threads[&tid].frames();
        let Some(f0) = frames.iter().find(|frame| frame.kind == FrameKind::F0) else {
            return;
        };
        let slot = f0.slot;
        let stands = f0.hidden
            && self
                .memory
                .read_word(TargetAddr(slot))
                .is_ok_and(|word| word == self.landing.0);
        if !stands {
            let lost = self
                .threads
                .get_mut(&tid)
                .map(|calls| calls.take(slot))
                .unwrap_or_default();
            self.abandon(&lost);
        }
    }

    fn await_return(
        &mut self,
        tid: i32,
        kind: FrameKind,
        slot: u64,
        return_to: u64,
        debt: Option<u32>,
    ) {
        let generation = self.generation;
        let calls = self
            .threads
            .get_mut(&tid)
            .expect("only threads of the target are measured");
        calls.enter(kind, slot, return_to, generation);
        if let Some(frame) = calls.frames_mut().last_mut() {
            frame.hidden = !matches!(kind, FrameKind::Syscall(_));
            frame.ledger = debt;
        }
    }

    fn site(
        &mut self,
        addr: TargetAddr,
        site: &Site,
        trap: &mut Trap,
        sink: &mut dyn Sink,
    ) -> Result<()> {
        let next = TargetAddr(site.call.next());
        match &site.call.kind {
            SiteKind::Call(target) => match self.resolve(target, &trap.registers) {
                Some(to) => self.call(addr, site, target, to, next, trap, sink),
                None => self.execute_natively(addr, trap),
            },
            SiteKind::TailJump {
                condition: Some(condition),
                ..
            } if !condition.holds(trap.registers.rflags()) => {
                trap.led_to(next);
                Ok(())
            }
            SiteKind::TailJump { target, .. } => match self.resolve(target, &trap.registers) {
                Some(to) => {
                    let inside = site
                        .function
                        .iter()
                        .any(|&(start, end)| (start..end).contains(&to.0));
                    if !inside {
                        self.tail_call(site, target, to, trap, sink)?;
                    }
                    trap.led_to(to);
                    Ok(())
                }
                None => self.execute_natively(addr, trap),
            },
            SiteKind::Syscall { number } => self.system_call(addr, site, *number, trap, sink),
        }
    }

    fn resolve(&self, target: &Target, registers: &Registers) -> Option<TargetAddr> {
        match target {
            Target::Direct(to) => Some(TargetAddr(*to)),
            Target::Indirect(operand) => operand.resolve(registers, &self.memory).map(TargetAddr),
        }
    }

    /// The fnode that a call through this site is now, if it is to be measured.
    fn child(
        &mut self,
        site: &Site,
        target: &Target,
        to: TargetAddr,
        trap: &Trap,
        sink: &mut dyn Sink,
    ) -> Option<FnodeId> {
        let parent = self.threads.get(&trap.tid)?.current()?;
        match target {
            Target::Direct(_) => self.edges.child(parent, site.id),
            Target::Indirect(_) => self.edges.child_of_target(parent, site.id, to, sink),
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn call(
        &mut self,
        addr: TargetAddr,
        site: &Site,
        target: &Target,
        to: TargetAddr,
        next: TargetAddr,
        trap: &mut Trap,
        sink: &mut dyn Sink,
    ) -> Result<()> {
        let slot = trap.registers.rsp().wrapping_sub(8);
        let child = self.child(site, target, to, trap, sink);
        // A failing push is the program's own fault (stack overflow): let it have it.
        let pushed = match child {
            Some(_) => self.hide(slot, next.0),
            None => self
                .memory
                .write_word(TargetAddr(slot), next.0)
                .map(|()| None),
        };
        let debt = match pushed {
            Ok(debt) => debt,
            Err(_) => return self.execute_natively(addr, trap),
        };
        if let Some(child) = child {
            self.await_return(trap.tid, FrameKind::Call(child), slot, next.0, debt);
        }
        trap.registers.0.rsp = slot;
        trap.led_to(to);
        Ok(())
    }

    fn tail_call(
        &mut self,
        site: &Site,
        target: &Target,
        to: TargetAddr,
        trap: &Trap,
        sink: &mut dyn Sink,
    ) -> Result<()> {
        let slot = trap.registers.rsp();
        let Some(child) = self.child(site, target, to, trap, sink) else {
            return Ok(());
        };
        let hidden = self.threads[&trap.tid]
            .frames()
            .last()
            .filter(|top| top.slot == slot && top.hidden);
        match hidden.map(|top| top.return_to) {
            Some(return_to) => {
                self.await_return(trap.tid, FrameKind::TailCall(child), slot, return_to, None)
            }
            None => {
                let return_to = self.memory.read_word(TargetAddr(slot))?;
                if return_to != self.landing.0 {
                    let debt = self.hide(slot, return_to)?;
                    self.await_return(trap.tid, FrameKind::TailCall(child), slot, return_to, debt);
                }
            }
        }
        Ok(())
    }

    fn system_call(
        &mut self,
        addr: TargetAddr,
        site: &Site,
        number: Option<u32>,
        trap: &mut Trap,
        sink: &mut dyn Sink,
    ) -> Result<()> {
        let Some(copies) = site.syscall else {
            return self.execute_natively(addr, trap);
        };
        let parent = self
            .threads
            .get(&trap.tid)
            .and_then(|calls| calls.current());
        let child = parent.and_then(|parent| match number {
            Some(_) => self.edges.child(parent, site.id),
            None => {
                self.edges
                    .child_of_target(parent, site.id, TargetAddr(trap.registers.0.rax), sink)
            }
        });
        match child {
            Some(child) => {
                let below = trap.registers.rsp().wrapping_sub(RED_ZONE);
                self.await_return(
                    trap.tid,
                    FrameKind::Syscall(child),
                    below,
                    site.call.next(),
                    None,
                );
                trap.registers.set_rip(copies.measured);
            }
            // From the other copy it would hear of an instruction more.
            None if trap.registers.are_stepping() => trap.registers.set_rip(copies.measured),
            None => trap.registers.set_rip(copies.plain),
        }
        Ok(())
    }

    /// A system call ended. A thread or process that it made comes this way too, with no frame.
    pub(super) fn syscall_returned(&mut self, trap: &mut Trap, next: TargetAddr) {
        let slot = trap.registers.rsp().wrapping_sub(RED_ZONE);
        if let Some(calls) = self.threads.get_mut(&trap.tid) {
            let awaited = calls
                .frames()
                .iter()
                .any(|frame| frame.slot == slot && matches!(frame.kind, FrameKind::Syscall(_)));
            if awaited && let Some((ended, _)) = calls.leave(slot, trap.at, self.cost.inside) {
                self.abandon(&ended[1..]);
            }
        }
        trap.registers.set_rip(next);
    }

    /// A thread came to the landing pad; false when that is no doing of ours.
    pub(super) fn returned(&mut self, trap: &mut Trap) -> bool {
        let slot = trap.registers.rsp().wrapping_sub(8);
        let left = self
            .threads
            .get_mut(&trap.tid)
            .and_then(|calls| calls.leave(slot, trap.at, self.cost.inside));
        if let Some((ended, op)) = left {
            let (here, inner): (Vec<Frame>, Vec<Frame>) =
                ended.into_iter().partition(|frame| frame.slot == slot);
            self.abandon(&inner);
            trap.paid
                .extend(here.iter().filter_map(|frame| frame.ledger));
            trap.completed = op;
            trap.registers.set_rip(TargetAddr(here[0].return_to));
            return true;
        }
        if let Some((return_to, debt)) = self.return_of_another(slot, trap.measured) {
            trap.paid.extend(debt);
            trap.registers.set_rip(TargetAddr(return_to));
            return true;
        }
        false
    }

    /// Strikes out what was owed for slots that a thread has returned by, now that its registers lead it on. Before that it would come
    /// back to the landing pad for ever, should we be killed.
    pub(super) fn settle(&mut self, paid: &[u32]) {
        paid.iter().for_each(|&index| self.ledger.strike(index));
    }

    pub(super) fn deliver(&mut self, completed: Option<Completed>, sink: &mut dyn Sink) {
        let Some(completed) = completed else {
            return;
        };
        self.counters.records += 1;
        let threads = self.chosen.as_ref();
        if threads.is_some_and(|threads| !threads.has(completed.op.tid)) {
            return;
        }
        match completed.generation == self.generation {
            true => sink.op(completed.op),
            // Probes came or went while it ran: what its fnodes say is incomplete.
            false => sink.latency_only(Counted::of(&completed.op)),
        }
    }
}
