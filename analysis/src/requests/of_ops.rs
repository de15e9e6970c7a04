//! Which requests the ops of f0 handed over, by the ops' latencies: how long those of slow ops waited and were served,
//! against those of fast ones.
//!
//! An op's latency is known when it ends; its requests may be served before that or long after. So what is known
//! first is kept until the other is: bounded, and what is given up is counted.
//! Latencies are kept by bucket, for the peaks they belong to are found later and may grow.

use std::collections::{BTreeMap, HashMap};

use darc_record::{Ticks, Tsc};

use crate::profile::histogram::{Profile, Resolution};
use crate::profile::peaks::Peak;

/// No more requests wait at once for the end of their ops, and no more ops for the service of their requests.
const MOST: usize = 1 << 16;

/// When, and on which thread, a request was handed over.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Given {
    /// When.
    pub at: Tsc,
    /// The thread of the op.
    pub tid: i32,
}

/// Where in an op its requests are handed over.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum HandedOver {
    /// Between its beginning and its end, by a function that f0 calls.
    #[default]
    Inside,
    /// Just before it begins: f0 is the function that enqueues.
    AtEntry,
}

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    InFlight,
    Served { waited: Ticks, latency: Ticks },
    Unseen,
}

/// What became of the requests of some ops.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Handed {
    /// Ops that handed over at least one request.
    pub ops: u64,
    /// Their requests.
    pub requests: u64,
    /// How long those waited that were seen to be served.
    pub waits: Profile,
    /// How long the calls took that served them: as many as waits.
    pub services: Profile,
}

impl Handed {
    /// Of no ops.
    #[must_use]
    pub fn new(resolution: Resolution) -> Handed {
        Handed {
            ops: 0,
            requests: 0,
            waits: Profile::new(resolution),
            services: Profile::new(resolution),
        }
    }

    fn add(&mut self, other: &Handed) {
        self.ops = self.ops.saturating_add(other.ops);
        self.requests = self.requests.saturating_add(other.requests);
        for (own, others) in [
            (&mut self.waits, &other.waits),
            (&mut self.services, &other.services),
        ] {
            for (bucket, content) in others.buckets() {
                // Both have the resolution of the analysis.
                let _ = own.add_bucket(bucket, content);
            }
        }
    }
}

/// The requests of ops.
#[derive(Clone, Debug)]
pub struct OpRequests {
    resolution: Resolution,
    handed_over: HandedOver,
    /// Requests of ops in progress, by thread, the earliest first.
    open: HashMap<i32, Vec<(Tsc, Fate)>>,
    /// How many of them there are.
    opened: usize,
    /// Requests whose op has ended with a latency of this bucket, and that are not served.
    ended: BTreeMap<Given, u32>,
    /// By bucket of f0's latency.
    by_bucket: BTreeMap<u32, Handed>,
    /// What an earlier run has found, by peak.
    stored: BTreeMap<Option<u32>, Handed>,
    unknown: u64,
}

impl OpRequests {
    /// None yet.
    #[must_use]
    pub fn new(resolution: Resolution) -> OpRequests {
        OpRequests::resumed(resolution, BTreeMap::new(), 0)
    }

    /// What an earlier run has found, by the number of the peak; `None` is what belongs to none. `unknown` requests
    /// were of ops that are not known.
    #[must_use]
    pub fn resumed(
        resolution: Resolution,
        stored: BTreeMap<Option<u32>, Handed>,
        unknown: u64,
    ) -> OpRequests {
        OpRequests {
            resolution,
            handed_over: HandedOver::default(),
            open: HashMap::new(),
            opened: 0,
            ended: BTreeMap::new(),
            by_bucket: BTreeMap::new(),
            stored,
            unknown,
        }
    }

    /// Where requests are handed over.
    pub fn set_handed_over(&mut self, handed_over: HandedOver) {
        self.handed_over = handed_over;
    }

    /// The op in progress on its thread handed a request over.
    pub(crate) fn given(&mut self, given: Given) {
        if self.opened >= MOST {
            // Ops that never end, by the look of it.
            self.unknown += self.opened as u64;
            self.opened = 0;
            self.open.clear();
        }
        self.opened += 1;
        let of_thread = self.open.entry(given.tid).or_default();
        let place = of_thread.partition_point(|&(at, _)| at <= given.at);
        of_thread.insert(place, (given.at, Fate::InFlight));
    }

    /// A request was served.
    pub(crate) fn served(&mut self, given: Given, waited: Ticks, latency: Ticks) {
        let fate = Fate::Served { waited, latency };
        if let Some(bucket) = self.ended.remove(&given) {
            self.count(bucket, fate);
        } else {
            self.set_open(given, fate);
        }
    }

    /// A request was given up.
    pub(crate) fn given_up(&mut self, given: Given) {
        if self.ended.remove(&given).is_none() {
            self.set_open(given, Fate::Unseen);
        }
    }

    fn set_open(&mut self, given: Given, fate: Fate) {
        let of_thread = self.open.get_mut(&given.tid);
        let request = of_thread.and_then(|of| {
            let first = of.partition_point(|&(at, _)| at < given.at);
            let mut same = of[first..].iter_mut().take_while(|(at, _)| *at == given.at);
            same.find(|(_, known)| *known == Fate::InFlight)
        });
        if let Some((_, known)) = request {
            *known = fate;
        }
    }

    /// An op ended, with a latency of this bucket: the requests that its thread has handed over since it began are
    /// its own. Earlier ones are of ops that were not seen to end.
    pub fn ended(&mut self, tid: i32, start: Tsc, end: Tsc, bucket: u32) {
        let Some(of_thread) = self.open.get_mut(&tid) else {
            return;
        };
        let later = of_thread.partition_point(|&(at, _)| at <= end);
        let first = match self.handed_over {
            HandedOver::Inside => of_thread.partition_point(|&(at, _)| at < start),
            HandedOver::AtEntry => of_thread
                .partition_point(|&(at, _)| at <= start)
                .saturating_sub(1),
        };
        let mut requests: Vec<(Tsc, Fate)> = of_thread.drain(..later).collect();
        if of_thread.is_empty() {
            self.open.remove(&tid);
        }
        self.opened -= requests.len();
        let own = requests.split_off(first.min(later));
        self.unknown += requests.len() as u64;
        if own.is_empty() {
            return;
        }
        let resolution = self.resolution;
        let handed = self.by_bucket.entry(bucket);
        let handed = handed.or_insert_with(|| Handed::new(resolution));
        handed.ops += 1;
        handed.requests += own.len() as u64;
        for (at, fate) in own {
            match fate {
                Fate::InFlight => drop(self.ended.insert(Given { at, tid }, bucket)),
                fate => self.count(bucket, fate),
            }
        }
        while self.ended.len() > MOST {
            self.ended.pop_first();
        }
    }

    fn count(&mut self, bucket: u32, fate: Fate) {
        let (Some(handed), Fate::Served { waited, latency }) =
            (self.by_bucket.get_mut(&bucket), fate)
        else {
            return;
        };
        handed.waits.add(waited);
        handed.services.add(latency);
    }

    /// The process is gone: what ops in progress handed over is of no op.
    pub(crate) fn abandon(&mut self) {
        self.unknown += self.opened as u64;
        self.opened = 0;
        self.open.clear();
        self.ended.clear();
    }

    /// By the peak of the op, what is of no peak last; what has no requests is left out.
    #[must_use]
    pub fn by_peak(&self, peaks: &[Peak]) -> Vec<(Option<u32>, Handed)> {
        let mut found = self.stored.clone();
        for (&bucket, handed) in &self.by_bucket {
            let peak = peaks.iter().find(|peak| peak.contains(bucket));
            found
                .entry(peak.map(|peak| peak.number))
                .or_insert_with(|| Handed::new(self.resolution))
                .add(handed);
        }
        let none = found.remove(&None);
        let last = none.map(|handed| (None, handed));
        let all = found.into_iter().chain(last);
        all.filter(|(_, handed)| handed.requests > 0).collect()
    }

    /// How many requests are of ops whose latency is not known one by one: they have not ended, or did not end by
    /// returning, or their records were lost.
    #[must_use]
    pub fn unknown(&self) -> u64 {
        self.unknown + self.opened as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(tid: i32, at: u64) -> Given {
        Given { at: Tsc(at), tid }
    }

    fn none() -> OpRequests {
        OpRequests::new(Resolution::default())
    }

    fn peaks() -> [Peak; 2] {
        [(1, 5), (2, 10)].map(|(number, bucket)| Peak {
            number,
            first_bucket: bucket,
            last_bucket: bucket,
            content: crate::profile::histogram::Bucket::default(),
        })
    }

    /// Peak, ops, requests, waits and services together.
    type Line = (Option<u32>, u64, u64, u64, u64);

    fn lines(requests: &OpRequests) -> Vec<Line> {
        let by_peak = requests.by_peak(&peaks()).into_iter();
        by_peak
            .map(|(peak, it)| {
                let (waits, services) = (it.waits.total().0, it.services.total().0);
                (peak, it.ops, it.requests, waits, services)
            })
            .collect()
    }

    #[test]
    fn it_does_not_matter_whether_the_op_or_the_service_ends_first() {
        let mut requests = none();
        requests.given(given(1, 110));
        requests.given(given(2, 120));
        requests.served(given(1, 110), Ticks(7), Ticks(70));
        requests.ended(1, Tsc(100), Tsc(200), 5);
        requests.ended(2, Tsc(100), Tsc(900), 10);
        requests.served(given(2, 120), Ticks(8), Ticks(80));
        let of_both = [(Some(1), 1, 1, 7, 70), (Some(2), 1, 1, 8, 80)];
        assert_eq!(
            (lines(&requests), requests.unknown()),
            (of_both.to_vec(), 0)
        );
    }

    #[test]
    fn an_op_has_several_requests_and_none_of_the_op_before() {
        let mut requests = none();
        for at in [50, 110, 120] {
            requests.given(given(1, at));
            requests.served(given(1, at), Ticks(at), Ticks(1));
        }
        requests.given(given(1, 130));
        requests.ended(1, Tsc(100), Tsc(200), 5);
        requests.given_up(given(1, 130));
        // What was handed over at 50 is of an op that did not end by returning.
        assert_eq!(lines(&requests), [(Some(1), 1, 3, 230, 2)]);
        assert_eq!(requests.unknown(), 1);
    }

    #[test]
    fn f0_that_enqueues_does_it_just_before_its_op_begins() {
        let mut requests = none();
        requests.set_handed_over(HandedOver::AtEntry);
        for at in [90, 99, 205] {
            requests.given(given(1, at));
            requests.served(given(1, at), Ticks(at), Ticks(1));
        }
        requests.ended(1, Tsc(100), Tsc(200), 5);
        requests.ended(1, Tsc(207), Tsc(300), 7);
        assert_eq!(
            lines(&requests),
            [(Some(1), 1, 1, 99, 1), (None, 1, 1, 205, 1)]
        );
        assert_eq!(requests.unknown(), 1);
    }

    #[test]
    fn what_is_stored_counts_on_and_what_is_lost_is_counted() {
        let mut handed = Handed::new(Resolution::default());
        handed.ops = 3;
        handed.requests = 4;
        let mut requests = OpRequests::resumed(
            Resolution::default(),
            [(Some(2), handed.clone()), (None, handed)].into(),
            5,
        );
        requests.given(given(1, 110));
        requests.ended(1, Tsc(100), Tsc(200), 10);
        requests.given(given(1, 300));
        requests.abandon();
        requests.served(given(1, 110), Ticks(7), Ticks(70));
        assert_eq!(
            lines(&requests),
            [(Some(2), 4, 5, 0, 0), (None, 3, 4, 0, 0)]
        );
        assert_eq!(requests.unknown(), 6);
    }

    #[test]
    fn ops_that_never_end_and_requests_that_nobody_serves_are_bounded() {
        let mut requests = none();
        for at in 0..=MOST as u64 {
            requests.given(given(1, at));
        }
        assert_eq!((requests.opened, requests.unknown()), (1, MOST as u64 + 1));
        for at in 0..=MOST as u64 {
            let at = 10 * at + (1 << 32);
            requests.given(given(2, at + 1));
            requests.ended(2, Tsc(at), Tsc(at + 9), 5);
        }
        assert_eq!((requests.ended.len(), requests.opened), (MOST, 1));
    }
}
