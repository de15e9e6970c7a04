//! Raw symbol tables, `.symtab` and `.dynsym`: read once, names kept in their string table.

use std::ffi::CStr;
use std::sync::{Arc, OnceLock};

use object::LittleEndian as LE;
use object::elf;

use crate::elf::{Elf, Section};
use crate::functions::SymbolSource;

/// Symbols beyond this number are not looked at (a browser with all its symbols has about a million).
pub(crate) const MAX_SYMBOLS: usize = 4_000_000;
/// Names are cut off here. Without a bound, a table whose entries all point into one endless name would
/// take quadratic time.
const MAX_NAME: usize = 32 << 10;

/// A string table that is valid UTF-8: bytes that are not are replaced by `?`, so that offsets stay.
#[derive(Default)]
pub(crate) struct StringTable(String);

impl StringTable {
    pub(crate) fn new(mut bytes: Vec<u8>) -> StringTable {
        loop {
            match String::from_utf8(bytes) {
                Ok(text) => return StringTable(text),
                Err(error) => {
                    bytes = error.into_bytes();
                    replace_invalid(&mut bytes);
                }
            }
        }
    }

    /// The NUL-terminated name at an offset; empty when there is none.
    pub(crate) fn name(self: &Arc<StringTable>, offset: u32) -> Name {
        let rest = self.0.as_bytes().get(offset as usize..).unwrap_or_default();
        let rest = &rest[..rest.len().min(MAX_NAME)];
        let len = CStr::from_bytes_until_nul(rest).map_or(rest.len(), CStr::count_bytes);
        let name = Name {
            table: Arc::clone(self),
            offset,
            len: 0,
            version: Version::Default,
        };
        name.with_len(len)
    }
}

fn replace_invalid(bytes: &mut [u8]) {
    let mut start = 0;
    while let Err(error) = std::str::from_utf8(&bytes[start..]) {
        let bad = start + error.valid_up_to();
        let len = error.error_len().unwrap_or(bytes.len() - bad);
        bytes[bad..bad + len].fill(b'?');
        start = bad + len;
    }
}

/// Which callers a versioned symbol serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Version {
    /// New programs (`name@@VERSION`), or all of them.
    Default,
    /// Only programs that were linked against an older library (`name@VERSION`).
    Old,
}

/// A symbol name inside a shared string table.
#[derive(Clone)]
pub(crate) struct Name {
    table: Arc<StringTable>,
    offset: u32,
    len: u32,
    pub(crate) version: Version,
}

impl Name {
    /// The name, without its version.
    pub(crate) fn as_str(&self) -> &str {
        let start = self.offset as usize;
        self.table
            .0
            .get(start..start + self.len as usize)
            .unwrap_or_default()
    }

    /// The front of the name.
    pub(crate) fn with_len(mut self, len: usize) -> Name {
        // MAX_NAME fits.
        self.len = len.min(MAX_NAME) as u32;
        self
    }
}

/// `read@@GLIBC_2.2.5` → `read`. An `@` at the front belongs to the name.
pub(crate) fn without_version(name: &str) -> &str {
    match name.find('@') {
        Some(at) if at > 0 => &name[..at],
        _ => name,
    }
}

/// One entry.
#[derive(Clone, Copy)]
pub(crate) struct Symbol {
    pub(crate) name: u32,
    pub(crate) addr: u64,
    pub(crate) size: u64,
    pub(crate) kind: elf::SymbolType,
    pub(crate) bind: elf::SymbolBind,
    pub(crate) section: u16,
    /// As in `.gnu.version`; 0 without it.
    pub(crate) version: u16,
}

impl Symbol {
    pub(crate) fn is_defined(&self) -> bool {
        self.section != 0 && self.section != elf::SHN_COMMON.0
    }
}

/// A function that no symbol table tells of.
#[derive(Clone, Copy)]
pub(crate) struct Described {
    /// The offset of its name.
    pub(crate) name: u32,
    pub(crate) addr: u64,
    pub(crate) size: u64,
}

impl Described {
    /// The entry that a symbol table would have for it.
    fn entry(&self) -> [u8; size_of::<elf::Sym64<LE>>()] {
        /// A local function, of any section.
        const KIND: u8 = elf::STT_FUNC.0;
        let mut entry = [0; size_of::<elf::Sym64<LE>>()];
        entry[..4].copy_from_slice(&self.name.to_le_bytes());
        entry[4] = KIND;
        entry[6..8].copy_from_slice(&elf::SHN_ABS.0.to_le_bytes());
        entry[8..16].copy_from_slice(&self.addr.to_le_bytes());
        entry[16..].copy_from_slice(&self.size.to_le_bytes());
        entry
    }
}

/// One symbol table with its strings.
pub(crate) struct SymbolTable {
    pub(crate) source: SymbolSource,
    pub(crate) names: Arc<StringTable>,
    entries: Vec<u8>,
    /// `.gnu.version`: one 16-bit number a symbol.
    versions: Vec<u8>,
    /// The hash of each name and the number of its entry, in order: a library may have a million names, and each call site in its
    /// program asks for one.
    by_name: OnceLock<Vec<(u32, u32)>>,
}

/// Names that are the same so far are one to the index.
const HASHED: usize = 128;

/// The FNV-1a hash of a name without its version.
fn hash_of(name: &[u8]) -> u32 {
    let name = name.iter().take(HASHED).enumerate();
    let bare = name.take_while(|&(at, &byte)| byte != 0 && (byte != b'@' || at == 0));
    bare.fold(0x811c_9dc5, |hash, (_, &byte)| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

impl SymbolTable {
    /// A table of functions that are known from elsewhere.
    pub(crate) fn of(names: Vec<u8>, functions: &[Described], source: SymbolSource) -> SymbolTable {
        SymbolTable {
            source,
            names: Arc::new(StringTable::new(names)),
            entries: functions.iter().flat_map(Described::entry).collect(),
            versions: Vec::new(),
            by_name: OnceLock::new(),
        }
    }

    /// Reads the table in a section of type `kind`. `Ok(None)` when the file has none.
    pub(crate) fn read(
        elf: &Elf,
        source: SymbolSource,
    ) -> Result<Option<SymbolTable>, crate::Error> {
        let kind = match source {
            SymbolSource::Symtab => elf::SHT_SYMTAB,
            SymbolSource::Dynsym => elf::SHT_DYNSYM,
            SymbolSource::GoTable | SymbolSource::UnwindTable => return Ok(None),
        };
        let Some(section) = elf.sections.iter().find(|section| section.kind == kind) else {
            return Ok(None);
        };
        SymbolTable::from_section(elf, section, source).map(Some)
    }

    fn from_section(
        elf: &Elf,
        section: &Section,
        source: SymbolSource,
    ) -> Result<SymbolTable, crate::Error> {
        let limit = (MAX_SYMBOLS * size_of::<elf::Sym64<LE>>()) as u64;
        let entries = match section.flags.0 & elf::SHF_COMPRESSED.0 {
            0 => elf.read(section.offset, section.size.min(limit))?,
            _ => elf.section_data(section)?.unwrap_or_default(),
        };
        let strings = elf
            .sections
            .get(section.link as usize)
            .ok_or_else(|| elf.damaged("string table link"))?;
        let names = elf.section_data(strings)?.unwrap_or_default();
        let versions = match source {
            SymbolSource::Dynsym => elf.data_of(".gnu.version")?.unwrap_or_default(),
            _ => Vec::new(),
        };
        Ok(SymbolTable {
            source,
            names: Arc::new(StringTable::new(names)),
            entries,
            versions,
            by_name: OnceLock::new(),
        })
    }

    fn entries(&self) -> &[elf::Sym64<LE>] {
        let count = (self.entries.len() / size_of::<elf::Sym64<LE>>()).min(MAX_SYMBOLS);
        let entries = object::pod::slice_from_bytes::<elf::Sym64<LE>>(&self.entries, count);
        entries.map_or(&[][..], |(entries, _)| entries)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Symbol> + '_ {
        let entries = self.entries().iter().zip(0..);
        entries.map(|(entry, index)| self.symbol(entry, index))
    }

    fn symbol(&self, entry: &elf::Sym64<LE>, index: usize) -> Symbol {
        Symbol {
            name: entry.st_name.get(LE),
            addr: entry.st_value.get(LE),
            size: entry.st_size.get(LE),
            kind: entry.st_type(),
            bind: entry.st_bind(),
            section: entry.st_shndx.get(LE).0,
            version: self.version(index),
        }
    }

    fn version(&self, index: usize) -> u16 {
        let version = self.versions.get(2 * index..2 * index + 2);
        version
            .and_then(|bytes| bytes.try_into().ok())
            .map_or(0, u16::from_le_bytes)
    }

    pub(crate) fn name(&self, symbol: &Symbol) -> Name {
        let mut name = self.names.name(symbol.name);
        let full = name.as_str();
        let bare = without_version(full).len();
        let suffix = &full[bare..];
        let hidden = symbol.version & elf::VERSYM_HIDDEN.0 != 0;
        if hidden || (suffix.starts_with('@') && !suffix.starts_with("@@")) {
            name.version = Version::Old;
        }
        name.with_len(bare)
    }

    /// The first symbol with this name (versions aside) for which `wanted` holds.
    pub(crate) fn find(&self, name: &str, wanted: impl Fn(&Symbol) -> bool) -> Option<Symbol> {
        let hash = hash_of(name.as_bytes());
        let by_name = self.by_name();
        let alike = &by_name[by_name.partition_point(|&(other, _)| other < hash)..];
        let alike = alike.iter().take_while(|&&(other, _)| other == hash);
        let entries = self.entries();
        alike
            .map(|&(_, index)| self.symbol(&entries[index as usize], index as usize))
            .find(|symbol| self.is_named(symbol, name) && wanted(symbol))
    }

    /// Whether the name of a symbol, defined or imported, begins so.
    pub(crate) fn has_name_with(&self, prefix: &str) -> bool {
        let names = self.names.0.as_bytes();
        let mut entries = self.entries().iter();
        entries.any(|entry| {
            let rest = names.get(entry.st_name.get(LE) as usize..);
            rest.is_some_and(|rest| rest.starts_with(prefix.as_bytes()))
        })
    }

    fn by_name(&self) -> &[(u32, u32)] {
        self.by_name.get_or_init(|| {
            let names = self.names.0.as_bytes();
            let hash = |entry: &elf::Sym64<LE>| {
                hash_of(
                    names
                        .get(entry.st_name.get(LE) as usize..)
                        .unwrap_or_default(),
                )
            };
            let entries = self.entries().iter().zip(0_u32..);
            let mut hashes: Vec<_> = entries.map(|(entry, index)| (hash(entry), index)).collect();
            hashes.sort_unstable();
            hashes
        })
    }

    /// Compares without looking for the end of a name that differs.
    fn is_named(&self, symbol: &Symbol, name: &str) -> bool {
        let rest = self
            .names
            .0
            .as_bytes()
            .get(symbol.name as usize..)
            .unwrap_or_default();
        let end = rest
            .strip_prefix(name.as_bytes())
            .map(|rest| rest.first().copied().unwrap_or(0));
        matches!(end, Some(0 | b'@'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_found_by_the_first_of_their_names() {
        let long = "x".repeat(2 * HASHED);
        let names = [
            "",
            "read@@V2",
            "read@V1",
            "write",
            &format!("{long}1"),
            &format!("{long}2"),
            "write",
        ];
        let mut text = Vec::new();
        let functions: Vec<Described> = (0..)
            .zip(names)
            .map(|(addr, name)| {
                let at = text.len() as u32;
                text.extend(name.bytes().chain([0]));
                Described {
                    name: at,
                    addr,
                    size: 1,
                }
            })
            .collect();
        let table = SymbolTable::of(text, &functions, SymbolSource::GoTable);
        let find = |name: &str| table.find(name, |_| true).map(|symbol| symbol.addr);
        assert_eq!(find("read"), Some(1));
        assert_eq!(find("read@V1"), Some(2));
        assert_eq!(find("write"), Some(3));
        assert_eq!(find(&format!("{long}2")), Some(5));
        assert_eq!(find("rea"), None);
        assert_eq!(find(&long), None);
        let later = |symbol: &Symbol| symbol.addr > 3;
        assert_eq!(
            table.find("write", later).map(|symbol| symbol.addr),
            Some(6)
        );
    }
}
