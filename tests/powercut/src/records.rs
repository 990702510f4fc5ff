//! The record that an appender keeps of one stream: everything that was answered, and the request
//! that was not.

use streamdoor::base::Random;

/// Bytes of the longest appends. The server keeps them in a hundred pieces.
const LONG_BYTES: usize = 100 << 10;

/// One append.
#[derive(Clone)]
pub struct Piece {
    /// Its bytes; for JSON, its messages with commas.
    pub bytes: Vec<u8>,
    /// The offset behind it.
    pub offset: String,
}

/// The way in which a repetition is told from a new append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// By the number of a producer.
    Producer(u64),
    /// By `Stream-Seq`.
    Order(u64),
    /// By nothing.
    Plain,
}

/// A request that changes a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    Create { body: Vec<u8>, closes: bool },
    Append { body: Vec<u8>, mark: Mark, closes: bool },
    Remove,
}

/// A stream. Only one thread changes it.
pub struct Record {
    pub path: String,
    pub is_json: bool,
    /// The record that it was forked from, the offset there, and its content from there.
    pub source: Option<usize>,
    pub forked: Option<(String, String)>,
    pub pieces: Vec<Piece>,
    pub next_seq: u64,
    pub next_order: u64,
    pub is_there: bool,
    pub is_closed: bool,
    pub is_removed: bool,
    /// The request without an answer.
    pub asked: Option<Asked>,
}

/// The content that somebody reads: pieces, with commas between those of JSON.
pub fn content<'a>(is_json: bool, pieces: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let pieces: Vec<&[u8]> = pieces.filter(|piece| !piece.is_empty()).collect();
    pieces.join(if is_json { &b","[..] } else { b"" })
}

impl Record {
    /// The content with everything that was answered.
    pub fn content(&self) -> Vec<u8> {
        content(self.is_json, self.pieces.iter().map(|piece| &piece.bytes[..]))
    }

    /// The content if the request without an answer was carried out, too.
    pub fn content_with(&self, body: &[u8]) -> Vec<u8> {
        let pieces = self.pieces.iter().map(|piece| &piece.bytes[..]);
        content(self.is_json, pieces.chain([inside(self.is_json, body)]))
    }

    pub fn media_type(&self) -> &'static str {
        if self.is_json { "application/json" } else { "text/plain" }
    }

    /// The method and the headers of a request.
    pub fn request(&self, asked: &Asked) -> (&'static str, String) {
        let mut headers = format!("Content-Type: {}\r\n", self.media_type());
        let (method, closes) = match asked {
            Asked::Create { closes, .. } => {
                if let Some((path, offset)) = &self.forked {
                    headers += &format!("Stream-Forked-From: /v1/stream/{path}\r\n");
                    headers += &format!("Stream-Fork-Offset: {offset}\r\n");
                }
                ("PUT", *closes)
            }
            Asked::Append { mark, closes, .. } => {
                match mark {
                    Mark::Producer(seq) => {
                        headers += "Producer-Id: appender\r\nProducer-Epoch: 0\r\n";
                        headers += &format!("Producer-Seq: {seq}\r\n");
                    }
                    Mark::Order(order) => headers += &format!("Stream-Seq: {order:012}\r\n"),
                    Mark::Plain => {}
                }
                ("POST", *closes)
            }
            Asked::Remove => ("DELETE", false),
        };
        if closes {
            headers += "Stream-Closed: true\r\n";
        }
        (method, headers)
    }

    /// Notes that a request was carried out, and ends the wait for its answer.
    pub fn carry_out(&mut self, offset: &str) {
        let asked = self.asked.take().expect("a request");
        let body = match asked {
            Asked::Create { body, closes } => {
                (self.is_there, self.is_closed) = (true, closes);
                body
            }
            Asked::Append { body, mark, closes } => {
                self.is_closed |= closes;
                match mark {
                    Mark::Producer(seq) => self.next_seq = seq + 1,
                    Mark::Order(order) => self.next_order = order + 1,
                    Mark::Plain => {}
                }
                body
            }
            Asked::Remove => return self.is_removed = true,
        };
        let bytes = inside(self.is_json, &body).to_vec();
        self.pieces.push(Piece { bytes, offset: offset.to_owned() });
    }
}

/// The messages of an array, or the bytes of something else.
pub fn inside(is_json: bool, body: &[u8]) -> &[u8] {
    let array = body.strip_prefix(b"[").and_then(|rest| rest.strip_suffix(b"]"));
    if is_json { array.unwrap_or(body) } else { body }
}

/// A body for an append, or for the beginning.
pub fn body(is_json: bool, random: &mut Random) -> Vec<u8> {
    let bytes = match random.below(12) {
        0 => LONG_BYTES,
        1..=3 => random.between(1_000, 6_000) as usize,
        _ => random.between(1, 300) as usize,
    };
    if !is_json {
        return digits(bytes, random);
    }
    let mut body = b"[".to_vec();
    while body.len() < bytes || body.len() == 1 {
        let message_bytes = random.between(1, 2_000.min(bytes as u64)) as usize;
        let text = String::from_utf8(digits(message_bytes, random)).expect("digits");
        let comma = if body.len() > 1 { "," } else { "" };
        body.extend(format!("{comma}{{\"text\":\"{text}\"}}").bytes());
    }
    body.push(b']');
    body
}

/// Digits that no other call gives.
pub fn digits(count: usize, random: &mut Random) -> Vec<u8> {
    let mut digits = Vec::with_capacity(count + 16);
    while digits.len() < count {
        digits.extend(format!("{:016x}", random.next_u64()).bytes());
    }
    digits.truncate(count);
    digits
}
