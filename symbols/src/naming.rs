//! How a file and the code in it are called: the names that lists and reports print, all of which a person can type.

use crate::addr::FileAddr;
use crate::demangle::demangle;
use crate::functions::Function;
use crate::image::Image;
use crate::spec::NameSpec;

impl Image {
    /// The file under another name: the one by which a process was started, where that is a link to the file. Look-ups know
    /// it by both names.
    #[must_use]
    pub fn called(mut self, name: String) -> Image {
        self.alias = Some(name);
        self
    }

    /// How the file is called in look-ups and reports: by [`Image::called`], else by the last component of its path.
    pub fn module(&self) -> String {
        self.alias.clone().unwrap_or_else(|| self.file_name())
    }

    fn file_name(&self) -> String {
        let name = self.path().file_name();
        name.map_or_else(String::new, |name| name.to_string_lossy().into_owned())
    }

    /// Whether functions of this file may be meant.
    pub fn is_meant(&self, spec: &NameSpec) -> bool {
        spec.allows_module(&self.file_name())
            || self
                .alias
                .as_ref()
                .is_some_and(|alias| spec.allows_module(alias))
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
