//! The log: what darc decides, and with which numbers.

use std::fs;

use darc_testprogs::Opt;

use crate::harness::{Target, Task, Unfinished, darc, execute, measured};

#[test]
fn the_log_tells_the_descent() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    for engine in crate::harness::engines() {
        let path = folder.path().join(engine);
        let log = path.to_str().expect("text");
        let task = Task::new(engine, "serve").options(&["-vv", "--log", log]);
        measured(|| {
            let target = Target::start("two_peaks", Opt::O2, &[]);
            let analysis = task.attach(target.pid());
            drop(target);
            assert_eq!(analysis.darc.code(), 0, "{:#?}", analysis.darc);
            assert!(!analysis.darc.stderr.contains("DEBUG"), "{analysis:#?}");
            let text = fs::read_to_string(&path).expect("it was written");
            assert!(!text.contains('\u{1b}'), "colours");
            let events = [
                r#"descent: found a peak peak=1 "#,
                r#"descent: expanded fnode=1 function=Some("serve")"#,
                "=rebuild",
                "descent: decided fnode=1 peak=",
                "descent: a path went on fnode=1 peak=1 from=NotChosen to=Waiting",
                "descent: all paths have ended",
                "descent::op: op (cycles) ",
                "tracer::stop: ",
                "process: let go ",
            ];
            match events.iter().find(|event| !text.contains(*event)) {
                None => Ok(()),
                Some(event) => Err(Unfinished(format!("{event} is not in\n{text}"))),
            }
        });
    }
}

#[test]
fn the_log_shows_the_targets_that_were_chosen() {
    let target = Target::start("two_peaks", Opt::O2, &[]);
    let pid = target.pid().to_string();
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let attach = |chosen: &str| {
        let mut command = darc(&["attach", "--f0", "serve", "-d", "1s", "-p", &pid, "-o"]);
        command.arg(folder.path().join("out.txt"));
        execute(command.env("DARC_LOG", chosen))
    };
    let analysis = attach("process=debug");
    assert_eq!(analysis.code(), 0, "{analysis:#?}");
    assert!(
        analysis.stderr.contains("process: planned probes"),
        "{analysis:#?}"
    );
    assert!(!analysis.stderr.contains("descent:"), "{analysis:#?}");
    let refused = attach("process=loud");
    assert!(refused.failure(2).contains("DARC_LOG"), "{refused:#?}");
}
