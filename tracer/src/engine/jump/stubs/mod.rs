//! The code that patched places lead to. Pure: bytes for an address, from values.
//!
//! Every stub keeps all registers, the flags and the red zone. A call that is not measured gets the
//! program's own return address. So does one that is measured where a patch notices that it returns; any other
//! one returns to its stub.

mod builder;
mod counted;
mod counted_sites;
mod enqueue;
mod entries;
mod finder;
mod goroutines;
mod landing;
mod later;
mod marker;
mod sites;

use darc_disasm::Operand;
use iced_x86::{Code, ConditionCode, FlowControl, Instruction};

use super::asm::{Emitted, Surroundings};
use super::flags::Flags;
use super::runtime::Runtime;
use super::unwinding::Row;

use builder::Builder;
use sites::{ReturnAddress, append_site};

pub use counted::{CountedSite, Counter, counted, counted_returns};
pub use enqueue::enqueue;
pub use entries::{F0, F0End, Unwinding, f0, unwinding};
pub use finder::finder;
pub use goroutines::{f0 as f0_of_goroutines, statuses};
pub use marker::marker;
pub use sites::RED_ZONE;

/// What a site enters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Callee {
    /// This address.
    Direct(u64),
    /// What the operand holds when the site is reached.
    Indirect(Operand),
}

/// What kind of site it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A call.
    Call(Callee),
    /// A jump out of the function, taken under the condition.
    Tail(Callee, Option<ConditionCode>),
    /// A system call, by a number that is always the same or not.
    Syscall {
        /// Whether calls are told apart by their number.
        by_number: bool,
    },
}

/// An instrumented site.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Site {
    /// The function, as descriptors name it.
    pub function: u32,
    /// The site's index in the function.
    pub local: u32,
    /// What it does.
    pub kind: Kind,
    /// The address of its instruction.
    pub addr: u64,
    /// The address of the instruction behind it.
    pub next: u64,
    /// The descriptor of its function, when that runs already and has no op to be in.
    pub running: Option<u64>,
    /// Where the flags need not be kept.
    pub flags: SiteFlags,
    /// Where its calls are counted, if they are.
    pub counted: Option<CountedSite>,
    /// What its measured calls return to.
    pub returns: CallReturns,
    /// How far below the slot of its caller's return address that of its call is, where that is always the same.
    pub distance: Option<i32>,
}

/// What measured calls at a site return to.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum CallReturns {
    /// To the stub, which hides the program's return address.
    #[default]
    ToStub,
    /// To the program's return address, where a [`Landing`] notices it.
    ToLanding,
}

/// What becomes of the flags that a site passes on.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SiteFlags {
    /// In the callee.
    pub entering: Flags,
    /// Behind the site.
    pub returning: Flags,
}

/// Where a call of the program returns to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Landing {
    /// The address that it returns to.
    pub addr: u64,
    /// As in [`Site`].
    pub running: Option<u64>,
    /// Where the flags need not be kept.
    pub flags: Flags,
}

/// How control comes from the text to a stub.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Arrival {
    /// By a jump in place of the first of what is displaced.
    Jump,
    /// By a call that ends where the last of what is displaced does, a call of the program: its return address is on the
    /// stack already.
    Call,
    /// By a jump behind the first of what is copied, which lowers the stack pointer by so many bytes: the stub raises it again,
    /// and where it runs the copy that is lowered anew.
    BehindFirst(i32),
}

/// One instruction that a patch displaces, or what is to be noticed before it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Item {
    /// A measured call may return to the instruction that is the next item.
    Landing(Landing),
    /// Nothing is to be noticed at it.
    Plain(Instruction),
    /// A site.
    Site(Site),
    /// A `ret` of an f0 whose ends are noticed by them.
    Ret(Instruction),
    /// An instruction on the way to a `ret` of an f0 of goroutines, and how far above the stack pointer its return address
    /// is.
    End(Instruction, i32),
}

impl Item {
    fn addr(&self) -> u64 {
        match self {
            Item::Plain(instruction) | Item::Ret(instruction) | Item::End(instruction, _) => {
                instruction.ip()
            }
            Item::Site(site) => site.addr,
            Item::Landing(landing) => landing.addr,
        }
    }
}

/// What a patch displaces: instructions in a row of which only the last may be a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Region {
    /// The instructions.
    pub items: Vec<Item>,
    /// The address behind them, where the rest goes on.
    pub next: u64,
    /// How control comes to the stub.
    pub arrival: Arrival,
}

impl Region {
    /// The address of the first instruction.
    fn start(&self) -> u64 {
        self.items.first().map_or(self.next, Item::addr)
    }

    /// Whether what is behind it may be run next.
    fn falls_through(&self) -> bool {
        let flow = match self.items.last() {
            Some(Item::Plain(last)) if last.code() == Code::Hlt => return false,
            Some(Item::Plain(last) | Item::Ret(last) | Item::End(last, _)) => last.flow_control(),
            Some(Item::Site(site)) => return !matches!(site.kind, Kind::Tail(_, None)),
            Some(Item::Landing(_)) | None => return true,
        };
        !matches!(
            flow,
            FlowControl::Return | FlowControl::UnconditionalBranch | FlowControl::IndirectBranch
        )
    }

    /// Where its measured calls return to, as far as that is noticed there.
    #[must_use]
    pub fn landings(&self) -> Vec<u64> {
        let sites = self.items.iter().filter_map(|item| match item {
            Item::Site(site) if site.returns == CallReturns::ToLanding => Some(site.next),
            _ => None,
        });
        sites.collect()
    }
}

/// A stub ready to be written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stub {
    /// Its code.
    pub bytes: Vec<u8>,
    /// Where the patch leads.
    pub entry: u64,
    /// For every displaced instruction where its copy is: (original, copy).
    pub moved: Vec<(u64, u64)>,
    /// A copied `syscall` instruction: the addresses behind the copies, which threads blocked in them have.
    pub behind_syscalls: Vec<u64>,
    /// What each of its addresses stands for.
    pub frames: Vec<Row>,
}

/// Emits the stub of a patch in the middle of a function.
pub fn region(at: u64, region: &Region, around: &Surroundings, runtime: &Runtime) -> Emitted<Stub> {
    let mut b = Builder::new(region.start(), around, runtime)?;
    let mut start = b.label();
    if let [Item::Site(site)] = &region.items[..] {
        // By far the most frequent case.
        b.a.set_label(&mut start)?;
        let return_address = match region.arrival {
            Arrival::Jump | Arrival::BehindFirst(_) => ReturnAddress::Missing,
            Arrival::Call => ReturnAddress::Pushed,
        };
        b.arrives(region.arrival);
        append_site(&mut b, site, None, return_address)?;
    } else {
        b.a.set_label(&mut start)?;
        b.a.nop()?;
        b.region(region)?;
    }
    b.finish(at, start)
}
