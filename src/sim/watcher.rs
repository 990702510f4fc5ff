//! Subscribers as actors: they come, ask (often, seldom, or not for a while), acknowledge, lose
//! their connection and come back, leave with a word or without.

use std::time::Duration;

use crate::base::Instant;
use crate::engine::{
    AcknowledgeError, Coalesce, From, GapReason, Kind, Kinds, Place, Policy, Status,
    SubscribeError, SubscribeSpec,
};
use crate::limits;
use crate::shard::{Polled, Subscriber};
use crate::sim::expect::{Expected, Got, Held};
use crate::sim::follower::Habitat;
use crate::sim::run::Sim;
use crate::sim::scene::Joining;

/// One subscriber's owner.
pub(super) struct Watcher {
    pub follower: usize,
    seat: Seat,
    /// Asks for one thing at a time, when it is its turn at all.
    is_slow: bool,
    pub stuck_until: Instant,
}

/// What it holds.
enum Seat {
    Closure,
    Polled(Polled),
    Remote(Box<Subscriber>),
}

/// A spec, and what is expected to come of it.
struct Wish {
    spec: SubscribeSpec,
    habitat: Habitat,
    headers_only: bool,
}

impl Sim {
    /// Somebody wants to follow an execution.
    pub fn subscribe(&mut self) {
        let count = self.shared.lock().executions.len() as u64;
        let is_misuse = self.random.chance(self.plan.misuse, 1_000);
        // The newest ones mostly, so that there is something to follow.
        let back = if is_misuse { count } else { count.min(12) };
        let execution = (count - 1 - self.random.below(back)) as usize;
        let id = self.shared.lock().executions[execution].id;
        let status = self.shard.inspect(id);
        let wish = self.draw_wish(execution, status.as_ref().ok());
        let Wish { spec, habitat, headers_only } = wish;
        self.shared.lock().joining = Some(Joining {
            execution,
            habitat,
            ack_window: spec.ack_window.filter(|_| habitat != Habitat::Remote),
            coalesce: spec.coalesce.filter(|_| habitat != Habitat::Remote),
        });
        let follower = self.shared.lock().followers.len();
        let granted = match habitat {
            Habitat::Closure => {
                let shared = self.shared.clone();
                let panics = self.plan.closure_panics;
                let closure = move |delivery: &crate::shard::Delivery<'_>| {
                    let mut scene = shared.lock();
                    scene.given(follower, delivery);
                    if scene.preempt > 0 && scene.random.chance(1, 20) {
                        scene.preempt();
                    }
                    let is_end = scene.followers[follower].ended.is_some();
                    if !is_end && scene.has_faults && scene.random.chance(panics, 10_000) {
                        scene.followers[follower].has_left = true;
                        scene.coverage.count("closure panicked");
                        drop(scene);
                        std::panic::resume_unwind(Box::new("drawn to panic"));
                    }
                };
                self.shard.subscribe(id, spec, closure).map(|_| Seat::Closure)
            }
            Habitat::Polled => self.shard.subscribe_polled(id, spec).map(Seat::Polled),
            Habitat::Remote => self.shard.subscribe_remote(id, spec).map(|mut subscriber| {
                subscriber.headers_only(headers_only);
                Seat::Remote(Box::new(subscriber))
            }),
        };
        match granted {
            Ok(seat) => {
                let mut scene = self.shared.lock();
                scene.followers[follower].is_joining = false;
                if let Seat::Remote(_) = seat {
                    scene.followers[follower].headers_only = headers_only;
                    if headers_only {
                        scene.coverage.count("headers only");
                    }
                }
                match spec.from {
                    From::Live => scene.coverage.count("from live"),
                    From::Seq { seen: Some(_), .. } => {
                        scene.coverage.count("from seq with what was seen");
                    }
                    From::Seq { .. } => scene.coverage.count("from seq"),
                    From::Start => {}
                }
                drop(scene);
                self.check_granted(follower, &spec);
                let is_slow = self.random.chance(self.plan.slow_readers, 1_000);
                let stuck_until = Instant::ZERO;
                self.watchers.push(Watcher { follower, seat, is_slow, stuck_until });
            }
            Err(error) => self.check_refused(execution, habitat, &spec, error, status.ok()),
        }
        self.shared.lock().joining = None;
    }

    fn draw_wish(&mut self, execution: usize, status: Option<&Status>) -> Wish {
        let plan = self.plan.clone();
        let random = &mut self.random;
        let habitats = [Habitat::Closure, Habitat::Polled, Habitat::Remote];
        let habitat = habitats[crate::sim::plan::pick(random, &plan.places)];
        let policy = Policy::ALL[random.below(6) as usize];
        let mut spec = SubscribeSpec { policy, place: Place::Local, ..Default::default() };
        let ring = status.and_then(|status| status.ring).map_or(14, |ring| ring.chunks_max);
        spec.limit_chunks = match random.below(4) {
            0 => None,
            1 => Some(random.between(1, u64::from(ring)) as u32),
            _ => Some(random.between(1, u64::from(ring).min(16)) as u32),
        };
        if random.chance(plan.byte_limits, 1_000) {
            spec.limit_bytes = Some(1 << random.between(0, 14));
        }
        if random.chance(plan.filters, 1_000) {
            spec.kinds = Kind::ALL.into_iter().filter(|_| random.chance(1, 2)).collect();
            if spec.kinds.is_empty() {
                spec.kinds = Kinds::NONE.with(Kind::Output);
            }
        }
        if random.chance(plan.acks, 1_000) {
            spec.ack_window = Some(random.between(1, 20) as u32);
        }
        if random.chance(plan.coalesces, 1_000) {
            let delay_max = Duration::from_micros(random.below(2_000));
            spec.coalesce = Some(Coalesce { delay_max, bytes_max: random.below(4_000) });
        }
        let head_seq = status.map_or(0, |status| status.head_seq);
        spec.from = match random.below(6) {
            0 => From::Live,
            1 => From::Seq { seq: random.between(1, head_seq + 1), seen: None },
            2 => self.resume(execution, &mut spec),
            _ => From::Start,
        };
        if self.random.chance(plan.misuse, 1_000) {
            self.spoil(&mut spec, head_seq);
        }
        Wish { spec, habitat, headers_only: self.random.chance(plan.headers_only, 1_000) }
    }

    /// Goes on where another subscriber of the same execution has stopped.
    fn resume(&mut self, execution: usize, spec: &mut SubscribeSpec) -> From {
        let scene = self.shared.lock();
        let followers = &scene.executions[execution].followers;
        if followers.is_empty() {
            return From::Start;
        }
        let at = self.random.below(followers.len() as u64) as usize;
        let before = &scene.followers[followers[at]];
        spec.kinds = before.kinds;
        From::Seq { seq: before.next_seq, seen: Some(before.seen()) }
    }

    /// Makes a spec that must be refused.
    fn spoil(&mut self, spec: &mut SubscribeSpec, head_seq: u64) {
        match self.random.below(8) {
            0 => spec.limit_chunks = Some(0),
            1 => spec.limit_chunks = Some(u32::MAX),
            2 => spec.limit_bytes = Some(0),
            3 => spec.kinds = Kinds::NONE,
            4 => spec.ack_window = Some(0),
            5 => {
                let delay_max = limits::COALESCE_DELAY_MAX + Duration::from_nanos(1);
                spec.coalesce = Some(Coalesce { delay_max, bytes_max: 1 });
            }
            6 => spec.from = From::Seq { seq: 0, seen: None },
            _ => spec.from = From::Seq { seq: head_seq + 2, seen: None },
        }
    }

    /// What was agreed is what was asked for, with the defaults filled in.
    fn check_granted(&mut self, follower: usize, spec: &SubscribeSpec) {
        let mut scene = self.shared.lock();
        let follower = &scene.followers[follower];
        let execution = &scene.executions[follower.execution];
        let ring = execution.ring.map_or(u32::MAX, |ring| ring.chunks_max);
        let limit = match (spec.limit_chunks, spec.policy) {
            (Some(limit), _) => limit,
            (None, Policy::Drop | Policy::DropOldest) => 10,
            (None, Policy::Buffer) => 100,
            (None, Policy::Disconnect) => 1_000,
            (None, Policy::Block | Policy::Conflate) => u32::MAX,
        };
        let limit_chunks = follower.limit_chunks(execution);
        let is_invalid = spec.limit_chunks == Some(0)
            || spec.limit_bytes == Some(0)
            || spec.kinds.is_empty()
            || spec.from == From::Seq { seq: 0, seen: None };
        let fits = follower.policy == spec.policy
            && follower.kinds == spec.kinds
            && follower.limit_bytes == spec.limit_bytes.unwrap_or(u64::MAX)
            && (ring == u32::MAX || limit_chunks == limit.min(ring));
        if !fits || is_invalid {
            let text = format!("{spec:?} was granted as {follower:?}");
            scene.fail(text);
        }
    }

    fn check_refused(
        &mut self,
        execution: usize,
        habitat: Habitat,
        spec: &SubscribeSpec,
        error: SubscribeError,
        status: Option<Status>,
    ) {
        let subscribers: u32 = self.statuses().iter().map(|status| status.subscriber_count).sum();
        let mut scene = self.shared.lock();
        let engine = self.plan.engine;
        let head_seq = status.as_ref().map_or(0, |status| status.head_seq);
        let (name, fits) = match error {
            SubscribeError::NotFound => {
                ("not found", scene.executions[execution].is_forgotten && status.is_none())
            }
            SubscribeError::Limit { limit_chunks, limit_chunks_max } => {
                let asked = spec.limit_chunks == Some(limit_chunks);
                ("limit", asked && (limit_chunks == 0 || limit_chunks > limit_chunks_max))
            }
            SubscribeError::Invalid { field } => {
                let fits = match field {
                    "limit_bytes" => spec.limit_bytes == Some(0),
                    "kinds" => spec.kinds.is_empty(),
                    "ack_window" => spec.ack_window == Some(0),
                    "coalesce.delay_max" => spec
                        .coalesce
                        .is_some_and(|coalesce| coalesce.delay_max > limits::COALESCE_DELAY_MAX),
                    "from" => matches!(spec.from, From::Seq { seq: 0, .. }),
                    _ => false,
                };
                ("invalid", fits)
            }
            SubscribeError::NotYet { next_seq } => {
                let beyond = matches!(spec.from, From::Seq { seq, .. } if seq > head_seq + 1);
                let no_ring = status.as_ref().is_some_and(|status| status.ring.is_none());
                let fits = next_seq == head_seq + 1 && beyond;
                ("not yet", fits || habitat == Habitat::Remote && no_ring)
            }
            SubscribeError::NoLongerHeld { tail_seq } => {
                let held = status.as_ref().map(|status| status.tail_seq);
                let before =
                    matches!(spec.from, From::Seq { seq, seen: None } if seq < tail_seq && seq > 1);
                ("no longer held", held == Some(tail_seq) && before)
            }
            SubscribeError::TooMany { subscribers_max } => {
                let here = status.as_ref().map_or(0, |status| status.subscriber_count);
                let of_execution = here >= engine.subscribers_per_execution_max
                    && subscribers_max == engine.subscribers_per_execution_max;
                let of_shard = subscribers >= engine.subscribers_max
                    && subscribers_max == engine.subscribers_max;
                ("too many", of_execution || of_shard)
            }
            SubscribeError::ShuttingDown => ("shutting down", scene.shutting_down),
        };
        scene.say(|| format!("subscription to {execution} refused: {error}"));
        if let Some(follower) = scene.joining.is_none().then(|| scene.followers.pop()).flatten() {
            // Granted, and taken back because there is no ring to read from yet.
            let index = follower.index;
            scene.executions[execution].followers.retain(|&each| each != index);
        }
        scene.coverage.count(&format!("subscribe refused: {name}"));
        if !fits {
            scene.fail(format!("{spec:?} of {execution} ({status:?}) was refused: {error:?}"));
        }
    }

    /// One of the subscribers does something.
    pub fn visit(&mut self, at: usize) {
        let now = self.now();
        if self.watchers[at].stuck_until > now {
            return;
        }
        if self.random.chance(self.plan.reader_stuck, 1_000) {
            let pause = Duration::from_millis(1 << self.random.between(0, 16));
            self.watchers[at].stuck_until = now + pause;
            self.shared.lock().coverage.count("reader stuck");
            return;
        }
        if self.random.chance(self.plan.connection_breaks, 1_000) {
            self.break_connection(at);
        } else if self.random.chance(self.plan.reader_leaves, 1_000) {
            self.unsubscribe(at);
            return;
        } else if self.random.chance(self.plan.reader_dies, 1_000) {
            self.die(at);
            return;
        }
        self.acknowledge(at);
        let is_slow = self.watchers[at].is_slow;
        let count = if is_slow { self.random.below(3) } else { 200 };
        for _ in 0..count {
            if !self.ask(at) {
                break;
            }
            if is_slow || self.random.chance(1, 3) {
                self.acknowledge(at);
            }
        }
        self.drop_if_done(at);
    }

    /// Has one that was given its end go.
    pub fn drop_if_done(&mut self, at: usize) {
        let follower = self.watchers[at].follower;
        let scene = self.shared.lock();
        let is_done =
            scene.followers[follower].ended.is_some() || scene.followers[follower].has_left;
        drop(scene);
        if is_done && self.random.chance(1, 2) {
            self.watchers.swap_remove(at);
        }
    }

    /// Asks once, and compares what comes with what is owed; `false` if nothing came.
    pub fn ask(&mut self, at: usize) -> bool {
        let index = self.watchers[at].follower;
        let (execution, id, ended) = {
            let scene = self.shared.lock();
            let follower = &scene.followers[index];
            let id = scene.executions[follower.execution].id;
            (follower.execution, id, follower.ended.is_some())
        };
        let status = self.shard.inspect(id).ok();
        let mut guard = self.shared.lock();
        let scene = &mut *guard;
        let follower = &mut scene.followers[index];
        let model = &scene.executions[execution];
        let held = match (&status, follower.habitat) {
            (None, _) => Held { tail_seq: 1, head_seq: model.head_seq() },
            (Some(status), Habitat::Remote) => {
                Held { tail_seq: status.tail_seq, head_seq: model.head_seq() }
            }
            (Some(status), _) => Held { tail_seq: status.tail_seq, head_seq: status.head_seq },
        };
        let before = (follower.stop_seq, follower.granted_seq);
        let gone = follower.gone;
        let expected = match ended {
            true => Expected::Nothing,
            false => follower.expect(model, held),
        };
        drop(guard);
        let shared = self.shared.clone();
        let delivery = match &mut self.watchers[at].seat {
            Seat::Closure => return false,
            Seat::Polled(polled) => self.shard.poll(polled),
            Seat::Remote(subscriber) => subscriber.poll(),
        };
        let got = Got::of(delivery.as_ref());
        let mut guard = shared.lock();
        let scene = &mut *guard;
        if !ended {
            let window = (scene.followers[index].stop_seq, scene.followers[index].granted_seq);
            scene.say(|| format!("    {index} asks: {held:?} {before:?} {expected:?} {window:?}"));
            let (model, now) = (&scene.executions[execution], scene.now);
            let follower = &mut scene.followers[index];
            if !matches!((expected, got), (Expected::Chunk(_), Got::Chunk(_) | Got::Nothing)) {
                (follower.stop_seq, follower.granted_seq) = match got {
                    Got::Gap(gap) if gap.reason == GapReason::Lag => (None, before.1),
                    Got::Gap(_) => (None, 0),
                    _ => before,
                };
            }
            if let Err(text) = follower.compare(model, (held, gone), (expected, got), now) {
                let (policy, kinds) = (follower.policy, follower.kinds);
                let whole = format!("{follower:?}");
                let text =
                    format!("subscriber {index} of {execution} ({policy}, {kinds:?}): {text}");
                scene.say(|| whole);
                scene.fail(text);
            }
        }
        if let Some(delivery) = &delivery {
            scene.given(index, delivery);
        }
        delivery.is_some()
    }

    /// Acknowledges something, now and then nonsense.
    fn acknowledge(&mut self, at: usize) {
        let index = self.watchers[at].follower;
        let scene = self.shared.lock();
        let follower = &scene.followers[index];
        let (window, subscriber) = (follower.ack_window, follower.subscriber);
        let (acked_seq, dealt_seq) = (follower.acked_seq, follower.dealt_seq);
        let is_attached = follower.is_attached();
        let has_ended = follower.gone.is_some();
        let is_local = follower.habitat != Habitat::Remote;
        drop(scene);
        let is_misuse = self.random.chance(self.plan.misuse, 1_000);
        if !is_local || window.is_none() && !is_misuse || !is_attached && !is_misuse {
            return;
        }
        let mut seq = self.random.between(acked_seq, dealt_seq.max(acked_seq));
        if self.random.chance(1, 2) {
            seq = dealt_seq;
        }
        if is_misuse {
            seq += 1_000_000;
        }
        if !is_misuse {
            // What it makes room for comes before the answer.
            let now = self.now();
            self.shared.lock().followers[index].acknowledge(seq, now);
        }
        let result = self.shard.acknowledge(subscriber, seq);
        let mut scene = self.shared.lock();
        scene.say(|| format!("{index} acknowledges {seq}: {result:?}"));
        let fits = match result {
            Ok(()) => {
                scene.coverage.count("acknowledged");
                window.is_some() && !has_ended && !is_misuse
            }
            Err(AcknowledgeError::NotFound) => {
                scene.coverage.count("acknowledge refused: not found");
                has_ended
            }
            Err(AcknowledgeError::NotAsked) => {
                scene.coverage.count("acknowledge refused: not asked");
                window.is_none()
            }
            Err(AcknowledgeError::NotGiven { .. }) => {
                scene.coverage.count("acknowledge refused: not given");
                is_misuse
            }
        };
        if !fits {
            scene.fail(format!("subscriber {index} acknowledged {seq}: {result:?}"));
        }
    }

    /// Breaks a connection, or mends a broken one.
    fn break_connection(&mut self, at: usize) {
        let index = self.watchers[at].follower;
        let scene = self.shared.lock();
        let follower = &scene.followers[index];
        let (subscriber, lost_at) = (follower.subscriber, follower.lost_at);
        let can_break = follower.habitat != Habitat::Remote && follower.is_attached();
        drop(scene);
        if lost_at.is_some() {
            self.mend(at);
        } else if can_break {
            let now = self.now();
            let mut scene = self.shared.lock();
            scene.followers[index].lost_at = Some(now);
            scene.coverage.count("connection broke");
            scene.say(|| format!("the connection of {index} breaks"));
            drop(scene);
            self.shard.lose(subscriber);
        }
    }

    /// The connection is back: the place is still there, or it is known why not.
    pub fn mend(&mut self, at: usize) {
        let index = self.watchers[at].follower;
        let mut scene = self.shared.lock();
        let follower = &mut scene.followers[index];
        let subscriber = follower.subscriber;
        if follower.lost_at.is_none() || follower.has_left {
            return;
        }
        let gone_before = follower.gone;
        if gone_before.is_none() {
            follower.lost_at = None; // What waited comes at once.
            follower.free_since = self.world.now();
        }
        scene.say(|| format!("the connection of {index} is back"));
        drop(scene);
        let result = self.shard.reattach(subscriber);
        let mut scene = self.shared.lock();
        scene.coverage.count(match result {
            Ok(()) => "connection came back",
            Err(_) => "connection came back too late",
        });
        if result.is_ok() != gone_before.is_none() {
            scene.fail(format!("subscriber {index} came back: {result:?}; gone {gone_before:?}"));
        }
    }

    fn unsubscribe(&mut self, at: usize) {
        let index = self.watchers[at].follower;
        let scene = self.shared.lock();
        let follower = &scene.followers[index];
        let (subscriber, gone) = (follower.subscriber, follower.gone);
        let counted = (follower.given, follower.missed);
        let is_remote = follower.habitat == Habitat::Remote;
        scene.say(|| format!("{index} leaves"));
        drop(scene);
        if is_remote {
            self.die(at); // Its owner is on another thread: it drops it.
            return;
        }
        let result = self.shard.unsubscribe(subscriber);
        let mut scene = self.shared.lock();
        scene.coverage.count(if result.is_ok() { "reader left" } else { "unsubscribe refused" });
        let fits = match result {
            Ok(end) => {
                scene.followers[index].has_left = true;
                gone.is_none() && (end.given, end.missed) == counted
            }
            Err(_) => gone.is_some(),
        };
        if !fits {
            scene.fail(format!("subscriber {index} left: {result:?} after {counted:?}, {gone:?}"));
        }
        drop(scene);
        if gone.is_none()
            && let Seat::Polled(polled) = &mut self.watchers[at].seat
        {
            let came = self.shard.poll(polled).is_some();
            if came {
                self.shared.lock().fail(format!("subscriber {index} left, and is given something"));
            }
            self.watchers.swap_remove(at);
        }
    }

    /// Leaves without a word: a closure's connection breaks for good, the others are dropped.
    fn die(&mut self, at: usize) {
        let index = self.watchers[at].follower;
        let mut scene = self.shared.lock();
        scene.coverage.count("reader died");
        scene.say(|| format!("{index} dies"));
        let subscriber = scene.followers[index].subscriber;
        let is_closure = scene.followers[index].habitat == Habitat::Closure;
        if is_closure && scene.followers[index].lost_at.is_none() {
            scene.followers[index].lost_at = Some(self.world.now());
        }
        if !is_closure {
            scene.followers[index].has_left = true;
        }
        drop(scene);
        if is_closure {
            self.shard.lose(subscriber);
        }
        self.watchers.swap_remove(at);
    }

    /// After the faults: everybody is there, quick and attentive. `true` if anybody got anything.
    pub fn visit_all(&mut self) -> bool {
        let mut moved = false;
        for at in (0..self.watchers.len()).rev() {
            self.watchers[at].stuck_until = Instant::ZERO;
            self.mend(at);
            self.acknowledge_all(at);
            for _ in 0..1_000 {
                if !self.ask(at) {
                    break;
                }
                moved = true;
                self.acknowledge_all(at);
            }
        }
        moved
    }

    fn acknowledge_all(&mut self, at: usize) {
        let index = self.watchers[at].follower;
        let scene = self.shared.lock();
        let follower = &scene.followers[index];
        let (subscriber, seq) = (follower.subscriber, follower.dealt_seq);
        let waits = follower.ack_window.is_some() && follower.acked_seq < seq;
        let is_due = waits && follower.is_attached();
        drop(scene);
        if is_due {
            let now = self.now();
            self.shared.lock().followers[index].acknowledge(seq, now);
            if let Err(error) = self.shard.acknowledge(subscriber, seq) {
                self.shared.lock().fail(format!("{index} acknowledged {seq}: {error:?}"));
            }
        }
    }

    /// Everybody who looks has had its end.
    pub fn check_ends(&mut self) {
        let mut scene = self.shared.lock();
        let open = scene.followers.iter().find(|follower| {
            let is_told = follower.ended.is_some() || follower.has_left;
            let died = follower.habitat == Habitat::Closure && follower.lost_at.is_some();
            !is_told && !died
        });
        if let Some(follower) = open {
            let text = format!("subscriber {} never had its end: {follower:?}", follower.index);
            scene.fail(text);
        }
    }
}
