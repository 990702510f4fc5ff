//! A peer of the HTTP state machine without a socket. It takes bytes cut anywhere, and answers
//! every call that the machine returns.

use streamdoor::base::{Handle, Instant};
use streamdoor::endpoint::{
    Access, Answer, ApiCall, AwaitedEvent, ConnectionStep, HttpConnection, StreamBody,
    Surroundings, Tally,
};
use streamdoor::wire::http1::Status;

const DATE: [u8; 29] = *b"Sun, 06 Nov 1994 08:49:37 GMT";

/// The results for some bytes.
#[derive(Debug, PartialEq)]
pub struct Exchange {
    /// The calls, in order.
    pub calls: Vec<ApiCall>,
    /// All output.
    pub out: Vec<u8>,
    /// True if the connection has to be closed.
    pub is_closed: bool,
}

/// Returns the inputs of the machine besides the bytes.
fn around<'a>(access: &'a Access, tally: &'a Tally) -> Surroundings<'a> {
    let connection = Handle { index: 0, generation: 1 };
    Surroundings { date: DATE, now: Instant::from_nanos(0), access, tally, connection }
}

/// One connection.
pub struct Peer {
    connection: HttpConnection,
    access: Access,
    tally: Tally,
    /// The results so far.
    pub got: Exchange,
}

impl Peer {
    /// Opens a connection to a server with the default access rules.
    pub fn new() -> Peer {
        Peer::of(Access::default())
    }

    /// Opens a connection to a server with these access rules.
    pub fn of(access: Access) -> Peer {
        let got = Exchange { calls: Vec::new(), out: Vec::new(), is_closed: false };
        Peer { connection: HttpConnection::new(), access, tally: Tally::new(false), got }
    }

    /// Sends bytes at once.
    pub fn send(&mut self, bytes: &[u8]) {
        let step =
            self.connection.receive(bytes, &around(&self.access, &self.tally), &mut self.got.out);
        self.serve(step);
    }

    /// Ends the input.
    pub fn end(&mut self) {
        let step = self.connection.end_input(&around(&self.access, &self.tally), &mut self.got.out);
        self.serve(step);
    }

    /// Answers calls like a shard: streams with two pieces, everything else with 204.
    fn serve(&mut self, mut step: ConnectionStep) {
        loop {
            match step {
                ConnectionStep::Wait => break assert!(!self.got.is_closed),
                ConnectionStep::Pause => {}
                ConnectionStep::Close => break self.got.is_closed = true,
                ConnectionStep::Call(call) => {
                    assert!(!self.got.is_closed, "a request behind the end");
                    assert_eq!(self.connection.due(), AwaitedEvent::Answer);
                    self.answer(&call);
                    self.got.calls.push(call);
                }
            }
            step = self.connection.resume(&around(&self.access, &self.tally), &mut self.got.out);
        }
        assert_eq!(self.connection.due() == AwaitedEvent::Nothing, self.got.is_closed);
    }

    fn answer(&mut self, call: &ApiCall) {
        let (out, around) = (&mut self.got.out, around(&self.access, &self.tally));
        let media_type = match call {
            ApiCall::Follow(follow) => follow.format.media_type(),
            ApiCall::Execute(execute) if execute.stream.is_some() => "text/event-stream",
            ApiCall::Output(..) => "application/octet-stream",
            _ => {
                let answer = Answer::empty(Status::NO_CONTENT);
                return self.connection.answer(&answer, &around, out);
            }
        };
        match self.connection.begin_stream(media_type, &around, out) {
            StreamBody::Chunked => out.extend_from_slice(b"4\r\none,\r\n3\r\ntwo\r\n"),
            StreamBody::UntilClose => out.extend_from_slice(b"one,two"),
            StreamBody::None => return,
        }
        self.connection.end_stream(out);
    }
}

/// Returns the results for `bytes` that arrive cut at `cuts`, and then end if `ends`.
pub fn exchange(bytes: &[u8], cuts: impl IntoIterator<Item = usize>, ends: bool) -> Exchange {
    let mut peer = Peer::new();
    let mut from = 0;
    for to in cuts {
        peer.send(&bytes[from..to]);
        from = to;
    }
    peer.send(&bytes[from..]);
    if ends {
        peer.end();
    }
    peer.got
}
