//! A synthetic program, measured by a synthetic engine, for tests: time is a counter, and which op it is
//! decides what happens, so every run is the same.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use darc_record::{FnodeId, Op, SiteId, Ticks, Touched, Tsc};

use crate::descent::ftree::{Callee, CalleeId};
use crate::descent::params::Params;
use crate::descent::peak_record::Stop;
use crate::descent::resume::Stored;
use crate::descent::root_cause::{CauseKind, RootCause};
use crate::descent::{Analysis, Request};

/// One function: its calls, and what it does when it runs.
#[derive(Clone)]
pub struct Function {
    /// What it is called.
    pub name: &'static str,
    /// Its call sites, in order.
    pub sites: Vec<(SiteId, Callee)>,
    /// What a call of it does.
    pub body: fn(&mut Run<'_>),
}

/// A program whose f0 is function 0.
#[derive(Clone, Default)]
pub struct Program {
    /// By number; f0 is 0.
    pub functions: BTreeMap<u32, Function>,
}

/// Calls function `function`.
pub fn call(function: u32) -> Callee {
    Callee::Function(CalleeId(function))
}

impl Program {
    /// A function with its call sites.
    pub fn function(
        mut self,
        id: u32,
        name: &'static str,
        sites: &[(u32, Callee)],
        body: fn(&mut Run<'_>),
    ) -> Self {
        let sites = sites.iter().map(|&(site, callee)| (SiteId(site), callee));
        let sites = sites.collect();
        self.functions.insert(id, Function { name, sites, body });
        self
    }

    fn of(&self, callee: Callee) -> Option<&Function> {
        match callee {
            Callee::Function(id) => self.functions.get(&id.0),
            Callee::Syscall(_) | Callee::Unknown | Callee::Absence(_) => None,
        }
    }

    /// The name of what a callee stands for.
    pub fn name(&self, callee: Callee) -> String {
        match callee {
            Callee::Syscall(number) => format!("syscall {}", number.unwrap_or(0)),
            _ => self
                .of(callee)
                .map_or("?", |function| function.name)
                .to_owned(),
        }
    }
}

/// One op that runs.
pub struct Run<'a> {
    program: &'a Program,
    edges: &'a HashMap<(FnodeId, SiteId, Callee), FnodeId>,
    now: u64,
    /// `None` outside of the ftree.
    current: Option<FnodeId>,
    touched: BTreeMap<FnodeId, Touched>,
    /// Which op this is, from 0.
    pub op: u64,
    /// Free for bodies, for instance to end a recursion.
    pub level: u64,
}

impl Run<'_> {
    /// Lets time pass.
    pub fn work(&mut self, ticks: u64) {
        self.now += ticks;
    }

    /// A number from 0 to 1 that tells nothing about those of other ops, or those by other names in the same op.
    pub fn random(&self, name: u64) -> f64 {
        // SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
        let mut bits = (self.op ^ name << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ bits >> 31) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Makes a call; a system call or an unknown function takes `ticks`.
    pub fn call_for(&mut self, site: u32, callee: Callee, ticks: u64) {
        let before = self.current;
        let edge = |callee| self.edges.get(&(before?, SiteId(site), callee)).copied();
        self.current = edge(callee).or_else(|| edge(Callee::Unknown));
        let fnode = self.current;
        let start = self.now;
        match self.program.of(callee) {
            Some(function) => (function.body)(self),
            None => self.now += ticks,
        }
        let latency = Ticks(self.now - start);
        if let Some(fnode) = fnode {
            let touched = self.touched.entry(fnode).or_insert(Touched {
                fnode,
                max: Ticks(0),
                max_start: Tsc(start),
                sum: Ticks(0),
                count: 0,
                long: Ticks(0),
            });
            touched.count += 1;
            touched.sum = touched.sum + latency;
            if latency >= Touched::LONG {
                touched.long = touched.long + latency;
            }
            if latency > touched.max {
                touched.max = latency;
                touched.max_start = Tsc(start);
            }
        }
        self.current = before;
    }

    /// Makes a call of a function of the program.
    pub fn call(&mut self, site: u32, function: u32) {
        self.call_for(site, call(function), 0);
    }
}

/// The program, its probes and its analysis.
pub struct Session {
    /// What is analysed.
    pub program: Program,
    /// How far that is.
    pub analysis: Analysis,
    edges: HashMap<(FnodeId, SiteId, Callee), FnodeId>,
    filter: Option<Vec<std::ops::RangeInclusive<Ticks>>>,
    /// So many calls of a function are measured at once.
    most: usize,
    /// Call sites that cannot be measured.
    pub refused: BTreeSet<SiteId>,
    now: u64,
    /// The number of the next op.
    pub next_op: u64,
    /// Whether the analysis has asked for the end.
    pub finished: bool,
    /// Every request, in order.
    pub log: Vec<Request>,
    /// Calls of functions at longer paths cannot be measured.
    pub deepest: usize,
}

impl Session {
    /// Over a new analysis.
    pub fn new(program: Program, params: Params) -> Self {
        Self::over(program, Analysis::new(params))
    }

    /// Over an analysis that may be under way.
    pub fn over(program: Program, analysis: Analysis) -> Self {
        Self::in_batches(program, analysis, usize::MAX)
    }

    /// Measures at most so many calls of a function at once for a peak.
    pub fn in_batches(program: Program, analysis: Analysis, most: usize) -> Self {
        let mut session = Self {
            most,
            refused: BTreeSet::new(),
            program,
            analysis,
            edges: HashMap::new(),
            filter: None,
            now: 1_000,
            next_op: 0,
            finished: false,
            log: Vec::new(),
            deepest: usize::MAX,
        };
        session.serve();
        session
    }

    /// Runs up to `ops` ops, fewer when the analysis finishes.
    pub fn run(&mut self, ops: u64) -> &mut Self {
        for _ in 0..ops {
            if self.finished {
                break;
            }
            let op = self.one_op();
            match &self.filter {
                Some(ranges) if !ranges.iter().any(|range| range.contains(&op.latency)) => {
                    self.analysis.add_unseen(&op);
                }
                _ => self.analysis.op(&op),
            }
            self.serve();
        }
        self
    }

    fn one_op(&mut self) -> Op {
        let start = self.now;
        let mut run = Run {
            program: &self.program,
            edges: &self.edges,
            now: start,
            current: Some(FnodeId::ROOT),
            touched: BTreeMap::new(),
            op: self.next_op,
            level: 0,
        };
        (self.program.functions[&0].body)(&mut run);
        let (end, touched) = (run.now, run.touched.into_values().collect());
        self.now = end + 50;
        self.next_op += 1;
        Op {
            arguments: darc_record::Arguments::default(),
            tid: 1,
            start: Tsc(start),
            end: Tsc(end),
            latency: Ticks(end - start),
            touched,
        }
    }

    /// As a session does: the probes change once for all that was asked for.
    pub fn serve(&mut self) {
        loop {
            let requests = self.analysis.requests();
            if requests.is_empty() {
                return;
            }
            let mut expanded = Vec::new();
            for request in requests {
                self.log.push(request.clone());
                match request {
                    Request::Expand(fnode) => expanded.extend(self.expand(fnode)),
                    Request::FilterChanged(ranges) => self.filter = Some(ranges),
                    Request::Retire(_) => {}
                    Request::Finished => self.finished = true,
                }
            }
            self.instrument();
            for fnode in expanded {
                self.analysis.expanded(fnode, Tsc(self.now));
            }
        }
    }

    fn expand(&mut self, fnode: FnodeId) -> Option<FnodeId> {
        let callee = match fnode {
            FnodeId::ROOT => call(0),
            _ => self.analysis.ftree().fnode(fnode).callee,
        };
        let is_too_deep = self.analysis.ftree().path(fnode).len() > self.deepest;
        let function = self.program.of(callee).filter(|_| !is_too_deep);
        let Some(function) = function else {
            let why = Stop::NotInstrumentable("no code".to_owned());
            self.analysis.cannot_expand(fnode, why);
            return None;
        };
        let batches = function.sites.chunks(self.most).map(<[_]>::to_vec);
        let batches: Vec<_> = batches.collect();
        self.analysis.add_batches(fnode, &batches);
        self.analysis.refuse(&self.refused);
        Some(fnode)
    }

    fn instrument(&mut self) {
        self.edges.clear();
        if self.finished {
            return;
        }
        for id in self.analysis.needed_probes() {
            let fnode = self.analysis.ftree().fnode(id);
            if let (Some(parent), Some(site)) = (fnode.parent, fnode.site) {
                self.edges.insert((parent, site, fnode.callee), id);
            }
        }
    }

    /// What an analysis in a later run goes on with.
    pub fn stored(&self) -> Stored {
        let peaks = self.analysis.peaks();
        Stored {
            profile: self.analysis.profile().clone(),
            fine: Some((self.analysis.fine.clone(), self.analysis.longest)),
            peaks: peaks
                .iter()
                .map(|peak| (peak.first_bucket, peak.last_bucket))
                .collect(),
            ftree: self.analysis.ftree().clone(),
        }
    }

    /// How many probes the program carries.
    pub fn probes(&self) -> usize {
        self.edges.len()
    }

    /// The root-cause paths of a peak: names joined by `/`, kind, stop.
    pub fn causes(&self, peak: u32) -> Vec<(String, CauseKind, Stop)> {
        self.analysis
            .root_causes(peak)
            .into_iter()
            .map(|cause| (self.path(&cause), cause.kind, cause.stop))
            .collect()
    }

    fn path(&self, cause: &RootCause) -> String {
        let names: Vec<String> = cause
            .path
            .iter()
            .map(|&id| match id {
                FnodeId::ROOT => self.program.name(call(0)),
                id => self.program.name(self.analysis.ftree().fnode(id).callee),
            })
            .collect();
        names.join("/")
    }
}
