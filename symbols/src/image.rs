//! One executable or library, read lazily.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use object::elf;

use crate::addr::{AddrRange, BuildId, FileAddr};
use crate::debugfile::{self, DebugSearch};
use crate::dwarf::QueryError;
use crate::elf::Elf;
use crate::error::Error;
use crate::functions::{Function, FunctionTable, SymbolSource};
use crate::futures::coroutines::{self, CoroutineFrame};
use crate::futures::{self, Body};
use crate::go::{self, GoFunction, GoTable};
use crate::inlined::{self, InlinedCopy};
use crate::landing_pads;
use crate::lines::{Frame, Lines, Statement};
use crate::matching::{self, Match};
use crate::package;
use crate::packed;
use crate::plt::{Slot, Slots};
use crate::ranges::Ranges;
use crate::spec::NameSpec;
use crate::start;
use crate::suggest;
use crate::symtab::{Symbol, SymbolTable, Version};
use crate::unwind::{self, UnwindRange};

/// A `PT_LOAD` segment: a part of the file, and the addresses it is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Offset of the first byte in the file.
    pub file_offset: u64,
    /// Bytes in the file.
    pub file_size: u64,
    /// Address of the first byte.
    pub addr: FileAddr,
    /// Bytes in memory; what the file does not have is zero.
    pub mem_size: u64,
    /// Whether it holds code.
    pub executable: bool,
}

/// How a file is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageKind {
    /// A program that must lie at its link-time addresses (`ET_EXEC`).
    Executable,
    /// A program that may lie anywhere: PIE and static-PIE.
    PositionIndependent,
    /// A shared library, the dynamic linker or the vdso.
    SharedLibrary,
}

/// One ELF file and what is known about its code.
pub struct Image {
    elf: Elf,
    pub(crate) link: Option<PathBuf>,
    build_id: Option<BuildId>,
    kind: ImageKind,
    search: DebugSearch,
    debug: OnceLock<Option<Elf>>,
    symbols: OnceLock<Vec<SymbolTable>>,
    functions: OnceLock<FunctionTable>,
    slots: OnceLock<Slots>,
    landing_pads: OnceLock<Vec<FileAddr>>,
    /// The unwind table, and what could not be read of it.
    unwind: OnceLock<(Vec<UnwindRange>, Option<String>)>,
    uncalled: OnceLock<Vec<AddrRange>>,
    /// What the unwind table describes, where that is most of the code.
    described: OnceLock<Option<Ranges>>,
    lines: OnceLock<Option<Mutex<Lines>>>,
    go: OnceLock<Option<GoTable>>,
    /// The command that installs its symbols, once somebody has asked.
    install: OnceLock<Option<String>>,
    warnings: Mutex<Vec<String>>,
}

/// More warnings than this about one file help nobody.
const MAX_WARNINGS: usize = 32;

impl Image {
    /// Reads the headers of an open file. `path` is shown in messages, names the module in look-ups, and tells
    /// (under the root of `search`) where a debug file may lie; it is not opened.
    ///
    /// # Errors
    /// Not a regular file, not an ELF file, of an unsupported kind, damaged, or not readable.
    pub fn open(file: File, path: &Path, search: &DebugSearch) -> Result<Image, Error> {
        Ok(Image::new(Elf::open(file, path)?, search))
    }

    /// The same for a file that is in memory, such as the vdso.
    ///
    /// # Errors
    /// As [`Image::open`].
    pub fn from_bytes(bytes: Vec<u8>, path: &Path, search: &DebugSearch) -> Result<Image, Error> {
        Ok(Image::new(Elf::from_bytes(bytes, path)?, search))
    }

    fn new(elf: Elf, search: &DebugSearch) -> Image {
        Image {
            build_id: elf.build_id(),
            kind: kind(&elf),
            link: None,
            search: search.clone(),
            elf,
            debug: OnceLock::new(),
            symbols: OnceLock::new(),
            functions: OnceLock::new(),
            slots: OnceLock::new(),
            landing_pads: OnceLock::new(),
            unwind: OnceLock::new(),
            uncalled: OnceLock::new(),
            described: OnceLock::new(),
            lines: OnceLock::new(),
            go: OnceLock::new(),
            install: OnceLock::new(),
            warnings: Mutex::new(Vec::new()),
        }
    }

    /// The path it was opened with.
    pub(crate) fn real_path(&self) -> &Path {
        self.elf.path()
    }

    /// The build-id, if the linker wrote one.
    pub fn build_id(&self) -> Option<&BuildId> {
        self.build_id.as_ref()
    }

    /// How it is loaded.
    pub fn kind(&self) -> ImageKind {
        self.kind
    }

    /// The entry point of the file's header; 0 in most libraries.
    pub fn entry(&self) -> FileAddr {
        FileAddr(self.elf.entry)
    }

    /// Where `main` begins, by what the program's start code hands to the C library; for programs without a symbol table.
    pub fn main(&self) -> Option<FileAddr> {
        let code = self.bytes_at(self.entry(), start::LENGTH)?;
        let found = start::main(&code, self.elf.entry).map(FileAddr)?;
        self.is_code(found).then_some(found)
    }

    /// The loaded segments, sorted by address.
    pub fn segments(&self) -> &[Segment] {
        &self.elf.segments
    }

    /// The address of a byte of the file, where an executable segment holds it.
    pub fn addr_of_offset(&self, file_offset: u64) -> Option<FileAddr> {
        let holds = |s: &&Segment| {
            file_offset >= s.file_offset && file_offset - s.file_offset < s.file_size
        };
        let mut segments: Vec<&Segment> = self.segments().iter().filter(holds).collect();
        // One page of a file may belong to two segments; code is what is asked for.
        segments.sort_by_key(|segment| !segment.executable);
        let segment = segments.first()?;
        segment
            .addr
            .0
            .checked_add(file_offset - segment.file_offset)
            .map(FileAddr)
    }

    /// Whether the address lies in an executable segment.
    pub fn is_code(&self, addr: FileAddr) -> bool {
        self.elf.is_code(addr)
    }

    /// Up to `len` bytes at an address, as they are in the file.
    pub fn bytes_at(&self, addr: FileAddr, len: u64) -> Option<Vec<u8>> {
        self.elf.read_at(addr.0, len)
    }

    /// Where a section lies and what it holds, as far as the file has it. For unwinding, which needs
    /// `.eh_frame` and `.text`.
    pub fn section(&self, name: &str) -> Option<(AddrRange, Vec<u8>)> {
        let section = self.elf.section(name)?;
        let data = self.elf.section_data(section).ok().flatten()?;
        Some((AddrRange::sized(FileAddr(section.addr), section.size), data))
    }

    /// Whether it has a section of this name.
    #[must_use]
    pub fn has_section(&self, name: &str) -> bool {
        self.elf.section(name).is_some()
    }

    /// Whether the Go tool chain linked it: its runtime walks and moves stacks.
    pub fn is_go(&self) -> bool {
        let sections = [".go.buildinfo", ".gopclntab", ".note.go.buildid"];
        sections.iter().any(|name| self.elf.section(name).is_some())
            || self.elf.note(b"Go", 4).is_some()
    }

    /// The version of the Go tool chain that built it, such as `go1.24.2`, where it says so.
    pub fn go_version(&self) -> Option<String> {
        go::version(&self.elf)
    }

    /// The functions of a Go program; none where they are not known.
    pub fn go_functions(&self) -> impl Iterator<Item = GoFunction> + '_ {
        self.go_table().into_iter().flat_map(GoTable::functions)
    }

    /// Those of these names.
    pub fn go_functions_named(&self, names: &[&str]) -> Vec<GoFunction> {
        self.go_table()
            .map(|table| table.named(names))
            .unwrap_or_default()
    }

    fn go_table(&self) -> Option<&GoTable> {
        self.go.get_or_init(|| GoTable::read(&self.elf)).as_ref()
    }

    /// Whether nothing names all functions: no full symbol table in the file or in a debug file, and no table of Go's.
    pub fn is_stripped(&self) -> bool {
        let full = [SymbolSource::Symtab, SymbolSource::GoTable];
        let mut tables = self.symbol_tables().iter();
        !tables.any(|table| full.contains(&table.source))
    }

    /// The dynamic linker that the file asks for; `None` for libraries and static programs.
    pub fn interpreter(&self) -> Option<PathBuf> {
        let header = self.elf.header(elf::PT_INTERP)?;
        let bytes = self.elf.read(header.offset, header.size.min(4096)).ok()?;
        let end = bytes
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(bytes.len());
        Some(PathBuf::from(OsStr::from_bytes(&bytes[..end])))
    }

    /// All functions, sorted by address.
    pub fn functions(&self) -> &[Function] {
        &self.function_table().functions
    }

    /// The function that contains an address, cold parts included.
    pub fn function_at(&self, addr: FileAddr) -> Option<&Function> {
        self.function_table().at(addr)
    }

    /// Where a function that begins at an address, and whose size nothing tells, has ended for certain: at the next function,
    /// or behind the section. `None` where there is no code.
    pub fn limit_of(&self, addr: FileAddr) -> Option<FileAddr> {
        self.function_table().limit(&self.elf, addr)
    }

    /// Where in a range the unwinder goes on after an exception.
    pub fn landing_pads(&self, range: AddrRange) -> &[FileAddr] {
        let find = || landing_pads::find(&self.elf, &self.unwind().0);
        let pads = self.landing_pads.get_or_init(find);
        let from = pads.partition_point(|pad| *pad < range.start);
        let to = pads.partition_point(|pad| *pad < range.end);
        &pads[from..to]
    }

    /// Whether a call may arrive at an address, as far as the file tells: not where its unwind table says that something else
    /// than a return address is on top of the stack.
    pub fn is_called_at(&self, addr: FileAddr) -> bool {
        let uncalled = self.uncalled.get_or_init(|| {
            let uncalled = self.unwind().0.iter().map(|found| found.uncalled);
            let mut uncalled: Vec<_> = uncalled.filter(|range| !range.is_empty()).collect();
            uncalled.sort_unstable();
            uncalled
        });
        let after = uncalled.partition_point(|range| range.start <= addr);
        let before = after.checked_sub(1).map(|at| uncalled[at]);
        let is_uncalled = before.is_some_and(|range| addr < range.end);
        !is_uncalled
    }

    /// Whether the unwind table has an entry that ends at an address: nothing of the code before it is behind that.
    pub fn ends_at(&self, addr: FileAddr) -> bool {
        let (ranges, _) = self.unwind();
        let after = ranges.partition_point(|found| found.range.start < addr);
        let before = after.checked_sub(1).map(|at| ranges[at].range);
        before.is_some_and(|before| before.end == addr)
    }

    /// Whether frames of the code at an address are of a kind that is known: the unwind table describes it, or leaves out a
    /// quarter of the file's code and more, as that of a static program of which some parts have a table does. What it
    /// leaves out of a file that it else describes no compiler of C has made; such code may look at its callers' return
    /// addresses, or keep none (the built-in functions of V8).
    pub fn is_described(&self, addr: FileAddr) -> bool {
        let described = self.described.get_or_init(|| {
            let ranges = self.unwind().0.iter();
            let described = Ranges::new(ranges.map(|found| found.range));
            (described.bytes() / 3 > self.elf.code_bytes() / 4).then_some(described)
        });
        let is_in = |described: &Ranges| described.around(addr).is_some();
        described.as_ref().is_none_or(is_in) || self.elf.in_plt(addr)
    }

    fn unwind(&self) -> &(Vec<UnwindRange>, Option<String>) {
        self.unwind.get_or_init(|| unwind::ranges(&self.elf))
    }

    fn function_table(&self) -> &FunctionTable {
        self.functions.get_or_init(|| {
            let (ranges, warning) = self.unwind();
            warning
                .iter()
                .for_each(|warning| self.warn(warning.clone()));
            FunctionTable::build(&self.elf, self.symbol_tables(), ranges)
        })
    }

    /// The name of the imported function that the PLT stub at (or around) an address jumps to. A function of the program that
    /// does nothing else is no stub.
    pub fn plt_name(&self, addr: FileAddr) -> Option<String> {
        let is_named = |function: &Function| function.addr == addr && function.raw_name().is_some();
        let is_function = !self.elf.in_plt(addr) && self.function_at(addr).is_some_and(is_named);
        (!is_function).then(|| self.jumps_to_import(addr)).flatten()
    }

    /// The name of the imported function that the code at (or around) an address does nothing but jump to: a PLT stub, or a function
    /// of the program.
    pub fn jumps_to_import(&self, addr: FileAddr) -> Option<String> {
        self.slot_name(self.slots().stub(&self.elf, addr)?)
    }

    /// The name of the function whose address the dynamic linker puts into a slot of the global offset table, as used by
    /// `call *slot(%rip)`.
    pub fn got_name(&self, slot: FileAddr) -> Option<String> {
        self.slot_name(self.slots().slot(slot)?)
    }

    fn slot_name(&self, slot: &Slot) -> Option<String> {
        match slot {
            Slot::Symbol(name) => Some(name.as_str().to_owned()),
            Slot::Resolver(addr) => self.function_at(*addr)?.raw_name().map(str::to_owned),
        }
    }

    fn slots(&self) -> &Slots {
        self.slots.get_or_init(|| {
            let dynsym = self
                .symbol_tables()
                .iter()
                .find(|table| table.source == SymbolSource::Dynsym);
            Slots::read(&self.elf, dynsym)
        })
    }

    /// The address of a defined symbol of exactly this raw name, code or data: of several versions the one that new programs use.
    pub fn symbol(&self, exact_name: &str) -> Option<FileAddr> {
        let find = |version| {
            // The dynamic table is the smaller one.
            self.symbol_tables().iter().rev().find_map(|table| {
                table.find(exact_name, |s| {
                    s.is_defined() && s.kind != elf::STT_TLS && table.name(s).version == version
                })
            })
        };
        let found = find(Version::Default).or_else(|| find(Version::Old))?;
        Some(FileAddr(found.addr))
    }

    /// Whether the raw name of a symbol, defined or imported, begins so.
    pub fn has_symbol_with(&self, prefix: &str) -> bool {
        // The dynamic table is the smaller one.
        let mut tables = self.symbol_tables().iter().rev();
        tables.any(|table| table.has_name_with(prefix))
    }

    /// Whether it gets the symbol of exactly this raw name from another file.
    pub fn imports(&self, exact_name: &str) -> bool {
        let mut tables = self.symbol_tables().iter();
        let dynamic = tables.find(|table| table.source == SymbolSource::Dynsym);
        dynamic.is_some_and(|table| table.find(exact_name, |s| !s.is_defined()).is_some())
    }

    /// The data symbol that covers an address: its raw name, and how far into it the address is.
    pub fn data_at(&self, addr: FileAddr) -> Option<(String, u64)> {
        let covers = |symbol: &Symbol| {
            let inside = addr.0.checked_sub(symbol.addr);
            symbol.kind == elf::STT_OBJECT
                && symbol.is_defined()
                && inside.is_some_and(|inside| inside < symbol.size)
        };
        self.symbol_tables().iter().find_map(|table| {
            let symbol = table.iter().find(covers)?;
            let name = table.name(&symbol).as_str().to_owned();
            (!name.is_empty()).then_some((name, addr.0 - symbol.addr))
        })
    }

    pub(crate) fn symbol_tables(&self) -> &[SymbolTable] {
        self.symbols.get_or_init(|| {
            let read = |elf: &Elf, source| {
                SymbolTable::read(elf, source).unwrap_or_else(|error| {
                    self.warn(format!("{error}; symbol table ignored"));
                    None
                })
            };
            let full = read(&self.elf, SymbolSource::Symtab).or_else(|| {
                self.debug_file()
                    .and_then(|debug| read(debug, SymbolSource::Symtab))
            });
            let packed = || {
                let unpacked = packed::symbols(&self.elf)?;
                let unpacked = unpacked.map_err(|warning| self.warn(warning)).ok()?;
                read(&unpacked, SymbolSource::Symtab)
            };
            let go = || {
                let (names, functions) = self.go_table()?.symbols();
                Some(SymbolTable::of(names, &functions, SymbolSource::GoTable))
            };
            full.or_else(packed)
                .or_else(go)
                .into_iter()
                .chain(read(&self.elf, SymbolSource::Dynsym))
                .collect()
        })
    }

    /// The command that installs the file's symbols, where the package manager's files tell it.
    pub(crate) fn install(&self) -> Option<String> {
        let find = || package::install_symbols(&self.search, self.real_path(), self.build_id());
        self.install.get_or_init(find).clone()
    }

    /// The build-id by which a debug file could be fetched for the names that the file has not, and no file here has.
    /// What is looked for later is looked for anew.
    #[must_use]
    pub fn lacks_names(&self) -> Option<&BuildId> {
        let here = |name| self.elf.section(name).is_some();
        let own = here(".symtab") || here(".gnu_debugdata") || self.go_table().is_some();
        let id = self.build_id().filter(|_| !own)?;
        let found = debugfile::find(&self.elf, &self.search, &mut |_| ());
        found.is_none().then_some(id)
    }

    fn debug_file(&self) -> Option<&Elf> {
        let find = || debugfile::find(&self.elf, &self.search, &mut |warning| self.warn(warning));
        self.debug.get_or_init(find).as_ref()
    }

    /// The source position of an address, innermost inlined function first. The last frame is the function that
    /// contains the address, called as in [`Image::function_at`] where a symbol covers it. Without debugging
    /// information it is the only one, without file and line but in Go programs; empty where nothing is known.
    pub fn frames(&self, addr: FileAddr) -> Vec<Frame> {
        let frames = self
            .with_lines(|lines| lines.frames(addr))
            .unwrap_or_default();
        let around = self.function_at(addr);
        let symbol = around
            .filter(|function| function.raw_name().is_some())
            .map(|function| self.name_of(function));
        if frames.is_empty() {
            let name = around.map(|function| self.name_of(function));
            let (file, line) = self.go_table().and_then(|table| table.line(addr)).unzip();
            return name
                .map(|function| Frame {
                    function,
                    file,
                    line,
                })
                .into_iter()
                .collect();
        }
        let last = frames.len() - 1;
        let named = frames.into_iter().enumerate().map(|(index, frame)| {
            let name = if index == last {
                symbol.clone().or(frame.name)
            } else {
                frame.name
            };
            let function = name.unwrap_or_else(|| "?".to_owned());
            Frame {
                function,
                file: frame.file,
                line: frame.line,
            }
        });
        named.collect()
    }

    /// Runs a query of the debugging information; a failure becomes a warning.
    pub(crate) fn with_lines<T>(
        &self,
        query: impl FnOnce(&mut Lines) -> Result<T, QueryError>,
    ) -> Option<T> {
        let lines = self.lines.get_or_init(|| {
            let own = self
                .elf
                .section(".debug_info")
                .filter(|section| section.kind != elf::SHT_NOBITS);
            let elf = if own.is_some() {
                &self.elf
            } else {
                self.debug_file()?
            };
            elf.section(".debug_info")?;
            let lines = Lines::load(elf, &self.search, &mut |warning| self.warn(warning));
            lines
                .inspect_err(|error| self.warn(error.clone()))
                .ok()
                .map(Mutex::new)
        });
        // A panic inside of a query leaves caches that are filled or not.
        let mut lines = lines
            .as_ref()?
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let result = query(&mut lines);
        result
            .inspect_err(|error| {
                self.warn(format!(
                    "{}: damaged debugging information ({error}), used in part",
                    self.shown_path()
                ));
            })
            .ok()
    }

    /// Where the code of a source line begins; of the next line that has any, if this one has none.
    pub(crate) fn statements(&self, file: &str, line: u32) -> Vec<Statement> {
        let found = self.with_lines(|lines| lines.statements(file, line));
        let mut statements = found.unwrap_or_default();
        statements.retain(|statement| self.is_code(statement.addr));
        statements.sort();
        statements.dedup();
        statements
    }

    /// Whether there is debugging information with source lines.
    pub fn has_lines(&self) -> bool {
        self.with_lines(|_| Ok(())).is_some()
    }

    /// The functions that a name means, the best ones only; see [`crate::resolve`] for the rules.
    pub fn find(&self, spec: &NameSpec) -> Vec<Match<'_>> {
        matching::find(self, spec)
    }

    /// The clones that the optimizer made of the function at an address (`.isra.0`, `.constprop.0`, `.part.0`): calls
    /// may go to them in its stead.
    pub fn clones(&self, addr: FileAddr) -> Vec<&Function> {
        let Some(function) = self.function_at(addr) else {
            return Vec::new();
        };
        let names: Vec<&str> = function.names().collect();
        let is_clone = |other: &&Function| {
            let is_clone = |name: &&str| matching::renamed(name).is_none();
            let mut symbols = other
                .names()
                .filter(is_clone)
                .filter_map(matching::clone_of);
            other.addr != function.addr && symbols.any(|original| names.contains(&original))
        };
        self.functions().iter().filter(is_clone).collect()
    }

    /// Names that a mistyped name may have meant, nearest first.
    pub fn suggest(&self, name: &str, max: usize) -> Vec<String> {
        suggest::suggest(&[self], name, max)
    }

    /// The places into which a function of this name was inlined.
    pub fn inlined_into(&self, name: &str) -> Vec<InlinedCopy> {
        self.with_lines(|lines| inlined::copies(&lines.info, name))
            .unwrap_or_default()
    }

    /// The functions that were inlined into the one at an address, by its own calls; those with most of its code first. Nothing
    /// where the debugging information does not tell.
    pub fn inlined_in(&self, addr: FileAddr) -> Option<Vec<String>> {
        let function = self.function_at(addr)?;
        let mut code = vec![function.range()?];
        code.extend(&function.cold_parts);
        self.with_lines(|lines| lines.copies_in(&code)).flatten()
    }

    /// Whether the Rust compiler made the function at an address of an async function or block, and the futures that it polls then;
    /// nothing where the debugging information does not tell.
    pub fn body(&self, addr: FileAddr) -> Option<Body> {
        self.with_lines(|lines| futures::body(&lines.info, addr))
            .flatten()
    }

    /// The frame of the coroutine of C++ that the function at an address gets; nothing where the debugging information does not tell
    /// it in a known way.
    pub fn coroutine(&self, addr: FileAddr) -> Option<CoroutineFrame> {
        self.with_lines(|lines| coroutines::frame(&lines.info, addr))
            .flatten()
    }

    /// What was damaged, missing or left out so far. Each is one line.
    pub fn warnings(&self) -> Vec<String> {
        self.warnings
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn warn(&self, warning: String) {
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        if warnings.len() < MAX_WARNINGS && !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }

    fn shown_path(&self) -> String {
        crate::demangle::escape(&self.path().to_string_lossy())
    }
}

fn kind(elf: &Elf) -> ImageKind {
    if elf.file_type == elf::ET_EXEC {
        return ImageKind::Executable;
    }
    let pie = elf
        .dynamic()
        .iter()
        .any(|&(tag, value)| tag == elf::DT_FLAGS_1.0 && value & elf::DF_1_PIE.0 != 0);
    // Old linkers do not set the flag; a program asks for a dynamic linker. So does libc, which can be run.
    let has_soname = elf
        .dynamic()
        .iter()
        .any(|&(tag, _)| tag == elf::DT_SONAME.0);
    if pie || (elf.header(elf::PT_INTERP).is_some() && !has_soname) {
        ImageKind::PositionIndependent
    } else {
        ImageKind::SharedLibrary
    }
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image")
            .field("path", &self.path())
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}
