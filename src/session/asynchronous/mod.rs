//! Asynchronous paths: what ops of f0 hand to other threads, and the second ftree, of the function that serves it.
//!
//! DARC (SIGMETRICS 2008, section 3.7). The function that serves is an f0 of its own, with an analysis of its own; only
//! those of its calls are ops whose object was handed over inside an op of f0. Both analyses share the process, its
//! files and one instrumentation, so they share the numbering of call sites too. Their fnodes are told apart by
//! an offset.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use darc_analysis::Params;
use darc_analysis::requests::in_flight::{InFlight, Service};
use darc_analysis::requests::of_ops::{Given, HandedOver};
use darc_analysis::values::expression::Expression;
use darc_process::modules::{CodeRef, Modules};
use darc_process::{Process, ProcessError, entry_points, lookup, return_address};
use darc_record::{Enqueued, FnodeId, Op, SiteId, Ticks, Tsc};
use darc_symbols::NameSpec;
use darc_tracer::engine::{NewTarget, Served};
use darc_tracer::plan::{Asynchronous, Edge, Noticed, Plan, PlannedFunction};

use crate::session::asynchronous::waited::Waited;
use crate::session::catalog::Catalog;
use crate::session::descent::investigation::Investigation;

mod stored;
mod waited;

/// Added to the fnodes of the second ftree where both are known by one number.
const FIRST: u32 = 1 << 30;
/// For so long a request is waited for.
const EXPIRY: Duration = Duration::from_secs(60);
/// How finely that is measured.
const MARK_EVERY: Duration = Duration::from_secs(1);

/// A function, and what of its arguments identifies the request.
#[derive(Clone, PartialEq, Debug)]
pub struct End {
    /// The function.
    pub function: NameSpec,
    /// The request.
    pub object: Expression,
}

/// What is known of an asynchronous path.
#[derive(Debug)]
pub struct Serving {
    /// Where requests are handed over.
    pub enqueue: End,
    /// Where they are served.
    pub serve: End,
    /// The function by which they are handed over, once it is found.
    pub enqueue_at: Option<CodeRef>,
    /// The analysis of the function that serves.
    pub investigation: Investigation,
    /// The requests.
    pub in_flight: InFlight,
    /// How long requests of calls waited that may be shown as examples.
    waited: Waited,
    /// Whether both functions were seen to be loaded.
    located: bool,
    /// Calls that the engine delivered since the last time, and before that.
    arrived: Vec<Served>,
    ripe: Vec<Served>,
    marks: VecDeque<(Instant, Tsc)>,
}

impl Serving {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(enqueue: End, serve: End, params: Params) -> Serving {
        Serving {
            investigation: Investigation::new(serve.function.clone(), params),
            in_flight: InFlight::new(params.resolution),
            enqueue,
            serve,
            enqueue_at: None,
            waited: Waited::default(),
            located: false,
            arrived: Vec::new(),
            ripe: Vec::new(),
            marks: VecDeque::new(),
        }
    }

    /// Finds both functions among what is loaded, once.
    ///
    /// # Errors
    /// When one of the names fits nothing or several functions, the functions cannot be told apart, or those of a
    /// stored analysis are not there.
    pub fn find(&mut self, modules: &Modules, f0: Option<CodeRef>) -> Result<(), ProcessError> {
        if self.located {
            return Ok(());
        }
        let stored = self.enqueue_at.zip(self.investigation.f0);
        if let Some((enqueue, serve)) = stored {
            let missing = |at: &CodeRef| modules.locate(*at).is_none();
            if let Some(at) = [enqueue, serve].into_iter().find(missing) {
                let build = modules.get(at.module);
                return Err(ProcessError::OtherBuild(format!(
                    "the stored analysis follows requests through {} of {}, which is not loaded in this build; run the same build, or start a new analysis with darc run or attach",
                    modules.name(at),
                    build.path
                )));
            }
            self.locate(f0, enqueue, serve);
            return Ok(());
        }
        let enqueue = lookup::resolve(modules, &self.enqueue.function)?;
        let serve = lookup::resolve(modules, &self.serve.function)?;
        if serve == enqueue || f0 == Some(serve) {
            return Err(ProcessError::Unsuitable(format!(
                "{}: the function that serves must be another than f0 and than the one that enqueues; f0 is the one that enqueues, or calls it",
                modules.name(serve)
            )));
        }
        self.locate(f0, enqueue, serve);
        Ok(())
    }

    fn locate(&mut self, f0: Option<CodeRef>, enqueue: CodeRef, serve: CodeRef) {
        self.enqueue_at = Some(enqueue);
        self.investigation.f0 = Some(serve);
        self.located = true;
        self.in_flight
            .of_ops_mut()
            .set_handed_over(match f0 == Some(enqueue) {
                true => HandedOver::AtEntry,
                false => HandedOver::Inside,
            });
    }

    /// Adds what the second analysis needs to a plan. `tree` is the plan of its ftree alone.
    ///
    /// # Errors
    /// When the code of one of the functions cannot be had.
    pub fn extend(
        &self,
        plan: &mut Plan,
        tree: Plan,
        process: &Process<'_>,
    ) -> Result<(), ProcessError> {
        let modules = process.modules();
        let noticed = |at: Option<CodeRef>, end: &End| {
            let Some(at) = at else { return Ok(None) };
            let Some(addr) = modules.locate(at) else {
                return Ok(None);
            };
            let unsuitable = |why| ProcessError::Unsuitable(format!("{}: {why}", modules.name(at)));
            if let Some(used) = return_address::is_used(modules, at) {
                return Err(unsuitable(used.why));
            }
            entry_points::takes_a_probe(modules, at).map_err(unsuitable)?;
            let scanned = process.scan(addr).map_err(unsuitable)?;
            Ok::<_, ProcessError>(Some(Noticed {
                code: Arc::clone(&scanned.code),
                chain: end.object.chain(),
            }))
        };
        let enqueue = noticed(self.enqueue_at, &self.enqueue)?;
        let serve = noticed(self.investigation.f0, &self.serve)?;
        if let (Some(enqueue), Some(serve)) = (enqueue, serve) {
            plan.asynchronous = Some(Asynchronous {
                enqueue: Some(enqueue),
                serve,
                root: outward(FnodeId::ROOT),
            });
            merge(plan, tree);
        }
        Ok(())
    }

    /// What the person should know about requests.
    #[must_use]
    pub fn caveats(&self) -> Vec<String> {
        let counts = self.in_flight.counts();
        let mut caveats = self.investigation.warnings.clone();
        if self.enqueue_at.is_some() && counts.enqueued == 0 {
            caveats.push(
                "nothing was handed over inside an op of f0: the function that enqueues is not called there, or on another thread"
                    .to_owned(),
            );
        } else if counts.enqueued > 0 && counts.served == 0 {
            caveats.push(format!(
                "no request that f0 handed over was seen to be served: is {} there what {} is where it is handed over?",
                self.serve.object, self.enqueue.object
            ));
        }
        caveats
    }

    /// Takes what the engine delivers.
    pub fn enqueued(&mut self, enqueued: &Enqueued) {
        match self.enqueue.object.of(&enqueued.arguments) {
            Some(object) => {
                let (at, tid) = (enqueued.at, enqueued.tid);
                self.in_flight.enqueue(object, Given { at, tid });
            }
            None => self.in_flight.unread(),
        }
    }

    /// An op of f0 ended, whose requests are known from now on to be those of an op of this latency.
    pub fn op_ended(&mut self, main: &Investigation, op: &Op) {
        let bucket = main.analysis.bucket_of(op);
        let of_ops = self.in_flight.of_ops_mut();
        of_ops.ended(op.tid, op.start, op.end, bucket);
    }

    /// The next process is looked at: what another one had handed over is not served in it.
    pub fn next_process(&mut self) {
        self.in_flight.abandon();
    }

    /// Takes what the engine delivers.
    pub fn served(&mut self, served: Served) {
        self.arrived.push(served);
    }

    /// An indirect site of the second ftree has a new callee; `None` when the fnode is not of it.
    pub fn new_target(
        &mut self,
        modules: &Modules,
        catalog: &mut Catalog,
        parent: FnodeId,
        site: SiteId,
        target: darc_tracer::addr::TargetAddr,
    ) -> Option<NewTarget> {
        let parent = inward(parent)?;
        let own = &mut self.investigation;
        let answer = own.new_target(modules, catalog, parent, site, target);
        Some(match answer {
            NewTarget::Fnode(fnode) => NewTarget::Fnode(outward(fnode)),
            other => other,
        })
    }

    /// Brings requests and calls that serve them together; the calls that serve requests of f0 go to `take`.
    ///
    /// Each thread's records come in order, but the threads are looked at one after the other. So a call is held
    /// until all of them have been looked at once more.
    pub fn settle(&mut self, which: Settle, mut take: impl FnMut(&mut Investigation, Op)) {
        let mut ripe = std::mem::take(&mut self.ripe);
        match which {
            Settle::Ripe => self.ripe = std::mem::take(&mut self.arrived),
            Settle::All => ripe.append(&mut self.arrived),
        }
        for served in ripe {
            let (Served::Whole(op) | Served::Partly(op)) = &served;
            match self.serve.object.of(&op.arguments) {
                None => self.in_flight.unread(),
                Some(object) => match (self.in_flight.serve(object, service(op)), served) {
                    (None, _) => {}
                    (Some(waited), Served::Whole(op)) => {
                        self.waited.note(&op, waited, &self.investigation.analysis);
                        take(&mut self.investigation, inward_op(op));
                    }
                    (Some(_), Served::Partly(op)) => {
                        self.investigation.analysis.add_unseen(&op);
                    }
                },
            }
        }
        self.expire();
    }

    /// How long the request had waited that the example of a peak serves.
    #[must_use]
    pub fn waited(&self, peak: u32) -> Option<Ticks> {
        self.waited.of(self.investigation.analysis.example(peak)?)
    }

    fn expire(&mut self) {
        let now = Instant::now();
        if self
            .marks
            .back()
            .is_none_or(|(last, _)| now.duration_since(*last) >= MARK_EVERY)
        {
            self.marks.push_back((now, darc_tracer::tsc()));
        }
        while let Some(&(at, clock)) = self.marks.front()
            && now.duration_since(at) >= EXPIRY
        {
            self.in_flight.expire(clock);
            self.marks.pop_front();
        }
    }
}

/// What is brought together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settle {
    /// What can be.
    Ripe,
    /// All: nothing more will come.
    All,
}

fn outward(fnode: FnodeId) -> FnodeId {
    FnodeId(fnode.0 + FIRST)
}

fn inward(fnode: FnodeId) -> Option<FnodeId> {
    fnode.0.checked_sub(FIRST).map(FnodeId)
}

fn service(op: &Op) -> Service {
    Service {
        start: op.start,
        latency: op.latency,
    }
}

fn inward_op(mut op: Op) -> Op {
    op.touched
        .retain_mut(|touched| match inward(touched.fnode) {
            Some(fnode) => {
                touched.fnode = fnode;
                true
            }
            None => false,
        });
    op
}

/// Adds a second ftree's functions and edges to a plan; a function that both instrument is there once.
fn merge(plan: &mut Plan, tree: Plan) {
    plan.edges.extend(tree.edges.into_iter().map(|edge| Edge {
        parent: outward(edge.parent),
        child: outward(edge.child),
        ..edge
    }));
    let mut known: BTreeMap<u64, PlannedFunction> = std::mem::take(&mut plan.functions)
        .into_iter()
        .map(|function| (function.code.entry(), function))
        .collect();
    for function in tree.functions {
        match known.get_mut(&function.code.entry()) {
            None => drop(known.insert(function.code.entry(), function)),
            Some(both) => {
                both.seen_through.extend(function.seen_through);
                for site in function.sites {
                    if !both.sites.iter().any(|(id, _)| *id == site.0) {
                        both.sites.push(site);
                    }
                }
            }
        }
    }
    plan.functions = known.into_values().collect();
}
