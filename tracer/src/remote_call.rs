//! System calls made in the target's name by a stopped thread.
//!
//! The thread's registers are put back afterwards, the system call it may have been blocked in
//! included; signals that arrive meanwhile are held and handed on. Refused where a seccomp filter
//! might kill the target for the call.

use nix::errno::Errno;

use crate::addr::TargetAddr;
use crate::error::{Error, Result};
use crate::event::{Event, decode};
use crate::maps::Mapping;
use crate::memory::Memory;
use crate::stopped::Stopped;
use crate::sys;
use crate::threads;

/// Makes system calls through one `syscall` instruction found in the target.
#[derive(Clone, Copy, Debug)]
pub struct RemoteCaller {
    pid: i32,
    /// Where the target has the bytes `0f 05`.
    instruction: TargetAddr,
}

impl RemoteCaller {
    /// Finds a `syscall` instruction: the vDSO has one, else any executable mapping will do.
    ///
    /// # Errors
    /// When there is none to be found.
    pub fn find(pid: i32, memory: &Memory, mappings: &[Mapping]) -> Result<RemoteCaller> {
        let vdso_first = mappings
            .iter()
            .rev()
            .filter(|m| m.executable && m.readable && m.name.as_os_str() != "[vsyscall]");
        for mapping in vdso_first {
            if let Some(instruction) = search(memory, mapping) {
                return Ok(RemoteCaller { pid, instruction });
            }
        }
        Err(Error::Unsuitable(format!(
            "process {pid} has no system call instruction to borrow; it cannot be instrumented"
        )))
    }

    /// Makes one system call; `thread` stays stopped and comes back with its registers as they were.
    ///
    /// # Errors
    /// When the thread ends meanwhile, or the call itself fails.
    pub fn call(
        self,
        thread: &mut Stopped,
        call: &'static str,
        number: i64,
        arguments: [u64; 6],
    ) -> Result<u64> {
        if threads::is_filtered(thread.tid()) {
            return Err(Error::Unsuitable(format!(
                "process {} runs under a seccomp filter, which might kill it for {call} made in its name",
                self.pid
            )));
        }
        let saved = thread.registers()?;
        let mut registers = saved;
        let r = &mut registers.0;
        r.rip = self.instruction.0;
        r.rax = number as u64;
        // Keeps the kernel from restarting a call that the stop interrupted in the middle of this one.
        r.orig_rax = u64::MAX;
        [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9] = arguments;
        thread.set_registers(&registers)?;
        let outcome = self.step_over(thread);
        thread.set_registers(&saved)?;
        let value = outcome? as i64;
        if (-4095..0).contains(&value) {
            return Err(Error::RemoteCall {
                call,
                pid: self.pid,
                source: Errno::from_raw(-value as i32),
            });
        }
        Ok(value as u64)
    }

    fn step_over(self, thread: &mut Stopped) -> Result<u64> {
        let tid = thread.tid();
        loop {
            thread.step()?;
            let (_, status) =
                sys::wait_for(tid).map_err(|errno| Error::ptrace("wait for", tid, errno))?;
            match decode(status) {
                Event::Exited(_) | Event::Killed(_) => return Err(Error::ThreadGone { tid }),
                Event::Signal(libc::SIGTRAP) => {}
                Event::Signal(signal) => thread.owe(signal),
                _ => {}
            }
            let now = thread.registers()?;
            if now.rip() != self.instruction {
                return Ok(now.0.rax);
            }
        }
    }
}

fn search(memory: &Memory, mapping: &Mapping) -> Option<TargetAddr> {
    const CHUNK: u64 = 1 << 16;
    let mut buffer = Vec::new();
    (mapping.start..mapping.end)
        .step_by(CHUNK as usize)
        .find_map(|from| {
            buffer.resize(CHUNK.min(mapping.end - from) as usize, 0);
            memory.read(TargetAddr(from), &mut buffer).ok()?;
            let at = buffer.windows(2).position(|pair| pair == [0x0f, 0x05])?;
            Some(TargetAddr(from + at as u64))
        })
}
