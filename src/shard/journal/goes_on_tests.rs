//! Executions that go on after a restart: resumed, suspended, amended, and ended once.

use std::cell::RefCell;
use std::rc::Rc;

use serde_json::{Value, json};

use super::keeping_tests::{CHOICES, Folder, chunk, copy_files, follow, publish, turn_until, with};
use super::{AmendError, Recall, ResumeError};
use crate::base::ExecutionId;
use crate::engine::{CancelError, NotFound, SubscribeSpec, SuspendError};
use crate::journal::Refused;
use crate::limits;
use crate::reactor::Choice;
use crate::shard::{Delivery, ExecuteOptions, PublishError, Shard};
use crate::stream::{
    Deliver, Durability, EndState, GapReason, Kind, Kinds, OnFull, Outcome, Policy, Totals,
};
use crate::tool::{Need, Prepared, Work};

fn options(durability: Durability, deliver: Deliver) -> ExecuteOptions {
    let durability = Some(durability);
    ExecuteOptions { durability, deliver, goes_on: true, ..Default::default() }
}

fn open(shard: &mut Shard, options: ExecuteOptions) -> ExecutionId {
    let need = Need { ring_bytes: 4 << 10, ..Default::default() };
    shard.execute_prepared(Prepared { need, ..Prepared::new(Work::Feed) }, options).unwrap()
}

/// Publishes chunks. One that has no room waits for the disk.
fn publish_late(shard: &mut Shard, id: ExecutionId, seqs: std::ops::RangeInclusive<u64>) {
    for seq in seqs {
        let (kind, bytes) = chunk(seq);
        loop {
            match shard.publish(id, kind, &bytes) {
                Err(PublishError::Blocked) => {
                    if !shard.turn() {
                        shard.park(None);
                    }
                }
                published => break assert_eq!(published, Ok(seq)),
            }
        }
    }
}

fn settle(shard: &mut Shard, id: ExecutionId, seq: u64) {
    turn_until(shard, |shard| shard.durable_seq(id) == Some(seq));
}

/// Kills a shard, and starts one on a copy of its files.
fn killed(shard: Shard, folder: &Folder, name: &str, choice: Choice) -> (Folder, Shard) {
    std::mem::forget(shard); // As if the process were killed, but for its files.
    let copy = Folder::new(&format!("{name}-copy-{choice:?}"));
    copy_files(folder, &copy);
    let shard = copy.shard(choice);
    (copy, shard)
}

fn guest_of(shard: &Shard, id: ExecutionId) -> Value {
    let mut open = shard.open_kept();
    let at = open.iter().position(|open| open.id == id).expect("it goes on");
    open.swap_remove(at).opened.guest
}

/// Follows to the end, and checks that everything came once and in order.
fn read_all(shard: &mut Shard, id: ExecutionId, count: u64, policy: Policy) {
    let given = follow(shard, id, with(policy));
    let output = SubscribeSpec { kinds: Kinds::NONE.with(Kind::ALL[1]), ..with(policy) };
    let filtered = follow(shard, id, output);
    turn_until(shard, |_| given.borrow().end.is_some() && filtered.borrow().end.is_some());
    let given = given.borrow();
    assert!(given.seqs.iter().copied().eq(1..=count), "{policy}: {:?}", given.gaps);
    let (end, error) = given.end.clone().unwrap();
    assert_eq!((end.state, error), (EndState::Ended(Outcome::Completed), None));
    assert_eq!((end.given.chunks, end.missed), (count, Totals::ZERO));
    let wanted = (1..=count).filter(|seq| chunk(*seq).0 == Kind::ALL[1]);
    assert!(filtered.borrow().seqs.iter().copied().eq(wanted), "{policy}");
    assert_eq!(filtered.borrow().end.as_ref().unwrap().0.missed, Totals::ZERO);
}

#[test]
fn what_goes_on_is_listed_resumed_and_ended_once_after_a_restart() {
    let all = [Durability::Written, Durability::Synced];
    let delivers = [Deliver::AtOnce, Deliver::WhenDurable];
    let cases = all.into_iter().flat_map(|all| delivers.map(|deliver| (all, deliver)));
    for (choice, (durability, deliver)) in CHOICES.into_iter().zip(cases.cycle()).take(4) {
        let name = format!("goes-on-{durability}-{}", deliver.name());
        let folder = Folder::new(&format!("{name}-{choice:?}"));
        let mut shard = folder.shard(choice);
        let id = open(&mut shard, options(durability, deliver));
        let other =
            open(&mut shard, ExecuteOptions { goes_on: false, ..options(durability, deliver) });
        publish_late(&mut shard, id, 1..=500);
        settle(&mut shard, id, 500);
        publish_late(&mut shard, other, 1..=1);
        settle(&mut shard, other, 1);
        let totals = shard.open_kept()[0].totals;
        let (copy, mut shard) = killed(shard, &folder, &name, choice);
        assert_eq!(shard.journal().unwrap().restarted, 1);
        let open = shard.open_kept();
        assert_eq!(open.len(), 1);
        assert_eq!((open[0].id, open[0].totals, totals.chunks), (id, totals, 500));
        assert_eq!(shard.promises_sync(id), durability == Durability::Synced);
        assert_eq!(open[0].opened.goes_on.unwrap().deliver, deliver);
        assert!(open[0].opened_us > 1 << 50);
        // Nobody can use it before it is resumed.
        assert_eq!(shard.publish(id, Kind::Output, b"no"), Err(PublishError::NotFound));
        assert_eq!(shard.resume(other, &ExecuteOptions::default()), Err(ResumeError::NotFound));
        let before = super::keeping_tests::open(&mut shard, Durability::None); // It has the slot.
        assert_eq!(before.slot.index, id.slot.index);
        shard.resume(id, &ExecuteOptions::default()).unwrap();
        shard.resume(id, &ExecuteOptions::default()).unwrap(); // That changes nothing.
        let status = shard.inspect(id).unwrap();
        assert_eq!((status.id, status.head_seq), (id, 500));
        assert_eq!(shard.durable_seq(id), Some(500));
        let early = follow(&mut shard, id, with(Policy::Replay));
        publish_late(&mut shard, id, 501..=1_000);
        let live = follow(&mut shard, id, with(Policy::Block));
        publish_late(&mut shard, id, 1_001..=1_200);
        settle(&mut shard, id, 1_200);
        assert_eq!(shard.publish(before, Kind::Output, b"other"), Ok(1));
        shard.finish(id, Ok(())).unwrap();
        assert_eq!(shard.finish(id, Ok(())), Err(NotFound));
        turn_until(&mut shard, |_| early.borrow().end.is_some() && live.borrow().end.is_some());
        for given in [early, live] {
            let given = given.borrow();
            assert!(given.seqs.iter().copied().eq(1..=1_200), "{:?}", given.gaps);
            let (end, _) = given.end.clone().unwrap();
            assert_eq!(end.state, EndState::Ended(Outcome::Completed));
            assert_eq!(end.published.chunks, 1_200);
        }
        read_all(&mut shard, id, 1_200, Policy::Replay);
        assert!(shard.open_kept().is_empty());
        drop(shard);
        let mut shard = copy.shard(choice);
        assert_eq!(shard.journal().unwrap().restarted, 0);
        assert!(shard.open_kept().is_empty());
        turn_until(&mut shard, |shard| shard.recall(id) == Ok(Recall::Here));
        for policy in [Policy::Replay, Policy::Block, Policy::Drop] {
            read_all(&mut shard, id, 1_200, policy);
        }
    }
}

#[test]
fn the_end_of_a_process_does_not_end_what_goes_on() {
    let folder = Folder::new("goes-on-shut-down");
    let mut shard = folder.shard(Choice::Auto);
    let id = open(&mut shard, options(Durability::Written, Deliver::AtOnce));
    let cancelled = open(&mut shard, options(Durability::Written, Deliver::WhenDurable));
    for round in 0..3 {
        publish(&mut shard, id, round * 50 + 1..=round * 50 + 50);
        if round == 0 {
            publish_late(&mut shard, cancelled, 1..=3);
            shard.cancel(cancelled).unwrap();
        }
        drop(shard); // It has time to write everything.
        shard = folder.shard(Choice::Auto);
        assert_eq!(shard.journal().unwrap().restarted, 0);
        let open = shard.open_kept();
        assert_eq!(open.len(), 1);
        assert_eq!((open[0].id, open[0].totals.chunks), (id, (round + 1) * 50));
        // The first question brings it back.
        assert_eq!(shard.recall(id), Ok(Recall::Here));
    }
    let last = follow(&mut shard, id, with(Policy::Replay));
    shard.cancel(id).unwrap();
    assert_eq!(shard.cancel(id), Err(CancelError::Ended(Outcome::Cancelled)));
    turn_until(&mut shard, |_| last.borrow().end.is_some());
    assert!(last.borrow().seqs.iter().copied().eq(1..=150));
    assert_eq!(last.borrow().end.as_ref().unwrap().0.state, EndState::Ended(Outcome::Cancelled));
}

#[test]
fn a_suspended_one_takes_no_place_and_goes_on_where_it_was() {
    for deliver in [Deliver::AtOnce, Deliver::WhenDurable] {
        let folder = Folder::new(&format!("goes-on-suspend-{}", deliver.name()));
        let mut shard = folder.shard(Choice::Auto);
        let id = open(&mut shard, options(Durability::Synced, deliver));
        let plain = super::keeping_tests::open(&mut shard, Durability::Synced);
        for round in 0..20 {
            let last = round * 60 + 60;
            let given = follow(&mut shard, id, with(Policy::Replay));
            publish_late(&mut shard, id, round * 60 + 1..=last);
            assert_eq!(shard.suspend(id), Err(SuspendError::NotDurable));
            settle(&mut shard, id, last);
            turn_until(&mut shard, |_| given.borrow().seqs.len() as u64 == last);
            assert_eq!(shard.suspend(id), Err(SuspendError::Followed));
            let subscriber = shard.subscribers(id).unwrap()[0].id;
            shard.unsubscribe(subscriber).unwrap();
            let count = shard.execution_count();
            shard.suspend(id).unwrap();
            shard.audit();
            assert_eq!(shard.execution_count(), count - 1);
            assert!(shard.inspect(id).is_err());
            assert_eq!(shard.suspend(id), Err(SuspendError::NotFound));
            assert_eq!(shard.publish(id, Kind::Output, b""), Err(PublishError::NotFound));
            assert_eq!(shard.open_kept()[0].totals.chunks, last);
            shard.resume(id, &ExecuteOptions::default()).unwrap();
        }
        assert_eq!(shard.suspend(plain), Err(SuspendError::NotFound)); // It does not go on.
        shard.finish(id, Ok(())).unwrap();
        read_all(&mut shard, id, 1_200, Policy::Replay);
    }
}

#[test]
fn the_last_description_counts_also_without_chunks_behind_it() {
    for choice in CHOICES {
        let folder = Folder::new(&format!("goes-on-amend-{choice:?}"));
        let mut shard = folder.shard(choice);
        let [id, still] = [Durability::Written, Durability::Synced]
            .map(|durability| open(&mut shard, options(durability, Deliver::AtOnce)));
        for at in 0..40 {
            shard.amend(id, json!({"at": at})).unwrap();
            publish(&mut shard, id, at + 1..=at + 1);
        }
        turn_until(&mut shard, |shard| shard.suspend(still) == Ok(()));
        let lsn = shard.amend(still, json!({"closed": true})).unwrap();
        assert_eq!(shard.is_amended(still, lsn), Ok(false));
        let last = shard.amend(id, json!({"at": "last"})).unwrap();
        turn_until(&mut shard, |shard| {
            shard.is_amended(still, lsn) == Ok(true) && shard.is_amended(id, last) == Ok(true)
        });
        let name = "goes-on-amend";
        let (copy, mut shard) = killed(shard, &folder, name, choice);
        assert_eq!(guest_of(&shard, id), json!({"at": "last"}));
        assert_eq!(guest_of(&shard, still), json!({"closed": true}));
        assert_eq!(shard.journal().unwrap().corrupt_stretches, 0);
        // It is changed where the engine does not have it, and found so by the next process.
        let lsn = shard.amend(still, json!({"closed": 2})).unwrap();
        turn_until(&mut shard, |shard| shard.is_amended(still, lsn) == Ok(true));
        drop(shard);
        let mut shard = copy.shard(choice);
        assert_eq!(guest_of(&shard, still), json!({"closed": 2}));
        let long = json!("x".repeat(limits::JOURNAL_RECORD_BYTES_MAX));
        let refused = Err(AmendError::Refused(Refused::TooLong));
        assert_eq!(shard.amend(still, long), refused);
        assert_eq!(guest_of(&shard, still), json!({"closed": 2}));
        for (id, count) in [(id, 40), (still, 0)] {
            shard.resume(id, &ExecuteOptions::default()).unwrap();
            shard.finish(id, Ok(())).unwrap();
            read_all(&mut shard, id, count, Policy::Replay);
            assert_eq!(shard.amend(id, json!(1)), Err(AmendError::NotFound));
        }
    }
}

#[test]
fn a_description_that_was_changed_outlives_its_segments() {
    let folder = Folder::new("goes-on-retired");
    let segment_bytes = limits::JOURNAL_SEGMENT_BYTES_MIN;
    let shard_of = |folder: &Folder| folder.shard_within(Choice::Auto, segment_bytes, 6);
    let mut shard = shard_of(&folder);
    let [id, still, never] =
        [(); 3].map(|()| open(&mut shard, options(Durability::Written, Deliver::AtOnce)));
    shard.amend(still, json!("of the first segment")).unwrap();
    turn_until(&mut shard, |shard| shard.suspend(still) == Ok(()));
    let mut last = 0;
    let mut removed = 0;
    while removed < 12 {
        while shard.amend(id, json!({"last": last})) == Err(AmendError::Refused(Refused::Full)) {
            shard.turn(); // The next segment is being made.
        }
        publish(&mut shard, id, last + 1..=last + 100);
        last += 100;
        removed = shard.journal().unwrap().counters.removed_segments;
    }
    let (copy, mut shard) = {
        std::mem::forget(shard);
        let copy = Folder::new("goes-on-retired-copy");
        copy_files(&folder, &copy);
        let shard = shard_of(&copy);
        (copy, shard)
    };
    assert_eq!(shard.open_kept().len(), 3);
    assert_eq!(guest_of(&shard, id), json!({"last": last - 100}));
    assert_eq!(guest_of(&shard, still), json!("of the first segment"));
    assert_eq!(guest_of(&shard, never), Value::Null);
    for id in [id, still, never] {
        shard.resume(id, &ExecuteOptions::default()).unwrap();
    }
    let given = follow(&mut shard, id, with(Policy::Replay));
    publish(&mut shard, id, last + 1..=last + 10);
    publish(&mut shard, never, 1..=10);
    for id in [id, never] {
        shard.finish(id, Ok(())).unwrap();
    }
    turn_until(&mut shard, |_| given.borrow().end.is_some());
    {
        let given = given.borrow();
        // Its first chunks have expired, and a disk without room has missed others.
        let (first, end) = (given.gaps[0], given.end.clone().unwrap().0);
        assert_eq!((first.from_seq, first.reason), (1, GapReason::Expired));
        assert_eq!(end.published.chunks, last + 10);
        let lost =
            |seq: &u64| given.gaps.iter().any(|gap| gap.from_seq <= *seq && *seq <= gap.to_seq);
        assert!(given.seqs.iter().copied().eq((1..=last + 10).filter(|seq| !lost(seq))));
        assert_eq!(end.given + end.missed, end.published);
    }
    read_all(&mut shard, never, 10, Policy::Replay);
    drop(shard);
    assert_eq!(guest_of(&shard_of(&copy), still), json!("of the first segment"));
}

#[test]
fn a_reader_on_another_thread_has_the_times_of_both_processes() {
    let folder = Folder::new("goes-on-times");
    let mut shard = folder.shard(Choice::Auto);
    let id = open(&mut shard, options(Durability::Written, Deliver::AtOnce));
    publish(&mut shard, id, 1..=300);
    settle(&mut shard, id, 300);
    let (_copy, mut shard) = killed(shard, &folder, "goes-on-times", Choice::Auto);
    shard.resume(id, &ExecuteOptions::default()).unwrap();
    publish(&mut shard, id, 301..=600);
    let mut reader = shard.subscribe_remote(id, with(Policy::Replay)).unwrap();
    shard.finish(id, Ok(())).unwrap();
    let here = Rc::new(RefCell::new(Vec::new()));
    let notes = Rc::clone(&here);
    let note = move |delivery: &Delivery<'_>| {
        if let Delivery::Chunk(chunk) = delivery {
            notes.borrow_mut().push((chunk.seq, chunk.timestamp_us()));
        }
    };
    shard.subscribe(id, with(Policy::Replay), note).unwrap();
    let elsewhere = std::thread::spawn(move || {
        let mut times = Vec::new();
        loop {
            match reader.next() {
                Delivery::Chunk(chunk) => times.push((chunk.seq, chunk.timestamp_us())),
                Delivery::End(_) => break times,
                _ => {}
            }
        }
    });
    turn_until(&mut shard, |_| elsewhere.is_finished());
    let (here, there) = (here.borrow(), elsewhere.join().unwrap());
    assert!(there.iter().map(|(seq, _)| *seq).eq(1..=600));
    for ((seq, here_us), (_, there_us)) in here.iter().zip(&there) {
        assert!(here_us.abs_diff(*there_us) <= 1, "chunk {seq}: {here_us} and {there_us}");
    }
    assert!(there.windows(2).all(|pair| pair[0].1 <= pair[1].1 + 1_000), "{there:?}");
}

#[test]
fn what_cannot_go_on_is_refused_or_ended() {
    let folder = Folder::new("goes-on-refused");
    let mut shard = folder.shard(Choice::Auto);
    let kept = options(Durability::Written, Deliver::AtOnce);
    // Nothing of it is kept, or a tool feeds it.
    let lost = open(&mut shard, ExecuteOptions { durability: Some(Durability::None), ..kept });
    let arguments = json!({"chunks": 1_000, "delay_ms": 1_000});
    let tool = shard.execute("slow_data_processor", &arguments, kept).unwrap();
    assert!(shard.open_kept().is_empty());
    for id in [lost, tool] {
        assert_eq!(shard.suspend(id), Err(SuspendError::NotFound));
    }
    assert_eq!(shard.amend(lost, json!(1)), Err(AmendError::NotFound));
    let paused = open(&mut shard, ExecuteOptions { on_full: OnFull::Pause, ..kept });
    publish_late(&mut shard, paused, 1..=20);
    settle(&mut shard, paused, 20);
    drop(shard);
    let mut shard = folder.shard(Choice::Auto);
    let open = shard.open_kept();
    assert_eq!(open.len(), 1);
    assert_eq!(open[0].opened.goes_on.unwrap().on_full, OnFull::Pause);
    shard.resume(paused, &ExecuteOptions::default()).unwrap();
    publish_late(&mut shard, paused, 21..=40);
    shard.finish(paused, Ok(())).unwrap();
    read_all(&mut shard, paused, 40, Policy::Replay);
}
