//! The stacks of all threads at one moment, for whoever can unwind them: copied while the target is
//! stopped, looked at while it runs on.

use std::collections::BTreeSet;
use std::time::Duration;

use darc_disasm::{Gpr, Registers as _};

use crate::addr::TargetAddr;
use crate::engine::jump::world;
use crate::error::Result;
use crate::memory::Memory;
use crate::stopped::Stopped;

/// More of a stack is not copied: frames of interest are near its top, and the stop must be short.
const MOST: usize = 128 << 10;
/// ... of those that were found to be deep. It takes a millisecond.
const MOST_OF_DEEP: usize = 4 << 20;
/// What is copied at first, and where that is too much: so the end of the stack's mapping is found.
const PAGE: u64 = 4096;
/// No more is copied at a time.
const MOST_AT_ONCE: u64 = 256 << 10;

/// One thread's registers and the upper part of its stack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stack {
    /// The thread.
    pub tid: i32,
    /// The instruction pointer.
    pub rip: TargetAddr,
    /// The number of the system call that it is in.
    pub call: Option<u32>,
    /// The stack pointer.
    pub rsp: u64,
    /// The frame pointer, where one is kept.
    pub rbp: u64,
    /// The bytes from the stack pointer on.
    pub bytes: Vec<u8>,
}

impl Stack {
    /// Whether an address is on the part of the stack that was too far away to be copied.
    #[must_use]
    pub fn is_behind_copy(&self, addr: u64) -> bool {
        let end = self.rsp.saturating_add(self.bytes.len() as u64);
        let behind = end..end.saturating_add(MOST_OF_DEEP as u64);
        self.bytes.len() >= MOST && behind.contains(&addr.saturating_add(7))
    }

    /// The word at an address of the stack.
    #[must_use]
    pub fn word(&self, addr: u64) -> Option<u64> {
        let at = usize::try_from(addr.checked_sub(self.rsp)?).ok()?;
        let bytes = self.bytes.get(at..at.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
    }

    /// Changes a word of the copy that [`Stack::word`] finds.
    pub(crate) fn put(&mut self, addr: u64, word: u64) {
        let at = addr
            .checked_sub(self.rsp)
            .and_then(|at| usize::try_from(at).ok());
        let place = at.and_then(|at| self.bytes.get_mut(at..at.checked_add(8)?));
        if let Some(place) = place {
            place.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// Copies the stacks of all threads of a process that nobody traces, and tells for how long it was stopped.
///
/// # Errors
/// When the process cannot be stopped or is gone.
pub fn snapshot(pid: i32) -> Result<(Vec<Stack>, Duration)> {
    copied(pid, |_| true, MOST)
}

/// As [`snapshot`], of these threads alone, and more of their stacks.
///
/// # Errors
/// As [`snapshot`].
pub fn deep(pid: i32, tids: &BTreeSet<i32>) -> Result<(Vec<Stack>, Duration)> {
    copied(pid, |tid| tids.contains(&tid), MOST_OF_DEEP)
}

fn copied(
    pid: i32,
    is_wanted: impl Fn(i32) -> bool + Sync,
    most: usize,
) -> Result<(Vec<Stack>, Duration)> {
    let memory = Memory::open(pid)?;
    world::stopped(pid, |world| {
        let threads = world.threads().filter(|thread| is_wanted(thread.tid()));
        threads
            .map(|thread| copy_of(&memory, thread, most))
            .collect()
    })
}

/// The stack of a thread that stands still.
pub(crate) fn of_stopped(memory: &Memory, thread: &Stopped) -> Result<Stack> {
    copy_of(memory, thread, MOST)
}

fn copy_of(memory: &Memory, thread: &Stopped, most: usize) -> Result<Stack> {
    let registers = thread.registers()?;
    let rsp = registers.rsp();
    Ok(Stack {
        tid: thread.tid(),
        rip: registers.rip(),
        call: registers.system_call(),
        rsp,
        rbp: registers.gpr(Gpr::Rbp),
        bytes: upper_part(memory, rsp, most),
    })
}

fn upper_part(memory: &Memory, rsp: u64, most: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut at_once = PAGE;
    while bytes.len() < most {
        let Some(at) = rsp.checked_add(bytes.len() as u64) else {
            break;
        };
        let mut part = vec![0; (at_once - at % PAGE) as usize];
        match memory.read(TargetAddr(at), &mut part) {
            Ok(()) => {
                bytes.append(&mut part);
                at_once = (2 * at_once).min(MOST_AT_ONCE);
            }
            Err(_) if at_once == PAGE => break,
            Err(_) => at_once = PAGE,
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_outside_of_the_copy_are_not_there() {
        let stack = Stack {
            tid: 1,
            rip: TargetAddr(0),
            call: None,
            rsp: 0x1000,
            rbp: 0,
            bytes: (0..12).collect(),
        };
        assert_eq!(stack.word(0x1000), Some(0x0706_0504_0302_0100));
        assert_eq!(stack.word(0x1004), Some(0x0b0a_0908_0706_0504));
        assert_eq!(stack.word(0x1005), None);
        assert_eq!(stack.word(0xfff), None);
        assert_eq!(stack.word(u64::MAX), None);
        assert!(!stack.is_behind_copy(0x1005), "it has no more");
    }

    #[test]
    fn what_is_too_far_away_is_told_from_what_is_not_there() {
        let stack = Stack {
            tid: 1,
            rip: TargetAddr(0),
            call: None,
            rsp: 0x1000,
            rbp: 0,
            bytes: vec![0; MOST],
        };
        let end = 0x1000 + MOST as u64;
        assert!(!stack.is_behind_copy(end - 8) && stack.is_behind_copy(end - 7));
        assert!(stack.is_behind_copy(end) && !stack.is_behind_copy(0x10));
        assert!(!stack.is_behind_copy(u64::MAX));
    }

    #[test]
    fn a_stack_is_copied_up_to_its_end() {
        let own = Memory::open(std::process::id().cast_signed()).unwrap();
        let here = [7_u8; 5000];
        let at = here.as_ptr() as u64;
        let copied = upper_part(&own, at, 1 << 30);
        assert_eq!(copied[..here.len()], here);
        assert!(copied.len() < 1 << 30);
        assert!((at + copied.len() as u64).is_multiple_of(PAGE));
    }
}
