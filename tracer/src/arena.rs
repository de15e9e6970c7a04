//! Memory for code in the target, near the code that is instrumented.
//!
//! The target maps it itself (a remote system call), readable and executable only; it is filled
//! through `/proc/PID/mem`, so that it never is writable and executable at once.

use crate::addr::TargetAddr;
use crate::error::{Error, Result};
use crate::ground::Ground;
use crate::memory::Memory;
use crate::remote_call::Worker;

/// A region of executable memory in the target from which pieces are handed out and never taken back.
#[derive(Debug)]
pub struct Arena {
    start: TargetAddr,
    len: u64,
    used: u64,
    /// How many bytes at its end are for something else than pieces.
    data: u64,
}

impl Arena {
    /// Where `len` bytes may be mapped within reach of a 32-bit displacement of `near`.
    ///
    /// # Errors
    /// When there is no room near it.
    pub fn gap_near(ground: &Ground, near: TargetAddr, len: u64) -> Result<TargetAddr> {
        let at = ground.gap_near(near.0, len).ok_or_else(|| {
            Error::Unsuitable(format!(
                "there is no free memory within 2 GiB of {near} for the probes' code"
            ))
        })?;
        Ok(TargetAddr(at))
    }

    /// Maps `len` bytes at an address.
    ///
    /// # Errors
    /// When something is there, or the target may not map memory.
    pub fn map_at(worker: &mut Worker<'_>, at: TargetAddr, len: u64) -> Result<Arena> {
        let protection = libc::PROT_READ | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let arguments = [at.0, len, protection as u64, flags as u64, u64::MAX, 0];
        let start = worker.call("mmap", libc::SYS_mmap, arguments)?;
        Ok(Arena {
            start: TargetAddr(start),
            len,
            used: 0,
            data: 0,
        })
    }

    /// Makes the last `len` bytes (whole pages) writable instead of executable; their first address.
    ///
    /// # Errors
    /// When the target may not, or the thread ends meanwhile.
    pub fn make_end_writable(&mut self, worker: &mut Worker<'_>, len: u64) -> Result<TargetAddr> {
        let at = self.start.0 + self.len - len;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let arguments = [at, len, protection as u64, 0, 0, 0];
        worker.call("mprotect", libc::SYS_mprotect, arguments)?;
        self.data = len;
        Ok(TargetAddr(at))
    }

    /// Keeps the last `len` bytes for something else than pieces.
    pub fn set_aside(&mut self, len: u64) {
        self.data = len;
    }

    /// Takes room for `len` bytes, aligned to 16; `None` when the arena is full.
    pub fn reserve(&mut self, len: u64) -> Option<TargetAddr> {
        let at = self.used.next_multiple_of(16);
        let end = at
            .checked_add(len)
            .filter(|&end| end <= self.len - self.data)?;
        self.used = end;
        Some(TargetAddr(self.start.0 + at))
    }

    /// Takes room for the bytes and writes them there.
    ///
    /// # Errors
    /// When the arena is full or the target is gone.
    pub fn place(&mut self, memory: &Memory, bytes: &[u8]) -> Result<TargetAddr> {
        let at = self.reserve(bytes.len() as u64).ok_or_else(|| {
            Error::Unsuitable("the room for the probes' code is used up".to_owned())
        })?;
        memory.write(at, bytes)?;
        Ok(at)
    }

    /// Where the next piece will lie.
    #[must_use]
    pub fn next(&self) -> TargetAddr {
        TargetAddr(self.start.0 + self.used.next_multiple_of(16))
    }

    /// The first address and the length in bytes.
    #[must_use]
    pub fn extent(&self) -> (TargetAddr, u64) {
        (self.start, self.len)
    }

    /// An arena in memory that a test has.
    #[cfg(test)]
    pub fn of(start: TargetAddr, len: u64) -> Arena {
        Arena {
            start,
            len,
            used: 0,
            data: 0,
        }
    }

    /// Whether the address lies in the arena.
    #[must_use]
    pub fn contains(&self, addr: TargetAddr) -> bool {
        (self.start.0..self.start.0 + self.len).contains(&addr.0)
    }

    /// Gives the memory back; nothing in the target may lead there any more.
    ///
    /// # Errors
    /// When the thread ends meanwhile.
    pub fn unmap(self, worker: &mut Worker<'_>) -> Result<()> {
        let arguments = [self.start.0, self.len, 0, 0, 0, 0];
        worker.call("munmap", libc::SYS_munmap, arguments).map(drop)
    }
}
