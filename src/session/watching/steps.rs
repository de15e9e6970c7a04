//! From a function to what it calls, and back.

use darc_process::{ProcessError, return_address};

use crate::session::profiling::choice::{Callee, Source};
use crate::session::watching::items::{Inside, Item, Key, Level, Offset};
use crate::session::watching::{History, Watching};

impl Watching<'_> {
    /// Watches what an item calls. Says what was left out.
    ///
    /// # Errors
    /// Why that is not possible.
    pub fn step_into(&mut self, index: usize) -> Result<Vec<String>, ProcessError> {
        let unsuitable = |why: &str| ProcessError::Unsuitable(why.to_owned());
        let item = self
            .items()
            .get(index)
            .ok_or_else(|| unsuitable("nothing is chosen"))?;
        let place = item.place.ok_or_else(|| {
            unsuitable("a call through a pointer: which function it reaches is not known")
        })?;
        let (name, slot) = (item.name.clone(), item.slot);
        let inside = self.levels.iter().filter_map(|level| level.inside.as_ref());
        if inside.clone().any(|inside| inside.place == place) {
            return Err(unsuitable("the path leads through this function already"));
        }
        // Any call of a function that was named; below, only calls along the path.
        let parent = (self.levels.len() > 1).then_some(slot);
        let entry = self
            .process
            .modules()
            .locate(place)
            .ok_or_else(|| unsuitable("its library is not loaded any more"))?;
        let scanned = self.process.scan(entry);
        let scanned = scanned.map_err(ProcessError::Unsuitable)?;
        let mut items: Vec<Item> = Vec::new();
        let mut elsewhere = 0;
        for site in &scanned.sites {
            let offset = Offset::of(site.addr, entry);
            let callee = Source(&self.process).callee(&site.kind);
            let (key, callee) = match (site.is_call(), callee) {
                (true, Callee::Function(callee)) => {
                    (Key::Callee(place, parent, callee), Some(callee))
                }
                (true, Callee::Unknown) => (Key::Site(place, parent, offset), None),
                _ => {
                    elsewhere += 1;
                    continue;
                }
            };
            let name = match callee {
                Some(callee) => self.name(callee),
                None => format!("*pointer at {offset}"),
            };
            if return_address::is_used_at(self.process.modules(), site).is_some() {
                elsewhere += 1;
                continue;
            }
            let Some(slot) = self.slot(key) else {
                return Err(unsuitable(
                    "too many functions have been watched; start again",
                ));
            };
            match items.iter_mut().find(|item| item.slot == slot) {
                Some(item) => item.sites.push(offset),
                None => items.push(Item {
                    name,
                    place: callee,
                    slot,
                    sites: vec![offset],
                    history: History::default(),
                }),
            }
        }
        if items.is_empty() {
            return Err(unsuitable("it calls nothing that can be measured"));
        }
        self.levels.push(Level {
            inside: Some(Inside {
                name,
                place,
                parent,
                slot,
            }),
            items,
        });
        let mut notes = self.apply()?;
        if elsewhere > 0 {
            notes.push(format!(
                "{elsewhere} jumps out of it and system calls are not counted"
            ));
        }
        Ok(notes)
    }

    /// Goes back to where the last step was made.
    ///
    /// # Errors
    /// When the target cannot be changed.
    pub fn step_out(&mut self) -> Result<(), ProcessError> {
        if self.levels.len() > 1 {
            self.levels.pop();
        }
        self.apply().map(drop)
    }
}
