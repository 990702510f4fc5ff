//! A client that reads a stream: replies, long polls, events and descriptions, one after another.

use serde_json::Value;

use super::Grounds;
use super::record::Record;
use crate::sim::server::exchange::{Exchange, Outcome};
use crate::wire::durable::Offset;
use crate::wire::sse;

/// Bytes of a line, and of an event, at most.
const EVENT_BYTES_MAX: usize = 1 << 20;

/// A client that reads.
#[derive(Default)]
pub(super) struct Reader {
    stream: usize,
    /// The offset from which it goes on, and the bytes of content before it.
    offset: u64,
    place: usize,
    way: Way,
    asked: Option<Asked>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Way {
    #[default]
    Reply,
    LongPoll,
    Events,
    Head,
}

/// A request, and what its answer has to say at least.
struct Asked {
    exchange: Exchange,
    reached: u64,
    is_closed: bool,
    decoder: sse::Decoder,
    /// The bytes of events behind the last control event.
    unplaced: Vec<u8>,
    /// True if there may be no such stream.
    may_be_missing: bool,
    /// True if it has the right to wait.
    is_patient: bool,
}

impl Reader {
    /// Chooses a stream, or reads a part of it.
    pub fn step(&mut self, grounds: &mut Grounds, records: &mut [Record]) -> Result<(), String> {
        let Some(asked) = &mut self.asked else {
            if !grounds.is_calm && grounds.random.chance(1, 3) {
                self.begin(grounds, records);
            }
            return Ok(());
        };
        let stepped = asked.exchange.step(&grounds.world, &mut grounds.random);
        if stepped.is_err() && (self.way, asked.exchange.status) == (Way::Head, Some(408)) {
            // The server has not read yet that this is a HEAD. Its answer has a body.
            self.cut(grounds);
            return Ok(());
        }
        stepped?;
        let record = &mut records[self.stream];
        if asked.exchange.is_stream {
            let body = std::mem::take(&mut asked.exchange.body);
            let read = read_events(asked, record, (&mut self.offset, &mut self.place), &body);
            grounds.counts.events += read?;
        }
        let Some(outcome) = asked.exchange.outcome else { return Ok(()) };
        let asked = self.asked.take().expect("it was just there");
        asked.exchange.close(&grounds.world);
        if outcome == Outcome::Cut {
            return Ok(());
        }
        if !asked.exchange.is_stream {
            self.take(&asked, grounds, record).map_err(|text| {
                let (offset, way) = (self.offset, self.way);
                format!("{}, {way:?} from {offset}: {text}", record.path)
            })?;
        }
        Ok(())
    }

    /// True if no answer is due to it.
    pub fn is_idle(&self) -> bool {
        self.asked.as_ref().is_none_or(|asked| asked.is_patient)
    }

    /// Ends the connection, or loses it to a crash.
    pub fn cut(&mut self, grounds: &mut Grounds) {
        if let Some(mut asked) = self.asked.take() {
            asked.exchange.leave(&grounds.world, &mut grounds.random);
            grounds.counts.cuts += 1;
        }
    }

    /// Goes back if the stream has lost what it has read.
    pub fn go_back(&mut self, records: &[Record]) {
        let record = &records[self.stream];
        if record.marks.get(&self.offset) != Some(&self.place) {
            (self.offset, self.place) = (0, 0);
        }
    }

    fn begin(&mut self, grounds: &mut Grounds, records: &[Record]) {
        let random = &mut grounds.random;
        if records.is_empty() {
            return;
        }
        let is_usable = |at: &usize| records.get(*at).is_some_and(Record::is_usable);
        if !is_usable(&self.stream) || random.chance(1, 6) {
            let usable: Vec<usize> = (0..records.len()).filter(is_usable).collect();
            // A removed one now and then, which has nothing.
            self.stream = match usable.is_empty() || random.chance(1, 20) {
                true => random.below(records.len() as u64) as usize,
                false => usable[random.below(usable.len() as u64) as usize],
            };
            let marks = &records[self.stream].marks;
            let any = random.below(marks.len().max(1) as u64) as usize;
            let mark = marks.iter().nth(any).map(|(offset, place)| (*offset, *place));
            (self.offset, self.place) = mark.unwrap_or_default();
        }
        let record = &records[self.stream];
        self.way = [Way::Reply, Way::LongPoll, Way::Events, Way::Head][random.below(4) as usize];
        let offset = match self.offset {
            0 => "-1".to_owned(),
            offset => Offset(offset).to_string(),
        };
        let request = match self.way {
            Way::Head => record.request("HEAD", ""),
            Way::Reply => record.request("GET", &format!("?offset={offset}")),
            Way::LongPoll => record.request("GET", &format!("?offset={offset}&live=long-poll")),
            Way::Events => record.request("GET", &format!("?offset={offset}&live=sse")),
        };
        let Some(exchange) = Exchange::begin(&grounds.world, &grounds.address, &request) else {
            return;
        };
        self.asked = Some(Asked {
            exchange,
            reached: record.reached(),
            is_closed: record.is_closed(),
            decoder: sse::Decoder::with_limits(EVENT_BYTES_MAX, EVENT_BYTES_MAX),
            unplaced: Vec::new(),
            may_be_missing: !record.is_usable(),
            is_patient: self.way == Way::Events,
        });
    }

    fn take(
        &mut self,
        asked: &Asked,
        grounds: &mut Grounds,
        record: &mut Record,
    ) -> Result<(), String> {
        let Exchange { status, said, body, .. } = &asked.exchange;
        let counts = &mut grounds.counts;
        match status {
            Some(200) if self.way != Way::Head => {
                let bytes = record.bytes_of(body)?;
                let next = said.next_offset.ok_or("it has no offset")?.0;
                record.learn(self.place, &bytes, next)?;
                (self.offset, self.place) = (next, self.place + bytes.len());
                counts.replies += 1;
                counts.polled += u64::from(self.way == Way::LongPoll && !bytes.is_empty());
                check(asked, record, next, said.is_up_to_date, said.is_closed, self.place)
            }
            Some(200) => {
                counts.descriptions += 1;
                let next = said.next_offset.ok_or("it has no offset")?.0;
                check(asked, record, next, true, said.is_closed, usize::MAX)
            }
            Some(204) if self.way == Way::LongPoll => {
                let next = said.next_offset.ok_or("it has no offset")?.0;
                record.learn(self.place, b"", next)?;
                self.offset = next;
                counts.waited += 1;
                check(asked, record, next, said.is_up_to_date, said.is_closed, self.place)
            }
            Some(404 | 410) => {
                let may_be_gone = asked.may_be_missing || record.removal.is_some();
                counts.missing += 1;
                may_be_gone.then_some(()).ok_or_else(|| "it is gone".to_owned())
            }
            Some(408 | 429 | 503) => {
                counts.busy += 1;
                Ok(())
            }
            _ => Err(format!("{status:?} {}", String::from_utf8_lossy(body))),
        }
    }
}

/// Checks what an answer says of the end of a stream. `place` is the end of what was read.
fn check(
    asked: &Asked,
    record: &mut Record,
    next: u64,
    is_up_to_date: bool,
    is_closed: bool,
    place: usize,
) -> Result<(), String> {
    let reached = asked.reached;
    if is_up_to_date && next < reached {
        return Err(format!("it ends at {next}, and an append was answered at {reached}"));
    }
    if is_up_to_date && asked.is_closed && !is_closed {
        return Err("it is not closed any more".to_owned());
    }
    if is_closed && !record.may_be_closed(None) {
        return Err("nobody has closed it".to_owned());
    }
    if is_closed && place != usize::MAX {
        if record.known.len() > place {
            return Err(format!("it ends at {place} of {} bytes", record.known.len()));
        }
        record.is_known_whole = true;
    }
    Ok(())
}

/// Reads events. Returns the number of those with content.
fn read_events(
    asked: &mut Asked,
    record: &mut Record,
    (offset, place): (&mut u64, &mut usize),
    mut body: &[u8],
) -> Result<u64, String> {
    let mut count = 0;
    loop {
        let event = asked.decoder.read(&mut body);
        let event = event.map_err(|error| format!("{}: {error:?}", record.path))?;
        let Some(event) = event else { return Ok(count) };
        let data = event.data().into_owned();
        match &*event.name() {
            "data" => {
                asked.unplaced.extend(record.bytes_of(data.as_bytes())?);
                count += 1;
            }
            "control" => {
                let control: Value = serde_json::from_str(&data).map_err(|e| e.to_string())?;
                let next = control["streamNextOffset"].as_str().and_then(|text| text.parse().ok());
                let Offset(next) = next.ok_or_else(|| format!("no offset: {data}"))?;
                let bytes = std::mem::take(&mut asked.unplaced);
                record.learn(*place, &bytes, next)?;
                (*offset, *place) = (next, *place + bytes.len());
                let is_up_to_date = control["upToDate"] == true;
                let is_closed = control["streamClosed"] == true;
                check(asked, record, next, is_up_to_date, is_closed, *place)
                    .map_err(|text| format!("{}, in events: {text}", record.path))?;
            }
            name => return Err(format!("{}: an event {name}", record.path)),
        }
    }
}
