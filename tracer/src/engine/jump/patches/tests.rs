use super::super::layout::BLOCKS;
use crate::maps;
use crate::remote_call::tests::{call_in, who_waits};
use crate::sys;

use super::*;

fn patch(at: u64) -> Patch {
    Patch {
        at,
        original: vec![1, 2, 3, 4, 5],
        before: Vec::new(),
        replacement: vec![0xe9, 0, 0x10, 0, 0],
        behind: Vec::new(),
        trampoline: None,
        moved: Vec::new(),
        next: 0,
        landings: Vec::new(),
    }
}

#[test]
fn the_journal_keeps_both_sides() {
    let patch = patch(0x1000);
    assert_eq!(patch.end(), 0x1005);
    assert_eq!(Patch::from_journal(&patch.to_journal()), Some(patch));
}

#[test]
fn what_is_copied_with_a_patch_stands_before_it() {
    // This process plays the target.
    let memory = Memory::open(std::process::id() as i32).unwrap();
    let text = vec![0x48_u8, 0x83, 0xec, 0x18, 1, 2, 3, 4, 5];
    let patch = |before: &[u8]| Patch {
        before: before.to_vec(),
        ..patch(text.as_ptr() as u64 + 4)
    };
    assert!(follows(&memory, &patch(&[])));
    assert!(follows(&memory, &patch(&[0x48, 0x83, 0xec, 0x18])));
    assert!(
        !follows(&memory, &patch(&[0x48, 0x83, 0xec, 0x28])),
        "rewritten"
    );
    let text = vec![INT3, 0x83, 0xec, 0x18, 1, 2, 3, 4, 5];
    let patch = Patch {
        before: vec![0x48, 0x83, 0xec, 0x18],
        ..self::patch(text.as_ptr() as u64 + 4)
    };
    assert!(follows(&memory, &patch), "somebody's breakpoint");
}

#[test]
fn what_one_of_two_pages_has_is_put_back() {
    // This process plays the target.
    let memory = Memory::open(std::process::id() as i32).unwrap();
    let space = vec![0_u8; 2 * sys::PAGE];
    let border = (space.as_ptr() as u64).next_multiple_of(sys::PAGE as u64);
    let patch = patch(border - 2);
    let [own, ours] = [&patch.original[..], &patch.replacement[..]];
    let others = [9; 3];
    for (first, second, is_ours) in [
        (ours, ours, true),
        (ours, own, true),
        (own, ours, true),
        (own, own, false),
        (ours, &others[..], false),
        (&others[..], own, false),
    ] {
        let second = &second[second.len() - 3..];
        let now = [&first[..2], second].concat();
        memory.write(TargetAddr(patch.at), &now).unwrap();
        restore(&memory, &patch, &mut Gap::default()).unwrap();
        assert_eq!(stands(&memory, patch.at, own), is_ours || now == own);
        assert!(is_ours || stands(&memory, patch.at, &now));
    }
    // As another tool leaves it that has put its one byte of the program's back.
    let now = [&own[..1], &ours[1..]].concat();
    memory.write(TargetAddr(patch.at), &now).unwrap();
    restore(&memory, &patch, &mut Gap::default()).unwrap();
    assert!(stands(&memory, patch.at, own));
    drop(space);
}

#[test]
fn what_others_have_written_stays() {
    let with_filler = Patch {
        original: vec![1, 2, 3, 4, 5, 6, 7],
        replacement: vec![0xe9, 0, 0x10, 0, 0, 0x90, 0x90],
        ..patch(0)
    };
    // This process plays the target.
    let memory = Memory::open(std::process::id() as i32).unwrap();
    let restored = |now: [u8; 7]| {
        let space = now.to_vec();
        let at = space.as_ptr() as u64;
        let patch = Patch {
            at,
            ..with_filler.clone()
        };
        let outcome = restore(&memory, &patch, &mut Gap::default());
        // The kernel has written what the compiler takes for unchanged.
        let mut after = [0; 7];
        memory.read(TargetAddr(at), &mut after).unwrap();
        drop(space);
        (outcome.is_ok(), after)
    };
    // The program's own, behind the jump.
    assert_eq!(
        restored([0xe9, 0, 0x10, 0, 0, 0x90, 9]),
        (true, [1, 2, 3, 4, 5, 6, 9])
    );
    // A breakpoint of another tool's, which leads to our jump again when it goes.
    for at in 0..7 {
        let mut broken = [0xe9, 0, 0x10, 0, 0, 0x90, 0x90];
        broken[at] = 0xcc;
        assert_eq!(restored(broken), (false, broken));
    }
    // Other code.
    let other = [9, 0, 0x11, 0, 0, 0x90, 0x90];
    assert_eq!(restored(other), (true, other));
}

#[test]
fn no_byte_of_a_patch_is_in_shared_code() {
    let shared = maps::parse(b"1000-2000 r-xs 00000000 08:01 1 /shared\n");
    let shared = SharedCode::among(&shared);
    for (at, is_refused) in [
        (0xffb, false),
        (0xffc, true),
        (0x1800, true),
        (0x1fff, true),
        (0x2000, false),
    ] {
        assert_eq!(patch(at).refusal(&shared).is_some(), is_refused, "{at:#x}");
    }
}

#[test]
fn what_is_active_is_listed_at_every_moment() {
    // This process plays the target.
    let memory = Memory::open(std::process::id() as i32).unwrap();
    let space = vec![0_u64; (BLOCKS / 8) as usize];
    let control = space.as_ptr() as u64;
    let listed = || -> Vec<u64> {
        Patches::from_journal(&memory, control)
            .addresses()
            .collect()
    };
    let counter = TargetAddr(control + HEADER + header::PATCHES);
    let mut patches = Patches::default();
    let mut active = Vec::new();
    for at in [0x3000, 0x1000, 0x2000] {
        let before = memory.read_word(counter).unwrap();
        patches.list(&memory, control, &[patch(at)]).unwrap();
        let after = memory.read_word(counter).unwrap();
        // As if the tracer had died before the last write.
        memory.write_word(counter, before).unwrap();
        assert_eq!(listed(), active);
        memory.write_word(counter, after).unwrap();
        patches.active.insert(at, patch(at));
        active.push(at);
        active.sort_unstable();
        assert_eq!(listed(), active);
    }
    drop(space);
}

#[test]
fn patches_of_code_that_was_loaded_again_are_forgotten() {
    // This process plays the target.
    let memory = Memory::open(std::process::id() as i32).unwrap();
    let space = [[0_u8; 16]; 4];
    let start = space.as_ptr() as u64;
    let places: Vec<Mapped> = (0..4)
        .map(|place| start + 16 * place)
        .map(|at| (at..at + 16, maps::FileId::default()))
        .collect();
    let mut patches = Patches::default();
    let write = |at: u64, bytes: &[u8]| memory.write(TargetAddr(at), bytes).unwrap();
    for at in [start, start + 6, start + 16, start + 32] {
        write(at, &patch(at).replacement);
        patches.active.insert(at, patch(at));
    }
    assert!(!patches.are_taken_out(&memory, &places));
    // Somebody has put one of them back, or has written something else there.
    write(start, &patch(start).original);
    assert!(!patches.are_taken_out(&memory, &places));
    write(start + 32, &[9; 5]);
    assert!(!patches.are_taken_out(&memory, &places));
    write(start + 6, &patch(start).original);
    assert!(patches.are_taken_out(&memory, &places));
    assert!(patches.forget_taken_out(&memory));
    let left: Vec<u64> = patches.addresses().collect();
    assert_eq!(left, [start + 16, start + 32]);
    assert!(!patches.are_taken_out(&memory, &places));
    assert!(!patches.forget_taken_out(&memory));
    assert_eq!(space.len(), places.len());
}

#[test]
fn a_signal_handler_returns_to_the_copy() {
    let mut moved = patch(0x1000);
    moved.moved = vec![(0x1000, 0x9000), (0x1003, 0x9003)];
    let context = |pc: u64| [1, pc, 0x246, 0x002b_0000_0000_0033, 1, 1];
    let memory = Memory::open(std::process::id() as i32).unwrap();
    // The first instruction is the jump itself; behind the last is the program's code.
    for (pc, goes_on) in [(0x1003, 0x9003), (0x1000, 0x1000), (0x1005, 0x1005)] {
        let stack = context(pc);
        let mut moves = Moves::default();
        moves.note_handlers(&memory, stack.as_ptr() as u64, &[moved.clone()]);
        moves.lead_handlers(&memory, &[moved.clone()]).unwrap();
        // The kernel has written what the compiler takes for unchanged.
        let word = memory.read_word(TargetAddr(stack.as_ptr() as u64 + 8));
        assert_eq!(word.unwrap(), goes_on);
    }
}

#[test]
fn what_relies_on_a_patch_goes_with_it() {
    let mut patches = Patches::default();
    // Two punned jumps, one before the other, before a whole one; and one that stands alone.
    for (at, len, behind) in [
        (0x1000, 2, 3),
        (0x1002, 4, 1),
        (0x1006, 5, 0),
        (0x100b, 5, 0),
    ] {
        let patch = Patch {
            original: vec![0x90; len],
            replacement: vec![0xe9; len],
            behind: vec![0xe9; behind],
            ..patch(at)
        };
        patches.active.insert(at, patch);
    }
    assert_eq!(patches.with_reliant(vec![0x1006]), [0x1006, 0x1002, 0x1000]);
    assert_eq!(patches.with_reliant(vec![0x1000]), [0x1000]);
    assert_eq!(patches.with_reliant(vec![0x100b]), [0x100b]);
}

/// A jump stays on a page that cannot be written; what stands in its distance, on the next one, stays with it.
#[test]
fn what_a_jump_that_stays_relies_on_stays_with_it() {
    const PAGE: u64 = sys::PAGE as u64;
    let mut target = who_waits();
    let pid = target.id() as i32;
    let data = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let map = |at, len, how| {
        let how = (how | libc::MAP_ANONYMOUS) as u64;
        call_in(pid, libc::SYS_mmap, [at, len, data, how, u64::MAX, 0])
    };
    let page = map(0, 2 * PAGE, libc::MAP_PRIVATE);
    map(page, PAGE, libc::MAP_SHARED | libc::MAP_FIXED);
    let room = page + PAGE;
    let memory = Memory::open(pid).unwrap();
    let short = Patch {
        original: vec![1, 2],
        replacement: vec![0xe9, 0],
        behind: vec![0xe9, 0, 0x10],
        ..patch(room - 2)
    };
    let mut patches = Patches::default();
    for patch in [short, patch(room), patch(room + 16)] {
        memory
            .write(TargetAddr(patch.at), &patch.replacement)
            .unwrap();
        patches.active.insert(patch.at, patch);
    }
    let protect = |to: i32| call_in(pid, libc::SYS_mprotect, [page, PAGE, to as u64, 0, 0, 0]);
    protect(libc::PROT_READ);
    assert!(patches.restore_all(&memory).is_err());
    assert_eq!(patches.addresses().collect::<Vec<_>>(), [room - 2, room]);
    assert!(stands(&memory, room, &patch(room).replacement));
    protect(libc::PROT_READ | libc::PROT_WRITE);
    patches.restore_all(&memory).unwrap();
    assert!(stands(&memory, room - 2, &[1, 2, 1, 2, 3, 4, 5]));
    target.kill().unwrap();
    target.wait().unwrap();
}

#[test]
fn the_programs_own_bytes_can_be_read() {
    let mut patches = Patches::default();
    patches.active.insert(0x1000, patch(0x1000));
    let mut seen = [9; 4];
    patches.hide_from(0x1003, &mut seen);
    assert_eq!(seen, [4, 5, 9, 9]);
    let mut seen = [9; 4];
    patches.hide_from(0xffe, &mut seen);
    assert_eq!(seen, [9, 9, 1, 2]);
}

#[test]
fn what_stubs_of_unmapped_code_go_on_at_is_forgotten() {
    let mapping = |start, end, executable| maps::Mapping {
        start,
        end,
        executable,
        ..maps::read(std::process::id() as i32).unwrap().remove(0)
    };
    let mappings = [
        mapping(0x1000, 0x2000, true),
        mapping(0x2000, 0x3000, false),
        mapping(0x4000, 0x5000, true),
    ];
    let mut patches = Patches {
        ways_back: BTreeSet::from([0xfff, 0x1000, 0x1fff, 0x2000, 0x3000, 0x4abc, 0x5000]),
        ..Patches::default()
    };
    patches.forget_unmapped(&mappings);
    let left = BTreeSet::from([0x1000, 0x1fff, 0x2000, 0x4abc]);
    assert_eq!(patches.ways_back, left);
    patches.forget_unmapped(&[]);
    assert!(patches.ways_back.is_empty());
}

#[test]
fn what_a_stub_goes_on_at_is_left_whole() {
    let patches = Patches {
        ways_back: BTreeSet::from([0x1005]),
        ..Patches::default()
    };
    assert!(patches.are_come_back_to(&(0x1003..0x1008)));
    for others in [0x1000..0x1005, 0x1005..0x100a, 0x1006..0x100b] {
        assert!(!patches.are_come_back_to(&others), "{others:x?}");
    }
}
