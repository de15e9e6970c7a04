//! The log: what darc decides (`-v`), and every op and stop (`-vv`), on stderr or in a file (`--log`).
//!
//! Events have targets: `descent` (peaks, decisions, requests, probes that are retired), `descent::op` (each op), `process`
//! (libraries, probes that are planned and refused, the end), `tracer` (probes that are placed) and `tracer::stop` (each stop of
//! the program). `DARC_LOG` chooses among them, in the form that the crate `tracing` has made usual.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Mutex;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::registry;

use crate::exit::{Failure, FailureKind};
use crate::options::Verbosity;
use crate::output;

/// Which events are shown, such as `descent=trace,tracer=debug`; the place of what `-v` says.
const VARIABLE: &str = "DARC_LOG";

/// Shows the events that the person wants from now on; the first call decides.
///
/// # Errors
/// When the file cannot be made, or `DARC_LOG` makes no sense.
pub fn show(verbosity: Verbosity, file: Option<&Path>) -> Result<(), Failure> {
    let chosen = std::env::var(VARIABLE).ok().filter(|it| !it.is_empty());
    let Some(targets) = targets(verbosity, file.is_some(), chosen.as_deref())? else {
        return Ok(());
    };
    // Who looks at the log may have had enough; to complain of that in the same place would be a panic.
    let lines = fmt::layer().with_ansi(false).log_internal_errors(false);
    // Fails only when there is a subscriber already, which is as good.
    let _ = match file {
        Some(path) => {
            let file = Mutex::new(create(path)?);
            let lines = lines.with_timer(fmt::time::uptime()).with_writer(file);
            tracing::subscriber::set_global_default(registry().with(lines.with_filter(targets)))
        }
        None => {
            let lines = lines.without_time().with_writer(io::stderr);
            tracing::subscriber::set_global_default(registry().with(lines.with_filter(targets)))
        }
    };
    tracing::debug!(target: "process", version = env!("CARGO_PKG_VERSION"), "darc begins");
    Ok(())
}

/// The events that are wanted; `None` for no log.
fn targets(
    verbosity: Verbosity,
    has_file: bool,
    chosen: Option<&str>,
) -> Result<Option<Targets>, Failure> {
    if verbosity == Verbosity::Quiet && !has_file {
        return Ok(None);
    }
    if let Some(chosen) = chosen {
        return match chosen.parse() {
            Ok(targets) => Ok(Some(targets)),
            Err(error) => Err(Failure::usage(format!(
                "{VARIABLE}={chosen:?}: {error}; write targets and levels, such as descent=trace,tracer=debug"
            ))),
        };
    }
    let level = match verbosity {
        Verbosity::Quiet | Verbosity::Normal if !has_file => return Ok(None),
        Verbosity::Quiet | Verbosity::Normal | Verbosity::Verbose => LevelFilter::DEBUG,
        Verbosity::Trace => LevelFilter::TRACE,
    };
    Ok(Some(Targets::new().with_default(level)))
}

/// Begins the file, which may hold an earlier log. It is opened as the results' file is: no link of others is followed, and
/// what darc has not written stays as it is.
fn create(path: &Path) -> Result<File, Failure> {
    let made = output::open_in_place(path).and_then(|mut file| {
        if file.metadata()?.is_file() {
            file.set_len(0)?;
        }
        writeln!(file, "darc {}: log", env!("CARGO_PKG_VERSION"))?;
        Ok(file)
    });
    made.map_err(|error| {
        Failure::message(
            FailureKind::File,
            format!("{path:?}: {}", output::refusal(&error, "--log")),
        )
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tracing::Level;

    use super::*;

    fn wanted(verbosity: Verbosity, has_file: bool, chosen: Option<&str>) -> [bool; 4] {
        let targets = targets(verbosity, has_file, chosen).unwrap();
        let events = [
            ("descent", Level::DEBUG),
            ("descent::op", Level::TRACE),
            ("tracer", Level::DEBUG),
            ("tracer::stop", Level::TRACE),
        ];
        events.map(|(target, level)| {
            let would = targets.as_ref().map(|it| it.would_enable(target, &level));
            would.unwrap_or(false)
        })
    }

    #[test]
    fn the_log_has_what_is_asked_for() {
        assert_eq!(wanted(Verbosity::Normal, false, None), [false; 4]);
        let decisions = [true, false, true, false];
        assert_eq!(wanted(Verbosity::Verbose, false, None), decisions);
        assert_eq!(wanted(Verbosity::Normal, true, None), decisions);
        assert_eq!(wanted(Verbosity::Trace, false, None), [true; 4]);
        let chosen = Some("descent=trace,tracer=debug");
        let both = [true, true, true, false];
        assert_eq!(wanted(Verbosity::Normal, false, chosen), both);
        assert_eq!(wanted(Verbosity::Trace, false, chosen), both);
        assert_eq!(wanted(Verbosity::Quiet, false, chosen), [false; 4]);
        let error = targets(Verbosity::Normal, false, Some("descent=loud")).unwrap_err();
        assert!(error.line().contains("DARC_LOG"), "{}", error.line());
    }

    #[test]
    fn an_earlier_log_is_replaced_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let begin = format!("darc {}: log\n", env!("CARGO_PKG_VERSION"));
        for _ in 0..2 {
            let mut file = create(&path).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), begin);
            writeln!(file, "an event").unwrap();
        }

        let precious = folder.path().join("precious");
        fs::write(&precious, "of others").unwrap();
        let error = create(&precious).unwrap_err();
        assert!(error.line().contains("--log"), "{}", error.line());
        assert_eq!(fs::read(&precious).unwrap(), b"of others");
        for path in [folder.path().to_owned(), folder.path().join("missing/log")] {
            assert!(create(&path).is_err(), "{path:?}");
        }
    }
}
