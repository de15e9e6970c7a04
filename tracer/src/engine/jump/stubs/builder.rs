//! A stub under construction: the sequences that stubs have in common.

use iced_x86::Instruction;
use iced_x86::code_asm::*;

use crate::engine::jump::asm::{
    Code, Emitted, Surroundings, TOP, acquire, field, field32, shadow, top, tsc,
};
use crate::engine::jump::function::goroutines::is_reset;
use crate::engine::jump::layout::{block, descriptor, entry, place, targets};
use crate::engine::jump::runtime::{Runtime, credit, latency};
use crate::engine::jump::unwinding::{Anchor, Calls, rows};

use super::counted::counted_ret;
use super::entries::ret;
use super::goroutines;
use super::landing::land;
use super::later::Later;
use super::sites::{ReturnAddress, append_site};
use super::{Arrival, Item, Kind, Region, Site, Stub};

/// The labels and data of one stub under construction.
pub struct Builder<'a> {
    pub a: CodeAssembler,
    pub around: &'a Surroundings,
    pub runtime: &'a Runtime,
    moved: Vec<(u64, CodeLabel)>,
    /// The address of the text that the stub's first instruction stands for.
    from: u64,
    /// How control comes to it.
    arrival: Arrival,
    /// Where the copy of displaced code ends, and the address at which the rest goes on.
    behind: Vec<(u64, CodeLabel)>,
    /// Where the function's frame is gone: its returns, and jumps out of it.
    leaving: Vec<CodeLabel>,
    pub behind_syscalls: Vec<CodeLabel>,
    /// Places to be written behind the code: where, the place's words, the label that is hidden there.
    pub places: Vec<(CodeLabel, PlaceData, Option<CodeLabel>)>,
    /// Code behind the common case.
    pub later: Vec<Later>,
    /// What a displaced `ret` ends.
    pub ends: Ends,
}

/// What a patched `ret` may end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ends {
    /// An op of f0.
    Op,
    /// A counted call.
    CountedCall,
}

/// Where a call returns to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Returns {
    /// To where its place says, whoever calls.
    ToPlace,
    /// To the address in its slot, which each entry keeps.
    BySlot,
}

#[derive(Clone, Copy)]
pub struct PlaceData {
    pub return_to: u64,
    pub kind: u32,
    pub function: u32,
    pub local: u32,
    /// [`place::PARENT`] of counted calls at sites, [`place::DISTANCE`] of measured ones.
    pub above: u32,
}

impl<'a> Builder<'a> {
    /// A stub for a patch at `from`.
    pub fn new(from: u64, around: &'a Surroundings, runtime: &'a Runtime) -> Emitted<Builder<'a>> {
        Ok(Builder {
            from,
            arrival: Arrival::Jump,
            behind: Vec::new(),
            leaving: Vec::new(),
            a: CodeAssembler::new(64)?,
            around,
            runtime,
            moved: Vec::new(),
            behind_syscalls: Vec::new(),
            places: Vec::new(),
            later: Vec::new(),
            ends: Ends::Op,
        })
    }

    pub fn label(&mut self) -> CodeLabel {
        self.a.create_label()
    }

    /// Says how control comes to the stub.
    pub fn arrives(&mut self, arrival: Arrival) {
        self.arrival = arrival;
    }

    /// Has the stack be as it is at the function's entry.
    pub fn enters(&mut self, region: &Region) -> Emitted<()> {
        match region.arrival {
            Arrival::BehindFirst(lowered) => self.a.lea(rsp, qword_ptr(rsp + lowered)),
            Arrival::Jump | Arrival::Call => Ok(()),
        }
    }

    /// Appends the copy of what a patch displaces, and the way back to the rest, where there is one.
    pub fn region(&mut self, region: &Region) -> Emitted<()> {
        self.arrives(region.arrival);
        let mut return_address = ReturnAddress::Missing;
        if region.arrival == Arrival::Call {
            // What is displaced may push something there.
            return_address = ReturnAddress::Predicted;
            self.a.lea(rsp, qword_ptr(rsp + 8))?;
        }
        for (index, item) in region.items.iter().enumerate() {
            let mut at = self.label();
            self.a.set_label(&mut at)?;
            // The assembler takes one label an instruction, and what follows may bring its own.
            self.a.nop()?;
            self.moved.push((item.addr(), at));
            let last = index + 1 == region.items.len();
            match item {
                Item::Landing(landing) if self.around.goroutines.is_some() => {
                    let next = region.items.get(index + 1);
                    let is_reset = matches!(next, Some(Item::Plain(i)) if is_reset(i));
                    goroutines::land(self, landing, is_reset)?;
                }
                Item::Landing(landing) => land(self, landing)?,
                Item::End(instruction, depth) => {
                    goroutines::end_op(self, *instruction, *depth)?;
                }
                Item::Plain(instruction) => self.copy(*instruction)?,
                Item::Ret(instruction) => match self.ends {
                    Ends::Op => ret(self, *instruction)?,
                    Ends::CountedCall => counted_ret(self, *instruction)?,
                },
                Item::Site(site) => {
                    let after = self.label();
                    let behind = (!last).then_some(after);
                    append_site(self, site, behind, return_address)?;
                    if !last {
                        let mut after = after;
                        self.a.set_label(&mut after)?;
                        self.a.nop()?;
                    }
                }
            }
        }
        if !region.falls_through() {
            // A jump there would tell later tracers that it is come back to.
            return self.a.ud2();
        }
        let mut end = self.label();
        self.a.set_label(&mut end)?;
        self.behind.push((region.next, end));
        self.a.jmp(region.next)
    }

    /// Appends the copy of an instruction, which refers to what the original refers to.
    pub fn copy(&mut self, mut instruction: Instruction) -> Emitted<()> {
        // The encoder takes an address at which it knows an instruction for that instruction, and so a function's
        // own address for that of the copy.
        instruction.set_ip(0);
        self.a.add_instruction(instruction)
    }

    /// From here on the stack has the return address of the function on top, and no frame of it any more.
    pub fn leaves(&mut self) -> Emitted<()> {
        let mut here = self.label();
        // The instruction before may have a label already, and has one at most.
        self.a.nop()?;
        self.a.set_label(&mut here)?;
        self.leaving.push(here);
        Ok(())
    }

    /// rcx becomes the thread's block and rsi its first free entry; unknown threads go to `unknown`.
    /// Returns the label where rsi is read.
    pub fn block(&mut self, unknown: CodeLabel) -> Emitted<CodeLabel> {
        let back = self.find(self.runtime.lookup, unknown)?;
        top(&mut self.a)?;
        Ok(back)
    }

    /// As [`Builder::block`], but gives an unknown thread a block when there is one.
    fn own_block(&mut self, unknown: CodeLabel) -> Emitted<CodeLabel> {
        let back = self.find_own(unknown)?;
        top(&mut self.a)?;
        Ok(back)
    }

    /// rcx becomes the thread's block, or one that it is given. Makes for `unknown` where it has none and can get none.
    pub fn find_own(&mut self, unknown: CodeLabel) -> Emitted<CodeLabel> {
        let back = self.find(self.runtime.register, unknown)?;
        if let Some(offset) = self.around.tid_offset {
            // A new thread may have the thread pointer of one that is gone.
            let (renew, mut same) = (self.label(), self.label());
            self.a.mov(eax, dword_ptr(offset).fs())?;
            self.a.cmp(eax, field32(block::TID))?;
            self.a.jne(renew)?;
            self.a.set_label(&mut same)?;
            self.later.push(Later::Choose {
                at: renew,
                routine: self.runtime.renew,
                zero: same,
                other: unknown,
            });
        }
        Ok(back)
    }

    /// rcx becomes the thread's block, by the routine where it is not known at once. Returns the label behind that.
    pub fn find(&mut self, routine: u64, unknown: CodeLabel) -> Emitted<CodeLabel> {
        let [miss, forked, mut live, mut back] = std::array::from_fn(|_| self.label());
        acquire(&mut self.a, self.around.control, forked, &mut live, miss)?;
        self.a.set_label(&mut back)?;
        self.later.push(Later::Forked {
            at: forked,
            live,
            unknown,
        });
        self.later.push(Later::Find {
            at: miss,
            routine,
            back,
            unknown,
        });
        Ok(back)
    }

    pub fn place(&mut self, data: PlaceData) -> CodeLabel {
        let at = self.label();
        self.places.push((at, data, None));
        at
    }

    /// Here measured calls of the last place return to, instead of to the program's return address.
    pub fn returns_here(&mut self) -> Emitted<()> {
        let mut here = self.label();
        self.a.set_label(&mut here)?;
        if let Some((_, _, hidden)) = self.places.last_mut() {
            *hidden = Some(here);
        }
        Ok(())
    }

    pub fn finish(mut self, at: u64, entry: CodeLabel) -> Emitted<Stub> {
        for later in std::mem::take(&mut self.later) {
            self.later(later)?;
        }
        for (label, data, _) in &mut self.places {
            self.a.set_label(label)?;
            let words = [
                data.return_to,
                0,
                u64::from(data.kind) | u64::from(data.function) << 32,
                u64::from(data.local) | u64::from(data.above) << 32,
            ];
            self.a.dq(&words)?;
        }
        let code = Code::assemble(&mut self.a, at)?;
        let address = |label: &CodeLabel| code.address(label);
        let moved = self
            .moved
            .iter()
            .map(|(from, to)| Ok((*from, address(to)?)))
            .collect::<Emitted<Vec<_>>>()?;
        let behind_syscalls = self
            .behind_syscalls
            .iter()
            .map(address)
            .collect::<Emitted<Vec<_>>>()?;
        let hidden = self
            .places
            .iter()
            .filter_map(|(label, _, hidden)| hidden.as_ref().map(|hidden| (label, hidden)))
            .map(|(label, hidden)| Ok((address(label)? - at + place::HIDDEN, address(hidden)?)))
            .collect::<Emitted<Vec<_>>>()?;
        let entry = address(&entry)?;
        let mut anchors = vec![Anchor {
            depth: match self.arrival {
                Arrival::Jump => 0,
                Arrival::Call => -8,
                Arrival::BehindFirst(lowered) => -lowered,
            },
            ..Anchor::copy(entry, self.from)
        }];
        for (from, label) in self.moved.iter().chain(&self.behind) {
            anchors.push(Anchor::copy(address(label)?, *from));
        }
        for label in &self.leaving {
            anchors.push(Anchor::called(address(label)?));
        }
        for (_, data, hidden) in &self.places {
            let Some(hidden) = hidden else { continue };
            let at = address(hidden)?;
            anchors.push(match data.return_to {
                // It is put back on the stack where it was.
                0 => Anchor {
                    depth: 0,
                    ..Anchor::called(at)
                },
                behind => Anchor::copy(at, behind),
            });
        }
        let mut bytes = code.bytes();
        for (offset, hidden) in hidden {
            bytes[offset as usize..offset as usize + 8].copy_from_slice(&hidden.to_le_bytes());
        }
        let frames = match self.around.goroutines {
            // Their run-time has no use for it.
            Some(_) => Vec::new(),
            None => rows(&bytes, at, Calls::Jump, &anchors),
        };
        Ok(Stub {
            frames,
            bytes,
            entry,
            moved,
            behind_syscalls,
        })
    }

    /// Leaves the child's descriptor in rax, or goes to `pass`, or to `elsewhere` when the site's function is
    /// not current. rdx is the current descriptor.
    ///
    /// For callees told apart at run time `callee` is where in the frame the callee's address is.
    pub fn child(
        &mut self,
        site: &Site,
        place: CodeLabel,
        callee: Option<i32>,
        elsewhere: CodeLabel,
        pass: CodeLabel,
    ) -> Emitted<()> {
        let local = i32::try_from(site.local).unwrap_or(i32::MAX / 8) * 8;
        let a = &mut self.a;
        a.mov(rdx, field(block::CURRENT))?;
        a.cmp(
            dword_ptr(rdx + descriptor::FUNCTION as i32),
            site.function as i32,
        )?;
        a.jne(elsewhere)?;
        a.mov(rax, qword_ptr(rdx + descriptor::CHILDREN as i32))?;
        a.mov(rax, qword_ptr(rax + local))?;
        a.test(rax, rax)?;
        a.je(pass)?;
        let Some(callee) = callee else { return Ok(()) };
        // The first position of the target table is looked at here, the others by the routine.
        let (mut slow, mut known) = (a.create_label(), a.create_label());
        a.mov(rdx, qword_ptr(rsp + callee))?;
        a.push(rdi)?;
        a.mov(rdi, rdx)?;
        a.shr(rdi, 4)?;
        a.and(edi, (targets::COUNT - 1) as i32)?;
        a.shl(edi, 4)?;
        a.cmp(qword_ptr(rax + rdi + targets::SLOTS as i32), rdx)?;
        a.jne(slow)?;
        a.cmp(
            qword_ptr(rax + rdi + (targets::SLOTS + 8) as i32),
            targets::UNMEASURED as i32,
        )?;
        a.jbe(slow)?;
        a.mov(rax, qword_ptr(rax + rdi + (targets::SLOTS + 8) as i32))?;
        a.pop(rdi)?;
        a.jmp(known)?;
        a.set_label(&mut slow)?;
        a.pop(rdi)?;
        a.push(rsi)?;
        a.lea(rsi, ptr(place))?;
        a.call(self.runtime.target)?;
        a.pop(rsi)?;
        a.test(rax, rax)?;
        a.je(pass)?;
        a.set_label(&mut known)?;
        a.mov(rdx, field(block::CURRENT))
    }

    /// Puts an entry on the shadow stack: rdx the current descriptor, as in the block, rax the child's, rdi the
    /// slot. rsi is left behind the entry; rax and rdx are lost.
    ///
    /// The entry is complete before it counts, for a signal handler may come in between and look at it; and
    /// written again afterwards, for one that came earlier may have used the same room.
    pub fn enter(&mut self, place: CodeLabel, returns: Returns) -> Emitted<()> {
        let a = &mut self.a;
        a.mov(shadow(0, entry::SAVED), rdx)?;
        a.mov(shadow(0, entry::CHILD), rax)?;
        a.mov(shadow(0, entry::SLOT), rdi)?;
        if returns == Returns::BySlot {
            a.mov(rdx, qword_ptr(rdi))?;
            a.mov(shadow(0, entry::RETURN_TO), rdx)?;
        }
        a.lea(rdx, ptr(place))?;
        a.mov(shadow(0, entry::PLACE), rdx)?;
        a.lea(rsi, qword_ptr(rsi + entry::SIZE as i32))?;
        a.mov(field(block::TOP), rsi)?;
        a.mov(shadow(TOP, entry::PLACE), rdx)?;
        a.mov(shadow(TOP, entry::SLOT), rdi)?;
        a.mov(shadow(TOP, entry::CHILD), rax)?;
        a.mov(rdx, field(block::CURRENT))?;
        a.mov(shadow(TOP, entry::SAVED), rdx)?;
        a.mov(field(block::CURRENT), rax)?;
        if returns == Returns::BySlot {
            a.mov(rax, qword_ptr(rdi))?;
            a.mov(shadow(TOP, entry::RETURN_TO), rax)?;
        }
        Ok(())
    }

    /// Starts the clock of the entry before rsi.
    pub fn start(&mut self) -> Emitted<()> {
        let a = &mut self.a;
        tsc(a)?;
        a.mov(shadow(TOP, entry::START), rax)?;
        a.sub(rax, field(block::STOLEN))?;
        a.mov(shadow(TOP, entry::ADJUSTED), rax)
    }

    /// Delays the call in the entry before rsi, if that is asked for; all that a stub saves is lost. The clock has been started
    /// just before.
    pub fn delay(&mut self) -> Emitted<()> {
        let Some(how) = self.around.delays else {
            return Ok(());
        };
        let (at, mut back) = (self.label(), self.label());
        let a = &mut self.a;
        a.mov(rax, shadow(TOP, entry::CHILD))?;
        a.cmp(qword_ptr(rax + descriptor::DELAY as i32), 0)?;
        a.jne(at)?;
        a.set_label(&mut back)?;
        a.nop()?;
        self.later.push(Later::Delay { at, how, back });
        Ok(())
    }

    /// The whole way in of a measured call, up to [`Builder::start`]; the frame is saved already.
    pub fn way_in(
        &mut self,
        site: &Site,
        place: CodeLabel,
        slot: i32,
        callee: Option<i32>,
        pass: CodeLabel,
    ) -> Emitted<()> {
        let [stale, slow, mut fresh] = std::array::from_fn(|_| self.label());
        let again = match site.running {
            Some(_) => self.own_block(pass)?,
            None => self.block(pass)?,
        };
        let elsewhere = match site.running {
            Some(descriptor) => {
                let at = self.label();
                self.later.push(Later::Window {
                    at,
                    descriptor,
                    function: site.function,
                    again,
                    pass,
                });
                at
            }
            None => pass,
        };
        self.a.lea(rdi, qword_ptr(rsp + slot))?;
        self.a.cmp(rdi, shadow(TOP, entry::SLOT))?;
        let routine = match site.kind {
            // The frame that a tail call replaces has the same slot.
            Kind::Tail(..) => {
                self.a.ja(stale)?;
                self.runtime.stale_at_tail
            }
            _ => {
                self.a.jae(stale)?;
                self.runtime.stale
            }
        };
        self.a.set_label(&mut fresh)?;
        self.child(site, place, callee, elsewhere, pass)?;
        self.a.cmp(rsi, field(block::LIMIT))?;
        self.a.jae(slow)?;
        self.enter(
            place,
            match site.kind {
                Kind::Tail(..) => Returns::BySlot,
                _ => Returns::ToPlace,
            },
        )?;
        self.start()?;
        self.delay()?;
        self.later.push(Later::Call {
            at: stale,
            routine,
            back: fresh,
        });
        self.later.push(Later::Choose {
            at: slow,
            routine: self.runtime.slow,
            zero: pass,
            other: again,
        });
        Ok(())
    }

    /// The way out of a measured call, up to taking the entry off; the frame is saved already and
    /// the clock's reading is the first thing taken. rsi is left at the entry, rdi is lost.
    pub fn way_out(
        &mut self,
        site: &Site,
        slot: i32,
        unknown: CodeLabel,
        lost: CodeLabel,
    ) -> Emitted<()> {
        let [search, mut matched] = std::array::from_fn(|_| self.label());
        tsc(&mut self.a)?;
        self.a.mov(rdi, rax)?;
        self.block(unknown)?;
        self.a.lea(rdx, qword_ptr(rsp + slot))?;
        self.a.cmp(rdx, shadow(TOP, entry::SLOT))?;
        self.a.jne(search)?;
        self.a.set_label(&mut matched)?;
        self.later.push(Later::Choose {
            at: search,
            routine: self.runtime.find,
            zero: matched,
            other: lost,
        });
        if let Kind::Tail(..) = site.kind {
            // While the entry is awaited: a signal handler may use its room as soon as it is not.
            self.a.mov(rax, shadow(TOP, entry::RETURN_TO))?;
            self.a.mov(qword_ptr(rsp + slot), rax)?;
        }
        let running = site
            .running
            .filter(|_| !matches!(site.kind, Kind::Tail(..)));
        self.take_off(running)
    }

    /// Ends the call of the entry before rsi, which returned at rdi, to a function that `running` describes if it runs
    /// already. rsi is left at the entry; rax, rdx and rdi are lost.
    pub fn take_off(&mut self, running: Option<u64>) -> Emitted<()> {
        let [credited, first] = std::array::from_fn(|_| self.label());
        self.a.sub(rsi, entry::SIZE as i32)?;
        self.a.mov(rax, shadow(0, entry::CHILD))?;
        latency(&mut self.a, self.around.inside)?;
        self.a.add(field(block::STOLEN), self.around.outside)?;
        self.a.mov(eax, dword_ptr(rax + descriptor::NODE as i32))?;
        self.a.add(rax, rcx)?;
        credit(&mut self.a, credited, first)?;
        self.a.mov(rdx, shadow(0, entry::SAVED))?;
        self.a.mov(field(block::CURRENT), rdx)?;
        self.a.mov(field(block::TOP), rsi)?;
        if let Some(descriptor) = running {
            let (cut, mut back) = (self.label(), self.label());
            self.a.cmp(shadow(TOP, entry::SLOT), entry::WINDOW_SLOT)?;
            self.a.je(cut)?;
            self.a.set_label(&mut back)?;
            self.a.nop()?;
            self.later.push(Later::Cut {
                at: cut,
                descriptor,
                back,
            });
        }
        self.later.push(Later::Call {
            at: first,
            routine: self.runtime.first,
            back: credited,
        });
        Ok(())
    }
}
