//! An f0 that runs already, or is called once: where its time goes, and then the functions that take it, one
//! after the other, each as an f0.

use std::time::{Duration, Instant};

use darc_analysis::Params;
use darc_analysis::totals::Totals;
use darc_process::modules::Modules;
use darc_process::{Ending, Libraries, Limits, Process, ProcessError};
use darc_report::Report;
use darc_report::model::{self, TimeTable};
use darc_report::place::Place;
use darc_report::state::StateError;
use darc_symbols::NameSpec;
use darc_tracer::engine::Engine;
use darc_tracer::plan::Mark;

use crate::command::analysis::choosing::{Chosen, Passed};
use crate::command::analysis::{Conduct, following, onlooker};
use crate::command::shared::target::tracing_failed;
use crate::exit::Failure;
use crate::session::catalog::Catalog;
use crate::session::descent::investigation::{Investigation, stored_places};
use crate::session::survey::{self, Arrival, Survey, Surveyed};
use crate::session::{Others, Session, summary};

/// Of so many functions each gets an analysis of its own; the others are named.
const MOST_FUNCTIONS: usize = 6;
/// How long one function is analysed while others wait for their turn.
const TURN: Duration = Duration::from_secs(3);
/// ... where it takes most of the time: long enough to look on when it has its answers.
const LONG_TURN: Duration = Duration::from_secs(9);
/// ... where there is no other, and the person has not said how long.
const WHOLE_TURN: Duration = Duration::from_secs(30);
/// A function with this part of the time takes most of it.
const MOST: f64 = 0.5;

/// What is known of an f0 that runs already.
#[derive(Debug)]
pub struct Running {
    /// Where its time goes.
    pub time: TimeTable,
    /// The functions below it that are, or are to be, analysed.
    pub functions: Vec<Below>,
}

/// A function below, with its analysis.
#[derive(Debug)]
pub struct Below {
    /// How the descent arrived at it.
    pub arrival: Arrival,
    /// Its analysis.
    pub investigation: Investigation,
}

/// Where the survey begins.
pub enum Start {
    /// At a program that was just started.
    Launched(Box<dyn Engine>),
    /// At a process in which f0 runs.
    Attached,
}

/// How one of several functions is analysed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Turn {
    /// Others wait.
    Short,
    /// They do, but this one takes most of the time.
    Long,
    /// There are no others.
    Alone,
}

impl Turn {
    fn of(below: &Below, is_alone: bool) -> Turn {
        match is_alone {
            true => Turn::Alone,
            false if below.arrival.share >= MOST => Turn::Long,
            false => Turn::Short,
        }
    }

    /// How long it may take.
    fn time(self) -> Duration {
        match self {
            Turn::Short => TURN,
            Turn::Long => LONG_TURN,
            Turn::Alone => WHOLE_TURN,
        }
    }

    fn others(self) -> Others {
        match self {
            Turn::Short => Others::Wait,
            Turn::Long | Turn::Alone => Others::Small,
        }
    }
}

/// The time that was given for everything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Time {
    Left,
    Over,
}

/// What comes after the analysis of one function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    /// The function whose turn is next.
    Function,
    /// Nothing more.
    End(Ending),
}

/// One function's analysis ended so: what is next? That this one is answered, took too long, or does not return, says
/// nothing about the others.
fn after(ending: Ending, time: Time) -> Next {
    match (ending, time) {
        (Ending::Finished | Ending::TimeUp | Ending::Running, Time::Left) => Next::Function,
        (Ending::Running, Time::Over) => Next::End(Ending::TimeUp),
        (ending, _) => Next::End(ending),
    }
}

impl Running {
    /// Whether the functions that take the time are known.
    pub fn is_complete(&self) -> bool {
        self.time.windows > 0 && self.time.survey == model::Survey::Complete
    }

    /// What an earlier run has stored of an f0 that runs all the time; `None` when f0 was another.
    ///
    /// # Errors
    /// When what is stored contradicts itself or the parameters.
    pub fn stored(
        report: &Report,
        params: Params,
        modules: &mut Modules,
        catalog: &mut Catalog,
    ) -> Result<Option<Running>, StateError> {
        let Some(time) = report.time.clone() else {
            return Ok(None);
        };
        let place = stored_places(report);
        let mut functions = Vec::new();
        for focus in &report.focus {
            let entry = Place {
                module: focus.function.module.clone(),
                offset: focus.function.offset,
            };
            let arrival = Arrival {
                path: focus.path.clone(),
                function: place(modules, &entry),
                callers: focus
                    .callers
                    .iter()
                    .map(|caller| place(modules, caller))
                    .collect(),
                share: focus.share_of_time,
                calls: focus.calls,
            };
            let mut investigation =
                Investigation::resumed(&focus.as_f0(report), params, modules, catalog)?;
            investigation.callers = arrival.callers.clone();
            functions.push(Below {
                arrival,
                investigation,
            });
        }
        Ok(Some(Running { time, functions }))
    }
}

impl Conduct {
    /// Finds out where the time goes, and analyses the functions that take it.
    ///
    /// # Errors
    /// When f0 is not there or cannot be instrumented.
    pub fn survey(&mut self, pid: i32, start: Start) -> Result<Ending, Failure> {
        self.follow_nothing();
        let params = *self.investigation.analysis.params();
        let mut totals = Totals::new(params.start_ops, params.max_depth, self.since.rate());
        let limits = Limits {
            given: Some(&self.given),
            deadline: None,
            interrupts: &self.interrupts,
            until: Some(Mark::End),
        };
        let engine = &self.engine;
        let threads = self.investigation.threads.clone();
        let attach = || engine.attach(pid, threads.as_ref());
        let survey = Survey::new(
            pid,
            &mut self.modules,
            &mut self.catalog,
            &mut self.investigation,
            &mut totals,
            &attach,
        )
        .seen_by(onlooker(self.standing.as_ref()));
        let surveyed = match start {
            Start::Launched(engine) => survey.launched(engine, limits),
            Start::Attached => survey.attached(limits),
        };
        let (ending, extent, arrivals) = match surveyed {
            Ok(Surveyed::Done(arrivals)) => {
                (Ok(Ending::Finished), model::Survey::Complete, arrivals)
            }
            Ok(Surveyed::Ended(ending)) => (Ok(ending), model::Survey::Unfinished, Vec::new()),
            Err(error) => (Err(error), model::Survey::Unfinished, Vec::new()),
        };
        // Of one that was ended early nothing can be said.
        let is_done = extent == model::Survey::Complete && arrivals.is_empty();
        let passed = match &ending {
            Err(ProcessError::Indivisible(why)) => Some(Passed::Indivisible(why.clone())),
            _ if is_done => self.passed(&totals),
            _ => None,
        };
        if let Some(passed) = passed
            && self.time() == Time::Left
            && self.chooses_next(pid, &passed)
        {
            return self.survey(pid, Start::Attached);
        }
        if is_done && self.has_jumped_away(pid, &totals) {
            self.chooses_f0 = true;
            if matches!(self.chooses(pid), Chosen::Divided | Chosen::Called) {
                return self.survey(pid, Start::Attached);
            }
        }
        let functions = arrivals
            .into_iter()
            .take(MOST_FUNCTIONS)
            .map(|arrival| {
                let name = self.modules.name(arrival.function);
                let spec = NameSpec::Name { module: None, name };
                Below {
                    investigation: Investigation {
                        f0: Some(arrival.function),
                        callers: arrival.callers.clone(),
                        ..Investigation::new(spec, params)
                    },
                    arrival,
                }
            })
            .collect();
        let naming = self.investigation.naming(&self.modules, &self.catalog);
        let mut time = survey::time_table(naming, &totals, extent, &self.investigation);
        let passed_over = self.investigation.passed_over(&self.modules);
        summary::tell_unmeasured(&mut time, &passed_over);
        if time.windows > 0 {
            self.running = Some(Running { time, functions });
        }
        match ending? {
            Ending::Finished => self.analyse_functions(pid, None),
            ending => Ok(ending),
        }
    }

    /// Why others may be looked at where nothing was found that is called often.
    fn passed(&self, totals: &Totals) -> Option<Passed> {
        let naming = self.investigation.naming(&self.modules, &self.catalog);
        let (windows, _) = totals.so_far();
        if windows == 0 {
            return Some(Passed::NoneReturned);
        }
        if survey::is_idle(naming, totals) {
            return Some(Passed::Waits);
        }
        let (function, share) = survey::itself(naming, totals)?;
        Some(Passed::Itself(function, share))
    }

    /// Whether main has made place for what does its work, by a jump: nothing of it is on a stack.
    fn has_jumped_away(&self, pid: i32, totals: &Totals) -> bool {
        let (windows, _) = totals.so_far();
        windows == 0
            && !self.chooses_f0
            && self.time() == Time::Left
            && following::names_main(&self.investigation.spec)
            && survey::calls_in_progress(pid, &self.modules, &self.investigation).is_empty()
    }

    /// What was found in an earlier run of a survey that did not come to its end: the next process is surveyed anew.
    pub fn unfinished_survey(&mut self) -> Option<Running> {
        self.running.take_if(|running| !running.is_complete())
    }

    /// Keeps what an earlier run has found, unless this one found something.
    pub fn keep_unfinished(&mut self, earlier: Option<Running>) {
        if self.running.is_none() && !self.saw_ops() {
            self.running = earlier;
        }
    }

    /// Analyses the functions below f0 whose analysis is not finished, in the order of their shares. `engine`
    /// has a program that was just started.
    ///
    /// # Errors
    /// When the process cannot be traced.
    pub fn analyse_functions(
        &mut self,
        pid: i32,
        mut engine: Option<Box<dyn Engine>>,
    ) -> Result<Ending, Failure> {
        let Some(mut running) = self.running.take() else {
            return Ok(Ending::Finished);
        };
        let mut outcome = Ok(Ending::Finished);
        let open = |below: &&mut Below| !below.investigation.analysis.is_finished();
        let open: Vec<&mut Below> = running.functions.iter_mut().filter(open).collect();
        let is_alone = open.len() == 1;
        for below in open {
            let turn = Turn::of(below, is_alone);
            let ended = self.analyse_function(pid, below, turn, engine.take());
            let name = || self.modules.name(below.arrival.function);
            match ended {
                Ok(ending) => {
                    if ending == Ending::Running {
                        let warning = format!(
                            "{}: a call of it runs and did not return while it was analysed, and no other one did",
                            name()
                        );
                        self.warn(warning);
                    }
                    if let Next::End(ending) = after(ending, self.time()) {
                        outcome = Ok(ending);
                        break;
                    }
                }
                Err(ProcessError::Unsuitable(why)) => {
                    let warning = format!("{}: {why}", name());
                    self.warn(warning);
                }
                Err(ProcessError::Tracer(error)) => {
                    outcome = Err(tracing_failed(&error, pid));
                    break;
                }
                Err(error) => {
                    outcome = Err(error.into());
                    break;
                }
            }
        }
        self.running = Some(running);
        if let Some(mut unused) = engine {
            // There was nothing left to ask: the program runs on without us.
            unused
                .finish()
                .map_err(|error| tracing_failed(&error, pid))?;
        }
        outcome
    }

    fn time(&self) -> Time {
        match self.given.is_over() {
            true => Time::Over,
            false => Time::Left,
        }
    }

    fn analyse_function(
        &mut self,
        pid: i32,
        Below { investigation, .. }: &mut Below,
        turn: Turn,
        launched: Option<Box<dyn Engine>>,
    ) -> Result<Ending, ProcessError> {
        let turn_ends = Instant::now() + turn.time();
        let limits = Limits {
            given: Some(&self.given),
            deadline: (turn != Turn::Alone || !self.given.is_limited()).then_some(turn_ends),
            interrupts: &self.interrupts,
            until: Some(Mark::End),
        };
        let (engine, libraries) = match launched {
            Some(engine) => (engine, Libraries::NotLoadedYet),
            None => {
                let threads = self.investigation.threads.as_ref();
                (self.engine.attach(pid, threads)?, Libraries::Loaded)
            }
        };
        investigation
            .threads
            .clone_from(&self.investigation.threads);
        investigation.preemption = self.investigation.preemption;
        investigation.budget = self.investigation.budget;
        investigation.blocks = self.investigation.blocks;
        investigation.looks_on = self.investigation.looks_on;
        investigation.max_sites = self.investigation.max_sites;
        let process = Process::new(pid, &mut self.modules, engine, libraries);
        Session::new(
            process,
            &mut self.catalog,
            investigation,
            &mut self.progress,
        )
        .beside(turn.others())
        .seen_by(onlooker(self.standing.as_ref()))
        .run(limits)
    }
}

#[cfg(test)]
mod tests {
    use darc_process::Level;

    use super::*;

    #[test]
    fn a_function_that_does_not_return_leaves_the_others_their_turns() {
        for ending in [Ending::Finished, Ending::TimeUp, Ending::Running] {
            assert_eq!(after(ending, Time::Left), Next::Function);
        }
        assert_eq!(
            after(Ending::Running, Time::Over),
            Next::End(Ending::TimeUp)
        );
        for ending in [
            Ending::Interrupted(Level::End),
            Ending::Marked,
            Ending::Exec,
            Ending::Exited(0),
            Ending::Killed(9),
        ] {
            assert_eq!(after(ending, Time::Left), Next::End(ending));
        }
    }
}
