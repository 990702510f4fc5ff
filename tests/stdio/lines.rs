//! Input lines: many at once, too long ones, and lines that are not messages.

use std::io::Write;

use serde_json::Value;

use crate::program::{Program, REACTORS, assert_quiet_end, pong};

/// Checks that a reply is an error with one of these codes, and without an id, as none can be read.
#[track_caller]
fn assert_refused(answer: &Value, codes: &[i64]) {
    assert!(codes.contains(&answer["error"]["code"].as_i64().unwrap()), "{answer}");
    assert!(answer.get("id").is_none(), "{answer}");
    assert!(answer["error"]["message"].as_str().is_some_and(|text| text.len() < 300), "{answer}");
}

const PARSE_ERROR: i64 = -32_700;
const INVALID_REQUEST: i64 = -32_600;

#[test]
fn ten_thousand_at_once_are_answered_in_order() {
    for reactor in REACTORS {
        let Some(mut program) = Program::piped(reactor, &[]) else { continue };
        let mut input = program.input.take().unwrap();
        let writing = std::thread::spawn(move || {
            let lines: String = (0..10_000)
                .map(|id| format!("{{\"id\":{id},\"method\":\"ping\",\"jsonrpc\":\"2.0\"}}\n"))
                .collect();
            input.write_all(lines.as_bytes()).unwrap();
            input
        });
        for id in 0..10_000 {
            assert_eq!(program.next(), pong(id));
        }
        program.input = Some(writing.join().unwrap());
        assert_quiet_end(program.finish());
    }
}

/// The program waits while nobody reads its output, and loses none of ten thousand replies.
#[test]
fn whoever_does_not_read_is_waited_for() {
    for reactor in REACTORS {
        let Some(mut program) = Program::piped(reactor, &[]) else { continue };
        let mut input = program.input.take().unwrap();
        let writing = std::thread::spawn(move || {
            for id in 0..10_000 {
                let line = format!("{{\"id\":{id},\"method\":\"ping\",\"jsonrpc\":\"2.0\"}}\n");
                input.write_all(line.as_bytes()).unwrap(); // Blocks once all buffers are full.
            }
        });
        std::thread::sleep(std::time::Duration::from_millis(50)); // Usually they are full by then.
        for id in 0..10_000 {
            assert_eq!(program.next(), pong(id));
        }
        writing.join().unwrap();
        assert_quiet_end(program.finish());
    }
}

#[test]
fn a_line_that_is_too_long_is_refused_and_the_next_is_not() {
    for reactor in REACTORS {
        let Some(mut program) = Program::piped(reactor, &[]) else { continue };
        let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping""#;
        let padded = |bytes: usize| format!("{ping}{}}}", " ".repeat(bytes - ping.len() - 1));
        program.say(padded(1 << 20).as_bytes());
        assert_eq!(program.next(), pong(1));
        program.say(padded((1 << 20) + 1).as_bytes());
        assert_refused(&program.next(), &[PARSE_ERROR, INVALID_REQUEST]);
        program.say(&vec![b'x'; 16 << 20]);
        assert_refused(&program.next(), &[PARSE_ERROR, INVALID_REQUEST]);
        program.ping(2);
        assert_quiet_end(program.finish());
    }
}

#[test]
fn what_is_no_message_is_refused_and_the_next_is_not() {
    let deep = |count: usize| [vec![b'['; count], vec![b']'; count]].concat();
    let nested = [br#"{"jsonrpc":"2.0","id":1,"method":"ping","params":"#, &deep(500)[..], b"}"];
    let cases: [(&[u8], i64); 11] = [
        (b"{", PARSE_ERROR),
        (b"hello", PARSE_ERROR),
        (b"{}", INVALID_REQUEST),
        (b"[]", INVALID_REQUEST),
        (br#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, INVALID_REQUEST),
        (b"\xff\xfe", PARSE_ERROR),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"x\":\"\xc3\x28\"}", PARSE_ERROR),
        (&deep(100_000), PARSE_ERROR),
        (&deep(500_000), PARSE_ERROR),
        (&nested.concat(), PARSE_ERROR),
        (br#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, INVALID_REQUEST),
    ];
    for reactor in REACTORS {
        let Some(mut program) = Program::piped(reactor, &[]) else { continue };
        for (line, code) in &cases {
            program.say(line);
            assert_refused(&program.next(), &[*code]);
        }
        program.say(b""); // An empty line has no reply.
        program.say(b"  \r");
        program.ping(2);
        assert_quiet_end(program.finish());
    }
}

#[test]
fn half_a_line_at_the_end_is_refused_and_a_whole_one_is_answered() {
    for reactor in REACTORS {
        for (text, is_whole) in [
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, true),
            (r#"{"jsonrpc":"2.0","id":1,"method":"pi"#, false),
        ] {
            let Some(mut program) = Program::piped(reactor, &[]) else { continue };
            program.ping(0);
            program.input.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
            let (said, status, log) = program.finish();
            assert_eq!((said.len(), status.code(), log.as_str()), (1, Some(0), ""));
            match is_whole {
                true => assert_eq!(said[0], pong(1)),
                false => assert_refused(&said[0], &[PARSE_ERROR]),
            }
        }
    }
}
