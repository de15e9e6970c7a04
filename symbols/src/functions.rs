//! The functions of one file: symbols, aliases, split-off cold parts, and ranges from the unwind table.

use std::collections::HashMap;

use object::elf;

use crate::addr::{AddrRange, FileAddr};
use crate::demangle::demangle;
use crate::elf::Elf;
use crate::symtab::{Name, SymbolTable, Version};
use crate::unwind::UnwindRange;

/// Where a function is known from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SymbolSource {
    /// The full symbol table, of the file or of its debug file.
    Symtab,
    /// The dynamic symbol table: exported functions only.
    Dynsym,
    /// The unwind table: a range without a name.
    UnwindTable,
}

/// What stands at a function's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionKind {
    /// The function's code.
    Code,
    /// `STT_GNU_IFUNC`: code that runs once, in the dynamic linker, and returns the address of the real function.
    IfuncResolver,
}

/// One function of one file.
#[derive(Clone)]
pub struct Function {
    /// Entry.
    pub addr: FileAddr,
    /// Bytes from the entry on: of the symbol, else of the unwind table; `None` when neither says it.
    pub size: Option<u64>,
    /// Other ranges of the same function, which the compiler moved away (`name.cold`).
    pub cold_parts: Vec<AddrRange>,
    /// Where it is known from.
    pub source: SymbolSource,
    /// What the address is.
    pub kind: FunctionKind,
    /// The unwind table names a language-specific data area for it: exceptions may be caught or cleaned up in it.
    pub has_landing_pads: bool,
    name: Option<Name>,
    aliases: Vec<Name>,
}

impl Function {
    /// The symbol as the linker knows it, without version; `None` for a range of the unwind table.
    pub fn raw_name(&self) -> Option<&str> {
        self.name.as_ref().map(Name::as_str)
    }

    /// Other symbols at the same address.
    pub fn aliases(&self) -> impl Iterator<Item = &str> {
        self.aliases.iter().map(Name::as_str)
    }

    /// All symbols at the address, the preferred one first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.raw_name().into_iter().chain(self.aliases())
    }

    /// As [`Function::names`], with the callers that each serves.
    pub(crate) fn symbols(&self) -> impl Iterator<Item = (&str, Version)> {
        self.name
            .iter()
            .chain(&self.aliases)
            .map(|name| (name.as_str(), name.version))
    }

    /// The name for people. A function without a symbol is called by its address in the file, `sub_401000`.
    pub fn demangled(&self) -> String {
        self.raw_name()
            .map_or_else(|| format!("sub_{:x}", self.addr), demangle)
    }

    /// Entry to end, without the cold parts, where the end is known.
    pub fn range(&self) -> Option<AddrRange> {
        self.size.map(|size| AddrRange::sized(self.addr, size))
    }
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("Function");
        out.field("addr", &self.addr)
            .field("size", &self.size)
            .field("name", &self.raw_name());
        out.field("cold_parts", &self.cold_parts)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

/// A symbol that may be a function.
struct Found {
    addr: u64,
    size: u64,
    name: Name,
    source: SymbolSource,
    local: bool,
    typed: bool,
    ifunc: bool,
    /// Index of the `STT_FILE` symbol before it, by which statics of the same name are told apart.
    file: u32,
}

/// Functions sorted by address, and an index from addresses to them.
#[derive(Default)]
pub(crate) struct FunctionTable {
    pub(crate) functions: Vec<Function>,
    /// Every range of every function, sorted by start.
    index: Vec<Indexed>,
}

struct Indexed {
    range: AddrRange,
    function: u32,
    /// The largest end of this range and all before it: where a search backwards may stop.
    max_end: FileAddr,
}

/// Functions nest at most this deep (labels with sizes inside hand-written assembly).
const MAX_NESTING: usize = 64;

impl FunctionTable {
    pub(crate) fn build(
        elf: &Elf,
        tables: &[SymbolTable],
        unwind: &[UnwindRange],
    ) -> FunctionTable {
        let found: Vec<Found> = tables
            .iter()
            .flat_map(|table| candidates(elf, table))
            .collect();
        let (cold, mut found): (Vec<Found>, Vec<Found>) = found
            .into_iter()
            .partition(|symbol| cold_base(symbol.name.as_str()).is_some());
        found.sort_by(|a, b| (a.addr, preference(a)).cmp(&(b.addr, preference(b))));
        let files: HashMap<u64, u32> = found
            .iter()
            .filter(|symbol| symbol.local)
            .map(|s| (s.addr, s.file))
            .collect();
        let mut functions = group(found);
        attach_cold_parts(&mut functions, &files, cold);
        functions.sort_by_key(|function| function.addr);
        apply_unwind(&mut functions, unwind);
        let mut table = FunctionTable {
            index: index(elf, &functions),
            functions,
        };
        table.add_unnamed(elf, unwind);
        table
    }

    /// The function that contains an address, the innermost if they nest.
    pub(crate) fn at(&self, addr: FileAddr) -> Option<&Function> {
        let end = self
            .index
            .partition_point(|entry| entry.range.start <= addr);
        let before = self.index[..end].iter().rev().take(MAX_NESTING);
        let found = before
            .take_while(|entry| entry.max_end > addr)
            .find(|entry| entry.range.contains(addr))?;
        self.functions.get(found.function as usize)
    }

    /// Adds the ranges of the unwind table that lie in no known function and in no PLT.
    fn add_unnamed(&mut self, elf: &Elf, unwind: &[UnwindRange]) {
        let plt: Vec<AddrRange> = elf
            .sections
            .iter()
            .filter(|s| s.name.starts_with(".plt"))
            .map(|s| AddrRange::sized(FileAddr(s.addr), s.size))
            .collect();
        let mut last_end = FileAddr(0);
        let unnamed: Vec<Function> = unwind
            .iter()
            .filter(|found| {
                let start = found.range.start;
                let fresh = start >= last_end
                    && elf.is_code(start)
                    && !plt.iter().any(|range| range.contains(start))
                    && self.at(start).is_none();
                if fresh {
                    last_end = found.range.end;
                }
                fresh
            })
            .map(|found| Function {
                addr: found.range.start,
                size: Some(found.range.len()),
                cold_parts: Vec::new(),
                source: SymbolSource::UnwindTable,
                kind: FunctionKind::Code,
                has_landing_pads: found.has_lsda,
                name: None,
                aliases: Vec::new(),
            })
            .collect();
        if unnamed.is_empty() {
            return;
        }
        self.functions.extend(unnamed);
        self.functions.sort_by_key(|function| function.addr);
        self.index = index(elf, &self.functions);
    }
}

fn candidates<'a>(elf: &'a Elf, table: &'a SymbolTable) -> impl Iterator<Item = Found> + 'a {
    let mut file = 0;
    table
        .iter()
        .zip(0u32..)
        .filter_map(move |(symbol, number)| {
            if symbol.kind == elf::STT_FILE {
                file = number;
            }
            let typed = matches!(symbol.kind, elf::STT_FUNC | elf::STT_GNU_IFUNC);
            if !(typed || symbol.kind == elf::STT_NOTYPE)
                || !symbol.is_defined()
                || !elf.is_code(FileAddr(symbol.addr))
            {
                return None;
            }
            let name = table.name(&symbol);
            let named = !name.as_str().is_empty();
            if !named || (!typed && !is_code_label(elf, name.as_str(), symbol.addr)) {
                return None;
            }
            Some(Found {
                addr: symbol.addr,
                size: symbol.size,
                name,
                source: table.source,
                local: symbol.bind == elf::STB_LOCAL,
                typed,
                ifunc: symbol.kind == elf::STT_GNU_IFUNC,
                file,
            })
        })
}

/// Hand-written assembly often leaves the type out. Labels of the assembler and marks of the linker are no functions.
fn is_code_label(elf: &Elf, name: &str, addr: u64) -> bool {
    let mark = name.starts_with(".L")
        || name.starts_with('$')
        || matches!(
            name.trim_start_matches('_'),
            "etext" | "executable_start" | "ehdr_start"
        );
    !mark && elf.in_code_section(FileAddr(addr))
}

/// Which of several symbols at one address people know it by: typed, visible to others, with few underscores in front
/// (`read`, not `__libc_read`), from the full table, short.
fn preference(symbol: &Found) -> impl Ord + '_ {
    let name = symbol.name.as_str();
    let underscores = name.len() - name.trim_start_matches('_').len();
    (
        !symbol.typed,
        symbol.local,
        symbol.name.version == Version::Old,
        underscores,
        name.len(),
        name,
        symbol.source == SymbolSource::Dynsym,
    )
}

/// Makes one function of the symbols at each address. They come sorted by address and preference.
fn group(found: Vec<Found>) -> Vec<Function> {
    let mut functions: Vec<Function> = Vec::new();
    let mut typed_end = 0;
    for symbol in found {
        match functions.last_mut() {
            Some(function) if function.addr.0 == symbol.addr => {
                function.size = function.size.max((symbol.size > 0).then_some(symbol.size));
                // One address with a million names is no reason for a quadratic search.
                let room = function.aliases.len() < MAX_NESTING;
                let mut names = function.name.iter_mut().chain(&mut function.aliases);
                match names.find(|name| name.as_str() == symbol.name.as_str()) {
                    Some(known) if symbol.name.version == Version::Default => {
                        known.version = Version::Default;
                    }
                    None if room => function.aliases.push(symbol.name),
                    _ => {}
                }
            }
            // An untyped label inside of a function is a place in it.
            _ if !symbol.typed && symbol.addr < typed_end => continue,
            _ => functions.push(Function {
                addr: FileAddr(symbol.addr),
                size: (symbol.size > 0).then_some(symbol.size),
                cold_parts: Vec::new(),
                source: symbol.source,
                kind: if symbol.ifunc {
                    FunctionKind::IfuncResolver
                } else {
                    FunctionKind::Code
                },
                has_landing_pads: false,
                name: Some(symbol.name),
                aliases: Vec::new(),
            }),
        }
        typed_end = typed_end.max(symbol.addr.saturating_add(symbol.size));
    }
    functions
}

/// `foo.cold`, `foo.cold.3` → `foo`.
fn cold_base(name: &str) -> Option<&str> {
    let (base, rest) = name.rsplit_once(".cold")?;
    let numbered = rest
        .strip_prefix('.')
        .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    (!base.is_empty() && (rest.is_empty() || numbered)).then_some(base)
}

/// Gives each cold part to the function it was split from: the one of that name in the same source file, else the only
/// one of that name. A part whose function cannot be told stays a function of its own.
fn attach_cold_parts(functions: &mut Vec<Function>, files: &HashMap<u64, u32>, cold: Vec<Found>) {
    let mut owners: HashMap<&str, Vec<usize>> = cold
        .iter()
        .filter_map(|part| cold_base(part.name.as_str()))
        .map(|base| (base, Vec::new()))
        .collect();
    for (index, function) in functions.iter().enumerate() {
        for name in function.names() {
            if let Some(owners) = owners.get_mut(name)
                && owners.len() < MAX_NESTING
            {
                owners.push(index);
            }
        }
    }
    let attached: Vec<Option<usize>> = cold
        .iter()
        .map(|part| {
            let owners = owners.get(cold_base(part.name.as_str())?)?;
            let mut beside = owners
                .iter()
                .filter(|&&owner| files.get(&functions[owner].addr.0) == Some(&part.file));
            match (beside.next(), beside.next(), owners.as_slice()) {
                (Some(&owner), None, _) | (_, _, &[owner]) => Some(owner),
                _ => None,
            }
        })
        .collect();
    let mut orphans = Vec::new();
    for (part, owner) in cold.into_iter().zip(attached) {
        match owner {
            Some(owner) if part.size > 0 => {
                let range = AddrRange::sized(FileAddr(part.addr), part.size);
                let parts = &mut functions[owner].cold_parts;
                if !parts.contains(&range) && parts.len() < MAX_NESTING {
                    parts.push(range);
                }
            }
            _ => orphans.push(part),
        }
    }
    orphans.sort_by(|a, b| (a.addr, preference(a)).cmp(&(b.addr, preference(b))));
    functions.extend(group(orphans));
}

/// Sizes for symbols without one, and landing pads. A sized symbol keeps its size: hand-written assembly has unwind
/// entries for parts of a function.
fn apply_unwind(functions: &mut [Function], unwind: &[UnwindRange]) {
    let entry = |addr: FileAddr| {
        let at = unwind.partition_point(|found| found.range.start < addr);
        unwind.get(at).filter(|found| found.range.start == addr)
    };
    for function in functions {
        let own = entry(function.addr);
        function.size = function.size.or(own.map(|found| found.range.len()));
        let cold = function
            .cold_parts
            .iter()
            .filter_map(|part| entry(part.start));
        function.has_landing_pads = own.into_iter().chain(cold).any(|found| found.has_lsda);
    }
}

fn index(elf: &Elf, functions: &[Function]) -> Vec<Indexed> {
    let mut index: Vec<Indexed> = Vec::with_capacity(functions.len());
    for ((number, function), position) in (0u32..).zip(functions).zip(1..) {
        // Without a size a function reaches to the next one, or to the end of its section.
        let unbounded = || {
            let next = functions[position..]
                .iter()
                .map(|next| next.addr)
                .find(|next| *next > function.addr);
            let limit = elf
                .code_around(function.addr)
                .map_or(function.addr, |code| code.end);
            AddrRange {
                start: function.addr,
                end: next.map_or(limit, |next| next.min(limit)),
            }
        };
        let own = function.range().unwrap_or_else(unbounded);
        let ranges = std::iter::once(own).chain(function.cold_parts.iter().copied());
        index.extend(ranges.map(|range| Indexed {
            range,
            function: number,
            max_end: range.end,
        }));
    }
    index.sort_by_key(|entry| entry.range.start);
    let mut max_end = FileAddr(0);
    for entry in &mut index {
        max_end = max_end.max(entry.max_end);
        entry.max_end = max_end;
    }
    index
}
