//! Instructions of the target that a thread uses which makes system calls in its name.

use std::ops::Range;

use crate::addr::TargetAddr;
use crate::maps::Mapping;
use crate::memory::Memory;

/// Where the target has instructions to return by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gadgets {
    /// `syscall`, `ret`.
    pub call: TargetAddr,
    /// `mov $15, %rax`, `syscall`: returns from a signal handler.
    pub sigreturn: TargetAddr,
}

const SYSCALL: [u8; 2] = [0x0f, 0x05];
const RET: u8 = 0xc3;
/// `mov $15, %rax`, by which the C libraries return from signal handlers.
const SIGRETURN: [u8; 7] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0];

impl Gadgets {
    /// Whether they are still what was found: a probe may have been written there since.
    pub fn are_there(self, memory: &Memory) -> bool {
        let holds = |at: TargetAddr, first: &[u8], second: &[u8]| {
            let mut bytes = vec![0; first.len() + second.len()];
            memory.read(at, &mut bytes).is_ok() && bytes == [first, second].concat()
        };
        holds(self.call, &SYSCALL, &[RET]) && holds(self.sigreturn, &SIGRETURN, &SYSCALL)
    }
}

/// So many mappings of code are looked through,
const MOST_MAPPINGS: usize = 1024;
/// and so many bytes in all: a file may be as long as the target likes, and be mapped as often.
const MOST_BYTES: u64 = 256 << 20;

/// What is found in the target's code.
#[derive(Default, Debug)]
pub struct Found {
    /// A `syscall`.
    pub any: Option<TargetAddr>,
    /// One with a `ret` behind it.
    call: Option<TargetAddr>,
    sigreturn: Option<TargetAddr>,
}

impl Found {
    /// Looks in the vDSO and in mapped files.
    pub fn search(memory: &Memory, mappings: &[Mapping]) -> Found {
        // Only in memory that stays: an anonymous mapping may be a tracer's own, and be given back by
        // the very calls that are made through it.
        let stays = |m: &&Mapping| m.is_file() || m.name.as_os_str() == "[vdso]";
        let vdso_first = mappings
            .iter()
            .rev()
            .filter(|m| m.executable && m.readable)
            .filter(stays);
        let mut found = Found::default();
        let mut left = MOST_BYTES;
        for mapping in vdso_first.take(MOST_MAPPINGS) {
            let end = mapping.end.min(mapping.start.saturating_add(left));
            found.look(memory, mapping.start..end);
            left -= end - mapping.start;
            if found.gadgets().is_some() || left == 0 {
                break;
            }
        }
        found
    }

    /// All that a way back needs, where the target has it.
    pub fn gadgets(&self) -> Option<Gadgets> {
        Some(Gadgets {
            call: self.call?,
            sigreturn: self.sigreturn?,
        })
    }

    fn look(&mut self, memory: &Memory, code: Range<u64>) {
        const CHUNK: u64 = 1 << 16;
        let mut buffer = Vec::new();
        for from in code.clone().step_by(CHUNK as usize) {
            // What lies across the end of a chunk is in this one whole.
            let len = (CHUNK + 16).min(code.end - from);
            buffer.resize(len as usize, 0);
            if memory.read(TargetAddr(from), &mut buffer).is_err() {
                return;
            }
            let pairs = buffer.windows(2).enumerate();
            for (at, _) in pairs.filter(|(_, pair)| *pair == SYSCALL) {
                let addr = |offset: usize| TargetAddr(from + offset as u64);
                self.any.get_or_insert(addr(at));
                if buffer.get(at + 2) == Some(&RET) {
                    self.call.get_or_insert(addr(at));
                }
                if buffer[..at].ends_with(&SIGRETURN) {
                    self.sigreturn.get_or_insert(addr(at - SIGRETURN.len()));
                }
            }
            if self.gadgets().is_some() {
                return;
            }
        }
    }
}
