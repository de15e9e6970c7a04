//! A flame graph of each peak, as nested boxes: what a call took of its caller's time is as much of its width.

use super::Page;
use crate::contrast::{self, Group};
use crate::model::PeakEntry;
use crate::svg;

/// What has a smaller part of the peak's time has no box.
const LEAST: f64 = 0.005;
/// A part that is larger than in any other peak by so much stands out.
const MORE: f64 = 0.05;

impl Page {
    /// The graph of the peak in this column.
    pub(super) fn flame(&mut self, root: &Group<'_>, column: usize, peaks: &[PeakEntry]) {
        if root.share(column) <= 0.0 {
            return;
        }
        self.raw("<details open><summary>Flame graph</summary>\n<p class=\"place\">The width is the part of the time. Coloured: on a root-cause path. Dark: a larger part than in the other peaks. What is too narrow to read shows its name under the pointer.</p>\n<div class=\"flame\">");
        self.frame(root, column, peaks, 100.0);
        self.raw("</div>\n</details>\n");
    }

    /// A call and what it calls; `width` in percent of its caller.
    fn frame(&mut self, call: &Group<'_>, column: usize, peaks: &[PeakEntry], width: f64) {
        let share = call.share(column);
        let elsewhere = (0..peaks.len()).filter(|&other| other != column);
        let elsewhere = elsewhere.map(|other| call.share(other)).fold(0.0, f64::max);
        self.raw("<div class=\"frame\" style=\"width:")
            .number(width)
            .raw("%\"><span class=\"");
        if call.cells[column].is_cause {
            let number = svg::colour(Some(peaks[column].peak));
            self.raw("b").number(number).raw(" on-path");
        } else if peaks.len() > 1 && share >= elsewhere + MORE {
            self.raw("more");
        }
        let name = call.what().name();
        self.raw("\" title=\"").text(&name);
        for (cell, peak) in call.cells.iter().zip(peaks) {
            let time = cell
                .time
                .map_or_else(|| "-".to_owned(), |time| self.time(time));
            self.raw("&#10;peak ").number(peak.peak).raw(": ");
            self.text(contrast::share(cell.share)).raw(", ").text(time);
        }
        self.raw("\">").text(&name).raw("</span>");
        let callees = call.callees.iter();
        let wide: Vec<_> = callees
            .filter(|callee| callee.share(column) >= LEAST)
            .collect();
        if !wide.is_empty() {
            self.raw("<div class=\"row\">");
            for callee in wide {
                let width = 100.0 * (callee.share(column) / share).min(1.0);
                self.frame(callee, column, peaks, width);
            }
            self.raw("</div>");
        }
        self.raw("</div>");
    }
}
