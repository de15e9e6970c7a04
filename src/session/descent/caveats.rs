//! What is said of calls of a Go function that were not measured.

/// From this part of all calls on it matters that some were not measured.
const MANY: f64 = 0.1;
/// From this part of all calls on it is said that some did not return.
const SOME: f64 = 0.01;

/// Of calls that passed, as there was no room for their goroutines.
#[must_use]
pub fn unfollowed(passed: u64, measured: u64) -> String {
    let all = passed.saturating_add(measured) as f64;
    let so = match passed as f64 >= MANY * all {
        true => "; latencies, peaks and their shares are of some goroutines only",
        false => "",
    };
    format!(
        "{passed} calls of f0 passed unmeasured: of goroutines that exist at the same time 1,024 are followed, fewer where memory is limited{so}"
    )
}

/// Of calls that a panic ended, where these are many.
#[must_use]
pub fn ended_otherwise(ended: u64, measured: u64) -> Option<String> {
    let all = ended.saturating_add(measured) as f64;
    (ended as f64 > SOME * all).then(|| {
        format!(
            "{ended} calls of f0 ended by a panic or runtime.Goexit: they are not in the profile, and may be the slow ones"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_many_calls_are_missing_is_weighed() {
        assert!(unfollowed(10, 90).contains("some goroutines only"));
        assert!(!unfollowed(10, 900).contains("some goroutines only"));
        assert_eq!(ended_otherwise(1, 99), None);
        assert!(ended_otherwise(2, 98).is_some_and(|said| said.contains("may be the slow ones")));
        assert_eq!(ended_otherwise(0, 0), None);
    }
}
