//! Where a session stands, for whoever wants to know while it runs.

use crate::analysis::totals::Totals;

use super::investigation::Investigation;

/// Looks at a session between two of its looks at the target.
pub trait Onlooker: std::fmt::Debug {
    /// Called often; `totals` when an f0 that runs all the time is being divided. Must not take long.
    fn look(&self, investigation: &Investigation, totals: Option<&Totals>);
}
