//! The stateless era: the admission of requests, and the checks of headers.

use std::sync::Arc;

use serde_json::{Value, json};

use super::headers::declared;
use super::testing::{message, modern, notification, request};
use super::{
    Ask, ClientNotification, Era, Headers, Incoming, Level, META_CAPABILITIES, META_LOG_LEVEL,
    META_VERSION, McpFault, Version, admit, codes, era_of, shapes,
};
use crate::tool::ToolSpec;
use crate::wire::jsonrpc::{Id, RpcMessage};

const VERSION: &str = "2026-07-28";

/// Admits a request as over HTTP, with these headers.
fn admit_http(message: RpcMessage, headers: &[(&str, &str)]) -> Result<Incoming, McpFault> {
    let get = |name: &str| {
        let found = headers.iter().find(|(header, _)| header.eq_ignore_ascii_case(name));
        found.map(|(_, value)| *value)
    };
    let headers = Headers {
        version: get("mcp-protocol-version"),
        method: get("mcp-method"),
        name: get("mcp-name"),
        other: &get,
    };
    admit(message, Some(&headers), &|name| (name == "paint").then(|| Arc::new(paint())))
}

/// Returns a tool with arguments in headers.
fn paint() -> ToolSpec {
    let arguments = json!({
        "type": "object",
        "properties": {
            "color": {"type": "string", "x-mcp-header": "Color"},
            "count": {"type": "integer", "x-mcp-header": "Count"},
            "wet": {"type": "boolean", "x-mcp-header": "Wet"},
            "wall": {
                "type": "object",
                "properties": {"side": {"type": "string", "x-mcp-header": "Side"}},
            },
            "free": {"type": "string"},
        },
    });
    ToolSpec { arguments, ..ToolSpec::new("paint", "Paints.") }
}

/// Writes an error as a message, and checks its shape by the schema.
fn check_fault(fault: &McpFault, shape: &str) -> Value {
    let mut out = Vec::new();
    fault.write(&mut out, Some(&Id::of_number(1)));
    shapes::check_bytes(Version::LATEST, shape, &out)
}

#[test]
fn the_era_is_told_by_what_a_request_says_else_by_its_header() {
    // C1, C2, C3, B14.
    let plain = json!({});
    let meta = |name: &str| json!({"_meta": {name: VERSION}});
    let table = [
        (plain.clone(), None, Era::Handshake),
        (plain.clone(), Some("2025-11-25"), Era::Handshake),
        (plain.clone(), Some("2025-03-26"), Era::Handshake),
        (plain.clone(), Some("1999-01-01"), Era::Handshake),
        (plain.clone(), Some("nonsense"), Era::Handshake),
        (plain.clone(), Some("zzzz-99-99"), Era::Handshake),
        (plain.clone(), Some(VERSION), Era::Stateless),
        (plain.clone(), Some(" 2026-07-28 "), Era::Stateless),
        (plain.clone(), Some("2099-01-01"), Era::Stateless),
        (json!({"_meta": {"progressToken": 1}}), None, Era::Handshake),
        (meta(META_VERSION), None, Era::Stateless),
        (meta(META_VERSION), Some("2025-11-25"), Era::Stateless),
        (meta(META_CAPABILITIES), None, Era::Stateless),
    ];
    for (params, header, era) in table {
        for method in ["initialize", "ping", "tools/list"] {
            let message = request(1, method, params.clone());
            assert_eq!(era_of(&message, header), era, "{method} {params} {header:?}");
        }
        let note = notification("notifications/cancelled", params.clone());
        assert_eq!(era_of(&note, header), era, "{params} {header:?}");
    }
}

#[test]
fn every_request_says_its_version_and_what_its_client_can() {
    // B3: a request without either gets the status 400 and the code −32602.
    let good = modern(json!({}), json!({}));
    for (name, wrong) in [
        (META_VERSION, None),
        (META_VERSION, Some(json!(1))),
        (META_CAPABILITIES, None),
        (META_CAPABILITIES, Some(json!([]))),
        (META_CAPABILITIES, Some(json!({"roots": 1}))),
    ] {
        let mut params = good.clone();
        match wrong {
            Some(value) => params["_meta"][name] = value,
            None => drop(params["_meta"].as_object_mut().unwrap().remove(name)),
        }
        let fault = admit(request(1, "tools/list", params.clone()), None, &|_| None).unwrap_err();
        assert_eq!((fault.code, fault.status), (codes::INVALID_PARAMS, 400), "{params}");
    }
    for params in [json!({}), json!({"_meta": {}}), json!({"_meta": []})] {
        let headers = [("Mcp-Protocol-Version", VERSION), ("Mcp-Method", "tools/list")];
        let fault = admit_http(request(1, "tools/list", params), &headers).unwrap_err();
        assert_eq!((fault.code, fault.status), (codes::INVALID_PARAMS, 400)); // C3.
        check_fault(&fault, "JSONRPCErrorResponse");
    }
    let mut nameless = good;
    nameless["_meta"].as_object_mut().unwrap().remove("io.modelcontextprotocol/clientInfo");
    assert!(admit(request(1, "tools/list", nameless), None, &|_| None).is_ok());
}

#[test]
fn another_version_is_told_which_there_are() {
    // B10, C4: the versions that `server/discover` lists.
    for requested in ["2099-01-01", "2025-11-25", "1900-01-01", ""] {
        let mut params = modern(json!({}), json!({}));
        params["_meta"][META_VERSION] = requested.into();
        params["_meta"].as_object_mut().unwrap().remove(META_CAPABILITIES);
        let headers = [("mcp-protocol-version", requested), ("mcp-method", "tools/list")];
        let fault = admit_http(request(1, "tools/list", params), &headers).unwrap_err();
        assert_eq!((fault.code, fault.status), (codes::UNSUPPORTED_VERSION, 400));
        let document = check_fault(&fault, "UnsupportedProtocolVersionError");
        assert_eq!(document["error"]["data"]["requested"], requested);
        assert_eq!(document["error"]["data"]["supported"], json!([VERSION]));
    }
}

#[test]
fn methods_of_the_other_era_are_not_found() {
    // C2, B23.
    for method in [
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "tasks/list",
        "tasks/result",
        "nothing",
        "tools/List",
    ] {
        let params = modern(json!({"uri": "a:b", "level": "info"}), json!({}));
        let headers = [("mcp-protocol-version", VERSION), ("mcp-method", method)];
        let fault = admit_http(request(1, method, params), &headers).unwrap_err();
        assert_eq!((fault.code, fault.status), (codes::METHOD_NOT_FOUND, 404), "{method}");
    }
}

#[test]
fn headers_say_what_the_body_says() {
    // B23, B24.
    let call = || request(1, "tools/call", modern(json!({"name": "tool-1"}), json!({})));
    let good =
        [("mcp-protocol-version", VERSION), ("mcp-method", "tools/call"), ("mcp-name", "tool-1")];
    assert!(admit_http(call(), &good).is_ok());
    let encoded = [good[0], good[1], ("MCP-NAME", "\t =?base64?dG9vbC0x?= ")];
    assert!(admit_http(call(), &encoded).is_ok());
    for missing in 0..3 {
        let mut headers = good.to_vec();
        headers.remove(missing);
        let fault = admit_http(call(), &headers).unwrap_err();
        assert_eq!((fault.code, fault.status), (codes::HEADER_MISMATCH, 400), "{missing}");
        check_fault(&fault, "HeaderMismatchError");
    }
    for (place, value) in [
        (0, "2025-11-25"),
        (0, "2026-07-28, 2026-07-28"),
        (0, "=?base64?MjAyNi0wNy0yOA==?="), // Only names may be encoded.
        (1, "tools/list"),
        (1, "Tools/call"),
        (1, ""),
        (2, "Tool-1"),
        (2, "tool-2"),
        (2, "=?base64?dG9vbC0y?="),
        (2, "=?base64?dG9vbC0x"),
        (2, "=?BASE64?dG9vbC0x?="),
        (2, "=?base64?dG9vbC0x=?="),
        (2, "=?base64?dG9vb!0x?="),
        (2, "=?base64?/w==?="),
        (2, "tool-1\u{e9}"),
        (2, "tool-1\u{1}"),
    ] {
        let mut headers = good;
        headers[place].1 = value;
        let fault = admit_http(call(), &headers).unwrap_err();
        assert_eq!((fault.code, fault.status), (codes::HEADER_MISMATCH, 400), "{value}");
    }
}

#[test]
fn each_method_that_names_one_thing_has_it_in_a_header() {
    // B24.
    let tasks = || json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
    for (method, parameter, value) in [
        ("tools/call", "name", "t"),
        ("prompts/get", "name", "p q"),
        ("resources/read", "uri", "test://a"),
        ("tasks/get", "taskId", "t1"),
        ("tasks/cancel", "taskId", "t1"),
        ("tasks/update", "taskId", "t1"),
    ] {
        let params = || modern(json!({parameter: value, "inputResponses": {}}), tasks());
        let headers =
            [("mcp-protocol-version", VERSION), ("mcp-method", method), ("mcp-name", value)];
        assert!(admit_http(request(1, method, params()), &headers).is_ok(), "{method}");
        let fault = admit_http(request(1, method, params()), &headers[..2]).unwrap_err();
        assert_eq!(fault.code, codes::HEADER_MISMATCH, "{method}");
        let mut unnamed = params();
        unnamed.as_object_mut().unwrap().remove(parameter);
        let fault = admit_http(request(1, method, unnamed.clone()), &headers).unwrap_err();
        assert_eq!(fault.code, codes::HEADER_MISMATCH, "{method}");
        let fault = admit_http(request(1, method, unnamed), &headers[..2]).unwrap_err();
        assert_eq!(fault.code, codes::INVALID_PARAMS, "{method}");
    }
    let headers = [("mcp-protocol-version", VERSION), ("mcp-method", "tools/list")];
    let list = request(1, "tools/list", modern(json!({}), json!({})));
    assert!(admit_http(list, &headers).is_ok());
}

#[test]
fn arguments_in_headers_are_those_of_the_body() {
    // B25.
    let admit = |arguments: Value, extra: &[(&'static str, &'static str)]| {
        let mut headers = vec![
            ("mcp-protocol-version", VERSION),
            ("mcp-method", "tools/call"),
            ("mcp-name", "paint"),
        ];
        headers.extend_from_slice(extra);
        let params = modern(json!({"name": "paint", "arguments": arguments}), json!({}));
        admit_http(request(1, "tools/call", params), &headers).map_err(|fault| fault.code)
    };
    let good: [(Value, &[(&str, &str)]); 10] = [
        (json!({}), &[]),
        (json!({"color": null, "free": "x"}), &[]),
        (json!({"color": "red"}), &[("Mcp-Param-Color", "red")]),
        (
            json!({"color": " Hello, 世界"}),
            &[("mcp-param-color", "=?base64?IEhlbGxvLCDkuJbnlYw=?=")],
        ),
        (json!({"color": ""}), &[("Mcp-Param-Color", "")]),
        (json!({"count": 42}), &[("mcp-param-count", "42")]),
        (json!({"count": 42}), &[("mcp-param-count", "42.0")]),
        (json!({"count": -7}), &[("mcp-param-count", "=?base64?LTc=?=")]),
        (json!({"wet": true}), &[("mcp-param-wet", "true")]),
        (json!({"wall": {"side": "n"}}), &[("mcp-param-side", "n")]),
    ];
    for (arguments, extra) in good {
        assert!(admit(arguments.clone(), extra).is_ok(), "{arguments} {extra:?}");
    }
    let bad: [(Value, &[(&str, &str)]); 12] = [
        (json!({"color": "red"}), &[]),
        (json!({"wall": {"side": "n"}}), &[]),
        (json!({"color": "red"}), &[("mcp-param-color", "Red")]),
        (json!({"color": "red"}), &[("mcp-param-color", "=?base64?cmVk=?=")]),
        (json!({"color": "red"}), &[("mcp-param-color", "=?base64?cm!k?=")]),
        (json!({"color": "red"}), &[("mcp-param-color", "r\u{e9}d")]),
        (json!({}), &[("mcp-param-color", "red")]),
        (json!({"color": null}), &[("mcp-param-color", "null")]),
        (json!({"count": 42}), &[("mcp-param-count", "43")]),
        (json!({"count": 42}), &[("mcp-param-count", "inf")]),
        (json!({"wet": true}), &[("mcp-param-wet", "True")]),
        (json!({"color": {"a": 1}}), &[("mcp-param-color", "{\"a\":1}")]),
    ];
    for (arguments, extra) in bad {
        let got = admit(arguments.clone(), extra);
        assert_eq!(got, Err(codes::HEADER_MISMATCH), "{arguments} {extra:?}");
    }
}

#[test]
fn only_right_wishes_for_headers_are_declared() {
    // B25.
    let found = declared(&paint().arguments).unwrap();
    let names: Vec<&str> = found.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["Color", "Count", "Wet", "Side"]);
    assert_eq!(found[3].path, ["wall", "side"]);
    assert_eq!(declared(&json!({"properties": {"x-mcp-header": {"type": "string"}}})), Ok(vec![]));
    let wish = |name: Value, of_type: &str| json!({"type": of_type, "x-mcp-header": name});
    let bad = [
        json!({"properties": {"a": wish(json!(""), "string")}}),
        json!({"properties": {"a": wish(json!("a b"), "string")}}),
        json!({"properties": {"a": wish(json!("a\r\nb"), "string")}}),
        json!({"properties": {"a": wish(json!(1), "string")}}),
        json!({"properties": {"a": wish(json!("A"), "number")}}),
        json!({"properties": {"a": wish(json!("A"), "object")}}),
        json!({"properties": {"a": wish(json!("A"), "string"), "b": wish(json!("a"), "string")}}),
        json!({"properties": {"a": {"items": wish(json!("A"), "string")}}}),
        json!({"anyOf": [{"properties": {"a": wish(json!("A"), "string")}}]}),
        json!({"$defs": {"d": wish(json!("A"), "string")}}),
        json!({"if": {"properties": {"a": wish(json!("A"), "string")}}}),
    ];
    for schema in bad {
        assert!(declared(&schema).is_err(), "{schema}");
    }
}

#[test]
fn log_messages_are_wanted_by_each_request_for_itself() {
    // B36.
    let level = |value: Option<Value>| {
        let mut params = modern(json!({}), json!({}));
        if let Some(value) = value {
            params["_meta"][META_LOG_LEVEL] = value;
        }
        match admit(request(1, "tools/list", params), None, &|_| None) {
            Ok(Incoming::Ask(context, _)) => Ok(context.log_level),
            Ok(other) => panic!("{other:?}"),
            Err(fault) => Err(fault.code),
        }
    };
    assert_eq!(level(None), Ok(None));
    assert_eq!(level(Some(json!("warning"))), Ok(Some(Level::Warning)));
    assert_eq!(level(Some(json!("loud"))), Err(codes::INVALID_PARAMS));
}

#[test]
fn on_lines_there_are_no_headers_to_compare() {
    let call = request("a", "tools/call", modern(json!({"name": "paint"}), json!({})));
    let got = admit(call, None, &|_| Some(Arc::new(paint()))).unwrap();
    assert!(matches!(got, Incoming::Ask(_, Ask::CallTool { name, .. }) if name == "paint"));
}

#[test]
fn what_is_told_is_told_without_ceremony_and_answers_are_refused() {
    // B15, B17, B20.
    let cancel = notification("notifications/cancelled", json!({"requestId": 3}));
    let told = ClientNotification::Cancelled { id: Id::of_number(3), reason: None };
    assert_eq!(admit(cancel, None, &|_| None), Ok(Incoming::Notification(told)));
    let reply = message(&json!({"jsonrpc": "2.0", "id": 1, "result": {}}));
    let fault = admit(reply, None, &|_| None).unwrap_err();
    assert_eq!((fault.code, fault.status), (codes::INVALID_REQUEST, 400));
}
