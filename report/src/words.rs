//! What people read in more than one format: shares, places, durations, what the end of a path means.
//! Texts from the target are escaped here, once more as the format demands it elsewhere.

use darc_analysis::{Hz, Nanos, Resolution, Ticks, least_noticed};

use super::assemble;
use super::escape::control;
use super::goroutines;
use super::model::{
    Effort, Engine, Frame, Futures, Kind, OtherEntry, PeakEntry, Probes, ProfileTable, Report,
    RootCauseEntry, SkippedSite, StopReason, Survey, Target,
};
use super::names::short;
use super::recursion;
use super::spread::is_of_several;

/// How many ops were written in full, and what became of the other calls of f0.
pub(super) fn records(probes: &Probes) -> String {
    let sampled = match probes.sampled {
        0 => String::new(),
        sampled => format!(", {sampled} more counted in the profile only"),
    };
    let otherwise = match probes.ended_otherwise {
        0 => String::new(),
        calls => format!("; {calls} calls that did not end by returning are not timed"),
    };
    format!(
        "{}{sampled}, {} dropped{otherwise}",
        probes.records, probes.dropped
    )
}

/// What an op is where it is the life of a future or coroutine.
pub(super) fn life(futures: &Futures) -> &'static str {
    match futures.coroutines {
        false => "the life of a future, from its first poll to the one in which it returns",
        true => {
            "the life of a coroutine, from the begin of its first resume to the end of the last one"
        }
    }
}

/// What the time at an await is.
pub(super) fn between_polls(futures: &Futures) -> &'static str {
    match futures.coroutines {
        false => {
            "time at an await is all time between two polls: the wait, and then the future's turn to be polled"
        }
        true => {
            "time at a co_await is all time between two resumes: what it waits for, and then its turn to be resumed"
        }
    }
}

/// What became of futures beside those that are ops.
pub(super) fn futures(futures: &Futures) -> String {
    let &Futures {
        coroutines,
        polls,
        dropped,
        begun_before,
        lost,
        forgotten,
        under_way,
    } = futures;
    let [calls, cut_off, headless, unseen, none] = match coroutines {
        false => [
            "polls",
            "futures dropped while they waited, or left by a panic",
            "whose first poll was not seen",
            "of which polls may have gone unseen",
            "none was polled",
        ],
        true => [
            "resumes, with those that began or destroyed one",
            "coroutines destroyed while they waited, or left by an exception",
            "whose begin was not seen",
            "of which resumes may have gone unseen",
            "none was resumed",
        ],
    };
    let parts = [
        (polls, calls),
        (dropped, cut_off),
        (begun_before, headless),
        (under_way, "under way at the end, or gone"),
        (lost, unseen),
        (
            forgotten,
            "forgotten: there were too many, and those that had waited longest are missing here",
        ),
    ];
    let seen = parts.iter().filter(|(count, _)| *count > 0);
    let seen: Vec<String> = seen
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    match seen.is_empty() {
        true => none.to_owned(),
        false => seen.join(", "),
    }
}

/// Latencies that take as much of a processor have a line.
const WORTH_A_WORD: f64 = 0.001;

/// What measuring took, of what, and what was left out because of that.
pub(super) fn effort(effort: &Effort) -> Vec<String> {
    let share = |seconds| percent(effort.of(seconds));
    let taken = format!(
        "{} of a processor for {}; budget {}",
        share(effort.reading + effort.calls + effort.records),
        Nanos(effort.elapsed * 1e9),
        percent(effort.budget),
    );
    let parts = format!(
        "darc {}, calls about {}, the kernel's records about {}",
        share(effort.reading),
        share(effort.calls),
        share(effort.records),
    );
    let latencies = format!(
        "beside the budget, latencies of all calls: about {}",
        share(effort.latencies)
    );
    let rested = format!(
        "latencies alone for {} of the time, to keep below the budget",
        share(effort.rested)
    );
    let mut lines = vec![taken, parts];
    if effort.of(effort.latencies) >= WORTH_A_WORD {
        lines.push(latencies);
    }
    if effort.rested > 0.0 {
        lines.push(rested);
    }
    lines
}

/// What is to be added to the windows of a time table.
pub(super) fn survey(survey: Survey) -> &'static str {
    match survey {
        Survey::Complete => "",
        Survey::Unfinished => "; which functions are to be analysed is not known yet",
    }
}

/// Which call sites have no probe, a line for each function and reason.
pub(super) fn skipped(probes: &Probes) -> Vec<String> {
    let mut grouped: Vec<(&SkippedSite, usize)> = Vec::new();
    for site in &probes.skipped {
        let alike =
            |known: &SkippedSite| known.function == site.function && known.reason == site.reason;
        match grouped.iter_mut().find(|(known, _)| alike(known)) {
            Some((_, sites)) => *sites += 1,
            None => grouped.push((site, 1)),
        }
    }
    let line = |(of, sites): (&SkippedSite, usize)| {
        let place = match (of.function.is_empty(), of.of_sites, sites) {
            (true, ..) | (_, 0, 1) => of.site.to_string(),
            (_, 0, sites) => format!("{}, {sites} places", of.function),
            (_, all, sites) => format!("{}, {sites} of {all} call sites", of.function),
        };
        format!("{}: {}", control(&place), control(&of.reason))
    };
    grouped.into_iter().map(line).collect()
}

/// What was compared after detaching, and whether it is as it was.
pub(super) fn restored(probes: &Probes) -> String {
    let differing = format!(
        "{} bytes differ after detaching",
        probes.bytes_differing_after_detach
    );
    match probes.bytes_compared_after_detach {
        0 => differing,
        bytes => format!(
            "{differing}, {} KiB compared with the files",
            bytes.div_ceil(1024)
        ),
    }
}

/// A duration for people; cycles where the clock's rate is not known.
pub(super) fn time(hz: Option<Hz>, cycles: u64) -> String {
    match hz {
        Some(hz) => hz.nanos(Ticks(cycles)).to_string(),
        None => format!("{cycles} cycles"),
    }
}

/// Microseconds as a duration for people.
pub(super) fn microseconds(us: f64) -> String {
    Nanos(us * 1e3).to_string()
}

/// The latencies of a peak, `262 µs to 1.0 ms`; `None` when its buckets do not exist.
pub(super) fn range(hz: Option<Hz>, peak: &PeakEntry, resolution: u32) -> Option<String> {
    let resolution = Resolution::new(resolution).unwrap_or_default();
    let (first, _) = resolution.bounds(peak.first_bucket)?;
    let (_, last) = resolution.bounds(peak.last_bucket)?;
    if peak.begins_untold {
        return Some(format!("below {}", time(hz, last.0.saturating_add(1))));
    }
    if last.0 == u64::MAX {
        return Some(format!("{} and more", time(hz, first.0)));
    }
    Some(format!(
        "{} to {}",
        time(hz, first.0),
        time(hz, last.0.saturating_add(1))
    ))
}

/// `p99.9`, of millionths of all ops.
pub(super) fn percentile(millionths: u32) -> String {
    format!("p{}", f64::from(millionths) / 10_000.0)
}

/// Why a peak of the calls above a percentile has another part of all calls; nothing where no such were asked for.
pub(super) fn above(report: &Report) -> Option<String> {
    let above = report.parameters.range?.above?;
    let name = percentile(above);
    (!report.peaks.is_empty()).then(|| {
        format!(
            "The calls above {name} are those from the latency on that {name} had among the first, to a whole bucket of the distribution: they need not be {} of all.",
            percent(1.0 - f64::from(above) / 1e6)
        )
    })
}

/// The engine's name.
pub(super) fn engine(engine: Engine) -> &'static str {
    match engine {
        Engine::Jump => "jump",
        Engine::Int3 => "int3",
    }
}

/// Names of a path in one line. A function that calls itself again and again is named once.
pub(super) fn path(names: &[String]) -> String {
    /// A wrapper and its system call may have one name.
    const AGAIN_AND_AGAIN: usize = 3;
    let mut told = Vec::new();
    for same in names.chunk_by(|one, next| one == next) {
        let name = control(&short(&same[0])).into_owned();
        match same.len() {
            AGAIN_AND_AGAIN.. => told.push(format!("{name} ({} times)", same.len())),
            times => told.extend(vec![name; times]),
        }
    }
    told.join(" → ")
}

/// A share for people: two digits, and never "0%" or "100%" for what is not.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if share <= 0.0 {
        "0%".to_owned()
    } else if percent < 0.01 {
        "<0.01%".to_owned()
    } else if percent < 1.0 {
        format!("{percent:.2}%")
    } else if percent < 99.95 {
        format!("{percent:.1}%")
    } else if share < 1.0 {
        ">99.9%".to_owned()
    } else {
        "100%".to_owned()
    }
}

/// `file:line`, as far as known.
pub(crate) fn source(file: Option<&str>, line: Option<u32>) -> Option<String> {
    let file = control(file?);
    Some(match line {
        Some(line) => format!("{file}:{line}"),
        None => file.into_owned(),
    })
}

/// How rare the ops of a peak may be that was not seen; nothing without ops. A peak stands out in two buckets, and a third of
/// its ops may be beside them.
pub(super) fn unseen(profile: &ProfileTable) -> Option<String> {
    let tallest = profile.buckets.iter().map(|bucket| bucket.ops).max()?;
    let least = (3 * least_noticed(tallest)).div_ceil(2);
    let rarest = profile.ops as f64 / expected_for(least);
    (rarest >= 1.0).then(|| {
        format!(
            "a peak of less than 1 in {rarest:.0} ops may not have shown (95%); --start-ops looks longer"
        )
    })
}

/// So many ops have to be expected for as many to come in 95 of 100 cases: of a Poisson distribution, by Wilson and Hilferty's
/// approximation (Proc. Natl. Acad. Sci. 17, 1931).
fn expected_for(ops: u64) -> f64 {
    const Z: f64 = 1.645;
    let ops = ops as f64;
    ops * (1.0 - 1.0 / (9.0 * ops) + Z / (3.0 * ops.sqrt())).powi(3)
}

/// The percentiles of f0's latency; nothing where they are not known.
pub(super) fn percentiles(hz: Option<Hz>, profile: &ProfileTable) -> Option<String> {
    let at = profile.percentiles?;
    let parts = [
        ("p50", at.p50),
        ("p90", at.p90),
        ("p99", at.p99),
        ("p99.9", at.p99_9),
        ("max", at.max),
    ];
    let shortest = profile.told_from.unwrap_or(0);
    let parts = parts.map(|(name, latency)| match latency < shortest {
        true => format!("{name} below {}", time(hz, shortest)),
        false => format!("{name} {}", time(hz, latency)),
    });
    Some(parts.join("  "))
}

/// So many characters of a command are shown.
const COMMAND: usize = 200;

/// The process: its command, its id, how it ended.
pub(super) fn target(target: &Target) -> String {
    let mut text = if target.command.is_empty() {
        control(&target.exe).into_owned()
    } else {
        let words: Vec<_> = target.command.iter().map(|word| control(word)).collect();
        // Programs that name themselves leave blanks behind.
        let command = words.join(" ");
        let command = command.trim_end();
        match command.char_indices().nth(COMMAND) {
            Some((end, _)) => format!("{}…", &command[..end]),
            None => command.to_owned(),
        }
    };
    if let Some(pid) = target.pid {
        text.push_str(&format!(" (pid {pid})"));
    }
    if let Some(status) = target.exit_status {
        text.push_str(&format!(", ended with {status}{}", by_signal(status)));
    }
    if !target.threads.is_empty() {
        let threads: Vec<_> = target.threads.iter().map(|name| control(name)).collect();
        text.push_str(&format!(", only threads {}", threads.join(", ")));
    }
    text
}

/// Which signal ended a process that ended so, as far as that is how shells tell it.
pub(super) fn by_signal(status: i32) -> String {
    /// Those that programs end by.
    const NAMES: [(i32, &str); 15] = [
        (1, "SIGHUP"),
        (2, "SIGINT"),
        (3, "SIGQUIT"),
        (4, "SIGILL"),
        (5, "SIGTRAP"),
        (6, "SIGABRT"),
        (7, "SIGBUS"),
        (8, "SIGFPE"),
        (9, "SIGKILL"),
        (11, "SIGSEGV"),
        (13, "SIGPIPE"),
        (14, "SIGALRM"),
        (15, "SIGTERM"),
        (24, "SIGXCPU"),
        (31, "SIGSYS"),
    ];
    let signal = status.saturating_sub(128);
    let named = NAMES.into_iter().find(|(number, _)| *number == signal);
    named.map_or_else(String::new, |(number, name)| {
        format!(", as by signal {number} ({name})")
    })
}

/// The path of a cause in one line, with the part of the peak's time that passed in each function.
pub(super) fn hops(cause: &RootCauseEntry) -> String {
    let names = recursion::steps(cause).into_iter().map(|step| {
        let name = step.shown();
        let frame = cause.frames.get(step.first);
        match frame.map_or(0.0, |frame| frame.share_of_time) {
            share if share > 0.0 && step.first > 0 => {
                format!("{name} {}", percent(share))
            }
            _ => name,
        }
    });
    names.collect::<Vec<_>>().join(" → ")
}

/// What the end of the path means, and which part of the peak's time that is.
pub(super) fn in_words(cause: &RootCauseEntry, peak: &PeakEntry) -> String {
    let ready = match was_ready(cause, peak) {
        true => ", but for most of its wait the thread was ready to run but not running",
        false => "",
    };
    let what = what(cause) + ready + &often(cause, peak);
    let known = match (cause.known_from, cause.share_of_time) {
        (0, _) => return what,
        (known, share) if share > 0.0 => {
            let ops = format!("(known from {known} of {} ops)", peak.ops.max(known));
            let assumed = assumed(cause);
            format!(
                "{what}: {} of this peak's time {ops}{assumed}",
                percent(share)
            )
        }
        _ => what,
    };
    match blocked(cause) {
        Some(share) => format!(
            "{known}, but its thread did not run for {} of that, in a call or a page fault that was not measured, or while it was stopped",
            percent(share)
        ),
        None => known,
    }
}

/// That part of a cause's time was not looked into, where it is worth a word.
fn assumed(cause: &RootCauseEntry) -> String {
    match cause.assumed {
        share if share >= LEAST_ASSUMED => format!(
            ", of which {} at call sites that were not looked into",
            percent(share)
        ),
        _ => String::new(),
    }
}

/// Whether a limit of CPU time kept the thread from running, and not another thread.
pub(super) fn is_held_back(cause: &RootCauseEntry) -> bool {
    cause.kind == Kind::Preemption && cause.reason.is_some()
}

/// Whether the thread waited, but for most of that was ready to run: it is not what was waited for that took so long. Such a
/// wait has half of the cause's time, as far as it is known how many ops the waits are of.
pub(super) fn was_ready(cause: &RootCauseEntry, peak: &PeakEntry) -> bool {
    let Some(waits) = &cause.waits else {
        return false;
    };
    let share = cause.share_of_time;
    let is_much = peak.off_cpu.as_ref().is_none_or(|all| {
        let ops = waits.count.max(cause.known_from).min(all.ops).max(1);
        let mean = all.time as f64 / all.ops.max(1) as f64;
        // Though all else was nothing but that, the cause had so much of it.
        let of_cause = all.runnable as f64 / all.time.max(1) as f64 - (1.0 - share);
        waits.runnable as f64 / ops as f64 >= share * mean / 2.0 || of_cause >= share / 2.0
    });
    waits.runnable > waits.blocked && is_much
}

/// Less of a peak's time at call sites that were not looked into is not told.
const LEAST_ASSUMED: f64 = 0.01;

/// In which part of the ops it is a cause, where it is not in nearly all.
fn often(cause: &RootCauseEntry, peak: &PeakEntry) -> String {
    let share = cause.share_of_ops;
    if share <= 0.0 || share >= NEARLY_ALL {
        return String::new();
    }
    if is_of_several(cause, peak) {
        return format!(", in at most {} of the ops", percent(share));
    }
    // Of several calls of one function an op counts for the longest.
    let is_of_path = |other: &RootCauseEntry| {
        let mut frames = other.frames.iter().zip(&cause.frames);
        other.path == cause.path && frames.all(|(one, other)| one.is_of(other))
    };
    let of_path = |other: &&RootCauseEntry| is_of_path(other) && other.kind == cause.kind;
    let which = match peak.root_causes.iter().filter(of_path).count() {
        0 | 1 => "",
        _ => "the longest such call ",
    };
    format!(", {which}in {} of the ops", percent(share))
}

/// What is a cause in this part of the ops is one in all but a few.
const NEARLY_ALL: f64 = 0.9;

/// The part of the time of a function, said to take it itself, in which its thread waited; nothing where it did not for
/// most of it.
pub(super) fn blocked(cause: &RootCauseEntry) -> Option<f64> {
    cause.blocked.filter(|&share| share > MOST_BLOCKED)
}

/// A function that takes the time itself does not wait for longer than this part of it.
const MOST_BLOCKED: f64 = 0.5;

/// The part of what a loop explains that is in its calls, where enough of it is in the function's own code that both are to be told.
pub(super) fn mixed(cause: &RootCauseEntry) -> Option<f64> {
    cause.in_calls.filter(|&part| part < NEARLY_THE_CALLS)
}

/// A loop whose calls have this part of what it explains is told as if they had all of it.
const NEARLY_THE_CALLS: f64 = 0.8;

/// So many functions are named that are called where there is no probe, or that were inlined.
const CALLEES: usize = 5;

/// What takes the time of a path that ends in the unwinder (Itanium C++ ABI: exception handling): it is told as a whole, and so is what
/// runs before the exception is caught.
fn unwinding(path: &[String]) -> Option<String> {
    let last = path.last().filter(|last| last.starts_with("_Unwind_"))?;
    let last = control(last);
    Some(match last.as_ref() {
        "_Unwind_RaiseException" | "_Unwind_Resume" | "_Unwind_Resume_or_Rethrow" => format!(
            "an exception (a panic) was on its way: the time is in {last}, or in cleanups that ran before it was caught"
        ),
        _ => format!("the time is in {last}, of the unwinder, or in what that calls"),
    })
}

/// What the end of the path means.
fn what(cause: &RootCauseEntry) -> String {
    let waits = match (cause.kind, cause.stop) {
        (Kind::Function, StopReason::NoCalls) => {
            goroutines::waiting(&cause.path).or_else(|| unwinding(&cause.path))
        }
        _ => None,
    };
    if let Some(waits) = waits {
        return waits;
    }
    let last = short(cause.path.last().map_or("", String::as_str));
    let last = control(&last);
    match (cause.kind, cause.stop) {
        (_, StopReason::StillDescending) => {
            format!("the time is in {last} or below it; more ops are needed to tell")
        }
        (_, StopReason::TooRare) => format!(
            "the time is in {last} or below it; ops that tell came too seldom to go on (--peak waits for them)"
        ),
        (_, StopReason::Spread) => {
            format!(
                "the time of {last} is spread: neither it nor any single call that it makes has much of it"
            )
        }
        (_, StopReason::Recursion) => {
            format!(
                "{last} calls itself, directly or through others: the time is in it and in what it calls, at all depths"
            )
        }
        (_, StopReason::MaxDepth) => {
            format!("the time is in {last} or below it; the path may not become longer")
        }
        (_, StopReason::NotInstrumentable) => {
            let why = cause
                .reason
                .as_deref()
                .unwrap_or("its calls cannot be measured");
            format!("the time is in {last} or below it: {}", control(why))
        }
        (_, StopReason::PartlyMeasured) => {
            let unmeasured = cause.unmeasured.as_ref().map_or_else(
                || "some of its call sites".to_owned(),
                |sites| match sites.callees.is_empty() {
                    true => format!("{} of its {} call sites", sites.sites, sites.of_sites),
                    false => {
                        let (callees, all) = (several(&sites.callees), sites.of_sites);
                        format!("{} of its {all} call sites ({callees})", sites.sites)
                    }
                },
            );
            let itself = match cause.in_calls.filter(|_| cause.kind == Kind::Loop) {
                Some(part) => format!(
                    ", {} of it in many calls (a loop) and the rest in its own code",
                    percent(part)
                ),
                None => " itself".to_owned(),
            };
            format!(
                "the time is in {last}{itself}, or in what it calls at {unmeasured}, which could not be measured"
            )
        }
        (Kind::Loop, _) => match mixed(cause) {
            Some(part) => format!(
                "{last} takes the time, {} of it in many calls (a loop) and the rest in its own code",
                percent(part)
            ),
            None => format!("{last} takes the time, in many calls (a loop)"),
        },
        (Kind::Syscall, _) => format!("the time is in the system call {last}"),
        (Kind::Preemption, _)
            if cause
                .path
                .last()
                .is_some_and(|it| it == goroutines::NOT_RUNNING) =>
        {
            goroutines::not_running(told_part(cause), instead(cause)).to_owned()
        }
        (Kind::Preemption, _) if let Some(reason) = &cause.reason => {
            format!("the thread was ready, but did not run: {}", control(reason))
        }
        (Kind::Preemption, _) => {
            let instead = match instead(cause) {
                Instead::Another => "another one ran",
                Instead::Nothing => {
                    "none ran: the processor was idle (a limit of CPU time, or the hypervisor)"
                }
                Instead::Unknown => "did not run",
            };
            format!("the thread was ready, but {instead}")
        }
        (Kind::Interrupt, _) => "the CPU served an interrupt".to_owned(),
        (Kind::SoftInterrupt, _) => "the CPU did deferred work of interrupts (softirq)".to_owned(),
        (Kind::PageFault, _) => "pages of the program's memory were brought in".to_owned(),
        (Kind::Signal, _) => {
            "the handler of a signal ran (with it as --f0 its own causes are found)".to_owned()
        }
        (Kind::Await, _) => "it waited there, and then for its turn to go on".to_owned(),
        (Kind::Function, StopReason::NoCalls) => {
            format!(
                "{last} takes the time itself{}; it makes no calls",
                inlined(cause)
            )
        }
        (Kind::Function, StopReason::SelfTime) => {
            format!(
                "{last} takes the time itself{}{}",
                inlined(cause),
                system_calls(cause)
            )
        }
    }
}

/// What happened while a thread was ready and did not run, where that is known of most of the time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Instead {
    /// The kernel had another one run,
    Another,
    /// or none.
    Nothing,
    /// It is not known.
    Unknown,
}

/// For which part of the time in which a thread was ready and did not run it is told what the kernel did, or that it was the kernel.
fn told_part(cause: &RootCauseEntry) -> Option<f64> {
    let waits = cause.waits.as_ref().filter(|it| it.preempted > 0)?;
    let told: f64 = waits.others.iter().map(|it| it.time as f64).sum();
    Some(told / waits.preempted as f64)
}

fn instead(cause: &RootCauseEntry) -> Instead {
    let Some(waits) = &cause.waits else {
        return Instead::Unknown;
    };
    let known = waits.others.iter().filter(|it| it.name != assemble::UNTOLD);
    let (idle, others): (Vec<_>, Vec<_>) = known.partition(|it| it.name == assemble::IDLE);
    let time = |of: &[&OtherEntry]| of.iter().map(|it| it.time as f64).sum::<f64>();
    let half = waits.preempted as f64 / 2.0;
    match () {
        () if time(&others) > half => Instead::Another,
        () if time(&idle) > half => Instead::Nothing,
        () => Instead::Unknown,
    }
}

/// That the system calls of a function that could not be measured may be what takes its time; nothing where it has none.
fn system_calls(cause: &RootCauseEntry) -> String {
    let calls = cause.unmeasured.as_ref();
    calls.map_or_else(String::new, |calls| {
        format!(
            ", or its system call {} does, which cannot be measured apart",
            several(&calls.callees)
        )
    })
}

/// That what was inlined into a function may be what takes its time; nothing where it is known that nothing was.
fn inlined(cause: &RootCauseEntry) -> String {
    let names = match &cause.inlined {
        None => return ", or what was inlined into it does".to_owned(),
        Some(inlined) if inlined.functions == 0 => return String::new(),
        Some(inlined) => several(&inlined.names),
    };
    let which = match cause.narrowed {
        None => "; --blocks after tells which",
        Some(_) => "",
    };
    format!(", or what was inlined into it does ({names}{which})")
}

/// The first of some names, and how many more there are.
fn several(names: &[String]) -> String {
    let shown = names.iter().take(CALLEES);
    let mut shown: Vec<String> = shown
        .map(|name| control(&short(name)).into_owned())
        .collect();
    let more = names.len() - shown.len();
    if more > 0 {
        shown.push(format!("{more} more"));
    }
    shown.join(", ")
}

/// A frame with its call site, and the inlined functions that the call stands in.
pub(super) fn frame_lines(frame: &Frame) -> Vec<String> {
    let name = control(&frame.name);
    let source_line = source(frame.file.as_deref(), frame.line);
    let site = frame.call_site.as_ref().map(ToString::to_string);
    let site = site.as_deref().map(control);
    let first = match (source_line, site) {
        (Some(line), Some(site)) => format!("{name}  called at {line} ({site})"),
        (None, Some(site)) => format!("{name}  called at {site}"),
        (Some(line), None) => format!("{name}  {line}"),
        (None, None) => name.into_owned(),
    };
    let inlined = frame.inlined_from.iter().map(|inlined| {
        let name = control(&inlined.name);
        match source(inlined.file.as_deref(), inlined.line) {
            Some(line) => format!("  in {name}, inlined at {line}"),
            None => format!("  in {name}, inlined"),
        }
    });
    std::iter::once(first).chain(inlined).collect()
}

#[cfg(test)]
mod tests;
