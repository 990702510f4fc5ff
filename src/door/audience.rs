//! Several door readers of one execution on one thread, which reads each chunk once.

use std::fmt;
use std::time::Duration;

use super::error::DoorError;
use super::link::DoorLink;
use super::reader::{DoorReader, ReaderParts};
use crate::base::{ExecutionId, Instant, SubscriberId};
use crate::limits;
use crate::reactor::Clock;
use crate::shard::{Audience, Delivery, JoinFault, Subscriber};

/// Readers of one execution on one thread, each with a state of type `S`. It is the [`Audience`] of
/// readers at a door.
///
/// A member leaves after its [`Delivery::End`], or after an error.
///
/// ```no_run
/// use std::time::Duration;
/// use streamdoor::Delivery;
/// use streamdoor::door::{DoorAudience, DoorError, DoorReader};
///
/// /// Counts the chunks that each reader is given, until all have ended.
/// fn count(readers: Vec<DoorReader>) -> Result<Vec<u64>, DoorError> {
///     let (mut counts, mut failure) = (vec![0; readers.len()], None);
///     let mut audience = DoorAudience::new();
///     for (number, reader) in readers.into_iter().enumerate() {
///         audience.join(reader, number).expect("all read the same execution");
///     }
///     while !audience.is_empty() {
///         audience.wait(Duration::from_secs(1));
///         audience.drain(64, |number, delivery| match delivery {
///             Ok(Delivery::Chunk(_)) => counts[*number] += 1,
///             Ok(_) => {}
///             Err(error) => failure = Some(error),
///         });
///     }
///     failure.map_or(Ok(counts), Err)
/// }
/// ```
pub struct DoorAudience<S> {
    audience: Audience<(ReaderParts, S), DoorLink>,
    /// Number of calls left until the lines to the server are looked at.
    drains_left: u32,
    /// The time of the last look.
    looked: Instant,
}

/// A reader that was not taken into an audience, with its state and the reason.
pub struct DoorJoinError<S> {
    /// The reason.
    pub fault: JoinFault,
    /// The reader, which goes on alone.
    pub reader: DoorReader,
    /// Its state.
    pub state: S,
}

impl<S> DoorAudience<S> {
    /// Creates an audience without members.
    pub fn new() -> DoorAudience<S> {
        DoorAudience::default()
    }

    /// Number of members. A member that was given its end or an error is none any more.
    pub fn len(&self) -> usize {
        self.audience.len()
    }

    /// True if no member is left.
    pub fn is_empty(&self) -> bool {
        self.audience.is_empty()
    }

    /// The execution that the members read; `None` without members.
    pub fn execution(&self) -> Option<ExecutionId> {
        self.audience.execution()
    }

    /// Returns the members, in no particular order.
    pub fn members(&self) -> impl Iterator<Item = (SubscriberId, &S)> {
        self.audience.members().map(|(id, (_, state))| (id, state))
    }

    /// Adds a member, which goes on where it stands.
    ///
    /// # Errors
    /// [`DoorJoinError`] with the reader, if it reads another ring, or if there is no room.
    pub fn join(&mut self, reader: DoorReader, state: S) -> Result<(), Box<DoorJoinError<S>>> {
        let (subscriber, parts) = reader.into_parts();
        self.audience.join(subscriber, (parts, state)).map_err(|refused| {
            let (parts, state) = refused.state;
            let reader = DoorReader::of_parts(refused.subscriber, parts);
            Box::new(DoorJoinError { fault: refused.fault, reader, state })
        })
    }

    /// Removes a member, which goes on alone where it stands. Returns `None` if it is no member.
    pub fn leave(&mut self, id: SubscriberId) -> Option<(DoorReader, S)> {
        let (subscriber, (parts, state)) = self.audience.leave(id)?;
        Some((DoorReader::of_parts(subscriber, parts), state))
    }

    /// Calls `take` with every delivery that is due at this moment, up to `count_max` for each
    /// member. Returns the number of calls. Never blocks.
    ///
    /// An error is the last thing that a member gets, and disturbs no other member.
    /// [`DoorError::ServerGone`] comes once the server has gone and all that could be delivered
    /// was. [`DoorError::Unsound`] comes if the shared memory holds nonsense.
    #[inline]
    pub fn drain(
        &mut self,
        count_max: usize,
        mut take: impl FnMut(&mut S, Result<Delivery<'_>, DoorError>),
    ) -> usize {
        let mut count = 0;
        match self.drains_left.checked_sub(1) {
            Some(left) => self.drains_left = left,
            None => count = self.look(&mut take),
        }
        count
            + self.audience.try_drain(count_max, |(_, state), delivery| {
                take(state, delivery.map_err(DoorError::from))
            })
    }

    /// Waits until something may be due to a member, at most for `timeout`. Polls for a little,
    /// then sleeps. Returns false if nothing came, or if no member is left.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        self.drains_left = 0; // A line that was found to be broken ends the wait, too.
        self.audience.wait_until(Clock::now().saturating_add(timeout))
    }

    /// Looks now and then whether the servers of all members live. Members of a server that has
    /// gone are given the rest of what is there, and leave.
    #[cold]
    fn look(&mut self, take: &mut impl FnMut(&mut S, Result<Delivery<'_>, DoorError>)) -> usize {
        self.drains_left = limits::DOOR_POLLS_PER_LOOK;
        let now = Clock::now();
        let asks = now.since(self.looked) >= limits::DOOR_LOOK_INTERVAL; // That is a system call.
        if asks {
            self.looked = now;
        }
        let is_gone = |subscriber: &&Subscriber<DoorLink>| {
            let line = &subscriber.link().line;
            line.is_known_gone() || (asks && !line.is_up())
        };
        let gone = self.audience.subscribers().filter(is_gone);
        let gone: Vec<SubscriberId> = gone.map(|subscriber| subscriber.id()).collect();
        let mut count = 0;
        for id in gone {
            let (mut reader, mut state) = self.leave(id).expect("it is a member");
            loop {
                match reader.take_rest() {
                    Ok(Some(delivery)) => take(&mut state, Ok(delivery)),
                    Ok(None) => break, // That was its end.
                    Err(error) => {
                        take(&mut state, Err(error));
                        count += 1;
                        break;
                    }
                }
                count += 1;
            }
        }
        count
    }
}

impl<S> Default for DoorAudience<S> {
    fn default() -> DoorAudience<S> {
        let (audience, looked) = (Audience::default(), Instant::from_nanos(0));
        DoorAudience { audience, drains_left: 0, looked }
    }
}

impl<S> fmt::Debug for DoorAudience<S> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.audience.fmt(out)
    }
}

impl<S> fmt::Display for DoorJoinError<S> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fault.fmt(out)
    }
}

impl<S> fmt::Debug for DoorJoinError<S> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "DoorJoinError({:?}, {:?})", self.fault, self.reader)
    }
}

impl<S> std::error::Error for DoorJoinError<S> {}
