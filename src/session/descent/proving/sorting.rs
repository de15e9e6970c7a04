//! The ops of an experiment, by the spans of time that they are in.

use darc_analysis::Ticks;
use darc_analysis::proof::{Delayed, Design, Dose, Span};
use darc_record::Tsc;

use super::seen::Seen;

/// A span of time, and what calls were delayed by in it.
#[derive(Clone, Copy)]
pub struct Toggled {
    pub start: Tsc,
    pub end: Tsc,
    pub dose: Dose,
    /// Whether the dose was drawn: while delays have taken more than they may there is none, which is no matter of chance, for
    /// delays take longer where the machine is busy.
    pub drawn: bool,
}

impl Toggled {
    /// What the stubs are to delay calls by. To be delayed by nothing costs what any delay costs beside what it is to last: ops of
    /// both kinds of drawn spans have that. The others are compared with nothing, and have not even that.
    pub fn delay(&self, design: &Design) -> Ticks {
        match self.drawn {
            true => design.of(self.dose).max(Ticks(1)),
            false => Ticks(0),
        }
    }
}

/// The spans with the ops that belong to them; those whose dose was not drawn have none.
///
/// On a path from f0 whether an op calls the cause is its own matter, and those that do not are left out. Whether a call on
/// another thread begins in an op depends on how long the op is and on how often that thread makes calls, which delays change:
/// there all ops count, and how many calls one has decides nothing.
pub fn sorted(seen: &[Seen], spans: &[Toggled], design: &Design, elsewhere: bool) -> Vec<Span> {
    let empty = |span: &Toggled| Span {
        dose: span.dose,
        ops: Vec::new(),
    };
    let mut sorted: Vec<Span> = spans.iter().map(empty).collect();
    let nothing = by_nothing(seen, spans);
    for op in seen.iter().filter(|op| elsewhere || op.calls > 0) {
        let Some(index) = span_at(spans, op.start) else {
            continue;
        };
        let span = spans[index];
        let (since, left) = (op.start - span.start, span.end - op.start);
        let calls = if elsewhere { design.calls } else { op.calls };
        if span.drawn && op.end <= span.end && design.fits(calls, since, left) {
            let meant = design.of(span.dose).0.saturating_mul(op.calls);
            let for_nothing = Ticks(op.calls.saturating_mul(nothing.0));
            sorted[index].ops.push(Delayed {
                latency: op.latency,
                added: match span.dose {
                    Dose::Nothing => Ticks(0),
                    _ => op.delays.saturating_sub(for_nothing),
                },
                meant: Ticks(meant),
            });
        }
    }
    sorted
}

/// The span that a moment is in.
fn span_at(spans: &[Toggled], at: Tsc) -> Option<usize> {
    let index = spans.partition_point(|span| span.end < at);
    (spans.get(index)?.start <= at).then_some(index)
}

/// What it takes to delay a call by nothing: calls in both kinds of drawn spans take that.
fn by_nothing(seen: &[Seen], spans: &[Toggled]) -> Ticks {
    let without = seen.iter().filter(|op| {
        let span = span_at(spans, op.start).map(|index| spans[index]);
        op.calls > 0 && span.is_some_and(|span| span.drawn && span.dose == Dose::Nothing)
    });
    let mut each: Vec<u64> = without.map(|op| op.delays.0 / op.calls).collect();
    let middle = each.len() / 2;
    let median = (!each.is_empty()).then(|| *each.select_nth_unstable(middle).1);
    Ticks(median.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use darc_analysis::proof::{Random, slope};
    use darc_record::{Arguments, Op};

    use super::super::elsewhere::{Calls, Threads};
    use super::super::seen::Record;
    use super::*;

    const UNIT: u64 = 1_000_000;
    const SPAN: u64 = 60 * UNIT;
    const DESIGN: Design = Design {
        delay: Ticks(UNIT / 5),
        part: 0.5,
        span: Ticks(SPAN),
        longest: Ticks(4 * UNIT),
        calls: 8,
    };

    fn spans(count: u64, random: &mut Random) -> Vec<Toggled> {
        let span = |index: u64| Toggled {
            start: Tsc(index * SPAN + 1),
            end: Tsc((index + 1) * SPAN),
            dose: match random.part() < 0.5 {
                true => Dose::Whole,
                false => Dose::Nothing,
            },
            drawn: true,
        };
        (0..count).map(span).collect()
    }

    /// Calls on a thread that nobody waits for, which makes one after the other.
    fn bystander(spans: &[Toggled], random: &mut Random) -> Calls {
        let mut calls = Calls::default();
        let (mut at, end) = (0, spans[spans.len() - 1].end.0);
        while at < end {
            let whole = span_at(spans, Tsc(at)).is_some_and(|at| spans[at].dose == Dose::Whole);
            let delay = if whole { DESIGN.delay } else { Ticks(0) };
            let op = Op {
                tid: 2,
                start: Tsc(at),
                end: Tsc(at + delay.0 + UNIT / 10),
                latency: delay,
                arguments: Arguments::default(),
                touched: Vec::new(),
            };
            calls.add(&op, delay);
            let period = 0.9 + 0.2 * random.part();
            at += delay.0 + (period * UNIT as f64) as u64;
        }
        calls
    }

    /// Ops of one unit and of four by turns.
    fn ops(until: u64, random: &mut Random) -> Vec<Seen> {
        let (mut at, mut seen) = (1, Vec::new());
        while at < until {
            let units = if seen.len() % 2 == 0 { 1 } else { 4 };
            let latency = units * UNIT + (0.02 * random.part() * UNIT as f64) as u64;
            seen.push(Seen {
                tid: 1,
                start: Tsc(at),
                end: Tsc(at + latency),
                latency: Ticks(latency),
                calls: 0,
                cause: Ticks(0),
                delays: Ticks(0),
            });
            at += latency + UNIT / 100;
        }
        seen
    }

    /// Delays make its calls seldom, so that fewer begin in short ops: those that are left are longer, and nothing made them so.
    #[test]
    fn delays_of_a_bystander_choose_no_ops() {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        // All ops are looked at: of more every n-th is, which would be one kind of them.
        let spans = spans(80, &mut random);
        let mut record = Record {
            seen: ops(80 * SPAN, &mut random),
            elsewhere: bystander(&spans, &mut random),
            ..Record::default()
        };
        assert!(record.settle(Threads::One));
        let sorted = sorted(&record.seen, &spans, &DESIGN, true);
        let found = slope(&sorted, &(Ticks(UNIT / 2)..=Ticks(6 * UNIT)), 0.05).unwrap();
        assert!(found.at.abs() < 0.1, "{found:?}");
        assert!((found.low..=found.high).contains(&0.0), "{found:?}");
    }

    #[test]
    fn while_delays_have_taken_too_much_calls_are_not_even_delayed_by_nothing() {
        let span = |drawn| Toggled {
            start: Tsc(0),
            end: Tsc(SPAN),
            dose: Dose::Nothing,
            drawn,
        };
        let delays = [true, false].map(|drawn| span(drawn).delay(&DESIGN));
        assert_eq!(delays, [Ticks(1), Ticks(0)]);
        // What calls in such a span tell of delays by nothing is none.
        let mut seen = ops(5 * UNIT, &mut Random(7));
        for op in &mut seen {
            (op.calls, op.delays) = (1, Ticks(300));
        }
        let of = [true, false].map(|drawn| by_nothing(&seen, &[span(drawn)]));
        assert_eq!(of, [Ticks(300), Ticks(0)]);
    }
}
