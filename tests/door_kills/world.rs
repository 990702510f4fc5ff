//! A server in this process, and readers at its door.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use streamdoor::base::{Instant, Random};
use streamdoor::client::Client;
use streamdoor::door::{Door, DoorReader, ReadOptions};
use streamdoor::reactor::Clock;
use streamdoor::server::{Server, ServerConfig};
use streamdoor::shard::{Delivery, ShardConfig};
use streamdoor::stream::{End, EndState, Outcome, Policy};

/// A deadline that no test reaches.
pub const FAR: Duration = Duration::from_secs(30);
pub const LENGTH_MAX: usize = 200;

pub struct World {
    folder: PathBuf,
    pub client: Client,
    _server: Server,
}

impl World {
    pub fn new() -> World {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("streamdoor-kills-{}-{count}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        let config = ServerConfig {
            shards: vec![ShardConfig::default()],
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            connections_max: 100,
        };
        let server = Server::start(config, Arc::new(|_| {})).unwrap();
        server.open_door(&folder.join("door")).unwrap();
        let client = Client::new(&format!("http://{}", server.addresses()[0])).unwrap();
        World { folder, client, _server: server }
    }

    pub fn path(&self) -> PathBuf {
        self.folder.join("door")
    }

    pub fn door(&self) -> Door {
        Door::open(self.path()).unwrap()
    }

    pub fn read(&self, execution: &str) -> DoorReader {
        self.door().read(execution, &block()).unwrap()
    }

    /// Asserts that a new producer and a new reader work, so the resources of dead ones were
    /// released.
    pub fn is_sound(&self) {
        let mut writer = self.door().produce("after", &Default::default()).unwrap();
        let mut reader = self.read(&writer.execution().to_string());
        let mut buffer = [0; LENGTH_MAX];
        for seq in 1..=20 {
            let length = pattern(seq, &mut buffer);
            writer.send(&buffer[..length]).unwrap();
        }
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| Received::all(&mut reader));
            writer.complete().unwrap();
            let heard = reading.join().unwrap();
            assert_eq!((heard.chunk_count, heard.outcome()), (20, Some(Outcome::Completed)));
        });
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub fn block() -> ReadOptions {
    ReadOptions { policy: Some(Policy::Block), ..ReadOptions::default() }
}

/// Writes the expected data of chunk `seq`, and returns its length.
pub fn pattern(seq: u64, buffer: &mut [u8; LENGTH_MAX]) -> usize {
    let mut random = Random::new(seq);
    let length = random.below(LENGTH_MAX as u64 + 1) as usize;
    random.fill(&mut buffer[..length]);
    length
}

/// The deliveries to a `block` reader: every chunk from the first on, with the expected data, and
/// an end.
#[derive(Debug, Default)]
pub struct Received {
    pub chunk_count: u64,
    pub end: Option<End>,
    /// The time when the end was received.
    pub at: Instant,
}

impl Received {
    pub fn all(reader: &mut DoorReader) -> Received {
        let mut heard = Received::default();
        heard.rest(reader);
        heard
    }

    /// Takes everything up to the end.
    pub fn rest(&mut self, reader: &mut DoorReader) {
        while self.end.is_none() {
            match reader.next_within(FAR).unwrap() {
                Some(delivery) => self.take(&delivery),
                None => panic!("nothing comes any more behind {self:?}"),
            }
        }
        assert!(reader.next().unwrap().is_none());
    }

    pub fn take(&mut self, delivery: &Delivery<'_>) {
        match delivery {
            Delivery::Chunk(chunk) => {
                self.chunk_count += 1;
                assert_eq!(chunk.seq, self.chunk_count);
                let mut expected = [0; LENGTH_MAX];
                let length = pattern(chunk.seq, &mut expected);
                assert!(chunk.data == &expected[..length], "chunk {} is changed", chunk.seq);
            }
            Delivery::Gap(gap) => panic!("a gap under `block`: {gap:?}"),
            Delivery::Progress(_) => {}
            Delivery::End(ended) => {
                self.at = Clock::now();
                self.end = Some(ended.end);
                let totals = (ended.end.given.chunks, ended.end.missed.chunks);
                assert_eq!(totals, (self.chunk_count, 0));
            }
        }
    }

    pub fn outcome(&self) -> Option<Outcome> {
        match self.end?.state {
            EndState::Ended(outcome) => Some(outcome),
            EndState::Detached { .. } => None,
        }
    }
}
