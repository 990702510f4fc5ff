//! `peers sse`: axum's server-sent events over tokio's `broadcast`, as a server for one run of
//! `bench serve`.
//!
//! It is written in the usual way. Each execution has a channel. A handler subscribes and maps the
//! stream to `Event`s, and the response is an `Sse`. The JSON of a chunk is made once, by the same
//! code as everywhere, and shared by all subscribers. `broadcast` overwrites chunks that a slow
//! receiver has not read. To avoid loss, the producer checks the remaining space, as rarely as
//! possible. The producer is a task that waits by a kernel timer, because tokio's own counts in
//! milliseconds. At the end it polls, as the other servers do. The runtime has no idle strategy: it
//! blocks, and with `--idle spin` its producer never does.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::sse::{Event, Sse};
use axum::routing::get;
use axum::serve::ListenerExt as _;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::Notify;
use tokio::sync::broadcast::{Sender, channel};
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::{Stream, StreamExt as _};

use crate::common::machine::{allow_descriptors, now_ns, pin_thread};
use crate::common::params::choice;
use crate::common::serve::child;
use crate::common::serve::event::{self, Format};
use crate::common::serve::load::{LOAD_HELP, Load};
use crate::common::serve::plan::{Plan, payload, stamp};
use crate::common::{BATCH_CHUNKS, Failure, RING_CHUNKS_MAX, print};
use crate::timer::Timer;

/// Number of descriptors beside those of connections.
const DESCRIPTORS_OTHER: u64 = 64;

pub const HELP: &str = "\
peers sse: run a server of axum for one run of `bench serve --impl axum`

Usage: peers sse [options]

  --impl NAME         axum: current-thread runtime; axum-threads: multi-thread runtime, with one
                      worker for each cpu (axum)
  --cpu N             pin it to cpu N (the first allowed)
  --child             reply to each line of standard input with the usage so far; exit at its end
";

/// Runs `peers sse` with the arguments after these words.
///
/// # Errors
/// [`Failure`].
pub fn command(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let (mut is_child, mut is_threaded) = (false, false);
    let load = Load::parse(arguments, |name, parser| {
        match name {
            "child" => is_child = true,
            "impl" => {
                is_threaded = choice(parser, "--impl", &["axum", "axum-threads"])? != "axum";
            }
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let Some(load) = load else {
        print(&format!("{HELP}{LOAD_HELP}  --help\n"));
        return Ok(());
    };
    if load.format != Format::Sse {
        return Err(Failure::Usage("--format: must be sse".into()));
    }
    if is_child {
        child::answer_standard_input();
    }
    pin_thread(load.cpu)?; // The workers inherit it.
    allow_descriptors(u64::from(load.connections) + DESCRIPTORS_OTHER)?;
    let mut builder =
        if is_threaded { Builder::new_multi_thread() } else { Builder::new_current_thread() };
    let runtime = builder.enable_all().build();
    let failed = |error: io::Error| Failure::Failed(format!("axum: {error}"));
    runtime.map_err(failed)?.block_on(serve(load)).map_err(failed)
}

/// The id of an event, and its JSON.
type Message = Arc<(String, String)>;

struct App {
    /// The senders by execution. Emptied when all is published, so that the streams end.
    senders: Mutex<Vec<Sender<Message>>>,
    connections: u32,
    subscribed: Mutex<u32>,
    all_subscribed: Notify,
}

async fn serve(load: Load) -> io::Result<()> {
    let senders = (0..load.executions).map(|_| channel(RING_CHUNKS_MAX).0).collect();
    let app = Arc::new(App {
        senders: Mutex::new(senders),
        connections: load.connections,
        subscribed: Mutex::new(0),
        all_subscribed: Notify::new(),
    });
    let producer = Arc::clone(&app);
    tokio::spawn(async move {
        if let Err(error) = produce(&load, &producer).await {
            eprintln!("peers: the producer: {error}");
            std::process::exit(1);
        }
    });
    let router = Router::new().route("/v1/executions/{id}/events", get(events)).with_state(app);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    child::announce(listener.local_addr()?);
    let listener = listener.tap_io(|connection| {
        let _ = connection.set_nodelay(true); // Without it, the server works, but slowly.
    });
    axum::serve(listener, router).await
}

async fn events(
    State(app): State<Arc<App>>,
    Path(id): Path<usize>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, StatusCode> {
    let receiver = {
        let senders = app.senders.lock().unwrap_or_else(PoisonError::into_inner);
        senders.get(id).ok_or(StatusCode::NOT_FOUND)?.subscribe()
    };
    let stream = BroadcastStream::new(receiver).map(move |message| {
        let message = message.expect("the producer waits for the slowest");
        let (id, json) = &*message;
        let name = if json.starts_with("{\"event\":\"end\"") { "end" } else { "chunk" };
        Ok(Event::default().id(id).event(name).data(json))
    });
    let mut subscribed = app.subscribed.lock().unwrap_or_else(PoisonError::into_inner);
    *subscribed += 1;
    if *subscribed == app.connections {
        app.all_subscribed.notify_one();
    }
    Ok(Sse::new(stream))
}

/// The producer's state of one execution.
struct Execution {
    name: String,
    sender: Sender<Message>,
    published_chunks: u64,
    free_chunks: usize,
}

impl Execution {
    async fn send(&mut self, json: String, size_bytes: usize) {
        while self.free_chunks == 0 {
            self.free_chunks = RING_CHUNKS_MAX - self.sender.len();
            if self.free_chunks == 0 {
                tokio::task::yield_now().await;
            }
        }
        self.free_chunks -= 1;
        let id = event::id(&self.name, self.published_chunks, size_bytes);
        // Without a receiver it fails: the client has gone, so this process will end, too.
        let _ = self.sender.send(Arc::new((id, json)));
    }
}

/// Publishes the whole plan and the end, once all connections have subscribed.
async fn produce(load: &Load, app: &App) -> io::Result<()> {
    let timer = Timer::new(load.idle)?;
    let mut executions: Vec<Execution> = {
        let senders = app.senders.lock().unwrap_or_else(PoisonError::into_inner);
        let numbered = (0..).zip(senders.iter());
        let execution = |(index, sender): (u32, &Sender<Message>)| Execution {
            name: event::execution_name(index),
            sender: sender.clone(),
            published_chunks: 0,
            free_chunks: 0,
        };
        numbered.map(execution).collect()
    };
    app.all_subscribed.notified().await;
    let mut plan = Plan::new(load);
    plan.begin(Plan::origin(now_ns()));
    let batch_chunks = if plan.is_flat_out() { BATCH_CHUNKS } else { 1 };
    let mut data = payload(load.size_bytes);
    let mut rounds = 0;
    while let Some(planned_ns) = plan.next(now_ns()) {
        timer.wait(planned_ns).await;
        stamp(&mut data, planned_ns);
        let index = rounds % executions.len();
        let execution = &mut executions[index];
        for _ in 0..batch_chunks {
            execution.published_chunks += 1;
            let seq = execution.published_chunks;
            let json = to_json(&event::chunk(&execution.name, seq, &data, planned_ns));
            execution.send(json, load.size_bytes).await;
        }
        if plan.is_flat_out() {
            tokio::task::yield_now().await;
        }
        rounds += 1;
    }
    for mut execution in executions {
        let chunks = execution.published_chunks;
        let json = to_json(&event::end(&execution.name, chunks, load.size_bytes));
        execution.send(json, load.size_bytes).await;
    }
    app.senders.lock().unwrap_or_else(PoisonError::into_inner).clear();
    Ok(())
}

fn to_json(event: &streamdoor::wire::events::WireEvent<'_>) -> String {
    let mut json = Vec::with_capacity(512);
    event.write_json(&mut json);
    String::from_utf8(json).expect("JSON is UTF-8")
}
