//! Where the fields of an event are, as its `format` file says. Pure.

/// The number of an event, and where its fields are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Format {
    /// What events of this kind begin with.
    pub id: u16,
    fields: Vec<(String, usize, usize)>,
}

impl Format {
    /// Reads a `format` file.
    #[must_use]
    pub fn parse(text: &str) -> Option<Format> {
        let id = text.lines().find_map(|line| line.strip_prefix("ID:"))?;
        let fields = text.lines().filter_map(|line| {
            let rest = line.trim().strip_prefix("field:")?;
            let mut parts = rest.split(';').map(str::trim);
            let declaration = parts.next()?;
            let name = declaration.split_whitespace().last()?;
            let name = name.split('[').next()?.to_owned();
            let number = |part: Option<&str>, key: &str| {
                part?.strip_prefix(key)?.trim().parse::<usize>().ok()
            };
            let offset = number(parts.next(), "offset:")?;
            Some((name, offset, number(parts.next(), "size:")?))
        });
        Some(Format {
            id: id.trim().parse().ok()?,
            fields: fields.collect(),
        })
    }

    /// Reads a text that stands at the end of an event; its field says where (`__data_loc`).
    #[must_use]
    pub fn text<'a>(&self, event: &'a [u8], field: &str) -> Option<&'a [u8]> {
        let place = self.number(event, field)? as u32;
        let (offset, len) = ((place & 0xffff) as usize, (place >> 16) as usize);
        let bytes = event.get(offset..offset.checked_add(len)?)?;
        let end = bytes.iter().position(|&byte| byte == 0);
        bytes.get(..end.unwrap_or(len))
    }

    /// Reads a whole number of an event; signed ones of four bytes keep their sign.
    #[must_use]
    pub fn number(&self, event: &[u8], field: &str) -> Option<i64> {
        let &(_, offset, size) = self.fields.iter().find(|(name, ..)| name == field)?;
        let bytes = event.get(offset..offset.checked_add(size)?)?;
        Some(match *bytes {
            [a] => i64::from(a),
            [a, b] => i64::from(u16::from_le_bytes([a, b])),
            [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])),
            _ => i64::from_le_bytes(bytes.try_into().ok()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_where_the_kernel_says() {
        let text = "name: sys_exit\nID: 442\nformat:\n\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\tfield:long id;\toffset:8;\tsize:8;\tsigned:1;\n\nprint fmt: \"NR %ld\", REC->id\n";
        let format = Format::parse(text).unwrap();
        let mut event = vec![0; 16];
        event[..2].copy_from_slice(&442_u16.to_le_bytes());
        event[4..8].copy_from_slice(&77_i32.to_le_bytes());
        event[8..].copy_from_slice(&(-1_i64).to_le_bytes());
        assert_eq!(format.id, 442);
        assert_eq!(format.number(&event, "common_pid"), Some(77));
        assert_eq!(format.number(&event, "id"), Some(-1));
        assert_eq!(format.number(&event[..12], "id"), None);
        assert_eq!(format.number(&event, "nothing"), None);
        assert_eq!(Format::parse("nonsense"), None);
    }

    #[test]
    fn texts_are_where_the_event_says() {
        let text = "ID: 7\n\tfield:__data_loc char[] name;\toffset:12;\tsize:4;\tsigned:0;\n";
        let format = Format::parse(text).unwrap();
        let mut event = vec![0; 12];
        event.extend((6_u32 << 16 | 16).to_le_bytes());
        event.extend(b"eth0\0\0");
        assert_eq!(format.text(&event, "name"), Some(&b"eth0"[..]));
        assert_eq!(format.text(&event[..18], "name"), None);
    }
}
