//! Whole analyses of synthetic programs.

mod rates;
mod scenarios;
mod side_by_side;
