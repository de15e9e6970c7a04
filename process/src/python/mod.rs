//! Which Python functions the threads of a CPython process are in, read from the interpreter's frames while it runs on.
//!
//! Nobody is stopped, so the frames of a thread may change while they are read. The innermost function is one that
//! ran; a look whose objects make no sense is told from one that found nothing.

mod layout;
mod reader;

use std::collections::HashMap;
use std::ops::Range;

use darc_symbols::{DebugSearch, Image};
use darc_tracer::identity::number_inside;
use darc_tracer::maps::{self, Mapping};
use darc_tracer::memory::Memory;
use darc_tracer::perf::cpu_time::CpuTime;
use darc_tracer::threads;

use self::layout::{Innermost, Layout, Number};
use self::reader::Reader;
use crate::target_files;

/// Further interpreters, threads and frames are left out.
const MOST_INTERPRETERS: usize = 16;
const MOST_THREADS: usize = 128;
const MOST_FRAMES: usize = 256;
/// So many frames are read in one look, of all threads together.
const MOST_FRAMES_A_LOOK: usize = 4096;
/// So many files are opened in a search for an interpreter.
const MOST_FILES: usize = 4;
/// The versions of CPython 3 whose frames can be read.
const MINORS: std::ops::RangeInclusive<u32> = 9..=13;
/// Where the thread's number is in what `pthread_t` points to. Source: `struct pthread` in glibc's `nptl/descr.h`.
const NUMBER_IN_PTHREAD: u64 = 720;
/// From here on the owner of a frame is no Python function (`_PyInterpreterFrame`, `owner`).
const NO_FUNCTION: u8 = 3;

/// A Python function.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PythonFunction {
    /// Its name, with those around it (`Store.get`) from 3.11 on.
    pub name: String,
    /// The file that it was compiled from, as the interpreter has it.
    pub file: String,
    /// The line of its definition there.
    pub line: u32,
}

impl PythonFunction {
    /// Whether somebody has written it: 3.13 has a frame of its own around the `__init__` of a class that is called (`_Py_InitCleanup`,
    /// `Python/specialize.c`).
    fn is_written(&self) -> bool {
        self.line > 0 || self.name != self.file
    }
}

/// What a look at the threads found.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct PythonLook {
    /// The functions of each thread that was running or ready to, the innermost first.
    pub stacks: Vec<Vec<PythonFunction>>,
    /// Such threads whose frames made no sense: they had changed meanwhile.
    pub unread: u64,
}

/// The interpreter in a process.
#[derive(Debug)]
pub struct Python {
    pid: i32,
    reader: Reader,
    layout: Layout,
    runtime: u64,
}

impl PythonLook {
    fn add(&mut self, stack: Vec<PythonFunction>) {
        // A thread may run no Python code at all.
        if !stack.is_empty() {
            self.stacks.push(stack);
        }
    }
}

impl Python {
    /// That of a process, of the versions 3.9 to 3.13; `None` where there is none, or its memory may not be read.
    #[must_use]
    pub fn of(pid: i32) -> Option<Python> {
        let mappings = maps::read(pid).ok()?;
        // The program may be a few lines around the library.
        let versions = mappings.iter().filter_map(|it| Some((it, minor(it)?)));
        versions
            .take(MOST_FILES)
            .find_map(|(it, minor)| Python::within(pid, it, minor))
    }

    fn within(pid: i32, mapping: &Mapping, minor: u32) -> Option<Python> {
        let root = target_files::root_of(pid);
        let path = target_files::path_of(mapping.name.to_str()?);
        let range: Range<u64> = mapping.start..mapping.end;
        let file = target_files::mapped(pid, &root, (&path, mapping.file), range).ok()?;
        let image = Image::open(file, &path, &DebugSearch::nowhere()).ok()?;
        let bias = mapping
            .start
            .wrapping_sub(image.addr_of_offset(mapping.offset)?.0);
        let place = |name| Some(image.symbol(name)?.0.wrapping_add(bias));
        let reader = Reader {
            memory: Memory::open(pid).ok()?,
            code_type: place("PyCode_Type")?,
            text_type: place("PyUnicode_Type")?,
        };
        let says = place("Py_Version").and_then(|at| reader.half(at));
        // The structures change until the first release candidate (`PY_RELEASE_LEVEL_GAMMA`, `Include/patchlevel.h`).
        let is_known = |version: u32| version >> 16 == 0x0300 + minor && version >> 4 & 0xf >= 0xc;
        if says.is_some_and(|version| !is_known(version)) {
            return None;
        }
        let runtime = place("_PyRuntime")?;
        Some(Python {
            pid,
            layout: Layout::of(minor, &reader, runtime)?,
            reader,
            runtime,
        })
    }

    /// Looks at the threads that run now, or are ready to.
    #[must_use]
    pub fn look(&self) -> PythonLook {
        let mut running = running(self.pid);
        let mut frames = MOST_FRAMES_A_LOOK;
        let mut look = PythonLook::default();
        if running.is_empty() {
            return look;
        }
        for thread in self.threads() {
            // A thread with several states is in the first that is found.
            let Some(tid) = self.number(thread).and_then(|it| running.remove(&it)) else {
                continue;
            };
            let most = frames.min(MOST_FRAMES);
            let Some(codes) = self.while_it_runs(tid, || self.codes(thread, most)) else {
                continue;
            };
            frames -= codes.as_ref().map_or(0, Vec::len);
            match codes.and_then(|codes| self.functions(codes)) {
                Some(stack) => look.add(stack),
                None => look.unread += 1,
            }
        }
        look
    }

    /// What `work` gives if the thread has a processor meanwhile: one that waits for it was read where it waits.
    fn while_it_runs<Found>(&self, tid: i32, work: impl FnOnce() -> Found) -> Option<Found> {
        CpuTime::of(tid)?.while_it_ran(work)
    }

    /// Whether the memory is still that of the program.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.reader.word(self.runtime).is_some()
    }

    /// The interpreters' structures for their threads.
    fn threads(&self) -> Vec<u64> {
        let layout = &self.layout;
        let mut threads = Vec::new();
        let first = self.runtime.wrapping_add(layout.interpreters);
        for interpreter in self.list(first, layout.next_interpreter, MOST_INTERPRETERS) {
            let first = interpreter.wrapping_add(layout.threads);
            let left = MOST_THREADS - threads.len();
            threads.extend(self.list(first, layout.next_thread, left));
        }
        threads
    }

    /// What a linked list holds, of which the first is written at an address and each next one at an offset in the one before.
    fn list(&self, first: u64, next: u64, most: usize) -> impl Iterator<Item = u64> {
        let follow = |at: u64| self.reader.word(at).filter(|&found| found != 0);
        std::iter::successors(follow(first), move |at| follow(at.wrapping_add(next))).take(most)
    }

    /// The thread's number in its own pid namespace.
    fn number(&self, thread: u64) -> Option<i32> {
        let number = match self.layout.number {
            Number::Native(offset) => self.reader.word(thread.wrapping_add(offset))?,
            Number::Pthread(offset) => {
                let pthread = self.reader.word(thread.wrapping_add(offset))?;
                self.reader
                    .half(pthread.wrapping_add(NUMBER_IN_PTHREAD))?
                    .into()
            }
        };
        i32::try_from(number).ok()
    }

    /// The code of the functions on a thread's stack, the innermost first; `None` where it led nowhere. Names are read later: they
    /// stay, frames change.
    fn codes(&self, thread: u64, most: usize) -> Option<Vec<u64>> {
        let (layout, reader) = (&self.layout, &self.reader);
        let mut frame = match layout.frame {
            Innermost::Frame(offset) => reader.word(thread.wrapping_add(offset))?,
            Innermost::Through(offset, inside) => {
                let through = reader.word(thread.wrapping_add(offset))?;
                reader.word(through.wrapping_add(inside))?
            }
        };
        let mut codes = Vec::new();
        for _ in 0..most {
            if frame == 0 {
                break;
            }
            if self.is_functions(frame)? {
                codes.push(reader.word(frame.wrapping_add(layout.code))?);
            }
            frame = reader.word(frame.wrapping_add(layout.previous))?;
        }
        Some(codes)
    }

    fn is_functions(&self, frame: u64) -> Option<bool> {
        match self.layout.owner {
            Some(offset) => Some(self.reader.byte(frame.wrapping_add(offset))? < NO_FUNCTION),
            None => Some(true),
        }
    }

    /// What codes are; `None` where one of them is none.
    fn functions(&self, codes: Vec<u64>) -> Option<Vec<PythonFunction>> {
        let functions = codes.into_iter().map(|code| self.function(code));
        let functions: Option<Vec<PythonFunction>> = functions.collect();
        functions.map(|found| {
            found
                .into_iter()
                .filter(PythonFunction::is_written)
                .collect()
        })
    }

    fn function(&self, code: u64) -> Option<PythonFunction> {
        let (layout, reader) = (&self.layout, &self.reader);
        let text = |offset: u64| {
            let object = reader.word(code.wrapping_add(offset))?;
            reader.text(object, (layout.ascii, layout.wide))
        };
        reader.is_code(code).then_some(())?;
        Some(PythonFunction {
            name: text(layout.name)?,
            file: text(layout.file)?,
            line: reader.half(code.wrapping_add(layout.line))?,
        })
    }
}

/// The threads that run or are ready to, by their numbers in their own pid namespace.
fn running(pid: i32) -> HashMap<i32, i32> {
    let threads = threads::list(pid).unwrap_or_default().into_iter();
    threads
        .filter(|&tid| is_running(tid))
        .take(MOST_THREADS)
        .filter_map(|tid| Some((number_inside(tid)?, tid)))
        .collect()
}

fn is_running(tid: i32) -> bool {
    threads::state(tid) == Some('R')
}

/// The minor version of the CPython 3 that a file is, by its name: `python3.11`, `libpython3.13.so.1.0`.
fn minor(mapping: &Mapping) -> Option<u32> {
    let name = mapping.name.file_name()?.to_str()?;
    let version = name
        .strip_prefix("lib")
        .unwrap_or(name)
        .strip_prefix("python3.")?;
    let digits = version.split(|char: char| !char.is_ascii_digit()).next()?;
    let minor = digits.parse().ok()?;
    (mapping.executable && MINORS.contains(&minor)).then_some(minor)
}
