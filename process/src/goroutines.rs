//! Whether a program of the Go run-time can be measured, and what the engine must know of it.

use darc_symbols::Image;
use darc_tracer::plan::Goroutines;

/// Where the number of a goroutine is in its descriptor, by version of Go 1: what has been measured with each.
///
/// Source: `type g struct` in Go's `src/runtime/runtime2.go`.
const KNOWN: [(u32, u32); 2] = [(19, 152), (27, 152)];

/// What is known of the program that an image is.
///
/// # Errors
/// Why it cannot be measured, for people.
pub fn of(image: &Image) -> Result<Goroutines, String> {
    let version = image.go_version();
    let Some(version) = version else {
        return Err("it does not say by which version of Go".to_owned());
    };
    let Some(&(_, number)) = KNOWN
        .iter()
        .find(|&&(known, _)| minor(&version) == Some(known))
    else {
        let known = KNOWN.map(|(minor, _)| format!("1.{minor}")).join(" and ");
        return Err(format!("{version} is not known, only {known} are"));
    };
    let calls_c = image.interpreter().is_some() || image.symbol("crosscall2").is_some();
    match calls_c {
        true => Err(format!(
            "of {version}, but linked dynamically or with C code (cgo)"
        )),
        false => Ok(Goroutines { number }),
    }
}

/// `go1.19.8` → 19. Release candidates and changed tool chains count as unknown.
fn minor(version: &str) -> Option<u32> {
    let rest = version.strip_prefix("go1.")?;
    let (minor, patch) = rest.split_once('.').unwrap_or((rest, "0"));
    patch.parse::<u32>().ok()?;
    minor.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        for (version, expected) in [
            ("go1.19.8", Some(19)),
            ("go1.27", Some(27)),
            ("go1.27rc1", None),
            ("go1.24.1 X:nocoverageredesign", None),
            ("devel go1.27-abc", None),
        ] {
            assert_eq!(minor(version), expected, "{version}");
        }
    }
}
