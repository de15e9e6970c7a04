//! Several ways to one end.
//!
//! Where no part of a function's time is large, the largest may all end in the same function further down: a lock that six callees
//! take. So those that are alike are gone on with although none of them is a cause, and what ends alike is one part of the time.
//! Where none of these is large either the time is spread, whatever was found below.

use darc_record::FnodeId;

use crate::descent::Analysis;
use crate::descent::ftree::{Callee, Ftree};
use crate::descent::peak_record::{Outcome, PathState, Stop};
use crate::descent::root_cause::{CauseKind, HALF, RootCause};
use crate::descent::share::{Estimate, Named, SOME_TIME, Weight, named};

impl Analysis {
    /// The calls that are gone on with where the time of a function is spread over `parts`: those of the largest parts that are alike,
    /// where these have half of the time together.
    pub(crate) fn ways(
        &self,
        id: FnodeId,
        peak: u32,
        parts: &[(Option<FnodeId>, Estimate)],
    ) -> Vec<FnodeId> {
        let fnode = self.ftree.fnode(id);
        let is_cause = |&child: &FnodeId| {
            self.ftree.fnode(child).record(peak).is_chosen() && !self.early.contains(&(child, peak))
        };
        if fnode.is_in_batches() || fnode.children.iter().any(is_cause) {
            return Vec::new();
        }
        let of_peak = self.weight(id, peak).time;
        let time = |part: &Estimate| part.time.at;
        let callees = parts
            .iter()
            .filter_map(|(callee, part)| Some(((*callee)?, part)));
        let largest = callees.clone().map(|(_, part)| time(part));
        let largest = largest.fold(0.0, f64::max);
        let alike = callees
            .filter(|(_, part)| time(part) >= largest / 2.0 && of_peak * time(part) >= SOME_TIME);
        let alike: Vec<(FnodeId, f64)> = alike.map(|(at, part)| (at, time(part))).collect();
        let together: f64 = alike.iter().map(|(_, time)| time).sum();
        if alike.len() < 2 || together < HALF {
            return Vec::new();
        }
        let calls = alike.into_iter();
        calls
            .flat_map(|(first, _)| self.followed(first, peak))
            .collect()
    }
}

impl Analysis {
    /// No ops come any more: ways of which it is not known what they end in are forgotten, and the time is spread unless the others end
    /// alike.
    pub(crate) fn forget_open_ways(&mut self) {
        let is_spread = |state: &PathState| *state == PathState::Decided(Outcome::Spread);
        let fnodes = self.ftree.fnodes();
        let spread = fnodes.flat_map(|fnode| {
            let records = fnode.records();
            let spread = records.filter(|(_, record)| is_spread(&record.state));
            spread.map(|(peak, _)| (fnode.id, peak))
        });
        let mut below: Vec<(FnodeId, u32)> = spread.collect();
        let mut open = Vec::new();
        while let Some((id, peak)) = below.pop() {
            for &child in &self.ftree.fnode(id).children {
                let record = self.ftree.fnode(child).record(peak);
                match record.state.is_open() {
                    true => open.push((child, peak)),
                    false if record.is_chosen() => below.push((child, peak)),
                    false => {}
                }
            }
        }
        for (id, peak) in open {
            self.forget_path(id, peak);
        }
    }
}

/// What several ways end in, where that is known, and their ends.
type Group = (Option<(Callee, CauseKind)>, Vec<RootCause>);

/// What takes the time of a function that is spread over its callees, which is `whole` of the peak's, from the ends of the ways through
/// these: by the rules for the parts of a function's time, where several ways end in one function. Nothing where none has much.
pub(crate) fn of_ends(ftree: &Ftree, whole: f64, ends: Vec<RootCause>) -> Option<Vec<RootCause>> {
    let mut groups: Vec<Group> = Vec::new();
    for end in ends {
        let known = end_of(ftree, &end);
        match groups
            .iter_mut()
            .find(|(of, _)| of.is_some() && *of == known)
        {
            Some((_, group)) => group.push(end),
            None => groups.push((known, vec![end])),
        }
    }
    let part = |group: &[RootCause]| group.iter().map(|end| end.share).sum::<f64>() / whole;
    let parts: Vec<Estimate> = groups
        .iter()
        .map(|(_, group)| Estimate::of_time(part(group)))
        .collect();
    let weight = Weight {
        time: whole,
        ops: 0.0,
    };
    let Named::Causes(named) = named(&parts, true)?.of_peak(&parts, &weight) else {
        return None;
    };
    let named = groups.into_iter().zip(named);
    let named = named.filter_map(|((_, group), is_cause)| is_cause.then_some(group));
    let named: Vec<Vec<RootCause>> = named.collect();
    let explained: f64 = named.iter().map(|group| part(group)).sum();
    let is_common = named.iter().any(|group| group.len() > 1);
    // In which ops each of them is a main contributor is not known: in most of them no part is.
    let of_way = |cause: RootCause| RootCause {
        share_of_ops: 0.0,
        ..cause
    };
    (is_common && explained >= HALF).then(|| named.into_iter().flatten().map(of_way).collect())
}

/// What a path ends in that is known to take the time there.
fn end_of(ftree: &Ftree, end: &RootCause) -> Option<(Callee, CauseKind)> {
    let is_known = matches!(end.stop, Stop::SelfTime | Stop::NoCalls)
        && matches!(
            end.kind,
            CauseKind::Function | CauseKind::Loop | CauseKind::Syscall
        );
    let callee = ftree.fnode(*end.path.last()?).callee;
    (is_known && callee != Callee::Unknown).then_some((callee, end.kind))
}

#[cfg(test)]
mod tests {
    use darc_record::FnodeId;

    use crate::descent::peak_record::{Outcome, PathState};
    use crate::simulate::{Program, Run, Session, call};
    use crate::{CauseKind, Params, PeakStatus, Stop};

    const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

    /// f0 calls six functions, and each of these two others, 7 and 8.
    fn six(each: fn(&mut Run<'_>)) -> Program {
        let sites: Vec<_> = (1..=6).map(|id| (id, call(id))).collect();
        let f0 = Program::default().function(0, "f0", &sites, |run| {
            for id in 1..=6 {
                run.level = u64::from(id);
                run.call(id, id);
            }
        });
        (1..=6).zip(NAMES).fold(f0, |program, (id, name)| {
            let sites = [(10 * id + 7, call(7)), (10 * id + 8, call(8))];
            program.function(id, name, &sites, each)
        })
    }

    fn call_of(run: &mut Run<'_>, function: u32) {
        let from = run.level as u32;
        run.call(10 * from + function, function);
        run.level = u64::from(from);
    }

    fn analysed(program: Program) -> Session {
        let mut session = Session::new(program, Params::default());
        session.run(2_000);
        assert!(session.finished);
        session
    }

    #[test]
    fn what_six_callees_of_a_sixth_each_end_in_is_the_cause() {
        let program = six(|run| {
            run.work(100);
            call_of(run, 7);
        })
        .function(7, "enter", &[(9, call(9))], |run| run.call(9, 9))
        .function(8, "unused", &[], |_| {})
        .function(9, "wait", &[], |run| run.work(9_900));
        let session = analysed(program);
        let causes = session.causes(1);
        let expected = NAMES.map(|name| format!("f0/{name}/enter/wait"));
        let paths: Vec<&String> = causes.iter().map(|(path, _, _)| path).collect();
        assert_eq!(paths, expected.each_ref());
        let causes = session.analysis.root_causes(1);
        let share: f64 = causes.iter().map(|cause| cause.share).sum();
        assert!((share - 0.99).abs() < 0.01, "{share}");
        assert_eq!(session.analysis.peak_status(1), PeakStatus::RootCauseFound);
    }

    /// None of the ways has a main part, and they have two ends with half of each of them.
    #[test]
    fn two_ends_of_all_ways_are_two_causes() {
        let program = six(|run| {
            call_of(run, 7);
            call_of(run, 8);
        })
        .function(7, "hash", &[], |run| run.work(5_000))
        .function(8, "copy", &[], |run| run.work(4_000));
        let causes = analysed(program).causes(1);
        assert_eq!(causes.len(), 12, "{causes:?}");
        assert!(causes.iter().all(|cause| cause.2 == Stop::NoCalls));
    }

    /// The ops end while it is looked where the ways lead.
    #[test]
    fn ways_that_could_not_be_followed_to_their_ends_are_spread() {
        let program = six(|run| {
            run.work(100);
            call_of(run, 7);
        })
        .function(7, "wait", &[], |run| run.work(9_900))
        .function(8, "unused", &[], |_| {});
        let mut session = Session::new(program, Params::default());
        let is_spread = |session: &Session| {
            let f0 = session.analysis.ftree().fnode(FnodeId::ROOT);
            f0.record(1).state == PathState::Decided(Outcome::Spread)
        };
        while !is_spread(&session) {
            session.run(1);
        }
        assert_eq!(session.causes(1)[0].2, Stop::StillDescending);
        session.analysis.decide_without_long_ops();
        let spread = ("f0".to_owned(), CauseKind::Function, Stop::Spread);
        assert_eq!(session.causes(1), [spread]);
        assert_eq!(session.analysis.peak_status(1), PeakStatus::Spread);
    }

    fn is_spread(program: Program) -> bool {
        let session = analysed(program);
        let spread = ("f0".to_owned(), CauseKind::Function, Stop::Spread);
        assert_eq!(session.probes(), 0);
        session.causes(1) == [spread] && session.analysis.peak_status(1) == PeakStatus::Spread
    }

    #[test]
    fn ways_that_end_apart_or_have_little_in_common_are_spread() {
        let itself = six(|run| {
            run.work(9_500);
            call_of(run, 7);
        });
        let little = itself.function(7, "allocate", &[], |run| run.work(500));
        assert!(is_spread(little.function(8, "unused", &[], |_| {})));
        // Two of six: what they end in has a third of the time, and all others together have more.
        let two = six(|run| match run.level {
            1 | 2 => call_of(run, 7),
            _ => run.work(8_000),
        });
        let two = two.function(7, "hash", &[], |run| run.work(8_000));
        let session = analysed(two.function(8, "unused", &[], |_| {}));
        let named: Vec<String> = session.causes(1).into_iter().map(|it| it.0).collect();
        assert_eq!(
            named,
            ["f0/a/hash", "f0/b/hash", "f0/c", "f0/d", "f0/e", "f0/f"]
        );
    }
}
