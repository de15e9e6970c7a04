//! `darc attach PID` and nothing else, on programs that others wrote, as their packages install them: it ends, names what the
//! process does, and leaves it as it was. What is not installed is not tested.

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

use tempfile::TempDir;

use crate::harness::{Running, darc, execute, wait_until};
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
        eprintln!(
            "not tested: {} is not installed (Debian: apt install {package})",
            candidates[0]
        );
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

/// Somebody who asks a server all the time.
struct Client {
    ends: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Client {
    /// Repeats this until it is dropped.
    fn start(mut ask: impl FnMut() + Send + 'static) -> Client {
        let ends = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ends);
        let thread = thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                ask();
            }
        });
        Client {
            ends,
            thread: Some(thread),
        }
    }

    /// Asks for a page again and again, by a connection each.
    fn of_pages(port: u16) -> Client {
        Client::start(move || {
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
        Client::start(move || {
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

fn open_folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let all = fs::Permissions::from_mode(0o777);
    fs::set_permissions(folder.path(), all).expect("our folder");
    folder
}

/// Attaches with the defaults. An answer names one of these functions, and the process is as it was.
fn attach(pid: i32, folder: &Path, names: &[&str]) {
    let results = folder.join("darc.txt");
    let mut attach = darc(&["attach", &pid.to_string(), "-d", LOOKS_FOR, "-o"]);
    let attached = execute(attach.arg(results));
    let is_named = names.iter().any(|name| attached.stdout.contains(name));
    match attached.code() {
        0 => assert!(is_named, "none of {names:?}: {attached:#?}"),
        // On a busy machine there may be no answer yet: it is said what there is.
        7 => assert!(attached.stdout.lines().count() > 1, "{attached:#?}"),
        code => panic!("{code}: {attached:#?}"),
    }
    assert!(Path::new(&format!("/proc/{pid}/maps")).exists(), "it ended");
    check_released(pid);
    check_text(pid);
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
    attach(server.running.pid(), server.folder.path(), &names);
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
    let server = Program::listening(port, &path, &args);
    let _client = Client::of_requests(port, b"set a 0 0 1\r\nx\r\nget a\r\n");
    let names = ["event_base_loop", "epoll_wait", "sendmsg"];
    attach(server.running.pid(), server.folder.path(), &names);
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
        "daemon off; worker_processes 1; pid {at}/pid; error_log {at}/error;\n\
         events {{}}\n\
         http {{ access_log off; server {{ listen 127.0.0.1:{port}; location / {{ return 200 hello; }} }} }}\n"
    );
    let file = folder.path().join("nginx.conf");
    fs::write(&file, settings).expect("our folder");
    let server = Program::start_in(folder, Command::new(path).arg("-c").arg(file));
    wait_until("a server that listens", || listens(port));
    let _client = Client::of_pages(port);
    let master = server.running.pid();
    let mut worker = None;
    wait_until("a worker", || {
        worker = children(master).first().copied();
        worker.is_some()
    });
    let names = ["ngx_", "epoll_wait", "[accept", "[writev]", "recv"];
    let worker = worker.expect("found");
    attach(worker, server.folder.path(), &names);
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
    assert!(listens(port));
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
        eprintln!("not tested: java does not run sources here (Debian: apt install default-jdk)");
        return;
    }
    let _client = Client::of_pages(port);
    let names = ["java", "epoll_", "futex", "pthread_", "accept", "poll"];
    attach(server.running.pid(), server.folder.path(), &names);
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
    let client = Client::start(move || {
        let _ = paths.write_all(line.as_bytes());
    });
    let pid = i32::try_from(hashing.id()).expect("a process id");
    let names = ["SHA1", "sha1", "hash", "git", "sub_"];
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
    let names = ["sub_", "malloc", "awk", "str"];
    attach(program.running.pid(), program.folder.path(), &names);
}

#[test]
fn postgres() {
    let folders =
        ["15", "16", "17", "18"].map(|version| format!("/usr/lib/postgresql/{version}/bin"));
    let Some(programs) = folders.iter().map(Path::new).find(|path| path.is_dir()) else {
        eprintln!("not tested: postgres is not installed (Debian: apt install postgresql)");
        return;
    };
    let nobody = nix::unistd::User::from_name("nobody").ok().flatten();
    let (true, Some(nobody)) = (nix::unistd::geteuid().is_root(), nobody) else {
        eprintln!("not tested: a server is started as nobody, by root");
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
            is_session() && ticks(pid) >= 10
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
