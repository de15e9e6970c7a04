//! Files that tests make of assembly.

use std::path::Path;
use std::process::Command;

use darc_symbols::{DebugSearch, Image};

/// What the linker makes of a text, with these options; called `/a`.
pub fn image(text: &str, options: &[&str]) -> Image {
    image_at("/a", text, options)
}

/// ... called as a person may name it.
pub fn image_at(path: &str, text: &str, options: &[&str]) -> Image {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("a.s"), text).expect("room");
    let built = Command::new("cc")
        .args(["-nostdlib", "-o", "a", "a.s"])
        .args(options)
        .current_dir(folder.path())
        .status();
    assert!(built.expect("a compiler").success(), "{text}");
    let bytes = std::fs::read(folder.path().join("a")).expect("it was built");
    let search = DebugSearch::nowhere();
    Image::from_bytes(bytes, Path::new(path), &search).expect("it is an ELF file")
}
