//! The end of a head, found byte by byte as bytes come, and everything that may not stand in one
//! wherever it stands.
//!
//! Its verdict on a byte depends on the bytes before it only, so it is the same however they are
//! cut; and it sees each byte once. `httparse`, which takes more than we do (bare line feeds for
//! one), sees a head when it is whole.

use super::refusal::Refusal;
use crate::limits;

/// Where in a head we are.
#[derive(Debug, Default)]
pub(super) struct HeadScan {
    head_bytes: u32,
    /// Lines that have ended, the first line included.
    line_count: u32,
    /// Of the line that has begun.
    line_bytes: u32,
    after_return: bool,
    skipped_line: bool,
}

impl HeadScan {
    /// Looks at the next bytes. Gives back how many of them belong to the head if it ends in them.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Option<usize>, Refusal> {
        for (at, &byte) in bytes.iter().enumerate() {
            self.head_bytes += 1;
            if self.head_bytes > limits::HTTP_HEAD_BYTES_MAX {
                return Err(Refusal::HeadTooLong);
            }
            match byte {
                b'\n' if self.after_return => {
                    if self.end_line()? {
                        return Ok(Some(at + 1));
                    }
                }
                _ if self.after_return => return Err(Refusal::BareCarriageReturn),
                b'\r' => self.after_return = true,
                _ => self.take(byte)?,
            }
        }
        Ok(None)
    }

    /// Has nothing of a head come yet, but an empty line that does not count?
    pub fn is_at_start(&self) -> bool {
        self.line_count == 0 && self.line_bytes == 0 && !self.after_return
    }

    fn take(&mut self, byte: u8) -> Result<(), Refusal> {
        match byte {
            b'!'..=b'~' | 0x80.. => {}
            b' ' | b'\t' if self.line_bytes > 0 => {}
            b' ' | b'\t' if self.line_count > 0 => return Err(Refusal::FoldedHeader),
            b' ' | b'\t' => return Err(Refusal::BadFirstLine),
            b'\n' => return Err(Refusal::BareLineFeed),
            0 => return Err(Refusal::Nul),
            _ => return Err(Refusal::ControlCharacter),
        }
        self.line_bytes += 1;
        match self.line_count {
            0 if self.line_bytes > limits::HTTP_FIRST_LINE_BYTES_MAX => {
                Err(Refusal::FirstLineTooLong)
            }
            1.. if self.line_bytes > limits::HTTP_HEADER_BYTES_MAX => Err(Refusal::HeaderTooLong),
            _ => Ok(()),
        }
    }

    /// Was that the empty line at the end of the head?
    fn end_line(&mut self) -> Result<bool, Refusal> {
        self.after_return = false;
        if self.line_bytes == 0 && self.line_count > 0 {
            return Ok(true);
        }
        if self.line_bytes == 0 {
            // Some clients of old send one behind a body (RFC 9112, section 2.2).
            if std::mem::replace(&mut self.skipped_line, true) {
                return Err(Refusal::EmptyLines);
            }
            return Ok(false);
        }
        self.line_bytes = 0;
        self.line_count += 1;
        if self.line_count > 1 + limits::HTTP_HEADERS_MAX {
            return Err(Refusal::TooManyHeaders);
        }
        Ok(false)
    }
}
