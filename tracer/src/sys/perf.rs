//! Events of perf_event_open(2) and their rings.

use std::ffi::CStr;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::atomic::Ordering;

use nix::errno::Errno;

use crate::perf::attributes::SIZE;

use super::mapping::{Mapping, PAGE};

/// Makes an event. `tid` -1 stands for every thread on the CPU.
pub fn perf_event_open(attributes: &[u8; SIZE], tid: i32, cpu: i32) -> Result<OwnedFd, Errno> {
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

fn perf_ioctl(event: &OwnedFd, request: libc::Ioctl, value: i32) -> i32 {
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
    match perf_ioctl(event, 0x2405, ring.as_raw_fd()) {
        0 => Ok(()),
        _ => Err(Errno::last()),
    }
}

/// Has a tracepoint's event pass over what a filter does not fit. False where the kernel refuses it.
pub fn perf_set_filter(event: &OwnedFd, filter: &CStr) -> bool {
    const SET_FILTER: libc::Ioctl = 0x4008_2406;
    // SAFETY: the kernel reads the text up to its end.
    unsafe { libc::ioctl(event.as_raw_fd(), SET_FILTER, filter.as_ptr()) == 0 }
}

/// The ring of a perf event: a page with its head and tail, then the records.
#[derive(Debug)]
pub struct RingPages {
    mapping: Mapping,
    /// Bytes for records.
    data: usize,
}

impl RingPages {
    /// Offsets of `data_head` and `data_tail` in `struct perf_event_mmap_page`.
    const HEAD: usize = 1024;
    const TAIL: usize = 1032;

    /// Maps the ring of an event, with `pages` (a power of two) for records.
    ///
    /// # Panics
    /// When it is no power of two.
    pub fn map(event: &OwnedFd, pages: usize) -> Result<RingPages, Errno> {
        assert!(pages.is_power_of_two(), "{pages} pages");
        Ok(RingPages {
            mapping: Mapping::shared(event.as_fd(), (pages + 1) * PAGE)?,
            data: pages * PAGE,
        })
    }

    /// How many bytes of records there is room for.
    #[must_use]
    pub fn size(&self) -> usize {
        self.data
    }

    /// Moves what the kernel has written into `bytes`, and makes room for more. Returns how many bytes cannot be
    /// told any more (more than a ring holds).
    pub fn take(&self, bytes: &mut Vec<u8>) -> usize {
        bytes.clear();
        let head = self.mapping.word(Self::HEAD).load(Ordering::Acquire);
        let tail = self.mapping.word(Self::TAIL).load(Ordering::Relaxed);
        let len = head.wrapping_sub(tail);
        let mut unknown = 0;
        if len <= self.data as u64 {
            let len = len as usize;
            let from = (tail % self.data as u64) as usize;
            let first = len.min(self.data - from);
            // The kernel writes nothing between tail and head until the tail moves.
            self.mapping.copy_to(PAGE + from, first, bytes);
            self.mapping.copy_to(PAGE, len - first, bytes);
        } else {
            unknown = self.data;
        }
        self.mapping.word(Self::TAIL).store(head, Ordering::Release);
        unknown
    }
}
