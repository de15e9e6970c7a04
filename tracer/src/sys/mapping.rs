//! Memory that this process maps: shared with the target, or for code of its own. Source: mmap(2).

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::ptr;
use std::sync::atomic::AtomicU64;

use nix::errno::Errno;

use super::presence::Presence;
use super::process::exit_now;

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// A mapping, readable and writable, that is given back when it is dropped.
#[derive(Debug)]
pub(super) struct Mapping {
    start: *mut u8,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone; what others write into it meanwhile is accessed atomically, or in
// the order that the perf ring's protocol has.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of a file, shared with whoever has it mapped. Children of this process do not get it: they would
    /// look like children that the target has made.
    pub(super) fn shared(file: BorrowedFd<'_>, len: usize) -> Result<Mapping, Errno> {
        let mapping = Mapping::new(libc::MAP_SHARED, file.as_raw_fd(), len)?;
        // SAFETY: it changes nothing for this process (madvise(2)).
        match unsafe { libc::madvise(mapping.start.cast(), len, libc::MADV_DONTFORK) } {
            0 => Ok(mapping),
            _ => Err(Errno::last()),
        }
    }

    fn new(flags: i32, file: i32, len: usize) -> Result<Mapping, Errno> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs no other memory.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, file, 0) };
        match start {
            libc::MAP_FAILED => Err(Errno::last()),
            start => Ok(Mapping {
                start: start.cast(),
                len,
            }),
        }
    }

    /// The word at a byte offset.
    ///
    /// # Panics
    /// When the offset is not aligned or outside.
    pub(super) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(
            offset.is_multiple_of(8) && offset < self.len,
            "outside of the mapping: {offset:#x}"
        );
        // SAFETY: the word lies in the mapping (checked), whose length is a multiple of a page and which lives as long as
        // `self`, and is aligned.
        unsafe { AtomicU64::from_ptr(self.start.add(offset).cast()) }
    }

    /// Copies bytes from an offset to the end of `bytes`. Nobody may be writing them.
    ///
    /// # Panics
    /// When they are outside.
    pub(super) fn copy_to(&self, offset: usize, count: usize, bytes: &mut Vec<u8>) {
        assert!(
            offset.checked_add(count).is_some_and(|end| end <= self.len),
            "outside of the mapping: {count} bytes at {offset:#x}"
        );
        // SAFETY: the bytes lie in the mapping (checked); that nobody is writing them is up to the caller, here
        // the protocol of the ring.
        let part = unsafe { std::slice::from_raw_parts(self.start.add(offset), count) };
        bytes.extend_from_slice(part);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` and nothing refers to it any more.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

/// Memory shared with the target, a file of its own.
#[derive(Debug)]
pub struct SharedWords {
    memory: Mapping,
    /// Where one of the words tells that this process lives.
    presence: Option<(usize, Presence)>,
}

impl SharedWords {
    /// Maps the first `len` bytes of the file.
    pub fn map(file: &File, len: usize) -> Result<SharedWords, Errno> {
        Mapping::shared(file.as_fd(), len).map(|memory| SharedWords {
            memory,
            presence: None,
        })
    }

    /// Has the word at a byte offset tell whoever reads it that this process lives, until [`SharedWords::end_presence`].
    ///
    /// # Panics
    /// When the offset is not aligned or outside.
    pub fn tell_presence(&mut self, offset: usize, presence: Presence) {
        self.end_presence();
        presence.tell(self.memory.word(offset));
        self.presence = Some((offset, presence));
    }

    /// Takes that back.
    pub fn end_presence(&mut self) {
        if let Some((offset, presence)) = self.presence.take() {
            presence.take_back(self.memory.word(offset));
        }
    }

    /// Reads the word at a byte offset; what was written before it is seen too.
    ///
    /// # Panics
    /// When the offset is not aligned or outside.
    #[must_use]
    pub fn load(&self, offset: usize) -> u64 {
        self.memory
            .word(offset)
            .load(std::sync::atomic::Ordering::Acquire)
    }

    /// Writes the word at a byte offset after everything read before.
    ///
    /// # Panics
    /// When the offset is not aligned or outside.
    pub fn store(&self, offset: usize, value: u64) {
        self.memory
            .word(offset)
            .store(value, std::sync::atomic::Ordering::Release);
    }

    /// Replaces one value of the word at a byte offset by another; false when it had none of these.
    ///
    /// # Panics
    /// When the offset is not aligned or outside.
    pub fn exchange(&self, offset: usize, from: u64, to: u64) -> bool {
        use std::sync::atomic::Ordering::{AcqRel, Acquire};
        self.memory
            .word(offset)
            .compare_exchange(from, to, AcqRel, Acquire)
            .is_ok()
    }

    /// Adds one to the word at a byte offset.
    ///
    /// # Panics
    /// When the offset is not aligned or outside.
    pub fn increment(&self, offset: usize) {
        self.memory
            .word(offset)
            .fetch_add(1, std::sync::atomic::Ordering::AcqRel);
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // Before the memory goes.
        self.end_presence();
    }
}

/// A page of a file, mapped to be seen in the list of mappings: the memory itself is of no use.
#[derive(Debug)]
pub struct FilePage(Mapping);

impl FilePage {
    /// Maps the first page of a file that is open for reading.
    pub fn map(file: &File) -> Result<FilePage, Errno> {
        Mapping::new(libc::MAP_PRIVATE, file.as_raw_fd(), PAGE).map(FilePage)
    }

    /// Where it is.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.0.start as u64
    }
}

/// A page of machine code for a forked child to run.
#[derive(Debug)]
pub struct CodePage(Mapping);

impl CodePage {
    /// Maps a page, writable until it is run.
    pub fn new() -> Result<CodePage, Errno> {
        Mapping::new(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, PAGE).map(CodePage)
    }

    /// The address of its first byte.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.0.start as u64
    }

    /// Writes code for an address in the page.
    ///
    /// # Panics
    /// When it does not fit.
    pub fn write(&self, at: u64, code: &[u8]) {
        let offset = at
            .checked_sub(self.start())
            .map_or(PAGE, |offset| offset as usize);
        assert!(
            offset.saturating_add(code.len()) <= PAGE,
            "code outside of its page"
        );
        // SAFETY: the bytes lie in the mapping (checked), which nobody else has a reference to.
        unsafe { ptr::copy_nonoverlapping(code.as_ptr(), self.0.start.add(offset), code.len()) };
    }

    /// Runs the code at an address of the page, in a process that is killed when it has served; does
    /// not return.
    pub fn run(&self, at: u64) -> ! {
        assert!(
            (self.start()..self.start() + PAGE as u64).contains(&at),
            "code outside of its page"
        );
        // SAFETY: the page is this process's own, and the code in it was written to be called without
        // arguments; should it return, the process ends.
        unsafe {
            libc::mprotect(self.0.start.cast(), PAGE, libc::PROT_READ | libc::PROT_EXEC);
            let code: extern "C" fn() = std::mem::transmute(at);
            code();
        }
        exit_now(127)
    }
}
