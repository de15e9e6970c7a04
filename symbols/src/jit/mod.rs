//! Names of code that a program makes while it runs, as the program's run-time writes them down for profilers: the text
//! of `/tmp/perf-PID.map` ([`perf_map`]) and the records of a jitdump ([`dump`]).
//!
//! Both only grow, and code comes to lie where other code was: what was written last holds. Nothing says when code of the
//! first kind went away. Both are written by the program and may say anything: what is read is bounded, in bytes and in
//! functions.

pub(crate) mod dump;
mod name;
pub(crate) mod perf_map;

use std::collections::BTreeMap;
use std::io;

pub use name::JitName;

/// Functions of one process that are kept.
const MOST_FUNCTIONS: usize = 2_000_000;
/// Names of one process that are kept, in bytes.
const MOST_NAMES: usize = 256 << 20;
/// A longer name is cut, in bytes.
const LONGEST_NAME: usize = 1024;
/// Programs have no code from here on.
const END_OF_USER_SPACE: u64 = 1 << 47;

/// A function that a program made while it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JitFunction<'a> {
    /// The address of its first byte in the process.
    pub start: u64,
    /// Bytes of code.
    pub size: u64,
    /// The name, as the run-time writes it.
    pub name: &'a str,
}

/// The functions that one process has made.
#[derive(Debug, Default)]
pub struct JitSymbols {
    names: String,
    /// By their start.
    functions: BTreeMap<u64, Entry>,
    replaced: u64,
    cut: bool,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    end: u64,
    /// Where the name is among the names.
    name: (u32, u32),
}

impl JitSymbols {
    /// Adds what a perf map has: a line for each function, `START SIZE NAME`, the numbers in hexadecimal.
    ///
    /// # Errors
    /// When reading fails; what was read before is kept.
    pub fn add_perf_map(&mut self, text: impl io::Read) -> io::Result<()> {
        perf_map::read(text, self)
    }

    /// Adds what a jitdump has.
    ///
    /// # Errors
    /// When reading fails, or it is no jitdump of this machine; what was read before is kept.
    pub fn add_dump(&mut self, records: impl io::Read) -> io::Result<()> {
        dump::read(records, self)
    }

    /// Whether nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// How many functions are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.functions.len()
    }

    /// How many functions were replaced by others at their addresses: code that ran there before has their names now.
    #[must_use]
    pub fn replaced(&self) -> u64 {
        self.replaced
    }

    /// Whether there were more than are kept.
    #[must_use]
    pub fn was_cut(&self) -> bool {
        self.cut
    }

    /// The function that has the code at an address.
    #[must_use]
    pub fn at(&self, addr: u64) -> Option<JitFunction<'_>> {
        let (&start, entry) = self.functions.range(..=addr).next_back()?;
        (addr < entry.end).then(|| self.function(start, entry))
    }

    /// All functions, by their addresses.
    pub fn iter(&self) -> impl Iterator<Item = JitFunction<'_>> {
        self.functions
            .iter()
            .map(|(&start, entry)| self.function(start, entry))
    }

    /// The functions that a person means by `typed`: by the whole name, else by the function's own name, with or without its
    /// file. See [`JitName`].
    #[must_use]
    pub fn find(&self, typed: &str) -> Vec<JitFunction<'_>> {
        let exact: Vec<JitFunction<'_>> = self.iter().filter(|it| it.name == typed).collect();
        if !exact.is_empty() {
            return exact;
        }
        let typed = JitName::parse(typed);
        let is_meant = |it: &JitFunction<'_>| JitName::parse(it.name).is_meant_by(&typed);
        self.iter().filter(is_meant).collect()
    }

    fn function(&self, start: u64, entry: &Entry) -> JitFunction<'_> {
        let (at, len) = (entry.name.0 as usize, entry.name.1 as usize);
        JitFunction {
            start,
            size: entry.end - start,
            name: self.names.get(at..at + len).unwrap_or_default(),
        }
    }

    /// Takes a function in the place of all that were where it is. Returns false when no more are taken.
    fn add(&mut self, start: u64, size: u64, name: &[u8]) -> bool {
        let end = start.saturating_add(size);
        if size == 0 || end > END_OF_USER_SPACE || name.is_empty() {
            return true;
        }
        let name = String::from_utf8_lossy(&name[..name.len().min(LONGEST_NAME)]);
        if self.functions.len() >= MOST_FUNCTIONS || self.names.len() + name.len() > MOST_NAMES {
            self.cut = true;
            return false;
        }
        self.clear(start, end);
        // Both are bounded by MOST_NAMES.
        let place = (self.names.len() as u32, name.len() as u32);
        self.names.push_str(&name);
        self.functions.insert(start, Entry { end, name: place });
        true
    }

    /// Code was moved, with its name.
    fn moved(&mut self, from: u64, to: u64, size: u64) -> bool {
        let Some(entry) = self.functions.remove(&from) else {
            return true;
        };
        let end = to.saturating_add(size);
        if size == 0 || end > END_OF_USER_SPACE {
            return true;
        }
        self.clear(to, end);
        self.functions.insert(to, Entry { end, ..entry });
        true
    }

    /// Forgets what is in a range.
    fn clear(&mut self, start: u64, end: u64) {
        // Functions do not overlap: of those that begin before the range only the last one reaches into it.
        let reaches_in = self.functions.range(..start).next_back();
        if let Some((&before, _)) = reaches_in.filter(|(_, entry)| entry.end > start) {
            self.functions.remove(&before);
            self.replaced += 1;
        }
        while let Some((&inside, _)) = self.functions.range(start..end).next() {
            self.functions.remove(&inside);
            self.replaced += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(symbols: &JitSymbols) -> Vec<(u64, u64, &str)> {
        symbols
            .iter()
            .map(|it| (it.start, it.size, it.name))
            .collect()
    }

    #[test]
    fn what_comes_later_replaces_what_it_covers() {
        let mut symbols = JitSymbols::default();
        for (start, size, name) in [
            (0x1000, 0x100, "a"),
            (0x1100, 0x100, "b"),
            (0x1300, 0x100, "c"),
            (0x10ff, 0x11, "over both"),
            (0x1300, 0x80, "c again"),
        ] {
            assert!(symbols.add(start, size, name.as_bytes()));
        }
        assert_eq!(
            known(&symbols),
            [(0x10ff, 0x11, "over both"), (0x1300, 0x80, "c again")]
        );
        assert_eq!(symbols.replaced(), 3);
        assert_eq!(symbols.at(0x10ff).map(|it| it.name), Some("over both"));
        assert_eq!(symbols.at(0x1110), None);
        assert_eq!(symbols.at(0x10fe), None);
        assert_eq!(symbols.at(0x137f).map(|it| it.name), Some("c again"));
    }

    #[test]
    fn code_that_moves_takes_its_name_along() {
        let mut symbols = JitSymbols::default();
        symbols.add(0x1000, 0x10, b"a");
        symbols.add(0x2000, 0x10, b"b");
        symbols.moved(0x1000, 0x2008, 0x10);
        symbols.moved(0x9000, 0x1000, 0x10);
        assert_eq!(known(&symbols), [(0x2008, 0x10, "a")]);
    }

    #[test]
    fn nothing_is_taken_that_cannot_be_code() {
        let mut symbols = JitSymbols::default();
        for (start, size) in [(0, 0), (u64::MAX, 1), (1 << 46, 1 << 46 | 1), (5, u64::MAX)] {
            symbols.add(start, size, b"x");
        }
        symbols.add(0x1000, 1, b"");
        assert!(symbols.is_empty());
        symbols.add(0x1000, 1, &[0xff; 5000]);
        assert!(symbols.iter().all(|it| it.name.len() <= 3 * LONGEST_NAME));
    }
}
