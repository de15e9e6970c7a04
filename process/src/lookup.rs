//! Which of the functions that are loaded a name means.

use darc_symbols::{
    Candidate, FileAddr, Image, Interpreter, LookupError, Match, MatchRank, NameSpec,
};

use crate::modules::{ANONYMOUS, CodeRef, ModuleId, Modules};

/// The one function that a name means, or that begins at an address.
///
/// # Errors
/// Why there is not exactly one such function.
pub fn resolve(modules: &Modules, spec: &NameSpec) -> Result<CodeRef, LookupError> {
    match spec {
        NameSpec::Address(addr) => modules.entry(*addr),
        NameSpec::ModuleAddress { module, addr } if module == ANONYMOUS => modules.entry(addr.0),
        _ => match look(modules, spec) {
            Ok(Some(found)) => Ok(found),
            other => match find_main(modules, spec) {
                Some(main) => Ok(main),
                None => other
                    .and_then(|_| find_made(modules, spec, explain(modules, spec)))
                    .map_err(|error| of_script(modules, spec, error)),
            },
        },
    }
}

/// Why no file has what is meant.
fn explain(modules: &Modules, spec: &NameSpec) -> LookupError {
    let loaded = loaded(modules);
    let images: Vec<&Image> = loaded.iter().map(|&(_, image)| image).collect();
    darc_symbols::explain(spec, &images)
}

/// Of a name that no native function has: that the program may be one of another language, where something runs such programs here.
fn of_script(modules: &Modules, spec: &NameSpec, error: LookupError) -> LookupError {
    let nearest = match &error {
        LookupError::NotFound { nearest, .. } => nearest.clone(),
        // A library that is not there may be loaded later.
        LookupError::NoSuchModule { module, .. } if is_language(module) => Vec::new(),
        LookupError::NoCodeAtLine { .. } => Vec::new(),
        _ => return error,
    };
    match interpreter(modules) {
        Some(by) => LookupError::OfScript {
            name: spec.to_string(),
            nearest,
            by,
        },
        None => error,
    }
}

/// Whether what stands before the colon names a language, as in `python:handle`, or is part of a name as samples and paths have it
/// (`py::handle:app.py`), and no file.
fn is_language(module: &str) -> bool {
    let languages = ["py", "python", "node", "js", "javascript", "java"];
    languages.contains(&module) || module.contains("::")
}

/// What runs a program of another language in the process, by functions and files that are there only then.
fn interpreter(modules: &Modules) -> Option<Interpreter> {
    let loaded = loaded(modules);
    let has = |name: &str| {
        let spec = NameSpec::Name {
            module: None,
            name: name.to_owned(),
        };
        loaded
            .iter()
            .any(|(_, image)| !image.find(&spec).is_empty())
    };
    if loaded
        .iter()
        .any(|(_, image)| image.module() == "libjvm.so")
    {
        Some(Interpreter::Java)
    } else if has("Py_BytesMain") {
        Some(Interpreter::Python)
    } else if has("node::Start") {
        Some(Interpreter::Node)
    } else {
        None
    }
}

/// `main` of a program without a symbol table.
fn find_main(modules: &Modules, spec: &NameSpec) -> Option<CodeRef> {
    let (module, program) = loaded(modules).into_iter().next()?;
    let is_main = spec.to_string() == "main" && program.is_stripped();
    let addr = program.main().filter(|_| is_main)?;
    Some(CodeRef { module, addr })
}

/// Looks a function up among the code that the program has made; `error` is why there is none in a file.
fn find_made(
    modules: &Modules,
    spec: &NameSpec,
    error: LookupError,
) -> Result<CodeRef, LookupError> {
    if !matches!(
        error,
        LookupError::NotFound { .. } | LookupError::NoSuchModule { .. }
    ) {
        return Err(error);
    }
    let found = modules.made().find(&spec.to_string());
    match found.as_slice() {
        [] => Err(error),
        [(addr, _)] => modules.entry(*addr),
        several => Err(LookupError::Ambiguous {
            name: spec.to_string(),
            candidates: several
                .iter()
                .map(|(addr, name)| Candidate {
                    name: name.clone(),
                    module: ANONYMOUS.to_owned(),
                    addr: FileAddr(*addr),
                    file: None,
                    line: None,
                })
                .collect(),
        }),
    }
}

/// The functions by whose calls the program says something: all copies of one.
///
/// # Errors
/// As [`resolve`].
pub fn resolve_marker(modules: &Modules, spec: &NameSpec) -> Result<Vec<CodeRef>, LookupError> {
    let copies = weak_copies(modules, spec);
    match copies.is_empty() {
        true => resolve(modules, spec).map(|place| vec![place]),
        false => Ok(copies),
    }
}

/// The one function of a file that a name means; nothing where there is none. Why there is none takes long to tell.
///
/// The program's own function is meant before one of that name in a library, unless a library is named, or the name is the
/// library's function's whole name and only the end of the program's.
///
/// # Errors
/// Why there is more than one such function, or what it is that is none.
pub(crate) fn look(modules: &Modules, spec: &NameSpec) -> Result<Option<CodeRef>, LookupError> {
    let loaded = loaded(modules);
    let images: Vec<&Image> = loaded.iter().map(|&(_, image)| image).collect();
    let found = darc_symbols::only(spec, &images, found(spec, &images))?;
    Ok(found.map(|(index, addr)| CodeRef {
        module: loaded[index].0,
        addr,
    }))
}

/// All that a name means, where these are weak functions of one symbol, one a file: copies that the linker made of one in
/// each file, and which of them is called is nothing that a name tells. Empty otherwise.
fn weak_copies(modules: &Modules, spec: &NameSpec) -> Vec<CodeRef> {
    let loaded = loaded(modules);
    let images: Vec<&Image> = loaded.iter().map(|&(_, image)| image).collect();
    let copies = weak_among(spec, &images).into_iter();
    copies
        .map(|(index, addr)| CodeRef {
            module: loaded[index].0,
            addr,
        })
        .collect()
}

fn loaded(modules: &Modules) -> Vec<(ModuleId, &Image)> {
    let ids = modules.loaded().into_iter();
    ids.filter_map(|id| Some((id, modules.get(id).image.as_ref()?)))
        .collect()
}

/// What each file has of what is meant: the first of them alone, the program, where its function is meant, whatever others there are.
fn found<'a>(spec: &NameSpec, images: &[&'a Image]) -> Vec<Vec<Match<'a>>> {
    let rank = |found: &Vec<Match<'_>>| found.first().map(|found| found.rank);
    let mut each = images.iter().map(|image| image.find(spec));
    let Some(program) = each.next() else {
        return Vec::new();
    };
    let own = rank(&program);
    let mut found = vec![program];
    if own.is_some_and(|own| own < MatchRank::Tail) {
        return found;
    }
    found.extend(each);
    let mut others = found[1..].iter().filter_map(rank);
    if own.is_some_and(|own| others.all(|other| own <= other)) {
        found.truncate(1);
    }
    found
}

fn weak_among(spec: &NameSpec, images: &[&Image]) -> Vec<(usize, FileAddr)> {
    let mut symbol = None;
    let mut copies = Vec::new();
    for (index, image) in images.iter().enumerate() {
        match image.find(spec).as_slice() {
            [] => {}
            [found]
                if found.rank < MatchRank::Tail
                    && found.function.is_weak()
                    && *symbol.get_or_insert(found.symbol) == found.symbol =>
            {
                copies.push((index, found.function.addr));
            }
            _ => return Vec::new(),
        }
    }
    copies
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assembled;

    /// A library of functions that do nothing; a name with `weak ` in front is a weak symbol's.
    fn library(names: &[&str]) -> Image {
        let functions = names.iter().map(|name| match name.strip_prefix("weak ") {
            Some(name) => format!(".weak {name}\n.type {name},@function\n{name}: ret\n"),
            None => format!(".globl {name}\n.type {name},@function\n{name}: ret\n"),
        });
        let text = format!(".text\n{}", functions.collect::<String>());
        assembled::image(&text, &["-shared"])
    }

    fn spec(name: &str) -> NameSpec {
        NameSpec::parse(name).unwrap()
    }

    #[test]
    fn the_end_of_a_name_in_the_program_is_not_before_the_whole_name_in_a_library() {
        // ns::work(int) and ns::other(int)
        let program = library(&["_ZN2ns4workEi", "_ZN2ns5otherEi", "same"]);
        let library = library(&["work", "same", "_ZN3lib5otherEi"]);
        let images = [&program, &library];
        for (name, own) in [
            ("work", false),
            ("ns::work", true),
            ("other", true),
            ("same", true),
            ("absent", false),
        ] {
            let searched = found(&spec(name), &images).len();
            assert_eq!(searched == 1, own, "{name}");
        }
        assert_eq!(found(&spec("work"), &[&program]).len(), 1);
    }

    #[test]
    fn copies_of_a_weak_function_are_all_meant() {
        let with = library(&["weak mark", "weak other"]);
        let too = library(&["weak mark", "other"]);
        let without = library(&["nothing"]);
        let images = [&without, &with, &too];
        let addr = |image: &Image| image.symbol("mark").unwrap();
        assert_eq!(
            weak_among(&spec("mark"), &images),
            [(1, addr(&with)), (2, addr(&too))]
        );
        // One of them is no copy.
        assert_eq!(weak_among(&spec("other"), &images), []);
        assert_eq!(weak_among(&spec("absent"), &images), []);
    }
}
