//! An executor of two threads that runs futures of an async function. Most of them do a little work and end; others are slow, each
//! kind for a reason of its own, or do not end by returning.
//!
//! f0 = `futures::served::handle`, an async function: an op is the life of its future
//! kinds 1 and 2, a fifth of a ms and more: the first .await of `handle`, at the line marked FIRST
//!     wrong: `handle` itself, what it calls
//! kind 3, some 60 ms: the second .await, at the line marked SECOND, which stands in a loop
//!     wrong: as above
//! kind 4, some 2 ms: works in `parse`, in its only poll
//!     wrong: the waits
//! kind 5: dropped while it waits at the first .await
//! kind 6: panics in its second poll
//! all others, some 30 µs: `prepare`, in their first poll
//!
//! As argument how many futures there are, or `wait`: until something comes on the input. Then the number of polls, of futures
//! that returned, were dropped, and panicked, and the sum of their lives in ns, by its own clock, are printed.

use std::collections::VecDeque;
use std::future::Future;
use std::hint::black_box;
use std::io::{Read, Write};
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

/// One in so many futures is of each kind.
const KINDS: u64 = 16;

static TIMERS: Mutex<Vec<(Instant, Waker)>> = Mutex::new(Vec::new());
static ENDED: AtomicBool = AtomicBool::new(false);
/// Polls, and futures that returned, were dropped, and panicked.
static COUNTS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
/// How long lives took, in ns.
static LIVES: AtomicU64 = AtomicU64::new(0);

const POLLS: usize = 0;
const RETURNED: usize = 1;
const DROPPED: usize = 2;
const PANICKED: usize = 3;

fn count(what: usize) {
    COUNTS[what].fetch_add(1, Ordering::Relaxed);
}

fn counted(what: usize) -> u64 {
    COUNTS[what].load(Ordering::Relaxed)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|error| error.into_inner())
}

/// Ready when its time has come.
struct Timer {
    at: Option<Instant>,
    takes: Duration,
}

fn after(us: u64) -> Timer {
    Timer {
        at: None,
        takes: Duration::from_micros(us),
    }
}

impl Future for Timer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.takes.is_zero() {
            return Poll::Ready(());
        }
        let now = Instant::now();
        match self.at {
            Some(at) if now >= at => Poll::Ready(()),
            Some(_) => Poll::Pending,
            None => {
                let at = now + self.takes;
                self.at = Some(at);
                locked(&TIMERS).push((at, context.waker().clone()));
                Poll::Pending
            }
        }
    }
}

/// Cycles of the time stamp counter.
#[inline(always)]
fn cycles() -> u64 {
    let (low, high): (u64, u64);
    unsafe { std::arch::asm!("rdtsc", out("rax") low, out("rdx") high, options(nomem, nostack)) };
    high << 32 | low
}

/// Works for about `us` microseconds of a counter of 2.3 GHz, without a call.
#[inline(always)]
fn work(us: u64) {
    let start = cycles();
    let mut now = start;
    while now - start < us * 2300 {
        now = cycles();
    }
}

#[inline(never)]
fn prepare(us: u64) {
    work(us);
}

#[inline(never)]
fn parse(us: u64) {
    work(us);
}

#[inline(never)]
fn fail() {
    panic!("one of sixteen");
}

pub mod served {
    use super::*;

    /// Polled within the poll of who awaits it.
    async fn read(us: u64) -> u64 {
        after(us).await;
        us
    }

    pub async fn handle(number: u64) {
        let begin = Instant::now();
        let kind = number % KINDS;
        prepare(30);
        let first = match kind {
            1 | 2 | 6 => 200,
            5 => 100_000,
            _ => 0,
        };
        let mut took = read(first).await; // FIRST
        if kind == 4 {
            parse(2_000);
        }
        if kind == 6 {
            fail();
        }
        for _ in 0..2 {
            let second = if kind == 3 { 30_000 } else { 0 };
            took += read(second).await; // SECOND
        }
        black_box(took);
        LIVES.fetch_add(begin.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }
}

type Handled = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A future, and when it is dropped whatever it waits for.
struct Task {
    number: u64,
    begun: AtomicBool,
    future: Mutex<Option<Handled>>,
    queue: Arc<Queue>,
}

#[derive(Default)]
struct Queue {
    ready: Mutex<VecDeque<Arc<Task>>>,
    more: Condvar,
}

impl Queue {
    fn push(&self, task: Arc<Task>) {
        locked(&self.ready).push_back(task);
        self.more.notify_one();
    }

    fn pop(&self) -> Arc<Task> {
        let mut ready = locked(&self.ready);
        loop {
            match ready.pop_front() {
                Some(task) => return task,
                None => ready = self.more.wait(ready).unwrap_or_else(|error| error.into_inner()),
            }
        }
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let queue = Arc::clone(&self.queue);
        queue.push(self);
    }
}

impl Task {
    /// Polls it. One that is to be dropped is, when it is woken for that.
    fn run(self: Arc<Task>) {
        let mut future = locked(&self.future);
        let is_first = !self.begun.swap(true, Ordering::Relaxed);
        let is_dropped = self.number % KINDS == 5;
        let Some(polled) = future.as_mut() else { return };
        if is_dropped && !is_first {
            *future = None;
            count(DROPPED);
            return;
        }
        let waker = Waker::from(Arc::clone(&self));
        let mut context = Context::from_waker(&waker);
        count(POLLS);
        match panic::catch_unwind(AssertUnwindSafe(|| polled.as_mut().poll(&mut context))) {
            Ok(Poll::Pending) if is_dropped => {
                locked(&TIMERS).push((Instant::now() + Duration::from_millis(1), waker.clone()));
            }
            Ok(Poll::Pending) => {}
            end => {
                *future = None;
                count(if end.is_ok() { RETURNED } else { PANICKED });
            }
        }
    }
}

/// Wakes what waits for a time, every 100 µs.
fn wake_timers() {
    loop {
        thread::sleep(Duration::from_micros(100));
        let now = Instant::now();
        let mut timers = locked(&TIMERS);
        let due: Vec<Waker> = timers.extract_if(.., |(at, _)| *at <= now).map(|(_, waker)| waker).collect();
        drop(timers);
        for waker in due {
            waker.wake();
        }
    }
}

/// The future, which moves before it is polled first.
fn boxed(number: u64) -> Handled {
    let future = served::handle(number);
    let moved = black_box([future]);
    let [future] = moved;
    Box::pin(future)
}

/// No async function, but one that has a block of such code.
#[inline(never)]
fn has_a_block(number: u64) -> u64 {
    let mut context = Context::from_waker(Waker::noop());
    let mut future: Handled = Box::pin(async move {
        prepare(black_box(number));
    });
    u64::from(future.as_mut().poll(&mut context).is_ready())
}

fn main() {
    for number in 0..4 {
        black_box(has_a_block(number));
    }
    panic::set_hook(Box::new(|_| ()));
    let argument = std::env::args().nth(1);
    let waits = argument.as_deref() == Some("wait");
    let most = argument.and_then(|it| it.parse().ok()).unwrap_or(u64::MAX);
    let queue = Arc::new(Queue::default());
    thread::spawn(wake_timers);
    for _ in 0..2 {
        let queue = Arc::clone(&queue);
        thread::spawn(move || {
            loop {
                queue.pop().run();
            }
        });
    }
    if waits {
        println!("ready");
        let _ = std::io::stdout().flush();
        thread::spawn(|| {
            let _ = std::io::stdin().read(&mut [0]);
            ENDED.store(true, Ordering::Relaxed);
        });
    }
    let mut number = 0;
    while number < most && !ENDED.load(Ordering::Relaxed) {
        let task = Task {
            number,
            begun: AtomicBool::new(false),
            future: Mutex::new(Some(boxed(number))),
            queue: Arc::clone(&queue),
        };
        queue.push(Arc::new(task));
        number += 1;
        thread::sleep(Duration::from_micros(300));
    }
    while counted(RETURNED) + counted(DROPPED) + counted(PANICKED) < number {
        thread::sleep(Duration::from_millis(1));
    }
    let [polls, returned, dropped, panicked] = [POLLS, RETURNED, DROPPED, PANICKED].map(counted);
    println!("{polls} {returned} {dropped} {panicked} {}", LIVES.load(Ordering::Relaxed));
}
