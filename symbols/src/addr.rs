//! Addresses and identities inside one file. An address in the running target is another type, and
//! another crate's business.

use std::fmt;
use std::str::FromStr;

/// A link-time virtual address in one ELF file (`st_value`, `p_vaddr`): what a disassembler of the file
/// shows, whatever the place it is loaded at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileAddr(pub u64);

impl fmt::Display for FileAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::LowerHex for FileAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

/// A half-open range of addresses in one ELF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddrRange {
    /// First address.
    pub start: FileAddr,
    /// First address behind the range.
    pub end: FileAddr,
}

impl AddrRange {
    /// `size` bytes from `start` on; cut off at the end of the address space.
    pub fn sized(start: FileAddr, size: u64) -> AddrRange {
        AddrRange {
            start,
            end: FileAddr(start.0.saturating_add(size)),
        }
    }

    /// Whether `addr` lies inside.
    pub fn contains(&self, addr: FileAddr) -> bool {
        self.start <= addr && addr < self.end
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }

    /// Whether no address lies inside.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The build-id of an ELF file: the descriptor of its `NT_GNU_BUILD_ID` note, 1 to 64 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BuildId(Vec<u8>);

/// Linkers write 8, 16 or 20 bytes; `--build-id=0x…` may write any number.
const MAX_BUILD_ID: usize = 64;

impl BuildId {
    /// The build-id with these bytes; `None` for an empty or an absurdly long one.
    pub fn from_bytes(bytes: &[u8]) -> Option<BuildId> {
        (1..=MAX_BUILD_ID)
            .contains(&bytes.len())
            .then(|| BuildId(bytes.to_vec()))
    }

    /// The raw bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The text is no build-id: not an even number of hexadecimal digits, or too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a build-id: expected 2 to 128 hexadecimal digits")]
pub struct InvalidBuildId;

impl FromStr for BuildId {
    type Err = InvalidBuildId;

    fn from_str(text: &str) -> Result<BuildId, InvalidBuildId> {
        let digits: Option<Vec<u8>> = text
            .chars()
            .map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
            .collect();
        let digits = digits
            .filter(|digits| digits.len() % 2 == 0)
            .ok_or(InvalidBuildId)?;
        let bytes: Vec<u8> = digits
            .chunks(2)
            .map(|pair| pair[0] << 4 | pair[1])
            .collect();
        BuildId::from_bytes(&bytes).ok_or(InvalidBuildId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_id_text_round_trips() {
        let id: BuildId = "00ff10A9".parse().unwrap();
        assert_eq!(id.as_bytes(), [0, 0xff, 0x10, 0xa9]);
        assert_eq!(id.to_string(), "00ff10a9");
        for bad in ["", "0", "0g", "+1", "é", &"00".repeat(65)] {
            assert_eq!(bad.parse::<BuildId>(), Err(InvalidBuildId), "{bad}");
        }
    }

    #[test]
    fn ranges_do_not_wrap() {
        let range = AddrRange::sized(FileAddr(u64::MAX - 1), 100);
        assert_eq!(range.len(), 1);
        assert!(!range.contains(FileAddr(u64::MAX)));
    }
}
