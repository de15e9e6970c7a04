//! From what the person typed to functions: names, patterns, everything of a library, everything that a
//! function calls.

use std::collections::BTreeSet;

use darc_disasm::{Operand, SiteKind, Target};
use darc_process::modules::{CodeRef, ModuleId};
use darc_process::plt::{Destination, exported};
use darc_process::{Process, entry_points, return_address};
use darc_symbols::{FunctionKind, Image, LookupError, NameSpec, escape};
use darc_tracer::addr::TargetAddr;
use darc_tracer::engine::Engine as _;
use darc_tracer::engine::jump::Profiler;

/// More functions than this are not profiled at once: their probes would need some tens of megabytes.
pub const MOST_FUNCTIONS: usize = 4000;

/// What the person chose.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// The functions of a name, or that fit a pattern.
    Named(NameSpec),
    /// Everything that the functions of a name call.
    CalleesOf(NameSpec),
    /// All functions of the program itself.
    Program,
}

/// Where what is wanted may be.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Scope {
    /// In the program itself: what is found is all there will be.
    #[default]
    Program,
    /// In libraries too, of which more may be loaded.
    Libraries,
}

/// The functions that were found.
#[derive(Default, Debug)]
pub struct Found {
    /// To be probed.
    pub functions: BTreeSet<CodeRef>,
    /// Fits, but must be left alone.
    pub refused: Vec<(CodeRef, String)>,
    /// What names no function, at least not now.
    pub missing: Vec<LookupError>,
    /// What the person should know.
    pub notes: Vec<String>,
    /// Where more may be.
    pub scope: Scope,
}

/// Where functions are looked for.
pub struct Source<'a>(pub &'a Process<'a, Profiler>);

impl Source<'_> {
    /// Finds all that is wanted.
    pub fn find(&self, wanted: &[Wanted]) -> Found {
        let mut found = Found::default();
        for wanted in wanted {
            match wanted {
                Wanted::Named(spec) => match self.named(spec) {
                    Ok(places) => {
                        let program = self.0.modules().loaded().first().copied();
                        if places.iter().any(|place| Some(place.module) != program) {
                            found.scope = Scope::Libraries;
                        }
                        self.add(places, &mut found);
                    }
                    Err(error) => {
                        found.scope = Scope::Libraries;
                        found.missing.push(error);
                    }
                },
                Wanted::CalleesOf(spec) => {
                    found.scope = Scope::Libraries;
                    match self.named(spec) {
                        Ok(callers) => self.callees(spec, &callers, &mut found),
                        Err(error) => found.missing.push(error),
                    }
                }
                Wanted::Program => {
                    let all = NameSpec::Name {
                        module: None,
                        name: "*".to_owned(),
                    };
                    let program = self.0.modules().loaded().into_iter().take(1);
                    let places: Vec<_> = program.flat_map(|id| self.in_module(id, &all)).collect();
                    if places.is_empty() {
                        let note = "the program itself names no functions, it may be stripped";
                        found.notes.push(note.to_owned());
                    }
                    self.add(places, &mut found);
                }
            }
        }
        found
    }

    fn add(&self, places: Vec<CodeRef>, found: &mut Found) {
        for place in places {
            let modules = self.0.modules();
            let reason = entry_points::takes_a_probe(modules, place)
                .err()
                .or_else(|| Some(return_address::is_used(modules, place)?.why));
            match reason {
                Some(reason) => found.refused.push((place, reason)),
                None => drop(found.functions.insert(place)),
            }
        }
    }

    fn in_module(&self, id: ModuleId, spec: &NameSpec) -> Vec<CodeRef> {
        let Some(image) = &self.0.modules().get(id).image else {
            return Vec::new();
        };
        let start = image.entry();
        let matches = image.find(spec).into_iter();
        matches
            .filter(|found| found.function.kind == FunctionKind::Code)
            .map(|found| found.function.addr)
            // Where the kernel enters the program: no call leads there.
            .filter(|&addr| addr != start)
            .map(|addr| CodeRef { module: id, addr })
            .collect()
    }

    /// All functions of a name: the program's own before those of libraries, unless a library is named.
    fn named(&self, spec: &NameSpec) -> Result<Vec<CodeRef>, LookupError> {
        if let NameSpec::Address(addr) = spec {
            return Ok(vec![self.0.modules().entry(*addr)?]);
        }
        let loaded = self.0.modules().loaded();
        let own = loaded.iter().take(1).copied();
        let own: Vec<CodeRef> = own.flat_map(|id| self.in_module(id, spec)).collect();
        if !own.is_empty() {
            return Ok(own);
        }
        let mut best = None;
        let mut places: Vec<CodeRef> = Vec::new();
        for &id in &loaded {
            let Some(image) = &self.0.modules().get(id).image else {
                continue;
            };
            let Some(rank) = image.find(spec).into_iter().map(|found| found.rank).min() else {
                continue;
            };
            let here = self.in_module(id, spec);
            match best {
                Some(known) if known < rank => {}
                Some(known) if known == rank => places.extend(here),
                _ => (best, places) = (Some(rank), here),
            }
        }
        if !places.is_empty() {
            return Ok(places);
        }
        let images: Vec<&Image> = loaded
            .iter()
            .filter_map(|&id| self.0.modules().get(id).image.as_ref())
            .collect();
        match darc_symbols::resolve(spec, &images) {
            Err(error) => Err(error),
            // Found after all, though it cannot be measured: a resolver of an ifunc, or the entry point.
            Ok(_) => Ok(Vec::new()),
        }
    }

    fn callees(&self, spec: &NameSpec, callers: &[CodeRef], found: &mut Found) {
        let (mut by_pointer, mut known) = (0, 0);
        for &caller in callers {
            let Some(entry) = self.0.modules().locate(caller) else {
                continue;
            };
            match self.0.scan(entry) {
                Ok(scanned) => {
                    let mut places = Vec::new();
                    for site in &scanned.sites {
                        match self.callee(&site.kind) {
                            Callee::Function(place) => places.push(place),
                            Callee::Unknown => by_pointer += 1,
                            Callee::Kernel => {}
                        }
                    }
                    known += places.len();
                    // What it calls at several sites is one function; itself it is not asked about.
                    self.add(places, found);
                }
                Err(reason) => found.refused.push((caller, reason)),
            }
        }
        let name = match spec {
            NameSpec::Name { name, .. } => escape(name),
            _ => "the function".to_owned(),
        };
        if by_pointer > 0 {
            found.notes.push(format!(
                "{by_pointer} calls in {name} go through pointers: what they reach is not known before they run, and not among the profiles"
            ));
        } else if known == 0 {
            found.notes.push(format!("{name} calls no function"));
        }
    }

    /// What a site calls, as far as that is known before it runs.
    pub fn callee(&self, kind: &SiteKind) -> Callee {
        let target = match kind {
            SiteKind::Call(target) | SiteKind::TailJump { target, .. } => target,
            SiteKind::Syscall { .. } => return Callee::Kernel,
        };
        let place = match *target {
            Target::Direct(to) => self.direct(TargetAddr(to)),
            Target::Indirect(operand) => self.through_slot(operand),
        };
        place.map_or(Callee::Unknown, Callee::Function)
    }

    fn direct(&self, addr: TargetAddr) -> Option<CodeRef> {
        let place = self.0.modules().place(addr)?;
        let image = self.0.modules().get(place.module).image.as_ref();
        let Some(imported) = image.and_then(|image| image.plt_name(place.addr)) else {
            return Some(place);
        };
        match self.0.destination(place) {
            Ok(Destination::Known(behind)) if behind != addr => self.0.modules().place(behind),
            Ok(Destination::Expected(behind)) => self.0.modules().place(behind),
            _ => self.exported(&imported),
        }
    }

    /// A call through a slot of the global offset table, at a fixed address.
    fn through_slot(&self, operand: Operand) -> Option<CodeRef> {
        let Operand::Memory(memory) = operand else {
            return None;
        };
        if memory.base.is_some() || memory.index.is_some() {
            return None;
        }
        let slot = TargetAddr(memory.displacement as u64);
        // The table is no code, but lies in the same file.
        let imported = self.0.modules().loaded().into_iter().find_map(|id| {
            let image = self.0.modules().get(id).image.as_ref()?;
            let start = self.0.modules().locate(CodeRef {
                module: id,
                addr: image.entry(),
            })?;
            let offset = slot.0.wrapping_sub(start.0);
            image.got_name(darc_symbols::FileAddr(image.entry().0.wrapping_add(offset)))
        });
        let bound = self
            .0
            .engine()
            .memory()
            .read_word(slot)
            .ok()
            .map(TargetAddr);
        let bound = bound.and_then(|target| self.0.modules().place(target));
        bound
            .filter(|_| imported.is_some())
            .or_else(|| self.exported(&imported?))
    }

    /// The library function of exactly this name.
    fn exported(&self, name: &str) -> Option<CodeRef> {
        exported(self.0.modules(), name).next()
    }
}

/// What a site calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Callee {
    /// A function.
    Function(CodeRef),
    /// A system call.
    Kernel,
    /// Whatever a pointer holds.
    Unknown,
}
