//! The crate's only unsafe code: the ptrace requests, the cycle counter, fork.
//!
//! Everything here is a thin call; policy lives elsewhere. Source: ptrace(2), kcmp(2), fork(2).
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

use nix::errno::Errno;

use crate::record::Tsc;

/// The general registers of a stopped thread, as the kernel lays them out (`struct user_regs_struct`).
pub type RawRegisters = libc::user_regs_struct;

/// The event number of a group stop or an interrupt of a seized thread (`PTRACE_EVENT_STOP`).
pub const EVENT_STOP: i32 = 128;

fn request(request: libc::c_uint, tid: i32, addr: usize, data: usize) -> Result<i64, Errno> {
    // SAFETY: the requests made through this function take plain integers; none makes the kernel
    // write through `addr` or `data` in this process.
    let value = unsafe { libc::ptrace(request, tid, addr, data) };
    if value == -1 {
        Err(Errno::last())
    } else {
        Ok(value)
    }
}

/// Attaches without stopping the thread.
pub fn seize(tid: i32, options: i32) -> Result<(), Errno> {
    request(libc::PTRACE_SEIZE, tid, 0, options as usize).map(drop)
}

/// Asks a seized thread to stop.
pub fn interrupt(tid: i32) -> Result<(), Errno> {
    request(libc::PTRACE_INTERRUPT, tid, 0, 0).map(drop)
}

/// Lets a stopped thread run, delivering `signal` unless it is zero.
pub fn cont(tid: i32, signal: i32) -> Result<(), Errno> {
    request(libc::PTRACE_CONT, tid, 0, signal as usize).map(drop)
}

/// Leaves a group-stopped thread stopped, but lets it hear of SIGCONT.
pub fn listen(tid: i32) -> Result<(), Errno> {
    request(libc::PTRACE_LISTEN, tid, 0, 0).map(drop)
}

/// Detaches from a stopped thread, delivering `signal` unless it is zero.
pub fn detach(tid: i32, signal: i32) -> Result<(), Errno> {
    request(libc::PTRACE_DETACH, tid, 0, signal as usize).map(drop)
}

/// The message of the last ptrace event: the id of a new thread or process.
pub fn event_message(tid: i32) -> Result<i32, Errno> {
    let mut message: libc::c_ulong = 0;
    // SAFETY: the kernel writes one unsigned long through the pointer, which lives through the call.
    let value = unsafe {
        libc::ptrace(
            libc::PTRACE_GETEVENTMSG,
            tid,
            0,
            ptr::from_mut(&mut message),
        )
    };
    if value == -1 {
        Err(Errno::last())
    } else {
        i32::try_from(message).map_err(|_| Errno::ERANGE)
    }
}

/// Reads the general registers of a stopped thread.
pub fn registers(tid: i32) -> Result<RawRegisters, Errno> {
    // SAFETY: `user_regs_struct` is plain integers, for which zero is a valid value.
    let mut registers: RawRegisters = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes exactly one `user_regs_struct` through the pointer.
    let value =
        unsafe { libc::ptrace(libc::PTRACE_GETREGS, tid, 0, ptr::from_mut(&mut registers)) };
    if value == -1 {
        Err(Errno::last())
    } else {
        Ok(registers)
    }
}

/// Writes the general registers of a stopped thread.
pub fn set_registers(tid: i32, registers: &RawRegisters) -> Result<(), Errno> {
    // SAFETY: the kernel reads exactly one `user_regs_struct` through the pointer.
    let value = unsafe { libc::ptrace(libc::PTRACE_SETREGS, tid, 0, ptr::from_ref(registers)) };
    if value == -1 {
        Err(Errno::last())
    } else {
        Ok(())
    }
}

/// Writes one word of text or data through ptrace, where `/proc/PID/mem` refuses.
pub fn poke(tid: i32, addr: u64, word: u64) -> Result<(), Errno> {
    request(libc::PTRACE_POKEDATA, tid, addr as usize, word as usize).map(drop)
}

/// What [`wait_any`] found.
pub type WaitStatus = (i32, i32);

/// Takes one wait status of any thread or child that this very thread traces or made, without blocking: `(tid, status)`.
pub fn wait_any() -> Result<Option<WaitStatus>, Errno> {
    wait(-1, libc::WNOHANG)
}

/// Waits until the given thread changes state.
pub fn wait_for(tid: i32) -> Result<WaitStatus, Errno> {
    loop {
        match wait(tid, 0) {
            Err(Errno::EINTR) => {}
            Ok(Some(found)) => return Ok(found),
            Ok(None) => return Err(Errno::ECHILD),
            Err(error) => return Err(error),
        }
    }
}

/// Takes a wait status of the given thread without blocking.
pub fn wait_now(tid: i32) -> Result<Option<WaitStatus>, Errno> {
    wait(tid, libc::WNOHANG)
}

/// Whether the end of the given thread is what [`wait_now`] would take; it is left for others.
pub fn has_ended(tid: i32) -> bool {
    // SAFETY: `siginfo_t` is plain data, for which zero is a valid value.
    let mut found: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WEXITED | libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT;
    let flags = flags | libc::__WALL | libc::__WNOTHREAD;
    // SAFETY: the kernel writes one `siginfo_t` through the pointer.
    let outcome = unsafe { libc::waitid(libc::P_PID, tid.cast_unsigned(), &mut found, flags) };
    outcome == 0 && [libc::CLD_EXITED, libc::CLD_KILLED, libc::CLD_DUMPED].contains(&found.si_code)
}

fn wait(tid: i32, flags: i32) -> Result<Option<WaitStatus>, Errno> {
    let mut status = 0;
    // SAFETY: the kernel writes one int through the pointer.
    match unsafe {
        libc::waitpid(
            tid,
            ptr::from_mut(&mut status),
            libc::__WALL | libc::__WNOTHREAD | flags,
        )
    } {
        -1 => Err(Errno::last()),
        0 => Ok(None),
        found => Ok(Some((found, status))),
    }
}

/// Reads the cycle counter.
#[inline]
#[must_use]
pub fn tsc() -> Tsc {
    // SAFETY: every x86-64 processor has the instruction, and Linux leaves it enabled for user code.
    Tsc(unsafe { std::arch::x86_64::_rdtsc() })
}

/// Whether two processes share one address space; `None` where the kernel does not tell.
#[must_use]
pub fn shares_memory(a: i32, b: i32) -> Option<bool> {
    const KCMP_VM: i32 = 1;
    // SAFETY: kcmp takes plain integers.
    match unsafe { libc::syscall(libc::SYS_kcmp, a, b, KCMP_VM, 0, 0) } {
        0 => Some(true),
        1..=3 => Some(false),
        _ => None,
    }
}

/// Forks, and runs `child` in the new process, which exits with status 127 should it return.
///
/// `child` must restrict itself to what is safe after a fork of a threaded process: no allocation,
/// no locks.
pub fn fork_into(child: impl FnOnce()) -> Result<i32, Errno> {
    // SAFETY: the callers' closures only make system calls and compute; the parent goes on normally.
    match unsafe { libc::fork() } {
        -1 => Err(Errno::last()),
        0 => {
            child();
            exit_now(127)
        }
        pid => Ok(pid),
    }
}

/// Closes descriptors without waiting until that is done: a grandchild has them until they are closed here, and so is
/// the last to close them.
///
/// It has nothing else of this process, whose pipes and locks would be held with it.
pub fn close_unattended(descriptors: Vec<OwnedFd>) {
    let Ok((closed, here)) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC) else {
        return;
    };
    if descriptors.is_empty() {
        return;
    }
    let mut kept: Vec<u32> = descriptors
        .iter()
        .chain([&closed])
        .map(|descriptor| descriptor.as_raw_fd().cast_unsigned())
        .collect();
    kept.sort_unstable();
    let close_others = || {
        let mut next = 0;
        for &descriptor in &kept {
            if next < descriptor {
                close_range(next, descriptor - 1);
            }
            next = descriptor + 1;
        }
        close_range(next, u32::MAX);
    };
    let child = fork_into(|| {
        let _ = fork_into(|| {
            close_others();
            // Ends when the other end is closed, by whatever comes of this process.
            let _ = nix::unistd::read(&closed, &mut [0]);
            exit_now(0);
        });
        exit_now(0);
    });
    if let Ok(child) = child {
        let _ = wait_for(child);
    }
    drop(descriptors);
    drop(here);
}

fn close_range(from: u32, to: u32) {
    // SAFETY: takes integers; only for a process that does nothing with its descriptors any more.
    unsafe { libc::syscall(libc::SYS_close_range, from, to, 0) };
}

/// Ends this process at once, without running anything that `exit` would run.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: `_exit` takes an integer and does not return.
    unsafe { libc::_exit(status) }
}

/// Replaces this process's program; returns only when that fails.
///
/// Both lists must be null-terminated and point to null-terminated strings that live as long as the call.
pub fn exec(program: &std::ffi::CStr, arguments: &[*const libc::c_char]) -> Errno {
    assert!(
        arguments.last().is_some_and(|last| last.is_null()),
        "argument list without an end"
    );
    // SAFETY: the list ends with a null pointer (checked), its strings are owned by the caller's CStrings.
    unsafe { libc::execv(program.as_ptr(), arguments.as_ptr()) };
    Errno::last()
}

/// What the process found SIGPIPE set to when it started, before the language's runtime ignored it.
static SIGPIPE_AT_START: std::sync::atomic::AtomicUsize =
    std::sync::atomic::AtomicUsize::new(libc::SIG_DFL);

extern "C" fn note_sigpipe() {
    // SAFETY: `sigaction` is plain data, for which zero is a valid value; the call only reads the disposition.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGPIPE, ptr::null(), &mut old) == 0 {
            SIGPIPE_AT_START.store(old.sa_sigaction, std::sync::atomic::Ordering::Relaxed);
        }
    }
}

// Runs before `main`, and so before the runtime changes the disposition.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE_SIGPIPE: extern "C" fn() = note_sigpipe;

/// Gives SIGPIPE back the disposition that this process was started with (for a program to be exec'ed).
pub fn restore_sigpipe() {
    let inherited = SIGPIPE_AT_START.load(std::sync::atomic::Ordering::Relaxed);
    let disposition = if inherited == libc::SIG_IGN {
        libc::SIG_IGN
    } else {
        libc::SIG_DFL
    };
    // SAFETY: sets a standard disposition, no handler.
    unsafe { libc::signal(libc::SIGPIPE, disposition) };
}

/// Waits for SIGCHLD (which must be blocked) for at most `timeout`; returns early on any other signal.
pub fn wait_child_signal(timeout: std::time::Duration) {
    let time = libc::timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // SAFETY: the set is initialised by sigemptyset before use, all pointers live through the calls.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        libc::sigtimedwait(&set, ptr::null_mut(), &time);
    }
}

/// Has the calling thread run before all programs without real-time priority, from now on; what it forks does not inherit
/// that. False where this is not permitted (sched(7): it needs `CAP_SYS_NICE` or `RLIMIT_RTPRIO`).
pub fn run_first() -> bool {
    // SAFETY: `sched_param` is plain integers, for which zero is a valid value.
    let mut lowest: libc::sched_param = unsafe { std::mem::zeroed() };
    lowest.sched_priority = 1;
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the kernel reads one `sched_param` through the pointer, which lives through the call; zero is this thread.
    unsafe { libc::sched_setscheduler(0, policy, &lowest) == 0 }
}

/// Has the kernel kill this process when the thread that forked it ends.
pub fn die_with_parent() {
    // SAFETY: prctl takes plain integers here.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// Kills and reaps a child of this process.
pub fn kill_and_reap(pid: i32) {
    // SAFETY: kill takes plain integers; the pid is a child that has not been reaped.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    while let Ok((_, status)) = wait_for(pid) {
        if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
            return;
        }
    }
}

/// Lets a stopped thread run to the begin or end of its next system call, delivering `signal` unless it is zero.
pub fn cont_to_syscall(tid: i32, signal: i32) -> Result<(), Errno> {
    request(libc::PTRACE_SYSCALL, tid, 0, signal as usize).map(drop)
}

/// Which signals a stopped thread blocks (bit `n - 1` for signal `n`).
pub fn signal_mask(tid: i32) -> Result<u64, Errno> {
    const GETSIGMASK: libc::c_uint = 0x420a;
    let mut mask = 0_u64;
    // SAFETY: the kernel writes exactly one mask, whose length is passed, through the pointer.
    let value =
        unsafe { libc::ptrace(GETSIGMASK, tid, size_of::<u64>(), ptr::from_mut(&mut mask)) };
    if value == -1 {
        Err(Errno::last())
    } else {
        Ok(mask)
    }
}

/// Sets which signals a stopped thread blocks.
pub fn set_signal_mask(tid: i32, mask: u64) -> Result<(), Errno> {
    const SETSIGMASK: libc::c_uint = 0x420b;
    // SAFETY: the kernel reads exactly one mask, whose length is passed, through the pointer.
    let value = unsafe { libc::ptrace(SETSIGMASK, tid, size_of::<u64>(), ptr::from_ref(&mask)) };
    if value == -1 {
        Err(Errno::last())
    } else {
        Ok(())
    }
}

/// Takes a child's exit status without blocking: `None` while it lives, or when somebody else traces it.
pub fn reap(pid: i32) -> Option<i32> {
    match wait(pid, libc::WNOHANG) {
        Ok(Some((_, status))) => Some(status),
        _ => None,
    }
}

/// Memory shared with the target, a file of its own.
#[derive(Debug)]
pub struct SharedWords {
    start: *mut u64,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone, and every access to it is atomic.
unsafe impl Send for SharedWords {}

impl SharedWords {
    /// Maps the first `len` bytes of the file.
    pub fn map(file: &std::fs::File, len: usize) -> Result<SharedWords, Errno> {
        use std::os::fd::AsRawFd;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs no other memory.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        Ok(SharedWords {
            start: start.cast(),
            len,
        })
    }

    fn word(&self, offset: usize) -> &std::sync::atomic::AtomicU64 {
        assert!(
            offset.is_multiple_of(8) && offset < self.len,
            "outside of the ring: {offset:#x}"
        );
        // SAFETY: the word lies in the mapping (checked), which lives as long as `self`, and is aligned.
        unsafe { std::sync::atomic::AtomicU64::from_ptr(self.start.add(offset / 8)) }
    }

    /// Reads the word at a byte offset; what was written before it is seen too.
    ///
    /// # Panics
    /// When the offset is not aligned or outside.
    #[must_use]
    pub fn load(&self, offset: usize) -> u64 {
        self.word(offset).load(std::sync::atomic::Ordering::Acquire)
    }

    /// Writes the word at a byte offset after everything read before.
    ///
    /// # Panics
    /// When the offset is not aligned or outside.
    pub fn store(&self, offset: usize, value: u64) {
        self.word(offset)
            .store(value, std::sync::atomic::Ordering::Release);
    }

    /// Replaces one value of the word at a byte offset by another; false when it had none of these.
    ///
    /// # Panics
    /// When the offset is not aligned or outside.
    pub fn exchange(&self, offset: usize, from: u64, to: u64) -> bool {
        use std::sync::atomic::Ordering::{AcqRel, Acquire};
        self.word(offset)
            .compare_exchange(from, to, AcqRel, Acquire)
            .is_ok()
    }

    /// Adds one to the word at a byte offset.
    ///
    /// # Panics
    /// When the offset is not aligned or outside.
    pub fn increment(&self, offset: usize) {
        self.word(offset)
            .fetch_add(1, std::sync::atomic::Ordering::AcqRel);
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` and nothing refers to it any more.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

/// A descriptor that becomes readable when the process has ended.
pub fn pidfd(pid: i32) -> Result<OwnedFd, Errno> {
    use std::os::fd::FromRawFd;
    // SAFETY: the call takes plain integers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(Errno::last());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A page of machine code for a forked child to run.
#[derive(Debug)]
pub struct CodePage {
    start: *mut u8,
}

/// Bytes of a [`CodePage`].
const CODE_PAGE: usize = 4096;

impl CodePage {
    /// Maps a page, writable until it is run.
    pub fn new() -> Result<CodePage, Errno> {
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a new anonymous mapping at an address of the kernel's choice disturbs no other memory.
        let start = unsafe { libc::mmap(ptr::null_mut(), CODE_PAGE, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        Ok(CodePage {
            start: start.cast(),
        })
    }

    /// The address of its first byte.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.start as u64
    }

    /// Writes code for an address in the page.
    ///
    /// # Panics
    /// When it does not fit.
    pub fn write(&self, at: u64, code: &[u8]) {
        let offset = at
            .checked_sub(self.start())
            .map_or(CODE_PAGE, |offset| offset as usize);
        assert!(
            offset.saturating_add(code.len()) <= CODE_PAGE,
            "code outside of its page"
        );
        // SAFETY: the bytes lie in the mapping (checked), which nobody else has a reference to.
        unsafe { ptr::copy_nonoverlapping(code.as_ptr(), self.start.add(offset), code.len()) };
    }

    /// Runs the code at an address of the page, in a process that is killed when it has served; does
    /// not return.
    pub fn run(&self, at: u64) -> ! {
        assert!(
            (self.start()..self.start() + CODE_PAGE as u64).contains(&at),
            "code outside of its page"
        );
        // SAFETY: the page is this process's own, and the code in it was written to be called without
        // arguments; should it return, the process ends.
        unsafe {
            libc::mprotect(
                self.start.cast(),
                CODE_PAGE,
                libc::PROT_READ | libc::PROT_EXEC,
            );
            let code: extern "C" fn() = std::mem::transmute(at);
            code();
        }
        exit_now(127)
    }
}

impl Drop for CodePage {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` and nothing refers to it any more.
        unsafe { libc::munmap(self.start.cast(), CODE_PAGE) };
    }
}

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// Makes an event. `tid` -1 stands for every thread on the CPU.
pub fn perf_event_open(
    attributes: &[u8; crate::perf::attributes::SIZE],
    tid: i32,
    cpu: i32,
) -> Result<OwnedFd, Errno> {
    use std::os::fd::FromRawFd;
    const CLOEXEC: libc::c_ulong = 8;
    // SAFETY: the kernel reads as many bytes through the pointer as the structure says in its second word, which is
    // its length here.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            attributes.as_ptr(),
            tid,
            cpu,
            -1,
            CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(Errno::last());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn perf_ioctl(event: &OwnedFd, request: libc::c_ulong, value: i32) -> i32 {
    use std::os::fd::AsRawFd;
    // SAFETY: the requests made through this function take plain integers.
    unsafe { libc::ioctl(event.as_raw_fd(), request, value) }
}

/// Has an event count. One whose thread has ended stays silent.
pub fn perf_enable(event: &OwnedFd) {
    perf_ioctl(event, 0x2400, 0);
}

/// Has an event stop counting.
pub fn perf_disable(event: &OwnedFd) {
    perf_ioctl(event, 0x2401, 0);
}

/// Has an event write into the ring of another one, on the same CPU.
pub fn perf_set_output(event: &OwnedFd, ring: &OwnedFd) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;
    match perf_ioctl(event, 0x2405, ring.as_raw_fd()) {
        0 => Ok(()),
        _ => Err(Errno::last()),
    }
}

/// The ring of a perf event: a page with its head and tail, then the records.
#[derive(Debug)]
pub struct RingPages {
    start: *mut u8,
    data: usize,
}

// SAFETY: the mapping belongs to this value alone; head and tail are accessed atomically, and the bytes between them
// are written by the kernel only before it moves the head.
unsafe impl Send for RingPages {}

impl RingPages {
    /// Offsets of `data_head` and `data_tail` in `struct perf_event_mmap_page`.
    const HEAD: usize = 1024;
    const TAIL: usize = 1032;

    /// Maps the ring of an event, with `pages` (a power of two) for records.
    pub fn map(event: &OwnedFd, pages: usize) -> Result<RingPages, Errno> {
        use std::os::fd::AsRawFd;
        assert!(pages.is_power_of_two(), "{pages} pages");
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs no other memory.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                (pages + 1) * PAGE,
                protection,
                libc::MAP_SHARED,
                event.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        Ok(RingPages {
            start: start.cast(),
            data: pages * PAGE,
        })
    }

    fn word(&self, offset: usize) -> &std::sync::atomic::AtomicU64 {
        // SAFETY: both offsets lie in the first page of the mapping, which lives as long as `self`, and are aligned.
        unsafe { std::sync::atomic::AtomicU64::from_ptr(self.start.add(offset).cast()) }
    }

    /// Moves what the kernel has written into `bytes`, and makes room for more. Returns how many bytes cannot be
    /// told any more (more than a ring holds).
    pub fn take(&self, bytes: &mut Vec<u8>) -> usize {
        use std::sync::atomic::Ordering;
        bytes.clear();
        let head = self.word(Self::HEAD).load(Ordering::Acquire);
        let tail = self.word(Self::TAIL).load(Ordering::Relaxed);
        let len = head.wrapping_sub(tail);
        let mut unknown = 0;
        if len <= self.data as u64 {
            let len = len as usize;
            let from = (tail % self.data as u64) as usize;
            let first = len.min(self.data - from);
            for (at, count) in [(from, first), (0, len - first)] {
                // SAFETY: `at + count` is at most the length of the data area, which follows the first page; the
                // kernel writes nothing between tail and head until the tail moves.
                let part = unsafe { std::slice::from_raw_parts(self.start.add(PAGE + at), count) };
                bytes.extend_from_slice(part);
            }
        } else {
            unknown = self.data;
        }
        self.word(Self::TAIL).store(head, Ordering::Release);
        unknown
    }
}

impl Drop for RingPages {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` and nothing refers to it any more.
        unsafe { libc::munmap(self.start.cast(), self.data + PAGE) };
    }
}
