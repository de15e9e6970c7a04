//! `darc status`: where an analysis stands that another darc conducts.

use darc_testprogs::{Opt, program};
use nix::sys::signal::Signal;

use crate::harness::{Target, Task, darc, execute, run_darc, turn, wait_until};
use crate::report::Report;

#[test]
fn an_analysis_that_runs_says_where_it_stands() {
    let _turn = turn();
    let path = program("two_peaks", Opt::O2);
    let target = Target::start("two_peaks", Opt::O2, &[]);
    let pid = target.pid().to_string();
    // It shall not end before it is asked.
    let task = Task::new("jump", "serve").options(&["--decision-ops", "1000000000"]);
    let (mut analysis, output, _folder) = task.start_attach(target.pid());
    analysis.wait_for_probes(target.pid());
    let mut said = None;
    wait_until("ops in the status", || {
        let status = run_darc(&["status", "-p", &pid, "--format", "json"]);
        assert_eq!(status.code(), 0, "{status:#?}");
        let report = Report(serde_json::from_str(&status.stdout).expect("one document"));
        let ops = report.ops();
        said = Some(report);
        ops > 200
    });
    let said = said.expect("it was asked");
    assert_eq!(said.status(), "in-progress");
    assert_eq!(said.at("/f0/name"), "serve");
    assert_eq!(said.at("/target/pid"), target.pid());
    let all = execute(&mut darc(&["status"]));
    assert!(all.stdout.contains("Latency of serve"), "{all:#?}");

    analysis.signal(Signal::SIGINT);
    let ended = analysis.finish();
    let report = Report::read(&output, &ended);
    assert!(report.ops() >= said.ops(), "it went on");
    let refused = run_darc(&["status", "-p", &pid]);
    assert!(refused.failure(3).contains("no darc measures it"));
    target.finish_like_native(&path, &[]);
}
