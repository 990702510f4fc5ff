//! Replicas in a simulated world: a real shard follows executions of other nodes through their
//! logs, and has subscribers of all kinds.
//!
//! The logs are in the model of the engine that `cluster.rs` has, with its faults. Mirrors write
//! them. A simulated thread of a node (`replica/node.rs`) reads them with the real machines, and
//! talks to the shard as the real one does. The replicas, their rings and the questions for old
//! chunks are real.
//!
//! Each subscriber has an oracle (`replica/witness.rs`). Bytes, times and numbers are those of the
//! producer. Chunks and gaps follow each other, and counts are exact. One end comes: that of the
//! log. If the engine keeps what it has acknowledged, no gap may be but those in the log and those
//! of a policy. Once the faults are over, everybody comes to the end.

mod ledger;
mod node;
mod owner;
mod witness;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::base::{Instant, Random, SubscriberId};
use crate::engine::{EngineLimits, From, SubscribeError, SubscribeSpec};
use crate::limits::{CLUSTER_REPLICA_IDLE, RETENTION};
use crate::memory::{ClockAnchor, RingPoolConfig};
use crate::reactor::Reactor;
use crate::server::{GuestConfig, Lookup, ServerShard};
use crate::shard::{Delivery, MemoryWatch, Polled, ShardConfig, Subscriber};
use crate::sim::cluster::faults::Manners;
use crate::sim::door::{DoorReader, LifeLines};
use crate::sim::reactor::SimReactor;
use crate::sim::twice::run_twice;
use crate::sim::world::{SimFaults, SimWorld};
use crate::stream::{Kind, Kinds, Policy};
use ledger::{Execution, Ledger};
pub(super) use node::SimLine;
use node::SimNode;
use witness::Witness;

/// The result of one seed. Equal for equal seeds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaSummary {
    /// A hash of everything that subscribers were told.
    pub hash: u64,
    /// The events, each with its count.
    pub happened: Vec<(&'static str, u64)>,
}

/// Runs a seed twice, and compares the two runs.
///
/// # Errors
/// The failure, and the command that runs the seed again.
pub fn run_replica_seed(seed: u64, verbose: bool) -> Result<ReplicaSummary, String> {
    let options = format!("--replicas --seed {seed}");
    let difference = |first: &ReplicaSummary, second: &ReplicaSummary| {
        format!("{:x} and {:x}", first.hash, second.hash)
    };
    run_twice(&options, verbose, |verbose| Case::new(seed, verbose).run(), difference)
}

const STEPS: u32 = 160;
const EXECUTIONS_MAX: usize = 6;
const FOLLOWERS_MAX: usize = 24;
/// Time in which everybody comes to the end, once the faults are over.
const PATIENCE: Duration = Duration::from_secs(120);

/// The habitat of a reader at the door. The others are in `witness.rs`.
const DOOR: u64 = 3;

/// The place of a subscriber.
enum Seat {
    Closure(SubscriberId),
    Polled(Polled),
    Elsewhere(Box<Subscriber>),
    AtDoor(Box<DoorReader>),
}

/// A subscriber, and its oracle.
struct Seated {
    seat: Seat,
    witness: Rc<RefCell<Witness>>,
    /// It takes something in one of this many steps; 0: it is stuck.
    pace: u64,
    acked_seq: u64,
}

/// Somebody who wants to follow an execution, and waits until the shard knows it.
struct Waiting {
    execution: usize,
    spec: SubscribeSpec,
    habitat: u64,
    pace: u64,
    since: Instant,
}

struct Case {
    verbose: bool,
    random: Random,
    world: SimWorld,
    shard: ServerShard<SimReactor>,
    node: SimNode,
    ledger: Rc<RefCell<Ledger>>,
    /// The lines of readers at the door.
    lines: LifeLines,
    seated: Vec<Seated>,
    waiting: Vec<Waiting>,
    /// The executions that the shard had when it was last looked at.
    was_here: Vec<(bool, bool)>,
}

fn shard_of(world: &SimWorld, line: &Arc<SimLine>, random: &mut Random) -> ServerShard<SimReactor> {
    let config = ShardConfig {
        engine: EngineLimits {
            executions_max: if random.chance(1, 3) { random.between(2, 4) as u32 } else { 12 },
            subscribers_max: 64,
            ..EngineLimits::default()
        },
        rings: RingPoolConfig {
            prealloc_bytes: 0,
            bytes_max: random.between(1, 8) * (128 << 10),
            ..RingPoolConfig::default()
        },
        memory: MemoryWatch::ByHand,
        seed: Some(random.next_u64()),
        guests: GuestConfig { cluster: Some(Arc::clone(line) as _), ..super::guests() },
        ..ShardConfig::default()
    };
    ServerShard::over(SimReactor::new(world), config).expect("there is memory")
}

impl Case {
    fn new(seed: u64, verbose: bool) -> Case {
        let mut random = Random::new(seed ^ 0x5E71_1CA5);
        let world = SimWorld::new(random.next_u64(), SimFaults::NONE);
        let line = Arc::new(SimLine::new(random.between(1, 12) as usize));
        let shard = shard_of(&world, &line, &mut random);
        let manners = Manners::drawn(&mut random);
        let ledger = Rc::new(RefCell::new(Ledger::new(seed, manners.keeps())));
        let node = SimNode::new(line, manners, Random::new(random.next_u64()));
        let (seated, waiting, was_here) = (Vec::new(), Vec::new(), Vec::new());
        let lines = LifeLines::default();
        Case { verbose, random, world, shard, node, ledger, lines, seated, waiting, was_here }
    }

    fn say(&self, words: impl FnOnce() -> String) {
        if self.verbose {
            println!("{:>9.3} {}", self.world.now().nanos() as f64 / 1e9, words());
        }
    }

    fn run(mut self) -> Result<ReplicaSummary, String> {
        self.begin();
        for _ in 0..STEPS {
            self.step();
            self.turn()?;
            self.visit_all(false)?;
        }
        self.heal()?;
        self.read_everything()?;
        self.be_forgotten()?;
        let refused = self.node.refused();
        let mut ledger = self.ledger.borrow_mut();
        let passed = self.shard.counters().chunks_published;
        ledger.count("unsent", refused);
        ledger.note(self.world.now().nanos());
        ledger.note(passed);
        Ok(ReplicaSummary { hash: ledger.hash, happened: ledger.counts.clone() })
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..4 => self.begin(),
            4..40 => self.want(),
            40..46 => self.leave(),
            46..56 => self.node.fault(&mut self.ledger.borrow_mut()),
            56 => self.cancel(),
            57 if self.random.chance(1, 3) => self.pass(RETENTION + Duration::from_secs(15)),
            57 | 58 => self.pass(CLUSTER_REPLICA_IDLE + Duration::from_secs(4)),
            _ => {
                let micros_max = 1 << self.random.below(21);
                let micros = self.random.between(1, micros_max);
                self.pass(Duration::from_micros(micros));
            }
        }
    }

    /// Lets the node and the shard do everything that is due now.
    fn settle(&mut self) {
        loop {
            self.node.run(self.world.now(), &mut self.ledger.borrow_mut());
            while let Some(message) = self.node.outbox.pop_front() {
                if let Some(message) = self.shard.tell_cluster(message) {
                    self.node.outbox.push_front(message);
                    break;
                }
            }
            self.lines.deliver(&mut self.shard);
            if !self.shard.turn() && self.node.outbox.is_empty() {
                return;
            }
        }
    }

    fn turn(&mut self) -> Result<(), String> {
        self.settle();
        self.shard.audit();
        self.serve_waiting()?;
        self.note_places();
        match self.ledger.borrow().failure.clone() {
            Some(text) => Err(text),
            None => Ok(()),
        }
    }

    /// Lets time pass. The shard and the node get a turn whenever something is due.
    fn pass(&mut self, time: Duration) {
        let until = self.world.now() + time;
        loop {
            self.settle();
            if let Err(text) = self.serve_waiting() {
                self.ledger.borrow_mut().failure.get_or_insert(text);
            }
            let now = self.world.now();
            if now >= until || self.ledger.borrow().failure.is_some() {
                return;
            }
            let deadlines = self.shard.next_deadline().into_iter().chain(self.node.deadline());
            let next = deadlines.min().unwrap_or(Instant::FAR).max(now + Duration::from_micros(1));
            self.shard.reactor_mut().wait(Some(until.min(next)));
        }
    }

    /// Begins an execution on another node.
    fn begin(&mut self) {
        let mut ledger = self.ledger.borrow_mut();
        if ledger.executions.len() >= EXECUTIONS_MAX {
            return;
        }
        let random = &mut self.random;
        let anchor = ClockAnchor {
            wall_us: 1_000_000_000_000_000 + random.below(1 << 50),
            mono_ns: random.below(1 << 50),
        };
        let execution = Execution::new(ledger.executions.len(), anchor, random);
        let is_heavy = self.random.chance(1, 6);
        if is_heavy {
            let (number, since) = (ledger.executions.len(), self.world.now());
            let spec = SubscribeSpec::default(); // It gates the replica, and takes nothing.
            self.waiting.push(Waiting { execution: number, spec, habitat: 1, pace: 0, since });
        }
        self.node.begin(&mut ledger, execution, is_heavy);
        ledger.count("executions", 1);
        self.was_here.push((false, false));
    }

    /// Draws somebody who wants to follow an execution.
    fn want(&mut self) {
        let count = self.ledger.borrow().executions.len() as u64;
        if self.seated.len() + self.waiting.len() >= FOLLOWERS_MAX {
            return;
        }
        let random = &mut self.random;
        let execution = random.below(count) as usize;
        let mut kinds = Kinds::ALL;
        if random.chance(1, 3) {
            kinds = Kinds::NONE.with(Kind::ALL[random.below(3) as usize]);
        }
        let head = self.ledger.borrow().executions[execution].chunks.len() as u64;
        let from = match random.below(4) {
            0 => From::Live,
            1 => From::Seq { seq: random.between(1, head + 1), seen: None },
            _ => From::Start,
        };
        let habitat = random.below(4);
        let is_gate = random.chance(1, 8);
        let spec = SubscribeSpec {
            policy: if is_gate { Policy::Block } else { Policy::ALL[random.below(7) as usize] },
            kinds,
            from,
            limit_chunks: random.chance(1, 3).then(|| random.between(1, 14) as u32),
            ack_window: (habitat < 2 && random.chance(1, 5)).then(|| random.between(1, 20) as u32),
            ..SubscribeSpec::default()
        };
        // The ring is all that a reader at the door has.
        let spec = match (habitat, spec.policy) {
            (DOOR, Policy::Replay) => SubscribeSpec { policy: Policy::Buffer, ..spec },
            _ => spec,
        };
        let pace = if is_gate { 0 } else { [1, 1, 2, 10, 0][random.below(5) as usize] };
        let since = self.world.now();
        self.waiting.push(Waiting { execution, spec, habitat, pace, since });
    }

    /// Seats those whose execution is here by now.
    fn serve_waiting(&mut self) -> Result<(), String> {
        for waiting in std::mem::take(&mut self.waiting) {
            let id = self.ledger.borrow().executions[waiting.execution].id;
            let lookup = self.shard.locate(id);
            let name = match lookup {
                Lookup::Here => {
                    self.seat(waiting);
                    continue;
                }
                Lookup::Soon => {
                    let time = self.world.now().since(waiting.since);
                    if time > RETENTION + 2 * CLUSTER_REPLICA_IDLE {
                        return Err(format!("{} is not found, after {time:?}", waiting.execution));
                    }
                    self.waiting.push(waiting);
                    continue;
                }
                Lookup::Nowhere => "nowhere",
                Lookup::Later => "no place",
            };
            self.ledger.borrow_mut().count(name, 1);
            if self.node.is_healed {
                self.waiting.push(Waiting { since: self.world.now(), ..waiting }); // It comes back.
            }
        }
        Ok(())
    }

    fn seat(&mut self, waiting: Waiting) {
        let Waiting { execution, mut spec, habitat, pace, .. } = waiting;
        let id = self.ledger.borrow().executions[execution].id;
        let Ok(status) = self.shard.inspect(id) else { return };
        let head_seq = status.head_seq;
        let from_seq = match spec.from {
            From::Start => 1,
            From::Live => head_seq + 1,
            From::Seq { seq, .. } => {
                let seq = seq.min(head_seq + 1);
                spec.from = From::Seq { seq, seen: None };
                seq
            }
        };
        let witness = Rc::new(RefCell::new(Witness::new(execution, &spec, (habitat, from_seq))));
        let seat = match habitat {
            0 => {
                let (ours, ledger) = (Rc::clone(&witness), Rc::clone(&self.ledger));
                let hear = move |delivery: &Delivery<'_>| {
                    ours.borrow_mut().hear(delivery, &mut ledger.borrow_mut());
                };
                self.shard.subscribe(id, spec, hear).map(Seat::Closure)
            }
            1 => self.shard.subscribe_polled(id, spec).map(Seat::Polled),
            DOOR => {
                let seat = self.lines.read(&mut self.shard, (execution, id), spec, &self.world);
                seat.map(|reader| Seat::AtDoor(Box::new(reader)))
            }
            _ => {
                let seat = self.shard.subscribe_remote(id, spec);
                seat.map(|subscriber| Seat::Elsewhere(Box::new(subscriber)))
            }
        };
        let (policy, kinds) = (spec.policy, spec.kinds);
        match seat {
            Ok(seat) => {
                self.say(|| {
                    format!("{execution} from {from_seq} of {head_seq}: {policy}, {kinds:?}")
                });
                let mut ledger = self.ledger.borrow_mut();
                ledger.count("followers", 1);
                ledger.count("elsewhere", (habitat == 2).into());
                ledger.count("at the door", (habitat == DOOR).into());
                self.seated.push(Seated { seat, witness, pace, acked_seq: 0 });
            }
            // It has no ring, and will have none.
            Err(SubscribeError::NotYet { .. }) if habitat == DOOR && status.state.is_over() => {}
            Err(SubscribeError::NotYet { .. }) => {
                self.ledger.borrow_mut().count("not yet", 1);
                // It was found. If it goes before it has a ring, the search begins anew.
                self.waiting.push(Waiting { since: self.world.now(), ..waiting });
            }
            Err(_) => {} // There are too many.
        }
    }

    /// Lets subscribers take what is due to them, each at its pace.
    fn visit_all(&mut self, is_hungry: bool) -> Result<(), String> {
        let now = self.world.now();
        for at in 0..self.seated.len() {
            let pace = self.seated[at].pace;
            if !is_hungry && (pace == 0 || !self.random.chance(1, pace)) {
                continue;
            }
            let most = if is_hungry { u64::MAX } else { self.random.below(60) };
            self.visit(at, most, now);
        }
        self.seated.retain(|seated| {
            let is_kept = matches!(seated.seat, Seat::Polled(ref polled) if !polled.is_done());
            is_kept || !seated.witness.borrow().has_ended
        });
        match self.ledger.borrow().failure.clone() {
            Some(text) => Err(text),
            None => Ok(()),
        }
    }

    fn visit(&mut self, at: usize, most: u64, now: Instant) {
        let Seated { seat, witness, acked_seq, .. } = &mut self.seated[at];
        let mut ledger = self.ledger.borrow_mut();
        for _ in 0..most {
            let mut witness = witness.borrow_mut();
            match seat {
                Seat::Closure(_) => break,
                Seat::Polled(polled) => {
                    drop(ledger);
                    let delivery = self.shard.poll(polled);
                    ledger = self.ledger.borrow_mut();
                    let Some(delivery) = delivery else { break };
                    witness.hear(&delivery, &mut ledger);
                }
                Seat::Elsewhere(subscriber) => {
                    let Some((delivery, _)) = subscriber.poll_at(now) else { break };
                    witness.hear(&delivery, &mut ledger);
                }
                Seat::AtDoor(reader) => {
                    let polled = reader.try_poll().expect("the shard writes what is right");
                    let Some(delivery) = polled else { break };
                    witness.hear(&delivery, &mut ledger);
                }
            }
        }
        drop(ledger);
        let (seq, acknowledges) = {
            let witness = witness.borrow();
            (witness.dealt_seq, witness.acknowledges && !witness.has_ended)
        };
        let id = match seat {
            Seat::Closure(id) => *id,
            Seat::Polled(polled) => polled.id(),
            Seat::Elsewhere(_) | Seat::AtDoor(_) => return,
        };
        if acknowledges && seq > *acked_seq {
            *acked_seq = seq;
            let _ = self.shard.acknowledge(id, seq); // It may have been detached.
        }
    }

    fn leave(&mut self) {
        if self.seated.is_empty() {
            return;
        }
        let at = self.random.below(self.seated.len() as u64) as usize;
        match self.seated.swap_remove(at).seat {
            Seat::Closure(id) => _ = self.shard.unsubscribe(id),
            Seat::Polled(polled) => _ = self.shard.unsubscribe(polled.id()),
            Seat::Elsewhere(subscriber) => drop(subscriber),
            Seat::AtDoor(reader) => drop(reader),
        }
    }

    fn cancel(&mut self) {
        let count = self.ledger.borrow().executions.len() as u64;
        let number = self.random.below(count) as usize;
        self.node.owners[number].cancel();
    }

    /// Notes the executions that have come and gone.
    fn note_places(&mut self) {
        for number in 0..self.was_here.len() {
            let id = self.ledger.borrow().executions[number].id;
            let is_here = self.shard.inspect(id).is_ok();
            let (was_here, was_ever) = self.was_here[number];
            let mut ledger = self.ledger.borrow_mut();
            ledger.count("looked up", (is_here && !was_here).into());
            ledger.count("found again", (is_here && !was_here && was_ever).into());
            ledger.count("dismissed", (!is_here && was_here).into());
            self.was_here[number] = (is_here, was_ever || is_here);
        }
    }

    /// Ends the faults, and lets everybody come to the end.
    fn heal(&mut self) -> Result<(), String> {
        self.node.is_healed = true;
        self.say(|| "the faults are over".to_owned());
        let until = self.world.now() + PATIENCE;
        while !self.node.owners.iter().all(owner::Owner::is_over)
            || !self.seated.is_empty()
            || !self.waiting.is_empty()
        {
            self.pass(Duration::from_millis(20));
            self.turn()?;
            self.visit_all(true)?;
            if self.world.now() > until {
                return Err(self.unfinished());
            }
            self.node.end_again(&mut self.ledger.borrow_mut());
        }
        Ok(())
    }

    fn unfinished(&mut self) -> String {
        let mut text = "it is not over:".to_owned();
        let ids: Vec<_> =
            self.ledger.borrow().executions.iter().map(|execution| execution.id).collect();
        for (number, id) in ids.into_iter().enumerate() {
            if let Ok(status) = self.shard.inspect(id) {
                text += &format!(" {number} is {:?} at {};", status.state, status.head_seq);
            }
        }
        for seated in &self.seated {
            let witness = seated.witness.borrow();
            let (execution, policy) = (witness.execution, witness.policy);
            let place = match &seated.seat {
                Seat::Closure(_) => "a closure",
                Seat::Polled(_) => "polled",
                Seat::Elsewhere(_) => "elsewhere",
                Seat::AtDoor(_) => "at the door",
            };
            let next_seq = witness.next_seq();
            text += &format!(" {execution} under {policy}, {place}, waits for {next_seq};");
        }
        for (number, owner) in self.node.owners.iter().enumerate() {
            text += if owner.is_over() { "" } else { " an owner writes" };
            let ledger = self.ledger.borrow();
            let execution = &ledger.executions[number];
            let (chunks, ends) = (execution.chunks.len(), &execution.ends.len());
            text += &format!(" {number} has {chunks} chunks and {ends} ends;");
            text += &format!(" {};", self.node.described(number));
        }
        let waiting = self.waiting.len();
        text + &format!(" {waiting} look for executions")
    }

    /// Reads each execution from its beginning.
    fn read_everything(&mut self) -> Result<(), String> {
        for execution in 0..self.was_here.len() {
            let spec = SubscribeSpec { policy: Policy::Replay, ..SubscribeSpec::default() };
            let habitat = self.random.below(3);
            let since = self.world.now();
            self.waiting.push(Waiting { execution, spec, habitat, pace: 1, since });
            let before = self.ledger.borrow().counted("ends");
            self.heal()?;
            if self.ledger.borrow().counted("ends") == before {
                return Err(format!("{execution} is not read through"));
            }
        }
        Ok(())
    }

    /// Everything that has ended is forgotten after its retention.
    fn be_forgotten(&mut self) -> Result<(), String> {
        self.pass(RETENTION + 2 * CLUSTER_REPLICA_IDLE);
        self.turn()?;
        match self.shard.execution_count() {
            0 => Ok(()),
            count => Err(format!("{count} executions are still here")),
        }
    }
}
