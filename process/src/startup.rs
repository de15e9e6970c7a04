//! How far a process has come with its start: whether it has the libraries that it begins with, and whether its own code
//! has begun to run.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::ProcessError;
use crate::hooks::Hooks;

/// The dynamic linker announces the libraries that a program starts with twice: before and after
/// it maps them (`link.h`, RT_ADD and RT_CONSISTENT).
const AT_FIRST: u32 = 2;

/// Whether f0 may turn up later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Libraries {
    /// The program was just started: its libraries are yet to be loaded.
    NotLoadedYet,
    /// What is not there now is not expected.
    Loaded,
}

/// Which of the changes of its libraries a process has behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Changes {
    /// None was announced.
    None,
    /// Those of its start, or some of them.
    AtFirst,
    /// The last of those of its start, just now.
    LastAtFirst,
    /// The program itself has loaded or unloaded some.
    Later,
}

/// How far the program of a session has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Program {
    /// It was started for this, and its libraries are being loaded: nothing of it has run that a person would miss.
    Starting,
    /// Its own code runs, or has run.
    Runs,
}

impl Program {
    /// Ends a program that was started in vain, and says so. To be asked before the engine lets it go.
    ///
    /// # Errors
    /// Those that `outcome` has.
    pub fn judge<T>(self, pid: i32, outcome: Result<T, ProcessError>) -> Result<T, ProcessError> {
        match (self, outcome) {
            (Program::Starting, Err(error)) if !error.is_the_programs() => {
                end(pid);
                Err(ProcessError::LaunchAborted(Box::new(error)))
            }
            (_, outcome) => outcome,
        }
    }
}

/// The start of one process, as seen by one session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Startup {
    announced: u32,
    libraries: Libraries,
    program: Program,
}

impl Startup {
    /// At the beginning of a session.
    #[must_use]
    pub fn of(libraries: Libraries) -> Startup {
        Startup {
            announced: 0,
            libraries,
            program: match libraries {
                Libraries::NotLoadedYet => Program::Starting,
                Libraries::Loaded => Program::Runs,
            },
        }
    }

    /// Libraries came or went.
    pub fn noticed(&mut self) {
        self.announced = self.announced.saturating_add(1);
        if self.announced >= AT_FIRST {
            self.libraries = Libraries::Loaded;
        }
    }

    /// f0 was called: what came before is there, however it was announced.
    pub fn called(&mut self) {
        self.libraries = Libraries::Loaded;
    }

    /// What is loaded was looked at: a program without a dynamic linker has all that it will have.
    pub fn looked(&mut self, hooks: &Hooks) {
        if !hooks.announce_libraries() {
            self.libraries = Libraries::Loaded;
        }
    }

    /// Those that it starts with.
    #[must_use]
    pub fn libraries(self) -> Libraries {
        self.libraries
    }

    /// What has been announced.
    #[must_use]
    pub fn changes(self) -> Changes {
        match self.announced {
            0 => Changes::None,
            AT_FIRST => Changes::LastAtFirst,
            1..AT_FIRST => Changes::AtFirst,
            _ => Changes::Later,
        }
    }

    /// The process is about to be let go on: with its libraries there, its own code runs.
    pub fn goes_on(&mut self) {
        if self.libraries == Libraries::Loaded {
            self.program = Program::Runs;
        }
    }

    /// It is of use, whatever becomes of this session.
    pub fn spare(&mut self) {
        self.program = Program::Runs;
    }

    /// Ends a program that was started in vain, and says so. To be asked before the engine lets it go.
    ///
    /// # Errors
    /// Those that `outcome` has.
    pub fn judge<T>(self, pid: i32, outcome: Result<T, ProcessError>) -> Result<T, ProcessError> {
        self.program.judge(pid, outcome)
    }
}

/// Ends a program that was started and is held before its first instruction.
pub fn end(pid: i32) {
    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_runs_once_its_libraries_have_been_announced_twice() {
        let hooks = Hooks::with_loader();
        let mut startup = Startup::of(Libraries::NotLoadedYet);
        for changes in [Changes::None, Changes::AtFirst] {
            startup.looked(&hooks);
            startup.goes_on();
            assert_eq!(startup.changes(), changes);
            assert_eq!(startup.libraries(), Libraries::NotLoadedYet);
            assert_eq!(startup.program, Program::Starting);
            startup.noticed();
        }
        assert_eq!(startup.changes(), Changes::LastAtFirst);
        assert_eq!(startup.libraries(), Libraries::Loaded);
        assert_eq!(startup.program, Program::Starting, "it is still held");
        startup.goes_on();
        assert_eq!(startup.program, Program::Runs);
        startup.noticed();
        assert_eq!(startup.changes(), Changes::Later);
    }

    #[test]
    fn a_program_without_a_dynamic_linker_waits_for_no_announcement() {
        let mut startup = Startup::of(Libraries::NotLoadedYet);
        startup.looked(&Hooks::default());
        assert_eq!(startup.libraries(), Libraries::Loaded);
        assert_eq!(startup.program, Program::Starting, "it is still held");
        startup.goes_on();
        assert_eq!(startup.program, Program::Runs);
    }

    #[test]
    fn a_program_whose_functions_are_called_waits_for_no_announcement() {
        let mut startup = Startup::of(Libraries::NotLoadedYet);
        startup.noticed();
        assert_eq!(startup.libraries(), Libraries::NotLoadedYet);
        startup.called();
        assert_eq!(startup.libraries(), Libraries::Loaded);
    }

    #[test]
    fn a_process_that_runs_has_started() {
        let startup = Startup::of(Libraries::Loaded);
        assert_eq!(startup.program, Program::Runs);
        assert_eq!(startup.changes(), Changes::None);
    }

    #[test]
    fn only_a_program_that_has_not_begun_is_ended() {
        let failed = || Err::<(), _>(ProcessError::Unsuitable("no room".to_owned()));
        let child = || {
            let mut command = std::process::Command::new("sleep");
            command.arg("1000").spawn().unwrap()
        };

        let mut waits = child();
        let pid = i32::try_from(waits.id()).unwrap();
        assert!(Program::Starting.judge(pid, Ok(())).is_ok());
        assert_eq!(waits.try_wait().unwrap(), None);
        let error = Program::Starting.judge(pid, failed()).unwrap_err();
        assert!(
            matches!(&error, ProcessError::LaunchAborted(_)),
            "{error:?}"
        );
        assert_eq!(error.to_string(), "no room");
        assert!(!waits.wait().unwrap().success());

        let mut runs = child();
        let pid = i32::try_from(runs.id()).unwrap();
        let error = Program::Runs.judge(pid, failed()).unwrap_err();
        assert!(matches!(&error, ProcessError::Unsuitable(_)), "{error:?}");
        let alone = Err::<(), _>(ProcessError::Indivisible("it makes no calls".to_owned()));
        let error = Program::Starting.judge(pid, alone).unwrap_err();
        assert!(matches!(&error, ProcessError::Indivisible(_)), "{error:?}");
        assert_eq!(runs.try_wait().unwrap(), None);
        runs.kill().unwrap();
        runs.wait().unwrap();
    }
}
