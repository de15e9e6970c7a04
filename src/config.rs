//! `darc.toml`: options that are kept in a file (`--config FILE`).
//!
//! The file is not trusted: it is bounded, unknown keys are refused, every value goes through the same
//! checks as on the command line, and a command in it is only run when nobody else could have written it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use darc_analysis::{Params, PeakChoice, Resolution};
use serde::Deserialize;

use crate::duration;
use crate::exit::{Failure, FailureKind};
use crate::input::{distrust, read_bounded};
use crate::options::{EngineChoice, Format, GivenParams};

/// No honest file is larger.
const LARGEST: usize = 64 * 1024;

/// What the file says; everything is optional.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Config {
    /// The process to attach to.
    pub pid: Option<i32>,
    /// The name of the program to attach to.
    pub program: Option<String>,
    /// The function to analyse.
    pub f0: Option<String>,
    /// Where results go.
    pub output: Option<PathBuf>,
    /// The format of results.
    pub format: Option<Format>,
    /// How calls are measured.
    pub engine: Option<EngineChoice>,
    /// When the analysis ends by itself.
    pub duration: Option<Duration>,
    /// The parameters of the analysis.
    pub params: GivenParams,
    command: Option<Command>,
}

#[derive(Clone, PartialEq, Debug)]
struct Command {
    words: Vec<String>,
    /// Why the file's command may not be run.
    distrust: Option<String>,
}

impl Config {
    /// Reads `path`.
    ///
    /// # Errors
    /// Class [`FailureKind::File`]: not a readable regular file of reasonable size, not TOML, an
    /// unknown key, or a value that makes no sense.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let refuse = |why: String| Failure::message(FailureKind::File, format!("{path:?}: {why}"));
        let (bytes, metadata) =
            read_bounded(path, LARGEST).map_err(|error| refuse(error.to_string()))?;
        let text = String::from_utf8(bytes)
            .map_err(|_| refuse("is no UTF-8 text; name a TOML file".to_owned()))?;
        let keys: Keys = toml::from_str(&text).map_err(|error| {
            let line = error
                .span()
                .and_then(|span| text.get(..span.start))
                .map_or(0, |before| before.matches('\n').count());
            refuse(format!(
                "line {}: {}; correct it, see docs/configuration.md",
                line + 1,
                error.message()
            ))
        })?;
        let distrust = distrust(&metadata);
        keys.check(distrust)
            .map_err(|why| refuse(format!("{why}; correct it, see docs/configuration.md")))
    }

    /// The command to run; empty when the file has none.
    ///
    /// # Errors
    /// Class [`FailureKind::File`] when somebody else could have written the file.
    pub fn command(&self) -> Result<Vec<OsString>, Failure> {
        let Some(command) = &self.command else {
            return Ok(Vec::new());
        };
        match &command.distrust {
            Some(why) => Err(Failure::message(
                FailureKind::File,
                format!(
                    "the configuration's command is not run: {why}; give the command again after --"
                ),
            )),
            None => Ok(command.words.iter().map(OsString::from).collect()),
        }
    }
}

/// The keys as they stand in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Keys {
    pid: Option<i64>,
    program: Option<String>,
    command: Option<Vec<String>>,
    f0: Option<String>,
    output: Option<PathBuf>,
    format: Option<String>,
    engine: Option<EngineKey>,
    duration: Option<String>,
    start_ops: Option<i64>,
    decision_ops: Option<i64>,
    max_depth: Option<i64>,
    resolution: Option<i64>,
    peak: Option<PeakKey>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum EngineKey {
    Int3,
    Jump,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum PeakKey {
    Number(i64),
    Word(String),
}

impl Keys {
    fn check(self, distrust: Option<String>) -> Result<Config, String> {
        if self.pid.is_some() && self.program.is_some() {
            return Err("pid and program exclude each other".to_owned());
        }
        if self
            .program
            .as_deref()
            .is_some_and(|program| program.trim().is_empty())
        {
            return Err("program: not a program's name".to_owned());
        }
        if self.f0.as_deref().is_some_and(|f0| f0.trim().is_empty()) {
            return Err("f0: not a function's name".to_owned());
        }
        if self
            .command
            .as_ref()
            .is_some_and(|words| words.first().is_none_or(String::is_empty))
        {
            return Err("command: names no program".to_owned());
        }
        let pid = self.pid.map(|pid| {
            i32::try_from(pid)
                .ok()
                .filter(|&pid| pid > 0)
                .ok_or("pid: not a process id")
        });
        let duration = self
            .duration
            .map(|text| duration::parse(&text).map_err(|why| format!("duration: {text:?} {why}")));
        let resolution = self.resolution.map(|value| {
            let resolution = u32::try_from(value).ok().and_then(Resolution::new);
            resolution.ok_or_else(|| {
                format!(
                    "resolution: not a whole number between 1 and {}",
                    Resolution::MAX
                )
            })
        });
        let peak = self.peak.map(|peak| match peak {
            PeakKey::Word(word) if word == "all" => Ok(PeakChoice::All),
            PeakKey::Number(number @ 1..) => {
                u32::try_from(number).map(PeakChoice::One).map_err(|_| PEAK)
            }
            PeakKey::Word(_) | PeakKey::Number(_) => Err(PEAK),
        });
        let format = self.format.map(|name| {
            let known = Format::NAMES.map(|(name, _)| name).join(", ");
            Format::from_name(&name).ok_or_else(|| format!("format: {name:?} is none of {known}"))
        });
        let params = GivenParams {
            start_ops: at_least_one("start-ops", self.start_ops)?,
            decision_ops: at_least_one("decision-ops", self.decision_ops)?,
            max_depth: at_least_one("max-depth", self.max_depth)?,
            resolution: resolution.transpose()?,
            peak: peak.transpose()?,
        };
        params
            .over(Params::default())
            .validate()
            .map_err(|why| why.to_string())?;
        Ok(Config {
            pid: pid.transpose()?,
            program: self.program,
            command: self.command.map(|words| Command { words, distrust }),
            f0: self.f0,
            output: self.output,
            format: format.transpose()?,
            engine: self.engine.map(|engine| match engine {
                EngineKey::Int3 => EngineChoice::Int3,
                EngineKey::Jump => EngineChoice::Jump,
            }),
            duration: duration.transpose()?,
            params,
        })
    }
}

const PEAK: &str = "peak: neither a peak's number, from 1 on, nor \"all\"";

fn at_least_one<T: TryFrom<i64>>(key: &str, value: Option<i64>) -> Result<Option<T>, String> {
    let check = |value: i64| match T::try_from(value) {
        Ok(count) if value >= 1 => Ok(count),
        _ => Err(format!("{key}: not a whole number from 1 on")),
    };
    value.map(check).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    fn read(text: impl AsRef<[u8]>) -> Result<Config, Failure> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("darc.toml");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        Config::read(&path)
    }

    #[test]
    fn all_keys_arrive() {
        let config = read(
            "program = \"served\"\ncommand = [\"./served\", \"-x\"]\nf0 = \"serve\"\noutput = \"r.json\"\n\
             format = \"json\"\nengine = \"jump\"\nduration = \"1m\"\nstart-ops = 1\ndecision-ops = 2\n\
             max-depth = 3\nresolution = 2\npeak = \"all\"\n",
        )
        .unwrap();
        assert_eq!(config.program.as_deref(), Some("served"));
        assert_eq!(config.command().unwrap(), ["./served", "-x"]);
        assert_eq!(
            (config.engine, config.format),
            (Some(EngineChoice::Jump), Some(Format::Json))
        );
        assert_eq!(config.params.peak, Some(PeakChoice::All));
        assert_eq!(config.params.max_depth, Some(3));
        assert_eq!(read("").unwrap(), Config::default());
    }

    #[test]
    fn nonsense_is_refused_in_one_line_with_its_place() {
        for (text, part) in [
            ("pid = 0", "not a process id"),
            ("pid = 1\nprogram = \"a\"", "exclude"),
            ("\n\nfrobnicate = 1", "line 3: unknown field"),
            ("duration = \"5 m\"", "duration"),
            ("start-ops = 0", "start-ops"),
            ("decision-ops = -9223372036854775808", "decision-ops"),
            ("max-depth = 129", "max-depth"),
            ("resolution = 99", "resolution"),
            ("format = \"pdf\"", "none of text, json"),
            ("peak = 4294967296", "peak"),
            ("command = []", "command"),
            ("f0 = \"\"", "f0"),
            ("= [[[", "line 1"),
            ("f0 = \"\\u0000", "line 1"),
        ] {
            let failure = read(text).unwrap_err();
            assert_eq!(failure.kind(), FailureKind::File);
            assert!(failure.line().contains(part), "{text}: {}", failure.line());
        }
    }

    #[test]
    fn hostile_files_are_refused() {
        assert!(read([0xff, 0xfe]).is_err());
        assert!(
            read(vec![b'#'; 70_000])
                .unwrap_err()
                .line()
                .contains("larger")
        );
        assert!(
            read("f0 = ".to_owned() + &"[".repeat(60_000)).is_err(),
            "deep nesting"
        );
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for path in [
            fifo.as_path(),
            directory.path(),
            Path::new("/dev/zero"),
            Path::new("/nonexistent"),
        ] {
            assert_eq!(Config::read(path).unwrap_err().kind(), FailureKind::File);
        }
    }

    #[test]
    fn a_command_that_others_could_have_written_is_not_run() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("darc.toml");
        fs::write(&path, "command = [\"ls\"]").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        let config = Config::read(&path).unwrap();
        assert!(
            config
                .command()
                .unwrap_err()
                .line()
                .contains("other users can write the file")
        );
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(pid|peak|f0|resolution|duration|command|x)?[ =\\[\\]\"'0-9.e\\-a-z\n#]{0,40}") {
            let _ = toml::from_str::<Keys>(&text).map(|keys| keys.check(None));
            let _ = duration::parse(&text);
        }
    }
}
