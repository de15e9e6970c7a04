//! What works on a machine, judged from facts: nothing here looks at the system, so that every case is a
//! test.
//!
//! Source: ptrace(2), capabilities(7), perf_event_open(2), proc_pid_status(5), the kernel's
//! Documentation/admin-guide/LSM/Yama.rst; Intel SDM volume 3, section 19.17 "Time-Stamp Counter".

use serde::Serialize;

use darc_process::coverage::{CallKind, Share, Sites};
use darc_report::escape::control;

const CAP_SYS_PTRACE: u32 = 19;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;

/// What was seen; `None` where nothing could be.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Facts {
    /// The kernel's release, as uname(2) gives it.
    pub kernel: Option<String>,
    /// `kernel.yama.ptrace_scope`; `None` without Yama.
    pub yama: Option<i64>,
    /// The effective user.
    pub uid: u32,
    /// Effective capabilities.
    pub capabilities: u64,
    /// The seccomp mode of darc itself.
    pub seccomp: Option<i64>,
    /// `kernel.perf_event_paranoid`; `None` when the kernel has no perf events.
    pub perf_event_paranoid: Option<i64>,
    /// Whether the kernel's tracepoints can be read, or why not; `None` when that was not tried.
    pub tracepoints: Option<Result<(), String>>,
    /// The flags of the first processor.
    pub cpu_flags: Vec<String>,
    /// Why the kernel does not keep its own time by the time stamp counter, where it does not.
    pub clock_doubt: Option<String>,
    /// What a trial came to: a child process was traced and its calls measured; nanoseconds a call, or why not.
    pub trial: Option<Result<f64, String>>,
    /// The program that was asked about.
    pub program: Option<Program>,
    /// The call sites of the files that were asked about.
    pub sites: Vec<Sites>,
}

/// What a program's file has.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Program {
    /// The path.
    pub path: String,
    /// How many functions are known.
    pub functions: usize,
    /// Whether there is a full symbol table, in the file or in a debug file.
    pub symbols: bool,
    /// Whether there are source lines.
    pub lines: bool,
    /// In hexadecimal.
    pub build_id: Option<String>,
    /// Of a Go program: whether it can be measured, else why not.
    pub go: Option<Result<(), String>>,
    /// Whether Go's own table of functions tells names and lines.
    pub go_table: bool,
    /// What was damaged or missing.
    pub warnings: Vec<String>,
}

/// How good a thing is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It works.
    Works,
    /// It works in part.
    Limited,
    /// It does not work.
    Missing,
}

/// One thing that was looked at.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct Check {
    /// What.
    pub name: &'static str,
    /// How good it is.
    pub verdict: Verdict,
    /// What was seen, and what it means.
    pub finding: String,
    /// How to get the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<&'static str>,
}

/// Judges everything.
#[must_use]
pub fn judge(facts: &Facts) -> Vec<Check> {
    let mut checks = vec![
        kernel(facts.kernel.as_deref()),
        trial(facts),
        ptrace(facts),
        seccomp(facts.seccomp),
        clock(facts),
        perf_events(facts),
        tracepoints(facts),
    ];
    if let Some(program) = &facts.program {
        checks.extend(self::program(program));
    }
    checks.extend(facts.sites.iter().map(call_sites));
    checks
}

fn check(
    name: &'static str,
    verdict: Verdict,
    finding: impl Into<String>,
    remedy: Option<&'static str>,
) -> Check {
    Check {
        name,
        verdict,
        finding: finding.into(),
        remedy,
    }
}

/// pidfd_open(2), by which the end of a target is noticed, came with Linux 5.3.
fn kernel(release: Option<&str>) -> Check {
    let Some(release) = release else {
        return check(
            "kernel",
            Verdict::Limited,
            "the version cannot be read",
            Some("mount /proc"),
        );
    };
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let finding = format!("Linux {}", control(release));
    if version >= (5, 3) {
        check("kernel", Verdict::Works, finding, None)
    } else {
        check(
            "kernel",
            Verdict::Missing,
            finding,
            Some("darc needs Linux 5.3 or later"),
        )
    }
}

fn trial(facts: &Facts) -> Check {
    match &facts.trial {
        None => check("tracing", Verdict::Limited, "was not tried", None),
        Some(Ok(nanos)) => {
            let cost = darc_analysis::Nanos(*nanos);
            let finding = format!(
                "a child process was traced; the int3 engine adds {cost} to a measured call"
            );
            check("tracing", Verdict::Works, finding, None)
        }
        Some(Err(why)) => check(
            "tracing",
            Verdict::Missing,
            control(why),
            Some("in a container allow ptrace (--cap-add SYS_PTRACE, or another seccomp profile)"),
        ),
    }
}

fn has(facts: &Facts, capability: u32) -> bool {
    facts.capabilities >> capability & 1 == 1
}

/// Which processes may be attached to.
fn ptrace(facts: &Facts) -> Check {
    let scope = match facts.yama {
        Some(scope) => format!("kernel.yama.ptrace_scope is {scope}"),
        None => "no Yama".to_owned(),
    };
    if facts.yama == Some(3) {
        let finding = format!("{scope}: no process can be attached to, until a reboot");
        return check(
            "attaching",
            Verdict::Missing,
            finding,
            Some("boot with another setting, or use another machine"),
        );
    }
    if has(facts, CAP_SYS_PTRACE) {
        let finding = format!("{scope}, and darc has CAP_SYS_PTRACE: processes of every user");
        return check("attaching", Verdict::Works, finding, None);
    }
    match (facts.yama, facts.uid) {
        (None | Some(0), 0) => check(
            "attaching",
            Verdict::Limited,
            format!("{scope}, but root lacks CAP_SYS_PTRACE here: processes of root only"),
            Some("start the container with --cap-add SYS_PTRACE"),
        ),
        (None | Some(0), _) => check(
            "attaching",
            Verdict::Works,
            format!("{scope}: your own processes"),
            Some("for those of other users run as root, or with CAP_SYS_PTRACE"),
        ),
        (Some(1), _) => check(
            "attaching",
            Verdict::Limited,
            format!(
                "{scope}: programs that darc starts itself (darc run), and processes that allow it"
            ),
            Some("for others: sudo sysctl kernel.yama.ptrace_scope=0, or run as root"),
        ),
        _ => check(
            "attaching",
            Verdict::Missing,
            format!("{scope}: administrators only"),
            Some("run as root, or with CAP_SYS_PTRACE"),
        ),
    }
}

fn seccomp(mode: Option<i64>) -> Check {
    match mode {
        Some(0) => check(
            "seccomp",
            Verdict::Works,
            "darc's own system calls are not filtered",
            None,
        ),
        Some(_) => check(
            "seccomp",
            Verdict::Limited,
            "darc's own system calls are filtered, as in most containers",
            Some("if tracing fails, start the container with a profile that allows ptrace"),
        ),
        None => check(
            "seccomp",
            Verdict::Limited,
            "cannot be seen",
            Some("mount /proc"),
        ),
    }
}

/// All durations are read from the time stamp counter, on whatever processor a thread runs.
fn clock(facts: &Facts) -> Check {
    let flag = |name: &str| facts.cpu_flags.iter().any(|flag| flag == name);
    let missing: Vec<&str> = ["constant_tsc", "nonstop_tsc"]
        .into_iter()
        .filter(|name| !flag(name))
        .collect();
    if !flag("tsc") {
        let remedy = Some("use a machine whose processor has one");
        return check(
            "clock",
            Verdict::Missing,
            "no time stamp counter is announced",
            remedy,
        );
    }
    if let Some(finding) = &facts.clock_doubt {
        let remedy = "the kernel's log says why (dmesg | grep -i tsc); measure threads that stay on one processor";
        return check("clock", Verdict::Limited, finding, Some(remedy));
    }
    if missing.is_empty() {
        let finding =
            "the time stamp counter runs at one rate, in sleep too (constant_tsc, nonstop_tsc)";
        return check("clock", Verdict::Works, finding, None);
    }
    check(
        "clock",
        Verdict::Limited,
        format!(
            "the time stamp counter may change its rate or stop (no {})",
            missing.join(", no ")
        ),
        Some(
            "keep the processor's frequency fixed while you measure; on virtual machines ask for an invariant TSC",
        ),
    )
}

fn perf_events(facts: &Facts) -> Check {
    const NAME: &str = "perf events";
    let Some(level) = facts.perf_event_paranoid else {
        let finding =
            "the kernel has none: no darc sample, and preemption counts as a function's own time";
        return check(NAME, Verdict::Missing, finding, None);
    };
    let setting = format!("kernel.perf_event_paranoid is {level}");
    let remedy = Some(
        "sudo sysctl kernel.perf_event_paranoid=1, or run with CAP_PERFMON; darc sample needs it, and telling preemption from a function's own time",
    );
    if has(facts, CAP_PERFMON) || has(facts, CAP_SYS_ADMIN) || level < 0 {
        check(
            NAME,
            Verdict::Works,
            format!("{setting}; darc may see everything"),
            None,
        )
    } else if level <= 1 {
        check(
            NAME,
            Verdict::Works,
            format!("{setting}: your own processes, and the kernel on their behalf"),
            None,
        )
    } else if level == 2 {
        check(
            NAME,
            Verdict::Limited,
            format!("{setting}: your own processes in user space"),
            remedy,
        )
    } else {
        check(
            NAME,
            Verdict::Missing,
            format!("{setting}: administrators only"),
            remedy,
        )
    }
}

fn tracepoints(facts: &Facts) -> Check {
    const NAME: &str = "tracepoints";
    match &facts.tracepoints {
        None => check(NAME, Verdict::Limited, "were not tried", None),
        Some(Ok(())) => {
            let finding = "who ends waits, interrupts, page faults and what system calls were called with are told";
            check(NAME, Verdict::Works, finding, None)
        }
        Some(Err(why)) => check(
            NAME,
            Verdict::Limited,
            why.clone(),
            Some(
                "without them nobody tells who ends waits, of interrupts, of page faults and of system calls' arguments",
            ),
        ),
    }
}

fn program(program: &Program) -> Vec<Check> {
    let path = control(&program.path);
    let mut checks = Vec::new();
    checks.extend(program.go.as_ref().map(|found| go(&path, found)));
    let functions = program.functions;
    checks.push(if program.symbols {
        check("symbols", Verdict::Works, format!("{path}: {functions} functions, with the full symbol table"), None)
    } else {
        check(
            "symbols",
            if functions > 0 { Verdict::Limited } else { Verdict::Missing },
            format!("{path}: stripped; {functions} functions are known, from exports and the unwind table"),
            Some("install the package of its debug symbols, or build it without strip"),
        )
    });
    checks.push(if program.lines {
        check("source lines", Verdict::Works, format!("{path}: has debugging information"), None)
    } else if program.go_table {
        let finding = format!("{path}: no debugging information; names and lines are those of Go's own table (.gopclntab), what was inlined is not known");
        check("source lines", Verdict::Works, finding, None)
    } else {
        let remedy = if program.build_id.is_some() {
            "build with -g (Rust: debug = \"line-tables-only\"), or put the debug file of this build-id below /usr/lib/debug/.build-id"
        } else {
            "build with -g (Rust: debug = \"line-tables-only\")"
        };
        let finding = format!("{path}: no debugging information; calls are shown as module and offset");
        check("source lines", Verdict::Limited, finding, Some(remedy))
    });
    checks.push(match &program.build_id {
        Some(id) => check("build-id", Verdict::Works, control(id), None),
        None => check(
            "build-id",
            Verdict::Limited,
            "none: darc resume cannot tell one build from another",
            Some("link with -Wl,--build-id"),
        ),
    });
    for warning in &program.warnings {
        checks.push(check("damage", Verdict::Limited, control(warning), None));
    }
    checks
}

/// Whether a Go program can be measured.
fn go(path: &str, found: &Result<(), String>) -> Check {
    const NAME: &str = "program";
    match found {
        Ok(()) => check(
            NAME,
            Verdict::Works,
            format!(
                "{path}: a Go program of a known version; darc attach and darc run measure it with --f0 FUNCTION"
            ),
            None,
        ),
        Err(why) => check(
            NAME,
            Verdict::Missing,
            format!(
                "{path}: a Go program whose calls cannot be measured: {}",
                control(why)
            ),
            Some("darc sample tells which functions take its time"),
        ),
    }
}

/// Calls that no probe can be put at are taken for their caller's own time.
fn call_sites(sites: &Sites) -> Check {
    const NAME: &str = "call sites";
    let total = sites.total();
    let path = control(&sites.path);
    if total.all == 0 {
        let finding = format!("{path}: no calls are known in it");
        return check(NAME, Verdict::Limited, finding, None);
    }
    let kinds = sites.kinds.iter();
    let kinds = kinds.map(|(kind, share)| format!("{} {}", kind.name(), part(*share)));
    let kinds: Vec<String> = kinds.collect();
    let mut finding = format!(
        "{path}: {} can be measured ({})",
        part(total),
        kinds.join(", ")
    );
    let mut reasons: Vec<(&String, &u64)> = sites.reasons.iter().collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    for (n, (reason, count)) in reasons.into_iter().enumerate() {
        let before = if n == 0 { "; not:" } else { "," };
        finding.push_str(&format!("{before} {count} ({})", control(reason)));
    }
    if sites.unread > 0 {
        let functions = sites.unread;
        finding.push_str(&format!(
            "; {functions} functions are left alone, for their code cannot be read or the unwind table leaves them out"
        ));
    }
    let indirect = sites.kinds.get(&CallKind::Indirect).copied();
    let good = total.part() >= 0.999 && indirect.unwrap_or_default().part() >= 0.995;
    let verdict = if good {
        Verdict::Works
    } else {
        Verdict::Limited
    };
    check(NAME, verdict, finding, None)
}

/// Rounded down: what is said to be all is all.
fn part(share: Share) -> String {
    let all = share.all;
    if share.measured == all {
        return format!("all of {all}");
    }
    let percent = (share.part() * 10_000.0).floor() / 100.0;
    format!("{percent:.2}% of {all}")
}

/// The checks for people, one a line with its remedy below.
#[must_use]
pub fn render(checks: &[Check]) -> String {
    let mut text = String::new();
    for check in checks {
        let verdict = match check.verdict {
            Verdict::Works => "ok",
            Verdict::Limited => "limited",
            Verdict::Missing => "missing",
        };
        text.push_str(&format!(
            "{verdict:<8}  {:<12}  {}\n",
            check.name, check.finding
        ));
        if let Some(remedy) = check.remedy {
            text.push_str(&format!("{:<24}→ {remedy}\n", ""));
        }
    }
    text
}

#[cfg(test)]
mod tests;
