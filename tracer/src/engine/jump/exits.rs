//! Where the code of earlier tracers goes on in the program's: a thread may still be in it, where it stays mapped.
//!
//! A stub ends with a jump to what follows the instructions that it runs in the place of the program's. Whoever made it knew where that is;
//! now its code alone tells, whatever patch it belonged to.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::addr::TargetAddr;
use crate::error::{Error, Result};
use crate::memory::Memory;

/// So much code of all earlier tracers is looked at, and so many addresses are kept: who has made more of it has another end in view.
const MOST_BYTES: u64 = 1 << 30;
const MOST_EXITS: usize = 1 << 20;
/// So much is looked at at a time.
const CHUNK: u64 = 64 << 10;
/// `jmp rel32`, and its length.
const JMP: u8 = 0xe9;
const LEN: usize = 5;

/// The addresses to which jumps in the code lead. What only looks like a jump counts as well: nobody knows where instructions begin.
///
/// # Errors
/// When there is too much of it, or it cannot be read.
pub fn of(memory: &Memory, code: &[Range<u64>]) -> Result<BTreeSet<u64>> {
    let lengths = code.iter().map(|piece| piece.end - piece.start);
    if lengths.fold(0, u64::saturating_add) > MOST_BYTES {
        return Err(too_much());
    }
    let mut exits = BTreeSet::new();
    let mut buffer = vec![0; CHUNK as usize + LEN - 1];
    for piece in code {
        for start in piece.clone().step_by(CHUNK as usize) {
            // The last jump of a chunk may end in the next one.
            let len = (piece.end - start).min(buffer.len() as u64);
            let bytes = &mut buffer[..len as usize];
            memory.read(TargetAddr(start), bytes)?;
            exits.extend(targets(start, bytes));
            if exits.len() > MOST_EXITS {
                return Err(too_much());
            }
        }
    }
    Ok(exits)
}

/// Where what looks like jumps leads to.
fn targets(start: u64, bytes: &[u8]) -> impl Iterator<Item = u64> {
    let jumps = (start..).zip(bytes.windows(LEN));
    let jumps = jumps.filter(|(_, jump)| jump[0] == JMP);
    jumps.map(|(at, jump)| {
        let distance = i32::from_le_bytes(jump[1..].try_into().expect("four bytes"));
        at.wrapping_add(LEN as u64)
            .wrapping_add_signed(distance.into())
    })
}

fn too_much() -> Error {
    Error::Unsuitable(
        "threads may return to more code of earlier darcs than can be looked at; restart the process"
            .to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::process::{Command, Stdio};
    use std::sync::Arc;

    use darc_disasm::{FunctionCode, function_at};
    use darc_testprogs::{Opt, program};

    use crate::engine::Engine as _;
    use crate::engine::jump::Jump;
    use crate::plan::Plan;

    use super::*;

    fn plan(f0: &Arc<FunctionCode>) -> Plan {
        Plan {
            f0: Some(Arc::clone(f0)),
            ..Plan::default()
        }
    }

    /// What the program prints at its end.
    fn result_of_7() -> String {
        let (told, tell) = std::io::pipe().unwrap();
        (&tell).write_all(b"xx").unwrap();
        let mut command = Command::new(program("comes_back", Opt::O2));
        let run = command.stdin(told).output().unwrap();
        let text = String::from_utf8(run.stdout).unwrap();
        format!("{}\n", text.lines().last().unwrap())
    }

    /// A thread is in a stub, in a signal handler, when its probe goes; and comes back to the middle of what the next one would replace.
    fn comes_back(lose_probe: impl FnOnce(Jump, &FunctionCode) -> Jump) {
        let mut command = Command::new(program("comes_back", Opt::O2));
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut target = piped.spawn().unwrap();
        let pid = target.id() as i32;
        let memory = Memory::open(pid).unwrap();
        let mut tell = target.stdin.take().unwrap();
        let mut said = BufReader::new(target.stdout.take().unwrap());
        let mut say = || {
            let mut line = String::new();
            said.read_line(&mut line).unwrap();
            line
        };
        let line = say();
        let functions = line.split_whitespace().skip(1).map(|address| {
            let entry = u64::from_str_radix(&address[2..], 16).unwrap();
            Arc::new(function_at(entry, entry + 0x100, &memory).unwrap())
        });
        let functions: Vec<_> = functions.collect();
        let [serve, inner] = &functions[..] else {
            panic!("{line}")
        };
        assert_eq!(say(), "ready\n");
        let mut engine = Jump::attach(pid).unwrap();
        assert_eq!(engine.apply(&plan(serve)).unwrap(), []);
        tell.write_all(b"x").unwrap();
        assert_eq!(say(), "ready\n", "it is in the handler");
        let mut engine = lose_probe(engine, serve);
        let refused = engine.apply(&plan(inner)).unwrap();
        tell.write_all(b"x").unwrap();
        let result = say();
        let status = target.wait().unwrap();
        assert!(status.success(), "{status}: {refused:?}");
        assert_eq!(result, result_of_7(), "{refused:?}");
        let [refused] = &refused[..] else {
            panic!("{refused:?}")
        };
        assert!(refused.reason.contains("earlier probe"), "{refused:?}");
        engine.finish().unwrap();
    }

    #[test]
    fn what_an_earlier_tracers_stub_goes_on_at_is_left_whole() {
        comes_back(|mut engine, _| {
            let pid = engine.pid;
            // It ends here, and leaves everything.
            engine.space = None;
            drop(engine);
            Jump::attach(pid).unwrap()
        });
    }

    #[test]
    fn what_a_stub_goes_on_at_is_left_whole_where_somebody_has_removed_the_probe() {
        comes_back(|engine, serve| {
            let own = serve.bytes_at(serve.entry(), 16).unwrap();
            engine.memory.write(TargetAddr(serve.entry()), own).unwrap();
            engine
        });
    }

    #[test]
    fn jumps_are_found_wherever_they_are() {
        let mut code = vec![0_u8; 2 * CHUNK as usize];
        let start = code.as_ptr() as u64;
        let mut expected = BTreeSet::new();
        for at in [0, 7, CHUNK - 3, CHUNK + 2, 2 * CHUNK - 5] {
            let jump = &mut code[at as usize..][..LEN];
            jump.copy_from_slice(&[JMP, 0x10, 0, 0, 0]);
            expected.insert(start + at + 5 + 0x10);
        }
        let memory = Memory::open(std::process::id() as i32).unwrap();
        let piece = start..start + code.len() as u64;
        assert_eq!(of(&memory, &[piece]).unwrap(), expected);
        code.fill(JMP);
    }
}
