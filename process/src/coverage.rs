//! Which part of a program's call sites can be measured, for `darc doctor`. Nothing is traced.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{num, thread};

use darc_disasm::{CallSite, Memory, SiteKind, SkipReason, Target};
use darc_symbols::{FileAddr, FunctionKind, Image, ImageKind};
use darc_tracer::addr::TargetAddr;
use darc_tracer::engine::jump::{Coverage, Judged};
use darc_tracer::ground::Ground;
use darc_tracer::maps::{self, FileId, Mapping};

use crate::code;
use crate::modules::{CodeRef, ModuleId, Modules};
use crate::process::{goroutines_of, known_functions};

/// What kind of call it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum CallKind {
    /// A call that names its target.
    Direct,
    /// A call through a register or memory.
    Indirect,
    /// A jump out of the function.
    Tail,
    /// A system call.
    System,
}

impl CallKind {
    /// The name, for people and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            CallKind::Direct => "direct",
            CallKind::Indirect => "indirect",
            CallKind::Tail => "tail",
            CallKind::System => "system",
        }
    }

    fn of(site: &CallSite) -> CallKind {
        match site.kind {
            SiteKind::Call(Target::Direct(_)) => CallKind::Direct,
            SiteKind::Call(Target::Indirect(_)) => CallKind::Indirect,
            SiteKind::TailJump { .. } => CallKind::Tail,
            SiteKind::Syscall { .. } => CallKind::System,
        }
    }

    /// Of a call that is not understood; `None` for what is none.
    fn of_skipped(reason: SkipReason) -> Option<CallKind> {
        match reason {
            SkipReason::LocalCall | SkipReason::Far | SkipReason::OperandSize => {
                Some(CallKind::Direct)
            }
            SkipReason::AddressSize => Some(CallKind::Indirect),
            SkipReason::CounterJump | SkipReason::UnknownFrame => Some(CallKind::Tail),
            SkipReason::LegacySystemCall => Some(CallKind::System),
            SkipReason::Undecodable | SkipReason::MissingPart => None,
        }
    }
}

/// How many call sites there are, and how many can be measured.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Share {
    /// Those that can be measured.
    pub measured: u64,
    /// All.
    pub all: u64,
}

impl Share {
    /// From 0 to 1; 1 of nothing.
    #[must_use]
    pub fn part(self) -> f64 {
        match self.all {
            0 => 1.0,
            all => self.measured as f64 / all as f64,
        }
    }

    fn add(&mut self, other: Share) {
        self.measured += other.measured;
        self.all += other.all;
    }
}

/// Of one file's functions.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Sites {
    /// The file's path.
    pub path: String,
    /// By kind.
    pub kinds: BTreeMap<CallKind, Share>,
    /// How many cannot be measured for which reason.
    pub reasons: BTreeMap<String, u64>,
    /// Functions whose code cannot be had: their calls are not counted.
    pub unread: u64,
}

impl Sites {
    /// All kinds together.
    #[must_use]
    pub fn total(&self) -> Share {
        let mut total = Share::default();
        for &share in self.kinds.values() {
            total.add(share);
        }
        total
    }

    /// What is called in a part of its caller (`of_caller`) is no call for people.
    fn count(&mut self, judged: Judged, of_caller: impl Fn(u64) -> bool) {
        for (site, reason) in judged.sites {
            if matches!(site.kind, SiteKind::Call(Target::Direct(to)) if of_caller(to)) {
                continue;
            }
            self.count_one(CallKind::of(&site), reason);
        }
        for skipped in judged.skipped {
            if let Some(kind) = CallKind::of_skipped(skipped.reason) {
                self.count_one(kind, Some(skipped.reason.to_string()));
            }
        }
    }

    fn count_one(&mut self, kind: CallKind, reason: Option<String>) {
        self.kinds.entry(kind).or_default().add(Share {
            measured: u64::from(reason.is_none()),
            all: 1,
        });
        if let Some(reason) = reason {
            *self.reasons.entry(reason).or_default() += 1;
        }
    }

    fn add(&mut self, other: Sites) {
        for (kind, share) in other.kinds {
            self.kinds.entry(kind).or_default().add(share);
        }
        for (reason, count) in other.reasons {
            *self.reasons.entry(reason).or_default() += count;
        }
        self.unread += other.unread;
    }
}

/// The call sites of a program or library, as if it alone was in memory.
#[must_use]
pub fn of_file(image: Image) -> Sites {
    /// The stack's usual limit (`ulimit -s`), and the kernel's default of `vm.max_map_count`.
    const STACK: u64 = 8 << 20;
    const MOST_MAPPINGS: usize = 65_530;
    let bias = usual_bias(image.kind());
    let mappings = mappings(&image, bias);
    let end = mappings.iter().map(|mapping| mapping.end).max();
    let heap = end.filter(|_| image.kind() != ImageKind::SharedLibrary);
    let ground = Ground::new(&mappings, STACK, heap, MOST_MAPPINGS);
    let modules = Modules::of_file(image, bias);
    let mut sites = Sites::default();
    for module in modules.loaded() {
        if let Some(image) = &modules.get(module).image {
            let memory = InFile { image, bias };
            sites = of_module(&modules, module, &memory, &ground);
        }
    }
    sites
}

/// The call sites of all files that a process has mapped.
///
/// # Errors
/// When the process is gone, or may not be read.
pub fn of_process(pid: i32, modules: &Modules) -> darc_tracer::Result<Vec<Sites>> {
    let mappings = maps::read(pid)?;
    let ground = Ground::of(pid, &mappings);
    let memory = OfProcess(darc_tracer::memory::Memory::open(pid)?);
    let files = modules.loaded().into_iter();
    let files = files.filter(|&module| {
        let known = modules.get(module);
        known.image.is_some() && !known.path.starts_with('[')
    });
    Ok(files
        .map(|module| of_module(modules, module, &memory, &ground))
        .collect())
}

/// Judges all functions of a file, as many at once as there are processors.
fn of_module(
    modules: &Modules,
    module: ModuleId,
    memory: &(dyn Memory + Sync),
    ground: &Ground,
) -> Sites {
    let of_go = goroutines_of(modules).filter(|_| modules.loaded().first() == Some(&module));
    let of_go = of_go.map(|goroutines| (goroutines, known_functions(modules)));
    let callees = of_go.as_ref().map(|(_, it)| Arc::new(it.callees.clone()));
    let is_of_caller = |to| of_go.as_ref().is_some_and(|(_, it)| it.is_of_caller(to));
    let coverage = || match (&of_go, &callees) {
        (&Some((goroutines, _)), Some(callees)) => {
            Coverage::of_goroutines(ground.clone(), goroutines, Arc::clone(callees))
        }
        _ => Coverage::new(ground.clone()),
    };
    let known = modules.get(module);
    let functions = known.image.iter().flat_map(Image::functions);
    let functions = functions.filter(|function| function.kind == FunctionKind::Code);
    // Parts of functions may look like functions; they are counted with those that jump there.
    let image = known.image.as_ref();
    let is_whole = |addr| image.is_none_or(|it| it.is_called_at(addr));
    let functions = functions.filter(|function| is_whole(function.addr));
    let addresses: Vec<FileAddr> = functions.map(|function| function.addr).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut coverage = coverage();
        let mut found = Sites::default();
        while let Some(&addr) = addresses.get(next.fetch_add(1, Ordering::Relaxed)) {
            let place = CodeRef { module, addr };
            let Some(entry) = modules.locate(place) else {
                continue;
            };
            match code::with_surroundings(entry, modules, memory) {
                Ok(code) => found.count(coverage.judge(&Arc::new(code), memory), is_of_caller),
                Err(_) => found.unread += 1,
            }
        }
        found
    };
    let workers = thread::available_parallelism().map_or(1, num::NonZero::get);
    let mut sites = Sites {
        path: known.path.clone(),
        ..Sites::default()
    };
    thread::scope(|scope| {
        let running: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        for worker in running {
            sites.add(worker.join().unwrap_or_default());
        }
    });
    sites
}

/// Bytes from the link-time addresses to where the kernel would put the file, were there no randomness.
fn usual_bias(kind: ImageKind) -> u64 {
    /// Two thirds of the way up (`ELF_ET_DYN_BASE` in the kernel's arch/x86/include/asm/elf.h).
    const PROGRAM: u64 = 0x5555_5555_4000;
    /// Below the stack, with room for the largest.
    const LIBRARY: u64 = 0x7fff_d000_0000;
    match kind {
        ImageKind::Executable => 0,
        ImageKind::PositionIndependent => PROGRAM,
        ImageKind::SharedLibrary => LIBRARY,
    }
}

/// What is mapped where there is nothing but the file: its segments.
fn mappings(image: &Image, bias: u64) -> Vec<Mapping> {
    const PAGE: u64 = 4096;
    let segments = image.segments().iter().map(|segment| {
        let start = segment.addr.0.wrapping_add(bias);
        let end = start.saturating_add(segment.mem_size);
        Mapping {
            start: start & !(PAGE - 1),
            end: end.checked_next_multiple_of(PAGE).unwrap_or(end),
            readable: true,
            writable: !segment.executable,
            executable: segment.executable,
            shared: false,
            offset: segment.file_offset & !(PAGE - 1),
            file: FileId::default(),
            name: image.path().to_owned(),
        }
    });
    segments.collect()
}

/// A file's code and data at their addresses plus a bias; what the dynamic linker would write is not there.
struct InFile<'a> {
    image: &'a Image,
    bias: u64,
}

impl Memory for InFile<'_> {
    fn read(&self, addr: u64, buffer: &mut [u8]) -> bool {
        let addr = FileAddr(addr.wrapping_sub(self.bias));
        let bytes = self.image.bytes_at(addr, buffer.len() as u64);
        bytes.is_some_and(|bytes| {
            let whole = bytes.len() == buffer.len();
            if whole {
                buffer.copy_from_slice(&bytes);
            }
            whole
        })
    }
}

struct OfProcess(darc_tracer::memory::Memory);

impl Memory for OfProcess {
    fn read(&self, addr: u64, buffer: &mut [u8]) -> bool {
        self.0.read(TargetAddr(addr), buffer).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assembled;

    #[test]
    fn calls_are_counted_by_kind_with_reasons() {
        let text = ".text\n.globl _start\n.type _start,@function\n\
                    _start: call f\ncall *0x12345(%rax)\nmov $56,%eax\nsyscall\njmp f\n.size _start,.-_start\n\
                    .type f,@function\nf: jmp *0x12345(%rdi)\n.size f,.-f\n";
        let sites = of_file(assembled::image(text, &["-static"]));
        let share = |kind| sites.kinds[&kind];
        let found = |measured, all| Share { measured, all };
        assert_eq!(share(CallKind::Direct), found(1, 1));
        assert_eq!(share(CallKind::Indirect), found(1, 1));
        assert_eq!(share(CallKind::Tail), found(2, 2));
        assert_eq!(share(CallKind::System), found(0, 1));
        assert_eq!(sites.total(), found(4, 5));
        let near = of_file(assembled::image_at("./a", text, &["-static"]));
        assert_eq!(near.kinds, sites.kinds, "the path is relative");
        let reasons: Vec<_> = sites.reasons.values().collect();
        assert_eq!(reasons, [&1]);
    }
}
