//! From the beginnings and ends of interrupts and page faults to the pieces of time that they took from threads.
//! Pure.
//!
//! One interrupt may strike in another, and each in a page fault: a moment belongs to the innermost (DARC, SIGMETRICS
//! 2008, section 3.6, keeps a small auxiliary array for that).

use std::collections::HashMap;

use darc_record::{Ticks, Tsc};

use super::tracepoints::Service;

/// A piece of time in which a CPU did not do the work of the thread on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Whose time it was.
    pub tid: i32,
    /// What the CPU did.
    pub service: Service,
    /// From here
    pub from: Tsc,
    /// to here.
    pub to: Tsc,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    tid: i32,
    service: Service,
    /// Whether the thread set it off itself, in a system call.
    is_own: bool,
    /// Up to here its time has been told.
    since: Tsc,
}

/// What CPUs are doing. More than this is no nesting but lost ends.
const DEEPEST: usize = 8;

/// Deferred work of an interrupt begins within so many cycles of its end, or of the end of other such work. What begins without one was
/// set off by the thread's own system call: a connection to the same machine is served at the end of the call that sends
/// (`__local_bh_enable_ip` in kernel/softirq.c).
const AT_ONCE: Ticks = Ticks(10_000);

/// The vector of a CPU's own timer (`LOCAL_TIMER_VECTOR` in arch/x86/include/asm/irq_vectors.h).
const TIMER: Service = Service::LocalInterrupt(0xec);
/// What delivers packets (NET_RX_SOFTIRQ, include/linux/interrupt.h).
const RECEIVE: Service = Service::SoftInterrupt(3);

/// What is under way on each CPU, and in each thread.
#[derive(Debug, Default)]
pub struct Services {
    /// By CPU, the innermost last.
    interrupts: HashMap<u32, Vec<Open>>,
    /// By thread: it may sleep in a fault and go on with it on another CPU.
    faults: HashMap<i32, Tsc>,
    /// By CPU, when the last of them ended.
    ended: HashMap<u32, Tsc>,
    /// Whether the timer's interrupts are recorded. Where they are not, as on machines whose hypervisor has a timer of its own,
    /// what begins without an interrupt may be one's all the same.
    tells_timer: bool,
    /// Of each fault, see [`Services::new`].
    untold: Ticks,
}

impl Services {
    /// Nothing is under way. `untold` is what a page fault takes beyond what its records enclose, half of it before and
    /// half behind.
    #[must_use]
    pub fn new(untold: Ticks) -> Services {
        Services {
            untold,
            ..Services::default()
        }
    }

    /// Something begins. The piece that ends with it: that of the interrupt which it interrupts.
    pub fn begin(&mut self, at: Tsc, cpu: u32, tid: i32, service: Service) -> Option<Piece> {
        if service == Service::PageFault {
            self.faults.insert(tid, at);
            return None;
        }
        let open = self.interrupts.entry(cpu).or_default();
        if open.len() >= DEEPEST || open.last().is_some_and(|outer| outer.tid != tid) {
            // An end was lost: threads do not change in an interrupt.
            open.clear();
        }
        let ended = self.ended.get(&cpu).copied().unwrap_or(Tsc(0));
        self.tells_timer |= service == TIMER;
        let is_own = matches!(service, Service::SoftInterrupt(_))
            && self.tells_timer
            && open.is_empty()
            && at - ended > AT_ONCE;
        let piece = open.last_mut().and_then(|outer| outer.until(at));
        open.push(Open {
            tid,
            service,
            is_own,
            since: at,
        });
        piece
    }

    /// Something ends.
    pub fn end(&mut self, at: Tsc, cpu: u32, tid: i32, service: Service) -> Option<Piece> {
        if service == Service::PageFault {
            let from = self.faults.remove(&tid)?;
            let half = self.untold.0 / 2;
            return Some(Piece {
                tid,
                service,
                from: Tsc(from.0.saturating_sub(half)),
                to: Tsc(at.0.saturating_add(half)),
            });
        }
        let open = self.interrupts.get_mut(&cpu)?;
        let mut ended = open.pop()?;
        if (ended.tid, ended.service) != (tid, service) {
            open.clear();
            return None;
        }
        let piece = ended.until(at);
        if let Some(outer) = open.last_mut() {
            outer.since = at;
        }
        if !ended.is_own {
            self.ended.insert(cpu, at);
        }
        piece
    }

    /// What a CPU is doing, the innermost.
    #[must_use]
    pub fn on(&self, cpu: u32) -> Option<Service> {
        Some(self.interrupts.get(&cpu)?.last()?.service)
    }

    /// Whether a CPU is delivering, the innermost, what the thread on it has sent itself.
    #[must_use]
    pub fn delivers_own(&self, cpu: u32) -> bool {
        let open = self.interrupts.get(&cpu);
        let innermost = open.and_then(|open| open.last());
        innermost.is_some_and(|it| it.is_own && it.service == RECEIVE)
    }

    /// Records were lost.
    pub fn forget(&mut self) {
        self.interrupts.clear();
        self.ended.clear();
        self.faults.clear();
    }

    /// A thread has ended, or is new.
    pub fn forget_thread(&mut self, tid: i32) {
        self.faults.remove(&tid);
    }
}

impl Open {
    /// The piece up to here; nothing of what is the thread's own work.
    fn until(&mut self, at: Tsc) -> Option<Piece> {
        let from = std::mem::replace(&mut self.since, at);
        (!self.is_own).then(|| Piece {
            tid: self.tid,
            service: self.service,
            from,
            to: at.max(from),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOFT: Service = Service::SoftInterrupt(1);
    const DISK: Service = Service::Interrupt(36);

    fn piece(tid: i32, service: Service, from: u64, to: u64) -> Option<Piece> {
        Some(Piece {
            tid,
            service,
            from: Tsc(from),
            to: Tsc(to),
        })
    }

    #[test]
    fn an_interrupted_interrupt_keeps_what_is_its_own() {
        let mut services = Services::default();
        assert_eq!(services.begin(Tsc(10), 0, 5, SOFT), None);
        assert_eq!(services.begin(Tsc(14), 0, 5, DISK), piece(5, SOFT, 10, 14));
        assert_eq!(services.on(0), Some(DISK));
        assert_eq!(services.end(Tsc(20), 0, 5, DISK), piece(5, DISK, 14, 20));
        assert_eq!(services.end(Tsc(30), 0, 5, SOFT), piece(5, SOFT, 20, 30));
        assert_eq!(services.on(0), None);
        // On another CPU nothing is under way.
        assert_eq!(services.end(Tsc(40), 1, 5, SOFT), None);
    }

    #[test]
    fn what_a_system_call_sets_off_is_its_own_work() {
        let mut services = Services::default();
        // After an interrupt: two kinds of deferred work, one after the other.
        services.begin(Tsc(1_000_000), 0, 5, TIMER);
        services.end(Tsc(1_002_000), 0, 5, TIMER);
        for (soft, from, to) in [
            (SOFT, 1_003_000, 1_030_000),
            (RECEIVE, 1_031_000, 1_040_000),
        ] {
            services.begin(Tsc(from), 0, 5, soft);
            let told = services.end(Tsc(to), 0, 5, soft);
            assert_eq!(told, piece(5, soft, from, to));
        }
        // At the end of a call that sends, twice; an interrupt in it is none of the call's.
        services.begin(Tsc(1_100_000), 0, 5, RECEIVE);
        assert_eq!(services.begin(Tsc(1_105_000), 0, 5, DISK), None);
        assert!(!services.delivers_own(0));
        let disk = services.end(Tsc(1_106_000), 0, 5, DISK);
        assert_eq!(disk, piece(5, DISK, 1_105_000, 1_106_000));
        assert_eq!(services.on(0), Some(RECEIVE));
        assert!(services.delivers_own(0) && !services.delivers_own(1));
        assert_eq!(services.end(Tsc(1_110_000), 0, 5, RECEIVE), None);
        // The interrupt may have brought what is done next.
        services.begin(Tsc(1_112_000), 0, 5, RECEIVE);
        let told = services.end(Tsc(1_115_000), 0, 5, RECEIVE);
        assert_eq!(told, piece(5, RECEIVE, 1_112_000, 1_115_000));
        services.begin(Tsc(1_126_000), 0, 5, SOFT);
        assert!(!services.delivers_own(0));
        assert_eq!(services.end(Tsc(1_127_000), 0, 5, SOFT), None);
        services.begin(Tsc(1_128_000), 0, 5, RECEIVE);
        assert!(services.delivers_own(0));
        assert_eq!(services.end(Tsc(1_129_000), 0, 5, RECEIVE), None);
    }

    #[test]
    fn where_the_timer_is_not_recorded_all_deferred_work_is_told() {
        let mut services = Services::default();
        services.begin(Tsc(1_000_000), 0, 5, RECEIVE);
        let told = services.end(Tsc(1_010_000), 0, 5, RECEIVE);
        assert_eq!(told, piece(5, RECEIVE, 1_000_000, 1_010_000));
    }

    #[test]
    fn what_was_lost_makes_no_piece() {
        let mut services = Services::default();
        services.begin(Tsc(10), 0, 5, TIMER);
        // Its end was lost; another thread is on that CPU by now.
        assert_eq!(services.begin(Tsc(90), 0, 6, TIMER), None);
        assert_eq!(services.end(Tsc(92), 0, 6, TIMER), piece(6, TIMER, 90, 92));
        services.begin(Tsc(100), 0, 6, TIMER);
        assert_eq!(services.end(Tsc(110), 0, 6, SOFT), None);
        services.begin(Tsc(120), 0, 6, Service::PageFault);
        services.forget();
        assert_eq!(services.end(Tsc(130), 0, 6, Service::PageFault), None);
    }

    #[test]
    fn a_fault_has_what_its_records_do_not_enclose() {
        let mut services = Services::new(Ticks(10));
        services.begin(Tsc(100), 0, 5, Service::PageFault);
        let told = services.end(Tsc(130), 0, 5, Service::PageFault);
        assert_eq!(told, piece(5, Service::PageFault, 95, 135));
    }

    #[test]
    fn a_fault_may_end_on_another_cpu() {
        let mut services = Services::default();
        services.begin(Tsc(10), 0, 5, Service::PageFault);
        let fault = services.end(Tsc(90), 3, 5, Service::PageFault);
        assert_eq!(fault, piece(5, Service::PageFault, 10, 90));
    }
}
