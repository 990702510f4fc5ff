//! Any bytes as a stream from a server: our decoders against the text of the standard, and the
//! events of our client.

use std::time::Duration;

use streamdoor::client;
use streamdoor::wire::{ndjson, sse};

use super::draw::cuts;

const LINE_BYTES_MAX: usize = 200;
const EVENT_BYTES_MAX: usize = 400;

/// The name, data and id of a message.
type EventTexts = (String, String, String);

/// The results for a stream.
#[derive(Debug, PartialEq)]
struct Read {
    told: Vec<EventTexts>,
    last_id: String,
    retry: Option<Duration>,
    end: Result<(), sse::DecodeError>,
}

fn read(bytes: &[u8], cuts: &[usize]) -> Read {
    let mut decoder = sse::Decoder::with_limits(LINE_BYTES_MAX, EVENT_BYTES_MAX);
    let (mut told, mut end, mut from) = (Vec::new(), Ok(()), 0);
    'pieces: for &to in cuts.iter().chain([&bytes.len()]) {
        let mut input = &bytes[from..to];
        from = to;
        loop {
            match decoder.read(&mut input) {
                Ok(Some(message)) => {
                    let texts = (message.name(), message.data(), message.id());
                    told.push((texts.0.into(), texts.1.into(), texts.2.into()));
                }
                Ok(None) => break assert!(input.is_empty()),
                Err(error) => {
                    end = Err(error);
                    break 'pieces;
                }
            }
        }
    }
    Read { told, last_id: decoder.last_id().into(), retry: decoder.retry(), end }
}

/// The HTML standard, section 9.2.6, on the whole stream at once, without limits.
fn model(bytes: &[u8]) -> (Vec<EventTexts>, Option<Duration>) {
    let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
    let (mut told, mut retry) = (Vec::new(), None);
    let (mut name, mut data, mut id) = (Vec::new(), Vec::new(), Vec::new());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    for line in lines(bytes) {
        if line.is_empty() {
            if !data.is_empty() {
                data.pop();
                let name = if name.is_empty() { "message".to_owned() } else { text(&name) };
                told.push((name, text(&data), text(&id)));
            }
            name.clear();
            data.clear();
            continue;
        }
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let value = line.get(colon + 1..).unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match &line[..colon] {
            b"event" => name = value.to_vec(),
            b"data" => data.extend([value, b"\n"].concat()),
            b"id" if !value.contains(&0) => id = value.to_vec(),
            b"retry" if !value.is_empty() && value.iter().all(u8::is_ascii_digit) => {
                let number = text(value).parse().unwrap_or(u64::MAX);
                retry = Some(Duration::from_millis(number));
            }
            _ => {}
        }
    }
    (told, retry)
}

/// Returns the complete lines, which end in any of the three ways.
fn lines(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut lines = Vec::new();
    while let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\r' | b'\n')) {
        lines.push(&bytes[..end]);
        let is_pair = bytes[end..].starts_with(b"\r\n");
        bytes = &bytes[end + if is_pair { 2 } else { 1 }..];
    }
    lines
}

/// Returns the lines of NDJSON, and the final result.
fn read_lines(bytes: &[u8], cuts: &[usize]) -> (Vec<Vec<u8>>, Result<(), ndjson::DecodeError>) {
    let mut decoder = ndjson::Decoder::with_limit(LINE_BYTES_MAX);
    let (mut lines, mut from) = (Vec::new(), 0);
    for &to in cuts.iter().chain([&bytes.len()]) {
        let mut input = &bytes[from..to];
        from = to;
        loop {
            match decoder.read(&mut input) {
                Ok(Some(line)) => lines.push(line.to_vec()),
                Ok(None) => break assert!(input.is_empty()),
                Err(error) => return (lines, Err(error)),
            }
        }
    }
    (lines, decoder.finish())
}

/// Checks a stream.
pub fn check(data: &[u8]) {
    let [_, everywhere, some] = cuts(data);
    let whole = read(data, &[]);
    assert_eq!(read(data, &everywhere), whole);
    assert_eq!(read(data, &some), whole);
    let (told, retry) = model(data);
    match whole.end {
        Ok(()) => {
            assert_eq!(whole.told, told);
            assert_eq!(whole.retry, retry);
        }
        Err(_) => assert!(told.starts_with(&whole.told)),
    }
    let whole = read_lines(data, &[]);
    assert_eq!(read_lines(data, &everywhere), whole);
    assert_eq!(read_lines(data, &some), whole);
    for line in &whole.0 {
        assert!(!line.is_empty() && line.len() <= LINE_BYTES_MAX && !line.contains(&b'\n'));
        let _ = client::StreamEvent::parse(line);
    }
    if let Ok((_, event)) = client::StreamEvent::parse(data) {
        check_event(&event);
    }
}

/// Asserts that an accepted event is one that an honest server could send.
fn check_event(event: &client::StreamEvent) {
    match event {
        client::StreamEvent::Chunk(chunk) => {
            assert!(chunk.seq > 0 && chunk.offset.checked_add(chunk.data.len() as u64).is_some());
        }
        client::StreamEvent::Part(part) => assert!(part.seq > 0 && !part.name.is_empty()),
        client::StreamEvent::Gap(gap) => {
            assert!(gap.from_seq > 0 && gap.from_seq <= gap.to_seq);
            assert!(gap.chunk_count == 0 || gap.chunk_count - 1 <= gap.to_seq - gap.from_seq);
        }
        client::StreamEvent::Progress(progress) => assert!(progress.progress.is_finite()),
        client::StreamEvent::Started(started) => assert!(started.from_seq > 0),
        client::StreamEvent::End(_) => {}
    }
}
