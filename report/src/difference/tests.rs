use super::*;
use crate::Report;
use crate::fixture;
use crate::state;
use crate::tests::golden::golden;
use crate::text::Style;

fn set<'a>(file: &str, report: &'a Report) -> Set<'a> {
    let tables =
        std::iter::once(&report.profile).chain(report.focus.iter().map(|focus| &focus.profile));
    let profiles = tables.map(|table| state::profile(table).unwrap());
    Set::of_report(file.to_owned(), report, profiles.collect())
}

/// The sample without the ops of its slowest peak.
fn without_slow_ops() -> Report {
    let mut report = fixture::report(30_000);
    report.profile.buckets.retain(|entry| entry.bucket < 19);
    report.profile.ops = report.profile.buckets.iter().map(|entry| entry.ops).sum();
    report.profile.total = report.profile.buckets.iter().map(|entry| entry.total).sum();
    report.peaks.remove(1);
    report
}

#[test]
fn a_new_peak_is_shown_with_its_cause() {
    let (before, after) = (without_slow_ops(), fixture::report(30_000));
    let conditions = [Condition::NewPeak, Condition::AtLeast(Method::Emd, 100.0)];
    let (before, after) = (set("before.txt", &before), set("after\n.txt", &after));
    let difference = of(&before, &after, Method::Emd, &conditions).unwrap();
    assert_eq!(difference.failed_on, ["new-peak"]);
    let pair = &difference.pairs[0];
    assert!(pair.changed);
    assert_eq!(pair.peaks[0].change, Change::Appeared);
    assert_eq!(pair.peaks[0].root_causes[0].path, ["put", "lock", "futex"]);
    golden(
        "difference.txt",
        &text::render(&difference, Style::default()),
    );
    let json = serde_json::to_string_pretty(&difference).unwrap() + "\n";
    golden("difference.json", &json);
}

#[test]
fn a_result_does_not_differ_from_itself() {
    let report = fixture::report(30_000);
    let set = set("out.txt", &report);
    let limits = Method::NAMES.map(|(_, method)| Condition::AtLeast(method, 0.01));
    let difference = of(&set, &set, Method::ChiSquare, &limits).unwrap();
    assert_eq!(difference.pairs[0].rating, Some(0.0));
    assert!(difference.failed_on.is_empty() && difference.warnings.is_empty());
}

#[test]
fn another_resolution_is_refused() {
    let (one, mut two) = (fixture::report(30_000), fixture::report(30_000));
    two.profile.resolution = 2;
    let refused = of(&set("a", &one), &set("b", &two), Method::Emd, &[]);
    assert_eq!(refused, Err(ProfileError::Resolution(1, 2)));
}

#[test]
fn functions_below_f0_are_paired_by_their_path_and_rated() {
    let focus = |name: &str, report: &Report| crate::model::Focus {
        path: vec!["main".to_owned(), name.to_owned()],
        function: report.f0.clone(),
        callers: Vec::new(),
        status: report.status,
        share_of_time: 0.5,
        calls: 10,
        profile: report.profile.clone(),
        peaks: Vec::new(),
        values: Vec::new(),
        ftree: report.ftree.clone(),
        handover: None,
    };
    let (mut before, mut after) = (fixture::report(30_000), fixture::report(30_000));
    before.focus = vec![
        focus("same", &after),
        focus("other", &without_slow_ops()),
        focus("gone", &after),
    ];
    after.focus = vec![focus("other", &before), focus("same", &before)];
    let difference = of(
        &set("a", &before),
        &set("b", &after),
        Method::Latency,
        &[Condition::NewPeak],
    )
    .unwrap();
    let names: Vec<&str> = difference
        .pairs
        .iter()
        .map(|pair| pair.name.as_str())
        .collect();
    assert_eq!(names, ["main → other", "put"]);
    assert_eq!((difference.left_out, difference.only_before.len()), (1, 1));
    assert_eq!(difference.failed_on, ["new-peak"]);
}

/// Gives the report's profile these ops.
fn content(report: &mut Report, counts: &[(u32, u64)]) {
    let entry = |&(bucket, ops): &(u32, u64)| crate::model::BucketEntry {
        bucket,
        ops,
        total: ops << bucket,
    };
    report.profile.buckets = counts.iter().map(entry).collect();
    report.profile.ops = counts.iter().map(|(_, ops)| ops).sum();
    report.profile.total = counts.iter().map(|(bucket, ops)| ops << bucket).sum();
}

#[test]
fn the_verdict_tells_peaks_that_may_be_chance() {
    let (mut before, mut after) = (fixture::report(30_000), fixture::report(30_000));
    content(&mut before, &[(12, 100)]);
    content(&mut after, &[(12, 97), (16, 3)]);
    let told = |one: &Report, other: &Report| {
        let difference = of(&set("a", one), &set("b", other), Method::Emd, &[]).unwrap();
        let text = text::render(&difference, Style::default());
        text.lines().last().unwrap().to_owned()
    };
    let chance = |what: &str| format!("Verdict: no clear change: {what}, which may be chance");
    assert_eq!(told(&before, &after), chance("a new peak"));
    assert_eq!(told(&after, &before), chance("a peak vanished"));
    assert_eq!(told(&after, &after), "Verdict: no distribution has changed");
    content(&mut after, &[(12, 990), (22, 10)]);
    content(&mut before, &[(12, 2_000)]);
    let verdict = told(&before, &after);
    assert!(verdict.starts_with("Verdict: changed: put: "), "{verdict}");
    assert!(verdict.ends_with(", a new peak"), "{verdict}");
}

#[test]
fn a_few_calls_are_no_new_peak_of_a_distribution_that_has_changed() {
    let with = |counts: &[(u32, u64)]| {
        let mut report = fixture::report(30_000);
        content(&mut report, counts);
        report
    };
    let before = with(&[(12, 500), (13, 500)]);
    let mut after = with(&[(12, 100), (13, 896), (20, 4)]);
    after.peaks[1].first_bucket = 20;
    after.peaks[1].last_bucket = 20;
    let small = crate::model::RootCauseEntry {
        share_of_time: 0.01,
        path: vec!["small".to_owned()],
        ..after.peaks[1].root_causes[0].clone()
    };
    after.peaks[1].root_causes = [vec![small; 5], after.peaks[1].root_causes.clone()].concat();
    let sets = (set("a", &before), set("b", &after));
    let difference = of(&sets.0, &sets.1, Method::Emd, &[Condition::NewPeak]).unwrap();
    assert!(difference.failed_on.is_empty());
    assert!(difference.pairs[0].changed);
    let text = text::render(&difference, Style::default());
    let verdict = text.lines().last().unwrap();
    assert!(verdict.starts_with("Verdict: changed: put: "), "{verdict}");
    assert!(!verdict.contains("new peak"), "{verdict}");
    let chance = ", of 0 calls before and 4 after, which may be chance";
    assert!(text.contains(chance), "{text}");
    let first = format!("{chance}\n    put → lock → futex\n");
    assert!(text.contains(&first), "{text}");
    assert!(text.contains("… and 3 more paths"), "{text}");
}
