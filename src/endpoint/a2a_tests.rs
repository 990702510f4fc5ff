//! Requests of A2A over both bindings, and the words of its errors.

use serde_json::{Value, json};

use super::call_tests::id;
use super::exchange::{answered, called, get, post};
use crate::endpoint::front::{FrontFormat, TaskAnswer};
use crate::endpoint::{
    ApiCall, Execute, FrontProtocol, StreamFormat, TaskAsk, TaskCall, TaskSearch,
};

/// Adds the header with the version, and another one if it is not empty.
fn speaking(request: &str, more: &str) -> String {
    request.replacen("\r\n", &format!("\r\nA2A-Version: 1.0\r\n{more}"), 1)
}

fn rpc(method: &str, params: &Value) -> String {
    let body = json!({ "jsonrpc": "2.0", "id": "r1", "method": method, "params": params });
    speaking(&post("/a2a", &body.to_string()), "")
}

fn rest(path: &str, body: &Value) -> String {
    let request = post(path, &body.to_string());
    speaking(&request.replacen("application/json", "application/a2a+json", 1), "")
}

fn message(parts: &Value) -> Value {
    let message = json!({
        "messageId": "m", "role": "ROLE_USER", "contextId": "c", "parts": parts,
        "metadata": { "max_steps": 2 },
    });
    json!({ "message": message, "configuration": { "historyLength": 3 } })
}

fn executed(request: &str) -> Execute {
    match called(request) {
        ApiCall::Execute(execute) => *execute,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_message_runs_an_agent_or_a_tool() {
    let text = message(&json!([{ "text": "count" }]));
    let messages = json!([{ "role": "user", "content": "count" }]);
    for (request, answer, reply_to) in [
        (rpc("SendMessage", &text), TaskAnswer::Sent, Some("\"r1\"")),
        (rpc("SendStreamingMessage", &text), TaskAnswer::Events, Some("\"r1\"")),
        (rest("/a2a/message:send", &text), TaskAnswer::Sent, None),
        (rest("/a2a/message:stream", &text), TaskAnswer::Events, None),
    ] {
        let run = executed(&request);
        assert_eq!(run.arguments, json!({ "messages": messages, "max_steps": 2 }));
        let format = StreamFormat::Front(FrontFormat::A2a { answer });
        assert_eq!(run.stream.map(|(format, _)| format), Some(format), "{request}");
        let front = run.front.unwrap();
        assert_eq!((front.protocol, front.thread_id.as_deref()), (FrontProtocol::Task, Some("c")));
        assert_eq!((front.reply_to.as_deref(), front.history_max), (reply_to, Some(3)));
    }
    let data = json!([{ "data": { "tool": "t", "arguments": { "a": 1 } } }]);
    let run = executed(&rest("/a2a/message:stream", &message(&data)));
    assert_eq!((run.tool.as_str(), run.arguments), ("t", json!({ "a": 1 })));
    let mut at_once = text;
    at_once["configuration"] = json!({ "returnImmediately": true });
    assert_eq!(executed(&rpc("SendMessage", &at_once)).stream, None);
    let mut further = message(&json!([{ "text": "x" }]));
    further["message"]["taskId"] = id(1).to_string().into();
    let call = TaskCall {
        execution: id(1),
        ask: TaskAsk::Continue,
        reply_to: Some("\"r1\"".into()),
        history_max: Some(3),
    };
    assert_eq!(called(&rpc("SendMessage", &further)), ApiCall::Task(call.into()));
}

#[test]
fn tasks_are_named_by_their_executions() {
    let (name, at) = (id(1).to_string(), format!("/a2a/tasks/{}", id(1)));
    let call = |ask, reply_to: Option<&str>, history_max| {
        let reply_to = reply_to.map(Box::from);
        ApiCall::Task(TaskCall { execution: id(1), ask, reply_to, history_max }.into())
    };
    let subscribe = |since| TaskAsk::Subscribe { since };
    let one = json!({ "id": name });
    for (request, expected) in [
        (
            rpc("GetTask", &json!({ "id": name, "historyLength": 0 })),
            call(TaskAsk::Get, Some("\"r1\""), Some(0)),
        ),
        (rpc("CancelTask", &one), call(TaskAsk::Cancel, Some("\"r1\""), None)),
        (rpc("SubscribeToTask", &one), call(subscribe(None), Some("\"r1\""), None)),
        (speaking(&get(&format!("{at}?historyLength=2")), ""), call(TaskAsk::Get, None, Some(2))),
        (rest(&format!("{at}:cancel"), &json!({})), call(TaskAsk::Cancel, None, None)),
        (rest(&format!("{at}:subscribe"), &json!({})), call(subscribe(None), None, None)),
        (
            speaking(&get(&format!("{at}:subscribe")), "Last-Event-ID: 9\r\n"),
            call(subscribe(Some(9)), None, None),
        ),
    ] {
        assert_eq!(called(&request), expected, "{request}");
    }
    let search = TaskSearch {
        context: Some("c".into()),
        state: Some("TASK_STATE_WORKING"),
        page_size: 7,
        after: None,
        since_us: Some(1_000_000),
    };
    let query = "contextId=c&status=TASK_STATE_WORKING&pageSize=7\
                 &statusTimestampAfter=1970-01-01T00:00:01Z";
    let listed = speaking(&get(&format!("/a2a/tasks?{query}")), "");
    assert_eq!(called(&listed), ApiCall::Tasks(search.clone().into()));
    let params = json!({
        "contextId": "c", "status": "TASK_STATE_WORKING", "pageSize": 7, "pageToken": "",
        "statusTimestampAfter": "1970-01-01T00:00:01Z",
    });
    assert_eq!(called(&rpc("ListTasks", &params)), ApiCall::Tasks(search.into()));
    let card = |origin: &str| ApiCall::AgentCard(origin.into());
    assert_eq!(called(&get("/.well-known/agent-card.json")), card("://h"));
    assert_eq!(called(&rpc("GetExtendedAgentCard", &json!({}))), card("://h"));
    let secure = get("/.well-known/agent-card.json");
    let secure = secure.replacen("\r\n", "\r\nX-Forwarded-Proto: https\r\n", 1);
    assert_eq!(called(&secure), card("https://h"));
}

#[test]
fn errors_have_the_words_of_each_binding() {
    let text = message(&json!([{ "text": "x" }]));
    let file = message(&json!([{ "raw": "AAAA" }]));
    let mut push = text.clone();
    push["configuration"]["taskPushNotificationConfig"] = json!({ "url": "http://x" });
    let empty = json!({ "message": { "messageId": "m", "role": "ROLE_USER", "parts": [] } });
    for (params, code, status, reason) in [
        (&file, -32005, 400, "CONTENT_TYPE_NOT_SUPPORTED"),
        (&push, -32003, 400, "PUSH_NOTIFICATION_NOT_SUPPORTED"),
        (&empty, -32602, 400, "INVALID_PARAMS"),
    ] {
        let said = answered(&rpc("SendMessage", params));
        let body = said.json();
        assert_eq!((said.status, &body["id"]), (200, &json!("r1")), "{body}");
        assert_eq!(body["error"]["code"], code, "{body}");
        assert_eq!(body["error"]["data"][0]["reason"], reason, "{body}");
        let said = answered(&rest("/a2a/message:send", params));
        let body = said.json();
        assert_eq!((said.status, &body["error"]["code"]), (status, &json!(status)), "{body}");
        assert_eq!(body["error"]["details"][0]["reason"], reason, "{body}");
        assert!(body["error"]["message"].is_string() && body["error"]["status"].is_string());
    }
    let of = |request: &str| answered(request).json()["error"]["code"].clone();
    assert_eq!(of(&rpc("message/send", &text)), -32601);
    assert_eq!(of(&rpc("GetTask", &json!({}))), -32602);
    assert_eq!(of(&rpc("GetTask", &json!({ "id": "strange" }))), -32001);
    assert_eq!(of(&rpc("CreateTaskPushNotificationConfig", &json!({}))), -32003);
    assert_eq!(of(&speaking(&post("/a2a", "{"), "")), -32700);
    assert_eq!(of(&speaking(&post("/a2a", "[]"), "")), -32600);
    assert_eq!(of(&speaking(&post("/a2a", "{\"id\":1}"), "")), -32600);
    // A client without the header speaks an older version.
    let older = answered(&post("/a2a/message:send", &text.to_string())).json();
    assert_eq!(older["error"]["details"][0]["reason"], "VERSION_NOT_SUPPORTED", "{older}");
    let unknown = answered(&speaking(&get("/a2a/tasks/strange"), ""));
    let push =
        answered(&speaking(&get(&format!("/a2a/tasks/{}/pushNotificationConfigs", id(1))), ""));
    assert_eq!(push.json()["error"]["details"][0]["reason"], "PUSH_NOTIFICATION_NOT_SUPPORTED");
    assert_eq!((unknown.status, &unknown.json()["error"]["status"]), (404, &json!("NOT_FOUND")));
}
