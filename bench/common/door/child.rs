//! The processes of a run talk by lines: over standard input and output, as text.
//!
//! A child leaves when its standard input ends, so it never outlives who started it.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{self, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use crate::common::Failure;

/// A process that was started from here. It is ended when this is dropped.
pub struct Child {
    process: process::Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    name: &'static str,
}

impl Child {
    /// Starts `program` with these words; `name` is what messages call it.
    ///
    /// # Errors
    /// [`Failure::Environment`] if there is no such program.
    pub fn start<W>(name: &'static str, program: &Path, words: &[W]) -> Result<Child, Failure>
    where
        W: AsRef<OsStr>,
    {
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|error| {
            Failure::Environment(format!("can not start {}: {error}", program.display()))
        })?;
        let input = process.stdin.take();
        let output = BufReader::new(process.stdout.take().expect("it was piped"));
        Ok(Child { process, input, output, name })
    }

    /// As [`Child::start`], of this very program.
    ///
    /// # Errors
    /// As [`Child::start`].
    pub fn of_this_program(name: &'static str, words: &[String]) -> Result<Child, Failure> {
        let program = std::env::current_exe()
            .map_err(|error| Failure::Environment(format!("where am I? {error}")))?;
        Child::start(name, &program, words)
    }

    /// The rest of its next line, which must begin with `word`.
    ///
    /// # Errors
    /// [`Failure::Failed`] if it says something else or nothing; why is on standard error, which
    /// is ours.
    pub fn hear(&mut self, word: &str) -> Result<String, Failure> {
        let mut line = String::new();
        let count = self.output.read_line(&mut line).unwrap_or(0);
        let failed = |text: String| Err(Failure::Failed(format!("{}: {text}", self.name)));
        if count == 0 {
            return failed("it ended early".into());
        }
        match line.trim_end().strip_prefix(word) {
            Some(rest) => Ok(rest.trim_start().to_owned()),
            None => failed(format!("it said \"{}\" instead of {word}", line.trim_end())),
        }
    }

    /// Says a line.
    ///
    /// # Errors
    /// [`Failure::Failed`] if it has left.
    pub fn tell(&mut self, line: &str) -> Result<(), Failure> {
        let input = self.input.as_mut().expect("it is open until this is dropped");
        writeln!(input, "{line}")
            .map_err(|error| Failure::Failed(format!("{} has left: {error}", self.name)))
    }

    /// Waits until it has left by itself.
    ///
    /// # Errors
    /// [`Failure::Failed`] if it was not content.
    pub fn wait(mut self) -> Result<(), Failure> {
        let failed = |text: String| Err(Failure::Failed(format!("{}: {text}", self.name)));
        match self.process.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => failed(format!("it left with {status}")),
            Err(error) => failed(error.to_string()),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.process.kill(); // What it would still say is of no use any more.
        let _ = self.process.wait();
    }
}

/// In a child: the lines of its parent. When there are no more the process ends, whatever it does;
/// a thread sees to that, which sleeps while a run is measured.
pub fn parent_lines() -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            let _ = sender.send(line); // Nobody listens any more: it waits for the end.
        }
        process::exit(0);
    });
    lines
}

/// In a child: says a line.
pub fn say(line: &str) {
    let mut out = io::stdout().lock();
    // Whoever started us has left: standard input ends, too.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
