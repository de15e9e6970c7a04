//! One question ("why are some calls of this function slow?") and all that is known about its answer,
//! whatever number of processes it takes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use darc_analysis::lives::{Fates, Life};
use darc_analysis::off_cpu::Interval;
use darc_analysis::{Absence, Analysis, Callee, CalleeId, FnodeId, Ftree, Params, SiteId, Stall};
use darc_process::modules::{ANONYMOUS, CodeRef, ModuleId, Modules};
use darc_process::{futures, return_address};
use darc_record::Op;
use darc_report::state::{Ids, StateError};
use darc_report::{Place, Report};
use darc_symbols::{FileAddr, LookupError, NameSpec};
use darc_tracer::addr::TargetAddr;
use darc_tracer::chosen::Chosen;
use darc_tracer::effort::BUDGET;
use darc_tracer::engine::{Counted, Counters, NewTarget, ProbeCost};
use darc_tracer::stacks::Stack;

use crate::options::{Blocks, Preemption};
use crate::session::catalog::{Catalog, Naming, Reach};
use crate::session::descent::ahead::Ahead;
use crate::session::descent::arguments::Arguments;
use crate::session::descent::bindings::Unbound;
use crate::session::descent::futures::Ops;
use crate::session::descent::localise::Narrowed;
use crate::session::descent::standstill::Standstill;

/// More targets than this of one indirect site share one fnode.
const MAX_TARGETS: usize = 64;

/// What is asked, and what is known.
#[derive(Debug)]
pub struct Investigation {
    /// f0 as the person named it.
    pub spec: NameSpec,
    /// The analysis.
    pub analysis: Analysis,
    /// f0, once it is found.
    pub f0: Option<CodeRef>,
    /// Where the calls of f0 return to that are ops; empty when all calls are.
    pub callers: Vec<CodeRef>,
    /// The function by whose call the program ends the analysis.
    pub end_at: Option<NameSpec>,
    /// The program that a stored analysis is of.
    pub program: Option<ModuleId>,
    /// The files with the calls of a stored analysis.
    pub stored_in: BTreeSet<ModuleId>,
    /// Call sites without a probe, each with the reason.
    pub skipped: BTreeMap<CodeRef, String>,
    /// How many call sites functions have, by their entries.
    pub call_sites: BTreeMap<CodeRef, u64>,
    /// How many sites were instrumented, at most at one time.
    pub sites: usize,
    /// What the engines of all processes did.
    pub counters: Counters,
    /// Bytes of code that were compared with the files after the probes had been taken away.
    pub bytes_compared: u64,
    /// More calls than this at one site in one op cannot be followed by the engine.
    pub most_calls: Option<u64>,
    /// What a probe costs.
    pub cost: ProbeCost,
    /// What system calls were called with.
    pub arguments: Arguments,
    /// What measuring may take of a processor in the long run.
    pub budget: f64,
    /// What becomes of time in which another thread ran.
    pub preemption: Preemption,
    /// Who is told of every op, beside the analysis.
    pub ops_to: Option<Sender<Op>>,
    /// Whether functions at the paths' ends are narrowed.
    pub blocks: Blocks,
    /// More calls of a function than this are measured in batches.
    pub max_sites: Option<usize>,
    /// Whether others are looked for when the first answers are there, and hold most of the time.
    pub looks_on: bool,
    /// Where their time goes.
    pub narrowed: Vec<Narrowed>,
    /// What an op is.
    pub ops: Ops,
    /// The threads whose ops are measured, where not all are.
    pub threads: Option<Arc<Chosen>>,
    /// Which part of the process' CPU time those took, where darc chose them and any was taken.
    pub share_of_cpu: Option<f64>,
    /// Threads that run code of no file and whose stacks lead nowhere: what they do below f0 is not seen.
    pub unfollowed: HashSet<i32>,
    /// In which part of the time its threads were ready and did not run while f0's time was divided.
    pub not_running: Option<f64>,
    /// That a limit of CPU time is most of what is said to be preemption.
    pub held_back: Option<String>,
    /// What the person should know.
    pub warnings: Vec<String>,
    /// Looks at the stacks of slow ops.
    pub ahead: Ahead,
    /// When the descent went on last.
    pub standstill: Standstill,
    /// What waits for the first calls of functions.
    pub unbound: Unbound,
}

impl Investigation {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(spec: NameSpec, params: Params) -> Investigation {
        Investigation {
            spec,
            analysis: Analysis::new(params),
            f0: None,
            callers: Vec::new(),
            end_at: None,
            program: None,
            stored_in: BTreeSet::new(),
            skipped: BTreeMap::new(),
            call_sites: BTreeMap::new(),
            sites: 0,
            counters: Counters::default(),
            bytes_compared: 0,
            most_calls: None,
            cost: ProbeCost::default(),
            arguments: Arguments::default(),
            budget: BUDGET,
            preemption: Preemption::default(),
            blocks: Blocks::default(),
            max_sites: None,
            looks_on: true,
            narrowed: Vec::new(),
            ops_to: None,
            ops: Ops::default(),
            threads: None,
            share_of_cpu: None,
            unfollowed: HashSet::new(),
            not_running: None,
            held_back: None,
            warnings: Vec::new(),
            ahead: Ahead::default(),
            standstill: Standstill::default(),
            unbound: Unbound::default(),
        }
    }

    /// Those of the stacks that are of threads whose ops are measured.
    #[must_use]
    pub fn of_chosen_threads(&self, mut stacks: Vec<Stack>) -> Vec<Stack> {
        if let Some(threads) = &self.threads {
            stacks.retain(|stack| threads.has(stack.tid));
        }
        stacks
    }

    /// What an earlier run has stored, to be gone on with. Its places are added to the files and the numbering.
    ///
    /// # Errors
    /// When what is stored contradicts itself or the parameters.
    pub fn resumed(
        report: &Report,
        params: Params,
        modules: &mut Modules,
        catalog: &mut Catalog,
    ) -> Result<Investigation, StateError> {
        if report.f0.module == ANONYMOUS {
            return Err(StateError::MadeCode(report.f0.name.clone()));
        }
        let code = stored_places(report);
        let f0 = Place {
            module: report.f0.module.clone(),
            offset: report.f0.offset,
        };
        let f0 = (!f0.module.is_empty()).then(|| code(modules, &f0));
        let mut stored_in = BTreeSet::new();
        let mut ids = StoredIds {
            catalog,
            code: |place: &Place| {
                let at = code(modules, place);
                stored_in.insert(at.module);
                at
            },
        };
        let analysis = darc_report::state::restore::restore(report, params, &mut ids)?;
        let build = report.target.build_id.clone();
        let program = (!report.target.exe.is_empty())
            .then(|| modules.intern(&report.target.exe, build, None));
        Ok(Investigation {
            analysis,
            f0,
            program,
            stored_in,
            ..Investigation::new(
                NameSpec::Name {
                    module: None,
                    name: report.f0.name.clone(),
                },
                params,
            )
        })
    }

    /// Names for what the ids stand for.
    #[must_use]
    pub fn naming<'a>(&self, modules: &'a Modules, catalog: &'a Catalog) -> Naming<'a> {
        Naming {
            catalog,
            modules,
            f0: self.f0,
        }
    }

    /// Looks f0 up among the loaded modules.
    ///
    /// # Errors
    /// Why there is not exactly one such function.
    pub fn find_f0(&mut self, modules: &Modules) -> Result<CodeRef, LookupError> {
        if let Some(f0) = self.f0 {
            return Ok(f0);
        }
        let found = futures::resolve(modules, &self.spec)?;
        self.f0 = Some(found);
        Ok(found)
    }

    /// Does not wait for what hardly ever comes.
    pub fn look_for_stalls(&mut self) {
        self.standstill.look(&mut self.analysis);
    }

    /// Tells the person something, once.
    pub fn warn(&mut self, warning: String) {
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// Remembers that a site carries no probe.
    pub fn skip(&mut self, site: CodeRef, reason: String) {
        if self.skipped.get(&site) != Some(&reason) {
            tracing::debug!(target: "descent", site = %site.addr, %reason, "skipped");
        }
        self.skipped.insert(site, reason);
    }

    /// Calls that must not be measured, each with the reason.
    pub fn leave_alone(&mut self, sites: BTreeMap<SiteId, String>, catalog: &Catalog) {
        self.analysis.refuse(&sites.keys().copied().collect());
        for (site, reason) in sites {
            self.skip(catalog.site_at(site).0, reason);
        }
    }

    /// How many call sites could not be measured, by the names of the functions that they are in.
    pub fn passed_over(&self, modules: &Modules) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for &site in self.skipped.keys() {
            if let Some(function) = modules.function_around(site) {
                *counts.entry(modules.name(function)).or_default() += 1;
            }
        }
        counts
    }

    /// The fnode that is called so often in the op that measuring it has drowned everything.
    fn too_busy(&self, op: &Op) -> Option<FnodeId> {
        let most = self.most_calls?;
        let mut busy = op.touched.iter().filter(|touched| touched.count > most);
        busy.next().map(|touched| touched.fnode)
    }

    /// Ends what measures so many calls of `busy`: the paths that end at its caller, or where that is decided, at it and
    /// below it.
    fn stall_busy(&mut self, busy: FnodeId) {
        let most = self.most_calls.unwrap_or(u64::MAX);
        let why = |what: &str| {
            Stall::Busy(format!(
                "{what}, too many to follow with breakpoints; --engine jump can"
            ))
        };
        let ftree = self.analysis.ftree();
        let is_open = |id: &FnodeId| {
            let mut records = ftree.fnode(*id).records();
            records.any(|(_, record)| record.state.is_open())
        };
        let caller = ftree.get(busy).and_then(|fnode| fnode.parent);
        if let Some(caller) = caller.filter(is_open) {
            let why = why(&format!(
                "it makes more than {most} calls at one place in an op"
            ));
            self.analysis.stall(caller, why);
            return;
        }
        let ids = ftree.fnodes().map(|fnode| fnode.id);
        let open = ids
            .filter(|&id| ftree.path(id).contains(&busy))
            .filter(is_open);
        for id in open.collect::<Vec<_>>() {
            let why = why(&format!(
                "it is called more than {most} times in an op, or below what is"
            ));
            self.analysis.stall(id, why);
        }
    }

    /// Adds what an engine counted in one process.
    pub fn add_counters(&mut self, counters: Counters) {
        self.counters.records += counters.records;
        self.counters.dropped += counters.dropped;
        self.counters.sampled += counters.sampled;
        self.counters.spent.add(&counters.spent);
        self.counters.unregistered += counters.unregistered;
        self.counters.ended_otherwise += counters.ended_otherwise;
        self.counters.bytes_differing += counters.bytes_differing;
        self.counters.pauses.extend(counters.pauses);
    }
}

/// What an indirect site of `parent` was seen to call.
#[must_use]
pub fn learn(
    modules: &Modules,
    ftree: &Ftree,
    parent: FnodeId,
    site: SiteId,
    target: TargetAddr,
) -> Learnt {
    let place = modules.place(target);
    let used = place.and_then(|place| Some((place, return_address::is_used(modules, place)?)));
    if let Some((place, used)) = used {
        return Learnt::Unmeasured(place, used.why);
    }
    if ftree.get(parent).is_none() || has_most_targets(ftree, parent, site) {
        return Learnt::Other(NewTarget::AnyTarget);
    }
    // A system call site's target is the number of the call.
    match place {
        Some(place) => Learnt::Callee(place),
        None => match u32::try_from(target.0) {
            Ok(number) if number < 4096 => Learnt::Syscall(number),
            _ => Learnt::Other(NewTarget::AnyTarget),
        },
    }
}

/// Whether what else an indirect site calls is not told apart.
fn has_most_targets(ftree: &Ftree, parent: FnodeId, site: SiteId) -> bool {
    let children = ftree.fnode(parent).children.iter();
    let targets = children.filter(|&&child| ftree.fnode(child).site == Some(site));
    targets.count() > MAX_TARGETS
}

/// What an indirect site was seen to call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Learnt {
    /// A function.
    Callee(CodeRef),
    /// A system call, by number.
    Syscall(u32),
    /// A function whose calls must not be measured, and why, for people.
    Unmeasured(CodeRef, String),
    /// Nothing that gets an fnode of its own.
    Other(NewTarget),
}

/// What the places in a stored result are among the modules.
pub fn stored_places(report: &Report) -> impl Fn(&mut Modules, &Place) -> CodeRef + use<> {
    let builds: HashMap<String, Option<String>> = report
        .modules
        .iter()
        .map(|module| (module.path.clone(), module.build_id.clone()))
        .collect();
    move |modules, place| {
        let build = builds.get(place.module.as_str()).cloned().flatten();
        CodeRef {
            module: modules.intern(&place.module, build, None),
            addr: FileAddr(place.offset),
        }
    }
}

/// Gives ids to the places in a stored result.
struct StoredIds<'a, C> {
    catalog: &'a mut Catalog,
    code: C,
}

impl<C: FnMut(&Place) -> CodeRef> Ids for StoredIds<'_, C> {
    fn site(&mut self, place: &Place) -> SiteId {
        // Whether the site names its callee is seen when its code is scanned.
        self.catalog.site((self.code)(place), Reach::Any)
    }

    fn function(&mut self, _name: &str, place: &Place) -> CalleeId {
        self.catalog.callee((self.code)(place))
    }

    fn absence(&mut self, absence: Absence, name: &str) {
        self.catalog.name_absence(absence, || name.to_owned());
    }
}

impl Investigation {
    /// Takes an op, with the times in which its thread did not do its work.
    pub fn take_op(&mut self, op: &Op, away: &[Interval]) {
        if self.was_disturbed(op) {
            return self.take_unseen_op(op);
        }
        self.tell(op);
        match self.too_busy(op) {
            Some(busy) => {
                // It was an op all the same.
                self.analysis.add_unseen(op);
                self.stall_busy(busy);
            }
            None => self.analysis.op_with(op, away),
        }
    }
}

impl Investigation {
    /// What is known of calls keeps to its peaks where these were given other numbers.
    pub(super) fn renumber(&mut self) {
        for now in self.analysis.renumberings() {
            self.arguments.renumber_peaks(&now);
        }
    }

    /// Takes an op of which it is not known when its thread ran: it decides nothing.
    pub fn take_unseen_op(&mut self, op: &Op) {
        self.tell(op);
        self.analysis.add_unseen(op);
    }

    /// How many calls of f0 were seen to end, whatever an op is.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.polls()
            .unwrap_or_else(|| self.analysis.profile().count())
    }

    /// How many polls were seen, where ops are lives of futures.
    #[must_use]
    pub fn polls(&self) -> Option<u64> {
        self.fates().map(|fates| fates.polls)
    }

    /// What became of futures beside those that are ops, where ops are their lives.
    #[must_use]
    pub fn fates(&self) -> Option<Fates> {
        match &self.ops {
            Ops::Lives(followed) => Some(followed.fates()),
            Ops::LivesAgain(fates) => Some(*fates),
            Ops::Calls | Ops::LivesWherePossible => None,
        }
    }

    /// Takes the life of a future. `place` says which state stands for the place at which a future waits in one.
    pub fn take_life(&mut self, life: &Life, place: impl Fn(u32) -> u32) {
        self.tell(&life.op);
        match life.is_whole {
            true => self.analysis.life(life, place),
            false => self.analysis.add_unseen(&life.op),
        }
    }

    fn tell(&self, op: &Op) {
        if let Some(listener) = &self.ops_to {
            // One that does not listen any more misses nothing.
            let _ = listener.send(op.clone());
        }
    }

    /// Takes ops of which only the latency is known, as [`Sink::latency_only`](darc_tracer::engine::Sink::latency_only).
    pub fn latency_only(&mut self, counted: Counted) {
        let Counted {
            ops,
            total,
            with_calls,
        } = counted;
        self.analysis.add_unrecorded(ops, total, with_calls);
    }

    /// An indirect site was seen to call something for the first time.
    pub fn new_target(
        &mut self,
        modules: &Modules,
        catalog: &mut Catalog,
        parent: FnodeId,
        site: SiteId,
        target: TargetAddr,
    ) -> NewTarget {
        let learnt = learn(modules, self.analysis.ftree(), parent, site, target);
        let callee = match learnt {
            Learnt::Callee(place) => Callee::Function(catalog.callee(place)),
            Learnt::Syscall(number) => Callee::Syscall(Some(number)),
            Learnt::Unmeasured(place, why) => {
                let callee = Callee::Function(catalog.callee(place));
                self.analysis.add_unmeasured_child(parent, site, callee);
                self.skip(catalog.site_at(site).0, why);
                return NewTarget::Unmeasured;
            }
            Learnt::Other(answer) => return answer,
        };
        let child = self.analysis.add_child(parent, site, callee);
        // Many ops may have passed before anybody looked; none of them says who was called.
        self.analysis.told_apart(parent, darc_tracer::tsc());
        NewTarget::Fnode(child)
    }

    /// Why the function of an fnode is not known, where so many others are called from there that they are not told apart.
    pub fn not_told_apart(&self, id: FnodeId) -> Option<String> {
        let ftree = self.analysis.ftree();
        let fnode = ftree.fnode(id);
        let (parent, site) = fnode.parent.zip(fnode.site)?;
        let is_one = fnode.callee == Callee::Unknown && has_most_targets(ftree, parent, site);
        is_one.then(|| {
            format!("more than {MAX_TARGETS} functions are called there, and the others are not told apart")
        })
    }
}

#[cfg(test)]
mod tests {
    use darc_analysis::Request;
    use darc_record::{Ticks, Touched, Tsc};

    use super::*;

    /// An op that calls these fnodes so often.
    fn op(number: u64, calls: &[(FnodeId, u64)]) -> Op {
        let start = Tsc(1_000_000 * number);
        let touched = calls.iter().map(|&(fnode, count)| Touched {
            fnode,
            max: Ticks(90_000),
            max_start: start,
            long: Ticks(0),
            sum: Ticks(90_000),
            count,
        });
        Op {
            arguments: darc_record::Arguments::default(),
            tid: 1,
            start,
            end: start,
            latency: Ticks(100_000),
            touched: touched.collect(),
        }
    }

    #[test]
    fn calls_of_too_many_functions_are_told_from_those_that_were_not_seen() {
        let spec = NameSpec::parse("f0").unwrap();
        let mut investigation = Investigation::new(spec, Params::default());
        let site = SiteId(1);
        let analysis = &mut investigation.analysis;
        let unknown = analysis.add_child(FnodeId::ROOT, site, Callee::Unknown);
        for callee in 1..MAX_TARGETS as u32 {
            let callee = Callee::Function(CalleeId(callee));
            analysis.add_child(FnodeId::ROOT, site, callee);
        }
        assert_eq!(investigation.not_told_apart(unknown), None);
        let analysis = &mut investigation.analysis;
        let last = analysis.add_child(FnodeId::ROOT, site, Callee::Function(CalleeId(1_000)));
        let why = investigation.not_told_apart(unknown);
        assert!(why.is_some_and(|why| why.contains("64")));
        assert_eq!(investigation.not_told_apart(last), None);
    }

    #[test]
    fn an_op_with_too_many_calls_is_one_and_ends_what_measures_them() {
        let spec = NameSpec::parse("f0").unwrap();
        let mut investigation = Investigation::new(spec, Params::default());
        investigation.most_calls = Some(2_000);
        let below = FnodeId(2);
        let mut count = 10;
        for number in 1..=1_000 {
            let measured = investigation.analysis.ftree().get(below).is_some();
            let calls = [(below, count)];
            investigation.take_op(&op(number, if measured { &calls } else { &[] }), &[]);
            for request in investigation.analysis.requests() {
                let Request::Expand(fnode) = request else {
                    continue;
                };
                let analysis = &mut investigation.analysis;
                let callee = Callee::Function(darc_analysis::CalleeId(fnode.0));
                analysis.add_child(fnode, SiteId(fnode.0), callee);
                analysis.expanded(fnode, Tsc(0));
                // f0 is decided for it: from now on it is called too often.
                count = if fnode == below { 5_000 } else { count };
            }
            assert_eq!(investigation.analysis.profile().count(), number);
        }
        let causes = investigation.analysis.root_causes(1);
        assert_eq!(causes.len(), 1);
        assert_eq!(causes[0].path.last(), Some(&below));
        assert!(matches!(
            causes[0].stop,
            darc_analysis::Stop::NotInstrumentable(_)
        ));
    }
}
