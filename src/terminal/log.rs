//! What darc does, step by step, on stderr (`-v`, and `-vv` for every event).

use tracing::level_filters::LevelFilter;

use crate::options::Verbosity;

/// Shows the log's events from now on, as many as the person wants; the first call decides.
pub fn show(verbosity: Verbosity) {
    let level = match verbosity {
        Verbosity::Quiet | Verbosity::Normal => return,
        Verbosity::Verbose => LevelFilter::DEBUG,
        Verbosity::Trace => LevelFilter::TRACE,
    };
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .without_time()
        .finish();
    // Fails only when there is a subscriber already, which is as good.
    let _ = tracing::subscriber::set_global_default(subscriber);
}
