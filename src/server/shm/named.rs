//! Named doors: each execution has, beside its private ring, a ring in a file, filled like a relay
//! from the execution's start on.
//!
//! Readers of the file are invisible to the server. A named door is therefore made when the
//! execution gets its private ring. It is kept as long as that ring can be read, or until another
//! execution needs its place after the end. Their number has a limit of its own. An execution
//! continues without a named door if no place is free, or if another process truncates the file.
//! The threats and defences: `memory/named/`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::memory::atomic::full_fence;
use crate::memory::named::{FOLDER, NamedError, NamedRing};
use crate::memory::{ControlPage, Start};
use crate::reactor::Reactor;
use crate::server::guests::ServedRun;
use crate::server::shm::relay::{audit, class_for, fill};
use crate::server::shm::{Doors, Place, relay};
use crate::server::{ServerShard, records};
use crate::shard::run::Ring;
use crate::trace::Level;

/// The setting that executions have named doors: the folder and the limit. Clones share the limit.
#[derive(Clone, Debug)]
pub struct NamedDoors {
    folder: Arc<Path>,
    places: Doors,
}

/// The named door of one execution.
pub(in crate::server) struct Named {
    ring: NamedRing,
    /// The order of creation. The oldest named door of an ended execution is closed first.
    number: u64,
    has_ended: bool,
    _place: Place,
}

/// The reason why an execution has no named door.
enum Refused {
    /// All places are taken by executions that have not ended.
    TooMany,
    MemoryShort,
    Named(NamedError),
}

impl NamedDoors {
    /// Returns the setting for named doors in `/dev/shm`, for at most `places_max` executions at
    /// once. The limit is at most `limits::DOORS_CEILING`.
    pub fn new(places_max: u32) -> NamedDoors {
        NamedDoors::in_folder(PathBuf::from(FOLDER), places_max)
    }

    /// Like [`NamedDoors::new`], in another folder.
    pub fn in_folder(folder: PathBuf, places_max: u32) -> NamedDoors {
        NamedDoors { folder: folder.into(), places: Doors::new(places_max) }
    }
}

impl Named {
    /// Returns the number of bytes of shared memory that it takes.
    pub fn bytes(&self) -> u64 {
        self.ring.bytes()
    }

    /// Copies the chunks through `until_seq` from the private ring, as [`Run::relay`] does.
    pub fn fill(&mut self, ring: &Ring, until_seq: u64, scratch: &mut [u8]) {
        let filled = fill(&mut self.ring.writer, ring, until_seq, scratch, |_| {});
        assert!(filled.is_ok()); // S2, as for a relay.
    }

    /// Writes to its control page, as [`Run::tell_pages`] does for other pages, and wakes its
    /// readers.
    pub fn tell(&mut self, tell: &mut dyn FnMut(&mut ControlPage)) {
        tell(&mut self.ring.control);
        full_fence(); // Readers look at the epoch before they sleep.
        self.ring.wake_readers();
    }

    /// Wakes the readers that sleep until a new chunk comes.
    pub fn wake(&self) {
        self.ring.writer.wake();
    }

    /// Checks D1.
    pub fn audit(&self, run: &ServedRun) {
        audit(&self.ring.writer, run);
    }
}
/// Makes the named door of an execution that has just got its ring, if they are enabled and a
/// place is free.
pub(in crate::server) fn open_named<R: Reactor + 'static>(shard: &mut ServerShard<R>, index: u32) {
    let Some(doors) = shard.guests.doors.named.clone() else { return };
    match make_named(shard, index, &doors) {
        Ok(named) => {
            shard.counters.named_doors_opened += 1;
            let run = shard.runs[index as usize].as_mut().expect("it was just looked at");
            run.guest.named = Some(Box::new(named));
        }
        Err(refused) => {
            shard.counters.named_doors_refused += 1;
            let level = match refused {
                Refused::TooMany => Level::Debug, // This may happen for many executions.
                Refused::MemoryShort | Refused::Named(_) => Level::Warn,
            };
            log_named(shard, index, level, "named_door_refused", &refused);
        }
    }
}

fn make_named<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    index: u32,
    doors: &NamedDoors,
) -> Result<Named, Refused> {
    let place = doors.places.take().or_else(|| {
        close_oldest_named(shard);
        doors.places.take()
    });
    let place = place.ok_or(Refused::TooMany)?;
    let run = shard.runs[index as usize].as_ref().expect("the caller has it");
    let class_bytes = class_for(&run.ring).expect("it has just got its ring");
    relay::check_door_memory(shard, class_bytes, 0).map_err(|_| Refused::MemoryShort)?;
    let start = Start::default();
    let ring = NamedRing::create(&doors.folder, run.id, class_bytes, shard.anchor, &start);
    let mut ring = ring.map_err(Refused::Named)?;
    shard.tell_page(index, false, &mut ring.control);
    let number = shard.counters.named_doors_opened;
    Ok(Named { ring, number, has_ended: false, _place: place })
}

/// Closes the oldest named door of those whose execution has ended, to free its place.
fn close_oldest_named<R: Reactor + 'static>(shard: &mut ServerShard<R>) {
    let ended = shard
        .runs
        .iter_mut()
        .flatten()
        .filter(|run| run.guest.named.as_ref().is_some_and(|named| named.has_ended));
    let number = |run: &&mut ServedRun| run.guest.named.as_ref().map(|named| named.number);
    if let Some(run) = ended.min_by_key(number) {
        run.guest.named = None;
    }
}

/// Marks the named door of an ended execution: it may be closed when its place is needed.
pub(in crate::server) fn end_named<R: Reactor + 'static>(shard: &mut ServerShard<R>, index: u32) {
    if let Some(run) = &mut shard.runs[index as usize]
        && let Some(named) = &mut run.guest.named
    {
        named.has_ended = true;
    }
}

/// Closes the named door of an execution if another process has truncated its file.
pub(in crate::server) fn close_lost_named<R: Reactor + 'static>(
    shard: &mut ServerShard<R>,
    index: u32,
) {
    let Some(run) = &mut shard.runs[index as usize] else { return };
    if run.guest.named.take_if(|named| named.ring.is_lost()).is_some() {
        shard.counters.named_doors_lost += 1;
        log_named(
            shard,
            index,
            Level::Warn,
            "named_door_lost",
            &"another process has truncated its file",
        );
    }
}

fn log_named<R: Reactor + 'static>(
    shard: &ServerShard<R>,
    index: u32,
    level: Level,
    event: &'static str,
    reason: &dyn fmt::Display,
) {
    let Some(run) = &shard.runs[index as usize] else { return };
    shard.guests.log.record(records::wall_us(shard), level, event, |record| {
        record.show("execution", &run.id).show("reason", &reason);
    });
}

impl fmt::Display for Refused {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::TooMany => out.write_str("all places are taken"),
            Refused::MemoryShort => out.write_str("no memory is left for one more ring"),
            Refused::Named(error) => error.fmt(out),
        }
    }
}
