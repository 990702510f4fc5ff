//! Two principals on one server, each of which sees only what it owns, and pages that have only a
//! ticket.

use std::io::{BufRead, BufReader};

use serde_json::{Value, json};
use streamdoor::base::ExecutionId;
use streamdoor::client::{Client, FollowOptions, StreamEvent};

use crate::test_server::{ANN, Asking, BOB, PAGE, TestServer};

fn names<'v>(list: &'v Value, of: &str) -> Vec<&'v str> {
    let names = list[of].as_array().unwrap().iter();
    names.map(|each| each["execution"].as_str().unwrap()).collect()
}

#[test]
fn lists_and_progress_are_ones_own_on_every_shard() {
    for shard_count in [1, 2] {
        let server = TestServer::new(shard_count);
        let mut owned: Vec<(&str, String)> = Vec::new();
        for _ in 0..4 {
            for token in [ANN, BOB] {
                let created = server.execute(token);
                let progress = created["links"]["progress"].as_str().unwrap().to_owned();
                assert_eq!(server.get(token, &progress)["execution"], created["execution"]);
                let other = if token == ANN { BOB } else { ANN };
                let (status, ..) =
                    Asking::new("GET", &progress).token(other).answer(&server.address);
                assert_eq!(status, 404);
                owned.push((token, created["execution"].as_str().unwrap().to_owned()));
            }
        }
        for token in [ANN, BOB] {
            let own = owned.iter().filter(|(owner, _)| *owner == token);
            let mut expected: Vec<&str> = own.map(|(_, id)| id.as_str()).collect();
            expected.sort_unstable();
            for (path, of) in [("/v1/executions", "executions"), ("/v1/progress", "progress")] {
                let list = server.get(token, path);
                let mut listed = names(&list, of);
                listed.sort_unstable();
                assert_eq!(listed, expected, "{path}");
            }
        }
    }
}

/// Creates an execution of this principal on each shard.
fn one_on_each(server: &TestServer, token: &str, shard_count: usize) -> Vec<String> {
    let mut all = vec![None; shard_count];
    while all.contains(&None) {
        let created = server.execute(token); // The kernel chooses which shard accepts.
        let id: ExecutionId = created["execution"].as_str().unwrap().parse().unwrap();
        all[usize::from(id.shard)] = Some(id.to_string());
    }
    all.into_iter().flatten().collect()
}

#[test]
fn a_combined_stream_has_ones_own_or_is_not_found() {
    for shard_count in [1, 2] {
        let server = TestServer::new(shard_count);
        let anns = one_on_each(&server, ANN, shard_count);
        let bobs = one_on_each(&server, BOB, shard_count);
        for (ann, bob) in anns.iter().flat_map(|ann| bobs.iter().map(move |bob| (ann, bob))) {
            // The list is refused, too, if the principal owns most of it and parts are on another
            // shard.
            let all = anns.join(",");
            for list in [format!("{ann},{bob}"), format!("{bob},{ann}"), format!("{all},{bob}")] {
                let asking = Asking::new("GET", &format!("/v1/events?executions={list}"));
                assert_eq!(asking.token(ANN).status(&server.address), 404, "{list}");
            }
            let asking = Asking::new("GET", &format!("/v1/events?executions={bob}")).token(ANN);
            assert_eq!(asking.status(&server.address), 404);
        }
        for (token, ids) in [(ANN, &anns), (BOB, &bobs)] {
            for id in ids {
                let status = server.get(token, &format!("/v1/executions/{id}"));
                assert_eq!(status["subscribers"], json!([]), "{id}");
            }
        }
    }
}

#[test]
fn a_client_with_its_token_follows_its_own_and_is_told_no_of_others() {
    let server = TestServer::new(2);
    let url = format!("http://{}", server.address);
    let [ann, bob] = [ANN, BOB].map(|token| Client::new(&url).unwrap().with_token(token).unwrap());
    let status_of = |error: streamdoor::client::ClientError| error.refused().unwrap().status.code();
    let stranger = Client::new(&url).unwrap();
    assert_eq!(status_of(stranger.tools().unwrap_err()), 401);
    assert!(stranger.with_token("short").is_err());
    let arguments = json!({"chunks": 20, "delay_ms": 1});
    let (execute, follow) = Default::default();
    let mut stream = ann.call("slow_data_processor", &arguments, &execute, follow).unwrap();
    let Some(Ok(StreamEvent::Started(started))) = stream.next() else {
        panic!("it has not started")
    };
    let error = bob.follow(started.execution, FollowOptions::default()).unwrap_err();
    assert_eq!(status_of(error), 404);
    assert_eq!(status_of(bob.cancel(started.execution).unwrap_err()), 404);
    assert_eq!(bob.executions().unwrap().len(), 0);
    let ended = stream.run(|_| std::ops::ControlFlow::Continue(())).unwrap().unwrap();
    assert_eq!(ended.end.given.chunks, 20);
    assert!(!format!("{ann:?}").contains(ANN));
}

/// Reads lines up to one with this beginning. Returns the last `id:` before it.
fn read_until(stream: &mut impl BufRead, beginning: &str) -> String {
    let mut id = String::new();
    loop {
        let mut line = String::new();
        assert!(stream.read_line(&mut line).unwrap() > 0, "no {beginning}");
        if let Some(text) = line.strip_prefix("id: ") {
            id = text.trim_end().to_owned();
        }
        if line.to_ascii_lowercase().starts_with(beginning) {
            return id;
        }
    }
}

#[test]
fn event_source_follows_and_comes_back_with_nothing_but_the_ticket_of_the_link() {
    for shard_count in [1, 2] {
        let server = TestServer::new(shard_count);
        let body = json!({
            "tool": "slow_data_processor",
            "arguments": {"chunks": 30, "delay_ms": 2},
            "start": {"after_subscribers": 1},
        });
        let (_, _, created) = Asking::new("POST", "/v1/executions")
            .token(ANN)
            .body(&body)
            .header(&format!("Origin: {PAGE}"))
            .answer(&server.address);
        let created: Value = serde_json::from_str(&created).unwrap();
        let link = created["links"]["events"].as_str().unwrap();
        assert!(link.contains("/events?ticket="), "{link}");
        // The request as Chromium sends it: no token, no preflight.
        let source = Asking::new("GET", &format!("{link}&policy=block"))
            .header("Accept: text/event-stream")
            .header("Cache-Control: no-cache")
            .header(&format!("Origin: {PAGE}"))
            .header("Sec-Fetch-Site: cross-site")
            .header("Sec-Fetch-Mode: cors")
            .header("Sec-Fetch-Dest: empty");
        let mut stream = BufReader::new(source.send(&server.address));
        read_until(&mut stream, "access-control-allow-origin: https://app.example");
        let mut id = String::new();
        for _ in 0..5 {
            id = read_until(&mut stream, "event: chunk");
        }
        drop(stream);
        let again = source.header(&format!("Last-Event-ID: {id}"));
        let (status, head, rest) = again.answer(&server.address);
        assert_eq!(status, 200, "{rest}");
        assert!(head.contains("vary: origin"), "{head}");
        assert_eq!(rest.matches("event: chunk\n").count(), 25, "from behind the fifth on");
        assert!(rest.contains("\"state\":\"completed\""), "{rest}");
        // A client without a ticket, or with one of another execution, is refused.
        let (this, _) = link.split_once('?').unwrap();
        let other = server.execute(ANN);
        let (other, _) = other["links"]["events"].as_str().unwrap().split_once('?').unwrap();
        let foreign = link.replace(this, other);
        for target in [this, &foreign, &link[..link.len() - 1], &link.replace("events", "output")] {
            let stranger = Asking { target: target.to_owned(), ..source.clone() };
            assert_eq!(stranger.answer(&server.address).0, 401, "{target}");
        }
        // The status sent to the owner has a new ticket.
        let status = server.get(ANN, created["links"]["self"].as_str().unwrap());
        let fresh = status["links"]["events"].as_str().unwrap();
        let fresh = Asking { target: fresh.to_owned(), ..source };
        assert_eq!(fresh.answer(&server.address).0, 200);
    }
}
