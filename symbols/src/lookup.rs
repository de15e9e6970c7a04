//! One function out of several files, or the reason why there is none.

use std::fmt;

use object::elf;

use crate::addr::FileAddr;
use crate::demangle::{demangle, escape};
use crate::functions::FunctionKind;
use crate::image::Image;
use crate::inlined::InlinedCopy;
use crate::lines::Statement;
use crate::matching::{self, Match};
use crate::spec::{self, NameSpec};

/// A function that a name may mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Demangled.
    pub name: String,
    /// File name of its module.
    pub module: String,
    /// Link-time address of its entry.
    pub addr: FileAddr,
    /// Source file, where known.
    pub file: Option<String>,
    /// Source line, where known.
    pub line: Option<u32>,
}

impl fmt::Display for Candidate {
    /// Begins with a name that selects this candidate alone.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{} {}",
            escape(&self.module),
            self.addr,
            escape(&self.name)
        )?;
        if let (Some(file), Some(line)) = (&self.file, self.line) {
            write!(f, " ({}:{line})", escape(file))?;
        }
        Ok(())
    }
}

/// What stands under the name instead of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotAFunction {
    /// A variable.
    Data,
    /// An ifunc: the symbol's code only chooses the function.
    IfuncResolver,
    /// Imported here, and no loaded file defines it.
    Undefined,
}

/// Why a name does not lead to one function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookupError {
    /// Nothing of that name.
    NotFound {
        /// The name as typed.
        name: String,
        /// Functions that were searched.
        searched: usize,
        /// Similar names, nearest first.
        nearest: Vec<String>,
        /// No searched file has a full symbol table.
        stripped: bool,
    },
    /// No loaded module has that file name.
    NoSuchModule {
        /// As typed.
        module: String,
        /// The loaded modules.
        loaded: Vec<String>,
    },
    /// Several functions of equal right.
    Ambiguous {
        /// The name as typed.
        name: String,
        /// At least two.
        candidates: Vec<Candidate>,
    },
    /// Every call was replaced by the body.
    OnlyInlined {
        /// The name as typed.
        name: String,
        /// The places.
        copies: Vec<InlinedCopy>,
    },
    /// The name stands for something else.
    NotAFunction {
        /// The name as typed.
        name: String,
        /// File name of the module.
        module: String,
        /// What it is.
        kind: NotAFunction,
    },
    /// `lib:0x…` inside of a function, or outside of all.
    NotAnEntry {
        /// File name of the module.
        module: String,
        /// As typed.
        addr: FileAddr,
        /// The function around it, and its entry.
        inside: Option<(String, FileAddr)>,
    },
    /// No code of a loaded file comes from that line.
    NoCodeAtLine {
        /// As typed.
        spec: String,
        /// Some searched file has debugging information.
        has_lines: bool,
    },
    /// A run-time address: only the caller knows the address space.
    RunTimeAddress(u64),
}

impl std::error::Error for LookupError {}

/// Names are listed up to this number in a message.
const MAX_LISTED: usize = 8;
/// So many candidates are given with file and line; a name may mean thousands of instances of a generic function.
const MAX_PLACED: usize = 64;

impl fmt::Display for LookupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LookupError::NotFound {
                name,
                searched,
                nearest,
                stripped,
            } => {
                write!(f, "{}: not found among {searched} functions", escape(name))?;
                match (nearest.is_empty(), stripped) {
                    (false, _) => write!(f, "; did you mean {}?", list(nearest)),
                    (true, true) => write!(
                        f,
                        "; the files are stripped: give an address (0x…) or install their debug files"
                    ),
                    (true, false) => write!(
                        f,
                        "; check the spelling, or give lib:name, file:line or 0xADDRESS"
                    ),
                }
            }
            LookupError::NoSuchModule { module, loaded } => {
                write!(
                    f,
                    "{}: no such library is loaded; loaded are {}",
                    escape(module),
                    list(loaded)
                )
            }
            LookupError::Ambiguous { name, candidates } => {
                let shown: Vec<String> = candidates.iter().map(Candidate::to_string).collect();
                let first = candidates
                    .first()
                    .map(|c| format!("{}:{}", escape(&c.module), c.addr))
                    .unwrap_or_default();
                write!(
                    f,
                    "{}: means {} functions: {}; choose one, for example {first}",
                    escape(name),
                    candidates.len(),
                    list(&shown)
                )
            }
            LookupError::OnlyInlined { name, copies } => {
                write!(
                    f,
                    "{}: inlined everywhere ({} {}",
                    escape(name),
                    copies.len(),
                    if copies.len() == 1 { "place" } else { "places" }
                )?;
                if let Some(InlinedCopy { caller, file, line }) = copies.first() {
                    write!(f, ", first in {}", escape(caller))?;
                    if let (Some(file), Some(line)) = (file, line) {
                        write!(f, " at {}:{line}", escape(file))?;
                    }
                }
                write!(
                    f,
                    "); there is no call to measure, choose a function that contains it"
                )
            }
            LookupError::NotAFunction { name, module, kind } => {
                let (name, module) = (escape(name), escape(module));
                match kind {
                    NotAFunction::Data => write!(
                        f,
                        "{name}: a variable in {module}, not a function; name a function"
                    ),
                    NotAFunction::IfuncResolver => write!(
                        f,
                        "{name}: in {module} the name stands for a choice between several functions (ifunc); name the chosen one, see `{module}:*{name}*`"
                    ),
                    NotAFunction::Undefined => write!(
                        f,
                        "{name}: imported by {module}, but no loaded library defines it; name the function that stands in for it"
                    ),
                }
            }
            LookupError::NotAnEntry {
                module,
                addr,
                inside,
            } => {
                write!(f, "{}:{addr}: ", escape(module))?;
                match inside {
                    Some((name, entry)) => write!(
                        f,
                        "inside of {}, which begins at {entry}; give that address",
                        escape(name)
                    ),
                    None => write!(
                        f,
                        "in no function of the file; give the address of a function"
                    ),
                }
            }
            LookupError::NoCodeAtLine {
                spec,
                has_lines: true,
            } => {
                write!(
                    f,
                    "{spec}: no code of a loaded file comes from there; check the file's name and the line"
                )
            }
            LookupError::NoCodeAtLine {
                spec,
                has_lines: false,
            } => {
                write!(
                    f,
                    "{spec}: the loaded files have no debugging information; compile with -g or name a function"
                )
            }
            LookupError::RunTimeAddress(addr) => write!(
                f,
                "{addr:#x}: an address in the running program, not in a file"
            ),
        }
    }
}

fn list(names: &[String]) -> String {
    let mut text = names
        .iter()
        .take(MAX_LISTED)
        .map(|name| escape(name))
        .collect::<Vec<_>>()
        .join(", ");
    if names.len() > MAX_LISTED {
        text += &format!(", and {} more", names.len() - MAX_LISTED);
    }
    text
}

/// The one function that `spec` means in the loaded files: the index of its image, and its entry.
///
/// The best matches of all files count: the exact name (mangled, or demangled with arguments) before the name without
/// arguments, without generics, clones, the last components, and patterns. Symbols at one address are one function; an
/// import or a PLT stub is no match, so the defining library is found. Two functions of equal right are ambiguous.
///
/// # Errors
/// None or several functions are meant, or something that cannot be measured; the message says what to do.
pub fn resolve(spec: &NameSpec, images: &[&Image]) -> Result<(usize, FileAddr), LookupError> {
    if let NameSpec::Address(addr) = spec {
        return Err(LookupError::RunTimeAddress(*addr));
    }
    let mut matches: Vec<(usize, Match<'_>)> = images
        .iter()
        .enumerate()
        .flat_map(|(index, image)| {
            image
                .find(spec)
                .into_iter()
                .map(move |found| (index, found))
        })
        .collect();
    let best = matches.iter().map(|(_, found)| found.rank).min();
    matches.retain(|(_, found)| Some(found.rank) == best);
    match matches.as_slice() {
        [] => Err(explain(spec, images)),
        [(index, found)] if found.function.kind == FunctionKind::IfuncResolver => {
            Err(LookupError::NotAFunction {
                name: matching::shown(found),
                module: images[*index].module(),
                kind: NotAFunction::IfuncResolver,
            })
        }
        [(index, found)] => Ok((*index, found.function.addr)),
        several => {
            let mut candidates: Vec<Candidate> = several
                .iter()
                .map(|(index, found)| candidate(images[*index], found))
                .collect();
            for (candidate, (index, found)) in candidates.iter_mut().zip(several).take(MAX_PLACED) {
                if let Some(place) = images[*index].frames(found.function.addr).pop() {
                    (candidate.file, candidate.line) = (place.file, place.line);
                }
            }
            Err(LookupError::Ambiguous {
                name: spec.to_string(),
                candidates,
            })
        }
    }
}

fn candidate(image: &Image, found: &Match<'_>) -> Candidate {
    let (module, addr) = (image.module(), found.function.addr);
    Candidate {
        name: matching::shown(found),
        module,
        addr,
        file: None,
        line: None,
    }
}

/// Why nothing was found.
fn explain(spec: &NameSpec, images: &[&Image]) -> LookupError {
    let meant: Vec<&Image> = images
        .iter()
        .copied()
        .filter(|image| spec.allows_module(&image.module()))
        .collect();
    match (spec, meant.as_slice()) {
        (
            NameSpec::Name {
                module: Some(module),
                ..
            }
            | NameSpec::ModuleAddress { module, .. },
            [],
        ) => {
            let loaded = images.iter().map(|image| image.module()).collect();
            LookupError::NoSuchModule {
                module: module.clone(),
                loaded,
            }
        }
        (NameSpec::ModuleAddress { addr, .. }, [image, ..]) => {
            let function = image.function_at(*addr);
            let inside = function.map(|function| (function.demangled(), function.addr));
            LookupError::NotAnEntry {
                module: image.module(),
                addr: *addr,
                inside,
            }
        }
        (NameSpec::Name { name, .. }, meant) => explain_name(spec, name, meant),
        (NameSpec::Line { file, line }, meant) => explain_line(spec, file, *line, meant),
        (NameSpec::Address(addr), _) => LookupError::RunTimeAddress(*addr),
    }
}

/// Why no function has the name: it stands for something else, it was inlined, or it is mistyped.
fn explain_name(spec: &NameSpec, bare: &str, images: &[&Image]) -> LookupError {
    let name = spec.to_string();
    let other = images
        .iter()
        .find_map(|image| Some((image, other_symbol(image, bare)?)));
    if let Some((image, kind)) = other {
        return LookupError::NotAFunction {
            name,
            module: image.module(),
            kind,
        };
    }
    let copies: Vec<InlinedCopy> = images
        .iter()
        .flat_map(|image| image.inlined_into(bare))
        .collect();
    if !copies.is_empty() {
        return LookupError::OnlyInlined { name, copies };
    }
    let searched = images.iter().map(|image| image.functions().len()).sum();
    let stripped = images.iter().all(|image| image.is_stripped());
    LookupError::NotFound {
        name,
        searched,
        nearest: suggest(images, bare, MAX_LISTED),
        stripped,
    }
}

/// Why no function has statements of the line: they are all in inlined copies, or there are none.
fn explain_line(spec: &NameSpec, file: &str, line: u32, images: &[&Image]) -> LookupError {
    let mut copies = Vec::new();
    for image in images {
        for Statement { addr, .. } in image.statements(file, line).into_iter().take(MAX_PLACED) {
            let mut frames = image.frames(addr);
            if let (Some(around), true) = (frames.pop(), !frames.is_empty()) {
                let copy = InlinedCopy {
                    caller: around.function,
                    file: around.file,
                    line: around.line,
                };
                if !copies.contains(&copy) {
                    copies.push(copy);
                }
            }
        }
    }
    let name = spec.to_string();
    if !copies.is_empty() {
        return LookupError::OnlyInlined { name, copies };
    }
    LookupError::NoCodeAtLine {
        spec: name,
        has_lines: images.iter().any(|image| image.has_lines()),
    }
}

/// A symbol of that name that is no function.
fn other_symbol(image: &Image, name: &str) -> Option<NotAFunction> {
    image.symbol_tables().iter().find_map(|table| {
        let found = table.find(name, |_| true)?;
        match found.kind {
            _ if !found.is_defined() => Some(NotAFunction::Undefined),
            elf::STT_OBJECT | elf::STT_TLS | elf::STT_COMMON | elf::STT_NOTYPE => {
                Some(NotAFunction::Data)
            }
            _ => None,
        }
    })
}

/// Similar names over several files, nearest first.
pub(crate) fn suggest(images: &[&Image], name: &str, max: usize) -> Vec<String> {
    let wanted = Fuzzy::new(name);
    let mut found: Vec<(usize, String)> = Vec::new();
    for function in images.iter().flat_map(|image| image.functions()) {
        for symbol in function.names() {
            let demangled = demangle(symbol);
            if let Some(distance) = wanted.distance(&demangled) {
                found.push((distance, demangled));
            }
        }
        if found.len() > MAX_SIMILAR {
            keep_nearest(&mut found, max);
        }
    }
    keep_nearest(&mut found, max);
    found.into_iter().map(|(_, name)| name).collect()
}

/// So many similar names are held before the farther ones are dropped.
const MAX_SIMILAR: usize = 10_000;
/// Longer names are not compared letter by letter.
const MAX_COMPARED: usize = 128;

fn keep_nearest(found: &mut Vec<(usize, String)>, max: usize) {
    found.sort();
    found.dedup();
    found.truncate(max);
}

/// A mistyped name: compared by its last component, without regard of case and of `_`, `::` and `.` as separators.
struct Fuzzy {
    last: Vec<u8>,
    whole: Vec<u8>,
}

impl Fuzzy {
    fn new(name: &str) -> Fuzzy {
        Fuzzy {
            last: letters(&spec::last_component(name)),
            whole: letters(&bare(name)),
        }
    }

    fn distance(&self, name: &str) -> Option<usize> {
        let limit = 1 + self.last.len() / 4;
        let last = letters(&spec::last_component(name));
        if let Some(distance) = edit_distance(&self.last, &last, limit) {
            return Some(distance * 2);
        }
        // A namespace written with underscores, or the other way round.
        (self.whole == letters(&bare(name))).then_some(1)
    }
}

fn bare(name: &str) -> String {
    spec::without_generics(spec::without_arguments(name))
}

fn letters(name: &str) -> Vec<u8> {
    name.bytes()
        .filter(u8::is_ascii_alphanumeric)
        .map(|byte| byte.to_ascii_lowercase())
        .take(MAX_COMPARED)
        .collect()
}

/// Number of letters to insert, delete, replace or swap with their neighbour (optimal string alignment); `None` beyond `limit`.
fn edit_distance(a: &[u8], b: &[u8], limit: usize) -> Option<usize> {
    if a.len().abs_diff(b.len()) > limit {
        return None;
    }
    let mut before: Vec<usize> = Vec::new();
    let mut previous: Vec<usize> = (0..=b.len()).collect();
    for (i, &x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, &y) in b.iter().enumerate() {
            let mut cost = (previous[j] + usize::from(x != y))
                .min(previous[j + 1] + 1)
                .min(row[j] + 1);
            if i > 0 && j > 0 && x == b[j - 1] && a[i - 1] == y {
                cost = cost.min(before[j - 1] + 1);
            }
            row.push(cost);
        }
        if row.iter().all(|&cost| cost > limit) {
            return None;
        }
        before = std::mem::replace(&mut previous, row);
    }
    previous
        .last()
        .copied()
        .filter(|&distance| distance <= limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        let distance = |a: &str, b: &str| edit_distance(a.as_bytes(), b.as_bytes(), 3);
        assert_eq!(distance("insert", "insert"), Some(0));
        assert_eq!(distance("insret", "insert"), Some(1));
        assert_eq!(distance("inset", "insert"), Some(1));
        assert_eq!(distance("", "abc"), Some(3));
        assert_eq!(distance("abcdef", "uvwxyz"), None);
    }
}
