//! Limits of CPU time that kept threads from running.

use darc_analysis::{Analysis, CauseKind, Hz, Nanos};
use darc_tracer::cgroup::HeldBack;

/// A limit is told as the cause where it struck for this part of the time in which threads were ready and did not run.
const HALF: f64 = 0.5;

/// That a limit of CPU time is what kept threads from running, where preemption is a cause: to the kernel's records of switches it looks as
/// if others had taken their place.
pub(super) fn warning(held_back: HeldBack, analysis: &Analysis) -> Option<String> {
    (preempted(analysis) > 0.0 && held_back.times > 0).then(|| {
        format!(
            "{}: where preemption is a cause, who ran instead need not be the reason",
            struck(held_back)
        )
    })
}

/// The same, where it struck for half of the time in which threads were ready and did not run, or more.
pub(super) fn for_most(held_back: HeldBack, analysis: &Analysis, hz: Hz) -> Option<String> {
    let struck_for = hz.ticks(Nanos(held_back.time.as_secs_f64() * 1e9)).0 as f64;
    let preempted = preempted(analysis);
    (preempted > 0.0 && struck_for >= HALF * preempted).then(|| struck(held_back))
}

fn struck(held_back: HeldBack) -> String {
    format!(
        "a limit of CPU time on the process's control group, or on one around it (cpu.max, cpu.cfs_quota_us), struck {} times, for {:.2} s on all processors together",
        held_back.times,
        held_back.time.as_secs_f64()
    )
}

/// For how long threads were ready and did not run in the ops of peaks of which that is a cause, in ticks.
fn preempted(analysis: &Analysis) -> f64 {
    let peaks = analysis.peaks().into_iter();
    let of_peak = peaks.map(|peak| {
        let causes = analysis.root_causes(peak.number).into_iter();
        let preemption = causes.filter(|cause| cause.kind == CauseKind::Preemption);
        let share: f64 = preemption.map(|cause| cause.share).sum();
        share * peak.content.total.0 as f64
    });
    of_peak.sum()
}
