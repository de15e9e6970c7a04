//! A real program's real work: SQLite inserting into a file database.

use std::cell::OnceCell;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use darc_testprogs::program;
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use tempfile::TempDir;

use crate::harness::{
    Target, Task, Unfinished, Verdict, Wrong, for_all, measured, native, the_one_that_measures,
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

/// How long the program runs by itself: an answer takes some seconds, of a disk of any speed.
const RUNS_FOR: Duration = Duration::from_secs(12);

/// As many rows as take that long here.
fn rows(program: &Path, database: &str) -> u64 {
    const TRIED: u64 = 2000;
    let began = Instant::now();
    native(program, &[database, &TRIED.to_string()]);
    let each = began.elapsed() / TRIED as u32;
    RUNS_FOR.as_micros() as u64 / (each.as_micros() as u64).max(1)
}

#[test]
fn slow_inserts_wait_for_the_disk() {
    let as_ever = OnceCell::new();
    for_all(|engine, opt| {
        let program = program("sqlite_inserts", opt);
        let folder = folder_on_disk();
        let database = folder.path().join("test.db");
        let database = database.to_str().expect("text");
        let (rows, native) = as_ever.get_or_init(|| {
            // Others that write to the disk would have the last word here.
            let _turn = the_one_that_measures();
            let rows = rows(&program, database).to_string();
            let native = native(&program, &[database, &rows]);
            (rows, native)
        });
        measured(|| {
            let task = Task::new(engine, "sqlite3_step").options(&["--max-depth", "32"]);
            let analysis = task.run(&program, &[database, rows]);
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
