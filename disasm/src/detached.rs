//! Code outside a function that jumps back into it.
//!
//! Compilers move unlikely code away. When nothing tells that such a part belongs to the function (a
//! stripped program) it is seen only as a jump out of the function, yet it may jump back to any
//! instruction. So the code behind every jump out is followed, through [`Memory`], for a while.
//! Another function never jumps into the middle of this one; it is followed in vain.

use std::collections::{HashMap, HashSet};

use iced_x86::{Decoder, DecoderOptions};

use crate::blocks::{direct_target, falls_through};
use crate::{FunctionCode, Memory};

/// More instructions are not followed for one function.
const MOST_INSTRUCTIONS: usize = 4096;
/// The longest instruction (Intel SDM volume 2, section 2.3.11).
const LONGEST: usize = 15;

/// A jump from outside into the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JumpBack {
    /// Where the code outside begins that leads to the jump.
    pub start: u64,
    /// Address of the jump.
    pub from: u64,
    /// Address inside the function, not its entry.
    pub target: u64,
}

/// Follows code outside of one function.
#[derive(Clone, Debug, Default)]
pub(crate) struct Explorer {
    /// By address of an instruction: where the code that was followed to it begins.
    seen: HashMap<u64, u64>,
    starts: HashSet<u64>,
    /// Beginnings of code that runs into code followed from another beginning.
    joins: Vec<(u64, u64)>,
    parts: HashSet<u64>,
    pub found: Vec<JumpBack>,
}

impl Explorer {
    /// Follows the code from address `start`, which lies outside of `code`.
    pub fn explore(&mut self, code: &FunctionCode, memory: &dyn Memory, start: u64) {
        if !self.starts.insert(start) {
            return;
        }
        let mut open = vec![(start, start)];
        while let Some((from, addr)) = open.pop() {
            if code.contains(addr) {
                if addr != code.entry() {
                    self.found.push(JumpBack {
                        start,
                        from,
                        target: addr,
                    });
                }
                continue;
            }
            if let Some(&other) = self.seen.get(&addr) {
                if other != start {
                    self.joins.push((start, other));
                }
                continue;
            }
            if self.seen.len() >= MOST_INSTRUCTIONS {
                break;
            }
            self.seen.insert(addr, start);
            let mut bytes = [0; LONGEST];
            let Some(bytes) = readable(memory, addr, &mut bytes) else {
                continue;
            };
            let instruction = Decoder::with_ip(64, bytes, addr, DecoderOptions::NONE).decode();
            if instruction.is_invalid() {
                continue;
            }
            if falls_through(&instruction) {
                open.push((addr, instruction.next_ip()));
            }
            open.extend(direct_target(&instruction).map(|target| (addr, target)));
        }
    }

    /// Concludes which of the code followed so far is a part of the function.
    pub fn conclude(&mut self) {
        let mut into: HashMap<u64, Vec<u64>> = HashMap::new();
        for &(start, other) in &self.joins {
            into.entry(other).or_default().push(start);
        }
        let mut open: Vec<u64> = self.found.iter().map(|jump| jump.start).collect();
        while let Some(start) = open.pop() {
            if self.parts.insert(start) {
                open.extend(into.get(&start).into_iter().flatten());
            }
        }
    }

    /// Whether the code at `start` was found to be a part of the function.
    pub fn is_part(&self, start: u64) -> bool {
        self.parts.contains(&start)
    }
}

/// As many bytes at `addr` as can be read, near the end of readable memory fewer than the buffer
/// holds.
pub(crate) fn readable<'a>(
    memory: &dyn Memory,
    addr: u64,
    buf: &'a mut [u8; LONGEST],
) -> Option<&'a [u8]> {
    let len = (1..=LONGEST)
        .rev()
        .find(|&len| memory.read(addr, &mut buf[..len]))?;
    Some(&buf[..len])
}
