//! Call frame information of the stubs and their routines, for unwinders that begin in one: a signal may arrive
//! anywhere, and its handler may walk the stack or end the thread. Pure.
//!
//! A stub has no frame of its own. It is told as one that was called by nobody's call: with the stack pointer
//! of the displaced code, and that code's own address as where it returns to. Whoever is interrupted in a
//! stub is so found in the program's function, at the instruction that the stub stands for.
//!
//! Source: DWARF 5, 6.4; Linux Standard Base Core 5.0, 10.6 (`.eh_frame`, the augmentations `z` and `S`).

use std::collections::BTreeMap;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

/// What code of darc's stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stands {
    /// The program's instruction at this address; the stack is as it is there.
    For(u64),
    /// Something that was called: where it returns to is on the stack, and everything else is as its caller left it.
    ///
    /// That is a routine, and also a return or a jump out of a function, whose own description would no longer do:
    /// it may still have registers where the function had saved them, below the stack pointer, and there stubs have
    /// what they save.
    Called,
    /// Nobody knows what.
    Unknown,
}

/// An address at which it is known what stands there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Anchor {
    /// The address.
    pub at: u64,
    /// What stands there.
    pub stands: Stands,
    /// As in [`Row`].
    pub depth: i32,
}

impl Anchor {
    /// A copy of displaced code, with the stack as it is there.
    #[must_use]
    pub fn copy(at: u64, of: u64) -> Anchor {
        let stands = Stands::For(of);
        Anchor {
            at,
            stands,
            depth: 0,
        }
    }

    /// The first instruction of something that was called.
    #[must_use]
    pub fn called(at: u64) -> Anchor {
        let stands = Stands::Called;
        Anchor {
            at,
            stands,
            depth: -8,
        }
    }
}

/// From an address of darc's code on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// The address.
    pub from: u64,
    /// What stands there.
    pub stands: Stands,
    /// How far the stack pointer is from where it would be, or from before the call, in bytes: negative for more on
    /// the stack.
    pub depth: i32,
}

type State = (Stands, i32);

/// What calls within the code are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Calls {
    /// Calls of routines.
    Return,
    /// Jumps that also push an address: stubs have such, to keep the processor's prediction of returns right.
    Jump,
}

/// Follows code from where its state is known.
///
/// Whatever is not reached, or does with the stack what is not understood, is unknown.
#[must_use]
pub fn rows(code: &[u8], at: u64, calls: Calls, anchors: &[Anchor]) -> Vec<Row> {
    let states = anchors
        .iter()
        .map(|anchor| (anchor.at, (anchor.stands, anchor.depth)));
    let anchors: BTreeMap<u64, State> = states.collect();
    let mut reached: BTreeMap<u64, (State, u64)> = BTreeMap::new();
    let mut open: Vec<(u64, State)> = anchors.iter().map(|(&at, &state)| (at, state)).collect();
    let own = at..at + code.len() as u64;
    while let Some((addr, state)) = open.pop() {
        let state = anchors.get(&addr).copied().unwrap_or(state);
        if !own.contains(&addr) || reached.contains_key(&addr) {
            continue;
        }
        let bytes = &code[(addr - at) as usize..];
        let instruction = Decoder::with_ip(64, bytes, addr, DecoderOptions::NONE).decode();
        if instruction.is_invalid() {
            continue;
        }
        let next = instruction.next_ip();
        reached.insert(addr, (state, next));
        let (stands, depth) = state;
        let after = match moves(&instruction) {
            Some(by) => (stands, depth + by),
            None => (Stands::Unknown, depth),
        };
        let target = instruction.near_branch_target();
        match instruction.flow_control() {
            FlowControl::Next | FlowControl::IndirectCall | FlowControl::Interrupt => {
                open.push((next, after));
            }
            FlowControl::ConditionalBranch => open.extend([(next, after), (target, after)]),
            FlowControl::UnconditionalBranch => open.push((target, after)),
            FlowControl::Call if !own.contains(&target) => open.push((next, after)),
            FlowControl::Call => match calls {
                Calls::Return => open.extend([(next, after), (target, (Stands::Called, -8))]),
                Calls::Jump => open.push((target, (stands, depth - 8))),
            },
            _ => {}
        }
    }
    let mut rows: Vec<Row> = Vec::new();
    let mut expected = at;
    let mut add = |from, (stands, depth): State| {
        // Where a call's return address has not been pushed yet there is none.
        let stands = match stands {
            Stands::Called if depth > -8 => Stands::Unknown,
            stands => stands,
        };
        let same = |last: &Row| (last.stands, last.depth) == (stands, depth);
        if !rows.last().is_some_and(same) {
            rows.push(Row {
                from,
                stands,
                depth,
            });
        }
    };
    for (addr, (state, next)) in reached {
        if addr != expected {
            add(expected, (Stands::Unknown, 0));
        }
        add(addr, state);
        expected = next;
    }
    if expected < own.end {
        add(expected, (Stands::Unknown, 0));
    }
    rows
}

/// By how much an instruction moves the stack pointer for what comes behind it; none when that is not known.
fn moves(instruction: &Instruction) -> Option<i32> {
    let to_rsp = instruction.op_count() > 0
        && instruction.op0_kind() == OpKind::Register
        && instruction.op0_register() == Register::RSP;
    match instruction.mnemonic() {
        // What was called has returned.
        Mnemonic::Call => Some(0),
        Mnemonic::Lea if to_rsp => {
            let plain = instruction.memory_base() == Register::RSP
                && instruction.memory_index() == Register::None;
            plain.then_some(instruction.memory_displacement64() as i32)
        }
        Mnemonic::Push | Mnemonic::Pop if !to_rsp => Some(instruction.stack_pointer_increment()),
        Mnemonic::Add | Mnemonic::Sub if to_rsp => {
            let immediate = instruction.try_immediate(1).ok()? as i32;
            Some(match instruction.mnemonic() {
                Mnemonic::Add => immediate,
                _ => -immediate,
            })
        }
        Mnemonic::Cmp | Mnemonic::Test => Some(0),
        _ if to_rsp => None,
        _ if instruction.is_stack_instruction() => match instruction.flow_control() {
            FlowControl::Next => None,
            _ => Some(0),
        },
        _ => Some(0),
    }
}

/// The numbers of registers (System V ABI for AMD64, figure 3.36).
const RSP: u8 = 7;
const RETURN_ADDRESS: u8 = 16;

/// What all entries of a table refer to, at its beginning: one for what stands for the program's code, one for what was
/// called.
///
/// The first is that of a signal frame: where it returns to is an instruction yet to be run, not one behind a call.
pub const COMMON: [u8; 2 * COMMON_BYTES] = *b"\
\x14\0\0\0\0\0\0\0\x01zS\0\x01\x78\x10\0\0\0\0\0\0\0\0\0\
\x14\0\0\0\0\0\0\0\x01z\0\x01\x78\x10\0\x90\x01\0\0\0\0\0\0\0";
const COMMON_BYTES: usize = 24;

/// Where in an entry the first address that it is of is, and behind it their number.
pub const ENTRY_START: u64 = 8;
/// Where its number of addresses is.
pub const ENTRY_COUNT: u64 = 16;

/// The entries of what is known of the code at `start`, to lie `offset` bytes behind their table's beginning: one for
/// each part that is of one kind.
#[must_use]
pub fn entries(offset: u64, start: u64, len: u64, rows: &[Row]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let kind = |row: &Row| row.stands == Stands::Called;
    for part in rows.chunk_by(|a, b| kind(a) == kind(b)) {
        let from = part[0].from;
        let behind = rows.iter().find(|row| row.from > part[part.len() - 1].from);
        let end = behind.map_or(start + len, |row| row.from);
        let known = part.iter().any(|row| row.stands != Stands::Unknown);
        if known && end > from {
            let at = offset + bytes.len() as u64;
            bytes.extend(entry(at, from, end - from, part));
        }
    }
    bytes
}

fn entry(offset: u64, start: u64, len: u64, rows: &[Row]) -> Vec<u8> {
    let called = rows[0].stands == Stands::Called;
    let common = if called { COMMON_BYTES as u64 } else { 0 };
    let mut bytes = vec![0; 4];
    bytes.extend(((offset + 4 - common) as u32).to_le_bytes());
    bytes.extend(start.to_le_bytes());
    bytes.extend(len.to_le_bytes());
    bytes.push(0);
    let mut at = start;
    let mut stands = Stands::Called;
    for row in rows {
        if row.from > at {
            bytes.push(op::ADVANCE_LOC4);
            bytes.extend(((row.from - at) as u32).to_le_bytes());
            at = row.from;
        }
        // The factor of offsets is -8, and the stack grows downwards: both signs cancel.
        bytes.extend([op::DEF_CFA_SF, RSP]);
        signed(&mut bytes, row.depth / 8);
        if stands != row.stands {
            match row.stands {
                Stands::For(addr) => {
                    bytes.extend([op::VAL_EXPRESSION, RETURN_ADDRESS, 9, op::CONST8U]);
                    bytes.extend(addr.to_le_bytes());
                }
                Stands::Called => {}
                Stands::Unknown => bytes.extend([op::UNDEFINED, RETURN_ADDRESS]),
            }
            stands = row.stands;
        }
    }
    bytes.resize(bytes.len().next_multiple_of(8), op::NOP);
    let len = bytes.len() as u32 - 4;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    bytes
}

/// DW_CFA_* and DW_OP_* (DWARF 5, 7.24 and 7.7.1).
mod op {
    pub const NOP: u8 = 0x00;
    pub const ADVANCE_LOC4: u8 = 0x04;
    pub const UNDEFINED: u8 = 0x07;
    pub const DEF_CFA_SF: u8 = 0x12;
    pub const VAL_EXPRESSION: u8 = 0x16;
    pub const CONST8U: u8 = 0x0e;
}

/// Signed LEB128 (DWARF 5, 7.6).
fn signed(bytes: &mut Vec<u8>, mut value: i32) {
    loop {
        let low = (value & 0x7f) as u8;
        value >>= 7;
        let last = matches!((value, low & 0x40), (0, 0) | (-1, 0x40));
        bytes.push(if last { low } else { low | 0x80 });
        if last {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use gimli::{BaseAddresses, CfaRule, EhFrame, LittleEndian, RegisterRule, UnwindSection as _};

    use super::*;

    const AT: u64 = 0x7f00_0000_1000;

    /// push rax; lea rsp,[rsp-48]; je +1; nop; lea rsp,[rsp+48]; pop rax; jmp elsewhere; data
    const CODE: &[u8] =
        b"\x50\x48\x8d\x64\x24\xd0\x74\x01\x90\x48\x8d\x64\x24\x30\x58\xe9\0\0\x10\0\xff\xff";

    fn depths(rows: &[Row]) -> Vec<(u64, Stands, i32)> {
        rows.iter()
            .map(|row| (row.from - AT, row.stands, row.depth))
            .collect()
    }

    #[test]
    fn the_stack_pointer_is_followed() {
        let code = Stands::For(0x40_1234);
        let rows = rows(CODE, AT, Calls::Jump, &[Anchor::copy(AT, 0x40_1234)]);
        let expected = [
            (0, code, 0),
            (1, code, -8),
            (6, code, -56),
            (14, code, -8),
            (15, code, 0),
            (20, Stands::Unknown, 0),
        ];
        assert_eq!(depths(&rows), expected);
    }

    #[test]
    fn what_is_not_understood_is_unknown() {
        // mov rsp,rbp; nop
        let rows = rows(b"\x48\x89\xec\x90", AT, Calls::Jump, &[Anchor::copy(AT, 7)]);
        let expected = [(0, Stands::For(7), 0), (3, Stands::Unknown, 0)];
        assert_eq!(depths(&rows), expected);
        assert_eq!(
            super::rows(b"\x06", AT, Calls::Jump, &[Anchor::copy(AT, 7)])[0].stands,
            Stands::Unknown
        );
        assert!(super::rows(b"", AT, Calls::Return, &[Anchor::called(AT)]).is_empty());
    }

    /// What an unwinder reads is what was written: another implementation says so.
    #[test]
    fn a_table_says_what_the_rows_say() {
        let mut table = COMMON.to_vec();
        let called = [Anchor::called(AT), Anchor::copy(AT + 9, 0x40_1235)];
        for (start, anchors) in [(AT, &called[..]), (AT + 64, &[Anchor::copy(AT + 64, 9)])] {
            let rows = rows(CODE, start, Calls::Return, anchors);
            table.extend(entries(table.len() as u64, start, CODE.len() as u64, &rows));
            table.extend([0; 4]);
            let section = EhFrame::new(&table, LittleEndian);
            let bases = BaseAddresses::default();
            let mut context = gimli::UnwindContext::new();
            for (row, next) in rows.iter().zip(rows.iter().skip(1)) {
                let find = EhFrame::cie_from_offset;
                let entry = section.fde_for_address(&bases, row.from, find);
                if row.stands == Stands::Unknown {
                    continue;
                }
                let entry = entry.unwrap();
                let found = entry
                    .unwind_info_for_address(&section, &bases, &mut context, row.from)
                    .unwrap();
                let expected = CfaRule::RegisterAndOffset {
                    register: gimli::X86_64::RSP,
                    offset: i64::from(-row.depth),
                };
                assert_eq!(*found.cfa(), expected, "{row:?}");
                let rule = found.register(gimli::X86_64::RA);
                match row.stands {
                    Stands::For(_) => assert!(matches!(rule, Some(RegisterRule::ValExpression(_)))),
                    _ => assert_eq!(rule, Some(RegisterRule::Offset(-8))),
                }
                let signal = matches!(row.stands, Stands::For(_));
                assert_eq!(entry.is_signal_trampoline(), signal);
                assert!(next.from > row.from);
            }
            table.truncate(table.len() - 4);
        }
    }
}
