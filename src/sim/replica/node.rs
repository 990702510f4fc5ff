//! The thread of a simulated node: what `nats/node.rs` and `nats/driver.rs` do, in virtual time.
//!
//! It takes the requests of a shard from a queue, runs the machines that read logs, and has
//! messages for the shard. It also has the owners of the executions, which are other nodes: their
//! mirrors write the logs, and closers end those whose owner is lost. All messages between machines
//! and engine are late, and can be lost.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::ledger::{Execution, Ledger};
use super::owner::Owner;
use crate::base::{ExecutionId, Instant, Random, SharedBytes};
use crate::cluster::follow::{Follow, Given, Landmark, Stored, Wish};
use crate::cluster::history::History;
use crate::cluster::mirror::Attempt;
use crate::cluster::piece::Piece;
use crate::cluster::record::Incarnation;
use crate::cluster::seek::{Seek, level};
use crate::endpoint::Elsewhere;
use crate::reactor::Waker;
use crate::reactor::waker::WakeListener;
use crate::server::{ClusterLine, Found, FromCluster, Located, ReaderName, ToCluster};
use crate::sim::cluster::engine::{Engine, Message, Pulled};
use crate::sim::cluster::faults::Manners;

/// The line of the shard: a queue with little room.
pub struct SimLine {
    requests: Mutex<VecDeque<ToCluster>>,
    room: usize,
    refused: Mutex<u64>,
    /// Nobody sleeps.
    listener: WakeListener,
}

impl fmt::Debug for SimLine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("SimLine")
    }
}

impl SimLine {
    /// A line with room for this number of requests.
    pub fn new(room: usize) -> SimLine {
        let listener = WakeListener::without_doorbell();
        SimLine { requests: Mutex::default(), room, refused: Mutex::default(), listener }
    }

    /// Takes all requests.
    #[cfg(feature = "cluster")]
    pub fn take(&self) -> VecDeque<ToCluster> {
        std::mem::take(&mut *self.requests.lock().expect("one thread has it"))
    }
}

impl ClusterLine for SimLine {
    fn waker(&self) -> Waker {
        self.listener.waker()
    }

    fn send(&self, request: ToCluster) -> Result<(), ToCluster> {
        let mut requests = self.requests.lock().expect("one thread has it");
        if requests.len() >= self.room {
            *self.refused.lock().expect("one thread has it") += 1;
            return Err(request);
        }
        requests.push_back(request);
        Ok(())
    }
}

/// A machine that reads a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    Follower(usize),
    History(ReaderName),
}

/// Something that happens at a time.
pub enum Event {
    /// A request or an answer of the owner of an execution.
    Owner(usize, super::owner::OwnerEvent),
    /// The entry of an execution gets to the directory.
    Listed(usize),
    Read {
        link: u64,
        who: Who,
        attempt: Attempt,
        wish: Wish,
    },
    Pulled {
        link: u64,
        who: Who,
        attempt: Attempt,
        pulled: Pulled,
    },
    Listening {
        link: u64,
        execution: usize,
        attempt: Attempt,
    },
    Heard {
        link: u64,
        execution: usize,
        place: u64,
        message: Message,
    },
    Locate(ExecutionId),
    Located(ExecutionId, Located),
    Seek {
        reader: ReaderName,
        execution: usize,
        from_seq: u64,
        until_place: u64,
    },
    Sought(ReaderName, Box<Landmark>),
}

/// The node, the engine, and the owners of all executions. See the module's text.
pub struct SimNode {
    pub now: Instant,
    pub random: Random,
    pub manners: Manners,
    pub engine: Engine,
    pub is_healed: bool,
    pub owners: Vec<Owner>,
    is_listed: Vec<bool>,
    line: Arc<SimLine>,
    queue: BTreeMap<(Instant, u64), Event>,
    event_count: u64,
    /// The number of the connection. Answers of an older one are lost.
    link: u64,
    cut_until: Option<Instant>,
    followed: BTreeMap<usize, Follow>,
    histories: BTreeMap<ReaderName, (usize, History)>,
    live: BTreeMap<usize, Vec<Piece>>,
    old: BTreeMap<ReaderName, Vec<Piece>>,
    /// Messages for the shard, in order.
    pub outbox: VecDeque<FromCluster>,
}

impl SimNode {
    pub fn new(line: Arc<SimLine>, manners: Manners, random: Random) -> SimNode {
        SimNode {
            now: Instant::ZERO,
            random,
            manners,
            engine: Engine::default(),
            is_healed: false,
            owners: Vec::new(),
            is_listed: Vec::new(),
            line,
            queue: BTreeMap::new(),
            event_count: 0,
            link: 0,
            cut_until: None,
            followed: BTreeMap::new(),
            histories: BTreeMap::new(),
            live: BTreeMap::new(),
            old: BTreeMap::new(),
            outbox: VecDeque::new(),
        }
    }

    /// Begins an execution on another node. Its entry comes into the directory a bit later.
    pub fn begin(&mut self, ledger: &mut Ledger, execution: Execution, is_heavy: bool) {
        let number = ledger.executions.len();
        let owner = Owner::new(&execution, is_heavy, &self.manners, &mut self.random);
        ledger.executions.push(execution);
        self.owners.push(owner);
        self.is_listed.push(false);
        let listed_after = match is_heavy {
            true => Duration::ZERO,
            false => Duration::from_micros(self.random.below(1_500_000)),
        };
        self.after(listed_after, Event::Listed(number));
        self.after(Duration::ZERO, Event::Owner(number, super::owner::OwnerEvent::Publish));
    }

    pub fn after(&mut self, time: Duration, event: Event) {
        self.event_count += 1;
        self.queue.insert((self.now + time, self.event_count), event);
    }

    /// True in `per_mille` of the cases, while there are faults.
    pub fn strikes(&mut self, per_mille: u64) -> bool {
        !self.is_healed && self.random.chance(per_mille, 1_000)
    }

    pub fn delay(&mut self) -> Duration {
        let max = self.manners.delay_max.as_nanos() as u64;
        let max = if self.random.chance(1, 4) { max } else { max / 10 };
        Duration::from_nanos(50_000 + self.random.below(max))
    }

    /// The time at which it has something to do without another cause.
    pub fn deadline(&self) -> Option<Instant> {
        let event = self.queue.first_key_value().map(|((at, _), _)| *at);
        let follows = self.followed.values().filter_map(Follow::deadline);
        let histories = self.histories.values();
        let histories = histories.filter_map(|(_, history)| history.follow.deadline());
        let owners = self.owners.iter().filter_map(Owner::deadline);
        let machines = follows.chain(histories).filter(|_| self.cut_until.is_none()).chain(owners);
        machines.chain(event).chain(self.cut_until).min()
    }

    /// Does everything that is due at this time.
    pub fn run(&mut self, now: Instant, ledger: &mut Ledger) {
        self.now = now;
        if self.cut_until.is_some_and(|until| until <= now || self.is_healed) {
            self.cut_until = None;
            self.followed.values_mut().for_each(|follow| follow.on_connection(now));
        }
        loop {
            self.take_requests(ledger);
            self.poll_machines();
            let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 <= now) else {
                return self.pass_on(ledger);
            };
            let event = entry.remove();
            self.happen(event, ledger);
            if self.random.chance(1, 2) {
                self.pass_on(ledger); // A real node may find several arrivals at once.
            }
        }
    }

    /// Cuts the connection of the node for a while.
    pub fn cut(&mut self, ledger: &mut Ledger) {
        let time = Duration::from_millis(self.random.between(1, 6_000));
        self.cut_until = Some(self.now + time);
        self.link += 1;
        self.engine.listeners.clear();
        ledger.count("away", 1);
        let now = self.now;
        self.followed.values_mut().for_each(|follow| follow.on_connection(now));
    }

    /// The state of the reader of an execution, for a failure.
    pub fn described(&self, number: usize) -> String {
        let last = self.engine.last(number).map(|(place, _)| place);
        match self.followed.get(&number) {
            None => format!("not followed, the log ends at {last:?}"),
            Some(follow) => format!(
                "followed to {:?}, level: {}, {:?}, the log ends at {last:?}",
                follow.landmark().place,
                follow.is_level(),
                follow.counters()
            ),
        }
    }

    /// Number of requests that found no room.
    pub fn refused(&self) -> u64 {
        *self.line.refused.lock().expect("one thread has it")
    }

    fn take_requests(&mut self, ledger: &mut Ledger) {
        loop {
            let request = self.line.requests.lock().expect("one thread has it").pop_front();
            let Some(request) = request else { return };
            self.take_request(request, ledger);
        }
    }

    fn take_request(&mut self, request: ToCluster, ledger: &mut Ledger) {
        let now = self.now;
        let number = |id: ExecutionId| {
            let found = ledger.executions.iter().position(|execution| execution.id == id);
            found.expect("the shard knows no others")
        };
        match request {
            ToCluster::Locate { execution, .. } => {
                let delay = self.delay();
                self.after(delay, Event::Locate(execution));
            }
            ToCluster::Follow { execution, owner, from, .. } => {
                self.followed.insert(number(execution), Follow::starting(owner, *from, now));
            }
            ToCluster::SetRoom { execution, has_room } => {
                if let Some(follow) = self.followed.get_mut(&number(execution)) {
                    follow.set_room(has_room, now);
                }
                ledger.count("no room", (!has_room).into());
            }
            ToCluster::Unfollow { execution } => {
                let execution = number(execution);
                self.followed.remove(&execution);
                self.engine.listeners.remove(&(0, execution));
            }
            ToCluster::Read { reader, execution, owner, from_seq, until } => {
                let execution = number(execution);
                ledger.count("reads", 1);
                self.read(reader, (execution, owner), from_seq, &until);
            }
            ToCluster::ReadMore(name) => {
                if let Some((_, history)) = self.histories.get_mut(&name) {
                    history.add_room(now);
                }
            }
            ToCluster::StopReading(name) => _ = self.histories.remove(&name),
            ToCluster::Cancel { execution, .. } => self.owners[number(execution)].cancel(),
            ToCluster::Mirror(_)
            | ToCluster::End { .. }
            | ToCluster::Show { .. }
            | ToCluster::Claim { .. }
            | ToCluster::List(_)
            | ToCluster::Listed { .. } => {
                unreachable!("the shard runs nothing, and has no streams and no clients")
            }
        }
    }

    fn read(
        &mut self,
        reader: ReaderName,
        (execution, owner): (usize, Incarnation),
        from_seq: u64,
        until: &Landmark,
    ) {
        let history = History::new(owner, until.number, self.now);
        self.histories.insert(reader, (execution, history));
        let delay = self.delay();
        self.after(delay, Event::Seek { reader, execution, from_seq, until_place: until.place });
    }

    fn poll_machines(&mut self) {
        let now = self.now;
        let mut wishes = Vec::new();
        for (&execution, follow) in &mut self.followed {
            while let Some((attempt, wish)) = follow.poll(now) {
                wishes.push((Who::Follower(execution), attempt, wish));
            }
        }
        for (&reader, (_, history)) in &mut self.histories {
            while let Some((attempt, wish)) = history.follow.poll(now) {
                wishes.push((Who::History(reader), attempt, wish));
            }
        }
        for (who, attempt, wish) in wishes {
            if let (Who::Follower(execution), Wish::Unlisten) = (who, wish) {
                self.engine.listeners.remove(&(0, execution));
                continue;
            }
            if self.cut_until.is_some() || self.strikes(self.manners.loss) {
                continue;
            }
            let (delay, link) = (self.delay(), self.link);
            self.after(delay, Event::Read { link, who, attempt, wish });
        }
        self.poll_owners();
    }

    fn happen(&mut self, event: Event, ledger: &mut Ledger) {
        match event {
            Event::Owner(execution, event) => self.owner_event(execution, event, ledger),
            Event::Listed(execution) => self.is_listed[execution] = true,
            Event::Read { link, who, attempt, wish } => self.serve(link, who, attempt, wish),
            Event::Locate(id) => {
                let located = self.look_up(id, ledger);
                if let Located::Found(found) = &located {
                    ledger.count("ended when found", found.end.is_some().into());
                }
                let delay = self.delay();
                self.after(delay, Event::Located(id, located));
            }
            Event::Located(execution, located) => {
                self.outbox.push_back(FromCluster::Located { execution, located });
            }
            Event::Seek { reader, execution, from_seq, until_place } => {
                let owner = ledger.executions[execution].owner;
                let at = self.seek_in(execution, Seek::new(owner, from_seq, until_place));
                let delay = self.delay();
                self.after(delay, Event::Sought(reader, Box::new(at)));
            }
            Event::Sought(reader, at) => {
                if let Some((_, history)) = self.histories.get_mut(&reader) {
                    history.begin(*at, self.now);
                }
            }
            Event::Pulled { link, .. }
            | Event::Listening { link, .. }
            | Event::Heard { link, .. }
                if link != self.link => {}
            Event::Listening { execution, attempt, .. } => {
                if let Some(follow) = self.followed.get_mut(&execution) {
                    follow.on_listening(attempt, self.now);
                }
            }
            Event::Heard { execution, place, message, .. } => {
                let pieces = self.live.entry(execution).or_default();
                let Some(follow) = self.followed.get_mut(&execution) else { return };
                let bytes = SharedBytes::new(message.bytes);
                let stored = Stored { place, is_first: message.is_first, bytes: &bytes };
                let give = &mut |given: Given<'_>| pieces.push(Piece::of(given, &bytes));
                follow.on_heard(stored, self.now, give);
            }
            Event::Pulled { who, attempt, pulled, .. } => self.take_pulled(who, attempt, pulled),
        }
    }

    fn take_pulled(&mut self, who: Who, attempt: Attempt, pulled: Pulled) {
        let (follow, pieces) = match who {
            Who::Follower(execution) => {
                let Some(follow) = self.followed.get_mut(&execution) else { return };
                (follow, self.live.entry(execution).or_default())
            }
            Who::History(reader) => {
                let Some((_, history)) = self.histories.get_mut(&reader) else { return };
                (&mut history.follow, self.old.entry(reader).or_default())
            }
        };
        let share = |(place, message): (u64, Message)| {
            (place, message.is_first, SharedBytes::new(message.bytes))
        };
        let all: Vec<(u64, bool, SharedBytes)> = pulled.records.into_iter().map(share).collect();
        let current = Cell::new(None);
        let records = all.iter().map(|(place, is_first, bytes)| {
            current.set(Some(bytes));
            Stored { place: *place, is_first: *is_first, bytes }
        });
        let mut give = |given: Given<'_>| {
            pieces.push(Piece::of(given, current.get().expect("it is a part of a record")));
        };
        follow.on_pulled(attempt, records, pulled.is_all, self.now, &mut give);
    }

    /// Passes on what followers and readers were given, as the thread of a real node does.
    fn pass_on(&mut self, ledger: &mut Ledger) {
        for (execution, pieces) in std::mem::take(&mut self.live) {
            let Some(follow) = self.followed.get(&execution) else { continue };
            if pieces.is_empty() {
                continue;
            }
            let (at, has_ended) = (Box::new(follow.landmark()), follow.has_ended());
            let id = ledger.executions[execution].id;
            self.outbox.push_back(FromCluster::Given { execution: id, pieces, at });
            if has_ended {
                self.followed.remove(&execution);
            }
        }
        for (reader, pieces) in std::mem::take(&mut self.old) {
            let Some((_, history)) = self.histories.get_mut(&reader) else { continue };
            if pieces.is_empty() {
                continue;
            }
            let is_all = history.follow.has_all();
            history.take_room(self.now);
            ledger.count("old parts", 1);
            self.outbox.push_back(FromCluster::Old { reader, pieces, is_all });
            if is_all {
                self.histories.remove(&reader);
            }
        }
        let exhausted = self.histories.extract_if(.., |_, (_, history)| history.follow.has_all());
        for (reader, _) in exhausted {
            let (pieces, is_all) = (Vec::new(), true);
            self.outbox.push_back(FromCluster::Old { reader, pieces, is_all });
        }
    }

    /// The engine carries out a request of a reader.
    fn serve(&mut self, link: u64, who: Who, attempt: Attempt, wish: Wish) {
        let execution = match who {
            Who::Follower(execution) => execution,
            Who::History(reader) => match self.histories.get(&reader) {
                Some(&(execution, _)) => execution,
                None => return,
            },
        };
        let is_lost = link != self.link || self.strikes(self.manners.loss);
        match wish {
            Wish::Listen if link == self.link => {
                self.engine.listeners.insert((0, execution));
                if !is_lost {
                    let delay = self.delay();
                    self.after(delay, Event::Listening { link, execution, attempt });
                }
            }
            Wish::Pull { from_leader: true, .. } if self.engine.is_away(self.now) => {}
            Wish::Pull { behind, from_leader } if !is_lost => {
                let head = self.engine.head();
                let is_stale = !from_leader && self.strikes(self.manners.stale);
                let lag = if is_stale { self.random.below(head.min(6) + 1) } else { 0 };
                let count = if from_leader { 1 } else { self.random.between(1, 6) as usize };
                let pulled = self.engine.pull(execution, behind, head - lag, count);
                let delay = self.delay();
                self.after(delay, Event::Pulled { link, who, attempt, pulled });
            }
            _ => {}
        }
    }

    /// Sends a stored record to the node, if it listens.
    pub fn publish_again(&mut self, execution: usize, place: u64) {
        let is_heard = self.engine.listeners.contains(&(0, execution));
        if !is_heard || self.cut_until.is_some() || self.strikes(self.manners.loss) {
            return;
        }
        let copies = if self.strikes(50) { 2 } else { 1 };
        for _ in 0..copies {
            let message = self.engine.messages[&place].clone();
            let (delay, link) = (self.delay(), self.link);
            self.after(delay, Event::Heard { link, execution, place, message });
        }
    }

    /// Looks for the entry of an execution, and for the last record of its log.
    fn look_up(&mut self, id: ExecutionId, ledger: &Ledger) -> Located {
        let is_away = self.cut_until.is_some() || self.engine.is_away(self.now);
        if is_away || self.strikes(self.manners.loss) {
            return Located::Away;
        }
        let number = ledger.executions.iter().position(|execution| execution.id == id);
        let Some(number) = number.filter(|number| self.is_listed[*number]) else {
            return Located::Nowhere;
        };
        let entry = super::owner::entry_of(&ledger.executions[number]);
        let last = self.engine.last(number);
        let last = last.map(|(place, last)| stored_of(place, last));
        let (at, end) = level(last.as_ref(), entry.owner);
        let node = Elsewhere { node: "other".into(), url: None };
        Located::Found(Box::new(Found { node, entry, at, end }))
    }

    /// Looks for a place before the record that has a chunk, as far as the engine answers.
    fn seek_in(&mut self, execution: usize, mut seek: Seek) -> Landmark {
        while let Some(place) = seek.next_place()
            && !self.strikes(self.manners.loss)
        {
            let found = self.engine.pull(execution, place, self.engine.head(), 1).records;
            let found = found.first().map(|(place, message)| stored_of(*place, message));
            seek.take(place, found.as_ref());
        }
        seek.found()
    }
}

fn stored_of(place: u64, message: &Message) -> Stored<'_> {
    Stored { place, is_first: message.is_first, bytes: &message.bytes }
}
