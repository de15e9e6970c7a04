//! Where functions end of which only the entry is known.

mod listing;

use darc_disasm::{FunctionCode, Memory, NoMemory, function_at};
use listing::{BASE, Bytes, bytes};

/// Length of the function at the beginning of a listing, which is read up to `limit` bytes.
fn len(listing: &str, limit: u64) -> Option<usize> {
    let memory = Bytes::default().with(BASE, &bytes(listing));
    // Memory is read in pages.
    let padded = Page(memory);
    let found: Option<FunctionCode> = function_at(BASE, BASE + limit, &padded);
    found.map(|code| code.parts()[0].bytes.len())
}

/// Fills up what lies behind a listing.
struct Page(Bytes);

impl Memory for Page {
    fn read(&self, addr: u64, buf: &mut [u8]) -> bool {
        for (addr, byte) in (addr..).zip(buf.iter_mut()) {
            if !self.0.read(addr, std::slice::from_mut(byte)) {
                *byte = 0xcc;
            }
        }
        true
    }
}

#[test]
fn code_behind_a_return_is_reached_by_a_jump() {
    let found = len(
        "
        85 ff                    | test %edi,%edi
        74 05                    | je 401009
        ff cf                    | dec %edi
        75 fc                    | jne 401004
        c3                       | ret
        0f 0b                    | ud2
        cc                       | int3
        cc                       | int3
        53                       | push %rbx
        c3                       | ret",
        0x1000,
    );
    assert_eq!(found, Some(11));
}

#[test]
fn a_jump_ahead_to_a_new_function_is_a_tail_call() {
    let found = len(
        "
        85 ff                    | test %edi,%edi
        74 02                    | je 401006
        eb 1a                    | jmp 401020
        31 c0                    | xor %eax,%eax
        c3                       | ret
        0f 1f 80 00 00 00 00     | nopl 0x0(%rax)
        90                       | nop
        c3                       | ret
        66 66 2e 0f 1f 84 00 00 00 00 00 | data16 cs nopw 0x0(%rax,%rax,1)
        0f 1f 00                 | nopl (%rax)
        53                       | push %rbx
        c3                       | ret",
        0x1000,
    );
    assert_eq!(found, Some(9));
}

#[test]
fn a_jump_ahead_may_stay_inside() {
    let found = len(
        "
        eb 10                    | jmp 401012
        66 66 2e 0f 1f 84 00 00 00 00 00 | data16 cs nopw 0x0(%rax,%rax,1)
        0f 1f 00                 | nopl (%rax)
        ff cf                    | dec %edi
        85 ff                    | test %edi,%edi
        75 fa                    | jne 401010
        c3                       | ret
        66 0f 1f 84 00 00 00 00 00 | nopw 0x0(%rax,%rax,1)
        53                       | push %rbx
        c3                       | ret",
        0x1000,
    );
    assert_eq!(found, Some(0x17));
}

#[test]
fn a_call_before_padding_does_not_return() {
    let found = len(
        "
        53                       | push %rbx
        e8 fa 0f 00 00           | call 402000
        66 2e 0f 1f 84 00 00 00 00 00 | cs nopw 0x0(%rax,%rax,1)
        53                       | push %rbx
        c3                       | ret",
        0x1000,
    );
    assert_eq!(found, Some(6));
}

#[test]
fn padding_before_a_loop_is_inside() {
    let found = len(
        "
        53                       | push %rbx
        e8 fa 0f 00 00           | call 402000
        66 2e 0f 1f 84 00 00 00 00 00 | cs nopw 0x0(%rax,%rax,1)
        ff cb                    | dec %ebx
        75 fc                    | jne 401010
        c3                       | ret",
        0x1000,
    );
    assert_eq!(found, Some(0x15));
}

#[test]
fn the_limit_and_unreadable_memory_end_a_function() {
    assert_eq!(len("90 90 90 c3", 2), Some(2));
    assert_eq!(len("06 90", 0x1000), None);
    assert_eq!(len("90", 0), None);
    assert!(function_at(BASE, BASE + 16, &NoMemory).is_none());
    assert!(function_at(u64::MAX, u64::MAX, &NoMemory).is_none());
}
