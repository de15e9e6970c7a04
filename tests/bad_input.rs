//! Input that makes no sense: one line that says what, why and what to do; an exit code of its own;
//! the target is left alone.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use darc_testprogs::{Opt, program};

use crate::harness::{
    Finished, Target, Task, copy_program, darc, engines, execute, run_darc, write_program,
};
use crate::untouched::ProcessState;

/// The panic message of Rust must never be seen.
fn no_panic(finished: &Finished) {
    assert!(!finished.stderr.contains("panicked"), "{finished:#?}");
    assert_ne!(finished.code(), 101, "{finished:#?}");
}

#[test]
fn command_lines_that_make_no_sense() {
    let lines: [&[&str]; 30] = [
        &["fly"],
        &["--fly"],
        &["run"],
        &["run", "--"],
        &["run", "--", ""],
        &["run", "--f0", "", "--", "/bin/true"],
        &["attach"],
        &["attach", "--f0", "main"],
        &["attach", "-p"],
        &["attach", "-p", ""],
        &["attach", "-p", "0"],
        &["attach", "-p", "-1"],
        &["attach", "-p", "99999999999"],
        &["attach", "-p", "1", "--", "/bin/true"],
        &["resume"],
        &["resume", "x", "-p", "1", "--", "/bin/true"],
        &["run", "--start-ops", "0", "--", "/bin/true"],
        &["run", "--decision-ops", "-3", "--", "/bin/true"],
        &["run", "--above", "99", "--", "/bin/true"],
        &["run", "--between", "5ms..1ms", "--", "/bin/true"],
        &["run", "--max-depth", "0", "--", "/bin/true"],
        &["run", "--resolution", "0", "--", "/bin/true"],
        &["run", "--peak", "0", "--", "/bin/true"],
        &["run", "--peak", "1", "--ask", "--", "/bin/true"],
        &["run", "--repeat", "0", "--", "/bin/true"],
        &["run", "-d", "0", "--", "/bin/true"],
        &["run", "-d", "-1", "--", "/bin/true"],
        &["run", "-d", "1e300h", "--", "/bin/true"],
        &["run", "-d", "1,5s", "--", "/bin/true"],
        &["run", "--engine", "magic", "--", "/bin/true"],
    ];
    for line in lines {
        let finished = run_darc(line);
        no_panic(&finished);
        let message = finished.failure(2);
        assert!(
            message.contains("; "),
            "says what to do: {line:?} {message}"
        );
        assert_eq!(finished.stdout, "", "{line:?}");
    }
}

#[test]
fn help_and_version() {
    for line in [
        &["--help"][..],
        &["--version"],
        &["run", "--help"],
        &["attach", "--help"],
        &["resume", "--help"],
    ] {
        let finished = run_darc(line);
        assert_eq!(finished.code(), 0, "{finished:#?}");
        assert_ne!(finished.stdout, "");
        assert_eq!(finished.stderr, "");
    }
}

#[test]
fn processes_that_cannot_be_analysed() {
    let refused = |pid: &str| {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = darc(&["attach", "--f0", "main", "-p", pid, "-o"]);
        let finished = execute(command.arg(folder.path().join("out.txt")));
        no_panic(&finished);
        finished.failure(3).to_owned()
    };
    // The largest id that the kernel can give is below this.
    let line = refused("2147483647");
    assert!(line.contains("no process 2147483647"), "{line}");

    let mut zombie = Command::new("/bin/true").spawn().expect("started");
    let pid = i32::try_from(zombie.id()).expect("an id");
    crate::harness::wait_until("its end", || {
        crate::untouched::process_state(pid) == Some('Z')
    });
    let line = refused(&pid.to_string());
    assert!(line.contains("already exited"), "{line}");
    zombie.wait().expect("ours");

    if let Some(kernel_thread) = a_kernel_thread() {
        let line = refused(&kernel_thread.to_string());
        assert!(line.contains("kernel thread"), "{line}");
    }
}

/// Some kernel thread, if this machine shows any (a container does not).
fn a_kernel_thread() -> Option<i32> {
    const PF_KTHREAD: u64 = 0x0020_0000;
    fs::read_dir("/proc").ok()?.find_map(|entry| {
        let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let flags: u64 = stat
            .rsplit_once(')')?
            .1
            .split_ascii_whitespace()
            .nth(6)?
            .parse()
            .ok()?;
        (flags & PF_KTHREAD != 0).then_some(pid)
    })
}

#[test]
fn darc_itself() {
    let script = "exec \"$0\" attach --f0 main -o /dev/null -p $$";
    let finished =
        execute(Command::new("/bin/sh").args(["-c", script, env!("CARGO_BIN_EXE_darc")]));
    let line = finished.failure(3);
    assert!(line.contains("darc itself"), "{line}");
}

/// An error for programs too, where stdout is darc's.
#[test]
fn an_error_as_json() {
    let finished = run_darc(&[
        "attach",
        "--f0",
        "main",
        "-p",
        "2147483647",
        "--format",
        "json",
        "-o",
        "/dev/null",
    ]);
    let object: serde_json::Value = serde_json::from_str(&finished.stdout).expect("JSON");
    assert_eq!(object["schema"], 1);
    assert_eq!(object["error"]["code"], 3);
    assert!(
        object["error"]["message"]
            .as_str()
            .is_some_and(|text| text.contains("2147483647"))
    );
}

/// Another user's process. Only root can become another user; others know that pid 1 is not theirs.
#[test]
fn a_process_of_another_user() {
    const NOBODY: u32 = 65534;
    if !nix::unistd::geteuid().is_root() {
        run_darc(&["attach", "--f0", "main", "-p", "1", "-o", "/dev/null"]).failure(3);
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("darc");
    copy_program(env!("CARGO_BIN_EXE_darc"), &copy);
    for path in [folder.path(), &copy] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("ours");
    }
    let target = Target::start("two_peaks", Opt::O2, &[]);
    let before = ProcessState::of(target.pid());
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&copy);
        command.args(arguments).current_dir("/");
        execute(command.uid(NOBODY).gid(NOBODY))
    };
    let pid = target.pid().to_string();
    let attach = ["attach", "--f0", "serve", "-o", "/dev/null", "-p", &pid];
    for arguments in [&attach[..], &["cleanup", "-p", &pid]] {
        let finished = run(arguments);
        let line = finished.failure(3);
        assert!(line.contains("uid 0") && line.contains("65534"), "{line}");
    }
    let tracing = fs::metadata("/sys/kernel/tracing/trace_clock");
    let folder = fs::metadata("/sys/kernel/tracing");
    let is_closed = folder.is_ok_and(|it| it.permissions().mode() & 1 == 0);
    if tracing.is_ok() && is_closed {
        // What is not seen there may be left there.
        let finished = run(&["cleanup"]);
        let line = finished.failure(1);
        assert!(line.contains("may not be looked into"), "{line}");
    }
    before.check_unchanged(target.pid());
}

/// f0 is refused with exit code 4, and the message has all of these words.
fn refused_f0(path: &Path, f0: &str, words: &[&str]) {
    for engine in engines() {
        let analysis = Task::new(engine, f0).run(path, &["100"]);
        no_panic(&analysis.darc);
        let line = analysis.darc.failure(4);
        for word in words {
            assert!(line.contains(word), "{f0}: {word} is missing: {line}");
        }
        assert_eq!(analysis.darc.stdout, "", "the program has not run");
    }
}

#[test]
fn names_that_fit_nothing_or_several() {
    for opt in Opt::ALL {
        let names = program("names", opt);
        refused_f0(&names, "serv", &["serve"]);
        refused_f0(&names, "SERVE", &["serve"]);
        refused_f0(
            &names,
            "no_such_function_anywhere",
            &["no_such_function_anywhere"],
        );
        refused_f0(&names, "area", &["area(int)", "area(double)"]);
        refused_f0(&names, "duplicate", &["names.cpp", "names_other.cpp"]);
        refused_f0(&names, "twice*", &["int", "long"]);
        refused_f0(&names, "only_inlined", &["inlined", "serve", "helper"]);
        refused_f0(&names, "counter_table", &["counter_table"]);
        refused_f0(&names, "names.cpp:99999", &["names.cpp"]);
        refused_f0(&names, "0x10", &["0x10"]);
    }
}

/// On top of the stack there is no return address, but the number of arguments.
#[test]
fn where_a_program_begins() {
    for (f0, why) in [
        ("two_peaks:_start", "not entered by a call"),
        ("ld-linux-x86-64.so.2:_start", "unwind table"),
    ] {
        for engine in engines() {
            let analysis = Task::new(engine, f0).run(&program("two_peaks", Opt::O2), &["100"]);
            no_panic(&analysis.darc);
            let line = analysis.darc.failure(3);
            assert!(line.contains(why), "{line}");
        }
    }
}

/// What keeps frames of its own is no target of probes: V8's built-in functions look at return addresses.
#[test]
fn functions_that_the_unwind_table_leaves_out() {
    for engine in engines() {
        let path = program("odd_entries", Opt::O2);
        let analysis = Task::new(engine, "undescribed").run(&path, &["100"]);
        let line = analysis.darc.failure(3);
        assert!(line.contains("unwind table"), "{line}");
    }
}

#[test]
fn a_function_with_an_escape_in_its_name() {
    let analysis =
        Task::new(engines()[0], "evil\x1b[2J\nname").run(&program("names", Opt::O2), &["100"]);
    let line = analysis.darc.failure(4);
    assert!(!line.contains('\x1b'), "{line:?}");
}

#[test]
fn all_forms_of_a_name() {
    let source = include_str!("../testprogs/cxx/names.cpp");
    let line = source
        .lines()
        .position(|line| line.contains("FUNCTION uint64_t area(int"))
        .expect("there")
        + 1;
    let by_line = format!("names.cpp:{line}");
    for opt in Opt::ALL {
        let path = program("names", opt);
        let nm = Command::new("nm")
            .arg(&path)
            .output()
            .expect("nm comes with the compiler");
        let symbols = String::from_utf8(nm.stdout).expect("text");
        let address = symbols
            .lines()
            .find_map(|line| line.strip_suffix(" T _Z4areai"))
            .expect("there");
        let by_address = format!("0x{address}");
        for f0 in [
            "area(int)",
            "_Z4areai",
            "names:area(int)",
            "area(i*",
            &by_address,
            &by_line,
        ] {
            let analysis = Task::new(engines()[0], f0).run_like_native(&path, &["200"]);
            assert_eq!(analysis.report().at("/f0/name"), "area(int)", "{f0}");
        }
        let inside = u64::from_str_radix(address.trim(), 16).expect("an address") + 1;
        let analysis = Task::new(engines()[0], &format!("{inside:#x}")).run(&path, &["200"]);
        let line = analysis.darc.failure(4);
        assert!(line.contains("inside of area(int)"), "{line}");
        let analysis =
            Task::new(engines()[0], "ns::Outer::inside").run_like_native(&path, &["200"]);
        assert_eq!(
            analysis.report().at("/f0/name"),
            "ns::Outer::inside(int) const"
        );
    }
}

#[test]
fn commands_that_cannot_be_started() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, content: &[u8], mode: u32| {
        let path = folder.path().join(name);
        write_program(content, &path);
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("ours");
        path
    };
    let mut arm = vec![0; 4096];
    arm[..20].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\xb7\0");
    let pipe = folder.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("ours");
    let commands = [
        pipe,
        folder.path().join("missing"),
        folder.path().to_owned(),
        file("empty", b"", 0o755),
        file("plain", b"just text\n", 0o755),
        file("not_executable", b"#!/bin/sh\n", 0o644),
        file("no_interpreter", b"#!/no/such/interpreter\n", 0o755),
        file("arm", &arm, 0o755),
        file("damaged", b"\x7fELF\x02\x01\x01", 0o755),
    ];
    for path in commands {
        let analysis = Task::new(engines()[0], "main").run(&path, &[]);
        no_panic(&analysis.darc);
        let line = analysis.darc.failure(3);
        assert!(
            line.contains(path.file_name().expect("a name").to_str().expect("text")),
            "{line}"
        );
        let interpreter = path.ends_with("no_interpreter");
        assert_eq!(line.contains("as interpreter"), interpreter, "{line}");
    }
    let line = Task::new(engines()[0], "main")
        .run(Path::new("no-such-command-in-path"), &[])
        .darc;
    line.failure(3);
}

/// A program that sudo has made root's by the way is called so; who is root already is told nothing.
#[test]
fn a_program_that_runs_as_root_by_the_way() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let results = folder.path().join("out.txt");
    let program = program("two_peaks", Opt::O2);
    let command = ["run", "--f0", "serve", "-o"].map(std::ffi::OsString::from);
    let command = command.into_iter().chain([results.into()]);
    let command = command.chain(["--".into(), program.into(), "1".into()]);
    let command: Vec<_> = command.collect();
    for (caller, told) in [("alice", true), ("root", false)] {
        let finished = execute(darc(&command).env("SUDO_USER", caller));
        assert_eq!(finished.code(), 0, "{finished:#?}");
        let says = finished.stderr.contains("runs as root");
        assert_eq!(says, told, "{finished:#?}");
    }
}

/// A 32-bit program, which would say that it runs: some instructions with a header in front.
#[test]
fn a_program_of_32_bits() {
    let base = 0x0804_8000_u32;
    let mut image = b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    for half in [2_u16, 3] {
        image.extend(half.to_le_bytes());
    }
    for word in [1, base + 0x54, 0x34, 0, 0] {
        image.extend(word.to_le_bytes());
    }
    for half in [0x34_u16, 0x20, 1, 0, 0, 0] {
        image.extend(half.to_le_bytes());
    }
    for word in [1, 0, base, base, 0x80, 0x80, 5, 0x1000] {
        image.extend(word.to_le_bytes());
    }
    // write(1, its first four bytes, 4), exit(7)
    image.extend(b"\xb8\x04\0\0\0\xbb\x01\0\0\0\xb9\0\x80\x04\x08\xba\x04\0\0\0\xcd\x80");
    image.extend(b"\xb8\x01\0\0\0\xbb\x07\0\0\0\xcd\x80");
    image.resize(0x80, 0);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("old");
    write_program(&image, &path);
    let analysis = Task::new(engines()[0], "0x8048054").run(&path, &[]);
    no_panic(&analysis.darc);
    let line = analysis.darc.failure(3);
    assert!(line.contains("32-bit"), "{line}");
    assert_eq!(analysis.darc.stdout, "", "it has not run");
    let profile = ["profile", "--syscalls", "--"].map(std::ffi::OsString::from);
    let profile = Vec::from_iter(profile.into_iter().chain([path.into()]));
    let refused = execute(&mut darc(&profile));
    no_panic(&refused);
    assert!(refused.failure(3).contains("32-bit"), "{refused:#?}");
    assert_eq!(refused.stdout, "", "it has not run");
}

/// Whether the results can be written is known before the target is touched.
#[test]
fn output_that_cannot_be_written() {
    let target = Target::start("two_peaks", Opt::O2, &[]);
    let before = ProcessState::of(target.pid());
    let folder = tempfile::tempdir().expect("a folder");
    for output in [
        folder.path().to_owned(),
        folder.path().join("missing/out.txt"),
        "/proc/no/such".into(),
        "".into(),
    ] {
        let mut command = darc(&[
            "attach",
            "--f0",
            "serve",
            "-p",
            &target.pid().to_string(),
            "-o",
        ]);
        let finished = execute(command.arg(&output));
        no_panic(&finished);
        assert!([2, 5].contains(&finished.code()), "{finished:#?}");
        finished.failure(finished.code());
        before.check_unchanged(target.pid());
        let mut command = darc(&["run", "--f0", "serve", "-o"]);
        let finished = execute(
            command
                .arg(&output)
                .arg("--")
                .arg(program("two_peaks", Opt::O2)),
        );
        assert_eq!(
            finished.stdout, "",
            "the program has not run: {finished:#?}"
        );
    }
}

/// The disk is full when the results are written: the report is shown all the same.
#[test]
fn a_full_disk() {
    let target = Target::start("two_peaks", Opt::O2, &[]);
    let before = ProcessState::of(target.pid());
    let pid = target.pid().to_string();
    let finished = run_darc(&["attach", "--f0", "serve", "-p", &pid, "-o", "/dev/full"]);
    assert_eq!(finished.code(), 5, "{finished:#?}");
    let title = "Latency of serve";
    assert!(finished.stdout.contains(title), "{finished:#?}");
    assert!(finished.stderr.contains("/dev/full"), "{finished:#?}");
    before.check_unchanged(target.pid());
}

/// A script runs by its interpreter.
#[test]
fn a_script() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("script");
    write_program("#!/bin/sh\necho from the script\nexit 5\n", &path);
    let mut command = darc(&["run", "--f0", "libc.so.6:malloc", "-o", "/dev/null", "--"]);
    let finished = execute(command.arg(&path).stdin(Stdio::null()));
    no_panic(&finished);
    assert_eq!(finished.stdout, "from the script\n", "{finished:#?}");
    assert_eq!(finished.code(), 5, "{finished:#?}");
}

/// What the Go linker writes is recognised; nothing of the program runs.
#[test]
fn a_go_program() {
    for engine in engines() {
        let analysis = Task::new(engine, "main").run(&program("go_like", Opt::O2), &[]);
        no_panic(&analysis.darc);
        let line = analysis.darc.failure(3);
        assert!(line.contains("Go"), "{line}");
    }
}

/// A process of the same user that protects itself, here because its file is not readable.
#[test]
fn a_protected_process() {
    const NOBODY: u32 = 65534;
    if !nix::unistd::geteuid().is_root() {
        eprintln!("left out: only root can start both as another user");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let [darc, target] = ["darc", "target"].map(|name| folder.path().join(name));
    copy_program(env!("CARGO_BIN_EXE_darc"), &darc);
    copy_program(program("two_peaks", Opt::O2), &target);
    for (path, mode) in [(folder.path(), 0o755), (&darc, 0o755), (&target, 0o711)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
    }
    let as_nobody = |path: &Path| {
        let mut command = Command::new(path);
        command.current_dir("/").uid(NOBODY).gid(NOBODY);
        command
    };
    let target = Target::start_command(as_nobody(&target).arg("wait"));
    let pid = target.pid().to_string();
    let mut command = as_nobody(&darc);
    command.args(["attach", "--f0", "serve", "-o", "/dev/null", "-p", &pid]);
    let finished = execute(&mut command);
    no_panic(&finished);
    let line = finished.failure(3);
    assert!(line.contains("not dumpable"), "{line}");
    assert!(target.finish().status.success());
}
