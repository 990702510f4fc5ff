//! A disk with a volatile write cache, and with the faults that a test plans.
//!
//! Absent: threads, files and delays (`image.rs` has them). Invariants:
//! - P1: after a power cut, a sector has what was last flushed, or something that was written to
//!   it later. Each sector decides by itself.
//! - P2: a write that fails leaves nothing behind, unless the power goes with it.
//! - P3: nothing is done for those who opened the disk before the last power cut.

use std::collections::BTreeSet;

use streamdoor::base::Random;

/// An operation that failed. The kernel is told EIO.
#[derive(Debug)]
pub struct Failed;

/// The time between power on and power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    pub seed: u64,
    /// The size of the pieces that the disk writes as a whole.
    pub sector_bytes: usize,
    /// The number of the write or flush during which the power goes, from 1.
    pub cut_at: Option<u64>,
}

/// The disk.
pub struct Disk {
    /// The contents as a reader sees them.
    seen: Vec<u8>,
    /// The contents that survive a power cut.
    flushed: Vec<u8>,
    /// Sectors that differ between the two.
    cached: BTreeSet<usize>,
    life: Life,
    life_count: u64,
    is_on: bool,
    /// Writes and flushes since the power came.
    operation_count: u64,
    random: Random,
    /// The next write with these bytes fails.
    bad_bytes: Option<Vec<u8>>,
    /// True if the next flush fails.
    is_next_flush_bad: bool,
}

impl Disk {
    /// A disk of zeros, without power.
    pub fn new(bytes: usize) -> Disk {
        Disk {
            seen: vec![0; bytes],
            flushed: vec![0; bytes],
            cached: BTreeSet::new(),
            life: Life { seed: 0, sector_bytes: 512, cut_at: None },
            life_count: 0,
            is_on: false,
            operation_count: 0,
            random: Random::new(0),
            bad_bytes: None,
            is_next_flush_bad: false,
        }
    }

    pub fn bytes(&self) -> u64 {
        self.seen.len() as u64
    }

    /// Turns the power on.
    pub fn turn_on(&mut self, life: Life) {
        assert!(!self.is_on && self.cached.is_empty());
        assert!(self.seen.len().is_multiple_of(life.sector_bytes));
        self.random = Random::new(life.seed);
        (self.life, self.is_on, self.operation_count) = (life, true, 0);
        (self.bad_bytes, self.is_next_flush_bad) = (None, false);
        self.life_count += 1;
    }

    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// The number of lives so far, which names this one.
    pub fn life_count(&self) -> u64 {
        self.life_count
    }

    /// Lets the next write of these bytes fail.
    pub fn fail_write_of(&mut self, bytes: Vec<u8>) {
        self.bad_bytes = Some(bytes);
    }

    /// Lets the next flush fail.
    pub fn fail_flush(&mut self) {
        self.is_next_flush_bad = true;
    }

    /// Plans a power cut during the write or flush with this number from now, from 1.
    pub fn cut_in(&mut self, operation_count: u64) {
        self.life.cut_at = Some(self.operation_count + operation_count);
    }

    /// True if the bytes survive a power cut.
    pub fn keeps(&self, bytes: &[u8]) -> bool {
        self.flushed.windows(bytes.len()).any(|window| window == bytes)
    }

    pub fn read(&self, life: u64, offset: u64, bytes: u32) -> Result<&[u8], Failed> {
        self.check_life(life)?;
        let begin = (offset as usize).min(self.seen.len());
        let end = (begin + bytes as usize).min(self.seen.len());
        Ok(&self.seen[begin..end])
    }

    pub fn write(&mut self, life: u64, offset: u64, bytes: &[u8]) -> Result<(), Failed> {
        self.check_life(life)?;
        let begin = offset as usize;
        let target = begin.checked_add(bytes.len()).map(|end| begin..end).ok_or(Failed)?;
        if target.end > self.seen.len() {
            return Err(Failed);
        }
        let is_bad = |bad: &mut Vec<u8>| bytes.windows(bad.len()).any(|window| window == bad);
        if self.bad_bytes.take_if(is_bad).is_some() {
            return Err(Failed);
        }
        let sector_bytes = self.life.sector_bytes;
        for sector in begin / sector_bytes..target.end.div_ceil(sector_bytes) {
            // A disk may empty its cache at any time, so the version before may be there.
            if !self.cached.insert(sector) && self.random.chance(1, 2) {
                self.keep(sector);
            }
        }
        self.seen[target].copy_from_slice(bytes);
        self.count_operation()
    }

    /// Begins a flush. Returns the sectors that it covers.
    pub fn begin_flush(&mut self, life: u64) -> Result<BTreeSet<usize>, Failed> {
        self.check_life(life)?;
        self.count_operation()?;
        match std::mem::take(&mut self.is_next_flush_bad) {
            true => Err(Failed),
            false => Ok(self.cached.clone()),
        }
    }

    /// Ends a flush.
    pub fn end_flush(&mut self, life: u64, sectors: BTreeSet<usize>) -> Result<(), Failed> {
        self.check_life(life)?;
        for sector in sectors {
            self.keep(sector);
            self.cached.remove(&sector);
        }
        Ok(())
    }

    /// Cuts the power. Each cached sector is kept, or lost. Everything fails from now on.
    pub fn cut(&mut self) {
        self.is_on = false;
        let kept_of_8 = self.random.below(9);
        for sector in std::mem::take(&mut self.cached) {
            match self.random.chance(kept_of_8, 8) {
                true => self.keep(sector),
                false => {
                    let range = self.range(sector);
                    self.seen[range.clone()].copy_from_slice(&self.flushed[range]);
                }
            }
        }
    }

    fn check_life(&self, life: u64) -> Result<(), Failed> {
        if self.is_on && life == self.life_count { Ok(()) } else { Err(Failed) }
    }

    fn count_operation(&mut self) -> Result<(), Failed> {
        self.operation_count += 1;
        if self.life.cut_at == Some(self.operation_count) {
            self.cut();
            return Err(Failed);
        }
        Ok(())
    }

    fn range(&self, sector: usize) -> std::ops::Range<usize> {
        sector * self.life.sector_bytes..(sector + 1) * self.life.sector_bytes
    }

    fn keep(&mut self, sector: usize) {
        let range = self.range(sector);
        self.flushed[range.clone()].copy_from_slice(&self.seen[range]);
    }
}
