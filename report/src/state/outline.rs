//! Data as indented lines: one object a line, its plain values labelled, its parts indented below it.
//!
//! ```text
//! report schema=1 darc="0.1.0"
//!   profile resolution=1 ops=3
//!     - buckets bucket=9 ops=3
//! ```
//! Texts are quoted, lists of plain values stand in brackets, and what is absent or an empty list is left
//! out. Reading accepts what writing writes and nothing else: no other spelling of a number, no second
//! value for a label.

use std::fmt::Write as _;

use serde_json::{Map, Number, Value};

use super::{MAX_NESTING, MAX_RECORDS, StateError};
use crate::escape::{control, unescape};

/// Appends `value` as lines below `keyword`.
pub(super) fn write(text: &mut String, keyword: &str, value: &Value) {
    if let Value::Object(object) = value {
        write_object(text, 0, keyword, object);
    }
}

fn write_object(text: &mut String, depth: usize, keyword: &str, object: &Map<String, Value>) {
    let _ = write!(text, "{:1$}{keyword}", "", 2 * depth);
    let mut parts = Vec::new();
    for (label, value) in object {
        match value {
            Value::Null => {}
            Value::Object(part) if part.is_empty() => {}
            Value::Object(part) => parts.push((label.clone(), part)),
            Value::Array(items) if items.is_empty() => {}
            Value::Array(items) if items.iter().all(Value::is_object) => {
                let objects = items.iter().filter_map(Value::as_object);
                parts.extend(objects.map(|item| (format!("- {label}"), item)));
            }
            Value::Array(items) => {
                let items: Vec<String> = items.iter().map(plain).collect();
                let _ = write!(text, " {label}=[{}]", items.join(", "));
            }
            value => {
                let _ = write!(text, " {label}={}", plain(value));
            }
        }
    }
    text.push('\n');
    for (keyword, part) in parts {
        write_object(text, depth + 1, &keyword, part);
    }
}

/// A value that has no parts.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => format!("\"{}\"", control(text).replace('"', "\\\"")),
        value => value.to_string(),
    }
}

/// A count in its one spelling.
pub(super) fn count(digits: &str) -> Option<u64> {
    let count: u64 = digits.parse().ok()?;
    (count.to_string() == digits).then_some(count)
}

/// An object whose line has been read, but not all of its parts.
struct Open {
    label: String,
    is_item: bool,
    object: Map<String, Value>,
}

/// Reads numbered lines whose first is `keyword`.
pub(super) fn parse<'a>(
    keyword: &str,
    lines: impl Iterator<Item = (&'a str, usize)>,
) -> Result<Value, StateError> {
    let mut open: Vec<Open> = Vec::new();
    let mut last = 0;
    for (records, (line, number)) in lines.enumerate() {
        let damaged = |what: String| StateError::Damaged { line: number, what };
        if records >= MAX_RECORDS {
            return Err(damaged(format!("more than {MAX_RECORDS} records")));
        }
        last = number;
        let (depth, record) = record(line).map_err(damaged)?;
        let fits = match records {
            0 => depth == 0 && record.label == keyword && !record.is_item,
            _ => (1..=open.len()).contains(&depth),
        };
        if !fits || depth > MAX_NESTING {
            return Err(damaged(format!(
                "a record does not belong at depth {depth}"
            )));
        }
        close(&mut open, depth).map_err(damaged)?;
        open.push(record);
    }
    let damaged = |what: String| StateError::Damaged { line: last, what };
    close(&mut open, 1).map_err(damaged)?;
    match open.pop() {
        Some(whole) => Ok(Value::Object(whole.object)),
        None => Err(damaged("there are no records".to_owned())),
    }
}

/// Puts all objects below `depth` into the ones they are parts of.
fn close(open: &mut Vec<Open>, depth: usize) -> Result<(), String> {
    while open.len() > depth {
        let Some(part) = open.pop() else { break };
        let Some(whole) = open.last_mut() else { break };
        let value = Value::Object(part.object);
        let twice = || Err(format!("a second '{}'", part.label));
        match whole.object.get_mut(&part.label) {
            None if part.is_item => {
                whole.object.insert(part.label, Value::Array(vec![value]));
            }
            None => {
                whole.object.insert(part.label, value);
            }
            // A list of plain values under the same label is not continued by objects.
            Some(Value::Array(items)) if part.is_item && items.iter().all(Value::is_object) => {
                items.push(value);
            }
            Some(_) => return twice(),
        }
    }
    Ok(())
}

/// One line: how deep it is and what it says.
fn record(line: &str) -> Result<(usize, Open), String> {
    let text = line.trim_start_matches(' ');
    let indent = line.len() - text.len();
    if !indent.is_multiple_of(2) {
        return Err("the indentation is odd".to_owned());
    }
    let (is_item, text) = match text.strip_prefix("- ") {
        Some(text) => (true, text),
        None => (false, text),
    };
    let (label, mut rest) = label(text)?;
    let mut object = Map::new();
    while !rest.is_empty() {
        let field = rest.strip_prefix(' ').ok_or("a space is missing")?;
        let (label, value) = self::label(field)?;
        let value = value.strip_prefix('=').ok_or("a label has no value")?;
        let (value, after) = any_value(value)?;
        if object.insert(label.to_owned(), value).is_some() {
            return Err(format!("a second '{label}'"));
        }
        rest = after;
    }
    let label = label.to_owned();
    Ok((
        indent / 2,
        Open {
            label,
            is_item,
            object,
        },
    ))
}

/// A label at the begin of `text`, and what follows it.
fn label(text: &str) -> Result<(&str, &str), String> {
    let is_part = |char: char| char.is_ascii_alphanumeric() || char == '_' || char == '-';
    let end = text.find(|char| !is_part(char)).unwrap_or(text.len());
    match text.split_at(end) {
        ("", _) => Err("a label is missing".to_owned()),
        split => Ok(split),
    }
}

fn any_value(text: &str) -> Result<(Value, &str), String> {
    let Some(mut rest) = text.strip_prefix('[') else {
        return plain_value(text);
    };
    let mut items = Vec::new();
    loop {
        let (item, after) = plain_value(rest)?;
        items.push(item);
        if let Some(after) = after.strip_prefix(']') {
            return Ok((Value::Array(items), after));
        }
        rest = after.strip_prefix(", ").ok_or("a list does not end")?;
    }
}

fn plain_value(text: &str) -> Result<(Value, &str), String> {
    if let Some(quoted) = text.strip_prefix('"') {
        return text_value(quoted);
    }
    let end = text.find([' ', ',', ']']).unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    let value = match word {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        _ => Value::Number(number(word).ok_or_else(|| {
            let shown: String = word.chars().take(40).collect();
            format!("'{}' is no figure", control(&shown))
        })?),
    };
    Ok((value, rest))
}

/// A number in the one spelling that writing gives it: finite, and without needless digits.
fn number(word: &str) -> Option<Number> {
    let number = if let Ok(count) = word.parse::<u64>() {
        Number::from(count)
    } else if let Ok(whole) = word.parse::<i64>() {
        Number::from(whole)
    } else {
        Number::from_f64(word.parse().ok()?)?
    };
    (number.to_string() == word).then_some(number)
}

/// A text after its opening quote.
fn text_value(quoted: &str) -> Result<(Value, &str), String> {
    let mut plain = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => {
                let text = unescape(&plain).ok_or("a text is not escaped as it should be")?;
                return Ok((Value::String(text.into_owned()), &quoted[at + 1..]));
            }
            '\\' => match chars.next() {
                Some((_, '"')) => plain.push('"'),
                Some((_, escaped)) => plain.extend(['\\', escaped]),
                None => break,
            },
            char => plain.push(char),
        }
    }
    Err("a text does not end".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn lines(text: &str) -> impl Iterator<Item = (&str, usize)> {
        text.split_terminator('\n').zip(1..)
    }

    #[test]
    fn data_is_read_as_it_was_written() {
        let value = json!({
            "name": "a \"quoted\"\\ name\n", "share": 0.1, "whole": 1.0, "least": -3, "most": u64::MAX,
            "flag": true, "list": ["x", "y ]"],
            "part": {"1": 20, "deeper": {"x": 1}},
            "items": [{"n": 1, "items": [{"n": 2}]}, {}],
        });
        let mut text = String::new();
        write(&mut text, "whole", &value);
        assert_eq!(parse("whole", lines(&text)), Ok(value));
        assert!(text.starts_with(
            "whole name=\"a \\\"quoted\\\"\\\\ name\\n\" share=0.1 whole=1.0 least=-3"
        ));
    }

    #[test]
    fn nothing_else_is_read() {
        let wrong = [
            "",
            "other a=1\n",
            " whole a=1\n",
            "- whole a=1\n",
            "whole a=01\n",
            "whole a=+1\n",
            "whole a=NaN\n",
            "whole a=inf\n",
            "whole a=1e999\n",
            "whole a=0.10\n",
            "whole a=1 a=2\n",
            "whole a=1  b=2\n",
            "whole a=\n",
            "whole a=[]\n",
            "whole a=[1\n",
            "whole a=\"x\n",
            "whole a=\"x\"b=1\n",
            "whole a=\"\\q\"\n",
            "whole a=\"\\u{41}\"\n",
            "whole\nwhole\n",
            "whole\n    deep\n",
            "whole\n  part\n  part\n",
            "whole part=1\n  part\n",
            "whole part=[1]\n  - part\n",
            "whole\n  part\n  - part\n",
            "whole\n\n",
        ];
        for text in wrong {
            assert!(parse("whole", lines(text)).is_err(), "{text:?}");
        }
    }
}
