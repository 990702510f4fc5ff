//! A small seeded generator (SplitMix64 by Steele, Lea and Flood, 2014: one addition, two
//! multiplications). It is for the simulator and for jitter, not for secrets: one number reveals
//! the next.

/// A stream of numbers that depends only on its seed.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Creates the stream of `seed`. Equal seeds give equal streams, on every machine.
    pub const fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    /// Returns the next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number in `0..bound`; 0 if `bound` is 0. The bias is below `bound / 2^64`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number in `low..=high`.
    ///
    /// # Panics
    /// If `low > high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high);
        low + self.below(high - low + 1)
    }

    /// Returns true in `numerator` of `denominator` cases.
    pub fn chance(&mut self, numerator: u64, denominator: u64) -> bool {
        self.below(denominator) < numerator
    }

    /// Returns a number in `[0, 1)` with 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Fills `bytes` from the stream.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            piece.copy_from_slice(&self.next_u64().to_le_bytes()[..piece.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_streams_and_bounds_hold() {
        let (mut a, mut b) = (Random::new(7), Random::new(7));
        for bound in 1..1_000 {
            assert_eq!(a.next_u64(), b.next_u64());
            assert!(a.below(bound) < bound);
            assert!((3..=3 + bound).contains(&a.between(3, 3 + bound)));
            assert!(a.unit() < 1.0);
            b = a.clone();
        }
        assert_eq!(a.below(0), 0);
    }
}
