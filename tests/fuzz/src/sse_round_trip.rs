//! Any event through our encoders and back through our decoders, as server-sent events and as
//! NDJSON, cut anywhere. The output of a tool cannot become an event, an id or another line.

use streamdoor::base::{ExecutionId, Handle};
use streamdoor::stream::{DetachReason, GapReason, Kind, Policy};
use streamdoor::wire::events::{self, WireEvent};
use streamdoor::wire::{ndjson, sse};
use streamdoor::{client, limits};

use super::draw::{Draw, cuts};

/// The contents of an event. It owns the texts that the event borrows.
struct Parts {
    execution: ExecutionId,
    name: String,
    texts: [String; 2],
    data: Vec<u8>,
    numbers: [u64; 6],
    choice: usize,
    flags: u8,
}

impl Parts {
    fn draw(draw: &mut Draw<'_>) -> Parts {
        let slot = Handle { index: u32::from(draw.byte()), generation: 7 };
        let execution = ExecutionId { shard: draw.byte() % 64, slot, nonce: draw.word() };
        let (choice, flags) = (draw.below(5), draw.byte());
        let texts = [draw.text(), draw.text()];
        let count = usize::from(draw.byte());
        let data = draw.bytes(count).to_vec();
        let numbers = std::array::from_fn(|_| draw.number());
        Parts { execution, name: execution.to_string(), texts, data, numbers, choice, flags }
    }

    fn if_flag<T>(&self, flag: u32, value: T) -> Option<T> {
        (self.flags >> flag & 1 == 1).then_some(value)
    }

    fn pick<T: Copy>(&self, all: &[T]) -> T {
        all[self.numbers[5] as usize % all.len()]
    }

    fn event(&self) -> WireEvent<'_> {
        let execution = self.name.as_str();
        let [a, b, c, d, e, _] = self.numbers;
        let [text, other] = &self.texts;
        match self.choice {
            0 => WireEvent::Started(events::StartedEvent {
                execution,
                subscriber: text,
                tool: other,
                token: None,
                policy: self.pick(&Policy::ALL).name(),
                limits: events::Limits { chunks: a as u32, bytes: self.if_flag(0, b) },
                from_seq: c.max(1),
                replay: self.if_flag(1, ()).map(|()| events::Replay {
                    chunks: d as u32,
                    bytes: e as u32,
                    until_acknowledged: self.if_flag(2, ()).is_some(),
                    grace_ms: b,
                }),
            }),
            1 => WireEvent::Chunk(events::ChunkEvent {
                execution,
                seq: a.max(1),
                total_chunks: self.if_flag(0, b),
                kind: self.pick(&Kind::ALL).name(),
                key: self.if_flag(1, c as u8),
                offset: d >> 1,
                data: &self.data,
                timestamp_us: e,
                mono_ns: c,
            }),
            2 => WireEvent::Gap(events::GapEvent {
                execution,
                from_seq: 1,
                to_seq: a.max(1),
                chunk_count: b % a.max(1),
                byte_count: c,
                reason: self.pick(&[GapReason::Lag, GapReason::Late]).name(),
            }),
            3 => WireEvent::Progress(events::ProgressEvent {
                execution,
                token: None,
                progress: float(a),
                total: self.if_flag(0, float(b)),
                percentage: self.if_flag(1, float(c)),
                message: self.if_flag(2, text.as_str()),
                context: self.if_flag(3, other.as_str()),
            }),
            _ => WireEvent::End(events::EndEvent {
                execution,
                state: match self.if_flag(0, ()) {
                    None => events::EndState::Ended("completed"),
                    Some(()) => events::EndState::Detached {
                        reason: self.pick(&DetachReason::ALL).name(),
                        resume_from: a.max(1),
                    },
                },
                chunks: b,
                bytes: c,
                missed_chunks: d,
                missed_bytes: e,
                execution_chunks: c,
                execution_bytes: a,
                duration_us: a,
                exit: self.if_flag(1, streamdoor::stream::Exit::Code(b as i32)),
                error: self.if_flag(2, text.as_str()),
            }),
        }
    }

    /// Asserts that the event equals what was written.
    fn check(&self, event: &client::StreamEvent) {
        let [text, other] = &self.texts;
        match (self.event(), event) {
            (WireEvent::Started(written), client::StreamEvent::Started(read)) => {
                assert_eq!((&read.subscriber, &read.tool), (text, other));
                assert_eq!((read.execution, read.from_seq), (self.execution, written.from_seq));
                assert_eq!(read.limit.chunks, written.limits.chunks);
                assert_eq!(read.policy.name(), written.policy);
            }
            (WireEvent::Chunk(written), client::StreamEvent::Chunk(read)) => {
                assert_eq!(read.data, self.data);
                assert_eq!((read.seq, read.total_chunks), (written.seq, written.total_chunks));
                assert_eq!((read.offset, read.key), (written.offset, written.key));
                assert_eq!(
                    (read.timestamp_us, read.mono_ns),
                    (written.timestamp_us, written.mono_ns)
                );
                assert_eq!(read.kind.name(), written.kind);
            }
            (WireEvent::Gap(written), client::StreamEvent::Gap(read)) => {
                assert_eq!((read.from_seq, read.to_seq), (written.from_seq, written.to_seq));
                assert_eq!(
                    (read.chunk_count, read.byte_count),
                    (written.chunk_count, written.byte_count)
                );
            }
            (WireEvent::Progress(written), client::StreamEvent::Progress(read)) => {
                assert_eq!((read.progress, read.total), (written.progress, written.total));
                assert_eq!(read.percentage, written.percentage);
                assert_eq!(read.message.as_deref(), written.message);
                assert_eq!(read.context.is_some(), written.context.is_some_and(is_said));
            }
            (WireEvent::End(written), client::StreamEvent::End(read)) => {
                assert_eq!(read.end.given.chunks, written.chunks);
                assert_eq!(read.end.missed.bytes, written.missed_bytes);
                assert_eq!(read.end.published.chunks, written.execution_chunks);
                assert_eq!(read.end.exit.is_some(), written.exit.is_some());
                assert_eq!(read.error.as_deref(), written.error);
            }
            (written, read) => panic!("{written:?} became {read:?}"),
        }
    }
}

/// True if a context is present; `null` is none.
fn is_said(context: &str) -> bool {
    !matches!(serde_json::from_str(context), Ok(serde_json::Value::Null))
}

/// Returns a number that JSON can represent.
fn float(bits: u64) -> f64 {
    let float = f64::from_bits(bits);
    if float.is_finite() { float } else { bits as f64 }
}

/// Checks a stream of events.
pub fn check(data: &[u8]) {
    let mut draw = Draw::new(data);
    let (mut all, mut stream, mut lines) = (Vec::new(), Vec::new(), Vec::new());
    while !draw.is_empty() && all.len() < 8 {
        let parts = Parts::draw(&mut draw);
        let event = parts.event();
        event.write_line(&mut lines);
        let (seq, bytes) = (parts.numbers[0], parts.numbers[1]);
        let chunks = parts.if_flag(7, parts.numbers[2]);
        let has_ended = matches!(event, WireEvent::End(_));
        let cursor = sse::Cursor { execution: &parts.name, seq, bytes, chunks, has_ended };
        sse::write_comment(&mut stream, &parts.texts[0]);
        sse::write_cursors(&mut stream, &[cursor]);
        sse::write_event(&mut stream, &event);
        stream.extend_from_slice(sse::END);
        stream.extend_from_slice(sse::KEEP_ALIVE);
        all.push(parts);
    }
    for cuts in cuts(&stream) {
        check_stream(&stream, &cuts, &all);
    }
    for cuts in cuts(&lines) {
        check_lines(&lines, &cuts, &all);
    }
    check_text(data);
}

/// Returns the pieces of `bytes` between the cuts.
fn pieces<'b>(bytes: &'b [u8], cuts: &'b [usize]) -> impl Iterator<Item = &'b [u8]> {
    let ends = cuts.iter().copied().chain([bytes.len()]);
    let starts = [0].into_iter().chain(cuts.iter().copied());
    starts.zip(ends).map(|(from, to)| &bytes[from..to])
}

fn check_stream(stream: &[u8], cuts: &[usize], all: &[Parts]) {
    let mut decoder = sse::Decoder::new();
    let mut written = all.iter();
    for mut input in pieces(stream, cuts) {
        while let Some(message) = decoder.read(&mut input).expect("nothing is too long") {
            let parts = written.next().expect("an event that nobody wrote");
            assert_eq!(message.name(), parts.event().name());
            let (execution, event) =
                client::StreamEvent::parse(message.data_bytes()).expect("it is ours");
            assert_eq!(execution, parts.execution);
            parts.check(&event);
            let cursors = sse::parse_cursors(&message.id()).expect("it is ours");
            let executions = [parts.execution];
            let mut reached = cursors.of(&executions).expect("it is of this one");
            let reached = reached.next().expect("it is of this one");
            let chunks = parts.if_flag(7, parts.numbers[2]).unwrap_or(parts.numbers[0]);
            assert_eq!(reached.seq, parts.numbers[0]);
            assert_eq!(reached.seen, Some(sse::SeenTotals { chunks, bytes: parts.numbers[1] }));
        }
    }
    assert!(written.next().is_none(), "an event is lost");
    assert_eq!(decoder.retry(), None);
}

fn check_lines(lines: &[u8], cuts: &[usize], all: &[Parts]) {
    let mut decoder = ndjson::Decoder::with_limit(limits::STREAM_LINE_BYTES_MAX);
    let mut written = all.iter();
    for mut input in pieces(lines, cuts) {
        while let Some(line) = decoder.read(&mut input).expect("nothing is too long") {
            let parts = written.next().expect("a line that nobody wrote");
            let (execution, event) = client::StreamEvent::parse(line).expect("it is ours");
            assert_eq!(execution, parts.execution);
            parts.check(&event);
        }
    }
    assert!(written.next().is_none(), "a line is lost");
    decoder.finish().expect("the last line has its end");
}

/// Checks any text as data and as a name: it is one event with that text.
fn check_text(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut stream = Vec::new();
    let is_name = sse::write_name(&mut stream, &text).is_ok();
    assert_eq!(is_name, !text.contains(['\r', '\n', '\0']));
    assert_eq!(stream.is_empty(), !is_name);
    sse::write_data(&mut stream, &text);
    stream.extend_from_slice(sse::END);
    let mut decoder = sse::Decoder::new();
    let mut input = &stream[..];
    let message = decoder.read(&mut input).expect("it is short").expect("it is whole");
    let name = if is_name && !text.is_empty() { &*text } else { "message" };
    assert_eq!(message.name(), name);
    assert_eq!(message.data(), text.replace("\r\n", "\n").replace('\r', "\n"));
    assert_eq!(message.id(), "");
    assert!(decoder.read(&mut input).expect("it is short").is_none());
}
