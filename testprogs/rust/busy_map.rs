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
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{LazyLock, Mutex, OnceLock};
use std::thread;

mod work;
use work::{mix, spin_us};

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

fn main() {
    start_janitor();
    work::run_ops(1200, op);
}
