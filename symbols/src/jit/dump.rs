//! Jitdumps. Source: Linux, tools/perf/Documentation/jitdump-specification.txt.

use std::io::{self, BufReader, ErrorKind, Read};

use super::JitSymbols;

/// More is not read, in bytes: code is part of it.
const MOST: u64 = 4 << 30;
const MAGIC: u32 = 0x4a69_5444;
const EM_X86_64: u32 = 62;
/// A name is looked for in so much of a record, in bytes.
const NAME_WITHIN: u64 = 4096;

pub(super) fn read(records: impl Read, symbols: &mut JitSymbols) -> io::Result<()> {
    let mut records = BufReader::with_capacity(1 << 16, records.take(MOST));
    let header = fixed::<40>(&mut records)?;
    if u32_at(&header, 0) != MAGIC || u32_at(&header, 12) != EM_X86_64 {
        return Err(ErrorKind::InvalidData.into());
    }
    let more = u64::from(u32_at(&header, 8)).saturating_sub(header.len() as u64);
    io::copy(&mut (&mut records).take(more), &mut io::sink())?;
    loop {
        // The last record may still be being written.
        let prefix = match fixed::<16>(&mut records) {
            Ok(prefix) => prefix,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        };
        let (kind, length) = (u32_at(&prefix, 0), u64::from(u32_at(&prefix, 4)));
        let Some(length) = length.checked_sub(prefix.len() as u64) else {
            return Ok(());
        };
        let mut record = (&mut records).take(length);
        let go_on = match kind {
            0 => load(&mut record, symbols)?,
            1 => moved(&mut record, symbols)?,
            _ => Some(true),
        };
        if go_on != Some(true) {
            return Ok(());
        }
        io::copy(&mut record, &mut io::sink())?;
    }
}

/// `JIT_CODE_LOAD`: pid, tid, vma, address, size, index, name, code. `None` when the record ends early.
fn load(record: &mut impl Read, symbols: &mut JitSymbols) -> io::Result<Option<bool>> {
    let Ok(fields) = fixed::<40>(record) else {
        return Ok(None);
    };
    let mut name = Vec::new();
    record.take(NAME_WITHIN).read_to_end(&mut name)?;
    let end = name.iter().position(|&byte| byte == 0);
    let name = &name[..end.unwrap_or(name.len())];
    Ok(Some(symbols.add(
        u64_at(&fields, 16),
        u64_at(&fields, 24),
        name,
    )))
}

/// `JIT_CODE_MOVE`: pid, tid, vma, old address, new address, size, index.
fn moved(record: &mut impl Read, symbols: &mut JitSymbols) -> io::Result<Option<bool>> {
    let Ok(fields) = fixed::<48>(record) else {
        return Ok(None);
    };
    let (from, to) = (u64_at(&fields, 16), u64_at(&fields, 24));
    Ok(Some(symbols.moved(from, to, u64_at(&fields, 32))))
}

fn fixed<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let part = bytes.get(at..at + 4).and_then(|it| it.try_into().ok());
    part.map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let part = bytes.get(at..at + 8).and_then(|it| it.try_into().ok());
    part.map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Vec<u8> {
        let mut bytes = Vec::new();
        for field in [MAGIC, 1, 40, EM_X86_64, 0, 7] {
            bytes.extend(field.to_le_bytes());
        }
        bytes.extend([0; 16]);
        bytes
    }

    fn record(kind: u32, fields: &[u64], rest: &[u8]) -> Vec<u8> {
        let body: Vec<u8> = fields
            .iter()
            .flat_map(|field| field.to_le_bytes())
            .chain(rest.iter().copied())
            .collect();
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend((16 + body.len() as u32).to_le_bytes());
        bytes.extend([0; 8]);
        bytes.extend(body);
        bytes
    }

    fn known(bytes: &[u8]) -> Vec<(u64, String)> {
        let mut symbols = JitSymbols::default();
        read(bytes, &mut symbols).unwrap();
        let known = symbols.iter().map(|it| (it.start, it.name.to_owned()));
        known.collect()
    }

    #[test]
    fn loaded_and_moved_code_has_names() {
        let mut bytes = header();
        bytes.extend(record(0, &[7, 0, 0x1000, 4, 1], b"first\0\x90\x90\x90\xc3"));
        bytes.extend(record(2, &[0x1000, 0], b""));
        bytes.extend(record(0, &[7, 0, 0x2000, 1, 2], b"second\0\xc3"));
        bytes.extend(record(1, &[7, 0, 0x2000, 0x3000, 1, 2], b""));
        let expected = [(0x1000, "first".to_owned()), (0x3000, "second".to_owned())];
        assert_eq!(known(&bytes), expected);
        // However early it ends, it is read to its end.
        for length in 40..bytes.len() {
            let found = known(&bytes[..length]);
            assert!(found.len() <= 2, "{length}");
        }
    }

    #[test]
    fn what_is_no_jitdump_is_refused() {
        for bytes in [&b""[..], b"text", &[0xff; 64]] {
            assert!(read(bytes, &mut JitSymbols::default()).is_err());
        }
        // A record that is shorter than its own beginning ends it.
        let mut bytes = header();
        bytes.extend([0; 64]);
        assert_eq!(known(&bytes), []);
    }
}
