//! Noticing from outside what an untraced target does: exit, exec, libraries that come and go.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::children;
use crate::engine::Notice;
use crate::error::{Error, Result};
use crate::maps::{self, FileId};
use crate::memory::Memory;
use crate::sys;

use super::space::Space;

/// How often the mappings are read when f0 is not there yet.
const EXPECTING: Duration = Duration::from_millis(5);
/// How often they are read otherwise.
const OTHERWISE: Duration = Duration::from_millis(200);
/// How often it is looked whether the process is still the same program.
const SAME_PROGRAM: Duration = Duration::from_millis(20);
/// How often it is looked whether its code is still the one that was patched. Where it was not again and again, as often as the mappings
/// are read: each time all threads are stopped.
const SAME_CODE: Duration = Duration::from_millis(20);
/// The shortest sleep between two looks at the rings.
const NAP: Duration = Duration::from_millis(1);
/// The shortest where there is time: each look takes the processor from somebody, and fewer ops are written in full.
const BATCH: Duration = Duration::from_millis(8);
/// The longest.
const MOST: Duration = Duration::from_millis(100);
/// The longest where nothing may be missed that comes all at once.
const LONGEST: Duration = Duration::from_millis(8);

/// How soon it is looked at the rings again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Haste {
    /// The sooner, the more is in them; soon in any case.
    Soon,
    /// The sooner, the more is in them. What there is no room for is counted.
    AsRecordsCome,
    /// Records are taken in batches. What there is no room for is counted.
    InBatches,
    /// There is none: what has been read already was much.
    None,
}

/// Where code of a file lies.
pub type Mapped = (Range<u64>, FileId);

/// An observer of one process.
#[derive(Debug)]
pub struct Watch {
    pid: i32,
    /// Whether the process is a child of this one.
    child: bool,
    ended: OwnedFd,
    end: Option<Notice>,
    code: Vec<Mapped>,
    expecting: bool,
    looked: Instant,
    checked: Instant,
    /// When it was looked whether the patches stand, and how soon that is looked at again.
    compared: Instant,
    compare_after: Duration,
    /// Code was not there when it was to be patched.
    was_away: bool,
    nap: Duration,
}

impl Watch {
    /// Begins to watch.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn new(pid: i32, child: bool) -> Result<Watch> {
        let ended = sys::pidfd(pid).map_err(|errno| match errno {
            nix::errno::Errno::ESRCH => Error::ThreadGone { tid: pid },
            errno => Error::Os {
                operation: "watch the target",
                source: errno.into(),
            },
        })?;
        let now = Instant::now();
        Ok(Watch {
            pid,
            child,
            ended,
            end: None,
            code: code(pid),
            expecting: false,
            looked: now,
            checked: now,
            compared: now,
            compare_after: SAME_CODE,
            was_away: false,
            nap: NAP,
        })
    }

    /// The code that is mapped from files, as far as that is known.
    pub fn code(&self) -> &[Mapped] {
        &self.code
    }

    /// Whether a library with f0 in it is waited for.
    pub fn expect_libraries(&mut self, expecting: bool) {
        self.expecting = expecting;
    }

    /// How the process ended.
    #[must_use]
    pub fn end(&self) -> Option<Notice> {
        self.end
    }

    /// Whether the process still runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !self.wait(PollTimeout::ZERO)
    }

    fn wait(&self, timeout: PollTimeout) -> bool {
        let mut fds = [PollFd::new(self.ended.as_fd(), PollFlags::POLLIN)];
        matches!(poll(&mut fds, timeout), Ok(1..))
    }

    /// Looks whether anything happened to the process, or to what is mapped in it.
    pub fn look(&mut self, memory: &Memory, space: Option<&Space>) -> Option<Notice> {
        if self.end.is_some() {
            return self.end;
        }
        if !self.is_alive() {
            self.end = Some(self.how_it_ended());
            return self.end;
        }
        let gone = || space.is_some_and(|space| !space.installed.is_there(memory));
        if self.checked.elapsed() >= SAME_PROGRAM {
            self.checked = Instant::now();
            // A process that is about to end loses its memory first.
            let now = if gone() { code(self.pid) } else { Vec::new() };
            if !now.is_empty() {
                self.code = now;
                return Some(Notice::Exec);
            }
        }
        if let Some(space) = space
            && self.has_lost_probes(memory, space)
        {
            let now = code(self.pid);
            if now.is_empty() {
                return None;
            }
            let before = std::mem::replace(&mut self.code, now);
            return Some(match (gone(), before == self.code) {
                (true, _) => Notice::Exec,
                (false, true) => Notice::ProbesTakenOut,
                (false, false) => Notice::LibrariesChanged,
            });
        }
        let every = if self.expecting { EXPECTING } else { OTHERWISE };
        if self.looked.elapsed() >= every {
            self.looked = Instant::now();
            let now = code(self.pid);
            if now != self.code && !now.is_empty() {
                self.code = now;
                // Asked after the mappings were read: those of another program are no libraries that came.
                return Some(match gone() {
                    true => Notice::Exec,
                    false => Notice::LibrariesChanged,
                });
            }
        }
        None
    }

    /// Code that was to be patched was not there: a library comes and goes. The plan is to be applied anew.
    pub fn was_away(&mut self) {
        self.was_away = true;
    }

    /// Whether the plan is to be applied anew though the mappings are the same. A program that loads a library again all the time is
    /// asked less often.
    fn has_lost_probes(&mut self, memory: &Memory, space: &Space) -> bool {
        let since = self.compared.elapsed();
        if since < self.compare_after {
            return false;
        }
        self.compared = Instant::now();
        let is_lost =
            std::mem::take(&mut self.was_away) || space.patches.are_taken_out(memory, &self.code);
        self.compare_after = match is_lost {
            true => (2 * self.compare_after).min(OTHERWISE),
            false => SAME_CODE.max(self.compare_after / 2),
        };
        is_lost
    }

    /// Sleeps, longer and longer while there are no records; the target's end wakes.
    pub fn sleep(&mut self, at_most: Duration, records: u64, haste: Haste) {
        self.nap = match records {
            0 => (self.nap * 2).min(MOST),
            _ => NAP,
        };
        let nap = match haste {
            Haste::Soon => self.nap.min(LONGEST),
            Haste::AsRecordsCome => self.nap,
            Haste::InBatches => self.nap.max(BATCH),
            Haste::None => at_most,
        };
        let nap = nap.min(at_most).max(NAP);
        self.wait(PollTimeout::try_from(nap).unwrap_or(PollTimeout::ZERO));
    }

    fn how_it_ended(&self) -> Notice {
        Notice::of_end(match self.child {
            true => children::end_of(self.pid),
            false => children::end_of_other(self.pid),
        })
    }
}

/// The code that is mapped from files: what changes when libraries come and go.
fn code(pid: i32) -> Vec<Mapped> {
    let mappings = maps::read(pid).unwrap_or_default();
    mappings
        .iter()
        .filter(|mapping| mapping.executable && mapping.is_file())
        .map(|mapping| (mapping.start..mapping.end, mapping.file))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "ended with 0" would be a claim of ours.
    #[test]
    fn the_end_of_a_process_whose_parent_was_quicker_is_not_known() {
        let (told, tell) = nix::unistd::pipe().unwrap();
        let child = sys::fork_into(|| {
            let _ = nix::unistd::read(&told, &mut [0]);
            sys::exit_now(3);
        });
        let pid = child.unwrap();
        let memory = Memory::open(pid).unwrap();
        let mut watch = Watch::new(pid, false).unwrap();
        nix::unistd::write(&tell, &[1]).unwrap();
        assert_eq!(sys::wait_for(pid).unwrap().1, 3 << 8);
        assert_eq!(watch.look(&memory, None), Some(Notice::Ended));
    }
}
