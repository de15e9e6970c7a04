//! Which part of the call sites of installed programs can be measured, and of the test programs however they are compiled.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use darc_process::coverage::{self, CallKind, Share};
use darc_symbols::{DebugSearch, Image};

use crate::symbols;

/// Where programs and libraries are.
const FOLDERS: [&str; 8] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/bin",
    "/usr/sbin",
    "/usr/local/bin",
    "/usr/lib/postgresql/15/bin",
];
/// What their names begin with.
const NAMES: [&str; 8] = [
    "libc.so.6",
    "libstdc++.so.6",
    "libpython3",
    "libsqlite3.so.0",
    "node",
    "postgres",
    "python3.",
    "redis-server",
];
const COMPILERS: [&str; 2] = ["gcc", "clang"];
const FLAGS: [&str; 6] = ["-O0", "-O1", "-O2", "-O3", "-Os", "-O2 -flto"];
const KINDS: [CallKind; 4] = [
    CallKind::Direct,
    CallKind::Indirect,
    CallKind::Tail,
    CallKind::System,
];

type Kinds = BTreeMap<CallKind, Share>;

/// Prints a row for each file that is installed, and one for all test programs in C with each compiler's flags.
pub fn run(folder: &Path) {
    println!(
        "\nCall sites that can be measured\n\n| file | all | direct | indirect | tail | system |\n|---|---|---|---|---|---|"
    );
    let installed = FOLDERS
        .iter()
        .flat_map(|folder| installed_in(Path::new(folder)));
    let installed: BTreeSet<PathBuf> = installed.chain(symbols::compilers_library()).collect();
    for path in installed {
        match kinds_of(&path) {
            Some(kinds) => row(&path.to_string_lossy(), &kinds),
            None => eprintln!("{}: left out, it cannot be read", path.display()),
        }
    }
    for compiler in COMPILERS {
        let version = Command::new(compiler)
            .arg("--version")
            .stdout(Stdio::null())
            .status();
        if version.is_err() {
            eprintln!("{compiler}: left out, it is not installed");
            continue;
        }
        for flags in FLAGS {
            compiled(compiler, flags, folder);
        }
    }
}

/// The files of a folder with one of the names, or what these lead to.
fn installed_in(folder: &Path) -> Vec<PathBuf> {
    let is_meant = |name: &str| {
        let is_versioned = |rest: &str| {
            rest.chars()
                .all(|char| char.is_ascii_digit() || ".so".contains(char))
        };
        let mut names = NAMES.iter();
        names.any(|wanted| name.strip_prefix(wanted).is_some_and(is_versioned))
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let meant = entries.filter(|entry| is_meant(&entry.file_name().to_string_lossy()));
    let files = meant.filter_map(|entry| fs::canonicalize(entry.path()).ok());
    files.filter(|path| path.is_file()).collect()
}

/// All test programs in C, compiled so.
fn compiled(compiler: &str, flags: &str, folder: &Path) {
    let (mut sum, mut programs, mut others) = (Kinds::new(), 0, 0);
    let sources = fs::read_dir(darc_testprogs::includes())
        .into_iter()
        .flatten();
    for source in sources.filter_map(|entry| Some(entry.ok()?.path())) {
        if source.extension().is_none_or(|ending| ending != "c") {
            continue;
        }
        let out = folder.join("compiled");
        let status = Command::new(compiler)
            .args(flags.split(' '))
            .args(["-w", "-D_GNU_SOURCE", "-pthread", "-o"])
            .arg(&out)
            .arg(&source)
            .args(["-lm", "-ldl"])
            .stderr(Stdio::null())
            .status();
        if !status.is_ok_and(|status| status.success()) {
            others += 1;
            continue;
        }
        programs += 1;
        for (kind, share) in kinds_of(&out).unwrap_or_default() {
            let all = sum.entry(kind).or_default();
            all.measured += share.measured;
            all.all += share.all;
        }
    }
    row(&format!("{programs} programs, `{compiler} {flags}`"), &sum);
    if others > 0 {
        eprintln!("{compiler} {flags}: {others} left out, they need flags of their own");
    }
}

fn kinds_of(path: &Path) -> Option<Kinds> {
    let file = File::open(path).ok()?;
    let image = Image::open(file, path, &DebugSearch::default()).ok()?;
    Some(coverage::of_file(image).kinds)
}

fn row(name: &str, kinds: &Kinds) {
    let share = |share: Share| match share.all {
        0 => String::new(),
        all if all == share.measured => format!("all of {all}"),
        all => format!("{:.2}% of {all}", 100.0 * share.part()),
    };
    let mut total = Share::default();
    for kind in kinds.values() {
        total.measured += kind.measured;
        total.all += kind.all;
    }
    let of_kind = KINDS.map(|kind| share(kinds.get(&kind).copied().unwrap_or_default()));
    println!("| {name} | {} | {} |", share(total), of_kind.join(" | "));
}
