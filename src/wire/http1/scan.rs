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
        let mut at = 0;
        while at < bytes.len() {
            // Within a line most bytes are plain: they count, and nothing else.
            if self.line_bytes > 0 && !self.after_return {
                let plain_bytes = bytes[at..].iter().take_while(|byte| is_plain(**byte)).count();
                self.count(plain_bytes)?;
                at += plain_bytes;
            }
            let Some(&byte) = bytes.get(at) else { break };
            at += 1;
            if self.take(byte)? {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// Has nothing of a head come yet, but an empty line that does not count?
    pub fn is_at_start(&self) -> bool {
        self.line_count == 0 && self.line_bytes == 0 && !self.after_return
    }

    /// Bytes of a line that are its content.
    fn count(&mut self, bytes: usize) -> Result<(), Refusal> {
        let (line_bytes_max, refusal) = match self.line_count {
            0 => (limits::HTTP_FIRST_LINE_BYTES_MAX, Refusal::FirstLineTooLong),
            _ => (limits::HTTP_HEADER_BYTES_MAX, Refusal::HeaderTooLong),
        };
        let line_left = (line_bytes_max - self.line_bytes) as usize;
        let head_left = (limits::HTTP_HEAD_BYTES_MAX - self.head_bytes) as usize;
        if bytes > line_left.min(head_left) {
            // Which of the two is passed first?
            return Err(if head_left <= line_left { Refusal::HeadTooLong } else { refusal });
        }
        self.line_bytes += bytes as u32;
        self.head_bytes += bytes as u32;
        Ok(())
    }

    /// Any byte. Does the head end with it?
    fn take(&mut self, byte: u8) -> Result<bool, Refusal> {
        match byte {
            b'\n' if self.after_return => {
                self.count_line_end()?;
                return self.end_line();
            }
            _ if self.after_return => return Err(Refusal::BareCarriageReturn),
            b'\r' => {
                self.count_line_end()?;
                self.after_return = true;
                return Ok(false);
            }
            b' ' | b'\t' if self.line_bytes == 0 && self.line_count > 0 => {
                return Err(Refusal::FoldedHeader);
            }
            b' ' | b'\t' if self.line_bytes == 0 => return Err(Refusal::BadFirstLine),
            _ if is_plain(byte) => {}
            b'\n' => return Err(Refusal::BareLineFeed),
            0 => return Err(Refusal::Nul),
            _ => return Err(Refusal::ControlCharacter),
        }
        self.count(1)?;
        Ok(false)
    }

    fn count_line_end(&mut self) -> Result<(), Refusal> {
        if self.head_bytes == limits::HTTP_HEAD_BYTES_MAX {
            return Err(Refusal::HeadTooLong);
        }
        self.head_bytes += 1;
        Ok(())
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

/// Visible, a space, a tab, or no ASCII.
#[inline]
fn is_plain(byte: u8) -> bool {
    byte == b'\t' || !byte.is_ascii_control()
}
