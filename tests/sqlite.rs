//! A real program's real work: SQLite inserting into a file database.

use std::fs;

use darc_testprogs::program;
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use tempfile::TempDir;

use crate::harness::{
    Target, Task, Unfinished, Verdict, Wrong, for_all, measured_and_judged, tries_all,
};
use crate::report::{Cause, Report, is_path};

/// A folder on a file system that writes to a disk: in memory, fsync costs nothing.
fn folder_on_disk() -> TempDir {
    let candidates = [
        std::env::temp_dir(),
        env!("CARGO_TARGET_TMPDIR").into(),
        "/var/tmp".into(),
    ];
    let on_disk = candidates.iter().find(|path| {
        statfs(path.as_path()).is_ok_and(|data| data.filesystem_type() != TMPFS_MAGIC)
    });
    tempfile::tempdir_in(on_disk.unwrap_or(&candidates[0])).expect("a folder")
}

/// The slow ops are the inserts, and what they wait for is the sync of the file. Of the few that wait for a processor besides, which may be
/// a peak of their own, nothing is said.
fn judge(report: &Report) -> Verdict {
    let told = || format!("{:#}", report.0);
    let peaks = report.peaks().iter();
    let Some(slowest) = peaks.max_by_key(|peak| peak["total"].as_u64()) else {
        return Err(Unfinished(told()));
    };
    let causes = Report::causes(slowest);
    let is_sync = |path: &[String]| {
        ["fsync", "fdatasync"]
            .iter()
            .any(|sync| is_path(path, &["sqlite3_step", "…", "unixSync", "…", sync]))
    };
    let is_right = |cause: &Cause| cause.kind == "syscall" && is_sync(&cause.path);
    // What the program computes between two syncs is no cause of what takes milliseconds, beside the sync neither.
    let has_ended = |cause: &Cause| ["self", "no-calls"].contains(&cause.stop.as_str());
    let is_wrong = |cause: &Cause| cause.kind == "function" && has_ended(cause);
    match causes.iter().any(is_right) {
        _ if causes.iter().any(is_wrong) => Err(Wrong(told())),
        true if slowest["status"] == "root-cause-found" => Ok(()),
        _ => Err(Unfinished(told())),
    }
}

/// By breakpoints; those that are attached to are measured by jumps.
#[test]
fn slow_inserts_wait_for_the_disk() {
    for_all(|engine, opt| {
        if engine == "jump" && !tries_all() {
            return;
        }
        let program = program("sqlite_inserts", opt);
        let folder = folder_on_disk();
        let database = folder.path().join("test.db");
        let database = database.to_str().expect("text");
        let task = Task::new(engine, "sqlite3_step").options(&["--max-depth", "32"]);
        let measure = || task.run_until_answered(&program, &[database]);
        measured_and_judged(measure, |analysis| {
            assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
            judge(&analysis.report())
        });
    });
}

/// What was written and read is as without darc.
#[test]
fn what_is_in_the_database_is_as_ever() {
    for_all(|engine, opt| {
        let folder = folder_on_disk();
        let database = folder.path().join("test.db");
        let args = [database.to_str().expect("text"), "100"];
        let task = Task::new(engine, "sqlite3_step").options(&["--max-depth", "32"]);
        task.run_like_native(&program("sqlite_inserts", opt), &args);
    });
}

#[test]
fn a_working_database_is_attached_to() {
    for_all(|engine, opt| {
        if engine == "int3" && !tries_all() {
            return;
        }
        let measure = || {
            let folder = folder_on_disk();
            let database = folder.path().join("test.db");
            let target = Target::start("sqlite_inserts", opt, &[database.to_str().expect("text")]);
            // Rare peaks, of other work on the disk, are waited for, for two minutes where nobody says for how long.
            let analysis = Task::new(engine, "sqlite3_step")
                .options(&["--max-depth", "32", "-d", "12s"])
                .attach(target.pid());
            assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
            crate::untouched::check_released(target.pid());
            crate::untouched::check_text(target.pid());
            assert!(target.finish().status.success());
            let size = fs::metadata(&database).expect("the database").len();
            assert!(size > 0);
            analysis
        };
        measured_and_judged(measure, |analysis| judge(&analysis.report()));
    });
}
