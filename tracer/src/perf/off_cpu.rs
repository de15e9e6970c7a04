//! The times in which a thread did not do its work, put together from what the kernel records. Pure.

use std::collections::{HashMap, VecDeque};

use darc_record::{Ticks, Tsc};

use super::record::Left;
use super::services::Piece;
use super::tracepoints::Service;

/// Who ended a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waker {
    /// A thread, and where its stack is kept, if it was seen.
    Thread {
        /// Of which process.
        pid: i32,
        /// Which.
        tid: i32,
        /// For [`super::switches::Switches::stack`].
        stack: Option<u64>,
    },
    /// An interrupt, and which where that is known.
    Interrupt(Option<Service>),
}

/// The end of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wake {
    /// From when on the thread could have run.
    pub at: Tsc,
    /// By whose doing.
    pub by: Waker,
}

/// The handler of a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handler {
    /// The signal's number.
    pub signal: u32,
    /// Where the function begins.
    pub function: u64,
    /// When it was called.
    since: Tsc,
}

/// What a thread waited for in a page fault.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Waited {
    /// All its waits together, each until somebody ended it.
    pub blocked: Ticks,
    /// Who ended the longest, where that is known.
    pub by: Option<Waker>,
    longest: Ticks,
}

impl Waited {
    fn add(&mut self, wait: &Away, wake: Option<Wake>) {
        let time = wake.map_or(wait.to, |wake| wake.at) - wait.from;
        self.blocked = self.blocked + time;
        if time >= self.longest {
            (self.longest, self.by) = (time, wake.map(|wake| wake.by));
        }
    }
}

/// Why a thread did not do its work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// It could have gone on, but did not run: the thread that did for the longest part of it, where that is known;
    /// 0 where the CPU was idle.
    Preempted(Option<i32>),
    /// It let others run (sched_yield(2)).
    Yielded,
    /// It waited; when that ended and by whom, where that is known.
    Blocked(Option<Wake>),
    /// Its CPU did something else.
    Served(Service),
    /// Memory that it touched was brought in.
    Faulted(Waited),
    /// It ran the handler of a signal.
    Handled(Handler),
}

/// A time in which a thread did not do its work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Away {
    /// From here
    pub from: Tsc,
    /// to here.
    pub to: Tsc,
    /// Why.
    pub why: Why,
}

/// Intervals that are kept for each thread, and switches for each CPU.
pub(super) const KEPT: usize = 1 << 14;
/// Intervals of a thread whose ops have more of them: a page fault is one, so these are a gigabyte's.
const MOST_KEPT: usize = 1 << 18;

/// Handlers that may interrupt each other. More are those that were left by a jump.
const MOST_HANDLERS: usize = 8;

/// From the beginning of sched_yield(2) to the switch it takes so long at most: some 20 µs.
const YIELDS: Ticks = Ticks(50_000);

/// So many switches tell how a thread leaves its CPU.
const ENOUGH_SWITCHES: u64 = 20;

/// System calls, and page faults, that are kept for each thread.
const KEPT_CALLS: usize = 1 << 10;

/// What a thread did lately: when, and with what.
#[derive(Debug)]
struct Recent<T> {
    kept: VecDeque<(Tsc, T)>,
    /// The latest that is not kept any more.
    forgotten: Option<Tsc>,
}

impl<T> Default for Recent<T> {
    fn default() -> Recent<T> {
        Recent {
            kept: VecDeque::new(),
            forgotten: None,
        }
    }
}

impl<T> Recent<T> {
    fn push(&mut self, at: Tsc, what: T) {
        if self.kept.len() >= KEPT_CALLS {
            self.forgotten = self.kept.pop_front().map(|(at, _)| at);
        }
        self.kept.push_back((at, what));
    }

    /// What it did within a time; nothing where not all of that is known any more.
    fn within(&self, from: Tsc, to: Tsc) -> impl Iterator<Item = &T> {
        let is_known = self.forgotten.is_none_or(|forgotten| forgotten < from);
        let first = match is_known {
            true => self.kept.partition_point(|&(at, _)| at < from),
            false => self.kept.len(),
        };
        let later = self.kept.range(first..);
        later
            .take_while(move |&&(at, _)| at < to)
            .map(|(_, what)| what)
    }
}

/// One thread's times off its work.
#[derive(Debug, Default)]
pub(super) struct Thread {
    /// In order of time, and none meets another.
    done: Pieces,
    /// Handlers that have ended, each as a whole, in the order of their ends. What they are for an op depends on that: part of its work if
    /// it began in the handler.
    handled: Pieces,
    /// When, how, and from which CPU it left.
    out: Option<(Tsc, Left, u32)>,
    /// The first waking since it left, or the last one before.
    wake: Option<Wake>,
    /// The handlers that it runs, the innermost last.
    handlers: Vec<Handler>,
    /// System calls that were asked for: which, with what.
    calls: Recent<(u32, [u64; 6])>,
    /// Page faults: at which address.
    faults: Recent<u64>,
    /// When it called sched_yield(2) last.
    yields: Option<Tsc>,
    /// How often it left its CPU by that, and how often it could have gone on and left by another's doing.
    own_switches: [u64; 2],
    pub(super) life: Life,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum Life {
    #[default]
    Runs,
    Ended(Tsc),
}

impl Thread {
    pub(super) fn left(&mut self, at: Tsc, left: Left, cpu: u32) {
        self.out = Some((at, left, cpu));
    }

    /// Records were lost: it may have come back without a word.
    pub(super) fn forget_out(&mut self) {
        self.out = None;
        self.wake = None;
        self.handlers.clear();
    }

    pub(super) fn woken(&mut self, wake: Wake) {
        let left = self.out.map(|(at, _, _)| at);
        match (&mut self.wake, left) {
            // The second of one waking's two records may have the stack.
            (Some(known), Some(left)) if known.at >= left => {
                if let (
                    Waker::Thread { tid, stack, .. },
                    Waker::Thread {
                        tid: again,
                        stack: seen,
                        ..
                    },
                ) = (&mut known.by, wake.by)
                    && *tid == again
                    && stack.is_none()
                {
                    *stack = seen;
                }
            }
            (known, _) => *known = Some(wake),
        }
    }

    pub(super) fn returned(&mut self, at: Tsc, onto: u32, cpus: &HashMap<u32, Runners>) {
        let Some((out, left, cpu)) = self.out.take() else {
            return;
        };
        let last = self.done.kept.back().map_or(Tsc(0), |last| last.to);
        // A thread can be woken while it is on its way out.
        let wake = self.wake.take().filter(|wake| wake.at > last);
        let why = match left {
            Left::Preempted => {
                let longest = cpus.get(&cpu).and_then(|on| on.longest(out, at));
                let there = || cpus.get(&onto)?.longest_of_all(out, at);
                // When it was moved to another CPU is not known.
                Why::Preempted(longest.filter(|&tid| cpu == onto || there() == Some(tid)))
            }
            Left::Yielded => Why::Yielded,
            Left::Blocked => Why::Blocked(wake.map(|wake| Wake {
                at: wake.at.max(out).min(at),
                ..wake
            })),
        };
        let away = Away {
            from: out.max(last),
            to: at,
            why,
        };
        self.done.push(away);
    }

    pub(super) fn called(&mut self, at: Tsc, number: u32, arguments: [u64; 6]) {
        self.calls.push(at, (number, arguments));
    }

    /// What a system call that began in a time was called with; the first one.
    pub(super) fn call(&self, number: u32, from: Tsc, to: Tsc) -> Option<[u64; 6]> {
        let mut within = self.calls.within(from, to);
        let found = within.find(|&&(of, _)| of == number);
        found.map(|&(_, arguments)| arguments)
    }

    pub(super) fn yields(&mut self, at: Tsc) {
        self.yields = Some(at);
    }

    /// How it left its CPU, if it did so at that time.
    pub(super) fn left_at(&self, at: Tsc) -> Option<Left> {
        let (since, left, _) = self.out?;
        (since == at).then_some(left)
    }

    /// Whether it leaves its CPU, though it could go on, by a call of sched_yield(2) that has just begun.
    pub(super) fn is_yielding(&mut self, at: Tsc) -> bool {
        let since = self.yields.take();
        let is_own = since.is_some_and(|since| at - since <= YIELDS);
        self.own_switches[usize::from(!is_own)] += 1;
        is_own
    }

    /// Whether it left its CPU so most times, as far as that was asked for.
    pub(super) fn has_yielded(&self) -> bool {
        let [own, others] = self.own_switches;
        own + others >= ENOUGH_SWITCHES && own > others
    }

    pub(super) fn faulted(&mut self, at: Tsc, address: u64) {
        self.faults.push(at, address);
    }

    /// Where a page fault was that began in a time; the first one.
    pub(super) fn fault(&self, from: Tsc, to: Tsc) -> Option<u64> {
        self.faults.within(from, to).next().copied()
    }

    /// It is to run the handler of a signal.
    pub(super) fn signalled(&mut self, at: Tsc, signal: u32, function: u64) {
        if self.handlers.len() >= MOST_HANDLERS {
            self.handlers.remove(0);
        }
        self.handlers.push(Handler {
            signal,
            function,
            since: at,
        });
    }

    /// It comes back from the innermost handler.
    pub(super) fn handler_ended(&mut self, at: Tsc) {
        if let Some(handler) = self.handlers.pop() {
            let whole = Away {
                from: handler.since,
                to: at,
                why: Why::Handled(handler),
            };
            self.handled.push(whole);
        }
    }

    /// Its CPU did something else. A page fault keeps what it waited for, but neither interrupts nor preemption.
    pub(super) fn served(&mut self, piece: Piece) {
        let whole = Away {
            from: piece.from,
            to: piece.to,
            why: match piece.service {
                Service::PageFault => Why::Faulted(Waited::default()),
                service => Why::Served(service),
            },
        };
        lay_under(&mut self.done, whole, |why, inside| {
            match (why, inside.why) {
                (Why::Faulted(waited), Why::Blocked(wake)) => {
                    waited.add(inside, wake);
                    true
                }
                _ => false,
            }
        });
    }

    /// Those that meet `from..to`, cut to it. What handlers that were called then waited for, and their page faults, are theirs.
    pub(super) fn between(&self, from: Tsc, to: Tsc) -> Vec<Away> {
        let cut = |away: &Away| Away {
            from: away.from.max(from),
            to: away.to.min(to),
            ..*away
        };
        let met = self.done.ending_after(from);
        let mut pieces = Pieces {
            kept: met.take_while(|away| away.from < to).map(cut).collect(),
            most: usize::MAX,
            ..Pieces::default()
        };
        let handled = self.handled.ending_after(from);
        for whole in handled.filter(|whole| (from..to).contains(&whole.from)) {
            lay_under(&mut pieces, cut(whole), |_, inside| {
                matches!(inside.why, Why::Blocked(_) | Why::Faulted(_))
            });
        }
        pieces.kept.into()
    }

    /// Whether it is not known any more when it did not do its work since then. From now on more of that is kept.
    pub(super) fn forgot(&mut self, since: Tsc) -> Forgotten {
        let mut both = [(true, &mut self.done), (false, &mut self.handled)].into_iter();
        let Some((is_done, pieces)) = both.find(|(_, pieces)| pieces.forgotten > since) else {
            return Forgotten::Nothing;
        };
        // It may not have been full since there is more room.
        let is_full = pieces.kept.len() >= pieces.most;
        if is_full && is_done && pieces.most >= MOST_KEPT {
            return Forgotten::All;
        }
        if is_full {
            pieces.most = pieces.most.saturating_mul(4).min(MOST_KEPT);
        }
        Forgotten::Some
    }
}

/// What is not known any more of a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Forgotten {
    /// All is known.
    Nothing,
    /// Some is not, but will be of other such times.
    Some,
    /// Of no such time all will ever be known.
    All,
}

/// Intervals in order of time, the latest ones.
#[derive(Debug)]
struct Pieces {
    kept: VecDeque<Away>,
    /// So many are kept.
    most: usize,
    /// Until when some were not.
    forgotten: Tsc,
}

impl Default for Pieces {
    fn default() -> Pieces {
        Pieces {
            kept: VecDeque::new(),
            most: KEPT,
            forgotten: Tsc(0),
        }
    }
}

impl Pieces {
    fn push(&mut self, away: Away) {
        if away.to <= away.from {
            return;
        }
        if self.kept.len() >= self.most
            && let Some(oldest) = self.kept.pop_front()
        {
            self.forgotten = oldest.to;
        }
        self.kept.push_back(away);
    }

    fn ending_after(&self, from: Tsc) -> impl Iterator<Item = &Away> {
        let first = self.kept.partition_point(|away| away.to <= from);
        self.kept.range(first..)
    }
}

/// Adds what others were part of, or came after: those stay, but for the ones inside that its piece `takes` as its own.
fn lay_under(pieces: &mut Pieces, whole: Away, takes: impl Fn(&mut Why, &Away) -> bool) {
    let mut later = Vec::new();
    while pieces.kept.back().is_some_and(|last| last.to > whole.from) {
        later.extend(pieces.kept.pop_back());
    }
    let mut piece = whole;
    for away in later.into_iter().rev() {
        let is_inside = whole.from <= away.from && away.from < whole.to;
        if is_inside && takes(&mut piece.why, &away) {
            continue;
        }
        let to = away.from.min(whole.to);
        pieces.push(Away { to, ..piece });
        pieces.push(away);
        let from = piece.from.max(away.to);
        piece = Away { from, ..whole };
    }
    pieces.push(piece);
}

/// Who ran on a CPU lately: from when on, which thread.
#[derive(Debug, Default)]
pub(super) struct Runners(VecDeque<(Tsc, i32)>);

impl Runners {
    pub(super) fn runs(&mut self, at: Tsc, tid: i32) {
        if self.0.len() >= KEPT {
            self.0.pop_front();
        }
        self.0.push_back((at, tid));
    }

    /// Who ran for the longest part of a time, of those who came within it.
    fn longest(&self, from: Tsc, to: Tsc) -> Option<i32> {
        self.longest_of(self.later(from), from, to)
    }

    /// Who ran for the longest part of a time, also if it ran there before.
    fn longest_of_all(&self, from: Tsc, to: Tsc) -> Option<i32> {
        self.longest_of(self.later(from).saturating_sub(1), from, to)
    }

    /// The first who came at a time or later.
    fn later(&self, from: Tsc) -> usize {
        self.0.partition_point(|&(at, _)| at < from)
    }

    fn longest_of(&self, first: usize, from: Tsc, to: Tsc) -> Option<i32> {
        let mut sums: HashMap<i32, u64> = HashMap::new();
        let mut runners = self.0.range(first..).peekable();
        while let Some(&(at, tid)) = runners.next() {
            if at >= to {
                break;
            }
            let at = at.max(from);
            let until = runners.peek().map_or(to, |&&(next, _)| next.min(to));
            *sums.entry(tid).or_default() += (until - at).0;
        }
        // The thread's number decides between equals, so that the same records give the same answer.
        let longest = sums.into_iter().max_by_key(|&(tid, sum)| (sum, tid));
        longest.map(|(tid, _)| tid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(at: u64, tid: i32, stack: Option<u64>) -> Wake {
        Wake {
            at: Tsc(at),
            by: Waker::Thread { pid: 1, tid, stack },
        }
    }

    fn piece(service: Service, from: u64, to: u64) -> Piece {
        Piece {
            tid: 1,
            service,
            from: Tsc(from),
            to: Tsc(to),
        }
    }

    fn times(thread: &Thread) -> Vec<(u64, u64)> {
        let all = thread.between(Tsc(0), Tsc(u64::MAX));
        all.iter().map(|away| (away.from.0, away.to.0)).collect()
    }

    #[test]
    fn intervals_are_cut_to_what_is_asked_for() {
        let (mut thread, cpus) = (Thread::default(), HashMap::new());
        thread.returned(Tsc(5), 0, &cpus);
        assert_eq!(times(&thread), [], "it was never seen to leave");
        thread.left(Tsc(10), Left::Preempted, 0);
        thread.returned(Tsc(20), 0, &cpus);
        thread.left(Tsc(30), Left::Blocked, 0);
        thread.returned(Tsc(50), 0, &cpus);
        thread.left(Tsc(60), Left::Blocked, 0);
        let between = |from, to| -> Vec<(u64, u64)> {
            let found = thread.between(Tsc(from), Tsc(to));
            found.iter().map(|away| (away.from.0, away.to.0)).collect()
        };
        assert_eq!(between(0, 100), [(10, 20), (30, 50)]);
        assert_eq!(between(15, 40), [(15, 20), (30, 40)]);
        assert_eq!(between(20, 30), []);
        // A record that comes twice, as inherited events make it.
        thread.left(Tsc(60), Left::Blocked, 0);
        thread.returned(Tsc(70), 0, &cpus);
        thread.returned(Tsc(70), 0, &cpus);
        assert_eq!(times(&thread).len(), 3);
    }

    #[test]
    fn who_lets_others_run_is_not_preempted() {
        let (mut thread, cpus) = (Thread::default(), HashMap::new());
        thread.yields(Tsc(1_000));
        assert!(thread.is_yielding(Tsc(3_000)));
        assert!(!thread.is_yielding(Tsc(4_000)), "one call, one switch");
        thread.yields(Tsc(10_000));
        assert!(!thread.is_yielding(Tsc(1_000_000)), "nobody else was there");
        thread.left(Tsc(3_000), Left::Yielded, 0);
        thread.returned(Tsc(9_000), 0, &cpus);
        let all = thread.between(Tsc(0), Tsc(10_000));
        assert_eq!(all[0].why, Why::Yielded);
        assert!(!thread.has_yielded(), "once of three times");
        for at in 1..=20 {
            thread.yields(Tsc(at * 1_000_000));
            thread.is_yielding(Tsc(at * 1_000_000 + 100));
        }
        assert!(thread.has_yielded());
    }

    #[test]
    fn a_call_that_is_forgotten_is_not_taken_for_a_later_one() {
        let mut thread = Thread::default();
        for call in 0..KEPT_CALLS as u64 + 2 {
            thread.called(Tsc(10 * call), 202, [call; 6]);
            thread.faulted(Tsc(10 * call), 100 + call);
        }
        // The first two are forgotten.
        let (from, to) = (Tsc(10), Tsc(50));
        assert_eq!(thread.call(202, from, to), None);
        assert_eq!(thread.fault(from, to), None);
        let from = Tsc(11);
        assert_eq!(thread.call(202, from, to), Some([2; 6]));
        assert_eq!(thread.call(0, from, to), None);
        assert_eq!(thread.fault(from, to), Some(102));
        assert_eq!(thread.fault(from, Tsc(20)), None);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let (mut thread, cpus) = (Thread::default(), HashMap::new());
        for at in 0..KEPT as u64 + 10 {
            thread.left(Tsc(10 * at + 1), Left::Preempted, 0);
            thread.returned(Tsc(10 * at + 5), 0, &cpus);
        }
        assert_eq!(thread.done.kept.len(), KEPT);
        assert_eq!(thread.done.kept[0].from, Tsc(101));
        // The last one that is forgotten ended then.
        assert_eq!(thread.forgot(Tsc(95)), Forgotten::Nothing);
        assert_eq!(thread.forgot(Tsc(94)), Forgotten::Some);
        // From then on there is room for the ops of such a thread.
        for at in 0..2 * KEPT as u64 {
            let at = 1_000_000 + 10 * at;
            thread.left(Tsc(at + 1), Left::Preempted, 0);
            thread.returned(Tsc(at + 5), 0, &cpus);
        }
        assert_eq!(thread.forgot(Tsc(1_000_000)), Forgotten::Nothing);
        // What was forgotten before there was more room asks for no more.
        assert_eq!(thread.forgot(Tsc(0)), Forgotten::Some);
        assert_eq!(thread.done.most, 4 * KEPT);
        for at in 0..2 * MOST_KEPT as u64 {
            let at = 10_000_000 + 10 * at;
            thread.left(Tsc(at + 1), Left::Preempted, 0);
            thread.returned(Tsc(at + 5), 0, &cpus);
            if thread.done.kept.len() == 4 * KEPT && thread.done.most == 4 * KEPT {
                assert_eq!(thread.forgot(Tsc(0)), Forgotten::Some);
            }
        }
        assert_eq!(thread.done.most, MOST_KEPT);
        assert_eq!(thread.forgot(Tsc(10_000_000)), Forgotten::All);
    }

    #[test]
    fn who_ran_longest_is_told() {
        let mut runners = Runners::default();
        for (at, tid) in [(5, 1), (10, 2), (12, 3), (30, 2), (50, 9)] {
            runners.runs(Tsc(at), tid);
        }
        assert_eq!(runners.longest(Tsc(10), Tsc(50)), Some(2));
        assert_eq!(runners.longest(Tsc(10), Tsc(30)), Some(3));
        assert_eq!(runners.longest(Tsc(60), Tsc(70)), None);
        let mut thread = Thread::default();
        let (mut same, mut other) = (Runners::default(), Runners::default());
        same.runs(Tsc(5), 3);
        other.runs(Tsc(15), 8);
        let cpus = HashMap::from([(4, runners), (5, same), (6, other)]);
        // It comes back where it was, and on CPUs on which the same thread ran, or another one, or nobody is known to have.
        for (onto, by) in [(4, Some(3)), (5, Some(3)), (6, None), (7, None)] {
            thread.left(Tsc(10), Left::Preempted, 4);
            thread.returned(Tsc(30), onto, &cpus);
            assert_eq!(thread.done.kept[0].why, Why::Preempted(by), "{onto}");
            thread = Thread::default();
        }
    }

    #[test]
    fn the_first_waking_ends_a_wait() {
        let (mut waiting, cpus) = (Thread::default(), HashMap::new());
        let mut wait = |wakes: &[Wake]| {
            let begin = waiting.done.kept.back().map_or(0, |last| last.to.0);
            waiting.left(Tsc(begin + 10), Left::Blocked, 0);
            for &wake in wakes {
                waiting.woken(wake);
            }
            waiting.returned(Tsc(begin + 100), 0, &cpus);
            waiting.done.kept.back().map(|away| away.why)
        };
        // Of one waking there may be two records, and later ones change nothing.
        let wakes = [
            thread(50, 7, None),
            thread(51, 7, Some(3)),
            thread(60, 8, None),
        ];
        assert_eq!(
            wait(&wakes),
            Some(Why::Blocked(Some(thread(50, 7, Some(3)))))
        );
        assert_eq!(wait(&[]), Some(Why::Blocked(None)));
        // Before it was off its CPU: it was ready all the time.
        assert_eq!(
            wait(&[thread(205, 7, None)]),
            Some(Why::Blocked(Some(thread(210, 7, None))))
        );
        // While it ran, long before.
        waiting.woken(thread(250, 9, None));
        let mut wait = |at: u64| {
            waiting.left(Tsc(at), Left::Blocked, 0);
            waiting.returned(Tsc(at + 5), 0, &cpus);
            waiting.done.kept.back().map(|away| away.why)
        };
        assert_eq!(wait(400), Some(Why::Blocked(None)));
    }

    #[test]
    fn a_fault_keeps_its_wait_and_gives_away_interrupts() {
        let (mut thread, cpus) = (Thread::default(), HashMap::new());
        let timer = Service::LocalInterrupt(236);
        thread.served(piece(timer, 20, 25));
        thread.left(Tsc(30), Left::Blocked, 0);
        thread.returned(Tsc(40), 0, &cpus);
        thread.left(Tsc(50), Left::Blocked, 0);
        let waker = self::thread(78, 7, Some(3));
        thread.woken(waker);
        thread.returned(Tsc(80), 0, &cpus);
        thread.served(piece(Service::PageFault, 10, 90));
        // What it waited for is told once: who ended the longer wait, and how long both were until then.
        let fault = Why::Faulted(Waited::default());
        let waited = Why::Faulted(Waited {
            blocked: Ticks(38),
            by: Some(waker.by),
            longest: Ticks(28),
        });
        let found = thread.between(Tsc(0), Tsc(100));
        let whys: Vec<Why> = found.iter().map(|away| away.why).collect();
        assert_eq!(times(&thread), [(10, 20), (20, 25), (25, 90)]);
        assert_eq!(whys, [fault, Why::Served(timer), waited]);
        // An interrupt that came in while it was being told of.
        thread.served(piece(timer, 95, 97));
        assert_eq!(times(&thread).len(), 4);
    }

    #[test]
    fn a_handler_keeps_what_it_waits_for() {
        let (mut thread, cpus) = (Thread::default(), HashMap::new());
        let whys = |thread: &Thread, from, to| -> Vec<(u64, u64, Option<u32>)> {
            let found = thread.between(Tsc(from), Tsc(to));
            let signal = |why| match why {
                Why::Handled(handler) => Some(handler.signal),
                _ => None,
            };
            let found = found.iter();
            found
                .map(|away| (away.from.0, away.to.0, signal(away.why)))
                .collect()
        };
        // One is left by a jump, which nothing tells.
        thread.signalled(Tsc(5), 10, 0x900);
        thread.signalled(Tsc(10), 14, 0x1000);
        thread.served(piece(Service::PageFault, 12, 14));
        thread.left(Tsc(20), Left::Blocked, 0);
        thread.returned(Tsc(40), 0, &cpus);
        // Another signal in it, and another thread.
        thread.signalled(Tsc(50), 15, 0x2000);
        thread.handler_ended(Tsc(60));
        thread.left(Tsc(70), Left::Preempted, 0);
        thread.returned(Tsc(80), 0, &cpus);
        thread.handler_ended(Tsc(90));
        let own = |from, to| (from, to, Some(14));
        let all = [
            own(10, 50),
            (50, 60, Some(15)),
            own(60, 70),
            (70, 80, None),
            own(80, 90),
        ];
        assert_eq!(whys(&thread, 0, 100), all);
        // What is called in the handler is work, with waits of its own.
        let other = [(20, 40, None), (50, 60, Some(15)), (70, 80, None)];
        assert_eq!(whys(&thread, 15, 85), other);
        // Of what came later all is told.
        thread.left(Tsc(95), Left::Blocked, 0);
        thread.returned(Tsc(97), 0, &cpus);
        assert_eq!(whys(&thread, 65, 100), [(70, 80, None), (95, 97, None)]);
        assert_eq!(whys(&thread, 0, 100)[5], (95, 97, None));
    }
}
