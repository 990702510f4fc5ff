//! Documents, compared with their full text.

use serde_json::{Value, json};

use super::ListAsk;
use super::call_tests::{id, token};
use super::documents::{
    self, Clock, Listed, all_progress, created, execution, executions, progress, result,
};
use crate::api::spelled;
use crate::base::{Handle, Instant, SubscriberId};
use crate::engine::{Hold, Status, SubscriberPlace, SubscriberStatus};
use crate::memory::ClockAnchor;
use crate::stream::{
    ExecutionState, Exit, Kinds, LagLimit, Outcome, Policy, Progress, Terms, Totals,
};
use crate::tool::ToolSpec;

const fn at_ms(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

/// The present: 5 s on the monotonic clock, and 8 s after 1970.
const CLOCK: Clock =
    Clock { now: at_ms(5_000), anchor: ClockAnchor { wall_us: 8_000_000, mono_ns: 5_000_000_000 } };

/// Returns a status with as few known values as possible.
pub fn bare() -> Status {
    Status {
        id: id(1),
        token: None,
        state: ExecutionState::Queued,
        outcome: None,
        head_seq: 0,
        tail_seq: 1,
        totals: Totals::ZERO,
        chunks_expected: None,
        progress: None,
        subscriber_count: 0,
        gated: false,
        holds: false,
        opened_at: at_ms(4_000),
        ended_at: None,
        error: None,
        exit: None,
        ring: None,
    }
}

/// Returns a status in which every value is known.
pub fn full() -> Status {
    Status {
        token: Some(token()),
        state: ExecutionState::Ended(Outcome::TimedOut),
        outcome: None,
        head_seq: 9,
        tail_seq: 4,
        totals: Totals { chunks: 9, bytes: 900 },
        chunks_expected: Some(12),
        progress: Some(Progress { progress: 1.5, total: Some(3.0), report_count: 7 }),
        subscriber_count: 2,
        gated: true,
        error: Some("too slow".into()),
        exit: Some(Exit::Signal(9)),
        ended_at: Some(at_ms(4_500)),
        ..bare()
    }
}

pub fn subscribers() -> [SubscriberStatus; 2] {
    let of = |index, policy, limit, place| SubscriberStatus {
        id: SubscriberId(Handle { index, generation: 1 }),
        place,
        terms: Terms { policy, limit, kinds: Kinds::ALL },
        next_seq: 5,
        lag: Totals { chunks: 4, bytes: 400 },
        missed: Totals { chunks: 1, bytes: 100 },
        gates: policy == Policy::Block,
        lost: policy == Policy::Block,
        since: at_ms(4_500),
    };
    [
        of(0, Policy::Block, LagLimit { chunks: 14, bytes: u64::MAX }, SubscriberPlace::Local),
        of(1, Policy::DropOldest, LagLimit { chunks: 10, bytes: 1_000 }, SubscriberPlace::Remote),
    ]
}

/// Returns the links of the execution of these tests.
fn links(token: Option<&str>) -> Value {
    let this = format!("/v1/executions/{}", id(1));
    let mut links = json!({
        "self": this, "events": format!("{this}/events"), "result": format!("{this}/result"),
        "output": format!("{this}/output"),
    });
    if let Some(token) = token {
        links["progress"] = format!("/v1/progress/{token}").into();
    }
    links
}

#[test]
fn an_execution_is_told_as_far_as_it_is_known() {
    let (a, t) = (id(1).to_string(), token().to_string());
    let expected = json!({
        "execution": a, "tool": "tool", "state": "queued", "chunks": 0, "bytes": 0,
        "head_seq": 0, "tail_seq": 1, "held_back": false, "held_back_by": [], "age_ms": 1_000,
        "created_at": "1970-01-01T00:00:07.000000Z",
        "subscribers": [], "links": links(None),
    });
    assert_eq!(
        execution(&bare(), "tool", (None, None), &[], None, (CLOCK.dates_of(&bare()), CLOCK)),
        expected
    );
    let texts = (Some("half"), Some("{\"a\":[1]}"));
    let expected = json!({
        "execution": a, "tool": "tool", "token": t, "state": "timed_out",
        "progress": {
            "progress": 1.5, "total": 3, "percentage": 50, "message": "half",
            "context": {"a": [1]},
        },
        "chunks": 9, "bytes": 900, "head_seq": 9, "tail_seq": 4, "total_chunks": 12,
        "held_back": true, "held_back_by": ["s0.1"], "age_ms": 1_000,
        "created_at": "1970-01-01T00:00:07.000000Z", "ended_at": "1970-01-01T00:00:07.500000Z",
        "subscribers": [
            {
                "subscriber": "s0.1", "place": "local", "policy": "block",
                "limits": {"max_chunks": 14}, "next_seq": 5, "lag_chunks": 4, "lag_bytes": 400,
                "missed_chunks": 1, "missed_bytes": 100, "holds_back": true, "lost": true,
                "age_ms": 500,
            },
            {
                "subscriber": "s1.1", "place": "remote", "policy": "drop_oldest",
                "limits": {"max_chunks": 10, "max_bytes": 1_000}, "next_seq": 5, "lag_chunks": 4,
                "lag_bytes": 400, "missed_chunks": 1, "missed_bytes": 100, "holds_back": false,
                "lost": false, "age_ms": 500,
            },
        ],
        "error": "too slow", "exit": {"signal": 9}, "links": links(Some(&t)),
    });
    assert_eq!(
        execution(&full(), "tool", texts, &subscribers(), None, (CLOCK.dates_of(&full()), CLOCK)),
        expected
    );
    // No reader has come yet for which the ring holds its chunks.
    let held = Status { gated: true, holds: true, ..bare() };
    let told = execution(&held, "tool", (None, None), &[], None, (CLOCK.dates_of(&held), CLOCK));
    assert_eq!((&told["held_back"], &told["held_back_by"]), (&json!(true), &json!(["hold"])));
    // A context that is not JSON is a text.
    let told = execution(
        &full(),
        "tool",
        (None, Some("{")),
        &[],
        Some("T-1_x"),
        (CLOCK.dates_of(&full()), CLOCK),
    );
    assert_eq!(told["progress"]["context"], "{");
    assert_eq!(told["links"]["events"], format!("/v1/executions/{a}/events?ticket=T-1_x"));
}

#[test]
fn a_page_of_all_shards_has_the_order_of_creation_and_says_where_the_rest_begins() {
    let item = |index: u32, ms: u64| {
        let status = Status { id: id(index), opened_at: at_ms(ms), ..bare() };
        executions([Listed::of(&status, "t", CLOCK.dates_of(&status))], CLOCK)["executions"][0]
            .clone()
    };
    // Each shard sends one more than the limit, if it has one.
    let list = vec![item(5, 4_000), item(1, 1_000), item(2, 2_000), item(4, 2_000)];
    let ask = |limit| ListAsk { limit, ..ListAsk::default() };
    let ids = |document: &Value| -> Vec<String> {
        let all = document["executions"].as_array().unwrap();
        all.iter().map(|item| item["execution"].as_str().unwrap().to_owned()).collect()
    };
    let expected = [1, 2, 4, 5].map(|index| id(index).to_string());
    let mut twins = expected[1..3].to_vec();
    twins.sort();
    let expected = [&expected[..1], &twins, &expected[3..]].concat();
    let all = documents::listed(list.clone(), &ask(4), &[], &[]);
    assert_eq!((ids(&all), all.get("next")), (expected.clone(), None));
    let page = documents::listed(list, &ask(3), &[7], &["c".into()]);
    let next = format!("19700101000005000000{}", expected[2]);
    assert_eq!((ids(&page), &page["next"]), (expected[..3].to_vec(), &json!(next)));
    assert_eq!((&page["dead_shards"], &page["missing_nodes"]), (&json!([7]), &json!(["c"])));
}

#[test]
fn every_state_has_its_name() {
    let names = [
        (ExecutionState::Queued, "queued"),
        (ExecutionState::Running, "running"),
        (ExecutionState::Draining, "draining"),
        (ExecutionState::Ended(Outcome::Completed), "completed"),
        (ExecutionState::Ended(Outcome::Failed), "failed"),
        (ExecutionState::Ended(Outcome::Cancelled), "cancelled"),
        (ExecutionState::Ended(Outcome::TimedOut), "timed_out"),
    ];
    for (state, name) in names {
        let expected = json!({"execution": id(1).to_string(), "state": name});
        assert_eq!(documents::state(id(1), state), expected);
    }
}

#[test]
fn what_was_created_has_links_to_what_can_be_asked() {
    let (a, t) = (id(1).to_string(), token().to_string());
    let this = format!("/v1/executions/{a}");
    assert_eq!(documents::location(id(1)), this);
    let mut expected = json!({
        "execution": a, "token": t, "tool": "tool", "state": "running", "links": links(Some(&t)),
    });
    let created = |token, ticket| {
        spelled(&created(id(1), token, "tool", ExecutionState::Running, Hold::Newest, ticket))
    };
    assert_eq!(created(Some(token()), None), expected);
    expected.as_object_mut().unwrap().shift_remove("token");
    expected["links"] = links(None);
    assert_eq!(created(None, None), expected);
    expected["links"]["events"] = format!("{this}/events?ticket=T-1_x").into();
    assert_eq!(created(None, Some("T-1_x")), expected);
}

#[test]
fn lists_have_a_line_each() {
    let (bare, full) = (bare(), full());
    let line = |state: &str, chunks: u64, bytes: u64, subscribers: u32| {
        json!({
            "execution": id(1).to_string(), "tool": "tool", "state": state, "chunks": chunks,
            "bytes": bytes, "subscribers": subscribers, "age_ms": 1_000,
            "created_at": "1970-01-01T00:00:07.000000Z",
        })
    };
    let mut ended = line("timed_out", 9, 900, 2);
    ended["ended_at"] = "1970-01-01T00:00:07.500000Z".into();
    let expected = json!({"executions": [line("queued", 0, 0, 0), ended]});
    assert_eq!(
        executions([&bare, &full].map(|one| Listed::of(one, "tool", CLOCK.dates_of(one))), CLOCK),
        expected
    );
    assert_eq!(executions([], CLOCK), json!({ "executions": [] }));
    let (t, e) = (token().to_string(), id(1).to_string());
    let rows = [
        (token(), id(1), None, (None, None)),
        (token(), id(1), full.progress, (Some("half"), None)),
    ];
    let expected = json!({"progress": [
        {"token": t, "execution": e},
        {"token": t, "execution": e, "progress": {
            "progress": 1.5, "total": 3, "percentage": 50, "message": "half",
        }},
    ]});
    assert_eq!(all_progress(rows), expected);
    let specs = [ToolSpec::new("a", "A."), ToolSpec::new("b", "B.")];
    assert_eq!(documents::tools(&specs)["tools"], json!([specs[0].to_json(), specs[1].to_json()]));
}

#[test]
fn a_token_tells_how_far_it_is() {
    let (t, e) = (token().to_string(), id(1).to_string());
    let expected = json!({"token": t, "execution": e, "state": "queued"});
    assert_eq!(progress(token(), &bare(), (None, None)), expected);
    // A total of nothing has no percentage. Numbers are no longer than necessary.
    let unknown = Progress { progress: 0.1, total: None, report_count: 1 };
    let status = Status { progress: Some(unknown), ..bare() };
    let told = progress(token(), &status, (None, None));
    assert_eq!(told["progress"].to_string(), "{\"progress\":0.1}");
    let vast = Progress { progress: 1e300, total: Some(5e-324), report_count: 1 };
    let status = Status { progress: Some(vast), ..bare() };
    assert_eq!(progress(token(), &status, (None, None))["progress"].get("percentage"), None);
}

#[test]
fn a_result_is_text_if_it_is_and_says_whether_it_is_all() {
    let whole = Status { tail_seq: 1, totals: Totals { chunks: 9, bytes: 3 }, ..full() };
    let told = |status: &Status, data: &[u8]| {
        let document = result(status, data);
        [&document["complete"], &document["encoding"], &document["data"]].map(Value::clone)
    };
    assert_eq!(
        told(&whole, "\u{20ac}".as_bytes()),
        [json!(true), json!("text"), json!("\u{20ac}")]
    );
    assert_eq!(told(&whole, b"\xff\xfe\xfb"), [json!(true), json!("base64"), json!("//77")]);
    assert_eq!(told(&whole, b"ab"), [json!(false), json!("text"), json!("ab")]);
    assert_eq!(told(&full(), b"abc"), [json!(false), json!("text"), json!("abc")]);
    assert_eq!(told(&bare(), b""), [json!(true), json!("text"), json!("")]);
    let expected = json!({
        "execution": id(1).to_string(), "state": "timed_out", "chunks": 9, "bytes": 3,
        "complete": true, "encoding": "text", "data": "abc", "exit": {"signal": 9},
        "error": "too slow",
    });
    assert_eq!(result(&whole, b"abc"), expected);
    let coded = Status { exit: Some(Exit::Code(3)), error: None, ..whole };
    assert_eq!(result(&coded, b"")["exit"], json!({"code": 3}));
    assert_eq!(result(&coded, b"").get("error"), None);
}

/// Readers of the text, such as people, find the members where they have always been.
#[test]
fn members_have_their_order() {
    let (full, texts) = (full(), (Some("m"), Some("{\"b\": 2.0}")));
    let created =
        created(id(1), Some(token()), "a", ExecutionState::Running, Hold::default(), None);
    let created = spelled(&created);
    let execution =
        execution(&full, "a", texts, &subscribers(), None, (CLOCK.dates_of(&full), CLOCK));
    let executions = executions([Listed::of(&full, "a", CLOCK.dates_of(&full))], CLOCK);
    let result = result(&full, b"a");
    let of_token = progress(token(), &full, texts);
    let all = all_progress([(token(), id(1), full.progress, texts)]);
    let table = [
        (&created, "execution token tool state hold links"),
        (
            &execution,
            "execution tool token state progress chunks bytes head_seq tail_seq total_chunks \
             held_back held_back_by age_ms created_at ended_at subscribers error exit links",
        ),
        (&execution["links"], "self events result output progress"),
        (
            &execution["subscribers"][1],
            "subscriber place policy limits next_seq lag_chunks lag_bytes missed_chunks \
             missed_bytes holds_back lost age_ms",
        ),
        (
            &executions["executions"][0],
            "execution tool state chunks bytes subscribers age_ms created_at ended_at",
        ),
        (&result, "execution state chunks bytes complete encoding data exit error"),
        (&of_token, "token execution state progress"),
        (&all["progress"][0], "token execution progress"),
    ];
    for (document, expected) in table {
        let names = document.as_object().unwrap().keys().map(String::as_str);
        assert_eq!(names.collect::<Vec<_>>().join(" "), expected);
    }
    let numbers = r#"{"progress":1.5,"total":3,"percentage":50,"message":"m","context":{"b":2.0}}"#;
    assert_eq!(of_token["progress"].to_string(), numbers);
}
