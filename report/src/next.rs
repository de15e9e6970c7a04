//! What to type next: one or two commands that go on from what a report says.

use std::ffi::OsStr;
use std::path::Path;

use darc_analysis::{Hz, Resolution, Ticks};

use crate::escape::control;
use crate::model::{
    Ended, Engine, Focus, Function, Kind, PeakEntry, PeakValues, ProfileTable, RangeEntry, Report,
    RootCauseEntry, Status, StopReason, Target, ValueContrast, Whose,
};
use crate::place::Place;
use crate::words;

/// So many commands are shown.
const MOST: usize = 2;
/// A command of the program with more characters is not repeated.
const LONGEST: usize = 80;
/// Breakpoints cost tens of microseconds a call: ops that take fewer nanoseconds would be longer by that, mostly.
const LONG_OP: f64 = 1e6;
/// A function with this part of a peak's time is worth an analysis of its own.
const MOST_OF_IT: f64 = 0.5;
/// Smaller values are no addresses: the first pages of a process hold nothing.
const FIRST_ADDRESS: u64 = 0x1_0000;
/// What values leave when they are divided by more than this is a coincidence.
const LARGEST_DIVISOR: u64 = 64;

/// A command, and what it is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Step {
    /// What to type in a shell.
    pub(super) command: String,
    /// What it tells.
    pub(super) tells: &'static str,
}

/// What goes on from here, the most useful first; nothing while the analysis goes on. `file` has the results, where they can be read again.
pub(super) fn steps(report: &Report, file: Option<&str>) -> Vec<Step> {
    if report.ended.is_none() {
        // It goes on by itself.
        return Vec::new();
    }
    let next = Next {
        report,
        pid: running(&report.target, report.ended),
        file: file.and_then(quoted),
    };
    let mut steps: Vec<Step> = match &report.time {
        Some(_) if report.profile.ops == 0 => next.of_division(),
        _ => next.of_analysis(),
    };
    steps.truncate(MOST);
    steps
}

/// The id of a process that may run still.
fn running(target: &Target, ended: Option<Ended>) -> Option<i32> {
    let has_ended = target.exit_status.is_some() || ended == Some(Ended::Target);
    target.pid.filter(|_| !has_ended)
}

struct Next<'a> {
    report: &'a Report,
    pid: Option<i32>,
    file: Option<String>,
}

impl Next<'_> {
    /// Of a function that runs all the time: what takes the time below it, or what others run that have most of the CPU time.
    fn of_division(&self) -> Vec<Step> {
        let time = self.report.time.as_ref();
        let share = time.and_then(|table| table.share_of_cpu);
        if share.is_none_or(|share| share >= MOST_OF_IT) {
            return self.of_divided();
        }
        let sampled = self.sampled("which functions the other threads run");
        let below = match self.below().next() {
            Some(_) => self.of_divided(),
            None => Vec::new(),
        };
        sampled.into_iter().chain(below).collect()
    }

    /// The functions below that were not refused.
    fn below(&self) -> impl Iterator<Item = &Focus> + Clone {
        let below = self.report.focus.iter();
        below.filter(|below| below.handover.is_none() && !self.is_refused(&below.function.name))
    }

    fn of_divided(&self) -> Vec<Step> {
        let below = self.below();
        let largest = below
            .clone()
            .max_by(|one, other| one.share_of_time.total_cmp(&other.share_of_time));
        // Who waits for work tells less than who does nearly as much of it.
        let much = largest.map_or(0.0, |below| below.share_of_time / 2.0);
        let mut works = below.filter(|below| below.share_of_time >= much && !waits(below));
        let largest = largest.map(|largest| match waits(largest) {
            true => works.next().unwrap_or(largest),
            false => largest,
        });
        let parts = self.report.time.iter().flat_map(|table| &table.parts);
        let mut callees = parts.filter(|part| part.whose == Whose::Callee && part.path.len() > 1);
        let is_apt = |name: &&String| !self.is_refused(name);
        let name = match largest {
            Some(below) => self.meaning(&below.function),
            None => callees
                .next()
                .and_then(|part| quoted(part.path.last().filter(is_apt)?)),
        };
        let Some(name) = name else {
            return self.looks_longer();
        };
        let is_few = self.pid.is_none() && largest.is_some_and(|below| below.peaks.is_empty());
        let alone = match is_few {
            true => self.among_few(&name),
            false => self.again(&name, "", "its calls alone: more of them, from everywhere"),
        };
        let deeper = largest
            .filter(|below| is_open(below.status))
            .and_then(|below| self.deeper(&below.peaks));
        let alone = deeper.or(alone);
        let below = largest.and_then(|below| {
            let own = self.of_own_time(&name, &below.peaks);
            own.or_else(|| self.goes_on_where_open(below.status, &below.peaks))
        });
        let closed = largest.and_then(|below| self.of_closed(&name, &below.peaks));
        closed.into_iter().chain(alone).chain(below).collect()
    }

    /// Of a function that returns.
    fn of_analysis(&self) -> Vec<Step> {
        let Report { profile, peaks, .. } = self.report;
        let Some(name) = self.meaning(&self.report.f0) else {
            return Vec::new();
        };
        if profile.ops == 0 {
            return self.looks_longer();
        }
        let Some(main) = main(peaks) else {
            let few = self.pid.is_none().then(|| self.among_few(&name));
            return self.goes_on().into_iter().chain(few.flatten()).collect();
        };
        let steps = [
            self.of_closed(&name, peaks),
            self.deeper(peaks),
            self.of_unmeasured(&name, main, profile),
            self.goes_on_where_open(self.report.status, peaks),
            self.of_values(&name),
            self.of_own_time(&name, peaks),
            self.proof(&name, main),
        ];
        let steps: Vec<Step> = steps.into_iter().flatten().collect();
        match steps.is_empty() {
            true => self.over_time(&name).into_iter().collect(),
            false => steps,
        }
    }

    /// What to type for a function, so that no other of its name is meant: its library, or its place where the report has several.
    fn meaning(&self, function: &Function) -> Option<String> {
        let Function {
            name,
            module,
            offset,
            ..
        } = function;
        let file = Path::new(module).file_name().and_then(OsStr::to_str);
        // Others are no files, as code that was made at run time.
        let file = file.filter(|_| module.starts_with('/'));
        let mut left = vec![&self.report.ftree];
        left.extend(self.report.focus.iter().map(|below| &below.ftree));
        let mut is_ambiguous = false;
        while let Some(node) = left.pop() {
            let is_other = |place: &Place| (&place.module, place.offset) != (module, *offset);
            is_ambiguous |= node.name == *name && node.callee.as_ref().is_some_and(is_other);
            left.extend(&node.children);
        }
        let is_own = self.report.target.exe == *module;
        match file {
            Some(file) if is_ambiguous || name.contains("+0x") => {
                quoted(&format!("{file}+{offset:#x}"))
            }
            Some(file) if !is_own => quoted(&format!("{file}:{name}")),
            _ => quoted(name),
        }
    }

    /// `darc attach 42 -f NAME OPTIONS`, or `darc run -f NAME OPTIONS -- CMD` of a program that has ended; nothing where that would
    /// not be the same program.
    fn again(&self, name: &str, options: &str, tells: &'static str) -> Option<Step> {
        let as_before = self.as_before(name)?;
        let options = format!("-f {name}{options}{as_before}");
        let command = match self.process() {
            Some(process) => format!("darc attach {process} {options}"),
            None => format!("darc run {options} -- {}", self.program()?),
        };
        Some(Step { command, tells })
    }

    /// The options by which the same calls of a function are measured in the same way. A range is one of f0's latencies.
    fn as_before(&self, name: &str) -> Option<String> {
        let Report {
            target, parameters, ..
        } = self.report;
        let mut options = String::new();
        for thread in &target.threads {
            // Another process has threads with other ids.
            let is_there = self.pid.is_some() || thread.parse::<i32>().is_err();
            let thread = quoted(thread).filter(|_| is_there)?;
            options += &format!(" --thread {thread}");
        }
        if let Some(range) = &parameters.range
            && self.meaning(&self.report.f0).as_deref() == Some(name)
        {
            options += &of_range(range, self.report.clock.hz)?;
        }
        if self.report.engine == Engine::Int3 {
            options += " --engine int3";
        }
        Some(options)
    }

    /// The process, or the program of one that darc had attached to and that has ended: another one may run by then.
    fn process(&self) -> Option<String> {
        match self.pid {
            Some(pid) => Some(pid.to_string()),
            None if self.report.target.attached => self.report.target.program(),
            None => None,
        }
    }

    /// The command that started the program, for a shell. Nobody knows whether that of one which ran already would.
    fn program(&self) -> Option<String> {
        if self.report.target.attached {
            return None;
        }
        let words = self.report.target.command.iter().map(|word| shell(word));
        let words = words.collect::<Option<Vec<_>>>()?.join(" ");
        (!words.is_empty() && words.chars().count() <= LONGEST).then_some(words)
    }

    fn in_process(&self, command: impl FnOnce(i32) -> String, tells: &'static str) -> Option<Step> {
        let command = command(self.pid?);
        Some(Step { command, tells })
    }

    fn sampled(&self, tells: &'static str) -> Option<Step> {
        self.in_process(|pid| format!("darc sample -p {pid}"), tells)
    }

    /// Whether a warning says of a function why it was not measured.
    fn is_refused(&self, name: &str) -> bool {
        let warnings = self.report.warnings.iter();
        let mut of_it = warnings.filter_map(|warning| warning.strip_prefix(name));
        of_it.any(|why| why.starts_with(": f0 "))
    }

    /// Whether a warning says that the program makes the code itself that it runs.
    fn is_generated(&self) -> bool {
        self.is_warned("the program runs code that it makes itself")
    }

    /// Whether a warning says that the process runs another program by now, in which nothing is known of f0.
    fn executed_another(&self) -> bool {
        self.report.ended == Some(Ended::Target) && self.is_warned("the target executed another")
    }

    fn is_warned(&self, of: &str) -> bool {
        let mut warnings = self.report.warnings.iter();
        warnings.any(|warning| warning.starts_with(of))
    }

    /// Where nothing is known.
    fn looks_longer(&self) -> Vec<Step> {
        let sampled = self.sampled("which functions use its CPU time");
        let longer = match self.report.target.goroutines {
            true => self.in_process(
                |pid| format!("darc list -p {pid} 'main.*'"),
                "which functions of its own it has",
            ),
            // Its threads run what it looks not into, however long.
            false if self.is_generated() => None,
            false => self.in_process(
                |pid| format!("darc attach {pid} -d 60s"),
                "what its busiest threads run",
            ),
        };
        sampled.into_iter().chain(longer).collect()
    }

    /// More calls decide nothing where every path has ended, whatever is not known then.
    fn goes_on_where_open(&self, status: Status, peaks: &[PeakEntry]) -> Option<Step> {
        let mut causes = peaks.iter().flat_map(|peak| &peak.root_causes);
        let goes_on = |cause: &RootCauseEntry| {
            use StopReason::{StillDescending, TooRare};
            matches!(cause.stop, StillDescending | TooRare)
        };
        (is_open(status) && causes.any(goes_on))
            .then(|| self.goes_on())
            .flatten()
    }

    /// The function with a name of its own that has most of the time of the slow calls, where no cause was found below.
    fn deeper(&self, peaks: &[PeakEntry]) -> Option<Step> {
        // Where threads were kept from running, that is all that is not known.
        let is_apt = |peak: &&PeakEntry| {
            is_open(peak.status) && peak.kept_from_running.is_none() && !is_closed(peak)
        };
        let peak = main(peaks).filter(is_apt)?;
        let causes = peak.root_causes.iter();
        let below = causes.flat_map(|cause| cause.frames.iter().skip(1));
        let named = below.filter(|frame| {
            frame.offset.is_some() && !frame.name.contains("+0x") && !frame.name.starts_with("__")
        });
        // Of those with the same time the one that is called first.
        let largest = named.reduce(|one, other| match other.share_of_time > one.share_of_time {
            true => other,
            false => one,
        });
        let found = largest.filter(|frame| frame.share_of_time >= MOST_OF_IT)?;
        let name = self.meaning(&Function {
            name: found.name.clone(),
            module: found.module.clone().unwrap_or_default(),
            offset: found.offset.unwrap_or_default(),
            ..Function::default()
        })?;
        self.again(&name, "", "most of the time of slow calls is in it")
    }

    /// A program that has ended has no more calls.
    fn among_few(&self, name: &str) -> Option<Step> {
        let tells = "looks for peaks among fewer calls";
        self.again(name, " --start-ops 10", tells)
    }

    /// The analysis goes on where it ended, or begins again with more time.
    fn goes_on(&self) -> Option<Step> {
        let tells = "goes on with more calls";
        let longer = match self.report.ended {
            Some(Ended::Duration) => " -d 60s",
            _ => "",
        };
        // Lives of futures cannot be gone on with.
        let file = self.file.as_ref().filter(|_| self.report.futures.is_none());
        match (file, self.process()) {
            (Some(file), Some(process)) => Some(Step {
                command: format!("darc resume {file} -p {process}{longer}"),
                tells: match self.pid {
                    Some(_) => tells,
                    None => "goes on when it runs again",
                },
            }),
            (Some(_), None) if self.report.target.attached => None,
            (Some(file), None) => Some(Step {
                command: format!("darc resume {file}"),
                tells: "runs the program again, and goes on",
            }),
            // It would execute the other one again.
            (None, _) if self.executed_another() => None,
            (None, _) => {
                let name = self.meaning(&self.report.f0)?;
                self.again(&name, " -d 60s", "the same, for longer")
            }
        }
    }

    /// The other engine, where call sites have kept the default one from an answer and calls are long enough for it.
    fn of_unmeasured(&self, name: &str, peak: &PeakEntry, profile: &ProfileTable) -> Option<Step> {
        let is_unmeasured = |cause: &RootCauseEntry| {
            let stop = cause.stop;
            matches!(
                stop,
                StopReason::PartlyMeasured | StopReason::NotInstrumentable
            )
        };
        let clock = Hz::new(self.report.clock.hz)?;
        let mean = clock.nanos(Ticks(profile.total.checked_div(profile.ops)?));
        let is_apt = self.report.engine == Engine::Jump
            && !self.report.target.goroutines
            && mean.0 >= LONG_OP
            && peak.root_causes.first().is_some_and(is_unmeasured);
        is_apt
            .then(|| {
                self.again(
                    name,
                    " --engine int3",
                    "measures the calls that were skipped, at a price",
                )
            })
            .flatten()
    }

    /// What would tell more of an argument that tells peaks apart.
    fn of_values(&self, name: &str) -> Option<Step> {
        if self.report.target.goroutines {
            return None;
        }
        let contrasts = self.report.values.iter();
        let expression = contrasts.filter_map(sharper).next()?;
        let expression = quoted(&expression)?;
        self.again(
            name,
            &format!(" --value {expression}"),
            "whether this tells slow calls apart",
        )
    }

    /// Where in a function the CPU time goes that it takes itself.
    fn of_own_time(&self, name: &str, peaks: &[PeakEntry]) -> Option<Step> {
        let is_apt = self.report.futures.is_none() && !self.report.target.goroutines;
        let peak = main(peaks).filter(|_| is_apt)?;
        let cause = peak.root_causes.first().filter(|cause| runs(cause))?;
        let has_lines = cause
            .frames
            .last()
            .is_some_and(|frame| frame.file.is_some());
        let is_own = match cause.kind {
            Kind::Function => true,
            Kind::Loop => cause.in_calls.is_some_and(|part| part < 0.5),
            _ => false,
        };
        if has_lines && is_own && self.report.engine == Engine::Jump {
            return self.again(name, " --blocks after", "to the loop and the source line");
        }
        self.during(name, peak, "which code runs in these calls")
    }

    /// What runs below a function that darc does not look into, as one that calls generated code.
    fn of_closed(&self, name: &str, peaks: &[PeakEntry]) -> Option<Step> {
        let is_apt = self.report.futures.is_none() && !self.report.target.goroutines;
        let peak = main(peaks).filter(|peak| is_apt && is_closed(peak))?;
        let tells = "what runs there; docs/languages.md: how that gets names";
        self.during(name, peak, tells)
            .or_else(|| self.sampled(tells))
    }

    /// Samples in the calls of a peak.
    fn during(&self, name: &str, peak: &PeakEntry, tells: &'static str) -> Option<Step> {
        let is_default = self.report.profile.resolution == Resolution::HALVES.get();
        if !is_default
            || self.report.parameters.range.is_some()
            || !self.report.target.threads.is_empty()
        {
            // Peaks have these numbers among all calls, at the resolution that is the default.
            return None;
        }
        let peak = peak.peak;
        self.in_process(
            |pid| format!("darc sample -p {pid} --f0 {name} --during-peak {peak}"),
            tells,
        )
    }

    /// An experiment that says whether the cause is one.
    fn proof(&self, name: &str, peak: &PeakEntry) -> Option<Step> {
        let cause = peak.root_causes.first()?;
        let is_call = matches!(cause.kind, Kind::Function | Kind::Loop | Kind::Syscall);
        let is_known = matches!(
            peak.status,
            Status::RootCauseFound | Status::MaxDepthReached
        );
        let is_apt = is_call
            && is_known
            && cause.path.len() > 1
            && self.report.proofs.is_empty()
            && self.report.futures.is_none()
            && !self.report.target.goroutines;
        self.pid.filter(|_| is_apt)?;
        let tells = "an experiment: is it the cause?";
        match &self.file {
            Some(file) => Some(Step {
                command: format!("darc prove {file}"),
                tells,
            }),
            None => self.again(name, " --prove", tells),
        }
    }

    /// Where there is nothing else to ask.
    fn over_time(&self, name: &str) -> Option<Step> {
        let watched = self.in_process(
            |pid| format!("darc watch -p {pid} {name}"),
            "its latencies over time",
        );
        let watched = watched.filter(|_| !self.report.target.goroutines);
        let shown = self.file.as_ref().map(|file| Step {
            command: format!("darc report {file} --open"),
            tells: "as a page, with flame graphs",
        });
        watched.or(shown)
    }
}

/// Whether a function's thread is blocked for most of its time, as far as the kernel told.
fn waits(below: &Focus) -> bool {
    let told = below.peaks.iter().filter_map(|peak| peak.off_cpu.as_ref());
    let (blocked, time) = told.fold((0, 0), |(blocked, time): (u64, u64), away| {
        (
            blocked.saturating_add(away.blocked),
            time.saturating_add(away.time),
        )
    });
    blocked > time / 2
}

fn is_open(status: Status) -> bool {
    matches!(status, Status::Undecided | Status::InProgress)
}

/// Whether most of a peak's time is in a function that is not looked into.
fn is_closed(peak: &PeakEntry) -> bool {
    let causes = peak.root_causes.iter();
    let mut closed = causes.filter(|cause| cause.stop == StopReason::NotInstrumentable);
    closed.any(|cause| cause.share_of_time >= MOST_OF_IT)
}

/// The peak with most of the time, of those that were analysed.
fn main(peaks: &[PeakEntry]) -> Option<&PeakEntry> {
    let analysed = peaks
        .iter()
        .filter(|peak| peak.status != Status::NotAnalysed);
    analysed.max_by(|one, other| one.share_of_time.total_cmp(&other.share_of_time))
}

/// Whether a function's own code is the cause, and was not narrowed yet.
fn runs(cause: &RootCauseEntry) -> bool {
    let is_own = matches!(
        cause.stop,
        StopReason::SelfTime | StopReason::NoCalls | StopReason::Spread
    );
    is_own
        && matches!(cause.kind, Kind::Function | Kind::Loop)
        && cause.narrowed.is_none()
        && cause.blocked.is_none_or(|part| part < 0.5)
}

/// The option that names these ops.
fn of_range(range: &RangeEntry, hz: u64) -> Option<String> {
    if let Some(millionths) = range.above {
        return Some(format!(" --above {}", words::percentile(millionths)));
    }
    let hz = Hz::new(hz)?;
    let time = |cycles| {
        let nanos = hz.nanos(Ticks(cycles)).0.round() as u64;
        let units = [
            ("s", 1_000_000_000),
            ("ms", 1_000_000),
            ("us", 1_000),
            ("ns", 1),
        ];
        let mut units = units.into_iter();
        let (unit, length) = units.find(|(_, length)| nanos.is_multiple_of(*length))?;
        (nanos > 0).then(|| format!("{}{unit}", nanos / length))
    };
    let from = time(range.from)?;
    match range.to {
        u64::MAX => Some(format!(" --slower-than {from}")),
        to => Some(format!(" --between {from}..{}", time(to)?)),
    }
}

/// An expression that may tell peaks apart better than this argument: what an address points to, or what is left of it when it
/// is divided. Nothing where the argument itself is the answer.
fn sharper(contrast: &ValueContrast) -> Option<String> {
    let argument = &contrast.expression;
    let is_argument = argument.len() == 4 && argument.starts_with("arg");
    if !is_argument {
        return None;
    }
    let [one, other] = &contrast.values;
    let is_address = |values: &PeakValues| values.lowest >= FIRST_ADDRESS;
    if is_address(one) && is_address(other) && (one.values.is_empty() || other.values.is_empty()) {
        return Some(format!("*{argument}"));
    }
    let [one, other] =
        [one, other].map(|of| of.values.iter().map(|it| it.value).collect::<Vec<_>>());
    let divisor = (2..=LARGEST_DIVISOR)
        .find(|&divisor| is_told(&one, &other, divisor) || is_told(&other, &one, divisor))?;
    Some(format!("{argument}%{divisor}"))
}

/// Whether several values leave the same when they are divided, and none of the others leaves that.
fn is_told(alike: &[u64], others: &[u64], divisor: u64) -> bool {
    let Some((first, rest)) = alike.split_first().filter(|(_, rest)| rest.len() >= 2) else {
        return false;
    };
    let left = first % divisor;
    // Small values leave themselves.
    rest.iter().all(|value| value % divisor == left)
        && others.len() >= 2
        && others.iter().all(|value| value % divisor != left)
}

/// A word for a shell; nothing where it has characters that nobody can type, or would be taken for an option.
#[must_use]
pub fn quoted(word: &str) -> Option<String> {
    shell(word).filter(|_| !word.starts_with('-'))
}

/// ... which may look like an option.
fn shell(word: &str) -> Option<String> {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "_./:@%+=,-".contains(char);
    if word.is_empty() || control(word).replace("\\\\", "\\") != word {
        return None;
    }
    match word.chars().all(is_plain) {
        true => Some(word.to_owned()),
        false => Some(format!("'{}'", word.replace('\'', "'\\''"))),
    }
}

#[cfg(test)]
mod tests;
