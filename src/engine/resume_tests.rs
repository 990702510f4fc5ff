//! Subscribers that come back and say what they have seen: right, wrong and hostile.

use std::time::Duration;

use super::tests::{RING, TestEngine, with};
use super::*;
use crate::base::{ExecutionId, Random};
use crate::stream::{DetachReason, End, Gap, Kind, Kinds, Policy, Totals};

/// Thirty chunks, every third of them on standard error; the last fourteen are held.
fn written(world: &mut TestEngine) -> ExecutionId {
    let id = world.open(OpenSpec::new(RING)).unwrap();
    for seq in 1..=30u32 {
        let kind = if seq.is_multiple_of(3) { Kind::Stderr } else { Kind::Output };
        world.publish_as(id, kind, 10 * seq);
    }
    assert_eq!(world.engine.log(id.slot).unwrap().tail_seq(), 17);
    id
}

fn gaps(world: &mut TestEngine) -> Vec<Gap> {
    let gaps = world.take().into_iter().filter_map(|action| match action {
        Action::Gap(_, _, gap) => Some(gap),
        _ => None,
    });
    gaps.collect()
}

#[test]
fn who_says_what_it_has_seen_is_believed_as_far_as_that_can_be() {
    const IMPOSSIBLE: SubscribeError = SubscribeError::Invalid { field: "from.seen" };
    let stderr = Kinds::NONE.with(Kind::Stderr);
    // Before 17: 16 chunks of 1,360 bytes; 5 of 450 on standard error. Before 5: 4 of 100; 1 of 30.
    let table = [
        (Kinds::ALL, 5, 4, 100, Ok((12, 1_260))),
        (Kinds::ALL, 5, 3, 100, Err(IMPOSSIBLE)), // More missed than there were in between.
        (Kinds::ALL, 5, 5, 100, Err(IMPOSSIBLE)), // More seen than there were before.
        (Kinds::ALL, 5, u64::MAX, 100, Err(IMPOSSIBLE)),
        (Kinds::ALL, 5, 4, 1_361, Err(IMPOSSIBLE)), // More than all.
        (Kinds::ALL, 5, 4, u64::MAX, Err(IMPOSSIBLE)),
        (Kinds::ALL, 16, 15, 600, Err(IMPOSSIBLE)), // Chunk 16 would have 760 bytes of 512.
        (Kinds::ALL, 16, 15, 1_200, Ok((1, 160))),
        (Kinds::ALL, 2, 1, 1_000, Err(IMPOSSIBLE)), // The first chunk would have had 1,000.
        (Kinds::ALL, 30, 0, u64::MAX, Ok((0, 0))),  // Still held: no claim is needed.
        (Kinds::ALL, 31, u64::MAX, 0, Ok((0, 0))),
        (Kinds::ALL, 1, u64::MAX, u64::MAX, Ok((16, 1_360))),
        (Kinds::ALL, 32, 31, 0, Err(SubscribeError::NotYet { next_seq: 31 })),
        (Kinds::ALL, u64::MAX, u64::MAX, u64::MAX, Err(SubscribeError::NotYet { next_seq: 31 })),
        (Kinds::ALL, 0, 0, 0, Err(SubscribeError::Invalid { field: "from" })),
        (stderr, 5, 1, 30, Ok((4, 420))),
        (stderr, 5, 6, 30, Err(IMPOSSIBLE)),
        (stderr, 5, 0, 30, Err(IMPOSSIBLE)), // Bytes of no chunk.
        (stderr, 16, 5, 440, Err(IMPOSSIBLE)), // Bytes of no chunk are missing.
        (stderr, 16, 5, 450, Ok((0, 0))),
    ];
    for (kinds, seq, chunks, bytes, expected) in table {
        let mut world = TestEngine::new(4, 4);
        let id = written(&mut world);
        world.take();
        let from = From::Seq { seq, seen: Some(Totals { chunks, bytes }) };
        let spec = SubscribeSpec { from, kinds, ..with(Policy::Block) };
        let result = world.subscribe(id, spec);
        let context = format!("{kinds:?} from {seq}, {chunks} chunks of {bytes} bytes");
        match expected {
            Err(error) => assert_eq!(result, Err(error), "{context}"),
            Ok(missed) => {
                assert!(result.is_ok(), "{context}: {result:?}");
                let gaps = gaps(&mut world);
                let told: Vec<(u64, u64)> =
                    gaps.iter().map(|gap| (gap.chunk_count, gap.byte_count)).collect();
                let expected = if missed == (0, 0) { vec![] } else { vec![missed] };
                assert_eq!(told, expected, "{context}");
            }
        }
    }
}

/// A power cut may have taken the newest chunks from the log, and not from the subscriber.
#[test]
fn who_is_ahead_of_an_execution_that_is_over_is_given_its_end() {
    for seq in [31, 32, u64::MAX] {
        let mut world = TestEngine::new(4, 4);
        let id = written(&mut world);
        world.handle(Event::ProducerEnded(id.slot, ProducerEnd::Done));
        world.take();
        let seen = Some(Totals { chunks: seq - 1, bytes: 1 << 40 });
        let spec = SubscribeSpec { from: From::Seq { seq, seen }, ..with(Policy::Drop) };
        world.subscribe(id, spec).unwrap();
        let ends = world.take().into_iter().filter_map(|action| match action {
            Action::End(_, _, end) => Some(end),
            Action::Gap(..) => panic!("nothing is missing"),
            _ => None,
        });
        let ends: Vec<End> = ends.collect();
        assert_eq!(ends.len(), 1, "{seq}");
        assert_eq!((ends[0].given, ends[0].missed), (Totals::ZERO, Totals::ZERO), "{seq}");
    }
}

/// Any claim is either refused, or everything after it adds up.
#[test]
fn nothing_that_is_said_breaks_anything_later() {
    let mut random = Random::new(7);
    let mut granted_count = 0;
    let mut world = TestEngine::new(4, 4);
    for round in 0..300 {
        let id = written(&mut world);
        world.take();
        let mut number = || match random.below(4) {
            0 => random.below(20),
            1 => random.below(1_400),
            2 => u64::MAX - random.below(3),
            _ => random.next_u64() >> random.below(64),
        };
        let seen = Totals { chunks: number(), bytes: number() };
        let mut seq = number();
        if random.chance(3, 4) {
            seq = random.between(1, 20);
        }
        let chunks = if random.chance(1, 2) { seq.wrapping_sub(1) } else { seen.chunks };
        let seen = Totals { chunks, ..seen };
        let stderr = Kinds::NONE.with(Kind::Stderr);
        let kinds = if random.chance(1, 2) { Kinds::ALL } else { stderr };
        let policy = Policy::ALL[random.below(Policy::ALL.len() as u64) as usize];
        let limit_bytes = random.chance(1, 2).then_some(100);
        let from = From::Seq { seq, seen: Some(seen) };
        let spec = SubscribeSpec { from, kinds, limit_bytes, ..with(policy) };
        if world.subscribe(id, spec).is_err() {
            world.handle(Event::ProducerEnded(id.slot, ProducerEnd::Done));
            continue;
        }
        granted_count += 1;
        for seq in 31..40u32 {
            world.publish_as(id, Kind::Stderr, seq);
        }
        world.handle(Event::ProducerEnded(id.slot, ProducerEnd::Done));
        let told = world.take();
        let mut missed = Totals::ZERO;
        for action in &told {
            if let Action::Gap(_, _, gap) = action {
                let context = format!("round {round}: {gap:?} after {from:?}, {policy} {kinds:?}");
                assert!(gap.from_seq <= gap.to_seq, "{context}");
                assert!(gap.chunk_count <= gap.to_seq + 1 - gap.from_seq, "{context}");
                let bytes_max = gap.chunk_count * u64::from(RING.chunk_bytes_max);
                assert!(gap.byte_count <= bytes_max, "{context}");
                let gap = Totals { chunks: gap.chunk_count, bytes: gap.byte_count };
                missed = missed + gap;
            }
        }
        let ends: Vec<_> = told.iter().filter(|action| matches!(action, Action::End(..))).collect();
        let [Action::End(_, _, end)] = ends[..] else { panic!("round {round}: {ends:?}") };
        assert_eq!(end.missed, missed, "round {round}: {from:?}");
        assert!(end.given.chunks <= 23, "round {round}: {from:?}, {end:?}");
    }
    assert!(granted_count > 60, "{granted_count}");
}

fn replaying(from: From) -> SubscribeSpec {
    SubscribeSpec { from, replays: true, ..with(Policy::Block) }
}

fn forgotten(world: &mut TestEngine) -> Vec<SubscriberId> {
    let forgotten = world.take().into_iter().filter_map(|action| match action {
        Action::Forget(subscriber, _) => Some(subscriber),
        _ => None,
    });
    forgotten.collect()
}

fn at(seq: u64) -> From {
    From::Seq { seq, seen: None }
}

#[test]
fn who_comes_back_takes_the_nearest_place_that_is_lost() {
    let mut world = TestEngine::new(4, 4);
    let id = world.open(OpenSpec::new(RING)).unwrap();
    let lost: Vec<SubscriberId> = [6, 4, 9]
        .into_iter()
        .map(|end_seq| {
            let spec = SubscribeSpec { demand: end_seq - 1, ..replaying(From::Start) };
            world.subscribe(id, spec).unwrap()
        })
        .collect();
    let there = world.subscribe(id, replaying(From::Start)).unwrap();
    for _ in 0..10 {
        world.publish(id, 8);
    }
    lost.iter().for_each(|&each| world.handle(Event::Lost(each)));
    world.take();
    // Not behind all of them, not with other terms, and not one that does not replay.
    let others = [
        replaying(at(10)),
        replaying(From::Start),
        SubscribeSpec { limit_chunks: Some(3), ..replaying(at(5)) },
        SubscribeSpec { replays: false, ..replaying(at(5)) },
        SubscribeSpec { policy: Policy::Buffer, ..replaying(at(5)) },
        SubscribeSpec { place: SubscriberPlace::Remote, replays: false, ..replaying(at(5)) },
    ];
    for other in others {
        world.subscribe(id, other).unwrap();
        assert_eq!(forgotten(&mut world), [], "{other:?}");
    }
    world.subscribe(id, replaying(at(5))).unwrap();
    assert_eq!(forgotten(&mut world), [lost[0]]);
    world.subscribe(id, replaying(at(4))).unwrap();
    assert_eq!(forgotten(&mut world), [lost[1]]);
    world.subscribe(id, replaying(at(4))).unwrap();
    assert_eq!(forgotten(&mut world), [lost[2]]);
    world.subscribe(id, replaying(at(4))).unwrap();
    assert_eq!(forgotten(&mut world), []);
    assert_eq!(world.engine.counters().subscribers_resumed, 3);
    assert!(world.engine.terms(there).is_some());
}

#[test]
fn a_place_that_is_taken_over_is_held_all_the_time() {
    let mut world = TestEngine::new(4, 4);
    let id = world.open(OpenSpec::new(RING)).unwrap();
    let lost = world.subscribe(id, replaying(From::Start)).unwrap();
    for _ in 0..10 {
        world.publish(id, 8);
    }
    world.handle(Event::Lost(lost));
    world.handle(Event::Gated(id.slot));
    let gates = |world: &mut TestEngine| -> Vec<u64> {
        let gates = world.take().into_iter().filter_map(|action| match action {
            Action::SetGate(_, gate) => Some(gate.gate_seq),
            _ => None,
        });
        gates.collect()
    };
    assert_eq!(gates(&mut world).last(), Some(&3)); // Half of the slots, before chunk 11.
    world.subscribe(id, replaying(at(5))).unwrap();
    // Five to ten are given once more, and meanwhile nothing from the third on is given up.
    assert!(gates(&mut world).into_iter().all(|gate_seq| gate_seq <= 3));
    world.handle(Event::Gated(id.slot));
    assert!(gates(&mut world).into_iter().all(|gate_seq| gate_seq == 3));
    world.pass(crate::limits::RECONNECT_GRACE * 2);
    assert_eq!(world.ends(), []);
}

fn detached(world: &mut TestEngine) -> Vec<(SubscriberId, DetachReason)> {
    let detached = world.take().into_iter().filter_map(|action| match action {
        Action::DetachReader(subscriber, _, reason) => Some((subscriber, reason)),
        _ => None,
    });
    detached.collect()
}

#[test]
fn a_reader_of_another_thread_is_lost_and_comes_back_as_any_other() {
    let mut world = TestEngine::new(4, 4);
    let id = world.open(OpenSpec::new(RING)).unwrap();
    let remote = |from| SubscribeSpec { place: SubscriberPlace::Remote, ..replaying(from) };
    let first = world.subscribe(id, remote(From::Start)).unwrap();
    for _ in 0..10 {
        world.publish(id, 8);
    }
    world.handle(Event::ReaderAt(first, 11));
    world.handle(Event::Lost(first));
    world.handle(Event::Lost(first));
    world.handle(Event::Gated(id.slot));
    let is_gate = |action: &Action| matches!(action, Action::SetGate(..));
    let told = world.take();
    let Some(Action::SetGate(_, gate)) = told.iter().rfind(|action| is_gate(action)) else {
        panic!("{told:?}");
    };
    assert_eq!((gate.gate_seq, gate.read_seq), (3, 11)); // Half of the slots, before chunk 11.
    assert!(world.engine.subscribers(id).unwrap()[0].lost);
    let second = world.subscribe(id, remote(at(5))).unwrap();
    assert_eq!(forgotten(&mut world), [first]);
    world.pass(crate::limits::RECONNECT_GRACE * 2);
    assert_eq!(detached(&mut world), []);
    world.handle(Event::ReaderAt(second, 11));
    world.handle(Event::Lost(second));
    // From one thread to another, and back.
    let third = world.subscribe(id, replaying(at(9))).unwrap();
    assert_eq!(forgotten(&mut world), [second]);
    world.handle(Event::Lost(third));
    let fourth = world.subscribe(id, remote(at(9))).unwrap();
    assert_eq!(forgotten(&mut world), [third]);
    world.handle(Event::Lost(fourth));
    world.pass(crate::limits::RECONNECT_GRACE * 2);
    assert_eq!(detached(&mut world), [(fourth, DetachReason::Lost)]);
    // A reader whose client cannot come back loses its place at once.
    for spec in [
        SubscribeSpec { place: SubscriberPlace::Remote, ..with(Policy::Block) },
        SubscribeSpec { place: SubscriberPlace::Remote, replays: true, ..with(Policy::Drop) },
    ] {
        let other = world.subscribe(id, spec).unwrap();
        world.handle(Event::Lost(other));
        assert_eq!(detached(&mut world), [(other, DetachReason::Lost)]);
    }
    assert_eq!(world.engine.counters().subscribers_resumed, 3);
}

#[test]
fn a_reader_of_another_thread_acknowledges_what_it_has_read() {
    let mut world = TestEngine::new(4, 4);
    let id = world.open(OpenSpec::new(RING)).unwrap();
    let remote = SubscribeSpec { place: SubscriberPlace::Remote, ..replaying(From::Start) };
    let silent = world.subscribe(id, remote).unwrap();
    let spec = SubscribeSpec { ack_window: Some(20), ..remote };
    let subscriber = world.subscribe(id, spec).unwrap();
    for _ in 0..10 {
        world.publish(id, 8);
    }
    world.handle(Event::ReaderAt(subscriber, 9));
    let mut acknowledge = |subscriber, seq| {
        let reply = world.ask(Event::Acknowledge(subscriber, seq));
        let Reply::Acknowledged(result) = reply else { panic!("{reply:?}") };
        result
    };
    assert_eq!(acknowledge(subscriber, 8), Ok(()));
    assert_eq!(acknowledge(subscriber, 3), Ok(())); // It has acknowledged more before.
    let ahead = Err(AcknowledgeError::NotGiven { next_seq: 9 });
    assert_eq!(acknowledge(subscriber, 9), ahead);
    assert_eq!(acknowledge(silent, 1), Err(AcknowledgeError::NotAsked));
    world.handle(Event::ReaderGone(silent));
    world.take();
    world.handle(Event::ReaderAt(subscriber, 11));
    world.handle(Event::Gated(id.slot));
    let told = world.take();
    let gates = told.iter().any(|action| {
        matches!(action, Action::SetGate(_, gate) if (gate.gate_seq, gate.read_seq) == (9, 11))
    });
    assert!(gates, "{told:?}");
}

#[test]
fn a_reader_that_stands_where_it_cannot_is_let_go_and_holds_nobody_back() {
    let mut world = TestEngine::new(4, 4);
    let id = world.open(OpenSpec::new(RING)).unwrap();
    let remote = SubscribeSpec { place: SubscriberPlace::Remote, ..replaying(From::Start) };
    let (wild, other) =
        (world.subscribe(id, remote).unwrap(), world.subscribe(id, remote).unwrap());
    world.publish(id, 8);
    world.handle(Event::ReaderAt(other, 2));
    world.handle(Event::Gated(id.slot));
    world.take();
    world.handle(Event::ReaderWild(wild));
    let told = world.take();
    let is_told = |wanted: &Action| told.iter().any(|action| action == wanted);
    assert!(is_told(&Action::DetachReader(wild, id.slot, DetachReason::Evicted)), "{told:?}");
    let opens = |action: &Action| matches!(action, Action::SetGate(_, gate) if gate.read_seq == 2);
    assert!(told.iter().any(opens), "{told:?}");
    assert_eq!(world.engine.counters().subscribers_detached_evicted, 1);
    world.handle(Event::ReaderWild(wild)); // It does not exist any more.
    assert!(world.take().is_empty());
}

#[test]
fn with_acknowledgements_only_what_is_not_acknowledged_is_kept() {
    let mut world = TestEngine::new(4, 4);
    let id = world.open(OpenSpec::new(RING)).unwrap();
    let spec = SubscribeSpec { ack_window: Some(20), ..replaying(From::Start) };
    let subscriber = world.subscribe(id, spec).unwrap();
    for _ in 0..10 {
        world.publish(id, 8);
    }
    let gate_seq = |world: &mut TestEngine| {
        world.take();
        world.handle(Event::Gated(id.slot));
        world.take().into_iter().find_map(|action| match action {
            Action::SetGate(_, gate) => Some((gate.gate_seq, gate.read_seq)),
            _ => None,
        })
    };
    // Half of the 16 slots keep the unacknowledged chunks. No more are given, and all of them are
    // held.
    assert_eq!(gate_seq(&mut world), Some((1, 9)));
    world.ask(Event::Acknowledge(subscriber, 7));
    assert_eq!(gate_seq(&mut world), Some((8, 11)));
    world.ask(Event::Acknowledge(subscriber, 10));
    assert_eq!(gate_seq(&mut world), Some((11, 11)));
}

/// The producer's process reports that it waits, but the report is out of date.
#[test]
fn a_producer_goes_on_where_an_acknowledgement_leaves_the_gate_to_another_reader() {
    let mut world = TestEngine::new(4, 4);
    let id = world.open(OpenSpec::new(RING)).unwrap();
    world.subscribe(id, replaying(From::Start)).unwrap(); // The newest are kept for it.
    let spec = SubscribeSpec { ack_window: Some(8), ..replaying(From::Start) };
    let slow = world.subscribe(id, spec).unwrap();
    for _ in 0..8 {
        world.publish(id, 8);
    }
    for _ in 0..2 {
        world.handle(Event::Gated(id.slot)); // The first time, the gate is set again.
    }
    assert!(world.engine.is_held_back(id.slot));
    world.take();
    world.ask(Event::Acknowledge(slow, 8)); // It audits: no producer waits without a reason.
    assert!(!world.engine.is_held_back(id.slot));
    let told = world.take();
    assert!(!told.iter().any(|action| matches!(action, Action::SetGate(..))), "{told:?}");
}

#[test]
fn what_was_given_and_not_acknowledged_is_kept_whatever_its_size() {
    let mut random = Random::new(3);
    for round in 0..200u64 {
        let mut world = TestEngine::new(4, 4);
        let id = world.open(OpenSpec::new(RING)).unwrap();
        let ack_window = Some(random.between(1, 64) as u32);
        let spec = SubscribeSpec { ack_window, ..replaying(From::Start) };
        let subscriber = world.subscribe(id, spec).unwrap();
        let (mut gate_seq, mut given_seq, mut acked_seq) = (1, 0, 0);
        for _ in 0..200 {
            let head_seq = world.engine.log(id.slot).unwrap().head_seq();
            let length = random.between(0, 512) as u32;
            let bytes = |from_seq: u64| -> u64 {
                let log = world.engine.log(id.slot).unwrap();
                let held = (from_seq..=head_seq).map(|seq| log.meta(seq).length);
                held.map(|length| u64::from(length.next_multiple_of(8))).sum()
            };
            // A ring of 16 slots and 2,048 bytes, which overwrites nothing from the gate on.
            let tail_seq = world.engine.log(id.slot).unwrap().tail_seq();
            let fits = |seq| head_seq + 1 - seq < 14 && bytes(seq) + u64::from(length) <= 1_536;
            let room = (tail_seq..=gate_seq.min(head_seq + 1)).find(|&seq| fits(seq));
            match room {
                Some(tail_seq) => world.publish_over(id, length, tail_seq),
                None => world.handle(Event::Gated(id.slot)),
            }
            for action in world.take() {
                match action {
                    Action::SetGate(_, gate) => gate_seq = gate.gate_seq,
                    Action::Deliver { until_seq, .. } => given_seq = until_seq - 1,
                    Action::Gap(_, _, gap) => panic!("round {round}: {gap:?}"),
                    _ => {}
                }
            }
            // The client may come back for any of these at any time.
            assert!(world.engine.log(id.slot).unwrap().tail_seq() <= acked_seq + 1);
            if random.chance(1, 3) && given_seq > acked_seq {
                acked_seq = random.between(acked_seq + 1, given_seq);
                world.ask(Event::Acknowledge(subscriber, acked_seq));
            }
        }
        assert!(acked_seq > 20, "round {round}: it was given {given_seq}");
    }
}

#[test]
fn a_client_that_is_back_before_its_loss_is_noticed_takes_its_own_place() {
    for place in [SubscriberPlace::Local, SubscriberPlace::Remote] {
        let mut world = TestEngine::new(4, 4);
        let id = world.open(OpenSpec::new(RING)).unwrap();
        let spec = SubscribeSpec { place, ..replaying(From::Start) };
        let old = world.subscribe(id, spec).unwrap();
        let other = world.subscribe(id, spec).unwrap();
        for _ in 0..6 {
            world.publish(id, 8);
        }
        for reader in [old, other] {
            world.handle(Event::ReaderAt(reader, 7));
        }
        world.take();
        let back = SubscribeSpec { place, ..replaying(From::Seq { seq: 4, seen: None }) };
        let new = world.subscribe(id, back).unwrap();
        assert_eq!(world.engine.counters().subscribers_resumed, 0);
        world.take();
        // Both old ones fit. The new one is the successor of the first.
        world.handle(Event::Lost(old));
        assert!(world.take().contains(&Action::Forget(old, id.slot)), "{place:?}");
        assert_eq!(world.engine.counters().subscribers_resumed, 1);
        // The other one keeps its place, since no client has come back for it.
        world.handle(Event::Lost(other));
        assert!(!world.take().contains(&Action::Forget(other, id.slot)), "{place:?}");
        world.handle(Event::Lost(new));
        assert_eq!(world.engine.counters().subscribers_resumed, 1);
        world.engine.audit();
    }
}

#[test]
fn a_claim_that_has_expired_keeps_no_client_from_its_place() {
    for place in [SubscriberPlace::Local, SubscriberPlace::Remote] {
        let mut world = TestEngine::new(4, 4);
        let id = world.open(OpenSpec::new(RING)).unwrap();
        let old = world.subscribe(id, SubscribeSpec { place, ..replaying(From::Start) }).unwrap();
        for _ in 0..6 {
            world.publish(id, 8);
        }
        world.handle(Event::ReaderAt(old, 7));
        let back = SubscribeSpec { place, ..replaying(From::Seq { seq: 4, seen: None }) };
        // Another client begins at the same chunk. The old connection is up all this time.
        world.subscribe(id, back).unwrap();
        world.pass(crate::limits::RECONNECT_GRACE + Duration::from_millis(1));
        world.handle(Event::Lost(old));
        assert!(!world.take().contains(&Action::Forget(old, id.slot)), "{place:?}");
        world.subscribe(id, back).unwrap();
        assert!(world.take().contains(&Action::Forget(old, id.slot)), "{place:?}");
        assert_eq!(world.engine.counters().subscribers_resumed, 1);
        world.engine.audit();
    }
}

#[test]
fn who_reads_on_is_no_stalled_reader_also_while_its_reserve_still_grows() {
    let mut world = TestEngine::new(4, 4);
    let id = world.open(OpenSpec::new(RING)).unwrap();
    let slow = SubscribeSpec { demand: 0, ..replaying(From::Start) };
    let slow = world.subscribe(id, slow).unwrap();
    for _ in 0..14 {
        world.publish(id, 8);
    }
    world.handle(Event::Gated(id.slot));
    for _ in 0..8 {
        world.pass(crate::limits::BLOCK_DEADLINE / 2);
        world.handle(Event::Demand(slow, 1));
        world.handle(Event::Gated(id.slot)); // It tries again, and still cannot.
    }
    assert_eq!(world.ends(), []);
    world.pass(crate::limits::BLOCK_DEADLINE * 2);
    assert_eq!(world.ends().len(), 1);
}
