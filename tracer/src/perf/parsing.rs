//! From the bytes in a ring to records. Pure; the bytes are hostile.
//!
//! Source: perf_event_open(2), "MMAP layout", and `enum perf_event_type` of the kernel's header.

use crate::maps::FileId;

use super::attributes::{Chains, Layout};
use super::point;
use super::record::{Left, Mapped, Mode, Naming, Record, Sample, Stamp, Task};

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
        let (pid, parent) = (self.id()?, self.id()?);
        let (tid, maker) = (self.id()?, self.id()?);
        Some(Task {
            stamp,
            pid,
            parent,
            tid,
            maker,
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
            let mut file = FileId::default();
            if kind == kind::MMAP2 {
                let device = fields.u64()?;
                file.device = (device as u32, (device >> 32) as u32);
                file.inode = fields.u64()?;
                // Generation, protection, flags. A build-id in their place (bit 14) is not asked for.
                let _ = (fields.u64()?, fields.u64()?);
            }
            Record::Mapped(Mapped {
                stamp,
                pid,
                start,
                len,
                offset,
                file,
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
    use crate::perf::record::{Point, UserStack};
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
    fn a_new_thread_says_who_made_it() {
        // The fields and a time, before what ends each record.
        let mut body = words32(&[70, 71, 72, 73]);
        body.extend(99_u64.to_le_bytes());
        let bytes = record(7, 0, &with_trailer(body));
        let task = Task {
            stamp: STAMP,
            pid: 70,
            parent: 71,
            tid: 72,
            maker: 73,
        };
        assert_eq!(
            parse_all(&bytes, Layout::Position(Chains::Left)),
            (vec![Record::Forked(task)], 0)
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
            (mapped.file.inode, mapped.name.as_slice()),
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
