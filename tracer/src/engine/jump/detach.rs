//! Letting go of the target, and clearing what a killed tracer left in one.

use std::collections::HashMap;
use std::time::Duration;

use crate::addr::TargetAddr;
use crate::error::{Error, Result, unless_gone};
use crate::memory::Memory;
use crate::stopped::Stopped;

use super::installed::Installed;
use super::patches::Patches;
use super::space::Space;
use super::{Jump, world};

/// How often it is tried to give the mappings back while a thread is still on its way out.
const ATTEMPTS: u32 = 4;
/// The time between two attempts.
const BETWEEN: Duration = Duration::from_millis(1);

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
            self.counters.bytes_differing += space.patches.bytes_differing();
            if !self.watch.is_alive() || !space.installed.is_there(&self.memory) {
                // Nothing is left that could be restored, or everything was.
                outcome = Ok(());
            }
            self.past = Some(space.rings);
        }
        if let Some(thread) = self.parked.take() {
            unless_gone(thread.detach())?;
        }
        match outcome {
            Err(error) if error.is_gone() => Ok(()),
            outcome => outcome,
        }
    }

    fn remove(&mut self, space: &mut Space) -> Result<()> {
        let memory = self.memory.again()?;
        let pid = self.pid;
        let ends = space.syscall_ends();
        let Space {
            installed, patches, ..
        } = space;
        let mut outcome = Ok(false);
        for attempt in 0..ATTEMPTS {
            outcome = self.while_stopped(|world| {
                installed.set_generation(&memory, 0)?;
                patches.restore_all(&memory)?;
                for thread in world.threads() {
                    unless_gone(lead_out(thread, &ends))?;
                }
                installed.reveal(&memory);
                installed.unmap(pid, &memory, world)
            });
            match &outcome {
                Ok(true) => {
                    tracing::debug!(pid, attempt, "restored the code and gave all memory back");
                    return Ok(());
                }
                Err(error) if error.is_gone() => break,
                // A target that did not stop this time may do so the next time.
                Ok(false) | Err(_) => std::thread::sleep(BETWEEN),
            }
        }
        outcome?;
        // Nothing in the program's text leads there any more.
        tracing::debug!(
            pid,
            "restored the code; some memory stays mapped, for a call in it has not returned"
        );
        Ok(())
    }
}

impl Space {
    /// The addresses behind all copied system calls, each with the one behind the original.
    fn syscall_ends(&self) -> HashMap<u64, u64> {
        let prepared = self.prepared.values().flatten();
        prepared
            .flat_map(|prepared| prepared.behind_syscalls.iter().copied())
            .collect()
    }
}

/// Leads a thread that waits in a copied system call to the original, which is as long.
fn lead_out(thread: &Stopped, ends: &HashMap<u64, u64>) -> Result<()> {
    const SYSCALL: i64 = 2;
    let mut registers = thread.registers()?;
    let rip = registers.rip();
    let original = match (ends.get(&rip.0), ends.get(&rip.offset(SYSCALL).0)) {
        (Some(&next), _) => TargetAddr(next),
        (None, Some(&next)) => TargetAddr(next).offset(-SYSCALL),
        (None, None) => return Ok(()),
    };
    registers.set_rip(original);
    thread.set_registers(&registers)
}

/// Removes what a killed tracer left in a process.
///
/// # Errors
/// When the process is gone or may not be traced, or another tracer is at work in it.
pub fn clear_leftovers(pid: i32) -> Result<Cleared> {
    let memory = Memory::open(pid)?;
    let found = Installed::find(pid, &memory);
    if found.iter().any(|found| found.belongs_to_another(&memory)) {
        return Err(taken(pid));
    }
    let mut cleared = Cleared::Nothing;
    for installed in found {
        cleared = match (clear(pid, &memory, &installed)?, cleared) {
            (Cleared::Patches, _) | (_, Cleared::Patches) => Cleared::Patches,
            (now, _) => now,
        };
    }
    Ok(cleared)
}

/// Why a process cannot be measured that another tracer measures.
pub(super) fn taken(pid: i32) -> Error {
    Error::Unsuitable(format!(
        "process {pid}: another darc measures it, perhaps from another container; wait until that has ended, or end it"
    ))
}

fn clear(pid: i32, memory: &Memory, installed: &Installed) -> Result<Cleared> {
    let mut patches = Patches::from_journal(memory, installed.around.control);
    for attempt in 0..ATTEMPTS {
        let (unmapped, _) = world::stopped(pid, |world| {
            if attempt == 0 {
                installed.set_generation(memory, 0)?;
                patches.restore_all(memory)?;
            }
            installed.reveal(memory);
            installed.unmap(pid, memory, world)
        })?;
        if unmapped {
            return Ok(Cleared::Everything);
        }
        std::thread::sleep(BETWEEN);
    }
    match patches.bytes_differing() {
        0 => Ok(Cleared::Patches),
        differing => Err(Error::Unsuitable(format!(
            "{differing} bytes of process {pid} that an earlier tracer patched could not be restored"
        ))),
    }
}
