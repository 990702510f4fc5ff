//! The work of a subscriber on a chunk. All implementations use the same code, so it costs the same
//! for all. It runs on the subscribers' thread.
//!
//! [`Latency`] stores one raw 32-bit sample per delivery (clock − planned time). The array was
//! allocated and touched before the run; the histogram is filled afterwards. A store into the next
//! cell costs under a nanosecond and dirties one cache line per 16 deliveries. Recording into an
//! HDR histogram costs a few nanoseconds. It also walks through 100 KiB of counters beside the
//! measured ring. Samples keep their order, so interval logs can still be cut.
//!
//! [`Counting`] is for flat-out runs and reads no clock. Fields are cells, so that closures and
//! tasks can share one receiver by `Rc`.

use std::cell::{Cell, RefCell};
use std::hint::black_box;

use super::machine::now_ns;
use super::source::STAMP_BYTES;

/// One delivery of one chunk to one subscriber.
pub trait Receive: 'static {
    /// Returns the part that all receivers share.
    fn touch(&self) -> &Touch;
    /// True if a subscriber makes a copy of its own.
    fn copies(&self) -> bool;
    /// Records a delivery, once it is counted.
    fn record(&self, stamp: u64);

    /// Delivers `payload` in place. Under `--touch copy`, it is copied out.
    #[inline(always)]
    fn deliver(&self, payload: &[u8]) {
        self.record(self.touch().take(payload, self.copies()));
    }
    /// Delivers a copy that the implementation has made for the subscriber. No second copy is made.
    #[inline(always)]
    fn deliver_owned(&self, payload: &[u8]) {
        self.record(self.touch().take(payload, false));
    }
    /// Delivers no bytes, only the stamp that the implementation carries beside them.
    #[inline(always)]
    fn deliver_stamp(&self, stamp: u64) {
        self.touch().count(stamp);
        self.record(stamp);
    }
    /// Returns the number of deliveries so far.
    #[inline(always)]
    fn count(&self) -> u64 {
        self.touch().count.get()
    }
    /// Returns the sum of all stamps seen, wrapping.
    fn stamp_sum(&self) -> u64 {
        self.touch().stamp_sum.get()
    }
}

#[inline(always)]
fn stamp_of(payload: &[u8]) -> u64 {
    let (stamp, _) = payload.split_first_chunk::<STAMP_BYTES>().expect("a payload has a stamp");
    u64::from_le_bytes(*stamp)
}

/// The subscriber's own memory, and the sums that prove that everything arrived.
pub struct Touch {
    buffer: RefCell<Box<[u8]>>,
    count: Cell<u64>,
    stamp_sum: Cell<u64>,
}

impl Touch {
    fn new(size_bytes: usize) -> Touch {
        let buffer = RefCell::new(vec![1; size_bytes].into_boxed_slice());
        Touch { buffer, count: Cell::new(0), stamp_sum: Cell::new(0) }
    }

    /// Counts the payload, and copies it if `copies` is set, which is a compile-time constant.
    /// Returns the stamp.
    #[inline(always)]
    fn take(&self, payload: &[u8], copies: bool) -> u64 {
        let stamp = stamp_of(payload);
        self.count(stamp);
        if copies {
            let mut buffer = self.buffer.borrow_mut();
            let room = &mut buffer[..payload.len()];
            room.copy_from_slice(payload);
            black_box(room); // The compiler must not remove the copy.
        } else {
            black_box(payload);
        }
        stamp
    }

    #[inline(always)]
    fn count(&self, stamp: u64) {
        self.count.set(self.count.get() + 1);
        self.stamp_sum.set(self.stamp_sum.get().wrapping_add(stamp));
    }
}

/// Records the latency of each delivery from its planned send time.
pub struct Latency<const COPY: bool> {
    touch: Touch,
    samples_ns: Box<[Cell<u32>]>,
}

impl<const COPY: bool> Latency<COPY> {
    /// Returns a receiver with room for `sample_count` deliveries. Every page of it is touched.
    pub fn new(size_bytes: usize, sample_count: usize) -> Self {
        // Not zero: zeroed memory would be mapped lazily, with one fault per 1,024 samples.
        let samples_ns = vec![Cell::new(u32::MAX); sample_count].into_boxed_slice();
        Latency { touch: Touch::new(size_bytes), samples_ns }
    }

    /// Returns one value per delivery, in the order of the deliveries. Values of 4.29 s and more
    /// are stored as `u32::MAX`.
    pub fn samples_ns(&self) -> Vec<u32> {
        let delivered = (self.touch.count.get() as usize).min(self.samples_ns.len());
        self.samples_ns[..delivered].iter().map(Cell::get).collect()
    }
}

impl<const COPY: bool> Receive for Latency<COPY> {
    #[inline(always)]
    fn touch(&self) -> &Touch {
        &self.touch
    }
    #[inline(always)]
    fn copies(&self) -> bool {
        COPY
    }
    #[inline(always)]
    fn record(&self, stamp: u64) {
        let latency_ns = now_ns().saturating_sub(stamp).min(u64::from(u32::MAX)) as u32;
        // Surplus deliveries are not stored. The count reveals them.
        if let Some(sample) = self.samples_ns.get(self.touch.count.get() as usize - 1) {
            sample.set(latency_ns);
        }
    }
}

/// Counts deliveries and reads their stamps; no clock.
pub struct Counting<const COPY: bool> {
    touch: Touch,
}

impl<const COPY: bool> Counting<COPY> {
    /// Returns a receiver for payloads of `size_bytes`.
    pub fn new(size_bytes: usize) -> Self {
        Counting { touch: Touch::new(size_bytes) }
    }
}

impl<const COPY: bool> Receive for Counting<COPY> {
    #[inline(always)]
    fn touch(&self) -> &Touch {
        &self.touch
    }
    #[inline(always)]
    fn copies(&self) -> bool {
        COPY
    }
    #[inline(always)]
    fn record(&self, _stamp: u64) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_is_one_sample_and_one_stamp_and_surplus_is_counted_but_not_stored() {
        let receiver = Latency::<true>::new(16, 2);
        let planned_ns = now_ns();
        let mut payload = [7; 16];
        payload[..STAMP_BYTES].copy_from_slice(&planned_ns.to_le_bytes());
        receiver.deliver(&payload);
        assert_eq!(**receiver.touch.buffer.borrow(), payload);
        receiver.deliver_owned(&payload);
        receiver.deliver(&payload);
        assert_eq!(receiver.count(), 3);
        assert_eq!(receiver.stamp_sum(), planned_ns.wrapping_mul(3));
        assert_eq!(receiver.samples_ns().len(), 2);
    }
}
