//! Files that a target names and that are not what they were: nobody waits for them, and none is opened that the target did not
//! map or could not read itself.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use darc_testprogs::{Opt, program};
use tempfile::TempDir;

use crate::harness::{Finished, Target, copy_program, execute, not_tested};

/// A user who may nothing.
const NOBODY: u32 = 65534;

/// Who runs the target and darc.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Who {
    /// The user who runs the tests.
    Ourselves,
    Nobody,
}

impl Who {
    /// All that can be tried here.
    fn all() -> Vec<Who> {
        match nix::unistd::geteuid().is_root() {
            true => vec![Who::Ourselves, Who::Nobody],
            false => {
                not_tested("only root can try it as another user, too");
                vec![Who::Ourselves]
            }
        }
    }

    fn command(self, program: &Path) -> Command {
        let mut command = Command::new(program);
        if self == Who::Nobody {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }
}

/// A program, its library and darc, in a folder that everybody may read.
struct Place {
    folder: TempDir,
    darc: PathBuf,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().expect("a folder for temporary files");
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("it is ours");
        let copy = |from: &Path| {
            let to = folder.path().join(from.file_name().expect("a file"));
            copy_program(from, &to);
            fs::set_permissions(&to, Permissions::from_mode(0o755)).expect("it is ours");
            to
        };
        copy(&program("shared_library", Opt::O2));
        copy(&program("libserve.so", Opt::O2));
        let darc = copy(Path::new(env!("CARGO_BIN_EXE_darc")));
        Place { folder, darc }
    }

    fn library(&self) -> PathBuf {
        self.folder.path().join("libserve.so")
    }

    fn start(&self, who: Who) -> Target {
        let program = self.folder.path().join("shared_library");
        Target::start_command(who.command(&program).arg("wait"))
    }

    fn darc(&self, who: Who, args: &[&str]) -> Finished {
        let mut command = who.command(&self.darc);
        execute(command.args(args).current_dir("/").stdin(Stdio::null()))
    }
}

/// What somebody puts in the place of a library that is in use, and how.
type Replacement = (&'static str, fn(&Path));

fn replacements() -> [Replacement; 4] {
    [
        ("a pipe", |path| {
            nix::unistd::mkfifo(path, nix::sys::stat::Mode::from_bits_truncate(0o666))
                .expect("ours");
        }),
        ("a device", |path| symlink("/dev/tty", path).expect("ours")),
        ("a loop", |path| symlink(path, path).expect("ours")),
        ("another file", |path| {
            fs::write(path, "no library").expect("ours")
        }),
    ]
}

#[test]
fn what_takes_the_place_of_a_library_is_not_waited_for() {
    let place = Place::new();
    for who in Who::all() {
        for (what, replace) in replacements() {
            let target = place.start(who);
            let pid = target.pid().to_string();
            let library = place.library();
            let aside = place.folder.path().join("aside");
            copy_program(&library, &aside);
            fs::remove_file(&library).expect("ours");
            replace(&library);
            let ends = |args: &[&str]| {
                let ended = place.darc(who, args);
                let warnings = ended
                    .stderr
                    .lines()
                    .filter(|line| line.contains("no symbols of"))
                    .count();
                // Root has the library from the kernel.
                let expected = match who {
                    Who::Ourselves if nix::unistd::geteuid().is_root() => 0,
                    _ => 1,
                };
                let said = format!("{who:?}, {what}, {args:?}: {ended:#?}");
                assert_eq!(warnings, expected, "{said}");
                assert_ne!(ended.code(), 101, "{said}");
                ended
            };
            ends(&["list", "-p", &pid, "main"]);
            // All look for files in the same way.
            if what == "a pipe" {
                let attach = ["attach", "-p", &pid, "--f0", "library_serve"];
                let attached = ends(&[&attach[..], &["-d", "300ms", "-o", "/dev/null"]].concat());
                if who == Who::Ourselves && nix::unistd::geteuid().is_root() {
                    assert_eq!(attached.code(), 0, "{attached:#?}");
                }
                ends(&["profile", "-p", &pid, "-d", "200ms", "library_serve"]);
                ends(&["watch", "-p", &pid, "-d", "200ms", "library_serve"]);
                if who == Who::Ourselves {
                    ends(&["sample", "-p", &pid, "-d", "200ms"]);
                    ends(&["sample", "-a", "-d", "50ms"]);
                }
            }
            fs::remove_file(&library).expect("ours");
            fs::rename(&aside, &library).expect("ours");
            target.finish();
        }
    }
}

/// The source of a program is what its debugging information says, and that may be any file.
#[test]
fn source_is_shown_only_of_files_that_the_targets_user_may_read() {
    if !nix::unistd::geteuid().is_root() {
        return not_tested("only root may read what another user may not");
    }
    let place = Place::new();
    let path = |name: &str| place.folder.path().join(name);
    let (secret, source, built) = (path("secret"), path("spin.c"), path("spin"));
    const LINE: &str = "nobody shall read this";
    fs::write(&secret, LINE).expect("there is room");
    let code = format!(
        "#include <stdio.h>\n#include <unistd.h>\n\
         volatile unsigned long count;\n\
         int main(void) {{ puts(\"ready\"); fflush(stdout); alarm(100);\n\
         #line 1 \"{}\"\n\
         for (;;) count += count * count;\n }}\n",
        secret.display()
    );
    fs::write(&source, code).expect("there is room");
    let cc = Command::new("cc")
        .args(["-g", "-O1", "-o"])
        .arg(&built)
        .arg(&source)
        .status();
    assert!(cc.expect("a C compiler").success());
    for (mode, is_shown) in [(0o600, false), (0o644, true)] {
        fs::set_permissions(&secret, Permissions::from_mode(mode)).expect("ours");
        let target = Target::start_command(&mut Who::Nobody.command(&built));
        let pid = target.pid().to_string();
        let sampled = place.darc(Who::Ourselves, &["sample", "-p", &pid, "-d", "300ms"]);
        assert_eq!(sampled.code(), 0, "{sampled:#?}");
        assert!(sampled.stdout.contains("main"), "{sampled:#?}");
        assert_eq!(
            sampled.stdout.contains(LINE),
            is_shown,
            "{mode:o}: {sampled:#?}"
        );
    }
}
