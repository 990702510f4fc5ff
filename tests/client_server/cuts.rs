//! Connections that break: the stream continues at its position, or reports exactly what was lost.

use std::time::Duration;

use serde_json::json;
use streamdoor::client::{Client, ExecuteOptions, FollowOptions, Reached, SeenTotals, StreamEvent};
use streamdoor::endpoint::{DeliveryOptions, PolicyChoice, StreamFormat};
use streamdoor::stream::{EndState, Kind, Kinds, Outcome, Policy, Totals};

use crate::proxy::Proxy;
use crate::world::{FORMATS, World, check, options, totals};

/// More chunks than a small ring holds.
const CHUNKS: u64 = 300;

fn delivery_options(policy: Policy, kinds: Kinds) -> DeliveryOptions {
    DeliveryOptions { policy: Some(policy), kinds, ..DeliveryOptions::default() }
}

fn some_kinds() -> Kinds {
    Kinds::NONE.with(Kind::Stderr)
}

#[test]
fn a_call_that_is_cut_again_and_again_is_whole() {
    let world = World::new();
    for format in FORMATS {
        for kinds in [Kinds::ALL, some_kinds()] {
            let delivery_options = delivery_options(Policy::Block, kinds);
            // Cuts within a head and within events. An SSE client waits before it reconnects, as
            // the server says: that is half a second and more, so there are few cuts.
            let cuts = match format {
                StreamFormat::Sse | StreamFormat::Front(_) => vec![3_000, 100, 20_000],
                StreamFormat::Ndjson => vec![3_000, 700, 20_000, 100, 2_500, 30_000],
            };
            let cut_count = cuts.len() as u64;
            let proxy = Proxy::new(&world.url(), cuts);
            let client = Client::new(&proxy.url).unwrap();
            let execute = ExecuteOptions::default();
            let arguments = json!({"chunks": CHUNKS});
            let follow = options(format, delivery_options);
            let mut stream = client.call("count", &arguments, &execute, follow).unwrap();
            let events: Vec<StreamEvent> = stream.by_ref().map(Result::unwrap).collect();
            // The reserve of the ring has all chunks that a cut can lose.
            assert_eq!(check(&events, &delivery_options, CHUNKS), Totals::ZERO);
            // If the head was cut, the attempt did not count.
            assert!(stream.reconnects() >= cut_count - 1, "{}", stream.reconnects());
            let Some(StreamEvent::End(ended)) = events.last() else { panic!("no end") };
            assert_eq!(ended.end.state, EndState::Ended(Outcome::Completed));
            // The end counts its own connection and the execution. The stream counts all
            // connections.
            let all = totals(&delivery_options, CHUNKS);
            assert_eq!((ended.end.published, stream.given()), (all, all));
            assert!(ended.end.given.chunks < all.chunks, "{:?}", ended.end);
            assert_eq!(stream.missed(), Totals::ZERO);
            // Only the whole stream is so long that an acknowledgement cannot wait for its end. The
            // proxy may still be on its way to read it.
            while kinds.is_all() && proxy.acks() == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// By the time the client reconnects, the ring has overwritten the next chunks. The size of the gap
/// follows from the counts that the client sends.
#[test]
fn what_the_ring_has_overwritten_meanwhile_is_one_gap_that_counts_exactly() {
    for format in FORMATS {
        for kinds in [Kinds::ALL, some_kinds()] {
            let mut world = World::new();
            let proxy = Proxy::new(&world.url(), vec![]);
            let client = Client::new(&proxy.url).unwrap();
            let policy = PolicyChoice { policy: Policy::Drop, ..PolicyChoice::default() };
            let lossy = ExecuteOptions { policy: Some(policy), ..ExecuteOptions::default() };
            let created = world.client.execute("steps", &json!({}), &lossy);
            let execution = created.unwrap().execution;
            let delivery_options = delivery_options(Policy::Drop, kinds);
            let mut stream = client.follow(execution, options(format, delivery_options)).unwrap();
            world.send(6);
            let mut events = Vec::new();
            while stream.reported_seq() != Some(6) {
                events.push(stream.next().unwrap().unwrap());
            }
            let reached = stream.reached().unwrap();
            let Totals { chunks, bytes } = totals(&delivery_options, reached.seq);
            assert_eq!(reached.seen, Some(SeenTotals { chunks, bytes }));

            proxy.cut();
            world.send(CHUNKS - 6);
            world.published(execution, CHUNKS);
            let status = world.client.inspect(execution).unwrap();
            assert!(status.tail_seq > reached.seq + 1, "{status:?}");

            // Without these counts the size of the gap is unknown.
            let unseen = Some(Reached { seen: None, ..reached });
            let refused = FollowOptions { after: unseen, ..options(format, delivery_options) };
            let error = world.client.follow(execution, refused).unwrap_err();
            let refused = error.refused().unwrap();
            assert_eq!((refused.status.code(), refused.code.as_str()), (410, "no_longer_held"));

            // With them, another program can resume as well as this stream.
            let after = FollowOptions { after: Some(reached), ..options(format, delivery_options) };
            let other = world.client.follow(execution, after).unwrap();
            world.complete();
            let rest: Vec<StreamEvent> = other.map(Result::unwrap).collect();
            let gap = rest.iter().find_map(|event| match event {
                StreamEvent::Gap(gap) => Some(gap),
                _ => None,
            });
            assert_eq!(gap.unwrap().from_seq, reached.seq + 1);
            events.extend(stream.by_ref().map(Result::unwrap));
            assert!(stream.reconnects() >= 1);
            assert!(check(&events, &delivery_options, CHUNKS).chunks > 0);
        }
    }
}

#[test]
fn behind_the_end_there_is_nothing_and_before_the_first_chunk_everything() {
    let world = World::new();
    for format in FORMATS {
        for kinds in [Kinds::ALL, some_kinds()] {
            let delivery_options = delivery_options(Policy::Block, kinds);
            let execute = ExecuteOptions::default();
            let arguments = json!({"chunks": 7});
            let follow = options(format, delivery_options);
            let mut stream = world.client.call("count", &arguments, &execute, follow).unwrap();
            let events: Vec<StreamEvent> = stream.by_ref().map(Result::unwrap).collect();
            check(&events, &delivery_options, 7);
            let execution = stream.execution().unwrap();
            let again = |after| {
                let options =
                    FollowOptions { after: Some(after), ..options(format, delivery_options) };
                let stream = world.client.follow(execution, options).unwrap();
                stream.map(Result::unwrap).collect::<Vec<StreamEvent>>()
            };
            let reached = stream.reached().unwrap();
            let Totals { chunks, bytes } = totals(&delivery_options, 7);
            assert_eq!(reached.seen, Some(SeenTotals { chunks, bytes }));
            // This is the end's own id. Without ids and with a filter the position of the end is
            // unknown.
            if format == StreamFormat::Sse || kinds.is_all() {
                assert_eq!((reached.seq, reached.has_ended), (7, true));
                assert_eq!(again(reached), []);
            }
            for seen in [None, Some(SeenTotals { chunks: 0, bytes: 0 })] {
                assert_eq!(
                    check(&again(Reached { seq: 0, seen, has_ended: false }), &delivery_options, 7),
                    Totals::ZERO
                );
            }
        }
    }
}
