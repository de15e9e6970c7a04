//! Every fifth op panics, past a function that cleans up, and catches the panic below f0, in Rust. The op returns, and the
//! calls that the panic left are where its time is.
//!
//! f0 = `panics::serve`
//! fast peak (4 of 5 ops, ~0.3 ms):  panics::serve -> guarded -> … -> parse -> scan  function
//! slow peak (1 of 5 ops, ~2.5 ms):  panics::serve -> guarded -> … -> parse -> fail  function
//!     wrong: panics::serve; panics::serve -> guarded; panics::serve -> recover
//!
//! Arguments as in the C programs: `[N]`, or `wait [N]`, then `brisk`.

use std::hint::black_box;
use std::panic::{self, AssertUnwindSafe};

mod work;
use work::{mix, spin_us};

#[inline(never)]
fn scan(key: u64) -> u64 {
    spin_us(300);
    mix(key)
}

#[inline(never)]
fn recover(key: u64) -> u64 {
    spin_us(50);
    mix(key + 1)
}

/// Has a destructor, so that the frames above the panic have cleanup pads.
struct Guard<'a>(&'a mut u64);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        *self.0 += 1;
    }
}

#[inline(never)]
fn fail(key: u64) {
    spin_us(2500);
    if key % 5 == 4 {
        panic::panic_any(key);
    }
}

#[inline(never)]
fn parse(key: u64, dropped: &mut u64) -> u64 {
    let _guard = Guard(dropped);
    if key % 5 == 4 {
        fail(black_box(key));
    }
    black_box(scan(key)) + 1
}

#[inline(never)]
fn guarded(key: u64, dropped: &mut u64) -> u64 {
    match panic::catch_unwind(AssertUnwindSafe(|| parse(key, dropped))) {
        Ok(sum) => sum,
        Err(payload) => {
            let thrown = payload.downcast_ref::<u64>().map_or(1, |key| key + 1000);
            black_box(recover(key)) ^ thrown
        }
    }
}

#[inline(never)]
fn serve(key: u64) -> u64 {
    let mut dropped = 0;
    let sum = black_box(guarded(key, &mut dropped));
    sum ^ (dropped << 40)
}

fn op(key: u64) -> u64 {
    black_box(serve(key))
}

fn main() {
    panic::set_hook(Box::new(|_| {}));
    work::run_ops(2400, op);
}
