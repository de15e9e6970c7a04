//! Requests that ops of f0 hand to another thread: those in flight, and how long they wait.
//!
//! DARC (SIGMETRICS 2008, section 3.7): what is enqueued on the call path of interest is put into a set; the servicing
//! thread's calls are of interest only when their object is in it. Matching is done here, off the target's path, from
//! the times of both. Bounded: a request that is never served expires, and too many make the oldest go.

use std::collections::{BTreeSet, HashMap, VecDeque};

use darc_record::{Ticks, Tsc};

use crate::profile::histogram::{Profile, Resolution};
use crate::requests::of_ops::{Given, OpRequests};

/// No more requests are in flight at once.
const MOST: usize = 1 << 16;

/// What became of the requests.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Handed over inside an op of f0.
    pub enqueued: u64,
    /// Those that a call served that is part of the analysis.
    pub served: u64,
    /// Calls that served what no op of f0 had handed over.
    pub others: u64,
    /// Requests that were forgotten because nobody served them in time.
    pub expired: u64,
    /// Requests that were forgotten because too many were in flight.
    pub crowded_out: u64,
    /// Calls of either function whose object could not be told: a pointer led nowhere.
    pub unread: u64,
}

/// A call that serves a request of f0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Service {
    /// When it began.
    pub start: Tsc,
    /// How long it took.
    pub latency: Ticks,
}

/// Requests in flight, by what identifies them.
#[derive(Clone, Debug)]
pub struct InFlight {
    /// When each was enqueued, the earliest first. An address that is used again may be there twice, since the call
    /// that serves the first request is known only when it has ended.
    waiting: HashMap<u64, VecDeque<Given>>,
    oldest: BTreeSet<(Given, u64)>,
    waits: Profile,
    of_ops: OpRequests,
    counts: Counts,
}

impl InFlight {
    /// None yet.
    #[must_use]
    pub fn new(resolution: Resolution) -> InFlight {
        InFlight {
            waiting: HashMap::new(),
            oldest: BTreeSet::new(),
            waits: Profile::new(resolution),
            of_ops: OpRequests::new(resolution),
            counts: Counts::default(),
        }
    }

    /// What an earlier run has stored. What was in flight then is never seen to be served.
    #[must_use]
    pub fn resumed(waits: Profile, of_ops: OpRequests, counts: Counts) -> InFlight {
        InFlight {
            waiting: HashMap::new(),
            oldest: BTreeSet::new(),
            waits,
            of_ops,
            counts,
        }
    }

    /// A request was handed over inside an op of f0.
    pub fn enqueue(&mut self, object: u64, given: Given) {
        self.counts.enqueued += 1;
        if !self.oldest.insert((given, object)) {
            return;
        }
        self.of_ops.given(given);
        let times = self.waiting.entry(object).or_default();
        let place = times.partition_point(|earlier| earlier.at <= given.at);
        times.insert(place, given);
        if self.oldest.len() > MOST
            && let Some(&(oldest, object)) = self.oldest.first()
        {
            self.give_up(object, oldest);
            self.counts.crowded_out += 1;
        }
    }

    /// A call serves what is enqueued under this name: how long that had waited, if it is of f0.
    pub fn serve(&mut self, object: u64, service: Service) -> Option<Ticks> {
        let mut earlier = self.take_earlier(object, service.start);
        let Some(given) = earlier.pop() else {
            self.counts.others += 1;
            return None;
        };
        // Whose place was used again has been served without being seen.
        for given in earlier {
            self.oldest.remove(&(given, object));
            self.of_ops.given_up(given);
            self.counts.expired += 1;
        }
        self.oldest.remove(&(given, object));
        self.counts.served += 1;
        let waited = service.start - given.at;
        self.waits.add(waited);
        self.of_ops.served(given, waited, service.latency);
        Some(waited)
    }

    /// Which requests ops handed over; told here when an op ends.
    pub fn of_ops_mut(&mut self) -> &mut OpRequests {
        &mut self.of_ops
    }

    /// Which requests ops handed over.
    #[must_use]
    pub fn of_ops(&self) -> &OpRequests {
        &self.of_ops
    }

    /// The process is gone: what is in flight is never seen to be served.
    pub fn abandon(&mut self) {
        self.counts.expired += self.oldest.len() as u64;
        self.oldest.clear();
        self.waiting.clear();
        self.of_ops.abandon();
    }

    /// A call of either function was about something that could not be read.
    pub fn unread(&mut self) {
        self.counts.unread += 1;
    }

    /// Forgets what was handed over before, and has waited too long.
    pub fn expire(&mut self, before: Tsc) {
        while let Some(&(given, object)) = self.oldest.first()
            && given.at < before
        {
            self.give_up(object, given);
            self.counts.expired += 1;
        }
    }

    /// The oldest of all, `given` under this name: nobody will be seen to serve it.
    fn give_up(&mut self, object: u64, given: Given) {
        self.oldest.remove(&(given, object));
        if let Some(times) = self.waiting.get_mut(&object) {
            // Under each name they are in order of time; of those at the same time any is as old.
            if let Some(index) = times.iter().position(|&other| other == given) {
                times.remove(index);
            }
            if times.is_empty() {
                self.waiting.remove(&object);
            }
        }
        self.of_ops.given_up(given);
    }

    /// What was handed over under this name until then, in order of time.
    fn take_earlier(&mut self, object: u64, until: Tsc) -> Vec<Given> {
        let Some(times) = self.waiting.get_mut(&object) else {
            return Vec::new();
        };
        let count = times.partition_point(|given| given.at <= until);
        let earlier = times.drain(..count).collect();
        if times.is_empty() {
            self.waiting.remove(&object);
        }
        earlier
    }

    /// How long requests waited from the hand-over to the call that served them.
    #[must_use]
    pub fn waits(&self) -> &Profile {
        &self.waits
    }

    /// What became of the requests.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// How many are in flight.
    #[must_use]
    pub fn count(&self) -> usize {
        self.oldest.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_flight() -> InFlight {
        InFlight::new(Resolution::default())
    }

    fn at(at: u64) -> Given {
        Given {
            at: Tsc(at),
            tid: 1,
        }
    }

    fn from(start: u64) -> Service {
        Service {
            start: Tsc(start),
            latency: Ticks(1),
        }
    }

    #[test]
    fn a_request_is_served_once_and_only_if_it_was_handed_over() {
        let mut requests = in_flight();
        requests.enqueue(7, at(100));
        assert_eq!(requests.serve(8, from(150)), None);
        assert_eq!(requests.serve(7, from(99)), None);
        assert_eq!(requests.serve(7, from(150)), Some(Ticks(50)));
        assert_eq!(requests.serve(7, from(160)), None);
        assert_eq!(requests.count(), 0);
        let counts = requests.counts();
        assert_eq!((counts.enqueued, counts.served, counts.others), (1, 1, 3));
        assert_eq!(requests.waits().count(), 1);
    }

    #[test]
    fn an_address_that_is_used_again_while_the_call_is_not_known_yet_is_told_apart() {
        let mut requests = in_flight();
        requests.enqueue(7, at(100));
        requests.enqueue(7, at(300));
        assert_eq!(requests.serve(7, from(150)), Some(Ticks(50)));
        assert_eq!(requests.serve(7, from(310)), Some(Ticks(10)));
        assert_eq!(requests.counts().expired, 0);
    }

    #[test]
    fn what_was_served_unseen_does_not_make_the_next_wait_longer() {
        let mut requests = in_flight();
        requests.enqueue(7, at(100));
        requests.enqueue(7, at(300));
        assert_eq!(requests.serve(7, from(320)), Some(Ticks(20)));
        assert_eq!((requests.counts().expired, requests.count()), (1, 0));
    }

    #[test]
    fn requests_expire_and_are_bounded() {
        let mut requests = in_flight();
        requests.enqueue(1, at(0));
        requests.enqueue(2, at(900));
        requests.expire(Tsc(500));
        assert_eq!((requests.count(), requests.counts().expired), (1, 1));
        assert_eq!(requests.serve(1, from(1500)), None);
        for object in 0..MOST as u64 {
            requests.enqueue(1000 + object, at(2000 + object));
        }
        assert_eq!((requests.count(), requests.counts().crowded_out), (MOST, 1));
    }
}
