//! The kernel's tracepoints that tell who ends a wait and what a CPU does beside its threads: their numbers and
//! fields, and what one of their events says.
//!
//! Source: the `format` files below `events/` in tracefs; include/trace/events/{sched,irq}.h and
//! arch/x86/include/asm/trace/irq_vectors.h of the kernel.

use std::io::ErrorKind;
use std::path::PathBuf;

use crate::tracefs::{self, Format};

use super::attributes::Attributes;
use super::refusal::Refusal;

/// What a CPU does that is no work of the thread on it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Service {
    /// A device's interrupt, by its number in /proc/interrupts.
    Interrupt(u32),
    /// An interrupt of the CPUs' own (timer, rescheduling, calls from other CPUs), by its vector.
    LocalInterrupt(u32),
    /// Deferred work of interrupts, by its number.
    SoftInterrupt(u32),
    /// A page of the program is brought in or copied.
    PageFault,
}

/// What one event says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// It begins.
    Begin(Service),
    /// It ends.
    End(Service),
    /// The current thread touches memory that is not there, or is a copy to be made.
    Fault {
        /// Where.
        address: u64,
    },
    /// The current thread makes a system call.
    Call {
        /// Its number.
        number: u32,
        /// What it is called with; zeros for what it does not take.
        arguments: [u64; 6],
    },
    /// The current thread is to run the handler of a signal.
    Handler {
        /// The signal's number.
        signal: u32,
        /// Where the handler begins.
        function: u64,
    },
    /// The current thread comes back from a handler.
    HandlerEnded,
    /// A thread is woken.
    Waking {
        /// Which.
        tid: i32,
        /// Whether the thread in whose name it happens does it.
        by: Context,
    },
}

/// Who acts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Context {
    /// The current thread.
    Thread,
    /// An interrupt; the current thread has nothing to do with it.
    Interrupt,
}

/// Bits of an event's `common_flags` (include/linux/trace_events.h): in an interrupt, in a softirq.
const IN_INTERRUPT: i64 = 0x08 | 0x10;

/// Where the first argument stands in an event of a system call (`struct syscall_trace_enter` and its padding).
const ARGUMENTS: usize = 16;

/// Why there are none.
#[derive(Clone, PartialEq, Eq, thiserror::Error, Debug)]
pub enum NoTracepoints {
    /// Only root may.
    #[error("{path}: permission denied; run as root")]
    Permission {
        /// What may not be read.
        path: PathBuf,
    },
    /// It is not mounted.
    #[error(
        "the kernel's tracefs is not there; as root: mount -t tracefs nodev /sys/kernel/tracing"
    )]
    NotMounted,
    /// In a container the threads that are woken are named by the machine's numbers; the rest is told.
    #[error("threads have other numbers in this container than on the machine")]
    OtherNumbers,
    /// The kernel has none.
    #[error("{path} is not there (the kernel needs CONFIG_EVENT_TRACING)")]
    Missing {
        /// What is not there.
        path: PathBuf,
    },
    /// Perf events on them are refused.
    #[error(transparent)]
    Events(#[from] Refusal),
    /// Only turns are of use.
    #[error("nobody asks for them")]
    NotAsked,
    /// They came faster than they could be read.
    #[error("the machine's events came faster than they could be read")]
    TooMany,
    /// Page faults did; the rest is told.
    #[error("page faults came faster than they could be read")]
    TooManyFaults,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Meaning {
    Waking,
    Handler(Edge),
    Vector(Edge),
    Soft(Edge),
    Fault,
    Call,
    Signal,
    HandlerEnded,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Edge {
    Begin,
    End,
}

/// The tracepoints of this kernel.
#[derive(Clone, Debug)]
pub struct Tracepoints {
    /// Where they are described.
    folder: PathBuf,
    known: Vec<(Format, Meaning)>,
    names: Vec<(Service, String)>,
}

/// Devices whose names are remembered.
const MOST_NAMES: usize = 4096;

impl Tracepoints {
    /// Looks them up. Vectors that a kernel does not have are left out.
    ///
    /// # Errors
    /// When tracefs cannot be read.
    pub fn find() -> Result<Tracepoints, NoTracepoints> {
        let place = tracefs::place().map_err(|closed| match closed {
            Some(path) => NoTracepoints::Permission { path },
            None => NoTracepoints::NotMounted,
        })?;
        let folder = place.join("events");
        let needed = [
            ("irq/irq_handler_entry", Meaning::Handler(Edge::Begin)),
            ("irq/irq_handler_exit", Meaning::Handler(Edge::End)),
            ("irq/softirq_entry", Meaning::Soft(Edge::Begin)),
            ("irq/softirq_exit", Meaning::Soft(Edge::End)),
        ];
        let mut known = Vec::new();
        for (name, meaning) in needed {
            known.push((read(&folder.join(name))?, meaning));
        }
        // It names threads by the machine's numbers.
        if tracefs::numbers_are_the_machines() {
            let waking = read(&folder.join("sched/sched_waking"))?;
            known.push((waking, Meaning::Waking));
        }
        for (name, meaning) in [
            ("exceptions/page_fault_user", Meaning::Fault),
            ("signal/signal_deliver", Meaning::Signal),
        ] {
            if let Ok(format) = read(&folder.join(name)) {
                known.push((format, meaning));
            }
        }
        for (name, _) in VECTORS {
            for (end, edge) in [("entry", Edge::Begin), ("exit", Edge::End)] {
                let path = folder.join(format!("irq_vectors/{name}_{end}"));
                if let Ok(format) = read(&path) {
                    known.push((format, Meaning::Vector(edge)));
                }
            }
        }
        Ok(Tracepoints {
            folder,
            known,
            names: Vec::new(),
        })
    }

    /// Interrupts, and signals that are delivered: events for whole CPUs.
    pub fn of_cpus(&self) -> impl Iterator<Item = Attributes> + '_ {
        let others = |meaning| {
            matches!(
                meaning,
                Meaning::Waking | Meaning::Fault | Meaning::Call | Meaning::HandlerEnded
            )
        };
        self.known
            .iter()
            .filter(move |(_, meaning)| !others(*meaning))
            .map(|(format, _)| Attributes::point(format.id))
    }

    /// The ends of signals' handlers, where this kernel tells them. While they are recorded every system call of the machine
    /// takes a little longer, as with [`Tracepoints::call`].
    pub fn handler_end(&mut self) -> Option<Attributes> {
        let known = self.number(Meaning::HandlerEnded);
        let known = known.map(Attributes::point);
        known.or_else(|| self.enter("rt_sigreturn", Meaning::HandlerEnded))
    }

    /// A thread is woken; and the same, with where the waking program is. Not in a container, where the thread would be another.
    #[must_use]
    pub fn waking(&self) -> Option<(Attributes, Attributes)> {
        let number = self.number(Meaning::Waking)?;
        Some((Attributes::point(number), Attributes::stacks(number)))
    }

    /// The beginning of page faults, where this kernel tells it.
    #[must_use]
    pub fn fault(&self) -> Option<Attributes> {
        self.number(Meaning::Fault).map(Attributes::point)
    }

    /// The beginnings of a system call, where this kernel has a tracepoint of its own for it.
    pub fn call(&mut self, name: &str) -> Option<Attributes> {
        self.enter(kernel_name(name), Meaning::Call)
    }

    fn enter(&mut self, name: &str, meaning: Meaning) -> Option<Attributes> {
        let path = self.folder.join(format!("syscalls/sys_enter_{name}"));
        let format = read(&path).ok()?;
        let attributes = Attributes::point(format.id);
        self.known.push((format, meaning));
        Some(attributes)
    }

    fn number(&self, wanted: Meaning) -> Option<u16> {
        let mut known = self.known.iter();
        let found = known.find(|(_, meaning)| *meaning == wanted);
        found.map(|(format, _)| format.id)
    }

    /// What an event says; nothing when it is none of these.
    pub fn event(&mut self, raw: &[u8]) -> Option<Event> {
        let kind = u16::from_le_bytes(raw.get(..2)?.try_into().ok()?);
        if kind == 0 {
            // Of no tracepoint: the end of a page fault.
            return Some(Event::End(Service::PageFault));
        }
        let (format, meaning) = self.known.iter().find(|(format, _)| format.id == kind)?;
        let number = |field| u32::try_from(format.number(raw, field)?).ok();
        let (edge, service) = match *meaning {
            Meaning::Waking => {
                let flags = format.number(raw, "common_flags")?;
                return Some(Event::Waking {
                    tid: format.number(raw, "pid")? as i32,
                    by: match flags & IN_INTERRUPT {
                        0 => Context::Thread,
                        _ => Context::Interrupt,
                    },
                });
            }
            Meaning::Fault => {
                let address = format.number(raw, "address")? as u64;
                return Some(Event::Fault { address });
            }
            Meaning::Signal => {
                let function = format.number(raw, "sa_handler")? as u64;
                // What is ignored, or done by the kernel itself, has none (SIG_DFL and SIG_IGN).
                return (function > 1).then_some(Event::Handler {
                    signal: number("sig")?,
                    function,
                });
            }
            Meaning::HandlerEnded => return Some(Event::HandlerEnded),
            Meaning::Call => {
                // All these formats have the arguments, as many as there are, in words behind the number.
                let words = raw.get(ARGUMENTS..).unwrap_or_default().chunks_exact(8);
                let mut arguments = [0; 6];
                for (argument, word) in arguments.iter_mut().zip(words) {
                    *argument = u64::from_le_bytes(word.try_into().ok()?);
                }
                return Some(Event::Call {
                    number: number("__syscall_nr")?,
                    arguments,
                });
            }
            Meaning::Soft(edge) => (edge, Service::SoftInterrupt(number("vec")?)),
            Meaning::Vector(edge) => (edge, Service::LocalInterrupt(number("vector")?)),
            Meaning::Handler(edge) => (edge, Service::Interrupt(number("irq")?)),
        };
        let unnamed = self.names.iter().all(|(known, _)| *known != service);
        if unnamed && self.names.len() < MOST_NAMES {
            let name = match *meaning {
                Meaning::Handler(Edge::Begin) => format
                    .text(raw, "name")
                    .map(|name| String::from_utf8_lossy(name).into_owned()),
                _ => None,
            };
            self.names.extend(name.map(|name| (service, name)));
        }
        Some(match edge {
            Edge::Begin => Event::Begin(service),
            Edge::End => Event::End(service),
        })
    }

    /// The name of what a CPU does: the device's driver, the vector's purpose, the softirq.
    #[must_use]
    pub fn name(&self, service: Service) -> Option<&str> {
        match service {
            Service::SoftInterrupt(number) => SOFT_INTERRUPTS.get(number as usize).copied(),
            Service::LocalInterrupt(vector) => {
                let mut vectors = VECTORS
                    .iter()
                    .filter_map(|(name, known)| (*known == vector).then_some(*name));
                vectors.next()
            }
            Service::Interrupt(_) => {
                let mut names = self.names.iter();
                let found = names.find(|(known, _)| *known == service);
                found.map(|(_, name)| name.as_str())
            }
            Service::PageFault => None,
        }
    }
}

/// The vectors that have tracepoints, with their numbers (arch/x86/include/asm/irq_vectors.h).
///
/// `irq_work` is not among them: the kernel refuses records of its end, since making one raises it.
const VECTORS: [(&str, u32); 8] = [
    ("local_timer", 0xec),
    ("reschedule", 0xfd),
    ("call_function", 0xfc),
    ("call_function_single", 0xfb),
    ("x86_platform_ipi", 0xf7),
    ("thermal_apic", 0xfa),
    ("error_apic", 0xfe),
    ("spurious_apic", 0xff),
];

/// By number (include/linux/interrupt.h).
const SOFT_INTERRUPTS: [&str; 10] = [
    "HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU",
];

fn read(folder: &std::path::Path) -> Result<Format, NoTracepoints> {
    let path = folder.join("format");
    let missing = || NoTracepoints::Missing { path: path.clone() };
    match std::fs::read_to_string(&path) {
        Ok(text) => Format::parse(&text).ok_or_else(missing),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            Err(NoTracepoints::Permission { path })
        }
        Err(_) => Err(missing()),
    }
}

/// The kernel names some tracepoints after its own functions (SYSCALL_DEFINE in fs/stat.c), not after the system call.
fn kernel_name(name: &str) -> &str {
    match name {
        "stat" => "newstat",
        "lstat" => "newlstat",
        "fstat" => "newfstat",
        "sendfile" => "sendfile64",
        name => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: &str = "\tfield:unsigned long address;\toffset:8;\tsize:8;\tsigned:0;\n";
    const HANDLER: &str = "\tfield:unsigned long sa_handler;\toffset:24;\tsize:8;\tsigned:0;\n";

    fn points() -> Tracepoints {
        let format = |id: u16, fields: &str| {
            Format::parse(&format!(
                "ID: {id}\n\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n{fields}"
            ))
            .unwrap()
        };
        let field = |declaration: &str, offset| {
            format!("\tfield:{declaration};\toffset:{offset};\tsize:4;\tsigned:1;\n")
        };
        let handler = field("int irq", 8) + &field("__data_loc char[] name", 12);
        Tracepoints {
            folder: PathBuf::new(),
            known: vec![
                (format(5, &field("pid_t pid", 8)), Meaning::Waking),
                (format(6, &handler), Meaning::Handler(Edge::Begin)),
                (format(8, &field("int __syscall_nr", 8)), Meaning::Call),
                (
                    format(10, &(field("int sig", 8) + HANDLER)),
                    Meaning::Signal,
                ),
                (
                    format(7, &field("int vector", 8)),
                    Meaning::Vector(Edge::End),
                ),
                (format(11, ADDRESS), Meaning::Fault),
            ],
            names: Vec::new(),
        }
    }

    fn event(kind: u16, flags: u8, word: i32) -> Vec<u8> {
        let mut raw = kind.to_le_bytes().to_vec();
        raw.extend([flags, 0, 0, 0, 0, 0]);
        raw.extend(word.to_le_bytes());
        raw
    }

    #[test]
    fn events_say_what_happened() {
        let mut points = points();
        let waking = |by| Some(Event::Waking { tid: 77, by });
        assert_eq!(points.event(&event(5, 1, 77)), waking(Context::Thread));
        assert_eq!(points.event(&event(5, 8, 77)), waking(Context::Interrupt));
        assert_eq!(points.event(&event(5, 16, 77)), waking(Context::Interrupt));
        let mut handler = event(6, 0, 36);
        handler.extend((4_u32 << 16 | 16).to_le_bytes());
        handler.extend(b"vda\0");
        let disk = Service::Interrupt(36);
        assert_eq!(points.event(&handler), Some(Event::Begin(disk)));
        assert_eq!(points.name(disk), Some("vda"));
        let timer = Service::LocalInterrupt(0xec);
        assert_eq!(points.event(&event(7, 0, 0xec)), Some(Event::End(timer)));
        assert_eq!(points.name(timer), Some("local_timer"));
        assert_eq!(points.event(&[0; 4]), Some(Event::End(Service::PageFault)));
        assert_eq!(points.event(&event(9, 0, 1)), None);
        let mut call = event(8, 0, 202);
        call.extend([0; 4]);
        call.extend([0x4060_u64, 128].map(u64::to_le_bytes).concat());
        let futex = Event::Call {
            number: 202,
            arguments: [0x4060, 128, 0, 0, 0, 0],
        };
        assert_eq!(points.event(&call), Some(futex));
        assert_eq!(points.event(&event(6, 0, 1)[..9]), None);
        let delivered = |function: u64| {
            let mut delivered = event(10, 0, 14);
            delivered.extend([0; 12]);
            delivered.extend(function.to_le_bytes());
            delivered
        };
        let handler = Event::Handler {
            signal: 14,
            function: 0x4060,
        };
        assert_eq!(points.event(&delivered(0x4060)), Some(handler));
        assert_eq!(points.event(&delivered(0)), None);
        let mut fault = event(11, 0, 0x1000);
        fault.extend([0x7f, 0, 0, 0]);
        let address = 0x7f_0000_1000;
        assert_eq!(points.event(&fault), Some(Event::Fault { address }));
    }
}
