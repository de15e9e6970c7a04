//! `darc watch`: functions over time, chosen and changed while the program runs.

mod record;

use std::io::{IsTerminal, Write};
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use darc_analysis::{Hz, Nanos, Ticks};
use darc_process::claim::Claim;
use darc_process::clock::Moment;
use darc_process::modules::Modules;
use darc_process::{Ending, Interrupts as _, Level, Libraries, Limits, Process, guarded};
use darc_report::escape::control;
use darc_report::model::Target;
use darc_tracer::engine::jump::{self, Profiler};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ratatui::crossterm::event::{self, Event};

use crate::command::shared::answering;
use crate::command::shared::target::{checked, command_line};
use crate::command::shared::target::{claim, tracing_failed};
use crate::exit::{Classify, ExitStatus, Failure, FailureKind};
use crate::options::WatchOptions;
use crate::session::watching::{Sample, Watching};
use crate::terminal::interrupts::Interrupts;
use crate::terminal::warning;
use crate::terminal::watch::{Picture, Row, State, Wish, draw};
use record::Record;

/// The time between two samples.
const EVERY: Duration = Duration::from_secs(1);
/// The longest wait between two looks at keys and target.
const SLICE: Duration = Duration::from_millis(30);

/// Does it.
///
/// # Errors
/// When darc itself failed.
pub fn execute(options: WatchOptions) -> Result<ExitStatus, Failure> {
    darc_tracer::child_signal::block().class(FailureKind::Other)?;
    let interrupts = Interrupts::of_a_stranger().class(FailureKind::Other)?;
    let pid = checked(options.pid, |note| warning::print(&note.to_string()))?;
    let since = Moment::now();
    let calibration = jump::calibrate_counting().class(FailureKind::Target)?;
    let claim = claim(pid)?;
    let record = options.record.as_deref().map(Record::open).transpose()?;
    let mut profiler = Profiler::attach(pid).map_err(|error| tracing_failed(&error, pid))?;
    profiler.set_cost(&calibration);
    let mut modules = Modules::default();
    let process = Process::new(pid, &mut modules, Box::new(profiler), Libraries::Loaded);
    let mut watch = Watch {
        pid,
        watching: Watching::new(process)?,
        hz: since.rate(),
        began: Instant::now(),
        record,
        offered: None,
        claim,
        command: command_line(pid),
    };
    for warning in watch.watching.take_warnings() {
        warning::print(&warning);
    }
    let outcome = guarded(|| watch.begin(&options, &interrupts));
    let restored = watch.watching.finish();
    let shown = outcome?;
    restored?;
    let _reporting = interrupts.report();
    // With all probes gone all calls have been counted.
    watch.sample()?;
    if shown == Shown::InLines {
        // Nobody need read it any more.
        let _ = watch.print();
    }
    Ok(match interrupts.level() {
        Level::LeaveAtOnce(signal) => ExitStatus::LeftAtOnce(signal),
        _ => ExitStatus::Done,
    })
}

/// How what is watched is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shown {
    OnScreen,
    InLines,
}

/// How the watching ended.
enum Ended {
    /// The person, or the time that was given.
    Here,
    /// The target did.
    Target(&'static str),
}

struct Watch<'a> {
    pid: i32,
    watching: Watching<'a>,
    hz: Hz,
    began: Instant,
    record: Option<Record>,
    /// How often libraries had come or gone when names were offered.
    offered: Option<u64>,
    /// The claim on the process, by which `darc status` asks.
    claim: Claim,
    command: Vec<String>,
}

impl Watch<'_> {
    fn begin(&mut self, options: &WatchOptions, interrupts: &Interrupts) -> Result<Shown, Failure> {
        let on_screen = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
        if !on_screen && options.functions.is_empty() {
            return Err(Failure::usage(
                "watch: there is no terminal to choose functions on; name some",
            ));
        }
        for name in &options.functions {
            for note in self.watching.add(name)? {
                warning::print(&note);
            }
        }
        if let Some(record) = &mut self.record {
            record.begin()?;
        }
        self.began = Instant::now();
        let deadline = options.duration.map(|time| Instant::now() + time);
        let (shown, ended) = match on_screen {
            true => (Shown::OnScreen, self.on_screen(deadline, interrupts)?),
            false => (Shown::InLines, self.in_lines(deadline, interrupts)?),
        };
        if let Ended::Target(how) = ended {
            warning::print(how);
        }
        Ok(shown)
    }

    /// Whether something ends it now.
    fn ended(
        &mut self,
        deadline: Option<Instant>,
        interrupts: &Interrupts,
        wait: Duration,
    ) -> Result<Option<Ended>, Failure> {
        while let Some(asker) = answering::asker(&self.claim) {
            let target = Target {
                pid: Some(self.pid),
                command: self.command.clone(),
                ..Target::default()
            };
            let set = self.watching.profiles(target, self.hz);
            if let Ok(json) = serde_json::to_string(&set) {
                answering::tell(asker, json);
            }
        }
        let limits = Limits {
            given: None,
            deadline,
            interrupts,
            until: None,
        };
        Ok(self
            .watching
            .poll(wait, limits)?
            .map(|ending| match ending {
                ending if ending.is_targets() => Ended::Target("the target ended"),
                Ending::Exec => Ended::Target("the target executed another program"),
                _ => Ended::Here,
            }))
    }

    /// A line a second for each function.
    fn in_lines(
        &mut self,
        deadline: Option<Instant>,
        interrupts: &Interrupts,
    ) -> Result<Ended, Failure> {
        let mut next = Instant::now() + EVERY;
        loop {
            if let Some(ended) = self.ended(deadline, interrupts, SLICE)? {
                return Ok(ended);
            }
            for note in self.watching.take_notes() {
                warning::print(&note);
            }
            if Instant::now() < next {
                continue;
            }
            next = following(next, Instant::now());
            self.sample()?;
            if self.print().is_err() {
                // Nobody reads it any more.
                return Ok(Ended::Here);
            }
        }
    }

    /// Prints the last sample of each item.
    fn print(&self) -> std::io::Result<()> {
        let mut text = String::new();
        let time = self.began.elapsed().as_secs_f64();
        for item in self.watching.items() {
            let [calls, concurrency, p50, p90, p99] = self.figures(item.history.samples.back());
            text.push_str(&format!(
                "{time:.1} s  {}  calls/s {calls}  concurrency {concurrency}  p50 {p50}  p90 {p90}  p99 {p99}\n",
                control(&item.name)
            ));
        }
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        stdout.flush()
    }

    fn on_screen(
        &mut self,
        deadline: Option<Instant>,
        interrupts: &Interrupts,
    ) -> Result<Ended, Failure> {
        // Its drop panics where the terminal was closed.
        let mut terminal = ManuallyDrop::new(ratatui::try_init().class(FailureKind::Other)?);
        let outcome = self.converse(&mut terminal, deadline, interrupts);
        // A terminal that was closed cannot be restored, and need not be.
        let _ = terminal.show_cursor();
        let _ = ratatui::try_restore();
        outcome
    }

    fn converse(
        &mut self,
        terminal: &mut ratatui::DefaultTerminal,
        deadline: Option<Instant>,
        interrupts: &Interrupts,
    ) -> Result<Ended, Failure> {
        let mut state = State::default();
        let mut next = Instant::now() + EVERY;
        let mut changed = true;
        loop {
            if changed {
                state.keep_within(self.watching.items().len());
                let picture = self.picture();
                terminal
                    .draw(|frame| draw(frame, &picture, &state))
                    .class(FailureKind::Other)?;
                changed = false;
            }
            if let Some(ended) = self.ended(deadline, interrupts, Duration::from_millis(1))? {
                return Ok(ended);
            }
            let notes = self.watching.take_notes();
            if let Some(note) = notes.first() {
                state.message = warning::one_line(note);
                if notes.len() > 1 {
                    state.message += &format!(" (and {} more)", notes.len() - 1);
                }
                changed = true;
            }
            if Instant::now() >= next {
                next = following(next, Instant::now());
                self.sample()?;
                changed = true;
            }
            if terminal_is_gone(SLICE) {
                return Ok(Ended::Here);
            }
            if !event::poll(Duration::ZERO).class(FailureKind::Other)? {
                continue;
            }
            changed = true;
            let Event::Key(key) = event::read().class(FailureKind::Other)? else {
                continue;
            };
            match state.key(key) {
                Some(Wish::Quit) => return Ok(Ended::Here),
                Some(Wish::Names) => self.offer(&mut state),
                Some(Wish::Sort) => self.watching.sort(),
                Some(wish) => {
                    // What was counted until now is of these functions.
                    self.sample()?;
                    next = Instant::now() + EVERY;
                    self.fulfil(wish, &mut state);
                }
                None => {}
            }
        }
    }

    /// Offers the names that there are now.
    fn offer(&mut self, state: &mut State) {
        let now = Some(self.watching.changes());
        if self.offered != now {
            state.offer(self.watching.names());
            self.offered = now;
        }
    }

    /// Does what the person wants; what stands against it is told.
    fn fulfil(&mut self, wish: Wish, state: &mut State) {
        let outcome = match wish {
            Wish::Add(name) => self.watching.add(&name),
            Wish::StepInto(row) => self.watching.step_into(row),
            Wish::StepOut => self.watching.step_out().map(|()| Vec::new()),
            Wish::Drop(row) => self.watching.drop_item(row).map(|()| Vec::new()),
            Wish::Names | Wish::Sort | Wish::Quit => return,
        };
        state.message = match outcome {
            Ok(notes) => match (notes.first(), self.watching.pauses().last().copied()) {
                (Some(note), _) => note.clone(),
                (None, Some(pause)) => {
                    format!(
                        "probes changed; the target was stopped for {}",
                        Nanos(pause.as_nanos() as f64)
                    )
                }
                (None, None) => String::new(),
            },
            Err(error) => error.to_string(),
        };
        state.message = warning::one_line(&state.message);
    }

    /// Ends the sample that everything is in, and writes it down.
    fn sample(&mut self) -> Result<(), Failure> {
        self.watching.sample();
        let time = self.began.elapsed();
        match &mut self.record {
            Some(record) => record.write(&self.watching, time, self.hz),
            None => Ok(()),
        }
    }

    fn picture(&self) -> Picture {
        let mut title = format!("darc watch: process {}", self.pid);
        for name in self.watching.path() {
            title.push_str(&format!(" → inside {}", control(name)));
        }
        let rows = self.watching.items().iter().map(|item| {
            let samples = &item.history.samples;
            let over_time = |value: &dyn Fn(&Sample) -> f64| samples.iter().map(value).collect();
            Row {
                name: control(&item.name).into_owned(),
                figures: self.figures(samples.back()),
                calls: over_time(&|sample| per_second(sample, self.hz)),
                concurrency: over_time(&|sample| sample.concurrency),
                slowest: over_time(&|sample| {
                    sample
                        .percentiles
                        .map_or(0.0, |[.., slowest]| self.hz.nanos(slowest).0)
                }),
            }
        });
        Picture {
            title,
            rows: rows.collect(),
        }
    }

    /// A sample in words: calls a second, concurrency, three percentiles.
    fn figures(&self, sample: Option<&Sample>) -> [String; 5] {
        let none = || "-".to_owned();
        let Some(sample) = sample else {
            return std::array::from_fn(|_| none());
        };
        let time = |at: usize| {
            let ticks: Option<Ticks> = sample.percentiles.map(|percentiles| percentiles[at]);
            ticks.map_or_else(none, |ticks| self.hz.nanos(ticks).to_string())
        };
        [
            format!("{:.1}", per_second(sample, self.hz)),
            format!("{:.3}", sample.concurrency),
            time(0),
            time(1),
            time(2),
        ]
    }
}

/// When the sample after the one of `due` is taken. One that was missed, because darc was stopped, is not made up for.
fn following(due: Instant, now: Instant) -> Instant {
    let next = due + EVERY;
    if next > now { next } else { now + EVERY }
}

/// Waits for a key, for at most so long. True when the terminal was closed: a reader of keys would look for one for
/// ever.
fn terminal_is_gone(wait: Duration) -> bool {
    let stdin = std::io::stdin();
    let mut fds = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
    let wait = PollTimeout::try_from(wait).unwrap_or(PollTimeout::ZERO);
    // A signal ends the wait early, and is looked at next.
    let _ = poll(&mut fds, wait);
    fds[0].revents().is_some_and(|is| {
        is.intersects(PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL)
    })
}

fn per_second(sample: &Sample, hz: Hz) -> f64 {
    let seconds = hz.nanos(sample.passed).0 / 1e9;
    sample.calls as f64 / seconds.max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_that_were_missed_are_not_made_up_for() {
        let due = Instant::now();
        let late = |by| following(due, due + by) - due;
        assert_eq!(late(Duration::from_millis(30)), EVERY);
        assert_eq!(late(10 * EVERY), 11 * EVERY);
    }
}
