//! The handshake era: the admission of clients, the agreed version, and the state of a session.

use serde_json::{Value, json};

use super::testing::{message, notification, request, session, session_with};
use super::{
    Ask, ClientNotification, Incoming, Level, McpSession, ServerInfo, Version, codes, shapes,
};
use crate::limits;
use crate::wire::jsonrpc::Id;

fn initialize(version: &str) -> Value {
    json!({
        "protocolVersion": version,
        "capabilities": {"roots": {"listChanged": true}},
        "clientInfo": {"name": "c", "version": "1"},
    })
}

fn open(params: Value) -> Result<(McpSession, Value), super::McpFault> {
    McpSession::open(&request(0, "initialize", params), &ServerInfo::default())
}

fn handshake_versions() -> impl Iterator<Item = Version> {
    Version::ALL.into_iter().filter(|version| *version <= Version::LATEST_HANDSHAKE)
}

#[test]
fn initialize_is_answered_with_version_capabilities_and_server() {
    // A1, A2, A4, A33, A39, A40, A42, A45, C1.
    for version in Version::ALL {
        let (session, result) = open(initialize(version.text())).unwrap();
        shapes::check(version.min(Version::LATEST_HANDSHAKE), "InitializeResult", &result);
        let answered = version.min(Version::LATEST_HANDSHAKE);
        assert_eq!(session.version(), answered);
        assert_eq!(result["protocolVersion"], answered.text());
        let capabilities = &result["capabilities"];
        for name in ["logging", "resources", "tools"] {
            assert!(capabilities[name].is_object(), "{name}");
        }
        assert_eq!(capabilities["resources"]["subscribe"], true);
        assert_eq!(capabilities["tools"]["listChanged"], true);
        let has = |name: &str| capabilities.get(name).is_some();
        assert_eq!(has("tasks"), answered == Version::V2025_11_25);
        assert_eq!(has("completions"), answered >= Version::V2025_03_26);
        assert!(!has("prompts") && !has("extensions"));
    }
}

#[test]
fn what_a_server_does_not_have_it_does_not_declare() {
    // A43, A46: tasks are listed only if clients are identified.
    let server = ServerInfo {
        has_prompts: true,
        tells_tools: false,
        tells_prompts: false,
        lists_tasks: true,
        title: Some("The server".to_owned()),
        instructions: Some("Be kind.".to_owned()),
        ..Default::default()
    };
    let request = request(0, "initialize", initialize("2025-11-25"));
    let (_, result) = McpSession::open(&request, &server).unwrap();
    shapes::check(Version::V2025_11_25, "InitializeResult", &result);
    let capabilities = &result["capabilities"];
    assert_eq!(capabilities["prompts"], json!({}));
    assert_eq!(capabilities["tools"], json!({}));
    assert_eq!(capabilities["tasks"]["list"], json!({}));
    assert_eq!(result["instructions"], "Be kind.");
    assert_eq!(result["serverInfo"]["title"], "The server");
    let (_, without) = open(initialize("2025-11-25")).unwrap();
    assert_eq!(without["capabilities"]["tasks"].get("list"), None);
    assert_eq!(without.get("instructions"), None);
}

#[test]
fn the_first_request_is_a_right_initialize() {
    // A1.
    let wrong = [
        ("ping", json!({}), codes::INVALID_REQUEST),
        ("tools/list", json!({}), codes::INVALID_REQUEST),
        ("initialize", json!({}), codes::INVALID_PARAMS),
        ("initialize", json!({"protocolVersion": "2025-11-25"}), codes::INVALID_PARAMS),
        (
            "initialize",
            json!({"protocolVersion": 1, "capabilities": {}, "clientInfo": {}}),
            codes::INVALID_PARAMS,
        ),
        (
            "initialize",
            json!({"protocolVersion": "", "capabilities": [], "clientInfo": {}}),
            codes::INVALID_PARAMS,
        ),
        (
            "initialize",
            json!({"protocolVersion": "", "capabilities": {}, "clientInfo": {"name": "a"}}),
            codes::INVALID_PARAMS,
        ),
    ];
    for (method, params, code) in wrong {
        let opened = McpSession::open(&request(0, method, params.clone()), &ServerInfo::default());
        let fault = opened.expect_err(&params.to_string());
        assert_eq!((fault.code, fault.status), (code, 400), "{params}");
    }
    let told = notification("initialize", initialize("2025-11-25"));
    assert!(McpSession::open(&told, &ServerInfo::default()).is_err());
}

#[test]
fn a_client_is_asked_nothing_before_it_has_said_that_it_is_ready() {
    // A3. The client may send requests, which come over other connections than the notification.
    let (mut session, _) = open(initialize("2025-11-25")).unwrap();
    assert!(!session.is_initialized());
    assert!(session.receive(request(1, "ping", json!({})), None).is_ok());
    assert!(!session.is_initialized());
    let told = session.receive(notification("notifications/initialized", json!({})), None);
    assert_eq!(told, Ok(Incoming::Notification(ClientNotification::Initialized)));
    assert!(session.is_initialized());
    assert!(session.client().roots_list_changed && session.client().abilities.roots);
    assert_eq!(session.client_info().name, "c");
    let again = session.receive(request(2, "initialize", initialize("2025-11-25")), None);
    assert_eq!(again.unwrap_err().code, codes::INVALID_REQUEST);
}

#[test]
fn an_id_that_is_under_way_is_not_taken_twice() {
    // A7.
    let mut session = session(Version::V2025_11_25);
    let ping = |id: Value| request(id, "ping", json!({}));
    assert!(session.receive(ping(json!(1)), None).is_ok());
    assert!(session.receive(ping(json!("1")), None).is_ok());
    let fault = session.receive(ping(json!(1)), None).unwrap_err();
    assert_eq!((fault.code, fault.status), (codes::INVALID_REQUEST, 400));
    assert_eq!(session.active_count(), 2);
    session.finish(&Id::of_number(1));
    assert!(session.receive(ping(json!(1)), None).is_ok());
}

#[test]
fn only_so_many_requests_are_under_way() {
    let mut session = session(Version::V2025_11_25);
    for id in 0..limits::MCP_REQUESTS_PER_SESSION_MAX {
        assert!(session.receive(request(id, "ping", json!({})), None).is_ok());
    }
    let fault = session.receive(request("one more", "ping", json!({})), None).unwrap_err();
    assert_eq!((fault.code, fault.status), (codes::BUSY, 429));
    session.finish(&Id::of_number(3));
    assert!(session.receive(request("one more", "ping", json!({})), None).is_ok());
}

#[test]
fn what_was_refused_is_not_under_way() {
    let mut session = session(Version::V2025_11_25);
    for (method, params) in [
        ("nothing", json!({})),
        ("tools/call", json!({})),
        ("tools/call", json!({"name": "a", "_meta": {"progressToken": 1.5}})),
        ("tasks/list", json!({})), // Not declared.
    ] {
        assert!(session.receive(request(1, method, params), None).is_err(), "{method}");
        assert_eq!(session.active_count(), 0, "{method}");
    }
}

#[test]
fn a_header_names_a_version_of_this_era_or_is_refused() {
    // A24.
    for version in handshake_versions() {
        let mut session = session(version);
        let table = [
            (None, true),
            (Some("2024-11-05"), true),
            (Some("2025-11-25"), true),
            (Some(" 2025-06-18\t"), true),
            (Some("2026-07-28"), false),
            (Some("1999-01-01"), false),
            (Some("2025-11-25, 2025-11-25"), false),
            (Some(""), false),
        ];
        for (at, (header, is_right)) in table.into_iter().enumerate() {
            let got = session.receive(request(at, "ping", json!({})), header);
            match got {
                Ok(_) => assert!(is_right, "{header:?}"),
                Err(fault) => assert_eq!((is_right, fault.status), (false, 400), "{header:?}"),
            }
        }
    }
}

#[test]
fn only_methods_of_the_version_are_known() {
    // A4; tasks exist in one version only, and methods of the stateless era in none of these.
    let table = [
        ("ping", Version::V2024_11_05, true),
        ("tasks/get", Version::V2025_06_18, false),
        ("tasks/get", Version::V2025_11_25, true),
        ("tasks/result", Version::V2025_11_25, true),
        ("tasks/cancel", Version::V2025_11_25, true),
        ("tasks/update", Version::V2025_11_25, false),
        ("server/discover", Version::V2025_11_25, false),
        ("subscriptions/listen", Version::V2025_11_25, false),
        ("notifications/initialized", Version::V2025_11_25, false),
        ("", Version::V2025_11_25, false),
    ];
    for (method, version, is_known) in table {
        let got = session(version).receive(request(1, method, json!({"taskId": "t"})), None);
        match got {
            Ok(_) => assert!(is_known, "{method}"),
            Err(fault) => {
                assert_eq!((is_known, fault.code, fault.status), (false, -32_601, 200), "{method}");
            }
        }
    }
    let server = ServerInfo { lists_tasks: true, ..Default::default() };
    let mut session = session_with(Version::V2025_11_25, json!({}), &server);
    assert!(session.receive(request(1, "tasks/list", json!({})), None).is_ok());
}

#[test]
fn a_cancellation_concerns_only_what_is_under_way() {
    // A31: `initialize` cannot be cancelled, and an unknown id is ignored.
    let mut session = session(Version::V2025_11_25);
    let cancel = |id: Value| {
        notification("notifications/cancelled", json!({"requestId": id, "reason": "a\u{7}b"}))
    };
    for id in [json!(0), json!(5), json!("x"), json!(null), json!(1.5), json!({})] {
        let told = session.receive(cancel(id.clone()), None);
        assert_eq!(told, Ok(Incoming::Notification(ClientNotification::Other)), "{id}");
    }
    session.receive(request("\u{61}", "ping", json!({})), None).unwrap();
    let told = session.receive(cancel(json!("a")), None);
    let reason = Some("ab".to_owned());
    assert_eq!(
        told,
        Ok(Incoming::Notification(ClientNotification::Cancelled { id: Id::of_text("a"), reason }))
    );
    assert_eq!(session.active_count(), 1); // Active until the shard finishes it.
}

#[test]
fn what_a_client_tells_and_nobody_knows_is_ignored() {
    // A9; the notes' section 4: an unknown notification or response id gets the status 202.
    let mut session = session(Version::V2025_06_18);
    for (method, told) in [
        ("notifications/roots/list_changed", ClientNotification::RootsChanged),
        ("notifications/progress", ClientNotification::Progress),
        ("notifications/unknown", ClientNotification::Other),
        ("tools/call", ClientNotification::Other),
    ] {
        let got = session.receive(notification(method, json!({})), None);
        assert_eq!(got, Ok(Incoming::Notification(told)), "{method}");
    }
    let reply = message(&json!({"jsonrpc": "2.0", "id": "ours", "result": {"roots": []}}));
    let id = Id::of_text("ours");
    let result = Ok(json!({"roots": []}));
    assert_eq!(session.receive(reply, None), Ok(Incoming::Reply { id, result }));
    let lost = message(&json!({"jsonrpc": "2.0", "error": {"code": -32700, "message": "?"}}));
    assert_eq!(session.receive(lost, None), Ok(Incoming::Notification(ClientNotification::Other)));
}

#[test]
fn the_level_of_log_messages_is_kept() {
    // A40.
    let mut session = session(Version::V2025_11_25);
    assert_eq!(session.level(), Level::Info);
    for (at, level) in Level::ALL.into_iter().enumerate() {
        let params = json!({"level": level.name()});
        let got = session.receive(request(at, "logging/setLevel", params), None).unwrap();
        assert!(matches!(got, Incoming::Ask(_, Ask::SetLevel(set)) if set == level));
        assert_eq!(session.level(), level);
    }
    for level in [json!("loud"), json!("ERROR"), json!(1), json!(null)] {
        let got = session.receive(request(99, "logging/setLevel", json!({"level": level})), None);
        assert_eq!(got.unwrap_err().code, codes::INVALID_PARAMS, "{level}");
    }
    assert_eq!(session.level(), Level::Emergency);
    let Incoming::Ask(context, _) = session.receive(request(98, "ping", json!({})), None).unwrap()
    else {
        panic!("expected a request");
    };
    assert_eq!(context.log_level, Some(Level::Emergency));
}

#[test]
fn subscriptions_are_kept_up_to_a_limit() {
    let mut session = session(Version::V2025_11_25);
    for number in 0..limits::MCP_SUBSCRIPTIONS_MAX {
        session.subscribe(&format!("a:{number}")).unwrap();
    }
    assert_eq!(session.subscribe("a:0"), Ok(()));
    assert_eq!(session.subscribe("a:x").unwrap_err().code, codes::BUSY);
    assert!(session.is_subscribed("a:7") && !session.is_subscribed("a:x"));
    assert!(session.unsubscribe("a:7") && !session.unsubscribe("a:7"));
    assert_eq!(session.subscriptions().count(), limits::MCP_SUBSCRIPTIONS_MAX - 1);
    assert_eq!(session.subscribe("a:x"), Ok(()));
}
