//! Profiles of a process's system calls, put together from what the kernel's tracepoints say.

use std::collections::BTreeMap;

use darc_analysis::profile::histogram::Profile;
use darc_analysis::{Hz, Resolution, Ticks, Tsc};
use darc_report::assemble;
use darc_report::model::{Function, Target};
use darc_report::profiles::{self, FunctionProfile, ProfileSet, Segment, SegmentProfile, Source};
use darc_tracer::system_calls::Taken;

/// What one system call did, by whatever thread.
#[derive(Clone, Debug)]
struct Counted {
    begun: u64,
    lost: u64,
    max: Ticks,
    profile: Profile,
    /// The time inside until the end of the last segment, calls in progress included.
    busy: Ticks,
    segments: Vec<SegmentProfile>,
    /// What had been counted when the segment began.
    before: (u64, Profile),
}

/// The profiles so far.
#[derive(Clone, Debug)]
pub struct SyscallProfiles {
    resolution: Resolution,
    calls: BTreeMap<u32, Counted>,
    began: Tsc,
    segments: Vec<Segment>,
    losses: u64,
    /// What the person should know.
    pub warnings: Vec<String>,
}

impl SyscallProfiles {
    /// Nothing yet.
    #[must_use]
    pub fn new(resolution: Resolution, began: Tsc) -> SyscallProfiles {
        SyscallProfiles {
            resolution,
            calls: BTreeMap::new(),
            began,
            segments: Vec::new(),
            losses: 0,
            warnings: Vec::new(),
        }
    }

    fn of(&mut self, number: u32) -> &mut Counted {
        let resolution = self.resolution;
        self.calls.entry(number).or_insert_with(|| Counted {
            begun: 0,
            lost: 0,
            max: Ticks(0),
            profile: Profile::new(resolution),
            busy: Ticks(0),
            segments: Vec::new(),
            before: (0, Profile::new(resolution)),
        })
    }

    /// Adds what happened.
    pub fn add(&mut self, taken: &Taken) {
        for &number in &taken.begun {
            self.of(number).begun += 1;
        }
        for call in &taken.calls {
            let counted = self.of(call.number);
            counted.profile.add(call.latency);
            counted.max = counted.max.max(call.latency);
        }
        for &number in &taken.lost {
            self.of(number).lost += 1;
        }
        self.losses += taken.losses;
    }

    /// Ends a segment; `open` are the calls in progress.
    pub fn end_segment(&mut self, now: Tsc, open: &[(u32, Tsc)]) {
        let start = self
            .segments
            .last()
            .map_or(0, |last| last.start + last.length);
        let length = (now - self.began).0.saturating_sub(start);
        let number = self.segments.len() as u64;
        for (&call, counted) in &mut self.calls {
            let busy = busy(call, counted, now, open);
            let (begun, profile) = &counted.before;
            let new = counted.profile.since(profile);
            let calls = counted.begun - begun;
            let inside = busy.saturating_sub(counted.busy);
            if calls > 0 || inside > Ticks(0) {
                counted.segments.push(SegmentProfile {
                    segment: number,
                    calls,
                    concurrency: inside.0 as f64 / length.max(1) as f64,
                    buckets: assemble::profile(&new).buckets,
                });
            }
            counted.busy = busy;
            counted.before = (counted.begun, counted.profile.clone());
        }
        self.segments.push(Segment { start, length });
    }

    /// Whether there are segments.
    #[must_use]
    pub fn is_divided(&self) -> bool {
        !self.segments.is_empty()
    }

    /// Whether a call began.
    #[must_use]
    pub fn saw_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    /// The set of profiles; `open` are the calls in progress at its end.
    #[must_use]
    pub fn set(&self, now: Tsc, open: &[(u32, Tsc)], target: Target, hz: Hz) -> ProfileSet {
        let length = (now - self.began).0;
        let entry = |(&number, counted): (&u32, &Counted)| FunctionProfile {
            function: Function {
                name: name(number),
                ..Function::default()
            },
            calls: counted.begun,
            unfinished: (counted.begun - counted.lost).saturating_sub(counted.profile.count()),
            ended_otherwise: counted.lost,
            missed: 0,
            max: counted.max.0,
            concurrency: busy(number, counted, now, open).0 as f64 / length.max(1) as f64,
            peaks: profiles::assemble::peaks(&counted.profile),
            profile: assemble::profile(&counted.profile),
            segments: counted.segments.clone(),
        };
        let mut all: Vec<FunctionProfile> = self.calls.iter().map(entry).collect();
        all.sort_by_key(|entry| std::cmp::Reverse((entry.profile.total, entry.calls)));
        let mut warnings = self.warnings.clone();
        if self.losses > 0 {
            warnings.push(format!(
                "the kernel's buffer overflowed {} times: calls of that time are not among the profiles",
                self.losses
            ));
        }
        ProfileSet {
            profiles: all,
            segments: self.segments.clone(),
            warnings,
            ..ProfileSet::empty(Source::SystemCalls, target, hz, self.resolution, length)
        }
    }
}

fn busy(number: u32, counted: &Counted, now: Tsc, open: &[(u32, Tsc)]) -> Ticks {
    let mine = open.iter().filter(|(call, _)| *call == number);
    mine.fold(counted.profile.total(), |sum, &(_, start)| {
        sum + (now - start)
    })
}

fn name(number: u32) -> String {
    match syscalls::Sysno::new(number as usize) {
        Some(known) => known.name().to_owned(),
        None => format!("syscall_{number}"),
    }
}

#[cfg(test)]
mod tests {
    use darc_tracer::system_calls::Call;

    use super::*;

    #[test]
    fn calls_become_profiles_and_segments() {
        let mut profiles = SyscallProfiles::new(Resolution::default(), Tsc(1000));
        let call = |number, latency| Call {
            number,
            latency: Ticks(latency),
        };
        profiles.add(&Taken {
            begun: vec![0, 0, 1],
            calls: vec![call(0, 10)],
            ..Taken::default()
        });
        profiles.end_segment(Tsc(1100), &[(0, Tsc(1050))]);
        profiles.add(&Taken {
            calls: vec![call(0, 90)],
            lost: vec![1],
            ..Taken::default()
        });
        profiles.end_segment(Tsc(1200), &[]);
        let hz = Hz::new(1_000_000_000).unwrap();
        let set = profiles.set(Tsc(1200), &[], Target::default(), hz);
        let read = &set.profiles[0];
        assert_eq!(read.function.name, "read");
        assert_eq!(
            (read.calls, read.profile.ops, read.profile.total),
            (2, 2, 100)
        );
        // 10 and the 50 so far; then the other 40.
        let concurrency: Vec<f64> = read.segments.iter().map(|s| s.concurrency).collect();
        assert_eq!(concurrency, [0.6, 0.4]);
        let write = &set.profiles[1];
        assert_eq!((write.unfinished, write.ended_otherwise), (0, 1));
        assert_eq!(set.segments[1].start, 100);
    }
}
