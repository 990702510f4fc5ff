//! The end of what is kept: retention by size and age, and deletion.

use super::Moment;
use super::block::Position;
use super::catalogue::{Kept, KeptId, Record};
use super::format::{Lsn, RunKind};
use super::machine::{Journal, Reserve, place};
use super::records::Opened;
use super::segments::Vacating;
use crate::base::planted::{Planted, planted};

impl Journal {
    /// Deletes an ended execution: it is not found any more. Returns false if there is no room for
    /// the record now.
    pub fn delete(&mut self, name: KeptId, moment: Moment) -> bool {
        let Some(kept) = self.catalogue.get(name) else { return true };
        assert!(kept.ended.is_some()); // A running execution is cancelled first.
        let position = Position::new(kept.number); // The chunks before do not matter any more.
        let id = kept.id;
        self.scratch.clear();
        self.scratch.extend_from_slice(&id.to_le_bytes());
        let placed = self.put_record(RunKind::Deleted, &position, 0, Reserve::Use, moment);
        if placed.is_none() {
            return false;
        }
        let part = self.part_of(name);
        self.table.parts[part as usize].is_deleted = true;
        self.commit.await_sync();
        self.catalogue.get_mut(name).expect("it was just there").is_deleted = true;
        true
    }

    /// Removes the oldest segment, after it has nothing that a running execution needs.
    #[cold]
    pub(super) fn retain(&mut self, moment: Moment) {
        if self.segments.is_removing || self.segments.to_remove.is_some() {
            return;
        }
        match self.segments.vacating {
            Some(Vacating { number, until }) if self.commit.synced() >= until => {
                self.forget_segment(number);
            }
            Some(_) => {}
            None => self.vacate(moment),
        }
    }

    /// Repeats the descriptions of running executions of the oldest segment in the present one.
    fn vacate(&mut self, moment: Moment) {
        let number = self.segments.sealed.front().expect("a segment is over").number;
        let is_carried =
            |kept: &Kept| kept.living.is_some() && kept.opened.lsn.segment_number() == number;
        let living = self.catalogue.iter().filter(|(_, kept)| is_carried(kept));
        if living.clone().any(|(_, kept)| kept.ended.is_some()) {
            return; // Its end is on its way to the disk. After that it needs nothing.
        }
        let mut names: Vec<KeptId> = living.map(|(name, _)| name).collect();
        if planted(Planted::DescriptionNotCarried) {
            names.clear();
        }
        let mut until = self.commit.synced();
        for name in names {
            let Some(lsn) = self.carry(name, moment) else { return };
            until = until.max(lsn);
        }
        self.commit.await_sync();
        self.segments.vacating = Some(Vacating { number, until });
    }

    fn carry(&mut self, name: KeptId, moment: Moment) -> Option<Lsn> {
        let kept = self.catalogue.get(name)?;
        let living = kept.living.as_ref()?;
        let opened = Opened {
            id: kept.id,
            durability: living.durability,
            opened_us: living.opened_us,
            details: &living.details,
        };
        self.scratch.clear();
        opened.encode(&mut self.scratch);
        let position = living.missing.map_or(living.position, |missing| missing.before);
        let placed = self.put_record(RunKind::Carried, &position, 0, Reserve::Use, moment);
        let (lsn, bytes) = placed?;
        let part = self.part_of(name);
        self.table.parts[part as usize].opened = place(lsn, bytes);
        self.catalogue.get_mut(name)?.opened = Record { lsn, bytes };
        Some(lsn.after(bytes))
    }

    fn forget_segment(&mut self, number: u64) {
        let front = self.segments.sealed.pop_front();
        assert!(front.is_some_and(|front| front.number == number));
        self.segments.vacating = None;
        self.segments.oldest = number + 1;
        self.segments.to_remove = Some(number);
        let mut gone = Vec::new();
        for (name, kept) in self.catalogue.iter() {
            let is_expired = kept.opened.lsn.segment_number() <= number;
            let is_living = kept.living.is_some();
            assert!(!(is_expired && is_living) || planted(Planted::DescriptionNotCarried)); // D7
            if is_expired && !is_living && kept.part.is_none() && kept.sealing_part.is_none() {
                gone.push(name);
            }
        }
        for name in gone {
            self.catalogue.remove(name);
        }
        for kept in self.catalogue.iter_mut() {
            kept.extents.retain(|extent| extent.segment_number > number);
        }
    }
}
