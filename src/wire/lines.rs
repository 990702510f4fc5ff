//! Lines from pieces of bytes, shared by the decoders of SSE and NDJSON.

/// The buffer of an incomplete line, up to a limit. It has no memory of its own while lines are
/// whole.
#[derive(Debug, Default)]
pub(super) struct LineBuffer {
    /// The beginning of an incomplete line, or all of one that is [`Line::Kept`].
    begun: Vec<u8>,
    /// True if `begun` is a whole line, which the next call discards.
    whole: bool,
}

/// The place of a line, and the byte that ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// The line is in the input.
    Here(&'a [u8], u8),
    /// The line is in [`LineBuffer::kept`].
    Kept(u8),
}

/// The error of a line that exceeds its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLong;

impl LineBuffer {
    /// Consumes bytes from `input` up to and including the first for which `is_end` holds. If none
    /// does, it consumes all of them and returns `None`.
    pub fn take<'a>(
        &mut self,
        input: &mut &'a [u8],
        bytes_max: usize,
        is_end: impl Fn(u8) -> bool,
    ) -> Result<Option<Line<'a>>, TooLong> {
        if std::mem::take(&mut self.whole) {
            self.begun.clear();
        }
        let end = input.iter().position(|&byte| is_end(byte));
        let (piece, rest) = input.split_at(end.unwrap_or(input.len()));
        if piece.len() > bytes_max.saturating_sub(self.begun.len()) {
            return Err(TooLong);
        }
        let Some((&end, rest)) = rest.split_first() else {
            *input = rest;
            self.begun.extend_from_slice(piece);
            return Ok(None);
        };
        *input = rest;
        if self.begun.is_empty() {
            return Ok(Some(Line::Here(piece, end)));
        }
        self.begun.extend_from_slice(piece);
        self.whole = true;
        Ok(Some(Line::Kept(end)))
    }

    /// Returns the line that was [`Line::Kept`].
    pub fn kept(&self) -> &[u8] {
        &self.begun
    }

    /// True if a line has begun and has not ended.
    pub fn has_begun(&self) -> bool {
        !self.whole && !self.begun.is_empty()
    }
}
