//! What the sockets of a process are connected with, in words: from the kernel's tables of all sockets.
//!
//! The kernel goes through its whole hash for one of them, be it empty: 5 ms where that has 262,144 places. So they are read at once, for
//! all sockets that there are, and not soon again. Source: proc_pid_net(5).

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, ErrorKind, Read};
use std::time::{Duration, Instant};

use darc_tracer::effort::of_this_thread;
use darc_tracer::threads;

/// The tables, with the places of the inode's number in their lines. The path of a Unix socket may have line ends, and so make a line of
/// any other socket: it is the last one.
const TABLES: [(&str, &str, usize); 5] = [
    ("tcp", "TCP", 9),
    ("tcp6", "TCP", 9),
    ("udp", "UDP", 9),
    ("udp6", "UDP", 9),
    ("unix", "Unix", 6),
];
/// Of a longer table the beginning is read, in bytes.
const LONGEST_TABLE: u64 = 1 << 22;
/// So much of the processor's time is taken at once, and at most what the kernel takes for a part of a table beyond that.
const LONGEST_READING: Duration = Duration::from_millis(20);
/// Reading takes no more than one part in so many of the time.
const SELDOM: u32 = 20;

/// The sockets that there were when the tables were read last.
#[derive(Clone, Debug)]
pub struct Sockets {
    names: HashMap<u64, String>,
    /// Before that they are not read again.
    next: Option<Instant>,
    /// The processor's time for one reading.
    pub(super) longest: Duration,
}

impl Default for Sockets {
    fn default() -> Sockets {
        Sockets {
            names: HashMap::new(),
            next: None,
            longest: LONGEST_READING,
        }
    }
}

impl Sockets {
    /// A socket by the number of its inode, as it was when the tables were read last: one that was made since has no name of its own for
    /// a moment, and one that was connected since has that of before.
    pub fn name(&mut self, pid: i32, inode: u64) -> String {
        let began = Instant::now();
        if self.next.is_none_or(|next| began >= next) {
            match read(pid, of_this_thread() + self.longest) {
                Some((names, true)) => self.names = names,
                // What it did not come to is as it was.
                Some((names, false)) => self.names.extend(names),
                None => {}
            }
            let took = began.elapsed().max(Duration::from_millis(1));
            self.next = Some(began + SELDOM * took);
        }
        let known = self.names.get(&inode);
        known.map_or("a socket", String::as_str).to_owned()
    }
}

/// The names of all sockets, as far as they are read before this thread has used that much of the processor's time, and whether that is
/// all; nothing where a table cannot be opened.
fn read(pid: i32, until: Duration) -> Option<(HashMap<u64, String>, bool)> {
    let folder = threads::proc_folder(pid).join("net");
    let (mut names, mut found, mut is_whole) = (HashMap::new(), false, true);
    for (table, protocol, place) in TABLES {
        // A line of it may be made for a socket that was not come to.
        if protocol == "Unix" && !is_whole {
            break;
        }
        let file = match File::open(folder.join(table)) {
            Ok(file) => file,
            // A kernel without IPv6, for instance.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(_) => return None,
        };
        found = true;
        is_whole &= add(&mut names, file, (protocol, place), until);
    }
    found.then_some((names, is_whole))
}

/// Adds the sockets of a table that have no name yet. False where not all of it was read.
fn add(
    names: &mut HashMap<u64, String>,
    table: impl Read,
    (protocol, place): (&str, usize),
    until: Duration,
) -> bool {
    let mut table = BufReader::new(table.take(LONGEST_TABLE));
    let mut bytes = Vec::new();
    loop {
        if table.buffer().is_empty() && of_this_thread() >= until {
            return false;
        }
        bytes.clear();
        match table.read_until(b'\n', &mut bytes) {
            Ok(0) => return table.get_ref().limit() > 0,
            Ok(_) if bytes.ends_with(b"\n") => {}
            // A part of a number is another number.
            _ => return false,
        }
        // The heading has no number.
        if let Some((inode, name)) = entry(&String::from_utf8_lossy(&bytes), protocol, place) {
            names.entry(inode).or_insert(name);
        }
    }
}

/// A socket's inode and what it is.
fn entry(line: &str, protocol: &str, place: usize) -> Option<(u64, String)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    // Without a number it is nobody's: it is waited for what may come yet (TIME_WAIT).
    let inode = words.get(place)?.parse().ok().filter(|&inode| inode != 0)?;
    if protocol == "Unix" {
        return Some(match words.get(place + 1) {
            Some(path) => (inode, format!("Unix socket {path}")),
            None => (inode, "Unix socket".to_owned()),
        });
    }
    let port = |word: usize| words.get(word).copied().and_then(port);
    let name = match (port(1), port(2)) {
        (Some(local), Some(0)) => format!("{protocol} socket, port {local}"),
        (Some(local), Some(remote)) => {
            format!("{protocol} socket, port {local} to port {remote}")
        }
        _ => format!("{protocol} socket"),
    };
    Some((inode, name))
}

/// The port of an address such as `0100007F:1F90`.
fn port(address: &str) -> Option<u16> {
    u16::from_str_radix(address.rsplit(':').next()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_tables_are_read() {
        assert_eq!(port("00000000000000000000000001000000:0016"), Some(22));
        assert_eq!(port("rubbish"), None);
        let named = |line, protocol, place| entry(line, protocol, place);
        let line = "0: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000 1000 0 4711 1 0 20 4 30 10 -1";
        let connected = "TCP socket, port 8080 to port 50000".to_owned();
        assert_eq!(named(line, "TCP", 9), Some((4711, connected)));
        let line = line.replace("C350", "0000");
        let listens = "UDP socket, port 8080".to_owned();
        assert_eq!(named(&line, "UDP", 9), Some((4711, listens)));
        let line = "0000000000000000: 00000002 00000000 00010000 0001 01 4712 /run/a.sock";
        let path = "Unix socket /run/a.sock".to_owned();
        assert_eq!(named(line, "Unix", 6), Some((4712, path)));
        assert_eq!(named("0: 1 2", "TCP", 9), None);
        let waits = "0: 0100007F:1F90 0100007F:A2C4 06 0:0 3:1760 0 0 0 0";
        assert_eq!(named(waits, "TCP", 9), None);
    }

    /// A Unix socket's path may look like the line of any other socket, and a line may be cut.
    #[test]
    fn a_name_is_of_the_first_whole_line() {
        const TCP: &str = "heading\n0: 0100007F:1F90 0100007F:0000 0A 0:0 0:0 0 1000 0 4711 1\n";
        const UNIX: &str = "heading\n0: 2 0 10000 1 1 4712 /a\n0: 2 0 0 1 1 4711 /b\n";
        let mut names = HashMap::new();
        assert!(add(&mut names, TCP.as_bytes(), ("TCP", 9), Duration::MAX));
        assert!(add(&mut names, UNIX.as_bytes(), ("Unix", 6), Duration::MAX));
        assert_eq!(names[&4711], "TCP socket, port 8080");
        assert_eq!(names[&4712], "Unix socket /a");
        let mut names = HashMap::new();
        let cut = &TCP[..TCP.len() - "1 1\n".len()];
        assert!(!add(&mut names, cut.as_bytes(), ("TCP", 9), Duration::MAX));
        let late = Duration::ZERO;
        assert!(!add(&mut names, TCP.as_bytes(), ("TCP", 9), late));
        assert!(!add(
            &mut names,
            std::io::repeat(b' '),
            ("TCP", 9),
            Duration::MAX
        ));
        assert!(names.is_empty(), "{names:?}");
    }

    fn inode(socket: &impl std::os::fd::AsRawFd) -> u64 {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap();
        super::super::naming::socket_inode(&link).unwrap()
    }

    /// All sockets that there are are known by one reading; what came or was connected since, by the next one.
    #[test]
    fn the_tables_are_read_again_when_that_is_due() {
        use std::net::{TcpListener, TcpStream, UdpSocket};
        let own = std::process::id() as i32;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
        let from = datagrams.local_addr().unwrap().port();
        let (never, minute) = (u64::MAX, Duration::from_secs(60));
        let mut sockets = Sockets {
            longest: minute,
            ..Sockets::default()
        };
        assert_eq!(sockets.name(own, never), "a socket");
        let next = sockets.next.replace(Instant::now() + minute);
        assert!(next.is_some());
        datagrams.connect(("127.0.0.1", from)).unwrap();
        let later = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let to = format!(" to port {port}");
        assert!(sockets.name(own, inode(&stream)).ends_with(&to));
        let before = format!("UDP socket, port {from}");
        assert_eq!(sockets.name(own, inode(&datagrams)), before);
        assert_eq!(sockets.name(own, inode(&later)), "a socket");
        sockets.next = Some(Instant::now());
        let connected = format!("UDP socket, port {from} to port {from}");
        assert_eq!(sockets.name(own, inode(&datagrams)), connected);
        assert!(sockets.name(own, inode(&later)).ends_with(&to));
        // That process is not there: what is known stays.
        let due = Some(Instant::now());
        sockets.next = due;
        assert_eq!(sockets.name(i32::MAX, inode(&datagrams)), connected);
        assert!(sockets.next > due);
        // Nor is anything lost where there is no time for a reading.
        (sockets.longest, sockets.next) = (Duration::ZERO, due);
        assert_eq!(sockets.name(own, inode(&datagrams)), connected);
        assert!(sockets.next > due);
    }
}
