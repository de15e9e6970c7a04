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
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Mutex, OnceLock};
use std::thread;

mod work;
use work::{mix, spin_us};

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

fn main() {
    start_consumer();
    work::run_ops(1200, op);
}
