//! Letting go of the target, and clearing what a killed tracer left in one.

use std::time::{Duration, Instant};

use crate::addr::TargetAddr;
use crate::error::{Error, Result, unless_gone};
use crate::maps::{self, Mapping};
use crate::memory::Memory;
use crate::remote_call::RemoteCaller;
use crate::stopped::Stopped;
use crate::sys;

use super::leftovers::{self, Leftover};
use super::patches::Patches;
use super::removal::{self, SyscallEnds};
use super::shared;
use super::space::Space;
use super::world::World;
use super::{Jump, world};

/// How often it is tried to give the mappings back while a thread is still on its way out.
const ATTEMPTS: u32 = 8;
/// The time before the second attempt; before each other one it is twice as long: half a second in all, as a disk may take.
const BETWEEN: Duration = Duration::from_millis(4);
/// ... up to this.
const LONGEST: Duration = Duration::from_millis(512);
/// For so long it is tried whatever the number of attempts where a thread does not stop.
const BUSY: Duration = Duration::from_secs(10);

/// What was found of an earlier tracer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cleared {
    /// Nothing.
    Nothing,
    /// Its patches and mappings; all are gone.
    Everything,
    /// Its patches are gone; its mappings stay, because a thread may still return to them.
    Patches,
}

impl Jump {
    /// Restores text and stacks, gives the mappings back, and lets go.
    pub(super) fn let_go(&mut self) -> Result<()> {
        let mut outcome = Ok(());
        if let Some(mut space) = self.space.take() {
            outcome = self.remove(&mut space);
            space.rings.add_to(&mut self.counters);
            // What may stay mapped is nobody's from now on.
            space.rings.end_presence();
            if !self.watch.is_alive() || !space.installed.is_there(&self.memory) {
                // Nothing is left that could be restored, or everything was.
                outcome = Ok(());
            }
            if outcome.is_err() {
                self.counters.bytes_differing += space.patches.bytes();
            }
            (self.past, self.ends) = (Some(space.rings), space.ends);
        }
        if let Some(thread) = self.parked.take() {
            unless_gone(thread.detach())?;
        }
        match outcome {
            Err(error) if error.is_gone() => Ok(()),
            outcome => outcome,
        }
    }

    /// Restores text and stacks, and gives the mappings back as far as no thread can come to them any more.
    pub(super) fn remove(&mut self, space: &mut Space) -> Result<()> {
        let pid = self.pid;
        let is_all_gone = patiently(|| match self.try_to_remove(space) {
            // Its text is restored; it may keep some memory.
            Err(Error::Busy(_)) if space.patches.is_empty() => Ok(false),
            outcome => outcome,
        })?;
        if is_all_gone {
            tracing::debug!(target: "tracer", pid, "restored the code and gave all memory back");
            return Ok(());
        }
        // Nothing in the program's text leads there any more.
        tracing::debug!(
            target: "tracer",
            pid,
            "restored the code; some memory stays mapped, for a call in it has not returned"
        );
        Ok(())
    }

    /// Restores text and stacks, and gives the mappings back if no thread can come to them any more.
    ///
    /// A thread that has been seen elsewhere does not come to them again, since nothing leads there, and neither does one that it
    /// makes later: so the mappings go when all threads run again, but for the one that gives them back.
    fn try_to_remove(&mut self, space: &mut Space) -> Result<bool> {
        let (memory, pid) = (self.memory.again()?, self.pid);
        let mappings = maps::read(pid)?;
        let Space {
            installed,
            patches,
            ends,
            ..
        } = space;
        let is_visited = self.while_stopped(|world| {
            let of_early = installed.are_visited(&memory, world.threads(), ends, &mappings);
            world.hold()?;
            if !installed.is_there(&memory) {
                // Another program runs by now.
                return Err(Error::ThreadGone { tid: pid });
            }
            installed.set_generation(&memory, 0)?;
            patches.restore_all(&memory)?;
            for thread in world.late_threads() {
                unless_gone(lead_out(thread, ends))?;
            }
            let is_kept = installed.reveal(&memory, &mappings);
            let visited = |mappings: &[Mapping]| {
                installed.are_visited(&memory, world.late_threads(), ends, mappings)
                    || installed.is_slept_in(&memory, world, mappings)
            };
            // What takes least time first: all stand still. Threads that were made since have stacks that are not in the list.
            let is_visited = (of_early || is_kept)
                || installed.may_be_suspended(pid, &memory, world.threads(), &mappings)
                || (visited(&mappings) && visited(&maps::read(pid)?));
            world.free()?;
            for thread in world.threads() {
                unless_gone(lead_out(thread, ends))?;
            }
            Ok(is_visited)
        })?;
        if is_visited || (!installed.code.is_empty() && removal::has_guests(pid)) {
            return Ok(false);
        }
        let caller = installed.caller;
        self.with_worker(caller, &mappings, |world| {
            if !installed.is_there(&memory) {
                return Err(Error::ThreadGone { tid: pid });
            }
            installed.unmap(world, &mappings)
        })
    }
}

/// Leads a thread that waits in a copied system call to the original.
fn lead_out(thread: &Stopped, ends: &SyscallEnds) -> Result<()> {
    let mut registers = thread.registers()?;
    if let Some(original) = ends.original(registers.rip().0) {
        registers.set_rip(TargetAddr(original));
        thread.set_registers(&registers)?;
    }
    Ok(())
}

/// Removes what a killed tracer left in a process. Of several each goes on its own.
///
/// # Errors
/// When the process is gone or may not be traced, another tracer is at work in it, or something stays in its code.
pub fn clear_leftovers(pid: i32) -> Result<Cleared> {
    let memory = Memory::open(pid)?;
    leftovers::await_last_call(pid);
    let found = leftovers::find(pid, &memory);
    if is_anothers(&found, &memory) {
        return Err(taken(pid));
    }
    if found.is_empty() && leftovers::descriptors(pid).is_empty() {
        return Ok(Cleared::Nothing);
    }
    let all_gone = patiently(|| {
        // What takes long to find is found before the stop.
        let mappings = maps::read(pid)?;
        let caller = RemoteCaller::find(pid, &memory, &mappings)?;
        // Another tracer may measure it by now, and must not find it stopped again and again.
        if is_anothers(&leftovers::among(caller, &memory, &mappings), &memory) {
            return Err(taken(pid));
        }
        let descriptors = leftovers::descriptors(pid);
        let work = |world: &mut World| clear(pid, &memory, world, (caller, &descriptors));
        let (all_gone, _) = world::stopped_in_turn(pid, work)?;
        // There is one more where a killed tracer's call came to its end meanwhile.
        Ok(all_gone && leftovers::descriptors(pid).is_empty())
    })?;
    Ok(match all_gone {
        true => Cleared::Everything,
        false => Cleared::Patches,
    })
}

/// Tries it until it is done (`true`) or cannot be. A target that did not stop this time may do so the next time, and runs for as
/// long as it stood still in between.
fn patiently(mut attempt: impl FnMut() -> Result<bool>) -> Result<bool> {
    let since = Instant::now();
    let (mut pause, mut attempts) = (BETWEEN, 0);
    loop {
        let began = Instant::now();
        let outcome = attempt();
        attempts += 1;
        match &outcome {
            Ok(true) => return outcome,
            Err(Error::Busy(_)) if since.elapsed() < BUSY => {}
            Err(error) if error.is_gone() => return outcome,
            Ok(false) | Err(_) if attempts < ATTEMPTS => {}
            Ok(false) | Err(_) => return outcome,
        }
        std::thread::sleep(pause.max(began.elapsed()));
        pause = (2 * pause).min(LONGEST);
    }
}

/// Whether some of it is another tracer's that lives.
pub(super) fn is_anothers(found: &[Leftover], memory: &Memory) -> bool {
    let is_anothers = |found: &Leftover| found.installed.belongs_to_another(memory);
    found.iter().any(is_anothers)
}

/// Stops the threads that run, too, and removes what is there then: a thread in the middle of a killed tracer's system call may
/// have mapped or unmapped something until then. Returns whether all is gone. Where code cannot be restored, what it leads to stays,
/// and nothing else does. `caller` and `descriptors` are those of a moment before.
///
/// Asks once more whose it is: another tracer may have begun since that was asked, and stands still with the target now.
fn clear(
    pid: i32,
    memory: &Memory,
    world: &mut World,
    (caller, descriptors): (RemoteCaller, &[(i32, u64)]),
) -> Result<bool> {
    let early = seen_early(pid, memory, world, caller)?;
    world.hold()?;
    let mappings = maps::read(pid)?;
    let found = leftovers::among(caller, memory, &mappings);
    if is_anothers(&found, memory) {
        return Err(taken(pid));
    }
    // A descriptor that stays open leads to no code.
    let closed = close_descriptors(world, (caller, &mappings), descriptors);
    let mut outcome = closed.map(|()| true);
    for leftover in found {
        let of_early = early.iter().find(|(seen, _)| seen.has_same_code(&leftover));
        let of_early = of_early.map(|&(_, is_visited)| is_visited);
        let removed = remove_leftover(pid, memory, world, (leftover, of_early), &mappings);
        outcome = match (outcome, removed) {
            (Ok(others), Ok(gone)) => Ok(others && gone),
            // Nobody is there any more.
            (_, Err(error)) if error.is_gone() => return Err(error),
            (Err(error), _) | (_, Err(error)) => Err(error),
        };
    }
    outcome
}

/// What there is while threads run, each with whether one of those that sleep may return to it.
fn seen_early(
    pid: i32,
    memory: &Memory,
    world: &World,
    caller: RemoteCaller,
) -> Result<Vec<(Leftover, bool)>> {
    let (mappings, ends) = (maps::read(pid)?, SyscallEnds::default());
    let seen = leftovers::among(caller, memory, &mappings).into_iter();
    let with_visits = seen.map(|leftover| {
        let installed = &leftover.installed;
        let is_visited = installed.are_visited(memory, world.threads(), &ends, &mappings);
        (leftover, is_visited)
    });
    Ok(with_visits.collect())
}

/// Removes one of them. Returns whether it is gone. `of_early` is whether a thread that slept may return to it, if that is known.
fn remove_leftover(
    pid: i32,
    memory: &Memory,
    world: &mut World,
    (mut leftover, of_early): (Leftover, Option<bool>),
    mappings: &[Mapping],
) -> Result<bool> {
    let installed = &mut leftover.installed;
    let mut is_kept = false;
    if leftover.is_complete {
        let mut patches = Patches::from_journal(memory, installed.around.control);
        installed.set_generation(memory, 0)?;
        if let Err(error) = patches.restore_all(memory) {
            return Err(staying(pid, patches.addresses().count(), error));
        }
        is_kept = installed.reveal(memory, mappings);
    }
    let ends = SyscallEnds::default();
    let is_visited = is_kept
        || of_early == Some(true)
        || installed.may_be_suspended(pid, memory, world.threads(), mappings)
        || match of_early {
            Some(_) => installed.are_visited(memory, world.late_threads(), &ends, mappings),
            None => installed.are_visited(memory, world.threads(), &ends, mappings),
        }
        || installed.is_slept_in(memory, world, mappings)
        || removal::has_guests(pid);
    Ok(!is_visited && installed.unmap(world, mappings)?)
}

/// What to say of patches that could not be taken out of the code.
fn staying(pid: i32, count: usize, error: Error) -> Error {
    match error.is_gone() {
        true => error,
        false => Error::Unsuitable(format!(
            "process {pid}: {count} of the places where an earlier darc changed its code could not be restored, and stay with the memory that they lead to: {error}"
        )),
    }
}

/// Closes the target's descriptors of shared memory, each by a thread that has it. The program may have others under their numbers
/// by now.
fn close_descriptors(
    world: &mut World,
    (caller, mappings): (RemoteCaller, &[Mapping]),
    descriptors: &[(i32, u64)],
) -> Result<()> {
    for &(tid, fd) in descriptors {
        if !shared::is_ours(tid, fd) {
            continue;
        }
        let has_it = |thread: &&mut Stopped| {
            thread.tid() == tid || sys::shares_descriptors(thread.tid(), tid) == Some(true)
        };
        let workers = world.workers()?.filter(has_it);
        caller.borrow(workers, mappings, |worker| {
            worker.call("close", libc::SYS_close, [fd, 0, 0, 0, 0, 0])
        })?;
    }
    Ok(())
}

/// Why a process cannot be measured that another tracer measures.
pub(super) fn taken(pid: i32) -> Error {
    Error::Unsuitable(format!(
        "process {pid}: another darc measures it, perhaps from another container; wait until that has ended, or end it"
    ))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use crate::child_signal;
    use crate::engine::Engine as _;
    use crate::remote_call::tests::call_in;

    use super::super::moves::Moves;
    use super::super::patches::Patch;
    use super::*;

    /// Another tracer may begin between the question whose the probes are and the stop in which they are removed.
    #[test]
    fn what_belongs_to_another_tracer_is_left_inside_of_the_stop() {
        let mut target = leftovers::tests::start();
        let pid = target.id() as i32;
        let (begun, begin) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).unwrap();
        let tracer = sys::fork_into(|| {
            child_signal::block().unwrap();
            let code = maps::read(pid).unwrap().into_iter().find(|m| m.executable);
            let mut engine = Jump::attach(pid).unwrap();
            engine.install(&[code.unwrap().start]).unwrap();
            let _ = nix::unistd::write(&begin, &[1]);
            loop {
                std::thread::park();
            }
        });
        drop(begin);
        assert_eq!(std::fs::File::from(begun).read(&mut [0]).unwrap(), 1);
        let memory = Memory::open(pid).unwrap();
        let caller = RemoteCaller::find(pid, &memory, &maps::read(pid).unwrap()).unwrap();
        let cleared =
            world::stopped_in_turn(pid, |world| clear(pid, &memory, world, (caller, &[])));
        let left = leftovers::find(pid, &memory).len();
        sys::kill_and_reap(tracer.unwrap());
        assert_eq!((cleared.is_err(), left), (true, 1), "{cleared:?}");
        assert_eq!(clear_leftovers(pid).unwrap(), Cleared::Everything);
        drop(target.stdin.take());
        assert!(target.wait().unwrap().success());
    }

    /// What was found before the stop may have been closed, and its number be the program's by now.
    #[test]
    fn a_number_that_is_another_files_by_now_stays_open() {
        let mut target = leftovers::tests::start();
        let pid = target.id() as i32;
        let memory = Memory::open(pid).unwrap();
        let caller = RemoteCaller::find(pid, &memory, &maps::read(pid).unwrap()).unwrap();
        let work = |world: &mut World| clear(pid, &memory, world, (caller, &[(pid, 1)]));
        assert!(world::stopped_in_turn(pid, work).unwrap().0);
        assert!(std::fs::exists(format!("/proc/{pid}/fd/1")).unwrap());
        drop(target.stdin.take());
        assert!(target.wait().unwrap().success());
    }

    const PAGE: u64 = sys::PAGE as u64;

    /// A page that can refuse to be written: code in a shared mapping that cannot be written is no code of a patch's; here it
    /// stands for what does so.
    fn refusing_page(pid: i32) -> (u64, impl Fn(i32)) {
        let data = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let shared = (libc::MAP_SHARED | libc::MAP_ANONYMOUS) as u64;
        let page = call_in(pid, libc::SYS_mmap, [0, PAGE, data, shared, u64::MAX, 0]);
        let protect = move |to: i32| {
            call_in(pid, libc::SYS_mprotect, [page, PAGE, to as u64, 0, 0, 0]);
        };
        (page, protect)
    }

    /// Has an engine patch zeros at some places.
    fn patch_zeros(engine: &mut Jump, memory: &Memory, places: &[u64]) {
        let patch = |&at: &u64| Patch {
            at,
            original: vec![0; 5],
            before: Vec::new(),
            replacement: vec![0xe9; 5],
            behind: Vec::new(),
            trampoline: None,
            moved: Vec::new(),
            next: 0,
            landings: Vec::new(),
        };
        let code = maps::read(engine.pid).unwrap();
        let code = code.iter().find(|m| m.executable).unwrap();
        engine.install(&[code.start]).unwrap();
        let mut space = engine.space.take().unwrap();
        let control = space.installed.around.control;
        let changed = engine.while_stopped(|world| {
            world.hold()?;
            let add = places.iter().map(patch).collect();
            let early = Moves::default();
            space
                .patches
                .change(memory, world, control, &[], add, &early)
        });
        assert_eq!(changed.unwrap(), []);
        engine.space = Some(space);
    }

    /// What cannot be restored leads to the probes' memory, which stays as long.
    #[test]
    fn what_a_patch_leads_to_stays_as_long_as_it_stands() {
        let mut target = leftovers::tests::start();
        let pid = target.id() as i32;
        let memory = Memory::open(pid).unwrap();
        let (page, protect) = refusing_page(pid);
        let mut engine = Jump::attach(pid).unwrap();
        patch_zeros(&mut engine, &memory, &[page, page + 8]);
        let installed = &engine.space.as_ref().unwrap().installed;
        let (ours, control) = (installed.code.clone(), installed.around.control);
        protect(libc::PROT_READ);
        assert!(engine.finish().is_err());
        assert_eq!(engine.counters().bytes_differing, 10);
        let is_mapped = || {
            let now = maps::read(pid).unwrap();
            let is_mapped = |at| now.iter().any(|mapping| mapping.contains(at));
            ours.iter().all(|code| is_mapped(code.start)) && is_mapped(control)
        };
        assert!(is_mapped());
        let refused = clear_leftovers(pid).unwrap_err().to_string();
        assert!(refused.contains("2 of the places"), "{refused}");
        assert!(is_mapped());
        protect(libc::PROT_READ | libc::PROT_WRITE);
        assert_eq!(clear_leftovers(pid).unwrap(), Cleared::Everything);
        let mut bytes = [1; 16];
        memory.read(TargetAddr(page), &mut bytes).unwrap();
        assert_eq!(bytes, [0; 16]);
        drop(target.stdin.take());
        assert!(target.wait().unwrap().success());
    }

    /// Two tracers were killed in one process, and one of them has left what cannot be restored: whichever is found first.
    #[test]
    fn what_cannot_be_restored_keeps_nothing_of_another_tracer() {
        for refusing in [0, 1] {
            let mut target = leftovers::tests::start();
            let pid = target.id() as i32;
            let memory = Memory::open(pid).unwrap();
            let pages = [refusing_page(pid), refusing_page(pid)];
            for (page, _) in &pages {
                let mut engine = Jump::new(pid, None).unwrap();
                patch_zeros(&mut engine, &memory, &[*page]);
                // It ends here, and leaves everything.
                engine.space = None;
            }
            let (page, protect) = &pages[refusing];
            let other = TargetAddr(pages[1 - refusing].0);
            assert_eq!(leftovers::find(pid, &memory).len(), 2);
            protect(libc::PROT_READ);
            let refused = clear_leftovers(pid).unwrap_err().to_string();
            assert!(refused.contains("1 of the places"), "{refused}");
            assert_eq!(leftovers::find(pid, &memory).len(), 1);
            assert_eq!(memory.read_word(other).unwrap(), 0);
            assert_ne!(memory.read_word(TargetAddr(*page)).unwrap(), 0);
            protect(libc::PROT_READ | libc::PROT_WRITE);
            assert_eq!(clear_leftovers(pid).unwrap(), Cleared::Everything);
            assert_eq!(memory.read_word(TargetAddr(*page)).unwrap(), 0);
            drop(target.stdin.take());
            assert!(target.wait().unwrap().success());
        }
    }
}
