//! Named doors: beside its private ring each execution has one in a file, filled as a relay is,
//! from its beginning on.
//!
//! Whoever reads there is seen by nobody. So it is made when the execution gets its ring, and kept
//! as long as that can be read, or until another one needs its place when it has ended. There are
//! as many as there can be other doors; an execution that finds no place has none, and goes on
//! without. So does one whose file somebody cuts off. What is defended: `memory/named/`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::relay::{audit, class_for, fill};
use super::{Doors, Place};
use crate::memory::atomic::full_fence;
use crate::memory::named::{FOLDER, NamedError, NamedRing};
use crate::memory::{ControlPage, Start};
use crate::reactor::Reactor;
use crate::shard::Shard;
use crate::shard::run::{Ring, Run};
use crate::trace::Level;

/// That executions have named doors: where, and how many. Clones are the same places.
#[derive(Clone, Debug)]
pub struct NamedDoors {
    folder: Arc<Path>,
    places: Doors,
}

/// The named door of one execution.
pub(in crate::shard) struct Named {
    ring: NamedRing,
    /// Those of ended executions go in the order in which they were made.
    number: u64,
    has_ended: bool,
    _place: Place,
}

/// Why an execution has none.
enum Refused {
    /// All places are taken by executions that have not ended.
    TooMany,
    MemoryShort,
    Named(NamedError),
}

impl NamedDoors {
    /// In `/dev/shm`, for so many executions at once.
    pub fn new(places_max: u32) -> NamedDoors {
        NamedDoors::in_folder(PathBuf::from(FOLDER), places_max)
    }

    /// The same in another folder.
    pub fn in_folder(folder: PathBuf, places_max: u32) -> NamedDoors {
        NamedDoors { folder: folder.into(), places: Doors::new(places_max) }
    }
}

impl Named {
    /// Bytes of shared memory that it takes.
    pub fn bytes(&self) -> u64 {
        self.ring.bytes()
    }

    /// As [`Run::relay`].
    pub fn fill(&mut self, ring: &Ring, until_seq: u64, scratch: &mut [u8]) {
        let filled = fill(&mut self.ring.writer, ring, until_seq, scratch, |_| {});
        assert!(filled.is_ok()); // S2, as of a relay.
    }

    /// As [`Run::tell_pages`].
    pub fn tell(&mut self, tell: &mut impl FnMut(&mut ControlPage)) {
        tell(&mut self.ring.control);
        full_fence(); // Readers look at the epoch before they sleep.
        self.ring.rouse();
    }

    /// There are chunks: wakes whoever sleeps, if anybody does.
    pub fn wake(&self) {
        self.ring.writer.wake();
    }

    /// Checks D1.
    pub fn audit(&self, run: &Run) {
        audit(&self.ring.writer, run);
    }
}

impl<R: Reactor + 'static> Shard<R> {
    /// An execution has got its ring: makes its named door, if it is to have one and that can be.
    pub(in crate::shard) fn open_named(&mut self, index: u32) {
        let Some(doors) = self.doors.named.clone() else { return };
        match self.make_named(index, &doors) {
            Ok(named) => {
                self.counters.named_doors_opened += 1;
                let run = self.runs[index as usize].as_mut().expect("it was just looked at");
                run.named = Some(Box::new(named));
            }
            Err(refused) => {
                self.counters.named_doors_refused += 1;
                let level = match refused {
                    Refused::TooMany => Level::Debug, // It may be so for each of many executions.
                    Refused::MemoryShort | Refused::Named(_) => Level::Warn,
                };
                self.log_named(index, level, "named_door_refused", &refused);
            }
        }
    }

    fn make_named(&mut self, index: u32, doors: &NamedDoors) -> Result<Named, Refused> {
        let place = doors.places.take().or_else(|| {
            self.close_oldest_named();
            doors.places.take()
        });
        let place = place.ok_or(Refused::TooMany)?;
        let run = self.runs[index as usize].as_ref().expect("the caller has it");
        let class_bytes = class_for(&run.ring).expect("it has just got its ring");
        self.check_door_memory(class_bytes, 0).map_err(|_| Refused::MemoryShort)?;
        let start = Start::default();
        let ring = NamedRing::create(&doors.folder, run.id, class_bytes, self.anchor, &start);
        let mut ring = ring.map_err(Refused::Named)?;
        run.copy_page(&mut ring.control, false);
        let number = self.counters.named_doors_opened;
        Ok(Named { ring, number, has_ended: false, _place: place })
    }

    /// Makes room: of the executions that have ended, the first one loses its named door.
    fn close_oldest_named(&mut self) {
        let ended = self
            .runs
            .iter_mut()
            .flatten()
            .filter(|run| run.named.as_ref().is_some_and(|named| named.has_ended));
        let number = |run: &&mut Run| run.named.as_ref().map(|named| named.number);
        if let Some(run) = ended.min_by_key(number) {
            run.named = None;
        }
    }

    /// The execution has ended: its named door may go when another one needs its place.
    pub(in crate::shard) fn end_named(&mut self, index: u32) {
        if let Some(run) = &mut self.runs[index as usize]
            && let Some(named) = &mut run.named
        {
            named.has_ended = true;
        }
    }

    /// Closes the named door of an execution if somebody has cut it off.
    pub(in crate::shard) fn close_lost_named(&mut self, index: u32) {
        let Some(run) = &mut self.runs[index as usize] else { return };
        if run.named.take_if(|named| named.ring.is_lost()).is_some() {
            self.counters.named_doors_lost += 1;
            self.log_named(index, Level::Warn, "named_door_lost", &"somebody has cut it off");
        }
    }

    fn log_named(&self, index: u32, level: Level, event: &'static str, reason: &dyn fmt::Display) {
        let Some(run) = &self.runs[index as usize] else { return };
        self.log.record(self.wall_us(), level, event, |record| {
            record.show("execution", &run.id).show("reason", &reason);
        });
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::TooMany => out.write_str("as many as may be are there already"),
            Refused::MemoryShort => out.write_str("there is no room for one more ring"),
            Refused::Named(error) => error.fmt(out),
        }
    }
}
