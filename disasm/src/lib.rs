//! Reads x86-64 machine code: which calls a function makes, its blocks and loops, what branches into a range of
//! its bytes, and how instructions are moved elsewhere.
//!
//! Bytes and run-time addresses go in, values come out. Nothing here knows files, processes or
//! symbols; run-time data (jump tables, PLT slots) is read through [`Memory`]. Code is input from a
//! stranger: whatever the bytes are, the answer is a value or a reason, never a panic.

mod blocks;
mod calls;
mod code;
mod detached;
mod extent;
mod field;
mod frame;
mod jumps;
mod loops;
mod operand;
mod plt;
mod relocate;
mod tables;
mod text;
mod thread_local;
mod thunks;
mod values;
mod written;

pub use blocks::{Block, BranchInto, Cfg, UnknownBranch};
pub use calls::{
    CallSite, Condition, SiteKind, Sites, SkipReason, SkippedSite, Target, call_sites,
    call_sites_in,
};
pub use code::{CodePart, FunctionCode, Memory, NoMemory};
pub use extent::function_at;
pub use field::field_of_argument;
pub use frame::Frames;
pub use iced_x86::Instruction;
pub use jumps::{direct_jumps, direct_transfers, jumps_through, may_go_by_table};
pub use loops::{Dominators, Loop, Loops};
pub use operand::{Gpr, MemoryOperand, Operand, Registers, Segment};
pub use plt::got_slot;
pub use relocate::{Immovable, Relocated, relocate};
pub use tables::JumpTable;
pub use text::{Line, text};
pub use thread_local::thread_local;
pub use written::{Written, constants_written};
