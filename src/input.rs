//! Files that darc reads because they were named: opened without waiting, read within bounds, and
//! judged by who could have written them.

use std::fs::{Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use thiserror::Error;

/// Why a file is not read.
#[derive(Error, Debug)]
pub enum InputError {
    /// The kernel refuses.
    #[error("cannot be read: {0}; check the path")]
    Io(#[from] io::Error),
    /// A directory, a pipe, a device.
    #[error("is no regular file; name a file")]
    NotRegular,
    /// Larger than anything that could be meant.
    #[error("is larger than {} KiB, as no file of darc is; name another file", .0 >> 10)]
    TooLarge(usize),
}

/// The whole content of a regular file of at most `largest` bytes, and what the kernel says about it.
///
/// # Errors
/// When it cannot be read, is no regular file, or is larger.
pub fn read_bounded(path: &Path, largest: usize) -> Result<(Vec<u8>, Metadata), InputError> {
    // O_NONBLOCK: a named pipe must not make darc wait.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(InputError::NotRegular);
    }
    let limit = u64::try_from(largest).unwrap_or(u64::MAX);
    if metadata.len() > limit {
        return Err(InputError::TooLarge(largest));
    }
    // The size may be wrong, as below /proc, or grow meanwhile.
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() > largest {
        return Err(InputError::TooLarge(largest));
    }
    Ok((bytes, metadata))
}

/// Why a command that a file names must not be run: somebody else may have written it.
/// `None` when it is the user's own file (or root's) that nobody else can write.
#[must_use]
pub fn distrust(metadata: &Metadata) -> Option<String> {
    let user = nix::unistd::geteuid().as_raw();
    if metadata.uid() != user && metadata.uid() != 0 {
        Some(format!("the file belongs to user {}", metadata.uid()))
    } else if metadata.mode() & 0o022 != 0 {
        Some("other users can write the file".to_owned())
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_regular_files_within_bounds_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("small"), "12345").unwrap();
        assert_eq!(read_bounded(&path("small"), 5).unwrap().0, b"12345");
        assert!(matches!(
            read_bounded(&path("small"), 4),
            Err(InputError::TooLarge(4))
        ));
        File::create(path("sparse"))
            .unwrap()
            .set_len(100 << 30)
            .unwrap();
        assert!(matches!(
            read_bounded(&path("sparse"), 1 << 20),
            Err(InputError::TooLarge(_))
        ));
        nix::unistd::mkfifo(&path("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        for path in [
            path("fifo").as_path(),
            directory.path(),
            Path::new("/dev/zero"),
        ] {
            assert!(
                matches!(read_bounded(path, 5), Err(InputError::NotRegular)),
                "{path:?}"
            );
        }
        assert!(matches!(
            read_bounded(&path("missing"), 5),
            Err(InputError::Io(_))
        ));
        // Says that it is empty, and is not.
        assert!(matches!(
            read_bounded(Path::new("/proc/self/status"), 5),
            Err(InputError::TooLarge(5))
        ));
    }

    #[test]
    fn a_file_that_others_can_write_is_not_trusted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "").unwrap();
        for (mode, trusted) in [(0o600, true), (0o644, true), (0o664, false), (0o602, false)] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert_eq!(
                distrust(&fs::metadata(&path).unwrap()).is_none(),
                trusted,
                "{mode:o}"
            );
        }
    }
}
