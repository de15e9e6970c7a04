//! Wakings of one process's threads. Those of others are nobody's business here, and on a busy machine there are many: when no
//! thread has come for a while, a filter in the kernel names those there are and passes over all others.
//!
//! An event takes one filter in its life, so for other threads there are other events. Source: perf_event_open(2),
//! `PERF_EVENT_IOC_SET_FILTER`; Documentation/trace/events.rst of the kernel, section 5.

use std::ffi::CString;
use std::time::{Duration, Instant};

use crate::threads;

use super::attributes::Attributes;
use super::collector::{Collector, Group};
use super::opening::watch_threads;
use super::refusal::Refusal;

/// More threads are not named: each has events of its own, and a filter is no longer than a page.
const MOST: usize = 64;
/// The same, of these events.
const MOST_EVENTS: usize = 1 << 10;
/// Threads are named when none has come for so long, at first, be it before darc came; twice as long after each time that one came all the same.
const SELDOM: Duration = Duration::from_secs(1);
/// It becomes no longer than this.
const LONGEST: Duration = Duration::from_secs(64);
/// When events could not be opened it is tried again after so long.
const AGAIN: Duration = Duration::from_secs(4);

/// The events.
#[derive(Debug)]
pub(super) struct Wakings {
    pid: i32,
    waking: Attributes,
    on_cpus: Group,
    /// What the process's own threads wake, with their stacks, while that is asked for.
    stacks: Option<(Attributes, Group)>,
    /// The threads whose wakings are recorded; everybody's where there are none.
    named: Vec<i32>,
    /// Whether a thread has come that is not named, or may have.
    unnamed: bool,
    /// Whether no filter can name them.
    for_good: bool,
    /// When a thread came last, also before it began.
    came: Instant,
    /// For how long none must have come.
    seldom: Duration,
    /// When events could not be opened for all.
    failed: Option<Instant>,
}

impl Wakings {
    /// Opens events on all CPUs, since a waker may be anybody, and those with stacks on the process's threads.
    pub(super) fn open(
        collector: &mut Collector,
        pid: i32,
        waking: Attributes,
        stacks: Attributes,
    ) -> Result<Wakings, Refusal> {
        let (on_cpus, stacks) = open(collector, pid, waking, Some(stacks))?;
        Ok(Wakings {
            pid,
            waking,
            on_cpus,
            stacks,
            named: Vec::new(),
            unnamed: false,
            for_good: false,
            came: last_came(pid),
            seldom: SELDOM,
            failed: None,
        })
    }

    /// The process has another thread.
    pub(super) fn thread_came(&mut self, tid: i32) {
        self.came = Instant::now();
        self.unnamed |= !self.named.contains(&tid);
    }

    /// Threads may have come unseen.
    pub(super) fn look_for_threads(&mut self) {
        if self.named.is_empty() {
            return;
        }
        let listed = threads::list(self.pid).unwrap_or_default();
        if let Some(&tid) = listed.iter().find(|tid| !self.named.contains(tid)) {
            self.thread_came(tid);
        }
    }

    /// Asks for no more stacks.
    pub(super) fn close_stacks(&mut self, collector: &mut Collector) {
        if let Some((_, group)) = self.stacks.take() {
            collector.close(group);
        }
    }

    /// Names the threads, or has the wakings of all recorded, whichever is due; while it is recorded.
    pub(super) fn renew(&mut self, collector: &mut Collector) {
        match self.named.is_empty() {
            true if !self.for_good && self.came.elapsed() >= self.seldom => {
                self.name(collector);
            }
            false if self.unnamed && self.failed.is_none_or(|at| at.elapsed() >= AGAIN) => {
                self.name_nobody(collector);
            }
            _ => {}
        }
    }

    /// Whether only wakings of threads with names are recorded.
    #[cfg(test)]
    pub(super) fn are_named(&self) -> bool {
        !self.named.is_empty()
    }

    /// Has only wakings of the threads there are recorded. False where that cannot be.
    pub(super) fn name(&mut self, collector: &Collector) -> bool {
        self.unnamed = false;
        // Of those that come from now on there will be a record.
        let tids = threads::list(self.pid).unwrap_or_default();
        let few = tids.len() <= MOST && tids.len() * collector.cpus() <= MOST_EVENTS;
        let Some(filter) = filter(&tids).filter(|_| few) else {
            self.for_good = true;
            return false;
        };
        self.named = tids;
        let stacks = self.stacks.map(|(_, group)| group);
        let mut groups = [self.on_cpus].into_iter().chain(stacks);
        let filtered = groups.all(|group| collector.filter(group, &filter));
        if !filtered {
            // Some of the events may have it.
            (self.unnamed, self.for_good) = (true, true);
        }
        filtered
    }

    fn name_nobody(&mut self, collector: &mut Collector) {
        let (mark, stacks) = (collector.mark(), self.stacks.map(|(stacks, _)| stacks));
        let Ok((on_cpus, stacks)) = open(collector, self.pid, self.waking, stacks) else {
            // Better some wakings than none.
            collector.take_back(mark);
            self.failed = Some(Instant::now());
            return;
        };
        // What both tell is told twice, which does no harm.
        collector.enable();
        collector.close(self.on_cpus);
        self.close_stacks(collector);
        (self.on_cpus, self.stacks) = (on_cpus, stacks);
        self.named.clear();
        (self.unnamed, self.failed) = (false, None);
        self.seldom = (2 * self.seldom).min(LONGEST);
    }
}

/// The events, and those with stacks where they are asked for, in a group each.
fn open(
    collector: &mut Collector,
    pid: i32,
    waking: Attributes,
    stacks: Option<Attributes>,
) -> Result<(Group, Option<(Attributes, Group)>), Refusal> {
    let on_cpus = collector.begin_group();
    collector.add_system_event(waking)?;
    let Some(stacks) = stacks else {
        return Ok((on_cpus, None));
    };
    let group = collector.begin_group();
    match watch_threads(collector, pid, &[stacks]) {
        // Of so many threads only what the CPUs tell.
        Ok(()) | Err(Refusal::Descriptors) => Ok((on_cpus, Some((stacks, group)))),
        Err(refusal) => Err(refusal),
    }
}

/// When the youngest thread of a process began, as far as there are so few that a filter can name them.
fn last_came(pid: i32) -> Instant {
    let tids = threads::list(pid).unwrap_or_default();
    let ages = tids
        .iter()
        .take(MOST + 1)
        .map(|&tid| threads::age(pid, tid));
    let youngest = ages.map(Option::unwrap_or_default).min();
    let now = Instant::now();
    now.checked_sub(youngest.unwrap_or_default()).unwrap_or(now)
}

/// The filter for wakings of these threads; none where there are none.
fn filter(tids: &[i32]) -> Option<CString> {
    let terms: Vec<String> = tids.iter().map(|tid| format!("pid=={tid}")).collect();
    match terms.is_empty() {
        true => None,
        false => CString::new(terms.join("||")).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_come_before_darc() {
        let before = Instant::now();
        let mut young = std::process::Command::new("sleep")
            .arg("100")
            .spawn()
            .unwrap();
        let [old, came] = [1, young.id() as i32].map(last_came);
        young.kill().unwrap();
        young.wait().unwrap();
        // Beginnings are told to a hundredth of a second.
        assert!(came + Duration::from_millis(20) >= before && came <= Instant::now());
        assert!(old < before, "{old:?}");
    }

    #[test]
    fn a_filter_names_all_threads() {
        let text = |tids: &[i32]| filter(tids).map(|text| text.into_string().unwrap());
        assert_eq!(text(&[7]).as_deref(), Some("pid==7"));
        assert_eq!(
            text(&[12, 7, 30]).as_deref(),
            Some("pid==12||pid==7||pid==30")
        );
        assert_eq!(text(&[]), None);
        let many = [i32::MAX; MOST];
        assert!(filter(&many).unwrap().as_bytes_with_nul().len() < 4096);
    }
}
