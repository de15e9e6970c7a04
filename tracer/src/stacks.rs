//! The stacks of all threads at one moment, for whoever can unwind them: copied while the target is
//! stopped, looked at while it runs on.

use std::time::Duration;

use darc_disasm::{Gpr, Registers as _};

use crate::addr::TargetAddr;
use crate::engine::jump::world;
use crate::error::Result;
use crate::memory::Memory;

/// More of a stack is not copied: frames of interest are near its top, and the stop must be short.
const MOST: usize = 128 << 10;
/// What is copied at a time, so that the end of the stack's mapping is found.
const PAGE: u64 = 4096;

/// One thread's registers and the upper part of its stack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stack {
    /// The thread.
    pub tid: i32,
    /// The instruction pointer.
    pub rip: TargetAddr,
    /// The stack pointer.
    pub rsp: u64,
    /// The frame pointer, where one is kept.
    pub rbp: u64,
    /// The bytes from the stack pointer on.
    pub bytes: Vec<u8>,
}

impl Stack {
    /// The word at an address of the stack.
    #[must_use]
    pub fn word(&self, addr: u64) -> Option<u64> {
        let at = usize::try_from(addr.checked_sub(self.rsp)?).ok()?;
        let bytes = self.bytes.get(at..at.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
    }
}

/// Copies the stacks of all threads of a process that nobody traces, and tells for how long it was stopped.
///
/// # Errors
/// When the process cannot be stopped or is gone.
pub fn snapshot(pid: i32) -> Result<(Vec<Stack>, Duration)> {
    let memory = Memory::open(pid)?;
    world::stopped(pid, |world| {
        world
            .threads()
            .map(|thread| {
                let registers = thread.registers()?;
                let rsp = registers.rsp();
                Ok(Stack {
                    tid: thread.tid(),
                    rip: registers.rip(),
                    rsp,
                    rbp: registers.gpr(Gpr::Rbp),
                    bytes: upper_part(&memory, rsp),
                })
            })
            .collect()
    })
}

fn upper_part(memory: &Memory, rsp: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < MOST {
        let Some(at) = rsp.checked_add(bytes.len() as u64) else {
            break;
        };
        let mut part = vec![0; (PAGE - at % PAGE) as usize];
        if memory.read(TargetAddr(at), &mut part).is_err() {
            break;
        }
        bytes.append(&mut part);
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
            rsp: 0x1000,
            rbp: 0,
            bytes: (0..12).collect(),
        };
        assert_eq!(stack.word(0x1000), Some(0x0706_0504_0302_0100));
        assert_eq!(stack.word(0x1004), Some(0x0b0a_0908_0706_0504));
        assert_eq!(stack.word(0x1005), None);
        assert_eq!(stack.word(0xfff), None);
        assert_eq!(stack.word(u64::MAX), None);
    }
}
