//! Finds what a killed tracer left in a process, at whatever moment it was killed, and tells it from the program's own.
//!
//! Every mapping is announced before it is made. The shared memory comes first: it has a name, its first words give its
//! size, and it also covers the place of the control data until that is mapped. Pieces of code are announced in the control
//! data. A mapping at an announced address is ours when its last word points to a table for unwinders, or when it is empty.
//!
//! What is where ours would be, and does not say that it is, is left alone: a child process may have other memory there.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::addr::TargetAddr;
use crate::maps::{self, Mapping};
use crate::memory::Memory;
use crate::plan::Goroutines;
use crate::proc::{self, Stat};
use crate::remote_call::RemoteCaller;
use crate::sys::{self, SharedWords};
use crate::threads::{self, SignalMasks};

use super::asm::Surroundings;
use super::installed::{Installed, MOST_BLOCKS, Room, control_bytes, rings_bytes};
use super::layout::{CODE, HEADER, MAGIC, MOST_CODE, header, ring};
use super::pages::TABLE_WORD;
use super::shared;

const PAGE: u64 = sys::PAGE as u64;

/// Mappings of an earlier tracer.
#[derive(Debug)]
pub struct Leftover {
    /// Where they are.
    pub installed: Installed,
    /// Whether control data says what was done. Else nothing was.
    pub is_complete: bool,
}

impl Leftover {
    /// Whether it is the same in the same places, so far as threads can come to it.
    #[must_use]
    pub fn has_same_code(&self, other: &Leftover) -> bool {
        let (one, other) = (&self.installed, &other.installed);
        (one.around.control, &one.code) == (other.around.control, &other.code)
    }
}

/// Writes to the first words of the rings how large they and the control data are.
pub fn announce(words: &SharedWords, blocks: u32, ring_bytes: u64) {
    words.store(ring::BLOCKS as usize, blocks.into());
    words.store(ring::BYTES as usize, ring_bytes);
    words.store(ring::MAGIC as usize, MAGIC);
}

/// Waits for a thread that a tracer was killed with in the middle of a system call: until that is made it is not known what
/// is left. It blocks all signals meanwhile and does not sleep. Other threads that look like it delay this by a tenth of a second.
pub fn await_last_call(pid: i32) {
    const ATTEMPTS: u32 = 100;
    const BETWEEN: Duration = Duration::from_millis(1);
    let is_in_call = |&tid: &i32| {
        SignalMasks::of(tid).is_some_and(|masks| masks.blocks_all())
            && matches!(threads::state(tid), Some('R' | 'D' | 't'))
    };
    let mut tids = threads::list(pid).unwrap_or_default();
    for _ in 0..ATTEMPTS {
        tids.retain(is_in_call);
        if tids.is_empty() {
            return;
        }
        std::thread::sleep(BETWEEN);
    }
}

/// Finds what earlier tracers left.
#[must_use]
pub fn find(pid: i32, memory: &Memory) -> Vec<Leftover> {
    let mappings = maps::read(pid).unwrap_or_default();
    if !mappings.iter().any(is_rings) {
        return Vec::new();
    }
    match RemoteCaller::find(pid, memory, &mappings) {
        Ok(caller) => among(caller, memory, &mappings),
        Err(_) => Vec::new(),
    }
}

/// The same among these mappings; `caller` is to remove it.
#[must_use]
pub fn among(caller: RemoteCaller, memory: &Memory, mappings: &[Mapping]) -> Vec<Leftover> {
    let rings = mappings.iter().filter(|it| is_rings(it)).take(MOST);
    rings
        .filter_map(|rings| leftover(caller, memory, rings, mappings))
        .collect()
}

/// So many killed tracers' leftovers are looked at; who makes more has another end in view.
const MOST: usize = 256;

fn leftover(
    caller: RemoteCaller,
    memory: &Memory,
    mapping: &Mapping,
    mappings: &[Mapping],
) -> Option<Leftover> {
    let first = |offset| memory.read_word(TargetAddr(mapping.start + offset)).ok();
    let blocks = u32::try_from(first(ring::BLOCKS)?).ok()?;
    let ring_bytes = first(ring::BYTES)?;
    if first(ring::MAGIC)? != MAGIC || blocks as usize > MOST_BLOCKS {
        return None;
    }
    let rings = rings_bytes(blocks, ring_bytes);
    let control = mapping.start.checked_add(rings)?;
    let whole = rings.checked_add(control_bytes(blocks))?;
    let is_complete = match mapping.end - mapping.start {
        mapped if mapped == whole => false,
        mapped if mapped == rings => {
            let place = control..control.checked_add(control_bytes(blocks))?;
            let head = (blocks, mapping.start, ring_bytes);
            is_control(memory, &place, head, mappings)?
        }
        _ => return None,
    };
    let (pieces, goroutines) = match is_complete {
        true => (announced(memory, control), goroutines(memory, control)),
        false => (Vec::new(), None),
    };
    let is_ours = |piece: &&Range<u64>| is_code(memory, piece, &pieces, mappings);
    let code = pieces.iter().filter(is_ours).cloned().collect();
    let around = Surroundings {
        pid: 0,
        control,
        rings: mapping.start,
        ring_bytes,
        inside: 0,
        outside: 0,
        inside_f0: 0,
        counted: (0, 0),
        delays: None,
        tid_offset: None,
        tells_pointer: false,
        goroutines,
        field: None,
    };
    let installed = Installed {
        code,
        ..Installed::new(around, blocks, Room::default(), caller)
    };
    Some(Leftover {
        installed,
        is_complete,
    })
}

/// Whether control data says what was done; `None` where something else is in its place. `head` is what it says of the
/// rings: how many, where, and how long each is.
fn is_control(
    memory: &Memory,
    place: &Range<u64>,
    head: (u32, u64, u64),
    mappings: &[Mapping],
) -> Option<bool> {
    // Where new memory is locked it can neither be read nor written at first.
    let ours = |m: &Mapping| {
        let is_data = m.writable || !m.readable;
        is_data && !m.executable && !m.shared && m.file.inode == 0
    };
    if !is_covered(place.clone(), mappings, ours) {
        return None;
    }
    let mut bytes = [0; header::FILTER as usize];
    let at = TargetAddr(place.start + HEADER);
    memory.read(at, &mut bytes).ok()?;
    let word = |offset: u64| {
        let bytes = &bytes[offset as usize..][..8];
        u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    };
    // Beside how many blocks there are is how many are used.
    let blocks = (word(header::NEXT_BLOCK) >> 32) as u32;
    let said = (blocks, word(header::RINGS), word(header::RING_BYTES));
    // Before all others the first word takes the answer whether the clock may be read.
    let is_new = word(0) <= libc::PR_TSC_SIGSEGV as u64 && bytes[8..].iter().all(|&b| b == 0);
    match word(header::MAGIC) {
        MAGIC if said == head => Some(true),
        _ if is_new => Some(false),
        _ => None,
    }
}

/// What control data says of goroutines.
fn goroutines(memory: &Memory, control: u64) -> Option<Goroutines> {
    let at = TargetAddr(control + HEADER + header::GOROUTINES);
    let number = memory.read_word(at).ok()? as u32;
    (number != 0).then_some(Goroutines {
        number,
        // Of nobody who is followed any more.
        current: 0,
        kept: 0,
        calls_c: true,
    })
}

/// The pieces of code that control data names.
fn announced(memory: &Memory, control: u64) -> Vec<Range<u64>> {
    let word = |at: u64| memory.read_word(TargetAddr(at)).ok();
    let count = word(control + HEADER + header::CODE).unwrap_or(0);
    let count = (count as u32 as usize).min(MOST_CODE) as u64;
    let piece = |index| {
        let at = control + CODE + 16 * index;
        let start = word(at)?;
        let end = start.checked_add(word(at + 8)?)?;
        (end - start >= PAGE).then_some(start..end)
    };
    (0..count).filter_map(piece).collect()
}

/// Whether an announced piece of code is there: it may not have been mapped yet, or not any more.
fn is_code(
    memory: &Memory,
    piece: &Range<u64>,
    pieces: &[Range<u64>],
    mappings: &[Mapping],
) -> bool {
    let ours = |m: &Mapping| m.executable && !m.writable && !m.shared && m.file.inode == 0;
    if !is_covered(piece.clone(), mappings, ours) {
        return false;
    }
    let mut page = [0; PAGE as usize];
    match memory.read_word(TargetAddr(piece.end - TABLE_WORD)) {
        Ok(0) => memory.read(TargetAddr(piece.start), &mut page).is_ok() && page == [0; _],
        Ok(table) => pieces.iter().any(|piece| piece.contains(&table)),
        Err(_) => false,
    }
}

/// Whether mappings of a kind have all of a range.
fn is_covered(range: Range<u64>, mappings: &[Mapping], kind: impl Fn(&Mapping) -> bool) -> bool {
    let mut at = range.start;
    for mapping in mappings.iter().filter(|mapping| kind(mapping)) {
        if mapping.contains(at) {
            at = mapping.end;
        }
    }
    at >= range.end
}

/// The processes beside the target that have a copy of memory which this tracer has made, and so of its probes: the target has made
/// them since, or others that it has made have. Whoever made them may have ended. `/proc` is passed through once, the
/// youngest processes first; those that are not come to in time are missing.
#[must_use]
pub fn heirs(target: i32) -> Vec<i32> {
    const TIME: Duration = Duration::from_secs(2);
    let own = std::process::id().cast_signed();
    let deadline = Instant::now() + TIME;
    let began = |pid| Stat::of(pid).ok().and_then(|stat| stat.began());
    let tracer_began = began(own);
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut pids: Vec<i32> = numbers.collect();
    pids.sort_unstable_by(|one, other| other.cmp(one));
    let mut heirs: Vec<i32> = pids
        .into_iter()
        .take_while(|_| Instant::now() < deadline)
        .filter(|&pid| pid != own && pid != target && began(pid) >= tracer_began)
        .filter(|&pid| has_copy(pid))
        .collect();
    heirs.reverse();
    heirs
}

/// Whether a process has what this tracer made for another one.
fn has_copy(pid: i32) -> bool {
    let mappings = maps::read(pid).unwrap_or_default();
    let rings: Vec<_> = mappings.iter().filter(|it| is_rings(it)).collect();
    let Some(memory) = (!rings.is_empty())
        .then(|| Memory::open(pid).ok())
        .flatten()
    else {
        return false;
    };
    let number = |rings: &Mapping| memory.read_word(TargetAddr(rings.start + ring::OWNER + 8));
    let own = sys::own_number();
    rings
        .into_iter()
        .any(|rings| number(rings).ok() == Some(own))
}

/// Whether a mapping has the name of memory that a tracer shares.
fn is_rings(mapping: &Mapping) -> bool {
    let name = mapping.name.as_os_str().as_encoded_bytes();
    mapping.shared && name.strip_suffix(b" (deleted)") == Some(shared::PATH.as_bytes())
}

/// Descriptors of shared memory, each with a thread that has it: threads may have tables of their own (`CLONE_FILES` in clone(2)).
/// There is one only between making the memory and mapping it.
#[must_use]
pub fn descriptors(pid: i32) -> Vec<(i32, u64)> {
    let mut tables: Vec<i32> = Vec::new();
    let alive = threads::list(pid).unwrap_or_default().into_iter();
    for tid in alive.filter(|&tid| proc::state_of_thread(pid, tid) != Some('Z')) {
        let is_other = |&table: &i32| sys::shares_descriptors(table, tid) == Some(false);
        if tables.iter().all(is_other) {
            tables.push(tid);
        }
    }
    let of_table = |&tid: &i32| {
        descriptors_of(pid, tid)
            .into_iter()
            .map(move |fd| (tid, fd))
    };
    tables.iter().flat_map(of_table).collect()
}

fn descriptors_of(pid: i32, tid: i32) -> Vec<u64> {
    let name = format!("{} (deleted)", shared::PATH);
    let folder = format!("/proc/{pid}/task/{tid}/fd");
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.filter(|entry| {
        std::fs::read_link(entry.path()).is_ok_and(|path| path.as_os_str() == name.as_str())
    });
    let numbers = named.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // The program may have memory of that name, too.
    numbers.filter(|&fd| shared::is_ours(tid, fd)).collect()
}

#[cfg(test)]
pub mod tests {
    use std::io::{Read as _, Write as _};
    use std::process::{Child, Command, Stdio};

    use crate::engine::Engine as _;
    use crate::engine::jump::{Cleared, Jump, clear_leftovers};

    use super::*;

    /// A program that waits for the end of its input.
    pub fn start() -> Child {
        let mut command = Command::new("cat");
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        let stdout = child.stdout.as_mut().unwrap();
        assert_eq!(stdout.read(&mut [0]).unwrap(), 1);
        child
    }

    /// A process has rings, and behind them memory of its own where control data would be.
    #[test]
    fn memory_behind_rings_that_is_not_ours_stays() {
        let mut target = start();
        let pid = target.id() as i32;
        let mut engine = Jump::attach(pid).unwrap();
        let code = maps::read(pid).unwrap().into_iter().find(|m| m.executable);
        engine.install(&[code.unwrap().start]).unwrap();
        let memory = Memory::open(pid).unwrap();
        let head = TargetAddr(engine.space.as_ref().unwrap().installed.around.control + HEADER);
        let own = b"The program has this here, and darc nothing.";
        let mut before = vec![0; own.len()];
        memory.read(head, &mut before).unwrap();
        memory.write(head, own).unwrap();
        let mappings = maps::read(pid).unwrap();
        assert_eq!(clear_leftovers(pid).unwrap(), Cleared::Nothing);
        assert_eq!(maps::read(pid).unwrap(), mappings);
        memory.write(head, &before).unwrap();
        engine.finish().unwrap();
        drop(target.stdin.take());
        assert!(target.wait().unwrap().success());
    }

    /// Also where whoever made it has ended.
    #[test]
    fn a_child_that_was_made_meanwhile_is_found_and_cleaned() {
        let (told, tell) = nix::unistd::pipe().unwrap();
        let (ready, made) = nix::unistd::pipe().unwrap();
        let target = sys::fork_into(|| {
            let _ = nix::unistd::read(&told, &mut [0]);
            let child = sys::fork_into(|| {
                let grandchild = sys::fork_into(|| {
                    let _ = nix::unistd::read(&told, &mut [0]);
                    sys::exit_now(0);
                });
                let _ = nix::unistd::write(&made, &grandchild.unwrap().to_le_bytes());
                sys::exit_now(7);
            });
            let status = sys::wait_for(child.unwrap()).unwrap().1;
            let _ = nix::unistd::write(&made, &[0; 4]);
            let _ = nix::unistd::read(&told, &mut [0]);
            sys::exit_now((status >> 8) & 0xff);
        });
        let pid = target.unwrap();
        let code = maps::read(pid).unwrap().into_iter().find(|m| m.executable);
        let mut engine = Jump::attach(pid).unwrap();
        engine.install(&[code.unwrap().start]).unwrap();
        nix::unistd::write(&tell, &[1]).unwrap();
        let mut grandchild = [0; 4];
        nix::unistd::read(&ready, &mut grandchild).unwrap();
        nix::unistd::read(&ready, &mut [0; 4]).unwrap();
        let grandchild = i32::from_le_bytes(grandchild);
        engine.finish().unwrap();
        assert_eq!(threads::children(pid), Some(vec![]));
        // Other tests of this process have theirs.
        assert!(heirs(pid).contains(&grandchild));
        assert_eq!(clear_leftovers(grandchild).unwrap(), Cleared::Everything);
        assert!(!heirs(pid).contains(&grandchild));
        nix::unistd::write(&tell, &[1, 1]).unwrap();
        assert_eq!(sys::wait_for(pid).unwrap().1, 7 << 8);
    }

    /// What could not be mapped is not named as ours: something else is there.
    #[test]
    fn a_place_that_was_taken_is_not_listed() {
        let mut target = start();
        let pid = target.id() as i32;
        let mut engine = Jump::attach(pid).unwrap();
        let mappings = maps::read(pid).unwrap();
        let code = mappings.iter().find(|m| m.executable).unwrap();
        engine.install(&[code.start]).unwrap();
        let memory = Memory::open(pid).unwrap();
        let mut space = engine.space.take().unwrap();
        let taken = code.start..code.start + PAGE;
        // It may run still: the first stop interrupted its wait.
        let mapped = engine.with_worker(space.installed.caller, &mappings, |world| {
            space.map_pages(&memory, world, &mappings, std::slice::from_ref(&taken))
        });
        mapped.unwrap();
        let listed = announced(&memory, space.installed.around.control);
        assert_eq!(listed, space.installed.code);
        engine.space = Some(space);
        engine.finish().unwrap();
        drop(target.stdin.take());
        assert!(target.wait().unwrap().success());
    }
}
