//! Perf maps. Source: Linux, tools/perf/Documentation/jit-interface.txt.

use std::io::{self, BufRead, BufReader, Read};

use super::JitSymbols;

/// More is not read, in bytes.
const MOST: u64 = 1 << 30;
/// What is behind so many bytes of a line is left out.
const LONGEST_LINE: usize = 4096;

pub(super) fn read(text: impl Read, symbols: &mut JitSymbols) -> io::Result<()> {
    let mut text = BufReader::with_capacity(1 << 16, text.take(MOST));
    let mut line = Vec::new();
    while next_line(&mut text, &mut line)? {
        if let Some((start, size, name)) = function(&line)
            && !symbols.add(start, size, name)
        {
            break;
        }
    }
    Ok(())
}

/// Reads a line without its end, and no more of it than is used. False at the end of the text, and for a last line without
/// end: it is still being written.
fn next_line(text: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    loop {
        let buffer = text.fill_buf()?;
        if buffer.is_empty() {
            return Ok(false);
        }
        let end = buffer.iter().position(|&byte| byte == b'\n');
        let part = &buffer[..end.unwrap_or(buffer.len())];
        let room = LONGEST_LINE - line.len();
        line.extend_from_slice(&part[..part.len().min(room)]);
        let used = part.len() + usize::from(end.is_some());
        text.consume(used);
        if end.is_some() {
            return Ok(true);
        }
    }
}

/// `START SIZE NAME`.
fn function(line: &[u8]) -> Option<(u64, u64, &[u8])> {
    let mut parts = line.splitn(3, |&byte| byte == b' ');
    let mut number = || {
        let digits = std::str::from_utf8(parts.next()?).ok()?;
        let digits = digits.strip_prefix("0x").unwrap_or(digits);
        u64::from_str_radix(digits, 16).ok()
    };
    let (start, size) = (number()?, number()?);
    Some((start, size, parts.next()?.trim_ascii()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_functions_are_read() {
        let text = "7f0000001000 10 JS:*handle /srv/app.js:3:10\n\
            0x7f0000002000 0x20 Lcom/foo/App;::handle\r\n\
            nonsense\n\n7f0000003000 zz x\n7f0000004000 10\n+7f0000005000 10 plus\n\
            7f0000006000 10 still being wri";
        let mut symbols = JitSymbols::default();
        read(text.as_bytes(), &mut symbols).unwrap();
        let known: Vec<(u64, u64, &str)> = symbols
            .iter()
            .map(|it| (it.start, it.size, it.name))
            .collect();
        assert_eq!(
            known[..2],
            [
                (0x7f0000001000, 0x10, "JS:*handle /srv/app.js:3:10"),
                (0x7f0000002000, 0x20, "Lcom/foo/App;::handle"),
            ]
        );
        assert!(symbols.at(0x7f0000006000).is_none());
    }

    #[test]
    fn endless_lines_cost_no_memory() {
        let mut symbols = JitSymbols::default();
        let endless = io::repeat(b'7').take(1 << 24);
        read(endless.chain(&b"\n1000 10 a\n"[..]), &mut symbols).unwrap();
        assert_eq!(symbols.at(0x1000).map(|it| it.name), Some("a"));
    }
}
