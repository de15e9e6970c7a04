//! Where ops of a peak come slowly, the stacks of threads in the middle of one tell where the descent is likely to go on: the calls of
//! all functions on them are measured at once, in the same ops ([`Analysis::foresee`](darc_analysis::Analysis::foresee)). What is
//! decided is decided by ops all the same.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

use darc_analysis::descent::early::Slow;
use darc_analysis::{Callee, FnodeId, SiteId, Ticks, Tsc};
use darc_disasm::SiteKind;
use darc_process::Process;
use darc_process::code::Scanned;
use darc_process::plt::Destination;
use darc_process::stacks::{StackFrame, Unwinding};
use darc_record::Op;
use darc_tracer::addr::TargetAddr;
use darc_tracer::engine::Begun;

use crate::session::Session;
use crate::session::catalog::Catalog;
use crate::session::descent::futures::Ops;
use crate::session::descent::investigation::{Investigation, Learnt, learn};
use crate::session::descent::timeline::is_numbered_like_us;
use crate::session::survey::{JUMPS, below_f0, site_before};

/// A thread stands still for each look.
const EVERY: Duration = Duration::from_millis(10);
/// So many are of one op at most,
const MOST_OF_OP: usize = 2;
/// ... of one peak,
const MOST_OF_PEAK: usize = 12;
/// ... and all together.
const MOST: usize = 4 * MOST_OF_PEAK;
/// The calls of functions that are measured for it take as much room as so many.
const MOST_CALLS: usize = 2_000;
/// Ops that took longer for looks by a larger part than this, a twentieth, decide nothing.
const DISTURBED: u64 = 20;

/// What is on the stacks of this part of the ops that were looked at, a fifth, is gone on with,
const PART: usize = 5;
/// ... if it is in so many.
const LEAST: usize = 2;
/// One is enough where ops take this long: some tenths of a second.
const LONG: Ticks = Ticks(1 << 29);

/// A look at the stack of a thread in an op of f0.
#[derive(Debug)]
struct Look {
    begun: Begun,
    /// For how long the thread stood still for it, in cycles.
    pause: Ticks,
    /// Its frames from f0 inwards; none where they could not be had.
    frames: Rc<[StackFrame]>,
}

/// A look at an op that has ended.
#[derive(Clone, Debug)]
struct Known {
    /// When the op began.
    op: Tsc,
    /// Where it counts.
    bucket: u32,
    latency: Ticks,
    frames: Rc<[StackFrame]>,
}

/// The looks that were taken.
#[derive(Debug)]
pub struct Ahead {
    unwinding: Unwinding,
    last: Option<Instant>,
    /// How many more there may be.
    left: usize,
    /// How many more calls may be measured for them.
    room: usize,
    /// Of ops that have not ended, as far as is known.
    pending: VecDeque<Look>,
    known: VecDeque<Known>,
    /// Whether there are some that nobody has followed yet.
    is_new: bool,
}

/// Where a look leads, as far as it was followed.
#[derive(Clone, Copy)]
struct Place<'l> {
    op: Tsc,
    /// The fnode of the function that called the first of the frames.
    fnode: FnodeId,
    /// The caller, then those that are further in.
    frames: &'l [StackFrame],
    /// How often the call was handed on by a jump.
    jumps: usize,
}

impl Default for Ahead {
    fn default() -> Ahead {
        Ahead {
            unwinding: Unwinding::default(),
            last: None,
            left: MOST,
            room: MOST_CALLS,
            pending: VecDeque::new(),
            known: VecDeque::new(),
            is_new: false,
        }
    }
}

impl Ahead {
    /// What was seen so far is of code that may lie elsewhere now.
    pub(super) fn forget(&mut self) {
        self.pending.clear();
        self.known.clear();
    }

    /// Takes the looks at an op that has ended: for how long its thread stood still for them.
    fn ended(&mut self, op: &Op, bucket: u32) -> Ticks {
        let mut pause = Ticks(0);
        let known = &mut self.known;
        let is_new = &mut self.is_new;
        self.pending.retain(|look| {
            let is_over = look.begun.tid == op.tid && look.begun.at <= op.end;
            if is_over && look.begun.at >= op.start {
                pause = pause + look.pause;
                if !look.frames.is_empty() {
                    known.push_back(Known {
                        op: op.start,
                        bucket,
                        latency: op.latency,
                        frames: Rc::clone(&look.frames),
                    });
                    *is_new = true;
                }
            }
            !is_over
        });
        pause
    }

    /// Whether an op that was looked at has ended since the last time.
    pub(super) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.is_new)
    }

    fn looks_at(&self, op: &Begun) -> usize {
        let pending = self.pending.iter();
        pending.filter(|look| look.begun == *op).count()
    }
}

impl Session<'_> {
    /// Looks at the stack of a thread that is in an op which is waited for, now and then.
    pub(super) fn look_ahead(&mut self) {
        let ahead = &mut self.investigation.ahead;
        let is_due = ahead.last.is_none_or(|last| last.elapsed() >= EVERY);
        if !is_due || ahead.left == 0 || !self.may_look_ahead() {
            return;
        }
        self.investigation.ahead.last = Some(Instant::now());
        let now = darc_tracer::tsc();
        let slow = self.investigation.analysis.slow(now).into_iter();
        let slow = slow.filter(|slow| self.investigation.looks_of(slow.peak) < MOST_OF_PEAK);
        let Some(Slow { beyond, .. }) = slow.min_by_key(|slow| slow.beyond) else {
            return;
        };
        // Where threads have other numbers there is no such thread, or another one.
        if !is_numbered_like_us(self.process.pid()) {
            return;
        }
        let mut begun = self.process.engine().ops_in_progress();
        begun.retain(|op| {
            let is_long = now.0.saturating_sub(op.at.0) >= beyond.0;
            is_long && self.investigation.is_worth_a_look(op)
        });
        // The one of which least is known, and of these the one that will be over first.
        let ahead = &self.investigation.ahead;
        if let Some(op) = begun
            .into_iter()
            .min_by_key(|op| (ahead.looks_at(op), op.at))
        {
            self.look_at(op);
        }
    }

    /// Whether stacks can be looked at, and tell something.
    fn may_look_ahead(&self) -> bool {
        self.process.engine().leaves_target_untraced()
            && self.has_probes
            && !self.calls_are_away
            && !self.pacing.is_resting()
            && self.serving.is_none()
            && matches!(self.investigation.ops, Ops::Calls)
            && !self.process.follows_goroutines()
    }

    fn look_at(&mut self, begun: Begun) {
        let (modules, f0) = (self.process.modules(), self.investigation.f0);
        let (before, since) = (darc_tracer::tsc(), Instant::now());
        let copied = self.process.engine().stack_of(begun).ok().flatten();
        let (ticks, took) = (darc_tracer::tsc() - before, since.elapsed());
        let pause = copied.as_ref().map(|it| it.1).unwrap_or_default();
        let ahead = &mut self.investigation.ahead;
        let frames = copied.as_ref().zip(f0).and_then(|((stack, _), f0)| {
            below_f0(ahead.unwinding.of(modules).frames(modules, stack), f0)
        });
        let frames = frames.unwrap_or_default();
        tracing::debug!(
            target: "descent",
            tid = begun.tid,
            ?pause,
            stack = ?frames.iter().map(|frame| modules.name(frame.function)).collect::<Vec<_>>(),
            "looked at the stack of an op"
        );
        ahead.left -= 1;
        ahead.pending.push_back(Look {
            begun,
            pause: Ticks((ticks.0 as f64 * pause.div_duration_f64(took)) as u64),
            frames: frames.into(),
        });
        if copied.is_some() {
            self.investigation.counters.pauses.push(pause);
        }
    }
}

impl Investigation {
    /// How many looks at ops of a peak there are.
    fn looks_of(&self, peak: Option<u32>) -> usize {
        let known = self.ahead.known.iter();
        let of_peak = known.filter(|look| self.analysis.peak_of(look.bucket) == peak);
        of_peak.count()
    }

    fn is_worth_a_look(&self, op: &Begun) -> bool {
        let is_chosen = self.threads.as_ref().is_none_or(|it| it.has(op.tid));
        is_chosen && self.ahead.looks_at(op) < MOST_OF_OP
    }

    /// An op has ended. Whether its thread stood still for looks so long that it tells nothing.
    pub(super) fn was_disturbed(&mut self, op: &Op) -> bool {
        if self.ahead.pending.is_empty() {
            return false;
        }
        let bucket = self.analysis.bucket_of(op);
        let pause = self.ahead.ended(op, bucket);
        pause.0.saturating_mul(DISTURBED) > op.latency.0
    }

    /// Begins below functions that were on the stack in ops of a peak, as far as their calls are known. Whether there were any.
    pub(super) fn go_ahead(&mut self, process: &Process<'_>, catalog: &mut Catalog) -> bool {
        let mut peaks: BTreeMap<u32, Vec<Known>> = BTreeMap::new();
        for look in &self.ahead.known {
            if let Some(peak) = self.analysis.peak_of(look.bucket) {
                peaks.entry(peak).or_default().push(look.clone());
            }
        }
        let mut has_begun = false;
        for (peak, looks) in peaks {
            has_begun |= self.go_along(&looks, peak, process, catalog);
        }
        has_begun
    }

    /// Goes along the looks at ops of a peak from f0 inwards, where enough of them lead the same way.
    fn go_along(
        &mut self,
        looks: &[Known],
        peak: u32,
        process: &Process<'_>,
        catalog: &mut Catalog,
    ) -> bool {
        let ops = looks.iter().map(|look| look.op).collect::<BTreeSet<_>>();
        let least = match looks.iter().all(|look| look.latency >= LONG) {
            true => ops.len().div_ceil(PART),
            false => ops.len().div_ceil(PART).max(LEAST),
        };
        let begin = |look| {
            let Known { op, frames, .. }: &Known = look;
            Place {
                op: *op,
                fnode: FnodeId::ROOT,
                frames,
                jumps: 0,
            }
        };
        let mut has_begun = false;
        let mut places: Vec<Place<'_>> = looks.iter().map(begin).collect();
        while !places.is_empty() {
            let mut callees: BTreeMap<FnodeId, Vec<Place<'_>>> = BTreeMap::new();
            for place in std::mem::take(&mut places) {
                if let Some(next) = self.next(place, peak, process, catalog) {
                    callees.entry(next.fnode).or_default().push(next);
                }
            }
            for (fnode, reached) in callees {
                let ops = reached
                    .iter()
                    .map(|place| place.op)
                    .collect::<BTreeSet<_>>();
                if ops.len() >= least {
                    has_begun |= self.foresee(fnode, peak, process, catalog);
                    places.extend(reached);
                }
            }
        }
        has_begun
    }

    /// Has the calls of a function measured early, as long as there is room for them.
    fn foresee(
        &mut self,
        fnode: FnodeId,
        peak: u32,
        process: &Process<'_>,
        catalog: &Catalog,
    ) -> bool {
        let sources = self.sources(process, catalog);
        let ftree = self.analysis.ftree();
        let scanned = sources.and_then(|it| it.scan(ftree.fnode(fnode)).ok());
        let Some(room) =
            scanned.and_then(|scanned| self.ahead.room.checked_sub(scanned.sites.len()))
        else {
            return false;
        };
        let has_begun = self.analysis.foresee(fnode, peak);
        if has_begun {
            tracing::debug!(target: "descent", fnode = fnode.0, peak, "foreseen");
            self.ahead.room = room;
        }
        has_begun
    }

    /// Where a look leads from there.
    fn next<'l>(
        &mut self,
        place: Place<'l>,
        peak: u32,
        process: &Process<'_>,
        catalog: &mut Catalog,
    ) -> Option<Place<'l>> {
        let [caller, callee, ..] = place.frames else {
            return None;
        };
        if caller.called_generated {
            return None;
        }
        let entry = process.modules().locate(callee.function)?;
        let children = self.children_by(place, peak, process, catalog)?;
        let sources = self.sources(process, catalog)?;
        let ftree = self.analysis.ftree();
        let leads_there = |&&child: &&FnodeId| {
            let destination = sources.destination(ftree.fnode(child));
            matches!(destination, Ok(Destination::Known(at) | Destination::Expected(at)) if at == entry)
        };
        let inwards = |fnode| Place {
            fnode,
            frames: &place.frames[1..],
            jumps: 0,
            ..place
        };
        if let Some(&child) = children.iter().find(leads_there) {
            let known = ftree.fnode(child);
            let (site, callee) = (known.site?, known.callee);
            if self.analysis.is_being_expanded(place.fnode) {
                // The probe of what an indirect call was seen to reach may have been taken away.
                self.analysis.add_child(place.fnode, site, callee);
            }
            return Some(inwards(child));
        }
        let is_unknown = |id: &FnodeId| ftree.fnode(*id).callee == Callee::Unknown;
        let (unknown, named): (Vec<FnodeId>, Vec<FnodeId>) =
            children.into_iter().partition(is_unknown);
        match (&unknown[..], &named[..]) {
            ([], &[fnode]) if place.jumps < JUMPS => Some(Place {
                fnode,
                jumps: place.jumps + 1,
                ..place
            }),
            (&[child], []) => {
                let site = ftree.fnode(child).site?;
                let child = self.learn_ahead(place.fnode, site, entry, process, catalog)?;
                Some(inwards(child))
            }
            _ => None,
        }
    }

    /// The calls that a function is in: those by the site that it returns behind, or where it was entered by a jump those that are jumps.
    /// Where it is known what the function called in ops of the peak, what it never called is left out: what an indirect call led to on
    /// a stack may have been reached by a jump from what it calls.
    fn children_by(
        &self,
        place: Place<'_>,
        peak: u32,
        process: &Process<'_>,
        catalog: &Catalog,
    ) -> Option<Vec<FnodeId>> {
        let ftree = self.analysis.ftree();
        let fnode = ftree.fnode(place.fnode);
        let scanned = self.sources(process, catalog)?.scan(fnode).ok()?;
        let sites = sites_of(&scanned, place);
        let known = |addr| catalog.known_site(process.modules().place(TargetAddr(addr))?);
        let sites: Vec<SiteId> = sites.into_iter().filter_map(known).collect();
        let is_known = fnode.record(peak).decision_ops > 0;
        let is_meant = |id: &FnodeId| {
            let child = ftree.fnode(*id);
            let is_there = child.site.is_some_and(|site| sites.contains(&site));
            let may_be_called = !is_known || child.record(peak).stats.count > 0;
            is_there && may_be_called && !child.is_unmeasured()
        };
        Some(fnode.children.iter().copied().filter(is_meant).collect())
    }

    /// What an indirect call leads to, where its caller's calls are not measured yet: later it is told apart at run time.
    fn learn_ahead(
        &mut self,
        parent: FnodeId,
        site: SiteId,
        entry: TargetAddr,
        process: &Process<'_>,
        catalog: &mut Catalog,
    ) -> Option<FnodeId> {
        if !self.analysis.is_being_expanded(parent) {
            return None;
        }
        match learn(
            process.modules(),
            self.analysis.ftree(),
            parent,
            site,
            entry,
        ) {
            Learnt::Callee(place) => {
                let callee = Callee::Function(catalog.callee(place));
                Some(self.analysis.add_child(parent, site, callee))
            }
            Learnt::Syscall(_) | Learnt::Unmeasured(..) | Learnt::Other(_) => None,
        }
    }
}

/// The sites of a function by which it may have called what is next on a stack.
fn sites_of(scanned: &Scanned, place: Place<'_>) -> Vec<u64> {
    match place.jumps {
        0 => site_before(scanned, place.frames[0].at)
            .into_iter()
            .collect(),
        _ => {
            let sites = scanned.sites.iter();
            let jumps = sites.filter(|site| matches!(site.kind, SiteKind::TailJump { .. }));
            jumps.map(|site| site.addr).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use darc_analysis::Params;
    use darc_process::modules::{CodeRef, ModuleId};
    use darc_record::Arguments;
    use darc_symbols::{FileAddr, NameSpec};

    use super::*;

    fn look(tid: i32, at: u64) -> Look {
        let frame = StackFrame {
            function: CodeRef {
                module: ModuleId(0),
                addr: FileAddr(16),
            },
            at: TargetAddr(20),
            sp: 0,
            called_generated: false,
        };
        Look {
            begun: Begun { tid, at: Tsc(at) },
            pause: Ticks(5),
            frames: [frame].into(),
        }
    }

    fn op(tid: i32, start: u64, end: u64) -> Op {
        Op {
            arguments: Arguments::default(),
            tid,
            start: Tsc(start),
            end: Tsc(end),
            latency: Ticks(end - start),
            touched: Vec::new(),
        }
    }

    #[test]
    fn a_look_is_at_the_op_that_its_thread_was_in() {
        let mut ahead = Ahead::default();
        ahead.pending.extend([look(1, 10), look(1, 300)]);
        assert_eq!(ahead.ended(&op(2, 10, 110), 7), Ticks(0));
        assert_eq!(ahead.pending.len(), 2);
        assert!(!ahead.take_news());
        assert_eq!(ahead.ended(&op(1, 10, 110), 7), Ticks(5));
        assert!(ahead.take_news() && !ahead.take_news());
        let known: Vec<_> = ahead.known.iter().map(|it| (it.op, it.bucket)).collect();
        assert_eq!(known, [(Tsc(10), 7)]);
        // The end of the op of the other look was not told.
        assert_eq!(ahead.ended(&op(1, 500, 600), 7), Ticks(0));
        assert_eq!((ahead.pending.len(), ahead.known.len()), (0, 1));
    }

    #[test]
    fn an_op_that_was_much_longer_for_a_look_decides_nothing() {
        let spec = NameSpec::parse("serve").unwrap();
        let mut investigation = Investigation::new(spec, Params::default());
        assert!(!investigation.was_disturbed(&op(1, 0, 10)));
        for (latency, is_disturbed) in [(99, true), (100, false)] {
            investigation.ahead.pending.push_back(look(1, 10));
            let op = op(1, 10, 10 + latency);
            assert_eq!(investigation.was_disturbed(&op), is_disturbed, "{latency}");
        }
    }
}
