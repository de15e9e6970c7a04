//! Source positions of addresses, from DWARF 4 and 5 through addr2line, and addresses of source positions, from the line
//! programs.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use addr2line::{Context, LookupContinuation, LookupResult};
use gimli::{FileEntry, IncompleteLineProgram, LineProgramHeader, Reader, UnitRef};

use crate::addr::{AddrRange, FileAddr};
use crate::debugfile::DebugSearch;
use crate::demangle::demangle;
use crate::dwarf::{DebugInfo, QueryError};
use crate::elf::Elf;
use crate::reader::SectionReader;

/// One function of an inline chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Demangled.
    pub function: String,
    /// Source file, with its directory as the compiler recorded it.
    pub file: Option<String>,
    /// Line, from 1 on.
    pub line: Option<u32>,
}

/// A frame whose function may have no name in the debugging information.
pub(crate) struct UnnamedFrame {
    pub(crate) name: Option<String>,
    pub(crate) file: Option<String>,
    pub(crate) line: Option<u32>,
}

/// Where the code of a line begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Statement {
    pub(crate) addr: FileAddr,
    pub(crate) line: u32,
    /// No other row of the line program for this address comes before: at the entry of a function it is the function's own
    /// line, and what follows may be that of a copy that was inlined there.
    pub(crate) is_first: bool,
}

/// Inline chains are cut off here.
const MAX_FRAMES: usize = 256;
/// Addresses of a line are collected up to this number.
const MAX_STATEMENTS: usize = 10_000;
/// At most so many addresses of a function are looked up for what was inlined into it.
const MAX_LOOKUPS: u64 = 4_000;

/// The debugging information of one file, ready for queries.
pub(crate) struct Lines {
    pub(crate) info: DebugInfo,
    context: Context<SectionReader>,
}

impl Lines {
    /// Reads the debugging information in `elf`.
    pub(crate) fn load(
        elf: &Elf,
        search: &DebugSearch,
        warn: &mut dyn FnMut(String),
    ) -> Result<Lines, String> {
        let info = DebugInfo::load(elf, search, warn)?;
        info.refuel();
        let context = Context::from_arc_dwarf(Arc::clone(&info.dwarf));
        let context = context.map_err(|error| {
            let path = crate::demangle::escape(&elf.path().to_string_lossy());
            format!("{path}: damaged debugging information ({error}), ignored")
        })?;
        Ok(Lines { info, context })
    }

    /// The inline chain at an address, innermost first.
    pub(crate) fn frames(&mut self, addr: FileAddr) -> Result<Vec<UnnamedFrame>, QueryError> {
        let mut frames = Vec::new();
        self.each_frame(addr, |frame| {
            let name = frame
                .function
                .and_then(|name| Some(demangle(&name.raw_name().ok()?)));
            let (file, line) = frame.location.map_or((None, None), |at| (at.file, at.line));
            let line = line.filter(|&line| line > 0);
            frames.push(UnnamedFrame {
                name,
                file: file.map(str::to_owned),
                line,
            });
        })?;
        Ok(frames)
    }

    /// The functions that were inlined into the one with this code, by its own calls; those with most of the code first. Nothing
    /// where the debugging information does not know the function.
    pub(crate) fn copies_in(
        &mut self,
        code: &[AddrRange],
    ) -> Result<Option<Vec<String>>, QueryError> {
        let size: u64 = code.iter().map(AddrRange::len).sum();
        let step = usize::try_from(size.div_ceil(MAX_LOOKUPS).max(1)).unwrap_or(usize::MAX);
        let mut bytes: HashMap<String, usize> = HashMap::new();
        let mut is_known = false;
        for addr in code
            .iter()
            .flat_map(|part| (part.start.0..part.end.0).step_by(step))
        {
            let mut chain: Vec<Option<String>> = Vec::new();
            self.each_frame(FileAddr(addr), |frame| {
                let name = frame
                    .function
                    .and_then(|name| Some(name.raw_name().ok()?.into_owned()));
                chain.push(name);
            })?;
            is_known |= matches!(chain.pop(), Some(Some(_)));
            if let Some(Some(copy)) = chain.pop() {
                *bytes.entry(copy).or_default() += 1;
            }
        }
        let mut copies: Vec<(String, usize)> = bytes.into_iter().collect();
        copies.sort_by(|one, other| (other.1, &one.0).cmp(&(one.1, &other.0)));
        let mut names: Vec<String> = copies.iter().map(|(name, _)| demangle(name)).collect();
        names.dedup();
        Ok(is_known.then_some(names))
    }

    /// Visits the inline chain at an address, innermost first.
    fn each_frame(
        &mut self,
        addr: FileAddr,
        mut visit: impl FnMut(addr2line::Frame<'_, SectionReader>),
    ) -> Result<(), QueryError> {
        self.info.refuel();
        // addr2line asks for the address behind it.
        if addr.0 == u64::MAX {
            return Ok(());
        }
        self.info.check_units_around(addr.0)?;
        let mut lookup = self.context.find_frames(addr.0);
        let mut found = loop {
            match lookup {
                LookupResult::Output(found) => break found?,
                // Split DWARF (`.dwo`): what the main file says must do.
                LookupResult::Load { continuation, .. } => lookup = continuation.resume(None),
            }
        };
        for _ in 0..MAX_FRAMES {
            match found.next()? {
                Some(frame) => visit(frame),
                None => break,
            }
        }
        Ok(())
    }

    /// The addresses where statements of a line begin; of the next line that has any, if this one has none. `file` matches
    /// whole components from the end of the recorded path.
    pub(crate) fn statements(&self, file: &str, line: u32) -> Result<Vec<Statement>, QueryError> {
        let mut programs = HashSet::new();
        let mut found = Statements {
            wanted: line,
            best: u32::MAX,
            statements: Vec::new(),
        };
        self.info.each_unit(|unit| {
            let Some(program) = unit.line_program.clone() else {
                return Ok(());
            };
            // Units may share a program.
            if !programs.insert(program.header().offset().0) {
                return Ok(());
            }
            let files = files_named(unit, program.header(), file);
            if files.is_empty() {
                Ok(())
            } else {
                found.collect(program, &files)
            }
        })?;
        Ok(found.statements)
    }
}

/// The statements of the smallest line that is not before the wanted one.
struct Statements {
    wanted: u32,
    best: u32,
    statements: Vec<Statement>,
}

impl Statements {
    fn collect(
        &mut self,
        program: IncompleteLineProgram<SectionReader>,
        files: &HashSet<u64>,
    ) -> gimli::Result<()> {
        let mut rows = program.rows();
        let mut previous = None;
        while let Some((_, row)) = rows.next_row()? {
            let addr = FileAddr(row.address());
            // It stands behind the last instruction, where another function's code may begin.
            if row.end_sequence() {
                previous = None;
                continue;
            }
            let is_first = previous.replace(addr) != Some(addr);
            let line = row.line().and_then(|line| u32::try_from(line.get()).ok());
            let Some(line) = line.filter(|line| (self.wanted..=self.best).contains(line)) else {
                continue;
            };
            if !row.is_stmt() || !files.contains(&row.file_index()) {
                continue;
            }
            if line < self.best {
                self.best = line;
                self.statements.clear();
            }
            if self.statements.len() < MAX_STATEMENTS {
                self.statements.push(Statement {
                    addr,
                    line,
                    is_first,
                });
            }
        }
        Ok(())
    }
}

/// The numbers of the files in a line program whose paths end in `wanted`.
fn files_named(
    unit: UnitRef<'_, SectionReader>,
    header: &LineProgramHeader<SectionReader>,
    wanted: &str,
) -> HashSet<u64> {
    // Files count from 1 on before DWARF 5.
    let first = if header.version() >= 5 { 0 } else { 1 };
    let files = (first..).zip(header.file_names());
    let named =
        |file| file_path(unit, header, file).is_some_and(|path| Path::new(&path).ends_with(wanted));
    files
        .filter(|(_, file)| named(file))
        .map(|(number, _)| number)
        .collect()
}

/// The path of a file in a line program: compilation directory, directory and name.
pub(crate) fn file_path(
    unit: UnitRef<'_, SectionReader>,
    header: &LineProgramHeader<SectionReader>,
    file: &FileEntry<SectionReader>,
) -> Option<String> {
    let text = |part: SectionReader| Some(part.to_string_lossy().ok()?.into_owned());
    let named = |value| text(unit.attr_string(value).ok()?);
    let name = named(file.path_name())?;
    let directory = file.directory(header).and_then(named).unwrap_or_default();
    let base = unit.comp_dir.clone().and_then(text).unwrap_or_default();
    // An absolute part replaces what is before it.
    let path: PathBuf = [base, directory, name].iter().collect();
    path.into_os_string().into_string().ok()
}
