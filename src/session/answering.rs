//! Carrying out what the analyses ask for: which probes the target is to have.

use std::ops::RangeInclusive;

use darc_analysis::{Callee, FnodeId, Request, SiteId, Ticks};
use darc_tracer::addr::TargetAddr;
use darc_tracer::plan::Plan;

use super::callee::Destination;
use super::code::CodeCache;
use super::investigation::Investigation;
use super::placing::Expansion;
use super::planning::{self, Planned, Sources};
use super::{Libraries, Session, SessionError, expansion, markers};
use crate::options::Blocks;

/// What was done of what an analysis asked for.
#[derive(Default)]
struct CarriedOut {
    requests: usize,
    expanded: Vec<FnodeId>,
    filter: Option<Vec<RangeInclusive<Ticks>>>,
    finished: bool,
}

impl CarriedOut {
    fn is_nothing(&self) -> bool {
        self.requests == 0
    }
}

impl Session<'_> {
    pub(super) fn find_serving(&mut self) -> Result<(), SessionError> {
        match &mut self.serving {
            Some(serving) => match serving.find(self.investigation) {
                Err(SessionError::Name(_) | SessionError::OtherBuild(_))
                    if self.startup.libraries() == Libraries::NotLoadedYet =>
                {
                    Ok(())
                }
                found => found,
            },
            None => Ok(()),
        }
    }

    /// Does something while the second analysis is in the place of the first; `None` when there is no second.
    pub(super) fn as_serving<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let serving = self.serving.take()?;
        let swap = |main: &mut Investigation, own: &mut Investigation| {
            std::mem::swap(main, own);
            std::mem::swap(&mut main.modules, &mut own.modules);
            std::mem::swap(&mut main.catalog, &mut own.catalog);
        };
        swap(self.investigation, &mut serving.investigation);
        let outcome = work(self);
        swap(self.investigation, &mut serving.investigation);
        self.serving = Some(serving);
        Some(outcome)
    }

    /// Does what the analyses ask for. True when they ask for nothing more, ever.
    pub(super) fn answer(&mut self) -> Result<bool, SessionError> {
        // What is not there yet would be taken for what cannot be measured.
        if self.startup.libraries() == Libraries::NotLoadedYet {
            return Ok(false);
        }
        let of_f0 = self.carry_out();
        // What became of requests is asked of all ops.
        if let (Some(latencies), None) = (&of_f0.filter, &self.serving) {
            self.engine.set_filter(latencies);
        }
        // Which calls serve requests of f0 is not known in the target, so all of them are recorded.
        let of_serving = self.as_serving(Self::carry_out).unwrap_or_default();
        if of_f0.is_nothing() && of_serving.is_nothing() {
            return Ok(false);
        }
        let done = |investigation: &Investigation| {
            investigation.analysis.status() != darc_analysis::Status::InProgress
        };
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

    /// Does what one analysis asks for, as far as no probe has to change for it.
    fn carry_out(&mut self) -> CarriedOut {
        let mut requests = self.investigation.unbound.take();
        requests.extend(self.investigation.analysis.requests());
        let mut done = CarriedOut::default();
        for request in requests {
            done.requests += 1;
            match request {
                Request::Expand(fnode) => match self.expand(fnode) {
                    Ok(Expansion::Done) => done.expanded.push(fnode),
                    Ok(Expansion::AfterFirstCall) => {
                        done.requests -= 1;
                        self.investigation.unbound.expand_later(fnode);
                    }
                    Err(reason) => {
                        let why = darc_analysis::Stop::NotInstrumentable(reason);
                        self.investigation.analysis.cannot_expand(fnode, why);
                    }
                },
                Request::FilterChanged(latencies) => done.filter = Some(latencies),
                Request::Retire(_) => {}
                Request::Finished => done.finished = true,
            }
        }
        done
    }

    /// Makes an fnode's calls its children.
    fn expand(&mut self, fnode: FnodeId) -> Result<Expansion, String> {
        let entry = {
            let Some(sources) = self.sources() else {
                return Err("f0 is not loaded".to_owned());
            };
            match sources.destination(self.investigation.analysis.ftree().fnode(fnode))? {
                Destination::Known(entry) | Destination::Expected(entry) => entry,
                Destination::Unbound => return Ok(Expansion::AfterFirstCall),
            }
        };
        let calls = expansion::calls(
            entry,
            self.investigation,
            &mut self.code,
            self.engine.as_ref(),
        )?;
        let portions = self.portions(entry, calls);
        let analysis = &mut self.investigation.analysis;
        analysis.add_portions(fnode, &portions);
        Ok(Expansion::Done)
    }

    /// The calls of a function in the portions in which they are measured.
    fn portions(
        &mut self,
        entry: TargetAddr,
        calls: Vec<(SiteId, Callee)>,
    ) -> Vec<Vec<(SiteId, Callee)>> {
        let Investigation {
            modules,
            catalog,
            blocks,
            max_sites,
            ..
        } = &*self.investigation;
        let most = max_sites.unwrap_or(usize::MAX);
        if calls.len() <= most && *blocks != Blocks::First {
            return vec![calls];
        }
        let scanned = self.code.scan(entry, modules, self.engine.as_ref());
        let Ok(scanned) = scanned else {
            return vec![calls];
        };
        let addr = |site| modules.locate(catalog.site_at(site).0).map(|addr| addr.0);
        expansion::by_blocks(&scanned.code, calls, most, self.engine.as_ref(), addr)
    }

    pub(super) fn sources(&self) -> Option<Sources<'_>> {
        Some(Sources {
            modules: &self.investigation.modules,
            catalog: &self.investigation.catalog,
            engine: self.engine.as_ref(),
            f0: self.investigation.f0?,
        })
    }

    /// The return addresses of the calls of f0 that are ops; none when all are.
    fn callers(&self) -> Vec<TargetAddr> {
        let callers = self.investigation.callers.iter();
        callers
            .filter_map(|&caller| self.investigation.modules.locate(caller))
            .collect()
    }

    /// Adds to a plan what the second analysis needs.
    fn add_serving(&mut self, plan: &mut Plan, code: &mut CodeCache) -> Result<(), SessionError> {
        let tree = self.as_serving(|session| {
            session.sources().map(|sources| {
                let analysis = &session.investigation.analysis;
                let needed = analysis.needed_probes();
                planning::plan(analysis.ftree(), needed, &sources, code, &session.hooks)
            })
        });
        match (&mut self.serving, tree.flatten()) {
            (
                Some(serving),
                Some(Planned {
                    plan: tree,
                    unplaced,
                }),
            ) => {
                serving.investigation.unbound.planned(unplaced);
                serving.extend(plan, tree, self.investigation, code, self.engine.as_ref())
            }
            _ => Ok(()),
        }
    }

    /// Brings the target's probes to what the ftree needs.
    pub(super) fn instrument(&mut self) -> Result<(), SessionError> {
        let mut code = std::mem::take(&mut self.code);
        let plan = match self.sources() {
            Some(sources) => {
                let analysis = &self.investigation.analysis;
                let f0 = sources.scan(analysis.ftree().root(), &mut code);
                match f0 {
                    Ok(f0) => {
                        let Planned { plan, unplaced } = planning::plan(
                            analysis.ftree(),
                            analysis.needed_probes().chain(self.kept.iter().copied()),
                            &sources,
                            &mut code,
                            &self.hooks,
                        );
                        let plan = Plan {
                            f0: Some(std::sync::Arc::clone(&f0.code)),
                            f0_ends: self.f0_ends,
                            callers: self.callers(),
                            chain: analysis.chain(),
                            ..plan
                        };
                        self.investigation.unbound.planned(unplaced);
                        plan
                    }
                    Err(_) => self.hooks.plan(),
                }
            }
            None => self.hooks.plan(),
        };
        let mut plan = plan;
        if plan.f0.is_some() {
            self.add_serving(&mut plan, &mut code)?;
        }
        if self.startup.libraries() == Libraries::Loaded {
            let engine = self.engine.as_ref();
            markers::add_end(&mut plan, self.investigation, &mut code, engine)?;
        }
        self.code = code;
        self.touched.add(&plan, &self.investigation.modules);
        planning::apply(&plan, self.engine.as_mut(), self.investigation)?;
        let now = darc_tracer::tsc();
        self.investigation.account_for_unplaced(now);
        if let Some(serving) = &mut self.serving {
            serving.investigation.account_for_unplaced(now);
        }
        Ok(())
    }
}
