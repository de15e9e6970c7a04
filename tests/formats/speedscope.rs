//! speedscope's files, by its published schema (<https://www.speedscope.app/file-format-schema.json>) and what its
//! importer relies on beside that.

use serde_json::Value;

const UNITS: [&str; 6] = [
    "none",
    "nanoseconds",
    "microseconds",
    "milliseconds",
    "seconds",
    "bytes",
];

/// What is wrong with a file.
pub fn check(file: &Value) -> Result<(), String> {
    if file["$schema"] != "https://www.speedscope.app/file-format-schema.json" {
        return Err(format!("schema {}", file["$schema"]));
    }
    let frames = file["shared"]["frames"].as_array().ok_or("no frames")?;
    for frame in frames {
        let is_text = |member: &str| frame[member].is_null() || frame[member].is_string();
        let is_number = |member: &str| frame[member].is_null() || frame[member].is_u64();
        if !(frame["name"].is_string() && is_text("file") && is_number("line") && is_number("col"))
        {
            return Err(format!("frame {frame}"));
        }
    }
    let profiles = file["profiles"].as_array().ok_or("no profiles")?;
    for profile in profiles {
        one(profile, frames.len()).map_err(|why| format!("profile {}: {why}", profile["name"]))?;
    }
    let active = file["activeProfileIndex"]
        .as_u64()
        .ok_or("no active profile")?;
    let is_there = profiles.is_empty() || (active as usize) < profiles.len();
    is_there
        .then_some(())
        .ok_or_else(|| format!("no profile {active}"))
}

fn one(profile: &Value, frames: usize) -> Result<(), String> {
    let unit = profile["unit"].as_str().unwrap_or_default();
    if !profile["name"].is_string() || !UNITS.contains(&unit) {
        return Err(format!("no name, or the unit {unit:?}"));
    }
    let number = |member: &str| {
        profile[member]
            .as_u64()
            .ok_or_else(|| format!("no {member}"))
    };
    let (start, end) = (number("startValue")?, number("endValue")?);
    if end < start {
        return Err(format!("ends at {end}, before {start}"));
    }
    let frame = |index: &Value| match index.as_u64() {
        Some(index) if (index as usize) < frames => Ok(index),
        _ => Err(format!("frame {index} of {frames}")),
    };
    match profile["type"].as_str() {
        Some("sampled") => {
            let samples = profile["samples"].as_array().ok_or("no samples")?;
            let weights = profile["weights"].as_array().ok_or("no weights")?;
            if samples.len() != weights.len() {
                return Err(format!(
                    "{} samples, {} weights",
                    samples.len(),
                    weights.len()
                ));
            }
            for stack in samples {
                let stack = stack
                    .as_array()
                    .filter(|it| !it.is_empty())
                    .ok_or("no stack")?;
                stack.iter().try_for_each(|index| frame(index).map(drop))?;
            }
            let weights: Option<u64> = weights.iter().map(Value::as_u64).sum();
            let weights = weights.ok_or("a weight is no number")?;
            let right = weights == end - start;
            right
                .then_some(())
                .ok_or_else(|| format!("weighs {weights}, from {start} to {end}"))
        }
        Some("evented") => {
            let (mut open, mut last) = (Vec::new(), start);
            for event in profile["events"].as_array().ok_or("no events")? {
                let at = event["at"].as_u64().ok_or("no at")?;
                let index = frame(&event["frame"])?;
                let balanced = match event["type"].as_str() {
                    Some("O") => {
                        open.push(index);
                        true
                    }
                    Some("C") => open.pop() == Some(index),
                    _ => false,
                };
                if !balanced || at < last || at > end {
                    return Err(format!("event {event}"));
                }
                last = at;
            }
            open.is_empty()
                .then_some(())
                .ok_or_else(|| format!("{open:?} never end"))
        }
        other => Err(format!("type {other:?}")),
    }
}
