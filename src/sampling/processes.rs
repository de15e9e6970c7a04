//! Who runs, and what code is mapped where: process instances by name and number (SLEEPY, sections 2.3 to 2.5).
//!
//! An instance is one execution of a program. A process that executes another program begins an instance of that
//! one, and a pid that the kernel gives to a new process does too. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use darc_tracer::maps::FileId;

/// One process instance, in the order of their first samples.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct InstanceId(pub usize);

/// One execution of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Instance {
    /// The program's name (`comm`, 15 bytes at most).
    pub name: String,
    /// Which one of that name, from 1 on, in the order in which they were first seen to run.
    pub number: u32,
    /// Its process id.
    pub pid: i32,
}

/// A file with code, as the kernel names it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileKey {
    /// Its path in the process's own root, or a name in brackets; empty for memory without a file.
    pub path: String,
    /// Which file it is; the inode is 0 for none.
    pub id: FileId,
}

/// A range of a process's memory that holds code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Region {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Offset in the file, bytes.
    pub offset: u64,
    /// The file.
    pub file: Arc<FileKey>,
}

impl Region {
    /// A range that the kernel tells of. Memory without a file (compiled while the program runs) has no offset: its
    /// address is its own name.
    #[must_use]
    pub fn new(range: std::ops::Range<u64>, offset: u64, path: String, id: FileId) -> Region {
        let has_file = id.inode != 0 || path.starts_with("[v");
        Region {
            start: range.start,
            end: range.end,
            offset: if has_file { offset } else { range.start },
            file: Arc::new(FileKey { path, id }),
        }
    }

    /// The part of it below an address.
    fn until(&self, end: u64) -> Option<Region> {
        (self.start < end).then(|| Region {
            end: self.end.min(end),
            ..self.clone()
        })
    }

    /// The part of it from an address on.
    fn from(&self, start: u64) -> Option<Region> {
        let start = self.start.max(start);
        (start < self.end).then(|| Region {
            start,
            offset: self.offset.wrapping_add(start - self.start),
            ..self.clone()
        })
    }
}

/// What is known about a process when it is first heard of.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Seen {
    /// Its name.
    pub name: String,
    /// Its code.
    pub regions: Vec<Region>,
}

#[derive(Clone, Debug)]
struct Process {
    name: Arc<str>,
    regions: Arc<Vec<Region>>,
    /// Numbered when its first sample comes: most processes of a busy system never have one.
    instance: Option<InstanceId>,
    life: Life,
}

/// Whether the first thread of a process has ended. Others may go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    Runs,
    Ended,
}

/// The processes of a recording.
#[derive(Debug, Default)]
pub struct Processes {
    running: HashMap<i32, Process>,
    instances: Vec<Instance>,
    /// How many instances of a name there were.
    numbers: HashMap<Arc<str>, u32>,
}

/// Mappings of one process are not recorded beyond this number.
const MOST_REGIONS: usize = 1 << 16;

impl Processes {
    /// A process that runs already. What is known of it already stays.
    pub fn found(&mut self, pid: i32, seen: Seen) {
        self.running.entry(pid).or_insert_with(|| Process {
            name: seen.name.into(),
            regions: Arc::new(sorted(seen.regions)),
            instance: None,
            life: Life::Runs,
        });
    }

    /// Whether the process is known.
    #[must_use]
    pub fn knows(&self, pid: i32) -> bool {
        self.running.contains_key(&pid)
    }

    /// Whether the process is known and has not ended, so that its pid is nobody else's.
    #[must_use]
    pub fn knows_running(&self, pid: i32) -> bool {
        let known = self.running.get(&pid);
        known.is_some_and(|process| process.life == Life::Runs)
    }

    /// The first thread of a process has ended.
    pub fn exited(&mut self, pid: i32) {
        if let Some(process) = self.running.get_mut(&pid) {
            process.life = Life::Ended;
        }
    }

    /// A process was made: a copy of its parent, whatever had its pid before.
    pub fn forked(&mut self, pid: i32, parent: i32) {
        match self.running.get(&parent) {
            Some(copied) => {
                let copied = Process {
                    instance: None,
                    life: Life::Runs,
                    ..copied.clone()
                };
                self.running.insert(pid, copied);
            }
            None => {
                self.running.remove(&pid);
            }
        }
    }

    /// A process executes another program.
    pub fn executed(&mut self, pid: i32, name: &str) {
        let process = Process {
            name: name.into(),
            regions: Arc::default(),
            instance: None,
            life: Life::Runs,
        };
        self.running.insert(pid, process);
    }

    /// A process's code was mapped, over whatever was there.
    pub fn mapped(&mut self, pid: i32, region: Region) {
        let Some(process) = self.running.get_mut(&pid) else {
            return;
        };
        let regions = Arc::make_mut(&mut process.regions);
        if region.start >= region.end || regions.len() >= MOST_REGIONS {
            return;
        }
        let first = regions.partition_point(|old| old.end <= region.start);
        let after = regions.partition_point(|old| old.start < region.end);
        let covered = &regions[first..after];
        let before = covered.first().and_then(|old| old.until(region.start));
        let behind = covered.last().and_then(|old| old.from(region.end));
        let now = before.into_iter().chain([region]).chain(behind);
        regions.splice(first..after, now);
    }

    /// The region of a process that an address lies in.
    #[must_use]
    pub fn region(&self, pid: i32, addr: u64) -> Option<&Region> {
        let regions = &self.running.get(&pid)?.regions;
        let after = regions.partition_point(|region| region.start <= addr);
        let region = regions.get(after.checked_sub(1)?)?;
        (addr < region.end).then_some(region)
    }

    /// The instance that a process is, numbered now if it was not yet.
    pub fn instance(&mut self, pid: i32) -> InstanceId {
        let process = self.running.entry(pid).or_insert_with(|| Process {
            name: format!("pid {pid}").into(),
            regions: Arc::default(),
            instance: None,
            life: Life::Runs,
        });
        *process.instance.get_or_insert_with(|| {
            let number = self.numbers.entry(Arc::clone(&process.name)).or_default();
            *number += 1;
            self.instances.push(Instance {
                name: process.name.to_string(),
                number: *number,
                pid,
            });
            InstanceId(self.instances.len() - 1)
        })
    }

    /// All instances that had a sample.
    #[must_use]
    pub fn instances(&self) -> &[Instance] {
        &self.instances
    }
}

fn sorted(mut regions: Vec<Region>) -> Vec<Region> {
    regions.sort_by_key(|region| region.start);
    regions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(start: u64, end: u64, path: &str) -> Region {
        let id = FileId {
            inode: 1,
            ..FileId::default()
        };
        Region::new(start..end, 0, path.to_owned(), id)
    }

    fn seen(name: &str) -> Seen {
        Seen {
            name: name.to_owned(),
            regions: vec![region(0x1000, 0x2000, "/a")],
        }
    }

    fn shown(processes: &Processes, id: InstanceId) -> (String, u32, i32) {
        let instance = &processes.instances()[id.0];
        (instance.name.clone(), instance.number, instance.pid)
    }

    #[test]
    fn a_reused_pid_is_another_instance() {
        let mut processes = Processes::default();
        processes.found(1, seen("sh"));
        let shell = processes.instance(1);
        processes.forked(5, 1);
        processes.executed(5, "ls");
        let first = processes.instance(5);
        assert_eq!(processes.instance(5), first, "as long as it lives");
        // 5 ends, and another process gets its pid.
        assert!(processes.knows_running(5));
        processes.exited(5);
        assert!(processes.knows(5) && !processes.knows_running(5));
        processes.forked(5, 1);
        let copy = processes.instance(5);
        processes.executed(5, "ls");
        let second = processes.instance(5);
        assert_eq!(shown(&processes, shell), ("sh".to_owned(), 1, 1));
        assert_eq!(shown(&processes, first), ("ls".to_owned(), 1, 5));
        assert_eq!(shown(&processes, copy), ("sh".to_owned(), 2, 5));
        assert_eq!(shown(&processes, second), ("ls".to_owned(), 2, 5));
    }

    #[test]
    fn a_child_has_its_parents_code_until_it_executes() {
        let mut processes = Processes::default();
        processes.found(1, seen("sh"));
        processes.forked(2, 1);
        processes.mapped(2, region(0x5000, 0x6000, "/b"));
        assert!(processes.region(2, 0x1fff).is_some());
        assert!(processes.region(2, 0x5000).is_some());
        assert!(processes.region(1, 0x5000).is_none(), "the parent has not");
        assert!(processes.region(1, 0x2000).is_none());
        processes.executed(2, "x");
        assert!(processes.region(2, 0x1000).is_none());
        processes.forked(9, 8);
        assert!(!processes.knows(9), "a child of somebody unknown");
    }

    #[test]
    fn a_mapping_replaces_what_it_covers() {
        let mut processes = Processes::default();
        processes.found(1, seen("sh"));
        processes.mapped(1, region(0x1800, 0x2800, "/b"));
        let offset_in = |processes: &Processes, addr: u64| {
            let region = processes.region(1, addr).unwrap();
            (
                region.file.path.clone(),
                addr - region.start + region.offset,
            )
        };
        assert_eq!(offset_in(&processes, 0x17ff), ("/a".to_owned(), 0x7ff));
        assert_eq!(offset_in(&processes, 0x1800), ("/b".to_owned(), 0));
        // In the middle, where both ends stay, each with its place in the file.
        processes.mapped(1, region(0x10_000, 0x90_000, "/c"));
        processes.mapped(1, region(0x40_000, 0x50_000, "/d"));
        assert_eq!(offset_in(&processes, 0x20_000), ("/c".to_owned(), 0x10_000));
        assert_eq!(offset_in(&processes, 0x4f_fff), ("/d".to_owned(), 0xffff));
        assert_eq!(offset_in(&processes, 0x60_000), ("/c".to_owned(), 0x50_000));
        // Over the end of one, all of another and the beginning of a third.
        processes.mapped(1, region(0x30_000, 0x60_000, "/e"));
        assert_eq!(offset_in(&processes, 0x2f_fff), ("/c".to_owned(), 0x1_ffff));
        assert_eq!(offset_in(&processes, 0x45_000), ("/e".to_owned(), 0x15_000));
        assert_eq!(offset_in(&processes, 0x60_000), ("/c".to_owned(), 0x50_000));
        assert!(processes.region(1, 0x2800).is_none() && processes.region(1, 0x90_000).is_none());
        processes.mapped(1, region(5, 5, "/c"));
        processes.mapped(77, region(5, 6, "/c"));
        assert!(!processes.knows(77));
    }
}
