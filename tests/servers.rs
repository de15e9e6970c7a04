//! `darc attach PID` and nothing else, on programs that others wrote, as their packages install them: it ends, names what the
//! process does, and leaves it as it was. What is not installed is not tested.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{
    Finished, Running, copy_program, darc, execute, not_tested, run_darc, wait_until,
};
use crate::untouched::{check_released, check_text};

/// How long darc looks.
const LOOKS_FOR: &str = "5s";

/// The first of these programs that is installed; a line for who reads the log where none is.
fn installed(candidates: &[&str], package: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin")])
        .collect();
    let found = candidates.iter().find_map(|name| {
        let paths = folders.iter().map(|folder| folder.join(name));
        paths.into_iter().find(|path| path.is_file())
    });
    if found.is_none() {
        not_tested(format!(
            "{} is not installed (Debian: apt install {package})",
            candidates[0]
        ));
    }
    found
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("bound").port()
}

fn listens(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

/// Between two questions to a server: it would take a processor from other tests to ask without rest.
const PAUSE: Duration = Duration::from_micros(400);

/// Somebody who asks a server all the time.
struct Client {
    ends: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Client {
    /// Repeats this until it is dropped, with a pause in between.
    fn start(pause: Duration, mut ask: impl FnMut() + Send + 'static) -> Client {
        let ends = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ends);
        let thread = thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                ask();
                thread::sleep(pause);
            }
        });
        Client {
            ends,
            thread: Some(thread),
        }
    }

    /// Asks for a page again and again, by a connection each.
    fn of_pages(port: u16) -> Client {
        Client::start(PAUSE, move || {
            let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else {
                return;
            };
            let _ = stream.write_all(b"GET / HTTP/1.0\r\n\r\n");
            let _ = stream.read_to_end(&mut Vec::new());
        })
    }

    /// Sends a request on one connection again and again, and reads what comes.
    fn of_requests(port: u16, request: &'static [u8]) -> Client {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        let mut answer = vec![0; 1 << 16];
        Client::start(PAUSE, move || {
            let _ = stream.write_all(request);
            let _ = stream.read(&mut answer);
        })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A program in a folder of its own that anybody may use.
struct Program {
    folder: TempDir,
    running: Running,
}

impl Program {
    fn start(path: &Path, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Program {
        Program::start_in(open_folder(), Command::new(path).args(args))
    }

    fn start_in(folder: TempDir, command: &mut Command) -> Program {
        let running = Running::start(command.current_dir(folder.path()).stdin(Stdio::null()));
        Program { folder, running }
    }

    /// Starts it and waits until it listens.
    fn listening(port: u16, path: &Path, args: &[&str]) -> Program {
        let program = Program::start(path, args);
        wait_until("a server that listens", || listens(port));
        program
    }
}

impl Drop for Program {
    /// Workers outlive a master that is killed, and would keep the tests' output open.
    fn drop(&mut self) {
        let all = [self.running.pid()].into_iter();
        for pid in all.chain(children(self.running.pid())).collect::<Vec<_>>() {
            // It may have ended by itself.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

fn open_folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let all = fs::Permissions::from_mode(0o777);
    fs::set_permissions(folder.path(), all).expect("our folder");
    folder
}

/// Attaches with the defaults. An answer names a function that begins with one of these, and the process is as it was.
fn attach(pid: i32, folder: &Path, names: &[&str]) {
    attach_to(&[&pid.to_string()], pid, folder, names);
}

/// The same for a process that is named in another way.
fn attach_to(process: &[&str], pid: i32, folder: &Path, names: &[&str]) {
    let results = folder.join(format!("darc-{pid}.json"));
    let attached = attached(process, &results);
    match attached.code() {
        0 => check_names(&results, names, &attached),
        // On a busy machine there may be no answer yet: it is said what there is.
        7 => assert!(attached.stdout.lines().count() > 1, "{attached:#?}"),
        code => panic!("{code}: {attached:#?}"),
    }
    assert!(attached.stdout.contains("\nNext\n  darc "), "{attached:#?}");
    check_unharmed(pid);
}

fn attached(process: &[&str], results: &Path) -> Finished {
    let mut attach = darc(&["attach", "-d", LOOKS_FOR, "-o"]);
    execute(attach.arg(results).args(process))
}

fn check_unharmed(pid: i32) {
    assert!(Path::new(&format!("/proc/{pid}/maps")).exists(), "it ended");
    check_released(pid);
    check_text(pid);
}

/// Whether results name one of these functions; what stands in the program's command or file name counts for nothing.
fn check_names(results: &Path, names: &[&str], attached: &Finished) {
    let text = fs::read_to_string(results).expect("results");
    let results: Value = serde_json::from_str(&text).expect("JSON");
    let named = functions(&results);
    let is_one = |function: &String| names.iter().any(|name| function.starts_with(name));
    assert!(
        named.iter().any(is_one),
        "none of {names:?}: {named:#?}\n{attached:#?}"
    );
}

/// All functions that results say something of: those with a part of the time, and those on paths to causes.
fn functions(results: &Value) -> BTreeSet<String> {
    fn each<'a>(of: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
        of[name].as_array().into_iter().flatten()
    }
    let below = each(results, "focus");
    let peaks = below.chain([results]).flat_map(|one| each(one, "peaks"));
    let causes = peaks.flat_map(|peak| each(peak, "root_causes"));
    let parts = each(&results["time"], "parts");
    let paths = parts.chain(each(results, "focus")).chain(causes);
    let names = paths.flat_map(|one| each(one, "path"));
    let names = names.filter_map(Value::as_str);
    names.map(str::to_owned).collect()
}

/// A program under a name that no other process on this machine has.
fn renamed(program: &Path, folder: &Path, name: &str) -> PathBuf {
    // More characters are not in a process's name (proc_pid_comm(5)).
    let name = format!("{name}{}", std::process::id());
    let copy = folder.join(&name[..name.len().min(15)]);
    copy_program(program, &copy);
    copy
}

#[test]
fn redis() {
    let Some(path) = installed(&["redis-server"], "redis-server") else {
        return;
    };
    let port = free_port();
    let server = Program::listening(port, &path, &["--port", &port.to_string(), "--save", ""]);
    let _client = Client::of_requests(port, b"SET key value\r\nGET key\r\n");
    let names = ["aeMain", "aeProcessEvents", "processCommand", "epoll_wait"];
    // Its title ends with the port.
    let title = format!("*redis-server*:{port}*");
    let pid = server.running.pid();
    attach_to(&[&title], pid, server.folder.path(), &names);
    assert!(listens(port));
}

#[test]
fn memcached() {
    let Some(path) = installed(&["memcached"], "memcached") else {
        return;
    };
    let port = free_port();
    let listens_at = port.to_string();
    let args = ["-u", "nobody", "-l", "127.0.0.1", "-p", &listens_at];
    let folder = open_folder();
    let program = renamed(&path, folder.path(), "cached");
    let name = program.file_name().expect("it has one").to_owned();
    let server = Program::start_in(folder, Command::new(&program).args(args));
    wait_until("a server that listens", || listens(port));
    let _client = Client::of_requests(port, b"set a 0 0 1\r\nx\r\nget a\r\n");
    let names = ["event_base_loop", "epoll_wait", "sendmsg"];
    let name = name.to_str().expect("ours");
    let pid = server.running.pid();
    attach_to(&[name], pid, server.folder.path(), &names);
    assert!(listens(port));
}

#[test]
fn nginx() {
    let Some(path) = installed(&["nginx"], "nginx-light") else {
        return;
    };
    let (port, folder) = (free_port(), open_folder());
    let at = folder.path().display();
    let settings = format!(
        "daemon off; worker_processes 2; pid {at}/pid; error_log {at}/error;\n\
         events {{}}\n\
         http {{ access_log off; server {{ listen 127.0.0.1:{port} reuseport; location / {{ return 200 hello; }} }} }}\n"
    );
    let file = folder.path().join("nginx.conf");
    fs::write(&file, settings).expect("our folder");
    let program = renamed(&path, folder.path(), "pages");
    let name = program.file_name().expect("it has one").to_owned();
    let name = name.to_str().expect("ours").to_owned();
    let server = Program::start_in(folder, Command::new(program).arg("-c").arg(file));
    wait_until("a server that listens", || listens(port));
    let _client = Client::of_pages(port);
    let master = server.running.pid();
    wait_until("the workers", || children(master).len() == 2);
    let workers = children(master);
    let folder = server.folder.path();
    let names = ["ngx_", "epoll_wait", "accept", "writev", "recv"];
    attach(workers[0], folder, &names);
    // The master waits for signals: there is nothing that it does.
    let waits = attached(&[&master.to_string()], &folder.join("master.json"));
    assert_eq!(waits.code(), 7, "{waits:#?}");
    assert!(waits.stdout.contains("sigsuspend"), "{waits:#?}");
    // One name is theirs all.
    let several = attached(&[&name], &folder.join("several.json"));
    let said = several.failure(4);
    let all = [master, workers[0], workers[1]];
    assert!(
        all.iter().all(|pid| said.contains(&pid.to_string())),
        "{said}"
    );
    let both = attached(&["--all", &name], &folder.join("all.json"));
    assert!([0, 3, 7].contains(&both.code()), "{both:#?}");
    for pid in all {
        assert!(both.stdout.contains(&pid.to_string()), "{both:#?}");
        check_unharmed(pid);
    }
    let worked = |pid: &&i32| {
        let results = folder.join(format!("all-{pid}.json"));
        let text = fs::read_to_string(results).unwrap_or_default();
        let results = serde_json::from_str(&text).unwrap_or_default();
        functions(&results)
            .iter()
            .any(|it| it.starts_with("ngx_") || it == "epoll_wait")
    };
    assert!(workers.iter().any(|pid| worked(&pid)), "{both:#?}");
    assert!(listens(port));
}

/// The processes that this one has made.
fn children(pid: i32) -> Vec<i32> {
    let file = format!("/proc/{pid}/task/{pid}/children");
    let children = fs::read_to_string(file).unwrap_or_default();
    let ids = children.split_whitespace();
    ids.filter_map(|id| id.parse().ok()).collect()
}

#[test]
fn node() {
    let Some(path) = installed(&["node", "nodejs"], "nodejs") else {
        return;
    };
    let port = free_port();
    let script = format!(
        "require('http').createServer((q, s) => s.end('hello')).listen({port}, '127.0.0.1')"
    );
    let server = Program::listening(port, &path, &["-e", &script]);
    let _client = Client::of_pages(port);
    let names = ["uv_", "uv__", "node::", "v8::", "epoll_"];
    attach(server.running.pid(), server.folder.path(), &names);
    check_scripts(server.running.pid(), &["app.handle"], "--perf-basic-prof");
    assert!(listens(port));
}

/// Functions that are written in the language of a script are refused in a sentence that says what helps.
fn check_scripts(pid: i32, names: &[&str], helps: &str) {
    for name in names {
        let refused = run_darc(&["attach", &pid.to_string(), "-f", name]);
        assert!(refused.failure(4).contains(helps), "{name}: {refused:#?}");
    }
}

#[test]
fn python() {
    let Some(path) = installed(&["python3"], "python3") else {
        return;
    };
    let port = free_port();
    let at = port.to_string();
    let args = ["-m", "http.server", "--bind", "127.0.0.1", &at];
    let server = Program::listening(port, &path, &args);
    let _client = Client::of_pages(port);
    let names = ["Py", "py::", "poll", "accept", "clone"];
    attach(server.running.pid(), server.folder.path(), &names);
    let typed = [
        "server.handle",
        "py::handle:server.py",
        "python:handle",
        "server.py:7",
    ];
    check_scripts(server.running.pid(), &typed, "python -X perf");
    assert!(listens(port));
}

#[test]
fn java() {
    let Some(path) = installed(&["java"], "default-jdk-headless") else {
        return;
    };
    let (port, folder) = (free_port(), open_folder());
    let source = format!(
        "import com.sun.net.httpserver.*; import java.net.*;\n\
         public class Pages {{ public static void main(String[] a) throws Exception {{\n\
           HttpServer s = HttpServer.create(new InetSocketAddress(\"127.0.0.1\", {port}), 0);\n\
           s.createContext(\"/\", x -> {{ x.sendResponseHeaders(204, -1); x.close(); }});\n\
           s.start(); }} }}\n"
    );
    let file = folder.path().join("Pages.java");
    fs::write(&file, source).expect("our folder");
    // Without a compiler a source cannot be run.
    let mut command = Command::new(path);
    let mut server = Program::start_in(folder, command.arg(file));
    wait_until("a server that listens, or none", || {
        listens(port) || server.running.has_ended()
    });
    if server.running.has_ended() {
        not_tested("java does not run sources here (Debian: apt install default-jdk)");
        return;
    }
    let _client = Client::of_pages(port);
    let names = [
        "Java_",
        "JavaMain",
        "ThreadJavaMain",
        "epoll_",
        "futex",
        "pthread_",
        "accept",
        "poll",
        "thread_native_entry",
        "Thread::",
        "JavaThread::",
    ];
    attach(server.running.pid(), server.folder.path(), &names);
    check_scripts(server.running.pid(), &["Pages.main"], "Compiler.perfmap");
    assert!(listens(port));
}

#[test]
fn git() {
    let Some(path) = installed(&["git"], "git") else {
        return;
    };
    let folder = open_folder();
    let file = folder.path().join("file");
    fs::write(&file, vec![b'x'; 1 << 16]).expect("our folder");
    let mut command = Command::new(path);
    command.args(["hash-object", "--stdin-paths"]);
    let mut hashing = command
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("installed");
    let mut paths = hashing.stdin.take().expect("piped");
    let line = format!("{}\n", file.display());
    let client = Client::start(Duration::ZERO, move || {
        let _ = paths.write_all(line.as_bytes());
    });
    let pid = i32::try_from(hashing.id()).expect("a process id");
    let names = [
        "SHA1", "sha1", "git_", "hash_", "index_", "read", "xread", "git+0x",
    ];
    attach(pid, folder.path(), &names);
    // Its input ends with the client.
    drop(client);
    assert!(hashing.wait().expect("it is our child").success());
}

#[test]
fn busybox() {
    let Some(path) = installed(&["busybox"], "busybox-static") else {
        return;
    };
    let script = "BEGIN { while (1) { s = \"\"; for (i = 0; i < 100; i++) s = s i } }";
    let program = Program::start(&path, ["awk", script]);
    let (pid, folder) = (program.running.pid(), program.folder.path());
    let names = ["busybox+0x", "malloc", "str"];
    let attached = attached(&[&pid.to_string()], &folder.join("darc-f0.json"));
    if attached.code() != 4 {
        return attach(pid, folder, &names);
    }
    // Some builds have unwind tables for the C library alone. What is said then leads on.
    let advice = format!("darc sample -p {pid}");
    assert!(attached.stderr.contains(&advice), "{attached:#?}");
    let sampled = execute(&mut darc(&[
        "sample",
        "-d",
        "500ms",
        "-p",
        &pid.to_string(),
    ]));
    let mut words = sampled.stdout.split_whitespace();
    let f0 = words.find(|word| word.starts_with("busybox+0x"));
    let f0 = f0.unwrap_or_else(|| panic!("{sampled:#?}"));
    attach_to(&[&pid.to_string(), "--f0", f0], pid, folder, &names);
}

#[test]
fn postgres() {
    let folders =
        ["15", "16", "17", "18"].map(|version| format!("/usr/lib/postgresql/{version}/bin"));
    let Some(programs) = folders.iter().map(Path::new).find(|path| path.is_dir()) else {
        not_tested("postgres is not installed (Debian: apt install postgresql)");
        return;
    };
    let nobody = nix::unistd::User::from_name("nobody").ok().flatten();
    let (true, Some(nobody)) = (nix::unistd::geteuid().is_root(), nobody) else {
        not_tested("a server is started as nobody, by root");
        return;
    };
    let folder = open_folder();
    let as_nobody = |program: &str| {
        let mut command = Command::new("setpriv");
        let (uid, gid) = (nobody.uid.to_string(), nobody.gid.to_string());
        command.args(["--reuid", &uid, "--regid", &gid, "--clear-groups"]);
        command.arg(programs.join(program));
        command.env("PGHOST", folder.path()).env("PGUSER", "tester");
        command.current_dir(folder.path()).stdin(Stdio::null());
        command
    };
    let data = folder.path().join("data");
    fs::create_dir(&data).expect("our folder");
    chown(&data, Some(nobody.uid.as_raw()), Some(nobody.gid.as_raw())).expect("root may");
    let made = execute(
        as_nobody("initdb")
            .args(["-N", "-U", "tester", "-D"])
            .arg(&data),
    );
    assert_eq!(made.code(), 0, "{made:#?}");
    let mut command = as_nobody("postgres");
    command.arg("-D").arg(&data).arg("-k").arg(folder.path());
    command.args(["-c", "listen_addresses="]);
    let server = Running::start(&mut command);
    wait_until("a database", || {
        let asked = as_nobody("psql")
            .args(["-c", "select 1", "postgres"])
            .output();
        asked.is_ok_and(|asked| asked.status.success())
    });
    let tables = execute(as_nobody("pgbench").args(["-i", "-q", "postgres"]));
    assert_eq!(tables.code(), 0, "{tables:#?}");
    // The session that has made the tables is about to end.
    let before = children(server.pid());
    let load = Running::start(as_nobody("pgbench").args(["-T", "60", "-n", "postgres"]));
    let mut session = None;
    // One that has worked: pgbench asks by a first session how large its tables are.
    wait_until("a session that works", || {
        let children = children(server.pid());
        session = children.into_iter().find(|&pid| {
            let is_session = || {
                let title = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                String::from_utf8_lossy(&title).contains("tester")
            };
            !before.contains(&pid) && is_session() && ticks(pid) >= 10
        });
        session.is_some()
    });
    let names = [
        "PostgresMain",
        "exec_simple_query",
        "Commit",
        "fdatasync",
        "recv",
    ];
    attach(session.expect("found"), folder.path(), &names);
    drop(load);
    server.signal(nix::sys::signal::Signal::SIGINT);
    assert_eq!(server.finish().code(), 0);
}

/// How long a process has run, in ticks of 10 ms (proc_pid_stat(5), utime and stime).
fn ticks(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let fields = after_name.split_whitespace().skip(11).take(2);
    fields.filter_map(|field| field.parse::<u64>().ok()).sum()
}

#[test]
fn haproxy() {
    let Some(path) = installed(&["haproxy"], "haproxy") else {
        return;
    };
    let (port, folder) = (free_port(), open_folder());
    let settings = format!(
        "defaults\n mode http\n timeout client 9s\n timeout server 9s\n timeout connect 9s\n\
         frontend pages\n bind 127.0.0.1:{port}\n http-request return status 200 content-type text/plain string hello\n"
    );
    let file = folder.path().join("haproxy.cfg");
    fs::write(&file, settings).expect("our folder");
    let mut command = Command::new(path);
    let server = Program::start_in(folder, command.arg("-f").arg(file));
    wait_until("a server that listens", || listens(port));
    let _client = Client::of_pages(port);
    let names = [
        "run_poll_loop",
        "process_runnable_tasks",
        "run_tasks",
        "epoll_wait",
        "sub_",
        "haproxy+",
    ];
    attach(server.running.pid(), server.folder.path(), &names);
    assert!(listens(port));
}

#[test]
fn mosquitto() {
    let Some(path) = installed(&["mosquitto"], "mosquitto") else {
        return;
    };
    let port = free_port();
    let server = Program::listening(port, &path, &["-p", &port.to_string()]);
    // CONNECT as "a", then PINGREQ (MQTT 3.1.1, 3.1 and 3.12), one connection each.
    let asks = b"\x10\x0d\0\x04MQTT\x04\x02\0\x3c\0\x01a\xc0\0";
    let _client = Client::start(PAUSE, move || {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else {
            return;
        };
        let _ = stream.write_all(asks);
        let _ = stream.read(&mut [0; 4]);
    });
    let names = ["mosquitto_", "epoll_wait", "mux_", "mosquitto+"];
    attach(server.running.pid(), server.folder.path(), &names);
    assert!(listens(port));
}

/// A program that computes until it is ended.
fn computes(program: &[&str], package: &str, args: &[&str], names: &[&str]) {
    if let Some(path) = installed(program, package) {
        let running = Program::start(&path, args);
        let pid = running.running.pid();
        wait_until("some work", || ticks(pid) >= 10);
        attach(pid, running.folder.path(), names);
    }
}

#[test]
fn lua() {
    let script =
        "while true do local t = {} for i = 1, 100 do t[i] = tostring(i) end table.sort(t) end";
    computes(
        &["lua5.4"],
        "lua5.4",
        &["-e", script],
        &["lua", "str", "sort", "tostringbuff", "lua5.4+"],
    );
}

#[test]
fn ruby() {
    let script = "loop { (1..200).map { |i| i.to_s }.sort.join }";
    computes(
        &["ruby"],
        "ruby",
        &["-e", script],
        &["rb_", "ruby_", "vm_", "libruby"],
    );
}

#[test]
fn php() {
    let script =
        "while (true) { $a = range(1, 500); shuffle($a); sort($a); md5(implode(',', $a)); }";
    computes(
        &["php"],
        "php-cli",
        &["-r", script],
        &["zend_", "php_", "execute", "php8", "zif_", "sub_"],
    );
}

#[test]
fn gawk() {
    let script = "BEGIN { while (1) { s = \"\"; for (i = 0; i < 100; i++) s = s sprintf(\"%d\", i); split(s, a, 1) } }";
    computes(
        &["gawk"],
        "gawk",
        &[script],
        &["r_interpret", "format_tree", "do_", "gawk+", "printf", "re"],
    );
}

/// Compiles one of `tests/programs/`; says so where that is not possible here.
fn compiled(compiler: &mut Command, source: &str, folder: &Path) -> Option<PathBuf> {
    let program = folder.join("program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/programs")
        .join(source);
    let output = compiler.arg("-o").arg(&program).arg(&source).output();
    match output {
        Ok(output) if output.status.success() => Some(program),
        Ok(output) => {
            not_tested(format!(
                "{compiler:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            ));
            None
        }
        Err(error) => {
            not_tested(format!("{compiler:?}: {error}"));
            None
        }
    }
}

fn compiled_and_attached(compiler: &mut Command, source: &str, names: &[&str]) {
    let folder = open_folder();
    if let Some(path) = compiled(compiler, source, folder.path()) {
        let program = Program::start_in(folder, &mut Command::new(path));
        let pid = program.running.pid();
        wait_until("some work", || ticks(pid) >= 10);
        attach(pid, program.folder.path(), names);
    }
}

#[test]
fn a_thread_pool_in_cxx() {
    let mut compiler = Command::new("c++");
    compiler.args(["-O2", "-g", "-pthread"]);
    // What the closures call was named for each of them by the compiler.
    let names = ["build_index", "look_up", "(anonymous namespace)", "std::"];
    compiled_and_attached(&mut compiler, "thread_pool.cpp", &names);
}

#[test]
fn a_thread_pool_in_rust() {
    let mut compiler = Command::new("rustc");
    compiler.args(["-O", "-g", "--edition", "2024"]);
    let names = ["thread_pool::", "std::sync::mpmc", "<std::sys::sync::mutex"];
    compiled_and_attached(&mut compiler, "thread_pool.rs", &names);
}

#[test]
fn a_static_program_without_symbols() {
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-static", "-s"]);
    compiled_and_attached(&mut compiler, "no_symbols.c", &["program+0x"]);
}
