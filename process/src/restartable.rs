//! Restartable sequences: code that the kernel has start again when a thread was interrupted in it, as long as the thread's
//! instruction pointer is there (rseq(2)). Who leaves one for a probe and is interrupted there goes on as if nothing had been.
//!
//! Source: `struct rseq_cs` in the kernel's include/uapi/linux/rseq.h; the section's name is that of librseq and tcmalloc.

use std::collections::BTreeSet;

use darc_disasm::{FunctionCode, Memory};

use crate::modules::{CodeRef, ModuleId, Modules};

/// Where files keep the descriptors.
const SECTION: &str = "__rseq_cs";
/// Bytes of a descriptor: version and flags, the first address, the length, where it starts again.
const DESCRIPTOR: usize = 32;
/// More of them are somebody's joke.
const MOST_BYTES: u64 = 1 << 20;
/// A longer sequence is none.
const LONGEST: u64 = 4096;
/// No function has more of them.
const MOST: usize = 1024;

/// The addresses of all bytes of a function that are in such a sequence.
pub fn bytes(
    code: &FunctionCode,
    module: ModuleId,
    modules: &Modules,
    memory: &dyn Memory,
) -> Vec<u64> {
    let sequences = descriptors(module, modules, memory);
    let (descriptors, _) = sequences.as_chunks::<DESCRIPTOR>();
    let sequences = descriptors.iter().map(|descriptor| {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| descriptor[at + n]));
        (word(8), word(16).min(LONGEST))
    });
    let own = sequences.filter(|&(start, _)| code.contains(start));
    let own: BTreeSet<(u64, u64)> = own.take(MOST).collect();
    let addresses = own
        .into_iter()
        .flat_map(|(start, len)| start..start.saturating_add(len));
    let addresses: BTreeSet<u64> = addresses.filter(|&addr| code.contains(addr)).collect();
    addresses.into_iter().collect()
}

/// The descriptors as they are in memory: the dynamic linker writes their addresses.
fn descriptors(module: ModuleId, modules: &Modules, memory: &dyn Memory) -> Vec<u8> {
    let image = modules.get(module).image.as_ref();
    let section = image.and_then(|image| image.section(SECTION));
    let Some((range, _)) = section.filter(|(range, _)| range.len() <= MOST_BYTES) else {
        return Vec::new();
    };
    let place = CodeRef {
        module,
        addr: range.start,
    };
    let mut bytes = vec![0; range.len() as usize];
    match modules.locate(place) {
        Some(start) if memory.read(start.0, &mut bytes) => bytes,
        _ => Vec::new(),
    }
}
