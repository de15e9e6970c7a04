//! How far a process has come with its start: whether it has the libraries that it begins with, and whether its own code
//! has begun to run.

use super::SessionError;
use super::hooks::Hooks;
use super::program::Program;

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

    /// Ends a program that was started in vain, and says so. To be asked before the engine lets it go.
    ///
    /// # Errors
    /// Those that `outcome` has.
    pub fn judge<T>(self, pid: i32, outcome: Result<T, SessionError>) -> Result<T, SessionError> {
        self.program.judge(pid, outcome)
    }
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
}
