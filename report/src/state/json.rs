//! Results in JSON, schema 1.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{MAX_NESTING, MAX_SIZE, StateError, Stored, validate};
use crate::Report;
use crate::model::SCHEMA;
use crate::profiles::{KIND, ProfileSet};

/// Brackets nest this deep at most: every fnode has one pair of its own and one of its list.
const MAX_BRACKETS: usize = 2 * MAX_NESTING + 16;

/// Reads a JSON result.
pub(super) fn parse(bytes: &[u8]) -> Result<Stored, StateError> {
    if bytes.len() > MAX_SIZE {
        return Err(StateError::TooLarge {
            size: bytes.len(),
            limit: MAX_SIZE,
        });
    }
    check_nesting(bytes)?;
    let damaged = |error: serde_json::Error| StateError::Damaged {
        line: error.line(),
        what: error.to_string(),
    };
    // What it is comes first, so that another schema is not called damaged.
    let Header { schema, kind } = read(bytes).map_err(damaged)?;
    let known = u64::from(SCHEMA);
    match schema {
        None => return Err(StateError::NotDarc),
        Some(found) if found != known => return Err(StateError::Version { found, known }),
        Some(_) => {}
    }
    if kind.as_deref() == Some(KIND) {
        let set: ProfileSet = read(bytes).map_err(damaged)?;
        validate::profiles(&set)?;
        return Ok(Stored::Profiles(Box::new(set)));
    }
    let report: Report = read(bytes).map_err(damaged)?;
    validate::report(&report)?;
    Ok(Stored::Report(Box::new(report)))
}

/// All that tells results in JSON from other JSON.
#[derive(Deserialize)]
struct Header {
    schema: Option<u64>,
    kind: Option<String>,
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    // The nesting has been limited, by a limit that fits the ftree.
    reader.disable_recursion_limit();
    let value = T::deserialize(&mut reader)?;
    reader.end()?;
    Ok(value)
}

/// Refuses brackets that nest too deep, before anything recursive sees them.
fn check_nesting(bytes: &[u8]) -> Result<(), StateError> {
    let (mut depth, mut line) = (0_usize, 1);
    let mut in_text = false;
    let mut bytes = bytes.iter();
    while let Some(byte) = bytes.next() {
        match (byte, in_text) {
            (b'\\', true) => {
                bytes.next();
            }
            (b'"', _) => in_text = !in_text,
            (b'{' | b'[', false) => depth += 1,
            (b'}' | b']', false) => depth = depth.saturating_sub(1),
            (b'\n', _) => line += 1,
            _ => {}
        }
        if depth > MAX_BRACKETS {
            let what = format!("brackets nest deeper than {MAX_BRACKETS}");
            return Err(StateError::Damaged { line, what });
        }
    }
    Ok(())
}
