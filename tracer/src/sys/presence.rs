//! Telling others by a word of shared memory whether this process lives, however it ends.
//!
//! The kernel itself marks the word when the thread ends whose robust list it is on. So the answer depends on no
//! process number, and holds for whoever can read the memory, in whatever namespace.
//! Source: set_robust_list(2), get_robust_list(2), Documentation/locking/robust-futex-ABI.rst of Linux.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicIsize, AtomicPtr, AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use nix::errno::Errno;

/// An entry of the list. The word is not beside it, so that nobody else can write to the list.
#[repr(C)]
struct Entry {
    next: AtomicPtr<Entry>,
}

/// `struct robust_list_head`.
#[repr(C)]
struct Head {
    /// The first entry; the head itself, taken for an entry, ends the list.
    first: Entry,
    /// From an entry to its word, bytes.
    offset: AtomicIsize,
    pending: AtomicPtr<Entry>,
}

/// A list with room for one word.
struct List {
    head: Head,
    entry: Entry,
}

impl List {
    fn end(&self) -> *mut Entry {
        ptr::from_ref(&self.head.first).cast_mut()
    }
}

/// A thread that does nothing but live as long as this process does.
pub struct Presence {
    list: Arc<List>,
    tid: i32,
    /// Ends the thread when it is dropped.
    wake: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Presence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Presence({})", self.tid)
    }
}

impl Presence {
    /// Starts the thread, of which no word tells yet.
    ///
    /// # Errors
    /// When there can be no further thread.
    pub fn new() -> io::Result<Presence> {
        let list = Arc::new(List {
            head: Head {
                first: Entry {
                    next: AtomicPtr::default(),
                },
                offset: AtomicIsize::new(0),
                pending: AtomicPtr::default(),
            },
            entry: Entry {
                next: AtomicPtr::default(),
            },
        });
        list.head.first.next.store(list.end(), Ordering::Release);
        list.entry.next.store(list.end(), Ordering::Release);
        let (wake, ended) = mpsc::channel();
        let (ready, begun) = mpsc::channel();
        let own = Arc::clone(&list);
        let thread = std::thread::Builder::new()
            .name("presence".to_owned())
            .spawn(move || {
                let _ = ready.send(enlist(&own.head));
                // Until the other end is dropped.
                let _ = ended.recv();
            })?;
        let tid = begun.recv().map_err(io::Error::other)??;
        Ok(Presence {
            list,
            tid,
            wake: Some(wake),
            thread: Some(thread),
        })
    }

    /// Has the word tell of this process from now on: until it ends, or takes that back.
    pub(super) fn tell(&self, word: &AtomicU64) {
        let entry = ptr::from_ref(&self.list.entry);
        let offset = word.as_ptr().addr().wrapping_sub(entry.addr());
        let head = &self.list.head;
        head.offset.store(offset.cast_signed(), Ordering::Release);
        // The list first: the kernel leaves a word alone that does not name the thread.
        head.first.next.store(entry.cast_mut(), Ordering::Release);
        word.store(self.tid.cast_unsigned().into(), Ordering::Release);
    }

    /// Has the word tell of nobody.
    pub(super) fn take_back(&self, word: &AtomicU64) {
        word.store(0, Ordering::Release);
        let end = self.list.end();
        self.list.head.first.next.store(end, Ordering::Release);
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Has the kernel look at the list when this thread ends; the thread's id.
fn enlist(head: &Head) -> Result<i32, Errno> {
    // SAFETY: the list outlives the thread: whoever started it drops its share only after joining. What the list
    // refers to is memory of this process, which the kernel accesses as that thread would.
    let set = unsafe { libc::syscall(libc::SYS_set_robust_list, head, size_of::<Head>()) };
    match set {
        0 => Ok(nix::unistd::gettid().as_raw()),
        _ => Err(Errno::last()),
    }
}

/// Whether a word says that the process lives that it tells of.
#[must_use]
pub fn is_present(word: u64) -> bool {
    word as u32 & libc::FUTEX_TID_MASK != 0
}

/// A number by which this process knows what is its own. No other process has it, a child neither.
#[must_use]
pub fn own_number() -> u64 {
    use std::hash::BuildHasher as _;
    static KEYS: OnceLock<std::hash::RandomState> = OnceLock::new();
    // The keys are random; a child has the same ones.
    let keys = KEYS.get_or_init(std::hash::RandomState::new);
    keys.hash_one(std::process::id())
}

#[cfg(test)]
mod tests {

    use nix::sys::memfd::{MFdFlags, memfd_create};

    use crate::sys::{self, SharedWords};

    use super::*;

    fn memory() -> std::fs::File {
        let file = std::fs::File::from(memfd_create(c"words", MFdFlags::empty()).unwrap());
        file.set_len(4096).unwrap();
        file
    }

    #[test]
    fn a_word_tells_of_this_process_until_that_is_taken_back() {
        let file = memory();
        let other = SharedWords::map(&file, 4096).unwrap();
        let mut words = SharedWords::map(&file, 4096).unwrap();
        assert!(!is_present(other.load(16)));
        words.tell_presence(16, Presence::new().unwrap());
        assert!(is_present(other.load(16)));
        words.end_presence();
        assert!(!is_present(other.load(16)));
        words.tell_presence(24, Presence::new().unwrap());
        assert!(is_present(other.load(24)));
        drop(words);
        assert!(!is_present(other.load(24)));
    }

    #[test]
    fn a_word_tells_when_the_process_was_killed() {
        let file = memory();
        let words = SharedWords::map(&file, 4096).unwrap();
        let (told, tell) = nix::unistd::pipe().unwrap();
        let child = sys::fork_into(|| {
            let mut own = SharedWords::map(&file, 4096).unwrap();
            own.tell_presence(0, Presence::new().unwrap());
            let _ = nix::unistd::write(&tell, &[1]);
            std::thread::park();
        })
        .unwrap();
        nix::unistd::read(&told, &mut [0]).unwrap();
        assert!(is_present(words.load(0)));
        sys::kill_and_reap(child);
        assert!(!is_present(words.load(0)));
    }

    #[test]
    fn a_word_that_others_write_to_is_no_danger() {
        let file = memory();
        let words = SharedWords::map(&file, 4096).unwrap();
        let mut own = SharedWords::map(&file, 4096).unwrap();
        own.tell_presence(0, Presence::new().unwrap());
        words.store(0, u64::MAX);
        drop(own);
        assert_eq!(words.load(0), 0);
    }
}
