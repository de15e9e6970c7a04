//! A recording under way: records go in, in order of time; counts come out. Pure: what it needs to know about the
//! machine it asks a [`Machine`].

use darc_tracer::perf::Record;
use darc_tracer::perf::record::{Mapped, Mode, Naming, Sample};

use super::counts::{Counts, ObjectId, Spot};
use super::during::DuringOps;
use super::processes::{InstanceId, Processes, Region, Seen};

/// What a recording asks of the machine.
pub trait Machine {
    /// What is known about a process that was not heard of before; nothing when it has ended.
    fn process(&mut self, pid: i32) -> Option<Seen>;

    /// The number of a file that process `pid` has mapped.
    fn object(&mut self, pid: i32, region: &Region) -> ObjectId;
}

/// What is counted beside the samples.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    /// Samples of programs.
    pub user: u64,
    /// Samples of the kernel.
    pub kernel: u64,
    /// Records that the kernel dropped because a ring was full.
    pub lost: u64,
    /// How often the kernel stopped sampling for a while.
    pub throttled: u64,
    /// Bytes in the rings that made no sense.
    pub damaged: u64,
}

/// Samples as they are counted.
#[derive(Debug, Default)]
pub struct Recording {
    /// Who runs.
    pub processes: Processes,
    /// The samples.
    pub counts: Counts,
    /// The rest.
    pub tally: Tally,
    /// Samples that count only if they fall into certain ops; until [`Recording::keep`] all wait there.
    pub during: Option<DuringOps>,
    stack: Vec<Spot>,
}

impl Recording {
    /// Takes the next record.
    pub fn take(&mut self, record: Record, machine: &mut impl Machine) {
        match record {
            Record::Sample(sample) => self.sample(&sample, machine),
            Record::Named {
                pid,
                name,
                naming: Naming::Exec,
                ..
            } => self
                .processes
                .executed(pid, &String::from_utf8_lossy(&name)),
            Record::Forked(task) if task.pid != task.parent => {
                self.know(task.parent, machine);
                self.processes.forked(task.pid, task.parent);
            }
            Record::Mapped(mapped) if mapped.mode == Mode::User => {
                self.know(mapped.pid, machine);
                self.processes.mapped(mapped.pid, region(&mapped));
            }
            Record::Exited(task) if task.tid == task.pid => self.processes.exited(task.pid),
            Record::Lost(_, count) => self.tally.lost += count,
            Record::Throttled(_) => self.tally.throttled += 1,
            Record::Named { .. }
            | Record::Mapped(_)
            | Record::Forked(_)
            | Record::Exited(_)
            | Record::Out { .. }
            | Record::Point(_)
            | Record::In(_)
            | Record::Other(_) => {}
        }
    }

    fn know(&mut self, pid: i32, machine: &mut impl Machine) {
        if !self.processes.knows(pid)
            && let Some(seen) = machine.process(pid)
        {
            self.processes.found(pid, seen);
        }
    }

    fn sample(&mut self, sample: &Sample, machine: &mut impl Machine) {
        let pid = sample.stamp.pid;
        self.know(pid, machine);
        let instance = self.processes.instance(pid);
        let mut stack = std::mem::take(&mut self.stack);
        stack.clear();
        match sample.mode {
            Mode::User => stack.push(self.spot(pid, sample.ip, machine)),
            Mode::Kernel | Mode::Elsewhere => stack.push(Spot::Kernel(sample.ip)),
        }
        // Chains begin with the instruction itself. A caller is known by the address it is returned to, which may be
        // the first one of another line or function: the call is the byte before.
        let kernel = sample.kernel.iter().skip(1);
        stack.extend(kernel.map(|&at| Spot::Kernel(at.wrapping_sub(1))));
        let mut user = sample.user.iter();
        let first = user.next();
        if sample.mode != Mode::User
            && let Some(&first) = first
        {
            // The program asked for what the kernel does: its instruction pointer is behind a system call, or is at
            // an instruction that was interrupted.
            stack.push(self.spot(pid, first, machine));
        }
        for &at in user {
            stack.push(self.spot(pid, at.wrapping_sub(1), machine));
        }
        match &mut self.during {
            Some(during) => during.sample(sample.stamp.tid, sample.stamp.time, instance, &stack),
            None => self.count(instance, &stack, 1),
        }
        self.stack = stack;
    }

    /// Counts samples of a stack, which is not empty.
    fn count(&mut self, instance: InstanceId, stack: &[Spot], samples: u64) {
        match stack[0] {
            Spot::Kernel(_) => self.tally.kernel += samples,
            Spot::Code { .. } | Spot::Nowhere(_) => self.tally.user += samples,
        }
        self.counts.add(instance, stack, samples);
    }

    /// Counts the samples that fell into ops with a latency of these buckets, and no others.
    pub fn keep(&mut self, during: &DuringOps, holds: impl Fn(u32) -> bool) {
        self.counts.were_cut(during.tally(&holds).cut);
        for (instance, stack, samples) in during.stacks(holds) {
            self.count(instance, stack, samples);
        }
    }

    fn spot(&self, pid: i32, addr: u64, machine: &mut impl Machine) -> Spot {
        match self.processes.region(pid, addr) {
            Some(region) => Spot::Code {
                object: machine.object(pid, region),
                offset: (addr - region.start).wrapping_add(region.offset),
            },
            None => Spot::Nowhere(addr),
        }
    }
}

fn region(mapped: &Mapped) -> Region {
    let path = String::from_utf8_lossy(&mapped.name).into_owned();
    let end = mapped.start.saturating_add(mapped.len);
    Region::new(mapped.start..end, mapped.offset, path, mapped.file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use darc_tracer::maps::FileId;
    use darc_tracer::perf::Stamp;

    #[derive(Default)]
    struct Mock {
        asked: Vec<i32>,
    }

    impl Machine for Mock {
        fn process(&mut self, pid: i32) -> Option<Seen> {
            self.asked.push(pid);
            let region = Region::new(
                0x1000..0x2000,
                0x400,
                "/prog".to_owned(),
                FileId {
                    inode: 3,
                    ..FileId::default()
                },
            );
            (pid == 7).then(|| Seen {
                name: "prog".to_owned(),
                regions: vec![region],
            })
        }

        fn object(&mut self, _: i32, _: &Region) -> ObjectId {
            ObjectId(0)
        }
    }

    fn sample(pid: i32, mode: Mode, kernel: &[u64], user: &[u64]) -> Record {
        let ip = *match mode {
            Mode::User => user.first(),
            _ => kernel.first(),
        }
        .unwrap();
        let stamp = Stamp {
            pid,
            tid: pid,
            ..Stamp::default()
        };
        Record::Sample(Sample {
            stamp,
            mode,
            ip,
            kernel: kernel.to_vec(),
            user: user.to_vec(),
        })
    }

    fn code(offset: u64) -> Spot {
        Spot::Code {
            object: ObjectId(0),
            offset,
        }
    }

    #[test]
    fn stacks_run_from_the_instruction_outwards() {
        let mut recording = Recording::default();
        let mut machine = Mock::default();
        recording.take(
            sample(7, Mode::User, &[], &[0x1010, 0x1020, 0x9000]),
            &mut machine,
        );
        recording.take(
            sample(7, Mode::Kernel, &[0x50, 0x61], &[0x1012, 0x1020]),
            &mut machine,
        );
        let mut stacks: Vec<_> = recording
            .counts
            .iter()
            .map(|(_, stack, count)| (stack.to_vec(), count))
            .collect();
        stacks.sort();
        let expected = [
            (vec![code(0x410), code(0x41f), Spot::Nowhere(0x8fff)], 1),
            (
                vec![
                    Spot::Kernel(0x50),
                    Spot::Kernel(0x60),
                    code(0x412),
                    code(0x41f),
                ],
                1,
            ),
        ];
        assert_eq!(stacks, expected);
        assert_eq!((recording.tally.user, recording.tally.kernel), (1, 1));
        assert_eq!(machine.asked, [7], "once");
    }

    #[test]
    fn a_process_that_has_ended_counts_all_the_same() {
        let mut recording = Recording::default();
        recording.take(sample(9, Mode::User, &[], &[0x1010]), &mut Mock::default());
        let instances = recording.processes.instances();
        assert_eq!(
            (instances[0].name.as_str(), instances[0].number),
            ("pid 9", 1)
        );
        assert_eq!(recording.counts.iter().count(), 1);
    }
}
