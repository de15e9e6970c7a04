//! An analysis that did not come to its end goes on: `darc resume`, and `darc run --repeat`.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use darc_testprogs::{Opt, ground_truth, program};

use crate::harness::{
    Analysis, Target, Task, Unfinished, Wrong, darc, engines, execute, for_all, measured, native,
};
use crate::report::Report;
use crate::untouched::ProcessState;

/// Stops after 160 ops: peaks are found, their causes are not.
fn cut_short(engine: &str, opt: Opt) -> Analysis {
    let analysis = Task::new(engine, "serve").run_like_native(&program("two_peaks", opt), &["160"]);
    let report = analysis.report();
    assert_eq!(report.status(), "undecided", "{:#}", report.0);
    assert!(
        analysis.darc.stderr.contains("darc resume"),
        "{analysis:#?}"
    );
    analysis
}

fn resume(file: &Path, output: &Path, rest: &[&str]) -> crate::harness::Finished {
    let mut command = darc(&["resume"]);
    command
        .arg(file)
        .args(["--format", "json", "-o"])
        .arg(output)
        .args(rest);
    execute(command.stdin(std::process::Stdio::null()))
}

/// How many decisions the ftree's root has behind it, per peak.
fn decided(report: &Report) -> usize {
    let mut nodes = vec![report.at("/ftree")];
    let mut count = 0;
    while let Some(node) = nodes.pop() {
        nodes.extend(node["children"].as_array().into_iter().flatten());
        let peaks = node["peaks"].as_object().into_iter().flatten();
        count += peaks
            .filter(|(_, peak)| {
                peak["state"]
                    .as_str()
                    .is_some_and(|state| state.starts_with("decided") || state == "ended")
            })
            .count();
    }
    count
}

#[test]
fn the_configuration_names_the_command_and_another_f0_is_spoken_of_once() {
    let first = cut_short("jump", Opt::O2);
    let folder = tempfile::tempdir().expect("a directory");
    let config = folder.path().join("darc.toml");
    let command = program("two_peaks", Opt::O2);
    fs::write(
        &config,
        format!("command = [{command:?}, \"320\"]\nf0 = \"main\"\n"),
    )
    .expect("room");
    fs::set_permissions(&config, Permissions::from_mode(0o600)).expect("own file");
    let output = folder.path().join("out.json");
    let config = config.to_str().expect("UTF-8");
    let resumed = resume(&first.output, &output, &["--config", config]);
    assert_eq!(resumed.code(), 0, "{resumed:#?}");
    let warnings = resumed
        .stderr
        .matches("darc: warning: the configuration's f0");
    assert_eq!(warnings.count(), 1, "{resumed:#?}");
    let report = Report::read(&output, &resumed);
    assert_eq!(report.at("/target/command/1"), "320");
}

#[test]
fn a_short_program_is_run_again() {
    for_all(|engine, opt| {
        measured(|| {
            let first = cut_short(engine, opt);
            let mut report = first.report();
            // As often as needed, but each time some decision is made, so not for ever.
            for _ in 0..20 {
                if report.status() == "root-cause-found" {
                    break;
                }
                let (ops, decisions) = (report.ops(), decided(&report));
                let path = program("two_peaks", opt);
                let resumed = resume(
                    &first.output,
                    &first.output,
                    &["--", path.to_str().expect("text"), "160"],
                );
                assert_eq!(resumed.code(), 0, "{resumed:#?}");
                report = Report::read(&first.output, &resumed);
                assert!(
                    decided(&report) >= decisions,
                    "no decision is made twice: {:#}",
                    report.0
                );
                assert!(
                    report.ops() >= ops || report.0["comparison"].is_object(),
                    "{:#}",
                    report.0
                );
            }
            report.judge(ground_truth("two_peaks"))
        })
    });
}

/// The command is in the file, in the text format too.
#[test]
fn the_file_knows_its_command() {
    for engine in engines() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("out.txt");
        let mut command = darc(&["run", "--f0", "serve", "--engine", engine, "-o"]);
        command
            .arg(&file)
            .arg("--")
            .arg(program("two_peaks", Opt::O2))
            .arg("160");
        // Where new files are everybody's, its own are not: what others can write is not run.
        let mut of_all = Command::new("sh");
        of_all
            .args(["-c", "umask 0; exec \"$@\"", "sh"])
            .arg(command.get_program())
            .args(command.get_args());
        assert_eq!(execute(&mut of_all).code(), 0);
        let text = fs::read_to_string(&file).expect("text");
        assert!(
            text.contains("serve") && text.contains("two_peaks"),
            "{text}"
        );
        let output = folder.path().join("out.json");
        let resumed = resume(&file, &output, &[]);
        assert_eq!(resumed.code(), 0, "{resumed:#?}");
        assert!(resumed.stdout.starts_with("checksum="), "{resumed:#?}");
        assert!(
            resumed.stderr.contains("two_peaks 160"),
            "the command is shown first: {resumed:#?}"
        );
        let report = Report::read(&output, &resumed);
        assert!(report.ops() > 0);
        assert_eq!(report.at("/engine"), *engine, "as it was begun");
    }
}

#[test]
fn a_resume_is_offered_only_where_it_can_be_typed() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, is_offered) in [("my out.txt", true), ("out.html", false)] {
        let mut command = darc(&["run", "--f0", "serve", "-o"]);
        command
            .arg(folder.path().join(name))
            .arg("--")
            .arg(program("two_peaks", Opt::O2))
            .arg("160");
        let finished = execute(&mut command);
        assert_eq!(finished.code(), 0, "{finished:#?}");
        let said = finished.stderr.contains("go on with: darc resume");
        assert_eq!(said, is_offered, "{finished:#?}");
        let quoted = finished.stderr.contains("go on with: darc resume '");
        assert_eq!(quoted, is_offered, "{finished:#?}");
    }
}

#[test]
fn a_file_that_others_can_write_is_not_run() {
    use std::os::unix::fs::PermissionsExt;
    let first = cut_short(engines()[0], Opt::O2);
    fs::set_permissions(&first.output, fs::Permissions::from_mode(0o666)).expect("ours");
    let output = first.folder.path().join("again.json");
    let resumed = resume(&first.output, &output, &[]);
    let line = resumed.failure(5);
    assert!(line.contains("other users can write"), "{line}");
    assert_eq!(resumed.stdout, "", "nothing was run");
}

#[test]
fn a_running_process_is_attached_to() {
    for_all(|engine, opt| {
        measured(|| {
            let first = cut_short(engine, opt);
            let target = Target::start("two_peaks", opt, &[]);
            let before = ProcessState::of(target.pid());
            let output = first.folder.path().join("again.json");
            let pid = target.pid().to_string();
            let resumed = resume(&first.output, &output, &["-p", &pid]);
            assert_eq!(resumed.code(), 0, "{resumed:#?}");
            before.check_unchanged(target.pid());
            let judged = Report::read(&output, &resumed).judge(ground_truth("two_peaks"));
            target.finish_like_native(&program("two_peaks", opt), &[]);
            judged
        })
    });
}

/// What darc had attached to is gone on with where it still runs, and is never started.
#[test]
fn a_process_that_ran_already_is_never_started() {
    let target = Target::start("two_peaks", Opt::O2, &[]);
    let task = Task::new("jump", "serve").options(&["--decision-ops", "1000000000", "-d", "50ms"]);
    let first = task.attach(target.pid());
    let output = first.folder.path().join("again.json");
    let again = ["-d", "50ms"];
    let resumed = resume(&first.output, &output, &again);
    assert_eq!(resumed.code(), 0, "{resumed:#?}");
    let going_on = format!("going on in process {}", target.pid());
    assert!(resumed.stderr.contains(&going_on), "{resumed:#?}");
    let ops = |file: &Path, of| Report::read(file, of).ops();
    let before = ops(&first.output, &first.darc);
    assert!(ops(&output, &resumed) > before, "both times count");
    target.finish_like_native(&program("two_peaks", Opt::O2), &[]);
    let refused = resume(&first.output, &output, &again);
    let line = refused.failure(5);
    assert!(line.contains("name one with -p"), "{line}");
    assert_eq!(refused.stdout, "", "nothing was run");
}

/// Another build of the program: its build-id differs, and that is an error.
#[test]
fn another_build_is_refused() {
    for engine in engines() {
        let first = cut_short(engine, Opt::O0);
        let output = first.folder.path().join("again.json");
        let other = program("two_peaks", Opt::O2);
        let resumed = resume(
            &first.output,
            &output,
            &["--", other.to_str().expect("text"), "160"],
        );
        let line = resumed.failure(5);
        assert!(line.contains("build"), "{line}");
    }
}

/// The calls below f0 are elsewhere in another build of a library.
#[test]
fn another_build_of_a_library_is_refused() {
    let path = program("lazily_bound", Opt::O2);
    let first = Task::new("jump", "handle").run(&path, &["160"]);
    let mut stored = first.report().0;
    let modules = stored["modules"].as_array_mut().expect("a list");
    let is_library = |module: &&mut serde_json::Value| {
        let path = module["path"].as_str().expect("text");
        path.ends_with("libserve.so")
    };
    let library = modules.iter_mut().find(is_library).expect("it is loaded");
    library["build_id"] = "00ff".into();
    // So a call by its address is stored.
    let place = format!("{}+0x1000", library["path"].as_str().expect("text"));
    let calls = stored["ftree"]["children"].as_array_mut();
    let mut calls = calls.expect("a list").iter_mut();
    let call = calls.find(|call| call["name"] == "library_lookup");
    call.expect("it is measured")["callee"] = place.into();
    fs::write(&first.output, stored.to_string()).expect("room");
    let output = first.folder.path().join("again.json");
    let resumed = resume(
        &first.output,
        &output,
        &["--", path.to_str().expect("text"), "160"],
    );
    let line = resumed.failure(5);
    assert!(line.contains("libserve.so (00ff)"), "{line}");
}

/// The file of f0 is known before that of the program.
#[test]
fn the_program_is_no_library() {
    let path = program("lazily_bound", Opt::O2);
    let open = ["--start-ops", "1000000"];
    let first = Task::new("jump", "library_lookup").options(&open);
    let first = first.run(&path, &["160"]);
    let resumed = resume(
        &first.output,
        &first.output,
        &["--", path.to_str().expect("text"), "160"],
    );
    let report = Report::read(&first.output, &resumed);
    let exe = report.at("/target/exe").as_str();
    assert!(
        exe.is_some_and(|exe| exe.ends_with("lazily_bound")),
        "{exe:?}"
    );
}

/// Ops that became much faster since: the distribution is another one, and that is reported.
#[test]
fn a_changed_distribution_is_reported() {
    for engine in engines() {
        let path = program("loop_over_fast", Opt::O2);
        let first = Task::new(engine, "scan").run(&path, &["160"]);
        let output = first.folder.path().join("again.json");
        // Breakpoints may have the answer before there are enough ops for a comparison.
        let jump = ["--engine", "jump", "--"];
        let command = [path.to_str().expect("text"), "600", "brisk"];
        let resumed = resume(&first.output, &output, &[&jump[..], &command].concat());
        let report = Report::read(&output, &resumed);
        assert_eq!(report.at("/engine"), "jump", "as it is named");
        assert_eq!(report.at("/comparison/changed"), true, "{:#}", report.0);
    }
}

/// A program too short for its analysis is run several times in one go.
#[test]
fn runs_are_repeated_until_the_causes_are_found() {
    for_all(|engine, opt| {
        measured(|| {
            let task = Task::new(engine, "serve").options(&["--repeat", "20"]);
            let analysis = task.run(&program("two_peaks", opt), &["120"]);
            assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
            let runs = analysis.darc.stdout.lines().count();
            assert!((2..20).contains(&runs), "{analysis:#?}");
            analysis.report().judge(ground_truth("two_peaks"))
        })
    });
}

#[test]
fn a_changed_distribution_is_noticed_before_the_analysis_goes_on() {
    let path = program("two_peaks", Opt::O2);
    let first = cut_short("jump", Opt::O2);
    let output = first.folder.path().join("again.json");
    let program = path.to_str().expect("UTF-8");
    let moved = "no longer distributed as stored";

    let same = ["--check-profile", "--", program, "3000"];
    measured(|| {
        // What else ran then is in what is stored, too.
        let first = cut_short("jump", Opt::O2);
        let again = resume(&first.output, &output, &same);
        assert_eq!(again.code(), 0, "{again:#?}");
        match again.stderr.contains(moved) {
            false => Ok(()),
            true => Err(Unfinished(format!("{again:#?}"))),
        }
    });
    measured(|| {
        let first = cut_short("jump", Opt::O2);
        let report = Report::read(&output, &resume(&first.output, &output, &same));
        match report.status() {
            "root-cause-found" => Ok(()),
            _ => Err(Unfinished(format!("{:#}", report.0))),
        }
    });

    let other = ["--check-profile", "--", program, "60000", "brisk"];
    let again = resume(&first.output, &output, &other);
    assert_eq!(again.code(), 0, "it goes on: {again:#?}");
    assert!(again.stderr.contains(moved), "{again:#?}");

    let strict = ["--strict", "--", program, "60000", "brisk"];
    let before = fs::read(&first.output).expect("results");
    let again = resume(&first.output, &output, &strict);
    assert_eq!(again.code(), 8, "{again:#?}");
    assert!(again.stderr.contains(moved), "{again:#?}");
    let report = Report::read(&output, &again);
    assert_eq!(
        report.ops(),
        first.report().ops(),
        "the stored results stay as they were"
    );
    assert_eq!(fs::read(&first.output).expect("results"), before);
}

/// Every path has ended: the program is not run, and no file is written.
#[test]
fn nothing_is_run_where_nothing_is_open() {
    let path = program("two_peaks", Opt::O2);
    let native = native::<&str>(&path, &[]);
    measured(|| {
        let task = Task::new("jump", "serve");
        let first = task.run_like(&native, &path, &[]);
        if first.report().status() != "root-cause-found" {
            return Err(Unfinished(format!("{:#}", first.report().0)));
        }
        let output = first.folder.path().join("again.json");
        let resumed = resume(&first.output, &output, &[]);
        assert_eq!(resumed.code(), 0, "{resumed:#?}");
        assert!(resumed.stdout.is_empty(), "{resumed:#?}");
        assert!(resumed.stderr.contains("nothing is open"), "{resumed:#?}");
        assert!(!output.exists(), "{resumed:#?}");
        Ok(())
    });
}

/// What ended at the greatest depth goes on when more is allowed; what the first run saw of it is still there.
#[test]
fn a_larger_depth_reopens_what_became_too_long() {
    let path = program("deep_path", Opt::O2);
    let native = native::<&str>(&path, &[]);
    measured(|| {
        let task = Task::new("jump", "level00").options(&["--max-depth", "8"]);
        let first = task.run_like(&native, &path, &[]);
        let of_first = first.report();
        // A small peak may be open where the whole is explained: its analysis would go on.
        let is_open = |peak: &serde_json::Value| peak["status"] == "undecided";
        if of_first.status() != "max-depth-reached" || of_first.peaks().iter().any(is_open) {
            return Err(Unfinished(format!("{:#}", first.report().0)));
        }
        let output = first.folder.path().join("deeper.json");
        let same = resume(&first.output, &output, &[]);
        assert!(same.stderr.contains("--max-depth"), "{same:#?}");
        let deeper = resume(&first.output, &output, &["--max-depth", "24"]);
        let report = Report::read(&output, &deeper);
        assert!(report.ops() > first.report().ops(), "{:#}", report.0);
        for (peak, earlier) in report.peaks().iter().zip(first.report().peaks()) {
            assert_eq!(peak["off_cpu"].is_null(), earlier["off_cpu"].is_null());
        }
        let causes = report.peaks().iter().flat_map(Report::causes);
        let longest = causes.map(|cause| cause.path.len()).max();
        match longest {
            Some(21) => Ok(()),
            Some(length) if length > 8 => Err(Unfinished(format!("{:#}", report.0))),
            _ if report.status() == "undecided" => Err(Unfinished(format!("{:#}", report.0))),
            _ => Err(Wrong(format!("{:#}", report.0))),
        }
    });
}
