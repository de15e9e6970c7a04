//! The machine that a recording is made on: its processes, the files that they run, and their names.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use darc_process::called;
use darc_process::jit::JitFiles;
use darc_process::target_files::{self, Sources};
use darc_symbols::{DebugSearch, FileAddr, Image, JitSymbols, Root, demangle};
use darc_tracer::addr::TargetAddr;
use darc_tracer::maps;
use darc_tracer::memory::Memory;
use darc_tracer::users::User;

use super::counts::{ObjectId, Spot};
use super::kernel::KernelSymbols;
use super::processes::{FileKey, Region, Seen};
use super::profile::{Instruction, Named, Names};
use super::recording::Machine;

/// A larger function is taken for a damaged symbol.
const MAX_FUNCTION: u64 = 1 << 20;
/// How much is disassembled where a function's end is not known.
const UNKNOWN_EXTENT: u64 = 4096;

struct Object {
    /// Its path, or what stands for one.
    module: String,
    image: Option<Image>,
    /// Where its source may be.
    sources: Option<Sources>,
    /// Where there is no file: what the process calls the code that it made.
    made: Option<Made>,
}

/// Names of code that one process made while it ran; read when they are asked for, as they come while it runs.
struct Made {
    files: JitFiles,
    read: OnceCell<(JitSymbols, Vec<String>)>,
}

impl Made {
    fn symbols(&self) -> &JitSymbols {
        &self.read.get_or_init(|| self.files.read()).0
    }
}

/// The lines of source files, by what they are the source of; nothing for one that cannot be read.
type SourceLines = HashMap<(ObjectId, String), Option<Vec<String>>>;

/// What is known of the machine; files are opened when their first sample comes.
#[derive(Default)]
pub struct World {
    objects: Vec<Object>,
    by_file: HashMap<Arc<FileKey>, ObjectId>,
    /// Code without a file, by its process.
    by_process: HashMap<i32, ObjectId>,
    kernel: OnceCell<KernelSymbols>,
    warnings: Vec<String>,
    /// Who runs the processes.
    users: HashMap<i32, User>,
    /// By device and inode.
    roots: HashMap<Option<(u64, u64)>, Root>,
    lines: RefCell<SourceLines>,
}

impl World {
    /// Problems with files, once each.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let images = self
            .objects
            .iter()
            .filter_map(|object| object.image.as_ref());
        let mut warnings: Vec<String> = images.flat_map(Image::warnings).collect();
        warnings.extend(self.warnings.iter().cloned());
        let made = self
            .objects
            .iter()
            .filter_map(|object| object.made.as_ref());
        let read = made.filter_map(|made| made.read.get());
        warnings.extend(read.flat_map(|(_, warnings)| warnings.iter().cloned()));
        warnings.sort();
        warnings.dedup();
        warnings
    }

    /// Whether names of kernel functions are known.
    #[must_use]
    pub fn names_the_kernel(&self) -> bool {
        !self.kernel().is_empty()
    }

    fn kernel(&self) -> &KernelSymbols {
        self.kernel.get_or_init(KernelSymbols::read)
    }

    fn open(&mut self, pid: i32, region: &Region) -> Object {
        let FileKey { path, id } = region.file.as_ref();
        let without = |module: &str| Object {
            module: module.to_owned(),
            image: None,
            sources: None,
            made: None,
        };
        if path == "[vdso]" {
            return Object {
                image: vdso(),
                ..without(path)
            };
        }
        if id.inode == 0 || !path.starts_with('/') {
            let made = Made {
                files: JitFiles::open(pid),
                read: OnceCell::new(),
            };
            return Object {
                made: Some(made),
                ..without(match path.as_str() {
                    "" | "//anon" => "[anonymous]",
                    other => other,
                })
            };
        }
        let root = self.root_of(pid);
        let path = target_files::path_of(path);
        let shown = path.to_string_lossy().into_owned();
        let file = target_files::mapped(pid, &root, (&path, *id), region.start..region.end);
        let link = called::link_of(pid, &root, &path, *id);
        let image = file.and_then(|file| {
            let search = DebugSearch::below(root.clone());
            Image::open(file, &path, &search).map_err(|error| error.to_string())
        });
        let image = image.map_err(|why| {
            // Of one that has ended it is no wonder.
            if !darc_tracer::proc::is_ending(pid) {
                self.warnings.push(format!("no symbols of {shown}: {why}"));
            }
        });
        let image = image.map(|image| called::renamed(image, link.as_deref()));
        Object {
            module: link.map_or(shown, |link| link.to_string_lossy().into_owned()),
            image: image.ok(),
            sources: Some(Sources {
                root,
                user: self.users.get(&pid).cloned(),
            }),
            made: None,
        }
    }

    /// The root of a process's files; this process's own where that is the same, or the other one has ended: its files mostly are
    /// where they were, and are compared.
    fn root_of(&mut self, pid: i32) -> Root {
        let id = |path: &str| fs::metadata(path).map(|data| (data.dev(), data.ino())).ok();
        let key = id(&format!("/proc/{pid}/root")).or_else(|| id("/"));
        let own = key == id("/");
        let root = self.roots.entry(key).or_insert_with(|| match own {
            true => Root::at(Path::new("/")),
            false => target_files::root_of(pid),
        });
        root.clone()
    }

    fn object_at(&self, spot: Spot) -> Option<(&Object, FileAddr)> {
        let Spot::Code { object, offset } = spot else {
            return None;
        };
        let object = self.objects.get(object.0)?;
        let addr = object
            .image
            .as_ref()
            .and_then(|image| image.addr_of_offset(offset))
            .unwrap_or(FileAddr(offset));
        Some((object, addr))
    }
}

/// Every process has the same one.
fn vdso() -> Option<Image> {
    let own = std::process::id() as i32;
    let mapping = maps::read(own).ok()?;
    let vdso = mapping
        .iter()
        .find(|mapping| mapping.name == Path::new("[vdso]"))?;
    let mut bytes = vec![0; (vdso.end - vdso.start) as usize];
    Memory::open(own)
        .ok()?
        .read(TargetAddr(vdso.start), &mut bytes)
        .ok()?;
    Image::from_bytes(bytes, Path::new("[vdso]"), &DebugSearch::nowhere()).ok()
}

/// What `/proc` tells of a process.
fn look(pid: i32) -> Option<Seen> {
    let comm = fs::read(format!("/proc/{pid}/comm")).ok()?;
    let name = String::from_utf8_lossy(comm.strip_suffix(b"\n").unwrap_or(&comm)).into_owned();
    // Kernel threads have no mappings, and those of other users cannot be read: their names are known all the same.
    let regions = maps::read(pid)
        .unwrap_or_default()
        .into_iter()
        .filter(|mapping| mapping.executable)
        .map(|mapping| {
            let path = mapping.name.to_string_lossy().into_owned();
            Region::new(
                mapping.start..mapping.end,
                mapping.offset,
                path,
                mapping.file,
            )
        })
        .collect();
    Some(Seen { name, regions })
}

impl Machine for World {
    fn process(&mut self, pid: i32) -> Option<Seen> {
        if let Some(user) = User::of(pid) {
            self.users.insert(pid, user);
        }
        look(pid)
    }

    fn object(&mut self, pid: i32, region: &Region) -> ObjectId {
        let has_file = region.file.id.inode != 0 || region.file.path == "[vdso]";
        let known = match has_file {
            true => self.by_file.get(&region.file),
            false => self.by_process.get(&pid),
        };
        if let Some(&known) = known {
            return known;
        }
        let object = self.open(pid, region);
        let id = ObjectId(self.objects.len());
        self.objects.push(object);
        match has_file {
            true => self.by_file.insert(Arc::clone(&region.file), id),
            false => self.by_process.insert(pid, id),
        };
        id
    }
}

impl Names for World {
    fn named(&self, spot: Spot) -> Named {
        let unnamed = |module: &str, address: u64| Named {
            function: format!("{address:#x}"),
            module: module.to_owned(),
            address,
            file: None,
            line: None,
        };
        match spot {
            Spot::Kernel(addr) => match self.kernel().function(addr) {
                Some((_, name)) => Named {
                    function: name.to_owned(),
                    ..unnamed("[kernel]", addr)
                },
                None => Named {
                    function: "(kernel)".to_owned(),
                    ..unnamed("[kernel]", addr)
                },
            },
            Spot::Nowhere(addr) => Named {
                function: "(unknown)".to_owned(),
                ..unnamed("[unknown]", addr)
            },
            Spot::Code { .. } => {
                let Some((object, addr)) = self.object_at(spot) else {
                    return unnamed("[unknown]", 0);
                };
                let unnamed = unnamed(&object.module, addr.0);
                let Some(image) = &object.image else {
                    let made = object.made.as_ref().map(Made::symbols);
                    return match made.and_then(|made| made.at(addr.0)) {
                        Some(function) => Named {
                            function: function.name.to_owned(),
                            ..unnamed
                        },
                        None => Named {
                            function: "(unknown)".to_owned(),
                            ..unnamed
                        },
                    };
                };
                // The line is that of the innermost inlined function, the name that of the function with the code.
                let frames = image.frames(addr);
                let (file, line) = frames
                    .first()
                    .map_or((None, None), |frame| (frame.file.clone(), frame.line));
                let function = frames
                    .last()
                    .map(|frame| frame.function.clone())
                    .or_else(|| {
                        image
                            .plt_name(addr)
                            .map(|name| format!("{}@plt", demangle(&name)))
                    });
                Named {
                    function: function.unwrap_or(unnamed.function),
                    module: unnamed.module,
                    address: unnamed.address,
                    file,
                    line,
                }
            }
        }
    }

    fn instructions(&self, spot: Spot) -> Vec<Instruction> {
        let Some((object, addr)) = self.object_at(spot) else {
            return Vec::new();
        };
        let Some(image) = &object.image else {
            return Vec::new();
        };
        let Some(function) = image.function_at(addr) else {
            return Vec::new();
        };
        let cold = function.cold_parts.iter().find(|part| part.contains(addr));
        let (start, size) = match (cold, function.range()) {
            (Some(cold), _) => (cold.start, cold.len()),
            (None, Some(range)) => (range.start, range.len()),
            (None, None) => (function.addr, addr.0 - function.addr.0 + UNKNOWN_EXTENT),
        };
        let Some(bytes) = image.bytes_at(start, size.min(MAX_FUNCTION)) else {
            return Vec::new();
        };
        darc_disasm::text(start.0, &bytes)
            .into_iter()
            .map(|line| {
                let frames = image.frames(FileAddr(line.addr));
                let source = frames
                    .first()
                    .and_then(|frame| Some((frame.file.clone()?, frame.line?)));
                Instruction {
                    address: line.addr,
                    text: line.text,
                    source,
                }
            })
            .collect()
    }

    fn source_line(&self, spot: Spot, file: &str, line: u32) -> Option<String> {
        let Spot::Code { object, .. } = spot else {
            return None;
        };
        let sources = self.objects.get(object.0)?.sources.as_ref()?;
        let mut read = self.lines.borrow_mut();
        let lines = read
            .entry((object, file.to_owned()))
            .or_insert_with(|| sources.lines(Path::new(file)));
        let line = lines.as_ref()?.get(line.checked_sub(1)? as usize)?;
        Some(line.clone())
    }
}
