//! Adding up a recording. Pure: names come from a [`Names`].

use std::collections::{BTreeMap, HashMap, HashSet};

use super::counts::Spot;
use super::listing;
use super::processes::InstanceId;
use super::profile::{
    Circumstances, FunctionEntry, InstructionEntry, LineEntry, Named, Names, ProcessEntry, Profile,
    ProgramEntry, SCHEMA,
};
use super::recording::{Recording, Tally};

/// The busiest functions whose code is listed, and the least share of all samples that one must have.
const LISTED: usize = 5;
const LISTED_SHARE: f64 = 0.05;

/// Adds up one function.
#[derive(Default)]
struct Sum {
    own: u64,
    total: u64,
    lines: BTreeMap<(String, u32), u64>,
    instructions: BTreeMap<u64, u64>,
    /// Some spot in it.
    spot: Option<Spot>,
}

type Key = (String, String);
type Sums = HashMap<Key, Sum>;

impl Sum {
    fn add(&mut self, named: &Named, spot: Spot, count: u64) {
        self.own += count;
        *self.instructions.entry(named.address).or_default() += count;
        if let (Some(file), Some(line)) = (&named.file, named.line) {
            *self.lines.entry((file.clone(), line)).or_default() += count;
        }
        self.spot.get_or_insert(spot);
    }

    fn entry(self, (module, name): Key) -> FunctionEntry {
        let mut lines: Vec<LineEntry> = self
            .lines
            .into_iter()
            .map(|((file, line), samples)| LineEntry {
                file,
                line,
                samples,
            })
            .collect();
        lines.sort_by_key(|line| std::cmp::Reverse(line.samples));
        let instruction = |(address, samples)| InstructionEntry { address, samples };
        FunctionEntry {
            name,
            module,
            own: self.own,
            total: self.total,
            lines,
            instructions: self.instructions.into_iter().map(instruction).collect(),
            listing: Vec::new(),
        }
    }
}

/// The busiest first; names decide between equals, so that the same recording gives the same report.
fn ranked(sums: Sums) -> Vec<(Option<Spot>, FunctionEntry)> {
    let mut entries: Vec<_> = sums
        .into_iter()
        .map(|(key, sum)| (sum.spot, sum.entry(key)))
        .collect();
    entries.sort_by(|(_, a), (_, b)| {
        (b.own, b.total)
            .cmp(&(a.own, a.total))
            .then_with(|| (&a.name, &a.module).cmp(&(&b.name, &b.module)))
    });
    entries
}

/// Adds up a recording.
#[must_use]
pub fn profile(
    recording: &Recording,
    names: &impl Names,
    circumstances: Circumstances,
    warnings: Vec<String>,
) -> Profile {
    let mut known: HashMap<Spot, Named> = HashMap::new();
    let mut system = Sums::new();
    let mut processes: HashMap<InstanceId, (u64, u64, Sums)> = HashMap::new();
    for (instance, stack, count) in recording.counts.iter() {
        let Some(&innermost) = stack.first() else {
            continue;
        };
        let (user, kernel, sums) = processes.entry(instance).or_default();
        match innermost {
            Spot::Kernel(_) => *kernel += count,
            Spot::Code { .. } | Spot::Nowhere(_) => *user += count,
        }
        let mut counted: HashSet<Key> = HashSet::new();
        for (depth, &spot) in stack.iter().enumerate() {
            let named = known.entry(spot).or_insert_with(|| names.named(spot));
            let key = (named.module.clone(), named.function.clone());
            for sums in [&mut system, &mut *sums] {
                let sum = match sums.get_mut(&key) {
                    Some(sum) => sum,
                    None => sums.entry(key.clone()).or_default(),
                };
                if depth == 0 {
                    sum.add(named, spot, count);
                }
                // A function that calls itself is in a sample once.
                if !counted.contains(&key) {
                    sum.total += count;
                }
            }
            counted.insert(key);
        }
    }
    let Tally {
        user,
        kernel,
        lost,
        throttled,
        damaged,
    } = recording.tally;
    let samples = user + kernel;
    let mut functions = Vec::new();
    for (index, (spot, mut entry)) in ranked(system).into_iter().enumerate() {
        let hot = entry.own as f64 >= LISTED_SHARE * samples as f64;
        if index < LISTED
            && hot
            && let Some(spot) = spot
        {
            entry.listing = listing::around(&entry.instructions, spot, names);
        }
        functions.push(entry);
    }
    let processes = process_entries(recording, processes);
    let mut warnings = warnings;
    if damaged > 0 {
        warnings.push(format!(
            "{damaged} bytes of the kernel's records made no sense and were left out"
        ));
    }
    Profile {
        schema: SCHEMA,
        kind: "sample",
        circumstances,
        samples,
        user,
        kernel,
        lost,
        throttled,
        stacks_cut: recording.counts.cut(),
        programs: programs(&processes),
        processes,
        functions,
        python: None,
        warnings,
    }
}

fn process_entries(
    recording: &Recording,
    sums: HashMap<InstanceId, (u64, u64, Sums)>,
) -> Vec<ProcessEntry> {
    let mut entries: Vec<ProcessEntry> = sums
        .into_iter()
        .filter_map(|(id, (user, kernel, sums))| {
            let instance = recording.processes.instances().get(id.0)?;
            Some(ProcessEntry {
                name: instance.name.clone(),
                instance: instance.number,
                pid: instance.pid,
                samples: user + kernel,
                user,
                kernel,
                functions: ranked(sums).into_iter().map(|(_, entry)| entry).collect(),
            })
        })
        .collect();
    entries.sort_by(|a, b| {
        b.samples
            .cmp(&a.samples)
            .then_with(|| (&a.name, a.instance).cmp(&(&b.name, b.instance)))
    });
    entries
}

fn programs(processes: &[ProcessEntry]) -> Vec<ProgramEntry> {
    let mut programs: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for process in processes {
        let (instances, samples) = programs.entry(&process.name).or_default();
        *instances += 1;
        *samples += process.samples;
    }
    let mut entries: Vec<ProgramEntry> = programs
        .into_iter()
        .map(|(name, (instances, samples))| ProgramEntry {
            name: name.to_owned(),
            instances,
            samples,
        })
        .collect();
    entries.sort_by_key(|program| std::cmp::Reverse(program.samples));
    entries
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::sampling::counts::ObjectId;
    use crate::sampling::processes::Seen;
    use crate::sampling::profile::{Instruction, SampledScope};

    /// Functions of 0x100 bytes, instructions of 4, one line for each 8 bytes.
    pub struct Mock;

    impl Names for Mock {
        fn named(&self, spot: Spot) -> Named {
            match spot {
                Spot::Code { offset, .. } => Named {
                    function: format!("f{}", offset >> 8),
                    module: "/prog".to_owned(),
                    address: offset,
                    file: Some("prog.c".to_owned()),
                    line: Some(offset as u32 / 8),
                },
                Spot::Kernel(at) | Spot::Nowhere(at) => Named {
                    function: "sys".to_owned(),
                    module: "[kernel]".to_owned(),
                    address: at,
                    file: None,
                    line: None,
                },
            }
        }

        fn instructions(&self, spot: Spot) -> Vec<Instruction> {
            let Spot::Code { offset, .. } = spot else {
                return Vec::new();
            };
            let start = offset & !0xff;
            (start..start + 0x100)
                .step_by(4)
                .map(|address| Instruction {
                    address,
                    text: format!("op {address:x}"),
                    source: Some(("prog.c".to_owned(), address as u32 / 8)),
                })
                .collect()
        }

        fn source_line(&self, _: Spot, _: &str, line: u32) -> Option<String> {
            Some(format!("statement {line}"))
        }
    }

    pub fn code(offset: u64) -> Spot {
        Spot::Code {
            object: ObjectId(0),
            offset,
        }
    }

    pub fn sample() -> Profile {
        let mut recording = Recording::default();
        for pid in [1, 2] {
            let seen = Seen {
                name: "prog".to_owned(),
                ..Seen::default()
            };
            recording.processes.found(pid, seen);
        }
        let (one, two) = (
            recording.processes.instance(1),
            recording.processes.instance(2),
        );
        for _ in 0..6 {
            recording.counts.add(
                one,
                &[code(0x110), code(0x204), code(0x108), code(0x300)],
                1,
            );
        }
        for _ in 0..3 {
            recording.counts.add(two, &[code(0x114), code(0x300)], 1);
        }
        recording
            .counts
            .add(two, &[Spot::Kernel(5), code(0x300)], 1);
        recording.tally = Tally {
            user: 9,
            kernel: 1,
            ..Tally::default()
        };
        let circumstances = Circumstances {
            darc: "0.1.0".to_owned(),
            target: "prog".to_owned(),
            rate: 100,
            seconds: 0.1,
            sample_cost_ns: Some(20_000.0),
            cpus: 2,
            scope: SampledScope::UserAndKernel,
            during: None,
        };
        profile(&recording, &Mock, circumstances, Vec::new())
    }

    #[test]
    fn every_sample_is_counted_at_every_level() {
        let profile = sample();
        assert_eq!(profile.samples, 10);
        assert_eq!(profile.functions.iter().map(|f| f.own).sum::<u64>(), 10);
        assert_eq!(profile.processes.iter().map(|p| p.samples).sum::<u64>(), 10);
        assert_eq!(profile.programs[0].samples, 10);
        assert_eq!(
            (profile.programs[0].instances, profile.programs.len()),
            (2, 1)
        );
        let numbers: Vec<_> = profile
            .processes
            .iter()
            .map(|p| (p.instance, p.samples))
            .collect();
        assert_eq!(numbers, [(1, 6), (2, 4)]);
        let first = &profile.functions[0];
        assert_eq!((first.name.as_str(), first.own, first.total), ("f1", 9, 9));
        let counts: Vec<_> = first
            .instructions
            .iter()
            .map(|i| (i.address, i.samples))
            .collect();
        assert_eq!(counts, [(0x110, 6), (0x114, 3)]);
        assert_eq!((first.lines[0].line, first.lines[0].samples), (34, 9));
        let root = profile.functions.iter().find(|f| f.name == "f3").unwrap();
        assert_eq!((root.own, root.total), (0, 10));
    }
}
