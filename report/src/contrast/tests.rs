//! Which rows the table has, and what is in them.

use super::*;
use crate::fixture;
use crate::model::Report;
use crate::place::Place;
use darc_analysis::simulate::{Program, Run, Session, call as callee};
use darc_analysis::{Analysis, Params};

/// A function with one call that was made and five that were not.
#[test]
fn calls_that_were_not_made_are_left_out() {
    let call = |name: &str, count| FtreeNode {
        name: name.to_owned(),
        count,
        ..FtreeNode::default()
    };
    let mut f0 = call("f0", 9);
    f0.children = vec![call("error", 0); 5];
    f0.children.insert(2, call("work", 9));
    let names = |f0: &FtreeNode, wanted| -> (Vec<String>, usize) {
        let table = table(f0, &[], wanted);
        let names = table.rows.iter().map(|row| row.what.name());
        (names.collect(), table.hidden)
    };
    assert_eq!(names(&f0, Rows::Main), (vec!["f0".to_owned()], 2));
    let all = ["f0", "error", "work"].map(str::to_owned);
    assert_eq!(names(&f0, Rows::All), (all.to_vec(), 0));
}

/// Calls without a probe are one line where the function's own time is much, and none elsewhere.
#[test]
fn calls_without_a_probe_are_one_line() {
    let mut report = fixture::report(30_000);
    let unmeasured = |name: &str| FtreeNode {
        name: name.to_owned(),
        unmeasured: true,
        ..FtreeNode::default()
    };
    let calls: Vec<FtreeNode> = ["a", "b", "c", "d", "e"].map(unmeasured).into();
    let names = |report: &Report, wanted| -> Vec<String> {
        let table = table(&report.ftree, &report.peaks, wanted);
        table.rows.iter().map(|row| row.what.name()).collect()
    };
    let callees = &mut report.ftree.children;
    let of = |name: &'static str| move |node: &&mut FtreeNode| node.name == name;
    let lock = callees.iter_mut().find(of("lock")).expect("it is called");
    lock.children.extend(calls.clone());
    let shown = |report: &Report| names(report, Rows::Main).contains(&"a, b, c, 2 more".to_owned());
    assert!(!shown(&report), "lock takes next to no time itself");
    let callees = &mut report.ftree.children;
    let sort = callees.iter_mut().find(of("sort")).expect("it is called");
    sort.children.extend(calls);
    assert!(shown(&report));
    assert!(names(&report, Rows::All).contains(&"e".to_owned()));
}

/// Functions of one name that are not the same have a row each.
#[test]
fn functions_of_one_name_are_told_apart() {
    let call = |line, offset| FtreeNode {
        name: "process".to_owned(),
        callee: Some(Place {
            module: "prog".to_owned(),
            offset,
        }),
        callee_file: Some("a.c".to_owned()),
        callee_line: Some(line),
        count: 9,
        ..FtreeNode::default()
    };
    let names = |children| {
        let f0 = FtreeNode {
            children,
            ..call(1, 0x10)
        };
        let table = table(&f0, &[], Rows::All);
        let names = table.rows.iter().skip(1).map(|row| row.what.name());
        names.collect::<Vec<_>>()
    };
    let (one, same) = (call(7, 0x20), call(7, 0x20));
    assert_eq!(names(vec![one.clone(), same]), ["process"]);
    let apart = ["process (a.c:7)", "process (a.c:9)"];
    assert_eq!(names(vec![one.clone(), call(9, 0x30)]), apart);
    let places = ["process (prog+0x20)", "process (prog+0x30)"];
    assert_eq!(names(vec![one, call(7, 0x30)]), places);
}

/// A wrapper of the C library and what it does are one thing to people; a function that does more is not its wrapper.
#[test]
fn a_wrapper_and_its_system_call_are_one_row() {
    let call = |kind, own: u64, children| FtreeNode {
        name: "fsync".to_owned(),
        kind,
        count: 1,
        peaks: [(
            1,
            FnodePeak {
                measured_ops: 1,
                measured_time: 1_000,
                ops: 1,
                count: 1,
                sum: 1_000 - own,
                ..FnodePeak::default()
            },
        )]
        .into(),
        children,
        ..FtreeNode::default()
    };
    let peaks = [PeakEntry {
        peak: 1,
        ops: 1,
        total: 1_000,
        ..fixture::report(200).peaks[0].clone()
    }];
    let names = |own| -> Vec<String> {
        let system_call = call(CalleeKind::Syscall, own, Vec::new());
        let wrapper = call(CalleeKind::Function, 0, vec![system_call]);
        let mut f0 = call(CalleeKind::Function, 0, vec![wrapper]);
        f0.name = "f0".to_owned();
        let table = table(&f0, &peaks, Rows::Main);
        table.rows.iter().map(|row| row.what.name()).collect()
    };
    assert_eq!(names(1), ["f0", "fsync → [fsync]"]);
    assert_eq!(names(500)[..2], ["f0", "fsync"]);
}

#[test]
fn calls_that_were_measured_in_batches_have_the_figures_of_their_batch() {
    let sites = [1, 2, 3, 4, 5, 6].map(|id| (id, callee(1)));
    let f0 = |run: &mut Run<'_>| {
        run.work(40_000);
        (1..=6).for_each(|id| run.call(id, 1));
    };
    let program = Program::default().function(0, "f", &sites, f0);
    let tenth = |run: &mut Run<'_>| run.work(10_000);
    let program = program.function(1, "tenth", &[], tenth);
    for most in [2, usize::MAX] {
        let analysis = Analysis::new(Params::default());
        let mut session = Session::in_batches(program.clone(), analysis, most);
        session.run(1_000);
        let report = fixture::of(&session);
        let rows = table(&report.ftree, &report.peaks, Rows::All).rows;
        let figures = rows.iter().map(|row| {
            let cell = row.cells[0];
            (row.what.name(), cell.time.unwrap_or(0), cell.calls)
        });
        let figures: Vec<_> = figures.collect();
        // The calls of one function are one row, whichever portion they were in.
        assert_eq!(rows.len(), 3);
        assert_eq!(figures[0].1, 100_000, "at most {most} at once");
        assert_eq!(figures[1].2, Some(6.0));
        assert!(figures[1].1.abs_diff(60_000) <= 10, "{figures:?}");
        assert_eq!(figures[2].0, "(itself)");
        assert!(figures[2].1.abs_diff(40_000) <= 10, "{figures:?}");
    }
}
