//! ELF notes. Source: System V ABI, "Note Section".

/// The descriptor of the first note with this owner and type. A note is three words (name size,
/// descriptor size, type), then name and descriptor, each padded to 4 bytes.
pub(crate) fn find<'a>(mut bytes: &'a [u8], owner: &[u8], kind: u32) -> Option<&'a [u8]> {
    let int = |bytes: &[u8], at: usize| -> Option<u32> {
        Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
    };
    let padded = |size: u32| (size as usize).next_multiple_of(4);
    loop {
        let (name_size, size, found) = (int(bytes, 0)?, int(bytes, 4)?, int(bytes, 8)?);
        let name = bytes.get(12..)?.get(..name_size as usize)?;
        let rest = bytes.get(12..)?.get(padded(name_size)..)?;
        let descriptor = rest.get(..size as usize)?;
        if found == kind && name.strip_suffix(b"\0").unwrap_or(name) == owner {
            return Some(descriptor);
        }
        bytes = rest.get(padded(size)..)?;
    }
}
