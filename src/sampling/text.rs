//! A profile for people. Pure.

use std::fmt::Write as _;

use darc_analysis::Nanos;
use darc_report::escape::control;
use darc_report::words::percent;

use super::listing::Listed;
use super::profile::{During, FunctionEntry, Profile, SampledScope};
use super::python::{PythonEntry, PythonProfile};

/// Rows that a table shows.
const ROWS: usize = 20;
/// Rows of functions without samples of their own are left out, and rows of so little.
const LEAST_SHARE: f64 = 0.001;

/// The report.
#[must_use]
pub fn render(profile: &Profile) -> String {
    let mut text = String::new();
    head(&mut text, profile);
    if profile.samples > 0 {
        processes(&mut text, profile);
        if let Some(python) = &profile.python {
            python_functions(&mut text, python);
        }
        functions(&mut text, profile);
        lines(&mut text, profile);
        for function in profile.functions.iter().filter(|f| !f.listing.is_empty()) {
            listing(&mut text, function, profile.samples);
        }
    }
    text
}

fn share(samples: u64, all: u64) -> String {
    percent(samples as f64 / all.max(1) as f64)
}

fn head(text: &mut String, profile: &Profile) {
    let circumstances = &profile.circumstances;
    let _ = writeln!(text, "Samples of {}", control(&circumstances.target));
    let _ = writeln!(
        text,
        "  samples     {}, {} of programs and {} of the kernel",
        profile.samples,
        share(profile.user, profile.samples),
        share(profile.kernel, profile.samples)
    );
    let busy = profile.samples as f64 / f64::from(circumstances.rate.max(1));
    let _ = writeln!(
        text,
        "  taken       at {} Hz in {:.1} s on {} CPUs: {busy:.2} s of CPU time",
        circumstances.rate, circumstances.seconds, circumstances.cpus
    );
    if let Some(cost) = circumstances.sample_cost_ns {
        let _ = writeln!(
            text,
            "  cost        {} a sample on this machine, {} of the CPU time; more where a program needs its caches",
            Nanos(cost),
            percent(cost * f64::from(circumstances.rate) / 1e9)
        );
    }
    if let Some(during) = &circumstances.during {
        ops(text, during, profile.samples);
    }
    if circumstances.scope == SampledScope::User {
        text.push_str("  not seen    time in the kernel\n");
    }
    if profile.lost > 0 || profile.throttled > 0 {
        let _ = writeln!(
            text,
            "  lost        {} records, and sampling was stopped {} times by the kernel",
            profile.lost, profile.throttled
        );
    }
    if profile.stacks_cut > 0 {
        let _ = writeln!(
            text,
            "  cut         {} samples have no callers here: there were too many different stacks",
            profile.stacks_cut
        );
    }
}

/// Which ops the samples are of, and what became of the others.
fn ops(text: &mut String, during: &During, kept: u64) {
    let all = kept + during.in_other_ops + during.outside;
    let _ = writeln!(
        text,
        "  only in     peak {} of {} of {}, {} to {}: {} of {} ops",
        during.peak,
        during.peaks,
        control(&during.f0),
        Nanos(during.from_ns),
        Nanos(during.to_ns),
        during.ops,
        during.all_ops
    );
    let _ = writeln!(
        text,
        "  left out    {} in other ops, {} outside of ops: of all samples {} are shown",
        during.in_other_ops,
        during.outside,
        share(kept, all)
    );
    if during.ops_unseen > 0 {
        let _ = writeln!(
            text,
            "  not seen    {} ops are known by their latency only; samples in them count as outside",
            during.ops_unseen
        );
    }
    let _ = writeln!(
        text,
        "  clocks      of samples and ops agree within {}; {} samples are that close to an end of their op",
        Nanos(during.clock_error_ns),
        during.at_edges
    );
}

/// The last part of a path.
fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn more(text: &mut String, all: usize, shown: usize) {
    if all > shown {
        let _ = writeln!(text, "  … and {} more", all - shown);
    }
}

fn processes(text: &mut String, profile: &Profile) {
    let all = profile.samples;
    if profile.programs.len() > 1 || profile.processes.len() > 1 {
        text.push_str("\nPrograms\n    share   samples  instances  program\n");
        for program in profile.programs.iter().take(ROWS) {
            let _ = writeln!(
                text,
                "  {:>7}  {:>8}  {:>9}  {}",
                share(program.samples, all),
                program.samples,
                program.instances,
                control(&program.name)
            );
        }
        more(text, profile.programs.len(), ROWS);
    }
    text.push_str("\nProcess instances\n    share   samples   kernel      pid  instance\n");
    for process in profile.processes.iter().take(ROWS) {
        let _ = writeln!(
            text,
            "  {:>7}  {:>8}  {:>7}  {:>7}  {} #{}",
            share(process.samples, all),
            process.samples,
            share(process.kernel, process.samples),
            process.pid,
            control(&process.name),
            process.instance
        );
    }
    more(text, profile.processes.len(), ROWS);
}

fn python_functions(text: &mut String, python: &PythonProfile) {
    let all = python.looks;
    let least = LEAST_SHARE * all as f64;
    let worth = |entry: &&PythonEntry| entry.total as f64 >= least;
    let shown: Vec<&PythonEntry> = python.functions.iter().filter(worth).take(ROWS).collect();
    let widths = shown
        .iter()
        .map(|entry| control(&entry.name).chars().count());
    let width = widths.max().unwrap_or(0).clamp(8, 40);
    let unread = match python.unread {
        0 => String::new(),
        unread => format!("; {unread} more changed while they were read"),
    };
    let _ = writeln!(
        text,
        "\nPython functions (of {all} looks at running threads{unread})\n      own     looks  with callees  {:<width$}  defined at",
        "function"
    );
    for entry in &shown {
        let _ = writeln!(
            text,
            "  {:>7}  {:>8}  {:>12}  {:<width$}  {}:{}",
            share(entry.own, all),
            entry.own,
            share(entry.total, all),
            control(&entry.name),
            control(&entry.file),
            entry.line
        );
    }
    more(text, python.functions.len(), shown.len());
}

fn functions(text: &mut String, profile: &Profile) {
    let all = profile.samples;
    let worth = |function: &&FunctionEntry| function.own as f64 >= LEAST_SHARE * all as f64;
    let shown: Vec<&FunctionEntry> = profile.functions.iter().filter(worth).take(ROWS).collect();
    let width = shown
        .iter()
        .map(|function| control(&function.name).chars().count())
        .max()
        .unwrap_or(0)
        .clamp(8, 40);
    let _ = writeln!(
        text,
        "\nFunctions (with callees: as far as frame pointers tell)\n      own   samples  with callees  {:<width$}  module",
        "function"
    );
    for function in &shown {
        let _ = writeln!(
            text,
            "  {:>7}  {:>8}  {:>12}  {:<width$}  {}",
            share(function.own, all),
            function.own,
            share(function.total, all),
            control(&function.name),
            control(base(&function.module))
        );
    }
    let with_samples = profile
        .functions
        .iter()
        .filter(|function| function.own > 0)
        .count();
    more(text, with_samples, shown.len());
}

fn lines(text: &mut String, profile: &Profile) {
    let all = profile.samples;
    let mut lines: Vec<_> = profile
        .functions
        .iter()
        .flat_map(|function| function.lines.iter().map(move |line| (line, function)))
        .collect();
    lines.sort_by_key(|(line, _)| std::cmp::Reverse(line.samples));
    lines.retain(|(line, _)| line.samples as f64 >= LEAST_SHARE * all as f64);
    if lines.is_empty() {
        return;
    }
    text.push_str("\nLines\n    share   samples  line\n");
    for (line, function) in lines.iter().take(ROWS) {
        let _ = writeln!(
            text,
            "  {:>7}  {:>8}  {}:{} in {}",
            share(line.samples, all),
            line.samples,
            control(&line.file),
            line.line,
            control(&function.name)
        );
    }
    more(text, lines.len(), ROWS);
}

fn listing(text: &mut String, function: &FunctionEntry, all: u64) {
    let _ = writeln!(
        text,
        "\n{} in {}: {} of all samples",
        control(&function.name),
        control(base(&function.module)),
        share(function.own, all)
    );
    for listed in &function.listing {
        match listed {
            Listed::Source {
                file,
                line,
                text: source,
            } => {
                let name = base(file);
                let source = source.as_deref().unwrap_or_default().replace('\t', "    ");
                let _ = writeln!(
                    text,
                    "          {}",
                    format!("{}:{line}  {}", control(name), control(&source)).trim_end()
                );
            }
            Listed::Instruction {
                address,
                samples,
                text: instruction,
            } => {
                let share = match samples {
                    0 => String::new(),
                    _ => share(*samples, all),
                };
                let _ = writeln!(
                    text,
                    "  {share:>7}    {address:>8x}:  {}",
                    control(instruction)
                );
            }
            Listed::Gap => text.push_str("                 …\n"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::adding::tests::sample;
    use super::*;

    #[test]
    fn the_report_is_as_it_is_shown() {
        let text = render(&sample());
        let expected = "\
Samples of prog
  samples     10, 90.0% of programs and 10.0% of the kernel
  taken       at 100 Hz in 0.1 s on 2 CPUs: 0.10 s of CPU time
  cost        20 µs a sample on this machine, 0.20% of the CPU time; more where a program needs its caches

Programs
    share   samples  instances  program
     100%        10          2  prog

Process instances
    share   samples   kernel      pid  instance
    60.0%         6       0%        1  prog #1
    40.0%         4    25.0%        2  prog #2

Functions (with callees: as far as frame pointers tell)
      own   samples  with callees  function  module
    90.0%         9         90.0%  f1        prog
    10.0%         1         10.0%  sys       [kernel]

Lines
    share   samples  line
    90.0%         9  prog.c:34 in f1

f1 in prog: 90.0% of all samples
          prog.c:32  statement 32
                  104:  op 104
          prog.c:33  statement 33
                  108:  op 108
                  10c:  op 10c
          prog.c:34  statement 34
    60.0%         110:  op 110
    30.0%         114:  op 114
          prog.c:35  statement 35
                  118:  op 118
                  11c:  op 11c
          prog.c:36  statement 36
                  120:  op 120
";
        assert_eq!(text, expected, "{text}");
    }
}
