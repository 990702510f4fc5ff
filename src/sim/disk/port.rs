//! A reactor's side of a disk: its open files and its completions.

use super::image::InodeId;
use super::{SimDisk, State};
use crate::base::Instant;
use crate::reactor::disk::Disk;
use crate::reactor::disk_table::{Answer, DiskTable};
use crate::reactor::{DiskDone, DiskRequest, DiskSetup};
use crate::sim::world::SimWorld;

/// The disk of one simulated reactor.
#[derive(Debug)]
pub struct SimPort {
    disk: SimDisk,
    /// The number of this port with the disk.
    number: u64,
    /// The crashes before it was opened.
    crash_count: u64,
    table: DiskTable<InodeId>,
    world: SimWorld,
}

impl SimPort {
    pub fn new(disk: &SimDisk, setup: &DiskSetup, world: &SimWorld) -> SimPort {
        let state = &mut *disk.state.borrow_mut();
        let number = state.port_count;
        state.port_count += 1;
        let (crash_count, table) = (state.crash_count, DiskTable::new(setup));
        let world = world.clone();
        SimPort { disk: disk.clone(), number, crash_count, table, world }
    }

    /// Lets the disk do what is due at `now`, and takes the answers.
    pub fn step(&mut self, now: Instant) {
        let state = &mut *self.disk.state.borrow_mut();
        if state.crash_count != self.crash_count {
            return;
        }
        let answers = state.step(now);
        state.answers.extend(answers);
        for answer in take_answers(state, self.number) {
            self.table.complete(answer);
        }
    }

    /// The time of the next step of the disk.
    pub fn next_pending_event(&self) -> Option<Instant> {
        let state = self.disk.state.borrow();
        state.next_at().filter(|_| state.crash_count == self.crash_count)
    }

    /// Number of completions that wait to be taken.
    pub fn event_count(&self) -> usize {
        self.table.event_count()
    }
}

/// The answers that are for this port.
fn take_answers(state: &mut State, port: u64) -> Vec<Answer<InodeId>> {
    let all = std::mem::take(&mut state.answers);
    let (own, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|(to, _)| *to == port);
    state.answers = others;
    own.into_iter().map(|(_, answer)| answer).collect()
}

impl Disk for SimPort {
    fn submit(&mut self, request: DiskRequest) -> Result<(), DiskRequest> {
        let state = &mut *self.disk.state.borrow_mut();
        if state.crash_count != self.crash_count {
            return Err(request);
        }
        if let Some(job) = self.table.admit(request)? {
            state.begin(self.number, job, self.world.now());
        }
        Ok(())
    }

    fn next_event(&mut self) -> Option<DiskDone> {
        self.table.next_event()
    }
}

impl Drop for SimPort {
    /// R35: all operations in flight are carried out, and open files are closed.
    fn drop(&mut self) {
        let state = &mut *self.disk.state.borrow_mut();
        if state.crash_count != self.crash_count {
            return;
        }
        loop {
            let own = state.flights.iter().filter(|(_, flight)| flight.port == self.number);
            let next = own.min_by_key(|(name, flight)| (flight.next_at(), **name));
            let Some((&name, flight)) = next else { break };
            match flight.is_unchanged() {
                true => state.change(name),
                false => {
                    let answer = state.finish(name);
                    state.answers.push(answer);
                }
            }
        }
        for answer in take_answers(state, self.number) {
            self.table.complete(answer);
        }
        for file in self.table.close_all() {
            state.inodes.get_mut(&file).expect("an open file is kept").open_count -= 1;
        }
        state.free_unused();
    }
}
