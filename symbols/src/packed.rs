//! The names that a stripped file carries along in compressed form, as those of Fedora's packages do. Source: GDB manual,
//! "Debugging information in a special section" (`.gnu_debugdata`).

use std::io::Read as _;

use lzma_rust2::XzReader;

use crate::demangle::escape;
use crate::elf::Elf;

/// More is not unpacked, in bytes before and after.
const MOST_PACKED: u64 = 16 << 20;
const MOST_UNPACKED: u64 = 64 << 20;
/// What unpacking may use beside, in KiB: somewhat more than files of `xz -9` ask for.
const MOST_MEMORY: u32 = 80 << 10;

/// The file with the symbol table that was packed into this one; `None` where none was.
///
/// # Errors
/// Why what is there is of no use, for people.
pub(crate) fn symbols(elf: &Elf) -> Option<Result<Elf, String>> {
    let section = elf.section(".gnu_debugdata")?;
    let unpacked = || {
        if section.size > MOST_PACKED {
            return Err("too large".to_owned());
        }
        let packed = elf
            .section_data(section)
            .map_err(|error| error.to_string())?;
        let mut file = Vec::new();
        XzReader::new_mem_limit(packed.as_deref().unwrap_or_default(), false, MOST_MEMORY)
            .take(MOST_UNPACKED + 1)
            .read_to_end(&mut file)
            .map_err(|error| error.to_string())?;
        if file.len() as u64 > MOST_UNPACKED {
            return Err("too large when unpacked".to_owned());
        }
        Elf::from_bytes(file, elf.path()).map_err(|error| error.to_string())
    };
    let path = escape(&elf.path().to_string_lossy());
    Some(unpacked().map_err(|why| format!("{path}: .gnu_debugdata: {why}; ignored")))
}
