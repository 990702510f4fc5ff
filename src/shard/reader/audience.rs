//! Several subscribers of one execution on one thread. A chunk is read once for all members that
//! stand abreast.
//!
//! Members of equal terms and equal cursors form a group, whose first member leads. The leader
//! evaluates the policy and copies the chunk, and the others are given the same bytes. Afterwards
//! each follower takes over the leader's cursor and shows it on its own page. A shard therefore
//! sees no difference between members and other readers. Each member finds everything but chunks
//! (gaps, progress, ends) itself. Members that no longer stand abreast are grouped anew.
//!
//! Invariants, checked by [`Audience::audit`]:
//! - U1: outside of a call, members of one group have equal terms and cursors.
//! - U2: the groups divide the members into ranges without gaps.
//! - U3: all members read the same ring.
//!
//! Tests: `audience_tests.rs`, `shard/readers_tests.rs`, `tests/door/together.rs`.

use std::convert::Infallible;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use smallvec::SmallVec;

use super::link::{Flaw, Link, ThreadLink};
use super::wait::wait_among;
use super::{IsQuiet, Ready, Subscriber};
use crate::base::{ExecutionId, Instant, SubscriberId};
use crate::memory::futex::WAIT_WORDS_MAX;
use crate::reactor::Clock;
use crate::shard::Delivery;
use crate::trace::probe;

/// Largest number of members. One thread sleeps on a word of each, and on the head of the ring.
pub const AUDIENCE_MEMBERS_MAX: usize = WAIT_WORDS_MAX - 1;
/// Number of followers whose signals an idle call looks at. The next call looks at others.
const IDLE_LOOKS: usize = 4;
/// Number of calls after which groups that have come abreast are merged.
const MERGE_INTERVAL: u32 = 16;

/// Subscribers of one execution on one thread, each with a state of type `S`.
///
/// A chunk for several members is read and copied once. A member keeps its own policy, cursor,
/// gaps and end, as if it were read alone. It leaves after its [`Delivery::End`].
///
/// ```
/// use std::time::Duration;
/// use streamdoor::{Audience, Delivery, Subscriber};
///
/// /// Counts the bytes that each of the subscribers is given, until all have ended.
/// fn count(subscribers: Vec<Subscriber>) -> Vec<usize> {
///     let mut byte_counts = vec![0; subscribers.len()];
///     let mut audience = Audience::new();
///     for (number, subscriber) in subscribers.into_iter().enumerate() {
///         audience.join(subscriber, number).expect("all follow the same execution");
///     }
///     while !audience.is_empty() {
///         audience.wait(Duration::from_secs(1));
///         audience.drain(64, |number, delivery| {
///             if let Delivery::Chunk(chunk) = delivery {
///                 byte_counts[*number] += chunk.data.len();
///             }
///         });
///     }
///     byte_counts
/// }
/// ```
pub struct Audience<S, L: Link = ThreadLink> {
    members: Vec<Member<S, L>>,
    groups: Vec<Group>,
    /// True if the groups have to be formed anew.
    is_changed: bool,
    /// True if the next call looks at the signals of all members.
    looks_at_all: bool,
    /// Number of calls until groups that have come abreast are merged.
    drains_until_merge: u32,
}

/// A subscriber and the state that its owner keeps with it.
struct Member<S, L: Link> {
    subscriber: Subscriber<L>,
    state: S,
}

/// A range of members that stand abreast.
struct Group {
    members: Range<usize>,
    /// The follower whose signals are looked at next, counted from the leader.
    looked_at: usize,
    /// True while the cursors of the followers are those of an earlier chunk.
    is_behind: bool,
}

/// The reason why a subscriber was not taken into an audience.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinFault {
    /// It follows another execution than the members, or reads another ring.
    OtherExecution,
    /// The audience has [`AUDIENCE_MEMBERS_MAX`] members.
    Full,
}

/// A subscriber that was not taken into an audience, with its state and the reason.
pub struct JoinError<S, L: Link = ThreadLink> {
    /// The reason.
    pub fault: JoinFault,
    /// The subscriber, which goes on alone.
    pub subscriber: Subscriber<L>,
    /// Its state.
    pub state: S,
}

impl<S> Audience<S> {
    /// Creates an audience without members.
    pub fn new() -> Audience<S> {
        Audience::default()
    }

    /// Calls `take` with every delivery that is due at this moment, up to `count_max` for each
    /// member. Returns the number of deliveries. Never blocks.
    ///
    /// Chunks come in the order of the log, each to all members abreast before the next one. If
    /// `take` panics, the chunk counts as given to all of them.
    #[inline]
    pub fn drain(&mut self, count_max: usize, mut take: impl FnMut(&mut S, Delivery<'_>)) -> usize {
        self.try_drain(count_max, |state, delivery| {
            let Ok(delivery): Result<_, Infallible> = delivery;
            take(state, delivery)
        })
    }

    /// Waits until something may be due to a member, at most for `timeout`. Polls for a little,
    /// then sleeps. Returns false if nothing came, or if no member is left.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        self.wait_until(Clock::now().saturating_add(timeout))
    }
}

impl<S, L: Link> Audience<S, L> {
    /// Number of members. A member that was given its end is none any more.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// True if no member is left.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The execution that the members follow; `None` without members.
    pub fn execution(&self) -> Option<ExecutionId> {
        self.members.first().map(|member| member.subscriber.link.shared().id)
    }

    /// Returns the members, in no particular order.
    pub fn members(&self) -> impl Iterator<Item = (SubscriberId, &S)> {
        self.members.iter().map(|member| (member.subscriber.id, &member.state))
    }

    /// Returns the subscribers, in no particular order.
    pub(crate) fn subscribers(&self) -> impl Iterator<Item = &Subscriber<L>> {
        self.members.iter().map(|member| &member.subscriber)
    }

    /// Adds a member, which goes on where it stands.
    ///
    /// # Errors
    /// [`JoinError`] with the subscriber, if it follows another execution, or if there is no room.
    pub fn join(
        &mut self,
        subscriber: Subscriber<L>,
        state: S,
    ) -> Result<(), Box<JoinError<S, L>>> {
        let fault = match self.members.first() {
            _ if self.members.len() == AUDIENCE_MEMBERS_MAX => Some(JoinFault::Full),
            Some(first) if !first.subscriber.link.reads_like(&subscriber.link) => {
                Some(JoinFault::OtherExecution)
            }
            _ => None,
        };
        if let Some(fault) = fault {
            return Err(Box::new(JoinError { fault, subscriber, state }));
        }
        let end = self.members.len();
        self.members.push(Member { subscriber, state });
        self.groups.push(Group::of(end..end + 1));
        self.is_changed = true;
        Ok(())
    }

    /// Removes a member, which goes on alone where it stands. Returns `None` if it is no member.
    pub fn leave(&mut self, id: SubscriberId) -> Option<(Subscriber<L>, S)> {
        self.catch_up();
        let at = self.members.iter().position(|member| member.subscriber.id == id)?;
        let Member { subscriber, state } = self.members.swap_remove(at);
        self.form_groups();
        Some((subscriber, state))
    }

    /// Does the work of [`Audience::drain`]. A fault is a member's last delivery.
    #[inline]
    pub(crate) fn try_drain(
        &mut self,
        count_max: usize,
        mut take: impl FnMut(&mut S, Result<Delivery<'_>, L::Fault>),
    ) -> usize {
        if self.is_changed {
            self.catch_up();
            self.form_groups();
        }
        let looks_at_all = std::mem::take(&mut self.looks_at_all);
        let mut count = 0;
        for group in &mut self.groups {
            let members = &mut self.members[group.members.clone()];
            let terms = (count_max, looks_at_all);
            count += group.drain(members, terms, &mut take, &mut self.is_changed);
        }
        if self.is_changed || self.is_merge_due() {
            self.form_groups();
        }
        count
    }

    /// True from time to time, if there are groups to merge.
    #[inline]
    fn is_merge_due(&mut self) -> bool {
        if self.groups.len() < 2 {
            return false;
        }
        self.drains_until_merge = self.drains_until_merge.checked_sub(1).unwrap_or(MERGE_INTERVAL);
        self.drains_until_merge == 0
    }

    /// Does the work of [`Audience::wait`].
    pub(crate) fn wait_until(&mut self, deadline: Instant) -> bool {
        self.catch_up();
        let members = self.members.iter_mut();
        let mut members: SmallVec<[&mut Subscriber<L>; 16]> =
            members.map(|member| &mut member.subscriber).collect();
        if members.is_empty() {
            return false;
        }
        let has_come = wait_among(&mut members, deadline);
        self.looks_at_all |= has_come;
        has_come
    }

    /// Gives followers the cursor of their leader, after a panic of a closure.
    fn catch_up(&mut self) {
        for group in &mut self.groups {
            let members = &mut self.members[group.members.clone()];
            let (lead, followers) = members.split_first_mut().expect("no group is empty");
            group.settle(&lead.subscriber, followers);
        }
    }

    /// Divides the members into groups, without those that were given their end.
    fn form_groups(&mut self) {
        self.groups.clear();
        self.members.retain(|member| !member.subscriber.is_over());
        let mut from = 0;
        while from < self.members.len() {
            let mut until = from + 1;
            for at in from + 1..self.members.len() {
                let [lead, other] = self.members.get_disjoint_mut([from, at]).expect("two of them");
                if other.subscriber.is_abreast(&lead.subscriber) {
                    self.members.swap(until, at);
                    until += 1;
                }
            }
            self.groups.push(Group::of(from..until));
            from = until;
        }
        self.is_changed = false;
    }

    /// Checks every invariant. It is for tests.
    ///
    /// # Panics
    /// If one does not hold.
    #[cfg(test)]
    pub(crate) fn audit(&self) {
        let mut from = 0;
        for group in &self.groups {
            assert!(group.members.start == from && !group.members.is_empty()); // U2
            assert!(!group.is_behind);
            from = group.members.end;
            let members = &self.members[group.members.clone()];
            for member in members {
                let lead = &members[0].subscriber;
                assert!(members.len() == 1 || member.subscriber.is_abreast(lead)); // U1
                assert!(member.subscriber.link.reads_like(&lead.link)); // U3
            }
        }
        assert!(from == self.members.len()); // U2
    }
}

impl Group {
    fn of(members: Range<usize>) -> Group {
        Group { members, looked_at: 0, is_behind: false }
    }

    /// Gives the members of one group what is due to them. Sets `is_changed` if they may no longer
    /// stand abreast, or if one has ended.
    #[inline]
    fn drain<S, L: Link>(
        &mut self,
        members: &mut [Member<S, L>],
        (count_max, looks_at_all): (usize, bool),
        take: &mut impl FnMut(&mut S, Result<Delivery<'_>, L::Fault>),
        is_changed: &mut bool,
    ) -> usize {
        let (lead, followers) = members.split_first_mut().expect("no group is empty");
        if L::IS_FOREIGN {
            lead.subscriber.show_cursor(); // The execution may have ended since the last call.
        }
        let chunks_expected = lead.subscriber.link.shared().control.chunks_expected();
        let (mut rounds, mut others) = (0, 0);
        while rounds < count_max {
            let ready = match lead.subscriber.next_at_once() {
                Some(Ok(descriptor)) => Ok(Some(Ready::Chunk(descriptor))),
                Some(Err(IsQuiet)) => break,
                None => {
                    self.settle(&lead.subscriber, followers); // Whatever comes may be the leader's.
                    lead.subscriber.advance()
                }
            };
            let Ok(Some(Ready::Chunk(descriptor))) = ready else {
                // It may have passed chunks that no member wants.
                self.is_behind = matches!(ready, Ok(None));
                *is_changed |= !self.is_behind;
                others = take_other(lead, ready, count_max - rounds, take);
                break;
            };
            let Ok(delivery) = lead.subscriber.chunk(&descriptor, chunks_expected) else {
                *is_changed = true;
                break_all(lead, followers, take);
                return (rounds + 1) * (1 + followers.len());
            };
            self.is_behind = true;
            take(&mut lead.state, Ok(delivery));
            for follower in &mut *followers {
                probe!(receive, descriptor.seq, descriptor.length);
                take(&mut follower.state, Ok(delivery));
            }
            rounds += 1;
        }
        let mut count = rounds * (1 + followers.len()) + others;
        if others == 0 {
            self.settle(&lead.subscriber, followers);
        }
        lead.subscriber.show_cursor();
        let has_given = rounds > 0 || others > 0;
        let looks = match looks_at_all || has_given {
            true => 0..followers.len(),
            false => self.next_looks(followers.len()),
        };
        for follower in &mut followers[looks] {
            follower.subscriber.show_cursor();
            if others > 0 || !follower.subscriber.is_quiet() {
                let was_changed = std::mem::replace(is_changed, true); // In case of a panic.
                count += take_alone(follower, count_max - rounds, take);
                let (follower, lead) = (&follower.subscriber, &lead.subscriber);
                *is_changed = was_changed || follower.is_over() || follower.cursor != lead.cursor;
            }
        }
        count
    }

    /// Gives followers the cursor of their leader, which they have been given everything before.
    #[inline]
    fn settle<S, L: Link>(&mut self, lead: &Subscriber<L>, followers: &mut [Member<S, L>]) {
        if std::mem::take(&mut self.is_behind) {
            followers.iter_mut().for_each(|follower| follower.subscriber.take_over(lead));
        }
    }

    /// Returns the followers whose signals an idle call looks at.
    fn next_looks(&mut self, follower_count: usize) -> Range<usize> {
        let from = if self.looked_at < follower_count { self.looked_at } else { 0 };
        let until = (from + IDLE_LOOKS).min(follower_count);
        self.looked_at = until;
        from..until
    }
}

/// Gives a leader something other than a chunk, and what comes behind it. Its followers find their
/// own. Returns the number of deliveries, at most `count_max`.
#[inline(never)]
fn take_other<S, L: Link>(
    lead: &mut Member<S, L>,
    ready: Result<Option<Ready>, L::Fault>,
    count_max: usize,
    take: &mut impl FnMut(&mut S, Result<Delivery<'_>, L::Fault>),
) -> usize {
    let delivery = match ready {
        Ok(Some(ready)) => lead.subscriber.render(ready),
        Ok(None) => return 0,
        Err(fault) => Err(fault),
    };
    take(&mut lead.state, delivery);
    1 + take_alone(lead, count_max - 1, take)
}

/// Gives one member what is due to it alone. Returns the number of deliveries.
#[inline(never)]
fn take_alone<S, L: Link>(
    member: &mut Member<S, L>,
    count_max: usize,
    take: &mut impl FnMut(&mut S, Result<Delivery<'_>, L::Fault>),
) -> usize {
    let Member { subscriber, state } = member;
    match subscriber.try_drain(count_max, |delivery| take(state, Ok(delivery))) {
        Ok(count) => count,
        Err(fault) => {
            take(state, Err(fault));
            1
        }
    }
}

/// Ends all members of a group with the flaw that their leader has found in a chunk.
#[cold]
fn break_all<S, L: Link>(
    lead: &mut Member<S, L>,
    followers: &mut [Member<S, L>],
    take: &mut impl FnMut(&mut S, Result<Delivery<'_>, L::Fault>),
) {
    for member in std::iter::once(lead).chain(followers) {
        let fault = member.subscriber.broken(Flaw::Kind);
        take(&mut member.state, Err(fault));
    }
}

impl<S, L: Link> Default for Audience<S, L> {
    fn default() -> Audience<S, L> {
        let (members, groups) = (Vec::new(), Vec::new());
        Audience { members, groups, is_changed: false, looks_at_all: false, drains_until_merge: 0 }
    }
}

impl<S, L: Link> fmt::Debug for Audience<S, L> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subscribers = self.members.iter().map(|member| &member.subscriber);
        out.debug_list().entries(subscribers).finish()
    }
}

impl fmt::Display for JoinFault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinFault::OtherExecution => {
                out.write_str("the subscriber follows another execution than the members")
            }
            JoinFault::Full => write!(out, "the audience has {AUDIENCE_MEMBERS_MAX} members"),
        }
    }
}

impl<S, L: Link> fmt::Display for JoinError<S, L> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fault.fmt(out)
    }
}

impl<S, L: Link> fmt::Debug for JoinError<S, L> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "JoinError({:?}, {:?})", self.fault, self.subscriber)
    }
}

impl<S, L: Link> std::error::Error for JoinError<S, L> {}

#[cfg(test)]
#[path = "audience_tests.rs"]
mod tests;
