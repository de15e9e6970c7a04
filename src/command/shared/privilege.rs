//! Programs that darc starts with more rights than the person has who asked for it.

use crate::options::{Invocation, ProfileTarget, ResumeTarget, SampleTarget};

/// What is said when darc starts a program as root for somebody whom sudo made root: a program that is only to be
/// measured would otherwise read and write root's files without a word.
#[must_use]
pub fn note(invocation: &Invocation) -> Option<String> {
    let starts_a_program = match invocation {
        Invocation::Run(_) => true,
        Invocation::Resume(options) => !matches!(options.target, ResumeTarget::Pid(_)),
        Invocation::Profile(options) => matches!(options.target, ProfileTarget::Command(_)),
        Invocation::Sample(options) => matches!(options.target, SampleTarget::Command(_)),
        _ => false,
    };
    let caller = std::env::var("SUDO_USER").or_else(|_| std::env::var("SUDO_UID"));
    match starts_a_program && nix::unistd::geteuid().is_root() {
        true => of_caller(caller.ok()?.as_str()),
        false => None,
    }
}

fn of_caller(caller: &str) -> Option<String> {
    let was_root = ["root", "0", ""].contains(&caller);
    (!was_root).then(|| {
        format!(
            "the program runs as root, since darc does; to measure it as {caller}, start it without sudo and give darc its process: sudo darc … -p PID"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_is_not_root_is_told() {
        assert!(of_caller("alice").is_some_and(|note| note.contains("as alice")));
        assert!(of_caller("1000").is_some());
        assert_eq!(of_caller("root"), None);
        assert_eq!(of_caller("0"), None);
    }
}
