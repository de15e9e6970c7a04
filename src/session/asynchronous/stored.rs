//! An asynchronous path that an earlier run has stored, to be gone on with.

use darc_analysis::Params;
use darc_analysis::values::expression::Expression;
use darc_process::modules::Modules;
use darc_report::state::{StateError, restore};
use darc_report::{Place, Report};
use darc_symbols::NameSpec;

use crate::session::asynchronous::{End, Serving};
use crate::session::catalog::Catalog;
use crate::session::descent::investigation::{Investigation, stored_places};

impl Serving {
    /// What is stored beside the analysis of f0; `None` when nothing is.
    ///
    /// # Errors
    /// When what is stored contradicts itself or the parameters.
    pub fn stored(
        report: &Report,
        params: Params,
        modules: &mut Modules,
        catalog: &mut Catalog,
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
        let own = focus.as_f0(report);
        let investigation = Investigation::resumed(&own, params, modules, catalog)?;
        let place = Place {
            module: handover.enqueue.module.clone(),
            offset: handover.enqueue.offset,
        };
        let enqueue_at = stored_places(report)(modules, &place);
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
