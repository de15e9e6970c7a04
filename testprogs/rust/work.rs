//! What the programs have in common, as `work.h` of those in C: work that takes a given time, and ops one after the other.
//!
//! Arguments as there: `[N]`, or `wait [N]`, then `brisk`.

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
pub fn spin_us(us: u64) {
    let divisor = if IS_BRISK.load(Ordering::Relaxed) == 1 { 100 } else { 1 };
    let start = cycles();
    let mut now = start;
    while now - start < us * 2300 / divisor {
        now = cycles();
    }
}

pub fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    value ^ (value >> 29)
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

/// Does so many ops, or as the arguments say, and ends the program: with 1 where two periods of them differ.
pub fn run_ops(by_default: u64, op: impl Fn(u64) -> u64) -> ! {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let brisk = arguments.last().is_some_and(|last| last == "brisk");
    if brisk {
        arguments.pop();
    }
    let waits = arguments.first().is_some_and(|first| first == "wait");
    let number = arguments.get(usize::from(waits)).and_then(|number| number.parse().ok());
    let ops: u64 = number.unwrap_or(if waits { u64::MAX } else { by_default });
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
