//! Following an execution on a server: the parts that `call` and `watch` share.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use streamdoor::base::{ExecutionId, Instant};
#[cfg(feature = "tls")]
use streamdoor::client::Trust;
use streamdoor::client::{
    AddressError, Client, ClientError, EndEvent, EventStream, FollowOptions, ServerRefusal,
    StartedEvent, StreamEvent,
};
use streamdoor::endpoint::DeliveryOptions;
use streamdoor::engine::Coalesce;
use streamdoor::reactor::Clock;
use streamdoor::shard::Names;
use streamdoor::stream::{End, Kind, Kinds};

use super::options::TimeLimit;
use super::output::{Destination, OutputOptions};
use super::printable::one_line;
use super::progress::Meter;
use super::results::{self, Checksum, LastWords};
use super::server_url::ServerUrl;
use super::sink::Sink;
use super::token_file::ClientToken;
use super::words::counted;
use super::{CliError, parsed};

/// The options for following a stream.
#[derive(Clone, Debug, Default)]
pub struct FollowArguments {
    delivery_options: DeliveryOptions,
    reconnects_max: Option<u32>,
    token_file: Option<PathBuf>,
    /// The file with the certificate that the client trusts.
    cacert: Option<PathBuf>,
}

/// A list of kinds such as `stdout,stderr`.
pub struct KindList(pub Kinds);

impl std::str::FromStr for KindList {
    type Err = streamdoor::stream::UnknownKind;
    fn from_str(text: &str) -> Result<KindList, Self::Err> {
        Ok(KindList(text.split(',').map(str::parse::<Kind>).collect::<Result<_, _>>()?))
    }
}

impl FollowArguments {
    /// Takes the value of the option `--name`. Returns false if it is not one of these.
    pub fn take(&mut self, name: &str, parser: &mut lexopt::Parser) -> Result<bool, CliError> {
        match name {
            "policy" => self.delivery_options.policy = Some(parsed(name, parser)?),
            "max-chunks" => self.delivery_options.limit_chunks = Some(parsed(name, parser)?),
            "max-bytes" => self.delivery_options.limit_bytes = Some(parsed(name, parser)?),
            "kinds" => self.delivery_options.kinds = parsed::<KindList>(name, parser)?.0,
            "coalesce" => {
                let TimeLimit(delay) = parsed(name, parser)?;
                let coalesce = |delay_max| Coalesce { delay_max, bytes_max: u64::MAX };
                self.delivery_options.coalesce = delay.map(coalesce);
            }
            "token-file" => self.token_file = Some(parser.value()?.into()),
            "reconnects" => self.reconnects_max = Some(parsed(name, parser)?),
            "cacert" => self.cacert = Some(parser.value()?.into()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the client of the server at the URL, or at the default one, with its token.
    pub fn client(&self, url: Option<&str>) -> Result<Client, CliError> {
        let url = ServerUrl::find(url)?;
        let client = match &self.cacert {
            None if is_encrypted(&url.text) => with_system_trust(&url.text)?,
            None => Client::new(&url.text),
            Some(file) => trusting(&url.text, file)?,
        };
        let client = client.map_err(|error| url.problem(error))?;
        match ClientToken::find(self.token_file.as_deref())? {
            Some(token) => client.with_token(&token.text).map_err(|error| token.problem(error)),
            None => Ok(client),
        }
    }

    /// Returns the options as the client takes them.
    pub fn options(&self) -> FollowOptions {
        let default = FollowOptions::default();
        let reconnects_max = self.reconnects_max.unwrap_or(default.reconnects_max);
        FollowOptions { delivery_options: self.delivery_options, reconnects_max, ..default }
    }

    /// Like [`FollowArguments::options`], for results that go to `output`.
    pub fn options_for(&self, output: &OutputOptions) -> FollowOptions {
        let mut options = self.options();
        options.delivery_options.policy = output.policy(options.delivery_options.policy);
        options
    }
}

/// True if the URL asks for TLS.
fn is_encrypted(url: &str) -> bool {
    url.split_once("://").is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case("https"))
}

#[cfg(feature = "tls")]
fn with_system_trust(url: &str) -> Result<Result<Client, AddressError>, CliError> {
    let trust = Trust::of_system();
    let trust = trust.map_err(|error| CliError::Environment(format!("{error} (--cacert FILE)")))?;
    Ok(Client::trusting(url, trust))
}

#[cfg(not(feature = "tls"))]
fn with_system_trust(_: &str) -> Result<Result<Client, AddressError>, CliError> {
    Ok(Err(AddressError::Encrypted))
}

#[cfg(feature = "tls")]
fn trusting(url: &str, file: &Path) -> Result<Result<Client, AddressError>, CliError> {
    let trust = Trust::from_file(file);
    let trust = trust.map_err(|error| CliError::Environment(format!("--cacert {error}")))?;
    Ok(Client::trusting(url, trust))
}

#[cfg(not(feature = "tls"))]
fn trusting(_: &str, _: &Path) -> Result<Result<Client, AddressError>, CliError> {
    Ok(Err(AddressError::Encrypted))
}

/// Returns the [`CliError`] for an error of the client, with the exit code of its cause.
pub fn failure(error: ClientError) -> CliError {
    let text = error.to_string();
    match error {
        ClientError::Unreachable { .. } => CliError::Environment(text),
        ClientError::Refused(refused) => no(&refused),
        _ => CliError::Failed(text),
    }
}

/// Returns the [`CliError`] for a refusal by the server, by its status.
pub fn no(refused: &ServerRefusal) -> CliError {
    let text = refused.to_string();
    match refused.status.code() {
        401 => {
            CliError::Call(format!("{text} (--token-file FILE, or the variable STREAMDOOR_TOKEN)"))
        }
        400 | 403 | 404 | 409..=422 => CliError::Call(text),
        _ => CliError::Failed(text), // The server is overloaded, or at fault itself.
    }
}

/// Follows `stream` to its end and prints the outcome. Calls `begun` once the execution is known.
/// If the output fails, calls `unwanted` and stops following.
pub fn follow(
    stream: EventStream,
    output: &OutputOptions,
    place: &Destination,
    sink: Sink,
    begun: impl FnMut(&StartedEvent),
    unwanted: impl FnOnce(),
) -> Result<(), CliError> {
    let mut follower = StreamFollower {
        stream,
        sink,
        names: Names { execution: String::new(), token: None, has_parts: false, is_replica: false },
        checksum: Checksum::new(output.hash),
        begun,
    };
    let began = Clock::now();
    let ended = follower.take_all();
    let took = Clock::now().since(began);
    let unwritten = follower.sink.close();
    let Some(ended) = ended? else {
        return match unwritten {
            Err(error) => {
                unwanted();
                place.conclude(Some(&error), LastWords::default(), Ok(()))
            }
            Ok(()) => Ok(()), // The stream ended without an end event.
        };
    };
    let stream = &follower.stream;
    let summary = summary(&ended, stream, took);
    let sum = |sha256| format!("{} bytes, sha256 {sha256}", stream.given().bytes);
    let report = follower.checksum.finish().map(sum).unwrap_or_default();
    let error = ended.error.as_deref().map(one_line);
    let verdict = results::verdict_of("the subscriber", &ended.end, error.as_deref());
    let policy = stream.started().map(|started| started.policy).unwrap_or_default();
    let verdict = verdict.and_then(|()| results::whole(output.is_kept(), policy, stream.missed()));
    place.conclude(unwritten.as_ref().err(), LastWords { report, summary }, verdict)
}

struct StreamFollower<F> {
    stream: EventStream,
    sink: Sink,
    names: Names,
    checksum: Checksum,
    begun: F,
}

impl<F: FnMut(&StartedEvent)> StreamFollower<F> {
    /// Takes all events. Returns `None` if the stream was left before its end because the output
    /// failed, or if it ended without an end event.
    fn take_all(&mut self) -> Result<Option<EndEvent>, CliError> {
        loop {
            let event = match self.stream.poll() {
                Some(event) => event,
                None => {
                    self.sink.flush();
                    if self.sink.has_failed() {
                        return Ok(None);
                    }
                    match self.stream.next() {
                        Some(event) => event,
                        None => return Ok(None),
                    }
                }
            };
            let event = event.map_err(failure)?;
            self.take(&event, Clock::now());
            match event {
                StreamEvent::End(ended) => return Ok(Some(ended)),
                _ if self.sink.has_failed() => return Ok(None),
                _ => {}
            }
        }
    }

    fn take(&mut self, event: &StreamEvent, now: Instant) {
        match event {
            StreamEvent::Started(started) => {
                let token = started.token.map(|token| token.to_string());
                let execution = started.execution.to_string();
                self.names = Names { execution, token, has_parts: false, is_replica: false };
                (self.begun)(started);
            }
            StreamEvent::Chunk(chunk) => self.checksum.update(&chunk.data),
            StreamEvent::Part(part) => self.checksum.update(part.json.as_bytes()),
            _ => {}
        }
        self.sink.take(&event.to_wire(&self.names), false, now);
    }
}

/// Returns the summary of the end, over all connections.
fn summary(ended: &EndEvent, stream: &EventStream, took: Duration) -> String {
    let over_all = End { given: stream.given(), missed: stream.missed(), ..ended.end };
    let mut text = results::summary(&over_all, took);
    if stream.reconnects() > 0 {
        let times = counted(stream.reconnects(), "time");
        text += &format!(", the connection broke {times}");
    }
    text
}

/// Opens the destination of the results. This is the last step before the request is sent.
pub fn sink(output: &OutputOptions, kinds: Kinds) -> Result<(Destination, Sink), CliError> {
    let (place, view) = output.view(io::IsTerminal::is_terminal(&io::stdout()))?;
    let file = place.open()?;
    let sink = Sink::new(Meter::new(output.style()), kinds, file.map(|file| (file, view)));
    Ok((place, sink))
}

/// Parses the id of an execution. Fails with a usage error.
pub fn execution(text: &str) -> Result<ExecutionId, CliError> {
    text.parse().map_err(|error| CliError::Usage(format!("{text}: {error}")))
}
