//! Addresses in the running target.

use std::fmt;

/// An address in the running target's address space (never one in a file, see `darc_symbols::FileAddr`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TargetAddr(pub u64);

impl TargetAddr {
    /// The address `bytes` further on (wrapping, as the CPU's address arithmetic does).
    #[must_use]
    pub fn offset(self, bytes: i64) -> Self {
        TargetAddr(self.0.wrapping_add_signed(bytes))
    }
}

impl fmt::Debug for TargetAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for TargetAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
