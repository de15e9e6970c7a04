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
