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
    /// Every bug.
    pub const ALL: [Planted; 21] = [
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
    ];
}
