//! What an fnode knows about one peak: what was measured, and where the descent stands.

use darc_record::{Ticks, Touched};

use crate::descent::share::Part;

/// Why a root-cause path ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The function itself (or the system call) takes the time.
    SelfTime,
    /// The function makes no calls.
    NoCalls,
    /// The function itself takes the time, or what it calls at sites that could not be measured.
    PartlyMeasured,
    /// The time is spread: neither the function itself nor anything that it calls has much of it.
    Spread,
    /// The function calls itself, directly or through others: that recursion takes the time, at all of its depths.
    Recursion,
    /// The path is as long as it may become.
    MaxDepth,
    /// The function's calls cannot be measured, and why.
    NotInstrumentable(String),
    /// It does not end yet: ops are still being collected.
    StillDescending,
    /// Next to no ops of the peak come any more, or the function is not called in them.
    TooRare,
}

/// What a decision found to be the cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The function itself: the path ends.
    Itself,
    /// Some of its callees: the path goes on in them.
    Callees,
    /// Both.
    Both,
    /// Neither: the time is spread. The path ends.
    Spread,
}

/// Where an fnode stands in the descent for one peak.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum PathState {
    /// On no root-cause path.
    #[default]
    NotChosen,
    /// Chosen; its calls are not measured yet.
    Waiting,
    /// Chosen; ops are collected for the decision.
    Collecting,
    /// Decided: the ops that were collected tell.
    Decided(Outcome),
    /// Chosen, and the path ends here without a decision of its own.
    Ended(Stop),
}

/// What was measured of an fnode in the ops of one peak: for f0 in all of them, for others in those in which
/// all calls of its parent were measured.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stats {
    /// Ops in which it was called.
    pub ops: u64,
    /// The longest call.
    pub max: Ticks,
    /// All calls together.
    pub sum: Ticks,
    /// How many calls.
    pub count: u64,
}

/// What an fnode knows about one peak.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct PeakRecord {
    /// In how many ops the fnode was a main contributor of its parent: half of the largest one or more.
    pub maxcount: u64,
    /// The least part of an op, in millionths, that the fnode took when it was among the largest contributors of
    /// its parent; `None` when it never was.
    pub least_part: Option<u32>,
    /// In how many ops the fnode itself was a main contributor, against its own callees.
    pub self_maxcount: u64,
    /// Ops that count for the fnode's own decision so far.
    pub decision_ops: u64,
    /// Ops of the peak in which the fnode's callees were measured.
    pub measured_ops: u64,
    /// The fnode's own latency in those ops, all calls together.
    pub measured_time: Ticks,
    /// The bucket of the longest op that was looked at while its own decision was waited for, whether it counts for that or not.
    pub longest_bucket: u32,
    /// The fnode's longest calls in the ops that `decision_ops` counts.
    pub whole: Part,
    /// What the function itself took of them.
    pub own: Part,
    /// The part of `own` that was spent in repeated calls, each of them short, and maybe in measuring these.
    pub loop_time: Ticks,
    /// The part of `own` of which it is known how the thread waited: in ops in which nothing was called twice.
    pub own_seen: Ticks,
    /// The part of that in which it waited for something.
    pub own_blocked: Ticks,
    /// What the fnode took of its parent's, together with all others of the parent's calls that call the same; kept in
    /// the first of these.
    pub part: Part,
    /// Those of the parent's `measured_ops` in which this call was not measured: another batch of the parent's calls was.
    pub missed_ops: u64,
    /// What was measured.
    pub stats: Stats,
    /// Where the descent stands.
    pub state: PathState,
    /// Which batch of the fnode's calls is measured for it.
    pub batch: usize,
    /// The part of `maxcount` that is from earlier batches of the parent's calls.
    pub before: u64,
}

pub(crate) static NO_RECORD: PeakRecord = PeakRecord {
    maxcount: 0,
    self_maxcount: 0,
    least_part: None,
    decision_ops: 0,
    measured_ops: 0,
    measured_time: Ticks(0),
    longest_bucket: 0,
    whole: Part::NOTHING,
    own: Part::NOTHING,
    loop_time: Ticks(0),
    own_seen: Ticks(0),
    own_blocked: Ticks(0),
    part: Part::NOTHING,
    missed_ops: 0,
    stats: Stats {
        ops: 0,
        max: Ticks(0),
        sum: Ticks(0),
        count: 0,
    },
    state: PathState::NotChosen,
    batch: 0,
    before: 0,
};

impl PeakRecord {
    /// Whether it is on a root-cause path.
    pub(crate) fn is_chosen(&self) -> bool {
        self.state != PathState::NotChosen
    }

    /// From how many ops it is known what takes the fnode's time. In others it was not called, or took next to nothing. Files of
    /// earlier versions do not tell these apart.
    pub(crate) fn known_from(&self) -> u64 {
        match self.decision_ops {
            0 => self.measured_ops,
            ops => ops,
        }
    }
}

impl Stats {
    pub(crate) fn add(&mut self, touched: &Touched) {
        self.ops = self.ops.saturating_add(1);
        self.max = self.max.max(touched.max);
        self.sum = self.sum + touched.sum;
        self.count = self.count.saturating_add(touched.count);
    }

    /// The mean latency of one call; zero when there was none.
    #[must_use]
    pub fn mean(&self) -> Ticks {
        Ticks(self.sum.0.checked_div(self.count).unwrap_or(0))
    }
}

impl PathState {
    /// Whether the descent goes on here.
    pub fn is_open(&self) -> bool {
        matches!(self, PathState::Waiting | PathState::Collecting)
    }
}
