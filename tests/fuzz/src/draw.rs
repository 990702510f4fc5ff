//! Numbers and texts from the fuzzer's bytes, taken from the front. After their end come zeros.

/// The remaining bytes.
pub struct Draw<'d> {
    rest: &'d [u8],
}

impl<'d> Draw<'d> {
    /// Starts at the first byte.
    pub fn new(data: &'d [u8]) -> Draw<'d> {
        Draw { rest: data }
    }

    /// Returns true if nothing is left.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Takes the next `count` bytes, or fewer if fewer remain.
    pub fn bytes(&mut self, count: usize) -> &'d [u8] {
        let (taken, rest) = self.rest.split_at(count.min(self.rest.len()));
        self.rest = rest;
        taken
    }

    /// Takes one byte.
    pub fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    /// Takes eight bytes, the lowest first.
    pub fn word(&mut self) -> u64 {
        let mut word = [0; 8];
        let taken = self.bytes(8);
        word[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(word)
    }

    /// Takes a number below `bound`, which is at most 256.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound.max(1)
    }

    /// Takes one of the values.
    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// Takes true or false.
    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// Takes a number of any size: first the number of bits, then the bits.
    pub fn number(&mut self) -> u64 {
        let bits = self.below(65);
        let bytes = self.bytes(bits.div_ceil(8));
        let number = bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        if bits == 64 { number } else { number & ((1 << bits) - 1) }
    }

    /// Takes up to 255 bytes as text.
    pub fn text(&mut self) -> String {
        let count = usize::from(self.byte());
        String::from_utf8_lossy(self.bytes(count)).into_owned()
    }
}

/// Returns places to cut bytes: none, all, and some that differ from input to input.
pub fn cuts(bytes: &[u8]) -> [Vec<usize>; 3] {
    let sum = bytes.iter().fold(0x9E37_79B9u32, |sum, byte| {
        sum.rotate_left(5).wrapping_mul(0x0100_0193) ^ u32::from(*byte)
    });
    let at = |turn: u32| sum.rotate_left(turn) as usize % (bytes.len() + 1);
    let mut some = vec![at(0), at(11), at(22)];
    some.sort_unstable();
    [Vec::new(), (0..bytes.len()).collect(), some]
}
