//! An instance of the kernel's tracing: made, told what to record, read, and always removed.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::proc::Stat;

use super::place::{numbers_are_the_machines, place};

/// Kilobytes of buffer for each CPU: some 60,000 events.
const BUFFER_KB: &str = "4096";
/// Bytes of a page of the ring buffer.
pub const PAGE: usize = 4096;

/// Why there is no tracing.
#[derive(thiserror::Error, Debug)]
pub enum Refusal {
    /// It is not mounted.
    #[error(
        "the kernel's tracefs is not mounted; as root: mount -t tracefs nodev /sys/kernel/tracing"
    )]
    NotMounted,
    /// In a container: it follows processes by the machine's numbers.
    #[error("processes have other numbers in this container than on the machine")]
    OtherNumbers,
    /// Only root may.
    #[error(
        "{path}: permission denied; run as root, or let your group read it (mount -o remount,gid=GROUP,mode=750 /sys/kernel/tracing) and set kernel.perf_event_paranoid to 1"
    )]
    Permission {
        /// What was not allowed.
        path: PathBuf,
    },
    /// The kernel was built without it.
    #[error("{path}: not there; the kernel lacks CONFIG_FTRACE_SYSCALLS or the clock x86-tsc")]
    Missing {
        /// What is missing.
        path: PathBuf,
    },
    /// Anything else.
    #[error("{path}: {source}")]
    Os {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

fn refuse(path: &Path, source: io::Error) -> Refusal {
    let path = path.to_owned();
    match source.kind() {
        ErrorKind::PermissionDenied => Refusal::Permission { path },
        ErrorKind::NotFound | ErrorKind::InvalidInput => Refusal::Missing { path },
        _ => Refusal::Os { path, source },
    }
}

/// An instance of this process; removed when it is dropped.
#[derive(Debug)]
pub struct Instance {
    folder: PathBuf,
}

impl Instance {
    /// Makes one, and takes away those of processes that were killed.
    pub fn new() -> Result<Instance, Refusal> {
        if !numbers_are_the_machines() {
            return Err(Refusal::OtherNumbers);
        }
        let place = place().map_err(|closed| match closed {
            Some(path) => Refusal::Permission { path },
            None => Refusal::NotMounted,
        })?;
        let instances = place.join("instances");
        remove_abandoned_in(&instances);
        let folder = instances.join(own_name());
        std::fs::create_dir(&folder).map_err(|error| refuse(&folder, error))?;
        let instance = Instance { folder };
        instance.write("tracing_on", "0")?;
        instance.write("trace_clock", "x86-tsc")?;
        instance.write("buffer_size_kb", BUFFER_KB)?;
        Ok(instance)
    }

    /// Writes to one of its files.
    pub fn write(&self, file: &str, text: &str) -> Result<(), Refusal> {
        let path = self.folder.join(file);
        std::fs::write(&path, text).map_err(|error| refuse(&path, error))
    }

    /// Adds to what a file holds.
    pub fn append(&self, file: &str, text: &str) -> Result<(), Refusal> {
        let path = self.folder.join(file);
        let file = OpenOptions::new().append(true).open(&path);
        file.and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes()))
            .map_err(|error| refuse(&path, error))
    }

    /// Reads one of its files.
    pub fn read(&self, file: &str) -> Result<String, Refusal> {
        let path = self.folder.join(file);
        std::fs::read_to_string(&path).map_err(|error| refuse(&path, error))
    }

    /// The buffers of all CPUs, to be read without waiting.
    pub fn buffers(&self) -> Result<Vec<Buffer>, Refusal> {
        let folder = self.folder.join("per_cpu");
        let entries = std::fs::read_dir(&folder).map_err(|error| refuse(&folder, error))?;
        let mut buffers = Vec::new();
        for entry in entries.flatten() {
            let path = entry.path().join("trace_pipe_raw");
            let file = OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(&path)
                .map_err(|error| refuse(&path, error))?;
            buffers.push(Buffer {
                file,
                page: vec![0; PAGE],
            });
        }
        Ok(buffers)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // Whatever reads its files has been dropped before, or the folder would be busy.
        let _ = self.write("tracing_on", "0");
        if let Err(error) = std::fs::remove_dir(&self.folder) {
            tracing::warn!(target: "tracer", %error, folder = %self.folder.display(), "cannot be removed");
        }
    }
}

/// The name of this process's instance: its number, and when it began, for numbers come again.
fn own_name() -> String {
    let pid = std::process::id().cast_signed();
    named(pid, began(pid).unwrap_or(0))
}

fn named(pid: i32, start: u64) -> String {
    format!("darc.{pid}.{start}")
}

/// When a process began, in clock ticks since boot; `None` when there is none of this number.
fn began(pid: i32) -> Option<u64> {
    Stat::of(pid).ok()?.began()
}

/// What became of an instance whose darc was killed.
#[derive(Debug)]
pub struct Abandoned {
    /// Its folder.
    pub folder: PathBuf,
    /// Whether it could be removed.
    pub removed: io::Result<()>,
}

/// Removes the instances of killed darcs; all of them are returned. In a container none: whether their darcs have ended is
/// not known there.
///
/// # Errors
/// The folder that may not be looked into, where there may be some.
pub fn remove_abandoned() -> Result<Vec<Abandoned>, PathBuf> {
    match place() {
        Ok(place) if numbers_are_the_machines() => {
            Ok(remove_abandoned_in(&place.join("instances")))
        }
        Err(Some(closed)) => Err(closed),
        Ok(_) | Err(None) => Ok(Vec::new()),
    }
}

fn remove_abandoned_in(instances: &Path) -> Vec<Abandoned> {
    let entries = std::fs::read_dir(instances).into_iter().flatten().flatten();
    let abandoned = entries.filter(|it| it.file_name().to_str().is_some_and(is_abandoned));
    let removed = abandoned.map(|entry| Abandoned {
        folder: entry.path(),
        removed: std::fs::remove_dir(entry.path()),
    });
    removed.collect()
}

/// Whether an instance of this name is of a darc that has ended.
fn is_abandoned(name: &str) -> bool {
    let Some((pid, start)) = name.strip_prefix("darc.").and_then(|of| of.split_once('.')) else {
        return false;
    };
    let (Ok(pid), Ok(start)) = (pid.parse::<i32>(), start.parse::<u64>()) else {
        return false;
    };
    if pid <= 0 || name != named(pid, start) {
        return false;
    }
    match Stat::of(pid) {
        // In a time namespace of its own a process sees other times than its maker.
        Ok(stat) => start != 0 && stat.began() != Some(start) && !has_own_time(pid),
        // Others' processes may be hidden in /proc (`hidepid`).
        Err(_) => kill(Pid::from_raw(pid), None) == Err(Errno::ESRCH),
    }
}

/// Whether a process counts time otherwise than this one, or it is not known (time_namespaces(7)).
fn has_own_time(pid: i32) -> bool {
    let of = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/time"));
    match (of("self"), of(&pid.to_string())) {
        (Ok(own), Ok(its)) => own != its,
        // Kernels before 5.6 have none.
        (Err(own), Err(its)) => own.kind() != ErrorKind::NotFound || own.kind() != its.kind(),
        _ => true,
    }
}

/// One CPU's buffer.
#[derive(Debug)]
pub struct Buffer {
    file: File,
    page: Vec<u8>,
}

impl Buffer {
    /// The next page with events, if there is one.
    pub fn next(&mut self) -> Option<&[u8]> {
        loop {
            match self.file.read(&mut self.page) {
                Ok(0) => return None,
                Ok(len) => return self.page.get(..len),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another process may have the number of one that was killed.
    #[test]
    fn an_instance_is_of_one_process_alone() {
        let own = own_name();
        assert!(!is_abandoned(&own));
        assert!(is_abandoned(&format!("{own}0")));
        // No process has this number (proc_sys_kernel(5), pid_max).
        assert!(is_abandoned("darc.8388608.7"));
        for others in [
            "darc.of.others",
            "others.7.7",
            "darc.8388608.7.7",
            "darc.08388608.7",
            "darc.+8388608.7",
            "darc.-1.7",
            "darc.0.7",
        ] {
            assert!(!is_abandoned(others), "{others}");
        }
    }
}
