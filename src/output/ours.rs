//! Whether a file is one that darc has written: no other one is replaced.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// How much is read of a file's beginning and of its end, bytes.
const PART: usize = 64 << 10;

/// How a format's files begin, and what is in the first or last part of them where darc has written them.
const MARKS: &[(&str, &[&str])] = &[
    ("darc ", &["\n"]),
    ("Samples of ", &["\n"]),
    (
        "{",
        &[
            r#""darc": ""#,
            r#""darc":""#,
            r#""exporter": "darc "#,
            r#""exporter":"darc "#,
            // A record of darc watch.
            r#""pauses_us":["#,
        ],
    ),
    ("<!DOCTYPE html>", &[r#"">darc "#]),
    ("<?xml", &[r#" class="plot" role="img""#]),
    ("# callgrind format\n", &["\ncreator: darc "]),
    // The head of a file that gzip has made, with a comment (RFC 1952).
    ("\u{1f}\u{fffd}\u{8}\u{10}", &["darc "]),
];

/// Whether darc has written a file, as far as its content tells; an empty one is as good as none.
///
/// # Errors
/// When it cannot be read.
pub fn is_ours(file: &File) -> io::Result<bool> {
    let length = file.metadata()?.len();
    let head = part(file, 0)?;
    let tail = part(file, length.saturating_sub(PART as u64))?;
    Ok(length == 0 || is_marked(&head, &tail) || is_folded(&head))
}

fn part(file: &File, offset: u64) -> io::Result<String> {
    let mut bytes = vec![0; PART];
    let read = file.read_at(&mut bytes, offset)?;
    Ok(String::from_utf8_lossy(&bytes[..read]).into_owned())
}

fn is_marked(head: &str, tail: &str) -> bool {
    MARKS.iter().any(|(begins, marks)| {
        let has = |mark: &&str| head.contains(*mark) || tail.contains(*mark);
        head.starts_with(begins) && marks.iter().any(has)
    })
}

/// Folded stacks have no place for a mark: each line is a stack and a number.
fn is_folded(head: &str) -> bool {
    let whole = head.rfind('\n').map_or("", |end| &head[..end]);
    let is_stack = |line: &str| {
        let parts = line.rsplit_once(' ');
        parts.is_some_and(|(stack, count)| stack.contains(';') && count.parse::<u64>().is_ok())
    };
    !whole.is_empty() && whole.lines().all(is_stack)
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
        assert!(judge(b"{\"functions\":[],\"pauses_us\":[],\"schema\":1}\n"));
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
            "\u{1f}\u{8b}\u{8}\u{10}",
        ] {
            assert!(!judge(other.as_bytes()), "{other}");
        }
        assert!(!judge(&[0; 200_000]));
        assert!(!judge(&fs::read("/proc/self/exe").unwrap()));
    }
}
