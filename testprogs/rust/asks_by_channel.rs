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
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, OnceLock};
use std::thread;

mod work;
use work::{mix, spin_us};

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

fn main() {
    start_server();
    work::run_ops(1200, op);
}
