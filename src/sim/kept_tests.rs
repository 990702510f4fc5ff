//! A shard with a journal, on simulated disks. A disk stands still or fails, a tool waits for it,
//! and many readers come at any time.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::base::{ExecutionId, Instant, Random};
use crate::engine::SubscribeSpec;
use crate::journal::Refused;
use crate::limits::{JOURNAL_SEGMENT_BYTES, JOURNAL_SEGMENT_BYTES_MIN};
use crate::memory::RingPoolConfig;
use crate::reactor::{FileName, Reactor};
use crate::shard::{
    Delivery, ExecuteOptions, JournalConfig, MemoryWatch, Polled, Shard, ShardConfig,
};
use crate::sim::disk::{Crash, DiskFaults, FailingOperation, SimDisk};
use crate::sim::reactor::SimReactor;
use crate::sim::world::{SimFaults, SimWorld};
use crate::stream::{Durability, EndState, Gap, GapReason, Kind, Kinds, Outcome, Policy};
use crate::tool::{Need, Output, Prepared, SyncError, Work};

const DIRECTORY: &str = "/kept";

pub(super) struct Kept {
    pub world: SimWorld,
    pub disk: SimDisk,
    pub shard: Shard<SimReactor>,
    journal: JournalConfig,
}

impl Kept {
    pub fn new() -> Kept {
        Kept::of_segments(JOURNAL_SEGMENT_BYTES)
    }

    pub fn of_segments(segment_bytes: u32) -> Kept {
        Kept::with(JournalConfig { segment_bytes, ..JournalConfig::at(DIRECTORY) })
    }

    fn with(journal: JournalConfig) -> Kept {
        let world = SimWorld::new(1, SimFaults::NONE);
        let disk = SimDisk::new(1);
        world.put_disk(&Path::new(DIRECTORY).join("shard-00"), &disk);
        Kept::start(world, disk, journal)
    }

    /// Another process on the same disk.
    pub fn restarted(self) -> Kept {
        let Kept { world, disk, mut shard, journal } = self;
        disk.crash(Crash::Process);
        shard.keeping = None; // It writes nothing more.
        drop(shard);
        Kept::start(world, disk, journal)
    }

    fn start(world: SimWorld, disk: SimDisk, journal: JournalConfig) -> Kept {
        let rings = RingPoolConfig { prealloc_bytes: 0, bytes_max: 1 << 22, ..Default::default() };
        let config = ShardConfig {
            rings,
            memory: MemoryWatch::ByHand,
            journal: Some(journal.clone()),
            seed: Some(1),
            ..Default::default()
        };
        let mut shard = Shard::with_reactor(SimReactor::new(&world), config).unwrap();
        shard.run_jobs_by_hand();
        Kept { world, disk, shard, journal }
    }

    pub fn open(&mut self, work: Work, durability: Durability) -> ExecutionId {
        let durability = Some(durability);
        self.open_with(work, ExecuteOptions { durability, ..Default::default() })
    }

    pub fn open_with(&mut self, work: Work, options: ExecuteOptions) -> ExecutionId {
        let need = Need { ring_bytes: 4 << 10, ..Default::default() };
        let prepared = Prepared { need, ..Prepared::new(work) };
        self.shard.execute_prepared(prepared, options).unwrap()
    }

    /// Runs the next job of a tool on a thread of its own.
    pub fn run_next_job(&mut self) -> JoinHandle<()> {
        let job = self.shard.next_job().unwrap();
        std::thread::spawn(move || {
            let mut output = job.output;
            let result = (job.work)(&mut output);
            (job.done)(output.into_writer(), result, false);
        })
    }

    /// Lets time pass. The shard gets a turn at each of its deadlines.
    pub fn pass(&mut self, time: Duration) {
        let until = self.world.now() + time;
        while self.world.now() < until {
            while self.shard.turn() {}
            let now = self.world.now();
            let deadline = self.shard.next_deadline().unwrap_or(Instant::FAR);
            let next = until.min(deadline.max(now + Duration::from_micros(1)));
            self.shard.reactor_mut().wait(Some(next));
        }
        while self.shard.turn() {}
        self.shard.audit();
    }
}

pub(super) const MILLISECOND: Duration = Duration::from_millis(1);

/// The deliveries to one subscriber.
#[derive(Default)]
pub(super) struct Given {
    pub seqs: Vec<u64>,
    pub gaps: Vec<Gap>,
    pub end: Option<(EndState, Option<String>)>,
}

pub(super) fn follow(kept: &mut Kept, id: ExecutionId, policy: Policy) -> Rc<RefCell<Given>> {
    let given = Rc::new(RefCell::new(Given::default()));
    let notes = Rc::clone(&given);
    let spec = SubscribeSpec { policy, ..Default::default() };
    let note = move |delivery: &Delivery<'_>| {
        let mut notes = notes.borrow_mut();
        match delivery {
            Delivery::Chunk(chunk) => notes.seqs.push(chunk.seq),
            Delivery::Gap(gap) => notes.gaps.push(*gap),
            Delivery::Progress(_) => {}
            Delivery::End(ended) => {
                notes.end = Some((ended.end.state, ended.error.map(str::to_owned)));
            }
        }
    };
    kept.shard.subscribe(id, spec, note).unwrap();
    given
}

#[test]
fn a_producer_never_waits_for_a_disk_that_stands_still_and_the_hole_is_told_exactly() {
    let mut kept = Kept::new();
    let id = kept.open(Work::Feed, Durability::Written);
    kept.pass(100 * MILLISECOND);
    kept.disk.hold();
    let (payload, before) = (vec![7; 700], kept.world.now());
    // More than all buffers hold, during ten seconds.
    let count = 24_000;
    for seq in 1..=count {
        assert_eq!(kept.shard.publish(id, Kind::Output, &payload), Ok(seq));
        if seq % 2_400 == 0 {
            kept.pass(Duration::from_secs(1));
        }
    }
    assert!(kept.world.now().since(before) >= Duration::from_secs(10));
    let missed = kept.shard.journal().unwrap().counters.missed_chunks;
    assert!(missed > 0 && missed < count, "{missed}");
    kept.disk.release();
    kept.pass(100 * MILLISECOND);
    kept.shard.publish(id, Kind::Output, b"behind the hole").unwrap();
    kept.shard.finish(id, Ok(())).unwrap();
    let given = follow(&mut kept, id, Policy::Replay);
    kept.pass(Duration::from_secs(2));
    let given = given.borrow();
    let chunks = given.seqs.len() as u64;
    let gaps: u64 = given.gaps.iter().map(|gap| gap.chunk_count).sum();
    assert_eq!(chunks + gaps, count + 1);
    for gap in &given.gaps {
        assert_eq!(gap.reason, GapReason::Unwritten);
        assert_eq!(gap.byte_count, gap.chunk_count * 700);
        assert_eq!(gap.chunk_count, gap.to_seq - gap.from_seq + 1);
    }
    // The ring still has the newest of those that the disk has not.
    assert!(gaps <= missed && gaps + 14 >= missed, "{gaps} of {missed}");
    assert_eq!(given.end.as_ref().unwrap().0, EndState::Ended(Outcome::Completed));
}

/// A tool on a thread that has sent a chunk, and waits for a disk that stands still.
struct Syncing {
    id: ExecutionId,
    answers: Receiver<Result<(), SyncError>>,
    thread: JoinHandle<()>,
}

impl Syncing {
    fn begin(kept: &mut Kept, durability: Durability) -> Syncing {
        let (told, answers) = channel();
        let work = move |out: &mut Output| {
            out.send(b"precious")?;
            let synced = out.sync();
            told.send(synced).unwrap();
            Ok(synced?)
        };
        let id = kept.open(Work::Thread(Box::new(work)), durability);
        kept.pass(MILLISECOND);
        kept.disk.hold();
        let thread = kept.run_next_job();
        while kept.shard.inspect(id).unwrap().head_seq == 0 {
            kept.pass(MILLISECOND);
            std::thread::yield_now();
        }
        Syncing { id, answers, thread }
    }

    /// Lets time pass until the tool goes on. Returns the answer that it got.
    fn end(self, kept: &mut Kept) -> Result<(), SyncError> {
        let answer = loop {
            kept.pass(MILLISECOND);
            if let Ok(answer) = self.answers.try_recv() {
                break answer;
            }
            std::thread::yield_now();
        };
        self.thread.join().unwrap();
        answer
    }
}

#[test]
fn a_chunk_that_the_disk_had_no_room_for_counts_once_the_disk_knows_of_it() {
    for durability in [Durability::Written, Durability::Synced] {
        let mut kept = Kept::new();
        let id = kept.open(Work::Feed, durability);
        kept.pass(100 * MILLISECOND);
        kept.disk.hold();
        let mut head_seq = 0;
        while kept.shard.journal().unwrap().counters.missed_chunks == 0 {
            head_seq = kept.shard.publish(id, Kind::Output, &[7; 700]).unwrap();
        }
        kept.pass(Duration::from_secs(5));
        assert!(kept.shard.durable_seq(id) < Some(head_seq), "the disk stands still");
        kept.disk.release();
        kept.pass(Duration::from_secs(2)); // Nothing follows.
        assert_eq!(kept.shard.durable_seq(id), Some(head_seq), "{durability}");
        assert_eq!(kept.shard.journal().unwrap().counters.missed_chunks, 1);
        kept.shard.finish(id, Ok(())).unwrap();
        kept.pass(Duration::from_secs(2));
        assert_eq!(kept.shard.durable_seq(id), Some(head_seq));
    }
}

#[test]
fn a_tool_that_syncs_goes_on_after_the_sync_and_not_before() {
    for durability in [Durability::Written, Durability::Synced] {
        let mut kept = Kept::new();
        let syncing = Syncing::begin(&mut kept, durability);
        let id = syncing.id;
        kept.pass(Duration::from_secs(10));
        assert_eq!(syncing.answers.try_recv(), Err(TryRecvError::Empty));
        kept.disk.release();
        assert_eq!(syncing.end(&mut kept), Ok(()));
        kept.pass(Duration::from_secs(2));
        assert_eq!(kept.shard.inspect(id).unwrap().outcome, Some(Outcome::Completed));
    }
}

#[test]
fn a_tool_that_syncs_is_let_go_when_it_is_stopped_and_without_a_journal() {
    let mut kept = Kept::new();
    let syncing = Syncing::begin(&mut kept, Durability::Synced);
    kept.pass(10 * MILLISECOND);
    kept.shard.cancel(syncing.id).unwrap();
    assert_eq!(syncing.end(&mut kept), Err(SyncError::Stopped));
    let mut kept = Kept::new();
    let syncing = Syncing::begin(&mut kept, Durability::None);
    assert_eq!(syncing.end(&mut kept), Err(SyncError::NotKept));
}

#[test]
fn without_its_disk_what_was_promised_to_be_synced_fails_and_the_rest_goes_on() {
    for operation in [FailingOperation::Write, FailingOperation::Sync] {
        let mut kept = Kept::new();
        let synced = kept.open(Work::Feed, Durability::Synced);
        let written = kept.open(Work::Feed, Durability::Written);
        for _ in 0..100 {
            kept.shard.publish(synced, Kind::Output, b"promised").unwrap();
            kept.shard.publish(written, Kind::Output, b"not so").unwrap();
        }
        kept.pass(100 * MILLISECOND);
        assert_eq!(kept.shard.durable_seq(synced), Some(100));
        let given = [synced, written].map(|id| follow(&mut kept, id, Policy::Replay));
        for nth in 1..=4 {
            kept.disk.fail_nth(operation, nth);
        }
        for seq in 101..=120 {
            let _ = kept.shard.publish(synced, Kind::Output, b"promised"); // It may have failed.
            assert_eq!(kept.shard.publish(written, Kind::Output, b"not so"), Ok(seq));
            kept.pass(Duration::from_secs(1));
        }
        assert!(kept.shard.journal().unwrap().fault.is_some());
        let (end, error) = given[0].borrow().end.clone().unwrap();
        assert_eq!(end, EndState::Ended(Outcome::Failed));
        assert!(error.unwrap().contains("disk of the journal"));
        assert!(given[1].borrow().end.is_none());
        kept.shard.finish(written, Ok(())).unwrap();
        kept.pass(100 * MILLISECOND);
        let given = given[1].borrow();
        assert_eq!(given.end.as_ref().unwrap().0, EndState::Ended(Outcome::Completed));
        assert_eq!((given.seqs.len(), given.gaps.len()), (120, 0)); // It read along.
        let options = ExecuteOptions::default();
        assert!(kept.shard.execute_prepared(Prepared::new(Work::Feed), options).is_err());
    }
}

#[test]
fn nothing_is_deleted_whose_end_is_not_kept_and_nothing_after_a_fault() {
    let mut kept = Kept::new();
    let ids = [(); 2].map(|()| kept.open(Work::Feed, Durability::Written));
    kept.pass(10 * MILLISECOND);
    assert_eq!(kept.shard.delete_kept(ids[0]), Err(Refused::Full)); // Its end is not recorded.
    for id in ids {
        kept.shard.finish(id, Ok(())).unwrap();
    }
    kept.pass(10 * MILLISECOND);
    assert!(kept.shard.delete_kept(ids[0]).unwrap().is_some());
    for nth in 1..=4 {
        kept.disk.fail_nth(FailingOperation::Write, nth);
    }
    while kept.shard.journal().unwrap().fault.is_none() {
        kept.open(Work::Feed, Durability::Synced);
        kept.pass(Duration::from_secs(1));
    }
    assert_eq!(kept.shard.delete_kept(ids[1]), Err(Refused::Broken));
    assert!(kept.shard.keeps(ids[1]) && !kept.shard.keeps(ids[0]));
}

/// A reader with a pace of its own.
struct Reader {
    polled: Polled,
    kinds: Kinds,
    next_seq: u64,
    given: u64,
}

fn kind_of(seq: u64) -> Kind {
    Kind::ALL[(seq % 3) as usize]
}

/// Reads a few chunks. Returns false after the end.
fn read(kept: &mut Kept, reader: &mut Reader, count: u64, head_seq: u64) -> bool {
    for _ in 0..count {
        match kept.shard.poll(&mut reader.polled) {
            Some(Delivery::Chunk(chunk)) => {
                let skipped = reader.next_seq..chunk.seq;
                assert!(skipped.into_iter().all(|seq| !reader.kinds.contains(kind_of(seq))));
                assert!(chunk.seq >= reader.next_seq);
                assert_eq!(chunk.kind, kind_of(chunk.seq));
                assert_eq!(chunk.data, chunk.seq.to_le_bytes());
                reader.next_seq = chunk.seq + 1;
                reader.given += 1;
            }
            Some(Delivery::Gap(gap)) => panic!("{gap:?}"),
            Some(Delivery::Progress(_)) => {}
            Some(Delivery::End(ended)) => {
                let wanted = (1..=head_seq).filter(|seq| reader.kinds.contains(kind_of(*seq)));
                assert_eq!(reader.given, wanted.count() as u64);
                assert_eq!(ended.end.given.chunks, reader.given);
                return false;
            }
            None => return true,
        }
    }
    true
}

#[test]
fn a_hundred_readers_come_while_the_ring_laps_a_thousand_times_and_each_has_everything_once() {
    let mut kept = Kept::new();
    let mut random = Random::new(5);
    let id = kept.open(Work::Feed, Durability::Written);
    kept.pass(10 * MILLISECOND);
    let slots = u64::from(kept.shard.inspect(id).unwrap().ring.unwrap().slot_count);
    let head_seq = 1_000 * slots;
    let mut readers = Vec::new();
    let mut come_count = 0;
    let mut seq = 0;
    while seq < head_seq || !readers.is_empty() {
        let burst = random.between(1, 60);
        for _ in 0..burst.min(head_seq - seq) {
            let published = kept.shard.publish(id, kind_of(seq + 1), &(seq + 1).to_le_bytes());
            if published.is_err() {
                break; // A reader that has come level holds the producer back.
            }
            seq += 1;
        }
        if seq == head_seq {
            let _ = kept.shard.finish(id, Ok(())); // It is finished once.
        }
        if come_count < 100 && random.chance(1, 4) {
            let policy = if random.chance(1, 10) { Policy::Block } else { Policy::Replay };
            let kinds = match random.below(3) {
                0 => Kinds::NONE.with(Kind::ALL[random.below(3) as usize]),
                _ => Kinds::ALL,
            };
            let spec = SubscribeSpec { policy, kinds, ..Default::default() };
            let polled = kept.shard.subscribe_polled(id, spec).unwrap();
            readers.push(Reader { polled, kinds, next_seq: 1, given: 0 });
            come_count += 1;
        }
        let mut left = Vec::new();
        for mut reader in readers {
            let pace = random.between(1, 200);
            if read(&mut kept, &mut reader, pace, head_seq) {
                left.push(reader);
            }
        }
        readers = left;
        kept.pass(Duration::from_micros(random.below(300)));
    }
    assert_eq!(come_count, 100);
    assert!(kept.shard.journal().unwrap().counters.missed_chunks == 0);
    assert!(kept.shard.journal().unwrap().counters.bytes < u64::from(JOURNAL_SEGMENT_BYTES));
}

#[test]
fn a_journal_at_full_speed_does_not_wait_for_the_zeros_of_its_next_segment() {
    let segment_bytes = 1 << 20;
    let at = JournalConfig::at(DIRECTORY);
    let mut kept = Kept::with(JournalConfig { segment_bytes, ..at });
    // A new segment takes 15 ms with all of its zeros, and at most 8 ms from the half on.
    let (delay_max, sync_delay_max) = (Duration::from_micros(500), 2 * MILLISECOND);
    kept.disk.set_faults(DiskFaults { delay_max, sync_delay_max, ..DiskFaults::NONE });
    let id = kept.open(Work::Feed, Durability::Written);
    kept.pass(10 * MILLISECOND);
    let mut segments = 0;
    while segments < 40 {
        for _ in 0..90 {
            kept.shard.publish(id, Kind::Output, &[7; 700]).unwrap();
        }
        kept.pass(Duration::from_micros(1_250));
        let counters = kept.shard.journal().unwrap().counters;
        assert_eq!((counters.missed_chunks, counters.roll_waits), (0, 0), "{counters:?}");
        segments = counters.segments;
    }
}

#[test]
fn a_bit_that_flips_at_rest_is_found_in_a_period_and_nothing_else_changes() {
    let period = Duration::from_secs(10);
    let work = |scrub: Option<Duration>, has_flipped: bool| {
        let segment_bytes = JOURNAL_SEGMENT_BYTES_MIN;
        let at = JournalConfig::at(DIRECTORY);
        let mut kept = Kept::with(JournalConfig { segment_bytes, scrub, ..at });
        let id = kept.open(Work::Feed, Durability::Written);
        for seq in 1..=1_000 {
            kept.shard.publish(id, Kind::Output, &[seq as u8; 700]).unwrap();
            if seq % 20 == 0 {
                kept.pass(2 * MILLISECOND);
            }
        }
        kept.pass(period + period / 2);
        if has_flipped {
            let name = FileName::new("000000000002.seg").unwrap();
            // The payload of a chunk in the first run of the second block.
            assert!(kept.disk.flip_bit(&name, 40_000, 3));
        }
        kept.pass(period + Duration::from_secs(1));
        let status = kept.shard.journal().unwrap();
        let given = follow(&mut kept, id, Policy::Replay);
        kept.pass(Duration::from_secs(1));
        let given = given.borrow();
        let gaps: Vec<Gap> = given.gaps.clone();
        (status, given.seqs.len() as u64, gaps)
    };
    let (without, given, gaps) = work(None, false);
    assert!(without.counters.segments > 3 && without.scrubbed.bytes == 0);
    assert_eq!((given, gaps), (1_000, Vec::new()));
    let (sound, given, _) = work(Some(period), false);
    let scrubbed = sound.scrubbed;
    assert!(scrubbed.passes >= 2 && scrubbed.bytes > 2 * 700_000, "{scrubbed:?}");
    assert_eq!((given, scrubbed.corrupt_chunks, scrubbed.corrupt_places), (1_000, 0, 0));
    assert_eq!(sound.counters, without.counters);
    let (flipped, given, gaps) = work(Some(period), true);
    let scrubbed = flipped.scrubbed;
    let lost: u64 = gaps.iter().map(|gap| gap.chunk_count).sum();
    assert!(gaps.iter().all(|gap| gap.reason == GapReason::Corrupt));
    assert_eq!((given + lost, scrubbed.corrupt_chunks), (1_000, lost));
    assert!(lost > 0 && scrubbed.corrupt_places > 0);
    assert_eq!((flipped.counters, flipped.fault), (without.counters, None));
}
