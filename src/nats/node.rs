//! A node of a cluster: a thread with the connection to NATS, between the shards of a server and
//! the machines.
//!
//! The thread reads the rings of the executions that run here. It never makes a shard wait.
//! Requests of shards come through one bounded queue. Messages to a shard go into its mailbox. One
//! that is full is tried again, and the messages stay in order.
//!
//! Nothing of an execution is written before the node has its lease. Others may therefore trust a
//! lease: an entry of a node without one is that of a lost node. While NATS is away, the leases of
//! all nodes end. A node judges others only when it was in touch for longer than a lease lasts.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::io::PipeReader;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use async_nats::{ConnectOptions, ServerAddr};
use serde_json::json;

use super::asks::{self, Ask, Heard};
use super::bell::Bell;
use super::claims::{Asked, Claims};
use super::driver::{Arrival, Driver, News, To, stored};
use super::link::{Link, LinkError};
use super::lists::{self, Lists};
use super::mirrors::Mirrors;
use super::names::Names;
use super::orphans::Orphans;
use super::seal::Seal;
use super::source::EndGiven;
use crate::base::{ExecutionId, Instant, SharedBytes};
use crate::cluster::directory::Tag;
use crate::cluster::follow::{self, Given, Landmark};
use crate::cluster::member::About;
use crate::cluster::mirror::{self, Mirror, Standing};
use crate::cluster::piece::Piece;
use crate::cluster::record::Incarnation;
use crate::cluster::seek::{Seek, level};
use crate::endpoint::Elsewhere;
use crate::limits;
use crate::reactor::waker::WakeListener;
use crate::reactor::{Clock, Waker, random_bytes};
use crate::server::{
    ClusterLine, Found, FromCluster, Holder, Located, NodeCounters, NodeStatus, ReaderName,
    ServerHandle, ToCluster,
};
use crate::shard::CallError;

/// The settings of a node.
#[derive(Clone)]
pub struct NodeOptions {
    /// The servers of NATS.
    pub servers: Vec<ServerAddr>,
    /// The options of the connection.
    pub connect: ConnectOptions,
    /// The names of the cluster.
    pub names: Names,
    /// The name of this node.
    pub node: Box<str>,
    /// The words of this node about itself.
    pub about: About,
    /// The secret of the cluster.
    pub secret: Arc<[u8]>,
    /// Time for which the node counts as alive after it has renewed its lease.
    pub lease: Duration,
    /// The average time between two records of an execution, at least.
    pub linger: Duration,
    /// True if a node that cannot renew its lease fails its executions, before others do.
    pub stops_if_cut_off: bool,
}

/// A node that has not begun yet: its shards can have their lines.
pub struct NewNode {
    line: Arc<Line>,
    requests: Receiver<ToCluster>,
    /// The thread's end of its bell, with the pipe that rings.
    bell: (WakeListener, PipeReader),
}

/// A running node. Dropping it ends the node.
#[derive(Debug)]
pub struct Node {
    stop: SyncSender<()>,
    line: Arc<Line>,
    thread: Option<JoinHandle<()>>,
}

/// The line of the shards to the thread.
struct Line {
    requests: SyncSender<ToCluster>,
    /// Wakes the thread.
    waker: Waker,
    status: Mutex<NodeStatus>,
}

impl ClusterLine for Line {
    fn send(&self, request: ToCluster) -> Result<(), ToCluster> {
        let sent = self.requests.try_send(request);
        self.waker.wake();
        match sent {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(request)) => Err(request),
            Err(TrySendError::Disconnected(_)) => Ok(()), // The node has ended: nothing answers.
        }
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn status(&self) -> NodeStatus {
        self.status.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Line")
    }
}

impl NewNode {
    /// Makes the line of a node.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn new() -> std::io::Result<NewNode> {
        let (sender, requests) = sync_channel(limits::CLUSTER_MAILBOX);
        let (pipe, doorbell) = std::io::pipe()?;
        let listener = WakeListener::with_pipe(doorbell);
        let (waker, status) = (listener.waker(), Mutex::default());
        let line = Arc::new(Line { requests: sender, waker, status });
        Ok(NewNode { line, requests, bell: (listener, pipe) })
    }

    /// The line for the settings of the shards.
    pub fn line(&self) -> Arc<dyn ClusterLine> {
        Arc::clone(&self.line) as Arc<dyn ClusterLine>
    }

    /// Starts the thread of the node. Its shards are these. It connects by itself, and again if the
    /// connection is lost. `tell` is called on that thread with what an operator wants to know.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn start(
        self,
        options: NodeOptions,
        shards: Vec<ServerHandle>,
        tell: impl Fn(&NodeEvent<'_>) + Send + 'static,
    ) -> std::io::Result<Node> {
        let NewNode { line, requests, bell: (listener, pipe) } = self;
        let (stop, stopped) = sync_channel(1);
        let mut drawn = [0; 8];
        random_bytes(&mut drawn)?;
        let incarnation = Incarnation(u64::from_le_bytes(drawn));
        let theirs = Arc::clone(&line);
        let builder = std::thread::Builder::new().name("cluster".to_owned());
        let thread = builder.spawn(move || {
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build()
            else {
                return tell(&NodeEvent::Failed("no runtime"));
            };
            let all = async {
                let Ok(bell) = Bell::new(listener, pipe) else {
                    return tell(&NodeEvent::Failed("no descriptor"));
                };
                if let Some(driver) = connect(&options, incarnation, &stopped, &tell).await {
                    let run =
                        Run::new(options, incarnation, driver, theirs, shards, Box::new(tell));
                    run.go_on(&bell, &requests, &stopped).await;
                }
            };
            tokio::task::LocalSet::new().block_on(&runtime, all);
        })?;
        Ok(Node { stop, line, thread: Some(thread) })
    }
}

/// Something that an operator wants to know.
#[derive(Clone, Debug)]
pub enum NodeEvent<'a> {
    /// The node is connected.
    Connected,
    /// NATS does not answer, for this reason. The node tries again.
    Away(&'a LinkError),
    /// The node has its lease.
    Joined,
    /// Another node has this name.
    NameTaken(&'a str),
    /// A node was lost, or has begun anew.
    Lost(&'a str),
    /// The node cannot renew its lease. Others end its executions in their logs soon.
    CutOff,
    /// This node has tokens and the other one has none, or the other way round.
    Apart(&'a str),
    /// Somebody else has ended an execution of this node in its log.
    Fenced(&'a Tag),
    /// The node cannot run.
    Failed(&'a str),
}

impl Node {
    /// The state of the node, a second old at most.
    pub fn status(&self) -> NodeStatus {
        self.line.status()
    }

    fn end(&mut self) {
        let _ = self.stop.try_send(());
        self.line.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // It has reported its panic.
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.end();
    }
}

/// Connects, until it works or the node has to stop.
async fn connect(
    options: &NodeOptions,
    incarnation: Incarnation,
    stopped: &Receiver<()>,
    tell: &impl Fn(&NodeEvent<'_>),
) -> Option<Driver> {
    let mut pause = limits::CLUSTER_RETRY_FIRST;
    loop {
        let NodeOptions { servers, connect, names, node, about, lease, .. } = options.clone();
        let who = (&*node, incarnation, about, lease);
        match Driver::connect(servers, connect, names, who).await {
            Ok(driver) => {
                tell(&NodeEvent::Connected);
                return Some(driver);
            }
            Err(error) => tell(&NodeEvent::Away(&error)),
        }
        // Nothing else runs on this thread.
        match stopped.recv_timeout(pause) {
            Err(RecvTimeoutError::Timeout) => pause = (pause * 2).min(limits::CLUSTER_RETRY_MAX),
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
}

/// A running node.
struct Run {
    options: NodeOptions,
    incarnation: Incarnation,
    driver: Driver,
    /// Time for which the entry of an ended execution stays: a bit longer than its records.
    entry_time: Duration,
    line: Arc<Line>,
    shards: Vec<ServerHandle>,
    tell: Box<dyn Fn(&NodeEvent<'_>)>,
    mirrors: Mirrors,
    /// The executions that are followed, with the shards that have their replicas.
    followed: HashMap<Tag, (u8, ExecutionId)>,
    orphans: Orphans,
    claims: Claims,
    seal: Seal,
    lists: Lists,
    /// Parts of logs for followers and readers that were not sent yet.
    live: BTreeMap<Tag, Vec<Piece>>,
    old: BTreeMap<ReaderName, Vec<Piece>>,
    /// Messages to each shard, in order.
    outbox: Vec<VecDeque<Box<FromCluster>>>,
    /// Nodes with which this one shares no principals, and of which it was told.
    apart: BTreeSet<Box<str>>,
    status: NodeStatus,
    status_at: Instant,
    is_joined: bool,
    is_cut_off: bool,
}

impl Run {
    fn new(
        options: NodeOptions,
        incarnation: Incarnation,
        driver: Driver,
        line: Arc<Line>,
        shards: Vec<ServerHandle>,
        tell: Box<dyn Fn(&NodeEvent<'_>)>,
    ) -> Run {
        let outbox = shards.iter().map(|_| VecDeque::new()).collect();
        Run {
            orphans: Orphans::new(&options.node, incarnation),
            seal: Seal::new(&options.secret),
            options,
            incarnation,
            driver,
            entry_time: limits::CLUSTER_RETENTION + 10 * limits::CLUSTER_LEASE,
            line,
            shards,
            tell,
            mirrors: Mirrors::default(),
            followed: HashMap::new(),
            claims: Claims::default(),
            lists: Lists::default(),
            live: BTreeMap::new(),
            old: BTreeMap::new(),
            outbox,
            apart: BTreeSet::new(),
            status: NodeStatus::default(),
            status_at: Instant::ZERO,
            is_joined: false,
            is_cut_off: false,
        }
    }

    fn tag(&self, execution: ExecutionId) -> Tag {
        Tag::new(&self.options.secret, &execution)
    }

    /// Runs until the node has to stop, and then until its logs have their ends, for a while.
    async fn go_on(mut self, bell: &Bell, requests: &Receiver<ToCluster>, stopped: &Receiver<()>) {
        let asked = (self.options.node.clone(), self.seal.clone());
        if let Some(retention) = retention_of(self.driver.link()).await {
            self.entry_time = retention + 10 * limits::CLUSTER_LEASE;
        }
        asks::hear(self.driver.link().clone(), asked, self.driver.sender());
        let mut until = None;
        loop {
            self.take_requests(requests);
            let pause = self.turn();
            let (live, old) = (&mut self.live, &mut self.old);
            let mut give = |to: To<'_>, given: Given<'_>, record: &SharedBytes| {
                let piece = Piece::of(given, record);
                match to {
                    To::Followers(tag) => live.entry(tag.clone()).or_default().push(piece),
                    To::Reader(name) => old.entry(name).or_default().push(piece),
                }
            };
            self.driver.wait(pause, bell.rung(pause), &mut give).await;
            self.take_news();
            self.pass_on();
            match until {
                None if stopped.try_recv().is_ok() => {
                    until = Some(Clock::now() + limits::CLUSTER_STOP_WAIT);
                }
                Some(_) if self.mirrors.is_empty() => break,
                Some(until) if Clock::now() >= until => break,
                _ => {}
            }
        }
        if let Some(revision) = self.driver.lease().revision() {
            let _ = self.driver.link().end_lease(&self.options.node, revision).await; // It ends.
        }
    }

    /// Lets everything go on. Returns the time until the next look.
    fn turn(&mut self) -> Duration {
        let now = Clock::now();
        let has_lease = self.driver.lease().safe_until().is_some_and(|until| now < until);
        if has_lease && !std::mem::replace(&mut self.is_joined, true) {
            (self.tell)(&NodeEvent::Joined);
        }
        if self.driver.lease().taken_by().is_some() && !self.status.is_name_taken {
            self.status.is_name_taken = true;
            (self.tell)(&NodeEvent::NameTaken(&self.options.node));
        }
        self.look_at_lease(now);
        if has_lease {
            self.mirrors.begin_new(self.incarnation, &mut self.driver, now);
        }
        if self.driver.take_connected() {
            self.mirrors.look_again(&mut self.driver, now);
        }
        let look_at = self.mirrors.look(&mut self.driver, self.options.linger, now);
        self.driver.turn();
        for (tag, mirror) in self.driver.take_done() {
            if self.mirrors.execution_of(&tag).is_some() {
                self.note_finished(&tag, &mirror); // And not after each look at its end.
            }
            self.mirrors.finish(tag, mirror, &mut self.driver, now);
        }
        self.mirrors.write_entries(&self.driver, &self.options.node, self.entry_time, now);
        for (shard, message) in self.mirrors.take_told() {
            self.post(shard, message);
        }
        self.send_out();
        self.look_after_orphans(now);
        if now >= self.status_at {
            self.tell_status(now);
        }
        let is_busy = self.outbox.iter().any(|messages| !messages.is_empty());
        let again_at = is_busy.then(|| now + limits::CLUSTER_SEND_AGAIN);
        let due_at = [look_at, again_at].into_iter().flatten().min();
        due_at.map_or(limits::CLUSTER_LOOK_INTERVAL, |at| at.since(now))
    }

    /// Notices that the lease may soon be over for others, and that it is held again. Only the
    /// clock of this node counts, from the time at which it has last asked.
    fn look_at_lease(&mut self, now: Instant) {
        let is_over = self.driver.lease().safe_until().is_some_and(|until| now >= until);
        if std::mem::replace(&mut self.is_cut_off, is_over) || !is_over {
            return;
        }
        (self.tell)(&NodeEvent::CutOff);
        if self.options.stops_if_cut_off {
            (0..self.shards.len()).for_each(|shard| self.post(shard as u8, FromCluster::CutOff));
        }
    }

    /// Counts an execution of which the log takes nothing more.
    fn note_finished(&mut self, tag: &Tag, mirror: &Mirror) {
        self.status.counters.mirrored += 1;
        if mirror.standing() == Standing::Fenced {
            self.status.counters.fenced += 1;
            (self.tell)(&NodeEvent::Fenced(tag));
        }
    }

    fn look_after_orphans(&mut self, now: Instant) {
        let may_judge = self.driver.lease().may_judge(now);
        while may_judge && let Some((node, life)) = self.driver.take_lost(now) {
            if self.driver.watch().is_alive(&node, life) {
                continue; // NATS was away, and both are back.
            }
            (self.tell)(&NodeEvent::Lost(&node));
            self.orphans.note_lost(&node, now);
        }
        if self.is_joined {
            self.orphans.look(&self.driver, (&self.options.node, may_judge), now);
        }
        for tag in self.driver.take_closed() {
            self.status.counters.ends_for_others += 1;
            self.orphans.closed(&self.driver, &tag, self.entry_time);
        }
    }

    /// Tells of each living node once that it has tokens and this one has none, or the other way
    /// round.
    fn tell_apart(&mut self) {
        let apart: BTreeSet<Box<str>> = self.driver.apart().map(Box::from).collect();
        apart.difference(&self.apart).for_each(|node| (self.tell)(&NodeEvent::Apart(node)));
        self.apart = apart;
    }

    fn tell_status(&mut self, now: Instant) {
        self.tell_apart();
        self.status_at = now + limits::CLUSTER_LOOK_INTERVAL;
        let lease = self.driver.lease().safe_until().filter(|until| now < *until);
        self.status.has_lease = lease.is_some();
        self.status.lease_left = lease.map_or(Duration::ZERO, |until| until.since(now));
        self.status.nodes = self.driver.watch().nodes().count() as u64;
        self.status.mirrored = self.mirrors.len() as u64;
        self.status.replicas = self.followed.len() as u64;
        let Run { mirrors, driver, status, .. } = self;
        (status.buffer_bytes, status.lag_bytes) = (0, 0);
        for tag in mirrors.tags() {
            let waiting = u64::from(driver.mirror(tag).pending_bytes());
            status.buffer_bytes += waiting;
            status.lag_bytes = status.lag_bytes.max(waiting);
        }
        let mirror::Counters { records, bytes, adopted, repeated, unwritten } =
            driver.mirror_counters();
        let follow::Counters { pulls, seen, holes, damaged, .. } = driver.follow_counters();
        *status.acks = *driver.acks();
        status.counters = NodeCounters {
            records,
            record_bytes: bytes,
            unwritten,
            adopted,
            again: repeated,
            gets: pulls,
            repeats: seen,
            holes,
            corrupt: damaged,
            disconnects: driver.disconnects(),
            ..status.counters
        };
        let status = self.line.status.lock();
        *status.unwrap_or_else(std::sync::PoisonError::into_inner) = self.status.clone();
    }

    fn take_requests(&mut self, requests: &Receiver<ToCluster>) {
        for _ in 0..limits::CLUSTER_MAILBOX {
            let Ok(request) = requests.try_recv() else { return };
            self.take_request(request);
        }
    }

    fn take_request(&mut self, request: ToCluster) {
        match request {
            ToCluster::Mirror(mirrored) => {
                let tag = self.tag(mirrored.execution);
                self.mirrors.push(tag, *mirrored);
            }
            ToCluster::Show { execution, through_seq } => {
                let tag = self.tag(execution);
                self.mirrors.show(&tag, through_seq, Clock::now());
            }
            ToCluster::End { execution, details, published } => {
                let tag = self.tag(execution);
                self.mirrors.push_end(&tag, EndGiven { details, published }, &mut self.driver);
            }
            ToCluster::Locate { shard, execution } => self.locate(shard, execution),
            ToCluster::Follow { shard, execution, owner, from } => {
                let tag = self.tag(execution);
                self.driver.follow(&tag, owner, *from);
                self.followed.insert(tag, (shard, execution));
            }
            ToCluster::SetRoom { execution, has_room } => {
                let tag = self.tag(execution);
                self.driver.set_room(&tag, has_room);
            }
            ToCluster::Unfollow { execution } => {
                let tag = self.tag(execution);
                self.driver.unfollow(&tag);
                self.followed.remove(&tag);
            }
            ToCluster::Read { reader, execution, owner, from_seq, until } => {
                self.read(reader, execution, owner, (from_seq, *until));
            }
            ToCluster::ReadMore(name) => {
                if let Some(history) = self.driver.history(name) {
                    history.add_room(Clock::now());
                }
            }
            ToCluster::StopReading(name) => self.driver.stop_reading(name),
            ToCluster::Claim { shard, asker, name, wish } => {
                let tag = Tag::of_path(&self.options.secret, &name);
                let asked = Asked { shard, asker, name: *name, wish };
                self.claims.push(&self.driver, &self.options.node, tag, asked);
            }
            ToCluster::Cancel { execution, node } => {
                let (link, seal) = (self.driver.link().clone(), self.seal.clone());
                asks::cancel(link, seal, node, self.tag(execution));
            }
            ToCluster::List(listing) => {
                lists::ask_all(&mut self.driver, &self.seal, &self.options.node, *listing);
            }
            ToCluster::Listed { number, executions } => {
                if let Some((heard, list)) = self.lists.take(number, executions) {
                    heard.answer(self.driver.link(), &self.seal, &list);
                }
            }
        }
    }

    /// Looks an execution up.
    fn locate(&mut self, shard: u8, execution: ExecutionId) {
        let tag = self.tag(execution);
        let (link, sender) = (self.driver.link().clone(), self.driver.sender());
        tokio::task::spawn_local(async move {
            let located = look_up(&link, &tag).await.unwrap_or(Located::Away);
            let _ = sender.send(Arrival::News(News::Located(shard, execution, located))).await;
        });
    }

    /// Reads old chunks, from the record on that has the first one.
    fn read(
        &mut self,
        name: ReaderName,
        execution: ExecutionId,
        owner: Incarnation,
        (from_seq, until): (u64, Landmark),
    ) {
        let tag = self.tag(execution);
        let (link, sender) = (self.driver.link().clone(), self.driver.sender());
        // It waits for its place before it pulls.
        self.driver.read(name, &tag, owner, until.number);
        tokio::task::spawn_local(async move {
            let seek = Seek::new(owner, from_seq, until.place);
            let at = seek_in(&link, &tag, seek).await;
            let _ = sender.send(Arrival::News(News::Sought(name, Box::new(at)))).await;
        });
    }

    fn take_news(&mut self) {
        let now = Clock::now();
        for news in self.driver.take_news() {
            match news {
                News::Located(shard, execution, mut located) => {
                    let counters = &mut self.status.counters;
                    *match &located {
                        Located::Found(_) => &mut counters.found,
                        Located::Nowhere => &mut counters.not_found,
                        Located::Away => &mut counters.away,
                    } += 1;
                    if let Located::Found(found) = &mut located {
                        let is_own = found.entry.owner == self.incarnation;
                        if found.end.is_none() && !is_own {
                            self.orphans.suspect(&found.node.node, now);
                        }
                        let about = self.driver.about(&found.node.node);
                        found.node.url = about.and_then(|about| about.url.clone());
                    }
                    self.post(shard, FromCluster::Located { execution, located });
                }
                News::Sought(name, at) => {
                    if let Some(history) = self.driver.history(name) {
                        history.begin(*at, now);
                    }
                }
                News::Entry(tag, state) => self.mirrors.note_entry(&tag, state, now),
                News::Orphans(node, found) => {
                    self.orphans.on_found(&mut self.driver, &node, found, now);
                }
                News::Claimed(tag, holder) => self.tell_claimed(tag, holder),
                News::Asked(ask, heard) => self.on_asked(ask, heard, now),
                News::Listed(shard, ticket, listed) => {
                    self.post(shard, FromCluster::Listed { ticket, listed });
                }
            }
        }
    }

    /// Passes the question of another node on.
    fn on_asked(&mut self, ask: Ask, heard: Heard, now: Instant) {
        match ask {
            Ask::Cancel(tag) => {
                if let Some(execution) = self.mirrors.execution_of(&tag) {
                    self.post(execution.shard, FromCluster::Cancel { execution });
                }
                heard.answer(self.driver.link(), &self.seal, &json!({}));
            }
            Ask::List(owner, ask) => {
                let Some(number) = self.lists.begin(heard, self.shards.len(), now) else { return };
                for shard in 0..self.shards.len() as u8 {
                    let (owner, ask) = (owner.clone(), ask.clone());
                    self.post(shard, FromCluster::List { number, owner, ask });
                }
            }
        }
    }

    /// Tells a shard which node has a path.
    fn tell_claimed(&mut self, tag: Tag, holder: Holder) {
        let asked = self.claims.take_done(&self.driver, &self.options.node, tag);
        let Some(Asked { shard, asker, name, wish }) = asked else { return };
        self.post(shard, FromCluster::Claimed { asker, name: name.into(), wish, holder });
    }

    /// Puts a message to a shard behind the others.
    fn post(&mut self, shard: u8, message: FromCluster) {
        if let Some(messages) = self.outbox.get_mut(usize::from(shard)) {
            messages.push_back(Box::new(message));
        }
    }

    /// Passes on what followers and readers were given, as far as the shards take it.
    fn pass_on(&mut self) {
        for (tag, pieces) in std::mem::take(&mut self.live) {
            let Some(&(shard, execution)) = self.followed.get(&tag) else { continue };
            let Some(follow) = self.driver.reader(&tag) else { continue };
            let (at, has_ended) = (Box::new(follow.landmark()), follow.has_ended());
            self.post(shard, FromCluster::Given { execution, pieces, at });
            if has_ended {
                self.driver.unfollow(&tag);
                self.followed.remove(&tag);
            }
        }
        for (reader, pieces) in std::mem::take(&mut self.old) {
            let Some(history) = self.driver.history(reader) else { continue };
            let is_all = history.follow.has_all();
            history.take_room(Clock::now());
            self.post(reader.shard, FromCluster::Old { reader, pieces, is_all });
            if is_all {
                self.driver.stop_reading(reader);
            }
        }
        for reader in self.driver.take_exhausted() {
            let (pieces, is_all) = (Vec::new(), true);
            self.post(reader.shard, FromCluster::Old { reader, pieces, is_all });
        }
        self.send_out();
    }

    /// Sends messages to the shards, as far as they take them.
    fn send_out(&mut self) {
        for (shard, messages) in self.shards.iter().zip(&mut self.outbox) {
            while let Some(message) = messages.pop_front() {
                match shard.tell_cluster(message) {
                    Ok(()) => {}
                    Err((CallError::Busy, message)) => {
                        messages.push_front(message);
                        break;
                    }
                    Err(_) => messages.clear(), // The shard is gone.
                }
            }
        }
    }
}

/// The time for which the log keeps records, if it says so.
async fn retention_of(link: &Link) -> Option<Duration> {
    let about = format!("$JS.API.STREAM.INFO.{}", link.names().log());
    let about = link.ask_json(about, &serde_json::Value::Null).await.ok()?;
    let nanos = about["config"]["max_age"].as_u64().filter(|nanos| *nanos > 0)?;
    Some(Duration::from_nanos(nanos))
}

/// Looks for the entry of an execution, and for the last record of its log.
async fn look_up(link: &Link, tag: &Tag) -> Result<Located, LinkError> {
    let Some((node, entry)) = link.find(tag).await? else { return Ok(Located::Nowhere) };
    let last = link.last(tag).await?;
    let last = last.as_ref().map(stored);
    let (at, end) = level(last.as_ref(), entry.owner);
    let node = Elsewhere { node, url: None }; // The node's thread knows it.
    Ok(Located::Found(Box::new(Found { node, entry, at, end })))
}

/// Looks for a place before the record that has a chunk, as far as the engine answers.
async fn seek_in(link: &Link, tag: &Tag, mut seek: Seek) -> Landmark {
    while let Some(place) = seek.next_place() {
        let Ok(found) = link.next_record(tag, place).await else { break };
        seek.take(place, found.as_ref().map(stored).as_ref());
    }
    seek.found()
}
