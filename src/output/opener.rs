//! Shows a page in the person's browser: xdg-open(1), by itself, as the person and never as root.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::unistd::{Uid, User};

/// What opens a page for whoever sits there.
const OPENER: &str = "xdg-open";
/// Where the screen and its session are, by the names that X11, Wayland and D-Bus give it.
const SCREEN: [&str; 6] = [
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "XDG_CURRENT_DESKTOP",
    "LANG",
    "PATH",
];

/// Has a page opened; it stays open when darc ends.
///
/// # Errors
/// Why nobody opens it, for people.
pub fn open(page: &Path) -> Result<(), String> {
    let page = page
        .canonicalize()
        .map_err(|error| format!("cannot be found again: {error}"))?;
    let has = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if !has("DISPLAY") && !has("WAYLAND_DISPLAY") {
        return Err("there is no screen here".to_owned());
    }
    let opener = found().ok_or_else(|| format!("{OPENER} is not installed"))?;
    let mut command = Command::new(opener);
    command.arg(page);
    if Uid::effective().is_root() {
        let person = invoking().ok_or("root opens no browser")?;
        as_person(&mut command, &person);
    }
    // In a group of its own: Ctrl-C is not meant for it.
    command.process_group(0).current_dir("/");
    let quiet = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let started: io::Result<_> = quiet.spawn();
    started
        .map(drop)
        .map_err(|error| format!("{OPENER} cannot be started: {error}"))
}

fn found() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let places = std::env::split_paths(&path).filter(|folder| folder.is_absolute());
    let mut programs = places.map(|folder| folder.join(OPENER));
    programs.find(|program| program.is_file())
}

/// The person who has become root by sudo(8).
fn invoking() -> Option<User> {
    let uid = std::env::var("SUDO_UID").ok()?.parse().ok()?;
    let person = User::from_uid(Uid::from_raw(uid)).ok()??;
    (!person.uid.is_root()).then_some(person)
}

/// Nothing of root's surroundings goes along but where the screen is.
fn as_person(command: &mut Command, person: &User) {
    let kept = SCREEN.map(|name| (name, std::env::var_os(name)));
    let run = format!("/run/user/{}", person.uid);
    let bus = OsString::from(format!("unix:path={run}/bus"));
    command
        .env_clear()
        .envs(
            kept.into_iter()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .env("HOME", &person.dir)
        .env("USER", &person.name)
        .env("LOGNAME", &person.name)
        .env("XDG_RUNTIME_DIR", run)
        .env("DBUS_SESSION_BUS_ADDRESS", bus)
        // Root's other groups go by this, too (setgroups(2)).
        .uid(person.uid.as_raw())
        .gid(person.gid.as_raw());
}
