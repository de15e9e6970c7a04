//! The bytes of one function, at the addresses where they run.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic};

/// Data of the running program. Code is handed over as [`FunctionCode`]; this is for what the code
/// refers to: jump tables, PLT slots, the memory operands of indirect calls.
pub trait Memory {
    /// Fills `buf` from run-time address `addr`; false when any byte of it cannot be read.
    fn read(&self, addr: u64, buf: &mut [u8]) -> bool;

    /// The little-endian 64-bit word at `addr`.
    fn read_u64(&self, addr: u64) -> Option<u64> {
        let mut word = [0; 8];
        self.read(addr, &mut word).then(|| u64::from_le_bytes(word))
    }
}

/// A [`Memory`] in which nothing can be read.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoMemory;

impl Memory for NoMemory {
    fn read(&self, _addr: u64, _buf: &mut [u8]) -> bool {
        false
    }
}

/// A contiguous piece of a function. Compilers move unlikely code of a function elsewhere (the
/// `.cold` part), so a function may have several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodePart {
    /// Run-time address of the first byte.
    pub start: u64,
    /// The machine code.
    pub bytes: Vec<u8>,
}

impl CodePart {
    /// The address after the last byte.
    pub fn end(&self) -> u64 {
        self.start.wrapping_add(self.bytes.len() as u64)
    }

    /// Whether `addr` is the address of one of the bytes.
    pub fn contains(&self, addr: u64) -> bool {
        addr.wrapping_sub(self.start) < self.bytes.len() as u64
    }
}

/// Machine code of one function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionCode {
    parts: Vec<CodePart>,
    entrances: Vec<u64>,
    /// The filling behind each part.
    filling: Vec<Vec<u8>>,
    /// See [`FunctionCode::with_ends`].
    ends: Vec<u64>,
}

/// What compilers align functions to.
const ALIGNMENT: u64 = 16;

impl FunctionCode {
    /// A function of these parts, of which the first begins with the function's entry. None when
    /// there is no part, when a part is empty or passes the end of the address space, or when two
    /// parts overlap.
    pub fn new(parts: Vec<CodePart>) -> Option<Self> {
        let sane = |p: &CodePart| {
            !p.bytes.is_empty() && p.start.checked_add(p.bytes.len() as u64).is_some()
        };
        if parts.is_empty() || !parts.iter().all(sane) {
            return None;
        }
        let mut spans: Vec<_> = parts.iter().map(|p| (p.start, p.end())).collect();
        spans.sort_unstable();
        let disjoint = spans.windows(2).all(|pair| pair[0].1 <= pair[1].0);
        disjoint.then(|| Self {
            filling: vec![Vec::new(); parts.len()],
            parts,
            entrances: Vec::new(),
            ends: Vec::new(),
        })
    }

    /// The same, with the filling behind each part: instructions that do nothing (`nop`, `int3`) up to where the next
    /// function is aligned to. `limit` tells, for the end of a part, where something else is known to begin.
    #[must_use]
    pub fn with_filling(mut self, memory: &dyn Memory, limit: impl Fn(u64) -> Option<u64>) -> Self {
        let parts = self.parts.iter().map(|part| {
            let end = part.end();
            let most = end.next_multiple_of(ALIGNMENT);
            let behind = limit(end).map_or(most, |limit| limit.clamp(end, most));
            let mut bytes = vec![0; (behind - end) as usize];
            if self.contains(end) || !memory.read(end, &mut bytes) {
                return Vec::new();
            }
            let decoded = Decoder::with_ip(64, &bytes, end, DecoderOptions::NONE);
            let idle = |i: &Instruction| matches!(i.mnemonic(), Mnemonic::Nop | Mnemonic::Int3);
            let len = decoded.into_iter().take_while(idle).map(|i| i.len()).sum();
            bytes.truncate(len);
            bytes
        });
        self.filling = parts.collect();
        self
    }

    /// The same, where code of other functions is known to jump to these addresses in it.
    #[must_use]
    pub fn with_entrances(self, entrances: Vec<u64>) -> Self {
        Self { entrances, ..self }
    }

    /// The same, where it is certain that no code of the function is behind these ends of its parts.
    #[must_use]
    pub fn with_ends(self, ends: Vec<u64>) -> Self {
        Self { ends, ..self }
    }

    /// Whether a part ends there, and certainly no code of the function is behind that.
    pub fn ends_at(&self, addr: u64) -> bool {
        self.ends.contains(&addr) && !self.contains(addr)
    }

    /// Where code of other functions jumps to, beside the entry, as far as that is known.
    pub fn entrances(&self) -> &[u64] {
        &self.entrances
    }

    /// Address of the first instruction.
    pub fn entry(&self) -> u64 {
        self.parts[0].start
    }

    /// The parts, the one with the entry first.
    pub fn parts(&self) -> &[CodePart] {
        &self.parts
    }

    /// Whether the byte at `addr` belongs to the function.
    pub fn contains(&self, addr: u64) -> bool {
        self.part_of(addr).is_some()
    }

    /// The part that has the byte at `addr`.
    pub fn part_of(&self, addr: u64) -> Option<&CodePart> {
        self.parts.iter().find(|p| p.contains(addr))
    }

    /// Whether it is this code with a breakpoint (`int3`) in place of the first byte.
    #[must_use]
    pub fn is_but_for_breakpoint(&self, of: &FunctionCode) -> bool {
        const INT3: u8 = 0xcc;
        let (Some(own), Some(first)) = (self.parts.first(), of.parts.first()) else {
            return false;
        };
        if own.bytes[0] != INT3 || own.bytes[1..] != first.bytes[1..] {
            return false;
        }
        let mut without = self.clone();
        without.parts[0].bytes[0] = first.bytes[0];
        without == *of
    }

    /// `len` bytes from `addr`, when all of them lie in one part.
    pub fn bytes_at(&self, addr: u64, len: usize) -> Option<&[u8]> {
        let part = self.part_of(addr)?;
        let from = usize::try_from(addr - part.start).ok()?;
        part.bytes.get(from..from.checked_add(len)?)
    }

    /// As [`FunctionCode::bytes_at`], where the last of them may be filling behind the part.
    pub fn filled_bytes_at(&self, addr: u64, len: usize) -> Option<Vec<u8>> {
        let at = self.parts.iter().position(|p| p.contains(addr))?;
        let part = &self.parts[at];
        let from = usize::try_from(addr - part.start).ok()?;
        let bytes = part.bytes[from..].iter().chain(&self.filling[at]);
        let bytes: Vec<u8> = bytes.take(len).copied().collect();
        (bytes.len() == len).then_some(bytes)
    }

    /// How many bytes of filling are behind the part that ends at `end`.
    pub fn filling_at(&self, end: u64) -> usize {
        let at = self.parts.iter().position(|part| part.end() == end);
        at.map_or(0, |at| self.filling[at].len())
    }

    /// The instruction at `addr`; None outside the function and where no instruction decodes.
    pub fn instruction_at(&self, addr: u64) -> Option<Instruction> {
        let part = self.part_of(addr)?;
        let from = usize::try_from(addr - part.start).ok()?;
        let instruction =
            Decoder::with_ip(64, &part.bytes[from..], addr, DecoderOptions::NONE).decode();
        (!instruction.is_invalid()).then_some(instruction)
    }

    /// Whether it returns by a `ret` that takes more off the stack than the return address: one that is hidden there is looked
    /// for by where it was.
    #[must_use]
    pub fn takes_arguments(&self) -> bool {
        let mut instructions = self.instructions();
        instructions.any(|it| it.code() == Code::Retnq_imm16 && it.immediate16() != 0)
    }

    /// The instructions by a linear sweep of each part. The sweep of a part ends at the first bytes
    /// that are no instruction (or are cut off by the part's end); it says so by yielding that last
    /// item with [`Instruction::is_invalid`] set and [`Instruction::ip`] at those bytes.
    pub fn instructions(&self) -> impl Iterator<Item = Instruction> {
        self.parts.iter().flat_map(|part| {
            let mut decoder = Decoder::with_ip(64, &part.bytes, part.start, DecoderOptions::NONE);
            let mut ended = false;
            std::iter::from_fn(move || {
                if ended || !decoder.can_decode() {
                    return None;
                }
                let instruction = decoder.decode();
                ended = instruction.is_invalid();
                Some(instruction)
            })
        })
    }
}

impl Memory for FunctionCode {
    fn read(&self, addr: u64, buf: &mut [u8]) -> bool {
        match self.bytes_at(addr, buf.len()) {
            Some(bytes) => {
                buf.copy_from_slice(bytes);
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(start: u64, bytes: &[u8]) -> CodePart {
        CodePart {
            start,
            bytes: bytes.to_vec(),
        }
    }

    #[test]
    fn a_breakpoint_at_its_first_byte_is_told_from_other_code() {
        let code = |bytes: &[u8]| {
            let part = CodePart {
                start: 0x1000,
                bytes: bytes.to_vec(),
            };
            FunctionCode::new(vec![part]).unwrap()
        };
        let own = code(&[0x55, 0x48, 0x89, 0xe5, 0xc3]);
        assert!(code(&[0xcc, 0x48, 0x89, 0xe5, 0xc3]).is_but_for_breakpoint(&own));
        assert!(!own.is_but_for_breakpoint(&own));
        assert!(!code(&[0xcc, 0x48, 0x89, 0xe6, 0xc3]).is_but_for_breakpoint(&own));
        assert!(!code(&[0xcc, 0x48]).is_but_for_breakpoint(&own));
    }

    #[test]
    fn a_function_has_sane_disjoint_parts() {
        assert!(FunctionCode::new(vec![]).is_none());
        assert!(FunctionCode::new(vec![part(0x10, &[])]).is_none());
        assert!(FunctionCode::new(vec![part(u64::MAX, &[0x90, 0x90])]).is_none());
        assert!(FunctionCode::new(vec![part(0x10, &[0x90; 4]), part(0x13, &[0xc3])]).is_none());
        let code = FunctionCode::new(vec![part(0x20, &[0x90; 4]), part(0x10, &[0xc3])]).unwrap();
        assert_eq!(code.entry(), 0x20);
        assert!(code.contains(0x23) && !code.contains(0x24) && code.contains(0x10));
    }

    #[test]
    fn bytes_come_from_one_part() {
        let code = FunctionCode::new(vec![part(0x10, &[1, 2]), part(0x12, &[3, 4])]).unwrap();
        assert_eq!(code.bytes_at(0x11, 1), Some(&[2][..]));
        assert_eq!(code.bytes_at(0x11, 2), None);
        assert_eq!(code.bytes_at(0x13, usize::MAX), None);
    }

    #[test]
    fn filling_ends_where_something_else_may_begin() {
        // ret; nopw 0(%rax,%rax), nine bytes; int3; and then something, push %rbp
        let bytes = [
            0xc3, 0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0xcc, 0x55, 0x90, 0x90, 0x90, 0x90, 0x90,
        ];
        let memory = FunctionCode::new(vec![part(0x11, &bytes)]).unwrap();
        let function = |limit: Option<u64>| {
            let code = FunctionCode::new(vec![part(0x11, &[0xc3])]).unwrap();
            code.with_filling(&memory, |_| limit)
        };
        for (limit, len) in [
            (None, 10),
            (Some(0x1b), 9),
            (Some(0x13), 0),
            (Some(0x10), 0),
        ] {
            let code = function(limit);
            assert_eq!(code.filling_at(0x12), len, "{limit:?}");
            let whole = code.filled_bytes_at(0x11, 1 + len);
            assert_eq!(whole.as_deref(), Some(&bytes[..1 + len]));
            assert_eq!(code.filled_bytes_at(0x11, 2 + len), None);
        }
        assert_eq!(function(None).filling_at(0x11), 0);
    }

    #[test]
    fn the_sweep_of_a_part_ends_at_bytes_that_are_no_instruction() {
        // nop; (06: no opcode in 64-bit mode); nop        ret
        let code =
            FunctionCode::new(vec![part(0x10, &[0x90, 0x06, 0x90]), part(0x40, &[0xc3])]).unwrap();
        let seen: Vec<_> = code
            .instructions()
            .map(|i| (i.ip(), i.is_invalid()))
            .collect();
        assert_eq!(seen, [(0x10, false), (0x11, true), (0x40, false)]);
    }
}
