//! One connection of the receiver. It parses only as much of the response as is needed to recognize
//! each event.
//!
//! The library's own client machine reads the head and the body's chunks. Only two numbers of a
//! chunk event are read: its `seq`, and the stamp at the start of its payload. Both are searched
//! first at their position in the previous event. Rare events are parsed as JSON. Every chunk is
//! either received, in order, or part of a reported gap. The end has to contain the same numbers.

use std::io::BufRead;

use serde_json::Value;
use streamdoor::wire::http1::{Method, ResponsePart, ResponseReader};

use super::client::Incoming;
use crate::common::serve::event::Format;
use crate::common::serve::plan::STAMP_DIGITS;

/// Longer than any event of a payload that `--size` allows.
pub const LINE_BYTES_MAX: usize = 1 << 20;

/// The state of one connection.
pub struct Stream {
    response: ResponseReader,
    events: Events,
}

/// The events received so far.
struct Events {
    format: Format,
    /// The beginning of an incomplete line.
    begun: Vec<u8>,
    seq_place: Place,
    stamp_place: Place,
    last_seq: u64,
    given_chunks: u64,
    missed_chunks: u64,
    has_ended: bool,
}

/// The position of a number in an event.
pub struct Place {
    /// The text before it.
    pub name: &'static [u8],
    /// The position of the number's first digit in the last event.
    pub at: usize,
}

impl Stream {
    /// Returns the state of a connection that has just sent its request.
    pub fn new(format: Format) -> Stream {
        let mut response = ResponseReader::new();
        response.expect(Method::Get);
        let events = Events {
            format,
            begun: Vec::new(),
            seq_place: Place { name: b"\"seq\":", at: 0 },
            stamp_place: Place { name: b"\"data\":\"", at: 0 },
            last_seq: 0,
            given_chunks: 0,
            missed_chunks: 0,
            has_ended: false,
        };
        Stream { response, events }
    }
}

impl Incoming for Stream {
    #[inline]
    fn take(&mut self, mut bytes: &[u8], mut chunk: impl FnMut(u64, u64)) -> Result<(), String> {
        loop {
            match self.response.read(&mut bytes) {
                Ok(Some(ResponsePart::Body(body))) => self.events.take(body, &mut chunk)?,
                Ok(Some(ResponsePart::Head(head))) if head.status.code() == 200 => {}
                Ok(Some(ResponsePart::Head(head))) => {
                    return Err(format!("the server answered {}", head.status));
                }
                Ok(Some(ResponsePart::End)) if !self.events.has_ended => {
                    return Err("the response ended before the execution did".into());
                }
                Ok(Some(ResponsePart::End) | None) => return Ok(()),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    fn has_ended(&self) -> bool {
        self.events.has_ended
    }

    fn given_chunks(&self) -> u64 {
        self.events.given_chunks
    }

    fn missed_chunks(&self) -> u64 {
        self.events.missed_chunks
    }
}

impl Events {
    /// Takes a piece of the body.
    #[inline]
    fn take(&mut self, mut rest: &[u8], chunk: &mut impl FnMut(u64, u64)) -> Result<(), String> {
        while !rest.is_empty() {
            let piece = rest;
            let taken = rest.skip_until(b'\n').expect("memory can be read");
            let Some(line) = piece[..taken].strip_suffix(b"\n") else {
                self.begun.extend_from_slice(piece);
                if self.begun.len() > LINE_BYTES_MAX {
                    return Err(format!("a line has more than {LINE_BYTES_MAX} bytes"));
                }
                return Ok(());
            };
            if self.begun.is_empty() {
                self.line(line, chunk)?;
            } else {
                let mut begun = std::mem::take(&mut self.begun);
                begun.extend_from_slice(line);
                self.line(&begun, chunk)?;
                begun.clear();
                self.begun = begun; // Its memory is used again.
            }
        }
        Ok(())
    }

    #[inline]
    fn line(&mut self, line: &[u8], chunk: &mut impl FnMut(u64, u64)) -> Result<(), String> {
        let json = match self.format {
            Format::Ndjson => line,
            Format::Sse => match line.strip_prefix(b"data:") {
                Some(data) => data.trim_ascii_start(),
                None => return Ok(()), // The other fields are not needed.
            },
        };
        if !json.starts_with(b"{\"event\":\"chunk\"") {
            // durable-streams tells its offset behind each write.
            let is_nothing = json.is_empty() || json.starts_with(b"{\"streamNextOffset\"");
            return if is_nothing { Ok(()) } else { self.other(json) };
        }
        let numbers = self.seq_place.number(json, usize::MAX).zip(
            // The stamp has no end of its own: text follows.
            self.stamp_place.number(json, STAMP_DIGITS),
        );
        let (seq, due_ns) = numbers.ok_or_else(|| {
            format!("a chunk without seq or stamp: {}", String::from_utf8_lossy(json))
        })?;
        if seq != self.last_seq + 1 || self.has_ended {
            return Err(format!("chunk {seq} arrived after chunk {}", self.last_seq));
        }
        self.last_seq = seq;
        self.given_chunks += 1;
        chunk(seq, due_ns);
        Ok(())
    }

    #[cold]
    fn other(&mut self, json: &[u8]) -> Result<(), String> {
        let text = || String::from_utf8_lossy(json);
        let value: Value =
            serde_json::from_slice(json).map_err(|_| format!("what is {}", text()))?;
        let number = |name: &str| {
            value[name].as_u64().ok_or_else(|| format!("an event without {name}: {}", text()))
        };
        match value["event"].as_str() {
            Some("started" | "progress") => {}
            Some("gap") => {
                self.missed_chunks += number("chunk_count")?;
                self.last_seq = number("to_seq")?;
            }
            Some("end") => {
                let (chunks, missed) = (number("chunks")?, number("missed_chunks")?);
                let is_whole = chunks == self.given_chunks;
                if value["state"] != "completed" || !is_whole || missed != self.missed_chunks {
                    let (given, missed) = (self.given_chunks, self.missed_chunks);
                    return Err(format!(
                        "{given} chunks arrived, {missed} did not, but: {}",
                        text()
                    ));
                }
                self.has_ended = true;
            }
            _ => return Err(format!("what is {}", text())),
        }
        Ok(())
    }
}

impl Place {
    /// Returns the number after the name, of at most `digits_max` digits. Tries its last position
    /// first.
    #[inline]
    pub fn number(&mut self, json: &[u8], digits_max: usize) -> Option<u64> {
        if !self.is_named(json) {
            return None;
        }
        let digits = json[self.at..].iter().take(digits_max);
        let mut number = None;
        for byte in digits.take_while(|byte| byte.is_ascii_digit()) {
            let higher = number.unwrap_or(0u64).checked_mul(10)?;
            number = Some(higher.checked_add(u64::from(byte - b'0'))?);
        }
        number
    }

    /// True if the name occurs. Tries its last position first.
    #[inline]
    pub fn is_named(&mut self, json: &[u8]) -> bool {
        if !self.is_still_there(json) {
            let Some(at) = self.find(json) else { return false };
            self.at = at;
        }
        true
    }

    /// True if the name is at its last position.
    #[inline]
    pub fn is_still_there(&self, json: &[u8]) -> bool {
        json.get(..self.at).is_some_and(|front| front.ends_with(self.name))
    }

    #[cold]
    fn find(&self, json: &[u8]) -> Option<usize> {
        let start = json.windows(self.name.len()).position(|window| window == self.name)?;
        Some(start + self.name.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::serve::event::{chunk, end, execution_name, id, write};
    use crate::common::serve::plan::{payload, stamp};

    /// Returns the bytes of a response with `chunks` chunks that were due at 100, 200 … ns.
    fn response(format: Format, chunks: u64) -> Vec<u8> {
        let mut body = Vec::new();
        let (name, mut data) = (execution_name(0), payload(30));
        for seq in 1..=chunks {
            stamp(&mut data, 100 * seq);
            let chunk = chunk(&name, seq, &data, 100 * seq);
            write(&mut body, format, &id(&name, seq, 30), &chunk);
        }
        write(&mut body, format, &id(&name, chunks, 30), &end(&name, chunks, 30));
        chunked(&body)
    }

    fn chunked(body: &[u8]) -> Vec<u8> {
        let mut bytes = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
        for piece in body.chunks(700) {
            bytes.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
            bytes.extend_from_slice(piece);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"0\r\n\r\n");
        bytes
    }

    #[test]
    fn chunks_are_found_however_the_bytes_are_cut() {
        let expected: Vec<(u64, u64)> = (1..=120).map(|seq| (seq, 100 * seq)).collect();
        for format in [Format::Sse, Format::Ndjson] {
            let bytes = response(format, 120);
            for piece_bytes in [1, 2, 7, 100, 999, bytes.len()] {
                let (mut stream, mut found) = (Stream::new(format), Vec::new());
                for piece in bytes.chunks(piece_bytes) {
                    stream.take(piece, |seq, due_ns| found.push((seq, due_ns))).unwrap();
                }
                assert!(stream.has_ended(), "{format}, pieces of {piece_bytes}");
                assert_eq!(found, expected, "{format}, pieces of {piece_bytes}");
                assert_eq!((stream.given_chunks(), stream.missed_chunks()), (120, 0));
            }
        }
    }

    fn outcome(lines: &str) -> Result<Stream, String> {
        let mut stream = Stream::new(Format::Ndjson);
        stream.take(&chunked(lines.as_bytes()), |_, _| {}).map(|()| stream)
    }

    #[test]
    fn a_gap_is_counted_and_a_loss_without_one_is_an_error() {
        let chunk = |seq| {
            format!("{{\"event\":\"chunk\",\"seq\":{seq},\"data\":\"00000000000000000001x\"}}\n")
        };
        let gap = "{\"event\":\"gap\",\"from_seq\":2,\"to_seq\":4,\"chunk_count\":3}\n";
        let end = |state, chunks, missed| {
            format!(
                "{{\"event\":\"end\",\"state\":\"{state}\",\"chunks\":{chunks},\
                 \"missed_chunks\":{missed}}}\n"
            )
        };
        let (first, fifth) = (chunk(1), chunk(5));
        let stream = outcome(&format!("{first}{gap}{fifth}{}", end("completed", 2, 3))).unwrap();
        assert_eq!((stream.given_chunks(), stream.missed_chunks()), (2, 3));
        for wrong in [
            format!("{first}{fifth}"),
            format!("{first}{first}"),
            format!("{first}{}", end("completed", 2, 0)),
            format!("{first}{}", end("failed", 1, 0)),
            format!("{first}{gap}{}", end("completed", 1, 2)),
            format!("{first}{gap}{}", end("completed", 4, 3)), // Only 1 has arrived.
            format!("{first}{}{}", end("completed", 1, 0), chunk(2)),
            "{\"event\":\"chunk\",\"seq\":1,\"data\":\"text\"}\n".to_owned(),
            "{\"event\":\"chunk\",\"data\":\"00000000000000000001\"}\n".to_owned(),
            "nonsense\n".to_owned(),
            first.clone(), // Then the response ends.
        ] {
            assert!(outcome(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_answer_that_is_no_stream_is_an_error() {
        let bytes = b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}";
        let error = Stream::new(Format::Sse).take(bytes, |_, _| {}).unwrap_err();
        assert!(error.contains("404"), "{error}");
    }
}
