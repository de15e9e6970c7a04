//! pprof's files, by the comments in its `profile.proto` and what its `CheckValid` demands.

use std::collections::{BTreeMap, HashMap};
use std::io::Read as _;
use std::process::Command;

/// Names from the outermost function on, each with the source line in it.
type Path = Vec<(String, u64)>;

/// What a file says.
#[derive(Debug, Default)]
pub struct Stacks {
    /// Names and units of the figures.
    pub kinds: Vec<(String, String)>,
    /// The figures, by label and path.
    pub samples: BTreeMap<(String, Path), Vec<u64>>,
}

/// A field: of a number the number, of all else the bytes.
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

type Fields<'a> = HashMap<u64, Vec<Value<'a>>>;

/// What a file holds; else what is wrong with it.
pub fn read(file: &[u8]) -> Result<Stacks, String> {
    let mut bytes = Vec::new();
    let mut gzip = flate2::read::GzDecoder::new(file);
    gzip.read_to_end(&mut bytes)
        .map_err(|why| why.to_string())?;
    let profile = fields(&bytes)?;
    let strings: Vec<String> = messages(&profile, 6)?
        .iter()
        .map(|text| String::from_utf8(text.to_vec()).map_err(|why| why.to_string()))
        .collect::<Result<_, _>>()?;
    if strings.first().map(String::as_str) != Some("") {
        return Err("the first text is not the empty one".to_owned());
    }
    let text = |number: u64| {
        let text = strings.get(number as usize);
        text.cloned().ok_or_else(|| format!("no text {number}"))
    };
    let mappings = numbered(&profile, 3)?;
    let functions = numbered(&profile, 5)?;
    let locations = numbered(&profile, 4)?;
    for mapping in mappings.values() {
        text(number(mapping, 5))?;
    }
    let kind = |kind: &&[u8]| {
        let kind = fields(kind)?;
        Ok((text(number(&kind, 1))?, text(number(&kind, 2))?))
    };
    let mut stacks = Stacks {
        kinds: messages(&profile, 1)?
            .iter()
            .map(kind)
            .collect::<Result<_, String>>()?,
        ..Stacks::default()
    };
    let frame = |location: &u64| {
        let location = locations.get(location).ok_or("no such location")?;
        let mapping = number(location, 2);
        if mapping != 0 && !mappings.contains_key(&mapping) {
            return Err(format!("no mapping {mapping}"));
        }
        let line = fields(messages(location, 4)?.first().ok_or("no line")?)?;
        let function = functions.get(&number(&line, 1)).ok_or("no such function")?;
        text(number(function, 4))?;
        Ok((text(number(function, 2))?, number(&line, 2)))
    };
    for sample in messages(&profile, 2)? {
        let sample = fields(sample)?;
        let path = packed(&sample, 1)?;
        let path = path
            .iter()
            .rev()
            .map(frame)
            .collect::<Result<Vec<_>, String>>()?;
        let figures = packed(&sample, 2)?;
        if path.is_empty() || figures.len() != stacks.kinds.len() {
            return Err(format!("{} figures of {path:?}", figures.len()));
        }
        let label = fields(messages(&sample, 3)?.first().ok_or("no label")?)?;
        let key = (text(number(&label, 2))?, path);
        // Calls at several places of a line have one stack; whoever reads the file adds them up.
        let known = stacks.samples.entry(key);
        let known = known.or_insert_with(|| vec![0; figures.len()]);
        for (sum, figure) in known.iter_mut().zip(figures) {
            *sum += figure;
        }
    }
    Ok(stacks)
}

/// What `go tool pprof -top` makes of a file, or `pprof -top`; nothing where neither is installed.
pub fn top(file: &std::path::Path) -> Option<String> {
    let tools: [&[&str]; 2] = [&["pprof"], &["go", "tool", "pprof"]];
    let run = tools.iter().find_map(|tool| {
        let mut command = Command::new(tool[0]);
        command
            .args(&tool[1..])
            .args(["-top", "-unit=ns"])
            .arg(file);
        command.env("PPROF_TMPDIR", "/tmp").output().ok()
    });
    if run.is_none() {
        eprintln!("left out: go tool pprof is not installed (package golang-go)");
    }
    let run = run?;
    assert!(run.status.success(), "{run:?}");
    Some(String::from_utf8(run.stdout).expect("text"))
}

/// Messages with a number of their own in field 1, which none other has.
fn numbered(profile: &Fields<'_>, field: u64) -> Result<HashMap<u64, Fields<'static>>, String> {
    let mut found = HashMap::new();
    for message in messages(profile, field)? {
        let message = fields(message.to_vec().leak())?;
        let own = number(&message, 1);
        if own == 0 || found.insert(own, message).is_some() {
            return Err(format!("number {own} in field {field}"));
        }
    }
    Ok(found)
}

fn number(message: &Fields<'_>, field: u64) -> u64 {
    match message.get(&field).and_then(|values| values.last()) {
        Some(Value::Number(number)) => *number,
        _ => 0,
    }
}

fn messages<'a>(message: &Fields<'a>, field: u64) -> Result<Vec<&'a [u8]>, String> {
    let values = message.get(&field).into_iter().flatten();
    values
        .map(|value| match value {
            Value::Bytes(bytes) => Ok(*bytes),
            Value::Number(number) => Err(format!("number {number} in field {field}")),
        })
        .collect()
}

fn packed(message: &Fields<'_>, field: u64) -> Result<Vec<u64>, String> {
    let mut numbers = Vec::new();
    for mut bytes in messages(message, field)? {
        while !bytes.is_empty() {
            numbers.push(varint(&mut bytes)?);
        }
    }
    Ok(numbers)
}

fn fields(mut bytes: &[u8]) -> Result<Fields<'_>, String> {
    let mut fields = Fields::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let value = match tag & 7 {
            0 => Value::Number(varint(&mut bytes)?),
            2 => {
                let length = varint(&mut bytes)? as usize;
                let (value, rest) = bytes.split_at_checked(length).ok_or("it is cut off")?;
                bytes = rest;
                Value::Bytes(value)
            }
            other => return Err(format!("wire type {other}")),
        };
        fields.entry(tag >> 3).or_default().push(value);
    }
    Ok(fields)
}

fn varint(bytes: &mut &[u8]) -> Result<u64, String> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or("it is cut off")?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err("a number is too long".to_owned())
}
