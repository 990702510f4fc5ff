//! Tests of what the guests add to the shard's own work.

use std::time::Duration;

use crate::engine::{Start, SubscribeSpec};
use crate::limits;
use crate::memory::{Readings, RingPoolConfig};
use crate::server::{GuestConfig, Log, LogClosed, ServerShard};
use crate::shard::{ExecuteOptions, MemoryWatch, PublishError, ShardConfig};
use crate::stream::{Kind, Policy};
use crate::tool::{Prepared, Work};
use crate::trace::{Level, LogFormat};

/// Creates a shard whose memory pressure is independent of the load on this machine.
fn shard(guests: GuestConfig) -> ServerShard {
    let rings = RingPoolConfig { prealloc_bytes: 0, ..RingPoolConfig::default() };
    let memory = MemoryWatch::ByHand;
    let config = ShardConfig { rings, seed: Some(1), memory, guests, ..ShardConfig::default() };
    ServerShard::open(config).unwrap().0
}

fn some(percent: f32) -> Readings {
    Readings { memory_some_avg10: Some(percent), ..Default::default() }
}

/// The text that a log has written.
#[derive(Clone, Default)]
struct Written(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn each_change_of_state_is_a_line_that_names_the_reading() {
    let written = Written::default();
    let log = Log::start(LogFormat::Json, Level::Info, written.clone()).unwrap();
    let mut shard = shard(GuestConfig { log: log.clone(), ..GuestConfig::default() });
    shard.set_readings(&Readings { io_some_avg10: Some(100.0), ..some(4.0) }); // Disks only.
    shard.set_readings(&some(12.5));
    shard.set_readings(&some(13.0));
    assert_eq!(shard.memory().decided_by.unwrap().to_string(), "memory some avg10 12 %");
    for _ in 0..limits::PRESSURE_CALM_SAMPLES {
        shard.set_readings(&some(1.0));
    }
    assert_eq!(log.close(), LogClosed::Whole);
    let bytes = written.0.lock().unwrap();
    let lines = std::str::from_utf8(&bytes).unwrap().lines();
    let lines: Vec<serde_json::Value> =
        lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    let (disks, lines): (Vec<_>, Vec<_>) =
        lines.into_iter().partition(|line| line["event"] != "memory_pressure_changed");
    let facts = |line: &serde_json::Value| format!("{} {}", line["event"], line["reading"]);
    let disks: Vec<String> = disks.iter().map(facts).collect();
    assert_eq!(disks, ["\"disks_busy\" \"io some avg10\"", "\"disks_calm\" null"]);
    let told = |line: &serde_json::Value| {
        let text = |name: &str| line[name].as_str().unwrap().to_owned();
        (text("level"), text("pressure"), text("reading"), line["percent"].as_u64().unwrap())
    };
    let expected = [("warn", "elevated", 12), ("info", "normal", 1)];
    let expected = expected.map(|(level, pressure, percent)| {
        (level.to_owned(), pressure.to_owned(), "memory some avg10".to_owned(), percent)
    });
    assert_eq!(lines.iter().map(told).collect::<Vec<_>>(), expected);
}

#[test]
fn readers_at_the_door_start_an_execution_that_is_fed_by_hand() {
    let mut shard = shard(GuestConfig::default());
    let spec = || SubscribeSpec { policy: Policy::Drop, ..SubscribeSpec::default() };
    let start = Start::AfterSubscribers { count: 2, deadline: Duration::from_secs(60) };
    let options = ExecuteOptions { start, ..Default::default() };
    let id = shard.execute_prepared(Prepared::new(Work::Feed), options).unwrap();
    let _first = shard.read_by_hand(id, spec()).unwrap();
    assert_eq!(shard.publish(id, Kind::Output, b"early"), Err(PublishError::Blocked));
    let _second = shard.read_by_hand(id, spec()).unwrap();
    while shard.turn() {}
    shard.audit();
    assert_eq!(shard.publish(id, Kind::Output, b"in time"), Ok(1));
}
