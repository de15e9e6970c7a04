//! Where `main` is in a program without a symbol table: the C library's start code hands it over.
//!
//! Source: `sysdeps/x86_64/start.S` of glibc: `_start` loads the address of `main` into `%rdi`, its last argument to be set, and calls
//! `__libc_start_main`.

/// So many bytes of `_start` are looked at: it has some forty.
pub(crate) const LENGTH: u64 = 64;

/// `lea offset(%rip),%rdi`, in programs that may lie anywhere.
const RELATIVE: &[u8] = &[0x48, 0x8d, 0x3d];
/// `mov $address,%rdi`, in others.
const ABSOLUTE: &[u8] = &[0x48, 0xc7, 0xc7];
/// What may follow: `call *slot(%rip)`, `call`, and that with a prefix that fills a place.
const CALLS: [&[u8]; 3] = [&[0xff, 0x15], &[0xe8], &[0x67, 0xe8]];
/// Bytes of either instruction.
const SIZE: usize = 7;

/// The address of `main`, from the code at the program's entry.
pub(crate) fn main(code: &[u8], entry: u64) -> Option<u64> {
    let is_handed_over = |at: &usize| {
        let (begin, behind) = (&code[*at..], &code[*at + SIZE..]);
        (begin.starts_with(RELATIVE) || begin.starts_with(ABSOLUTE))
            && CALLS.iter().any(|call| behind.starts_with(call))
    };
    let at = (0..code.len().checked_sub(SIZE)?).find(is_handed_over)?;
    let number = code.get(at + RELATIVE.len()..at + SIZE)?;
    let number = i64::from(i32::from_le_bytes(number.try_into().ok()?));
    match code[at..].starts_with(RELATIVE) {
        true => entry
            .checked_add((at + SIZE) as u64)?
            .checked_add_signed(number),
        false => u64::try_from(number).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From `xor %ebp,%ebp` to the call.
    fn start(load: &[u8], call: &[u8]) -> Vec<u8> {
        let before = [
            0x31, 0xed, 0x49, 0x89, 0xd1, 0x5e, 0x48, 0x89, 0xe2, 0x48, 0x83, 0xe4, 0xf0, 0x50,
            0x54, 0x45, 0x31, 0xc0, 0x31, 0xc9,
        ];
        [&before[..], load, call].concat()
    }

    #[test]
    fn main_is_what_the_start_code_hands_over() {
        let far_back = [0x48, 0x8d, 0x3d, 0xe5, 0xfe, 0xff, 0xff];
        let call = [0xff, 0x15, 0x10, 0x20, 0x00, 0x00, 0xf4];
        assert_eq!(main(&start(&far_back, &call), 0x1100), Some(0x1000));
        let fixed = [0x48, 0xc7, 0xc7, 0x00, 0x10, 0x40, 0x00];
        let prefixed = [0x67, 0xe8, 0, 0, 0, 0, 0xf4];
        assert_eq!(main(&start(&fixed, &prefixed), 0x40_1100), Some(0x40_1000));
        let no_call = [0x90, 0x90];
        assert_eq!(main(&start(&far_back, &no_call), 0x1100), None);
        for len in 0..34 {
            assert_eq!(main(&start(&far_back, &call)[..len.min(27)], 0x1100), None);
        }
        assert_eq!(main(&start(&far_back, &call), 5), None, "before the file");
    }
}
