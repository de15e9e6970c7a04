//! One function out of several files, or the reason why there is none.

use object::elf;

use crate::addr::FileAddr;
use crate::functions::FunctionKind;
use crate::image::Image;
use crate::inlined::InlinedCopy;
use crate::lines::Statement;
use crate::matching::{self, Match, MatchRank};
use crate::refusal::{Candidate, LookupError, NotAFunction};
use crate::spec::NameSpec;
use crate::suggest::suggest;

/// So many candidates are given with file and line; a name may mean thousands of instances of a
/// generic function.
const MAX_PLACED: usize = 64;
/// So many similar names are suggested.
const MAX_SUGGESTED: usize = 3;

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
    let found = images.iter().map(|image| image.find(spec)).collect();
    only(spec, images, found)?.ok_or_else(|| explain(spec, images))
}

/// As [`resolve`], of what [`Image::find`] has found in each of the first images; nothing where that is nothing. The reason,
/// [`explain`], takes long in large files.
///
/// # Errors
/// Several functions are meant, or something that cannot be measured.
pub fn only(
    spec: &NameSpec,
    images: &[&Image],
    found: Vec<Vec<Match<'_>>>,
) -> Result<Option<(usize, FileAddr)>, LookupError> {
    let mut matches: Vec<(usize, Match<'_>)> = Vec::new();
    for (index, found) in found.into_iter().enumerate() {
        matches.extend(found.into_iter().map(|found| (index, found)));
    }
    let best = matches.iter().map(|(_, found)| found.rank).min();
    matches.retain(|(_, found)| Some(found.rank) == best);
    match matches.as_slice() {
        [] => Ok(None),
        [(index, found)] if found.function.kind == FunctionKind::IfuncResolver => {
            Err(LookupError::NotAFunction {
                name: matching::shown(images[*index], found),
                module: images[*index].module(),
                kind: NotAFunction::IfuncResolver,
            })
        }
        [(index, found)] => Ok(Some((*index, found.function.addr))),
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
        name: matching::shown(image, found),
        module,
        addr,
        file: None,
        line: None,
    }
}

/// Why nothing was found.
pub fn explain(spec: &NameSpec, images: &[&Image]) -> LookupError {
    let meant: Vec<&Image> = images
        .iter()
        .copied()
        .filter(|image| image.is_meant(spec))
        .collect();
    match (spec, meant.as_slice()) {
        (NameSpec::ModuleAddress { module, addr }, [])
            if let Some(place) = inside(module, *addr, images) =>
        {
            place
        }
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
            let inside = function.map(|function| (image.name_of(function), function.addr));
            LookupError::NotAnEntry {
                module: image.module(),
                addr: *addr,
                inside,
            }
        }
        (NameSpec::Name { name, .. }, meant) => explain_name(spec, name, meant, images),
        (NameSpec::Line { file, line }, meant) => explain_line(spec, file, *line, meant),
        (NameSpec::Address(addr), _) => LookupError::RunTimeAddress(*addr),
    }
}

/// What `function+0x12` means, where `function` is one: a place inside of it.
fn inside(name: &str, offset: FileAddr, images: &[&Image]) -> Option<LookupError> {
    let (index, entry) = resolve(&NameSpec::parse(name).ok()?, images).ok()?;
    let image = images[index];
    Some(LookupError::NotAnEntry {
        module: image.module(),
        addr: FileAddr(entry.0.checked_add(offset.0)?),
        inside: Some((name.to_owned(), entry)),
    })
}

/// Why no function has the name: it stands for something else, it was inlined, or it is mistyped.
fn explain_name(spec: &NameSpec, bare: &str, images: &[&Image], loaded: &[&Image]) -> LookupError {
    let name = spec.to_string();
    let other = images
        .iter()
        .find_map(|image| Some((image, other_symbol(image, bare)?)));
    if let Some((image, kind)) = other {
        let kind = match kind {
            NotAFunction::Undefined => imported(bare, loaded),
            kind => kind,
        };
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
    let stripped = images.first().and_then(|image| image.stripped());
    LookupError::NotFound {
        name,
        searched,
        nearest: suggest(images, bare, MAX_SUGGESTED),
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

/// From where the function of that name, which a file imports, comes.
fn imported(bare: &str, loaded: &[&Image]) -> NotAFunction {
    let anywhere = NameSpec::Name {
        module: None,
        name: bare.to_owned(),
    };
    let defines = |image: &&&Image| {
        let found = image.find(&anywhere);
        found.iter().any(|found| found.rank < MatchRank::Tail)
    };
    match loaded.iter().find(defines) {
        Some(definer) => NotAFunction::ImportedFrom {
            definer: definer.module(),
            bare: bare.to_owned(),
        },
        None => NotAFunction::Undefined,
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
