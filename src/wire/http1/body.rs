//! The reader of bodies, which finds their content and their end.
//!
//! The parts of a chunked body that are not content are read byte by byte. The state machine allows
//! what RFC 9112, section 7.1, allows and nothing more. Lines end in both bytes, and sizes have no
//! sign, prefix or white space. Extensions and trailers have no use, so they are limited to a small
//! size and dropped.

use super::refusal::Refusal;
use crate::limits;

/// The length of a body, or the way in which its end is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// There is no body.
    None,
    /// The number of bytes, announced in advance.
    Known(u64),
    /// The body comes in chunks, each with its size.
    Chunked,
    /// The body ends with the connection. Only responses have such bodies.
    UntilClose,
}

/// The result of reading a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyPart<'a> {
    Piece(&'a [u8]),
    End,
}

/// A reader of one body.
#[derive(Debug)]
pub(super) struct BodyReader {
    expect: Expect,
    /// Number of content bytes that may still come before the body is too long.
    allowed_bytes: u64,
    extensions_bytes: u32,
    trailers_bytes: u32,
}

/// The element that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    Content { remaining: u64 },
    ContentUntilClose,
    Size { digits: u32, size: u64 },
    ExtensionName { size: u64 },
    Extension { size: u64, bytes: u32 },
    SizeLineFeed { size: u64 },
    ChunkContent { remaining: u64 },
    ChunkReturn,
    ChunkLineFeed,
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLineFeed,
    LastLineFeed,
    End,
}

impl BodyReader {
    pub fn new(length: BodyLength, bytes_max: u64) -> BodyReader {
        let expect = match length {
            BodyLength::None | BodyLength::Known(0) => Expect::End,
            BodyLength::Known(remaining) => Expect::Content { remaining },
            BodyLength::Chunked => Expect::Size { digits: 0, size: 0 },
            BodyLength::UntilClose => Expect::ContentUntilClose,
        };
        BodyReader { expect, allowed_bytes: bytes_max, extensions_bytes: 0, trailers_bytes: 0 }
    }

    /// Changes the size limit of the body. Call it only before any of the body was read.
    pub fn set_limit(&mut self, bytes_max: u64) {
        self.allowed_bytes = bytes_max;
    }

    /// True if the announced length is over the limit.
    pub fn is_too_long(&self) -> bool {
        matches!(self.expect, Expect::Content { remaining } if remaining > self.allowed_bytes)
    }

    pub fn is_at_end(&self) -> bool {
        self.expect == Expect::End
    }

    /// True if the end of the connection is the end of this body.
    pub fn ends_with_connection(&self) -> bool {
        self.expect == Expect::ContentUntilClose
    }

    /// Returns the next piece of content, or the end. `None` means that all of `input` is consumed.
    pub fn read<'i>(&mut self, input: &mut &'i [u8]) -> Result<Option<BodyPart<'i>>, Refusal> {
        if self.is_too_long() {
            return Err(Refusal::BodyTooLong);
        }
        loop {
            match &mut self.expect {
                Expect::End => return Ok(Some(BodyPart::End)),
                _ if input.is_empty() => return Ok(None),
                Expect::ContentUntilClose => {
                    let piece = std::mem::take(input);
                    let taken = piece.len() as u64;
                    let left = self.allowed_bytes.checked_sub(taken);
                    self.allowed_bytes = left.ok_or(Refusal::BodyTooLong)?;
                    return Ok(Some(BodyPart::Piece(piece)));
                }
                Expect::Content { remaining } => {
                    let piece = take_piece(input, remaining);
                    if *remaining == 0 {
                        self.expect = Expect::End;
                    }
                    return Ok(Some(BodyPart::Piece(piece)));
                }
                Expect::ChunkContent { remaining } => {
                    let piece = take_piece(input, remaining);
                    if *remaining == 0 {
                        self.expect = Expect::ChunkReturn;
                    }
                    return Ok(Some(BodyPart::Piece(piece)));
                }
                expect => {
                    let byte = input[0];
                    let next = expect.after(byte)?;
                    self.enter(next)?;
                    *input = &input[1..];
                }
            }
        }
    }

    /// Checks limits and enters the state `next`.
    fn enter(&mut self, next: Expect) -> Result<(), Refusal> {
        match next {
            Expect::Extension { bytes, .. } => {
                self.extensions_bytes += 1;
                if bytes > limits::HTTP_EXTENSION_BYTES_MAX
                    || self.extensions_bytes > limits::HTTP_EXTENSIONS_BYTES_MAX
                {
                    return Err(Refusal::ExtensionsTooLong);
                }
            }
            Expect::ExtensionName { size } | Expect::SizeLineFeed { size }
                if size > self.allowed_bytes =>
            {
                return Err(Refusal::BodyTooLong);
            }
            Expect::ChunkContent { remaining } => self.allowed_bytes -= remaining,
            Expect::TrailerName | Expect::TrailerValue => {
                self.trailers_bytes += 1;
                if self.trailers_bytes > limits::HTTP_TRAILERS_BYTES_MAX {
                    return Err(Refusal::TrailersTooLong);
                }
            }
            _ => {}
        }
        self.expect = next;
        Ok(())
    }
}

/// Takes up to `remaining` bytes from the front of `input`.
fn take_piece<'i>(input: &mut &'i [u8], remaining: &mut u64) -> &'i [u8] {
    let wanted = usize::try_from(*remaining).unwrap_or(usize::MAX);
    let (piece, rest) = input.split_at(wanted.min(input.len()));
    *input = rest;
    *remaining -= piece.len() as u64;
    piece
}

impl Expect {
    /// Returns the state after `byte`, which is not content.
    fn after(self, byte: u8) -> Result<Expect, Refusal> {
        Ok(match self {
            Expect::Size { digits, size } => match (byte as char).to_digit(16) {
                Some(_) if digits == 16 => return Err(Refusal::BadChunkSize),
                Some(digit) => {
                    Expect::Size { digits: digits + 1, size: size << 4 | u64::from(digit) }
                }
                None if digits == 0 => return Err(Refusal::BadChunkSize),
                None if byte == b';' => Expect::ExtensionName { size },
                None if byte == b'\r' => Expect::SizeLineFeed { size },
                None => return Err(Refusal::BadChunkSize),
            },
            Expect::ExtensionName { size } if is_token(byte) => {
                Expect::Extension { size, bytes: 1 }
            }
            Expect::ExtensionName { .. } => return Err(Refusal::BadChunkExtension),
            Expect::Extension { size, bytes } => match byte {
                b'\r' => Expect::SizeLineFeed { size },
                _ if is_text(byte) => Expect::Extension { size, bytes: bytes + 1 },
                _ => return Err(Refusal::BadChunkExtension),
            },
            Expect::SizeLineFeed { size } => match (byte, size) {
                (b'\n', 0) => Expect::TrailerStart,
                (b'\n', remaining) => Expect::ChunkContent { remaining },
                _ => return Err(Refusal::BadChunkSize),
            },
            Expect::ChunkReturn if byte == b'\r' => Expect::ChunkLineFeed,
            Expect::ChunkLineFeed if byte == b'\n' => Expect::Size { digits: 0, size: 0 },
            Expect::ChunkReturn | Expect::ChunkLineFeed => return Err(Refusal::BadChunkEnd),
            Expect::TrailerStart if byte == b'\r' => Expect::LastLineFeed,
            Expect::TrailerStart if is_token(byte) => Expect::TrailerName,
            Expect::TrailerName if byte == b':' => Expect::TrailerValue,
            Expect::TrailerName if is_token(byte) => Expect::TrailerName,
            Expect::TrailerValue if byte == b'\r' => Expect::TrailerLineFeed,
            Expect::TrailerValue if is_text(byte) => Expect::TrailerValue,
            Expect::TrailerLineFeed if byte == b'\n' => Expect::TrailerStart,
            Expect::LastLineFeed if byte == b'\n' => Expect::End,
            Expect::TrailerStart
            | Expect::TrailerName
            | Expect::TrailerValue
            | Expect::TrailerLineFeed
            | Expect::LastLineFeed => return Err(Refusal::BadTrailer),
            Expect::Content { .. }
            | Expect::ContentUntilClose
            | Expect::ChunkContent { .. }
            | Expect::End => unreachable!("content is not read byte by byte"),
        })
    }
}

/// True if the byte may be part of a name (RFC 9110, section 5.6.2).
pub(super) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// True if the byte may be part of a value.
pub(super) fn is_text(byte: u8) -> bool {
    byte == b'\t' || !byte.is_ascii_control()
}
