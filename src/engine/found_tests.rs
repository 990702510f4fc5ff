//! Faults of the engine that the seeded simulator has found, each as small as possible.

use crate::stream::{DetachReason, EndState, GapReason, Kind, Kinds, Outcome, Policy};
use std::time::Duration;

use super::tests::{RING, TestEngine, amount, with};
use super::*;

#[test]
fn a_burst_is_within_every_limit_also_of_bytes_and_of_who_waits_for_company() {
    let mut world = TestEngine::new(4, 4);
    let id = world.open(OpenSpec::new(RING)).unwrap();
    assert_eq!(world.engine.burst_chunks(id.slot), crate::limits::BURST_CHUNKS_MAX);
    world.subscribe(id, with(Policy::Drop)).unwrap();
    assert_eq!(world.engine.burst_chunks(id.slot), crate::limits::DROP_LIMIT_CHUNKS);
    let bytes = SubscribeSpec { limit_bytes: Some(100), ..with(Policy::Drop) };
    let bytes = world.subscribe(id, bytes).unwrap();
    assert_eq!(world.engine.burst_chunks(id.slot), 1);
    world.ask(Event::Unsubscribe(bytes));
    assert_eq!(world.engine.burst_chunks(id.slot), crate::limits::DROP_LIMIT_CHUNKS);
    let coalesce = Coalesce { delay_max: Duration::from_millis(1), bytes_max: 1_000 };
    let coalesce = SubscribeSpec { coalesce: Some(coalesce), ..with(Policy::Drop) };
    world.subscribe(id, coalesce).unwrap();
    assert_eq!(world.engine.burst_chunks(id.slot), 1);
}

#[test]
fn a_limit_that_a_smaller_ring_cuts_is_also_the_burst_and_the_trip() {
    let mut world = TestEngine::new(4, 0);
    let expected =
        RingFacts { slot_count: 256, chunks_max: 224, chunk_bytes_max: 512, data_bytes: 2_048 };
    let id = world.open(OpenSpec::new(expected)).unwrap();
    let spec = SubscribeSpec { limit_chunks: Some(200), demand: 0, ..with(Policy::Disconnect) };
    world.subscribe(id, spec).unwrap();
    world.handle(Event::Leased(id.slot, RING));
    assert_eq!(world.engine.burst_chunks(id.slot), RING.chunks_max);
    for _ in 0..=RING.chunks_max {
        assert_eq!(world.ends(), []);
        let facts = ChunkFacts { length: 1, kind: Kind::Output, key: 0, tail_seq: 1 };
        world.handle(Event::Published(id.slot, &[facts]));
    }
    let lag = EndState::Detached { reason: DetachReason::Lag, resume_from: 1 };
    assert_eq!(world.ends(), [lag]);
}

/// The subscriber coalesces, or its connection accepts nothing, and the ring continues.
#[test]
fn under_disconnect_only_what_was_gone_before_it_came_is_a_gap() {
    let mut world = TestEngine::new(4, 4);
    let coalesce = Coalesce { delay_max: Duration::from_millis(50), bytes_max: 1 << 20 };
    let waits = SubscribeSpec { coalesce: Some(coalesce), ..with(Policy::Disconnect) };
    let stands = SubscribeSpec { demand: 0, ..with(Policy::Disconnect) };
    let late = GapReason::Late;
    for (spec, before, gaps, resume_from) in [
        (waits, 0u64, vec![], 1),
        (stands, 0, vec![], 1),
        (waits, 20, vec![(1, 6, late)], 21),
        (stands, 20, vec![], 1),
    ] {
        let id = world.open(OpenSpec::new(RING)).unwrap();
        for _ in 0..before {
            world.publish(id, 10);
        }
        world.take();
        world.subscribe(id, SubscribeSpec { limit_chunks: Some(14), ..spec }).unwrap();
        // Long chunks: the ring holds fewer than its limit allows.
        for seq in before + 1..=before + 16 {
            let tail_seq = seq.saturating_sub(4).max(1);
            let facts = ChunkFacts { length: 512, kind: Kind::Output, key: 0, tail_seq };
            world.handle(Event::Published(id.slot, &[facts]));
        }
        let told: Vec<Action> = world.take();
        let came = told.iter().filter_map(|action| match action {
            Action::Gap(_, _, gap) => Some((gap.from_seq, gap.to_seq, gap.reason)),
            _ => None,
        });
        assert_eq!(came.collect::<Vec<_>>(), gaps);
        let ends = told.iter().filter_map(|action| match action {
            Action::End(_, _, end) => Some(end.state),
            _ => None,
        });
        let lag = EndState::Detached { reason: DetachReason::Lag, resume_from };
        assert_eq!(ends.collect::<Vec<_>>(), [lag]);
    }
}

#[test]
fn what_a_subscriber_does_not_want_costs_it_no_demand() {
    let mut world = TestEngine::new(4, 4);
    let id = world.open(OpenSpec::new(RING)).unwrap();
    let kinds = Kinds::NONE.with(Kind::Stderr);
    let spec = SubscribeSpec { kinds, demand: 0, ..with(Policy::Drop) };
    let subscriber = world.subscribe(id, spec).unwrap();
    for kind in [Kind::Stdout, Kind::Stdout, Kind::Stderr, Kind::Stdout, Kind::Stderr] {
        world.publish_as(id, kind, 1);
    }
    world.take();
    world.handle(Event::Demand(subscriber, 1));
    assert_eq!(world.given(), [(1, 5)]);
    world.handle(Event::Demand(subscriber, 1));
    assert_eq!(world.given(), [(5, 6)]);
}

#[test]
fn chunks_that_have_waited_together_do_not_wait_again_one_by_one() {
    let mut world = TestEngine::new(4, 4);
    let id = world.open(OpenSpec::new(RING)).unwrap();
    let coalesce = Coalesce { delay_max: Duration::from_millis(5), bytes_max: 100 };
    let spec = SubscribeSpec { coalesce: Some(coalesce), demand: 1, ..with(Policy::Block) };
    let subscriber = world.subscribe(id, spec).unwrap();
    world.publish(id, 1);
    world.publish(id, 1);
    assert_eq!(world.given(), []);
    world.pass(Duration::from_millis(6));
    assert_eq!(world.given(), [(1, 2)]);
    world.handle(Event::Demand(subscriber, 1));
    assert_eq!(world.given(), [(2, 3)]);
    world.handle(Event::Demand(subscriber, 1));
    world.publish(id, 1);
    assert_eq!(world.given(), [], "this one has not");
}

#[test]
fn a_window_of_acknowledgements_is_not_filled_by_what_is_filtered_out() {
    let mut world = TestEngine::new(4, 4);
    let id = world.open(OpenSpec::new(RING)).unwrap();
    let kinds = Kinds::NONE.with(Kind::Stderr);
    let spec = SubscribeSpec { kinds, ack_window: Some(2), ..with(Policy::Drop) };
    let subscriber = world.subscribe(id, spec).unwrap();
    for _ in 0..5 {
        world.publish_as(id, Kind::Stdout, 1);
    }
    for _ in 0..3 {
        world.publish_as(id, Kind::Stderr, 1);
    }
    assert_eq!(world.given().last().unwrap().1, 8, "chunks 6 and 7, which are two");
    assert_eq!(world.ask(Event::Acknowledge(subscriber, 6)), Reply::Acknowledged(Ok(())));
    assert_eq!(world.given(), [(8, 9)]);
}

#[test]
fn an_end_waits_for_a_broken_connection_to_come_back() {
    let mut world = TestEngine::new(4, 4);
    let id = world.open(OpenSpec::new(RING)).unwrap();
    let subscriber = world.subscribe(id, with(Policy::Block)).unwrap();
    world.publish(id, 1);
    world.handle(Event::Lost(subscriber));
    let report = amount(1.0, None);
    world.handle(Event::Progressed(id.slot, report));
    world.handle(Event::ProducerEnded(id.slot, ProducerEnd::Done));
    let told = world.take();
    assert!(!told.iter().any(|a| matches!(a, Action::Progress(..) | Action::End(..))), "{told:?}");
    assert!(matches!(world.ask(Event::Reattach(subscriber)), Reply::Reattached(Ok(_))));
    assert_eq!(world.ends(), [EndState::Ended(Outcome::Completed)]);
}

#[test]
fn disconnect_ends_who_is_overtaken_by_the_ring_and_gives_it_no_gap() {
    let mut world = TestEngine::new(4, 4);
    let id = world.open(OpenSpec::new(RING)).unwrap();
    let spec = SubscribeSpec { demand: 1, ..with(Policy::Disconnect) };
    let subscriber = world.subscribe(id, spec).unwrap();
    let mut publish = |seq: u64| {
        // Long chunks: the ring holds two of them.
        let tail_seq = seq.saturating_sub(1).max(1);
        let facts = ChunkFacts { length: 512, kind: Kind::Output, key: 0, tail_seq };
        world.handle(Event::Published(id.slot, &[facts]));
    };
    (1..=5).for_each(&mut publish);
    world.handle(Event::Demand(subscriber, 1));
    let told = world.take();
    assert!(!told.iter().any(|a| matches!(a, Action::Gap(..))), "{told:?}");
    let end = told.iter().find_map(|action| match action {
        Action::End(_, _, end) => Some(end.state),
        _ => None,
    });
    let lag = EndState::Detached { reason: DetachReason::Lag, resume_from: 2 };
    assert_eq!(end, Some(lag));
}

#[test]
fn a_ring_that_comes_back_late_is_for_who_waits() {
    let mut world = TestEngine::new(4, 0);
    let id = world.open(OpenSpec::new(RING)).unwrap();
    world.take();
    world.leases = 1;
    world.handle(Event::RingReturned);
    assert!(world.take().contains(&Action::StartProducer(id.slot)));
}

#[test]
fn who_comes_between_two_reports_is_told_the_newest_and_told_it_once() {
    let mut world = TestEngine::new(4, 4);
    let id = world.open(OpenSpec::new(RING)).unwrap();
    for progress in [1.0, 2.0] {
        let report = amount(progress, None);
        world.handle(Event::Progressed(id.slot, report));
    }
    world.subscribe(id, with(Policy::Drop)).unwrap();
    world.pass(crate::limits::PROGRESS_INTERVAL + Duration::from_millis(1));
    let told = world.take().into_iter().filter(|a| matches!(a, Action::Progress(..)));
    assert_eq!(told.count(), 1);
}

#[test]
fn a_held_ring_without_a_reader_is_nobodys_stall() {
    let mut world = TestEngine::new(4, 4);
    let hold = Hold::UntilRead { deadline: Duration::from_secs(3_000) };
    let spec = OpenSpec { hold, on_stall: OnStall::Fail, ..OpenSpec::new(RING) };
    let id = world.open(spec).unwrap();
    world.publish(id, 1);
    world.handle(Event::Gated(id.slot));
    world.take();
    world.pass(crate::limits::BLOCK_DEADLINE * 2);
    assert_eq!(world.take(), []);
}

#[test]
fn who_comes_to_where_a_stalled_reader_stands_has_a_deadline_of_its_own() {
    let mut world = TestEngine::new(4, 4);
    let id = world.open(OpenSpec::new(RING)).unwrap();
    let spec = SubscribeSpec { demand: 0, ..with(Policy::Block) };
    world.subscribe(id, spec).unwrap();
    world.publish(id, 1);
    world.handle(Event::Gated(id.slot));
    let half = crate::limits::BLOCK_DEADLINE / 2;
    world.pass(half);
    world.subscribe(id, spec).unwrap();
    world.take();
    world.pass(half + Duration::from_millis(1));
    assert_eq!(world.ends().len(), 1, "the first one");
    world.pass(half - Duration::from_millis(2));
    assert_eq!(world.ends(), []);
    world.pass(Duration::from_millis(2));
    assert_eq!(world.ends().len(), 1, "and now the other");
}

#[test]
fn a_ring_of_an_execution_that_ends_and_is_forgotten_at_once_is_for_who_waits() {
    let mut world = TestEngine::new(4, 1);
    let spec = OpenSpec { retention: Duration::ZERO, ..OpenSpec::new(RING) };
    let first = world.open(spec).unwrap();
    let next = world.open(spec).unwrap();
    world.subscribe(first, SubscribeSpec { demand: 0, ..with(Policy::Block) }).unwrap();
    world.publish(first, 1);
    world.handle(Event::ProducerEnded(first.slot, ProducerEnd::Done));
    world.take();
    // One late tick ends the drain, and the retention with it.
    world.pass(crate::limits::BLOCK_DEADLINE * 2);
    assert!(world.take().contains(&Action::StartProducer(next.slot)));
}

#[test]
fn a_producer_that_waits_for_the_disk_is_not_silent_and_no_reader_is_blamed() {
    let mut world = TestEngine::new(4, 4);
    let second = Duration::from_secs(1);
    let timeouts = Timeouts { inactivity: Some(second), ..Timeouts::NONE };
    let spec = OpenSpec { timeouts, on_stall: OnStall::Fail, ..OpenSpec::new(RING) };
    let id = world.open(spec).unwrap();
    world.subscribe(id, SubscribeSpec { demand: 0, ..with(Policy::Block) }).unwrap();
    world.publish(id, 1);
    world.take();
    world.handle(Event::HeldByDisk(id.slot));
    world.pass(crate::limits::BLOCK_DEADLINE * 2);
    assert_eq!(world.take(), []);
    world.handle(Event::DiskMoved(id.slot));
    world.pass(second / 2);
    assert_eq!(world.take(), []);
    world.pass(second);
    assert!(world.take().contains(&Action::StopProducer(id.slot)));
}
