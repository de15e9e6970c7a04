//! The lives of coroutines of C++, by what is known when they are resumed, and nothing else: when a resume ends, another thread may
//! have resumed the same coroutine already, or ended it, and its frame may be anybody's memory.
//!
//! [`Poll::states`] are then the number of the place at which the coroutine goes on (gcc's `_Coro_resume_index`: even, from 2 on; 0 when
//! it is made, one more when it is destroyed there), and a part of the address by which it can be resumed, zero when its body has
//! ended.

use std::collections::HashMap;

use darc_record::{Field, Tsc};

use super::{Life, Lives, Open, Poll};

/// The coroutine is made: its memory was none before.
const MADE: u32 = 0;
/// It waits to be resumed for the first time (`initial_suspend`): gcc counts that place first.
const UNRESUMED: u32 = 2;
/// Beside a place: it is destroyed there.
const DESTROYED: u32 = 1;
/// Its body has ended.
const ENDED: u32 = 0;

impl Lives {
    /// Until when resumes are to be taken that have ended, when all are known until now. One that began before may end, and be told of, a little
    /// later: the coroutine may have been passed to another thread in it.
    pub(super) fn complete_for_coroutines(&mut self, complete: Tsc) -> Tsc {
        let before = std::mem::replace(&mut self.complete, complete);
        match complete == Tsc(u64::MAX) {
            true => complete,
            false => before,
        }
    }

    /// Holds those back that began after one of the same coroutine that is held.
    pub(super) fn hold_back(&mut self, ripe: &mut Vec<Poll>) {
        let mut first: HashMap<u64, Tsc> = HashMap::new();
        for poll in &self.held {
            let known = first.entry(poll.future).or_insert(poll.op.start);
            *known = poll.op.start.min(*known);
        }
        let later = |poll: &mut Poll| {
            first
                .get(&poll.future)
                .is_some_and(|&at| at < poll.op.start)
        };
        self.held.extend(ripe.extract_if(.., later));
    }

    /// Takes a resume in its turn; the life of which it tells the end. That is over since the resume before.
    pub(super) fn resume(&mut self, poll: Poll) -> Option<Life> {
        self.fates.polls = self.fates.polls.saturating_add(1);
        let (place, head) = poll.states;
        let (start, end) = (poll.op.start, poll.op.end);
        let known = self.open.remove(&poll.future);
        let known = match known {
            Some(open) if open.begun > start => {
                self.out_of_turn(poll.future, open);
                return None;
            }
            known => known,
        };
        if head == Field::NESTED {
            self.unseen(start, end);
            return self.within(known, &poll);
        }
        match place {
            MADE => {
                let ended = known.and_then(|open| self.replaced(open, start));
                self.goes_on(poll.future, Some(Life::beginning(&poll)), &poll);
                ended
            }
            // Its life begins when somebody resumes it, as that of a future does. The compiler may have made it without a call.
            UNRESUMED => {
                let before = known.filter(|open| open.state != MADE);
                let ended = before.and_then(|open| self.replaced(open, start));
                self.goes_on(poll.future, Some(Life::beginning(&poll)), &poll);
                ended
            }
            _ if place & DESTROYED != 0 => {
                // A resume that began before may be told of later still: it is not another coroutine's.
                self.goes_on(poll.future, None, &poll);
                // One that is left by an exception is destroyed where it would have been made.
                let has_ended = head == ENDED && place != MADE | DESTROYED;
                self.are_destroyed |= has_ended;
                if has_ended {
                    return self.ended(known?, start);
                }
                self.left(known, start);
                None
            }
            _ => {
                let since = known.as_ref().map_or(end, |open| open.since.max(end));
                let life = self.went_on(known, &poll);
                self.goes_on(poll.future, life, &poll);
                if let Some(open) = self.open.get_mut(&poll.future) {
                    open.since = since;
                }
                None
            }
        }
    }

    /// Within this resume coroutines were made, resumed or destroyed, which ones is not told: this one may be another one by now.
    fn within(&mut self, known: Option<Open>, poll: &Poll) -> Option<Life> {
        let is_new = matches!(poll.states.0, MADE | UNRESUMED);
        let is_same = known.as_ref().is_some_and(|open| open.state == MADE);
        let ended = match known {
            Some(open) if is_new && !is_same => self.replaced(open, poll.op.start),
            known => {
                self.fates.lost += u64::from(known.is_some_and(|open| open.life.is_some()));
                None
            }
        };
        self.fates.lost += u64::from(is_new && !is_same);
        self.goes_on(poll.future, None, poll);
        ended
    }

    /// A later resume of the coroutine is known already: resumes on two threads may overlap, and be told of in another order.
    fn out_of_turn(&mut self, coroutine: u64, open: Open) {
        // If it is destroyed already its life was told without this one.
        let is_destroyed = open.state & DESTROYED != 0;
        self.fates.lost += u64::from(open.life.is_some() || is_destroyed);
        let open = Open { life: None, ..open };
        self.open.insert(coroutine, open);
    }

    /// The life of a coroutine in the place of which another one is made: it has ended if such coroutines are not destroyed by others
    /// when they have.
    fn replaced(&mut self, open: Open, until: Tsc) -> Option<Life> {
        if self.are_destroyed {
            self.fates.lost += u64::from(open.life.is_some());
            return None;
        }
        self.ended(open, until)
    }

    /// The life of a coroutine that was resumed no more, when it is known to have come to its end.
    fn ended(&mut self, open: Open, until: Tsc) -> Option<Life> {
        let life = open.life?;
        let is_lost = self.may_miss(open.since, until);
        self.fates.lost += u64::from(is_lost);
        (!is_lost).then_some(life)
    }

    /// The life with one more resume; nothing where its begin is not known.
    fn went_on(&mut self, open: Option<Open>, poll: &Poll) -> Option<Life> {
        let Some(open) = open.filter(|open| open.state & DESTROYED == 0) else {
            self.fates.begun_before += 1;
            return None;
        };
        let mut life = open.life?;
        let place = poll.states.0;
        if self.may_miss(open.since, poll.op.start) {
            self.fates.lost += 1;
            return None;
        }
        let end = life.op.end;
        life.go_on(place, open.since, poll);
        life.op.end = life.op.end.max(end);
        // What ran on two threads at one time took that time once.
        life.op.latency = life.op.latency.min(life.op.end - life.op.start);
        Some(life)
    }

    /// It may be resumed again after this resume.
    fn goes_on(&mut self, coroutine: u64, life: Option<Life>, poll: &Poll) {
        self.make_room();
        let open = Open {
            life,
            state: poll.states.0,
            since: poll.op.end,
            begun: poll.op.start,
        };
        self.open.insert(coroutine, open);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Fates, Of};
    use super::*;
    use darc_record::{Arguments, Op, Ticks};

    const READY: u32 = 0x1234;

    fn resume(future: u64, states: (u32, u32), start: u64, end: u64) -> Poll {
        Poll {
            future,
            states,
            op: Op {
                tid: 1,
                start: Tsc(start),
                end: Tsc(end),
                latency: Ticks(end - start),
                arguments: Arguments::default(),
                touched: Vec::new(),
            },
            is_whole: true,
        }
    }

    fn lives(polls: &[Poll]) -> (Vec<Life>, Fates) {
        let mut lives = Lives::new(Of::Coroutines, [].into());
        for poll in polls {
            lives.hold(poll.clone(), Tsc(10_000));
        }
        let ended = lives.settle(Tsc(u64::MAX));
        (ended, lives.fates())
    }

    fn awaits(life: &Life) -> Vec<(u32, u64)> {
        let awaits = life.awaits.iter();
        awaits.map(|(&state, &(_, time))| (state, time.0)).collect()
    }

    #[test]
    fn a_life_ends_with_the_last_resume_before_it_is_destroyed_at_its_end() {
        let (ended, fates) = lives(&[
            resume(8, (0, READY), 100, 110),
            resume(8, (4, READY), 120, 140),
            resume(8, (6, READY), 200, 210),
            resume(8, (9, 0), 900, 910),
        ]);
        assert_eq!(ended.len(), 1);
        assert_eq!(ended[0].op.latency, Ticks(110));
        assert_eq!(ended[0].op.end, Tsc(210));
        assert_eq!(awaits(&ended[0]), [(4, 10), (6, 60)]);
        assert_eq!((fates.polls, fates.dropped, fates.under_way), (4, 0, 0));
    }

    /// Whether it was seen to be made or not.
    #[test]
    fn a_life_begins_with_the_first_resume() {
        let (ended, fates) = lives(&[
            resume(8, (0, READY), 50, 60),
            resume(8, (2, READY), 100, 110),
            resume(16, (2, READY), 105, 115),
            resume(8, (4, READY), 120, 140),
            resume(16, (4, READY), 125, 145),
            resume(16, (2, READY), 200, 210),
            resume(8, (2, READY), 205, 215),
        ]);
        let spans = ended.iter().map(|life| (life.op.start.0, life.op.end.0));
        assert_eq!(spans.collect::<Vec<_>>(), [(105, 145), (100, 140)]);
        assert_eq!((fates.begun_before, fates.lost, fates.under_way), (0, 0, 2));
    }

    /// Nobody destroys a coroutine that does not wait at its end: it has ended when another one is made in its place.
    #[test]
    fn a_life_that_nobody_destroys_has_ended_where_another_one_begins() {
        let (ended, fates) = lives(&[
            resume(8, (0, READY), 100, 110),
            resume(8, (4, READY), 150, 160),
            resume(8, (0, READY), 300, 310),
        ]);
        assert_eq!(ended.len(), 1);
        assert_eq!(ended[0].op.latency, Ticks(60));
        assert_eq!(fates.under_way, 1);
    }

    #[test]
    fn what_is_destroyed_before_its_end_is_counted() {
        let (ended, fates) = lives(&[
            resume(8, (0, READY), 100, 110),
            resume(8, (5, READY), 150, 160),
            // Left by an exception.
            resume(8, (0, READY), 300, 310),
            resume(8, (1, 0), 350, 360),
        ]);
        assert!(ended.is_empty());
        assert_eq!((fates.dropped, fates.under_way), (2, 0));
    }

    #[test]
    fn lives_are_lost_within_a_resume_in_which_others_were_resumed() {
        let (ended, fates) = lives(&[
            resume(8, (0, READY), 100, 110),
            resume(16, (0, READY), 120, 130),
            resume(16, (4, Field::NESTED), 140, 150),
            resume(16, (7, 0), 160, 170),
            resume(8, (4, READY), 200, 210),
        ]);
        assert_eq!(ended.len(), 0);
        assert_eq!((fates.lost, fates.under_way), (2, 0));
    }

    #[test]
    fn resumes_that_overlap_on_two_threads_follow_each_other() {
        let (ended, _) = lives(&[
            resume(8, (0, READY), 100, 130),
            resume(8, (4, READY), 120, 125),
            resume(8, (7, 0), 200, 201),
        ]);
        assert_eq!(awaits(&ended[0]), [(4, 0)]);
        assert_eq!(ended[0].op.end, Tsc(130));
        assert_eq!(ended[0].op.latency, Ticks(30));
    }

    #[test]
    fn it_does_not_wait_while_the_longer_of_two_resumes_runs() {
        let (ended, _) = lives(&[
            resume(8, (0, READY), 100, 130),
            resume(8, (4, READY), 120, 125),
            resume(8, (6, READY), 140, 150),
            resume(8, (9, 0), 200, 201),
        ]);
        assert_eq!(awaits(&ended[0]), [(4, 0), (6, 10)]);
        assert_eq!(ended[0].op.latency, Ticks(50));
    }

    /// Which another thread does.
    #[test]
    fn a_resume_may_end_after_the_coroutine_is_destroyed() {
        for is_told_early in [false, true] {
            let mut lives = Lives::new(Of::Coroutines, [].into());
            let last = resume(8, (4, READY), 120, 160);
            lives.hold(resume(8, (0, READY), 100, 110), Tsc(10_000));
            lives.hold(resume(8, (7, 0), 130, 131), Tsc(10_000));
            if is_told_early {
                lives.hold(last.clone(), Tsc(10_000));
                assert!(lives.settle(Tsc(140)).is_empty());
            }
            assert!(lives.settle(Tsc(141)).is_empty());
            if !is_told_early {
                lives.hold(last, Tsc(10_000));
            }
            let ended = lives.settle(Tsc(u64::MAX));
            assert_eq!(awaits(&ended[0]), [(4, 10)], "{is_told_early}");
            assert_eq!((lives.fates().lost, lives.fates().begun_before), (0, 0));
        }
    }

    #[test]
    fn a_resume_of_one_that_is_destroyed_already_begins_no_other() {
        let mut lives = Lives::new(Of::Coroutines, [].into());
        lives.hold(resume(8, (0, READY), 100, 110), Tsc(10_000));
        lives.hold(resume(8, (7, 0), 130, 131), Tsc(10_000));
        assert!(lives.settle(Tsc(140)).is_empty());
        assert_eq!(lives.settle(Tsc(141)).len(), 1);
        lives.hold(resume(8, (4, READY), 120, 160), Tsc(10_000));
        lives.hold(resume(8, (0, READY), 170, 180), Tsc(10_000));
        lives.hold(resume(8, (7, 0), 190, 191), Tsc(10_000));
        assert_eq!(lives.settle(Tsc(u64::MAX)).len(), 1);
        assert_eq!((lives.fates().lost, lives.fates().begun_before), (1, 0));
    }

    #[test]
    fn a_resume_that_is_told_of_too_late_spoils_the_life() {
        let mut lives = Lives::new(Of::Coroutines, [].into());
        lives.hold(resume(8, (4, READY), 120, 125), Tsc(10_000));
        assert!(lives.settle(Tsc(126)).is_empty());
        assert!(lives.settle(Tsc(127)).is_empty());
        lives.hold(resume(8, (0, READY), 100, 130), Tsc(10_000));
        lives.hold(resume(8, (4, READY), 150, 160), Tsc(10_000));
        lives.hold(resume(8, (7, 0), 200, 201), Tsc(10_000));
        assert!(lives.settle(Tsc(u64::MAX)).is_empty());
        assert_eq!(lives.fates().begun_before, 1);
    }

    /// Somebody destroys them when they have ended: one of which that was not seen may have come to no end.
    #[test]
    fn where_they_are_destroyed_at_their_end_nothing_else_tells_it() {
        let (ended, fates) = lives(&[
            resume(8, (0, READY), 100, 110),
            resume(8, (7, 0), 150, 160),
            resume(8, (0, READY), 300, 310),
            resume(8, (0, READY), 400, 410),
        ]);
        assert_eq!((ended.len(), fates.lost, fates.under_way), (1, 1, 1));
    }

    #[test]
    fn a_coroutine_waits_at_places_that_were_not_found_in_the_code() {
        let (ended, fates) = lives(&[
            resume(8, (0, READY), 100, 110),
            resume(8, (40, READY), 150, 160),
            resume(8, (7, 0), 300, 310),
        ]);
        assert_eq!(awaits(&ended[0]), [(40, 40)]);
        assert_eq!(fates.lost, 0);
    }

    #[test]
    fn begins_that_nobody_saw_are_told_of() {
        let (ended, fates) = lives(&[
            resume(16, (4, READY), 300, 310),
            resume(16, (7, 0), 320, 330),
        ]);
        assert!(ended.is_empty());
        assert_eq!((fates.lost, fates.begun_before), (0, 1));
    }
}
