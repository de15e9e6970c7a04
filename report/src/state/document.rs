//! The file as a whole: first line, lines for people, data, checksum.

use serde_json::Value;

use super::{MAX_SIZE, StateError, Stored, checksum, outline, validate};
use crate::Report;
use crate::profiles::ProfileSet;
use crate::text::{self, Style};

/// The version of the format.
pub const VERSION: u64 = 1;

const MAGIC: &str = "darc ";
const LINES: &str = "report-lines ";
const DATA_FOLLOW: &str = "\nThe same as data, for darc resume and darc report:\n";
const SET_FOLLOWS: &str = "\nThe same as data, for darc compare and darc report:\n";
/// What the data of an analysis and of a set of profiles begin with.
const REPORT: &str = "report";
const PROFILES: &str = "profiles";
const CHECKSUM: &str = "checksum ";

/// The result as a file.
///
/// # Panics
/// When the report holds a figure that is not finite, which no assembled report does.
#[must_use]
pub fn write(report: &Report) -> String {
    let people = text::render(report, Style::default()) + DATA_FOLLOW;
    let data = serde_json::to_value(report).expect("a report has text keys and finite figures");
    file(&people, REPORT, &data)
}

/// A set of profiles as a file.
///
/// # Panics
/// When the set holds a figure that is not finite, which no assembled set does.
#[must_use]
pub fn write_profiles(set: &ProfileSet) -> String {
    let people = text::profiles::render(set, Style::default()) + SET_FOLLOWS;
    let data = serde_json::to_value(set).expect("a set has text keys and finite figures");
    file(&people, PROFILES, &data)
}

fn file(people: &str, keyword: &str, data: &Value) -> String {
    let lines = people.matches('\n').count();
    let mut file = format!("{MAGIC}{VERSION}\n{LINES}{lines}\n{people}");
    outline::write(&mut file, keyword, data);
    let sum = checksum::of(file.as_bytes());
    file.push_str(&format!("{CHECKSUM}{} {sum:016x}\n", checksum::NAME));
    file
}

/// Reads a file that [`write()`] has written.
///
/// # Errors
/// When it is no such file, is damaged, has another version, or contradicts itself.
pub fn parse(bytes: &[u8]) -> Result<Report, StateError> {
    match parse_stored(bytes)? {
        Stored::Report(report) => Ok(*report),
        Stored::Profiles(_) => Err(StateError::Profiles),
    }
}

/// Reads a file that [`write()`] or [`write_profiles()`] has written.
pub(super) fn parse_stored(bytes: &[u8]) -> Result<Stored, StateError> {
    if bytes.len() > MAX_SIZE {
        return Err(StateError::TooLarge {
            size: bytes.len(),
            limit: MAX_SIZE,
        });
    }
    let found = version(bytes)?;
    if found != VERSION {
        return Err(StateError::Version {
            found,
            known: VERSION,
        });
    }
    let text = checked(bytes)?;
    let mut lines = text.split_terminator('\n').zip(1..).skip(1);
    let damaged = |line: usize, what: &str| StateError::Damaged {
        line,
        what: what.to_owned(),
    };
    let for_people = lines
        .next()
        .and_then(|(line, _)| line.strip_prefix(LINES))
        .and_then(outline::count)
        .ok_or_else(|| damaged(2, "the number of lines for people is missing"))?;
    let total = text.matches('\n').count();
    let data_begins = usize::try_from(for_people)
        .ok()
        .and_then(|count| count.checked_add(2))
        .filter(|&begin| begin < total)
        .ok_or_else(|| damaged(2, "there are not so many lines"))?;
    let mut lines = lines.skip(data_begins - 2).peekable();
    let is_set = lines
        .peek()
        .is_some_and(|(line, _)| line.split(' ').next() == Some(PROFILES));
    Ok(match is_set {
        true => Stored::Profiles(Box::new(profiles(outline::parse(PROFILES, lines)?)?)),
        false => Stored::Report(Box::new(report(outline::parse(REPORT, lines)?)?)),
    })
}

/// The set of profiles that the data describe, if they do.
pub(super) fn profiles(data: Value) -> Result<ProfileSet, StateError> {
    let set: ProfileSet =
        serde_json::from_value(data).map_err(|error| StateError::Invalid(error.to_string()))?;
    validate::profiles(&set)?;
    Ok(set)
}

/// The report that the data describe, if they do.
pub(super) fn report(data: Value) -> Result<Report, StateError> {
    let report: Report =
        serde_json::from_value(data).map_err(|error| StateError::Invalid(error.to_string()))?;
    validate::report(&report)?;
    Ok(report)
}

/// The version in the first line.
fn version(bytes: &[u8]) -> Result<u64, StateError> {
    let digits = bytes
        .strip_prefix(MAGIC.as_bytes())
        .and_then(|rest| rest.split(|&byte| byte == b'\n').next())
        .ok_or(StateError::NotDarc)?;
    std::str::from_utf8(digits)
        .ok()
        .and_then(outline::count)
        .ok_or(StateError::NotDarc)
}

/// All lines before the checksum, when that is the last line and right.
fn checked(bytes: &[u8]) -> Result<&str, StateError> {
    let lines = bytes.iter().filter(|&&byte| byte == b'\n').count();
    let damaged = |what: &str| StateError::Damaged {
        line: lines.max(1),
        what: what.to_owned(),
    };
    let cut = || damaged("the file is cut off: its last line is no checksum");
    let body = bytes.strip_suffix(b"\n").ok_or_else(cut)?;
    let last = body
        .iter()
        .rposition(|&byte| byte == b'\n')
        .ok_or_else(cut)?
        + 1;
    let (before, line) = body.split_at(last);
    let expected = format!("{CHECKSUM}{} {:016x}", checksum::NAME, checksum::of(before));
    if !line.starts_with(CHECKSUM.as_bytes()) {
        return Err(cut());
    }
    if line != expected.as_bytes() {
        return Err(damaged("the checksum does not fit: the file was changed"));
    }
    std::str::from_utf8(before).map_err(|error| {
        let good = &before[..error.valid_up_to()];
        StateError::Damaged {
            line: good.iter().filter(|&&byte| byte == b'\n').count() + 1,
            what: "not UTF-8".to_owned(),
        }
    })
}
