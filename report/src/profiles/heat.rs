//! A profile over time: how many calls of which latency in which segment (OSprof, OSDI 2006, section 3.1,
//! "profile sampling", and figure 9).

use darc_analysis::Resolution;

use super::{FunctionProfile, Segment};

/// The picture as numbers: a column for each stretch of time, a row for each bucket.
#[derive(Clone, PartialEq, Debug)]
pub struct Heat {
    /// The lowest row's bucket.
    pub first_bucket: u32,
    /// From left to right.
    pub columns: Vec<Column>,
    /// Ops of the fullest cell for each segment that its column covers.
    most: f64,
}

/// One stretch of time.
#[derive(Clone, PartialEq, Debug)]
pub struct Column {
    /// When it began, in cycles from the beginning of measuring.
    pub start: u64,
    /// How long it was, in cycles.
    pub length: u64,
    /// How many segments it covers.
    pub segments: u64,
    /// Ops of each row, the lowest first.
    pub ops: Vec<u64>,
}

impl Heat {
    /// The picture of a function, at most so many columns wide; `None` when there is only one segment, or
    /// nothing in any.
    #[must_use]
    pub fn of(profile: &FunctionProfile, segments: &[Segment], width: usize) -> Option<Heat> {
        if segments.len() < 2 {
            return None;
        }
        let most_buckets = Resolution::new(profile.profile.resolution)?.buckets();
        let all = || profile.segments.iter().flat_map(|part| &part.buckets);
        let first_bucket = all().map(|entry| entry.bucket).min()?;
        let last = all().map(|entry| entry.bucket).max()?.min(most_buckets);
        let rows = (last.checked_sub(first_bucket)? + 1) as usize;
        let together = segments.len().div_ceil(width.max(1));
        let mut columns: Vec<Column> = segments
            .chunks(together)
            .map(|chunk| Column {
                start: chunk[0].start,
                length: chunk
                    .iter()
                    .fold(0, |sum, part| part.length.saturating_add(sum)),
                segments: chunk.len() as u64,
                ops: vec![0; rows],
            })
            .collect();
        for part in &profile.segments {
            let column = usize::try_from(part.segment).ok().map(|at| at / together);
            let Some(column) = column.and_then(|at| columns.get_mut(at)) else {
                continue;
            };
            for entry in &part.buckets {
                if let Some(cell) = column.ops.get_mut((entry.bucket - first_bucket) as usize) {
                    *cell = cell.saturating_add(entry.ops);
                }
            }
        }
        let cells = columns.iter().flat_map(|column| {
            let segments = column.segments as f64;
            column.ops.iter().map(move |&ops| ops as f64 / segments)
        });
        let most = cells.fold(0.0, f64::max);
        (most > 0.0).then_some(Heat {
            first_bucket,
            columns,
            most,
        })
    }

    /// How many rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.columns.first().map_or(0, |column| column.ops.len())
    }

    /// The shade of a cell, 0 (no op) to `levels`; logarithmic, as peaks are looked for on logarithms.
    #[must_use]
    pub fn level(&self, column: &Column, row: usize, levels: usize) -> usize {
        let ops = column.ops.get(row).copied().unwrap_or(0);
        if ops == 0 {
            return 0;
        }
        let height = |ops: f64| (ops + 1.0).log2();
        let share = height(ops as f64 / column.segments as f64) / height(self.most);
        ((levels as f64 * share).ceil() as usize).clamp(1, levels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{BucketEntry, Function, ProfileTable};
    use crate::profiles::SegmentProfile;

    fn profile(segments: &[&[(u32, u64)]]) -> FunctionProfile {
        let segments = segments
            .iter()
            .zip(0..)
            .map(|(buckets, segment)| SegmentProfile {
                segment,
                calls: 1,
                concurrency: 0.0,
                buckets: buckets
                    .iter()
                    .map(|&(bucket, ops)| BucketEntry {
                        bucket,
                        ops,
                        total: 1,
                    })
                    .collect(),
            });
        FunctionProfile {
            function: Function::default(),
            calls: 1,
            unfinished: 0,
            ended_otherwise: 0,
            missed: 0,
            max: 0,
            concurrency: 0.0,
            profile: ProfileTable {
                resolution: 1,
                ops: 0,
                total: 0,
                buckets: Vec::new(),
                percentiles: None,
                told_from: None,
                fine: Vec::new(),
            },
            peaks: Vec::new(),
            segments: segments.collect(),
        }
    }

    fn segments(count: u64) -> Vec<Segment> {
        let segment = |number| Segment {
            start: number * 10,
            length: 10,
        };
        (0..count).map(segment).collect()
    }

    #[test]
    fn more_ops_are_darker_and_the_fullest_is_darkest() {
        let profile = profile(&[&[(8, 1), (10, 1000)], &[], &[(9, 30)]]);
        let heat = Heat::of(&profile, &segments(3), 80).unwrap();
        assert_eq!(
            (heat.first_bucket, heat.rows(), heat.columns.len()),
            (8, 3, 3)
        );
        let level = |column: usize, row| heat.level(&heat.columns[column], row, 4);
        assert_eq!((level(0, 2), level(0, 1), level(1, 0)), (4, 0, 0));
        assert_eq!((level(0, 0), level(2, 1)), (1, 2));
    }

    #[test]
    fn more_segments_than_columns_are_put_together() {
        let profile = profile(&[&[(8, 6)], &[(8, 2)], &[(8, 1)]]);
        let heat = Heat::of(&profile, &segments(3), 2).unwrap();
        let ops: Vec<u64> = heat.columns.iter().map(|column| column.ops[0]).collect();
        assert_eq!(ops, [8, 1]);
        assert_eq!(heat.columns[1].start, 20);
        assert_eq!(Heat::of(&profile, &segments(1), 80), None);
    }
}
