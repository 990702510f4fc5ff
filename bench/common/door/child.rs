//! Lines of text between the processes of a run, over standard input and output.
//!
//! A child exits when its standard input ends, so it never outlives its parent.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{self, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use crate::common::{Failure, end};

/// A child process. It exits when this is dropped.
pub struct Child {
    process: process::Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    name: &'static str,
}

impl Child {
    /// Starts `program` with these arguments. Messages use `name`.
    ///
    /// # Errors
    /// [`Failure::Environment`] if the program cannot be started.
    pub fn start<W>(name: &'static str, program: &Path, words: &[W]) -> Result<Child, Failure>
    where
        W: AsRef<OsStr>,
    {
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|error| {
            Failure::Environment(format!("cannot start {}: {error}", program.display()))
        })?;
        let input = process.stdin.take();
        let output = BufReader::new(process.stdout.take().expect("it was piped"));
        Ok(Child { process, input, output, name })
    }

    /// Starts this same program as [`Child::start`] does.
    ///
    /// # Errors
    /// The same as those of [`Child::start`].
    pub fn of_this_program(name: &'static str, words: &[String]) -> Result<Child, Failure> {
        let program = std::env::current_exe().map_err(|error| {
            Failure::Environment(format!("the path of this program is unknown: {error}"))
        })?;
        Child::start(name, &program, words)
    }

    /// Reads the next line of the child, which must begin with `word`. Returns the rest of the
    /// line.
    ///
    /// # Errors
    /// [`Failure::Failed`] if the line begins differently or is missing. The child's own error text
    /// is on standard error, which both processes share.
    pub fn hear(&mut self, word: &str) -> Result<String, Failure> {
        let mut line = String::new();
        let count = self.output.read_line(&mut line).unwrap_or(0);
        let failed = |text: String| Err(Failure::Failed(format!("{}: {text}", self.name)));
        if count == 0 {
            return failed("it ended early".into());
        }
        match line.trim_end().strip_prefix(word) {
            Some(rest) => Ok(rest.trim_start().to_owned()),
            None => failed(format!("it wrote \"{}\" instead of {word}", line.trim_end())),
        }
    }

    /// Sends a line to the child.
    ///
    /// # Errors
    /// [`Failure::Failed`] if the child has exited.
    pub fn tell(&mut self, line: &str) -> Result<(), Failure> {
        let input = self.input.as_mut().expect("it is open until this is dropped");
        writeln!(input, "{line}")
            .map_err(|error| Failure::Failed(format!("{} has ended: {error}", self.name)))
    }

    /// Waits until the child has exited by itself.
    ///
    /// # Errors
    /// [`Failure::Failed`] if its exit status is not 0.
    pub fn wait(mut self) -> Result<(), Failure> {
        let failed = |text: String| Err(Failure::Failed(format!("{}: {text}", self.name)));
        match self.process.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => failed(format!("it ended with {status}")),
            Err(error) => failed(error.to_string()),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.input = None;
        end(&mut self.process);
    }
}

/// Called in a child: returns the lines of its parent. At their end, the process exits at once. A
/// separate thread reads the lines. It sleeps while a run is measured.
pub fn parent_lines() -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            let _ = sender.send(line); // Without a receiver, the thread still waits for the end.
        }
        process::exit(0);
    });
    lines
}

/// Called in a child: sends a line to the parent.
pub fn say(line: &str) {
    let mut out = io::stdout().lock();
    // If the parent has gone, standard input ends, too.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
