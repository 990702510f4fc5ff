//! What is told twice is left out, and what is not told is missed.

use super::error::ClientError;
use super::event::{Chunk, Ended, Started};
use super::order::Order;
use crate::base::{ExecutionId, Handle};
use crate::engine::{
    DetachReason, End, EndState, Gap, GapReason, Kind, LagLimit, Outcome, Policy, Totals,
};

fn started(from_seq: u64) -> Started {
    Started {
        execution: ExecutionId { shard: 0, slot: Handle { index: 0, generation: 1 }, nonce: 1 },
        subscriber: "s0.1".to_owned(),
        tool: "t".to_owned(),
        token: None,
        policy: Policy::Drop,
        limit: LagLimit { chunks: 10, bytes: u64::MAX },
        from_seq,
    }
}

/// One of ten bytes each.
fn chunk(seq: u64) -> Chunk {
    Chunk {
        seq,
        total_chunks: None,
        kind: Kind::Output,
        key: None,
        offset: seq.saturating_sub(1).saturating_mul(10),
        data: vec![0; 10],
        timestamp_us: 0,
        mono_ns: 0,
    }
}

fn gap(from_seq: u64, to_seq: u64) -> Gap {
    let chunk_count = to_seq - from_seq + 1;
    Gap { from_seq, to_seq, chunk_count, byte_count: 10 * chunk_count, reason: GapReason::Lag }
}

fn end(state: EndState, chunks: u64) -> Ended {
    let given = Totals { chunks, bytes: 10 * chunks };
    let end = End { state, given, missed: Totals::ZERO, duration_us: 0, exit: None };
    Ended { end, error: None }
}

fn completed(chunks: u64) -> Ended {
    end(EndState::Ended(Outcome::Completed), chunks)
}

/// After `started`, and chunks up to this.
fn order(is_whole: bool, up_to: u64) -> Order {
    let mut order = Order::new(is_whole, None);
    order.started(&started(1)).unwrap();
    for seq in 1..=up_to {
        assert!(order.chunk(&chunk(seq), Some(seq)).unwrap());
    }
    order
}

fn hole(result: Result<impl std::fmt::Debug, ClientError>) -> (u64, u64) {
    match result {
        Err(ClientError::Hole { expected_seq, found_seq }) => (expected_seq, found_seq),
        other => panic!("{other:?}"),
    }
}

fn is_protocol_error(result: Result<impl std::fmt::Debug, ClientError>) -> bool {
    matches!(result, Err(ClientError::Protocol(_)))
}

#[test]
fn chunks_and_gaps_follow_each_other_without_a_hole() {
    let mut order = order(true, 3);
    assert!(order.gap(&gap(4, 7), Some(7)).unwrap());
    assert!(order.chunk(&chunk(8), None).unwrap());
    assert_eq!(order.told_seq(), Some(8));
    assert_eq!(hole(order.chunk(&chunk(10), None)), (9, 10));
    assert_eq!(hole(order.gap(&gap(11, 12), None)), (9, 11));
    assert_eq!(hole(order.end(&completed(4), Some(10))), (9, 10));
    assert!(order.end(&completed(4), Some(9)).is_ok());
    let detached = |resume_from| EndState::Detached { reason: DetachReason::Lag, resume_from };
    assert_eq!(hole(order.end(&end(detached(10), 4), None)), (9, 10));
    assert!(order.end(&end(detached(9), 4), None).is_ok());
    assert_eq!(order.told_seq(), Some(8), "what was refused changes nothing");
}

#[test]
fn what_is_told_again_is_left_out() {
    let mut order = order(true, 5);
    order.resume();
    order.started(&started(3)).unwrap();
    assert!(!order.chunk(&chunk(3), Some(3)).unwrap());
    assert!(!order.gap(&gap(4, 5), Some(5)).unwrap());
    assert!(order.chunk(&chunk(6), Some(6)).unwrap());
    assert!(is_protocol_error(order.gap(&gap(6, 9), Some(9))));
    assert!(order.end(&completed(1), Some(7)).is_ok(), "sums are not compared any more");
}

#[test]
fn a_connection_that_begins_too_late_is_found_at_once() {
    let mut order = order(true, 5);
    order.resume();
    assert_eq!(hole(order.started(&started(7))), (6, 7));
    let mut order = Order::new(true, Some(5));
    assert_eq!(hole(order.started(&started(7))), (6, 7));
    order.started(&started(6)).unwrap();
    assert!(order.chunk(&chunk(6), None).unwrap());
}

#[test]
fn a_stream_may_begin_anywhere() {
    let mut order = Order::new(true, None);
    assert_eq!(order.told_seq(), None);
    order.started(&started(1_000)).unwrap();
    assert_eq!(order.told_seq(), Some(999));
    assert_eq!(hole(order.chunk(&chunk(1_001), None)), (1_000, 1_001));
    assert!(order.chunk(&chunk(1_000), None).unwrap());
}

#[test]
fn with_a_filter_only_the_order_and_the_sums_count() {
    let mut order = order(false, 2);
    assert!(order.chunk(&chunk(9), Some(9)).unwrap());
    assert!(!order.chunk(&chunk(5), Some(5)).unwrap());
    order.passed(Some(20));
    assert_eq!(order.told_seq(), Some(20));
    order.passed(Some(3));
    assert_eq!(order.told_seq(), Some(20), "it never goes back");
    assert!(order.end(&completed(3), Some(31)).is_ok());
    assert!(is_protocol_error(order.end(&completed(4), Some(31))), "one has got lost");
}

#[test]
fn a_cursor_without_what_it_covers_is_not_believed() {
    let mut order = order(true, 2);
    order.passed(Some(20));
    assert_eq!(order.told_seq(), Some(2));
    assert!(is_protocol_error(order.chunk(&chunk(3), Some(4))));
    assert!(is_protocol_error(order.gap(&gap(3, 4), Some(3))));
}

#[test]
fn offsets_follow_from_what_came_before() {
    let mut order = order(true, 2);
    for offset in [0, 19, 21] {
        assert!(is_protocol_error(order.chunk(&Chunk { offset, ..chunk(3) }, None)));
    }
    let mut order = order_with_gap();
    assert!(order.chunk(&Chunk { offset: 7_777, ..chunk(5) }, None).unwrap());
}

fn order_with_gap() -> Order {
    let mut order = order(true, 2);
    order.gap(&gap(3, 4), None).unwrap();
    order
}

#[test]
fn the_largest_numbers_are_numbers_too() {
    let mut order = Order::new(true, Some(u64::MAX - 1));
    order.started(&started(u64::MAX)).unwrap();
    let last = Chunk { offset: 0, ..chunk(u64::MAX) };
    assert!(order.chunk(&last, Some(u64::MAX)).unwrap());
    assert!(!order.chunk(&last, Some(u64::MAX)).unwrap());
    assert!(order.end(&completed(1), Some(u64::MAX)).is_ok());
}
