//! How requests come from f0 to the function that serves them, and what became of those of each peak.

use super::Page;
use crate::handover::{Cell, in_words, rest, rows, title};
use crate::model::{HandOver, PeakEntry};

impl Page {
    /// What stands between f0's report and that of the function that serves. `peaks` are f0's.
    pub(super) fn handover(&mut self, handover: &HandOver, peaks: &[PeakEntry]) {
        self.raw("<p>Handed over by <code>")
            .text(&handover.enqueue.name)
            .raw("</code> (<code>")
            .text(&handover.enqueued_object)
            .raw("</code>), identified there by <code>")
            .text(&handover.served_object)
            .raw("</code>: ")
            .number(handover.enqueued)
            .raw(" requests, ")
            .number(handover.served)
            .raw(" seen to be served");
        if let Some(mean) = handover.waits.total.checked_div(handover.waits.ops) {
            let mean = self.time(mean);
            self.raw(" after ").text(mean).raw(" on average");
        }
        if let Some(rest) = rest(handover) {
            self.raw("<br>").words(rest);
        }
        self.raw("</p>\n");
        if handover.peaks.is_empty() {
            return;
        }
        self.raw("<p>How long the requests of each peak's ops waited, and were served:</p>\n");
        self.raw("<div class=\"wide\" tabindex=\"0\"><table>\n<thead><tr><th scope=\"col\" class=\"left\" rowspan=\"2\"></th>");
        for of in &handover.peaks {
            self.raw("<th scope=\"colgroup\" colspan=\"2\" class=\"peak group\">");
            match of.peak {
                Some(peak) => {
                    self.raw("peak ");
                    self.badge(Some(peak));
                }
                None => {
                    self.text(title(of));
                }
            }
            self.raw("</th>");
        }
        self.raw("</tr>\n<tr>");
        for _ in &handover.peaks {
            self.raw("<th scope=\"col\" class=\"group\">waited</th><th scope=\"col\">served</th>");
        }
        self.raw("</tr></thead>\n<tbody>\n");
        for row in rows(self.hz, handover) {
            self.raw("<tr><th scope=\"row\">")
                .text(&row.label)
                .raw("</th>");
            for cell in row.cells {
                match cell {
                    Cell::Whole(text) => {
                        self.raw("<td class=\"group\" colspan=\"2\">")
                            .text(text)
                            .raw("</td>");
                    }
                    Cell::Halves([waited, served]) => {
                        self.raw("<td class=\"group\">")
                            .text(waited)
                            .raw("</td><td>")
                            .text(served)
                            .raw("</td>");
                    }
                }
            }
            self.raw("</tr>\n");
        }
        self.raw("</tbody></table></div>\n");
        let lines = in_words(self.hz, handover, peaks);
        if !lines.is_empty() {
            self.raw("<ul>\n");
            for line in lines {
                self.raw("<li>").words(line).raw("</li>\n");
            }
            self.raw("</ul>\n");
        }
    }
}
