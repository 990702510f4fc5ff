//! The server's metrics for readers in other processes, to which it sends no chunks itself.

use std::time::Duration;

use serde_json::json;
use streamdoor::client::ExecuteOptions;
use streamdoor::door::{ProduceOptions, ReadOptions};
use streamdoor::engine::Start;
use streamdoor::stream::Policy;

use crate::test_server::{FAR, Received, TestServer};

#[test]
fn what_is_read_and_how_long_it_took_is_counted_for_each_transport() {
    let server = TestServer::new(&[]);
    let start = Some(Start::AfterSubscribers { count: 2, deadline: FAR });
    let options = ExecuteOptions { start, ..ExecuteOptions::default() };
    let arguments = json!({"chunks": 50, "delay_ms": 2, "chunk_size": 100});
    let execution = server.execute("slow_data_processor", &arguments, &options);
    let block = ReadOptions { policy: Some(Policy::Block), ..ReadOptions::default() };
    let mut reader = server.door().read(&execution.to_string(), &block).unwrap();
    let over_http = Received::over_http(&server.client, execution, Policy::Block);
    let at_door = Received::of(&mut reader);
    assert_eq!((over_http.counts[0], at_door.counts[0]), (50, 50));
    drop(reader);
    server.until("it is gone", || server.metric("streamdoor_doors") == 0);
    let metrics = server.client.metrics().unwrap();
    assert_eq!(metrics.sum("door_chunks_read_total"), Some(50.0));
    assert_eq!(metrics.sum("door_read_bytes_total"), Some(5_000.0));
    assert_eq!(metrics.sum("chunks_delivered_total"), Some(100.0));
    assert_eq!(metrics.sum("delivered_bytes_total"), Some(10_000.0));
    for (transport, count) in [("stream", 50.0), ("door", 50.0), ("mcp", 0.0)] {
        let of = |name: &str| metrics.sum_where(name, "transport", transport).unwrap();
        assert_eq!(of("delivery_latency_seconds_count"), count, "{transport}");
        assert_eq!(of("delivery_latency_seconds_sum") > 0.0, count > 0.0, "{transport}");
    }
    let buckets = metrics.buckets("delivery_latency_seconds");
    assert_eq!(buckets.last(), Some(&(f64::INFINITY, 100.0)));
    assert!(buckets.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1));
}

#[test]
fn while_it_reads_it_is_counted_and_what_it_missed_is_not() {
    let server = TestServer::new(&[]);
    let door = server.door();
    let small = ProduceOptions { ring_bytes: Some(4 << 10), ..ProduceOptions::default() };
    let mut writer = door.produce("fast", &small).unwrap();
    let name = writer.execution().to_string();
    let dropping = ReadOptions { policy: Some(Policy::DropOldest), ..ReadOptions::default() };
    let mut reader = door.read(&name, &dropping).unwrap();
    let read = || server.metric("streamdoor_door_chunks_read_total");
    for count in 1..=3 {
        writer.send(b"one").unwrap();
        assert!(reader.next().unwrap().is_some());
        assert!(reader.poll().unwrap().is_none()); // This publishes the reader's position.
        server.until("it is counted", || read() == count);
    }
    for _ in 0..500 {
        writer.send(&[1; 100]).unwrap(); // More than the ring holds.
    }
    writer.complete().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let told = Received::of_rest(&mut reader);
    let [given, _, missed, _] = told.counts;
    assert_eq!((given + missed, missed > 0), (503, true));
    drop(reader);
    server.until("it is gone", || server.metric("streamdoor_subscribers") == 0);
    assert_eq!(read(), given);
    assert_eq!(server.metric("streamdoor_door_read_bytes_total"), told.counts[1]);
}
