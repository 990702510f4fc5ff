//! streamdoor under the load of `bench door`: a [`DoorWriter`], [`DoorReader`]s that get everything
//! (`block`), and a server in a process of its own.
//!
//! Under `--touch none`, readers ask for headers only. The stamp is then the planned time of the
//! chunk with this number.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lexopt::{Arg, Parser, ValueExt};
use streamdoor::client;
use streamdoor::door::{
    Door, DoorAudience, DoorError, DoorReader, DoorWriter, ProduceOptions, ReadOptions,
};
use streamdoor::engine::Timeouts;
use streamdoor::limits;
use streamdoor::reactor::Idle;
use streamdoor::server::{Server, ServerConfig};
use streamdoor::shard::{Delivery, ShardConfig};
use streamdoor::stream::{EndState, Kind, Outcome, Policy};

use crate::common::door::carrier::{Carrier, Produce, Read, Run, Stamps};
use crate::common::door::child::{Child, parent_lines, say};
use crate::common::door::load::Load;
use crate::common::drive::Setup;
use crate::common::params::{Touch, number, usage};
use crate::common::receive::Receive;
use crate::common::{BATCH_CHUNKS, Failure, print};

/// streamdoor, for `bench door --impl streamdoor`.
pub struct Ours;

const LISTENING: &str = "listening";
const RING_BYTES_MAX: usize = limits::DOOR_RING_BYTES_MAX as usize;
/// The minimum space of a chunk in a ring: a ring has one descriptor for every 256 bytes.
const CHUNK_BYTES_MIN: usize = 256;

const SERVER_HELP: &str = "\
bench door server: run streamdoor's server with only a door

`bench door` runs it.

Usage: bench door server --door PATH [options]

  --cpu N             pin it to cpu N (any)
";

/// A server and the folder of its door.
pub struct Host {
    server: Option<std::sync::Mutex<Child>>,
    folder: PathBuf,
}

impl Host {
    fn door(&self) -> PathBuf {
        self.folder.join("door.sock")
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.server = None;
        let _ = std::fs::remove_dir_all(&self.folder); // A remaining folder does no harm.
    }
}

impl Carrier for Ours {
    type Host = Host;
    type Producer = Producer;
    type Reader = Polled;

    fn host(load: &Load) -> Result<Host, Failure> {
        let name = format!("streamdoor-bench-door-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let failed = |error| Failure::Environment(format!("{}: {error}", folder.display()));
        std::fs::create_dir_all(&folder).map_err(failed)?;
        let mut host = Host { server: None, folder };
        let door = host.door().to_string_lossy().into_owned();
        let cpu = load.plan.producer_cpu.to_string();
        let words = ["door", "server", "--door", &door, "--cpu", &cpu].map(str::to_owned);
        let mut server = Child::of_this_program("the server", &words)?;
        server.hear(LISTENING)?;
        host.server = Some(server.into());
        Ok(host)
    }

    fn words(host: &Host) -> Vec<String> {
        vec![host.door().to_string_lossy().into_owned()]
    }

    fn producer(load: &Load, words: &[String]) -> Result<(Producer, String), Failure> {
        let path = words.first().ok_or_else(|| Failure::Usage("--word: a path".into()))?;
        let setup = Setup::new(load.plan.subscribers, load.plan.size_bytes);
        let chunk_bytes = setup.size_bytes.next_multiple_of(CHUNK_BYTES_MIN);
        let ring_bytes = (setup.ring_chunks * chunk_bytes).min(RING_BYTES_MAX);
        let timeouts = Some(Timeouts::NONE);
        let options = ProduceOptions {
            ring_bytes: Some(ring_bytes as u32),
            chunk_bytes: Some(setup.size_bytes as u32),
            execution: client::ExecuteOptions { timeouts, ..Default::default() },
            ..Default::default()
        };
        let writer = Door::open(path).and_then(|door| door.produce("bench", &options));
        let writer = writer.map_err(|error| Failure::Failed(error.to_string()))?;
        let said = writer.execution().to_string();
        Ok((Producer(Some(writer)), said))
    }

    fn reader(host: &Host, load: &Load, run: &Run<'_>) -> Result<Polled, String> {
        let headers_only = load.plan.touch == Touch::None;
        let options =
            ReadOptions { policy: Some(Policy::Block), headers_only, ..Default::default() };
        let reader = Door::open(host.door()).and_then(|door| door.read(run.said, &options));
        let reader = reader.map_err(|error| error.to_string())?;
        let stamps = headers_only.then(|| Stamps::new(load, run));
        Ok(Polled::One { reader: Box::new(reader), taken: Taken { stamps, wrong: None } })
    }
}

/// The producer's side.
pub struct Producer(Option<DoorWriter>);

impl Produce for Producer {
    #[inline(always)]
    fn publish(&mut self, payload: &[u8], count: u32) -> Result<(), String> {
        let writer = self.0.as_mut().expect("it is not finished");
        let sent = match count {
            1 => writer.send(payload),
            _ => {
                let payloads = std::iter::repeat_n(payload, count as usize);
                writer.send_all(Kind::Output, Kind::Output as u8, payloads)
            }
        };
        sent.map(|_| ()).map_err(|error| error.to_string())
    }

    fn finish(&mut self) -> Result<(), String> {
        let writer = self.0.take().expect("it is finished once");
        writer.complete().map_err(|error| error.to_string())
    }
}

/// A reader, or all readers of a thread that polls.
pub enum Polled {
    One { reader: Box<DoorReader>, taken: Taken },
    All(DoorAudience<Taken>),
}

/// The state between deliveries.
pub struct Taken {
    /// `None` if stamps are read from the bytes.
    stamps: Option<Stamps>,
    wrong: Option<String>,
}

impl Taken {
    /// Takes one delivery. Returns 1 if it was a chunk and 0 otherwise.
    #[inline(always)]
    fn take<R: Receive>(&mut self, delivery: Delivery<'_>, receiver: &R) -> u32 {
        match (delivery, &mut self.stamps) {
            (Delivery::Chunk(chunk), None) => receiver.deliver_owned(chunk.data),
            (Delivery::Chunk(chunk), Some(stamps)) => {
                receiver.deliver_stamp(stamps.next(chunk.seq));
            }
            (other, _) => {
                self.take_other(&other);
                return 0;
            }
        }
        1
    }

    #[cold]
    fn take_other(&mut self, delivery: &Delivery<'_>) {
        match delivery {
            Delivery::End(ended) if ended.end.state == EndState::Ended(Outcome::Completed) => {}
            Delivery::Progress(_) => {}
            other => self.wrong = Some(format!("a reader was given {other:?}")),
        }
    }

    fn result(&mut self, count: u32, is_over: bool) -> Result<Option<u32>, String> {
        match self.wrong.take() {
            Some(wrong) => Err(wrong),
            None => Ok((!is_over || count > 0).then_some(count)),
        }
    }
}

fn text(error: DoorError) -> String {
    error.to_string()
}

impl Read for Polled {
    #[inline(always)]
    fn poll<R: Receive>(&mut self, receiver: &R) -> Result<Option<u32>, String> {
        let mut count = 0;
        let (reader, taken) = match self {
            Polled::One { reader, taken } => (reader, taken),
            Polled::All(audience) => {
                let mut failure = None;
                audience.drain(BATCH_CHUNKS as usize, |taken, delivery| match delivery {
                    Ok(delivery) => {
                        count += taken.take(delivery, receiver);
                        if let Some(wrong) = taken.wrong.take() {
                            failure = Some(wrong);
                        }
                    }
                    Err(error) => failure = Some(text(error)),
                });
                return match failure {
                    Some(wrong) => Err(wrong),
                    None => Ok((count > 0 || !audience.is_empty()).then_some(count)),
                };
            }
        };
        let found = reader.drain(BATCH_CHUNKS as usize, |delivery| {
            count += taken.take(delivery, receiver);
        });
        if found.map_err(text)? == 0 && !reader.is_over() {
            return Ok(Some(0));
        }
        taken.result(count, reader.is_over())
    }

    fn together(readers: Vec<Polled>) -> Result<Vec<Polled>, String> {
        let mut audience = DoorAudience::new();
        for reader in readers {
            let Polled::One { reader, taken } = reader else { unreachable!("they are new") };
            audience.join(*reader, taken).map_err(|refused| refused.to_string())?;
        }
        Ok(vec![Polled::All(audience)])
    }

    fn wait<R: Receive>(&mut self, receiver: &R) -> Result<Option<u32>, String> {
        let Polled::One { reader, taken } = self else { unreachable!("each has a thread") };
        let Some(delivery) = reader.next().map_err(text)? else { return Ok(None) };
        let count = taken.take(delivery, receiver);
        Ok(self.poll(receiver)?.map(|more| count + more).or((count > 0).then_some(count)))
    }
}

/// Runs `bench door server` with the arguments after these words.
///
/// # Errors
/// [`Failure`].
pub fn serve(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let (mut door, mut cpu) = (None, None);
    let mut parser = Parser::from_args(arguments);
    while let Some(argument) = parser.next().map_err(usage)? {
        match argument {
            Arg::Long("help") | Arg::Short('h') => {
                print(SERVER_HELP);
                return Ok(());
            }
            Arg::Long("door") => {
                door = Some(parser.value().map_err(usage)?.string().map_err(usage)?);
            }
            Arg::Long("cpu") => cpu = Some(number(&mut parser, "--cpu", 0, 1_023)?),
            other => return Err(usage(other.unexpected())),
        }
    }
    let door = door.ok_or_else(|| Failure::Usage("--door: a path".into()))?;
    let lines = parent_lines();
    let shard = ShardConfig { idle: Idle::Block, cpu, ..Default::default() };
    let config = ServerConfig { shards: vec![shard], listen: Vec::new(), connections_max: 128 };
    let failed = |error: &dyn std::fmt::Display| Failure::Environment(error.to_string());
    let server = Server::start(config, Arc::new(|_| {})).map_err(|error| failed(&error))?;
    server.open_door(Path::new(&door)).map_err(|error| failed(&error))?;
    say(LISTENING);
    let _ = lines.recv(); // No line ever comes: the process exits with its standard input.
    Ok(())
}
