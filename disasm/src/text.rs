//! Instructions as text, as `objdump -d` writes them (AT&T syntax).

use iced_x86::{Decoder, DecoderOptions, Formatter, GasFormatter};

/// One instruction as text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// Its address.
    pub addr: u64,
    /// Mnemonic and operands; `(bad)` for bytes that are no instruction.
    pub text: String,
}

/// The instructions in `bytes`, of which the first is at `addr`. Whatever the bytes are, each belongs to one line.
#[must_use]
pub fn text(addr: u64, bytes: &[u8]) -> Vec<Line> {
    let mut formatter = GasFormatter::new();
    let options = formatter.options_mut();
    options.set_hex_prefix("0x");
    options.set_uppercase_hex(false);
    options.set_branch_leading_zeros(false);
    options.set_space_after_operand_separator(true);
    let mut lines = Vec::new();
    for instruction in &mut Decoder::with_ip(64, bytes, addr, DecoderOptions::NONE) {
        let mut text = String::new();
        formatter.format(&instruction, &mut text);
        lines.push(Line {
            addr: instruction.ip(),
            text,
        });
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_objdump_writes_it() {
        // 39 45 fc  cmp %eax,-4(%rbp); 7c f8  jl 401000; c3  ret; 06  (bad)
        let lines = text(0x40_1000, &[0x39, 0x45, 0xfc, 0x7c, 0xfb, 0xc3, 0x06]);
        let shown: Vec<_> = lines
            .iter()
            .map(|line| (line.addr, line.text.as_str()))
            .collect();
        let expected = [
            (0x40_1000, "cmp %eax, -4(%rbp)"),
            (0x40_1003, "jl 0x401000"),
            (0x40_1005, "ret"),
            (0x40_1006, "(bad)"),
        ];
        assert_eq!(shown, expected);
    }
}
