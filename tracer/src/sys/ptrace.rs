//! Requests of ptrace(2), and waiting for the threads that are traced.

use std::ptr;

use nix::errno::Errno;

/// The general registers of a stopped thread, as the kernel lays them out (`struct user_regs_struct`).
pub type RawRegisters = libc::user_regs_struct;

/// The event number of a group stop or an interrupt of a seized thread (`PTRACE_EVENT_STOP`).
pub const EVENT_STOP: i32 = 128;

/// A request, as the C library has it.
#[cfg(target_env = "musl")]
type Request = libc::c_int;
/// A request, as the C library has it.
#[cfg(not(target_env = "musl"))]
type Request = libc::c_uint;

/// # Safety
/// Where the request has the kernel read or write through `data`, it is the address of what is read, or of room for what is
/// written.
unsafe fn raw(
    request: Request,
    tid: i32,
    addr: usize,
    data: *mut libc::c_void,
) -> Result<i64, Errno> {
    #[cfg(test)]
    super::kill_point::pass();
    // SAFETY: as the caller promises.
    match unsafe { libc::ptrace(request, tid, addr, data) } {
        -1 => Err(Errno::last()),
        value => Ok(value),
    }
}

fn request(request: Request, tid: i32, addr: usize, data: usize) -> Result<i64, Errno> {
    // SAFETY: the requests made through this function take plain integers.
    unsafe { raw(request, tid, addr, ptr::without_provenance_mut(data)) }
}

/// Attaches without stopping the thread. Its stops at system calls are always told from signals
/// (`PTRACE_O_TRACESYSGOOD`).
///
/// A thread that comes to such a stop just after its tracer was killed gets the stop's number as a signal (the kernel's
/// `ptrace_report_syscall`). Without the option that is SIGTRAP, which ends the program; with it, it is none.
pub fn seize(tid: i32, options: i32) -> Result<(), Errno> {
    let options = options | libc::PTRACE_O_TRACESYSGOOD;
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
    let room = ptr::from_mut(&mut message).cast();
    // SAFETY: the kernel writes one unsigned long.
    unsafe { raw(libc::PTRACE_GETEVENTMSG, tid, 0, room) }?;
    i32::try_from(message).map_err(|_| Errno::ERANGE)
}

/// Reads the general registers of a stopped thread.
pub fn registers(tid: i32) -> Result<RawRegisters, Errno> {
    // SAFETY: `user_regs_struct` is plain integers, for which zero is a valid value.
    let mut registers: RawRegisters = unsafe { std::mem::zeroed() };
    let room = ptr::from_mut(&mut registers).cast();
    // SAFETY: the kernel writes exactly one `user_regs_struct`.
    unsafe { raw(libc::PTRACE_GETREGS, tid, 0, room) }?;
    Ok(registers)
}

/// Writes the general registers of a stopped thread.
pub fn set_registers(tid: i32, registers: &RawRegisters) -> Result<(), Errno> {
    let values = ptr::from_ref(registers).cast_mut().cast();
    // SAFETY: the kernel reads exactly one `user_regs_struct`, and writes nothing.
    unsafe { raw(libc::PTRACE_SETREGS, tid, 0, values) }.map(drop)
}

/// Says of the SIGTRAP that a thread is stopped at that it came of a single step, after which `at` is the next instruction.
pub fn set_step(tid: i32, at: u64) -> Result<(), Errno> {
    /// The kernel's `siginfo_t` of a fault (include/uapi/asm-generic/siginfo.h).
    #[repr(C)]
    struct Fault {
        signal: i32,
        errno: i32,
        code: i32,
        addr: u64,
        rest: [u64; 13],
    }
    const { assert!(size_of::<Fault>() == size_of::<libc::siginfo_t>()) };
    let fault = Fault {
        signal: libc::SIGTRAP,
        errno: 0,
        code: libc::TRAP_TRACE,
        addr: at,
        rest: [0; 13],
    };
    let value = ptr::from_ref(&fault).cast_mut().cast();
    // SAFETY: the kernel reads exactly one `siginfo_t`, and writes nothing.
    unsafe { raw(libc::PTRACE_SETSIGINFO, tid, 0, value) }.map(drop)
}

/// Reads the extended state of a stopped thread (vector and floating-point registers), as XSAVE lays it out.
pub fn extended_state(tid: i32) -> Result<Vec<u8>, Errno> {
    const NT_X86_XSTATE: usize = 0x202;
    let mut state = vec![0_u8; 16 << 10];
    let mut part = libc::iovec {
        iov_base: state.as_mut_ptr().cast(),
        iov_len: state.len(),
    };
    let room = ptr::from_mut(&mut part).cast();
    // SAFETY: the kernel writes at most as many bytes as the vector says, into memory that lives through the call, and then
    // says in it how many they were.
    unsafe { raw(libc::PTRACE_GETREGSET, tid, NT_X86_XSTATE, room) }?;
    state.truncate(part.iov_len);
    Ok(state)
}

/// Whether a stopped thread handles system calls itself (`PR_SET_SYSCALL_USER_DISPATCH` in prctl(2)). Kernels before 6.4 do not
/// tell.
pub fn handles_calls(tid: i32) -> Result<bool, Errno> {
    const GET_CONFIG: Request = 0x4211;
    const OFF: u64 = 0;
    // struct ptrace_sud_config: mode, selector, offset, length.
    let mut config = [OFF; 4];
    let room = config.as_mut_ptr().cast();
    // SAFETY: the kernel writes as many bytes as it is told, into memory of that size that lives through the call.
    unsafe { raw(GET_CONFIG, tid, size_of_val(&config), room) }?;
    Ok(config[0] != OFF)
}

/// Where a thread has the area by which the kernel knows its restartable sequence (struct rseq, rseq(2)); zero for none. Kernels
/// before 5.13 do not tell.
pub fn restartable_area(tid: i32) -> Result<u64, Errno> {
    const GET_CONFIGURATION: Request = 0x420f;
    // struct ptrace_rseq_configuration: where it is, its size and signature, flags and padding.
    let mut config = [0_u64; 3];
    let room = config.as_mut_ptr().cast();
    // SAFETY: the kernel writes as many bytes as it is told, into memory of that size that lives through the call.
    unsafe { raw(GET_CONFIGURATION, tid, size_of_val(&config), room) }?;
    Ok(config[0])
}

/// Where the last of these parts of an extended state ends, in bytes, as XSAVE lays it out; zero for x87 and SSE alone.
///
/// Source: CPUID leaf 13 (Intel SDM volume 1, 13.4.3).
#[must_use]
pub fn end_of_extended_state(parts: u64) -> usize {
    const LEAF: u32 = 13;
    let end = |part: u32| {
        // Newer compilers take it for safe.
        #[allow(unused_unsafe)]
        // SAFETY: every x86-64 processor has the instruction; it answers zeros for what it does not know.
        let told = unsafe { std::arch::x86_64::__cpuid_count(LEAF, part) };
        (told.eax + told.ebx) as usize
    };
    let in_use = (2..63).filter(|part| parts & (1 << part) != 0);
    in_use.map(end).max().unwrap_or(0)
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

/// Finds what [`wait_any`] would take, and leaves it: until it is taken, a signal that a thread was stopped at is delivered to it
/// should this process be killed (the kernel's `wait_task_stopped`).
pub fn look_any() -> Result<Option<WaitStatus>, Errno> {
    look(libc::P_ALL, 0)
}

/// Finds what [`wait_now`] would take, and leaves it as [`look_any`] does.
pub fn look_now(tid: i32) -> Result<Option<WaitStatus>, Errno> {
    look(libc::P_PID, tid.cast_unsigned())
}

fn look(kind: libc::idtype_t, id: u32) -> Result<Option<WaitStatus>, Errno> {
    const SEEN: i32 = 0x7f;
    let found = wait_id(kind, id, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT)?;
    // SAFETY: these fields are there for every kind of report.
    let (tid, status) = unsafe { (found.si_pid(), found.si_status()) };
    let status = match found.si_code {
        libc::CLD_EXITED => status << 8,
        libc::CLD_KILLED => status,
        libc::CLD_DUMPED => status | 0x80,
        _ => status << 8 | SEEN,
    };
    Ok((tid != 0).then_some((tid, status)))
}

/// Takes a stop of the given thread that has been looked at. The end of a thread is left.
pub fn take_stop(tid: i32) {
    let _ = wait_id(
        libc::P_PID,
        tid.cast_unsigned(),
        libc::WSTOPPED | libc::WNOHANG,
    );
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

/// Takes a wait status of the given thread without blocking, unless a signal is about to be delivered: that stop is left, as by
/// [`look_now`], and is seen again until the thread is resumed. SIGTRAP is always taken: it may come of a breakpoint.
pub fn wait_but_for_signals(tid: i32) -> Result<Option<WaitStatus>, Errno> {
    const SIGNALS: std::ops::RangeInclusive<i32> = 1..=64;
    match look_now(tid)? {
        Some((_, status)) if libc::WIFSTOPPED(status) => match status >> 8 {
            signal if SIGNALS.contains(&signal) && signal != libc::SIGTRAP => {
                Ok(Some((tid, status)))
            }
            _ => wait_now(tid),
        },
        Some(_) => wait_now(tid),
        None => Ok(None),
    }
}

/// Whether the end of the given thread is what [`wait_now`] would take; it is left for others.
pub fn has_ended(tid: i32) -> bool {
    let flags = libc::WEXITED | libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT;
    let ends = [libc::CLD_EXITED, libc::CLD_KILLED, libc::CLD_DUMPED];
    let found = wait_id(libc::P_PID, tid.cast_unsigned(), flags);
    found.is_ok_and(|found| ends.contains(&found.si_code))
}

fn wait_id(kind: libc::idtype_t, id: u32, flags: i32) -> Result<libc::siginfo_t, Errno> {
    let flags = flags | libc::__WALL | libc::__WNOTHREAD;
    // SAFETY: `siginfo_t` is plain data, for which zero is a valid value.
    let mut found: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `siginfo_t` through the pointer.
    match unsafe { libc::waitid(kind, id, &mut found, flags) } {
        -1 => Err(Errno::last()),
        _ => Ok(found),
    }
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

/// Lets a stopped thread run to the begin or end of its next system call, delivering `signal` unless it is zero.
pub fn cont_to_syscall(tid: i32, signal: i32) -> Result<(), Errno> {
    request(libc::PTRACE_SYSCALL, tid, 0, signal as usize).map(drop)
}

/// Which signals a stopped thread blocks (bit `n - 1` for signal `n`).
pub fn signal_mask(tid: i32) -> Result<u64, Errno> {
    const GETSIGMASK: Request = 0x420a;
    let mut mask = 0_u64;
    let room = ptr::from_mut(&mut mask).cast();
    // SAFETY: the kernel writes exactly one mask, whose length is passed.
    unsafe { raw(GETSIGMASK, tid, size_of::<u64>(), room) }?;
    Ok(mask)
}

/// Sets which signals a stopped thread blocks.
pub fn set_signal_mask(tid: i32, mask: u64) -> Result<(), Errno> {
    const SETSIGMASK: Request = 0x420b;
    let value = ptr::from_ref(&mask).cast_mut().cast();
    // SAFETY: the kernel reads exactly one mask, whose length is passed, and writes nothing.
    unsafe { raw(SETSIGMASK, tid, size_of::<u64>(), value) }.map(drop)
}

/// Takes a child's exit status without blocking: `None` while it lives, or when somebody else traces it.
pub fn reap(pid: i32) -> Option<i32> {
    match wait(pid, libc::WNOHANG) {
        Ok(Some((_, status))) => Some(status),
        _ => None,
    }
}
