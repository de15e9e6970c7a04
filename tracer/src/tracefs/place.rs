//! Where the kernel's tracefs is.

use std::io::ErrorKind;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::sys;

/// Where it is mounted; the second place is the older one.
const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// The same for the machine's first process, whose folders may be others. A container's is not to be trusted.
const OF_THE_MACHINE: &str = "/proc/1/root/sys/kernel/tracing";
/// The PID namespace of the machine itself (`PROC_PID_INIT_INO` in the kernel's include/linux/proc_ns.h).
const MACHINE: &str = "pid:[4026531836]";

/// The folder: one that is mounted; else, for whoever may mount it, a mount that no other process sees.
///
/// # Errors
/// The folder that may not be looked into, if there is one: it is no missing one.
pub fn place() -> Result<PathBuf, Option<PathBuf>> {
    let holds = |place: &Path| place.join("trace_clock").symlink_metadata();
    let others = numbers_are_the_machines().then_some(OF_THE_MACHINE);
    let mut places = PLACES.into_iter().chain(others).map(Path::new);
    if let Some(place) = places.find(|place| holds(place).is_ok()) {
        return Ok(place.to_owned());
    }
    if let Some(own) = own() {
        let place = PathBuf::from(format!("/proc/self/fd/{}", own.as_raw_fd()));
        // Under lockdown the kernel leaves it empty.
        if holds(&place).is_ok() {
            return Ok(place);
        }
    }
    let is_closed =
        |place: &&Path| holds(place).is_err_and(|e| e.kind() == ErrorKind::PermissionDenied);
    let closed = PLACES.map(Path::new).into_iter().find(is_closed);
    Err(closed.map(Path::to_owned))
}

/// Not in a container, and not where the machine's first process has it elsewhere: older kernels reset whom its files
/// belong to at each mount.
fn own() -> Option<&'static OwnedFd> {
    static OWN: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let is_mounted = || {
        let mounts = std::fs::read_to_string("/proc/1/mountinfo");
        mounts.is_ok_and(|mounts| mounts.contains(" - tracefs "))
    };
    let may = || numbers_are_the_machines() && nix::unistd::geteuid().is_root() && !is_mounted();
    let mounted = OWN.get_or_init(|| may().then(sys::tracefs).and_then(Result::ok));
    mounted.as_ref()
}

/// Whether threads have the numbers here that the kernel's events name them by.
#[must_use]
pub fn numbers_are_the_machines() -> bool {
    std::fs::read_link("/proc/self/ns/pid").is_ok_and(|space| space == Path::new(MACHINE))
}
