//! The target's memory, read and written through `/proc/PID/mem` (or by ptrace where that is refused).

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt;

use crate::addr::TargetAddr;
use crate::error::{Error, Result};
use crate::maps;
use crate::proc;
use crate::sys;
use crate::threads;

/// An open view of one process's memory. Works while the process runs.
#[derive(Debug)]
pub struct Memory {
    pid: i32,
    file: File,
}

impl Memory {
    /// Opens the memory of a process.
    ///
    /// # Errors
    /// When `/proc/PID/mem` cannot be opened: the process is gone or the permission is lacking.
    pub fn open(pid: i32) -> Result<Memory> {
        // Before Linux 6.16 the entry of a thread that has ended can be opened, and is empty.
        let path = threads::proc_folder(pid).join("mem");
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file =
            file.map_err(|source| Error::process("open the target's memory", pid, source))?;
        Ok(Memory { pid, file })
    }

    /// The same memory once more. It stays that of the program that runs now, whatever is executed later.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn again(&self) -> Result<Memory> {
        let file = self.file.try_clone().map_err(|source| Error::Os {
            operation: "copy a descriptor",
            source,
        })?;
        Ok(Memory {
            pid: self.pid,
            file,
        })
    }

    /// The memory that another process has opened and hands over as the standard input. Who holds a descriptor is asked for no
    /// permission any more, even where the kernel grants it to a process's ancestors alone.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn from_stdin(pid: i32) -> Result<Memory> {
        let file = io::stdin().as_fd().try_clone_to_owned().map(File::from);
        let file = file.map_err(|source| Error::Os {
            operation: "copy a descriptor",
            source,
        })?;
        Ok(Memory { pid, file })
    }

    /// The descriptor alone.
    ///
    /// # Errors
    /// As [`Memory::again`].
    pub fn descriptor(&self) -> Result<OwnedFd> {
        Ok(self.again()?.file.into())
    }

    /// Fills the buffer from the target.
    ///
    /// # Errors
    /// When any byte of the range is not mapped or the process is gone.
    pub fn read(&self, addr: TargetAddr, buffer: &mut [u8]) -> Result<()> {
        self.file
            .read_exact_at(buffer, addr.0)
            .map_err(|source| self.failed("read", addr, buffer.len(), source))
    }

    /// Reads one 64-bit word.
    ///
    /// # Errors
    /// As [`Memory::read`].
    pub fn read_word(&self, addr: TargetAddr) -> Result<u64> {
        let mut bytes = [0; 8];
        self.read(addr, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes bytes, into read-only text as well (the page becomes the target's private copy).
    ///
    /// Falls back to ptrace where a hardened kernel refuses the write; that needs a stopped thread.
    ///
    /// # Errors
    /// When the range is not mapped, the process is gone, or both ways are refused.
    pub fn write(&self, addr: TargetAddr, bytes: &[u8]) -> Result<()> {
        #[cfg(test)]
        sys::kill_point::pass();
        match self.file.write_all_at(bytes, addr.0) {
            Ok(()) => Ok(()),
            Err(source) => self
                .poke(addr, bytes)
                .map_err(|_| self.failed("write", addr, bytes.len(), source)),
        }
    }

    /// Writes one 64-bit word.
    ///
    /// # Errors
    /// As [`Memory::write`].
    pub fn write_word(&self, addr: TargetAddr, word: u64) -> Result<()> {
        self.write(addr, &word.to_le_bytes())
    }

    /// Of memory that is no more the kernel gives and takes no byte, which is no error to it.
    fn failed(
        &self,
        operation: &'static str,
        addr: TargetAddr,
        len: usize,
        source: io::Error,
    ) -> Error {
        let nothing = [ErrorKind::UnexpectedEof, ErrorKind::WriteZero];
        // The memory of a process that is ending may go while it is read.
        let is_nothing =
            nothing.contains(&source.kind()) || source.raw_os_error() == Some(libc::EIO);
        if is_nothing && proc::is_ending(self.pid) {
            return Error::ThreadGone { tid: self.pid };
        }
        Error::Memory {
            operation,
            pid: self.pid,
            addr,
            len,
            source,
        }
    }

    /// Whether the process has something mapped at an address, readable or not; true where the list of its mappings cannot be read.
    #[must_use]
    pub fn has_mapped(&self, addr: TargetAddr) -> bool {
        self.gap_around(addr).is_none()
    }

    /// The addresses around one at which nothing is mapped; `None` where something is, or may be.
    #[must_use]
    pub fn gap_around(&self, addr: TargetAddr) -> Option<Range<u64>> {
        let mappings = match maps::read(self.pid) {
            Ok(mappings) => mappings,
            Err(error) => return error.is_gone().then_some(0..u64::MAX),
        };
        let next = mappings.partition_point(|mapping| mapping.end <= addr.0);
        let end = mappings.get(next).map_or(u64::MAX, |next| next.start);
        let start = next.checked_sub(1).map_or(0, |last| mappings[last].end);
        (addr.0 < end).then_some(start..end)
    }

    /// What is in eight bytes of one page is written at once, wherever it begins (the processor needs no word to be aligned, nor
    /// does the kernel's `generic_ptrace_pokedata`), and nothing beside it is written that need not be.
    fn poke(&self, addr: TargetAddr, bytes: &[u8]) -> Result<()> {
        const WORD: usize = size_of::<u64>();
        let mut done = 0;
        while done < bytes.len() {
            let at = addr.0 + done as u64;
            let on_page = sys::PAGE - at as usize % sys::PAGE;
            let len = (bytes.len() - done).min(WORD).min(on_page);
            let before = WORD.saturating_sub(on_page);
            let start = at - before as u64;
            let mut word = [0; WORD];
            if len < WORD {
                self.read(TargetAddr(start), &mut word)?;
            }
            word[before..before + len].copy_from_slice(&bytes[done..done + len]);
            sys::poke(self.pid, start, u64::from_le_bytes(word))
                .map_err(|errno| Error::ptrace("write the text of", self.pid, errno))?;
            done += len;
        }
        Ok(())
    }
}

impl darc_disasm::Memory for Memory {
    fn read(&self, addr: u64, buffer: &mut [u8]) -> bool {
        Memory::read(self, TargetAddr(addr), buffer).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use darc_testprogs::{Opt, program};

    use crate::patience::wait_until;

    use super::*;

    #[test]
    fn memory_of_a_process_that_has_ended_is_gone() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id() as i32;
        let memory = Memory::open(pid).unwrap();
        let nowhere = memory.read_word(TargetAddr(8)).unwrap_err();
        assert!(!nowhere.is_gone(), "{nowhere}");
        child.kill().unwrap();
        for end in ["a zombie", "nothing"] {
            wait_until(|| proc::is_ending(pid));
            let of_memory = [
                memory.read_word(TargetAddr(8)).unwrap_err(),
                memory.write_word(TargetAddr(8), 0).unwrap_err(),
                Memory::open(pid).unwrap_err(),
                crate::maps::read(pid).unwrap_err(),
            ];
            for error in of_memory {
                assert!(error.is_gone(), "{end}: {error}");
            }
            child.wait().unwrap();
        }
    }

    #[test]
    fn memory_outlives_the_first_thread() {
        let mut target = Command::new(program("dead_leader", Opt::O2));
        let piped = target.arg("1000000").stdout(Stdio::null());
        let mut target = piped.spawn().unwrap();
        let pid = target.id() as i32;
        wait_until(|| threads::is_dead(pid));
        let start = TargetAddr(maps::read(pid).unwrap()[0].start);
        let mut magic = [0; 4];
        let read = Memory::open(pid).and_then(|memory| memory.read(start, &mut magic));
        target.kill().unwrap();
        target.wait().unwrap();
        read.unwrap();
        assert_eq!(&magic, b"\x7fELF");
    }

    /// As where writing through `/proc/PID/mem` is refused.
    #[test]
    fn words_are_written_wherever_they_begin() {
        let mut page = vec![0_u8; 3 * sys::PAGE];
        let border = (page.as_ptr() as u64).next_multiple_of(sys::PAGE as u64) + sys::PAGE as u64;
        let own = std::process::id() as i32;
        let child = sys::fork_into(|| {
            sys::die_with_parent(own);
            loop {
                std::thread::park();
            }
        });
        let pid = child.unwrap();
        sys::seize(pid, 0).unwrap();
        sys::interrupt(pid).unwrap();
        sys::wait_for(pid).unwrap();
        let memory = Memory::open(pid).unwrap();
        let start = border - 32;
        let from = (start - page.as_ptr() as u64) as usize;
        for (before, len) in (0..40).flat_map(|before| (1..24).map(move |len| (before, len))) {
            let bytes: Vec<u8> = (1..=len).map(|n| n + before).collect();
            memory
                .poke(TargetAddr(start + u64::from(before)), &bytes)
                .unwrap();
            page[from + usize::from(before)..][..bytes.len()].copy_from_slice(&bytes);
            let mut now = [0; 64];
            memory.read(TargetAddr(start), &mut now).unwrap();
            assert_eq!(now, page[from..from + 64], "{before} {len}");
        }
        sys::kill_and_reap(pid);
    }
}
