//! A reader of DWARF sections that works on a budget. DWARF can ask for unbounded work in a few bytes (units that share a
//! line program, entries that share a range list): every read spends fuel, and without fuel every read fails.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gimli::{Error, LittleEndian, Reader, ReaderOffsetId, Result};

/// How many reads are left, shared by all readers of a file.
#[derive(Debug, Default)]
pub(crate) struct Fuel(AtomicU64);

impl Fuel {
    pub(crate) fn set(&self, reads: u64) {
        self.0.store(reads, Ordering::Relaxed);
    }

    /// An error when nothing is left.
    pub(crate) fn check(&self) -> Result<()> {
        let left = self.0.load(Ordering::Relaxed);
        if left > 0 {
            Ok(())
        } else {
            Err(Error::UnexpectedEof(ReaderOffsetId(0)))
        }
    }

    /// Not one atomic operation: two threads that race get a few reads for free.
    fn spend(&self, reads: usize) -> bool {
        let left = self.0.load(Ordering::Relaxed).saturating_sub(reads as u64);
        self.0.store(left, Ordering::Relaxed);
        left > 0
    }
}

/// The bytes of one section.
pub(crate) struct SectionBytes {
    bytes: Vec<u8>,
    fuel: Arc<Fuel>,
}

/// A part of a section.
#[derive(Clone)]
pub(crate) struct SectionReader {
    section: Arc<SectionBytes>,
    start: usize,
    len: usize,
}

impl SectionReader {
    pub(crate) fn new(bytes: Vec<u8>, fuel: Arc<Fuel>) -> SectionReader {
        let len = bytes.len();
        SectionReader {
            section: Arc::new(SectionBytes { bytes, fuel }),
            start: 0,
            len,
        }
    }

    /// The bytes of the part.
    pub(crate) fn bytes(&self) -> &[u8] {
        // `start + len` never exceeds the section: both only move inward.
        &self.section.bytes[self.start..self.start + self.len]
    }

    fn end_of_input<T>(&self) -> Result<T> {
        Err(Error::UnexpectedEof(self.offset_id()))
    }

    fn spend(&self, reads: usize) -> Result<()> {
        if self.section.fuel.spend(reads) {
            Ok(())
        } else {
            self.end_of_input()
        }
    }
}

impl fmt::Debug for SectionReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SectionReader({}..+{})", self.start, self.len)
    }
}

impl Reader for SectionReader {
    type Endian = LittleEndian;
    type Offset = usize;

    fn endian(&self) -> LittleEndian {
        LittleEndian
    }

    fn len(&self) -> usize {
        self.len
    }

    fn empty(&mut self) {
        self.len = 0;
    }

    fn truncate(&mut self, len: usize) -> Result<()> {
        if len > self.len {
            return self.end_of_input();
        }
        self.len = len;
        Ok(())
    }

    fn offset_from(&self, base: &SectionReader) -> usize {
        self.start.saturating_sub(base.start)
    }

    fn offset_id(&self) -> ReaderOffsetId {
        ReaderOffsetId(self.bytes().as_ptr() as u64)
    }

    fn lookup_offset_id(&self, id: ReaderOffsetId) -> Option<usize> {
        let offset = id.0.checked_sub(self.offset_id().0)?;
        usize::try_from(offset)
            .ok()
            .filter(|&offset| offset <= self.len)
    }

    fn find(&self, byte: u8) -> Result<usize> {
        let found = self.bytes().iter().position(|&b| b == byte);
        self.spend(1 + found.unwrap_or(self.len) / 16)?;
        found.map_or_else(|| self.end_of_input(), Ok)
    }

    fn skip(&mut self, len: usize) -> Result<()> {
        self.spend(1)?;
        if len > self.len {
            return self.end_of_input();
        }
        self.start += len;
        self.len -= len;
        Ok(())
    }

    fn split(&mut self, len: usize) -> Result<SectionReader> {
        let mut head = self.clone();
        head.truncate(len)?;
        self.skip(len)?;
        Ok(head)
    }

    fn to_slice(&self) -> Result<Cow<'_, [u8]>> {
        self.spend(1 + self.len / 16)?;
        Ok(self.bytes().into())
    }

    fn to_string(&self) -> Result<Cow<'_, str>> {
        self.spend(1 + self.len / 16)?;
        std::str::from_utf8(self.bytes())
            .map(Cow::from)
            .map_err(|_| Error::BadUtf8)
    }

    fn to_string_lossy(&self) -> Result<Cow<'_, str>> {
        self.spend(1 + self.len / 16)?;
        Ok(String::from_utf8_lossy(self.bytes()))
    }

    fn read_slice(&mut self, buffer: &mut [u8]) -> Result<()> {
        self.spend(1)?;
        match self.bytes().get(..buffer.len()) {
            Some(bytes) => buffer.copy_from_slice(bytes),
            None => return self.end_of_input(),
        }
        self.start += buffer.len();
        self.len -= buffer.len();
        Ok(())
    }

    fn read_u8(&mut self) -> Result<u8> {
        self.spend(1)?;
        let Some(&byte) = self.bytes().first() else {
            return self.end_of_input();
        };
        self.start += 1;
        self.len -= 1;
        Ok(byte)
    }
}
