//! Whose a ring is, where only some threads' ops are told.

use crate::chosen::Chosen;

use super::ring::Rings;

/// What becomes of what is in a ring without a thread's id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whose {
    /// It is told.
    Chosen,
    /// It is of a thread that was not chosen.
    Others,
    /// The ring was a chosen thread's and another's since it was read last.
    Both,
}

/// The threads that have the rings.
#[derive(Default, Debug)]
pub struct Owners {
    /// For each ring whose it was at the last reading, and what follows for this one.
    rings: Vec<Option<(bool, Whose)>>,
}

impl Owners {
    /// Finds out whose the first `used` rings are. A ring that has no thread at the moment is still that of its last one.
    pub fn look(&mut self, chosen: &Chosen, rings: &Rings, used: usize) {
        self.rings.resize(used.max(self.rings.len()), None);
        for (index, known) in self.rings.iter_mut().enumerate().take(used) {
            if let Some(owner) = rings.owner(index) {
                let is_chosen = chosen.has_own(owner);
                *known = is_chosen.map_or(*known, |is_chosen| Some(next(*known, is_chosen)));
            }
        }
    }

    /// Whose a ring is.
    #[must_use]
    pub fn whose(&self, index: usize) -> Whose {
        let known = self.rings.get(index).copied().flatten();
        known.map_or(Whose::Both, |(_, whose)| whose)
    }
}

fn next(before: Option<(bool, Whose)>, is_chosen: bool) -> (bool, Whose) {
    let whose = match (before, is_chosen) {
        (Some((before, _)), now) if before != now => Whose::Both,
        (_, true) => Whose::Chosen,
        (_, false) => Whose::Others,
    };
    (is_chosen, whose)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_threads_counted_is_told_of_neither() {
        let one = next(None, true);
        assert_eq!(one, (true, Whose::Chosen));
        assert_eq!(next(Some(one), true), one);
        let changed = next(Some(one), false);
        assert_eq!(changed, (false, Whose::Both));
        assert_eq!(next(Some(changed), false), (false, Whose::Others));
    }
}
