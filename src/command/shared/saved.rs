//! Results as they are saved.

use darc_report::text::Style;
use darc_report::{self, Report, state};

use crate::exit::{Classify, Failure, FailureKind};
use crate::options::Format;

/// The content of a file of this format. Text and JSON can be read again; of the others see [`caveat`].
///
/// # Errors
/// Never for a report that was assembled or read.
pub fn contents(report: &Report, format: Format, style: Style<'_>) -> Result<Vec<u8>, Failure> {
    match format {
        Format::Text => Ok(state::write(report).into_bytes()),
        _ => darc_report::render(report, format, style).class(FailureKind::Other),
    }
}

/// What the person should know who saves an analysis in this format and nothing else.
#[must_use]
pub fn caveat(format: Format) -> Option<String> {
    (!format.is_complete()).then(|| {
        format!(
            "results saved as {} can be looked at, not resumed; darc resume and darc report read text and JSON",
            format.name()
        )
    })
}
