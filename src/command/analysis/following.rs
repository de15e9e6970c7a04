//! Requests that are followed to other threads (`--async`): what is asked for, and where it cannot be done.

use darc_analysis::Params;
use darc_symbols::NameSpec;

use crate::command::analysis::Conduct;
use crate::exit::{Classify, Failure, FailureKind};
use crate::options::{AsyncEnd, AsyncPath, Common, DEFAULT_F0, EngineChoice};
use crate::session::asynchronous::{End, Serving};
use crate::session::descent::investigation::Investigation;

/// What the options ask for.
///
/// # Errors
/// When the names make no sense, or requests cannot be followed from this f0 or by this engine.
pub fn asked(common: &Common, main: &Investigation) -> Result<Option<Serving>, Failure> {
    let Some(path) = &common.asynchronous else {
        return Ok(None);
    };
    check_engine(common.engine)?;
    if names_main(&main.spec) {
        return Err(Failure::usage(
            "--async needs an f0 that returns, and main is called once; name the function that hands requests over, or a caller of it, with --f0",
        ));
    }
    serving(path, *main.analysis.params()).map(Some)
}

/// Whether that is the function that is called once.
pub fn names_main(spec: &NameSpec) -> bool {
    matches!(spec, NameSpec::Name { name, .. } if name == DEFAULT_F0)
}

/// Refuses to follow requests where breakpoints would be in the way.
fn check_engine(engine: EngineChoice) -> Result<(), Failure> {
    match engine {
        EngineChoice::Int3 => Err(Failure::usage(
            "--async needs the jump engine: breakpoints stop the threads for so long that a queue is never what it is without them; leave out --engine int3",
        )),
        EngineChoice::Jump => Ok(()),
    }
}

fn serving(path: &AsyncPath, params: Params) -> Result<Serving, Failure> {
    let end = |end: &AsyncEnd| {
        let function = NameSpec::parse(&end.function).class(FailureKind::Usage)?;
        let object = end.object.clone();
        Ok::<_, Failure>(End { function, object })
    };
    Ok(Serving::new(end(&path.enqueue)?, end(&path.serve)?, params))
}

impl Conduct {
    /// Goes on to follow requests to another thread, as a stored analysis did.
    ///
    /// # Errors
    /// When another path is asked for, or the engine cannot do it.
    pub fn go_on_following(&mut self, stored: Option<Serving>) -> Result<(), Failure> {
        let Some(stored) = stored else { return Ok(()) };
        check_engine(self.common.engine)?;
        let other = |asked: &Serving| !stored.is_between(&asked.enqueue, &asked.serve);
        if self.serving.as_ref().is_some_and(other) {
            return Err(Failure::usage(
                "--async names another path than the stored analysis follows; leave it out, or start a new analysis with darc run or attach",
            ));
        }
        self.serving = Some(stored);
        Ok(())
    }

    /// f0 does not return, which was not known before.
    pub fn follow_nothing(&mut self) {
        if self.serving.take().is_some() {
            self.warn(
                "requests are not followed (--async): f0 does not return, so no op of it hands one over; name a function that it calls with --f0"
                    .to_owned(),
            );
        }
    }
}
