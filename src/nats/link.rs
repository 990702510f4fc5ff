//! The connection of a node to NATS: the verbs of the cluster, each bounded in time.
//!
//! Only subjects and headers are used, and JSON where the server speaks it. The rules of the server
//! that matter:
//!
//! - A message with `Nats-Expected-Last-Subject-Sequence` is stored if its subject's last message
//!   has that sequence. A refusal has the code 10071, or 10164 if another message of the subject is
//!   under way. Neither says that somebody else has written.
//! - `RePublish` sends a message to another subject after it was stored, by the leader only.
//! - Any server of a replicated stream may answer a Direct Get. Its answer can be old.
//!   `STREAM.MSG.GET` asks the leader.
//!
//! Source: nats-server 2.11 to 2.15, ADR-8 (buckets), ADR-31 (Direct Get), ADR-43 (time to live).

use std::fmt;
use std::time::Duration;

use async_nats::{Client, HeaderMap, Message, Request, Subscriber};
use futures_util::StreamExt;
use serde_json::{Value, json};

use super::names::{Names, bucket_stream};
use crate::base::SharedBytes;
use crate::base::plain::is_command;
use crate::cluster::claim::Claim;
use crate::cluster::directory::{Entry, Tag};
use crate::cluster::member::{About, Held};
use crate::cluster::record::Incarnation;
use crate::limits::{
    CLUSTER_ABOUT_BYTES_MAX, CLUSTER_ANSWER_WAIT, CLUSTER_NODES_MAX, CLUSTER_PULL_BYTES,
    CLUSTER_PULL_RECORDS, CLUSTER_REMOVAL,
};
use crate::wire::base64;

pub(super) const EXPECTED: &str = "Nats-Expected-Last-Subject-Sequence";
const SEQUENCE: &str = "Nats-Sequence";
const SUBJECT: &str = "Nats-Subject";
const TTL: &str = "Nats-TTL";
const PENDING: &str = "Nats-Num-Pending";
const OPERATION: &str = "KV-Operation";
const MARKER: &str = "Nats-Marker-Reason";
/// The server's code for "no message found".
const NOT_FOUND: u64 = 10_037;

/// The reason why a verb has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkError {
    /// Nobody has answered. The request may have been carried out.
    Unknown(String),
    /// The server has refused, with its code and its words.
    Refused {
        /// The code, such as 10071.
        code: u64,
        /// The words.
        text: String,
    },
    /// The answer is not what such a server says.
    Strange(String),
}

impl fmt::Display for LinkError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkError::Unknown(text) => write!(formatter, "no answer from NATS: {text}"),
            LinkError::Refused { code, text } => write!(formatter, "NATS refuses: {text} ({code})"),
            LinkError::Strange(text) => write!(formatter, "NATS answers strangely: {text}"),
        }
    }
}

impl std::error::Error for LinkError {}

/// A stored message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raw {
    /// Its subject.
    pub subject: Box<str>,
    /// Its sequence in the stream.
    pub place: u64,
    /// True if the stream has no earlier message of the subject.
    pub is_first: bool,
    /// The bytes.
    pub bytes: SharedBytes,
    /// True if it says that its key is gone.
    pub is_removal: bool,
}

/// The answer to a pull.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pulled {
    /// The messages, in order.
    pub messages: Vec<Raw>,
    /// True if the server that has answered knows of no more.
    pub is_all: bool,
}

/// The connection of a node.
#[derive(Clone)]
pub struct Link {
    pub(super) client: Client,
    names: Names,
}

impl Link {
    /// Uses this connection for a cluster.
    pub fn new(client: Client, names: Names) -> Link {
        Link { client, names }
    }

    /// The names of the cluster.
    pub fn names(&self) -> &Names {
        &self.names
    }

    pub(super) async fn ask(
        &self,
        subject: String,
        headers: Option<HeaderMap>,
        payload: Vec<u8>,
    ) -> Result<Message, LinkError> {
        let mut request = Request::new().payload(payload.into());
        if let Some(headers) = headers {
            request = request.headers(headers);
        }
        // The sending can wait, too: for a connection.
        let sent = self.client.send_request(subject, request);
        match tokio::time::timeout(CLUSTER_ANSWER_WAIT, sent).await {
            Ok(Ok(message)) => Ok(message),
            Ok(Err(error)) => Err(LinkError::Unknown(error.to_string())),
            Err(_) => Err(LinkError::Unknown("it takes too long".to_owned())),
        }
    }

    /// Asks for something in JSON.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn ask_json(&self, subject: String, body: &Value) -> Result<Value, LinkError> {
        let payload = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        json_of(&self.ask(subject, None, payload).await?)
    }

    /// Writes a message behind the one with the sequence `expected`; 0: there is none, and `None`:
    /// any. Returns its own sequence.
    async fn write(
        &self,
        subject: String,
        expected: impl Into<Option<u64>>,
        ttl: Option<Duration>,
        bytes: Vec<u8>,
    ) -> Result<u64, LinkError> {
        let mut headers = HeaderMap::new();
        if let Some(expected) = expected.into() {
            headers.insert(EXPECTED, expected.to_string());
        }
        if let Some(ttl) = ttl {
            headers.insert(TTL, format!("{}s", ttl.as_secs().max(1)));
        }
        let answer = json_of(&self.ask(subject, Some(headers), bytes).await?)?;
        answer["seq"].as_u64().ok_or_else(|| LinkError::Strange(answer.to_string()))
    }

    /// Stores a record of an execution, if the last one has the place `expected`. Returns its own.
    ///
    /// # Errors
    /// [`LinkError`]. None of them says that it was not stored.
    pub async fn store(&self, tag: &Tag, expected: u64, record: Vec<u8>) -> Result<u64, LinkError> {
        self.write(self.names.records(tag), expected, None, record).await
    }

    /// Returns the last record of an execution, from the leader.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn last(&self, tag: &Tag) -> Result<Option<Raw>, LinkError> {
        let subject = self.names.records(tag);
        self.leader_get(&self.names.log(), &json!({ "last_by_subj": subject })).await
    }

    /// Asks the leader of a stream for one message.
    pub(super) async fn leader_get(
        &self,
        stream: &str,
        body: &Value,
    ) -> Result<Option<Raw>, LinkError> {
        let subject = format!("$JS.API.STREAM.MSG.GET.{stream}");
        let answer = match self.ask_json(subject, body).await {
            Err(LinkError::Refused { code: NOT_FOUND, .. }) => return Ok(None),
            answer => answer?,
        };
        let message = &answer["message"];
        let strange = || LinkError::Strange(format!("a message without its {message:.200}"));
        let place = message["seq"].as_u64().ok_or_else(strange)?;
        let bytes = base64::read(message["data"].as_str().unwrap_or("")).ok_or_else(strange)?;
        let headers = base64::read(message["hdrs"].as_str().unwrap_or("")).ok_or_else(strange)?;
        let headers = String::from_utf8_lossy(&headers);
        let is_removal = headers.contains(OPERATION) || headers.contains(MARKER);
        let subject = message["subject"].as_str().unwrap_or("").into();
        let bytes = SharedBytes::new(bytes);
        Ok(Some(Raw { subject, place, is_first: false, bytes, is_removal }))
    }

    /// Returns records of an execution behind a place.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn pull(
        &self,
        tag: &Tag,
        behind: u64,
        from_leader: bool,
    ) -> Result<Pulled, LinkError> {
        let (log, subject) = (self.names.log(), self.names.records(tag));
        let next = |from: u64| json!({ "seq": from, "next_by_subj": subject });
        if !from_leader {
            let body = json!({
                "seq": behind + 1,
                "next_by_subj": subject,
                "batch": CLUSTER_PULL_RECORDS,
                "max_bytes": CLUSTER_PULL_BYTES,
            });
            let mut pulled = self.direct_get(&log, &body).await?;
            if let Some(first) = pulled.messages.first_mut() {
                first.is_first = behind == 0;
            }
            return Ok(pulled);
        }
        let Some(mut message) = self.leader_get(&log, &next(behind + 1)).await? else {
            return Ok(Pulled { messages: Vec::new(), is_all: true });
        };
        let first = self.leader_get(&log, &next(1)).await?;
        message.is_first = first.is_some_and(|first| first.place == message.place);
        Ok(Pulled { messages: vec![message], is_all: false })
    }

    /// Returns the first record of an execution behind a place.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn next_record(&self, tag: &Tag, behind: u64) -> Result<Option<Raw>, LinkError> {
        let subject = self.names.records(tag);
        let body = json!({ "seq": behind + 1, "next_by_subj": subject, "batch": 1 });
        let pulled = self.direct_get(&self.names.log(), &body).await?;
        Ok(pulled.messages.into_iter().next())
    }

    /// Writes the entry of an execution of a node. It stays for `time`, or for ever.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn put_entry(
        &self,
        tag: &Tag,
        node: &str,
        entry: &Entry,
        time: Option<Duration>,
    ) -> Result<(), LinkError> {
        let (subject, text) = (self.names.entry(tag, node), entry.to_text());
        self.write(subject, None, time, text.into_bytes()).await.map(drop)
    }

    /// Finds the entry of an execution, and the node whose it is.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn find(&self, tag: &Tag) -> Result<Option<(Box<str>, Entry)>, LinkError> {
        let all = self.names.entry(tag, "*");
        let body = json!({ "seq": 1, "next_by_subj": all, "batch": CLUSTER_NODES_MAX });
        let stream = bucket_stream(&self.names.directory());
        let pulled = self.direct_get(&stream, &body).await?;
        let prefix = self.names.entry(tag, "");
        let entry = |raw: &Raw| {
            let node = raw.subject.strip_prefix(&prefix)?;
            Some((node.into(), Entry::parse(&raw.bytes)?))
        };
        // Nobody but its owner and closers can write it, and there is one owner.
        Ok(pulled.messages.iter().filter(|raw| !raw.is_removal).find_map(entry))
    }

    /// Returns entries of executions of a node, or of all (`*`), behind a place of the directory.
    /// Each has its tag, its node, and its place. The last value is true if there are no more.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn entries(
        &self,
        node: &str,
        behind: u64,
    ) -> Result<(Vec<(Tag, Box<str>, Entry)>, u64, bool), LinkError> {
        let pulled = self.keys(self.names.entries(node), behind).await?;
        let last = pulled.messages.last().map_or(behind, |raw| raw.place);
        let prefix = self.names.all_entries();
        let entry = |raw: &Raw| {
            let (tag, node) = raw.subject.strip_prefix(&prefix)?.split_once('.')?;
            Some((Tag::parse(tag)?, node.into(), Entry::parse(&raw.bytes)?))
        };
        let found = pulled.messages.iter().filter(|raw| !raw.is_removal).filter_map(entry);
        Ok((found.collect(), last, pulled.is_all || pulled.messages.is_empty()))
    }

    /// Returns messages of the directory behind a place.
    async fn keys(&self, subject: String, behind: u64) -> Result<Pulled, LinkError> {
        let body = json!({
            "seq": behind + 1,
            "next_by_subj": subject,
            "batch": CLUSTER_PULL_RECORDS,
            "max_bytes": CLUSTER_PULL_BYTES,
        });
        self.direct_get(&bucket_stream(&self.names.directory()), &body).await
    }

    /// Returns the node that has a path, and the place of the last message about it, which may be a
    /// removal; 0: there is none.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn read_claim(&self, tag: &Tag) -> Result<(Option<Box<str>>, u64), LinkError> {
        let (stream, subject) = (bucket_stream(&self.names.directory()), self.names.claim(tag));
        let last = self.leader_get(&stream, &json!({ "last_by_subj": subject })).await?;
        let Some(last) = last else { return Ok((None, 0)) };
        let claim = if last.is_removal { None } else { Claim::parse(&last.bytes) };
        Ok((claim.map(|claim| claim.node), last.place))
    }

    /// Writes the claim of a node, if the last message about the path has the place `last`.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn write_claim(&self, tag: &Tag, node: &str, last: u64) -> Result<(), LinkError> {
        let text = Claim { node: node.into() }.to_text();
        self.write(self.names.claim(tag), last, None, text.into_bytes()).await.map(drop)
    }

    /// Removes a claim, if it has the place `last`.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn remove_claim(&self, tag: &Tag, last: u64) -> Result<(), LinkError> {
        self.remove(self.names.claim(tag), last).await
    }

    /// Returns paths that nodes have, behind a place of the directory: the tag, the node, and the
    /// place of each. The last values are the place of the last one, and true if there are no more.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn claims(
        &self,
        behind: u64,
    ) -> Result<(Vec<(Tag, Box<str>, u64)>, u64, bool), LinkError> {
        let (prefix, pulled) =
            (self.names.all_entries(), self.keys(self.names.all_claims(), behind));
        let pulled = pulled.await?;
        let last = pulled.messages.last().map_or(behind, |raw| raw.place);
        let claim = |raw: &Raw| {
            let (tag, _) = raw.subject.strip_prefix(&prefix)?.split_once('.')?;
            Some((Tag::parse(tag)?, Claim::parse(&raw.bytes)?.node, raw.place))
        };
        let found = pulled.messages.iter().filter(|raw| !raw.is_removal).filter_map(claim);
        Ok((found.collect(), last, pulled.is_all || pulled.messages.is_empty()))
    }

    /// Asks another node for something, and waits for its answer.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn ask_node(&self, node: &str, body: Vec<u8>) -> Result<Vec<u8>, LinkError> {
        Ok(self.ask(self.names.ask(node), None, body).await?.payload.to_vec())
    }

    /// Listens to what other nodes ask this one.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn hear_asks(&self, node: &str) -> Result<Subscriber, LinkError> {
        let subscribed = self.client.subscribe(self.names.ask(node)).await;
        subscribed.map_err(|error| LinkError::Unknown(error.to_string()))
    }

    /// Answers what another node has asked.
    pub async fn answer(&self, message: &Message, body: Vec<u8>) {
        if let Some(reply) = &message.reply {
            // The other node asks again.
            let _ = self.client.publish(reply.clone(), body.into()).await;
        }
    }

    /// Removes the lease of this node, if it has this revision.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn end_lease(&self, node: &str, revision: u64) -> Result<(), LinkError> {
        self.remove(self.names.lease(node), revision).await
    }

    /// Removes a key, if its last message has the place `last`. The removal goes after a while.
    async fn remove(&self, subject: String, last: u64) -> Result<(), LinkError> {
        let mut headers = HeaderMap::new();
        headers.insert(EXPECTED, last.to_string());
        headers.insert(OPERATION, "DEL");
        headers.insert(TTL, format!("{}s", CLUSTER_REMOVAL.as_secs()));
        json_of(&self.ask(subject, Some(headers), Vec::new()).await?).map(drop)
    }

    /// Asks any server of a stream for several messages.
    pub(super) async fn direct_get(&self, stream: &str, body: &Value) -> Result<Pulled, LinkError> {
        let unknown = |error: &dyn fmt::Display| LinkError::Unknown(error.to_string());
        let inbox = self.client.new_inbox();
        let asked = async {
            let answers = self.client.subscribe(inbox.clone()).await;
            let mut answers = answers.map_err(|error| unknown(&error))?;
            let (subject, body) = (format!("$JS.API.DIRECT.GET.{stream}"), body.to_string());
            let sent = self.client.publish_with_reply(subject, inbox, body.into());
            sent.await.map_err(|error| unknown(&error))?;
            let mut pulled = Pulled::default();
            while let Some(message) = answers.next().await {
                match message.status.map(|status| status.as_u16()) {
                    None => pulled.messages.push(raw_of(&message)?),
                    Some(404) => return Ok(Pulled { is_all: true, ..pulled }),
                    Some(204) => {
                        pulled.is_all = number_of(&message, PENDING)? == 0;
                        return Ok(pulled);
                    }
                    Some(503) => return Err(unknown(&"nobody serves the stream")),
                    Some(code) => {
                        let text = message.description.unwrap_or_default();
                        return Err(LinkError::Refused { code: code.into(), text });
                    }
                }
            }
            Err(unknown(&"the connection was lost"))
        };
        let all = tokio::time::timeout(CLUSTER_ANSWER_WAIT, asked).await;
        all.unwrap_or_else(|_| Err(unknown(&"it takes too long")))
    }

    /// Listens to the records of an execution. Everything that is stored later is heard.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn listen(&self, tag: &Tag) -> Result<Subscriber, LinkError> {
        let subject = self.names.live(tag);
        let unknown = |error: &dyn fmt::Display| LinkError::Unknown(error.to_string());
        let listening = async {
            let subscribed = self.client.subscribe(subject).await;
            let heard = subscribed.map_err(|error| unknown(&error))?;
            // What is asked next goes the same way behind it.
            self.client.flush().await.map_err(|error| unknown(&error))?;
            Ok(heard)
        };
        let all = tokio::time::timeout(CLUSTER_ANSWER_WAIT, listening).await;
        all.unwrap_or_else(|_| Err(unknown(&"it takes too long")))
    }

    /// Reads a message that was heard: its place, and its bytes.
    ///
    /// # Errors
    /// [`LinkError::Strange`] if it has no place.
    pub fn heard(message: &Message) -> Result<Raw, LinkError> {
        raw_of(message)
    }

    /// Returns what a node tells of itself, if it has a lease.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn read_about(&self, node: &str) -> Result<Option<About>, LinkError> {
        let last = self.last_of_lease(node).await?;
        Ok(last.as_ref().and_then(held_of).map(|(_, about)| about))
    }

    async fn last_of_lease(&self, node: &str) -> Result<Option<Raw>, LinkError> {
        let (stream, subject) = (bucket_stream(&self.names.leases()), self.names.lease(node));
        self.leader_get(&stream, &json!({ "last_by_subj": subject })).await
    }

    /// Returns the lease of a node: what holds it, and the sequence of its last message, which may
    /// be a removal.
    async fn lease(&self, node: &str) -> Result<(Option<Held>, u64), LinkError> {
        let last = self.last_of_lease(node).await?;
        Ok(last.map_or((None, 0), |last| (held_of(&last).map(|(held, _)| held), last.place)))
    }

    /// Reads the lease of a node.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn read_lease(&self, node: &str) -> Result<Option<Held>, LinkError> {
        Ok(self.lease(node).await?.0)
    }

    /// Creates the lease of a node, if it has none. Returns its revision.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn create_lease(
        &self,
        node: &str,
        (by, about): (Incarnation, &About),
        time: Duration,
    ) -> Result<u64, LinkError> {
        match self.lease(node).await? {
            (None, behind) => self.renew_lease(node, behind, (by, about), time).await,
            (Some(_), _) => {
                Err(LinkError::Refused { code: 10_071, text: "it has a lease".to_owned() })
            }
        }
    }

    /// Renews the lease of a node, if it has this revision. Returns the next one.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn renew_lease(
        &self,
        node: &str,
        revision: u64,
        (by, about): (Incarnation, &About),
        time: Duration,
    ) -> Result<u64, LinkError> {
        let value = json!({
            "version": 1,
            "incarnation": format!("{:016x}", by.0),
            "url": about.url,
            "program_version": about.version,
            "guarded": about.is_guarded,
        });
        let (subject, value) = (self.names.lease(node), value.to_string().into_bytes());
        self.write(subject, revision, Some(time), value).await
    }

    /// Returns the nodes that have a lease, and what each tells.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn nodes(&self) -> Result<Vec<(Box<str>, Held, About)>, LinkError> {
        let (bucket, all) = (self.names.leases(), self.names.lease("*"));
        let body = json!({ "multi_last": [all], "batch": CLUSTER_NODES_MAX });
        let pulled = self.direct_get(&bucket_stream(&bucket), &body).await?;
        let prefix = self.names.lease("");
        let node = |raw: &Raw| {
            let (held, about) = held_of(raw)?;
            Some((raw.subject.strip_prefix(&prefix)?.into(), held, about))
        };
        Ok(pulled.messages.iter().filter_map(node).collect())
    }
}

fn header_of<'m>(message: &'m Message, name: &str) -> Option<&'m str> {
    Some(message.headers.as_ref()?.get(name)?.as_str())
}

fn number_of(message: &Message, name: &str) -> Result<u64, LinkError> {
    let number = header_of(message, name).and_then(|text| text.parse().ok());
    number.ok_or_else(|| LinkError::Strange(format!("{name} is not a number")))
}

/// Reads a stored message as a server sends it.
fn raw_of(message: &Message) -> Result<Raw, LinkError> {
    let place = number_of(message, SEQUENCE)?;
    let subject = header_of(message, SUBJECT).unwrap_or(message.subject.as_str()).into();
    let has = |name: &str| header_of(message, name).is_some();
    let is_removal = has(OPERATION) || has(MARKER);
    let bytes = SharedBytes::new(message.payload.clone()); // It shares them, too.
    Ok(Raw { subject, place, is_first: false, bytes, is_removal })
}

/// Reads an answer in JSON.
fn json_of(message: &Message) -> Result<Value, LinkError> {
    let strange = |text: &dyn fmt::Display| LinkError::Strange(text.to_string());
    let answer: Value =
        serde_json::from_slice(&message.payload).map_err(|error| strange(&error))?;
    match answer.get("error") {
        None => Ok(answer),
        Some(error) => Err(LinkError::Refused {
            code: error["err_code"].as_u64().or(error["code"].as_u64()).unwrap_or(0),
            text: error["description"].as_str().unwrap_or("no reason").to_owned(),
        }),
    }
}

/// Reads a lease. `None`: it is gone, or is none.
fn held_of(raw: &Raw) -> Option<(Held, About)> {
    let value: Value = serde_json::from_slice(&raw.bytes).ok().filter(|_| !raw.is_removal)?;
    let digits = value["incarnation"].as_str().filter(|digits| digits.len() == 16)?;
    let by = Incarnation(u64::from_str_radix(digits, 16).ok()?);
    let text = |name: &str| {
        let text = value[name].as_str().filter(|text| text.len() <= CLUSTER_ABOUT_BYTES_MAX);
        text.filter(|text| text.chars().all(|c| !is_command(c))).map(Box::from)
    };
    let (url, version) = (text("url"), text("program_version"));
    let about = About { url, version, is_guarded: value["guarded"].as_bool() };
    (value["version"] == 1).then_some((Held { revision: raw.place, by }, about))
}
