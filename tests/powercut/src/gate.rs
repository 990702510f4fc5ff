//! A disk that fails once, behind the page cache. The kernel reports that to one sync. After that
//! it calls the pages clean, and shows bytes that the disk does not have.
//!
//! Nothing of them is acknowledged or served, and a shard that starts again finds everything that
//! was acknowledged.

use std::cell::RefCell;
use std::fs::File;
use std::path::PathBuf;
use std::rc::Rc;

use streamdoor::base::ExecutionId;
use streamdoor::journal::{Fault, Refused};
use streamdoor::reactor::Choice;
use streamdoor::shard::{ExecuteError, ExecuteOptions, Shard};
use streamdoor::stream::{Durability, EndState, Outcome, Policy};
use streamdoor::tool::{Prepared, SyncError, Work};

use crate::found::{Given, follow, read};
use crate::keeper::{Way, chunk, open, open_shard, turn_until};
use crate::rig::{Power, Rig, missing};
use crate::syncer::Syncer;

/// The part of the disk that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The write of a chunk.
    Write,
    /// A flush of the disk's cache.
    Flush,
}

/// Chunks before the failure, all of which are synced.
const SYNCED: u64 = 200;
/// Chunks when the disk fails.
const FAILED: u64 = 260;
/// Chunks of the execution that goes on. The ring holds none of those before.
const LAST: u64 = 560;
/// Bytes that occur once on the disk.
const SAMPLE_BYTES: usize = 32;

/// A shard with an execution of each level, and their subscribers since the start.
struct Scene {
    rig: Rig,
    shard: Shard,
    fed: [ExecutionId; 2],
    live: [Rc<RefCell<Given>>; 2],
    tools: [Syncer; 2],
}

const LEVELS: [Durability; 2] = [Durability::Written, Durability::Synced];

fn publish(shard: &mut Shard, id: ExecutionId, seqs: std::ops::RangeInclusive<u64>) {
    for seq in seqs {
        let (kind, bytes) = chunk(id, seq);
        assert_eq!(shard.publish(id, kind, &bytes), Ok(seq));
    }
}

impl Scene {
    /// Everything is on the disk.
    fn new(way: Way) -> Scene {
        let mut rig = Rig::new(64 << 20);
        rig.begin(Power::STEADY).unwrap();
        let mut shard = open_shard(&rig.directory(), way).unwrap();
        let fed = LEVELS.map(|level| open(&mut shard, level).unwrap());
        let tools = LEVELS.map(|level| Syncer::start(&mut shard, level));
        let live = fed.map(|id| follow(&mut shard, id, Policy::Block));
        for id in fed {
            publish(&mut shard, id, 1..=SYNCED);
        }
        for tool in &tools {
            tool.go_on(&mut shard);
            assert_eq!(tool.result(&mut shard), Ok(()));
        }
        turn_until(&mut shard, |shard| shard.durable_seq(fed[1]) == Some(SYNCED));
        Scene { rig, shard, fed, live, tools }
    }

    /// Lets the disk fail while an execution publishes and two tools wait. Returns a part of a
    /// chunk that is not on the disk.
    ///
    /// If the page cache is to lie, a chunk that only the kernel has comes first. The writes behind
    /// it are then not durable by themselves.
    fn fail(&mut self, part: Part, cache_lies: bool) -> Vec<u8> {
        let [written, synced] = self.fed;
        let first = SYNCED + 1 + u64::from(cache_lies);
        publish(&mut self.shard, written, SYNCED + 1..=first - 1);
        turn_until(&mut self.shard, |shard| shard.durable_seq(written) == Some(first - 1));
        let of = |seq| chunk(synced, seq).1;
        let sample = (SYNCED + 1..).map(of).find(|bytes| bytes.len() > 2 * SAMPLE_BYTES);
        let sample = sample.unwrap()[..SAMPLE_BYTES].to_vec();
        match part {
            Part::Write => self.rig.tell_of("fail-write", &sample),
            Part::Flush => self.rig.tell("fail-flush"),
        };
        self.rig.tell("stand-still");
        publish(&mut self.shard, synced, SYNCED + 1..=FAILED);
        publish(&mut self.shard, written, first..=FAILED);
        // Their chunks follow the one that will fail.
        self.tools.iter().for_each(|tool| tool.go_on(&mut self.shard));
        assert!(self.rig.tell("go-on"), "the disk does not stand still any more");
        turn_until(&mut self.shard, |shard| {
            assert_eq!(shard.durable_seq(synced), Some(SYNCED));
            shard.journal().unwrap().fault.is_some()
        });
        sample
    }

    /// Nothing is acknowledged any more, and the failure is told.
    fn check_answers(&mut self, is_direct: bool) {
        let Scene { shard, fed: [written, synced], tools, .. } = self;
        let fault = shard.journal().unwrap().fault;
        let is_told = |fault| match fault {
            Fault::Sync(_) => true,
            Fault::Write(_) => is_direct, // Through the page cache, no write fails.
        };
        assert!(fault.is_some_and(is_told), "{fault:?}");
        for tool in tools.iter() {
            assert_ne!(tool.result(shard), Ok(()));
        }
        let durable = shard.durable_seq(*written);
        publish(shard, *written, FAILED + 1..=LAST);
        tools[0].go_on(shard); // The other tool was stopped.
        assert_eq!(tools[0].result(shard), Err(SyncError::NotKept));
        assert_eq!(shard.durable_seq(*written), durable);
        assert_eq!(shard.durable_seq(*synced), Some(SYNCED));
        let options = ExecuteOptions { durability: Some(LEVELS[0]), ..Default::default() };
        let refused = shard.execute_prepared(Prepared::new(Work::Feed), options);
        assert!(matches!(refused, Err(ExecuteError::NotKept(Refused::Broken))), "{refused:?}");
    }

    /// A late subscriber is given what was synced, a gap, and what the ring holds.
    fn check_late(&mut self) {
        let Scene { shard, fed: [written, synced], live, .. } = self;
        let late = [*written, *synced].map(|id| follow(shard, id, Policy::Replay));
        shard.finish(*written, Ok(())).unwrap();
        for given in late.iter().chain(&*live) {
            turn_until(shard, |_| !given.borrow().ends.is_empty());
        }
        for (given, last) in late.iter().zip([LAST, FAILED]) {
            let given = given.borrow();
            let [gap] = given.gaps[..] else { panic!("{:?}", given.gaps) };
            assert_eq!((gap.from_seq, given.seq), (SYNCED + 1, last));
            assert!(gap.to_seq > last - 50, "{gap:?}"); // More do not fit in the ring.
        }
        for (given, last) in live.iter().zip([LAST, FAILED]) {
            let given = given.borrow();
            assert_eq!((given.seq, &given.gaps[..]), (last, &[][..]));
        }
        for [written, synced] in [&late, &*live] {
            let completed = (EndState::Ended(Outcome::Completed), None);
            assert_eq!(written.borrow().ends, [completed]);
            let synced = synced.borrow();
            let [(EndState::Ended(Outcome::Failed), Some(text))] = &synced.ends[..] else {
                panic!("{:?}", synced.ends)
            };
            assert!(text.starts_with("the disk of the journal has failed: "), "{text}");
        }
    }

    fn segments(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.rig.directory().join("shard-00")).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.extension().is_some_and(|end| end == "seg")).collect()
    }

    /// The kernel shows a chunk that the disk does not have, and calls it synced.
    fn check_that_the_kernel_lies(&mut self, sample: &[u8]) {
        let shows = |path: &PathBuf| {
            let bytes = std::fs::read(path).unwrap();
            File::open(path).unwrap().sync_all().unwrap();
            bytes.windows(sample.len()).any(|window| window == sample)
        };
        let segments = self.segments();
        let count = segments.iter().filter(|path| shows(path)).count();
        assert_eq!(count, 1, "of {} segments", segments.len());
        assert!(!self.rig.tell_of("keeps", sample));
    }

    /// A new shard has everything that was acknowledged. Another one, which finds the file system
    /// mounted again, has the same.
    fn check_restarts(self, way: Way, part: Part) {
        let Scene { mut rig, shard, fed, tools, .. } = self;
        drop(shard);
        let mut shard = open_shard(&rig.directory(), way).unwrap();
        let ids = [fed[0], fed[1], tools[0].id, tools[1].id];
        let found = ids.map(|id| read(&mut shard, id));
        for (found, acknowledged) in found.iter().zip([SYNCED, SYNCED, 1, 1]) {
            assert!((acknowledged..=FAILED).contains(&found.count), "{found:?}");
            assert_eq!((found.missing, found.outcome), (0, Outcome::Failed));
        }
        let new = LEVELS.map(|level| open(&mut shard, level).unwrap());
        new.iter().for_each(|id| publish(&mut shard, *id, 1..=SYNCED));
        turn_until(&mut shard, |shard| new.map(|id| shard.durable_seq(id)) == [Some(SYNCED); 2]);
        drop(shard);
        match part {
            Part::Write => rig.end(),
            Part::Flush => rig.cut(),
        }
        rig.begin(Power::STEADY).unwrap();
        let mut shard = open_shard(&rig.directory(), way).unwrap();
        assert_eq!(ids.map(|id| read(&mut shard, id)), found);
        assert!(new.iter().all(|id| read(&mut shard, *id).count == SYNCED));
    }
}

#[test]
fn after_a_failure_behind_the_page_cache_nothing_lost_is_acknowledged_or_served() {
    if let Some(why) = missing() {
        println!("not run: {why}");
        return;
    }
    for reactor in [Choice::Auto, Choice::Mio] {
        for part in [Part::Write, Part::Flush] {
            for is_direct in [false, true] {
                let way = Way { reactor, is_direct };
                println!("{way:?}, {part:?}");
                let mut scene = Scene::new(way);
                let cache_lies = part == Part::Write && !is_direct;
                let sample = scene.fail(part, cache_lies);
                scene.check_answers(is_direct);
                scene.check_late();
                if cache_lies {
                    scene.check_that_the_kernel_lies(&sample);
                }
                scene.check_restarts(way, part);
            }
        }
    }
}
