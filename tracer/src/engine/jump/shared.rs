//! The memory that the target and the tracer share: a file without a name, which the target makes and maps.
//!
//! Whoever shares the target's table of descriptors (`CLONE_FILES` in clone(2)) can put another file in the place of
//! this one at any moment. So the tracer takes the open file itself, with no more rights than the target has to
//! it, and changes nothing about it before it is known to be new memory.
//! Source: pidfd_getfd(2), memfd_create(2), fcntl(2) "File Sealing".

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};

use crate::addr::TargetAddr;
use crate::error::{Error, Result, unless_gone};
use crate::memory::Memory;
use crate::remote_call::Worker;
use crate::sys::{self, SharedWords};

use super::layout::{MAGIC, ring};

/// A seal that the kernel may put on every file without a name (`vm.memfd_noexec` in memfd_create(2)).
const F_SEAL_EXEC: i32 = 0x20;

/// The name of the memory's file, as the target's list of mappings shows it.
pub const PATH: &str = "/memfd:darc";
const NAME: &[u8] = b"darc\0";

/// Has the target make shared memory of `len` bytes and map it, together with `behind` bytes of address space behind it.
/// Returns the tracer's side, its file, and the address in the target, which has no descriptor of it afterwards. `announce` is
/// called before it is mapped, and may write to the first page.
///
/// The file has one page until it is mapped: in a process that locks its future memory (`MCL_FUTURE` in mlockall(2)) the kernel
/// brings in at once what there is, while the target stands still, and the rest when it is used, or by [`bring_in`].
///
/// # Errors
/// When the target may not map it, or something else took its place: then nothing was changed.
pub fn make(
    worker: &mut Worker<'_>,
    memory: &Memory,
    (len, behind): (u64, u64),
    announce: impl FnOnce(&mut SharedWords),
) -> Result<(SharedWords, File, u64)> {
    let fd = worker.with_bytes(memory, NAME, |worker, name| {
        let flags = u64::from(libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        let arguments = [name, flags, 0, 0, 0, 0];
        worker.call("memfd_create", libc::SYS_memfd_create, arguments)
    })?;
    let made = take(worker.tid(), fd)
        .and_then(|file| Ok((begin(&file, len)?, file)))
        .and_then(|(mut words, file)| {
            announce(&mut words);
            let mark = sys::tsc().0;
            words.store(ring::MARK as usize, mark);
            let whole = len + behind;
            let at = map(worker, memory, (fd, whole), mark)?;
            match grow(&file, len) {
                Ok(()) => Ok((words, file, at)),
                Err(error) => {
                    let all = [at, whole, 0, 0, 0, 0];
                    unless_gone(worker.call("munmap", libc::SYS_munmap, all))?;
                    Err(error)
                }
            }
        });
    worker.call("close", libc::SYS_close, [fd, 0, 0, 0, 0, 0])?;
    made
}

/// Has the target map the file, and looks whether that is what it has mapped.
fn map(worker: &mut Worker<'_>, memory: &Memory, (fd, len): (u64, u64), mark: u64) -> Result<u64> {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let flags = (libc::MAP_SHARED | libc::MAP_NORESERVE) as u64;
    let at = worker.call("mmap", libc::SYS_mmap, [0, len, protection, flags, fd, 0])?;
    if memory.read_word(TargetAddr(at + ring::MARK)).ok() == Some(mark) {
        return Ok(at);
    }
    unless_gone(worker.call("munmap", libc::SYS_munmap, [at, len, 0, 0, 0, 0]))?;
    Err(exchanged(worker.tid()))
}

/// Gives the file its first page and maps all of it here. The target cannot shrink it, which would end this process. From the first
/// moment on it says whose it is.
fn begin(file: &File, len: u64) -> Result<SharedWords> {
    file.write_all_at(&MAGIC.to_le_bytes(), ring::MAGIC)
        .map_err(os)?;
    file.set_len(sys::PAGE as u64).map_err(os)?;
    seal(file, SealFlag::F_SEAL_SHRINK)?;
    // Whoever has the descriptor, too, may have made it shorter until it was sealed: what is not there cannot be written.
    if file.metadata().map_err(os)?.len() < sys::PAGE as u64 {
        return Err(Error::Unsuitable(
            "somebody cut the memory that was made for the probes; try again".to_owned(),
        ));
    }
    SharedWords::map(file, len as usize).map_err(|errno| os(errno.into()))
}

/// Gives it its size, which nobody can change any more: were it larger already, this fails.
fn grow(file: &File, len: u64) -> Result<()> {
    file.set_len(len).map_err(os)?;
    seal(file, seals_of_ours())
}

/// Brings all pages in at once, which takes some time. One that cannot be had when it is touched ends who touches it, by SIGBUS.
///
/// # Errors
/// When there is not so much memory: then nothing was brought in.
pub fn bring_in(file: &File) -> Result<()> {
    let len = file.metadata().map_err(os)?.len();
    let blocked = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK);
    let before = blocked.map_err(|errno| os(errno.into()))?;
    let filled = fill(file, len);
    let unblocked = before.thread_set_mask();
    filled.and(unblocked).map_err(|errno| os(errno.into()))
}

/// Brings these pages in, or none. The first one is there already, and says whose they are.
fn fill(file: &File, len: u64) -> std::result::Result<(), Errno> {
    const FIRST: u64 = sys::PAGE as u64;
    let allocate =
        |how, at: u64, len: u64| fallocate(file, how, at.cast_signed(), len.cast_signed());
    let filled = in_pieces(len, |at, piece| {
        allocate(FallocateFlags::empty(), at, piece)
    });
    filled.map_err(|(at, errno)| {
        if FIRST < at {
            let give_back =
                FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            // Where that fails, they go with the file.
            let _ = allocate(give_back, FIRST, at - FIRST);
        }
        errno
    })
}

/// Fills so many bytes. Where that fails: how many are filled, and why not more.
///
/// An interruption takes all pages of a call back (`shmem_fallocate` in the kernel's mm/shmem.c; in older kernels any signal is one).
/// Signals are blocked meanwhile, and SIGSTOP that comes again and again takes back one piece.
fn in_pieces(
    len: u64,
    fill: impl Fn(u64, u64) -> std::result::Result<(), Errno>,
) -> std::result::Result<(), (u64, Errno)> {
    const PIECE: u64 = 1 << 20;
    let mut at = 0;
    loop {
        let piece = PIECE.min(len - at);
        match fill(at, piece) {
            Ok(()) if at + piece == len => return Ok(()),
            Ok(()) => at += piece,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err((at, errno)),
        }
    }
}

fn seal(file: &File, seals: SealFlag) -> Result<()> {
    let sealed = fcntl(file, FcntlArg::F_ADD_SEALS(seals));
    sealed.map(drop).map_err(|errno| os(errno.into()))
}

/// Takes the new memory that a thread has as descriptor `fd`.
fn take(tid: i32, fd: u64) -> Result<File> {
    let fd = i32::try_from(fd).map_err(|_| exchanged(tid))?;
    match open(tid, fd) {
        Ok(file) if is_new_memory(&file) => Ok(file),
        Err(error) if error.raw_os_error() != Some(libc::EBADF) => Err(os(error)),
        _ => Err(exchanged(tid)),
    }
}

/// The file that a thread has as descriptor `fd`.
fn open(tid: i32, fd: i32) -> io::Result<File> {
    match sys::descriptor_of(tid, fd).map(File::from) {
        // A kernel before 5.6, or before 6.9 for a thread that is not its process's first; a filter of system calls.
        Err(Errno::ENOSYS | Errno::EINVAL | Errno::ENOENT | Errno::EPERM) => reopen(tid, fd),
        taken => taken.map_err(io::Error::from),
    }
}

/// Opens what a thread has as a descriptor once more. The path may lead anywhere by the time it is followed: it is
/// opened as a place only, which has no effect on any file, and for use when it is known to be unnamed memory.
fn reopen(tid: i32, fd: i32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let place = options
        .read(true)
        .custom_flags(libc::O_PATH)
        .open(format!("/proc/{tid}/fd/{fd}"))?;
    let of_memory = fstatfs(&place)?.filesystem_type() == TMPFS_MAGIC;
    if !of_memory || !is_unnamed(&place) {
        return Err(Errno::EBADF.into());
    }
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .open(format!("/proc/self/fd/{}", place.as_raw_fd()))
}

/// Whether a thread's descriptor `fd` is of memory that [`make`] makes: new, begun, or sealed as it is there and with nothing but
/// its announcement in it. Where that cannot be looked at it counts as the program's.
#[must_use]
pub fn is_ours(tid: i32, fd: u64) -> bool {
    let file = i32::try_from(fd).map(|fd| open(tid, fd));
    file.is_ok_and(|file| file.is_ok_and(|file| is_new_memory(&file) || is_begun_by_us(&file)))
}

/// Whether there is nothing in it but what is written before it is mapped: until it is sealed, that it is ours.
fn is_begun_by_us(file: &File) -> bool {
    let len = file.metadata().map_or(0, |data| data.len());
    let mut bytes = [0; sys::PAGE];
    let head = &mut bytes[..len.min(sys::PAGE as u64) as usize];
    if !is_unnamed(file) || file.read_exact_at(head, 0).is_err() {
        return false;
    }
    let mark = ring::MAGIC as usize..ring::MAGIC as usize + 8;
    let is_marked = bytes[mark.clone()] == MAGIC.to_le_bytes();
    match fcntl(file, FcntlArg::F_GET_SEALS).map(|seals| seals & !F_SEAL_EXEC) {
        Ok(0) if is_marked => bytes[mark].fill(0),
        Ok(seals) if seals == SealFlag::F_SEAL_SHRINK.bits() && is_marked => {
            bytes[ring::MARK as usize..mark.end].fill(0);
        }
        Ok(seals) if seals == seals_of_ours().bits() => {
            bytes[ring::MARK as usize..mark.end].fill(0);
        }
        _ => return false,
    }
    bytes == [0; _]
}

/// Nobody can change the size any more, nor these seals.
fn seals_of_ours() -> SealFlag {
    SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL
}

/// Whether a file is memory without a name to which nothing has been done since it was made: no other kind of file
/// can be without seals (fcntl(2), F_GET_SEALS).
fn is_new_memory(file: &File) -> bool {
    let unsealed = |seals: i32| seals & !F_SEAL_EXEC == 0;
    let is_empty = || file.metadata().is_ok_and(|data| data.len() == 0);
    fcntl(file, FcntlArg::F_GET_SEALS).is_ok_and(unsealed) && is_unnamed(file) && is_empty()
}

fn is_unnamed(file: &File) -> bool {
    file.metadata()
        .is_ok_and(|data| data.is_file() && data.nlink() == 0)
}

fn os(source: io::Error) -> Error {
    Error::Os {
        operation: "set up the memory shared with the target",
        source,
    }
}

fn exchanged(tid: i32) -> Error {
    Error::Unsuitable(format!(
        "another process replaced the memory that thread {tid} had made for the probes, through descriptors that it shares with it; end that process first"
    ))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::ffi::CStr;
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::os::fd::AsFd;
    use std::process::{Command, Stdio};
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
    use std::thread;

    use darc_testprogs::{Opt, program};
    use nix::sys::memfd::{MFdFlags, memfd_create};

    use crate::engine::Engine as _;
    use crate::engine::jump::Jump;
    use crate::maps;

    use super::*;

    const NAME: &CStr = c"darc";

    fn is_refused(file: &impl AsFd) -> bool {
        let (tid, fd) = (nix::unistd::gettid().as_raw(), file.as_fd().as_raw_fd());
        let taken = sys::descriptor_of(tid, fd).map(File::from).unwrap();
        let reopened = reopen(tid, fd).is_ok_and(|file| is_new_memory(&file));
        assert!(!reopened || is_new_memory(&taken), "both ways say the same");
        take(tid, fd as u64).is_err()
    }

    /// What a tracer may have left is told from what the program has under that name.
    #[test]
    fn only_memory_of_ours_is_closed() {
        let memory = || File::from(memfd_create(NAME, MFdFlags::MFD_ALLOW_SEALING).unwrap());
        let pid = std::process::id() as i32;
        let is_ours = |file: &File| is_ours(pid, file.as_raw_fd() as u64);
        let begun = memory();
        begun
            .write_all_at(&MAGIC.to_le_bytes(), ring::MAGIC)
            .unwrap();
        assert!(is_ours(&begun), "begun");
        begun.set_len(1 << 20).unwrap();
        assert!(is_ours(&begun), "not sealed yet");
        begun.write_all_at(&[7], 8).unwrap();
        assert!(!is_ours(&begun), "in use");

        let made = memory();
        assert!(is_ours(&made), "just made");
        let words = begin(&made, 1 << 20).unwrap();
        assert!(is_ours(&made), "has a page");
        grow(&made, 1 << 20).unwrap();
        assert!(is_ours(&made), "sealed");
        words.store(ring::OWNER as usize, 7);
        words.store(ring::MAGIC as usize, 7);
        assert!(is_ours(&made), "announced");
        words.store(8, 7);
        assert!(!is_ours(&made), "in use");

        let used = memory();
        used.set_len(1 << 20).unwrap();
        assert!(!is_ours(&used), "nobody has sealed it");
        fcntl(&used, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
        assert!(!is_ours(&used), "sealed otherwise");
        let unsealable = memfd_create(NAME, MFdFlags::empty()).unwrap();
        assert!(!is_ours(&File::from(unsealable)));
    }

    /// It would be taken for a child that the target has made.
    #[test]
    fn a_child_of_the_tracer_does_not_have_the_memory() {
        let memory = File::from(memfd_create(NAME, MFdFlags::MFD_ALLOW_SEALING).unwrap());
        let _words = begin(&memory, 1 << 20).unwrap();
        let (told, tell) = nix::unistd::pipe().unwrap();
        let child = sys::fork_into(|| {
            let _ = nix::unistd::read(&told, &mut [0]);
            sys::exit_now(0);
        });
        let child = child.unwrap();
        let is_ours = |mapping: &maps::Mapping| mapping.name.as_os_str() == "/memfd:darc (deleted)";
        let has_it = |pid: i32| maps::read(pid).unwrap().iter().any(is_ours);
        assert!(has_it(std::process::id() as i32) && !has_it(child));
        nix::unistd::write(&tell, &[1]).unwrap();
        assert_eq!(sys::wait_for(child).unwrap().1, 0);
    }

    /// Whoever has it as a descriptor too can make it larger until it is sealed.
    #[test]
    fn memory_of_another_size_is_refused() {
        let memory = File::from(memfd_create(NAME, MFdFlags::MFD_ALLOW_SEALING).unwrap());
        begin(&memory, 1 << 20).unwrap();
        memory.set_len(2 << 20).unwrap();
        assert!(grow(&memory, 1 << 20).is_err());
    }

    #[test]
    fn pages_are_there_before_they_are_used_where_they_may_be_missing_later() {
        use std::os::unix::fs::MetadataExt as _;
        let memory = File::from(memfd_create(NAME, MFdFlags::MFD_ALLOW_SEALING).unwrap());
        begin(&memory, 1 << 20).unwrap();
        grow(&memory, 1 << 20).unwrap();
        let bytes = || 512 * memory.metadata().unwrap().blocks();
        assert!(bytes() < 1 << 16);
        bring_in(&memory).unwrap();
        assert_eq!(bytes(), 1 << 20);
    }

    /// As where memory is used up.
    #[test]
    fn nothing_stays_of_what_comes_in_halfway() {
        let memory = File::from(memfd_create(NAME, MFdFlags::MFD_ALLOW_SEALING).unwrap());
        begin(&memory, 2 << 20).unwrap();
        grow(&memory, 2 << 20).unwrap();
        let head = || {
            let mut bytes = [0; sys::PAGE];
            memory.read_exact_at(&mut bytes, 0).unwrap();
            (bytes, memory.metadata().unwrap().blocks())
        };
        let before = head();
        // Of what is behind its sealed end nothing can be had.
        assert_eq!(fill(&memory, 3 << 20), Err(Errno::EPERM));
        assert!(head() == before);
        assert_eq!(memory.metadata().unwrap().len(), 2 << 20);
    }

    /// As by signals that come before more can be filled, and by others.
    #[test]
    fn what_is_interrupted_again_and_again_comes_to_an_end() {
        const BETWEEN: u64 = 2 << 20;
        let (filled, calls) = (Cell::new(0), Cell::new(0));
        let fill = |at: u64, len: u64| {
            assert_eq!(at, filled.get());
            assert!(calls.replace(calls.get() + 1) < 1000, "it repeats for ever");
            if len > BETWEEN || calls.get() % 2 == 1 {
                return Err(Errno::EINTR);
            }
            filled.set(at + len);
            Ok(())
        };
        in_pieces((32 << 20) + 4096, fill).unwrap();
        assert_eq!(filled.get(), (32 << 20) + 4096);
    }

    /// An interrupted call has brought nothing in.
    #[test]
    fn pages_come_in_although_signals_come_all_the_time() {
        const MOST: u64 = 3_000_000;
        let signal = libc::SIGUSR2;
        sys::take_note_of(signal);
        let memory = File::from(memfd_create(NAME, MFdFlags::MFD_ALLOW_SEALING).unwrap());
        memory.set_len(32 << 20).unwrap();
        let (pid, tid) = (std::process::id() as i32, nix::unistd::gettid().as_raw());
        let (sent, is_in) = (AtomicU64::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_in.load(Relaxed) && sent.load(Relaxed) < MOST {
                    sys::send_to_thread(pid, tid, signal).unwrap();
                    sent.fetch_add(1, Relaxed);
                }
            });
            while sent.load(Relaxed) == 0 {
                thread::yield_now();
            }
            bring_in(&memory).unwrap();
            is_in.store(true, Relaxed);
        });
        assert!(sent.into_inner() < MOST, "not before the signals had ended");
    }

    #[test]
    fn only_new_memory_is_taken() {
        let memory = || memfd_create(NAME, MFdFlags::MFD_ALLOW_SEALING).unwrap();
        assert!(!is_refused(&memory()));
        let tid = nix::unistd::gettid().as_raw();
        let new = memory();
        assert!(is_new_memory(&reopen(tid, new.as_raw_fd()).unwrap()));

        let used = File::from(memory());
        used.set_len(1).unwrap();
        assert!(is_refused(&used));
        let sealed = memory();
        fcntl(&sealed, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
        assert!(is_refused(&sealed));
        assert!(is_refused(&memfd_create(NAME, MFdFlags::empty()).unwrap()));
        for named in ["/dev/null", "/proc/self/stat", "/dev/shm", "/"] {
            assert!(is_refused(&File::open(named).unwrap()), "{named}");
        }
        let named = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        assert!(is_refused(named.as_file()));
        let unnamed = tempfile::tempfile_in("/dev/shm").unwrap();
        assert!(is_refused(&unnamed), "it has seals");
        let place = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH)
            .open(named.path())
            .unwrap();
        assert!(is_refused(&place));
    }

    /// A process that shares the target's descriptors puts other files in the place of the memory.
    #[test]
    fn no_file_is_changed_that_takes_the_place_of_the_memory() {
        const ROUNDS: usize = 200;
        /// So many, until it was quick enough once.
        const MOST: usize = 20 * ROUNDS;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        let content = b"it stays as it is";
        std::fs::write(&file, content).unwrap();
        let mut target = Command::new(program("swaps_descriptors", Opt::O2))
            .arg("wait")
            .arg(&file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(target.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let pid = target.id() as i32;
        let code = maps::read(pid).unwrap().into_iter().find(|m| m.executable);
        let near = code.unwrap().start;
        let before = maps::read(pid).unwrap();
        let (mut refused, mut round) = (0, 0);
        while round < ROUNDS || (refused == 0 && round < MOST) {
            round += 1;
            let mut engine = Jump::attach(pid).unwrap();
            refused += usize::from(engine.install(&[near]).is_err());
            engine.finish().unwrap();
            let unchanged = std::fs::read(&file).is_ok_and(|now| now == content);
            assert!(unchanged, "round {round}");
        }
        // With few CPUs, which others use, it may have to wait for one each time.
        let processors = thread::available_parallelism().unwrap().get();
        assert!(refused > 0 || processors < 4, "it was never quick enough");
        if refused == 0 {
            // Where the output of tests that pass is not shown, either.
            let _ = writeln!(std::io::stderr(), "not tested: it was never quick enough");
        }
        assert_eq!(maps::read(pid).unwrap(), before);
        drop(target.stdin.take());
        line.clear();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "1\n");
        assert!(target.wait().unwrap().success());
    }
}
