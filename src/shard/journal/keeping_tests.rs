//! A shard with a journal: what it keeps, gives from the disk, and finds again after a restart.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use super::{JournalConfig, Recall};
use crate::base::{ExecutionId, Random};
use crate::engine::SubscribeSpec;
use crate::journal::Refused;
use crate::limits;
use crate::memory::RingPoolConfig;
use crate::reactor::Choice;
use crate::shard::{Delivery, ExecuteError, ExecuteOptions, MemoryWatch, Shard, ShardConfig};
use crate::stream::{Durability, End, EndState, Gap, Kind, Kinds, Outcome, Policy, Totals};
use crate::tool::{Need, Output, Prepared, SyncError, Work};

pub(super) struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let name = format!("streamdoor-keeping-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path); // Of an earlier process with this number.
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }

    pub fn shard(&self, choice: Choice) -> Shard {
        self.shard_with(choice, limits::JOURNAL_SEGMENT_BYTES_MIN * 4)
    }

    pub fn shard_with(&self, choice: Choice, segment_bytes: u32) -> Shard {
        self.shard_within(choice, segment_bytes, u64::MAX / u64::from(segment_bytes))
    }

    /// Starts a shard whose journal keeps this many segments.
    pub fn shard_within(&self, choice: Choice, segment_bytes: u32, segments: u64) -> Shard {
        let rings = RingPoolConfig { prealloc_bytes: 0, ..Default::default() };
        let at = JournalConfig::at(self.0.join("journal"));
        let bytes_max = at.bytes_max.min(segments * u64::from(segment_bytes));
        let journal = JournalConfig { segment_bytes, bytes_max, ..at };
        let config = ShardConfig {
            rings,
            memory: MemoryWatch::ByHand,
            reactor: choice,
            journal: Some(journal),
            ..Default::default()
        };
        Shard::new(config).unwrap().0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // A remaining folder does no harm.
    }
}

/// Opens an execution with the smallest ring, which is fed by hand.
pub(super) fn open(shard: &mut Shard, durability: Durability) -> ExecutionId {
    let need = Need { ring_bytes: 4 << 10, ..Default::default() };
    let prepared = Prepared { need, ..Prepared::new(Work::Feed) };
    let options = ExecuteOptions { durability: Some(durability), ..Default::default() };
    shard.execute_prepared(prepared, options).unwrap()
}

/// One more than the longest payload has.
const CHUNK_BYTES_MAX: usize = 300;

/// The kind and the payload of a chunk.
pub(super) fn chunk(seq: u64) -> (Kind, Vec<u8>) {
    let mut random = Random::new(seq);
    let mut bytes = vec![0; random.below(CHUNK_BYTES_MAX as u64) as usize];
    random.fill(&mut bytes);
    (Kind::ALL[random.below(3) as usize], bytes)
}

pub(super) fn publish(shard: &mut Shard, id: ExecutionId, seqs: std::ops::RangeInclusive<u64>) {
    for seq in seqs {
        let (kind, bytes) = chunk(seq);
        assert_eq!(shard.publish(id, kind, &bytes), Ok(seq));
        // A disk that is not looked after has no room for ever.
        if seq % 100 == 0 {
            let is_durable = |shard: &mut Shard| shard.durable_seq(id).is_none_or(|at| at == seq);
            turn_until(shard, is_durable);
        }
    }
}

/// The deliveries to a subscriber.
#[derive(Default)]
pub(super) struct Given {
    pub seqs: Vec<u64>,
    pub gaps: Vec<Gap>,
    pub end: Option<(End, Option<String>)>,
}

pub(super) fn follow(
    shard: &mut Shard,
    id: ExecutionId,
    spec: SubscribeSpec,
) -> Rc<RefCell<Given>> {
    let given = Rc::new(RefCell::new(Given::default()));
    let notes = Rc::clone(&given);
    let mut bytes_before = 0;
    let note = move |delivery: &Delivery<'_>| {
        let mut notes = notes.borrow_mut();
        match delivery {
            Delivery::Chunk(given) => {
                assert_eq!((given.kind, given.data), (chunk(given.seq).0, &chunk(given.seq).1[..]));
                assert!(given.offset >= bytes_before);
                assert!(given.timestamp_us() > 1 << 50);
                bytes_before = given.offset + given.data.len() as u64;
                notes.seqs.push(given.seq);
            }
            Delivery::Gap(gap) => notes.gaps.push(*gap),
            Delivery::Progress(_) => {}
            Delivery::End(ended) => {
                assert!(notes.end.is_none(), "an end follows an end");
                notes.end = Some((ended.end, ended.error.map(str::to_owned)));
            }
        }
    };
    shard.subscribe(id, spec, note).unwrap();
    given
}

pub(super) fn turn_until(shard: &mut Shard, mut is_done: impl FnMut(&mut Shard) -> bool) {
    while !is_done(shard) {
        if !shard.turn() {
            shard.park(None);
        }
    }
    shard.audit();
}

pub(super) fn with(policy: Policy) -> SubscribeSpec {
    SubscribeSpec { policy, ..Default::default() }
}

pub(super) const CHOICES: [Choice; 2] = [Choice::Uring, Choice::Mio];

#[test]
fn who_comes_late_is_given_everything_from_the_disk_and_then_from_the_ring() {
    for choice in CHOICES {
        for policy in [Policy::Replay, Policy::Block, Policy::Drop, Policy::Buffer] {
            let folder = Folder::new(&format!("late-{policy}-{choice:?}"));
            let mut shard = folder.shard(choice);
            let id = open(&mut shard, Durability::Written);
            publish(&mut shard, id, 1..=3_000);
            let given = follow(&mut shard, id, with(policy));
            let output = SubscribeSpec { kinds: Kinds::NONE.with(Kind::ALL[0]), ..with(policy) };
            let filtered = follow(&mut shard, id, output);
            turn_until(&mut shard, |_| given.borrow().seqs.len() == 3_000);
            publish(&mut shard, id, 3_001..=3_010);
            shard.finish(id, Ok(())).unwrap();
            turn_until(&mut shard, |_| {
                given.borrow().end.is_some() && filtered.borrow().end.is_some()
            });
            let given = given.borrow();
            assert!(given.seqs.iter().copied().eq(1..=3_010), "{policy}");
            assert!(given.gaps.is_empty());
            let (end, error) = given.end.clone().unwrap();
            assert_eq!((end.state, error), (EndState::Ended(Outcome::Completed), None));
            assert_eq!((end.given.chunks, end.missed.chunks), (3_010, 0));
            let wanted = (1..=3_010).filter(|seq| chunk(*seq).0 == Kind::ALL[0]);
            assert!(filtered.borrow().seqs.iter().copied().eq(wanted), "{policy}");
            assert_eq!(filtered.borrow().end.as_ref().unwrap().0.missed, Totals::ZERO);
            assert_eq!(shard.journal().unwrap().counters.missed_chunks, 0);
            let counters = shard.counters();
            assert_eq!((counters.journal_chunks_kept, counters.journal_chunks_missed), (3_010, 0));
            let payload_bytes = counters.journal_bytes_kept;
            assert_eq!(payload_bytes, counters.bytes_published);
            assert!(counters.journal_bytes_written > payload_bytes);
            assert!(counters.journal_writes > 0 && counters.journal_syncs > 0);
        }
    }
}

/// The most bytes that a turn gives a follower of an execution with 3,000 chunks, before the ring
/// has the rest. Another execution gets a chunk before each turn, if `is_live`.
fn most_bytes_of_a_turn(choice: Choice, is_live: bool) -> usize {
    let folder = Folder::new(&format!("turns-{is_live}-{choice:?}"));
    let mut shard = folder.shard(choice);
    let [old, live] = [Durability::Written, Durability::None].map(|at| open(&mut shard, at));
    publish(&mut shard, old, 1..=3_000);
    thread::sleep(limits::JOURNAL_LIVE_TIME);
    follow(&mut shard, live, with(Policy::Drop));
    let given = follow(&mut shard, old, with(Policy::Replay));
    let (mut most_bytes, mut live_seq) = (0, 0);
    loop {
        if is_live {
            live_seq += 1;
            publish(&mut shard, live, live_seq..=live_seq);
        }
        let before = given.borrow().seqs.len();
        let has_worked = shard.turn();
        let given = given.borrow();
        // The ring of 4 KiB has the last ones.
        if given.seqs.last().is_some_and(|last| *last > 2_900) {
            assert!(given.gaps.is_empty());
            return most_bytes;
        }
        let bytes = given.seqs[before..].iter().map(|seq| chunk(*seq).1.len()).sum();
        most_bytes = most_bytes.max(bytes);
        drop(given);
        if !is_live && !has_worked {
            shard.park(None);
        }
    }
}

#[test]
fn a_turn_gives_few_old_chunks_while_new_ones_are_published() {
    let live_bytes = limits::JOURNAL_GIVEN_BYTES_LIVE as usize + CHUNK_BYTES_MAX;
    for choice in CHOICES {
        let beside_live = most_bytes_of_a_turn(choice, true);
        assert!((1..=live_bytes).contains(&beside_live), "{beside_live} bytes");
        let alone = most_bytes_of_a_turn(choice, false);
        let all_bytes = limits::JOURNAL_GIVEN_BYTES_MAX as usize + CHUNK_BYTES_MAX;
        assert!((live_bytes + 1..=all_bytes).contains(&alone), "{alone} bytes");
    }
}

#[test]
fn a_restarted_shard_has_everything_and_fails_what_was_running() {
    for choice in CHOICES {
        let folder = Folder::new(&format!("restart-{choice:?}"));
        let mut shard = folder.shard(choice);
        let done = open(&mut shard, Durability::Synced);
        publish(&mut shard, done, 1..=500);
        shard.finish(done, Err("as it happens")).unwrap();
        let running = open(&mut shard, Durability::Written);
        publish(&mut shard, running, 1..=700);
        turn_until(&mut shard, |shard| {
            shard.durable_seq(done) == Some(500) && shard.durable_seq(running) == Some(700)
        });
        let end = follow(&mut shard, done, with(Policy::Replay));
        turn_until(&mut shard, |_| end.borrow().end.is_some());
        std::mem::forget(shard); // As if the process were killed, but for its files.
        let copy = Folder::new(&format!("restart-copy-{choice:?}"));
        copy_files(&folder, &copy);
        for round in 0..2 {
            let mut shard = copy.shard(choice);
            let status = shard.journal().unwrap();
            assert_eq!((status.executions, status.restarted), (2, u64::from(round == 0)));
            assert_eq!(status.corrupt_stretches, 0);
            let mut kept = shard.kept_executions();
            kept.sort_unstable_by_key(|id| id.to_bits());
            let mut expected = vec![done, running];
            expected.sort_unstable_by_key(|id| id.to_bits());
            assert_eq!(kept, expected);
            for (id, count, text) in [(done, 500, "as it happens"), (running, 700, "restarted")] {
                turn_until(&mut shard, |shard| shard.recall(id) == Ok(Recall::Here));
                assert_eq!(shard.durable_seq(id), Some(count));
                assert_eq!(shard.inspect(id).unwrap().head_seq, count);
                let given = follow(&mut shard, id, with(Policy::Replay));
                turn_until(&mut shard, |_| given.borrow().end.is_some());
                let given = given.borrow();
                assert!(given.seqs.iter().copied().eq(1..=count));
                let (end, error) = given.end.clone().unwrap();
                assert_eq!(end.state, EndState::Ended(Outcome::Failed));
                let error = error.unwrap();
                assert!(error.contains(text), "{error}");
            }
        }
    }
}

/// Copies the files of a journal whose lock is still held.
pub(super) fn copy_files(from: &Folder, to: &Folder) {
    use std::os::unix::fs::DirBuilderExt;
    let place = |folder: &Folder| folder.0.join("journal").join("shard-00");
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(place(to)).unwrap();
    for entry in std::fs::read_dir(place(from)).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, place(to).join(path.file_name().unwrap())).unwrap();
    }
}

#[test]
fn a_shard_without_a_journal_refuses_to_keep() {
    let config = ShardConfig { memory: MemoryWatch::ByHand, ..Default::default() };
    let (mut shard, _) = Shard::new(config).unwrap();
    let options = ExecuteOptions { durability: Some(Durability::Synced), ..Default::default() };
    let refused = shard.execute_prepared(Prepared::new(Work::Feed), options);
    let durability = Durability::Synced;
    assert_eq!(refused, Err(ExecuteError::NoJournal { durability }));
    assert_eq!(shard.journal(), None);
    assert!(shard.kept_executions().is_empty());
}

#[test]
fn what_is_not_kept_is_forgotten_and_a_second_shard_is_refused() {
    let folder = Folder::new("none");
    let mut shard = folder.shard(Choice::Auto);
    let id = open(&mut shard, Durability::None);
    publish(&mut shard, id, 1..=10);
    assert_eq!(shard.durable_seq(id), None);
    assert!(shard.kept_executions().is_empty());
    let other = JournalConfig::at(folder.0.join("journal"));
    let config =
        ShardConfig { memory: MemoryWatch::ByHand, journal: Some(other), ..Default::default() };
    let error = Shard::new(config).err().unwrap().to_string();
    assert!(error.contains("another process"), "{error}");
}

#[test]
fn a_polled_subscriber_is_given_old_chunks_one_by_one() {
    let folder = Folder::new("polled");
    let mut shard = folder.shard(Choice::Auto);
    let id = open(&mut shard, Durability::Written);
    publish(&mut shard, id, 1..=1_000);
    shard.finish(id, Ok(())).unwrap();
    let mut polled = shard.subscribe_polled(id, with(Policy::Replay)).unwrap();
    let mut next_seq = 1;
    while !polled.is_done() {
        match shard.poll(&mut polled) {
            Some(Delivery::Chunk(given)) => {
                let (kind, bytes) = chunk(next_seq);
                assert_eq!((given.seq, given.kind, given.data), (next_seq, kind, &bytes[..]));
                next_seq += 1;
            }
            Some(Delivery::Gap(gap)) => panic!("{gap:?}"),
            Some(_) => {}
            None => {
                if !shard.turn() {
                    shard.park(None);
                }
            }
        }
    }
    assert_eq!(next_seq, 1_001);
}

/// Publishes until the journal has no room. Without a turn, nothing goes to the disk.
fn fill(shard: &mut Shard) {
    let id = open(shard, Durability::Written);
    while shard.journal().unwrap().counters.missed_chunks == 0 {
        shard.publish(id, Kind::Output, &[7; 300]).unwrap();
    }
}

#[test]
fn an_execution_that_the_journal_has_refused_takes_no_place() {
    let folder = Folder::new("refused");
    let mut shard = folder.shard(Choice::Mio);
    fill(&mut shard);
    for _ in 0..=limits::EXECUTIONS_MAX {
        let (prepared, options) = (Prepared::new(Work::Feed), ExecuteOptions::default());
        let refused = shard.execute_prepared(prepared, options);
        assert!(matches!(refused, Err(ExecuteError::NotKept(Refused::Full))), "{refused:?}");
    }
    shard.audit();
    open(&mut shard, Durability::None);
}

#[test]
fn a_tool_that_syncs_after_a_chunk_that_is_not_kept_is_told_so() {
    let folder = Folder::new("missed");
    let mut shard = folder.shard(Choice::Mio);
    let ((go, going), (sent, is_sent), (told, answers)) = (channel(), channel(), channel());
    let work = move |out: &mut Output| {
        sent.send(()).unwrap();
        going.recv().unwrap();
        out.send(&[7; 300])?;
        sent.send(()).unwrap();
        told.send([out.sync(), out.sync()]).unwrap();
        Ok(())
    };
    let prepared = Prepared::new(Work::Thread(Box::new(work)));
    let options = ExecuteOptions::default();
    shard.execute_prepared(prepared, options).unwrap();
    while is_sent.try_recv().is_err() {
        shard.turn();
    }
    for _ in 0..50 {
        shard.turn();
        thread::sleep(Duration::from_millis(1)); // The disk comes to rest.
    }
    fill(&mut shard);
    let missed = shard.journal().unwrap().counters.missed_chunks;
    go.send(()).unwrap();
    is_sent.recv().unwrap();
    let answers = loop {
        shard.turn();
        if let Ok(answers) = answers.recv_timeout(Duration::from_millis(1)) {
            break answers;
        }
    };
    // A slow disk may have given a buffer back in time.
    let is_kept = shard.journal().unwrap().counters.missed_chunks == missed;
    let first = if is_kept { Ok(()) } else { Err(SyncError::NotKept) };
    assert_eq!(answers, [first, Ok(())]);
}
