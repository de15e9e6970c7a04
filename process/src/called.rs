//! By which name a process was started: a program may be a link to a file that is called otherwise (`redis-server` to
//! `redis-check-rdb`, `vi` to `vim.basic`), and people know it by the link.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use darc_symbols::{Image, Root};
use darc_tracer::addr::TargetAddr;
use darc_tracer::maps::FileId;
use darc_tracer::memory::Memory;
use darc_tracer::threads;

/// A longer path is none, in bytes (`PATH_MAX`).
const LONGEST: usize = 4096;
/// Where the path is that was executed (getauxval(3)).
const AT_EXECFN: u64 = 31;

/// The path of the link by which a process was started; `None` where the file itself was, and where that cannot be told.
/// `path` and `file` are those of a file that it has mapped, which may be another than the program. What the process's
/// memory says is believed only when it leads to the program's file, below `root`.
pub fn link_of(pid: i32, root: &Root, path: &Path, file: FileId) -> Option<PathBuf> {
    let known = fs::metadata(threads::proc_folder(pid).join("exe")).ok()?;
    if known.ino() != file.inode {
        return None;
    }
    let executed = executed(pid)?;
    let name = executed.file_name()?;
    if Some(name) == path.file_name() {
        return None;
    }
    // A relative path began at a folder that is not known any more.
    let beside = path.with_file_name(name);
    let is_it = |path: &PathBuf| {
        let found = root.place(path).and_then(|place| place.metadata());
        found.is_ok_and(|it| (it.dev(), it.ino()) == (known.dev(), known.ino()))
    };
    let paths = [executed, beside].into_iter();
    paths.filter(|path| path.is_absolute()).find(is_it)
}

/// A file under the name of a link to it.
pub fn renamed(image: Image, link: Option<&Path>) -> Image {
    match link {
        Some(link) => image.called(link.to_owned()),
        None => image,
    }
}

/// The path that was executed, as the kernel has put it onto the first thread's stack.
fn executed(pid: i32) -> Option<PathBuf> {
    let auxv = fs::read(threads::proc_folder(pid).join("auxv")).ok()?;
    let word = |bytes: &[u8]| Some(u64::from_le_bytes(bytes.try_into().ok()?));
    let at = auxv.chunks_exact(16).find_map(|pair| {
        let (kind, value) = pair.split_at(8);
        (word(kind)? == AT_EXECFN).then(|| word(value))?
    })?;
    let memory = Memory::open(pid).ok()?;
    let mut path = Vec::new();
    while path.len() < LONGEST {
        // The stack may end right behind the path.
        let mut part = [0; 16];
        let at = at.checked_add(path.len() as u64)?;
        let room = part.len() - (at as usize % part.len());
        let part = &mut part[..room];
        memory.read(TargetAddr(at), part).ok()?;
        if let Some(end) = part.iter().position(|&byte| byte == 0) {
            path.extend_from_slice(&part[..end]);
            return String::from_utf8(path).ok().map(PathBuf::from);
        }
        path.extend_from_slice(part);
    }
    None
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::fs::symlink;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    use crate::target_files;

    use super::*;

    /// Ends with the test.
    struct Started(Child);

    impl Drop for Started {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn link_of_started(command: &mut Command) -> Option<PathBuf> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut started = Started(command.spawn().unwrap());
        // What the kernel tells of a program is there when it answers, not yet when it replaces the one before.
        let mut byte = [0];
        started.0.stdin.as_mut().unwrap().write_all(b"?").unwrap();
        let answers = started.0.stdout.as_mut().unwrap();
        answers.read_exact(&mut byte).unwrap();
        let pid = started.0.id() as i32;
        let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap();
        let file = FileId {
            inode: fs::metadata(&program).unwrap().ino(),
            ..FileId::default()
        };
        link_of(pid, &target_files::root_of(pid), &program, file)
    }

    #[test]
    fn a_program_is_called_as_it_was_started() {
        let cat = fs::canonicalize("/bin/cat").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("tiger");
        symlink(&cat, &link).unwrap();
        // Where cat is a part of another program it needs its name.
        if cat.file_name() == Some("cat".as_ref()) {
            assert_eq!(link_of_started(&mut Command::new(&link)), Some(link));
            assert_eq!(link_of_started(&mut Command::new(&cat)), None);
            let mut posing = Command::new(&cat);
            posing.arg0("/usr/bin/anything");
            assert_eq!(link_of_started(&mut posing), None, "only the path counts");
        }
    }
}
