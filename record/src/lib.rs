//! What an engine measured: the one record type that flows from either engine into the analysis,
//! and the ids that plans and analyses share.
//!
//! Pure data without dependencies. Durations are [`Ticks`]; points on the time line are [`Tsc`]; the two do not mix.

mod units;

use std::ops::{Add, Sub};

pub use units::{Hz, Nanos};

/// A duration in cycles of the time stamp counter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Ticks(pub u64);

/// A reading of the time stamp counter (cycles since an arbitrary origin, the same on all CPUs).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Tsc(pub u64);

impl Ticks {
    /// The difference, or zero where `other` is the larger.
    #[must_use]
    pub fn saturating_sub(self, other: Ticks) -> Ticks {
        Ticks(self.0.saturating_sub(other.0))
    }
}

impl Add for Ticks {
    type Output = Ticks;
    fn add(self, other: Ticks) -> Ticks {
        Ticks(self.0.saturating_add(other.0))
    }
}

impl Sub for Tsc {
    type Output = Ticks;
    /// Time from `earlier` to `self`; zero where clocks of two CPUs disagree by a few cycles.
    fn sub(self, earlier: Tsc) -> Ticks {
        Ticks(self.0.saturating_sub(earlier.0))
    }
}

/// Identifies one fnode: a call site in the context of its call path.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FnodeId(pub u32);

impl FnodeId {
    /// The fnode of f0 itself, the root of the ftree. Zero is never an fnode ("outside the ftree").
    pub const ROOT: FnodeId = FnodeId(1);
}

/// Identifies one call site of an instrumented function, whatever the path that leads to it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SiteId(pub u32);

/// What one fnode did within one op.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Touched {
    /// Which fnode.
    pub fnode: FnodeId,
    /// The longest single call, the probes' own cost taken out.
    pub max: Ticks,
    /// When that longest call began.
    pub max_start: Tsc,
    /// All its calls together.
    pub sum: Ticks,
    /// How many calls.
    pub count: u64,
    /// Those of them together that took [`Touched::LONG`] or more.
    pub long: Ticks,
}

impl Touched {
    /// A call that takes so much is long beside those of a loop over short ones: some microsecond.
    pub const LONG: Ticks = Ticks(1 << 11);
}

/// What a function was called with.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Arguments {
    /// The integer argument registers at its entry: rdi, rsi, rdx, rcx, r8, r9 (System V ABI for AMD64, 3.2.3).
    /// What a function does not take is whatever was left there.
    pub registers: [u64; 6],
    /// The word at the end of the [`Chain`] that the plan has for the function; `None` where one
    /// of the addresses cannot be read. Means nothing when there is no chain.
    pub read: Option<u64>,
    /// What the plan's [`Field`] held when the call began, and what [`Second`] says. Means nothing when there is none; of a goroutine
    /// the thread that the call began on, zero where that is not known, and how often it went on after it had not run.
    pub field: (u32, u32),
}

/// A part of what an argument of f0 points to, which f0's own code reads before it does anything else.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Field {
    /// Index of the register in [`Arguments::registers`].
    pub argument: usize,
    /// Where it is, from where the argument points to, in bytes.
    pub offset: i32,
    /// Its bytes: 1, 2 or 4.
    pub size: u8,
    /// What is noted beside it.
    pub second: Second,
}

impl Field {
    /// In the place of [`Second::Head`]: within the call f0 was called again, of which nothing else is told.
    pub const NESTED: u32 = u32::MAX;
}

/// What is noted of a call beside what a [`Field`] holds as it begins.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Second {
    /// What the field holds when the call ends: nobody else changes it, or takes it away, until then.
    AtEnd,
    /// The first four bytes of what the argument points to, when the call begins. Nothing is read at its end, when that may be
    /// anybody's. Calls within the call are told of ([`Field::NESTED`]), but those with the same argument while the field holds an
    /// even number above this one: they go on with the same.
    Head {
        /// That number.
        new: u16,
    },
}

impl From<[u64; 6]> for Arguments {
    fn from(registers: [u64; 6]) -> Arguments {
        Arguments {
            registers,
            read: None,
            field: (0, 0),
        }
    }
}

/// A chain is no longer than this.
pub const MOST_READS: usize = 8;

/// A word of the target's memory that is read when a function is entered: from an argument register on, each
/// address is the word read before plus an offset.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Chain {
    /// Index of the register in [`Arguments::registers`].
    pub argument: usize,
    /// What is added before each read, in bytes; at least one and at most [`MOST_READS`].
    pub offsets: Vec<i32>,
}

impl Chain {
    /// The word at its end, with a way to read the word at an address of the target; `None` when one of the addresses cannot be read.
    pub fn read(&self, arguments: &Arguments, word: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let begin = *arguments.registers.get(self.argument)?;
        self.offsets.iter().try_fold(begin, |at, &offset| {
            word(at.wrapping_add_signed(offset.into()))
        })
    }
}

/// A call of the function by which an op hands a request to another thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Enqueued {
    /// The thread that called it, as in [`Op::tid`].
    pub tid: i32,
    /// When.
    pub at: Tsc,
    /// The fnode that was current then.
    pub fnode: FnodeId,
    /// What it was called with.
    pub arguments: Arguments,
}

/// One outermost completed call of f0 on one thread, entry to return.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Op {
    /// The thread's id, as the kernel numbers it in the target's pid namespace.
    pub tid: i32,
    /// When f0 was entered.
    pub start: Tsc,
    /// When f0 returned.
    pub end: Tsc,
    /// Entry to return with the probes' own cost taken out (so at most `end - start`).
    pub latency: Ticks,
    /// What f0 was called with.
    pub arguments: Arguments,
    /// The fnodes below the root that were called, each once, in no particular order.
    pub touched: Vec<Touched>,
}
