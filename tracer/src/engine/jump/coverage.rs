//! Which call sites of a program can be measured. Pure: stubs and jumps are made, and thrown away.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use darc_disasm::{CallSite, FunctionCode, Memory, SkippedSite};

use crate::ground::Ground;
use crate::plan::{Callees, Goroutines};

use super::asm::Surroundings;
use super::function::{Function, Hiding, Landings, Part, goroutines};
use super::installed::ARENA_BYTES;
use super::jumps::{Diversion, Jumps, NO_PAGE};
use super::prepare::Reason;
use super::runtime::{self, Runtime};
use super::spans::NoRoom;
use super::stubs::{self, Callee, Item, Kind};
use super::tree::Tree;

/// Of the call sites of one function.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Judged {
    /// The sites, each with the reason why it cannot be measured, if there is one.
    pub sites: Vec<(CallSite, Option<Reason>)>,
    /// What looks like a call but is not understood.
    pub skipped: Vec<SkippedSite>,
}

/// Judges functions, each as if it alone were instrumented.
#[derive(Debug)]
pub struct Coverage {
    ground: Ground,
    around: Surroundings,
    /// What is known of the functions of a program of goroutines.
    callees: Arc<Callees>,
    /// The routines of the arenas by the arenas' addresses.
    runtimes: BTreeMap<u64, Runtime>,
}

/// As of a process in which the engine is installed.
const SURROUNDINGS: Surroundings = Surroundings {
    pid: 1,
    control: 0x7000_0000_0000,
    rings: 0x7100_0000_0000,
    ring_bytes: 1 << 20,
    inside: 0,
    outside: 0,
    inside_f0: 0,
    counted: (0, 0),
    delays: None,
    tid_offset: None,
    tells_pointer: true,
    goroutines: None,
    field: None,
};

impl Coverage {
    /// For code in a process where there is this room for more.
    #[must_use]
    pub fn new(ground: Ground) -> Coverage {
        Coverage {
            ground,
            around: SURROUNDINGS,
            callees: Arc::default(),
            runtimes: BTreeMap::new(),
        }
    }

    /// As [`Coverage::new`], in a program of goroutines of whose functions this is known.
    #[must_use]
    pub fn of_goroutines(ground: Ground, known: Goroutines, callees: Arc<Callees>) -> Coverage {
        let around = Surroundings {
            goroutines: Some(known),
            ..SURROUNDINGS
        };
        Coverage {
            around,
            callees,
            ..Coverage::new(ground)
        }
    }

    /// Judges the call sites of a function. `memory` has its code, jump tables, and what is behind it.
    pub fn judge(&mut self, code: &Arc<FunctionCode>, memory: &dyn Memory) -> Judged {
        let landings = match self.around.goroutines {
            Some(known) => Landings::OfGoroutines {
                is_compiled: self.callees.compiled.binary_search(&code.entry()).is_ok(),
                kept: known.kept,
            },
            // A call is measured with and without a landing.
            None => Landings::Left,
        };
        let mut function = Function::new(Arc::clone(code), Part::Callee, landings, memory);
        let mut groups: HashMap<u64, std::result::Result<(), Reason>> = HashMap::new();
        let mut wanted = BTreeMap::new();
        let mut tree = Tree::new(SURROUNDINGS.control);
        let sites = function.sites().sites.clone();
        let of_site = |site| {
            if self.around.goroutines.is_some() {
                let is_checked = |to| {
                    let mut bytes = [0; goroutines::CHECK];
                    memory.read(to, &mut bytes) && goroutines::is_checked(&bytes, to)
                };
                function.ordinary(&site, &self.callees, is_checked)?;
            }
            function.groups_of_site(&site, Hiding::Allowed)
        };
        let groups_of = sites.iter().copied().map(of_site).collect::<Vec<_>>();
        let found: Vec<_> = sites.into_iter().zip(groups_of).collect();
        for &at in found
            .iter()
            .flat_map(|(_, of_site)| of_site.iter().flatten())
        {
            groups.entry(at).or_insert_with(|| {
                let diversion = self.diversion(&function, at, &mut tree)?;
                wanted.insert(at, diversion);
                Ok(())
            });
        }
        let mut jumps = Jumps::default();
        jumps.pages.set_ground(self.ground.clone());
        for at in jumps.place(&wanted, memory).refused {
            groups.insert(at, Err(NO_PAGE.to_owned()));
        }
        let reason = |of_site: std::result::Result<Vec<u64>, Reason>| match of_site {
            Err(reason) => Some(reason),
            Ok(of_site) => of_site.iter().find_map(|at| groups[at].clone().err()),
        };
        Judged {
            sites: found
                .into_iter()
                .map(|(site, of_site)| (site, reason(of_site)))
                .collect(),
            skipped: function.sites().skipped.clone(),
        }
    }

    /// The diversion of the group at an address, to where its stub would be.
    fn diversion(
        &mut self,
        function: &Function,
        at: u64,
        tree: &mut Tree,
    ) -> std::result::Result<Diversion, Reason> {
        let no_memory = || "there is no memory left near it for the probe's code".to_owned();
        let none = || NoRoom::NoInstruction.to_string();
        let (region, _) = function.region(at, tree).ok_or_else(none)?;
        let original = function.bytes(at).ok_or_else(none)?;
        let arena = self
            .ground
            .gap_near(at, ARENA_BYTES)
            .ok_or_else(no_memory)?;
        let immovable = |error| format!("its instructions cannot be moved: {error}");
        let runtime = match self.runtimes.entry(arena) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(vacant) => {
                let (_, runtime) = runtime::emit(arena, &self.around).map_err(immovable)?;
                vacant.insert(runtime)
            }
        };
        let mut to = arena + ARENA_BYTES / 2;
        // Of a direct call nothing is moved.
        let only = |item: &Item| matches!(item, Item::Site(site) if matches!(site.kind, Kind::Call(Callee::Direct(_))));
        if !region.items.iter().all(only) {
            let stub = stubs::region(to, &region, &self.around, runtime).map_err(immovable)?;
            to = stub.entry;
        }
        Ok(Diversion {
            at,
            original,
            before: Vec::new(),
            to,
            arrival: region.arrival,
            moved: Vec::new(),
            next: region.next,
            landings: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use darc_disasm::{CodePart, SiteKind};

    use crate::maps;

    use super::*;

    const AT: u64 = 0x5555_5555_4000;

    /// One page of text, with a function at its beginning.
    struct Page(Vec<u8>);

    impl Memory for Page {
        fn read(&self, addr: u64, buffer: &mut [u8]) -> bool {
            let from = addr.wrapping_sub(AT) as usize;
            let found = self.0.get(from..from.saturating_add(buffer.len()));
            found.is_some_and(|found| {
                buffer.copy_from_slice(found);
                true
            })
        }
    }

    fn judged(bytes: &[u8]) -> Judged {
        judged_by(Coverage::new, bytes)
    }

    fn judged_by(rules: impl Fn(Ground) -> Coverage, bytes: &[u8]) -> Judged {
        let mut page = bytes.to_vec();
        page.resize(4096, 0x90);
        let part = CodePart {
            start: AT,
            bytes: bytes.to_vec(),
        };
        let code = Arc::new(FunctionCode::new(vec![part]).unwrap());
        let maps = b"555555554000-555555555000 r-xp 00000000 08:01 1 /bin/program\n";
        let ground = Ground::new(&maps::parse(maps), 8 << 20, None, 1000);
        rules(ground).judge(&code, &Page(page))
    }

    #[test]
    fn each_call_is_judged_with_its_reason() {
        // call ahead; call *%rax; mov $56,%eax (clone); syscall; loop out of the function; jmp *(%rdi)
        let judged = judged(&[
            0xe8, 0, 1, 0, 0, 0xff, 0xd0, 0xb8, 56, 0, 0, 0, 0x0f, 0x05, 0xe2, 0x70, 0xff, 0x27,
        ]);
        let reasons: Vec<Option<&str>> = judged
            .sites
            .iter()
            .map(|(_, reason)| reason.as_deref())
            .collect();
        let clone = "clone does not return like other system calls";
        assert_eq!(reasons, [None, None, Some(clone), None]);
        assert!(matches!(judged.sites[3].0.kind, SiteKind::TailJump { .. }));
        assert_eq!(judged.skipped.len(), 1);
    }

    #[test]
    fn what_is_jumped_into_is_none_that_can_be_measured() {
        // je between the bytes of the call; call ahead; ret
        let judged = judged(&[0x74, 0x01, 0xe8, 0, 1, 0, 0, 0xc3]);
        let [(_, reason)] = &judged.sites[..] else {
            panic!("{judged:?}");
        };
        assert_eq!(*reason, Some(NoRoom::Split.to_string()));
    }

    #[test]
    fn in_a_program_of_goroutines_its_rules_hold() {
        // call ahead, twice, each before a mov 8(%rsp),%rax; call ahead; ret
        let mov = [0x48, 0x8b, 0x44, 0x24, 0x08];
        let bytes = [
            &[0xe8, 0, 1, 0, 0][..],
            &mov,
            &[0xe8, 0, 1, 0, 0],
            &mov,
            &[0xe8, 0xf1, 0, 0, 0, 0xc3],
        ];
        let bytes = bytes.concat();
        let callees = Arc::new(Callees {
            compiled: vec![AT, AT + 0x105, AT + 0x10a],
            ..Callees::default()
        });
        let known = Goroutines {
            number: 152,
            current: 192,
            kept: -8,
            calls_c: false,
        };
        let of_goroutines = |ground| Coverage::of_goroutines(ground, known, Arc::clone(&callees));
        let reasons = |judged: Judged| {
            let sites = judged.sites.into_iter();
            sites.map(|(_, reason)| reason).collect::<Vec<_>>()
        };
        assert_eq!(reasons(judged(&bytes)), [None, None, None]);
        let [known, own, no_room] = &reasons(judged_by(of_goroutines, &bytes))[..] else {
            panic!("three");
        };
        assert_eq!(*known, None);
        assert!(
            own.as_ref()
                .is_some_and(|it| it.contains("a calling convention of its own"))
        );
        assert!(
            no_room
                .as_ref()
                .is_some_and(|it| it.contains("there is no room"))
        );
    }
}
