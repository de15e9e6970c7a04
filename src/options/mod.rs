//! What the person asked for, as plain values: nothing of the command line's parser is left in them.

mod analysis;
mod common;
mod profile;
mod showing;

use std::path::Path;

pub use analysis::*;
pub use common::*;
pub use profile::*;
pub use showing::*;

pub use crate::listing::Query;
pub use darc_report::Format;
pub use darc_report::difference::{Condition, Method};

/// The function that is analysed when none is named.
pub const DEFAULT_F0: &str = "main";

/// One invocation of darc.
#[derive(Clone, PartialEq, Debug)]
pub enum Invocation {
    /// `darc run`
    Run(RunOptions),
    /// `darc attach`
    Attach(AttachOptions),
    /// `darc attach`, of several processes
    AttachAll(AttachAllOptions),
    /// `darc resume`
    Resume(ResumeOptions),
    /// `darc profile`
    Profile(ProfileOptions),
    /// `darc watch`
    Watch(WatchOptions),
    /// `darc report`
    Report(ReportOptions),
    /// `darc compare`
    Compare(CompareOptions),
    /// `darc list`
    List(ListOptions),
    /// `darc sample`
    Sample(SampleOptions),
    /// `darc doctor`
    Doctor(DoctorOptions),
    /// `darc status`
    Status(StatusOptions),
    /// `darc cleanup`
    Cleanup(CleanupOptions),
    /// `darc prove`
    Prove(ProveOptions),
    /// `darc demo`
    Demo(DemoOptions),
    /// The program that `darc demo` analyses.
    DemoTarget,
    /// The process that restores the target's code should darc be killed.
    Guardian(GuardianOptions),
}

impl Invocation {
    /// The file that the log is written to.
    #[must_use]
    pub fn log(&self) -> Option<&Path> {
        match self {
            Invocation::Profile(options) => options.log.as_deref(),
            _ => self.common().and_then(|common| common.log.as_deref()),
        }
    }

    /// How much is said on stderr.
    #[must_use]
    pub fn verbosity(&self) -> Verbosity {
        match self {
            Invocation::Profile(options) => options.verbosity,
            _ => self
                .common()
                .map_or(Verbosity::Normal, |common| common.verbosity),
        }
    }

    /// Whether a failure is also written to stdout, as JSON: when that format was asked for, and
    /// stdout does not belong to the target.
    #[must_use]
    pub fn failures(&self) -> FailureFormat {
        let owns_stdout = match self {
            Invocation::Run(_)
            | Invocation::Demo(_)
            | Invocation::DemoTarget
            | Invocation::Guardian(_) => false,
            Invocation::Resume(options) => matches!(options.target, ResumeTarget::Pid(_)),
            Invocation::Attach(_)
            | Invocation::AttachAll(_)
            | Invocation::Watch(_)
            | Invocation::Prove(_) => true,
            Invocation::Profile(options) => matches!(options.target, ProfileTarget::Pid(_)),
            Invocation::Report(options) => options.output.is_none(),
            Invocation::Sample(options) => {
                options.output.is_none() && !matches!(options.target, SampleTarget::Command(_))
            }
            Invocation::Compare(_)
            | Invocation::List(_)
            | Invocation::Doctor(_)
            | Invocation::Status(_)
            | Invocation::Cleanup(_) => true,
        };
        let format = match self {
            Invocation::Report(options) => options.format,
            Invocation::Profile(options) => options.format,
            Invocation::Compare(options) => options.format.into(),
            Invocation::List(options) => options.format.into(),
            Invocation::Sample(options) if options.format == SampleFormat::Json => Format::Json,
            Invocation::Doctor(options) => options.format.into(),
            Invocation::Status(options) => options.format,
            Invocation::Prove(options) => options.format.into(),
            _ => self.common().map_or(Format::Text, |common| common.format),
        };
        if owns_stdout && format == Format::Json {
            FailureFormat::LineAndJson
        } else {
            FailureFormat::Line
        }
    }

    fn common(&self) -> Option<&Common> {
        match self {
            Invocation::Run(options) => Some(&options.common),
            Invocation::Attach(options) => Some(&options.common),
            Invocation::AttachAll(options) => Some(&options.common),
            Invocation::Resume(options) => Some(&options.common),
            Invocation::Demo(options) => Some(&options.common),
            Invocation::Report(_)
            | Invocation::Watch(_)
            | Invocation::Profile(_)
            | Invocation::Compare(_)
            | Invocation::List(_)
            | Invocation::Sample(_)
            | Invocation::Doctor(_)
            | Invocation::Status(_)
            | Invocation::Cleanup(_)
            | Invocation::Prove(_)
            | Invocation::DemoTarget
            | Invocation::Guardian(_) => None,
        }
    }
}

/// How a failure is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailureFormat {
    /// One line on stderr.
    Line,
    /// The same, and one JSON object on stdout.
    LineAndJson,
}

/// `darc guardian`, which darc starts by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GuardianOptions {
    /// The target.
    pub pid: i32,
    /// The inherited descriptor of the list of patched bytes.
    pub ledger_fd: i32,
    /// The inherited descriptor that reaches its end when darc dies.
    pub life_fd: i32,
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use darc_analysis::Params;

    use super::*;

    #[test]
    fn json_failures_go_to_stdout_only_where_it_is_ours() {
        let common = Common {
            format: Format::Json,
            ..Common::default()
        };
        let attach = AttachOptions {
            pid: 1,
            f0: Some("f".into()),
            prove: false,
            part: None,
            common: common.clone(),
        };
        assert_eq!(
            Invocation::Attach(attach).failures(),
            FailureFormat::LineAndJson
        );
        let run = RunOptions {
            command: vec!["ls".into()],
            repeat: NonZeroU32::MIN,
            f0: "f".into(),
            common,
        };
        assert_eq!(Invocation::Run(run).failures(), FailureFormat::Line);
    }

    #[test]
    fn what_is_given_wins_and_the_rest_stays() {
        let given = GivenParams {
            start_ops: Some(7),
            ..GivenParams::default()
        };
        let file = GivenParams {
            start_ops: Some(1),
            max_depth: Some(3),
            ..GivenParams::default()
        };
        let params = given.or(file).over(Params {
            decision_ops: 9,
            ..Params::default()
        });
        assert_eq!(
            (params.start_ops, params.max_depth, params.decision_ops),
            (7, 3, 9)
        );
    }
}
