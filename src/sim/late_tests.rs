//! Executions that wait for the disk, on simulated disks: what is given, and when. The disk stands
//! still, is full, or fails.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use super::kept_tests::{Given, Kept, MILLISECOND, follow};
use crate::base::ExecutionId;
use crate::engine::{SubscribeError, SubscribeSpec, Timeouts};
use crate::shard::{ExecuteError, ExecuteOptions, PublishError, Recall};
use crate::sim::disk::FailingOperation;
use crate::stream::{Deliver, Durability, EndState, GapReason, Kind, OnFull, Outcome, Policy};
use crate::tool::{Context, EmitError, Need, Output, Prepared, Step, Tool, Work};

const SECOND: Duration = Duration::from_secs(1);
const DURABILITIES: [Durability; 2] = [Durability::Written, Durability::Synced];

fn when_durable(durability: Durability) -> ExecuteOptions {
    let (durability, deliver) = (Some(durability), Deliver::WhenDurable);
    ExecuteOptions { durability, deliver, ..Default::default() }
}

/// Options under which the producer waits for at most three seconds.
fn waits(deliver: Deliver) -> ExecuteOptions {
    ExecuteOptions {
        durability: Some(Durability::Written),
        deliver,
        on_full: OnFull::Wait,
        block_deadline: Some(3 * SECOND),
        ..Default::default()
    }
}

/// Publishes until the producer has to wait. Returns the number of chunks.
fn publish_until_gated(kept: &mut Kept, id: ExecutionId) -> u64 {
    let mut count = 0;
    loop {
        match kept.shard.publish(id, Kind::Output, b"precious") {
            Ok(seq) => count = seq,
            Err(error) => {
                assert_eq!(error, PublishError::Blocked);
                return count;
            }
        }
    }
}

fn end_of(given: &Rc<RefCell<Given>>) -> Option<(EndState, Option<String>)> {
    given.borrow().end.clone()
}

const COMPLETED: EndState = EndState::Ended(Outcome::Completed);
const FAILED: EndState = EndState::Ended(Outcome::Failed);

#[test]
fn nothing_is_given_before_it_is_durable_and_then_everything_is() {
    for durability in DURABILITIES {
        let mut kept = Kept::new();
        let id = kept.open_with(Work::Feed, when_durable(durability));
        let given = follow(&mut kept, id, Policy::Replay);
        kept.pass(MILLISECOND);
        kept.disk.hold();
        for seq in 1..=3 {
            assert_eq!(kept.shard.publish(id, Kind::Output, b"precious"), Ok(seq));
        }
        kept.pass(10 * SECOND);
        let late = follow(&mut kept, id, Policy::Buffer);
        kept.pass(10 * SECOND);
        assert!(given.borrow().seqs.is_empty() && late.borrow().seqs.is_empty(), "{durability}");
        assert_eq!(kept.shard.inspect(id).unwrap().head_seq, 0);
        kept.disk.release();
        kept.pass(MILLISECOND);
        assert_eq!((given.borrow().seqs.len(), late.borrow().seqs.len()), (3, 3), "{durability}");
        assert_eq!(kept.shard.durable_seq(id), Some(3));
        kept.shard.finish(id, Ok(())).unwrap();
        kept.pass(2 * SECOND);
        assert_eq!(end_of(&given), Some((COMPLETED, None)));
    }
}

#[test]
fn a_producer_whose_ring_is_full_goes_on_when_the_disk_moves() {
    for has_reader in [false, true] {
        let mut kept = Kept::new();
        let id = kept.open_with(Work::Feed, when_durable(Durability::Synced));
        let given = has_reader.then(|| follow(&mut kept, id, Policy::Block));
        kept.pass(MILLISECOND);
        kept.disk.hold();
        let count = publish_until_gated(&mut kept, id);
        assert!(count > 0);
        kept.pass(100 * SECOND); // No reader is blamed for the disk.
        assert_eq!(kept.shard.publish(id, Kind::Output, b"more"), Err(PublishError::Blocked));
        kept.disk.release();
        kept.pass(MILLISECOND);
        assert_eq!(kept.shard.publish(id, Kind::Output, b"more"), Ok(count + 1));
        kept.shard.finish(id, Ok(())).unwrap();
        kept.pass(2 * SECOND);
        assert_eq!(kept.shard.inspect(id).unwrap().head_seq, count + 1);
        assert_eq!(kept.shard.inspect(id).unwrap().outcome, Some(Outcome::Completed));
        if let Some(given) = given {
            assert!(given.borrow().seqs.iter().copied().eq(1..=count + 1));
            assert_eq!(end_of(&given), Some((COMPLETED, None)));
        }
    }
}

/// A tool that is stepped, and emits as many chunks as there is room for.
struct Emits {
    left: u64,
}

impl Tool for Emits {
    fn step(&mut self, context: &mut Context<'_>) -> Step {
        while self.left > 0 {
            match context.emit(&[5; 100]) {
                Ok(_) => self.left -= 1,
                Err(EmitError::Blocked) => return Step::Blocked,
                Err(error) => panic!("{error:?}"),
            }
        }
        Step::Done
    }
}

#[test]
fn a_tool_that_is_stepped_waits_for_the_disk_and_is_not_silent_meanwhile() {
    for durability in DURABILITIES {
        let mut kept = Kept::new();
        kept.pass(MILLISECOND);
        kept.disk.hold();
        let timeouts = Timeouts { inactivity: Some(SECOND), ..Timeouts::NONE };
        let options = ExecuteOptions { timeouts: Some(timeouts), ..when_durable(durability) };
        let id = kept.open_with(Work::Steps(Box::new(Emits { left: 1_000 })), options);
        kept.pass(10 * SECOND);
        let status = kept.shard.inspect(id).unwrap();
        assert_eq!((status.outcome, status.head_seq), (None, 0), "{durability}");
        kept.disk.release();
        kept.pass(5 * SECOND);
        let status = kept.shard.inspect(id).unwrap();
        assert_eq!((status.outcome, status.head_seq), (Some(Outcome::Completed), 1_000));
    }
}

#[test]
fn a_tool_on_a_thread_waits_for_the_disk_and_goes_on() {
    for options in [when_durable(Durability::Synced), waits(Deliver::WhenDurable)] {
        let mut kept = Kept::new();
        let work = move |out: &mut Output| {
            for _ in 0..1_000 {
                out.send(&[5; 100])?;
            }
            Ok(())
        };
        let id = kept.open_with(Work::Thread(Box::new(work)), options);
        let given = follow(&mut kept, id, Policy::Replay);
        kept.pass(MILLISECOND);
        kept.disk.hold();
        let thread = kept.run_next_job();
        while kept.shard.journal().unwrap().counters.chunks == 0 {
            kept.pass(Duration::from_micros(10));
            std::thread::yield_now();
        }
        kept.pass(MILLISECOND);
        assert!(given.borrow().seqs.is_empty());
        kept.disk.release();
        while given.borrow().end.is_none() {
            kept.pass(MILLISECOND);
            std::thread::yield_now();
        }
        thread.join().unwrap();
        assert!(given.borrow().seqs.iter().copied().eq(1..=1_000));
        assert_eq!(end_of(&given), Some((COMPLETED, None)));
    }
}

#[test]
fn an_end_and_a_cancellation_come_after_the_chunks_however_long_the_disk_stands_still() {
    for (is_cancelled, text) in [(false, None), (false, Some("as it happens")), (true, None)] {
        let mut kept = Kept::new();
        let id = kept.open_with(Work::Feed, when_durable(Durability::Synced));
        let given = follow(&mut kept, id, Policy::Replay);
        kept.pass(MILLISECOND);
        kept.disk.hold();
        kept.shard.publish(id, Kind::Output, b"precious").unwrap();
        match (is_cancelled, text) {
            (true, _) => kept.shard.cancel(id).unwrap(),
            (false, text) => kept.shard.finish(id, text.map_or(Ok(()), Err)).unwrap(),
        }
        kept.pass(100 * SECOND);
        assert_eq!(kept.shard.publish(id, Kind::Output, b"no"), Err(PublishError::NotFound));
        assert!(given.borrow().seqs.is_empty() && given.borrow().end.is_none());
        kept.disk.release();
        kept.pass(2 * SECOND);
        assert_eq!(given.borrow().seqs, [1]);
        let outcome = match (is_cancelled, text) {
            (true, _) => Outcome::Cancelled,
            (false, None) => Outcome::Completed,
            (false, Some(_)) => Outcome::Failed,
        };
        assert_eq!(end_of(&given), Some((EndState::Ended(outcome), text.map(str::to_owned))));
    }
}

#[test]
fn a_stop_after_the_end_of_the_producer_ends_once() {
    let mut kept = Kept::new();
    let id = kept.open_with(Work::Feed, when_durable(Durability::Synced));
    let given = follow(&mut kept, id, Policy::Replay);
    kept.pass(MILLISECOND);
    kept.disk.hold();
    kept.shard.publish(id, Kind::Output, b"precious").unwrap();
    kept.shard.finish(id, Ok(())).unwrap();
    kept.shard.cancel(id).unwrap(); // It goes on until its chunks are told.
    kept.pass(SECOND);
    kept.disk.release();
    kept.pass(2 * SECOND);
    assert_eq!(given.borrow().seqs, [1]);
    assert_eq!(end_of(&given), Some((EndState::Ended(Outcome::Cancelled), None)));
}

/// A shard whose journal is full: its disk has no space for another segment.
fn full(deliver: Deliver) -> (Kept, ExecutionId) {
    let mut kept = Kept::of_segments(1 << 20);
    let other = kept.open(Work::Feed, Durability::Written);
    let id = kept.open_with(Work::Feed, waits(deliver));
    kept.pass(MILLISECOND);
    kept.disk.set_capacity(0);
    while kept.shard.journal().unwrap().counters.missed_chunks == 0 {
        kept.shard.publish(other, Kind::Output, &[7; 700]).unwrap();
        kept.pass(Duration::from_micros(10));
    }
    (kept, id)
}

#[test]
fn a_full_journal_makes_the_producer_wait_and_nothing_is_missing() {
    for deliver in [Deliver::AtOnce, Deliver::WhenDurable] {
        let (mut kept, id) = full(deliver);
        let given = follow(&mut kept, id, Policy::Replay);
        let count = publish_until_gated(&mut kept, id);
        let missed = kept.shard.journal().unwrap().counters.missed_chunks;
        kept.pass(2 * SECOND);
        assert!(given.borrow().seqs.is_empty());
        kept.disk.set_capacity(u64::MAX);
        kept.pass(2 * SECOND); // A segment that could not be made is tried again.
        assert!(given.borrow().seqs.iter().copied().eq(1..=count), "{deliver:?}");
        assert_eq!(kept.shard.publish(id, Kind::Output, b"more"), Ok(count + 1));
        kept.shard.finish(id, Ok(())).unwrap();
        kept.pass(2 * SECOND);
        assert_eq!(end_of(&given), Some((COMPLETED, None)));
        assert_eq!(kept.shard.journal().unwrap().counters.missed_chunks, missed);
        let again = follow(&mut kept, id, Policy::Replay);
        kept.pass(2 * SECOND);
        let again = again.borrow();
        assert!(again.seqs.iter().copied().eq(1..=count + 1) && again.gaps.is_empty());
    }
}

#[test]
fn an_execution_fails_when_the_journal_is_full_for_too_long() {
    for deliver in [Deliver::AtOnce, Deliver::WhenDurable] {
        let (mut kept, id) = full(deliver);
        let given = follow(&mut kept, id, Policy::Replay);
        kept.shard.publish(id, Kind::Output, b"too much").unwrap();
        kept.pass(3 * SECOND - MILLISECOND);
        assert!(given.borrow().end.is_none() && given.borrow().seqs.is_empty());
        kept.pass(200 * MILLISECOND);
        let (end, text) = end_of(&given).unwrap();
        assert_eq!((end, deliver), (FAILED, deliver));
        let expected = "journal_full: there was no room for chunk 1 within 3s";
        assert_eq!(text.as_deref(), Some(expected));
        // A reader on another thread may have seen it. Nobody has seen what waits to be durable.
        let shown = u64::from(deliver == Deliver::AtOnce);
        assert_eq!(given.borrow().seqs.len() as u64, shown);
        assert_eq!(kept.shard.inspect(id).unwrap().head_seq, shown);
        assert!(matches!(kept.shard.publish(id, Kind::Output, b""), Err(PublishError::NotFound)));
    }
}

#[test]
fn a_full_journal_holds_a_cancellation_for_the_deadline_and_no_longer() {
    for deliver in [Deliver::AtOnce, Deliver::WhenDurable] {
        let (mut kept, id) = full(deliver);
        let given = follow(&mut kept, id, Policy::Replay);
        kept.shard.publish(id, Kind::Output, b"too much").unwrap();
        kept.pass(SECOND);
        kept.shard.cancel(id).unwrap();
        kept.pass(SECOND);
        assert!(given.borrow().end.is_none());
        kept.pass(2 * SECOND);
        assert_eq!(end_of(&given), Some((EndState::Ended(Outcome::Cancelled), None)));
    }
}

#[test]
fn without_its_disk_an_execution_that_waits_for_it_fails_and_nothing_more_is_shown() {
    for operation in [FailingOperation::Write, FailingOperation::Sync] {
        for options in [when_durable(Durability::Synced), waits(Deliver::WhenDurable)] {
            let mut kept = Kept::new();
            let id = kept.open_with(Work::Feed, options);
            let given = follow(&mut kept, id, Policy::Replay);
            kept.shard.publish(id, Kind::Output, b"precious").unwrap();
            kept.pass(100 * MILLISECOND);
            assert_eq!(given.borrow().seqs, [1]);
            for nth in 1..=4 {
                kept.disk.fail_nth(operation, nth);
            }
            while kept.shard.journal().unwrap().fault.is_none() {
                let _ = kept.shard.publish(id, Kind::Output, b"lost"); // It may have failed.
                kept.pass(100 * MILLISECOND);
            }
            kept.pass(SECOND);
            let durable_seq = kept.shard.durable_seq(id).unwrap();
            assert_eq!(given.borrow().seqs.len() as u64, durable_seq);
            let (end, text) = end_of(&given).unwrap();
            assert_eq!(end, FAILED);
            assert!(text.unwrap().contains("disk of the journal has failed"));
        }
    }
}

#[test]
fn a_reader_on_another_thread_sees_no_chunk_before_the_disk_has_it() {
    let mut kept = Kept::new();
    let id = kept.open_with(Work::Feed, when_durable(Durability::Synced));
    kept.pass(MILLISECOND);
    let refused = kept.shard.subscribe_remote(id, SubscribeSpec::default()).err();
    assert_eq!(refused, Some(SubscribeError::NotElsewhere));
    let id = kept.open_with(Work::Feed, waits(Deliver::AtOnce));
    kept.pass(MILLISECOND);
    let spec = SubscribeSpec { policy: Policy::Replay, ..Default::default() };
    let mut subscriber = kept.shard.subscribe_remote(id, spec).unwrap();
    kept.shard.publish(id, Kind::Output, b"precious").unwrap();
    assert!(subscriber.poll_at(kept.world.now()).is_some());
}

#[test]
fn a_readers_gap_at_the_end_is_told_if_the_disk_has_had_no_room() {
    let (mut kept, id) = full(Deliver::AtOnce);
    kept.shard.publish(id, Kind::Output, b"too much").unwrap();
    kept.pass(4 * SECOND);
    assert_eq!(kept.shard.inspect(id).unwrap().outcome, Some(Outcome::Failed));
    kept.disk.set_capacity(u64::MAX);
    let mut kept = kept.restarted();
    while kept.shard.recall(id) == Ok(Recall::Soon) {
        kept.pass(MILLISECOND);
    }
    let given = follow(&mut kept, id, Policy::Replay);
    kept.pass(SECOND);
    let given = given.borrow();
    assert_eq!((given.seqs.len(), given.gaps.len()), (0, 1));
    let gap = given.gaps[0];
    assert_eq!((gap.reason, gap.chunk_count, gap.byte_count), (GapReason::Unwritten, 1, 8));
    assert!(given.end.as_ref().unwrap().1.as_ref().unwrap().starts_with("journal_full"));
}

#[test]
fn what_waits_for_the_disk_needs_something_that_is_kept() {
    let mut kept = Kept::new();
    let kept_not = ExecuteOptions { durability: Some(Durability::None), ..Default::default() };
    let need = Need::default();
    for (deliver, on_full, option) in [
        (Deliver::WhenDurable, OnFull::Gap, "deliver: when_durable"),
        (Deliver::AtOnce, OnFull::Wait, "on_full: wait"),
    ] {
        let options = ExecuteOptions { deliver, on_full, ..kept_not };
        let prepared = Prepared { need, ..Prepared::new(Work::Feed) };
        let refused = kept.shard.execute_prepared(prepared, options);
        assert_eq!(refused, Err(ExecuteError::NothingKept { option }));
    }
}
