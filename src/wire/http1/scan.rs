//! A scan of incoming bytes for the end of a head, and for bytes that are not permitted in any part
//! of it.
//!
//! The verdict on a byte depends only on the bytes before it, so the cuts do not matter. Each byte
//! is examined once. `httparse` accepts more than this scan (bare line feeds, for example), and
//! receives a head only when it is whole.

use super::refusal::Refusal;
use crate::limits;

/// The position of the scan in a head.
#[derive(Debug, Default)]
pub(super) struct HeadScan {
    head_bytes: u32,
    /// Number of lines that have ended, including the first line.
    line_count: u32,
    /// Number of content bytes of the current line.
    line_bytes: u32,
    after_return: bool,
    /// True after a first byte that only a TLS handshake has.
    after_tls_type: bool,
    skipped_line: bool,
}

/// The first bytes of a TLS handshake: the type of its record, and its major version (RFC 8446,
/// section 5.1).
const TLS_TYPE: u8 = 0x16;
const TLS_VERSION: u8 = 0x03;

impl HeadScan {
    /// Examines the next bytes. If the head ends in them, returns the number of bytes that belong
    /// to it.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Option<usize>, Refusal> {
        let mut at = 0;
        while at < bytes.len() {
            // Within a line most bytes are plain. They only need to be counted.
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

    /// True if nothing of a head has come yet, except for an empty line that does not count.
    pub fn is_at_start(&self) -> bool {
        let has_none = self.line_count == 0 && self.line_bytes == 0;
        has_none && !self.after_return && !self.after_tls_type
    }

    /// Counts content bytes of a line.
    fn count(&mut self, bytes: usize) -> Result<(), Refusal> {
        let (line_bytes_max, refusal) = match self.line_count {
            0 => (limits::HTTP_FIRST_LINE_BYTES_MAX, Refusal::FirstLineTooLong),
            _ => (limits::HTTP_HEADER_BYTES_MAX, Refusal::HeaderTooLong),
        };
        let line_left = (line_bytes_max - self.line_bytes) as usize;
        let head_left = (limits::HTTP_HEAD_BYTES_MAX - self.head_bytes) as usize;
        if bytes > line_left.min(head_left) {
            // The limit that was passed first decides.
            return Err(if head_left <= line_left { Refusal::HeadTooLong } else { refusal });
        }
        self.line_bytes += bytes as u32;
        self.head_bytes += bytes as u32;
        Ok(())
    }

    /// Takes any byte. Returns true if the head ends with it.
    fn take(&mut self, byte: u8) -> Result<bool, Refusal> {
        match byte {
            b'\n' if self.after_return => {
                self.count_line_end()?;
                return self.end_line();
            }
            _ if self.after_return => return Err(Refusal::BareCarriageReturn),
            TLS_VERSION if self.after_tls_type => return Err(Refusal::TlsHandshake),
            _ if self.after_tls_type => return Err(Refusal::ControlCharacter),
            TLS_TYPE if self.head_bytes == 0 => {
                self.after_tls_type = true;
                return Ok(false);
            }
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

    /// Ends a line. Returns true if it was the empty line at the end of the head.
    fn end_line(&mut self) -> Result<bool, Refusal> {
        self.after_return = false;
        if self.line_bytes == 0 && self.line_count > 0 {
            return Ok(true);
        }
        if self.line_bytes == 0 {
            // Some old clients send one after a body (RFC 9112, section 2.2).
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

/// True for visible characters, spaces, tabs, and bytes that are not ASCII.
#[inline]
fn is_plain(byte: u8) -> bool {
    byte == b'\t' || !byte.is_ascii_control()
}
