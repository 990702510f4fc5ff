//! Tests of the behaviour of `/mcp`, one by one: the requests of real clients, and abuse that has
//! to fail. If servers differ, the specification decides.

use serde_json::{Value, json};

use super::test_server::TestServer;
use crate::limits;
use crate::server::{Exported, GuestConfig, Spans};
use crate::shard::ShardConfig;
use crate::tool::{Abilities, Asking, Question, Replies, ToolSpec};

const ACCEPT: &str = "Accept: application/json, text/event-stream\r\n";
const JSON: &str = "Content-Type: application/json\r\n";

/// The status, the head, and the body if it is JSON.
type Answer = (String, String, Value);

fn send(test_server: &mut TestServer, method: &str, headers: &str, body: &str) -> Answer {
    let length = match method {
        "POST" => format!("Content-Length: {}\r\n", body.len()),
        _ => String::new(),
    };
    let host = if headers.contains("Host:") { "" } else { "Host: localhost\r\n" };
    let head = format!("{method} /mcp HTTP/1.1\r\n{host}{headers}{length}\r\n");
    let client = test_server.visit(&format!("{head}{body}"));
    let heard = test_server.hear(client);
    test_server.world.client_close(client);
    let (head, body) = heard.split_once("\r\n\r\n").expect(&heard);
    let value = serde_json::from_str(body.trim_end_matches("<end>")).unwrap_or_default();
    (head[9..12].to_owned(), head.to_owned(), value)
}

fn post(test_server: &mut TestServer, headers: &str, message: &Value) -> Answer {
    send(test_server, "POST", &format!("{ACCEPT}{JSON}{headers}"), &message.to_string())
}

fn initialize(version: &str) -> Value {
    json!({
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {
            "protocolVersion": version,
            "capabilities": {},
            "clientInfo": {"name": "c", "version": "1"},
        },
    })
}

/// The header of a session of that version.
fn session(test_server: &mut TestServer, version: &str) -> String {
    let (status, head, _) = post(test_server, "", &initialize(version));
    assert_eq!(status, "200");
    let name = head.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
    let name = name.expect("it has a name");
    assert!(name.bytes().all(|byte| (0x21..=0x7E).contains(&byte)) && name.len() >= 32);
    format!("Mcp-Session-Id: {name}\r\n")
}

fn ping(id: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "ping"})
}

fn request(method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 5, "method": method, "params": params})
}

fn modern(method: &str, mut params: Value) -> Value {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
}

const MODERN: &str = "MCP-Protocol-Version: 2026-07-28\r\n";

#[test]
fn whatever_version_is_asked_for_one_that_is_spoken_is_agreed_upon() {
    let mut test_server = TestServer::new();
    for (asked, agreed) in [
        ("1999-01-01", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
        ("2025-11-25", "2025-11-25"),
        ("2025-06-18", "2025-06-18"),
        ("2025-03-26", "2025-03-26"),
        ("2024-11-05", "2024-11-05"),
    ] {
        let (status, _, body) = post(&mut test_server, "", &initialize(asked));
        assert_eq!((status.as_str(), &body["result"]["protocolVersion"]), ("200", &json!(agreed)));
    }
}

#[test]
fn the_first_event_says_nothing_but_its_id_where_that_is_understood() {
    let mut test_server = TestServer::new();
    for (version, is_primed) in [("2025-11-25", true), ("2025-06-18", false)] {
        let session = session(&mut test_server, version);
        let params = json!({
            "name": "slow_data_processor",
            "arguments": {"chunks": 1},
            "_meta": {"progressToken": 0},
        });
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
        let body = call.to_string();
        let length = body.len();
        let client = test_server.visit(&format!(
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\n{ACCEPT}{JSON}{session}\
             Content-Length: {length}\r\n\r\n{body}"
        ));
        let heard = test_server.hear(client);
        assert_eq!(heard.contains("data: \n"), is_primed, "{version}: {heard}");
        assert!(heard.contains("notifications/progress"), "{heard}");
    }
}

#[test]
fn a_session_is_named_rightly_or_refused() {
    let mut test_server = TestServer::new();
    let session = session(&mut test_server, "2025-11-25");
    let unknown = format!("Mcp-Session-Id: 00{}\r\n", "0".repeat(32));
    for (headers, status) in [
        (session.clone(), "200"),
        (format!("{session}MCP-Protocol-Version: 2025-11-25\r\n"), "200"),
        (format!("{session}MCP-Protocol-Version: 1999-01-01\r\n"), "400"),
        (format!("{session}MCP-Protocol-Version: nonsense\r\n"), "400"),
        (String::new(), "400"),
        (unknown, "404"),
        ("Mcp-Session-Id: x\r\n".to_owned(), "404"),
    ] {
        let (got, _, body) = post(&mut test_server, &headers, &ping(1.into()));
        assert_eq!(got, status, "{headers}: {body}");
        assert_eq!(body["error"].is_object(), status != "200");
    }
    let accept = "Accept: text/event-stream\r\n";
    let got = |test_server: &mut TestServer, headers: &str| send(test_server, "GET", headers, "").0;
    assert_eq!(got(&mut test_server, accept), "400");
    assert_eq!(got(&mut test_server, &format!("{accept}Mcp-Session-Id: x\r\n")), "404");
    assert_eq!(got(&mut test_server, &session), "406");
    assert_eq!(got(&mut test_server, &format!("{accept}{session}")), "200");
    assert_eq!(send(&mut test_server, "PUT", &session, "").0, "405");
    assert_eq!(send(&mut test_server, "DELETE", "", "").0, "400");
    assert_eq!(send(&mut test_server, "DELETE", &session, "").0, "204");
    assert_eq!(post(&mut test_server, &session, &ping(1.into())).0, "404");
    assert_eq!(send(&mut test_server, "DELETE", &session, "").0, "404");
}

#[test]
fn what_is_no_message_is_refused_without_an_id_that_nobody_gave() {
    let mut test_server = TestServer::new();
    let session = session(&mut test_server, "2025-11-25");
    let body = ping(1.into()).to_string();
    for accept in ["", "Accept: application/json\r\n", "Accept: text/event-stream\r\n"] {
        let headers = format!("{accept}{JSON}{session}");
        assert_eq!(send(&mut test_server, "POST", &headers, &body).0, "406", "{accept}");
    }
    let headers = format!("Accept: */*\r\n{JSON}{session}");
    assert_eq!(send(&mut test_server, "POST", &headers, &body).0, "406");
    for media_type in ["", "Content-Type: text/plain\r\n"] {
        let headers = format!("{ACCEPT}{media_type}{session}");
        assert_eq!(send(&mut test_server, "POST", &headers, &body).0, "415", "{media_type}");
    }
    let deep = format!("{}1{}", "[".repeat(65), "]".repeat(65));
    for (wrong, code) in [
        ("", -32_700),
        ("{", -32_700),
        ("nonsense", -32_700),
        ("\u{0}", -32_700),
        ("[]", -32_600),
        (&format!("[{body}]"), -32_600),
        ("1", -32_600),
        (r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#, -32_600),
        (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, -32_600),
        (r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#, -32_600),
        (r#"{"jsonrpc":"2.0","id":true,"method":"ping"}"#, -32_600),
        (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, -32_600),
        (&deep, -32_700),
    ] {
        let headers = format!("{ACCEPT}{JSON}{session}");
        if wrong.is_empty() {
            continue; // An empty text is no body; HTTP handles it.
        }
        let (status, _, body) = send(&mut test_server, "POST", &headers, wrong);
        assert_eq!((status.as_str(), &body["error"]["code"]), ("400", &json!(code)), "{wrong}");
        assert!(body.get("id").is_none() || !body["id"].is_null(), "{body}");
    }
}

#[test]
fn what_wants_no_answer_gets_none() {
    let mut test_server = TestServer::new();
    let session = session(&mut test_server, "2025-11-25");
    for message in [
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json!({"jsonrpc": "2.0", "method": "notifications/nonsense", "params": {"a": 1}}),
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {}}),
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}}),
        json!({"jsonrpc": "2.0", "id": "0.0.0", "result": {}}),
        json!({"jsonrpc": "2.0", "id": 77, "error": {"code": 1, "message": "m"}}),
    ] {
        let (status, head, body) = post(&mut test_server, &session, &message);
        assert_eq!(status, "202", "{message}");
        assert!(head.contains("content-length: 0") && body.is_null());
    }
}

#[test]
fn who_comes_from_elsewhere_is_refused() {
    let mut test_server = TestServer::new();
    let session = session(&mut test_server, "2025-11-25");
    for headers in [
        "Origin: https://evil.example\r\n",
        "Origin: null\r\n",
        "Host: evil.example\r\n",
        "Host: evil.example\r\nOrigin: http://evil.example\r\n",
    ] {
        let headers = format!("{headers}{session}");
        assert_eq!(post(&mut test_server, &headers, &ping(1.into())).0, "403", "{headers}");
    }
    let same = format!("Host: localhost:80\r\nOrigin: http://localhost:80\r\n{session}");
    assert_eq!(post(&mut test_server, &same, &ping(1.into())).0, "200");
}

#[test]
fn who_works_for_a_call_is_told_what_it_is_a_part_of() {
    let (spans, receiver) = Spans::queue();
    for spans in [Spans::off(), spans] {
        let is_on = spans.is_on();
        let mut test_server = TestServer::with(ShardConfig {
            guests: GuestConfig { spans, ..Default::default() },
            ..ShardConfig::default()
        });
        let body = r#"{"description":"d","input_schema":{"type":"object"}}"#;
        let put = test_server.visit(&format!(
            "PUT /v1/virtual-tools/echo HTTP/1.1\r\nHost: localhost\r\n{JSON}Content-Length: {}\r\n\
             \r\n{body}",
            body.len()
        ));
        assert!(test_server.hear(put).starts_with("HTTP/1.1 201 "));
        let worker = test_server.visit(
            "GET /v1/tool-calls/stream HTTP/1.1\r\nHost: localhost\r\nX-Session-ID: w\r\n\r\n",
        );
        test_server.hear(worker);
        let mut message = modern("tools/call", json!({"name": "echo", "arguments": {}}));
        message["params"]["_meta"]["traceparent"] = PARENT.into();
        message["params"]["_meta"]["tracestate"] = "a=1".into();
        let headers = format!("{MODERN}Mcp-Method: tools/call\r\nMcp-Name: echo\r\n");
        let text = message.to_string();
        let client = test_server.visit(&format!(
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\n{ACCEPT}{JSON}{headers}\
             Content-Length: {}\r\n\r\n{text}",
            text.len()
        ));
        let told = test_server.hear(worker);
        let data = told.lines().find_map(|line| line.strip_prefix("data: ")).expect(&told);
        let told: Value = serde_json::from_str(data).unwrap();
        assert_eq!(told["tracestate"], "a=1");
        test_server.world.client_reset(client);
        test_server.pass(std::time::Duration::from_millis(1));
        if !is_on {
            assert_eq!(told["traceparent"], PARENT);
            continue;
        }
        // With spans, one is between the client's and the worker's.
        let Exported::Span(span) = receiver.try_recv().unwrap() else { panic!("no span") };
        assert_eq!(span.parent_id, Some(0xb7ad_6b71_6920_3331));
        let own = format!("00-0af7651916cd43dd8448eb211c80319c-{:016x}-01", span.span_id);
        assert_eq!(told["traceparent"], own.as_str());
    }
}

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Asks twice, and is never satisfied.
fn asks(_: &Value, replies: &Replies, _: Abilities) -> Asking {
    let schema = json!({"type": "object", "properties": {"ok": {"type": "boolean"}}});
    let round = replies.state.as_ref().map_or(1, |state| state["round"].as_u64().unwrap() + 1);
    let questions = vec![Question::form("sure", &format!("Round {round}?"), schema)];
    Asking::Ask { questions, state: Some(json!({ "round": round })) }
}

#[test]
fn what_a_tool_remembers_of_one_call_is_nothing_to_another() {
    let mut test_server = TestServer::new();
    let spec = ToolSpec::new("delete", "Deletes a file.");
    test_server.shards[0].tools_mut().insert_asking(spec, asks, |_, _, _| Ok(())).unwrap();
    let mut call = |arguments: Value, state: Option<&Value>| {
        let mut message = modern("tools/call", json!({"name": "delete", "arguments": arguments}));
        let name = "io.modelcontextprotocol/clientCapabilities";
        message["params"]["_meta"][name] = json!({"elicitation": {}});
        if let Some(state) = state {
            message["params"]["requestState"] = state.clone();
            message["params"]["inputResponses"] =
                json!({"sure": {"action": "accept", "content": {"ok": true}}});
        }
        let headers = format!("{MODERN}Mcp-Method: tools/call\r\nMcp-Name: delete\r\n");
        post(&mut test_server, &headers, &message).2
    };
    let asked = call(json!({"file": "a", "deep": {"x": 1, "y": [2]}}), None);
    let state = &asked["result"]["requestState"];
    assert!(state.is_string(), "{asked}");
    // The same call, with another spelling.
    let again = call(json!({"deep": {"y": [2], "x": 1}, "file": "a"}), Some(state));
    assert!(again.to_string().contains("Round 2?"), "{again}");
    for other in [
        json!({"file": "b", "deep": {"x": 1, "y": [2]}}),
        json!({"file": "a", "deep": {"x": 1, "y": [3]}}),
        json!({"file": "a"}),
        json!({}),
    ] {
        let refused = call(other, Some(state));
        assert_eq!(refused["error"]["code"], -32_602, "{refused}");
    }
}

#[test]
fn who_is_not_let_in_is_told_so_in_the_words_of_the_protocol() {
    let mut test_server = TestServer::new();
    let ping = ping(1.into()).to_string();
    let foreign = format!("{ACCEPT}{JSON}Origin: https://evil.example\r\n");
    let one_sided = format!("Accept: application/json\r\n{JSON}");
    let text = format!("{ACCEPT}Content-Type: text/plain\r\n");
    let packed = format!("{ACCEPT}{JSON}Content-Encoding: gzip\r\n");
    let twice = format!("{ACCEPT}{JSON}Mcp-Session-Id: a\r\nMcp-Session-Id: b\r\n");
    for (method, headers, status, code) in [
        ("POST", &*foreign, "403", "origin_not_allowed"),
        ("DELETE", "Host: evil.example\r\n", "403", "host_not_allowed"),
        ("POST", &*one_sided, "406", "not_acceptable"),
        ("GET", "Accept: application/json\r\n", "406", "not_acceptable"),
        ("POST", &*text, "415", "unsupported_media_type"),
        ("POST", &*packed, "415", "unsupported_media_type"),
        ("POST", &*twice, "400", "invalid_header"),
        ("PUT", "", "405", "method_not_allowed"),
    ] {
        let body = if method == "POST" { &*ping } else { "" };
        let (found, head, answer) = send(&mut test_server, method, headers, body);
        assert_eq!(found, status, "{headers}: {answer}");
        assert_eq!(answer["jsonrpc"], "2.0", "{answer}");
        assert_eq!(answer["error"]["code"], -32_600, "{answer}");
        assert_eq!(answer["error"]["data"]["code"], code, "{answer}");
        assert!(answer["error"]["message"].as_str().is_some_and(|text| text.len() > 10));
        assert!(answer.get("id").is_none() && head.contains("application/json"), "{answer}");
        assert_eq!(head.contains("allow: "), status == "405", "{head}");
    }
    // The same for a body that is too long. Everything outside `/mcp` is answered as before.
    let long = " ".repeat(limits::MCP_BODY_BYTES_MAX as usize + 1);
    let head = format!("{ACCEPT}{JSON}Content-Length: {}\r\n", long.len());
    let client = test_server.visit(&format!("POST /mcp HTTP/1.1\r\nHost: localhost\r\n{head}\r\n"));
    let heard = test_server.hear(client);
    assert!(heard.starts_with("HTTP/1.1 413 ") && heard.contains("\"jsonrpc\""), "{heard}");
    let heard = test_server.get("/v1/nothing");
    assert!(heard.contains("{\"error\":{\"code\":\"unknown_path\""), "{heard}");
}

#[test]
fn what_is_not_there_is_said_in_the_words_of_each_era() {
    let mut test_server = TestServer::new();
    let session = session(&mut test_server, "2025-11-25");
    let uri = json!({"uri": "test://nothing"});
    for (method, params, code) in [
        ("tools/call", json!({"name": "nothing"}), -32_602),
        ("prompts/get", json!({"name": "nothing"}), -32_602),
        ("resources/read", uri.clone(), -32_002),
        ("resources/subscribe", uri.clone(), -32_002),
        ("tools/list", json!({"cursor": "nonsense"}), -32_602),
        ("logging/setLevel", json!({"level": "nonsense"}), -32_602),
        ("tasks/get", json!({"taskId": "nothing"}), -32_602),
        ("nonsense", json!({}), -32_601),
        ("server/discover", json!({}), -32_601),
    ] {
        let headers = &session;
        let (_, _, body) = post(&mut test_server, headers, &request(method, params));
        assert_eq!((&body["error"]["code"], &body["id"]), (&json!(code), &json!(5)), "{method}");
    }
    let name = |name: &str| format!("{MODERN}Mcp-Method: tools/call\r\nMcp-Name: {name}\r\n");
    let call = modern("tools/call", json!({"name": "nothing"}));
    let (status, _, body) = post(&mut test_server, &name("nothing"), &call);
    assert_eq!((status.as_str(), &body["error"]["code"]), ("200", &json!(-32_602)));
    let headers = format!("{MODERN}Mcp-Method: resources/read\r\nMcp-Name: test://nothing\r\n");
    let (_, _, body) = post(&mut test_server, &headers, &modern("resources/read", uri));
    let error = &body["error"];
    assert_eq!(
        (&error["code"], &error["data"]["uri"]),
        (&json!(-32_602), &json!("test://nothing"))
    );
    for method in ["ping", "initialize", "logging/setLevel", "resources/subscribe", "nonsense"] {
        let headers = format!("{MODERN}Mcp-Method: {method}\r\n");
        let (status, _, body) = post(&mut test_server, &headers, &modern(method, json!({})));
        assert_eq!((status.as_str(), &body["error"]["code"]), ("404", &json!(-32_601)), "{method}");
    }
}

#[test]
fn headers_of_the_stateless_era_say_what_the_body_says() {
    let mut test_server = TestServer::new();
    let list = modern("tools/list", json!({}));
    let arguments = json!({"name": "slow_data_processor", "arguments": {"chunks": 0}});
    let call = modern("tools/call", arguments);
    let method = |name: &str| format!("{MODERN}Mcp-Method: {name}\r\n");
    let named = |name: &str| format!("{}Mcp-Name: {name}\r\n", method("tools/call"));
    let encoded = "=?base64?c2xvd19kYXRhX3Byb2Nlc3Nvcg==?=";
    for (headers, message, status, code) in [
        (method("tools/list"), &list, "200", Value::Null),
        (method("  tools/list \t"), &list, "200", Value::Null),
        (method("TOOLS/LIST"), &list, "400", json!(-32_020)),
        (method("tools/call"), &list, "400", json!(-32_020)),
        (MODERN.to_owned(), &list, "400", json!(-32_020)),
        ("Mcp-Method: tools/list\r\n".to_owned(), &list, "400", json!(-32_020)),
        (method("tools/list").replace("2026-07-28", "2025-11-25"), &list, "400", json!(-32_020)),
        (named("slow_data_processor"), &call, "200", Value::Null),
        (named(encoded), &call, "200", Value::Null),
        (named("Slow_data_processor"), &call, "400", json!(-32_020)),
        (named("=?base64?!?="), &call, "400", json!(-32_020)),
        (method("tools/call"), &call, "400", json!(-32_020)),
    ] {
        let (got, _, body) = post(&mut test_server, &headers, message);
        assert_eq!((got.as_str(), &body["error"]["code"]), (status, &code), "{headers}");
    }
    let ids = "Mcp-Session-Id: 00ff\r\nLast-Event-ID: 1\r\n";
    let (status, head, body) =
        post(&mut test_server, &format!("{ids}{}", method("tools/list")), &list);
    assert_eq!(status, "200");
    assert!(!head.contains("mcp-session-id"));
    assert_eq!(body["result"]["resultType"], "complete");
    let mut bare = list.clone();
    bare["params"] = json!({});
    let (status, _, body) = post(&mut test_server, &method("tools/list"), &bare);
    assert_eq!((status.as_str(), &body["error"]["code"]), ("400", &json!(-32_602)));
    let mut later = list.clone();
    later["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2030-01-01".into();
    let headers = method("tools/list").replace("2026-07-28", "2030-01-01");
    let (status, _, body) = post(&mut test_server, &headers, &later);
    let error = &body["error"];
    assert_eq!((status.as_str(), &error["code"]), ("400", &json!(-32_022)));
    assert_eq!(error["data"]["supported"], json!(["2026-07-28"]));
}

#[test]
fn ids_are_free_again_when_they_were_answered() {
    let mut test_server = TestServer::new();
    let session = session(&mut test_server, "2025-11-25");
    for id in [json!(0), json!("a"), json!(-7), json!("ä\u{1F600}")] {
        for _ in 0..3 {
            let (status, _, body) = post(&mut test_server, &session, &ping(id.clone()));
            assert_eq!((status.as_str(), &body["id"]), ("200", &id));
        }
    }
    let params = json!({"name": "slow_data_processor", "arguments": {"chunks": 9}});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let body = call.to_string();
    let length = body.len();
    let _running = test_server.visit(&format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\n{ACCEPT}{JSON}{session}\
         Content-Length: {length}\r\n\r\n{body}"
    ));
    let (_, _, body) = post(&mut test_server, &session, &ping(1.into()));
    assert_eq!(body["error"]["code"], -32_600, "it is under way");
}
