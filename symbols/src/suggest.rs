//! What a mistyped name may have meant.

use std::collections::BTreeSet;

use crate::demangle::{demangle, is_mangled};
use crate::identifiers::identifiers;
use crate::image::Image;
use crate::matching::clone_of;
use crate::names;

/// Names that can be typed instead of `name`, the likeliest first. Of several files the first is the program, whose own
/// names come before those of libraries.
///
/// Likely are names with the same letters, then names with one or few letters differing, then names that contain what was
/// typed. Nothing else is: no suggestion is better than one that nobody can have meant.
pub(crate) fn suggest(images: &[&Image], name: &str, max: usize) -> Vec<String> {
    let wanted = Wanted::new(name);
    let mut found: BTreeSet<(Nearness, Owner, usize, String)> = BTreeSet::new();
    for (index, image) in images.iter().enumerate() {
        let owner = match index {
            0 => Owner::Program,
            _ => Owner::Library,
        };
        for symbol in image.functions().iter().flat_map(|it| it.names()) {
            let symbol = clone_of(symbol).unwrap_or(symbol);
            if !wanted.may_be_near(symbol) {
                continue;
            }
            let shown = typed(&demangle(symbol));
            if shown.len() > MAX_SHOWN {
                continue;
            }
            if let Some(nearness) = wanted.nearness(&shown) {
                found.insert((nearness, owner, shown.len(), shown));
                if found.len() > max {
                    found.pop_last();
                }
            }
        }
    }
    let mut names: Vec<String> = Vec::new();
    for (.., name) in found {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Longer names are not compared letter by letter.
const MAX_COMPARED: usize = 128;
/// Longer names are not suggested, in bytes: nobody types them.
const MAX_SHOWN: usize = 72;
/// Shorter texts (letters) are contained in too many names.
const MIN_PART: usize = 4;

/// How near a name is to what was typed, the nearest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Nearness {
    /// Only the separators or the case differ.
    SameLetters,
    /// So many letters differ.
    Typo(usize),
    /// It contains what was typed.
    Part,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    Program,
    Library,
}

/// A mistyped name: compared without regard of case, and of `_`, `::` and `.` as separators.
struct Wanted {
    last: Vec<u8>,
    whole: Vec<u8>,
    most_typos: usize,
}

impl Wanted {
    fn new(name: &str) -> Wanted {
        let last = letters(&names::last_component(name));
        Wanted {
            whole: letters(&typed(name)),
            // A name that differs in more letters is another name.
            most_typos: match last.len() {
                0..4 => 0,
                4..8 => 1,
                8..14 => 2,
                _ => 3,
            },
            last,
        }
    }

    /// Tells without demangling most symbols that cannot be near: no identifier in them is.
    fn may_be_near(&self, symbol: &str) -> bool {
        if !is_mangled(symbol) {
            return self.is_near(symbol);
        }
        let mut identifiers = identifiers(symbol).peekable();
        identifiers.peek().is_none() || identifiers.any(|it| self.is_near(it))
    }

    fn is_near(&self, identifier: &str) -> bool {
        let identifier = letters(identifier);
        self.of_letters(&identifier).is_some()
            || (!identifier.is_empty() && self.whole.ends_with(&identifier))
    }

    fn nearness(&self, name: &str) -> Option<Nearness> {
        if self.whole == letters(name) {
            return Some(Nearness::SameLetters);
        }
        self.of_letters(&letters(&names::last_component(name)))
    }

    fn of_letters(&self, last: &[u8]) -> Option<Nearness> {
        if self.last.is_empty() || last.is_empty() {
            return None;
        }
        match edit_distance(&self.last, last, self.most_typos) {
            Some(0) => Some(Nearness::SameLetters),
            Some(distance) => Some(Nearness::Typo(distance)),
            None if self.last.len() >= MIN_PART && contains(last, &self.last) => {
                Some(Nearness::Part)
            }
            None => None,
        }
    }
}

/// A name as a person types it: without arguments and generics.
fn typed(name: &str) -> String {
    names::without_generics(names::without_arguments(name))
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

fn letters(name: &str) -> Vec<u8> {
    name.bytes()
        .take(4 * MAX_COMPARED)
        .filter(u8::is_ascii_alphanumeric)
        .map(|byte| byte.to_ascii_lowercase())
        .take(MAX_COMPARED)
        .collect()
}

/// Number of letters to insert, delete, replace or swap with their neighbour (optimal string alignment); `None` beyond `limit`.
fn edit_distance(a: &[u8], b: &[u8], limit: usize) -> Option<usize> {
    if a.len().abs_diff(b.len()) > limit {
        return None;
    }
    // What both have at the front and at the end costs nothing; most names differ in the middle alone, or altogether.
    let front = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    let (a, b) = (&a[front..], &b[front..]);
    let end = a
        .iter()
        .rev()
        .zip(b.iter().rev())
        .take_while(|(x, y)| x == y)
        .count();
    let (a, b) = (&a[..a.len() - end], &b[..b.len() - end]);
    let mut before: Vec<usize> = Vec::new();
    let mut previous: Vec<usize> = (0..=b.len()).collect();
    for (i, &x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, &y) in b.iter().enumerate() {
            let mut cost = (previous[j] + usize::from(x != y))
                .min(previous[j + 1] + 1)
                .min(row[j] + 1);
            if i > 0 && j > 0 && x == b[j - 1] && a[i - 1] == y {
                cost = cost.min(before[j - 1] + 1);
            }
            row.push(cost);
        }
        if row.iter().all(|&cost| cost > limit) {
            return None;
        }
        before = std::mem::replace(&mut previous, row);
    }
    previous
        .last()
        .copied()
        .filter(|&distance| distance <= limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        let distance = |a: &str, b: &str| edit_distance(a.as_bytes(), b.as_bytes(), 3);
        assert_eq!(distance("insert", "insert"), Some(0));
        assert_eq!(distance("insret", "insert"), Some(1));
        assert_eq!(distance("inset", "insert"), Some(1));
        assert_eq!(distance("", "abc"), Some(3));
        assert_eq!(distance("abcdef", "uvwxyz"), None);
    }

    #[test]
    fn names_are_near_by_few_letters_or_as_a_part() {
        for (typed, name, expected) in [
            ("serve", "serve", Some(Nearness::SameLetters)),
            ("Ns_Serve", "ns::serve", Some(Nearness::SameLetters)),
            ("srve", "ns::serve", Some(Nearness::Typo(1))),
            ("SimpleQuery", "pg::exec_simple_query", Some(Nearness::Part)),
            ("handle", "v8::internal::Assembler::andl", None),
            ("main", "__wait", None),
            ("main", "wait", None),
            ("run", "prune_all", None),
            ("", "f", None),
        ] {
            let found = Wanted::new(typed).nearness(name);
            assert!(found == expected, "{typed} {name}");
        }
    }
}
