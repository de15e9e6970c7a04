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

    /// Whether it runs a handler, as far as was told.
    pub(super) fn is_in_handler(&self) -> bool {
        self.life == Life::Runs && !self.handlers.is_empty()
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
mod tests;
