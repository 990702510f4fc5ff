//! A guest: a producer in another process, which writes a ring of its own.
//!
//! The server reads that ring as it reads anything from outside: each word once, checked. What is
//! there follows the rules of rings, or the execution fails with the rule that was broken; nobody
//! else notices. What becomes of the bytes: `taking.rs`.
//!
//! It is a guest in four steps: it is *handed* its memory; it says that it has *mapped* it, which
//! then is sealed; it may *begin*, once the engine starts it; and it *ends*, by its own word, by
//! its death, by a broken rule, or because the execution was stopped.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::ProcessSeat;
use super::places::Doors;
use super::relay::not_sealed;
use super::taking::{Broken, Progress, Taken};
use super::watcher::Watching;
use crate::base::{Handle, Instant};
use crate::engine::{Event, Gate, ProducerEnd};
use crate::limits;
use crate::memory::atomic::full_fence;
use crate::memory::{
    ControlView, FinalRecord, Owner, OwnerView, Poll, ProducerPageFile, ProducerRing, RingReader,
};
use crate::reactor::{ConnectionId, Reactor, Waker};
use crate::shard::Shard;
use crate::shard::delivery::outcome_of_code;
use crate::shard::run::{Producer, Remote, Ring, Run};
use crate::tool::{Notes, Report};
use crate::trace::Code;

/// See the module's text.
pub(in crate::shard) struct Guest {
    /// Where it is told something, and heard of.
    pub connection: ConnectionId,
    ring: ProducerRing,
    page: Page,
    /// How far its ring was taken over.
    pub(super) taken: Progress,
    /// The engine has started it.
    is_started: bool,
    /// It was told that it may begin.
    pub has_begun: bool,
    /// Its connection is gone.
    pub is_gone: bool,
    /// There was no room for its next chunk when it was last looked at.
    is_stuck: bool,
    /// Somebody here waits for its chunks: it is looked at in every turn.
    is_urgent: bool,
    /// When it was last looked at.
    looked: Instant,
    /// What was taken of its ring when it was last asked where its readers stand.
    sampled_seq: u64,
    /// The newest chunk that it had published when it was told that nothing more is taken.
    shut_seq: u64,
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

impl Guest {
    /// This ring and a page for a producer, not handed over yet.
    pub fn new(ring: ProducerRing, connection: ConnectionId) -> io::Result<Guest> {
        Ok(Guest {
            connection,
            ring,
            page: Page::Handed(Some(ProducerPageFile::create()?)),
            taken: Progress::default(),
            is_started: false,
            has_begun: false,
            is_gone: false,
            is_stuck: false,
            is_urgent: true,
            looked: Instant::ZERO,
            sampled_seq: 0,
            shut_seq: 0,
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
        let watching = doors.watch(owner.clone(), waker, self.ring.reader().clone());
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

    /// Has it said anything that was not looked at? `head_seq`: what was taken of its ring;
    /// `from_seq`: from which chunk on that is of interest.
    fn has_news(&self, head_seq: u64, from_seq: u64) -> bool {
        let Some(Mapped { view, .. }) = self.mapped().filter(|_| !self.is_stuck) else {
            return false; // Nothing is taken before there is room, and that is heard of.
        };
        let has_chunk = |seq| !matches!(self.ring.reader().poll(seq), Poll::Pending);
        has_chunk(head_seq + 1) && (from_seq == head_seq + 1 || has_chunk(from_seq))
            || self.looks_dead()
            || view.final_record().is_some()
            || view.chunks_expected() != self.expected_seen
            || view.progress().is_some_and(|record| record.reports > self.reports_seen)
    }

    /// It is about to have less room than it needs, or it was not asked for long where its readers
    /// stand. `head_seq`: what was taken of its ring; not from `gate_seq` on may it be overwritten.
    fn needs_room(&mut self, head_seq: u64, gate_seq: u64) -> bool {
        let slot_count = u64::from(self.ring.reader().geometry().slot_count());
        let is_short = self.mapped().is_some_and(|mapped| mapped.owner.is_short_of_room());
        let is_behind = head_seq.saturating_sub(gate_seq) >= slot_count / 4;
        if !(is_short || is_behind) || head_seq - self.sampled_seq < slot_count / 16 {
            return false;
        }
        self.sampled_seq = head_seq;
        true
    }

    /// Checks D2 and D3.
    pub fn audit(&self, run: &Run) {
        assert!(!self.has_begun || self.mapped().is_some()); // D2
        if let (Ring::Here(writer), Producer::Guest) = (&run.ring, &run.producer) {
            assert!(writer.head_seq() <= run.ingested_seq); // D3
            assert!(!self.taken.is_mirrored || writer.head_seq() == run.ingested_seq); // D3
        }
    }
}

impl Run {
    pub(super) fn guest(&mut self) -> Option<&mut Guest> {
        self.door.as_mut()?.guest()
    }

    /// Publishes the gate of a guest: see [`Run::publish_gate`].
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

    /// Tells a guest that nothing more is taken than what it has published by now. `false`: it has
    /// not begun, and has published nothing.
    pub fn shut_guest(&mut self) -> bool {
        let ingested_seq = self.ingested_seq;
        let Some(door) = &mut self.door else { return false };
        door.close_to_producer();
        let head_seq = door.guest_reader().map_or(0, RingReader::head_seq);
        let Some(guest) = door.guest().filter(|guest| guest.has_begun) else { return false };
        // No ring holds more, whatever it says.
        let held_max = u64::from(guest.ring.reader().geometry().slot_count());
        guest.shut_seq = head_seq.min(ingested_seq + held_max);
        guest.is_urgent = true;
        true
    }

    /// A guest's execution has ended: nothing more is taken, and it is told so.
    pub fn dismiss_guest(&mut self) -> Option<ConnectionId> {
        let door = self.door.as_mut()?;
        let connection = door.guest()?.connection;
        door.close_to_producer();
        Some(connection)
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
        run.publish_gate();
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
            Err(text) => self.end_guest(index, ProducerEnd::Failed(&text)),
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
            false => self.end_guest(index, ProducerEnd::Failed(GONE)),
        }
    }

    /// Takes over what guests have published for whose chunks somebody here waits, or that were
    /// not looked at for a while.
    pub(in crate::shard) fn take_over_urgent_guests(&mut self) {
        let now = self.now;
        self.take_over_guests_if(|guest| {
            guest.is_urgent || now.since(guest.looked) >= limits::DOOR_LOOK_INTERVAL
        });
    }

    /// Takes over what guests have published.
    pub(in crate::shard) fn take_over_guests(&mut self) {
        self.take_over_guests_if(|_| true);
    }

    fn take_over_guests_if(&mut self, is_due: impl Fn(&Guest) -> bool) {
        for at in (0..self.doors.guests.len()).rev() {
            let Some(&index) = self.doors.guests.get(at) else { continue };
            let run = self.runs[index as usize].as_mut();
            if run.and_then(Run::guest).is_some_and(|guest| is_due(guest)) {
                self.take_over_guest(index);
            }
        }
    }

    /// Takes over what a guest has published, and hears what it says beside.
    pub(in crate::shard) fn take_over_guest(&mut self, index: u32) {
        let Some(run) = self.runs[index as usize].as_mut() else { return };
        let (handle, ingested_before) = (run.handle, run.ingested_seq);
        if !matches!(run.producer, Producer::Guest) {
            return;
        }
        let now = self.now;
        let Some(guest) = run.guest().filter(|guest| guest.has_begun) else { return };
        guest.looked = now;
        // Before the ring: what it had published when it said that, is there then.
        let (is_dead, last_word) = (guest.looks_dead(), guest.last_word());
        if let Some(notes) = guest.notes() {
            self.pass_on(handle, &notes);
        }
        let taken = self.ingest_guest(index);
        self.make_room(index);
        let run = self.runs[index as usize].as_mut();
        let Some(run) = run.filter(|run| run.handle == handle) else { return };
        if !matches!(run.producer, Producer::Guest) {
            return; // What it has published, or said, has ended it.
        }
        let (head_seq, has_moved) = (run.ingested_seq, run.ingested_seq != ingested_before);
        let is_stopping = run.stopping;
        let Some(guest) = run.guest() else { return };
        let is_shut = head_seq >= guest.shut_seq;
        guest.is_stuck = matches!(taken, Ok(Taken::NoRoom));
        guest.is_urgent |= matches!(taken, Ok(Taken::Enough));
        // Its own ring is full of what somebody here has to read: it takes no more, either.
        let waits = guest.mapped().is_some_and(|mapped| mapped.owner.is_gated()) && !has_moved;
        match (taken, last_word) {
            (Err(rule), _) => self.refuse_guest(index, rule),
            (Ok(Taken::All), Some(record)) => self.believe_guest(index, &record, head_seq),
            (Ok(taken), _) if is_stopping && (!matches!(taken, Taken::Enough) || is_shut) => {
                self.end_guest(index, ProducerEnd::Stopped);
            }
            (Ok(Taken::All), None) if is_dead => self.end_guest(index, ProducerEnd::Failed(GONE)),
            (Ok(Taken::NoRoom), _) => self.say_that_it_is_gated(index),
            (Ok(Taken::Enough), _) => self.worked = true,
            (Ok(Taken::All), None) if waits => self.hear_that_guest_waits(index),
            (Ok(Taken::All), None) => {}
        }
    }

    /// Handles a guest that says it waits. The engine hears of it only if somebody holds the guest
    /// back: the guest's word may be out of date, or a lie.
    fn hear_that_guest_waits(&mut self, index: u32) {
        let run = self.runs[index as usize].as_mut().expect("the caller looked");
        let handle = run.handle;
        if std::mem::replace(&mut run.blocked, true) {
            return; // The engine has heard of it since the gate was published.
        }
        self.sample_readers(index);
        self.tell(Event::RoomWanted(handle));
        self.pump();
        let run = self.runs[index as usize].as_ref().filter(|run| run.handle == handle);
        if run.is_some_and(|run| run.blocked) && self.engine.is_held_back(handle) {
            self.tell(Event::Gated(handle));
            self.pump();
        }
    }

    /// Moves the gate of a guest before it is in the way.
    fn make_room(&mut self, index: u32) {
        let Some(run) = self.runs[index as usize].as_mut() else { return };
        let (handle, head_seq, gate_seq) = (run.handle, run.ingested_seq, run.gate.gate_seq);
        if gate_seq != u64::MAX && run.guest().is_some_and(|g| g.needs_room(head_seq, gate_seq)) {
            self.sample_readers(index);
            self.tell(Event::RoomWanted(handle));
            self.pump();
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
            Some(crate::engine::Outcome::Completed) => self.end_guest(index, ProducerEnd::Done),
            Some(_) => {
                let text = text.as_ref().map_or("", |text| text.as_str());
                let text = if text.is_empty() { "the producer failed" } else { text };
                self.end_guest(index, ProducerEnd::Failed(text));
            }
            None => self.refuse_guest(index, "it ended in a way that there is not"),
        }
    }

    /// It has broken a rule: nothing of it is believed any more.
    pub(super) fn refuse_guest(&mut self, index: u32, rule: Broken) {
        self.counters.door_producers_refused += 1;
        self.record(Code::OutsideRefused, u64::from(index), 0);
        self.log_refused_guest(index, rule);
        let text = format!("the producer broke the ring's rules: {rule}");
        self.end_guest(index, ProducerEnd::Failed(&text));
    }

    fn end_guest(&mut self, index: u32, end: ProducerEnd<'_>) {
        let Some(run) = self.runs[index as usize].as_mut() else { return };
        let handle = run.handle;
        self.doors.guests.retain(|&guest| guest != index);
        match run.producer {
            // One that waits has left before its start.
            Producer::Guest | Producer::Waiting(_) => {
                self.keep_of_guest(index);
                let Some(run) = self.runs[index as usize].as_mut() else { return };
                run.producer = Producer::Gone;
                run.stopping = false;
                self.tell(Event::ProducerEnded(handle, end));
            }
            _ => {}
        }
        self.pump();
    }

    /// The shard is about to block: guests have to knock from now on. `false`: one has something
    /// already. Whose chunks nobody here waits for is to knock when half of its ring is full.
    pub(in crate::shard) fn fall_asleep(&mut self) -> bool {
        let mut has_news = false;
        for &index in &self.doors.guests {
            let Some(run) = self.runs[index as usize].as_mut() else { continue };
            let (handle, head_seq) = (run.handle, run.ingested_seq);
            let mut is_urgent = self.engine.is_in_a_hurry(handle)
                || run.has_readers_here(self.engine.subscriber_count(handle));
            let Run { door: Some(door), remotes, .. } = run else { continue };
            let elsewhere = || remotes.iter().filter_map(Remote::process_seat);
            let half = door.guest_reader().map_or(2, |r| u64::from(r.geometry().slot_count() / 2));
            let from_seq = |is_urgent| head_seq + if is_urgent { 1 } else { half };
            door.control.page.set_server_asleep(from_seq(is_urgent)); // control:server-asleep
            if !is_urgent && elsewhere().any(ProcessSeat::has_watch) {
                is_urgent = true;
                door.control.page.set_server_asleep(from_seq(true)); // control:server-asleep
            }
            let Some(guest) = door.guest() else { continue };
            guest.is_urgent = is_urgent;
            has_news |= guest.has_news(head_seq, from_seq(is_urgent));
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
                door.control.page.set_server_awake();
            }
        }
    }
}

/// Why its execution has failed.
const GONE: &str = "the producer is gone";
