//! Sleep of the subscribers of one thread, until something may have come for one of them.

use smallvec::SmallVec;

use super::Subscriber;
use super::link::Link;
use crate::base::Instant;
use crate::limits;
use crate::memory::atomic::spin_hint;
use crate::memory::{WaitOutcome, futex};
use crate::reactor::Clock;

/// Blocks until something may have come for one of `subscribers`, or a shard may be gone. All read
/// the same ring. Returns false if the deadline passed first.
pub(super) fn wait_among<L: Link>(
    subscribers: &mut [&mut Subscriber<L>],
    deadline: Instant,
) -> bool {
    let is_torn = |all: &mut [&mut Subscriber<L>]| {
        all.iter_mut().fold(false, |any, one| any | std::mem::take(&mut one.is_torn))
    };
    if L::IS_FOREIGN && is_torn(subscribers) {
        std::thread::sleep(limits::DOOR_LOOK_INTERVAL);
        return true;
    }
    if spin(subscribers, deadline) {
        return true;
    }
    subscribers.iter().for_each(|subscriber| subscriber.link.fall_asleep());
    let found = loop {
        let links = subscribers.iter().map(|subscriber| &subscriber.link);
        let head = &links.clone().next().expect("somebody waits").shared().reader;
        let mut words: SmallVec<[_; 16]> = SmallVec::new();
        words.push((head.head_word(), head.head_seq() as u32));
        words.extend(links.clone().map(|link| (link.epoch_word(), link.epoch() as u32)));
        if have_news(subscribers) || !links.clone().all(Link::is_up) {
            break true;
        }
        let until = links.map(|link| link.sleep_until(deadline)).min().unwrap_or(deadline);
        if futex::wait_any(&words, until) == WaitOutcome::Woken {
            // If another process wakes before its chunk can be seen, it will be seen soon.
            let is_news =
                if L::IS_FOREIGN { spin(subscribers, deadline) } else { have_news(subscribers) };
            if is_news {
                break true;
            }
        }
        if Clock::now() >= deadline {
            break have_news(subscribers);
        }
    };
    subscribers.iter().for_each(|subscriber| subscriber.link.wake_up());
    found
}

/// Polls for a while. Returns true if something has come for one of them. Other threads of this
/// core go on meanwhile: readers that one chunk has woken would otherwise wait for each other's
/// polls.
fn spin<L: Link>(subscribers: &[&mut Subscriber<L>], deadline: Instant) -> bool {
    let until = (Clock::now() + limits::SPIN_DEFAULT).min(deadline);
    loop {
        for _ in 0..limits::POLLS_PER_YIELD {
            if have_news(subscribers) {
                return true;
            }
            spin_hint();
        }
        if Clock::now() >= until {
            return false;
        }
        std::thread::yield_now();
    }
}

/// True if a chunk, a gap or a knock has come for one of them. Those that stand where the first one
/// stands need no look at the ring.
#[inline]
fn have_news<L: Link>(subscribers: &[&mut Subscriber<L>]) -> bool {
    let Some((first, others)) = subscribers.split_first() else { return false };
    let has_news = |other: &&mut Subscriber<L>| match other.cursor == first.cursor {
        true => other.link.epoch() != other.epoch || other.cursor.next_seq < other.granted_seq,
        false => other.has_news(),
    };
    first.has_news() || others.iter().any(has_news)
}
