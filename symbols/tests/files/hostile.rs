//! Damaged and malicious files: no panic, bounded time and memory. What counts as bounded is left to the runner of the
//! tests; each of these took minutes, gigabytes or a stack overflow where a bound was missing.

use std::path::Path;

use darc_symbols::{DebugSearch, Error, FileAddr, Image, NameSpec, Unsupported, resolve};
use proptest::prelude::*;

use crate::harness::Workshop;

fn open(bytes: Vec<u8>) -> Result<Image, Error> {
    Image::from_bytes(bytes, Path::new("/hostile"), &DebugSearch::nowhere())
}

/// Asks everything there is to ask.
fn interrogate(image: &Image) {
    let mut addrs = vec![FileAddr(0), FileAddr(u64::MAX), image.entry()];
    let functions = image.functions();
    addrs.extend(
        functions
            .iter()
            .step_by(functions.len() / 8 + 1)
            .map(|function| function.addr),
    );
    addrs.extend(image.segments().iter().map(|segment| segment.addr));
    for addr in addrs {
        let _ = (
            image.function_at(addr),
            image.frames(addr),
            image.plt_name(addr),
            image.got_name(addr),
        );
        let _ = (
            image.bytes_at(addr, 64),
            image.clones(addr),
            image.addr_of_offset(addr.0),
            image.is_code(addr),
            image.body(addr),
        );
    }
    let _ = (
        image.is_go(),
        image.is_stripped(),
        image.interpreter(),
        image.symbol("main"),
        image.build_id(),
    );
    for name in [
        "outer",
        "inner",
        "prog.c:3",
        "o*",
        "hostile:0x1000",
        "nothing",
    ] {
        if let Err(error) = resolve(&NameSpec::parse(name).unwrap(), &[image]) {
            assert!(!error.to_string().contains('\n'));
        }
    }
    let _ = (image.inlined_into("inner"), image.suggest("ouetr", 3));
    for warning in image.warnings() {
        assert!(!warning.contains(|c: char| c.is_control()), "{warning:?}");
    }
}

/// A small program with everything in it.
fn sample(options: &str) -> Vec<u8> {
    let source = r#"
        static volatile int sink;
        static inline __attribute__((always_inline)) int inner(int x) { sink += x; return sink; }
        __attribute__((noinline)) int outer(int x) { return inner(x) + 1; }
        void _start(void) { outer(3); for (;;); }
    "#;
    let workshop = Workshop::c(&format!("-O1 -nostdlib {options}"), source);
    std::fs::read(workshop.path("prog")).unwrap()
}

/// Flips bits in every byte that is not in the middle of padding.
fn flip_every_byte(bytes: &[u8], flip: u8) {
    interrogate(&open(bytes.to_vec()).unwrap());
    for at in 0..bytes.len() {
        let around = &bytes[at.saturating_sub(8)..bytes.len().min(at + 8)];
        if around.iter().any(|&byte| byte != 0) {
            let mut bytes = bytes.to_vec();
            bytes[at] ^= flip;
            if let Ok(image) = open(bytes) {
                interrogate(&image);
            }
        }
    }
}

#[test]
fn every_byte_inverted() {
    flip_every_byte(&sample("-static -gdwarf-4"), 0xff);
}

#[test]
fn every_lowest_bit_inverted() {
    flip_every_byte(&sample("-pie -fPIE -gdwarf-5"), 0x01);
}

#[test]
fn truncated_at_every_byte() {
    let bytes = sample("-pie -fPIE -gdwarf-5");
    for len in 0..bytes.len() {
        if let Ok(image) = open(bytes[..len].to_vec()) {
            interrogate(&image);
        }
    }
}

#[test]
fn this_program_truncated() {
    let bytes = std::fs::read("/proc/self/exe").unwrap();
    for part in 1..8 {
        if let Ok(image) = open(bytes[..bytes.len() / 8 * part].to_vec()) {
            let _ = (
                image.functions(),
                image.frames(image.entry()),
                image.symbol("main"),
            );
        }
    }
}

proptest! {
    #[test]
    fn random_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..2048)) {
        prop_assert!(open(bytes).is_err());
    }

    #[test]
    fn random_bytes_behind_a_header(bytes in proptest::collection::vec(any::<u8>(), 0..4096), kind in 2u8..=3) {
        let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        file.extend([kind, 0, 62, 0, 1, 0, 0, 0]);
        file.extend(bytes);
        if let Ok(image) = open(file) {
            interrogate(&image);
        }
    }

    #[test]
    fn random_damage(places in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20)) {
        static SAMPLE: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
        let mut bytes = SAMPLE.get_or_init(|| sample("-static -gdwarf-5")).clone();
        for (place, value) in places {
            let at = place.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(image) = open(bytes) {
            interrogate(&image);
        }
    }

    #[test]
    fn any_name(name in "\\PC{0,40}") {
        if let Ok(spec) = NameSpec::parse(&name) {
            prop_assert!(!spec.to_string().contains('\n'));
        }
        let _ = darc_symbols::demangle(&name);
        let _ = darc_symbols::demangle(&format!("_Z{name}"));
        let _ = darc_symbols::demangle(&format!("_R{name}"));
    }
}

#[test]
fn files_of_other_kinds_are_named() {
    let header = |class: u8, data: u8, kind: u8, machine: u8| {
        let mut bytes = vec![
            0x7f, b'E', b'L', b'F', class, data, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, kind, 0, machine, 0,
        ];
        bytes.resize(64, 0);
        bytes
    };
    for (bytes, expected) in [
        (header(1, 1, 2, 3), Unsupported::X86),
        (header(1, 1, 2, 62), Unsupported::X32),
        (header(2, 1, 3, 183), Unsupported::Aarch64),
        (header(2, 2, 2, 62), Unsupported::BigEndian),
        (header(2, 1, 1, 62), Unsupported::ObjectFile),
        (header(2, 1, 4, 62), Unsupported::Core),
        (header(2, 1, 9, 62), Unsupported::Type(9)),
        (header(2, 1, 2, 243), Unsupported::Machine(243)),
    ] {
        let error = open(bytes).unwrap_err();
        assert!(
            matches!(error, Error::Unsupported { kind, .. } if kind == expected),
            "{error}"
        );
    }
    assert!(
        matches!(open(b"#!/bin/sh\n".to_vec()), Err(Error::NotElf { found, .. }) if found.contains("script"))
    );
    assert!(matches!(open(Vec::new()), Err(Error::NotElf { .. })));
    let directory = std::fs::File::open("/").unwrap();
    assert!(matches!(
        Image::open(directory, Path::new("/"), &DebugSearch::nowhere()),
        Err(Error::NotAFile { .. })
    ));
}

#[test]
fn a_file_that_shrinks_while_it_is_open() {
    let workshop = Workshop::new();
    let bytes = sample("-static -g");
    std::fs::write(workshop.path("prog"), &bytes).unwrap();
    let image = workshop.prog();
    std::fs::File::options()
        .write(true)
        .open(workshop.path("prog"))
        .unwrap()
        .set_len(4096)
        .unwrap();
    interrogate(&image);
    assert!(!image.warnings().is_empty());
}

#[test]
fn names_with_control_characters() {
    let source = "__asm__(\".text\\n.globl \\\"a\\\\033[31mb\\\"\\n.type \\\"a\\\\033[31mb\\\",@function\\n\\\"a\\\\033[31mb\\\": ret\\n\"); int main(void) { return 0; }";
    let workshop = Workshop::c("-O1", source);
    let mut bytes = std::fs::read(workshop.path("prog")).unwrap();
    // Whatever the assembler made of it, the name is in the file now.
    let at = bytes
        .windows(4)
        .position(|window| window == b"[31m")
        .unwrap();
    bytes[at - 1] = 0x1b;
    let image = open(bytes).unwrap();
    let error = resolve(&NameSpec::parse("a*b").unwrap(), &[&image, &image])
        .unwrap_err()
        .to_string();
    assert!(
        !error.contains('\x1b') && error.contains("\\u{1b}"),
        "{error}"
    );
}

#[test]
fn sections_beyond_all_measure() {
    let bytes = sample("-static -g");
    let shoff = usize::try_from(u64::from_le_bytes(bytes[40..48].try_into().unwrap())).unwrap();
    // No number in the file header: it is in the size of the first section, 2^32 of them.
    let mut many = bytes.clone();
    many[60..62].fill(0);
    many[shoff + 32..shoff + 40].copy_from_slice(&(1u64 << 32).to_le_bytes());
    interrogate(&open(many).unwrap());
    // Every section claims everything.
    let mut huge = bytes.clone();
    let count = usize::from(u16::from_le_bytes([bytes[60], bytes[61]]));
    for section in 0..count {
        let at = shoff + section * 64 + 32;
        huge[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
    }
    interrogate(&open(huge).unwrap());
}

#[test]
fn symbols_beyond_all_measure() {
    let workshop = Workshop::new();
    let function = |name| {
        format!(
            ".globl {name}\n.type {name},@function\n{name}: nop\nret\n.size {name},0x8000000000000000\n"
        )
    };
    let text = format!(
        ".text\n{}{}{}",
        function("_start"),
        function("foo"),
        function("foo.cold")
    );
    workshop.write("prog.s", &text);
    workshop.run("cc -nostdlib -static -o prog prog.s");
    let image = open(std::fs::read(workshop.path("prog")).unwrap()).unwrap();
    interrogate(&image);
    let foo = image.function_at(image.symbol("foo").unwrap()).unwrap();
    assert_eq!((foo.size, foo.cold_parts.len()), (Some(4), 1), "{foo:?}");
    assert_eq!(foo.cold_parts[0].len(), 2, "{foo:?}");
}

/// Builds a program whose debugging information is this assembly.
fn with_dwarf(abbreviations: &str, entries: &str, more: &str) -> Image {
    let workshop = Workshop::new();
    let text = format!(
        ".text\n.globl _start\n.type _start,@function\n_start: nop\nnop\nret\n.Lend: .size _start,.-_start\n\
         .section .debug_abbrev\n.Labbrev: {abbreviations}\n.byte 0\n\
         .section .debug_info\n.long .Linfo_end-.Linfo\n.Linfo: .short 4\n.long 0\n.byte 8\n{entries}\n.Linfo_end:\n{more}\n"
    );
    workshop.write("prog.s", &text);
    workshop.run("cc -nostdlib -static -o prog prog.s");
    open(std::fs::read(workshop.path("prog")).unwrap()).unwrap()
}

/// A unit that covers `_start`: abbreviation 1, low and high pc.
const UNIT: &str = ".uleb128 1,0x11\n.byte 1\n.uleb128 0x11,0x1,0x12,0x7,0,0\n";
const UNIT_ENTRY: &str = ".uleb128 1\n.quad _start\n.quad .Lend-_start\n";

#[test]
fn entries_nested_a_million_times() {
    let abbreviations = format!(
        "{UNIT}.uleb128 2,0x2e\n.byte 1\n.uleb128 0x11,0x1,0x12,0x7,0,0\n.uleb128 3,0x1d\n.byte 1\n.uleb128 0,0\n"
    );
    let entries = format!(
        "{UNIT_ENTRY}.uleb128 2\n.quad _start\n.quad .Lend-_start\n.fill 1000000,1,3\n.fill 1000002,1,0\n"
    );
    let image = with_dwarf(&abbreviations, &entries, "");
    let frames = image.frames(image.entry());
    assert_eq!(frames[0].function, "_start");
    assert!(
        image.warnings()[0].contains("nest too deep"),
        "{:?}",
        image.warnings()
    );
    let _ = image.inlined_into("something");
}

#[test]
fn nesting_up_to_the_bound_is_fine() {
    let abbreviations = format!(
        "{UNIT}.uleb128 2,0x2e\n.byte 1\n.uleb128 0x11,0x1,0x12,0x7,0,0\n.uleb128 3,0x1d\n.byte 1\n.uleb128 0,0\n"
    );
    let entries = format!(
        "{UNIT_ENTRY}.uleb128 2\n.quad _start\n.quad .Lend-_start\n.fill 250,1,3\n.fill 252,1,0\n"
    );
    let image = with_dwarf(&abbreviations, &entries, "");
    assert_eq!(image.frames(image.entry())[0].function, "_start");
    assert_eq!(image.warnings(), Vec::<String>::new());
}

#[test]
fn origins_in_a_circle() {
    // Two functions, each the abstract origin of the other; and an inlined copy of the first.
    let abbreviations = format!(
        "{UNIT}.uleb128 2,0x2e\n.byte 1\n.uleb128 0x11,0x1,0x12,0x7,0x31,0x13,0,0\n\
         .uleb128 3,0x2e\n.byte 0\n.uleb128 0x31,0x13,0,0\n.uleb128 4,0x1d\n.byte 0\n.uleb128 0x11,0x1,0x12,0x7,0x31,0x13,0,0\n"
    );
    let start = ".Linfo-4";
    let entries = format!(
        "{UNIT_ENTRY}.La: .uleb128 2\n.quad _start\n.quad .Lend-_start\n.long .Lb-({start})\n\
         .uleb128 4\n.quad _start\n.quad .Lend-_start\n.long .La-({start})\n.byte 0\n\
         .Lb: .uleb128 3\n.long .La-({start})\n.byte 0\n"
    );
    let image = with_dwarf(&abbreviations, &entries, "");
    assert_eq!(
        image.frames(image.entry()).last().unwrap().function,
        "_start"
    );
    let _ = image.inlined_into("_start");
}

#[test]
fn a_form_that_refers_to_itself() {
    // DW_FORM_indirect whose value is DW_FORM_indirect, and so on.
    let abbreviations = ".uleb128 1,0x11\n.byte 0\n.uleb128 0x11,0x16,0,0\n".to_owned();
    let image = with_dwarf(&abbreviations, ".uleb128 1\n.fill 1000000,1,0x16\n", "");
    assert_eq!(image.frames(image.entry()).len(), 1);
}

#[test]
fn units_that_share_one_long_line_program() {
    // 20,000 units over the same address, each with a line program of 1 MB.
    let units = 20_000;
    let abbreviations = ".uleb128 1,0x11\n.byte 0\n.uleb128 0x11,0x1,0x12,0x7,0x10,0x17,0,0\n";
    let unit = ".uleb128 1\n.quad _start\n.quad 3\n.long 0\n";
    let entries = format!(
        "{unit}.Linfo_end:\n.rept {units}\n.long 28\n.short 4\n.long 0\n.byte 8\n{unit}.endr\n.set .Lunused, ."
    );
    let lines = ".section .debug_line\n.long .Lline_end-.Lline\n.Lline: .short 4\n.long .Lprogram-.Lheader\n.Lheader: .byte 1,1,1,-5,14,13,0,1,1,1,1,0,0,0,1,0,0,1\n\
         .byte 0\n.asciz \"f.c\"\n.byte 0,0,0,0\n.Lprogram: .byte 0,9,2\n.quad _start\n.fill 1000000,1,0x20\n.Lline_end:";
    let workshop = Workshop::new();
    let text = format!(
        ".text\n.globl _start\n.type _start,@function\n_start: nop\nnop\nret\n.size _start,.-_start\n\
         .section .debug_abbrev\n{abbreviations}.byte 0\n\
         .section .debug_info\n.long .Linfo_end-.Linfo\n.Linfo: .short 4\n.long 0\n.byte 8\n{entries}\n{lines}\n"
    );
    workshop.write("prog.s", &text);
    workshop.run("cc -nostdlib -static -o prog prog.s");
    let image = open(std::fs::read(workshop.path("prog")).unwrap()).unwrap();
    assert_eq!(image.frames(image.entry())[0].function, "_start");
    assert!(
        image.warnings()[0].contains("claim one address"),
        "{:?}",
        image.warnings()
    );
    let _ = resolve(&NameSpec::parse("f.c:7").unwrap(), &[&image]);
}

#[test]
fn functions_that_share_one_long_range_list() {
    // 100,000 functions, each with the same 10,000 ranges.
    let abbreviations = format!("{UNIT}.uleb128 2,0x2e\n.byte 0\n.uleb128 0x55,0x17,0,0\n");
    let entries = format!("{UNIT_ENTRY}.rept 100000\n.byte 2\n.long 0\n.endr\n.byte 0\n");
    let ranges = ".section .debug_ranges\n.rept 10000\n.quad 0x1000,0x2000\n.endr\n.quad 0,0\n";
    let image = with_dwarf(&abbreviations, &entries, ranges);
    assert_eq!(image.frames(image.entry())[0].function, "_start");
    assert!(
        image.warnings()[0].contains("damaged debugging information"),
        "{:?}",
        image.warnings()
    );
}

#[test]
fn a_compressed_bomb() {
    // 64 KiB of zeros, compressed, that claim to be 64 GiB.
    let workshop = Workshop::c(
        "-g -O1 -nostdlib -static -gz=zlib",
        "void _start(void) { for (;;); }",
    );
    let mut bytes = std::fs::read(workshop.path("prog")).unwrap();
    let shoff = usize::try_from(u64::from_le_bytes(bytes[40..48].try_into().unwrap())).unwrap();
    let count = usize::from(u16::from_le_bytes([bytes[60], bytes[61]]));
    let mut bombs = 0;
    for section in 0..count {
        let header = shoff + section * 64;
        let field =
            |at: usize| u64::from_le_bytes(bytes[header + at..header + at + 8].try_into().unwrap());
        let (flags, offset) = (field(8), usize::try_from(field(24)).unwrap());
        if flags & 0x800 != 0 {
            bytes[offset + 8..offset + 16].copy_from_slice(&(64u64 << 30).to_le_bytes());
            bombs += 1;
        }
    }
    assert!(bombs > 0);
    let image = open(bytes).unwrap();
    assert_eq!(image.frames(image.entry())[0].line, None);
    assert!(
        image.warnings()[0].contains("compressed section"),
        "{:?}",
        image.warnings()
    );
}

#[test]
fn symbols_that_share_one_endless_name() {
    let names = ".section .symbols_text,\"ax\"\n";
    let mut text = format!("{names}.globl _start\n_start: ret\n");
    text += ".section .bulk,\"\"\n.Lsyms:\n.rept 200000\n.long 1\n.byte 0x12,0\n.short 1\n.quad 0x401000,1\n.endr\n.Lnames: .byte 0\n.fill 8000000,1,0x61\n";
    let workshop = Workshop::new();
    workshop.write("prog.s", &text);
    workshop.run("cc -nostdlib -static -o prog prog.s");
    let mut bytes = std::fs::read(workshop.path("prog")).unwrap();
    // Point the symbol table and its strings into the bulk.
    let shoff = usize::try_from(u64::from_le_bytes(bytes[40..48].try_into().unwrap())).unwrap();
    let count = usize::from(u16::from_le_bytes([bytes[60], bytes[61]]));
    let header = |section: usize| shoff + section * 64;
    let int = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let long = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let symtab = (0..count)
        .find(|&section| int(&bytes, header(section) + 4) == 2)
        .unwrap();
    let strtab = int(&bytes, header(symtab) + 40) as usize;
    let bulk = (0..count)
        .find(|&section| long(&bytes, header(section) + 32) == 200_000 * 24 + 8_000_001)
        .unwrap();
    let offset = long(&bytes, header(bulk) + 24);
    for (section, offset, size) in [
        (symtab, offset, 200_000 * 24),
        (strtab, offset + 200_000 * 24, 8_000_001),
    ] {
        let at = header(section);
        bytes[at + 24..at + 32].copy_from_slice(&offset.to_le_bytes());
        bytes[at + 32..at + 40].copy_from_slice(&u64::to_le_bytes(size));
    }
    let image = open(bytes).unwrap();
    interrogate(&image);
}
