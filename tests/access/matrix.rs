//! Every operation of `/openapi.json` with every kind of refused request. The operations come from
//! the document, so a new route is covered automatically.

use serde_json::{Value, json};

use crate::operations::{Names, operations};
use crate::test_server::{ANN, Asking, BOB, PAGE, TestServer, WRONG};

/// Asserts that the request is refused with this status and code, and that no page may read the
/// reply.
fn assert_refused(asking: &Asking, address: &str, status: u16, code: &str) {
    let (got, head, body) = asking.answer(address);
    assert_eq!(got, status, "{asking:?}: {body}");
    let document: Value = serde_json::from_str(&body).unwrap();
    // At `/mcp` the error is in the form of JSON-RPC, and below `/a2a` in that of A2A.
    let error = match document.get("jsonrpc") {
        Some(_) => &document["error"]["data"],
        None if document["error"]["details"].is_array() => {
            &document["error"]["details"][0]["metadata"]
        }
        None => &document["error"],
    };
    assert_eq!(error["code"], code, "{asking:?}");
    assert!(!head.contains("access-control-"), "{asking:?}: {head}");
    assert_eq!(head.contains("www-authenticate: bearer"), status == 401, "{asking:?}: {head}");
}

#[test]
fn a_probe_needs_no_token_and_no_name() {
    let server = TestServer::new(2);
    for path in ["/healthz", "/readyz"] {
        let probe = Asking::new("GET", path);
        assert_eq!(probe.status(&server.address), 200);
        let foreign = Asking { host: Some("10.0.0.7:8808".to_owned()), ..probe.clone() };
        assert_eq!(foreign.status(&server.address), 200);
        assert_refused(&probe.token(WRONG), &server.address, 401, "unauthorized");
    }
}

#[test]
fn every_operation_refuses_everybody_who_may_not_come_in() {
    for shard_count in [1, 2] {
        let server = TestServer::new(shard_count);
        let address = &server.address;
        let document = server.get(ANN, "/openapi.json");
        let created = server.execute(ANN);
        let names = Names::of(&created, "s0.1");
        for (bare, _) in operations(&document, &names) {
            let good = bare.token(ANN);
            let evil = Asking { host: Some("evil.example".to_owned()), ..good.clone() };
            assert_refused(&evil, address, 403, "host_not_allowed");
            for origin in ["https://evil.example", "null", "http://127.0.0.1:1"] {
                let page = good.header(&format!("Origin: {origin}"));
                assert_refused(&page, address, 403, "origin_not_allowed");
            }
            let picture = good.header("Sec-Fetch-Site: cross-site");
            assert_refused(&picture, address, 403, "origin_not_allowed");
            assert_refused(&bare, address, 401, "unauthorized");
            assert_refused(&bare.token(WRONG), address, 401, "unauthorized");
            assert_refused(&good.token(BOB), address, 400, "invalid_header");
            if let Some((_, body)) = &bare.body {
                let body = Some(("text/plain".to_owned(), body.clone()));
                let plain = Asking { body, ..good.clone() };
                assert_refused(&plain, address, 415, "unsupported_media_type");
            }
        }
        // None of the requests had an effect.
        let listed = server.get(ANN, "/v1/executions");
        assert_eq!(listed["executions"].as_array().unwrap().len(), 1, "{listed}");
        let execution = names.execution.as_str();
        let status = server.get(ANN, &format!("/v1/executions/{execution}"));
        assert_eq!((&status["state"], &status["subscribers"]), (&json!("running"), &json!([])));
    }
}

#[test]
fn what_belongs_to_somebody_else_is_answered_as_what_never_was() {
    for shard_count in [1, 2] {
        let server = TestServer::new(shard_count);
        let document = server.get(ANN, "/openapi.json");
        let created = server.execute(ANN);
        let this = created["links"]["self"].as_str().unwrap();
        let stream = Asking::new("GET", &format!("{this}/events")).token(ANN).send(&server.address);
        let subscriber = loop {
            let status = server.get(ANN, this);
            if let Some(subscriber) = status["subscribers"][0]["subscriber"].as_str() {
                break subscriber.to_owned();
            }
        };
        let names = Names::of(&created, &subscriber);
        let foreign = operations(&document, &names);
        let unknown = operations(&document, &names.never());
        let mut checked = 0;
        for ((foreign, is_about_something), (unknown, _)) in foreign.iter().zip(&unknown) {
            if *is_about_something {
                let got = foreign.token(BOB).answer(&server.address);
                assert_eq!(got.0, 404, "{foreign:?}: {}", got.2);
                assert_eq!(got, unknown.token(BOB).answer(&server.address), "{foreign:?}");
                assert_eq!(got, unknown.token(ANN).answer(&server.address), "{foreign:?}");
                checked += 1;
            }
        }
        assert!(checked >= 9, "{checked}");
        let status = server.get(ANN, this);
        assert_eq!(status["subscribers"][0]["subscriber"], subscriber, "nothing was done to it");
        drop(stream);
    }
}

#[test]
fn a_page_of_a_configured_origin_may_ask_and_is_asked_for_a_token_then() {
    let server = TestServer::new(1);
    let document = server.get(ANN, "/openapi.json");
    let names = Names::of(&server.execute(ANN), "s0.1");
    for (bare, _) in operations(&document, &names) {
        let page = bare.header(&format!("Origin: {PAGE}")).header("Sec-Fetch-Site: cross-site");
        let asked = Asking { method: "OPTIONS".to_owned(), body: None, ..page.clone() };
        let asked = asked.header(&format!("Access-Control-Request-Method: {}", bare.method));
        let (status, head, _) = asked.answer(&server.address);
        assert_eq!(status, 204, "{asked:?}");
        for line in ["access-control-allow-origin: https://app.example", "vary: origin"] {
            assert!(head.lines().any(|other| other == line), "{asked:?}: {head}");
        }
        assert!(!head.contains("credentials") && !head.contains(": *"), "{head}");
        let methods = head.lines().find(|line| line.starts_with("access-control-allow-methods"));
        assert!(methods.unwrap().contains(&bare.method.to_lowercase()), "{asked:?}: {head}");
        let (status, head, _) = page.answer(&server.address);
        assert_eq!(status, 401);
        assert!(head.contains("access-control-allow-origin: https://app.example"), "{head}");
    }
}
