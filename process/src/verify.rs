//! Proves that code is its file's again: whole modules, byte by byte, after the target has been let go.

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use darc_tracer::addr::TargetAddr;
use darc_tracer::maps::{self, Mapping};
use darc_tracer::memory::Memory;
use darc_tracer::plan::Plan;

use crate::modules::{ModuleId, Modules};
use crate::target_files;

/// So many bytes are compared at a time.
const CHUNK: usize = 1 << 20;

/// The modules in which there were probes.
#[derive(Default, Debug)]
pub struct Touched(BTreeSet<ModuleId>);

/// What a comparison found.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Compared {
    /// Bytes of code that were compared with files.
    pub bytes: u64,
    /// The modules whose code is not that of their files, with the number of bytes that differ.
    pub differing: Vec<(String, u64)>,
}

impl Touched {
    /// Remembers where a plan puts probes.
    pub fn add(&mut self, plan: &Plan, modules: &Modules) {
        let codes = plan
            .f0
            .iter()
            .chain(plan.functions.iter().map(|function| &function.code))
            .chain(plan.markers.iter().map(|marker| &marker.code))
            .chain(plan.asynchronous.iter().flat_map(|path| path.codes()));
        let addresses = codes
            .flat_map(|code| code.parts().iter().map(|part| TargetAddr(part.start)))
            .chain(plan.unwinders.iter().copied())
            .chain(plan.catchers.iter().copied())
            .chain(plan.finders.iter().copied())
            .chain(plan.loader);
        let places = addresses.filter_map(|addr| modules.place(addr));
        self.0.extend(places.map(|place| place.module));
    }

    /// Compares the code of these modules with their files. What cannot be read is left out: the process may
    /// end at any time.
    pub fn compare(&self, pid: i32, modules: &Modules) -> Compared {
        let (Ok(mappings), Ok(memory)) = (maps::read(pid), Memory::open(pid)) else {
            return Compared::default();
        };
        let root = target_files::root_of(pid);
        let mut found = Compared::default();
        let code = mappings.iter().filter(|mapping| mapping.executable);
        for mapping in code.filter(|mapping| mapping.is_file()) {
            let Some(place) = modules.place(TargetAddr(mapping.start)) else {
                continue;
            };
            let module = &modules.get(place.module).path;
            if !self.0.contains(&place.module) {
                continue;
            }
            let range = mapping.start..mapping.end;
            let path = Path::new(module);
            let Ok(file) = target_files::mapped(pid, &root, (path, mapping.file), range) else {
                continue;
            };
            let (bytes, differing) = compare(&memory, &file, mapping);
            found.bytes += bytes;
            if differing > 0 {
                found.differing.push((module.clone(), differing));
            }
        }
        found
    }
}

/// How many bytes could be compared, and how many differ.
fn compare(memory: &Memory, file: &File, mapping: &Mapping) -> (u64, u64) {
    let (mut mapped, mut stored) = (vec![0; CHUNK], vec![0; CHUNK]);
    let (mut bytes, mut differing) = (0, 0);
    for Range { start, end } in chunks(mapping.start..mapping.end) {
        let len = (end - start) as usize;
        let offset = mapping.offset + (start - mapping.start);
        let (mapped, stored) = (&mut mapped[..len], &mut stored[..len]);
        // The last page of a mapping may reach beyond the file's end.
        let (Ok(()), Ok(len)) = (
            memory.read(TargetAddr(start), mapped),
            file.read_at(stored, offset),
        ) else {
            continue;
        };
        bytes += len as u64;
        let pairs = mapped[..len].iter().zip(&stored[..len]);
        differing += pairs.filter(|(now, own)| now != own).count() as u64;
    }
    (bytes, differing)
}

fn chunks(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let starts = range.clone().step_by(CHUNK);
    starts.map(move |start| start..range.end.min(start + CHUNK as u64))
}
