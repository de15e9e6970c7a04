//! The machine code of a function of the target: its true extent, its call sites.

use std::collections::HashMap;
use std::sync::Arc;

use darc_disasm::{CallSite, CodePart, FunctionCode, SkippedSite, call_sites};
use darc_symbols::{AddrRange, FileAddr};
use darc_tracer::addr::TargetAddr;
use darc_tracer::engine::{Engine, EngineKind};

use super::entrances;
use super::modules::{CodeRef, Modules};

/// A larger function is taken for a damaged symbol.
const MAX_FUNCTION: u64 = 8 << 20;
/// How far a function without known extent is followed.
const MAX_UNKNOWN_EXTENT: u64 = 64 << 10;
/// Instructions that are as long (bytes) need nothing of what is before them.
const SHORTEST_JUMP: u8 = 5;

/// A function ready to be instrumented.
#[derive(Clone, Debug)]
pub struct Scanned {
    /// Its bytes, at their run-time addresses.
    pub code: Arc<FunctionCode>,
    /// Where it calls something.
    pub sites: Vec<CallSite>,
    /// Calls that cannot be instrumented.
    pub skipped: Vec<SkippedSite>,
}

/// Functions that have been scanned in the current process.
#[derive(Debug, Default)]
pub struct CodeCache {
    by_entry: HashMap<TargetAddr, Arc<Scanned>>,
}

impl CodeCache {
    /// Forgets everything: the process is gone or its code has changed.
    pub fn clear(&mut self) {
        self.by_entry.clear();
    }

    /// The function that begins at `entry`.
    ///
    /// # Errors
    /// Why its code cannot be had, for people.
    pub fn scan(
        &mut self,
        entry: TargetAddr,
        modules: &Modules,
        engine: &dyn Engine,
    ) -> Result<Arc<Scanned>, String> {
        if let Some(known) = self.by_entry.get(&entry) {
            return Ok(Arc::clone(known));
        }
        let mut code = read(entry, modules, engine)?;
        let found = call_sites(&code, &Unpatched(engine));
        // Breakpoints always fit.
        if engine.kind() == EngineKind::Jump
            && found.sites.iter().any(|site| site.len < SHORTEST_JUMP)
        {
            code = tell_entrances(code, modules);
        }
        let code = Arc::new(code);
        let scanned = Arc::new(Scanned {
            code,
            sites: found.sites,
            skipped: found.skipped,
        });
        self.by_entry.insert(entry, Arc::clone(&scanned));
        Ok(scanned)
    }
}

/// Looks who jumps into the function, so that nothing is moved away from under it.
fn tell_entrances(code: FunctionCode, modules: &Modules) -> FunctionCode {
    let Some(place) = modules.place(TargetAddr(code.entry())) else {
        return code;
    };
    let entrances = entrances::inside(modules, place);
    let located = entrances.into_iter().filter_map(|addr| {
        let module = place.module;
        Some(modules.locate(CodeRef { module, addr })?.0)
    });
    code.with_entrances(located.collect())
}

/// The target's memory without the engine's patches.
pub struct Unpatched<'a>(pub &'a dyn Engine);

impl darc_disasm::Memory for Unpatched<'_> {
    fn read(&self, addr: u64, buffer: &mut [u8]) -> bool {
        self.0.read_code(TargetAddr(addr), buffer)
    }
}

fn read(entry: TargetAddr, modules: &Modules, engine: &dyn Engine) -> Result<FunctionCode, String> {
    let place = modules
        .place(entry)
        .ok_or_else(|| format!("no code is mapped at {entry}"))?;
    let module = modules.get(place.module);
    if module.path.starts_with("[v") {
        return Err(format!(
            "it is in {}, which the kernel provides",
            module.path
        ));
    }
    if modules.is_made(place.module) && !is_trampoline(entry, engine) {
        return Err(
            "the program has made this code while it runs, and may move or rewrite it at any time"
                .to_owned(),
        );
    }
    let parts = extent(place, modules);
    if parts.is_empty() {
        return of_unknown_extent(entry, place, modules, &Unpatched(engine));
    }
    let parts = parts
        .into_iter()
        .map(|range| {
            let start = modules
                .locate(CodeRef {
                    module: place.module,
                    addr: range.start,
                })
                .ok_or_else(|| format!("{} is not loaded", module.path))?;
            let mut bytes = vec![0; range.len() as usize];
            match engine.read_code(start, &mut bytes) {
                true => Ok(CodePart {
                    start: start.0,
                    bytes,
                }),
                false => Err(format!("its code at {start} cannot be read")),
            }
        })
        .collect::<Result<Vec<_>, String>>()?;
    FunctionCode::new(parts)
        .ok_or_else(|| "its symbol describes no sensible piece of code".to_owned())
}

/// Whether a function is one of those that CPython makes for each of its functions with `-X perf`. They stay as they are:
/// copies of a few instructions that call the interpreter (CPython, Python/asm_trampoline.S).
fn is_trampoline(entry: TargetAddr, engine: &dyn Engine) -> bool {
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    // sub $8,%rsp; call *%rcx; add $8,%rsp; ret
    const ALIGNED: [u8; 11] = [
        0x48, 0x83, 0xec, 0x08, 0xff, 0xd1, 0x48, 0x83, 0xc4, 0x08, 0xc3,
    ];
    // push %rbp; mov %rsp,%rbp; call *%rcx; pop %rbp; ret
    const FRAMED: [u8; 8] = [0x55, 0x48, 0x89, 0xe5, 0xff, 0xd1, 0x5d, 0xc3];
    let mut code = [0; 15];
    engine.read_code(entry, &mut code) && {
        let body = code.strip_prefix(&ENDBR64).unwrap_or(&code);
        body.starts_with(&ALIGNED) || body.starts_with(&FRAMED)
    }
}

/// A function of which only the entry is known: as far as its own jumps lead, and not into the next one.
fn of_unknown_extent(
    entry: TargetAddr,
    place: CodeRef,
    modules: &Modules,
    memory: &dyn darc_disasm::Memory,
) -> Result<FunctionCode, String> {
    let image = modules.get(place.module).image.as_ref();
    let limit = image.and_then(|image| image.limit_of(place.addr));
    let most = limit.map_or(MAX_UNKNOWN_EXTENT, |limit| limit.0 - place.addr.0);
    let limit = entry.0.saturating_add(most.min(MAX_UNKNOWN_EXTENT));
    darc_disasm::function_at(entry.0, limit, memory)
        .ok_or_else(|| format!("where the function at {entry} ends is not known"))
}

/// The ranges of the function that begins at a place: by symbol or unwind table.
fn extent(place: CodeRef, modules: &Modules) -> Vec<AddrRange> {
    let Some(image) = &modules.get(place.module).image else {
        return Vec::new();
    };
    let Some(function) = image.function_at(place.addr) else {
        return Vec::new();
    };
    let Some(range) = function.range() else {
        return Vec::new();
    };
    // A call into the middle of a symbol (an alternative entry) has the rest of it.
    let main = AddrRange {
        start: FileAddr(place.addr.0),
        end: range.end,
    };
    let ranges: Vec<AddrRange> = std::iter::once(main)
        .chain(function.cold_parts.iter().copied())
        .filter(|range| !range.is_empty())
        .collect();
    if is_sane(&ranges) { ranges } else { Vec::new() }
}

/// Sizes are whatever the file says, also together.
fn is_sane(ranges: &[AddrRange]) -> bool {
    let lengths = ranges.iter().map(AddrRange::len);
    lengths.fold(0, u64::saturating_add) <= MAX_FUNCTION
}

#[cfg(test)]
mod tests {
    use darc_disasm::{Memory, SiteKind, Target};
    use darc_symbols::Image;

    use super::*;
    use crate::session::assembled;

    #[test]
    fn lengths_that_wrap_are_not_sane() {
        let half = AddrRange::sized(FileAddr(0x1000), 1 << 63);
        assert!(!is_sane(&[half, half]));
        assert!(is_sane(&[AddrRange::sized(FileAddr(0x1000), 16)]));
    }

    /// A file's code where it was linked to.
    struct InFile<'a>(&'a Image);

    impl Memory for InFile<'_> {
        fn read(&self, addr: u64, buf: &mut [u8]) -> bool {
            let bytes = self.0.bytes_at(FileAddr(addr), buf.len() as u64);
            // A page ends where the file does not.
            let bytes = bytes.unwrap_or_default();
            buf[..bytes.len()].copy_from_slice(&bytes);
            !bytes.is_empty()
        }
    }

    #[test]
    fn a_function_of_unknown_extent_ends_at_the_next_one() {
        let text = ".text\n.globl a, b, c\n.type a,@function\n.type b,@function\n\
                    a: test %edi,%edi\njne b\nret\n.p2align 4\nb: call c\nret\n.p2align 4\nc: ret\n";
        let image = assembled::image(text, &["-static", "-Wl,-e,a"]);
        let mut modules = Modules::default();
        let module = modules.intern("/a", None, Some(image));
        let image = modules.get(module).image.as_ref().unwrap();
        let [a, b] = ["a", "b"].map(|name| image.symbol(name).unwrap());
        let memory = InFile(image);
        let place = CodeRef { module, addr: a };
        let code = of_unknown_extent(TargetAddr(a.0), place, &modules, &memory).unwrap();
        let sites = call_sites(&code, &memory).sites;
        let kinds: Vec<SiteKind> = sites.iter().map(|site| site.kind).collect();
        assert!(
            matches!(
                kinds[..],
                [SiteKind::TailJump { target: Target::Direct(to), .. }] if to == b.0
            ),
            "{kinds:x?}"
        );
    }
}
