//! Crashes: what a process or the power leaves behind when it ends in the midst of everything.

use std::rc::Rc;

use super::image::{Inode, SECTOR, Sector};
use super::{SECTOR_BYTES, State};
use crate::base::Random;
use crate::reactor::disk_table::Step;

/// Sectors of a page, the other unit in which disks tear writes.
const PAGE_SECTORS: u64 = 8;

/// The kind of a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process ends. The page cache stays. Each operation in flight is done, half done or lost.
    Process,
    /// The power fails. Anything may be left of the writes that were not synced. Names change back,
    /// as far as the directory was not synced.
    Power,
}

/// The remains of the un-synced writes of one file.
#[derive(Clone, Copy, Debug)]
enum Remains {
    Nothing,
    All,
    /// The first ones, and a part of the next.
    Prefix,
    /// The first ones. The next has the bytes of another place of the file, as a disk leaves them
    /// that has lost a part of its maps.
    Stale {
        page: u64,
    },
    /// Each unit by itself: kept, lost, or garbage.
    Pieces {
        unit_sectors: u64,
    },
}

impl State {
    pub fn crash(&mut self, crash: Crash) {
        let names: Vec<u64> = self.flights.keys().copied().collect();
        for name in names {
            self.crash_flight(name);
        }
        self.flights.clear();
        self.crash_count += 1;
        self.is_held = false;
        for inode in self.inodes.values_mut() {
            inode.open_count = 0;
        }
        if crash == Crash::Power {
            let kept_count = self.random.below(self.names.unsynced.len() as u64 + 1);
            self.names.cut(kept_count as usize);
            for inode in self.inodes.values_mut() {
                cut(inode, &mut self.random);
            }
        }
        self.free_unused();
    }

    /// Lets an operation in flight happen, or a part of it, or nothing.
    fn crash_flight(&mut self, name: u64) {
        let luck = self.random.below(4);
        let flight = &mut self.flights.get_mut(&name).expect("in flight");
        if flight.is_unchanged() {
            match (&mut flight.job.step, luck) {
                (_, 0) => return, // Lost.
                (Step::Write { bytes, .. }, 1) => {
                    // A part of the bytes, in whole sectors.
                    let sectors = self.random.below(u64::from(*bytes) / SECTOR_BYTES + 1);
                    *bytes = (sectors * SECTOR_BYTES) as u32;
                    if *bytes == 0 {
                        return;
                    }
                }
                _ => {}
            }
            self.change(name);
        }
        // A sync may have been over, except for its report.
        if luck == 3 {
            self.finish(name);
        } else if let Some(file) = self.flights[&name].made() {
            let inode = self.inodes.get_mut(&file).expect("a file in use is kept");
            inode.bytes = self.random.between(0, inode.bytes / SECTOR_BYTES) * SECTOR_BYTES;
        }
    }
}

/// Cuts the power for one file.
fn cut(inode: &mut Inode, random: &mut Random) {
    let page_count = inode.durable.keys().next_back().map_or(1, |last| last / PAGE_SECTORS + 1);
    let remains = match random.below(7) {
        0 => Remains::Nothing,
        1 => Remains::All,
        2 => Remains::Prefix,
        3 => Remains::Stale { page: random.below(page_count) },
        4 | 5 => Remains::Pieces { unit_sectors: 1 },
        _ => Remains::Pieces { unit_sectors: PAGE_SECTORS },
    };
    let writes = std::mem::take(&mut inode.unsynced);
    let whole_count = random.below(writes.len() as u64 + 1);
    for (at, write) in (0..).zip(&writes) {
        let torn_at = random.below(write.sectors.len() as u64 + 1);
        let mut unit = None;
        for (place, (sector, bytes)) in (0..).zip(&write.sectors) {
            let kept: Option<Sector> = match remains {
                Remains::Nothing => None,
                Remains::All => Some(Rc::clone(bytes)),
                Remains::Prefix => {
                    let is_kept = at < whole_count || (at == whole_count && place < torn_at);
                    is_kept.then(|| Rc::clone(bytes))
                }
                Remains::Stale { page } if at == whole_count => {
                    inode.durable.get(&(page * PAGE_SECTORS + place)).cloned()
                }
                Remains::Stale { .. } => (at < whole_count).then(|| Rc::clone(bytes)),
                Remains::Pieces { unit_sectors } => {
                    let number = sector / unit_sectors;
                    let luck = match unit {
                        Some((same, luck)) if same == number => luck,
                        _ => random.below(8),
                    };
                    unit = Some((number, luck));
                    match luck {
                        0..4 => Some(Rc::clone(bytes)),
                        4..7 => None,
                        _ => Some(garbage(random)),
                    }
                }
            };
            if let Some(kept) = kept {
                inode.store(*sector, &kept, write.fate);
                let end = ((sector + 1) * SECTOR_BYTES).min(write.end);
                inode.durable_bytes = inode.durable_bytes.max(end);
            }
        }
    }
    inode.cache.clear();
    // A file that was being made may have any size.
    if inode.bytes > inode.durable_bytes && inode.durable_bytes == 0 {
        inode.durable_bytes = random.between(0, inode.bytes / SECTOR_BYTES) * SECTOR_BYTES;
    }
    inode.bytes = inode.durable_bytes;
}

fn garbage(random: &mut Random) -> Sector {
    let mut bytes = [0; SECTOR];
    random.fill(&mut bytes);
    Rc::new(bytes)
}
