//! Samples, counted by process instance and stack. Pure, and bounded: after so many different stacks only the
//! innermost instruction of a new one is kept.

use std::collections::HashMap;

use super::processes::InstanceId;

/// A file with code, numbered in the order of first samples.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ObjectId(pub usize);

/// Where an instruction is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Spot {
    /// In a file.
    Code {
        /// The file.
        object: ObjectId,
        /// Offset in the file, bytes; in memory without a file the address.
        offset: u64,
    },
    /// In the kernel, by address.
    Kernel(u64),
    /// Where nothing is known to be mapped.
    Nowhere(u64),
}

/// Different stacks that are kept.
const MOST_STACKS: usize = 100_000;

/// The counts of a recording.
#[derive(Debug, Default)]
pub struct Counts {
    counts: HashMap<(InstanceId, Box<[Spot]>), u64>,
    /// Samples whose stack was cut to its innermost instruction.
    cut: u64,
}

impl Counts {
    /// Counts samples; `stack` has the innermost instruction first and is not empty.
    pub fn add(&mut self, instance: InstanceId, stack: &[Spot], samples: u64) {
        let key = (instance, Box::from(stack));
        if let Some(count) = self.counts.get_mut(&key) {
            *count += samples;
            return;
        }
        let kept = match self.counts.len() < MOST_STACKS || stack.len() <= 1 {
            true => key,
            false => {
                self.cut += samples;
                (instance, Box::from(&stack[..1]))
            }
        };
        *self.counts.entry(kept).or_default() += samples;
    }

    /// So many samples come with a stack that was cut before.
    pub fn were_cut(&mut self, samples: u64) {
        self.cut += samples;
    }

    /// Every stack with its count, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (InstanceId, &[Spot], u64)> {
        self.counts
            .iter()
            .map(|((instance, stack), &count)| (*instance, stack.as_ref(), count))
    }

    /// Samples whose stack was cut to its innermost instruction.
    #[must_use]
    pub fn cut(&self) -> u64 {
        self.cut
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_when_there_are_too_many_stacks() {
        let mut counts = Counts::default();
        let total = MOST_STACKS as u64 + 10;
        for caller in 0..total {
            counts.add(InstanceId(0), &[Spot::Kernel(1), Spot::Nowhere(caller)], 1);
        }
        assert_eq!(counts.cut(), 10);
        assert_eq!(counts.iter().map(|(_, _, count)| count).sum::<u64>(), total);
        assert_eq!(counts.iter().count(), MOST_STACKS + 1);
    }
}
