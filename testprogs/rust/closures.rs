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
use std::io::{Read, Write};
use std::panic::{self, AssertUnwindSafe};
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
    panic::set_hook(Box::new(|_| {}));
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let brisk = arguments.last().is_some_and(|last| last == "brisk");
    if brisk {
        arguments.pop();
    }
    let waits = arguments.first().is_some_and(|first| first == "wait");
    let number = arguments.get(usize::from(waits)).and_then(|number| number.parse().ok());
    let ops: u64 = number.unwrap_or(if waits { u64::MAX } else { 1600 });
    IS_BRISK.store(u64::from(brisk), Ordering::Relaxed);
    if waits {
        println!("ready");
        std::io::stdout().flush().expect("stdout");
    }
    let mut expected = None;
    let mut differs = false;
    let mut done = 0;
    while done < ops {
        let sum = (0..PERIOD).fold(0, |sum, key| mix(sum ^ op(key) ^ key));
        differs |= *expected.get_or_insert(sum) != sum;
        if waits && stdin_closed() {
            break;
        }
        done += PERIOD;
    }
    println!("checksum={:016x}{}", expected.unwrap_or(0), if differs { " differs" } else { "" });
    std::process::exit(i32::from(differs));
}
