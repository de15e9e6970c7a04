//! What is to be found in each target program, as its head comment says it:
//!
//! ```text
//! name: what the program does, where a file has several programs
//!
//! f0 = serve
//! options: --max-depth 24
//! fast peak (4 of 5 ops, ~0.3 ms):  serve -> lookup                   function
//! slow peak (1 of 5 ops, ~2 to 9 ms):  serve -> wait_for -> … -> read    syscall
//!                                      serve -> rebuild                  function
//!     wrong: serve; serve -> wait_for
//! ```
//!
//! An element `…` stands for any number of functions, at the end of a path for one at least. A peak may have several causes, each on a line of its own, and the
//! answer is right when it names them all; `spread` says that there is no single one. Whatever else is named is wrong; what
//! it would be most tempting to name stands below.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// What a root-cause path ends in, as darc's output names it.
const KINDS: [&str; 7] = [
    "function",
    "loop",
    "syscall",
    "page-fault",
    "preemption",
    "signal",
    "spread",
];

/// A root cause that a peak may have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cause {
    /// The root-cause path, f0 first.
    pub path: Vec<String>,
    /// The kind in darc's JSON output.
    pub kind: String,
}

/// One peak that a program's profile has.
#[derive(Clone, Debug)]
pub struct Peak {
    /// The latency of its ops, in microseconds of a counter of 2.3 GHz: at least, and at most.
    pub us: (f64, f64),
    /// Its causes, all of them; none where the time is spread over too many.
    pub causes: Vec<Cause>,
    /// Paths that it would be tempting to name, and wrong.
    pub wrong: Vec<Vec<String>>,
}

/// What is to be found in one program.
#[derive(Clone, Debug)]
pub struct GroundTruth {
    /// The program, as [`crate::program`] takes it.
    pub program: String,
    /// The function whose latency is analysed.
    pub f0: String,
    /// Options of darc that the analysis needs.
    pub options: Vec<String>,
    /// Its peaks, from the shortest latency to the longest.
    pub peaks: Vec<Peak>,
}

/// Programs that are made from the source of another one, and have its truth.
const VARIANTS: [(&str, &str); 6] = [
    ("two_peaks_no_pie", "two_peaks"),
    ("two_peaks_static", "two_peaks"),
    ("two_peaks_static_pie", "two_peaks"),
    ("two_peaks_dwarf4", "two_peaks"),
    ("two_peaks_debuglink", "two_peaks"),
    ("lazily_bound_shadowed", "lazily_bound"),
];

/// The ground truths of all programs that have one.
///
/// # Panics
/// When a source cannot be read, or states its truth in another form.
#[must_use]
pub fn ground_truths() -> &'static [GroundTruth] {
    static ALL: LazyLock<Vec<GroundTruth>> = LazyLock::new(read_all);
    &ALL
}

/// The ground truth of the program of that name.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn ground_truth(program: &str) -> &'static GroundTruth {
    ground_truths()
        .iter()
        .find(|truth| truth.program == program)
        .unwrap_or_else(|| panic!("no ground truth of a program {program}"))
}

/// The truth that the head comment of a source states.
///
/// # Panics
/// When it states none, or in another form.
#[must_use]
pub fn truth_of(program: &str, text: &str) -> GroundTruth {
    let truths = read(program, text).unwrap_or_else(|why| panic!("{program}: {why}"));
    truths.into_iter().next().expect("a truth")
}

fn read_all() -> Vec<GroundTruth> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut truths = Vec::new();
    for folder in ["c", "cxx", "rust"] {
        for path in files(&sources.join(folder)) {
            let text = fs::read_to_string(&path).expect("a source");
            let name = path.file_stem().and_then(|name| name.to_str());
            let found = read(name.expect("a name"), &text);
            truths.extend(found.unwrap_or_else(|why| panic!("{}: {why}", path.display())));
        }
    }
    for (variant, original) in VARIANTS {
        let truth = truths.iter().find(|truth| truth.program == original);
        let mut truth = truth.expect("the original has one").clone();
        truth.program = variant.to_owned();
        truths.push(truth);
    }
    truths
}

/// All files below a folder, in the order of their names.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder of this package");
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("readable").path())
        .collect();
    paths.sort();
    let below = |path: PathBuf| match path.is_dir() {
        true => files(&path),
        false => vec![path],
    };
    paths.into_iter().flat_map(below).collect()
}

/// The truths in the comments of a source. A comment that names no peak states none.
fn read(file: &str, text: &str) -> Result<Vec<GroundTruth>, String> {
    let mut truths: Vec<GroundTruth> = Vec::new();
    let mut program = file.to_owned();
    let (mut has_begun, mut is_in_truth) = (false, false);
    for line in text.lines() {
        let Some(line) = in_comment(line) else {
            (has_begun, is_in_truth) = (false, false);
            continue;
        };
        if !has_begun && !line.is_empty() {
            has_begun = true;
            let name = line.split(": ").next().filter(|name| is_identifier(name));
            program = name.unwrap_or(file).to_owned();
        }
        if let Some(f0) = line.strip_prefix("f0 = ").filter(|f0| !f0.contains(' ')) {
            is_in_truth = true;
            truths.push(GroundTruth {
                program: program.clone(),
                f0: f0.trim_matches('`').to_owned(),
                options: Vec::new(),
                peaks: Vec::new(),
            });
        } else if let Some(truth) = truths.last_mut().filter(|_| is_in_truth) {
            is_in_truth = part(truth, line)?;
        }
    }
    truths.retain(|truth| !truth.peaks.is_empty());
    Ok(truths)
}

/// What a line of a comment says; nothing of a line of code.
fn in_comment(line: &str) -> Option<&str> {
    let line = line.trim();
    let said = ["/*", "*/", "//!", "//", "*"]
        .iter()
        .find_map(|start| line.strip_prefix(start));
    said.map(str::trim)
}

fn is_identifier(name: &str) -> bool {
    let is_part = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '_';
    !name.is_empty() && name.chars().all(is_part)
}

/// Takes in one line below `f0 =`: whether more of the truth may follow.
fn part(truth: &mut GroundTruth, line: &str) -> Result<bool, String> {
    if let Some(options) = line.strip_prefix("options: ") {
        truth.options = options.split(' ').map(str::to_owned).collect();
        return Ok(true);
    }
    if let Some((latency, cause)) = line.split_once("):").filter(|_| line.contains(" peak (")) {
        truth.peaks.push(Peak {
            us: microseconds(latency)?,
            causes: causes(cause)?,
            wrong: Vec::new(),
        });
        return Ok(true);
    }
    let Some(peak) = truth.peaks.last_mut() else {
        return Ok(true);
    };
    if let Some(wrong) = line.strip_prefix("wrong: ") {
        peak.wrong = wrong.split("; ").map(path).collect();
        return Ok(true);
    }
    match line.contains(" -> ") {
        true => peak.causes.extend(causes(line)?),
        false => return Ok(false),
    }
    Ok(true)
}

/// `… ~0.3 ms` or `… ~2 to 9 ms`.
fn microseconds(text: &str) -> Result<(f64, f64), String> {
    let said = || format!("no latency such as \"~0.3 ms\": {text}");
    let (_, text) = text.rsplit_once('~').ok_or_else(said)?;
    let (numbers, unit) = text.rsplit_once(' ').ok_or_else(said)?;
    let scale = match unit {
        "ns" => 1e-3,
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        _ => return Err(said()),
    };
    let (from, to) = numbers.split_once(" to ").unwrap_or((numbers, numbers));
    let number = |text: &str| text.parse::<f64>().map_err(|_| said());
    Ok((number(from)? * scale, number(to)? * scale))
}

/// `serve -> lookup  function`, or `spread`.
fn causes(text: &str) -> Result<Vec<Cause>, String> {
    let text = text.trim();
    let (names, kind) = text.rsplit_once(' ').unwrap_or(("", text));
    if !KINDS.contains(&kind) {
        return Err(format!("it ends in none of {KINDS:?}: {text}"));
    }
    let cause = Cause {
        path: path(names),
        kind: kind.to_owned(),
    };
    Ok(if kind == "spread" {
        vec![]
    } else {
        vec![cause]
    })
}

fn path(text: &str) -> Vec<String> {
    let names = text.split(" -> ");
    names.map(|name| name.trim().to_owned()).collect()
}

#[test]
fn truths_are_read_from_comments() {
    let text = "
/*
 * first: a sentence: with a colon.
 *
 * f0 = serve
 * options: --max-depth 24
 * fast peak (4 of 5 ops, ~0.3 ms):  serve -> lookup   function
 * slow peak (~2 to 9 us):  serve -> wait -> … -> read  syscall
 *                          serve -> rebuild            function
 *     wrong: serve; serve -> wait
 *
 * And something else: -> that is no cause.
 */
int code;
// second: the next one.
// f0 = `b`
// only peak (~10 ns): spread
";
    let [first, second] = &read("file", text).expect("well formed")[..] else {
        panic!("two programs");
    };
    assert_eq!((&*first.program, &*first.f0), ("first", "serve"));
    assert_eq!(first.options, ["--max-depth", "24"]);
    assert_eq!(first.peaks[0].us, (300.0, 300.0));
    assert_eq!(first.peaks[1].us, (2.0, 9.0));
    assert_eq!(
        first.peaks[1].causes[0].path,
        ["serve", "wait", "…", "read"]
    );
    assert_eq!(first.peaks[1].causes[1].kind, "function");
    assert_eq!(first.peaks[1].wrong, [vec!["serve"], vec!["serve", "wait"]]);
    assert_eq!(first.peaks.len(), 2);
    assert_eq!((&*second.program, &*second.f0), ("second", "b"));
    assert!(second.peaks[0].causes.is_empty());
    assert!(read("file", "/*\n * f0 = a\n * a peak (~1 min): a function\n").is_err());
    assert!(read("file", "/*\n * f0 = a\n * a peak (~1 s): a fast one\n").is_err());
}

#[test]
fn all_sources_state_their_truths_well() {
    for truth in ground_truths() {
        for peak in &truth.peaks {
            let all = peak
                .causes
                .iter()
                .map(|cause| &cause.path)
                .chain(&peak.wrong);
            for path in all {
                assert!(truth.f0.ends_with(&*path[0]), "{}: {path:?}", truth.program);
            }
        }
    }
}
