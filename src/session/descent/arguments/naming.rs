//! The files, locks, paths and memory behind numbers that a program works with, in words.

use std::os::unix::fs::FileExt as _;
use std::path::Path;

use darc_process::modules::{CodeRef, Modules};
use darc_symbols::{FileAddr, Image, demangle};
use darc_tracer::maps::{self, Mapping};
use darc_tracer::threads;

use super::sockets::Sockets;

/// Of a longer path the beginning is told, in bytes.
const LONGEST_PATH: u64 = 256;

/// The path at an address. It is read some milliseconds after the call, and what the program may have written since is no
/// longer what the call was called with: so only constants are told.
pub fn path(pid: i32, address: u64) -> String {
    let mappings = maps::read(pid).unwrap_or_default();
    let holder = mappings.iter().find(|mapping| mapping.contains(address));
    let Some(holder) = holder.filter(|mapping| mapping.readable) else {
        return "a path that could not be read".to_owned();
    };
    if holder.writable || (holder.shared && !holder.is_file()) {
        return "a path that was made while it ran (not read)".to_owned();
    }
    let room = LONGEST_PATH.min(holder.end - address);
    let mut bytes = vec![0; room as usize];
    let read = std::fs::File::open(threads::proc_folder(pid).join("mem"))
        .and_then(|memory| memory.read_exact_at(&mut bytes, address));
    match read {
        Ok(()) => {
            let end = bytes.iter().position(|&byte| byte == 0);
            let shown = String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]);
            match end {
                Some(_) => format!("\"{shown}\""),
                None => format!("\"{shown}…\""),
            }
        }
        Err(_) => "a path that could not be read".to_owned(),
    }
}

/// The file behind a descriptor, as it is now.
pub fn descriptor(pid: i32, value: u64, sockets: &mut Sockets) -> String {
    let number = value as u32 as i32;
    let link = threads::proc_folder(pid).join(format!("fd/{number}"));
    match std::fs::read_link(link) {
        Ok(file) => match socket_inode(&file) {
            Some(inode) => format!("fd {number}, {}", sockets.name(pid, inode)),
            None => format!("fd {number}, {}", file.display()),
        },
        Err(_) => format!("fd {number}"),
    }
}

pub(super) fn socket_inode(link: &Path) -> Option<u64> {
    let number = link.to_str()?.strip_prefix("socket:[")?;
    number.strip_suffix(']')?.parse().ok()
}

/// The lock at an address: the variable, or what memory it is in.
pub fn lock(pid: i32, address: u64, modules: &Modules) -> String {
    variable(address, modules).unwrap_or_else(|| {
        let mappings = maps::read(pid).unwrap_or_default();
        format!("{address:#x} in {}", mapped(&mappings, address))
    })
}

/// What memory an address is in: which variable, or whose.
pub fn memory(mappings: &[Mapping], address: u64, modules: &Modules) -> String {
    variable(address, modules).unwrap_or_else(|| mapped(mappings, address))
}

fn variable(address: u64, modules: &Modules) -> Option<String> {
    for id in modules.loaded() {
        let start = CodeRef {
            module: id,
            addr: FileAddr(0),
        };
        let (Some(image), Some(bias)) = (modules.get(id).image.as_ref(), modules.locate(start))
        else {
            continue;
        };
        let at = FileAddr(address.wrapping_sub(bias.0));
        if !is_within(image, at) {
            continue;
        }
        let path = &modules.get(id).path;
        let file = path.rsplit('/').next().unwrap_or(path);
        return Some(match image.data_at(at) {
            Some((name, 0)) => format!("{} in {file}", demangle(&name)),
            Some((name, inside)) => format!("{}+{inside:#x} in {file}", demangle(&name)),
            None => format!("{file}+{:#x}", at.0),
        });
    }
    None
}

fn mapped(mappings: &[Mapping], address: u64) -> String {
    let holder = mappings.iter().find(|mapping| mapping.contains(address));
    let Some(holder) = holder else {
        return "memory that was unmapped since".to_owned();
    };
    match holder.name.to_string_lossy() {
        name if name == "[heap]" => "the heap".to_owned(),
        name if name == "[stack]" => "the main thread's stack".to_owned(),
        // What the kernel calls memory of no file that is shared (mm/shmem.c, shmem_zero_setup).
        name if name == "/dev/zero (deleted)" => "memory shared with other processes".to_owned(),
        name if name.is_empty() => "anonymous memory".to_owned(),
        name => name.into_owned(),
    }
}

fn is_within(image: &Image, at: FileAddr) -> bool {
    image.segments().iter().any(|segment| {
        let inside = at.0.checked_sub(segment.addr.0);
        inside.is_some_and(|inside| inside < segment.mem_size)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_sockets_are_told_from_others() {
        assert_eq!(socket_inode(Path::new("socket:[12]")), Some(12));
        assert_eq!(socket_inode(Path::new("/dev/null")), None);
    }

    #[test]
    fn descriptors_and_locks_are_named() {
        use std::os::fd::AsRawFd;
        let own = std::process::id() as i32;
        let file = std::fs::File::open("/dev/zero").unwrap();
        let number = file.as_raw_fd();
        let mut sockets = Sockets::default();
        sockets.longest = std::time::Duration::from_secs(60);
        let named = descriptor(own, number as u64, &mut sockets);
        assert_eq!(named, format!("fd {number}, /dev/zero"));
        assert_eq!(descriptor(own, u64::from(u32::MAX), &mut sockets), "fd -1");
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let named = descriptor(own, one.as_raw_fd() as u64, &mut sockets);
        assert!(named.ends_with("Unix socket"), "{named}");
        static LOCK: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let mut modules = Modules::default();
        modules.refresh(own).unwrap();
        let named = lock(own, std::ptr::from_ref(&LOCK).addr() as u64, &modules);
        assert!(named.contains("LOCK"), "{named}");
        let here = 0_u32;
        let named = lock(own, std::ptr::from_ref(&here).addr() as u64, &modules);
        assert!(named.starts_with("0x"), "{named}");
    }

    #[test]
    fn memory_is_named_by_what_is_mapped_there() {
        static WORD: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let own = std::process::id() as i32;
        let mut modules = Modules::default();
        modules.refresh(own).unwrap();
        let named = |address: usize| {
            let mappings = maps::read(own).unwrap();
            memory(&mappings, address as u64, &modules)
        };
        assert!(named(std::ptr::from_ref(&WORD).addr()).contains("WORD"));
        // Too much for the heap: it is mapped by itself.
        let alone = vec![1_u8; 1 << 26];
        assert_eq!(named(alone.as_ptr().addr()), "anonymous memory");
        assert_eq!(named(16), "memory that was unmapped since");
    }

    #[test]
    fn paths_are_told_that_cannot_have_changed() {
        let own = std::process::id() as i32;
        let at = |text: &std::ffi::CStr| text.as_ptr().addr() as u64;
        assert_eq!(path(own, at(c"/etc/host name")), "\"/etc/host name\"");
        static LONG: [u8; 2 * LONGEST_PATH as usize] = [b'a'; 2 * LONGEST_PATH as usize];
        let named = path(own, LONG.as_ptr().addr() as u64);
        assert_eq!(named, format!("\"{}…\"", "a".repeat(LONGEST_PATH as usize)));
        let made = std::ffi::CString::new("/etc/hosts").unwrap();
        assert!(path(own, at(&made)).contains("not read"));
        assert!(path(own, 16).contains("could not be read"));
    }
}
