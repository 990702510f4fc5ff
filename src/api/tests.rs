//! Documents are written as their rows say, and read only if they are sound.

use serde_json::json;

use super::*;

/// Returns a document with all members, in the order of their rows.
fn subscriber() -> Value {
    json!({
        "subscriber": "s0.1", "place": "local", "policy": "block", "limits": {"max_chunks": 6},
        "next_seq": 8, "lag_chunks": 9, "lag_bytes": 10, "missed_chunks": 11, "missed_bytes": 12,
        "holds_back": true, "lost": false, "age_ms": 13,
    })
}

fn fault<T: Document + std::fmt::Debug>(value: Value) -> String {
    read::<T>(value, "the answer").unwrap_err().text
}

#[test]
fn a_document_is_written_as_it_was_read() {
    let (id, token) = ("0".repeat(26), "0".repeat(39));
    let links = json!({"self": "/a", "events": "/b", "result": "/c", "output": "/d"});
    let document = json!({
        "execution": id, "tool": "t", "token": token, "state": "timed_out",
        "progress": {
            "progress": 1, "total": 2.5, "percentage": 40, "message": "m", "context": {"a": [1]},
        },
        "chunks": 1, "bytes": 2, "head_seq": 3, "tail_seq": 4, "total_chunks": 5,
        "held_back": true, "held_back_by": ["s0.1", "hold"], "age_ms": 6,
        "created_at": "c", "ended_at": "e",
        "subscribers": [subscriber()], "error": "e", "exit": {"signal": 9}, "links": links,
    });
    let read = read::<Execution>(document.clone(), "the answer").unwrap();
    assert_eq!(spelled(&read).to_string(), document.to_string());
    let names: Vec<&str> = Execution::ROWS.iter().map(|row| row.name).collect();
    assert!(document.as_object().unwrap().keys().eq(names), "the order is that of the rows");
}

#[test]
fn a_tool_and_an_error_have_their_order() {
    let tool = r#"{"name":"t","description":"T.","input_schema":{"type":"object"},"#;
    let times = r#""timeouts":{"first_chunk_ms":1,"inactivity_ms":null,"total_ms":null},"#;
    let subscribers = r#"{"policy":"block","max_chunks":null,"max_bytes":null}"#;
    let mut spec = crate::tool::ToolSpec::new("t", "T.");
    let first_chunk = Some(std::time::Duration::from_millis(1));
    spec.timeouts = crate::engine::Timeouts { first_chunk, ..crate::engine::Timeouts::NONE };
    spec.title = Some("u".to_owned());
    let rest = format!(r#""subscribers":{subscribers},"title":"u"}}"#);
    let expected = format!(r#"{tool}"task_support":"optional",{times}{rest}"#);
    assert_eq!(spec.to_json().to_string(), expected);
    let (code, message) = ("c".to_owned(), "m".to_owned());
    let error = Problem {
        code,
        message,
        field: Some("f".to_owned()),
        limit: Some(1),
        node: Some("n".to_owned()),
        url: None,
    };
    let expected = r#"{"error":{"code":"c","message":"m","field":"f","limit":1,"node":"n"}}"#;
    assert_eq!(spelled(&ErrorReply { error }).to_string(), expected);
}

#[test]
fn what_is_unknown_is_ignored_and_null_is_absent() {
    let mut document = json!({"code": "c", "message": "m", "field": null, "more": [{}]});
    let problem: Problem = read(document.clone(), "the error").unwrap();
    assert_eq!(problem.field, None);
    document.as_object_mut().unwrap().retain(|name, _| matches!(&**name, "code" | "message"));
    assert_eq!(spelled(&problem), document);
    let none = OrNull(None);
    let limits = TimeLimits { first_chunk_ms: none, inactivity_ms: none, total_ms: none };
    let null = json!({"first_chunk_ms": null, "inactivity_ms": null, "total_ms": null});
    assert_eq!(spelled(&limits), null);
    assert_eq!(read::<TimeLimits>(json!({}), "the limits").unwrap(), limits);
}

/// Spoils each member of a document in turn. The error names the member.
#[test]
fn every_member_that_is_wrong_is_named() {
    for row in Subscriber::ROWS {
        for wrong in [json!([0]), json!({"a": 1}), json!(-1), json!("\u{1b}[2J"), Value::Null] {
            let mut document = subscriber();
            if row.name == "subscriber" && wrong.is_string() {
                continue; // Any text is the name of a subscriber.
            }
            document[row.name] = wrong;
            let text = fault::<Subscriber>(document.clone());
            assert!(text.contains(row.name), "{document}: {text}");
        }
        let mut document = subscriber();
        document.as_object_mut().unwrap().remove(row.name);
        let expected = format!("`{}` of the answer is missing", row.name);
        assert_eq!(fault::<Subscriber>(document), expected);
    }
    let nested = |limits: Value| {
        let mut document = subscriber();
        document["limits"] = limits;
        fault::<Subscriber>(document)
    };
    assert_eq!(nested(json!({})), "`max_chunks` of limits is missing");
    assert_eq!(
        nested(json!({"max_chunks": 1u64 << 32})),
        "`max_chunks` of limits is not a number in its range"
    );
    // `serde` would read an array as a document.
    assert_eq!(nested(json!([1, 2])), "limits is not a JSON object");
    assert_eq!(fault::<Tools>(json!([[]])), "the answer is not a JSON object");
    assert_eq!(fault::<Tools>(json!({"tools": [[]]})), "tools is not a JSON object");
    assert_eq!(fault::<Tools>(json!({"tools": {}})), "`tools` of the answer is not an array");
}

#[test]
fn an_exit_is_a_code_or_a_signal() {
    let read = |exit| serde_json::from_value::<crate::stream::Exit>(exit).ok();
    assert_eq!(read(json!({"code": 3, "signal": null})), Some(crate::stream::Exit::Code(3)));
    assert_eq!(read(json!({"signal": 9, "core": true})), Some(crate::stream::Exit::Signal(9)));
    for wrong in
        [json!({"code": 1u64 << 31}), json!({"code": 1, "signal": 1}), json!({}), json!([3])]
    {
        assert_eq!(read(wrong.clone()), None, "{wrong}");
    }
}

#[test]
fn every_text_of_a_row_is_a_sentence_and_every_schema_has_its_name_once() {
    let schemas = schemas();
    let count: usize = of_files().iter().map(Vec::len).sum();
    assert_eq!(schemas.len(), count + 6, "a name occurs twice");
    for (title, schema) in &schemas {
        let properties = schema["properties"].as_object().into_iter().flatten();
        for (name, schema) in properties {
            let text = schema["description"].as_str().unwrap();
            assert!(text.ends_with('.'), "{title}.{name}: {text}");
        }
    }
}

/// Leaves out each member of an answer in turn. The error names those that must be there.
fn assert_is_strict<T: Document + std::fmt::Debug>(full: &Value) {
    assert!(read::<T>(full.clone(), "the answer").is_ok(), "{full}");
    for row in T::ROWS {
        let mut document = full.clone();
        let known = document.as_object_mut().unwrap().remove(row.name).is_some();
        assert!(known, "{} has no `{}`", T::TITLE, row.name);
        match read::<T>(document, "the answer") {
            Ok(_) => assert!(row.is_optional, "{} does without `{}`", T::TITLE, row.name),
            Err(fault) => {
                let expected = format!("`{}` of the answer is missing", row.name);
                assert_eq!(fault.text, expected);
                assert!(!row.is_optional, "{} needs `{}`", T::TITLE, row.name);
            }
        }
    }
}

#[test]
fn a_member_that_an_answer_lacks_is_named() {
    let (id, token) = ("0".repeat(26), "0".repeat(39));
    let links =
        json!({"self": "/a", "events": "/b", "result": "/c", "output": "/d", "progress": "/e"});
    let progress = json!({
        "progress": 1, "total": 2, "percentage": 50, "message": "m", "context": {},
    });
    let summary = json!({
        "execution": id, "node": "n", "tool": "t", "state": "running", "chunks": 1, "bytes": 2,
        "subscribers": 3, "thread": "t", "age_ms": 4, "created_at": "c", "ended_at": "e",
    });
    let ended = json!({
        "execution": id, "state": "failed", "chunks": 1, "bytes": 2, "complete": true,
        "encoding": "text", "data": "d", "exit": {"code": 1}, "error": "e",
    });
    let created = json!({
        "execution": id, "token": token, "tool": "t", "state": "queued",
        "hold": {"until_read_ms": 1}, "links": links,
    });
    let of = json!({"token": token, "execution": id, "progress": progress});
    assert_is_strict::<Created>(&created);
    assert_is_strict::<KeptBeginning>(&created["hold"]);
    assert_is_strict::<Links>(&links);
    assert_is_strict::<StateOf>(&json!({"execution": id, "state": "running"}));
    assert_is_strict::<Executions>(&json!({
        "executions": [summary], "next": "n", "dead_shards": [1], "missing_nodes": ["c"],
    }));
    assert_is_strict::<Summary>(&summary);
    assert_is_strict::<Ended<'_>>(&ended);
    assert_is_strict::<Progress>(&progress);
    assert_is_strict::<ProgressOf>(&of);
    assert_is_strict::<AllProgress>(&json!({"progress": [of], "dead_shards": [1]}));
    let problem = json!({
        "code": "c", "message": "m", "field": "f", "limit": 1, "node": "n", "url": "u",
    });
    assert_is_strict::<Problem>(&problem);
    assert_is_strict::<ErrorReply>(&json!({ "error": problem }));
    assert_is_strict::<Subscriber>(&subscriber());
}
