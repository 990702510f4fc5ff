//! The server of a run, as a process of its own: started, asked for its usage, and ended.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use streamdoor::client::Client;

use crate::common::serve::child::{LISTENING, Usage};
use crate::common::{Failure, end};

/// A server that listens. It ends when this is dropped or this process exits, because its standard
/// input ends in either case.
pub struct Server {
    process: Child,
    /// `None` once it has to exit.
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// The address on which it listens.
    pub address: SocketAddr,
}

impl Server {
    /// Starts `program` with these arguments and waits until it listens.
    ///
    /// # Errors
    /// [`Failure::Usage`] if the program cannot be started. [`Failure::Failed`] if it does not
    /// listen; the reason is on standard error, which both processes share.
    pub fn start(program: &Path, words: &[String]) -> Result<Server, Failure> {
        let spawned =
            Command::new(program).args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = spawned.map_err(|error| {
            Failure::Usage(format!("cannot start {}: {error}", program.display()))
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

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Returns the resources it has used so far.
    ///
    /// # Errors
    /// [`Failure::Failed`] if it does not reply.
    pub fn usage(&mut self) -> Result<Usage, Failure> {
        let questions = self.questions.as_mut().expect("it was not told to end");
        let asked = questions.write_all(b"\n");
        asked.map_err(|error| Failure::Failed(format!("the server has ended: {error}")))?;
        let line = self.line()?;
        Usage::parse(&line).ok_or_else(|| Failure::Failed(format!("the server wrote \"{line}\"")))
    }

    /// Returns the memory pressure level that it reports in its metrics. It must be streamdoor's.
    ///
    /// # Errors
    /// [`Failure::Failed`] if it does not report one.
    pub fn pressure_level(&self) -> Result<u64, Failure> {
        let failed = |text: String| Failure::Failed(format!("the server's metrics: {text}"));
        let client = Client::new(&format!("http://{}", self.address));
        let client = client.map_err(|error| failed(error.to_string()))?;
        let metrics = client.metrics().map_err(|error| failed(error.to_string()))?;
        let level = metrics.max("memory_pressure_level");
        Ok(level.ok_or_else(|| failed("they have no pressure level".into()))? as u64)
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
        end(&mut self.process);
    }
}
