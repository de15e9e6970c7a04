//! What holds for any bytes: nothing panics, and what is found lies where it is said to.

use darc_disasm::{
    Cfg, CodePart, FunctionCode, Instruction, Loops, Memory, call_sites_in, function_at, got_slot,
    relocate,
};
use iced_x86::{Decoder, DecoderOptions, Mnemonic};
use proptest::prelude::*;

/// Bytes that often are branches, calls and parts of jump tables.
fn machine_code() -> impl Strategy<Value = Vec<u8>> {
    let known: &[&[u8]] = &[
        &[0xe8, 0, 0, 0, 0],
        &[0xe8, 0xf0, 0xff, 0xff, 0xff],
        &[0xe9, 0x08, 0, 0, 0],
        &[0x0f, 0x84, 0x10, 0, 0, 0],
        &[0x0f, 0x05],
        &[0xb8, 1, 0, 0, 0],
        &[0xff, 0xd0],
        &[0xff, 0xe0],
        &[0xff, 0x15, 0x40, 0, 0, 0],
        &[0xff, 0x24, 0xc5, 0, 0x20, 0, 0],
        &[0x83, 0xf8, 0x03],
        &[0x77, 0x10],
        &[0x48, 0x8d, 0x15, 0x20, 0, 0, 0],
        &[0x48, 0x63, 0x04, 0x82],
        &[0x48, 0x01, 0xd0],
        &[0xf3, 0x0f, 0x1e, 0xfa],
        &[0x55],
        &[0x5b],
        &[0xc3],
        &[0x90],
        &[0xe3, 0x04],
        &[0xc9],
    ];
    let known: Vec<Vec<u8>> = known.iter().map(|b| b.to_vec()).collect();
    let piece = prop_oneof![
        6 => prop::sample::select(known),
        1 => (0x70u8..0x80, any::<i8>()).prop_map(|(op, to)| vec![op, (to % 40) as u8]),
        1 => prop::collection::vec(any::<u8>(), 1..8),
    ];
    prop::collection::vec(piece, 1..60).prop_map(|pieces| pieces.concat())
}

/// Addresses, those at which additions wrap among them.
fn address() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0x40_1000),
        Just(0),
        Just(0x7fff_ffff_f000),
        (0..2048u64).prop_map(|below| u64::MAX - below),
        any::<u64>(),
    ]
}

/// Memory in which every word leads near `around`.
struct Tables {
    around: u64,
}

impl Memory for Tables {
    fn read(&self, addr: u64, buf: &mut [u8]) -> bool {
        let word = match buf.len() {
            8 => self.around.wrapping_add(addr % 64),
            _ => addr.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20 & 0x3f,
        };
        for (at, byte) in buf.iter_mut().enumerate() {
            *byte = word.to_le_bytes()[at % 8];
        }
        !addr.is_multiple_of(61)
    }
}

/// Looks at a function in every way.
fn look_at(code: &FunctionCode, memory: &dyn Memory) {
    let cfg = Cfg::build(code, memory);
    let covered: usize = cfg.blocks().iter().map(|b| b.instructions.len()).sum();
    let invalid = cfg.instructions().iter().filter(|i| i.is_invalid()).count();
    assert_eq!(covered + invalid, cfg.instructions().len());
    for (at, block) in cfg.blocks().iter().enumerate() {
        assert_eq!(cfg.block_of(block.start), Some(at));
        for &next in &block.successors {
            assert!(cfg.blocks()[next].predecessors.contains(&at));
        }
    }
    for inner in Loops::new(&cfg).all() {
        assert!(inner.blocks.contains(&inner.header));
    }
    let found = call_sites_in(code, &cfg);
    for site in &found.sites {
        let at = cfg.instruction_at(site.addr).unwrap();
        assert_eq!(cfg.instructions()[at].next_ip(), site.next());
    }
}

/// What an instruction does, apart from where it lies and how it is encoded.
fn meaning(i: &Instruction) -> (Mnemonic, Vec<u64>) {
    let mut operands = Vec::new();
    for n in 0..i.op_count() {
        operands.push(match i.op_kind(n) {
            iced_x86::OpKind::NearBranch64 => i.near_branch_target(),
            iced_x86::OpKind::Register => i.op_register(n) as u64,
            iced_x86::OpKind::Memory if i.is_ip_rel_memory_operand() => i.ip_rel_memory_address(),
            iced_x86::OpKind::Memory => {
                i.memory_displacement64()
                    ^ (i.memory_base() as u64) << 32
                    ^ (i.memory_index() as u64) << 48
            }
            _ => i.try_immediate(n).unwrap_or(0),
        });
    }
    (i.mnemonic(), operands)
}

proptest! {
    #[test]
    fn any_function_can_be_looked_at(
        bytes in machine_code(),
        start in address(),
        cold in machine_code(),
        cold_start in address(),
    ) {
        let hot = CodePart { start, bytes };
        let cold = CodePart { start: cold_start, bytes: cold };
        let memory = Tables { around: start };
        if let Some(code) = FunctionCode::new(vec![hot.clone()]) {
            look_at(&code, &memory);
            look_at(&code, &code);
        }
        if let Some(code) = FunctionCode::new(vec![hot, cold]) {
            look_at(&code, &memory);
        }
    }

    #[test]
    fn any_bytes_can_be_followed(bytes in machine_code(), start in address()) {
        got_slot(&bytes, start);
        if let Some(code) = FunctionCode::new(vec![CodePart { start, bytes }]) {
            let limit = code.parts()[0].end();
            if let Some(found) = function_at(start, limit, &code) {
                prop_assert_eq!(found.entry(), start);
                prop_assert!(found.parts()[0].end() <= limit);
            }
        }
        function_at(start, u64::MAX, &Tables { around: start });
    }

    #[test]
    fn moved_code_does_the_same(bytes in machine_code(), to in 0x41_0000u64..0x1000_0000) {
        const BASE: u64 = 0x40_1000;
        let old: Vec<_> = Decoder::with_ip(64, &bytes, BASE, DecoderOptions::NONE).iter().collect();
        let Ok(copy) = relocate(&old, to) else { return Ok(()) };
        for (instruction, &(from, at)) in old.iter().zip(&copy.moved) {
            prop_assert_eq!(instruction.ip(), from);
            let offset = (at - to) as usize;
            let new = Decoder::with_ip(64, &copy.bytes[offset..], at, DecoderOptions::NONE).decode();
            let by_rcx = instruction.is_jcx_short() || instruction.is_loop() || instruction.is_loopcc();
            // These jump over a jump; their tests stand with the code.
            if !by_rcx {
                prop_assert_eq!(meaning(instruction), meaning(&new));
            }
        }
        let ends = copy.moved.iter().skip(1).map(|m| m.1).chain([copy.end()]);
        prop_assert!(copy.moved.iter().zip(ends).all(|(m, end)| m.1 < end));
    }
}

/// Code made to be slow to look at: everything branches to everything.
#[test]
fn hostile_code_is_looked_at_in_bounded_time() {
    let jumps = [0x74, 0x7e, 0x75, 0x80, 0xff, 0xe0, 0x48, 0x01, 0xc8].repeat(5_000);
    let indirect = [0x48, 0x01, 0xc0, 0x74, 0xf0, 0xff, 0x24, 0xc1].repeat(5_000);
    let ladder = [0x74, 0x02, 0x75, 0xfa, 0x90].repeat(40_000);
    let leaving = [0x0f, 0x84, 0, 0, 0, 0x10].repeat(5_000);
    for bytes in [jumps, indirect, ladder, leaving] {
        let start = 0x40_1000;
        let code = FunctionCode::new(vec![CodePart { start, bytes }]).unwrap();
        let cfg = Cfg::build(&code, &Tables { around: start });
        call_sites_in(&code, &cfg);
        Loops::new(&cfg);
    }
}
