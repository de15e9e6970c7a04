//! What a measurement may end in, and how often it may be tried.

use std::cell::RefCell;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use super::turns;

/// The answer of a measurement: `Ok` is *right*.
pub type Verdict = Result<(), Miss>;

/// An answer that is not right.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Miss {
    /// There is no answer yet, or a part of one: more time, or a quieter machine, may bring it.
    Unfinished(String),
    /// It says what is not so. Nothing excuses that.
    Wrong(String),
}

pub use Miss::{Unfinished, Wrong};

/// How often a measurement may be unfinished before it counts as failed: other work on the machine delays answers.
const ATTEMPTS: usize = 3;

/// The measurements that were right so far, and the unfinished ones: of which test.
struct Counts {
    right: usize,
    unfinished: Vec<String>,
}

fn counts() -> MutexGuard<'static, Counts> {
    static COUNTS: Mutex<Counts> = Mutex::new(Counts {
        right: 0,
        unfinished: Vec::new(),
    });
    COUNTS.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// Under which circumstances this test measures now, where it does so under several.
    static CIRCUMSTANCES: RefCell<String> = const { RefCell::new(String::new()) };
    /// While this test is the one that measures: what it checks behind that.
    static PUT_OFF: RefCell<Option<Vec<Check>>> = const { RefCell::new(None) };
}

type Check = Box<dyn FnOnce()>;

/// Checks something under these circumstances: a failure names them.
pub fn under(circumstances: String, check: impl FnOnce()) {
    CIRCUMSTANCES.set(circumstances);
    let end = End;
    check();
    drop(end);
}

/// The end of the circumstances.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        let circumstances = CIRCUMSTANCES.take();
        if thread::panicking() {
            eprintln!("this was with {circumstances}");
        }
    }
}

/// The name of the test that runs on this thread, and the circumstances.
fn this_measurement() -> String {
    let circumstances = CIRCUMSTANCES.with_borrow(Clone::clone);
    let test = turns::this_test();
    match circumstances.is_empty() {
        true => test,
        false => format!("{test}, {circumstances}"),
    }
}

/// Measures, while no other test does, until the answer is right. An unfinished answer is counted and asked for again, a
/// wrong one fails at once.
///
/// With `DARC_REPEAT=30` it measures thirty times whatever the answers are, prints how many were right, unfinished and
/// wrong, and fails at the end when one was wrong.
pub fn measured(measure: impl Fn() -> Verdict) {
    repeatedly(|| measured_once(&measure));
}

fn repeatedly(measure: impl Fn() -> Verdict) {
    match std::env::var("DARC_REPEAT") {
        Ok(times) => repeated(times.parse().expect("DARC_REPEAT is a number"), measure),
        Err(_) => until_right(measure),
    }
}

/// As [`measured`], where others may measure while what came of it is judged.
pub fn measured_and_judged<T>(measure: impl Fn() -> T, judge: impl Fn(T) -> Verdict) {
    repeatedly(|| judge(alone(&measure)));
}

/// Measures once, while no other test does.
pub fn measured_once(measure: impl Fn() -> Verdict) -> Verdict {
    alone(measure)
}

/// Checks something that takes long: at once, or when this test is no longer the one that measures.
pub fn check_behind(check: impl FnOnce() + 'static) {
    let at_once = PUT_OFF.with_borrow_mut(|put_off| match put_off {
        Some(checks) => {
            checks.push(Box::new(check));
            None
        }
        None => Some(check),
    });
    if let Some(check) = at_once {
        check();
    }
}

/// Does this while no other test measures.
fn alone<T>(measure: impl FnOnce() -> T) -> T {
    let _behind = Behind;
    let _turn = turns::the_one_that_measures();
    PUT_OFF.set(Some(Vec::new()));
    measure()
}

/// Behind a measurement: makes the checks that were put off.
struct Behind;

impl Drop for Behind {
    fn drop(&mut self) {
        let checks = PUT_OFF.take();
        if !thread::panicking() {
            checks.into_iter().flatten().for_each(|check| check());
        }
    }
}

fn until_right(measure: impl Fn() -> Verdict) {
    for attempt in 1..=ATTEMPTS {
        match measure() {
            Ok(()) => {
                counts().right += 1;
                return;
            }
            Err(Wrong(why)) => panic!("wrong ({}): {why}", this_measurement()),
            Err(Unfinished(why)) => {
                eprintln!("attempt {attempt}, unfinished: {why}");
                counts().unfinished.push(turns::this_test());
            }
        }
    }
    let measurement = this_measurement();
    panic!("unfinished {ATTEMPTS} times in a row ({measurement})");
}

fn repeated(times: usize, measure: impl Fn() -> Verdict) {
    let (mut right, mut unfinished, mut wrong) = (0, 0, 0);
    let mut misses = String::new();
    for time in 1..=times {
        let (count, why) = match measure() {
            Ok(()) => (&mut right, None),
            Err(Unfinished(why)) => (&mut unfinished, Some(why)),
            Err(Wrong(why)) => (&mut wrong, Some(why)),
        };
        *count += 1;
        if let Some(why) = why {
            eprintln!("time {time}: {why}");
            misses += &format!(
                "\n    time {time}: {}",
                why.lines().next().unwrap_or_default()
            );
        }
    }
    let said = format!(
        "\n{}: {right} right, {unfinished} unfinished, {wrong} wrong{misses}\n",
        this_measurement()
    );
    // Not by a macro: those are captured.
    let _ = std::io::stderr().write_all(said.as_bytes());
    assert_eq!(wrong, 0, "wrong answers");
}

/// One line for the end of all tests.
pub fn summary() -> String {
    let Counts { right, unfinished } = &*counts();
    let again = unfinished.len();
    let mut line = format!("measurements: {right} right, {again} unfinished and tried again");
    if !unfinished.is_empty() {
        line += &format!(" ({})", unfinished.join(", "));
    }
    line + "\n"
}
