//! Planted bugs: errors that the simulator has to find, to show that it would find similar ones.
//!
//! Each is one small wrong step in the real code, taken when its number was chosen. Outside of this
//! library's own tests the check is a constant `false`, and the step is not compiled. In them, at
//! most one bug is chosen for the whole process, before anything runs.

/// The bugs, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Planted {
    /// A payload is written before the chunks that it overwrites are given up.
    ClaimAfterWrite = 1,
    /// Only descriptors are given up, not the data that payloads overwrite.
    DataWrapBeforeSlotWrap = 2,
    /// One chunk too few is given up.
    TailOffByOne = 3,
    /// Readers that sleep are not woken.
    LostWake = 4,
    /// A reader checks for news first, and only then announces that it sleeps.
    AsleepAfterCheck = 5,
    /// The gate does not move back for a `block` subscriber that attaches late.
    LateJoinerNotGated = 6,
    /// The gate stays at the cursor of a subscriber that is gone.
    DetachedStillGates = 7,
    /// A gap before the end is not reported.
    GapLostAtEnd = 8,
    /// A subscriber that comes back gets the same gap as before once more.
    GapTwiceAfterReconnect = 9,
    /// The end is reported while a chunk is still owed.
    EndBeforeLastChunk = 10,
    /// A cancellation and the producer's own end each end the execution.
    EndTwiceInCancelRace = 11,
    /// A timer that was cancelled fires nevertheless.
    TimerFiresAfterCancel = 12,
    /// When the wheel moves on, a timer of a coarse slot is left behind.
    CascadeSkipsSlot = 13,
    /// A stale handle returns the present value of its slot.
    StaleGenerationTaken = 14,
    /// A producer may publish one chunk more than a `block` subscriber allows.
    CreditOffByOne = 15,
    /// A report of another form takes progress backwards.
    ProgressBackwards = 16,
    /// The chunks that `conflate` skips are not reported.
    ConflatedWithoutGap = 17,
    /// The stall deadline of a reader that has moved keeps running.
    BlockDeadlineLeftArmed = 18,
    /// A producer counts as silent while a reader holds it back.
    InactivityWhileGated = 19,
    /// An execution is forgotten while a subscriber still reads its ring.
    RetentionFreesLeasedRing = 20,
    /// The gate of a thread is published only if a turn takes its chunks over.
    GatePublishedInTurnsOnly = 21,
    /// The journal acknowledges a chunk as synced when its block was written.
    AckBeforeSync = 22,
    /// A sync of the journal counts for writes that were under way when it was submitted.
    SyncBeforeWritten = 23,
    /// A block of the journal counts one block too many as on the disk.
    SyncedTooFar = 24,
    /// A bad block counts as damaged by the disk if any sound block stands behind it.
    TailTakenForRot = 25,
    /// A block that the disk has damaged counts as the torn end of the last writes.
    RotTakenForTail = 26,
    /// A chunk of the journal is given although its checksum is another one.
    PayloadSumNotChecked = 27,
    /// A failed sync of the journal is tried again, and the second one is believed.
    SyncRetried = 28,
    /// The journal goes on behind chunks that it did not keep, without a record of them.
    HoleNotRecorded = 29,
    /// A segment is removed with the descriptions of running executions in it.
    DescriptionNotCarried = 30,
    /// The last chunk from the disk is given again.
    FetchRepeats = 31,
    /// The chunk behind those from the disk is not given.
    FetchSkips = 32,
    /// A subscriber that reads from the disk is level as soon as the ring holds its next chunk.
    LevelAtTail = 33,
    /// A block counts although it was written for another place.
    StaleBlockTaken = 34,
    /// A run has one chunk too few in the index of its segment.
    IndexRowOffByOne = 35,
    /// The end of a synced execution counts as kept when it was written.
    EndKeptBeforeSync = 36,
    /// After a failed sync, the journal serves what only the kernel has.
    UnsyncedServed = 37,
    /// An end is told before the disk keeps it.
    EndToldTooEarly = 38,
    /// A chunk that is given when it is durable is given when it was appended.
    ShownBeforeDurable = 39,
    /// A write that is durable by itself counts for the blocks before it.
    WriteCoversEarlier = 40,
    /// The journal has no record of the producer of a short append.
    ProducerNotKept = 41,
    /// Readers are given a part of an append that a crash may cut off.
    PartOfAppendShown = 42,
    /// The description of an append gets to the journal before the chunks of the one before.
    DescribedTooEarly = 43,
    /// An append is refused because of one before it that a crash may take back.
    RefusedTooEarly = 44,
    /// A record of unknown fate is stored again although the log has it.
    StoredTwice = 45,
    /// The mirror stores whatever the log ends with.
    StoreWithoutCondition = 46,
    /// A reader of a log gives what it hears before what was stored earlier.
    LiveBeforeHistory = 47,
    /// A reader that was cut off believes that it has heard everything.
    NoPullAfterReconnect = 48,
    /// The end of a lost node's execution is stored whatever the log ends with.
    CloserWithoutCondition = 49,
    /// A mirror that is refused believes that somebody else has written.
    RefusalTakenForFence = 50,
    /// A gap of a log counts for one kind.
    GapOfOneKind = 51,
    /// An old answer is taken for the whole log.
    StaleEndOfLog = 52,
    /// A record counts as stored when it was sent.
    StoredWhenSent = 53,
    /// A node takes another one for lost because it has not heard of it.
    LeaseByOwnClock = 54,
    /// The ring of a replica begins anew behind a gap of its log, and the engine is not told.
    SkipNotTold = 55,
    /// The first chunk that a subscriber asks of a log is left out.
    LogReadFromNext = 56,
    /// A part of a log that has to wait for room in a ring is forgotten.
    WaitingPieceLost = 57,
    /// The times of old chunks of a replica count as those of the own clock.
    ForeignClock = 58,
    /// A replica that has room again does not say so.
    RoomNotGivenBack = 59,
    /// Chunks that a log has lost count for all kinds.
    LostOfAllKinds = 60,
}

/// True if this bug is the chosen one.
#[inline(always)]
pub fn planted(bug: Planted) -> bool {
    #[cfg(any(test, fuzzing))]
    return chosen::is(bug);
    #[cfg(not(any(test, fuzzing)))]
    {
        let _ = bug;
        false
    }
}

#[cfg(any(test, fuzzing))]
pub use chosen::plant;

#[cfg(any(test, fuzzing))]
mod chosen {
    use std::sync::OnceLock;

    use super::Planted;

    static CHOSEN: OnceLock<Option<Planted>> = OnceLock::new();

    #[inline]
    pub fn is(bug: Planted) -> bool {
        *CHOSEN.get_or_init(|| None) == Some(bug)
    }

    /// Chooses a bug by its number, for the rest of this process. Returns `None` if no bug has that
    /// number.
    ///
    /// # Panics
    /// If any code has checked for a bug before: half a process with a bug would show nothing.
    pub fn plant(number: u8) -> Option<Planted> {
        let bug = Planted::ALL.into_iter().find(|&bug| bug as u8 == number)?;
        assert!(CHOSEN.set(Some(bug)).is_ok(), "a bug is planted before anything else");
        Some(bug)
    }
}

impl Planted {
    /// True if the campaign of the shard with a journal has to find it.
    pub fn is_of_kept(self) -> bool {
        use Planted::{EndToldTooEarly, FetchRepeats, FetchSkips, LevelAtTail, ShownBeforeDurable};
        let of_reads = matches!(self, FetchRepeats | FetchSkips | LevelAtTail);
        of_reads || matches!(self, EndToldTooEarly | ShownBeforeDurable)
    }

    /// True if the campaign of replicas has to find it.
    pub fn is_of_replicas(self) -> bool {
        self as u8 >= Planted::SkipNotTold as u8
    }

    /// True if the campaign of the journal has to find it.
    pub fn is_of_journal(self) -> bool {
        let is_of_disk = self as u8 >= Planted::AckBeforeSync as u8;
        let of_server = self.is_of_streams() || self.is_of_cluster() || self.is_of_replicas();
        is_of_disk && !self.is_of_kept() && !of_server
    }

    /// True if the campaign of Durable Streams has to find it.
    pub fn is_of_streams(self) -> bool {
        let of_streams = self as u8 >= Planted::ProducerNotKept as u8;
        of_streams && !self.is_of_cluster() && !self.is_of_replicas()
    }

    /// True if the campaign of a cluster has to find it.
    pub fn is_of_cluster(self) -> bool {
        self as u8 >= Planted::StoredTwice as u8 && !self.is_of_replicas()
    }

    /// Every bug.
    pub const ALL: [Planted; 60] = [
        Planted::ClaimAfterWrite,
        Planted::DataWrapBeforeSlotWrap,
        Planted::TailOffByOne,
        Planted::LostWake,
        Planted::AsleepAfterCheck,
        Planted::LateJoinerNotGated,
        Planted::DetachedStillGates,
        Planted::GapLostAtEnd,
        Planted::GapTwiceAfterReconnect,
        Planted::EndBeforeLastChunk,
        Planted::EndTwiceInCancelRace,
        Planted::TimerFiresAfterCancel,
        Planted::CascadeSkipsSlot,
        Planted::StaleGenerationTaken,
        Planted::CreditOffByOne,
        Planted::ProgressBackwards,
        Planted::ConflatedWithoutGap,
        Planted::BlockDeadlineLeftArmed,
        Planted::InactivityWhileGated,
        Planted::RetentionFreesLeasedRing,
        Planted::GatePublishedInTurnsOnly,
        Planted::AckBeforeSync,
        Planted::SyncBeforeWritten,
        Planted::SyncedTooFar,
        Planted::TailTakenForRot,
        Planted::RotTakenForTail,
        Planted::PayloadSumNotChecked,
        Planted::SyncRetried,
        Planted::HoleNotRecorded,
        Planted::DescriptionNotCarried,
        Planted::StaleBlockTaken,
        Planted::IndexRowOffByOne,
        Planted::EndKeptBeforeSync,
        Planted::FetchRepeats,
        Planted::FetchSkips,
        Planted::LevelAtTail,
        Planted::EndToldTooEarly,
        Planted::UnsyncedServed,
        Planted::ShownBeforeDurable,
        Planted::WriteCoversEarlier,
        Planted::ProducerNotKept,
        Planted::PartOfAppendShown,
        Planted::DescribedTooEarly,
        Planted::RefusedTooEarly,
        Planted::StoredTwice,
        Planted::StoreWithoutCondition,
        Planted::LiveBeforeHistory,
        Planted::NoPullAfterReconnect,
        Planted::CloserWithoutCondition,
        Planted::RefusalTakenForFence,
        Planted::GapOfOneKind,
        Planted::StaleEndOfLog,
        Planted::StoredWhenSent,
        Planted::LeaseByOwnClock,
        Planted::SkipNotTold,
        Planted::LogReadFromNext,
        Planted::WaitingPieceLost,
        Planted::ForeignClock,
        Planted::RoomNotGivenBack,
        Planted::LostOfAllKinds,
    ];
}
