//! The report for programs: schema 1, pretty-printed, control characters escaped as JSON does.

use super::model::Report;

/// The report as one JSON document that ends with a newline.
///
/// # Errors
/// Only when a figure is not finite, which no assembled report has.
pub fn render(report: &Report) -> Result<String, serde_json::Error> {
    let mut text = serde_json::to_string_pretty(report)?;
    text.push('\n');
    Ok(text)
}
