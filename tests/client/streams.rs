//! Streams that break anywhere are still delivered whole. A stream that is not whole is no success.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::ops::ControlFlow;
use std::sync::mpsc::channel;
use std::time::Duration;

use serde_json::json;
use streamdoor::base::ExecutionId;
use streamdoor::client::{
    Client, ClientError, Cut, ExecuteOptions, FollowOptions, Reached, SeenTotals, StreamEvent,
};
use streamdoor::endpoint::{DeliveryOptions, StreamFormat};
use streamdoor::limits;
use streamdoor::stream::{EndState, Outcome, Policy};
use streamdoor::wire::events::{self, WireEvent};

use crate::server::{
    HEAD_SEQ, ID, Reply, Server, after, body_chunk, bytes_before, chunk, data, end, header,
    json as answer, reached, response, script, started, started_under, stream_head, tell,
};

const FORMATS: [StreamFormat; 2] = [StreamFormat::Sse, StreamFormat::Ndjson];

fn id() -> ExecutionId {
    ID.parse().unwrap()
}

fn options(format: StreamFormat, reconnects_max: u32) -> FollowOptions {
    let retry = Duration::from_millis(1);
    FollowOptions { format, reconnects_max, retry, ..FollowOptions::default() }
}

fn follow(server: &Server, options: FollowOptions) -> Result<Vec<StreamEvent>, ClientError> {
    Client::new(&server.url).unwrap().follow(id(), options)?.collect()
}

/// Asserts that the events are those of the script, each once.
fn check(events: &[StreamEvent]) {
    let mut told = Vec::new();
    for event in events {
        match event {
            StreamEvent::Started(started) => assert_eq!(started.from_seq, 1),
            StreamEvent::Chunk(chunk) => {
                assert_eq!(chunk.data, data(chunk.seq));
                told.push(chunk.seq);
            }
            StreamEvent::Part(part) => panic!("a part of no agent: {part:?}"),
            StreamEvent::Gap(gap) => told.extend([gap.from_seq, gap.to_seq]),
            StreamEvent::Progress(progress) => assert_eq!(progress.progress, 3.0),
            StreamEvent::End(ended) => {
                assert_eq!(ended.end.state, EndState::Ended(Outcome::Completed))
            }
        }
    }
    let names: Vec<&str> = events.iter().map(StreamEvent::name).collect();
    let expected =
        ["started", "chunk", "chunk", "chunk", "progress", "chunk", "gap", "chunk", "chunk", "end"];
    assert_eq!(names, expected);
    assert_eq!(told, [1, 2, 3, 4, 5, 7, 8, 9]);
}

/// Follows the script once for each byte at which the first connection can be cut.
fn cut_everywhere(format: StreamFormat, run: impl Fn(&Server, usize) + Sync) {
    const THREADS: usize = 32; // They mostly wait.
    let length = script(format, 0).len();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let run = &run;
            scope.spawn(move || {
                for cut_at in (thread..length).step_by(THREADS) {
                    let server = Server::new(move |count, request| {
                        let mut bytes = script(format, after(request));
                        bytes.truncate(if count == 0 { cut_at } else { usize::MAX });
                        Reply::Last(bytes)
                    });
                    run(&server, cut_at);
                }
            });
        }
    });
}

#[test]
fn a_stream_that_is_cut_at_any_byte_is_whole_and_without_repeats() {
    for format in FORMATS {
        let mut begun = stream_head(format);
        let head_bytes = begun.len();
        tell(&mut begun, format, Some(0), &started(1));
        begun.truncate(begun.len() - 2); // The event is whole before its chunk is.
        cut_everywhere(format, |server, cut_at| {
            let client = Client::new(&server.url).unwrap();
            let stream = match client.follow(id(), options(format, 3)) {
                Ok(stream) => stream,
                Err(ClientError::Cut(Cut::Closed)) if cut_at < head_bytes => return,
                Err(error) => panic!("cut at {cut_at}: {error}"),
            };
            let events: Vec<StreamEvent> = stream.map(Result::unwrap).collect();
            check(&events);
            let asked = server.asked();
            assert!(asked.len() <= 2, "cut at {cut_at}");
            assert!(asked.iter().all(|request| request.starts_with("GET /v1/executions/")));
            assert_eq!(header(&asked[0], "last-event-id"), None);
            if let Some(again) = asked.get(1) {
                let reached = reached(again);
                assert_eq!(reached.is_some(), cut_at >= begun.len(), "cut at {cut_at}");
                // The counts of seen data are sent, too: SSE has them in its ids, for NDJSON they
                // are summed.
                if let Some(Reached { seq, seen, .. }) = reached {
                    let seen_expected = SeenTotals { chunks: seq, bytes: bytes_before(seq + 1) };
                    assert_eq!(seen, Some(seen_expected), "cut at {cut_at}");
                }
            }
        });
    }
}

#[test]
fn a_call_that_is_cut_is_followed_and_never_made_twice() {
    let format = StreamFormat::Sse;
    let execute = ExecuteOptions::default();
    cut_everywhere(format, |server, cut_at| {
        let client = Client::new(&server.url).unwrap();
        let stream = client.call("t", &json!({"a": 1}), &execute, options(format, 3));
        let events: Result<Vec<StreamEvent>, ClientError> = stream.and_then(Iterator::collect);
        let asked = server.asked();
        assert!(asked[0].starts_with("POST /v1/executions?format=sse HTTP/1.1\r\n"));
        assert!(asked[0].ends_with("\r\n\r\n{\"tool\":\"t\",\"arguments\":{\"a\":1}}"));
        match events {
            Ok(events) => {
                check(&events);
                assert!(asked.len() <= 2 && asked[1..].iter().all(|text| text.starts_with("GET ")));
            }
            Err(ClientError::Cut(Cut::Closed) | ClientError::Broken { attempts: 0, .. }) => {
                let mut with_started = stream_head(format);
                tell(&mut with_started, format, Some(0), &started(1));
                assert!(cut_at < with_started.len(), "cut at {cut_at}");
                assert_eq!(asked.len(), 1);
            }
            Err(error) => panic!("cut at {cut_at}: {error}"),
        }
    });
}

#[test]
fn a_server_that_begins_again_is_not_heard_twice() {
    let server = Server::new(|count, _| {
        let mut bytes = script(StreamFormat::Sse, 0);
        let length = bytes.len();
        bytes.truncate(if count < 3 { length * (count + 2) / 6 } else { length });
        Reply::Last(bytes)
    });
    let client = Client::new(&server.url).unwrap();
    let mut stream = client.follow(id(), options(StreamFormat::Sse, 3)).unwrap();
    let events: Vec<StreamEvent> = stream.by_ref().map(Result::unwrap).collect();
    check(&events);
    assert_eq!((stream.reconnects(), stream.reported_seq()), (3, Some(HEAD_SEQ)));
    let seen = Some(SeenTotals { chunks: HEAD_SEQ, bytes: bytes_before(HEAD_SEQ + 1) });
    assert_eq!(
        stream.reached(),
        Some(Reached { seq: HEAD_SEQ, seen, has_ended: true }),
        "behind the end"
    );
    assert!(stream.next().is_none() && stream.poll().is_none());
}

#[test]
fn a_stream_without_an_end_is_an_error() {
    for format in FORMATS {
        let mut bytes = stream_head(format);
        tell(&mut bytes, format, Some(0), &started(1));
        let first = data(1);
        tell(&mut bytes, format, Some(1), &chunk(1, &first));
        let cut = bytes.clone();
        bytes.extend_from_slice(b"0\r\n\r\n"); // As if it were complete.
        for (bytes, is_complete) in [(cut, false), (bytes, true)] {
            let server = Server::new(move |_, _| Reply::Last(bytes.clone()));
            let client = Client::new(&server.url).unwrap();
            let mut stream = client.follow(id(), options(format, 0)).unwrap();
            assert_eq!(stream.next().unwrap().unwrap().name(), "started");
            assert_eq!(stream.next().unwrap().unwrap().name(), "chunk");
            let Some(Err(ClientError::Broken { attempts: 0, cause })) = stream.next() else {
                panic!("it is broken")
            };
            match *cause {
                ClientError::Cut(Cut::Unended) => assert!(is_complete),
                ClientError::Cut(Cut::Closed) => assert!(!is_complete),
                error => panic!("{error}"),
            }
            assert!(stream.next().is_none());
        }
    }
}

#[test]
fn attempts_have_an_end_and_start_again_when_something_comes() {
    // One chunk on each of the first four connections, then nothing new.
    let server = Server::new(|count, request| {
        let (format, after) = (StreamFormat::Sse, after(request));
        let mut bytes = stream_head(format);
        tell(&mut bytes, format, Some(after), &started(after + 1));
        let data = data(after + 1);
        if count < 4 {
            tell(&mut bytes, format, Some(after + 1), &chunk(after + 1, &data));
        }
        Reply::Last(bytes)
    });
    let client = Client::new(&server.url).unwrap();
    let mut stream = client.follow(id(), options(StreamFormat::Sse, 2)).unwrap();
    for _ in 0..5 {
        stream.next().unwrap().unwrap();
    }
    let error = stream.next().unwrap().unwrap_err();
    assert!(matches!(error, ClientError::Broken { attempts: 2, .. }), "{error}");
    assert_eq!((stream.reported_seq(), stream.reconnects()), (Some(4), 5));
    assert_eq!(server.asked().len(), 6);
}

#[test]
fn what_an_answer_without_a_stream_means() {
    let with = |first_bytes: Vec<u8>, rest: Vec<u8>| {
        Server::new(move |count, _| {
            Reply::Last(if count == 0 { first_bytes.clone() } else { rest.clone() })
        })
    };
    let nothing = b"HTTP/1.1 204 No Content\r\n\r\n".to_vec();
    let gone = answer(404, r#"{"error": {"code": "not_found", "message": "no such\u001b[2J"}}"#);
    let mut begun = script(StreamFormat::Sse, 0);
    begun.truncate(begun.len() / 2);

    let server = with(nothing.clone(), nothing.clone());
    for (seq, seen, behind) in [
        (HEAD_SEQ, None, "9:end"),
        (HEAD_SEQ, Some(SeenTotals { chunks: HEAD_SEQ, bytes: 70 }), "9:70:end"),
        (0, Some(SeenTotals { chunks: 0, bytes: 0 }), "0:0:end"),
    ] {
        let after = Some(Reached { seq, seen, has_ended: true });
        let finished = FollowOptions { after, ..FollowOptions::default() };
        assert_eq!(follow(&server, finished).unwrap(), []);
        let cursor = format!("{ID}:{behind}");
        assert_eq!(header(&server.asked()[0], "last-event-id"), Some(cursor.as_str()));
    }

    let error = follow(&with(gone.clone(), vec![]), FollowOptions::default()).unwrap_err();
    let refused = error.refused().unwrap();
    assert_eq!((refused.status.code(), refused.code.as_str()), (404, "not_found"));
    assert_eq!(refused.message, "no such[2J", "it cannot command a terminal");

    // In the middle of a stream each of these is an error, because no end was received.
    let error = follow(&with(begun.clone(), gone), FollowOptions::default()).unwrap_err();
    assert_eq!(error.refused().unwrap().status.code(), 404);
    let error = follow(&with(begun, nothing), FollowOptions::default()).unwrap_err();
    assert!(matches!(error, ClientError::Protocol(_)), "{error}");

    let html = with(response(200, "text/html", b"<p>"), vec![]);
    let error = follow(&html, FollowOptions::default()).unwrap_err();
    assert!(error.to_string().contains("200 text/html"), "{error}");
}

#[test]
#[allow(clippy::disallowed_methods)] // The real time.
fn a_server_that_is_busy_is_asked_again_after_what_it_says() {
    let server = Server::new(|count, request| {
        let mut bytes = script(StreamFormat::Sse, after(request));
        match count {
            0 => bytes.truncate(bytes.len() / 2),
            1 => bytes = b"HTTP/1.1 503 -\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n".to_vec(),
            _ => {}
        }
        Reply::Last(bytes)
    });
    let began = std::time::Instant::now();
    check(&follow(&server, FollowOptions::default()).unwrap());
    assert!(began.elapsed() >= Duration::from_secs(1));
    assert_eq!(server.asked().len(), 3);
}

#[test]
fn silence_is_a_cut() {
    let server = Server::new(|count, request| {
        let mut bytes = script(StreamFormat::Sse, after(request));
        if count > 0 {
            return Reply::Last(bytes);
        }
        bytes.truncate(bytes.len() / 2);
        Reply::Silence(bytes)
    });
    // Long enough for the second reply, which must not count as silence.
    let silence_max = Duration::from_secs(3);
    let options = FollowOptions { silence_max, ..FollowOptions::default() };
    check(&follow(&server, options).unwrap());
    assert_eq!(server.asked().len(), 2);
}

/// Follows a stream of one connection that `tell_all` writes.
fn told(tell_all: impl Fn(&mut Vec<u8>)) -> Result<Vec<StreamEvent>, ClientError> {
    let mut bytes = stream_head(StreamFormat::Sse);
    tell_all(&mut bytes);
    bytes.extend_from_slice(b"0\r\n\r\n");
    let server = Server::new(move |_, _| Reply::Last(bytes.clone()));
    follow(&server, options(StreamFormat::Sse, 0))
}

#[test]
fn what_is_not_right_is_not_passed_on() {
    let sse = StreamFormat::Sse;
    let ended = |given: u64| end(events::EndState::Ended("completed"), 1..given + 1, given);
    let first = data(1);
    let begin = |out: &mut Vec<u8>| {
        tell(out, sse, Some(0), &started(1));
        tell(out, sse, Some(1), &chunk(1, &first));
    };
    let all = told(|out| {
        begin(out);
        tell(out, sse, Some(1), &ended(1));
    });
    assert_eq!(all.unwrap().len(), 3);

    let third = data(3);
    let result = told(|out| {
        begin(out);
        tell(out, sse, Some(3), &chunk(3, &third));
    });
    let hole = |result| match result {
        Err(ClientError::Hole { expected_seq, found_seq }) => (expected_seq, found_seq),
        other => panic!("{other:?}"),
    };
    assert_eq!(hole(result), (2, 3));
    let result = told(|out| {
        begin(out);
        tell(out, sse, Some(2), &ended(1)); // Chunk 2 was lost before the end.
    });
    assert_eq!(hole(result), (2, 3));

    let protocol = |result: Result<Vec<StreamEvent>, ClientError>, word: &str| match result {
        Err(ClientError::Protocol(text)) if text.contains(word) => {}
        other => panic!("{word}: {other:?}"),
    };
    protocol(told(|out| tell(out, sse, Some(1), &chunk(1, &first))), "first event");
    protocol(told(|out| (0..2).for_each(|_| tell(out, sse, Some(0), &started(1)))), "twice");
    let result = told(|out| {
        begin(out);
        tell(out, sse, Some(1), &ended(2));
    });
    protocol(result, "the end reports");
    protocol(told(|out| body_chunk(out, b"data: {\n\n")), "JSON");
    protocol(told(|out| body_chunk(out, b"data: {\"event\":\"end\"}\n\n")), "`execution`");
    let renamed = told(|out| {
        let mut frame = b"id: 7\nevent: chunk\ndata: ".to_vec();
        started(1).write_json(&mut frame);
        frame.extend_from_slice(b"\n\n");
        body_chunk(out, &frame);
    });
    protocol(renamed, "two names");
    let foreign = told(|out| {
        let mut frame = Vec::new();
        started(1).write_json(&mut frame);
        let text = String::from_utf8(frame).unwrap().replace(ID, &ID.replace('a', "b"));
        body_chunk(out, format!("event: started\ndata: {text}\n\n").as_bytes());
    });
    protocol(foreign, "another execution");
    let line = vec![b'x'; limits::STREAM_LINE_BYTES_MAX + 1];
    protocol(told(|out| body_chunk(out, &line)), "a line has more than");
}

#[test]
fn a_closure_can_take_events_and_have_enough_of_them() {
    let server = Server::new(|_, request| Reply::Last(script(StreamFormat::Sse, after(request))));
    let client = Client::new(&server.url).unwrap();
    let stream = || client.follow(id(), FollowOptions::default()).unwrap();
    let mut events = Vec::new();
    let ended = stream().run(|event| {
        events.push(event.clone());
        ControlFlow::Continue(())
    });
    check(&events);
    assert_eq!(StreamEvent::End(ended.unwrap().unwrap()), events.pop().unwrap());
    let mut count = 0;
    let ended = stream().run(|_| {
        count += 1;
        if count == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!((ended.unwrap(), count), (None, 3));
}

#[test]
fn nothing_is_acknowledged_once_the_end_is_here() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (taken_sender, taken) = channel();
    let (written_sender, written) = channel();
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 4_096];
        assert!(stream.read(&mut request).unwrap() > 0);
        let sse = StreamFormat::Sse;
        // So many chunks that an acknowledgement is due.
        let mut bytes = stream_head(sse);
        tell(&mut bytes, sse, Some(0), &started_under("block", 1));
        (1..=20).for_each(|seq| tell(&mut bytes, sse, Some(seq), &chunk(seq, &data(seq))));
        stream.write_all(&bytes).unwrap();
        taken.recv().unwrap();
        let mut rest = Vec::new();
        let state = events::EndState::Ended("completed");
        let WireEvent::End(ended) = end(state, 1..=20, 20) else { unreachable!() };
        let whole = events::EndEvent { missed_chunks: 0, missed_bytes: 0, ..ended };
        tell(&mut rest, sse, Some(20), &WireEvent::End(whole));
        rest.extend_from_slice(b"0\r\n\r\n");
        stream.write_all(&rest).unwrap();
        written_sender.send(()).unwrap();
        listener
    });
    let follow = options(StreamFormat::Sse, 0);
    let delivery_options = DeliveryOptions { policy: Some(Policy::Block), ..<_>::default() };
    let follow = FollowOptions { delivery_options, ..follow };
    let mut last = None;
    for event in Client::new(&url).unwrap().follow(id(), follow).unwrap() {
        let event = event.unwrap();
        if matches!(&event, StreamEvent::Chunk(chunk) if chunk.seq == 20) {
            taken_sender.send(()).unwrap();
            written.recv().unwrap();
        }
        last = Some(event);
    }
    assert!(matches!(last, Some(StreamEvent::End(_))), "{last:?}");
    let listener = serving.join().unwrap();
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "an acknowledgement was sent");
}
