//! Processes of darc's own: fork, exec, signals, priority; what kernels tell of others. Source: fork(2), kcmp(2),
//! pidfd_open(2), sched(7).

use std::ffi::CString;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::ptr;

use nix::errno::Errno;

use super::ptrace::wait_for;

/// Whether two processes share one address space; `None` where the kernel does not tell.
#[must_use]
pub fn shares_memory(a: i32, b: i32) -> Option<bool> {
    const KCMP_VM: i32 = 1;
    shares(a, b, KCMP_VM)
}

/// Whether two threads share one table of descriptors; `None` where the kernel does not tell.
#[must_use]
pub fn shares_descriptors(a: i32, b: i32) -> Option<bool> {
    const KCMP_FILES: i32 = 2;
    shares(a, b, KCMP_FILES)
}

fn shares(a: i32, b: i32, what: i32) -> Option<bool> {
    // SAFETY: kcmp takes plain integers.
    match unsafe { libc::syscall(libc::SYS_kcmp, a, b, what, 0, 0) } {
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
    #[cfg(test)]
    make_tables_of_code();
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

/// A child of a test may assemble code, for which iced-x86 makes its tables once: a child that was forked while another test's thread
/// made them would wait for ever.
#[cfg(test)]
fn make_tables_of_code() {
    let mut code = iced_x86::code_asm::CodeAssembler::new(64).expect("64 bits are known");
    code.nop().expect("it is known");
    let bytes = code.assemble(0).expect("it is short");
    let _ = iced_x86::Decoder::new(64, &bytes, 0).decode();
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

/// Where the function is that an exception is thrown by.
#[cfg(test)]
pub fn unwinder() -> u64 {
    unsafe extern "C" {
        fn _Unwind_RaiseException();
    }
    _Unwind_RaiseException as *const () as u64
}

/// A program and its arguments, as the kernel wants them.
#[derive(Debug)]
pub struct Argv {
    program: CString,
    /// What the pointers point into.
    _strings: Vec<CString>,
    /// Ends with a null pointer.
    pointers: Vec<*const libc::c_char>,
}

impl Argv {
    /// `arguments` begin with the name that the program is told it has.
    #[must_use]
    pub fn new(program: CString, arguments: Vec<CString>) -> Argv {
        let ends = arguments.iter().map(|argument| argument.as_ptr());
        let pointers = ends.chain([ptr::null()]).collect();
        Argv {
            program,
            _strings: arguments,
            pointers,
        }
    }

    /// Replaces this process's program; returns only when that fails. Allocates nothing.
    pub fn exec(&self) -> Errno {
        // SAFETY: the list ends with a null pointer, its strings live as long as `self` where they were made.
        unsafe { libc::execv(self.program.as_ptr(), self.pointers.as_ptr()) };
        Errno::last()
    }
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

/// How a thread that [`run_first`] is in is scheduled.
const FIRST: i32 = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;

/// Has the calling thread run before all programs without real-time priority, from now on; what it forks does not inherit
/// that. One that was started with such a priority keeps its own. Nothing changes where this is not permitted (sched(7): it
/// needs `CAP_SYS_NICE` or `RLIMIT_RTPRIO`).
pub fn run_first() {
    // SAFETY: the call takes a plain integer; zero is this thread.
    let policy = unsafe { libc::sched_getscheduler(0) };
    // Asked for with it, as it may have been.
    if matches!(
        policy & !libc::SCHED_RESET_ON_FORK,
        libc::SCHED_FIFO | libc::SCHED_RR
    ) {
        return;
    }
    // SAFETY: `sched_param` is plain integers, for which zero is a valid value.
    let mut lowest: libc::sched_param = unsafe { std::mem::zeroed() };
    lowest.sched_priority = 1;
    // SAFETY: the kernel reads one `sched_param` through the pointer, which lives through the call; zero is this thread.
    unsafe { libc::sched_setscheduler(0, FIRST, &lowest) };
}

/// Takes back what [`run_first`] has asked for.
pub fn run_as_others() {
    // SAFETY: `sched_param` is plain integers, for which zero is a valid value.
    let mut now: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the call takes a plain integer; zero is this thread.
    let policy = unsafe { libc::sched_getscheduler(0) };
    // SAFETY: the kernel writes one `sched_param` through the pointer, which lives through the call; zero is this thread.
    unsafe { libc::sched_getparam(0, &mut now) };
    if (policy, now.sched_priority) != (FIRST, 1) {
        return;
    }
    // SAFETY: `sched_param` is plain integers, for which zero is a valid value.
    let none: libc::sched_param = unsafe { std::mem::zeroed() };
    let policy = libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the kernel reads one `sched_param` through the pointer, which lives through the call; zero is this thread.
    unsafe { libc::sched_setscheduler(0, policy, &none) };
}

/// Has the kernel kill this process when the thread that forked it ends, and ends it at once when `parent`, the process of
/// that thread, has ended before this could be asked for.
pub fn die_with_parent(parent: i32) {
    // SAFETY: prctl takes plain integers here, getppid nothing.
    let orphaned = unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::getppid() != parent
    };
    if orphaned {
        exit_now(0);
    }
}

/// Has the kernel kill this process when it has used so much time of a processor, in seconds.
pub fn limit_processor_time(seconds: u64) {
    let limit = libc::rlimit {
        rlim_cur: seconds,
        rlim_max: seconds,
    };
    // SAFETY: the kernel reads one `rlimit` through the pointer.
    unsafe { libc::setrlimit(libc::RLIMIT_CPU, &limit) };
}

/// Whether programs may ask by an instruction (`rdfsbase`) where their thread pointer leads: since Linux 5.9, where the processor
/// has it (`HWCAP2_FSGSBASE` in the kernel's arch/x86/include/uapi/asm/hwcap2.h).
pub fn tells_thread_pointer() -> bool {
    const FSGSBASE: libc::c_ulong = 1 << 1;
    // SAFETY: the call takes a plain integer, and answers zero for what it does not know.
    let has = unsafe { libc::getauxval(libc::AT_HWCAP2) };
    has & FSGSBASE != 0
}

/// From now on the kernel does not tell this thread, nor those that it makes, what processes share.
#[cfg(test)]
pub fn refuse_kcmp() {
    let rule = |code: u32, k: u32, unequal: u8| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: unequal,
        k,
    };
    // The number is the first field of what a filter sees (struct seccomp_data in seccomp(2)).
    let mut rules = [
        rule(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        rule(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            libc::SYS_kcmp as u32,
            1,
        ),
        rule(
            libc::BPF_RET | libc::BPF_K,
            libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
            0,
        ),
        rule(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let filter = libc::sock_fprog {
        len: rules.len() as u16,
        filter: rules.as_mut_ptr(),
    };
    // SAFETY: the kernel reads the rules through the pointer; both live through the calls.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter);
    }
}

/// Sends a signal to one thread of a process.
#[cfg(test)]
pub fn send_to_thread(pid: i32, tid: i32, signal: i32) -> Result<(), Errno> {
    // SAFETY: the call takes plain integers.
    match unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal) } {
        0 => Ok(()),
        _ => Err(Errno::last()),
    }
}

/// Has this process take note of a signal, and do nothing about it: it ends calls that wait.
#[cfg(test)]
pub fn take_note_of(signal: i32) {
    extern "C" fn nothing(_: i32) {}
    // SAFETY: `sigaction` is plain data, for which zero is a valid value; the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
        libc::sigaction(signal, &action, ptr::null_mut());
    }
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

/// A descriptor that becomes readable when the process has ended.
pub fn pidfd(pid: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: the call takes plain integers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })
}

/// The open file that a thread has as descriptor `fd`; the rights to it are those that the thread has.
///
/// A thread that is not its process's first may have descriptors of its own; kernels before 6.9 refuse it with `EINVAL`.
pub fn descriptor_of(tid: i32, fd: i32) -> Result<OwnedFd, Errno> {
    /// `PIDFD_THREAD` in pidfd_open(2).
    const THREAD: i32 = libc::O_EXCL;
    // SAFETY: the call takes plain integers.
    let open = |flags: i32| unsafe { libc::syscall(libc::SYS_pidfd_open, tid, flags) };
    let thread = match open(THREAD) {
        -1 => owned(open(0))?,
        thread => owned(thread)?,
    };
    // SAFETY: the call takes plain integers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, thread.as_raw_fd(), fd, 0) })
}

/// Takes charge of a descriptor that a system call returned.
fn owned(fd: libc::c_long) -> Result<OwnedFd, Errno> {
    if fd < 0 {
        return Err(Errno::last());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Gives the calling thread these groups beside its own one; the C library's function would give them to all threads.
pub fn set_groups_of_thread(groups: &[u32]) -> Result<(), Errno> {
    // SAFETY: the kernel reads as many group ids as there are in the slice.
    match unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) } {
        0 => Ok(()),
        _ => Err(Errno::last()),
    }
}

/// Has the program that a command starts end with the thread that starts it ([`die_with_parent`]).
pub fn die_with_us(command: &mut Command) {
    let own = std::process::id() as i32;
    let ask = move || {
        die_with_parent(own);
        Ok(())
    };
    // SAFETY: the closure only makes system calls.
    unsafe { command.pre_exec(ask) };
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    #[test]
    fn a_program_ends_with_who_started_it() {
        let (from, to) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).unwrap();
        let parent = fork_into(|| {
            let mut command = Command::new("sleep");
            command
                .arg("1000")
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            die_with_us(&mut command);
            let started = command.spawn().map_or(0, |child| child.id());
            let _ = nix::unistd::write(&to, &started.to_le_bytes());
            exit_now(0);
        });
        let _ = wait_for(parent.unwrap());
        let mut started = [0; 4];
        assert_eq!(nix::unistd::read(&from, &mut started), Ok(4));
        let started = i32::from_le_bytes(started);
        assert!(started > 0, "it was not started");
        let since = std::time::Instant::now();
        while !crate::threads::is_dead(started) {
            assert!(since.elapsed().as_secs() < 60, "it lives");
            std::thread::yield_now();
        }
    }

    /// A child that comes to run only when its parent has ended already.
    #[test]
    fn a_child_whose_parent_has_ended_ends() {
        let (from, to) = nix::unistd::pipe().unwrap();
        let parent = fork_into(|| {
            let parent = nix::unistd::getpid().as_raw();
            let _ = fork_into(|| {
                while nix::unistd::getppid().as_raw() == parent {
                    std::thread::yield_now();
                }
                die_with_parent(parent);
                let _ = nix::unistd::write(&to, &[1]);
            });
            exit_now(0);
        });
        let _ = wait_for(parent.unwrap());
        drop(to);
        assert_eq!(nix::unistd::read(&from, &mut [0]), Ok(0), "it lives");
    }

    #[test]
    fn a_child_that_is_forgotten_ends() {
        let child = fork_into(|| {
            limit_processor_time(1);
            loop {
                std::hint::spin_loop();
            }
        });
        let (_, status) = wait_for(child.unwrap()).unwrap();
        assert!(libc::WIFSIGNALED(status), "{status:#x}");
    }
}
