//! Files without section headers: what the dynamic linker and the unwinder need is found through the program headers
//! instead. Source: System V ABI, "Dynamic Section"; LSB 5.0 core, 10.6.2 (`.eh_frame_hdr`).

use object::elf::{self, SectionFlags, SectionType};

use crate::elf::{Elf, Section};

/// Sections as the linker would have described them: symbols, strings, relocations and the unwind table.
pub(crate) fn sections(elf: &Elf) -> Vec<Section> {
    let mut sections = vec![section("", elf::SHT_NULL, 0, 0)];
    let dynamic = elf.dynamic();
    let value = |wanted: elf::DynamicTag| {
        dynamic
            .iter()
            .find(|(tag, _)| *tag == wanted.0)
            .map(|(_, value)| *value)
    };
    if let (Some(symbols), Some(strings)) = (value(elf::DT_SYMTAB), value(elf::DT_STRTAB)) {
        // Nothing says how many symbols there are, but all linkers put the strings behind them.
        let size = strings.saturating_sub(symbols);
        sections.push(section(".dynsym", elf::SHT_DYNSYM, symbols, size));
        let size = value(elf::DT_STRSZ).unwrap_or_default();
        sections.push(section(".dynstr", elf::SHT_STRTAB, strings, size));
        sections[1].link = 2;
        if let Some(versions) = value(elf::DT_VERSYM) {
            let count = sections[1].size / size_of::<elf::Sym64<object::LittleEndian>>() as u64;
            sections.push(section(
                ".gnu.version",
                elf::SHT_GNU_VERSYM,
                versions,
                count * 2,
            ));
        }
    }
    for (name, start, size) in [
        (".rela.dyn", elf::DT_RELA, elf::DT_RELASZ),
        (".rela.plt", elf::DT_JMPREL, elf::DT_PLTRELSZ),
    ] {
        if let (Some(start), Some(size)) = (value(start), value(size)) {
            sections.push(section(name, elf::SHT_RELA, start, size));
        }
    }
    sections.extend(unwind_table(elf));
    for section in &mut sections {
        locate(elf, section);
    }
    sections
}

fn section(name: &str, kind: SectionType, addr: u64, size: u64) -> Section {
    let flags = SectionFlags::default();
    Section {
        name: name.to_owned(),
        kind,
        flags,
        addr,
        offset: 0,
        size,
        link: 0,
    }
}

/// Finds the place of a section in the file, and cuts it off at the end of its segment.
fn locate(elf: &Elf, section: &mut Section) {
    let holds =
        |s: &&crate::Segment| section.addr >= s.addr.0 && section.addr - s.addr.0 < s.file_size;
    match elf.segments.iter().find(holds) {
        Some(segment) => {
            let skip = section.addr - segment.addr.0;
            section.offset = segment.file_offset.saturating_add(skip);
            section.size = section.size.min(segment.file_size - skip);
        }
        None => section.size = 0,
    }
}

/// `.eh_frame` by the pointer in `.eh_frame_hdr`, a signed 32-bit distance (`DW_EH_PE_pcrel | DW_EH_PE_sdata4`) in all files
/// there are. It ends with a terminator, so that its size does not matter.
fn unwind_table(elf: &Elf) -> Option<Section> {
    let header = elf.header(elf::PT_GNU_EH_FRAME)?;
    let addr = elf.segments.iter().find_map(|segment| {
        let skip = header.offset.checked_sub(segment.file_offset)?;
        (skip < segment.file_size)
            .then(|| segment.addr.0.checked_add(skip))
            .flatten()
    })?;
    let &[1, 0x1b, _, _, a, b, c, d] = elf.read(header.offset, 8).ok()?.as_slice() else {
        return None;
    };
    let distance = i64::from(i32::from_le_bytes([a, b, c, d]));
    let start = addr.checked_add(4)?.checked_add_signed(distance)?;
    Some(section(".eh_frame", elf::SHT_PROGBITS, start, u64::MAX))
}
