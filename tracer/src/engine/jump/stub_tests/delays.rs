//! Calls that are delayed, and those that are not.

use darc_record::FnodeId;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};

use super::*;
use crate::engine::jump::asm::Delaying;
use crate::engine::jump::ops::OpsOf;

#[test]
fn a_call_is_delayed_as_long_as_somebody_wants_it() {
    const DELAY: u64 = 3_000_000;
    let slept = Delaying::sleeping(darc_record::Hz::new(2_400_000_000).unwrap());
    // What the function pushes, and the return address.
    let (near, far) = (Some(48), Some(56));
    for (delaying, until, distance, delayed) in [
        (Delaying::Spinning, 0, None, false),
        (Delaying::Spinning, u64::MAX, None, true),
        (Delaying::Spinning, u64::MAX, near, true),
        // What is further away is called by a signal handler.
        (Delaying::Spinning, u64::MAX, far, false),
        (slept, 0, None, false),
        (slept, u64::MAX, near, true),
        (slept, u64::MAX, far, false),
    ] {
        let mut arena = Arena::new();
        arena.around.delays = Some(delaying);
        let child = callee(&mut arena);
        let p = program(&mut arena, 5, |a| a.call(child).unwrap());
        arena.expand(1, 5, arena.descriptor_at(2));
        let patch = |arena: &mut Arena| {
            arena.patch_f0(p.f0, 5, F0End::HiddenReturn);
            let mut site = call_site(Kind::Call(Callee::Direct(child)), p.after);
            site.distance = distance;
            arena.patch_site(p.site, 5, &site);
        };
        set(arena.descriptor_at(2) + descriptor::UNTIL, until);
        set(arena.descriptor_at(2) + descriptor::DELAY, DELAY);
        compare(&mut arena, p.f0, patch);
        // How long it was delayed, and the call.
        let is_near = distance != far;
        check_ops(&arena, if is_near { &[node::DELAYS, 2] } else { &[2] });
        for op in arena.ops() {
            let sums = op[FIRST_ITEM..].chunks(5).map(|item| item[2]);
            for sum in sums {
                assert!(
                    delayed == (sum >= DELAY),
                    "{delaying:?} {until} {distance:?}: {sum}"
                );
            }
        }
    }
}

/// Where calls of an fnode are delayed.
fn arena_with_delays(fnode: u64) -> Arena {
    let mut arena = Arena::new();
    arena.around.delays = Some(Delaying::Spinning);
    set(arena.descriptor_at(fnode) + descriptor::UNTIL, u64::MAX);
    set(arena.descriptor_at(fnode) + descriptor::DELAY, 100_000);
    arena
}

/// f0 calls `middle`, that calls `end`, of which the calls are delayed; how far below its caller's each is said to be.
fn delayed_at_the_end(distances: [Option<i32>; 2]) -> Arena {
    let mut arena = arena_with_delays(3);
    let end = callee(&mut arena);
    let middle = arena.assemble(|a| {
        a.push(rdi).unwrap();
        a.call(end).unwrap();
        a.pop(rdi).unwrap();
        a.ret().unwrap();
    });
    let inner = middle + 1;
    let p = program(&mut arena, 5, |a| a.call(middle).unwrap());
    arena.expand(1, 5, arena.descriptor_at(2));
    arena.expand(2, 6, arena.descriptor_at(3));
    compare(&mut arena, p.f0, |arena| {
        arena.patch_f0(p.f0, 5, F0End::HiddenReturn);
        let mut outer = call_site(Kind::Call(Callee::Direct(middle)), p.after);
        outer.distance = distances[0];
        arena.patch_site(p.site, 5, &outer);
        let mut site = call_site(Kind::Call(Callee::Direct(end)), inner + 5);
        (site.function, site.distance) = (6, distances[1]);
        arena.patch_site(inner, 5, &site);
    });
    arena
}

fn are_delayed(arena: &Arena) -> bool {
    let ops = arena.ops();
    assert_eq!(ops.len() as u64, OPS);
    let is_delayed = |op: &Vec<u64>| {
        let mut items = op[FIRST_ITEM..].chunks(5);
        items.any(|item| node_of(item[0]) == block::NODES + node::DELAYS * node::SIZE)
    };
    let delayed = ops.iter().filter(|op| is_delayed(op)).count();
    assert!([0, ops.len()].contains(&delayed), "{delayed}");
    delayed > 0
}

/// A handler may call what has calls of its own on the path: then only the first of them is in the wrong place.
#[test]
fn what_a_handler_calls_by_others_is_not_delayed() {
    let (outer, inner) = (48, 16);
    for (distances, delayed) in [
        ([Some(outer), Some(inner)], true),
        ([Some(outer + 8), Some(inner)], false),
        ([Some(outer), Some(inner + 8)], false),
    ] {
        let arena = delayed_at_the_end(distances);
        assert_eq!(are_delayed(&arena), delayed, "{distances:?}");
    }
}

/// Does something while SIGUSR1 is blocked, as in its handler.
fn with_a_signal_blocked<T>(act: impl FnOnce() -> T) -> T {
    let mut set = SigSet::empty();
    set.add(Signal::SIGUSR1);
    let before = set.thread_swap_mask(SigmaskHow::SIG_BLOCK);
    let done = act();
    before.unwrap().thread_set_mask().unwrap();
    done
}

/// The bit of SIGUSR1 among the signals that a program handles.
const HANDLED: u64 = 1 << (libc::SIGUSR1 - 1);

#[test]
fn where_frames_do_not_tell_a_blocked_signal_does() {
    let served = Ops {
        tree: OpsOf::Serving(FnodeId(2)),
        ..Ops::default()
    };
    for (handled, blocked, delayed) in [
        (HANDLED, false, true),
        (HANDLED, true, false),
        // Nobody is in a handler of a signal that has none.
        (!HANDLED, true, true),
    ] {
        for ops in [Ops::default(), served.clone()] {
            let run = || {
                let mut arena = arena_with_delays(2);
                set(arena.control + HEADER + header::HANDLED, handled);
                let child = callee(&mut arena);
                let p = program(&mut arena, 5, |a| a.call(child).unwrap());
                arena.expand(1, 5, arena.descriptor_at(2));
                compare(&mut arena, p.f0, |arena| {
                    arena.patch_ops(p.f0, 5, &ops);
                    let site = call_site(Kind::Call(Callee::Direct(child)), p.after);
                    arena.patch_site(p.site, 5, &site);
                });
                are_delayed(&arena)
            };
            let was = match blocked {
                true => with_a_signal_blocked(run),
                false => run(),
            };
            assert_eq!(was, delayed, "{handled:#x} {blocked} {ops:?}");
        }
    }
}

/// Of the same function called by another path nothing is delayed.
#[test]
fn only_calls_of_one_path_are_delayed() {
    for (fnode, delayed) in [(2, true), (3, false)] {
        let mut arena = arena_with_delays(2);
        let child = callee(&mut arena);
        let p = program(&mut arena, 5, |a| a.call(child).unwrap());
        arena.expand(1, 5, arena.descriptor_at(fnode));
        compare(&mut arena, p.f0, |arena| {
            arena.patch_f0(p.f0, 5, F0End::HiddenReturn);
            let site = call_site(Kind::Call(Callee::Direct(child)), p.after);
            arena.patch_site(p.site, 5, &site);
        });
        assert_eq!(are_delayed(&arena), delayed, "{fnode}");
    }
}

#[test]
fn who_sleeps_wakes_when_nothing_is_to_be_delayed_any_more() {
    const DELAY: u64 = 1_000_000_000;
    const WANTED: u64 = 50_000_000;
    let mut arena = Arena::new();
    let clock = darc_record::Hz::new(2_400_000_000).unwrap();
    arena.around.delays = Some(Delaying::sleeping(clock));
    let child = callee(&mut arena);
    let p = program(&mut arena, 5, |a| a.call(child).unwrap());
    arena.expand(1, 5, arena.descriptor_at(2));
    arena.patch_f0(p.f0, 5, F0End::HiddenReturn);
    let site = call_site(Kind::Call(Callee::Direct(child)), p.after);
    arena.patch_site(p.site, 5, &site);
    set(arena.descriptor_at(2) + descriptor::DELAY, DELAY);
    let run = trampoline(&mut arena, p.f0);
    let until = crate::tsc().0 + WANTED;
    set(arena.descriptor_at(2) + descriptor::UNTIL, until);
    run(&mut State::arbitrary(0x202));
    let op = arena.ops().pop().unwrap();
    let delayed = op[FIRST_ITEM + 2];
    assert!((1..DELAY / 2).contains(&delayed), "{delayed}");
}
