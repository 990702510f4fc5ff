//! A shard driven by hand, whose invariants are checked after each turn. Other threads read and
//! produce at its door meanwhile.

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use streamdoor::door::{Door, ProduceOptions, ReadOptions};
use streamdoor::reactor::{Choice, Clock};
use streamdoor::server::{Doors, GuestConfig, ServerShard};
use streamdoor::shard::ShardConfig;
use streamdoor::stream::{Outcome, Policy};

use crate::test_server::{Received, slow_bytes, until};

fn read_and_produce(path: &Path) {
    let door = Door::open(path).unwrap();
    let block = ReadOptions { policy: Some(Policy::Block), ..ReadOptions::default() };
    let arguments = json!({"chunks": 200, "delay_ms": 0, "chunk_size": 300});
    for policy in [Policy::Block, Policy::DropOldest, Policy::Conflate] {
        let options = ReadOptions { policy: Some(policy), ..ReadOptions::default() };
        let mut reader = door.run("slow_data_processor", &arguments, &options).unwrap();
        let name = reader.execution().to_string();
        let impatient = door.read(&name, &block).unwrap();
        drop(impatient);
        let told = Received::of(&mut reader);
        assert_eq!(told.counts[0] + told.counts[2], 200, "{policy:?}");
        assert_eq!(
            Received::of(&mut door.read(&name, &options).unwrap()).outcome(),
            told.outcome()
        );
        if policy == Policy::Block {
            assert_eq!(told.bytes, slow_bytes(200, 300));
        }
    }
    let small = ProduceOptions { ring_bytes: Some(4 << 10), ..ProduceOptions::default() };
    for round in 0..5 {
        let mut writer = door.produce("guest", &small).unwrap();
        let name = writer.execution().to_string();
        let mut reader = door.read(&name, &block).unwrap();
        let told = std::thread::scope(|scope| {
            let told = scope.spawn(|| Received::of(&mut reader));
            for number in 0..1_000_u32 {
                writer.send(&number.to_le_bytes()).unwrap();
                if number % 100 == round {
                    writer.progress(f64::from(number), None, "on its way");
                    drop(door.read(&name, &block).unwrap());
                }
            }
            writer.complete().unwrap();
            told.join().unwrap()
        });
        assert_eq!((told.bytes.len(), told.outcome()), (4_000, Some(Outcome::Completed)));
    }
    let writer = door.produce("guest", &small).unwrap();
    drop((door.read(&writer.execution().to_string(), &block).unwrap(), writer));
    let client = door.client().unwrap();
    until("all have ended", || {
        let all = client.executions().unwrap();
        all.iter().all(|one| matches!(one.state, streamdoor::stream::ExecutionState::Ended(_)))
    });
}

#[test]
fn every_invariant_holds_behind_every_turn_on_both_ways_to_the_kernel() {
    for choice in [Choice::Mio, Choice::Auto] {
        let config = ShardConfig {
            reactor: choice,
            guests: GuestConfig { doors: Doors::new(3), ..Default::default() },
            ..Default::default()
        };
        let (mut shard, _) = ServerShard::open(config).unwrap();
        let name = format!("streamdoor-audit-{}-{choice}", std::process::id());
        let path = std::env::temp_dir().join(name);
        shard.listen_at_door(&path).unwrap();
        let client = {
            let path = path.clone();
            std::thread::spawn(move || read_and_produce(&path))
        };
        let mut turns = 0_u64;
        while !client.is_finished() {
            shard.turn();
            shard.audit();
            turns += 1;
            shard.park(Some(Clock::now() + Duration::from_millis(5)));
        }
        client.join().unwrap();
        for _ in 0..100 {
            shard.turn();
            shard.audit();
        }
        let counters = shard.counters();
        assert_eq!((counters.door_readers_evicted, counters.door_producers_refused), (0, 0));
        assert!(counters.doors_opened >= 9, "{}", counters.doors_opened);
        println!("{choice}: {turns} turns");
        drop(shard);
        assert!(!path.exists());
    }
}
