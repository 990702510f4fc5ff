//! Subscribers as actors. They poll (often, seldom, or not for a while), acknowledge, lose their
//! connection and come back, and leave with or without a request. They join in `joins.rs`.

use std::time::Duration;

use crate::base::Instant;
use crate::engine::{AcknowledgeError, Status};
use crate::shard::{Polled, Subscriber};
use crate::sim::between::ReaderSleep;
#[cfg(feature = "server")]
use crate::sim::door::{DoorReader, held_for};
use crate::sim::expect::{Expected, Got, Held};
use crate::sim::follower::Habitat;
use crate::sim::scene::SharedScene;
use crate::sim::stage::Stage;
use crate::stream::GapReason;

/// The owner of one subscriber.
pub(super) struct Watcher {
    pub follower: usize,
    pub seat: Seat,
    /// True if it polls for one delivery at a time, when it is its turn at all.
    pub is_slow: bool,
    pub stuck_until: Instant,
    pub rest: ReaderSleep,
}

/// The owner's handle of its subscription.
pub(super) enum Seat {
    Closure,
    Polled(Polled),
    Remote(Box<Subscriber>),
    #[cfg(feature = "server")]
    Door(Box<DoorReader>),
}

/// The chunks that are held for a subscriber in an execution's own ring.
fn held_by(status: Option<&Status>, habitat: Habitat, head_seq: u64) -> Held {
    match status {
        None => Held { tail_seq: 1, head_seq },
        Some(status) if habitat.is_elsewhere() => Held { tail_seq: status.tail_seq, head_seq },
        Some(status) => Held { tail_seq: status.tail_seq, head_seq: status.head_seq },
    }
}

/// The owners of all subscribers.
#[derive(Default)]
pub(super) struct Watchers {
    pub list: Vec<Watcher>,
}

impl Watchers {
    /// Lets one of the subscribers act.
    pub fn visit(&mut self, stage: &mut Stage, at: usize) {
        let now = stage.now();
        if self.list[at].stuck_until > now || self.list[at].sleeps() {
            return;
        }
        if stage.random.chance(stage.plan.reader_stuck, 1_000) {
            let pause = Duration::from_millis(1 << stage.random.between(0, 16));
            self.list[at].stuck_until = now + pause;
            stage.shared.lock().coverage.count("reader stuck");
            return;
        }
        let (is_lost, replays) = {
            let follower = &stage.shared.lock().followers[self.list[at].follower];
            (follower.lost_at.is_some(), follower.replays)
        };
        // A subscriber that may come back on another connection loses this one more often.
        let breaks = stage.plan.connection_breaks.max(if replays { 100 } else { 0 });
        if is_lost {
            if stage.random.chance(1, if replays { 16 } else { 4 }) {
                self.mend(stage, at);
            }
        } else if stage.random.chance(breaks, 1_000) {
            self.break_connection(stage, at);
        } else if stage.random.chance(stage.plan.reader_leaves, 1_000) {
            self.unsubscribe(stage, at);
            return;
        } else if stage.random.chance(stage.plan.reader_dies, 1_000) {
            self.die(stage, at);
            return;
        }
        self.acknowledge(stage, at);
        let is_slow = self.list[at].is_slow;
        let count = if is_slow { stage.random.below(3) } else { 200 };
        for _ in 0..count {
            if !self.ask(stage, at) {
                self.list[at].lie_down(stage);
                break;
            }
            if is_slow || stage.random.chance(1, 3) {
                self.acknowledge(stage, at);
            }
        }
        self.drop_if_done(stage, at);
    }

    /// Removes one that has received its end, with some chance.
    pub fn drop_if_done(&mut self, stage: &mut Stage, at: usize) {
        let follower = self.list[at].follower;
        let scene = stage.shared.lock();
        let is_done =
            scene.followers[follower].ended.is_some() || scene.followers[follower].has_left;
        drop(scene);
        if is_done && stage.random.chance(1, 2) {
            self.list.swap_remove(at);
        }
    }

    /// Polls once, and compares the delivery with the one that is owed. Returns false if nothing
    /// came.
    pub fn ask(&mut self, stage: &mut Stage, at: usize) -> bool {
        if self.list[at].sleeps() {
            return false;
        }
        let index = self.list[at].follower;
        let (execution, id, ended) = {
            let scene = stage.shared.lock();
            let follower = &scene.followers[index];
            let id = scene.executions[follower.execution].id;
            (follower.execution, id, follower.ended.is_some())
        };
        let status = stage.shard.inspect(id).ok();
        let mut guard = stage.shared.lock();
        let scene = &mut *guard;
        let follower = &mut scene.followers[index];
        let model = &scene.executions[execution];
        let held = match &self.list[at].seat {
            #[cfg(feature = "server")]
            Seat::Door(reader) => held_for(reader, model),
            #[cfg(feature = "server")]
            Seat::Remote(subscriber) if model.is_in_process() && status.is_some() => {
                held_for(subscriber, model)
            }
            _ => held_by(status.as_ref(), follower.habitat, model.head_seq()),
        };
        let before = (follower.stop_seq, follower.granted_seq);
        let gone = follower.gone;
        let expected = match ended {
            true => Expected::Nothing,
            false => follower.expect(model, held),
        };
        drop(guard);
        let shared = stage.shared.clone();
        let delivery = match &mut self.list[at].seat {
            Seat::Closure => return false,
            Seat::Polled(polled) => stage.shard.poll(polled),
            Seat::Remote(subscriber) => subscriber.poll(),
            #[cfg(feature = "server")]
            Seat::Door(reader) => reader.try_poll().unwrap_or_else(|flaw| {
                shared.lock().fail(format!("subscriber {index} finds a flaw: {flaw:?}"));
                None
            }),
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

    /// Acknowledges a chunk, and now and then an invalid one.
    fn acknowledge(&mut self, stage: &mut Stage, at: usize) {
        let index = self.list[at].follower;
        let scene = stage.shared.lock();
        let follower = &scene.followers[index];
        let (window, subscriber) = (follower.ack_window, follower.subscriber);
        let (acked_seq, dealt_seq) = (follower.acked_seq, follower.dealt_seq);
        let is_attached = follower.is_attached();
        let has_ended = follower.gone.is_some();
        let is_local = !follower.habitat.is_elsewhere();
        drop(scene);
        let is_misuse = stage.random.chance(stage.plan.misuse, 1_000);
        if !is_local || window.is_none() && !is_misuse || !is_attached && !is_misuse {
            return;
        }
        let mut seq = stage.random.between(acked_seq, dealt_seq.max(acked_seq));
        if stage.random.chance(1, 2) {
            seq = dealt_seq;
        }
        if is_misuse {
            seq += 1_000_000;
        }
        if !is_misuse {
            // Deliveries that it makes room for come before the reply.
            let now = stage.now();
            stage.shared.lock().acknowledge(index, seq, now);
        }
        let result = stage.shard.acknowledge(subscriber, seq);
        let mut scene = stage.shared.lock();
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

    /// Breaks a connection.
    fn break_connection(&mut self, stage: &mut Stage, at: usize) {
        let index = self.list[at].follower;
        let scene = stage.shared.lock();
        let follower = &scene.followers[index];
        let subscriber = follower.subscriber;
        let can_break = !follower.habitat.is_elsewhere() && follower.is_attached();
        drop(scene);
        if can_break {
            let now = stage.now();
            let mut scene = stage.shared.lock();
            scene.followers[index].lost_at = Some(now);
            scene.coverage.count("connection broke");
            scene.say(|| format!("the connection of {index} breaks"));
            drop(scene);
            stage.shard.lose(subscriber);
        }
    }

    /// Restores the connection: the subscriber still has its place, or the reason of the loss is
    /// known.
    pub fn mend(&mut self, stage: &mut Stage, at: usize) {
        let index = self.list[at].follower;
        let mut scene = stage.shared.lock();
        let follower = &mut scene.followers[index];
        let subscriber = follower.subscriber;
        if follower.lost_at.is_none() || follower.has_left {
            return;
        }
        let gone_before = follower.gone;
        if gone_before.is_none() {
            follower.lost_at = None; // Waiting chunks come at once.
            follower.free_since = stage.world.now();
        }
        scene.say(|| format!("the connection of {index} is back"));
        drop(scene);
        let result = stage.shard.reattach(subscriber);
        let mut scene = stage.shared.lock();
        scene.coverage.count(match result {
            Ok(()) => "connection came back",
            Err(_) => "connection came back too late",
        });
        if result.is_ok() != gone_before.is_none() {
            scene.fail(format!("subscriber {index} came back: {result:?}; gone {gone_before:?}"));
        }
    }

    fn unsubscribe(&mut self, stage: &mut Stage, at: usize) {
        let index = self.list[at].follower;
        let scene = stage.shared.lock();
        let follower = &scene.followers[index];
        let (subscriber, gone) = (follower.subscriber, follower.gone);
        let counted = (follower.given, follower.missed);
        let is_remote = follower.habitat.is_elsewhere();
        scene.say(|| format!("{index} leaves"));
        drop(scene);
        if is_remote {
            self.die(stage, at); // Its owner is on another thread, and drops it.
            return;
        }
        let result = stage.shard.unsubscribe(subscriber);
        let mut scene = stage.shared.lock();
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
            && let Seat::Polled(polled) = &mut self.list[at].seat
        {
            let came = stage.shard.poll(polled).is_some();
            if came {
                stage
                    .shared
                    .lock()
                    .fail(format!("subscriber {index} left, and is given something"));
            }
            self.list.swap_remove(at);
        }
    }

    /// Leaves without a request: a closure's connection breaks for good, the others are dropped.
    fn die(&mut self, stage: &mut Stage, at: usize) {
        let index = self.list[at].follower;
        let mut scene = stage.shared.lock();
        scene.coverage.count("reader died");
        scene.say(|| format!("{index} dies"));
        let subscriber = scene.followers[index].subscriber;
        let is_closure = scene.followers[index].habitat == Habitat::Closure;
        if is_closure && scene.followers[index].lost_at.is_none() {
            scene.followers[index].lost_at = Some(stage.world.now());
        }
        if !is_closure {
            scene.followers[index].has_left = true;
        }
        drop(scene);
        if is_closure {
            stage.shard.lose(subscriber);
        }
        self.list.swap_remove(at);
    }

    /// Lets all subscribers poll quickly, after the faults. Returns true if any got a delivery.
    pub fn visit_all(&mut self, stage: &mut Stage) -> bool {
        let mut moved = false;
        for at in (0..self.list.len()).rev() {
            self.list[at].stuck_until = Instant::ZERO;
            self.mend(stage, at);
            self.acknowledge_all(stage, at);
            for _ in 0..1_000 {
                if !self.ask(stage, at) {
                    break;
                }
                moved = true;
                self.acknowledge_all(stage, at);
            }
        }
        moved
    }

    fn acknowledge_all(&mut self, stage: &mut Stage, at: usize) {
        let index = self.list[at].follower;
        let scene = stage.shared.lock();
        let follower = &scene.followers[index];
        let (subscriber, seq) = (follower.subscriber, follower.dealt_seq);
        let waits = follower.ack_window.is_some() && follower.acked_seq < seq;
        let is_due = waits && follower.is_attached();
        drop(scene);
        if is_due {
            let now = stage.now();
            stage.shared.lock().acknowledge(index, seq, now);
            if let Err(error) = stage.shard.acknowledge(subscriber, seq) {
                stage.shared.lock().fail(format!("{index} acknowledged {seq}: {error:?}"));
            }
        }
    }
}

/// Checks that every subscriber that still polls has received its end.
pub(super) fn check_ends(shared: &SharedScene) {
    let mut scene = shared.lock();
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
