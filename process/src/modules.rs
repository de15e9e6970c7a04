//! Files whose code the target runs: the one place where addresses in the running target and
//! addresses in a file are converted.
//!
//! A [`ModuleId`] outlives a process: when a program is run again, or an analysis resumed, the same
//! file has the same id wherever it is loaded.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use darc_symbols::{DebugSearch, FileAddr, Image, LookupError, Root};
use darc_tracer::addr::TargetAddr;
use darc_tracer::maps::{self, FileId, Mapping};

use crate::entry_points::Entrances;
use crate::jit::MadeCode;
use crate::return_address::Used;
use crate::{called, target_files};

/// One file with code, in whatever process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ModuleId(pub usize);

/// A place in a file's code: the same in every run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CodeRef {
    /// The file.
    pub module: ModuleId,
    /// The link-time address in it. In memory that no file backs: the run-time address.
    pub addr: FileAddr,
}

/// A file with code.
#[derive(Debug)]
pub struct Module {
    /// Its path in the target's file system, or a name in brackets.
    pub path: String,
    /// Its build-id, in hexadecimal.
    pub build_id: Option<String>,
    /// Its symbols; `None` when it could not be read.
    pub image: Option<Image>,
    /// Where its functions are entered elsewhere than at their beginnings, once somebody has asked.
    pub entrances: OnceLock<Entrances>,
}

/// The module of memory without file and name.
pub const ANONYMOUS: &str = "[anonymous]";

/// All modules ever seen, and where those of the current process lie.
#[derive(Debug, Default)]
pub struct Modules {
    known: Vec<Module>,
    /// By build-id, or by path where there is none: the same build is the same module wherever it lies.
    by_key: HashMap<String, ModuleId>,
    /// Executable ranges of the current process, sorted: start, end, module.
    ranges: Vec<(u64, u64, ModuleId)>,
    /// The first of them in the current process, or in the last one.
    program: Option<ModuleId>,
    bias: HashMap<ModuleId, u64>,
    /// Mappings that have been looked at, so that a refresh opens only new files.
    seen: HashMap<(String, FileId), ModuleId>,
    warnings: Vec<String>,
    made: MadeCode,
    /// What functions do with their return addresses, of whom somebody has asked since code came or went.
    uses: Mutex<BTreeMap<CodeRef, Option<Used>>>,
}

impl Modules {
    /// A file alone, in memory at its link-time addresses plus `bias` (bytes), without a process.
    #[must_use]
    pub fn of_file(image: Image, bias: u64) -> Modules {
        let mut modules = Modules::default();
        // A path that is not absolute is of no file, for a process.
        let path = std::path::absolute(image.path());
        let path = path.unwrap_or_else(|_| image.path().to_owned());
        let path = path.to_string_lossy().into_owned();
        let segments = image.segments().iter().filter(|segment| segment.executable);
        let ranges = segments.map(|segment| {
            let start = segment.addr.0.wrapping_add(bias);
            (start, start.saturating_add(segment.mem_size))
        });
        let ranges: Vec<_> = ranges.collect();
        let id = modules.intern(&path, None, Some(image));
        modules.ranges = ranges
            .into_iter()
            .map(|(start, end)| (start, end, id))
            .collect();
        modules.ranges.sort_unstable();
        modules.bias.insert(id, bias);
        modules
    }

    /// Forgets where modules lie (the process is gone), not what they are.
    pub fn unload(&mut self) {
        self.ranges.clear();
        self.bias.clear();
        self.seen.clear();
        self.forget_uses();
    }

    /// What a function does with its return address: as was found before, or else by `look`.
    pub(crate) fn use_of(
        &self,
        place: CodeRef,
        look: impl FnOnce() -> Option<Used>,
    ) -> Option<Used> {
        let uses = || self.uses.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = uses().get(&place) {
            return known.clone();
        }
        let found = look();
        uses().insert(place, found.clone());
        found
    }

    fn forget_uses(&mut self) {
        self.uses
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    /// Reads the process's mappings again. Returns true when there is code that was not there before.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn refresh(&mut self, pid: i32) -> darc_tracer::Result<bool> {
        let mappings = maps::read(pid)?;
        if !self.made.is_of(pid) {
            self.made = MadeCode::of(pid);
        }
        let root = target_files::root_of(pid);
        let mut ranges = Vec::new();
        let mut biases = HashMap::new();
        let mut new = false;
        for mapping in mappings.iter().filter(|mapping| mapping.executable) {
            let name = mapping.name.to_string_lossy().into_owned();
            let key = (name.clone(), mapping.file);
            let id = match self.seen.get(&key) {
                Some(&id) if mapping.is_file() || !name.is_empty() => id,
                _ => {
                    new = true;
                    let id = self.add(pid, &root, mapping, &name);
                    self.seen.insert(key, id);
                    id
                }
            };
            ranges.push((mapping.start, mapping.end, id));
            // Anew each time: a program that executes itself has the same files elsewhere.
            biases
                .entry(id)
                .or_insert_with(|| bias(self.known[id.0].image.as_ref(), mapping));
        }
        self.bias = biases;
        ranges.sort_unstable();
        if self.ranges != ranges {
            self.forget_uses();
        }
        self.ranges = ranges;
        self.program = self.loaded().first().copied().or(self.program);
        Ok(new)
    }

    fn add(&mut self, pid: i32, root: &Root, mapping: &Mapping, name: &str) -> ModuleId {
        if name.is_empty() {
            return self.intern(ANONYMOUS, None, None);
        }
        let image = match mapping.is_file() {
            true => self.file_image(pid, root, mapping, name),
            false if name == "[vdso]" => vdso(pid, mapping).and_then(|bytes| {
                let image = Image::from_bytes(bytes, Path::new(name), &DebugSearch::nowhere());
                self.unless_refused(name, image)
            }),
            false => None,
        };
        let build_id = image
            .as_ref()
            .and_then(|image| image.build_id())
            .map(ToString::to_string);
        let path = target_files::path_of(name);
        let link = called::link_of(pid, root, &path, mapping.file);
        let image = image.map(|image| called::renamed(image, link.as_deref()));
        let path = link.unwrap_or(path);
        self.intern(&path.to_string_lossy(), build_id, image)
    }

    /// What a mapped file says of itself. Why it says nothing is told once.
    fn file_image(
        &mut self,
        pid: i32,
        root: &Root,
        mapping: &Mapping,
        name: &str,
    ) -> Option<Image> {
        let path = target_files::path_of(name);
        let range = mapping.start..mapping.end;
        match target_files::mapped(pid, root, (&path, mapping.file), range) {
            Ok(file) => {
                let image = Image::open(file, &path, &DebugSearch::below(root.clone()));
                self.unless_refused(name, image)
            }
            Err(why) => {
                if is_program(name) && !darc_tracer::proc::is_ending(pid) {
                    self.warnings.push(format!("no symbols of {name}: {why}"));
                }
                None
            }
        }
    }

    fn unless_refused(
        &mut self,
        name: &str,
        image: Result<Image, darc_symbols::Error>,
    ) -> Option<Image> {
        image
            .map_err(|error| self.warnings.push(format!("no symbols of {name}: {error}")))
            .ok()
    }

    /// The id of a module by path and build-id, whether loaded or not (a resumed analysis names modules
    /// before anything runs).
    pub fn intern(
        &mut self,
        path: &str,
        build_id: Option<String>,
        image: Option<Image>,
    ) -> ModuleId {
        let next = ModuleId(self.known.len());
        let key = build_id.clone().unwrap_or_else(|| path.to_owned());
        let id = *self.by_key.entry(key).or_insert(next);
        if id == next {
            self.known.push(Module {
                path: path.to_owned(),
                build_id,
                image,
                entrances: OnceLock::new(),
            });
        } else if self.known[id.0].image.is_none() {
            self.known[id.0].image = image;
        }
        id
    }

    /// A module.
    #[must_use]
    pub fn get(&self, id: ModuleId) -> &Module {
        &self.known[id.0]
    }

    /// All modules seen so far.
    #[must_use]
    pub fn known(&self) -> &[Module] {
        &self.known
    }

    /// The entry of the function that has the code at a place, where that is known.
    #[must_use]
    pub fn function_around(&self, at: CodeRef) -> Option<CodeRef> {
        let function = self.get(at.module).image.as_ref()?.function_at(at.addr)?;
        let addr = function.addr;
        Some(CodeRef { addr, ..at })
    }

    /// The name of the code at a place: a function, or an offset in one or in a module.
    #[must_use]
    pub fn name(&self, at: CodeRef) -> String {
        let module = self.get(at.module);
        match &module.image {
            Some(image) => image.name_at(at.addr),
            None if self.is_made(at.module)
                && let Some(name) = self.made.name_at(at.addr.0) =>
            {
                name
            }
            None => {
                let file = module.path.rsplit('/').next().unwrap_or_default();
                format!("{file}+{:#x}", at.addr.0)
            }
        }
    }

    /// The modules of the current process, in address order. Code that is of no file is none: that may lie anywhere, and
    /// the first module is taken for the program.
    #[must_use]
    pub fn loaded(&self) -> Vec<ModuleId> {
        let mut ids: Vec<ModuleId> = Vec::new();
        for &(_, _, id) in &self.ranges {
            if !ids.contains(&id) && self.get(id).path != ANONYMOUS {
                ids.push(id);
            }
        }
        ids
    }

    /// The program that the process runs, or ran last.
    #[must_use]
    pub fn program(&self) -> Option<&Module> {
        self.program.map(|program| self.get(program))
    }

    /// The executable ranges of the current process: start, end, module.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64, ModuleId)> + '_ {
        self.ranges.iter().copied()
    }

    /// Where an address of the target is, as a place in a file. `None` when no code is mapped there.
    #[must_use]
    pub fn place(&self, addr: TargetAddr) -> Option<CodeRef> {
        let after = self
            .ranges
            .partition_point(|&(start, _, _)| start <= addr.0);
        let &(_, end, module) = self.ranges.get(after.checked_sub(1)?)?;
        let bias = *self.bias.get(&module)?;
        (addr.0 < end).then(|| CodeRef {
            module,
            addr: FileAddr(addr.0.wrapping_sub(bias)),
        })
    }

    /// Where a place in a file is in the target now. `None` when the file is not loaded.
    #[must_use]
    pub fn locate(&self, place: CodeRef) -> Option<TargetAddr> {
        let bias = *self.bias.get(&place.module)?;
        Some(TargetAddr(place.addr.0.wrapping_add(bias)))
    }

    /// The function that begins at an address: one in the running target, or else one in the program's file.
    ///
    /// # Errors
    /// When there is no code, or when a function is known that begins before.
    pub fn entry(&self, addr: u64) -> Result<CodeRef, LookupError> {
        let in_file = self.loaded().first().map(|&module| CodeRef {
            module,
            addr: FileAddr(addr),
        });
        let in_file = in_file.filter(|place| {
            let image = self.get(place.module).image.as_ref();
            image.is_some_and(|image| image.is_code(place.addr))
        });
        let place = self.place(TargetAddr(addr)).or(in_file);
        let place = place.ok_or(LookupError::RunTimeAddress(addr))?;
        let module = self.get(place.module);
        let image = module.image.as_ref();
        let around = image.and_then(|image| image.function_at(place.addr));
        match around.filter(|function| function.addr != place.addr) {
            Some(function) => Err(LookupError::NotAnEntry {
                module: image.map_or_else(|| module.path.clone(), Image::module),
                addr: place.addr,
                inside: image.map(|image| (image.name_of(function), function.addr)),
            }),
            None => Ok(place),
        }
    }

    /// Whether a module is memory that no file backs: its code is what the program has made while it runs.
    #[must_use]
    pub fn is_made(&self, id: ModuleId) -> bool {
        let path = self.get(id).path.as_str();
        let file = path.starts_with('/') && !path.starts_with("/memfd:") && path != "/dev/zero";
        !(file || path.starts_with("[v"))
    }

    /// What the process calls the code that it makes.
    #[must_use]
    pub fn made(&self) -> &MadeCode {
        &self.made
    }

    /// Problems with files, once each.
    pub fn take_warnings(&mut self) -> Vec<String> {
        let from_images = self
            .known
            .iter()
            .filter_map(|module| module.image.as_ref())
            .flat_map(Image::warnings);
        let mut warnings: Vec<String> = std::mem::take(&mut self.warnings);
        warnings.extend(self.made.warnings());
        warnings.extend(from_images);
        warnings.sort();
        warnings.dedup();
        warnings
    }
}

/// What to add to a link-time address to get the run-time address.
fn bias(image: Option<&Image>, mapping: &Mapping) -> u64 {
    // A mapping begins at a page, a segment anywhere in it.
    let page = |offset: u64| offset & !0xfff;
    let segment = image.into_iter().flat_map(Image::segments).find(|segment| {
        segment.executable
            && page(segment.file_offset) <= mapping.offset
            && mapping.offset < segment.file_offset.saturating_add(segment.file_size)
    });
    match segment {
        Some(segment) => {
            let offset = segment.file_offset.wrapping_sub(mapping.offset);
            mapping
                .start
                .wrapping_add(offset)
                .wrapping_sub(segment.addr.0)
        }
        // Code without a file: the address is its own name.
        None => 0,
    }
}

fn vdso(pid: i32, mapping: &Mapping) -> Option<Vec<u8>> {
    let mut bytes = vec![0; (mapping.end - mapping.start) as usize];
    let memory = darc_tracer::memory::Memory::open(pid).ok()?;
    memory.read(TargetAddr(mapping.start), &mut bytes).ok()?;
    Some(bytes)
}

/// Whether a mapped file is one that a program was compiled to, as far as its name tells: memory that a program has made
/// itself to run code in has names, too.
fn is_program(name: &str) -> bool {
    !["/memfd:", "/dev/", "/SYSV"]
        .iter()
        .any(|made| name.starts_with(made))
}
