//! Durations as people type them: a number and a unit, as in `500ms`, `2s`, `1.5m`.

use std::time::Duration;

use thiserror::Error;

/// The longest duration: beyond a year a typing error is likelier than patience.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// Why a text is no duration.
#[derive(Clone, PartialEq, Eq, Error, Debug)]
pub enum DurationError {
    /// Not a number with a unit.
    #[error(
        "not a duration; write a number and a unit without a space, as in 500ms, 2s, 1.5m or 1h"
    )]
    Form,
    /// A number alone could mean anything.
    #[error("has no unit; write {0}s, {0}ms or {0}m")]
    NoUnit(String),
    /// Zero, or less than a nanosecond.
    #[error("is no time at all; leave the option out to go on until the end")]
    Zero,
    /// Longer than a year.
    #[error("is more than a year; leave the option out to go on until the end")]
    TooLong,
}

/// Reads `text`, which is decimal digits with at most one point, then `ns`, `us`, `ms`, `s`, `m` or `h`.
///
/// # Errors
/// When the text is of another form, zero, or longer than a year.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let unit_at = text
        .find(|c: char| c != '.' && !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let well_formed = number.starts_with(|c: char| c.is_ascii_digit())
        && !number.ends_with('.')
        && number.len() <= 32;
    let value: f64 = match number.parse() {
        Ok(value) if well_formed => value,
        _ => return Err(DurationError::Form),
    };
    let seconds = match unit {
        "ns" => value / 1e9,
        "us" | "µs" => value / 1e6,
        "ms" => value / 1e3,
        "s" => value,
        "m" | "min" => value * 60.0,
        "h" => value * 3600.0,
        "" => return Err(DurationError::NoUnit(number.to_owned())),
        _ => return Err(DurationError::Form),
    };
    match Duration::try_from_secs_f64(seconds) {
        Ok(Duration::ZERO) => Err(DurationError::Zero),
        Ok(duration) if duration <= LONGEST => Ok(duration),
        _ => Err(DurationError::TooLong),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_and_a_unit() {
        for (text, millis) in [
            ("500ms", 500),
            ("2s", 2000),
            ("1m", 60_000),
            ("1.5m", 90_000),
            ("0.5h", 1_800_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(parse("7us"), Ok(Duration::from_micros(7)));
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "", "s", "5 m", "-1s", "+1s", ".5s", "1.s", "1.2.3s", "1,5s", "1e30s", "NaNs", "infs",
            "5x", "٣s",
        ] {
            assert_eq!(parse(text), Err(DurationError::Form), "{text}");
        }
        assert_eq!(parse("5"), Err(DurationError::NoUnit("5".into())));
        assert_eq!(parse("0s"), Err(DurationError::Zero));
        assert_eq!(parse("0.1ns"), Err(DurationError::Zero));
        assert_eq!(parse("99999999h"), Err(DurationError::TooLong));
        assert_eq!(
            parse(&format!("{}s", "9".repeat(400))),
            Err(DurationError::Form)
        );
    }
}
