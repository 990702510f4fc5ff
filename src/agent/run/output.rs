//! A tool's output as sent to the model: all of it, or its front and its end.
//!
//! Errors are found at the end of an output more often than in its middle.

use std::collections::VecDeque;

/// The output of a tool, of which at most `bytes_max` bytes are kept.
#[derive(Debug, Default)]
pub(super) struct KeptOutput {
    front: Vec<u8>,
    back: VecDeque<u8>,
    bytes_max: usize,
    bytes: u64,
    /// Number of bytes that were missed.
    missed_bytes: u64,
}

impl KeptOutput {
    pub fn new(bytes_max: usize) -> KeptOutput {
        KeptOutput { bytes_max, ..KeptOutput::default() }
    }

    /// Number of all bytes of the output, missed ones included.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// True if some of the output is not kept.
    pub fn is_cut(&self) -> bool {
        self.bytes > (self.front.len() + self.back.len()) as u64
    }

    /// Maximum number of bytes kept of the end.
    fn back_bytes_max(&self) -> usize {
        self.bytes_max / 2
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        let front_room = self.bytes_max - self.back_bytes_max() - self.front.len();
        let is_front = self.back.is_empty() && self.missed_bytes == 0;
        let (front, back) = bytes.split_at(if is_front { front_room.min(bytes.len()) } else { 0 });
        self.front.extend_from_slice(front);
        let keep = back.len().min(self.back_bytes_max());
        let excess = (self.back.len() + keep).saturating_sub(self.back_bytes_max());
        self.back.drain(..excess);
        self.back.extend(&back[back.len() - keep..]);
    }

    /// Records that `bytes` bytes were missed. The bytes kept of the end are dropped, and later
    /// bytes belong to the end.
    pub fn miss(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.missed_bytes += bytes;
        self.back.clear();
    }

    /// Returns the text for the model. Bytes that are not UTF-8 are replaced.
    pub fn text(&self) -> String {
        let back: Vec<u8> = self.back.iter().copied().collect();
        if !self.is_cut() {
            let all = [self.front.as_slice(), &back].concat();
            return String::from_utf8_lossy(&all).into_owned();
        }
        // Both sides of the hole consist of whole characters.
        let front = &self.front[..whole_front(&self.front)];
        let back = &back[broken_front(&back)..];
        let left_out = self.bytes - (front.len() + back.len()) as u64;
        let (front, back) = (String::from_utf8_lossy(front), String::from_utf8_lossy(back));
        format!("{front}\n[… {left_out} bytes are left out here …]\n{back}")
    }
}

/// Returns the start of the last character if it is incomplete, otherwise the length.
fn whole_front(bytes: &[u8]) -> usize {
    let tail = bytes.len().saturating_sub(3);
    let first = bytes[tail..].iter().rposition(|byte| *byte >= 0xC0);
    let Some(at) = first.map(|at| tail + at) else { return bytes.len() };
    let length = match bytes[at] {
        0xC0..0xE0 => 2,
        0xE0..0xF0 => 3,
        _ => 4,
    };
    if at + length > bytes.len() { at } else { bytes.len() }
}

/// Number of bytes at the front that belong to a character whose beginning is missing.
fn broken_front(bytes: &[u8]) -> usize {
    bytes.iter().take(3).take_while(|byte| matches!(**byte, 0x80..0xC0)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Random;

    fn kept(bytes_max: usize, pieces: &[&[u8]]) -> KeptOutput {
        let mut output = KeptOutput::new(bytes_max);
        pieces.iter().for_each(|piece| output.push(piece));
        output
    }

    #[test]
    fn what_fits_is_kept_whole_and_of_more_the_front_and_the_end() {
        let output = kept(8, &[b"ab", b"", b"cdef", b"gh"]);
        assert_eq!((output.text().as_str(), output.is_cut()), ("abcdefgh", false));
        let output = kept(8, &[b"abcdefgh", b"i"]);
        assert_eq!(output.text(), "abcd\n[… 1 bytes are left out here …]\nfghi");
        assert_eq!((output.bytes(), output.is_cut()), (9, true));
        let output = kept(8, &[b"abcdefghijklmnopqrstuvwxyz"]);
        assert_eq!(output.text(), "abcd\n[… 18 bytes are left out here …]\nwxyz");
        let output = kept(0, &[b"abc"]);
        assert_eq!(output.text(), "\n[… 3 bytes are left out here …]\n");
    }

    #[test]
    fn what_was_missed_counts_as_left_out() {
        let mut output = kept(8, &[b"ab"]);
        output.miss(10);
        output.push(b"yz");
        assert_eq!(output.text(), "ab\n[… 10 bytes are left out here …]\nyz");
        assert_eq!(output.bytes(), 14);
    }

    #[test]
    fn no_character_is_cut_and_cut_pieces_are_put_together() {
        let output = kept(100, &["€".as_bytes().split_at(1).0, "€".as_bytes().split_at(1).1]);
        assert_eq!(output.text(), "€");
        let output = kept(8, &["€€€€€€".as_bytes()]);
        assert_eq!(output.text(), "€\n[… 12 bytes are left out here …]\n€");
        assert_eq!(kept(8, &[b"\xFF\xFE"]).text(), "\u{fffd}\u{fffd}");
    }

    #[test]
    fn however_it_is_cut_into_pieces_the_same_is_kept() {
        let mut random = Random::new(1);
        for round in 0..2_000 {
            let mut bytes = vec![0; random.below(60) as usize];
            random.fill(&mut bytes);
            let bytes_max = random.below(40) as usize;
            let at_once = kept(bytes_max, &[&bytes]);
            let (mut rest, mut output) = (&bytes[..], KeptOutput::new(bytes_max));
            while !rest.is_empty() {
                let (piece, behind) = rest.split_at(random.between(1, rest.len() as u64) as usize);
                output.push(piece);
                rest = behind;
                assert!(output.front.len() + output.back.len() <= bytes_max, "round {round}");
            }
            assert_eq!(output.text(), at_once.text(), "round {round}");
            assert_eq!(output.is_cut(), bytes.len() > bytes_max, "round {round}");
        }
    }
}
