//! Sets of profiles that can be read again: however many segments were measured, a file has only so much room.

use std::borrow::Cow;

use super::{MAX_RECORDS, MAX_SIZE};
use crate::profiles::ProfileSet;

/// Records beside those of profiles, segments and refusals: the set itself, its target, its clock, its pauses.
const OTHERS: usize = 16;

/// A set as text that can be read again.
#[derive(Debug)]
pub struct Fitting {
    /// The text.
    pub text: String,
    /// What the person should know: it says less than was measured.
    pub warning: Option<String>,
}

/// How much a file may hold.
#[derive(Clone, Copy, Debug)]
struct Room {
    records: usize,
    bytes: usize,
}

/// Writes a set. Where it would be larger than what is read, neighbouring segments are made one, and it says so.
///
/// # Errors
/// Those of `write`.
pub fn fitting<E>(
    set: &ProfileSet,
    write: impl Fn(&ProfileSet) -> Result<String, E>,
) -> Result<Fitting, E> {
    let room = Room {
        records: MAX_RECORDS,
        bytes: MAX_SIZE,
    };
    within(room, set, write)
}

fn within<E>(
    room: Room,
    set: &ProfileSet,
    write: impl Fn(&ProfileSet) -> Result<String, E>,
) -> Result<Fitting, E> {
    let mut fitting = Cow::Borrowed(set);
    let mut warning = None;
    let mut together = 1_u64;
    loop {
        let is_divided = fitting.segments.len() > 1;
        if records(&fitting) <= room.records || !is_divided {
            let text = write(&fitting)?;
            if text.len() <= room.bytes || !is_divided {
                return Ok(Fitting { text, warning });
            }
        }
        together = together.saturating_mul(2);
        let said = format!(
            "{} segments are more than a file holds: {together} neighbours each are one in it; choose a longer -i",
            set.segments.len()
        );
        let mut merged = fitting.with_half_the_segments();
        merged.warnings.clone_from(&set.warnings);
        merged.warnings.push(said.clone());
        fitting = Cow::Owned(merged);
        warning = Some(said);
    }
}

/// How many records a set has at most.
fn records(set: &ProfileSet) -> usize {
    let of_profiles = set.profiles.iter().map(|profile| {
        let parts = profile.segments.iter().map(|part| 1 + part.buckets.len());
        3 + profile.profile.buckets.len() + profile.peaks.len() + parts.sum::<usize>()
    });
    OTHERS + of_profiles.sum::<usize>() + set.segments.len() + set.not_profiled.len()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use crate::fixture;
    use crate::state::{Stored, read_stored, write_profiles};

    fn text(set: &ProfileSet) -> Result<String, Infallible> {
        Ok(write_profiles(set))
    }

    fn read(written: &Fitting) -> ProfileSet {
        match read_stored(written.text.as_bytes()).unwrap() {
            Stored::Profiles(read) => *read,
            Stored::Report(_) => panic!("no set"),
        }
    }

    #[test]
    fn there_is_room_for_what_is_written() {
        assert!(records(&fixture::segments(30, 4000, 5)) > MAX_RECORDS);
        let set = fixture::segments(30, 100, 5);
        let room = Room {
            records: 10_000,
            bytes: MAX_SIZE,
        };
        let small = within(room, &set, text).unwrap();
        assert!(small.warning.as_ref().unwrap().contains("2 neighbours"));
        let data = small
            .text
            .lines()
            .skip_while(|line| !line.starts_with("profiles "));
        // The last line is the checksum.
        let written = data.count() - 1;
        let read_again = read(&small);
        assert!(written <= records(&read_again) && written <= room.records);
        assert_eq!(read_again.segments.len(), 50);
        assert!(read_again.warnings.last().unwrap().contains("longer -i"));
        let calls = |set: &ProfileSet| -> u64 {
            let parts = set.profiles.iter().flat_map(|profile| &profile.segments);
            parts.map(|part| part.calls).sum()
        };
        assert_eq!(calls(&read_again), calls(&set));
        let room = Room {
            records: MAX_RECORDS,
            bytes: small.text.len() / 2,
        };
        let smaller = within(room, &set, text).unwrap();
        assert!(smaller.text.len() <= room.bytes);
        assert_eq!(calls(&read(&smaller)), calls(&set));
    }

    #[test]
    fn a_set_that_fits_is_written_as_it_is() {
        let set = fixture::segments(2, 3, 2);
        let written = fitting(&set, text).unwrap();
        assert!(written.text == write_profiles(&set) && written.warning.is_none());
    }
}
