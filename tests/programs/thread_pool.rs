//! A pool of threads that serve requests from a channel: most look something up, every sixteenth builds an index anew.

use std::hint::black_box;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;

fn main() {
    let (requests, served) = sync_channel(64);
    let served = Arc::new(Mutex::new(served));
    for _ in 0..4 {
        let served = Arc::clone(&served);
        thread::spawn(move || work(&served));
    }
    for request in 0_u64.. {
        requests.send(request).expect("somebody serves");
    }
}

fn work(requests: &Mutex<Receiver<u64>>) {
    let entries = vec![7_u64; 20_000];
    loop {
        let request = requests.lock().expect("nobody panics").recv();
        let Ok(request) = request else { return };
        serve(&entries, request);
    }
}

#[inline(never)]
fn serve(entries: &[u64], request: u64) {
    match request % 16 {
        15 => build_index(entries, request),
        _ => look_up(entries, request),
    }
}

#[inline(never)]
fn look_up(entries: &[u64], request: u64) {
    let some = entries.iter().skip(request as usize % 16).step_by(16);
    black_box(some.fold(request, |sum, entry| sum.wrapping_mul(31) ^ entry));
}

#[inline(never)]
fn build_index(entries: &[u64], request: u64) {
    let all = (0..16).flat_map(|_| entries);
    black_box(all.fold(request, |sum, entry| sum.wrapping_mul(31) ^ entry));
}
