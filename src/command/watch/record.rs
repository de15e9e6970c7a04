//! The file of `--record`: a sample of everything that is watched in each line.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use darc_analysis::Hz;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::per_second;
use crate::exit::{Failure, FailureKind};
use crate::output::open_in_place;
use crate::session::watching::{Item, Watching};

/// A file that samples are written to as they come.
#[derive(Debug)]
pub(super) struct Record {
    path: PathBuf,
    file: File,
    /// Pauses that are in it.
    pauses: usize,
}

impl Record {
    /// Opens the file, and leaves what is in it. Waits for nobody: a named pipe needs a reader already (fifo(7)).
    pub(super) fn open(path: &Path) -> Result<Record, Failure> {
        let opened = open_in_place(path);
        let blocking = |file: File| -> io::Result<File> {
            let flags = OFlag::from_bits_retain(fcntl(&file, FcntlArg::F_GETFL)?);
            fcntl(&file, FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK))?;
            Ok(file)
        };
        match opened.and_then(blocking) {
            Ok(file) => Ok(Record {
                path: path.to_owned(),
                file,
                pauses: 0,
            }),
            Err(error) => Err(Failure::message(
                FailureKind::File,
                format!("{path:?}: {error}; name another file"),
            )),
        }
    }

    /// Begins: what an earlier watch has left there is no more.
    pub(super) fn begin(&mut self) -> Result<(), Failure> {
        let is_file = self.file.metadata().is_ok_and(|file| file.is_file());
        match is_file {
            true => self.file.set_len(0).map_err(|error| self.failed(&error)),
            false => Ok(()),
        }
    }

    /// Writes the last sample of each item.
    pub(super) fn write(
        &mut self,
        watching: &Watching<'_>,
        time: Duration,
        hz: Hz,
    ) -> Result<(), Failure> {
        let path: Vec<&str> = watching.path().collect();
        let items = watching.items().iter();
        let functions: Vec<_> = items.filter_map(|item| recorded(item, hz)).collect();
        let all = watching.pauses();
        let new = all.get(self.pauses..).unwrap_or_default();
        let pauses: Vec<f64> = new.iter().map(|pause| pause.as_secs_f64() * 1e6).collect();
        self.pauses = all.len();
        let line = serde_json::json!({
            "schema": 1, "seconds": time.as_secs_f64(), "inside": path, "functions": functions, "pauses_us": pauses
        });
        writeln!(self.file, "{line}").map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &io::Error) -> Failure {
        Failure::message(
            FailureKind::File,
            format!("{:?}: the record cannot be written: {error}", self.path),
        )
    }
}

/// An item's last sample; times in nanoseconds.
fn recorded(item: &Item, hz: Hz) -> Option<serde_json::Value> {
    let sample = item.history.samples.back()?;
    let percentiles = sample
        .percentiles
        .map(|percentiles| percentiles.map(|ticks| hz.nanos(ticks).0));
    Some(serde_json::json!({
        "name": item.name,
        "calls": sample.calls,
        "calls_per_second": per_second(sample, hz),
        "concurrency": sample.concurrency,
        "p50_ns": percentiles.map(|p| p[0]),
        "p90_ns": percentiles.map(|p| p[1]),
        "p99_ns": percentiles.map(|p| p[2]),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_waited_for_and_nothing_emptied_too_early() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(Record::open(&pipe).unwrap_err().text().contains("pipe"));
        let path = folder.path().join("record");
        let earlier = r#"{"schema":1,"seconds":0.5,"inside":[],"functions":[],"pauses_us":[]}"#;
        std::fs::write(&path, earlier).unwrap();
        let mut record = Record::open(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), earlier);
        record.begin().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
        Record::open(Path::new("/dev/null"))
            .unwrap()
            .begin()
            .unwrap();
    }
}
