//! Whole analyses of synthetic programs.

mod loops;
mod rates;
mod scenarios;
mod side_by_side;
