//! A guest: a producer in another process, which writes a ring of its own.
//!
//! The server reads that ring as it reads anything from outside: each word once, checked, and the
//! bytes by a copy that is checked again afterwards, straight into the private ring. What is there
//! follows the rules of rings, or the execution fails with the rule that was broken; nobody else
//! notices. When the private ring takes nothing, nothing is taken, and the guest's gate stands.
//!
//! It is a guest in four steps: it is *handed* its memory; it says that it has *mapped* it, which
//! then is sealed; it may *begin*, once the engine starts it; and it *ends*, by its own word, by
//! its death, by a broken rule, or because the execution was stopped.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use smallvec::SmallVec;

use super::places::Doors;
use super::relay::not_sealed;
use super::watcher::Watching;
use crate::base::{Handle, Instant};
use crate::engine::{ChunkFacts, Event, Gate, Kind, ProducerEnd};
use crate::limits;
use crate::memory::atomic::full_fence;
use crate::memory::{
    ClockAnchor, ControlView, FinalRecord, Owner, OwnerView, Poll, ProducerPageFile, ProducerRing,
    ReadError, RingReader, RingWriter, WriteError,
};
use crate::reactor::{ConnectionId, Reactor, Waker};
use crate::shard::Shard;
use crate::shard::delivery::outcome_of_code;
use crate::shard::run::{Producer, Ring, Run};
use crate::tool::{Notes, Report};
use crate::trace::Code;

/// See the module's text.
pub(in crate::shard) struct Guest {
    /// Where it is told something, and heard of.
    pub connection: ConnectionId,
    ring: ProducerRing,
    page: Page,
    /// The engine has started it.
    is_started: bool,
    /// It was told that it may begin.
    pub has_begun: bool,
    /// Its connection is gone.
    pub is_gone: bool,
    /// There was no room for its next chunk when it was last looked at.
    is_stuck: bool,
    reports_seen: u64,
    expected_seen: Option<u64>,
}

enum Page {
    Handed(Option<ProducerPageFile>),
    Mapped(Mapped),
}

/// What can be looked at.
struct Mapped {
    view: ControlView,
    owner: OwnerView,
    /// The ring, for readers.
    read_only: OwnedFd,
    _watching: Option<Watching>,
}

/// What was taken of a ring.
enum Taken {
    /// All that is there.
    All,
    /// There is no room for the next chunk.
    NoRoom,
    /// There is more; others have their turn first.
    Enough,
}

/// A rule of rings that a guest has broken.
type Broken = &'static str;

impl Guest {
    /// A ring of `class_bytes` and a page for a producer, not handed over yet.
    pub fn new(
        class_bytes: u32,
        anchor: ClockAnchor,
        connection: ConnectionId,
    ) -> io::Result<Guest> {
        Ok(Guest {
            connection,
            ring: ProducerRing::create(class_bytes, anchor)?,
            page: Page::Handed(Some(ProducerPageFile::create()?)),
            is_started: false,
            has_begun: false,
            is_gone: false,
            is_stuck: false,
            reports_seen: 0,
            expected_seen: None,
        })
    }

    pub fn bytes(&self) -> u64 {
        self.ring.reader().geometry().window_bytes() as u64
    }

    /// What it is to map: its ring and its page.
    pub fn to_map(&self) -> [BorrowedFd<'_>; 2] {
        let Page::Handed(Some(page)) = &self.page else { unreachable!("it has just come") };
        [self.ring.descriptor(), page.descriptor()]
    }

    /// Its ring, once it can be looked at. D2
    pub fn reader(&self) -> Option<&RingReader> {
        matches!(self.page, Page::Mapped(_)).then(|| self.ring.reader())
    }

    /// Its ring, for readers.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.page {
            Page::Handed(_) => None,
            Page::Mapped(mapped) => Some(mapped.read_only.as_fd()),
        }
    }

    /// It says something for the first time: that it has mapped what it was handed. `true`: this
    /// was that.
    fn take_mapped(&mut self, doors: &Doors, waker: Waker) -> Result<bool, String> {
        let Page::Handed(page) = &mut self.page else { return Ok(false) };
        let Some(page) = page.take() else { return Ok(false) }; // It was refused before.
        let read_only = self.ring.close().map_err(|error| not_sealed(&error))?;
        let (view, owner) = page.close().map_err(|error| not_sealed(&error))?;
        let watching = doors.watch(owner.clone(), waker);
        self.page = Page::Mapped(Mapped { view, owner, read_only, _watching: watching });
        Ok(true)
    }

    fn mapped(&self) -> Option<&Mapped> {
        match &self.page {
            Page::Handed(_) => None,
            Page::Mapped(mapped) => Some(mapped),
        }
    }

    fn looks_dead(&self) -> bool {
        self.is_gone || self.mapped().is_some_and(|mapped| mapped.owner.owner() == Owner::Died)
    }

    fn last_word(&self) -> Option<FinalRecord> {
        self.mapped()?.view.final_record()
    }

    /// What it says in passing, if that is new.
    fn notes(&mut self) -> Option<Notes> {
        let Page::Mapped(Mapped { view, .. }) = &self.page else { return None };
        let mut notes = Notes::default();
        let expected = view.chunks_expected();
        if expected != self.expected_seen {
            self.expected_seen = expected;
            notes.chunks_expected = expected;
        }
        if let Some(record) = view.progress().filter(|record| record.reports > self.reports_seen) {
            self.reports_seen = record.reports;
            let mut report = Report::amount(record.progress, record.total);
            if !record.message.as_str().is_empty() {
                report = report.with_message(record.message.as_str());
            }
            if let Ok(context) = serde_json::from_str(record.context.as_str()) {
                report = report.with_context(&context);
            }
            notes.push(report);
        }
        (notes.chunks_expected.is_some() || !notes.reports.is_empty()).then_some(notes)
    }

    /// Has it said anything that was not looked at? `head_seq`: what was taken of its ring.
    fn has_news(&self, head_seq: u64) -> bool {
        let Some(Mapped { view, .. }) = self.mapped().filter(|_| !self.is_stuck) else {
            return false; // Nothing is taken before there is room, and that is heard of.
        };
        !matches!(self.ring.reader().poll(head_seq + 1), Poll::Pending)
            || self.looks_dead()
            || view.final_record().is_some()
            || view.chunks_expected() != self.expected_seen
            || view.progress().is_some_and(|record| record.reports > self.reports_seen)
    }

    /// Checks D2 and D3.
    pub fn audit(&self, run: &Run) {
        assert!(!self.has_begun || self.mapped().is_some()); // D2
        if let (Ring::Here(writer), Producer::Guest) = (&run.ring, &run.producer) {
            assert_eq!(writer.head_seq(), run.ingested_seq); // D3
        }
    }
}

/// Copies the next chunk of `from` into `to`, if there is one and room for it.
fn copy_chunk(
    from: &RingReader,
    to: &mut RingWriter,
    gate: &Gate,
    now: Instant,
) -> Result<Result<ChunkFacts, Taken>, Broken> {
    let seq = to.head_seq() + 1;
    let descriptor = match from.poll(seq) {
        Poll::Ready(descriptor) => descriptor,
        Poll::Pending => return Ok(Err(Taken::All)),
        Poll::Overtaken { .. } => return Err("a chunk was overwritten before it was taken"),
        Poll::Gone => return Err("the ring became another one"),
        Poll::Corrupt => return Err("a chunk lies outside of the ring"),
    };
    let header = descriptor.header;
    let kind = Kind::new(header.kind).ok_or("a chunk is of a kind that there is not")?;
    if usize::from(header.key) >= limits::KEYS_MAX {
        return Err("a chunk has a key that there is not");
    }
    let length = descriptor.length as usize;
    if Some(descriptor.total_bytes) != to.total_bytes().checked_add(length as u64) {
        return Err("a chunk counts bytes that there were not");
    }
    if !gate.admits(to.head_seq(), to.total_bytes(), length) {
        return Ok(Err(Taken::NoRoom));
    }
    let room = match to.lend(length, gate.gate_seq) {
        Ok(room) => room,
        Err(WriteError::Gated { .. }) => return Ok(Err(Taken::NoRoom)),
        Err(WriteError::TooLarge { .. }) => return Err("a chunk is longer than its ring takes"),
    };
    match from.copy(&descriptor, room) {
        Ok(()) => {}
        Err(ReadError::Overtaken { .. }) => {
            return Err("a chunk was overwritten while it was taken");
        }
        Err(_) => return Err("a chunk changed while it was taken"),
    }
    to.publish(header, length, descriptor.published().min(now));
    let length = descriptor.length;
    Ok(Ok(ChunkFacts { length, kind, key: header.key, tail_seq: to.tail_seq() }))
}

impl Run {
    fn guest(&mut self) -> Option<&mut Guest> {
        self.door.as_mut()?.guest()
    }

    /// Tells the guest what it is allowed, and wakes it if it waits for that.
    pub fn publish_guest_gate(&mut self) {
        let Gate { gate_seq, credit_seq, credit_bytes, read_seq } = self.allowed();
        let Some(door) = &mut self.door else { return };
        door.control.page.set_gate(gate_seq, credit_seq, credit_bytes, read_seq);
        full_fence(); // owner:gated
        let mapped = door.guest().and_then(|guest| guest.mapped());
        if mapped.is_some_and(|mapped| mapped.owner.is_gated()) {
            door.control.page.wake_producer();
        }
    }

    /// A guest's execution has ended: nothing more is taken, and it is told so.
    pub fn dismiss_guest(&mut self) -> Option<ConnectionId> {
        let door = self.door.as_mut()?;
        let connection = door.guest()?.connection;
        door.control.page.close();
        door.control.page.wake_producer();
        Some(connection)
    }

    /// Takes over some chunks of the guest's ring, as many as the engine takes at once.
    fn copy_burst(
        &mut self,
        burst: usize,
        now: Instant,
        facts: &mut SmallVec<[ChunkFacts; limits::BURST_CHUNKS_MAX as usize]>,
    ) -> Result<Taken, Broken> {
        let gate = self.allowed();
        let Run { ring: Ring::Here(writer), door: Some(door), .. } = self else {
            return Ok(Taken::All);
        };
        let Some(reader) = door.guest_reader() else { return Ok(Taken::All) };
        while facts.len() < burst {
            match copy_chunk(reader, writer, &gate, now)? {
                Ok(chunk) => facts.push(chunk),
                Err(taken) => return Ok(taken),
            }
        }
        Ok(Taken::Enough)
    }
}

impl<R: Reactor + 'static> Shard<R> {
    /// The engine starts a guest: it may begin, once it has mapped its memory.
    pub(in crate::shard) fn let_guest_begin(&mut self, handle: Handle) {
        if let Some(guest) = self.run_mut(handle).guest() {
            guest.is_started = true;
            self.tell_guest_to_begin(handle.index);
        }
    }

    fn tell_guest_to_begin(&mut self, index: u32) {
        let Some(run) = self.runs[index as usize].as_mut() else { return };
        let Some(guest) = run.guest() else { return };
        if guest.has_begun || !guest.is_started || guest.mapped().is_none() {
            return;
        }
        guest.has_begun = true;
        let connection = guest.connection;
        run.publish_guest_gate();
        self.doors.guests.push(index);
        self.say_go(connection);
    }

    /// A guest has said something on its connection: for the first time that it has mapped its
    /// memory, later that there is something to look at.
    pub(in crate::shard) fn hear_guest(&mut self, index: u32) {
        let (waker, doors) = (self.reactor.waker(), self.doors.places.clone());
        let run = self.runs[index as usize].as_mut();
        let Some(guest) = run.and_then(Run::guest) else { return };
        match guest.take_mapped(&doors, waker) {
            Ok(true) => self.tell_guest_to_begin(index),
            Ok(false) => self.take_over_guest(index),
            Err(text) => self.end_guest(index, Err(&text)),
        }
    }

    /// The connection of a guest is gone, and with it the guest. What it has published is still
    /// taken.
    pub(in crate::shard) fn lose_guest(&mut self, index: u32) {
        let run = self.runs[index as usize].as_mut();
        let Some(guest) = run.and_then(Run::guest) else { return };
        guest.is_gone = true;
        match guest.has_begun {
            true => self.take_over_guest(index),
            false => self.end_guest(index, Err(GONE)),
        }
    }

    /// Takes over what guests have published.
    pub(in crate::shard) fn take_over_guests(&mut self) {
        for at in (0..self.doors.guests.len()).rev() {
            let Some(&index) = self.doors.guests.get(at) else { continue };
            self.take_over_guest(index);
        }
    }

    /// Takes over what a guest has published, and hears what it says beside.
    pub(in crate::shard) fn take_over_guest(&mut self, index: u32) {
        let Some(run) = self.runs[index as usize].as_mut() else { return };
        let (handle, ingested_before) = (run.handle, run.ingested_seq);
        if !matches!(run.producer, Producer::Guest) {
            return;
        }
        let Some(guest) = run.guest().filter(|guest| guest.has_begun) else { return };
        // Before the ring: what it had published when it said that, is there then.
        let (is_dead, last_word) = (guest.looks_dead(), guest.last_word());
        if let Some(notes) = guest.notes() {
            self.pass_on(handle, &notes);
        }
        let taken = self.ingest_guest(index);
        let run = self.runs[index as usize].as_mut();
        let Some(run) = run.filter(|run| run.handle == handle) else { return };
        if !matches!(run.producer, Producer::Guest) {
            return; // What it has published, or said, has ended it.
        }
        if run.ingested_seq != ingested_before {
            run.publish_guest_gate();
        }
        let (head_seq, has_moved) = (run.ingested_seq, run.ingested_seq != ingested_before);
        let Some(guest) = run.guest() else { return };
        guest.is_stuck = matches!(taken, Ok(Taken::NoRoom));
        // Its own ring is full of what somebody here has to read: it takes no more, either.
        let waits = guest.mapped().is_some_and(|mapped| mapped.owner.is_gated()) && !has_moved;
        match (taken, last_word) {
            (Err(rule), _) => self.refuse_guest(index, rule),
            (Ok(Taken::All), Some(record)) => self.believe_guest(index, &record, head_seq),
            (Ok(Taken::All), None) if is_dead => self.end_guest(index, Err(GONE)),
            (Ok(Taken::NoRoom), _) => self.say_that_it_is_gated(index),
            (Ok(Taken::Enough), _) => self.worked = true,
            (Ok(Taken::All), None) if waits => self.say_that_it_is_gated(index),
            (Ok(Taken::All), None) => {}
        }
    }

    fn ingest_guest(&mut self, index: u32) -> Result<Taken, Broken> {
        let (mut chunks, mut bytes) = (0, 0);
        loop {
            let run = self.runs[index as usize].as_mut();
            let Some(run) = run.filter(|run| matches!(run.producer, Producer::Guest)) else {
                return Ok(Taken::All);
            };
            let burst = self.engine.burst_chunks(run.handle) as usize;
            let mut facts = SmallVec::new();
            let taken = run.copy_burst(burst, self.now, &mut facts);
            if !facts.is_empty() {
                chunks += facts.len() as u32;
                bytes += facts.iter().map(|chunk| u64::from(chunk.length)).sum::<u64>();
                self.worked = true;
                self.ingest_written(index, &facts);
            }
            let is_enough =
                chunks >= limits::GUEST_CHUNKS_PER_TURN || bytes >= limits::GUEST_BYTES_PER_TURN;
            match taken {
                // Its own chunks may have been in the way, which the engine knows of by now.
                Ok(Taken::NoRoom) if !facts.is_empty() && !is_enough => {}
                Ok(Taken::Enough) if !is_enough => {}
                taken => return taken,
            }
        }
    }

    /// It says that it has ended, and everything that it had published was taken.
    fn believe_guest(&mut self, index: u32, record: &FinalRecord, head_seq: u64) {
        if record.head_seq != head_seq {
            return self.refuse_guest(index, "it ended behind a chunk that it did not publish");
        }
        let run = self.runs[index as usize].as_mut().expect("the caller looked");
        let guest = run.guest().and_then(|guest| Some(guest.mapped()?.view.clone()));
        let text = guest.map(|view| view.error_text());
        match outcome_of_code(record.verdict.get()) {
            Some(crate::engine::Outcome::Completed) => self.end_guest(index, Ok(())),
            Some(_) => {
                let text = text.as_ref().map_or("", |text| text.as_str());
                let text = if text.is_empty() { "the producer failed" } else { text };
                self.end_guest(index, Err(text));
            }
            None => self.refuse_guest(index, "it ended in a way that there is not"),
        }
    }

    /// It has broken a rule: nothing of it is believed any more.
    fn refuse_guest(&mut self, index: u32, rule: Broken) {
        self.counters.door_producers_refused += 1;
        self.record(Code::OutsideRefused, u64::from(index), 0);
        self.log_refused_guest(index, rule);
        let text = format!("the producer broke the ring's rules: {rule}");
        self.end_guest(index, Err(&text));
    }

    fn end_guest(&mut self, index: u32, result: Result<(), &str>) {
        let Some(run) = self.runs[index as usize].as_mut() else { return };
        let (handle, id) = (run.handle, run.id);
        self.doors.guests.retain(|&guest| guest != index);
        match run.producer {
            Producer::Guest => {
                run.producer = Producer::Gone;
                let end = match result {
                    Ok(()) => ProducerEnd::Done,
                    Err(text) => ProducerEnd::Failed(text),
                };
                self.tell(Event::ProducerEnded(handle, end));
            }
            Producer::Waiting(_) => _ = self.cancel(id), // It has not begun.
            _ => {}
        }
        self.pump();
    }

    /// The shard is about to block: guests have to knock from now on. `false`: one has something
    /// already.
    pub(in crate::shard) fn fall_asleep(&mut self) -> bool {
        let mut has_news = false;
        for &index in &self.doors.guests {
            let Some(run) = self.runs[index as usize].as_mut() else { continue };
            let head_seq = run.ingested_seq;
            let Some(door) = &mut run.door else { continue };
            door.control.page.set_server_asleep(true); // control:server-asleep
            has_news |= door.guest().is_some_and(|guest| guest.has_news(head_seq));
        }
        if has_news {
            self.rise();
        }
        !has_news
    }

    /// The shard looks by itself again.
    pub(in crate::shard) fn rise(&mut self) {
        for &index in &self.doors.guests {
            if let Some(run) = self.runs[index as usize].as_mut()
                && let Some(door) = &mut run.door
            {
                door.control.page.set_server_asleep(false);
            }
        }
    }
}

/// Why its execution has failed.
const GONE: &str = "the producer is gone";
