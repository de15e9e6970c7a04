//! Sets of profiles: what `darc profile` found, as data and in each format.

pub mod assemble;
pub(super) mod heat;
mod html;
mod merging;
mod model;
mod svg;

pub use model::{
    FunctionProfile, KIND, NotProfiled, Pauses, PeakRange, ProfileSet, Segment, SegmentProfile,
    Source,
};

use super::Format;

/// The set in a format; `style` matters to the text only. `None` for formats that show paths.
///
/// # Errors
/// Only when a figure is not finite, which no assembled set has.
pub fn render(
    set: &ProfileSet,
    format: Format,
    style: super::text::Style<'_>,
) -> Option<Result<String, serde_json::Error>> {
    Some(Ok(match format {
        Format::Text => super::text::profiles::render(set, style),
        Format::Json => match serde_json::to_string_pretty(set) {
            Ok(json) => json + "\n",
            Err(error) => return Some(Err(error)),
        },
        Format::Svg => svg::render(set),
        Format::Html => html::render(set),
        Format::Folded
        | Format::Speedscope
        | Format::Callgrind
        | Format::Chrome
        | Format::Pprof => return None,
    }))
}

/// Profiles with a smaller share of the time of all are shown in the table only.
const SHARE: f64 = 0.01;
/// So many are shown with their histograms.
const MOST: usize = 10;

/// The profiles that are worth a picture: those with most of the time, from the largest on.
pub(super) fn matter(set: &ProfileSet) -> impl Iterator<Item = &FunctionProfile> {
    let all = set
        .profiles
        .iter()
        .fold(0_u64, |sum, entry| sum.saturating_add(entry.profile.total));
    let enough = move |entry: &&FunctionProfile| entry.profile.total as f64 >= SHARE * all as f64;
    set.profiles.iter().take_while(enough).take(MOST)
}
