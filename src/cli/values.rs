//! Values of options: text in, a checked value or the reason against it out.

use std::path::PathBuf;

use darc_analysis::descent::params::MAX_DEPTH;
use darc_analysis::values::expression::Expression;
use darc_analysis::{PeakChoice, Resolution};

use crate::duration;
use crate::options::{AsyncEnd, AsyncPath, Condition, Method, NamedRange, Part};
use crate::target_name::ProcessName;

/// Only darc itself passes such an id on.
pub(super) fn parse_pid(text: &str) -> Result<i32, String> {
    match ProcessName::parse(text)? {
        ProcessName::Pid(pid) => Ok(pid),
        ProcessName::Program(_) => Err("not a process id".to_owned()),
    }
}

/// `PID,COUNT,PARENT,FIRST`, which only darc itself passes on.
pub(super) fn parse_part(text: &str) -> Result<Part, String> {
    let mut numbers = text.split(',');
    let mut next = || numbers.next().unwrap_or_default();
    let part = (|| {
        Some(Part {
            pid: next().parse().ok().filter(|&pid| pid > 0)?,
            of: next().parse().ok()?,
            parent: next().parse().ok()?,
            is_first: next().parse().ok()?,
        })
    })();
    part.ok_or_else(|| "not a part".to_owned())
}

pub(super) fn parse_f0(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        Err("not a function's name".to_owned())
    } else {
        Ok(text.to_owned())
    }
}

/// The file of `-o`. Other programs take `-` for stdout.
pub(super) fn parse_output(file: PathBuf) -> Result<PathBuf, &'static str> {
    match file.as_os_str() == "-" {
        true => Err("stdout is called /dev/stdout here, and a file of this name ./-"),
        false => Ok(file),
    }
}

pub(super) fn parse_peak(text: &str) -> Result<PeakChoice, String> {
    match text.parse() {
        _ if text == "all" => Ok(PeakChoice::All),
        Ok(number @ 1..) => Ok(PeakChoice::One(number)),
        _ => Err("neither a peak's number, from 1 on, nor `all`".to_owned()),
    }
}

/// `p99.9`: the ops above that percentile.
pub(super) fn parse_percentile(text: &str) -> Result<NamedRange, String> {
    const FORM: &str = "not a percentile; write one as p99 or p99.9";
    let number: f64 = text
        .strip_prefix('p')
        .and_then(|number| number.parse().ok())
        .ok_or(FORM)?;
    let millionths = (number * 10_000.0).round();
    match (1.0..=999_999.0).contains(&millionths) {
        true => Ok(NamedRange::Above(millionths as u32)),
        false => Err(FORM.to_owned()),
    }
}

/// `2%`.
pub(super) fn parse_share(text: &str) -> Result<f64, String> {
    const FORM: &str = "not a percentage above 0% and up to 50%; write one as 2%";
    let number = text.strip_suffix('%').unwrap_or(text);
    let number: f64 = number.trim().parse().map_err(|_| FORM)?;
    match number > 0.0 && number <= 50.0 {
        true => Ok(number / 100.0),
        false => Err(FORM.to_owned()),
    }
}

/// `1ms..5ms`.
pub(super) fn parse_between(text: &str) -> Result<NamedRange, String> {
    let (from, to) = text
        .split_once("..")
        .ok_or("not a range; write one as 1ms..5ms")?;
    let time = |text: &str| duration::parse(text).map_err(|why| format!("{text}: {why}"));
    match (time(from)?, time(to)?) {
        (from, to) if from < to => Ok(NamedRange::Between(from, Some(to))),
        _ => Err("the range must begin before its end".to_owned()),
    }
}

pub(super) fn parse_condition(text: &str) -> Result<Condition, String> {
    const CONDITIONS: &str = "neither new-peak nor METHOD=X, as in emd=0.5";
    if text == "new-peak" {
        return Ok(Condition::NewPeak);
    }
    let (method, limit) = text.split_once('=').ok_or(CONDITIONS)?;
    let method = Method::from_name(method).ok_or(CONDITIONS)?;
    match limit.parse::<f64>() {
        Ok(limit) if limit.is_finite() && limit >= 0.0 => Ok(Condition::AtLeast(method, limit)),
        _ => Err("the limit is no number from 0 on".to_owned()),
    }
}

pub(super) fn parse_async(text: &str) -> Result<AsyncPath, String> {
    const FORM: &str = "not of the form enqueue=FUNC:EXPR;serve=FUNC:EXPR";
    let mut ends = [None, None];
    for part in text.split(';') {
        let (role, end) = part.trim().split_once('=').ok_or(FORM)?;
        let index = match role.trim() {
            "enqueue" => 0,
            "serve" => 1,
            _ => return Err(FORM.to_owned()),
        };
        // Names have colons, expressions have none.
        let (function, object) = end.rsplit_once(':').ok_or(FORM)?;
        let object = Expression::parse(object).map_err(|error| error.to_string())?;
        let function = parse_f0(function)?;
        if ends[index].replace(AsyncEnd { function, object }).is_some() {
            return Err(FORM.to_owned());
        }
    }
    match ends {
        [Some(enqueue), Some(serve)] => Ok(AsyncPath { enqueue, serve }),
        _ => Err(FORM.to_owned()),
    }
}

pub(super) fn parse_depth(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(depth @ 1..=MAX_DEPTH) => Ok(depth),
        _ => Err(format!("not a whole number between 1 and {MAX_DEPTH}")),
    }
}

pub(super) fn parse_sites(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(sites @ 1..) => Ok(sites),
        _ => Err("not a whole number from 1 on".to_owned()),
    }
}

pub(super) fn parse_resolution(text: &str) -> Result<Resolution, String> {
    let resolution = text.parse().ok().and_then(Resolution::new);
    resolution.ok_or_else(|| format!("not a whole number between 1 and {}", Resolution::MAX))
}

pub(super) fn parse_profile_resolution(text: &str) -> Result<Resolution, String> {
    // As fine as the stubs count.
    const FINEST: u32 = 8;
    let resolution = text.parse().ok().filter(|&r| r <= FINEST);
    let resolution = resolution.and_then(Resolution::new);
    resolution.ok_or_else(|| format!("not a whole number between 1 and {FINEST}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_an_asynchronous_path_are_needed() {
        let path =
            parse_async("enqueue=pool::Queue::push(Job*):arg2; serve=run:*(arg1+8)").unwrap();
        assert_eq!(path.enqueue.function, "pool::Queue::push(Job*)");
        assert_eq!(path.enqueue.object.to_string(), "arg2");
        assert_eq!(path.serve.function, "run");
        assert_eq!(path.serve.object.to_string(), "*(arg1+8)");
        for text in [
            "",
            "enqueue=push:arg1",
            "enqueue=push:arg1;enqueue=push:arg1",
            "enqueue=push;serve=run:arg1",
            "enqueue=push:arg9;serve=run:arg1",
            "enqueue=:arg1;serve=run:arg1",
            "queue=push:arg1;serve=run:arg1",
            "enqueue=push:arg1;serve=run:arg1;",
        ] {
            assert!(parse_async(text).is_err(), "{text}");
        }
    }
}
