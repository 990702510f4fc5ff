//! `peers cluster`: a log between two nodes that a user would write himself, under the loop and the
//! report of `bench cluster`.
//!
//! Each implementation is a log of others, and a server of axum. Node A is a tool on a thread, and
//! a task of tokio that appends each chunk to the log. It does not wait for an answer before it
//! sends the next chunks, but checks all answers. Node B answers `GET /events/{id}` with
//! server-sent events: it reads the log from its beginning, and follows it. One event has one
//! chunk. Both nodes, and the client, are in this process, as those of `bench cluster` are. The
//! server of the log is a program of its own. It runs for one run, on a port that is free, and
//! keeps the log in a directory for temporary files.

mod client;
mod nats;
mod redis;
mod server;

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::sse::{Event, Sse};
use axum::routing::get;
use axum::serve::ListenerExt as _;
use futures_util::stream::{BoxStream, StreamExt as _};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::common::cluster::{Found, LOAD_HELP, Load, failed, payload, stamp, wait_until};
use crate::common::machine::now_ns;
use crate::common::params::usage;
use crate::common::source::Arrivals;
use crate::common::{Failure, print};
use server::Server;

const IMPLEMENTATIONS: &[&str] = &["redis-axum", "nats-axum"];
const WORKS: &[&str] = &["live", "catch-up"];

/// The name of the execution.
const ID: &str = "0123456789abcdefghjkmnpqrs";
const ID_BYTES_MAX: usize = 64;
/// Chunks on their way from the tool to the log.
const CHUNKS_MAX: usize = 256;
/// The time between the start of a run and the first chunk. By then, the client follows.
const LEAD_NS: u64 = 300_000_000;
/// The longest wait of node B for its clients at its end.
const END_MAX: Duration = Duration::from_secs(1);

pub const HELP: &str = "\
peers cluster: measure a client of one node that follows a tool of another, as users write it

Usage: peers cluster [options]

  --impl NAME         redis-axum: a stream of Redis, XADD and XREAD BLOCK, and a server of axum
                      nats-axum: a stream of JetStream, an ordered consumer, and a server of axum
                      (redis-axum)
  --work NAME         live: publish at planned times, and measure until the client has the chunk
                      (the default)
                      catch-up: fill a log as fast as it goes, and read it once from its beginning
  --nats PROGRAM      the server of NATS (nats-server on the PATH)
  --redis PROGRAM     the server of Redis (redis-server or valkey-server on the PATH)
";

/// Runs `peers cluster` with the arguments after these words.
///
/// # Errors
/// [`Failure`].
pub fn command(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let mut redis_program = None;
    let load = Load::parse((IMPLEMENTATIONS, WORKS), arguments, |name, parser| {
        if name == "redis" {
            redis_program = Some(PathBuf::from(parser.value().map_err(usage)?));
        }
        Ok(name == "redis")
    })?;
    let Some(load) = load else {
        print(&format!("{HELP}{LOAD_HELP}"));
        return Ok(());
    };
    let found = match load.implementation {
        "redis-axum" => measure::<redis::Redis>(&redis::start(redis_program)?, &load),
        _ => measure::<nats::Nats>(&nats::start(&load.nats)?, &load),
    }?;
    load.write_files(&found)?;
    print(&load.report(&found, &[]));
    Ok(())
}

/// The events of a client.
type Events = BoxStream<'static, Result<Event, Failure>>;

/// The code of a user around a log.
trait Glue: Send + Sync + Sized + 'static {
    /// Connects a node to the server of the log, which listens on `port`.
    async fn open(port: u16) -> Result<Self, Failure>;

    /// Appends chunks to the log of an execution, until there are no more. All are in the log when
    /// this returns.
    async fn store(&self, id: &str, chunks: Receiver<Vec<u8>>) -> Result<(), Failure>;

    /// Reads the log of an execution from its beginning, without an end.
    fn follow(&self, id: &str) -> impl Future<Output = Result<Events, Failure>> + Send;
}

fn measure<G: Glue>(server: &Server, load: &Load) -> Result<Found, Failure> {
    let owner = Owner::<G>::start(server)?;
    let web = Web::start::<G>(server)?;
    match load.work {
        "live" => live(&owner, &web, load),
        _ => catch_up(&owner, &web, load),
    }
}

fn live<G: Glue>(owner: &Owner<G>, web: &Web, load: &Load) -> Result<Found, Failure> {
    let origin_ns = now_ns() + LEAD_NS;
    std::thread::scope(|scope| {
        let client = scope.spawn(|| client::follow(web.address, load));
        owner.run(|chunks| publish(load, origin_ns, &chunks))?;
        client.join().map_err(|_| failed("the client has panicked"))?
    })
}

fn catch_up<G: Glue>(owner: &Owner<G>, web: &Web, load: &Load) -> Result<Found, Failure> {
    let filled_ns = now_ns();
    owner.run(|chunks| fill(load, &chunks))?;
    let written_ns = now_ns() - filled_ns;
    Ok(Found { written_ns, ..client::catch_up(web.address, load)? })
}

/// Publishes at planned times. An error means that the log takes no more.
fn publish(load: &Load, origin_ns: u64, chunks: &Sender<Vec<u8>>) {
    let (warmup, counted) = load.chunks();
    let mut arrivals = Arrivals::new(load.rate, load.seed);
    let mut bytes = payload(load.size_bytes);
    for _ in 0..warmup + counted {
        let planned_ns = origin_ns + arrivals.next_ns();
        wait_until(planned_ns);
        stamp(&mut bytes, planned_ns);
        if chunks.blocking_send(bytes.clone()).is_err() {
            return;
        }
    }
}

/// Publishes without a pause. The stamps are the numbers of the chunks, from 1 on.
fn fill(load: &Load, chunks: &Sender<Vec<u8>>) {
    let mut bytes = payload(load.size_bytes);
    for number in 1..=load.log_chunks() as u64 {
        stamp(&mut bytes, number);
        if chunks.blocking_send(bytes.clone()).is_err() {
            return;
        }
    }
}

/// Node A.
struct Owner<G> {
    runtime: Runtime,
    glue: G,
}

impl<G: Glue> Owner<G> {
    fn start(server: &Server) -> Result<Owner<G>, Failure> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let glue = runtime.block_on(G::open(server.port()))?;
        Ok(Owner { runtime, glue })
    }

    /// Runs a tool until the log has all of its chunks.
    fn run(&self, tool: impl FnOnce(Sender<Vec<u8>>) + Send) -> Result<(), Failure> {
        let (sender, chunks) = channel(CHUNKS_MAX);
        std::thread::scope(|scope| {
            scope.spawn(|| tool(sender));
            self.runtime.block_on(self.glue.store(ID, chunks))
        })
    }
}

/// Node B.
struct Web {
    runtime: Runtime,
    address: SocketAddr,
    serving: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

/// Clients have gone when this is dropped. Without the wait, tasks would end in any order, and
/// report lost connections.
impl Drop for Web {
    fn drop(&mut self) {
        if let Some((end, serving)) = self.serving.take() {
            let _ = end.send(()); // The server may have failed.
            let _ = self.runtime.block_on(async { timeout(END_MAX, serving).await });
        }
    }
}

impl Web {
    fn start<G: Glue>(server: &Server) -> Result<Web, Failure> {
        let runtime = Builder::new_multi_thread().enable_all().build().map_err(failed)?;
        let listener = runtime.block_on(async {
            let glue = Arc::new(G::open(server.port()).await?);
            let router = Router::new().route("/events/{id}", get(events::<G>)).with_state(glue);
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(failed)?;
            Ok((listener, router))
        });
        let (listener, router) = listener?;
        let address = listener.local_addr().map_err(failed)?;
        let listener = listener.tap_io(|connection| {
            let _ = connection.set_nodelay(true); // Without it, the server works, but slowly.
        });
        let (end, is_over) = oneshot::channel();
        let serving = runtime.spawn(async {
            let wait = async { drop(is_over.await) };
            if let Err(error) = axum::serve(listener, router).with_graceful_shutdown(wait).await {
                report(&failed(error));
            }
        });
        Ok(Web { runtime, address, serving: Some((end, serving)) })
    }
}

async fn events<G: Glue>(
    State(glue): State<Arc<G>>,
    Path(id): Path<String>,
) -> Result<Sse<Events>, StatusCode> {
    if !is_id(&id) {
        return Err(StatusCode::NOT_FOUND);
    }
    let events = glue.follow(&id).await.inspect_err(report);
    let events = events.map_err(|_| StatusCode::BAD_GATEWAY)?;
    let reported = events.inspect(|event| event.as_ref().err().into_iter().for_each(report));
    Ok(Sse::new(reported.boxed()))
}

fn report(error: &Failure) {
    eprintln!("peers: node B: {error}");
}

/// True if this can be a part of a key or a subject.
fn is_id(text: &str) -> bool {
    (1..=ID_BYTES_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Returns the event of a chunk. The log of others may hold anything, so its bytes are checked.
fn event(place: String, bytes: &[u8]) -> Result<Event, Failure> {
    let text = std::str::from_utf8(bytes).map_err(|_| failed("a chunk is not UTF-8"))?;
    Ok(Event::default().id(place).event("chunk").data(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_letters_and_digits_come_into_a_key_or_a_subject() {
        assert!(is_id(ID) && is_id(&"a".repeat(ID_BYTES_MAX)));
        for wrong in ["", "*", ">", "a.b", "a b", "a\r\nb", "ä", &"a".repeat(ID_BYTES_MAX + 1)] {
            assert!(!is_id(wrong), "{wrong:?}");
        }
    }

    #[test]
    fn bytes_that_are_no_event_are_refused() {
        assert!(event("1".into(), b"text\rof\ntwo lines").is_ok());
        assert!(event("1".into(), b"\xff").is_err());
    }
}
