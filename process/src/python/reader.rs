//! Reading objects of CPython. Nothing in the memory of a process is trusted: all that is read has a limit, and objects are
//! of the type that they must have, or are none.

use darc_tracer::addr::TargetAddr;
use darc_tracer::memory::Memory;

/// Of longer names and paths no more is read; characters.
const LONGEST: u64 = 512;

/// The memory of a process, with the places of two types in it.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) memory: Memory,
    pub(super) code_type: u64,
    pub(super) text_type: u64,
}

impl Reader {
    fn bytes<const N: usize>(&self, addr: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.memory.read(TargetAddr(addr), &mut bytes).ok()?;
        Some(bytes)
    }

    /// A word; what is at no address is none.
    pub(super) fn word(&self, addr: u64) -> Option<u64> {
        self.bytes(addr).map(u64::from_le_bytes)
    }

    pub(super) fn half(&self, addr: u64) -> Option<u32> {
        self.bytes(addr).map(u32::from_le_bytes)
    }

    pub(super) fn byte(&self, addr: u64) -> Option<u8> {
        self.bytes::<1>(addr).map(|[byte]| byte)
    }

    /// Words that follow each other.
    pub(super) fn words<const N: usize>(&self, addr: u64) -> Option<[u64; N]> {
        let mut bytes = vec![0; 8 * N];
        self.memory.read(TargetAddr(addr), &mut bytes).ok()?;
        let mut words = bytes
            .as_chunks()
            .0
            .iter()
            .map(|&word| u64::from_le_bytes(word));
        Some([(); N].map(|()| words.next().unwrap_or_default()))
    }

    /// Whether an object is code. Source: `PyObject` (`Include/object.h`): its type is its second word.
    pub(super) fn is_code(&self, object: u64) -> bool {
        self.word(object.wrapping_add(8)) == Some(self.code_type)
    }

    /// A text. Source: PEP 393; `PyASCIIObject` and `PyCompactUnicodeObject` in `Include/cpython/unicodeobject.h`.
    pub(super) fn text(&self, object: u64, (ascii, wide): (u64, u64)) -> Option<String> {
        let [_, kind, length, _, state]: [u64; 5] = self.words(object)?;
        let is_compact = state >> 5 & 1 == 1;
        if kind != self.text_type || !is_compact {
            return None;
        }
        let is_ascii = state >> 6 & 1 == 1;
        let from = object.wrapping_add(if is_ascii { ascii } else { wide });
        let width = state >> 2 & 7;
        let mut bytes = vec![0; (length.min(LONGEST) * width) as usize];
        self.memory.read(TargetAddr(from), &mut bytes).ok()?;
        characters(&bytes, width)
    }
}

/// Characters of one, two or four bytes. Half of a pair, which Python has for bytes of paths that are none, is replaced.
fn characters(bytes: &[u8], width: u64) -> Option<String> {
    let char = |character| char::from_u32(character).unwrap_or(char::REPLACEMENT_CHARACTER);
    match width {
        1 => Some(bytes.iter().copied().map(char::from).collect()),
        2 => {
            let (chunks, _) = bytes.as_chunks();
            let each = chunks.iter();
            Some(
                each.map(|&two| char(u16::from_le_bytes(two).into()))
                    .collect(),
            )
        }
        4 => {
            let (chunks, _) = bytes.as_chunks();
            let each = chunks.iter();
            Some(each.map(|&four| char(u32::from_le_bytes(four))).collect())
        }
        _ => None,
    }
}
