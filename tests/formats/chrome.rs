//! Chrome traces, as the "Trace Event Format" describes them, and as Perfetto reads them: slices of a track nest.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// What was in a trace.
#[derive(Debug)]
pub struct Found {
    pub slices: usize,
    pub flows: usize,
}

type Track = (u64, u64);
/// An end of a flow: its phase, where it is, and when.
type End<'a> = (&'a str, Track, u64);

/// A slice or an end of a flow, in nanoseconds.
struct Span {
    start: u64,
    end: u64,
}

/// What is wrong with a trace.
pub fn check(trace: &Value) -> Result<Found, String> {
    let events = trace["traceEvents"].as_array().ok_or("no traceEvents")?;
    if !["ms", "ns"].contains(&trace["displayTimeUnit"].as_str().unwrap_or("ms")) {
        return Err(format!("displayTimeUnit {}", trace["displayTimeUnit"]));
    }
    let mut slices: BTreeMap<Track, Vec<Span>> = BTreeMap::new();
    // A `B` that no `E` has ended yet, by track.
    let mut begun: BTreeMap<Track, Vec<(String, u64)>> = BTreeMap::new();
    let mut flows: BTreeMap<(String, u64), Vec<End<'_>>> = BTreeMap::new();
    let mut named: BTreeSet<(String, Track)> = BTreeSet::new();
    for event in events {
        let wrong = |what: &str| format!("{what}: {event}");
        let name = event["name"].as_str().ok_or_else(|| wrong("no name"))?;
        let number = |member: &str| event[member].as_u64().ok_or_else(|| wrong(member));
        let track = (number("pid")?, number("tid")?);
        let phase = event["ph"].as_str().ok_or_else(|| wrong("no ph"))?;
        if phase == "M" {
            if !["process_name", "thread_name"].contains(&name) {
                return Err(wrong("names nothing that is known"));
            }
            if !event["args"]["name"].is_string() || !named.insert((name.to_owned(), track)) {
                return Err(wrong("no name, or a second one"));
            }
            continue;
        }
        if !event["cat"].is_string() {
            return Err(wrong("no cat"));
        }
        let at = nanos(&event["ts"]).ok_or_else(|| wrong("ts"))?;
        match phase {
            "X" => {
                let length = nanos(&event["dur"]).ok_or_else(|| wrong("dur"))?;
                let spans = slices.entry(track).or_default();
                if spans.last().is_some_and(|last| last.start > at) {
                    return Err(wrong("earlier than the one before it"));
                }
                spans.push(Span {
                    start: at,
                    end: at + length,
                });
            }
            "B" => begun.entry(track).or_default().push((name.to_owned(), at)),
            "E" => match begun.entry(track).or_default().pop() {
                Some((begun, start)) if begun == name && start <= at => {
                    slices
                        .entry(track)
                        .or_default()
                        .push(Span { start, end: at });
                }
                _ => return Err(wrong("ends what did not begin last")),
            },
            "s" | "t" | "f" => {
                if phase == "f" && event["bp"] != "e" {
                    return Err(wrong("binds to the next slice"));
                }
                let flow = (name.to_owned(), number("id")?);
                flows.entry(flow).or_default().push((phase, track, at));
            }
            _ => return Err(wrong("a phase that darc does not write")),
        }
    }
    if let Some(left) = begun.values().flatten().next() {
        return Err(format!("never ends: {left:?}"));
    }
    for (track, spans) in &mut slices {
        if !named.contains(&("thread_name".to_owned(), *track)) {
            return Err(format!("track {track:?} has no name"));
        }
        check_nesting(spans).map_err(|why| format!("track {track:?}: {why}"))?;
    }
    for (flow, ends) in &flows {
        check_flow(ends, &slices).map_err(|why| format!("flow {flow:?}: {why}"))?;
    }
    Ok(Found {
        slices: slices.values().map(Vec::len).sum(),
        flows: flows.len(),
    })
}

/// Microseconds with three decimals at most.
fn nanos(micros: &Value) -> Option<u64> {
    let nanos = micros.as_f64()? * 1e3;
    ((nanos - nanos.round()).abs() < 1e-3 && nanos >= 0.0).then_some(nanos.round() as u64)
}

fn check_nesting(spans: &mut [Span]) -> Result<(), String> {
    spans.sort_by_key(|span| (span.start, std::cmp::Reverse(span.end)));
    let mut around: Vec<u64> = Vec::new();
    for span in spans {
        while around.last().is_some_and(|&end| end <= span.start) {
            around.pop();
        }
        if around.last().is_some_and(|&end| span.end > end) {
            let Span { start, end } = span;
            return Err(format!("the slice from {start} to {end} ns sticks out"));
        }
        around.push(span.end);
    }
    Ok(())
}

/// One beginning, then one end, each in a slice of its track.
fn check_flow(ends: &[End<'_>], slices: &BTreeMap<Track, Vec<Span>>) -> Result<(), String> {
    let [("s", from, start), steps @ .., ("f", to, end)] = ends else {
        return Err(format!("not from one s to one f: {ends:?}"));
    };
    if start > end || from == to || steps.iter().any(|(phase, ..)| *phase != "t") {
        return Err(format!("leads nowhere: {ends:?}"));
    }
    let bound = |&(_, track, at): &End<'_>| {
        let spans = slices.get(&track).map_or(&[][..], Vec::as_slice);
        spans
            .iter()
            .any(|span| span.start == at || (span.start..span.end).contains(&at))
    };
    match ends.iter().find(|end| !bound(end)) {
        None => Ok(()),
        Some(loose) => Err(format!("no slice at {loose:?}")),
    }
}
