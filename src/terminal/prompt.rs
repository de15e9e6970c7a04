//! The question which peak is to be analysed (`--ask`).
//!
//! It never waits: whoever serves the target looks at [`Prompt::poll`] between two of its events, so
//! that the target runs on while the person thinks. Nothing is asked where nobody can answer: without
//! a terminal, or from a background job, which reading would stop (SIGTTIN).

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{getpgrp, read, tcgetpgrp};

use darc_analysis::PeakChoice;

/// A longer line is no answer.
const LONGEST_ANSWER: usize = 256;

/// After so many answers that make no sense the default is taken.
const TRIES: u32 = 3;

/// One peak that can be chosen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeakLine {
    /// Its number, from 1.
    pub number: u32,
    /// Its range, ops and shares, on one line.
    pub description: String,
}

/// What came of the question so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Nothing yet.
    Pending,
    /// This was chosen.
    Chosen(PeakChoice),
    /// There will be no answer that makes sense: all peaks are taken, and the person is told so.
    Default,
}

/// A question that was asked.
#[derive(Debug)]
pub struct Prompt<I, O> {
    input: I,
    output: O,
    numbers: Vec<u32>,
    line: Vec<u8>,
    tries_left: u32,
}

/// Whether a person sits at stdin and stderr.
#[must_use]
pub fn can_ask() -> bool {
    let stdin = io::stdin();
    stdin.is_terminal() && io::stderr().is_terminal() && tcgetpgrp(stdin.as_fd()) == Ok(getpgrp())
}

impl<I: AsFd, O: Write> Prompt<I, O> {
    /// Shows the peaks on `output` and asks for the number of one; answers are read from `input`.
    pub fn show(peaks: &[PeakLine], input: I, output: O) -> Self {
        let numbers = peaks.iter().map(|peak| peak.number).collect();
        let mut prompt = Self {
            input,
            output,
            numbers,
            line: Vec::new(),
            tries_left: TRIES,
        };
        for peak in peaks {
            prompt.say(&format!("  {:>3}  {}\n", peak.number, peak.description));
        }
        prompt.ask();
        prompt
    }

    /// Reads what was typed since, without ever waiting.
    pub fn poll(&mut self) -> Answer {
        while self.readable() {
            let mut bytes = [0; LONGEST_ANSWER];
            match read(&self.input, &mut bytes) {
                Ok(0) => return self.give_up("no answer"),
                Ok(n) => self
                    .line
                    .extend_from_slice(bytes.get(..n).unwrap_or_default()),
                Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => {
                    return Answer::Pending;
                }
                Err(errno) => return self.give_up(errno.desc()),
            }
            while let Some(end) = self.line.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.line.drain(..=end).collect();
                if let Some(choice) = self.understand(&line) {
                    return Answer::Chosen(choice);
                }
                if let Some(given_up) = self.refuse() {
                    return given_up;
                }
            }
            if self.line.len() > LONGEST_ANSWER {
                self.line.clear();
                if let Some(given_up) = self.refuse() {
                    return given_up;
                }
            }
        }
        Answer::Pending
    }

    fn understand(&self, line: &[u8]) -> Option<PeakChoice> {
        let text = std::str::from_utf8(line).ok()?.trim();
        match text {
            "" | "a" | "all" => Some(PeakChoice::All),
            number => {
                let number = number.parse().ok()?;
                self.numbers
                    .contains(&number)
                    .then_some(PeakChoice::One(number))
            }
        }
    }

    fn refuse(&mut self) -> Option<Answer> {
        self.tries_left = self.tries_left.saturating_sub(1);
        if self.tries_left == 0 {
            return Some(self.give_up("no such peak"));
        }
        self.ask();
        None
    }

    fn give_up(&mut self, why: &str) -> Answer {
        self.say(&format!("\ndarc: {why}; all peaks are analysed\n"));
        Answer::Default
    }

    fn ask(&mut self) {
        let numbers: Vec<String> = self.numbers.iter().map(u32::to_string).collect();
        self.say(&format!(
            "Which peak ({}, or all)? [all] ",
            numbers.join(", ")
        ));
    }

    /// A closed terminal is no reason to stop: the end of input follows.
    fn say(&mut self, text: &str) {
        let _ = self
            .output
            .write_all(text.as_bytes())
            .and_then(|()| self.output.flush());
    }

    fn readable(&self) -> bool {
        let mut fds = [PollFd::new(self.input.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO) == Ok(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each of the `typed` pieces leads to, asked about peaks 1 and 2.
    fn answers(typed: &[&[u8]]) -> (Vec<Answer>, String) {
        let (input, mut keyboard) = io::pipe().unwrap();
        let peaks = [1, 2].map(|number| PeakLine {
            number,
            description: "buckets".into(),
        });
        let mut screen = Vec::new();
        let mut prompt = Prompt::show(&peaks, input, &mut screen);
        let answers = typed.iter().map(|piece| {
            keyboard.write_all(piece).unwrap();
            prompt.poll()
        });
        let answers = answers.collect();
        drop(prompt);
        (answers, String::from_utf8(screen).unwrap())
    }

    #[test]
    fn a_number_is_an_answer_and_an_open_silent_pipe_does_not_hang() {
        let (answers, screen) = answers(&[b"", b"2", b"\n"]);
        assert_eq!(
            answers,
            [
                Answer::Pending,
                Answer::Pending,
                Answer::Chosen(PeakChoice::One(2))
            ]
        );
        assert_eq!(
            screen,
            "    1  buckets\n    2  buckets\nWhich peak (1, 2, or all)? [all] "
        );
    }

    #[test]
    fn nothing_or_all_is_all() {
        assert_eq!(answers(&[b"\n"]).0, [Answer::Chosen(PeakChoice::All)]);
        assert_eq!(answers(&[b" all\r\n"]).0, [Answer::Chosen(PeakChoice::All)]);
    }

    #[test]
    fn rubbish_is_asked_again_and_then_given_up() {
        let (given, _) = answers(&[b"x\n", b"\xff\x00\n", b"1\n"]);
        assert_eq!(
            given,
            [
                Answer::Pending,
                Answer::Pending,
                Answer::Chosen(PeakChoice::One(1))
            ]
        );
        let (given, screen) = answers(&[b"0\n3\n-1\n1\n"]);
        assert_eq!(given, [Answer::Default]);
        assert!(
            screen.ends_with("darc: no such peak; all peaks are analysed\n"),
            "{screen}"
        );
        let (given, _) = answers(&[&[b'1'; 10_000]]);
        assert_eq!(given, [Answer::Default]);
    }

    #[test]
    fn the_end_of_input_is_the_default() {
        let (input, keyboard) = io::pipe().unwrap();
        drop(keyboard);
        assert_eq!(Prompt::show(&[], input, io::sink()).poll(), Answer::Default);
    }
}
