//! Every request of the client, sent to a real server.

use std::time::Duration;

use serde_json::json;
use streamdoor::client::{Awaited, Client, ExecuteOptions, FollowOptions, StreamEvent};
use streamdoor::endpoint::DeliveryOptions;
use streamdoor::stream::{EndState, ExecutionState, Outcome, Policy, Totals};

use crate::world::{FORMATS, World, check, data, options, totals};

#[test]
fn tools_are_listed_run_and_give_their_result() {
    let world = World::new();
    let client = &world.client;
    let names: Vec<String> = client.tools().unwrap().into_iter().map(|tool| tool.name).collect();
    assert!(["count", "steps"].iter().all(|name| names.iter().any(|other| other == name)));

    let arguments = json!({"chunks": 5});
    let created = client.execute("count", &arguments, &ExecuteOptions::default()).unwrap();
    let awaited = client.result(created.execution, Duration::from_secs(60)).unwrap();
    let Awaited::Ended(output) = awaited else { panic!("{awaited:?}") };
    assert_eq!(output.state, ExecutionState::Ended(Outcome::Completed));
    assert!(output.is_complete);
    assert_eq!(output.data, (1..=5).flat_map(data).collect::<Vec<u8>>());
    let Totals { chunks, bytes } = totals(&DeliveryOptions::default(), 5);
    assert_eq!((output.chunks, output.bytes), (chunks, bytes));

    let arguments = json!({"fails": true});
    let created = client.execute("count", &arguments, &ExecuteOptions::default()).unwrap();
    let awaited = client.result(created.execution, Duration::from_secs(60)).unwrap();
    let Awaited::Ended(output) = awaited else { panic!("{awaited:?}") };
    assert_eq!(output.state, ExecutionState::Ended(Outcome::Failed));
    assert_eq!(output.error.as_deref(), Some("it was told to fail"));

    let error = client.execute("other", &json!({}), &ExecuteOptions::default()).unwrap_err();
    let refused = error.refused().unwrap();
    assert!(refused.message.contains("count"), "{refused}");
    let error = client.inspect("0".repeat(26).parse().unwrap()).unwrap_err();
    assert_eq!(error.refused().unwrap().status.code(), 404);
}

#[test]
fn what_runs_is_listed_inspected_and_cancelled() {
    let world = World::new();
    let client = &world.client;
    let created = client.execute("steps", &json!({}), &ExecuteOptions::default()).unwrap();
    let execution = created.execution;
    world.send(3);
    world.published(execution, 3);
    let summary = client.executions().unwrap().remove(0);
    assert_eq!((summary.execution, summary.tool.as_str()), (execution, "steps"));
    assert_eq!((summary.state, summary.chunks), (ExecutionState::Running, 3));
    assert_eq!(client.progress().unwrap().len(), 1);
    assert_eq!(
        client.result(execution, Duration::ZERO).unwrap(),
        Awaited::Running(ExecutionState::Running)
    );

    let mut stream = client.follow(execution, FollowOptions::default()).unwrap();
    assert!(matches!(stream.next(), Some(Ok(StreamEvent::Started(_)))));
    let status = client.inspect(execution).unwrap();
    let subscriber = &stream.started().unwrap().subscriber;
    assert!(status.subscribers.iter().any(|other| other.subscriber == *subscriber));
    client.cancel(execution).unwrap();
    let events: Vec<StreamEvent> = stream.map(Result::unwrap).collect();
    let Some(StreamEvent::End(ended)) = events.last() else { panic!("{events:?}") };
    assert_eq!(ended.end.state, EndState::Ended(Outcome::Cancelled));
    world.ended(execution);
    let state = ExecutionState::Ended(Outcome::Cancelled);
    assert_eq!(client.inspect(execution).unwrap().state, state);
    assert_eq!(client.cancel(execution).unwrap(), state, "it is left as it is");
}

#[test]
fn a_window_of_acknowledgements_holds_chunks_back_until_they_are_dealt_with() {
    for format in FORMATS {
        let mut world = World::new();
        let created = world.client.execute("steps", &json!({}), &ExecuteOptions::default());
        let execution = created.unwrap().execution;
        let delivery_options = DeliveryOptions {
            policy: Some(Policy::Block),
            ack_window: Some(2),
            ..DeliveryOptions::default()
        };
        let mut stream = world.client.follow(execution, options(format, delivery_options)).unwrap();
        let mut events = Vec::new();
        let mut dealt_with = 0;
        world.send(9);
        world.published(execution, 9);
        world.complete();
        while let Some(event) = stream.next() {
            let event = event.unwrap();
            if let StreamEvent::Chunk(chunk) = &event {
                assert!(chunk.seq <= dealt_with + 2, "{} after {dealt_with}", chunk.seq);
                if chunk.seq == dealt_with + 2 {
                    let status = world.client.inspect(execution).unwrap();
                    assert_eq!(status.subscribers[0].next_seq, chunk.seq + 1);
                    dealt_with = chunk.seq;
                    stream.acknowledge(dealt_with).unwrap();
                }
            }
            events.push(event);
        }
        assert_eq!(check(&events, &delivery_options, 9), Totals::ZERO);
    }
}

#[test]
fn a_subscriber_that_is_let_go_is_told_its_end_and_the_execution_goes_on() {
    for format in FORMATS {
        let mut world = World::new();
        let created = world.client.execute("steps", &json!({}), &ExecuteOptions::default());
        let execution = created.unwrap().execution;
        let mut stream =
            world.client.follow(execution, options(format, DeliveryOptions::default())).unwrap();
        let Some(Ok(StreamEvent::Started(started))) = stream.next() else { panic!("no start") };
        world.client.unsubscribe(execution, &started.subscriber).unwrap();
        let last = stream.by_ref().map(Result::unwrap).last();
        let Some(StreamEvent::End(ended)) = last else { panic!("{last:?}") };
        assert!(matches!(ended.end.state, EndState::Detached { resume_from: 1, .. }), "{ended:?}");
        assert_eq!(stream.reached().map(|reached| reached.seq), Some(0), "it may come back");
        let error = world.client.unsubscribe(execution, &started.subscriber).unwrap_err();
        assert_eq!(error.refused().unwrap().status.code(), 404);
        assert_eq!(world.client.inspect(execution).unwrap().state, ExecutionState::Running);
        world.complete();
        world.ended(execution);
    }
}

#[test]
fn a_unix_socket_is_as_good() {
    let name = format!("streamdoor-client-{}.sock", std::process::id());
    let path = std::env::temp_dir().join(name);
    let _ = std::fs::remove_file(&path); // From an earlier process with this number.
    let world = World::at(&format!("unix:{}", path.display()));
    let client = Client::new(&world.url()).unwrap();
    for format in FORMATS {
        let delivery_options =
            DeliveryOptions { policy: Some(Policy::Block), ..DeliveryOptions::default() };
        let (execute, follow) = (ExecuteOptions::default(), options(format, delivery_options));
        let stream = client.call("count", &json!({"chunks": 50}), &execute, follow).unwrap();
        let events: Vec<StreamEvent> = stream.map(Result::unwrap).collect();
        assert_eq!(check(&events, &delivery_options, 50), Totals::ZERO);
    }
    drop(world);
    let _ = std::fs::remove_file(&path);
}
