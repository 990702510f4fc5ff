//! The wheel against a sorted map, which is slow and obviously right.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::base::Random;

const TICK: u64 = 1 << WHEEL_TICK_SHIFT;

fn seed() -> u64 {
    std::env::var("SEED").map_or(1, |text| text.parse().expect("SEED is a number"))
}

fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

/// The required behaviour in its simplest form: sorted by (due tick, number of the arming).
struct Model {
    timers: BTreeMap<(u64, u64), Instant>,
    armed_total: u64,
    elapsed_tick: u64,
    now: Instant,
}

impl Model {
    fn new(now: Instant) -> Model {
        Model { timers: BTreeMap::new(), armed_total: 0, elapsed_tick: tick_before(now), now }
    }

    fn arm(&mut self, deadline: Instant) -> (u64, u64) {
        self.armed_total += 1;
        let passed = deadline <= self.now;
        let due_tick =
            if passed { self.elapsed_tick } else { tick_after(deadline).max(self.elapsed_tick) };
        self.timers.insert((due_tick, self.armed_total), deadline);
        (due_tick, self.armed_total)
    }

    fn pop_expired(&mut self, now: Instant) -> Option<u64> {
        self.now = self.now.max(now);
        match self.timers.first_key_value() {
            Some((&key, _)) if key.0 <= tick_before(now) => {
                self.timers.remove(&key);
                self.elapsed_tick = key.0;
                Some(key.1)
            }
            _ => {
                self.elapsed_tick = self.elapsed_tick.max(tick_before(now));
                None
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.timers.first_key_value().map(|(&(due_tick, _), _)| tick_start(due_tick))
    }
}

/// A wheel and a model side by side. Every result is compared.
struct Pair {
    wheel: Wheel<u64>,
    model: Model,
    /// Armed and stale timers: the wheel's id, and the model's key.
    names: Vec<(TimerId, (u64, u64))>,
    random: Random,
    now: Instant,
    fired_count: u64,
    cancelled_count: u64,
    /// Number of times that the wheel's deadline came and no timer was due.
    early_count: u64,
    seed: u64,
}

impl Pair {
    fn new(capacity: u32, now: Instant, seed: u64) -> Pair {
        Pair {
            wheel: Wheel::new(capacity, now),
            model: Model::new(now),
            names: Vec::new(),
            random: Random::new(seed),
            now,
            fired_count: 0,
            cancelled_count: 0,
            early_count: 0,
            seed,
        }
    }

    fn jump(&mut self, bits_max: u64) {
        let ahead = self.stretch(bits_max);
        self.now += ahead;
    }

    /// Returns a duration from 0 to 2^`bits_max` ns. Every order of magnitude is equally likely.
    fn stretch(&mut self, bits_max: u64) -> Duration {
        let bits = self.random.below(bits_max + 1);
        Duration::from_nanos(self.random.below(1 << bits))
    }

    fn arm(&mut self, deadline: Instant) {
        let full = self.wheel.len() == self.wheel.capacity();
        match self.wheel.arm(deadline, self.model.armed_total + 1) {
            Ok(id) => {
                assert!(!full, "SEED={}", self.seed);
                let name = self.model.arm(deadline);
                self.names.push((id, name));
            }
            Err(error) => assert!(full, "SEED={}: {error}", self.seed),
        }
    }

    fn arm_somewhere(&mut self) {
        let ahead = self.stretch(47);
        let deadline = match self.random.below(20) {
            0 => Instant::FAR,
            1 => at(self.now.nanos() - (ahead.as_nanos() as u64).min(self.now.nanos())),
            2 => self.now,
            3 => at(u64::MAX - self.random.below(3 * TICK)),
            4..=7 => self.now + Duration::from_secs(30),
            _ => self.now + ahead,
        };
        self.arm(deadline);
    }

    fn cancel_somebody(&mut self) {
        if self.names.is_empty() {
            return;
        }
        let which = self.random.below(self.names.len() as u64) as usize;
        let (id, name) = match self.random.below(4) {
            0 => self.names[which], // Stays, and is stale next time.
            _ => self.names.swap_remove(which),
        };
        let expected = self.model.timers.remove(&name).map(|_| name.1);
        self.cancelled_count += u64::from(expected.is_some());
        assert_eq!(self.wheel.cancel(id), expected, "SEED={} {name:?}", self.seed);
    }

    fn pop_one(&mut self) -> bool {
        let first = self.model.timers.first_key_value().map(|(_, &deadline)| deadline);
        let expected = self.model.pop_expired(self.now);
        assert_eq!(self.wheel.pop_expired(self.now), expected, "SEED={}", self.seed);
        if expected.is_some() {
            self.fired_count += 1;
            assert!(first.unwrap() <= self.now, "SEED={}: early", self.seed);
        }
        expected.is_some()
    }

    fn pop_all(&mut self) {
        let mut rearm_left = 8;
        while self.pop_one() {
            if rearm_left > 0 && self.random.chance(1, 4) {
                rearm_left -= 1;
                self.arm_somewhere();
            }
        }
        let due_late = self.model.timers.values().filter(|deadline| {
            self.now.nanos() >= deadline.nanos().saturating_add(TICK) && self.now != Instant::FAR
        });
        assert_eq!(due_late.count(), 0, "SEED={}: more than a tick late", self.seed);
    }

    /// The wheel's deadline is the model's, or an earlier one after timers were cancelled.
    fn compare_deadlines(&self) {
        let (wheel, model) = (self.wheel.next_deadline(), self.model.next_deadline());
        assert_eq!(wheel.is_none(), model.is_none(), "SEED={}", self.seed);
        assert!(wheel <= model, "SEED={}: {wheel:?} is later than {model:?}", self.seed);
        assert!(wheel == model || self.cancelled_count > 0, "SEED={}", self.seed);
    }

    /// Goes from deadline to deadline until nothing is armed.
    fn run_out(&mut self) {
        while let Some(next) = self.wheel.next_deadline() {
            self.now = self.now.max(next);
            if !self.pop_one() {
                self.early_count += 1;
                assert!(self.wheel.next_deadline().unwrap() > next, "SEED={}", self.seed);
            }
            self.compare_deadlines();
        }
        assert!(self.early_count <= self.cancelled_count, "SEED={}", self.seed);
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..=39 => self.arm_somewhere(),
            40..=69 => self.cancel_somebody(),
            70..=74 => {
                self.pop_one();
            }
            75..=84 => {
                // Exactly at the wheel's deadline, or a nanosecond before.
                let next = self.wheel.next_deadline().unwrap_or(self.now);
                let early = self.random.below(2);
                let target = at(next.nanos() - next.nanos().min(early)).max(self.now);
                if target < self.now + Duration::from_secs(86_400) {
                    self.now = target;
                }
                self.pop_all();
            }
            85 => {
                self.jump(47); // Up to 39 hours.
                self.pop_all();
            }
            _ => {
                self.jump(22); // Up to 4 ms.
                self.pop_all();
            }
        }
        self.compare_deadlines();
        assert_eq!(self.wheel.len() as usize, self.model.timers.len(), "SEED={}", self.seed);
        if self.names.len() > 4_096 {
            let timers = &self.model.timers;
            self.names.retain(|(_, name)| timers.contains_key(name));
        }
    }
}

#[test]
fn a_million_random_operations_do_what_a_sorted_map_does() {
    let seed = seed();
    let mut fired_count = 0;
    for (part, capacity) in [1, 2, 64, 257].into_iter().cycle().take(20).enumerate() {
        let start = at(Random::new(seed + part as u64).below(1 << 50));
        let mut pair = Pair::new(capacity, start, seed + part as u64);
        for step in 0..50_000 {
            pair.step();
            if step % 256 == 0 {
                pair.wheel.audit();
            }
        }
        fired_count += pair.fired_count;
    }
    assert!(fired_count > 100_000, "SEED={seed}: only {fired_count} fired");
}

#[test]
fn every_step_of_a_small_wheel_passes_the_audit() {
    let seed = seed();
    let mut pair = Pair::new(12, Instant::ZERO, seed);
    for _ in 0..20_000 {
        pair.step();
        pair.wheel.audit();
    }
}

#[test]
fn a_cancelled_timer_costs_at_most_one_vain_look() {
    let seed = seed();
    let (mut early_count, mut cancelled_count) = (0, 0);
    for part in 0..200 {
        let mut pair = Pair::new(300, Instant::ZERO, seed + part);
        for _ in 0..300 {
            let ahead = pair.stretch(37); // Up to 137 s: few slots, and mixed ones.
            pair.arm(pair.now + ahead);
        }
        for _ in 0..150 {
            pair.cancel_somebody();
        }
        pair.wheel.audit();
        pair.run_out();
        assert!(pair.model.timers.is_empty(), "SEED={seed}");
        early_count += pair.early_count;
        cancelled_count += pair.cancelled_count;
    }
    assert!(early_count > 0, "SEED={seed}: no deadline was early");
    assert!(early_count * 4 < cancelled_count, "SEED={seed}: {early_count} looks in vain");
}

#[test]
fn clocks_of_32_bits_of_milliseconds_may_wrap_without_us() {
    for edge_ms in [1u64 << 31, 1 << 32] {
        let edge = edge_ms * 1_000_000;
        let mut pair = Pair::new(200, at(edge - 2_000_000_000), seed());
        for millis in 0..200 {
            pair.arm(at(edge - 1_000_000_000) + Duration::from_millis(10 * millis));
        }
        while pair.now < at(edge + 1_500_000_000) {
            pair.jump(26);
            pair.pop_all();
            pair.wheel.audit();
            assert_eq!(pair.wheel.next_deadline(), pair.model.next_deadline());
        }
        assert!(pair.fired_count >= 200);
    }
}

#[test]
fn time_may_end_while_timers_wait() {
    let mut pair = Pair::new(8, at(u64::MAX - 5 * TICK), seed());
    for back in [0, 1, TICK - 1, TICK, TICK + 1, 3 * TICK] {
        pair.arm(at(u64::MAX - back));
    }
    while let Some(next) = pair.wheel.next_deadline() {
        assert_eq!(Some(next), pair.model.next_deadline());
        pair.now = at(next.nanos() - 1);
        assert!(!pair.pop_one());
        pair.now = next;
        assert!(pair.pop_one());
        pair.wheel.audit();
    }
    assert_eq!(pair.now, Instant::FAR);
}

#[test]
fn a_timer_fires_at_its_deadline_or_within_one_tick_after() {
    for offset in [0, 1, TICK - 1, TICK, TICK + 1, 12_345_678, 86_400_000_000_007] {
        for start in [0, 1, TICK - 1, 77 * TICK + 5] {
            let deadline = at(start + offset);
            let mut wheel = Wheel::new(1, at(start));
            wheel.arm(deadline, ()).unwrap();
            let due = wheel.next_deadline().unwrap();
            assert!(due < deadline + Duration::from_nanos(TICK), "{deadline:?}");
            assert!(due >= deadline || offset == 0, "{deadline:?}");
            if due > at(start) {
                assert_eq!(wheel.pop_expired(at(due.nanos() - 1)), None, "{deadline:?}");
            }
            assert_eq!(wheel.pop_expired(due.max(at(start))), Some(()), "{deadline:?}");
        }
    }
}

#[test]
fn a_deadline_in_the_past_fires_at_the_next_pop_before_what_is_due_later() {
    let now = at(10 * TICK + 7);
    let mut wheel = Wheel::new(4, now);
    wheel.arm(at(10 * TICK + 8), "ahead").unwrap();
    wheel.arm(now, "now").unwrap();
    wheel.arm(Instant::ZERO, "past").unwrap();
    assert_eq!(wheel.pop_expired(now), Some("now"));
    assert_eq!(wheel.pop_expired(now), Some("past"));
    assert_eq!(wheel.pop_expired(now), None);
    assert_eq!(wheel.next_deadline(), Some(at(11 * TICK)));
    assert_eq!(wheel.pop_expired(at(11 * TICK)), Some("ahead"));
}

#[test]
fn timers_of_one_tick_fire_in_the_order_of_arming_whatever_way_they_came_down() {
    let mut wheel = Wheel::new(64, Instant::ZERO);
    let target = 5_000_000 * TICK;
    for (order, from) in [0, 4_000_000, 4_990_000, 4_999_900, 4_999_999].into_iter().enumerate() {
        assert_eq!(wheel.pop_expired(at(from * TICK)), None);
        wheel.arm(at(target - order as u64), 2 * order).unwrap();
        wheel.arm(at(target), 2 * order + 1).unwrap();
        wheel.audit();
    }
    for order in 0..10 {
        assert_eq!(wheel.pop_expired(at(target)), Some(order));
    }
}

#[test]
fn a_full_wheel_refuses_and_is_left_unchanged() {
    let mut wheel = Wheel::new(2, Instant::ZERO);
    let first = wheel.arm(at(1), 1).unwrap();
    wheel.arm(at(2), 2).unwrap();
    assert_eq!(wheel.arm(at(3), 3), Err(Full { capacity: 2 }));
    wheel.audit();
    assert_eq!(wheel.cancel(first), Some(1));
    wheel.arm(at(4), 4).unwrap();
    assert_eq!(wheel.len(), 2);
    assert_eq!(Wheel::new(0, Instant::ZERO).arm(at(1), ()), Err(Full { capacity: 0 }));
}

#[test]
fn a_stale_id_cancels_nothing() {
    let mut wheel = Wheel::new(1, Instant::ZERO);
    let fired = wheel.arm(at(1), "fired").unwrap();
    assert_eq!(wheel.pop_expired(at(TICK)), Some("fired"));
    assert_eq!(wheel.cancel(fired), None);
    let cancelled = wheel.arm(at(1), "cancelled").unwrap();
    assert_eq!(wheel.cancel(cancelled), Some("cancelled"));
    assert_eq!(wheel.cancel(cancelled), None);
    let tenant = wheel.arm(at(1), "tenant").unwrap();
    assert_eq!(wheel.cancel(fired), None);
    assert_eq!(wheel.cancel(cancelled), None);
    assert_eq!(wheel.cancel(tenant), Some("tenant"));
}

#[test]
fn a_timer_armed_again_while_popping_fires_in_the_same_round_only_if_it_is_due() {
    let mut wheel = Wheel::new(2, Instant::ZERO);
    wheel.arm(at(TICK), 0u64).unwrap();
    let now = at(10 * TICK);
    let mut fired = Vec::new();
    while let Some(round) = wheel.pop_expired(now) {
        fired.push(round);
        wheel.arm(at((round + 1) * 4 * TICK), round + 1).unwrap();
    }
    assert_eq!(fired, [0, 1, 2]);
    assert_eq!(wheel.next_deadline(), Some(at(12 * TICK)));
}

#[test]
fn cancelling_the_earliest_of_a_mixed_slot_leaves_its_deadline_once() {
    let mut wheel = Wheel::new(8, Instant::ZERO);
    let second = Duration::from_secs(1);
    let deadline = |millis| Instant::ZERO + second * 30 + Duration::from_millis(millis);
    let is_due_at = |due: Instant, millis| {
        due >= deadline(millis) && due < deadline(millis) + Duration::from_nanos(TICK)
    };
    let ids: Vec<_> =
        [50, 10, 40, 20, 30].map(|millis| wheel.arm(deadline(millis), millis).unwrap()).into();
    for cancelled in [1, 3, 0] {
        wheel.cancel(ids[cancelled]).unwrap();
        assert!(is_due_at(wheel.next_deadline().unwrap(), 10));
        wheel.audit();
    }
    assert_eq!(wheel.pop_expired(wheel.next_deadline().unwrap()), None);
    wheel.audit();
    let due = wheel.next_deadline().unwrap();
    assert!(is_due_at(due, 30));
    assert_eq!(wheel.pop_expired(due), Some(30));
    // The last one of a slot is known.
    assert!(is_due_at(wheel.next_deadline().unwrap(), 40));
}

#[test]
fn a_clock_that_steps_back_fires_nothing_early() {
    let mut wheel = Wheel::new(2, at(100 * TICK));
    assert_eq!(wheel.pop_expired(at(200 * TICK)), None);
    wheel.arm(at(150 * TICK), ()).unwrap();
    assert_eq!(wheel.pop_expired(at(120 * TICK)), None);
    assert_eq!(wheel.pop_expired(at(200 * TICK)), Some(()));
}
