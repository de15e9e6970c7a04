//! Quantiles: on a busy machine the low ones say what the code costs, the others what its neighbours do.

/// The value below which the part `q` (0 to 1) of `values` lies; `None` when there are none.
pub fn quantile(mut values: Vec<f64>, q: f64) -> Option<f64> {
    values.retain(|value| value.is_finite());
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    values.get((last as f64 * q).round() as usize).copied()
}

/// A figure of several rounds.
#[derive(Clone, Copy)]
pub struct Spread {
    /// The median of the rounds.
    pub median: f64,
    /// The least and the largest.
    pub range: (f64, f64),
}

impl Spread {
    /// The spread of `values`; `None` when there are none.
    pub fn of(values: &[f64]) -> Option<Spread> {
        let at = |q| quantile(values.to_vec(), q);
        Some(Spread {
            median: at(0.5)?,
            range: (at(0.0)?, at(1.0)?),
        })
    }

    /// As text with so many decimals: `median (least–largest)`.
    pub fn text(spread: Option<Spread>, decimals: usize, unit: &str) -> String {
        spread.map_or_else(
            || "–".to_owned(),
            |Spread {
                 median,
                 range: (least, most),
             }| {
                format!("{median:.decimals$}{unit} ({least:.decimals$}–{most:.decimals$})")
            },
        )
    }
}

/// A median, and between which values that of endless repetition lies with 95 % confidence.
#[derive(Clone, Copy)]
pub struct Interval {
    median: f64,
    bounds: (f64, f64),
}

impl Interval {
    /// The interval that the sign test does not reject: nothing is assumed about how the values are distributed.
    /// `None` when they are too few to say anything.
    pub fn of_median(values: &[f64]) -> Option<Interval> {
        let mut sorted: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        // How likely it is that so few values lie below the median: the binomial distribution's tail.
        let mut likely = 0.5_f64.powi(i32::try_from(count).ok()?);
        let (mut tail, mut beyond) = (likely, 0);
        while tail <= 0.025 {
            beyond += 1;
            likely *= (count - beyond + 1) as f64 / beyond as f64;
            tail += likely;
        }
        let first = usize::checked_sub(beyond, 1)?;
        Some(Interval {
            median: quantile(values.to_vec(), 0.5)?,
            bounds: (sorted[first], sorted[count - 1 - first]),
        })
    }

    /// As text with so many decimals: `median (least to largest)`.
    pub fn text(self, decimals: usize) -> String {
        let (least, most) = self.bounds;
        format!(
            "{:.decimals$} ({least:.decimals$} to {most:.decimals$})",
            self.median
        )
    }
}
