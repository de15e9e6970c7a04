//! Arguments that tell peaks apart.

use serde::{Deserialize, Serialize};

/// What was computed from f0's arguments, and is different in two peaks.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ValueContrast {
    /// The expression: `arg1` is the first integer argument register of the program's convention.
    pub expression: String,
    /// The part of the ops that it tells apart, 0 to 1.
    pub share: f64,
    /// What it was in the one peak and in the other.
    pub values: [PeakValues; 2],
}

/// The values in the ops of one peak.
#[derive(Clone, PartialEq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PeakValues {
    /// The peak's number.
    pub peak: u32,
    /// The most frequent values, five at most; empty when there are too many different ones.
    #[serde(default)]
    pub values: Vec<ValueShare>,
    /// Nearly all values lie between this one
    pub lowest: u64,
    /// and this one.
    pub highest: u64,
}

/// A value and the part of the ops that had it.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize, Debug)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ValueShare {
    /// The value.
    pub value: u64,
    /// Its part of the peak's ops, 0 to 1.
    pub share: f64,
}
