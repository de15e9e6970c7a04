//! Separate debug files, by build-id and by `.gnu_debuglink`, and those that a client of debuginfod has fetched. Source: GDB
//! manual, "Debugging Information in Separate Files"; debuginfod_find_debuginfo(3).

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::addr::BuildId;
use crate::demangle::escape;
use crate::elf::Elf;
use crate::error::Error;
use crate::root::Root;

/// Bytes of which checksums may still be computed, of all files together: some ten seconds. A program may name a large file in
/// each of thousands of libraries. Of what is beyond the build-id must do.
static LEFT_TO_CHECKSUM: AtomicU64 = AtomicU64::new(4 << 30);

/// Where to look for separate debug files.
#[derive(Clone, Debug)]
pub struct DebugSearch {
    /// What every path begins at: that of a target in a container is another one than this process's.
    pub root: Root,
    /// Global debug directories below the root.
    pub directories: Vec<PathBuf>,
    /// Where clients of debuginfod leave what they fetch, below this process's own root; it may not be there yet.
    pub fetched: Option<PathBuf>,
}

impl DebugSearch {
    /// The usual directories below `root`, and what debuginfod has fetched.
    #[must_use]
    pub fn below(root: Root) -> DebugSearch {
        DebugSearch {
            root,
            directories: vec![PathBuf::from("/usr/lib/debug")],
            fetched: fetched_to(|name| std::env::var_os(name)),
        }
    }

    /// Looks nowhere.
    #[must_use]
    pub fn nowhere() -> DebugSearch {
        DebugSearch {
            root: Root::nowhere(),
            directories: Vec::new(),
            fetched: None,
        }
    }

    /// The files that may have a build-id's debug information: what each path begins at, and the path.
    fn by_build_id(&self, id: &BuildId) -> impl Iterator<Item = (Root, PathBuf)> {
        let below = build_id_paths(self, id).into_iter();
        let in_cache = PathBuf::from(id.to_string()).join("debuginfo");
        let fetched = self.fetched.as_deref().filter(|cache| is_ours(cache));
        // Of what a server has not there is an empty file.
        let is_there = |cache: &&Path| {
            let file = std::fs::metadata(cache.join(&in_cache));
            file.is_ok_and(|file| file.len() > 0)
        };
        let fetched = fetched.filter(is_there).map(Root::at);
        below
            .map(|path| (self.root.clone(), path))
            .chain(fetched.map(|cache| (cache, in_cache)))
    }
}

/// Whether nobody but this process's user and root could have put something into a folder.
fn is_ours(folder: &Path) -> bool {
    let owners = [nix::unistd::geteuid().as_raw(), 0];
    std::fs::metadata(folder)
        .is_ok_and(|folder| owners.contains(&folder.uid()) && folder.mode() & 0o022 == 0)
}

/// Opens a candidate; a file that is not there is no event.
fn open(root: &Root, path: &Path, warn: &mut dyn FnMut(String)) -> Option<Elf> {
    let opened = root.open(path).and_then(|file| Elf::open(file, path));
    opened
        .inspect_err(|error| {
            let missing = [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory];
            if !matches!(error, Error::Io { source, .. } if missing.contains(&source.kind())) {
                warn(error.to_string());
            }
        })
        .ok()
}

/// The folder to which clients of debuginfod fetch, by variables of the environment.
fn fetched_to(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name| {
        let value = variable(name).map(PathBuf::from);
        value.filter(|path| path.is_absolute())
    };
    let client = "debuginfod_client";
    folder("DEBUGINFOD_CACHE_PATH")
        .or_else(|| Some(folder("XDG_CACHE_HOME")?.join(client)))
        .or_else(|| Some(folder("HOME")?.join(".cache").join(client)))
}

impl Default for DebugSearch {
    fn default() -> DebugSearch {
        DebugSearch::below(Root::at(Path::new("/")))
    }
}

/// Finds and opens the debug file of `elf`. Files that do not belong to it are passed over with a warning.
pub(crate) fn find(elf: &Elf, search: &DebugSearch, warn: &mut dyn FnMut(String)) -> Option<Elf> {
    let build_id = elf.build_id();
    let by_id = build_id.iter().flat_map(|id| search.by_build_id(id));
    for (root, path) in by_id {
        if let Some(found) = open(&root, &path, warn) {
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
        let Some(found) = open(&search.root, &path, warn) else {
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
            (ours, theirs) if !may_be_read(found.size(), &LEFT_TO_CHECKSUM) => {
                // The checksum would tell no more than whether it is damaged.
                if theirs.is_some() && *ours == theirs {
                    return Some(found);
                }
                // The same words for all, which are told once.
                warn(
                    "not all debug files that are named by .gnu_debuglink are used: they are too large to be compared with their checksums, 4 GiB together"
                        .to_owned(),
                );
            }
            _ if checksum_of(&found) != Some(checksum) => {
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
        .map(|directory| directory.join(&relative))
        .collect()
}

fn link_paths(search: &DebugSearch, file: &Path, name: &OsStr) -> Vec<PathBuf> {
    if search.directories.is_empty() {
        return Vec::new();
    }
    let directory = file.parent().unwrap_or(Path::new("/"));
    let beside = [directory.join(name), directory.join(".debug").join(name)];
    let below = directory.strip_prefix("/").unwrap_or(directory);
    let global = search.directories.iter();
    let global = global.map(|global| global.join(below).join(name));
    beside.into_iter().chain(global).collect()
}

/// The file name and the checksum in `.gnu_debuglink`: a NUL-terminated name, padded to 4 bytes, and a CRC-32.
fn debug_link(elf: &Elf) -> Option<(OsString, u32)> {
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
    // A relative path starts at the file's own directory.
    let own = elf.path().parent().unwrap_or(Path::new("/"));
    let found = std::iter::once((search.root.clone(), own.join(name)))
        .chain(search.by_build_id(&id))
        .filter_map(|(root, path)| open(&root, &path, warn))
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

/// Whether so many bytes are left, of which they are taken.
fn may_be_read(bytes: u64, left: &AtomicU64) -> bool {
    let taken = |left: u64| left.checked_sub(bytes);
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken)
        .is_ok()
}

fn checksum_of(elf: &Elf) -> Option<u32> {
    const PART: u64 = 1 << 20;
    let table = crc32_table();
    let mut crc = !0;
    for start in (0..elf.size()).step_by(PART as usize) {
        let bytes = elf.read(start, PART.min(elf.size() - start)).ok()?;
        crc = crc32(&table, crc, &bytes);
    }
    Some(!crc)
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
    fn what_is_checksummed_is_bounded_in_all() {
        let left = AtomicU64::new(100);
        let may = [60, 50, 40, 1].map(|bytes| may_be_read(bytes, &left));
        assert_eq!(may, [true, false, true, false]);
    }

    #[test]
    fn where_files_are_fetched_to() {
        let with = |given: &'static [(&str, &str)]| {
            fetched_to(move |name| {
                let found = given.iter().find(|(given, _)| *given == name);
                found.map(|(_, value)| OsString::from(value))
            })
        };
        let path = |path: &str| Some(PathBuf::from(path));
        const HOME: (&str, &str) = ("HOME", "/home/me");
        assert_eq!(with(&[HOME]), path("/home/me/.cache/debuginfod_client"));
        assert_eq!(
            with(&[HOME, ("XDG_CACHE_HOME", "/x")]),
            path("/x/debuginfod_client")
        );
        assert_eq!(with(&[HOME, ("DEBUGINFOD_CACHE_PATH", "/d")]), path("/d"));
        assert_eq!(with(&[("DEBUGINFOD_CACHE_PATH", "here")]), None);
    }

    #[test]
    fn where_debug_files_are_looked_for() {
        let search = DebugSearch::below(Root::nowhere());
        let id = "abcdef".parse().unwrap();
        assert_eq!(
            build_id_paths(&search, &id),
            [Path::new("/usr/lib/debug/.build-id/ab/cdef.debug")]
        );
        assert_eq!(
            link_paths(&search, Path::new("/bin/x"), OsStr::new("x.debug")),
            [
                Path::new("/bin/x.debug"),
                Path::new("/bin/.debug/x.debug"),
                Path::new("/usr/lib/debug/bin/x.debug"),
            ]
        );
    }
}
