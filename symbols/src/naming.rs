//! How a file and the code in it are called: the names that lists and reports print, all of which a person can type.

use std::path::{Path, PathBuf};

use crate::addr::FileAddr;
use crate::demangle::demangle;
use crate::functions::Function;
use crate::image::Image;
use crate::spec::NameSpec;

impl Image {
    /// The file under another path: the one by which a process was started, where that is a link to the file. Look-ups know
    /// it by both names.
    #[must_use]
    pub fn called(mut self, link: PathBuf) -> Image {
        self.link = Some(link);
        self
    }

    /// The path that it is called by: that of [`Image::called`], else the one it was opened with.
    pub fn path(&self) -> &Path {
        self.link.as_deref().unwrap_or(self.real_path())
    }

    /// How the file is called in look-ups and reports: by the last component of its path.
    pub fn module(&self) -> String {
        file_name(self.path())
    }

    /// Whether functions of this file may be meant.
    pub fn is_meant(&self, spec: &NameSpec) -> bool {
        let mut paths = [self.path(), self.real_path()].into_iter();
        paths.any(|path| spec.allows_module(&file_name(path)))
    }

    /// The name of one of the file's functions, demangled. One without a symbol is called by its place in the file,
    /// `store+0x1380`.
    pub fn name_of(&self, function: &Function) -> String {
        let raw = function.raw_name();
        raw.map_or_else(|| self.offset_name(function.addr), demangle)
    }

    /// The name of what is at an address: a function, the function that a PLT stub leads to, `function+0x12` inside of a
    /// function with a symbol, and `file+0x1234` where there is none.
    pub fn name_at(&self, addr: FileAddr) -> String {
        if let Some(imported) = self.plt_name(addr) {
            return demangle(&imported);
        }
        match self.function_at(addr) {
            Some(function) if function.addr == addr => self.name_of(function),
            Some(function) if function.raw_name().is_some() => {
                format!("{}+{:#x}", self.name_of(function), addr.0 - function.addr.0)
            }
            _ => self.offset_name(addr),
        }
    }

    fn offset_name(&self, addr: FileAddr) -> String {
        format!("{}+{:#x}", self.module(), addr.0)
    }
}

/// The last component of a path.
fn file_name(path: &Path) -> String {
    let name = path.file_name();
    name.map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}
