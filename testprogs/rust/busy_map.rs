//! A map behind a mutex, which another thread keeps now and then to throw out what is too old.
//!
//! f0 = `busy_map::touch`
//! fast peak (4 of 5 ops, ~0.3 ms):         busy_map::touch -> check                            function
//!     wrong: busy_map::touch; busy_map::touch -> insert
//! slow peak (1 of 5 ops, ~2.5 to 6.5 ms):  busy_map::touch -> insert -> … -> syscall -> futex  syscall
//!     wrong: busy_map::touch; busy_map::touch -> check; busy_map::touch -> insert; busy_map::touch -> insert -> expire
//!
//! Arguments as in the C programs: `[N]`, or `wait [N]`, then `brisk`.

use std::collections::HashMap;
use std::hint::black_box;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{LazyLock, Mutex, OnceLock};
use std::thread;

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

static MAP: LazyLock<Mutex<HashMap<u64, u64>>> = LazyLock::new(Mutex::default);
static WAITS: AtomicBool = AtomicBool::new(false);
static ROUNDS: OnceLock<(SyncSender<()>, Mutex<Receiver<()>>)> = OnceLock::new();

#[inline(never)]
fn expire(map: &mut HashMap<u64, u64>) {
    while !WAITS.load(Ordering::Relaxed) {
        thread::yield_now();
    }
    spin_us(3000);
    map.retain(|key, _| key % 5 != 4);
}

fn start_janitor() {
    let (begin, rounds) = mpsc::sync_channel(1);
    let (begins, has_begun) = mpsc::sync_channel(1);
    thread::spawn(move || {
        for () in rounds {
            let mut map = MAP.lock().expect("nobody panics");
            let _ = begins.send(());
            expire(&mut map);
        }
    });
    ROUNDS.get_or_init(|| (begin, Mutex::new(has_begun)));
}

#[inline(never)]
fn check(key: u64) -> u64 {
    spin_us(300);
    mix(key)
}

#[inline(never)]
fn insert(key: u64, value: u64) -> u64 {
    let mut map = MAP.lock().expect("nobody panics");
    map.insert(key, value);
    map.get(&key).map_or(0, |value| value + 1)
}

#[inline(never)]
fn touch(key: u64) -> u64 {
    let checked = black_box(check(key));
    WAITS.store(true, Ordering::Relaxed);
    black_box(insert(key, checked)) + 1
}

fn op(key: u64) -> u64 {
    if key % 5 == 4 {
        let (begin, has_begun) = ROUNDS.get().expect("it was made");
        WAITS.store(false, Ordering::Relaxed);
        begin.send(()).expect("it lives");
        let has_begun = has_begun.lock().expect("nobody panics");
        has_begun.recv().expect("it lives");
    }
    black_box(touch(key))
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
    start_janitor();
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let brisk = arguments.last().is_some_and(|last| last == "brisk");
    if brisk {
        arguments.pop();
    }
    let waits = arguments.first().is_some_and(|first| first == "wait");
    let number = arguments.get(usize::from(waits)).and_then(|number| number.parse().ok());
    let ops: u64 = number.unwrap_or(if waits { u64::MAX } else { 1200 });
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
