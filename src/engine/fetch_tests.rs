//! Chunks of an execution that is kept on disk: the subscribers that get them from there, and the
//! end of that.
//!
//! `fetch_model_tests.rs` has the same with everything drawn from a seed.

use std::time::Duration;

use super::tests::{RING, TestEngine, with};
use super::*;
use crate::stream::{EndState, Gap, GapReason, Kind, Kinds, Policy};

/// An engine with an execution on disk that has published `count` chunks of 10 bytes. Its ring
/// holds the last 14.
fn kept(count: u64) -> (TestEngine, ExecutionId) {
    let mut world = TestEngine::new(4, 4);
    let id = world.open(OpenSpec { kept: true, ..OpenSpec::new(RING) }).unwrap();
    (0..count).for_each(|_| world.publish(id, 10));
    world.take();
    (world, id)
}

/// The questions to the disk among these actions: the stretch, and the most chunks.
fn fetches(actions: &[Action]) -> Vec<(u64, u64, u32)> {
    let each = actions.iter().filter_map(|action| match *action {
        Action::Fetch { from_seq, until_seq, chunks_max, .. } => {
            Some((from_seq, until_seq, chunks_max))
        }
        _ => None,
    });
    each.collect()
}

fn gaps(actions: &[Action]) -> Vec<Gap> {
    let each = actions.iter().filter_map(|action| match *action {
        Action::Gap(_, _, gap) => Some(gap),
        _ => None,
    });
    each.collect()
}

fn runs(actions: &[Action]) -> Vec<(u64, u64)> {
    let each = actions.iter().filter_map(|action| match *action {
        Action::Deliver { from_seq, until_seq, .. } => Some((from_seq, until_seq)),
        _ => None,
    });
    each.collect()
}

fn fetched(subscriber: SubscriberId, from_seq: u64, until_seq: u64) -> Event<'static> {
    let chunks = until_seq - from_seq;
    let totals = Totals { chunks, bytes: chunks * 10 };
    let result = Fetched::Given { totals, last_seq: until_seq - 1 };
    Event::Fetched { subscriber, from_seq, until_seq, result }
}

/// The disk has given the chunks from `from_seq` to before `until_seq`, of 10 bytes each.
fn given(world: &mut TestEngine, subscriber: SubscriberId, from_seq: u64, until_seq: u64) {
    world.handle(fetched(subscriber, from_seq, until_seq));
}

fn lost(
    world: &mut TestEngine,
    subscriber: SubscriberId,
    (from_seq, until_seq): (u64, u64),
    (reason, chunks): (GapReason, u64),
) {
    let totals = Totals { chunks, bytes: chunks * 10 };
    let result = Fetched::Lost { reason, totals };
    world.handle(Event::Fetched { subscriber, from_seq, until_seq, result });
}

#[test]
fn who_comes_late_is_given_what_the_disk_holds_and_then_what_the_ring_holds() {
    for policy in [Policy::Replay, Policy::Block, Policy::Drop, Policy::Buffer, Policy::Disconnect]
    {
        let (mut world, id) = kept(20);
        let subscriber = world.subscribe(id, with(policy)).unwrap();
        assert_eq!(fetches(&world.take()), [(1, 7, u32::MAX)], "{policy}");
        world.publish(id, 10);
        let actions = world.take();
        assert!(fetches(&actions).is_empty() && runs(&actions).is_empty(), "{policy}: one at once");
        given(&mut world, subscriber, 1, 5);
        assert_eq!(fetches(&world.take()), [(5, 8, u32::MAX)], "{policy}");
        given(&mut world, subscriber, 5, 8);
        assert_eq!(runs(&world.take()), [(8, 22)], "{policy}");
        world.handle(Event::ProducerEnded(id.slot, ProducerEnd::Done));
        let actions = world.take();
        let [Action::End(_, _, end)] =
            actions.iter().filter(|a| matches!(a, Action::End(..))).collect::<Vec<_>>()[..]
        else {
            panic!("{policy}: {actions:?}")
        };
        assert_eq!(end.state, EndState::Ended(Outcome::Completed));
        assert_eq!((end.given, end.missed.chunks), (Totals { chunks: 21, bytes: 210 }, 0));
    }
}

#[test]
fn who_wants_the_newest_only_is_never_given_old_chunks() {
    for policy in [Policy::DropOldest, Policy::Conflate] {
        let (mut world, id) = kept(20);
        world.subscribe(id, with(policy)).unwrap();
        let actions = world.take();
        assert!(fetches(&actions).is_empty(), "{policy}");
        assert_eq!((gaps(&actions)[0].to_seq, gaps(&actions)[0].reason), (6, GapReason::Late));
    }
}

#[test]
fn replay_without_a_disk_is_told_what_the_ring_has_lost_and_gates_nobody() {
    let mut world = TestEngine::new(4, 4);
    let id = world.open(OpenSpec::new(RING)).unwrap();
    let spec = SubscribeSpec { demand: 0, ..with(Policy::Replay) };
    let subscriber = world.subscribe(id, spec).unwrap();
    (0..20).for_each(|_| world.publish(id, 10));
    let gates = |a: &Action| matches!(a, Action::SetGate(_, gate) if *gate != Gate::OPEN);
    assert!(!world.take().iter().any(gates));
    world.handle(Event::Demand(subscriber, u32::MAX));
    let actions = world.take();
    let reason = GapReason::Overtaken;
    let gap = Gap { from_seq: 1, to_seq: 6, chunk_count: 6, byte_count: 60, reason };
    assert_eq!((gaps(&actions), runs(&actions)), (vec![gap], vec![(7, 21)]));
}

#[test]
fn a_block_subscriber_gates_from_the_moment_at_which_it_is_level() {
    let (mut world, id) = kept(20);
    let subscriber = world.subscribe(id, SubscribeSpec { demand: 6, ..with(Policy::Block) });
    let subscriber = subscriber.unwrap();
    let gates = |actions: &[Action]| {
        let mut gates = actions.iter().filter_map(|action| match action {
            Action::SetGate(_, gate) => Some(gate.gate_seq),
            _ => None,
        });
        gates.next_back()
    };
    let actions = world.take();
    assert_eq!((fetches(&actions), gates(&actions)), (vec![(1, 7, 6)], None));
    given(&mut world, subscriber, 1, 7); // All that it can take.
    assert_eq!(gates(&world.take()), Some(7));
    // It holds the producer back, but not for longer than others that have just come.
    world.pass(crate::limits::BLOCK_DEADLINE / 2);
    world.handle(Event::Gated(id.slot));
    world.pass(crate::limits::BLOCK_DEADLINE - Duration::from_millis(1));
    assert_eq!(world.ends(), []);
    world.handle(Event::Demand(subscriber, 10));
    let actions = world.take();
    assert_eq!((runs(&actions), fetches(&actions)), (vec![(7, 17)], vec![]));
}

#[test]
fn a_reader_that_the_ring_overtakes_before_it_is_level_is_back_on_disk() {
    for policy in [Policy::Drop, Policy::Disconnect] {
        let (mut world, id) = kept(20);
        let spec = SubscribeSpec { limit_chunks: Some(3), demand: 8, ..with(policy) };
        let subscriber = world.subscribe(id, spec).unwrap();
        given(&mut world, subscriber, 1, 7);
        assert_eq!(runs(&world.take()), [(7, 9)], "{policy}");
        (0..10).for_each(|_| world.publish(id, 10)); // Through chunk 30: the tail is 17.
        assert_eq!(world.take(), [], "{policy}: it lags by more than its limit, and is not cut");
        world.handle(Event::Demand(subscriber, u32::MAX));
        assert_eq!(fetches(&world.take()), [(9, 17, u32::MAX)], "{policy}");
        given(&mut world, subscriber, 9, 17);
        assert_eq!(runs(&world.take()), [(17, 31)], "{policy}");
        // From here on its policy holds.
        world.handle(Event::Demand(subscriber, 0));
        (0..4).for_each(|_| world.publish(id, 10));
        world.handle(Event::Demand(subscriber, u32::MAX));
        let actions = world.take();
        match policy {
            Policy::Drop => {
                assert_eq!(runs(&actions), [(31, 34)]);
                assert_eq!((gaps(&actions)[0].from_seq, gaps(&actions)[0].to_seq), (34, 34));
            }
            _ => assert!(matches!(actions[..], [Action::End(..)]), "{actions:?}"),
        }
    }
}

#[test]
fn a_connection_that_takes_nothing_asks_for_nothing() {
    let (mut world, id) = kept(20);
    let spec = SubscribeSpec { demand: 0, ..with(Policy::Replay) };
    let subscriber = world.subscribe(id, spec).unwrap();
    world.publish(id, 10);
    assert_eq!(fetches(&world.take()), []);
    world.handle(Event::Demand(subscriber, 2));
    assert_eq!(fetches(&world.take()), [(1, 8, 2)]);
    given(&mut world, subscriber, 1, 3);
    assert_eq!(fetches(&world.take()), []);
}

#[test]
fn what_the_disk_cannot_give_is_a_gap_with_its_reason_and_costs_demand() {
    let (mut world, id) = kept(20);
    let spec = SubscribeSpec { demand: 3, ..with(Policy::Replay) };
    let subscriber = world.subscribe(id, spec).unwrap();
    lost(&mut world, subscriber, (1, 3), (GapReason::Corrupt, 2));
    let actions = world.take();
    let reason = GapReason::Corrupt;
    let gap = Gap { from_seq: 1, to_seq: 2, chunk_count: 2, byte_count: 20, reason };
    assert_eq!((gaps(&actions), fetches(&actions)[1]), (vec![gap], (3, 7, 2)));
    lost(&mut world, subscriber, (3, 4), (GapReason::Unwritten, 0)); // None that it wants.
    let actions = world.take();
    assert_eq!((gaps(&actions), fetches(&actions)), (vec![], vec![(4, 7, 2)]));
}

#[test]
fn what_was_removed_from_the_disk_is_a_gap_and_the_rest_is_fetched() {
    let (mut world, id) = kept(20);
    let mut before = KindTotals::default();
    before.add(Kind::Output, Totals { chunks: 3, bytes: 30 });
    world.handle(Event::KeptFrom(id.slot, 4, &before));
    let subscriber = world.subscribe(id, with(Policy::Replay)).unwrap();
    let actions = world.take();
    let reason = GapReason::Expired;
    let gap = Gap { from_seq: 1, to_seq: 3, chunk_count: 3, byte_count: 30, reason };
    assert_eq!((gaps(&actions), fetches(&actions)), (vec![gap], vec![(4, 7, u32::MAX)]));
    // More is removed while the disk reads. The answer says so.
    before.add(Kind::Output, Totals { chunks: 2, bytes: 20 });
    world.handle(Event::KeptFrom(id.slot, 6, &before));
    lost(&mut world, subscriber, (4, 6), (GapReason::Expired, 2));
    let actions = world.take();
    assert_eq!((gaps(&actions)[0].from_seq, fetches(&actions)), (4, vec![(6, 7, u32::MAX)]));
}

#[test]
fn a_client_that_says_wrongly_what_it_has_seen_is_counted_exactly_all_the_same() {
    for bytes in [None, Some(9), Some(40)] {
        let seen = bytes.map(|bytes| Totals { chunks: 4, bytes });
        let (mut world, id) = kept(20);
        let from = From::Seq { seq: 5, seen };
        let spec = SubscribeSpec { from, limit_chunks: Some(14), ..with(Policy::Drop) };
        let subscriber = world.subscribe(id, spec).unwrap();
        // What it would be told to have missed, nobody but the disk knows.
        let mut before = KindTotals::default();
        before.add(Kind::Output, Totals { chunks: 5, bytes: 50 });
        world.handle(Event::KeptFrom(id.slot, 6, &before));
        lost(&mut world, subscriber, (5, 6), (GapReason::Expired, 1));
        given(&mut world, subscriber, 6, 7);
        assert_eq!(runs(&world.take()), [(7, 21)]);
        world.handle(Event::ProducerEnded(id.slot, ProducerEnd::Done));
        let actions = world.take();
        let Some(Action::End(_, _, end)) =
            actions.iter().find(|action| matches!(action, Action::End(..)))
        else {
            panic!("{actions:?}")
        };
        assert_eq!((end.given, end.missed.chunks), (Totals { chunks: 15, bytes: 150 }, 1));
        assert_eq!(end.published, Totals { chunks: 20, bytes: 200 });
    }
}

#[test]
fn chunks_that_the_ring_never_had_are_looked_for_by_all_who_want_more_than_the_newest() {
    for policy in Policy::ALL {
        for is_behind in [false, true] {
            let (mut world, id) = kept(0);
            let demand = if is_behind { 0 } else { u32::MAX };
            let subscriber = world.subscribe(id, SubscribeSpec { demand, ..with(policy) }).unwrap();
            (0..5).for_each(|_| world.publish(id, 10));
            world.take();
            let mut through = KindTotals::default();
            through.add(Kind::Output, Totals { chunks: 6, bytes: 60 });
            through.add(Kind::Stderr, Totals { chunks: 3, bytes: 7 });
            world.handle(Event::Skipped(id.slot, &through));
            world.handle(Event::Demand(subscriber, u32::MAX));
            let actions = world.take();
            let from_seq = if is_behind { 1 } else { 6 };
            let wants_newest = matches!(policy, Policy::DropOldest | Policy::Conflate);
            if wants_newest {
                let missed = (gaps(&actions)[0].from_seq, gaps(&actions)[0].chunk_count);
                assert_eq!(missed, (from_seq, 10 - from_seq), "{policy}");
            } else {
                assert_eq!(fetches(&actions), [(from_seq, 10, u32::MAX)], "{policy}");
                if is_behind {
                    given(&mut world, subscriber, 1, 6);
                }
                let totals = Totals { chunks: 4, bytes: 17 };
                let result = Fetched::Lost { reason: GapReason::Unwritten, totals };
                world.handle(Event::Fetched { subscriber, from_seq: 6, until_seq: 10, result });
                let gap = gaps(&world.take())[0];
                assert_eq!((gap.from_seq, gap.to_seq, gap.byte_count), (6, 9, 17), "{policy}");
            }
            world.publish(id, 10);
            assert_eq!(runs(&world.take()), [(10, 11)], "{policy}");
            world.handle(Event::ProducerEnded(id.slot, ProducerEnd::TimedOut));
            let actions = world.take();
            let Some(Action::End(_, _, end)) = actions.last() else { panic!("{actions:?}") };
            assert_eq!(end.state, EndState::Ended(Outcome::TimedOut), "{policy}");
            assert_eq!(end.published, Totals { chunks: 10, bytes: 77 }, "{policy}");
            assert_eq!(end.given + end.missed, end.published, "{policy}");
        }
    }
}

#[test]
fn who_leaves_while_the_disk_reads_is_told_nothing_more() {
    let (mut world, id) = kept(20);
    for policy in [Policy::Replay, Policy::Block] {
        let left = world.subscribe(id, with(policy)).unwrap();
        let lost = world.subscribe(id, SubscribeSpec { replays: true, ..with(policy) }).unwrap();
        assert_eq!(fetches(&world.take()).len(), 2);
        world.ask(Event::Unsubscribe(left));
        world.handle(Event::Lost(lost)); // The disk has everything for the next one.
        let state = EndState::Detached { reason: DetachReason::Lost, resume_from: 1 };
        assert_eq!(world.ends(), [state]);
        given(&mut world, left, 1, 4);
        given(&mut world, lost, 1, 4);
        assert_eq!(world.take(), []);
    }
}

#[test]
fn an_execution_that_ends_while_the_disk_reads_waits_for_nobody_and_its_end_comes_last() {
    for policy in [Policy::Replay, Policy::Block] {
        let (mut world, id) = kept(20);
        let subscriber = world.subscribe(id, with(policy)).unwrap();
        world.ask(Event::Cancel(id));
        let Reply::Inspected(Ok(status)) = world.ask(Event::Inspect(id)) else { panic!() };
        assert_eq!(status.state, ExecutionState::Ended(Outcome::Cancelled), "{policy}");
        given(&mut world, subscriber, 1, 7);
        let actions = world.take();
        let at = |fits: fn(&Action) -> bool| actions.iter().position(fits);
        let run_at = at(|a| matches!(a, Action::Deliver { from_seq: 7, until_seq: 21, .. }));
        let end_at = at(|a| matches!(a, Action::End(..)));
        assert!(run_at.is_some() && run_at < end_at, "{policy}: {actions:?}");
    }
}

/// The ends that the disk was asked to keep.
fn ends_to_keep(actions: &[Action]) -> Vec<(Outcome, u64)> {
    let each = actions.iter().filter_map(|action| match action {
        Action::KeepEnd(_, verdict) => Some((verdict.outcome, verdict.head_seq)),
        _ => None,
    });
    each.collect()
}

#[test]
fn nobody_is_told_an_end_before_the_disk_keeps_it() {
    for policy in Policy::ALL {
        let (mut world, id) = kept(20);
        let subscriber = world.subscribe(id, with(policy)).unwrap();
        world.take();
        world.is_disk_slow = true;
        world.handle(Event::ProducerEnded(id.slot, ProducerEnd::Done));
        assert_eq!(ends_to_keep(&world.take()), [(Outcome::Completed, 20)], "{policy}");
        let Reply::Inspected(Ok(status)) = world.ask(Event::Inspect(id)) else { panic!() };
        assert_eq!((status.state, status.outcome), (ExecutionState::Running, None), "{policy}");
        if policy != Policy::DropOldest && policy != Policy::Conflate {
            given(&mut world, subscriber, 1, 7); // It goes on reading meanwhile.
        }
        // Its end is decided.
        let Reply::Cancelled(cancelled) = world.ask(Event::Cancel(id)) else { panic!() };
        assert_eq!(cancelled, Err(CancelError::Ended(Outcome::Completed)), "{policy}");
        world.handle(Event::ProducerEnded(id.slot, ProducerEnd::Failed("too late")));
        assert_eq!(world.ends(), [], "{policy}");
        world.handle(Event::EndKept(id.slot));
        world.handle(Event::EndKept(id.slot));
        world.handle(Event::NotKept(id.slot, "too late"));
        assert_eq!(world.ends(), [EndState::Ended(Outcome::Completed)], "{policy}");
    }
}

#[test]
fn what_the_disk_cannot_keep_fails_in_each_state() {
    let text = "the disk has failed";
    let error_of = |world: &mut TestEngine, id| {
        let Reply::Inspected(Ok(status)) = world.ask(Event::Inspect(id)) else { panic!() };
        (status.outcome, status.error.as_deref() == Some(text))
    };
    // It runs; its end is on the way; it was told to stop, and fails for no other reason.
    let (mut world, running) = kept(20);
    world.handle(Event::NotKept(running.slot, text));
    assert_eq!(error_of(&mut world, running), (Some(Outcome::Failed), true));
    let (mut world, leaving) = kept(20);
    world.is_disk_slow = true;
    world.handle(Event::ProducerEnded(leaving.slot, ProducerEnd::Done));
    world.handle(Event::NotKept(leaving.slot, text));
    assert_eq!(error_of(&mut world, leaving), (Some(Outcome::Failed), true));
    // It has no ring yet.
    let mut world = TestEngine::new(4, 0);
    let waiting = world.open(OpenSpec { kept: true, ..OpenSpec::new(RING) }).unwrap();
    world.handle(Event::NotKept(waiting.slot, text));
    assert_eq!(error_of(&mut world, waiting), (Some(Outcome::Failed), true));
}

#[test]
fn a_shutdown_waits_for_no_disk() {
    let (mut world, leaving) = kept(20);
    let running = world.open(OpenSpec { kept: true, ..OpenSpec::new(RING) }).unwrap();
    world.is_disk_slow = true;
    world.handle(Event::ProducerEnded(leaving.slot, ProducerEnd::Done));
    world.handle(Event::Shutdown);
    for (id, outcome) in [(leaving, Outcome::Completed), (running, Outcome::Cancelled)] {
        let Reply::Inspected(Ok(status)) = world.ask(Event::Inspect(id)) else { panic!() };
        assert_eq!(status.outcome, Some(outcome));
    }
}

#[test]
fn an_execution_that_is_brought_back_is_given_from_the_disk_and_then_ends() {
    let mut world = TestEngine::new(4, 4);
    let mut totals = KindTotals::default();
    totals.add(Kind::Stdout, Totals { chunks: 10, bytes: 100 });
    totals.add(Kind::Row, Totals { chunks: 10, bytes: 100 });
    let (outcome, error, exit) = (Outcome::Failed, Some("as it was".into()), None);
    let verdict = Verdict { outcome, head_seq: 20, totals, error, exit };
    let spec = OpenSpec { kept: true, ..OpenSpec::new(RING) };
    let Reply::Opened(Ok(id)) = world.ask(Event::Revive(spec, &verdict)) else { panic!() };
    let Reply::Inspected(Ok(status)) = world.ask(Event::Inspect(id)) else { panic!() };
    assert_eq!((status.outcome, status.head_seq), (Some(Outcome::Failed), 20));
    let subscriber = world.subscribe(id, with(Policy::Replay)).unwrap();
    assert_eq!(fetches(&world.take()), [(1, 21, u32::MAX)]);
    given(&mut world, subscriber, 1, 21);
    assert_eq!(world.ends(), [EndState::Ended(Outcome::Failed)]);
    let rows = SubscribeSpec { kinds: Kinds::NONE.with(Kind::Row), ..with(Policy::Block) };
    let subscriber = world.subscribe(id, rows).unwrap();
    lost(&mut world, subscriber, (1, 21), (GapReason::Corrupt, 10));
    assert_eq!(world.ends(), [EndState::Ended(Outcome::Failed)]);
    world.pass(crate::limits::RETENTION + Duration::from_millis(1));
    let Reply::Inspected(Err(NotFound)) = world.ask(Event::Inspect(id)) else { panic!() };
    // One without any chunk ends at once.
    let verdict = Verdict { head_seq: 0, totals: KindTotals::default(), ..verdict };
    let Reply::Opened(Ok(id)) = world.ask(Event::Revive(spec, &verdict)) else { panic!() };
    world.subscribe(id, with(Policy::Replay)).unwrap();
    assert_eq!(world.ends(), [EndState::Ended(Outcome::Failed)]);
}

#[test]
fn an_execution_that_is_forgotten_while_the_disk_reads_says_where_to_resume() {
    let (mut world, id) = kept(20);
    let subscriber = world.subscribe(id, with(Policy::Replay)).unwrap();
    world.handle(Event::ProducerEnded(id.slot, ProducerEnd::Done));
    given(&mut world, subscriber, 1, 4);
    world.take();
    // Its place is needed, because there are four.
    assert!((0..4).all(|_| world.open(OpenSpec::new(RING)).is_ok()));
    let state = EndState::Detached { reason: DetachReason::Evicted, resume_from: 4 };
    assert_eq!(world.ends(), [state]);
    given(&mut world, subscriber, 4, 7);
    assert_eq!(world.take(), []);
}

#[test]
fn an_execution_stays_while_the_disk_reads_for_somebody() {
    for retention in [Duration::ZERO, crate::limits::RETENTION] {
        let mut world = TestEngine::new(4, 4);
        let spec = OpenSpec { kept: true, retention, ..OpenSpec::new(RING) };
        let id = world.open(spec).unwrap();
        (0..20).for_each(|_| world.publish(id, 10));
        let subscriber = world.subscribe(id, with(Policy::Replay)).unwrap();
        world.handle(Event::ProducerEnded(id.slot, ProducerEnd::Done));
        given(&mut world, subscriber, 1, 4);
        world.take();
        (0..200).for_each(|_| world.pass(Duration::from_secs(1)));
        assert_eq!(world.ends(), []);
        given(&mut world, subscriber, 4, 7);
        assert_eq!(world.ends(), [EndState::Ended(Outcome::Completed)]);
        let Reply::Inspected(Ok(_)) = world.ask(Event::Inspect(id)) else { panic!() };
        world.pass(retention + 2 * crate::limits::RETENTION_LOOK);
        let Reply::Inspected(Err(NotFound)) = world.ask(Event::Inspect(id)) else { panic!() };
    }
}

#[test]
fn chunks_that_a_thread_overwrites_before_their_delivery_come_from_the_disk() {
    for policy in [Policy::Replay, Policy::Block] {
        let mut world = TestEngine::new(4, 4);
        let id = world.open(OpenSpec { kept: true, ..OpenSpec::new(RING) }).unwrap();
        let subscriber = world.subscribe(id, SubscribeSpec { demand: 9, ..with(policy) }).unwrap();
        (0..5).for_each(|_| world.publish(id, 10));
        world.take();
        world.handle(Event::Overtaken(subscriber, 3, 4));
        let actions = world.take();
        assert_eq!((fetches(&actions), gaps(&actions)), (vec![(3, 5, 7)], vec![]), "{policy}");
        world.publish(id, 10);
        assert_eq!(runs(&world.take()), [], "{policy}: not before the answer");
        given(&mut world, subscriber, 3, 5);
        assert_eq!(runs(&world.take()), [(5, 7)], "{policy}");
    }
}

/// The ring held its first chunk when it came, and then moved on.
#[test]
fn a_reader_that_has_not_got_its_backlog_is_given_it_from_the_disk() {
    for policy in [Policy::Drop, Policy::Disconnect, Policy::Block] {
        let (mut world, id) = kept(10);
        let spec = SubscribeSpec { demand: 0, ..with(policy) };
        let subscriber = world.subscribe(id, spec).unwrap();
        let tail_seq = 8; // Long chunks.
        world.handle(Event::HeldFrom(id.slot, tail_seq));
        world.handle(Event::Demand(subscriber, u32::MAX));
        assert_eq!(fetches(&world.take()), [(1, tail_seq, u32::MAX)], "{policy}");
        given(&mut world, subscriber, 1, tail_seq);
        assert_eq!(runs(&world.take()), [(tail_seq, 11)], "{policy}");
    }
}

/// Chunks that the disk has removed already, under each policy that reads from it.
#[test]
fn what_is_overwritten_and_no_longer_on_disk_is_a_gap_and_ends_nobody() {
    for policy in [Policy::Replay, Policy::Block, Policy::Disconnect] {
        let (mut world, id) = kept(20);
        let spec = SubscribeSpec { limit_chunks: Some(3), ..with(policy) };
        let subscriber = world.subscribe(id, spec).unwrap();
        world.take();
        let mut before = KindTotals::default();
        before.add(Kind::Output, Totals { chunks: 8, bytes: 80 });
        world.handle(Event::KeptFrom(id.slot, 9, &before));
        world.engine.handle(fetched(subscriber, 1, 7), Instant::ZERO);
        let mut next = || world.engine.next_action();
        let run = loop {
            match next() {
                Some(Action::Deliver { from_seq, until_seq, .. }) => break (from_seq, until_seq),
                other => assert!(matches!(other, Some(Action::SetGate(..))), "{policy} {other:?}"),
            }
        };
        assert_eq!(run, (7, 21), "{policy}");
        world.handle(Event::Overtaken(subscriber, 7, 10));
        let actions = world.take();
        let reason = GapReason::Expired;
        let gap = Gap { from_seq: 7, to_seq: 8, chunk_count: 2, byte_count: 20, reason };
        assert_eq!(gaps(&actions), [gap], "{policy}");
        assert!(!actions.iter().any(|action| matches!(action, Action::End(..))), "{policy}");
    }
}

#[test]
fn a_window_of_acknowledgements_holds_for_the_disk_as_well() {
    let (mut world, id) = kept(20);
    let spec = SubscribeSpec { ack_window: Some(2), ..with(Policy::Replay) };
    let subscriber = world.subscribe(id, spec).unwrap();
    assert_eq!(fetches(&world.take()), [(1, 7, 2)]);
    given(&mut world, subscriber, 1, 3);
    assert_eq!(fetches(&world.take()), []);
    assert_eq!(world.ask(Event::Acknowledge(subscriber, 1)), Reply::Acknowledged(Ok(())));
    assert_eq!(fetches(&world.take()), [(3, 4, 2)]);
    given(&mut world, subscriber, 3, 4);
    world.ask(Event::Acknowledge(subscriber, 3));
    assert_eq!(fetches(&world.take()), [(4, 7, 2)]);
}

#[test]
fn a_filter_is_counted_by_the_disk() {
    let mut world = TestEngine::new(4, 4);
    let id = world.open(OpenSpec { kept: true, ..OpenSpec::new(RING) }).unwrap();
    for seq in 1..=20 {
        world.publish_as(id, if seq % 2 == 0 { Kind::Stderr } else { Kind::Stdout }, 10);
    }
    let kinds = Kinds::NONE.with(Kind::Stderr);
    let subscriber = world.subscribe(id, SubscribeSpec { kinds, ..with(Policy::Drop) }).unwrap();
    world.take();
    let totals = Totals { chunks: 3, bytes: 30 };
    let result = Fetched::Given { totals, last_seq: 6 };
    world.handle(Event::Fetched { subscriber, from_seq: 1, until_seq: 7, result });
    assert_eq!(runs(&world.take()), [(7, 21)]);
    world.handle(Event::ProducerEnded(id.slot, ProducerEnd::Done));
    let actions = world.take();
    let Some(Action::End(_, _, end)) = actions.last() else { panic!("{actions:?}") };
    assert_eq!((end.given.chunks, end.published.chunks), (10, 10));
}

#[test]
fn a_reader_on_another_thread_gates_while_it_says_that_it_is_level() {
    let (mut world, id) = kept(20);
    let gate = |world: &mut TestEngine| {
        let gate_of = |action: &Action| match action {
            Action::SetGate(_, gate) => Some(gate.gate_seq),
            _ => None,
        };
        world.take().iter().filter_map(gate_of).next_back()
    };
    let place = SubscriberPlace::Remote;
    let spec = SubscribeSpec { place, replays: true, ..with(Policy::Block) };
    let Reply::Subscribed(Ok(subscribed)) = world.ask(Event::Subscribe(id, spec)) else {
        panic!("it is refused");
    };
    let subscriber = subscribed.subscriber;
    assert!(subscribed.cursor.is_away() && subscribed.replay.is_none());
    assert_eq!(gate(&mut world), None);
    world.handle(Event::ReaderAt(subscriber, 12));
    world.handle(Event::ReaderLevel(subscriber, true));
    assert_eq!(gate(&mut world), Some(12));
    // It holds the producer back, but not for longer than others that have just come.
    world.pass(crate::limits::BLOCK_DEADLINE / 2);
    world.handle(Event::ReaderLevel(subscriber, false));
    assert_eq!(gate(&mut world), Some(u64::MAX));
    world.handle(Event::ReaderLevel(subscriber, true));
    world.handle(Event::Gated(id.slot));
    assert_eq!(gate(&mut world), Some(12));
    world.pass(crate::limits::BLOCK_DEADLINE - Duration::from_millis(1));
    assert_eq!(world.engine.subscriber_count(id.slot), 1);
    world.handle(Event::Lost(subscriber)); // Its client finds everything on the disk.
    assert_eq!((gate(&mut world), world.engine.subscriber_count(id.slot)), (Some(u64::MAX), 0));
    // A reader in another process has no disk.
    let spec = SubscribeSpec { reads_disk: false, replays: false, ..spec };
    world.subscribe(id, spec).unwrap();
    assert_eq!(gate(&mut world), Some(1));
}
