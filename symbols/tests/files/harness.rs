//! Compiles sources in a directory that goes away with the test.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use darc_symbols::{DebugSearch, FileAddr, Image, LookupError, NameSpec, Root, resolve};

/// A directory with sources and what is built of them.
pub struct Workshop(tempfile::TempDir);

impl Workshop {
    pub fn new() -> Workshop {
        Workshop(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Runs a command in the directory; its words are separated by spaces.
    pub fn run(&self, command: &str) {
        let mut words = command.split_whitespace();
        let output = Command::new(words.next().unwrap())
            .args(words)
            .current_dir(self.0.path())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{command}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// Compiles one C source to `prog` with these options.
    pub fn c(options: &str, source: &str) -> Workshop {
        let workshop = Workshop::new();
        workshop.write("prog.c", source);
        workshop.run(&format!("cc {options} -o prog prog.c"));
        workshop
    }

    /// Compiles one C++ source to `prog` with these options.
    pub fn cxx(options: &str, source: &str) -> Workshop {
        let workshop = Workshop::new();
        workshop.write("prog.cc", source);
        workshop.run(&format!("c++ {options} -o prog prog.cc"));
        workshop
    }

    /// Opens a file of the directory; debug files are searched in the directory alone.
    pub fn open(&self, name: &str) -> Image {
        open_with(&self.path(name), &Path::new("/").join(name), &self.search())
    }

    pub fn search(&self) -> DebugSearch {
        DebugSearch::below(Root::at(self.0.path()))
    }

    pub fn prog(&self) -> Image {
        self.open("prog")
    }
}

pub fn open_with(file: &Path, path: &Path, search: &DebugSearch) -> Image {
    Image::open(File::open(file).unwrap(), path, search).unwrap()
}

/// Looks a name up in one image.
pub fn resolve_in(image: &Image, name: &str) -> Result<FileAddr, LookupError> {
    resolve(&NameSpec::parse(name).unwrap(), &[image]).map(|(_, addr)| addr)
}

/// The demangled name of the function that a name means.
pub fn function_named(image: &Image, name: &str) -> String {
    let addr = resolve_in(image, name).unwrap_or_else(|error| panic!("{error}"));
    image.name_at(addr)
}
