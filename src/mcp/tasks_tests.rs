//! Tasks, in both forms.

use serde_json::{Value, json};

use super::call_tests::META;
use super::results::Results;
use super::results_tests::{form, page};
use super::shapes::check;
use super::tasks::{Detail, Placement, Task, TaskState, placement, ttl_ms};
use super::testing::context;
use super::{META_EXECUTION, McpFault, ServerInfo, Version, codes, questions};
use crate::limits;
use crate::tool::TaskSupport;

const OLD: Version = Version::V2025_11_25;
const NEW: Version = Version::V2026_07_28;

fn task(state: TaskState) -> Task<'static> {
    Task {
        id: "k",
        state,
        message: Some("m"),
        created_us: 1_764_000_000_123_456,
        updated_us: 1_764_000_001_000_000,
        ttl_ms: Some(60_000),
    }
}

#[test]
fn a_task_is_told_in_the_words_of_each_form() {
    // A46, A48, A49, B38.
    let server = ServerInfo::default();
    let (old, new) = (Results::new(OLD, &server), Results::new(NEW, &server));
    let working = task(TaskState::Working);
    let created = old.task_created(&working);
    check(OLD, "CreateTaskResult", &created);
    assert_eq!(created["task"]["createdAt"], "2025-11-24T16:00:00.123456Z");
    assert_eq!(
        (&created["task"]["ttl"], &created["task"]["status"]),
        (&60_000.into(), &"working".into())
    );
    let created = new.task_created(&Task { ttl_ms: None, ..working });
    check(NEW, "CreateTaskResult", &created);
    assert_eq!((&created["resultType"], &created["ttlMs"]), (&json!("task"), &Value::Null));
    let asked = questions::requests(&[form()]);
    let result = json!({"content": [], "resultType": "complete"});
    let fault = McpFault::internal("it broke");
    for (state, detail) in [
        (TaskState::Working, Detail::None),
        (TaskState::InputRequired, Detail::Questions(&asked)),
        (TaskState::Completed, Detail::Result(&result)),
        (TaskState::Failed, Detail::Fault(&fault)),
        (TaskState::Cancelled, Detail::None),
    ] {
        check(OLD, "GetTaskResult", &old.task(&task(state), detail));
        check(NEW, "GetTaskResult", &new.task(&task(state), detail));
        let cancelled = old.task_cancelled(&task(state));
        check(OLD, "CancelTaskResult", &cancelled);
        assert_eq!(cancelled["status"], state.name());
        check(NEW, "CancelTaskResult", &new.task_cancelled(&task(state)));
        let has_poll = new.task(&task(state), detail).get("pollIntervalMs").is_some();
        assert_eq!(has_poll, !state.is_terminal());
    }
    check(NEW, "UpdateTaskResult", &new.empty());
    let list = old.tasks(page(&[task(TaskState::Failed).to_json(OLD).into()]));
    check(OLD, "ListTasksResult", &list);
}

#[test]
fn the_result_of_a_task_is_that_of_its_call_and_names_the_task() {
    // A48, A49.
    let server = ServerInfo::default();
    let results = Results::new(OLD, &server);
    let call = Value::from(results.call_refused("no", META));
    let result = results.task_result("k", &call);
    check(OLD, "CallToolResult", &result);
    assert_eq!(result["_meta"]["io.modelcontextprotocol/related-task"], json!({"taskId": "k"}));
    assert_eq!((&result["content"], &result["isError"]), (&call["content"], &json!(true)));
    assert_eq!(result["_meta"][META_EXECUTION], "exe");
}

#[test]
fn a_task_goes_only_where_it_may() {
    // A47, B38.
    let states = [
        TaskState::Working,
        TaskState::InputRequired,
        TaskState::Completed,
        TaskState::Failed,
        TaskState::Cancelled,
    ];
    for from in states {
        for to in states {
            let may = !from.is_terminal() && from != to;
            assert_eq!(from.may_become(to), may, "{from:?} {to:?}");
        }
    }
    assert_eq!(TaskState::of_result(OLD, true), TaskState::Failed);
    assert_eq!(TaskState::of_result(NEW, true), TaskState::Completed);
    assert_eq!(TaskState::of_result(OLD, false), TaskState::Completed);
}

#[test]
fn a_call_is_a_task_where_tool_and_client_agree() {
    // A38, A45, B37.
    use TaskSupport::{Forbidden, Optional, Preferred, Required};
    let tasks = json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
    let wish = json!({"task": {"ttl": 5}});
    let (direct, as_task) = (Ok(Placement::Direct), Ok(Placement::Task));
    let (not_found, missing) = (Err(codes::METHOD_NOT_FOUND), Err(codes::MISSING_CAPABILITY));
    let older = Version::V2025_06_18;
    let table = [
        (OLD, json!({}), json!({}), [direct, direct, direct, not_found]),
        (OLD, json!({}), wish.clone(), [not_found, as_task, as_task, as_task]),
        (older, json!({}), wish, [direct, direct, direct, direct]),
        (NEW, json!({}), json!({}), [direct, direct, direct, missing]),
        (NEW, tasks, json!({}), [direct, direct, as_task, as_task]),
    ];
    for (version, capabilities, params, expected) in table {
        let context = context(version, capabilities, params);
        let got = [Forbidden, Optional, Preferred, Required]
            .map(|support| placement(&context, support).map_err(|fault| fault.code));
        assert_eq!(got, expected, "{version:?}");
    }
}

#[test]
fn a_task_is_kept_as_long_as_its_client_wishes_within_limits() {
    let kept = |params: Value| ttl_ms(&context(OLD, json!({}), params));
    assert_eq!(kept(json!({})), limits::MCP_TASK_TTL_DEFAULT.as_millis() as u64);
    assert_eq!(kept(json!({"task": {"ttl": 1234}})), 1_234);
    let max = limits::MCP_TASK_TTL_MAX.as_millis() as u64;
    assert_eq!(kept(json!({"task": {"ttl": u64::MAX}})), max);
}
