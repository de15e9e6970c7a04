//! What command lines mean, and what is said of those that mean nothing.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use clap::CommandFactory;
use darc_analysis::Resolution;

use super::*;
use crate::exit::EXIT_CODES;
use crate::listing::Pattern;
use crate::options::{ColorChoice, Condition, ListingFormat, Method};
use crate::target_name::ThreadName;

fn darc(arguments: &[&str]) -> Result<Invocation, Stop> {
    parse(
        std::iter::once(&"darc")
            .chain(arguments)
            .map(OsString::from),
    )
}

/// The one line that is shown for a refused command line.
fn refused(arguments: &[&str]) -> String {
    match darc(arguments) {
        Err(Stop::Refuse(failure)) => {
            assert_eq!(failure.kind().code(), 2, "{arguments:?}");
            let line = failure.line();
            assert!(
                line.starts_with("darc: ") && !line.contains('\n'),
                "{line:?}"
            );
            line
        }
        other => panic!("{arguments:?} was not refused: {other:?}"),
    }
}

#[test]
fn the_parser_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn attach_takes_a_process_and_a_function() {
    let Ok(Invocation::Attach(options)) = darc(&["attach", "-p", "42", "--f0", "a::b(int)"]) else {
        panic!()
    };
    assert_eq!(
        (options.pid, options.f0.as_deref()),
        (42, Some("a::b(int)"))
    );
    assert_eq!(options.common, Common::default());
}

#[test]
fn attach_takes_several_processes() {
    for arguments in [
        &["attach", "42", "7", "42"][..],
        &["attach", "-p", "42", "-p", "7"],
    ] {
        let Ok(Invocation::AttachAll(options)) = darc(arguments) else {
            panic!("{arguments:?}")
        };
        assert_eq!(options.pids, [7, 42]);
        assert_eq!(options.common.file_of(42), Path::new("out-42.txt"));
    }
    for options in [
        &["--ask"][..],
        &["--log", "a"],
        &["-o", "a.html"],
        &["--begin-on-signal"],
    ] {
        refused(&[&["attach", "42", "7"], options].concat());
    }
    let Ok(Invocation::Attach(options)) = darc(&[
        "attach",
        "42",
        "7",
        "-o",
        "a/b.json",
        "--part",
        "42,2,9,true",
    ]) else {
        panic!()
    };
    assert_eq!(
        (options.pid, options.part.map(|part| part.of.get())),
        (42, Some(2))
    );
    assert_eq!(options.common.output, Path::new("a/b-42.json"));
}

#[test]
fn run_takes_everything_after_the_program() {
    let Ok(Invocation::Run(options)) =
        darc(&["run", "--repeat", "3", "--", "ls", "-l", "--", "--help"])
    else {
        panic!()
    };
    assert_eq!(options.command, ["ls", "-l", "--", "--help"]);
    assert_eq!((options.repeat.get(), options.f0.as_str()), (3, "main"));
    let Ok(Invocation::Run(options)) = darc(&["run", "-q", "ls", "-q"]) else {
        panic!()
    };
    assert_eq!(options.command, ["ls", "-q"]);
    assert_eq!(options.common.verbosity, Verbosity::Quiet);
}

#[test]
fn resume_takes_its_target_from_three_places() {
    let target = |arguments: &[&str]| match darc(arguments) {
        Ok(Invocation::Resume(options)) => options.target,
        other => panic!("{other:?}"),
    };
    assert_eq!(target(&["resume", "out.txt"]), ResumeTarget::FromFile);
    assert_eq!(
        target(&["resume", "out.txt", "-p", "7"]),
        ResumeTarget::Pid(7)
    );
    assert_eq!(
        target(&["resume", "out.txt", "--", "a", "-p"]),
        ResumeTarget::Command(vec!["a".into(), "-p".into()])
    );
    refused(&["resume", "out.txt", "-p", "7", "--", "a"]);
}

#[test]
fn all_options_arrive() {
    let line = "attach -p 1 -o r.json --format json --engine jump --peak 2 --start-ops 5 --decision-ops 6 \
                --max-depth 7 --resolution 8 -d 1.5s -vv --no-debuginfod --color never --thread 7 --thread io*";
    let Ok(Invocation::Attach(options)) = darc(&line.split_whitespace().collect::<Vec<_>>()) else {
        panic!()
    };
    let expected = Common {
        preemption: crate::options::Preemption::Apart,
        budget: None,
        blocks: crate::options::Blocks::Left,
        max_sites: None,
        looks_on: true,
        output: "r.json".into(),
        format: Format::Json,
        engine: EngineChoice::Jump,
        params: GivenParams {
            start_ops: Some(5),
            decision_ops: Some(6),
            max_depth: Some(7),
            resolution: Resolution::new(8),
            peak: Some(PeakChoice::One(2)),
        },
        range: None,
        threads: vec![ThreadName::Id(7), ThreadName::Name(Pattern::new("io*"))],
        duration: Some(Duration::from_millis(1500)),
        value: None,
        asynchronous: None,
        begin: None,
        end_at: None,
        verbosity: Verbosity::Trace,
        log: None,
        debuginfod: false,
        color: ColorChoice::Never,
    };
    assert_eq!(options.common, expected);
    let Ok(Invocation::Attach(options)) = darc(&["attach", "-p", "1", "--ask"]) else {
        panic!()
    };
    assert_eq!(options.common.params.peak, Some(PeakChoice::Later));
}

#[test]
fn each_format_has_its_file() {
    for (format, file) in [
        ("json", "out.txt"),
        ("html", "out.html"),
        ("callgrind", "callgrind.out"),
        ("pprof", "out.pb.gz"),
    ] {
        let Ok(Invocation::Attach(options)) = darc(&["attach", "-p", "1", "--format", format])
        else {
            panic!()
        };
        assert_eq!(options.common.output.to_str(), Some(file));
    }
    for (file, format) in [
        ("a/b.html", Format::Html),
        ("x.json", Format::Json),
        ("x.trace.json", Format::Chrome),
        ("notes.md", Format::Text),
    ] {
        let Ok(Invocation::Attach(options)) = darc(&["attach", "-p", "1", "-o", file]) else {
            panic!()
        };
        assert_eq!(options.common.format, format, "{file}");
        let Ok(Invocation::Report(options)) = darc(&["report", "out.txt", "-o", file]) else {
            panic!()
        };
        assert_eq!(options.format, format, "{file}");
    }
}

#[test]
fn guardian_and_report_are_understood() {
    assert_eq!(
        darc(&[
            "guardian",
            "--pid",
            "9",
            "--ledger-fd",
            "3",
            "--life-fd",
            "4"
        ])
        .ok(),
        Some(Invocation::Guardian(GuardianOptions {
            pid: 9,
            ledger_fd: 3,
            life_fd: 4
        })),
    );
    let Ok(Invocation::Report(options)) = darc(&["report", "out.txt", "--format", "json"]) else {
        panic!()
    };
    assert_eq!((options.format, options.output), (Format::Json, None));
}

#[test]
fn compare_takes_two_files_and_conditions() {
    let line =
        "compare a.txt b.txt --method ops --fail-on new-peak --fail-on emd=0.5 --format json";
    let Ok(Invocation::Compare(options)) = darc(&line.split_whitespace().collect::<Vec<_>>())
    else {
        panic!()
    };
    assert_eq!(options.method, Method::Ops);
    let conditions = [Condition::NewPeak, Condition::AtLeast(Method::Emd, 0.5)];
    assert_eq!(options.fail_on, conditions);
    assert_eq!(options.format, ListingFormat::Json);
    refused(&["compare", "a.txt"]);
    refused(&["compare", "a.txt", "b.txt", "--format", "html"]);
    for condition in [
        "", "emd", "emd=", "emd=-1", "emd=NaN", "emd=inf", "old-peak", "x=1",
    ] {
        let line = refused(&["compare", "a", "b", &format!("--fail-on={condition}")]);
        assert!(line.contains("--fail-on"), "{line}");
    }
}

#[test]
fn list_takes_a_process_or_a_file() {
    let list = |arguments: &[&str]| match darc(arguments) {
        Ok(Invocation::List(options)) => (options.source, options.query.pattern),
        other => panic!("{other:?}"),
    };
    let pattern = Some(Pattern::new("std::*"));
    assert_eq!(list(&["list", "-p", "7"]), (ListSource::Pid(7), None));
    assert_eq!(
        list(&["list", "-p", "7", "std::*"]),
        (ListSource::Pid(7), pattern.clone())
    );
    assert_eq!(
        list(&["list", "a.out", "std::*"]),
        (ListSource::File("a.out".into()), pattern)
    );
    refused(&["list"]);
    refused(&["list", ""]);
    refused(&["list", "a.out", "b", "c"]);
    refused(&["list", "-p", "7", "a.out", "b"]);
}

#[test]
fn completions_and_manual_pages_hide_what_is_hidden() {
    let shown = |arguments: &[&str]| match darc(arguments) {
        Err(Stop::Show(text)) => text,
        other => panic!("{other:?}"),
    };
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = shown(&["completions", shell]);
        assert!(
            script.contains("compare") && !script.contains("guardian"),
            "{shell}"
        );
    }
    let page = shown(&["man"]);
    assert!(
        page.contains(".TH darc 1") && !page.contains("guardian"),
        "{page}"
    );
    let page = shown(&["man", "compare"]);
    assert!(
        page.contains(".TH darc-compare 1") && page.contains("fail\\-on"),
        "{page}"
    );
    refused(&["man", "guardian"]);
    refused(&["completions", "csh"]);
}

#[test]
fn a_process_id_is_a_process_id() {
    for pid in ["0", "-1", "99999999999", "+5"] {
        let line = refused(&["attach", "-p", pid]);
        assert!(line.contains("not a process id"), "{line}");
    }
    for process in [&["42"] as &[&str], &["-p", "42"]] {
        let Ok(Invocation::Attach(options)) = darc(&[&["attach"], process].concat()) else {
            panic!("{process:?}")
        };
        assert_eq!(options.pid, 42);
    }
    assert!(matches!(
        darc(&["attach", "no such program runs"]),
        Err(Stop::Refuse(failure)) if failure.kind().code() == 4
    ));
}

#[test]
fn degenerate_values_are_usage_errors() {
    for (option, values) in [
        (
            "--duration",
            &["0", "0s", "-1", "-1s", "1e30s", "5 m", "1,5s", "10"] as &[_],
        ),
        ("--above", &["99", "p", "p0", "p100", "pNaN"]),
        (
            "--between",
            &["1ms", "5ms..1ms", "1..2", "1ms..", "1ms..1ms"],
        ),
        ("--slower-than", &["0s", "5"]),
        ("--start-ops", &["0", "x", "18446744073709551616"]),
        ("--decision-ops", &["0", "1.5"]),
        ("--max-depth", &["0", "", "129"]),
        ("--resolution", &["0", "17"]),
        ("--peak", &["0", "some"]),
        ("--engine", &["magic"]),
        ("--f0", &["", " "]),
        ("--output", &["", "-"]),
    ] {
        for value in values {
            let line = refused(&["attach", "-p", "1", &format!("{option}={value}")]);
            assert!(line.contains(option), "{line}");
        }
    }
    refused(&["run", "--repeat", "0", "--", "ls"]);
    let stdout = refused(&["report", "out.txt", "-o", "-"]);
    assert!(
        stdout.contains("stdout is called /dev/stdout here"),
        "{stdout}"
    );
}

#[test]
fn contradictions_are_usage_errors() {
    for arguments in [
        &["frobnicate"] as &[&str],
        &["attach"],
        &["attach", "-p", "1", "--frobnicate"],
        &["attach", "-p", "1", "ls"],
        &["attach", "-p", "1", "--ask", "--peak", "1"],
        &["attach", "-p", "1", "-q", "-v"],
        &["run"],
        &["run", "--"],
        &["run", "--", ""],
        &["run", "-p", "1", "--", "ls"],
        &["resume"],
        &["report", "a", "b"],
        &["attach", "-p", "1", "--line\nfeed\x1b[2J"],
    ] {
        refused(arguments);
    }
    assert!(
        refused(&["attach", "-p", "1", "--duraton", "1s"]).contains("'--duration'"),
        "suggests what was meant"
    );
}

#[test]
fn help_and_version_succeed() {
    let shown = |arguments: &[&str]| match darc(arguments) {
        Err(Stop::Show(text)) => text,
        other => panic!("{other:?}"),
    };
    for arguments in [&[] as &[_], &["--help"], &["-h"]] {
        let text = shown(arguments);
        assert!(text.contains(EXIT_CODES), "{text}");
        assert!(!text.contains("guardian"), "{text}");
    }
    for command in ["attach", "run", "sample", "compare"] {
        let text = shown(&[command, "--help"]);
        let example = format!("Examples:\n  darc {command} ");
        assert!(text.starts_with(&example), "{text}");
        assert!(text.contains("Exit codes: see"), "{text}");
    }
    let Err(Stop::Show(text)) = darc(&["--version"]) else {
        panic!()
    };
    assert!(text.starts_with("darc "), "{text}");
}

#[test]
fn the_command_line_wins_over_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("darc.toml");
    std::fs::write(
        &path,
        "pid = 5\nf0 = \"serve\"\nduration = \"2s\"\nstart-ops = 30\nmax-depth = 4\n",
    )
    .unwrap();
    let path = path.to_str().unwrap();
    let Ok(Invocation::Attach(options)) =
        darc(&["attach", "--config", path, "--start-ops", "10", "-p", "6"])
    else {
        panic!()
    };
    assert_eq!((options.pid, options.f0.as_deref()), (6, Some("serve")));
    assert_eq!(
        (
            options.common.params.start_ops,
            options.common.params.max_depth
        ),
        (Some(10), Some(4))
    );
    assert_eq!(options.common.duration, Some(Duration::from_secs(2)));
}

#[test]
fn resume_takes_its_target_from_the_configuration_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("darc.toml");
    let resume = |text: &str, rest: &[&str]| {
        std::fs::write(&path, text).unwrap();
        // What others can write is not run.
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let options = ["resume", "out.txt", "--config", path.to_str().unwrap()];
        match darc(&[&options, rest].concat()) {
            Ok(Invocation::Resume(options)) => (options.target, options.f0),
            other => panic!("{other:?}"),
        }
    };
    let command =
        |words: &[&str]| ResumeTarget::Command(words.iter().map(OsString::from).collect());
    assert_eq!(resume("", &[]), (ResumeTarget::FromFile, None));
    assert_eq!(resume("pid = 5", &[]).0, ResumeTarget::Pid(5));
    assert_eq!(resume("pid = 5", &["-p", "6"]).0, ResumeTarget::Pid(6));
    assert_eq!(resume("pid = 5", &["--", "a"]).0, command(&["a"]));
    let both = "command = [\"b\", \"c\"]\nf0 = \"serve\"";
    assert_eq!(
        resume(both, &[]),
        (command(&["b", "c"]), Some("serve".to_owned()))
    );
    std::fs::write(&path, "program = \"no such program runs\"").unwrap();
    assert!(matches!(
        darc(&["resume", "out.txt", "--config", path.to_str().unwrap()]),
        Err(Stop::Refuse(failure)) if failure.kind().code() == 4
    ));
}

#[test]
fn the_ending_of_a_file_is_its_format() {
    let profile = |file: &str| match darc(&["profile", "-p", "1", "-o", file]) {
        Ok(Invocation::Profile(options)) => options.format,
        other => panic!("{other:?}"),
    };
    assert_eq!(profile("x.json"), Format::Json);
    assert_eq!(profile("x.html"), Format::Html);
    assert_eq!(profile("x.svg"), Format::Svg);
    assert_eq!(profile("x"), Format::Text);
    let sample = |more: &[&str]| match darc(&[&["sample", "-p", "1"], more].concat()) {
        Ok(Invocation::Sample(options)) => options.format,
        other => panic!("{other:?}"),
    };
    assert_eq!(sample(&["-o", "x.json"]), SampleFormat::Json);
    assert_eq!(sample(&["-o", "x.pb.gz"]), SampleFormat::Pprof);
    assert_eq!(
        sample(&["-o", "x.json", "--format", "text"]),
        SampleFormat::Text
    );
    assert_eq!(sample(&[]), SampleFormat::Text);
    assert!(refused(&["sample", "-p", "1", "-o", "x.html"]).contains("as html"));
    assert!(refused(&["profile", "-p", "1", "-o", "x.folded"]).contains("as folded"));
}

#[test]
fn few_options_stand_above_the_others() {
    for command in ["attach", "run"] {
        let help = match darc(&[command, "-h"]) {
            Err(Stop::Show(help)) => help,
            other => panic!("{other:?}"),
        };
        let (_, options) = help.split_once("\nOptions:\n").expect("options");
        let (top, _) = options.split_once("\n\n").expect("other groups");
        let top = top
            .lines()
            .filter(|line| line.trim_start().starts_with('-'));
        assert!(top.clone().count() <= 7, "six and --help: {help}");
        assert_eq!(help.contains("[default: main]"), command == "run");
    }
}
