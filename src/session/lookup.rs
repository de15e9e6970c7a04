//! Which of the functions that are loaded a name means.

use darc_symbols::{FileAddr, Image, LookupError, MatchRank, NameSpec};

use super::modules::{CodeRef, ModuleId, Modules};

/// The one function that a name means.
///
/// The program's own function is meant before one of that name in a library, unless a library is named, or the name is the
/// library's function's whole name and only the end of the program's.
///
/// # Errors
/// Why there is not exactly one such function.
pub fn find(modules: &Modules, spec: &NameSpec) -> Result<CodeRef, LookupError> {
    let loaded = loaded(modules);
    let images: Vec<&Image> = loaded.iter().map(|&(_, image)| image).collect();
    let searched = match own_is_meant(spec, &images) {
        true => &images[..1],
        false => &images[..],
    };
    let (index, addr) = darc_symbols::resolve(spec, searched)?;
    let module = loaded[index].0;
    Ok(CodeRef { module, addr })
}

/// All that a name means, where these are weak functions of one symbol, one a file: copies that the linker made of one in
/// each file, and which of them is called is nothing that a name tells. Empty otherwise.
pub fn weak_copies(modules: &Modules, spec: &NameSpec) -> Vec<CodeRef> {
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

/// Whether a function of the program, the first of the files, is meant, whatever others there are.
fn own_is_meant(spec: &NameSpec, images: &[&Image]) -> bool {
    let rank = |image: &Image| image.find(spec).first().map(|found| found.rank);
    let Some((program, libraries)) = images.split_first() else {
        return false;
    };
    let mut others = libraries.iter().filter_map(|image| rank(image));
    rank(program).is_some_and(|own| own < MatchRank::Tail || others.all(|other| own <= other))
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
    use crate::session::assembled;

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
            assert_eq!(own_is_meant(&spec(name), &images), own, "{name}");
        }
        assert!(own_is_meant(&spec("work"), &[&program]));
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
