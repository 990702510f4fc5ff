//! Power cuts under load, each at some write or flush of the disk, also while a shard starts.
//! Nothing that was acknowledged as synced is lost, nothing comes twice, and each execution has one
//! end.
//!
//! 30 cuts, or as many as `CUTS` says. `SEED` chooses others.

use std::collections::HashMap;
use std::io;

use streamdoor::base::{ExecutionId, Random};
use streamdoor::reactor::Choice;
use streamdoor::shard::Shard;
use streamdoor::stream::Durability;

use crate::found::{Found, Promises, note, read};
use crate::keeper::{Way, open_shard};
use crate::load::publish;
use crate::rig::{Power, Rig, missing};

const DISK_BYTES: u64 = 64 << 20;
/// Segments after which the disk is made anew, before it is full.
const SEGMENTS_MAX: u64 = 12;
/// Number of writes and flushes of a load, and of a start.
const LOAD_OPERATIONS: u64 = 300;
const START_OPERATIONS: u64 = 60;
/// Maximum time of a flush: other writes reach the disk meanwhile.
const FLUSH_US_MAX: u64 = 2_000;

const WAYS: [Way; 4] = [
    Way::USUAL,
    Way { reactor: Choice::Mio, is_direct: false },
    Way { reactor: Choice::Auto, is_direct: true },
    Way { reactor: Choice::Mio, is_direct: true },
];

/// The knowledge of a disk since it was made.
#[derive(Default)]
struct Known {
    promises: Promises,
    /// The executions that a shard has found. They never change again.
    found: HashMap<ExecutionId, Found>,
    /// Number of chunks that shards could not keep.
    missed: u64,
    segments: u64,
}

#[derive(Debug, Default)]
struct Counts {
    executions: usize,
    acked: u64,
    told: usize,
    read: u64,
    torn_bytes: u64,
    cuts_at_start: u64,
}

struct Campaign {
    rig: Rig,
    random: Random,
    known: Known,
    counts: Counts,
}

impl Campaign {
    fn power(&mut self, operations: u64) -> Power {
        let cut_at = if operations == 0 { 0 } else { 1 + self.random.below(operations) };
        let sector_bytes = [512, 4_096][self.random.below(2) as usize];
        Power { seed: self.random.next_u64(), sector_bytes, cut_at }
    }

    /// Starts a shard on a disk that has been cut. Some starts are cut, too.
    fn start(&mut self, way: Way) -> Shard {
        while self.random.chance(1, 3) {
            let power = self.power(START_OPERATIONS);
            let is_cut = match self.rig.begin(power) {
                Err(_) => true,
                Ok(()) => open_shard(&self.rig.directory(), way).is_err(),
            };
            self.rig.cut();
            self.counts.cuts_at_start += u64::from(is_cut);
        }
        let power = self.power(0);
        self.rig.begin(power).unwrap();
        let shard = open_shard(&self.rig.directory(), way);
        shard.unwrap_or_else(|error: io::Error| panic!("{way:?}: {error}"))
    }

    /// Publishes until the power goes.
    fn load(&mut self, mut shard: Shard) {
        self.rig.tell(&format!("flush-max-us {}", self.random.below(FLUSH_US_MAX)));
        self.rig.tell(&format!("cut-in {}", 1 + self.random.below(LOAD_OPERATIONS)));
        let promises = &mut self.known.promises;
        publish(&mut shard, self.random.next_u64(), |news| {
            // Other promises are for the end of a process.
            if news.durability == Durability::Synced {
                note(promises, news.id, news.word);
            }
        });
        self.known.missed += shard.journal().unwrap().counters.missed_chunks;
        drop(shard);
        self.rig.cut();
    }

    /// Reads all executions, and compares them with what is known.
    fn check(&mut self, shard: &mut Shard) {
        let status = shard.journal().unwrap();
        assert_eq!(status.corrupt_stretches, 0, "{status:?}");
        self.counts.torn_bytes += status.torn_bytes;
        self.known.segments = status.segments_found;
        let mut found = HashMap::new();
        for id in shard.kept_executions() {
            let is_first = found.insert(id, read(shard, id)).is_none();
            assert!(is_first, "{id} is there twice");
        }
        for (id, before) in &self.known.found {
            assert_eq!(found.get(id), Some(before), "{id} has changed");
        }
        for (id, promised) in &self.known.promises {
            let found = found.get(id).unwrap_or_else(|| panic!("{id} is lost: {promised:?}"));
            found.check(*id, *promised);
        }
        let missing = found.values().map(|found| found.missing).sum::<u64>();
        assert!(missing <= self.known.missed, "{missing} missing, {} told", self.known.missed);
        self.counts.read += found.values().map(|found| found.count).sum::<u64>();
        self.known.found = found;
    }

    /// Begins again with an empty disk.
    fn renew(&mut self) {
        self.rig.end();
        self.rig.format();
        let Known { promises, found, .. } = std::mem::take(&mut self.known);
        self.counts.executions += found.len();
        self.counts.acked += promises.values().map(|each| each.durable_seq).sum::<u64>();
        self.counts.told += promises.values().filter(|each| each.told.is_some()).count();
    }
}

#[test]
fn nothing_synced_is_lost_by_a_power_cut_and_each_execution_has_one_end() {
    if let Some(why) = missing() {
        println!("not run: {why}");
        return;
    }
    let cut_count = std::env::var("CUTS").map_or(30, |text| text.parse().unwrap());
    let seed = std::env::var("SEED").map_or(1, |text| text.parse().unwrap());
    let (rig, random) = (Rig::new(DISK_BYTES), Random::new(seed));
    let mut campaign = Campaign { rig, random, known: Known::default(), counts: Counts::default() };
    for cut in 0..cut_count {
        println!("cut {cut} of seed {seed}");
        let way = WAYS[(cut % 4) as usize];
        let shard = campaign.start(way);
        campaign.load(shard);
        let mut shard = campaign.start(way);
        campaign.check(&mut shard);
        drop(shard);
        match campaign.known.segments > SEGMENTS_MAX {
            true => campaign.renew(),
            false => campaign.rig.cut(),
        }
    }
    campaign.renew();
    println!("{cut_count} cuts, seed {seed}: {:?}", campaign.counts);
    assert!(campaign.counts.acked > 0);
}
