//! A shard with a journal, and chunks that follow from their execution and their number.

use std::io;
use std::path::Path;

use streamdoor::base::{ExecutionId, Random};
use streamdoor::memory::RingPoolConfig;
use streamdoor::reactor::Choice;
use streamdoor::shard::{
    ExecuteError, ExecuteOptions, JournalConfig, MemoryWatch, Shard, ShardConfig,
};
use streamdoor::stream::{Durability, Kind};
use streamdoor::tool::{Need, Prepared, Work};

/// The way in which a shard uses its disk.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    pub reactor: Choice,
    pub is_direct: bool,
}

impl Way {
    pub const USUAL: Way = Way { reactor: Choice::Auto, is_direct: false };
}

pub fn open_shard(directory: &Path, Way { reactor, is_direct }: Way) -> io::Result<Shard> {
    let at = JournalConfig::at(directory);
    let config = ShardConfig {
        rings: RingPoolConfig { prealloc_bytes: 0, ..Default::default() },
        memory: MemoryWatch::ByHand,
        reactor,
        journal: Some(JournalConfig { segment_bytes: 1 << 20, is_direct, ..at }),
        ..Default::default()
    };
    Shard::new(config).map(|(shard, _)| shard)
}

/// Opens an execution with the smallest ring, unless the disk is too slow for that now.
pub fn open(shard: &mut Shard, durability: Durability) -> Option<ExecutionId> {
    let need = Need { ring_bytes: 4 << 10, ..Default::default() };
    let prepared = Prepared { need, ..Prepared::new(Work::Feed) };
    let options = ExecuteOptions { durability: Some(durability), ..Default::default() };
    match shard.execute_prepared(prepared, options) {
        Ok(id) => Some(id),
        Err(ExecuteError::NotKept(_)) => None,
        Err(error) => panic!("{error}"),
    }
}

/// The kind and the payload of a chunk.
pub fn chunk(id: ExecutionId, seq: u64) -> (Kind, Vec<u8>) {
    let mut random = Random::new(id.to_bits() as u64 ^ seq.rotate_left(24));
    let mut bytes = vec![0; random.below(500) as usize];
    random.fill(&mut bytes);
    (Kind::ALL[random.below(3) as usize], bytes)
}

/// Takes turns until `is_done`.
pub fn turn_until(shard: &mut Shard, mut is_done: impl FnMut(&mut Shard) -> bool) {
    while !is_done(shard) {
        if !shard.turn() {
            shard.park(None);
        }
    }
}
