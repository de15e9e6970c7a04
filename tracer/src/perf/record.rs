//! The records that the kernel writes into a ring, from bytes to values. Pure; the bytes are hostile.
//!
//! Source: perf_event_open(2), "MMAP layout", and `enum perf_event_type` of the kernel's header.

use super::attributes::{Chains, Layout};
use super::point;
pub use super::point::{Point, UserStack};

/// When and where a record was made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Stamp {
    /// Nanoseconds of `CLOCK_MONOTONIC_RAW`.
    pub time: u64,
    /// The process.
    pub pid: i32,
    /// The thread.
    pub tid: i32,
    /// The CPU.
    pub cpu: u32,
}

/// What ran when a sample was taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// The program.
    User,
    /// The kernel, in the thread's name or in an interrupt.
    Kernel,
    /// Something beyond this machine: a guest, or the hypervisor.
    Elsewhere,
}

/// How a thread left its CPU.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Left {
    /// It could have gone on (the kernel's PREEMPT bit).
    Preempted,
    /// It waits for something, or has ended.
    Blocked,
}

/// Why a thread has a new name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Naming {
    /// It executed a program: what was mapped before is gone.
    Exec,
    /// It asked for the name.
    Asked,
}

/// Where a program was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sample {
    /// When, where, who.
    pub stamp: Stamp,
    /// Whose code.
    pub mode: Mode,
    /// The instruction.
    pub ip: u64,
    /// The kernel's part of the chain, the innermost first; empty without chains.
    pub kernel: Vec<u64>,
    /// The program's part of the chain, the innermost first; its first is `ip` for [`Mode::User`]. Empty without chains.
    pub user: Vec<u64>,
}

/// An executable file that was mapped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapped {
    /// When, by whom.
    pub stamp: Stamp,
    /// The process.
    pub pid: i32,
    /// First address.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// Offset in the file, bytes.
    pub offset: u64,
    /// The file's inode; 0 when not told.
    pub inode: u64,
    /// Whose code.
    pub mode: Mode,
    /// The file's path in the process's own root, or a name in brackets.
    pub name: Vec<u8>,
}

/// A thread that began or ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Task {
    /// When.
    pub stamp: Stamp,
    /// Its process.
    pub pid: i32,
    /// The process that made it.
    pub parent: i32,
    /// The thread.
    pub tid: i32,
}

/// One record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// A sample.
    Sample(Sample),
    /// A tracepoint.
    Point(Point),
    /// A thread left its CPU.
    Out {
        /// When, which thread.
        stamp: Stamp,
        /// How.
        left: Left,
        /// The thread that got the CPU, 0 for none; known to events on whole CPUs only.
        next: Option<i32>,
    },
    /// A thread got a CPU.
    In(Stamp),
    /// A thread was named.
    Named {
        /// When, by whom.
        stamp: Stamp,
        /// Its process.
        pid: i32,
        /// The thread.
        tid: i32,
        /// The name, 15 bytes at most.
        name: Vec<u8>,
        /// Why.
        naming: Naming,
    },
    /// A file with code was mapped.
    Mapped(Mapped),
    /// A thread, or a process with its first thread, was made.
    Forked(Task),
    /// A thread ended.
    Exited(Task),
    /// The ring was full, and this many records were dropped.
    Lost(Stamp, u64),
    /// The kernel stopped sampling for a while, as it cost too much.
    Throttled(Stamp),
    /// Of a kind that nobody asked for.
    Other(u32),
}

impl Record {
    /// When it was made; zero for kinds nobody asked for.
    #[must_use]
    pub fn time(&self) -> u64 {
        match self {
            Record::Sample(sample) => sample.stamp.time,
            Record::Point(point) => point.stamp.time,
            Record::Mapped(mapped) => mapped.stamp.time,
            Record::Forked(task) | Record::Exited(task) => task.stamp.time,
            Record::Out { stamp, .. }
            | Record::In(stamp)
            | Record::Named { stamp, .. }
            | Record::Lost(stamp, _)
            | Record::Throttled(stamp) => stamp.time,
            Record::Other(_) => 0,
        }
    }
}

/// Bytes of `struct perf_event_header`.
const HEADER: usize = 8;
/// Bytes of the stamp at the end of every record but samples: pid, tid, time, cpu, reserved.
const TRAILER: usize = 24;
/// The kernel's own limit of `perf_event_max_stack` is far below.
const MAX_CHAIN: u64 = 4096;

mod kind {
    pub const LOST: u32 = 2;
    pub const COMM: u32 = 3;
    pub const EXIT: u32 = 4;
    pub const THROTTLE: u32 = 5;
    pub const FORK: u32 = 7;
    pub const SAMPLE: u32 = 9;
    pub const MMAP: u32 = 1;
    pub const MMAP2: u32 = 10;
    pub const LOST_SAMPLES: u32 = 13;
    pub const SWITCH: u32 = 14;
    pub const SWITCH_CPU_WIDE: u32 = 15;
}

/// Bits of the header's `misc`.
mod misc {
    pub const MODE: u16 = 7;
    pub const BIT_13: u16 = 1 << 13;
    pub const BIT_14: u16 = 1 << 14;
}

/// Reads the records in `bytes`, which begin with a header. The second value counts bytes that make no sense: what
/// follows a damaged header cannot be read.
#[must_use]
pub fn parse_all(mut bytes: &[u8], layout: Layout) -> (Vec<Record>, usize) {
    let mut records = Vec::new();
    let mut damaged = 0;
    while !bytes.is_empty() {
        let size = bytes.get(6..HEADER).map_or(0, |size| {
            usize::from(u16::from_le_bytes([size[0], size[1]]))
        });
        if size < HEADER || size > bytes.len() {
            return (records, damaged + bytes.len());
        }
        let (record, rest) = bytes.split_at(size);
        match parse(record, layout) {
            Some(record) => records.push(record),
            None => damaged += size,
        }
        bytes = rest;
    }
    (records, damaged)
}

/// Takes values from the front.
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn u64(&mut self) -> Option<u64> {
        let (value, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*value))
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        let (value, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*value))
    }

    pub(super) fn id(&mut self) -> Option<i32> {
        self.u32().map(|id| id as i32)
    }

    fn task(&mut self, stamp: Stamp) -> Option<Task> {
        let (pid, parent, tid) = (self.id()?, self.id()?, self.id()?);
        Some(Task {
            stamp,
            pid,
            parent,
            tid,
        })
    }

    pub(super) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (value, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(value)
    }

    /// What is left, up to the first zero byte.
    fn text(&self) -> Vec<u8> {
        let end = self.0.iter().position(|&byte| byte == 0);
        self.0[..end.unwrap_or(self.0.len())].to_vec()
    }
}

fn mode(misc: u16) -> Mode {
    match misc & misc::MODE {
        1 => Mode::Kernel,
        2 => Mode::User,
        _ => Mode::Elsewhere,
    }
}

/// One record, header included; `None` when it is shorter than its kind demands.
fn parse(record: &[u8], layout: Layout) -> Option<Record> {
    let mut header = Fields(record);
    let kind = header.u32()?;
    let bits = header.u32()? as u16;
    let body = header.0;
    if kind == kind::SAMPLE {
        return match layout {
            Layout::Position(chains) => sample(Fields(body), bits, chains).map(Record::Sample),
            Layout::Raw => point::parse(Fields(body)).map(Record::Point),
        };
    }
    let (body, trailer) = body.split_at(body.len().checked_sub(TRAILER)?);
    let mut trailer = Fields(trailer);
    let stamp = Stamp {
        pid: trailer.id()?,
        tid: trailer.id()?,
        time: trailer.u64()?,
        cpu: trailer.u32()?,
    };
    let mut fields = Fields(body);
    Some(match kind {
        kind::SWITCH | kind::SWITCH_CPU_WIDE if bits & misc::BIT_13 == 0 => Record::In(stamp),
        kind::SWITCH | kind::SWITCH_CPU_WIDE => Record::Out {
            stamp,
            left: match bits & misc::BIT_14 {
                0 => Left::Blocked,
                _ => Left::Preempted,
            },
            next: match kind {
                kind::SWITCH => None,
                _ => {
                    fields.id()?;
                    Some(fields.id()?)
                }
            },
        },
        kind::COMM => Record::Named {
            stamp,
            pid: fields.id()?,
            tid: fields.id()?,
            name: fields.text(),
            naming: match bits & misc::BIT_13 {
                0 => Naming::Asked,
                _ => Naming::Exec,
            },
        },
        kind::FORK => Record::Forked(fields.task(stamp)?),
        kind::EXIT => Record::Exited(fields.task(stamp)?),
        kind::MMAP | kind::MMAP2 => {
            let pid = fields.id()?;
            fields.id()?;
            let (start, len, offset) = (fields.u64()?, fields.u64()?, fields.u64()?);
            let mut inode = 0;
            if kind == kind::MMAP2 {
                let device = fields.u64()?;
                inode = fields.u64()?;
                // Generation, protection, flags. A build-id in their place (bit 14) is not asked for.
                let _ = (device, fields.u64()?, fields.u64()?);
            }
            Record::Mapped(Mapped {
                stamp,
                pid,
                start,
                len,
                offset,
                inode,
                mode: mode(bits),
                name: fields.text(),
            })
        }
        kind::LOST => {
            fields.u64()?;
            Record::Lost(stamp, fields.u64()?)
        }
        kind::LOST_SAMPLES => Record::Lost(stamp, fields.u64()?),
        kind::THROTTLE => Record::Throttled(stamp),
        other => Record::Other(other),
    })
}

fn sample(mut fields: Fields<'_>, bits: u16, chains: Chains) -> Option<Sample> {
    let ip = fields.u64()?;
    let (pid, tid) = (fields.id()?, fields.id()?);
    let time = fields.u64()?;
    let cpu = fields.u32()?;
    fields.u32()?;
    let mut sample = Sample {
        stamp: Stamp {
            time,
            pid,
            tid,
            cpu,
        },
        mode: mode(bits),
        ip,
        kernel: Vec::new(),
        user: Vec::new(),
    };
    if chains == Chains::Recorded {
        let count = fields.u64()?;
        if count > MAX_CHAIN || count > (fields.0.len() / 8) as u64 {
            return None;
        }
        let mut within = None;
        for _ in 0..count {
            match fields.u64()? {
                CONTEXT_KERNEL => within = Some(Mode::Kernel),
                CONTEXT_USER => within = Some(Mode::User),
                LOWEST_CONTEXT.. => within = Some(Mode::Elsewhere),
                at => match within {
                    Some(Mode::Kernel) => sample.kernel.push(at),
                    Some(Mode::User) => sample.user.push(at),
                    _ => {}
                },
            }
        }
    }
    Some(sample)
}

/// `PERF_CONTEXT_KERNEL`, `PERF_CONTEXT_USER`, `PERF_CONTEXT_MAX`: values that no address has.
const CONTEXT_KERNEL: u64 = (-128_i64) as u64;
const CONTEXT_USER: u64 = (-512_i64) as u64;
const LOWEST_CONTEXT: u64 = (-4095_i64) as u64;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend(misc.to_le_bytes());
        bytes.extend(u16::try_from(body.len() + HEADER).unwrap().to_le_bytes());
        bytes.extend(body);
        bytes
    }

    fn trailer() -> Vec<u8> {
        let mut bytes = words32(&[7, 8]);
        bytes.extend(99_u64.to_le_bytes());
        bytes.extend(words32(&[1, 0]));
        bytes
    }

    const STAMP: Stamp = Stamp {
        time: 99,
        pid: 7,
        tid: 8,
        cpu: 1,
    };

    fn words32(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn with_trailer(mut body: Vec<u8>) -> Vec<u8> {
        body.extend(trailer());
        body
    }

    #[test]
    fn switches_say_why() {
        let mut bytes = record(14, 0, &trailer());
        bytes.extend(record(14, 1 << 13, &trailer()));
        bytes.extend(record(14, 1 << 13 | 1 << 14, &trailer()));
        bytes.extend(record(15, 1 << 13, &with_trailer(words32(&[70, 71]))));
        let out = |left, next| Record::Out {
            stamp: STAMP,
            left,
            next,
        };
        let expected = vec![
            Record::In(STAMP),
            out(Left::Blocked, None),
            out(Left::Preempted, None),
            out(Left::Blocked, Some(71)),
        ];
        assert_eq!(
            parse_all(&bytes, Layout::Position(Chains::Left)),
            (expected, 0)
        );
    }

    #[test]
    fn a_sample_with_its_chain() {
        let mut body = words(&[0x1234]);
        body.extend(trailer());
        body.extend(words(&[
            5,
            CONTEXT_KERNEL,
            0xffff_ffff_8100_0000,
            CONTEXT_USER,
            0x1234,
            0x5678,
        ]));
        let (records, damaged) =
            parse_all(&record(9, 1, &body), Layout::Position(Chains::Recorded));
        assert_eq!(damaged, 0);
        let expected = Sample {
            stamp: STAMP,
            mode: Mode::Kernel,
            ip: 0x1234,
            kernel: vec![0xffff_ffff_8100_0000],
            user: vec![0x1234, 0x5678],
        };
        assert_eq!(records, [Record::Sample(expected)]);
    }

    #[test]
    fn a_tracepoint_with_and_without_a_stack() {
        let mut body = trailer();
        body.extend(words32(&[12, 0xabcd, 7, 0]));
        let point = |raw: &[u32], program| {
            Record::Point(Point {
                stamp: STAMP,
                raw: words32(raw),
                program,
            })
        };
        let mut bytes = record(9, 1, &body);
        // The ABI, bp, sp, ip, 16 bytes of stack of which 8 could be read.
        body.extend(words(&[2, 5, 6, 7, 16, 0x11, 0x22, 8]));
        bytes.extend(record(9, 1, &body));
        let stack = UserStack {
            ip: 7,
            sp: 6,
            bp: 5,
            bytes: words(&[0x11]),
        };
        let raw = [0xabcd, 7, 0];
        assert_eq!(
            parse_all(&bytes, Layout::Raw),
            (vec![point(&raw, None), point(&raw, Some(stack))], 0)
        );
        let mut kernel_thread = trailer();
        kernel_thread.extend(words32(&[4, 9]));
        kernel_thread.extend(words(&[0, 0]));
        let (records, _) = parse_all(&record(9, 1, &kernel_thread), Layout::Raw);
        assert_eq!(records, [point(&[9], None)]);
    }

    #[test]
    fn a_mapping_and_a_name() {
        let mut body = words32(&[7, 8]);
        body.extend(words(&[0x1000, 0x2000, 0x3000, 1, 42, 0, 0]));
        body.extend(b"/bin/x\0\0");
        let mut bytes = record(10, 2, &with_trailer(body));
        let mut name = words32(&[7, 8]);
        name.extend(b"x\0\0\0\0\0\0\0");
        bytes.extend(record(3, 1 << 13, &with_trailer(name)));
        let (records, damaged) = parse_all(&bytes, Layout::Position(Chains::Left));
        assert_eq!(damaged, 0);
        let [Record::Mapped(mapped), Record::Named { name, naming, .. }] = records.as_slice()
        else {
            panic!("{records:?}")
        };
        assert_eq!(
            (mapped.start, mapped.len, mapped.offset),
            (0x1000, 0x2000, 0x3000)
        );
        assert_eq!(
            (mapped.inode, mapped.name.as_slice()),
            (42, b"/bin/x".as_slice())
        );
        assert_eq!((name.as_slice(), *naming), (b"x".as_slice(), Naming::Exec));
    }

    #[test]
    fn what_is_too_short_is_counted() {
        let short = record(14, 0, &[0; 8]);
        assert_eq!(
            parse_all(&short, Layout::Position(Chains::Left)),
            (Vec::new(), short.len())
        );
        // A chain that is longer than its record.
        let mut body = words(&[1]);
        body.extend(trailer());
        body.extend(words(&[u64::MAX]));
        assert_eq!(
            parse_all(&record(9, 2, &body), Layout::Position(Chains::Recorded)).0,
            []
        );
        // A header that claims more than there is, and one that would never end.
        for size in [0_u16, 7, 9, u16::MAX] {
            let mut bytes = record(14, 0, &[]);
            bytes[6..8].copy_from_slice(&size.to_le_bytes());
            assert_eq!(
                parse_all(&bytes, Layout::Position(Chains::Left)),
                (Vec::new(), 8)
            );
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..512), with in any::<bool>()) {
            let chains = if with { Chains::Recorded } else { Chains::Left };
            for layout in [Layout::Position(chains), Layout::Raw] {
                let (_, damaged) = parse_all(&bytes, layout);
                prop_assert!(damaged <= bytes.len());
            }
        }

        #[test]
        fn any_body_is_read(kind in 0_u32..24, misc in any::<u16>(), body in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = parse_all(&record(kind, misc, &body), Layout::Position(Chains::Recorded));
            let _ = parse_all(&record(kind, misc, &body), Layout::Raw);
        }
    }
}
