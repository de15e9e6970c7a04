//! What the Go linker writes for the Go run-time, also into stripped programs: the names, files and lines of all functions
//! (`.gopclntab`), and the version of the tool chain (`.go.buildinfo`).
//!
//! Source: `src/debug/gosym/pclntab.go`, `src/internal/abi/symtab.go` and `src/debug/buildinfo/buildinfo.go` of Go 1.18 to
//! 1.27. Tables of older versions are laid out otherwise and are not read.

use std::ops::Range;

use crate::addr::FileAddr;
use crate::elf::Elf;
use crate::symtab::{Described, MAX_SYMBOLS};

/// The first word of the table: Go 1.18 and 1.19, and since 1.20.
const MAGIC: [u32; 2] = [0xffff_fff0, 0xffff_fff1];
/// The section, as programs that may lie anywhere have it and as others do.
const SECTIONS: [&str; 2] = [".gopclntab", ".data.rel.ro.gopclntab"];
/// Steps of a line table that are made for one address. Longer functions have no lines behind.
const MAX_STEPS: usize = 1 << 20;
/// Where the table is in a program that may lie anywhere and that another linker has made, which gives no section to it.
const AMONG: &str = ".data.rel.ro";
/// Headers that are looked for there.
const MOST_HEADERS: usize = 8;
/// No padding, no step but one byte, words of eight bytes: behind the first word.
const KIND: [u8; 4] = [0, 0, 1, 8];
/// The function at a program's entry.
const START: &[u8] = b"_rt0_amd64_linux\0";
/// By it C code comes to Go's: the entry of a program with C code may be the C library's.
const FROM_C: &[u8] = b"crosscall2\0";
/// Of longer names that is the beginning.
const LONGEST: usize = 128;
/// A path is cut off here.
const MAX_PATH: usize = 4096;

/// A function as Go's run-time knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GoFunction {
    /// Its name, or the beginning of a long one.
    pub name: String,
    /// Where its code is.
    pub code: Range<FileAddr>,
    /// Whether it is written in assembly: its calling convention may be its own.
    pub is_assembly: bool,
    /// Whether it has no lines: it is C code, which Go's linker has put among the functions.
    pub is_c: bool,
}

/// The table of functions.
pub(crate) struct GoTable {
    bytes: Vec<u8>,
    /// Where what the run-time should know of a function is said of it.
    flags: usize,
    /// The address that entries count from.
    text: u64,
    /// How many functions there are.
    count: usize,
    /// Offsets of the parts.
    names: usize,
    units: usize,
    files: usize,
    values: usize,
    functions: usize,
}

impl GoTable {
    /// The table of a file, if it has one of a layout that is known, and where its code begins is certain.
    pub(crate) fn read(elf: &Elf) -> Option<GoTable> {
        if let Some(section) = SECTIONS.iter().find_map(|name| elf.section(name)) {
            let bytes = elf.section_data(section).ok()??;
            let table = GoTable::parse(bytes)?;
            let described = table.described(elf, section.addr);
            let text = described.or_else(|| table.text_of(elf))?;
            return Some(GoTable { text, ..table });
        }
        let section = elf.section(AMONG)?;
        let bytes = elf.section_data(section).ok()??;
        headers(&bytes).take(MOST_HEADERS).find_map(|at| {
            let table = GoTable::parse(bytes[at..].to_vec())?;
            let text = table.described(elf, section.addr.checked_add(at as u64)?)?;
            Some(GoTable { text, ..table })
        })
    }

    /// Where the code begins, as the run-time's own description of the program says that has this table at an address
    /// (`type moduledata struct` in Go's `src/runtime/symtab.go`; so far the same in all versions). Programs that may lie anywhere have
    /// it with the addresses that they were linked for.
    fn described(&self, elf: &Elf, at: u64) -> Option<u64> {
        const HOLDERS: [&str; 3] = [".go.module", ".noptrdata", ".data"];
        /// Words of the description: the table, its names, and from which to which address there are functions and code.
        const HEADER: usize = 0;
        const NAMES: usize = 1;
        const FIRST: usize = 20;
        const LAST: usize = 21;
        const TEXT: usize = 22;
        let names = at.checked_add(self.names as u64)?;
        let [first, last] = [self.entry(0)?, self.entry(self.count)?].map(u64::from);
        let describes = |words: &[[u8; 8]]| {
            let word = |index: usize| u64::from_le_bytes(words[index]);
            let text = word(TEXT);
            let fits = (word(HEADER), word(NAMES)) == (at, names)
                && text.checked_add(first) == Some(word(FIRST))
                && text.checked_add(last) == Some(word(LAST));
            fits.then_some(text)
        };
        HOLDERS.iter().find_map(|name| {
            let bytes = elf.section_data(elf.section(name)?).ok()??;
            let (words, _) = bytes.as_chunks::<8>();
            words.windows(TEXT + 1).find_map(describes)
        })
    }

    /// Reads the header; addresses count from zero.
    fn parse(bytes: Vec<u8>) -> Option<GoTable> {
        let layout = MAGIC
            .iter()
            .position(|&magic| u32_at(&bytes, 0) == Some(magic))?;
        if bytes.get(4..8)? != KIND {
            return None;
        }
        let word = |index: usize| {
            let at = 8 + 8 * index;
            let word = bytes.get(at..at + 8)?.try_into().ok()?;
            usize::try_from(u64::from_le_bytes(word)).ok()
        };
        let [count, text, names, units, files, values, functions] = [
            word(0)?,
            word(2)?,
            word(3)?,
            word(4)?,
            word(5)?,
            word(6)?,
            word(7)?,
        ];
        let room = bytes.len().checked_sub(functions)? / 8;
        Some(GoTable {
            text: text as u64,
            count: count.min(room).min(MAX_SYMBOLS),
            names,
            units,
            files,
            values,
            functions,
            flags: fields::FLAGS[layout],
            bytes,
        })
    }

    /// Where the code begins. Newer linkers leave it to the run-time, which knows; then it follows from the program's entry,
    /// unless another linker has put its own there.
    fn text_of(&self, elf: &Elf) -> Option<u64> {
        let holds = |text: &u64| {
            let ends = [0, self.count.checked_sub(1)?];
            let inside = |index: usize| {
                let entry = text.checked_add(u64::from(self.entry(index)?))?;
                Some(elf.is_code(FileAddr(entry)))
            };
            Some(ends.into_iter().all(|index| inside(index) == Some(true)))
        };
        let written = Some(self.text).filter(|&text| text != 0);
        let start = || {
            if (0..self.count).any(|index| self.is_named(index, FROM_C)) {
                return None;
            }
            let start = (0..self.count).find(|&index| self.is_named(index, START))?;
            elf.entry.checked_sub(u64::from(self.entry(start)?))
        };
        written
            .or_else(start)
            .filter(|text| holds(text) == Some(true))
    }

    /// Where a function begins, from the beginning of the code on; of the index behind the last one, where that ends.
    fn entry(&self, index: usize) -> Option<u32> {
        u32_at(&self.bytes, self.functions.checked_add(8 * index)?)
    }

    /// A field of what is said of a function.
    fn field(&self, index: usize, field: usize) -> Option<u32> {
        let at = u32_at(&self.bytes, self.functions.checked_add(8 * index + 4)?)? as usize;
        u32_at(
            &self.bytes,
            self.functions.checked_add(at)?.checked_add(field)?,
        )
    }

    /// The name of a function, or the beginning of a long one.
    fn name(&self, index: usize) -> Option<&[u8]> {
        let offset = self.field(index, fields::NAME)? as usize;
        let name = self.bytes.get(self.names.checked_add(offset)?..)?;
        Some(text(&name[..name.len().min(LONGEST)]))
    }

    /// Whether a function has a name, which is given with the NUL behind it: where names overlap, looking for their ends
    /// would take forever.
    fn is_named(&self, index: usize, name: &[u8]) -> bool {
        let text = || {
            let offset = self.field(index, fields::NAME)? as usize;
            let at = self.names.checked_add(offset)?;
            self.bytes.get(at..at.checked_add(name.len())?)
        };
        text() == Some(name)
    }

    /// All functions.
    pub(crate) fn functions(&self) -> impl Iterator<Item = GoFunction> + '_ {
        (0..self.count).filter_map(|index| self.function(index))
    }

    /// The functions of these names.
    pub(crate) fn named(&self, names: &[&str]) -> Vec<GoFunction> {
        let is_one = |index: &usize| {
            let name = self.name(*index);
            name.is_some_and(|name| names.iter().any(|it| it.as_bytes() == name))
        };
        let found = (0..self.count).filter(is_one);
        found.filter_map(|index| self.function(index)).collect()
    }

    fn function(&self, index: usize) -> Option<GoFunction> {
        /// `abi.FuncFlagAsm`.
        const ASSEMBLY: u32 = 4;
        let at = |index| {
            let entry = u64::from(self.entry(index)?);
            self.text.checked_add(entry).map(FileAddr)
        };
        // The byte before says which function the run-time takes it for.
        let flags = self.field(index, self.flags)? >> 8;
        Some(GoFunction {
            name: String::from_utf8_lossy(self.name(index)?).into_owned(),
            code: at(index)?..at(index + 1)?,
            is_assembly: flags & ASSEMBLY != 0,
            is_c: self.field(index, fields::LINES)? == 0,
        })
    }

    /// All names, and the functions as symbols that refer to them.
    pub(crate) fn symbols(&self) -> (Vec<u8>, Vec<Described>) {
        // The parts follow one another in this order; where they do not, names are cut off nowhere but at their end.
        let end = match self.units > self.names {
            true => self.units.min(self.bytes.len()),
            false => self.bytes.len(),
        };
        let names = self.bytes.get(self.names..end).unwrap_or_default();
        let symbol = |index: usize| {
            let (entry, next) = (self.entry(index)?, self.entry(index + 1)?);
            Some(Described {
                name: self.field(index, fields::NAME)?,
                addr: self.text.checked_add(u64::from(entry))?,
                size: u64::from(next.checked_sub(entry)?),
            })
        };
        let symbols = (0..self.count).filter_map(symbol);
        (names.to_vec(), symbols.collect())
    }

    /// The file and the line of an address.
    pub(crate) fn line(&self, addr: FileAddr) -> Option<(String, u32)> {
        let offset = u32::try_from(addr.0.checked_sub(self.text)?).ok()?;
        let index = self.function_at(offset)?;
        let distance = offset - self.entry(index)?;
        let line = self.value(self.field(index, fields::LINES)?, distance)?;
        let file = self.value(self.field(index, fields::FILES)?, distance)?;
        let unit = self.field(index, fields::UNIT)?;
        let at = self
            .units
            .checked_add(4 * unit.checked_add(file)? as usize)?;
        let name = self.files.checked_add(u32_at(&self.bytes, at)? as usize)?;
        let name = self.bytes.get(name..)?;
        let name = text(&name[..name.len().min(MAX_PATH)]);
        (!name.is_empty()).then(|| (String::from_utf8_lossy(name).into_owned(), line))
    }

    /// The function that contains an address. Entries are sorted; where they are not, any one is found or none.
    fn function_at(&self, offset: u32) -> Option<usize> {
        let (mut from, mut to) = (0, self.count);
        while from < to {
            let middle = from + (to - from) / 2;
            match self.entry(middle)? <= offset {
                true => from = middle + 1,
                false => to = middle,
            }
        }
        let index = from.checked_sub(1)?;
        let inside = self.entry(index)? <= offset && offset < self.entry(index + 1)?;
        inside.then_some(index)
    }

    /// The value that a table of pairs, of how much a value and the address it holds until grow, has at a distance from the
    /// function's entry.
    fn value(&self, table: u32, distance: u32) -> Option<u32> {
        let mut rest = self.bytes.get(self.values.checked_add(table as usize)?..)?;
        let (mut value, mut until) = (-1i32, 0u32);
        for step in 0..MAX_STEPS {
            let grown = varint(&mut rest)?;
            if grown == 0 && step > 0 {
                return None;
            }
            let sign = 0u32.wrapping_sub(grown & 1);
            value = value.wrapping_add(((grown >> 1) ^ sign).cast_signed());
            until = until.checked_add(varint(&mut rest)?)?;
            if distance < until {
                return u32::try_from(value).ok();
            }
        }
        None
    }
}

/// What is said of a function: offsets.
mod fields {
    pub const NAME: usize = 4;
    pub const FILES: usize = 20;
    pub const LINES: usize = 24;
    pub const UNIT: usize = 32;
    /// By layout: since Go 1.20 the line where the function begins comes before.
    pub const FLAGS: [usize; 2] = [36, 40];
}

/// Where tables may begin among other data.
fn headers(bytes: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let (words, _) = bytes.as_chunks::<8>();
    let is_header = |word: &[u8; 8]| {
        let magic = u32_at(word, 0);
        word[4..] == KIND && MAGIC.iter().any(|&it| magic == Some(it))
    };
    let words = words.iter().enumerate();
    words
        .filter(move |(_, word)| is_header(word))
        .map(|(index, _)| 8 * index)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at.checked_add(4)?)?;
    word.try_into().ok().map(u32::from_le_bytes)
}

/// The bytes up to a NUL.
fn text(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|&byte| byte == 0);
    &bytes[..end.unwrap_or(bytes.len())]
}

/// Seven bits a byte, the lowest ones first; the highest bit of each but the last byte is set.
fn varint(bytes: &mut &[u8]) -> Option<u32> {
    let mut value = 0;
    for shift in (0..35).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u32::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// The version of the tool chain that built a program, such as `go1.24.2`; of Go 1.18 or newer.
pub(crate) fn version(elf: &Elf) -> Option<String> {
    const MAGIC: &[u8] = b"\xff Go buildinf:";
    /// The bit of the flags that says that the text follows.
    const INLINE: u8 = 2;
    const LONGEST: usize = 128;
    let section = elf.section(".go.buildinfo")?;
    let bytes = elf.read(section.offset, section.size.min(4096)).ok()?;
    let flags = *bytes.strip_prefix(MAGIC)?.get(1)?;
    let mut rest = bytes.get(32..)?;
    if flags & INLINE == 0 {
        return None;
    }
    let len = varint(&mut rest)? as usize;
    let text = std::str::from_utf8(rest.get(..len.min(LONGEST))?).ok()?;
    let plain = |c: char| c.is_ascii_graphic() || c == ' ';
    (text.starts_with("go") && text.chars().all(plain)).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A table of one function `main.f` of 16 bytes, of which the first four are of line 7 and the others of line 5.
    fn table() -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(MAGIC[1].to_le_bytes());
        bytes.extend([0, 0, 1, 8]);
        for word in [1u64, 1, 0, 72, 80, 84, 92, 104] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(b"\0main.f\0");
        bytes.extend(0u32.to_le_bytes());
        bytes.extend(b"/a/f.go\0");
        // Nothing at zero; the lines at 1: 8 more for 4 bytes, 2 less for 12; the file at 6: 1 more for 16 bytes.
        bytes.extend([0, 16, 4, 3, 12, 0, 2, 16, 0, 0, 0, 0]);
        // The function's entry and what is said of it, then the end.
        for word in [0u32, 12, 16] {
            bytes.extend(word.to_le_bytes());
        }
        for word in [0u32, 1, 0, 0, 0, 6, 1, 0, 0, 0, 0x0400] {
            bytes.extend(word.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn a_table_is_read() {
        let table = GoTable::parse(table()).unwrap();
        let function = GoFunction {
            name: "main.f".to_owned(),
            code: FileAddr(0)..FileAddr(16),
            is_assembly: true,
            is_c: false,
        };
        let expected = std::slice::from_ref(&function);
        assert_eq!(table.named(&["main.g", "main.f"]), expected);
        assert_eq!(table.functions().collect::<Vec<_>>(), expected);
        let (names, symbols) = table.symbols();
        assert_eq!(names, b"\0main.f\0");
        let [symbol] = symbols[..] else {
            panic!("one function")
        };
        assert_eq!((symbol.name, symbol.addr, symbol.size), (1, 0, 16));
        assert!(table.is_named(0, b"main.f\0"));
        assert!(!table.is_named(0, b"main.\0") && !table.is_named(1, b"main.f\0"));
        for (addr, line) in [
            (0, Some(7)),
            (3, Some(7)),
            (4, Some(5)),
            (15, Some(5)),
            (16, None),
        ] {
            let expected = line.map(|line| ("/a/f.go".to_owned(), line));
            assert_eq!(table.line(FileAddr(addr)), expected, "{addr}");
        }
    }

    fn interrogate(table: &GoTable) {
        let (names, symbols) = table.symbols();
        assert!(names.len() <= table.bytes.len() && symbols.len() <= table.bytes.len() / 8);
        assert!(table.functions().count() <= table.count);
        assert!(table.named(&["main.f"]).len() <= table.count);
        for addr in (0..20).chain([u64::from(u32::MAX), u64::MAX]) {
            table.line(FileAddr(addr));
        }
    }

    #[test]
    fn every_byte_damaged() {
        for at in 0..table().len() {
            for flip in [1, 0x80, 0xff] {
                let mut bytes = table();
                bytes[at] ^= flip;
                GoTable::parse(bytes).iter().for_each(interrogate);
            }
            GoTable::parse(table()[..at].to_vec())
                .iter()
                .for_each(interrogate);
        }
    }

    proptest! {
        #[test]
        fn any_table_is_survived(
            words in prop::collection::vec(prop_oneof![0u64..300, any::<u64>()], 8),
            rest in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut bytes = table()[..8].to_vec();
            bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
            bytes.extend(rest);
            GoTable::parse(bytes).iter().for_each(interrogate);
        }
    }
}
