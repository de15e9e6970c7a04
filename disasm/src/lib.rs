//! Finds call sites, blocks and branches in x86-64 machine code. Takes bytes and a base address;
//! knows neither files nor processes.

/// Machine code of one function.
#[derive(Debug)]
pub struct FunctionCode;
/// A call site.
#[derive(Clone, Debug)]
pub struct CallSite;
