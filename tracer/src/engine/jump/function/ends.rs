//! Where a function that is entered by probes begins, and what its end is noticed by.

use darc_disasm::{CallSite, SiteKind, SkipReason, SkippedSite, Target};
use iced_x86::Instruction;

use crate::engine::TAKES_ARGUMENTS;

use super::super::prepare::Reason;
use super::super::spans::NoRoom;
use super::super::stubs::F0End;
use super::{Function, Group, Part, Purpose, is_return, may_be_first_word};

impl Function {
    /// The addresses of the groups that make the function f0, or hook it: its returns, its entry last.
    ///
    /// # Errors
    /// Why control cannot be diverted at its entry.
    pub fn entry_groups(&self) -> std::result::Result<Vec<u64>, Reason> {
        let none = || NoRoom::NoInstruction.to_string();
        let entry = match (&self.spots, self.is_of_goroutines()) {
            (Err(reason), _) => return Err((*reason).to_owned()),
            (Ok(spots), true) => spots.beginning.map(|spot| spot.at),
            (Ok(_), false) => self.entry_position(),
        };
        if self.hides() && self.code.takes_arguments() {
            return Err(TAKES_ARGUMENTS.to_owned());
        }
        if let Some(reason) = self.leaves_unnoticed() {
            return Err(reason.to_owned());
        }
        let entry = entry.ok_or_else(none)?;
        let entry = self.group_at(self.view.instructions()[entry].ip())?;
        let returns = self
            .groups
            .iter()
            .filter(|group| group.purpose == Purpose::Ret)
            .map(|group| self.view.instructions()[group.span.range.start].ip());
        // The entry last: an op that has begun must find its end.
        Ok(returns.chain([entry]).collect())
    }

    /// What its ends are noticed by, if it is f0.
    #[must_use]
    pub fn end(&self) -> F0End {
        self.end
    }

    /// Gives up noticing the ends of f0 at its `ret`s. False when that had not been tried, or nothing else would do.
    pub fn hide_returns(&mut self) -> bool {
        let must_be = self.is_left || self.is_of_goroutines();
        let patched = self.end == F0End::PatchedReturns && !must_be;
        if patched {
            self.end = F0End::HiddenReturn;
            self.divide();
        }
        patched
    }

    /// Has f0 end where it jumps through a pointer, too. False when it did before.
    pub fn end_by_leaving(&mut self) -> bool {
        if self.is_left {
            return false;
        }
        self.is_left = true;
        self.end = F0End::PatchedReturns;
        self.divide();
        if !self.returns_plainly() || self.misses_ends() {
            self.end = F0End::HiddenReturn;
            self.divide();
        }
        true
    }

    /// Why not all of its ends are noticed, if it ends where it jumps away, too.
    pub(super) fn leaves_unnoticed(&self) -> Option<&'static str> {
        if !self.is_left {
            None
        } else if self.leaves_untold() {
            Some("not all places where it ends can be told")
        } else if self.misses_ends() {
            Some("at one of the places where it ends there is no room for a jump")
        } else {
            None
        }
    }

    /// Whether f0 ends at an instruction.
    pub(super) fn ends_at(&self, instruction: &Instruction) -> bool {
        let call = self.calls.get(&instruction.ip());
        let returns = self.end == F0End::PatchedReturns && is_return(instruction);
        returns || call.is_some_and(|call| self.leaves_by(call))
    }

    /// Whether a site is none, but an end of f0. What it jumps to by its name is a function that returns to f0's caller.
    pub(super) fn leaves_by(&self, call: &CallSite) -> bool {
        let SiteKind::TailJump {
            target: Target::Indirect(operand),
            ..
        } = call.kind
        else {
            return false;
        };
        self.is_left && may_be_first_word(operand)
    }

    /// Whether its calls' ends are noticed by hidden return addresses.
    #[must_use]
    pub fn hides(&self) -> bool {
        self.part == Part::F0 && self.end == F0End::HiddenReturn
    }

    /// Whether each call of it ends at one of its `ret`s.
    pub(super) fn returns_plainly(&self) -> bool {
        let instructions = self.view.instructions();
        let entry = self.code.entry();
        let Some(first) = self.view.entry() else {
            return false;
        };
        // A jump to the entry is no new call, which only a hidden return address tells. The same
        // holds for what leaves by a jump: it returns elsewhere.
        !self.leaves_untold()
            && !self.view.is_target(entry)
            && !self.view.is_target(instructions[first].ip())
            && instructions.iter().all(|i| !i.is_invalid())
            && instructions.iter().any(is_return)
            && !self
                .calls
                .values()
                .any(|call| matches!(call.kind, SiteKind::TailJump { .. }) && !self.leaves_by(call))
    }

    /// Whether it may leave otherwise than is known: to a part of it that is not, too. What a subroutine inside returns to it may have
    /// written itself.
    pub(super) fn leaves_untold(&self) -> bool {
        let leaves = |skipped: &SkippedSite| {
            matches!(
                skipped.reason,
                SkipReason::MissingPart
                    | SkipReason::UnknownFrame
                    | SkipReason::CounterJump
                    | SkipReason::LocalCall
            )
        };
        self.view.sites().skipped.iter().any(leaves)
    }

    /// The position at which control is diverted for its entry, outside of programs of goroutines.
    pub(super) fn entry_position(&self) -> Option<usize> {
        let behind = self.view.behind_first().map(|(behind, _)| behind);
        behind.or_else(|| self.view.entry())
    }

    /// By how much the first instruction has lowered the stack pointer, where a group begins behind it.
    pub(super) fn lowered(&self, group: &Group) -> Option<i32> {
        if group.purpose != Purpose::Entry {
            return None;
        }
        let (behind, lowered) = self.view.behind_first()?;
        (group.span.range.start == behind).then_some(lowered)
    }

    /// Whether one of the instructions at which f0 ends would not be noticed.
    pub(super) fn misses_ends(&self) -> bool {
        let ends = self.view.instructions().iter();
        let returns = ends.filter(|i| self.ends_at(i));
        let mut addresses = returns.map(Instruction::ip);
        addresses.any(|addr| self.refused.contains_key(&addr))
    }

    /// The bytes before it that are copied with it.
    #[must_use]
    pub fn bytes_before(&self, at: u64) -> Vec<u8> {
        let group = self.group(at).filter(|group| self.lowered(group).is_some());
        let first = group.and_then(|group| {
            let first = &self.view.instructions()[group.span.range.start - 1];
            self.code.bytes_at(first.ip(), first.len())
        });
        first.unwrap_or_default().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use darc_disasm::{FunctionCode, NoMemory};

    use super::super::super::stubs::Item;
    use super::super::super::tree::Tree;
    use super::super::Landings;
    use super::*;

    /// Where control is diverted for the entry of an f0, as an offset, and by how much the stack was lowered there.
    fn begins(bytes: &[u8]) -> (u64, Option<i32>) {
        const BASE: u64 = 0x1000;
        let part = darc_disasm::CodePart {
            start: BASE,
            bytes: bytes.to_vec(),
        };
        let code = Arc::new(FunctionCode::new(vec![part]).unwrap());
        let function = Function::new(code, Part::F0, Landings::Noticed, &NoMemory);
        let at = *function.entry_groups().unwrap().last().unwrap();
        let lowered = function.lowered(function.group(at).unwrap());
        (at - BASE, lowered)
    }

    #[test]
    fn an_f0_begins_behind_what_only_lowers_the_stack() {
        // push rbp; mov rbp,rsp; push r15; ...; pop r15; pop rbp; ret
        let pushes = b"\x55\x48\x89\xe5\x41\x57\x41\x5f\x5d\xc3";
        assert_eq!(begins(pushes), (1, Some(8)));
        // sub rsp,0x18; mov [rsp],rdi; lea rax,[rdi+8]; add rsp,0x18; ret
        let frame = b"\x48\x83\xec\x18\x48\x89\x3c\x24\x48\x8d\x47\x08\x48\x83\xc4\x18\xc3";
        assert_eq!(begins(frame), (4, Some(0x18)));
        // mov rax,rdi; lea rax,[rax+8]; ret
        assert_eq!(begins(b"\x48\x89\xf8\x48\x8d\x40\x08\xc3"), (0, None));
        // push rbx; lea rdi,[rdi-1]; test rdi,rdi; jne to the lea; pop rbx; ret: a loop begins there
        let in_loop = b"\x53\x48\x8d\x7f\xff\x48\x85\xff\x75\xf7\x5b\xc3";
        assert_eq!(begins(in_loop).1, None);
        // push rbx; ret: there is no room behind it
        assert_eq!(begins(b"\x53\x5b\xc3").1, None);
    }

    /// movzwl 0x24(%rdi),%eax; test %eax,%eax; je to the last; then these; mov $6,%ecx; ret.
    fn resumed(middle: &[u8]) -> Function {
        let mut bytes = vec![0x0f, 0xb7, 0x47, 0x24, 0x85, 0xc0, 0x0f, 0x84];
        bytes.extend((middle.len() as u32).to_le_bytes());
        bytes.extend(middle);
        bytes.extend([0xb9, 6, 0, 0, 0, 0xc3]);
        let part = darc_disasm::CodePart {
            start: 0x1000,
            bytes,
        };
        let code = Arc::new(FunctionCode::new(vec![part]).unwrap());
        Function::new(code, Part::F0, Landings::Noticed, &NoMemory)
    }

    #[test]
    fn f0_may_end_where_it_jumps_away() {
        // mov (%rdi),%rax; mov %rdi,%rdx; jmp *%rax
        let mut function = resumed(&[0x48, 0x8b, 0x07, 0x48, 0x89, 0xfa, 0xff, 0xe0]);
        assert!(function.hides());
        assert!(function.end_by_leaving());
        assert!(!function.end_by_leaving());
        assert!(!function.hides());
        let groups = function.entry_groups().unwrap();
        assert_eq!(groups.len(), 3, "{groups:x?}");
        let mut tree = Tree::new(0);
        for &at in &groups[..2] {
            let (region, purpose) = function.region(at, &mut tree).unwrap();
            assert_eq!(purpose, Purpose::Ret);
            assert!(matches!(region.items.last(), Some(Item::Ret(_))));
        }
    }

    /// It returns to f0's caller in f0's place.
    #[test]
    fn what_f0_jumps_to_by_name_is_a_part_of_the_op() {
        // je to elsewhere; mov (%rdi),%rax; mov %rdi,%rdx; jmp *%rax
        let middle = b"\x0f\x84\0\x10\0\0\x48\x8b\x07\x48\x89\xfa\xff\xe0";
        let mut function = resumed(middle);
        assert!(function.end_by_leaving());
        assert!(function.hides());
        let groups = function.entry_groups().unwrap();
        assert_eq!(groups.len(), 2, "{groups:x?}");
        let (region, purpose) = function.region(groups[0], &mut Tree::new(0)).unwrap();
        assert_eq!(purpose, Purpose::Ret);
        assert!(matches!(region.items.last(), Some(Item::Ret(_))));
    }

    /// Whatever else makes it be divided anew.
    #[test]
    fn f0_that_may_leave_unnoticed_is_none() {
        // jrcxz to elsewhere
        let mut function = resumed(&[0xe3, 0x70, 0x48, 0x89, 0xfa]);
        assert!(function.end_by_leaving());
        function.divide();
        assert!(function.entry_groups().is_err());
        assert!(!function.hide_returns());
        assert!(function.entry_groups().is_err());
    }
}
