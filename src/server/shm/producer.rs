//! A producer: a producer in another process, which writes to a ring of its own.
//!
//! The server reads that ring as it reads all outside data: it reads each word once and checks it.
//! The ring follows the rules of rings, or the execution fails with the rule that was broken, and
//! nothing else is affected. `taking.rs` handles the bytes.
//!
//! A producer has four steps. It is *handed* its memory. It reports that it has *mapped* the
//! memory, which is then sealed. It may *begin* once the engine starts it. It *ends* by its own
//! final record, by its death, by a broken rule, or because the execution was stopped.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::base::{Handle, Instant};
use crate::engine::{Event, Gate, ProducerEnd};
use crate::limits;
use crate::memory::atomic::full_fence;
use crate::memory::{
    ControlView, FinalRecord, Owner, OwnerView, Poll, ProducerPageFile, ProducerRing, RingReader,
};
use crate::reactor::{ConnectionId, Reactor, Waker};
use crate::server::ServerShard;
use crate::server::guests::{Served, ServedRun};
use crate::server::shm::places::Doors;
use crate::server::shm::relay::not_sealed;
use crate::server::shm::taking::{Broken, Progress, Taken};
use crate::server::shm::watcher::Watching;
use crate::server::shm::{Door, ProcessSeat, lines, taking};
use crate::shard::delivery::outcome_of_code;
use crate::shard::run::{Producer, Remote, Ring};
use crate::tool::{Report, ToolUpdate};
use crate::trace::Code;

/// The shard's state of one producer. See the module's text.
pub(in crate::server) struct OutsideProducer {
    /// The connection to the producer's process.
    pub connection: ConnectionId,
    pub(super) ring: ProducerRing,
    page: Page,
    /// The progress of taking over its ring.
    pub(in crate::server) taken: Progress,
    /// True once the engine has started it.
    is_started: bool,
    /// True once it was told that it may begin.
    pub has_begun: bool,
    /// True once its connection is closed.
    pub is_gone: bool,
    /// True if its next chunk had no room when it was last visited.
    is_stuck: bool,
    /// True if a reader in this process waits for its chunks. It is then visited in every turn.
    pub(super) is_urgent: bool,
    /// The time of the last visit.
    looked: Instant,
    /// The newest chunk taken over when the positions of its readers were last sampled.
    sampled_seq: u64,
    /// The newest chunk that it had published when it was told that no more is taken.
    pub(super) shut_seq: u64,
    reports_seen: u64,
    expected_seen: Option<u64>,
}

enum Page {
    Handed(Option<ProducerPageFile>),
    Mapped(Mapped),
}

/// The memory that may be read because it is sealed. (D2)
struct Mapped {
    view: ControlView,
    owner: OwnerView,
    /// The descriptor of the ring for readers.
    read_only: OwnedFd,
    _watching: Option<Watching>,
}

impl OutsideProducer {
    /// Returns a producer with this ring and a new page, both not handed over yet.
    pub fn new(ring: ProducerRing, connection: ConnectionId) -> io::Result<OutsideProducer> {
        Ok(OutsideProducer {
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

    /// Returns the memory that the producer maps: its ring and its page.
    pub fn to_map(&self) -> [BorrowedFd<'_>; 2] {
        let Page::Handed(Some(page)) = &self.page else {
            unreachable!("its memory is handed over once")
        };
        [self.ring.descriptor(), page.descriptor()]
    }

    /// Returns its ring once it may be read. (D2)
    pub fn reader(&self) -> Option<&RingReader> {
        matches!(self.page, Page::Mapped(_)).then(|| self.ring.reader())
    }

    /// Returns the descriptor of its ring for readers, once the ring is sealed.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.page {
            Page::Handed(_) => None,
            Page::Mapped(mapped) => Some(mapped.read_only.as_fd()),
        }
    }

    /// Handles the first message of the producer: it has mapped its memory, which is sealed now.
    /// Returns `true` if the message was the first.
    fn take_mapped(&mut self, doors: &Doors, waker: Waker) -> Result<bool, String> {
        let Page::Handed(page) = &mut self.page else { return Ok(false) };
        let Some(page) = page.take() else { return Ok(false) }; // Sealing has failed before.
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

    /// Returns the new part of its progress report and its expected number of chunks, if either
    /// changed.
    fn updates(&mut self) -> Option<ToolUpdate> {
        let Page::Mapped(Mapped { view, .. }) = &self.page else { return None };
        let mut updates = ToolUpdate::default();
        let expected = view.chunks_expected();
        if expected != self.expected_seen {
            self.expected_seen = expected;
            updates.chunks_expected = expected;
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
            updates.push(report);
        }
        (updates.chunks_expected.is_some() || !updates.reports.is_empty()).then_some(updates)
    }

    /// True if it has published or reported something that was not taken over. `head_seq` is the
    /// newest chunk taken over, `from_seq` the first chunk whose presence counts as news.
    fn has_news(&self, head_seq: u64, from_seq: u64) -> bool {
        let Some(Mapped { view, .. }) = self.mapped().filter(|_| !self.is_stuck) else {
            return false; // Nothing is taken until there is room, and that is an event of its own.
        };
        let has_chunk = |seq| !matches!(self.ring.reader().poll(seq), Poll::Pending);
        has_chunk(head_seq + 1) && (from_seq == head_seq + 1 || has_chunk(from_seq))
            || self.looks_dead()
            || view.final_record().is_some()
            || view.chunks_expected() != self.expected_seen
            || view.progress().is_some_and(|record| record.reports > self.reports_seen)
    }

    /// True if it will soon lack room, or if the positions of its readers were not sampled for a
    /// while. `head_seq` is the newest chunk taken over. Chunks from `gate_seq` on may not be
    /// overwritten.
    fn needs_room(&mut self, head_seq: u64, gate_seq: u64) -> bool {
        let ring = self.ring.reader();
        let slot_count = u64::from(ring.geometry().slot_count());
        // Long chunks fill a ring long before its slots are used.
        let held_count = (head_seq + 1).saturating_sub(ring.tail_seq()).clamp(16, slot_count);
        let is_short = self.mapped().is_some_and(|mapped| mapped.owner.is_short_of_room());
        let is_behind = head_seq.saturating_sub(gate_seq) >= held_count / 4;
        if !(is_short || is_behind) || head_seq - self.sampled_seq < held_count / 16 {
            return false;
        }
        self.sampled_seq = head_seq;
        true
    }

    /// Checks D2 and D3.
    pub fn audit(&self, run: &ServedRun) {
        assert!(!self.has_begun || self.mapped().is_some()); // D2
        if let (Ring::Here(writer), Producer::Outside) = (&run.ring, &run.producer) {
            assert!(writer.head_seq() <= run.ingested_seq); // D3
            assert!(!self.taken.is_mirrored || writer.head_seq() == run.ingested_seq); // D3
        }
    }
}

impl Door {
    /// Publishes the gate of a producer: see [`Run::publish_gate`].
    pub fn publish_gate(&mut self, gate: Gate) {
        let Gate { gate_seq, credit_seq, credit_bytes, read_seq } = gate;
        self.control.page.set_gate(gate_seq, credit_seq, credit_bytes, read_seq);
        full_fence(); // owner:gated
        let mapped = self.producer().and_then(|producer| producer.mapped());
        if mapped.is_some_and(|mapped| mapped.owner.is_gated()) {
            self.control.page.wake_producer();
        }
    }
}

/// Lets a producer begin that the engine has started, as soon as it has mapped its memory.
pub(in crate::server) fn let_producer_begin<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    handle: Handle,
) {
    if let Some(producer) = shard.run_mut(handle).producer() {
        producer.is_started = true;
        tell_producer_to_begin(shard, handle.index);
    }
}

fn tell_producer_to_begin<R: Reactor + 'static>(shard: &mut ServerShard<R>, index: u32) {
    let run = shard.runs[index as usize].as_mut();
    // It may have been stopped before it had mapped its memory. (D5)
    let Some(run) = run.filter(|run| matches!(run.producer, Producer::Outside)) else { return };
    let Some(producer) = run.producer() else { return };
    if producer.has_begun || !producer.is_started || producer.mapped().is_none() {
        return;
    }
    producer.has_begun = true;
    let connection = producer.connection;
    run.publish_gate();
    shard.guests.doors.producers.push(index);
    lines::say_go(shard, connection);
}

/// Handles a message on a producer's connection. The first one says that it has mapped its memory,
/// later ones that it has published something.
pub(in crate::server) fn hear_producer<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    index: u32,
) {
    let (waker, doors) = (shard.reactor.waker(), shard.guests.doors.places.clone());
    let run = shard.runs[index as usize].as_mut();
    let Some(producer) = run.and_then(ServedRun::producer) else { return };
    match producer.take_mapped(&doors, waker) {
        Ok(true) => tell_producer_to_begin(shard, index),
        Ok(false) => take_over_producer(shard, index),
        Err(text) => end_producer(shard, index, ProducerEnd::Failed(&text)),
    }
}

/// Handles the end of a producer's connection, which ends the producer. Its published chunks are
/// still taken.
pub(in crate::server) fn lose_producer<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    index: u32,
) {
    let run = shard.runs[index as usize].as_mut();
    let Some(producer) = run.and_then(ServedRun::producer) else { return };
    producer.is_gone = true;
    match producer.has_begun {
        true => take_over_producer(shard, index),
        false => end_producer(shard, index, ProducerEnd::Failed(GONE)),
    }
}

/// Takes over the chunks of producers for which a reader in this process waits, and of producers
/// that were not visited for [`limits::DOOR_LOOK_INTERVAL`].
pub(in crate::server) fn take_over_urgent_producers<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
) {
    let now = shard.now;
    take_over_producers_if(shard, |producer| {
        producer.is_urgent || now.since(producer.looked) >= limits::DOOR_LOOK_INTERVAL
    });
}

/// Takes over the published chunks of all producers.
pub(in crate::server) fn take_over_producers<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    take_over_producers_if(shard, |_| true);
}

fn take_over_producers_if<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    is_due: impl Fn(&OutsideProducer) -> bool,
) {
    for at in (0..shard.guests.doors.producers.len()).rev() {
        let Some(&index) = shard.guests.doors.producers.get(at) else { continue };
        let run = shard.runs[index as usize].as_mut();
        if run.and_then(ServedRun::producer).is_some_and(|producer| is_due(producer)) {
            take_over_producer(shard, index);
        }
    }
}

/// Takes over the published chunks of a producer, and its reports.
pub(in crate::server) fn take_over_producer<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    index: u32,
) {
    let Some(run) = shard.runs[index as usize].as_mut() else { return };
    let (handle, ingested_before) = (run.handle, run.ingested_seq);
    if !matches!(run.producer, Producer::Outside) {
        return;
    }
    let now = shard.now;
    let Some(producer) = run.producer().filter(|producer| producer.has_begun) else { return };
    producer.looked = now;
    // Read before the ring: all that was published before the final record is then visible.
    let (is_dead, last_word) = (producer.looks_dead(), producer.last_word());
    if let Some(updates) = producer.updates() {
        shard.pass_on(handle, &updates);
    }
    let taken = taking::ingest_producer(shard, index);
    make_room(shard, index);
    let run = shard.runs[index as usize].as_mut();
    let Some(run) = run.filter(|run| run.handle == handle) else { return };
    if !matches!(run.producer, Producer::Outside) {
        return; // A chunk or a report has ended it.
    }
    let (head_seq, has_moved) = (run.ingested_seq, run.ingested_seq != ingested_before);
    let is_stopping = run.stopping;
    let Some(producer) = run.producer() else { return };
    let is_shut = head_seq >= producer.shut_seq;
    producer.is_stuck = matches!(taken, Ok(Taken::NoRoom));
    producer.is_urgent |= matches!(taken, Ok(Taken::Enough));
    // Its ring is full of chunks that readers here still need, so it takes no more either.
    let waits = producer.mapped().is_some_and(|mapped| mapped.owner.is_gated()) && !has_moved;
    match (taken, last_word) {
        (Err(rule), _) => refuse_producer(shard, index, rule),
        (Ok(Taken::All), Some(record)) => believe_producer(shard, index, &record, head_seq),
        (Ok(taken), _) if is_stopping && (!matches!(taken, Taken::Enough) || is_shut) => {
            end_producer(shard, index, ProducerEnd::Stopped);
        }
        (Ok(Taken::All), None) if is_dead => end_producer(shard, index, ProducerEnd::Failed(GONE)),
        (Ok(Taken::NoRoom), _) => shard.say_that_it_is_gated(index),
        (Ok(Taken::Enough), _) => shard.worked = true,
        (Ok(Taken::All), None) if waits => hear_that_producer_waits(shard, index),
        (Ok(Taken::All), None) => {}
    }
}

/// Handles a producer that says it waits. The engine is told only if a reader holds the producer
/// back, because the producer's word may be out of date or false.
fn hear_that_producer_waits<R: Reactor + 'static>(shard: &mut ServerShard<R>, index: u32) {
    let run = shard.runs[index as usize].as_mut().expect("the caller has checked it");
    let handle = run.handle;
    if std::mem::replace(&mut run.blocked, true) {
        return; // The engine was told since the gate was published.
    }
    shard.sample_readers(index);
    shard.tell(Event::RoomWanted(handle));
    shard.pump();
    let run = shard.runs[index as usize].as_ref().filter(|run| run.handle == handle);
    if run.is_some_and(|run| run.blocked) && shard.engine.is_held_back(handle) {
        shard.tell(Event::Gated(handle));
        shard.pump();
    }
}

/// Moves the gate of a producer before the producer reaches it.
fn make_room<R: Reactor + 'static>(shard: &mut ServerShard<R>, index: u32) {
    let Some(run) = shard.runs[index as usize].as_mut() else { return };
    let (handle, head_seq, gate_seq) = (run.handle, run.ingested_seq, run.gate.gate_seq);
    if gate_seq != u64::MAX && run.producer().is_some_and(|g| g.needs_room(head_seq, gate_seq)) {
        shard.sample_readers(index);
        shard.tell(Event::RoomWanted(handle));
        shard.pump();
    }
}

/// Ends a producer by its final record, after all its published chunks were taken.
fn believe_producer<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    index: u32,
    record: &FinalRecord,
    head_seq: u64,
) {
    if record.head_seq != head_seq {
        return refuse_producer(shard, index, "it ended after a chunk that it did not publish");
    }
    if let Err(rule) = taking::look_back(shard, index) {
        return refuse_producer(shard, index, rule);
    }
    let run = shard.runs[index as usize].as_mut().expect("the caller has checked it");
    let producer = run.producer().and_then(|producer| Some(producer.mapped()?.view.clone()));
    let text = producer.map(|view| view.error_text());
    match outcome_of_code(record.verdict.get()) {
        Some(crate::stream::Outcome::Completed) => end_producer(shard, index, ProducerEnd::Done),
        Some(_) => {
            let text = text.as_ref().map_or("", |text| text.as_str());
            let text = if text.is_empty() { "the producer failed" } else { text };
            end_producer(shard, index, ProducerEnd::Failed(text));
        }
        None => refuse_producer(shard, index, "it ended with an unknown outcome"),
    }
}

/// Fails the execution of a producer that has broken a rule. Nothing more of it is read.
pub(in crate::server) fn refuse_producer<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    index: u32,
    rule: Broken,
) {
    shard.counters.door_producers_refused += 1;
    shard.record(Code::OutsideRefused, u64::from(index), 0);
    lines::log_refused_producer(shard, index, rule);
    let text = format!("the producer broke the ring's rules: {rule}");
    end_producer(shard, index, ProducerEnd::Failed(&text));
}

fn end_producer<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    index: u32,
    end: ProducerEnd<'_>,
) {
    let Some(run) = shard.runs[index as usize].as_mut() else { return };
    let handle = run.handle;
    shard.guests.doors.forget_producer(index);
    match run.producer {
        // A waiting producer has left before its start.
        Producer::Outside | Producer::Waiting(_) => {
            taking::keep_of_producer(shard, index);
            let Some(run) = shard.runs[index as usize].as_mut() else { return };
            run.producer = Producer::Gone;
            run.stopping = false;
            shard.tell(Event::ProducerEnded(handle, end));
        }
        _ => {}
    }
    shard.pump();
}

/// Asks outside producers to wake the shard, which is about to block. Returns `false` if a producer
/// already has something to take. A producer that no reader here waits for wakes the shard when its
/// ring is half full.
pub(in crate::server) fn can_sleep<R: Reactor + 'static>(shard: &mut ServerShard<R>) -> bool {
    let mut has_news = false;
    for &index in &shard.guests.doors.producers {
        let Some(run) = shard.runs[index as usize].as_mut() else { continue };
        let (handle, head_seq) = (run.handle, run.ingested_seq);
        let mut is_urgent = shard.engine.is_in_a_hurry(handle)
            || run.has_readers_here(shard.engine.subscriber_count(handle));
        let ServedRun { guest: Served { door: Some(door), .. }, remotes, .. } = run else {
            continue;
        };
        let elsewhere = || remotes.iter().filter_map(Remote::process_seat);
        let half = door.producer_reader().map_or(2, |r| u64::from(r.geometry().slot_count() / 2));
        let from_seq = |is_urgent| head_seq + if is_urgent { 1 } else { half };
        door.control.page.set_server_asleep(from_seq(is_urgent)); // control:server-asleep
        if !is_urgent && elsewhere().any(ProcessSeat::has_watch) {
            is_urgent = true;
            door.control.page.set_server_asleep(from_seq(true)); // control:server-asleep
        }
        let Some(producer) = door.producer() else { continue };
        producer.is_urgent = is_urgent;
        has_news |= producer.has_news(head_seq, from_seq(is_urgent));
    }
    if has_news {
        rise(shard);
    }
    !has_news
}

/// Tells outside producers that the shard polls again, so that they need not wake it.
pub(in crate::server) fn rise<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    for &index in &shard.guests.doors.producers {
        if let Some(run) = shard.runs[index as usize].as_mut()
            && let Some(door) = &mut run.guest.door
        {
            door.control.page.set_server_awake();
        }
    }
}

/// The error of an execution whose producer has disappeared.
const GONE: &str = "the producer is gone";
