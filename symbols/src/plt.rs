//! PLT stubs and GOT slots: which imported function a jump through the global offset table leads to.
//! Source: x86-64 psABI, "Procedure Linkage Table" and "IBT Procedure Linkage Table".

use std::collections::HashMap;

use object::LittleEndian as LE;
use object::elf;

use crate::addr::FileAddr;
use crate::elf::{Elf, Section};
use crate::symtab::{MAX_SYMBOLS, Name, SymbolTable};

/// What the dynamic linker writes into a slot of the global offset table.
#[derive(Clone)]
pub(crate) enum Slot {
    /// The address of the symbol of this name, from whichever module defines it.
    Symbol(Name),
    /// What the resolver at this address of the same file returns (`R_X86_64_IRELATIVE`).
    Resolver(FileAddr),
}

/// Longest stubs: `endbr64; bnd jmp *slot(%rip)`, padded to 16 bytes, and mold's `endbr64; mov $number,%r11d; jmp *slot(%rip)`.
const STUB: u64 = 16;

/// The slots of one file by their address.
#[derive(Default)]
pub(crate) struct Slots {
    slots: HashMap<u64, Slot>,
    /// The relocations of `.rela.plt` in order, by which lazy stubs push their number.
    lazy: Vec<Slot>,
}

impl Slots {
    pub(crate) fn read(elf: &Elf, dynsym: Option<&SymbolTable>) -> Slots {
        let symbols: Vec<_> = dynsym
            .map(|table| table.iter().collect())
            .unwrap_or_default();
        let mut slots = Slots::default();
        for section in elf
            .sections
            .iter()
            .filter(|section| section.kind == elf::SHT_RELA)
        {
            let Some(bytes) = relocations(elf, section) else {
                continue;
            };
            let Ok(table) = elf.table::<elf::Rela64<LE>>(&bytes, "relocations") else {
                continue;
            };
            for relocation in table {
                let addend = relocation.r_addend.get(LE).cast_unsigned();
                let slot = match relocation.r_type(LE, false) {
                    elf::R_X86_64_JUMP_SLOT | elf::R_X86_64_GLOB_DAT => {
                        let symbol = symbols.get(relocation.r_sym(LE, false) as usize);
                        let (Some(symbol), Some(dynsym)) = (symbol, dynsym) else {
                            continue;
                        };
                        Slot::Symbol(dynsym.name(symbol))
                    }
                    elf::R_X86_64_IRELATIVE => Slot::Resolver(FileAddr(addend)),
                    _ => continue,
                };
                if section.name == ".rela.plt" {
                    slots.lazy.push(slot.clone());
                }
                slots.slots.insert(relocation.r_offset.get(LE), slot);
            }
        }
        slots
    }

    /// What the slot at `addr` holds.
    pub(crate) fn slot(&self, addr: FileAddr) -> Option<&Slot> {
        self.slots.get(&addr.0)
    }

    /// Where the stub around `addr` jumps to.
    pub(crate) fn stub(&self, elf: &Elf, addr: FileAddr) -> Option<&Slot> {
        let section = elf
            .sections
            .iter()
            .find(|s| s.name.starts_with(".plt") && s.contains(addr.0));
        let starts = match section {
            // Stubs of `.plt.got` without `endbr64` are 8 bytes long.
            Some(section) => {
                [STUB, 8].map(|size| section.addr + (addr.0 - section.addr) / size * size)
            }
            None => [addr.0, addr.0],
        };
        starts.iter().rev().find_map(|&start| {
            let code = elf.read_at(start, STUB)?;
            match decode(&code)? {
                Jump::Slot { displacement, end } => {
                    let slot = start
                        .wrapping_add(end)
                        .wrapping_add_signed(i64::from(displacement));
                    self.slots.get(&slot)
                }
                Jump::Lazy(number) if section.is_some() => self.lazy.get(number as usize),
                Jump::Lazy(_) => None,
            }
        })
    }
}

fn relocations(elf: &Elf, section: &Section) -> Option<Vec<u8>> {
    let limit = (MAX_SYMBOLS * size_of::<elf::Rela64<LE>>()) as u64;
    elf.read(section.offset, section.size.min(limit)).ok()
}

enum Jump {
    /// `jmp *displacement(%rip)`, the instruction ending `end` bytes behind the stub's start.
    Slot { displacement: i32, end: u64 },
    /// `push $number; jmp .plt`: the first half of an IBT stub.
    Lazy(u32),
}

fn decode(code: &[u8]) -> Option<Jump> {
    let endbr64 = [0xf3, 0x0f, 0x1e, 0xfa];
    let (body, skipped) = code
        .strip_prefix(&endbr64)
        .map_or((code, 0), |body| (body, 4));
    if let &[0x68, a, b, c, d, ..] = body {
        return Some(Jump::Lazy(u32::from_le_bytes([a, b, c, d])));
    }
    // The linker mold hands the number over in a register: mov $number,%r11d.
    let (body, skipped) = match body {
        [0x41, 0xbb, _, _, _, _, body @ ..] => (body, skipped + 6),
        body => (body, skipped),
    };
    let (body, skipped) = body
        .strip_prefix(&[0xf2])
        .map_or((body, skipped), |body| (body, skipped + 1));
    match body {
        &[0xff, 0x25, a, b, c, d, ..] => Some(Jump::Slot {
            displacement: i32::from_le_bytes([a, b, c, d]),
            end: skipped + 6,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stubs_of_mold_lead_to_their_slot() {
        // endbr64; mov $0x1,%r11d; jmp *0x2408(%rip), and without endbr64.
        let stub = [
            0xf3, 0x0f, 0x1e, 0xfa, 0x41, 0xbb, 1, 0, 0, 0, 0xff, 0x25, 0x08, 0x24, 0, 0,
        ];
        for (code, length) in [(&stub[..], 16), (&stub[4..], 12)] {
            let Some(Jump::Slot { displacement, end }) = decode(code) else {
                panic!("{code:x?}")
            };
            assert_eq!((displacement, end), (0x2408, length));
        }
        // The first stub of all: endbr64; push %r11; push 0x2424(%rip); jmp *0x2426(%rip)
        let first = [
            0xf3, 0x0f, 0x1e, 0xfa, 0x41, 0x53, 0xff, 0x35, 0x24, 0x24, 0, 0, 0xff, 0x25, 0x26,
            0x24, 0, 0,
        ];
        assert!(decode(&first).is_none());
    }
}
