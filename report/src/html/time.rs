//! Where the time of a function went that was running already, as a table with bars.

use super::Page;
use crate::model::{TimePart, TimeTable, Whose};
use crate::words;

/// Smaller parts say nothing on a page; the text and JSON formats have them.
const MOST_PARTS: usize = 40;

impl Page {
    /// The section; nothing when there is no such table.
    pub(super) fn time_section(&mut self, table: &TimeTable) {
        self.raw("<section><h2 id=\"time\">Where the time goes</h2>\n<p>");
        self.number(table.windows).raw(" windows, ");
        let total = self.time(table.total);
        self.text(&total).raw(" of all threads together");
        self.text(words::survey(table.survey)).raw("</p>\n");
        self.raw(
            "<div class=\"wide\" tabindex=\"0\"><table>\n<thead><tr><th scope=\"col\">share</th>",
        );
        self.raw(
            "<th scope=\"col\">time</th><th scope=\"col\">calls</th><th scope=\"col\">mean</th>",
        );
        self.raw("<th scope=\"col\">longest</th><th scope=\"col\" class=\"left\">function</th></tr></thead>\n<tbody>\n");
        for part in table.parts.iter().take(MOST_PARTS) {
            self.part(part);
        }
        self.raw("</tbody></table></div></section>\n");
    }

    fn part(&mut self, part: &TimePart) {
        let cells = [
            words::percent(part.share_of_time),
            self.time(part.time),
            match part.calls {
                0 => String::new(),
                calls => calls.to_string(),
            },
            part.time
                .checked_div(part.calls)
                .map_or_else(String::new, |mean| self.time(mean)),
            match part.calls {
                0 => String::new(),
                _ => self.time(part.max),
            },
        ];
        self.raw("<tr>");
        for cell in cells {
            self.raw("<td>").text(&cell).raw("</td>");
        }
        self.raw("<td class=\"left\"><code>");
        self.words(words::path(&part.path)).raw("</code>");
        self.raw(match part.whose {
            Whose::Itself if part.is_partly_measured() => " (itself, or unmeasured calls)",
            Whose::Itself => " (itself)",
            Whose::Waiting => " (waiting)",
            Whose::Callee => "",
        });
        self.raw("</td></tr>\n");
    }
}
