//! The server of a run, as a process of its own: started, asked what it used, ended.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::common::Failure;
use crate::common::serve::child::{LISTENING, Usage};

/// A server that listens. It leaves when this is dropped, or with this process: either way its
/// standard input ends.
pub struct Server {
    process: Child,
    /// `None` once it was told to leave.
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Server {
    /// Starts `program` with these words and waits until it listens.
    ///
    /// # Errors
    /// [`Failure::Usage`] if there is no such program; [`Failure::Failed`] if it does not listen,
    /// with the reason on standard error, which is ours.
    pub fn start(program: &Path, words: &[String]) -> Result<Server, Failure> {
        let spawned =
            Command::new(program).args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = spawned.map_err(|error| {
            Failure::Usage(format!("can not start {}: {error}", program.display()))
        })?;
        let questions = process.stdin.take();
        let answers = BufReader::new(process.stdout.take().expect("it was piped"));
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut server = Server { process, questions, answers, address: nowhere };
        let line = server.line()?;
        let address = line.strip_prefix(LISTENING).and_then(|text| text.parse().ok());
        server.address = address.ok_or_else(|| {
            Failure::Failed(format!("the server's first line is \"{line}\", not its address"))
        })?;
        Ok(server)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// What it has used so far.
    ///
    /// # Errors
    /// [`Failure::Failed`] if it does not say.
    pub fn usage(&mut self) -> Result<Usage, Failure> {
        let questions = self.questions.as_mut().expect("it was not told to leave");
        let asked = questions.write_all(b"\n");
        asked.map_err(|error| Failure::Failed(format!("the server has left: {error}")))?;
        let line = self.line()?;
        Usage::parse(&line).ok_or_else(|| Failure::Failed(format!("the server said \"{line}\"")))
    }

    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(count) if count > 0 => Ok(line.trim_end().to_owned()),
            _ => Err(Failure::Failed("the server ended early".into())),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.questions = None;
        // What it says at the end is of no use any more; and who does not listen is ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
