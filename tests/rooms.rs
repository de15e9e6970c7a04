//! What ARCHITECTURE.md says that a room of the house must not know: its files name none of it.

use std::fs;
use std::path::{Path, PathBuf};

/// Rooms, and what their code must not name, as ARCHITECTURE.md's table says it.
const MUST_NOT_KNOW: [(&str, &[&str]); 13] = [
    ("disasm/src", &["std::fs", "darc_"]),
    ("symbols/src", &["darc_", "nix::sys::ptrace", "\"/proc/{"]),
    (
        "tracer/src",
        &[
            "darc_symbols",
            "darc_analysis",
            "darc_report",
            "darc_process",
        ],
    ),
    ("record/src", &["darc_", "std::fs"]),
    (
        "analysis/src",
        &[
            "darc_tracer",
            "darc_symbols",
            "darc_process",
            "darc_report",
            "std::fs",
            "std::time::Instant",
            "TargetAddr",
        ],
    ),
    (
        "report/src",
        &["darc_tracer", "darc_symbols", "darc_process", "/proc/"],
    ),
    ("process/src", &["darc_analysis", "darc_report"]),
    ("src/session", &["crate::cli", "crate::command", "clap::"]),
    (
        "src/listing",
        &["crate::session", "crate::command", "darc_process"],
    ),
    (
        "src/sampling",
        &["sys::ptrace", "crate::command", "crate::cli"],
    ),
    ("src/terminal", &["crate::session", "crate::command"]),
    (
        "src/options",
        &[
            "crate::session",
            "crate::command",
            "crate::sampling",
            "crate::terminal",
            "clap::",
        ],
    ),
    ("src/command", &["clap::", "sys::ptrace"]),
];

fn sources(path: &Path) -> Vec<PathBuf> {
    match path.is_dir() {
        true => {
            let entries = fs::read_dir(path).unwrap();
            entries
                .flat_map(|entry| sources(&entry.unwrap().path()))
                .collect()
        }
        false => vec![path.to_owned()],
    }
}

#[test]
fn no_room_knows_what_it_must_not() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    for (room, forbidden) in MUST_NOT_KNOW {
        let named = room.strip_suffix("/src").unwrap_or(room);
        assert!(
            page.contains(&format!("`{named}")),
            "{room} is not in the table"
        );
        for path in sources(&root.join(room)) {
            let text = fs::read_to_string(&path).unwrap();
            // Tests may bring rooms together.
            let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
            for name in forbidden {
                let mut lines = code
                    .lines()
                    .filter(|line| !line.trim_start().starts_with("//"));
                let found = lines.find(|line| line.contains(name));
                assert_eq!(
                    found,
                    None,
                    "{}: {room} must not know {name}",
                    path.display()
                );
            }
        }
    }
}
