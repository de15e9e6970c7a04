//! Symbols to functions: the symbols at one address are one function, and a cold part belongs to the function that it was
//! split from.

use std::cmp::Reverse;
use std::collections::HashMap;

use object::elf;

use crate::addr::{AddrRange, FileAddr};
use crate::elf::Elf;
use crate::functions::{Function, FunctionKind, Linkage, SymbolSource};
use crate::symtab::{Name, SymbolTable};

/// Names up to this length are always kept whole.
const SHORT_NAME: usize = 1024;
/// All longer names of a file together; the ones behind are cut off.
const MAX_LONG_NAMES: usize = 64 << 20;
/// Functions of one name that are looked at for a cold part, and cold parts of one function.
const MAX_SAME: usize = 64;

/// A symbol that may be a function.
struct Found {
    addr: u64,
    size: u64,
    name: Name,
    source: SymbolSource,
    bind: elf::SymbolBind,
    typed: bool,
    ifunc: bool,
    /// Index of the `STT_FILE` symbol before it, by which statics of the same name are told apart.
    file: u32,
}

impl Found {
    fn is_local(&self) -> bool {
        self.bind == elf::STB_LOCAL
    }
}

/// The functions that the symbols of a file describe, sorted by address.
pub(crate) fn functions(elf: &Elf, tables: &[SymbolTable]) -> Vec<Function> {
    let found = tables.iter().flat_map(|table| candidates(elf, table));
    let (cold, found): (Vec<Found>, Vec<Found>) =
        found.partition(|symbol| cold_base(symbol.name.as_str()).is_some());
    let found = merge_duplicates(found);
    let locals = found.iter().filter(|symbol| symbol.is_local());
    let files: HashMap<u64, u32> = locals.map(|symbol| (symbol.addr, symbol.file)).collect();
    let mut functions = group(found);
    attach_cold_parts(&mut functions, &files, merge_duplicates(cold));
    functions.sort_by_key(|function| function.addr);
    functions
}

fn candidates<'a>(elf: &'a Elf, table: &'a SymbolTable) -> impl Iterator<Item = Found> + 'a {
    let mut file = 0;
    let mut long = MAX_LONG_NAMES;
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
                // The linker mold gives its stubs names.
                || elf.in_plt(FileAddr(symbol.addr))
            {
                return None;
            }
            let mut name = table.name(&symbol);
            if let Some(beyond) = name.as_str().len().checked_sub(SHORT_NAME + 1) {
                long = long.saturating_sub(beyond + 1);
                name = if long > 0 {
                    name
                } else {
                    name.with_len(SHORT_NAME)
                };
            }
            let named = !name.as_str().is_empty();
            if !named || (!typed && !is_code_label(elf, name.as_str(), symbol.addr)) {
                return None;
            }
            // A size is whatever the file says; behind the code around it nothing of a function can be.
            let code = elf.code_around(FileAddr(symbol.addr));
            let most = code.map_or(0, |code| code.end.0 - symbol.addr);
            Some(Found {
                addr: symbol.addr,
                size: symbol.size.min(most),
                name,
                source: table.source,
                bind: symbol.bind,
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

/// Makes one of the symbols of one name at one address (both tables have the exported ones), and sorts them by address and
/// preference.
fn merge_duplicates(mut found: Vec<Found>) -> Vec<Found> {
    found.sort_by(|a, b| (a.addr, a.name.as_str()).cmp(&(b.addr, b.name.as_str())));
    found.dedup_by(|next, kept| {
        let same = next.addr == kept.addr && next.name.as_str() == kept.name.as_str();
        if same {
            kept.size = kept.size.max(next.size);
            kept.typed |= next.typed;
            kept.ifunc |= next.ifunc;
            kept.name.version = kept.name.version.min(next.name.version);
            if kept.is_local() {
                kept.bind = next.bind;
            }
            if next.source == SymbolSource::Symtab {
                kept.source = SymbolSource::Symtab;
            }
        }
        same
    });
    found.sort_by_cached_key(|symbol| (symbol.addr, preference(symbol)));
    found
}

/// Which of several symbols at one address people know it by: typed, visible to others, for new programs, with few
/// underscores in front (`read`, not `__libc_read`), not weak (`memcmp`, not `bcmp`), short.
fn preference(symbol: &Found) -> impl Ord + use<> {
    let name = symbol.name.as_str();
    let underscores = name.len() - name.trim_start_matches('_').len();
    (
        Reverse(symbol.typed),
        symbol.is_local(),
        symbol.name.version,
        underscores,
        symbol.bind == elf::STB_WEAK,
        name.len(),
    )
}

/// Makes one function of the symbols at each address. They come sorted by address and preference.
fn group(found: Vec<Found>) -> Vec<Function> {
    let mut functions: Vec<Function> = Vec::new();
    let mut typed_end = 0;
    for symbol in found {
        let end = typed_end.max(symbol.addr.saturating_add(symbol.size));
        typed_end = match functions.last_mut() {
            Some(function) if function.addr.0 == symbol.addr => {
                function.size = function.size.max((symbol.size > 0).then_some(symbol.size));
                // The resolver may have a name of its own, which people know better.
                if symbol.ifunc {
                    function.kind = FunctionKind::IfuncResolver;
                }
                function.aliases.push(symbol.name);
                end
            }
            // An untyped label inside of a function is a place in it.
            _ if !symbol.typed && symbol.addr < typed_end => typed_end,
            _ => {
                functions.push(function(symbol));
                end
            }
        };
    }
    functions
}

fn function(symbol: Found) -> Function {
    Function {
        addr: FileAddr(symbol.addr),
        size: (symbol.size > 0).then_some(symbol.size),
        cold_parts: Vec::new(),
        source: symbol.source,
        kind: if symbol.ifunc {
            FunctionKind::IfuncResolver
        } else {
            FunctionKind::Code
        },
        linkage: match symbol.bind {
            elf::STB_WEAK => Linkage::Weak,
            elf::STB_LOCAL if !symbol.typed => Linkage::Label,
            _ => Linkage::Own,
        },
        name: Some(symbol.name),
        aliases: Vec::new(),
    }
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
                && owners.len() < MAX_SAME
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
                if !parts.contains(&range) && parts.len() < MAX_SAME {
                    parts.push(range);
                }
            }
            _ => orphans.push(part),
        }
    }
    functions.extend(group(orphans));
}
