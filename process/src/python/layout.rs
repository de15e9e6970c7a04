//! Where CPython keeps what is read of it, by its version.
//!
//! From 3.13 on the run-time tells in `_PyRuntime` itself. Before that the offsets follow from the structures that its
//! headers define (`Include/internal/pycore_runtime.h`, `pycore_interp.h`, `pycore_frame.h`, `Include/cpython/code.h`);
//! they do not change within a version.

use super::reader::Reader;

/// What stands first in the offsets that a run-time tells.
const COOKIE: u64 = u64::from_le_bytes(*b"xdebugpy");
/// No structure is as large, in bytes.
const LARGEST: u64 = 1 << 20;

/// Offsets in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    /// In the run-time: the first interpreter.
    pub(super) interpreters: u64,
    /// In an interpreter: the next one.
    pub(super) next_interpreter: u64,
    /// In an interpreter: its first thread.
    pub(super) threads: u64,
    /// In a thread: the next one.
    pub(super) next_thread: u64,
    /// In a thread: how it is known again.
    pub(super) number: Number,
    /// In a thread: its innermost frame.
    pub(super) frame: Innermost,
    /// In a frame: its code.
    pub(super) code: u64,
    /// In a frame: the one that called it.
    pub(super) previous: u64,
    /// In a frame: whose it is; no Python function's from 3 on.
    pub(super) owner: Option<u64>,
    /// In code: its file.
    pub(super) file: u64,
    /// In code: its name, with that of its class where the version has it.
    pub(super) name: u64,
    /// In code: the line of its definition.
    pub(super) line: u64,
    /// In a text: its characters, where all are ASCII.
    pub(super) ascii: u64,
    /// In a text: its characters, where not all are.
    pub(super) wide: u64,
}

/// How a thread is known again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Number {
    /// Its number for the kernel, in its own pid namespace, is here.
    Native(u64),
    /// Its `pthread_t` is here.
    Pthread(u64),
}

/// Where a thread's innermost frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Innermost {
    /// Here.
    Frame(u64),
    /// Here is where it is, and in that it is here.
    Through(u64, u64),
}

const V3_9: Layout = Layout {
    interpreters: 32,
    next_interpreter: 0,
    threads: 8,
    next_thread: 8,
    number: Number::Pthread(176),
    frame: Innermost::Frame(24),
    code: 32,
    previous: 24,
    owner: None,
    file: 104,
    name: 112,
    line: 40,
    ascii: 48,
    wide: 72,
};

const V3_11: Layout = Layout {
    interpreters: 40,
    next_interpreter: 0,
    threads: 16,
    next_thread: 8,
    number: Number::Native(160),
    frame: Innermost::Through(56, 8),
    code: 32,
    previous: 48,
    owner: Some(69),
    file: 112,
    name: 128,
    line: 72,
    ascii: 48,
    wide: 72,
};

const V3_12: Layout = Layout {
    threads: 72,
    number: Number::Native(144),
    frame: Innermost::Through(56, 0),
    code: 0,
    previous: 8,
    owner: Some(70),
    line: 68,
    ascii: 40,
    wide: 56,
    ..V3_11
};

impl Layout {
    /// That of CPython 3.`minor`, whose run-time is at `runtime`; `None` for a version that is not known.
    pub(super) fn of(minor: u32, reader: &Reader, runtime: u64) -> Option<Layout> {
        match minor {
            9 | 10 => Some(V3_9),
            11 => Some(V3_11),
            12 => Some(V3_12),
            13 => told(&reader.words(runtime)?),
            _ => None,
        }
    }
}

/// What 3.13 tells, as far as it is used. Source: `struct _Py_DebugOffsets` in `pycore_runtime.h`.
fn told(words: &[u64; 40]) -> Option<Layout> {
    let is_known = words[0] == COOKIE && words[1] >> 16 == 0x030d;
    // In a free-threaded build objects are laid out otherwise.
    let is_plain = words[2] == 0;
    let makes_sense = words[3..].iter().all(|&offset| offset < LARGEST);
    (is_known && is_plain && makes_sense).then(|| Layout {
        interpreters: words[5],
        next_interpreter: words[8],
        threads: words[9],
        next_thread: words[21],
        number: Number::Native(words[25]),
        frame: Innermost::Frame(words[23]),
        code: words[30],
        previous: words[29],
        owner: Some(words[33]),
        file: words[35],
        name: words[37],
        line: words[39],
        ..V3_12
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_taken_from_a_run_time_that_makes_sense() {
        let mut words = [8; 40];
        (words[0], words[1], words[2]) = (COOKIE, 0x030d_00f0, 0);
        assert_eq!(told(&words).unwrap().interpreters, 8);
        for (at, wrong) in [(0, 0), (1, 0x030e_00f0), (2, 1), (39, LARGEST)] {
            let mut damaged = words;
            damaged[at] = wrong;
            assert_eq!(told(&damaged), None, "{at}");
        }
    }
}
