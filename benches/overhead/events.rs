//! The perf events of another process of ours, switched on and off behind its back.
#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

/// `PERF_EVENT_IOC_ENABLE` and `PERF_EVENT_IOC_DISABLE` of perf_event_open(2).
const ENABLE: libc::c_ulong = 0x2400;
const DISABLE: libc::c_ulong = 0x2401;

/// All perf events that a process has open.
pub struct Events(Vec<OwnedFd>);

impl Events {
    /// Those that process `pid` has now.
    ///
    /// # Errors
    /// When it is gone, or its descriptors may not be had (pidfd_getfd(2)).
    pub fn of(pid: u32) -> io::Result<Events> {
        // SAFETY: the call takes plain integers.
        let process = owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
        let mut events = Vec::new();
        for entry in fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
            let leads_to = fs::read_link(entry.path()).unwrap_or_default();
            let number = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            if let Some(number) = number
                && leads_to.as_os_str() == "anon_inode:[perf_event]"
            {
                let number: RawFd = number;
                let pidfd = process.as_raw_fd();
                // SAFETY: the call takes plain integers.
                let event = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd, number, 0) };
                events.push(owned(event)?);
            }
        }
        Ok(Events(events))
    }

    /// An event of our own that interrupts a process by the timer that samples are taken by, `rate` times a second of its
    /// time, and takes none: whatever it could see is left out.
    ///
    /// # Errors
    /// When the kernel refuses (perf_event_open(2)).
    pub fn timer_alone(pid: u32, rate: u32) -> io::Result<Events> {
        const SOFTWARE: u32 = 1;
        const SIZE: u32 = 64;
        const DISABLED: u64 = 1 << 0;
        const INHERIT: u64 = 1 << 1;
        const EXCLUDE: u64 = 1 << 4 | 1 << 5;
        // Type and size, cpu-clock, period, what a sample has (its instruction), what is read, flags.
        let attributes = [
            u64::from(SIZE) << 32 | u64::from(SOFTWARE),
            0,
            u64::from(1_000_000_000 / rate),
            1,
            0,
            DISABLED | INHERIT | EXCLUDE,
            0,
            0,
        ];
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let events = (0..cpus).map(|cpu| {
            // SAFETY: the kernel reads as many bytes through the pointer as the second half of the first word says,
            // which are there.
            let event = unsafe {
                let attributes = attributes.as_ptr();
                libc::syscall(libc::SYS_perf_event_open, attributes, pid, cpu, -1, 0)
            };
            owned(event)
        });
        events.collect::<io::Result<_>>().map(Events)
    }

    /// How many they are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Has them record, or not.
    pub fn record(&self, on: bool) {
        for event in &self.0 {
            let request = if on { ENABLE } else { DISABLE };
            // SAFETY: both requests take a plain integer.
            unsafe { libc::ioctl(event.as_raw_fd(), request, 0) };
        }
    }
}

fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    match RawFd::try_from(fd) {
        // SAFETY: the kernel has just made this descriptor for us.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}
