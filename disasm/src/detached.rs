//! Code outside a function that jumps back into it.
//!
//! Compilers move unlikely code away. When nothing tells that such a part belongs to the function (a
//! stripped program) it is seen only as a jump out of the function, yet it may jump back to any
//! instruction. So the code behind every jump out is followed, through [`Memory`], for a while.
//! Another function never jumps into the middle of this one; it is followed in vain.

use std::collections::{HashMap, HashSet};

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};

use crate::blocks::{direct_target, falls_through};
use crate::{FunctionCode, Memory};

/// More instructions are not followed from one jump out of the function.
const MOST_INSTRUCTIONS: usize = 4096;
/// Nor more from all of them.
const MOST_IN_ALL: usize = 1 << 16;
/// The longest instruction (Intel SDM volume 2, section 2.3.11).
pub(crate) const LONGEST: usize = 15;

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
    /// Beginnings of code that was not followed to its end.
    pub exhausted: Vec<u64>,
}

impl Explorer {
    /// Follows the code from address `start`, which lies outside of `code`.
    pub fn explore(&mut self, code: &FunctionCode, memory: &dyn Memory, start: u64) {
        if !self.starts.insert(start) {
            return;
        }
        // Compilers lay parts of several functions side by side, and what is called last in one does not return.
        let begins = |addr| code.parts().iter().any(|part| part.start == addr);
        let mut open = vec![(start, start)];
        let most = (self.seen.len() + MOST_INSTRUCTIONS).min(MOST_IN_ALL);
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
            if self.seen.len() >= most {
                self.exhausted.push(start);
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
            let next = instruction.next_ip();
            let may_return = !is_call(&instruction) || !begins(next);
            if falls_through(&instruction) && may_return {
                open.push((addr, next));
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

fn is_call(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::Call | FlowControl::IndirectCall
    )
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

#[cfg(test)]
mod tests {
    use crate::{
        BranchInto, Cfg, CodePart, FunctionCode, Memory, NoMemory, SkipReason, UnknownBranch,
        call_sites,
    };

    const HOT: u64 = 0x40_1000;
    const COLD: u64 = 0x40_2000;

    fn part(start: u64, bytes: &[u8]) -> CodePart {
        CodePart {
            start,
            bytes: bytes.to_vec(),
        }
    }

    /// je to the cold part; nop; nop; ret
    fn hot() -> FunctionCode {
        let bytes = [0x0f, 0x84, 0xfa, 0x0f, 0, 0, 0x90, 0x90, 0xc3];
        FunctionCode::new(vec![part(HOT, &bytes)]).unwrap()
    }

    #[test]
    fn a_part_that_jumps_back_is_recognised() {
        // call .+0x100; jmp to the second nop
        let bytes = [0xe8, 0xfb, 0, 0, 0, 0xe9, 0xfd, 0xef, 0xff, 0xff];
        let cold = FunctionCode::new(vec![part(COLD, &bytes)]).unwrap();
        let cfg = Cfg::build(&hot(), &cold);
        assert!(cfg.is_missing_part(COLD));
        let from = BranchInto::From(COLD + 5);
        assert_eq!(cfg.branches_into(HOT + 6..HOT + 9), from);
        let found = call_sites(&hot(), &cold);
        assert_eq!(found.sites, []);
        assert_eq!(found.skipped[0].reason, SkipReason::MissingPart);
    }

    #[test]
    fn another_function_does_not_come_back() {
        // jmp to the first function's entry; and nothing at all
        let bytes = [0xe9, 0xfb, 0xef, 0xff, 0xff];
        let other = FunctionCode::new(vec![part(COLD, &bytes)]).unwrap();
        for memory in [&other as &dyn Memory, &NoMemory] {
            let cfg = Cfg::build(&hot(), memory);
            assert!(!cfg.is_missing_part(COLD));
            assert_eq!(cfg.branches_into(HOT + 6..HOT + 9), BranchInto::None);
            assert_eq!(call_sites(&hot(), memory).sites.len(), 1);
        }
    }

    /// What ends with a call that does not return is followed by the first of the function's own parts away from it.
    #[test]
    fn what_lies_in_front_of_a_part_is_none() {
        // jmp to the other function; ret. And the part: jmp to the ret
        let hot = part(HOT, &[0xe9, 0xf6, 0x0f, 0, 0, 0xc3]);
        let cold = part(COLD, &[0xe9, 0x00, 0xf0, 0xff, 0xff]);
        let code = FunctionCode::new(vec![hot, cold]).unwrap();
        for (last, is_part) in [
            // call .+0x100; and five bytes of nop
            ([0xe8, 0xfb, 0, 0, 0], false),
            ([0x0f, 0x1f, 0x44, 0, 0], true),
        ] {
            let other = FunctionCode::new(vec![part(COLD - 5, &last)]).unwrap();
            let cfg = Cfg::build(&code, &other);
            assert_eq!(cfg.is_missing_part(COLD - 5), is_part);
            assert_eq!(call_sites(&code, &other).sites.is_empty(), is_part);
        }
    }

    /// je to code that is much too long; je to the cold part; nop; nop; ret
    fn hot_and_long(long: usize) -> (FunctionCode, FunctionCode) {
        const LONG: u64 = 0x41_0000;
        let bytes = [
            0x0f, 0x84, 0xfa, 0xef, 0, 0, 0x0f, 0x84, 0xf4, 0x0f, 0, 0, 0x90, 0x90, 0xc3,
        ];
        let hot = FunctionCode::new(vec![part(HOT, &bytes)]).unwrap();
        let filling = |len: usize, end: &[u8]| [&vec![0x90; len], end].concat();
        // nops; ret. And nops; jmp to the second nop
        let len = 3000_u32;
        let back = (HOT as i64 + 13 - (COLD as i64 + i64::from(len) + 5)) as i32;
        let back = [&[0xe9][..], &back.to_le_bytes()].concat();
        let outside = vec![
            part(LONG, &filling(long, &[0xc3])),
            part(COLD, &filling(len as usize, &back)),
        ];
        (hot, FunctionCode::new(outside).unwrap())
    }

    #[test]
    fn each_jump_out_is_followed_as_far() {
        let (hot, outside) = hot_and_long(3000);
        let cfg = Cfg::build(&hot, &outside);
        assert!(cfg.is_missing_part(COLD));
        let from = BranchInto::From(COLD + 3000);
        assert_eq!(cfg.branches_into(HOT + 12..HOT + 15), from);
    }

    #[test]
    fn what_is_not_followed_to_its_end_may_come_back() {
        let (hot, outside) = hot_and_long(5000);
        let cfg = Cfg::build(&hot, &outside);
        let unknown = BranchInto::Unknown(UnknownBranch::Outside(0x41_0000));
        assert_eq!(cfg.branches_into(HOT + 6..HOT + 13), unknown);
        assert_eq!(cfg.branches_into(HOT..HOT + 6), BranchInto::None);
    }

    #[test]
    fn what_runs_into_a_part_is_one() {
        // je and jne to the cold part and its second instruction; nop; ret
        let bytes = [
            0x0f, 0x84, 0xfa, 0x0f, 0, 0, 0x0f, 0x85, 0xf5, 0x0f, 0, 0, 0x90, 0xc3,
        ];
        let code = FunctionCode::new(vec![part(HOT, &bytes)]).unwrap();
        // nop; jmp to the nop
        let cold = [0x90, 0xe9, 0x06, 0xf0, 0xff, 0xff];
        let cold = FunctionCode::new(vec![part(COLD, &cold)]).unwrap();
        let cfg = Cfg::build(&code, &cold);
        assert!(cfg.is_missing_part(COLD) && cfg.is_missing_part(COLD + 1));
    }
}
