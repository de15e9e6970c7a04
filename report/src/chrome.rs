//! Chrome trace events (the "Trace Event Format" that chrome://tracing and Perfetto read): one real op of each
//! peak, with the longest call of each fnode where it really was. A track a peak, times from the op's start.
//!
//! An op that serves what another thread handed over has the time that its request waited on a track of its own, and a
//! flow leads from there to the op; its times are from the hand-over on.
//!
//! Times are whole nanoseconds (or cycles), so that nothing sticks out of what is around it by a rounding.

mod nesting;

use darc_analysis::{Hz, Ticks};
use nesting::Slice;
use serde::Serialize;
use serde_json::{Value, json};

use super::escape::control;
use super::model::{ExampleCall, ExampleOp, PeakEntry, Report};
use super::words;

/// Tracks of waiting requests come after those of the peaks.
const WAITING: u32 = 1000;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File {
    trace_events: Vec<Event>,
    display_time_unit: &'static str,
    other_data: Value,
}

/// A complete event (`X`), a name (`M`), or one end of a flow (`s`, `f`).
#[derive(Default, Serialize)]
struct Event {
    name: String,
    ph: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u32>,
    /// Where a flow ends: `e`, in the slice that is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    bp: Option<&'static str>,
    /// Microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    pid: u32,
    tid: u32,
    #[serde(skip_serializing_if = "Value::is_null")]
    args: Value,
}

/// One ftree's ops: a process of the trace.
struct Tracks<'a> {
    pid: u32,
    f0: &'a str,
    hz: Option<Hz>,
    resolution: u32,
    /// Whether its ops serve what others handed over.
    served: Served,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Served {
    OfItself,
    OfOthers,
}

/// The report as one JSON document that ends with a newline.
///
/// # Errors
/// Never in practice: all keys are texts, all figures finite.
pub fn render(report: &Report) -> Result<String, serde_json::Error> {
    let hz = Hz::new(report.clock.hz);
    let mut events = Vec::new();
    let tracks = Tracks {
        pid: 1,
        f0: &report.f0.name,
        hz,
        resolution: report.profile.resolution,
        served: Served::OfItself,
    };
    tracks.add(&mut events, &report.f0.name, &report.peaks);
    for (pid, focus) in (2..).zip(&report.focus) {
        let tracks = Tracks {
            pid,
            f0: &focus.ftree.name,
            hz,
            resolution: focus.profile.resolution,
            served: match focus.handover {
                Some(_) => Served::OfOthers,
                None => Served::OfItself,
            },
        };
        tracks.add(&mut events, &focus.path.join(" → "), &focus.peaks);
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

impl Tracks<'_> {
    fn add(&self, events: &mut Vec<Event>, title: &str, peaks: &[PeakEntry]) {
        events.push(self.name("process_name", 0, title));
        for peak in peaks {
            let Some(example) = &peak.example else {
                continue;
            };
            let range = words::range(self.hz, peak, self.resolution).unwrap_or_default();
            let title = format!("peak {}, {range}", peak.peak);
            events.push(self.name("thread_name", peak.peak, &title));
            let mut start = 0;
            if let (Served::OfOthers, Some(waited)) = (self.served, example.waited) {
                start = self.units(waited);
                self.hand_over(events, peak.peak, start);
            }
            self.op(events, peak.peak, start, example);
        }
    }

    /// What shows how the op's request came there.
    fn hand_over(&self, events: &mut Vec<Event>, peak: u32, waited: u64) {
        let track = WAITING + peak;
        let title = format!("request of peak {peak}, before it is served");
        events.push(self.name("thread_name", track, &title));
        events.push(self.event("X", "waits", "request", track, 0, Some(waited)));
        let flow = |ph, track, at| Event {
            id: Some(self.pid * WAITING + peak),
            ..self.event(ph, "hand-over", "request", track, at, None)
        };
        // From the hand-over to the op's first moment: a slice's end is no part of it.
        events.push(flow("s", track, 0));
        events.push(Event {
            bp: Some("e"),
            ..flow("f", peak, waited)
        });
    }

    fn op(&self, events: &mut Vec<Event>, track: u32, start: u64, example: &ExampleOp) {
        let whole = Slice {
            start: 0,
            end: self.units(example.latency),
        };
        let op = json!({ "thread": example.tid });
        let mut add = |name: &str, slice: Slice, args: Value| {
            let (from, length) = (start + slice.start, slice.end - slice.start);
            events.push(Event {
                args,
                ..self.event("X", name, "call", track, from, Some(length))
            });
        };
        add(self.f0, whole, op);
        // Time away competes at several fnodes; it passed once.
        let mut calls: Vec<&ExampleCall> = Vec::new();
        for call in &example.calls {
            let same = |it: &&ExampleCall| {
                (&it.name, it.start, it.max, it.count)
                    == (&call.name, call.start, call.max, call.count)
            };
            if !calls.iter().any(same) {
                calls.push(call);
            }
        }
        let slices = calls.iter().map(|call| Slice {
            start: self.units(call.start),
            end: self.units(call.start.saturating_add(call.max)),
        });
        for (index, slice) in nesting::nested(whole, slices) {
            let call = calls[index];
            let micros = |cycles| self.units(cycles) as f64 / 1e3;
            let args = json!({
                "calls": call.count,
                "longest_us": micros(call.max),
                "together_us": micros(call.sum),
            });
            add(&call.name, slice, args);
        }
    }

    fn event(
        &self,
        ph: &'static str,
        name: &str,
        cat: &'static str,
        tid: u32,
        at: u64,
        length: Option<u64>,
    ) -> Event {
        Event {
            name: control(name).into(),
            ph,
            cat: Some(cat),
            ts: Some(at as f64 / 1e3),
            dur: length.map(|length| length as f64 / 1e3),
            pid: self.pid,
            tid,
            ..Event::default()
        }
    }

    fn name(&self, what: &str, tid: u32, name: &str) -> Event {
        Event {
            name: what.to_owned(),
            ph: "M",
            pid: self.pid,
            tid,
            args: json!({ "name": control(name) }),
            ..Event::default()
        }
    }

    /// Whole nanoseconds, or cycles where the clock's rate is not known. No longer than a day: beyond that floating point
    /// has no room for nanoseconds.
    fn units(&self, cycles: u64) -> u64 {
        const DAY: u64 = 86_400 * 1_000_000_000;
        let units = match self.hz {
            Some(hz) => hz.nanos(Ticks(cycles)).0 as u64,
            None => cycles,
        };
        units.min(DAY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::golden::{finished, handed_over};

    /// All events of a kind.
    fn events(report: &Report, ph: &str) -> Vec<Value> {
        let file: Value = serde_json::from_str(&render(report).unwrap()).unwrap();
        let events = file["traceEvents"].as_array().unwrap().iter();
        events.filter(|event| event["ph"] == ph).cloned().collect()
    }

    #[test]
    fn a_request_flows_from_where_it_waits_to_the_op_that_serves_it() {
        let report = handed_over();
        let (starts, ends) = (events(&report, "s"), events(&report, "f"));
        assert_eq!((starts.len(), ends.len()), (1, 1));
        assert_eq!(starts[0]["id"], ends[0]["id"]);
        assert_ne!(starts[0]["tid"], ends[0]["tid"]);
        let complete = events(&report, "X");
        let of = |name: &str| complete.iter().find(|x| x["pid"] == 2 && x["name"] == name);
        assert_eq!(of("waits").unwrap()["dur"], 1500.0);
        assert_eq!(of("serve").unwrap()["ts"], 1500.0);
        assert_eq!(
            (&starts[0]["ts"], &ends[0]["ts"]),
            (&0.0.into(), &1500.0.into())
        );
    }

    #[test]
    fn time_away_is_shown_once() {
        let mut report = finished();
        let before = events(&report, "X").len();
        let example = report.peaks[0].example.as_mut().unwrap();
        let away = ExampleCall {
            name: "(preemption)".to_owned(),
            depth: 1,
            start: 1,
            max: 2,
            sum: 2,
            count: 1,
        };
        let deeper = ExampleCall {
            depth: 2,
            ..away.clone()
        };
        example.calls.extend([away, deeper]);
        assert_eq!(events(&report, "X").len(), before + 1);
    }

    #[test]
    fn what_no_clock_says_of_a_call_breaks_the_tracks() {
        let mut report = finished();
        let example = report.peaks[0].example.as_mut().unwrap();
        for (number, call) in (0_u64..).zip(&mut example.calls) {
            (call.start, call.max) = (number * 300, u64::MAX);
        }
        example.latency = 1000;
        for event in events(&report, "X")
            .iter()
            .filter(|x| x["pid"] == 1 && x["tid"] == 1)
        {
            let end = event["ts"].as_f64().unwrap() + event["dur"].as_f64().unwrap();
            assert!(end <= 0.5, "{event}");
        }
    }
}
