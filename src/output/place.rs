//! Where a file is to be. A folder or a link on the way to it may be another user's, and lead to any file of whoever runs
//! darc: only links of this user and of root are followed.
//!
//! Source: path_resolution(7), symlink(7), open(2) `O_PATH` and `O_TMPFILE`.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat, readlinkat};
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::unistd::linkat;

/// As many links as the kernel follows in one path.
const MOST_LINKS: u32 = 40;
/// What a new file may be, before the mask of the process (umask(2)). What others can write is not gone on with: it names a
/// command.
pub const NEW: u32 = 0o644;

/// A name in a folder.
#[derive(Debug)]
pub struct Place {
    folder: OwnedFd,
    name: OsString,
    /// What has the name already: no folder and no link.
    found: Option<OwnedFd>,
}

impl Place {
    /// Where a path leads.
    ///
    /// # Errors
    /// When it leads to a folder or nowhere, or a link on the way is another user's.
    pub fn of(path: &Path) -> io::Result<Place> {
        let mut folder = folder(if path.is_absolute() { "/" } else { "." })?;
        let mut ahead = steps(path);
        let (mut links, mut leads_on) = (0, false);
        while let Some(name) = ahead.pop() {
            let options = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let found = match openat(&folder, name.as_os_str(), options, Mode::empty()) {
                Ok(found) => found,
                // What a link names at the end of the path must be there.
                Err(Errno::ENOENT) if ahead.is_empty() && !leads_on => {
                    let found = None;
                    return Ok(Place {
                        folder,
                        name,
                        found,
                    });
                }
                Err(errno) => return Err(errno.into()),
            };
            let data = fstat(&found)?;
            match SFlag::from_bits_truncate(data.st_mode) & SFlag::S_IFMT {
                SFlag::S_IFLNK => {
                    check_link(&name, data.st_uid)?;
                    links += 1;
                    leads_on |= ahead.is_empty();
                    if links > MOST_LINKS {
                        return Err(Errno::ELOOP.into());
                    }
                    let to = readlinkat(&found, "")?;
                    if Path::new(&to).is_absolute() {
                        folder = self::folder("/")?;
                    }
                    ahead.extend(steps(Path::new(&to)));
                }
                SFlag::S_IFDIR => folder = found,
                _ if ahead.is_empty() => {
                    let found = Some(found);
                    return Ok(Place {
                        folder,
                        name,
                        found,
                    });
                }
                _ => return Err(Errno::ENOTDIR.into()),
            }
        }
        Err(match path.as_os_str().is_empty() {
            true => Errno::ENOENT,
            false => Errno::EISDIR,
        }
        .into())
    }

    /// The place in the same folder whose name has something behind it. No link is followed there.
    ///
    /// # Errors
    /// When it cannot be known what is there.
    pub fn beside(&self, ending: &str) -> io::Result<Place> {
        let mut name = self.name.clone();
        name.push(ending);
        self.sibling(name)
    }

    /// The same place, as it is now.
    ///
    /// # Errors
    /// When it cannot be known what is there.
    pub fn again(&self) -> io::Result<Place> {
        self.sibling(self.name.clone())
    }

    fn sibling(&self, name: OsString) -> io::Result<Place> {
        let folder = self.folder.try_clone()?;
        let options = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let found = match openat(&folder, name.as_os_str(), options, Mode::empty()) {
            Ok(found) => Some(found),
            Err(Errno::ENOENT) => None,
            Err(errno) => return Err(errno.into()),
        };
        Ok(Place {
            folder,
            name,
            found,
        })
    }

    /// Whether the same file is in both.
    ///
    /// # Errors
    /// When that cannot be known.
    pub fn is_same(&self, other: &Place) -> io::Result<bool> {
        let identity = |found: &OwnedFd| fstat(found).map(|data| (data.st_dev, data.st_ino));
        match (&self.found, &other.found) {
            (Some(own), Some(other)) => Ok(identity(own)? == identity(other)?),
            _ => Ok(false),
        }
    }

    /// Whether there is something already.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.found.is_some()
    }

    /// Refuses what somebody has put there who is neither this user nor root nor the folder's owner: its mode would become
    /// that of the results, and a pipe might never be read.
    ///
    /// # Errors
    /// When it is so, or cannot be known.
    pub fn check_owner(&self) -> io::Result<()> {
        let Some(found) = &self.found else {
            return Ok(());
        };
        let owner = fstat(found)?.st_uid;
        let own = nix::unistd::geteuid().as_raw();
        if [0, own, fstat(&self.folder)?.st_uid].contains(&owner) {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("belongs to user {owner}; choose another name"),
        ))
    }

    /// Opens what is there. Waits for nobody.
    ///
    /// # Errors
    /// When that is not permitted, or it is a pipe without a reader.
    pub fn reopen(&self, options: &mut OpenOptions) -> io::Result<File> {
        let found = self.found.as_ref().ok_or(Errno::ENOENT)?;
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        options.custom_flags(flags).open(same(found))
    }

    /// Makes the file, which is not there.
    ///
    /// # Errors
    /// When it is by now, or the folder takes none.
    pub fn make(&self) -> io::Result<File> {
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(NEW)
            .open(self.path())
    }

    /// Makes a file in the folder that has no name, and goes with its descriptor. Not every file system can do that.
    ///
    /// # Errors
    /// When it cannot.
    pub fn nameless(&self) -> io::Result<File> {
        let options = OFlag::O_TMPFILE | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        let file = openat(&self.folder, ".", options, Mode::from_bits_truncate(NEW))?;
        Ok(file.into())
    }

    /// The folder, as a path of this process's own that nobody can lead elsewhere.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        same(&self.folder)
    }

    /// The file in that folder.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.folder().join(&self.name)
    }
}

/// Gives a file without a name one.
///
/// # Errors
/// When the name is taken, or the file system cannot do that.
pub fn name(file: &File, path: &Path) -> io::Result<()> {
    let file = format!("/proc/self/fd/{}", file.as_raw_fd());
    let here = nix::fcntl::AT_FDCWD;
    Ok(linkat(
        here,
        file.as_str(),
        here,
        path,
        AtFlags::AT_SYMLINK_FOLLOW,
    )?)
}

fn same(file: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn folder(path: &str) -> Result<OwnedFd, Errno> {
    let options = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    open(path, options, Mode::empty())
}

/// The parts of a path, the last one first.
fn steps(path: &Path) -> Vec<OsString> {
    let parts = path.components().rev();
    parts
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some(OsString::from("..")),
            _ => None,
        })
        .collect()
}

fn check_link(link: &OsStr, owner: u32) -> io::Result<()> {
    let own = nix::unistd::geteuid().as_raw();
    if [0, own].contains(&owner) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("{link:?} is a symbolic link of user {owner}, which is not followed"),
    ))
}
