//! A report of a synthetic program, for tests of the formats.

use darc_analysis::profile::compare::Comparison;
use darc_analysis::simulate::{Program, Session, call};
use darc_analysis::{Callee, CalleeId, Hz, Params, Profile, Resolution, SiteId, Ticks};

use crate::assemble::{self, Names, Site};
use crate::model::{
    BucketEntry, Clock, ClockUnit, Effort, Engine, Function, HandOver, HandedOver, InlinedFrame,
    Module, Pause, ProbeCost, Probes, ProfileTable, Report, SCHEMA, SkippedSite, Survey, Target,
    TimePart, TimeTable, Whose,
};
use crate::place::Place;
use crate::profiles::{FunctionProfile, ProfileSet, Segment, SegmentProfile, Source};

const EXE: &str = "/srv/bin/store";
const FUTEX: Callee = Callee::Syscall(Some(202));

/// Every fourth op waits for a lock; every fiftieth sorts in a loop.
pub fn program() -> Program {
    Program::default()
        .function(
            0,
            "put",
            &[(1, call(1)), (2, call(2)), (3, call(3))],
            |run| {
                run.work(40 + run.op % 7 * 9);
                run.call(1, 1);
                if run.op % 4 == 0 {
                    run.call(2, 2);
                } else if run.op % 50 == 1 {
                    run.call(3, 3);
                }
            },
        )
        .function(1, "hash<std::string>", &[(4, call(4))], |run| {
            run.call(4, 4);
            run.work(2_000 + run.op % 5 * 300);
        })
        .function(
            2,
            "lock",
            &[(5, FUTEX), (6, call(4)), (7, Callee::Unknown)],
            |run| {
                run.call(6, 4);
                run.call_for(5, FUTEX, 900_000 + run.op * 100);
            },
        )
        .function(3, "sort", &[(8, call(4))], |run| {
            for _ in 0..4_000 {
                run.work(2);
                run.call(8, 4);
            }
        })
        .function(4, "less", &[], |run| run.work(5))
}

/// Where everything of the program lies.
pub struct Map<'a>(pub &'a Program);

impl Names for Map<'_> {
    fn f0(&self) -> Function {
        self.function(CalleeId(0))
    }

    fn function(&self, callee: CalleeId) -> Function {
        let library = callee.0 == 2;
        Function {
            name: self.0.name(Callee::Function(callee)),
            module: if library {
                "/usr/lib/liblock.so.1"
            } else {
                EXE
            }
            .to_owned(),
            offset: 0x1000 + 0x100 * u64::from(callee.0),
            file: (!library).then(|| "store.cc".to_owned()),
            line: (!library).then_some(10 * (callee.0 + 1)),
        }
    }

    fn site(&self, site: SiteId) -> Site {
        let library = matches!(site.0, 5..=7);
        Site {
            place: Place {
                module: if library {
                    "/usr/lib/liblock.so.1"
                } else {
                    EXE
                }
                .to_owned(),
                offset: 0x1800 + 0x10 * u64::from(site.0),
            },
            file: (!library).then(|| "store.cc".to_owned()),
            line: (!library).then_some(100 + site.0),
            inlined_from: if site.0 == 8 {
                vec![InlinedFrame {
                    name: "insertion_sort".to_owned(),
                    file: Some("sort.h".to_owned()),
                    line: Some(7),
                }]
            } else {
                Vec::new()
            },
        }
    }

    fn syscall(&self, number: Option<u32>) -> String {
        match number {
            Some(202) => "futex".to_owned(),
            Some(number) => format!("system call {number}"),
            None => "system call".to_owned(),
        }
    }
}

/// The report after some ops; everything that can be present is.
pub fn report(ops: u64) -> Report {
    // In whole doublings: every bucket of the samples has a row that is easy to check.
    let params = Params {
        resolution: Resolution::default(),
        ..Params::default()
    };
    let mut session = Session::new(program(), params);
    session.run(ops);
    of(&session)
}

/// The report of a session over [`program`].
pub fn of(session: &Session) -> Report {
    let analysis = &session.analysis;
    let names = Map(&session.program);
    let comparison = Comparison::of(analysis.profile(), analysis.profile()).unwrap();
    let peaks = assemble::peaks(analysis, &names);
    Report {
        schema: SCHEMA,
        darc: "0.1.0".to_owned(),
        engine: Engine::Jump,
        status: assemble::status(analysis, &peaks),
        ended: None,
        target: Target {
            pid: Some(4711),
            command: vec![
                EXE.to_owned(),
                "--name".to_owned(),
                "a b\x1b[2J\n".to_owned(),
            ],
            exe: EXE.to_owned(),
            build_id: Some("00ff".to_owned()),
            exit_status: Some(0),
            attached: false,
            threads: Vec::new(),
            goroutines: false,
        },
        f0: names.f0(),
        clock: Clock {
            unit: ClockUnit::Cycles,
            hz: 2_000_000_000,
        },
        parameters: assemble::parameters(analysis.params()),
        modules: vec![
            Module {
                path: EXE.to_owned(),
                build_id: Some("00ff".to_owned()),
            },
            Module {
                path: "/usr/lib/liblock.so.1".to_owned(),
                build_id: None,
            },
        ],
        profile: assemble::latencies(analysis),
        comparison: Some(assemble::comparison(&comparison)),
        peaks,
        values: assemble::values(analysis),
        ftree: assemble::ftree(analysis, &names),
        time: None,
        focus: Vec::new(),
        futures: None,
        proofs: Vec::new(),
        effects: Vec::new(),
        probes: Probes {
            sites: 8,
            skipped: vec![SkippedSite {
                site: Place {
                    module: EXE.to_owned(),
                    offset: 0x1999,
                },
                function: "serve".to_owned(),
                of_sites: 40,
                reason: "a branch leads into it".to_owned(),
            }],
            cost_cycles: ProbeCost {
                inside: 41,
                outside: 38,
            },
            records: analysis.profile().count(),
            dropped: 0,
            sampled: 0,
            effort: Some(Effort {
                budget: 0.03,
                elapsed: 12.5,
                reading: 0.125,
                calls: 0.0625,
                records: 0.05,
                latencies: 0.25,
                rested: 5.0,
            }),
            ended_otherwise: 0,
            pause_us: Pause {
                p50: 312.5,
                max: 800.0,
            },
            bytes_compared_after_detach: 0x2000,
            bytes_differing_after_detach: 0,
        },
        warnings: vec!["the clock's rate was measured, not read".to_owned()],
    }
}

/// What became of the requests of the ops of [`report`]: those of peak 2 wait four times as long.
pub fn handover(waits: &ProfileTable) -> HandOver {
    let table = |latencies: &[u64]| {
        let mut profile = Profile::new(Resolution::default());
        for &latency in latencies {
            profile.add(Ticks(latency));
        }
        assemble::profile(&profile)
    };
    let of = |peak, ops, requests, waits: &[u64], services: &[u64]| HandedOver {
        peak,
        ops,
        requests,
        waits: table(waits),
        services: table(services),
    };
    HandOver {
        enqueue: Function {
            name: "enqueue\x1b[2J".to_owned(),
            module: EXE.to_owned(),
            offset: 0x1700,
            file: Some("queue.cc".to_owned()),
            line: Some(7),
        },
        enqueued_object: "arg2".to_owned(),
        served_object: "*(arg1+8)".to_owned(),
        enqueued: 12,
        served: 7,
        in_flight: 1,
        expired: 2,
        crowded_out: 0,
        others: 4,
        unread: 0,
        waits: waits.clone(),
        peaks: vec![
            of(
                Some(1),
                4,
                4,
                &[900, 1_100, 1_000],
                &[70_000, 60_000, 50_000],
            ),
            of(Some(2), 2, 4, &[4_200, 3_800, 4_000], &[60_000; 3]),
            of(None, 1, 1, &[], &[]),
        ],
        of_unknown_ops: 3,
    }
}

/// Where the time of a `main` went.
pub fn time() -> TimeTable {
    let part = |path: &[&str], whose, time: u64, calls, max| TimePart {
        path: path.iter().map(|&name| name.to_owned()).collect(),
        whose,
        share_of_time: time as f64 / 1_000_000_000.0,
        time,
        calls,
        max,
        reason: None,
    };
    TimeTable {
        share_of_cpu: None,
        not_running: None,
        windows: 119,
        total: 1_000_000_000,
        survey: Survey::Complete,
        parts: vec![
            part(
                &["main", "put"],
                Whose::Callee,
                870_000_000,
                2_152,
                9_000_000,
            ),
            part(
                &["main", "epoll_wait"],
                Whose::Waiting,
                90_000_000,
                40,
                8_000_000,
            ),
            part(&["main"], Whose::Itself, 40_000_000, 0, 0),
        ],
    }
}

/// A set of profiles in segments of 100 cycles, in each of which every function is called once for each bucket.
pub fn segments(functions: u32, segments: u64, buckets: u32) -> ProfileSet {
    let all = |ops| -> Vec<BucketEntry> {
        let bucket = |bucket| BucketEntry {
            bucket,
            ops,
            total: ops << bucket,
        };
        (3..3 + buckets).map(bucket).collect()
    };
    let profile = |number| FunctionProfile {
        function: Function {
            name: format!("function_{number}"),
            ..Function::default()
        },
        calls: segments * u64::from(buckets),
        unfinished: 0,
        ended_otherwise: 0,
        missed: 0,
        max: 1 << (2 + buckets),
        concurrency: 0.5,
        profile: ProfileTable {
            resolution: 1,
            ops: segments * u64::from(buckets),
            total: all(segments).iter().map(|entry| entry.total).sum(),
            buckets: all(segments),
            percentiles: None,
            told_from: None,
            fine: Vec::new(),
        },
        peaks: Vec::new(),
        segments: (0..segments)
            .map(|segment| SegmentProfile {
                segment,
                calls: u64::from(buckets),
                concurrency: 0.5,
                buckets: all(1),
            })
            .collect(),
    };
    let hz = Hz::new(1_000_000_000).expect("a rate");
    let target = Target::default();
    let length = 100 * segments;
    ProfileSet {
        profiles: (0..functions).map(profile).collect(),
        segments: (0..segments)
            .map(|segment| Segment {
                start: 100 * segment,
                length: 100,
            })
            .collect(),
        ..ProfileSet::empty(Source::Functions, target, hz, Resolution::default(), length)
    }
}
