//! How threads go on behind breakpoints whose instruction is executed elsewhere: copies of instructions in the arena.

use std::collections::HashMap;

use crate::addr::TargetAddr;
use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::memory::Memory;

use super::displaced;

/// The longest instruction in bytes (Intel SDM volume 2, section 2.3.11).
pub const LONGEST: usize = 15;

/// How to go on behind a breakpoint whose instruction is not emulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Continuation {
    /// The instruction does nothing (`endbr64`): go on behind it.
    Skip(TargetAddr),
    /// A copy of the instruction, followed by a jump back.
    Copy {
        /// Where the copy is.
        at: TargetAddr,
        /// Where the jump is.
        jump: TargetAddr,
        /// Where it leads.
        next: TargetAddr,
    },
    /// The instruction is a call, which is emulated: a copy would make it return to the copy.
    Call {
        /// The callee.
        to: TargetAddr,
        /// The return address.
        next: TargetAddr,
    },
}

/// A continuation, and the instruction that it was made from.
#[derive(Debug)]
struct Made {
    original: Vec<u8>,
    continuation: Continuation,
}

/// All continuations so far. A copy stays where it is, for a thread may be in it.
#[derive(Default, Debug)]
pub struct Continuations {
    made: HashMap<TargetAddr, Vec<Made>>,
}

impl Continuations {
    /// The continuation of an instruction that is the first of the bytes at `addr`. Where another instruction has come
    /// there since (another library, code that the program writes) it is made anew.
    ///
    /// # Errors
    /// When the instruction works only where it is, there is no room for the copy, or the target is gone.
    pub fn get(
        &mut self,
        memory: &Memory,
        arena: &mut Arena,
        addr: TargetAddr,
        bytes: &[u8],
    ) -> Result<Continuation> {
        const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
        let made = self.made.entry(addr).or_default();
        if let Some(same) = made.iter().find(|made| bytes.starts_with(&made.original)) {
            return Ok(same.continuation);
        }
        let immovable = |reason| {
            Error::Unsuitable(format!(
                "the instruction at {addr} cannot be moved: {reason}"
            ))
        };
        let call = displaced::first_call(bytes, addr.0).map_err(immovable)?;
        let (continuation, next) = if let Some((to, next)) = call {
            let (to, next) = (TargetAddr(to), TargetAddr(next));
            (Continuation::Call { to, next }, next)
        } else if bytes.starts_with(&ENDBR64) {
            let next = addr.offset(4);
            (Continuation::Skip(next), next)
        } else {
            let at = arena.reserve(64).ok_or_else(|| {
                Error::Unsuitable("the room for the probes' code is used up".to_owned())
            })?;
            let copy = displaced::first_instruction(bytes, addr.0, at.0).map_err(immovable)?;
            memory.write(at, &copy.code)?;
            let jump = at.offset(copy.jump as i64);
            let next = TargetAddr(copy.next);
            (Continuation::Copy { at, jump, next }, next)
        };
        made.push(Made {
            original: bytes[..next.0.wrapping_sub(addr.0) as usize].to_vec(),
            continuation,
        });
        Ok(continuation)
    }

    /// Which instruction of the program a thread in a copy of one is about to execute.
    #[must_use]
    pub fn original_of(&self, rip: TargetAddr) -> Option<TargetAddr> {
        let mut all = self
            .made
            .iter()
            .flat_map(|(&addr, made)| made.iter().map(move |made| (addr, made.continuation)));
        all.find_map(|(addr, continuation)| match continuation {
            Continuation::Copy { at, .. } if at == rip => Some(addr),
            Continuation::Copy { jump, next, .. } if jump == rip => Some(next),
            _ => None,
        })
    }

    /// Forgets everything: the memory that the copies were in is gone.
    pub fn forget(&mut self) {
        self.made.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// push %rbp; push %rbx; endbr64
    const PUSH_RBP: [u8; 1] = [0x55];
    const PUSH_RBX: [u8; 1] = [0x53];
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

    #[test]
    fn another_instruction_at_the_same_address_has_a_copy_of_its_own() {
        // This process plays the target.
        let memory = Memory::open(std::process::id() as i32).unwrap();
        let room = vec![0_u64; 64];
        let mut arena = Arena::of(TargetAddr(room.as_ptr() as u64), 512);
        let mut known = Continuations::default();
        let addr = TargetAddr(0x1000);
        let mut get = |instruction: &[u8]| {
            let bytes = [instruction, &[0x90; LONGEST]].concat();
            known.get(&memory, &mut arena, addr, &bytes[..LONGEST])
        };
        let first_byte = |continuation| match continuation {
            Continuation::Copy { at, .. } => memory.read_word(at).unwrap() as u8,
            other => panic!("{other:?}"),
        };
        let first = get(&PUSH_RBP).unwrap();
        assert_eq!(first_byte(first), PUSH_RBP[0]);
        let second = get(&PUSH_RBX).unwrap();
        assert_eq!(first_byte(second), PUSH_RBX[0]);
        assert_eq!(get(&ENDBR64).unwrap(), Continuation::Skip(addr.offset(4)));
        // What was there before has its copy still, and nothing is copied twice.
        assert_eq!(get(&PUSH_RBP).unwrap(), first);
        for continuation in [first, second] {
            let Continuation::Copy { at, jump, next } = continuation else {
                panic!("{continuation:?}")
            };
            assert_eq!(known.original_of(at), Some(addr));
            assert_eq!(known.original_of(jump), Some(next));
        }
        drop(room);
    }
}
