//! How darc ends: the exit codes and the failures that carry them.

use std::fmt;
use std::io::Write as _;
use std::process::ExitCode;

use crate::terminal::warning::one_line;

/// The table of exit codes that `--help` shows.
pub const EXIT_CODES: &str = "\
Exit codes:
  0    the analysis was done, or ended by --duration or an interrupt
  1    any other failure
  2    usage: an option or a value makes no sense
  3    the target cannot be analysed: no such process, no permission, unsupported
  4    a function's or program's name was not found, or fits several
  5    a file cannot be read or written, or is damaged
  6    the target was lost in the middle of the analysis, as by a signal that ended it
  7    no op of f0 completed, or no call of a profiled function began: nothing to report
  8    compare: a condition of --fail-on holds; resume --strict: the profile has changed
  101  an internal error; please report the line that was shown
  128+N  darc was told to leave at once by signal N
`run`, and a `resume`, `profile` or `sample` that starts a program, pass on the program's
exit status, whatever became of the analysis: its code, or 128+N when signal N ended it.
What failed is a warning. Codes of darc's own say that the program has not run (or 8, that
--strict ended the analysis).";

/// The class of a failure; each has an exit code of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailureKind {
    /// Whatever has no class of its own.
    Other,
    /// An option or a value makes no sense.
    Usage,
    /// The target does not exist, may not be traced, or is of an unsupported kind.
    Target,
    /// A name was not found, or fits several things.
    Name,
    /// A file cannot be read or written, or is damaged.
    File,
    /// The target went away, or out of control, in mid-analysis.
    Lost,
    /// A defect of darc.
    Internal,
}

impl FailureKind {
    /// The exit code.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            FailureKind::Other => 1,
            FailureKind::Usage => 2,
            FailureKind::Target => 3,
            FailureKind::Name => 4,
            FailureKind::File => 5,
            FailureKind::Lost => 6,
            FailureKind::Internal => 101,
        }
    }
}

/// A failure of darc itself: why, and with which exit code it ends.
///
/// Its text is what follows `darc: ` on the one line that is shown: `<what>: <why>; <what to do>`.
#[derive(Debug)]
pub struct Failure {
    kind: FailureKind,
    error: anyhow::Error,
}

impl Failure {
    /// A failure of class `kind`.
    pub fn new(kind: FailureKind, error: impl Into<anyhow::Error>) -> Self {
        Self {
            kind,
            error: error.into(),
        }
    }

    /// A usage error.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self::message(FailureKind::Usage, message)
    }

    /// A failure that has nothing but a message.
    pub fn message(kind: FailureKind, message: impl fmt::Display) -> Self {
        Self {
            kind,
            error: anyhow::Error::msg(message.to_string()),
        }
    }

    /// The class.
    #[must_use]
    pub fn kind(&self) -> FailureKind {
        self.kind
    }

    /// Whether it comes from an error of this type that is so.
    #[must_use]
    pub fn is<E: fmt::Display + fmt::Debug + Send + Sync + 'static>(
        &self,
        so: impl FnOnce(&E) -> bool,
    ) -> bool {
        self.error.downcast_ref().is_some_and(so)
    }

    /// The line for people, without a line feed: the chain of causes after `darc: `.
    #[must_use]
    pub fn line(&self) -> String {
        format!("darc: {}", self.text())
    }

    /// The failure for programs: one JSON object, shaped as `docs/output-format.md` says.
    #[must_use]
    pub fn json(&self) -> String {
        let message = self.text();
        serde_json::json!({ "schema": 1, "error": { "code": self.kind.code(), "message": message } }).to_string()
    }

    /// The chain of causes on one line. Some errors' own text repeats its cause: that is left out.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        for cause in self.error.chain().map(ToString::to_string) {
            if text.is_empty() {
                text = cause;
            } else if !text.contains(&cause) {
                text.push_str(": ");
                text.push_str(&cause);
            }
        }
        one_line(&text)
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self {
            kind: FailureKind::Other,
            error,
        }
    }
}

/// Gives a `Result` of any error its class.
pub trait Classify<T> {
    /// The error becomes a [`Failure`] of this class.
    ///
    /// # Errors
    /// Whenever there was one before.
    fn class(self, kind: FailureKind) -> Result<T, Failure>;
}

impl<T, E: Into<anyhow::Error>> Classify<T> for Result<T, E> {
    fn class(self, kind: FailureKind) -> Result<T, Failure> {
        self.map_err(|error| Failure::new(kind, error))
    }
}

/// How a command ended that did not fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitStatus {
    /// All was done.
    Done,
    /// The target, started by darc, ended with this code.
    TargetExited(u8),
    /// The target, started by darc, was ended by this signal.
    TargetKilled(i32),
    /// Darc was told to leave at once by this signal.
    LeftAtOnce(i32),
    /// A signal ended the target, which darc had not started, in the middle of the analysis.
    Lost,
    /// No op of f0 completed.
    NoOps,
    /// What was compared differs in a way that the person named.
    Differs,
}

impl ExitStatus {
    /// The exit code.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            ExitStatus::Done => 0,
            ExitStatus::Lost => FailureKind::Lost.code(),
            ExitStatus::NoOps => 7,
            ExitStatus::Differs => 8,
            ExitStatus::TargetExited(code) => code,
            ExitStatus::TargetKilled(signal) | ExitStatus::LeftAtOnce(signal) => {
                u8::try_from(signal.saturating_add(128)).unwrap_or(u8::MAX)
            }
        }
    }
}

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> Self {
        ExitCode::from(status.code())
    }
}

/// Makes a defect of darc show as one line instead of a backtrace; unwinding, and with it the
/// restoring of the target, goes on as before.
pub fn report_panics_in_one_line() {
    std::panic::set_hook(Box::new(|info| {
        let payload = info.payload();
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let what = text.unwrap_or("a failed check");
        let place = info
            .location()
            .map(|at| format!(" at {}:{}", at.file(), at.line()))
            .unwrap_or_default();
        // Where nobody can be told any more, a second panic would keep the target from being restored.
        let _ = writeln!(
            std::io::stderr(),
            "darc: internal error{place}: {}; please report this line",
            one_line(what)
        );
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_lists_every_code() {
        use FailureKind::{File, Lost, Name, Other, Target, Usage};
        let codes = [Other, Usage, Target, Name, File, Lost].map(FailureKind::code);
        for code in codes
            .into_iter()
            .chain([ExitStatus::Done, ExitStatus::NoOps, ExitStatus::Differs].map(ExitStatus::code))
        {
            assert!(EXIT_CODES.contains(&format!("\n  {code}    ")), "{code}");
        }
    }

    #[test]
    fn a_signal_adds_128() {
        assert_eq!(ExitStatus::TargetKilled(11).code(), 139);
        assert_eq!(ExitStatus::LeftAtOnce(2).code(), 130);
        assert_eq!(ExitStatus::TargetKilled(i32::MAX).code(), 255);
    }

    #[test]
    fn a_cause_that_the_text_names_already_is_not_repeated() {
        let cause = std::io::Error::from_raw_os_error(2);
        let text = format!("cannot open x ({cause}); check the path");
        let failure = Failure::new(
            FailureKind::File,
            anyhow::Error::new(cause).context(text.clone()),
        );
        assert_eq!(failure.line(), format!("darc: {text}"));
    }

    #[test]
    fn the_line_is_one_line_with_all_causes() {
        let error = anyhow::anyhow!("line\nfeed \x1b[31m").context("cannot read \"x\"");
        let failure = Failure::new(FailureKind::File, error);
        assert_eq!(
            failure.line(),
            r#"darc: cannot read "x": line\nfeed \x1b[31m"#
        );
        let json: serde_json::Value = serde_json::from_str(&failure.json()).unwrap();
        assert_eq!(json["error"]["code"], 5);
    }
}
