//! A look at a cluster, for an operator: its server, its stores, its nodes and its executions.
//!
//! Nothing here changes a cluster, but for [`Link::measure`], whose records expire.

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::HeaderMap;
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::connect::Complaints;
use super::link::{EXPECTED, Link, LinkError};
use super::names::bucket_stream;
use super::permissions::Permissions;
use crate::cluster::claim::Claim;
use crate::cluster::directory::{Entry, EntryState, Tag};
use crate::cluster::member::{About, Held};
use crate::cluster::record::Incarnation;
use crate::limits::{
    CLUSTER_ANSWER_WAIT, CLUSTER_ENTRIES_COUNTED_MAX, CLUSTER_HEADERS_BYTES_MAX,
    CLUSTER_MONITOR_BYTES_MAX, CLUSTER_PULL_BYTES, CLUSTER_RECORD_BYTES_MAX,
};
use crate::reactor::Clock;
use crate::wire::http1::parse_rfc3339;

/// The code of the server for a stream that does not exist.
const NO_STREAM: u64 = 10_059;
/// The oldest version with everything that is used: batches of Direct Get, and times to live.
pub const VERSION_MIN: (u32, u32) = (2, 11);
/// The longest message that a server has to take, in bytes.
pub const PAYLOAD_BYTES_NEEDED: usize =
    (CLUSTER_RECORD_BYTES_MAX + CLUSTER_HEADERS_BYTES_MAX) as usize;
/// A sequence that no stream has reached.
const NEVER: u64 = 1 << 60;
/// Bytes of a record of [`Link::measure`].
const MEASURED_BYTES: usize = 100;

/// The server behind a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Its version, such as `2.15.1`.
    pub version: String,
    /// The longest message that it takes, in bytes.
    pub payload_bytes_max: usize,
    /// True if JetStream is on.
    pub has_jetstream: bool,
}

impl Server {
    /// True if its version is at least [`VERSION_MIN`].
    pub fn is_new_enough(&self) -> bool {
        let mut numbers = self.version.split('.').map_while(|digits| digits.parse::<u32>().ok());
        numbers.next().zip(numbers.next()).is_some_and(|version| version >= VERSION_MIN)
    }
}

/// A node that has a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: Box<str>,
    /// The lease.
    pub held: Held,
    /// Its words about itself.
    pub about: About,
    /// Time since its lease was renewed, by the clock of NATS. `None` if the lease is gone.
    pub renewed: Option<Duration>,
}

/// The executions of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Executions {
    /// Number of running ones, by the name and the life of their node.
    pub running: BTreeMap<(Box<str>, u64), u64>,
    /// Number of ended ones.
    pub ended: u64,
    /// Number of entries that are none of this version.
    pub unknown: u64,
    /// Number of streams that clients write, by the name of their node.
    pub streams: BTreeMap<Box<str>, u64>,
    /// True if there are more, which were not counted.
    pub has_more: bool,
}

/// Sorted times of [`Link::measure`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Round trips to the server.
    pub round_trip: Vec<Duration>,
    /// Records, from their sending until the server says that it has them.
    pub ack: Vec<Duration>,
}

/// The wall-clock time of the server that has told this about a stream, in microseconds since 1970.
pub fn server_time(about: &Value) -> Option<u64> {
    about["ts"].as_str().and_then(parse_rfc3339)
}

impl Link {
    /// Returns what the server says of itself.
    pub fn server(&self) -> Server {
        let about = self.client.server_info();
        Server {
            version: about.version,
            payload_bytes_max: about.max_payload,
            has_jetstream: about.jetstream,
        }
    }

    /// Returns the description of a stream; `None` if it does not exist.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn stream(&self, name: &str) -> Result<Option<Value>, LinkError> {
        match self.ask_json(format!("$JS.API.STREAM.INFO.{name}"), &Value::Null).await {
            Err(LinkError::Refused { code: NO_STREAM, .. }) => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Returns the time since the lease of a node was renewed.
    async fn renewed(&self, node: &str, now_us: u64) -> Result<Option<Duration>, LinkError> {
        let stream = bucket_stream(&self.names().leases());
        let body = json!({ "last_by_subj": self.names().lease(node) });
        let found = self.ask_json(format!("$JS.API.STREAM.MSG.GET.{stream}"), &body).await?;
        let at_us = found["message"]["time"].as_str().and_then(parse_rfc3339);
        Ok(at_us.map(|at_us| Duration::from_micros(now_us.saturating_sub(at_us))))
    }

    /// Returns the nodes that have a lease, by name.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn nodes_seen(&self) -> Result<Vec<Node>, LinkError> {
        let (found, mut nodes) = (self.nodes().await?, Vec::new());
        // Both times are those of NATS: clocks of other machines do not matter.
        let about = self.stream(&bucket_stream(&self.names().leases())).await?;
        let now_us = about.as_ref().and_then(server_time);
        for (name, held, about) in found {
            let renewed = match now_us {
                Some(now_us) => self.renewed(&name, now_us).await.unwrap_or(None),
                None => None,
            };
            nodes.push(Node { name, held, about, renewed });
        }
        nodes.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(nodes)
    }

    /// Counts the entries of the directory, [`CLUSTER_ENTRIES_COUNTED_MAX`] at most.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn executions(&self) -> Result<Executions, LinkError> {
        const PAGE: usize = 1_000;
        let (bucket, mut next, mut seen) = (self.names().directory(), 1, 0);
        let all = super::names::key(&bucket, ">");
        let mut executions = Executions::default();
        loop {
            let body = json!({
                "seq": next,
                "next_by_subj": all,
                "batch": PAGE,
                "max_bytes": CLUSTER_PULL_BYTES,
            });
            let pulled = self.direct_get(&bucket_stream(&bucket), &body).await?;
            for raw in pulled.messages.iter().filter(|raw| !raw.is_removal) {
                let node = raw.subject.rsplit('.').next().unwrap_or("");
                match Entry::parse(&raw.bytes) {
                    None => match Claim::parse(&raw.bytes) {
                        Some(claim) => *executions.streams.entry(claim.node).or_default() += 1,
                        None => executions.unknown += 1,
                    },
                    Some(Entry { state: EntryState::Ended, .. }) => executions.ended += 1,
                    Some(entry) => {
                        *executions.running.entry((node.into(), entry.owner.0)).or_default() += 1;
                    }
                }
            }
            seen += pulled.messages.len();
            let Some(last) = pulled.messages.last().filter(|_| !pulled.is_all) else { break };
            next = last.place + 1;
            if seen >= CLUSTER_ENTRIES_COUNTED_MAX {
                executions.has_more = true;
                break;
            }
        }
        Ok(executions)
    }

    /// Returns the permissions that the user of this connection lacks, as a verb and a subject.
    ///
    /// Each one is tried without an effect. A record and a lease have a condition that does not
    /// hold. Requests have no address for an answer.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn lacking(
        &self,
        permissions: &Permissions,
        complaints: &Complaints,
        scratch: &Tag,
    ) -> Result<Vec<(&'static str, String)>, LinkError> {
        let unknown = |error: &dyn std::fmt::Display| LinkError::Unknown(error.to_string());
        let tried = |subject: &str| subject.replace(['>', '*'], scratch.as_str());
        let mut never = HeaderMap::new();
        never.insert(EXPECTED, NEVER.to_string());
        complaints.take();
        let trying = async {
            let mut held = Vec::new();
            for subject in &permissions.subscribe {
                let subscribed = self.client.subscribe(tried(subject)).await;
                held.push(subscribed.map_err(|error| unknown(&error))?);
            }
            for subject in &permissions.publish {
                let sent =
                    self.client.publish_with_headers(tried(subject), never.clone(), "".into());
                sent.await.map_err(|error| unknown(&error))?;
            }
            // What was refused is told before anything later is answered.
            let _ = tokio::time::timeout(CLUSTER_ANSWER_WAIT, self.round_trip()).await;
            Ok(held)
        };
        let tried_all = tokio::time::timeout(2 * CLUSTER_ANSWER_WAIT, trying).await;
        drop(tried_all.map_err(|error| unknown(&error))??);
        let told: Vec<String> =
            complaints.take().iter().map(|text| text.to_ascii_lowercase()).collect();
        let mut lacking = Vec::new();
        for (verb, noun, subjects) in [
            ("publish", "publish", &permissions.publish),
            ("subscribe", "subscription", &permissions.subscribe),
        ] {
            for subject in subjects {
                let refusal = format!("{noun} to \"{}\"", tried(subject)).to_ascii_lowercase();
                if told.iter().any(|text| text.contains(&refusal)) {
                    lacking.push((verb, subject.clone()));
                }
            }
        }
        Ok(lacking)
    }

    /// Sends something through the server to this connection, and returns the time that it took.
    async fn round_trip(&self) -> Result<Duration, LinkError> {
        let unknown = |error: &dyn std::fmt::Display| LinkError::Unknown(error.to_string());
        let inbox = self.client.new_inbox();
        let going = async {
            let heard = self.client.subscribe(inbox.clone()).await;
            let mut heard = heard.map_err(|error| unknown(&error))?;
            let sent_at = Clock::now();
            let sent = self.client.publish(inbox, "".into()).await;
            sent.map_err(|error| unknown(&error))?;
            let came = heard.next().await;
            came.map(|_| Clock::now().since(sent_at)).ok_or_else(|| unknown(&"it was lost"))
        };
        let gone = tokio::time::timeout(CLUSTER_ANSWER_WAIT, going).await;
        gone.unwrap_or_else(|_| Err(unknown(&"it takes too long")))
    }

    /// Measures `count` round trips, and the storing of as many records. They are those of no
    /// execution, and the log removes them when their time is over.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn measure(&self, scratch: &Tag, count: usize) -> Result<Times, LinkError> {
        let (mut times, mut last) = (Times::default(), 0);
        for _ in 0..count {
            times.round_trip.push(self.round_trip().await?);
            let sent_at = Clock::now();
            last = self.store(scratch, last, vec![0; MEASURED_BYTES]).await?;
            times.ack.push(Clock::now().since(sent_at));
        }
        times.round_trip.sort_unstable();
        times.ack.sort_unstable();
        Ok(times)
    }
}

/// The time between a record and its sync to the disk of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// A server says that it has a record after the sync.
    Always,
    /// A server syncs after this time. A power cut takes what came since.
    Every(Duration),
}

/// Asks the monitor of a server, at `http://HOST:PORT`, when it syncs.
///
/// # Errors
/// A text: it cannot be reached, or is no monitor of NATS.
pub async fn sync_of(monitor: &str) -> Result<Sync, String> {
    let about = tokio::time::timeout(CLUSTER_ANSWER_WAIT, ask_monitor(monitor)).await;
    let about = about.map_err(|_| "it takes too long".to_owned())??;
    let config = &about["config"];
    match (&config["sync_always"], config["sync_interval"].as_u64()) {
        (Value::Bool(true), _) => Ok(Sync::Always),
        (_, Some(nanos)) => Ok(Sync::Every(Duration::from_nanos(nanos))),
        _ => Err("it does not say when JetStream syncs".to_owned()),
    }
}

/// Asks a monitor about JetStream.
async fn ask_monitor(monitor: &str) -> Result<Value, String> {
    let wrong = |error: std::io::Error| error.to_string();
    let host = monitor.strip_prefix("http://").unwrap_or(monitor).trim_end_matches('/');
    let stream = TcpStream::connect(host).await.map_err(wrong)?;
    // An answer of version 1.0 has no chunks, and ends with its connection.
    let request = format!("GET /jsz?config=true HTTP/1.0\r\nHost: {host}\r\n\r\n");
    stream.writable().await.map_err(wrong)?;
    if stream.try_write(request.as_bytes()).map_err(wrong)? < request.len() {
        return Err("it takes no request".to_owned());
    }
    let (mut answer, mut buffer) = (Vec::new(), vec![0; 16 << 10]);
    loop {
        stream.readable().await.map_err(wrong)?;
        match stream.try_read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(wrong(error)),
        }
        if answer.len() > CLUSTER_MONITOR_BYTES_MAX {
            return Err("it says too much".to_owned());
        }
    }
    let body = answer.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4);
    let body = body.and_then(|at| serde_json::from_slice(&answer[at..]).ok());
    body.ok_or_else(|| "it is no monitor of NATS".to_owned())
}

impl Node {
    /// True if this is the node with this name and life.
    pub fn is(&self, name: &str, life: u64) -> bool {
        *self.name == *name && self.held.by == Incarnation(life)
    }
}
