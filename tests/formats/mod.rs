//! Exported files are read by strict readers of what their formats' descriptions demand: those of the golden reports, and
//! those of every analysis that a test reads the results of.

mod callgrind;
mod chrome;
mod opened;
mod pprof;
mod speedscope;

use std::fs;
use std::path::Path;
use std::process::Command;

use darc_report::text::Style;
use darc_report::{Format, render};
use serde_json::Value;

/// Writes an analysis in each format that something reads again, and reads that.
pub fn check_all(results: &str) {
    let report = darc_report::state::read_any(results.as_bytes()).expect("results of darc");
    let saved = darc_report::state::write(&report);
    let again =
        darc_report::state::parse(saved.as_bytes()).unwrap_or_else(|why| panic!("{why}: {saved}"));
    assert_eq!(again, report, "{saved}");
    let file = |format| render(&report, format, Style::default()).expect("finite figures");
    pprof::read(&file(Format::Pprof)).unwrap_or_else(|why| panic!("pprof: {why}: {results}"));
    let check = |format, read: &dyn Fn(&str) -> Result<(), String>| {
        let text = String::from_utf8(file(format)).expect("text");
        read(&text).unwrap_or_else(|why| panic!("{}: {why}: {text}", format.name()));
    };
    check(Format::Callgrind, &|text| callgrind::read(text).map(drop));
    check(Format::Speedscope, &|text| speedscope::check(&json(text)));
    check(Format::Chrome, &|text| {
        let hand_overs = report.focus.iter().filter(|it| it.handover.is_some());
        let examples = hand_overs.flat_map(|it| it.peaks.iter().flat_map(|peak| &peak.example));
        let flows = examples.filter(|example| example.waited.is_some()).count();
        match chrome::check(&json(text))? {
            found if found.flows == flows => Ok(()),
            found => Err(format!("{} flows instead of {flows}", found.flows)),
        }
    });
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// What `callgrind_annotate` makes of a file; nothing where it is not installed.
pub fn annotated(file: &Path) -> Option<String> {
    let mut command = Command::new("callgrind_annotate");
    command.args(["--inclusive=yes", "--tree=both", "--threshold=100"]);
    match command.arg(file).output() {
        Ok(run) => {
            let complaints = String::from_utf8_lossy(&run.stderr);
            assert!(run.status.success() && complaints.is_empty(), "{run:?}");
            Some(String::from_utf8(run.stdout).expect("text"))
        }
        Err(_) => {
            eprintln!("left out: callgrind_annotate is not installed (package valgrind)");
            None
        }
    }
}

fn golden(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("report/src/tests/golden");
    fs::read_to_string(folder.join(name)).expect(name)
}

#[test]
fn golden_reports_keep_to_the_formats() {
    let found = chrome::check(&json(&golden("finished.trace.json"))).expect("a trace");
    assert!(found.slices > 6 && found.flows == 0, "{found:?}");
    let found = chrome::check(&json(&golden("handed-over.trace.json"))).expect("a trace");
    assert_eq!(found.flows, 1, "{found:?}");
    speedscope::check(&json(&golden("finished.speedscope.json"))).expect("stacks");
    let functions = callgrind::read(&golden("finished.callgrind")).expect("costs");
    let lock = &functions[&("/usr/lib/liblock.so.1".to_owned(), "lock".to_owned())];
    assert_eq!(lock.file, "???");
    let sort = &functions[&("/srv/bin/store".to_owned(), "sort".to_owned())];
    assert_eq!(sort.file, "store.cc");
    assert_eq!(
        functions[&("kernel".to_owned(), "futex".to_owned())].file,
        "???"
    );
}

/// The paths and times of pprof are those of the folded stacks.
#[test]
fn pprof_reads_what_is_written_for_it() {
    let report = darc_report::fixture::report(30_000);
    let rendered = |format| render(&report, format, Style::default()).expect("finite figures");
    let file = rendered(Format::Pprof);
    let stacks = pprof::read(&file).expect("stacks");
    assert_eq!(
        stacks.kinds,
        [("time".to_owned(), "nanoseconds".to_owned())]
    );
    let lines = stacks.samples.iter().map(|((peak, path), figures)| {
        let path: Vec<_> = path.iter().map(|(name, _)| name.as_str()).collect();
        format!("{peak};{} {}", path.join(";"), figures[0])
    });
    let mut lines: Vec<String> = lines.collect();
    lines.sort();
    let folded = String::from_utf8(rendered(Format::Folded)).expect("text");
    let mut expected: Vec<_> = folded.lines().collect();
    expected.sort();
    assert_eq!(lines, expected);
    assert!(pprof::read(&file[..file.len() - 9]).is_err());

    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("out.pb.gz");
    fs::write(&path, &file).expect("written");
    if let Some(top) = pprof::top(&path) {
        assert!(
            top.contains("Type: time") && top.contains(" futex\n"),
            "{top}"
        );
    }
}

/// The readers are no use if they take everything.
#[test]
fn damaged_files_are_refused() {
    let trace = json(&golden("handed-over.trace.json"));
    let index_of = |ph: &str| {
        let events = trace["traceEvents"].as_array().expect("a list");
        events.iter().position(|event| event["ph"] == ph).expect(ph)
    };
    let damages: [(&str, &str, Value); 6] = [
        ("X", "dur", Value::Null),
        ("X", "dur", 1e9.into()),
        ("X", "ph", "Z".into()),
        ("s", "id", 77.into()),
        ("s", "ts", 1e9.into()),
        ("M", "args", Value::Null),
    ];
    for (ph, member, value) in damages {
        let mut damaged = trace.clone();
        // The last of a track's slices, so that it has something around it.
        damaged["traceEvents"][index_of(ph) + usize::from(ph == "X")][member] = value;
        assert!(chrome::check(&damaged).is_err(), "{ph} {member}");
    }
    let stacks = json(&golden("finished.speedscope.json"));
    let damages = [
        ("/$schema", Value::from("http://elsewhere")),
        ("/profiles/0/unit", "hours".into()),
        ("/profiles/0/samples/0/0", 99.into()),
        ("/profiles/0/weights", serde_json::json!([1])),
        ("/profiles/0/endValue", 0.into()),
    ];
    for (place, value) in damages {
        let mut damaged = stacks.clone();
        *damaged.pointer_mut(place).expect(place) = value;
        assert!(speedscope::check(&damaged).is_err(), "{place}");
    }
    let costs = golden("finished.callgrind");
    let damages = [
        ("events: Cycles", "events: 1ycles"),
        ("fl=(1)", "fl=(9)"),
        ("cfn=(1)\n", "cfn=(1) again\n"),
        ("summary: ", "summary: 9"),
        ("calls=", "calls= "),
        ("\n104 ", "\n104 9"),
        ("ob=(1)\n", "obj=(1)\n"),
    ];
    for (right, wrong) in damages {
        assert!(costs.contains(right), "{right}");
        let damaged = costs.replacen(right, wrong, 1);
        assert!(callgrind::read(&damaged).is_err(), "{right} as {wrong}");
    }
}
