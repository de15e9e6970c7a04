//! Jumps are placed without a process.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, OpKind};
use proptest::prelude::*;

use super::*;
use crate::ground::Ground;

const TEXT: u64 = 0x5555_5555_4000;
const STUBS: u64 = TEXT + (64 << 20);
const MANY: usize = 1000;

/// A program's code.
struct Text {
    start: u64,
    bytes: Vec<u8>,
}

fn text(bytes: &[u8]) -> Text {
    Text {
        start: TEXT,
        bytes: bytes.to_vec(),
    }
}

impl Memory for Text {
    fn read(&self, addr: u64, buffer: &mut [u8]) -> bool {
        let from = addr.wrapping_sub(self.start) as usize;
        let found = self.bytes.get(from..from.saturating_add(buffer.len()));
        found.is_some_and(|found| {
            buffer.copy_from_slice(found);
            true
        })
    }
}

/// Diversions of these extents in the text, each to a stub of its own, to every other one by a call.
fn diversions(text: &Text, extents: &[Range<usize>]) -> BTreeMap<u64, Diversion> {
    let numbered = (0..).zip(extents);
    let found = numbered.map(|(n, extent)| {
        let at = text.start + extent.start as u64;
        let diversion = Diversion {
            at,
            original: text.bytes[extent.clone()].to_vec(),
            before: Vec::new(),
            to: STUBS + n * 64,
            arrival: match n % 2 == 1 && (5..16).contains(&extent.len()) {
                true => Arrival::Call,
                false => Arrival::Jump,
            },
            moved: Vec::new(),
            next: at + extent.len() as u64,
            landings: Vec::new(),
        };
        (at, diversion)
    });
    found.collect()
}

fn ground(text: &Text) -> Ground {
    let mut ground = Ground::new(&[], 8 << 20, None, MANY);
    ground.add_code(text.start & !4095..(text.start + text.bytes.len() as u64 + 4095) & !4095);
    ground.take(STUBS..STUBS + (1 << 20));
    ground
}

fn placed(text: &Text, wanted: &BTreeMap<u64, Diversion>) -> (Jumps, Outcome) {
    let mut jumps = Jumps::default();
    jumps.pages.set_ground(ground(text));
    let outcome = jumps.place(wanted, text);
    (jumps, outcome)
}

fn patched(text: &Text, outcome: &Outcome) -> Vec<u8> {
    let mut bytes = text.bytes.clone();
    for patch in outcome.patches.values() {
        let at = (patch.at - text.start) as usize;
        bytes[at..at + patch.replacement.len()].copy_from_slice(&patch.replacement);
    }
    bytes
}

fn decode(bytes: &[u8], at: u64) -> Instruction {
    Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode()
}

/// Where the processor goes from what stands in the patched text for a diversion.
fn led_to(text: &Text, outcome: &Outcome, made: &[Trampoline], diversion: &Diversion) -> u64 {
    let at = diversion.at;
    let bytes = patched(text, outcome);
    let jump = decode(&bytes[(at - text.start) as usize..], at);
    match jump.flow_control() {
        // It returns to behind what it is in place of.
        FlowControl::Call => assert_eq!(jump.next_ip(), diversion.end()),
        flow => assert_eq!(flow, FlowControl::UnconditionalBranch),
    }
    let target = jump.near_branch_target();
    let Some(trampoline) = made.iter().find(|trampoline| trampoline.at == target) else {
        return target;
    };
    let on = decode(&trampoline.bytes, trampoline.at);
    match on.op0_kind() {
        OpKind::Memory => {
            assert_eq!(on.ip_rel_memory_address(), on.next_ip());
            u64::from_le_bytes(trampoline.bytes[on.len()..].try_into().unwrap())
        }
        _ => on.near_branch_target(),
    }
}

/// All that was placed leads to its stub, from a text of which nothing else has changed.
fn check(text: &Text, wanted: &BTreeMap<u64, Diversion>) -> usize {
    let (mut jumps, outcome) = placed(text, wanted);
    let made = jumps.new_trampolines();
    for patch in outcome.patches.values() {
        let diversion = &wanted[&patch.at];
        assert_eq!(led_to(text, &outcome, &made, diversion), diversion.to);
        let opcode = patch.replacement.get(diversion.prefixes().len());
        assert!(diversion.arrival == Arrival::Jump || opcode == Some(&CALL));
        assert_eq!(patch.original.len(), patch.replacement.len());
    }
    let now = patched(text, &outcome);
    for (at, (old, new)) in (text.start..).zip(text.bytes.iter().zip(&now)) {
        let replaced = outcome
            .patches
            .values()
            .any(|p| (p.at..p.end()).contains(&at));
        assert!(replaced || old == new);
    }
    let mut used: Vec<Range<u64>> = made
        .iter()
        .map(|one| one.at..one.at + one.bytes.len() as u64)
        .collect();
    used.sort_by_key(|range| range.start);
    assert!(used.windows(2).all(|pair| pair[0].end <= pair[1].start));
    let mapped = jumps.pages.unmapped();
    let ours = |one: &Range<u64>| {
        mapped
            .iter()
            .any(|m| m.start <= one.start && one.end <= m.end)
    };
    assert!(used.iter().all(ours));
    // Nothing changes when the same is wanted again.
    let again = jumps.place(wanted, text);
    assert_eq!(again.patches, outcome.patches);
    assert!(jumps.new_trampolines().is_empty());
    outcome.refused.len()
}

#[test]
fn with_room_it_is_a_jump_and_filling() {
    // call *16(%rip), six bytes
    let text = text(&[0xff, 0x15, 16, 0, 0, 0, 0xc3]);
    let (_, outcome) = placed(&text, &diversions(&text, &[0..6]));
    let patch = &outcome.patches[&TEXT];
    let distance = (STUBS - TEXT - 5) as u32;
    let expected = [&[0xe9][..], &distance.to_le_bytes(), &[0x90]].concat();
    assert_eq!(patch.replacement, expected);
    assert!(patch.behind.is_empty());
    // Too far away.
    let mut wanted = diversions(&text, &[0..6]);
    wanted.get_mut(&TEXT).unwrap().to = TEXT + (1 << 32);
    assert_eq!(placed(&text, &wanted).1.refused, [TEXT]);
}

#[test]
fn a_punned_jump_leaves_what_is_behind_it() {
    // jmp *%rax; nopw %cs:0(%rax,%rax): the bytes behind it lead 242 MiB ahead
    let text = text(&[0xff, 0xe0, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0]);
    let (_, outcome) = placed(&text, &diversions(&text, &[0..2]));
    let patch = &outcome.patches[&TEXT];
    assert_eq!((patch.replacement.len(), patch.replacement[0]), (2, 0xe9));
    assert_eq!(patch.behind, [0x66, 0x2e, 0x0f]);
}

#[test]
fn every_last_byte_of_a_punned_jump_is_followed() {
    // Three bytes of text before one that takes all its values.
    for last in 0..=0xff {
        // A breakpoint of somebody's, maybe, which may go.
        let refused = usize::from(last == 0xcc);
        let text = text(&[0xff, 0xe0, 0x90, 0x00, last, 0, 0, 0, 0]);
        assert_eq!(
            check(&text, &diversions(&text, &[0..2])),
            refused,
            "{last:x}"
        );
        let text = super::tests::text(&[0xc3, 0x11, 0x22, 0x33, last, 0x12, 0, 0, 0]);
        assert_eq!(
            check(&text, &diversions(&text, &[0..1])),
            refused,
            "{last:x}"
        );
    }
}

#[test]
fn a_punned_jump_ends_with_its_code() {
    let text = text(&[0x90, 0x90, 0x90, 0xff, 0xe0, 0x90, 0x00, 0x10, 0]);
    let mut jumps = Jumps::default();
    let mut ground = Ground::new(&[], 8 << 20, None, MANY);
    ground.add_code(TEXT..TEXT + 7);
    jumps.pages.set_ground(ground);
    let wanted = diversions(&text, &[3..5]);
    assert_eq!(jumps.place(&wanted, &text).refused, [TEXT + 3]);
}

#[test]
fn the_jump_behind_a_punned_one_makes_way() {
    // A program near the beginning of memory, where nothing can be led backwards.
    let low = Text {
        start: 0x40_1000,
        bytes: vec![0x90; 64],
    };
    for len in 1..5 {
        // Two punned jumps, each before a longer one.
        let ends = [len, len + 6, 32 + len, 32 + len + 6];
        let extents = [0..ends[0], ends[0]..ends[1], 32..ends[2], ends[2]..ends[3]];
        let mut wanted = diversions(&low, &extents);
        for (n, diversion) in (0..).zip(wanted.values_mut()) {
            diversion.to = low.start + (8 << 20) + 64 * n;
        }
        let (mut jumps, outcome) = placed(&low, &wanted);
        assert_eq!(outcome.refused, [0; 0], "{len}");
        let made = jumps.new_trampolines();
        for diversion in wanted.values() {
            assert_eq!(led_to(&low, &outcome, &made, diversion), diversion.to);
        }
        // They share their memory.
        assert!(
            jumps.pages.unmapped().len() <= 2,
            "{len}: {:x?}",
            jumps.pages.unmapped()
        );
    }
}

#[test]
fn a_jump_is_placed_anew_when_what_is_behind_it_changes() {
    let text = text(&[0xff, 0xd0, 0x48, 0x89, 0xc7, 0x48, 0x89, 0xde, 0xc3]);
    let both = diversions(&text, &[0..2, 2..8]);
    let mut alone = both.clone();
    alone.remove(&(TEXT + 2));
    let mut jumps = Jumps::default();
    jumps.pages.set_ground(ground(&text));
    let first = jumps.place(&alone, &text);
    let second = jumps.place(&both, &text);
    let third = jumps.place(&alone, &text);
    assert_eq!(first.patches, third.patches);
    assert_ne!(first.patches[&TEXT], second.patches[&TEXT]);
    assert_eq!(first.patches[&TEXT].behind, &text.bytes[2..5]);
    let made = jumps.new_trampolines();
    for (outcome, wanted) in [(&first, &alone), (&second, &both)] {
        for diversion in wanted.values() {
            assert_eq!(led_to(&text, outcome, &made, diversion), diversion.to);
        }
    }
}

#[test]
fn the_only_trampoline_that_a_byte_can_lead_to_is_taken_over() {
    // ret, and what is behind it prescribes one address.
    let text = text(&[0xc3, 0x11, 0x22, 0x33, 0x12]);
    let first = diversions(&text, &[0..1]);
    let mut second = first.clone();
    second.get_mut(&TEXT).unwrap().to += 64;
    let (mut jumps, before) = placed(&text, &first);
    let made = jumps.new_trampolines();
    assert_eq!(
        led_to(&text, &before, &made, &first[&TEXT]),
        first[&TEXT].to
    );
    for _ in 0..2 {
        let after = jumps.place(&second, &text);
        assert_eq!(after.refused, [0; 0]);
        assert!(jumps.new_trampolines().is_empty());
        let patch = &after.patches[&TEXT];
        // It is not the same, so that it is made anew.
        assert_ne!(patch, &before.patches[&TEXT]);
        let over = patch.trampoline.clone().expect("it was taken over");
        assert_eq!(over.at, made[0].at);
        assert_eq!(
            led_to(&text, &after, &[over], &second[&TEXT]),
            second[&TEXT].to
        );
    }
    // The patch with which it would have been written may never have been made.
    assert!(jumps.place(&BTreeMap::new(), &text).patches.is_empty());
    let after = jumps.place(&second, &text);
    assert!(after.patches[&TEXT].trampoline.is_some());
    // A thread may stand there with another stack.
    let mut other = first.clone();
    let diversion = other.get_mut(&TEXT).unwrap();
    (diversion.to, diversion.arrival) = (diversion.to + 128, Arrival::BehindFirst(8));
    assert_eq!(jumps.place(&other, &text).refused, [TEXT]);
}

#[test]
fn pages_that_cannot_be_had_are_done_without() {
    let text = text(&[0xff, 0xe0, 0x90, 0x00, 0x10, 0, 0, 0, 0]);
    let wanted = diversions(&text, &[0..2]);
    let (mut jumps, _) = placed(&text, &wanted);
    let pages = jumps.pages.unmapped();
    assert_eq!(pages.len(), 1);
    jumps.give_up(pages[0].start);
    assert!(jumps.new_trampolines().is_empty());
    let outcome = jumps.place(&wanted, &text);
    // There is one more way, with a prefix.
    assert_ne!(jumps.pages.unmapped(), pages);
    assert_eq!(outcome.refused.len() + outcome.patches.len(), 1);
}

/// A tracer may be killed between the writes of two pages.
#[test]
fn a_jump_is_written_on_one_page() {
    const BORDER: u64 = TEXT + 4096;
    let bytes: Vec<u8> = (0..64).map(|n| 0x11 + n).collect();
    for (len, first) in (2..9).flat_map(|len| (1..len).map(move |first| (len, first))) {
        for arrival in [Arrival::Jump, Arrival::Call] {
            let text = Text {
                start: BORDER - first as u64,
                bytes: bytes.clone(),
            };
            let mut wanted = diversions(&text, &[0..len]);
            wanted.values_mut().for_each(|one| one.arrival = arrival);
            let prefixes = wanted[&text.start].prefixes().len();
            // Of a call as long as the program's own the opcode is on one page with its prefixes, or nothing can be done.
            let can_be = arrival == Arrival::Jump || first > prefixes;
            if arrival == Arrival::Call && len < JUMP as usize {
                continue;
            }
            assert_eq!(check(&text, &wanted), 0, "{len} {first} {arrival:?}");
            let end = placed(&text, &wanted).1.patches[&text.start].end();
            assert_eq!(end == BORDER, can_be, "{len} {first} {arrival:?}");
        }
    }
}

/// A call of which five bytes are on the first page is no jump that can be placed anew: it returns to behind all of it.
#[test]
fn a_call_on_one_page_stays_what_it_is() {
    const BORDER: u64 = 0x40_2000;
    for (len, whole) in (1..5).flat_map(|len| (6..10).map(move |whole| (len, whole))) {
        let low = Text {
            start: BORDER - (len + 5) as u64,
            bytes: vec![0; 64],
        };
        let mut wanted = diversions(&low, &[0..len, len..len + whole]);
        for (n, diversion) in (0..).zip(wanted.values_mut()) {
            diversion.to = low.start + (8 << 20) + 64 * n;
        }
        assert_eq!(wanted[&(BORDER - 5)].arrival, Arrival::Call);
        check(&low, &wanted);
    }
}

proptest! {
    #[test]
    fn whatever_the_text_jumps_lead_to_their_stubs(
        bytes in prop::collection::vec(any::<u8>(), 200),
        pieces in prop::collection::vec((0_usize..4, 1_usize..9), 1..16),
        before in 0_u64..100,
    ) {
        // Before and behind the border of two pages.
        let text = Text {
            start: TEXT + 4096 - before,
            bytes,
        };
        let mut at = 0;
        let extents = pieces.into_iter().map(|(gap, len)| {
            let start = at + gap;
            at = start + len;
            start..at
        });
        let extents: Vec<_> = extents.collect();
        check(&text, &diversions(&text, &extents));
    }
}
