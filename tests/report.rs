//! Reads darc's JSON results (`docs/output-format.md`), and checks what must hold for any.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::harness::{Finished, check_behind};

/// The results of an analysis.
pub struct Report(pub Value);

/// One root cause of one peak.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cause {
    pub path: Vec<String>,
    pub kind: String,
    pub stop: String,
}

/// What the causes of a peak explain of its time together, at most: each share is of other ops.
const WHOLE: f64 = 1.02;

impl Report {
    /// Reads results, and checks what must hold for any.
    pub fn read(path: &Path, darc: &Finished) -> Report {
        let text = fs::read_to_string(path)
            .unwrap_or_else(|error| panic!("no results: {error}; {darc:#?}"));
        let report =
            Report(serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")));
        report.check_consistency();
        check_behind(move || crate::formats::check_all(&text));
        report
    }

    /// What `darc status` printed.
    pub fn of(status: &Finished) -> Report {
        Report(serde_json::from_str(&status.stdout).expect("one document"))
    }

    /// The value at a JSON pointer.
    pub fn at(&self, pointer: &str) -> &Value {
        self.0
            .pointer(pointer)
            .unwrap_or_else(|| panic!("no {pointer} in {:#}", self.0))
    }

    pub fn status(&self) -> &str {
        self.at("/status").as_str().expect("text")
    }

    pub fn ops(&self) -> u64 {
        self.at("/profile/ops").as_u64().expect("a count")
    }

    pub fn peaks(&self) -> &[Value] {
        self.at("/peaks").as_array().expect("a list")
    }

    /// The root causes of a peak; several call sites of one path are one cause.
    pub fn causes(peak: &Value) -> Vec<Cause> {
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        let mut causes: Vec<Cause> = Vec::new();
        for cause in peak["root_causes"].as_array().expect("a list") {
            let names = cause["path"].as_array().expect("a list");
            let cause = Cause {
                path: names
                    .iter()
                    .map(|name| plain(name.as_str().expect("text")))
                    .collect(),
                kind: text(&cause["kind"]),
                stop: text(&cause["stop"]),
            };
            if !causes.contains(&cause) {
                causes.push(cause);
            }
        }
        causes
    }

    fn check_consistency(&self) {
        assert_eq!(self.at("/schema"), 1);
        let buckets = self.at("/profile/buckets").as_array().expect("a list");
        let sum = |key: &str| {
            buckets
                .iter()
                .map(|bucket| bucket[key].as_u64().expect("a count"))
                .sum::<u64>()
        };
        assert_eq!(
            sum("ops"),
            self.ops(),
            "the buckets must add up: {:#}",
            self.0
        );
        assert_eq!(
            Some(sum("total")),
            self.at("/profile/total").as_u64(),
            "{:#}",
            self.0
        );
        let in_peaks: u64 = self
            .peaks()
            .iter()
            .map(|peak| peak["ops"].as_u64().expect("a count"))
            .sum();
        assert!(in_peaks <= self.ops(), "{:#}", self.0);
        assert_eq!(
            self.at("/probes/bytes_differing_after_detach"),
            0,
            "{:#}",
            self.0
        );
        let f0 = plain(self.at("/f0/name").as_str().expect("text"));
        assert_eq!(plain(self.at("/ftree/name").as_str().expect("text")), f0);
        for peak in self.peaks() {
            assert!(peak["first_bucket"].as_u64() <= peak["last_bucket"].as_u64());
            let causes = peak["root_causes"].as_array().expect("a list").iter();
            let shares = causes.filter_map(|cause| cause["share_of_time"].as_f64());
            let explained: f64 = shares.sum();
            assert!(explained <= WHOLE, "{explained} of a peak: {:#}", self.0);
            for cause in Report::causes(peak) {
                assert_eq!(cause.path[0], f0, "{:#}", self.0);
            }
        }
    }
}

/// Whether the path has these names; `…` stands for any number of functions, at the end for one at least.
pub fn is_path<Name: AsRef<str>>(path: &[String], pattern: &[Name]) -> bool {
    let Some((name, rest)) = pattern.split_first() else {
        return path.is_empty();
    };
    let name = name.as_ref();
    if name == "…" && rest.is_empty() {
        return !path.is_empty();
    }
    if name == "…" {
        return (0..=path.len()).any(|skipped| is_path(&path[skipped..], rest));
    }
    path.split_first().is_some_and(|(first, others)| {
        (first == name || first.ends_with(&format!("::{name}"))) && is_path(others, rest)
    })
}

/// A name without arguments, generics, Rust's hash and versions: `a::B<int>::f(int)@V` is `a::B::f`.
pub fn plain(name: &str) -> String {
    let name = name.split('@').next().expect("one part at least");
    let mut depth = 0;
    let mut kept = String::new();
    for char in name.chars() {
        match char {
            '(' | '<' => depth += 1,
            ')' | '>' => depth -= 1,
            _ if depth == 0 => kept.push(char),
            _ => {}
        }
    }
    let is_hash = |part: &str| {
        part.len() == 17
            && part.starts_with('h')
            && part[1..].bytes().all(|b| b.is_ascii_hexdigit())
    };
    match kept.rsplit_once("::") {
        Some((rest, last)) if last.is_empty() || is_hash(last) => rest.to_owned(),
        _ => kept,
    }
}

#[test]
fn names_are_compared_without_their_arguments() {
    assert_eq!(plain("Circle::draw(unsigned long)"), "Circle::draw");
    assert_eq!(
        plain("closures::apply::h0123456789abcdef"),
        "closures::apply"
    );
    assert_eq!(plain("closures::apply::<closures::x>"), "closures::apply");
    assert_eq!(
        plain("pthread_mutex_lock@@GLIBC_2.2.5"),
        "pthread_mutex_lock"
    );
    let path = ["a", "b::c", "d"].map(String::from);
    assert!(is_path(&path, &["a", "c", "d"]));
    assert!(is_path(&path, &["a", "…", "d"]));
    assert!(is_path(&path, &["a", "…", "c", "…", "d"]));
    assert!(!is_path(
        &path,
        &["a", "…"].map(|x| if x == "a" { "b" } else { x })
    ));
    assert!(!is_path(&path, &["a", "c"]));
}
