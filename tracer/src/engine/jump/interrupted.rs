//! Where signal handlers will return to: the kernel has put the address of the interrupted instruction on the stack.

use std::collections::HashSet;
use std::fs::File;
use std::ops::Range;
use std::sync::LazyLock;

use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::addr::TargetAddr;
use crate::maps::{FileId, Mapping};
use crate::memory::Memory;
use crate::remote_call::USER_CODE;

const PAGE: u64 = 4096;
/// How many bytes of a stack are searched where every thread's is: handlers are seldom deeper.
const SEARCHED: u64 = 256 << 10;
/// How many pages of one of which it is not known where it ends.
const PAGES: u64 = 4;

/// So many are looked at for others that they have interrupted.
const MOST: usize = 64;
/// Flags have none of the bits beyond this (Intel SDM volume 1, 3.4.3), and always the second one.
const FLAGS: u64 = 1 << 22;
const ALWAYS_SET: u64 = 1 << 1;

/// What looks like the address of an interrupted instruction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Interrupted {
    /// Where it is on the stack.
    pub at: u64,
    /// The address.
    pub pc: u64,
    /// The stack pointer there.
    pub sp: u64,
}

impl Interrupted {
    /// Whether it may have been in code, and on memory that a stack may be in, as far as these were mapped a moment ago: a word that is
    /// no stack pointer may lead to a device, or to pages of a file that are on a disk.
    fn is_likely(&self, mappings: &[Mapping]) -> bool {
        let of = |addr| {
            let index = mappings.partition_point(|mapping| mapping.end <= addr);
            mappings.get(index).filter(|mapping| mapping.contains(addr))
        };
        of(self.pc).is_none_or(|code| code.executable) && of(self.sp).is_none_or(may_be_stack)
    }
}

/// Whether it is memory that can be written, and no file's or device's. To read a file may take as long as its file system wants.
fn may_be_stack(mapping: &Mapping) -> bool {
    let is_private = !mapping.shared && !mapping.is_file();
    mapping.writable && (is_private || Some(mapping.file.device) == device_of_shared_memory())
}

/// The device of the kernel's own file system, which all shared memory is in that is no file with a path (`shmem_file_setup` in the
/// kernel's mm/shmem.c). Nobody can mount another one in its place.
fn device_of_shared_memory() -> Option<(u32, u32)> {
    static DEVICE: LazyLock<Option<(u32, u32)>> = LazyLock::new(|| {
        let memory = memfd_create(c"darc-device", MFdFlags::MFD_CLOEXEC).ok()?;
        Some(FileId::of(&File::from(memory)).ok()?.device)
    });
    *DEVICE
}

/// What looks so in a part of a stack that begins at `from`, a multiple of eight: the code segment follows the flags in a
/// signal frame (`struct sigcontext` in the kernel's uapi/asm/sigcontext.h).
pub fn among(from: u64, stack: &[u8]) -> impl Iterator<Item = Interrupted> {
    let word = |at: usize| u64::from_le_bytes(stack[at..at + 8].try_into().expect("eight bytes"));
    let places = (8..stack.len().saturating_sub(16)).step_by(8);
    places
        .filter(move |at| {
            let flags = word(at + 8);
            word(at + 16) as u16 == USER_CODE && flags < FLAGS && flags & ALWAYS_SET != 0
        })
        .map(move |at| Interrupted {
            at: from + at as u64,
            pc: word(at),
            sp: word(at - 8),
        })
}

/// What looks so near the end of a stack, and near the ends of those that were interrupted. `mappings` are those of a moment ago.
#[must_use]
pub fn near(memory: &Memory, stack_pointer: u64, mappings: &[Mapping]) -> Vec<Interrupted> {
    let (mut found, mut known) = (Vec::new(), HashSet::new());
    let mut open = vec![stack_pointer];
    let mut looks = 0;
    while let Some(sp) = open.pop() {
        looks += 1;
        let more = MOST.saturating_sub(open.len() + looks);
        let (searched, new) = near_one(memory, sp, mappings);
        // A program may have filled its stack with what looks so.
        let new: Vec<_> = new.into_iter().filter(|new| known.insert(*new)).collect();
        let on_others = new.iter().filter(|new| !searched.contains(&new.sp));
        let on_others = on_others.filter(|new| new.is_likely(mappings));
        open.extend(on_others.take(more).map(|new| new.sp));
        found.extend(new);
    }
    found
}

/// What looks so on one stack, and where it was looked for.
fn near_one(
    memory: &Memory,
    stack_pointer: u64,
    mappings: &[Mapping],
) -> (Range<u64>, Vec<Interrupted>) {
    let from = stack_pointer & !7;
    let index = mappings.partition_point(|mapping| mapping.end <= from);
    let stack = mappings.get(index).filter(|stack| stack.contains(from));
    let whole = stack.map(|stack| stack.end.min(from.saturating_add(SEARCHED)));
    // All at once, or as far as the stack reaches.
    let pages = [PAGES, PAGES / 2, 1].map(|pages| (from / PAGE + pages) * PAGE);
    let ends = whole.into_iter().chain(pages);
    let read = |end: u64| {
        let mut stack = vec![0; (end - from) as usize];
        memory
            .read(TargetAddr(from), &mut stack)
            .is_ok()
            .then_some(stack)
    };
    let stack = ends.into_iter().find_map(read).unwrap_or_default();
    let searched = from..from + stack.len() as u64;
    (searched, among(from, &stack).collect())
}

#[cfg(test)]
mod tests {
    use crate::maps;
    use crate::sys::SharedWords;

    use super::*;

    /// All of it looks like frames, each interrupted somewhere else in it: each is told once, and only so many stacks are looked at.
    #[test]
    fn a_stack_that_is_full_of_frames_is_looked_at_for_a_bounded_time() {
        const WORDS_OF_A_LOOK: usize = (PAGES * PAGE / 8) as usize;
        let mut stack = vec![u64::from(USER_CODE); 64 * PAGE as usize / 8];
        let from = stack.as_ptr() as u64;
        let words = stack.len() as u64;
        for (at, word) in stack.iter_mut().enumerate().step_by(4) {
            // The flags and the segment are what looks so; the stack pointers lead all over it.
            *word = from + (at as u64 * 7919 % words) * 8;
        }
        let memory = Memory::open(std::process::id() as i32).unwrap();
        let found = near(&memory, from, &[]);
        assert!(found.len() > WORDS_OF_A_LOOK / 4, "{}", found.len());
        assert!(
            found.len() <= (MOST + 1) * WORDS_OF_A_LOOK,
            "{}",
            found.len()
        );
        let once: HashSet<Interrupted> = found.iter().copied().collect();
        assert_eq!(once.len(), found.len());
    }

    /// A handler with a large buffer.
    #[test]
    fn a_deep_signal_frame_is_found_where_the_stack_ends_behind_it() {
        let depth = SEARCHED as usize / 8 - 64;
        let mut stack = vec![7_u64; SEARCHED as usize / 8];
        stack[depth..depth + 3].copy_from_slice(&[0x40_1234, 0x246, 0x002b_0000_0000_0033]);
        let own = std::process::id() as i32;
        let (memory, mappings) = (Memory::open(own).unwrap(), maps::read(own).unwrap());
        let from = stack.as_ptr() as u64;
        let at = from + 8 * depth as u64;
        let is_found = |mappings: &[Mapping]| {
            let found = near(&memory, from, mappings);
            found.iter().any(|found| found.at == at)
        };
        assert!(is_found(&mappings));
        assert!(!is_found(&[]));
    }

    #[test]
    fn no_stack_is_looked_for_in_a_file() {
        let own = std::process::id() as i32;
        let mappings = maps::read(own).unwrap();
        let file = mappings.iter().find(|it| it.is_file() && it.executable);
        let (code, stack) = (file.unwrap().start, [7_u64; 64]);
        let frame = |pc, sp| Interrupted { at: 0, pc, sp };
        let on = stack.as_ptr() as u64;
        assert!(frame(code, on).is_likely(&mappings));
        assert!(!frame(code, code).is_likely(&mappings));
        assert!(!frame(on, on).is_likely(&mappings), "it is no code");
    }

    #[test]
    fn a_stack_is_looked_for_in_shared_memory() {
        let memory = File::from(memfd_create(c"stacks", MFdFlags::MFD_CLOEXEC).unwrap());
        memory.set_len(PAGE).unwrap();
        let _shared = SharedWords::map(&memory, PAGE as usize).unwrap();
        let mappings = maps::read(std::process::id() as i32).unwrap();
        let is_shared = |it: &&Mapping| it.name.as_os_str() == "/memfd:stacks (deleted)";
        let shared = mappings.iter().find(is_shared).unwrap();
        assert!(may_be_stack(shared));
        // It has the name, and is elsewhere.
        let (major, minor) = shared.file.device;
        for device in [(major, minor + 1), (254, minor)] {
            let file = FileId {
                device,
                ..shared.file
            };
            assert!(!may_be_stack(&Mapping {
                file,
                ..shared.clone()
            }));
        }
    }

    #[test]
    fn a_signal_frame_is_found_on_a_stack() {
        let mut stack = [7_u64; 64];
        stack[20..23].copy_from_slice(&[0x40_1234, 0x246, 0x002b_0000_0000_0033]);
        let memory = Memory::open(std::process::id() as i32).unwrap();
        let found = near(&memory, stack.as_ptr() as u64 + 3, &[]);
        let at = stack.as_ptr() as u64 + 8 * 20;
        let sp = 7;
        assert!(found.contains(&Interrupted {
            at,
            pc: 0x40_1234,
            sp
        }));
        let bytes: Vec<u8> = stack.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(among(0, &bytes).count(), 1);
        // A handler on another stack that has interrupted one on this.
        let mut other = [7_u64; 64];
        other[20..24].copy_from_slice(&[stack.as_ptr() as u64 + 8, 16, 0x246, 0x33]);
        let found = near(&memory, other.as_ptr() as u64, &[]);
        assert!(found.contains(&Interrupted {
            at,
            pc: 0x40_1234,
            sp
        }));
        assert_eq!(among(0, &bytes[..8 * 22]).count(), 0);
        assert_eq!(among(0, &[]).count(), 0);
    }
}
