//! Where a session stands, for whoever wants to know while it runs.

use darc_analysis::totals::Totals;

use super::investigation::Investigation;
use super::serving::Serving;

/// What is known.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Of f0.
    pub investigation: &'a Investigation,
    /// Of the requests that f0 hands to other threads, when they are followed.
    pub serving: Option<&'a Serving>,
    /// When an f0 that runs all the time is being divided.
    pub totals: Option<&'a Totals>,
}

impl<'a> From<&'a Investigation> for Seen<'a> {
    fn from(investigation: &'a Investigation) -> Seen<'a> {
        Seen {
            investigation,
            serving: None,
            totals: None,
        }
    }
}

/// Looks at a session between two of its looks at the target.
pub trait Onlooker: std::fmt::Debug {
    /// Called often; must not take long.
    fn look(&self, seen: Seen<'_>);
}
