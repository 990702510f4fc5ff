//! A client that disconnects in the middle, loses everything that it has not read yet, and
//! reconnects.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};
use streamdoor::wire::http1::{Method, ResponsePart, ResponseReader};
use streamdoor::wire::{ndjson, sse};

use crate::served;

/// The format of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Sse,
    Ndjson,
}

/// Everything received, for each execution.
pub struct Received {
    pub data: Vec<Vec<u8>>,
    pub gaps: Vec<Value>,
    /// The `replay` member of the newest connection's `started` event.
    pub replay: Value,
    pub ends: Vec<String>,
}

pub struct Reader {
    address: String,
    format: Format,
    acks: Option<u32>,
    executions: Vec<String>,
    /// The subscriber of each execution on the present connection.
    subscribers: Vec<String>,
    last_id: String,
    next_seq: Vec<u64>,
    has_ended: Vec<bool>,
    /// The open connection for acknowledgements.
    acknowledging: Option<TcpStream>,
    received: Received,
}

enum Decoder {
    Sse(sse::Decoder),
    Ndjson(ndjson::Decoder),
}

impl Reader {
    pub fn new(
        address: &str,
        format: Format,
        acks: Option<u32>,
        executions: Vec<String>,
    ) -> Reader {
        let count = executions.len();
        Reader {
            address: address.to_owned(),
            format,
            acks,
            subscribers: vec![String::new(); count],
            last_id: String::new(),
            next_seq: vec![1; count],
            has_ended: vec![false; count],
            acknowledging: None,
            received: Received {
                data: vec![Vec::new(); count],
                gaps: Vec::new(),
                replay: Value::Null,
                ends: Vec::new(),
            },
            executions,
        }
    }

    pub fn received(self) -> Received {
        self.received
    }

    /// Opens a connection. A reader without acknowledgements keeps its kernel's buffer small, as
    /// src/guide/http.md says: the contents of the buffer are lost with the connection.
    fn connect(&self) -> TcpStream {
        match self.acks {
            None => served::connect_with_small_buffer(&self.address),
            Some(_) => TcpStream::connect(&self.address).unwrap(),
        }
    }

    fn request(&self) -> String {
        let acks = self.acks.map_or(String::new(), |acks| format!("&acks={acks}"));
        let ids = self.executions.join(",");
        let mut path = match self.executions.len() {
            1 => format!("/v1/executions/{ids}/events?policy=block{acks}"),
            _ => format!("/v1/events?executions={ids}&policy=block{acks}"),
        };
        let mut last = String::new();
        match self.format {
            Format::Sse if self.last_id.is_empty() => {}
            Format::Sse => last = format!("Last-Event-ID: {}\r\n", self.last_id),
            Format::Ndjson => path += &format!("&format=ndjson&from={}", self.next_seq[0]),
        }
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{last}\r\n")
    }

    /// Reads on a new connection until `chunks_max` chunks have arrived. Returns true at the end.
    pub fn read_some(&mut self, chunks_max: Option<u64>) -> bool {
        let mut stream = self.connect();
        stream.write_all(self.request().as_bytes()).unwrap();
        let mut reader = ResponseReader::new();
        reader.expect(Method::Get);
        let mut decoder = match self.format {
            Format::Sse => Decoder::Sse(sse::Decoder::new()),
            Format::Ndjson => Decoder::Ndjson(ndjson::Decoder::new()),
        };
        let mut chunk_count = 0;
        let mut piece = [0; 16 << 10];
        loop {
            let count = stream.read(&mut piece).unwrap();
            assert!(count > 0, "the server has cut the stream off");
            let mut input = &piece[..count];
            while let Some(part) = reader.read(&mut input).unwrap() {
                match part {
                    ResponsePart::Head(head) => match head.status.code() {
                        200 => {}
                        204 => return true,
                        other => panic!("status {other}, {}", self.received.replay),
                    },
                    ResponsePart::Body(mut body) => {
                        while let Some((id, event)) = next(&mut decoder, &mut body) {
                            chunk_count += u64::from(event["seq"].is_u64());
                            self.take(id, &event);
                            if chunk_count > 0 && Some(chunk_count) == chunks_max {
                                return false; // The socket closes, and what it holds is lost.
                            }
                        }
                    }
                    ResponsePart::End => return self.has_ended.iter().all(|ended| *ended),
                }
            }
        }
    }

    fn take(&mut self, id: Option<String>, event: &Value) {
        let is_part = event["type"].is_string();
        let of = event[if is_part { "agent_id" } else { "execution" }].as_str().unwrap();
        let at = self.executions.iter().position(|id| id == of).unwrap();
        match event["event"].as_str().unwrap_or("part") {
            "started" => {
                self.subscribers[at] = event["subscriber"].as_str().unwrap().to_owned();
                self.received.replay = event["replay"].clone();
            }
            "chunk" => {
                assert_eq!(event["seq"], self.next_seq[at], "{of}");
                self.next_seq[at] += 1;
                self.received.data[at].extend(event["data"].as_str().unwrap().bytes());
                self.acknowledge(at);
            }
            "part" => {
                assert_eq!(event["seq"], self.next_seq[at], "{of}");
                self.next_seq[at] += 1;
                if event["type"] == "TextDelta" {
                    self.received.data[at].extend(event["delta"].as_str().unwrap().bytes());
                }
                self.acknowledge(at);
            }
            "gap" => {
                self.received.gaps.push(event.clone());
                self.next_seq[at] = event["to_seq"].as_u64().unwrap() + 1;
            }
            "end" => {
                self.has_ended[at] = true;
                self.received.ends.push(event["state"].as_str().unwrap().to_owned());
            }
            _ => {}
        }
        if let Some(id) = id {
            self.last_id = id;
        }
    }

    /// Acknowledges the last chunk received.
    fn acknowledge(&mut self, at: usize) {
        if self.acks.is_none() {
            return;
        }
        let (execution, subscriber) = (&self.executions[at], &self.subscribers[at]);
        let body = json!({"seq": self.next_seq[at] - 1}).to_string();
        let request = format!(
            "POST /v1/executions/{execution}/subscribers/{subscriber}/acks HTTP/1.1\r\n\
             Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let stream = self.acknowledging.get_or_insert_with(|| {
            let stream = TcpStream::connect(&self.address).unwrap();
            stream.set_nodelay(true).unwrap();
            stream
        });
        stream.write_all(request.as_bytes()).unwrap();
        let mut reader = ResponseReader::new();
        reader.expect(Method::Post);
        let mut piece = [0; 4_096];
        loop {
            let count = stream.read(&mut piece).unwrap();
            assert!(count > 0);
            let mut input = &piece[..count];
            while let Some(part) = reader.read(&mut input).unwrap() {
                if let ResponsePart::Head(head) = &part {
                    // After the end the subscriber no longer exists.
                    assert!(matches!(head.status.code(), 204 | 404), "{}", head.status.code());
                }
                if matches!(part, ResponsePart::End) {
                    return;
                }
            }
        }
    }
}

/// Returns the next event, with its id if it has one.
fn next(decoder: &mut Decoder, body: &mut &[u8]) -> Option<(Option<String>, Value)> {
    match decoder {
        Decoder::Sse(decoder) => {
            let message = decoder.read(body).unwrap()?;
            let event = serde_json::from_str(&message.data()).unwrap();
            let id = message.id().into_owned();
            Some(((!id.is_empty()).then_some(id), event))
        }
        Decoder::Ndjson(decoder) => {
            let line = decoder.read(body).unwrap()?;
            Some((None, serde_json::from_slice(line).unwrap()))
        }
    }
}
