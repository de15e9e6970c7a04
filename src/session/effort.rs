//! What measuring has taken of the machine, for people, and what was left out because of that.

use darc_report::model::Effort;
use darc_report::words::percent;
use darc_tracer::effort::Spent;

/// Rests that are worth a word: a hundredth of the time.
const FEW: f64 = 0.01;

/// What it took; none where nobody kept an account.
#[must_use]
pub fn taken(spent: &Spent, budget: f64) -> Option<Effort> {
    let [reading, calls, records] = spent.on.map(|time| time.as_secs_f64());
    (!spent.elapsed.is_zero()).then_some(Effort {
        budget,
        elapsed: spent.elapsed.as_secs_f64(),
        reading,
        calls,
        latencies: spent.latencies.as_secs_f64(),
        records,
        rested: spent.rested.as_secs_f64(),
    })
}

/// What was left out in one process, where that is worth a word.
#[must_use]
pub fn caveat(spent: &Spent, budget: f64) -> Option<String> {
    let measured = 1.0 - spent.rested.as_secs_f64() / spent.elapsed.as_secs_f64().max(1e-9);
    (measured < 1.0 - FEW).then(|| {
        format!(
            "more than latencies was measured during {} of the time, to take no more than {} of a processor in the long run (--budget); ops of the rest count in the profile and decide nothing",
            percent(measured.max(0.0)),
            percent(budget)
        )
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_left_out_is_said() {
        let mut spent = Spent::default();
        assert_eq!(taken(&spent, 0.01), None);
        spent.elapsed = Duration::from_secs(10);
        assert_eq!(caveat(&spent, 0.01), None);
        spent.rested = Duration::from_secs(4);
        let caveat = caveat(&spent, 0.01).unwrap();
        let begins = "more than latencies was measured during 60.0% of the time, to take no more than 1.0% of";
        assert!(caveat.starts_with(begins), "{caveat}");
    }
}
