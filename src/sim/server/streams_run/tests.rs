//! Streams on a disk that stands still.

use std::time::Duration;

use super::Play;
use crate::limits;
use crate::reactor::ListenOptions;
use crate::server::ServerShard;
use crate::sim::disk::DiskFaults;
use crate::sim::reactor::SimReactor;
use crate::sim::server::exchange::Exchange;
use crate::sim::server::timed_play::TimedPlay;
use crate::sim::world::SimFaults;
use crate::stream::Durability;

const BODY_BYTES: usize = 256 << 10;

/// A server without clients, on a disk without faults, with more streams and rings than its journal
/// may hold without a sync.
fn quiet_play() -> Play {
    let mut play = Play::new(1, false);
    play.grounds.world.set_faults(SimFaults::NONE);
    play.disk.set_faults(DiskFaults::NONE);
    play.shard = None;
    let grounds = &mut play.grounds;
    let (durability, segment_bytes) = (Durability::Synced, limits::JOURNAL_SEGMENT_BYTES_MIN);
    let mut config = super::config(&mut grounds.random, durability, segment_bytes);
    config.engine.executions_max = 500;
    config.rings.bytes_max = 64 << 20;
    config.sockets = None;
    let reactor = SimReactor::new(&grounds.world);
    let mut shard = ServerShard::over(reactor, config).expect("the disk is sound");
    let address = "127.0.0.1:0".parse().expect("an address");
    let address = shard.listen(&address, ListenOptions { shares_port: true });
    grounds.address = address.expect("nobody has it");
    play.shard = Some(shard);
    play
}

impl Play {
    fn put(&self, path: &str, body: &str) -> Exchange {
        let length = body.len();
        let request = format!(
            "PUT /v1/stream/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        );
        let Play { grounds, .. } = self;
        Exchange::begin(&grounds.world, &grounds.address, &request).expect("it listens")
    }

    /// Lets time pass. Returns the status of an exchange, if it has one by then.
    fn wait_for(&mut self, exchange: &mut Exchange, time: Duration) -> Option<u16> {
        let until = self.grounds.world.now() + time;
        while self.grounds.world.now() < until && exchange.outcome.is_none() {
            for _ in 0..20 {
                exchange.step(&self.grounds.world, &mut self.grounds.random).unwrap();
                self.turn();
            }
            self.pass(20_000_000);
        }
        exchange.status
    }

    /// Lets the disk stand still, and creates streams until one waits for room.
    fn fill(&mut self) -> Vec<Exchange> {
        self.disk.hold();
        let mut all = Vec::new();
        while self.shard().guests.delayed_creation_count() == 0 {
            assert!(all.len() < 400);
            let mut next = self.put(&format!("full/{}", all.len()), &"x".repeat(BODY_BYTES));
            assert_eq!(self.wait_for(&mut next, Duration::from_millis(60)), None);
            all.push(next);
        }
        all
    }
}

#[test]
fn a_creation_waits_until_the_journal_has_room() {
    let mut play = quiet_play();
    let mut all = play.fill();
    all.push(play.put("late", "something"));
    let late = all.last_mut().expect("it was just begun");
    assert_eq!(play.wait_for(late, limits::DURABLE_ROOM_WAIT / 2), None);
    play.disk.release();
    for exchange in &mut all {
        assert_eq!(play.wait_for(exchange, Duration::from_secs(30)), Some(201));
    }
}

#[test]
fn a_creation_is_refused_if_the_journal_has_no_room_for_too_long() {
    let mut play = quiet_play();
    let _full = play.fill();
    let begun_at = play.grounds.world.now();
    let mut late = play.put("late", "something");
    let mut gone = play.put("gone", "something");
    assert_eq!(play.wait_for(&mut gone, Duration::from_millis(60)), None);
    gone.close(&play.grounds.world);
    assert_eq!(play.wait_for(&mut late, 2 * limits::DURABLE_ROOM_WAIT), Some(507));
    assert!(play.grounds.world.now() >= begun_at + limits::DURABLE_ROOM_WAIT);
    play.disk.release();
    let mut late = play.put("late", "something");
    assert_eq!(play.wait_for(&mut late, Duration::from_secs(30)), Some(201), "the path is free");
}
