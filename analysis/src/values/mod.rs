//! Which values of f0's arguments tell the ops of one peak from those of another.
//!
//! OSprof's value correlation (OSDI 2006, section 3.1: a variable's values are counted per peak), for the integer
//! argument registers of the System V ABI, or for an expression over one of them. Bounded: values are counted
//! exactly while there are few of them, and by their size for ever.

use std::collections::BTreeMap;

use darc_record::Arguments;

pub mod expression;

use crate::values::expression::Expression;

/// More different values are counted by their size only.
const MOST_EXACT: usize = 64;
/// With fewer ops on one side a difference may be chance.
const FEWEST_OPS: u64 = 20;
/// Values repeat where there are so many ops for each that was seen. Values that come once, as of pointers and counters, are others
/// in any two peaks.
const REPEATED: u64 = 3;
/// This part of the ops of both peaks has to be told apart.
const TELLS: f64 = 0.9;

/// How often each value was seen.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Counted {
    ops: u64,
    /// Complete as long as it is not too long.
    exact: BTreeMap<u64, u64>,
    /// By the number of significant bits.
    sizes: BTreeMap<u32, u64>,
}

impl Counted {
    fn add(&mut self, value: u64) {
        self.ops += 1;
        *self
            .sizes
            .entry(u64::BITS - value.leading_zeros())
            .or_default() += 1;
        if self.exact.len() <= MOST_EXACT {
            *self.exact.entry(value).or_default() += 1;
        }
    }

    fn is_exact(&self) -> bool {
        self.exact.len() <= MOST_EXACT
    }

    /// Whether which values there are tells something of the ops: they come again.
    fn repeats(&self) -> bool {
        self.exact.len() as u64 <= self.ops / REPEATED
    }

    /// The values from the most frequent on, each with its part of the ops; `None` when there are too many.
    #[must_use]
    pub fn values(&self) -> Option<Vec<(u64, f64)>> {
        if !self.is_exact() {
            return None;
        }
        let share = |(&value, &ops): (&u64, &u64)| (value, ops as f64 / self.ops as f64);
        let mut values: Vec<_> = self.exact.iter().map(share).collect();
        values.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        Some(values)
    }

    /// The smallest and the largest value that nearly all ops lie between, as powers of two.
    #[must_use]
    pub fn range(&self) -> (u64, u64) {
        let bound = |bits: u32| 1_u64.checked_shl(bits).map_or(u64::MAX, |next| next - 1);
        let negligible = self.ops / 20;
        let edge = |sizes: &[(u32, u64)]| {
            let mut seen = 0;
            let found = sizes.iter().find(|(_, ops)| {
                seen += ops;
                seen > negligible
            });
            found.map_or(0, |&(bits, _)| bits)
        };
        let mut sizes: Vec<(u32, u64)> =
            self.sizes.iter().map(|(&bits, &ops)| (bits, ops)).collect();
        let low = edge(&sizes);
        sizes.reverse();
        let high = edge(&sizes);
        (if low == 0 { 0 } else { 1 << (low - 1) }, bound(high))
    }

    /// The part of both distributions that one has and the other has not, 0 to 1 (the total variation distance).
    fn apart(&self, other: &Counted) -> f64 {
        fn distance<K: Ord>(a: &BTreeMap<K, u64>, b: &BTreeMap<K, u64>, all: (u64, u64)) -> f64 {
            let share = |ops: Option<&u64>, all: u64| ops.copied().unwrap_or(0) as f64 / all as f64;
            let keys: std::collections::BTreeSet<&K> = a.keys().chain(b.keys()).collect();
            let sum: f64 = keys
                .into_iter()
                .map(|key| (share(a.get(key), all.0) - share(b.get(key), all.1)).abs())
                .sum();
            sum / 2.0
        }
        let all = (self.ops.max(1), other.ops.max(1));
        let sizes = distance(&self.sizes, &other.sizes, all);
        let is_told = self.is_exact() && other.is_exact() && (self.repeats() || other.repeats());
        match is_told {
            true => sizes.max(distance(&self.exact, &other.exact, all)),
            false => sizes,
        }
    }
}

/// The values that the ops of one peak came with.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Values {
    counted: Vec<Counted>,
    unread: u64,
}

impl Values {
    /// Counts one op.
    pub fn add(&mut self, expressions: &[Expression], arguments: &Arguments) {
        self.counted.resize(expressions.len(), Counted::default());
        for (counted, expression) in self.counted.iter_mut().zip(expressions) {
            match expression.of(arguments) {
                Some(value) => counted.add(value),
                None => self.unread += 1,
            }
        }
    }

    /// In how many ops what an expression points to could not be read.
    #[must_use]
    pub fn unread(&self) -> u64 {
        self.unread
    }
}

/// An expression whose values tell two peaks apart.
#[derive(Clone, PartialEq, Debug)]
pub struct Telling<'a> {
    /// The expression.
    pub expression: Expression,
    /// The part of the ops that it tells apart, 0 to 1.
    pub share: f64,
    /// What it was in the one peak.
    pub one: &'a Counted,
    /// What it was in the other.
    pub other: &'a Counted,
}

/// The expression that tells the ops of two peaks apart best, when one does.
#[must_use]
pub fn telling<'a>(
    expressions: &[Expression],
    one: &'a Values,
    other: &'a Values,
) -> Option<Telling<'a>> {
    let pairs = one.counted.iter().zip(&other.counted);
    let found = expressions
        .iter()
        .zip(pairs)
        .filter_map(|(expression, (one, other))| {
            let share = one.apart(other);
            let enough = one.ops >= FEWEST_OPS && other.ops >= FEWEST_OPS;
            (enough && share >= TELLS).then_some(Telling {
                expression: expression.clone(),
                share,
                one,
                other,
            })
        });
    // The first of equals: arguments that a function has come before registers that it has not.
    found.reduce(|best, next| {
        if next.share > best.share + 1e-9 {
            next
        } else {
            best
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(expressions: &[Expression], of: impl Fn(u64) -> [u64; 6]) -> Values {
        let mut values = Values::default();
        for op in 0..200 {
            values.add(expressions, &of(op).into());
        }
        values
    }

    #[test]
    fn the_argument_that_differs_is_found() {
        let all = Expression::arguments();
        let one = values(&all, |op| [0x7f00_0000_0000 + op * 64, 1, op % 3, 0, 0, 9]);
        let other = values(&all, |op| {
            [0x7f00_0000_0000 + op * 64, 4096 + op, op % 3, 0, 0, 9]
        });
        let telling = telling(&all, &one, &other).unwrap();
        assert_eq!(
            (telling.expression.to_string().as_str(), telling.share),
            ("arg2", 1.0)
        );
        assert_eq!(telling.one.values().unwrap(), [(1, 1.0)]);
        assert_eq!(telling.other.values(), None);
        assert_eq!(telling.other.range(), (4096, 8191));
    }

    #[test]
    fn values_that_come_once_tell_nothing() {
        let all = Expression::arguments();
        let of = |from: u64, ops: u64| {
            let mut values = Values::default();
            for op in 0..ops {
                // A pointer to what was allocated for the call, and the number of a request.
                let pointer = 0x7f00_0000_0000 + (from + op) * 64;
                values.add(&all, &[pointer, 70_000 + from + op, 0, 0, 0, 0].into());
            }
            values
        };
        assert_eq!(telling(&all, &of(0, 30), &of(1_000, 60)), None);
        // One value on the one side, and others of the same size on the other.
        let mut one = Values::default();
        (0..30).for_each(|_| one.add(&all, &[5, 5, 0, 0, 0, 0].into()));
        let mut others = Values::default();
        (0..3).for_each(|_| {
            (0..10).for_each(|op| others.add(&all, &[5, 4 + op % 4, 0, 0, 0, 0].into()))
        });
        assert_eq!(telling(&all, &one, &others), None, "5 is among the others");
        let mut others = Values::default();
        (0..30).for_each(|op| others.add(&all, &[5, [4, 6, 7][op % 3], 0, 0, 0, 0].into()));
        assert_eq!(
            telling(&all, &one, &others).unwrap().expression.to_string(),
            "arg2"
        );
    }

    #[test]
    fn nothing_is_found_where_nothing_differs_or_little_is_known() {
        let all = Expression::arguments();
        let same = values(&all, |op| [op % 7, op * 4099, 0, 0, 0, 0]);
        assert_eq!(telling(&all, &same, &same), None);
        let mut few = Values::default();
        few.add(&all, &[99; 6].into());
        assert_eq!(telling(&all, &same, &few), None);
        assert_eq!(telling(&all, &Values::default(), &same), None);
    }
}
