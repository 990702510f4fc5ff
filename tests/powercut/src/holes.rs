//! A disk that stands still, and one that is full. Nobody waits for it, and everything that it does
//! not keep is a gap with exact counts.

use std::cell::RefCell;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use streamdoor::base::ExecutionId;
use streamdoor::reactor::Choice;
use streamdoor::shard::{ExecuteOptions, Shard};
use streamdoor::stream::{Durability, EndState, Outcome, Policy};
use streamdoor::tool::{Need, Prepared, SyncError, Work};

use crate::found::{Given, follow, read};
use crate::keeper::{Way, chunk, open, open_shard, turn_until};
use crate::rig::{Power, Rig, missing};
use crate::syncer::Syncer;

const REACTORS: [Choice; 2] = [Choice::Auto, Choice::Mio];
/// The time for which the disk stands still, at least.
const STILL: Duration = Duration::from_secs(2);
/// The time between two bursts of chunks.
const PAUSE: Duration = Duration::from_millis(1);
const BURST: u64 = 20;
/// Chunks of a tool: several times as much as its ring holds.
const TOOL_CHUNKS: u64 = 1_000;

/// A shard with an execution under `written`, and its subscriber.
struct Scene {
    rig: Rig,
    way: Way,
    shard: Shard,
    id: ExecutionId,
    seq: u64,
    live: Rc<RefCell<Given>>,
}

impl Scene {
    fn new(disk_bytes: u64, reactor: Choice) -> Scene {
        let way = Way { reactor, is_direct: false };
        let mut rig = Rig::new(disk_bytes);
        rig.begin(Power::STEADY).unwrap();
        let mut shard = open_shard(&rig.directory(), way).unwrap();
        let id = open(&mut shard, Durability::Written).unwrap();
        let live = follow(&mut shard, id, Policy::Block);
        Scene { rig, way, shard, id, seq: 0, live }
    }

    /// Publishes a burst of chunks.
    fn publish(&mut self, count: u64) {
        for _ in 0..count {
            self.seq += 1;
            let (kind, bytes) = chunk(self.id, self.seq);
            assert_eq!(self.shard.publish(self.id, kind, &bytes), Ok(self.seq));
        }
        let until = self.shard.now() + PAUSE;
        while self.shard.now() < until {
            if !self.shard.turn() {
                self.shard.park(Some(until));
            }
        }
        assert_eq!(self.live.borrow().seq, self.seq); // It has everything at once.
    }

    fn missed(&self) -> u64 {
        self.shard.journal().unwrap().counters.missed_chunks
    }

    fn segments(&self) -> u64 {
        self.shard.journal().unwrap().counters.segments
    }

    /// Publishes until the disk keeps the last chunk again.
    fn recover(&mut self) {
        while self.shard.durable_seq(self.id) != Some(self.seq) {
            let missed = self.missed();
            self.publish(1);
            if self.missed() == missed {
                // The disk takes chunks again.
                let (id, seq) = (self.id, self.seq);
                turn_until(&mut self.shard, |shard| shard.durable_seq(id) == Some(seq));
            }
        }
    }

    /// Ends the execution, and reads both now and after a restart. Returns the number of chunks of
    /// the other one that the disk has not.
    fn end(mut self, other: ExecutionId) -> u64 {
        self.shard.finish(self.id, Ok(())).unwrap();
        turn_until(&mut self.shard, |_| !self.live.borrow().ends.is_empty());
        let Scene { mut rig, way, mut shard, id, seq, live } = self;
        let live = live.borrow();
        assert_eq!(live.ends, [(EndState::Ended(Outcome::Completed), None)]);
        assert_eq!((live.seq, live.gaps.len()), (seq, 0));
        let before = [id, other].map(|id| read(&mut shard, id));
        assert_eq!((before[0].count, before[0].outcome), (seq, Outcome::Completed));
        let missed = shard.journal().unwrap().counters.missed_chunks;
        drop(shard);
        rig.end();
        rig.begin(Power::STEADY).unwrap();
        let mut shard = open_shard(&rig.directory(), way).unwrap();
        let after = [id, other].map(|id| read(&mut shard, id));
        for (before, after) in before.iter().zip(&after) {
            assert_eq!((after.count, after.outcome), (before.count, before.outcome));
            assert!(after.missing >= before.missing); // The ring had some that the disk has not.
        }
        assert_eq!(after.map(|found| found.missing).iter().sum::<u64>(), missed);
        println!("{way:?}: {seq} chunks, {} not kept", after[0].missing);
        after[1].missing
    }
}

/// Starts a tool on a thread of its own that sends its chunks as fast as it can.
fn send_all(shard: &mut Shard) -> ExecutionId {
    let (id_sender, ids) = std::sync::mpsc::channel();
    let work = Work::Thread(Box::new(move |out| {
        let Ok(id) = ids.recv() else { return Ok(()) };
        for seq in 1..=TOOL_CHUNKS {
            let (kind, bytes) = chunk(id, seq);
            out.send_as(kind, 0, &bytes)?;
        }
        Ok(())
    }));
    let need = Need { ring_bytes: 4 << 10, ..Default::default() };
    let prepared = Prepared { need, ..Prepared::new(work) };
    let options = ExecuteOptions { durability: Some(Durability::Written), ..Default::default() };
    let id = shard.execute_prepared(prepared, options).unwrap();
    id_sender.send(id).unwrap();
    id
}

#[test]
fn a_producer_never_waits_for_a_disk_that_stands_still() {
    if let Some(why) = missing() {
        println!("not run: {why}");
        return;
    }
    for reactor in REACTORS {
        let mut scene = Scene::new(64 << 20, reactor);
        scene.publish(BURST);
        scene.rig.tell("stand-still");
        let tool = send_all(&mut scene.shard);
        let last = follow(&mut scene.shard, tool, Policy::Block);
        let until = scene.shard.now() + STILL;
        while scene.missed() == 0 || last.borrow().seq < TOOL_CHUNKS || scene.shard.now() < until {
            scene.publish(BURST);
        }
        // All of that was before the disk has moved.
        assert!(scene.rig.tell("go-on"), "the disk does not stand still any more");
        scene.recover();
        turn_until(&mut scene.shard, |_| !last.borrow().ends.is_empty());
        scene.end(tool);
    }
}

/// Fills the file system.
fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    for piece_bytes in [1 << 20, 4 << 10] {
        while file.write_all(&vec![1; piece_bytes]).is_ok() {}
    }
    file.sync_all().unwrap();
}

#[test]
fn a_full_disk_loses_nothing_silently_and_goes_on_when_there_is_room() {
    if let Some(why) = missing() {
        println!("not run: {why}");
        return;
    }
    for reactor in REACTORS {
        let mut scene = Scene::new(80 << 20, reactor);
        scene.publish(BURST);
        let tool = Syncer::start(&mut scene.shard, Durability::Written);
        tool.go_on(&mut scene.shard);
        assert_eq!(tool.result(&mut scene.shard), Ok(()));
        let filler = scene.rig.mounted().join("filler");
        fill(&filler);
        let segments = scene.segments();
        while scene.missed() == 0 || scene.shard.journal().unwrap().counters.failures == 0 {
            scene.publish(BURST);
        }
        assert_eq!(scene.shard.journal().unwrap().fault, None);
        assert_eq!(scene.segments(), segments);
        tool.go_on(&mut scene.shard);
        std::fs::remove_file(&filler).unwrap();
        scene.recover();
        let result = tool.result(&mut scene.shard);
        while scene.segments() == segments {
            scene.publish(BURST);
        }
        scene.recover();
        tool.go_on(&mut scene.shard);
        assert_eq!(tool.result(&mut scene.shard), Ok(()));
        let id = tool.id;
        drop(tool);
        // The last bytes of a segment may have had room for a chunk.
        let missing = if result == Err(SyncError::NotKept) { 1 } else { 0 };
        assert_eq!(scene.end(id), missing);
    }
}
