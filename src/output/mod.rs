//! The file that results go to: known to be writable before the target is touched, put in place in one step at the end.
//!
//! A regular file is written beside its final place and renamed over it, so that a full disk, a crash
//! or a second darc leaves the earlier file whole. Until it is complete it has no name, where the file system allows that:
//! a darc that is killed leaves nothing. What is no regular file (a pipe, a device, an open file of this process) is
//! written directly. A file that darc has not written is not replaced. What a measurement replaces is kept as `NAME.old`.
//! Source: open(2), linkat(2), rename(2), fsync(2), fifo(7).

pub mod opener;
mod ours;
mod place;

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, IsTerminal as _, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use tempfile::NamedTempFile;
use thiserror::Error;

use self::place::Place;
use crate::terminal::warning;

/// What is added to the name of what was there before.
const EARLIER: &str = ".old";
/// What a file is called until it is in place.
const PARTIAL: (&str, &str) = (".darc-", ".partial");

/// Why results cannot be written.
#[derive(Error, Debug)]
pub enum OutputError {
    /// The file cannot be made.
    #[error("{path:?}: {}", refusal(source, "-o"))]
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
    /// A terminal would take what is no text for commands.
    #[error("stdout: is a terminal, and this format is no text; name a file with -o")]
    NoText,
    /// Stdout takes nothing.
    #[error("stdout: {0}; make room or redirect it elsewhere")]
    Stdout(io::Error),
}

/// Why a file cannot be opened, and what to do; `option` names another one.
pub fn refusal(error: &io::Error, option: &str) -> String {
    match error.kind() {
        // Not the kernel's: it says what to do.
        io::ErrorKind::AlreadyExists if error.raw_os_error().is_none() => {
            format!("{error}, or name another file with {option}")
        }
        _ => format!("cannot be written: {error}; name another file with {option}"),
    }
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
        place: Place,
        permissions: Option<Permissions>,
        /// Where the folder can have one.
        nameless: Option<File>,
        /// Whether what it replaces is kept.
        keeps: bool,
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

    /// The same, for results that cannot be had again: what is there already is kept as `NAME.old`.
    ///
    /// # Errors
    /// The same; and when there is a file of that name which darc has not written.
    pub fn open_keeping(path: &Path) -> Result<Self, OutputError> {
        let mut output = Self::open(path)?;
        let kept = output.sink.keep();
        kept.map_err(|source| OutputError::Open {
            path: beside(path),
            source,
        })?;
        Ok(output)
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
        if is_open_file(path) {
            // O_NONBLOCK, for a pipe without a reader.
            let mut options = OpenOptions::new();
            let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
            let file = options.write(true).custom_flags(flags).open(path)?;
            return Ok(Sink::Direct(file));
        }
        let place = Place::of(path)?;
        let mut permissions = None;
        if place.is_taken() {
            let (file, is_regular) = open_existing(&place)?;
            if !is_regular {
                return Ok(Sink::Direct(file));
            }
            let mode = file.metadata()?.permissions().mode();
            // As it was, but for nobody else to write.
            permissions = Some(Permissions::from_mode(mode & 0o755));
        }
        let nameless = place.nameless().ok();
        if nameless.is_none() {
            // It goes at once; it has shown that there can be one.
            partial(&place, None)?;
        }
        Ok(Sink::Beside {
            place,
            permissions,
            nameless,
            keeps: false,
        })
    }

    /// Has what is there kept when it is replaced.
    fn keep(&mut self) -> io::Result<()> {
        if let Sink::Beside { place, keeps, .. } = self {
            *keeps = true;
            if place.is_taken() {
                free(place)?;
            }
        }
        Ok(())
    }

    fn write(self, results: &[u8]) -> io::Result<()> {
        match self {
            Sink::Beside {
                place,
                permissions,
                nameless,
                keeps,
            } => {
                let fill = |mut file: &File| {
                    if let Some(permissions) = &permissions {
                        file.set_permissions(permissions.clone())?;
                    }
                    file.write_all(results)?;
                    file.sync_all()
                };
                let named = match &nameless {
                    Some(file) => {
                        fill(file)?;
                        partial(&place, Some(file)).ok()
                    }
                    None => None,
                };
                let file = match named {
                    Some(named) => named,
                    None => {
                        let file = partial(&place, None)?;
                        fill(file.as_file())?;
                        file
                    }
                };
                // Somebody else's file may have come there since it was looked at.
                let is_foreign = is_foreign(&place).unwrap_or(true);
                match (is_foreign || keeps).then(|| keep(&place)) {
                    Some(Err(error)) if is_foreign => {
                        let (_, path) = file.keep().map_err(|error| error.error)?;
                        // The folder is known by its descriptor, which ends with darc.
                        let name = path.file_name().unwrap_or_default().display();
                        let what = format!("{error}; the results are beside it in {name}");
                        return Err(io::Error::new(error.kind(), what));
                    }
                    Some(Err(error)) => {
                        warning::print(&format!("what was there before is not kept: {error}"));
                    }
                    _ => {}
                }
                file.persist(place.path()).map_err(|error| error.error)?;
                // So that the new name survives a crash; a directory that cannot be opened is no failure.
                if let Ok(directory) = File::open(place.folder()) {
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

/// The name of what is kept beside a file.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(EARLIER);
    name.into()
}

/// The place beside a file where what it replaces is kept.
///
/// # Errors
/// When there is something that darc has not written.
fn free(place: &Place) -> io::Result<Place> {
    let earlier = place.beside(EARLIER)?;
    if earlier.is_taken() && !open_existing(&earlier)?.1 {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "is no file; move it away",
        ));
    }
    Ok(earlier)
}

/// Whether there is by now what darc has not written.
fn is_foreign(place: &Place) -> io::Result<bool> {
    let now = place.again()?;
    Ok(now.is_taken() && !ours::is_ours(&now.reopen(OpenOptions::new().read(true))?)?)
}

/// Gives what is in a place a second name, of which it has had none since it was opened.
fn keep(place: &Place) -> io::Result<()> {
    // Both may have changed since the measurement began.
    let (now, earlier) = (place.again()?, free(place)?);
    if !now.is_taken() || now.is_same(&earlier)? {
        return Ok(());
    }
    let file = now.reopen(OpenOptions::new().read(true))?;
    if file.metadata()?.len() == 0 {
        return Ok(());
    }
    let named = partial(&now, Some(&file))?;
    named.persist(earlier.path()).map_err(|error| error.error)?;
    Ok(())
}

/// Whether a path means what a process has open already, which is written as it is.
fn is_open_file(path: &Path) -> bool {
    let standard = ["/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/fd"];
    path.starts_with("/proc") || standard.iter().any(|place| path.starts_with(place))
}

/// A file that goes unless it is put in place: a new one, or `nameless`, which gets a name.
fn partial(place: &Place, nameless: Option<&File>) -> io::Result<NamedTempFile<File>> {
    let (before, behind) = PARTIAL;
    let mut names = tempfile::Builder::new();
    names.prefix(before).suffix(behind);
    names.make_in(place.folder(), |path| match nameless {
        Some(file) => {
            place::name(file, path)?;
            file.try_clone()
        }
        None => {
            let mut options = OpenOptions::new();
            options
                .write(true)
                .create_new(true)
                .mode(place::NEW)
                .open(path)
        }
    })
}

/// Opens what is in a place for writing, which a stranger has not put there: the file, and whether it is a regular one, which then is one of darc's.
fn open_existing(place: &Place) -> io::Result<(File, bool)> {
    place.check_owner()?;
    let file = place.reopen(OpenOptions::new().write(true))?;
    let is_regular = file.metadata()?.is_file();
    if is_regular && !ours::is_ours(&place.reopen(OpenOptions::new().read(true))?)? {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "exists and was not written by darc; move it away",
        ));
    }
    Ok((file, is_regular))
}

/// Opens a file that is written where it is, while things happen. What is in it stays for now.
///
/// # Errors
/// When that is not permitted, a pipe has no reader, or there is a file that darc has not written.
pub fn open_in_place(path: &Path) -> io::Result<File> {
    if is_open_file(path) {
        let mut options = OpenOptions::new();
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        return options.write(true).custom_flags(flags).open(path);
    }
    let place = Place::of(path)?;
    match place.is_taken() {
        true => Ok(open_existing(&place)?.0),
        false => place.make(),
    }
}

/// Files of this user in a folder that a killed darc did not put in place.
#[must_use]
pub fn left_behind(folder: &Path) -> Vec<PathBuf> {
    use std::os::unix::fs::MetadataExt as _;
    let (before, behind) = PARTIAL;
    let own = nix::unistd::geteuid().as_raw();
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut left: Vec<PathBuf> = entries
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let is_one = name.starts_with(before) && name.ends_with(behind);
            is_one
                && entry
                    .metadata()
                    .is_ok_and(|data| data.is_file() && data.uid() == own)
        })
        .map(|entry| entry.path())
        .collect();
    left.sort();
    left
}

/// Writes to a stream; where that is impossible nobody is told.
pub fn print(mut stream: impl Write, text: &str) {
    let _ = stream
        .write_all(text.as_bytes())
        .and_then(|()| stream.flush());
}

/// Writes to stdout. Whoever read it may have had enough, as in `darc report out.txt | head`.
///
/// # Errors
/// When it could not be written for another reason, such as a full disk, or is no text and a terminal would show it.
pub fn to_stdout(shown: impl AsRef<[u8]>) -> Result<(), OutputError> {
    let mut stdout = io::stdout();
    if shown.as_ref().contains(&0) && stdout.is_terminal() {
        return Err(OutputError::NoText);
    }
    match stdout
        .write_all(shown.as_ref())
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

    const EARLIER_RESULTS: &str = "darc 1\nreport-lines 0\n";

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
        fs::write(&path, EARLIER_RESULTS).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o660)).unwrap();

        let abandoned = Output::open(&path).unwrap();
        drop(abandoned);
        assert_eq!(fs::read_to_string(&path).unwrap(), EARLIER_RESULTS);

        let output = Output::open(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), EARLIER_RESULTS);
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
    fn what_a_measurement_replaces_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.txt");
        let old = directory.path().join("out.txt.old");
        let read = |path| fs::read_to_string(path).unwrap();
        let results = |number| format!("darc 1\nreport-lines {number}\n");
        for number in 0..3 {
            let output = Output::open_keeping(&path).unwrap();
            output.write(results(number).as_bytes()).unwrap();
            // A second version of the same results.
            let output = Output::open(&path).unwrap();
            output.write(results(number).as_bytes()).unwrap();
            assert_eq!(read(&path), results(number));
        }
        assert_eq!(read(&old), results(1));
        // Killed between the two steps, a darc leaves one file with both names.
        fs::remove_file(&old).unwrap();
        fs::hard_link(&path, &old).unwrap();
        let output = Output::open_keeping(&path).unwrap();
        output.write(results(3).as_bytes()).unwrap();
        assert_eq!((read(&path), read(&old)), (results(3), results(2)));
        assert_eq!(names(directory.path()), ["out.txt", "out.txt.old"]);
    }

    #[test]
    fn nothing_else_is_given_up_for_what_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.txt");
        let old = directory.path().join("out.txt.old");
        let read = |path| fs::read_to_string(path).unwrap();
        fs::write(&path, EARLIER_RESULTS).unwrap();
        let open = Output::open_keeping(&path).unwrap();
        fs::write(&old, "my notes").unwrap();
        let refused = Output::open_keeping(&path).unwrap_err().to_string();
        assert!(refused.contains("out.txt.old"), "{refused}");
        // One that came meanwhile does not cost the results.
        open.write(b"results").unwrap();
        assert_eq!(
            (read(&path), read(&old)),
            ("results".into(), "my notes".into())
        );
        fs::remove_file(&old).unwrap();
        fs::write(&path, EARLIER_RESULTS).unwrap();
        fs::write(directory.path().join("notes"), EARLIER_RESULTS).unwrap();
        symlink("notes", &old).unwrap();
        assert!(Output::open_keeping(&path).is_err());
        assert!(fs::symlink_metadata(&old).unwrap().is_symlink());
    }

    #[test]
    fn what_came_meanwhile_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.txt");
        let old = directory.path().join("out.txt.old");
        let read = |path| fs::read_to_string(path).unwrap();
        let (first, second) = (
            Output::open_keeping(&path).unwrap(),
            Output::open_keeping(&path).unwrap(),
        );
        first.write(EARLIER_RESULTS.as_bytes()).unwrap();
        second.write(b"results").unwrap();
        assert_eq!(
            (read(&path), read(&old)),
            ("results".into(), EARLIER_RESULTS.into())
        );
        fs::remove_file(&old).unwrap();
        fs::remove_file(&path).unwrap();
        let open = Output::open(&path).unwrap();
        fs::write(&path, "my notes").unwrap();
        open.write(b"results").unwrap();
        assert_eq!(
            (read(&path), read(&old)),
            ("results".into(), "my notes".into())
        );
    }

    #[test]
    fn results_are_not_lost_where_nothing_may_be_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.txt");
        let open = Output::open(&path).unwrap();
        fs::write(&path, "my notes").unwrap();
        fs::write(directory.path().join("out.txt.old"), "more notes").unwrap();
        let refused = open.write(b"results").unwrap_err().to_string();
        let (_, left) = refused.split_once("beside it in ").unwrap();
        let left = directory.path().join(left.split(';').next().unwrap());
        assert_eq!(fs::read_to_string(left).unwrap(), "results", "{refused}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "my notes");
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
    fn a_strangers_link_is_not_followed() {
        if !nix::unistd::geteuid().is_root() {
            return eprintln!("SKIPPED: only root can make links of another user's");
        }
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        fs::create_dir(here.join("folder")).unwrap();
        fs::write(here.join("folder/file"), "").unwrap();
        symlink("folder/file", here.join("to_file")).unwrap();
        symlink("folder", here.join("to_folder")).unwrap();
        symlink("/dev/null", here.join("to_device")).unwrap();
        let paths = ["to_file", "to_folder/file", "to_folder/new", "to_device"];
        for path in paths {
            assert!(Output::open(&here.join(path)).is_ok(), "{path}");
            assert!(open_in_place(&here.join(path)).is_ok(), "{path}");
        }
        fs::remove_file(here.join("folder/new")).unwrap();
        for link in ["to_file", "to_folder", "to_device"] {
            std::os::unix::fs::lchown(here.join(link), Some(65534), None).unwrap();
        }
        for path in paths {
            let refused = Output::open(&here.join(path)).unwrap_err().to_string();
            assert!(refused.contains("link of user 65534"), "{refused}");
            assert!(open_in_place(&here.join(path)).is_err(), "{path}");
        }
        assert_eq!(names(&here.join("folder")), ["file"]);
    }

    /// In a folder that anybody may write to somebody may wait with an open file or a pipe.
    #[test]
    fn what_a_stranger_has_put_there_is_not_written_to() {
        if !nix::unistd::geteuid().is_root() {
            return eprintln!("SKIPPED: only root can make files of another user's");
        }
        let directory = tempfile::tempdir().unwrap();
        let (file, pipe) = (directory.path().join("file"), directory.path().join("pipe"));
        fs::write(&file, "").unwrap();
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::from_bits_truncate(0o666)).unwrap();
        let _reads = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(&pipe)
            .unwrap();
        let owned_by =
            |path: &Path, user| std::os::unix::fs::chown(path, Some(user), None).unwrap();
        for path in [&file, &pipe] {
            assert!(Output::open(path).is_ok(), "{path:?}");
            owned_by(path, 65534);
            let refused = Output::open(path).unwrap_err().to_string();
            assert!(refused.contains("belongs to user 65534"), "{refused}");
            assert!(open_in_place(path).is_err(), "{path:?}");
        }
        // What is in a person's own folder is that person's affair.
        owned_by(directory.path(), 65534);
        for path in [&file, &pipe] {
            assert!(Output::open(path).is_ok(), "{path:?}");
        }
    }

    #[test]
    fn a_file_that_darc_has_not_written_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.txt");
        fs::write(&path, "my notes").unwrap();
        let refused = Output::open(&path).unwrap_err().to_string();
        let told = "exists and was not written by darc; move it away, or name another file with -o";
        assert!(refused.ends_with(told), "{refused}");
        assert!(open_in_place(&path).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "my notes");
    }

    #[test]
    fn what_a_killed_darc_leaves_has_a_known_name() {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        let place = Place::of(&here.join("out.txt")).unwrap();
        let (_, path) = partial(&place, None).unwrap().keep().unwrap();
        let name = path.file_name().unwrap();
        fs::write(here.join(".darc-partial"), "").unwrap();
        assert_eq!(left_behind(here), [here.join(name)]);
        // Where files may be without a name there is nothing to be left.
        let waits = Output::open(&here.join("out.txt")).unwrap();
        if matches!(&waits.sink, Sink::Beside { nameless, .. } if nameless.is_some()) {
            assert_eq!(names(here).len(), 2);
        }
        waits.write(b"results").unwrap();
        assert_eq!(fs::read_to_string(here.join("out.txt")).unwrap(), "results");
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
