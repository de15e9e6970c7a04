//! The times in which the kernel recorded, when it does not always. Pure.

use std::collections::VecDeque;

use darc_record::{Ticks, Tsc};

/// The shortest time of recording: some tens of milliseconds. To begin and to end takes a moment, too.
const SHORTEST: u64 = 1 << 27;
/// The longest op is to fit so often.
const OPS: u64 = 4;
/// Where ops are longer than this, recording does not end: a second is no time for them.
const LONGEST_OP: u64 = 1 << 29;
/// With what probes add to them ops are waited for that are longer: some seconds, but not without end.
const LONGEST_MEASURED: u64 = 1 << 32;
/// At each look so much less is expected: half of it after some seconds.
const FORGOTTEN: u64 = 512;
/// Times that are remembered.
const KEPT: usize = 64;

/// Times of recording.
#[derive(Debug)]
pub struct Windows {
    began: Tsc,
    /// Start and end of those that have ended; the newest last.
    ended: VecDeque<(Tsc, Tsc)>,
    /// Since when it is recorded.
    open: Option<Tsc>,
    longest: Ticks,
    /// The same with what probes add.
    measured: Ticks,
    rested: Ticks,
}

impl Windows {
    /// From now on it is recorded.
    #[must_use]
    pub fn new(now: Tsc) -> Windows {
        Windows {
            began: now,
            ended: VecDeque::new(),
            open: Some(now),
            longest: Ticks(0),
            measured: Ticks(0),
            rested: Ticks(0),
        }
    }

    /// There are ops of this length, which take so long while they are measured.
    pub fn expect(&mut self, latency: Ticks, measured: Ticks) {
        self.longest = self.longest.max(latency);
        self.measured = self.measured.max(measured);
    }

    /// What has to fit into a window.
    fn longest_to_fit(&self) -> u64 {
        let measured = self.measured.0.min(LONGEST_MEASURED);
        self.longest.0.min(LONGEST_OP).max(measured)
    }

    /// Some time has passed without: one long op says little of those that follow.
    pub fn forget(&mut self) {
        for longest in [&mut self.longest, &mut self.measured] {
            longest.0 -= longest.0 / FORGOTTEN;
        }
    }

    /// Whether nothing is recorded.
    #[must_use]
    pub fn is_resting(&self) -> bool {
        self.open.is_none()
    }

    /// Whether it has been recorded for long enough.
    #[must_use]
    pub fn may_rest(&self, now: Tsc) -> bool {
        let least = SHORTEST.max(OPS * self.longest_to_fit());
        let recorded = self.open.map_or(0, |since| now.0.saturating_sub(since.0));
        self.longest.0 <= LONGEST_OP && recorded >= least
    }

    /// Whether ops that had begun by then have ended by now.
    #[must_use]
    pub fn are_seen(&self, began: Tsc, now: Tsc) -> bool {
        now.0.saturating_sub(began.0) >= self.longest_to_fit()
    }

    /// Nothing more is recorded.
    pub fn rest(&mut self, now: Tsc) {
        if let Some(since) = self.open.take() {
            if self.ended.len() >= KEPT {
                self.ended.pop_front();
            }
            self.ended.push_back((since, now));
        }
    }

    /// It is recorded again.
    pub fn go_on(&mut self, now: Tsc) {
        self.rested.0 += self.since_rest(now);
        self.open = Some(now);
    }

    fn since_rest(&self, now: Tsc) -> u64 {
        let last = self.ended.back().filter(|_| self.is_resting());
        last.map_or(0, |&(_, end)| now.0.saturating_sub(end.0))
    }

    /// Whether it was recorded all the time.
    #[must_use]
    pub fn have(&self, from: Tsc, to: Tsc) -> bool {
        let within = |&(start, end): &(Tsc, Tsc)| start <= from && to <= end;
        self.open.is_some_and(|start| start <= from) || self.ended.iter().any(within)
    }

    /// For which part of the time nothing was recorded.
    #[must_use]
    pub fn rested(&self, now: Tsc) -> f64 {
        let all = now.0.saturating_sub(self.began.0).max(1);
        (self.rested.0 + self.since_rest(now)) as f64 / all as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: u64 = SHORTEST;

    #[test]
    fn what_reaches_into_a_rest_was_not_seen() {
        let mut windows = Windows::new(Tsc(10));
        assert!(windows.have(Tsc(10), Tsc(u64::MAX)) && !windows.have(Tsc(9), Tsc(12)));
        windows.rest(Tsc(100));
        windows.go_on(Tsc(200));
        assert!(windows.have(Tsc(20), Tsc(100)) && windows.have(Tsc(200), Tsc(300)));
        for (from, to) in [(20, 101), (120, 150), (150, 250), (20, 250)] {
            assert!(!windows.have(Tsc(from), Tsc(to)), "{from} to {to}");
        }
    }

    #[test]
    fn the_longest_op_fits_some_times() {
        let mut windows = Windows::new(Tsc(0));
        assert!(!windows.may_rest(Tsc(FIRST - 1)));
        assert!(windows.may_rest(Tsc(FIRST)));
        windows.expect(Ticks(FIRST), Ticks(0));
        assert!(!windows.may_rest(Tsc(4 * FIRST - 1)));
        assert!(windows.may_rest(Tsc(4 * FIRST)));
        windows.expect(Ticks(LONGEST_OP + 1), Ticks(0));
        assert!(!windows.may_rest(Tsc(u64::MAX)));
        windows.forget();
        assert!(windows.may_rest(Tsc(u64::MAX)));
    }

    #[test]
    fn what_has_begun_is_seen_to_its_end() {
        let mut windows = Windows::new(Tsc(0));
        assert!(windows.are_seen(Tsc(10), Tsc(10)));
        windows.expect(Ticks(100), Ticks(0));
        assert!(!windows.are_seen(Tsc(10), Tsc(109)));
        assert!(windows.are_seen(Tsc(10), Tsc(110)));
        windows.expect(Ticks(u64::MAX), Ticks(0));
        assert!(windows.are_seen(Tsc(0), Tsc(LONGEST_OP)));
        // Probes that make ops long do not have them measured for ever.
        let mut windows = Windows::new(Tsc(0));
        windows.expect(Ticks(100), Ticks(u64::MAX));
        assert!(!windows.may_rest(Tsc(OPS * LONGEST_MEASURED - 1)));
        assert!(windows.may_rest(Tsc(OPS * LONGEST_MEASURED)));
    }

    #[test]
    fn rests_are_added_up() {
        let mut windows = Windows::new(Tsc(0));
        assert_eq!(windows.rested(Tsc(100)), 0.0);
        windows.rest(Tsc(100));
        assert!(windows.is_resting() && windows.rested(Tsc(200)) == 0.5);
        windows.go_on(Tsc(200));
        assert_eq!(windows.rested(Tsc(400)), 0.25);
    }
}
