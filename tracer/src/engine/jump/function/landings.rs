//! Where it is noticed that measured calls return: at the program's own return addresses, where there is room for a jump.
//! Elsewhere their return address is hidden.

use darc_disasm::{CallSite, Gpr, Operand, SiteKind, Target};

use super::super::layout::journal;
use super::{Function, Group, Landings, Purpose, goroutines};

/// The fewest bytes for a landing: where a punned jump of fewer leads there is hardly ever another.
const SHORTEST: u64 = 2;

impl Function {
    /// Makes groups where calls return to, out of what the other groups leave or together with them.
    pub(super) fn divide_landings(&mut self) {
        self.landings.clear();
        self.unreturning.clear();
        if self.noticed == Landings::Left {
            return;
        }
        let sites = self.view.sites().sites.clone();
        for call in &sites {
            if !self.may_land(call) {
                continue;
            }
            let Some(landing) = self.view.position(call.next()) else {
                // What is called last does not return where nothing of the function is behind it: an exception goes on there.
                if self.view.ends_at(call.next()) {
                    self.unreturning.insert(call.addr);
                }
                continue;
            };
            if self.is_of_goroutines() && !self.is_fit_for_goroutines(landing) {
                continue;
            }
            if self.view.is_trap(landing) {
                self.unreturning.insert(call.addr);
            } else if !self.view.is_in_loop_without_call(call.next()) && self.add_landing(landing) {
                // A loop would come by the stub in each round.
                self.landings.insert(call.next(), call.addr);
            }
        }
    }

    /// Whether a call can be made with its return address on the stack already, and return to it.
    fn may_land(&self, call: &CallSite) -> bool {
        let SiteKind::Call(target) = call.kind else {
            return false;
        };
        // It would read its callee from where the return address is.
        let below_stack = match target {
            Target::Indirect(Operand::Memory(memory)) => {
                memory.base == Some(Gpr::Rsp) && memory.displacement < 0
            }
            _ => false,
        };
        !below_stack
            && !self.refused.contains_key(&call.addr)
            && !self.unnoticed.contains(&call.addr)
    }

    /// Whether the instruction that a call returns to can run in a stub of goroutines: a call is made there as any other is.
    fn is_fit_for_goroutines(&self, landing: usize) -> bool {
        let instruction = &self.view.instructions()[landing];
        let call = self.calls.get(&instruction.ip());
        let measured = call.is_some_and(|call| !self.refused.contains_key(&call.addr));
        measured || goroutines::is_harmless(instruction) || goroutines::is_jump(instruction)
    }

    /// Makes a group that begins at a position. False when there is no room.
    fn add_landing(&mut self, at: usize) -> bool {
        let Ok(mut span) = self.view.span(at, None) else {
            return false;
        };
        let mut purpose = Purpose::Sites;
        let first = self
            .groups
            .partition_point(|group| group.span.range.end <= at);
        let mut behind = first;
        while let Some(group) = self.groups.get(behind)
            && group.span.range.start < span.range.end
        {
            span = span.with(&group.span);
            purpose = purpose.max(group.purpose);
            behind += 1;
        }
        let len = self.view.len(&span);
        let fits = (SHORTEST..=journal::MAX_LEN as u64).contains(&len);
        if span.range.start != at || !fits || !self.view.is_displaceable(&span) {
            return false;
        }
        self.groups.splice(first..behind, [Group { span, purpose }]);
        true
    }

    /// Gives up noticing where a call returns to. False when that had not been tried.
    pub fn leave_landing(&mut self, call: &CallSite) -> bool {
        let noticed = self.lands(call) && !self.is_of_goroutines();
        if noticed {
            self.unnoticed.insert(call.addr);
            self.divide();
        }
        noticed
    }

    /// Whether it is noticed where a call returns to.
    pub(super) fn lands(&self, call: &CallSite) -> bool {
        self.landings.get(&call.next()) == Some(&call.addr)
    }

    /// Whether a measured call has the program's own return address.
    pub(super) fn hides_nothing(&self, call: &CallSite) -> bool {
        self.lands(call) || self.unreturning.contains(&call.addr)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use darc_disasm::{CodePart, FunctionCode, NoMemory};
    use proptest::prelude::*;

    use super::super::super::function::{Hiding, Part};
    use super::super::super::spans::tests::any_code;
    use super::super::super::spans::{Span, is_call};
    use super::*;

    const BASE: u64 = 0x1000;

    fn function(bytes: &[u8], part: Part, landings: Landings) -> Function {
        let code = CodePart {
            start: BASE,
            bytes: bytes.to_vec(),
        };
        let code = FunctionCode::new(vec![code]).unwrap();
        Function::new(Arc::new(code), part, landings, &NoMemory)
    }

    #[test]
    fn behind_what_never_returns_in_go_all_registers_are_left_alone() {
        // call; mov %r12, %rax; ret
        let bytes = b"\xe8\xfb\x0f\x00\x00\x4c\x89\xe0\xc3";
        let landings = Landings::OfGoroutines {
            is_compiled: true,
            kept: -8,
        };
        let mut function = function(bytes, Part::Callee, landings);
        let call = function.sites().sites[0];
        assert_eq!(
            function.groups_of_site(&call, Hiding::Allowed),
            Ok(vec![BASE + 5, BASE])
        );
        function.expect_no_return(&call);
        assert_eq!(
            function.groups_of_site(&call, Hiding::Allowed),
            Ok(vec![BASE])
        );
    }

    /// Where calls return to, as offsets, with the lengths of the groups there.
    fn landings(bytes: &[u8]) -> Vec<(u64, u64)> {
        let function = function(bytes, Part::Callee, Landings::Noticed);
        let of = |group: &Group| {
            let start = function.view.instructions()[group.span.range.start].ip();
            let lands = function.landings.contains_key(&start);
            lands.then(|| (start - BASE, function.view.len(&group.span)))
        };
        function.groups.iter().filter_map(of).collect()
    }

    #[test]
    fn a_landing_takes_what_is_behind_the_call() {
        // call far; mov %rax,%rbx; mov %rbx,%rdi; ret
        let bytes = [0xe8, 0, 1, 0, 0, 0x48, 0x89, 0xc3, 0x48, 0x89, 0xdf, 0xc3];
        assert_eq!(landings(&bytes), [(5, 7)]);
        // call far; call far; the second one returns to nothing that there is room at
        assert_eq!(
            landings(&[0xe8, 0, 1, 0, 0, 0xe8, 0, 1, 0, 0, 0xc3]),
            [(5, 5)]
        );
        // call far; mov %rbx,%rdi; call *%rax; ret: together with the next call
        let bytes = [0xe8, 0, 1, 0, 0, 0x48, 0x89, 0xdf, 0xff, 0xd0, 0xc3];
        assert_eq!(landings(&bytes), [(5, 5)]);
    }

    #[test]
    fn where_a_loop_leads_back_nothing_lands() {
        // call far; add $1,%rbx; nop; jmp to the add
        let bytes = [0xe8, 0, 1, 0, 0, 0x48, 0x83, 0xc3, 1, 0x90, 0xeb, 0xf9];
        assert_eq!(landings(&bytes), []);
        // The same, and the jump leads to the call.
        let bytes = [0xe8, 0, 1, 0, 0, 0x48, 0x83, 0xc3, 1, 0x90, 0xeb, 0xf4];
        assert_eq!(landings(&bytes), [(5, 5)]);
        // push; call far; add $1,%rbx; nop; ret; dec %rax; jmp to the add: what is out of the way comes back
        let bytes = [
            0x55, 0xe8, 0, 1, 0, 0, 0x48, 0x83, 0xc3, 1, 0x90, 0xc3, 0x48, 0xff, 0xc8, 0xeb, 0xf5,
        ];
        assert_eq!(landings(&bytes), [(6, 6)]);
        // je to the nop; call far; add $1,%rbx; nop; ret: something leads behind the add
        let bytes = [
            0x74, 0x09, 0xe8, 0, 1, 0, 0, 0x48, 0x83, 0xc3, 1, 0x90, 0xc3,
        ];
        assert_eq!(landings(&bytes), [(7, 4)]);
    }

    #[test]
    fn what_never_returns_needs_no_landing() {
        // push; call far; ud2
        let bytes = [0x50, 0xe8, 0, 1, 0, 0, 0x0f, 0x0b];
        assert_eq!(landings(&bytes), []);
        let of = |landings| {
            let function = function(&bytes, Part::Callee, landings);
            let call = function.sites().sites[0];
            assert_eq!(
                function.groups_of_site(&call, Hiding::Allowed),
                Ok(vec![BASE + 1])
            );
            function.hides_nothing(&call)
        };
        assert!(of(Landings::Noticed) && !of(Landings::Left));
        // push; call far
        let last = CodePart {
            start: BASE,
            bytes: bytes[..6].to_vec(),
        };
        let last = FunctionCode::new(vec![last]).unwrap();
        for ends in [vec![BASE + 6], Vec::new()] {
            let is_known = !ends.is_empty();
            let code = Arc::new(last.clone().with_ends(ends));
            let function = Function::new(code, Part::Callee, Landings::Noticed, &NoMemory);
            assert_eq!(function.hides_nothing(&function.sites().sites[0]), is_known);
        }
    }

    #[test]
    fn what_looks_at_its_return_address_is_measured_only_with_a_landing() {
        // call far; mov %rbx,%rdi; call *%rax; ret
        let bytes = [0xe8, 0, 1, 0, 0, 0x48, 0x89, 0xdf, 0xff, 0xd0, 0xc3];
        let mut with = function(&bytes, Part::Callee, Landings::Noticed);
        let call = with.sites().sites[0];
        let groups = Ok(vec![BASE + 5, BASE]);
        assert_eq!(with.groups_of_site(&call, Hiding::Forbidden), groups);
        assert!(with.leave_landing(&call));
        assert!(with.groups_of_site(&call, Hiding::Forbidden).is_err());
        let without = function(&bytes, Part::Callee, Landings::Left);
        assert!(without.groups_of_site(&call, Hiding::Forbidden).is_err());
        // jmp far
        let jump = function(&[0xe9, 0, 1, 0, 0], Part::Callee, Landings::Noticed);
        let call = jump.sites().sites[0];
        assert!(jump.groups_of_site(&call, Hiding::Forbidden).is_err());
    }

    #[test]
    fn a_landing_that_is_left_makes_room_again() {
        // call far; mov %rbx,%rdi; call *%rax; ret
        let bytes = [0xe8, 0, 1, 0, 0, 0x48, 0x89, 0xdf, 0xff, 0xd0, 0xc3];
        let mut with = function(&bytes, Part::Callee, Landings::Noticed);
        let call = with.sites().sites[0];
        assert_eq!(
            with.groups_of_site(&call, Hiding::Allowed),
            Ok(vec![BASE + 5, BASE])
        );
        assert!(with.leave_landing(&call));
        assert!(!with.leave_landing(&call));
        assert_eq!(with.groups_of_site(&call, Hiding::Allowed), Ok(vec![BASE]));
        let without = function(&bytes, Part::Callee, Landings::Left);
        assert_eq!(with.groups, without.groups);
    }

    /// What each of a function's groups replaces.
    fn spans(bytes: &[u8], part: Part, hides: bool) -> Vec<Span> {
        let mut function = function(bytes, part, Landings::Noticed);
        if hides {
            function.hide_returns();
        }
        let groups = function.groups.into_iter();
        groups.map(|group| group.span).collect()
    }

    /// A thread that is still in a stub of the callee goes on at the `ret`, which a jump for f0's end would be across.
    #[test]
    fn f0_is_divided_as_it_was_when_it_was_a_callee() {
        // push %rbx; call far; lea 1(%rbx),%rax; pop %rbx; ret
        let bytes = b"\x53\xe8\0\x01\0\0\x48\x8d\x43\x01\x5b\xc3";
        let callee = spans(bytes, Part::Callee, false);
        assert_eq!(callee, spans(bytes, Part::F0, false));
        assert_eq!(callee.last().map(|span| span.range.clone()), Some(2..5));
    }

    proptest! {
        #[test]
        fn each_part_is_divided_alike(bytes in any_code()) {
            let callee = spans(&bytes, Part::Callee, false);
            for (part, hides) in [(Part::Entered, false), (Part::F0, false), (Part::F0, true)] {
                prop_assert_eq!(&callee, &spans(&bytes, part, hides));
            }
        }

        /// Whatever the code: landings take no room from anything else, and a jump there is run from its beginning.
        #[test]
        fn landings_are_in_nobodys_way(
            bytes in any_code(),
            part in prop::sample::select(vec![Part::Callee, Part::F0]),
        ) {
            let with = function(&bytes, part, Landings::Noticed);
            let without = function(&bytes, part, Landings::Left);
            prop_assert_eq!(&with.refused, &without.refused);
            prop_assert_eq!(with.end(), without.end());
            for pair in with.groups.windows(2) {
                prop_assert!(pair[0].span.range.end <= pair[1].span.range.start);
            }
            for group in &without.groups {
                let range = &group.span.range;
                let kept = with.groups.iter().find(|kept| {
                    let kept = &kept.span.range;
                    kept.start <= range.start && range.end <= kept.end
                });
                prop_assert!(kept.is_some_and(|kept| kept.purpose >= group.purpose));
                let kept = &kept.unwrap().span;
                prop_assert!(with.view.len(kept) >= with.view.len(&group.span));
                let ends = (kept.range.end, kept.syscall_behind);
                prop_assert!(ends.0 > range.end || ends.1 == group.span.syscall_behind);
            }
            let all = with.view.instructions();
            for &landing in with.landings.keys() {
                let at = with.view.position(landing).unwrap();
                let group = with.groups.iter().find(|group| group.span.range.start == at).unwrap();
                prop_assert!(with.view.len(&group.span) >= SHORTEST);
                prop_assert!(with.view.bytes(&group.span).unwrap().1.len() <= journal::MAX_LEN);
                prop_assert!(with.view.is_displaceable(&group.span));
                let inside = &all[group.span.range.clone()];
                prop_assert!(inside[..inside.len() - 1].iter().all(|i| !is_call(i)));
            }
        }
    }
}
