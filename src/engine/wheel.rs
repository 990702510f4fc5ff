//! Timer wheel: the next deadline of all timers of one shard.
//!
//! Owned by one shard thread. It reads no clock (`now` is an argument), makes no callbacks, and
//! allocates only in [`Wheel::new`]. A tick is 2^14 ns. A timer's *due tick* is its deadline
//! rounded up, so it never fires early and at most one tick late. The memory of a timer is first
//! written when so many are armed at once, and the kernel provides it then.
//!
//! Nine levels of 64 slots cover all 2^50 ticks that 64 bits of nanoseconds hold, so no deadline is
//! too far. A timer's level is the highest base-64 digit in which its due tick differs from
//! `elapsed_tick`. Its slot is the value of that digit of its due tick. A lower level therefore
//! always comes before a higher one. Moving `elapsed_tick` forward to the next due tick, however
//! far, empties exactly one slot into the levels below. The cost of a jump of hours is only that of
//! the timers in this slot.
//!
//! Arming and cancelling are O(1). Firing is O(1) per timer, plus at most one move per level during
//! its life. [`Wheel::next_deadline`] is a load, because a shard that polls asks several wheels in
//! every turn. No slot is ever scanned for its minimum. A slot whose timers were armed in the order
//! of their deadlines has it at its head. A mixed slot keeps a *bound*: no timer in it is due
//! before. The bound stays when its owner is cancelled, so the next deadline may be early. At that
//! time the slot is emptied into the levels below, where the bounds are exact again. A cancelled
//! timer therefore costs at most one vain look, like a timer that was left to fire.
//!
//! Invariants ([`Wheel::audit`], in `wheel/audit.rs`, checks them after every simulator step):
//! - W1: no armed timer has a due tick before `elapsed_tick`.
//! - W2: a timer is at the place that `place_of` returns, and nowhere else.
//! - W3: a bit of an occupancy map is set if and only if its slot or level holds a timer.
//! - W4: within a slot, timers of one tick are in the order in which they were armed.
//! - W5: armed timers and free nodes together are all nodes, and at most the capacity.
//! - W6: the bound of a mixed slot, and that of all timers, is never late.
//!
//! The tests are in `wheel/tests.rs`. A sorted map is the model for a million random operations.

#![forbid(unsafe_code)]

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
/// The due tick of [`Instant::FAR`], and of deadlines that round up to it.
const TICK_LAST: u64 = 1 << (u64::BITS - WHEEL_TICK_SHIFT);
/// The end of a list.
const NOBODY: u32 = u32::MAX;
/// The mark for no armed timer, so that none is first.
const NEVER: u64 = u64::MAX;

const _: () = {
    assert!(TICK_LAST < 1 << (DIGIT_BITS * LEVELS as u32)); // The levels reach every tick.
    assert!(TICK_LAST < NEVER); // No tick equals the mark.
    assert!(TICK_LAST >= 1 << (DIGIT_BITS * (LEVELS as u32 - 1))); // Every level is used.
    assert!(SLOTS_PER_LEVEL == u64::BITS as usize); // One word holds the occupied slots.
    assert!(LEVELS <= u16::BITS as usize); // Another holds the occupied levels.
    assert!(size_of::<Option<TimerId>>() == size_of::<TimerId>()); // No room for "not armed".
};

/// One armed timer of one [`Wheel`]. After that timer fired or was cancelled, the id is stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerId {
    index: u32,
    /// The number of the arming over the wheel's life. 64 bits never wrap around.
    generation: NonZeroU64,
}

/// The error when every timer that the wheel has memory for is armed. Cancel one, or refuse the
/// caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// Number of timers that the wheel was built for.
    pub capacity: u32,
}

impl fmt::Display for Full {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "all {} timers of this shard are armed", self.capacity)
    }
}

impl std::error::Error for Full {}

/// A node is armed while it has a payload. A free node is linked through `next` only.
#[derive(Clone, Copy, Debug)]
struct Node<T> {
    due_tick: u64,
    /// The generation of the present arming, or of the last one; 0 if it was never armed.
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
    /// True if each timer is due no earlier than the one before it. The first is then the minimum.
    sorted: bool,
    /// A tick before which no timer of a slot that is not sorted is due.
    due_tick_bound: u64,
}

impl Slot {
    const fn empty() -> Slot {
        Slot { head: NOBODY, tail: NOBODY, sorted: true, due_tick_bound: NEVER }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TimerPlace {
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
    /// All nodes that were ever armed. There is memory for the capacity.
    nodes: Vec<Node<T>>,
    capacity: u32,
    free_head: u32,
    count: u32,
    /// Number of timers that were ever armed.
    armed_total: u64,
    /// Everything due before this tick has fired.
    elapsed_tick: u64,
    /// The latest time that was passed to [`Wheel::pop_expired`].
    now: Instant,
    /// Bit `level` is set if that level holds a timer.
    levels_occupied: u16,
    /// A tick before which no timer is due; [`NEVER`] if nothing is armed.
    due_tick_first: u64,
    /// Bit `slot` of word `level` is set if that slot holds a timer.
    slots_occupied: [u64; LEVELS],
    slots: Box<[[Slot; SLOTS_PER_LEVEL]; LEVELS]>,
}

impl<T: Copy> Wheel<T> {
    /// Creates a wheel with memory for `capacity` timers, none of them armed, whose time starts at
    /// `now`.
    ///
    /// # Panics
    /// If `capacity` is `u32::MAX`.
    pub fn new(capacity: u32, now: Instant) -> Wheel<T> {
        assert!(capacity < NOBODY); // No index equals the end of a list.
        Wheel {
            nodes: Vec::with_capacity(capacity as usize),
            capacity,
            free_head: NOBODY,
            count: 0,
            armed_total: 0,
            elapsed_tick: tick_before(now),
            now,
            levels_occupied: 0,
            due_tick_first: NEVER,
            slots_occupied: [0; LEVELS],
            slots: Box::new([const { [const { Slot::empty() }; SLOTS_PER_LEVEL] }; LEVELS]),
        }
    }

    /// Arms a timer: [`Wheel::pop_expired`] returns `payload` once `deadline` has passed. O(1).
    ///
    /// A deadline that has passed already fires at the next pop, before everything due later. A
    /// caller that arms such a timer for every timer popped never gets `None`.
    ///
    /// # Errors
    /// [`Full`]; nothing is armed then.
    pub fn arm(&mut self, deadline: Instant, payload: T) -> Result<TimerId, Full> {
        if self.free_head == NOBODY {
            self.add_node()?;
        }
        let index = self.free_head;
        self.armed_total += 1;
        let generation = NonZeroU64::new(self.armed_total).expect("counts from one");
        // A deadline that has passed must not wait for the end of its tick.
        let due_tick = if deadline <= self.now { 0 } else { tick_after(deadline) };
        let node = &mut self.nodes[index as usize];
        assert!(node.payload.is_none());
        self.free_head = node.next;
        let due_tick = due_tick.max(self.elapsed_tick);
        node.due_tick = due_tick;
        node.generation = generation.get();
        node.payload = Some(payload);
        self.count += 1;
        self.due_tick_first = self.due_tick_first.min(due_tick);
        self.link(index);
        Ok(TimerId { index, generation })
    }

    /// Disarms a timer and returns its payload; `None` if it fired or was cancelled. O(1).
    pub fn cancel(&mut self, id: TimerId) -> Option<T> {
        let node = self.nodes.get(id.index as usize)?;
        if node.generation != id.generation.get() || node.payload.is_none() {
            return None;
        }
        if planted(Planted::TimerFiresAfterCancel) {
            return node.payload;
        }
        self.unlink(id.index, place_of(self.elapsed_tick, node.due_tick));
        Some(self.release(id.index))
    }

    /// Returns the next timer that is due at `now`, by due tick, then by arming. Call it until
    /// `None`.
    ///
    /// Timers may be armed and cancelled between two calls. A `now` that runs backwards fires only
    /// what is due at that time.
    pub fn pop_expired(&mut self, now: Instant) -> Option<T> {
        self.now = self.now.max(now);
        let now_tick = tick_before(now);
        while self.due_tick_first <= now_tick {
            let due_tick = self.due_tick_first;
            self.advance(due_tick);
            let place = place_of(self.elapsed_tick, due_tick);
            assert!(place.level == 0);
            let index = self.slots[0][place.slot].head;
            if index != NOBODY {
                assert!(self.nodes[index as usize].due_tick == due_tick);
                self.unlink(index, place);
                return Some(self.release(index));
            }
            assert!(self.due_tick_first > due_tick); // Its owner was cancelled.
        }
        // Near deadlines get fine slots only if `elapsed_tick` keeps up with the time.
        self.advance(now_tick.max(self.elapsed_tick));
        None
    }

    /// The time at which to call [`Wheel::pop_expired`] next; `None` if nothing is armed. No timer
    /// fires before.
    ///
    /// It is the end of the tick of the next timer's deadline. If an earlier timer was cancelled,
    /// it may be that one's: then nothing is popped, and the next answer is later.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        let due_tick = self.due_tick_first;
        (due_tick != NEVER).then(|| tick_start(due_tick))
    }

    /// Number of armed timers.
    pub fn len(&self) -> u32 {
        self.count
    }

    /// True if no timer is armed.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Number of timers that can be armed.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Makes the only free node.
    #[cold]
    fn add_node(&mut self) -> Result<(), Full> {
        let index = self.nodes.len() as u32;
        if index == self.capacity {
            return Err(Full { capacity: self.capacity });
        }
        let (next, prev) = (NOBODY, NOBODY);
        self.nodes.push(Node { due_tick: 0, generation: 0, next, prev, payload: None });
        self.free_head = index;
        Ok(())
    }

    /// The bound of the slot that is due next, or [`NEVER`]. A lower level always comes first.
    #[inline(always)] // The compiler's choice changed with code elsewhere, and the counts with it.
    fn bound(&self) -> u64 {
        if self.levels_occupied == 0 {
            return NEVER;
        }
        let level = self.levels_occupied.trailing_zeros() as usize;
        let slot = &self.slots[level][self.slots_occupied[level].trailing_zeros() as usize];
        match slot.sorted {
            true => self.nodes[slot.head as usize].due_tick,
            false => slot.due_tick_bound,
        }
    }

    /// Moves `elapsed_tick` to `tick`, before which nothing may be due.
    ///
    /// One slot of the level on which the two differ has `tick`'s digit. Its timers now agree with
    /// `elapsed_tick` in that digit and move down. All levels below are empty, because a timer
    /// there would be due before `tick`. The levels above are not affected.
    fn advance(&mut self, tick: u64) {
        assert!(tick >= self.elapsed_tick);
        let place = place_of(self.elapsed_tick, tick);
        self.elapsed_tick = tick;
        if place.level == 0 || self.slots_occupied[place.level] >> place.slot & 1 == 0 {
            return;
        }
        let mut index = self.slots[place.level][place.slot].head;
        self.clear(place);
        while index != NOBODY {
            let next = self.nodes[index as usize].next;
            if planted(Planted::CascadeSkipsSlot) && next == NOBODY {
                break;
            }
            self.link(index);
            index = next;
        }
        self.due_tick_first = self.bound();
    }

    /// Puts a node whose due tick is set at the end of its slot.
    fn link(&mut self, index: u32) {
        let due_tick = self.nodes[index as usize].due_tick;
        let place = place_of(self.elapsed_tick, due_tick);
        let slot = &mut self.slots[place.level][place.slot];
        let tail = slot.tail;
        if tail == NOBODY {
            slot.head = index;
        } else if !slot.sorted {
            slot.due_tick_bound = slot.due_tick_bound.min(due_tick);
        } else if due_tick < self.nodes[tail as usize].due_tick {
            slot.sorted = false;
            slot.due_tick_bound = due_tick.min(self.nodes[slot.head as usize].due_tick);
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

    fn unlink(&mut self, index: u32, place: TimerPlace) {
        let Node { next, prev, .. } = self.nodes[index as usize];
        match prev == NOBODY && next == NOBODY {
            true => self.clear(place),
            false => self.unlink_between(index, place, (prev, next)),
        }
        self.due_tick_first = self.bound();
    }

    /// Unlinks a node of a slot that has others.
    fn unlink_between(&mut self, index: u32, place: TimerPlace, (prev, next): (u32, u32)) {
        let slot = &mut self.slots[place.level][place.slot];
        match prev {
            NOBODY => {
                assert!(slot.head == index); // W2
                slot.head = next;
            }
            _ => self.nodes[prev as usize].next = next,
        }
        match next {
            NOBODY => {
                assert!(slot.tail == index); // W2
                slot.tail = prev;
            }
            _ => self.nodes[next as usize].prev = prev,
        }
        slot.sorted |= slot.head == slot.tail;
    }

    /// Empties the list of a slot.
    fn clear(&mut self, place: TimerPlace) {
        self.slots[place.level][place.slot] = Slot::empty();
        self.slots_occupied[place.level] &= !(1 << place.slot);
        if self.slots_occupied[place.level] == 0 {
            self.levels_occupied &= !(1 << place.level);
        }
    }

    /// Returns an unlinked node to the free list.
    fn release(&mut self, index: u32) -> T {
        let node = &mut self.nodes[index as usize];
        let payload = node.payload.take().expect("armed nodes carry a payload");
        node.next = self.free_head;
        node.prev = NOBODY;
        self.free_head = index;
        self.count -= 1;
        payload
    }
}

/// The tick that contains `now`. Everything due up to it may fire.
fn tick_before(now: Instant) -> u64 {
    if now == Instant::FAR { TICK_LAST } else { now.nanos() >> WHEEL_TICK_SHIFT }
}

/// The first tick that starts at or after `deadline`.
fn tick_after(deadline: Instant) -> u64 {
    // The last tick would start one nanosecond after `FAR`; `tick_start` moves it to `FAR`.
    deadline.nanos().div_ceil(1 << WHEEL_TICK_SHIFT)
}

fn tick_start(tick: u64) -> Instant {
    if tick >= TICK_LAST { Instant::FAR } else { Instant::from_nanos(tick << WHEEL_TICK_SHIFT) }
}

/// The place of a timer that is due at `due_tick`, seen from `elapsed_tick`.
fn place_of(elapsed_tick: u64, due_tick: u64) -> TimerPlace {
    assert!(elapsed_tick <= due_tick); // W1
    // The lowest digit always counts as different, because level 0 is the lowest.
    let difference = (elapsed_tick ^ due_tick) | (SLOTS_PER_LEVEL as u64 - 1);
    let level = (difference.ilog2() / DIGIT_BITS) as usize;
    let slot = (due_tick >> (DIGIT_BITS * level as u32)) as usize % SLOTS_PER_LEVEL;
    TimerPlace { level, slot }
}
