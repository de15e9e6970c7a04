//! Generics, closures, trait objects and a panic that is caught, in Rust.
//!
//! f0 = `closures::serve`
//! fast peak (4 of 5 ops that return, ~0.3 ms):  closures::serve -> handle -> apply -> … -> light  function
//!     wrong: closures::serve; closures::serve -> handle; closures::serve -> handle -> apply; closures::serve -> handle -> rebuild
//! slow peak (1 of 5, ~2.5 ms):                  closures::serve -> handle -> rebuild              function
//!     wrong: closures::serve; closures::serve -> handle; closures::serve -> handle -> apply -> … -> light
//! Every tenth op panics below f0 and is caught above it: it has not returned.
//!
//! Arguments as in the C programs: `[N]`, or `wait [N]`, then `brisk`.

use std::hint::black_box;
use std::panic::{self, AssertUnwindSafe};

mod work;
use work::{mix, spin_us};

trait Handler {
    fn handle(&self, key: u64) -> u64;
}

struct Light;
struct Heavy;

#[inline(never)]
fn light(key: u64) -> u64 {
    spin_us(300);
    mix(key)
}

#[inline(never)]
fn rebuild(key: u64) -> u64 {
    spin_us(2500);
    mix(key + 1)
}

#[inline(never)]
fn apply<F: Fn(u64) -> u64>(work: F, key: u64) -> u64 {
    black_box(work(key)) + 1
}

impl Handler for Light {
    #[inline(never)]
    fn handle(&self, key: u64) -> u64 {
        apply(|key| black_box(light(key)) + 1, key) + 2
    }
}

impl Handler for Heavy {
    #[inline(never)]
    fn handle(&self, key: u64) -> u64 {
        black_box(rebuild(key)) + 3
    }
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
    if key % 10 == 7 {
        panic::panic_any(key);
    }
}

#[inline(never)]
fn serve(handler: &dyn Handler, key: u64, dropped: &mut u64) -> u64 {
    let _guard = Guard(dropped);
    fail(black_box(key));
    black_box(handler.handle(key)) + 1
}

fn op(key: u64) -> u64 {
    let handlers: [&dyn Handler; 2] = [&Light, &Heavy];
    let handler = black_box(handlers)[usize::from(key % 5 == 4)];
    let mut dropped = 0;
    let result = panic::catch_unwind(AssertUnwindSafe(|| serve(handler, key, &mut dropped)));
    let sum = match result {
        Ok(sum) => sum,
        Err(payload) => payload.downcast_ref::<u64>().map_or(1, |key| key + 1000),
    };
    sum ^ (dropped << 40)
}

fn main() {
    panic::set_hook(Box::new(|_| {}));
    work::run_ops(1600, op);
}
