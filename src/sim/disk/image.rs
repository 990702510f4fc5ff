//! The layers of a file and of the directory: durable, cached, not synced.
//!
//! Sectors of zeros take no memory. Invariant: a sector that differs between the cache and the
//! durable image is in `cache`.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::SECTOR_BYTES;
use crate::reactor::FileName;

pub const SECTOR: usize = SECTOR_BYTES as usize;

/// The bytes of one sector. Layers share them.
pub type Sector = Rc<[u8; SECTOR]>;

/// A file, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InodeId(pub u64);

/// The way that a write takes from the page cache to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Right,
    /// It is never written, and the disk says that it was.
    Lost,
    /// It is written so many sectors further on.
    Misdirected(i64),
}

/// A write that is in the page cache only.
#[derive(Debug)]
pub struct Unsynced {
    /// Its number. Later writes have larger ones.
    pub number: u64,
    pub sectors: Vec<(u64, Sector)>,
    /// The size that the file has to have for it.
    pub end: u64,
    pub fate: Fate,
}

/// The layers of one file.
#[derive(Debug, Default)]
pub struct Inode {
    pub open_count: u32,
    /// The size that a process sees.
    pub bytes: u64,
    pub durable_bytes: u64,
    pub durable: BTreeMap<u64, Sector>,
    pub cache: BTreeMap<u64, Sector>,
    pub unsynced: Vec<Unsynced>,
    /// Sectors of the disk that cannot be read.
    pub unreadable: BTreeSet<u64>,
}

impl Inode {
    /// The sector as a process sees it, readable or not.
    fn seen(&self, sector: u64) -> Option<&Sector> {
        self.cache.get(&sector).or_else(|| self.durable.get(&sector))
    }

    /// Puts durable bytes into a new file.
    pub fn put(&mut self, bytes: &[u8]) {
        for (sector, piece) in bytes.chunks(SECTOR).enumerate() {
            let mut whole = [0; SECTOR];
            whole[..piece.len()].copy_from_slice(piece);
            self.durable.insert(sector as u64, Rc::new(whole));
        }
        (self.bytes, self.durable_bytes) = (bytes.len() as u64, bytes.len() as u64);
    }

    /// Reads into `into` from `offset`, as far as the file reaches. `None` if a sector cannot be
    /// read.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Option<usize> {
        let count = self.bytes.saturating_sub(offset).min(into.len() as u64) as usize;
        let mut done = 0;
        while done < count {
            let at = offset + done as u64;
            let (sector, inside) = (at / SECTOR_BYTES, (at % SECTOR_BYTES) as usize);
            let piece = (SECTOR - inside).min(count - done);
            if self.unreadable.contains(&sector) && !self.cache.contains_key(&sector) {
                return None;
            }
            match self.seen(sector) {
                Some(bytes) => into[done..done + piece].copy_from_slice(&bytes[inside..][..piece]),
                None => into[done..done + piece].fill(0),
            }
            done += piece;
        }
        Some(count)
    }

    /// All bytes that a process would see if each sector could be read.
    pub fn visible(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes as usize];
        for (sector, place) in (0..).zip(bytes.chunks_mut(SECTOR)) {
            if let Some(found) = self.seen(sector) {
                place.copy_from_slice(&found[..place.len()]);
            }
        }
        bytes
    }

    /// Writes into the page cache.
    pub fn write(&mut self, number: u64, offset: u64, bytes: &[u8], fate: Fate) {
        let mut sectors = Vec::new();
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let (sector, inside) = (at / SECTOR_BYTES, (at % SECTOR_BYTES) as usize);
            let piece = (SECTOR - inside).min(bytes.len() - done);
            let mut whole = self.seen(sector).map_or([0; SECTOR], |bytes| **bytes);
            whole[inside..inside + piece].copy_from_slice(&bytes[done..done + piece]);
            let whole = Rc::new(whole);
            self.cache.insert(sector, Rc::clone(&whole));
            sectors.push((sector, whole));
            done += piece;
        }
        let end = offset + bytes.len() as u64;
        self.bytes = self.bytes.max(end);
        self.unsynced.push(Unsynced { number, sectors, end, fate });
    }

    /// Takes the un-synced writes that a sync covers: those before `before`, and `own`. Earlier
    /// writes of the sectors of `own` come to nothing.
    pub fn take_unsynced(&mut self, before: u64, own: Option<u64>) -> Vec<Unsynced> {
        let (taken, mut rest): (Vec<Unsynced>, Vec<Unsynced>) = std::mem::take(&mut self.unsynced)
            .into_iter()
            .partition(|write| write.number < before || Some(write.number) == own);
        if let Some(own) = taken.last().filter(|write| Some(write.number) == own) {
            let sectors: BTreeSet<u64> = own.sectors.iter().map(|(sector, _)| *sector).collect();
            for write in rest.iter_mut().filter(|write| write.number < own.number) {
                write.sectors.retain(|(sector, _)| !sectors.contains(sector));
            }
        }
        self.unsynced = rest;
        taken
    }

    /// Writes one sector to the disk.
    pub fn store(&mut self, sector: u64, bytes: &Sector, fate: Fate) {
        let target = match fate {
            Fate::Right => sector,
            Fate::Lost => return,
            Fate::Misdirected(by) => sector.checked_add_signed(by).expect("inside of the file"),
        };
        self.unreadable.remove(&target);
        match bytes.iter().all(|byte| *byte == 0) {
            true => self.durable.remove(&target),
            false => self.durable.insert(target, Rc::clone(bytes)),
        };
    }

    /// Forgets the cached sectors of these writes that the disk has now.
    pub fn settle(&mut self, synced: &[Unsynced]) {
        for (sector, _) in synced.iter().flat_map(|write| &write.sectors) {
            let is_dirty = self
                .unsynced
                .iter()
                .any(|write| write.sectors.iter().any(|(other, _)| other == sector));
            if !is_dirty {
                self.cache.remove(sector);
            }
        }
    }

    /// Drops the cached sectors that no un-synced write needs.
    pub fn drop_clean(&mut self) {
        let unsynced = self.unsynced.iter().flat_map(|write| &write.sectors);
        let dirty: BTreeSet<u64> = unsynced.map(|(sector, _)| *sector).collect();
        self.cache.retain(|sector, _| dirty.contains(sector));
    }

    /// Flips a bit on the disk.
    pub fn flip(&mut self, offset: u64, bit: u32) {
        let place = self.durable.entry(offset / SECTOR_BYTES);
        let sector = Rc::make_mut(place.or_insert_with(|| Rc::new([0; SECTOR])));
        sector[(offset % SECTOR_BYTES) as usize] ^= 1 << (bit % 8);
    }

    pub fn add_to(&self, hash: &mut Hash, is_cached: bool) {
        let empty = BTreeMap::new();
        let (bytes, cache) = match is_cached {
            true => (self.bytes, &self.cache),
            false => (self.durable_bytes, &empty),
        };
        hash.add(&bytes.to_le_bytes());
        let sectors: BTreeSet<&u64> = self.durable.keys().chain(cache.keys()).collect();
        for sector in sectors {
            let found = cache.get(sector).unwrap_or_else(|| &self.durable[sector]);
            if found.iter().any(|&byte| byte != 0) {
                hash.add(&sector.to_le_bytes());
                hash.add(&found[..]);
            }
        }
    }
}

/// A change of the directory.
#[derive(Clone, Debug)]
pub enum Change {
    Link(FileName, InodeId),
    Unlink(FileName),
    Rename(FileName, FileName),
}

/// The layers of the directory.
#[derive(Debug, Default)]
pub struct Names {
    pub cached: BTreeMap<FileName, InodeId>,
    pub durable: BTreeMap<FileName, InodeId>,
    /// Changes that are cached only, in order.
    pub unsynced: Vec<Change>,
}

impl Names {
    /// Makes a change in the cache.
    pub fn change(&mut self, change: Change) {
        apply(&mut self.cached, &change);
        self.unsynced.push(change);
    }

    /// Syncs the directory: all changes become durable.
    pub fn sync(&mut self) {
        for change in self.unsynced.drain(..) {
            apply(&mut self.durable, &change);
        }
    }

    /// Cuts the power: the first `kept_count` un-synced changes were written.
    pub fn cut(&mut self, kept_count: usize) {
        self.unsynced.truncate(kept_count);
        self.sync();
        self.cached = self.durable.clone();
    }

    /// Puts a durable name.
    pub fn put(&mut self, name: &FileName, file: InodeId) {
        self.cached.insert(name.clone(), file);
        self.durable.insert(name.clone(), file);
    }

    /// True if the file has a name in one of the layers, or may get one by a crash.
    pub fn has(&self, file: InodeId) -> bool {
        let changed = self.unsynced.iter().any(|change| match change {
            Change::Link(_, linked) => *linked == file,
            Change::Unlink(_) | Change::Rename(..) => false,
        });
        changed || self.cached.values().chain(self.durable.values()).any(|named| *named == file)
    }
}

fn apply(names: &mut BTreeMap<FileName, InodeId>, change: &Change) {
    match change {
        Change::Link(name, file) => {
            names.insert(name.clone(), *file);
        }
        Change::Unlink(name) => {
            names.remove(name);
        }
        Change::Rename(from, to) => {
            if let Some(file) = names.remove(from) {
                names.insert(to.clone(), file);
            }
        }
    }
}

/// FNV-1a over parts, each with its length.
pub struct Hash(pub u64);

impl Default for Hash {
    fn default() -> Hash {
        Hash(0xCBF2_9CE4_8422_2325)
    }
}

impl Hash {
    pub fn add(&mut self, part: &[u8]) {
        for byte in (part.len() as u64).to_le_bytes().iter().chain(part) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3);
        }
    }
}
