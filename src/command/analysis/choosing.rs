//! Which function is analysed where nobody has named one that is called often: what a process' threads began with.

use std::collections::HashSet;
use std::time::Duration;

use darc_process::modules::CodeRef;
use darc_process::{Libraries, is_go_program};
use darc_report::model::Engine;
use darc_report::words::percent;
use darc_symbols::NameSpec;

use super::{Conduct, following};
use crate::exit::{Failure, FailureKind};
use crate::session::survey::{self, Began};
use crate::target_name::{ThreadName, are_there, chosen_threads, threads_without};

/// Threads that took less CPU time in the second in which they were looked at may do next to nothing.
const LITTLE: Duration = Duration::from_millis(50);
/// Threads with this part of the busiest ones' CPU time do something, too.
const BUSY: f64 = 0.05;
/// Threads with this part of it are looked at although of the busiest ones it is known which function takes the time.
const AS_BUSY: f64 = 0.25;

/// Threads with more than this part of the CPU time have ended since: it is such that come and go that take it.
const ENDED: f64 = 0.5;

/// What was chosen to be f0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Chosen {
    /// Nothing: somebody has named it, or the threads do nothing.
    Nothing,
    /// Nothing: it is not known what the threads began with.
    Unknown,
    /// What runs all the time, to be divided.
    Divided,
    /// What threads run that come and go, each of which is a call.
    Called,
}

/// What some threads began with, which may be divided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    function: CodeRef,
    /// The CPU time that they took.
    cpu: Duration,
    /// ... as a part of all, where that means something.
    share: Option<f64>,
}

/// Why what some threads began with is not all that is looked at.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Passed {
    /// They do nothing but wait.
    Waits,
    /// Each was in one call all the time.
    NoneReturned,
    /// It cannot be divided, for this reason.
    Indivisible(String),
    /// This function takes this part of the time itself.
    Itself(String, f64),
}

impl Conduct {
    /// Whether f0 is the function that is called once, and an engine measures that can look into it. Of one that cannot
    /// that is said.
    pub(super) fn is_main(&mut self) -> bool {
        if !following::names_main(&self.investigation.spec) {
            return false;
        }
        match self.engine.model() {
            Engine::Jump => true,
            Engine::Int3 => {
                self.warn(
                    "main is called once, and --engine int3 does not divide a call that runs; name a function that is called often with --f0, or leave out --engine int3"
                        .to_owned(),
                );
                false
            }
        }
    }

    /// From now on the ops of the threads that were named are measured, if any were.
    ///
    /// # Errors
    /// When the process has no such thread, or a function's calls are not of one thread.
    pub(super) fn choose_threads(&mut self, pid: i32, libraries: Libraries) -> Result<(), Failure> {
        let names = self.common.threads.clone();
        if names.is_empty() {
            return Ok(());
        }
        if self.modules.refresh(pid).is_ok() && is_go_program(&self.modules) {
            return Err(Failure::usage(
                "goroutines run on any thread; leave out --thread",
            ));
        }
        match libraries {
            Libraries::Loaded => are_there(pid, &names)?,
            Libraries::NotLoadedYet if names.iter().any(ThreadName::is_id) => {
                return Err(Failure::usage(
                    "a program that is started has no thread of that id yet; give the name of its threads to --thread",
                ));
            }
            Libraries::NotLoadedYet => {}
        }
        self.investigation.threads = Some(chosen_threads(pid, names));
        Ok(())
    }

    /// Makes the function f0 that the busiest threads began with, if nobody has named one, and says so.
    pub(super) fn chooses(&mut self, pid: i32) -> Chosen {
        if !self.chooses_f0 || self.modules.refresh(pid).is_err() {
            return Chosen::Nothing;
        }
        let began = survey::began(pid, &self.modules, &self.investigation);
        if began.is_generated {
            self.warn(format!(
                "the program runs code that it makes itself (as Java, node and other run-times do), into which darc does not look; darc sample -p {pid} tells its part of the CPU time, docs/languages.md how its functions get names there"
            ));
        }
        let Some(busiest) = began.functions.first() else {
            // Threads that do nothing wait in main, which may be called where it is not.
            return match began.lost {
                (0, _) => Chosen::Nothing,
                (_, cpu) if cpu < LITTLE && self.runs_already(pid) => Chosen::Nothing,
                _ => Chosen::Unknown,
            };
        };
        let others = began.functions.iter().skip(1);
        let busy = others.filter(|other| other.cpu >= busiest.cpu.mul_f64(BUSY));
        let all = began.cpu();
        // Goroutines run on any thread.
        let is_known = all >= LITTLE && !is_go_program(&self.modules);
        let share = |of: &Began| is_known.then(|| of.cpu.as_secs_f64() / all.as_secs_f64());
        let choice = |of: &Began| Choice {
            function: of.function,
            cpu: of.cpu,
            share: share(of),
        };
        self.next_choices = busy.map(choice).collect();
        self.choice = Some(choice(busiest));
        self.investigation.share_of_cpu = share(busiest);
        if began.is_generated {
            self.investigation
                .unfollowed
                .clone_from(&began.lost_threads);
        }
        let name = self.modules.name(busiest.function);
        // Each of such threads is one call.
        let is_called = busiest.ended > busiest.cpu.mul_f64(ENDED);
        let what = match is_called {
            true => "is measured, of which each thread is a call",
            false => "is divided",
        };
        if began.functions.len() > 1 || began.lost.0 > 0 || !began.ended.is_zero() {
            let threads = survey::in_words(&began, &self.modules);
            self.note(
                &format!("no --f0 was given: {name} {what}"),
                format!("no --f0 was given: {threads}; {name} {what}, --f0 names another function"),
            );
        }
        let function = busiest.function;
        if is_called {
            self.make_f0(function);
            return Chosen::Called;
        }
        self.began_with = began.of_thread;
        self.divide(pid, function);
        Chosen::Divided
    }

    /// Makes a function f0 that threads began with. What others do is not below it, though they may come by the same calls.
    fn divide(&mut self, pid: i32, function: CodeRef) {
        let began = self.began_with.iter();
        let others = began.filter(|(_, began)| **began != function);
        let others: HashSet<i32> = others.map(|(&tid, _)| tid).collect();
        if !others.is_empty() && !is_go_program(&self.modules) {
            let names = self.common.threads.clone();
            self.investigation.threads = Some(threads_without(pid, names, others));
        }
        self.make_f0(function);
    }

    fn make_f0(&mut self, function: CodeRef) {
        let name = self.modules.name(function);
        self.investigation.f0 = Some(function);
        self.investigation.spec = NameSpec::Name { module: None, name };
    }

    /// Makes the function f0 that the next busiest threads began with, where nobody has named one and the last one is passed over. What
    /// was found of that, and what to type, is said. False where there is no other.
    pub(super) fn chooses_next(&mut self, pid: i32, passed: &Passed) -> bool {
        let Some(last) = self.choice else {
            return false;
        };
        let of = last.share.map(|share| format!("{} of", percent(share)));
        let of = of.unwrap_or_else(|| "some of".to_owned());
        let name = self.modules.name(last.function);
        let found = match passed {
            Passed::Waits => format!("{name} waits, and does next to nothing"),
            Passed::NoneReturned => format!("no call that {name} makes was seen to return"),
            Passed::Indivisible(why) => format!(
                "{name} took {of} the CPU time itself: {why}; darc sample -p {pid} tells where in it"
            ),
            Passed::Itself(function, share) => {
                let share = percent(*share);
                format!(
                    "{function} takes {share} of the time of {name} itself; darc sample -p {pid} tells where in it"
                )
            }
        };
        // Who takes CPU time does something, whatever else its threads wait for.
        let least = match passed {
            Passed::Waits if last.cpu < LITTLE => Duration::ZERO,
            Passed::Itself(..) => last.cpu.mul_f64(AS_BUSY).max(LITTLE),
            _ => LITTLE,
        };
        let is_worth_it = |next: &Choice| next.cpu >= least;
        let Some(next) = self.next_choices.pop_front().filter(is_worth_it) else {
            if matches!(passed, Passed::Indivisible(_) | Passed::Itself(..)) {
                self.warn(found);
            }
            return false;
        };
        let name = self.modules.name(next.function);
        self.warn(format!("{found}: {name} is divided instead"));
        self.investigation.share_of_cpu = next.share;
        self.choice = Some(next);
        self.divide(pid, next.function);
        true
    }

    /// Whether f0, which is chosen now if nobody has named it, runs all the time.
    ///
    /// # Errors
    /// Where nobody has named it and it cannot be found out.
    pub(super) fn is_to_be_divided(&mut self, pid: i32) -> Result<bool, Failure> {
        match self.chooses(pid) {
            Chosen::Divided => Ok(true),
            Chosen::Called => Ok(false),
            Chosen::Nothing => Ok(self.runs_already(pid)),
            Chosen::Unknown => Err(Failure::message(
                FailureKind::Name,
                format!(
                    "with which functions the threads of process {pid} began could not be found out: their stacks are too deep, or lead through code without unwind tables; darc sample -p {pid} tells which functions take its CPU time, then darc attach -p {pid} --f0 FUNCTION"
                ),
            )),
        }
    }

    fn runs_already(&mut self, pid: i32) -> bool {
        let known =
            self.modules.refresh(pid).is_ok() && self.investigation.find_f0(&self.modules).is_ok();
        known && !survey::calls_in_progress(pid, &self.modules, &self.investigation).is_empty()
    }
}
