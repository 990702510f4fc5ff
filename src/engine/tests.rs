//! The engine alone: events in, actions out. The seeded simulator covers far more. Each of these
//! tests states, in one sentence, a behaviour that a reader should be able to rely on.

use crate::stream::{
    DetachReason, EndState, ExecutionState, GapReason, Kind, Measure, Outcome, Policy,
    ProgressReport, Totals,
};
use std::time::Duration;

use super::*;
use crate::base::ExecutionId;

pub(super) const RING: RingFacts =
    RingFacts { slot_count: 16, chunks_max: 14, chunk_bytes_max: 512, data_bytes: 2_048 };

pub(super) struct TestEngine {
    pub engine: Engine,
    now: Instant,
    actions: Vec<Action>,
    pub leases: u32,
    /// True if no ring that is left is as large as requested.
    has_small_rings: bool,
    /// True if the disk keeps no end by itself.
    pub is_disk_slow: bool,
}

impl TestEngine {
    pub fn new(executions_max: u32, leases: u32) -> TestEngine {
        let limits = EngineLimits { executions_max, queued_max: 2, ..Default::default() };
        let engine = Engine::new(limits, Instant::ZERO);
        TestEngine {
            engine,
            now: Instant::ZERO,
            actions: Vec::new(),
            leases,
            has_small_rings: false,
            is_disk_slow: false,
        }
    }

    pub fn handle(&mut self, event: Event) {
        self.engine.handle(event, self.now);
        self.settle();
    }

    /// Carries out actions as a shard would, and records them.
    fn settle(&mut self) {
        while let Some(action) = self.engine.next_action() {
            self.engine.audit();
            match &action {
                Action::Lease(execution, fit)
                    if self.leases > 0 && !(self.has_small_rings && *fit == RingFit::Whole) =>
                {
                    self.leases -= 1;
                    self.engine.handle(Event::Leased(*execution, RING), self.now);
                }
                Action::Lease(execution, _) => {
                    self.engine.handle(Event::LeaseFailed(*execution), self.now);
                }
                Action::Release(_) => {
                    self.leases += 1;
                    self.engine.handle(Event::RingReturned, self.now);
                }
                Action::StopProducer(execution) => {
                    let end = Event::ProducerEnded(*execution, ProducerEnd::Stopped);
                    self.engine.handle(end, self.now);
                }
                Action::KeepEnd(execution, _) if !self.is_disk_slow => {
                    self.engine.handle(Event::EndKept(*execution), self.now);
                }
                _ => {}
            }
            self.actions.push(action);
        }
        self.engine.audit();
    }

    pub fn ask(&mut self, event: Event) -> Reply {
        self.engine.handle(event, self.now);
        let Some(Action::Reply(reply)) = self.engine.next_action() else {
            panic!("a question is answered first")
        };
        self.settle();
        reply
    }

    pub fn open(&mut self, spec: OpenSpec) -> Result<ExecutionId, OpenError> {
        match self.ask(Event::Open(spec)) {
            Reply::Opened(result) => result,
            other => panic!("{other:?}"),
        }
    }

    pub fn subscribe(
        &mut self,
        id: ExecutionId,
        spec: SubscribeSpec,
    ) -> Result<SubscriberId, SubscribeError> {
        match self.ask(Event::Subscribe(id, spec)) {
            Reply::Subscribed(result) => result.map(|subscribed| subscribed.subscriber),
            other => panic!("{other:?}"),
        }
    }

    pub fn publish(&mut self, id: ExecutionId, length: u32) {
        self.publish_as(id, Kind::Output, length);
    }

    pub fn publish_as(&mut self, id: ExecutionId, kind: Kind, length: u32) {
        let (head_seq, tail_seq) = {
            let log = self.engine.log(id.slot).unwrap();
            (log.head_seq(), log.tail_seq())
        };
        let tail_seq = tail_seq.max((head_seq + 2).saturating_sub(14));
        let facts = ChunkFacts { length, kind, key: 0, tail_seq };
        self.handle(Event::Published(id.slot, &[facts]));
    }

    /// Publishes a chunk that overwrites everything before `tail_seq`.
    pub fn publish_over(&mut self, id: ExecutionId, length: u32, tail_seq: u64) {
        let facts = ChunkFacts { length, kind: Kind::Output, key: 0, tail_seq };
        self.handle(Event::Published(id.slot, &[facts]));
    }

    pub fn pass(&mut self, duration: Duration) {
        self.now += duration;
        self.handle(Event::Tick);
    }

    pub fn take(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    pub fn given(&mut self) -> Vec<(u64, u64)> {
        let each = self.take().into_iter().filter_map(|action| match action {
            Action::Deliver { from_seq, until_seq, .. } => Some((from_seq, until_seq)),
            _ => None,
        });
        each.collect()
    }

    pub fn ends(&mut self) -> Vec<EndState> {
        let ends = self.take().into_iter().filter_map(|action| match action {
            Action::End(_, _, end) => Some(end.state),
            _ => None,
        });
        ends.collect()
    }
}

pub(super) fn amount(current: f64, total: Option<f64>) -> ProgressReport<'static> {
    ProgressReport { measure: Measure::Absolute { current, total }, ..Default::default() }
}

pub(super) fn with(policy: Policy) -> SubscribeSpec {
    SubscribeSpec { policy, ..Default::default() }
}

#[test]
fn a_closure_is_given_each_chunk_once_and_then_one_end() {
    let mut world = TestEngine::new(4, 4);
    let id = world.open(OpenSpec::new(RING)).unwrap();
    world.subscribe(id, with(Policy::Drop)).unwrap();
    world.take();
    for _ in 0..40 {
        world.publish(id, 10);
    }
    world.handle(Event::ProducerEnded(id.slot, ProducerEnd::Done));
    let actions = world.take();
    let mut next_seq = 1;
    for action in &actions {
        if let Action::Deliver { from_seq, until_seq, .. } = *action {
            assert_eq!(from_seq, next_seq);
            next_seq = until_seq;
        }
    }
    assert_eq!(next_seq, 41);
    let ends: Vec<_> = actions.iter().filter(|a| matches!(a, Action::End(..))).collect();
    let [Action::End(_, _, end)] = ends[..] else { panic!("{ends:?}") };
    assert_eq!(end.state, EndState::Ended(Outcome::Completed));
    assert_eq!(end.given, Totals { chunks: 40, bytes: 400 });
    assert_eq!(end.missed, Totals::ZERO);
}

#[test]
fn who_comes_late_is_told_exactly_what_is_gone() {
    let mut world = TestEngine::new(4, 4);
    let id = world.open(OpenSpec::new(RING)).unwrap();
    for _ in 0..20 {
        world.publish(id, 10);
    }
    world.take();
    world.subscribe(id, with(Policy::Buffer)).unwrap();
    let gap = world.take().into_iter().find_map(|action| match action {
        Action::Gap(_, _, gap) => Some(gap),
        _ => None,
    });
    let gap = gap.expect("some chunks are gone");
    assert_eq!(gap.reason, GapReason::Late);
    assert_eq!((gap.from_seq, gap.to_seq, gap.chunk_count, gap.byte_count), (1, 6, 6, 60));
}

#[test]
fn a_block_subscriber_holds_the_producer_until_its_deadline() {
    let mut world = TestEngine::new(4, 4);
    let id = world.open(OpenSpec::new(RING)).unwrap();
    let slow = SubscribeSpec { demand: 0, ..with(Policy::Block) };
    let slow = world.subscribe(id, slow).unwrap();
    for _ in 0..14 {
        world.publish(id, 1);
    }
    world.take();
    world.handle(Event::Gated(id.slot));
    world.pass(crate::limits::BLOCK_DEADLINE - Duration::from_millis(1));
    assert_eq!(world.ends(), []);
    world.pass(Duration::from_millis(2));
    let actions = world.take();
    let detached = EndState::Detached { reason: DetachReason::Stall, resume_from: 1 };
    let end = actions.iter().find_map(|action| match action {
        Action::End(subscriber, _, end) => Some((*subscriber, end.state)),
        _ => None,
    });
    assert_eq!(end, Some((slow, detached)));
    assert!(actions.iter().any(|a| matches!(a, Action::SetGate(_, Gate::OPEN))));
}

#[test]
fn a_ring_that_is_held_waits_for_its_first_reader_and_no_longer_than_agreed() {
    let hold = Hold::UntilRead { deadline: Duration::from_secs(5) };
    let spec = OpenSpec { hold, ..OpenSpec::new(RING) };
    let mut world = TestEngine::new(4, 4);
    world.open(spec).unwrap();
    let held = |a: &Action| matches!(a, Action::SetGate(_, Gate::HELD));
    assert!(world.take().iter().any(held));
    world.pass(Duration::from_secs(6));
    let actions = world.take();
    assert!(actions.iter().any(|a| matches!(a, Action::SetGate(_, Gate::OPEN))));
}

#[test]
fn a_start_waits_for_subscribers() {
    let start = Start::AfterSubscribers { count: 2, deadline: Duration::from_secs(5) };
    let spec = OpenSpec { start, ..OpenSpec::new(RING) };
    let mut world = TestEngine::new(4, 4);
    let id = world.open(spec).unwrap();
    let started =
        |actions: &[Action]| actions.iter().any(|a| matches!(a, Action::StartProducer(_)));
    world.subscribe(id, with(Policy::Drop)).unwrap();
    assert!(!started(&world.take()));
    world.subscribe(id, with(Policy::Drop)).unwrap();
    assert!(started(&world.take()));
    world.open(spec).unwrap();
    world.pass(Duration::from_secs(6));
    assert!(started(&world.take()));
}

#[test]
fn an_id_that_is_stale_or_guessed_is_not_found() {
    let mut world = TestEngine::new(1, 1);
    let id = world.open(OpenSpec::new(RING)).unwrap();
    let guessed = ExecutionId { nonce: id.nonce ^ 1, ..id };
    let reply = world.ask(Event::Subscribe(guessed, SubscribeSpec::default()));
    assert_eq!(reply, Reply::Subscribed(Err(SubscribeError::NotFound)));
    world.handle(Event::ProducerEnded(id.slot, ProducerEnd::Done));
    let next = world.open(OpenSpec::new(RING)).unwrap(); // The first one makes room.
    assert_eq!(id.slot.index, next.slot.index);
    assert_eq!(world.ask(Event::Cancel(id)), Reply::Cancelled(Err(CancelError::NotFound)));
    assert_eq!(world.ask(Event::Cancel(next)), Reply::Cancelled(Ok(())));
}

#[test]
fn who_finds_no_ring_waits_in_line_and_then_is_told_busy() {
    let mut world = TestEngine::new(8, 1);
    let first = world.open(OpenSpec::new(RING)).unwrap();
    let second = world.open(OpenSpec::new(RING)).unwrap();
    world.open(OpenSpec::new(RING)).unwrap();
    assert!(matches!(world.open(OpenSpec::new(RING)), Err(OpenError::Busy { .. })));
    world.take();
    world.handle(Event::ProducerEnded(first.slot, ProducerEnd::Done));
    let actions = world.take();
    assert!(actions.contains(&Action::Release(first.slot)), "the ended one gives its ring");
    assert!(actions.contains(&Action::StartProducer(second.slot)));
}

#[test]
fn a_producer_that_leaves_before_its_start_fails_and_leaves_the_line() {
    let mut world = TestEngine::new(8, 1);
    let [first, gone, next] = [(); 3].map(|()| world.open(OpenSpec::new(RING)).unwrap());
    world.handle(Event::ProducerEnded(gone.slot, ProducerEnd::Failed("it is gone")));
    let Reply::Inspected(Ok(status)) = world.ask(Event::Inspect(gone)) else {
        panic!("it is kept")
    };
    assert_eq!(status.state, ExecutionState::Ended(Outcome::Failed));
    assert_eq!(status.error.as_deref(), Some("it is gone"));
    world.take();
    world.handle(Event::ProducerEnded(first.slot, ProducerEnd::Done));
    assert!(world.take().contains(&Action::StartProducer(next.slot)));
}

#[test]
fn for_a_whole_ring_only_ended_executions_go_that_nobody_reads() {
    let mut world = TestEngine::new(8, 8);
    let [read, unread] = [(), ()].map(|()| world.open(OpenSpec::new(RING)).unwrap());
    let subscriber = world.subscribe(read, with(Policy::Block)).unwrap();
    world.handle(Event::Lost(subscriber)); // Its client may come back within the grace.
    for id in [read, unread] {
        world.handle(Event::ProducerEnded(id.slot, ProducerEnd::Done));
    }
    world.has_small_rings = true;
    world.take();
    let next = world.open(OpenSpec::new(RING)).unwrap();
    let actions = world.take();
    let rings = actions.iter().filter(|a| matches!(a, Action::Lease(..) | Action::Release(_)));
    let expected = [
        Action::Lease(next.slot, RingFit::Whole),
        Action::Release(unread.slot),
        Action::Lease(next.slot, RingFit::Any),
    ];
    assert!(rings.eq(&expected), "{actions:?}");
    assert!(actions.contains(&Action::StartProducer(next.slot)));
    // Without any ring the other one is evicted, too.
    world.leases = 0;
    let last = world.open(OpenSpec::new(RING)).unwrap();
    let actions = world.take();
    assert!(actions.contains(&Action::Release(read.slot)));
    assert!(actions.contains(&Action::StartProducer(last.slot)));
}

#[test]
fn for_a_place_an_ended_execution_goes_that_nobody_reads_if_there_is_one() {
    let mut world = TestEngine::new(2, 8);
    let [read, unread] = [(), ()].map(|()| world.open(OpenSpec::new(RING)).unwrap());
    let subscriber = world.subscribe(read, with(Policy::Block)).unwrap();
    world.handle(Event::Lost(subscriber));
    for id in [read, unread] {
        world.handle(Event::ProducerEnded(id.slot, ProducerEnd::Done));
    }
    for gone in [unread, read] {
        world.take();
        world.open(OpenSpec::new(RING)).unwrap();
        assert!(world.take().contains(&Action::Release(gone.slot)));
    }
}

#[test]
fn who_will_never_find_a_ring_fails_with_the_reason_and_the_next_one_has_its_turn() {
    let mut engine = Engine::new(EngineLimits::default(), Instant::ZERO);
    let open = |engine: &mut Engine| {
        engine.handle(Event::Open(OpenSpec::new(RING)), Instant::ZERO);
        let Some(Action::Reply(Reply::Opened(Ok(id)))) = engine.next_action() else { panic!() };
        id
    };
    let (first, second) = (open(&mut engine), open(&mut engine));
    assert_eq!(engine.next_action(), Some(Action::Lease(first.slot, RingFit::Any)));
    engine.handle(Event::LeaseRefused(first.slot, "no such ring"), Instant::ZERO);
    engine.audit();
    let actions: Vec<Action> = std::iter::from_fn(|| engine.next_action()).collect();
    assert!(actions.iter().any(|action| matches!(action, Action::Verdict(execution, verdict)
        if *execution == first.slot && verdict.outcome == Outcome::Failed
            && verdict.error.as_deref() == Some("no such ring"))));
    assert!(actions.contains(&Action::Lease(second.slot, RingFit::Any)));
    // Cancelled while it was refused: only the next one asks.
    engine.handle(Event::Cancel(second), Instant::ZERO);
    engine.handle(Event::LeaseRefused(second.slot, "too late"), Instant::ZERO);
    engine.audit();
    let actions: Vec<Action> = std::iter::from_fn(|| engine.next_action()).collect();
    let count = actions.iter().filter(|action| matches!(action, Action::Verdict(..))).count();
    assert_eq!(count, 1, "{actions:?}");
}

#[test]
fn a_lost_block_subscriber_keeps_its_place_for_the_grace_and_no_longer() {
    let mut world = TestEngine::new(4, 4);
    let id = world.open(OpenSpec::new(RING)).unwrap();
    let subscriber = world.subscribe(id, with(Policy::Block)).unwrap();
    world.publish(id, 1);
    world.handle(Event::Lost(subscriber));
    world.publish(id, 1);
    world.take();
    let reply = world.ask(Event::Reattach(subscriber));
    assert!(matches!(reply, Reply::Reattached(Ok(_))));
    let given = |a: &Action| matches!(a, Action::Deliver { from_seq: 2, until_seq: 3, .. });
    assert!(world.take().iter().any(given));
    world.handle(Event::Lost(subscriber));
    world.pass(crate::limits::RECONNECT_GRACE + Duration::from_millis(1));
    assert_eq!(world.ends().len(), 1);
    assert_eq!(world.ask(Event::Reattach(subscriber)), Reply::Reattached(Err(NotFound)));
}

#[test]
fn coalesced_chunks_come_together_and_not_later_than_agreed() {
    let mut world = TestEngine::new(4, 4);
    let id = world.open(OpenSpec::new(RING)).unwrap();
    let coalesce = Coalesce { delay_max: Duration::from_millis(5), bytes_max: 100 };
    let spec = SubscribeSpec { coalesce: Some(coalesce), ..with(Policy::Block) };
    world.subscribe(id, spec).unwrap();
    world.take();
    world.publish(id, 40);
    world.publish(id, 40);
    assert_eq!(world.given(), []);
    world.publish(id, 40);
    assert_eq!(world.given(), [(1, 4)]);
    world.publish(id, 40);
    world.pass(Duration::from_millis(6));
    assert_eq!(world.given(), [(4, 5)]);
}

#[test]
fn acknowledgements_bound_what_is_sent() {
    let mut world = TestEngine::new(4, 4);
    let id = world.open(OpenSpec::new(RING)).unwrap();
    let spec = SubscribeSpec { ack_window: Some(2), ..with(Policy::Block) };
    let subscriber = world.subscribe(id, spec).unwrap();
    for _ in 0..5 {
        world.publish(id, 1);
    }
    let last = |actions: Vec<Action>| {
        let each = actions.into_iter().filter_map(|action| match action {
            Action::Deliver { until_seq, .. } => Some(until_seq),
            _ => None,
        });
        each.max()
    };
    assert_eq!(last(world.take()), Some(3));
    let early = world.ask(Event::Acknowledge(subscriber, 3));
    let not_given = AcknowledgeError::NotGiven { next_seq: 3 };
    assert_eq!(early, Reply::Acknowledged(Err(not_given)));
    world.ask(Event::Acknowledge(subscriber, 1));
    assert_eq!(last(world.take()), Some(4));
}

#[test]
fn progress_never_goes_back_is_told_once_an_interval_and_last_before_the_end() {
    let mut world = TestEngine::new(4, 4);
    let id = world.open(OpenSpec::new(RING)).unwrap();
    world.subscribe(id, with(Policy::Drop)).unwrap();
    world.take();
    for progress in [1.0, 3.0, 2.0] {
        let report = amount(progress, Some(10.0));
        world.handle(Event::Progressed(id.slot, report));
    }
    let actions = |actions: Vec<Action>| -> Vec<f64> {
        let each = actions.into_iter().filter_map(|action| match action {
            Action::Progress(_, _, progress) => Some(progress.progress),
            _ => None,
        });
        each.collect()
    };
    assert_eq!(actions(world.take()), [1.0]);
    world.pass(crate::limits::PROGRESS_INTERVAL + Duration::from_millis(1));
    assert_eq!(actions(world.take()), [3.0]);
    let report = amount(10.0, None);
    world.handle(Event::Progressed(id.slot, report));
    world.handle(Event::ProducerEnded(id.slot, ProducerEnd::Done));
    assert_eq!(actions(world.take()), [10.0]);
    assert_eq!(world.engine.counters().progress_backward, 1);
}

#[test]
fn a_shutdown_tells_everybody_and_takes_nothing_more() {
    let mut world = TestEngine::new(4, 4);
    let id = world.open(OpenSpec::new(RING)).unwrap();
    world.subscribe(id, with(Policy::Drop)).unwrap();
    world.take();
    world.handle(Event::Shutdown);
    let detached = EndState::Detached { reason: DetachReason::Shutdown, resume_from: 1 };
    assert_eq!(world.ends(), [detached]);
    assert_eq!(world.open(OpenSpec::new(RING)), Err(OpenError::ShuttingDown));
}
