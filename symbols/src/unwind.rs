//! Function ranges from the unwind table (`.eh_frame`): all that a stripped file says about its functions.
//! Source: LSB 5.0 core, chapter 10.6; DWARF 5 section 6.4.

use std::collections::HashMap;

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, EndianSlice, FrameDescriptionEntry, LittleEndian,
    RegisterRule, UnwindContext, UnwindSection, X86_64,
};

use crate::addr::{AddrRange, FileAddr};
use crate::elf::Elf;
use crate::symtab::MAX_SYMBOLS;

/// The code range of one frame description entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnwindRange {
    pub(crate) range: AddrRange,
    /// The language-specific data area: the function has landing pads or an exception specification.
    pub(crate) lsda: Option<FileAddr>,
    /// Where a call of its beginning would not have arrived yet, because what is there is no return address on top of the
    /// stack: the beginning of a process, of a part of a function elsewhere, of what a signal's handler returns to.
    pub(crate) uncalled: AddrRange,
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
    let mut context = UnwindContext::new();
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
                    let uncalled = uncalled(&fde, &section, bases, &mut context);
                    ranges.push(UnwindRange {
                        range,
                        lsda,
                        uncalled,
                    });
                }
                if ranges.len() >= MAX_SYMBOLS {
                    return (ranges, false);
                }
            }
        }
    }
}

/// The first addresses of an entry, where they do not have the return address on top of the stack (System V ABI, AMD64, 3.2.2:
/// that is where a call leaves it); else none. Unknown rules tell nothing.
fn uncalled(
    fde: &FrameDescriptionEntry<EndianSlice<'_, LittleEndian>>,
    section: &EhFrame<EndianSlice<'_, LittleEndian>>,
    bases: &BaseAddresses,
    context: &mut UnwindContext<usize>,
) -> AddrRange {
    let none = AddrRange::sized(FileAddr(fde.initial_address()), 0);
    let Ok(mut rows) = fde.rows(section, bases, context) else {
        return none;
    };
    let Ok(Some(row)) = rows.next_row() else {
        return none;
    };
    let on_top = CfaRule::RegisterAndOffset {
        register: X86_64::RSP,
        offset: 8,
    };
    let returns = row.register(X86_64::RA) == Some(RegisterRule::Offset(-8));
    match !fde.is_signal_trampoline() && returns && *row.cfa() == on_top {
        true => none,
        false => AddrRange {
            start: FileAddr(row.start_address()),
            end: FileAddr(row.end_address()),
        },
    }
}
