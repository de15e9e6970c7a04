//! A channel with room for few messages: who sends one waits while it is full, as the one who takes them out is busy.
//!
//! f0 = `full_channel::publish`
//! fast peak (4 of 5 ops, ~0.3 ms):         full_channel::publish -> encode                            function
//!     wrong: full_channel::publish; full_channel::publish -> enqueue
//! slow peak (1 of 5 ops, ~2.5 to 6.5 ms):  full_channel::publish -> enqueue -> … -> syscall -> futex  syscall
//!     wrong: full_channel::publish; full_channel::publish -> encode; full_channel::publish -> enqueue; full_channel::publish -> enqueue -> merge
//!
//! Arguments as in the C programs: `[N]`, or `wait [N]`, then `brisk`.

use std::hint::black_box;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Mutex, OnceLock};
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

const ROOM: usize = 4;

static WAITS: AtomicBool = AtomicBool::new(false);
static MESSAGES: OnceLock<SyncSender<u64>> = OnceLock::new();
static TAKES: OnceLock<SyncSender<()>> = OnceLock::new();
static TAKEN: OnceLock<Mutex<Receiver<u64>>> = OnceLock::new();

/// Merges what was published, and only then takes it out.
#[inline(never)]
fn merge() {
    while !WAITS.load(Ordering::Relaxed) {
        thread::yield_now();
    }
    spin_us(3000);
    WAITS.store(false, Ordering::Relaxed);
}

fn start_consumer() {
    let (sender, messages) = mpsc::sync_channel(ROOM);
    let (takes, take) = mpsc::sync_channel(1);
    let (taken, has_taken) = mpsc::sync_channel(1);
    thread::spawn(move || {
        for () in take {
            merge();
            let all = (0..=ROOM).filter_map(|_| messages.recv().ok());
            let _ = taken.send(all.fold(0, |sum: u64, message: u64| sum ^ message));
        }
    });
    MESSAGES.get_or_init(|| sender);
    TAKES.get_or_init(|| takes);
    TAKEN.get_or_init(|| Mutex::new(has_taken));
}

#[inline(never)]
fn encode(key: u64) -> u64 {
    spin_us(300);
    mix(key)
}

#[inline(never)]
fn enqueue(message: u64) {
    MESSAGES.get().expect("it was made").send(message).expect("it is taken");
}

#[inline(never)]
fn publish(key: u64) -> u64 {
    let message = black_box(encode(key));
    WAITS.store(key % 5 == 4, Ordering::Relaxed);
    enqueue(message);
    message + 1
}

/// The fifth message finds the channel full.
fn op(key: u64) -> u64 {
    let is_fifth = key % 5 == 4;
    if is_fifth {
        TAKES.get().expect("it was made").send(()).expect("somebody takes");
    }
    let published = black_box(publish(key));
    if !is_fifth {
        return published;
    }
    let taken = TAKEN.get().expect("it was made").lock().expect("nobody panics");
    published ^ taken.recv().expect("all were taken")
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
    start_consumer();
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
