//! The code around hot instructions. Pure.

use serde::Serialize;

use super::counts::Spot;
use super::profile::{InstructionEntry, Names, hexadecimal};

/// Instructions that are shown before and after a hot one.
const AROUND: usize = 3;
/// An instruction is hot from this share of its function's samples on.
const HOT: f64 = 0.01;
/// A listing is cut off here.
const LONGEST: usize = 200;

/// One line of a listing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Listed {
    /// A source line, before the instructions made for it.
    Source {
        /// The file.
        file: String,
        /// The line.
        line: u32,
        /// Its text, where the file can be read.
        #[serde(skip_serializing_if = "Option::is_none")]
        text: Option<String>,
    },
    /// An instruction.
    Instruction {
        /// Its address.
        #[serde(serialize_with = "hexadecimal")]
        address: u64,
        /// Samples of it.
        samples: u64,
        /// As `objdump -d` writes it.
        text: String,
    },
    /// Instructions without samples were left out.
    Gap,
}

/// The instructions of a function that are hot or near a hot one, with their source lines.
#[must_use]
pub fn around(counts: &[InstructionEntry], spot: Spot, names: &impl Names) -> Vec<Listed> {
    let instructions = names.instructions(spot);
    let samples: u64 = counts.iter().map(|count| count.samples).sum();
    let of = |address| {
        counts
            .binary_search_by_key(&address, |count| count.address)
            .map_or(0, |index| counts[index].samples)
    };
    let mut shown = vec![false; instructions.len()];
    for (index, instruction) in instructions.iter().enumerate() {
        if of(instruction.address) as f64 >= (HOT * samples as f64).max(1.0) {
            let near = index.saturating_sub(AROUND)..(index + AROUND + 1).min(shown.len());
            shown[near].fill(true);
        }
    }
    let mut listing = Vec::new();
    let mut source = None;
    let mut gap = false;
    for (instruction, shown) in instructions.into_iter().zip(shown) {
        if !shown {
            gap = !listing.is_empty();
            continue;
        }
        if listing.len() >= LONGEST {
            listing.push(Listed::Gap);
            break;
        }
        if std::mem::take(&mut gap) {
            listing.push(Listed::Gap);
            source = None;
        }
        if instruction.source != source {
            if let Some((file, line)) = &instruction.source {
                listing.push(Listed::Source {
                    file: file.clone(),
                    line: *line,
                    text: names.source_line(spot, file, *line),
                });
            }
            source = instruction.source;
        }
        listing.push(Listed::Instruction {
            address: instruction.address,
            samples: of(instruction.address),
            text: instruction.text,
        });
    }
    listing
}

#[cfg(test)]
mod tests {
    use super::super::adding::tests::{Mock, code};
    use super::*;

    #[test]
    fn what_is_far_from_samples_is_left_out() {
        let counts = [(0x10, 5), (0x14, 3), (0x80, 9)]
            .map(|(address, samples)| InstructionEntry { address, samples });
        let listing = around(&counts, code(0x10), &Mock);
        let addresses: Vec<_> = listing
            .iter()
            .filter_map(|listed| match listed {
                Listed::Instruction {
                    address, samples, ..
                } => Some((*address, *samples)),
                _ => None,
            })
            .collect();
        let first = [
            (4, 0),
            (8, 0),
            (0xc, 0),
            (0x10, 5),
            (0x14, 3),
            (0x18, 0),
            (0x1c, 0),
            (0x20, 0),
        ];
        let second = [
            (0x74, 0),
            (0x78, 0),
            (0x7c, 0),
            (0x80, 9),
            (0x84, 0),
            (0x88, 0),
            (0x8c, 0),
        ];
        assert_eq!(addresses, [first.as_slice(), second.as_slice()].concat());
        assert_eq!(
            listing
                .iter()
                .filter(|listed| **listed == Listed::Gap)
                .count(),
            1
        );
        let Listed::Source { line, text, .. } = &listing[0] else {
            panic!("{listing:?}")
        };
        assert_eq!((*line, text.as_deref()), (0, Some("statement 0")));
    }
}
