//! The mappings that every stub needs, made in the target: control data and rings.

use std::fs::File;
use std::sync::Arc;

use darc_disasm::Registers as _;

use crate::addr::TargetAddr;
use crate::cgroup;
use crate::error::{Error, Result, unless_gone};
use crate::identity;
use crate::limits::{self, Amount};
use crate::maps::Mapping;
use crate::memory::Memory;
use crate::preflight;
use crate::remote_call::{RemoteCaller, Worker};
use crate::stopped::Stopped;
use crate::sys::{self, Presence, SharedWords};

use super::Jump;
use super::asm::Surroundings;
use super::installed::{
    ARENA_BYTES, Costs, Installed, MOST_BLOCKS, Room, control_bytes, data_amount, rings_bytes,
};
use super::layout::{self, HEADER, LIVE, MAGIC, block, header, ring};
use super::leftovers;
use super::ring::Rings;
use super::shared;
use super::space::Space;
use super::world::World;

/// Threads that a process without many may still make until those that ended give their blocks back.
const SPARE_BLOCKS: usize = 512;

/// The same, for a process that locks its memory (mlockall(2)), where all that is mapped is in use at once, and for one that may
/// map little more.
const SPARE_FEW: usize = 16;

/// Fewer goroutines at a time are not worth following.
const FEWEST_GOROUTINES: u32 = 64;

/// Memory of the target that is data: readable and writable.
const DATA: u64 = (libc::PROT_READ | libc::PROT_WRITE) as u64;

impl Jump {
    /// Maps what the stubs work with.
    pub(super) fn map_space(&mut self, memory: &Memory, mappings: &[Mapping]) -> Result<Space> {
        let (pid, costs) = (self.pid, (self.costs, self.room));
        let caller = RemoteCaller::find(pid, memory, mappings)?;
        let presence = Presence::new().map_err(|source| Error::Os {
            operation: "start a thread",
            source,
        })?;
        let caller = (caller, mappings);
        let (installed, rings, file) =
            self.while_stopped(|world| map(pid, memory, world, caller, presence, costs))?;
        let mut space = Space::new(installed, rings, Arc::clone(&self.callees));
        if limits::promises_no_more_than_there_is() {
            self.bring_in(&mut space, &file)?;
        }
        Ok(space)
    }

    /// Brings in the pages of new rings, to which nothing leads yet, while the target runs. Rings of which some cannot be had are
    /// given back, and nobody reads them.
    fn bring_in(&mut self, space: &mut Space, file: &File) -> Result<()> {
        let outcome = shared::bring_in(file);
        if outcome.is_err() {
            if let Err(error) = self.remove(space) {
                if error.is_gone() {
                    return Err(error);
                }
                tracing::warn!(target: "tracer", %error, "the memory that was to be shared stays mapped");
            }
            space.rings.end_presence();
        }
        outcome
    }
}

/// Refuses a target that the processor faults for reading the time stamp counter, which every stub does.
/// `room` is memory of the target for the answer.
///
/// Source: PR_GET_TSC in prctl(2). The kernel keeps it for each thread; new ones inherit it.
fn may_read_clock(worker: &mut Worker<'_>, memory: &Memory, room: u64) -> Result<()> {
    let ask = [libc::PR_GET_TSC as u64, room, 0, 0, 0, 0];
    worker.call("prctl", libc::SYS_prctl, ask)?;
    match memory.read_word(TargetAddr(room))? as i32 {
        libc::PR_TSC_SIGSEGV => Err(Error::Unsuitable(format!(
            "thread {} has forbidden itself to read the time stamp counter (PR_SET_TSC), which the jump engine's probes do; use --engine int3",
            worker.tid()
        ))),
        _ => Ok(()),
    }
}

/// Maps control data in a place that is kept for it. A page of it is empty in children made by fork. Where new memory is
/// locked (`is_locked`), this is not: else the kernel would bring all of it in at once.
fn map_control(
    worker: &mut Worker<'_>,
    memory: &Memory,
    (control, len): (u64, u64),
    is_locked: bool,
) -> Result<()> {
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let mut map = |protection: u64| {
        let arguments = [control, len, protection, private as u64, u64::MAX, 0];
        worker.call("mmap", libc::SYS_mmap, arguments)
    };
    if is_locked {
        map(libc::PROT_NONE as u64)?;
        worker.call("munlock", libc::SYS_munlock, [control, len, 0, 0, 0, 0])?;
        worker.call(
            "mprotect",
            libc::SYS_mprotect,
            [control, len, DATA, 0, 0, 0],
        )?;
    } else {
        map(DATA)?;
    }
    may_read_clock(worker, memory, control + HEADER)?;
    let wipe = [control + LIVE, 4096, libc::MADV_WIPEONFORK as u64, 0, 0, 0];
    worker.call("madvise", libc::SYS_madvise, wipe).map(drop)
}

/// Maps control data and rings, which [`Installed::fill`] has to fill, and tells the rings' file, whose pages may still be to be
/// brought in. The target's own list of descriptors is as before afterwards, and so are its mappings where this fails. `presence`
/// tells from the first moment on that a tracer lives which they belong to.
///
/// # Errors
/// When the target has no thread pointers, or may not map memory.
fn map(
    pid: i32,
    memory: &Memory,
    world: &mut World,
    (caller, mappings): (RemoteCaller, &[Mapping]),
    presence: Presence,
    (costs, room): (Costs, Room),
) -> Result<(Installed, Rings, File)> {
    preflight::check_shadow_stack(pid)?;
    let mut pointers = ThreadPointers::new(pid);
    let by_pointer = room.goroutines.is_none();
    let is_locked = limits::locks_memory(pid);
    let is_scarce = is_locked || limits::promises_no_more_than_there_is();
    if !by_pointer && is_locked {
        return Err(Error::Unsuitable(format!(
            "process {pid} locks its memory; goroutines need more of it than should be locked"
        )));
    }
    if by_pointer {
        pointers.look_at(memory, world.own_threads())?;
    }
    let ring_bytes = room.ring_bytes();
    let blocks_for = |threads: usize| -> Result<u32> {
        let left = cgroup::memory_left(pid);
        let (blocks, most, what) = match by_pointer {
            true => {
                let blocks = blocks_for(pid, threads, is_scarce, room);
                (blocks, threads.min(MOST_BLOCKS), "threads")
            }
            false => {
                let blocks = match is_scarce {
                    true => FEWEST_GOROUTINES,
                    false => goroutines_for(left, ring_bytes),
                };
                (blocks, blocks as usize, "goroutines")
            }
        };
        limits::check(pid, Amount::default(), amount_for(blocks, room))?;
        leaves_memory(pid, left, (most, what), ring_bytes)?;
        Ok(blocks)
    };
    let known = world.count();
    let mut blocks = blocks_for(known)?;
    let locked = limits::locked(pid);
    world.hold()?;
    if world.count() > known {
        // Others have been made meanwhile.
        blocks = blocks_for(world.count())?;
    }
    if by_pointer {
        pointers.look_at(memory, world.late_own_threads())?;
    }
    let tid_offset = pointers.fits.first().copied().filter(|_| by_pointer);
    let len = rings_bytes(blocks, ring_bytes);
    let behind = control_bytes(blocks);
    let (words, file, rings) = caller.borrow(world.workers()?, mappings, |worker| {
        let announced = |words: &mut SharedWords| {
            words.store(ring::OWNER as usize + 8, sys::own_number());
            words.tell_presence(ring::OWNER as usize, presence);
            leftovers::announce(words, blocks, ring_bytes);
        };
        let (words, file, rings) = shared::make(worker, memory, (len, behind), announced)?;
        // Should the program have locked something meanwhile, nothing is lost.
        let is_locked = limits::locked(pid) > locked;
        match map_control(worker, memory, (rings + len, behind), is_locked) {
            Ok(()) => Ok((words, file, rings)),
            Err(error) => {
                let all = [rings, len + behind, 0, 0, 0, 0];
                unless_gone(worker.call("munmap", libc::SYS_munmap, all))?;
                Err(error)
            }
        }
    })?;
    let control = rings + len;
    let around = Surroundings {
        pid: identity::number_inside(pid).unwrap_or(pid),
        control,
        rings,
        ring_bytes,
        inside: costs.inside,
        outside: costs.outside,
        inside_f0: costs.inside_f0,
        counted: costs.counted,
        delays: room.delays,
        tid_offset,
        tells_pointer: sys::tells_thread_pointer(),
        goroutines: room.goroutines,
        field: room.field,
    };
    announce(memory, &around, blocks)?;
    let installed = Installed::new(around, blocks, room, caller);
    let rings = Rings::new(words, blocks as usize, ring_bytes);
    Ok((installed, rings, file))
}

/// For how many threads there is to be room.
fn blocks_for(pid: i32, threads: usize, is_scarce: bool, room: Room) -> u32 {
    let with = |spare: usize| (2 * threads + spare).min(MOST_BLOCKS) as u32;
    let many = with(SPARE_BLOCKS);
    match !is_scarce && limits::allow(pid, amount_for(many, room)) {
        true => many,
        false => with(SPARE_FEW),
    }
}

/// What measuring begins with.
fn amount_for(blocks: u32, room: Room) -> Amount {
    data_amount(blocks, room.ring_bytes()) + Amount::of_code(room.arena)
}

/// For how many goroutines there is to be room where a control group may use so much more memory, if it has a limit: as many as
/// can be followed, or a part of them.
fn goroutines_for(left: Option<u64>, ring_bytes: u64) -> u32 {
    let mut blocks = layout::GOROUTINES;
    while blocks > FEWEST_GOROUTINES && left.is_some_and(|left| left / 2 < most(blocks, ring_bytes))
    {
        blocks /= 2;
    }
    blocks
}

/// How much memory so many threads or goroutines come to use.
fn most(blocks: u32, ring_bytes: u64) -> u64 {
    let each = ring_bytes.saturating_add(block::SIZE);
    u64::from(blocks)
        .saturating_mul(each)
        .saturating_add(ARENA_BYTES)
}

/// Refuses a process whose control group would be nearly full of what its threads or goroutines come to use: the kernel kills one of
/// the group then.
fn leaves_memory(
    pid: i32,
    left: Option<u64>,
    (count, what): (usize, &str),
    ring_bytes: u64,
) -> Result<()> {
    let most = most(count as u32, ring_bytes);
    let way_out = match what {
        "threads" => ", or use --engine int3",
        _ => "",
    };
    match left {
        Some(left) if left / 2 < most => Err(Error::Unsuitable(format!(
            "process {pid}: its control group may use {} KiB more memory, and measuring {count} {what} takes up to {} KiB; raise the group's limit{way_out}",
            left >> 10,
            most >> 10
        ))),
        _ => Ok(()),
    }
}

/// Writes by what a later tracer knows the mappings.
fn announce(memory: &Memory, around: &Surroundings, blocks: u32) -> Result<()> {
    let mut head = [0; header::FILTER as usize];
    head[header::MAGIC as usize..][..8].copy_from_slice(&MAGIC.to_le_bytes());
    head[header::BLOCKS as usize..][..4].copy_from_slice(&blocks.to_le_bytes());
    head[header::RINGS as usize..][..8].copy_from_slice(&around.rings.to_le_bytes());
    head[header::RING_BYTES as usize..][..8].copy_from_slice(&around.ring_bytes.to_le_bytes());
    let number = around.goroutines.map_or(0, |known| known.number);
    head[header::GOROUTINES as usize..][..4].copy_from_slice(&number.to_le_bytes());
    memory.write(TargetAddr(around.control + HEADER), &head)
}

/// Where the C library keeps a thread's id, as far as threads have been looked at.
struct ThreadPointers {
    pid: i32,
    fits: Vec<u32>,
    /// Whether the target sees the ids that everybody sees, as most programs do.
    same_ids: bool,
}

impl ThreadPointers {
    fn new(pid: i32) -> ThreadPointers {
        ThreadPointers {
            pid,
            // `struct pthread` of the GNU C library and of musl.
            fits: vec![0x2d0, 0x30],
            same_ids: identity::numbers(pid).is_some_and(|numbers| numbers.len() == 1),
        }
    }

    /// Checks that every thread has a thread pointer (System V ABI for AMD64, 3.4.6: `%fs:0` holds its own
    /// address), and finds where the C library keeps the thread's id, if it does.
    fn look_at<'a>(
        &mut self,
        memory: &Memory,
        threads: impl Iterator<Item = &'a Stopped>,
    ) -> Result<()> {
        for thread in threads {
            let Some(registers) = unless_gone(thread.registers())? else {
                continue;
            };
            let pointer = registers.fs_base();
            if pointer == 0 || memory.read_word(TargetAddr(pointer)).ok() != Some(pointer) {
                return Err(Error::Unsuitable(format!(
                    "thread {} of process {} has no thread pointer, by which the jump engine tells threads apart; use --engine int3",
                    thread.tid(),
                    self.pid
                )));
            }
            let id = match self.same_ids {
                true => Some(thread.tid()),
                false => identity::number_inside(thread.tid()),
            };
            self.fits.retain(|&offset| {
                let at = TargetAddr(pointer + u64::from(offset));
                memory
                    .read_word(at)
                    .is_ok_and(|word| Some(word as u32 as i32) == id)
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::mman::{MlockAllFlags, mlockall};
    use nix::sys::resource::{Resource, setrlimit};

    use crate::engine::Engine as _;
    use crate::maps;

    use super::*;

    /// Nothing leads to them, and nobody looks at them.
    #[test]
    fn rings_without_memory_are_given_back() {
        let mut target = leftovers::tests::start();
        let pid = target.id() as i32;
        let before = maps::read(pid).unwrap();
        let code = before.iter().find(|m| m.executable).unwrap();
        let mut engine = Jump::attach(pid).unwrap();
        engine.install(&[code.start]).unwrap();
        let mut space = engine.space.take().unwrap();
        let refuses = File::open("/dev/null").unwrap();
        assert!(engine.bring_in(&mut space, &refuses).is_err());
        assert_eq!(maps::read(pid).unwrap(), before);
        engine.finish().unwrap();
        drop(target.stdin.take());
        assert!(target.wait().unwrap().success());
    }

    /// All that is mapped in it is in use at once.
    #[test]
    fn little_is_mapped_where_memory_is_locked() {
        const MOST: u64 = 32 << 20;
        let (begun, begin) = nix::unistd::pipe().unwrap();
        let (ended, end) = nix::unistd::pipe().unwrap();
        let child = sys::fork_into(|| {
            let all = MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE;
            let locked = mlockall(all).is_ok();
            let _ = nix::unistd::write(&begin, &[u8::from(locked)]);
            let _ = nix::unistd::read(&ended, &mut [0]);
            sys::exit_now(7);
        });
        let (pid, mut locked) = (child.unwrap(), [0]);
        nix::unistd::read(&begun, &mut locked).unwrap();
        if locked == [1] {
            let mapped = |pid| {
                let mappings = maps::read(pid).unwrap();
                mappings.iter().map(|m| m.end - m.start).sum::<u64>()
            };
            let before = mapped(pid);
            let code = maps::read(pid).unwrap().into_iter().find(|m| m.executable);
            let mut engine = Jump::attach(pid).unwrap();
            engine.install(&[code.unwrap().start]).unwrap();
            let more = mapped(pid) - before;
            assert!(more < MOST, "{more} bytes");
            engine.finish().unwrap();
            assert_eq!(mapped(pid), before);
        } else {
            eprintln!("not tested: memory must not be locked here");
        }
        nix::unistd::write(&end, &[1]).unwrap();
        assert_eq!(sys::wait_for(pid).unwrap().1, 7 << 8);
    }

    /// A process that locks what it maps from now on, of which nothing shows that: no memory is brought in that nobody uses.
    #[test]
    fn little_is_brought_in_where_future_memory_is_locked() {
        const MOST: u64 = 2 << 20;
        let (mut locked, mut resident) = (0, 0);
        let outcome = install_and(
            || mlockall(MlockAllFlags::MCL_FUTURE),
            |engine| {
                let around = &engine.space.as_ref().unwrap().installed.around;
                locked = limits::locked(engine.pid);
                resident = brought_in(engine.pid, around.rings..=around.control);
            },
        );
        let Some(outcome) = outcome else {
            return eprintln!("not tested: memory must not be locked here");
        };
        outcome.unwrap();
        assert!(locked > MOST, "it is seen");
        assert!(resident > 0 && resident < MOST, "{resident} bytes");
    }

    /// How many bytes of the mappings that begin in a range are in memory (proc_pid_smaps(5)).
    fn brought_in(pid: i32, range: std::ops::RangeInclusive<u64>) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
        let (mut is_in, mut bytes) = (false, 0);
        for line in text.lines() {
            if let Some((start, _)) = line.split_once('-')
                && let Ok(start) = u64::from_str_radix(start, 16)
            {
                is_in = range.contains(&start);
            } else if let Some(rss) = line.strip_prefix("Rss:").filter(|_| is_in) {
                bytes += rss.trim_end_matches("kB").trim().parse::<u64>().unwrap() << 10;
            }
        }
        bytes
    }

    #[test]
    fn goroutines_are_followed_as_far_as_the_control_group_has_memory() {
        let each = 1 << 19;
        let with = |mebibytes: u64| goroutines_for(Some(mebibytes << 20), each);
        assert_eq!(goroutines_for(None, each), layout::GOROUTINES);
        let blocks = [16_384, 512, 256, 1].map(with);
        assert_eq!(blocks[0], layout::GOROUTINES);
        assert!(
            blocks.iter().all(|blocks| blocks.is_power_of_two()),
            "{blocks:?}"
        );
        assert!(
            blocks.is_sorted_by(|more, fewer| more >= fewer),
            "{blocks:?}"
        );
        assert_eq!(blocks[3], FEWEST_GOROUTINES);
        for (blocks, mebibytes) in [(blocks[1], 512), (blocks[2], 256)] {
            assert!(blocks > FEWEST_GOROUTINES, "{blocks} in {mebibytes} MiB");
            leaves_memory(
                1,
                Some(mebibytes << 20),
                (blocks as usize, "goroutines"),
                each,
            )
            .unwrap();
        }
        let refused = leaves_memory(1, Some(1 << 20), (64, "goroutines"), each);
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("64 goroutines"), "{refused}");
        assert!(!refused.contains("int3"), "{refused}");
    }

    /// Installs probes in a process that has limited itself, which ends as it would without.
    fn install_in(limit: impl FnOnce() -> nix::Result<()>) -> Option<Result<()>> {
        install_and(limit, |_| {})
    }

    /// The same, and does something with them.
    fn install_and(
        limit: impl FnOnce() -> nix::Result<()>,
        then: impl FnOnce(&mut Jump),
    ) -> Option<Result<()>> {
        let (begun, begin) = nix::unistd::pipe().unwrap();
        let (ended, end) = nix::unistd::pipe().unwrap();
        let child = sys::fork_into(|| {
            let limited = limit().is_ok();
            let _ = nix::unistd::write(&begin, &[u8::from(limited)]);
            let _ = nix::unistd::read(&ended, &mut [0]);
            sys::exit_now(7);
        });
        let (pid, mut limited) = (child.unwrap(), [0]);
        nix::unistd::read(&begun, &mut limited).unwrap();
        let install = || {
            let code = maps::read(pid)?.into_iter().find(|m| m.executable);
            let mut engine = Jump::attach(pid)?;
            let installed = engine.install(&[code.unwrap().start]);
            if installed.is_ok() {
                then(&mut engine);
            }
            let finished = engine.finish();
            installed.and(finished)
        };
        let installed = (limited == [1]).then(install);
        nix::unistd::write(&end, &[1]).unwrap();
        assert_eq!(sys::wait_for(pid).unwrap().1, 7 << 8);
        installed
    }

    /// How much this process has, in bytes.
    fn own(field: &str) -> u64 {
        let value = crate::threads::status_field(std::process::id() as i32, field).unwrap();
        let kibibytes: u64 = value.trim_end_matches("kB").trim().parse().unwrap();
        kibibytes << 10
    }

    /// Neither code nor shared memory counts against it.
    #[test]
    fn data_is_all_that_counts_as_data() {
        let few = amount_for(SPARE_FEW as u32 + 2, Room::default());
        let limit_to = |more| {
            install_in(move || {
                let most = own("VmData") + more;
                setrlimit(Resource::RLIMIT_DATA, most, most)
            })
        };
        limit_to(few.data * 3).unwrap().unwrap();
        let refused = limit_to(few.data).unwrap().unwrap_err().to_string();
        assert!(refused.contains("RLIMIT_DATA"), "{refused}");
    }

    /// What is left out for want of a further arena is left out with the reason.
    #[test]
    fn why_there_is_no_further_arena_is_told() {
        const ELSEWHERE: u64 = 0x1234_5678_9000;
        let few = amount_for(SPARE_FEW as u32 + 2, Room::default());
        let mut why = String::new();
        let installed = install_and(
            move || {
                let most = own("VmSize") + few.all * 2 + ARENA_BYTES;
                setrlimit(Resource::RLIMIT_AS, most, most)
            },
            |engine| {
                let mut space = engine.space.take().unwrap();
                let memory = engine.memory.again().unwrap();
                let mappings = maps::read(engine.pid).unwrap();
                for _ in 0..4 {
                    why = space.installed.lack(ELSEWHERE);
                    let lacking = std::mem::take(&mut space.installed.lacking);
                    let added = engine.add_arenas(&mut space, &memory, &mappings, lacking);
                    added.unwrap();
                }
                engine.space = Some(space);
            },
        );
        installed.unwrap().unwrap();
        assert!(why.contains("RLIMIT_AS"), "{why}");
    }

    /// What the program may lock is used up by what is mapped in it, too.
    #[test]
    fn memory_that_may_be_locked_is_left() {
        let few = amount_for(SPARE_FEW as u32 + 2, Room::default());
        let limit_to = |more| {
            install_in(move || {
                let most = own("VmSize") + more;
                setrlimit(Resource::RLIMIT_MEMLOCK, most, most)?;
                if nix::unistd::geteuid().is_root() {
                    nix::unistd::setuid(nix::unistd::Uid::from_raw(65534))?;
                }
                mlockall(MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE)
            })
        };
        let (Some(enough), Some(little)) = (limit_to(few.all * 3), limit_to(few.all * 3 / 2))
        else {
            eprintln!("not tested: memory must not be locked here");
            return;
        };
        enough.unwrap();
        let refused = little.unwrap_err().to_string();
        assert!(refused.contains("RLIMIT_MEMLOCK"), "{refused}");
    }

    /// A process whose control group is nearly full is left alone; with room in the group it is measured.
    #[test]
    fn a_full_control_group_is_refused() {
        let Some(group) = cgroup::tests::Group::new(512 << 10) else {
            eprintln!("not tested: no control group can be made here");
            return;
        };
        let (ended, end) = nix::unistd::pipe().unwrap();
        let child = sys::fork_into(|| {
            let _ = nix::unistd::read(&ended, &mut [0]);
            sys::exit_now(7);
        });
        let pid = child.unwrap();
        group.take(pid);
        let code = maps::read(pid).unwrap().into_iter().find(|m| m.executable);
        let code = code.unwrap().start;
        let install = || {
            let mut engine = Jump::attach(pid).unwrap();
            let installed = engine.install(&[code]);
            let finished = engine.finish();
            installed.and(finished.map(drop))
        };
        let refused = install().unwrap_err().to_string();
        assert!(refused.contains("its control group may use"), "{refused}");
        group.limit(64 << 20);
        install().unwrap();
        nix::unistd::write(&end, &[1]).unwrap();
        assert_eq!(sys::wait_for(pid).unwrap().1, 7 << 8);
    }
}
