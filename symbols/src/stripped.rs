//! What a file without a full symbol table cannot tell, and how it can be had.

use std::fmt;

use crate::demangle::escape;
use crate::functions::SymbolSource;
use crate::image::Image;

/// A file of whose functions only the exported ones have names, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stripped {
    /// How the file is called.
    pub module: String,
    /// Whether it has at least a table of exported functions.
    pub exports: bool,
    /// The command that installs its symbols, where the package manager's files tell it.
    pub install: Option<String>,
    /// Whether a debuginfod server may have them: the file has a build-id.
    pub build_id: bool,
}

impl Image {
    /// What is missing where the file has no full symbol table, neither its own nor in a debug file.
    pub fn stripped(&self) -> Option<Stripped> {
        if !self.is_stripped() {
            return None;
        }
        let tables = self.symbol_tables();
        Some(Stripped {
            module: self.module(),
            exports: tables
                .iter()
                .any(|table| table.source == SymbolSource::Dynsym),
            install: self.install(),
            build_id: self.build_id().is_some(),
        })
    }
}

impl Stripped {
    /// What gives the file's functions names, as a request.
    pub fn remedy(&self) -> String {
        let mut ways: Vec<String> = Vec::new();
        ways.extend(self.install.clone());
        let has_servers = std::env::var_os("DEBUGINFOD_URLS").is_some_and(|urls| !urls.is_empty());
        if self.build_id && !has_servers {
            ways.push("set DEBUGINFOD_URLS".to_owned());
        }
        if ways.is_empty() {
            ways.push("install or build it with its symbols".to_owned());
        }
        ways.join(", or ")
    }
}

impl fmt::Display for Stripped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let module = escape(&self.module);
        let named = match self.exports {
            true => "only exported functions have names",
            false => "functions have no names",
        };
        write!(
            f,
            "{module} has no symbol table, {named}: {}",
            self.remedy()
        )
    }
}
