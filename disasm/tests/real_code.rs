//! The code of this test itself and of the libraries that it uses.

use std::collections::BTreeSet;
use std::fs;

use darc_disasm::{
    Cfg, CodePart, FunctionCode, NoMemory, SiteKind, Target, call_sites, call_sites_in, function_at,
};
use iced_x86::{Decoder, DecoderOptions, FlowControl};

/// Functions looked at in one module: the test is to be quick without optimisation, too.
const MOST_FUNCTIONS: usize = 1500;

/// The executable mappings of files in this process, as they lie in memory.
fn texts() -> Vec<CodePart> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mut texts = Vec::new();
    for line in maps.lines() {
        let columns: Vec<_> = line.split_whitespace().collect();
        let &[range, "r-xp", offset, _, _, path] = &columns[..] else {
            continue;
        };
        let (Some((start, end)), Ok(file)) = (range.split_once('-'), fs::read(path)) else {
            continue;
        };
        let number = |hex| u64::from_str_radix(hex, 16).unwrap();
        let offset = number(offset) as usize;
        let len = (number(end) - number(start)) as usize;
        let bytes = &file[offset.min(file.len())..(offset + len).min(file.len())];
        texts.push(CodePart {
            start: number(start),
            bytes: bytes.to_vec(),
        });
    }
    assert!(texts.len() >= 2, "{maps}");
    texts
}

/// The functions of a module that are called directly, each up to the next.
fn functions(text: &CodePart) -> Vec<FunctionCode> {
    let decoder = Decoder::with_ip(64, &text.bytes, text.start, DecoderOptions::NONE);
    let entries: BTreeSet<u64> = decoder
        .into_iter()
        .filter(|i| i.is_call_near())
        .map(|i| i.near_branch_target())
        .filter(|&target| text.contains(target))
        .collect();
    let ends = entries.iter().skip(1).copied().chain([text.end()]);
    entries
        .iter()
        .zip(ends)
        .filter(|(start, end)| end - **start < 0x4000)
        .take(MOST_FUNCTIONS)
        .map(|(&start, end)| {
            let bytes = &text.bytes[(start - text.start) as usize..(end - text.start) as usize];
            let part = CodePart {
                start,
                bytes: bytes.to_vec(),
            };
            FunctionCode::new(vec![part]).unwrap()
        })
        .collect()
}

#[test]
fn call_sites_agree_with_a_linear_sweep() {
    let mut calls = 0;
    for text in texts() {
        let whole = FunctionCode::new(vec![text.clone()]).unwrap();
        for code in functions(&text) {
            let cfg = Cfg::build(&code, &whole);
            let found = call_sites_in(&code, &cfg);
            let swept: Vec<_> = code
                .instructions()
                .filter(|i| {
                    matches!(
                        i.flow_control(),
                        FlowControl::Call | FlowControl::IndirectCall
                    ) && !i.is_invalid()
                })
                .map(|i| (i.ip(), i.next_ip()))
                .collect();
            let sites = found
                .sites
                .iter()
                .filter(|s| matches!(s.kind, SiteKind::Call(_) | SiteKind::Syscall { .. }));
            let sites: Vec<_> = sites.map(|s| (s.addr, s.next())).collect();
            assert!(sites.iter().all(|site| swept.contains(site)));
            calls += sites.len();
        }
    }
    assert!(calls > 1000, "{calls}");
}

#[inline(never)]
fn fails(number: u32) -> Option<u32> {
    std::hint::black_box(number).checked_sub(1)
}

#[inline(never)]
fn calls_another(number: u32) -> u32 {
    std::hint::black_box(fails(number).unwrap_or(0)) + 1
}

#[test]
fn a_function_of_this_test_calls_another() {
    let entry = calls_another as *const () as u64;
    let text = texts().into_iter().find(|t| t.contains(entry)).unwrap();
    let limit = text.end();
    let whole = FunctionCode::new(vec![text]).unwrap();
    let code = function_at(entry, limit.min(entry + 0x1000), &Padded(&whole)).unwrap();
    let target = Target::Direct(fails as *const () as u64);
    let sites = call_sites(&code, &NoMemory).sites;
    assert!(
        sites.iter().any(|s| s.kind == SiteKind::Call(target)),
        "{sites:x?}"
    );
}

/// The end of a mapping is zero where the file has ended.
struct Padded<'a>(&'a FunctionCode);

impl darc_disasm::Memory for Padded<'_> {
    fn read(&self, addr: u64, buf: &mut [u8]) -> bool {
        for (addr, byte) in (addr..).zip(buf.iter_mut()) {
            *byte = self.0.bytes_at(addr, 1).map_or(0, |bytes| bytes[0]);
        }
        true
    }
}
