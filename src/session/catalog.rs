//! What the analysis' ids stand for, and their names for people.

use std::collections::HashMap;

use darc_analysis::off_cpu::OtherId;
use darc_analysis::{Absence, Callee, CalleeId, Fnode, FnodeId, SiteId};
use darc_disasm::{SiteKind, Target};
use darc_process::modules::{CodeRef, Modules};
use darc_report::assemble::{self, Names, Other, Site};
use darc_report::model::{Function, InlinedEntry, InlinedFrame, OtherProcess};
use darc_report::place::Place;
use darc_symbols::Frame;

/// What is known at plan time about the callee of a site.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// One callee, named by the instruction.
    One,
    /// Whatever the instruction's operand holds when it runs.
    Any,
}

impl Reach {
    /// How much a site tells about its callee.
    #[must_use]
    pub fn of(kind: &SiteKind) -> Reach {
        match kind {
            SiteKind::Call(Target::Direct(_))
            | SiteKind::TailJump {
                target: Target::Direct(_),
                ..
            }
            | SiteKind::Syscall { number: Some(_) } => Reach::One,
            _ => Reach::Any,
        }
    }
}

/// The numbering of call sites and callees; the numbers outlive a process.
#[derive(Debug, Default)]
pub struct Catalog {
    sites: Vec<(CodeRef, Reach)>,
    site_ids: HashMap<CodeRef, SiteId>,
    callees: Vec<CodeRef>,
    callee_ids: HashMap<CodeRef, CalleeId>,
    others: Vec<Another>,
    other_ids: HashMap<Another, OtherId>,
    absences: HashMap<Absence, String>,
    /// The function that handles each signal; none where there are several.
    handlers: HashMap<u32, Option<u64>>,
}

/// Who ran instead, or woke a thread.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct Another {
    /// The thread's or the interrupt's name.
    pub name: String,
    /// The thread; none for an interrupt.
    pub tid: Option<i32>,
    /// The process that it is of, where that is another one.
    pub process: Option<OtherProcess>,
    /// The functions on its stack, the innermost first.
    pub stack: Vec<CodeRef>,
}

/// Others that are kept, each with its stack; later ones share what has the same name.
const MOST_OTHERS: usize = 2000;

impl Catalog {
    /// The id of a call site. What an earlier run's file says of a site is replaced by what its code says.
    pub fn site(&mut self, at: CodeRef, reach: Reach) -> SiteId {
        if let Some(&known) = self.site_ids.get(&at) {
            self.sites[known.0 as usize].1 = reach;
        }
        *self.site_ids.entry(at).or_insert_with(|| {
            self.sites.push((at, reach));
            SiteId(self.sites.len() as u32 - 1)
        })
    }

    /// The id of a call site that has one.
    #[must_use]
    pub fn known_site(&self, at: CodeRef) -> Option<SiteId> {
        self.site_ids.get(&at).copied()
    }

    /// The id of a called function.
    pub fn callee(&mut self, at: CodeRef) -> CalleeId {
        *self.callee_ids.entry(at).or_insert_with(|| {
            self.callees.push(at);
            CalleeId(self.callees.len() as u32 - 1)
        })
    }

    /// The id of another thread, or of an interrupt.
    pub fn other(&mut self, other: Another) -> OtherId {
        if let Some(&known) = self.other_ids.get(&other) {
            return known;
        }
        let other = match self.others.len() {
            0..MOST_OTHERS => other,
            // Stacks are forgotten first, then names.
            len => Another {
                name: match len < 2 * MOST_OTHERS {
                    true => other.name,
                    false => "others".to_owned(),
                },
                ..Another::default()
            },
        };
        *self.other_ids.entry(other.clone()).or_insert_with(|| {
            self.others.push(other);
            OtherId(self.others.len() as u32 - 1)
        })
    }

    /// Remembers what time away is called; the first name stays.
    pub fn name_absence(&mut self, absence: Absence, name: impl FnOnce() -> String) {
        self.absences.entry(absence).or_insert_with(name);
    }

    /// Remembers what the handler of a signal is called: by its function until the signal has another one.
    pub fn name_handler(
        &mut self,
        signal: u32,
        function: u64,
        one: impl FnOnce() -> String,
        several: impl FnOnce() -> String,
    ) {
        let key = Absence::Signal(signal);
        let (name, only) = match self.handlers.get(&signal) {
            None => {
                let name = one();
                match self.absences.get(&key) {
                    // As the results that are gone on with call it.
                    Some(stored) if *stored != name => (several(), None),
                    _ => (name, Some(function)),
                }
            }
            Some(Some(known)) if *known != function => (several(), None),
            Some(_) => return,
        };
        self.handlers.insert(signal, only);
        self.absences.insert(key, name);
    }

    /// Where a site is, and what it may call.
    #[must_use]
    pub fn site_at(&self, site: SiteId) -> (CodeRef, Reach) {
        self.sites[site.0 as usize]
    }

    /// Where a callee is.
    #[must_use]
    pub fn callee_at(&self, callee: CalleeId) -> CodeRef {
        self.callees[callee.0 as usize]
    }
}

/// The inlined functions among the frames of an address, the innermost first: each stands where the next frame is. The
/// last frame is the function itself.
#[must_use]
pub fn inlined(frames: &[Frame]) -> Vec<InlinedFrame> {
    let pairs = frames.iter().zip(frames.iter().skip(1));
    pairs
        .map(|(frame, caller)| InlinedFrame {
            name: frame.function.clone(),
            file: caller.file.clone(),
            line: caller.line,
        })
        .collect()
}

/// Names for a report.
#[derive(Clone, Copy, Debug)]
pub struct Naming<'a> {
    /// The numbering.
    pub catalog: &'a Catalog,
    /// The files.
    pub modules: &'a Modules,
    /// f0.
    pub f0: Option<CodeRef>,
}

impl Naming<'_> {
    /// A place as the report writes it.
    #[must_use]
    pub fn place(&self, at: CodeRef) -> Place {
        Place {
            module: self.modules.get(at.module).path.clone(),
            offset: at.addr.0,
        }
    }

    /// What was inlined into the function that an fnode stands for; nothing where that is not known.
    #[must_use]
    pub fn inlined_in(&self, fnode: &Fnode) -> Option<InlinedEntry> {
        let at = match fnode.callee {
            _ if fnode.id == FnodeId::ROOT => self.f0?,
            Callee::Function(callee) => self.catalog.callee_at(callee),
            _ => return None,
        };
        let image = self.modules.get(at.module).image.as_ref()?;
        let names = image.inlined_in(at.addr)?;
        Some(InlinedEntry {
            functions: names.len() as u64,
            names,
        })
    }

    /// A function by its entry.
    #[must_use]
    pub fn function_at(&self, at: CodeRef) -> Function {
        let module = self.modules.get(at.module);
        let image = module.image.as_ref();
        let lines = image.map(|image| image.frames(at.addr)).unwrap_or_default();
        let outermost = lines.last();
        Function {
            name: self.modules.name(at),
            module: module.path.clone(),
            offset: at.addr.0,
            file: outermost.and_then(|frame| frame.file.clone()),
            line: outermost.and_then(|frame| frame.line),
        }
    }
}

impl Names for Naming<'_> {
    fn f0(&self) -> Function {
        self.f0.map(|f0| self.function_at(f0)).unwrap_or_default()
    }

    fn function(&self, callee: CalleeId) -> Function {
        self.function_at(self.catalog.callee_at(callee))
    }

    fn site(&self, site: SiteId) -> Site {
        let (at, _) = self.catalog.site_at(site);
        let image = self.modules.get(at.module).image.as_ref();
        let frames = image.map(|image| image.frames(at.addr)).unwrap_or_default();
        let innermost = frames.first().cloned();
        Site {
            place: self.place(at),
            file: innermost.as_ref().and_then(|frame| frame.file.clone()),
            line: innermost.as_ref().and_then(|frame| frame.line),
            inlined_from: inlined(&frames),
        }
    }

    fn other(&self, other: OtherId) -> Other {
        let Some(other) = self.catalog.others.get(other.0 as usize) else {
            return Other::default();
        };
        Other {
            name: other.name.clone(),
            tid: other.tid,
            process: other.process.clone(),
            doing: other
                .stack
                .iter()
                .rev()
                .map(|&at| self.modules.name(at))
                .collect(),
        }
    }

    fn absence(&self, absence: Absence) -> String {
        let known = self.catalog.absences.get(&absence).cloned();
        known.unwrap_or_else(|| assemble::absence(absence))
    }

    fn syscall(&self, number: Option<u32>) -> String {
        match number.and_then(|number| syscalls::Sysno::new(number as usize)) {
            Some(known) => known.name().to_owned(),
            None => number.map_or_else(
                || "(system call)".to_owned(),
                |number| format!("syscall_{number}"),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_with_several_handlers_has_the_name_of_none() {
        let mut catalog = Catalog::default();
        let mut name = |signal, function| {
            let one = || format!("{function:x}");
            catalog.name_handler(signal, function, one, || "several".to_owned());
            catalog.absences[&Absence::Signal(signal)].clone()
        };
        assert_eq!(name(14, 0xa), "a");
        assert_eq!(name(14, 0xa), "a");
        assert_eq!(name(15, 0xb), "b");
        assert_eq!(name(14, 0xb), "several");
        assert_eq!(name(14, 0xa), "several");
    }

    #[test]
    fn the_handlers_of_results_that_are_gone_on_with_count() {
        for (stored, name) in [("a", "a"), ("b", "several"), ("several", "several")] {
            let mut catalog = Catalog::default();
            let signal = Absence::Signal(14);
            catalog.name_absence(signal, || stored.to_owned());
            catalog.name_handler(14, 0xa, || "a".to_owned(), || "several".to_owned());
            assert_eq!(catalog.absences[&signal], name);
        }
    }
}
