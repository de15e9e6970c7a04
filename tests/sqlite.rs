//! A real program's real work: SQLite inserting into a file database.

use std::cell::OnceCell;
use std::fs;

use darc_testprogs::program;
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use tempfile::TempDir;

use crate::harness::{Target, Task, Unfinished, Verdict, Wrong, for_all, measured, native};
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

/// The slow ops are the inserts, and what they wait for is the sync of the file.
fn judge(report: &Report) -> Verdict {
    let slowest = report
        .peaks()
        .iter()
        .max_by_key(|peak| peak["total"].as_u64());
    let causes = slowest.map(Report::causes).unwrap_or_default();
    let is_sync = |path: &[String]| {
        ["fsync", "fdatasync"]
            .iter()
            .any(|sync| is_path(path, &["sqlite3_step", "…", "unixSync", "…", sync]))
    };
    let is_right = |cause: &Cause| cause.kind == "syscall" && is_sync(&cause.path);
    match report.status() == "root-cause-found" {
        true if causes.iter().any(is_right) => Ok(()),
        true if causes.iter().any(|cause| cause.kind == "function") => {
            Err(Wrong(format!("{causes:#?} {:#}", report.0)))
        }
        _ => Err(Unfinished(format!("{causes:#?} {:#}", report.0))),
    }
}

/// Rows to insert: an answer takes some 2,000 of a slow disk, and more of a fast one, which has done with them sooner.
const ROWS: &str = "9000";

#[test]
fn slow_inserts_wait_for_the_disk() {
    let as_ever = OnceCell::new();
    for_all(|engine, opt| {
        let program = program("sqlite_inserts", opt);
        let folder = folder_on_disk();
        let database = folder.path().join("test.db");
        let arguments = [database.to_str().expect("text"), ROWS];
        let native = as_ever.get_or_init(|| native(&program, &arguments));
        measured(|| {
            let task = Task::new(engine, "sqlite3_step").options(&["--max-depth", "32"]);
            let analysis = task.run(&program, &arguments);
            assert_eq!(analysis.darc.stdout, native.stdout, "{analysis:#?}");
            assert_eq!(analysis.darc.code(), native.code(), "{analysis:#?}");
            judge(&analysis.report())
        })
    });
}

#[test]
fn a_working_database_is_attached_to() {
    for_all(|engine, opt| {
        measured(|| {
            let folder = folder_on_disk();
            let database = folder.path().join("test.db");
            let target = Target::start("sqlite_inserts", opt, &[database.to_str().expect("text")]);
            let analysis = Task::new(engine, "sqlite3_step")
                .options(&["--max-depth", "32"])
                .attach(target.pid());
            assert_eq!(analysis.darc.code(), 0, "{analysis:#?}");
            crate::untouched::check_released(target.pid());
            crate::untouched::check_text(target.pid());
            let judged = judge(&analysis.report());
            assert!(target.finish().status.success());
            let size = fs::metadata(&database).expect("the database").len();
            assert!(size > 0);
            judged
        })
    });
}
