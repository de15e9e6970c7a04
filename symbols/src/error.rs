//! Why a file cannot be used. Every message is one line and begins with the file.

use std::fmt;
use std::path::PathBuf;

use crate::demangle::escape;

/// Opening or reading a file failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused.
    #[error("{}: {source}", shown(path))]
    Io {
        /// The file as it was named by the caller.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A directory, a pipe, a device.
    #[error("{}: not a regular file", shown(path))]
    NotAFile {
        /// The file as it was named by the caller.
        path: PathBuf,
    },
    /// No ELF magic: a script, an empty file, something else.
    #[error("{}: not an ELF file ({found})", shown(path))]
    NotElf {
        /// The file as it was named by the caller.
        path: PathBuf,
        /// What it seems to be.
        found: &'static str,
    },
    /// A valid ELF file of a kind that cannot be measured.
    #[error(
        "{}: {kind} is not supported; darc measures 64-bit x86-64 programs and libraries",
        shown(path)
    )]
    Unsupported {
        /// The file as it was named by the caller.
        path: PathBuf,
        /// Which kind.
        kind: Unsupported,
    },
    /// The file contradicts itself or ends early.
    #[error("{}: damaged ELF file: {what}", shown(path))]
    Damaged {
        /// The file as it was named by the caller.
        path: PathBuf,
        /// Which part.
        what: String,
    },
}

fn shown(path: &std::path::Path) -> String {
    escape(&path.to_string_lossy())
}

/// Kinds of ELF files that are recognised and refused by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsupported {
    /// 32-bit x86 (`EM_386`).
    X86,
    /// x86-64 code with 32-bit pointers.
    X32,
    /// 64-bit Arm.
    Aarch64,
    /// Any big-endian file.
    BigEndian,
    /// Another processor, by its `e_machine`.
    Machine(u16),
    /// `ET_REL`: an object file before linking, or a kernel module.
    ObjectFile,
    /// `ET_CORE`: a core dump.
    Core,
    /// Another `e_type`.
    Type(u16),
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unsupported::X86 => write!(f, "a 32-bit x86 file"),
            Unsupported::X32 => write!(f, "an x32 file (x86-64 with 32-bit pointers)"),
            Unsupported::Aarch64 => write!(f, "an aarch64 file"),
            Unsupported::BigEndian => write!(f, "a big-endian file"),
            Unsupported::Machine(machine) => {
                write!(f, "a file for another processor (e_machine {machine})")
            }
            Unsupported::ObjectFile => write!(f, "an object file (not linked yet)"),
            Unsupported::Core => write!(f, "a core dump"),
            Unsupported::Type(kind) => write!(f, "an ELF file of type {kind}"),
        }
    }
}
