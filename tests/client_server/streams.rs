//! Streams with every policy, read fast and slowly, and a server that ends in the middle.

use std::time::Duration;

use serde_json::json;
use streamdoor::client::{ClientError, ExecuteOptions, FollowOptions, StreamEvent};
use streamdoor::endpoint::{DeliveryOptions, PolicyChoice};
use streamdoor::engine::Coalesce;
use streamdoor::stream::{DetachReason, EndState, Outcome, Policy, Totals};

use crate::world::{FORMATS, World, check, options};

fn of(policy: Policy) -> DeliveryOptions {
    DeliveryOptions { policy: Some(policy), ..DeliveryOptions::default() }
}

#[test]
fn with_every_policy_what_came_and_what_was_missed_are_all() {
    let world = World::new();
    for format in FORMATS {
        for policy in Policy::ALL {
            let delivery_options = of(policy);
            let (execute, follow) = (ExecuteOptions::default(), options(format, delivery_options));
            let arguments = json!({"chunks": 200});
            let stream = world.client.call("count", &arguments, &execute, follow).unwrap();
            let events: Vec<StreamEvent> = stream.map(Result::unwrap).collect();
            let StreamEvent::Started(started) = &events[0] else { panic!("{:?}", events[0]) };
            assert_eq!(started.policy, policy);
            let missed = check(&events, &delivery_options, 200);
            let Some(StreamEvent::End(ended)) = events.last() else { panic!("no end") };
            assert_eq!(ended.end.missed, missed);
            assert_eq!(ended.end.state, EndState::Ended(Outcome::Completed));
            if matches!(policy, Policy::Block | Policy::Disconnect) {
                assert_eq!(missed, Totals::ZERO);
            }
        }
    }
}

/// The data is larger than the socket buffers, so a client that does not read lags.
#[test]
fn who_does_not_read_lags_and_is_treated_as_was_agreed() {
    const CHUNKS: u64 = 25_000;
    for (format, policy) in FORMATS.into_iter().zip([Policy::Drop, Policy::Conflate]).chain([
        (FORMATS[0], Policy::Disconnect),
        (FORMATS[1], Policy::DropOldest),
        (FORMATS[0], Policy::Buffer),
    ]) {
        let mut world = World::new();
        let created = world.client.execute("steps", &json!({}), &ExecuteOptions::default());
        let execution = created.unwrap().execution;
        let delivery_options = of(policy);
        let stream = world.client.follow(execution, options(format, delivery_options)).unwrap();
        world.send(CHUNKS);
        world.published(execution, CHUNKS);
        world.complete();
        world.ended(execution);
        let events: Vec<StreamEvent> = stream.map(Result::unwrap).collect();
        let Some(StreamEvent::End(ended)) = events.last() else { panic!("no end") };
        match policy {
            Policy::Disconnect => {
                let reason = match ended.end.state {
                    EndState::Detached { reason, .. } => Some(reason),
                    EndState::Ended(_) => None,
                };
                assert_eq!(reason, Some(DetachReason::Lag));
            }
            _ => assert!(check(&events, &delivery_options, CHUNKS).chunks > 0, "{policy:?}"),
        }
    }
}

#[test]
fn a_slow_reader_that_blocks_is_given_everything() {
    let world = World::new();
    let delivery_options = of(Policy::Block);
    let arguments = json!({"chunks": 4_000});
    let (execute, follow) = (ExecuteOptions::default(), options(FORMATS[0], delivery_options));
    let stream = world.client.call("count", &arguments, &execute, follow).unwrap();
    let slowly = stream.map(|event| {
        let event = event.unwrap();
        if matches!(&event, StreamEvent::Chunk(chunk) if chunk.seq.is_multiple_of(500)) {
            std::thread::sleep(Duration::from_millis(5));
        }
        event
    });
    let events: Vec<StreamEvent> = slowly.collect();
    assert_eq!(check(&events, &delivery_options, 4_000), Totals::ZERO);
}

#[test]
fn delivery_options_arrive() {
    let world = World::new();
    let delivery_options = DeliveryOptions {
        limit_chunks: Some(7),
        limit_bytes: Some(5_000),
        coalesce: Some(Coalesce { delay_max: Duration::from_millis(2), bytes_max: 2_000 }),
        ..of(Policy::DropOldest)
    };
    let execute = ExecuteOptions {
        policy: Some(PolicyChoice {
            policy: Policy::Buffer,
            limit_chunks: None,
            limit_bytes: None,
        }),
        ..ExecuteOptions::default()
    };
    for (follow, policy, limits) in [
        (options(FORMATS[1], delivery_options), Policy::DropOldest, (7, 5_000)),
        (FollowOptions::default(), Policy::Buffer, (100, u64::MAX)),
    ] {
        let arguments = json!({"chunks": 30});
        let stream = world.client.call("count", &arguments, &execute, follow).unwrap();
        let events: Vec<StreamEvent> = stream.map(Result::unwrap).collect();
        let StreamEvent::Started(started) = &events[0] else { panic!("{:?}", events[0]) };
        assert_eq!(started.policy, policy);
        assert_eq!((started.limit.chunks, started.limit.bytes), limits);
        check(&events, &DeliveryOptions::default(), 30);
    }
}

#[test]
fn a_server_that_is_drained_in_the_middle_says_so() {
    for format in FORMATS {
        let world = World::new();
        world.send(3);
        let World { server, client, steps } = world;
        let execute = ExecuteOptions::default();
        let follow = options(format, of(Policy::Block));
        let mut stream = client.call("steps", &json!({}), &execute, follow).unwrap();
        while stream.reported_seq() != Some(3) {
            stream.next().unwrap().unwrap();
        }
        let drain = std::thread::spawn(move || server.drain(Duration::from_secs(30)));
        let last = stream.by_ref().map(Result::unwrap).last();
        let Some(StreamEvent::End(ended)) = last else { panic!("{last:?}") };
        let (reason, resume_from) = (DetachReason::Shutdown, 4);
        assert_eq!(ended.end.state, EndState::Detached { reason, resume_from });
        assert_eq!(stream.reached().map(|reached| reached.seq), Some(3));
        drop((stream, steps));
        assert_eq!(drain.join().unwrap(), streamdoor::server::Drained::Whole);
        let error = client.tools().unwrap_err();
        assert!(matches!(error, ClientError::Unreachable { .. } | ClientError::Cut(_)), "{error}");
    }
}
