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
use darc_symbols::{Candidate, CoroutineFrame, FileAddr, Image, LookupError, NameSpec, demangle};

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

/// The one coroutine that all of these functions are of.
fn among(modules: &Modules, candidates: &[Candidate]) -> Option<CodeRef> {
    let is_made = |it: &&Candidate| SHOWN.iter().any(|end| it.name.ends_with(end));
    let (made, ramps): (Vec<&Candidate>, Vec<&Candidate>) = candidates.iter().partition(is_made);
    let mut bodies = made
        .iter()
        .filter(|it| GOES_ON.iter().any(|end| it.name.ends_with(end)));
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
    let names = image.function_at(ramp.addr)?;
    let names = names.names().filter(|name| name.starts_with("_Z"));
    let addr = names.into_iter().find_map(|name| body_of(image, name))?;
    Some(CodeRef { addr, ..ramp })
}

fn body_of(image: &Image, ramp: &str) -> Option<FileAddr> {
    let by_gcc = ACTORS.map(|end| {
        let frame = &end[..end.len() - ".actor".len()];
        format!("{}{ramp}{end}", ramp.len() + frame.len())
    });
    let by_clang = format!("{ramp}{RESUME}");
    let is_body =
        |name: &str| name == by_clang || by_gcc.iter().any(|end| name.ends_with(end.as_str()));
    let mut functions = image.functions().iter();
    let found = functions.find(|function| function.names().any(is_body));
    found.map(|function| function.addr)
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
    let names: Vec<&str> = image.function_at(function.addr)?.names().collect();
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
            "debugging information (-g, of gcc 12 or later) that says where its frame has what is not there"
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
    let waits = waits(image, code, &frame, to_file);
    Ok(Polls::of_coroutines(field, waits))
}

/// Whether the function of a name calls another one, or jumps there.
fn is_entered_by(image: &Image, name: &str, entered: FileAddr) -> bool {
    let mut functions = image.functions().iter();
    let found = functions.find(|function| function.names().any(|it| it == name));
    let Some((function, size)) = found.and_then(|it| Some((it, it.size?))) else {
        return false;
    };
    let bytes = image.bytes_at(function.addr, size).unwrap_or_default();
    direct_transfers(&bytes, function.addr.0).any(|(_, to)| to == entered.0)
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
        let around: Vec<FileAddr> = written.around.iter().map(to_file).collect();
        let line = match written.value {
            BEGINNING => None,
            _ => line(image, frame, to_file(&written.addr), &around),
        };
        let number = written.value / 2 - 1;
        let name = match line {
            _ if written.value == BEGINNING => "initial_suspend".to_owned(),
            Some((file, line)) => format!("co_await {file}:{line}"),
            None => format!("co_await number {number}"),
        };
        let state = u32::from(written.value);
        match waits.iter_mut().find(|it| it.state == state) {
            None => waits.push(Wait { state, name }),
            // The compiler has written the code of it twice, and says different things of it.
            Some(known) if known.name != name => known.name = format!("co_await number {number}"),
            Some(_) => {}
        }
    }
    waits
}

/// Where a `co_await` is in the source: where its awaiter is asked to suspend, else what stands for the line of its code. gcc gives
/// some of that to the lines at which the function begins and ends: these prove nothing.
fn line(
    image: &Image,
    frame: &CoroutineFrame,
    written: FileAddr,
    around: &[FileAddr],
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
    let asks = |addr: FileAddr| {
        let (place, inlined) = of_function(addr)?;
        let is_asked = |name: &str| name.contains(ASKED);
        let called = image.bytes_at(addr, 5).unwrap_or_default();
        let called = direct_transfers(&called, addr.0).next();
        let called = called.filter(|&(from, _)| from == addr.0);
        let called = called.and_then(|(_, to)| image.function_at(FileAddr(to)));
        let is_there = inlined.is_some_and(|name| is_asked(&name))
            || called
                .is_some_and(|function| function.names().any(|name| is_asked(&demangle(name))));
        is_there.then_some(place)
    };
    let own = || of_function(written).map(|(place, _)| place);
    let proves = |place: &(String, u32)| !frame.lines.contains(&Some(place.1));
    let asked = around.iter().find_map(|&addr| asks(addr));
    asked.or_else(|| own().filter(proves))
}

fn image(modules: &Modules, function: CodeRef) -> Option<&Image> {
    modules.get(function.module).image.as_ref()
}
