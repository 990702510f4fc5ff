//! Base 64 of RFC 4648, section 4, with padding, which carries binary data in JSON.

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const PADDING: u8 = b'=';

/// Appends `data` in base 64: four characters for each three bytes, the last group padded.
pub(crate) fn write(out: &mut Vec<u8>, data: &[u8]) {
    let start = out.len();
    out.resize(start + data.len().div_ceil(3) * 4, PADDING);
    let (whole, rest) = data.as_chunks::<3>();
    let (texts, _) = out[start..].as_chunks_mut::<4>();
    for (&[a, b, c], text) in whole.iter().zip(texts.iter_mut()) {
        let bits = u32::from_be_bytes([0, a, b, c]);
        *text = [digit(bits >> 18), digit(bits >> 12), digit(bits >> 6), digit(bits)];
    }
    let last = texts.last_mut();
    match (rest, last) {
        ([a], Some(text)) => {
            let bits = u32::from(*a) << 4;
            text[..2].copy_from_slice(&[digit(bits >> 6), digit(bits)]);
        }
        ([a, b], Some(text)) => {
            let bits = u32::from_be_bytes([0, 0, *a, *b]) << 2;
            text[..3].copy_from_slice(&[digit(bits >> 12), digit(bits >> 6), digit(bits)]);
        }
        _ => {}
    }
}

/// Decodes `text` from base 64. `None` if [`write`] does not write such a text: foreign characters,
/// a wrong length, or bits after the last byte that are not 0.
#[cfg(any(test, feature = "server"))]
pub(crate) fn read(text: &str) -> Option<Vec<u8>> {
    let (texts, rest) = text.as_bytes().as_chunks::<4>();
    let padding = text.bytes().rev().take(2).take_while(|&byte| byte == PADDING).count();
    let mut data = Vec::with_capacity(texts.len() * 3);
    for (at, text) in texts.iter().enumerate() {
        let padding = if at + 1 == texts.len() { padding } else { 0 };
        let (digits, _) = text.split_at(4 - padding);
        let mut bits = 0;
        let mut valid = true;
        for byte in digits {
            let value = VALUES[usize::from(*byte)];
            valid &= value != NO_VALUE;
            bits = bits << 6 | u32::from(value);
        }
        let [_, bytes @ ..] = (bits << (6 * padding)).to_be_bytes();
        let (bytes, spare) = bytes.split_at(3 - padding);
        if !valid || spare.iter().any(|&byte| byte != 0) {
            return None;
        }
        data.extend_from_slice(bytes);
    }
    rest.is_empty().then_some(data)
}

/// The value of each byte as a digit.
#[cfg(any(test, feature = "server"))]
const VALUES: [u8; 256] = {
    let mut values = [NO_VALUE; 256];
    let mut value = 0;
    while value < DIGITS.len() {
        values[DIGITS[value] as usize] = value as u8;
        value += 1;
    }
    values
};
#[cfg(any(test, feature = "server"))]
const NO_VALUE: u8 = 64;

/// Returns the digit of the lowest six bits.
#[inline]
fn digit(bits: u32) -> u8 {
    DIGITS[(bits & 63) as usize]
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::base::Random;

    fn encoded(data: &[u8]) -> String {
        let mut out = b"before ".to_vec();
        write(&mut out, data);
        String::from_utf8(out).unwrap().strip_prefix("before ").unwrap().to_owned()
    }

    /// Decodes bit by bit, unlike the code under test.
    pub fn decoded(text: &str) -> Vec<u8> {
        assert!(text.len().is_multiple_of(4), "{text}");
        let digits = text.trim_end_matches('=').bytes();
        let bits: Vec<u8> = digits
            .flat_map(|byte| {
                let value = DIGITS.iter().position(|&digit| digit == byte).expect(text) as u8;
                (0..6).rev().map(move |shift| value >> shift & 1)
            })
            .collect();
        let (bytes, rest) = bits.as_chunks::<8>();
        assert!(rest.iter().all(|&bit| bit == 0), "{text}: bits that mean nothing");
        bytes.iter().map(|bits| bits.iter().fold(0, |byte, bit| byte << 1 | bit)).collect()
    }

    #[test]
    fn the_test_vectors_of_the_rfc_are_right() {
        let vectors = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (data, text) in vectors {
            assert_eq!(encoded(data.as_bytes()), text);
        }
        assert_eq!(encoded(&[0xFF, 0xFE, 0xFB, 0xEF]), "//777w==");
    }

    #[test]
    fn bytes_survive_being_encoded_and_decoded() {
        let mut random = Random::new(1);
        for length in 0..300 {
            let mut data = vec![0; length];
            random.fill(&mut data);
            assert_eq!(decoded(&encoded(&data)), data);
            assert_eq!(read(&encoded(&data)), Some(data));
        }
    }

    #[test]
    fn what_nobody_writes_is_not_read() {
        let table = [
            "Z",
            "Zg",
            "Zg=",
            "Zg===",
            "=",
            "==",
            "===",
            "====",
            "Z===",
            "Zm9=v",
            "Zg==Zg==",
            "Zh==",
            "Zm9",
            "Zm8==",
            "Zm9vZ",
            "Zm 9v",
            "Zm9v\n",
            "Zm-_",
            "Zm9\u{e9}",
            "Zm9v====",
        ];
        for text in table {
            assert_eq!(read(text), None, "{text:?}");
        }
    }
}
