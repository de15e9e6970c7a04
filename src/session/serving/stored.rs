//! An asynchronous path that an earlier run has stored, to be gone on with.

use darc_analysis::Params;
use darc_analysis::values::expression::Expression;
use darc_report::state::{StateError, restore};
use darc_report::{Place, Report};
use darc_symbols::NameSpec;

use super::{End, Serving};
use crate::session::investigation::{Investigation, stored_places};

impl Serving {
    /// What is stored beside the analysis of f0, which is restored already; `None` when nothing is.
    ///
    /// # Errors
    /// When what is stored contradicts itself or the parameters.
    pub fn stored(
        report: &Report,
        params: Params,
        main: &mut Investigation,
    ) -> Result<Option<Serving>, StateError> {
        let mut stored = report.focus.iter();
        let Some((focus, handover)) =
            stored.find_map(|focus| Some((focus, focus.handover.as_ref()?)))
        else {
            return Ok(None);
        };
        let end = |name: &str, object: &str| {
            let object = Expression::parse(object);
            Ok::<_, StateError>(End {
                function: NameSpec::Name {
                    module: None,
                    name: name.to_owned(),
                },
                object: object.map_err(|error| StateError::Invalid(error.to_string()))?,
            })
        };
        let enqueue = end(&handover.enqueue.name, &handover.enqueued_object)?;
        let serve = end(&focus.function.name, &handover.served_object)?;
        // Both analyses have the files and the numbering of call sites in common.
        let modules = std::mem::take(&mut main.modules);
        let catalog = std::mem::take(&mut main.catalog);
        let own = focus.as_f0(report);
        let mut investigation = Investigation::resumed_among(modules, catalog, &own, params)?;
        let place = Place {
            module: handover.enqueue.module.clone(),
            offset: handover.enqueue.offset,
        };
        let enqueue_at = stored_places(report)(&mut investigation.modules, &place);
        main.modules = std::mem::take(&mut investigation.modules);
        main.catalog = std::mem::take(&mut investigation.catalog);
        Ok(Some(Serving {
            investigation,
            in_flight: restore::requests(handover)?,
            enqueue_at: Some(enqueue_at),
            ..Serving::new(enqueue, serve, params)
        }))
    }

    /// Whether it is the path between these functions, by what identifies requests there.
    #[must_use]
    pub fn is_between(&self, enqueue: &End, serve: &End) -> bool {
        let same = |one: &End, other: &End| {
            let name = |end: &End| end.function.to_string();
            name(one) == name(other) && one.object == other.object
        };
        same(&self.enqueue, enqueue) && same(&self.serve, serve)
    }
}
