//! Time away in words: how threads waited, who woke them, and what kept them from their work.

use darc_analysis::Hz;

use super::escape::control;
use super::model::{
    ArgumentEntry, Kind, OffCpuEntry, OtherEntry, PeakEntry, RootCauseEntry, WaitPlace, WaitsEntry,
};
use super::words::{path, percent, time};

/// Others that are named.
const NAMED: usize = 3;
/// Waiting that takes less than this part of a peak's time is not shown beside its root causes.
const LEAST: f64 = 0.05;
/// What is in less than one of so many calls is one of many.
const MANY: u64 = 10;

/// How the thread waited at the end of a path, or what kept it from its work; a line each.
pub(super) fn waiting(hz: Option<Hz>, waits: &WaitsEntry) -> Vec<String> {
    let mut lines = Vec::new();
    let times = match waits.count {
        0 => String::new(),
        1 => " once".to_owned(),
        count => format!(" {count} times"),
    };
    let off = waits.blocked.saturating_add(waits.runnable);
    if off > 0 && waits.preempted == 0 {
        let mut line = format!(
            "blocked{times} for {} together in the longest such call of each op that was looked at",
            time(hz, waits.blocked)
        );
        if waits.runnable > 0 {
            line.push_str(&format!(
                ", then {} ready to run but not running",
                time(hz, waits.runnable)
            ));
        }
        lines.push(line);
    }
    if waits.preempted > 0 {
        // Of page faults.
        let blocked = match off {
            0 => String::new(),
            _ => format!(
                ", blocked for {} of that",
                percent(off as f64 / waits.preempted as f64)
            ),
        };
        lines.push(format!(
            "{} together{times} in the ops that were looked at{blocked}",
            time(hz, waits.preempted)
        ));
    }
    let what = if off > 0 { "woken by" } else { "instead ran" };
    for other in waits.others.iter().take(NAMED) {
        lines.push(format!(
            "{what} {}: {} times, {}",
            named(other),
            other.count,
            time(hz, other.time)
        ));
        let doing = other.doing.iter().map(|doing| {
            let of = match doing.count == other.count {
                true => String::new(),
                false => format!(" ({} of {})", doing.count, other.count),
            };
            format!("  it was in {}{of}", path(&doing.functions))
        });
        lines.extend(doing);
    }
    let rest = waits.others.len().saturating_sub(NAMED);
    if rest > 0 {
        lines.push(format!("{what} others: {rest}"));
    }
    lines
}

/// What the system call at the end of a path was called with, or what memory its page faults are of; a line each. Where each is one of
/// many, as with files that are written one after the other, the first one is an example.
pub(super) fn arguments(cause: &RootCauseEntry) -> Vec<String> {
    let is_of_many = |argument: &ArgumentEntry| argument.count.saturating_mul(MANY) < argument.of;
    if cause.arguments.len() > 1
        && let Some(first) = cause.arguments.first().filter(|first| is_of_many(first))
    {
        return vec![format!(
            "on many, as {} ({} of {} that were looked at)",
            control(&first.value),
            first.count,
            first.of
        )];
    }
    let looked_at = match cause.kind {
        Kind::PageFault => "page faults",
        _ => "calls",
    };
    cause
        .arguments
        .iter()
        .map(|argument| {
            format!(
                "on {} ({} of {} {looked_at} that were looked at)",
                control(&argument.value),
                argument.count,
                argument.of
            )
        })
        .collect()
}

fn named(other: &OtherEntry) -> String {
    let name = control(&other.name);
    let thread = other.tid.map(|tid| format!("thread {tid}"));
    let process = other
        .process
        .as_ref()
        .map(|of| match of.command == other.name {
            true => format!("of process {}", of.pid),
            false => format!("of process {}, {}", of.pid, control(&of.command)),
        });
    let parts: Vec<String> = thread.into_iter().chain(process).collect();
    match parts.is_empty() {
        true => name.into_owned(),
        false => format!("{name} ({})", parts.join(" ")),
    }
}

/// How much of the time of a peak's ops their threads did not work; nothing where that is not known, or never.
pub(super) fn away(peak: &PeakEntry) -> Option<String> {
    let entry = peak.off_cpu.as_ref().filter(|entry| entry.time > 0)?;
    let OffCpuEntry {
        ops,
        time,
        blocked,
        runnable,
        preempted,
        interrupted,
        page_faults,
        signal_handlers,
        struck_ops,
        is_of_struck_ops,
        waits: _,
    } = *entry;
    let parts = [
        ("blocked", blocked),
        ("ready but not running", runnable),
        ("preempted", preempted),
        ("in interrupts", interrupted),
        ("in page faults", page_faults),
        ("in signal handlers", signal_handlers),
    ];
    let parts: Vec<String> = parts
        .into_iter()
        .filter(|&(_, part)| part > 0)
        .map(|(what, part)| format!("{what} {}", percent(part as f64 / time as f64)))
        .collect();
    let struck = is_of_struck_ops.then(|| {
        format!(
            "; {struck_ops} of them were interrupted, and hardly any of other peaks: what an interrupt takes beside the kernel's records (in a virtual machine, of caches) may be their time"
        )
    });
    (!parts.is_empty()).then(|| {
        let struck = struck.unwrap_or_default();
        format!("of the time of {ops} ops: {}{struck}", parts.join(", "))
    })
}

/// Where a peak's ops waited for long beside the ends of its root-cause paths.
pub(super) fn elsewhere(peak: &PeakEntry) -> Vec<&WaitPlace> {
    let Some(entry) = &peak.off_cpu else {
        return Vec::new();
    };
    let is_end = |place: &WaitPlace| {
        let mut causes = peak.root_causes.iter();
        causes.any(|cause| cause.path == place.path)
    };
    // What was told of a function before its calls were known is told once more of the callee that waited.
    let is_above = |place: &WaitPlace| {
        let mut others = entry.waits.iter();
        others
            .any(|other| other.path.len() > place.path.len() && other.path.starts_with(&place.path))
    };
    let least = (entry.time as f64 * LEAST) as u64;
    let places = entry.waits.iter();
    places
        .filter(|place| place.waits.blocked.saturating_add(place.waits.runnable) > least)
        .filter(|place| !is_end(place) && !is_above(place))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[test]
    fn one_file_of_many_is_an_example() {
        let mut cause = fixture::report(1_000).peaks[0].root_causes[0].clone();
        let of = |value: &str, count| ArgumentEntry {
            value: value.to_owned(),
            count,
            of: 80,
        };
        cause.arguments = vec![of("fd 3, /log/25", 1), of("fd 3, /log/26", 1)];
        let example = "on many, as fd 3, /log/25 (1 of 80 that were looked at)";
        assert_eq!(arguments(&cause), [example]);
        cause.arguments[0].count = 8;
        assert_eq!(arguments(&cause).len(), 2);
    }
}
