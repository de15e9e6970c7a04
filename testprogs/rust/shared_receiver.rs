//! Four workers that share the receiver of a channel, behind a lock: one waits for the next job, the others for the lock that it holds.
//! So each waits nearly all the time.
//!
//! f0 = (of what a process runs, its busiest threads'): it runs all the time, so its time is divided
//!   … -> work -> take -> … -> recv             waiting
//!   … -> work -> take -> … -> lock_contended   most of the time: waiting for who waits
//!   … -> work -> handle                        some hundredths; what there is to analyse first
//!
//! Arguments as in the C programs: `[N]`, or `wait [N]`, then `brisk`.

use std::hint::black_box;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

mod work;
use work::{mix, spin_us};

#[inline(never)]
fn parse(key: u64) -> u64 {
    spin_us(400);
    mix(key)
}

#[inline(never)]
fn rebuild(key: u64) -> u64 {
    spin_us(4000);
    mix(key + 1)
}

#[inline(never)]
fn handle(key: u64) -> u64 {
    let parsed = black_box(parse(key));
    if key % 5 == 4 { parsed ^ black_box(rebuild(key)) } else { parsed }
}

#[inline(never)]
fn take(jobs: &Mutex<Receiver<u64>>) -> u64 {
    jobs.lock().expect("nobody panics").recv().expect("jobs come")
}

#[inline(never)]
fn work(jobs: &Mutex<Receiver<u64>>) {
    loop {
        black_box(handle(take(jobs)));
    }
}

fn main() {
    let (sender, jobs) = mpsc::channel();
    let jobs = Arc::new(Mutex::new(jobs));
    for _ in 0..4 {
        let jobs = Arc::clone(&jobs);
        thread::spawn(move || work(&jobs));
    }
    work::run_ops(20, |key| {
        sender.send(key).expect("they live");
        thread::sleep(Duration::from_millis(5));
        mix(key)
    });
}
