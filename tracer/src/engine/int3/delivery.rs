//! When a thread ran into a breakpoint that the tracer noticed later.
//!
//! At the landing pad the thread reads the clock itself, at a call site it cannot: there the moment is
//! estimated, in two ways. The tracer noticed the stop at a known time, so late as it noticed the last
//! landings. And the scheduler knows for how long the thread was on a processor since it went on, which is
//! as much more than what the program did as it was at the last landings; this holds only while the
//! thread kept its processor, but is no worse when the tracer itself had to wait for one. The way that
//! erred less lately is taken, and the other limits what a single stray stop can do.

use darc_record::{Ticks, Tsc};

/// How many landings are looked back at.
const RECENT: usize = 16;

/// What the tracer did when a stop was there to be noticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attention {
    /// It was looking for the next one.
    Awake,
    /// It slept, and had to be woken first.
    Asleep,
}

/// A stop as the tracer noticed it.
#[derive(Clone, Copy, Debug)]
pub struct Noticed {
    /// When.
    pub at: Tsc,
    /// What the tracer did before.
    pub attention: Attention,
}

/// What is known of a thread since it went on after its last stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// When it went on.
    pub departed: Tsc,
    /// For how long it has been on a processor since, its way into and out of the kernel included; `None`
    /// when it was without one in between, or the kernel does not tell.
    pub on_processor: Option<Ticks>,
}

/// The last observations of something that varies.
#[derive(Clone, Copy, Debug)]
struct Recent {
    values: [u64; RECENT],
    seen: usize,
}

impl Recent {
    const fn nothing() -> Recent {
        Recent {
            values: [0; RECENT],
            seen: 0,
        }
    }

    fn observe(&mut self, value: Ticks) {
        self.values[self.seen % RECENT] = value.0;
        self.seen += 1;
    }

    /// Median and spread (half the distance between the quartiles); `None` before the first observation.
    fn usual(&self) -> Option<Usual> {
        let mut values = self.values;
        let values = &mut values[..self.seen.min(RECENT)];
        values.sort_unstable();
        let quartile = |n: usize| values.get(values.len() * n / 4).copied();
        Some(Usual {
            median: Ticks(quartile(2)?),
            spread: Ticks((quartile(3)? - quartile(1)?) / 2),
        })
    }
}

#[derive(Clone, Copy, Debug)]
struct Usual {
    median: Ticks,
    spread: Ticks,
}

/// How much more than its usual spread an estimate may be off before the other one is believed instead.
const STRAY: u64 = 4;

/// The estimate for one thread.
#[derive(Clone, Debug)]
pub struct Delivery {
    awake: Recent,
    asleep: Recent,
    /// Time on a processor beyond what the program itself did.
    beside: Recent,
}

impl Default for Delivery {
    fn default() -> Self {
        Delivery {
            awake: Recent::nothing(),
            asleep: Recent::nothing(),
            beside: Recent::nothing(),
        }
    }
}

impl Delivery {
    /// Learns from a stop at which the thread itself read the clock.
    pub fn observe(&mut self, trapped: Tsc, noticed: Noticed, stretch: Option<Stretch>) {
        let late = noticed.at - trapped;
        match noticed.attention {
            Attention::Awake => self.awake.observe(late),
            Attention::Asleep => self.asleep.observe(late),
        }
        if let Some((stretch, on_processor)) =
            stretch.and_then(|stretch| Some((stretch, stretch.on_processor?)))
        {
            self.beside
                .observe(on_processor.saturating_sub(trapped - stretch.departed));
        }
    }

    /// When a thread trapped that did not read the clock.
    #[must_use]
    pub fn trapped(&self, noticed: Noticed, stretch: Option<Stretch>) -> Tsc {
        let late = match noticed.attention {
            Attention::Awake => self.awake.usual().or(self.asleep.usual()),
            Attention::Asleep => self.asleep.usual().or(self.awake.usual()),
        };
        let late = late.unwrap_or(Usual {
            median: Ticks(0),
            spread: Ticks(0),
        });
        let Some(stretch) = stretch else {
            return back(noticed.at, late.median);
        };
        let by_notice = (noticed.at - stretch.departed).saturating_sub(late.median);
        let ran = match stretch.on_processor.zip(self.beside.usual()) {
            None => by_notice,
            Some((on_processor, beside)) => {
                let by_processor = on_processor.saturating_sub(beside.median);
                if late.spread <= beside.spread {
                    by_notice.min(by_processor + Ticks(STRAY.saturating_mul(beside.spread.0)))
                } else {
                    by_processor.min(by_notice + Ticks(STRAY.saturating_mul(late.spread.0)))
                }
            }
        };
        Tsc(stretch.departed.0.wrapping_add(ran.0)).min(noticed.at)
    }
}

fn back(from: Tsc, ticks: Ticks) -> Tsc {
    Tsc(from.0.saturating_sub(ticks.0))
}

/// After so many landings the error is looked at again.
const JUDGED: usize = 64;

/// How far the estimate was off at the last stops at which the truth was known: the engine's resolution
/// for the time between two stops of one thread.
#[derive(Clone, Debug)]
pub struct Accuracy {
    recent: [u64; JUDGED],
    seen: usize,
    usual: Ticks,
}

impl Default for Accuracy {
    fn default() -> Self {
        Accuracy {
            recent: [0; JUDGED],
            seen: 0,
            usual: Ticks(0),
        }
    }
}

impl Accuracy {
    /// The estimate was `estimated`, the truth is `trapped`.
    pub fn observe(&mut self, estimated: Tsc, trapped: Tsc) {
        self.recent[self.seen % JUDGED] = estimated.0.abs_diff(trapped.0);
        self.seen += 1;
        if self.seen.is_multiple_of(JUDGED) {
            let mut sorted = self.recent;
            sorted.sort_unstable();
            self.usual = Ticks(sorted[JUDGED * 3 / 4]);
        }
    }

    /// What three of four estimates stay below; `None` before there were enough.
    #[must_use]
    pub fn usual(&self) -> Option<Ticks> {
        (self.seen >= JUDGED).then_some(self.usual)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn awake(at: u64) -> Noticed {
        Noticed {
            at: Tsc(at),
            attention: Attention::Awake,
        }
    }

    fn stretch(departed: u64, on_processor: Option<u64>) -> Option<Stretch> {
        Some(Stretch {
            departed: Tsc(departed),
            on_processor: on_processor.map(Ticks),
        })
    }

    /// Landings that were noticed after `late` each, with `beside` more on the processor.
    fn after(late: [u64; 4], beside: [u64; 4]) -> Delivery {
        let mut delivery = Delivery::default();
        for turn in 0..4 {
            for (late, beside) in late.into_iter().zip(beside) {
                let trapped = 10_000 * turn;
                let on_processor = 500 + beside;
                delivery.observe(
                    Tsc(trapped + 500),
                    awake(trapped + 500 + late),
                    stretch(trapped, Some(on_processor)),
                );
            }
        }
        delivery
    }

    #[test]
    fn a_callees_own_time_is_never_taken_for_the_delivery() {
        let delivery = after([10, 11, 12, 13], [100, 300, 200, 400]);
        // 57,500 cycles of work, noticed 12 cycles late.
        let trapped = delivery.trapped(awake(57_512), stretch(0, None));
        assert_eq!(trapped, Tsc(57_500));
    }

    #[test]
    fn sleep_has_a_delivery_of_its_own() {
        let mut delivery = after([10, 10, 10, 10], [100, 300, 200, 400]);
        let asleep = Noticed {
            at: Tsc(9_000),
            attention: Attention::Asleep,
        };
        delivery.observe(Tsc(8_000), asleep, None);
        assert_eq!(delivery.trapped(asleep, None), Tsc(8_000));
        assert_eq!(delivery.trapped(awake(9_000), None), Tsc(8_990));
    }

    #[test]
    fn a_tracer_that_came_late_does_not_make_the_program_slow() {
        let delivery = after([10, 11, 12, 13], [100, 300, 200, 400]);
        // The thread worked for 500 cycles and waited for the tracer for a million.
        let trapped = delivery.trapped(awake(1_000_512), stretch(0, Some(800)));
        assert!(trapped < Tsc(1_500), "{trapped:?}");
    }

    #[test]
    fn the_steadier_estimate_is_taken() {
        let delivery = after([10, 9_000, 20_000, 30_000], [200, 201, 202, 203]);
        let trapped = delivery.trapped(awake(40_000), stretch(0, Some(702)));
        assert_eq!(trapped, Tsc(500));
        // Without an account of the processor there is nothing better.
        let trapped = delivery.trapped(awake(40_000), stretch(0, None));
        assert_eq!(trapped, Tsc(20_000));
    }

    #[test]
    fn a_stop_is_never_before_the_thread_went_on_nor_after_it_was_noticed() {
        let delivery = after([100, 100, 100, 100], [50, 50, 50, 50]);
        assert_eq!(
            delivery.trapped(awake(1_040), stretch(1_000, None)),
            Tsc(1_000)
        );
        let first = Delivery::default();
        assert_eq!(first.trapped(awake(1_040), None), Tsc(1_040));
    }

    #[test]
    fn the_error_is_known_after_some_landings() {
        let mut accuracy = Accuracy::default();
        for n in 0..JUDGED as u64 {
            assert_eq!(accuracy.usual(), None);
            accuracy.observe(Tsc(1_000 + n), Tsc(1_000));
        }
        assert_eq!(accuracy.usual(), Some(Ticks(48)));
    }
}
