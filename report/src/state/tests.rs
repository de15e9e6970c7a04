//! Results survive being written and read, and nothing else is taken for one.

use std::collections::HashMap;

use darc_analysis::descent::params::Params;
use darc_analysis::simulate::Session;
use darc_analysis::{Analysis, CalleeId, SiteId};
use proptest::prelude::*;

use super::restore::{Ids, params, restore};
use super::{MAX_DEPTH, StateError, checksum, parse, read_any, validate, write};
use crate::fixture;
use crate::model::{
    DescentState, FnodePeak, FtreeNode, InlinedEntry, PeakEntry, PeakValues, Report, StopReason,
    ValueContrast,
};
use crate::{Place, json};

/// The ids that [`sample::Map`] gives to places.
#[derive(Default)]
struct SampleIds {
    names: HashMap<String, u32>,
}

impl SampleIds {
    fn of(session: &Session) -> Self {
        let functions = session.program.functions.iter();
        let names = functions.map(|(&id, function)| (function.name.to_owned(), id));
        Self {
            names: names.collect(),
        }
    }
}

impl Ids for SampleIds {
    fn site(&mut self, place: &Place) -> SiteId {
        SiteId((place.offset as u32 - 0x1800) / 0x10)
    }

    fn function(&mut self, name: &str, _: &Place) -> CalleeId {
        CalleeId(self.names[name])
    }
}

/// The file with its checksum made right again.
fn sealed(file: &str) -> Vec<u8> {
    let end = file.rfind("checksum ").unwrap();
    let sum = checksum::of(&file.as_bytes()[..end]);
    format!("{}checksum fnv1a-64 {sum:016x}\n", &file[..end]).into_bytes()
}

#[test]
fn a_result_is_read_as_it_was_written() {
    for ops in [0, 50, 150, 330, 30_000] {
        let report = fixture::report(ops);
        let file = write(&report);
        assert_eq!(parse(file.as_bytes()).unwrap(), report, "{ops} ops");
        assert_eq!(read_any(file.as_bytes()).unwrap(), report);
        let json = json::render(&report).unwrap();
        assert_eq!(read_any(json.as_bytes()).unwrap(), report);
    }
}

#[test]
fn every_truncation_and_every_changed_byte_is_noticed() {
    // Every byte of a small file, and one in seven of a larger one.
    for (ops, step) in [(50, 1), (330, 7)] {
        let file = write(&fixture::report(ops)).into_bytes();
        for end in (0..file.len()).step_by(step) {
            assert!(parse(&file[..end]).is_err(), "cut at {end}");
        }
        let mut changed = file.clone();
        for at in (0..file.len()).step_by(step) {
            for flip in [0x01, 0x20] {
                changed[at] = file[at] ^ flip;
                assert!(read_any(&changed).is_err(), "byte {at} ^ {flip}");
            }
            changed[at] = file[at];
        }
    }
    let file = write(&fixture::report(0)).into_bytes();
    let mut longer = file.clone();
    longer.extend(b"\n");
    assert!(parse(&longer).is_err());
}

#[test]
fn errors_say_what_is_wrong() {
    let file = write(&fixture::report(200));
    assert_eq!(read_any(b""), Err(StateError::NotDarc));
    assert_eq!(read_any(b"\x7fELF"), Err(StateError::NotDarc));
    assert_eq!(read_any(b"{}"), Err(StateError::NotDarc));
    assert_eq!(read_any(b"darc x\n"), Err(StateError::NotDarc));
    let newer = file.replacen("darc 1", "darc 2", 1);
    let version = |found| StateError::Version { found, known: 1 };
    assert_eq!(read_any(&sealed(&newer)), Err(version(2)));
    assert_eq!(read_any(b"{\"schema\": 7}"), Err(version(7)));
    let odd = file.replacen("  clock ", "   clock ", 1);
    let line = odd
        .lines()
        .position(|line| line.starts_with("   clock"))
        .unwrap()
        + 1;
    match read_any(&sealed(&odd)) {
        Err(StateError::Damaged { line: at, .. }) => assert_eq!(at, line),
        other => panic!("{other:?}"),
    }
    let cut = read_any(&file.as_bytes()[..file.len() / 2]).unwrap_err();
    assert!(cut.to_string().contains("cut off"), "{cut}");
    let huge = vec![b' '; super::MAX_SIZE + 1];
    assert!(matches!(read_any(&huge), Err(StateError::TooLarge { .. })));
}

#[test]
fn what_cannot_be_is_refused_although_the_checksum_is_right() {
    let report = fixture::report(30_000);
    let refuse = |what: &str, change: &dyn Fn(&mut Report)| {
        let mut report = report.clone();
        change(&mut report);
        let read = read_any(write(&report).as_bytes());
        assert!(
            matches!(read, Err(StateError::Invalid(_))),
            "{what}: {read:?}"
        );
    };
    refuse("schema", &|report| report.schema = 2);
    refuse("checksum of the profile", &|report| report.profile.ops += 1);
    refuse("overflow", &|report| {
        report.profile.buckets[0].ops = u64::MAX
    });
    refuse("more ops than can be counted", &|report| {
        let more = (1 << 60) - report.profile.ops + 1;
        report.profile.ops += more;
        report.profile.buckets[0].ops += more;
    });
    refuse("a descent that does not begin at f0", &|report| {
        report.ftree.peaks.get_mut(&1).unwrap().state = DescentState::NotChosen;
    });
    refuse("bucket twice", &|report| {
        report.profile.buckets[1] = report.profile.buckets[0]
    });
    refuse("no such bucket", &|report| {
        report.profile.buckets.last_mut().unwrap().bucket = 64
    });
    refuse("resolution", &|report| report.profile.resolution = 0);
    refuse("decision ops", &|report| report.parameters.decision_ops = 0);
    refuse("negative squares", &|report| {
        let peak = report.ftree.peaks.get_mut(&1).unwrap();
        peak.decision.get_or_insert_default().squares = -0.5;
    });
    refuse("depth", &|report| report.parameters.max_depth = 100_000);
    refuse("share", &|report| report.peaks[0].share_of_ops = 1.5);
    refuse("peak range", &|report| report.peaks[0].first_bucket = 60);
    refuse("peak number", &|report| report.peaks[0].peak = 2);
    refuse("peak of an fnode", &|report| {
        report.ftree.maxcount.insert(9, 1);
    });
    refuse("peak 0", &|report| {
        report.ftree.peaks.insert(0, FnodePeak::default());
    });
    refuse("no site", &|report| report.ftree.children[0].site = None);
    refuse("stop without an end", &|report| {
        let peak = report.ftree.peaks.get_mut(&1).unwrap();
        peak.stop = Some(StopReason::NoCalls);
    });
    refuse("module twice", &|report| {
        report.modules.push(report.modules[0].clone());
    });
    refuse("negative pause", &|report| {
        report.probes.pause_us.p50 = -1.0
    });
    refuse("negative rests", &|report| {
        report.probes.effort.get_or_insert_default().rested = -1.0;
    });
}

#[test]
fn figures_that_are_no_figures_are_refused() {
    let file = write(&fixture::report(200));
    let json = json::render(&fixture::report(200)).unwrap();
    for (from, to) in [
        ("hz=2000000000", "hz=-1"),
        ("hz=2000000000", "hz=18446744073709551616"),
        ("hz=2000000000", "hz=NaN"),
        ("hz=2000000000", "hz=2000000000 hz=1"),
        ("hz=2000000000", "hz=\"2000000000\""),
        ("squares=", "squares=1e999"),
        ("engine=\"jump\"", "engine=\"magic\""),
        ("offset=\"0x1000\"", "offset=\"4096\""),
    ] {
        assert!(file.contains(from), "{from}");
        assert!(
            read_any(&sealed(&file.replacen(from, to, 1))).is_err(),
            "{to}"
        );
    }
    for (from, to) in [
        ("\"hz\": 2000000000", "\"hz\": -1"),
        ("\"hz\": 2000000000", "\"hz\": 1e400"),
        ("\"hz\": 2000000000", "\"hz\": 1, \"hz\": 1"),
        ("\"maxcount\": {}", "\"maxcount\": {\"1\": 1, \"1\": 2}"),
        ("\"schema\": 1", "\"schema\": 1, \"schema\": 1"),
    ] {
        assert!(json.contains(from), "{from}");
        assert!(
            read_any(json.replacen(from, to, 1).as_bytes()).is_err(),
            "{to}"
        );
    }
}

/// An ftree that is one path of so many fnodes.
fn deep(report: &Report, depth: usize) -> Report {
    let place = Place {
        module: "m".to_owned(),
        offset: 1,
    };
    let mut node = FtreeNode::default();
    for _ in 1..depth {
        node = FtreeNode {
            site: Some(place.clone()),
            children: if node.site.is_some() {
                vec![node]
            } else {
                Vec::new()
            },
            ..FtreeNode::default()
        };
    }
    let ftree = FtreeNode {
        children: vec![node],
        ..FtreeNode::default()
    };
    Report {
        ftree,
        ..report.clone()
    }
}

/// Lists that are empty are not written at all.
#[test]
fn too_many_different_values_are_read_as_they_were_written() {
    let side = |peak| PeakValues {
        peak,
        values: Vec::new(),
        lowest: 1,
        highest: u64::MAX,
    };
    let report = Report {
        values: vec![ValueContrast {
            expression: "arg1".to_owned(),
            share: 0.9,
            values: [side(1), side(2)],
        }],
        ..fixture::report(200)
    };
    assert_eq!(parse(write(&report).as_bytes()).unwrap(), report);
}

#[test]
fn that_nothing_was_inlined_is_not_forgotten() {
    let mut report = fixture::report(200);
    report.peaks[0].root_causes[0].inlined = Some(InlinedEntry::default());
    assert_eq!(parse(write(&report).as_bytes()).unwrap(), report);
}

#[test]
fn trees_nest_as_deep_as_paths_may_be_and_no_deeper() {
    let report = fixture::report(0);
    let deepest = deep(&report, MAX_DEPTH + 1);
    assert_eq!(read_any(write(&deepest).as_bytes()).unwrap(), deepest);
    let json = json::render(&deepest).unwrap();
    assert_eq!(read_any(json.as_bytes()).unwrap(), deepest);
    let deeper = deep(&report, MAX_DEPTH + 2);
    assert!(read_any(write(&deeper).as_bytes()).is_err());
    assert!(read_any(json::render(&deeper).unwrap().as_bytes()).is_err());
    for bracket in ["[", "{\"a\":"] {
        let bomb = format!("{{\"schema\": {}", bracket.repeat(1_000_000));
        assert!(read_any(bomb.as_bytes()).is_err());
    }
}

#[test]
fn many_fnodes_and_many_peaks_are_refused_together() {
    let mut report = fixture::report(30_000);
    report.profile.resolution = 16;
    for entry in &mut report.profile.buckets {
        entry.bucket *= 16;
    }
    let peak = report.peaks[0].clone();
    report.peaks = (1..=1_000)
        .map(|number| PeakEntry {
            peak: number,
            ..peak.clone()
        })
        .collect();
    let leaf = report.ftree.children[0].children[0].clone();
    report.ftree.children = vec![leaf; 3_000];
    let refused = validate::report(&report).unwrap_err();
    assert!(refused.to_string().contains("too many"), "{refused}");
    report.ftree.children.truncate(1_000);
    assert_eq!(validate::report(&report), Ok(()));
}

/// Runs the program as often as its analysis needs, each time from the file of the last.
fn from_file_to_file(most: usize) -> Session {
    let analysis = Analysis::new(Params::default());
    let mut session = Session::in_batches(fixture::program(), analysis, most);
    let mut runs = 0;
    while !session.finished {
        runs += 1;
        assert!(runs < 500, "the analysis does not end");
        session.run(41);
        let file = write(&fixture::of(&session));
        let report = read_any(file.as_bytes()).unwrap();
        let mut ids = SampleIds::of(&session);
        let restored = restore(&report, params(&report).unwrap(), &mut ids).unwrap();
        let next_op = session.next_op;
        session = Session::in_batches(fixture::program(), restored, most);
        session.next_op = next_op;
        if !session.finished {
            let again = fixture::of(&session);
            assert_eq!(again.profile, report.profile);
            assert_eq!(again.ftree.maxcount, report.ftree.maxcount);
        }
    }
    assert!(runs > 5);
    session
}

#[test]
fn an_analysis_goes_on_from_its_file() {
    let session = from_file_to_file(usize::MAX);
    let mut whole = Session::new(fixture::program(), Params::default());
    whole.run(30_000);
    for peak in 1..=3 {
        assert_eq!(session.causes(peak), whole.causes(peak), "peak {peak}");
    }
}

/// No run has as many ops as all batches of calls of a function take.
#[test]
fn an_analysis_in_batches_goes_on_from_its_file() {
    let session = from_file_to_file(1);
    let whole = from_file_to_file(usize::MAX);
    for peak in 1..=3 {
        assert_eq!(session.causes(peak), whole.causes(peak), "peak {peak}");
    }
}

#[test]
fn batches_that_do_not_exist_are_refused() {
    let mut report = fixture::report(30_000);
    report.ftree.portions = 2;
    report.ftree.children[0].portion = 2;
    report.ftree.peaks.get_mut(&1).unwrap().portion = 2;
    assert_eq!(validate::report(&report), Ok(()));
    type Change = fn(&mut FtreeNode);
    let wrong: [Change; 3] = [
        |f0| f0.children[0].portion = 3,
        |f0| f0.peaks.get_mut(&1).unwrap().portion = 3,
        |f0| f0.peaks.get_mut(&1).unwrap().maxcount_before = 1,
    ];
    for change in wrong {
        let mut report = report.clone();
        change(&mut report.ftree);
        assert!(validate::report(&report).is_err());
    }
}

prop_compose! {
    fn name()(name in "[ -~\\PC\\n\\x00-\\x1f\"\\\\]{0,12}") -> String { name }
}

prop_compose! {
    fn fnode_peak()(
        state in 0_usize..7, decision_ops: u64, measured_ops: u64, ops: u64, max: u64, sum: u64, reason in name(),
    ) -> FnodePeak {
        use DescentState as S;
        let states =
            [S::NotChosen, S::Waiting, S::Collecting, S::DecidedSelf, S::DecidedCallees, S::DecidedBoth, S::Ended];
        let ended = states[state] == S::Ended;
        FnodePeak {
            state: states[state],
            stop: ended.then_some(StopReason::NotInstrumentable),
            reason: ended.then_some(reason),
            decision_ops, measured_ops, ops, max, sum,
            ..FnodePeak::default()
        }
    }
}

fn tree() -> impl Strategy<Value = FtreeNode> {
    let leaf = (
        name(),
        any::<u64>(),
        prop::collection::btree_map(1_u32..=3, fnode_peak(), 0..3),
    );
    let leaf = leaf.prop_map(|(name, offset, peaks)| FtreeNode {
        site: Some(Place {
            module: format!("m{name}"),
            offset,
        }),
        maxcount: peaks
            .iter()
            .map(|(&peak, record)| (peak, record.ops))
            .collect(),
        name,
        peaks,
        count: offset,
        ..FtreeNode::default()
    });
    leaf.prop_recursive(4, 30, 4, |inner| {
        prop::collection::vec(inner, 1..4).prop_map(|children| FtreeNode {
            site: children[0].site.clone(),
            children,
            ..FtreeNode::default()
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_tree_and_any_text_survive(tree in tree(), words in prop::collection::vec(name(), 0..4), hz: u64) {
        let mut report = fixture::report(200);
        report.ftree.children = vec![tree];
        report.warnings = words.clone();
        report.target.command = words;
        report.clock.hz = hz;
        let file = write(&report);
        prop_assert!(!file.chars().any(|char| char.is_control() && char != '\n'));
        prop_assert_eq!(parse(file.as_bytes()).unwrap(), report.clone());
        let json = json::render(&report).unwrap();
        prop_assert_eq!(read_any(json.as_bytes()).unwrap(), report);
    }

    #[test]
    fn no_bytes_break_the_reader(bytes: Vec<u8>, text in "[darc 1\\-\\n\"=\\[\\]{}:,a-z0-9 ]{0,200}") {
        let _ = read_any(&bytes);
        let _ = read_any(text.as_bytes());
        let _ = read_any(&sealed(&format!("darc 1\nreport-lines 0\nreport{text}\nchecksum ")));
    }

    #[test]
    fn damaged_data_under_a_right_checksum_do_not_break_the_reader(at in 0_usize..100_000, with: u8) {
        let mut file = write(&fixture::report(200)).into_bytes();
        let at = at % file.len();
        file[at] = with & 0x7f;
        if let Ok(text) = String::from_utf8(file)
            && text.contains("checksum ")
        {
            let _ = read_any(&sealed(&text));
        }
    }
}
