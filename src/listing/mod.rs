//! The functions that a person can choose, of the files that a program consists of.

mod pattern;
mod text;

use darc_symbols::{Function, FunctionKind, Image, InlinedCopy, SymbolSource, is_called};
use serde::Serialize;

pub use pattern::Pattern;
pub use text::{Reader, render};

/// Source lines are looked up for at most so many functions, as each may cost a unit of debugging information.
const MOST_WITH_LINES: usize = 1_000;
/// Inlined copies are looked for of at most so many, as each costs all of it.
const MOST_WITH_COPIES: usize = 20;

/// What to list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Query {
    /// Functions whose name fits; all when absent.
    pub pattern: Option<Pattern>,
    /// In which order.
    pub order: Order,
    /// Whether inlined copies are looked for.
    pub copies: Copies,
}

/// In which order functions are listed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Order {
    /// By name.
    #[default]
    Name,
    /// The largest first.
    Size,
    /// By module and address.
    Address,
}

/// Whether inlined copies of functions are listed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Copies {
    /// No.
    #[default]
    LeftOut,
    /// Those of few functions.
    Listed,
}

/// The functions that were found.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct Listing {
    /// The version of this schema.
    pub schema: u32,
    /// In the order that was asked for.
    pub functions: Vec<Entry>,
    /// What was damaged or left out.
    pub warnings: Vec<String>,
}

/// A function.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct Entry {
    /// The demangled name.
    pub name: String,
    /// The symbol; absent for functions that have none, or exist as inlined copies only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symbol: Option<String>,
    /// The path of the file.
    pub module: String,
    /// The link-time address in the file; absent when there are inlined copies only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Bytes of code, without parts that the compiler moved away; absent when nothing says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The source file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// What speaks against choosing it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<Note>,
    /// Where it stands instead of being called.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inlined: Vec<Copy>,
}

/// What speaks against choosing a function.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Note {
    /// It runs once, in the dynamic linker, and returns the address of the function itself.
    IfuncResolver,
    /// It has no symbol: known from the unwind table.
    NoSymbol,
    /// It was inlined everywhere.
    InlinedOnly,
}

impl Note {
    /// In words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Note::IfuncResolver => "chooses another function when the program is loaded",
            Note::NoSymbol => "no symbol",
            Note::InlinedOnly => "inlined everywhere: no calls to measure",
        }
    }
}

/// A place where a function's body stands instead of a call.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct Copy {
    /// The function around it.
    pub caller: String,
    /// The source file of the replaced call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}

/// Lists the functions of several files.
#[must_use]
pub fn list(images: &[&Image], query: &Query) -> Listing {
    let mut warnings = Vec::new();
    let mut found: Vec<(&Image, &Function, String)> = Vec::new();
    for image in images {
        for function in image.functions() {
            let name = image.name_of(function);
            if fits(query, function, &name) {
                found.push((image, function, name));
            }
        }
    }
    let with_lines = found.len() <= MOST_WITH_LINES;
    let mut functions: Vec<Entry> = found
        .into_iter()
        .map(|(image, function, name)| entry(image, function, name, with_lines))
        .collect();
    if query.copies == Copies::Listed {
        warnings.extend(add_copies(images, query, &mut functions));
    }
    let key = |entry: &Entry| {
        (
            entry.name.clone(),
            entry.module.clone(),
            entry.address.clone(),
        )
    };
    match query.order {
        Order::Name => functions.sort_by_cached_key(key),
        Order::Size => {
            functions.sort_by_cached_key(|entry| (std::cmp::Reverse(entry.size), key(entry)))
        }
        // Functions of a file come sorted by address.
        Order::Address => {}
    }
    warnings.extend(images.iter().flat_map(|image| image.warnings()));
    Listing {
        schema: 1,
        functions,
        warnings,
    }
}

/// By the name for people, or by any symbol at the address.
fn fits(query: &Query, function: &Function, name: &str) -> bool {
    let Some(pattern) = &query.pattern else {
        return true;
    };
    pattern.fits(name) || function.names().any(|name| pattern.fits(name))
}

fn entry(image: &Image, function: &Function, name: String, with_lines: bool) -> Entry {
    let frames = if with_lines {
        image.frames(function.addr)
    } else {
        Vec::new()
    };
    let source = frames.into_iter().next_back();
    let (file, line) = source.map_or((None, None), |frame| (frame.file, frame.line));
    Entry {
        name,
        symbol: function.raw_name().map(str::to_owned),
        module: image.path().to_string_lossy().into_owned(),
        address: Some(format!("{:#x}", function.addr.0)),
        size: function.size,
        file,
        line,
        note: match (function.kind, function.source) {
            (FunctionKind::IfuncResolver, _) => Some(Note::IfuncResolver),
            (FunctionKind::Code, SymbolSource::UnwindTable) => Some(Note::NoSymbol),
            (FunctionKind::Code, _) => None,
        },
        inlined: Vec::new(),
    }
}

/// Adds the copies of the functions found, and a function that has nothing but copies. Returns why not, if not.
fn add_copies(images: &[&Image], query: &Query, functions: &mut Vec<Entry>) -> Option<String> {
    if functions.len() > MOST_WITH_COPIES {
        return Some(format!(
            "inlined copies are looked for of at most {MOST_WITH_COPIES} functions, {} fit; narrow the pattern",
            functions.len()
        ));
    }
    let plain = query.pattern.as_ref().filter(|pattern| !pattern.is_glob());
    for image in images {
        let module = image.path().to_string_lossy();
        for entry in functions.iter_mut().filter(|entry| entry.module == module) {
            entry.inlined = copies(image, &entry.name);
        }
        // A plain name means the functions of that name with any parameters.
        let Some(name) = plain.map(Pattern::as_str) else {
            continue;
        };
        let mut inlined = copies(image, name);
        // Not again what was found.
        let called = functions.iter().filter(|entry| {
            let symbol = entry.symbol.as_deref();
            entry.module == module && symbol.is_some_and(|symbol| is_called(symbol, name))
        });
        let shown: Vec<&Copy> = called.flat_map(|entry| &entry.inlined).collect();
        inlined.retain(|copy| !shown.contains(&copy));
        if !inlined.is_empty() {
            functions.push(Entry {
                name: name.to_owned(),
                symbol: None,
                module: module.into_owned(),
                address: None,
                size: None,
                file: None,
                line: None,
                note: Some(Note::InlinedOnly),
                inlined,
            });
        }
    }
    None
}

fn copies(image: &Image, name: &str) -> Vec<Copy> {
    let mut copies: Vec<Copy> = image
        .inlined_into(name)
        .into_iter()
        .map(Copy::from)
        .collect();
    copies.sort_by(|a, b| (&a.caller, &a.file, a.line).cmp(&(&b.caller, &b.file, b.line)));
    copies
}

impl From<InlinedCopy> for Copy {
    fn from(copy: InlinedCopy) -> Self {
        Self {
            caller: copy.caller,
            file: copy.file,
            line: copy.line,
        }
    }
}

#[cfg(test)]
mod tests;
