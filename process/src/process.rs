//! One process that is measured: its files, their code, how far it has started, and the engine that measures it.
//!
//! Whatever is measured, the life of the process is followed here: libraries come and go, it runs another program, it
//! ends, the person or the time that was given ends the measurement.

use std::cell::RefCell;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use darc_symbols::{GoFunction, Image};
use darc_tracer::addr::TargetAddr;
use darc_tracer::engine::{Engine, EngineKind, Notice, Refused};
use darc_tracer::maps;
use darc_tracer::plan::{Goroutines, Plan};
use darc_tracer::threads::SignalMasks;
use nix::sys::signal::Signal;

use crate::code::{CodeCache, Scanned};
use crate::goroutines::{self, Known};
use crate::hooks::Hooks;
use crate::modules::{CodeRef, Module, Modules};
use crate::plt::{Destination, behind_plt};
use crate::startup::{Changes, Libraries, Startup};
use crate::verify::{Compared, Touched};
use crate::{Ending, Limits, ProcessError, ending};

/// A warning of measurements that end with [`Ending::Exec`].
const EXECUTED: &str = "the target executed another program; measuring ended there";

/// A warning of measurements that end with [`Ending::Ended`].
const UNTOLD: &str = "the target ended, and it is not known how: its parent took the status before darc could read it";

/// A warning of breakpoints in a program that handles their signal: where it is blocked the kernel unblocks it and forgets the handler
/// (`force_sig_info_to_task` in its kernel/signal.c).
const CATCHES_TRAPS: &str = "the target catches SIGTRAP: should a thread that blocks it, as in the handler, come to a breakpoint, the kernel resets what the program does about SIGTRAP, and the next one of its own ends it; --engine jump has no breakpoints";

/// What a process did since the last look at it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Nothing that matters here.
    Nothing,
    /// Libraries came or went, and what is loaded now has been read; or the probes were taken out, and may be put in again.
    CodeChanged,
    /// The measurement is over.
    Ended(Ending),
}

/// A process, and the engine that has charge of it.
pub struct Process<'a, E: Engine + ?Sized = dyn Engine> {
    pid: i32,
    modules: &'a mut Modules,
    engine: Box<E>,
    code: RefCell<CodeCache>,
    hooks: Hooks,
    startup: Startup,
    touched: Touched,
    warnings: Vec<String>,
    /// Whether all probes were taken away.
    is_restored: bool,
    /// What is known of its goroutines, where they may be measured.
    goroutines: Option<Goroutines>,
    /// Whether the goroutine that a thread runs is where that is expected.
    reads_current: bool,
    /// And of its functions.
    known: Known,
}

impl<'a, E: Engine + ?Sized> Process<'a, E> {
    /// Takes charge of a process that the engine has attached to or started. `modules` outlive it.
    #[must_use]
    pub fn new(
        pid: i32,
        modules: &'a mut Modules,
        engine: Box<E>,
        libraries: Libraries,
    ) -> Process<'a, E> {
        Process {
            pid,
            modules,
            engine,
            code: RefCell::default(),
            hooks: Hooks::default(),
            startup: Startup::of(libraries),
            touched: Touched::default(),
            warnings: Vec::new(),
            is_restored: false,
            goroutines: None,
            reads_current: false,
            known: Known::default(),
        }
    }

    /// Its id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Its files.
    #[must_use]
    pub fn modules(&self) -> &Modules {
        self.modules
    }

    /// The engine.
    #[must_use]
    pub fn engine(&self) -> &E {
        &self.engine
    }

    /// The engine, to be told something.
    pub fn engine_mut(&mut self) -> &mut E {
        &mut self.engine
    }

    /// Whether it has the libraries that it starts with.
    #[must_use]
    pub fn libraries(&self) -> Libraries {
        self.startup.libraries()
    }

    /// Which changes of its libraries are behind it.
    #[must_use]
    pub fn changes(&self) -> Changes {
        self.startup.changes()
    }

    /// A function of it was called: what comes before that is there, however it was announced.
    pub fn was_called(&mut self) {
        self.startup.called();
    }

    /// Does not end it, whatever becomes of measuring it: it is of use to others.
    pub fn spare(&mut self) {
        self.startup.spare();
    }

    /// Forgets where its files lie.
    pub fn unload(&mut self) {
        self.modules.unload();
    }

    /// A plan of nothing but what the engine needs for its own sake.
    #[must_use]
    pub fn hooks(&self) -> Plan {
        let Some(goroutines) = self.goroutines else {
            return self.hooks.plan();
        };
        // No return address is hidden where goroutines are followed: no unwinder finds one.
        Plan {
            goroutines: Some(Goroutines {
                // Without it nobody looks beyond the thread's own stack.
                current: goroutines.current * u32::from(self.reads_current),
                ..goroutines
            }),
            statuses: self.statuses().map(|scanned| Arc::clone(&scanned.code)),
            ..Plan::default()
        }
    }

    fn statuses(&self) -> Option<Arc<Scanned>> {
        let statuses = self.known.statuses().map(TargetAddr);
        statuses.and_then(|entry| self.scan(entry).ok())
    }

    /// Whether the run-time's own code has the goroutine that a thread runs where that is expected.
    fn is_current_at(&self, offset: u32) -> bool {
        let entry = self.known.system_stack().map(TargetAddr);
        let scanned = entry.and_then(|entry| self.scan(entry).ok());
        let reads = |scanned: Arc<Scanned>| {
            let mut instructions = scanned.code.instructions();
            instructions.any(|i| i.memory_displacement64() == u64::from(offset))
        };
        scanned.is_some_and(reads)
    }

    /// Lets a Go program be measured, if it can be: the calls of one function alone, in which goroutines are followed instead of
    /// threads. Whether it is one.
    ///
    /// # Errors
    /// When the cost of such measuring cannot be found out.
    pub fn admit_goroutines(&mut self) -> Result<bool, ProcessError> {
        if self.engine.kind() == EngineKind::Jump && self.modules.refresh(self.pid).is_ok() {
            self.goroutines = goroutines_of(self.modules);
        }
        if let Some(goroutines) = self.goroutines {
            self.known = known_functions(self.modules);
            let callees = self.known.callees.clone();
            self.engine.follow(goroutines, callees)?;
            self.reads_current = self.is_current_at(goroutines.current);
        }
        Ok(self.goroutines.is_some())
    }

    /// Whether goroutines are followed instead of threads.
    #[must_use]
    pub fn follows_goroutines(&self) -> bool {
        self.goroutines.is_some()
    }

    /// Whether it can be told when goroutines do not run.
    #[must_use]
    pub fn tells_of_goroutines(&self) -> bool {
        self.follows_goroutines() && self.statuses().is_some()
    }

    /// Whether what is called there is a part of whoever calls it, and no call for people.
    #[must_use]
    pub fn is_of_caller(&self, addr: TargetAddr) -> bool {
        self.known.is_of_caller(addr.0)
    }

    /// Whether a function of a program whose goroutines are followed is C code.
    #[must_use]
    pub fn is_c_of_go(&self, entry: TargetAddr) -> bool {
        self.follows_goroutines() && self.known.is_c(entry.0)
    }

    /// Whether a function of a Go program is not looked into: below it other goroutines run.
    #[must_use]
    pub fn is_opaque(&self, entry: TargetAddr) -> bool {
        self.known.is_opaque(entry.0)
    }

    /// Reads what is loaded. False when the process is just ending: the next poll says how.
    ///
    /// # Errors
    /// When no probe may be put into it.
    pub fn refresh(&mut self) -> Result<bool, ProcessError> {
        let Ok(new) = self.modules.refresh(self.pid) else {
            return Ok(false);
        };
        if self.modules.loaded().is_empty() {
            return Ok(false);
        }
        if self.goroutines.is_none() || go_library(self.modules).is_some() {
            check_program(self.modules)?;
        } else if self.goroutines != goroutines_of(self.modules)
            || new && self.known != known_functions(self.modules)
        {
            // What was admitted was the program before.
            return Err(ProcessError::Unsuitable(EXECUTED.to_owned()));
        }
        if new || self.hooks == Hooks::default() {
            self.hooks = Hooks::find(self.modules);
        }
        self.code.get_mut().clear();
        self.startup.looked(&self.hooks);
        Ok(true)
    }

    /// Whether it has lost its memory, or is about to: its files can no longer be read then.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        let mapped = maps::read(self.pid).is_ok_and(|mappings| !mappings.is_empty());
        let masks = SignalMasks::of(self.pid);
        let killed = masks.is_none_or(|masks| masks.is_pending(Signal::SIGKILL as i32));
        !mapped || killed
    }

    /// The function that begins at `entry`, as it is without probes.
    ///
    /// # Errors
    /// Why its code cannot be had, for people.
    pub fn scan(&self, entry: TargetAddr) -> Result<Arc<Scanned>, String> {
        let mut code = self.code.borrow_mut();
        code.scan(entry, self.modules, self.engine.as_ref())
    }

    /// Where calls of a function come to.
    ///
    /// # Errors
    /// When its file is not loaded, for people.
    pub fn destination(&self, place: CodeRef) -> Result<Destination, String> {
        let path = || &self.modules.get(place.module).path;
        let addr = self.modules.locate(place);
        let addr = addr.ok_or_else(|| format!("{} is not loaded", path()))?;
        Ok(behind_plt(self.modules, self.engine.as_ref(), addr, place))
    }

    /// Brings its probes to the plan. Returns what was refused: nothing where the process has just ended, which the next
    /// poll tells.
    ///
    /// # Errors
    /// When it cannot be instrumented at all.
    pub fn apply(&mut self, plan: &Plan) -> Result<Vec<Refused>, ProcessError> {
        self.touched.add(plan, self.modules);
        self.look_at_traps();
        tracing::debug!(
            target: "process",
            functions = plan.functions.len(),
            sites = plan.functions.iter().map(|it| it.sites.len()).sum::<usize>(),
            edges = plan.edges.len(),
            "planned probes"
        );
        let refused = match self.apply_patiently(plan) {
            Err(error) if error.is_gone() => return Ok(Vec::new()),
            refused => refused?,
        };
        for Refused { addr, reason } in &refused {
            tracing::debug!(target: "process", %addr, %reason, "refused a probe");
        }
        Ok(refused)
    }

    /// Warns of what breakpoints may do to a program with traps of its own.
    fn look_at_traps(&mut self) {
        let has_breakpoints = self.engine.kind() == EngineKind::Int3;
        let catches = |masks: SignalMasks| masks.catches(Signal::SIGTRAP as i32);
        let is_told = self.warnings.iter().any(|told| told == CATCHES_TRAPS);
        if has_breakpoints && !is_told && SignalMasks::of(self.pid).is_some_and(catches) {
            self.warnings.push(CATCHES_TRAPS.to_owned());
        }
    }

    /// Where its threads do not allow it at this moment, it is tried again some times; the target runs on meanwhile.
    fn apply_patiently(&mut self, plan: &Plan) -> darc_tracer::Result<Vec<Refused>> {
        /// Each attempt stops the target, so each pause is twice as long as the one before.
        const FIRST_PAUSE: Duration = Duration::from_millis(20);
        const LAST_PAUSE: Duration = Duration::from_millis(1280);
        let mut pause = FIRST_PAUSE;
        loop {
            match self.engine.apply(plan) {
                Err(error @ darc_tracer::Error::Busy(_)) if pause <= LAST_PAUSE => {
                    tracing::debug!(target: "process", %error, "the probes are placed a moment later");
                    thread::sleep(pause);
                    pause *= 2;
                }
                outcome => return outcome,
            }
        }
    }

    /// Lets it run on for a while, as `measure` has the engine do it, and says what has happened.
    ///
    /// # Errors
    /// When it can no longer be traced for another reason than its end, or no probe may be put into what it runs now.
    pub fn poll(
        &mut self,
        limits: Limits<'_>,
        measure: impl FnOnce(&mut E, &Modules) -> darc_tracer::Result<Option<Notice>>,
    ) -> Result<Event, ProcessError> {
        self.startup.goes_on();
        let notice = measure(&mut self.engine, self.modules)?;
        if let Some(notice) = notice {
            tracing::debug!(target: "process", pid = self.pid, ?notice, "the engine noticed");
        }
        match notice {
            None => Ok(self.over(limits).map_or(Event::Nothing, Event::Ended)),
            Some(Notice::LibrariesChanged) => {
                self.startup.noticed();
                Ok(match self.refresh()? {
                    true => Event::CodeChanged,
                    false => Event::Nothing,
                })
            }
            Some(Notice::ProbesTakenOut) => {
                // A library that had been away may be gone for good.
                self.refresh()?;
                Ok(Event::CodeChanged)
            }
            Some(Notice::Exec) => {
                self.warnings.push(EXECUTED.to_owned());
                Ok(Event::Ended(Ending::Exec))
            }
            Some(Notice::Exited(status)) => Ok(Event::Ended(Ending::Exited(status))),
            Some(Notice::Ended) => Ok(Event::Ended(Ending::Ended)),
            Some(Notice::Killed(signal)) => Ok(Event::Ended(Ending::Killed(signal))),
        }
    }

    /// What ends the measurement although the process goes on.
    fn over(&self, limits: Limits<'_>) -> Option<Ending> {
        let marked = |mark| self.engine.marked(mark) > 0 || limits.interrupts.asked(mark);
        match limits.until {
            Some(mark) if marked(mark) => Some(Ending::Marked),
            _ => limits.reached(),
        }
    }

    /// Lets the process go. One that was started in vain is ended before.
    ///
    /// # Errors
    /// Those of `outcome`, and what could not be put back in a process that runs on.
    pub fn finish<T: From<Ending>>(
        &mut self,
        outcome: Result<T, ProcessError>,
    ) -> Result<T, ProcessError> {
        let outcome = self.startup.judge(self.pid, outcome);
        let restored = self.engine.finish();
        let left = ending::left_behind(self.pid, &restored);
        tracing::debug!(target: "process", pid = self.pid, ?restored, "let go");
        self.is_restored = left.is_none();
        self.warnings.extend(left);
        self.warnings.extend(ending::heirs(self.pid));
        if self.engine.end() == Some(Notice::Ended) {
            self.warnings.push(UNTOLD.to_owned());
        }
        ending::finish(outcome, self.engine.end(), restored)
    }

    /// Compares all code of the modules that had probes with their files, once the process was let go.
    #[must_use]
    pub fn compare_code(&self) -> Compared {
        match self.is_restored && self.engine.end().is_none() {
            true => self.touched.compare(self.pid, self.modules),
            false => Compared::default(),
        }
    }

    /// Problems with its files, once each.
    pub fn take_file_warnings(&mut self) -> Vec<String> {
        self.modules.take_warnings()
    }

    /// What the person should know of its life.
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }
}

/// The program, if it is one of Go's.
fn go_program(modules: &Modules) -> Option<&Image> {
    let program = modules.loaded().first().copied()?;
    let image = modules.get(program).image.as_ref()?;
    image.is_go().then_some(image)
}

/// Whether the program of the modules that are loaded is one of Go's.
#[must_use]
pub fn is_go_program(modules: &Modules) -> bool {
    go_program(modules).is_some()
}

/// Whether the program of the modules that are loaded is one that a dynamic linker sets up.
#[must_use]
pub fn is_dynamic_program(modules: &Modules) -> bool {
    let program = modules.loaded().first().copied();
    let image = program.and_then(|program| modules.get(program).image.as_ref());
    image.is_some_and(|image| image.interpreter().is_some())
}

/// What is known of the goroutines of the program of the modules that are loaded, if it may be measured by them.
#[must_use]
pub fn goroutines_of(modules: &Modules) -> Option<Goroutines> {
    let image = go_program(modules).filter(|_| go_library(modules).is_none())?;
    goroutines::of(image).ok()
}

/// A library that has been loaded and that is Go's: a plugin, or one for programs in C.
fn go_library(modules: &Modules) -> Option<&str> {
    let libraries = modules.loaded().into_iter().skip(1);
    let mut libraries = libraries.map(|id| modules.get(id));
    let is_go = |library: &&Module| library.image.as_ref().is_some_and(Image::is_go);
    libraries.find(is_go).map(|library| library.path.as_str())
}

/// What is known of the functions of a Go program.
pub fn known_functions(modules: &Modules) -> Known {
    let Some(&module) = modules.loaded().first() else {
        return Known::default();
    };
    let image = modules.get(module).image.as_ref();
    let functions = image.into_iter().flat_map(Image::go_functions);
    let located = |function: GoFunction| {
        let at = |addr| modules.locate(CodeRef { module, addr });
        let code = at(function.code.start)?.0..at(function.code.end)?.0;
        Some((function, code))
    };
    Known::of(functions.filter_map(located))
}

/// Refuses programs in which no probe may be put.
fn check_program(modules: &Modules) -> Result<(), ProcessError> {
    let reason = match (go_program(modules), go_library(modules)) {
        (None, None) => return Ok(()),
        (_, Some(library)) => format!(
            "the target has loaded {library}, a library of Go's, whose run-time moves stacks and checks return addresses: it is not known yet what probes would do beside that"
        ),
        (Some(image), None) => {
            let reason = goroutines::of(image).err();
            let reason = reason.as_deref().unwrap_or("only darc attach and darc run with --f0 FUNCTION measure such programs, by --engine jump");
            format!(
                "the target is a Go program, whose run-time moves stacks and checks return addresses: {reason}"
            )
        }
    };
    Err(ProcessError::Unsuitable(reason))
}
