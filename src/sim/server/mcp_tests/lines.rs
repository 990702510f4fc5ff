//! Tests of connections of lines, as standard input and output are one. Some clients lose an event
//! that comes right before a response. Therefore the last progress report waits for the response.
//! With `settle`, the response waits behind the events instead. Order and times are exact.

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::{Value, json};

use super::client::alone;
use crate::base::Instant;
use crate::engine::Timeouts;
use crate::limits;
use crate::sim::network::SimClient;
use crate::sim::server::test_server::TestServer;
use crate::stream::Policy;
use crate::tool::{
    ArgumentError, Arguments, Context, EmitError, Need, Step, SubscribeDefaults, Tool, ToolSpec,
    Work,
};

const HELD_MS: u64 = limits::MCP_WHOLE_HELD.as_millis() as u64;
const SETTLE_MS: u64 = 25;

/// A step of the tool: the time in the call in milliseconds, a text unless empty, and the progress
/// and its total unless zero.
type Beat = (u64, &'static str, u64, u64);

/// A tool that takes each step at its time, and ends at another.
struct Player {
    beats: VecDeque<(Duration, String, u64, u64)>,
    ends: Duration,
    begun: Option<Instant>,
}

fn spec() -> ToolSpec {
    ToolSpec {
        timeouts: Timeouts::NONE,
        subscribers: SubscribeDefaults { policy: Policy::DropOldest, ..Default::default() },
        ..ToolSpec::new("play", "Does each thing at its time.")
    }
}

fn prepare(arguments: &Value, need: Need) -> Result<(Work, Need), ArgumentError> {
    let ends =
        Arguments::new(&json!({"ends": arguments["ends"]}))?.number("ends", 0, 0..=10_000)?;
    let beats = arguments["beats"].as_array().into_iter().flatten().map(|beat| {
        let number = |at: usize| beat[at].as_u64().unwrap();
        let text = beat[1].as_str().unwrap().to_owned();
        (Duration::from_millis(number(0)), text, number(2), number(3))
    });
    let (beats, ends) = (beats.collect(), Duration::from_millis(ends));
    Ok((Work::Steps(Box::new(Player { beats, ends, begun: None })), need))
}

impl Tool for Player {
    fn step(&mut self, context: &mut Context<'_>) -> Step {
        let begun = *self.begun.get_or_insert(context.now());
        while let Some((at, text, current, total)) = self.beats.front() {
            if begun + *at > context.now() {
                return Step::Sleep(begun + *at);
            }
            if !text.is_empty() {
                match context.emit(text.as_bytes()) {
                    Ok(_) => {}
                    Err(EmitError::Blocked) => return Step::Blocked,
                    Err(error @ EmitError::TooLarge { .. }) => panic!("{error:?}"),
                }
            }
            if *total > 0 {
                context.progress(*current as f64, Some(*total as f64));
            }
            self.beats.pop_front();
        }
        match begun + self.ends > context.now() {
            true => Step::Sleep(begun + self.ends),
            false => Step::Done,
        }
    }
}

/// A client on such a connection, and the time of its next read.
struct Lines {
    test_server: TestServer,
    client: SimClient,
    begun: Instant,
    at_ms: u64,
    rest: String,
    is_alone: bool,
}

impl Lines {
    /// Begins with a session, or without one in the stateless era.
    fn begin(settle_ms: u64, is_alone: bool) -> Lines {
        let mut test_server = TestServer::new();
        test_server.shards[0].tools_mut().insert(spec(), prepare).unwrap();
        let client = test_server.lines(Duration::from_millis(settle_ms));
        let begun = test_server.world.now();
        let mut lines =
            Lines { test_server, client, begun, at_ms: 0, rest: String::new(), is_alone };
        if !is_alone {
            lines.say(&json!({
                "jsonrpc": "2.0",
                "id": 0,
                "method": "initialize",
                "params": {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {},
                    "clientInfo": {"name": "c", "version": "1"},
                },
            }));
            lines.say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
            assert_eq!(lines.hear_for(1), [(0, "answer 0".to_owned())]);
        }
        lines.restart();
        lines
    }

    fn say(&mut self, message: &Value) {
        let line = format!("{message}\n");
        assert_eq!(
            self.test_server.world.client_send(self.client, line.as_bytes()),
            Ok(line.len())
        );
        self.test_server.turn();
    }

    /// Calls the player.
    fn call(&mut self, id: u64, beats: &[Beat], ends: u64) {
        let mut meta = if self.is_alone { alone() } else { json!({}) };
        meta["progressToken"] = id.into();
        let arguments = json!({"beats": beats, "ends": ends});
        let params = json!({"name": "play", "arguments": arguments, "_meta": meta});
        let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        self.say(&call);
    }

    fn cancel(&mut self, id: u64) {
        self.say(&json!({
            "jsonrpc": "2.0",
            "method": "notifications/cancelled",
            "params": {"requestId": id},
        }));
    }

    /// Restarts the time.
    fn restart(&mut self) {
        (self.begun, self.at_ms) = (self.test_server.world.now(), 0);
    }

    /// Lets time pass until `until_us` microseconds after the start.
    fn pass_until_us(&mut self, until_us: u64) {
        let until = self.begun + Duration::from_micros(until_us);
        let left_ns = until.nanos().saturating_sub(self.test_server.world.now().nanos());
        self.test_server.pass(Duration::from_nanos(left_ns));
    }

    /// Reads for some milliseconds. Returns each message with its millisecond since the start.
    fn hear_for(&mut self, duration_ms: u64) -> Vec<(u64, String)> {
        let mut heard = Vec::new();
        for _ in 0..duration_ms {
            // Each turn takes a little time: events due at a millisecond have come by its half.
            self.pass_until_us(1_000 * self.at_ms + 500);
            self.rest += &self.test_server.hear(self.client);
            while let Some((line, rest)) = self.rest.split_once('\n') {
                heard.push((self.at_ms, describe(&serde_json::from_str(line).expect(line))));
                self.rest = rest.to_owned();
            }
            self.at_ms += 1;
            self.pass_until_us(1_000 * self.at_ms);
        }
        heard
    }
}

/// A message, in short: `token: progress/total chunks`, or a response with the text of its result.
fn describe(message: &Value) -> String {
    let params = &message["params"];
    match message["method"].as_str() {
        Some("notifications/progress") => {
            let chunks = params["_meta"]["dev.streamdoor/chunks"].as_array();
            let seqs: String =
                chunks.into_iter().flatten().map(|one| format!(" #{}", one["seq"])).collect();
            let gap = &params["_meta"]["dev.streamdoor/gap"];
            let gap = match gap.is_null() {
                true => String::new(),
                false => format!(" but {} to {}", gap["from_seq"], gap["to_seq"]),
            };
            let (progress, total) = (&params["progress"], &params["total"]);
            format!("{}: {progress}/{total}{seqs}{gap}", params["progressToken"])
        }
        Some(method) => method.to_owned(),
        None => {
            let error = &message["error"]["code"];
            let text = message["result"]["content"][0]["text"].as_str();
            let text = text.map_or_else(String::new, |text| format!(" {text:.10}"));
            match error.is_null() {
                true => format!("answer {}{text}", message["id"]),
                false => format!("error {} {error}", message["id"]),
            }
        }
    }
}

#[track_caller]
fn assert_heard(heard: &[(u64, String)], expected: &[(u64, &str)]) {
    let heard: Vec<(u64, &str)> = heard.iter().map(|(at, text)| (*at, text.as_str())).collect();
    assert_eq!(heard, expected);
}

#[test]
fn what_says_that_all_is_done_is_folded_into_the_answer() {
    for is_alone in [false, true] {
        let mut lines = Lines::begin(0, is_alone);
        // The response comes in time: with the chunk, behind it, and at the last moment.
        for (id, ends) in [(1, 10), (2, 11), (3, 10 + HELD_MS - 1)] {
            lines.restart();
            lines.call(id, &[(0, "a", 1, 2), (10, "b", 2, 2)], ends);
            let (told, answer) = (format!("{id}: 1/2 #1"), format!("answer {id} ab"));
            assert_heard(&lines.hear_for(ends + 40), &[(0, &told), (ends, &answer)]);
        }
    }
}

#[test]
fn what_was_held_is_told_when_the_call_goes_on() {
    for is_alone in [false, true] {
        let mut lines = Lines::begin(0, is_alone);
        lines.call(1, &[(0, "a", 1, 2), (10, "b", 2, 2)], 100);
        let heard = lines.hear_for(110);
        let told = [(0, "1: 1/2 #1"), (10 + HELD_MS, "1: 2/2 #2"), (100, "answer 1 ab")];
        assert_heard(&heard, &told);
    }
}

#[test]
fn what_comes_behind_what_was_held_is_told_behind_it() {
    let mut lines = Lines::begin(0, false);
    // More work appears than was expected. The next report that says so is held again, and sent in
    // its own time.
    let beats = [(0, "a", 2, 2), (5, "b", 3, 4), (9, "c", 4, 4), (12, "d", 4, 4)];
    lines.call(1, &beats, 100);
    let heard = lines.hear_for(110);
    let [held, next, again, last] = ["1: 2/2 #1", "1: 3/4 #2", "1: 4/4 #3", "#4"];
    assert_heard(&heard[..3], &[(5, held), (5, next), (12, again)]);
    let (at, text) = &heard[3];
    assert_eq!(*at, 12 + HELD_MS, "{heard:?}");
    assert!(text.starts_with("1: 4.0") && text.ends_with(last), "it rises: {text}");
    assert_heard(&heard[4..], &[(100, "answer 1 abcd")]);
}

#[test]
fn who_waits_holds_nobody_up() {
    let mut lines = Lines::begin(0, false);
    lines.call(1, &[(10, "a", 1, 1)], 100);
    lines.call(2, &[(12, "b", 1, 2)], 15);
    lines.hear_for(11);
    lines.say(&json!({"jsonrpc": "2.0", "id": 3, "method": "ping"}));
    let told = [
        (11, "answer 3"),
        (12, "2: 1/2 #1"),
        (15, "answer 2 b"),
        (10 + HELD_MS, "1: 1/1 #1"),
        (100, "answer 1 a"),
    ];
    assert_heard(&lines.hear_for(110), &told);
}

#[test]
fn of_who_is_cancelled_nothing_held_is_told() {
    for settle_ms in [0, SETTLE_MS] {
        let mut lines = Lines::begin(settle_ms, false);
        lines.call(1, &[(0, "a", 1, 2), (10, "b", 2, 2)], if settle_ms == 0 { 100 } else { 10 });
        lines.hear_for(15);
        lines.cancel(1);
        assert_heard(&lines.hear_for(110), &[]);
        // Its id is free.
        lines.restart();
        lines.call(1, &[(0, "a", 1, 2)], 5);
        let told = [(0, "1: 1/2 #1"), (5 + settle_ms, "answer 1 a")];
        assert_heard(&lines.hear_for(60), &told);
    }
}

/// The client sends nothing more: calls have a second to end, and then the connection ends.
#[test]
fn calls_end_within_a_second_behind_the_end_of_the_input() {
    let grace_ms = limits::MCP_LAST_ANSWERS.as_millis() as u64;
    for settle_ms in [0, SETTLE_MS] {
        for (ends, is_answered) in [(100, true), (grace_ms - 50, true), (grace_ms + 50, false)] {
            let mut lines = Lines::begin(settle_ms, false);
            lines.call(2, &[(10, "b", 2, 2)], ends);
            lines.test_server.world.client_finish(lines.client);
            lines.test_server.pass(Duration::from_millis(ends.min(grace_ms) + settle_ms));
            lines.test_server.pass(Duration::from_millis(1));
            let rest = lines.test_server.hear(lines.client);
            assert!(rest.ends_with("<end>"), "{rest}");
            assert_eq!(rest.contains(r#""id":2,"result""#), is_answered, "{ends} ms: {rest}");
        }
    }
}

#[test]
fn an_answer_settles_behind_what_was_told() {
    for is_alone in [false, true] {
        let mut lines = Lines::begin(SETTLE_MS, is_alone);
        // Each event comes at once, and none behind the response.
        for (id, ends) in [(1, 10), (2, 10 + SETTLE_MS - 1), (3, 100)] {
            lines.restart();
            lines.call(id, &[(0, "a", 1, 2), (10, "b", 2, 2)], ends);
            let (first, second) = (format!("{id}: 1/2 #1"), format!("{id}: 2/2 #2"));
            let answer = format!("answer {id} ab");
            let told = [(0, &*first), (10, &*second), (ends + SETTLE_MS, &*answer)];
            assert_heard(&lines.hear_for(ends + 40), &told);
        }
    }
}

#[test]
fn what_was_never_told_anything_need_not_settle_and_others_need_not_wait() {
    let mut lines = Lines::begin(SETTLE_MS, false);
    lines.call(1, &[], 7);
    lines.call(2, &[(0, "a", 1, 2)], 5);
    lines.hear_for(6);
    lines.say(&json!({"jsonrpc": "2.0", "id": 3, "method": "ping"}));
    // The call is still under way.
    lines.say(&json!({"jsonrpc": "2.0", "id": 2, "method": "ping"}));
    let told =
        [(6, "answer 3"), (6, "error 2 -32600"), (7, "answer 1"), (5 + SETTLE_MS, "answer 2 a")];
    assert_heard(&lines.hear_for(60), &told);
    lines.restart();
    lines.say(&json!({"jsonrpc": "2.0", "id": 2, "method": "ping"}));
    assert_heard(&lines.hear_for(60), &[(0, "answer 2")]);
}

#[test]
fn a_gap_is_told_behind_what_was_held() {
    let mut lines = Lines::begin(0, false);
    let beats: Vec<Beat> = (0..30).map(|_| (12, "b", 0, 0)).collect();
    lines.call(1, &[&[(10, "a", 2, 2)], &beats[..]].concat(), 100);
    lines.pass_until_us(11_000);
    // Long responses that are not read: the connection takes nothing.
    for id in [2, 3] {
        let arguments = json!({"chunks": 900, "delay_ms": 0, "chunk_size": 64});
        let params = json!({"name": "slow_data_processor", "arguments": arguments});
        let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        lines.say(&call);
    }
    lines.pass_until_us(14_000);
    lines.at_ms = 14;
    let heard = lines.hear_for(30);
    let about: Vec<&str> = (heard.iter().map(|(_, text)| text.as_str()))
        .filter(|text| text.starts_with("1:"))
        .collect();
    let [held, gap, newest] = &about[..] else { panic!("{heard:?}") };
    assert_eq!(*held, "1: 2/2 #1");
    assert!(gap.starts_with("1: 2.0") && gap.ends_with(" but 2 to 21"), "{gap}");
    assert!(newest.contains(" #22 #23 ") && newest.ends_with(" #31"), "{newest}");
    let number = |text: &str| -> f64 { text[3..].split_once('/').unwrap().0.parse().unwrap() };
    assert!(number(held) < number(gap) && number(gap) < number(newest), "{about:?}");
}

#[test]
fn an_answer_that_settles_is_said_at_once_when_whoever_asked_says_nothing_more() {
    for is_alone in [false, true] {
        let mut lines = Lines::begin(SETTLE_MS, is_alone);
        lines.call(1, &[(0, "a", 1, 2)], 5);
        assert_heard(&lines.hear_for(10), &[(0, "1: 1/2 #1")]);
        lines.test_server.world.client_finish(lines.client);
        lines.test_server.pass(Duration::from_millis(1));
        let rest = lines.test_server.hear(lines.client);
        let answer: Value = serde_json::from_str(rest.trim_end_matches("<end>")).expect(&rest);
        assert_eq!(describe(&answer), "answer 1 a");
    }
}

#[test]
fn parts_of_a_result_all_come_before_the_answer() {
    let mut lines = Lines::begin(0, true);
    let mut meta = alone();
    meta["partialResultToken"] = 7.into();
    meta["io.modelcontextprotocol/clientCapabilities"]["partialResults"] = json!({});
    let arguments = json!({"beats": [(0, "a", 0, 0), (10, "b", 0, 0)], "ends": 10});
    let params = json!({"name": "play", "arguments": arguments, "_meta": meta});
    lines.say(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}));
    lines.test_server.pass(Duration::from_millis(20));
    let heard = lines.test_server.hear(lines.client);
    let messages: Vec<Value> =
        heard.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let [first, second, answer] = &messages[..] else { panic!("{messages:?}") };
    for (seq, text, part) in [(0, "a", first), (1, "b", second)] {
        let params = &part["params"];
        assert_eq!((&params["partialResultToken"], &params["seq"]), (&json!(7), &json!(seq)));
        assert_eq!(params["content"][0]["text"], text);
    }
    assert_eq!(describe(answer), "answer 1 ab");
}
