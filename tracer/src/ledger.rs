//! What must be put back in the target if the tracer dies: kept in a memory file that the guardian
//! process reads.
//!
//! Plain fixed-size entries, written one at a time; an entry is in use while its address is not zero.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::error::{Error, Result};

const ENTRY: u64 = 32;
const ENTRIES: u32 = 1 << 16;

/// One thing to put back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Debt {
    /// The first byte of an instrumented instruction.
    Text {
        /// Where.
        addr: u64,
        /// The program's own byte.
        original: u8,
    },
    /// A stack slot that holds `hidden` instead of a return address.
    Slot {
        /// Where.
        addr: u64,
        /// The return address that belongs there.
        return_to: u64,
        /// What the slot holds as long as the debt stands; anything else means that the frame is gone.
        hidden: u64,
    },
}

/// The list of debts, shared with the guardian through a memory file.
#[derive(Debug)]
pub struct Ledger {
    file: File,
    free: Vec<u32>,
    next: u32,
}

impl Ledger {
    /// Makes an empty ledger. The descriptor is closed on exec unless handed on deliberately.
    ///
    /// # Errors
    /// When the kernel refuses a memory file.
    pub fn create() -> Result<Ledger> {
        let fd: OwnedFd =
            memfd_create(c"darc-ledger", MFdFlags::MFD_CLOEXEC).map_err(|errno| Error::Os {
                operation: "make the guardian's ledger",
                source: errno.into(),
            })?;
        Ok(Ledger {
            file: File::from(fd),
            free: Vec::new(),
            next: 0,
        })
    }

    /// The memory file, for handing to the guardian.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Enters a debt; `None` when the ledger is full (the debt is then simply not guarded).
    pub fn enter(&mut self, debt: Debt) -> Option<u32> {
        let index = self.free.pop().or_else(|| {
            let fresh = (self.next < ENTRIES).then_some(self.next)?;
            self.next += 1;
            Some(fresh)
        })?;
        let (tag, addr, value, hidden) = match debt {
            Debt::Text { addr, original } => (1, addr, u64::from(original), 0),
            Debt::Slot {
                addr,
                return_to,
                hidden,
            } => (2, addr, return_to, hidden),
        };
        let mut entry = [0; ENTRY as usize];
        entry[..8].copy_from_slice(&addr.to_le_bytes());
        entry[8..16].copy_from_slice(&value.to_le_bytes());
        entry[16..24].copy_from_slice(&hidden.to_le_bytes());
        entry[24] = tag;
        self.file
            .write_all_at(&entry, u64::from(index) * ENTRY)
            .ok()?;
        Some(index)
    }

    /// Strikes a debt out.
    pub fn strike(&mut self, index: u32) {
        if self
            .file
            .write_all_at(&[0; 8], u64::from(index) * ENTRY)
            .is_ok()
        {
            self.free.push(index);
        }
    }
}

/// Reads the debts from a ledger's file; what makes no sense is left out.
#[must_use]
pub fn read(file: &File) -> Vec<Debt> {
    let mut bytes = vec![0; (ENTRY * u64::from(ENTRIES)) as usize];
    let len = file.read_at(&mut bytes, 0).unwrap_or(0);
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    bytes[..len]
        .chunks_exact(ENTRY as usize)
        .filter_map(|entry| {
            let (addr, value, hidden) =
                (word(&entry[..8]), word(&entry[8..16]), word(&entry[16..24]));
            match (addr, entry[24]) {
                (0, _) => None,
                (addr, 1) => Some(Debt::Text {
                    addr,
                    original: value as u8,
                }),
                (addr, 2) => Some(Debt::Slot {
                    addr,
                    return_to: value,
                    hidden,
                }),
                _ => None,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debts_are_read_back_until_they_are_struck_out() {
        let mut ledger = Ledger::create().unwrap();
        let text = Debt::Text {
            addr: 0x1000,
            original: 0x55,
        };
        let slot = Debt::Slot {
            addr: 0x7fff_0000,
            return_to: 0x2000,
            hidden: 0x3000,
        };
        let first = ledger.enter(text).unwrap();
        ledger.enter(slot).unwrap();
        assert_eq!(read(ledger.file()), [text, slot]);
        ledger.strike(first);
        assert_eq!(read(ledger.file()), [slot]);
        assert_eq!(ledger.enter(text), Some(first));
    }
}
