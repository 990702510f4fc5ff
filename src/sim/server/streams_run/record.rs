//! The record of one stream: everything that clients have asked for, and what is known of it.

use std::collections::BTreeMap;

use crate::base::Random;
use crate::wire::durable::Offset;

/// The way in which a repetition is told from a new append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// By the number of a producer.
    Producer { writer: usize, epoch: u64, seq: u64 },
    /// By `Stream-Seq`.
    Order(u64),
    /// By nothing.
    Plain,
}

/// The knowledge about a request that changes a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Its client is still asking.
    Pending,
    /// Its client has given up. It may come, or may have come.
    Doubtful,
    /// It was carried out.
    There,
    /// It was not carried out, and never will be.
    Absent,
}

/// One append. The first one of a stream is the creation.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    /// The body of the request.
    pub body: Vec<u8>,
    /// The bytes that it adds: those of its messages if it is JSON.
    pub bytes: Vec<u8>,
    pub mark: Mark,
    pub closes: bool,
    pub state: State,
    /// The offset behind it, if an answer has given it.
    pub end: Option<u64>,
    /// The place in the content, once an audit has found it.
    pub at: Option<usize>,
    /// The moments of the first request and of the answer.
    pub sent: u64,
    pub answered: Option<u64>,
}

/// The removal of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Removal {
    pub state: State,
    pub answered: Option<u64>,
}

/// A stream.
pub(super) struct Record {
    pub path: String,
    pub is_json: bool,
    /// The stream that it begins with, and the offset in it.
    pub source: Option<(usize, u64)>,
    /// The content up to there.
    pub inherited: Vec<u8>,
    pub pieces: Vec<Piece>,
    pub removal: Option<Removal>,
    /// The content as anybody has read it.
    pub known: Vec<u8>,
    /// True if somebody has read its end.
    pub is_known_whole: bool,
    /// True if an answer to a writer has said that it is closed.
    pub is_told_closed: bool,
    /// The offsets that replies have given, each with the bytes of content before it.
    pub marks: BTreeMap<u64, usize>,
    /// The life and the next number of each writer.
    pub producers: Vec<(u64, u64)>,
    pub next_order: u64,
}

impl Record {
    /// A stream that is not created yet.
    pub fn new(path: String, is_json: bool, writers: usize, first: Piece) -> Record {
        Record {
            path,
            is_json,
            source: None,
            inherited: Vec::new(),
            pieces: vec![first],
            removal: None,
            known: Vec::new(),
            is_known_whole: false,
            is_told_closed: false,
            marks: BTreeMap::new(),
            producers: vec![(0, 0); writers],
            next_order: 0,
        }
    }

    /// True if its creation was answered, and nobody has begun to remove it.
    pub fn is_usable(&self) -> bool {
        self.pieces[0].state == State::There && self.removal.is_none()
    }

    /// True if it was removed, as far as anybody knows.
    pub fn is_removed(&self) -> bool {
        self.removal.is_some_and(|removal| removal.state == State::There)
    }

    /// True if a request was sent that may have closed it, other than the piece `but`.
    pub fn may_be_closed(&self, but: Option<usize>) -> bool {
        let closes = |(at, piece): (usize, &Piece)| {
            piece.closes && piece.state != State::Absent && Some(at) != but
        };
        self.pieces.iter().enumerate().any(closes)
    }

    /// True if an answer has said that it is closed.
    pub fn is_closed(&self) -> bool {
        self.pieces.iter().any(|piece| piece.closes && piece.state == State::There)
    }

    /// The largest offset that an answer has given.
    pub fn reached(&self) -> u64 {
        let there = self.pieces.iter().filter(|piece| piece.state == State::There);
        there.filter_map(|piece| piece.end).max().unwrap_or(0)
    }

    /// Takes bytes that somebody has read, and the offset behind them.
    pub fn learn(&mut self, at: usize, bytes: &[u8], next: u64) -> Result<(), String> {
        let path = &self.path;
        let known = self.known.get(at..).ok_or_else(|| format!("{path}: {at} is unknown"))?;
        let common = known.len().min(bytes.len());
        if known[..common] != bytes[..common] {
            let same = known.iter().zip(bytes).take_while(|(one, other)| one == other).count();
            return Err(format!("{path} has other bytes than before, from {} on", at + same));
        }
        if bytes.len() > common {
            if self.is_known_whole {
                return Err(format!("{path} goes on behind its end"));
            }
            self.known.extend_from_slice(&bytes[common..]);
        }
        let place = at + bytes.len();
        let before = *self.marks.entry(next).or_insert(place);
        let is_ordered = self.marks.range(..next).next_back().is_none_or(|(_, at)| *at <= place)
            && self.marks.range(next..).nth(1).is_none_or(|(_, at)| *at >= place);
        if before != place || !is_ordered {
            return Err(format!("{path}: the offset {next} has {place} bytes, not {before}"));
        }
        Ok(())
    }

    fn media_type(&self) -> &'static str {
        if self.is_json { "application/json" } else { "text/plain" }
    }

    /// A request with this method.
    pub fn request(&self, method: &str, query: &str) -> String {
        format!("{method} /v1/stream/{}{query} HTTP/1.1\r\nHost: localhost\r\n\r\n", self.path)
    }

    /// The request that creates the stream or appends this piece.
    pub fn request_of(&self, at: usize, source_path: Option<&str>) -> String {
        let piece = &self.pieces[at];
        let method = if at == 0 { "PUT" } else { "POST" };
        let mut headers = format!("Content-Type: {}\r\n", self.media_type());
        if let (0, Some((_, offset)), Some(path)) = (at, self.source, source_path) {
            let offset = Offset(offset);
            headers += &format!("Stream-Forked-From: /v1/stream/{path}\r\n");
            headers += &format!("Stream-Fork-Offset: {offset}\r\n");
        }
        match piece.mark {
            Mark::Producer { writer, epoch, seq } => {
                headers += &format!("Producer-Id: writer-{writer}\r\n");
                headers += &format!("Producer-Epoch: {epoch}\r\nProducer-Seq: {seq}\r\n");
            }
            Mark::Order(order) => headers += &format!("Stream-Seq: {order:06}\r\n"),
            Mark::Plain => {}
        }
        if piece.closes {
            headers += "Stream-Closed: true\r\n";
        }
        let body = String::from_utf8(piece.body.clone()).expect("ASCII");
        format!(
            "{method} /v1/stream/{} HTTP/1.1\r\nHost: localhost\r\n{headers}\
             Content-Length: {}\r\n\r\n{body}",
            self.path,
            body.len()
        )
    }

    /// The bytes of a reply's body.
    pub fn bytes_of(&self, body: &[u8]) -> Result<Vec<u8>, String> {
        if !self.is_json {
            return Ok(body.to_vec());
        }
        let array = body.strip_prefix(b"[").and_then(|rest| rest.strip_suffix(b"]"));
        let array = array.ok_or_else(|| format!("{}: a reply is no array", self.path))?;
        // No message has a comma.
        let messages: Vec<&[u8]> = array.split(|byte| *byte == b',').collect();
        if messages.len() > 1 && messages.iter().any(|message| message.is_empty()) {
            return Err(format!("{}: a message is empty", self.path));
        }
        Ok(messages.concat())
    }
}

/// Draws a body. Returns it together with the bytes that it adds to the content.
pub(super) fn draw_body(is_json: bool, random: &mut Random) -> (Vec<u8>, Vec<u8>) {
    let count = match random.below(16) {
        0 => random.between(6_000, 40_000),
        1..=3 => random.between(1_000, 6_000),
        _ => random.between(16, 300),
    };
    if !is_json {
        let digits = digits(count, random);
        return (digits.clone(), digits);
    }
    let count_max = if count > 300 { 40 } else { 4 };
    let message_count = random.between(1, count_max);
    let message = |random: &mut Random| {
        let digits = digits((count / message_count).max(16), random);
        [b"{\"n\":\"", &digits[..], b"\"}"].concat()
    };
    let messages: Vec<Vec<u8>> = (0..message_count).map(|_| message(random)).collect();
    let comma = [&b","[..], b" , ", b",\n"][random.below(3) as usize];
    let body = match messages.len() {
        1 if random.chance(1, 2) => messages[0].clone(),
        _ => [b"[", &messages.join(comma)[..], b"]"].concat(),
    };
    (body, messages.concat())
}

/// Digits that no other call gives.
fn digits(count: u64, random: &mut Random) -> Vec<u8> {
    let mut digits = Vec::new();
    while digits.len() < count as usize {
        digits.extend(format!("{:016x}", random.next_u64()).bytes());
    }
    digits.truncate(count as usize);
    digits
}
