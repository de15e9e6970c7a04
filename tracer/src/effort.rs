//! What measuring takes of the machine, kept below a share of a processor.
//!
//! An analysis that ends soon may take more: there is a credit. One that is over it measures in windows of time only, with
//! rests between them that make up for it.

use std::cell::Cell;
use std::time::{Duration, Instant};

use darc_record::{Op, Ticks, Tsc};
use nix::time::{ClockId, clock_gettime};

use crate::windows::Windows;

/// The share unless another is asked for.
pub const BUDGET: f64 = 0.03;
/// For so long an analysis may spend at once what it could spend in that time: most have ended before that is used up.
const ADVANCE: Duration = Duration::from_secs(60);
/// From this part of the credit on it is read in batches: an analysis that has not ended by then takes its time.
const AT_LEISURE: f64 = 0.06;
/// What is left before another window begins.
const RESERVE: Duration = Duration::from_millis(5);
/// After so long a rest there is another window, whatever was spent: reading takes time in rests, too.
const LONGEST_REST: Duration = Duration::from_secs(60);
/// What calls that pass unmeasured may take of any rest: to put the probes away, and back, costs as much.
const SOME_PASSES: Duration = Duration::from_millis(2);
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
    /// This share of a processor, and what it allows in a minute as the credit.
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

thread_local! {
    /// What others have used for this thread since that was asked for last.
    static OF_OTHERS: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Notes what another thread has used of a processor for this one, so that this one's account has it.
pub(crate) fn note(used: Duration) {
    OF_OTHERS.set(OF_OTHERS.get().saturating_add(used));
}

/// What for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// The thread that reads and decides, and those that stop the target for it.
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
    /// For the calls in them that were measured,
    pub calls: Ticks,
    /// and for those that passed unmeasured.
    pub passes: Ticks,
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

/// How a window ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Closing {
    /// Nobody has told the threads yet.
    Asked,
    /// No op began since then that is measured.
    Since(Tsc),
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
    /// Whether a window ends: ops that are under way are still seen.
    closes: Option<Closing>,
    /// Since when there is a rest.
    rests: Option<Instant>,
    /// What calls that passed unmeasured have taken in it, and what it took to put their probes away.
    passes: Duration,
    putting_away: Duration,
    windows: Windows,
}

impl Pacing {
    /// It is measured from now on, by this thread.
    #[must_use]
    pub fn new(limits: Limits) -> Pacing {
        // What was before is not of this account.
        OF_OTHERS.take();
        let now = crate::tsc();
        Pacing {
            limits,
            began: (Instant::now(), now),
            on: [Duration::ZERO; 3],
            latencies: Duration::ZERO,
            used: of_this_thread(),
            lapsed: Duration::ZERO,
            forgiven: Duration::ZERO,
            closes: None,
            rests: None,
            passes: Duration::ZERO,
            putting_away: Duration::ZERO,
            windows: Windows::new(now),
        }
    }

    /// An op like this is to fit into a window, with all that probes add to it.
    pub fn expect(&mut self, op: &Op) {
        self.windows.expect(op.latency, op.end - op.start);
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
        let passes = time(price.passes);
        if self.is_resting() {
            self.passes += passes;
        }
        self.latencies += time(price.latencies);
        self.add(Purpose::Calls, time(price.calls) + passes);
        self.add(Purpose::Records, records);
    }

    fn add(&mut self, purpose: Purpose, time: Duration) {
        let on = &mut self.on[purpose as usize];
        *on = on.saturating_add(time);
    }

    /// Whether calls that pass unmeasured take more of this rest than it is to make up for.
    #[must_use]
    pub fn are_passes_dear(&self) -> bool {
        let rest = self.rests.map_or(Duration::ZERO, |since| since.elapsed());
        let least = SOME_PASSES.max(2 * self.putting_away);
        self.passes > least.max(rest.mul_f64(self.limits.share))
    }

    /// It took so long to put the probes of calls away. To put them back will take as much.
    pub fn took_to_put_away(&mut self, time: Duration) {
        self.putting_away = time.min(MOST_AT_ONCE);
    }

    /// Whether everything is measured, from now on for ever.
    pub fn stays_open(&mut self) -> bool {
        self.closes = None;
        !self.is_resting()
    }

    /// Spends what this thread has used since the last time, and says how much is to be measured from now on. Before a rest
    /// the ops that are under way are seen to their ends: else the long ones would count for less than they are. When one
    /// ends, [`Pacing::go_on`] is to follow as soon as everything is measured.
    pub fn decide(&mut self) -> Pace {
        self.account();
        if !self.is_resting() {
            self.windows.forget();
        }
        let now = crate::tsc();
        let is_over = self
            .rests
            .is_some_and(|since| since.elapsed() >= LONGEST_REST);
        let pace = match self.windows.is_resting() {
            true if is_over || self.has_left(RESERVE, 1.0) => Pace::InBatches,
            true => Pace::Rest,
            false if self.closes.is_some() => Pace::Rest,
            false if self.windows.may_rest(now) && !self.has_left(Duration::ZERO, 1.0) => {
                Pace::Rest
            }
            false if self.has_left(Duration::ZERO, AT_LEISURE) => Pace::AsRecordsCome,
            false => Pace::InBatches,
        };
        if pace == Pace::Rest && !self.windows.is_resting() {
            // What it says is known when it has been polled once.
            let since = match self.closes {
                None => None,
                Some(Closing::Asked) => Some(now),
                Some(Closing::Since(since)) => Some(since),
            };
            self.closes = Some(since.map_or(Closing::Asked, Closing::Since));
            if since.is_some_and(|since| self.windows.are_seen(since, now)) {
                self.windows.rest(now);
                self.closes = None;
                self.rests = Some(Instant::now());
                self.passes = Duration::ZERO;
            }
        }
        pace
    }

    /// Spends what this thread has used since the last time.
    pub fn account(&mut self) {
        let used = of_this_thread();
        let since = used.saturating_sub(self.used).min(MOST_AT_ONCE);
        self.used = used;
        self.add(Purpose::Reading, since + OF_OTHERS.take());
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

/// The processor's time that this thread has used since it began; zero where the kernel does not tell (clock_gettime(2)).
#[must_use]
pub fn of_this_thread() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credit_is_given_once_and_a_share_for_ever() {
        let limits = Limits::of(0.01);
        let half = Duration::from_millis(300);
        assert_eq!(limits.allowed(Duration::ZERO, 0.5), half);
        let minute = limits.allowed(Duration::from_secs(60), 1.0);
        assert_eq!(minute, Duration::from_millis(1_200));
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
        while !pacing.is_resting() {
            assert_eq!(pacing.decide(), Pace::Rest);
        }
        let after = crate::tsc();
        assert_eq!(pacing.decide(), Pace::Rest);
        assert!(!pacing.have_measured(before, Tsc(after.0 + 1)));
        assert!(pacing.spent().on[Purpose::Records as usize] > Duration::from_secs(100));
        pacing.go_on();
        assert!(!pacing.is_resting());
    }

    #[test]
    fn ops_that_are_under_way_are_seen_to_their_ends() {
        let mut pacing = Pacing::new(Limits::of(0.01));
        pacing.windows = Windows::new(Tsc(0));
        pacing.windows.expect(Ticks(1 << 29), Ticks(0));
        pacing.spend(Price::default(), Duration::from_secs(100));
        assert_eq!(pacing.decide(), Pace::Rest);
        assert!(!pacing.is_resting() && pacing.have_measured(Tsc(1), crate::tsc()));
        while !pacing.is_resting() {
            assert_eq!(pacing.decide(), Pace::Rest);
        }
    }

    #[test]
    fn calls_that_pass_are_dear_when_they_take_more_than_a_rest_saves() {
        let mut pacing = Pacing::new(Limits::of(0.01));
        let passes = |ticks| Price {
            passes: Ticks(ticks),
            ..Price::default()
        };
        // Some seconds, before there is a rest.
        pacing.spend(passes(1 << 34), Duration::from_secs(100));
        while !pacing.is_resting() {
            pacing.decide();
        }
        assert!(!pacing.are_passes_dear());
        pacing.spend(passes(1 << 34), Duration::ZERO);
        assert!(pacing.are_passes_dear());
        assert!(pacing.spent().on[Purpose::Calls as usize] > Duration::from_millis(500));
    }

    #[test]
    fn what_others_use_is_in_the_account() {
        let half = Duration::from_millis(500);
        note(half);
        let mut pacing = Pacing::new(Limits::of(0.01));
        note(half);
        pacing.account();
        pacing.account();
        let reading = pacing.spent().on[Purpose::Reading as usize];
        assert!(reading >= half && reading < 2 * half, "{reading:?}");
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
        assert!(left(590) && !left(610));
    }
}
