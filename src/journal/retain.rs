//! The need for the next segment, and the end of what is kept: retention by size and age, and
//! deletion.

use super::block::Position;
use super::catalogue::{Kept, KeptId, Record};
use super::format::{Lsn, RunKind};
use super::machine::{Journal, Reserve, place};
use super::records::{FIXED_BYTES, Opened, Terms};
use super::segments::Vacating;
use super::{Moment, Refused};
use crate::base::Instant;
use crate::base::planted::{Planted, planted};
use crate::limits::JOURNAL_RECORD_BYTES_MAX;
use crate::stream::Durability;

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

    /// A place behind everything that was appended, for [`Journal::is_synced_to`].
    pub fn appended_lsn(&self) -> Lsn {
        self.commit.next_lsn()
    }

    /// True if everything that was appended before this place is on the disk.
    pub fn is_synced_to(&self, lsn: Lsn) -> bool {
        self.commit.synced() > lsn || self.is_all_synced()
    }

    /// True if the next segment is wanted soon, and zeros would be too late.
    pub fn is_next_urgent(&self) -> bool {
        self.is_used(2)
    }

    /// True if at least 1 ÷ `part` of the present segment is used: of its bytes, or of its rows.
    pub(super) fn is_used(&self, part: u32) -> bool {
        let used_bytes = self.commit.next_lsn().offset_bytes();
        used_bytes >= self.setup.segment_bytes / part || self.table.is_used(part as usize)
    }

    /// Removes the oldest segment, after it has nothing that a running execution needs.
    #[cold]
    pub(super) fn retain(&mut self, moment: Moment) {
        if self.segments.is_removing || self.segments.to_remove.is_some() {
            return;
        }
        if self.segments.vacating.is_none() {
            self.vacate(moment);
        }
        if let Some(Vacating { number, until }) = self.segments.vacating
            && self.commit.synced() >= until
        {
            self.forget_segment(number);
            self.plan_look(moment);
        }
    }

    /// True if [`Journal::turn`] looks at the wall clock now. Its moment should be a new reading.
    pub fn is_look_due(&self, now: Instant) -> bool {
        self.look_at().is_some_and(|look_at| now >= look_at)
    }

    /// The time of the next look at the ages of segments and executions.
    pub(super) fn look_at(&self) -> Option<Instant> {
        let can_look = !self.segments.is_shrinking() && self.fault().is_none();
        let is_empty = self.segments.sealed.is_empty() && self.overdue_us.is_none();
        let is_wanted = can_look && !is_empty;
        is_wanted.then(|| self.ages.look_at())
    }

    /// Looks at the wall clock, and removes executions whose own time is over.
    pub(super) fn look(&mut self, moment: Moment) {
        self.ages.look(moment);
        if self.overdue_us.is_some_and(|overdue_us| self.ages.is_past(overdue_us)) {
            let is_over = |kept: &Kept| {
                let until_us = kept.until_us().filter(|_| kept.living.is_none());
                until_us.is_some_and(|until_us| self.ages.is_past(until_us))
            };
            let all = self.catalogue.iter().filter(|(_, kept)| is_over(kept));
            for name in all.map(|(name, _)| name).collect::<Vec<_>>() {
                if !self.delete(name, moment) {
                    break; // There is no room. The next look tries again.
                }
            }
        }
        self.plan_look(moment);
    }

    /// Notes the end of an execution that is kept for a time of its own.
    pub(super) fn plan_removal(&mut self, until_us: u64, moment: Moment) {
        self.overdue_us = Some(self.overdue_us.map_or(until_us, |other| other.min(until_us)));
        self.plan_next_look(moment);
    }

    /// Plans the next look, after the oldest segment has changed.
    pub(super) fn plan_look(&mut self, moment: Moment) {
        self.plan_removals();
        self.plan_next_look(moment);
    }

    fn plan_next_look(&mut self, moment: Moment) {
        let segment_us = self.segments.sealed.front().map(|_| self.segments.until_us);
        if let Some(until_us) = [segment_us, self.overdue_us].into_iter().flatten().min() {
            self.ages.plan(until_us, moment.now);
        }
    }

    /// Decides when the oldest segment is too old, and when an execution is removed for its own
    /// time. An execution that is kept for longer holds all segments from its first one on.
    pub(super) fn plan_removals(&mut self) {
        let front = self.segments.sealed.front();
        let age_us_max = self.setup.age_us_max;
        let mut segment_us = front.map_or(0, |front| front.last_us.saturating_add(age_us_max));
        let mut overdue_us = None;
        for (_, kept) in self.catalogue.iter() {
            let Some(until_us) = kept.until_us() else { continue };
            // The description of a running one is repeated before its segment goes.
            let opened = kept.ended.map(|_| kept.opened.lsn.segment_number());
            let chunks = kept.extents.first().map(|extent| extent.segment_number);
            let first = [opened, chunks].into_iter().flatten().min();
            if first.zip(front).is_some_and(|(first, front)| first <= front.number) {
                segment_us = segment_us.max(until_us);
            }
            if kept.ended.is_some() {
                overdue_us = Some(overdue_us.map_or(until_us, |other: u64| other.min(until_us)));
            }
        }
        (self.segments.until_us, self.overdue_us) = (segment_us, overdue_us);
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
        // A description that was changed may still be on its way, and the old one is in `number`.
        let amended = self.catalogue.iter().filter_map(|(_, kept)| kept.living.as_ref());
        until = amended.map(|living| living.amended_until).fold(until, Lsn::max);
        self.commit.await_sync();
        self.segments.vacating = Some(Vacating { number, until });
    }

    /// Changes the description of an execution that has not ended. The last one counts. Returns the
    /// place of its record, for [`Journal::is_kept_at`].
    ///
    /// # Errors
    /// [`Refused`]; nothing was appended then.
    pub fn amend(&mut self, name: KeptId, details: &[u8], moment: Moment) -> Result<Lsn, Refused> {
        if details.len() > JOURNAL_RECORD_BYTES_MAX - FIXED_BYTES {
            return Err(Refused::TooLong);
        }
        if self.fault().is_some() {
            return Err(Refused::Broken);
        }
        let details: Box<[u8]> = details.into();
        let until = self.describe(name, &details, Reserve::Keep, moment).ok_or(Refused::Full)?;
        let kept = self.catalogue.get_mut(name).expect("it was just described");
        assert!(kept.ended.is_none()); // Nothing follows the end.
        let lsn = kept.opened.lsn;
        let living = kept.living.as_mut().expect("it has not ended");
        (living.details, living.amended_until) = (details, until);
        let is_awaited = living.durability.is_synced();
        self.touch(name, is_awaited, false);
        Ok(lsn)
    }

    /// True if the record of an execution at this place is kept as promised.
    pub fn is_kept_at(&self, name: KeptId, lsn: Lsn) -> bool {
        let living = self.catalogue.get(name).and_then(|kept| kept.living.as_ref());
        match living.map(|living| living.durability) {
            Some(Durability::Written) => self.commit.written() > lsn,
            _ => self.commit.synced() > lsn,
        }
    }

    fn carry(&mut self, name: KeptId, moment: Moment) -> Option<Lsn> {
        let details = self.catalogue.get(name)?.living.as_ref()?.details.clone();
        self.describe(name, &details, Reserve::Use, moment)
    }

    /// Appends the description of an execution that has not ended. Returns the end of the record.
    fn describe(
        &mut self,
        name: KeptId,
        details: &[u8],
        reserve: Reserve,
        moment: Moment,
    ) -> Option<Lsn> {
        let kept = self.catalogue.get(name)?;
        let living = kept.living.as_ref()?;
        let opened = Opened {
            id: kept.id,
            terms: Terms { durability: living.durability, keep_s: kept.keep_s },
            opened_us: living.opened_us,
            details,
        };
        self.scratch.clear();
        opened.encode(&mut self.scratch);
        let position = living.missing.map_or(living.position, |missing| missing.before);
        let placed = self.put_record(RunKind::Carried, &position, 0, reserve, moment);
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
            let first_seq = kept.extents.first().map_or(u64::MAX, |extent| extent.first_seq);
            kept.landmarks.forget_before(first_seq);
        }
    }
}
