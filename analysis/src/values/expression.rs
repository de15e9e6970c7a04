//! What is computed from the arguments of a function: `arg2`, `arg1>>12`, `*(arg1+8)`.

use darc_record::Arguments;
use darc_record::{Chain, MOST_READS};

/// An argument, or something computed from it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Expression {
    /// Which argument, from 1 on.
    argument: usize,
    /// What is added to an address before the word there is read, for each read.
    reads: Vec<i32>,
    /// What is added then.
    plus: i32,
    operation: Option<(Operator, u64)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operator {
    And,
    ShiftRight,
    Modulo,
    Divide,
}

const OPERATORS: [(&str, Operator); 4] = [
    ("&", Operator::And),
    (">>", Operator::ShiftRight),
    ("%", Operator::Modulo),
    ("/", Operator::Divide),
];

/// Why a text is no [`Expression`].
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
#[error(
    "{0:?} is no expression; give arg1 to arg6, what they point to (*arg1, *(arg1+8)), and +N, -N, &N, >>N, %N or /N behind it"
)]
pub struct NoExpression(String);

impl Expression {
    /// The expressions that are looked at when none was given: all six argument registers.
    #[must_use]
    pub fn arguments() -> Vec<Expression> {
        (1..=6).map(Expression::argument).collect()
    }

    fn argument(argument: usize) -> Expression {
        Expression {
            argument,
            reads: Vec::new(),
            plus: 0,
            operation: None,
        }
    }

    /// Understands `arg1`, `arg2&0xff`, `arg1>>12`, `*(arg1+8)`, `**arg1+4`, `*arg1%64`. As in C a `*` binds closer
    /// than `+`, so that `*arg1+8` is eight more than the word that the first argument points to.
    ///
    /// # Errors
    /// What else it may be.
    pub fn parse(text: &str) -> Result<Expression, NoExpression> {
        let compact: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let parsed = Parser(&compact).expression();
        parsed.ok_or_else(|| NoExpression(text.to_owned()))
    }

    /// What is to be read when the function is entered, if anything.
    #[must_use]
    pub fn chain(&self) -> Option<Chain> {
        (!self.reads.is_empty()).then(|| Chain {
            argument: self.argument - 1,
            offsets: self.reads.clone(),
        })
    }

    /// Its value; `None` where something that it points to could not be read.
    #[must_use]
    pub fn of(&self, arguments: &Arguments) -> Option<u64> {
        let base = match self.reads.is_empty() {
            true => arguments.registers[self.argument - 1],
            false => arguments.read?,
        };
        let value = base.wrapping_add_signed(self.plus.into());
        Some(match self.operation {
            None => value,
            Some((Operator::And, operand)) => value & operand,
            Some((Operator::ShiftRight, operand)) => value >> operand.min(63),
            Some((Operator::Modulo, operand)) => value % operand.max(1),
            Some((Operator::Divide, operand)) => value / operand.max(1),
        })
    }
}

/// Reads what is left of a text.
struct Parser<'a>(&'a str);

impl Parser<'_> {
    /// Nested deeper than this nothing makes sense.
    const DEEPEST: usize = 2 * MOST_READS;

    fn expression(mut self) -> Option<Expression> {
        let mut expression = self.sum(0)?;
        if let Some(operator) = OPERATORS
            .into_iter()
            .find_map(|(sign, operator)| self.take(sign).then_some(operator))
        {
            let operand = self.number()?;
            let senseless = operand == 0 && operator != Operator::And
                || operand > 63 && operator == Operator::ShiftRight;
            expression.operation = (!senseless).then_some((operator, operand));
            expression.operation?;
        }
        self.0.is_empty().then_some(expression)
    }

    fn sum(&mut self, depth: usize) -> Option<Expression> {
        let mut expression = self.term(depth)?;
        loop {
            let sign = match () {
                () if self.take("+") => 1,
                () if self.take("-") => -1,
                () => return Some(expression),
            };
            let offset = i32::try_from(self.number()?).ok()? * sign;
            expression.plus = expression.plus.checked_add(offset)?;
        }
    }

    fn term(&mut self, depth: usize) -> Option<Expression> {
        if depth > Self::DEEPEST {
            return None;
        }
        if self.take("*") {
            let mut pointed = self.term(depth + 1)?;
            pointed.reads.push(std::mem::take(&mut pointed.plus));
            return (pointed.reads.len() <= MOST_READS).then_some(pointed);
        }
        if self.take("(") {
            let inside = self.sum(depth + 1)?;
            return self.take(")").then_some(inside);
        }
        let argument = self.take("arg").then(|| self.number())??;
        let argument = usize::try_from(argument).ok()?;
        (1..=6)
            .contains(&argument)
            .then(|| Expression::argument(argument))
    }

    fn take(&mut self, sign: &str) -> bool {
        let rest = self.0.strip_prefix(sign);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn number(&mut self) -> Option<u64> {
        let radix = if self.take("0x") { 16 } else { 10 };
        let end = self
            .0
            .find(|c: char| !c.is_digit(radix))
            .unwrap_or(self.0.len());
        let (digits, rest) = self.0.split_at(end);
        self.0 = rest;
        u64::from_str_radix(digits, radix).ok()
    }
}

impl std::fmt::Display for Expression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = format!("arg{}", self.argument);
        for &offset in &self.reads {
            shown = match offset {
                0 => format!("*{shown}"),
                offset => format!("*({shown}{offset:+})"),
            };
        }
        match self.plus {
            0 => f.write_str(&shown),
            plus => write!(f, "{shown}{plus:+}"),
        }?;
        match self.operation {
            None => Ok(()),
            Some((Operator::And, operand)) => write!(f, "&{operand:#x}"),
            Some((Operator::ShiftRight, operand)) => write!(f, ">>{operand}"),
            Some((Operator::Modulo, operand)) => write!(f, "%{operand}"),
            Some((Operator::Divide, operand)) => write!(f, "/{operand}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn registers_are_computed_with() {
        let arguments = Arguments::from([0x1234, 100, 0, 0, 0, u64::MAX]);
        for (text, value) in [
            ("arg1", 0x1234),
            ("arg1 & 0xff", 0x34),
            ("arg1>>8", 0x12),
            ("arg2%64", 36),
            ("arg2/30", 3),
            ("arg2+8-3", 105),
            ("arg6", u64::MAX),
        ] {
            let expression = Expression::parse(text).unwrap();
            assert_eq!(expression.of(&arguments), Some(value), "{text}");
            assert_eq!(expression.chain(), None, "{text}");
        }
    }

    #[test]
    fn a_star_binds_closer_than_a_sum() {
        for (text, argument, offsets, value) in [
            ("*arg1", 0, vec![0], 50),
            ("*arg1+8", 0, vec![0], 58),
            ("*(arg1+8)", 0, vec![8], 50),
            ("*(*arg3-16)&0xf", 2, vec![0, -16], 2),
            ("**(arg2+0x10)", 1, vec![16, 0], 50),
        ] {
            let expression = Expression::parse(text).unwrap();
            assert_eq!(
                expression.chain(),
                Some(Chain { argument, offsets }),
                "{text}"
            );
            let read = Arguments {
                read: Some(50),
                ..Arguments::default()
            };
            assert_eq!(expression.of(&read), Some(value), "{text}");
            assert_eq!(expression.of(&Arguments::default()), None, "{text}");
        }
    }

    #[test]
    fn what_is_shown_is_what_was_meant() {
        for text in [
            "arg2&0xff",
            "*(arg1+8)",
            "**(arg2-16)+4>>3",
            "*arg1+8",
            "arg1",
        ] {
            assert_eq!(Expression::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(
            Expression::parse("arg2 & 255").unwrap().to_string(),
            "arg2&0xff"
        );
    }

    #[test]
    fn everything_else_is_refused() {
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
            "*",
            "(arg1",
            "arg1)",
            "*(arg1+8",
            "arg1*8",
            "arg1+99999999999",
            "*********arg1",
            "((((((((((((((((((arg1))))))))))))))))))",
        ] {
            assert!(Expression::parse(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn nonsense_is_survived(text in "[*()arg0-9+&>%/x-]{0,40}") {
            if let Ok(expression) = Expression::parse(&text) {
                prop_assert_eq!(Expression::parse(&expression.to_string()), Ok(expression));
            }
        }
    }
}
