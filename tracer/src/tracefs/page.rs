//! One page of the kernel's ring buffer. Pure; the layout is that of include/linux/ring_buffer.h and the
//! files `events/header_page` and `events/header_event`.

use darc_record::Tsc;

/// Time stamp and length stand before the events.
const HEAD: usize = 16;
/// The length's bits that say that events before this page were lost.
const MISSED: u64 = 1 << 31;
const MISSED_COUNTED: u64 = 1 << 30;
const LENGTH: u64 = (1 << 20) - 1;

const LARGEST_SHORT: u32 = 28;
const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;
/// Bits of the time that stand in an event's own head.
const DELTA_BITS: u32 = 27;

/// Whether events were lost before a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Before {
    /// None.
    Nothing,
    /// Some: the reader was too slow.
    Lost,
}

/// Takes the page apart: for each event its time and its bytes. A page that makes no sense ends early.
pub fn parse(page: &[u8], mut take: impl FnMut(Tsc, &[u8])) -> Before {
    let word = |at: usize| {
        let bytes = page.get(at..at + 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    };
    let (Some(mut time), Some(commit)) = (word(0), word(8)) else {
        return Before::Nothing;
    };
    let end = (HEAD + (commit & LENGTH) as usize).min(page.len());
    let mut at = HEAD;
    let half = |at: usize| {
        let bytes = page.get(at..at + 4).filter(|_| at + 4 <= end)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    while let Some(head) = half(at) {
        let (kind, delta) = (head & 0x1f, u64::from(head >> 5));
        let next = half(at + 4).map(u64::from);
        match kind {
            PADDING => {
                let Some(len) = next.filter(|_| delta != 0) else {
                    break;
                };
                time = time.wrapping_add(delta);
                at = at.saturating_add(4 + len as usize);
            }
            TIME_EXTEND => {
                let Some(high) = next else { break };
                time = time.wrapping_add((high << DELTA_BITS) + delta);
                at += 8;
            }
            TIME_STAMP => {
                let Some(high) = next else { break };
                // The topmost bits do not fit, and change every few years.
                const TOP: u64 = !((1 << 59) - 1);
                time = (time & TOP) | ((high << DELTA_BITS) + delta);
                at += 8;
            }
            _ => {
                time = time.wrapping_add(delta);
                let (start, len) = match kind {
                    0 => match next {
                        Some(len @ 4..) => (at + 8, len as usize - 4),
                        _ => break,
                    },
                    short => (at + 4, (short.min(LARGEST_SHORT) * 4) as usize),
                };
                let stop = start.saturating_add(len);
                let Some(event) = page.get(start..stop).filter(|_| stop <= end) else {
                    break;
                };
                take(Tsc(time), event);
                at = stop.next_multiple_of(4);
            }
        }
    }
    match commit & (MISSED | MISSED_COUNTED) {
        0 => Before::Nothing,
        _ => Before::Lost,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn page(time: u64, flags: u64, words: &[u32]) -> Vec<u8> {
        let mut page = time.to_le_bytes().to_vec();
        page.extend(((words.len() as u64 * 4) | flags).to_le_bytes());
        page.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        page.resize(4096, 0);
        page
    }

    fn events(page: &[u8]) -> (Vec<(u64, Vec<u8>)>, Before) {
        let mut found = Vec::new();
        let before = parse(page, |time, event| found.push((time.0, event.to_vec())));
        (found, before)
    }

    #[test]
    fn events_have_their_times() {
        let short = |delta: u32, words: u32| (delta << 5) | words;
        let words = [
            short(5, 1),
            0xaaaa,
            // Extends the time by 3 << 27 and 2.
            short(2, TIME_EXTEND),
            3,
            // Length in the second word, itself included.
            short(1, 0),
            12,
            0xbbbb,
            0xcccc,
        ];
        let (found, before) = events(&page(100, 0, &words));
        assert_eq!(before, Before::Nothing);
        assert_eq!(found[0], (105, 0xaaaa_u32.to_le_bytes().to_vec()));
        assert_eq!(found[1].0, 105 + (3 << 27) + 2 + 1);
        assert_eq!(found[1].1.len(), 8);
        assert_eq!(found.len(), 2);
        assert_eq!(events(&page(100, MISSED, &words)).1, Before::Lost);
    }

    proptest! {
        #[test]
        fn nonsense_is_survived(words in prop::collection::vec(any::<u32>(), 0..64), commit: u64, cut in 0_usize..300) {
            let mut page = page(1, 0, &words);
            page[8..16].copy_from_slice(&commit.to_le_bytes());
            page.truncate(cut);
            events(&page);
        }
    }
}
