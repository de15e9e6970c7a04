//! Whether a file is one that darc has written: no other one is replaced.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// How much is read of a file's beginning and of its end, bytes.
const PART: usize = 64 << 10;

/// How files begin that darc has written, and what each has in its first or last part beside that.
const MARKS: &[(&str, &str)] = &[
    // Reports, profiles, samples.
    ("{\n  \"schema\": ", "\n  \"darc\": \""),
    // A record of darc watch.
    ("{\"schema\":1,\"seconds\":", "],\"pauses_us\":["),
    // Chrome's trace events.
    (
        "{\"traceEvents\":[",
        "],\"displayTimeUnit\":\"ns\",\"otherData\":{\"darc\":\"",
    ),
    (
        "{\"$schema\":\"https://www.speedscope.app/file-format-schema.json\",",
        "\"exporter\":\"darc ",
    ),
    (
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
        "<footer><p class=\"place\">darc ",
    ),
    (
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
        "<footer><p class=\"faint\">darc ",
    ),
    (
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"plot\" role=\"img\" ",
        " aria-label=\"Latency ",
    ),
    ("# callgrind format\nversion: 1\ncreator: darc ", "\n"),
    ("Samples of ", "\n  samples     "),
];

/// Whether darc has written a file, as far as its content tells; an empty one is as good as none. What is in doubt is not
/// ours.
///
/// # Errors
/// When it cannot be read.
pub fn is_ours(file: &File) -> io::Result<bool> {
    let length = file.metadata()?.len();
    let head = part(file, 0)?;
    if length == 0 || is_pprof(&head) {
        return Ok(true);
    }
    let head = String::from_utf8_lossy(&head);
    let tail = part(file, length.saturating_sub(PART as u64))?;
    let tail = String::from_utf8_lossy(&tail);
    Ok(is_marked(&head, &tail) || is_results(&head) || is_log(&head) || is_folded(&head))
}

fn part(file: &File, offset: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; PART];
    let read = file.read_at(&mut bytes, offset)?;
    bytes.truncate(read);
    Ok(bytes)
}

fn is_marked(head: &str, tail: &str) -> bool {
    let mut marks = MARKS.iter();
    marks.any(|(begins, has)| {
        head.strip_prefix(begins)
            .is_some_and(|rest| rest.contains(has) || tail.contains(has))
    })
}

/// The file that `resume` reads: `darc 1`, and how many lines are for people.
fn is_results(head: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let mut lines = head.lines();
    let mut rest = |begins| lines.next().and_then(|line| line.strip_prefix(begins));
    rest("darc ").is_some_and(number) && rest("report-lines ").is_some_and(number)
}

/// A log: `darc 0.1.0: log`.
fn is_log(head: &str) -> bool {
    let first = head.split_once('\n').map(|(first, _)| first);
    let version = first.and_then(|line| line.strip_prefix("darc ")?.strip_suffix(": log"));
    version.is_some_and(|version| {
        version.starts_with(|c: char| c.is_ascii_digit()) && !version.contains(' ')
    })
}

/// What gzip has made, with a comment and without a name (RFC 1952).
fn is_pprof(head: &[u8]) -> bool {
    const COMMENT: usize = 10;
    let comment = head.get(COMMENT..);
    head.starts_with(&[0x1f, 0x8b, 8, 0x10]) && comment.is_some_and(|it| it.starts_with(b"darc "))
}

/// Folded stacks have no place for a mark: each line is a stack and a number. Those of darc begin with a peak or with the
/// number of a process instance, as those of no other known tool do.
fn is_folded(head: &str) -> bool {
    let whole = head.rfind('\n').map_or("", |end| &head[..end]);
    let is_stack = |line: &str| {
        let (stack, count) = line.rsplit_once(' ')?;
        let (first, _) = stack.split_once(';')?;
        count.parse::<u64>().ok()?;
        let number = |text: &str| text.parse::<u64>().is_ok();
        let peak = first
            .strip_prefix("peak ")
            .map(|rest| match rest.split_once(" (") {
                Some((peak, range)) => {
                    let is_range = range.contains(" to ") || range.starts_with("below ");
                    number(peak) && range.ends_with(')') && is_range
                }
                None => number(rest),
            });
        let instance = first
            .rsplit_once(" #")
            .map(|(_, instance)| number(instance));
        Some(first == "no peak" || peak == Some(true) || instance == Some(true))
    };
    !whole.is_empty() && whole.lines().all(|line| is_stack(line) == Some(true))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn judge(content: &[u8]) -> bool {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), content).unwrap();
        is_ours(&File::open(file.path()).unwrap()).unwrap()
    }

    #[test]
    fn each_format_is_known_again() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("report/src/tests/golden");
        for name in [
            "out.txt",
            "finished.json",
            "finished.trace.json",
            "finished.speedscope.json",
            "finished.html",
            "finished.svg",
            "finished.folded",
            "finished.callgrind",
        ] {
            assert!(judge(&fs::read(golden.join(name)).unwrap()), "{name}");
        }
        assert!(judge(b""));
        assert!(judge(&darc_report::pprof::Profile::new(&[]).finish()));
        for ours in [
            "{\"schema\":1,\"seconds\":0.5,\"inside\":[],\"functions\":[],\"pauses_us\":[]}\n",
            "darc 0.1.0: log\n",
            "Samples of prog\n  samples     10, 90.0% of programs and 10.0% of the kernel\n",
            "prog #1;main 10\nprog #2;main;work 4\n",
            "peak 1;put 3\nno peak;put 4\n",
            "peak 1 (below 50 µs);put 3\npeak 2 (1 ms to 3 ms);put 4\n",
        ] {
            assert!(judge(ours.as_bytes()), "{ours}");
        }
    }

    #[test]
    fn what_others_have_written_is_not_ours() {
        for other in [
            "my notes\n",
            "\n",
            "{\"name\": \"package\"}\n",
            "<!DOCTYPE html>\n<p>darc</p>",
            "root:x:0:0:root:/root:/bin/bash\n",
            "12 34\n56 78\n",
            "darc",
            "darc is a tool that I must look at\n",
            "darc 1\nor 2?\n",
            "darc 0.1.0: log in first\n",
            "Samples of blood\nto be sent to the laboratory\n",
            "main;work 12\nmain;rest 3\n",
            "perl;main 12\nperf #x;main 3\n",
            "peak 1;put 3\nmain;work 4\n",
            "peak one (of 3);put 3\n",
            "{\"name\": \"package\", \"darc\": \"0.1.0\"}\n",
            "<!DOCTYPE html>\n<p class=\"place\">darc </p>\n",
            "<?xml version=\"1.0\"?>\n<svg class=\"plot\" role=\"img\"/>\n",
            "# callgrind format\ncreator: other\n# not creator: darc 0\n",
            "\u{1f}\u{8b}\u{8}\u{10}",
        ] {
            assert!(!judge(other.as_bytes()), "{other}");
        }
        assert!(!judge(&[0; 200_000]));
        assert!(!judge(&fs::read("/proc/self/exe").unwrap()));
    }
}
