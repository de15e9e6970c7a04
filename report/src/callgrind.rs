//! The Callgrind format (Valgrind manual, "Callgrind Format Specification"), for `callgrind_annotate`
//! and KCachegrind.
//!
//! The first event is the time of all ops in cycles; each peak is an event of its own, so that the tools can sort by
//! the slow ops alone. The format knows functions, not paths: fnodes of one function are one there.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use darc_analysis::Hz;

use super::attribution::{self, Analysed, Call, Ops, Share};
use super::escape::control;
use super::model::{CalleeKind, FtreeNode, Report};
use super::words;

/// Stands for what is not known.
const UNKNOWN: &str = "???";
/// The object of what no file of the program holds: system calls, and what keeps a thread from its work.
const KERNEL: &str = "kernel";

/// Cycles: of all ops, then of the ops of each peak.
type Costs = Vec<u64>;

/// A function as the format knows it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Function {
    object: String,
    file: String,
    name: String,
}

#[derive(Default)]
struct Content {
    line: u32,
    own: Costs,
    /// By callee, file and line of the call: how many calls, and their costs.
    calls: BTreeMap<(Function, String, u32), (u64, Costs)>,
}

struct Graph<'a> {
    report: &'a Report,
    /// The source file of each function, where only its calls tell: of f0's definition, or of a call in it.
    files: HashMap<(&'a str, &'a str), &'a str>,
    functions: BTreeMap<Function, Content>,
    events: usize,
}

/// The report as a Callgrind file.
#[must_use]
pub fn render(report: &Report) -> String {
    let shares = attribution::of(report);
    let mut graph = Graph {
        report,
        files: HashMap::new(),
        functions: BTreeMap::new(),
        events: 1 + shares.len(),
    };
    graph.find_files(&report.ftree);
    for focus in &report.focus {
        graph.find_files(&focus.ftree);
    }
    for (number, share) in shares.iter().enumerate() {
        graph.add(&share.root, 1 + number);
    }
    let mut text = header(report, &shares);
    graph.write(&mut text);
    text
}

fn header(report: &Report, shares: &[Share<'_>]) -> String {
    let hz = Hz::new(report.clock.hz);
    let mut text = format!(
        "# callgrind format\nversion: 1\ncreator: darc {}\n",
        control(&report.darc)
    );
    if let Some(pid) = report.target.pid {
        let _ = writeln!(text, "pid: {pid}");
    }
    let command = if report.target.command.is_empty() {
        control(&report.target.exe).into_owned()
    } else {
        let words: Vec<_> = report
            .target
            .command
            .iter()
            .map(|word| control(word))
            .collect();
        words.join(" ")
    };
    let _ = writeln!(text, "cmd: {command}");
    let mut events = String::from("Cycles");
    for (share, number) in shares.iter().zip(1..) {
        let event = event(share, number);
        let below = match share.above {
            [] => String::new(),
            above => format!(", below {}", words::path(above)),
        };
        let _ = writeln!(text, "desc: {event}: {}{below}", share.ops.name(hz));
        let _ = write!(events, " {event}");
    }
    let mut summary = vec![0_u64; 1 + shares.len()];
    for (number, share) in shares.iter().enumerate() {
        summary[0] = summary[0].saturating_add(share.root.total);
        summary[1 + number] = share.root.total;
    }
    let _ = write!(
        text,
        "positions: line\nevents: {events}\nsummary: {}\n",
        figures(&summary)
    );
    text
}

/// The event's name: one word, never twice.
fn event(share: &Share<'_>, number: usize) -> String {
    match (share.analysed, share.ops) {
        (Analysed::F0, Ops::OfPeak(peak, _)) => format!("Peak{}", peak.peak),
        (Analysed::F0, Ops::OfNoPeak) => "NoPeak".to_owned(),
        (Analysed::Below, Ops::OfPeak(peak, _)) => format!("Below{number}Peak{}", peak.peak),
        (Analysed::Below, Ops::OfNoPeak) => format!("Below{number}NoPeak"),
    }
}

impl<'a> Graph<'a> {
    /// Results of earlier versions do not say where functions are defined.
    fn find_files(&mut self, node: &'a FtreeNode) {
        let f0 = &self.report.f0;
        if let Some(file) = &f0.file {
            self.files.insert((&f0.module, &f0.name), file);
        }
        if let Some(file) = node.children.iter().find_map(|child| child.file.as_deref()) {
            self.files.entry((module(node), &node.name)).or_insert(file);
        }
        for child in &node.children {
            self.find_files(child);
        }
    }

    fn function(&self, node: &FtreeNode) -> Function {
        let module = module(node);
        let told = || self.files.get(&(module, node.name.as_str())).copied();
        let file = node.callee_file.as_deref().or_else(told);
        Function {
            object: control(module).into_owned(),
            file: control(file.unwrap_or(UNKNOWN)).into_owned(),
            name: control(&node.name).into_owned(),
        }
    }

    fn add(&mut self, call: &Call<'_>, event: usize) {
        let function = self.function(call.node);
        for callee in &call.callees {
            let to = self.function(callee.node);
            let file = control(callee.node.file.as_deref().unwrap_or(&function.file)).into_owned();
            let line = callee.node.line.unwrap_or(0);
            let content = self.functions.entry(function.clone()).or_default();
            let (calls, costs) = content.calls.entry((to, file, line)).or_default();
            *calls = calls.saturating_add(callee.calls.max(1));
            charge(costs, self.events, event, callee.total);
        }
        let f0 = &self.report.f0;
        let content = self.functions.entry(function).or_default();
        if let Some(line) = call.node.callee_line {
            content.line = line;
        } else if call.node.name == f0.name && module(call.node) == f0.module {
            content.line = f0.line.unwrap_or(0);
        }
        charge(&mut content.own, self.events, event, call.own);
        for callee in &call.callees {
            self.add(callee, event);
        }
    }

    fn write(&self, text: &mut String) {
        let mut objects = Names::default();
        let mut files = Names::default();
        let mut names = Names::default();
        for (function, content) in &self.functions {
            let _ = write!(
                text,
                "\nob={}\nfl={}\nfn={}\n{} {}\n",
                objects.of(&function.object),
                files.of(&function.file),
                names.of(&function.name),
                content.line,
                figures(&content.own)
            );
            for ((to, file, line), (calls, costs)) in &content.calls {
                if *file != function.file {
                    let _ = writeln!(text, "fi={}", files.of(file));
                }
                let _ = write!(
                    text,
                    "cob={}\ncfi={}\ncfn={}\ncalls={calls} {}\n{line} {}\n",
                    objects.of(&to.object),
                    files.of(&to.file),
                    names.of(&to.name),
                    self.functions.get(to).map_or(0, |content| content.line),
                    figures(costs)
                );
                if *file != function.file {
                    let _ = writeln!(text, "fe={}", files.of(&function.file));
                }
            }
        }
    }
}

fn module(node: &FtreeNode) -> &str {
    match (&node.callee, node.kind) {
        (Some(place), _) => &place.module,
        (None, CalleeKind::Function | CalleeKind::Unknown) => UNKNOWN,
        (None, _) => KERNEL,
    }
}

/// Adds to the event, and to the first one.
fn charge(costs: &mut Costs, events: usize, event: usize, cycles: u64) {
    costs.resize(events, 0);
    for index in [0, event] {
        costs[index] = costs[index].saturating_add(cycles);
    }
}

fn figures(costs: &[u64]) -> String {
    let figures: Vec<String> = costs.iter().map(u64::to_string).collect();
    figures.join(" ")
}

/// Names with numbers: written out the first time, by number from then on. So a name that itself begins
/// with a number in brackets is no reference.
#[derive(Default)]
struct Names(HashMap<String, usize>);

impl Names {
    fn of(&mut self, name: &str) -> String {
        let next = self.0.len() + 1;
        match self.0.get(name) {
            Some(number) => format!("({number})"),
            None => {
                self.0.insert(name.to_owned(), next);
                format!("({next}) {name}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::fixture;

    #[test]
    fn no_name_makes_a_line() {
        let mut report = fixture::report(30_000);
        report.ftree.children[1].name = "(7)\nfn=evil".to_owned();
        report.ftree.children[1].file = Some("a\nb".to_owned());
        let text = render(&report);
        assert!(
            text.contains("fn=(1) (7)\\nfn=evil\n") || text.contains(") (7)\\nfn=evil\n"),
            "{text}"
        );
        assert!(!text.contains("\nfn=evil"));
        assert!(!text.contains("\nb"));
    }

    #[test]
    fn no_event_has_the_name_of_another() {
        let mut report = fixture::report(30_000);
        let mut focus = crate::tests::golden::handed_over().focus;
        // The outermost function of a stack has nothing above it.
        focus[0].path.truncate(1);
        (focus[0].profile, focus[0].peaks) = (report.profile.clone(), report.peaks.clone());
        report.focus = focus;
        let text = render(&report);
        let events = text.lines().find_map(|line| line.strip_prefix("events: "));
        let mut names: Vec<&str> = events.unwrap().split(' ').collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert!(all > 3 && names.len() == all, "{names:?}");
    }

    #[test]
    fn callgrind_annotate_reads_it() {
        let mut report = fixture::report(30_000);
        report.ftree.children[0].name = "hash<a;b>(int, char const*)::{lambda}".to_owned();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("callgrind.out.1");
        std::fs::write(&path, render(&report)).unwrap();
        let run = Command::new("callgrind_annotate")
            .args(["--inclusive=yes", "--tree=calling", "--threshold=100"])
            .arg(&path)
            .output();
        let Ok(run) = run else {
            eprintln!("skipped: callgrind_annotate is not installed (package valgrind)");
            return;
        };
        let text = String::from_utf8(run.stdout).unwrap();
        let complaints = String::from_utf8_lossy(&run.stderr);
        assert!(
            run.status.success() && complaints.is_empty(),
            "{complaints}"
        );
        for part in [
            "Peak2",
            "put",
            "futex",
            "hash<a;b>(int, char const*)::{lambda}",
            "PROGRAM TOTALS",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
