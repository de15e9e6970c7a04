//! Functions that poll the futures of Rust's async functions: by which names they are meant, and where the futures have their
//! states.

use std::path::Path;

use darc_disasm::field_of_argument;
use darc_record::{Field, Second};
use darc_symbols::{Await, Body, Candidate, Image, LookupError, NameSpec};

use crate::code::Scanned;
use crate::coroutines;
use crate::lookup;
use crate::modules::{CodeRef, Modules};

/// What the compiler calls the body of an async function, by the older mangling of names and the newer one.
const BODIES: [&str; 2] = ["::{{closure}}", "::{closure#0}"];

/// What is known of a function that polls futures, or resumes coroutines.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Polls {
    /// Which of both.
    pub of: Polled,
    /// Where a poll finds the state of its future.
    pub field: Field,
    /// Where they wait.
    pub waits: Vec<Wait>,
}

/// What is polled, or resumed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Polled {
    /// Futures of an async function of Rust.
    Futures,
    /// Coroutines of C++.
    Coroutines,
}

/// A place at which a future waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wait {
    /// The state while it does.
    pub state: u32,
    /// What it is called in paths.
    pub name: String,
}

/// Why the states cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unread {
    /// Whose.
    pub of: Polled,
    /// For people.
    pub why: String,
}

impl Polls {
    pub(crate) fn of_coroutines(field: Field, waits: Vec<Wait>) -> Polls {
        Polls {
            of: Polled::Coroutines,
            field,
            waits,
        }
    }
}

/// What the function polls; nothing where it is none that polls the futures of an async function or block, or resumes coroutines, as far
/// as is known.
///
/// # Errors
/// Why the states of such futures or coroutines cannot be read.
pub fn polls(
    modules: &Modules,
    function: CodeRef,
    scanned: &Scanned,
) -> Result<Option<Polls>, Unread> {
    if let Some(resumed) = coroutines::resumed(modules, function, scanned) {
        let of = Polled::Coroutines;
        return resumed.map(Some).map_err(|why| Unread { of, why });
    }
    let of = Polled::Futures;
    polled(modules, function, scanned).map_err(|why| Unread { of, why })
}

fn polled(
    modules: &Modules,
    function: CodeRef,
    scanned: &Scanned,
) -> Result<Option<Polls>, String> {
    let name = modules.name(function);
    let Some(image) = image(modules, function).filter(|_| is_closure(&name)) else {
        return Ok(None);
    };
    let machine = match image.body(function.addr) {
        Some(Body::Other) => return Ok(None),
        Some(Body::Function(machine) | Body::Block(machine)) => machine,
        None => {
            return Err(format!(
                "whether {name} is one, only debugging information tells, which does not tell it or is not there"
            ));
        }
    };
    let Some(machine) = machine else {
        return Err(
            "the debugging information does not describe its futures in a known way (debug = 2 in Cargo.toml has the compiler write that)"
                .to_owned(),
        );
    };
    let argument = field_of_argument(&scanned.code, machine.state_at, machine.state_size);
    let offset = i32::try_from(machine.state_at).ok();
    let Some((argument, offset)) = argument.zip(offset) else {
        return Err(
            "its code does not begin by reading the future's state where the debugging information says that it is"
                .to_owned(),
        );
    };
    let field = Field {
        argument,
        offset,
        size: machine.state_size as u8,
        second: Second::AtEnd,
    };
    Ok(Some(Polls {
        of: Polled::Futures,
        field,
        waits: machine.awaits.iter().filter_map(wait).collect(),
    }))
}

fn wait(found: &Await) -> Option<Wait> {
    let file = found
        .file
        .as_deref()
        .and_then(|file| Path::new(file).file_name());
    let file = file.map_or_else(|| "?".into(), |name| name.to_string_lossy());
    Some(Wait {
        state: u32::try_from(found.state).ok()?,
        name: format!("await {file}:{}", found.line),
    })
}

/// The function that a name means as f0: of an async function the one that polls its futures, of a coroutine the one that goes on with
/// its body.
///
/// Where the name is that of a function, it is that function, unless it is the async one itself, which does nothing but make
/// futures; an optimised program may not have that. Async blocks have no names, so that none is meant by that of the function around.
///
/// # Errors
/// Why there is not exactly one such function.
pub fn resolve(modules: &Modules, spec: &NameSpec) -> Result<CodeRef, LookupError> {
    let NameSpec::Name { module, name } = spec else {
        return lookup::resolve(modules, spec);
    };
    let found = coroutines::meant(modules, lookup::resolve(modules, spec));
    let asynchronous = |module: Option<&str>, name: &str| {
        let mut several = None;
        for body in bodies(modules, module, name) {
            match body {
                Ok(Some(body)) if is_of_function(modules, body) => return Ok(Some(body)),
                Err(error @ LookupError::Ambiguous { .. }) => several = Some(error),
                _ => {}
            }
        }
        several.map_or(Ok(None), Err)
    };
    match found {
        Ok(function) => {
            let full = modules.name(function);
            let own = asynchronous(None, &full).ok().flatten();
            let is_own = |body: &CodeRef| {
                body.module == function.module && body_of(&modules.name(*body)) == Some(&full)
            };
            if let Some(body) = own.filter(is_own) {
                return Ok(body);
            }
            if full == *name {
                return Ok(function);
            }
            match asynchronous(module.as_deref(), name) {
                Ok(Some(body)) => Err(LookupError::Ambiguous {
                    name: name.clone(),
                    candidates: [function, body].map(|it| candidate(modules, it)).into(),
                }),
                _ => Ok(function),
            }
        }
        Err(
            error @ (LookupError::NotFound { .. }
            | LookupError::OfScript { .. }
            | LookupError::OnlyInlined { .. }),
        ) => asynchronous(module.as_deref(), name)?.ok_or(error),
        Err(error) => Err(error),
    }
}

fn candidate(modules: &Modules, function: CodeRef) -> Candidate {
    let path = &modules.get(function.module).path;
    Candidate {
        name: modules.name(function),
        module: path.rsplit('/').next().unwrap_or_default().to_owned(),
        addr: function.addr,
        file: None,
        line: None,
    }
}

/// What there is of the names that bodies of an async function of this name have.
fn bodies(
    modules: &Modules,
    module: Option<&str>,
    name: &str,
) -> [Result<Option<CodeRef>, LookupError>; 2] {
    BODIES.map(|body| {
        let spec = NameSpec::Name {
            module: module.map(str::to_owned),
            name: format!("{name}{body}"),
        };
        lookup::look(modules, &spec)
    })
}

fn is_of_function(modules: &Modules, body: CodeRef) -> bool {
    let made = image(modules, body).and_then(|image| image.body(body.addr));
    matches!(made, Some(Body::Function(_)))
}

/// The function that the body of this name is of.
fn body_of(name: &str) -> Option<&str> {
    BODIES.iter().find_map(|body| name.strip_suffix(body))
}

/// Whether a function is called as closures are, and the bodies of async functions and blocks.
fn is_closure(name: &str) -> bool {
    let last = name.rsplit("::").next().unwrap_or_default();
    last == "{{closure}}" || last.starts_with("{closure#") || last.starts_with("{async_")
}

fn image(modules: &Modules, function: CodeRef) -> Option<&Image> {
    modules.get(function.module).image.as_ref()
}
