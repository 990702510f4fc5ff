//! Repeated events are left out, and missing chunks are noticed.

use super::error::ClientError;
use super::event::{ChunkEvent, EndEvent, StartedEvent};
use super::order::Order;
use crate::base::{ExecutionId, Handle};
use crate::stream::{
    DetachReason, End, EndState, Gap, GapReason, Kind, LagLimit, Outcome, Policy, Totals,
};
use crate::wire::sse::{Reached, SeenTotals};

fn started(from_seq: u64) -> StartedEvent {
    StartedEvent {
        execution: ExecutionId { shard: 0, slot: Handle { index: 0, generation: 1 }, nonce: 1 },
        subscriber: "s0.1".to_owned(),
        tool: "t".to_owned(),
        token: None,
        policy: Policy::Drop,
        limit: LagLimit { chunks: 10, bytes: u64::MAX },
        from_seq,
        replay: None,
    }
}

/// A chunk of ten bytes.
fn chunk(seq: u64) -> ChunkEvent {
    ChunkEvent {
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

/// An end event: `given` chunks sent to the subscriber, `published` chunks of the execution.
fn end(state: EndState, given: u64, published: u64) -> EndEvent {
    let [given, published] = [given, published].map(|chunks| Totals { chunks, bytes: 10 * chunks });
    let end = End { state, given, missed: Totals::ZERO, published, duration_us: 0, exit: None };
    EndEvent { end, error: None }
}

fn completed(given: u64, published: u64) -> EndEvent {
    end(EndState::Ended(Outcome::Completed), given, published)
}

/// A cursor without counts.
fn at(seq: u64) -> Option<Reached> {
    Some(Reached { seq, seen: None, has_ended: false })
}

/// A cursor with counts.
fn seen(seq: u64, chunks: u64, bytes: u64) -> Option<Reached> {
    Some(Reached { seq, seen: Some(SeenTotals { chunks, bytes }), has_ended: false })
}

/// The same cursor after the end of the execution.
fn over(cursor: Option<Reached>) -> Option<Reached> {
    cursor.map(|reached| Reached { has_ended: true, ..reached })
}

/// The order after `started` and the chunks up to `up_to`.
fn order(is_whole: bool, up_to: u64) -> Order {
    let mut order = Order::new(is_whole, at(0));
    order.started(&started(1)).unwrap();
    for seq in 1..=up_to {
        assert!(order.chunk(&chunk(seq), at(seq)).unwrap());
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
    assert!(order.gap(&gap(4, 7), at(7)).unwrap());
    assert!(order.chunk(&chunk(8), None).unwrap());
    assert_eq!(order.reported_seq(), Some(8));
    assert_eq!(hole(order.chunk(&chunk(10), None)), (9, 10));
    assert_eq!(hole(order.gap(&gap(11, 12), None)), (9, 11));
    assert_eq!(hole(order.end(&completed(4, 8), over(at(9)))), (9, 10));
    assert!(order.end(&completed(4, 8), over(at(8))).is_ok());
    let detached = |resume_from| EndState::Detached { reason: DetachReason::Lag, resume_from };
    assert_eq!(hole(order.end(&end(detached(10), 4, 8), None)), (9, 10));
    assert!(order.end(&end(detached(9), 4, 8), None).is_ok());
    assert_eq!(order.reported_seq(), Some(8), "a refused event must change nothing");
}

#[test]
fn what_is_told_again_is_left_out() {
    let mut order = order(true, 5);
    order.resume();
    order.started(&started(3)).unwrap();
    assert!(!order.chunk(&chunk(3), at(3)).unwrap());
    assert!(!order.gap(&gap(4, 5), at(5)).unwrap());
    assert!(order.chunk(&chunk(6), at(6)).unwrap());
    assert!(is_protocol_error(order.gap(&gap(6, 9), at(9))));
    assert!(order.end(&completed(1, 6), over(at(6))).is_ok(), "the totals are no longer compared");
}

#[test]
fn a_connection_that_begins_too_late_is_found_at_once() {
    let mut order = order(true, 5);
    order.resume();
    assert_eq!(hole(order.started(&started(7))), (6, 7));
    let mut order = Order::new(true, at(5));
    assert_eq!(hole(order.started(&started(7))), (6, 7));
    order.started(&started(6)).unwrap();
    assert!(order.chunk(&chunk(6), None).unwrap());
}

#[test]
fn a_stream_may_begin_anywhere() {
    let mut order = Order::new(true, None);
    assert_eq!(order.reported_seq(), None);
    order.started(&started(1_000)).unwrap();
    assert_eq!(order.reported_seq(), Some(999));
    assert_eq!(hole(order.chunk(&chunk(1_001), None)), (1_000, 1_001));
    assert!(order.chunk(&chunk(1_000), None).unwrap());
}

#[test]
fn with_a_filter_only_the_order_and_the_sums_count() {
    let mut order = order(false, 2);
    assert!(order.chunk(&chunk(9), at(9)).unwrap());
    assert!(!order.chunk(&chunk(5), at(5)).unwrap());
    order.passed(at(20)).unwrap();
    assert_eq!(order.reported_seq(), Some(20));
    order.passed(at(3)).unwrap();
    assert_eq!(order.reported_seq(), Some(20), "the position must never go back");
    assert!(order.end(&completed(3, 3), over(at(30))).is_ok());
    assert!(
        is_protocol_error(order.end(&completed(4, 3), over(at(30)))),
        "a lost chunk must be detected"
    );
}

#[test]
fn the_end_counts_everything_over_all_connections_or_something_got_lost() {
    for is_whole in [true, false] {
        let resumed = || {
            let mut order = order(is_whole, 3);
            order.gap(&gap(4, 5), at(5)).unwrap();
            order.resume();
            order.started(&started(6)).unwrap();
            order.chunk(&chunk(6), at(6)).unwrap();
            order
        };
        let sums = |chunks| Totals { chunks, bytes: 10 * chunks };
        assert_eq!((resumed().given(), resumed().missed()), (sums(4), sums(2)));
        assert!(resumed().end(&completed(1, 6), over(at(6))).is_ok());
        for published in [0, 1, 5, 7] {
            assert!(is_protocol_error(resumed().end(&completed(1, published), over(at(6)))));
        }
        let detached = EndState::Detached { reason: DetachReason::Lag, resume_from: 7 };
        assert!(resumed().end(&end(detached, 1, 6), None).is_ok());
        assert!(is_protocol_error(resumed().end(&end(detached, 1, 5), None)));
    }
}

#[test]
fn a_server_that_has_started_again_may_have_fewer_chunks_than_came() {
    for is_whole in [true, false] {
        let failed = |published| end(EndState::Ended(Outcome::Failed), 0, published);
        let resumed = || {
            let mut order = order(is_whole, 5);
            order.resume();
            order.started(&started(4)).unwrap();
            order
        };
        let mut cut_short = resumed();
        cut_short.end(&failed(3), over(seen(3, 3, 30))).unwrap();
        assert_eq!(cut_short.reached(), over(at(3)));
        assert!(resumed().end(&failed(3), None).is_ok());
        assert!(is_protocol_error(resumed().end(&completed(0, 3), over(seen(3, 3, 30)))));
        assert!(is_protocol_error(resumed().end(&failed(6), over(seen(5, 5, 50)))));
        assert!(is_protocol_error(order(is_whole, 5).end(&failed(3), over(seen(3, 3, 30)))));
    }
}

#[test]
fn a_cursor_without_what_it_covers_is_not_believed() {
    let mut order = order(true, 2);
    order.passed(at(20)).unwrap();
    assert_eq!(order.reported_seq(), Some(2));
    assert!(is_protocol_error(order.chunk(&chunk(3), at(4))));
    assert!(is_protocol_error(order.gap(&gap(3, 4), at(3))));
}

#[test]
fn offsets_follow_from_what_came_before() {
    let mut order = order(true, 2);
    for offset in [0, 19, 21] {
        assert!(is_protocol_error(order.chunk(&ChunkEvent { offset, ..chunk(3) }, None)));
    }
    // A gap counts, too.
    for (offset, is_right) in [(20, false), (39, false), (40, true), (41, false)] {
        let mut order = self::order(true, 2);
        order.gap(&gap(3, 4), None).unwrap();
        let result = order.chunk(&ChunkEvent { offset, ..chunk(5) }, None);
        assert_eq!(result.is_ok(), is_right, "{offset}");
    }
}

#[test]
fn what_was_seen_is_summed_up_where_the_server_does_not_say_it() {
    let mut whole = Order::new(true, at(0));
    assert_eq!(whole.reached(), seen(0, 0, 0));
    whole.started(&started(1)).unwrap();
    whole.chunk(&chunk(1), None).unwrap();
    whole.gap(&gap(2, 4), None).unwrap();
    assert_eq!(whole.reached(), seen(4, 4, 40));
    whole.chunk(&chunk(5), None).unwrap();
    assert!(!whole.chunk(&chunk(3), None).unwrap());
    assert_eq!(whole.reached(), seen(5, 5, 50), "a repeated event must count once");
    whole.end(&completed(2, 5), None).unwrap();
    assert_eq!(whole.reached(), over(seen(5, 5, 50)), "the position after the end");
    assert_eq!(whole.reported_seq(), Some(5));

    let mut filtered = order(false, 2);
    filtered.chunk(&chunk(9), None).unwrap();
    let few = Gap { chunk_count: 2, byte_count: 7, ..gap(10, 19) };
    filtered.gap(&few, None).unwrap();
    assert_eq!(filtered.reached(), seen(19, 5, 37));
    let detached = EndState::Detached { reason: DetachReason::Lag, resume_from: 20 };
    let mut last_word = end(detached, 3, 5);
    last_word.end.published.bytes = 37;
    filtered.end(&last_word, None).unwrap();
    assert_eq!(
        filtered.reached(),
        seen(19, 5, 37),
        "a detached stream must continue after its last chunk"
    );
}

#[test]
fn what_was_seen_before_a_beginning_in_the_middle_is_known_from_the_server_or_the_first_chunk() {
    let mut live = Order::new(true, None);
    assert_eq!(live.reached(), None);
    live.started(&started(7)).unwrap();
    assert_eq!(live.reached(), at(6));
    live.gap(&gap(7, 8), None).unwrap();
    assert_eq!(live.reached(), at(8), "the counts before the gap are unknown");
    live.chunk(&chunk(9), None).unwrap();
    assert_eq!(live.reached(), seen(9, 9, 90), "a chunk must give its position");

    let mut filtered = Order::new(false, None);
    filtered.started(&started(7)).unwrap();
    filtered.chunk(&chunk(9), None).unwrap();
    assert_eq!(
        filtered.reached(),
        at(9),
        "with a filter, a chunk does not give the counts before it"
    );

    for is_whole in [true, false] {
        let mut order = Order::new(is_whole, None);
        order.started(&started(7)).unwrap();
        order.passed(seen(6, 6, 60)).unwrap();
        order.gap(&gap(7, 8), None).unwrap();
        assert_eq!(order.reached(), seen(8, 8, 80));
        let mut order = Order::new(is_whole, seen(6, 6, 60));
        order.started(&started(7)).unwrap();
        order.gap(&gap(7, 8), None).unwrap();
        assert_eq!(order.reached(), seen(8, 8, 80));
    }
}

#[test]
fn cursors_count_what_came_or_are_not_believed() {
    for is_whole in [true, false] {
        let order = || order(is_whole, 2);
        assert!(order().chunk(&chunk(3), seen(3, 3, 30)).unwrap());
        assert!(order().gap(&gap(3, 5), seen(5, 5, 50)).unwrap());
        order().passed(seen(2, 2, 20)).unwrap();
        order().end(&completed(2, 2), over(seen(2, 2, 20))).unwrap();
        assert!(is_protocol_error(order().chunk(&chunk(3), seen(3, 2, 30))));
        assert!(is_protocol_error(order().chunk(&chunk(3), seen(3, 3, 29))));
        assert!(is_protocol_error(order().gap(&gap(3, 5), seen(5, 5, 51))));
        assert!(is_protocol_error(order().passed(seen(2, 2, 21))));
        assert!(is_protocol_error(order().end(&completed(2, 2), over(seen(2, 2, 21)))));
        assert!(is_protocol_error(order().end(&completed(2, 2), over(seen(2, 1, 20)))));
        order().end(&completed(2, 2), seen(1, 1, 10)).unwrap(); // It is that of an earlier event.
        let mut refused = order();
        assert!(is_protocol_error(refused.gap(&gap(3, 5), seen(5, 4, 50))));
        assert_eq!(refused.reached(), seen(2, 2, 20), "a refused event must change nothing");
    }
    let mut filtered = order(false, 2);
    filtered.passed(seen(9, 2, 20)).unwrap();
    assert_eq!(filtered.reached(), seen(9, 2, 20));
    for chunk_count in [0, 2] {
        let few = Gap { chunk_count, ..gap(3, 5) };
        assert!(
            is_protocol_error(order(true, 2).gap(&few, None)),
            "a gap must report all three chunks"
        );
    }
}

#[test]
fn sums_that_nobody_can_have_are_not_known() {
    let mut order = Order::new(false, seen(5, u64::MAX, u64::MAX));
    order.started(&started(6)).unwrap();
    order.gap(&gap(6, 9), None).unwrap();
    assert_eq!(order.reached(), at(9));
}

#[test]
fn the_largest_numbers_are_numbers_too() {
    let mut order = Order::new(true, at(u64::MAX - 1));
    order.started(&started(u64::MAX)).unwrap();
    let last = ChunkEvent { offset: 0, ..chunk(u64::MAX) };
    assert!(order.chunk(&last, at(u64::MAX)).unwrap());
    assert!(!order.chunk(&last, at(u64::MAX)).unwrap());
    let mut ended = completed(1, 1);
    ended.end.published.chunks = u64::MAX;
    assert!(order.end(&ended, over(at(u64::MAX))).is_ok());
}
