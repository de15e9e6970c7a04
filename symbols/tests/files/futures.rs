//! The state machines of async functions, as the Rust compiler on this machine describes them.

use std::collections::BTreeSet;

use darc_symbols::{Body, DebugSearch, Image, StateMachine};
use object::{Object, ObjectSection};

use crate::harness::{Workshop, resolve_in};

/// Lines matter here.
const SOURCE: &str = r#"use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
struct Later(u32);
impl Future for Later {
    type Output = u32;
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<u32> {
        self.0 -= 1;
        if self.0 == 0 { Poll::Ready(1) } else { Poll::Pending }
    }
}
mod served {
    use super::Later;
    pub async fn handler(times: u32) -> [u64; 5] {
        let first = Later(times).await;
        let held = vec![first; 3];
        let second =
            Later(times + 1)
                .await;
        std::hint::black_box(&held);
        [u64::from(first + second); 5]
    }
}
async fn never_waits() -> u32 { std::hint::black_box(3) }
fn run<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(value) = polled { return value; }
    }
}
#[inline(never)]
fn plain(x: u32) -> u32 { x ^ 5 }
fn main() {
    let times = plain(std::env::args().count() as u32);
    let a: Pin<Box<dyn Future<Output = [u64; 5]>>> = Box::pin(served::handler(times));
    let b: Pin<Box<dyn Future<Output = u32>>> = Box::pin(never_waits());
    let c: Pin<Box<dyn Future<Output = u32>>> = Box::pin(async move { Later(times).await + 1 });
    println!("{} {} {}", run(std::hint::black_box(a))[0], run(std::hint::black_box(b)), run(std::hint::black_box(c)));
}
"#;

fn built(options: &str) -> Workshop {
    let workshop = Workshop::new();
    workshop.write("prog.rs", SOURCE);
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    workshop.run(&format!("{rustc} --edition 2024 {options} -o prog prog.rs"));
    workshop
}

/// The state machines of all functions whose names contain this, those that drop them and call them among these.
fn machines(image: &Image, function: &str) -> Vec<StateMachine> {
    let functions = image.functions().iter();
    let named = functions.filter(|it| image.name_of(it).contains(function));
    named
        .filter_map(|it| match image.body(it.addr)? {
            Body::Function(machine) | Body::Block(machine) => machine,
            Body::Other => None,
        })
        .collect()
}

#[test]
fn the_lines_at_which_an_async_function_waits_are_known() {
    for options in ["-O -g", "-g", "-O -g -C symbol-mangling-version=v0"] {
        let image = built(options).prog();
        let [handler] = &machines(&image, "handler")[..] else {
            panic!("{options}: {:?}", machines(&image, "handler"));
        };
        let lines: Vec<_> = handler
            .awaits
            .iter()
            .map(|it| (it.state, it.line))
            .collect();
        assert_eq!(lines, [(3, 15), (4, 19)], "{options}");
        let file = |path: &str| path.ends_with("/prog.rs");
        let files = handler.awaits.iter().map(|it| it.file.as_deref());
        assert!(
            files.into_iter().all(|it| it.is_some_and(file)),
            "{handler:?}"
        );
        assert!(handler.state_size == 1 && handler.state_at < handler.size);
        let [never] = &machines(&image, "never_waits")[..] else {
            panic!("{options}: never_waits");
        };
        assert_eq!(never.awaits, [], "{options}");
        let blocks = machines(&image, "main");
        let lines: BTreeSet<_> = blocks
            .iter()
            .flat_map(|it| it.awaits.iter().map(|it| it.line))
            .collect();
        assert_eq!(
            lines,
            BTreeSet::from([38]),
            "{options}: a block of code is a future, too"
        );
        let plain = resolve_in(&image, "prog::plain").unwrap();
        assert_eq!(image.body(plain), Some(Body::Other), "{options}");
    }
}

#[test]
fn without_types_the_future_is_not_known() {
    for (options, expected) in [("-O", None), ("-C debuginfo=1", Some(Body::Function(None)))] {
        let image = built(options).prog();
        let mut functions = image.functions().iter();
        let poll = functions.find(|it| {
            let name = image.name_of(it);
            name.starts_with("prog::served::handler") && name.contains("closure")
        });
        let addr = poll.expect("it has a symbol").addr;
        assert_eq!(image.body(addr), expected, "{options}");
    }
}

#[test]
fn damaged_descriptions_of_futures_are_no_danger() {
    let workshop = built("-g");
    let bytes = std::fs::read(workshop.path("prog")).unwrap();
    let file = object::File::parse(&bytes[..]).unwrap();
    let range = |name| file.section_by_name(name).unwrap().file_range().unwrap();
    let mut random = 1_u64;
    let mut next = |below: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) % below
    };
    for round in 0..60 {
        let (start, len) = range(if round % 3 == 0 {
            ".debug_abbrev"
        } else {
            ".debug_info"
        });
        let mut damaged = bytes.clone();
        for _ in 0..1 + len / 200 {
            damaged[(start + next(len)) as usize] = next(256) as u8;
        }
        let path = std::path::Path::new("/hostile");
        let image = Image::from_bytes(damaged, path, &DebugSearch::nowhere()).unwrap();
        for machine in machines(&image, "handler") {
            assert!(machine.state_at + machine.state_size <= machine.size);
        }
    }
}
