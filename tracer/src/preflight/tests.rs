//! Each reason against a process, by facts as the kernel states them, and some by real processes.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use darc_testprogs::{Opt, program};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use super::facts::{Status, machine};
use super::*;

const USER: u32 = 1000;

/// An ordinary process of an ordinary user.
fn ordinary() -> Facts {
    Facts {
        asked: 50,
        pid: 50,
        comm: "served".into(),
        kernel_thread: false,
        living_threads: 3,
        leader_exited: false,
        stopped: false,
        tracer: None,
        uids: [USER; 3],
        gids: [USER; 3],
        permitted: 0,
        dumpable: true,
        seccomp: Seccomp::Filter,
        shadow_stack: false,
        other_user_namespace: false,
        executable: Ok(Executable::X86_64),
    }
}

/// darc, run by the same user.
fn user() -> Viewer {
    Viewer {
        pid: 10,
        uid: USER,
        gid: USER,
        effective: 0,
        permitted: 0,
        seccomp: Seccomp::Unrestricted,
        yama: Some(0),
    }
}

fn root() -> Viewer {
    Viewer {
        uid: 0,
        gid: 0,
        effective: u64::MAX,
        permitted: u64::MAX,
        ..user()
    }
}

#[test]
fn nothing_speaks_against_an_ordinary_process() {
    let expected = Preflight {
        pid: 50,
        threads: 3,
        seccomp: Seccomp::Filter,
        notes: vec![],
    };
    assert_eq!(judge(&ordinary(), &user()).unwrap(), expected);
    assert_eq!(judge(&ordinary(), &root()).unwrap(), expected);
}

#[test]
fn each_reason_has_its_own_line() {
    type Change = fn(&mut Facts, &mut Viewer);
    let cases: [(Change, &str); 19] = [
        (|facts, _| facts.pid = 10, "is darc itself"),
        (|facts, _| facts.kernel_thread = true, "kernel thread"),
        (|facts, _| facts.living_threads = 0, "has already exited"),
        (
            |facts, _| {
                facts.tracer = Some(Tracer {
                    pid: 7,
                    comm: "gdb".into(),
                })
            },
            "already traced by process 7 (gdb)",
        ),
        (
            |facts, _| facts.uids = [0; 3],
            "owned by uid 0, darc runs as uid 1000",
        ),
        (|facts, _| facts.uids = [USER, 0, 0], "owned by uid 0"),
        (|facts, _| facts.gids = [USER, 5, 5], "runs with gid 5"),
        (|_, viewer| viewer.uid = 0, "uid 0 lacks CAP_SYS_PTRACE"),
        (|facts, _| facts.dumpable = false, "not dumpable"),
        (
            |facts, _| facts.permitted = 0x400,
            "capabilities that darc lacks (0x400)",
        ),
        (|_, viewer| viewer.yama = Some(2), "ptrace_scope is 2"),
        (|_, viewer| viewer.yama = Some(3), "ptrace_scope is 3"),
        (
            |facts, _| facts.executable = Ok(Executable::Unsupported(Unsupported::I386)),
            "32-bit",
        ),
        (
            |facts, _| facts.executable = Ok(Executable::Unsupported(Unsupported::X32)),
            "x32",
        ),
        (
            |facts, _| facts.executable = Ok(Executable::Unsupported(Unsupported::Other(183))),
            "ELF machine 183",
        ),
        (
            |facts, _| facts.executable = Err(io::Error::from_raw_os_error(13)),
            "may not be traced",
        ),
        (
            |facts, _| facts.executable = Err(io::Error::from_raw_os_error(5)),
            "/proc/50/exe (Input/output error",
        ),
        // Its memory is gone.
        (
            |facts, _| facts.executable = Err(io::Error::from_raw_os_error(2)),
            "has already exited",
        ),
        (|facts, _| facts.shadow_stack = true, "shadow stack"),
    ];
    for (change, expected) in cases {
        let (mut facts, mut viewer) = (ordinary(), user());
        change(&mut facts, &mut viewer);
        let line = judge(&facts, &viewer).unwrap_err().to_string();
        assert!(line.contains(expected), "{line}");
        assert!(
            line.contains("; ") && !line.contains('\n'),
            "says what to do, on one line: {line}"
        );
    }
}

#[test]
fn the_capability_overrules_users_but_not_yamas_last_word() {
    let foreign = Facts {
        uids: [5; 3],
        gids: [5; 3],
        dumpable: false,
        permitted: 1,
        ..ordinary()
    };
    assert!(judge(&foreign, &root()).is_ok());
    assert!(
        judge(
            &foreign,
            &Viewer {
                yama: Some(2),
                ..root()
            }
        )
        .is_ok()
    );
    assert!(matches!(
        judge(
            &foreign,
            &Viewer {
                yama: Some(3),
                ..root()
            }
        ),
        Err(Refusal::YamaNobody { .. })
    ));
    // Yama's 1 makes exceptions that cannot be seen (PR_SET_PTRACER): the attach decides.
    let yama = Viewer {
        yama: Some(1),
        ..user()
    };
    assert!(judge(&ordinary(), &yama).is_ok());
    assert!(hidden_reason(&ordinary(), &yama).contains("ptrace_scope is 1"));
}

#[test]
fn notes_say_what_is_unusual() {
    let facts = Facts {
        asked: 52,
        leader_exited: true,
        stopped: true,
        ..ordinary()
    };
    let notes = judge(&facts, &user()).unwrap().notes;
    let expected = [
        Note::ThreadOf { tid: 52, pid: 50 },
        Note::LeaderExited { pid: 50 },
        Note::Stopped { pid: 50 },
    ];
    assert_eq!(notes, expected);
    assert_eq!(
        notes[0].to_string(),
        "52 is a thread of process 50; the whole process is analysed"
    );
}

#[test]
fn status_fields_are_found_and_missing_ones_are_harmless() {
    let text = "Name:\ta\\nUid:\\t0\nUid:\t1\t2\t3\t4\nCapPrm:\t00000000000000ff\nSeccomp:\t2\nTracerPid:\t0\n";
    let status = Status(text.to_owned());
    assert_eq!(status.ids("Uid"), [1, 2, 3]);
    assert_eq!(status.ids("Gid"), [u32::MAX; 3]);
    assert_eq!((status.mask("CapPrm"), status.mask("CapEff")), (0xff, 0));
    assert_eq!(
        (status.seccomp(), status.number("TracerPid")),
        (Seccomp::Filter, Some(0))
    );
    assert_eq!(status.number("Tgid"), None);
}

#[test]
fn the_machine_is_in_the_first_20_bytes() {
    let header = |class: u8, machine: u16| {
        let mut header = [0; 20];
        header[..5].copy_from_slice(&[0x7f, b'E', b'L', b'F', class]);
        header[18..].copy_from_slice(&machine.to_le_bytes());
        header
    };
    assert_eq!(machine(&header(2, 62)), Some(Executable::X86_64));
    assert_eq!(
        machine(&header(1, 62)),
        Some(Executable::Unsupported(Unsupported::X32))
    );
    assert_eq!(
        machine(&header(1, 3)),
        Some(Executable::Unsupported(Unsupported::I386))
    );
    assert_eq!(
        machine(&header(2, 183)),
        Some(Executable::Unsupported(Unsupported::Other(183)))
    );
    assert_eq!(machine(b"#!/bin/sh\n0123456789"), None);
}

/// A child that waits until its stdin is closed; killed and reaped at the end of the test.
struct Waiting(Child);

impl Waiting {
    fn start() -> Self {
        let child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Waiting(child)
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).unwrap()
    }

    fn wait_for(&self, flags: WaitPidFlag) {
        waitid(
            Id::Pid(Pid::from_raw(self.pid())),
            flags | WaitPidFlag::WNOWAIT,
        )
        .unwrap();
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_is_no_process_is_refused() {
    assert!(matches!(check(0), Err(Refusal::NotAPid(0))));
    assert!(matches!(check(-1), Err(Refusal::NotAPid(-1))));
    assert!(matches!(
        check(i32::MAX),
        Err(Refusal::NoSuchProcess(i32::MAX))
    ));
    let own = i32::try_from(std::process::id()).unwrap();
    assert!(matches!(check(own), Err(Refusal::Itself(_))));
    // The test runs on a thread of its own.
    let tid = nix::unistd::gettid().as_raw();
    assert!(matches!(check(tid), Err(Refusal::Itself(pid)) if pid == own));
}

#[test]
fn a_child_passes_while_it_lives() {
    let child = Waiting::start();
    let preflight = check(child.pid()).unwrap();
    assert_eq!(
        (preflight.pid, preflight.threads, preflight.notes),
        (child.pid(), 1, vec![])
    );

    kill(Pid::from_raw(child.pid()), Signal::SIGSTOP).unwrap();
    child.wait_for(WaitPidFlag::WSTOPPED);
    assert_eq!(
        check(child.pid()).unwrap().notes,
        [Note::Stopped { pid: child.pid() }]
    );

    kill(Pid::from_raw(child.pid()), Signal::SIGKILL).unwrap();
    child.wait_for(WaitPidFlag::WEXITED);
    assert!(matches!(check(child.pid()), Err(Refusal::Exited { .. })));
    let line = explain_eperm(child.pid());
    assert!(line.contains("has already exited"), "{line}");
}

/// A first thread that ends while it is looked at takes what is known of the program with it, and the others run on.
#[test]
fn the_program_is_known_by_threads_that_live() {
    let mut target = Command::new(program("dead_leader", Opt::O2));
    let piped = target
        .arg("wait")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut target = piped.spawn().unwrap();
    let mut ready = String::new();
    let stdout = target.stdout.as_mut().unwrap();
    BufReader::new(stdout).read_line(&mut ready).unwrap();
    assert_eq!(ready, "ready\n");
    let pid = target.id() as i32;
    let found = facts::executable_of(pid, &format!("/proc/{pid}"));
    target.kill().unwrap();
    target.wait().unwrap();
    assert_eq!(found.unwrap(), Executable::X86_64);
}

/// Any thread may trace, as those of darc do; what is named is the process.
#[test]
fn the_process_of_a_tracing_thread_is_named() {
    let thread = std::thread::Builder::new().name("traces".to_owned());
    let traces = thread.spawn(|| Tracer::of_thread(nix::unistd::gettid().as_raw()));
    let tracer = traces.expect("a thread").join().expect("it only looks");
    assert_eq!(tracer.pid, nix::unistd::getpid().as_raw());
    assert_ne!(tracer.comm, "traces");
}

#[test]
fn what_is_no_program_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for path in [&*pipe, folder.path(), std::path::Path::new("/dev/null")] {
        assert!(facts::executable(path).is_err(), "{path:?}");
        assert_eq!(unsupported_file(path), None, "{path:?}");
    }
}
