//! The values of f0's arguments that tell peaks apart, in words.

use super::model::{PeakValues, ValueContrast};
use super::words::percent;

/// One line for people: what the value is in either peak.
pub(super) fn in_words(contrast: &ValueContrast) -> String {
    let [one, other] = &contrast.values;
    format!(
        "peaks {} and {}: {} is {} in the one, {} in the other",
        one.peak,
        other.peak,
        contrast.expression,
        values(one),
        values(other)
    )
}

fn values(of: &PeakValues) -> String {
    if of.values.is_empty() {
        return format!("{} to {}", of.lowest, of.highest);
    }
    let mut shown: Vec<String> = of
        .values
        .iter()
        .map(|value| match value.share >= 1.0 {
            true => value.value.to_string(),
            false => format!("{} ({})", value.value, percent(value.share)),
        })
        .collect();
    let all: f64 = of.values.iter().map(|value| value.share).sum();
    if all < 0.999 {
        shown.push("others".to_owned());
    }
    shown.join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ValueShare;

    #[test]
    fn values_are_listed_or_their_range_is() {
        let few = PeakValues {
            peak: 1,
            values: vec![
                ValueShare {
                    value: 3,
                    share: 0.75,
                },
                ValueShare {
                    value: 0,
                    share: 0.25,
                },
            ],
            lowest: 0,
            highest: 3,
        };
        let many = PeakValues {
            peak: 2,
            values: Vec::new(),
            lowest: 4096,
            highest: 8191,
        };
        let contrast = ValueContrast {
            expression: "arg2".to_owned(),
            share: 1.0,
            values: [few, many],
        };
        assert_eq!(
            in_words(&contrast),
            "peaks 1 and 2: arg2 is 3 (75.0%) or 0 (25.0%) in the one, 4096 to 8191 in the other"
        );
    }
}
