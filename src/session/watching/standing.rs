//! Where a watch stands, as a set of profiles.

use std::collections::HashMap;

use darc_analysis::{Hz, Resolution};
use darc_report::model::{Function, Target};
use darc_report::profiles::{FunctionProfile, ProfileSet, Source};
use darc_tracer::engine::Engine as _;
use darc_tracer::engine::jump::Counts;

use crate::session::catalog::{Catalog, Naming};
use crate::session::profiling::summary;
use crate::session::watching::Watching;

impl Watching<'_> {
    /// What was counted of everything that is watched, since it was first watched: the path to a callee is part of
    /// its name.
    #[must_use]
    pub fn profiles(&self, target: Target, hz: Hz) -> ProfileSet {
        let now = darc_tracer::tsc();
        let length = (now - self.began).0;
        let catalog = Catalog::default();
        let naming = Naming {
            catalog: &catalog,
            modules: self.process.modules(),
            f0: None,
        };
        let mut counts: HashMap<u32, Counts> = self.process.engine().counts().into_iter().collect();
        let mut path = String::new();
        let mut set = ProfileSet {
            cost_inside: self.process.engine().cost().inside.0,
            cost_outside: self.process.engine().cost().outside.0,
            pauses: summary::pauses(&self.process.engine().counters().pauses),
            ..ProfileSet::empty(Source::Functions, target, hz, Resolution::default(), length)
        };
        for level in &self.levels {
            if let Some(inside) = &level.inside {
                path.push_str(&format!("{} → ", inside.name));
            }
            for item in &level.items {
                // A name twice is one function.
                let Some(counts) = counts.remove(&item.slot) else {
                    continue;
                };
                let function = match item.place {
                    Some(place) => naming.function_at(place),
                    None => Function::default(),
                };
                let function = Function {
                    name: format!("{path}{}", item.name),
                    ..function
                };
                let busy = counts.busy(now);
                set.profiles.push(FunctionProfile {
                    function,
                    concurrency: busy.0 as f64 / length.max(1) as f64,
                    ..summary::counted(&counts, Resolution::default())
                });
            }
        }
        set.profiles
            .sort_by_key(|entry| std::cmp::Reverse((entry.profile.total, entry.calls)));
        set
    }
}
