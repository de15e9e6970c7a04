//! Where a jump fits: at call sites, entries and ends of functions.

mod listing;

use darc_disasm::displace::{
    Displacement, NoRoom, at_entry, at_return, at_site, ending_with, union,
};
use darc_disasm::{Cfg, CodePart, FunctionCode, Immovable, NoMemory, UnknownBranch, call_sites_in};
use listing::{BASE, code};

fn cfg(listing: &str) -> Cfg {
    Cfg::build(&code(listing), &NoMemory)
}

/// First and last offset of the bytes that a jump replaces.
fn span(found: Result<Displacement, NoRoom>) -> Result<(u64, u64), NoRoom> {
    found.map(|d| (d.start - BASE, d.end - BASE))
}

/// The same for each call site.
fn sites(listing: &str) -> Vec<Result<(u64, u64), NoRoom>> {
    let code = code(listing);
    let cfg = Cfg::build(&code, &NoMemory);
    let found = call_sites_in(&code, &cfg);
    assert_eq!(found.skipped, []);
    found.sites.iter().map(|s| span(at_site(&cfg, s))).collect()
}

#[test]
fn calls_take_what_is_before_them() {
    let found = sites(
        "
        53                       | push %rbx
        48 89 fb                 | mov %rdi,%rbx
        48 8b 07                 | mov (%rdi),%rax
        ff 50 08                 | call *0x8(%rax)
        ff d0                    | call *%rax
        e8 ef 0f 00 00           | call 402000
        ff 15 e9 0f 00 00        | call *0xfe9(%rip)
        48 89 df                 | mov %rbx,%rdi
        ff d0                    | call *%rax
        5b                       | pop %rbx
        c3                       | ret",
    );
    assert_eq!(
        found,
        [
            Ok((4, 10)),
            Err(NoRoom::TooShort(BASE + 7)), // a call returns right before it
            Ok((12, 17)),
            Ok((17, 23)),
            Ok((23, 28)),
        ]
    );
}

#[test]
fn nothing_is_displaced_that_a_branch_leads_into() {
    let found = sites(
        "
        48 89 fb                 | mov %rdi,%rbx
        48 8b 07                 | mov (%rdi),%rax
        ff d0                    | call *%rax
        eb f9                    | jmp 401003",
    );
    assert_eq!(found, [Ok((3, 8))]); // the branch leads to the first of them
    // The same with a jump to the call.
    let found = sites(
        "
48 89 fb                 | mov %rdi,%rbx
48 8b 07                 | mov (%rdi),%rax
ff d0                    | call *%rax
eb fc                    | jmp 401006",
    );
    assert_eq!(found, [Err(NoRoom::BranchInside(BASE + 8))]);
}

#[test]
fn unknown_jumps_spare_what_is_one_instruction() {
    let found = sites(
        "
53                       | push %rbx
e8 00 01 00 00           | call 401106
48 8b 07                 | mov (%rdi),%rax
ff d0                    | call *%rax
ff 20                    | jmp *(%rax)",
    );
    let unknown = NoRoom::Unknown(UnknownBranch::IndirectJump(BASE + 11));
    assert_eq!(
        found,
        [Ok((1, 6)), Err(unknown), Err(NoRoom::TooShort(BASE + 9))]
    );
}

#[test]
fn an_entry_keeps_its_endbr64() {
    let cfg = cfg("
        f3 0f 1e fa              | endbr64
        55                       | push %rbp
        48 89 e5                 | mov %rsp,%rbp
        53                       | push %rbx
        c3                       | ret");
    assert_eq!(span(at_entry(&cfg)), Ok((4, 9)));
    // What replaces the end touches it: both become one.
    let (entry, end) = (
        at_entry(&cfg).unwrap(),
        ending_with(&cfg, BASE + 9).unwrap(),
    );
    assert_eq!((end.start - BASE, end.end - BASE), (5, 10));
    assert_eq!(span(union(&cfg, &entry, &end)), Ok((4, 10)));
}

#[test]
fn an_entry_may_end_with_a_call() {
    let with_call = cfg("
        53                       | push %rbx
        e8 fa 0f 00 00           | call 402000
        5b                       | pop %rbx
        c3                       | ret");
    assert_eq!(span(at_entry(&with_call)), Ok((0, 6)));
    let call = cfg("
        53                       | push %rbx
        ff d0                    | call *%rax
        5b                       | pop %rbx
        c3                       | ret");
    assert_eq!(span(at_entry(&call)), Err(NoRoom::TooShort(BASE + 1)));
    let program_counter = cfg("
        53                       | push %rbx
        e8 00 00 00 00           | call 401006
        5b                       | pop %rbx
        c3                       | ret");
    let reason = NoRoom::Immovable(Immovable::Call(BASE + 1));
    assert_eq!(span(at_entry(&program_counter)), Err(reason));
}

#[test]
fn an_entry_needs_room() {
    let short = cfg("
        31 c0                    | xor %eax,%eax
        c3                       | ret");
    assert_eq!(span(at_entry(&short)), Err(NoRoom::TooShort(BASE + 2)));
    let inside = cfg("
        53                       | push %rbx
        ff cf                    | dec %edi
        75 fc                    | jne 401001
        c3                       | ret");
    assert_eq!(span(at_entry(&inside)), Err(NoRoom::BranchInside(BASE + 3)));
    assert!(!inside.is_jumped_to(BASE));
    let whole = cfg("
        ff cf                    | dec %edi
        0f 1f 00                 | nopl (%rax)
        75 f9                    | jne 401000
        c3                       | ret");
    assert_eq!(span(at_entry(&whole)), Ok((0, 5)));
    assert!(whole.is_jumped_to(BASE));
    let conditional = cfg("
        85 ff                    | test %edi,%edi
        74 03                    | je 401007
        89 f8                    | mov %edi,%eax
        c3                       | ret
        90                       | nop
        c3                       | ret");
    assert_eq!(span(at_entry(&conditional)), Ok((0, 6)));
}

#[test]
fn system_calls_stay_where_they_are() {
    let found = sites(
        "
        49 89 ca                 | mov %rcx,%r10
        b8 09 00 00 00           | mov $0x9,%eax
        0f 05                    | syscall
        48 3d 00 f0 ff ff        | cmp $0xfffffffffffff000,%rax
        c3                       | ret",
    );
    assert_eq!(found, [Ok((3, 8))]);
    let found = sites(
        "
        53                       | push %rbx
        89 f8                    | mov %edi,%eax
        0f 05                    | syscall
        5b                       | pop %rbx
        c3                       | ret",
    );
    assert_eq!(found, [Err(NoRoom::TooShort(BASE))]);
}

#[test]
fn a_system_call_takes_nothing_from_elsewhere() {
    let found = sites(
        "
e8 00 01 00 00           | call 401105
0f 05                    | syscall",
    );
    assert_eq!(found, [Ok((0, 5)), Err(NoRoom::TooShort(BASE))]);
    let part = |start, bytes: &[u8]| CodePart {
        start,
        bytes: bytes.to_vec(),
    };
    // syscall; and elsewhere mov $1,%eax
    let parts = vec![part(BASE, &[0x0f, 0x05]), part(0x1000, &[0xb8, 1, 0, 0, 0])];
    let code = FunctionCode::new(parts).unwrap();
    let cfg = Cfg::build(&code, &NoMemory);
    let site = call_sites_in(&code, &cfg).sites[0];
    assert_eq!(span(at_site(&cfg, &site)), Err(NoRoom::TooShort(0x1000)));
}

#[test]
fn tail_jumps() {
    let found = sites(
        "
        48 89 f7                 | mov %rsi,%rdi
        48 8b 06                 | mov (%rsi),%rax
        ff 60 10                 | jmp *0x10(%rax)",
    );
    assert_eq!(found, [Ok((3, 9))]);
    let found = sites(
        "
        90                       | nop
        0f 84 f9 0f 00 00        | je 402000
        89 c7                    | mov %eax,%edi
        e9 f2 0f 00 00           | jmp 402000",
    );
    assert_eq!(found, [Ok((1, 7)), Ok((9, 14))]);
}

#[test]
fn an_address_that_is_no_instruction() {
    let cfg = cfg("53 c3 06");
    assert_eq!(
        span(ending_with(&cfg, BASE + 5)),
        Err(NoRoom::NoInstruction)
    );
    assert_eq!(
        span(ending_with(&cfg, BASE + 2)),
        Err(NoRoom::NoInstruction)
    );
    assert_eq!(
        span(ending_with(&cfg, BASE + 1)),
        Err(NoRoom::TooShort(BASE))
    );
}

#[test]
fn a_return_may_take_the_padding_behind_it() {
    let padded = cfg("
ff cf                    | dec %edi
75 02                    | jne 401006
31 c0                    | xor %eax,%eax
c3                       | ret
0f 1f 44 00 00           | nopl 0(%rax,%rax)
c3                       | ret
90                       | nop
eb fc                    | jmp 40100c
");
    assert_eq!(span(at_return(&padded, BASE + 6)), Ok((6, 12)));
    // The jump leads to the second return, whose padding is too short.
    let reason = NoRoom::BranchInside(BASE + 14);
    assert_eq!(span(at_return(&padded, BASE + 12)), Err(reason));
    // A jump into the padding.
    let entered = cfg("
eb 02                    | jmp 401004
c3                       | ret
90                       | nop
90                       | nop
90                       | nop
90                       | nop
c3                       | ret
");
    assert!(at_return(&entered, BASE + 2).is_err());
}
