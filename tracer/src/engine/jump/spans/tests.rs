//! Which instructions jumps replace.

use darc_disasm::{CodePart, NoMemory};
use proptest::prelude::*;

use super::*;

const BASE: u64 = 0x1000;

fn code(bytes: &[u8]) -> FunctionCode {
    let part = CodePart {
        start: BASE,
        bytes: bytes.to_vec(),
    };
    FunctionCode::new(vec![part]).unwrap()
}

fn view(bytes: &[u8]) -> View {
    View::new(Arc::new(code(bytes)), &NoMemory)
}

fn span(view: &View, offset: u64) -> Result<(Range<usize>, u64), NoRoom> {
    let at = view.position(BASE + offset).ok_or(NoRoom::NoInstruction)?;
    let span = view.span(at, None)?;
    Ok((span.range, span.filling))
}

#[test]
fn a_long_call_needs_nothing_else() {
    let v = view(&[0x90, 0xe8, 0, 1, 0, 0, 0xc3]); // nop; call; ret
    assert_eq!(span(&v, 1), Ok((1..2, 0)));
}

#[test]
fn a_short_call_displaces_what_is_before_it() {
    // mov %rdi,%rax; mov (%rax),%rax; call *%rax; ret
    let v = view(&[0x48, 0x89, 0xf8, 0x48, 0x8b, 0x00, 0xff, 0xd0, 0xc3]);
    assert_eq!(span(&v, 6), Ok((1..3, 0)));
    // xor %eax,%eax; call *%rax: a punned jump over both
    let v = view(&[0x31, 0xc0, 0xff, 0xd0]);
    assert_eq!(span(&v, 2), Ok((0..2, 0)));
    // call far; call *%rax: what was called returns between them
    let v = view(&[0xe8, 0, 1, 0, 0, 0xff, 0xd0]);
    assert_eq!(span(&v, 5), Ok((1..2, 0)));
}

#[test]
fn computed_jumps_lead_to_where_the_stack_is_as_deep() {
    // push %r15; push %r14; push %rbx; nop; jmp *%rax
    let deep = view(b"\x41\x57\x41\x56\x53\x90\xff\xe0");
    assert_eq!(span(&deep, 0), Ok((0..3, 0)));
    // push %r15; push %rbx; test %eax,%eax, where a jump may lead; je; jmp *%rax; push %rcx; jmp *%rax
    let shallow = view(b"\x41\x57\x53\x85\xc0\x74\x02\xff\xe0\x51\xff\xe0");
    assert_eq!(span(&shallow, 0), Ok((0..2, 0)));
}

#[test]
fn nothing_may_lead_inside() {
    // mov (%rax),%rax; call *%rax; jmp to the call
    let v = view(&[0x48, 0x8b, 0x00, 0xff, 0xd0, 0xeb, 0xfc]);
    assert_eq!(span(&v, 3), Ok((1..2, 0)));
    // The same, but the branch leads to the beginning.
    let v = view(&[0x48, 0x8b, 0x00, 0xff, 0xd0, 0xeb, 0xf9]);
    assert_eq!(span(&v, 3), Ok((0..2, 0)));
    // Code elsewhere leads there.
    let bytes = [0x48, 0x8b, 0x00, 0xff, 0xd0, 0xc3];
    let entered = code(&bytes).with_entrances(vec![BASE + 3]);
    let v = View::new(Arc::new(entered), &NoMemory);
    assert_eq!(span(&v, 3), Ok((1..2, 0)));
}

#[test]
fn a_jump_between_the_bytes_of_an_instruction_is_one_too_many() {
    // je behind the prefix; lock cmpxchg %ecx,(%rdi); ret
    let v = view(&[0x74, 0x01, 0xf0, 0x0f, 0xb1, 0x0f, 0xc3]);
    assert_eq!(span(&v, 2), Err(NoRoom::Split));
    assert_eq!(span(&v, 0), Ok((0..1, 0)));
}

#[test]
fn an_unknown_jump_may_lead_to_every_instruction() {
    // push %rbx; call far; mov (%rax),%rax; call *%rax; jmp *%rdx; nop (of the function)
    let bytes = [
        0x53, 0xe8, 0, 1, 0, 0, 0x48, 0x8b, 0x00, 0xff, 0xd0, 0xff, 0xe2, 0x90,
    ];
    let v = view(&bytes);
    assert_eq!(span(&v, 1), Ok((1..2, 0)));
    assert_eq!(span(&v, 9), Ok((3..4, 0)));
    assert_eq!(span(&v, 11), Ok((4..5, 0)));
    // With the frame given back it is a jump out of the function, behind which is room.
    let v = view(&[&bytes[..11], &[0x5b, 0xff, 0xe2, 0x90, 0x90, 0x90]].concat());
    assert_eq!(span(&v, 9), Ok((2..4, 0)));
    assert_eq!(span(&v, 12), Ok((5..6, 3)));
}

#[test]
fn room_behind_what_does_not_run_on_is_used_first() {
    // pop %rbx; jmp far, two bytes; nopw, six bytes; ret
    let v = view(&[0x5b, 0xeb, 0x40, 0x66, 0x0f, 0x1f, 0x44, 0, 0, 0x5b, 0xc3]);
    assert_eq!(span(&v, 1), Ok((1..2, 3)));
    // The same, and something leads to the filling.
    let v = view(&[
        0x5b, 0xeb, 0x40, 0x66, 0x0f, 0x1f, 0x44, 0, 0, 0x74, 0xf8, 0xc3,
    ]);
    assert_eq!(span(&v, 1), Ok((0..2, 0)));
    // ret, and behind the function int3
    let memory = code(&[0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc]);
    let padded = code(&[0xc3]).with_filling(&memory, |_| Some(BASE + 6));
    let v = View::new(Arc::new(padded), &NoMemory);
    assert_eq!(span(&v, 0), Ok((0..1, 4)));
    assert_eq!(
        v.bytes(&v.span(0, None).unwrap()),
        Some((BASE, vec![0xc3, 0xcc, 0xcc, 0xcc, 0xcc]))
    );
    // call far: it returns to what is behind it
    let v = view(&[0xff, 0xd0, 0x90, 0x90, 0x90]);
    assert_eq!(span(&v, 0), Ok((0..1, 0)));
}

#[test]
fn a_loop_stays_out_of_the_way_of_its_functions_end() {
    // dec %rdi; jne to it; ret
    let v = view(&[0x48, 0xff, 0xcf, 0x75, 0xfb, 0xc3]);
    assert_eq!(span(&v, 5), Ok((2..3, 0)));
    // dec %rdi; jne ahead, over the ret; ret; ret
    let v = view(&[0x48, 0xff, 0xcf, 0x75, 0x01, 0xc3, 0xc3]);
    assert_eq!(span(&v, 5), Ok((0..3, 0)));
}

#[test]
fn a_system_call_stays_and_what_is_before_it_is_displaced() {
    let syscall = |bytes: &[u8], offset: u64| {
        let v = view(bytes);
        let span = v.span(v.position(BASE + offset).unwrap(), None).unwrap();
        (span.range, span.syscall_behind)
    };
    // mov $1,%eax; syscall
    assert_eq!(syscall(&[0xb8, 1, 0, 0, 0, 0x0f, 0x05], 5), (0..1, true));
    // mov %rdi,%rax; mov %rsi,%rdi; syscall
    let bytes = [0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x0f, 0x05];
    assert_eq!(syscall(&bytes, 6), (0..2, true));
    // mov $1,%eax; syscall; jmp to the syscall
    let bytes = [0xb8, 1, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xfc];
    assert_eq!(syscall(&bytes, 5), (1..2, false));
    // mov %edi,%eax; syscall: too short
    assert_eq!(syscall(&[0x89, 0xf8, 0x0f, 0x05], 2), (1..2, false));
    // mov $1,%eax; syscall; ret: nothing is displaced together with a system call
    let v = view(&[0x89, 0xf8, 0x0f, 0x05, 0xc3]);
    assert_eq!(span(&v, 4), Ok((2..3, 0)));
    assert_eq!(span(&v, 0), Ok((0..1, 0)));
}

#[test]
fn what_is_before_joins_what_is_displaced_already() {
    // mov (%rdi),%rax; mov %rbx,%rdi; call *%rax, in a function that begins with them
    let v = view(&[0x48, 0x8b, 0x07, 0x48, 0x89, 0xdf, 0xff, 0xd0]);
    let entry = v.span(0, None).unwrap();
    assert_eq!(entry.range, 0..2);
    let both = v.span(2, Some(&entry)).unwrap();
    assert_eq!(both.range, 0..3);
    // A system call behind what is displaced already: nop; mov $60,%eax; syscall
    let v = view(&[0x90, 0xb8, 60, 0, 0, 0, 0x0f, 0x05]);
    let entry = v.span(0, None).unwrap();
    let both = v.span(2, Some(&entry)).unwrap();
    assert_eq!((both.range, both.syscall_behind), (0..2, true));
}

#[test]
fn an_entry_keeps_its_landing_mark() {
    // endbr64; push %rbp; mov %rsp,%rbp; push %rbx; ret
    let v = view(&[0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5, 0x53, 0xc3]);
    assert_eq!(v.entry(), Some(1));
    assert_eq!(v.span(1, None).unwrap().range, 1..4);
}

#[test]
fn what_is_no_instruction_or_must_stay_has_no_room() {
    // push %rbx; ud2; ret; a byte that begins none
    let v = view(&[0x53, 0x0f, 0x0b, 0xc3, 0x06]);
    assert_eq!(span(&v, 4), Err(NoRoom::NoInstruction));
    assert_eq!(span(&v, 6), Err(NoRoom::NoInstruction));
    assert_eq!(span(&v, 1), Err(NoRoom::Immovable));
    assert_eq!(span(&v, 0), Ok((0..1, 0)));
    // call to the next instruction; pop %rbx
    let v = view(&[0xe8, 0, 0, 0, 0, 0x5b, 0xc3]);
    assert_eq!(span(&v, 0), Err(NoRoom::Immovable));
}

proptest! {
    /// What a jump replaces runs from the first of it to the last, whoever comes.
    #[test]
    fn a_span_is_entered_at_its_beginning_in_any_code(
        bytes in any_code(),
    ) {
        let v = view(&bytes);
        let all = v.instructions();
        let mut before: Option<Span> = None;
        for at in 0..all.len() {
            if before.as_ref().is_some_and(|before| v.covers(before, at)) {
                continue;
            }
            let Ok(span) = v.span(at, before.as_ref()) else { continue };
            let inside = &all[span.range.clone()];
            prop_assert!(v.covers(&span, at));
            for pair in inside.windows(2) {
                prop_assert_eq!(pair[0].next_ip(), pair[1].ip());
                prop_assert!(!is_call(&pair[0]) && falls_through(&pair[0]));
                let ip = pair[1].ip();
                prop_assert!(all.iter().all(|i| !branches_to(i, ip)), "{ip:x}");
            }
            let replaced = v.bytes(&span).unwrap().1.len();
            prop_assert!(replaced <= journal::MAX_LEN);
            prop_assert!(replaced as u64 >= v.len(&span));
            if let Some(last) = &before {
                let joined = span.range.start <= last.range.start;
                prop_assert!(joined || last.range.end <= span.range.start);
            }
            before = Some(span);
        }
    }
}

/// Any sequence of instructions that branch, call, return and do not, among them bytes that are none: code that jumps are
/// to be written into.
pub(in crate::engine::jump) fn any_code() -> impl Strategy<Value = Vec<u8>> {
    const PIECES: [&[u8]; 14] = [
        &[0xe8, 0, 1, 0, 0],
        &[0xe9, 8, 0, 0, 0],
        &[0x74, 4],
        &[0x75, 0xf8],
        &[0xeb, 0xf0],
        &[0x0f, 0x05],
        &[0xb8, 1, 0, 0, 0],
        &[0xff, 0xd0],
        &[0x55],
        &[0xc3],
        &[0x48, 0x89, 0xfb],
        &[0x90],
        &[0xff, 0xe0],
        &[0x06],
    ];
    prop::collection::vec(prop::sample::select(PIECES.to_vec()), 1..40)
        .prop_map(|pieces| pieces.concat())
}
