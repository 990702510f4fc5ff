//! One connection of HTTP/1.1: bytes in, calls out; answers in, bytes out.

use crate::endpoint::answer::Manner;
use crate::endpoint::{Answer, ApiError, Call};
use crate::wire::http1::{
    BODY_END, Framing, Refusal, RequestPart, RequestReader, ResponseHead, Status,
};

/// One connection.
#[derive(Debug)]
pub struct HttpConnection {
    reader: RequestReader,
    kept: Vec<u8>,
    state: State,
    input_ended: bool,
}

/// What is to be done next.
#[derive(Debug, PartialEq)]
pub enum Step {
    /// To wait: for bytes or, while an answer is due, for the answer.
    Wait,
    /// To carry this out, and to answer it.
    Call(Call),
    /// To send what there is, and to close the connection.
    Close,
}

/// What the connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// The first byte of a request.
    Request,
    /// The rest of one: it should come soon.
    Rest,
    /// Our answer.
    Answer,
    /// Nothing: it is to be closed.
    Nothing,
}

/// How the body of a stream is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamBody {
    /// As chunks, and [`HttpConnection::end_stream`] at its end.
    Chunked,
    /// As it is; its end is the connection's.
    UntilClose,
    /// There is none: the answer is complete.
    None,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Reading,
    Answering(Manner, StreamBody),
    Answered,
    Closed,
}

impl HttpConnection {
    /// A new one.
    pub fn new() -> HttpConnection {
        HttpConnection {
            reader: RequestReader::new(),
            kept: Vec::new(),
            state: State::Reading,
            input_ended: false,
        }
    }

    /// Bytes came.
    pub fn receive(&mut self, bytes: &[u8], date: &[u8; 29], out: &mut Vec<u8>) -> Step {
        let mut input = bytes;
        loop {
            match self.reader.read(&mut input) {
                Ok(Some(RequestPart::End)) => return Step::Wait,
                Ok(Some(_)) => {}
                Ok(None) => return Step::Wait,
                Err(refusal) => return self.refuse(refusal, date, out),
            }
        }
    }

    /// The answer was written: goes on with what was kept.
    pub fn resume(&mut self, date: &[u8; 29], out: &mut Vec<u8>) -> Step {
        let kept = std::mem::take(&mut self.kept);
        self.receive(&kept, date, out)
    }

    /// The peer sends no more.
    pub fn end_input(&mut self, date: &[u8; 29], out: &mut Vec<u8>) -> Step {
        self.input_ended = true;
        match self.reader.finish() {
            Ok(()) => Step::Close,
            Err(refusal) => self.refuse(refusal, date, out),
        }
    }

    /// What it waits for did not come in time.
    pub fn time_out(&mut self, date: &[u8; 29], out: &mut Vec<u8>) -> Step {
        self.refuse(Refusal::TooSlow, date, out)
    }

    /// Has it room for more?
    pub fn wants_bytes(&self) -> bool {
        self.kept.len() < crate::limits::HTTP_PIPELINED_BYTES_MAX
    }

    /// What it waits for.
    pub fn due(&self) -> Due {
        match self.state {
            State::Reading => Due::Request,
            State::Answering(..) => Due::Answer,
            State::Answered | State::Closed => Due::Nothing,
        }
    }

    /// A whole answer to the call.
    pub fn answer(&mut self, answer: &Answer, date: &[u8; 29], out: &mut Vec<u8>) {
        if let State::Answering(manner, _) = self.state {
            answer.write(manner, date, out);
            self.state = State::Answered;
        }
    }

    /// The answer to the call is a stream of this type.
    pub fn begin_stream(
        &mut self,
        media_type: &str,
        date: &[u8; 29],
        out: &mut Vec<u8>,
    ) -> StreamBody {
        let mut head = ResponseHead::begin(out, Status::OK, date);
        head.header("content-type", media_type).expect("ours are one line");
        head.finish(Framing::Chunked, true);
        StreamBody::Chunked
    }

    /// The stream is complete.
    pub fn end_stream(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(BODY_END);
    }

    fn refuse(&mut self, refusal: Refusal, date: &[u8; 29], out: &mut Vec<u8>) -> Step {
        let manner = Manner { is_head: false, is_old: false, keeps_alive: false };
        Answer::error(&ApiError::from(refusal)).write(manner, date, out);
        self.state = State::Closed;
        Step::Close
    }
}

impl Default for HttpConnection {
    fn default() -> HttpConnection {
        HttpConnection::new()
    }
}
