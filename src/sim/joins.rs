//! Subscribers that join: their requests, the outcome, and whether the grant or the reason of the
//! refusal is right.

use std::time::Duration;

use crate::base::{ExecutionId, Instant};
use crate::engine::{Coalesce, From, Status, SubscribeError, SubscribeSpec, SubscriberPlace};
use crate::limits;
use crate::shard::Delivery;
use crate::sim::between::ReaderSleep;
#[cfg(feature = "server")]
use crate::sim::door::held_for;
use crate::sim::follower::Habitat;
use crate::sim::plan::pick;
use crate::sim::scene::{Joining, SharedScene};
use crate::sim::stage::Stage;
use crate::sim::watcher::{Seat, Watcher};
use crate::stream::{Kind, Kinds, Policy};

/// A spec, and its expected outcome.
struct JoinRequest {
    spec: SubscribeSpec,
    habitat: Habitat,
    headers_only: bool,
    /// True if all chunks that it requests must still be held.
    is_promised: bool,
}

impl Stage {
    /// Subscribes to an execution. Returns the owner of the subscriber, if it was granted.
    pub fn subscribe(&mut self) -> Option<Watcher> {
        let count = self.shared.lock().executions.len() as u64;
        let is_misuse = self.random.chance(self.plan.misuse, 1_000);
        // Mostly one of the newest, which still publishes.
        let back = if is_misuse { count } else { count.min(12) };
        let execution = (count - 1 - self.random.below(back)) as usize;
        let returning = self.draw_returning();
        let execution = returning.as_ref().map_or(execution, |(execution, _)| *execution);
        let id = self.shared.lock().executions[execution].id;
        let status = self.shard.inspect(id);
        self.note_ring(execution, status.as_ref().ok());
        let wish = match returning {
            Some((_, wish)) => wish,
            None => self.draw_wish(execution, status.as_ref().ok()),
        };
        let JoinRequest { spec, habitat, headers_only, is_promised } = wish;
        self.shared.lock().taken_over = None;
        self.shared.lock().joining = Some(Joining {
            execution,
            habitat,
            ack_window: spec.ack_window.filter(|_| !habitat.is_elsewhere()),
            coalesce: spec.coalesce.filter(|_| !habitat.is_elsewhere()),
            wants_whole_ring: spec.policy == Policy::Block && spec.limit_chunks.is_none(),
            replays: spec.replays && !habitat.is_elsewhere() && spec.policy == Policy::Block,
            is_promised,
            came_tail_seq: status.as_ref().map_or(1, |status| status.tail_seq),
        });
        let follower = self.shared.lock().followers.len();
        let preempt = self.hurry_process(execution);
        let granted = self.take_seat((execution, id), follower, habitat, (spec, headers_only));
        let is_hurried = std::mem::replace(&mut self.shared.lock().preempt, preempt) != preempt;
        let mut watcher = None;
        match granted {
            Ok(seat) => {
                let status = self.shard.inspect(id).ok();
                self.note_ring(execution, status.as_ref()); // It may have grown for this reader.
                self.note_backlog(execution, follower, &seat);
                self.check_granted(follower, &spec, headers_only, status);
                self.check_taken_over(&spec, is_promised);
                let is_slow = self.random.chance(self.plan.slow_readers, 1_000);
                let (stuck_until, rest) = (Instant::ZERO, ReaderSleep::Awake);
                watcher = Some(Watcher { follower, seat, is_slow, stuck_until, rest });
            }
            Err(SubscribeError::NoLongerHeld { tail_seq }) if is_promised => {
                let text = format!("{spec:?} comes back, and what was kept begins at {tail_seq}");
                self.shared.lock().fail(text);
            }
            Err(error) => {
                // The shard takes chunks over before it answers, so the tail may have moved.
                let is_taken_over = habitat.is_elsewhere()
                    || self.shared.lock().executions[execution].is_in_process();
                let status = if is_taken_over { self.shard.inspect(id) } else { status };
                self.check_refused(execution, habitat, &spec, error, status.ok());
            }
        }
        self.shared.lock().joining = None;
        if is_hurried && self.random.chance(1, 4) {
            self.cancel(execution);
        }
        watcher
    }

    /// Asks the shard for a subscriber of that habitat.
    fn take_seat(
        &mut self,
        execution: (usize, ExecutionId),
        follower: usize,
        habitat: Habitat,
        (spec, headers_only): (SubscribeSpec, bool),
    ) -> Result<Seat, SubscribeError> {
        let (_, id) = execution;
        match habitat {
            Habitat::Closure => {
                let closure = listener(&self.shared, follower, self.plan.closure_panics);
                self.shard.subscribe(id, spec, closure).map(|_| Seat::Closure)
            }
            Habitat::Polled => self.shard.subscribe_polled(id, spec).map(Seat::Polled),
            Habitat::Remote => self.shard.subscribe_remote(id, spec).map(|mut subscriber| {
                subscriber.headers_only(headers_only);
                Seat::Remote(Box::new(subscriber))
            }),
            #[cfg(feature = "server")]
            Habitat::Door => {
                let (lines, world) = (&self.lines, &self.world);
                let reader = lines.read(&mut self.shard, execution, spec, world);
                reader.map(|mut reader| {
                    reader.headers_only(headers_only);
                    Seat::Door(Box::new(reader))
                })
            }
        }
    }

    /// Now and then lets a producer in another process write all the time while somebody joins: it
    /// writes under a gate that the subscriber narrows. Returns the chance of before.
    fn hurry_process(&mut self, execution: usize) -> u64 {
        let mut scene = self.shared.lock();
        let preempt = scene.preempt;
        let is_meant = preempt > 0 && scene.executions[execution].is_in_process();
        if is_meant && self.random.chance(1, 2) {
            scene.preempt = 1_000;
        }
        preempt
    }

    /// Notes the backlog of a reader that reads a ring by itself, which is no lag.
    fn note_backlog(&mut self, execution: usize, follower: usize, seat: &Seat) {
        let mut guard = self.shared.lock();
        let scene = &mut *guard;
        let joined = &mut scene.followers[follower];
        let model = &scene.executions[execution];
        match seat {
            Seat::Remote(subscriber) => joined.lags_from(subscriber.lag_begins(), model),
            #[cfg(feature = "server")]
            Seat::Door(reader) => {
                joined.came_tail_seq = held_for(reader, model).tail_seq;
                joined.lags_from(reader.lag_begins(), model);
            }
            Seat::Closure | Seat::Polled(_) => {}
        }
    }

    fn draw_wish(&mut self, execution: usize, status: Option<&Status>) -> JoinRequest {
        let plan = self.plan.clone();
        let random = &mut self.random;
        let habitats = [Habitat::Closure, Habitat::Polled, Habitat::Remote];
        let habitat = habitats[pick(random, &plan.places)];
        #[cfg(feature = "server")]
        let habitat = match habitat {
            Habitat::Remote if random.chance(plan.doors, 1_000) => Habitat::Door,
            habitat => habitat,
        };
        let policy = Policy::ALL[random.below(7) as usize];
        let mut spec =
            SubscribeSpec { policy, place: SubscriberPlace::Local, ..Default::default() };
        spec.replays = random.chance(plan.replays, 1_000);
        if spec.replays && random.chance(1, 2) {
            spec.policy = Policy::Block; // It has no meaning otherwise.
        }
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
        let headers_only = self.random.chance(plan.headers_only, 1_000);
        JoinRequest { spec, habitat, headers_only, is_promised: false }
    }

    /// Now and then makes a subscriber whose connection broke come back on another one, for a part
    /// of its chunks. It requests chunks that must still be held, or more than that with its
    /// totals.
    fn draw_returning(&mut self) -> Option<(usize, JoinRequest)> {
        if !self.random.chance(1, 2) {
            return None;
        }
        let scene = self.shared.lock();
        let lost = scene.followers.iter().filter_map(|follower| {
            let kept_seq = follower.kept_seq(&scene.executions[follower.execution])?;
            Some((follower, kept_seq))
        });
        let lost: Vec<_> = lost.collect();
        if lost.is_empty() {
            return None;
        }
        let (follower, kept_seq) = lost[self.random.below(lost.len() as u64) as usize];
        let execution = &scene.executions[follower.execution];
        let is_promised = self.random.chance(3, 4);
        let first_seq = if is_promised { kept_seq } else { 1 };
        let seq = self.random.between(first_seq, follower.next_seq);
        let seen = (!is_promised).then(|| execution.totals(follower.kinds, 1, seq - 1));
        let spec = SubscribeSpec {
            policy: Policy::Block,
            limit_chunks: Some(follower.limit_chunks(execution)),
            limit_bytes: (follower.limit_bytes != u64::MAX).then_some(follower.limit_bytes),
            from: From::Seq { seq, seen },
            ack_window: follower.ack_window,
            replays: true,
            ..Default::default()
        };
        let habitat = [Habitat::Closure, Habitat::Polled][self.random.below(2) as usize];
        Some((follower.execution, JoinRequest { spec, habitat, headers_only: false, is_promised }))
    }

    /// Checks which subscriber took a broken connection's place: a subscriber that came back, and
    /// no other.
    fn check_taken_over(&mut self, spec: &SubscribeSpec, is_promised: bool) {
        let mut scene = self.shared.lock();
        let seq = if let From::Seq { seq, .. } = spec.from { Some(seq) } else { None };
        if is_promised {
            scene.coverage.count("came back for what is kept");
        }
        let may = spec.replays && spec.policy == Policy::Block;
        let fits = match (scene.taken_over, seq) {
            (None, _) => !is_promised,
            (Some(lost), Some(seq)) => {
                let lost = &scene.followers[lost];
                // Chunks of other kinds may lie behind the last one that it was given.
                let is_behind = seq <= lost.next_seq || !lost.kinds.is_all();
                may && lost.kinds == spec.kinds && lost.policy == spec.policy && is_behind
            }
            (Some(_), None) => false,
        };
        if !fits {
            let text = format!("{spec:?} took the place of {:?}", scene.taken_over);
            scene.fail(text);
        }
    }

    /// Continues where another subscriber of the same execution has stopped.
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

    /// Checks that the grant equals the request, with the defaults filled in.
    fn check_granted(
        &mut self,
        follower: usize,
        spec: &SubscribeSpec,
        headers_only: bool,
        status: Option<Status>,
    ) {
        let mut scene = self.shared.lock();
        let is_remote = scene.followers[follower].habitat.is_elsewhere();
        scene.followers[follower].is_joining = false;
        scene.followers[follower].headers_only = headers_only && is_remote;
        if headers_only && is_remote {
            scene.coverage.count("headers only");
        }
        match spec.from {
            From::Live => scene.coverage.count("from live"),
            From::Seq { seen: Some(_), .. } => scene.coverage.count("from seq with what was seen"),
            From::Seq { .. } => scene.coverage.count("from seq"),
            From::Start => {}
        }
        let follower = &scene.followers[follower];
        let over = status.filter(|status| status.state.is_over());
        let next_seq = over.map_or(u64::MAX, |status| status.head_seq + 1);
        let asked_seq = match spec.from {
            From::Start => Some(1),
            From::Seq { seq, .. } => Some(seq.min(next_seq)), // Nothing follows the end.
            From::Live => None, // The model may be ahead of the shard.
        };
        let (first_seq, index) = (follower.first_seq, follower.execution);
        if asked_seq.is_some_and(|asked_seq| asked_seq != first_seq) {
            scene.fail(format!("a subscriber of {index} begins at {first_seq}: {spec:?}"));
            return;
        }
        let execution = &scene.executions[follower.execution];
        let ring = execution.ring.map_or(u32::MAX, |ring| ring.chunks_max);
        let limit = match (spec.limit_chunks, spec.policy) {
            (Some(limit), _) => limit,
            (None, Policy::Drop | Policy::DropOldest) => 10,
            (None, Policy::Buffer) => 100,
            (None, Policy::Disconnect) => 1_000,
            (None, Policy::Block | Policy::Conflate | Policy::Replay) => u32::MAX,
        };
        let limit_chunks = follower.granted_chunks(execution);
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
        let name = match error {
            SubscribeError::NotFound => "not found",
            SubscribeError::Limit { .. } => "limit",
            SubscribeError::Invalid { .. } => "invalid",
            SubscribeError::NotYet { .. } => "not yet",
            SubscribeError::NoLongerHeld { .. } => "no longer held",
            SubscribeError::TooMany { .. } => "too many",
            SubscribeError::NotElsewhere => "not elsewhere",
            SubscribeError::ShuttingDown => "shutting down",
        };
        let fits = match (error, &status) {
            (SubscribeError::ShuttingDown, _) => scene.shutting_down,
            (SubscribeError::NotFound, status) => {
                scene.executions[execution].is_forgotten && status.is_none()
            }
            (SubscribeError::TooMany { subscribers_max }, Some(status)) => {
                let here_max = engine.subscribers_per_execution_max;
                let is_full = status.subscriber_count >= here_max && subscribers_max == here_max;
                let all_max = engine.subscribers_max;
                is_full || subscribers >= all_max && subscribers_max == all_max
            }
            (SubscribeError::NotYet { next_seq: 1 }, Some(status)) if status.ring.is_none() => {
                habitat.is_elsewhere() || is_refused_rightly(spec, error, status)
            }
            (SubscribeError::NotYet { next_seq: 1 }, Some(status))
                if habitat.is_elsewhere() && scene.executions[execution].is_in_process() =>
            {
                status.head_seq == 0 // It may not have mapped its ring.
            }
            (error, Some(status)) => is_refused_rightly(spec, error, status),
            (_, None) => false,
        };
        scene.say(|| format!("subscription to {execution} refused: {error}"));
        if scene.joining.is_none()
            && let Some(follower) = scene.followers.pop()
        {
            // Granted, and withdrawn because no ring exists yet to read from.
            scene.executions[execution].followers.retain(|&each| each != follower.index);
        }
        scene.coverage.count(&format!("subscribe refused: {name}"));
        if !fits {
            scene.fail(format!("{spec:?} of {execution} ({status:?}) was refused: {error:?}"));
        }
    }
}

/// A closure that checks every delivery. A thread may run meanwhile, and the closure may panic.
fn listener(
    shared: &SharedScene,
    follower: usize,
    panics: u64,
) -> impl FnMut(&Delivery<'_>) + 'static {
    let shared = shared.clone();
    move |delivery| {
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
            std::panic::resume_unwind(Box::new("drawn to panic")); // Prints nothing on stderr.
        }
    }
}

/// True if the spec or the status explains this refusal.
fn is_refused_rightly(spec: &SubscribeSpec, error: SubscribeError, status: &Status) -> bool {
    match error {
        SubscribeError::Limit { limit_chunks, limit_chunks_max } => {
            spec.limit_chunks == Some(limit_chunks)
                && (limit_chunks == 0 || limit_chunks > limit_chunks_max)
        }
        SubscribeError::Invalid { field: "limit_bytes" } => spec.limit_bytes == Some(0),
        SubscribeError::Invalid { field: "kinds" } => spec.kinds.is_empty(),
        SubscribeError::Invalid { field: "ack_window" } => spec.ack_window == Some(0),
        SubscribeError::Invalid { field: "coalesce.delay_max" } => {
            spec.coalesce.is_some_and(|wish| wish.delay_max > limits::COALESCE_DELAY_MAX)
        }
        SubscribeError::Invalid { field: "from" } => matches!(spec.from, From::Seq { seq: 0, .. }),
        SubscribeError::NotYet { next_seq } => {
            next_seq == status.head_seq + 1
                && matches!(spec.from, From::Seq { seq, .. } if seq > next_seq)
                && !status.state.is_over()
        }
        SubscribeError::NoLongerHeld { tail_seq } => {
            tail_seq == status.tail_seq
                && matches!(spec.from, From::Seq { seq, seen: None } if seq > 1 && seq < tail_seq)
        }
        _ => false,
    }
}
