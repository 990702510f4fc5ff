//! Lines out of pieces of bytes: what the decoders of SSE and NDJSON share.

/// A line, put together of pieces, up to a limit. Without memory of its own while lines are whole.
#[derive(Debug, Default)]
pub(super) struct LineBuffer {
    /// The beginning of a line whose end has not come yet, or all of one that is [`Line::Kept`].
    begun: Vec<u8>,
    /// `begun` is whole, and is forgotten by the next call.
    whole: bool,
}

/// Where a line is, and the byte that ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// In the input.
    Here(&'a [u8], u8),
    /// In [`LineBuffer::kept`].
    Kept(u8),
}

/// A line is longer than it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLong;

impl LineBuffer {
    /// Takes bytes from `input` up to the first for which `is_end` holds, which is taken, too;
    /// all of them if there is none.
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

    /// The line that was [`Line::Kept`].
    pub fn kept(&self) -> &[u8] {
        &self.begun
    }

    /// Has a line begun that has not ended?
    pub fn has_begun(&self) -> bool {
        !self.whole && !self.begun.is_empty()
    }
}
