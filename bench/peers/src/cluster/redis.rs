//! Redis Streams: an entry for each chunk.
//!
//! The server keeps the log in its file of commands, and syncs it every second, which is its
//! default. The task of node A sends the chunks that are due as one pipeline. It has one
//! connection, with several pipelines on their way. Each client of node B has a connection of its
//! own, because its `XREAD BLOCK` would hold up all others.

use std::mem::take;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::stream::{self, FuturesOrdered, StreamExt as _, TryStreamExt as _};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::streams::{StreamId, StreamReadOptions, StreamReadReply};
use redis::{AsyncCommands as _, AsyncConnectionConfig, Client, IntoConnectionInfo as _, Value};
use tokio::sync::mpsc::Receiver;

use super::server::Server;
use super::{Events, Glue, event};
use crate::common::Failure;
use crate::common::cluster::failed;

/// The programs that are tried if none is chosen.
const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];
/// Chunks of one pipeline, and pipelines on their way.
const PIPELINE_CHUNKS: usize = 64;
const PIPELINES_MAX: usize = 16;
/// Entries of one read.
const READ_ENTRIES: usize = 256;
const FIELD: &str = "data";
/// The longest wait for an answer. The client's own, half a second, is shorter than a slow sync.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Starts a server of Redis.
///
/// # Errors
/// [`Failure::Environment`] if there is none.
pub fn start(program: Option<PathBuf>) -> Result<Server, Failure> {
    let is_there = |name: &&str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
    };
    let first = || PROGRAMS.into_iter().find(is_there).map(PathBuf::from);
    let program = program.or_else(first).ok_or_else(|| {
        Failure::Environment(format!("{}: neither is installed", PROGRAMS.join(", ")))
    })?;
    Server::start(Path::new(&program), |port, directory| {
        let words = ["--bind", "127.0.0.1", "--port", port, "--dir", directory, "--save", ""];
        let keeps = ["--appendonly", "yes", "--appendfsync", "everysec"];
        words.into_iter().chain(keeps).map(str::to_owned).collect()
    })
}

/// The implementation `redis-axum`.
pub struct Redis {
    client: Client,
    connection: MultiplexedConnection,
}

impl Redis {
    async fn connect(
        client: &Client,
        answer_max: Option<Duration>,
    ) -> Result<MultiplexedConnection, Failure> {
        let config = AsyncConnectionConfig::new().set_response_timeout(answer_max);
        client.get_multiplexed_async_connection_with_config(&config).await.map_err(failed)
    }
}

impl Glue for Redis {
    async fn open(port: u16) -> Result<Redis, Failure> {
        let address = (Ipv4Addr::LOCALHOST.to_string(), port);
        let info = address.into_connection_info().map_err(failed)?;
        let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let client = Client::open(info).map_err(failed)?;
        let connection = Redis::connect(&client, Some(ANSWER_MAX)).await?;
        Ok(Redis { client, connection })
    }

    async fn store(&self, id: &str, mut chunks: Receiver<Vec<u8>>) -> Result<(), Failure> {
        let key = key(id);
        let (mut due, mut answers, mut is_over) = (Vec::new(), FuturesOrdered::new(), false);
        loop {
            let has_room = !is_over && answers.len() < PIPELINES_MAX;
            tokio::select! {
                count = chunks.recv_many(&mut due, PIPELINE_CHUNKS), if has_room => {
                    is_over = count == 0;
                    if !is_over {
                        answers.push_back(append(self.connection.clone(), &key, take(&mut due)));
                    }
                }
                Some(answer) = answers.next() => answer?,
                else => return Ok(()),
            }
        }
    }

    async fn follow(&self, id: &str) -> Result<Events, Failure> {
        let connection = Redis::connect(&self.client, None).await?;
        let state = (connection, key(id), "0".to_owned());
        let batches = stream::try_unfold(state, |(mut connection, key, mut last)| async move {
            let entries = read(&mut connection, &key, &last).await?;
            if let Some(entry) = entries.last() {
                last.clone_from(&entry.id);
            }
            let events = stream::iter(entries.into_iter().map(to_event));
            Ok::<_, Failure>(Some((events, (connection, key, last))))
        });
        Ok(batches.try_flatten().boxed())
    }
}

fn key(id: &str) -> String {
    format!("events:{id}")
}

async fn append(
    mut connection: MultiplexedConnection,
    key: &str,
    chunks: Vec<Vec<u8>>,
) -> Result<(), Failure> {
    let mut commands = redis::pipe();
    for chunk in &chunks {
        commands.xadd(key, "*", &[(FIELD, chunk.as_slice())]).ignore();
    }
    commands.query_async(&mut connection).await.map_err(failed)
}

/// Waits for entries behind the last one.
async fn read(
    connection: &mut MultiplexedConnection,
    key: &str,
    last: &str,
) -> Result<Vec<StreamId>, Failure> {
    let options = StreamReadOptions::default().count(READ_ENTRIES).block(0);
    let reply = connection.xread_options(&[key], &[last], &options).await;
    let reply: Option<StreamReadReply> = reply.map_err(failed)?;
    let reply = reply.ok_or_else(|| failed("the server has not waited"))?;
    Ok(reply.keys.into_iter().flat_map(|key| key.ids).collect())
}

fn to_event(mut entry: StreamId) -> Result<axum::response::sse::Event, Failure> {
    match entry.map.remove(FIELD) {
        Some(Value::BulkString(bytes)) => event(entry.id, &bytes),
        _ => Err(failed(format!("{}: an entry has no chunk", entry.id))),
    }
}
