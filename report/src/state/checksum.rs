//! FNV-1a with 64 bits (Fowler, Noll, Vo; IETF draft-eastlake-fnv): finds damage, not forgery.
//!
//! Each step is a bijection of the state, so a change of any single byte always changes the sum.

/// The checksum's name in the file.
pub(super) const NAME: &str = "fnv1a-64";

/// The sum of `bytes`.
pub(super) fn of(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sums_of_the_draft() {
        assert_eq!(of(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(of(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(of(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
