//! Functions that only pass a call on: through a trait object in a box, and to a neighbour. f0 is one of them.
//!
//! f0 = `boxed_forwarders::enter`
//! fast peak (4 of 5 ops, ~0.3 ms):  boxed_forwarders::enter -> handle -> handle             function
//!     wrong: boxed_forwarders::enter; boxed_forwarders::enter -> handle
//! slow peak (1 of 5 ops, ~2.5 ms):    boxed_forwarders::enter -> handle -> handle -> rebuild  function
//!     wrong: boxed_forwarders::enter; boxed_forwarders::enter -> handle; boxed_forwarders::enter -> handle -> handle
//!
//! Arguments as in the C programs: `[N]`, or `wait [N]`, then `brisk`.

use std::hint::black_box;

mod work;
use work::{mix, spin_us};

trait Handler {
    fn handle(&self, key: u64) -> u64;
}

struct Light;
struct Heavy;
struct Passing(Box<dyn Handler>);

#[inline(never)]
fn rebuild(key: u64) -> u64 {
    spin_us(2500);
    mix(key + 1)
}

impl Handler for Light {
    #[inline(never)]
    fn handle(&self, key: u64) -> u64 {
        spin_us(300);
        mix(key)
    }
}

impl Handler for Heavy {
    #[inline(never)]
    fn handle(&self, key: u64) -> u64 {
        rebuild(key)
    }
}

impl Handler for Passing {
    #[inline(never)]
    fn handle(&self, key: u64) -> u64 {
        self.0.handle(key)
    }
}

#[inline(never)]
fn enter(handler: &dyn Handler, key: u64) -> u64 {
    handler.handle(key)
}

fn op(handlers: &[Passing; 2], key: u64) -> u64 {
    enter(black_box(&handlers[usize::from(key % 5 == 4)]), key)
}

fn main() {
    let handlers = [Passing(Box::new(Light)), Passing(Box::new(Heavy))];
    work::run_ops(1800, |key| op(&handlers, key));
}
