//! Landing pads: where the unwinder goes on in functions that catch exceptions or clean up behind them. Only the
//! language-specific data of the unwind table names them; no instruction leads there.
//!
//! Source: Itanium C++ ABI, Exception Handling, level II; LSB 5.0 core, 10.5 (pointer encodings); the layout of
//! `.gcc_except_table` is that of GCC's output (gcc/except.c) and of LLVM's (ExceptionHandling.rst).

use crate::addr::{AddrRange, FileAddr};
use crate::elf::Elf;
use crate::unwind::UnwindRange;

/// More are not read of one file.
const MOST: usize = 1 << 22;
/// Bytes of one function's table that are read where it is in no section of such tables.
const LONGEST: u64 = 16 << 10;

/// Pointer encodings: no pointer at all; the format; relative to its own address.
const OMITTED: u8 = 0xff;
const FORMAT: u8 = 0x0f;
const PC_RELATIVE: u8 = 0x10;

/// The landing pads of all functions, sorted.
pub(crate) fn find(elf: &Elf, unwind: &[UnwindRange]) -> Vec<FileAddr> {
    let mut pads = Vec::new();
    let section = elf.section(".gcc_except_table");
    let tables = section.and_then(|section| {
        let data = elf.section_data(section).ok().flatten()?;
        Some((section.addr, data))
    });
    for found in unwind {
        let Some(lsda) = found.lsda else { continue };
        let inside = tables.as_ref().and_then(|(start, data)| {
            let from = usize::try_from(lsda.0.wrapping_sub(*start)).ok()?;
            data.get(from..)
        });
        let alone = match inside {
            Some(_) => None,
            None => elf.read_at(lsda.0, LONGEST),
        };
        let Some(bytes) = inside.or(alone.as_deref()) else {
            continue;
        };
        let cursor = Cursor {
            bytes,
            addr: lsda.0,
        };
        // What could be read of a damaged table counts.
        let _ = of_function(cursor, found.range, &mut pads);
        if pads.len() >= MOST {
            break;
        }
    }
    pads.sort_unstable();
    pads.dedup();
    pads
}

fn of_function(mut table: Cursor<'_>, range: AddrRange, pads: &mut Vec<FileAddr>) -> Option<()> {
    let encoding = table.byte()?;
    let base = match encoding {
        OMITTED => range.start.0,
        encoding => table.pointer(encoding)?,
    };
    if table.byte()? != OMITTED {
        table.unsigned()?; // where the types are
    }
    let encoding = table.byte()?;
    let len = usize::try_from(table.unsigned()?).ok()?;
    let mut sites = Cursor {
        bytes: table.bytes.get(..len)?,
        addr: table.addr,
    };
    while !sites.bytes.is_empty() {
        let _start = sites.pointer(encoding)?;
        let _len = sites.pointer(encoding)?;
        let pad = sites.pointer(encoding)?;
        let _action = sites.unsigned()?;
        if pad != 0 {
            pads.push(FileAddr(base.wrapping_add(pad)));
        }
    }
    Some(())
}

/// What is left to be read, and its address.
struct Cursor<'a> {
    bytes: &'a [u8],
    addr: u64,
}

impl Cursor<'_> {
    fn take(&mut self, len: usize) -> Option<u64> {
        let (now, rest) = self.bytes.split_at_checked(len)?;
        let mut word = [0; 8];
        word[..len].copy_from_slice(now);
        self.bytes = rest;
        self.addr = self.addr.wrapping_add(len as u64);
        Some(u64::from_le_bytes(word))
    }

    fn byte(&mut self) -> Option<u8> {
        Some(self.take(1)? as u8)
    }

    /// Unsigned LEB128 (DWARF 5, 7.6).
    fn unsigned(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn pointer(&mut self, encoding: u8) -> Option<u64> {
        let addr = self.addr;
        let signed = |value: u64, bits: u32| ((value << (64 - bits)) as i64 >> (64 - bits)) as u64;
        let value = match encoding & FORMAT {
            0x00 | 0x04 | 0x0c => self.take(8)?,
            0x01 => self.unsigned()?,
            0x02 => self.take(2)?,
            0x03 => self.take(4)?,
            0x0a => signed(self.take(2)?, 16),
            0x0b => signed(self.take(4)?, 32),
            _ => return None,
        };
        match encoding & !FORMAT {
            0 => Some(value),
            PC_RELATIVE => Some(value.wrapping_add(addr)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pads(bytes: &[u8]) -> Vec<u64> {
        let mut pads = Vec::new();
        let cursor = Cursor {
            bytes,
            addr: 0x9000,
        };
        let _ = of_function(cursor, AddrRange::sized(FileAddr(0x1000), 64), &mut pads);
        pads.into_iter().map(|pad| pad.0).collect()
    }

    #[test]
    fn pads_count_from_the_functions_beginning() {
        // No base, no types, LEB128; two call sites, one without a pad.
        let table = [0xff, 0xff, 0x01, 9, 0, 5, 0, 0, 5, 5, 0x84, 0x01, 1];
        assert_eq!(pads(&table), [0x1084]);
    }

    #[test]
    fn pads_count_from_the_part_that_has_them() {
        // A base relative to itself, types, 32 bits.
        let mut table = vec![0x1b, 0xff, 0x0f, 0, 0, 0x9b, 0x10, 0x03, 13];
        table.extend([1, 0, 0, 0, 4, 0, 0, 0, 8, 0, 0, 0, 0]);
        assert_eq!(pads(&table), [0x9001 + 0xfff + 8]);
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_read(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            pads(&bytes);
        }
    }
}
