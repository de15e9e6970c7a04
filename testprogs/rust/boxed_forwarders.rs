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
use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};

const PERIOD: u64 = 20;

static IS_BRISK: AtomicU64 = AtomicU64::new(0);

/// Cycles of the time stamp counter, in which latencies are counted too.
#[inline(always)]
fn cycles() -> u64 {
    let (low, high): (u64, u64);
    unsafe { std::arch::asm!("rdtsc", out("rax") low, out("rdx") high, options(nomem, nostack)) };
    high << 32 | low
}

/// Works for about `us` microseconds of a counter of 2.3 GHz, without a call.
#[inline(always)]
fn spin_us(us: u64) {
    let divisor = if IS_BRISK.load(Ordering::Relaxed) == 1 { 100 } else { 1 };
    let start = cycles();
    let mut now = start;
    while now - start < us * 2300 / divisor {
        now = cycles();
    }
}

fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    value ^ (value >> 29)
}

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

#[repr(C)]
struct PollFd {
    fd: i32,
    events: i16,
    revents: i16,
}

extern "C" {
    fn poll(fds: *mut PollFd, count: u64, timeout: i32) -> i32;
}

/// Whether standard input is at its end.
fn stdin_closed() -> bool {
    const POLLIN: i16 = 1;
    let mut stdin = PollFd { fd: 0, events: POLLIN, revents: 0 };
    let is_readable = unsafe { poll(&mut stdin, 1, 0) } > 0;
    is_readable && !matches!(std::io::stdin().read(&mut [0]), Ok(1..))
}

fn main() {
    let handlers = [Passing(Box::new(Light)), Passing(Box::new(Heavy))];
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let brisk = arguments.last().is_some_and(|last| last == "brisk");
    if brisk {
        arguments.pop();
    }
    let waits = arguments.first().is_some_and(|first| first == "wait");
    let number = arguments.get(usize::from(waits)).and_then(|number| number.parse().ok());
    let ops: u64 = number.unwrap_or(if waits { u64::MAX } else { 1800 });
    IS_BRISK.store(u64::from(brisk), Ordering::Relaxed);
    if waits {
        println!("ready");
        std::io::stdout().flush().expect("stdout");
    }
    let mut expected = None;
    let mut differs = false;
    let mut done = 0;
    while done < ops {
        let sum = (0..PERIOD).fold(0, |sum, key| mix(sum ^ op(&handlers, key) ^ key));
        differs |= *expected.get_or_insert(sum) != sum;
        if waits && stdin_closed() {
            break;
        }
        done += PERIOD;
    }
    println!("checksum={:016x}{}", expected.unwrap_or(0), if differs { " differs" } else { "" });
    std::process::exit(i32::from(differs));
}
