//! Numbers as digits, appended to a buffer. Eight digits at a time are computed in one register.

/// A register with 1 in each byte.
const ONES: u64 = 0x0101_0101_0101_0101;
const ZEROS: u64 = ONES * b'0' as u64;
/// Number of digits in a register.
const MANY: usize = 8;
/// The smallest number with more decimal digits than [`MANY`].
const MANY_BELOW: u64 = 100_000_000;
/// Number of digits of the largest number.
const DIGITS_MAX: usize = 20;

/// Appends an unsigned integer.
pub(crate) fn write_u64(out: &mut Vec<u8>, number: u64) {
    if out.spare_capacity_mut().len() < DIGITS_MAX {
        return write_to_full(out, number);
    }
    // Each part is appended with its whole register, and then cut to its length.
    if number < MANY_BELOW {
        let digits = decimal_digits(number as u32);
        // The last digit is written even if it is 0.
        let zero_count = (digits | 1 << 56).trailing_zeros() as usize / 8;
        let until = out.len() + MANY - zero_count;
        out.extend_from_slice(&((digits | ZEROS) >> (8 * zero_count)).to_le_bytes());
        out.truncate(until);
    } else if number < MANY_BELOW * MANY_BELOW {
        let (high, low) = (number / MANY_BELOW, number % MANY_BELOW);
        let high = decimal_digits(high as u32);
        let low = decimal_digits(low as u32);
        let zero_count = high.trailing_zeros() as usize / 8;
        let until = out.len() + 2 * MANY - zero_count;
        let digits = u128::from(low | ZEROS) << 64 | u128::from(high | ZEROS);
        out.extend_from_slice(&(digits >> (8 * zero_count)).to_le_bytes());
        out.truncate(until);
    } else {
        write_longest(out, number);
    }
}

/// Appends a number digit by digit. The buffer may have room for them, but not for registers.
#[cold]
#[inline(never)]
fn write_to_full(out: &mut Vec<u8>, number: u64) {
    let (mut digits, mut at, mut rest) = ([0; DIGITS_MAX], DIGITS_MAX, number);
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends a number of more than 16 digits.
#[cold]
#[inline(never)]
fn write_longest(out: &mut Vec<u8>, number: u64) {
    write_u64(out, number / MANY_BELOW);
    let digits = decimal_digits((number % MANY_BELOW) as u32);
    out.extend_from_slice(&(digits | ZEROS).to_le_bytes());
}

/// Appends a signed integer.
pub(crate) fn write_i64(out: &mut Vec<u8>, number: i64) {
    if number < 0 {
        out.push(b'-');
    }
    write_u64(out, number.unsigned_abs());
}

/// Returns the eight digits of a number below [`MANY_BELOW`], each in a byte, the first in the
/// lowest one. Each step splits the numbers in all lanes at once. No lane spills into the next.
#[inline]
fn decimal_digits(number: u32) -> u64 {
    debug_assert!(u64::from(number) < MANY_BELOW);
    let fours = u64::from(number / 10_000) | u64::from(number % 10_000) << 32;
    // The factor is 2^20 / 100, rounded up. The quotient is exact below 43,699.
    let hundreds = ((fours * 10_486) >> 20) & 0x0000_007f_0000_007f;
    let twos = hundreds | fours.wrapping_sub(hundreds * 100) << 16;
    // The factor is 2^10 / 10, rounded up. The quotient is exact below 179.
    let tens = (twos.wrapping_mul(103) >> 10) & 0x000f_000f_000f_000f;
    tens | twos.wrapping_sub(tens * 10) << 8
}

/// Appends a number in hexadecimal, without leading zeros.
#[cfg(feature = "server")]
pub(crate) fn write_hex(out: &mut Vec<u8>, number: u32) {
    let zero_count = (number | 1).leading_zeros() as usize / 4;
    out.extend_from_slice(&hex_digits(number)[zero_count..]);
}

/// Returns a number in hexadecimal, with leading zeros.
#[cfg(feature = "server")]
#[inline]
pub(crate) fn hex_digits(number: u32) -> [u8; MANY] {
    let fours = u64::from(number);
    let fours = (fours | fours << 16) & 0x0000_ffff_0000_ffff;
    let twos = (fours | fours << 8) & 0x00ff_00ff_00ff_00ff;
    let digits = (twos | twos << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    let letters = ((digits + 6 * ONES) >> 4) & ONES; // 1 in the bytes from 10 on.
    (digits + ZEROS + letters * u64::from(b'a' - b'9' - 1)).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Random;

    fn spelled(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = b"-".to_vec();
        write(&mut out);
        String::from_utf8(out).unwrap().strip_prefix('-').unwrap().to_owned()
    }

    /// Numbers of every length: at its ends, and random ones.
    fn numbers() -> impl Iterator<Item = u64> {
        let mut random = Random::new(1);
        let ends = (0..20).map(|length| 10u64.pow(length));
        let ends = ends.flat_map(|end| [end - 1, end, end + 1, end.saturating_mul(2)]);
        let powers = (0..64).map(|shift| 1u64 << shift).flat_map(|power| [power - 1, power]);
        let others = (0..200_000).map(move |_| random.next_u64() >> random.below(64));
        ends.chain(powers).chain(others).chain([u64::MAX])
    }

    #[test]
    fn integers_have_their_decimal_digits() {
        for number in numbers() {
            assert_eq!(spelled(|out| write_u64(out, number)), number.to_string());
            for number in [number as i64, (number as i64).wrapping_neg()] {
                assert_eq!(spelled(|out| write_i64(out, number)), number.to_string());
            }
        }
    }

    #[test]
    fn a_buffer_that_has_room_for_the_digits_does_not_grow() {
        for number in numbers().step_by(10).chain([0, u64::MAX]) {
            let digits = number.to_string();
            for spare_bytes in [0, 1, 7, 8, 15, 16, 19, 20] {
                let mut out = Vec::with_capacity(digits.len() + spare_bytes);
                let capacity = out.capacity();
                write_u64(&mut out, number);
                assert_eq!((&*out, out.capacity()), (digits.as_bytes(), capacity));
            }
        }
    }

    #[test]
    fn all_groups_of_four_digits_are_exact() {
        for number in 0..10_000 {
            for number in [number, number * 10_000, number * 10_001] {
                let digits = (decimal_digits(number) | ZEROS).to_le_bytes();
                assert_eq!(digits, *format!("{number:08}").as_bytes());
            }
        }
    }

    #[cfg(feature = "server")]
    #[test]
    fn integers_have_their_hexadecimal_digits() {
        for number in numbers().map(|number| number as u32) {
            assert_eq!(spelled(|out| write_hex(out, number)), format!("{number:x}"));
            assert_eq!(hex_digits(number), *format!("{number:08x}").as_bytes());
        }
    }
}
