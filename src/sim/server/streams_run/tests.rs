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
        self.request("PUT", path, body)
    }

    fn request(&self, method: &str, path: &str, body: &str) -> Exchange {
        self.request_with("", method, path, body)
    }

    /// Sends a request with further header lines.
    fn request_with(&self, headers: &str, method: &str, path: &str, body: &str) -> Exchange {
        let length = body.len();
        let request = format!(
            "{method} /v1/stream/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n\
             {headers}Content-Length: {length}\r\n\r\n{body}"
        );
        let Play { grounds, .. } = self;
        Exchange::begin(&grounds.world, &grounds.address, &request).expect("it listens")
    }

    /// Lets a request be answered. Returns the status and the body.
    fn answer(&mut self, method: &str, path: &str, body: &str) -> (Option<u16>, String) {
        let mut exchange = self.request(method, path, body);
        let status = self.wait_for(&mut exchange, Duration::from_secs(30));
        (status, String::from_utf8_lossy(&exchange.body).into_owned())
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

/// A text that fills the ring of its stream, and a reply.
fn long_text(mark: &str) -> String {
    let mut text = mark.repeat(limits::DURABLE_REPLY_BYTES / mark.len() + 1);
    text.push_str("the end");
    text
}

#[test]
fn readers_of_one_part_wait_for_one_of_them() {
    for (first_leaves, second_leaves) in
        [(false, false), (false, true), (true, false), (true, true)]
    {
        let mut play = quiet_play();
        let text = long_text("one");
        assert_eq!(play.answer("PUT", "one", &text).0, Some(201));
        play.pass(5_000_000_000);
        assert_eq!(play.disk.in_flight_count(), 0);
        play.disk.hold();
        let mut readers: Vec<_> =
            (0..6).map(|_| play.request("GET", "one?offset=-1", "")).collect();
        for reader in &mut readers {
            assert_eq!(play.wait_for(reader, Duration::from_millis(60)), None);
        }
        assert_eq!(play.disk.in_flight_count(), 1, "one of them reads");
        // The first one reads, and the second one waits.
        for (at, leaves) in [(1, second_leaves), (0, first_leaves)] {
            if leaves {
                readers.remove(at).close(&play.grounds.world);
            }
        }
        play.pass(60_000_000);
        play.disk.release();
        for reader in &mut readers {
            assert_eq!(play.wait_for(reader, Duration::from_secs(30)), Some(200));
            assert!(reader.body.len() >= limits::DURABLE_REPLY_BYTES);
            assert!(text.as_bytes().starts_with(&reader.body));
        }
        // They have got the same reply, which is kept.
        play.disk.hold();
        let (status, body) = play.answer("GET", "one?offset=-1", "");
        assert_eq!((status, body.as_bytes()), (Some(200), &*readers[0].body));
    }
}

#[test]
fn a_reply_is_not_kept_longer_than_its_stream() {
    let mut play = quiet_play();
    for mark in ["one", "two"] {
        let text = long_text(mark);
        assert_eq!(play.answer("PUT", "one", &text).0, Some(201));
        for _ in 0..3 {
            let (status, body) = play.answer("GET", "one?offset=-1", "");
            assert!(status == Some(200) && text.starts_with(&body));
        }
        // A reply up to the end is good until something is appended.
        assert_eq!(play.answer("PUT", "short", mark).0.map(|status| status / 100), Some(2));
        for count in 0..3 {
            let whole = "more".repeat(count);
            for _ in 0..3 {
                let (status, body) = play.answer("GET", "short?offset=-1", "");
                assert_eq!((status, body), (Some(200), format!("{mark}{whole}")));
            }
            assert_eq!(play.answer("POST", "short", "more").0, Some(204));
        }
        for path in ["one", "short"] {
            assert_eq!(play.answer("DELETE", path, "").0, Some(204));
            assert_eq!(play.answer("GET", &format!("{path}?offset=-1"), "").0, Some(404));
        }
    }
}

#[test]
fn a_refusal_waits_for_the_append_that_it_speaks_of() {
    let mut play = quiet_play();
    for path in ["closed", "ordered"] {
        assert_eq!(play.answer("PUT", path, "").0, Some(201));
    }
    play.pass(5_000_000_000);
    play.disk.hold();
    let closes = ("Stream-Closed: true\r\n", "closed");
    let orders = ("Stream-Seq: 7\r\n", "ordered");
    let mut accepted: Vec<_> = [closes, orders]
        .map(|(headers, path)| play.request_with(headers, "POST", path, "last"))
        .into_iter()
        .collect();
    for exchange in &mut accepted {
        assert_eq!(play.wait_for(exchange, Duration::from_millis(60)), None);
    }
    // Without the disk, nobody knows if the stream is closed, or where its order is.
    let mut refused = vec![
        play.request("POST", "closed", "more"),
        play.request("PUT", "closed", ""),
        play.request_with(orders.0, "POST", "ordered", "again"),
    ];
    for exchange in &mut refused {
        assert_eq!(play.wait_for(exchange, Duration::from_millis(60)), None);
    }
    play.disk.release();
    for exchange in &mut accepted {
        assert_eq!(play.wait_for(exchange, Duration::from_secs(30)), Some(204));
    }
    for exchange in &mut refused {
        assert_eq!(play.wait_for(exchange, Duration::from_secs(30)), Some(409));
    }
    assert_eq!(play.answer("POST", "closed", "more").0, Some(409), "at once by now");
}

#[test]
fn a_removal_is_answered_although_the_last_fork_takes_the_stream_along() {
    for closes in ["", "Stream-Closed: true\r\n"] {
        let mut play = quiet_play();
        let forks = "Stream-Forked-From: /v1/stream/one\r\n";
        for (headers, path) in [(closes, "one"), (forks, "fork")] {
            let mut created = play.request_with(headers, "PUT", path, "some");
            assert_eq!(play.wait_for(&mut created, Duration::from_secs(30)), Some(201));
        }
        play.pass(5_000_000_000);
        play.disk.hold();
        let mut removals: Vec<_> =
            ["one", "fork"].into_iter().map(|path| play.request("DELETE", path, "")).collect();
        for removal in &mut removals {
            assert_eq!(play.wait_for(removal, Duration::from_millis(60)), None);
        }
        play.disk.release();
        for removal in &mut removals {
            assert_eq!(play.wait_for(removal, Duration::from_secs(30)), Some(204));
        }
        for path in ["one", "fork"] {
            assert_eq!(play.answer("GET", path, "").0, Some(404));
        }
    }
}

#[test]
fn readers_that_wait_for_a_stream_hear_that_it_is_gone() {
    let mut play = quiet_play();
    assert_eq!(play.answer("PUT", "one", &long_text("one")).0, Some(201));
    play.pass(5_000_000_000);
    play.disk.hold();
    let mut all: Vec<_> = (0..3).map(|_| play.request("GET", "one?offset=-1", "")).collect();
    for reader in &mut all {
        assert_eq!(play.wait_for(reader, Duration::from_millis(60)), None);
    }
    let mut removal = play.request("DELETE", "one", "");
    assert_eq!(play.wait_for(&mut removal, Duration::from_millis(60)), None);
    play.disk.release();
    assert_eq!(play.wait_for(&mut removal, Duration::from_secs(30)), Some(204));
    for reader in &mut all {
        assert_eq!(play.wait_for(reader, Duration::from_secs(30)), Some(404));
    }
}
