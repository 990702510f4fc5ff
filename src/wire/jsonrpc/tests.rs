//! Tests of reading and writing, by the rules of JSON-RPC 2.0 as MCP restricts them.

use serde_json::json;

use super::*;
use crate::base::Random;

fn code_of(text: &str) -> i64 {
    parse(text.as_bytes()).expect_err(text).code
}

#[test]
fn each_sort_of_message_is_read_in_any_order_of_its_members() {
    let request = parse(br#"{"method":"a","params":{"b":1},"jsonrpc":"2.0","id":0}"#).unwrap();
    let params = json!({"b": 1}).as_object().unwrap().clone().into();
    let expected = RpcMessage::Request { id: Id::of_number(0), method: "a".to_owned(), params };
    assert_eq!(request, expected);
    let note = parse(br#" {"jsonrpc":"2.0","method":"n"} "#).unwrap();
    assert_eq!(
        note,
        RpcMessage::Notification { method: "n".to_owned(), params: Parameters::default() }
    );
    let result = parse(br#"{"jsonrpc":"2.0","id":"q","result":{}}"#).unwrap();
    assert_eq!(result, RpcMessage::Response { id: Some(Id::of_text("q")), result: Ok(json!({})) });
    let error = parse(br#"{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"m","data":[]}}"#);
    let object = ErrorObject { code: -1, message: "m".to_owned(), data: Some(json!([])) };
    let expected = RpcMessage::Response { id: Some(Id::of_number(1)), result: Err(object) };
    assert_eq!(error.unwrap(), expected);
}

#[test]
fn an_error_may_come_without_an_id_or_with_null() {
    for id in ["", r#""id":null,"#] {
        let text = format!(r#"{{"jsonrpc":"2.0",{id}"error":{{"code":1,"message":""}}}}"#);
        assert!(
            matches!(parse(text.as_bytes()), Ok(RpcMessage::Response { id: None, .. })),
            "{text}"
        );
    }
}

#[test]
fn ids_go_back_byte_by_byte() {
    // A7, A8, B1.
    let ids = [
        "0",
        "-1",
        "7",
        "9007199254740993",
        "123456789012345678901234567890",
        "\"\"",
        "\"a b\"",
        "\"\\u0061\"",
        "\"\\/\"",
        "\"\u{e9}\u{2028}\"",
        "\"\\ud83d\\ude00\"",
        "\"{}[],:\\\"\\\\\"",
    ];
    for id in ids {
        for text in [
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#),
            format!(
                "{{ \"method\" : \"m\" , \"params\" : {{\"id\":5,\"x\":[\"}}\"]}},\n\t\
                 \"id\" :\r {id}\n, \"jsonrpc\":\"2.0\"}}"
            ),
            format!(r#"{{"jsonrpc":"2.0","method":"m","\u0069d":{id}}}"#),
        ] {
            let Ok(RpcMessage::Request { id: read, .. }) = parse(text.as_bytes()) else {
                panic!("{text}");
            };
            let mut out = Vec::new();
            write_result(&mut out, &read, &json!({}));
            let expected = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }
}

#[test]
fn ids_are_equal_if_they_say_the_same() {
    let id = |raw: &str| Id::of_raw(raw).unwrap();
    assert_eq!(id(r#""\u0061""#), id(r#""a""#));
    assert_eq!(id(r#""\u0061""#), Id::of_value(&json!("a")).unwrap());
    assert_eq!(id("7"), Id::of_value(&json!(7)).unwrap());
    assert_ne!(id("7"), id("\"7\""));
    assert_ne!(id("\"a\""), id("\"A\""));
    assert!(id("0") < id("1") && id("\"a\"") < id("\"b\""));
    assert_eq!(id(r#""\u0061""#).as_text().as_deref(), Some("a"));
    assert_eq!((id("3").as_text(), id("3").to_value()), (None, json!(3)));
}

#[test]
fn an_id_is_a_text_or_an_integer_and_nothing_else() {
    // A7, B1; the notes' section 4: id null and id 1.5.
    let long = format!("\"{}\"", "x".repeat(limits::MCP_ID_BYTES_MAX));
    let table = ["null", "1.5", "1.0", "1e2", "true", "[]", "{}", "[1]", long.as_str()];
    for id in table {
        for rest in [r#""method":"m""#, r#""result":{}"#] {
            if id == "null" && rest.contains("result") {
                continue; // Checked below.
            }
            let text = format!(r#"{{"jsonrpc":"2.0","id":{id},{rest}}}"#);
            let error = parse(text.as_bytes()).expect_err(&text);
            assert_eq!((error.code, error.id), (INVALID_REQUEST, None), "{text}");
        }
        assert_eq!(Id::of_value(&serde_json::from_str(id).unwrap()), None, "{id}");
    }
    assert_eq!(code_of(r#"{"jsonrpc":"2.0","id":null,"result":{}}"#), INVALID_REQUEST);
    let longest = "x".repeat(limits::MCP_ID_BYTES_MAX - 2);
    assert!(Id::of_value(&json!(longest)).is_some());
}

#[test]
fn what_is_no_json_is_a_parse_error_without_an_id() {
    let deep = |depth: usize| {
        let (open, close) = ("[".repeat(depth), "]".repeat(depth));
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{{"a":{open}{close}}}}}"#)
    };
    let depth_max = limits::JSON_DEPTH_MAX as usize;
    assert!(parse(deep(depth_max - 2).as_bytes()).is_ok());
    let too_deep = deep(depth_max - 1);
    let bomb = "[".repeat(1 << 20);
    let in_id = format!(r#"{{"jsonrpc":"2.0","id":{bomb}"#);
    let bad: [&[u8]; 14] = [
        in_id.as_bytes(),
        b"{\"jsonrpc\":\"2.0\",\"id\":1e999,\"method\":\"m\"}",
        b"{\"jsonrpc\":\"2.0\",\"id\":[1e999],\"result\":{}}",
        b"{\"jsonrpc\":\"2.0\",\"id\":\"\\ud800\",\"method\":\"m\"}",
        b"{\"jsonrpc\":\"\\ud800\",\"id\":1,\"method\":\"m\"}",
        b"",
        b"{",
        b"nul",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\"} x",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}",
        b"\xef\xbb\xbf{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\"}",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xed\xa0\x80\"}",
        too_deep.as_bytes(),
        bomb.as_bytes(),
    ];
    for text in bad {
        let error = parse(text).unwrap_err();
        let shown = String::from_utf8_lossy(&text[..text.len().min(80)]);
        assert_eq!((error.code, error.id), (PARSE_ERROR, None), "{shown}");
    }
}

#[test]
fn a_name_that_comes_twice_is_refused_wherever_it_is() {
    let table = [
        r#"{"jsonrpc":"2.0","jsonrpc":"2.0","id":1,"method":"m"}"#,
        r#"{"jsonrpc":"2.0","id":1,"id":1,"method":"m"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"m","m\u0065thod":"m"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{},"params":{}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":1,"a":1}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":1,"\u0061":1}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{},"_meta":{}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":null,"\u005fmeta":{}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"a":1,"a":1}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"x":{"a":1,"a":1}}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":[{"a":1,"a":1}]}}"#,
        r#"{"jsonrpc":"2.0","id":{"a":1,"a":1},"method":"m"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"m","other":1,"other":1}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"m","other":[{"a":1,"a":1}]}"#,
    ];
    for text in table {
        let error = parse(text.as_bytes()).expect_err(text);
        assert_eq!((error.code, error.id), (INVALID_REQUEST, None), "{text}");
        assert!(error.message.contains("a repeated name"), "{text}: {}", error.message);
    }
    // If a text is not JSON and has a name twice, the first is reported.
    assert_eq!(code_of(r#"{"jsonrpc":"2.0","id":1,"id":1,"method":"m""#), PARSE_ERROR);
    let other = r#"{"jsonrpc":"2.0","id":1,"method":"m","other":{"method":"n"},"more":[]}"#;
    assert!(parse(other.as_bytes()).is_ok());
}

#[test]
fn a_batch_is_refused() {
    // A10: none since 2025-06-18.
    for text in ["[]", r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, "1", "\"a\"", "null"] {
        assert_eq!(code_of(text), INVALID_REQUEST, "{text}");
    }
}

#[test]
fn what_is_no_message_is_refused_and_a_request_learns_so_by_its_id() {
    let table = [
        (r#"{"id":5,"method":"m"}"#, true),
        (r#"{"jsonrpc":"1.0","id":5,"method":"m"}"#, true),
        (r#"{"jsonrpc":2.0,"id":5,"method":"m"}"#, true),
        (r#"{"jsonrpc":"2.0","id":5}"#, true),
        (r#"{"jsonrpc":"2.0","id":5,"method":1}"#, true),
        (r#"{"jsonrpc":"2.0","id":5,"method":"m","params":[]}"#, true),
        (r#"{"jsonrpc":"2.0","id":5,"method":"m","params":"a"}"#, true),
        (r#"{"jsonrpc":"2.0","id":5,"method":"m","result":{}}"#, true),
        (r#"{"jsonrpc":"2.0","method":"m","params":1}"#, false),
        (r#"{"jsonrpc":"2.0","id":5,"id":6,"method":"m"}"#, false),
        (r#"{"jsonrpc":"2.0","id":5,"method":"m","params":{"a":1,"a":2}}"#, false),
        (r#"{}"#, false),
    ];
    for (text, has_id) in table {
        let error = parse(text.as_bytes()).expect_err(text);
        assert_eq!(error.code, INVALID_REQUEST, "{text}");
        assert_eq!(error.id, has_id.then(|| Id::of_number(5)), "{text}");
        assert!(!error.is_response, "{text}");
    }
    assert!(parse(br#"{"jsonrpc":"2.0","id":5,"method":"m","params":null,"more":1}"#).is_ok());
}

#[test]
fn a_bad_answer_is_not_answered() {
    // Otherwise two programs could reply to each other for ever.
    let table = [
        r#"{"jsonrpc":"2.0","id":5,"result":1}"#,
        r#"{"jsonrpc":"2.0","id":5,"result":{},"error":{"code":1,"message":""}}"#,
        r#"{"jsonrpc":"2.0","id":5,"error":"no"}"#,
        r#"{"jsonrpc":"2.0","id":5,"error":{"code":1.5,"message":""}}"#,
        r#"{"jsonrpc":"2.0","id":5,"error":{"code":1}}"#,
        r#"{"jsonrpc":"2.0","result":{}}"#,
        r#"{"id":5,"result":{}}"#,
    ];
    for text in table {
        let error = parse(text.as_bytes()).expect_err(text);
        assert_eq!((error.code, error.id), (INVALID_REQUEST, None), "{text}");
        assert!(error.is_response, "{text}");
    }
}

#[test]
fn an_error_that_belongs_to_no_request_has_no_id() {
    // A8: not even `null`, which no schema allows.
    let mut out = Vec::new();
    write_error(&mut out, None, PARSE_ERROR, "a\n\"b\"", None);
    let text = String::from_utf8(out).unwrap();
    let expected = r#"{"jsonrpc":"2.0","error":{"code":-32700,"message":"a\n\"b\""}}"#;
    assert_eq!(text, expected);
    let mut out = Vec::new();
    write_error(&mut out, Some(&Id::of_text("i")), -1, "m", Some(&json!({"a": [1]})));
    let text = String::from_utf8(out).unwrap();
    let expected =
        r#"{"jsonrpc":"2.0","id":"i","error":{"code":-1,"message":"m","data":{"a":[1]}}}"#;
    assert_eq!(text, expected);
}

#[test]
fn what_is_written_is_one_line_and_read_back_as_it_was() {
    // A13.
    let value = json!({"a\n": "b\u{2028}\r\u{85}", "c": [1, 0.5, null, true]});
    let mut out = Vec::new();
    write_request(&mut out, "x\n1", "m", &value);
    let params = value.as_object().unwrap().clone().into();
    let expected = RpcMessage::Request { id: Id::of_text("x\n1"), method: "m".to_owned(), params };
    assert_eq!(parse(&out), Ok(expected));
    assert!(!String::from_utf8(out).unwrap().contains(|c: char| c.is_control()));
    let mut out = Vec::new();
    write_notification(&mut out, "n", &Value::Null);
    assert_eq!(out, br#"{"jsonrpc":"2.0","method":"n"}"#);
}

#[test]
fn no_bytes_at_all_make_it_panic_and_what_is_read_has_its_id() {
    let mut random = Random::new(1);
    let seeds: [&[u8]; 3] = [
        br#"{"jsonrpc":"2.0","id":"a\"b","method":"m","params":{"id":[1,{"x":"]}"}]}}"#,
        br#"{"id":12,"jsonrpc":"2.0","result":{"a":"\\","b":{}}}"#,
        br#"{"jsonrpc":"2.0","error":{"code":-1,"message":"x"},"id":null}"#,
    ];
    let alphabet = b"{}[]\",:\\ \n0idx\xc3\xa9-.e";
    for round in 0..100_000 {
        let mut text = seeds[random.below(3) as usize].to_vec();
        for _ in 0..1 + random.below(3) {
            let place = random.below(text.len() as u64) as usize;
            let byte = alphabet[random.below(alphabet.len() as u64) as usize];
            match random.below(3) {
                0 => text[place] = byte,
                1 => text.insert(place, byte),
                _ => drop(text.remove(place)),
            }
        }
        if let Ok(RpcMessage::Request { id, .. }) = parse(&text) {
            let value: Value = serde_json::from_slice(&text).unwrap();
            assert_eq!(id.to_value(), value["id"], "round {round}");
        }
    }
}

/// Writes a random value, in which names occur twice now and then.
fn write_random(out: &mut String, random: &mut Random, depth: u32) {
    const JSON_LEAVES: usize = 5; // The others are no JSON, and are rare.
    let leaves = ["null", "1", "-0.5", "true", r#""a""#, "1e999", r#""\ud800""#, "x"];
    match random.below(if depth == 0 { 4 } else { 7 }) {
        0..4 => {
            let count = if random.below(20) == 0 { leaves.len() } else { JSON_LEAVES };
            *out += leaves[random.below(count as u64) as usize];
        }
        4 => {
            *out += "[";
            write_random(out, random, depth - 1);
            *out += "]";
        }
        _ => write_random_object(out, random, depth - 1, 0),
    }
}

fn write_random_object(out: &mut String, random: &mut Random, depth: u32, least: u64) {
    let names = [r#""_meta""#, r#""\u005fmeta""#, r#""b""#, r#""\u0062""#];
    *out += "{";
    for number in 0..least + random.below(4) {
        if number > 0 {
            *out += ",";
        }
        match random.below(8 + 4 * least) {
            place @ 0..4 => *out += names[place as usize],
            _ => *out += &format!("\"n{number}\""),
        }
        *out += ":";
        write_random(out, random, depth);
    }
    *out += "}";
}

#[test]
fn parameters_are_read_like_any_other_json() {
    let mut random = Random::new(1);
    let (mut read_count, mut refused_count) = (0, 0);
    for round in 0..20_000 {
        let mut text = r#"{"jsonrpc":"2.0","id":1,"method":"m","params":"#.to_owned();
        let least = if round % 8 == 0 { 15 } else { 0 };
        write_random_object(&mut text, &mut random, 3, least);
        text += "}";
        match (parse(text.as_bytes()), strict::read(text.as_bytes())) {
            (Ok(RpcMessage::Request { params, .. }), Ok(mut tree)) => {
                assert_eq!(Value::Object(params.clone().into_map()), tree["params"], "{text}");
                let Value::Object(members) = tree["params"].take() else { panic!("{text}") };
                assert_eq!(Parameters::from(members), params, "{text}");
                read_count += 1;
            }
            (Err(malformed), Err(unreadable)) => {
                assert_eq!(malformed.message, format!("the message {unreadable}"), "{text}");
                refused_count += 1;
            }
            (read, tree) => panic!("{text}: {read:?}, {tree:?}"),
        }
    }
    assert!(read_count > 1_000 && refused_count > 1_000, "{read_count} {refused_count}");
}
