//! Whole stacks for other tools: folded stacks for flame graphs, and the file formats of speedscope
//! (<https://www.speedscope.app/file-format-schema.json>) and pprof. Pure.

use std::collections::{BTreeMap, HashMap};

use darc_report::escape::control;
use darc_report::pprof::{Frame, Profile};
use serde_json::json;

use super::counts::Spot;
use super::profile::{Named, Names};
use super::recording::Recording;

/// One stack with names, the outermost function first.
struct Stack {
    process: String,
    frames: Vec<String>,
    samples: u64,
}

/// Stacks by process instance and names, in a fixed order.
fn named(recording: &Recording, names: &impl Names) -> Vec<Stack> {
    let mut known: HashMap<Spot, String> = HashMap::new();
    let mut sums: BTreeMap<(usize, Vec<String>), u64> = BTreeMap::new();
    for (instance, stack, count) in recording.counts.iter() {
        let frames = stack.iter().rev().map(|&spot| {
            let name = known.entry(spot).or_insert_with(|| {
                let named = names.named(spot);
                match spot {
                    // As flame graph tools mark the kernel.
                    Spot::Kernel(_) => format!("{}_[k]", named.function),
                    Spot::Code { .. } | Spot::Nowhere(_) => named.function,
                }
            });
            name.clone()
        });
        *sums.entry((instance.0, frames.collect())).or_default() += count;
    }
    let instances = recording.processes.instances();
    sums.into_iter()
        .filter_map(|((instance, frames), samples)| {
            let instance = instances.get(instance)?;
            Some(Stack {
                process: format!("{} #{}", instance.name, instance.number),
                frames,
                samples,
            })
        })
        .collect()
}

/// One line a stack: `process;frame;frame count`, the count in samples.
#[must_use]
pub fn folded(recording: &Recording, names: &impl Names) -> String {
    // A semicolon parts frames.
    let fit = |name: &str| control(name).replace(';', "\\u{3b}");
    let mut text = String::new();
    for stack in named(recording, names) {
        text.push_str(&fit(&stack.process));
        for frame in &stack.frames {
            text.push(';');
            text.push_str(&fit(frame));
        }
        text.push_str(&format!(" {}\n", stack.samples));
    }
    text
}

/// A speedscope document: one profile a process instance, weights in nanoseconds of CPU time.
#[must_use]
pub fn speedscope(recording: &Recording, names: &impl Names, rate: u32) -> String {
    let period = 1_000_000_000 / u64::from(rate.max(1));
    let mut frames: Vec<String> = Vec::new();
    let mut numbers: HashMap<String, usize> = HashMap::new();
    let mut profiles: Vec<(String, Vec<Vec<usize>>, Vec<u64>)> = Vec::new();
    for stack in named(recording, names) {
        let samples: Vec<usize> = stack
            .frames
            .into_iter()
            .map(|name| {
                *numbers.entry(name).or_insert_with_key(|name| {
                    frames.push(name.clone());
                    frames.len() - 1
                })
            })
            .collect();
        match profiles.last_mut() {
            Some(last) if last.0 == stack.process => {
                last.1.push(samples);
                last.2.push(stack.samples * period);
            }
            _ => profiles.push((stack.process, vec![samples], vec![stack.samples * period])),
        }
    }
    profiles.sort_by_key(|(_, _, weights)| std::cmp::Reverse(weights.iter().sum::<u64>()));
    let profiles: Vec<_> = profiles
        .into_iter()
        .map(|(name, samples, weights)| {
            let end: u64 = weights.iter().sum();
            json!({
                "type": "sampled", "name": control(&name), "unit": "nanoseconds",
                "startValue": 0, "endValue": end, "samples": samples, "weights": weights,
            })
        })
        .collect();
    let frames: Vec<_> = frames
        .iter()
        .map(|name| json!({ "name": control(name) }))
        .collect();
    let document = json!({
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": concat!("darc ", env!("CARGO_PKG_VERSION")),
        "name": "samples",
        "activeProfileIndex": 0,
        "shared": { "frames": frames },
        "profiles": profiles,
    });
    format!("{document}\n")
}

/// A compressed file of pprof: samples and nanoseconds of CPU time, with a label for the process instance.
#[must_use]
pub fn pprof(recording: &Recording, names: &impl Names, rate: u32) -> Vec<u8> {
    let period = 1_000_000_000 / u64::from(rate.max(1));
    let cpu = ("cpu", "nanoseconds");
    let mut profile = Profile::new(&[("samples", "count"), cpu]);
    profile.period(cpu, period);
    let mut known: HashMap<Spot, u64> = HashMap::new();
    let instances = recording.processes.instances();
    for (instance, stack, count) in recording.counts.iter() {
        let Some(instance) = instances.get(instance.0) else {
            continue;
        };
        let frames = stack.iter().map(|&spot| {
            *known
                .entry(spot)
                .or_insert_with(|| frame(&mut profile, &names.named(spot)))
        });
        let stack: Vec<u64> = frames.collect();
        let process = control(&format!("{} #{}", instance.name, instance.number)).into_owned();
        profile.sample(&stack, &[count, count * period], ("process", &process));
    }
    profile.finish()
}

fn frame(profile: &mut Profile, named: &Named) -> u64 {
    profile.frame(&Frame {
        name: &control(&named.function),
        module: &control(&named.module),
        file: &control(named.file.as_deref().unwrap_or_default()),
        defined: 0,
        line: named.line.unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::super::adding::tests::{Mock, code};
    use super::super::processes::Seen;
    use super::*;

    fn recording() -> Recording {
        let mut recording = Recording::default();
        let seen = Seen {
            name: "a;b\n".to_owned(),
            ..Seen::default()
        };
        recording.processes.found(1, seen);
        let one = recording.processes.instance(1);
        for offset in [0x100, 0x104, 0x200] {
            recording
                .counts
                .add(one, &[Spot::Kernel(1), code(offset), code(0x300)], 1);
        }
        recording
    }

    #[test]
    fn stacks_of_the_same_names_are_one_line() {
        let folded = folded(&recording(), &Mock);
        assert_eq!(
            folded,
            "a\\u{3b}b\\n #1;f3;f1;sys_[k] 2\na\\u{3b}b\\n #1;f3;f2;sys_[k] 1\n"
        );
    }

    #[test]
    fn weights_are_times() {
        let document: serde_json::Value =
            serde_json::from_str(&speedscope(&recording(), &Mock, 100)).unwrap();
        let profile = &document["profiles"][0];
        assert_eq!(profile["weights"], json!([20_000_000, 10_000_000]));
        assert_eq!(profile["endValue"], 30_000_000);
        assert_eq!(document["shared"]["frames"].as_array().unwrap().len(), 4);
    }
}
