//! Files whose code the target runs: the one place where addresses in the running target and
//! addresses in a file are converted.
//!
//! A [`ModuleId`] outlives a process: when a program is run again, or an analysis resumed, the same
//! file has the same id wherever it is loaded.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use darc_symbols::{DebugSearch, FileAddr, Image, LookupError};
use darc_tracer::addr::TargetAddr;
use darc_tracer::maps::{self, Mapping};
use darc_tracer::threads;

use darc_report::model::Target;

use super::called;
use super::entrances::Entrances;
use super::jit::MadeCode;

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
    bias: HashMap<ModuleId, u64>,
    /// Mappings that have been looked at, so that a refresh opens only new files.
    seen: HashMap<(String, u64), ModuleId>,
    warnings: Vec<String>,
    made: MadeCode,
}

impl Modules {
    /// Forgets where modules lie (the process is gone), not what they are.
    pub fn unload(&mut self) {
        self.ranges.clear();
        self.bias.clear();
        self.seen.clear();
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
        let root = threads::proc_folder(pid).join("root");
        let mut ranges = Vec::new();
        let mut biases = HashMap::new();
        let mut new = false;
        for mapping in mappings.iter().filter(|mapping| mapping.executable) {
            let name = mapping.name.to_string_lossy().into_owned();
            let key = (name.clone(), mapping.inode);
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
        self.ranges = ranges;
        Ok(new)
    }

    fn add(&mut self, pid: i32, root: &Path, mapping: &Mapping, name: &str) -> ModuleId {
        let path = Path::new(name.strip_suffix(" (deleted)").unwrap_or(name));
        let search = DebugSearch::under(root);
        let image = match open(pid, root, mapping, path) {
            Source::File(file) => Image::open(file, path, &search),
            Source::Memory(bytes) => Image::from_bytes(bytes, path, &search),
            Source::None => {
                return self.intern(if name.is_empty() { ANONYMOUS } else { name }, None, None);
            }
        };
        let image = image
            .map_err(|error| self.warnings.push(format!("no symbols of {name}: {error}")))
            .ok();
        let build_id = image
            .as_ref()
            .and_then(|image| image.build_id())
            .map(ToString::to_string);
        let link = called::link_of(pid, root, path, mapping.inode);
        let image = image.map(|image| called::renamed(image, link.as_deref()));
        let path = link.as_deref().unwrap_or(path);
        self.intern(&path.to_string_lossy(), build_id, image)
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

    /// The process for a report, which has not ended. Where its program was not seen its path is the command's.
    #[must_use]
    pub fn target(&self, pid: i32, command: Vec<String>) -> Target {
        let program = self.known.first();
        let named = || command.first().cloned();
        Target {
            pid: Some(pid),
            exe: program
                .map(|module| module.path.clone())
                .or_else(named)
                .unwrap_or_default(),
            build_id: program.and_then(|module| module.build_id.clone()),
            command,
            exit_status: None,
        }
    }

    /// The modules of the current process, in address order.
    #[must_use]
    pub fn loaded(&self) -> Vec<ModuleId> {
        let mut ids: Vec<ModuleId> = Vec::new();
        for &(_, _, id) in &self.ranges {
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        ids
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

enum Source {
    File(File),
    Memory(Vec<u8>),
    None,
}

/// Opens what is mapped, not what its path names by now: the file may be deleted, replaced, or
/// in another mount namespace.
fn open(pid: i32, root: &Path, mapping: &Mapping, path: &Path) -> Source {
    if !mapping.is_file() {
        return match mapping.name.to_str() {
            Some("[vdso]") => vdso(pid, mapping),
            _ => Source::None,
        };
    }
    let range = mapping.start..mapping.end;
    mapped_file(pid, root, path, mapping.inode, range).map_or(Source::None, Source::File)
}

/// The file that a process has mapped at `range`, by its path there and its inode.
pub(crate) fn mapped_file(
    pid: i32,
    root: &Path,
    path: &Path,
    inode: u64,
    range: std::ops::Range<u64>,
) -> Option<File> {
    let same = |file: &File| {
        file.metadata()
            .is_ok_and(|data| data.ino() == inode && data.is_file())
    };
    let inside = root.join(path.strip_prefix("/").unwrap_or(path));
    let exe = threads::proc_folder(pid).join("exe");
    let exact = PathBuf::from(format!(
        "/proc/{pid}/map_files/{:x}-{:x}",
        range.start, range.end
    ));
    [inside, exe, exact]
        .iter()
        .find_map(|path| File::open(path).ok().filter(same))
}

fn vdso(pid: i32, mapping: &Mapping) -> Source {
    let mut bytes = vec![0; (mapping.end - mapping.start) as usize];
    let read = darc_tracer::memory::Memory::open(pid)
        .and_then(|memory| memory.read(TargetAddr(mapping.start), &mut bytes));
    read.map_or(Source::None, |()| Source::Memory(bytes))
}
