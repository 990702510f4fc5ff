//! Single requests that servers answer differently, with the reply that the specification requires.
//! A MUST of the specification is checked even where other servers are lax.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use serde_json::{Value, json};
use streamdoor::server::{Server, ServerConfig};
use streamdoor::shard::ShardConfig;

/// A server of one shard.
struct House {
    server: Server,
}

/// Headers of a request, without those that every request has.
type Headers<'a> = &'a [(&'a str, &'a str)];

const ACCEPT: (&str, &str) = ("Accept", "application/json, text/event-stream");
const JSON: (&str, &str) = ("Content-Type", "application/json");
const MODERN: (&str, &str) = ("MCP-Protocol-Version", "2026-07-28");

/// A response: the status, the head in lower case, and the body.
struct ProbeAnswer(u16, String, String);

impl ProbeAnswer {
    fn json(&self) -> Value {
        let text = match self.1.contains("content-type: text/event-stream") {
            true => {
                self.2.lines().filter_map(|line| line.strip_prefix("data: ")).next_back().unwrap()
            }
            false => &self.2,
        };
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {}", self.2))
    }

    fn header(&self, name: &str) -> Option<&str> {
        let lines = self.1.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(found, _)| *found == name).map(|(_, value)| value).next()
    }

    /// Checks that the response is a JSON-RPC error with this status and this code.
    fn assert_error(&self, status: u16, code: i64) {
        let error = self.json();
        assert_eq!((self.0, &error["error"]["code"]), (status, &json!(code)), "{error}");
        assert!(!error.as_object().unwrap().contains_key("result"));
        assert_ne!(error.get("id"), Some(&Value::Null), "left out, if it is not known: {error}");
    }
}

impl House {
    fn new() -> House {
        let config = ServerConfig {
            shards: vec![ShardConfig::default()],
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            connections_max: 50,
        };
        House { server: Server::start(config, Arc::new(|_| {})).unwrap() }
    }

    /// Sends a request with exactly these headers and returns the response.
    fn ask(
        &self,
        method: &str,
        host: Option<&str>,
        headers: Headers<'_>,
        body: &str,
    ) -> ProbeAnswer {
        let address = self.server.addresses()[0].to_string();
        let address = address.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).unwrap();
        let mut head = format!("{method} /mcp HTTP/1.1\r\nHost: {}\r\n", host.unwrap_or(address));
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += &format!("Connection: close\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all((head + body).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head["HTTP/1.1 ".len()..].get(..3).unwrap().parse().unwrap();
        let body = match head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
            true => unchunked(body),
            false => body.to_owned(),
        };
        ProbeAnswer(status, head.to_ascii_lowercase(), body)
    }

    fn post(&self, headers: Headers<'_>, message: &Value) -> ProbeAnswer {
        let headers = [&[ACCEPT, JSON], headers].concat();
        self.ask("POST", None, &headers, &message.to_string())
    }

    fn initialize(&self, version: &str) -> ProbeAnswer {
        let client = json!({"name": "probe", "version": "0"});
        let params = json!({"protocolVersion": version, "capabilities": {}, "clientInfo": client});
        self.post(&[], &request(0, "initialize", params))
    }

    /// Opens a session and returns its id once it is ready.
    fn session(&self, version: &str) -> String {
        let said = self.initialize(version);
        assert_eq!((said.0, &said.json()["result"]["protocolVersion"]), (200, &json!(version)));
        let session = said.header("mcp-session-id").unwrap().to_owned();
        let told = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        let headers = [("Mcp-Session-Id", &*session), ("MCP-Protocol-Version", version)];
        let said = self.post(&headers, &told);
        assert_eq!((said.0, &*said.2), (202, ""));
        session
    }
}

fn unchunked(mut body: &str) -> String {
    let mut whole = String::new();
    loop {
        let (size, rest) = body.split_once("\r\n").unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        whole += &rest[..size];
        if size == 0 {
            return whole;
        }
        body = &rest[size + 2..];
    }
}

fn request(id: u64, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

/// A request of the stateless era: `params` with the `_meta` that every message needs.
fn modern(id: u64, method: &str, mut params: Value) -> Value {
    let meta = &mut params["_meta"];
    meta["io.modelcontextprotocol/protocolVersion"] = "2026-07-28".into();
    meta["io.modelcontextprotocol/clientCapabilities"] = json!({});
    request(id, method, params)
}

#[test]
fn a_version_that_is_not_known_is_answered_with_the_newest_that_has_a_handshake() {
    let house = House::new();
    for (asked, answered) in [
        ("1999-01-01", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
        ("2025-11-25", "2025-11-25"),
        ("2025-06-18", "2025-06-18"),
        ("2025-03-26", "2025-03-26"),
        ("2024-11-05", "2024-11-05"),
    ] {
        let said = house.initialize(asked);
        let result = &said.json()["result"];
        assert_eq!((said.0, &result["protocolVersion"]), (200, &json!(answered)), "{asked}");
        assert!(result["serverInfo"]["name"].is_string() && result["capabilities"].is_object());
        let session = said.header("mcp-session-id").unwrap();
        assert!(session.len() >= 32 && session.bytes().all(|byte| byte.is_ascii_graphic()));
    }
}

#[test]
fn a_stream_is_primed_for_who_can_read_that() {
    let house = House::new();
    let arguments = json!({"chunks": 3, "delay_ms": 1});
    let params = json!({
        "name": "slow_data_processor", "arguments": arguments, "_meta": {"progressToken": 0},
    });
    for (version, is_primed) in [("2025-06-18", false), ("2025-11-25", true)] {
        let session = house.session(version);
        let headers = [("Mcp-Session-Id", &*session), ("MCP-Protocol-Version", version)];
        let said = house.post(&headers, &request(1, "tools/call", params.clone()));
        assert_eq!(said.header("content-type"), Some("text/event-stream"), "{}", said.2);
        let first = said.2.split("\n\n").next().unwrap();
        let is_empty = first.lines().any(|line| line == "data:" || line == "data: ");
        assert_eq!(is_empty, is_primed, "{}", said.2);
        assert!(!is_primed || first.contains("id: "), "nothing to come back with: {first}");
        assert_eq!(said.json()["id"], 1);
        let told = said.2.matches("notifications/progress").count();
        assert!(told >= 1, "{}", said.2);
    }
}

#[test]
fn sessions_are_named_by_who_has_one_and_end_when_told() {
    let house = House::new();
    let session = house.session("2025-11-25");
    let version = ("MCP-Protocol-Version", "2025-11-25");
    let own = ("Mcp-Session-Id", &*session);
    let ping = request(7, "ping", json!({}));
    assert_eq!(house.post(&[own, version], &ping).json()["result"], json!({}));
    assert_eq!(house.post(&[version], &ping).0, 400, "without its name");
    let other = ("Mcp-Session-Id", "00ffffffffffffffffffffffffffffffff");
    assert_eq!(house.post(&[other, version], &ping).0, 404);
    for wrong in ["1999-01-01", "2026-13-01", ""] {
        assert_eq!(house.post(&[own, ("MCP-Protocol-Version", wrong)], &ping).0, 400, "{wrong}");
    }
    let stream = ("Accept", "text/event-stream");
    assert_eq!(house.ask("GET", None, &[stream, version], "").0, 400, "without its name");
    assert_eq!(house.ask("PUT", None, &[own, version, JSON], "{}").0, 405);
    let ended = house.ask("DELETE", None, &[own, version], "").0;
    assert!((200..300).contains(&ended), "{ended}");
    assert_eq!(house.post(&[own, version], &ping).0, 404);
    assert_eq!(house.ask("DELETE", None, &[own, version], "").0, 404);
    assert_eq!(house.ask("GET", None, &[stream, own, version], "").0, 404);
}

#[test]
fn who_cannot_read_the_answer_is_told_so() {
    let house = House::new();
    let ping = modern(1, "server/discover", json!({})).to_string();
    let method = ("Mcp-Method", "server/discover");
    for accept in ["application/json", "text/event-stream", "text/html"] {
        let headers = [("Accept", accept), JSON, MODERN, method];
        assert_eq!(house.ask("POST", None, &headers, &ping).0, 406, "{accept}");
    }
    assert_eq!(house.ask("POST", None, &[JSON, MODERN, method], &ping).0, 406, "no accept");
    for content in ["text/plain", "application/jsonx"] {
        let headers = [ACCEPT, ("Content-Type", content), MODERN, method];
        assert_eq!(house.ask("POST", None, &headers, &ping).0, 415, "{content}");
    }
    assert_eq!(house.ask("POST", None, &[ACCEPT, MODERN, method], &ping).0, 415, "no type");
}

#[test]
fn what_is_no_message_is_refused_without_an_id() {
    let house = House::new();
    let session = house.session("2025-11-25");
    let headers =
        [ACCEPT, JSON, ("Mcp-Session-Id", &*session), ("MCP-Protocol-Version", "2025-11-25")];
    let ping = request(1, "ping", json!({}));
    for (body, code) in [
        ("{".to_owned(), -32_700),
        ("\"\\ud800\"".to_owned(), -32_700),
        ("[".repeat(100_000), -32_700),
        (json!([ping]).to_string(), -32_600),
        ("[]".to_owned(), -32_600),
        ("{}".to_owned(), -32_600),
        (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#.to_owned(), -32_600),
        (r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#.to_owned(), -32_600),
        (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#.to_owned(), -32_600),
        (r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#.to_owned(), -32_600),
    ] {
        let said = house.ask("POST", None, &headers, &body);
        let error = said.json();
        assert_eq!((said.0, &error["error"]["code"]), (400, &json!(code)), "{body:.60}: {error}");
        assert_ne!(error.get("id"), Some(&Value::Null), "{error}");
    }
    // The session still works.
    assert_eq!(house.ask("POST", None, &headers, &ping.to_string()).0, 200);
}

#[test]
fn what_nobody_waits_for_is_taken_and_what_nobody_knows_is_not() {
    let house = House::new();
    let session = house.session("2025-11-25");
    let own = [("Mcp-Session-Id", &*session), ("MCP-Protocol-Version", "2025-11-25")];
    for message in [
        json!({"jsonrpc": "2.0", "method": "notifications/of_the_future", "params": {"a": 1}}),
        json!({"jsonrpc": "2.0", "id": 99, "result": {}}),
        json!({"jsonrpc": "2.0", "id": "x", "error": {"code": 1, "message": "no"}}),
    ] {
        let said = house.post(&own, &message);
        assert_eq!((said.0, &*said.2), (202, ""), "{message}");
    }
    let unknown = json!({"name": "of_nobody", "arguments": {}});
    let said = house.post(&own, &request(3, "tools/call", unknown.clone()));
    assert_eq!((said.0, &said.json()["error"]["code"]), (200, &json!(-32_602)));
    assert_eq!(said.json()["id"], 3);
    let said = house.post(&own, &request(4, "of/nobody", json!({})));
    assert_eq!(said.json()["error"]["code"], -32_601);
    let call = ("Mcp-Method", "tools/call");
    let headers = [MODERN, call, ("Mcp-Name", "of_nobody")];
    let said = house.post(&headers, &modern(5, "tools/call", unknown));
    assert_eq!((said.0, &said.json()["error"]["code"]), (200, &json!(-32_602)));
}

#[test]
fn pages_of_others_are_refused_whatever_the_method() {
    let house = House::new();
    let evil = ("Origin", "http://evil.example");
    let ping = modern(1, "server/discover", json!({})).to_string();
    for method in ["POST", "GET", "DELETE"] {
        let body = if method == "POST" { &*ping } else { "" };
        let headers = [ACCEPT, JSON, MODERN, ("Mcp-Method", "server/discover")];
        let with_origin = [&headers[..], &[evil]].concat();
        assert_eq!(house.ask(method, None, &with_origin, body).0, 403, "{method}: the origin");
        assert_eq!(house.ask(method, Some("evil.example"), &headers, body).0, 403, "{method}");
    }
    let said =
        house.ask("POST", None, &[ACCEPT, JSON, MODERN, ("Mcp-Method", "server/discover")], &ping);
    assert_eq!(said.0, 200);
}

#[test]
fn headers_of_the_stateless_era_say_what_the_message_says() {
    let house = House::new();
    let call = modern(1, "tools/call", json!({"name": "slow_data_processor", "arguments": {}}));
    let method = ("Mcp-Method", "tools/call");
    let name = ("Mcp-Name", "slow_data_processor");
    let wrong: [&[(&str, &str)]; 6] = [
        &[MODERN, name],
        &[MODERN, method],
        &[MODERN, ("Mcp-Method", "tools/list"), name],
        &[MODERN, method, ("Mcp-Name", "Slow_Data_Processor")],
        &[MODERN, method, ("Mcp-Name", "=?base64?!?=")],
        &[("MCP-Protocol-Version", "2025-11-25"), method, name],
    ];
    for headers in wrong {
        house.post(headers, &call).assert_error(400, -32_020);
    }
    // Optional whitespace does not count, header names have no case, and values may be in base 64.
    for name in ["  slow_data_processor ", "=?base64?c2xvd19kYXRhX3Byb2Nlc3Nvcg==?="] {
        let headers = [("mcp-protocol-version", "2026-07-28"), ("MCP-METHOD", "tools/call")];
        let said = house.post(&[&headers[..], &[("mcp-name", name)]].concat(), &call);
        assert_eq!(said.0, 200, "{}", said.2);
        assert_eq!(said.json()["result"]["resultType"], "complete");
    }
}

#[test]
fn the_stateless_era_has_no_handshake_and_says_what_it_has() {
    let house = House::new();
    for method in ["of/nobody", "ping", "initialize", "logging/setLevel", "resources/subscribe"] {
        let said = house.post(&[MODERN, ("Mcp-Method", method)], &modern(1, method, json!({})));
        said.assert_error(404, -32_601);
    }
    let bare = request(1, "tools/list", json!({}));
    house.post(&[MODERN, ("Mcp-Method", "tools/list")], &bare).assert_error(400, -32_602);
    let mut future = modern(2, "tools/list", json!({}));
    future["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2030-01-01".into();
    let headers = [("MCP-Protocol-Version", "2030-01-01"), ("Mcp-Method", "tools/list")];
    let said = house.post(&headers, &future);
    said.assert_error(400, -32_022);
    let supported = said.json()["error"]["data"]["supported"].clone();
    assert_eq!(said.json()["error"]["data"]["requested"], "2030-01-01");
    let discover = modern(3, "server/discover", json!({}));
    let said = house.post(&[MODERN, ("Mcp-Method", "server/discover")], &discover);
    assert_eq!(said.header("content-type"), Some("application/json"));
    let result = said.json()["result"].clone();
    let known = result["supportedVersions"].as_array().unwrap();
    assert!(supported.as_array().unwrap().iter().all(|version| known.contains(version)));
    assert_eq!(result["resultType"], "complete");
    assert!(result["ttlMs"].is_u64() && result["cacheScope"].is_string(), "{result}");
    assert_eq!(said.header("mcp-session-id"), None);
}
