//! The requests of the client, and its handling of the replies.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use serde_json::json;
use streamdoor::base::ExecutionId;
use streamdoor::client::{Awaited, Client, ClientError, Cut, ExecuteOptions};
use streamdoor::engine::{SubscriberPlace, Timeouts};
use streamdoor::stream::{ExecutionState, Exit, Outcome, Policy};

use crate::server::{ID, Reply, Server, json as answer, response};

/// The paths of an execution.
const LINKS: &str = r#"{"self": "/a", "events": "/b", "result": "/c", "output": "/d"}"#;

fn id() -> ExecutionId {
    ID.parse().unwrap()
}

/// Returns a server that sends the same reply to every request, and a client of it.
fn always(bytes: Vec<u8>) -> (Server, Client) {
    let server = Server::new(move |_, _| Reply::More(bytes.clone()));
    let client = Client::new(&server.url).unwrap();
    (server, client)
}

fn first_line(server: &Server) -> String {
    server.asked()[0].lines().next().unwrap().to_owned()
}

#[test]
fn tools_and_executions_are_listed() {
    let text = r#"{"tools": [{"name": "t", "description": "T.", "input_schema": {"type": "object"},
                   "timeouts": {"first_chunk_ms": 5, "inactivity_ms": null}}]}"#;
    let (server, client) = always(answer(200, text));
    let tools = client.tools().unwrap();
    assert_eq!((tools[0].name.as_str(), tools[0].description.as_str()), ("t", "T."));
    assert_eq!(tools[0].arguments, json!({"type": "object"}));
    let first_chunk = Some(Duration::from_millis(5));
    assert_eq!(tools[0].timeouts, Timeouts { first_chunk, ..Timeouts::NONE });
    assert_eq!(first_line(&server), "GET /v1/tools HTTP/1.1");

    let text = format!(
        r#"{{"executions": [{{"execution": "{ID}", "tool": "t", "state": "draining", "chunks": 3,
            "bytes": 4, "subscribers": 5, "age_ms": 6,
            "created_at": "1970-01-01T00:00:04.000000Z"}}]}}"#
    );
    let (_server, client) = always(answer(200, &text));
    let all = client.executions().unwrap();
    assert_eq!((all[0].execution, all[0].state), (id(), ExecutionState::Draining));
    assert_eq!((all[0].chunks, all[0].bytes, all[0].subscribers, all[0].age_ms), (3, 4, 5, 6));

    let text = format!(
        r#"{{"progress": [{{"token": "{}", "execution": "{ID}", "progress":
            {{"progress": 1, "total": 2, "percentage": 50}}}}]}}"#,
        "0".repeat(39)
    );
    let (_server, client) = always(answer(200, &text));
    let progress = client.progress().unwrap().remove(0).progress.unwrap();
    assert_eq!((progress.progress, progress.total), (1.0, Some(2.0)));
}

#[test]
fn an_execution_is_inspected() {
    let text = format!(
        r#"{{"execution": "{ID}", "tool": "t", "state": "running", "chunks": 1, "bytes": 2,
            "progress": {{"progress": 1.5, "message": "m", "context": [1]}},
            "head_seq": 3, "tail_seq": 4, "held_back": true, "held_back_by": ["s0.1"],
            "age_ms": 5, "created_at": "1970-01-01T00:00:04.000000Z",
            "subscribers": [{{"subscriber": "s0.1", "place": "local",
            "policy": "block", "limits": {{"max_chunks": 6, "max_bytes": 7}}, "next_seq": 8,
            "lag_chunks": 9, "lag_bytes": 10, "missed_chunks": 11, "missed_bytes": 12,
            "holds_back": true, "lost": false, "age_ms": 13}}], "exit": {{"signal": 9}},
            "links": {LINKS}}}"#
    );
    let (server, client) = always(answer(200, &text));
    let status = client.inspect(id()).unwrap();
    assert_eq!(first_line(&server), format!("GET /v1/executions/{ID} HTTP/1.1"));
    assert_eq!(
        (status.state, status.held_back_by.as_slice()),
        (ExecutionState::Running, &["s0.1".into()][..])
    );
    assert_eq!((status.head_seq, status.tail_seq, status.total_chunks), (3, 4, None));
    assert_eq!(status.exit, Some(Exit::Signal(9)));
    assert_eq!(status.progress.unwrap().context.as_deref(), Some("[1]"));
    let subscriber = &status.subscribers[0];
    assert_eq!((subscriber.policy, subscriber.place), (Policy::Block, SubscriberPlace::Local));
    assert_eq!((subscriber.limit.chunks, subscriber.limit.bytes), (6, 7));
    assert_eq!((subscriber.missed_bytes, subscriber.age_ms), (12, 13));

    let (_server, client) = always(answer(200, &text.replace("\"block\"", "\"often\"")));
    let error = client.inspect(id()).unwrap_err().to_string();
    assert!(error.contains("`policy`") && error.contains("often"), "{error}");
}

#[test]
fn an_execution_is_created_cancelled_and_its_result_waited_for() {
    let text =
        format!(r#"{{"execution": "{ID}", "tool": "t", "state": "queued", "links": {LINKS}}}"#);
    let (server, client) = always(answer(201, &text));
    let created = client.execute("t", &json!({}), &ExecuteOptions::default()).unwrap();
    assert_eq!((created.execution, created.state), (id(), ExecutionState::Queued));
    assert!(server.asked()[0].ends_with("\r\n\r\n{\"tool\":\"t\",\"arguments\":{}}"));

    let cancelled = text.replace("queued", "cancelled");
    let (server, client) = always(answer(200, &cancelled));
    assert_eq!(client.cancel(id()).unwrap(), ExecutionState::Ended(Outcome::Cancelled));
    assert_eq!(first_line(&server), format!("DELETE /v1/executions/{ID} HTTP/1.1"));

    let (server, client) = always(answer(202, &text));
    let awaited = client.result(id(), Duration::from_millis(1_001)).unwrap();
    assert_eq!(awaited, Awaited::Running(ExecutionState::Queued));
    assert_eq!(
        first_line(&server),
        format!("GET /v1/executions/{ID}/result?wait_ms=1001 HTTP/1.1")
    );

    let text = format!(
        r#"{{"execution": "{ID}", "state": "failed", "chunks": 2, "bytes": 9, "complete": false,
            "encoding": "base64", "data": "//8=", "exit": {{"code": 3}}, "error": "why"}}"#
    );
    let (server, client) = always(answer(200, &text));
    let Awaited::Ended(output) = client.result(id(), Duration::MAX).unwrap() else {
        panic!("it has ended")
    };
    assert_eq!(
        first_line(&server),
        format!("GET /v1/executions/{ID}/result?wait_ms=60000 HTTP/1.1")
    );
    assert_eq!((output.data.as_slice(), output.is_complete), (&[0xFF, 0xFF][..], false));
    assert_eq!((output.exit, output.error.as_deref()), (Some(Exit::Code(3)), Some("why")));
}

#[test]
fn a_subscriber_acknowledges_and_leaves() {
    let (server, client) = always(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec());
    client.acknowledge(id(), "s0.1", 7).unwrap();
    client.unsubscribe(id(), "s0.1").unwrap();
    client.unsubscribe(id(), "../x").unwrap();
    let asked = server.asked();
    let path = format!("/v1/executions/{ID}/subscribers");
    assert!(asked[0].starts_with(&format!("POST {path}/s0.1/acks HTTP/1.1\r\n")));
    assert!(asked[0].ends_with("\r\n\r\n{\"seq\":7}"));
    assert!(asked[1].starts_with(&format!("DELETE {path}/s0.1 HTTP/1.1\r\n")));
    assert!(asked[2].starts_with(&format!("DELETE {path}/..%2Fx HTTP/1.1\r\n")));
}

#[test]
fn a_refusal_says_what_and_why() {
    let text = r#"{"error": {"code": "limit", "message": "too many", "field": "max_chunks",
                   "limit": 10}}"#;
    let (_server, client) = always(answer(400, text));
    let error = client.tools().unwrap_err();
    assert_eq!(error.to_string(), "too many (max_chunks)");
    let refused = error.refused().unwrap();
    assert_eq!((refused.code.as_str(), refused.limit), ("limit", Some(10)));
    let (_server, client) = always(response(502, "text/html", b"<h1>proxy</h1>"));
    assert_eq!(client.tools().unwrap_err().to_string(), "the server answered 502");
}

#[test]
fn a_connection_is_used_again_while_the_server_keeps_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serve = std::thread::spawn(move || {
        let mut requests_per_connection = Vec::new();
        for keeps in [2, 1] {
            let (mut stream, _) = listener.accept().unwrap();
            for _ in 0..keeps {
                let mut bytes = [0; 4_096];
                assert!(stream.read(&mut bytes).unwrap() > 0);
                stream.write_all(&answer(200, r#"{"tools": []}"#)).unwrap();
            }
            requests_per_connection.push(keeps);
        }
        requests_per_connection
    });
    let client = Client::new(&url).unwrap();
    for _ in 0..3 {
        assert_eq!(client.tools().unwrap(), []); // The third finds its connection closed.
    }
    assert_eq!(serve.join().unwrap(), [2, 1]);
}

#[test]
fn an_execution_is_never_asked_for_twice() {
    let server = Server::new(|_, _| Reply::Last(Vec::new()));
    let client = Client::new(&server.url).unwrap();
    let error = client.execute("t", &json!({}), &ExecuteOptions::default()).unwrap_err();
    assert!(matches!(error, ClientError::Cut(Cut::Closed)), "{error}");
    assert_eq!(server.asked().len(), 1);
}

#[test]
fn answers_that_are_too_much_or_no_answers_are_errors() {
    let too_long = b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n".to_vec();
    let table = [
        (too_long, "the response is malformed"),
        (b"SSH-2.0-server\r\n\r\n".to_vec(), "first line"),
        (answer(200, "{"), "not JSON"),
        (answer(200, "[]"), "not a JSON object"),
        (answer(200, "{}"), "`tools` of the answer is missing"),
        (answer(200, r#"{"tools": [{"name": 1}]}"#), "`name` of tools is not a string"),
    ];
    for (bytes, words) in table {
        let (_server, client) = always(bytes);
        let error = client.tools().unwrap_err();
        assert!(matches!(error, ClientError::Protocol(_)), "{error:?}");
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn a_server_that_is_not_there_is_not_reached() {
    // The kernel never assigns this port. A port that was just released could soon be in use again.
    for url in ["http://127.0.0.1:9", "unix:/nowhere/at/all"] {
        let error = Client::new(url).unwrap().tools().unwrap_err();
        assert!(matches!(error, ClientError::Unreachable { .. }), "{error:?}");
        assert!(error.to_string().starts_with(url), "{error}");
    }
    assert!(Client::new("https://127.0.0.1:1").is_err());
}

#[test]
fn a_unix_socket_is_an_address_like_any_other() {
    let name = format!("streamdoor-client-{}.sock", std::process::id());
    let path = std::env::temp_dir().join(name);
    let listener = UnixListener::bind(&path).unwrap();
    let serve = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = [0; 4_096];
        let count = stream.read(&mut bytes).unwrap();
        stream.write_all(&answer(200, r#"{"tools": []}"#)).unwrap();
        String::from_utf8(bytes[..count].to_vec()).unwrap()
    });
    let client = Client::new(&format!("unix:{}", path.display())).unwrap();
    assert_eq!(client.tools().unwrap(), []);
    assert!(serve.join().unwrap().contains("\r\nhost: localhost\r\n"));
    std::fs::remove_file(&path).unwrap();
}
