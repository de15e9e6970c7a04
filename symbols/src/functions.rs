//! The functions of one file: from symbols, and from the unwind table where there are none.

use crate::addr::{AddrRange, FileAddr};
use crate::elf::Elf;
use crate::grouping;
use crate::symtab::{Name, SymbolTable, Version};
use crate::unwind::UnwindRange;

/// Where a function is known from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SymbolSource {
    /// The full symbol table, of the file or of its debug file.
    Symtab,
    /// The dynamic symbol table: exported functions only.
    Dynsym,
    /// What the Go linker writes for the Go run-time: all functions.
    GoTable,
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

/// What the preferred symbol says of where the name holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Linkage {
    /// In other files too, or in one source file; or there is no symbol.
    Own,
    /// In other files too, where it may give way to another definition (`STB_WEAK`).
    Weak,
    /// A local symbol without type, as places in hand-written code have.
    Label,
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
    pub(crate) linkage: Linkage,
    pub(crate) name: Option<Name>,
    pub(crate) aliases: Vec<Name>,
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

    /// Whether it gives way to another definition of its name: files that were compiled with the same source have a copy
    /// each.
    pub fn is_weak(&self) -> bool {
        self.linkage == Linkage::Weak
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
        let mut functions = grouping::functions(elf, tables);
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

    /// Where a function that begins at `addr` and whose size nothing tells has ended for certain: at the next function, or
    /// behind the code around it. A label is no function's beginning: hand-written functions have labels in them.
    pub(crate) fn limit(&self, elf: &Elf, addr: FileAddr) -> Option<FileAddr> {
        let after = self.functions.partition_point(|next| next.addr <= addr);
        let next = self.functions[after..]
            .iter()
            .find(|next| next.linkage != Linkage::Label);
        let end = elf.code_around(addr)?.end;
        Some(next.map_or(end, |next| next.addr.min(end)))
    }

    /// Adds the ranges of the unwind table that lie in no known function and in no PLT.
    fn add_unnamed(&mut self, elf: &Elf, unwind: &[UnwindRange]) {
        let mut last_end = FileAddr(0);
        let unnamed: Vec<Function> = unwind
            .iter()
            .filter(|found| {
                let start = found.range.start;
                let fresh = start >= last_end
                    && elf.is_code(start)
                    && !elf.in_plt(start)
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
                linkage: Linkage::Own,
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

/// Sizes for symbols without one. A sized symbol keeps its size: hand-written assembly has unwind
/// entries for parts of a function.
fn apply_unwind(functions: &mut [Function], unwind: &[UnwindRange]) {
    let entry = |addr: FileAddr| {
        let at = unwind.partition_point(|found| found.range.start < addr);
        unwind.get(at).filter(|found| found.range.start == addr)
    };
    for function in functions {
        let own = entry(function.addr);
        function.size = function.size.or(own.map(|found| found.range.len()));
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
