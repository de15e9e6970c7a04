//! Functions that compilers make of a coroutine of C++: by which names they are meant, and where its frame says at which place it waits.
//!
//! The coroutine's own function, the *ramp*, makes the frame and gives way. What the body does is in another function, which gets the
//! frame: gcc's *actor* (`_Z5serve….Frame.actor`), which goes on from everywhere and is called by the ramp and by the one that
//! destroys, too, and clang's `_Z5servei.resume`, which goes on from everywhere but the beginning: that is in the ramp.

use darc_disasm::{
    FunctionCode, SiteKind, Target, constants_written, direct_transfers, field_of_argument,
    may_go_by_table,
};
use darc_record::{Field, Second};
use darc_symbols::{
    Candidate, CoroutineFrame, FileAddr, Function, Image, LookupError, NameSpec, as_compiled,
    demangle,
};

use crate::code::Scanned;
use crate::futures::{Polls, Wait};
use crate::lookup;
use crate::modules::{CodeRef, Modules};

/// What the names of the functions end with that compilers make of a coroutine, as symbols.
const ACTORS: [&str; 2] = [".Frame.actor", ".frame.actor"];
const RESUME: &str = ".resume";
/// And as they are shown.
const SHOWN: [&str; 4] = [
    " [clone .actor]",
    " [clone .resume]",
    " [clone .destroy]",
    " [clone .cleanup]",
];
/// Those among them that go on with the body.
const GOES_ON: [&str; 2] = [SHOWN[0], SHOWN[1]];
/// The number of the place at which a coroutine goes on that has not been resumed yet (`initial_suspend`); it is made with 0.
const BEGINNING: u16 = 2;
/// The largest frame offset at which a place is looked for.
const MOST_OFFSET: u64 = i32::MAX as u64;

/// The function that a name means as f0, after what was found: of a coroutine the one that goes on with its body.
///
/// # Errors
/// As those of what was found.
pub(crate) fn meant(
    modules: &Modules,
    found: Result<CodeRef, LookupError>,
) -> Result<CodeRef, LookupError> {
    match found {
        Ok(function) => Ok(goes_on(modules, function).unwrap_or(function)),
        Err(LookupError::Ambiguous { name, candidates }) => {
            among(modules, &candidates).ok_or(LookupError::Ambiguous { name, candidates })
        }
        Err(error) => Err(error),
    }
}

/// What a function is shown as, without what says that link-time optimisation renamed it or that it is a clone of the whole function.
fn shown(mut name: &str) -> &str {
    const RENAMED: [&str; 4] = [".lto_priv.", ".llvm.", ".isra.", ".constprop."];
    while let Some((front, end)) = name.rsplit_once(" [clone ")
        && RENAMED.iter().any(|renamed| end.starts_with(renamed))
    {
        name = front;
    }
    name
}

/// The one coroutine that all of these functions are of.
fn among(modules: &Modules, candidates: &[Candidate]) -> Option<CodeRef> {
    let is_made = |it: &&Candidate| SHOWN.iter().any(|end| shown(&it.name).ends_with(end));
    let (made, ramps): (Vec<&Candidate>, Vec<&Candidate>) = candidates.iter().partition(is_made);
    let mut bodies = made
        .iter()
        .filter(|it| GOES_ON.iter().any(|end| shown(&it.name).ends_with(end)));
    let (body, other) = (bodies.next()?, bodies.next());
    if other.is_some() || ramps.len() > 1 {
        return None;
    }
    let spec = NameSpec::ModuleAddress {
        module: body.module.clone(),
        addr: body.addr,
    };
    let body = lookup::resolve(modules, &spec).ok()?;
    let is_of = |ramp: &&Candidate| {
        let addr = ramp.addr;
        goes_on(modules, CodeRef { addr, ..body }) == Some(body)
    };
    ramps.iter().all(is_of).then_some(body)
}

/// The function that goes on with the body of a coroutine with this ramp.
fn goes_on(modules: &Modules, ramp: CodeRef) -> Option<CodeRef> {
    let image = image(modules, ramp)?;
    let function = image.function_at(ramp.addr)?;
    let names = function.names().map(as_compiled);
    let names = names.filter(|name| name.starts_with("_Z"));
    let addr = names
        .into_iter()
        .find_map(|name| body_of(image, function, name))?;
    Some(CodeRef { addr, ..ramp })
}

/// The body of a ramp that has this name. Coroutines of several files may have the same: then it is the one that the ramp calls.
fn body_of(image: &Image, ramp: &Function, name: &str) -> Option<FileAddr> {
    let by_gcc = ACTORS.map(|end| {
        let frame = &end[..end.len() - ".actor".len()];
        format!("{}{name}{end}", name.len() + frame.len())
    });
    let by_clang = format!("{name}{RESUME}");
    let is_body =
        |name: &str| name == by_clang || by_gcc.iter().any(|end| name.ends_with(end.as_str()));
    let is_body = |function: &&Function| function.names().map(as_compiled).any(is_body);
    let bodies = image.functions().iter().filter(is_body);
    let bodies: Vec<FileAddr> = bodies.map(|function| function.addr).collect();
    let is_called = |body: &&FileAddr| enters(image, ramp, **body);
    match bodies[..] {
        [body] => Some(body),
        _ => bodies.iter().find(is_called).copied(),
    }
}

/// Whether a function does nothing but make coroutines.
#[must_use]
pub fn is_ramp(modules: &Modules, function: CodeRef) -> bool {
    goes_on(modules, function).is_some()
}

/// What is known of the coroutines that a function resumes; nothing where it resumes none, as far as its name says.
pub(crate) fn resumed(
    modules: &Modules,
    function: CodeRef,
    scanned: &Scanned,
) -> Option<Result<Polls, String>> {
    let image = image(modules, function)?;
    let names = image.function_at(function.addr)?.names();
    let names: Vec<&str> = names.map(as_compiled).collect();
    let by_gcc = names.iter().find_map(|name| {
        let mut ends = ACTORS.iter();
        ends.find_map(|end| name.strip_suffix(end).map(|of| (of, *end)))
    });
    if let Some((of, end)) = by_gcc {
        let destroys = format!("{of}{}", end.replace(".actor", ".destroy"));
        return Some(by_frame(modules, function, scanned, &destroys));
    }
    let by_clang = |name: &&str| {
        let ramp = name.strip_suffix(RESUME);
        ramp.is_some_and(|ramp| ramp.starts_with("_Z"))
    };
    names.iter().any(by_clang).then(|| {
        Err("the compiler (clang) has the first part of the coroutine run in the function that makes it, which is not measured".to_owned())
    })
}

fn by_frame(
    modules: &Modules,
    function: CodeRef,
    scanned: &Scanned,
    destroys: &str,
) -> Result<Polls, String> {
    let image = image(modules, function);
    let frame = image.and_then(|image| image.coroutine(function.addr));
    let (Some(image), Some(frame)) = (image, frame) else {
        return Err(
            "debugging information (-g, of gcc 12 or later) that says where its frame has what is not there, or has another form"
                .to_owned(),
        );
    };
    let code = &scanned.code;
    let argument = field_of_argument(code, frame.index_at, 2);
    let index_at = (frame.index_at <= MOST_OFFSET).then_some(frame.index_at as i32);
    let Some((argument, offset)) = argument.zip(index_at) else {
        return Err(
            "its code does not begin by reading where it goes on at the place that the debugging information tells"
                .to_owned(),
        );
    };
    if !is_entered_by(image, destroys, function.addr) {
        return Err("what destroys such coroutines does not call it for that".to_owned());
    }
    if may_end_inside(scanned) {
        return Err("where one of its jumps goes is not known".to_owned());
    }
    let field = Field {
        argument,
        offset,
        size: 2,
        second: Second::Head { new: BEGINNING },
    };
    let base = modules.locate(function).map_or(0, |at| at.0);
    let to_file = base.wrapping_sub(function.addr.0);
    if jumps_to_body(image, scanned, to_file) {
        return Err("it jumps to the body of a certain other coroutine".to_owned());
    }
    let waits = waits(image, code, &frame, to_file);
    Ok(Polls::of_coroutines(field, waits))
}

/// Whether a function of a name calls another one, or jumps there. Those of several files may have the same.
fn is_entered_by(image: &Image, name: &str, entered: FileAddr) -> bool {
    let mut functions = image.functions().iter();
    functions.any(|function| {
        function.names().any(|it| as_compiled(it) == name) && enters(image, function, entered)
    })
}

/// Whether a function calls another one, or jumps there.
fn enters(image: &Image, function: &Function, entered: FileAddr) -> bool {
    let bytes = function
        .size
        .and_then(|size| image.bytes_at(function.addr, size));
    let bytes = bytes.unwrap_or_default();
    direct_transfers(&bytes, function.addr.0).any(|(_, to)| to == entered.0)
}

/// Whether it passes control to a coroutine without the pointer by which such are resumed.
fn jumps_to_body(image: &Image, scanned: &Scanned, to_file: u64) -> bool {
    let is_body = |name: &str| ACTORS.iter().any(|end| as_compiled(name).ends_with(end));
    let is_one = |addr: u64| {
        let function = image.function_at(FileAddr(addr.wrapping_sub(to_file)));
        function.is_some_and(|function| function.names().any(is_body))
    };
    scanned.sites.iter().any(|site| match site.kind {
        SiteKind::TailJump {
            target: Target::Direct(to),
            ..
        } => is_one(to),
        _ => false,
    })
}

/// Whether what looks like a way out may be one to elsewhere in it.
fn may_end_inside(scanned: &Scanned) -> bool {
    scanned.sites.iter().any(|site| match site.kind {
        SiteKind::TailJump {
            target: Target::Indirect(_),
            ..
        } => may_go_by_table(&scanned.code, site.addr),
        _ => false,
    })
}

/// The places at which a coroutine waits, by their numbers, and what they are called.
fn waits(image: &Image, code: &FunctionCode, frame: &CoroutineFrame, to_file: u64) -> Vec<Wait> {
    let mut waits: Vec<Wait> = Vec::new();
    let written = constants_written(code, frame.index_at).into_iter();
    for written in written.filter(|it| it.value > 0 && it.value % 2 == 0) {
        let to_file = |addr: &u64| FileAddr(addr.wrapping_sub(to_file));
        let near = [&written.behind, &written.before];
        let near = near.map(|near| near.iter().map(to_file).collect());
        let line = match written.value {
            BEGINNING => None,
            _ => line(image, frame, to_file(&written.addr), &near),
        };
        let state = u32::from(written.value);
        let name = match line {
            _ if written.value == BEGINNING => "initial_suspend".to_owned(),
            Some((file, line)) => format!("co_await {file}:{line}"),
            None => numbered(state),
        };
        match waits.iter_mut().find(|it| it.state == state) {
            None => waits.push(Wait { state, name }),
            // The compiler has written the code of it twice, and says different things of it.
            Some(known) if known.name != name => known.name = numbered(state),
            Some(_) => {}
        }
    }
    // It waits somewhere, wherever.
    if waits.is_empty() {
        let state = u32::from(BEGINNING) + 2;
        let name = numbered(state);
        waits.push(Wait { state, name });
    }
    waits
}

/// What a place is called of which no more is known than the number that the frame has: counted in the order of the source, from 1 on.
#[must_use]
pub fn numbered(state: u32) -> String {
    format!("co_await number {}", (state / 2).saturating_sub(1))
}

/// Where a `co_await` is in the source: where its awaiter is asked to suspend, else what stands for the line of its code. gcc gives
/// some of that to the lines at which the function begins and ends: these prove nothing.
fn line(
    image: &Image,
    frame: &CoroutineFrame,
    written: FileAddr,
    [behind, before]: &[Vec<FileAddr>; 2],
) -> Option<(String, u32)> {
    const ASKED: &str = "await_suspend";
    let of_function = |addr: FileAddr| {
        let frames = image.frames(addr);
        let inlined = frames
            .len()
            .checked_sub(2)
            .map(|at| frames[at].function.clone());
        let own = frames.into_iter().next_back()?;
        let file = own.file?.rsplit('/').next()?.to_owned();
        Some(((file, own.line?), inlined))
    };
    let is_asked = |name: &str| name.contains(ASKED);
    let asks_inline = |addr: FileAddr| {
        let (place, inlined) = of_function(addr)?;
        inlined.is_some_and(|name| is_asked(&name)).then_some(place)
    };
    let calls = |addr: FileAddr| {
        let called = image.bytes_at(addr, 5).unwrap_or_default();
        let called = direct_transfers(&called, addr.0).next();
        let called = called.filter(|&(from, _)| from == addr.0);
        let called = called.and_then(|(_, to)| image.function_at(FileAddr(to)));
        let is_there =
            called.is_some_and(|function| function.names().any(|name| is_asked(&demangle(name))));
        is_there.then(|| of_function(addr).map(|(place, _)| place))?
    };
    let own = || of_function(written).map(|(place, _)| place);
    let proves = |place: &(String, u32)| !frame.lines.contains(&Some(place.1));
    // It is asked when the number is there; the compiler may have moved some of what is inlined.
    let mut next = behind.iter();
    let asked = next.find_map(|&addr| asks_inline(addr).or_else(|| calls(addr)));
    let asked = asked.or_else(|| before.iter().find_map(|&addr| asks_inline(addr)));
    asked.or_else(|| own().filter(proves))
}

fn image(modules: &Modules, function: CodeRef) -> Option<&Image> {
    modules.get(function.module).image.as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_renamed_a_function_is_not_a_part_of_what_it_is() {
        let body = "serve(serve(int)::_Z5servei.Frame*) [clone .actor]";
        for end in [
            "",
            " [clone .lto_priv.0]",
            " [clone .isra.0] [clone .lto_priv.12]",
        ] {
            assert_eq!(shown(&format!("{body}{end}")), body);
        }
        let cold = format!("{body} [clone .cold]");
        assert_eq!(shown(&cold), cold);
    }
}
