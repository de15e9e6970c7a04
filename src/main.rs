//! The program: understand the command line, do what it says, show what went wrong, exit.

use std::io::Write;
use std::process::ExitCode;

use darc::cli::{self, Stop};
use darc::command;
use darc::exit::{Failure, report_panics_in_one_line};

fn main() -> ExitCode {
    report_panics_in_one_line();
    match cli::parse(std::env::args_os()) {
        Ok(invocation) => command::execute(invocation).map_or_else(fail, ExitCode::from),
        Err(Stop::Show(text)) => {
            // `darc --help | head` is not worth a complaint.
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(Stop::Refuse(failure)) => fail(failure),
    }
}

fn fail(failure: Failure) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "{}", failure.line());
    ExitCode::from(failure.kind().code())
}
