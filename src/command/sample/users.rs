//! The processes of one user: those that run, and those that come later.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;

use super::{Sampler, processes};
use crate::exit::{Failure, FailureKind};

/// The processes of a user.
pub(super) struct Users {
    uid: u32,
    /// Those that have been looked at; what they make is watched with them.
    watched: HashSet<i32>,
    /// Those that the last look found.
    found: HashSet<i32>,
    looks: Looks,
}

/// How often was looked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Looks {
    None,
    Some,
}

impl Users {
    /// Those of a user by name or number.
    pub(super) fn of(user: &str) -> Result<Users, Failure> {
        let by_number = user.parse::<u32>().ok();
        let by_name = || nix::unistd::User::from_name(user).ok().flatten();
        let uid = by_number.or_else(|| by_name().map(|user| user.uid.as_raw()));
        let unknown = || {
            let message = format!("user {user:?}: there is no such user; give a name or a number");
            Failure::message(FailureKind::Name, message)
        };
        Ok(Users {
            uid: uid.ok_or_else(unknown)?,
            watched: HashSet::new(),
            found: HashSet::new(),
            looks: Looks::None,
        })
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.watched.is_empty()
    }

    /// Watches processes of the user that nobody watched made.
    pub(super) fn add_new(&mut self, sampler: &mut Sampler) -> Result<(), Failure> {
        let own = std::process::id() as i32;
        let running = processes();
        let is_theirs = |pid: i32| {
            std::fs::metadata(format!("/proc/{pid}")).is_ok_and(|data| data.uid() == self.uid)
        };
        let new: Vec<i32> = running
            .iter()
            .copied()
            .filter(|&pid| pid != own && !self.watched.contains(&pid) && is_theirs(pid))
            .collect();
        self.watched.retain(|pid| running.contains(pid));
        let before = std::mem::replace(&mut self.found, new.iter().copied().collect());
        let first = std::mem::replace(&mut self.looks, Looks::Some) == Looks::None;
        for pid in new {
            // The record of who made it may still be on its way: the next look will tell.
            if !first && !before.contains(&pid) {
                continue;
            }
            self.watched.insert(pid);
            // One that a watched process made is watched with it.
            if sampler.recording.processes.knows_running(pid) {
                continue;
            }
            // One that has ended is left out.
            sampler.add_process(pid)?;
        }
        sampler.collector.enable();
        Ok(())
    }
}
