//! The files of this machine.

use std::path::Path;

use darc_symbols::{DebugSearch, FileAddr, LookupError, NotAFunction};

use crate::harness::{open_with, resolve_in};

#[test]
fn the_c_library() {
    let path = Path::new("/lib/x86_64-linux-gnu/libc.so.6");
    if !path.exists() {
        eprintln!("no {}: not tested", path.display());
        return;
    }
    let image = open_with(path, path, &DebugSearch::nowhere());
    for name in ["read", "malloc", "libc:read", "libc.so.6:qsort"] {
        assert!(resolve_in(&image, name).is_ok(), "{name}");
    }
    // Two versions, of which new programs use an ifunc.
    let memcpy = resolve_in(&image, "memcpy");
    assert!(
        matches!(
            memcpy,
            Err(LookupError::NotAFunction {
                kind: NotAFunction::IfuncResolver,
                ..
            })
        ),
        "{memcpy:?}"
    );
    let read = image
        .function_at(resolve_in(&image, "read").unwrap())
        .unwrap();
    assert_eq!(read.raw_name(), Some("read"));
    assert!(read.names().any(|name| name == "__read"));
    assert!(image.functions().len() > 2000);
    assert_eq!(image.warnings(), Vec::<String>::new());
}

// A function that is compiled into its caller has no address of its own.
#[inline(never)]
#[test]
fn this_program() {
    let path = std::env::current_exe().unwrap();
    let image = open_with(&path, &path, &DebugSearch::nowhere());
    let addr = resolve_in(&image, "main::system::this_program")
        .or_else(|_| resolve_in(&image, "system::this_program"))
        .unwrap();
    let frames = image.frames(addr);
    assert!(
        frames
            .last()
            .unwrap()
            .file
            .as_ref()
            .unwrap()
            .ends_with("system.rs"),
        "{frames:?}"
    );
    for function in image.functions().iter().step_by(97) {
        let found = image.function_at(function.addr).unwrap();
        assert!(found.addr <= function.addr);
        let _ = image.frames(FileAddr(function.addr.0 + function.size.unwrap_or(1) / 2));
    }
    assert_eq!(image.warnings(), Vec::<String>::new());
}
