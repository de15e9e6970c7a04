//! Programs as packages ship them: without symbols.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use darc_testprogs::{Opt, program};

use crate::harness::{darc, execute, not_tested};

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
        not_tested("strip does not run here; install binutils");
        return;
    }
    let mut demo = Command::new(&stripped);
    let finished = execute(demo.arg("demo").current_dir(folder.path()));
    assert_eq!(finished.code(), 0, "{finished:#?}");
    assert!(finished.stderr.contains("clock_nanosleep"), "{finished:#?}");
}

/// A stripped program has its names again where a debuginfod server knows it; nobody is asked if that is not wanted.
#[test]
fn names_are_fetched_from_debuginfod() {
    if Command::new("debuginfod-find")
        .arg("--version")
        .output()
        .is_err()
    {
        not_tested("debuginfod-find is not installed (Debian: apt install debuginfod)");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let Some((stripped, debug)) = split(&program("odd_jumps", Opt::O2), folder.path()) else {
        not_tested("objcopy does not run here; install binutils");
        return;
    };
    let server = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", server.local_addr().expect("bound"));
    thread::spawn(move || serve(&server, &fs::read(debug).expect("a debug file")));
    let run = |cache: &str, more: &[&str]| {
        let mut run = darc(&["run", "--f0", "op", "--decision-ops", "50"]);
        run.args(more).arg("--").arg(&stripped).arg("2000");
        run.current_dir(folder.path());
        run.env("DEBUGINFOD_URLS", &url);
        run.env("DEBUGINFOD_CACHE_PATH", folder.path().join(cache));
        execute(&mut run)
    };
    let unasked = run("unasked", &["--no-debuginfod"]);
    assert!(unasked.failure(4).contains("op"), "{unasked:#?}");
    assert!(!folder.path().join("unasked").exists());
    let fetched = run("asked", &[]);
    assert_eq!(fetched.code(), 0, "{fetched:#?}");
    assert!(fetched.stderr.contains("asking debuginfod"), "{fetched:#?}");
    let again = run("asked", &["--no-debuginfod"]);
    assert_eq!(again.code(), 0, "what was fetched stays: {again:#?}");
}

/// A copy of a program without symbols, and these as a debug file.
fn split(program: &Path, folder: &Path) -> Option<(PathBuf, PathBuf)> {
    let (stripped, debug) = (folder.join("stripped"), folder.join("debug"));
    let objcopy = |how: &str, to: &Path| {
        let status = Command::new("objcopy")
            .arg(how)
            .arg(program)
            .arg(to)
            .status();
        status.is_ok_and(|status| status.success())
    };
    let both = objcopy("--strip-all", &stripped) && objcopy("--only-keep-debug", &debug);
    both.then_some((stripped, debug))
}

/// Gives the file to whoever asks for debug information.
fn serve(server: &TcpListener, file: &[u8]) {
    for stream in server.incoming().flatten() {
        let _ = answer(stream, file);
    }
}

fn answer(mut stream: TcpStream, file: &[u8]) -> std::io::Result<()> {
    let lines = BufReader::new(stream.try_clone()?).lines();
    let lines: Result<Vec<_>, _> = lines
        .take_while(|line| line.as_ref().is_ok_and(|line| !line.is_empty()))
        .collect();
    let found = lines?
        .first()
        .is_some_and(|line| line.contains("/debuginfo"));
    let (status, body) = match found {
        true => ("200 OK", file),
        false => ("404 Not Found", &[][..]),
    };
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    )?;
    stream.write_all(body)
}
