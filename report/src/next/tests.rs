use super::*;
use crate::fixture;
use crate::model::{Futures, OffCpuEntry, ValueShare};
use crate::tests::golden;

fn commands(report: &Report, file: Option<&str>) -> Vec<String> {
    let steps = steps(report, file).into_iter();
    steps.map(|step| step.command).collect()
}

/// A report of a process that runs on.
fn alive(mut report: Report) -> Report {
    report.target.exit_status = None;
    report.ended(Ended::Finished)
}

#[test]
fn a_divided_function_leads_to_the_one_that_takes_the_time() {
    let mut report = alive(golden::running());
    assert_eq!(
        commands(&report, Some("out.txt")),
        [
            "darc attach 4711 -f put",
            "darc attach 4711 -f put --blocks after"
        ]
    );
    let mut waiting = report.focus[0].clone();
    waiting.function.name = "park".to_owned();
    waiting.share_of_time = 0.9;
    report.focus.push(waiting);
    assert_eq!(commands(&report, None)[0], "darc attach 4711 -f park");
    report.focus[1].peaks[0].off_cpu = Some(OffCpuEntry {
        time: 100,
        blocked: 80,
        ..OffCpuEntry::default()
    });
    assert_eq!(commands(&report, None)[0], "darc attach 4711 -f put");
    report.focus[1].share_of_time = 1.9;
    assert_eq!(commands(&report, None)[0], "darc attach 4711 -f park");
    report.focus.clear();
    assert_eq!(commands(&report, None), ["darc attach 4711 -f put"]);
    report.time.as_mut().expect("divided").parts.clear();
    assert_eq!(
        commands(&report, None),
        ["darc sample -p 4711", "darc attach 4711 -d 60s"]
    );
}

#[test]
fn what_was_refused_is_not_proposed() {
    let mut report = alive(golden::running());
    report.time.as_mut().expect("divided").share_of_cpu = Some(0.4);
    let sample = "darc sample -p 4711";
    assert_eq!(commands(&report, None), [sample, "darc attach 4711 -f put"]);
    report.warnings = vec!["put: f0 cannot be instrumented: it is odd".to_owned()];
    assert_eq!(commands(&report, None), [sample]);
}

#[test]
fn what_cannot_be_looked_into_is_sampled() {
    let mut report = alive(fixture::report(200));
    report.profile.resolution = Resolution::HALVES.get();
    let before = commands(&report, None);
    assert_eq!(before[0], "darc attach 4711 -f liblock.so.1:lock");
    for peak in &mut report.peaks {
        let cause = &mut peak.root_causes[0];
        (cause.stop, cause.share_of_time) = (StopReason::NotInstrumentable, 0.7);
    }
    let peak = main(&report.peaks).expect("one").peak;
    let sampled = format!("darc sample -p 4711 --f0 put --during-peak {peak}");
    assert_eq!(commands(&report, None)[0], sampled);
    report.profile.resolution = 8;
    assert_eq!(commands(&report, None)[0], "darc sample -p 4711");
}

#[test]
fn fewer_calls_of_a_short_program_do() {
    let mut report = alive(fixture::report(30));
    assert!(report.peaks.is_empty());
    report.target.exit_status = Some(0);
    let words = ["git", "log", "--format=%H", "-n", "it's"];
    report.target.command = words.map(str::to_owned).to_vec();
    let few = "darc run -f put --start-ops 10 -- git log --format=%H -n 'it'\\''s'";
    let gone_on = ["darc resume out.txt", few];
    assert_eq!(commands(&report, Some("out.txt")), gone_on);
    let mut divided = golden::running();
    divided.ended = Some(Ended::Target);
    divided.target = report.target.clone();
    divided.focus[0].peaks.clear();
    assert_eq!(commands(&divided, None), [few]);
}

#[test]
fn a_found_cause_is_put_to_the_test() {
    let mut report = alive(fixture::report(30_000));
    assert_eq!(main(&report.peaks).map(|peak| peak.peak), Some(2));
    assert_eq!(
        commands(&report, Some("my out.txt")),
        ["darc prove 'my out.txt'"]
    );
    assert_eq!(commands(&report, None), ["darc attach 4711 -f put --prove"]);
    report.target.exit_status = Some(0);
    assert_eq!(
        commands(&report, Some("out.txt")),
        ["darc report out.txt --open"]
    );
}

#[test]
fn a_function_is_named_so_that_no_other_is_meant() {
    let mut report = alive(fixture::report(30_000));
    let proof = |report: &Report| commands(report, None)[0].clone();
    assert_eq!(proof(&report), "darc attach 4711 -f put --prove");
    report.f0.module = "/usr/lib/libput.so.2".to_owned();
    report.ftree.callee = None;
    let in_library = "darc attach 4711 -f libput.so.2:put --prove";
    assert_eq!(proof(&report), in_library);
    report.ftree.children[0].name = "put".to_owned();
    let at_place = "darc attach 4711 -f libput.so.2+0x1000 --prove";
    assert_eq!(proof(&report), at_place);
}

#[test]
fn what_is_open_goes_on() {
    let mut report = alive(fixture::report(200));
    report.ended = Some(Ended::Duration);
    assert_eq!(
        commands(&report, Some("out.txt")),
        [
            "darc attach 4711 -f liblock.so.1:lock",
            "darc resume out.txt -p 4711 -d 60s"
        ]
    );
    let mut kept = report.clone();
    for peak in &mut kept.peaks {
        peak.kept_from_running = Some(0.4);
    }
    let next = commands(&kept, Some("out.txt"));
    assert_eq!(next[0], "darc resume out.txt -p 4711 -d 60s");
    for peak in &mut report.peaks {
        peak.root_causes[0].frames.truncate(1);
    }
    assert_eq!(commands(&report, None)[0], "darc attach 4711 -f put -d 60s");
    let main = report.peaks.iter_mut().find(|peak| peak.peak == 2);
    main.expect("it waits").root_causes[0].stop = StopReason::PartlyMeasured;
    let jump = |report: &Report| commands(report, None)[0].ends_with("-f put --engine int3");
    assert!(!jump(&report), "its calls are too short for breakpoints");
    report.profile.total *= 100;
    assert!(jump(&report));
    report.engine = Engine::Int3;
    assert!(!jump(&report));
}

#[test]
fn what_would_end_in_the_same_way_is_not_proposed() {
    let mut report = alive(golden::running());
    report.focus.clear();
    report.time.as_mut().expect("divided").parts.clear();
    report.warnings =
        vec!["the program runs code that it makes itself (as Java), and so on".to_owned()];
    assert_eq!(commands(&report, None), ["darc sample -p 4711"]);

    let mut report = alive(fixture::report(9)).ended(Ended::Target);
    report.target.attached = true;
    report.peaks.clear();
    let among_few = |next: &[String]| next.iter().any(|next| next.contains("--start-ops 10"));
    let longer = |next: &[String]| next.iter().any(|next| next.ends_with(" -d 60s"));
    let next = commands(&report, None);
    assert!(among_few(&next) && longer(&next), "{next:?}");
    report.warnings = vec!["the target executed another program; measuring ended there".to_owned()];
    let next = commands(&report, None);
    assert!(among_few(&next) && !longer(&next), "{next:?}");
}

#[test]
fn what_ran_already_is_not_started() {
    let mut report = alive(fixture::report(200));
    report.target.exit_status = Some(139);
    report.ended = Some(Ended::Target);
    let started = commands(&report, Some("out.txt"));
    assert_eq!(started, ["darc resume out.txt"]);
    report.target.attached = true;
    report.target.exe = "/srv/my store".to_owned();
    assert_eq!(
        commands(&report, Some("out.txt")),
        [
            "darc attach 'my store' -f liblock.so.1:lock",
            "darc resume out.txt -p 'my store'"
        ]
    );
    report.target.exe = "/srv/4711".to_owned();
    let shown = ["darc report out.txt --open"];
    assert_eq!(commands(&report, Some("out.txt")), shown);
}

#[test]
fn nothing_goes_on_where_every_path_has_ended() {
    let mut report = alive(fixture::report(200));
    report.status = Status::Undecided;
    let resumes = |report: &Report| {
        let commands = commands(report, Some("out.txt"));
        commands.iter().any(|command| command.contains("resume"))
    };
    assert!(resumes(&report));
    for peak in &mut report.peaks {
        for cause in &mut peak.root_causes {
            cause.stop = StopReason::PartlyMeasured;
        }
    }
    assert!(!resumes(&report));
    report.peaks[0].root_causes[0].stop = StopReason::TooRare;
    assert!(resumes(&report));
    report.futures = Some(Futures::default());
    assert!(!resumes(&report), "it would be refused");
    let longer = "darc attach 4711 -f put -d 60s".to_owned();
    assert!(commands(&report, Some("out.txt")).contains(&longer));
}

#[test]
fn own_time_leads_to_its_lines() {
    let mut report = alive(fixture::report(30_000));
    report.peaks.retain(|peak| peak.peak == 1);
    let blocks = "darc attach 4711 -f put --blocks after";
    assert_eq!(commands(&report, None)[0], blocks);
    let cause = &mut report.peaks[0].root_causes[0];
    cause.frames.last_mut().expect("its own").file = None;
    report.profile.resolution = Resolution::HALVES.get();
    assert_eq!(
        commands(&report, None)[0],
        "darc sample -p 4711 --f0 put --during-peak 1"
    );
}

#[test]
fn the_same_calls_are_asked_for() {
    let mut report = alive(fixture::report(30_000));
    let proof = |report: &Report| commands(report, None)[0].clone();
    report.target.threads = vec!["worker*".to_owned(), "17".to_owned()];
    let named = "darc attach 4711 -f put --prove --thread 'worker*' --thread 17";
    assert_eq!(proof(&report), named);
    report.target.threads.clear();
    report.engine = Engine::Int3;
    for (from, to, above, option) in [
        (2_000_000, u64::MAX, None, "--slower-than 1ms"),
        (3_001, 4_000_000_000, None, "--between 1501ns..2s"),
        (0, 0, Some(999_000), "--above p99.9"),
    ] {
        report.parameters.range = Some(RangeEntry { from, to, above });
        let named = format!("darc attach 4711 -f put --prove {option} --engine int3");
        assert_eq!(proof(&report), named);
    }
    report.peaks.retain(|peak| peak.peak == 1);
    report.profile.resolution = Resolution::HALVES.get();
    let sampled = |report: &Report| proof(report).starts_with("darc sample");
    assert!(!sampled(&report), "the peak has another number there");
    report.parameters.range = None;
    assert!(sampled(&report));
    report.profile.resolution = 8;
    assert!(!sampled(&report));
}

#[test]
fn goroutines_are_not_asked_for_what_is_of_threads() {
    let mut report = alive(fixture::report(30_000));
    report.target.goroutines = true;
    report.profile.total *= 100;
    let before = report.peaks.clone();
    for peak in &mut report.peaks {
        peak.root_causes[0].stop = StopReason::PartlyMeasured;
    }
    let said = commands(&report, None);
    assert!(!said.iter().any(|it| it.contains("int3")), "{said:?}");
    report.peaks = before;
    let shown = ["darc report out.txt --open"];
    assert_eq!(commands(&report, Some("out.txt")), shown, "no proof");
    report.peaks.retain(|peak| peak.peak == 1);
    assert_eq!(commands(&report, Some("out.txt")), shown, "no lines");
    let values = |lowest| PeakValues {
        peak: 1,
        values: Vec::new(),
        lowest,
        highest: u64::MAX,
    };
    report.values = vec![ValueContrast {
        expression: "arg1".to_owned(),
        share: 1.0,
        values: [values(FIRST_ADDRESS), values(FIRST_ADDRESS)],
    }];
    assert_eq!(commands(&report, None), [""; 0], "no values, no watch");
    report.profile.ops = 0;
    let said = commands(&report, None);
    assert!(said[1].starts_with("darc list"), "{said:?}");
}

#[test]
fn arguments_lead_to_what_is_behind_them() {
    let of = |values: &[u64]| PeakValues {
        peak: 1,
        values: values
            .iter()
            .map(|&value| ValueShare { value, share: 0.1 })
            .collect(),
        lowest: values.first().copied().unwrap_or(0x7f00_0000_0000),
        highest: u64::MAX,
    };
    let contrast = |expression: &str, one: &[u64], other: &[u64]| {
        sharper(&ValueContrast {
            expression: expression.to_owned(),
            share: 1.0,
            values: [of(one), of(other)],
        })
    };
    let every_fifth = contrast("arg1", &[3, 5, 6, 7, 8], &[4, 9, 19, 14]);
    assert_eq!(every_fifth.as_deref(), Some("arg1%5"));
    assert_eq!(contrast("arg2", &[], &[]).as_deref(), Some("*arg2"));
    assert_eq!(contrast("arg1", &[1], &[7]), None, "it is the answer");
    assert_eq!(contrast("arg1%5", &[3, 0, 1], &[4, 9, 14]), None);
}

#[test]
fn names_from_the_target_cannot_become_commands() {
    assert_eq!(quoted("a$(reboot)").as_deref(), Some("'a$(reboot)'"));
    assert_eq!(quoted("it's").as_deref(), Some("'it'\\''s'"));
    assert_eq!(quoted("a\\b").as_deref(), Some("'a\\b'"));
    for unfit in ["", "-o", "a\nb", "\u{202e}"] {
        assert_eq!(quoted(unfit), None, "{unfit:?}");
    }
    let mut report = alive(fixture::report(30_000));
    report.f0.name = "put\x1b[2J".to_owned();
    assert_eq!(commands(&report, None), [""; 0]);
}
