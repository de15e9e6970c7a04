//! Going on with an analysis that an earlier run has stored (DARC, SIGMETRICS 2008, section 3.4).
//!
//! Ops of all runs count together, so that a program that is too short for one analysis is simply run
//! again. What is put back are the profile, the peaks' ranges, the ftree, maxcounts and states. Paths that
//! were still open are asked for again, from f0 down, and so are those that ended at a depth that is
//! allowed by now, or where the calls could not be measured.

use darc_record::{FnodeId, Ticks};
use thiserror::Error;

use crate::descent::ftree::{Expansion, Ftree};
use crate::descent::params::{Params, PeakChoice};
use crate::descent::peak_record::{Outcome, PathState, Stop};
use crate::descent::{Analysis, PeakAnalysis, Request};
use crate::profile::compare::Comparison;
use crate::profile::histogram::{Profile, ProfileError, Resolution};
use crate::profile::peaks::Peak;

/// What an earlier run knew.
#[derive(Clone, Debug)]
pub struct Stored {
    /// f0's profile.
    pub profile: Profile,
    /// The same at [`Resolution::FINE`], and the longest latency of one op; nothing where that is not stored.
    pub fine: Option<(Profile, Ticks)>,
    /// The first and the last bucket of peak 1, peak 2 and so on.
    pub peaks: Vec<(u32, u32)>,
    /// The ftree with its records.
    pub ftree: Ftree,
}

/// Why a stored analysis cannot be gone on with.
#[derive(Clone, Copy, PartialEq, Eq, Error, Debug)]
pub enum ResumeError {
    /// The profile contradicts itself, or has another resolution than is asked for.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A peak's range is no range, or meets another's.
    #[error("peak {0} has no range of its own")]
    Peak(u32),
    /// Something is stored about a peak that does not exist.
    #[error("there is no peak {0}")]
    NoSuchPeak(u32),
}

impl Analysis {
    /// An analysis that goes on from what is stored. Requests may be waiting at once.
    ///
    /// # Errors
    /// When what is stored contradicts itself or the parameters.
    pub fn resume(params: Params, stored: Stored) -> Result<Self, ResumeError> {
        let Stored {
            profile,
            fine,
            peaks,
            ftree,
        } = stored;
        profile.verify()?;
        if profile.resolution() != params.resolution {
            let (theirs, ours) = (profile.resolution().get(), params.resolution.get());
            return Err(ProfileError::Resolution(theirs, ours).into());
        }
        let mut analysis = Analysis::new(params);
        for &(first_bucket, last_bucket) in &peaks {
            let number = analysis.peaks.len() as u32 + 1;
            let is_taken = |at: &PeakAnalysis| {
                first_bucket <= at.peak.last_bucket && at.peak.first_bucket <= last_bucket
            };
            let exists = |bucket| params.resolution.bounds(bucket).is_some();
            if first_bucket > last_bucket
                || !exists(first_bucket)
                || !exists(last_bucket)
                || analysis.peaks.iter().any(is_taken)
            {
                return Err(ResumeError::Peak(number));
            }
            let peak = Peak {
                number,
                first_bucket,
                last_bucket,
                content: profile.range(first_bucket, last_bucket),
            };
            analysis.push_peak(peak);
        }
        for fnode in ftree.fnodes() {
            if let Some((peak, _)) = fnode
                .records()
                .find(|&(peak, _)| peak as usize > peaks.len())
            {
                return Err(ResumeError::NoSuchPeak(peak));
            }
        }
        analysis.blur.go_on_from(&profile);
        analysis.stored = Some(profile.clone());
        analysis.profile = profile;
        if let Some((fine, longest)) = fine {
            fine.verify()?;
            if fine.resolution() != Resolution::FINE {
                let (theirs, ours) = (fine.resolution().get(), Resolution::FINE.get());
                return Err(ProfileError::Resolution(theirs, ours).into());
            }
            (analysis.fine, analysis.longest) = (fine, longest);
        }
        analysis.ftree = ftree;
        analysis.ftree.forget_probes();
        analysis.reopen();
        if analysis.profile.count() >= params.start_ops {
            // The stored peaks are those of enough ops.
            analysis.next_look = params.start_ops.saturating_add(1);
        }
        analysis.look_for_peaks();
        analysis.begin_descents();
        Ok(analysis)
    }

    /// The profile of the ops since the resume, all ops when nothing was resumed.
    #[must_use]
    pub fn fresh_profile(&self) -> Profile {
        match &self.stored {
            Some(stored) => self.profile.since(stored),
            None => self.profile.clone(),
        }
    }

    /// How the ops since the resume differ from the stored ones; `None` when nothing was resumed, or
    /// there are too few ops on one side for peaks to be looked for.
    #[must_use]
    pub fn comparison(&self) -> Option<Comparison> {
        let stored = self.stored.as_ref()?;
        let fresh = self.fresh_profile();
        let enough = self.params.start_ops;
        if stored.count() < enough || fresh.count() < enough {
            return None;
        }
        Comparison::of(stored, &fresh).ok()
    }

    /// Takes the stored states for the peaks' descents, and asks for what they need.
    fn reopen(&mut self) {
        for number in 1..=self.peaks.len() as u32 {
            if self.ftree.root().record(number).state == PathState::NotChosen {
                continue;
            }
            self.peaks[number as usize - 1].open = Some(0);
            let wanted = match self.params.peak {
                PeakChoice::One(one) => one == number,
                PeakChoice::All | PeakChoice::Later | PeakChoice::Nothing => true,
            };
            let paths: Vec<FnodeId> = self
                .ftree
                .fnodes()
                .filter(|fnode| is_to_be_reopened(&fnode.record(number).state))
                .map(|fnode| fnode.id)
                .collect();
            for id in paths {
                let state = &self.ftree.fnode(id).record(number).state;
                if !wanted && matches!(state, PathState::Ended(_)) {
                    // What it ended with stands.
                    continue;
                }
                // Closed first, so that it is counted as open once.
                self.ftree.fnode_mut(id).record_mut(number).state = PathState::NotChosen;
                match wanted {
                    true => self.begin_path(id, number),
                    // Another run may go on with it.
                    false => {
                        let left = PathState::Ended(Stop::StillDescending);
                        self.set_state(id, number, left);
                    }
                }
                if self.ftree.fnode(id).record(number).state.is_open() {
                    self.expand_above(id);
                }
            }
        }
        // What was begun although its caller is not decided, or is no cause of it.
        for fnode in self.ftree.fnodes() {
            let Some(parent) = fnode.parent.map(|at| self.ftree.fnode(at)) else {
                continue;
            };
            let begun = fnode.records().filter(|(_, record)| record.is_chosen());
            let early = begun.filter(|&(peak, _)| {
                let above = parent.record(peak);
                let is_spread = above.state == PathState::Decided(Outcome::Spread);
                (above.state.is_open() || is_spread) && above.batch == 0
            });
            self.early.extend(early.map(|(peak, _)| (fnode.id, peak)));
        }
        // Parents have smaller ids than their children.
        self.requests
            .make_contiguous()
            .sort_by_key(|request| match request {
                Request::Expand(id) => id.0,
                _ => u32::MAX,
            });
    }

    /// A path is measured from f0 down, decided fnodes included.
    fn expand_above(&mut self, id: FnodeId) {
        for above in self.ftree.path(id) {
            let fnode = self.ftree.fnode_mut(above);
            if above != id && fnode.expansion == Expansion::None {
                fnode.expansion = Expansion::Requested;
                self.requests.push_back(Request::Expand(above));
            }
        }
    }
}

fn is_to_be_reopened(state: &PathState) -> bool {
    match state {
        PathState::Waiting | PathState::Collecting => true,
        PathState::Ended(stop) => matches!(
            stop,
            Stop::MaxDepth | Stop::NotInstrumentable(_) | Stop::StillDescending | Stop::TooRare
        ),
        PathState::NotChosen | PathState::Decided(_) => false,
    }
}
