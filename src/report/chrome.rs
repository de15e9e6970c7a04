//! Chrome trace events (the "Trace Event Format" that chrome://tracing and Perfetto read): one real op of each
//! peak, with the longest call of each fnode where it really was. A track a peak, times from the op's start.

use serde::Serialize;
use serde_json::{Value, json};

use super::escape::control;
use super::model::{ExampleOp, PeakEntry, Report};
use super::words;
use crate::analysis::{Hz, Ticks};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File {
    trace_events: Vec<Event>,
    display_time_unit: &'static str,
    other_data: Value,
}

/// A complete event (`X`) or a name (`M`).
#[derive(Serialize)]
struct Event {
    name: String,
    ph: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    /// Microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    pid: u32,
    tid: u32,
    args: Value,
}

/// The report as one JSON document that ends with a newline.
///
/// # Errors
/// Never in practice: all keys are texts, all figures finite.
pub fn render(report: &Report) -> Result<String, serde_json::Error> {
    let hz = Hz::new(report.clock.hz);
    let mut events = vec![name("process_name", 1, 0, &report.f0.name)];
    tracks(
        &mut events,
        hz,
        1,
        &report.f0.name,
        &report.peaks,
        report.profile.resolution,
    );
    for (pid, focus) in (2..).zip(&report.focus) {
        let path = focus.path.join(" → ");
        events.push(name("process_name", pid, 0, &path));
        tracks(
            &mut events,
            hz,
            pid,
            &path,
            &focus.peaks,
            focus.profile.resolution,
        );
    }
    let file = File {
        trace_events: events,
        display_time_unit: "ns",
        other_data: json!({
            "darc": control(&report.darc),
            "f0": control(&report.f0.name),
            "unit": if hz.is_some() { "microseconds" } else { "thousands of cycles" },
        }),
    };
    let mut text = serde_json::to_string(&file)?;
    text.push('\n');
    Ok(text)
}

fn tracks(
    events: &mut Vec<Event>,
    hz: Option<Hz>,
    pid: u32,
    f0: &str,
    peaks: &[PeakEntry],
    resolution: u32,
) {
    for peak in peaks {
        let Some(example) = &peak.example else {
            continue;
        };
        let range = words::range(hz, peak, resolution).unwrap_or_default();
        let title = format!("peak {}, {range}", peak.peak);
        events.push(name("thread_name", pid, peak.peak, &title));
        op(events, hz, pid, f0, peak.peak, example);
    }
}

fn op(events: &mut Vec<Event>, hz: Option<Hz>, pid: u32, f0: &str, peak: u32, example: &ExampleOp) {
    let micros = |cycles: u64| match hz {
        Some(hz) => hz.nanos(Ticks(cycles)).0 / 1e3,
        None => cycles as f64 / 1e3,
    };
    let mut complete = |name: &str, start: u64, length: u64, args: Value| {
        events.push(Event {
            name: control(name).into(),
            ph: "X",
            cat: Some("call"),
            ts: Some(micros(start)),
            dur: Some(micros(length)),
            pid,
            tid: peak,
            args,
        });
    };
    complete(f0, 0, example.latency, json!({ "thread": example.tid }));
    for call in &example.calls {
        // Nothing sticks out of the op, whatever the clock of another processor said.
        let start = call.start.min(example.latency);
        let length = call.max.min(example.latency - start);
        let args = json!({ "calls": call.count, "together_us": micros(call.sum) });
        complete(&call.name, start, length, args);
    }
}

fn name(what: &str, pid: u32, tid: u32, name: &str) -> Event {
    Event {
        name: what.to_owned(),
        ph: "M",
        cat: None,
        ts: None,
        dur: None,
        pid,
        tid,
        args: json!({ "name": control(name) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn events_nest_and_stay_inside_of_their_op() {
        let text = render(&sample::report(30_000)).unwrap();
        let file: Value = serde_json::from_str(&text).unwrap();
        let events = file["traceEvents"].as_array().unwrap();
        let complete: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
        assert!(complete.len() > 3, "{text}");
        let span = |event: &Value| {
            let start = event["ts"].as_f64().unwrap();
            (start, start + event["dur"].as_f64().unwrap())
        };
        for one in &complete {
            assert!(one["pid"].is_u64() && one["tid"].is_u64() && one["name"].is_string());
            let (start, end) = span(one);
            assert!(start >= 0.0 && end >= start);
            for other in complete.iter().filter(|other| other["tid"] == one["tid"]) {
                let (from, to) = span(other);
                let apart = to <= start + 1e-6 || end <= from + 1e-6;
                let inside = from <= start + 1e-6 && end <= to + 1e-6;
                let around = start <= from + 1e-6 && to <= end + 1e-6;
                assert!(apart || inside || around, "{one} and {other}");
            }
        }
    }
}
