//! Files that a process names: what it has mapped, and its program's source. The one place where they are opened.
//!
//! darc may run as root, and the process may be anybody's. So paths are followed within the process's own root
//! ([`Root`]), only regular files are opened, what is mapped is compared with what was opened, and source is read
//! with the rights of the process's own user, from no file that the kernel makes: of such a file its own code decides who
//! may read it, often by what root may do beside reading any file (capabilities(7)).

use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Range;
use std::path::{Path, PathBuf};

use darc_symbols::{Error, Root};
use darc_tracer::maps::FileId;
use darc_tracer::threads;
use darc_tracer::users::User;
use nix::sys::statfs::{self, FsType, fstatfs};

/// A larger source file is not read.
const MAX_SOURCE: u64 = 16 << 20;

/// The file systems whose files the kernel makes when they are read (statfs(2); Linux, include/uapi/linux/magic.h).
const OF_KERNEL: [FsType; 13] = [
    statfs::PROC_SUPER_MAGIC,
    statfs::SYSFS_MAGIC,
    statfs::TRACEFS_MAGIC,
    statfs::DEBUGFS_MAGIC,
    statfs::SECURITYFS_MAGIC,
    statfs::SELINUX_MAGIC,
    statfs::SMACK_MAGIC,
    statfs::CGROUP_SUPER_MAGIC,
    statfs::CGROUP2_SUPER_MAGIC,
    statfs::RDTGROUP_SUPER_MAGIC,
    statfs::BPF_FS_MAGIC,
    // Settings of kernel modules, and what the firmware keeps.
    FsType(0x6265_6570),
    FsType(0xde5e_81e4),
];

/// The root of a process's file system.
#[must_use]
pub fn root_of(pid: i32) -> Root {
    Root::at(&threads::proc_folder(pid).join("root"))
}

/// Opens the file that a process has mapped at `range`, not what its path names by now: it may have been removed or
/// replaced.
///
/// # Errors
/// Why it cannot be had.
pub fn mapped(
    pid: i32,
    root: &Root,
    (path, file): (&Path, FileId),
    range: Range<u64>,
) -> Result<File, String> {
    // To few, and then without a doubt: the kernel itself keeps the file.
    let exact = format!("/proc/{pid}/map_files/{:x}-{:x}", range.start, range.end);
    if let Ok(Some(exact)) = by_link(Path::new(&exact)) {
        return Ok(exact);
    }
    let is_it = |opened: &File| file.is(opened);
    let by_path = root.open(path);
    if let Some(found) = by_path.as_ref().ok().filter(|found| is_it(found))
        && let Ok(found) = found.try_clone()
    {
        return Ok(found);
    }
    let exe = threads::proc_folder(pid).join("exe");
    if let Ok(Some(found)) = by_link(&exe)
        && is_it(&found)
    {
        return Ok(found);
    }
    Err(match by_path {
        Ok(_) => "it was replaced, and the file that is mapped can be read by root only".to_owned(),
        Err(Error::NotAFile { .. }) => {
            "what is at its path now is no regular file (a pipe, a device, a folder)".to_owned()
        }
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            "it was removed, and can be read by root only".to_owned()
        }
        Err(Error::Io { source, .. }) => source.to_string(),
        Err(error) => error.to_string(),
    })
}

/// Follows a link of `/proc` that leads to a file without a path.
fn by_link(link: &Path) -> io::Result<Option<File>> {
    darc_symbols::opened(&darc_symbols::place(link)?)
}

/// A program's source files, as the process that runs it could read them itself.
#[derive(Clone, Debug)]
pub struct Sources {
    /// Where they are.
    pub root: Root,
    /// Who may read them; nobody where that is not known.
    pub user: Option<User>,
}

impl Sources {
    /// The lines of a file; `None` when it cannot be read.
    #[must_use]
    pub fn lines(&self, path: &Path) -> Option<Vec<String>> {
        if !path.is_absolute() {
            return None;
        }
        let open = || self.root.open(path);
        let file = self.user.as_ref()?.acting(open).ok()?.ok()?;
        if OF_KERNEL.contains(&fstatfs(&file).ok()?.filesystem_type()) {
            return None;
        }
        let mut bytes = Vec::new();
        file.take(MAX_SOURCE).read_to_end(&mut bytes).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        Some(text.lines().map(str::to_owned).collect())
    }
}

/// A mapped file's path, without what the kernel adds when it has been removed.
#[must_use]
pub fn path_of(name: &str) -> PathBuf {
    PathBuf::from(name.strip_suffix(" (deleted)").unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use darc_tracer::maps;

    use super::*;

    fn own() -> i32 {
        std::process::id() as i32
    }

    #[test]
    fn the_mapped_file_is_found_and_no_other() {
        let mappings = maps::read(own()).unwrap();
        let mapping = mappings.iter().find(|mapping| mapping.is_file()).unwrap();
        let root = root_of(own());
        let nowhere = 0..4096;
        let found = mapped(own(), &root, (&mapping.name, mapping.file), nowhere.clone());
        assert!(mapping.file.is(&found.unwrap()));

        let folder = tempfile::tempdir().unwrap();
        let other = FileId {
            inode: u64::MAX,
            ..mapping.file
        };
        let why = |path: &Path| mapped(own(), &root, (path, other), nowhere.clone()).unwrap_err();
        assert!(why(&mapping.name).contains("replaced"));
        assert!(why(&folder.path().join("nothing")).contains("removed"));
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(why(&pipe).contains("no regular file"));
        assert!(why(folder.path()).contains("no regular file"));
        let link = folder.path().join("loop");
        std::os::unix::fs::symlink("loop", &link).unwrap();
        assert!(why(&link).contains("symbolic links"), "{}", why(&link));
    }

    #[test]
    fn source_is_read_as_the_user_may() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "one\ntwo\n").unwrap();
        let folder = file.path().parent().unwrap();
        let sources = Sources {
            root: root_of(own()),
            user: User::of(own()),
        };
        assert_eq!(sources.lines(file.path()).unwrap(), ["one", "two"]);
        assert_eq!(sources.lines(folder), None);
        assert_eq!(sources.lines(Path::new("relative")), None);
        for made in ["/proc/self/maps", "/proc/kallsyms", "/sys/power/state"] {
            assert_eq!(sources.lines(Path::new(made)), None, "{made}");
        }
        let unknown = Sources {
            user: None,
            ..sources
        };
        assert_eq!(unknown.lines(file.path()), None);
        fs::set_permissions(file.path(), Permissions::from_mode(0o600)).unwrap();
    }
}
