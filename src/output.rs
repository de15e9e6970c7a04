//! The file that results go to: made before the target is touched, put in place in one step at the end.
//!
//! A regular file is written beside its final place and renamed over it, so that a full disk, a crash
//! or a second darc leaves the earlier file whole. What is no regular file (a pipe, a device, anything
//! below `/dev` or `/proc`) is written directly.
//! Source: open(2), rename(2), fsync(2), fifo(7).

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use tempfile::NamedTempFile;
use thiserror::Error;

/// Why results cannot be written.
#[derive(Error, Debug)]
pub enum OutputError {
    /// The file cannot be made.
    #[error("{path:?}: cannot be written: {source}; name another file with -o")]
    Open {
        /// The file as the person named it.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The file was made, but the results did not get there. An earlier file is as it was.
    #[error(
        "{path:?}: the results could not be written: {source}; make room or name another file with -o"
    )]
    Write {
        /// The file as the person named it.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Stdout takes nothing.
    #[error("stdout: {0}; make room or redirect it elsewhere")]
    Stdout(io::Error),
}

/// An output file that is open and waits for the results.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    sink: Sink,
}

#[derive(Debug)]
enum Sink {
    /// Written beside `place`, then renamed to it.
    Beside {
        file: NamedTempFile<File>,
        place: PathBuf,
    },
    /// Written where it is.
    Direct(File),
}

impl Output {
    /// Opens `path` for results. Waits for nobody: a named pipe needs a reader already.
    ///
    /// # Errors
    /// When the results could not be put there: a missing directory, no permission, a directory.
    pub fn open(path: &Path) -> Result<Self, OutputError> {
        let sink = Sink::open(path).map_err(|source| OutputError::Open {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            path: path.to_owned(),
            sink,
        })
    }

    /// Writes the results and puts them in place, on disk.
    ///
    /// # Errors
    /// When the disk is full, a limit is reached, the pipe is closed: then the file is as it was before.
    pub fn write(self, results: &[u8]) -> Result<(), OutputError> {
        let path = self.path;
        self.sink
            .write(results)
            .map_err(|source| OutputError::Write { path, source })
    }
}

impl Sink {
    fn open(path: &Path) -> io::Result<Self> {
        let mut permissions = None;
        let place = match fs::metadata(path) {
            Ok(existing) => {
                let place = fs::canonicalize(path)?;
                let special = path.starts_with("/dev") || path.starts_with("/proc");
                // O_NONBLOCK, for a pipe without a reader; and it also says whether the file may be written.
                let file = OpenOptions::new()
                    .write(true)
                    .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
                    .open(path)?;
                if special || !existing.is_file() {
                    return Ok(Sink::Direct(file));
                }
                permissions = Some(Permissions::from_mode(
                    existing.permissions().mode() & 0o777,
                ));
                place
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && path.file_name().is_some() => {
                if fs::symlink_metadata(path).is_ok() {
                    return Err(io::Error::new(
                        io::ErrorKind::NotFound,
                        "a symbolic link that leads nowhere",
                    ));
                }
                path.to_owned()
            }
            Err(error) => return Err(error),
        };
        let directory = match place.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let file = tempfile::Builder::new()
            .prefix(".darc-")
            .suffix(".partial")
            .make_in(directory, |path| {
                OpenOptions::new().write(true).create_new(true).open(path)
            })?;
        if let Some(permissions) = permissions {
            file.as_file().set_permissions(permissions)?;
        }
        Ok(Sink::Beside { file, place })
    }

    fn write(self, results: &[u8]) -> io::Result<()> {
        match self {
            Sink::Beside { mut file, place } => {
                file.write_all(results)?;
                file.as_file().sync_all()?;
                let directory = place.parent().map(Path::to_owned).unwrap_or_default();
                file.persist(&place).map_err(|error| error.error)?;
                // So that the new name survives a crash; a directory that cannot be opened is no failure.
                let directory = if directory.as_os_str().is_empty() {
                    Path::new(".")
                } else {
                    &directory
                };
                if let Ok(directory) = File::open(directory) {
                    let _ = directory.sync_all();
                }
                Ok(())
            }
            Sink::Direct(mut file) => {
                let flags = OFlag::from_bits_retain(fcntl(&file, FcntlArg::F_GETFL)?);
                fcntl(&file, FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK))?;
                file.write_all(results)?;
                file.flush()
            }
        }
    }
}

/// Writes to stdout. Whoever read it may have had enough, as in `darc report out.txt | head`.
///
/// # Errors
/// When the text could not be written for another reason, such as a full disk.
pub fn to_stdout(text: &str) -> Result<(), OutputError> {
    let mut stdout = io::stdout();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(OutputError::Stdout),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn the_earlier_file_stays_until_the_results_are_complete() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.txt");
        fs::write(&path, "earlier").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();

        let abandoned = Output::open(&path).unwrap();
        drop(abandoned);
        assert_eq!(fs::read_to_string(&path).unwrap(), "earlier");

        let output = Output::open(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "earlier");
        output.write(b"results").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "results");
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o640
        );
        assert_eq!(
            names(directory.path()),
            ["out.txt"],
            "nothing else is left behind"
        );
    }

    #[test]
    fn a_link_stays_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("real"), directory.path().join("link"));
        fs::write(&path, "").unwrap();
        symlink(&path, &link).unwrap();
        Output::open(&link).unwrap().write(b"results").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&path).unwrap(), "results");
    }

    #[test]
    fn what_cannot_be_written_is_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        symlink(here.join("nowhere"), here.join("dangling")).unwrap();
        nix::unistd::mkfifo(&here.join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        for path in [
            here.to_owned(),
            here.join("missing/out.txt"),
            here.join("dangling"),
            here.join("fifo"),
            "".into(),
        ] {
            let error = Output::open(&path).unwrap_err();
            assert!(matches!(error, OutputError::Open { .. }), "{path:?}");
            assert!(!error.to_string().contains(".partial"), "{error}");
        }
    }

    #[test]
    fn a_full_device_is_an_error_and_the_null_device_is_not() {
        let error = Output::open(Path::new("/dev/full"))
            .unwrap()
            .write(b"results")
            .unwrap_err();
        assert!(
            error.to_string().contains("No space left on device"),
            "{error}"
        );
        Output::open(Path::new("/dev/null"))
            .unwrap()
            .write(b"results")
            .unwrap();
    }

    #[test]
    fn a_closed_pipe_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fifo");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let reader = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(&path)
            .unwrap();
        let output = Output::open(&path).unwrap();
        drop(reader);
        assert!(
            output
                .write(b"results")
                .unwrap_err()
                .to_string()
                .contains("Broken pipe")
        );
    }
}
