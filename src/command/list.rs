//! `darc list`: the functions that a person can choose.

use std::fs::OpenOptions;
use std::io::IsTerminal;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use darc_process::modules::Modules;
use darc_symbols::{DebugSearch, Image};
use darc_tracer::preflight;

use crate::exit::{Classify, ExitStatus, Failure, FailureKind};
use crate::listing::{self, Listing, Reader};
use crate::options::{ListOptions, ListSource, ListingFormat};
use crate::output::to_stdout;
use crate::terminal::warning;

/// Lists on stdout.
///
/// # Errors
/// When the process or file cannot be read, or no function fits.
pub fn execute(options: ListOptions) -> Result<ExitStatus, Failure> {
    let listing = match &options.source {
        ListSource::File(path) => {
            let image = open(path)?;
            found(
                listing::list(&[&image], &options.query),
                &[&image],
                &options,
            )?
        }
        ListSource::Pid(pid) => {
            let modules = read(*pid)?;
            let images: Vec<&Image> = modules
                .loaded()
                .into_iter()
                .filter_map(|id| modules.get(id).image.as_ref())
                .collect();
            found(listing::list(&images, &options.query), &images, &options)?
        }
    };
    let stdout = std::io::stdout();
    let text = match options.format {
        ListingFormat::Text if stdout.is_terminal() => listing::render(&listing, Reader::Person),
        ListingFormat::Text => listing::render(&listing, Reader::Program),
        ListingFormat::Json => {
            let json = serde_json::to_string_pretty(&listing).class(FailureKind::Other)?;
            json + "\n"
        }
    };
    for warning in &listing.warnings {
        warning::print(warning);
    }
    to_stdout(&text).class(FailureKind::File)?;
    Ok(ExitStatus::Done)
}

/// The file as an image. Waits for nobody: a named pipe is refused, not waited for.
pub(super) fn open(path: &Path) -> Result<Image, Failure> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(|error| {
            let advice = "name a program or library, or a process with -p PID";
            Failure::message(FailureKind::File, format!("{path:?}: {error}; {advice}"))
        })?;
    Image::open(file, path, &DebugSearch::default()).class(FailureKind::File)
}

/// What the process has loaded. It is read, not traced: another tracer is no hindrance.
pub(super) fn read(pid: i32) -> Result<Modules, Failure> {
    let mut modules = Modules::default();
    if let Err(error) = modules.refresh(pid) {
        // What stands in the way of attaching mostly is what stands in the way of reading.
        preflight::check(pid).class(FailureKind::Target)?;
        return Err(Failure::new(FailureKind::Target, error));
    }
    for warning in modules.take_warnings() {
        warning::print(&warning);
    }
    if modules.loaded().is_empty() {
        preflight::check(pid).class(FailureKind::Target)?;
    }
    Ok(modules)
}

/// The listing, if there is anything in it.
fn found(listing: Listing, images: &[&Image], options: &ListOptions) -> Result<Listing, Failure> {
    if !listing.functions.is_empty() {
        return Ok(listing);
    }
    let message = match &options.query.pattern {
        None => {
            "no functions: there are neither symbols nor unwind tables; install the debug symbols"
                .to_owned()
        }
        Some(pattern) => {
            let mut near: Vec<String> = images
                .iter()
                .flat_map(|image| image.suggest(pattern.as_str(), 3))
                .collect();
            near.truncate(3);
            let advice = match near.is_empty() {
                true => "try a part of the name, or a pattern such as '*part*'".to_owned(),
                false => format!("did you mean {}?", near.join(", ")),
            };
            format!("{:?}: no function of this name; {advice}", pattern.as_str())
        }
    };
    Err(Failure::message(FailureKind::Name, message))
}
