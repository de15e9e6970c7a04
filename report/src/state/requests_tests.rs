//! What became of requests survives being written and read, and figures that cannot be are refused.

use std::sync::LazyLock;

use darc_analysis::requests::in_flight::{InFlight, Service};
use darc_analysis::requests::of_ops::Given;
use darc_analysis::simulate::Session;
use darc_analysis::{Analysis, Params, Resolution, Ticks, Tsc};
use proptest::prelude::*;

use super::{StateError, parse, read_any, restore, write};
use crate::fixture;
use crate::model::{HandOver, Report};
use crate::tests::golden;
use crate::{assemble, json};

/// An analysis of which requests are followed to another thread, with all that belongs together.
fn handed_over() -> Report {
    static REPORT: LazyLock<Report> = LazyLock::new(|| {
        let mut report = golden::handed_over();
        report.focus[0].peaks = report.peaks.clone();
        report
    });
    REPORT.clone()
}

/// The hand-over as a report has it.
fn shown(requests: &InFlight, analysis: &Analysis) -> HandOver {
    let counts = requests.counts();
    HandOver {
        enqueued: counts.enqueued,
        served: counts.served,
        in_flight: requests.count() as u64,
        expired: counts.expired,
        crowded_out: counts.crowded_out,
        others: counts.others,
        unread: counts.unread,
        waits: assemble::profile(requests.waits()),
        peaks: assemble::handed_over(requests.of_ops(), analysis),
        of_unknown_ops: requests.of_ops().unknown(),
        ..handed_over().focus[0].handover.clone().unwrap()
    }
}

fn with(handover: HandOver) -> Report {
    let mut report = handed_over();
    report.focus[0].handover = Some(handover);
    report
}

fn change(report: &mut Report) -> &mut HandOver {
    report.focus[0].handover.as_mut().unwrap()
}

#[test]
fn what_cannot_be_is_refused() {
    let report = handed_over();
    assert_eq!(parse(write(&report).as_bytes()), Ok(report.clone()));
    let refuse = |what: &str, spoil: &dyn Fn(&mut HandOver)| {
        let mut report = report.clone();
        spoil(change(&mut report));
        let read = read_any(write(&report).as_bytes());
        assert!(
            matches!(read, Err(StateError::Invalid(_))),
            "{what}: {read:?}"
        );
    };
    refuse("no such peak", &|it| it.peaks[1].peak = Some(9));
    refuse("peak 0", &|it| it.peaks[0].peak = Some(0));
    refuse("order", &|it| it.peaks.swap(0, 1));
    refuse("twice", &|it| it.peaks[1].peak = Some(1));
    refuse("served twice", &|it| it.peaks[0].requests = 2);
    refuse("waits without services", &|it| {
        it.peaks[0].services = it.peaks[2].services.clone()
    });
    refuse("more ops than requests", &|it| it.peaks[2].ops = 2);
    refuse("requests of no op", &|it| it.peaks[0].ops = 0);
    refuse("overflow of a count", &|it| it.enqueued = u64::MAX);
    refuse("overflow of requests", &|it| {
        it.peaks[0].requests = u64::MAX
    });
    refuse("checksum", &|it| it.peaks[0].waits.ops += 1);
    refuse("overflow", &|it| it.waits.buckets[0].ops = u64::MAX);
    refuse("resolution", &|it| it.peaks[0].waits.resolution = 2);
}

#[test]
fn what_was_in_flight_is_never_seen_to_be_served() {
    let stored = handed_over().focus[0].handover.clone().unwrap();
    let requests = restore::requests(&stored).unwrap();
    assert_eq!(requests.counts().expired, stored.expired + stored.in_flight);
    assert_eq!(requests.count(), 0);
}

/// What happens: a request of an op of one of four threads, the end of an op, or a service.
fn happenings() -> impl Strategy<Value = Vec<(u8, i32, u64, u64)>> {
    prop::collection::vec((0_u8..4, 1..5, 0_u64..6, 0_u64..1 << 22), 0..60)
}

fn happen(requests: &mut InFlight, happenings: &[(u8, i32, u64, u64)]) {
    let resolution = Resolution::default();
    let mut clock = 0;
    let mut began = [0; 5];
    for &(what, tid, object, latency) in happenings {
        clock += 1 + latency;
        let now = Tsc(clock);
        match what {
            0 | 1 => requests.enqueue(object, Given { at: now, tid }),
            2 => {
                let start = Tsc(std::mem::replace(&mut began[tid as usize], clock));
                let bucket = resolution.bucket(Ticks(latency));
                requests.of_ops_mut().ended(tid, start, now, bucket);
            }
            _ => {
                let latency = Ticks(latency);
                let _ = requests.serve(
                    object,
                    Service {
                        start: now,
                        latency,
                    },
                );
            }
        }
    }
}

/// An analysis whose peaks are known.
static SESSION: LazyLock<Session> = LazyLock::new(|| {
    let mut session = Session::new(fixture::program(), Params::default());
    session.run(330);
    session
});

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn requests_survive_and_more_are_added(before in happenings(), after in happenings()) {
        let session = &*SESSION;
        let mut first = InFlight::new(Resolution::default());
        happen(&mut first, &before);
        first.abandon();
        let report = with(shown(&first, &session.analysis));
        let read = parse(write(&report).as_bytes()).unwrap();
        prop_assert_eq!(&read, &report);
        let json = json::render(&report).unwrap();
        prop_assert_eq!(&read_any(json.as_bytes()).unwrap(), &report);

        let mut second = restore::requests(read.focus[0].handover.as_ref().unwrap()).unwrap();
        prop_assert_eq!(&shown(&second, &session.analysis), report.focus[0].handover.as_ref().unwrap());
        happen(&mut second, &after);
        happen(&mut first, &after);
        // As if there had been one run.
        prop_assert_eq!(shown(&second, &session.analysis), shown(&first, &session.analysis));
    }
}
