//! Brings slices of one track into an order in which they nest.
//!
//! The calls of one op nest in truth. Their times do not always, by little: the record of a preemption begins a few
//! microseconds late, clocks of two CPUs differ, and results files hold what they hold.

/// A part of a track.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Slice {
    /// Its beginning.
    pub(super) start: u64,
    /// Its end, not before that.
    pub(super) end: u64,
}

/// The slices by their indexes, the earlier first and the longer of those that begin together, each cut so that it is inside
/// `whole`, and inside or outside of every other.
pub(super) fn nested(whole: Slice, slices: impl Iterator<Item = Slice>) -> Vec<(usize, Slice)> {
    let mut sorted: Vec<(usize, Slice)> = slices
        .map(|slice| Slice {
            start: slice.start.clamp(whole.start, whole.end),
            end: slice.end.clamp(whole.start, whole.end),
        })
        .enumerate()
        .collect();
    let order =
        |&(index, slice): &(usize, Slice)| (slice.start, std::cmp::Reverse(slice.end), index);
    sorted.sort_by_key(order);
    let mut around = vec![whole];
    for (_, slice) in &mut sorted {
        while around.len() > 1 && around.last().is_some_and(|last| last.end <= slice.start) {
            around.pop();
        }
        // Those around it nest, so the innermost ends first.
        if let Some(innermost) = around.last() {
            slice.end = slice.end.min(innermost.end);
        }
        around.push(*slice);
    }
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_is_cut() {
        let slice = |start, end| Slice { start, end };
        let slices = [(40, 70), (0, 50), (10, 20), (60, 200), (10, 30), (100, 100)];
        let slices = slices.map(|(start, end)| slice(start, end));
        let nested = nested(slice(0, 100), slices.into_iter());
        let expected = [
            (1, slice(0, 50)),
            (4, slice(10, 30)),
            (2, slice(10, 20)),
            (0, slice(40, 50)),
            (3, slice(60, 100)),
            (5, slice(100, 100)),
        ];
        assert_eq!(nested, expected);
    }
}
