//! The machine code of a function of the target: its true extent, its call sites.

use std::collections::HashMap;
use std::sync::Arc;

use darc_disasm::{
    CallSite, CodePart, FunctionCode, Memory, SkippedSite, call_sites, direct_jumps,
};
use darc_symbols::{AddrRange, FileAddr, Image};
use darc_tracer::addr::TargetAddr;
use darc_tracer::engine::{Engine, EngineKind};

use crate::entry_points;
use crate::modules::{CodeRef, Modules};
use crate::restartable;

/// A larger function is taken for a damaged symbol.
const MAX_FUNCTION: u64 = 8 << 20;
/// How far a function without known extent is followed.
const MAX_UNKNOWN_EXTENT: u64 = 64 << 10;

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
        engine: &(impl Engine + ?Sized),
    ) -> Result<Arc<Scanned>, String> {
        if let Some(known) = self.by_entry.get(&entry) {
            return Ok(Arc::clone(known));
        }
        let memory = Unpatched(engine);
        // Breakpoints always fit.
        let code = match engine.kind() {
            EngineKind::Jump => with_surroundings(entry, modules, &memory)?,
            EngineKind::Int3 => read(entry, modules, &memory)?,
        };
        let found = call_sites(&code, &memory);
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

/// The code of the function that begins at `entry`, with the filling behind it and all that comes into it from elsewhere.
///
/// # Errors
/// Why its code cannot be had, for people.
pub fn with_surroundings(
    entry: TargetAddr,
    modules: &Modules,
    memory: &dyn Memory,
) -> Result<FunctionCode, String> {
    let code = read(entry, modules, memory)?;
    let own = WithoutBreakpoints { memory, modules };
    let code = code.with_filling(&own, |end| limit(end, modules));
    tell_entrances(code, modules, memory)
}

/// Where something else begins behind the end of a part, as far as that is known.
fn limit(end: u64, modules: &Modules) -> Option<u64> {
    // The place before it is in the module for certain.
    let place = modules.place(TargetAddr(end.checked_sub(1)?))?;
    let image = modules.get(place.module).image.as_ref()?;
    Some(end - 1 + (image.limit_of(place.addr)?.0 - place.addr.0))
}

/// Looks who comes into the function, so that nothing is moved away from under it: code of others, and unwinders. Sequences that
/// must not be left may be entered anywhere.
fn tell_entrances(
    code: FunctionCode,
    modules: &Modules,
    memory: &dyn Memory,
) -> Result<FunctionCode, String> {
    let Some(place) = modules.place(TargetAddr(code.entry())) else {
        return Ok(code);
    };
    let module = place.module;
    let image = modules.get(module).image.as_ref();
    let pads = image.into_iter().flat_map(|image| {
        let parts = extent(place, modules).into_iter();
        parts.flat_map(|part| image.landing_pads(part).iter().copied())
    });
    let entrances = entry_points::inside(modules, place)?
        .into_iter()
        .chain(pads);
    let located = entrances.filter_map(|addr| Some(modules.locate(CodeRef { module, addr })?.0));
    let restartable = restartable::bytes(&code, module, modules, memory);
    Ok(code.with_entrances(located.chain(restartable).collect()))
}

/// The target's memory without the engine's patches.
pub struct Unpatched<'a, E: ?Sized = dyn Engine>(pub &'a E);

impl<E: Engine + ?Sized> Memory for Unpatched<'_, E> {
    fn read(&self, addr: u64, buffer: &mut [u8]) -> bool {
        self.0.read_code(TargetAddr(addr), buffer)
    }
}

/// Code as it is but for breakpoints of somebody's, where the file has other bytes: with them what is behind would be decoded as
/// something else.
struct WithoutBreakpoints<'a> {
    memory: &'a dyn Memory,
    modules: &'a Modules,
}

impl Memory for WithoutBreakpoints<'_> {
    fn read(&self, addr: u64, buffer: &mut [u8]) -> bool {
        const INT3: u8 = 0xcc;
        let read = self.memory.read(addr, buffer);
        if buffer.contains(&INT3)
            && let Some(place) = self.modules.place(TargetAddr(addr))
            && let Some(image) = &self.modules.get(place.module).image
            && let Some(own) = image.bytes_at(place.addr, buffer.len() as u64)
        {
            for (byte, own) in buffer.iter_mut().zip(own) {
                if *byte == INT3 {
                    *byte = own;
                }
            }
        }
        read
    }
}

fn read(entry: TargetAddr, modules: &Modules, memory: &dyn Memory) -> Result<FunctionCode, String> {
    let memory = &WithoutBreakpoints { memory, modules };
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
    if modules.is_made(place.module) {
        return Err(
            "the program has made this code while it runs, and may move or rewrite it at any time"
                .to_owned(),
        );
    }
    let image = module.image.as_ref();
    if image.is_some_and(|image| !image.is_described(place.addr)) {
        return Err(
            "the unwind table of its file describes other functions and not this one, whose frames may be of another kind"
                .to_owned(),
        );
    }
    let parts = extent(place, modules);
    if parts.is_empty() {
        return of_unknown_extent(entry, place, modules, memory);
    }
    let mut ends = Vec::new();
    let parts = parts
        .into_iter()
        .map(|range| {
            let start = modules
                .locate(CodeRef {
                    module: place.module,
                    addr: range.start,
                })
                .ok_or_else(|| format!("{} is not loaded", module.path))?;
            if image.is_some_and(|image| image.ends_at(range.end)) {
                ends.push(start.0.wrapping_add(range.len()));
            }
            let mut bytes = vec![0; range.len() as usize];
            match memory.read(start.0, &mut bytes) {
                true => Ok(CodePart {
                    start: start.0,
                    bytes,
                }),
                false => Err(format!("its code at {start} cannot be read")),
            }
        })
        .collect::<Result<Vec<_>, String>>()?;
    FunctionCode::new(parts)
        .map(|code| code.with_ends(ends))
        .ok_or_else(|| "its symbol describes no sensible piece of code".to_owned())
}

/// A function of which only the entry is known: as far as its own jumps lead, and not into the next one.
fn of_unknown_extent(
    entry: TargetAddr,
    place: CodeRef,
    modules: &Modules,
    memory: &dyn Memory,
) -> Result<FunctionCode, String> {
    let image = modules.get(place.module).image.as_ref();
    let limit = image.and_then(|image| image.limit_of(place.addr));
    let most = limit.map_or(MAX_UNKNOWN_EXTENT, |limit| limit.0 - place.addr.0);
    let limit = entry.0.saturating_add(most.min(MAX_UNKNOWN_EXTENT));
    darc_disasm::function_at(entry.0, limit, memory)
        .ok_or_else(|| format!("where the function at {entry} ends is not known"))
}

/// Adds the parts of a function that the compiler has put elsewhere and that have no name (`strip`), or none that tells whose
/// they are: it jumps there, and the unwind table says that no call does.
fn add_nameless_parts(image: &Image, ranges: &mut Vec<AddrRange>) {
    /// Compilers make one.
    const MOST_PARTS: usize = 8;
    let mut looked_at = 0;
    while let Some(&range) = ranges.get(looked_at) {
        looked_at += 1;
        let code = image.bytes_at(range.start, range.len().min(MAX_FUNCTION));
        for (_, to) in direct_jumps(&code.unwrap_or_default(), range.start.0) {
            let to = FileAddr(to);
            if ranges.len() > MOST_PARTS || ranges.iter().any(|range| range.contains(to)) {
                continue;
            }
            let part = image.function_at(to);
            let part = part.filter(|part| !image.is_called_at(part.addr));
            let part = part.and_then(|part| part.range());
            ranges.extend(part.filter(|part| part.contains(to)));
        }
    }
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
    let mut ranges: Vec<AddrRange> = std::iter::once(main)
        .chain(function.cold_parts.iter().copied())
        .filter(|range| !range.is_empty())
        .collect();
    add_nameless_parts(image, &mut ranges);
    if is_sane(&ranges) { ranges } else { Vec::new() }
}

/// Sizes are whatever the file says, also together.
fn is_sane(ranges: &[AddrRange]) -> bool {
    let lengths = ranges.iter().map(AddrRange::len);
    lengths.fold(0, u64::saturating_add) <= MAX_FUNCTION
}

#[cfg(test)]
mod tests {
    use darc_disasm::{SiteKind, Target};
    use darc_symbols::Image;

    use super::*;
    use crate::assembled;

    #[test]
    fn lengths_that_wrap_are_not_sane() {
        let half = AddrRange::sized(FileAddr(0x1000), 1 << 63);
        assert!(!is_sane(&[half, half]));
        assert!(is_sane(&[AddrRange::sized(FileAddr(0x1000), 16)]));
    }

    #[test]
    fn a_part_without_a_name_belongs_to_who_jumps_there() {
        let text = ".text\n.globl a, b\n.type a,@function\n.type b,@function\n\
            a: .cfi_startproc\npush %rbx\n.cfi_def_cfa_offset 16\ntest %edi,%edi\njne cold+1\n\
            1: pop %rbx\n.cfi_def_cfa_offset 8\nret\n.cfi_endproc\n.size a,.-a\n\
            b: .cfi_startproc\njmp a\n.cfi_endproc\n.size b,.-b\n\
            cold: .cfi_startproc\n.cfi_def_cfa_offset 16\nnop\ncall b\njmp 1b\n.cfi_endproc\n";
        let image = assembled::image(text, &["-static", "-Wl,-e,b", "-s"]);
        let mut modules = Modules::default();
        let functions: Vec<FileAddr> = image.functions().iter().map(|it| it.addr).collect();
        let module = modules.intern("/a", None, Some(image));
        let parts = |addr| extent(CodeRef { module, addr }, &modules).len();
        assert_eq!(
            functions.into_iter().map(parts).collect::<Vec<_>>(),
            [2, 1, 1]
        );
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

    /// A file's code, with a breakpoint at an address.
    struct Watched<'a>(InFile<'a>, u64);

    impl Memory for Watched<'_> {
        fn read(&self, addr: u64, buf: &mut [u8]) -> bool {
            let read = self.0.read(addr, buf);
            let at = self.1.wrapping_sub(addr) as usize;
            if let Some(byte) = buf.get_mut(at) {
                *byte = 0xcc;
            }
            read
        }
    }

    #[test]
    fn behind_a_breakpoint_of_somebody_else_the_code_is_what_it_was() {
        let text = ".text\n.globl a, b\n.type a,@function\n\
            a: mov %rsp,%rbp\ncall *%rax\nret\n.size a,.-a\n.p2align 4\nb: mov %rsp,%rbp\nret\n";
        let image = assembled::image(text, &["-static", "-Wl,-e,a"]);
        let [a, b] = ["a", "b"].map(|name| image.symbol(name).unwrap());
        let modules = Modules::of_file(image, 0);
        let image = modules.get(modules.loaded()[0]).image.as_ref().unwrap();
        for entry in [a, b].map(|addr| TargetAddr(addr.0)) {
            let own = with_surroundings(entry, &modules, &InFile(image)).unwrap();
            let watched = Watched(InFile(image), entry.0);
            assert_eq!(with_surroundings(entry, &modules, &watched), Ok(own));
        }
    }

    #[test]
    fn a_restartable_sequence_is_left_alone() {
        let text = ".text\n.globl a, b\n.type a,@function\n\
            a: call b\n1: mov %rdi,(%rsi)\nadd $1,%rdi\n2: call b\nret\n.size a,.-a\n\
            .long 0x53053053\n3: ud2\nb: ret\n\
            .section __rseq_cs,\"aw\"\n.balign 32\n.long 0,0\n.quad 1b,2b-1b,3b\n";
        let image = assembled::image(text, &["-static", "-Wl,-e,a"]);
        let a = image.symbol("a").unwrap();
        let modules = Modules::of_file(image, 0);
        let module = modules.loaded()[0];
        let image = modules.get(module).image.as_ref().unwrap();
        let code = with_surroundings(TargetAddr(a.0), &modules, &InFile(image)).unwrap();
        // The first call has five bytes, the sequence seven.
        let expected: Vec<u64> = (a.0 + 5..a.0 + 12).collect();
        assert_eq!(code.entrances(), expected);
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
