//! What measuring takes of the machine, kept below a share of a processor.
//!
//! An analysis that ends soon may take more: there is a credit. One that is over it measures in windows of time only, with
//! rests between them that make up for it.

use std::time::{Duration, Instant};

use darc_record::{Ticks, Tsc};
use nix::time::{ClockId, clock_gettime};

use crate::windows::Windows;

/// The share unless another is asked for.
pub const BUDGET: f64 = 0.03;
/// For so long an analysis may spend at once what it could spend in that time: most have ended before that is used up.
const ADVANCE: Duration = Duration::from_secs(30);
/// From this part of the credit on it is read in batches: an analysis that has not ended by then takes its time.
const AT_LEISURE: f64 = 0.12;
/// What is left before another window begins.
const RESERVE: Duration = Duration::from_millis(5);
/// After so long a rest there is another window, whatever was spent: reading takes time in rests, too.
const LONGEST_REST: Duration = Duration::from_secs(60);
/// More at once of this thread's time is no measuring: a file's names, for instance.
const MOST_AT_ONCE: Duration = Duration::from_millis(10);
/// More at once is not to be believed: the target may write any number.
const MOST_SECONDS: f64 = 1.0;

/// How much may be spent.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Limits {
    /// Of one processor's time, in the long run: 0.01 is a hundredth.
    share: f64,
    /// Beside that, once.
    credit: Duration,
}

impl Limits {
    /// This share of a processor, and what it allows in half a minute as the credit.
    #[must_use]
    pub fn of(share: f64) -> Limits {
        Limits {
            share,
            credit: ADVANCE.mul_f64(share),
        }
    }

    /// What may have been spent some time after the beginning, with this part of the credit.
    fn allowed(self, after: Duration, part: f64) -> Duration {
        self.credit.mul_f64(part) + after.mul_f64(self.share)
    }
}

/// What for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// The thread that reads and decides.
    Reading,
    /// Calls that stubs measure, in the target.
    Calls,
    /// Records that the kernel makes, in whoever it makes them of.
    Records,
}

/// What stubs took of the target, about.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Price {
    /// For the latencies of ops, which are measured in rests as well.
    pub latencies: Ticks,
    /// For the calls in them.
    pub calls: Ticks,
}

/// What was spent.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Spent {
    /// For each [`Purpose`], in their order.
    pub on: [Duration; 3],
    /// For the latencies of ops, which no budget cuts.
    pub latencies: Duration,
    /// For how long it has been measured,
    pub elapsed: Duration,
    /// and rested of that.
    pub rested: Duration,
}

impl Spent {
    /// What the budget limits.
    fn all(&self) -> Duration {
        self.on.iter().sum()
    }

    /// Adds what was spent in another process.
    pub fn add(&mut self, other: &Spent) {
        for (own, more) in self.on.iter_mut().zip(other.on) {
            *own += more;
        }
        self.latencies += other.latencies;
        self.elapsed += other.elapsed;
        self.rested += other.rested;
    }
}

/// How much is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pace {
    /// Everything, and it is read as it comes.
    AsRecordsCome,
    /// Everything, and it is read in batches.
    InBatches,
    /// Calls of the ops that begin from now on pass unmeasured, and the kernel records nothing.
    Rest,
}

/// The account of one analysis, and when it measures.
#[derive(Debug)]
pub struct Pacing {
    limits: Limits,
    began: (Instant, Tsc),
    on: [Duration; 3],
    latencies: Duration,
    /// What this thread had used when that was added last.
    used: Duration,
    /// What was not spent in time, beyond the credit, and what was spent beyond what another credit makes up for.
    lapsed: Duration,
    forgiven: Duration,
    /// Since when there is a rest.
    rests: Option<Instant>,
    windows: Windows,
}

impl Pacing {
    /// It is measured from now on, by this thread.
    #[must_use]
    pub fn new(limits: Limits) -> Pacing {
        let now = crate::tsc();
        Pacing {
            limits,
            began: (Instant::now(), now),
            on: [Duration::ZERO; 3],
            latencies: Duration::ZERO,
            used: of_this_thread(),
            lapsed: Duration::ZERO,
            forgiven: Duration::ZERO,
            rests: None,
            windows: Windows::new(now),
        }
    }

    /// An op of this length is to fit into a window.
    pub fn expect(&mut self, latency: Ticks) {
        self.windows.expect(latency);
    }

    /// Whether it was measured all of this time.
    #[must_use]
    pub fn have_measured(&self, from: Tsc, to: Tsc) -> bool {
        self.windows.have(from, to)
    }

    /// Whether there is a rest.
    #[must_use]
    pub fn is_resting(&self) -> bool {
        self.windows.is_resting()
    }

    /// What was spent.
    #[must_use]
    pub fn spent(&self) -> Spent {
        let elapsed = self.began.0.elapsed();
        Spent {
            on: self.on,
            latencies: self.latencies,
            elapsed,
            rested: elapsed.mul_f64(self.windows.rested(crate::tsc())),
        }
    }

    /// Spends what calls took of the target and records of the machine.
    pub fn spend(&mut self, price: Price, records: Duration) {
        let cycles = crate::tsc().0.saturating_sub(self.began.1.0).max(1);
        let rate = cycles as f64 / self.began.0.elapsed().as_secs_f64();
        let time =
            |ticks: Ticks| Duration::from_secs_f64((ticks.0 as f64 / rate).min(MOST_SECONDS));
        self.latencies += time(price.latencies);
        self.add(Purpose::Calls, time(price.calls));
        self.add(Purpose::Records, records);
    }

    fn add(&mut self, purpose: Purpose, time: Duration) {
        let on = &mut self.on[purpose as usize];
        *on = on.saturating_add(time);
    }

    /// Spends what this thread has used since the last time, and says how much is to be measured from now on. A rest begins
    /// at once; when one ends, [`Pacing::go_on`] is to follow as soon as everything is measured.
    pub fn decide(&mut self) -> Pace {
        self.account();
        self.windows.forget();
        let now = crate::tsc();
        let is_over = self
            .rests
            .is_some_and(|since| since.elapsed() >= LONGEST_REST);
        let pace = match self.windows.is_resting() {
            true if is_over || self.has_left(RESERVE, 1.0) => Pace::InBatches,
            true => Pace::Rest,
            false if self.windows.may_rest(now) && !self.has_left(Duration::ZERO, 1.0) => {
                Pace::Rest
            }
            false if self.has_left(Duration::ZERO, AT_LEISURE) => Pace::AsRecordsCome,
            false => Pace::InBatches,
        };
        if pace == Pace::Rest {
            self.windows.rest(now);
            self.rests.get_or_insert_with(Instant::now);
        }
        pace
    }

    /// Spends what this thread has used since the last time.
    pub fn account(&mut self) {
        let used = of_this_thread();
        let since = used.saturating_sub(self.used).min(MOST_AT_ONCE);
        self.used = used;
        self.add(Purpose::Reading, since);
        // Neither a quiet day nor one long op is paid for much later.
        let allowed = self.limits.allowed(self.began.0.elapsed(), 1.0) + self.forgiven;
        let spent = self.spent().all() + self.lapsed;
        let credit = self.limits.credit;
        self.lapsed += allowed.saturating_sub(spent).saturating_sub(credit);
        self.forgiven += spent.saturating_sub(allowed).saturating_sub(credit);
    }

    /// Everything is measured again.
    pub fn go_on(&mut self) {
        self.rests = None;
        self.windows.go_on(crate::tsc());
    }

    fn has_left(&self, more: Duration, part: f64) -> bool {
        let allowed = self.limits.allowed(self.began.0.elapsed(), part) + self.forgiven;
        self.spent().all() + self.lapsed + more <= allowed
    }
}

/// The processor's time that this thread has used.
fn of_this_thread() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credit_is_given_once_and_a_share_for_ever() {
        let limits = Limits::of(0.01);
        let half = Duration::from_millis(150);
        assert_eq!(limits.allowed(Duration::ZERO, 0.5), half);
        let minute = limits.allowed(Duration::from_secs(60), 1.0);
        assert_eq!(minute, Duration::from_millis(900));
    }

    #[test]
    fn who_is_over_the_limit_rests_when_a_window_is_over() {
        let mut pacing = Pacing::new(Limits::of(0.01));
        assert_eq!(pacing.decide(), Pace::AsRecordsCome);
        pacing.spend(Price::default(), Duration::from_millis(200));
        assert_eq!(pacing.decide(), Pace::InBatches);
        pacing.spend(Price::default(), Duration::from_secs(100));
        let before = crate::tsc();
        while pacing.decide() != Pace::Rest {}
        let after = crate::tsc();
        assert!(pacing.is_resting() && pacing.decide() == Pace::Rest);
        assert!(!pacing.have_measured(before, Tsc(after.0 + 1)));
        assert!(pacing.spent().on[Purpose::Records as usize] > Duration::from_secs(100));
        pacing.go_on();
        assert!(!pacing.is_resting());
    }

    #[test]
    fn a_debt_is_no_larger_than_the_credit() {
        let mut pacing = Pacing::new(Limits::of(0.01));
        pacing.spend(Price::default(), Duration::from_secs(100));
        pacing.account();
        let owed = pacing.spent().all() + pacing.lapsed - pacing.forgiven;
        let allowed = pacing.limits.allowed(pacing.began.0.elapsed(), 1.0);
        assert!(owed <= allowed + pacing.limits.credit);
        // A long time without anything, which then counts for no more than the credit.
        pacing.began.0 -= Duration::from_secs(100_000);
        pacing.account();
        let left = |more| pacing.has_left(Duration::from_millis(more), 1.0);
        assert!(left(290) && !left(310));
    }
}
