//! The report of an investigation.

use std::collections::BTreeMap;
use std::time::Duration;

use darc_analysis::Hz;
use darc_process::modules::{CodeRef, Modules};
use darc_report::assemble::{self, Names as _};
use darc_report::model::{
    Clock, ClockUnit, Ended, Engine, Focus, Function, HandOver, Kind, Module, Pause, PeakEntry,
    ProbeCost, Probes, Report, SCHEMA, SkippedSite, Status, Survey, Target, TimePart, TimeTable,
    UNMEASURED, Whose,
};
use darc_symbols::Image;
use darc_tracer::effort::Spent;
use darc_tracer::engine::Counters;

use crate::session::asynchronous::Serving;
use crate::session::catalog::Naming;
use crate::session::descent::futures::Ops;
use crate::session::descent::investigation::Investigation;
use crate::session::descent::localise::parts;
use crate::session::effort;
use crate::session::survey::{self, Arrival};

/// What was found of an f0 that runs already.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// Where its time goes.
    pub time: &'a TimeTable,
    /// The functions below it, each with how the descent arrived at it.
    pub functions: &'a [(&'a Arrival, &'a Investigation)],
}

/// The process for a report, which has not ended. Where its program was not seen its path is the command's.
#[must_use]
pub fn target(modules: &Modules, pid: i32, command: Vec<String>) -> Target {
    let program = modules.program();
    let named = || command.first().cloned();
    Target {
        pid: Some(pid),
        exe: program
            .map(|module| module.path.clone())
            .or_else(named)
            .unwrap_or_default(),
        build_id: program.and_then(|module| module.build_id.clone()),
        command,
        exit_status: None,
        attached: false,
        threads: Vec::new(),
        goroutines: program
            .and_then(|module| module.image.as_ref())
            .is_some_and(Image::is_go),
    }
}

/// Puts together what is known, with names. `ended` says how it ended, if it did.
#[must_use]
pub fn report(
    naming: Naming<'_>,
    investigation: &Investigation,
    found: Option<Found<'_>>,
    serving: Option<&Serving>,
    (engine, hz): (Engine, Hz),
    target: Target,
    ended: Option<Ended>,
) -> Report {
    let analysis = &investigation.analysis;
    let modules = naming.modules.known();
    let below = found.iter().flat_map(|found| found.functions);
    let below = below.map(|&(arrival, investigation)| {
        let own = Naming {
            f0: investigation.f0,
            ..naming
        };
        focus(own, arrival, investigation)
    });
    let served = serving.and_then(|serving| served(naming, investigation, serving));
    let focus = below.chain(served);
    let focus: Vec<Focus> = match ended {
        Some(_) => focus.map(Focus::ended).collect(),
        None => focus.collect(),
    };
    let peaks = peaks(investigation, naming);
    let report = Report {
        schema: SCHEMA,
        darc: env!("CARGO_PKG_VERSION").to_owned(),
        engine,
        status: match &found {
            Some(found) => overall(found.time, &focus),
            None => with_serving(assemble::status(analysis, &peaks), &focus),
        },
        ended: None,
        target,
        f0: match investigation.f0 {
            Some(_) => naming.f0(),
            // It was never found: what was asked for.
            None => Function {
                name: investigation.spec.to_string(),
                ..Function::default()
            },
        },
        futures: match &investigation.ops {
            Ops::Lives(followed) => Some(assemble::futures(&followed.fates())),
            Ops::LivesAgain(fates) => Some(assemble::futures(fates)),
            Ops::Calls | Ops::LivesWherePossible => None,
        },
        clock: Clock {
            unit: ClockUnit::Cycles,
            hz: hz.get(),
        },
        parameters: assemble::parameters(analysis.params()),
        modules: modules
            .iter()
            .map(|module| Module {
                path: module.path.clone(),
                build_id: module.build_id.clone(),
            })
            .collect(),
        profile: assemble::latencies(analysis),
        comparison: analysis.comparison().as_ref().map(assemble::comparison),
        peaks,
        values: assemble::values(analysis),
        ftree: assemble::ftree(analysis, &naming),
        time: found.map(|found| found.time.clone()),
        focus,
        proofs: Vec::new(),
        effects: Vec::new(),
        probes: probes(naming, investigation, found, serving),
        warnings: warnings(naming, investigation, found),
    };
    match ended {
        Some(ended) => report.ended(ended),
        None => report,
    }
}

/// What the person should know, each thing once. What only one of the functions below says is said with its name.
fn warnings(
    naming: Naming<'_>,
    investigation: &Investigation,
    found: Option<Found<'_>>,
) -> Vec<String> {
    let below: Vec<_> = found.iter().flat_map(|found| found.functions).collect();
    let saying = |warning: &String| {
        let says = |below: &&&(&Arrival, &Investigation)| below.1.warnings.contains(warning);
        below.iter().filter(says).count()
    };
    let mut warnings = investigation.warnings.clone();
    for (arrival, one) in &below {
        let name = naming.modules.name(arrival.function);
        for warning in &one.warnings {
            let own = saying(warning) == 1 && !warning.contains(&name);
            let said = match own && !warnings.contains(warning) {
                true => format!("{name}: {warning}"),
                false => warning.clone(),
            };
            if !warnings.contains(&said) {
                warnings.push(said);
            }
        }
    }
    warnings
}

/// The peaks, with what is known of the functions and system calls at the paths' ends.
fn peaks(investigation: &Investigation, naming: Naming<'_>) -> Vec<PeakEntry> {
    let analysis = &investigation.analysis;
    let mut peaks = assemble::peaks(analysis, &naming);
    for peak in &mut peaks {
        let causes = analysis.root_causes(peak.peak);
        for (entry, cause) in peak.root_causes.iter_mut().zip(&causes) {
            let narrowed = investigation.narrowed.iter().find(|narrowed| {
                narrowed.end.peak == peak.peak && cause.path.last() == Some(&narrowed.end.fnode)
            });
            entry.narrowed = narrowed.map(|narrowed| parts::entry(narrowed, naming));
            if entry.kind == Kind::Preemption {
                entry.reason.clone_from(&investigation.held_back);
            }
            if let Some(&last) = cause.path.last() {
                entry.arguments = investigation.arguments.entries(last, peak.peak);
                if entry.kind == Kind::Function {
                    entry.inlined = naming.inlined_in(analysis.ftree().fnode(last));
                }
            }
        }
    }
    peaks
}

/// The analysis is as far as the one that is behind.
fn with_serving(own: Status, focus: &[Focus]) -> Status {
    let is = |status| own == status || focus.iter().any(|focus| focus.status == status);
    [
        Status::InProgress,
        Status::Undecided,
        Status::Spread,
        Status::MaxDepthReached,
    ]
    .into_iter()
    .find(|&status| is(status))
    .unwrap_or(own)
}

/// The functions below with nearly all of the time have to be explained, which they are has to be known, there has to be
/// something to explain, and it has to be of threads that take most of the CPU time.
fn overall(time: &TimeTable, focus: &[Focus]) -> Status {
    let of = |status| focus.iter().filter(move |focus| focus.status == status);
    let share = |status| of(status).map(|focus| focus.share_of_time).sum::<f64>();
    let of_work = |share| of_work(time, share);
    let open = of_work(unexplained(time, focus) + share(Status::Undecided));
    let is_explained = focus.is_empty() || of(Status::Undecided).count() < focus.len();
    if time.windows == 0 || time.survey == Survey::Unfinished || of(Status::InProgress).count() > 0
    {
        Status::InProgress
    } else if open > MOST_UNEXPLAINED
        || !is_explained
        || (focus.is_empty() && 1.0 - waiting(time) < LEAST_WORK)
        || time.share_of_cpu.is_some_and(|share| share < MOST_CPU)
        || time
            .not_running
            .is_some_and(|share| share > MOST_NOT_RUNNING)
    {
        Status::Undecided
    } else if open + of_work(share(Status::Spread)) > MOST_UNEXPLAINED {
        Status::Spread
    } else if of(Status::MaxDepthReached).count() > 0 {
        Status::MaxDepthReached
    } else {
        Status::RootCauseFound
    }
}

/// Threads with this part of the CPU time at least stand for the process.
const MOST_CPU: f64 = 0.5;

/// Where threads were ready and did not run for more of the time, what is said of functions is said of that.
const MOST_NOT_RUNNING: f64 = 0.5;

/// So much of the time may be in functions that nobody has looked into, or whose analysis has no answer.
const MOST_UNEXPLAINED: f64 = 0.2;

/// Says which functions' own time may be that of calls which could not be measured.
pub fn tell_unmeasured(time: &mut TimeTable, passed_over: &BTreeMap<String, usize>) {
    for part in &mut time.parts {
        let name = part.path.last();
        if part.whose == Whose::Itself
            && let Some(count) = name.and_then(|name| passed_over.get(name))
        {
            part.reason = Some(format!("{count} {UNMEASURED}"));
        }
    }
}

/// The part of the time that is in functions which were neither analysed nor are an end by themselves.
fn unexplained(time: &TimeTable, focus: &[Focus]) -> f64 {
    let share = |part: &TimePart| part.share_of_time;
    let is_open = |part: &&TimePart| {
        let is_open = match part.whose {
            Whose::Callee => part.reason.as_deref() != Some(survey::NO_CALLS),
            Whose::Itself => part.is_partly_measured(),
            Whose::Waiting => false,
        };
        is_open && !focus.iter().any(|focus| part.path.starts_with(&focus.path))
    };
    time.parts.iter().filter(is_open).map(share).sum()
}

/// Which part that is of the time in which threads did something.
fn of_work(time: &TimeTable, share: f64) -> f64 {
    match 1.0 - waiting(time) {
        // Of threads that do nothing but wait there is nothing else to explain.
        work if work < LEAST_WORK => share,
        work => share / work,
    }
}

/// The part of the time in which threads waited for something to do.
fn waiting(time: &TimeTable) -> f64 {
    let waits = time.parts.iter();
    let waits = waits.filter(|part| part.whose == Whose::Waiting);
    waits.map(|part| part.share_of_time).sum()
}

/// Threads that work for a smaller part of the time do next to nothing.
const LEAST_WORK: f64 = 0.05;

/// `naming` is for the ids of that analysis.
fn focus(naming: Naming<'_>, arrival: &Arrival, investigation: &Investigation) -> Focus {
    let analysis = &investigation.analysis;
    let peaks = peaks(investigation, naming);
    Focus {
        path: arrival.path.clone(),
        function: naming.function_at(arrival.function),
        callers: arrival
            .callers
            .iter()
            .map(|&caller| naming.place(caller))
            .collect(),
        status: assemble::status(analysis, &peaks),
        share_of_time: arrival.share,
        calls: arrival.calls,
        profile: assemble::latencies(analysis),
        peaks,
        values: assemble::values(analysis),
        ftree: assemble::ftree(analysis, &naming),
        handover: None,
    }
}

/// What f0 hands to other threads, and how that is served.
fn served(naming: Naming<'_>, main: &Investigation, serving: &Serving) -> Option<Focus> {
    let (enqueue, serve) = (serving.enqueue_at?, serving.investigation.f0?);
    let mut path = vec![main.f0?, enqueue, serve];
    // f0 may be the function that enqueues.
    path.dedup();
    let arrival = Arrival {
        path: path
            .into_iter()
            .map(|place| naming.modules.name(place))
            .collect(),
        function: serve,
        callers: Vec::new(),
        share: 0.0,
        calls: serving.investigation.analysis.profile().count(),
    };
    let own = Naming {
        f0: Some(serve),
        ..naming
    };
    let counts = serving.in_flight.counts();
    let mut found = focus(own, &arrival, &serving.investigation);
    for peak in &mut found.peaks {
        if let Some(example) = &mut peak.example {
            example.waited = serving.waited(peak.peak).map(|waited| waited.0);
        }
    }
    Some(Focus {
        handover: Some(HandOver {
            enqueue: naming.function_at(enqueue),
            enqueued_object: serving.enqueue.object.to_string(),
            served_object: serving.serve.object.to_string(),
            enqueued: counts.enqueued,
            served: counts.served,
            in_flight: serving.in_flight.count() as u64,
            expired: counts.expired,
            crowded_out: counts.crowded_out,
            others: counts.others,
            unread: counts.unread,
            waits: assemble::profile(serving.in_flight.waits()),
            peaks: assemble::handed_over(serving.in_flight.of_ops(), &main.analysis),
            of_unknown_ops: serving.in_flight.of_ops().unknown(),
        }),
        ..found
    })
}

/// `investigation` and those below it and behind it: all share their files.
fn probes(
    naming: Naming<'_>,
    investigation: &Investigation,
    found: Option<Found<'_>>,
    serving: Option<&Serving>,
) -> Probes {
    let below = found.iter().flat_map(|found| found.functions);
    let all: Vec<&Investigation> = std::iter::once(investigation)
        .chain(below.map(|(_, investigation)| *investigation))
        .chain(serving.map(|serving| &serving.investigation))
        .collect();
    let skipped: BTreeMap<CodeRef, &String> = all
        .iter()
        .flat_map(|one| &one.skipped)
        .map(|(&at, reason)| (at, reason))
        .collect();
    let skipped = skipped.into_iter().map(|(at, reason)| {
        let function = naming.modules.function_around(at);
        let counted = function.and_then(|at| all.iter().find_map(|one| one.call_sites.get(&at)));
        SkippedSite {
            site: naming.place(at),
            function: naming.modules.name(function.unwrap_or(at)),
            of_sites: counted.copied().unwrap_or(0),
            reason: reason.clone(),
        }
    });
    let sum = |count: fn(&Counters) -> u64| all.iter().map(|one| count(&one.counters)).sum();
    let pauses: Vec<Duration> = all
        .iter()
        .flat_map(|one| one.counters.pauses.iter().copied())
        .collect();
    let mut spent = Spent::default();
    all.iter().for_each(|one| spent.add(&one.counters.spent));
    Probes {
        sites: all.iter().map(|one| one.sites as u64).max().unwrap_or(0),
        skipped: skipped.collect(),
        cost_cycles: ProbeCost {
            inside: investigation.cost.inside.0,
            outside: investigation.cost.outside.0,
        },
        records: sum(|counters| counters.records),
        dropped: sum(|counters| counters.dropped),
        sampled: sum(|counters| counters.sampled),
        effort: effort::taken(&spent, investigation.budget),
        ended_otherwise: sum(|counters| counters.ended_otherwise),
        pause_us: pause(&pauses),
        bytes_compared_after_detach: all.iter().map(|one| one.bytes_compared).sum(),
        bytes_differing_after_detach: sum(|counters| counters.bytes_differing),
    }
}

fn pause(pauses: &[Duration]) -> Pause {
    let mut micros: Vec<f64> = pauses
        .iter()
        .map(|pause| pause.as_secs_f64() * 1e6)
        .collect();
    micros.sort_by(f64::total_cmp);
    Pause {
        p50: micros.get(micros.len() / 2).copied().unwrap_or(0.0),
        max: micros.last().copied().unwrap_or(0.0),
    }
}

#[cfg(test)]
mod tests {
    use darc_analysis::Params;
    use darc_analysis::values::expression::Expression;
    use darc_process::modules::Modules;
    use darc_symbols::{FileAddr, NameSpec};

    use super::*;
    use crate::session::asynchronous::End;
    use crate::session::catalog::Catalog;

    fn named(name: &str) -> Investigation {
        Investigation::new(spec(name), Params::default())
    }

    fn spec(name: &str) -> NameSpec {
        NameSpec::parse(name).unwrap()
    }

    #[test]
    fn a_survey_that_ended_early_has_found_nothing() {
        let status = |windows, survey| {
            let time = TimeTable {
                windows,
                survey,
                ..TimeTable::default()
            };
            overall(&time, &[])
        };
        assert_eq!(status(0, Survey::Complete), Status::InProgress);
        assert_eq!(status(3, Survey::Unfinished), Status::InProgress);
        assert_eq!(status(3, Survey::Complete), Status::RootCauseFound);
    }

    /// That nothing was asked of a program is no root cause.
    #[test]
    fn threads_that_do_nothing_but_wait_have_no_root_cause() {
        let status = |share_of_time| {
            let part = TimePart {
                path: vec!["main".to_owned(), "epoll_wait".to_owned()],
                whose: Whose::Waiting,
                share_of_time,
                time: 1,
                calls: 1,
                max: 1,
                reason: None,
            };
            let time = TimeTable {
                windows: 3,
                survey: Survey::Complete,
                parts: vec![part],
                ..TimeTable::default()
            };
            overall(&time, &[])
        };
        assert_eq!(status(0.99), Status::Undecided);
        assert_eq!(status(0.8), Status::RootCauseFound);
    }

    #[test]
    fn time_that_nobody_has_looked_into_is_not_explained() {
        let status = |share_of_time, reason: &str| {
            let part = TimePart {
                path: vec!["main".to_owned(), "serve".to_owned()],
                whose: Whose::Callee,
                share_of_time,
                time: 1,
                calls: 1,
                max: 1,
                reason: Some(reason.to_owned()),
            };
            let time = TimeTable {
                windows: 3,
                survey: Survey::Complete,
                parts: vec![part],
                ..TimeTable::default()
            };
            overall(&time, &[])
        };
        assert_eq!(status(0.9, "its code cannot be read"), Status::Undecided);
        assert_eq!(
            status(0.1, "its code cannot be read"),
            Status::RootCauseFound
        );
        assert_eq!(status(0.9, survey::NO_CALLS), Status::RootCauseFound);
    }

    #[test]
    fn time_without_a_processor_is_no_functions_own() {
        let status = |not_running| {
            let time = TimeTable {
                windows: 3,
                not_running,
                ..TimeTable::default()
            };
            overall(&time, &[])
        };
        assert_eq!(status(Some(0.6)), Status::Undecided);
        assert_eq!(status(Some(0.3)), Status::RootCauseFound);
        assert_eq!(status(None), Status::RootCauseFound);
    }

    #[test]
    fn threads_with_little_of_the_cpu_time_do_not_explain_the_process() {
        let status = |share_of_cpu| {
            let time = TimeTable {
                windows: 3,
                share_of_cpu,
                ..TimeTable::default()
            };
            overall(&time, &[])
        };
        assert_eq!(status(Some(0.18)), Status::Undecided);
        assert_eq!(status(Some(0.6)), Status::RootCauseFound);
        assert_eq!(status(None), Status::RootCauseFound);
    }

    #[test]
    fn a_function_with_unmeasured_calls_does_not_explain_its_own_time() {
        let status = |passed_over: &str| {
            let mut time = TimeTable {
                windows: 3,
                parts: vec![TimePart {
                    path: vec!["main".to_owned(), "run_timers".to_owned()],
                    whose: Whose::Itself,
                    share_of_time: 0.9,
                    time: 1,
                    calls: 0,
                    max: 0,
                    reason: None,
                }],
                ..TimeTable::default()
            };
            tell_unmeasured(&mut time, &BTreeMap::from([(passed_over.to_owned(), 1)]));
            overall(&time, &[])
        };
        assert_eq!(status("run_timers"), Status::Undecided);
        assert_eq!(status("another"), Status::RootCauseFound);
    }

    #[test]
    fn warnings_of_the_functions_below_are_said_once() {
        let (mut modules, catalog) = (Modules::default(), Catalog::default());
        let mut main = named("main");
        let module = modules.intern("/bin/server", None, None);
        let arrival = |addr| Arrival {
            path: Vec::new(),
            function: CodeRef {
                module,
                addr: FileAddr(addr),
            },
            callers: Vec::new(),
            share: 0.5,
            calls: 1,
        };
        let (first, second) = (arrival(0x10), arrival(0x20));
        let name = modules.name(second.function);
        let of = |warnings: &[&str]| Investigation {
            warnings: warnings.iter().map(|&one| one.to_owned()).collect(),
            ..named("put")
        };
        main.warnings = vec!["known".to_owned()];
        let inlined = format!("{name} was also inlined");
        let put = of(&["known", "both"]);
        let get = of(&["both", &inlined, "3 calls passed"]);
        let functions = [(&first, &put), (&second, &get)];
        let time = TimeTable::default();
        let found = Found {
            time: &time,
            functions: &functions,
        };
        let naming = main.naming(&modules, &catalog);
        assert_eq!(warnings(naming, &main, None), ["known"]);
        assert_eq!(
            warnings(naming, &main, Some(found)),
            [
                "known",
                "both",
                &inlined,
                &format!("{name}: 3 calls passed")
            ]
        );
    }

    #[test]
    fn skipped_sites_of_the_function_that_serves_are_listed() {
        let (mut modules, catalog) = (Modules::default(), Catalog::default());
        let mut main = named("put");
        let module = modules.intern("/bin/server", None, None);
        let at = |addr| CodeRef {
            module,
            addr: FileAddr(addr),
        };
        main.skipped.insert(at(0x10), "too short".to_owned());
        let end = |name| End {
            function: spec(name),
            object: Expression::parse("arg1").unwrap(),
        };
        let mut serving = Serving::new(end("enqueue"), end("serve"), Params::default());
        serving.investigation.skipped = BTreeMap::from([(at(0x20), "a jump's aim".to_owned())]);
        let reasons = |serving| {
            let naming = main.naming(&modules, &catalog);
            let skipped = probes(naming, &main, None, serving).skipped.into_iter();
            skipped.map(|site| site.reason).collect::<Vec<_>>()
        };
        assert_eq!(reasons(None), ["too short"]);
        assert_eq!(reasons(Some(&serving)), ["too short", "a jump's aim"]);
    }
}
