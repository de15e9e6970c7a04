//! A file system that is mounted nowhere. Source: fsopen(2), fsconfig(2), fsmount(2).

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr;

use nix::errno::Errno;

const FSOPEN_CLOEXEC: u32 = 1;
const FSCONFIG_CMD_CREATE: u32 = 6;
const FSMOUNT_CLOEXEC: u32 = 1;

/// The root folder of the kernel's tracefs, in no mount table: it is gone when the descriptor is closed.
///
/// # Errors
/// Whoever may not mount may not do this; kernels before 5.2 cannot.
pub fn tracefs() -> Result<OwnedFd, Errno> {
    // SAFETY: the name is a constant C string; the rest are plain integers.
    let context = unsafe { libc::syscall(libc::SYS_fsopen, c"tracefs".as_ptr(), FSOPEN_CLOEXEC) };
    let context = owned(context)?;
    let nothing = ptr::null::<libc::c_char>();
    // SAFETY: this command takes neither a key nor a value.
    let made = unsafe {
        libc::syscall(
            libc::SYS_fsconfig,
            context.as_raw_fd(),
            FSCONFIG_CMD_CREATE,
            nothing,
            nothing,
            0,
        )
    };
    Errno::result(made)?;
    // SAFETY: fsmount takes plain integers.
    owned(unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, 0) })
}

/// A descriptor that a system call returned, nobody else's yet.
fn owned(result: libc::c_long) -> Result<OwnedFd, Errno> {
    let descriptor = Errno::result(result)?;
    // SAFETY: the kernel has just made it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as i32) })
}
