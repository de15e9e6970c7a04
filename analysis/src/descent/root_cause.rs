//! What the analysis answers: for each peak, the paths from f0 to what takes the time.

use darc_record::FnodeId;

use crate::descent::ftree::{Absence, Callee, Ftree};
use crate::descent::peak_record::{Outcome, PathState, Stop};
use crate::off_cpu::is_absence;

/// What takes the time at the end of a root-cause path.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CauseKind {
    /// The function's own code.
    Function,
    /// The function's many calls, each of them short.
    Loop,
    /// The kernel, in a system call.
    Syscall,
    /// Another thread, which ran instead.
    Preemption,
    /// An interrupt.
    Interrupt,
    /// Deferred work of interrupts.
    SoftInterrupt,
    /// A page fault.
    PageFault,
}

/// One root-cause path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RootCause {
    /// From f0 down to the cause.
    pub path: Vec<FnodeId>,
    /// What takes the time there.
    pub kind: CauseKind,
    /// How often it was among the largest contributors.
    pub maxcount: u64,
    /// Why the path ends.
    pub stop: Stop,
}

/// Where the analysis of one peak stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeakStatus {
    /// The person did not choose it.
    NotAnalysed,
    /// Some path does not end yet.
    InProgress,
    /// Every path ends, one at least because it may not become longer.
    MaxDepthReached,
    /// Every path ends.
    RootCauseFound,
}

/// Where the whole analysis stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// Peaks are still looked for, or some path does not end yet.
    InProgress,
    /// Every path ends, one at least because it may not become longer.
    MaxDepthReached,
    /// Every path ends.
    RootCauseFound,
}

/// All root-cause paths of a peak, from left to right in the ftree.
#[must_use]
pub fn root_causes(ftree: &Ftree, peak: u32) -> Vec<RootCause> {
    let mut causes = Vec::new();
    let mut below = vec![FnodeId::ROOT];
    while let Some(id) = below.pop() {
        let fnode = ftree.fnode(id);
        let record = fnode.record(peak);
        let mut add = |kind, maxcount, stop| {
            causes.push(RootCause {
                path: ftree.path(id),
                kind,
                maxcount,
                stop,
            });
        };
        match &record.state {
            PathState::NotChosen => {}
            PathState::Waiting | PathState::Collecting => {
                add(CauseKind::Function, record.maxcount, Stop::StillDescending);
            }
            PathState::Ended(stop) => {
                let kind = match fnode.callee {
                    Callee::Syscall(_) => CauseKind::Syscall,
                    Callee::Function(_) | Callee::Unknown => CauseKind::Function,
                    Callee::Absence(Absence::Preempted) => CauseKind::Preemption,
                    Callee::Absence(Absence::Interrupt(_) | Absence::LocalInterrupt(_)) => {
                        CauseKind::Interrupt
                    }
                    Callee::Absence(Absence::SoftInterrupt(_)) => CauseKind::SoftInterrupt,
                    Callee::Absence(Absence::PageFault) => CauseKind::PageFault,
                };
                add(kind, record.maxcount, stop.clone());
            }
            PathState::Decided(outcome) => {
                if *outcome != Outcome::Callees {
                    // Most of its own time went into calls that were repeated.
                    let kind = if record.loop_time.0 > record.self_time.0 / 2 {
                        CauseKind::Loop
                    } else {
                        CauseKind::Function
                    };
                    // Time away is no call that it makes.
                    let calls = fnode
                        .children
                        .iter()
                        .any(|&child| !is_absence(ftree.fnode(child).callee));
                    let stop = if calls { Stop::SelfTime } else { Stop::NoCalls };
                    add(kind, record.self_maxcount, stop);
                }
                if *outcome != Outcome::Itself {
                    below.extend(fnode.children.iter().rev());
                }
            }
        }
    }
    causes
}

/// Where a peak stands whose descent has begun.
#[must_use]
pub fn peak_status(ftree: &Ftree, peak: u32) -> PeakStatus {
    root_causes(ftree, peak)
        .iter()
        .fold(PeakStatus::RootCauseFound, |status, cause| {
            match (&cause.stop, status) {
                (Stop::StillDescending | Stop::TooRare, _) | (_, PeakStatus::InProgress) => {
                    PeakStatus::InProgress
                }
                (Stop::MaxDepth, _) => PeakStatus::MaxDepthReached,
                _ => status,
            }
        })
}
