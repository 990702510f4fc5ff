//! A server that follows a script, and the stream that it sends.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};

use streamdoor::endpoint::StreamFormat;
use streamdoor::wire::events::{self, WireEvent};
use streamdoor::wire::http1::{
    BODY_END, CHUNK_END, Framing, ResponseHead, Status, http_date, write_chunk_size,
};
use streamdoor::wire::sse;

/// The execution of all scripts.
pub const ID: &str = "0000000000000000000000000a";

/// A server on a port of its own.
pub struct Server {
    pub url: String,
    /// Each request as received: head and body.
    pub requests: Receiver<String>,
}

/// The request that stops a server.
const STOP: &str = "STOP\r\n\r\n";

impl Drop for Server {
    fn drop(&mut self) {
        let address = self.url.strip_prefix("http://").unwrap();
        if let Ok(mut stream) = TcpStream::connect(address) {
            let _ = stream.write_all(STOP.as_bytes()); // It may have stopped by itself.
        }
    }
}

/// The action of a server after a request.
pub enum Reply {
    /// Sends these bytes, and closes the connection.
    Last(Vec<u8>),
    /// Sends these bytes, and waits for the next request on the same connection.
    More(Vec<u8>),
    /// Sends these bytes and nothing more, for as long as the client stays.
    Silence(Vec<u8>),
}

impl Server {
    /// Starts a server that answers requests one after the other. `answer` receives the number of
    /// each, from 0.
    pub fn new(mut answer: impl FnMut(usize, &str) -> Reply + Send + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (sender, requests) = channel();
        std::thread::spawn(move || {
            let mut count = 0;
            let mut kept = None; // Connections on which nothing more is sent.
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                drop(kept.take());
                while let Some(request) = request(&mut stream) {
                    if request == STOP {
                        return;
                    }
                    let reply = answer(count, &request);
                    count += 1;
                    if sender.send(request).is_err() {
                        return; // The test is over.
                    }
                    match reply {
                        Reply::More(bytes) => stream.write_all(&bytes).unwrap(),
                        Reply::Last(bytes) => {
                            let _ = stream.write_all(&bytes); // The client may have disconnected.
                            let _ = stream.shutdown(Shutdown::Write);
                            break;
                        }
                        Reply::Silence(bytes) => {
                            stream.write_all(&bytes).unwrap();
                            kept = Some(stream.try_clone().unwrap());
                            break;
                        }
                    }
                }
            }
        });
        Server { url, requests }
    }

    /// Returns the requests received so far.
    pub fn asked(&self) -> Vec<String> {
        self.requests.try_iter().collect()
    }
}

/// Returns the next request, or `None` if the connection ends.
fn request(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        take(stream, &mut bytes)?;
    };
    let head = String::from_utf8(bytes[..head_end].to_vec()).unwrap();
    let body_bytes: usize = header(&head, "content-length").map_or(0, |text| text.parse().unwrap());
    while bytes.len() < head_end + body_bytes {
        take(stream, &mut bytes)?;
    }
    Some(String::from_utf8(bytes).unwrap())
}

fn take(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Option<()> {
    let mut piece = [0; 4_096];
    let count = stream.read(&mut piece).ok().filter(|count| *count > 0)?;
    bytes.extend_from_slice(&piece[..count]);
    Some(())
}

/// Returns the value of a header.
pub fn header<'a>(request: &'a str, name: &str) -> Option<&'a str> {
    let named = |line: &'a str| line.strip_prefix(name)?.strip_prefix(": ");
    request.lines().find_map(named)
}

/// Returns a whole JSON reply.
pub fn json(code: u16, body: &str) -> Vec<u8> {
    response(code, "application/json", body.as_bytes())
}

pub fn response(code: u16, media_type: &str, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let (status, date) = (Status::new(code).unwrap(), http_date(0));
    let mut head = ResponseHead::begin(&mut out, status, &date);
    head.header("content-type", media_type).unwrap();
    head.finish(Framing::Length(body.len() as u64), true);
    out.extend_from_slice(body);
    out
}

/// Returns the head of a stream.
pub fn stream_head(format: StreamFormat) -> Vec<u8> {
    let mut out = Vec::new();
    let date = http_date(0);
    let mut head = ResponseHead::begin(&mut out, Status::OK, &date);
    head.header("content-type", format.media_type()).unwrap();
    head.finish(Framing::Chunked, true);
    if format == StreamFormat::Sse {
        let mut retry = Vec::new();
        sse::write_retry(&mut retry, std::time::Duration::from_millis(1));
        retry.extend_from_slice(sse::KEEP_ALIVE);
        body_chunk(&mut out, &retry);
    }
    out
}

pub fn body_chunk(out: &mut Vec<u8>, content: &[u8]) {
    write_chunk_size(out, content.len());
    out.extend_from_slice(content);
    out.extend_from_slice(CHUNK_END);
}

/// Writes an event as an HTTP chunk, with the cursor after it.
pub fn tell(out: &mut Vec<u8>, format: StreamFormat, seq: Option<u64>, event: &WireEvent<'_>) {
    let mut frame = Vec::new();
    match format {
        StreamFormat::Ndjson => event.write_line(&mut frame),
        StreamFormat::Sse | StreamFormat::Front(_) => {
            if let Some(seq) = seq {
                let has_ended = matches!(event, WireEvent::End(_));
                let bytes = bytes_before(seq + 1);
                let cursor = sse::Cursor { execution: ID, seq, bytes, chunks: None, has_ended };
                sse::write_cursors(&mut frame, &[cursor]);
            }
            sse::write_event(&mut frame, event);
            frame.extend_from_slice(sse::END);
        }
    }
    body_chunk(out, &frame);
}

/// Returns the data of chunk `seq` of the script: text, and every third time bytes that are no
/// text.
pub fn data(seq: u64) -> Vec<u8> {
    match seq % 3 {
        0 => vec![0xFF, seq as u8, 0],
        _ => format!("chunk {seq}\r\n\n").into_bytes(),
    }
}

/// Returns the number of bytes in all chunks before `seq`.
pub fn bytes_before(seq: u64) -> u64 {
    (1..seq).map(|seq| data(seq).len() as u64).sum()
}

/// The last chunk of the script. Chunks 5 to 7 are a gap.
pub const HEAD_SEQ: u64 = 9;

pub fn started(from_seq: u64) -> WireEvent<'static> {
    started_under("drop", from_seq)
}

pub fn started_under(policy: &'static str, from_seq: u64) -> WireEvent<'static> {
    WireEvent::Started(events::StartedEvent {
        execution: ID,
        subscriber: "s0.1",
        tool: "t",
        token: None,
        policy,
        limits: events::Limits { chunks: 10, bytes: None },
        from_seq,
        replay: None,
    })
}

pub fn chunk(seq: u64, data: &[u8]) -> WireEvent<'_> {
    WireEvent::Chunk(events::ChunkEvent {
        execution: ID,
        seq,
        total_chunks: None,
        kind: "output",
        key: None,
        offset: bytes_before(seq),
        data,
        timestamp_us: 0,
        mono_ns: 0,
    })
}

/// Returns the end of an execution whose last chunk is `last`, for a client that received the
/// chunks of `given`.
pub fn end(
    state: events::EndState<'static>,
    given: impl Iterator<Item = u64>,
    last: u64,
) -> WireEvent<'static> {
    let lengths: Vec<u64> = given.map(|seq| data(seq).len() as u64).collect();
    WireEvent::End(events::EndEvent {
        execution: ID,
        state,
        chunks: lengths.len() as u64,
        bytes: lengths.iter().sum(),
        missed_chunks: 3,
        missed_bytes: bytes_before(8) - bytes_before(5),
        execution_chunks: last,
        execution_bytes: bytes_before(last + 1),
        duration_us: 1,
        exit: None,
        error: None,
    })
}

/// Returns the whole reply to a client that has everything up to `after`. From the beginning it is
/// three chunks, progress, a chunk, a gap, two chunks, and the end.
pub fn script(format: StreamFormat, after: u64) -> Vec<u8> {
    script_under("drop", format, after)
}

/// Returns the same reply under another policy.
pub fn script_under(policy: &'static str, format: StreamFormat, after: u64) -> Vec<u8> {
    let mut out = stream_head(format);
    tell(&mut out, format, Some(after), &started_under(policy, after + 1));
    let mut told = after;
    for seq in 1..=HEAD_SEQ {
        if seq == 4 && after < 4 {
            let progress = WireEvent::Progress(events::ProgressEvent {
                execution: ID,
                token: None,
                progress: 3.0,
                total: None,
                percentage: None,
                message: None,
                context: None,
            });
            tell(&mut out, format, Some(told), &progress);
        }
        if seq <= after || matches!(seq, 6 | 7) {
            continue;
        }
        told = if seq == 5 { 7 } else { seq };
        let data = data(seq);
        let event = match seq {
            5 => WireEvent::Gap(events::GapEvent {
                execution: ID,
                from_seq: 5,
                to_seq: 7,
                chunk_count: 3,
                byte_count: bytes_before(8) - bytes_before(5),
                reason: "lag",
            }),
            _ => chunk(seq, &data),
        };
        tell(&mut out, format, Some(told), &event);
    }
    let given = (after + 1..=HEAD_SEQ).filter(|seq| !(5..=7).contains(seq));
    let end = end(events::EndState::Ended("completed"), given, HEAD_SEQ);
    tell(&mut out, format, Some(HEAD_SEQ), &end);
    out.extend_from_slice(BODY_END);
    out
}

/// Returns the position that a request resumes from, with the counts of seen chunks and bytes if it
/// has them.
pub fn reached(request: &str) -> Option<sse::Reached> {
    let cursors = sse::parse_cursors(header(request, "last-event-id")?).unwrap();
    cursors.of(&[ID.parse().unwrap()]).unwrap().next()
}

/// Returns the last chunk before that position, or 0.
pub fn after(request: &str) -> u64 {
    reached(request).map_or(0, |reached| reached.seq)
}
