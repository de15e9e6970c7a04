//! Real files, compiled by the system's compilers for each test, and damaged ones.

mod debugfiles;
mod functions;
mod futures;
mod go;
mod harness;
mod hostile;
mod lines;
mod lookup;
mod plt;
mod printed;
mod system;
