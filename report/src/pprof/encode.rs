//! A file of pprof: Protocol Buffers (<https://protobuf.dev/programming-guides/encoding/>) of the messages in
//! <https://github.com/google/pprof/blob/main/proto/profile.proto>, compressed by gzip. Field numbers are of that file.

use std::collections::HashMap;
use std::io::{self, Write as _};

use flate2::{Compression, GzBuilder};

/// Numbers of texts, functions, … by what they are.
type Known<Key> = HashMap<Key, u64>;

/// What a frame of a stack is called.
#[derive(Clone, Copy, Default, Debug)]
pub struct Frame<'a> {
    /// The function.
    pub name: &'a str,
    /// The program or library that holds it; empty where none does.
    pub module: &'a str,
    /// The source file that defines it; empty where that is not known.
    pub file: &'a str,
    /// The line there from which on it is defined; 0 where that is not known.
    pub defined: u32,
    /// The line that ran, or made the call; 0 where that is not known.
    pub line: u32,
}

/// A profile that is being made.
#[derive(Debug)]
pub struct Profile {
    message: Message,
    strings: Known<String>,
    mappings: Known<u64>,
    functions: Known<(u64, u64, u32)>,
    locations: Known<(u64, u64, u32)>,
}

impl Profile {
    /// An empty profile whose samples have figures of these kinds, each a name and a unit; the last is shown first.
    #[must_use]
    pub fn new(kinds: &[(&str, &str)]) -> Self {
        let mut profile = Self {
            message: Message::default(),
            // The table's first text is the empty one, whether anything refers to it or not.
            strings: Known::from([(String::new(), 0)]),
            mappings: Known::new(),
            functions: Known::new(),
            locations: Known::new(),
        };
        profile.message.text(6, "");
        for &kind in kinds {
            let kind = profile.kind(kind);
            profile.message.message(1, &kind);
        }
        profile
    }

    /// What lies between two samples: so many of a unit.
    pub fn period(&mut self, kind: (&str, &str), length: u64) {
        let kind = self.kind(kind);
        self.message.message(11, &kind);
        self.message.number(12, length);
    }

    /// A frame's number, for [`sample`](Self::sample).
    pub fn frame(&mut self, frame: &Frame<'_>) -> u64 {
        let mapping = self.mapping(frame.module);
        let function = self.function(frame);
        let next = self.locations.len() as u64 + 1;
        let known = (mapping, function, frame.line);
        let number = *self.locations.entry(known).or_insert(next);
        if number == next {
            let mut line = Message::default();
            line.number(1, function);
            line.number(2, frame.line.into());
            let mut location = Message::default();
            location.number(1, number);
            location.number(2, mapping);
            location.message(4, &line);
            self.message.message(4, &location);
        }
        number
    }

    /// Adds a stack, the innermost frame first, with a figure of each kind and a label (a key and its value).
    pub fn sample(&mut self, stack: &[u64], figures: &[u64], (key, value): (&str, &str)) {
        let mut label = Message::default();
        label.number(1, self.string(key));
        label.number(2, self.string(value));
        let mut sample = Message::default();
        sample.packed(1, stack);
        // They are signed.
        let figure = |&value: &u64| value.min(i64::MAX as u64);
        sample.packed(2, &figures.iter().map(figure).collect::<Vec<_>>());
        sample.message(3, &label);
        self.message.message(2, &sample);
    }

    /// The file. Its head says by whom it was made, so that it is known again without being unpacked.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        let mut gzip = GzBuilder::new()
            .comment(concat!("darc ", env!("CARGO_PKG_VERSION")))
            .write(Vec::new(), Compression::default());
        let written: io::Result<Vec<u8>> =
            gzip.write_all(&self.message.0).and_then(|()| gzip.finish());
        written.unwrap_or_default()
    }

    fn kind(&mut self, (name, unit): (&str, &str)) -> Message {
        let mut kind = Message::default();
        kind.number(1, self.string(name));
        kind.number(2, self.string(unit));
        kind
    }

    fn string(&mut self, text: &str) -> u64 {
        if let Some(&number) = self.strings.get(text) {
            return number;
        }
        let number = self.strings.len() as u64;
        self.message.text(6, text);
        self.strings.insert(text.to_owned(), number);
        number
    }

    /// The number of a module; 0 is none.
    fn mapping(&mut self, module: &str) -> u64 {
        if module.is_empty() {
            return 0;
        }
        let file = self.string(module);
        let next = self.mappings.len() as u64 + 1;
        let number = *self.mappings.entry(file).or_insert(next);
        if number == next {
            let mut mapping = Message::default();
            mapping.number(1, number);
            mapping.number(5, file);
            // Functions, files, lines: so that nobody looks for them in the module.
            (7..=9).for_each(|field| mapping.number(field, 1));
            self.message.message(3, &mapping);
        }
        number
    }

    fn function(&mut self, frame: &Frame<'_>) -> u64 {
        let known = (
            self.string(frame.name),
            self.string(frame.file),
            frame.defined,
        );
        let next = self.functions.len() as u64 + 1;
        let number = *self.functions.entry(known).or_insert(next);
        if number == next {
            let mut function = Message::default();
            let (name, file, defined) = known;
            let fields = [number, name, name, file, defined.into()];
            (1..)
                .zip(fields)
                .for_each(|(field, value)| function.number(field, value));
            self.message.message(5, &function);
        }
        number
    }
}

/// The bytes of a message.
#[derive(Default, Debug)]
struct Message(Vec<u8>);

impl Message {
    /// Seven bits a byte, the lowest first; the highest bit says that more follow.
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(&mut self, field: u64, value: u64) {
        self.varint(field << 3);
        self.varint(value);
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, field: u64, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    fn message(&mut self, field: u64, message: &Message) {
        self.bytes(field, &message.0);
    }

    fn packed(&mut self, field: u64, values: &[u64]) {
        let mut all = Message::default();
        values.iter().for_each(|&value| all.varint(value));
        self.message(field, &all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_the_description_of_the_encoding_writes_them() {
        let mut message = Message::default();
        message.number(1, 150);
        message.text(2, "testing");
        message.packed(6, &[3, 270, 86_942]);
        let numbers = b"\x08\x96\x01";
        let text = b"\x12\x07testing";
        let packed = b"\x32\x06\x03\x8e\x02\x9e\xa7\x05";
        assert_eq!(message.0, [&numbers[..], text, packed].concat());
    }

    #[test]
    fn what_is_known_has_one_number() {
        let mut profile = Profile::new(&[("time", "nanoseconds")]);
        let frame = Frame {
            name: "f",
            module: "m",
            ..Frame::default()
        };
        let elsewhere = Frame { line: 7, ..frame };
        assert_eq!(profile.frame(&frame), 1);
        assert_eq!(profile.frame(&elsewhere), 2);
        assert_eq!(profile.frame(&frame), 1);
        assert_eq!((profile.functions.len(), profile.mappings.len()), (1, 1));
    }
}
