//! A session that watches functions over time, chosen and changed while the program runs (KernInst, 1999,
//! sections 2 and 4): calls a second, concurrency, percentiles of the latency.
//!
//! The functions that were named are counted at their entries. To step into one means to count what it
//! calls, at its call sites, so that the same callees called from elsewhere do not matter; from the second
//! step on only calls count that are made on the path that was stepped along.

mod items;
mod sample;
mod standing;
mod steps;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use darc_record::Tsc;
use darc_symbols::{LookupError, NameSpec};
use darc_tracer::engine::jump::{Counts, Profiler};
use darc_tracer::engine::{Discard, Engine as _};
use darc_tracer::plan::{CountedCall, CountedFunction, CountedSites};

pub use items::Item;
pub use sample::{History, Sample};

use darc_process::modules::CodeRef;
use darc_process::{Ending, Event, Limits, Process, ProcessError, entry_points};

use crate::session::profiling::choice::{Source, Wanted};
use items::{Key, Level, Offset};

/// So many different functions and callees can be looked at in one session.
const SLOTS: u32 = 1024;

/// One process that is watched.
pub struct Watching<'a> {
    process: Process<'a, Profiler>,
    slots: HashMap<Key, u32>,
    /// Functions of libraries that are not loaded yet, as they were named.
    awaited: Vec<String>,
    levels: Vec<Level>,
    began: Tsc,
    /// How often libraries have come or gone.
    changes: u64,
    /// What could not be probed again after that.
    notes: Vec<String>,
}

impl<'a> Watching<'a> {
    /// Watches functions of a process.
    ///
    /// # Errors
    /// When it cannot be looked at.
    pub fn new(mut process: Process<'a, Profiler>) -> Result<Watching<'a>, ProcessError> {
        process.engine_mut().reserve(SLOTS);
        if !process.refresh()? {
            let tid = process.pid();
            return Err(darc_tracer::Error::ThreadGone { tid }.into());
        }
        Ok(Watching {
            process,
            slots: HashMap::new(),
            awaited: Vec::new(),
            levels: vec![Level {
                inside: None,
                items: Vec::new(),
            }],
            began: darc_tracer::tsc(),
            changes: 0,
            notes: Vec::new(),
        })
    }

    /// Problems with files of the program, once each.
    pub fn take_warnings(&mut self) -> Vec<String> {
        self.process.take_file_warnings()
    }

    /// The names of the functions that were stepped into, the outermost first.
    pub fn path(&self) -> impl Iterator<Item = &str> {
        let inside = self.levels.iter().filter_map(|level| level.inside.as_ref());
        inside.map(|inside| inside.name.as_str())
    }

    /// What is watched now.
    #[must_use]
    pub fn items(&self) -> &[Item] {
        self.levels.last().map_or(&[], |level| &level.items)
    }

    /// How often libraries have come or gone, and [`Watching::names`] with them.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// What could not be probed since this was asked: of libraries that have come or gone.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// All names that can be added, the program's own first.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        for (index, id) in self.process.modules().loaded().into_iter().enumerate() {
            let module = self.process.modules().get(id);
            let Some(image) = &module.image else { continue };
            let file = image.module();
            let functions = image.functions().iter();
            names.extend(functions.filter(|f| f.raw_name().is_some()).map(
                |function| match index {
                    0 => image.name_of(function),
                    _ => format!("{file}:{}", image.name_of(function)),
                },
            ));
        }
        names
    }

    /// For how long the target was stopped each time, from the first change on.
    #[must_use]
    pub fn pauses(&self) -> Vec<Duration> {
        self.process.engine().counters().pauses
    }

    /// Adds functions to those that were named. Says what was left out.
    ///
    /// # Errors
    /// When there are none of that name, or the target cannot be changed.
    pub fn add(&mut self, name: &str) -> Result<Vec<String>, ProcessError> {
        let mut notes = self.find(name)?;
        notes.extend(self.apply()?);
        Ok(notes)
    }

    /// Puts functions into the list of those that were named. A library that is not there may be loaded later.
    fn find(&mut self, name: &str) -> Result<Vec<String>, ProcessError> {
        let spec = NameSpec::parse(name).map_err(|e| ProcessError::Unsuitable(e.to_string()))?;
        let mut found = Source(&self.process).find(&[Wanted::Named(spec)]);
        match found.missing.pop() {
            Some(error @ LookupError::NoSuchModule { .. }) => {
                self.awaited.push(name.to_owned());
                return Ok(vec![format!("{error}; waiting for it to be loaded")]);
            }
            Some(error) => return Err(error.into()),
            None => {}
        }
        let mut notes: Vec<String> = found
            .refused
            .iter()
            .map(|(place, reason)| format!("{}: {reason}", self.name(*place)))
            .collect();
        for place in found.functions {
            let Some(slot) = self.slot(Key::Entry(place)) else {
                notes.push("too many functions have been watched; start again".to_owned());
                break;
            };
            let name = self.name(place);
            let items = &mut self.levels[0].items;
            if items.iter().all(|item| item.slot != slot) {
                items.push(Item {
                    name,
                    place: Some(place),
                    slot,
                    sites: Vec::new(),
                    history: History::default(),
                });
            }
        }
        Ok(notes)
    }

    /// Puts the items in which most time was spent last first.
    pub fn sort(&mut self) {
        let inside = |item: &Item| {
            let last = item.history.samples.back();
            last.map_or(0.0, |sample| sample.concurrency)
        };
        if let Some(level) = self.levels.last_mut() {
            level.items.sort_by(|a, b| inside(b).total_cmp(&inside(a)));
        }
    }

    /// Stops watching an item of the present level.
    ///
    /// # Errors
    /// When the target cannot be changed.
    pub fn drop_item(&mut self, index: usize) -> Result<(), ProcessError> {
        if let Some(level) = self.levels.last_mut()
            && index < level.items.len()
        {
            level.items.remove(index);
        }
        self.apply().map(drop)
    }

    fn name(&self, place: CodeRef) -> String {
        self.process.modules().name(place)
    }

    fn slot(&mut self, key: Key) -> Option<u32> {
        let next = self.slots.len() as u32;
        if next >= SLOTS && !self.slots.contains_key(&key) {
            return None;
        }
        Some(*self.slots.entry(key).or_insert(next))
    }

    /// Brings the target to what is watched. Says what could not be probed.
    fn apply(&mut self) -> Result<Vec<String>, ProcessError> {
        // Before their first call.
        self.look(|history| !history.has_begun());
        let mut plan = self.process.hooks();
        let modules = self.process.modules();
        let mut notes = Vec::new();
        for item in &self.levels[0].items {
            let Some(place) = item.place else { continue };
            let Some(entry) = modules.locate(place) else {
                continue;
            };
            let scanned = match entry_points::ends(modules, place) {
                Err(reason) => Err(reason),
                Ok(ends) => self.process.scan(entry).map(|code| (code, ends)),
            };
            match scanned {
                Ok((scanned, ends)) => plan.counted.push(CountedFunction {
                    code: Arc::clone(&scanned.code),
                    slot: item.slot,
                    ends,
                }),
                Err(reason) => notes.push(format!("{}: {reason}", item.name)),
            }
        }
        let last = self.levels.len() - 1;
        for (depth, level) in self.levels.iter().enumerate() {
            let Some(inside) = &level.inside else {
                continue;
            };
            let Some(entry) = modules.locate(inside.place) else {
                continue;
            };
            let scanned = match self.process.scan(entry) {
                Ok(scanned) => scanned,
                Err(reason) => {
                    notes.push(format!("{}: {reason}", inside.name));
                    continue;
                }
            };
            // Above the present level only the way down matters.
            let chosen = self
                .levels
                .get(depth + 1)
                .and_then(|next| next.inside.as_ref());
            let wanted = level
                .items
                .iter()
                .filter(|item| depth == last || chosen.is_some_and(|next| next.slot == item.slot));
            let slots: HashMap<Offset, u32> = wanted
                .flat_map(|item| item.sites.iter().map(|&site| (site, item.slot)))
                .collect();
            let sites = scanned.sites.iter().filter_map(|&call| {
                let slot = *slots.get(&Offset::of(call.addr, entry))?;
                Some(CountedCall { call, slot })
            });
            plan.counted_sites.push(CountedSites {
                code: Arc::clone(&scanned.code),
                parent: inside.parent,
                sites: sites.collect(),
            });
        }
        let refused = self.process.apply(&plan)?;
        for refused in refused {
            if let Some(place) = self.process.modules().place(refused.addr) {
                let name = self.name(place);
                // Hooks are refused too; they are nobody's wish.
                let ours = plan
                    .counted
                    .iter()
                    .any(|f| f.code.entry() == refused.addr.0)
                    || plan.counted_sites.iter().any(|sites| {
                        sites
                            .sites
                            .iter()
                            .any(|site| site.call.addr == refused.addr.0)
                    });
                if ours {
                    notes.push(format!("{name}: {}", refused.reason));
                }
            }
        }
        Ok(notes)
    }

    /// Watches for what the target does, for at most about `wait`. How it ended, when it did.
    ///
    /// # Errors
    /// When it can no longer be watched.
    pub fn poll(
        &mut self,
        wait: Duration,
        limits: Limits<'_>,
    ) -> Result<Option<Ending>, ProcessError> {
        let event = (self.process).poll(limits, |engine, _| engine.poll(wait, &mut Discard))?;
        match event {
            Event::Ended(ending) => return Ok(Some(ending)),
            Event::CodeChanged => self.look_at_libraries()?,
            Event::Nothing => {}
        }
        Ok(None)
    }

    /// Code came or went: watches the same functions as before, and those that were waited for.
    fn look_at_libraries(&mut self) -> Result<(), ProcessError> {
        self.changes += 1;
        for name in std::mem::take(&mut self.awaited) {
            // A library without such a function is no reason to stop watching the others.
            match self.find(&name) {
                Ok(_) if self.awaited.contains(&name) => {}
                Ok(notes) => self.notes.extend(notes),
                Err(error) => self.notes.push(error.to_string()),
            }
        }
        let refused = self.apply()?;
        for note in refused {
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
        Ok(())
    }

    /// Takes a sample of every item: what it did since the last one.
    pub fn sample(&mut self) {
        self.look(|_| true);
    }

    fn look(&mut self, is_wanted: impl Fn(&History) -> bool) {
        let now = darc_tracer::tsc();
        let counts: HashMap<u32, Counts> = self.process.engine().counts().into_iter().collect();
        let items = self.levels.iter_mut().flat_map(|level| &mut level.items);
        for item in items.filter(|item| is_wanted(&item.history)) {
            let none = Counts::default();
            let counts = counts.get(&item.slot).unwrap_or(&none);
            item.history.take(counts, now);
        }
    }

    /// Removes all probes and lets go.
    ///
    /// # Errors
    /// When something could not be put back.
    pub fn finish(&mut self) -> Result<(), ProcessError> {
        self.process.finish(Ok(Ending::Finished)).map(drop)
    }
}
