//! Separate debug files, by build-id and by `.gnu_debuglink`. Source: GDB manual, "Debugging Information in Separate Files".

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use crate::addr::BuildId;
use crate::demangle::escape;
use crate::elf::Elf;

/// `O_NONBLOCK | O_NOCTTY` of x86-64 Linux: opening a pipe or a terminal in place of a debug file must not block.
const OPEN_FLAGS: i32 = 0o4000 | 0o400;
/// The checksum of a larger file is not computed; its build-id must do.
const MAX_CHECKSUMMED: u64 = 4 << 30;

/// Where to look for separate debug files.
#[derive(Clone, Debug)]
pub struct DebugSearch {
    /// Prefix of every path that is opened: `/`, or `/proc/PID/root` for a target in a container.
    pub root: PathBuf,
    /// Global debug directories under the root.
    pub directories: Vec<PathBuf>,
}

impl DebugSearch {
    /// The usual directories under `root`.
    pub fn under(root: impl Into<PathBuf>) -> DebugSearch {
        DebugSearch {
            root: root.into(),
            directories: vec![PathBuf::from("/usr/lib/debug")],
        }
    }

    /// Looks nowhere.
    pub fn nowhere() -> DebugSearch {
        DebugSearch {
            root: PathBuf::from("/"),
            directories: Vec::new(),
        }
    }

    /// A path of the target's file system as it is opened here.
    pub(crate) fn rooted(&self, path: &Path) -> PathBuf {
        let relative: PathBuf = path
            .components()
            .filter(|c| matches!(c, Component::Normal(_)))
            .collect();
        self.root.join(relative)
    }
}

impl Default for DebugSearch {
    fn default() -> DebugSearch {
        DebugSearch::under("/")
    }
}

/// Finds and opens the debug file of `elf`. Files that do not belong to it are passed over with a warning.
pub(crate) fn find(elf: &Elf, search: &DebugSearch, warn: &mut dyn FnMut(String)) -> Option<Elf> {
    let build_id = elf.build_id();
    let by_id = build_id
        .as_ref()
        .into_iter()
        .flat_map(|id| build_id_paths(search, id));
    for path in by_id {
        if let Some(found) = open(&path, warn) {
            if found.build_id() == build_id {
                return Some(found);
            }
            warn(format!(
                "{}: belongs to another build, ignored",
                shown(&path)
            ));
        }
    }
    let (name, checksum) = debug_link(elf)?;
    for path in link_paths(search, elf.path(), &name) {
        let Some(found) = open(&path, warn) else {
            continue;
        };
        let same_file = found.size() == elf.size() && found.section(".gnu_debuglink").is_some();
        if same_file {
            continue;
        }
        match (&build_id, found.build_id()) {
            (Some(ours), Some(theirs)) if *ours != theirs => {
                warn(format!(
                    "{}: belongs to another build, ignored",
                    shown(&path)
                ));
            }
            _ if checksum_of(&path) != Some(checksum) => {
                warn(format!(
                    "{}: checksum differs from the one in .gnu_debuglink, ignored",
                    shown(&path)
                ));
            }
            _ => return Some(found),
        }
    }
    None
}

fn build_id_paths(search: &DebugSearch, id: &BuildId) -> Vec<PathBuf> {
    let text = id.to_string();
    let (head, tail) = text.split_at(2);
    let relative = PathBuf::from(".build-id")
        .join(head)
        .join(format!("{tail}.debug"));
    search
        .directories
        .iter()
        .map(|directory| search.rooted(&directory.join(&relative)))
        .collect()
}

fn link_paths(search: &DebugSearch, file: &Path, name: &OsStr) -> Vec<PathBuf> {
    if search.directories.is_empty() {
        return Vec::new();
    }
    let directory = file.parent().unwrap_or(Path::new("/"));
    let beside = [directory.join(name), directory.join(".debug").join(name)];
    let global = search.directories.iter().map(|global| {
        let relative: PathBuf = directory
            .components()
            .filter(|c| matches!(c, Component::Normal(_)))
            .collect();
        global.join(relative).join(name)
    });
    beside
        .into_iter()
        .chain(global)
        .map(|path| search.rooted(&path))
        .collect()
}

/// The file name and the checksum in `.gnu_debuglink`: a NUL-terminated name, padded to 4 bytes, and a CRC-32.
fn debug_link(elf: &Elf) -> Option<(std::ffi::OsString, u32)> {
    let section = elf
        .section(".gnu_debuglink")
        .filter(|section| section.size < 4096)?;
    let data = elf.section_data(section).ok()??;
    let end = data.iter().position(|&byte| byte == 0)?;
    let name = OsStr::from_bytes(&data[..end]);
    let at = (end + 1).next_multiple_of(4);
    let checksum = u32::from_le_bytes(data.get(at..at + 4)?.try_into().ok()?);
    // A name, not a path: it must not lead out of the directories.
    let plain = Path::new(name).file_name() == Some(name);
    plain.then(|| (name.to_owned(), checksum))
}

/// Finds the file that dwz moved shared parts to: `.gnu_debugaltlink` holds its path and its build-id.
pub(crate) fn find_supplement(
    elf: &Elf,
    search: &DebugSearch,
    warn: &mut dyn FnMut(String),
) -> Option<Elf> {
    let section = elf
        .section(".gnu_debugaltlink")
        .filter(|section| section.size < 4096)?;
    let data = elf.section_data(section).ok()??;
    let end = data.iter().position(|&byte| byte == 0)?;
    let (name, id) = (
        Path::new(OsStr::from_bytes(&data[..end])),
        BuildId::from_bytes(&data[end + 1..])?,
    );
    // A relative path starts at the file's own directory, which was opened under the root already when it is a debug file.
    let own = elf.path().parent().unwrap_or(Path::new("/"));
    let near = if own.starts_with(&search.root) {
        own.to_owned()
    } else {
        search.rooted(own)
    };
    let named = if name.is_absolute() {
        search.rooted(name)
    } else {
        near.join(name)
    };
    let by_id = build_id_paths(search, &id);
    let found = std::iter::once(named)
        .chain(by_id)
        .filter_map(|path| open(&path, warn))
        .find(|found| found.build_id().as_ref() == Some(&id));
    if found.is_none() {
        warn(format!(
            "{}: its supplementary debug file {} is missing",
            shown(elf.path()),
            shown(name)
        ));
    }
    found
}

/// Opens a candidate; a file that is not there is no event.
pub(crate) fn open(path: &Path, warn: &mut dyn FnMut(String)) -> Option<Elf> {
    Elf::open(open_file(path)?, path)
        .inspect_err(|error| warn(error.to_string()))
        .ok()
}

fn checksum_of(path: &Path) -> Option<u32> {
    let file = open_regular(path)?;
    let small = file.metadata().is_ok_and(|it| it.len() <= MAX_CHECKSUMMED);
    if small { crc32_of(&file).ok() } else { None }
}

/// Opens what may be anything, without waiting for it.
fn open_file(path: &Path) -> Option<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(OPEN_FLAGS);
    options.open(path).ok()
}

/// Opens a regular file, and nothing else.
pub(crate) fn open_regular(path: &Path) -> Option<File> {
    let file = open_file(path)?;
    let regular = file.metadata().is_ok_and(|metadata| metadata.is_file());
    regular.then_some(file)
}

fn crc32_of(file: &File) -> std::io::Result<u32> {
    let table = crc32_table();
    let mut buffer = vec![0; 1 << 20];
    let (mut crc, mut offset) = (!0, 0);
    loop {
        let read = file.read_at(&mut buffer, offset)?;
        if read == 0 {
            return Ok(!crc);
        }
        crc = crc32(&table, crc, &buffer[..read]);
        offset += read as u64;
    }
}

/// CRC-32 with the reflected polynomial 0xedb88320, as zlib and GDB compute it.
fn crc32(table: &[u32; 256], start: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(start, |crc, &byte| {
        table[(crc as u8 ^ byte) as usize] ^ crc >> 8
    })
}

fn crc32_table() -> [u32; 256] {
    std::array::from_fn(|index| {
        (0..8).fold(index as u32, |crc, _| {
            if crc & 1 == 1 {
                crc >> 1 ^ 0xedb8_8320
            } else {
                crc >> 1
            }
        })
    })
}

fn shown(path: &Path) -> String {
    escape(&path.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_check_value() {
        assert_eq!(!crc32(&crc32_table(), !0, b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn paths_stay_under_the_root() {
        let search = DebugSearch::under("/proc/7/root");
        assert_eq!(
            search.rooted(Path::new("/usr/../lib/x")),
            Path::new("/proc/7/root/usr/lib/x")
        );
        let id = "abcdef".parse().unwrap();
        assert_eq!(
            build_id_paths(&search, &id),
            [Path::new(
                "/proc/7/root/usr/lib/debug/.build-id/ab/cdef.debug"
            )]
        );
    }
}
