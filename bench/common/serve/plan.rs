//! The times at which a server's chunks are due, and their payload. Both are the same for every
//! server.
//!
//! A payload begins with the time at which it was due, in [`STAMP_DIGITS`] decimal digits. It is
//! text, so that JSON holds it unchanged and the receiver finds it. With a rate, the arrivals are
//! those of [`Arrivals`]: chunk k belongs to execution k modulo their number. A plan for one
//! execution alone skips the chunks of the others. The load is thus the same for every design of a
//! server.

use super::load::Load;
use crate::common::params::Rate;
use crate::common::source::Arrivals;

/// Digits of the stamp in front of each payload: enough for 64 bits.
pub const STAMP_DIGITS: usize = 20;
/// Time between the last subscriber and the first chunk. By then, all sides are waiting.
const LEAD_NS: u64 = 20_000_000;
/// Time before a chunk is due in which every server polls. The benchmark measures how chunks are
/// carried, and not how late a sleeping thread wakes.
pub const POLL_NS: u64 = 60_000;

/// The chunks of all executions, or of one.
#[derive(Clone, Debug)]
pub struct Plan {
    /// `None` if the load is flat out.
    arrivals: Option<Arrivals>,
    origin_ns: u64,
    /// The end of the run, if it is flat out.
    end_ns: u64,
    length_ns: u64,
    /// Number of remaining chunks, if the load has a rate.
    left_chunks: u64,
    /// Chunks of other executions before the first chunk, and after each chunk.
    skip_first: u64,
    skip_each: u64,
}

impl Plan {
    /// Returns the plan for all chunks.
    pub fn new(load: &Load) -> Plan {
        let (warmup, counted) = load.chunks();
        let arrivals = match load.rate {
            Rate::PerSecond(rate) => Some(Arrivals::new(rate, load.seed)),
            Rate::Max => None,
        };
        Plan {
            arrivals,
            origin_ns: 0,
            end_ns: 0,
            length_ns: (load.warmup + load.duration).as_nanos() as u64,
            left_chunks: warmup + counted,
            skip_first: 0,
            skip_each: 0,
        }
    }

    /// Returns the plan for the chunks of execution `index`.
    pub fn of_execution(load: &Load, index: u32) -> Plan {
        assert!(index < load.executions);
        let mut plan = Plan::new(load);
        plan.left_chunks /= u64::from(load.executions);
        plan.skip_first = index.into();
        plan.skip_each = u64::from(load.executions) - 1;
        plan
    }

    /// Returns the start of a run whose last subscriber came at `now_ns`.
    pub fn origin(now_ns: u64) -> u64 {
        now_ns + LEAD_NS
    }

    /// Sets the start of the run.
    pub fn begin(&mut self, origin_ns: u64) {
        self.origin_ns = origin_ns;
        self.end_ns = origin_ns + self.length_ns;
    }

    /// Returns the time at which the next chunk is due, or `now_ns` without a rate. Returns `None`
    /// after the last.
    #[inline]
    pub fn next(&mut self, now_ns: u64) -> Option<u64> {
        let Some(arrivals) = &mut self.arrivals else {
            return (now_ns < self.end_ns).then_some(now_ns.max(self.origin_ns));
        };
        self.left_chunks = self.left_chunks.checked_sub(1)?;
        for _ in 0..std::mem::replace(&mut self.skip_first, self.skip_each) {
            arrivals.next_ns();
        }
        Some(self.origin_ns + arrivals.next_ns())
    }

    /// True if the load has no rate.
    pub fn is_flat_out(&self) -> bool {
        self.arrivals.is_none()
    }
}

/// Returns a payload of `size_bytes`, as text, without a stamp.
pub fn payload(size_bytes: usize) -> Box<[u8]> {
    assert!(size_bytes >= STAMP_DIGITS); // `load` refuses smaller ones.
    let text = b"the quick brown fox jumps over the lazy dog, ".iter().copied();
    text.cycle().take(size_bytes).collect()
}

/// Writes `stamp_ns` at the start of a payload.
#[inline]
pub fn stamp(payload: &mut [u8], stamp_ns: u64) {
    write_digits(&mut payload[..STAMP_DIGITS], stamp_ns);
}

/// Fills `digits` with the last digits of `number`.
#[inline]
pub fn write_digits(digits: &mut [u8], mut number: u64) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(mut plan: Plan) -> Vec<u64> {
        plan.begin(1_000);
        std::iter::from_fn(|| plan.next(0)).collect()
    }

    #[test]
    fn executions_planned_one_by_one_add_up_to_the_whole() {
        let load = Load { connections: 6, executions: 3, ..Load::new().unwrap() };
        let all = planned(Plan::new(&load));
        assert_eq!(all.len() as u64, load.chunks().0 + load.chunks().1);
        for index in 0..3 {
            let own: Vec<u64> = all.iter().copied().skip(index as usize).step_by(3).collect();
            assert_eq!(planned(Plan::of_execution(&load, index)), own, "execution {index}");
        }
    }

    #[test]
    fn flat_out_ends_with_its_time() {
        let mut plan = Plan::new(&Load { rate: Rate::Max, ..Load::new().unwrap() });
        plan.begin(1_000);
        assert_eq!(plan.next(0), Some(1_000));
        assert_eq!(plan.next(5_000_000_000), Some(5_000_000_000));
        assert_eq!(plan.next(5_200_001_000), None);
    }

    #[test]
    fn a_stamp_is_twenty_digits_in_front() {
        let mut bytes = payload(24);
        stamp(&mut bytes, u64::MAX);
        assert_eq!(&bytes[..], b"18446744073709551615jump");
        stamp(&mut bytes, 7);
        assert_eq!(&bytes[..20], b"00000000000000000007");
    }
}
