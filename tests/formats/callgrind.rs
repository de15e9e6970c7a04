//! Callgrind's files, by the grammar in the Valgrind manual ("Callgrind Format Specification"), and sums that must hold.

use std::collections::HashMap;

/// A function's costs.
#[derive(Clone, Default, Debug)]
pub struct Function {
    pub file: String,
    own: Vec<u64>,
    calls: Vec<u64>,
    called: Vec<u64>,
}

/// By object and name.
type Functions = HashMap<(String, String), Function>;

#[derive(Default)]
struct Reader {
    events: usize,
    summary: Option<Vec<u64>>,
    totals: Option<Vec<u64>>,
    names: HashMap<(&'static str, u64), String>,
    object: String,
    file: String,
    function: Option<(String, String)>,
    called_object: Option<String>,
    called: Option<String>,
    /// What the next line is to say the costs of.
    call: Option<(String, String)>,
    functions: Functions,
}

/// The functions of a file, or what is wrong with it.
pub fn read(text: &str) -> Result<Functions, String> {
    let mut reader = Reader::default();
    let mut lines = text.lines().enumerate();
    let mut in_body = false;
    if lines.next() != Some((0, "# callgrind format")) {
        return Err("no signature".to_owned());
    }
    for (number, line) in lines {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let header = line.split_once(": ").filter(|_| !in_body);
        let read = match header {
            Some((key, value)) => reader.header(key, value),
            None => {
                in_body = true;
                reader.body(line)
            }
        };
        read.map_err(|why| format!("line {}: {why}: {line:?}", number + 1))?;
    }
    reader.finish()
}

fn is_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic())
        && chars.all(|char| char.is_ascii_alphanumeric())
}

fn number(text: &str) -> Result<u64, String> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| text.parse().ok()).flatten();
    number.ok_or_else(|| format!("{text:?} is no number"))
}

impl Reader {
    fn header(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "version" => (value == "1")
                .then_some(())
                .ok_or_else(|| "version".to_owned()),
            "creator" | "cmd" => Ok(()),
            "pid" => number(value).map(drop),
            "desc" => {
                let (name, _) = value.split_once(": ").ok_or("a description of nothing")?;
                is_name(name)
                    .then_some(())
                    .ok_or_else(|| "no name".to_owned())
            }
            "positions" => (value == "line")
                .then_some(())
                .ok_or_else(|| "positions".to_owned()),
            "events" => {
                let names: Vec<&str> = value.split(' ').collect();
                let twice = (1..names.len()).any(|at| names[..at].contains(&names[at]));
                if twice || names.iter().any(|name| !is_name(name)) {
                    return Err("an event without a name of its own".to_owned());
                }
                self.events = names.len();
                Ok(())
            }
            "summary" => {
                self.summary = Some(self.costs(value)?);
                Ok(())
            }
            _ => Err("an unknown header".to_owned()),
        }
    }

    fn body(&mut self, line: &str) -> Result<(), String> {
        if self.events == 0 {
            return Err("no events yet".to_owned());
        }
        if line.starts_with(|first: char| first.is_ascii_digit()) {
            return self.cost_line(line);
        }
        if self.call.is_some() {
            return Err("a call without costs".to_owned());
        }
        if let Some(totals) = line.strip_prefix("totals: ") {
            self.totals = Some(self.costs(totals)?);
            return Ok(());
        }
        let (key, value) = line.split_once('=').ok_or("neither a name nor costs")?;
        match key {
            "ob" => self.object = self.name("ob", value)?,
            "fl" | "fi" | "fe" => {
                self.file = self.name("fl", value)?;
                if key == "fl" {
                    self.function = None;
                } else if self.function.is_none() {
                    return Err("a part of no function".to_owned());
                }
            }
            "fn" => {
                let name = self.name("fn", value)?;
                let function = (self.object.clone(), name);
                let known = self.functions.entry(function.clone()).or_default();
                known.file = self.file.clone();
                self.function = Some(function);
            }
            "cob" => self.called_object = Some(self.name("ob", value)?),
            "cfi" | "cfl" => drop(self.name("fl", value)?),
            "cfn" => self.called = Some(self.name("fn", value)?),
            "calls" => {
                let (count, position) = value.split_once(' ').ok_or("calls to nowhere")?;
                number(position)?;
                if number(count)? == 0 {
                    return Err("no call".to_owned());
                }
                let object = self.called_object.take().unwrap_or(self.object.clone());
                self.call = Some((object, self.called.take().ok_or("calls of nothing")?));
            }
            _ => return Err("an unknown key".to_owned()),
        }
        Ok(())
    }

    /// `(1) name` the first time, `(1)` from then on.
    fn name(&mut self, kind: &'static str, value: &str) -> Result<String, String> {
        let rest = value
            .strip_prefix('(')
            .and_then(|rest| rest.split_once(')'));
        let (digits, name) = rest.ok_or("no number")?;
        let key = (kind, number(digits)?);
        match (self.names.get(&key), name.strip_prefix(' ')) {
            (None, Some(name)) if !name.is_empty() => {
                self.names.insert(key, name.to_owned());
                Ok(name.to_owned())
            }
            (Some(known), None) if name.is_empty() => Ok(known.clone()),
            (None, _) => Err("a number that has no name yet".to_owned()),
            (Some(_), _) => Err("a second name".to_owned()),
        }
    }

    fn costs(&self, text: &str) -> Result<Vec<u64>, String> {
        let costs: Vec<u64> = text.split(' ').map(number).collect::<Result<_, _>>()?;
        let right = costs.len() == self.events;
        right
            .then_some(costs)
            .ok_or_else(|| format!("not {} costs", self.events))
    }

    fn cost_line(&mut self, line: &str) -> Result<(), String> {
        let (position, costs) = line.split_once(' ').ok_or("no costs")?;
        number(position)?;
        let costs = self.costs(costs)?;
        let function = self.function.clone().ok_or("costs of nothing")?;
        let own = self.functions.entry(function).or_default();
        match self.call.take() {
            None => add(&mut own.own, &costs),
            Some(callee) => {
                add(&mut own.calls, &costs);
                add(
                    &mut self.functions.entry(callee).or_default().called,
                    &costs,
                );
            }
        }
        Ok(())
    }

    /// What a function costs with all that it calls is what it costs its callers; for those that were analysed,
    /// no less. All own costs are the summary.
    fn finish(self) -> Result<Functions, String> {
        if self.call.is_some() {
            return Err("ends in a call".to_owned());
        }
        let summary = self.summary.ok_or("no summary")?;
        if self.totals.is_some_and(|totals| totals != summary) {
            return Err("the totals are not the summary".to_owned());
        }
        let (mut own, mut roots) = (vec![0; self.events], vec![0; self.events]);
        for (name, function) in &self.functions {
            let cost = |costs: &[u64], event| costs.get(event).copied().unwrap_or(0);
            for event in 0..self.events {
                let inside = cost(&function.own, event) + cost(&function.calls, event);
                let called = cost(&function.called, event);
                own[event] += cost(&function.own, event);
                roots[event] += inside
                    .checked_sub(called)
                    .ok_or_else(|| format!("{name:?} costs {inside}, its callers {called}"))?;
            }
            if function.file.is_empty() {
                return Err(format!("{name:?} is called and has no costs"));
            }
        }
        if own != summary || roots != summary {
            return Err(format!("{own:?} and {roots:?} are not {summary:?}"));
        }
        // The first event is the sum of the others, and each of them has its f0.
        let others: u64 = summary[1..].iter().sum();
        (others == summary[0])
            .then_some(self.functions)
            .ok_or_else(|| "the first event".to_owned())
    }
}

fn add(sum: &mut Vec<u64>, costs: &[u64]) {
    sum.resize(costs.len(), 0);
    for (sum, cost) in sum.iter_mut().zip(costs) {
        *sum += cost;
    }
}
