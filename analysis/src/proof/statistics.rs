//! What chance does.

/// The standard deviation of some values; `None` for one or none.
pub fn deviation(values: &[f64]) -> Option<f64> {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (values.len() > 1).then(|| (squares / (count - 1.0)).sqrt())
}

/// What a normal variable exceeds with this probability, at most one half (Abramowitz and Stegun, Handbook of Mathematical
/// Functions, 26.2.23; wrong by 0.00045 at most).
pub fn normal_quantile(probability: f64) -> f64 {
    let t = (-2.0 * probability.ln()).sqrt();
    let above = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    let below = 1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308));
    t - above / below
}

/// As [`normal_quantile`] for Student's distribution with so many degrees of freedom, some at least (the same, 26.7.5).
pub fn student_quantile(probability: f64, freedom: usize) -> f64 {
    let (z, freedom) = (normal_quantile(probability), freedom.max(1) as f64);
    let once = (z.powi(3) + z) / 4.0;
    let twice = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
    z + once / freedom + twice / freedom.powi(2)
}

/// Random numbers (Marsaglia's xorshift, Journal of Statistical Software 8, 2003): the same ones each time, so that the same
/// ops give the same answer.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// A number below `end`, which is not zero.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// A number from 0 up to 1.
    pub fn part(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}
