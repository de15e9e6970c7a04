//! Most ops panic, and catch the panic below f0: the run-time's unwinder takes the time, which has to find all that is on the stack as the
//! program left it.
//!
//! f0 = `panics_in_turn::serve`
//! fast peak (4 of 5 ops, ~3 us):  panics_in_turn::serve -> … -> _Unwind_RaiseException  function
//!     wrong: panics_in_turn::serve; panics_in_turn::serve -> scan; panics_in_turn::serve -> … -> fail
//! slow peak (1 of 5 ops, ~0.3 ms):  panics_in_turn::serve -> scan  function
//!     wrong: panics_in_turn::serve; panics_in_turn::serve -> … -> _Unwind_RaiseException
//!
//! Arguments as in the C programs: `[N]`, or `wait [N]`, then `brisk`.

use std::hint::black_box;
use std::panic;

mod work;
use work::{mix, spin_us};

#[inline(never)]
fn scan(key: u64) -> u64 {
    spin_us(300);
    mix(key)
}

#[inline(never)]
fn fail(key: u64) -> u64 {
    if key % 5 != 4 {
        panic::panic_any(key);
    }
    mix(key)
}

#[inline(never)]
fn attempt(key: u64) -> u64 {
    match panic::catch_unwind(|| black_box(fail(black_box(key)))) {
        Ok(sum) => sum,
        Err(payload) => payload.downcast_ref::<u64>().map_or(1, |key| key + 1000),
    }
}

#[inline(never)]
fn serve(key: u64) -> u64 {
    if key % 5 == 4 {
        return black_box(scan(key)) + 1;
    }
    black_box(attempt(key)) + 1
}

fn op(key: u64) -> u64 {
    black_box(serve(key))
}

fn main() {
    panic::set_hook(Box::new(|_| {}));
    work::run_ops(80_000, op);
}
