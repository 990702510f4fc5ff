//! One subscription as its workers see it: its streams, its wakes, and the lease of a worker.
//!
//! This is a state machine without a clock, a socket or a disk. Streams that have moved go in
//! ([`Subscription::note_stream`]), and so do requests. [`Subscription::advance`] then returns the
//! thing to send. Times are µs since 1970, because they are kept across restarts.
//!
//! Invariants:
//! - S1: no wake begins while there is another one.
//! - S2: each wake has a larger generation than those before.
//! - S3: the position that was acknowledged of a stream never goes back, unless another stream has
//!   taken its path.

use std::collections::{BTreeMap, BTreeSet};

use crate::base::ExecutionId;
use crate::endpoint::{Acks, WakeBy, Wanted};
use crate::limits;
use crate::server::durable::Seen;
use crate::wire::durable::Offset;
use crate::wire::subscriptions::pattern_matches;

/// A stream of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    /// True if a client has named it.
    pub is_explicit: bool,
    /// True if the pattern matches it.
    pub is_glob: bool,
    /// The position behind everything that was processed.
    pub acked: u64,
    /// The position behind everything that is there.
    pub tail: u64,
    /// The execution of the stream; `None`: there is no stream yet.
    pub execution: Option<ExecutionId>,
}

/// A wake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wake {
    pub id: Box<str>,
    pub stage: Stage,
    /// The end of the lease, or the time of the next attempt, in µs since 1970.
    pub deadline_us: Option<u64>,
    /// The ends of the streams at its beginning.
    pub snapshot: Vec<(Box<str>, u64)>,
}

/// The stage of a wake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The webhook is under way.
    Sending,
    /// The webhook was accepted, and calls back.
    Awaiting,
    /// The webhook has failed, and is repeated.
    Retrying,
    /// Workers were told in the stream of wakes. None has claimed.
    Offered,
    /// The worker of this name has claimed.
    Held(Box<str>),
}

/// A subscription. See the module's text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Subscription {
    /// Its properties, without the streams.
    pub wanted: Wanted,
    pub links: BTreeMap<Box<str>, Link>,
    /// The number of the last wake.
    pub generation: u64,
    pub wake: Option<Wake>,
    /// Number of attempts that have failed, one after the other.
    pub failures: u32,
    /// The paths of the links that have changed since [`Subscription::take_changed`].
    changed: BTreeSet<Box<str>>,
    /// Bytes of the links on the disk, about.
    link_bytes: usize,
}

/// Bytes of a link on the disk besides its path, about.
const LINK_BYTES: usize = 72;

/// A thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Send the webhook.
    Send,
    /// Tell workers that this stream has more.
    Offer(Box<str>),
}

/// The reason why nobody can claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ClaimError {
    /// The worker of this name has it.
    Held(Box<str>),
    /// Nothing has to be done.
    Nothing,
}

/// A stream cannot be added: there are too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooManyLinks;

/// A position cannot be acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InvalidOffset;

/// The result of a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivered {
    /// The receiver has processed everything.
    Done,
    /// The receiver calls back.
    Accepted,
    /// It has failed. The number is random.
    Failed(u64),
}

/// The result of [`Subscription::note_stream`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Noted {
    /// The link has changed, and has to be kept.
    Changed,
    /// Nothing has changed but the end of the stream.
    Same,
}

impl Noted {
    fn of(has_changed: bool) -> Noted {
        if has_changed { Noted::Changed } else { Noted::Same }
    }
}

impl Link {
    /// True if there is something to process.
    pub fn is_pending(&self) -> bool {
        self.tail > self.acked
    }
}

impl Subscription {
    /// Creates a subscription. It begins at the ends of the streams that are there.
    ///
    /// # Errors
    /// [`TooManyLinks`].
    pub fn new(
        mut wanted: Wanted,
        matching: Vec<(Box<str>, Seen)>,
        named: Vec<(Box<str>, Option<Seen>)>,
    ) -> Result<Subscription, TooManyLinks> {
        wanted.streams = Vec::new();
        let mut subscription = Subscription { wanted, ..Subscription::default() };
        for (path, seen) in matching {
            if subscription.is_matching(&path) {
                let link = subscription.link(&path, Some(seen), seen.tail)?;
                link.is_glob = true;
            }
        }
        for (path, seen) in named {
            subscription.link_explicit(&path, seen)?;
        }
        Ok(subscription)
    }

    /// Returns a subscription of before a restart. Its streams are noted later.
    pub fn restored(
        wanted: Wanted,
        links: BTreeMap<Box<str>, Link>,
        (generation, failures): (u64, u32),
        wake: Option<Wake>,
    ) -> Subscription {
        let link_bytes = links.keys().map(|path| path.len() + LINK_BYTES).sum();
        let changed = BTreeSet::new();
        Subscription { wanted, links, generation, wake, failures, changed, link_bytes }
    }

    /// True if the pattern matches a path. A stream of wakes is never its own subject.
    pub fn is_matching(&self, path: &str) -> bool {
        let is_own = matches!(&self.wanted.delivery, WakeBy::Stream(own) if **own == *path);
        let pattern = self.wanted.pattern.as_deref();
        !is_own && pattern.is_some_and(|pattern| pattern_matches(pattern, path))
    }

    /// Returns the link of a path, which may be new.
    fn link(
        &mut self,
        path: &str,
        seen: Option<Seen>,
        acked: u64,
    ) -> Result<&mut Link, TooManyLinks> {
        if !self.links.contains_key(path) {
            let bytes = self.link_bytes + path.len() + LINK_BYTES;
            if bytes > limits::SUBSCRIPTION_LINKS_BYTES_MAX {
                return Err(TooManyLinks);
            }
            self.link_bytes = bytes;
        }
        let is_glob = self.is_matching(path);
        self.changed.insert(path.into());
        Ok(self.links.entry(path.into()).or_insert_with(|| Link {
            is_explicit: false,
            is_glob,
            acked,
            tail: seen.map_or(0, |seen| seen.tail),
            execution: seen.map(|seen| seen.execution),
        }))
    }

    fn remove_link(&mut self, path: &str) {
        if self.links.remove(path).is_some() {
            self.link_bytes -= path.len() + LINK_BYTES;
        }
    }

    /// Adds a stream that a client has named. It begins at the end of what is there.
    ///
    /// # Errors
    /// [`TooManyLinks`]; nothing has changed.
    pub fn link_explicit(&mut self, path: &str, seen: Option<Seen>) -> Result<(), TooManyLinks> {
        let link = self.link(path, seen, seen.map_or(0, |seen| seen.tail))?;
        link.is_explicit = true;
        Ok(())
    }

    /// Removes a stream that a client has named. It stays if the pattern matches it.
    pub fn unlink(&mut self, path: &str) {
        let Some(link) = self.links.get_mut(path) else { return };
        self.changed.insert(path.into());
        link.is_explicit = false;
        if !link.is_glob {
            self.remove_link(path);
        }
    }

    /// Notes a stream as it is now; `None`: it is gone.
    pub fn note_stream(&mut self, path: &str, seen: Option<Seen>) -> Noted {
        let Some(seen) = seen else {
            let is_gone = self.links.get(path).is_some_and(|link| link.execution.is_some());
            if is_gone {
                self.remove_link(path);
                self.changed.insert(path.into());
            }
            return Noted::of(is_gone);
        };
        if let Some(link) = self.links.get_mut(path) {
            let is_other = link.execution != Some(seen.execution);
            if is_other && link.execution.is_some() {
                link.acked = seen.origin;
            }
            link.execution = Some(seen.execution);
            link.tail = seen.tail;
            if is_other {
                self.changed.insert(path.into());
            }
            return Noted::of(is_other);
        }
        // It was not there when the subscription was created, so all of it is new.
        let is_wanted = seen.tail > seen.origin && self.is_matching(path);
        Noted::of(is_wanted && self.link(path, Some(seen), seen.origin).is_ok())
    }

    /// Returns the paths of the links that have changed.
    pub fn take_changed(&mut self) -> BTreeSet<Box<str>> {
        std::mem::take(&mut self.changed)
    }

    /// Notes links that are not kept.
    pub fn note_changed(&mut self, mut paths: BTreeSet<Box<str>>) {
        self.changed.append(&mut paths);
    }

    /// The first stream with something to process.
    pub fn first_pending(&self) -> Option<&str> {
        self.links.iter().find(|(_, link)| link.is_pending()).map(|(path, _)| &**path)
    }

    /// True if a stream has something to process.
    pub fn is_pending(&self, path: &str) -> bool {
        self.links.get(path).is_some_and(Link::is_pending)
    }

    /// True if the last attempt of a webhook has failed.
    pub fn has_failed(&self) -> bool {
        self.failures > 0
    }

    /// Returns the time at which [`Subscription::advance`] has something to do.
    pub fn deadline_us(&self) -> Option<u64> {
        self.wake.as_ref()?.deadline_us
    }

    fn lease_end(&self, now_us: u64) -> Option<u64> {
        Some(now_us + self.wanted.lease_ms * 1_000)
    }

    /// Ends a lease that has expired, repeats a webhook, and begins a wake if there is something to
    /// process. `name` names the wake of a generation.
    pub fn advance(&mut self, now_us: u64, name: impl Fn(u64) -> Box<str>) -> Option<Act> {
        let is_due = self.deadline_us().is_some_and(|deadline_us| deadline_us <= now_us);
        if is_due {
            let wake = self.wake.as_mut().expect("it has a deadline");
            match wake.stage {
                Stage::Retrying => return self.send_again(now_us),
                Stage::Offered => {
                    wake.deadline_us = None;
                    return self.wake_again(now_us);
                }
                _ => self.wake = None,
            }
        }
        if self.wake.is_some() {
            return None; // S1
        }
        let pending = Box::from(self.first_pending()?);
        self.generation += 1; // S2
        let id = name(self.generation);
        let snapshot = self.snapshot();
        let (stage, deadline_us, act) = match self.wanted.delivery {
            WakeBy::Webhook(_) => (Stage::Sending, self.lease_end(now_us), Act::Send),
            WakeBy::Stream(_) => (Stage::Offered, None, Act::Offer(pending)),
        };
        self.wake = Some(Wake { id, stage, deadline_us, snapshot });
        Some(act)
    }

    /// Sends the webhook of this wake again.
    fn send_again(&mut self, now_us: u64) -> Option<Act> {
        let (deadline_us, snapshot) = (self.lease_end(now_us), self.snapshot());
        let wake = self.wake.as_mut()?;
        *wake = Wake { id: wake.id.clone(), stage: Stage::Sending, deadline_us, snapshot };
        Some(Act::Send)
    }

    /// Tells workers again about a wake of before a restart, if that may not have reached them.
    pub fn wake_again(&mut self, now_us: u64) -> Option<Act> {
        match self.wake.as_ref()?.stage {
            Stage::Sending => self.send_again(now_us),
            Stage::Offered => Some(Act::Offer(self.first_pending()?.into())),
            Stage::Awaiting | Stage::Retrying | Stage::Held(_) => None,
        }
    }

    /// Tells workers about the present wake again after some time, because they were not reached.
    pub fn offer_later(&mut self, now_us: u64) {
        let delay_us = limits::WEBHOOK_RETRY_MS.0 * 1_000;
        if let Some(wake) = self.wake.as_mut().filter(|wake| wake.stage == Stage::Offered) {
            wake.deadline_us = Some(now_us + delay_us);
        }
    }

    fn snapshot(&self) -> Vec<(Box<str>, u64)> {
        self.links.iter().map(|(path, link)| (path.clone(), link.tail)).collect()
    }

    /// Gives the work to a worker. A wake may begin for that.
    ///
    /// # Errors
    /// [`ClaimError`]; nothing has changed.
    pub fn claim(
        &mut self,
        worker: &str,
        now_us: u64,
        name: impl Fn(u64) -> Box<str>,
    ) -> Result<(), ClaimError> {
        if let Some(Wake { stage: Stage::Held(holder), .. }) = &self.wake {
            return Err(ClaimError::Held(holder.clone()));
        }
        if self.first_pending().is_none() {
            return Err(ClaimError::Nothing);
        }
        if self.wake.is_none() {
            let _ = self.advance(now_us, name); // The worker is told by the answer.
        }
        let deadline_us = self.lease_end(now_us);
        let wake = self.wake.as_mut().expect("one has just begun");
        wake.stage = Stage::Held(worker.into());
        wake.deadline_us = deadline_us;
        Ok(())
    }

    /// True if a request is about the present wake. A wake that nobody has taken has no requests.
    pub fn is_present(&self, generation_of_token: u64, acks: &Acks) -> bool {
        let wake = self.wake.as_ref().filter(|wake| wake.stage != Stage::Offered);
        let is_same = acks.generation == self.generation && generation_of_token == self.generation;
        is_same && wake.is_some_and(|wake| wake.id == acks.wake_id)
    }

    /// Acknowledges positions. The lease begins again, or ends.
    ///
    /// # Errors
    /// [`InvalidOffset`]; nothing has changed.
    pub fn acknowledge(&mut self, acks: &Acks, now_us: u64) -> Result<(), InvalidOffset> {
        let mut positions = Vec::with_capacity(acks.acks.len());
        for (path, offset) in &acks.acks {
            let link = self.links.get(path).ok_or(InvalidOffset)?;
            let Offset(position) = offset.parse().map_err(|_| InvalidOffset)?;
            if !(link.acked..=link.tail).contains(&position) {
                return Err(InvalidOffset); // S3
            }
            positions.push((path, position));
        }
        for (path, position) in positions {
            let link = self.links.get_mut(path).expect("it was just there");
            link.acked = link.acked.max(position);
            self.changed.insert(path.clone());
        }
        self.failures = 0;
        let deadline_us = self.lease_end(now_us);
        if acks.is_done {
            self.wake = None;
        } else if let Some(wake) = &mut self.wake {
            wake.deadline_us = deadline_us;
            if !matches!(wake.stage, Stage::Held(_)) {
                wake.stage = Stage::Awaiting;
            }
        }
        Ok(())
    }

    /// Ends the present wake.
    pub fn release(&mut self) {
        self.wake = None;
    }

    /// Notes the result of the webhook of a wake.
    pub fn note_delivered(&mut self, wake_id: &str, delivered: Delivered, now_us: u64) {
        let Some(wake) = self.wake.as_mut().filter(|wake| *wake.id == *wake_id) else { return };
        if wake.stage != Stage::Sending {
            return; // It has called back already.
        }
        match delivered {
            Delivered::Done => {
                for (path, tail) in std::mem::take(&mut wake.snapshot) {
                    if let Some(link) = self.links.get_mut(&path).filter(|link| link.is_pending()) {
                        self.changed.insert(path);
                        link.acked = link.acked.max(tail.min(link.tail));
                    }
                }
                self.wake = None;
                self.failures = 0;
            }
            Delivered::Accepted => {
                wake.stage = Stage::Awaiting;
                self.failures = 0;
            }
            Delivered::Failed(random) => {
                wake.stage = Stage::Retrying;
                wake.deadline_us = Some(now_us + retry_ms(self.failures, random) * 1_000);
                self.failures = self.failures.saturating_add(1);
            }
        }
    }
}

/// Returns the delay before the next attempt: twice the last one up to a limit, and up to a fifth
/// more or less.
fn retry_ms(failures: u32, random: u64) -> u64 {
    let (first, most) = limits::WEBHOOK_RETRY_MS;
    let delay = first.checked_shl(failures.min(32)).map_or(most, |delay| delay.min(most));
    delay - delay / 5 + random % (2 * (delay / 5) + 1)
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
