//! Code written as a listing: bytes in hexadecimal, `|`, mnemonic. What follows `|` is for people.

use std::collections::HashMap;

use darc_disasm::{CodePart, FunctionCode, Memory};

/// Where the code of a listing lies.
pub const BASE: u64 = 0x40_1000;

/// The bytes of a listing.
pub fn bytes(listing: &str) -> Vec<u8> {
    let columns = listing.lines().map(|l| l.split('|').next().unwrap_or(""));
    columns
        .flat_map(str::split_whitespace)
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect()
}

/// A function of one part at [`BASE`].
#[allow(dead_code)] // not every test crate needs it
pub fn code(listing: &str) -> FunctionCode {
    let part = CodePart {
        start: BASE,
        bytes: bytes(listing),
    };
    FunctionCode::new(vec![part]).unwrap()
}

/// Bytes at addresses.
#[derive(Default, Debug)]
pub struct Bytes(HashMap<u64, u8>);

impl Bytes {
    /// Adds `bytes` at `addr`.
    #[allow(dead_code)] // not every test crate needs it
    pub fn with(mut self, addr: u64, bytes: &[u8]) -> Self {
        self.0.extend((addr..).zip(bytes.iter().copied()));
        self
    }
}

impl Memory for Bytes {
    fn read(&self, addr: u64, buf: &mut [u8]) -> bool {
        let bytes: Option<Vec<u8>> = (addr..)
            .take(buf.len())
            .map(|a| self.0.get(&a).copied())
            .collect();
        match bytes {
            Some(bytes) => {
                buf.copy_from_slice(&bytes);
                true
            }
            None => false,
        }
    }
}
