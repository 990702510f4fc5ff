//! Clients that come back with a position: behind, at and ahead of what was kept.

use serde_json::json;

use crate::served::Server;
use crate::world::{Folder, Response, get, kill, run};

/// The status and the body of an event stream that is resumed here.
fn resume(server: &Server, id: &str, position: &str) -> (u16, String) {
    let headers = format!("Accept: text/event-stream\r\nLast-Event-ID: {position}\r\n");
    let Response { status, body, .. } =
        get(server, &format!("/v1/executions/{id}/events"), &headers);
    (status, String::from_utf8(body).unwrap())
}

#[test]
fn a_position_behind_at_and_ahead_of_the_log_is_answered_with_what_is_missing() {
    let folder = Folder::new("cursors");
    let server = folder.serve(&[]);
    let id = run(&server, "slow_data_processor", json!({"chunks": 40, "delay_ms": 0}));
    kill(server);
    let server = folder.serve(&[]);
    let count = |text: &str, what: &str| text.matches(what).count();
    for (position, chunk_count) in
        [(format!("{id}:0:0"), 40), (format!("{id}:17:1700"), 23), (format!("{id}:40:4000"), 0)]
    {
        let (status, body) = resume(&server, &id, &position);
        assert_eq!(status, 200, "{position}");
        assert_eq!(count(&body, "event: chunk"), chunk_count, "{position}: {body}");
        assert_eq!((count(&body, "event: end"), count(&body, "event: gap")), (1, 0), "{body}");
    }
    // It has seen more than was kept, as after a power cut. It is told the end.
    let (status, body) = resume(&server, &id, &format!("{id}:55:5500"));
    assert_eq!((status, count(&body, "event: chunk"), count(&body, "event: end")), (200, 0, 1));
    assert!(body.contains("\"execution_chunks\":40"), "{body}");
    // It has seen the end, and asks for no more.
    assert_eq!(resume(&server, &id, &format!("{id}:40:4000:end")).0, 204);
}
