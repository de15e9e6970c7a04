//! How long a sample keeps a program from running: measured on the calling thread, which does nothing but read the
//! clock meanwhile, so that the clock jumps whenever the processor was elsewhere.
//!
//! A program pays more where it lives on the processor's caches, as the kernel's own code takes some of them.

use std::time::Duration;

use nix::unistd::gettid;

use super::attributes::{Attributes, Chains};
use super::clock;
use super::collector::Collector;
use super::record::Record;
use super::refusal::Refusal;

/// Samples a second while it is measured: so many that other interrupts are rare among them.
const RATE: u32 = 5_000;
/// For so long, in nanoseconds.
const PERIOD: u64 = 15_000_000;
/// Fewer samples than this say nothing.
const FEWEST: usize = 16;
/// Whoever reads the clock over and over is away when it moves on by more, in nanoseconds.
const AWAY: u64 = 1_000;

/// What a sample takes of the thread's time: the median of some of them. `None` when there were too few.
///
/// # Errors
/// When the kernel refuses the event.
pub fn measure(chains: Chains) -> Result<Option<Duration>, Refusal> {
    let mut collector = Collector::new(Attributes::samples(RATE, chains))?;
    collector.add_thread(gettid().as_raw())?;
    collector.enable();
    let mut away = times_away();
    collector.disable();
    let records = collector.read_rest().records;
    let samples = records
        .iter()
        .filter(|record| matches!(record, Record::Sample(_)))
        .count();
    if samples.min(away.len()) < FEWEST {
        return Ok(None);
    }
    away.sort_unstable();
    Ok(Some(Duration::from_nanos(away[away.len() / 2])))
}

/// For how long the thread did not run, each time, in nanoseconds.
fn times_away() -> Vec<u64> {
    let began = clock::now();
    let mut last = began;
    let mut away = Vec::new();
    while last - began < PERIOD {
        let now = clock::now().max(last);
        if now - last >= AWAY {
            away.push(now - last);
        }
        last = now;
    }
    away
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_takes_some_time() {
        match measure(Chains::Recorded) {
            // A machine may be too busy to let the thread run for long enough.
            Ok(cost) => assert!(cost.is_none_or(|cost| cost.as_nanos() >= AWAY.into())),
            Err(refusal) => eprintln!("not tested: {refusal}"),
        }
    }
}
