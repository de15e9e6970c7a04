//! Function ranges from the unwind table (`.eh_frame`): all that a stripped file says about its functions.
//! Source: LSB 5.0 core, chapter 10.6; DWARF 5 section 6.4.

use std::collections::HashMap;

use gimli::{BaseAddresses, CieOrFde, EhFrame, LittleEndian, UnwindSection};

use crate::addr::{AddrRange, FileAddr};
use crate::elf::Elf;
use crate::symtab::MAX_SYMBOLS;

/// The code range of one frame description entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnwindRange {
    pub(crate) range: AddrRange,
    /// The language-specific data area: the function has landing pads or an exception specification.
    pub(crate) lsda: Option<FileAddr>,
}

/// All ranges, sorted by address; and a message when a part had to be left out.
pub(crate) fn ranges(elf: &Elf) -> (Vec<UnwindRange>, Option<String>) {
    let Some(section) = elf.section(".eh_frame") else {
        return (Vec::new(), None);
    };
    let data = match elf.section_data(section) {
        Ok(Some(data)) => data,
        // The file holds debugging information only.
        Ok(None) => return (Vec::new(), None),
        Err(error) => return (Vec::new(), Some(error.to_string())),
    };
    let address = |name| elf.section(name).map_or(0, |section| section.addr);
    let bases = BaseAddresses::default()
        .set_eh_frame(section.addr)
        .set_text(address(".text"))
        .set_got(address(".got"));
    let (mut ranges, complete) = parse(&data, &bases);
    ranges.sort_by_key(|found| found.range);
    let warning = (!complete).then(|| {
        format!(
            "{}: damaged .eh_frame, read in part",
            crate::demangle::escape(&elf.path().to_string_lossy())
        )
    });
    (ranges, warning)
}

fn parse(data: &[u8], bases: &BaseAddresses) -> (Vec<UnwindRange>, bool) {
    let mut section = EhFrame::new(data, LittleEndian);
    section.set_address_size(8);
    let mut shared = HashMap::new();
    let mut ranges = Vec::new();
    let mut entries = section.entries(bases);
    loop {
        match entries.next() {
            Ok(None) => return (ranges, true),
            Err(_) => return (ranges, false),
            Ok(Some(CieOrFde::Cie(_))) => {}
            Ok(Some(CieOrFde::Fde(partial))) => {
                let fde = partial.parse(|section, bases, offset| match shared.get(&offset.0) {
                    Some(cie) => Ok(gimli::CommonInformationEntry::clone(cie)),
                    None => {
                        let cie = section.cie_from_offset(bases, offset)?;
                        shared.insert(offset.0, cie.clone());
                        Ok(cie)
                    }
                });
                let Ok(fde) = fde else { return (ranges, false) };
                let range = AddrRange::sized(FileAddr(fde.initial_address()), fde.len());
                let lsda = match fde.lsda() {
                    Some(gimli::Pointer::Direct(addr)) if addr != 0 => Some(FileAddr(addr)),
                    _ => None,
                };
                if !range.is_empty() {
                    ranges.push(UnwindRange { range, lsda });
                }
                if ranges.len() >= MAX_SYMBOLS {
                    return (ranges, false);
                }
            }
        }
    }
}
