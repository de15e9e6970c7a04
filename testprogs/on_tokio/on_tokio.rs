//! Futures of an async function on tokio's run-time of two worker threads.
//!
//! f0 = `on_tokio::handle`, an async function: an op is the life of its future
//! kinds 1 and 2, some 6 ms: the first .await, at the line marked FIRST
//!     wrong: `handle` itself, what it calls
//! kind 3, some 60 ms: the second .await, at the line marked SECOND, which stands in a loop
//!     wrong: as above
//! kind 4, some 1 ms: works in `parse`
//!     wrong: the waits
//! kind 5: dropped (aborted) while it waits at the first .await
//! all others, some 30 µs: `prepare`
//!
//! As argument how many futures there are, or `wait`: until something comes on the input. Then the number of futures that returned and
//! that were dropped, and the sum of the former's lives in ns, by its own clock, are printed.

use std::future::Future;
use std::hint::black_box;
use std::io::{Read, Write};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// One in so many futures is of each kind.
const KINDS: u64 = 16;

static ENDED: AtomicBool = AtomicBool::new(false);
static RETURNED: AtomicU64 = AtomicU64::new(0);
/// How long lives took, in ns.
static LIVES: AtomicU64 = AtomicU64::new(0);

/// Cycles of the time stamp counter.
#[inline(always)]
fn cycles() -> u64 {
    let (low, high): (u64, u64);
    unsafe { std::arch::asm!("rdtsc", out("rax") low, out("rdx") high, options(nomem, nostack)) };
    high << 32 | low
}

/// Works for about `us` microseconds of a counter of 2.3 GHz, without a call: probes would take a part of the time.
#[inline(always)]
fn work(us: u64) {
    let start = cycles();
    while cycles() - start < us * 2300 {}
}

#[inline(never)]
fn prepare(us: u64) {
    work(black_box(us));
}

#[inline(never)]
fn parse(us: u64) {
    work(black_box(us));
}

async fn pause(ms: u64) -> u64 {
    if ms > 0 {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
    ms
}

async fn handle(number: u64) {
    let begin = Instant::now();
    let kind = number % KINDS;
    prepare(30);
    let first = match kind {
        1 | 2 => 5,
        5 => 10_000,
        _ => 0,
    };
    let mut took = pause(first).await; // FIRST
    if kind == 4 {
        parse(1_000);
    }
    for _ in 0..2 {
        took += pause(if kind == 3 { 30 } else { 0 }).await; // SECOND
    }
    black_box(took);
    LIVES.fetch_add(begin.elapsed().as_nanos() as u64, Ordering::Relaxed);
    RETURNED.fetch_add(1, Ordering::Relaxed);
}

fn main() {
    let argument = std::env::args().nth(1);
    let waits = argument.as_deref() == Some("wait");
    let most = argument.and_then(|it| it.parse().ok()).unwrap_or(u64::MAX);
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.worker_threads(2).enable_time().build().expect("threads");
    if waits {
        println!("ready");
        let _ = std::io::stdout().flush();
        thread::spawn(|| {
            let _ = std::io::stdin().read(&mut [0]);
            ENDED.store(true, Ordering::Relaxed);
        });
    }
    let mut number = 0;
    let mut dropped = Vec::new();
    while number < most && !ENDED.load(Ordering::Relaxed) {
        let future: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(handle(number));
        let task = runtime.spawn(future);
        if number % KINDS == 5 {
            dropped.push(task);
        }
        number += 1;
        thread::sleep(Duration::from_micros(300));
    }
    let doomed = dropped.len() as u64;
    while RETURNED.load(Ordering::Relaxed) < number - doomed {
        thread::sleep(Duration::from_millis(1));
    }
    for task in dropped {
        task.abort();
        let _ = runtime.block_on(task);
    }
    println!("{} {doomed} {}", RETURNED.load(Ordering::Relaxed), LIVES.load(Ordering::Relaxed));
}
