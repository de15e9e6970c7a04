//! Which calls of a function are ops, and what is noted of them: what the stub at its entry is emitted from.

use darc_record::Chain;
use darc_record::FnodeId;

use super::layout::place;

/// What the calls of a function that is an f0 are.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Ops {
    /// The ftree that they belong to.
    pub tree: OpsOf,
    /// The return addresses of the calls that are ops; empty for all.
    pub callers: Vec<u64>,
    /// What is read when one begins.
    pub chain: Option<Chain>,
    /// Whose calls are measured.
    pub calls: Calls,
    /// What an op hands over when it begins.
    pub hands_over: HandsOver,
}

/// Whether the call that is an op hands a request over.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum HandsOver {
    /// At most by functions that it calls.
    #[default]
    Nothing,
    /// By itself: f0 is the function that enqueues, with this chain.
    Itself(Option<Chain>),
}

/// The ops whose calls are measured.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Calls {
    /// Those that may be recorded: what is known of the others is their latency.
    #[default]
    OfRecorded,
    /// All, for what they hand over counts as well.
    OfAll,
}

/// An ftree.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum OpsOf {
    /// That of f0.
    #[default]
    F0,
    /// That of the function that serves what f0 has handed over, with this root.
    Serving(FnodeId),
}

impl OpsOf {
    /// The root.
    #[must_use]
    pub fn root(self) -> FnodeId {
        match self {
            OpsOf::F0 => FnodeId::ROOT,
            OpsOf::Serving(root) => root,
        }
    }

    /// The kind of the entries of such ops on the shadow stack.
    #[must_use]
    pub fn kind(self) -> u32 {
        match self {
            OpsOf::F0 => place::F0,
            OpsOf::Serving(_) => place::SERVED,
        }
    }
}
