//! A cluster in a simulated world: nodes with mirrors, readers, leases and closers, and a model of
//! the distributed engine.
//!
//! Messages are late, and requests, answers and what is heard get lost. The engine refuses without
//! a reason, has no leader for a while, and answers from servers that are behind. Nodes are cut
//! off, freeze for longer than their lease, die and come back. Seeds differ in the manners of the
//! engine:
//!
//! - Half of them have an engine that keeps what it has acknowledged. No reader may find a gap that
//!   the mirror has not recorded, and all get the end that the log has.
//! - The others have one that forgets records, damages them, or discards the oldest ones. There,
//!   every chunk that is given is right, every gap is exact, and each reader gets one end.
//!
//! The oracle is in `cluster/oracle.rs`.

pub(super) mod engine;
pub(super) mod faults;
mod node;
mod oracle;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::base::{Instant, Random};
use crate::cluster::closer::Closer;
use crate::cluster::follow::{self, Follow, Stored};
use crate::cluster::member::{self, Held};
use crate::cluster::mirror::{Attempt, Last, Mirror, NoteKind, Standing, Wish};
use crate::limits::CLUSTER_LEASE;
use crate::sim::twice::run_twice;
use crate::stream::{GapReason, Kind};

use engine::{Engine, Message, Pulled};
use faults::Manners;
use node::{Life, Node, Reader};
use oracle::{Execution, Transcript, check_log};

/// The counts of one seed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterSummary {
    /// A hash of everything that readers were given, and of the logs.
    pub hash: u64,
    /// The events, each with its count.
    pub happened: Vec<(&'static str, u64)>,
}

/// Runs a seed twice, and compares the two runs.
///
/// # Errors
/// The failure, and the command that runs the seed again.
pub fn run_cluster_seed(seed: u64, verbose: bool) -> Result<ClusterSummary, String> {
    let options = format!("--cluster --seed {seed}");
    let difference = |first: &ClusterSummary, second: &ClusterSummary| {
        format!("{:x} and {:x}", first.hash, second.hash)
    };
    run_twice(&options, verbose, |verbose| ClusterTrial::drawn(seed, verbose).run(), difference)
}

/// Faults happen until this time. Later, the cluster comes to rest.
const HEALED_AT: Instant = Instant::from_nanos(40_000_000_000);
/// The time by which everything has to be over.
const OVER_AT: Instant = Instant::from_nanos(160_000_000_000);
/// Number of records of an answer to a pull.
const PULL_RECORDS: usize = 3;

/// A machine of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Lease,
    Mirror(usize),
    Closer(usize),
    Reader(usize),
}

#[derive(Clone, Debug)]
enum Request {
    Store { execution: usize, expected: u64, bytes: Vec<u8> },
    Look { execution: usize },
    Read { execution: usize, wish: follow::Wish },
    Lease { wish: member::Wish },
}

#[derive(Clone, Debug)]
enum Answer {
    Failed,
    Stored(u64),
    Looked(Option<Box<Last>>),
    Listening,
    Pulled(Pulled),
    Written(u64),
    Held(Option<Held>),
}

#[derive(Clone, Debug)]
enum Event {
    Arrives {
        node: usize,
        link: u64,
        who: Who,
        attempt: Attempt,
        request: Request,
    },
    Answered {
        node: usize,
        link: u64,
        who: Who,
        attempt: Attempt,
        answer: Answer,
    },
    Heard {
        node: usize,
        link: u64,
        execution: usize,
        place: u64,
        message: Message,
    },
    /// The lease of `of` was written, or is over.
    News {
        node: usize,
        link: u64,
        of: usize,
        held: Option<Held>,
    },
    Publish {
        execution: usize,
    },
    Fault,
    /// A reader starts, or gets room, or has none.
    Reader,
}

struct ClusterTrial {
    verbose: bool,
    random: Random,
    now: Instant,
    manners: Manners,
    engine: Engine,
    nodes: Vec<Node>,
    executions: Vec<Execution>,
    /// The chunks that each execution still publishes.
    left: Vec<u64>,
    /// The executions that the directory calls ended.
    ended: Vec<bool>,
    queue: BTreeMap<(Instant, u64), Event>,
    event_count: u64,
    counts: BTreeMap<&'static str, u64>,
    hash: u64,
}

/// Everything that has to happen in some seeds.
const HAPPENINGS: [&str; 22] = [
    "adopted",
    "closed",
    "cut",
    "damaged",
    "discarded",
    "died",
    "ends",
    "fenced",
    "forgot",
    "froze",
    "gap: corrupt",
    "gap: expired",
    "held back",
    "holes",
    "leader away",
    "lost",
    "own gaps",
    "readers",
    "repeated",
    "seen",
    "stale",
    "unwritten",
];

impl ClusterTrial {
    fn drawn(seed: u64, verbose: bool) -> ClusterTrial {
        let mut random = Random::new(seed ^ 0xC105_7E12);
        let manners = Manners::drawn(&mut random);
        let now = Instant::from_nanos(1_000_000);
        let node_count = random.between(2, 4);
        let nodes = (0..node_count).map(|_| Node::start(now, &mut random)).collect();
        let counts = HAPPENINGS.iter().map(|name| (*name, 0)).collect();
        let mut trial = ClusterTrial {
            verbose,
            random,
            now,
            manners,
            engine: Engine::default(),
            nodes,
            executions: Vec::new(),
            left: Vec::new(),
            ended: Vec::new(),
            queue: BTreeMap::new(),
            event_count: 0,
            counts,
            hash: seed,
        };
        trial.after(Duration::from_millis(10), Event::Fault);
        trial.after(Duration::from_millis(10), Event::Reader);
        trial
    }

    fn count(&mut self, name: &'static str, by: u64) {
        *self.counts.get_mut(name).expect("it is listed") += by;
    }

    fn say(&self, text: impl FnOnce() -> String) {
        if self.verbose {
            println!("{:>9.3} {}", self.now.nanos() as f64 / 1e9, text());
        }
    }

    fn note(&mut self, number: u64) {
        self.hash = (self.hash ^ number).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(23);
    }

    fn after(&mut self, time: Duration, event: Event) {
        self.event_count += 1;
        self.queue.insert((self.now + time, self.event_count), event);
    }

    fn is_healed(&self) -> bool {
        self.now >= HEALED_AT
    }

    /// True in `per_mille` of the cases, while there are faults.
    fn strikes(&mut self, per_mille: u64) -> bool {
        !self.is_healed() && self.random.chance(per_mille, 1_000)
    }

    fn delay(&mut self) -> Duration {
        let max = self.manners.delay_max.as_nanos() as u64;
        let max = if self.random.chance(1, 4) { max } else { max / 10 };
        Duration::from_nanos(50_000 + self.random.below(max))
    }

    fn run(mut self) -> Result<ClusterSummary, String> {
        loop {
            self.settle()?;
            if self.is_healed() && self.is_over() {
                break;
            }
            let event = self.queue.first_key_value().map(|((at, _), _)| *at);
            let deadlines = self.nodes.iter().filter_map(Node::deadline);
            let next = deadlines.chain(event).chain(self.engine.next_expiry()).min();
            let next = next.ok_or_else(|| "nothing is left to do".to_owned())?;
            self.now = self.now.max(next);
            if self.now > OVER_AT {
                return Err(self.unfinished());
            }
            for of in self.engine.expire(self.now) {
                self.say(|| format!("the lease of {of} is over"));
                self.tell_news(of, None);
            }
            while let Some(entry) = self.queue.first_entry()
                && entry.key().0 <= self.now
            {
                let event = entry.remove();
                self.happen(event)?;
            }
        }
        self.judge()
    }

    /// Lets all machines of all nodes do what is due.
    fn settle(&mut self) -> Result<(), String> {
        for at in 0..self.nodes.len() {
            self.wake(at);
            if self.nodes[at].life == Life::Running {
                self.close_lost(at)?;
                self.poll_lease(at);
                self.poll_writers(at)?;
                self.poll_readers(at);
            }
        }
        Ok(())
    }

    /// Ends a freeze, a death or a cut that is over.
    fn wake(&mut self, at: usize) {
        match self.nodes[at].life {
            Life::Frozen(until) if until <= self.now => self.nodes[at].life = Life::Running,
            Life::Dead(until) if until <= self.now => {
                self.say(|| format!("node {at} starts"));
                self.nodes[at] = Node::start(self.now, &mut self.random);
                self.resync(at);
                // What its earlier lives have left.
                for number in 0..self.executions.len() {
                    if self.executions[number].owner == at {
                        self.close(at, number, CLUSTER_LEASE);
                    }
                }
            }
            _ => {}
        }
        if self.nodes[at].cut_until.is_some_and(|until| until <= self.now) {
            self.nodes[at].cut_until = None;
            self.say(|| format!("node {at} is connected"));
            self.resync(at);
            let now = self.now;
            let readers = self.nodes[at].readers.values_mut();
            readers.for_each(|reader| reader.follow.on_connection(now));
        }
    }

    /// Tells a node that was away about all leases, as a watch of a bucket does.
    fn resync(&mut self, at: usize) {
        for of in 0..self.nodes.len() {
            let held = self.engine.leases.get(&of).map(|(held, _)| *held);
            self.tell(at, of, held);
        }
    }

    /// News come in their order.
    fn tell(&mut self, at: usize, of: usize, held: Option<Held>) {
        let delay = self.delay();
        let node = &mut self.nodes[at];
        node.news_at = node.news_at.max(self.now + delay);
        let (time, link) = (node.news_at.since(self.now), node.link);
        self.after(time, Event::News { node: at, link, of, held });
    }

    fn tell_news(&mut self, of: usize, held: Option<Held>) {
        for node in 0..self.nodes.len() {
            if self.nodes[node].is_linked() {
                self.tell(node, of, held);
            }
        }
    }

    /// Closes the executions of nodes that were lost.
    fn close_lost(&mut self, at: usize) -> Result<(), String> {
        while let Some((name, life)) = self.nodes[at].watch.take_lost(CLUSTER_LEASE, self.now) {
            self.say(|| format!("node {at}: {name} was lost"));
            if !self.engine.lost.contains(&life) {
                return Err(format!("{name} counts as lost at {at} and has its lease"));
            }
            for number in 0..self.executions.len() {
                if self.executions[number].owner_life == life {
                    let jitter = Duration::from_millis(self.random.below(500));
                    self.close(at, number, jitter);
                }
            }
        }
        Ok(())
    }

    fn close(&mut self, at: usize, number: usize, after: Duration) {
        let (now, node) = (self.now, &mut self.nodes[at]);
        let details = format!("failed: node {} was lost", self.executions[number].owner);
        let closer = || Closer::new(node.incarnation, details.into_bytes(), now + after);
        node.closers.entry(number).or_insert_with(closer);
    }

    fn poll_lease(&mut self, at: usize) {
        while let Some((attempt, wish)) = self.nodes[at].lease.poll(self.now) {
            self.send(at, Who::Lease, attempt, Request::Lease { wish });
        }
    }

    fn poll_writers(&mut self, at: usize) -> Result<(), String> {
        let mut sent = Vec::new();
        let node = &mut self.nodes[at];
        for (&execution, mirror) in &mut node.mirrors {
            while let Some((attempt, wish)) = mirror.poll(self.now) {
                sent.push((Who::Mirror(execution), attempt, request(execution, &wish)));
            }
            // Nothing counts as stored that the log does not have.
            let stored = self.engine.position(execution).map(|position| position.all.chunks);
            if self.manners.keeps() && stored < Some(mirror.stored().all.chunks) {
                return Err(format!("the mirror of {execution} believes more than {stored:?}"));
            }
        }
        for (&execution, closer) in &mut node.closers {
            while let Some((attempt, wish)) = closer.poll(self.now) {
                sent.push((Who::Closer(execution), attempt, request(execution, &wish)));
            }
        }
        for (who, attempt, request) in sent {
            self.send(at, who, attempt, request);
        }
        Ok(())
    }

    fn poll_readers(&mut self, at: usize) {
        let executions: Vec<usize> = self.nodes[at].readers.keys().copied().collect();
        for execution in executions {
            let reader = self.nodes[at].readers.get_mut(&execution).expect("it was just there");
            let has_stopped = reader.follow.is_level() && !reader.follow.has_ended();
            let mut sent = Vec::new();
            while let Some(wish) = reader.follow.poll(self.now) {
                sent.push(wish);
            }
            for (attempt, wish) in sent {
                let request = Request::Read { execution, wish };
                self.send(at, Who::Reader(execution), attempt, request);
            }
            // The directory calls it ended, and the log has no end that can be read.
            if has_stopped && self.ended[execution] {
                self.close(at, execution, Duration::from_secs(1));
            }
        }
    }

    fn send(&mut self, node: usize, who: Who, attempt: Attempt, request: Request) {
        let link = self.nodes[node].link;
        if !self.nodes[node].is_linked() || self.strikes(self.manners.loss) {
            self.count("lost", 1);
            return;
        }
        let delay = self.delay();
        self.after(delay, Event::Arrives { node, link, who, attempt, request });
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Arrives { node, link, who, attempt, request } => {
                // What was on its way when its connection broke may arrive or not.
                let is_old = self.nodes[node].link != link;
                if is_old && self.random.chance(1, 2) {
                    return Ok(());
                }
                let Some(answer) = self.serve(node, who, request) else { return Ok(()) };
                if self.strikes(self.manners.loss) {
                    self.count("lost", 1);
                    return Ok(());
                }
                let delay = self.delay();
                self.after(delay, Event::Answered { node, link, who, attempt, answer });
            }
            Event::Publish { execution } => self.publish(execution),
            Event::Fault => self.fault(),
            Event::Reader => self.change_readers(),
            Event::Answered { node, link, .. }
            | Event::Heard { node, link, .. }
            | Event::News { node, link, .. } => {
                self.wake(node);
                if self.nodes[node].link != link || self.nodes[node].cut_until.is_some() {
                    return Ok(());
                }
                match self.nodes[node].life {
                    Life::Running => return self.receive(event),
                    Life::Frozen(until) => self.after(until.since(self.now), event),
                    Life::Dead(_) => {}
                }
            }
        }
        Ok(())
    }

    fn receive(&mut self, event: Event) -> Result<(), String> {
        let now = self.now;
        match event {
            Event::News { node, of, held, .. } => {
                let name = format!("node {of}");
                match held {
                    Some(held) => self.nodes[node].watch.on_lease(&name, held.by, now),
                    None => self.nodes[node].watch.on_gone(&name),
                }
            }
            Event::Heard { node, execution, place, message, .. } => {
                self.read(node, execution, |follow, give| {
                    let Message { is_first, ref bytes, .. } = message;
                    follow.on_heard(Stored { place, is_first, bytes }, now, give);
                })?;
            }
            Event::Answered { node, who, attempt, answer, .. } => match who {
                Who::Lease => self.answer_lease(node, attempt, &answer),
                Who::Mirror(execution) => self.answer_mirror(node, execution, attempt, &answer)?,
                Who::Closer(execution) => self.answer_closer(node, execution, attempt, &answer),
                Who::Reader(execution) => {
                    self.read(node, execution, |follow, give| match &answer {
                        Answer::Listening => follow.on_listening(attempt, now),
                        Answer::Pulled(Pulled { records, is_all }) => {
                            let records = records.iter().map(|(place, message)| Stored {
                                place: *place,
                                is_first: message.is_first,
                                bytes: &message.bytes,
                            });
                            follow.on_pulled(attempt, records, *is_all, now, give);
                        }
                        other => unreachable!("{other:?}"),
                    })?
                }
            },
            other => unreachable!("{other:?}"),
        }
        Ok(())
    }

    /// Gives something to a reader, and checks what follows.
    fn read(
        &mut self,
        node: usize,
        execution: usize,
        step: impl FnOnce(&mut Follow, &mut dyn FnMut(follow::Given<'_>)),
    ) -> Result<(), String> {
        let Some(reader) = self.nodes[node].readers.get_mut(&execution) else { return Ok(()) };
        let Reader { follow, transcript } = reader;
        let (published, mut notes) = (&self.executions[execution], Vec::new());
        step(follow, &mut |given| {
            let (position, end) = transcript.take(published, &given);
            notes.extend([position, end]);
        });
        if let Some(wrong) = &transcript.wrong {
            return Err(format!("node {node}, execution {execution}: {wrong}"));
        }
        let chunks = transcript.chunks();
        notes.into_iter().for_each(|number| self.note(number));
        self.say(|| format!("node {node} has {chunks} chunks of {execution}"));
        Ok(())
    }

    fn answer_lease(&mut self, node: usize, attempt: Attempt, answer: &Answer) {
        let (now, lease) = (self.now, &mut self.nodes[node].lease);
        match answer {
            Answer::Written(revision) => lease.on_written(attempt, *revision),
            Answer::Held(held) => lease.on_read(attempt, *held, now),
            _ => lease.on_failed(attempt, now),
        }
    }

    fn answer_mirror(
        &mut self,
        node: usize,
        execution: usize,
        attempt: Attempt,
        answer: &Answer,
    ) -> Result<(), String> {
        let now = self.now;
        let Some(mirror) = self.nodes[node].mirrors.get_mut(&execution) else { return Ok(()) };
        let before = (mirror.standing(), *mirror.counters());
        match answer {
            Answer::Stored(place) => mirror.on_stored(attempt, *place),
            Answer::Looked(last) => mirror.on_looked(attempt, last.as_deref()),
            _ => mirror.on_failed(attempt, now),
        }
        let (standing, counters) = (mirror.standing(), *mirror.counters());
        self.count("adopted", counters.adopted - before.1.adopted);
        self.count("repeated", counters.repeated - before.1.repeated);
        // The owner calls both ended in the directory, as `nats/mirrors.rs` does.
        if matches!(standing, Standing::Ended | Standing::Fenced) {
            self.ended[execution] = true;
        }
        if standing == Standing::Fenced && before.0 != standing {
            self.count("fenced", 1);
            self.say(|| format!("the mirror of {execution} was replaced"));
            if self.manners.keeps() && !self.has_end_of_closer(execution) {
                return Err(format!("the mirror of {execution} stops, and nobody has replaced it"));
            }
        }
        Ok(())
    }

    fn has_end_of_closer(&self, execution: usize) -> bool {
        let last =
            self.engine.last(execution).map(|(place, message)| Last::read(place, &message.bytes));
        last.and_then(|last| last.record).is_some_and(|(header, _)| header.is_closer)
    }

    fn answer_closer(&mut self, node: usize, execution: usize, attempt: Attempt, answer: &Answer) {
        let now = self.now;
        let Some(closer) = self.nodes[node].closers.get_mut(&execution) else { return };
        match answer {
            Answer::Stored(_) => {
                closer.on_stored();
                self.counts.entry("closed").and_modify(|count| *count += 1);
            }
            Answer::Looked(last) => closer.on_looked(attempt, last.as_deref()),
            _ => closer.on_failed(attempt, now),
        }
        if self.nodes[node].closers[&execution].is_done() {
            self.nodes[node].closers.remove(&execution);
            self.ended[execution] = true;
        }
    }

    /// Lets the tool of an execution do its next step.
    fn publish(&mut self, number: usize) {
        let Execution { owner, owner_life, .. } = self.executions[number];
        let node = &mut self.nodes[owner];
        if node.incarnation != owner_life {
            return;
        }
        let pause = Duration::from_micros(self.random.between(10, 300_000));
        if node.life != Life::Running {
            self.after(pause, Event::Publish { execution: number });
            return;
        }
        let mirror = node.mirrors.get_mut(&number).expect("its node lives");
        let unwritten = mirror.counters().unwritten;
        for _ in 0..self.random.between(1, 40) {
            if self.left[number] == 0 {
                mirror.push_end(format!("completed {number}").as_bytes());
                return;
            }
            self.left[number] -= 1;
            let kind = Kind::ALL[self.random.below(3) as usize];
            let length = [0, 20, 3_000, 30_000][self.random.below(4) as usize];
            let execution = &mut self.executions[number];
            let (entry, payload) = execution.publish(kind, length);
            if self.random.chance(1, 40) {
                // The ring has overwritten it before the mirror came.
                mirror.push_gap(execution.head(), GapReason::Overtaken);
            } else {
                mirror.push_chunk(&entry, &payload);
            }
            if self.random.chance(1, 20) {
                mirror.push_note(NoteKind::Progress, &entry.seq.to_le_bytes());
            }
        }
        let unwritten = mirror.counters().unwritten - unwritten;
        self.count("unwritten", unwritten);
        self.after(pause, Event::Publish { execution: number });
    }

    /// Begins an execution, if a node may.
    fn begin(&mut self) {
        let owner = self.random.below(self.nodes.len() as u64) as usize;
        let node = &mut self.nodes[owner];
        if !node.is_linked() || node.lease.safe_until().is_none_or(|until| until < self.now) {
            return;
        }
        let number = self.executions.len();
        let mut mirror = Mirror::new(node.incarnation);
        mirror.set_pending_bytes_max(self.manners.pending_bytes);
        node.mirrors.insert(number, mirror);
        self.executions.push(Execution::new(owner, node.incarnation));
        self.left.push(self.random.below(2_000));
        self.ended.push(false);
        self.after(Duration::ZERO, Event::Publish { execution: number });
    }

    fn change_readers(&mut self) {
        let pause = Duration::from_millis(self.random.between(1, 1_000));
        self.after(pause, Event::Reader);
        if self.executions.len() < 5 && !self.is_healed() {
            self.begin();
        }
        let at = self.random.below(self.nodes.len() as u64) as usize;
        if self.executions.is_empty() || self.nodes[at].life != Life::Running {
            return;
        }
        let execution = self.random.below(self.executions.len() as u64) as usize;
        let (now, owner) = (self.now, self.executions[execution].owner_life);
        let is_healed = self.is_healed();
        let has_room = is_healed || self.random.chance(2, 3);
        match self.nodes[at].readers.get_mut(&execution) {
            None => {
                let (follow, transcript) = (Follow::new(owner, now), Transcript::default());
                self.nodes[at].readers.insert(execution, Reader { follow, transcript });
                self.count("readers", 1);
            }
            Some(reader) => {
                reader.follow.set_room(has_room, now);
                self.count("held back", (!has_room).into());
            }
        }
        if is_healed {
            // Nobody is held back for ever.
            for node in &mut self.nodes {
                let readers = node.readers.values_mut();
                readers.for_each(|reader| reader.follow.set_room(true, now));
            }
        }
    }

    /// True if every execution has its end, and all readers have it.
    fn is_over(&self) -> bool {
        self.nodes.iter().all(|node| {
            let has_ended = |reader: &Reader| reader.follow.has_ended();
            let has_all = node.readers.len() == self.executions.len();
            node.life == Life::Running && has_all && node.readers.values().all(has_ended)
        }) && self.ended.iter().all(|has_ended| *has_ended)
    }

    fn unfinished(&self) -> String {
        let mut text = "it is not over:".to_owned();
        for (at, node) in self.nodes.iter().enumerate() {
            for (number, reader) in &node.readers {
                if !reader.follow.has_ended() {
                    let chunks = reader.transcript.chunks();
                    text += &format!(" node {at} has {chunks} chunks of {number};");
                }
            }
            text += &format!(" node {at}: {:?}, {} readers;", node.life, node.readers.len());
        }
        text + &format!(" ended: {:?}", self.ended)
    }

    /// Judges what all readers have got in the end.
    fn judge(mut self) -> Result<ClusterSummary, String> {
        for number in 0..self.executions.len() {
            if self.manners.keeps() {
                check_log(&self.engine, number, &self.executions[number])?;
            }
            let last = self.engine.last(number).map(|(_, message)| message.bytes.clone());
            let last =
                last.as_ref().and_then(|bytes| crate::cluster::record::Record::decode(bytes).ok());
            let end = last.and_then(|record| record.end());
            for at in 0..self.nodes.len() {
                let transcript = &self.nodes[at].readers[&number].transcript;
                let gaps = transcript.log_gaps.clone();
                if self.manners.keeps() && !gaps.is_empty() {
                    return Err(format!("node {at} has gaps of {number}: {gaps:?}"));
                }
                if self.manners.keeps() && transcript.end.as_deref() != end {
                    return Err(format!("node {at} has another end of {number}"));
                }
                let own_missed = transcript.own_missed;
                self.count("own gaps", u64::from(own_missed > 0));
                self.count("ends", 1);
                for reason in gaps {
                    let name = match reason {
                        GapReason::Expired => "gap: expired",
                        _ => "gap: corrupt",
                    };
                    self.count(name, 1);
                }
            }
        }
        for at in 0..self.nodes.len() {
            let counters: Vec<follow::Counters> =
                self.nodes[at].readers.values().map(|reader| *reader.follow.counters()).collect();
            for counters in counters {
                self.count("holes", counters.holes);
                self.count("seen", counters.seen);
            }
        }
        let places: Vec<u64> = self.engine.messages.keys().copied().collect();
        places.into_iter().for_each(|place| self.note(place));
        Ok(ClusterSummary { hash: self.hash, happened: self.counts.into_iter().collect() })
    }
}

fn request(execution: usize, wish: &Wish<'_>) -> Request {
    match wish {
        Wish::Store { expected, record } => {
            Request::Store { execution, expected: *expected, bytes: record.to_vec() }
        }
        Wish::Look => Request::Look { execution },
    }
}
