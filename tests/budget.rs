//! `--budget`: what measuring takes is kept below it by measuring less, and the report says so.

use std::fs;
use std::process::{Command, Stdio};

use darc_testprogs::{Opt, program};
use nix::sys::signal::Signal;

use crate::harness::{
    Running, Target, Task, Unfinished, Wrong, darc, measured, run_darc, wait_until,
};
use crate::report::Report;
use crate::untouched::differing_text;

/// An analysis that never has ops enough, of a function that is called without rest: it is over any budget soon.
#[test]
fn what_is_over_the_budget_is_left_out() {
    measured(|| {
        let target = Target::start("two_peaks", Opt::O2, &[]);
        let options = "--budget 0.1% --decision-ops 100000000 -d 3s";
        let options: Vec<&str> = options.split(' ').collect();
        let task = Task::new("jump", "serve").options(&options);
        let analysis = task.attach(target.pid());
        let report = analysis.report();
        let effort = &report.0["probes"]["effort"];
        let of = |key: &str| effort[key].as_f64().unwrap_or(-1.0);
        if of("budget") != 0.001 || of("elapsed") <= 0.0 || of("reading") <= 0.0 {
            return Err(Wrong(format!("{effort:#}")));
        }
        if of("rested") <= 0.1 {
            // So little was measured on a busy machine that it stayed below.
            return Err(Unfinished(format!("{effort:#}")));
        }
        let warnings = report.0["warnings"].to_string();
        match warnings.contains("--budget") {
            true => Ok(()),
            false => Err(Wrong(warnings)),
        }
    });
}

/// Seconds of processor time that all threads of a process have used, and its first one.
fn used(pid: i32) -> Option<(f64, f64)> {
    let of = |path: String| {
        let stat = fs::read_to_string(path).ok()?;
        let (_, fields) = stat.rsplit_once(") ")?;
        let mut fields = fields.split(' ').skip(11);
        let mut ticks = || fields.next()?.parse::<f64>().ok();
        // USER_HZ, the same on all machines of this kind (time(7)).
        Some((ticks()? + ticks()?) / 100.0)
    };
    let all = of(format!("/proc/{pid}/stat"))?;
    Some((all, of(format!("/proc/{pid}/task/{pid}/stat"))?))
}

/// Many threads cost those of darc that stop them: that is in the account, which is kept.
#[test]
fn what_stops_take_is_in_the_account() {
    const THREADS: &str = "400";
    measured(|| {
        let mut program = Command::new(program("bench_stops", Opt::O2));
        let target = Running::start(program.arg(THREADS).stdin(Stdio::piped()));
        let pid = target.pid();
        let count = || fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
        wait_until("its threads", || count().to_string() == THREADS);
        let folder = tempfile::tempdir().expect("a folder for temporary files");
        let output = folder.path().join("out.json");
        let options =
            "attach -f many_sites --budget 1% --decision-ops 100000000 -d 4s -q --format json";
        let mut command = darc(&options.split(' ').collect::<Vec<_>>());
        let analysis = Running::start(command.args(["-p", &pid.to_string(), "-o"]).arg(&output));
        let (mut all, mut own) = (0.0, 0.0);
        wait_until("its end", || {
            let used = used(analysis.pid());
            (all, own) = used.unwrap_or((all, own));
            // What has ended and was not waited for has no name of its program any more.
            fs::read_link(format!("/proc/{}/exe", analysis.pid())).is_err()
        });
        let report = Report::read(&output, &analysis.finish());
        target.signal(Signal::SIGKILL);
        let of = |key: &str| {
            report.0["probes"]["effort"][key]
                .as_f64()
                .expect("a number")
        };
        let said = format!(
            "{all} s, {own} s of the first thread: {:#}",
            report.0["probes"]["effort"]
        );
        // The kernel tells hundredths of a second, of each.
        assert!(of("reading") + 0.03 >= all - own, "{said}");
        match of("rested") > 0.0 {
            true => Ok(()),
            // It is over its credit by that, and rests, unless it came to little on a busy machine.
            false => Err(Unfinished(said)),
        }
    });
}

/// Calls that pass unmeasured take time as well: in rests a loop of short ones has no probes, and has them again afterwards.
#[test]
fn probes_of_a_busy_loop_are_away_in_rests() {
    let target = Target::start("loop_over_fast", Opt::O2, &["brisk"]);
    let pid = target.pid();
    let options = "--budget 1% --decision-ops 100000000 -d 5m";
    let options: Vec<&str> = options.split(' ').collect();
    let task = Task::new("jump", "scan").options(&options);
    let (analysis, output, _folder) = task.start_attach(pid);
    let probed = || differing_text(pid).unwrap_or(0);
    let mut most = 0;
    wait_until("a rest", || {
        let now = probed();
        most = most.max(now);
        0 < now && now < most
    });
    wait_until("the end of the rest", || probed() == most);
    wait_until("another rest", || (1..most).contains(&probed()));
    analysis.signal(Signal::SIGINT);
    let report = Report::read(&output, &analysis.finish());
    let effort = &report.0["probes"]["effort"];
    assert!(effort["rested"].as_f64() > Some(0.0), "{effort:#}");
    target.finish_like_native(&program("loop_over_fast", Opt::O2), &["brisk"]);
}

#[test]
fn budgets_that_make_no_sense_are_refused() {
    for budget in ["0%", "-1%", "101%", "much", ""] {
        let failure = run_darc(&["attach", "1", "-f", "serve", "--budget", budget]);
        assert_eq!(failure.code(), 2, "{budget}: {failure:#?}");
    }
    let breakpoints = ["run", "--engine", "int3", "--budget", "1%", "--", "true"];
    let failure = run_darc(&breakpoints);
    assert!(failure.failure(2).contains("--engine int3"), "{failure:#?}");
}
