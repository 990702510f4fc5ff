//! Tests of the view of a run, part by part.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use streamdoor::agent::{
    Arguments, Body, Continuation, Data, Decision, Final, FinalState, PartProgress, Partial,
    Reason, RunPart, StepSummary, ToolExecution, Usage,
};
use streamdoor::base::Instant;
use streamdoor::stream::{Kind, Outcome};

use super::screen::{Screen, ScreenText, Style};

const TERMINAL: Style = Style {
    answer_is_terminal: true,
    status_is_terminal: true,
    has_colours: true,
    columns: 60,
    shows_output: false,
};
const PIPE: Style = Style {
    answer_is_terminal: false,
    status_is_terminal: false,
    has_colours: false,
    columns: 60,
    shows_output: false,
};

fn id(call: &str) -> Arc<str> {
    call.into()
}

fn text(delta: &str) -> Body {
    Body::Partial(Partial::TextDelta {
        delta: delta.to_owned(),
        offset: 0,
        accumulated_text: None,
        accumulated_truncated: false,
    })
}

fn reasoning(delta: &str) -> Body {
    Body::Partial(Partial::ReasoningDelta { delta: delta.to_owned(), offset: 0 })
}

fn started(call: &str, name: &str) -> Body {
    Body::Partial(Partial::ToolCallStarted { tool_call_id: id(call), tool_name: name.into() })
}

fn arguments(call: &str, value: serde_json::Value) -> Body {
    let arguments = Arguments::Valid(value);
    let (tool_call_id, tool_name) = (id(call), "tool".into());
    Body::Final(Final::ToolCallArgsCompleted { tool_call_id, tool_name, arguments })
}

fn output(call: &str, said: &str) -> Body {
    Body::Partial(Partial::ToolOutputChunk {
        tool_call_id: id(call),
        execution: None,
        output_seq: 1,
        offset: 0,
        kind: Kind::Output,
        data: Data::Text(said.to_owned()),
        more: false,
    })
}

fn progress(call: &str, percentage: f64) -> Body {
    let progress = PartProgress { percentage: Some(percentage), ..Default::default() };
    Body::Partial(Partial::ToolProgress { tool_call_id: id(call), progress })
}

fn over(call: &str, outcome: Outcome, error: Option<&str>) -> Body {
    let execution = Box::new(ToolExecution {
        tool_call_id: call.to_owned(),
        name: "tool".to_owned(),
        execution: None,
        arguments: Arguments::Valid(json!({})),
        output: String::new(),
        output_truncated: false,
        output_bytes: 0,
        outcome,
        exit: None,
        error: error.map(str::to_owned),
        started_us: 0,
        duration_us: 1_234_000,
    });
    let tool_call_id = id(call);
    Body::Final(match outcome {
        Outcome::Completed => Final::ToolCallCompleted { tool_call_id, execution },
        _ => Final::ToolCallFailed { tool_call_id, execution },
    })
}

fn step_over() -> Body {
    let outcome = Continuation { decision: Decision::Stop, reason: Reason::Stop };
    let step = StepSummary {
        number: 1,
        text: String::new(),
        text_truncated: false,
        tool_calls: Vec::new(),
        tool_calls_truncated: false,
        finish_reason: None,
        duration_us: 0,
    };
    Body::Final(Final::StepCompleted { step, outcome, usage: None })
}

fn run_over() -> Body {
    let usage = Usage { input_tokens: 1_834, output_tokens: 96, ..Default::default() };
    Body::Final(Final::ExecutionCompleted {
        final_state: FinalState {
            step_count: 3,
            text: String::new(),
            text_truncated: false,
            usage,
            reason: Reason::Stop,
            tool_call_count: 2,
            duration_us: 4_210_000,
        },
    })
}

/// Returns the pieces for these parts, which arrive at the interval `apart`.
fn shown(style: Style, apart: Duration, bodies: &[Body]) -> Vec<ScreenText> {
    let (mut screen, mut now, mut out) = (Screen::new(style), Instant::ZERO, Vec::new());
    for body in bodies {
        let (agent_id, body) = ("a".into(), body.clone());
        let part = RunPart { seq: 1, agent_id, step_number: 1, timestamp_us: 0, body };
        now += apart;
        screen.take(&part, now, &mut out);
    }
    out
}

fn joined(pieces: &[ScreenText]) -> (String, String) {
    let (mut answer, mut status) = (String::new(), String::new());
    for piece in pieces {
        match piece {
            ScreenText::Answer(text) => answer += text,
            ScreenText::Status(text) => status += text,
        }
    }
    (answer, status)
}

/// Returns the final state of a terminal that shows both outputs. It supports line ends, cursor up
/// and erasing.
fn screen_of(pieces: &[ScreenText]) -> Vec<String> {
    let (mut lines, mut row) = (vec![String::new()], 0);
    for piece in pieces {
        let (ScreenText::Answer(text) | ScreenText::Status(text)) = piece;
        let mut rest = text.as_str();
        while let Some(c) = rest.chars().next() {
            if let Some(code) = rest.strip_prefix("\x1b[") {
                let end = code.find(|c: char| c.is_ascii_alphabetic()).unwrap();
                match (&code[..end], &code[end..=end]) {
                    (count, "A") => row -= count.parse::<usize>().unwrap(),
                    (_, "J") => {
                        lines.truncate(row);
                        lines.push(String::new());
                    }
                    (_, "m") => {}
                    other => panic!("{other:?}"),
                }
                rest = &code[end + 1..];
                continue;
            }
            match c {
                '\r' => {}
                '\n' => {
                    row += 1;
                    if row == lines.len() {
                        lines.push(String::new());
                    }
                }
                c => lines[row].push(c),
            }
            rest = &rest[c.len_utf8()..];
        }
    }
    lines
}

#[test]
fn a_pipe_gets_the_text_of_the_model_and_nothing_else() {
    let parts = [
        reasoning("hm"),
        text("Let me "),
        text("look."),
        started("a", "tool"),
        arguments("a", json!({"x": 1})),
        output("a", "line\n"),
        over("a", Outcome::Completed, None),
        step_over(),
        text("Done.\n"),
        step_over(),
        run_over(),
    ];
    let (answer, status) = joined(&shown(PIPE, Duration::ZERO, &parts));
    assert_eq!(answer, "Let me look.\nDone.\n");
    let expected = "* tool {\"x\":1}\n+ tool {\"x\":1}: 1 chunk, 5 bytes, in 1.23 s\n\
                    3 steps, 1 call, 1,834 tokens in, 96 out, 4.21 s\n";
    assert_eq!(status, expected);
}

#[test]
fn tools_have_a_line_each_that_is_drawn_in_its_place() {
    let parts = [
        text("Let me look."),
        started("a", "search"),
        started("b", "run"),
        arguments("a", json!({"x": 1})),
        output("a", "first\nsecond\n"),
        progress("b", 40.0),
    ];
    let second = Duration::from_secs(1);
    let lines = screen_of(&shown(TERMINAL, second, &parts));
    let expected =
        ["Let me look.", "* search {\"x\":1}: 1 chunk, 13 bytes | second", "* run: 40 %", ""];
    assert_eq!(lines, expected);
    let more = [
        over("a", Outcome::Completed, None),
        over("b", Outcome::Failed, Some("exit code 1")),
        step_over(),
        run_over(),
    ];
    let lines = screen_of(&shown(TERMINAL, second, &[&parts[..], &more].concat()));
    let expected = [
        "Let me look.",
        "+ search {\"x\":1}: 1 chunk, 13 bytes, in 1.23 s",
        "! run: in 1.23 s: exit code 1",
        "3 steps, 2 calls (1 failed), 1,834 tokens in, 96 out, 4.21 s",
        "",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn what_comes_fast_is_not_drawn_each_time() {
    let begin = [started("a", "tool"), arguments("a", json!({}))];
    let many = vec![output("a", "x"); 10_000];
    let parts = [&begin[..], &many].concat();
    let (_, status) = joined(&shown(TERMINAL, Duration::from_micros(10), &parts));
    assert!(status.matches('\n').count() <= 5, "{status}"); // The run takes 100 ms.
    let (_, status) = joined(&shown(PIPE, Duration::from_micros(300), &parts));
    assert_eq!(status.lines().count(), 1 + 2, "{status}"); // 3 s, one line a second.
}

#[test]
fn text_behind_lines_of_tools_begins_a_line() {
    let parts = [started("a", "tool"), text("Meanwhile"), output("a", "x"), text("more")];
    let lines = screen_of(&shown(TERMINAL, Duration::from_secs(1), &parts));
    assert_eq!(lines, ["Meanwhile", "more"]);
    let parts = [reasoning("hm"), text("Yes."), reasoning("well")];
    let pieces = shown(TERMINAL, Duration::ZERO, &parts);
    assert_eq!(screen_of(&pieces), ["hm", "Yes.", "well"]);
    assert_eq!(pieces[0], ScreenText::Status("\x1b[2mhm\x1b[0m".to_owned()));
}

#[test]
fn nobody_commands_the_terminal() {
    let evil = "\x1b[2J\x07\u{9b}31m\r";
    let parts = [
        text(evil),
        reasoning(evil),
        started("a", evil),
        arguments("a", json!({"x": evil})),
        output("a", evil),
        over("a", Outcome::Failed, Some(evil)),
    ];
    for style in [TERMINAL, Style { has_colours: false, ..TERMINAL }] {
        let (answer, status) = joined(&shown(style, Duration::from_secs(1), &parts));
        assert!(answer.starts_with("^[[2J^G<U+009B>31m^M"), "{answer:?}");
        // The view uses only these sequences: up, erase, dim.
        let mut rest = status.as_str();
        while let Some((_, behind)) = rest.split_once('\x1b') {
            let is_ours = ["[2m", "[0m", "[J", "[1A"].iter().any(|code| behind.starts_with(code));
            assert!(is_ours, "{status:?}");
            rest = behind;
        }
        assert!(!status.contains(['\x07', '\u{9b}']), "{status:?}");
    }
    // Without a terminal, the text is unchanged.
    assert_eq!(joined(&shown(PIPE, Duration::ZERO, &[text(evil)])).0, evil);
}

#[test]
fn long_lines_are_cut_where_the_terminal_ends() {
    let long = "ü".repeat(500);
    let parts = [started("a", "tool"), arguments("a", json!({"x": long})), output("a", &long)];
    for line in screen_of(&shown(TERMINAL, Duration::from_secs(1), &parts)) {
        assert!(line.chars().count() < TERMINAL.columns, "{line}");
    }
}

#[test]
fn the_output_of_tools_is_shown_line_by_line_if_it_is_wanted() {
    let parts = [
        started("1", "search"),
        arguments("1", json!({})),
        output("1", "one\ntw"),
        output("1", "o\n\x1b[2Jthree"),
        over("1", Outcome::Completed, None),
    ];
    let style = Style { shows_output: true, ..PIPE };
    let lines = |style| {
        let (_, status) = joined(&shown(style, Duration::from_secs(1), &parts));
        status.lines().filter(|line| line.starts_with("  ")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(lines(style), ["  search | one", "  search | two", "  search | ^[[2Jthree"]);
    assert!(lines(PIPE).is_empty());
}
