//! The driver: runs the machines of a node on its connection to NATS.
//!
//! It lives on one thread, with a runtime of its own. Each wish of a machine becomes a task that
//! waits for the answer. Answers come back through one queue, in the order of their arrival. No
//! wait is longer than [`CLUSTER_ANSWER_WAIT`].

use std::cell::Cell;
use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use async_nats::{Client, ConnectOptions, Event, ServerAddr};
use futures_util::StreamExt;
use futures_util::future::{self, Either};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::asks::{Ask, Heard};
use super::link::{Link, LinkError, Pulled, Raw};
use super::names::Names;
use super::orphans::Orphan;
use crate::base::{ExecutionId, Instant, SharedBytes};
use crate::cluster::closer::Closer;
use crate::cluster::directory::{EntryState, Tag};
use crate::cluster::follow::{self, Follow, Given, Landmark, Stored};
use crate::cluster::history::History;
use crate::cluster::member::{self, About, Held, Lease, Watch};
use crate::cluster::mirror::{self, Attempt, Last, Mirror, Standing, Wish};
use crate::cluster::record::Incarnation;
use crate::limits::{
    CLUSTER_ANSWER_WAIT, CLUSTER_CONNECT_WAIT, CLUSTER_LOOK_INTERVAL, CLUSTER_MAILBOX,
    CLUSTER_PING, CLUSTER_RETRY_FIRST, CLUSTER_RETRY_MAX,
};
use crate::reactor::Clock;
use crate::server::{Holder, Listed, Located, ReaderName, Ticket};
use crate::trace::Latency;

/// A reader of parts of logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To<'a> {
    /// Those who follow the log with this tag.
    Followers(&'a Tag),
    /// A reader of old records.
    Reader(ReaderName),
}

/// A machine of the node.
#[derive(Clone, Debug)]
pub(super) enum Who {
    Lease,
    Mirror(Tag),
    Closer(Tag),
    Reader(Tag),
    History(ReaderName),
}

pub(super) enum Answer {
    Failed,
    Written(u64),
    Last(Option<Raw>),
    Held(Option<Held>),
    Listening,
    Pulled(Pulled),
}

/// Something that has come to the thread of the node.
pub(super) enum Arrival {
    Answer {
        who: Who,
        attempt: Attempt,
        answer: Answer,
        /// Time since the question.
        took: Duration,
    },
    Heard {
        tag: Tag,
        raw: Raw,
    },
    Nodes(Vec<(Box<str>, Held, About)>),
    /// News for the node itself.
    News(News),
    /// Something may not have been heard.
    Connection {
        is_lost: bool,
    },
}

/// News for the node, which the machines do not need.
pub(super) enum News {
    /// The answer to a lookup.
    Located(u8, ExecutionId, Located),
    /// The place of an old chunk for a reader.
    Sought(ReaderName, Box<Landmark>),
    /// An entry was written with this state; `None`: it was not.
    Entry(Tag, Option<EntryState>),
    /// The running executions of a life of a node that is over; `None`: nobody has answered.
    Orphans(Box<str>, Option<Vec<Orphan>>),
    /// Another node asks something.
    Asked(Ask, Heard),
    /// The parts of all other nodes for a list of this shard.
    Listed(u8, Ticket, Listed),
    /// The first wish about a path was carried out.
    Claimed(Tag, Holder),
}

struct Reader {
    follow: Follow,
    /// The task that hears.
    hears: Option<AbortHandle>,
}

/// The machines of a node. See the module's text.
pub struct Driver {
    link: Link,
    node: Box<str>,
    incarnation: Incarnation,
    about: About,
    lease_time: Duration,
    lease: Lease,
    watch: Watch,
    /// The words of each living node about itself.
    others: BTreeMap<Box<str>, About>,
    mirrors: BTreeMap<Tag, Mirror>,
    readers: BTreeMap<Tag, Reader>,
    histories: BTreeMap<ReaderName, (Tag, History)>,
    closers: BTreeMap<Tag, Closer>,
    /// The totals of the mirrors and readers that are gone.
    mirrors_gone: mirror::Counters,
    readers_gone: follow::Counters,
    disconnects: u64,
    has_connected: bool,
    /// Times from the sending of a record until the log has it.
    acks: Latency,
    news: Vec<News>,
    /// The time of the next look at all leases.
    look_at: Instant,
    sender: mpsc::Sender<Arrival>,
    arrivals: mpsc::Receiver<Arrival>,
}

/// Connects to servers. The connection comes back by itself, and `sender` is told when it has.
async fn connect(
    servers: Vec<ServerAddr>,
    options: ConnectOptions,
    sender: mpsc::Sender<Arrival>,
) -> Result<Client, LinkError> {
    let options = options
        .ping_interval(CLUSTER_PING)
        .connection_timeout(CLUSTER_CONNECT_WAIT)
        .reconnect_delay_callback(|attempt| {
            let factor = 1 << attempt.min(10);
            (CLUSTER_RETRY_FIRST * factor).min(CLUSTER_RETRY_MAX)
        })
        .event_callback(move |event| {
            let sender = sender.clone();
            async move {
                let is_lost = matches!(event, Event::Disconnected);
                if is_lost || matches!(event, Event::Connected | Event::SlowConsumer(_)) {
                    let _ = sender.send(Arrival::Connection { is_lost }).await;
                }
            }
        });
    let connecting = pin!(options.connect(servers));
    match tokio::time::timeout(5 * CLUSTER_ANSWER_WAIT, connecting).await {
        Ok(connected) => connected.map_err(|error| LinkError::Unknown(error.to_string())),
        Err(_) => Err(LinkError::Unknown("it takes too long to connect".to_owned())),
    }
}

impl Driver {
    /// Connects a node to the servers of its cluster. Has to be called, as everything of it, in a
    /// runtime of one thread, in a [`tokio::task::LocalSet`].
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn connect(
        servers: Vec<ServerAddr>,
        options: ConnectOptions,
        names: Names,
        (node, incarnation, about, lease_time): (&str, Incarnation, About, Duration),
    ) -> Result<Driver, LinkError> {
        let (sender, arrivals) = mpsc::channel(CLUSTER_MAILBOX);
        let client = connect(servers, options, sender.clone()).await?;
        let now = Clock::now();
        Ok(Driver {
            link: Link::new(client, names),
            node: node.into(),
            incarnation,
            about,
            lease_time,
            lease: Lease::new(incarnation, lease_time, now),
            watch: Watch::default(),
            others: BTreeMap::new(),
            mirrors: BTreeMap::new(),
            readers: BTreeMap::new(),
            histories: BTreeMap::new(),
            mirrors_gone: mirror::Counters::default(),
            readers_gone: follow::Counters::default(),
            disconnects: 0,
            has_connected: false,
            acks: Latency::default(),
            news: Vec::new(),
            closers: BTreeMap::new(),
            look_at: now,
            sender,
            arrivals,
        })
    }

    /// The connection.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// The lease of the node.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The leases of the others.
    pub fn watch(&mut self) -> &mut Watch {
        &mut self.watch
    }

    /// The words of a living node about itself.
    pub fn about(&self, node: &str) -> Option<&About> {
        self.others.get(node)
    }

    /// The living nodes of which one has tokens and this one has none, or the other way round.
    pub fn apart(&self) -> impl Iterator<Item = &str> {
        let apart = self.others.iter().filter(|(_, other)| other.is_apart_from(&self.about));
        apart.map(|(node, _)| &**node)
    }

    /// Begins to mirror an execution of this node.
    pub fn mirror(&mut self, tag: &Tag) -> &mut Mirror {
        let incarnation = self.incarnation;
        self.mirrors.entry(tag.clone()).or_insert_with(|| Mirror::new(incarnation))
    }

    /// Takes a mirror that looks again.
    pub fn resume(&mut self, tag: Tag, mirror: Mirror) {
        self.mirrors.insert(tag, mirror);
    }

    /// True if the connection has come back, or is another one, since the last call.
    pub fn take_connected(&mut self) -> bool {
        std::mem::take(&mut self.has_connected)
    }

    /// Takes the mirrors that write nothing more.
    pub fn take_done(&mut self) -> Vec<(Tag, Mirror)> {
        let done = self.mirrors.extract_if(.., |_, mirror| mirror.standing() != Standing::Open);
        done.inspect(|(_, mirror)| self.mirrors_gone.add(mirror.counters())).collect()
    }

    /// The totals of all mirrors so far.
    pub fn mirror_counters(&self) -> mirror::Counters {
        let mut all = self.mirrors_gone;
        self.mirrors.values().for_each(|mirror| all.add(mirror.counters()));
        all
    }

    /// The totals of all readers so far.
    pub fn follow_counters(&self) -> follow::Counters {
        let mut all = self.readers_gone;
        let readers = self.readers.values().map(|reader| &reader.follow);
        let histories = self.histories.values().map(|(_, history)| &history.follow);
        readers.chain(histories).for_each(|follow| all.add(follow.counters()));
        all
    }

    /// Number of times that the connection was lost.
    pub fn disconnects(&self) -> u64 {
        self.disconnects
    }

    /// Times from the sending of a record until the log has it.
    pub fn acks(&self) -> &Latency {
        &self.acks
    }

    /// Takes a node that was lost, and that life of it.
    pub fn take_lost(&mut self, now: Instant) -> Option<(Box<str>, Incarnation)> {
        self.watch.take_lost(self.lease_time, now)
    }

    /// The way of others to this thread.
    pub(super) fn sender(&self) -> mpsc::Sender<Arrival> {
        self.sender.clone()
    }

    /// Takes the news for the node.
    pub(super) fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    /// Begins to follow an execution of this owner, from a place on.
    pub fn follow(&mut self, tag: &Tag, owner: Incarnation, from: Landmark) {
        let follow = Follow::starting(owner, from, Clock::now());
        self.unfollow(tag);
        self.readers.insert(tag.clone(), Reader { follow, hears: None });
    }

    /// Follows an execution no more.
    pub fn unfollow(&mut self, tag: &Tag) {
        let Some(Reader { follow, hears }) = self.readers.remove(tag) else { return };
        self.readers_gone.add(follow.counters());
        hears.inspect(AbortHandle::abort);
    }

    /// Notes that the followers of an execution have room for more, or have none.
    pub fn set_room(&mut self, tag: &Tag, has_room: bool) {
        if let Some(reader) = self.readers.get_mut(tag) {
            reader.follow.set_room(has_room, Clock::now());
        }
    }

    /// Makes a reader of old records of an execution, up to before number `until`.
    pub fn read(&mut self, name: ReaderName, tag: &Tag, owner: Incarnation, until: u64) {
        let history = History::new(owner, until, Clock::now());
        self.histories.insert(name, (tag.clone(), history));
    }

    /// The reader of old records with this name.
    pub fn history(&mut self, name: ReaderName) -> Option<&mut History> {
        self.histories.get_mut(&name).map(|(_, history)| history)
    }

    /// Takes the readers of old records that have given everything.
    pub fn take_exhausted(&mut self) -> Vec<ReaderName> {
        let all = self.histories.extract_if(.., |_, (_, history)| history.follow.has_all());
        let all = all.inspect(|(_, (_, history))| self.readers_gone.add(history.follow.counters()));
        all.map(|(name, _)| name).collect()
    }

    /// Reads no more.
    pub fn stop_reading(&mut self, name: ReaderName) {
        if let Some((_, history)) = self.histories.remove(&name) {
            self.readers_gone.add(history.follow.counters());
        }
    }

    /// The reader of an execution.
    pub fn reader(&self, tag: &Tag) -> Option<&Follow> {
        self.readers.get(tag).map(|reader| &reader.follow)
    }

    /// Ends the execution of a lost node at this time, with these details.
    pub fn close(&mut self, tag: &Tag, details: &[u8], at: Instant) {
        let closer = Closer::new(self.incarnation, details.to_vec(), at);
        self.closers.entry(tag.clone()).or_insert(closer);
    }

    /// True if the closer of an execution has found or written its end, or there is none.
    pub fn is_closed(&self, tag: &Tag) -> bool {
        self.closers.get(tag).is_none_or(Closer::is_done)
    }

    /// Takes the executions whose end was found or written.
    pub fn take_closed(&mut self) -> Vec<Tag> {
        self.closers.extract_if(.., |_, closer| closer.is_done()).map(|(tag, _)| tag).collect()
    }

    /// Lets the machines do everything that is due.
    pub fn turn(&mut self) {
        let now = Clock::now();
        let mut wishes = Vec::new();
        while let Some((attempt, wish)) = self.lease.poll(now) {
            wishes.push((Who::Lease, attempt, Task::Lease(wish)));
        }
        for (tag, mirror) in &mut self.mirrors {
            while let Some((attempt, wish)) = mirror.poll(now) {
                wishes.push((Who::Mirror(tag.clone()), attempt, Task::of(tag, &wish)));
            }
        }
        for (tag, closer) in &mut self.closers {
            while let Some((attempt, wish)) = closer.poll(now) {
                wishes.push((Who::Closer(tag.clone()), attempt, Task::of(tag, &wish)));
            }
        }
        for (tag, reader) in &mut self.readers {
            while let Some((attempt, wish)) = reader.follow.poll(now) {
                if wish == follow::Wish::Unlisten || wish == follow::Wish::Listen {
                    reader.hears.take().inspect(AbortHandle::abort);
                }
                let task = match wish {
                    follow::Wish::Unlisten => continue,
                    follow::Wish::Listen => {
                        let (link, sender) = (self.link.clone(), self.sender.clone());
                        reader.hears = Some(listen(link, sender, tag.clone(), attempt));
                        continue;
                    }
                    follow::Wish::Pull { behind, from_leader } => {
                        Task::Pull { tag: tag.clone(), behind, from_leader }
                    }
                };
                wishes.push((Who::Reader(tag.clone()), attempt, task));
            }
        }
        for (name, (tag, history)) in &mut self.histories {
            while let Some((attempt, wish)) = history.follow.poll(now) {
                if let follow::Wish::Pull { behind, from_leader } = wish {
                    let task = Task::Pull { tag: tag.clone(), behind, from_leader };
                    wishes.push((Who::History(*name), attempt, task));
                }
            }
        }
        for (who, attempt, task) in wishes {
            self.spawn(who, attempt, task);
        }
        if now >= self.look_at {
            self.look_at = now + CLUSTER_LOOK_INTERVAL;
            let (link, sender) = (self.link.clone(), self.sender.clone());
            tokio::task::spawn_local(async move {
                if let Ok(nodes) = link.nodes().await {
                    let _ = sender.send(Arrival::Nodes(nodes)).await;
                }
            });
        }
    }

    fn spawn(&self, who: Who, attempt: Attempt, task: Task) {
        let (link, sender) = (self.link.clone(), self.sender.clone());
        let (node, time) = (self.node.clone(), self.lease_time);
        let by = (self.incarnation, self.about.clone());
        tokio::task::spawn_local(async move {
            let by = (by.0, &by.1);
            let sent_at = Clock::now();
            let answer = task.run(&link, &node, by, time).await.unwrap_or(Answer::Failed);
            let took = Clock::now().since(sent_at);
            let _ = sender.send(Arrival::Answer { who, attempt, answer, took }).await;
        });
    }

    /// Waits until something has come, or is due, or `time` has passed, or the caller is `woken`.
    /// `give` gets what followers are given.
    pub async fn wait(
        &mut self,
        time: Duration,
        woken: impl Future<Output = ()>,
        give: &mut dyn FnMut(To<'_>, Given<'_>, &SharedBytes),
    ) {
        let now = Clock::now();
        let deadlines = [self.lease.deadline(), Some(self.look_at), Some(now + time)];
        let mirrors = self.mirrors.values().filter_map(Mirror::deadline);
        let readers = self.readers.values().filter_map(|reader| reader.follow.deadline());
        let closers = self.closers.values().filter_map(Closer::deadline);
        let histories = self.histories.values();
        let histories = histories.filter_map(|(_, history)| history.follow.deadline());
        let of_logs = mirrors.chain(readers).chain(histories).chain(closers);
        let all = deadlines.into_iter().flatten().chain(of_logs);
        let left = all.min().map_or(time, |deadline| deadline.since(now));
        if left.is_zero() {
            tokio::task::yield_now().await; // The tasks of the connection go on, too.
        } else if let Some(first) = self.first_within(left, woken).await {
            self.take(first, give);
        }
        while let Ok(next) = self.arrivals.try_recv() {
            self.take(next, give);
        }
    }

    /// Waits for the first arrival. Returns `None` if the time has passed, or the caller is woken.
    async fn first_within(
        &mut self,
        time: Duration,
        woken: impl Future<Output = ()>,
    ) -> Option<Arrival> {
        let come = async {
            match future::select(pin!(self.arrivals.recv()), pin!(woken)).await {
                Either::Left((arrival, _)) => arrival,
                Either::Right(_) => None,
            }
        };
        tokio::time::timeout(time, come).await.ok().flatten()
    }

    fn take(&mut self, arrival: Arrival, give: &mut dyn FnMut(To<'_>, Given<'_>, &SharedBytes)) {
        let now = Clock::now();
        match arrival {
            Arrival::News(news) => self.news.push(news),
            Arrival::Connection { is_lost } => {
                self.disconnects += u64::from(is_lost);
                self.has_connected |= !is_lost;
                self.lease.on_connection(now);
                let readers = self.readers.values_mut();
                readers.for_each(|reader| reader.follow.on_connection(now));
            }
            Arrival::Nodes(nodes) => {
                let is_there = |name: &str| nodes.iter().any(|(node, ..)| **node == *name);
                let known: Vec<Box<str>> =
                    self.watch.nodes().map(|(node, _)| node.into()).collect();
                for gone in known.iter().filter(|node| !is_there(node)) {
                    self.watch.on_gone(gone);
                }
                for (node, held, _) in &nodes {
                    self.watch.on_lease(node, held.by, now);
                }
                let others = nodes.into_iter().map(|(node, _, about)| (node, about));
                self.others = others.collect();
            }
            Arrival::Heard { tag, raw } => {
                if let Some(reader) = self.readers.get_mut(&tag) {
                    let give = &mut |given: Given<'_>| give(To::Followers(&tag), given, &raw.bytes);
                    reader.follow.on_heard(stored(&raw), now, give);
                }
            }
            Arrival::Answer { who, attempt, answer, took } => {
                if let (Who::Mirror(_), Answer::Written(_)) = (&who, &answer) {
                    self.acks.record(took.as_nanos() as u64, 1);
                }
                self.take_answer(&who, attempt, answer, give);
            }
        }
    }

    fn take_answer(
        &mut self,
        who: &Who,
        attempt: Attempt,
        answer: Answer,
        give: &mut dyn FnMut(To<'_>, Given<'_>, &SharedBytes),
    ) {
        let now = Clock::now();
        match who {
            Who::Lease => self.answer_lease(attempt, &answer, now),
            Who::Mirror(tag) => {
                let Some(mirror) = self.mirrors.get_mut(tag) else { return };
                match answer {
                    Answer::Written(place) => mirror.on_stored(attempt, place),
                    Answer::Last(last) => mirror.on_looked(attempt, last_of(last).as_ref()),
                    _ => mirror.on_failed(attempt, now),
                }
            }
            Who::Closer(tag) => {
                let Some(closer) = self.closers.get_mut(tag) else { return };
                match answer {
                    Answer::Written(_) => closer.on_stored(),
                    Answer::Last(last) => closer.on_looked(attempt, last_of(last).as_ref()),
                    _ => closer.on_failed(attempt, now),
                }
            }
            Who::Reader(tag) => {
                let Some(Reader { follow, .. }) = self.readers.get_mut(tag) else { return };
                let give = &mut |given: Given<'_>, record: &SharedBytes| {
                    give(To::Followers(tag), given, record);
                };
                answer_reader(follow, attempt, answer, give);
            }
            Who::History(name) => {
                let Some((_, history)) = self.histories.get_mut(name) else { return };
                let give = &mut |given: Given<'_>, record: &SharedBytes| {
                    give(To::Reader(*name), given, record);
                };
                answer_reader(&mut history.follow, attempt, answer, give);
            }
        }
    }

    fn answer_lease(&mut self, attempt: Attempt, answer: &Answer, now: Instant) {
        match answer {
            Answer::Written(revision) => self.lease.on_written(attempt, *revision),
            Answer::Held(held) => self.lease.on_read(attempt, *held, now),
            _ => self.lease.on_failed(attempt, now),
        }
    }
}

fn answer_reader(
    follow: &mut Follow,
    attempt: Attempt,
    answer: Answer,
    give: &mut dyn FnMut(Given<'_>, &SharedBytes),
) {
    let now = Clock::now();
    match answer {
        Answer::Listening => follow.on_listening(attempt, now),
        Answer::Pulled(Pulled { messages, is_all }) => {
            let current = Cell::new(None);
            let records = messages.iter().inspect(|raw| current.set(Some(&raw.bytes))).map(stored);
            let give = &mut |given: Given<'_>| {
                give(given, current.get().expect("it is a part of a record"));
            };
            follow.on_pulled(attempt, records, is_all, now, give);
        }
        _ => {} // It asks again when its time is over.
    }
}

/// Starts a task that hears the records of an execution.
fn listen(link: Link, sender: mpsc::Sender<Arrival>, tag: Tag, attempt: Attempt) -> AbortHandle {
    let task = tokio::task::spawn_local(async move {
        let Ok(mut heard) = link.listen(&tag).await else { return };
        let (who, answer) = (Who::Reader(tag.clone()), Answer::Listening);
        let _ = sender.send(Arrival::Answer { who, attempt, answer, took: Duration::ZERO }).await;
        while let Some(message) = heard.next().await {
            if let Ok(raw) = Link::heard(&message) {
                let _ = sender.send(Arrival::Heard { tag: tag.clone(), raw }).await;
            }
        }
    });
    task.abort_handle()
}

/// Something that a task does.
enum Task {
    Lease(member::Wish),
    Store { tag: Tag, expected: u64, record: Vec<u8> },
    Look { tag: Tag },
    Pull { tag: Tag, behind: u64, from_leader: bool },
}

impl Task {
    fn of(tag: &Tag, wish: &Wish<'_>) -> Task {
        let tag = tag.clone();
        match wish {
            Wish::Store { expected, record } => {
                Task::Store { tag, expected: *expected, record: record.to_vec() }
            }
            Wish::Look => Task::Look { tag },
        }
    }

    async fn run(
        self,
        link: &Link,
        node: &str,
        by: (Incarnation, &About),
        time: Duration,
    ) -> Result<Answer, LinkError> {
        Ok(match self {
            Task::Lease(member::Wish::Create) => {
                Answer::Written(link.create_lease(node, by, time).await?)
            }
            Task::Lease(member::Wish::Renew { revision }) => {
                Answer::Written(link.renew_lease(node, revision, by, time).await?)
            }
            Task::Lease(member::Wish::Read) => Answer::Held(link.read_lease(node).await?),
            Task::Store { tag, expected, record } => {
                Answer::Written(link.store(&tag, expected, record).await?)
            }
            Task::Look { tag } => Answer::Last(link.last(&tag).await?),
            Task::Pull { tag, behind, from_leader } => {
                Answer::Pulled(link.pull(&tag, behind, from_leader).await?)
            }
        })
    }
}

pub(super) fn stored(raw: &Raw) -> Stored<'_> {
    Stored { place: raw.place, is_first: raw.is_first, bytes: &raw.bytes }
}

fn last_of(raw: Option<Raw>) -> Option<Last> {
    raw.map(|raw| Last::read(raw.place, &raw.bytes))
}
