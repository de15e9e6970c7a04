//! Terminals: one for darc to draw on, and what a started program does there.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use darc_testprogs::{Opt, program};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{Winsize, openpty};
use serde_json::Value;

use crate::harness::{Target, engines, run_darc, wait_until, wait_until_seen};
use crate::untouched::check_text;

/// The other side of a terminal on which darc runs.
pub struct Screen {
    keys: File,
    seen: Arc<Mutex<Vec<u8>>>,
    /// The reader ends when this does.
    life: UnixStream,
    reader: JoinHandle<()>,
}

impl Screen {
    /// A terminal for darc, and this side of it.
    pub fn new() -> (Screen, OwnedFd) {
        let size = Winsize {
            ws_row: 40,
            ws_col: 120,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let pty = openpty(&size, None).expect("a terminal");
        // darc must not hold this side open.
        let close = FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC);
        fcntl(&pty.master, close).expect("an open descriptor");
        let keys = File::from(pty.master);
        let mut output = keys.try_clone().expect("a descriptor");
        let seen = Arc::<Mutex<Vec<u8>>>::default();
        let all = Arc::clone(&seen);
        let (life, ends) = UnixStream::pair().expect("two sockets");
        let reader = thread::spawn(move || {
            let mut bytes = [0; 4096];
            loop {
                let wanted = [output.as_fd(), ends.as_fd()];
                let mut fds = wanted.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
                let _ = poll(&mut fds, PollTimeout::NONE);
                if fds[1].any() == Some(true) {
                    return;
                }
                // It fails when darc's side is closed.
                let Ok(len @ 1..) = output.read(&mut bytes) else {
                    return;
                };
                let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                all.extend_from_slice(&bytes[..len]);
            }
        });
        let screen = Screen {
            keys,
            seen,
            life,
            reader,
        };
        (screen, pty.slave)
    }

    /// Hangs up.
    pub fn close(self) {
        drop((self.keys, self.life));
        self.reader.join().expect("it ends");
    }

    /// Types these keys; what was drawn before is forgotten.
    pub fn press(&mut self, keys: &str) {
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
        self.keys.write_all(keys.as_bytes()).expect("darc reads");
    }

    /// What was drawn since the last key.
    pub fn seen(&self) -> String {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&seen).into_owned()
    }

    /// Waits until all of these have been drawn since the last key. A terminal's cells are drawn where they
    /// change, so only texts that were not there before are certain to come in one piece.
    pub fn wait_for(&self, what: &str, texts: &[&str]) {
        let is_drawn = || {
            let seen = self.seen();
            texts.iter().all(|text| seen.contains(text))
        };
        wait_until_seen(what, is_drawn, || {
            format!("on the screen: {:?}\n", self.seen())
        });
    }
}

/// A question stays on the screen until it is answered: no line that is redrawn wipes it out.
#[test]
fn a_question_stays_on_the_screen() {
    let target = Target::start("two_peaks", Opt::O2, &[]);
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let (mut screen, terminal) = Screen::new();
    let copy = || terminal.try_clone().expect("a descriptor");
    // A question is only asked at the terminal that signals come from.
    let mut command = Command::new("setsid");
    command.args(["--ctty", env!("CARGO_BIN_EXE_darc"), "attach", "--ask"]);
    command.args(["--f0", "serve"]);
    command
        .args(["-p", &target.pid().to_string(), "-o"])
        .arg(folder.path().join("out.txt"))
        .stdin(copy())
        .stderr(copy())
        .env("TERM", "xterm-256color");
    let mut child = command.stdout(terminal).spawn().expect("darc starts");
    drop(command);
    screen.wait_for("the question", &["Which peak"]);
    // By then the lines of the progress would have been redrawn.
    let before = ops_so_far(target.pid());
    wait_until("more ops", || ops_so_far(target.pid()) > before + 1000);
    let seen = screen.seen();
    let (_, after) = seen.rsplit_once("[all] ").expect("the question");
    // A busy machine may be a reason to warn.
    assert!(!after.contains("ops"), "{seen:?}");
    // On a busy machine there may be one peak alone.
    screen.press("\n");
    screen.wait_for("the report", &["Next\u{1b}[0m"]);
    wait_until("the end", || child.try_wait().expect("our child").is_some());
    assert!(child.wait().expect("our child").success());
    check_text(target.pid());
    assert!(target.finish().status.success());
}

/// How many ops `darc status` says there were.
fn ops_so_far(pid: i32) -> u64 {
    let status = run_darc(&["status", "-p", &pid.to_string(), "--format", "json"]);
    let said: Value = serde_json::from_str(&status.stdout).unwrap_or_default();
    said["profile"]["ops"].as_u64().unwrap_or(0)
}

/// A shell with job control on a terminal of its own; `setsid --ctty` makes it the terminal's session leader.
fn shell() -> (Screen, std::process::Child) {
    let (screen, terminal) = Screen::new();
    let copy = || terminal.try_clone().expect("a descriptor");
    let mut command = Command::new("setsid");
    command.args(["--ctty", "sh", "-i"]);
    command.env("PS1", "").env("TERM", "dumb").env_remove("ENV");
    command.stdin(copy()).stderr(copy()).stdout(terminal);
    (screen, command.spawn().expect("setsid is there"))
}

/// ^Z stops the program and darc, `fg` lets them go on, ^D and ^C reach the program as without darc.
#[test]
fn a_started_program_has_the_terminal() {
    for engine in engines() {
        let folder = tempfile::tempdir().expect("a folder");
        let results = folder.path().join("out.txt");
        let line = format!(
            "{} run --engine {engine} --f0 serve --decision-ops 1000000000 -o {} -- {} wait\n",
            env!("CARGO_BIN_EXE_darc"),
            results.display(),
            program("two_peaks", Opt::O2).display()
        );
        let (mut screen, mut shell) = shell();
        screen.press(&line);
        screen.wait_for("the program", &["ready\r\n"]);
        screen.press("\x1a");
        screen.wait_for("the stop", &["topped"]);
        screen.press("fg\n");
        screen.wait_for("the program's going on", &["wait\r\n"]);
        screen.press("\x04");
        screen.wait_for("the program's end", &["checksum="]);
        screen.press("echo status=$?.\n");
        screen.wait_for("the shell", &["status=0."]);
        assert!(results.exists());
        std::fs::remove_file(&results).expect("ours");
        screen.press(&line);
        screen.wait_for("the program", &["ready\r\n"]);
        screen.press("\x03");
        screen.wait_for("the results of what was seen", &["Warnings"]);
        screen.press("echo status=$?.\n");
        screen.wait_for("the shell", &["status=130."]);
        assert!(results.exists());
        screen.press("exit\n");
        wait_until("the end of the shell", || {
            shell.try_wait().expect("our child").is_some()
        });
    }
}
