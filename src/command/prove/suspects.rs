//! What is put to the test: the causes that were found, those who ended their waits, or what somebody has named.

use darc_analysis::{Callee, CauseKind, FnodeId, Stop};
use darc_process::lookup;
use darc_process::modules::{CodeRef, Modules};
use darc_report::Report;
use darc_symbols::{NameSpec, is_called};

use super::allocator::{is_of_c_library, refused};
use super::entries::name_of;
use crate::options::Trials;
use crate::session::catalog::Naming;
use crate::session::descent::investigation::Investigation;
use crate::session::descent::proving::{Cause, Suspect};

/// A cause with a smaller part of its peak's time is not worth an experiment.
const LEAST: f64 = 0.1;
/// Functions that ended a wait, of each cause.
const MOST_WAKERS: usize = 2;
/// Why nothing is known of calls on other threads where not all calls of f0 are measured.
const OF_SOME_THREADS: &str = "the results are of the threads that --thread has named: whether a call on another thread was for one of theirs is not known";

/// What may be a cause.
pub struct Suspected {
    /// It.
    pub suspect: Suspect,
    /// Why it is not tried, for people.
    pub refused: Option<String>,
}

/// What is tested. Why there is nothing, where that is so.
pub fn suspects(
    of: &Report,
    investigation: &Investigation,
    naming: Naming<'_>,
    trials: &Trials,
) -> Result<Vec<Suspected>, String> {
    let peaks = investigation.analysis.peaks().into_iter();
    let peaks: Vec<u32> = peaks
        .map(|peak| peak.number)
        .filter(|&peak| trials.peak.is_none_or(|wanted| wanted == peak))
        .collect();
    if peaks.is_empty() {
        return Err(match trials.peak {
            Some(_) => "there is no such peak".to_owned(),
            None => "no peak was found yet; darc resume goes on with the analysis".to_owned(),
        });
    }
    let found = match &trials.causes[..] {
        [] => found(of, investigation, naming.modules, &peaks)?,
        names => {
            let named = names
                .iter()
                .map(|name| named(investigation, naming, name, &peaks));
            named.collect::<Result<Vec<_>, _>>()?.concat()
        }
    };
    let found = match trials.self_check {
        true => paths(investigation, found)?,
        false => found,
    };
    let are_chosen = !of.target.threads.is_empty();
    let refused = |suspect: &Suspect| match suspect.cause {
        Cause::Elsewhere(_) if are_chosen => Some(OF_SOME_THREADS.to_owned()),
        _ if trials.in_allocator => None,
        cause => refused(cause, investigation, naming),
    };
    let suspected = found.into_iter().map(|suspect| Suspected {
        refused: refused(&suspect),
        suspect,
    });
    Ok(suspected.collect())
}

/// The causes that were found, and who woke those that wait.
fn found(
    of: &Report,
    investigation: &Investigation,
    modules: &Modules,
    peaks: &[u32],
) -> Result<Vec<Suspect>, String> {
    let analysis = &investigation.analysis;
    let mut suspects: Vec<Suspect> = Vec::new();
    for &peak in peaks {
        for cause in analysis.root_causes(peak) {
            let is_call = matches!(
                cause.kind,
                CauseKind::Function | CauseKind::Loop | CauseKind::Syscall
            );
            // What is not known to be a cause needs no proof.
            let has_ended = !matches!(cause.stop, Stop::StillDescending | Stop::Spread);
            let Some(&fnode) = cause.path.last().filter(|_| is_call && has_ended) else {
                continue;
            };
            let cause_of = |cause| Suspect { peak, cause };
            let suspect = cause_of(Cause::Call(fnode));
            if cause.share >= LEAST && !suspects.contains(&suspect) {
                suspects.push(suspect);
            }
        }
        for function in wakers(of, peak, modules) {
            let cause = Cause::Elsewhere(function);
            let suspect = Suspect { peak, cause };
            if investigation.f0 != Some(function) && !suspects.contains(&suspect) {
                suspects.push(suspect);
            }
        }
    }
    match suspects.is_empty() {
        true => Err(
            "no cause was found that is a call; --cause FUNC tests a function of the program"
                .to_owned(),
        ),
        false => Ok(suspects),
    }
}

/// The functions of the program in which other threads were when they ended the waits of a peak's causes.
fn wakers(of: &Report, peak: u32, modules: &Modules) -> Vec<CodeRef> {
    let entry = of.peaks.iter().filter(|entry| entry.peak == peak);
    let causes = entry.flat_map(|entry| &entry.root_causes);
    let causes = causes.filter(|cause| cause.share_of_time >= LEAST);
    let mut wakers: Vec<CodeRef> = Vec::new();
    for cause in causes {
        let others = cause.waits.iter().flat_map(|waits| &waits.others);
        let stacks = others.filter_map(|other| other.doing.first());
        let functions = stacks.filter_map(|doing| innermost(&doing.functions, modules));
        for function in distinct(functions, MOST_WAKERS) {
            if !wakers.contains(&function) {
                wakers.push(function);
            }
        }
    }
    wakers
}

/// The first so many that differ.
fn distinct(functions: impl Iterator<Item = CodeRef>, most: usize) -> Vec<CodeRef> {
    let mut found: Vec<CodeRef> = Vec::new();
    for function in functions {
        if found.len() < most && !found.contains(&function) {
            found.push(function);
        }
    }
    found
}

/// The innermost function of a stack that is not the C library's, given the names, the outermost first.
fn innermost(names: &[String], modules: &Modules) -> Option<CodeRef> {
    let functions = names.iter().rev().filter_map(|name| told(name, modules));
    functions
        .into_iter()
        .find(|&at| !is_of_c_library(at, modules))
}

/// The function of a name that a report has: as it is, or, of one that nothing names, its file and address.
fn told(name: &str, modules: &Modules) -> Option<CodeRef> {
    let as_it_is = NameSpec::Name {
        module: None,
        name: name.to_owned(),
    };
    let found = lookup::resolve(modules, &as_it_is).ok();
    found.or_else(|| lookup::resolve(modules, &NameSpec::parse(name).ok()?).ok())
}

/// The calls of a function, one for each caller: all of a caller's calls of it are tested together. A function of which the
/// results have no call may be called on other threads.
fn named(
    investigation: &Investigation,
    naming: Naming<'_>,
    name: &str,
    peaks: &[u32],
) -> Result<Vec<Suspect>, String> {
    let ftree = investigation.analysis.ftree();
    let mut found: Vec<((Option<FnodeId>, Callee), FnodeId)> = Vec::new();
    for fnode in ftree.fnodes().filter(|fnode| fnode.parent.is_some()) {
        let is_it = is_called(&name_of(fnode.callee, naming), name);
        let call = (fnode.parent, fnode.callee);
        if is_it && !found.iter().any(|&(known, _)| known == call) {
            found.push((call, fnode.id));
        }
    }
    let mut causes: Vec<Cause> = found.iter().map(|&(_, it)| Cause::Call(it)).collect();
    if causes.is_empty() {
        let spec = NameSpec::parse(name).map_err(|error| error.to_string())?;
        let elsewhere = lookup::resolve(naming.modules, &spec).map_err(|error| {
            format!(
                "{name:?}: what the analysis looked into calls no function of that name; {error}"
            )
        })?;
        causes.push(Cause::Elsewhere(elsewhere));
    }
    let tests = peaks
        .iter()
        .flat_map(|&peak| causes.iter().map(move |&cause| Suspect { peak, cause }));
    Ok(tests.collect())
}

/// The probes on the longest of the paths to each peak's causes.
fn paths(investigation: &Investigation, found: Vec<Suspect>) -> Result<Vec<Suspect>, String> {
    let ftree = investigation.analysis.ftree();
    let mut longest: Vec<(Suspect, usize)> = Vec::new();
    for suspect in found {
        let Cause::Call(fnode) = suspect.cause else {
            continue;
        };
        let length = ftree.path(fnode).len();
        let path = Suspect {
            cause: Cause::Probes(fnode),
            ..suspect
        };
        match longest.iter_mut().find(|(it, _)| it.peak == path.peak) {
            Some(known) if known.1 >= length => {}
            Some(known) => *known = (path, length),
            None => longest.push((path, length)),
        }
    }
    match longest.is_empty() {
        true => Err(
            "no cause is a call of f0's own thread, so there is no path whose probes could be tested"
                .to_owned(),
        ),
        false => Ok(longest.into_iter().map(|(path, _)| path).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_that_nothing_names_are_found_by_file_and_address() {
        let mut modules = Modules::default();
        modules.refresh(std::process::id() as i32).unwrap();
        let nameless = modules.loaded().into_iter().find_map(|module| {
            let image = modules.get(module).image.as_ref()?;
            let mut functions = image.functions().iter();
            let addr = functions.find(|it| it.raw_name().is_none())?.addr;
            Some(CodeRef { module, addr })
        });
        let at = nameless.expect("libraries have functions without a symbol");
        let name = modules.name(at);
        assert!(name.contains("+0x"), "{name}");
        assert_eq!(told(&name, &modules), Some(at), "{name}");
        assert_eq!(told("no_such_function", &modules), None);
    }

    #[test]
    fn a_function_that_ends_many_waits_leaves_room_for_another() {
        let at = |addr| CodeRef {
            module: darc_process::modules::ModuleId(0),
            addr: darc_symbols::FileAddr(addr),
        };
        let found = distinct([1, 1, 1, 2, 3].map(at).into_iter(), MOST_WAKERS);
        assert_eq!(found, [1, 2].map(at));
    }
}
