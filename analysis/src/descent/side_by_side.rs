//! Ops of many threads, or lives of futures, at the same time: the short ones end first, and what they do need not be what the long ones do.

use darc_record::{Op, Ticks, Tsc};

use super::Analysis;

/// What long ops do is known when so many of them could have followed one another.
const SEEN_WELL: u64 = 4;
/// Long ops are those beyond which this part of a peak's time is: a tenth,
const BEYOND: u64 = 10;
/// if they are more than so many.
const FEW: u64 = 5;

/// For how long ops could be seen to end.
#[derive(Clone, Default, Debug)]
pub(crate) struct SideBySide {
    /// The thread of the first op in this process, and when that began.
    first: Option<(i32, Tsc)>,
    /// When the last one ended.
    last: Tsc,
    /// The same of earlier processes.
    before: Ticks,
    /// Whether there are ops of several threads, or some that overlap.
    is_so: bool,
    /// When probes were changed last: nothing is known of the ops that were under way.
    undisturbed_since: Tsc,
    /// Whether an op decided nothing since longer ones may not have had the time to end.
    too_soon: bool,
}

impl SideBySide {
    fn ran(&mut self, op: &Op) {
        let (tid, first) = self.first.get_or_insert((op.tid, op.start));
        *first = (*first).min(op.start);
        // Lives of futures overlap on one thread, too.
        self.is_so |= *tid != op.tid || op.start < self.last;
        self.last = self.last.max(op.end);
    }

    /// In how long ops were seen to end.
    pub(super) fn measured(&self) -> Ticks {
        let now = self.first.map_or(Ticks(0), |(_, first)| self.last - first);
        Ticks(self.before.0.saturating_add(now.0))
    }

    pub(super) fn next_process(&mut self) {
        self.before = self.measured();
        (self.first, self.last) = (None, Tsc(0));
    }

    /// For how long before an op's end everything that was measured since then could be seen, by that end.
    pub(super) fn undisturbed(&self, op: &Op, since: Tsc) -> Ticks {
        op.end - since.max(self.undisturbed_since)
    }
}

impl Analysis {
    /// Notes whose op that is, of any that is counted.
    pub fn ran_beside(&mut self, op: &Op) {
        self.side_by_side.ran(op);
    }

    /// The probes were changed: nothing is known of the ops that were under way.
    pub fn probes_changed(&mut self, now: Tsc) {
        self.side_by_side.undisturbed_since = now;
    }

    /// Whether ops were left out of decisions because longer ones of other threads may not have had the time to end, and
    /// something is undecided.
    #[must_use]
    pub fn ended_too_soon(&self) -> bool {
        self.side_by_side.too_soon && !self.is_finished()
    }

    /// The latency up to which ops must have had the time to end before one of this peak decides; nothing where even that would
    /// be too soon.
    pub(super) fn reach_of(&mut self, peak: u32) -> Option<Ticks> {
        if !self.side_by_side.is_so {
            return Some(Ticks(0));
        }
        let reach = self.long(peak);
        self.side_by_side.too_soon = self.side_by_side.measured().0 / SEEN_WELL < reach.0;
        (!self.side_by_side.too_soon).then_some(reach)
    }

    /// The latency that a peak's long ops exceed.
    fn long(&self, peak: u32) -> Ticks {
        let peak = &self.peaks[peak as usize - 1].peak;
        let range = peak.first_bucket..=peak.last_bucket;
        let all = self.profile.range(*range.start(), *range.end()).total.0;
        let (mut ops, mut time) = (0_u64, 0_u64);
        let bucket = range.rev().find(|&bucket| {
            let content = self.profile.bucket(bucket);
            ops = ops.saturating_add(content.ops);
            time = time.saturating_add(content.total.0);
            time > all / BEYOND && ops > FEW
        });
        let bounds = bucket.and_then(|bucket| self.profile.resolution().bounds(bucket));
        bounds.map_or(Ticks(0), |(first, _)| first)
    }
}
