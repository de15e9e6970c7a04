//! What an earlier run has seen and this one has not: a resumed analysis loses nothing that its file had.
//!
//! Counts, decisions and calls go on in the analysis itself. Names, lines, arguments and waits are of the run that saw them;
//! where this one saw none, those of the earlier one stand.

use super::model::{Focus, Frame, FtreeNode, PeakEntry, Report, RootCauseEntry, Status};

impl Report {
    /// Takes over from the results that the analysis went on with what this run did not see.
    #[must_use]
    pub fn after(mut self, earlier: &Report) -> Report {
        self.status = peaks(self.status, &mut self.peaks, &earlier.peaks);
        node(&mut self.ftree, &earlier.ftree);
        self.f0.name = name(&self.f0.name, &earlier.f0.name);
        self.f0.file = self.f0.file.or_else(|| earlier.f0.file.clone());
        self.f0.line = self.f0.line.or(earlier.f0.line);
        if self.values.is_empty() {
            self.values.clone_from(&earlier.values);
        }
        if self.proofs.is_empty() {
            self.proofs.clone_from(&earlier.proofs);
        }
        if self.effects.is_empty() {
            self.effects.clone_from(&earlier.effects);
        }
        let mut is_open = false;
        for focus in &mut self.focus {
            // A function may be analysed for several callers, each by itself.
            let is_same = |other: &&Focus| {
                let (one, of_other) = (&focus.function, &other.function);
                (&one.module, one.offset) == (&of_other.module, of_other.offset)
                    && focus.callers == other.callers
            };
            if let Some(earlier) = earlier.focus.iter().find(is_same) {
                let before = focus.status;
                self::focus(focus, earlier);
                is_open |= before != focus.status;
            }
        }
        if is_open && leaves_open(&self) {
            self.status = Status::Undecided;
        }
        self
    }
}

/// Functions below f0 with this part of the time of all of them are to have an answer.
const MUCH: f64 = 0.2;

/// Whether functions below f0, or behind it, leave the whole undecided.
fn leaves_open(report: &Report) -> bool {
    let share = |is_meant: &dyn Fn(&&Focus) -> bool| -> f64 {
        let meant = report.focus.iter().filter(is_meant);
        meant.map(|focus| focus.share_of_time).sum()
    };
    let undecided = share(&|focus| focus.status == Status::Undecided);
    let is_much = report.time.is_none() || undecided > MUCH * share(&|_| true);
    is_much && report.status != Status::InProgress
}

fn focus(focus: &mut Focus, earlier: &Focus) {
    focus.status = peaks(focus.status, &mut focus.peaks, &earlier.peaks);
    node(&mut focus.ftree, &earlier.ftree);
    if focus.values.is_empty() {
        focus.values.clone_from(&earlier.values);
    }
}

/// Peaks keep their numbers when an analysis goes on. Where the whole stands then.
fn peaks(status: Status, peaks: &mut [PeakEntry], earlier: &[PeakEntry]) -> Status {
    let mut is_open = false;
    for peak in &mut *peaks {
        let Some(earlier) = earlier.iter().find(|other| other.peak == peak.peak) else {
            continue;
        };
        if peak.example.is_none() {
            peak.example.clone_from(&earlier.example);
        }
        let ops = |peak: &PeakEntry| peak.off_cpu.as_ref().map_or(0, |off_cpu| off_cpu.ops);
        if ops(peak) < ops(earlier) {
            peak.off_cpu.clone_from(&earlier.off_cpu);
            let is_struck = peak.off_cpu.as_ref().is_some_and(|of| of.is_of_struck_ops);
            let is_kept = earlier.kept_from_running.is_some();
            peak.kept_from_running = peak.kept_from_running.or(earlier.kept_from_running);
            let known = [Status::RootCauseFound, Status::MaxDepthReached];
            if (is_struck || is_kept) && known.contains(&peak.status) {
                is_open |= peak.status != earlier.status;
                peak.status = earlier.status;
            }
        }
        for cause in &mut peak.root_causes {
            let is_same = |other: &&RootCauseEntry| is_same_path(cause, other);
            if let Some(earlier) = earlier.root_causes.iter().find(is_same) {
                root_cause(cause, earlier);
            }
        }
    }
    // Where more than peaks was undecided it still is.
    match is_open && !matches!(status, Status::InProgress | Status::Undecided) {
        true => Status::of_peaks(peaks),
        false => status,
    }
}

/// Whether both go by the same calls. Names may be known to one of them only.
fn is_same_path(one: &RootCauseEntry, other: &RootCauseEntry) -> bool {
    let calls = |cause: &RootCauseEntry| {
        let frames = cause.frames.iter().skip(1);
        let calls = frames.map(|frame| match &frame.call_site {
            Some(site) => site.to_string(),
            None => frame.name.clone(),
        });
        calls.collect::<Vec<_>>()
    };
    one.kind == other.kind && calls(one) == calls(other)
}

fn root_cause(cause: &mut RootCauseEntry, earlier: &RootCauseEntry) {
    if cause.arguments.is_empty() {
        cause.arguments.clone_from(&earlier.arguments);
    }
    let count = |cause: &RootCauseEntry| cause.waits.as_ref().map_or(0, |waits| waits.count);
    if count(cause) < count(earlier) {
        cause.waits.clone_from(&earlier.waits);
    }
    if cause.inlined.is_none() {
        cause.inlined.clone_from(&earlier.inlined);
    }
    if cause.narrowed.is_none() {
        cause.narrowed.clone_from(&earlier.narrowed);
    }
    for (frame, earlier) in cause.frames.iter_mut().zip(&earlier.frames) {
        self::frame(frame, earlier);
    }
    let names = cause.frames.iter().map(|frame| frame.name.clone());
    cause.path = names.collect();
}

fn frame(frame: &mut Frame, earlier: &Frame) {
    frame.name = name(&frame.name, &earlier.name);
    if frame.file.is_none() {
        frame.file.clone_from(&earlier.file);
        frame.line = earlier.line;
        frame.inlined_from.clone_from(&earlier.inlined_from);
    }
}

fn node(node: &mut FtreeNode, earlier: &FtreeNode) {
    let mut below = vec![(node, earlier)];
    while let Some((node, earlier)) = below.pop() {
        node.name = name(&node.name, &earlier.name);
        if node.callee_file.is_none() {
            node.callee_file.clone_from(&earlier.callee_file);
            node.callee_line = earlier.callee_line;
        }
        if node.file.is_none() {
            node.file.clone_from(&earlier.file);
            node.line = earlier.line;
        }
        // Calls keep their order, and new ones come behind them.
        let mut others = earlier.children.iter();
        for child in &mut node.children {
            let is_same = |other: &&FtreeNode| {
                (&child.site, child.kind, &child.callee) == (&other.site, other.kind, &other.callee)
            };
            let left = others.clone();
            match others.find(is_same) {
                Some(earlier) => below.push((child, earlier)),
                None => others = left,
            }
        }
    }
}

/// A name, unless it is a mere place and the other is more than that.
fn name(now: &str, earlier: &str) -> String {
    let is_place = |name: &str| name.contains("+0x");
    match is_place(now) && !is_place(earlier) {
        true => earlier.to_owned(),
        false => now.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use crate::fixture;
    use crate::model::{ArgumentEntry, Focus, OffCpuEntry, Report, Status, WaitsEntry};
    use crate::place::Place;

    /// What a run knows that saw the process, and what one knows that saw nothing of it.
    fn seen_and_unseen() -> (Report, Report) {
        let mut seen = fixture::report(30_000);
        let cause = &mut seen.peaks[1].root_causes[0];
        cause.waits = Some(WaitsEntry {
            count: 21,
            ..WaitsEntry::default()
        });
        cause.arguments = vec![ArgumentEntry {
            value: "/var/log".to_owned(),
            count: 21,
            of: 21,
        }];
        let mut unseen = seen.clone();
        let cause = &mut unseen.peaks[1].root_causes[0];
        (cause.waits, cause.arguments) = (None, Vec::new());
        for frame in &mut cause.frames {
            (frame.file, frame.line) = (None, None);
            frame.inlined_from.clear();
        }
        cause.frames[1].name = "store+0x2000".to_owned();
        cause.path[1] = "store+0x2000".to_owned();
        unseen.peaks[0].example = None;
        (seen, unseen)
    }

    #[test]
    fn what_an_earlier_run_has_seen_stands() {
        let (seen, unseen) = seen_and_unseen();
        assert_ne!(seen, unseen);
        assert_eq!(unseen.after(&seen), seen);
    }

    #[test]
    fn a_peak_that_stays_undecided_leaves_the_whole_undecided() {
        let mut seen = fixture::report(30_000);
        let main = &mut seen.peaks[1];
        main.share_of_time = 0.9;
        main.status = Status::Undecided;
        main.off_cpu = Some(OffCpuEntry {
            ops: 100,
            is_of_struck_ops: true,
            ..OffCpuEntry::default()
        });
        let mut unseen = seen.clone();
        unseen.peaks[1].off_cpu = None;
        unseen.peaks[1].status = Status::RootCauseFound;
        unseen.status = Status::RootCauseFound;
        let whole = unseen.clone().after(&seen);
        assert_eq!(whole.peaks[1].status, Status::Undecided);
        assert_eq!(whole.status, Status::Undecided);
        let below = |of: &Report| Focus {
            path: vec!["main".to_owned(), "put".to_owned()],
            function: of.f0.clone(),
            callers: Vec::new(),
            status: of.status,
            share_of_time: 0.8,
            calls: 10,
            profile: of.profile.clone(),
            peaks: of.peaks.clone(),
            values: Vec::new(),
            ftree: of.ftree.clone(),
            handover: None,
        };
        let (before, now) = (below(&seen), below(&unseen));
        (seen.peaks, unseen.peaks) = (Vec::new(), Vec::new());
        (seen.focus, unseen.focus) = (vec![before], vec![now]);
        let whole = unseen.after(&seen);
        assert_eq!(whole.focus[0].status, Status::Undecided);
        assert_eq!(whole.status, Status::Undecided);
    }

    #[test]
    fn a_function_for_two_callers_keeps_what_was_seen_of_each() {
        let (mut seen, mut unseen) = seen_and_unseen();
        let below = |of: &Report, caller, waits: Option<u64>| {
            let mut peaks = of.peaks.clone();
            peaks[1].root_causes[0].waits = waits.map(|count| WaitsEntry {
                count,
                ..WaitsEntry::default()
            });
            Focus {
                path: vec!["main".to_owned(), "put".to_owned()],
                function: of.f0.clone(),
                callers: vec![Place {
                    module: "store".to_owned(),
                    offset: caller,
                }],
                status: of.status,
                share_of_time: 0.4,
                calls: 10,
                profile: of.profile.clone(),
                peaks,
                values: Vec::new(),
                ftree: of.ftree.clone(),
                handover: None,
            }
        };
        seen.focus = vec![below(&seen, 1, Some(21)), below(&seen, 2, Some(34))];
        unseen.focus = vec![below(&unseen, 1, None), below(&unseen, 2, None)];
        let whole = unseen.after(&seen);
        let counts = whole.focus.iter().map(|focus| {
            let waits = &focus.peaks[1].root_causes[0].waits;
            waits.as_ref().map(|waits| waits.count)
        });
        assert_eq!(counts.collect::<Vec<_>>(), [Some(21), Some(34)]);
    }

    #[test]
    fn what_this_run_has_seen_is_not_replaced() {
        let (seen, unseen) = seen_and_unseen();
        assert_eq!(seen.clone().after(&unseen), seen);
        let mut other = unseen;
        other.peaks[1].root_causes[0].frames[1].call_site = None;
        let known = other.clone().after(&seen);
        assert!(
            known.peaks[1].root_causes[0].waits.is_none(),
            "another path"
        );
    }
}
