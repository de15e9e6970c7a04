//! Where a session stands, for whoever wants to know while it runs.

use darc_analysis::totals::Totals;

use crate::session::asynchronous::Serving;
use crate::session::catalog::Naming;
use crate::session::descent::investigation::Investigation;

/// What is known.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Names for what the ids stand for.
    pub naming: Naming<'a>,
    /// Of f0.
    pub investigation: &'a Investigation,
    /// Of the requests that f0 hands to other threads, when they are followed.
    pub serving: Option<&'a Serving>,
    /// When an f0 that runs all the time is being divided.
    pub totals: Option<&'a Totals>,
}

/// Looks at a session between two of its looks at the target.
pub trait Onlooker: std::fmt::Debug {
    /// Called often; must not take long.
    fn look(&self, seen: Seen<'_>);
}
