//! What a stop costs beyond the tracer's own handling, as it is right now.
//!
//! The cost has two regimes: small when tracer and target share a core, several times that when one
//! has to wake the other on another core. The scheduler changes regimes as it likes and nothing tells
//! which one holds, but the shortest of the recent calls cannot have been shorter than the cost.

use crate::record::Ticks;

/// How many calls are looked back at.
const RECENT: usize = 32;

/// Follows the cost of a stop between its two regimes.
#[derive(Clone, Debug)]
pub struct Delivery {
    same_core: Ticks,
    other_core: Ticks,
    recent: [u64; RECENT],
    next: usize,
    current: Ticks,
}

impl Delivery {
    /// The costs of both regimes, as calibrated.
    #[must_use]
    pub fn between(same_core: Ticks, other_core: Ticks) -> Delivery {
        Delivery {
            same_core,
            other_core: other_core.max(same_core),
            recent: [u64::MAX; RECENT],
            next: 0,
            current: same_core,
        }
    }

    /// The cost now.
    #[must_use]
    pub fn current(&self) -> Ticks {
        self.current
    }

    /// A call took `window` as measured, the cost of one stop included.
    pub fn observe(&mut self, window: Ticks) {
        self.recent[self.next] = window.0;
        self.next = (self.next + 1) % RECENT;
        let shortest = self.recent.iter().copied().min().unwrap_or(0);
        self.current = Ticks(shortest.clamp(self.same_core.0, self.other_core.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_recent_call_tells_the_regime() {
        let mut delivery = Delivery::between(Ticks(10), Ticks(70));
        assert_eq!(delivery.current(), Ticks(10));
        for _ in 0..RECENT {
            delivery.observe(Ticks(75));
        }
        assert_eq!(
            delivery.current(),
            Ticks(70),
            "never more than the dear regime"
        );
        delivery.observe(Ticks(12));
        assert_eq!(delivery.current(), Ticks(12));
        for _ in 0..RECENT {
            delivery.observe(Ticks(5_000));
        }
        assert_eq!(delivery.current(), Ticks(70));
    }
}
