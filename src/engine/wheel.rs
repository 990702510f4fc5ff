//! Timer wheel: which deadline comes next, for every timer of one shard.
//!
//! Owned by one shard thread. Reads no clock (`now` is an argument), calls nobody back, allocates
//! only in [`Wheel::new`]. A tick is 2^14 ns. A timer's *due tick* is its deadline rounded up, so
//! it never fires early and at most one tick late.
//!
//! Nine levels of 64 slots cover all 2^50 ticks that 64 bits of nanoseconds hold, so no deadline
//! is too far. A timer stands on the level of the highest base-64 digit in which its due tick
//! differs from `elapsed`, in the slot of its own digit there. Two things follow: a lower level
//! always comes before a higher one, and moving `elapsed` forward to the next due tick, however
//! far, empties exactly one slot into the levels below. So a jump of hours costs what it finds.
//!
//! What it costs: arming and cancelling are O(1). Firing is O(1) per timer plus at most one move
//! per level during its life. [`Wheel::next_deadline`] is a load: a shard that polls asks several
//! wheels in every turn, so the answer is remembered until its owner fires or is cancelled. It is
//! found again in O(1) while the next timer is in a slot of one tick, or in one whose timers were
//! armed in order of their deadlines; in a mixed slot the minimum is remembered, too, and found
//! again by a scan of that slot when its owner was cancelled.
//! A deadline that only ever moves later (inactivity) is therefore best not cancelled: let it
//! fire, look at the last activity, and arm the rest.
//!
//! Invariants ([`Wheel::audit`], in `wheel/audit.rs`, checks them after every simulator step):
//! - W1: no armed timer has a due tick before `elapsed`.
//! - W2: a timer stands where `place_of` says, and nowhere else.
//! - W3: a bit of an occupancy map is set if and only if its slot or level holds a timer.
//! - W4: within a slot, timers of one tick stand in the order in which they were armed.
//! - W5: armed timers and free nodes together are the capacity.
//! - W6: the due tick that is remembered as the first is the first.
//!
//! The tests are in `wheel/tests.rs`: a sorted map is the model of a million random operations.

#![forbid(unsafe_code)]

use std::cell::Cell;
use std::fmt;
use std::num::NonZeroU64;

use crate::base::Instant;
use crate::base::planted::{Planted, planted};
use crate::limits::WHEEL_TICK_SHIFT;

mod audit;
#[cfg(test)]
mod tests;

/// Bits of one base-64 digit of a tick.
const DIGIT_BITS: u32 = 6;
const SLOTS_PER_LEVEL: usize = 1 << DIGIT_BITS;
const LEVELS: usize = 9;
/// The due tick of [`Instant::FAR`] and of what rounds up to it.
const TICK_LAST: u64 = 1 << (u64::BITS - WHEEL_TICK_SHIFT);
/// Ends a list.
const NOBODY: u32 = u32::MAX;
/// This minimum has to be looked for.
const STALE: u64 = u64::MAX;
/// No timer is armed, so that none is first.
const NEVER: u64 = u64::MAX - 1;

const _: () = {
    assert!(TICK_LAST < 1 << (DIGIT_BITS * LEVELS as u32)); // The levels reach every tick.
    assert!(TICK_LAST < NEVER); // So that no tick is taken for a word.
    assert!(TICK_LAST >= 1 << (DIGIT_BITS * (LEVELS as u32 - 1))); // None of them is idle.
    assert!(SLOTS_PER_LEVEL == u64::BITS as usize); // One word says which slots are occupied.
    assert!(LEVELS <= u16::BITS as usize); // And one which levels are.
};

/// One armed timer of one [`Wheel`]. Once that timer fired or was cancelled it names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerId {
    index: u32,
    /// The number of the arming, counted over the wheel's life: 64 bits never come round.
    generation: NonZeroU64,
}

/// Every timer that the wheel has memory for is armed: cancel one, or refuse the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// How many timers the wheel was built for.
    pub capacity: u32,
}

impl fmt::Display for Full {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "all {} timers of this shard are armed", self.capacity)
    }
}

impl std::error::Error for Full {}

/// A node is armed while it has a payload; a free one is linked through `next` alone.
#[derive(Clone, Copy, Debug)]
struct Node<T> {
    due_tick: u64,
    /// Of the present arming, or the last one: 0 if there was none.
    generation: u64,
    next: u32,
    prev: u32,
    payload: Option<T>,
}

/// A list of timers in the order of their arming.
#[derive(Clone, Debug)]
struct Slot {
    head: u32,
    tail: u32,
    /// Each timer is due no earlier than the one before it, so the first is the minimum.
    sorted: bool,
    /// The earliest due tick; [`STALE`] if unknown, or if the slot is sorted.
    due_tick_min: Cell<u64>,
}

impl Slot {
    const fn empty() -> Slot {
        Slot { head: NOBODY, tail: NOBODY, sorted: true, due_tick_min: Cell::new(STALE) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    level: usize,
    slot: usize,
}

/// Timers that carry a `T` each.
///
/// # Example
/// ```
/// use std::time::Duration;
/// use streamdoor::base::Instant;
/// use streamdoor::engine::wheel::Wheel;
///
/// let start = Instant::ZERO;
/// let mut wheel = Wheel::new(16, start);
/// wheel.arm(start + Duration::from_millis(5), "block deadline").unwrap();
/// let keep_alive = wheel.arm(start + Duration::from_secs(15), "keep-alive").unwrap();
/// assert_eq!(wheel.cancel(keep_alive), Some("keep-alive"));
///
/// let due = wheel.next_deadline().unwrap();
/// assert_eq!(wheel.pop_expired(start), None);
/// assert_eq!(wheel.pop_expired(due), Some("block deadline"));
/// assert_eq!(wheel.next_deadline(), None);
/// ```
#[derive(Debug)]
pub struct Wheel<T> {
    nodes: Box<[Node<T>]>,
    free_head: u32,
    count: u32,
    /// How many timers were ever armed.
    armed_total: u64,
    /// Everything due before this tick has fired.
    elapsed: u64,
    /// The latest time that [`Wheel::pop_expired`] was told.
    now: Instant,
    /// Bit `level`: that level holds a timer.
    levels_occupied: u16,
    /// The earliest due tick of all: [`STALE`] if unknown, [`NEVER`] if nothing is armed.
    due_tick_first: Cell<u64>,
    /// Bit `slot` of word `level`: that slot holds a timer.
    slots_occupied: [u64; LEVELS],
    slots: Box<[[Slot; SLOTS_PER_LEVEL]; LEVELS]>,
}

impl<T: Copy> Wheel<T> {
    /// A wheel with memory for `capacity` timers, none armed, whose time starts at `now`.
    ///
    /// # Panics
    /// If `capacity` is `u32::MAX`.
    pub fn new(capacity: u32, now: Instant) -> Wheel<T> {
        assert!(capacity < NOBODY);
        let node = |index: u32| {
            let next = if index + 1 == capacity { NOBODY } else { index + 1 };
            Node { due_tick: 0, generation: 0, next, prev: NOBODY, payload: None }
        };
        Wheel {
            nodes: (0..capacity).map(node).collect(),
            free_head: if capacity == 0 { NOBODY } else { 0 },
            count: 0,
            armed_total: 0,
            elapsed: tick_before(now),
            now,
            levels_occupied: 0,
            due_tick_first: Cell::new(NEVER),
            slots_occupied: [0; LEVELS],
            slots: Box::new([const { [const { Slot::empty() }; SLOTS_PER_LEVEL] }; LEVELS]),
        }
    }

    /// Makes `payload` come out of [`Wheel::pop_expired`] once `deadline` has passed. O(1).
    ///
    /// A deadline that has passed already fires at the next pop, before everything due later.
    /// Whoever arms such a one for every timer popped never sees the end of the popping.
    ///
    /// # Errors
    /// [`Full`]; nothing is armed then.
    pub fn arm(&mut self, deadline: Instant, payload: T) -> Result<TimerId, Full> {
        if self.free_head == NOBODY {
            return Err(Full { capacity: self.capacity() });
        }
        let index = self.free_head;
        self.armed_total += 1;
        let generation = NonZeroU64::new(self.armed_total).expect("counts from one");
        // What has passed must not wait for the end of the tick that it is in.
        let due_tick = if deadline <= self.now { 0 } else { tick_after(deadline) };
        let node = &mut self.nodes[index as usize];
        assert!(node.payload.is_none());
        self.free_head = node.next;
        let due_tick = due_tick.max(self.elapsed);
        node.due_tick = due_tick;
        node.generation = generation.get();
        node.payload = Some(payload);
        self.count += 1;
        let first = self.due_tick_first.get();
        if due_tick < first && first != STALE {
            self.due_tick_first.set(due_tick);
        }
        self.link(index);
        Ok(TimerId { index, generation })
    }

    /// Disarms a timer and gives its payload back; `None` if it fired or was cancelled. O(1).
    pub fn cancel(&mut self, id: TimerId) -> Option<T> {
        let node = self.nodes.get(id.index as usize)?;
        if node.generation != id.generation.get() || node.payload.is_none() {
            return None;
        }
        if planted(Planted::TimerFiresAfterCancel) {
            return node.payload;
        }
        self.unlink(id.index, place_of(self.elapsed, node.due_tick));
        Some(self.release(id.index))
    }

    /// The next timer that is due at `now`: by due tick, then by arming. Call it until `None`.
    ///
    /// Timers may be armed and cancelled between two calls. A `now` before an earlier one fires
    /// nothing that it would not have fired then.
    pub fn pop_expired(&mut self, now: Instant) -> Option<T> {
        self.now = self.now.max(now);
        let now_tick = tick_before(now);
        let due_tick = self.due_tick_first();
        if due_tick > now_tick {
            // Near deadlines get fine slots only if `elapsed` keeps up with the time.
            self.advance(now_tick.max(self.elapsed));
            return None;
        }
        self.advance(due_tick);
        let place = place_of(self.elapsed, due_tick);
        assert!(place.level == 0);
        let index = self.slots[0][place.slot].head;
        assert!(self.nodes[index as usize].due_tick == due_tick);
        self.unlink(index, place);
        Some(self.release(index))
    }

    /// The moment from which on [`Wheel::pop_expired`] gives the next timer, which is the end of
    /// the tick that its deadline is in; `None` if nothing is armed.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        let due_tick = self.due_tick_first();
        (due_tick != NEVER).then(|| tick_start(due_tick))
    }

    /// How many timers are armed.
    pub fn len(&self) -> u32 {
        self.count
    }

    /// Whether no timer is armed.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many timers can be armed.
    pub fn capacity(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// The earliest due tick of all, or [`NEVER`].
    #[inline]
    fn due_tick_first(&self) -> u64 {
        let due_tick = self.due_tick_first.get();
        if due_tick != STALE {
            return due_tick;
        }
        let due_tick = self.first_place().map_or(NEVER, |place| self.due_tick_min(place));
        self.due_tick_first.set(due_tick);
        due_tick
    }

    /// Where the timer that is due next stands: a lower level always comes first.
    fn first_place(&self) -> Option<Place> {
        if self.levels_occupied == 0 {
            return None;
        }
        let level = self.levels_occupied.trailing_zeros() as usize;
        let slot = self.slots_occupied[level].trailing_zeros() as usize;
        Some(Place { level, slot })
    }

    /// The earliest due tick in an occupied slot.
    fn due_tick_min(&self, place: Place) -> u64 {
        let slot = &self.slots[place.level][place.slot];
        if slot.sorted {
            return self.nodes[slot.head as usize].due_tick;
        }
        if slot.due_tick_min.get() == STALE {
            let mut index = slot.head;
            let mut due_tick_min = STALE;
            while index != NOBODY {
                let node = &self.nodes[index as usize];
                due_tick_min = due_tick_min.min(node.due_tick);
                index = node.next;
            }
            slot.due_tick_min.set(due_tick_min);
        }
        slot.due_tick_min.get()
    }

    /// Moves `elapsed` to `tick`, before which nothing may be due.
    ///
    /// Of the level on which the two differ, one slot has `tick`'s digit: its timers now agree
    /// with `elapsed` in that digit and go down. All levels below are empty then, because what
    /// stands there is due before `tick`; all above are not concerned.
    fn advance(&mut self, tick: u64) {
        assert!(tick >= self.elapsed);
        let place = place_of(self.elapsed, tick);
        self.elapsed = tick;
        if place.level == 0 || self.slots_occupied[place.level] >> place.slot & 1 == 0 {
            return;
        }
        let mut index = self.slots[place.level][place.slot].head;
        self.clear(place);
        while index != NOBODY {
            let next = self.nodes[index as usize].next;
            if planted(Planted::CascadeSkipsSlot) && next == NOBODY {
                return;
            }
            self.link(index);
            index = next;
        }
    }

    /// Puts a node whose due tick is set at the end of the slot that it belongs to.
    fn link(&mut self, index: u32) {
        let due_tick = self.nodes[index as usize].due_tick;
        let place = place_of(self.elapsed, due_tick);
        let slot = &mut self.slots[place.level][place.slot];
        let tail = slot.tail;
        if tail == NOBODY {
            slot.head = index;
        } else if slot.sorted && due_tick < self.nodes[tail as usize].due_tick {
            slot.sorted = false;
            slot.due_tick_min.set(due_tick.min(self.nodes[slot.head as usize].due_tick));
        } else if slot.due_tick_min.get() != STALE {
            // A stale minimum stays stale: the lowest of the others is not known.
            slot.due_tick_min.set(due_tick.min(slot.due_tick_min.get()));
        }
        slot.tail = index;
        if tail != NOBODY {
            self.nodes[tail as usize].next = index;
        }
        let node = &mut self.nodes[index as usize];
        node.prev = tail;
        node.next = NOBODY;
        self.slots_occupied[place.level] |= 1 << place.slot;
        self.levels_occupied |= 1 << place.level;
    }

    fn unlink(&mut self, index: u32, place: Place) {
        let Node { due_tick, next, prev, .. } = self.nodes[index as usize];
        if due_tick == self.due_tick_first.get() {
            self.due_tick_first.set(STALE);
        }
        if prev == NOBODY && next == NOBODY {
            self.clear(place);
            return;
        }
        let slot = &mut self.slots[place.level][place.slot];
        if slot.due_tick_min.get() == due_tick {
            slot.due_tick_min.set(STALE);
        }
        match prev {
            NOBODY => slot.head = next,
            _ => self.nodes[prev as usize].next = next,
        }
        match next {
            NOBODY => slot.tail = prev,
            _ => self.nodes[next as usize].prev = prev,
        }
    }

    /// Forgets the list of a slot.
    fn clear(&mut self, place: Place) {
        self.slots[place.level][place.slot] = Slot::empty();
        self.slots_occupied[place.level] &= !(1 << place.slot);
        if self.slots_occupied[place.level] == 0 {
            self.levels_occupied &= !(1 << place.level);
        }
    }

    /// Gives an unlinked node back.
    fn release(&mut self, index: u32) -> T {
        let node = &mut self.nodes[index as usize];
        let payload = node.payload.take().expect("armed nodes carry a payload");
        node.next = self.free_head;
        node.prev = NOBODY;
        self.free_head = index;
        self.count -= 1;
        if self.count == 0 {
            self.due_tick_first.set(NEVER);
        }
        payload
    }
}

/// The tick which `now` is in or at the start of: all due up to it may fire.
fn tick_before(now: Instant) -> u64 {
    if now == Instant::FAR { TICK_LAST } else { now.nanos() >> WHEEL_TICK_SHIFT }
}

/// The first tick that starts at or after `deadline`.
fn tick_after(deadline: Instant) -> u64 {
    // The last tick would start one nanosecond after `FAR`; it is moved onto it.
    deadline.nanos().div_ceil(1 << WHEEL_TICK_SHIFT)
}

fn tick_start(tick: u64) -> Instant {
    if tick >= TICK_LAST { Instant::FAR } else { Instant::from_nanos(tick << WHEEL_TICK_SHIFT) }
}

/// Where a timer stands that is due at `due_tick`, seen from `elapsed`.
fn place_of(elapsed: u64, due_tick: u64) -> Place {
    // The lowest digit counts as different even if it is not: level 0 is the lowest.
    let difference = (elapsed ^ due_tick) | (SLOTS_PER_LEVEL as u64 - 1);
    let level = (difference.ilog2() / DIGIT_BITS) as usize;
    let slot = (due_tick >> (DIGIT_BITS * level as u32)) as usize % SLOTS_PER_LEVEL;
    Place { level, slot }
}
