//! What is to be instrumented: pure data, the same for every engine.

use std::collections::BTreeSet;
use std::sync::Arc;

use darc_disasm::{CallSite, FunctionCode};

use crate::addr::TargetAddr;
use darc_record::{Chain, Field, FnodeId, SiteId};

/// A function whose calls, and the objects that they are about, are noticed.
#[derive(Clone, Debug)]
pub struct Noticed {
    /// Its code, entry first.
    pub code: Arc<FunctionCode>,
    /// What is read when it is entered.
    pub chain: Option<Chain>,
}

/// An asynchronous path: what one thread begins in an op of f0 goes on in another thread.
#[derive(Clone, Debug)]
pub struct Asynchronous {
    /// The function by which an op hands the request over; none where each call of the other one is of interest.
    pub enqueue: Option<Noticed>,
    /// The function whose call serves a request: an f0 of its own.
    pub serve: Noticed,
    /// The root of the second ftree.
    pub root: FnodeId,
}

impl Asynchronous {
    /// The code of its functions.
    pub fn codes(&self) -> impl Iterator<Item = &Arc<FunctionCode>> {
        let enqueue = self.enqueue.iter().map(|enqueue| &enqueue.code);
        enqueue.chain([&self.serve.code])
    }
}

/// A function of the target whose sites are instrumented: its code and where that lies.
#[derive(Clone, Debug)]
pub struct PlannedFunction {
    /// The function's bytes as they are in the target without any patch, at their run-time addresses.
    pub code: Arc<FunctionCode>,
    /// The sites to instrument, each with the id that edges refer to.
    pub sites: Vec<(SiteId, CallSite)>,
    /// Those of them that call what looks at its return address: they are measured only where that stays the program's own, which
    /// it never does under [`EngineKind::Int3`](crate::engine::EngineKind).
    pub seen_through: BTreeSet<SiteId>,
}

/// One way through the ftree: in `parent`, a call through `site` (reaching `target`) is `child`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Edge {
    /// The fnode whose function contains the site.
    pub parent: FnodeId,
    /// The call site.
    pub site: SiteId,
    /// The callee for which the edge stands: `None` for a site that has one only (direct calls and
    /// system calls), or for indirect calls all targets that have no edge of their own.
    pub target: Option<TargetAddr>,
    /// The fnode that such a call is.
    pub child: FnodeId,
}

/// A function that runs already: its entry was passed before anybody looked, so its own call sites tell
/// when it is executed. Its time is cut into windows, which take the place of ops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Running {
    /// The function's entry, as in its [`PlannedFunction`].
    pub entry: TargetAddr,
    /// The fnode that its frame on the stack is.
    pub fnode: FnodeId,
}

/// A function whose calls are counted.
#[derive(Clone, Debug)]
pub struct CountedFunction {
    /// Its code, entry first.
    pub code: Arc<FunctionCode>,
    /// The number that its counts have; a function keeps it.
    pub slot: u32,
    /// How its ends are noticed.
    pub ends: Ends,
}

/// How the ends of a function's calls are noticed, by the jump engine.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Ends {
    /// At its `ret`s where all of them can be patched.
    #[default]
    ByReturns,
    /// By a hidden return address, with nothing patched but its entry: code that is not among its own jumps into it.
    Hidden,
    /// Where it jumps through a pointer, too: what it jumps to there is no part of an op. Where these cannot be patched it is no f0.
    ByLeaving,
}

/// What the program says by calling a marker.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mark {
    /// The analysis may begin.
    Begin,
    /// The analysis is to end: nothing is measured from this call on.
    End,
}

/// A function by which the program says when it is to be measured.
#[derive(Clone, Debug)]
pub struct Marker {
    /// Its code, entry first.
    pub code: Arc<FunctionCode>,
    /// What a call of it says.
    pub mark: Mark,
}

/// The call sites of a function whose calls are counted.
#[derive(Clone, Debug)]
pub struct CountedSites {
    /// The function's code.
    pub code: Arc<FunctionCode>,
    /// The slot that the call of the function must be counted in; none for any call of it.
    pub parent: Option<u32>,
    /// The sites.
    pub sites: Vec<CountedCall>,
}

/// A call site whose calls are counted.
#[derive(Clone, Copy, Debug)]
pub struct CountedCall {
    /// The site.
    pub call: CallSite,
    /// The number that its counts have; several sites may have the same.
    pub slot: u32,
}

/// The program's threads run goroutines: their stacks move, and a goroutine goes on in any thread.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Goroutines {
    /// Where a goroutine's number is in its descriptor (`runtime.g`), in bytes.
    pub number: u32,
    /// Where in a thread's descriptor (`runtime.m`) that of the goroutine is that it runs, in bytes.
    pub current: u32,
    /// Where a thread keeps the address of its goroutine's descriptor, in bytes from its thread pointer on.
    pub kept: i32,
    /// Whether threads run C code, too: of those that do nothing may be expected, and the stacks that they had before they came to
    /// Go's code are not goroutines'.
    pub calls_c: bool,
}

impl Goroutines {
    /// Where in a thread's descriptor the kernel's number of the thread is, in bytes: so far before [`Goroutines::current`] in all known
    /// versions (`procid` in `type m struct`). `None` where the latter is not known.
    #[must_use]
    pub fn thread_id(&self) -> Option<i32> {
        let at = self.current.checked_sub(120)?;
        i32::try_from(at).ok()
    }
}

/// What is known of a program of goroutines beside: functions, by their entries, in order.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Callees {
    /// Those that the compiler has made: they follow the calling convention.
    pub compiled: Vec<u64>,
    /// Others that are called as it says: no more than that is kept for them.
    pub ordinary: Vec<u64>,
    /// Those among them that never return.
    pub unreturning: Vec<u64>,
}

/// Everything that is to be instrumented at one time.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// f0: its code, entry first. `None` while f0 is not mapped yet (a library that is loaded later).
    pub f0: Option<Arc<FunctionCode>>,
    /// How the ends of its ops are noticed.
    pub f0_ends: Ends,
    /// That the program is one of goroutines. It is the same in all plans for a program.
    pub goroutines: Option<Goroutines>,
    /// In such a program the function by which all that stops or goes on changes its status (`runtime.casgstatus`): its code,
    /// entry first. Without it nobody tells when goroutines did not run.
    pub statuses: Option<Arc<FunctionCode>>,
    /// That the program copies parts of its stacks away and puts others in their place: no return address in them may be hidden,
    /// for nobody finds all copies of it.
    pub copies_stacks: bool,
    /// The file of an unwinder of which no function is known, so that nobody puts back what is hidden from it.
    pub unnamed_unwinder: Option<String>,
    /// The return addresses of the calls of f0 that are ops; empty for all calls.
    pub callers: Vec<TargetAddr>,
    /// What is read when f0 is entered.
    pub chain: Option<Chain>,
    /// What is noted of a call of f0. Then each op is recorded, for what it is a part of is told by this
    /// alone. It is the same in all plans with an f0, and without goroutines and asynchronous paths.
    pub field: Option<Field>,
    /// The asynchronous path that begins in f0.
    pub asynchronous: Option<Asynchronous>,
    /// Functions that run already, in the place of f0.
    pub running: Vec<Running>,
    /// Call sites whose calls are counted: what a function calls, measured in it alone.
    pub counted_sites: Vec<CountedSites>,
    /// Functions whose calls are counted, one by one: for profiles of many functions, without an f0.
    pub counted: Vec<CountedFunction>,
    /// Functions by which the program says when it is to be measured.
    pub markers: Vec<Marker>,
    /// Functions with instrumented sites, f0 among them once it is descended into.
    pub functions: Vec<PlannedFunction>,
    /// The ftree as the probes need it.
    pub edges: Vec<Edge>,
    /// That these sites have no probes for now, by the jump engine: all that is known of them stays, for they will have them again.
    pub sites_are_away: bool,
    /// Entries of functions that unwind the stack or walk it (`_Unwind_RaiseException` and its like):
    /// hidden return addresses are put back before these run.
    pub unwinders: Vec<TargetAddr>,
    /// Entries of functions that run when an unwind has arrived (`__cxa_begin_catch`).
    pub catchers: Vec<TargetAddr>,
    /// Entries of functions by which unwinders find the description of an address of code (`_Unwind_Find_FDE`).
    pub finders: Vec<TargetAddr>,
    /// The function that the dynamic linker calls after every change of the loaded libraries (`r_brk`).
    pub loader: Option<TargetAddr>,
}

impl Plan {
    /// Whether no return address may be hidden in the program.
    #[must_use]
    pub fn hides_nothing(&self) -> bool {
        self.copies_stacks || self.unnamed_unwinder.is_some()
    }

    /// Whether there is nothing to be instrumented for its own sake: hooks alone serve nobody.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.f0.is_none()
            && self.running.is_empty()
            && self.counted.is_empty()
            && self.counted_sites.is_empty()
            && self.markers.is_empty()
    }
}
