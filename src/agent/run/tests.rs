//! Tests of one behaviour of a run each, at the state machine. Models and tools follow the test.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;

use super::testing::{Driver, ScriptedTurn, config};
use crate::agent::{
    Arguments, Body, CancelReason, Config, Ended, Final, Hooks, Message, NetFault, NetFaultKind,
    NoHooks, Partial, Reason, RunAction, RunEvent, RunPart, RunState, StepChoice, StepState,
    Strategy,
};
use crate::base::{ExecutionId, Handle};
use crate::stream::{Gap, GapReason, Kind, Outcome};

fn eager() -> Config {
    Config { strategy: Strategy::Eager, ..config() }
}

fn execution(number: u64) -> ExecutionId {
    ExecutionId { shard: 0, slot: Handle { index: 1, generation: 1 }, nonce: number }
}

fn done(call: u32) -> RunEvent<'static> {
    RunEvent::ToolEnded { call, outcome: Outcome::Completed, exit: None, error: None }
}

fn chunk(call: u32, offset: u64, bytes: &[u8]) -> RunEvent<'_> {
    RunEvent::ToolChunk { call, seq: 1, offset, kind: Kind::Output, bytes, more: false }
}

fn reason(driver: &Driver) -> Reason {
    driver.run.is_over().expect("it is over").reason.clone()
}

/// A run whose model has called `read` and whose tool waits to be started.
fn after_one_call(config: Config) -> Driver {
    let mut driver = Driver::begun(config);
    driver.answer(&ScriptedTurn::calls(&[("c1", "read", r#"{"path":"a"}"#)]));
    driver
}

#[test]
fn an_answer_in_words_is_one_step() {
    let mut driver = Driver::begun(config());
    driver.answer(
        &ScriptedTurn { reasoning: "Hm.".to_owned(), ..ScriptedTurn::text("Hello, you.") }
            .tokens(7, 3),
    );
    let names = driver.names();
    assert_eq!(names[..2], ["ExecutionStarted", "StepStarted"]);
    assert_eq!(names[names.len() - 2..], ["StepCompleted", "ExecutionCompleted"]);
    assert!(names.contains(&"ReasoningDelta") && names.contains(&"TextDelta"));
    let state = driver.state();
    assert_eq!((state.text(), state.task.as_str()), ("Hello, you.", "Do it."));
    assert_eq!((state.usage.input_tokens, state.usage.output_tokens), (7, 3));
    let end = state.end.as_ref().unwrap();
    assert_eq!((&end.how, &end.reason), (&Ended::Completed, &Reason::Stop));
    assert_eq!(driver.run.messages().len(), 2);
}

#[test]
fn what_a_tool_says_is_streamed_and_told_the_model() {
    let mut driver = after_one_call(config());
    let [RunAction::Start { call: 1, tool, arguments }] =
        &driver.actions[driver.actions.len() - 1..]
    else {
        panic!("{:?}", driver.actions)
    };
    assert_eq!((tool.as_str(), arguments), ("read", &json!({"path": "a"})));
    driver.feed(RunEvent::ToolStarted { call: 1, execution: execution(1) });
    driver.feed(chunk(1, 0, b"line 1\n"));
    driver.feed(chunk(1, 7, b"\xFF\n"));
    driver.feed(done(1));
    let [result] = driver.all("ToolCallCompleted")[..] else { panic!() };
    let Body::Final(Final::ToolCallCompleted { execution: result, .. }) = &result.body else {
        panic!()
    };
    assert_eq!(result.execution, Some(execution(1)));
    assert_eq!((result.output.as_str(), result.output_bytes), ("line 1\n\u{fffd}\n", 9));
    let [.., called, told] = driver.last_asked() else { panic!() };
    assert_eq!(called["tool_calls"][0]["id"], "c1");
    assert_eq!(told["tool_call_id"], "c1");
    assert_eq!(told["content"], "line 1\n\u{fffd}\n");
    driver.answer(&ScriptedTurn::text("Done."));
    assert_eq!(reason(&driver), Reason::Stop);
    assert_eq!(driver.state().steps.len(), 2);
    assert_eq!(driver.state().tool_call_count(), 1);
}

#[test]
fn after_turn_waits_for_the_turn_and_eager_does_not() {
    let said =
        ScriptedTurn::calls(&[("c1", "read", r#"{"a":1}"#), ("c2", "list", r#"{"a":[1,2]}"#)]);
    let body = said.stream(&mut crate::base::Random::new(3));
    let text = String::from_utf8(body.clone()).unwrap();
    let second = text.find("c2").unwrap(); // Then the first call's arguments are complete.
    let second_end = second + text[second..].find("\n\n").unwrap() + 2;
    for (config, started) in [(config(), 0), (eager(), 1)] {
        let mut driver = Driver::begun(config);
        driver.head(200, None);
        driver.feed(RunEvent::Body { exchange: 1, bytes: &body[..second_end] });
        assert_eq!(driver.started().len(), started);
        driver.feed(RunEvent::Body { exchange: 1, bytes: &body[second_end..] });
        assert_eq!(driver.started(), [1, 2]);
        assert_eq!(driver.open, None);
    }
}

#[test]
fn bad_calls_reach_no_tool_and_are_told_the_model() {
    for strategy in [Strategy::AfterTurn, Strategy::Eager] {
        let table = [
            ("read", "[1]", "finish", "not a JSON object"),
            ("read", r#"{"path": "#, "tool_calls", "not JSON"),
            ("read", r#"{"path": "#, "length", "cut off"),
            ("read", r#"{"path": "a"} {"#, "tool_calls", "not JSON"),
            ("wipe", "{}", "tool_calls", r#"unknown tool "wipe"; the tools are: read, list"#),
            ("rm -rf /\n", "{}", "tool_calls", "unknown tool"),
            ("", "{}", "tool_calls", "unknown tool"),
        ];
        for (name, arguments, finish, expected) in table {
            let mut driver = Driver::begun(Config { strategy, ..config() });
            let finish = if finish == "finish" { "tool_calls" } else { finish };
            driver.answer(&ScriptedTurn::calls(&[("c1", name, arguments)]).finish(finish));
            if name.is_empty() && driver.all("ToolCallStarted").is_empty() {
                continue; // The decoder of the wire found no call in it.
            }
            assert!(driver.started().is_empty(), "{name} {arguments}");
            let [complete] = driver.all("ToolCallArgsCompleted")[..] else { panic!("{name}") };
            let Body::Final(Final::ToolCallArgsCompleted { arguments: told, .. }) = &complete.body
            else {
                panic!()
            };
            let Arguments::Invalid { text, problem, .. } = told else { panic!("{told:?}") };
            assert_eq!(text, arguments);
            assert!(problem.contains(expected), "{problem}");
            assert_eq!(driver.all("ToolCallFailed").len(), 1);
            let told = driver.last_asked().last().unwrap()["content"].as_str().unwrap().to_owned();
            assert!(told.contains(expected), "{told}");
            driver.answer(&ScriptedTurn::text("I see."));
            assert_eq!(reason(&driver), Reason::Stop);
            let call = &driver.state().steps[0].tool_calls[0];
            assert_eq!((call.outcome, call.execution), (Outcome::Failed, None));
        }
    }
}

#[test]
fn a_whole_call_of_a_turn_that_was_cut_is_carried_out() {
    let mut driver = Driver::begun(config());
    let said = ScriptedTurn::calls(&[("c1", "read", r#"{"a":1}"#), ("c2", "read", r#"{"a":"#)]);
    driver.answer(&said.finish("length"));
    assert_eq!(driver.started(), [1]);
    driver.feed(done(1));
    assert_eq!(driver.asked.len(), 2);
}

#[test]
fn tools_run_in_parallel_up_to_the_limit_and_results_keep_the_models_order() {
    for config in [config(), eager()] {
        let mut driver = Driver::begun(Config { parallel_calls_max: 2, ..config });
        let calls = ["c1", "c2", "c3", "c4"].map(|id| (id, "read", "{}"));
        driver.answer(&ScriptedTurn::calls(&calls));
        assert_eq!(driver.started(), [1, 2]);
        driver.feed(done(2));
        driver.feed(chunk(3, 0, b"three"));
        driver.feed(done(3));
        driver.feed(done(4));
        assert_eq!(driver.started(), [1, 2, 3, 4]);
        assert_eq!(driver.asked.len(), 1);
        driver.feed(done(1));
        let ids: Vec<_> = driver.last_asked()[2..].iter().map(|m| &m["tool_call_id"]).collect();
        assert_eq!(ids, ["c1", "c2", "c3", "c4"]);
    }
}

#[test]
fn ids_that_are_missing_twice_or_unfit_are_replaced() {
    let mut driver = Driver::begun(config());
    let long = "x".repeat(200);
    let mut said = ScriptedTurn::calls(&[
        ("same", "read", "{}"),
        ("same", "read", "{}"),
        ("call_4", "read", "{}"),
        ("a \" b", "read", "{}"),
        (&long, "read", "{}"),
    ]);
    said.calls[1].id = Some("same".to_owned());
    driver.answer(&said);
    let ids: Vec<String> = driver.all("ToolCallStarted").iter().map(|part| id_of(part)).collect();
    assert_eq!(ids, ["same", "call_2", "call_4", "call_4_2", "call_5"]);
}

fn id_of(part: &RunPart) -> String {
    part.tool_call_id().unwrap().to_string()
}

#[test]
fn too_many_calls_of_a_step_fail_and_the_others_are_carried_out() {
    let mut driver = Driver::begun(Config { calls_per_step_max: 2, ..config() });
    driver.answer(&ScriptedTurn::calls(&["a", "b", "c", "d"].map(|id| (id, "read", "{}"))));
    assert_eq!(driver.started(), [1, 2]);
    assert_eq!(driver.all("ToolCallFailed").len(), 2);
    driver.feed(done(1));
    driver.feed(done(2));
    let told = driver.last_asked().last().unwrap()["content"].as_str().unwrap();
    assert!(told.contains("only 2 calls"), "{told}");
}

#[test]
fn a_tool_that_refuses_or_fails_is_told_the_model() {
    let mut driver = Driver::begun(config());
    driver.answer(&ScriptedTurn::calls(&["a", "b", "c", "d"].map(|id| (id, "read", "{}"))));
    driver.feed(RunEvent::ToolRefused { call: 1, text: "`path` is missing" });
    driver.feed(chunk(2, 0, b"so far"));
    let outcome = Outcome::Failed;
    driver.feed(RunEvent::ToolEnded { call: 2, outcome, exit: None, error: Some("no such file") });
    let outcome = Outcome::TimedOut;
    driver.feed(RunEvent::ToolEnded { call: 3, outcome, exit: None, error: None });
    let outcome = Outcome::Cancelled;
    driver.feed(RunEvent::ToolEnded { call: 4, outcome, exit: None, error: None });
    let told: Vec<_> = driver.last_asked()[2..]
        .iter()
        .map(|message| message["content"].as_str().unwrap())
        .collect();
    let expected = [
        "Error: `path` is missing",
        "so far\n\nError: no such file",
        "Error: the tool took too long",
        "Error: the tool was cancelled",
    ];
    assert_eq!(told, expected);
    assert_eq!(driver.all("ToolCallFailed").len(), 3);
    assert_eq!(driver.all("ToolCallCancelled").len(), 1);
}

#[test]
fn a_refused_turn_is_asked_again_as_late_as_the_server_wants() {
    let mut driver = Driver::begun(config());
    driver.head(429, Some("7"));
    driver.feed(RunEvent::BodyEnded { exchange: 1 });
    let until = driver.run.next_deadline().unwrap();
    assert!(until >= driver.now + Duration::from_secs(7));
    driver.wait(Duration::from_secs(6));
    assert_eq!(driver.open, None);
    driver.now = until;
    driver.feed(RunEvent::Tick);
    assert_eq!(driver.open, Some(2));
    driver.answer(&ScriptedTurn::text("Now."));
    assert_eq!(reason(&driver), Reason::Stop);
    assert_eq!(driver.asked[0], driver.asked[1]);
}

#[test]
fn a_turn_is_not_asked_for_again_that_nobody_can_give_or_that_was_streamed() {
    let mut driver = Driver::begun(config());
    driver.head(401, None);
    driver.feed(RunEvent::BodyEnded { exchange: 1 });
    assert!(matches!(driver.run.is_over().unwrap().how, Ended::Failed(_)));

    let mut driver = Driver::begun(config());
    driver.head(429, Some("86400"));
    driver.feed(RunEvent::BodyEnded { exchange: 1 });
    let Ended::Failed(failure) = &driver.run.is_over().unwrap().how else { panic!() };
    assert!(failure.is_retryable);

    let mut driver = Driver::begun(config());
    driver.head(200, None);
    let body = ScriptedTurn::text("Half of").stream(&mut crate::base::Random::new(1));
    driver.feed(RunEvent::Body { exchange: 1, bytes: &body[..body.len() / 2] });
    assert!(!driver.all("TextDelta").is_empty());
    driver.feed(broken(1));
    assert_eq!(reason(&driver), Reason::Failed);
    let names = driver.names();
    assert_eq!(names[names.len() - 2..], ["StepCompleted", "ExecutionFailed"]);
}

fn broken(exchange: u32) -> RunEvent<'static> {
    let (kind, text) = (NetFaultKind::Broken, "connection reset".to_owned());
    RunEvent::Broken {
        exchange,
        fault: NetFault { kind, text, was_sent: true, was_received: true },
    }
}

#[test]
fn retries_have_an_end() {
    let mut driver = Driver::begun(Config { retries_max: 3, ..config() });
    for exchange in 1..=4 {
        driver.feed(broken(exchange));
        if exchange < 4 {
            let Some(RunAction::Report { message }) = driver.actions.last() else { panic!() };
            let wait = driver.run.next_deadline().unwrap().since(driver.now).as_secs_f64();
            let expected = format!("retry {exchange} of 3 in {wait:.1} s: connection reset");
            assert_eq!(*message, expected);
            driver.now = driver.run.next_deadline().unwrap();
            driver.feed(RunEvent::Tick);
        }
    }
    let reports = driver.actions.iter().filter(|action| matches!(action, RunAction::Report { .. }));
    assert_eq!(reports.count(), 3, "the last failure is the end");
    assert_eq!((driver.asked.len(), reason(&driver)), (4, Reason::Failed));
    let Ended::Failed(failure) = &driver.run.is_over().unwrap().how else { panic!() };
    assert_eq!(failure.message, "connection reset");
}

#[test]
fn a_turn_that_breaks_takes_along_what_it_started() {
    let mut driver = Driver::begun(eager());
    let whole = r#"{"n":1}"#;
    let body =
        ScriptedTurn::calls(&[("a", "read", whole), ("b", "read", whole), ("c", "read", "{")])
            .stream(&mut crate::base::Random::new(1));
    let text = String::from_utf8(body.clone()).unwrap();
    let cut = text.find(r#""id":"c""#).unwrap();
    let cut = cut + text[cut..].find("\n\n").unwrap() + 2;
    driver.head(200, None);
    driver.feed(RunEvent::Body { exchange: 1, bytes: &body[..cut] });
    assert_eq!(driver.started(), [1, 2]);
    driver.feed(done(1));
    driver.feed(broken(1));
    assert_eq!(driver.actions.last(), Some(&RunAction::Stop { call: 2 }));
    assert_eq!(driver.all("ToolCallCompleted").len(), 1);
    assert_eq!(driver.all("ToolCallCancelled").len(), 2);
    assert_eq!(reason(&driver), Reason::Failed);
}

#[test]
fn steps_tokens_and_conversation_have_limits_that_complete_the_run() {
    let table: [(Config, Reason); 3] = [
        (Config { steps_max: 1, ..config() }, Reason::StepsMax),
        (Config { tokens_max: Some(10), ..config() }, Reason::TokensMax),
        (Config { conversation_bytes_max: 100, ..config() }, Reason::ConversationMax),
    ];
    for (config, expected) in table {
        let mut driver = Driver::begun(config);
        driver.answer(&ScriptedTurn::calls(&[("a", "read", "{}")]).tokens(6, 4));
        driver.feed(chunk(1, 0, &[b'x'; 200]));
        driver.feed(done(1));
        let end = driver.run.is_over().expect("it is over");
        assert_eq!((&end.how, &end.reason), (&Ended::Completed, &expected));
        assert_eq!(driver.asked.len(), 1);
        assert_eq!(driver.state().steps[0].outcome.reason, expected);
    }
}

#[test]
fn time_and_bytes_stop_everything_where_it_is() {
    let mut driver = after_one_call(Config { duration_max: Duration::from_secs(5), ..config() });
    driver.wait(Duration::from_secs(4));
    assert!(driver.run.is_over().is_none());
    assert_eq!(driver.run.next_deadline().unwrap().nanos(), 5_000_000_000);
    driver.wait(Duration::from_secs(1));
    assert_eq!(reason(&driver), Reason::DurationMax);
    assert_eq!(driver.actions.last(), Some(&RunAction::Stop { call: 1 }));

    let mut driver = after_one_call(Config { bytes_max: 1_000, ..config() });
    driver.feed(chunk(1, 0, &[b'x'; 900]));
    assert!(driver.run.is_over().is_none());
    driver.feed(chunk(1, 900, &[b'x'; 900]));
    assert_eq!(reason(&driver), Reason::BytesMax);
    assert_eq!(driver.actions.last(), Some(&RunAction::Stop { call: 1 }));
    assert_eq!(driver.run.is_over().unwrap().how, Ended::Completed);
}

#[test]
fn other_ends_of_a_turn_are_told_as_reasons() {
    let table = [
        ("length", Reason::Length),
        ("content_filter", Reason::ContentFilter),
        ("stop", Reason::Stop),
        ("tool_calls", Reason::Stop),
    ];
    for (finish, expected) in table {
        let mut driver = Driver::begun(config());
        driver.answer(&ScriptedTurn::text("So").finish(finish));
        assert_eq!(reason(&driver), expected, "{finish}");
    }
}

#[test]
fn a_filtered_turn_carries_out_no_calls() {
    for config in [config(), eager()] {
        let mut driver = Driver::begun(config);
        let calls = [("a", "read", "{}"), ("b", "read", "{}")];
        driver.answer(&ScriptedTurn::calls(&calls).finish("content_filter"));
        assert_eq!(reason(&driver), Reason::ContentFilter);
        assert_eq!(driver.all("ToolCallCancelled").len() + driver.all("ToolCallFailed").len(), 2);
        assert!(driver.running.is_empty());
    }
}

#[test]
fn a_run_can_be_stopped_at_any_time() {
    // Before the start, before the answer, in the middle of an answer, while waiting for a retry,
    // and while tools run.
    let moments: [fn() -> Driver; 5] = [
        || Driver::new(config()),
        || Driver::begun(config()),
        || {
            let mut driver = Driver::begun(config());
            driver.head(200, None);
            let body = ScriptedTurn::text("Half of it").stream(&mut crate::base::Random::new(1));
            driver.feed(RunEvent::Body { exchange: 1, bytes: &body[..body.len() / 2] });
            driver
        },
        || {
            let mut driver = Driver::begun(config());
            driver.feed(broken(1));
            driver
        },
        || after_one_call(config()),
    ];
    for (at, moment) in moments.into_iter().enumerate() {
        for reason in CancelReason::ALL {
            let mut driver = moment();
            driver.feed(RunEvent::Cancel(reason));
            assert_eq!(driver.run.is_over().unwrap().how, Ended::Cancelled(reason), "{at}");
            assert!(driver.parts.last().unwrap().is_end());
            assert_eq!(driver.run.next_deadline(), None);
            let parts = driver.parts.len();
            driver.feed(RunEvent::Cancel(reason)); // Late events of all kinds.
            driver.feed(RunEvent::Body { exchange: 1, bytes: b"data: x\n\n" });
            driver.feed(chunk(1, 0, b"late"));
            driver.feed(done(1));
            driver.feed(RunEvent::Tick);
            assert_eq!(driver.parts.len(), parts);
            assert_eq!(driver.state().steps.len(), usize::from(at > 0));
        }
    }
}

#[test]
fn what_comes_late_is_passed_over() {
    let mut driver = after_one_call(config());
    driver.feed(RunEvent::Body { exchange: 1, bytes: b"data: x\n\n" }); // It was released.
    driver.feed(RunEvent::BodyEnded { exchange: 1 });
    driver.feed(done(1));
    let parts = driver.parts.len();
    driver.feed(chunk(1, 0, b"late"));
    driver.feed(RunEvent::Answered {
        exchange: 1,
        status: 500,
        retry_after: None,
        retry_after_ms: None,
    });
    driver.feed(broken(1));
    assert_eq!(driver.parts.len(), parts);
    driver.answer(&ScriptedTurn::text("Good."));
    assert_eq!(reason(&driver), Reason::Stop);
}

#[test]
fn everything_fits_the_smallest_parts_whatever_is_in_it() {
    let part_bytes_max = crate::limits::AGENT_PART_BYTES_MIN;
    let hostile = "\0\u{85}\"\\\n😀\u{2028}".repeat(2_000);
    let mut driver = Driver::with(
        Config { part_bytes_max, output_bytes_max: 1 << 20, bytes_max: 1 << 30, ..config() },
        vec![Message::User(hostile.clone())],
        Box::new(NoHooks),
    );
    driver.feed(RunEvent::Started);
    let arguments = json!({ "path": hostile }).to_string();
    let mut said = ScriptedTurn::calls(&[("a", "read", &arguments), ("b", "list", &hostile)]);
    (said.text, said.reasoning) = (hostile.clone(), hostile.clone());
    driver.answer(&said);
    driver.feed(RunEvent::ToolStarted { call: 1, execution: execution(1) });
    driver.feed(chunk(1, 0, hostile.as_bytes()));
    let binary = [0xFF; 10_000];
    driver.feed(chunk(1, hostile.len() as u64, &binary));
    let progress = crate::agent::ToolProgress {
        progress: 1.0,
        message: Some(&hostile),
        context: Some(&arguments),
        ..Default::default()
    };
    driver.feed(RunEvent::ToolProgress { call: 1, progress });
    let error = Some(hostile.as_str());
    driver.feed(RunEvent::ToolEnded { call: 1, outcome: Outcome::Failed, exit: None, error });
    driver.answer(&ScriptedTurn::text(&hostile));

    let output: Vec<u8> = driver.parts.iter().flat_map(output_of).collect();
    assert_eq!(output, [hostile.as_bytes(), &binary].concat());
    let step = &driver.state().steps[0];
    assert_eq!((step.text.as_str(), step.text_truncated), (hostile.as_str(), false));
    let call = &step.tool_calls[0];
    assert_eq!(call.arguments, Arguments::Valid(json!({ "path": hostile })));
    assert!(call.output_truncated);
    let Arguments::Invalid { text, text_truncated, .. } = &step.tool_calls[1].arguments else {
        panic!()
    };
    assert_eq!((text, *text_truncated), (&hostile, false));
    assert_eq!(driver.state().text(), hostile);
}

fn output_of(part: &RunPart) -> Vec<u8> {
    match &part.body {
        Body::Partial(Partial::ToolOutputChunk { data, .. }) => data.as_bytes().to_vec(),
        _ => Vec::new(),
    }
}

#[test]
fn pieces_of_a_chunk_have_offsets_of_their_own() {
    let mut driver = after_one_call(Config { part_bytes_max: 2 << 10, ..config() });
    driver.feed(chunk(1, 100, &[b'x'; 5_000]));
    let mut at = 100;
    let pieces = driver.all("ToolOutputChunk");
    for (number, piece) in pieces.iter().enumerate() {
        let Body::Partial(Partial::ToolOutputChunk { offset, data, more, output_seq, .. }) =
            &piece.body
        else {
            panic!()
        };
        assert_eq!((*offset, *output_seq), (at, 1));
        assert_eq!(*more, number + 1 < pieces.len());
        at += data.as_bytes().len() as u64;
    }
    assert_eq!(at, 5_100);
}

#[test]
fn text_is_accumulated_on_request_while_it_fits() {
    let text = "ab ".repeat(1_000);
    for (accumulate, part_bytes_max) in [(true, 2 << 10), (false, 2 << 10)] {
        let mut driver = Driver::begun(Config { accumulate, part_bytes_max, ..config() });
        driver.answer(&ScriptedTurn::text(&text));
        let mut so_far = String::new();
        let mut fit_count = 0;
        for part in driver.all("TextDelta") {
            let Body::Partial(Partial::TextDelta {
                delta,
                accumulated_text,
                accumulated_truncated,
                ..
            }) = &part.body
            else {
                panic!()
            };
            so_far.push_str(delta);
            match accumulated_text {
                Some(text) => assert_eq!(*text, so_far),
                None => assert_eq!(*accumulated_truncated, accumulate),
            }
            fit_count += usize::from(accumulated_text.is_some());
        }
        assert_eq!(so_far, text);
        assert_eq!(fit_count > 0, accumulate);
    }
}

#[test]
fn nothing_more_is_wanted_while_parts_wait() {
    let mut driver = after_one_call(config());
    assert!(driver.run.wants_body() && driver.run.wants_output());
    for seq in 0..crate::limits::AGENT_PARTS_WAITING as u64 {
        assert!(driver.run.wants_output(), "{seq}");
        driver.feed_only(chunk(1, seq, b"x"));
    }
    assert!(!driver.run.wants_body() && !driver.run.wants_output());
    let part = driver.run.next_part().unwrap();
    driver.take_part(part);
    assert!(driver.run.wants_body() && driver.run.wants_output());
}

#[test]
fn progress_and_gaps_are_told() {
    let mut driver = after_one_call(config());
    let progress = crate::agent::ToolProgress {
        progress: 1.0,
        total: Some(f64::INFINITY),
        percentage: Some(50.0),
        message: Some("half"),
        context: Some(r#"{"a":1}"#),
    };
    driver.feed(RunEvent::ToolProgress { call: 1, progress });
    let reason = GapReason::Lag;
    let gap = Gap { from_seq: 1, to_seq: 3, chunk_count: 3, byte_count: 30, reason };
    driver.feed(RunEvent::ToolGap { call: 1, gap });
    driver.feed(chunk(1, 30, b"end"));
    driver.feed(done(1));
    let names = driver.names();
    let expected = ["ToolProgress", "Gap", "ToolOutputChunk", "ToolCallCompleted"];
    assert!(names.windows(4).any(|four| four == expected), "{names:?}");
    let told = driver.last_asked().last().unwrap()["content"].as_str().unwrap();
    assert!(told.contains("30 bytes are left out"), "{told}");
}

/// Records what it is shown, and decides as the test says.
struct RecordingHooks {
    seen: Arc<Mutex<Vec<String>>>,
    before: fn(&RunState, &[Message]) -> StepChoice,
    after: fn(&RunState, &StepState) -> StepChoice,
}

impl Hooks for RecordingHooks {
    fn before_step(&mut self, state: &RunState, messages: &[Message]) -> StepChoice {
        self.seen.lock().unwrap().push(format!("before {}", state.steps.len()));
        (self.before)(state, messages)
    }
    fn after_part(&mut self, part: &RunPart) {
        self.seen.lock().unwrap().push(part.name().to_owned());
    }
    fn after_step(&mut self, state: &RunState, step: &StepState) -> StepChoice {
        self.seen.lock().unwrap().push(format!("after {}", step.number));
        (self.after)(state, step)
    }
}

fn watched(
    before: fn(&RunState, &[Message]) -> StepChoice,
    after: fn(&RunState, &StepState) -> StepChoice,
) -> (Driver, Arc<Mutex<Vec<String>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let hooks = RecordingHooks { seen: Arc::clone(&seen), before, after };
    let messages = vec![Message::User("Do it.".to_owned())];
    let mut driver = Driver::with(config(), messages, Box::new(hooks));
    driver.feed(RunEvent::Started);
    (driver, seen)
}

#[test]
fn hooks_see_every_part_in_order_and_the_steps_between() {
    let (mut driver, seen) = watched(|_, _| StepChoice::Go, |_, _| StepChoice::Go);
    driver.answer(&ScriptedTurn::calls(&[("a", "read", "{}")]));
    driver.feed(done(1));
    driver.answer(&ScriptedTurn::text("Done."));
    let seen = seen.lock().unwrap();
    let parts: Vec<&String> = seen.iter().filter(|name| !name.contains(' ')).collect();
    assert_eq!(parts, driver.names());
    let steps: Vec<&String> = seen.iter().filter(|name| name.contains(' ')).collect();
    assert_eq!(steps, ["before 0", "after 1", "before 1", "after 2"]);
}

#[test]
fn hooks_can_stop_a_run_before_and_after_a_step() {
    let stop = |_: &RunState, _: &[Message]| StepChoice::Stop("not today".to_owned());
    let (driver, _) = watched(stop, |_, _| StepChoice::Go);
    assert_eq!(driver.names(), ["ExecutionStarted", "ExecutionCompleted"]);
    assert_eq!(reason(&driver), Reason::Hook("not today".to_owned()));

    let stop = |_: &RunState, _: &StepState| StepChoice::Stop("enough".to_owned());
    let (mut driver, _) = watched(|_, _| StepChoice::Go, stop);
    driver.answer(&ScriptedTurn::calls(&[("a", "read", "{}")]));
    driver.feed(done(1));
    assert_eq!(reason(&driver), Reason::Hook("enough".to_owned()));
    let outcome = &driver.state().steps[0].outcome;
    assert_eq!(outcome.reason.detail(), Some("enough"));

    let (mut driver, _) = watched(|_, _| StepChoice::Go, stop);
    driver.answer(&ScriptedTurn::text("Done."));
    assert_eq!(reason(&driver), Reason::Stop);
}

#[test]
fn hooks_can_replace_what_the_model_is_told() {
    let replace = |_: &RunState, messages: &[Message]| {
        assert!(!messages.is_empty());
        StepChoice::ReplaceMessages(vec![Message::User("Something else.".to_owned())])
    };
    let (driver, _) = watched(replace, |_, _| StepChoice::Go);
    assert_eq!(driver.last_asked().len(), 1);
    assert_eq!(driver.last_asked()[0]["content"], "Something else.");
}

#[test]
fn iterate_gives_a_state_for_each_step_and_one_for_the_end() {
    let mut driver = after_one_call(config());
    driver.feed(done(1));
    driver.answer(&ScriptedTurn::text("Done."));
    let states: Vec<RunState> = crate::agent::Iterate::new(driver.parts.iter().cloned()).collect();
    let steps: Vec<usize> = states.iter().map(|state| state.steps.len()).collect();
    assert_eq!(steps, [1, 2, 2]);
    assert_eq!(states.last(), Some(driver.state()));
    assert!(states[1].end.is_none());
}
