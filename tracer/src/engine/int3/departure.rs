//! How threads leave a stop: through a few instructions of their own in the arena that read the clock first,
//! so that it is known when the thread really went on, however late it was woken.

use std::collections::HashMap;

use crate::addr::TargetAddr;
use crate::arena::Arena;
use crate::error::Result;
use crate::memory::Memory;
use crate::stopped::Registers;
use crate::sys;
use darc_record::Tsc;

/// At most so many threads have a lane at a time; for others the time at which they were resumed counts.
const LANES: u64 = 1024;

/// Bytes of code a lane.
const CODE: u64 = 64;

/// Bytes of data a lane: the clock's reading, then rax, rdx, and where to go on.
const DATA: u64 = 32;

/// Bytes of code of all lanes.
pub const CODE_BYTES: u64 = LANES * CODE;

/// Bytes of data of all lanes.
pub const DATA_BYTES: u64 = LANES * DATA;

/// The code of a lane whose data begin at a distance of `to_data` bytes.
///
/// ```text
///  0  rdtsc
///  2  mov [data],eax
///  8  mov [data+4],edx
/// 14  mov rax,[data+8]
/// 21  mov rdx,[data+16]
/// 28  jmp [data+24]
/// ```
/// Neither the stack nor the flags are touched.
fn lane_code(to_data: u64) -> Vec<u8> {
    let mut code = vec![0x0f, 0x31];
    let parts: [(&[u8], u64); 5] = [
        (&[0x89, 0x05], 0),
        (&[0x89, 0x15], 4),
        (&[0x48, 0x8b, 0x05], 8),
        (&[0x48, 0x8b, 0x15], 16),
        (&[0xff, 0x25], 24),
    ];
    for (opcode, field) in parts {
        code.extend(opcode);
        let next = code.len() as u64 + 4;
        let displacement = (to_data + field).wrapping_sub(next) as u32;
        code.extend(displacement.to_le_bytes());
    }
    code
}

/// When a thread went on after a stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Departed {
    /// The thread read the clock then.
    At(Tsc),
    /// It was resumed at this moment, and went on when it was given a processor.
    After(Tsc),
}

/// How a thread was resumed last.
#[derive(Clone, Copy, Debug)]
struct Departure {
    /// When the tracer resumed it.
    since: Tsc,
    /// Through its lane: what it holds after that.
    lane: Option<Held>,
}

/// What a lane gives back to its thread.
#[derive(Clone, Copy, Debug)]
struct Held {
    rax: u64,
    rdx: u64,
    target: TargetAddr,
}

/// The lanes of all threads.
#[derive(Debug)]
pub struct Departures {
    code: TargetAddr,
    data: TargetAddr,
    lanes: HashMap<i32, u64>,
    /// Lanes of threads that have ended; their code stands.
    free: Vec<u64>,
    made: u64,
    /// Whether the target's threads may read the clock.
    readable: bool,
    under_way: HashMap<i32, Departure>,
}

impl Departures {
    /// Lanes in the arena: their code in room that is reserved now, their data in the arena's last
    /// [`DATA_BYTES`], which the threads may write.
    pub fn new(arena: &mut Arena, data: TargetAddr) -> Option<Departures> {
        Some(Departures {
            code: arena.reserve(CODE_BYTES)?,
            data,
            lanes: HashMap::new(),
            free: Vec::new(),
            made: 0,
            readable: true,
            under_way: HashMap::new(),
        })
    }

    fn lane(&mut self, memory: &Memory, tid: i32) -> Result<Option<u64>> {
        if !self.readable {
            return Ok(None);
        }
        if let Some(&lane) = self.lanes.get(&tid) {
            return Ok(Some(lane));
        }
        let lane = match self.free.pop() {
            Some(lane) => lane,
            None if self.made == LANES => return Ok(None),
            None => {
                let lane = self.made;
                let (code, data) = self.at(lane);
                memory.write(code, &lane_code(data.0 - code.0))?;
                self.made += 1;
                lane
            }
        };
        self.lanes.insert(tid, lane);
        Ok(Some(lane))
    }

    fn at(&self, lane: u64) -> (TargetAddr, TargetAddr) {
        let code = TargetAddr(self.code.0 + lane * CODE);
        (code, TargetAddr(self.data.0 + lane * DATA))
    }

    /// Leads a stopped thread's registers into its lane, which goes on where they point to now.
    ///
    /// # Errors
    /// When the target is gone.
    pub fn through(&mut self, memory: &Memory, tid: i32, registers: &mut Registers) -> Result<()> {
        let Some(lane) = self.lane(memory, tid)? else {
            self.past(tid);
            return Ok(());
        };
        let (code, data) = self.at(lane);
        let held = Held {
            rax: registers.0.rax,
            rdx: registers.0.rdx,
            target: registers.rip(),
        };
        let mut bytes = [0; DATA as usize - 8];
        for (bytes, word) in bytes
            .chunks_exact_mut(8)
            .zip([held.rax, held.rdx, held.target.0])
        {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        memory.write(data.offset(8), &bytes)?;
        registers.set_rip(code);
        let departure = Departure {
            since: sys::tsc(),
            lane: Some(held),
        };
        self.under_way.insert(tid, departure);
        Ok(())
    }

    /// The thread is resumed now where its registers point to, not through a lane.
    pub fn past(&mut self, tid: i32) {
        let departure = Departure {
            since: sys::tsc(),
            lane: None,
        };
        self.under_way.insert(tid, departure);
    }

    /// When the thread went on after its last stop; `None` when nobody asked to know, or was told already.
    pub fn departed(&mut self, memory: &Memory, tid: i32) -> Option<Departed> {
        let departure = self.under_way.remove(&tid)?;
        let stamp = departure.lane.and_then(|_| {
            let (_, data) = self.at(*self.lanes.get(&tid)?);
            memory.read_word(data).ok().map(Tsc)
        });
        // An older reading is that of an earlier stop: the thread has not come so far, or may not read the clock.
        let stamp = stamp.filter(|&stamp| stamp > departure.since);
        Some(stamp.map_or(Departed::After(departure.since), Departed::At))
    }

    /// If the stopped thread is still in its lane: its registers as they are behind it.
    pub fn lead_out(&self, tid: i32, registers: &mut Registers) -> bool {
        let inside = |lane: &u64| {
            let (code, _) = self.at(*lane);
            (code.0..code.0 + CODE).contains(&registers.rip().0)
        };
        let held = self.under_way.get(&tid).and_then(|at| at.lane);
        let Some(held) = held.filter(|_| self.lanes.get(&tid).is_some_and(inside)) else {
            return false;
        };
        registers.0.rax = held.rax;
        registers.0.rdx = held.rdx;
        registers.set_rip(held.target);
        true
    }

    /// Whether the address is in a lane.
    #[must_use]
    pub fn contain(&self, addr: TargetAddr) -> bool {
        (self.code.0..self.code.0 + CODE_BYTES).contains(&addr.0)
    }

    /// Threads may not read the clock: they are sent through no lane any more.
    pub fn give_up(&mut self) {
        self.readable = false;
    }

    /// The thread has ended.
    pub fn forget(&mut self, tid: i32) {
        self.under_way.remove(&tid);
        self.free.extend(self.lanes.remove(&tid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    #[test]
    fn a_lane_reads_and_writes_its_own_data() {
        let code = lane_code(0x1000);
        assert!(code.len() as u64 <= CODE);
        let decoder = Decoder::with_ip(64, &code, 0, DecoderOptions::NONE);
        let fields: Vec<(String, u64)> = decoder
            .into_iter()
            .map(|instruction| (instruction.to_string(), instruction.ip_rel_memory_address()))
            .collect();
        let addresses: Vec<u64> = fields.iter().skip(1).map(|(_, at)| *at).collect();
        assert_eq!(
            addresses,
            [0x1000, 0x1004, 0x1008, 0x1010, 0x1018],
            "{fields:?}"
        );
        assert!(fields[5].0.starts_with("jmp"), "{fields:?}");
    }
}
