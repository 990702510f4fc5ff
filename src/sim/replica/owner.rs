//! The owners of the executions: other nodes, whose mirrors write the logs.

use std::time::Duration;

use serde_json::json;

use super::ledger::{Execution, Ledger};
use super::node::{Event, SimNode};
use crate::base::{Instant, Random};
use crate::cluster::closer::Closer;
use crate::cluster::directory::{Entry, EntryState};
use crate::cluster::mirror::{Attempt, Last, Mirror, NoteKind, Standing, Wish};
use crate::cluster::record::{Incarnation, Record};
use crate::limits::CLUSTER_PENDING_BYTES_MAX;
use crate::shard::journal::{EndedDetails, OpenedDetails};
use crate::sim::cluster::faults::Manners;
use crate::stream::{Exit, GapReason, Kind, Outcome};

/// An owner, or the node that ends its execution.
pub struct Owner {
    mirror: Option<Mirror>,
    closer: Option<Closer>,
    /// Number of chunks that its tool still publishes.
    left: u64,
    /// Length of a long chunk.
    long_bytes: u32,
    /// One of this many chunks is long.
    long_every: u64,
    /// Longest time between two steps of its tool, in microseconds.
    pause_us: u64,
    is_cancelled: bool,
}

/// Something that happens to an owner.
pub enum OwnerEvent {
    /// The tool does its next step.
    Publish,
    /// A request gets to the engine: it is of a closer or not.
    Asks(bool, Attempt, Asked),
    Answered(bool, Attempt, Answer),
}

pub enum Asked {
    Store { expected: u64, bytes: Vec<u8> },
    Look,
}

pub enum Answer {
    Failed,
    Stored(u64),
    Looked(Option<Box<Last>>),
}

impl Owner {
    /// Creates the owner of an execution. `is_heavy` says that it publishes more than a replica
    /// holds back, if somebody gates it.
    pub fn new(
        execution: &Execution,
        is_heavy: bool,
        manners: &Manners,
        random: &mut Random,
    ) -> Owner {
        let mut mirror = Mirror::new(execution.owner);
        mirror.set_pending_bytes_max(manners.pending_bytes);
        let most = [0, 20, 300, 900][random.below(4) as usize];
        if is_heavy {
            mirror.set_pending_bytes_max(CLUSTER_PENDING_BYTES_MAX);
        }
        Owner {
            mirror: Some(mirror),
            closer: None,
            left: if is_heavy { 150 } else { random.between(0, most) },
            long_bytes: if is_heavy {
                30_000
            } else {
                [300, 3_000, 30_000][random.below(3) as usize]
            },
            long_every: if is_heavy { 1 } else { 12 },
            pause_us: if is_heavy { 1 << 12 } else { 1 << random.between(8, 19) },
            is_cancelled: false,
        }
    }

    pub fn deadline(&self) -> Option<Instant> {
        let mirror = self.mirror.as_ref().and_then(Mirror::deadline);
        mirror.into_iter().chain(self.closer.as_ref().and_then(Closer::deadline)).min()
    }

    /// Asks the tool to stop.
    pub fn cancel(&mut self) {
        self.is_cancelled = true;
    }

    /// True if the log has an end, or had one.
    pub fn is_over(&self) -> bool {
        let is_done = self.closer.as_ref().is_none_or(Closer::is_done);
        self.mirror.is_none() && is_done
    }
}

/// The entry of an execution in the directory.
pub fn entry_of(execution: &Execution) -> Entry {
    let opened = OpenedDetails {
        tool: Some("far".into()),
        has_parts: false,
        is_relayed: false,
        token: None,
        anchor: execution.anchor,
        goes_on: None,
        guest: serde_json::Value::Null,
    };
    Entry {
        owner: execution.owner,
        state: EntryState::Running,
        principal: None,
        opened_us: execution.anchor.wall_us,
        ring_bytes: execution.ring_bytes,
        chunk_bytes: execution.chunk_bytes,
        chunks_expected: execution.expected,
        details: opened.to_json(),
    }
}

fn asked(wish: &Wish<'_>) -> Asked {
    match wish {
        Wish::Store { expected, record } => {
            Asked::Store { expected: *expected, bytes: record.to_vec() }
        }
        Wish::Look => Asked::Look,
    }
}

impl SimNode {
    pub fn poll_owners(&mut self) {
        let now = self.now;
        let mut all = Vec::new();
        for (number, owner) in self.owners.iter_mut().enumerate() {
            if let Some(mirror) = &mut owner.mirror {
                while let Some((attempt, wish)) = mirror.poll(now) {
                    all.push((number, OwnerEvent::Asks(false, attempt, asked(&wish))));
                }
            }
            if let Some(closer) = &mut owner.closer {
                while let Some((attempt, wish)) = closer.poll(now) {
                    all.push((number, OwnerEvent::Asks(true, attempt, asked(&wish))));
                }
            }
        }
        for (number, event) in all {
            if !self.strikes(self.manners.loss) {
                let delay = self.delay();
                self.after(delay, Event::Owner(number, event));
            }
        }
    }

    pub fn owner_event(&mut self, number: usize, event: OwnerEvent, ledger: &mut Ledger) {
        match event {
            OwnerEvent::Publish => self.publish(number, ledger),
            OwnerEvent::Asks(is_closer, attempt, asked) => {
                let answer = self.carry_out(number, asked, ledger);
                if !self.strikes(self.manners.loss) {
                    let delay = self.delay();
                    let event = OwnerEvent::Answered(is_closer, attempt, answer);
                    self.after(delay, Event::Owner(number, event));
                }
            }
            OwnerEvent::Answered(true, attempt, answer) => {
                let Some(closer) = &mut self.owners[number].closer else { return };
                match answer {
                    Answer::Stored(_) => closer.on_stored(),
                    Answer::Looked(last) => closer.on_looked(attempt, last.as_deref()),
                    Answer::Failed => closer.on_failed(attempt, self.now),
                }
            }
            OwnerEvent::Answered(false, attempt, answer) => {
                let Some(mirror) = &mut self.owners[number].mirror else { return };
                match answer {
                    Answer::Stored(place) => mirror.on_stored(attempt, place),
                    Answer::Looked(last) => mirror.on_looked(attempt, last.as_deref()),
                    Answer::Failed => mirror.on_failed(attempt, self.now),
                }
                if mirror.standing() != Standing::Open {
                    self.owners[number].mirror = None;
                }
            }
        }
    }

    /// The engine carries out a request of an owner.
    fn carry_out(&mut self, number: usize, asked: Asked, ledger: &mut Ledger) -> Answer {
        if self.engine.is_away(self.now) || self.strikes(self.manners.refusal) {
            return Answer::Failed;
        }
        match asked {
            Asked::Look => {
                let last = self.engine.last(number);
                let last = last.map(|(place, message)| Last::read(place, &message.bytes));
                Answer::Looked(last.map(Box::new))
            }
            Asked::Store { expected, bytes } => {
                match self.engine.store(number, Some(expected), &bytes) {
                    Ok(place) => {
                        ledger.executions[number].note_record(&bytes);
                        self.publish_again(number, place);
                        Answer::Stored(place)
                    }
                    Err(_) => Answer::Failed,
                }
            }
        }
    }

    /// Lets the tool of an execution do its next step.
    fn publish(&mut self, number: usize, ledger: &mut Ledger) {
        let pause_us = self.owners[number].pause_us;
        let pause = Duration::from_micros(self.random.between(1, pause_us));
        for _ in 0..self.random.between(1, 30) {
            if !self.publish_one(number, ledger) {
                return;
            }
        }
        self.after(pause, Event::Owner(number, OwnerEvent::Publish));
    }

    /// Publishes a chunk, or a few that the mirror does not get. Returns false at the end.
    fn publish_one(&mut self, number: usize, ledger: &mut Ledger) -> bool {
        let (now, random) = (self.now, &mut self.random);
        let owner = &mut self.owners[number];
        let Some(mirror) = &mut owner.mirror else { return false };
        let execution = &mut ledger.executions[number];
        if owner.left == 0 || owner.is_cancelled {
            mirror.push_end(&end_of(owner.is_cancelled, random).encode());
            return false;
        }
        let missed = match random.chance(1, 50) {
            true => random.between(1, 12),
            false if execution.chunks.is_empty() && random.chance(1, 4) => random.between(1, 12),
            false => 0,
        };
        for _ in 0..missed.clamp(1, owner.left) {
            let kind = Kind::ALL[random.below(3) as usize];
            let length = match random.below(12) {
                _ if random.chance(1, owner.long_every) => owner.long_bytes,
                more => 20 * more as u32,
            };
            execution.publish(kind, length, now, random);
            owner.left -= 1;
        }
        match missed {
            0 => {
                let chunk = execution.chunks.last().expect("it was just published");
                mirror.push_chunk(&chunk.entry, &chunk.payload);
            }
            _ => {
                let reasons = [
                    GapReason::Overtaken,
                    GapReason::Unwritten,
                    GapReason::Expired,
                    GapReason::Corrupt,
                ];
                mirror.push_gap(execution.head(), reasons[random.below(4) as usize]);
            }
        }
        ledger.count("chunks", missed.max(1));
        let execution = &mut ledger.executions[number];
        if random.chance(1, 40) {
            let note = json!({ "progress": execution.chunks.len() });
            mirror.push_note(NoteKind::Progress, note.to_string().as_bytes());
        }
        if execution.expected.is_none() && random.chance(1, 100) {
            execution.expected = Some(random.between(1, 1_000));
            let note = json!({ "chunks_expected": execution.expected });
            mirror.push_note(NoteKind::Expected, note.to_string().as_bytes());
        }
        true
    }

    /// Lets the owner of an execution die. Another node ends the execution later.
    pub fn lose_owner(&mut self, number: usize, ledger: &mut Ledger) {
        if self.owners[number].mirror.take().is_none() {
            return;
        }
        ledger.count("closed", 1);
        self.end_for_owner(number, "its node was lost");
    }

    /// Ends the executions whose owners write no more and whose logs have lost their ends. A node
    /// does so if the directory calls them ended.
    pub fn end_again(&mut self, ledger: &mut Ledger) {
        for number in 0..self.owners.len() {
            let last = self.engine.last(number).map(|(_, message)| Record::decode(&message.bytes));
            let has_end = matches!(last, Some(Ok(record)) if record.header.is_last);
            if self.owners[number].is_over() && !has_end {
                self.end_for_owner(number, "its log has lost its end");
                ledger.count("closed", 1);
            }
        }
    }

    fn end_for_owner(&mut self, number: usize, text: &str) {
        let details = EndedDetails {
            outcome: Outcome::Failed,
            error: Some(text.into()),
            exit: None,
            has_panicked: false,
        };
        let by = Incarnation(self.random.next_u64());
        let at = self.now + Duration::from_millis(self.random.between(10, 6_000));
        self.owners[number].closer = Some(Closer::new(by, details.encode(), at));
    }

    /// Lets the engine or the connection fail in some way.
    pub fn fault(&mut self, ledger: &mut Ledger) {
        let random = &mut self.random;
        match random.below(12) {
            0 | 1 => self.cut(ledger),
            2 | 3 => {
                let time = Duration::from_millis(random.between(1, 4_000));
                self.engine.go_away(self.now, time);
            }
            4 if !self.owners.is_empty() => {
                let number = random.below(self.owners.len() as u64) as usize;
                self.lose_owner(number, ledger);
            }
            5 | 6 if self.manners.forgets => {
                let has_forgotten = self.engine.forget(random);
                ledger.count("forgot", has_forgotten.into());
            }
            7 | 8 if self.manners.damages && !self.engine.messages.is_empty() => {
                let is_damaged = self.engine.damage(random);
                ledger.count("damaged", is_damaged.into());
            }
            9 if self.manners.discards => {
                let has_discarded = self.engine.discard(random);
                ledger.count("discarded", has_discarded.into());
            }
            _ => {}
        }
    }
}

fn end_of(is_cancelled: bool, random: &mut Random) -> EndedDetails {
    let exit = random.chance(1, 2).then(|| Exit::Code(random.below(3) as i32));
    let (outcome, error) = match random.below(4) {
        _ if is_cancelled => (Outcome::Cancelled, None),
        0 => (Outcome::Failed, Some("as it happens".into())),
        1 => (Outcome::TimedOut, None),
        _ => (Outcome::Completed, None),
    };
    EndedDetails { outcome, error, exit, has_panicked: false }
}
