//! The file format of speedscope (<https://www.speedscope.app/file-format-schema.json>): one profile a
//! peak, each a set of weighted stacks. There is no time line in it, as results hold sums only.

use std::collections::HashMap;

use darc_analysis::Hz;
use serde::Serialize;

use super::attribution::{self, Call};
use super::escape::control;
use super::folded::count;
use super::model::{FtreeNode, Report};
use super::place::Place;

const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File<'a> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    exporter: String,
    name: String,
    active_profile_index: usize,
    shared: Shared<'a>,
    profiles: Vec<Profile>,
}

#[derive(Serialize)]
struct Shared<'a> {
    frames: Vec<Frame<'a>>,
}

#[derive(Serialize)]
struct Frame<'a> {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Profile {
    r#type: &'static str,
    name: String,
    unit: &'static str,
    start_value: u64,
    end_value: u64,
    samples: Vec<Vec<usize>>,
    weights: Vec<u64>,
}

/// Each function is one frame, whatever the path.
#[derive(Default)]
struct Frames<'a> {
    list: Vec<Frame<'a>>,
    known: HashMap<(&'a str, Option<&'a Place>), usize>,
}

/// The report as one JSON document that ends with a newline.
///
/// # Errors
/// Never in practice: all keys are texts, all figures whole.
pub fn render(report: &Report) -> Result<String, serde_json::Error> {
    let hz = Hz::new(report.clock.hz);
    let mut frames = Frames::default();
    let mut profiles = Vec::new();
    for share in attribution::of(report) {
        let mut stack: Vec<usize> = share
            .above
            .iter()
            .map(|name| frames.add(name, None, || (None, None)))
            .collect();
        let mut profile = Profile {
            r#type: "sampled",
            name: format!("{}: {} ops", share.ops.name(hz), share.root.calls),
            unit: if hz.is_some() { "nanoseconds" } else { "none" },
            start_value: 0,
            end_value: 0,
            samples: Vec::new(),
            weights: Vec::new(),
        };
        samples(
            &mut profile,
            &mut frames,
            &mut stack,
            &share.root,
            report,
            hz,
        );
        profiles.push(profile);
    }
    let file = File {
        schema: SCHEMA,
        exporter: format!("darc {}", control(&report.darc)),
        name: format!("Latency of {}", control(&report.f0.name)),
        active_profile_index: 0,
        shared: Shared {
            frames: frames.list,
        },
        profiles,
    };
    let mut text = serde_json::to_string(&file)?;
    text.push('\n');
    Ok(text)
}

fn samples<'a>(
    profile: &mut Profile,
    frames: &mut Frames<'a>,
    stack: &mut Vec<usize>,
    call: &Call<'a>,
    report: &'a Report,
    hz: Option<Hz>,
) {
    stack.push(frames.of(call.node, report));
    let weight = count(call.own, hz);
    if weight > 0 {
        profile.samples.push(stack.clone());
        profile.weights.push(weight);
        profile.end_value = profile.end_value.saturating_add(weight);
    }
    for callee in &call.callees {
        samples(profile, frames, stack, callee, report, hz);
    }
    stack.pop();
}

impl<'a> Frames<'a> {
    /// The frame of what an fnode calls: with its source where that is known, else with its module.
    fn of(&mut self, node: &'a FtreeNode, report: &'a Report) -> usize {
        self.add(&node.name, node.callee.as_ref(), || {
            let f0 = &report.f0;
            match (&node.callee, &node.callee_file) {
                (_, Some(file)) => (Some(file), node.callee_line),
                // Results of earlier versions know f0's definition alone.
                (Some(place), None) if (&place.module, place.offset) == (&f0.module, f0.offset) => {
                    (f0.file.as_deref(), f0.line)
                }
                (Some(place), None) => (Some(&place.module), None),
                (None, None) => (None, None),
            }
        })
    }

    fn add(
        &mut self,
        name: &'a str,
        place: Option<&'a Place>,
        source: impl FnOnce() -> (Option<&'a str>, Option<u32>),
    ) -> usize {
        *self.known.entry((name, place)).or_insert_with(|| {
            let (file, line) = source();
            self.list.push(Frame {
                name: control(name).into_owned(),
                file,
                line,
            });
            self.list.len() - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[test]
    fn every_sample_names_frames_that_exist_and_has_a_weight() {
        let report = fixture::report(30_000);
        let file: serde_json::Value = serde_json::from_str(&render(&report).unwrap()).unwrap();
        let frames = file["shared"]["frames"].as_array().unwrap().len() as u64;
        let profiles = file["profiles"].as_array().unwrap();
        assert_eq!(profiles.len(), 3);
        for profile in profiles {
            let samples = profile["samples"].as_array().unwrap();
            let weights = profile["weights"].as_array().unwrap();
            assert_eq!(samples.len(), weights.len());
            let total: u64 = weights.iter().map(|weight| weight.as_u64().unwrap()).sum();
            assert_eq!(profile["endValue"], total);
            let stacks = samples.iter().flat_map(|stack| stack.as_array().unwrap());
            assert!(
                stacks
                    .into_iter()
                    .all(|frame| frame.as_u64().unwrap() < frames)
            );
        }
    }

    #[test]
    fn an_analysis_without_ops_is_a_file_without_profiles() {
        let file: serde_json::Value =
            serde_json::from_str(&render(&fixture::report(0)).unwrap()).unwrap();
        assert_eq!(file["profiles"], serde_json::json!([]));
    }
}
