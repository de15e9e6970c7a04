//! The program: understand the command line, do what it says, show what went wrong, exit.

use std::io::Write;
use std::process::ExitCode;

use darc::cli::{self, Stop};
use darc::exit::{Failure, report_panics_in_one_line};
use darc::options::FailureFormat;
use darc::{command, terminal};

fn main() -> ExitCode {
    report_panics_in_one_line();
    match cli::parse(std::env::args_os()) {
        Ok(invocation) => {
            let format = invocation.failures();
            let log = terminal::log::show(invocation.verbosity(), invocation.log());
            match log.and_then(|()| command::execute(invocation)) {
                Ok(status) => ExitCode::from(status),
                Err(failure) => fail(&failure, format),
            }
        }
        Err(Stop::Show(text)) => {
            // `darc --help | head` is not worth a complaint.
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(Stop::Refuse(failure)) => fail(&failure, FailureFormat::Line),
    }
}

/// Shows the failure; where that is impossible the exit code still tells.
fn fail(failure: &Failure, format: FailureFormat) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "{}", failure.line());
    if format == FailureFormat::LineAndJson {
        let _ = writeln!(std::io::stdout(), "{}", failure.json());
    }
    ExitCode::from(failure.kind().code())
}
