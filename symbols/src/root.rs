//! Files as a process sees them: below its root, out of which no link leads.
//!
//! Who names a file may be hostile: a mapping, a link to debug information and the paths in it are what the program's
//! author, or the program itself, has made them. At the path may be a pipe, a device, or links to somewhere else.
//! So a path is followed link by link within the root, what is at its end is looked at before it is opened, and opening
//! waits for nobody.
//!
//! openat2(2) with `RESOLVE_IN_ROOT` follows paths likewise; kernels before 5.6 and some containers do not have it.
//! Source: open(2) `O_PATH`, symlink(7), path_resolution(7).

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Component, Path};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, readlinkat};
use nix::sys::stat::{Mode, SFlag, fstat};

use crate::error::Error;

/// As many links as the kernel follows in one path.
const MOST_LINKS: u32 = 40;
/// A path that goes deeper is not followed: each folder on the way is open until its end.
const DEEPEST: usize = 200;

/// The root folder of a file system, as one process sees it.
#[derive(Clone, Debug)]
pub struct Root(Option<Arc<OwnedFd>>);

impl Root {
    /// The root at a path of this process's own: `/`, or `/proc/PID/root`. Nothing is below it when it cannot be opened.
    #[must_use]
    pub fn at(path: &Path) -> Root {
        let options = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let folder = nix::fcntl::open(path, options, Mode::empty());
        Root(folder.ok().map(Arc::new))
    }

    /// One with nothing below it.
    #[must_use]
    pub fn nowhere() -> Root {
        Root(None)
    }

    /// Opens a regular file for reading. The path begins at the root, whether it says so or not.
    ///
    /// # Errors
    /// When there is none, it is something else than a file, or it may not be read.
    pub fn open(&self, path: &Path) -> Result<File, Error> {
        let io = |source| Error::Io {
            path: path.to_owned(),
            source,
        };
        let place = self.place(path).map_err(io)?;
        match opened(&place) {
            Ok(Some(file)) => Ok(file),
            Ok(None) => Err(Error::NotAFile {
                path: path.to_owned(),
            }),
            Err(source) => Err(io(source)),
        }
    }

    /// Opens a regular file in this very folder for reading: no link to one.
    ///
    /// # Errors
    /// When there is none, it is something else, or it may not be read.
    pub fn open_itself(&self, name: &str) -> io::Result<File> {
        let folder = self.0.as_ref().ok_or(Errno::ENOENT)?;
        let place = File::from(enter(folder.as_fd(), name.as_ref())?);
        opened(&place)?.ok_or_else(|| Errno::EINVAL.into())
    }

    /// What is at the end of a path, as a place only (`O_PATH`): it can be compared, and opened by [`opened`].
    ///
    /// # Errors
    /// When there is nothing, or it may not be known.
    pub fn place(&self, path: &Path) -> io::Result<File> {
        Ok(self.follow(path)?)
    }

    /// A folder as a root of its own; nothing is below it when there is none.
    #[must_use]
    pub fn folder(&self, path: &Path) -> Root {
        let place = self.follow(path).ok();
        let is_folder = |place: &File| place.metadata().is_ok_and(|data| data.is_dir());
        Root(place.filter(is_folder).map(|place| Arc::new(place.into())))
    }

    /// Whether there is anything below it.
    #[must_use]
    pub fn is_somewhere(&self) -> bool {
        self.0.is_some()
    }

    /// The names in this folder, in no order.
    pub fn names(&self) -> impl Iterator<Item = OsString> + use<> {
        let same = |folder: &Arc<OwnedFd>| format!("/proc/self/fd/{}", folder.as_raw_fd());
        let entries = self.0.as_ref().and_then(|it| fs::read_dir(same(it)).ok());
        let entries = entries.into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name())
    }

    fn follow(&self, path: &Path) -> Result<File, Errno> {
        let root = self.0.as_ref().ok_or(Errno::ENOENT)?;
        let mut way: Vec<OwnedFd> = Vec::new();
        let mut ahead = steps(path);
        let mut links = 0;
        while let Some(step) = ahead.pop() {
            let Step::Into(name) = step else {
                way.pop();
                continue;
            };
            let folder = way.last().map_or(root.as_fd(), |folder| folder.as_fd());
            let found = enter(folder, &name)?;
            let kind = SFlag::from_bits_truncate(fstat(&found)?.st_mode) & SFlag::S_IFMT;
            if kind == SFlag::S_IFLNK {
                links += 1;
                if links > MOST_LINKS {
                    return Err(Errno::ELOOP);
                }
                let to = readlinkat(&found, "")?;
                let to = Path::new(&to);
                if to.is_absolute() {
                    way.clear();
                }
                ahead.extend(steps(to));
            } else {
                way.push(found);
            }
            if way.len() > DEEPEST {
                return Err(Errno::ENAMETOOLONG);
            }
        }
        way.pop().map(File::from).ok_or(Errno::EISDIR)
    }
}

/// What has a name in a folder, be it a link, as a place only.
fn enter(folder: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    let options = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(folder, name, options, Mode::empty())
}

/// A part of a path.
enum Step {
    Into(OsString),
    Out,
}

/// The parts of a path, the last one first.
fn steps(path: &Path) -> Vec<Step> {
    let parts = path.components().rev();
    parts
        .filter_map(|part| match part {
            Component::Normal(name) => Some(Step::Into(name.to_owned())),
            Component::ParentDir => Some(Step::Out),
            _ => None,
        })
        .collect()
}

/// Opens for reading what is known as a place; `None` when it is no regular file. Waits for nobody.
///
/// # Errors
/// When it may not be read.
pub fn opened(place: &File) -> io::Result<Option<File>> {
    if !place.metadata()?.is_file() {
        return Ok(None);
    }
    let mut options = OpenOptions::new();
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    options.read(true).custom_flags(flags.bits());
    let same = format!("/proc/self/fd/{}", place.as_raw_fd());
    options.open(same).map(Some)
}

/// What is at the end of a path of this process's own, all links followed, as a place only (`O_PATH`).
///
/// # Errors
/// When there is nothing, or it may not be known.
pub fn place(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(OFlag::O_PATH.bits());
    options.open(path)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::fs::symlink;

    use super::*;

    fn content(root: &Root, path: &str) -> Result<String, Error> {
        let mut text = String::new();
        root.open(Path::new(path))?
            .read_to_string(&mut text)
            .expect("it is text");
        Ok(text)
    }

    #[test]
    fn links_stay_below_the_root() {
        let folder = tempfile::tempdir().unwrap();
        let outside = folder.path().join("file");
        fs::write(&outside, "outside").unwrap();
        let inside = folder.path().join("root");
        fs::create_dir_all(inside.join("a/b")).unwrap();
        fs::write(inside.join("file"), "inside").unwrap();
        symlink("/file", inside.join("absolute")).unwrap();
        symlink("../../../../file", inside.join("a/b/upwards")).unwrap();
        symlink(&outside, inside.join("outside")).unwrap();
        symlink("a/b", inside.join("folder")).unwrap();
        symlink("upwards", inside.join("a/b/link")).unwrap();
        let root = Root::at(&inside);
        for path in [
            "/file",
            "file",
            "//./file",
            "../file",
            "a/../file",
            "/absolute",
            "/a/b/upwards",
            "/folder/link",
            "/folder/../../file",
        ] {
            assert_eq!(content(&root, path).unwrap(), "inside", "{path}");
        }
        assert!(matches!(
            content(&root, "/outside"),
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound
        ));
        assert_eq!(
            content(&Root::at(folder.path()), "/file").unwrap(),
            "outside"
        );
    }

    #[test]
    fn what_is_no_file_is_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path();
        nix::unistd::mkfifo(&here.join("pipe"), Mode::S_IRWXU).unwrap();
        symlink("pipe", here.join("link")).unwrap();
        symlink("loop", here.join("loop")).unwrap();
        fs::create_dir(here.join("folder")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(here.join("socket")).unwrap();
        let root = Root::at(here);
        for path in ["pipe", "link", "folder", "socket"] {
            let refused = content(&root, path);
            assert!(matches!(refused, Err(Error::NotAFile { .. })), "{path}");
        }
        let errno = |path| match content(&root, path) {
            Err(Error::Io { source, .. }) => source.raw_os_error(),
            other => panic!("{path}: {other:?}"),
        };
        assert_eq!(errno("loop"), Some(Errno::ELOOP as i32));
        assert_eq!(errno("/"), Some(Errno::EISDIR as i32));
        assert_eq!(errno("nothing"), Some(Errno::ENOENT as i32));
        assert_eq!(errno("pipe/x"), Some(Errno::ENOTDIR as i32));
        let device = content(&Root::at(Path::new("/")), "/dev/tty");
        assert!(device.is_err(), "{device:?}");
    }

    #[test]
    fn a_path_has_a_longest_length() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("a")).unwrap();
        symlink("/a/x/x/x/x", folder.path().join("a/x")).unwrap();
        let refused = content(&Root::at(folder.path()), "a/x/y");
        assert!(refused.is_err(), "{refused:?}");
        assert!(content(&Root::nowhere(), "/etc/hostname").is_err());
    }
}
