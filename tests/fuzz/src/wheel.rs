//! Any operations on the timer wheel, and the same on a sorted map, with an audit after each.

use std::collections::BTreeMap;

use streamdoor::base::Instant;
use streamdoor::engine::wheel::{TimerId, Wheel};
use streamdoor::limits::WHEEL_TICK_SHIFT;

use super::draw::Draw;

const CAPACITY: u32 = 24;
const TICK_NANOS: u128 = 1 << WHEEL_TICK_SHIFT;

/// The due time of a timer in ticks, and the number of its arming.
type Key = (u128, u64);

/// The wheel and the map, side by side.
struct Pair {
    wheel: Wheel<u64>,
    timers: BTreeMap<Key, TimerId>,
    /// The ids of timers, armed or not.
    names: Vec<(TimerId, Key)>,
    armed_total: u64,
    /// The tick before which everything due has fired.
    elapsed: u128,
    now: Instant,
}

/// Returns the tick that contains `now`: all timers due up to it may fire. The last tick is moved
/// to the end of time.
fn tick_of(now: Instant) -> u128 {
    let is_last = now == Instant::FAR;
    (u128::from(now.nanos()) + u128::from(is_last)) / TICK_NANOS
}

impl Pair {
    fn arm(&mut self, deadline: Instant) {
        let payload = self.armed_total + 1;
        let armed = self.wheel.arm(deadline, payload);
        if self.timers.len() == CAPACITY as usize {
            return assert!(armed.is_err());
        }
        let id = armed.expect("there is room");
        self.armed_total = payload;
        let due = match deadline <= self.now {
            true => 0, // It has passed: it fires before later ones.
            false => u128::from(deadline.nanos()).div_ceil(TICK_NANOS),
        };
        let key = (due.max(self.elapsed), payload);
        self.timers.insert(key, id);
        self.names.push((id, key));
    }

    fn cancel(&mut self, at: usize) {
        let Some((id, key)) = self.names.get(at % self.names.len().max(1)).copied() else { return };
        let is_armed = self.timers.remove(&key).is_some();
        assert_eq!(self.wheel.cancel(id), is_armed.then_some(key.1));
        assert_eq!(self.wheel.cancel(id), None);
    }

    fn pop(&mut self, now: Instant) {
        self.now = self.now.max(now);
        let popped = self.wheel.pop_expired(now);
        let first = self.timers.first_key_value().map(|(key, _)| *key);
        match first.filter(|(due, _)| *due <= tick_of(now)) {
            Some(key) => {
                self.timers.remove(&key);
                self.elapsed = key.0;
                assert_eq!(popped, Some(key.1));
            }
            None => {
                self.elapsed = self.elapsed.max(tick_of(now));
                assert_eq!(popped, None);
            }
        }
    }

    fn check(&self) {
        self.wheel.audit();
        assert_eq!(self.wheel.len() as usize, self.timers.len());
        let nanos = self.timers.first_key_value().map(|((due, _), _)| due * TICK_NANOS);
        let expected = nanos.map(|nanos| u64::try_from(nanos).unwrap_or(u64::MAX));
        assert_eq!(self.wheel.next_deadline().map(Instant::nanos), expected);
    }
}

/// Checks a run of operations.
pub fn check(data: &[u8]) {
    let mut draw = Draw::new(data);
    let start = Instant::from_nanos(draw.number());
    let mut pair = Pair {
        wheel: Wheel::new(CAPACITY, start),
        timers: BTreeMap::new(),
        names: Vec::new(),
        armed_total: 0,
        elapsed: tick_of(start),
        now: start,
    };
    let mut steps = 0;
    while !draw.is_empty() && steps < 300 {
        steps += 1;
        let ahead =
            |pair: &Pair, nanos: u64| Instant::from_nanos(pair.now.nanos().saturating_add(nanos));
        match draw.below(8) {
            0..=2 => {
                let nanos = draw.number();
                pair.arm(ahead(&pair, nanos));
            }
            3 => pair.arm(Instant::from_nanos(draw.number())),
            4 => pair.cancel(draw.below(256)),
            5 => pair.pop(Instant::from_nanos(draw.number())),
            6 => {
                let nanos = draw.number();
                pair.pop(ahead(&pair, nanos));
            }
            _ => pair.pop(pair.wheel.next_deadline().unwrap_or(pair.now)),
        }
        pair.check();
    }
    while !pair.timers.is_empty() {
        pair.pop(Instant::FAR);
        pair.check();
    }
}
