//! The target's mappings (`/proc/PID/maps`), as far as instrumentation needs them. Parsing is pure.
//!
//! Source: proc_pid_maps(5).

use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use nix::sys::stat::{major, minor};

use crate::error::{Error, Result};
use crate::proc;
use crate::sys;
use crate::threads;

/// A file, as the kernel names it where it is mapped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct FileId {
    /// The file system's device: major and minor number.
    pub device: (u32, u32),
    /// The file's number there; zero for memory without a file.
    pub inode: u64,
}

impl FileId {
    /// Whether an open file is this one.
    ///
    /// Some file systems (overlayfs, btrfs) tell another device of an open file than of a mapped one. So where the two
    /// differ the file is mapped here, too, and what the kernel says of that counts. No byte of it is read.
    #[must_use]
    pub fn is(self, file: &File) -> bool {
        let Ok(opened) = FileId::of(file) else {
            return false;
        };
        opened == self || FileId::where_mapped(file) == Some(self)
    }

    /// What the kernel says of an open file.
    ///
    /// # Errors
    /// When it cannot be asked.
    pub fn of(file: &File) -> std::io::Result<FileId> {
        let data = file.metadata()?;
        Ok(FileId {
            device: (major(data.dev()) as u32, minor(data.dev()) as u32),
            inode: data.ino(),
        })
    }

    fn where_mapped(file: &File) -> Option<FileId> {
        let page = sys::FilePage::map(file).ok()?;
        let own = read(std::process::id() as i32).ok()?;
        let mapping = own.iter().find(|mapping| mapping.contains(page.start()))?;
        Some(mapping.file)
    }
}

/// One mapping.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Readable, writable, executable.
    pub readable: bool,
    /// Stores are allowed.
    pub writable: bool,
    /// Code can run in it.
    pub executable: bool,
    /// Stores are seen by others that map the same object.
    pub shared: bool,
    /// Offset in the file, bytes.
    pub offset: u64,
    /// Which file it is; the inode is zero for none.
    pub file: FileId,
    /// What is mapped: a path, a bracketed name such as `[stack]`, or empty.
    pub name: PathBuf,
}

impl Mapping {
    /// Whether the address lies in the mapping.
    #[must_use]
    pub fn contains(&self, addr: u64) -> bool {
        (self.start..self.end).contains(&addr)
    }

    /// Whether a file on a file system is mapped, by its path.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.file.inode != 0 && self.name.as_os_str().as_encoded_bytes().starts_with(b"/")
    }
}

/// Code that others map too, so that a probe in it would be written to them and to the file behind it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct SharedCode(Vec<Mapping>);

impl SharedCode {
    /// The shared code of a process that has these mappings.
    #[must_use]
    pub fn among(mappings: &[Mapping]) -> SharedCode {
        let shared = mappings
            .iter()
            .filter(|mapping| mapping.shared && mapping.executable);
        SharedCode(shared.cloned().collect())
    }

    /// Why no probe may be written at an address; `None` when it may.
    #[must_use]
    pub fn refusal(&self, addr: u64) -> Option<String> {
        let mapping = self.0.iter().find(|mapping| mapping.contains(addr))?;
        Some(format!(
            "its code is mapped shared from {}: a probe would be written to whoever maps it, and to the file",
            mapping.name.display()
        ))
    }
}

/// Bytes of the longest list that is read: some 65,000 mappings, as many as the kernel allows by default, of files with paths of
/// a thousand bytes each.
const MOST_BYTES: u64 = 64 << 20;

/// Reads the mappings of a process, sorted by address.
///
/// # Errors
/// When the process is gone or its maps may not be read, or there is no end of them.
pub fn read(pid: i32) -> Result<Vec<Mapping>> {
    let mut text = Vec::new();
    File::open(format!("/proc/{pid}/maps"))
        .and_then(|file| file.take(MOST_BYTES).read_to_end(&mut text))
        .map_err(|source| Error::process("read the target's mappings", pid, source))?;
    if text.len() as u64 == MOST_BYTES {
        return Err(Error::Unsuitable(format!(
            "the list of what process {pid} has mapped is longer than {} MiB; it cannot be instrumented",
            MOST_BYTES >> 20
        )));
    }
    if text.is_empty() {
        // The entry of a process whose first thread has ended shows nothing; any other thread's does.
        let others = threads::list(pid).unwrap_or_default();
        let through = |tid| std::fs::read(format!("/proc/{pid}/task/{tid}/maps")).ok();
        let shown = others
            .into_iter()
            .filter_map(through)
            .find(|text| !text.is_empty());
        text = shown.unwrap_or_default();
        if text.is_empty() && proc::is_ending(pid) {
            return Err(Error::ThreadGone { tid: pid });
        }
    }
    Ok(parse(&text))
}

/// Parses the text of a maps file; lines that make no sense are left out.
#[must_use]
pub fn parse(text: &[u8]) -> Vec<Mapping> {
    text.split(|&byte| byte == b'\n').filter_map(line).collect()
}

fn line(line: &[u8]) -> Option<Mapping> {
    let mut fields = line.splitn(6, |&byte| byte == b' ');
    let mut text = || {
        fields
            .next()
            .and_then(|field| std::str::from_utf8(field).ok())
    };
    let (start, end) = text()?.split_once('-')?;
    let permissions = text()?.as_bytes();
    let offset = text()?;
    let (major, minor) = text()?.split_once(':')?;
    let inode = text()?.parse().ok()?;
    let name = fields.next().unwrap_or_default().trim_ascii_start();
    let permitted = |index: usize, letter| permissions.get(index) == Some(&letter);
    Some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        readable: permitted(0, b'r'),
        writable: permitted(1, b'w'),
        executable: permitted(2, b'x'),
        shared: permitted(3, b's'),
        offset: u64::from_str_radix(offset, 16).ok()?,
        file: FileId {
            device: (
                u32::from_str_radix(major, 16).ok()?,
                u32::from_str_radix(minor, 16).ok()?,
            ),
            inode,
        },
        name: PathBuf::from(OsString::from_vec(unescape(name))),
    })
}

/// Undoes the kernel's octal escape of newlines in names (`\012`).
fn unescape(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&byte, tail)) = rest.split_first() {
        if rest.starts_with(b"\\012") {
            out.push(b'\n');
            rest = &rest[4..];
        } else {
            out.push(byte);
            rest = tail;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_hold_spaces_and_newlines() {
        let parsed = parse(
            b"7f0000001000-7f0000002000 r-xp 00001000 08:01 42         /a b\\012c (deleted)\n",
        );
        assert_eq!(parsed.len(), 1);
        assert_eq!(parsed[0].name, PathBuf::from("/a b\nc (deleted)"));
        assert!(
            parsed[0].executable && parsed[0].readable && !parsed[0].writable && !parsed[0].shared
        );
        let file = FileId {
            device: (8, 1),
            inode: 42,
        };
        assert_eq!((parsed[0].offset, parsed[0].file), (0x1000, file));
        assert!(parsed[0].is_file());
    }

    #[test]
    fn a_file_is_the_one_that_is_mapped() {
        let own = read(std::process::id() as i32).unwrap();
        let mapped = own.iter().find(|mapping| mapping.is_file()).unwrap();
        let same = File::open("/proc/self/exe").unwrap();
        let other = tempfile::tempfile().unwrap();
        assert!(mapped.file.is(&same));
        assert!(!mapped.file.is(&other));
        let elsewhere = FileId {
            device: (0, 0),
            ..mapped.file
        };
        assert!(!elsewhere.is(&same), "the number alone says nothing");
        assert_eq!(FileId::where_mapped(&same), Some(mapped.file));
    }

    #[test]
    fn nonsense_is_left_out() {
        assert!(parse(b"zz-1 r\n\n1000-2000\n").is_empty());
    }
}
