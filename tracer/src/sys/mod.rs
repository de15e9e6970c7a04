//! The crate's only unsafe code: the ptrace requests, the cycle counter, fork, mappings, mounts, perf events.
//!
//! Everything here is a thin call; policy lives elsewhere.
#![allow(unsafe_code)]

#[cfg(test)]
pub mod kill_point;
mod mapping;
mod mount;
mod perf;
mod presence;
mod process;
mod ptrace;

use darc_record::Tsc;

pub use mapping::{CodePage, FilePage, PAGE, SharedWords};
pub use mount::tracefs;
pub use perf::{
    RingPages, perf_disable, perf_enable, perf_event_open, perf_set_filter, perf_set_output,
};
pub use presence::{Presence, is_present, own_number};
pub use process::{
    Argv, close_unattended, descriptor_of, die_with_parent, die_with_us, fork_into, kill_and_reap,
    limit_processor_time, pidfd, restore_sigpipe, run_as_others, run_first, set_groups_of_thread,
    shares_descriptors, shares_memory, tells_thread_pointer, wait_child_signal,
};
#[cfg(test)]
pub use process::{exit_now, refuse_kcmp, send_to_thread, take_note_of, unwinder};
pub use ptrace::{
    EVENT_STOP, RawRegisters, WaitStatus, cont, cont_to_syscall, detach, end_of_extended_state,
    event_message, extended_state, handles_calls, has_ended, interrupt, listen, look_any, look_now,
    poke, reap, registers, restartable_area, seize, set_registers, set_signal_mask, set_step,
    signal_mask, take_stop, wait_any, wait_but_for_signals, wait_for, wait_now,
};

/// Reads the cycle counter.
#[inline]
#[must_use]
pub fn tsc() -> Tsc {
    // SAFETY: every x86-64 processor has the instruction, and Linux leaves it enabled for user code.
    Tsc(unsafe { std::arch::x86_64::_rdtsc() })
}
