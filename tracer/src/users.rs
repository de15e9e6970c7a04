//! Users, and doing something with no more rights than one of them has.
//!
//! Source: credentials(7), proc_pid_status(5), setfsuid(2), setgroups(2) ("C library/kernel differences": the system
//! call is about one thread).

use std::fmt;
use std::io;

use nix::unistd::{Gid, Uid, setfsgid, setfsuid};

use crate::proc::read_text;
use crate::sys;

/// A user, with groups, as one process has them.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct User {
    uid: u32,
    gid: u32,
    /// Beside that group.
    groups: Vec<u32>,
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "uid {}", self.uid)
    }
}

impl User {
    /// The user who has started a process; `None` when it is gone.
    #[must_use]
    pub fn of(pid: i32) -> Option<User> {
        let text = read_text(&format!("/proc/{pid}/status")).ok()?;
        let ids = |field: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(field))?;
            let ids = line.split_whitespace();
            ids.map(|id| id.parse().ok()).collect::<Option<Vec<u32>>>()
        };
        Some(User {
            uid: *ids("Uid:")?.first()?,
            gid: *ids("Gid:")?.first()?,
            groups: ids("Groups:")?,
        })
    }

    /// Does something to files with the rights of this user, in a thread made for that.
    ///
    /// # Errors
    /// When this process may not take on these rights, or there can be no further thread.
    pub fn acting<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        if nix::unistd::geteuid().as_raw() == self.uid && self.uid != 0 {
            return Ok(work());
        }
        std::thread::scope(|scope| {
            let act = || {
                self.become_in_this_thread()?;
                Ok(work())
            };
            let thread = std::thread::Builder::new()
                .name("user".to_owned())
                .spawn_scoped(scope, act)?;
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// For good. What root may do to any file goes with the user id (capabilities(7), "Effect of user ID changes").
    fn become_in_this_thread(&self) -> io::Result<()> {
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        sys::set_groups_of_thread(&self.groups)?;
        // They say which one there was before.
        setfsgid(gid);
        setfsuid(uid);
        match (setfsgid(gid), setfsuid(uid)) {
            (is_gid, is_uid) if (is_gid, is_uid) == (gid, uid) => Ok(()),
            _ => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn nobody() -> User {
        User {
            uid: 65534,
            gid: 65534,
            groups: Vec::new(),
        }
    }

    #[test]
    fn this_process_has_its_own_rights() {
        let own = User::of(std::process::id() as i32).unwrap();
        assert_eq!(own.uid, nix::unistd::getuid().as_raw());
        assert!(own.acting(|| File::open("/proc/self/exe").is_ok()).unwrap());
        assert_eq!(User::of(i32::MAX), None);
    }

    #[test]
    fn a_user_reads_no_more_than_a_user_may() {
        if !nix::unistd::geteuid().is_root() {
            return assert!(nobody().acting(|| ()).is_err());
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        let readable = || File::open(file.path()).is_ok();
        for (mode, may) in [(0o600, false), (0o040, false), (0o604, true)] {
            fs::set_permissions(file.path(), Permissions::from_mode(mode)).unwrap();
            assert_eq!(nobody().acting(readable).unwrap(), may, "{mode:o}");
            assert!(readable(), "other threads keep their rights");
        }
        let member = User {
            groups: vec![0],
            ..nobody()
        };
        fs::set_permissions(file.path(), Permissions::from_mode(0o040)).unwrap();
        assert!(member.acting(readable).unwrap());
    }
}
