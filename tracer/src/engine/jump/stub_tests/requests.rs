//! Requests that are handed over, what pointers lead to, and ops of the second ftree.

use super::super::ops::OpsOf;
use super::*;
use crate::plan::Chain;
use crate::record::FnodeId;

impl Arena {
    fn region(&self, entry: u64, displaced: usize) -> Region {
        Region {
            items: self
                .instructions(entry, displaced)
                .into_iter()
                .map(Item::Plain)
                .collect(),
            next: entry + displaced as u64,
        }
    }

    fn patch_ops(&mut self, entry: u64, displaced: usize, ops: &Ops) {
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
