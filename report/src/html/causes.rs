//! One block per peak: how much it matters, and the paths to what takes the time.

use super::Page;
use crate::by_share::{by_share, in_short};
use crate::doubts;
use crate::loops::in_loops;
use crate::model::{Frame, FtreeNode, PeakEntry, RootCauseEntry};
use crate::spread::{spread, without_depths};
use crate::{narrowed, outcome, waiting, words};

impl Page {
    /// What is known of a peak, in an element that stays open.
    pub(super) fn peak(&mut self, peak: &PeakEntry, resolution: u32, ftree: &FtreeNode) {
        self.raw("<details open><summary>");
        self.badge(Some(peak.peak));
        self.raw(" Peak ").number(peak.peak);
        if let Some(range) = words::range(self.hz, peak, resolution) {
            self.raw(", ").text(range);
        }
        self.raw(": ")
            .raw(outcome::status(peak.status))
            .raw("</summary>\n<p>")
            .number(peak.ops)
            .raw(" ops: ");
        self.text(words::percent(peak.share_of_ops))
            .raw(" of all, ");
        self.text(words::percent(peak.share_of_time))
            .raw(" of the time");
        if let Some(away) = waiting::away(peak) {
            self.raw("<br>").words(away);
        }
        for doubt in doubts::doubts(peak, ftree, self.hz) {
            self.raw("<br>").words(doubt);
        }
        self.raw("</p>\n");
        let (told, left_out) = by_share(without_depths(peak), self.rows);
        for cause in &told {
            self.cause(cause, peak, ftree);
        }
        if let Some(in_short) = in_short(&left_out) {
            self.raw("<details><summary>").words(in_short);
            self.raw("</summary>\n");
            for cause in &left_out {
                self.cause(cause, peak, ftree);
            }
            self.raw("</details>\n");
        }
        if let Some(spread) = spread(peak, ftree) {
            self.raw("<p class=\"cause-text\"><strong>")
                .words(spread)
                .raw("</strong></p>\n");
        }
        for place in waiting::elsewhere(peak) {
            self.raw("<p class=\"cause-text\"><strong>also waited: ")
                .words(words::path(&place.path))
                .raw("</strong>");
            for line in waiting::waiting(self.hz, &place.waits) {
                self.raw("<br>").words(line);
            }
            self.raw("</p>\n");
        }
    }

    fn cause(&mut self, cause: &RootCauseEntry, peak: &PeakEntry, ftree: &FtreeNode) {
        self.raw("<p class=\"cause-text\"><strong>")
            .words(words::in_words(cause, peak))
            .raw("</strong>");
        let hz = self.hz;
        let calls = in_loops(cause, peak.peak, ftree, hz);
        let waits = (cause.waits.iter()).flat_map(|waits| waiting::waiting(hz, waits));
        let narrowed = cause.narrowed.iter().flat_map(narrowed::lines);
        let lines = calls.into_iter().chain(waiting::arguments(cause));
        for line in lines.chain(waits).chain(narrowed) {
            self.raw("<br>").words(line);
        }
        self.raw("</p>\n<ol class=\"path\">\n");
        for frame in &cause.frames {
            self.step(frame);
        }
        self.raw("</ol>\n");
    }

    /// A function of a path, and where it is called.
    fn step(&mut self, frame: &Frame) {
        self.raw("<li>");
        for (number, line) in words::frame_lines(frame).into_iter().enumerate() {
            match line.split_once("  ").filter(|_| number == 0) {
                Some((name, place)) => {
                    self.raw("<code>")
                        .words(name)
                        .raw("</code> <span class=\"place\">")
                        .words(place)
                        .raw("</span>");
                }
                None if number == 0 => {
                    self.raw("<code>").words(line).raw("</code>");
                }
                None => {
                    self.raw("<br><span class=\"place\">")
                        .words(line.trim_start())
                        .raw("</span>");
                }
            }
        }
        self.raw("</li>\n");
    }
}
