//! Where the code of earlier tracers goes on in the program's: a thread may still be in it, where it stays mapped.
//!
//! A stub ends with a jump to what follows the instructions that it runs in the place of the program's. Whoever made it knew where that is;
//! now its code alone tells, whatever patch it belonged to.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::addr::TargetAddr;
use crate::error::{Error, Result};
use crate::maps::Mapping;
use crate::memory::Memory;

/// So much code of all earlier tracers is looked at, and so many addresses are kept: who has made more of it has another end in view.
const MOST_BYTES: u64 = 1 << 30;
const MOST_EXITS: usize = 1 << 20;
/// So much is looked at at a time.
const CHUNK: u64 = 64 << 10;
/// `jmp rel32`, and its length.
const JMP: u8 = 0xe9;
const LEN: usize = 5;

/// The addresses in the program's code to which jumps in pieces of code lead. What only looks like a jump counts as well: nobody knows
/// where instructions begin. `mappings` are the program's.
///
/// # Errors
/// When there is too much of it, or it cannot be read. `pid` is for the words.
pub fn of(
    (pid, memory): (i32, &Memory),
    code: Vec<Range<u64>>,
    mappings: &[Mapping],
) -> Result<BTreeSet<u64>> {
    let code = united(code);
    let lengths = code.iter().map(|piece| piece.end - piece.start);
    if lengths.sum::<u64>() > MOST_BYTES {
        return Err(too_much(pid));
    }
    let is_text = |&addr: &u64| {
        let index = mappings.partition_point(|mapping| mapping.end <= addr);
        let mapping = mappings.get(index).filter(|it| it.contains(addr));
        mapping.is_some_and(|it| it.executable) && !contains(&code, addr)
    };
    let mut exits = BTreeSet::new();
    let mut buffer = vec![0; CHUNK as usize + LEN - 1];
    for piece in &code {
        for start in piece.clone().step_by(CHUNK as usize) {
            // The last jump of a chunk may end in the next one.
            let len = (piece.end - start).min(buffer.len() as u64);
            let bytes = &mut buffer[..len as usize];
            memory.read(TargetAddr(start), bytes)?;
            exits.extend(targets(start, bytes).filter(is_text));
            if exits.len() > MOST_EXITS {
                return Err(too_much(pid));
            }
        }
    }
    Ok(exits)
}

/// The same pieces in order, each byte in one of them.
fn united(mut pieces: Vec<Range<u64>>) -> Vec<Range<u64>> {
    pieces.sort_unstable_by_key(|piece| piece.start);
    let mut united: Vec<Range<u64>> = Vec::new();
    for piece in pieces {
        match united.last_mut().filter(|last| piece.start < last.end) {
            Some(last) => last.end = last.end.max(piece.end),
            None => united.push(piece),
        }
    }
    united
}

/// Whether an address is in one of these pieces, which are in order.
fn contains(united: &[Range<u64>], addr: u64) -> bool {
    let index = united.partition_point(|piece| piece.end <= addr);
    united.get(index).is_some_and(|piece| piece.contains(&addr))
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

fn too_much(pid: i32) -> Error {
    Error::Unsuitable(format!(
        "threads may return to more code of earlier darcs than can be looked at; darc cleanup -p {pid} takes away what they have left, or restart the process"
    ))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::process::{Command, Stdio};
    use std::sync::Arc;

    use darc_disasm::{FunctionCode, function_at};
    use darc_testprogs::{Opt, program};

    use crate::engine::jump::Jump;
    use crate::engine::{Engine as _, Refused};
    use crate::maps;
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

    /// A tracer ends with its engine, and leaves everything; the next one comes.
    fn killed(mut engine: Jump) -> Jump {
        let pid = engine.pid;
        engine.space = None;
        drop(engine);
        Jump::attach(pid).unwrap()
    }

    /// A thread is in a stub of `serve`, in a signal handler, when its probes go; and comes back there when others have come, as
    /// `change` says of `serve` and `inner`.
    fn comes_back(change: impl FnOnce(Jump, [&Arc<FunctionCode>; 2]) -> (Jump, Vec<Refused>)) {
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
            let code = function_at(entry, entry + 0x100, &memory).unwrap();
            Arc::new(code.with_filling(&memory, |end| Some(end.next_multiple_of(16))))
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
        let (mut engine, refused) = change(engine, [serve, inner]);
        tell.write_all(b"x").unwrap();
        let result = say();
        let status = target.wait().unwrap();
        assert!(status.success(), "{status}: {refused:?}");
        assert_eq!(result, result_of_7(), "{refused:?}");
        engine.finish().unwrap();
    }

    /// The probe that would have in its middle what is come back to is refused.
    fn is_left_whole(lose_probe: impl FnOnce(Jump, &FunctionCode) -> Jump) {
        comes_back(|engine, [serve, inner]| {
            let mut engine = lose_probe(engine, serve);
            let refused = engine.apply(&plan(inner)).unwrap();
            let [one] = &refused[..] else {
                panic!("{refused:?}")
            };
            assert!(one.reason.contains("earlier probe"), "{refused:?}");
            (engine, refused)
        });
    }

    #[test]
    fn what_an_earlier_tracers_stub_goes_on_at_is_left_whole() {
        is_left_whole(|engine, _| killed(engine));
    }

    #[test]
    fn what_a_stub_goes_on_at_is_left_whole_where_somebody_has_removed_the_probe() {
        is_left_whole(|engine, serve| {
            let own = serve.bytes_at(serve.entry(), 16).unwrap();
            engine.memory.write(TargetAddr(serve.entry()), own).unwrap();
            engine
        });
    }

    /// Also its `ret`, which is replaced together with the filling behind it.
    #[test]
    fn the_same_probes_come_again_where_an_earlier_tracer_has_left_its_own() {
        let places = |engine: &Jump| {
            let space = engine.space.as_ref().unwrap();
            space.patches.addresses().collect::<Vec<_>>()
        };
        comes_back(|engine, [serve, _]| {
            let before = places(&engine);
            let ret = serve.instructions().last().unwrap().ip();
            assert_eq!(before, [serve.entry(), ret]);
            let mut engine = killed(engine);
            let refused = engine.apply(&plan(serve)).unwrap();
            assert!(refused.is_empty(), "{refused:?}");
            let behind_entry = serve.entry() + 5;
            let space = engine.space.as_ref().unwrap();
            let is_known = space.patches.are_come_back_to(&(behind_entry - 1..ret));
            assert!(is_known, "the thread is still there");
            assert_eq!(places(&engine), before);
            (engine, refused)
        });
    }

    #[test]
    fn jumps_to_the_programs_code_are_found_wherever_they_are() {
        let own = std::process::id() as i32;
        let mut code = vec![0_u8; 2 * CHUNK as usize];
        let start = code.as_ptr() as u64;
        let whole = start..start + code.len() as u64;
        let mut expected = BTreeSet::new();
        let line = format!(
            "{:x}-{:x} r-xp 00000000 00:00 0 \n",
            whole.end,
            whole.end + 4096
        );
        for (index, at) in (0..).zip([0, 7, CHUNK - 3, CHUNK + 2, 2 * CHUNK - 5]) {
            let behind = start + at + LEN as u64;
            let to = whole.end + index;
            let jump = &mut code[at as usize..][..LEN];
            jump[0] = JMP;
            jump[1..].copy_from_slice(&((to - behind) as u32).to_le_bytes());
            expected.insert(to);
        }
        // To what is earlier tracers' own, and to where nothing is.
        for (at, distance) in [(20, 16_u32), (30, 4 * CHUNK as u32)] {
            code[at] = JMP;
            code[at + 1..][..4].copy_from_slice(&distance.to_le_bytes());
        }
        let of = |pieces| {
            let memory = Memory::open(own).unwrap();
            of((own, &memory), pieces, &maps::parse(line.as_bytes()))
        };
        assert_eq!(of(vec![whole.clone()]).unwrap(), expected);
        let half = start..start + CHUNK;
        let twice = vec![whole.clone(), half, whole.clone()];
        assert_eq!(united(twice.clone()), std::slice::from_ref(&whole));
        assert_eq!(of(twice).unwrap(), expected);
        let much = whole.start..whole.start + MOST_BYTES + 1;
        let error = of(vec![much]).unwrap_err().to_string();
        assert!(error.contains(&format!("darc cleanup -p {own}")), "{error}");
    }
}
