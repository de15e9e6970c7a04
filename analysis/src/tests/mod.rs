//! Whole analyses of synthetic programs.

mod scenarios;
