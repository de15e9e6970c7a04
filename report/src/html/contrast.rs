//! What the ops of each peak do.

use super::{Analysis, Page};
use crate::contrast;

impl Page {
    /// The calls in rows, the peaks side by side.
    pub(super) fn contrast(&mut self, analysis: &Analysis<'_>) {
        self.raw("<p>Per op, and as a part of the peak's time; an asterisk marks calls on a root-cause path of the peak.</p>\n");
        self.raw("<div class=\"wide\" tabindex=\"0\"><table>\n<thead><tr><th scope=\"col\" class=\"left\" rowspan=\"2\">call</th>");
        for peak in analysis.peaks {
            self.raw("<th scope=\"colgroup\" colspan=\"3\" class=\"peak group\">peak ");
            self.badge(Some(peak.peak));
            self.raw("</th>");
        }
        self.raw("</tr>\n<tr>");
        for _ in analysis.peaks {
            self.raw("<th scope=\"col\" class=\"group\">of time</th><th scope=\"col\">calls</th><th scope=\"col\">time</th>");
        }
        self.raw("</tr></thead>\n<tbody>\n");
        let table = contrast::table(analysis.ftree, analysis.peaks, self.rows);
        for row in table.rows {
            self.raw("<tr><th scope=\"row\" style=\"padding-left:calc(.6em + ")
                .number(row.depth)
                .raw("em)\"><code>")
                .text(row.what.name())
                .raw(match row.is_unmeasured {
                    true => "</code> (not measured)</th>",
                    false => "</code></th>",
                });
            for cell in row.cells {
                let class = if cell.is_cause {
                    "group cause"
                } else {
                    "group"
                };
                self.raw("<td class=\"").raw(class).raw("\">");
                self.text(contrast::share(cell.share));
                let time = cell
                    .time
                    .map_or_else(|| "-".to_owned(), |time| self.time(time));
                self.raw(if cell.is_cause { "*" } else { "" });
                self.raw("</td><td>")
                    .text(contrast::calls(cell.calls))
                    .raw("</td><td>")
                    .text(time)
                    .raw("</td>");
            }
            self.raw("</tr>\n");
        }
        self.raw("</tbody></table></div>\n");
        if table.hidden > 0 {
            self.raw("<p>")
                .text(contrast::left_out(table.hidden))
                .raw("</p>\n");
        }
    }
}
