//! A request to another thread by a channel, with a channel for the reply: the slow ops wait for it.
//!
//! f0 = `asks_by_channel::serve`
//! fast peak (4 of 5 ops, ~0.3 ms):       asks_by_channel::serve -> cached                       function
//!     wrong: asks_by_channel::serve; asks_by_channel::serve -> ask
//! slow peak (1 of 5 ops, ~2.5 to 6 ms):  asks_by_channel::serve -> ask -> … -> syscall -> futex  syscall
//!     wrong: asks_by_channel::serve; asks_by_channel::serve -> cached; asks_by_channel::serve -> ask; asks_by_channel::serve -> ask -> answer
//!
//! Arguments as in the C programs: `[N]`, or `wait [N]`, then `brisk`.

use std::hint::black_box;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
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

/// A request, and where its reply is waited for.
type Request = (u64, Sender<u64>);

static SERVER: OnceLock<Mutex<Sender<Request>>> = OnceLock::new();

#[inline(never)]
fn answer(key: u64) -> u64 {
    spin_us(3000);
    mix(key)
}

fn start_server() {
    let (sender, requests) = mpsc::channel::<Request>();
    thread::spawn(move || {
        for (key, reply) in requests {
            let _ = reply.send(answer(key));
        }
    });
    SERVER.get_or_init(|| Mutex::new(sender));
}

#[inline(never)]
fn cached(key: u64) -> u64 {
    spin_us(300);
    mix(key)
}

#[inline(never)]
fn ask(key: u64) -> u64 {
    let (sender, reply) = mpsc::channel();
    let server = SERVER.get().expect("it was started").lock().expect("nobody panics");
    server.send((key, sender)).expect("it lives");
    drop(server);
    reply.recv().expect("it answers")
}

#[inline(never)]
fn serve(key: u64) -> u64 {
    let found = if key % 5 == 4 { black_box(ask(key)) } else { black_box(cached(key)) };
    found + 1
}

fn op(key: u64) -> u64 {
    black_box(serve(key))
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
    start_server();
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
