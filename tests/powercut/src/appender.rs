//! Appenders: clients that create, fork, append to, close and remove Durable Streams, each its own
//! ones, one request after another. Their records say what has to be there after a crash.

use std::sync::atomic::{AtomicBool, Ordering};

use streamdoor::base::Random;

use crate::http::{Client, Reply};
use crate::records::{Asked, Mark, Record, body, inside};

/// Number of streams that an appender uses at a time.
const STREAMS: usize = 4;

pub struct Appender {
    name: String,
    pub random: Random,
    pub records: Vec<Record>,
    /// Number of requests that were answered.
    pub answered: u64,
}

/// Number of things that were checked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checked {
    pub streams: u64,
    pub appends: u64,
    pub bytes: u64,
    /// Requests without an answer, which were carried out, and which were not.
    pub carried_out: u64,
    pub not_carried_out: u64,
    /// Requests that were repeated.
    pub repeated: u64,
}

/// The path of the content of a stream.
fn target(path: &str) -> String {
    format!("/v1/stream/{path}")
}

/// The content of a stream, as a client sees it.
struct Seen {
    content: Vec<u8>,
    is_closed: bool,
}

impl Appender {
    pub fn new(name: String, random: Random) -> Appender {
        Appender { name, random, records: Vec::new(), answered: 0 }
    }

    /// Sends requests until `is_over`, or until one gets no answer, or the disk has failed.
    pub fn run(&mut self, address: &str, is_over: &AtomicBool) {
        let mut client = Client::new(address);
        while !is_over.load(Ordering::Relaxed) {
            let at = self.choose();
            if !self.send(&mut client, at) {
                return;
            }
            self.answered += 1;
        }
    }

    fn usable(&self) -> Vec<usize> {
        let is_usable = |record: &Record| record.is_there && !record.is_removed;
        (0..self.records.len()).filter(|at| is_usable(&self.records[*at])).collect()
    }

    /// Chooses the next request. Returns its record.
    fn choose(&mut self) -> usize {
        let usable = self.usable();
        let open: Vec<usize> =
            usable.iter().copied().filter(|at| !self.records[*at].is_closed).collect();
        if open.len() < STREAMS {
            return self.create(&usable);
        }
        if self.random.chance(1, 30) || usable.len() > 4 * STREAMS {
            let at = usable[self.random.below(usable.len() as u64) as usize];
            self.records[at].asked = Some(Asked::Remove);
            return at;
        }
        let at = open[self.random.below(open.len() as u64) as usize];
        let record = &mut self.records[at];
        let closes = self.random.chance(1, 25);
        let mark = match self.random.below(8) {
            0 => Mark::Plain,
            1 => Mark::Order(record.next_order),
            _ => Mark::Producer(record.next_seq),
        };
        let is_bare = closes && mark != Mark::Plain && self.random.chance(1, 2);
        let body = if is_bare { Vec::new() } else { body(record.is_json, &mut self.random) };
        record.asked = Some(Asked::Append { body, mark, closes });
        at
    }

    /// Begins a stream, or a fork of one of these.
    fn create(&mut self, usable: &[usize]) -> usize {
        let path = format!("{}/{}", self.name, self.records.len());
        let mut record = Record {
            path,
            is_json: self.random.chance(1, 3),
            source: None,
            forked: None,
            pieces: Vec::new(),
            next_seq: 0,
            next_order: 0,
            is_there: false,
            is_closed: false,
            is_removed: false,
            asked: None,
        };
        if !usable.is_empty() && self.random.chance(1, 3) {
            let at = usable[self.random.below(usable.len() as u64) as usize];
            let source = &self.records[at];
            if !source.pieces.is_empty() {
                let last = self.random.below(source.pieces.len() as u64) as usize;
                record.is_json = source.is_json;
                record.pieces = source.pieces[..=last].to_vec();
                let offset = source.pieces[last].offset.clone();
                (record.source, record.forked) = (Some(at), Some((source.path.clone(), offset)));
            }
        }
        let has_body = self.random.chance(1, 2);
        let body = if has_body { body(record.is_json, &mut self.random) } else { Vec::new() };
        record.asked = Some(Asked::Create { body, closes: self.random.chance(1, 30) });
        self.records.push(record);
        self.records.len() - 1
    }

    /// Sends the request of a record. Returns false if it is not answered.
    fn send(&mut self, client: &mut Client, at: usize) -> bool {
        let record = &mut self.records[at];
        let asked = record.asked.clone().expect("a request");
        let Ok(reply) = ask(client, record, &asked) else { return false };
        let expected = match &asked {
            Asked::Create { .. } => 201,
            Asked::Append { body, mark: Mark::Producer(_), .. } if !body.is_empty() => 200,
            Asked::Append { .. } | Asked::Remove => 204,
        };
        if [503, 507].contains(&reply.status) {
            return false; // The disk has failed or is full. It may have the request, or a part.
        }
        check_status(record, &asked, &reply, expected);
        record.carry_out(reply.header("stream-next-offset").unwrap_or(""));
        true
    }

    /// Compares all streams with the records, after a crash. Sends the requests without an answer
    /// again, and compares once more.
    pub fn check(&mut self, address: &str, checked: &mut Checked) {
        let mut client = Client::new(address);
        let Appender { records, .. } = self;
        for record in records.iter_mut().filter(|record| !record.is_removed) {
            check_content(&mut client, record, checked);
        }
        for at in 0..records.len() {
            let is_kept = is_kept(records, at);
            let record = &records[at];
            if !record.is_removed {
                continue;
            }
            let reply = client.ask("GET", &target(&record.path), "", b"").unwrap();
            let expected = if is_kept { 410 } else { 404 };
            let path = &record.path;
            assert_eq!(reply.status, expected, "{path} was removed: {}", reply.text());
        }
    }
}

/// True if a removed stream has forks that need it.
fn is_kept(records: &[Record], at: usize) -> bool {
    let is_fork = |fork: &Record| fork.source == Some(at) && fork.is_there;
    let needs = |number: usize| !records[number].is_removed || is_kept(records, number);
    (0..records.len()).any(|number| is_fork(&records[number]) && needs(number))
}

fn ask(client: &mut Client, record: &Record, asked: &Asked) -> std::io::Result<Reply> {
    let (method, headers) = record.request(asked);
    let body = match asked {
        Asked::Create { body, .. } | Asked::Append { body, .. } => &body[..],
        Asked::Remove => b"",
    };
    client.ask(method, &target(&record.path), &headers, body)
}

fn check_status(record: &Record, asked: &Asked, reply: &Reply, expected: u16) {
    let (path, text) = (&record.path, reply.text());
    assert_eq!(reply.status, expected, "{path}: {}: {text}", short(asked));
}

/// A request without its body.
fn short(asked: &Asked) -> String {
    match asked {
        Asked::Create { body, closes } => format!("create with {} bytes, {closes}", body.len()),
        Asked::Append { body, mark, closes } => {
            format!("append {} bytes, {mark:?}, closes: {closes}", body.len())
        }
        Asked::Remove => "remove".to_owned(),
    }
}

/// Reads a stream to its end; `None` if it is not there.
fn read(client: &mut Client, record: &Record) -> Option<Seen> {
    let (mut parts, mut offset) = (Vec::new(), "-1".to_owned());
    loop {
        let path = format!("{}?offset={offset}", target(&record.path));
        let reply = client.ask("GET", &path, "", b"");
        let reply = reply.unwrap_or_else(|error| panic!("{path}: {error}"));
        if [404, 410].contains(&reply.status) && parts.is_empty() {
            return None;
        }
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        parts.push(inside(record.is_json, &reply.body).to_vec());
        if reply.header("stream-up-to-date").is_some() {
            let parts = parts.iter().map(|part| &part[..]);
            let content = crate::records::content(record.is_json, parts);
            let is_closed = reply.header("stream-closed") == Some("true");
            return Some(Seen { content, is_closed });
        }
        offset = reply.header("stream-next-offset").expect("where to go on").to_owned();
    }
}

/// Two contents, without the bytes.
fn difference(seen: &[u8], expected: &[u8]) -> String {
    let common = seen.iter().zip(expected).take_while(|(one, other)| one == other).count();
    format!("{} bytes, expected {}, equal through {common}", seen.len(), expected.len())
}

fn check_content(client: &mut Client, record: &mut Record, checked: &mut Checked) {
    let path = record.path.clone();
    let seen = read(client, record);
    let asked = record.asked.clone();
    let what = asked.as_ref().map_or(String::new(), short);
    checked.streams += 1;
    let expected = record.content();
    let Some(seen) = seen else {
        let may_be_gone = matches!(asked, Some(Asked::Create { .. } | Asked::Remove));
        assert!(may_be_gone, "{path} is lost: {what}");
        return repeat(client, record, checked, matches!(asked, Some(Asked::Remove)));
    };
    let closed_before = record.is_closed;
    let (with, closes) = match &asked {
        Some(Asked::Create { body, closes }) => (record.content_with(body), *closes),
        Some(Asked::Append { body, closes, .. }) => (record.content_with(body), *closes),
        Some(Asked::Remove) | None => (expected.clone(), closed_before),
    };
    let is_without = seen.content == expected && seen.is_closed == closed_before;
    let is_with = seen.content == with && seen.is_closed == closes;
    let must_be_with = matches!(asked, Some(Asked::Create { .. }));
    assert!(
        is_with || (is_without && !must_be_with),
        "{path}, {what}: {}, with it {}; closed {}, before {closed_before}",
        difference(&seen.content, &expected),
        difference(&seen.content, &with),
        seen.is_closed,
    );
    checked.appends += record.pieces.len() as u64;
    checked.bytes += seen.content.len() as u64;
    if let Some(asked) = asked {
        let is_done = is_with && asked != Asked::Remove;
        repeat(client, record, checked, is_done);
    }
}

/// Sends a request again that was not answered. Afterwards it was carried out once.
fn repeat(client: &mut Client, record: &mut Record, checked: &mut Checked, is_done: bool) {
    let asked = record.asked.clone().expect("a request");
    match is_done {
        true => checked.carried_out += 1,
        false => checked.not_carried_out += 1,
    }
    let expected = match &asked {
        Asked::Append { mark: Mark::Plain, .. } => {
            // Its client cannot know. It does not repeat it.
            if is_done {
                let offset = head_offset(client, record);
                record.carry_out(&offset);
            }
            record.asked = None;
            return;
        }
        Asked::Create { .. } => [201, 200][usize::from(is_done)],
        Asked::Append { body, mark: Mark::Producer(_), .. } => {
            if is_done || body.is_empty() {
                204
            } else {
                200
            }
        }
        Asked::Append { mark: Mark::Order(_), .. } => [204, 409][usize::from(is_done)],
        Asked::Remove if is_done => return record.carry_out(""),
        Asked::Remove => 204,
    };
    // An order or a closed stream has nothing that names the repeated request.
    let reply = ask(client, record, &asked).unwrap();
    let is_bare_close = matches!(&asked, Asked::Append { body, .. } if body.is_empty());
    if !(is_done && is_bare_close && reply.status == 204) {
        check_status(record, &asked, &reply, expected);
    }
    checked.repeated += 1;
    if asked == Asked::Remove {
        return record.carry_out("");
    }
    let offset = head_offset(client, record);
    record.carry_out(&offset);
    let seen = read(client, record).expect("it was just changed");
    let content = record.content();
    assert!(
        seen.content == content && seen.is_closed == record.is_closed,
        "{}, repeated {}: {}, closed {}",
        record.path,
        short(&asked),
        difference(&seen.content, &content),
        seen.is_closed,
    );
}

fn head_offset(client: &mut Client, record: &Record) -> String {
    let reply = client.ask("HEAD", &target(&record.path), "", b"").unwrap();
    assert_eq!(reply.status, 200, "{}", record.path);
    reply.header("stream-next-offset").expect("its end").to_owned()
}
