//! Which values of f0's arguments tell the ops of one peak from those of another.
//!
//! OSprof's value correlation (OSDI 2006, section 3.1: a variable's values are counted per peak), for the integer
//! argument registers of the System V ABI, and for an expression over one of them. Bounded: values are counted
//! exactly while there are few of them, and by their size for ever.

use std::collections::BTreeMap;

use darc_tracer::record::Arguments;

/// More different values are counted by their size only.
const MOST_EXACT: usize = 64;
/// With fewer ops on one side a difference may be chance.
const FEWEST_OPS: u64 = 20;
/// This part of the ops of both peaks has to be told apart.
const TELLS: f64 = 0.9;

/// An argument of f0, or something computed from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expression {
    /// Which argument, from 1 on.
    argument: usize,
    operation: Option<(Operator, u64)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operator {
    And,
    ShiftRight,
    Modulo,
    Divide,
}

/// Why a text is no [`Expression`].
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
#[error("{0:?} is no expression; give arg1 to arg6, or one of them with &N, >>N, %N or /N")]
pub struct NoExpression(String);

impl Expression {
    /// The expressions that are looked at when none was given: all six argument registers.
    #[must_use]
    pub fn arguments() -> Vec<Expression> {
        let argument = |argument| Expression {
            argument,
            operation: None,
        };
        (1..=6).map(argument).collect()
    }

    /// Understands `arg1`, `arg2&0xff`, `arg1>>12`, `arg3%64`, `arg3/4096`.
    ///
    /// # Errors
    /// What else it may be.
    pub fn parse(text: &str) -> Result<Expression, NoExpression> {
        let refuse = || NoExpression(text.to_owned());
        let compact: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let rest = compact.strip_prefix("arg").ok_or_else(refuse)?;
        let end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let (number, operation) = rest.split_at(end);
        let argument = number
            .parse()
            .ok()
            .filter(|number| (1..=6).contains(number))
            .ok_or_else(refuse)?;
        let operators = [
            ("&", Operator::And),
            (">>", Operator::ShiftRight),
            ("%", Operator::Modulo),
            ("/", Operator::Divide),
        ];
        let operation = match operation {
            "" => None,
            operation => {
                let (operator, operand) = operators
                    .into_iter()
                    .find_map(|(sign, operator)| Some((operator, operation.strip_prefix(sign)?)))
                    .ok_or_else(refuse)?;
                let operand = match operand.strip_prefix("0x") {
                    Some(digits) => u64::from_str_radix(digits, 16),
                    None => operand.parse(),
                }
                .map_err(|_| refuse())?;
                let senseless = operand == 0 && operator != Operator::And
                    || operand > 63 && operator == Operator::ShiftRight;
                if senseless {
                    return Err(refuse());
                }
                Some((operator, operand))
            }
        };
        Ok(Expression {
            argument,
            operation,
        })
    }

    fn of(self, arguments: &Arguments) -> u64 {
        let value = arguments.0[self.argument - 1];
        match self.operation {
            None => value,
            Some((Operator::And, operand)) => value & operand,
            Some((Operator::ShiftRight, operand)) => value >> operand.min(63),
            Some((Operator::Modulo, operand)) => value % operand.max(1),
            Some((Operator::Divide, operand)) => value / operand.max(1),
        }
    }
}

impl std::fmt::Display for Expression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "arg{}", self.argument)?;
        match self.operation {
            None => Ok(()),
            Some((Operator::And, operand)) => write!(f, "&{operand:#x}"),
            Some((Operator::ShiftRight, operand)) => write!(f, ">>{operand}"),
            Some((Operator::Modulo, operand)) => write!(f, "%{operand}"),
            Some((Operator::Divide, operand)) => write!(f, "/{operand}"),
        }
    }
}

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
        match self.is_exact() && other.is_exact() {
            true => sizes.max(distance(&self.exact, &other.exact, all)),
            false => sizes,
        }
    }
}

/// The values that the ops of one peak came with.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Values(Vec<Counted>);

impl Values {
    /// Counts one op.
    pub fn add(&mut self, expressions: &[Expression], arguments: &Arguments) {
        self.0.resize(expressions.len(), Counted::default());
        for (counted, expression) in self.0.iter_mut().zip(expressions) {
            counted.add(expression.of(arguments));
        }
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
    let pairs = one.0.iter().zip(&other.0);
    let found = expressions
        .iter()
        .zip(pairs)
        .filter_map(|(&expression, (one, other))| {
            let share = one.apart(other);
            let enough = one.ops >= FEWEST_OPS && other.ops >= FEWEST_OPS;
            (enough && share >= TELLS).then_some(Telling {
                expression,
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
            values.add(expressions, &Arguments(of(op)));
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
    fn nothing_is_found_where_nothing_differs_or_little_is_known() {
        let all = Expression::arguments();
        let same = values(&all, |op| [op % 7, op * 4099, 0, 0, 0, 0]);
        assert_eq!(telling(&all, &same, &same), None);
        let mut few = Values::default();
        few.add(&all, &Arguments([99; 6]));
        assert_eq!(telling(&all, &same, &few), None);
        assert_eq!(telling(&all, &Values::default(), &same), None);
    }

    #[test]
    fn expressions_are_understood_and_computed() {
        let arguments = Arguments([0x1234, 100, 0, 0, 0, u64::MAX]);
        for (text, value) in [
            ("arg1", 0x1234),
            ("arg1 & 0xff", 0x34),
            ("arg1>>8", 0x12),
            ("arg2%64", 36),
            ("arg2/30", 3),
            ("arg6", u64::MAX),
        ] {
            assert_eq!(
                Expression::parse(text).unwrap().of(&arguments),
                value,
                "{text}"
            );
        }
        for text in [
            "",
            "arg",
            "arg0",
            "arg7",
            "arg1+",
            "arg1/0",
            "arg1%0",
            "arg1>>64",
            "x",
            "arg1&",
            "arg99999999999",
        ] {
            assert!(Expression::parse(text).is_err(), "{text}");
        }
        assert_eq!(
            Expression::parse("arg2 & 255").unwrap().to_string(),
            "arg2&0xff"
        );
    }
}
