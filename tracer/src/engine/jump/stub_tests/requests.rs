//! Requests that are handed over, what pointers lead to, and ops of the second ftree.

use super::super::ops::{HandsOver, OpsOf};
use super::*;
use darc_record::Chain;
use darc_record::FnodeId;

impl Arena {
    fn region(&self, entry: u64, displaced: usize) -> Region {
        Region {
            items: self
                .instructions(entry, displaced)
                .into_iter()
                .map(Item::Plain)
                .collect(),
            next: entry + displaced as u64,
            arrival: stubs::Arrival::Jump,
        }
    }

    pub(super) fn patch_ops(&mut self, entry: u64, displaced: usize, ops: &Ops) {
        let region = self.region(entry, displaced);
        let root = self.descriptor_at(ops.tree.root().0.into());
        self.patch(entry, displaced, |at, around, runtime| {
            let f0 = stubs::F0 {
                end: F0End::HiddenReturn,
                ops,
                root,
                flags: Flags::Matter,
            };
            stubs::f0(at, &region, f0, around, runtime).unwrap()
        });
    }
}

/// The word at the end of the chain that a record has.
fn read(record: &[u64]) -> Option<u64> {
    let well = record[(record::READ_WELL / 8) as usize] as u32 == 1;
    well.then(|| record[(record::READ / 8) as usize])
}

#[test]
fn a_request_is_recorded_inside_an_op_only_and_a_bad_pointer_is_survived() {
    let word = Box::leak(Box::new([0_u64, 4711]));
    let good = word.as_ptr() as u64;
    for (pointer, expected) in [(good, Some(4711)), (0x10, None), (u64::MAX - 9, None)] {
        for inside in [true, false] {
            let mut arena = Arena::new();
            let child = callee(&mut arena);
            let p = program(&mut arena, 12, |a| {
                a.mov(rdi, pointer).unwrap();
                a.call(child).unwrap();
            });
            let region = arena.region(child, 8);
            let chain = Chain {
                argument: 0,
                offsets: vec![8],
            };
            compare(&mut arena, p.f0, |arena| {
                if inside {
                    arena.patch_f0(p.f0, 5, F0End::HiddenReturn);
                }
                arena.patch(child, 8, |at, around, runtime| {
                    stubs::enqueue(at, &region, Some(&chain), around, runtime).unwrap()
                });
            });
            let records = arena.ops();
            let requests: Vec<_> = records
                .iter()
                .filter(|record| record[0] >> 32 == record::ENQUEUED.into())
                .collect();
            assert_eq!(requests.len() as u64, if inside { OPS } else { 0 });
            for request in requests {
                assert_eq!(read(request), expected);
                assert_eq!(request[(record::ARGUMENTS / 8) as usize], pointer);
                assert_eq!(
                    request[(record::FNODE / 8) as usize],
                    arena.descriptor_at(1)
                );
            }
        }
    }
}

#[test]
fn f0_that_enqueues_records_the_request_before_its_op_begins() {
    let word = Box::leak(Box::new([17_u64, 4711]));
    let good = word.as_ptr() as u64;
    for (pointer, words) in [(good, [Some(4711), Some(17)]), (0x10, [None, None])] {
        let mut arena = Arena::new();
        let child = callee(&mut arena);
        let p = program(&mut arena, 5, |a| a.call(child).unwrap());
        let outer = arena.assemble(|a| {
            a.mov(rdi, pointer).unwrap();
            a.jmp(p.f0).unwrap();
        });
        let chain = |offset| Chain {
            argument: 0,
            offsets: vec![offset],
        };
        let ops = Ops {
            hands_over: HandsOver::Itself(Some(chain(8))),
            chain: Some(chain(0)),
            ..Ops::default()
        };
        compare(&mut arena, outer, |arena| arena.patch_ops(p.f0, 5, &ops));
        let records = arena.ops();
        assert_eq!(records.len() as u64, 2 * OPS);
        let at = |record: &[u64], field: u64| record[(field / 8) as usize];
        for pair in records.chunks(2) {
            let [request, op] = pair else { unreachable!() };
            assert_eq!(request[0] >> 32, record::ENQUEUED.into());
            assert_eq!(op[0] >> 32, record::OP.into());
            assert!(at(request, record::START) <= at(op, record::START));
            assert_eq!(at(request, record::FNODE), arena.descriptor_at(1));
            for word in (0..48).step_by(8) {
                let argument = record::ARGUMENTS + word;
                assert_eq!(at(request, argument), at(op, argument));
            }
            assert_eq!([read(request), read(op)], words);
        }
    }
}

#[test]
fn ops_of_the_second_ftree_have_its_root_and_pass_every_filter() {
    let mut arena = Arena::new();
    let child = callee(&mut arena);
    let p = program(&mut arena, 5, |a| a.call(child).unwrap());
    arena.filter(&[(u64::MAX - 1, u64::MAX, ring::BUDGETS)]);
    let ops = Ops {
        tree: OpsOf::Serving(FnodeId(7)),
        chain: Some(Chain {
            argument: 0,
            offsets: vec![0],
        }),
        ..Ops::default()
    };
    compare(&mut arena, p.f0, |arena| arena.patch_ops(p.f0, 5, &ops));
    let records = arena.ops();
    assert_eq!(records.len() as u64, OPS);
    for record in records {
        assert_eq!(record[(record::FNODE / 8) as usize], arena.descriptor_at(7));
        assert_eq!(read(&record), None);
    }
    check_histogram(&arena, 0);
}

/// The field is 3 when f0 is called, and 5 when its callee has returned.
#[test]
fn a_field_is_noted_when_an_op_begins_and_when_it_ends() {
    let place = Box::leak(Box::new([0_u64; 2]));
    let place = place.as_mut_ptr() as u64;
    for (size, mask) in [(1, 0xff), (2, 0xffff), (4, u32::MAX)] {
        for end in [F0End::HiddenReturn, F0End::PatchedReturns] {
            let mut arena = Arena::new();
            arena.around.field = Some(darc_record::Field {
                argument: 0,
                offset: 5,
                size,
                second: darc_record::Second::AtEnd,
            });
            let writes = arena.assemble(|a| {
                a.mov(rdx, place).unwrap();
                a.mov(dword_ptr(rdx + 5), 0x7654_3205).unwrap();
                a.ret().unwrap();
            });
            let p = program(&mut arena, 5, |a| a.call(writes).unwrap());
            let outer = arena.assemble(|a| {
                a.mov(rdi, place).unwrap();
                a.mov(dword_ptr(rdi + 5), 0x7654_3203).unwrap();
                a.jmp(p.f0).unwrap();
            });
            let tail = arena.instructions(p.after, 10);
            compare(&mut arena, outer, |arena| {
                arena.patch_f0(p.f0, 5, end);
                if end == F0End::PatchedReturns {
                    arena.patch_region(p.after + 3, 7, &tail[1..3], Item::Ret(tail[3]));
                }
            });
            let records = arena.ops();
            assert_eq!(records.len() as u64, OPS);
            for record in records {
                let field = record[(record::FIELD / 8) as usize];
                let noted = (field as u32, (field >> 32) as u32);
                assert_eq!(noted, (0x7654_3203 & mask, 0x7654_3205 & mask), "{end:?}");
            }
        }
    }
}

/// As for coroutines, one of which goes on in another at its end: f0 jumps to what calls it again, once.
#[test]
fn a_jump_out_of_f0_ends_the_op_and_nothing_is_read_there() {
    let place = Box::leak(Box::new([0_u64; 64]));
    let place = place.as_mut_ptr() as u64;
    for (is_direct, noticed) in [
        (true, F0End::PatchedReturns),
        (false, F0End::PatchedReturns),
        (true, F0End::HiddenReturn),
        (false, F0End::HiddenReturn),
    ] {
        let mut arena = Arena::new();
        arena.around.field = Some(HEAD);
        let writes = arena.assemble(|a| {
            a.mov(rdx, place).unwrap();
            a.mov(dword_ptr(rdx), 0x1111_1111).unwrap();
            a.mov(word_ptr(rdx + 0x24), 8).unwrap();
            a.ret().unwrap();
        });
        let again = arena.assemble(|a| {
            let mut over = a.create_label();
            a.xor(dword_ptr(rdx + 16), 1).unwrap();
            a.je(over).unwrap();
            a.mov(dword_ptr(rdx), 0x7654_3210).unwrap();
            a.mov(word_ptr(rdx + 0x24), 6).unwrap();
            a.jmp(qword_ptr(rdx + 24)).unwrap();
            a.set_label(&mut over).unwrap();
            a.ret().unwrap();
        });
        // Too far for a short jump.
        arena.place(&[0x90; 256]);
        let f0 = arena.assemble(|a| {
            a.push(rbx).unwrap();
            a.lea(rbx, qword_ptr(rdi + 3)).unwrap();
            a.call(writes).unwrap();
            a.pop(rbx).unwrap();
            match is_direct {
                true => a.jmp(again).unwrap(),
                false => a.jmp(qword_ptr(rdi + 0x100)).unwrap(),
            }
            a.nop().unwrap();
        });
        set(place + 24, f0);
        set(place + 0x100, again);
        let outer = arena.assemble(|a| {
            a.mov(rdi, place).unwrap();
            a.mov(dword_ptr(rdi), 0x7654_3210).unwrap();
            a.mov(word_ptr(rdi + 0x24), 4).unwrap();
            a.jmp(f0).unwrap();
        });
        let end = arena.instructions(f0 + 10, 8);
        compare(&mut arena, outer, |arena| {
            arena.patch_f0(f0, 5, noticed);
            let len = end[..2].iter().map(Instruction::len).sum();
            arena.patch_region(f0 + 10, len, &end[..1], Item::Ret(end[1]));
        });
        let records = arena.ops();
        assert_eq!(records.len() as u64, 2 * OPS);
        for (record, index) in records.iter().zip([4, 6].into_iter().cycle()) {
            let field = record[(record::FIELD / 8) as usize];
            assert_eq!((field as u32, field >> 32), (index, 0x7654_3210));
        }
        assert_eq!(arena.block(block::TOP), arena.block(block::BASE));
        assert_eq!(word(arena.rings + ring::ENDED_OTHERWISE), 0);
    }
}

/// Where a coroutine's number is, for these tests.
const HEAD: darc_record::Field = darc_record::Field {
    argument: 0,
    offset: 0x24,
    size: 2,
    second: darc_record::Second::Head { new: 2 },
};

/// It is not said where the same goes on in it: with the same argument, and an even number that is none of a beginning.
#[test]
fn an_op_within_which_f0_was_called_again_says_so() {
    let place = Box::leak(Box::new([0_u64; 64]));
    let place = place.as_mut_ptr() as u64;
    for (number, other, is_told) in [
        (4, 0, false),
        (4, 8, true),
        (5, 0, true),
        (2, 0, true),
        (0, 0, true),
    ] {
        let mut arena = Arena::new();
        arena.around.field = Some(HEAD);
        let inner = arena.assemble(|a| {
            let mut over = a.create_label();
            a.mov(rdx, place).unwrap();
            a.xor(dword_ptr(rdx + 16), 1).unwrap();
            a.je(over).unwrap();
            a.mov(word_ptr(rdi + 0x24), number).unwrap();
            a.push(rdi).unwrap();
            a.add(rdi, other).unwrap();
            a.call(qword_ptr(rdx + 24)).unwrap();
            a.pop(rdi).unwrap();
            a.set_label(&mut over).unwrap();
            a.ret().unwrap();
        });
        let p = program(&mut arena, 5, |a| a.call(inner).unwrap());
        set(place + 24, p.f0);
        let outer = arena.assemble(|a| {
            a.mov(rdi, place).unwrap();
            a.mov(word_ptr(rdi + 0x24), 4).unwrap();
            a.jmp(p.f0).unwrap();
        });
        let tail = arena.instructions(p.after, 10);
        compare(&mut arena, outer, |arena| {
            arena.patch_f0(p.f0, 5, F0End::PatchedReturns);
            arena.patch_region(p.after + 3, 7, &tail[1..3], Item::Ret(tail[3]));
        });
        let records = arena.ops();
        assert_eq!(records.len() as u64, OPS);
        for record in records {
            let field = record[(record::FIELD / 8) as usize];
            let second = (field >> 32) as u32;
            assert_eq!(field as u32, 4);
            assert_eq!(
                second == darc_record::Field::NESTED,
                is_told,
                "{number} {other}"
            );
        }
        assert_eq!(arena.block(block::TOP), arena.block(block::BASE));
    }
}
