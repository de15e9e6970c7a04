//! Guests: other processes that run in the target's memory, as a child of vfork(2) does until it executes its program.
//!
//! The kernel tells who shares memory (kcmp(2)), unless it was built without that or a filter of system calls forbids it. Then it
//! shows in the call by which a process is made.

use std::cell::OnceCell;
use std::collections::BTreeSet;

use crate::addr::TargetAddr;
use crate::maps;
use crate::memory::Memory;
use crate::proc::Stat;
use crate::sys;
use crate::threads;

/// Those that these threads of a process, or of its guests, have made.
pub fn of(pid: i32, makers: impl IntoIterator<Item = i32>) -> Vec<i32> {
    of_listed(pid, makers, threads::children)
}

/// The same. Where the kernel does not list what a thread has made, all children of its process may be its own.
fn of_listed(
    pid: i32,
    makers: impl IntoIterator<Item = i32>,
    listed: impl Fn(i32) -> Option<Vec<i32>>,
) -> Vec<i32> {
    let descents = OnceCell::new();
    let of_process = |maker| {
        let process = threads::process_of(maker);
        let descents: &Vec<(i32, i32)> = descents.get_or_init(threads::descents);
        let children = descents
            .iter()
            .filter(|&&(_, parent)| Some(parent) == process);
        children.map(|&(child, _)| child).collect()
    };
    let of_maker = |maker| {
        let mut children: Vec<i32> = listed(maker).unwrap_or_else(|| of_process(maker));
        let newest = newest(&children, |child| Stat::of(child).ok()?.began());
        children.retain(|&child| match sys::shares_memory(maker, child) {
            Some(shares) => shares,
            // The others were made by calls that have ended.
            None => Some(child) == newest && are_awaited(pid, maker),
        });
        children
    };
    let found: BTreeSet<i32> = makers.into_iter().flat_map(of_maker).collect();
    found.into_iter().collect()
}

/// Which of these processes was made last. Those of a thread that has ended are listed behind those of the thread that
/// takes them over (`forget_original_parent` in the kernel's kernel/exit.c).
fn newest(children: &[i32], began: impl Fn(i32) -> Option<u64>) -> Option<i32> {
    children.iter().copied().max_by_key(|&child| began(child))
}

/// Whether a guest still is one: it has not executed a program.
pub fn is_still(pid: i32, guest: i32) -> bool {
    let shows_same = || match (maps::read(pid), maps::read(guest)) {
        (Ok(own), Ok(its)) => own == its,
        _ => false,
    };
    share_memory(pid, guest).unwrap_or_else(shows_same)
}

/// Whether two processes share their memory; `None` where the kernel does not tell. A thread that has ended shares none any more,
/// and the first one may end before the others.
pub fn share_memory(pid: i32, other: i32) -> Option<bool> {
    sys::shares_memory(threads::living(pid)?, other)
}

/// Whether a system call makes a process that shares its maker's memory. `argument` is the call's first, `memory` the maker's.
pub fn are_made_by(memory: &Memory, number: i64, argument: u64) -> bool {
    let shares = |flags: u64| flags & libc::CLONE_VM as u64 != 0;
    match number {
        libc::SYS_vfork => true,
        libc::SYS_clone => shares(argument),
        // The first field of its structure (clone3(2)).
        libc::SYS_clone3 => memory.read_word(TargetAddr(argument)).is_ok_and(shares),
        _ => false,
    }
}

/// Whether a thread waits in such a call, which takes as long as the process that it makes is a guest. One that was stopped on
/// its way out of it shows the same call, and waits no more. Takes a few reads, where [`of`] may read about all processes.
///
/// Who has made nobody is asked nothing else: older kernels hold back the answer while a thread replaces the program, which may itself
/// wait for threads that we hold.
pub fn are_awaited(pid: i32, maker: i32) -> bool {
    if threads::children(maker).is_some_and(|children| children.is_empty()) {
        return false;
    }
    let text = std::fs::read_to_string(format!("/proc/{maker}/syscall")).unwrap_or_default();
    let mut fields = text.split_ascii_whitespace();
    let number = fields.next().and_then(|number| number.parse().ok());
    let argument = fields
        .next()
        .and_then(|argument| u64::from_str_radix(argument.strip_prefix("0x")?, 16).ok());
    let (Some(number), Some(argument), Ok(memory)) = (number, argument, Memory::open(pid)) else {
        return false;
    };
    are_made_by(&memory, number, argument) && threads::state(maker) == Some('D')
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use darc_testprogs::{Opt, program};

    use crate::event::{Event, decode};
    use crate::proc;

    use crate::patience::{wait_for, wait_until};

    use super::*;

    #[test]
    fn the_newest_child_is_the_one_that_began_last() {
        let began = |child| Some(if child == 7 { 20 } else { 10 });
        assert_eq!(newest(&[5, 7, 6], began), Some(7));
        // In the same tick the order is all that tells.
        assert_eq!(newest(&[5, 6], began), Some(6));
        assert_eq!(newest(&[], began), None);
    }

    #[test]
    fn guests_are_known_when_the_first_thread_has_ended() {
        let mut target = Command::new(program("vfork_without_leader", Opt::O2));
        let piped = target.arg("1000000").stdout(Stdio::null());
        let mut target = piped.spawn().unwrap();
        let pid = target.id() as i32;
        let children = || {
            let listed = threads::list(pid).unwrap().into_iter();
            let mut children: Vec<i32> = listed.filter_map(threads::children).flatten().collect();
            children.retain(|&child| !proc::is_ending(child));
            children
        };
        let (made, found, still) = wait_for(|| {
            let made = children();
            let found = of(pid, threads::list(pid).unwrap());
            let still = made.iter().all(|&guest| is_still(pid, guest));
            // The same ones lived all the time, with the memory, and who made them waited already: a child runs before its maker
            // waits, and gives the memory up before it is dead.
            let lived = || children() == made && of(pid, threads::list(pid).unwrap()) == found;
            let is_settled = threads::is_dead(pid) && !found.is_empty() && lived();
            is_settled.then_some((made, found, still))
        });
        target.kill().unwrap();
        target.wait().unwrap();
        assert_eq!(found, made);
        assert!(still);
    }

    #[test]
    fn guests_are_known_where_the_kernel_lists_no_children() {
        let mut target = Command::new(program("vfork_waits", Opt::O2));
        let piped = target.arg("1000000").stdout(Stdio::null());
        let mut target = piped.spawn().unwrap();
        let pid = target.id() as i32;
        let makers = || threads::list(pid).unwrap();
        let awaited = || makers().into_iter().filter(|&tid| are_awaited(pid, tid));
        wait_until(|| !of_listed(pid, awaited(), |_| None).is_empty());
        let (known, found) = wait_for(|| {
            let known = of(pid, makers());
            let found = of_listed(pid, makers(), |_| None);
            // The same ones lived all the time.
            let lived = !known.is_empty() && of(pid, makers()) == known;
            lived.then_some((known, found))
        });
        target.kill().unwrap();
        target.wait().unwrap();
        assert_eq!(found, known);
    }

    #[test]
    fn a_maker_that_waits_no_more_has_no_guest() {
        let mut target = Command::new(program("vfork_waits", Opt::O2));
        let piped = target.arg("1000000").stdout(Stdio::null());
        let mut target = piped.spawn().unwrap();
        let pid = target.id() as i32;
        let refused = std::thread::spawn(move || {
            sys::refuse_kcmp();
            let maker = wait_for(|| {
                let mut listed = threads::list(pid).unwrap().into_iter();
                listed.find(|&tid| tid != pid)
            });
            sys::seize(maker, libc::PTRACE_O_TRACEVFORKDONE).unwrap();
            let done = Event::Other(libc::PTRACE_EVENT_VFORK_DONE);
            // Its child has ended, and is still listed.
            assert_eq!(decode(sys::wait_for(maker).unwrap().1), done);
            let listed = threads::children(maker).unwrap();
            (listed.len(), of(pid, [maker]))
        });
        let found = refused.join().unwrap();
        target.kill().unwrap();
        target.wait().unwrap();
        assert_eq!(found, (1, vec![]));
    }
}
