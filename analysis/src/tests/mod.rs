//! Whole analyses of synthetic programs.

mod rates;
mod scenarios;
