//! What a mistyped name may have meant.

use crate::demangle::demangle;
use crate::image::Image;
use crate::names;

/// Similar names over several files, nearest first.
pub(crate) fn suggest(images: &[&Image], name: &str, max: usize) -> Vec<String> {
    let wanted = Fuzzy::new(name);
    let mut found: Vec<(usize, String)> = Vec::new();
    for function in images.iter().flat_map(|image| image.functions()) {
        for symbol in function.names() {
            let demangled = demangle(symbol);
            if let Some(distance) = wanted.distance(&demangled) {
                found.push((distance, demangled));
            }
        }
        if found.len() > MAX_SIMILAR {
            keep_nearest(&mut found, max);
        }
    }
    keep_nearest(&mut found, max);
    found.into_iter().map(|(_, name)| name).collect()
}

/// So many similar names are held before the farther ones are dropped.
const MAX_SIMILAR: usize = 10_000;
/// Longer names are not compared letter by letter.
const MAX_COMPARED: usize = 128;

fn keep_nearest(found: &mut Vec<(usize, String)>, max: usize) {
    found.sort();
    found.dedup();
    found.truncate(max);
}

/// A mistyped name: compared by its last component, without regard of case and of `_`, `::` and `.` as separators.
struct Fuzzy {
    last: Vec<u8>,
    whole: Vec<u8>,
}

impl Fuzzy {
    fn new(name: &str) -> Fuzzy {
        Fuzzy {
            last: letters(&names::last_component(name)),
            whole: letters(&bare(name)),
        }
    }

    fn distance(&self, name: &str) -> Option<usize> {
        let limit = 1 + self.last.len() / 4;
        let last = letters(&names::last_component(name));
        if let Some(distance) = edit_distance(&self.last, &last, limit) {
            return Some(distance * 2);
        }
        // A namespace written with underscores, or the other way round.
        (self.whole == letters(&bare(name))).then_some(1)
    }
}

fn bare(name: &str) -> String {
    names::without_generics(names::without_arguments(name))
}

fn letters(name: &str) -> Vec<u8> {
    name.bytes()
        .filter(u8::is_ascii_alphanumeric)
        .map(|byte| byte.to_ascii_lowercase())
        .take(MAX_COMPARED)
        .collect()
}

/// Number of letters to insert, delete, replace or swap with their neighbour (optimal string alignment); `None` beyond `limit`.
fn edit_distance(a: &[u8], b: &[u8], limit: usize) -> Option<usize> {
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
    if a.len().abs_diff(b.len()) > limit {
        return None;
    }
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
}
