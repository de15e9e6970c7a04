//! Where the kernel's tracefs is.

use std::io::ErrorKind;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::sys;

/// Where it is mounted; the second place is the older one.
const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// The PID namespace of the machine itself (`PROC_PID_INIT_INO` in the kernel's include/linux/proc_ns.h).
const MACHINE: &str = "pid:[4026531836]";

/// The folder: the one that is mounted; else, for whoever may mount it, one that no other process sees.
///
/// # Errors
/// The folder that may not be looked into, if there is one: it is no missing one.
pub fn place() -> Result<PathBuf, Option<PathBuf>> {
    let holds = |place: &Path| place.join("trace_clock").symlink_metadata();
    if let Some(place) = PLACES.map(Path::new).into_iter().find(|p| holds(p).is_ok()) {
        return Ok(place.to_owned());
    }
    if let Some(own) = own() {
        return Ok(PathBuf::from(format!("/proc/self/fd/{}", own.as_raw_fd())));
    }
    let is_closed =
        |place: &&Path| holds(place).is_err_and(|e| e.kind() == ErrorKind::PermissionDenied);
    let closed = PLACES.map(Path::new).into_iter().find(is_closed);
    Err(closed.map(Path::to_owned))
}

/// Not in a container: there the kernel would tell of the whole machine, in numbers of threads that nobody there knows.
fn own() -> Option<&'static OwnedFd> {
    static OWN: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let mounted = OWN.get_or_init(|| sys::tracefs().ok().filter(|_| numbers_are_the_machines()));
    mounted.as_ref()
}

/// Whether threads have the numbers here that the kernel's events name them by.
#[must_use]
pub fn numbers_are_the_machines() -> bool {
    std::fs::read_link("/proc/self/ns/pid").is_ok_and(|space| space == Path::new(MACHINE))
}
