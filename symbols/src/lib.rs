//! Names, files and lines of code addresses, read from ELF and DWARF files and from what the Go linker writes.
//!
//! The crate knows files, not processes: the caller opens a file (through `/proc/PID/exe`,
//! `/proc/PID/map_files` or `/proc/PID/root`) and converts between run-time addresses and [`FileAddr`].
//! Files are read with `pread` into memory and never mapped, as a mapping of a file that shrinks kills the
//! reader. Everything in a file may be hostile: sizes, counts and recursion are bounded, damaged parts are
//! dropped with a warning ([`Image::warnings`]).
//!
//! * [`Image`]: one file, read lazily; functions, PLT stubs, source lines.
//! * [`NameSpec`] and [`resolve`]: what a person typed, looked up over several images.
//! * [`demangle()`] and [`escape`]: names for people.

mod addr;
mod debugfile;
mod demangle;
mod dwarf;
mod dynamic;
mod elf;
mod error;
mod functions;
mod futures;
mod go;
mod go_names;
mod grouping;
mod identifiers;
mod image;
mod inlined;
mod jit;
mod landing_pads;
mod lines;
mod lookup;
mod mangling;
mod matching;
mod names;
mod naming;
mod notes;
mod package;
mod packed;
mod plt;
mod ranges;
mod reader;
mod refusal;
mod root;
mod spec;
mod start;
mod stripped;
mod suggest;
mod symtab;
mod unwind;

pub use addr::{AddrRange, BuildId, FileAddr, InvalidBuildId};
pub use debugfile::DebugSearch;
pub use demangle::{demangle, escape};
pub use error::{Error, Unsupported};
pub use functions::{Function, FunctionKind, SymbolSource};
pub use futures::coroutines::CoroutineFrame;
pub use futures::{Await, Body, StateMachine};
pub use go::GoFunction;
pub use image::{Image, ImageKind, Segment};
pub use inlined::InlinedCopy;
pub use jit::{JitFunction, JitName, JitSymbols};
pub use lines::Frame;
pub use lookup::{explain, only, resolve};
pub use matching::{Match, MatchRank, as_compiled};
pub use names::{is_called, original};
pub use refusal::{Candidate, Interpreter, LookupError, NotAFunction};
pub use root::{Root, opened, place};
pub use spec::{InvalidSpec, NameSpec};
pub use stripped::Stripped;
