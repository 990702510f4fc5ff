//! The replies of the floor to calls with one chunk: ready before the calls, or spelled for each.

use std::fs::File;
use std::io::{self, ErrorKind};

use streamdoor::wire::jsonrpc::Id;

use super::call::{Call, Form};
use super::{HEAD, Note, answer, frame, write};
use crate::common::machine::now_ns;
use crate::mcp::wire::token_of;
use crate::serve::first;

/// The size of the chunk.
const FIRST_BYTES: usize = 100;

/// The replies to calls with one chunk.
pub struct Replies {
    is_http: bool,
    form: Form,
    /// The notification and the answer of each session, made before the calls. Empty if they are
    /// spelled for each call.
    ready: Vec<(Note, Vec<u8>)>,
    out: Vec<u8>,
}

impl Replies {
    /// Returns the replies to calls of `count` sessions.
    pub fn new(form: Form, count: u32, is_http: bool) -> Replies {
        let prepare = |index| {
            let token = Id::of_number(token_of(index));
            (Note::new(&token, FIRST_BYTES, form, is_http), answer(&token, is_http))
        };
        let ready = match form {
            Form::Writes => (0..count).map(prepare).collect(),
            Form::Reads => Vec::new(),
        };
        Replies { is_http, form, ready, out: Vec::with_capacity(4 << 10) }
    }

    /// Sends the notification, with the head of the response.
    pub fn begin(&mut self, to: &File, call: &Call) -> io::Result<()> {
        let mut spelled;
        let note = match self.form {
            Form::Writes => &mut self.ready.get_mut(call.index).ok_or(ErrorKind::InvalidData)?.0,
            Form::Reads => {
                spelled = Note::new(&call.token, FIRST_BYTES, self.form, self.is_http);
                &mut spelled
            }
        };
        self.out.clear();
        if self.is_http {
            self.out.extend_from_slice(HEAD);
        }
        frame(&mut self.out, note.chunk(1, now_ns()), self.is_http);
        write(to, &self.out)
    }

    /// Sends the answer.
    pub fn end(&self, to: &File, call: &Call) -> io::Result<()> {
        match self.form {
            Form::Writes => write(to, &self.ready[call.index].1), // `begin` found the session.
            Form::Reads => write(to, &answer(&call.id, self.is_http)),
        }
    }

    /// Sends both, with the time between them.
    pub fn serve(&mut self, to: &File, call: &Call) -> io::Result<()> {
        self.begin(to, call)?;
        std::thread::sleep(first::LINGER);
        self.end(to, call)
    }
}
