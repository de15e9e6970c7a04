//! Names of kernel functions, from `/proc/kallsyms`. Parsing is pure.
//!
//! Source: proc_kallsyms(5); addresses are zero for whom `kernel.kptr_restrict` keeps them from.

/// The kernel's functions, by address.
#[derive(Debug, Default)]
pub struct KernelSymbols {
    /// Sorted: address, name, and the module in brackets or nothing.
    functions: Vec<(u64, String)>,
}

impl KernelSymbols {
    /// Those of the kernel that runs; none when its addresses are kept secret.
    #[must_use]
    pub fn read() -> KernelSymbols {
        std::fs::read("/proc/kallsyms").map_or_else(
            |_| KernelSymbols::default(),
            |text| KernelSymbols::parse(&text),
        )
    }

    /// Parses `ADDRESS TYPE NAME [MODULE]` lines; those that make no sense are left out.
    #[must_use]
    pub fn parse(text: &[u8]) -> KernelSymbols {
        let line = |line: &[u8]| {
            let line = std::str::from_utf8(line).ok()?;
            let mut words = line.split_ascii_whitespace();
            let addr = u64::from_str_radix(words.next()?, 16).ok()?;
            let kind = words.next()?;
            let name = words.next()?;
            let is_code = matches!(kind, "t" | "T" | "w" | "W");
            (is_code && addr != 0).then(|| (addr, name.to_owned()))
        };
        let mut functions: Vec<_> = text.split(|&byte| byte == b'\n').filter_map(line).collect();
        functions.sort();
        functions.dedup_by_key(|function| function.0);
        KernelSymbols { functions }
    }

    /// The function that contains an address, and the address it begins at.
    #[must_use]
    pub fn function(&self, addr: u64) -> Option<(u64, &str)> {
        let after = self
            .functions
            .partition_point(|function| function.0 <= addr);
        let (start, name) = self.functions.get(after.checked_sub(1)?)?;
        Some((*start, name))
    }

    /// Whether no name is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_in_the_function_before() {
        let text = b"ffff10 T first\nffff30 t second\t[mod]\nffff20 D data\nnonsense\nzz T x\n0 T hidden\n";
        let symbols = KernelSymbols::parse(text);
        assert_eq!(symbols.function(0xffff0f), None);
        assert_eq!(symbols.function(0xffff2f), Some((0xffff10, "first")));
        assert_eq!(symbols.function(u64::MAX), Some((0xffff30, "second")));
        assert!(KernelSymbols::parse(b"0000 T a\n").is_empty());
    }
}
