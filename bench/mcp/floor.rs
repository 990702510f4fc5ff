//! `bench mcp floor`: the least server of notifications, over HTTP or standard streams.
//!
//! It has one thread. A notification is that of streamdoor, and goes out with one write. The server
//! waits as streamdoor does. It has no policy, and no client connects or leaves during a run.
//!
//! It has two forms ([`Form`]). One writes ready-made bytes: notifications are formatted once, and
//! the replies to calls of one chunk exist before the calls. The other reads each request as JSON,
//! and formats every message with its id and token. Both read a request to its end.

mod at_once;
mod call;
mod replies;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::retry_on_intr;
use rustix::net::listen;
use streamdoor::limits::SPIN_DEFAULT;
use streamdoor::mcp::notify::{ChunkNotification, ProgressNotification, progress};
use streamdoor::reactor::{self, Idle};
use streamdoor::wire::http1::{BODY_END, begin_chunk, end_chunk};
use streamdoor::wire::jsonrpc::Id;

use super::AT_ONCE_MAX;
use crate::common::machine::{allow_descriptors, now_ns, pin_thread};
use crate::common::params::number;
use crate::common::serve::child;
use crate::common::serve::load::{LOAD_HELP, Load};
use crate::common::serve::plan::{Plan, STAMP_DIGITS, payload, stamp, write_digits};
use crate::common::{Failure, print};
use crate::floor::preformatted::digit_count;
use crate::floor::tcp::Waiter;
use crate::serve::first;
use call::{Call, Form};
use replies::Replies;

const DESCRIPTORS_OTHER: u64 = 64;
/// The backlog of the listener.
const BACKLOG: i32 = 4_096;
const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
    cache-control: no-cache, no-transform\r\ntransfer-encoding: chunked\r\n\r\n";
const HELP: &str = "\
bench mcp floor: run a minimal server of notifications, as a server for one run

`bench mcp` runs it over HTTP, on a free port of 127.0.0.1 that it prints. With the word stdio, it
uses standard streams. It writes ready-made bytes unless --reads is given.

Usage: bench mcp floor [stdio] [options]

  --cpu N             pin it to cpu N (the first allowed)
  --child             reply to each line of standard input with the usage so far; exit at its end
  --first-at-once N   the first N connections call the tool of one chunk at once
  --reads             read each request as JSON, and spell each message with its id and token
";

/// Runs `bench mcp floor` with the arguments after these words.
///
/// # Errors
/// [`Failure`].
pub fn command(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let mut arguments = arguments.into_iter().peekable();
    let is_stdio = arguments.next_if(|word| word == "stdio").is_some();
    let (mut is_child, mut at_once, mut form) = (false, 0, Form::Writes);
    let load = Load::parse(arguments, |name, parser| {
        match name {
            "child" => is_child = true,
            "reads" => form = Form::Reads,
            "first-at-once" => at_once = number(parser, "--first-at-once", 1, AT_ONCE_MAX)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let Some(load) = load else {
        print(&format!("{HELP}{LOAD_HELP}  --help\n"));
        return Ok(());
    };
    if is_child {
        child::answer_standard_input();
    }
    pin_thread(load.cpu)?;
    // Each concurrent call needs two descriptors, for reading and for writing.
    allow_descriptors(u64::from(load.connections + at_once) + DESCRIPTORS_OTHER)?;
    let (reactor, _) = reactor::open(load.reactor)
        .map_err(|error| Failure::Environment(format!("--reactor: {error}")))?;
    let waiter = Waiter::new(reactor, load.idle);
    let served = match is_stdio {
        true => over_streams(&load, waiter, form),
        false => over_http(&load, waiter, at_once, form),
    };
    served.map_err(|error| Failure::Failed(format!("mcp floor: {error}")))
}

/// A call of the plan, and the place for its messages.
struct Session {
    call: Call,
    writer: File,
}

fn over_http(load: &Load, waiter: Waiter, at_once: u32, form: Form) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listen(&listener, BACKLOG)?;
    child::announce(listener.local_addr()?);
    at_once::serve(&listener, at_once, load.idle, form)?;
    let mut replies = Replies::new(form, 1, true);
    let mut sessions: Vec<Option<Session>> = (0..load.executions).map(|_| None).collect();
    let mut left = sessions.len();
    while left > 0 {
        let mut line = accept(&listener, load.idle)?;
        // One request after the other, until the connection is closed or a call of the plan comes.
        while let Some(request) = line.next_post()? {
            let call = Call::of_request(&request, form)?;
            if !call.is_paced {
                replies.serve(&line.file, &call)?;
                continue;
            }
            let place = sessions.get_mut(call.index).ok_or(ErrorKind::InvalidData)?;
            write(&line.file, HEAD)?;
            left -= usize::from(place.is_none());
            *place = Some(Session { call, writer: line.file.try_clone()? });
            break;
        }
    }
    run(load, waiter, sessions, (form, true))?;
    loop {
        std::thread::park(); // The connections stay open until the run is over.
    }
}

fn accept(listener: &TcpListener, idle: Idle) -> io::Result<Line> {
    let (connection, _) = listener.accept()?;
    connection.set_nodelay(true)?;
    connection.set_nonblocking(true)?;
    Ok(Line::new(File::from(OwnedFd::from(connection)), idle))
}

fn over_streams(load: &Load, waiter: Waiter, form: Form) -> io::Result<()> {
    let copy = |fd: &dyn AsFd| Ok::<_, io::Error>(File::from(fd.as_fd().try_clone_to_owned()?));
    let (input, output) = (copy(&io::stdin())?, copy(&io::stdout())?);
    for file in [&input, &output] {
        fcntl_setfl(file, fcntl_getfl(file)? | OFlags::NONBLOCK)?; // The parent has the other ends.
    }
    let mut line = Line::new(input, load.idle);
    let mut replies = Replies::new(form, 1, false);
    let mut sessions: Vec<Option<Session>> = (0..load.executions).map(|_| None).collect();
    while sessions.iter().any(Option::is_none) {
        let request = line.next_line()?.ok_or(ErrorKind::UnexpectedEof)?;
        let call = Call::of_request(&request, form)?;
        if !call.is_paced {
            replies.serve(&output, &call)?;
            continue;
        }
        let place = sessions.get_mut(call.index).ok_or(ErrorKind::InvalidData)?;
        *place = Some(Session { call, writer: output.try_clone()? });
    }
    run(load, waiter, sessions, (form, false))?;
    while line.next_line()?.is_some() {}
    Ok(())
}

/// Publishes the whole plan, and the replies. `kind` is the form, and true for HTTP.
fn run(
    load: &Load,
    mut waiter: Waiter,
    sessions: Vec<Option<Session>>,
    kind: (Form, bool),
) -> io::Result<()> {
    let (form, is_http) = kind;
    let sessions: Vec<Session> = sessions.into_iter().flatten().collect();
    let note = |session: &Session| Note::new(&session.call.token, load.size_bytes, form, is_http);
    let mut notes: Vec<Note> = sessions.iter().map(note).collect();
    let mut plan = Plan::new(load);
    plan.begin(Plan::origin(now_ns()));
    let batch_chunks = if plan.is_flat_out() { load.batch_chunks as usize } else { 1 };
    let mut out = Vec::with_capacity(batch_chunks * (2 * load.size_bytes + 1_024));
    let (mut round, count) = (0, sessions.len());
    while let Some(planned_ns) = plan.next(now_ns()) {
        let index = round % count;
        let before = round / count * batch_chunks;
        out.clear();
        for number in 1..=batch_chunks {
            let note = notes[index].chunk((before + number) as u64, planned_ns);
            frame(&mut out, note, is_http);
        }
        waiter.wait(planned_ns);
        write(&sessions[index].writer, &out)?;
        round += 1;
    }
    std::thread::sleep(first::LINGER);
    for Session { call, writer } in &sessions {
        write(writer, &answer(&call.id, is_http))?;
    }
    Ok(())
}

fn answer(id: &Id, is_http: bool) -> Vec<u8> {
    let json = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"resultType\":\"complete\",\
         \"content\":[{{\"type\":\"text\",\"text\":\"\"}}]}}}}"
    );
    let mut out = Vec::new();
    match is_http {
        true => {
            frame(&mut out, format!("data: {json}\n\n").as_bytes(), true);
            out.extend_from_slice(BODY_END);
        }
        false => out.extend_from_slice(format!("{json}\n").as_bytes()),
    }
    out
}

/// Appends bytes to be sent. Over HTTP, they become a chunk of the body.
fn frame(out: &mut Vec<u8>, bytes: &[u8], is_http: bool) {
    let begun = is_http.then(|| begin_chunk(out));
    out.extend_from_slice(bytes);
    if let Some(begun) = begun {
        end_chunk(out, begun);
    }
}

/// Writes all bytes. Waits if necessary.
fn write(mut to: &File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                retry_on_intr(|| poll(&mut [PollFd::new(to, PollFlags::OUT)], None))?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The input. It is read as by an idle shard, which polls for a while and then sleeps.
struct Line {
    file: File,
    reader: BufReader<Patient>,
}

struct Patient {
    file: File,
    polls_only: bool,
}

impl Line {
    fn new(file: File, idle: Idle) -> Line {
        let copy = file.try_clone().expect("descriptors were allowed");
        let polls_only = idle == Idle::Spin;
        Line { file, reader: BufReader::new(Patient { file: copy, polls_only }) }
    }

    fn next_line(&mut self) -> io::Result<Option<String>> {
        let mut line = String::new();
        Ok((self.reader.read_line(&mut line)? > 0).then_some(line))
    }

    /// Reads the next request and returns its body.
    fn next_post(&mut self) -> io::Result<Option<String>> {
        let mut length = 0;
        loop {
            let Some(line) = self.next_line()? else { return Ok(None) };
            let line = line.trim_end();
            if let Some(text) = line.strip_prefix("content-length: ") {
                length = text.parse().map_err(io::Error::other)?;
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        self.reader.read_exact(&mut body)?;
        String::from_utf8(body).map(Some).map_err(io::Error::other)
    }
}

impl Read for Patient {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let until_ns = now_ns() + SPIN_DEFAULT.as_nanos() as u64;
        loop {
            match self.file.read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                result => return result,
            }
            if !self.polls_only && now_ns() > until_ns {
                retry_on_intr(|| poll(&mut [PollFd::new(&self.file, PollFlags::IN)], None))?;
            }
        }
    }
}

/// The notifications of one call. A floor that writes formats the first one, and writes only the
/// digits that differ into the next ones. A floor that reads formats each.
struct Note {
    token: Id,
    form: Form,
    is_sse: bool,
    payload: Box<[u8]>,
    bytes: Vec<u8>,
    /// The places of progress, seq and offset, and those of the stamp: a short text is sent twice.
    numbers: [Range<usize>; 3],
    stamps: Vec<Range<usize>>,
}

impl Note {
    fn new(token: &Id, size_bytes: usize, form: Form, is_sse: bool) -> Note {
        let bytes = Vec::with_capacity(2 * size_bytes + 1_024);
        let (token, payload) = (token.clone(), payload(size_bytes));
        let (numbers, stamps) = (Default::default(), Default::default());
        let mut note = Note { token, form, is_sse, payload, bytes, numbers, stamps };
        if form == Form::Writes {
            note.format_again(1, 0);
        }
        note
    }

    #[inline]
    fn chunk(&mut self, seq: u64, planned_ns: u64) -> &[u8] {
        if self.form == Form::Reads {
            self.format(seq, planned_ns);
            return &self.bytes;
        }
        let values = [seq, seq, (seq - 1) * self.payload.len() as u64];
        let mut places = self.numbers.iter().zip(values);
        if places.any(|(place, value)| place.len() != digit_count(value)) {
            self.format_again(seq, planned_ns);
            return &self.bytes;
        }
        for (place, value) in self.numbers.iter().zip(values) {
            write_digits(&mut self.bytes[place.clone()], value);
        }
        for place in &self.stamps {
            write_digits(&mut self.bytes[place.clone()], planned_ns);
        }
        &self.bytes
    }

    fn format(&mut self, seq: u64, planned_ns: u64) {
        stamp(&mut self.payload, planned_ns);
        let note = ProgressNotification::new(&self.token, seq as f64);
        let offset = (seq - 1) * self.payload.len() as u64;
        let chunk = ChunkNotification { seq, kind: "output", offset, data: &self.payload };
        self.bytes.clear();
        if self.is_sse {
            self.bytes.extend_from_slice(b"data: ");
        }
        progress(&mut self.bytes, &note, std::iter::once(chunk));
        self.bytes.extend_from_slice(if self.is_sse { b"\n\n" } else { b"\n" });
    }

    fn format_again(&mut self, seq: u64, planned_ns: u64) {
        self.format(seq, planned_ns);
        let digits = |name: &str| self.digits_behind(name).expect("each notification has it");
        let stamp_of = |name: &str| {
            let start = self.digits_behind(name)?.start;
            Some(start..start + STAMP_DIGITS)
        };
        let numbers = [digits("\"progress\":"), digits("\"seq\":"), digits("\"offset\":")];
        let stamps = ["\"message\":\"", "\"data\":\""].into_iter().filter_map(stamp_of).collect();
        (self.numbers, self.stamps) = (numbers, stamps);
    }

    fn digits_behind(&self, name: &str) -> Option<Range<usize>> {
        let found = self.bytes.windows(name.len()).position(|window| window == name.as_bytes());
        let start = found? + name.len();
        let digits = self.bytes[start..].iter().take_while(|byte| byte.is_ascii_digit());
        Some(start..start + digits.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::wire::token_of;

    #[test]
    fn every_notification_is_what_formatting_it_anew_gives() {
        let token = Id::of_number(token_of(3));
        for (is_sse, size_bytes) in [(true, 30), (false, 30), (true, 300), (false, 300)] {
            let of = |form| Note::new(&token, size_bytes, form, is_sse);
            let (mut written, mut spelled) = (of(Form::Writes), of(Form::Reads));
            let (mut seq, mut planned_ns) = (1, 95);
            for _ in 0..300 {
                let anew = spelled.chunk(seq, planned_ns);
                assert_eq!(written.chunk(seq, planned_ns), anew, "{seq} {planned_ns}");
                seq += 1 + seq / 40;
                planned_ns += planned_ns / 10;
            }
        }
    }
}
