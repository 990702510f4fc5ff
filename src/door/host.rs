//! The server's side for the tests of this folder. It uses the types of [`crate::memory`] directly,
//! on the other end of a socket.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::num::NonZeroU8;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::connection::OpenConnection;
use super::{DoorError, DoorReader, DoorWriter, ReadOptions};
use crate::base::{ExecutionId, Handle, Instant, SubscriberId};
use crate::endpoint::{GrantNames, ProduceGrant, ReadGrant};
use crate::engine::policy::Cursor;
use crate::memory::atomic::full_fence;
use crate::memory::{
    ChunkHeader, ClockAnchor, ControlFile, ControlView, DoorRing, FinalRecord, OwnerView, Poll,
    ProducerPageFile, ProducerRing, ReaderPageFile, ReaderPageView, SignalSlot,
};
use crate::shard::delivery::code_of_outcome;
use crate::stream::{KindTotals, Kinds, LagLimit, Outcome, Policy, Terms, Totals};

pub const ANCHOR: ClockAnchor = ClockAnchor { wall_us: 1_000, mono_ns: 0 };

pub fn execution() -> ExecutionId {
    ExecutionId { shard: 0, slot: Handle { index: 1, generation: 2 }, nonce: 3 }
}

pub fn terms(policy: Policy, limit_chunks: u32, kinds: Kinds) -> Terms {
    Terms { policy, limit: LagLimit { chunks: limit_chunks, bytes: u64::MAX }, kinds }
}

/// Sends a response whose body is one line so far, with descriptors on its first byte.
pub fn answer(stream: &UnixStream, line: &str, descriptors: &[BorrowedFd<'_>]) {
    let mut head = stream;
    let text = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n\
                transfer-encoding: chunked\r\n\r\n";
    head.write_all(text.as_bytes()).unwrap();
    let body = format!("{:x}\r\n{line}\n\r\n", line.len() + 1);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    let pieces = [IoSlice::new(body.as_bytes())];
    let sent = sendmsg(stream, &pieces, &mut control, SendFlags::NOSIGNAL).unwrap();
    assert_eq!(sent, body.len());
}

/// Returns a client's connection to a server that has already replied.
pub fn connection(theirs: UnixStream) -> Result<OpenConnection, DoorError> {
    OpenConnection::on(theirs, b"POST / HTTP/1.1\r\n\r\n")
}

/// The server's state of one reader.
pub struct ReadHost {
    pub ring: DoorRing,
    pub control: ControlFile,
    pub slot: SignalSlot,
    pub page: ReaderPageView,
    /// The life line. Dropping it is the end of the server.
    pub stream: UnixStream,
    /// Totals of all chunks, per kind.
    pub totals: KindTotals,
}

impl ReadHost {
    /// Makes a relay of this size, and its only reader.
    pub fn open(class_bytes: u32, terms: Terms) -> (ReadHost, DoorReader) {
        let ring = DoorRing::create(class_bytes, ANCHOR).unwrap();
        ReadHost::of_ring(ring, terms, Cursor::new(1, Totals::ZERO), &ReadOptions::default())
    }

    pub fn of_ring(
        ring: DoorRing,
        terms: Terms,
        cursor: Cursor,
        options: &ReadOptions,
    ) -> (ReadHost, DoorReader) {
        let control = ControlFile::create().unwrap();
        control.page.set_gate(u64::MAX, u64::MAX, u64::MAX, u64::MAX);
        let slot = control.take_slot(2);
        let page = ReaderPageFile::create(cursor.next_seq).unwrap();
        let (mut stream, theirs) = UnixStream::pair().unwrap();
        let grant = grant(terms, cursor);
        let descriptors = [ring.descriptor(), control.descriptor(), page.descriptor()];
        let line = grant.to_json().to_string();
        answer(&stream, &line, &descriptors);
        let talked =
            connection(theirs).and_then(|mut connection| Ok((connection.line()?, connection)));
        let (line, connection) = talked.unwrap();
        assert_eq!(ReadGrant::parse(&line), Ok(grant));
        let reader = DoorReader::new(&grant, GrantNames::default(), connection, options).unwrap();
        let mut mapped = [0; 64];
        let request_bytes = b"POST / HTTP/1.1\r\n\r\n".len();
        stream.read_exact(&mut mapped[..=request_bytes]).unwrap();
        let page = page.close(cursor.next_seq).unwrap();
        let totals = *ring.writer.tail_totals();
        (ReadHost { ring, control, slot, page, stream, totals }, reader)
    }

    pub fn publish(&mut self, header: ChunkHeader, payload: &[u8]) -> u64 {
        let seq = self.ring.writer.head_seq() + 1;
        let now = Instant::from_nanos(seq * 1_000);
        let written = self.ring.writer.write(header, payload, now, u64::MAX);
        assert_eq!(written, Ok(seq));
        self.count(header, payload);
        self.wake();
        seq
    }

    pub fn count(&mut self, header: ChunkHeader, payload: &[u8]) {
        let total = &mut self.totals[header.kind as usize];
        total.chunks += 1;
        total.bytes += payload.len() as u64;
    }

    /// Wakes the reader after a publish.
    pub fn wake(&mut self) {
        full_fence();
        if self.page.take_watch() {
            self.stream.write_all(b"1\r\n\n\r\n").unwrap();
        } else if self.page.is_asleep() {
            self.ring.writer.wake();
        }
    }

    /// Wakes the reader after a change that is not a chunk.
    pub fn knock(&mut self) {
        self.slot.knock();
        full_fence();
        if self.page.take_watch() {
            self.stream.write_all(b"1\r\n\n\r\n").unwrap();
        } else if self.page.is_asleep() {
            self.slot.wake();
        }
    }

    pub fn end(&mut self, outcome: Outcome, error: &str) {
        self.end_at(self.ring.writer.head_seq(), self.totals, outcome, error);
    }

    /// Ends the execution with fewer chunks than the ring holds.
    pub fn end_at(&mut self, head_seq: u64, totals: KindTotals, outcome: Outcome, error: &str) {
        let verdict = NonZeroU8::new(code_of_outcome(outcome)).unwrap();
        let record = FinalRecord { verdict, head_seq, totals };
        self.control.page.finish(&record, error);
        self.knock();
    }
}

pub fn grant(terms: Terms, cursor: Cursor) -> ReadGrant {
    ReadGrant {
        execution: execution(),
        subscriber: SubscriberId(Handle { index: 7, generation: 1 }),
        terms,
        cursor,
        slot: 2,
        wall_us: ANCHOR.wall_us,
        mono_ns: ANCHOR.mono_ns,
    }
}

/// The server's state of one producer.
pub struct WriteHost {
    pub ring: ProducerRing,
    pub control: ControlFile,
    pub page: ControlView,
    pub owner: OwnerView,
    pub stream: UnixStream,
    pub ingested_seq: u64,
    buffer: Vec<u8>,
}

impl WriteHost {
    pub fn open(class_bytes: u32) -> (WriteHost, DoorWriter) {
        let ring = ProducerRing::create(class_bytes, ANCHOR).unwrap();
        let control = ControlFile::create().unwrap();
        let page = ProducerPageFile::create().unwrap();
        let (mut stream, theirs) = UnixStream::pair().unwrap();
        let grant = ProduceGrant { execution: execution(), token: Some("t".to_owned()) };
        let descriptors = [ring.descriptor(), control.descriptor(), page.descriptor()];
        answer(&stream, &grant.to_json().to_string(), &descriptors);
        let mut connection = connection(theirs).unwrap();
        let granted = ProduceGrant::parse(&connection.line().unwrap()).unwrap();
        let writer = DoorWriter::new(granted, connection).unwrap();
        let request_bytes = b"POST / HTTP/1.1\r\n\r\n".len();
        stream.read_exact(&mut [0; 64][..=request_bytes]).unwrap();
        stream.set_nonblocking(true).unwrap();
        ring.close().unwrap();
        let (page, owner) = page.close().unwrap();
        let buffer = vec![0; ring.reader().geometry().length_max() as usize];
        let host = WriteHost { ring, control, page, owner, stream, ingested_seq: 0, buffer };
        (host, writer)
    }

    /// Opens the gate up to the last ingested chunk, and allows `ahead` chunks behind it.
    pub fn open_gate(&mut self, ahead: u64) {
        let credit_seq = self.ingested_seq.saturating_add(ahead).saturating_add(1);
        self.control.page.set_gate(self.ingested_seq + 1, credit_seq, u64::MAX, u64::MAX);
        full_fence();
        if self.owner.is_gated() {
            self.control.page.wake_producer();
        }
    }

    /// Ingests the next chunk and returns its bytes, if it is published.
    pub fn ingest(&mut self) -> Option<(ChunkHeader, &[u8])> {
        match self.ring.reader().read(self.ingested_seq + 1, &mut self.buffer) {
            Ok(descriptor) => {
                self.ingested_seq += 1;
                Some((descriptor.header, &self.buffer[..descriptor.length as usize]))
            }
            Err(error) => {
                assert_eq!(Poll::from(error), Poll::Pending);
                None
            }
        }
    }

    /// Number of times that the producer has knocked since the last call.
    pub fn knocks(&mut self) -> usize {
        let mut buffer = [0; 256];
        match self.stream.read(&mut buffer) {
            Ok(count) => count,
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                0
            }
        }
    }

    pub fn end(&self, outcome: Outcome) {
        let verdict = NonZeroU8::new(code_of_outcome(outcome)).unwrap();
        let (head_seq, totals) = (self.ingested_seq, KindTotals::default());
        self.control.page.close();
        self.control.page.finish(&FinalRecord { verdict, head_seq, totals }, "");
        self.control.page.wake_producer();
    }
}

/// True if `descriptor` can be read at this moment.
pub fn is_readable(descriptor: impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled = [PollFd::new(&descriptor, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
}
