//! Results files that are none, or damaged: exit code 5, one line, no panic, nothing run.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use darc_testprogs::{Opt, program};
use tempfile::TempDir;

use crate::harness::{Finished, darc, engines, execute};

/// Results of a short analysis, in the text format.
fn results() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("out.txt");
    let mut command = darc(&["run", "--f0", "serve", "--engine", engines()[0], "-o"]);
    let finished = execute(
        command
            .arg(&file)
            .arg("--")
            .arg(program("two_peaks", Opt::O2))
            .arg("160"),
    );
    assert_eq!(finished.code(), 0, "{finished:#?}");
    (folder, file)
}

fn report(file: &Path) -> Finished {
    execute(darc(&["report"]).arg(file))
}

/// Both commands that read results refuse this file.
fn refused(file: &Path) {
    let output = file.with_extension("again");
    let resumed = execute(darc(&["resume"]).arg(file).arg("-o").arg(&output));
    for finished in [report(file), resumed] {
        assert!(!finished.stderr.contains("panicked"), "{finished:#?}");
        finished.failure(5);
        assert_eq!(
            finished.stdout, "",
            "nothing was run or shown: {finished:#?}"
        );
    }
}

#[test]
fn files_that_are_no_results() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    refused(&path("missing"));
    refused(folder.path());
    let files: [(&str, &[u8]); 6] = [
        ("empty", b""),
        ("text", b"something else\n"),
        ("json", b"{}"),
        ("deep", &[b'['; 100_000]),
        ("binary", b"\xff\xfe\0\x01"),
        ("other_schema", b"{\"schema\": 2}"),
    ];
    for (name, content) in files {
        fs::write(path(name), content).expect("written");
        refused(&path(name));
    }
    File::create(path("huge"))
        .and_then(|file| file.set_len(100 << 30))
        .expect("sparse");
    refused(&path("huge"));
    nix::unistd::mkfifo(&path("fifo"), nix::sys::stat::Mode::S_IRWXU).expect("made");
    refused(&path("fifo"));
    refused(Path::new("/dev/zero"));
}

/// Cut off, changed in one bit or made longer, a file is refused by `refused`.
fn damaged(file: &Path, refused: impl Fn(&Path)) {
    let whole = fs::read(file).expect("text");
    assert_eq!(report(file).code(), 0);
    let damaged = file.with_extension("damaged");
    let step = whole.len() / 25 + 1;
    for place in (0..whole.len()).step_by(step) {
        fs::write(&damaged, &whole[..place]).expect("written");
        refused(&damaged);
        let mut flipped = whole.clone();
        flipped[place] ^= 0x04;
        fs::write(&damaged, flipped).expect("written");
        refused(&damaged);
    }
    let mut longer = whole.clone();
    longer.extend(b"and more\n");
    fs::write(&damaged, longer).expect("written");
    refused(&damaged);
}

#[test]
fn damaged_results() {
    let (_folder, file) = results();
    damaged(&file, refused);
}

/// A set of profiles, damaged; and sets that cannot be compared.
#[test]
fn damaged_and_empty_sets_of_profiles() {
    let folder = tempfile::tempdir().expect("a folder");
    let measure = |name: &str, options: &[&str]| {
        let file = folder.path().join(name);
        let mut command = darc(&["profile", "-q", "-o"]);
        command.arg(&file).args(options).arg("--");
        let finished = execute(command.arg(program("two_peaks", Opt::O2)).arg("20"));
        assert_eq!(finished.code(), 0, "{finished:#?}");
        file
    };
    let compare = |one: &Path, other: &Path| execute(darc(&["compare"]).arg(one).arg(other));
    let set = measure("set.txt", &["lookup"]);
    damaged(&set, |file| {
        for finished in [report(file), compare(&set, file)] {
            assert!(!finished.stderr.contains("panicked"), "{finished:#?}");
            finished.failure(5);
            assert_eq!(finished.stdout, "", "{finished:#?}");
        }
    });
    let finer = measure("finer.txt", &["lookup", "--resolution", "2"]);
    let line = compare(&set, &finer);
    assert!(line.failure(5).contains("resolutions differ: 1 and 2"));
    // JSON has no checksum, but contradictions are seen.
    let json = measure("set.json", &["lookup", "--format", "json"]);
    let whole: serde_json::Value =
        serde_json::from_slice(&fs::read(&json).expect("text")).expect("JSON");
    for (place, value) in [
        ("/resolution", 0),
        ("/profiles/0/profile/buckets/0/ops", 7),
        ("/profiles/0/profile/buckets/0/bucket", 99_999),
        ("/profiles", 5),
    ] {
        let mut changed = whole.clone();
        *changed.pointer_mut(place).expect(place) = value.into();
        fs::write(&json, changed.to_string()).expect("written");
        report(&json).failure(5);
    }
    // Never called, so that there is nothing to compare, but something to show.
    let empty = measure("empty.txt", &["libc.so.6:qsort"]);
    let line = compare(&set, &empty);
    assert!(line.failure(5).contains("nothing to compare"), "{line:#?}");
    for format in ["text", "json", "svg", "html"] {
        let shown = execute(darc(&["report", "--format", format]).arg(&empty));
        assert_eq!(shown.code(), 0, "{shown:#?}");
    }
}
