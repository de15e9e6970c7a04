//! What is said of machines.

use super::*;

fn good() -> Facts {
    Facts {
        kernel: Some("6.1.0-13-amd64".to_owned()),
        yama: Some(0),
        uid: 1000,
        capabilities: 0,
        seccomp: Some(0),
        perf_event_paranoid: Some(1),
        tracepoints: Some(Ok(())),
        clock_doubt: None,
        cpu_flags: ["fpu", "tsc", "constant_tsc", "nonstop_tsc"]
            .map(str::to_owned)
            .to_vec(),
        trial: Some(Ok(12_345.0)),
        program: Some(Program {
            path: "a.out".to_owned(),
            functions: 12,
            symbols: true,
            lines: true,
            build_id: Some("00ff".to_owned()),
            go: None,
            go_table: false,
            warnings: Vec::new(),
        }),
        sites: Vec::new(),
    }
}

fn verdict(facts: &Facts, name: &str) -> Verdict {
    judge(facts)
        .iter()
        .find(|check| check.name == name)
        .unwrap()
        .verdict
}

#[test]
fn a_go_program_is_judged_by_what_is_known_of_it() {
    let judged = |found: Result<(), String>| {
        let program = Program {
            go: Some(found),
            ..good().program.expect("one")
        };
        Facts {
            program: Some(program),
            ..good()
        }
    };
    assert_eq!(verdict(&judged(Ok(())), "program"), Verdict::Works);
    let unknown = judged(Err("go1.18 is not known".to_owned()));
    assert_eq!(verdict(&unknown, "program"), Verdict::Missing);
    assert!(render(&judge(&unknown)).contains("go1.18 is not known"));
}

#[test]
fn a_stripped_go_program_has_lines() {
    let stripped = |go_table| {
        let program = Program {
            lines: false,
            go_table,
            ..good().program.expect("one")
        };
        Facts {
            program: Some(program),
            ..good()
        }
    };
    assert_eq!(verdict(&stripped(false), "source lines"), Verdict::Limited);
    assert_eq!(verdict(&stripped(true), "source lines"), Verdict::Works);
    assert!(render(&judge(&stripped(true))).contains(".gopclntab"));
}

#[test]
fn call_sites_that_cannot_be_measured_have_their_reasons() {
    let share = |measured, all| Share { measured, all };
    let mut sites = Sites {
        path: "/bin/a".to_owned(),
        kinds: [
            (CallKind::Direct, share(19_999, 20_000)),
            (CallKind::Indirect, share(500, 500)),
        ]
        .into(),
        reasons: [("it is a loop".to_owned(), 1)].into(),
        unread: 0,
    };
    let judged = |sites: &Sites| {
        let facts = Facts {
            sites: vec![sites.clone()],
            ..good()
        };
        let mut checks = judge(&facts);
        checks.pop().expect("that of the call sites")
    };
    let check = judged(&sites);
    assert_eq!(check.verdict, Verdict::Works);
    assert_eq!(
        check.finding,
        "/bin/a: 99.99% of 20500 can be measured (direct 99.99% of 20000, indirect all of 500); not: 1 (it is a loop)"
    );
    sites.kinds.insert(CallKind::Indirect, share(490, 500));
    assert_eq!(judged(&sites).verdict, Verdict::Limited);
}

#[test]
fn on_a_good_machine_everything_works() {
    let checks = judge(&good());
    assert!(
        checks.iter().all(|check| check.verdict == Verdict::Works),
        "{checks:?}"
    );
}

#[test]
fn who_may_attach() {
    let root = 1 << CAP_SYS_PTRACE;
    let cases = [
        (None, 1000, 0, Verdict::Works),
        (None, 0, 0, Verdict::Limited),
        (Some(1), 1000, 0, Verdict::Limited),
        (Some(1), 0, root, Verdict::Works),
        (Some(2), 1000, 0, Verdict::Missing),
        (Some(2), 0, root, Verdict::Works),
        (Some(3), 0, root, Verdict::Missing),
    ];
    for (yama, uid, capabilities, expected) in cases {
        let facts = Facts {
            yama,
            uid,
            capabilities,
            ..good()
        };
        assert_eq!(verdict(&facts, "attaching"), expected, "{yama:?} {uid}");
    }
}

#[test]
fn what_is_bad_is_said_and_never_missed() {
    let old = Facts {
        kernel: Some("4.18.0".to_owned()),
        ..good()
    };
    assert_eq!(verdict(&old, "kernel"), Verdict::Missing);
    let filtered = Facts {
        seccomp: Some(2),
        ..good()
    };
    assert_eq!(verdict(&filtered, "seccomp"), Verdict::Limited);
    let slow = Facts {
        cpu_flags: vec!["tsc".to_owned()],
        ..good()
    };
    assert_eq!(verdict(&slow, "clock"), Verdict::Limited);
    let unstable = Facts {
        clock_doubt: Some("the kernel does not trust it".to_owned()),
        ..good()
    };
    assert_eq!(verdict(&unstable, "clock"), Verdict::Limited);
    let paranoid = Facts {
        perf_event_paranoid: Some(4),
        tracepoints: Some(Err("tracefs: permission denied".to_owned())),
        ..good()
    };
    assert_eq!(verdict(&paranoid, "perf events"), Verdict::Missing);
    assert_eq!(verdict(&paranoid, "tracepoints"), Verdict::Limited);
    let stripped = Facts {
        program: Some(Program {
            path: "x\x1b[2J\n".to_owned(),
            ..Program::default()
        }),
        ..good()
    };
    assert_eq!(verdict(&stripped, "symbols"), Verdict::Missing);
    assert!(!render(&judge(&stripped)).contains('\x1b'));
    let nothing = judge(&Facts::default());
    assert!(
        nothing
            .iter()
            .all(|check| check.verdict != Verdict::Works || check.name == "attaching"),
        "{nothing:?}"
    );
}
