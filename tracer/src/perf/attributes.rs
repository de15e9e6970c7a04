//! What an event records: `struct perf_event_attr` as bytes. Pure.

/// Whether samples carry the chain of callers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chains {
    /// As far as frame pointers lead.
    Recorded,
    /// Not at all.
    Left,
}

/// How much of the machine an event sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// Code of programs and of the kernel.
    UserAndKernel,
    /// Code of programs only: what `perf_event_paranoid` 2 allows.
    User,
}

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// A sample each so many nanoseconds of a CPU's time.
    Samples { period: u64, chains: Chains },
    /// Nothing: the event is there for the switches of its thread.
    Switches,
    /// Nothing: the event is there for its ring, into which others write.
    Ring,
    /// Nothing: the event is there for its count.
    CpuTime,
    /// A record each time that the kernel passes the tracepoint of this number.
    Point(u16),
    /// A record at the end of each page fault.
    Faulted(Fault),
    /// The same, with the program's registers and stack.
    Stacks(u16),
}

/// Kinds of page faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Nothing had to be read.
    Minor,
    /// The page was read from a file or from swap.
    Major,
}

/// What a sample is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// Where the program was, perhaps with a chain of callers.
    Position(Chains),
    /// What a tracepoint tells, perhaps with the program's registers and stack.
    Raw,
}

/// When an event begins to count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// When it is told to.
    WhenEnabled,
    /// When the thread executes a program.
    AtExec,
}

/// Who is followed, beside the thread that an event is opened on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Follow {
    /// Threads and processes that it makes.
    Children,
    /// Nobody.
    Nobody,
}

/// What an event records, and of what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    kind: Kind,
    scope: Scope,
    start: Start,
    follow: Follow,
}

/// Bytes of the structure up to what Linux 4.1 knows (`PERF_ATTR_SIZE_VER5`): newer kernels take it, and
/// nothing newer is needed.
pub const SIZE: usize = 112;

const TYPE_SOFTWARE: u32 = 1;
const TYPE_TRACEPOINT: u32 = 2;
const COUNT_SW_CPU_CLOCK: u64 = 0;
const COUNT_SW_PAGE_FAULTS_MIN: u64 = 5;
const COUNT_SW_PAGE_FAULTS_MAJ: u64 = 6;
const COUNT_SW_DUMMY: u64 = 9;

/// Bits of `sample_type`.
mod sample {
    pub const IP: u64 = 1 << 0;
    pub const TID: u64 = 1 << 1;
    pub const TIME: u64 = 1 << 2;
    pub const CALLCHAIN: u64 = 1 << 5;
    pub const CPU: u64 = 1 << 7;
    pub const RAW: u64 = 1 << 10;
    pub const REGS_USER: u64 = 1 << 12;
    pub const STACK_USER: u64 = 1 << 13;
}

/// rbp, rsp and rip of `enum perf_event_x86_regs`, in which order they are written.
const REGISTERS: u64 = 1 << 6 | 1 << 7 | 1 << 8;
/// Bytes of stack that are copied: the frames of interest are near its top.
pub const STACK: u32 = 4096;

/// Bits of the word of flags.
mod flag {
    pub const DISABLED: u64 = 1 << 0;
    pub const INHERIT: u64 = 1 << 1;
    pub const EXCLUDE_KERNEL: u64 = 1 << 5;
    pub const EXCLUDE_HV: u64 = 1 << 6;
    pub const EXCLUDE_IDLE: u64 = 1 << 7;
    pub const MMAP: u64 = 1 << 8;
    pub const COMM: u64 = 1 << 9;
    pub const ENABLE_ON_EXEC: u64 = 1 << 12;
    pub const TASK: u64 = 1 << 13;
    pub const WATERMARK: u64 = 1 << 14;
    pub const SAMPLE_ID_ALL: u64 = 1 << 18;
    pub const EXCLUDE_CALLCHAIN_KERNEL: u64 = 1 << 21;
    pub const MMAP2: u64 = 1 << 23;
    pub const COMM_EXEC: u64 = 1 << 24;
    pub const USE_CLOCKID: u64 = 1 << 25;
    pub const CONTEXT_SWITCH: u64 = 1 << 26;
}

impl Attributes {
    /// Samples of what runs, `rate` of them each second of a CPU's time, with records of the life of processes.
    ///
    /// # Panics
    /// When `rate` is zero.
    #[must_use]
    pub fn samples(rate: u32, chains: Chains) -> Attributes {
        assert!(rate > 0, "no samples at all");
        Attributes {
            kind: Kind::Samples {
                period: u64::from(1_000_000_000 / rate).max(1),
                chains,
            },
            scope: Scope::UserAndKernel,
            start: Start::WhenEnabled,
            follow: Follow::Children,
        }
    }

    /// The context switches of a thread, and the life of the threads that it makes.
    #[must_use]
    pub fn switches() -> Attributes {
        Attributes {
            kind: Kind::Switches,
            // The records are the same for both, and fewer may ask for the kernel.
            scope: Scope::User,
            start: Start::WhenEnabled,
            follow: Follow::Nobody,
        }
    }

    /// Nothing at all; to be opened on the thread that reads, for the ring.
    #[must_use]
    pub fn ring() -> Attributes {
        Attributes {
            kind: Kind::Ring,
            ..Attributes::switches()
        }
    }

    /// The CPU time of a thread, to be read.
    #[must_use]
    pub fn cpu_time() -> Attributes {
        Attributes {
            kind: Kind::CpuTime,
            ..Attributes::switches()
        }
    }

    /// Each time that the kernel passes a tracepoint, by its number.
    #[must_use]
    pub fn point(number: u16) -> Attributes {
        Attributes {
            kind: Kind::Point(number),
            scope: Scope::UserAndKernel,
            ..Attributes::switches()
        }
    }

    /// The end of each page fault of this kind.
    #[must_use]
    pub fn faulted(fault: Fault) -> Attributes {
        Attributes {
            kind: Kind::Faulted(fault),
            ..Attributes::point(0)
        }
    }

    /// Where a program is when the kernel passes a tracepoint in its name.
    #[must_use]
    pub fn stacks(point: u16) -> Attributes {
        Attributes {
            kind: Kind::Stacks(point),
            ..Attributes::point(0)
        }
    }

    /// The same for another part of the machine.
    #[must_use]
    pub fn scope(self, scope: Scope) -> Attributes {
        Attributes { scope, ..self }
    }

    /// The same with another start.
    #[must_use]
    pub fn start(self, start: Start) -> Attributes {
        Attributes { start, ..self }
    }

    /// The same, with or without the children.
    #[must_use]
    pub fn follow(self, follow: Follow) -> Attributes {
        Attributes { follow, ..self }
    }

    /// What of the machine is seen.
    #[must_use]
    pub fn seen(&self) -> Scope {
        self.scope
    }

    /// Whether a tracepoint makes the records.
    #[must_use]
    pub fn is_on_tracepoint(&self) -> bool {
        matches!(self.kind, Kind::Point(_) | Kind::Stacks(_))
    }

    /// What samples are made of, for the parser.
    #[must_use]
    pub fn layout(&self) -> Layout {
        match self.kind {
            Kind::Samples { chains, .. } => Layout::Position(chains),
            _ => Layout::Raw,
        }
    }

    /// The structure that the kernel takes. The ring wakes its reader after `wakeup` bytes.
    #[must_use]
    pub fn bytes(&self, wakeup: u32) -> [u8; SIZE] {
        let mut sample_type = sample::TID | sample::TIME | sample::CPU;
        let mut flags = flag::DISABLED
            | flag::EXCLUDE_HV
            | flag::WATERMARK
            | flag::SAMPLE_ID_ALL
            | flag::USE_CLOCKID;
        if matches!(self.kind, Kind::Samples { .. } | Kind::Switches) {
            flags |= flag::COMM | flag::COMM_EXEC | flag::TASK;
        }
        let mut kind = TYPE_SOFTWARE;
        let (mut registers, mut stack) = (0, 0);
        let (config, period) = match self.kind {
            Kind::Samples { period, chains } => {
                sample_type |= sample::IP;
                flags |= flag::MMAP | flag::MMAP2 | flag::EXCLUDE_IDLE;
                if chains == Chains::Recorded {
                    sample_type |= sample::CALLCHAIN;
                }
                (COUNT_SW_CPU_CLOCK, period)
            }
            Kind::Switches => {
                flags |= flag::CONTEXT_SWITCH;
                (COUNT_SW_DUMMY, 0)
            }
            Kind::Ring => (COUNT_SW_DUMMY, 0),
            Kind::CpuTime => (COUNT_SW_CPU_CLOCK, 0),
            Kind::Point(number) => {
                kind = TYPE_TRACEPOINT;
                sample_type |= sample::RAW;
                (u64::from(number), 1)
            }
            Kind::Faulted(fault) => {
                sample_type |= sample::RAW;
                let count = match fault {
                    Fault::Minor => COUNT_SW_PAGE_FAULTS_MIN,
                    Fault::Major => COUNT_SW_PAGE_FAULTS_MAJ,
                };
                (count, 1)
            }
            Kind::Stacks(point) => {
                kind = TYPE_TRACEPOINT;
                sample_type |= sample::RAW | sample::REGS_USER | sample::STACK_USER;
                (registers, stack) = (REGISTERS, STACK);
                (u64::from(point), 1)
            }
        };
        if self.scope == Scope::User {
            flags |= flag::EXCLUDE_KERNEL | flag::EXCLUDE_CALLCHAIN_KERNEL;
        }
        if self.start == Start::AtExec {
            flags |= flag::ENABLE_ON_EXEC;
        }
        if self.follow == Follow::Children {
            flags |= flag::INHERIT;
        }
        let mut bytes = [0; SIZE];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &kind.to_le_bytes());
        put(4, &(SIZE as u32).to_le_bytes());
        put(8, &config.to_le_bytes());
        put(16, &period.to_le_bytes());
        put(24, &sample_type.to_le_bytes());
        put(40, &flags.to_le_bytes());
        put(48, &wakeup.to_le_bytes());
        put(80, &registers.to_le_bytes());
        put(88, &stack.to_le_bytes());
        put(92, &libc::CLOCK_MONOTONIC_RAW.to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(bytes: &[u8; SIZE], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    #[test]
    fn the_structure_is_as_the_header_has_it() {
        let bytes = Attributes::samples(100, Chains::Recorded).bytes(4096);
        assert_eq!(word(&bytes, 0), 112 << 32 | 1);
        assert_eq!(word(&bytes, 8), 0, "cpu-clock");
        assert_eq!(word(&bytes, 16), 10_000_000);
        assert_eq!(word(&bytes, 24), 0b1010_0111);
        assert_eq!(word(&bytes, 48) as u32, 4096);
        assert_eq!(bytes[92..96], [4, 0, 0, 0], "CLOCK_MONOTONIC_RAW");
        assert_eq!(word(&bytes, 40) & flag::EXCLUDE_KERNEL, 0);
    }

    #[test]
    fn what_is_asked_for_sets_its_bit() {
        let plain = Attributes::switches();
        let flags = |attributes: Attributes| word(&attributes.bytes(0), 40);
        assert_eq!(word(&plain.bytes(0), 8), 9, "dummy");
        assert_ne!(flags(plain) & flag::CONTEXT_SWITCH, 0);
        assert_eq!(flags(plain) & (flag::INHERIT | flag::ENABLE_ON_EXEC), 0);
        assert_ne!(flags(plain.follow(Follow::Children)) & flag::INHERIT, 0);
        assert_ne!(flags(plain.start(Start::AtExec)) & flag::ENABLE_ON_EXEC, 0);
        assert_ne!(flags(plain) & flag::EXCLUDE_KERNEL, 0);
    }
}
