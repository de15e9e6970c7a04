//! How compilers write the jump of a `switch`, and jumps that look like one.

mod listing;

use darc_disasm::{
    Cfg, CodePart, FunctionCode, Memory, NoMemory, SiteKind, Sites, SkipReason, SkippedSite,
    Target, UnknownBranch, call_sites,
};
use listing::{BASE, Bytes, code};

/// Where the table lies.
const TABLE: u64 = 0x40_2000;

/// A table of pointers to these offsets in the code.
fn pointers(offsets: &[u64]) -> Bytes {
    let words = offsets.iter().flat_map(|o| (BASE + o).to_le_bytes());
    Bytes::default().with(TABLE, &words.collect::<Vec<_>>())
}

/// A table of distances from the table to these offsets in the code.
fn distances(offsets: &[u64]) -> Bytes {
    let distance = |o: &u64| (BASE + o).wrapping_sub(TABLE) as i32;
    let words = offsets.iter().flat_map(|o| distance(o).to_le_bytes());
    Bytes::default().with(TABLE, &words.collect::<Vec<_>>())
}

/// Offsets in the code of the targets of its only jump, when its table is recovered.
fn targets(code: &FunctionCode, memory: &dyn Memory) -> Option<Vec<u64>> {
    let cfg = Cfg::build(code, memory);
    let tables: Vec<_> = cfg.tables().collect();
    let &[table] = &tables[..] else {
        return None;
    };
    assert_eq!(cfg.unknown(), []);
    assert_eq!(
        call_sites(code, memory)
            .sites
            .iter()
            .filter(|s| matches!(s.kind, SiteKind::TailJump { .. }))
            .count(),
        0
    );
    Some(table.targets.iter().map(|t| t.wrapping_sub(BASE)).collect())
}

/// Whether the only jump of the code is a tail jump for certain.
fn leaves(code: &FunctionCode, memory: &dyn Memory) -> bool {
    let cfg = Cfg::build(code, memory);
    let tail = |kind| {
        matches!(
            kind,
            SiteKind::TailJump {
                target: Target::Indirect(_),
                condition: None
            }
        )
    };
    let leaves = cfg.tables().next().is_none() && cfg.unknown().is_empty();
    let is_site = call_sites(code, memory).sites.iter().any(|s| tail(s.kind));
    assert!(is_site || !leaves);
    leaves
}

#[test]
fn pointers_by_a_comparison() {
    let code = code(
        "
        83 ff 02                 | cmp $0x2,%edi
        77 0c                    | ja 401011
        89 ff                    | mov %edi,%edi
        3e ff 24 fd 00 20 40 00  | notrack jmp *0x402000(,%rdi,8)
        90                       | nop
        c3                       | ret
        c3                       | ret",
    );
    assert_eq!(
        targets(&code, &pointers(&[0x10, 0xf, 0x10])),
        Some(vec![0xf, 0x10])
    );
    // Too short, and with an entry that is no instruction.
    assert_eq!(targets(&code, &pointers(&[0x10, 0xf])), None);
    assert_eq!(targets(&code, &pointers(&[0x10, 0xf, 0xb])), None);
    // An entry outside: a part of the function that lies elsewhere.
    assert_eq!(
        targets(&code, &pointers(&[0x10, 0xf, 0x2000])),
        Some(vec![0xf, 0x10, 0x2000])
    );
    assert!(leaves(&code, &pointers(&[0x2000, 0x2010, 0x2020]))); // function pointers
}

#[test]
fn distances_by_a_comparison() {
    let code = code(
        "
        83 ff 02                 | cmp $0x2,%edi
        77 15                    | ja 40101a
        48 8d 15 f4 0f 00 00     | lea 0xff4(%rip),%rdx
        89 ff                    | mov %edi,%edi
        48 63 04 ba              | movslq (%rdx,%rdi,4),%rax
        48 01 d0                 | add %rdx,%rax
        3e ff e0                 | notrack jmp *%rax
        90                       | nop
        c3                       | ret
        c3                       | ret",
    );
    assert_eq!(
        targets(&code, &distances(&[0x19, 0x18, 0x1a])),
        Some(vec![0x18, 0x19, 0x1a])
    );
}

#[test]
fn gcc_without_optimisation() {
    let code = code(
        "
        55                       | push %rbp
        48 89 e5                 | mov %rsp,%rbp
        89 7d fc                 | mov %edi,-0x4(%rbp)
        83 7d fc 02              | cmpl $0x2,-0x4(%rbp)
        77 26                    | ja 401033
        8b 45 fc                 | mov -0x4(%rbp),%eax
        48 8d 14 85 00 00 00 00  | lea 0x0(,%rax,4),%rdx
        48 8d 05 e1 0f 00 00     | lea 0xfe1(%rip),%rax
        8b 04 02                 | mov (%rdx,%rax,1),%eax
        48 98                    | cltq
        48 8d 15 d5 0f 00 00     | lea 0xfd5(%rip),%rdx
        48 01 d0                 | add %rdx,%rax
        3e ff e0                 | notrack jmp *%rax
        90                       | nop
        90                       | nop
        5d                       | pop %rbp
        c3                       | ret",
    );
    assert_eq!(
        targets(&code, &distances(&[0x31, 0x32, 0x33])),
        Some(vec![0x31, 0x32, 0x33])
    );
}

#[test]
fn clang_without_optimisation() {
    let code = code(
        "
        55                       | push %rbp
        48 89 e5                 | mov %rsp,%rbp
        89 f8                    | mov %edi,%eax
        48 89 45 f8              | mov %rax,-0x8(%rbp)
        83 e8 02                 | sub $0x2,%eax
        77 16                    | ja 401025
        48 8b 45 f8              | mov -0x8(%rbp),%rax
        48 8d 0d e6 0f 00 00     | lea 0xfe6(%rip),%rcx
        48 63 04 81              | movslq (%rcx,%rax,4),%rax
        48 01 c8                 | add %rcx,%rax
        ff e0                    | jmp *%rax
        90                       | nop
        90                       | nop
        5d                       | pop %rbp
        c3                       | ret",
    );
    assert_eq!(
        targets(&code, &distances(&[0x23, 0x24, 0x25])),
        Some(vec![0x23, 0x24, 0x25])
    );
}

#[test]
fn an_index_that_does_not_begin_at_zero() {
    let code = code(
        "
        8d 47 fb                 | lea -0x5(%rdi),%eax
        83 f8 02                 | cmp $0x2,%eax
        77 09                    | ja 401011
        ff 24 c5 00 20 40 00     | jmp *0x402000(,%rax,8)
        90                       | nop
        c3                       | ret
        c3                       | ret",
    );
    assert_eq!(
        targets(&code, &pointers(&[0xf, 0x10, 0x11])),
        Some(vec![0xf, 0x10, 0x11])
    );
}

#[test]
fn the_same_in_64_bits() {
    let code = code(
        "
        48 8d 47 fb              | lea -0x5(%rdi),%rax
        48 83 f8 02              | cmp $0x2,%rax
        77 09                    | ja 401013
        ff 24 c5 00 20 40 00     | jmp *0x402000(,%rax,8)
        90                       | nop
        c3                       | ret
        c3                       | ret",
    );
    assert_eq!(
        targets(&code, &pointers(&[0x11, 0x12, 0x13])),
        Some(vec![0x11, 0x12, 0x13])
    );
}

#[test]
fn a_jump_to_the_switch_instead_of_around_it() {
    let code = code(
        "
        40 80 ff 02              | cmp $0x2,%dil
        76 01                    | jbe 401007
        c3                       | ret
        40 0f b6 c7              | movzbl %dil,%eax
        48 8b 0c c5 00 20 40 00  | mov 0x402000(,%rax,8),%rcx
        ff e1                    | jmp *%rcx
        90                       | nop
        c3                       | ret",
    );
    assert_eq!(
        targets(&code, &pointers(&[0x15, 0x16, 0x6])),
        Some(vec![0x6, 0x15, 0x16])
    );
}

#[test]
fn a_table_address_from_before_the_loop() {
    // The loop closes only through the table itself.
    let code = code(
        "
        53                       | push %rbx
        48 8d 1d f8 0f 00 00     | lea 0xff8(%rip),%rbx
        ff d0                    | call *%rax
        83 f8 02                 | cmp $0x2,%eax
        77 0e                    | ja 40101d
        89 c0                    | mov %eax,%eax
        48 63 0c 83              | movslq (%rbx,%rax,4),%rcx
        48 01 d9                 | add %rbx,%rcx
        ff e1                    | jmp *%rcx
        90                       | nop
        eb eb                    | jmp 401008
        5b                       | pop %rbx
        c3                       | ret",
    );
    assert_eq!(
        targets(&code, &distances(&[0x1a, 0x1b, 0x1d])),
        Some(vec![0x1a, 0x1b, 0x1d])
    );
}

#[test]
fn an_exhaustive_match_has_no_comparison() {
    let code = code(
        "
        0f b6 07                 | movzbl (%rdi),%eax
        48 8d 0d f6 0f 00 00     | lea 0xff6(%rip),%rcx
        48 63 04 81              | movslq (%rcx,%rax,4),%rax
        48 01 c8                 | add %rcx,%rax
        ff e0                    | jmp *%rax
        90                       | nop
        90                       | nop
        c3                       | ret",
    );
    let memory = distances(&[0x13, 0x14, 0x15, 0x2000, 0x13]);
    assert_eq!(targets(&code, &memory), Some(vec![0x13, 0x14, 0x15]));
    assert_eq!(targets(&code, &distances(&[0x13])), None);
    assert_eq!(targets(&code, &NoMemory), None);
}

#[test]
fn a_mask_limits_the_index() {
    let code = code(
        "
        83 e7 03                 | and $0x3,%edi
        48 8d 0d f6 0f 00 00     | lea 0xff6(%rip),%rcx
        48 63 04 b9              | movslq (%rcx,%rdi,4),%rax
        48 01 c8                 | add %rcx,%rax
        ff e0                    | jmp *%rax
        90                       | nop
        90                       | nop
        c3                       | ret",
    );
    assert_eq!(
        targets(&code, &distances(&[0x13, 0x13, 0x14, 0x14, 0x15])),
        Some(vec![0x13, 0x14])
    );
    // An entry outside: a part of the function that lies elsewhere.
    assert_eq!(
        targets(&code, &distances(&[0x13, 0x14, 0x2000, 0x15])),
        Some(vec![0x13, 0x14, 0x15, 0x2000])
    );
    // A shorter table, and what lies behind it.
    assert_eq!(
        targets(&code, &distances(&[0x13, 0x14, 0xc, 0x15])),
        Some(vec![0x13, 0x14])
    );
}

#[test]
fn entries_behind_one_that_leads_elsewhere_may_be_the_tables() {
    let code = code(
        "
        0f b6 07                 | movzbl (%rdi),%eax
        48 8d 0d f6 0f 00 00     | lea 0xff6(%rip),%rcx
        48 63 04 81              | movslq (%rcx,%rax,4),%rax
        48 01 c8                 | add %rcx,%rax
        ff e0                    | jmp *%rax
        90                       | nop
        90                       | nop
        c3                       | ret",
    );
    // The cold part: jmp back to the last instruction but one.
    let cold = [&[0xe9][..], &(0x14 - 0x2005_i32).to_le_bytes()].concat();
    let jump = UnknownBranch::IndirectJump(BASE + 0x11);
    let unknown = |offsets: &[u64]| {
        let memory = distances(offsets).with(BASE + 0x2000, &cold);
        Cfg::build(&code, &memory).unknown().to_vec()
    };
    assert_eq!(unknown(&[0x13, 0x14, 0x2000, 0x15]), [jump]);
    // Another function's table behind the last entry.
    assert_eq!(unknown(&[0x13, 0x14, 0x2000, 0x2001]), []);
}

#[test]
fn many_jumps_of_which_no_comparison_tells_take_no_time() {
    // Each: cmp $5,%bl; ja to the next; jmp *0x402000(,%rax,8)
    let unit = [0x80, 0xfb, 5, 0x77, 7, 0xff, 0x24, 0xc5, 0, 0x20, 0x40, 0];
    let mut bytes = unit.repeat(30_000);
    bytes.push(0xc3);
    let start = 0x50_0000;
    let code = FunctionCode::new(vec![CodePart { start, bytes }]).unwrap();
    let cfg = Cfg::build(&code, &NoMemory);
    assert!(!cfg.unknown().is_empty());
}

#[test]
fn an_exhaustive_match_that_does_not_begin_at_zero() {
    let code = code(
        "
        48 8d 47 fb              | lea -0x5(%rdi),%rax
        48 8d 0d f5 0f 00 00     | lea 0xff5(%rip),%rcx
        48 63 04 81              | movslq (%rcx,%rax,4),%rax
        48 01 c8                 | add %rcx,%rax
        ff e0                    | jmp *%rax
        90                       | nop
        c3                       | ret",
    );
    assert_eq!(
        targets(&code, &distances(&[0x14, 0x15])),
        Some(vec![0x14, 0x15])
    );
}

/// One entry is no table: that the index is always the same may be known too well.
#[test]
fn an_index_that_seems_to_be_a_constant() {
    let code = code(
        "
        b8 01 00 00 00           | mov $0x1,%eax
        48 8d 0d f4 0f 00 00     | lea 0xff4(%rip),%rcx
        48 63 04 81              | movslq (%rcx,%rax,4),%rax
        48 01 c8                 | add %rcx,%rax
        ff e0                    | jmp *%rax
        90                       | nop
        c3                       | ret",
    );
    assert_eq!(
        targets(&code, &distances(&[0x15, 0x16])),
        Some(vec![0x15, 0x16])
    );
}

/// `r = 0; if (x) r = f(); switch (r)`
#[test]
fn an_index_that_is_a_constant_or_what_a_call_returns() {
    let relative = code(
        "
        31 c0                    | xor %eax,%eax
        85 ff                    | test %edi,%edi
        74 05                    | je 40100b
        e8 f5 07 00 00           | call 401800
        83 f8 02                 | cmp $0x2,%eax
        77 12                    | ja 401022
        48 8d 15 e9 0f 00 00     | lea 0xfe9(%rip),%rdx
        48 63 04 82              | movslq (%rdx,%rax,4),%rax
        48 01 d0                 | add %rdx,%rax
        ff e0                    | jmp *%rax
        90                       | nop
        90                       | nop
        c3                       | ret",
    );
    assert_eq!(
        targets(&relative, &distances(&[0x22, 0x20, 0x21, 0x1e])),
        Some(vec![0x20, 0x21, 0x22])
    );
    let absolute = code(
        "
        31 c0                    | xor %eax,%eax
        85 ff                    | test %edi,%edi
        74 05                    | je 40100b
        e8 f5 07 00 00           | call 401800
        83 f8 02                 | cmp $0x2,%eax
        77 0b                    | ja 40101b
        89 c0                    | mov %eax,%eax
        ff 24 c5 00 20 40 00     | jmp *0x402000(,%rax,8)
        90                       | nop
        90                       | nop
        c3                       | ret",
    );
    assert_eq!(
        targets(&absolute, &pointers(&[0x1b, 0x19, 0x1a, 0x12])),
        Some(vec![0x19, 0x1a, 0x1b])
    );
}

/// Without optimisation a variable that is compared, set anew and matched exhaustively is one slot.
#[test]
fn a_comparison_of_what_the_variable_was_before() {
    let code = code(
        "
        80 7c 24 fc 02           | cmpb $0x2,-0x4(%rsp)
        73 17                    | jae 40101e
        e8 f4 07 00 00           | call 401800
        88 44 24 fc              | mov %al,-0x4(%rsp)
        0f b6 44 24 fc           | movzbl -0x4(%rsp),%eax
        ff 24 c5 00 20 40 00     | jmp *0x402000(,%rax,8)
        90                       | nop
        90                       | nop
        c3                       | ret",
    );
    assert_eq!(
        targets(&code, &pointers(&[0x1e, 0x1d, 0x1c])),
        Some(vec![0x1c, 0x1d, 0x1e])
    );
}

/// The handler of an exception goes on at the switch with another index.
#[test]
fn an_index_from_where_nothing_is_known_to_lead() {
    let code = code(
        "
        53                       | push %rbx
        89 fb                    | mov %edi,%ebx
        e8 f8 07 00 00           | call 401800
        bb 01 00 00 00           | mov $0x1,%ebx
        48 8d 15 ec 0f 00 00     | lea 0xfec(%rip),%rdx
        48 63 04 9a              | movslq (%rdx,%rbx,4),%rax
        48 01 d0                 | add %rdx,%rax
        ff e0                    | jmp *%rax
        5b                       | pop %rbx
        c3                       | ret
        48 89 c7                 | mov %rax,%rdi
        e8 d9 07 00 00           | call 401800
        eb e4                    | jmp 40100d",
    );
    assert_eq!(
        targets(&code, &distances(&[0x1e, 0x1d, 0x1e])),
        Some(vec![0x1d, 0x1e])
    );
}

#[test]
fn a_virtual_function_is_a_tail_call() {
    let code = code(
        "
        48 8b 07                 | mov (%rdi),%rax
        ff 60 10                 | jmp *0x10(%rax)",
    );
    assert!(leaves(&code, &NoMemory));
}

#[test]
fn a_virtual_function_after_the_frame_is_a_tail_call() {
    let code = code(
        "
        53                       | push %rbx
        48 83 ec 10              | sub $0x10,%rsp
        48 89 fb                 | mov %rdi,%rbx
        ff d0                    | call *%rax
        48 8b 03                 | mov (%rbx),%rax
        48 89 df                 | mov %rbx,%rdi
        48 83 c4 10              | add $0x10,%rsp
        5b                       | pop %rbx
        ff 60 10                 | jmp *0x10(%rax)",
    );
    assert!(leaves(&code, &NoMemory));
}

/// As in `std::function`: what is called where there is nothing to call never returns, and pushes a word to align the stack.
#[test]
fn a_tail_call_behind_a_call_that_does_not_return_is_one() {
    for behind in ["", "90 | nop"] {
        let end = if behind.is_empty() { "06" } else { "07" };
        let code = code(&format!(
            "
            48 83 7f 10 00           | cmpq $0x0,0x10(%rdi)
            75 {end}                 | jne 40100d
            50                       | push %rax
            e8 f3 00 00 00           | call 401100
            {behind}
            ff 67 18                 | jmp *0x18(%rdi)",
        ));
        let found = call_sites(&code, &NoMemory);
        assert_eq!(found.skipped, [], "{behind}");
        assert_eq!(found.sites.len(), 2, "{behind}");
    }
    // A call where it is less deep than where a jump comes from may return: it is not known how deep the jump is.
    let code = code(
        "
        48 83 7f 10 00           | cmpq $0x0,0x10(%rdi)
        75 07                    | jne 40100e
        e8 f4 00 00 00           | call 401100
        eb 04                    | jmp 401012
        50                       | push %rax
        50                       | push %rax
        eb 00                    | jmp 401012
        ff 67 18                 | jmp *0x18(%rdi)",
    );
    let reasons = call_sites(&code, &NoMemory).skipped;
    let reasons: Vec<SkipReason> = reasons.iter().map(|it| it.reason).collect();
    assert_eq!(reasons, [SkipReason::UnknownFrame]);
}

/// What is behind a call that throws, where an unwinder comes to, has the frame of another call: it is no evidence that one returns.
#[test]
fn a_landing_pad_does_not_tell_which_calls_return() {
    let code = code(
        "
        85 ff                    | test %edi,%edi
        74 0a                    | je 40100e
        53                       | push %rbx
        53                       | push %rbx
        e8 f5 00 00 00           | call 401100
        5b                       | pop %rbx
        ff e0                    | jmp *%rax
        50                       | push %rax
        e8 ec 01 00 00           | call 401200
        eb f5                    | jmp 40100b",
    );
    let code = code.with_entrances(vec![BASE + 0x14]);
    let reasons = call_sites(&code, &NoMemory).skipped;
    let reasons: Vec<SkipReason> = reasons.iter().map(|it| it.reason).collect();
    assert_eq!(reasons, [SkipReason::UnknownFrame]);
}

#[test]
fn a_frame_pointer_gives_the_frame_back() {
    let code = code(
        "
        55                       | push %rbp
        48 89 e5                 | mov %rsp,%rbp
        48 83 ec 20              | sub $0x20,%rsp
        48 83 e4 e0              | and $0xffffffffffffffe0,%rsp
        c9                       | leave
        ff e0                    | jmp *%rax",
    );
    assert!(leaves(&code, &NoMemory));
}

#[test]
fn a_fixed_slot_is_a_tail_call() {
    let code = code(
        "
        ff 25 fa 0f 00 00        | jmp *0xffa(%rip)",
    );
    assert!(leaves(&code, &NoMemory));
}

#[test]
fn a_fixed_slot_may_say_where_in_the_function_it_goes_on() {
    let with_frame = code(
        "
        53                       | push %rbx
        ff 25 f9 0f 00 00        | jmp *0xff9(%rip)
        48 83 c3 03              | add $0x3,%rbx
        5b                       | pop %rbx
        c3                       | ret",
    );
    assert!(!leaves(&with_frame, &NoMemory));
    let without_frame = code(
        "
        ff 25 fa 0f 00 00        | jmp *0xffa(%rip)
        48 83 c7 03              | add $0x3,%rdi
        c3                       | ret",
    );
    assert!(!leaves(&without_frame, &NoMemory));
    let to = |target: u64| Bytes::default().with(TABLE, &target.to_le_bytes());
    let loops = code(
        "
        48 ff c7                 | inc %rdi
        74 01                    | je 401006
        90                       | nop
        ff 25 f4 0f 00 00        | jmp *0xff4(%rip)",
    );
    assert!(leaves(&loops, &NoMemory) && leaves(&loops, &to(BASE)));
    assert!(leaves(&loops, &to(BASE + 0x1000)) && !leaves(&loops, &to(BASE + 5)));
}

#[test]
fn labels_without_a_frame_are_not_known() {
    let threaded = "
        ff 26                    | jmp *(%rsi)
        48 83 c7 03              | add $0x3,%rdi
        ff 66 08                 | jmp *0x8(%rsi)";
    assert_eq!(
        Cfg::build(&code(threaded), &NoMemory).unknown(),
        [0, 6].map(|at| UnknownBranch::IndirectJump(BASE + at))
    );
    // Something else leads there: where an exception is caught, and what an instruction names.
    let caught = code(threaded).with_entrances(vec![BASE + 2]);
    assert_eq!(Cfg::build(&caught, &NoMemory).unknown(), []);
    let named = code(
        "
        48 8d 05 04 00 00 00     | lea 0x4(%rip),%rax
        ff 26                    | jmp *(%rsi)
        90                       | nop
        90                       | nop
        48 83 c7 03              | add $0x3,%rdi
        ff 66 08                 | jmp *0x8(%rsi)",
    );
    assert_eq!(Cfg::build(&named, &NoMemory).unknown(), []);
    // With a frame at all labels, what has given it back leads to none.
    let with_frame = code(
        "
        53                       | push %rbx
        ff 26                    | jmp *(%rsi)
        5b                       | pop %rbx
        ff e0                    | jmp *%rax",
    );
    let unknown = [UnknownBranch::IndirectJump(BASE + 1)];
    assert_eq!(Cfg::build(&with_frame, &NoMemory).unknown(), unknown);
}

#[test]
fn labels_behind_padding_are_not_known() {
    let aligned = code(
        "
        ff 26                    | jmp *(%rsi)
        0f 1f 44 00 00           | nopl 0x0(%rax,%rax,1)
        48 83 c7 03              | add $0x3,%rdi
        ff 66 08                 | jmp *0x8(%rsi)",
    );
    let unknown = [0, 0xb].map(|at| UnknownBranch::IndirectJump(BASE + at));
    assert_eq!(Cfg::build(&aligned, &NoMemory).unknown(), unknown);
}

/// A function at [`TABLE`] that jumps to where %rax says.
fn thunk() -> Bytes {
    let bytes = listing::bytes(
        "
        e8 07 00 00 00           | call 40200c
        f3 90                    | pause
        0f ae e8                 | lfence
        eb f9                    | jmp 402005
        48 89 04 24              | mov %rax,(%rsp)
        c3                       | ret",
    );
    Bytes::default().with(TABLE, &bytes)
}

#[test]
fn a_jump_to_a_thunk_is_an_indirect_one() {
    // With the frame in place: a computed `goto`.
    let goes = code(
        "
        53                       | push %rbx
        e9 fa 0f 00 00           | jmp 402000
        48 83 c3 03              | add $0x3,%rbx
        5b                       | pop %rbx
        e9 f0 0f 00 00           | jmp 402000",
    );
    let cfg = Cfg::build(&goes, &thunk());
    assert_eq!(cfg.unknown(), [UnknownBranch::IndirectJump(BASE + 1)]);
    let sites = call_sites(&goes, &thunk());
    assert_eq!((sites.sites.len(), &sites.skipped[..]), (1, &[][..]));
    assert_eq!(sites.sites[0].addr, BASE + 0xb);
    // Without one: where to, is seen by nobody.
    let flat = code(
        "
        e9 fb 0f 00 00           | jmp 402000
        48 83 c7 03              | add $0x3,%rdi
        c3                       | ret",
    );
    let cfg = Cfg::build(&flat, &thunk());
    assert_eq!(cfg.unknown(), [UnknownBranch::IndirectJump(BASE)]);
    let skipped = SkippedSite {
        addr: BASE,
        reason: SkipReason::UnknownFrame,
    };
    assert_eq!(call_sites(&flat, &thunk()).skipped, [skipped]);
    // Any other function, or register.
    for (other, is_thunk) in [
        ("48 89 04 24 c3", false),
        ("ff e0", true),
        ("f3 0f 1e fa 0f ae e8 41 ff e3", true),
        ("ff 25 00 00 00 00", false),
    ] {
        let other = Bytes::default().with(TABLE, &listing::bytes(other));
        let unknown = Cfg::build(&flat, &other).unknown().len();
        assert_eq!(unknown, usize::from(is_thunk), "{other:?}");
    }
}

#[test]
fn a_thunk_inside_may_lead_anywhere() {
    let inline = code(
        "
        53                       | push %rbx
        e8 07 00 00 00           | call 40100d
        f3 90                    | pause
        0f ae e8                 | lfence
        eb f9                    | jmp 401006
        48 89 04 24              | mov %rax,(%rsp)
        c3                       | ret
        48 83 c3 03              | add $0x3,%rbx
        5b                       | pop %rbx
        c3                       | ret",
    );
    let unknown = [UnknownBranch::Return(BASE + 0x11)];
    assert_eq!(Cfg::build(&inline, &NoMemory).unknown(), unknown);
}

#[test]
fn what_a_label_without_a_frame_jumps_to_may_be_a_call() {
    // A call in the slow path has a frame, and is no sign of what the labels have.
    let code = code(
        "
        74 0b                    | je 40100d
        48 83 ec 08              | sub $0x8,%rsp
        e8 f5 0f 00 00           | call 402000
        59                       | pop %rcx
        c3                       | ret
        ff 26                    | jmp *(%rsi)
        48 ff c7                 | inc %rdi
        ff e2                    | jmp *%rdx",
    );
    let skipped = SkippedSite {
        addr: BASE + 0x12,
        reason: SkipReason::UnknownFrame,
    };
    assert_eq!(call_sites(&code, &NoMemory).skipped, [skipped]);
}

#[test]
fn a_jump_with_the_frame_in_place_may_go_anywhere() {
    let code = code(
        "
        53                       | push %rbx
        48 8b 07                 | mov (%rdi),%rax
        ff e0                    | jmp *%rax",
    );
    assert!(!leaves(&code, &NoMemory));
    let unknown = [UnknownBranch::IndirectJump(BASE + 4)];
    assert_eq!(Cfg::build(&code, &NoMemory).unknown(), unknown);
    // The word on top of the stack is not its return address.
    assert_eq!(call_sites(&code, &NoMemory), Sites::default());
}

#[test]
fn what_computed_jumps_lead_to_has_their_frame() {
    // An interpreter: the table is on the stack, so that nobody knows where the jumps lead.
    let code = code(
        "
        53                       | push %rbx
        48 8b 44 24 08           | mov 0x8(%rsp),%rax
        ff e0                    | jmp *%rax
        48 ff c3                 | inc %rbx
        ff e0                    | jmp *%rax
        5b                       | pop %rbx
        ff e1                    | jmp *%rcx
        85 c0                    | test %eax,%eax
        0f 84 d0 ff ff ff        | je 400fea",
    );
    let found = call_sites(&code, &NoMemory);
    let sites: Vec<u64> = found.sites.iter().map(|site| site.addr - BASE).collect();
    assert_eq!(sites, [14], "the frame is given back before one jump");
    let skipped = |skipped: &SkippedSite| (skipped.addr - BASE, skipped.reason);
    let skipped: Vec<_> = found.skipped.iter().map(skipped).collect();
    assert_eq!(skipped, [(18, SkipReason::MissingPart)]);
}

#[test]
fn the_handler_of_an_exception_has_the_frame_of_calls() {
    // What lies behind the first jump only an unwinder knows; it goes on in a part that lies elsewhere.
    let code = code(
        "
        53                       | push %rbx
        e8 f6 00 00 00           | call 4010fc
        5b                       | pop %rbx
        ff e0                    | jmp *%rax
        89 c3                    | mov %eax,%ebx
        e9 f0 0e 00 00           | jmp 401f00",
    );
    let found = call_sites(&code, &NoMemory);
    let sites: Vec<u64> = found.sites.iter().map(|site| site.addr - BASE).collect();
    assert_eq!(sites, [1, 7], "the call, and the jump without a frame");
    let reasons: Vec<_> = found.skipped.iter().map(|it| it.reason).collect();
    assert_eq!(reasons, [SkipReason::MissingPart]);
}

#[test]
fn a_table_at_an_unknown_address_may_lead_anywhere() {
    let code = code(
        "
        48 63 04 87              | movslq (%rdi,%rax,4),%rax
        48 01 f8                 | add %rdi,%rax
        ff e0                    | jmp *%rax",
    );
    assert!(!leaves(&code, &NoMemory));
}
