//! Events and the rings that they write to: one ring a CPU, whatever the number of threads.

use std::ffi::CStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};

use super::attributes::{Attributes, Scope};
use super::parsing::parse_all;
use super::record::Record;
use super::refusal::{Asked, Refusal, paranoid};
use crate::sys::{self, RingPages};

/// Pages of all rings together, where the user may lock so many.
const ALL_PAGES: usize = 1 << 13;
/// Pages of one ring at least, unless even that is too much: what a user without privileges may lock, for each CPU
/// (`kernel.perf_event_mlock_kb`, 516 with the page of the ring's head).
const PAGES: usize = 128;
/// Pages of the smallest ring that is of use.
const FEWEST_PAGES: usize = 8;

struct Ring {
    cpu: u32,
    pages: RingPages,
    /// The event that the ring was made for, which records nothing itself.
    event: OwnedFd,
}

struct Event {
    /// In which it was opened.
    group: Group,
    attributes: Attributes,
    descriptor: OwnedFd,
}

/// How many events there were at a moment, so that what came later can be taken back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark(usize);

/// Events that are closed together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Group(u32);

/// Less of a ring than this part of it is little.
const LITTLE: usize = 8;

/// What one reading of all rings found.
#[derive(Debug, Default)]
pub struct Drained {
    /// In order of time.
    pub records: Vec<Record>,
    /// Bytes that made no sense.
    pub damaged: usize,
    /// CPUs whose rings had little room left: what came last may have been dropped.
    pub full: Vec<u32>,
}

/// Events on threads or on whole CPUs, and their rings.
pub struct Collector {
    attributes: Attributes,
    rings: Vec<Ring>,
    events: Vec<Event>,
    group: Group,
    /// The last one that was begun.
    last_group: Group,
    /// Read, but records of other CPUs that are older may still be on their way.
    pending: Vec<Record>,
    /// When the last reading began.
    last_read: u64,
    /// Records that are older have been handed out.
    complete: u64,
    /// Whether there was little in each ring when it was read last.
    has_room: bool,
}

impl std::fmt::Debug for Collector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Collector")
            .field("attributes", &self.attributes)
            .field("events", &self.events.len())
            .finish_non_exhaustive()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        close(std::mem::take(&mut self.events));
    }
}

/// The last close of a tracepoint's events waits until no CPU can be in the tracepoint any more, some 35 ms each:
/// nobody need wait for that.
fn close(events: Vec<Event>) {
    let (slow, _quick): (Vec<Event>, Vec<Event>) = events
        .into_iter()
        .partition(|event| event.attributes.is_on_tracepoint());
    let slow: Vec<OwnedFd> = slow.into_iter().map(|event| event.descriptor).collect();
    slow.iter().for_each(sys::perf_disable);
    sys::close_unattended(slow);
}

/// A machine with many CPUs needs more descriptors than a shell allows by default.
fn raise_descriptor_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

impl Collector {
    /// A ring for each CPU, without any event yet; they will be as `attributes` says.
    ///
    /// # Errors
    /// When the kernel refuses events to this user altogether.
    pub fn new(attributes: Attributes) -> Result<Collector, Refusal> {
        let mut rings = Vec::new();
        let cpus = online_cpus();
        let most = (ALL_PAGES / cpus.len().max(1)).clamp(PAGES, 8 * PAGES);
        let most = 1 << most.ilog2();
        for cpu in cpus {
            let wakeup = (PAGES * sys::PAGE / 2) as u32;
            let event =
                opening(|| sys::perf_event_open(&Attributes::ring().bytes(wakeup), 0, cpu as i32));
            let event = match event {
                // A CPU that went offline since it was listed.
                Err(Errno::ENODEV) => continue,
                event => {
                    let own = Asked::Thread(std::process::id() as i32);
                    event.map_err(|errno| Refusal::of(errno, own, paranoid()))?
                }
            };
            rings.push(Ring {
                cpu,
                pages: map(&event, most)?,
                event,
            });
        }
        Ok(Collector {
            attributes,
            rings,
            events: Vec::new(),
            group: Group(0),
            last_group: Group(0),
            pending: Vec::new(),
            last_read: 0,
            complete: 0,
            has_room: true,
        })
    }

    /// The CPUs that are watched.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.rings.len()
    }

    /// What of the machine the events see: less than asked for where only less is permitted.
    #[must_use]
    pub fn scope(&self) -> Scope {
        self.attributes.seen()
    }

    /// Watches a thread, one event a CPU. `false` when it has ended.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn add_thread(&mut self, tid: i32) -> Result<bool, Refusal> {
        self.add_to_thread(tid, None)
    }

    /// Watches a thread for something else, whose samples have the layout of the collector's own.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn add_thread_event(&mut self, tid: i32, event: Attributes) -> Result<bool, Refusal> {
        self.add_to_thread(tid, Some(event))
    }

    fn add_to_thread(&mut self, tid: i32, event: Option<Attributes>) -> Result<bool, Refusal> {
        for ring in 0..self.rings.len() {
            match self.open(event, tid, ring, Asked::Thread(tid)) {
                Ok(()) => {}
                Err(Refusal::Os {
                    source: Errno::ESRCH,
                }) => return Ok(false),
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(true)
    }

    /// Watches everything.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn add_system(&mut self) -> Result<(), Refusal> {
        self.add_to_system(None)
    }

    /// Watches all CPUs for something else, whose samples have the layout of the collector's own.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn add_system_event(&mut self, event: Attributes) -> Result<(), Refusal> {
        self.add_to_system(Some(event))
    }

    fn add_to_system(&mut self, event: Option<Attributes>) -> Result<(), Refusal> {
        for ring in 0..self.rings.len() {
            self.open(event, -1, ring, Asked::Cpu)?;
        }
        Ok(())
    }

    /// The events so far.
    #[must_use]
    pub fn mark(&self) -> Mark {
        Mark(self.events.len())
    }

    /// Takes back all events that came after the mark.
    pub fn take_back(&mut self, mark: Mark) {
        let after = self.events.split_off(mark.0.min(self.events.len()));
        close(after);
    }

    /// What is opened from now on is a group.
    pub fn begin_group(&mut self) -> Group {
        self.last_group.0 += 1;
        self.group = self.last_group;
        self.group
    }

    /// What is opened from now on belongs to a group that was begun before.
    pub fn go_on_with(&mut self, group: Group) {
        self.group = group;
    }

    /// Has the events of a group record only what the filter fits. False when the kernel refuses it.
    pub fn filter(&self, group: Group, filter: &CStr) -> bool {
        let mut of_group = self.events.iter().filter(|event| event.group == group);
        of_group.all(|event| sys::perf_set_filter(&event.descriptor, filter))
    }

    /// Closes the events of a group.
    pub fn close(&mut self, group: Group) {
        let of_group = self.events.extract_if(.., |event| event.group == group);
        close(of_group.collect());
    }

    /// Opens the collector's own kind of event, or another one.
    fn open(
        &mut self,
        event: Option<Attributes>,
        tid: i32,
        ring: usize,
        asked: Asked,
    ) -> Result<(), Refusal> {
        let attributes = event.unwrap_or(self.attributes);
        assert_eq!(attributes.layout(), self.attributes.layout(), "one ring");
        let mut event = self.try_open(attributes, tid, ring);
        if matches!(event, Err(Errno::EACCES | Errno::EPERM))
            && self.scope() == Scope::UserAndKernel
            && self.events.is_empty()
            && attributes == self.attributes
        {
            self.attributes = self.attributes.scope(Scope::User);
            event = self.try_open(self.attributes, tid, ring);
        }
        let event = match event {
            Err(Errno::ENODEV) => return Ok(()),
            event => event.map_err(|errno| Refusal::of(errno, asked, paranoid()))?,
        };
        sys::perf_set_output(&event, &self.rings[ring].event)
            .map_err(|source| Refusal::Os { source })?;
        self.events.push(Event {
            group: self.group,
            attributes,
            descriptor: event,
        });
        Ok(())
    }

    fn try_open(&self, attributes: Attributes, tid: i32, ring: usize) -> Result<OwnedFd, Errno> {
        let (attributes, cpu) = (attributes.bytes(0), self.rings[ring].cpu);
        opening(|| sys::perf_event_open(&attributes, tid, cpu as i32))
    }

    /// Begins to record.
    pub fn enable(&self) {
        self.events
            .iter()
            .for_each(|event| sys::perf_enable(&event.descriptor));
    }

    /// Stops recording; what is in the rings can still be read.
    pub fn disable(&self) {
        self.events
            .iter()
            .for_each(|event| sys::perf_disable(&event.descriptor));
    }

    /// Reads what has come. Records are in order of time, over all CPUs and readings: the newest are held back
    /// until the next reading.
    pub fn read(&mut self) -> Drained {
        // Whatever was made before the last reading began was in its ring by then, or is read now.
        let until = std::mem::replace(&mut self.last_read, super::clock::now());
        self.read_until(until)
    }

    /// Reads what is older than this, in nanoseconds of the records' clock, in order of time over all CPUs and readings: records
    /// that come on one CPU while another's ring is read may be younger than what that one has yet to tell. `until` is to be so
    /// long ago that all older records are in their rings.
    pub fn read_until(&mut self, until: u64) -> Drained {
        let (damaged, full) = self.fetch();
        let complete = self.pending.partition_point(|record| record.time() < until);
        self.complete = until;
        Drained {
            records: self.pending.drain(..complete).collect(),
            damaged,
            full,
        }
    }

    /// Reads everything, when no more will come.
    pub fn read_rest(&mut self) -> Drained {
        let (damaged, full) = self.fetch();
        self.complete = u64::MAX;
        Drained {
            records: std::mem::take(&mut self.pending),
            damaged,
            full,
        }
    }

    /// All records that are older than this have been handed out, in nanoseconds of their clock.
    #[must_use]
    pub fn complete(&self) -> u64 {
        self.complete
    }

    /// Whether less than an eighth of each ring was filled when they were read last.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.has_room
    }

    fn fetch(&mut self) -> (usize, Vec<u32>) {
        self.has_room = true;
        let (mut damaged, mut full) = (0, Vec::new());
        let mut bytes = Vec::new();
        for ring in &self.rings {
            damaged += ring.pages.take(&mut bytes);
            let little = ring.pages.size() / LITTLE;
            self.has_room &= bytes.len() < little;
            if bytes.len() > ring.pages.size() - little {
                full.push(ring.cpu);
            }
            let (records, senseless) = parse_all(&bytes, self.attributes.layout());
            damaged += senseless;
            self.pending.extend(records);
        }
        self.pending.sort_by_key(Record::time);
        (damaged, full)
    }

    /// Waits until a ring is half full, one of `others` is readable, or `timeout` is over.
    pub fn wait(&self, others: &[BorrowedFd<'_>], timeout: Duration) {
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        let rings = self.rings.iter().map(|ring| ring.event.as_fd());
        let mut fds: Vec<PollFd<'_>> = rings
            .chain(others.iter().copied())
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .collect();
        // A signal ends the wait early, which is right.
        let _ = nix::poll::poll(&mut fds, timeout);
    }
}

/// Opens; once more with a higher limit when there are no descriptors left.
fn opening(open: impl Fn() -> Result<OwnedFd, Errno>) -> Result<OwnedFd, Errno> {
    match open() {
        Err(Errno::EMFILE) => {
            raise_descriptor_limit();
            open()
        }
        other => other,
    }
}

/// Maps the largest ring that the kernel grants.
fn map(event: &OwnedFd, most: usize) -> Result<RingPages, Refusal> {
    let mut pages = most;
    loop {
        match RingPages::map(event, pages) {
            Ok(ring) => return Ok(ring),
            Err(Errno::EPERM | Errno::ENOMEM) if pages > FEWEST_PAGES => pages /= 2,
            Err(source) => return Err(Refusal::Memory { source }),
        }
    }
}

/// The CPUs that run, by number.
fn online_cpus() -> Vec<u32> {
    let mut text = String::new();
    let read = File::open("/sys/devices/system/cpu/online")
        .and_then(|mut file| file.read_to_string(&mut text));
    let listed = match read {
        Ok(_) => parse_cpus(&text),
        Err(_) => Vec::new(),
    };
    if listed.is_empty() {
        let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        return (0..count as u32).collect();
    }
    listed
}

/// A list such as `0-3,5`.
fn parse_cpus(text: &str) -> Vec<u32> {
    const MOST: u32 = 1 << 16;
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        (last < MOST).then_some(first..=last)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::super::record::Stamp;
    use super::*;

    #[test]
    fn cpu_lists() {
        assert_eq!(parse_cpus("0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(parse_cpus("7"), [7]);
        assert_eq!(parse_cpus("x,0-99999999,3-1"), Vec::<u32>::new());
    }

    /// While one CPU's ring is read, a thread may leave another CPU, whose ring has been read already, and come to this one.
    #[test]
    fn what_is_younger_waits_for_what_other_cpus_have_to_tell() {
        let mut collector = match Collector::new(Attributes::switches()) {
            Ok(collector) => collector,
            Err(refusal) => {
                eprintln!("not tested: {refusal}");
                return;
            }
        };
        let came = |time, cpu| {
            Record::In(Stamp {
                time,
                pid: 1,
                tid: 1,
                cpu,
            })
        };
        collector.pending = vec![came(100, 1), came(105, 1)];
        let times =
            |drained: Drained| -> Vec<u64> { drained.records.iter().map(Record::time).collect() };
        assert_eq!(times(collector.read_until(102)), [100]);
        collector.pending.push(came(103, 0));
        assert_eq!(times(collector.read_until(110)), [103, 105]);
    }
}
