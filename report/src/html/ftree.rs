//! The tree of calls, which opens node by node.

use std::cmp::Reverse;

use super::Page;
use crate::model::{CalleeKind, FtreeNode};
use crate::words;

impl Page {
    /// A node of the ftree, those with most time first; open where the root-cause paths go.
    pub(super) fn node(&mut self, node: &FtreeNode) {
        let children = !node.children.is_empty();
        self.raw("<li>");
        if children {
            self.raw(if node.root_cause_of.is_empty() {
                "<details>"
            } else {
                "<details open>"
            })
            .raw("<summary>");
        } else {
            self.raw("<div class=\"leaf\">");
        }
        for &peak in &node.root_cause_of {
            self.badge(Some(peak));
            self.raw(" ");
        }
        self.raw("<code>")
            .text(&node.name)
            .raw("</code> <span class=\"place\">");
        if let Some(source) = words::source(node.file.as_deref(), node.line) {
            self.raw("called at ").words(source);
        } else if let Some(site) = &node.site {
            self.raw("called at ").text(site.to_string());
        }
        if (node.count > 0 || node.unmeasured) && node.site.is_some() {
            self.raw("; ");
        }
        if node.unmeasured && node.count == 0 {
            self.raw("not measured");
        }
        if node.count > 0 {
            let (mean, max) = (self.time(node.mean), self.time(node.max));
            // What keeps a thread from its work is no call.
            let what = match (
                node.site.is_some() || node.kind == CalleeKind::Function,
                node.count,
            ) {
                (true, 1) => " call measured, ",
                (true, _) => " calls measured, ",
                (false, 1) => " time, ",
                (false, _) => " times, ",
            };
            self.number(node.count)
                .raw(what)
                .text(mean)
                .raw(" on average, ")
                .text(max)
                .raw(" at most");
        }
        self.raw("</span>");
        if children {
            self.raw("</summary>\n<ul>\n");
            let mut children: Vec<&FtreeNode> = node.children.iter().collect();
            children.sort_by_key(|child| Reverse(child.count.saturating_mul(child.mean)));
            for child in children {
                self.node(child);
            }
            self.raw("</ul></details>");
        } else {
            self.raw("</div>");
        }
        self.raw("</li>\n");
    }
}
