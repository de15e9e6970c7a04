//! The claim on a process: one darc measures it at a time.
//!
//! The jump engine leaves no tracer attached that would tell a second darc of the first. A socket with a name in the
//! abstract namespace does, and is gone when its owner dies, however. Anybody may take such names, so no name stops
//! anybody: each darc has one of its own that says which process it is about, and a claim counts only if whoever made it may trace that
//! process. Who only looks at a process has such a name too, by which it can be asked.
//!
//! These names are known in one network namespace. Between others, and for the moments that no name can decide, what
//! the engine has in the process itself does ([`darc_tracer::engine::jump::clear_leftovers`]).
//! Source: unix(7), proc_net_unix(5).

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use darc_tracer::identity::{self, Identity};
use nix::errno::Errno;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, UnixCredentials, connect, getsockopt, socket,
};

/// What all names begin with.
const PREFIX: &str = "darc/";
/// For so long it is tried to learn who has a name of which too many others want something.
const PATIENCE: Duration = Duration::from_millis(200);
/// For so long it is looked which processes the names of all are about.
const SEARCH: Duration = Duration::from_secs(2);
/// So many names are looked at when all are asked for: anybody can take thousands.
const MOST_NAMES: usize = 4096;
/// So many are asked at a time; each is an open file of this process.
const MOST_ANSWERERS: usize = 256;
/// How often it is tried to be the first, when two darcs begin at the same moment.
const ATTEMPTS: u32 = 4;

/// Held as long as this darc measures the process, or looks at it.
#[derive(Debug)]
pub struct Claim {
    bound: UnixListener,
}

/// What came of claiming a process.
#[derive(Debug)]
pub enum Claimed {
    /// It is ours until the claim is dropped.
    Ours(Claim),
    /// Another darc has it: its process, where that can be told.
    Taken(Option<i32>),
}

/// What a darc does with a process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Purpose {
    /// One at a time.
    Measure,
    /// Others may do so at the same time, and measure it.
    Look,
}

impl Purpose {
    fn word(self) -> &'static str {
        match self {
            Purpose::Measure => "measure",
            Purpose::Look => "look",
        }
    }
}

impl Claim {
    /// Claims a process.
    ///
    /// # Errors
    /// When there is no such process, or no socket can be made.
    pub fn on(pid: i32) -> darc_tracer::Result<Claimed> {
        let process = Identity::of(pid)?;
        let trusted = Trusted::about(pid);
        let mut owner = None;
        for attempt in 1..=ATTEMPTS {
            // First the own name, then the look at the others: of two that begin at the same moment one sees the other.
            let (claim, own) = Claim::named(process, Purpose::Measure).map_err(os)?;
            let deadline = Instant::now() + PATIENCE;
            let others = names().map_err(os)?.into_iter();
            let others = others.filter(|name| {
                name.process == process && name.purpose == Purpose::Measure && name.text != own
            });
            let taken = others.filter_map(|name| name.connect(deadline).ok());
            match taken.map(|(_, peer)| peer).find(|peer| trusted.is(peer)) {
                None => return Ok(Claimed::Ours(claim)),
                Some(peer) => owner = Some(peer.pid()).filter(|&pid| pid > 0),
            }
            drop(claim);
            if attempt < ATTEMPTS {
                std::thread::sleep(Duration::from_millis(random() % 32));
            }
        }
        Ok(Claimed::Taken(owner))
    }

    /// Claims nothing, but can be asked about a process: others may measure it at the same time.
    ///
    /// # Errors
    /// When there is no such process, or no socket can be made.
    pub fn beside(pid: i32) -> darc_tracer::Result<Claim> {
        let named = Claim::named(Identity::of(pid)?, Purpose::Look);
        Ok(named.map_err(os)?.0)
    }

    fn named(process: Identity, purpose: Purpose) -> io::Result<(Claim, String)> {
        loop {
            let text = format!("{PREFIX}{}/{process}/{:016x}", purpose.word(), random());
            match UnixListener::bind_addr(&SocketAddr::from_abstract_name(&text)?) {
                Ok(bound) => {
                    bound.set_nonblocking(true)?;
                    return Ok((Claim { bound }, text));
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Somebody who wants to know where the analysis stands. Never waits.
    #[must_use]
    pub fn asked(&self) -> Option<UnixStream> {
        let (asker, _) = self.bound.accept().ok()?;
        asker.set_nonblocking(false).ok()?;
        Some(asker)
    }
}

fn os(source: io::Error) -> darc_tracer::Error {
    darc_tracer::Error::Os {
        operation: "claim the process",
        source,
    }
}

fn random() -> u64 {
    // The keys are random.
    RandomState::new().hash_one(())
}

/// Who may say something about a process: root, this user, and whoever may trace it.
#[derive(Clone, Copy, Debug)]
struct Trusted {
    own: u32,
    of_process: u32,
}

impl Trusted {
    /// What `/proc` shows of a process that protects itself belongs to root.
    fn about(pid: i32) -> Trusted {
        let entry = std::fs::metadata(format!("/proc/{pid}"));
        Trusted {
            own: nix::unistd::geteuid().as_raw(),
            of_process: entry.map_or(0, |entry| entry.uid()),
        }
    }

    fn is(self, peer: &UnixCredentials) -> bool {
        self.is_own(peer) || peer.uid() == self.of_process
    }

    /// Root or this user.
    fn is_own(self, peer: &UnixCredentials) -> bool {
        [0, self.own].contains(&peer.uid())
    }
}

/// A name that somebody has.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Name {
    text: String,
    purpose: Purpose,
    process: Identity,
}

impl Name {
    fn parse(text: &str) -> Option<Name> {
        let mut parts = text.strip_prefix(PREFIX)?.split('/');
        let word = parts.next()?;
        let purpose = [Purpose::Measure, Purpose::Look]
            .into_iter()
            .find(|purpose| purpose.word() == word)?;
        Some(Name {
            text: text.to_owned(),
            purpose,
            process: parts.next()?.parse().ok()?,
        })
    }

    /// A connection to whoever has the name, and who that is: the kernel says so, not they.
    ///
    /// Waits until the deadline when too many others wait to be heard, and for nothing else.
    fn connect(&self, deadline: Instant) -> io::Result<(UnixStream, UnixCredentials)> {
        let address = UnixAddr::new_abstract(self.text.as_bytes())?;
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        loop {
            let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
            match connect(socket.as_raw_fd(), &address) {
                Ok(()) => {
                    let stream = UnixStream::from(socket);
                    let peer = getsockopt(&stream, PeerCredentials)?;
                    return Ok((stream, peer));
                }
                Err(Errno::EAGAIN) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// The names in this network namespace, each once, in an order that nobody can choose.
fn names() -> io::Result<HashSet<Name>> {
    let list = std::fs::read("/proc/net/unix")?;
    let list = String::from_utf8_lossy(&list);
    let names = list
        .lines()
        .filter_map(|line| Name::parse(line.split_whitespace().nth(7)?.strip_prefix('@')?));
    // Each connection to a name is listed as well.
    Ok(names.collect())
}

/// A darc that can be asked.
#[derive(Debug)]
pub struct Answerer {
    /// The process that it measures or looks at, by its number here.
    pub pid: i32,
    /// Whoever reads it to the end has the answer.
    pub stream: UnixStream,
}

/// Who can be asked.
#[derive(Debug)]
pub struct Answerers {
    /// Root's and this user's own come first: a stranger may be all who measure the stranger's processes.
    pub heard: Vec<Answerer>,
    /// The processes with names that too many others want something of: who has such a name, and may have a say, is not known.
    pub unheard: BTreeSet<i32>,
}

/// Connections to those who measure a process or look at it; of every process where none is named. Those who have no say
/// about it are left out.
///
/// # Errors
/// When the list of names cannot be read, or there is no such process.
pub fn answerers(pid: Option<i32>) -> darc_tracer::Result<Answerers> {
    let wanted = pid.map(Identity::of).transpose()?;
    let names = names().map_err(os)?.into_iter();
    let names = names.filter(|name| wanted.is_none_or(|wanted| name.process == wanted));
    let names: Vec<Name> = names.take(MOST_NAMES).collect();
    let numbers: BTreeMap<Identity, i32> = match (wanted, pid) {
        (Some(process), Some(pid)) => BTreeMap::from([(process, pid)]),
        _ => {
            let processes = names.iter().map(|name| name.process).collect();
            identity::numbers_here(processes, Instant::now() + SEARCH)
        }
    };
    let deadline = Instant::now() + PATIENCE;
    let (mut own, mut others) = (Vec::new(), Vec::new());
    let mut unheard = BTreeSet::new();
    for name in names {
        let Some(&pid) = numbers.get(&name.process) else {
            continue;
        };
        let (stream, peer) = match name.connect(deadline) {
            Ok(connected) => connected,
            Err(error) => {
                if error.kind() == io::ErrorKind::WouldBlock {
                    unheard.insert(pid);
                }
                continue;
            }
        };
        let trusted = Trusted::about(pid);
        let (list, room) = match trusted.is_own(&peer) {
            true => (&mut own, MOST_ANSWERERS),
            false => (&mut others, MOST_ANSWERERS / 4),
        };
        if trusted.is(&peer) && list.len() < room {
            list.push(Answerer { pid, stream });
        }
    }
    own.append(&mut others);
    Ok(Answerers {
        heard: own,
        unheard,
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use nix::sys::socket::Backlog;

    use super::*;

    /// A process that may be claimed, by its number.
    struct Sleeper(Child);

    impl Sleeper {
        fn start() -> Sleeper {
            Sleeper(Command::new("sleep").arg("1000").spawn().unwrap())
        }

        fn pid(&self) -> i32 {
            self.0.id() as i32
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    fn is_listed(pid: i32) -> bool {
        let all = answerers(None).unwrap().heard;
        all.iter().any(|answerer| answerer.pid == pid)
    }

    #[test]
    fn a_process_is_claimed_once_at_a_time() {
        let process = Sleeper::start();
        let pid = process.pid();
        let first = Claim::on(pid).unwrap();
        let Claimed::Ours(claim) = &first else {
            panic!("{first:?}")
        };
        // Tests beside this one ask every claim.
        assert!(is_listed(pid));
        let asked = answerers(Some(pid)).unwrap();
        assert_eq!((asked.heard.len(), asked.unheard.len()), (1, 0));
        while claim.asked().is_some() {}
        let me = std::process::id() as i32;
        let second = Claim::on(pid).unwrap();
        assert!(
            matches!(second, Claimed::Taken(Some(owner)) if owner == me),
            "{second:?}"
        );
        let other = Sleeper::start();
        assert!(matches!(Claim::on(other.pid()).unwrap(), Claimed::Ours(_)));
        drop(first);
        assert!(matches!(Claim::on(pid).unwrap(), Claimed::Ours(_)));
        assert!(!is_listed(pid));
    }

    #[test]
    fn who_only_looks_can_be_asked_and_is_in_nobodys_way() {
        let process = Sleeper::start();
        let pid = process.pid();
        let beside = Claim::beside(pid).unwrap();
        let another = Claim::beside(pid).unwrap();
        assert!(is_listed(pid));
        let askers = answerers(Some(pid)).unwrap().heard;
        assert_eq!(askers.len(), 2);
        let asked = beside.asked().is_some() && another.asked().is_some();
        assert!(asked);
        let Claimed::Ours(claim) = Claim::on(pid).unwrap() else {
            panic!("it is in the way");
        };
        let askers = answerers(Some(pid)).unwrap().heard;
        assert_eq!((askers.len(), claim.asked().is_some()), (3, true));
    }

    /// Others have filled its list of those who wait to be heard.
    #[test]
    fn who_cannot_be_heard_is_told() {
        let process = Sleeper::start();
        let pid = process.pid();
        let claim = Claim::beside(pid).unwrap();
        nix::sys::socket::listen(&claim.bound, Backlog::new(1).unwrap()).unwrap();
        let identity = Identity::of(pid).unwrap();
        let name = names().unwrap().into_iter();
        let name = name.into_iter().find(|name| name.process == identity);
        let (name, now) = (name.unwrap(), Instant::now());
        let others: Vec<_> = std::iter::from_fn(|| name.connect(now).ok()).collect();
        let asked = answerers(Some(pid)).unwrap();
        assert_eq!((asked.heard.len(), asked.unheard), (0, [pid].into()));
        assert!(!others.is_empty());
        nix::sys::socket::listen(&claim.bound, Backlog::new(100).unwrap()).unwrap();
        while claim.asked().is_some() {}
        assert_eq!(answerers(Some(pid)).unwrap().heard.len(), 1);
    }

    #[test]
    fn a_process_that_is_gone_cannot_be_claimed() {
        let mut child = Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        child.wait().unwrap();
        assert!(Claim::on(pid).unwrap_err().is_gone());
        assert!(answerers(Some(pid)).unwrap_err().is_gone());
    }

    #[test]
    fn of_two_that_begin_together_one_has_it() {
        let process = Sleeper::start();
        let pid = process.pid();
        for _ in 0..20 {
            let claims: Vec<Claimed> = std::thread::scope(|scope| {
                let both = [(); 2].map(|()| scope.spawn(|| Claim::on(pid).unwrap()));
                both.into_iter()
                    .map(|claim| claim.join().unwrap())
                    .collect()
            });
            let ours = claims
                .iter()
                .filter(|claimed| matches!(claimed, Claimed::Ours(_)));
            assert!(ours.count() <= 1, "{claims:?}");
        }
    }

    #[test]
    fn a_name_says_who_is_measured() {
        let process = Sleeper::start();
        let identity = Identity::of(process.pid()).unwrap();
        let name = Name::parse(&format!("darc/look/{identity}/0")).unwrap();
        assert_eq!((name.process, name.purpose), (identity, Purpose::Look));
        for other in [
            "darc.7",
            "darc/measure",
            "darc/measure/7/0",
            "darc/watch/1-2-3/0",
        ] {
            assert_eq!(Name::parse(other), None, "{other}");
        }
    }
}
