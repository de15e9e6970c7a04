//! The program as packages ship it: without symbols.

use std::process::Command;

use crate::harness::execute;

#[test]
fn the_demo_works_without_symbols() {
    let folder = tempfile::tempdir().expect("a folder");
    let stripped = folder.path().join("darc");
    let strip = Command::new("strip")
        .args(["--strip-all", "-o"])
        .arg(&stripped)
        .arg(env!("CARGO_BIN_EXE_darc"))
        .status();
    if !strip.is_ok_and(|status| status.success()) {
        eprintln!("not tested: strip does not run here; install binutils");
        return;
    }
    let mut demo = Command::new(&stripped);
    let finished = execute(demo.arg("demo").current_dir(folder.path()));
    assert_eq!(finished.code(), 0, "{finished:#?}");
    assert!(finished.stderr.contains("clock_nanosleep"), "{finished:#?}");
}
