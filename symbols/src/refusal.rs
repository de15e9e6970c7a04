//! Why a name does not lead to one function. Every message is one line, begins with the name, and says what to do.

use std::fmt;

use crate::addr::FileAddr;
use crate::demangle::escape;
use crate::inlined::InlinedCopy;
use crate::stripped::Stripped;

/// A function that a name may mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Demangled.
    pub name: String,
    /// File name of its module.
    pub module: String,
    /// Link-time address of its entry.
    pub addr: FileAddr,
    /// Source file, where known.
    pub file: Option<String>,
    /// Source line, where known.
    pub line: Option<u32>,
}

impl fmt::Display for Candidate {
    /// Begins with a name that selects this candidate alone.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}+{} {}",
            escape(&self.module),
            self.addr,
            escape(&self.name)
        )?;
        if let (Some(file), Some(line)) = (&self.file, self.line) {
            write!(f, " ({}:{line})", escape(file))?;
        }
        Ok(())
    }
}

/// What stands under the name instead of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotAFunction {
    /// A variable.
    Data,
    /// An ifunc: the symbol's code only chooses the function.
    IfuncResolver,
    /// Imported here, and no loaded file defines it.
    Undefined,
    /// Imported here, and defined in a file that was not meant.
    ImportedFrom {
        /// File name of the module that defines it.
        definer: String,
        /// The name without a module.
        bare: String,
    },
}

/// What runs a program whose functions are no native code of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interpreter {
    /// CPython.
    Python,
    /// node.js.
    Node,
    /// A Java virtual machine.
    Java,
}

impl fmt::Display for Interpreter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Interpreter::Python => {
                "functions written in Python cannot be measured: darc sample tells which of them take CPU time, python -X perf (3.12 or later) names \
                 them on paths, and the interpreter's own functions, as builtin_sum, can be measured"
            }
            Interpreter::Node => {
                "functions written in JavaScript cannot be measured: node --perf-basic-prof names them on paths and in darc sample, and node's own \
                 functions, as uv__run_timers, can be measured"
            }
            Interpreter::Java => {
                "functions written in Java cannot be measured: jcmd PID Compiler.perfmap (17 or later) names them on paths and in darc sample, and \
                 functions of the virtual machine and of native libraries can be measured"
            }
        })
    }
}

/// Why a name does not lead to one function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookupError {
    /// Nothing of that name.
    NotFound {
        /// The name as typed.
        name: String,
        /// Functions that were searched.
        searched: usize,
        /// Similar names, nearest first.
        nearest: Vec<String>,
        /// The file that is meant has no full symbol table: the program, or the module that was named.
        stripped: Option<Stripped>,
    },
    /// No native function of that name, in a process that runs a program of another language.
    OfScript {
        /// The name as typed.
        name: String,
        /// Similar names of native functions, nearest first.
        nearest: Vec<String>,
        /// What runs that program.
        by: Interpreter,
    },
    /// No loaded module has that file name.
    NoSuchModule {
        /// As typed.
        module: String,
        /// The loaded modules.
        loaded: Vec<String>,
    },
    /// Several functions of equal right.
    Ambiguous {
        /// The name as typed.
        name: String,
        /// At least two.
        candidates: Vec<Candidate>,
    },
    /// Every call was replaced by the body.
    OnlyInlined {
        /// The name as typed.
        name: String,
        /// The places.
        copies: Vec<InlinedCopy>,
    },
    /// The name stands for something else.
    NotAFunction {
        /// The name as typed.
        name: String,
        /// File name of the module.
        module: String,
        /// What it is.
        kind: NotAFunction,
    },
    /// `lib:0x…` inside of a function, or outside of all.
    NotAnEntry {
        /// File name of the module.
        module: String,
        /// As typed.
        addr: FileAddr,
        /// The function around it, and its entry.
        inside: Option<(String, FileAddr)>,
    },
    /// No code of a loaded file comes from that line.
    NoCodeAtLine {
        /// As typed.
        spec: String,
        /// Some searched file has debugging information.
        has_lines: bool,
    },
    /// A run-time address: only the caller knows the address space.
    RunTimeAddress(u64),
}

impl std::error::Error for LookupError {}

/// Names are listed up to this number in a message.
const MAX_LISTED: usize = 8;

impl fmt::Display for LookupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LookupError::NotFound {
                name,
                searched,
                nearest,
                stripped,
            } => {
                write!(f, "{}: not found among {searched} functions", escape(name))?;
                if !nearest.is_empty() {
                    write!(f, "; did you mean {}?", list(nearest))?;
                }
                match stripped {
                    Some(stripped) => {
                        write!(f, "; {stripped}, or give an address (0x…, see darc list)")
                    }
                    None if nearest.is_empty() => write!(
                        f,
                        "; check the spelling, or give lib:name, file:line or 0xADDRESS"
                    ),
                    None => Ok(()),
                }
            }
            LookupError::OfScript { name, nearest, by } => {
                write!(f, "{}: no native function has this name", escape(name))?;
                if !nearest.is_empty() {
                    write!(f, "; did you mean {}?", list(nearest))?;
                }
                write!(f, "; {by}")
            }
            LookupError::NoSuchModule { module, loaded } => {
                write!(
                    f,
                    "{}: no such library is loaded; loaded are {}",
                    escape(module),
                    list(loaded)
                )
            }
            LookupError::Ambiguous { name, candidates } => {
                let shown: Vec<String> = candidates.iter().map(Candidate::to_string).collect();
                let first = candidates
                    .first()
                    .map(|c| format!("{}+{}", escape(&c.module), c.addr))
                    .unwrap_or_default();
                write!(
                    f,
                    "{}: means {} functions: {}; choose one, for example {first}",
                    escape(name),
                    candidates.len(),
                    list(&shown)
                )
            }
            LookupError::OnlyInlined { name, copies } => {
                write!(
                    f,
                    "{}: inlined everywhere ({} {}",
                    escape(name),
                    copies.len(),
                    if copies.len() == 1 { "place" } else { "places" }
                )?;
                if let Some(InlinedCopy { caller, file, line }) = copies.first() {
                    write!(f, ", first in {}", escape(caller))?;
                    if let (Some(file), Some(line)) = (file, line) {
                        write!(f, " at {}:{line}", escape(file))?;
                    }
                    let mut others: Vec<&str> =
                        copies.iter().map(|copy| copy.caller.as_str()).collect();
                    others.sort_unstable();
                    others.dedup();
                    others.retain(|other| other != caller);
                    if !others.is_empty() {
                        let others: Vec<String> = others
                            .iter()
                            .take(MAX_LISTED)
                            .map(|&name| escape(name))
                            .collect();
                        write!(f, ", also in {}", others.join(", "))?;
                    }
                }
                write!(
                    f,
                    "); there is no call to measure, choose a function that contains it"
                )
            }
            LookupError::NotAFunction { name, module, kind } => {
                let (name, module) = (escape(name), escape(module));
                match kind {
                    NotAFunction::Data => write!(
                        f,
                        "{name}: a variable in {module}, not a function; name a function"
                    ),
                    NotAFunction::IfuncResolver => write!(
                        f,
                        "{name}: in {module} the name stands for a choice between several functions (ifunc); name the chosen one, see `{module}:*{name}*`"
                    ),
                    NotAFunction::Undefined => write!(
                        f,
                        "{name}: imported by {module}, but no loaded library defines it; name the function that stands in for it"
                    ),
                    NotAFunction::ImportedFrom { definer, bare } => write!(
                        f,
                        "{name}: imported by {module}, defined in {0}; name {0}:{1}",
                        escape(definer),
                        escape(bare)
                    ),
                }
            }
            LookupError::NotAnEntry {
                module,
                addr,
                inside,
            } => {
                write!(f, "{}+{addr}: ", escape(module))?;
                match inside {
                    Some((name, entry)) => write!(
                        f,
                        "inside of {}, which begins at {entry}; give that address",
                        escape(name)
                    ),
                    None => write!(
                        f,
                        "in no function of the file; give the address of a function"
                    ),
                }
            }
            LookupError::NoCodeAtLine {
                spec,
                has_lines: true,
            } => {
                write!(
                    f,
                    "{spec}: no code of a loaded file comes from there; check the file's name and the line"
                )
            }
            LookupError::NoCodeAtLine {
                spec,
                has_lines: false,
            } => {
                write!(
                    f,
                    "{spec}: the loaded files have no debugging information; compile with -g or name a function"
                )
            }
            LookupError::RunTimeAddress(addr) => write!(
                f,
                "{addr:#x}: there is no code at that address, neither in the running program nor in its file; see darc list"
            ),
        }
    }
}

fn list(names: &[String]) -> String {
    let mut text = names
        .iter()
        .take(MAX_LISTED)
        .map(|name| escape(name))
        .collect::<Vec<_>>()
        .join(", ");
    if names.len() > MAX_LISTED {
        text += &format!(", and {} more", names.len() - MAX_LISTED);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_file_do_not_reach_the_terminal_as_they_are() {
        let error = LookupError::NotFound {
            name: "x\n".into(),
            searched: 1,
            nearest: vec!["a\x1b[2Jb\n".into()],
            stripped: None,
        };
        let text = error.to_string();
        assert!(!text.chars().any(char::is_control), "{text:?}");
    }
}
