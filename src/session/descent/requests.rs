//! Carrying out what the analyses ask for: which probes the target is to have.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use darc_analysis::{Callee, FnodeId, Request, SiteId, Ticks};
use darc_process::plt::Destination;
use darc_process::{Libraries, Process, ProcessError};
use darc_tracer::addr::TargetAddr;
use darc_tracer::plan::Plan;

use crate::options::Blocks;
use crate::session::catalog::Catalog;
use crate::session::descent::bindings::Expansion;
use crate::session::descent::expansion;
use crate::session::descent::futures::Ops;
use crate::session::descent::investigation::Investigation;
use crate::session::descent::planning::{self, Planned, Sources};
use crate::session::{Session, markers};

/// Probes that are needed no more are taken away after so many times as long as an op takes on average, for all that are under way
/// then tell nothing,
const RETIRED: u64 = 10;
/// ... and after a second or so at most.
const RETIRED_AT_MOST: u64 = 1 << 32;
/// A few milliseconds are not waited for.
const AT_ONCE: u64 = 1 << 23;

/// What was done of what an analysis asked for.
#[derive(Default)]
struct CarriedOut {
    /// Whether the target is to have other probes now.
    changes: bool,
    /// Whether it has some that are needed no more.
    retires: bool,
    expanded: Vec<FnodeId>,
    filter: Option<Vec<RangeInclusive<Ticks>>>,
    finished: bool,
}

impl CarriedOut {
    /// More was asked for meanwhile.
    fn add(&mut self, more: CarriedOut) {
        self.changes |= more.changes;
        self.retires |= more.retires;
        self.finished |= more.finished;
        self.expanded.extend(more.expanded);
        self.filter = more.filter.or(self.filter.take());
    }
}

impl Session<'_> {
    pub(super) fn find_serving(&mut self) -> Result<(), ProcessError> {
        let Some(serving) = &mut self.serving else {
            return Ok(());
        };
        match serving.find(self.process.modules(), self.investigation.f0) {
            Err(ProcessError::Name(_) | ProcessError::OtherBuild(_))
                if self.process.libraries() == Libraries::NotLoadedYet =>
            {
                Ok(())
            }
            found => found,
        }
    }

    /// Does what the analyses ask for. True when they ask for nothing more, ever.
    pub(super) fn answer(&mut self) -> Result<bool, ProcessError> {
        // What is not there yet would be taken for what cannot be measured.
        if self.process.libraries() == Libraries::NotLoadedYet {
            return Ok(false);
        }
        let mut of_f0 = self.investigation.carry_out(&self.process, self.catalog);
        let tells = self.investigation.ahead.take_news() || !of_f0.expanded.is_empty();
        while tells && self.investigation.go_ahead(&self.process, self.catalog) {
            of_f0.add(self.investigation.carry_out(&self.process, self.catalog));
        }
        // What became of requests is asked of all ops, and the latency of a life is none of a call.
        let is_of_calls =
            self.serving.is_none() && !matches!(self.investigation.ops, Ops::Lives(_));
        if let (Some(latencies), true) = (&of_f0.filter, is_of_calls) {
            self.process.engine_mut().set_filter(latencies);
        }
        // Which calls serve requests of f0 is not known in the target, so all of them are recorded.
        let of_serving = match &mut self.serving {
            Some(serving) => serving.investigation.carry_out(&self.process, self.catalog),
            None => CarriedOut::default(),
        };
        if of_f0.retires || of_serving.retires {
            self.retired_since.get_or_insert(darc_tracer::tsc());
        }
        if !of_f0.changes && !of_serving.changes && !self.are_retired() {
            return Ok(false);
        }
        let done = |investigation: &Investigation| investigation.analysis.is_finished();
        let all_done = done(self.investigation)
            && self
                .serving
                .as_ref()
                .is_none_or(|serving| done(&serving.investigation));
        if all_done && (of_f0.finished || of_serving.finished) {
            return Ok(true);
        }
        self.watch.next_round();
        self.timeline
            .ask_for_calls(self.investigation, self.serving.as_deref());
        self.instrument()?;
        let now = darc_tracer::tsc();
        for fnode in of_f0.expanded {
            self.investigation.expanded(fnode, now);
        }
        if let Some(serving) = &mut self.serving {
            for fnode in of_serving.expanded {
                serving.investigation.expanded(fnode, now);
            }
        }
        Ok(false)
    }

    /// Whether probes that are needed no more are to be taken away.
    fn are_retired(&self) -> bool {
        let profile = self.investigation.analysis.profile();
        let op = profile.total().0 / profile.count().max(1);
        let wait = match op.saturating_mul(RETIRED).min(RETIRED_AT_MOST) {
            ..AT_ONCE => 0,
            wait => wait,
        };
        let passed = self.retired_since.map(|since| darc_tracer::tsc() - since);
        passed.is_some_and(|passed| passed.0 >= wait)
    }

    /// The plan of what f0's analysis needs.
    fn plan_for_f0(&mut self) -> Plan {
        let needed = self.investigation.analysis.needed_probes();
        let needed: Vec<FnodeId> = needed.chain(self.kept.iter().copied()).collect();
        self.plan_of(needed.into_iter())
    }

    /// The plan of f0 and the calls of these fnodes; of the hooks alone while f0 is not there.
    pub(super) fn plan_of(&mut self, needed: impl Iterator<Item = FnodeId>) -> Plan {
        let sources = self.investigation.sources(&self.process, self.catalog);
        let analysis = &self.investigation.analysis;
        let root = analysis.ftree().root();
        let Some((sources, f0)) = sources.and_then(|it| it.scan(root).ok().map(|f0| (it, f0)))
        else {
            return self.process.hooks();
        };
        let Planned {
            plan,
            unplaced,
            refused,
        } = planning::plan(analysis.ftree(), needed, &sources);
        let callers = self.investigation.callers.iter();
        let callers = callers.filter_map(|&caller| self.process.modules().locate(caller));
        let plan = Plan {
            f0: Some(Arc::clone(&f0.code)),
            f0_ends: self.f0_ends,
            // None when all calls are ops.
            callers: callers.collect(),
            chain: analysis.chain(),
            field: match &self.investigation.ops {
                Ops::Lives(followed) => Some(followed.field),
                Ops::Calls | Ops::LivesWherePossible | Ops::LivesAgain(_) => None,
            },
            ..plan
        };
        self.investigation.unbound.planned(unplaced);
        self.investigation.leave_alone(refused, self.catalog);
        plan
    }

    /// Adds to a plan what the second analysis needs.
    fn add_serving(&mut self, plan: &mut Plan) -> Result<(), ProcessError> {
        let Some(serving) = &mut self.serving else {
            return Ok(());
        };
        let own = &serving.investigation;
        let Some(sources) = own.sources(&self.process, self.catalog) else {
            return Ok(());
        };
        let needed = own.analysis.needed_probes();
        let Planned {
            plan: tree,
            unplaced,
            refused,
        } = planning::plan(own.analysis.ftree(), needed, &sources);
        serving.investigation.unbound.planned(unplaced);
        serving.investigation.leave_alone(refused, self.catalog);
        serving.extend(plan, tree, &self.process)
    }

    /// Brings the target's probes to f0 and the calls of these fnodes alone. The call sites that can carry none.
    pub(super) fn instrument_only(
        &mut self,
        needed: impl Iterator<Item = FnodeId>,
    ) -> Result<BTreeSet<SiteId>, ProcessError> {
        let plan = self.plan_of(needed);
        planning::apply(&plan, &mut self.process, self.investigation, self.catalog)
    }

    /// The plan of what the ftrees need.
    fn plan(&mut self) -> Result<Plan, ProcessError> {
        let mut plan = self.plan_for_f0();
        if plan.f0.is_some() {
            self.add_serving(&mut plan)?;
        }
        if self.process.libraries() == Libraries::Loaded {
            markers::add_end(&mut plan, self.investigation, &self.process)?;
        }
        Ok(plan)
    }

    /// Leaves the target the probes of f0 alone, until it is instrumented the next time.
    pub(super) fn put_calls_away(&mut self) -> Result<(), ProcessError> {
        let began = Instant::now();
        let plan = Plan {
            sites_are_away: true,
            ..self.plan()?
        };
        self.calls_are_away = true;
        let applied = planning::apply(&plan, &mut self.process, self.investigation, self.catalog);
        tracing::debug!(target: "descent", ?applied, "the probes of calls are away for a rest");
        match applied {
            Ok(_) => self.pacing.took_to_put_away(began.elapsed()),
            Err(error) if is_for_now(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Puts them back; false where that cannot be at this moment.
    pub(super) fn put_calls_back(&mut self) -> Result<bool, ProcessError> {
        /// It is tried for so long.
        const PATIENCE: Duration = Duration::from_secs(10);
        let since = *self.put_back_since.get_or_insert_with(Instant::now);
        match self.place_probes() {
            Err(error) if is_for_now(&error) && since.elapsed() < PATIENCE => {
                tracing::debug!(target: "descent", %error, "the probes of calls stay away");
                Ok(false)
            }
            outcome => {
                self.put_back_since = None;
                outcome.map(|()| true)
            }
        }
    }

    /// Brings the target's probes to what the ftrees need.
    pub(super) fn instrument(&mut self) -> Result<(), ProcessError> {
        self.place_probes()?;
        self.retired_since = None;
        let serving = self.serving.iter_mut().map(|it| &mut it.investigation);
        for own in serving.chain([&mut *self.investigation]) {
            own.analysis.probes_changed(darc_tracer::tsc());
        }
        Ok(())
    }

    /// The same as far as the target is concerned: what is measured is what was measured before.
    pub(super) fn place_probes(&mut self) -> Result<(), ProcessError> {
        let plan = self.plan()?;
        self.has_probes |= !plan.is_empty();
        let before = darc_tracer::tsc();
        let refused = planning::apply(&plan, &mut self.process, self.investigation, self.catalog)?;
        self.calls_are_away = false;
        if let Ops::Lives(followed) = &mut self.investigation.ops {
            followed.probes_changed(before, darc_tracer::tsc());
        }
        let serving = self.serving.iter_mut().map(|it| &mut it.investigation);
        for own in serving.chain([&mut *self.investigation]) {
            own.analysis.refuse(&refused);
        }
        let now = darc_tracer::tsc();
        self.investigation.account_for_unplaced(now);
        if let Some(serving) = &mut self.serving {
            serving.investigation.account_for_unplaced(now);
        }
        Ok(())
    }
}

/// Whether it may be otherwise a moment later: a thread waits in the kernel in the middle of what was to be changed.
fn is_for_now(error: &ProcessError) -> bool {
    matches!(error, ProcessError::Tracer(darc_tracer::Error::Busy(_)))
}

impl Investigation {
    /// Where its fnodes are looked up; `None` while f0 was not found.
    pub(in crate::session) fn sources<'s>(
        &self,
        process: &'s Process<'_>,
        catalog: &'s Catalog,
    ) -> Option<Sources<'s>> {
        Some(Sources {
            process,
            catalog,
            f0: self.f0?,
        })
    }

    /// Does what the analysis asks for, as far as no probe has to change for it.
    fn carry_out(&mut self, process: &Process<'_>, catalog: &mut Catalog) -> CarriedOut {
        self.renumber();
        let mut requests = self.unbound.take();
        requests.extend(self.analysis.requests());
        let mut done = CarriedOut::default();
        for request in requests {
            match request {
                Request::Expand(fnode) => match self.expand(fnode, process, catalog) {
                    Ok(Expansion::Done) => {
                        done.changes = true;
                        done.expanded.push(fnode);
                    }
                    Ok(Expansion::AfterFirstCall) => self.unbound.expand_later(fnode),
                    Err(reason) => {
                        let reason = self.not_told_apart(fnode).unwrap_or(reason);
                        tracing::debug!(target: "descent", fnode = fnode.0, %reason, "cannot be expanded");
                        let why = darc_analysis::Stop::NotInstrumentable(reason);
                        self.analysis.cannot_expand(fnode, why);
                    }
                },
                Request::FilterChanged(latencies) => done.filter = Some(latencies),
                Request::Retire(_) => done.retires = true,
                Request::Finished => {
                    done.changes = true;
                    done.finished = true;
                }
            }
        }
        done
    }

    /// Makes an fnode's calls its children.
    pub(super) fn expand(
        &mut self,
        fnode: FnodeId,
        process: &Process<'_>,
        catalog: &mut Catalog,
    ) -> Result<Expansion, String> {
        let sources = self.sources(process, catalog).ok_or("f0 is not loaded")?;
        let entry = match sources.destination(self.analysis.ftree().fnode(fnode))? {
            Destination::Known(entry) | Destination::Expected(entry) => entry,
            Destination::Unbound => return Ok(Expansion::AfterFirstCall),
        };
        let calls = expansion::calls(entry, process, catalog, self)?;
        let batches = self.batches(entry, calls.measurable, process, catalog);
        self.analysis.add_batches(fnode, &batches);
        for &(site, callee) in &calls.unmeasurable {
            self.analysis.add_child(fnode, site, callee);
        }
        let unmeasurable = calls.unmeasurable.iter().map(|&(site, _)| site);
        self.analysis.refuse(&unmeasurable.collect());
        self.log_expansion(fnode, entry, process, catalog);
        Ok(Expansion::Done)
    }

    /// Says which function an fnode is, and which fnodes its calls are: the log of the analysis knows numbers alone.
    fn log_expansion(
        &self,
        fnode: FnodeId,
        entry: TargetAddr,
        process: &Process<'_>,
        catalog: &Catalog,
    ) {
        if !tracing::enabled!(target: "descent", tracing::Level::DEBUG) {
            return;
        }
        let modules = process.modules();
        let name = |callee| match callee {
            Callee::Function(callee) => modules.name(catalog.callee_at(callee)),
            Callee::Syscall(Some(number)) => format!("system call {number}"),
            other => format!("{other:?}"),
        };
        let ftree = self.analysis.ftree();
        let children = ftree.fnode(fnode).children.iter();
        let calls: Vec<String> = children
            .map(|child| format!("{}={}", child.0, name(ftree.fnode(*child).callee)))
            .collect();
        let function = modules.place(entry).map(|place| modules.name(place));
        tracing::debug!(target: "descent", fnode = fnode.0, ?function, ?calls, "expanded");
    }

    /// The calls of a function in the batches in which they are measured. An interpreter or a parser has so many that there
    /// is not room for all of them at once.
    fn batches(
        &self,
        entry: TargetAddr,
        calls: Vec<(SiteId, Callee)>,
        process: &Process<'_>,
        catalog: &Catalog,
    ) -> Vec<Vec<(SiteId, Callee)>> {
        const MOST_AT_ONCE: usize = 1000;
        let most = self.max_sites.unwrap_or(MOST_AT_ONCE);
        if calls.len() <= most && self.blocks != Blocks::First {
            return vec![calls];
        }
        let Ok(scanned) = process.scan(entry) else {
            return vec![calls];
        };
        let addr = |site| {
            let addr = process.modules().locate(catalog.site_at(site).0);
            addr.map(|addr| addr.0)
        };
        let by_blocks = expansion::by_blocks(&scanned.code, calls, most, process, addr);
        match (self.max_sites, self.blocks) {
            // Nobody asked for blocks: as few batches as there is room for.
            (None, Blocks::Left | Blocks::After) => {
                let calls = by_blocks.concat();
                expansion::chunks(&calls, most)
            }
            _ => by_blocks,
        }
    }
}
