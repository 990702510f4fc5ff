//! Tool calls over standard streams, in both eras: their notifications and their ends.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::{Value, json};
use streamdoor::mcp::chunks;
use streamdoor::reactor::Clock;

use crate::program::{Program, REACTORS, Scratch, assert_quiet_end};

/// The two eras, with their way to begin and to call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Era {
    Handshake,
    Stateless,
}

const ERAS: [Era; 2] = [Era::Handshake, Era::Stateless];

impl Era {
    fn begin(self, program: &mut Program) {
        if self == Era::Handshake {
            let client = json!({"name": "test", "version": "0"});
            let params = json!({
                "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client,
            });
            program.ask(0, "initialize", params);
            let answer = program.next();
            assert_eq!(answer["result"]["protocolVersion"], "2025-11-25", "{answer}");
            program.say(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        }
    }

    fn call(self, program: &mut Program, id: u64, tool: &str, arguments: Value, token: Value) {
        let mut meta = json!({});
        if !token.is_null() {
            meta["progressToken"] = token;
        }
        if self == Era::Stateless {
            meta["io.modelcontextprotocol/protocolVersion"] = "2026-07-28".into();
            meta["io.modelcontextprotocol/clientCapabilities"] = json!({});
        }
        let params = json!({"name": tool, "arguments": arguments, "_meta": meta});
        program.ask(id, "tools/call", params);
    }
}

/// The sequence numbers and texts of the chunks in a progress notification with this token.
fn chunks_of(message: &Value, token: &Value) -> Vec<(u64, String)> {
    assert_eq!(message["method"], "notifications/progress", "{message}");
    let params = &message["params"];
    assert_eq!(params["progressToken"], *token, "{message}");
    let chunks = chunks::read(params).unwrap_or_else(|error| panic!("{error}: {message}"));
    let text = |data: &[u8]| String::from_utf8(data.to_vec()).unwrap();
    chunks.iter().map(|chunk| (chunk.seq, text(&chunk.data))).collect()
}

#[test]
fn a_call_is_told_of_while_it_runs_and_answered_once() {
    for reactor in REACTORS {
        for (era, settle, token) in [
            (Era::Handshake, "0", json!(0)),
            (Era::Stateless, "0", json!("a token")),
            (Era::Handshake, "25ms", json!(0)),
            (Era::Stateless, "25ms", json!("a token")),
        ] {
            let Some(mut program) = Program::piped(reactor, &["--stdio-settle", settle]) else {
                continue;
            };
            era.begin(&mut program);
            let arguments = json!({"chunks": 20, "delay_ms": 2, "chunk_size": 60});
            era.call(&mut program, 7, "slow_data_processor", arguments, token.clone());
            let (mut told, mut last) = (Vec::new(), f64::NEG_INFINITY);
            let answer = loop {
                let message = program.next();
                if message["method"].is_null() {
                    break message;
                }
                told.extend(chunks_of(&message, &token));
                let progress = message["params"]["progress"].as_f64().unwrap();
                assert!(progress > last, "{message}");
                last = progress;
            };
            assert_eq!(answer["id"], 7, "{answer}");
            let whole = answer["result"]["content"][0]["text"].as_str().unwrap();
            assert_eq!(whole.len(), 20 * 60, "{answer}");
            assert!(!told.is_empty(), "nothing was told while it ran");
            let numbers: Vec<u64> = told.iter().map(|(seq, _)| *seq).collect();
            assert!(numbers.iter().copied().eq(1..=numbers.len() as u64), "{numbers:?}");
            let texts: String = told.into_iter().map(|(_, text)| text).collect();
            assert!(whole.starts_with(&texts), "{texts}");
            assert_quiet_end(program.finish()); // Nothing follows the result.
        }
    }
}

/// A command that has begun and must be stopped before it writes its file.
struct Work {
    shell: u32,
    file: Scratch,
}

/// Arguments of a command that prints `begun` and its process id, sleeps 5 s, and writes a file.
fn command(file: &Scratch) -> Value {
    let script = format!("echo begun $$; sleep 5; echo done > {}", file.0.display());
    json!({"argv": ["sh", "-c", script]})
}

/// Waits until the command has begun, and returns its process id.
fn until_begun(program: &mut Program, token: &Value) -> u32 {
    let mut told = String::new();
    while !told.ends_with('\n') {
        let message = program.next();
        told.extend(chunks_of(&message, token).into_iter().map(|(_, text)| text));
    }
    let process = told.trim_end().strip_prefix("begun ");
    process.and_then(|process| process.parse().ok()).unwrap_or_else(|| panic!("{told}"))
}

/// Starts a program with a running command: request 1 with the progress token 5.
fn at_work(name: &str, reactor: &str, era: Era) -> Option<(Program, Work)> {
    let mut program = Program::piped(reactor, &["--allow-commands", "sh"])?;
    era.begin(&mut program);
    let file = Scratch::new(&format!("{name}-{reactor}-{era:?}"));
    era.call(&mut program, 1, "run_command", command(&file), json!(5));
    let shell = until_begun(&mut program, &json!(5));
    Some((program, Work { shell, file }))
}

fn is_alive(process: u32) -> bool {
    // A zombie does no more work, even if its parent has not reaped it.
    std::fs::read_to_string(format!("/proc/{process}/stat"))
        .is_ok_and(|stat| stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.starts_with(" Z")))
}

/// Checks that no command wrote its file. Only the shell writes, so the check waits until it is
/// gone.
fn assert_never_written(works: &[Work]) {
    for Work { shell, file } in works {
        let begun = Clock::now();
        while is_alive(*shell) {
            assert!(Clock::now().since(begun) < Duration::from_secs(60), "{shell} goes on");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(!file.0.exists(), "{} was written", file.0.display());
    }
}

#[test]
fn the_end_of_its_input_stops_what_runs() {
    let mut works = Vec::new();
    for reactor in REACTORS {
        for era in ERAS {
            let Some((program, work)) = at_work("end", reactor, era) else { continue };
            let (said, status, log) = program.finish();
            assert_eq!((status.code(), log.as_str()), (Some(0), ""), "{said:?}");
            works.push(work);
        }
    }
    assert_never_written(&works);
}

/// The input ends before the file is read, with a newline at its end or without.
#[test]
fn a_call_right_before_the_end_of_the_input_is_answered() {
    for reactor in REACTORS {
        for end in ["", "\n"] {
            let file = Scratch::new(&format!("piped-{reactor}-{}", end.len()));
            std::fs::write(&file.0, "what is in it").unwrap();
            let root = file.0.parent().unwrap().to_str().unwrap();
            let Some(mut program) = Program::piped(reactor, &["--files-root", root]) else {
                continue;
            };
            Era::Handshake.begin(&mut program);
            let params = json!({"name": "process_file", "arguments": {"file_path": file.0}});
            let call = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params});
            let input = program.input.as_mut().unwrap();
            input.write_all(format!("{call}{end}").as_bytes()).unwrap();
            let (said, status, log) = program.finish();
            assert_eq!((status.code(), log.as_str()), (Some(0), ""), "{said:?}");
            let answer = said.last().expect("there is an answer");
            assert_eq!(answer["id"], 7, "{said:?}");
            assert!(answer.to_string().contains("what is in it"), "{answer}");
        }
    }
}

#[test]
fn a_signal_stops_what_runs() {
    let mut works = Vec::new();
    for reactor in REACTORS {
        let Some((program, work)) = at_work("signal", reactor, Era::Stateless) else {
            continue;
        };
        program.signal("TERM");
        let (_, status, _) = program.wait(); // The log says why subscribers were detached.
        assert_eq!(status.code(), Some(0));
        works.push(work);
    }
    assert_never_written(&works);
}

#[test]
fn what_is_cancelled_is_stopped_and_says_nothing_more() {
    let mut works = Vec::new();
    for reactor in REACTORS {
        for era in ERAS {
            let Some((mut program, work)) = at_work("cancel", reactor, era) else { continue };
            let params = json!({"requestId": 1, "reason": "enough"});
            let told = json!({
                "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params,
            });
            program.say(told.to_string().as_bytes());
            let arguments = json!({"chunks": 1, "delay_ms": 0, "chunk_size": 30});
            era.call(&mut program, 2, "slow_data_processor", arguments, json!(6));
            let answer = loop {
                let message = program.next();
                assert_ne!(message["params"]["progressToken"], 5, "{message}");
                if message["method"].is_null() {
                    break message;
                }
            };
            assert_eq!(answer["id"], 2, "{answer}");
            assert_quiet_end(program.finish());
            works.push(work);
        }
    }
    assert_never_written(&works);
}

#[test]
fn others_can_follow_over_http_what_runs_here() {
    for reactor in REACTORS {
        let socket = Scratch::new(&format!("http-{reactor}"));
        let listen = format!("unix:{}", socket.0.display());
        let Some(mut program) = Program::piped(reactor, &["--listen", &listen]) else { continue };
        let arguments = json!({"chunks": 3, "delay_ms": 1, "chunk_size": 40});
        Era::Stateless.call(&mut program, 1, "slow_data_processor", arguments, Value::Null);
        let answer = loop {
            let message = program.next();
            if message["method"].is_null() {
                break message;
            }
        };
        let path = answer["result"]["_meta"]["dev.streamdoor/events"].as_str();
        let path = path.unwrap_or_else(|| panic!("{answer}"));
        let mut client = UnixStream::connect(&socket.0).unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        client.write_all(request.as_bytes()).unwrap();
        let mut events = String::new();
        client.read_to_string(&mut events).unwrap();
        assert_eq!(events.matches("\"event\":\"chunk\"").count(), 3, "{events}");
        assert_quiet_end(program.finish());
    }
}
