//! The reasons to refuse a message, and the status of the reply to each.

use std::fmt;

use super::response::Status;
use crate::limits;

/// The reason why a message is refused. Each of these closes the connection, because the bytes that
/// follow could be read in two ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    // Bytes that are not permitted anywhere in a head.
    /// A line feed without a carriage return before it.
    BareLineFeed,
    /// A carriage return without a line feed after it.
    BareCarriageReturn,
    /// A NUL.
    Nul,
    /// Another control character.
    ControlCharacter,
    /// The beginning of a TLS handshake.
    TlsHandshake,
    /// More than one empty line before the first line.
    EmptyLines,

    // The first line.
    /// It is not `METHOD TARGET HTTP/1.1` with one space between each.
    BadFirstLine,
    /// `CONNECT`, which asks for a tunnel.
    NoTunnel,
    /// A version that is not HTTP/1.1 or HTTP/1.0.
    UnknownVersion,
    /// The target is neither a path, nor `http://…`, nor `*` of `OPTIONS`.
    BadTarget,
    /// The authority of an absolute target is not the one of `Host`.
    TargetIsNotHost,

    // Headers.
    /// A header continues in the next line, which is obsolete (RFC 9112, section 5.2).
    FoldedHeader,
    /// White space between the name of a header and its colon.
    SpaceBeforeColon,
    /// A line without a colon, or with an invalid name.
    BadHeader,
    /// No `Host`, in HTTP/1.1.
    NoHost,
    /// More than one `Host`.
    RepeatedHost,
    /// A `Host` that is not a name or address with an optional port.
    BadHost,
    /// An `Expect` other than `100-continue`.
    UnknownExpectation,

    // The length of the body.
    /// Both `Content-Length` and `Transfer-Encoding`.
    TwoLengths,
    /// More than one `Content-Length`, equal or not.
    RepeatedLength,
    /// A `Content-Length` that is not a number in plain digits.
    BadLength,
    /// A `Transfer-Encoding` that is repeated, or does not end in a single `chunked`.
    BadTransferEncoding,
    /// Transfer codings beside `chunked`.
    UnknownTransferCoding,
    /// `Transfer-Encoding` in HTTP/1.0, which has none.
    TransferEncodingInOldVersion,
    /// No body was announced, and the route needs one.
    LengthRequired,

    // Chunked bodies.
    /// The size of a chunk is not 1 to 16 hexadecimal digits.
    BadChunkSize,
    /// The extensions of a chunk do not begin with a name, or have control characters.
    BadChunkExtension,
    /// A chunk is not followed by a line end.
    BadChunkEnd,
    /// A trailer is not `name: value`.
    BadTrailer,

    // Limits.
    /// The first line is longer than [`limits::HTTP_FIRST_LINE_BYTES_MAX`].
    FirstLineTooLong,
    /// A header is longer than [`limits::HTTP_HEADER_BYTES_MAX`].
    HeaderTooLong,
    /// The number of headers exceeds [`limits::HTTP_HEADERS_MAX`].
    TooManyHeaders,
    /// The head is longer than [`limits::HTTP_HEAD_BYTES_MAX`].
    HeadTooLong,
    /// The body is longer than its route allows.
    BodyTooLong,
    /// The chunk extensions are longer than [`limits::HTTP_EXTENSION_BYTES_MAX`] for one chunk, or
    /// than [`limits::HTTP_EXTENSIONS_BYTES_MAX`] together.
    ExtensionsTooLong,
    /// The trailers are longer than [`limits::HTTP_TRAILERS_BYTES_MAX`].
    TrailersTooLong,

    // Time, which the caller measures.
    /// The message did not arrive in time.
    TooSlow,
    /// The bytes ended in the middle of the message.
    Truncated,
}

impl Refusal {
    /// The status of the reply that a server sends before it closes the connection.
    pub fn status(self) -> Status {
        match self {
            Refusal::TooSlow => Status::REQUEST_TIMEOUT,
            Refusal::LengthRequired => Status::LENGTH_REQUIRED,
            Refusal::BodyTooLong => Status::CONTENT_TOO_LARGE,
            Refusal::FirstLineTooLong => Status::URI_TOO_LONG,
            Refusal::UnknownExpectation => Status::EXPECTATION_FAILED,
            Refusal::HeaderTooLong
            | Refusal::TooManyHeaders
            | Refusal::HeadTooLong
            | Refusal::TrailersTooLong => Status::HEADERS_TOO_LARGE,
            Refusal::NoTunnel | Refusal::UnknownTransferCoding => Status::NOT_IMPLEMENTED,
            Refusal::UnknownVersion => Status::VERSION_NOT_SUPPORTED,
            _ => Status::BAD_REQUEST,
        }
    }

    /// The limit that was exceeded, if it is the same for all routes.
    pub fn limit(self) -> Option<u32> {
        match self {
            Refusal::FirstLineTooLong => Some(limits::HTTP_FIRST_LINE_BYTES_MAX),
            Refusal::HeaderTooLong => Some(limits::HTTP_HEADER_BYTES_MAX),
            Refusal::TooManyHeaders => Some(limits::HTTP_HEADERS_MAX),
            Refusal::HeadTooLong => Some(limits::HTTP_HEAD_BYTES_MAX),
            Refusal::ExtensionsTooLong => Some(limits::HTTP_EXTENSION_BYTES_MAX),
            Refusal::TrailersTooLong => Some(limits::HTTP_TRAILERS_BYTES_MAX),
            _ => None,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Refusal::BareLineFeed => "a line feed has no carriage return before it",
            Refusal::BareCarriageReturn => "a carriage return has no line feed after it",
            Refusal::Nul => "the head contains a NUL",
            Refusal::ControlCharacter => "the head contains a control character",
            Refusal::TlsHandshake => {
                "the bytes begin a TLS handshake, but this port speaks plain HTTP; use http://"
            }
            Refusal::EmptyLines => "empty lines come before the first line",
            Refusal::BadFirstLine => "the first line is not a line of HTTP/1.1",
            Refusal::NoTunnel => "CONNECT is not supported: this server is not a proxy",
            Refusal::UnknownVersion => "the version must be HTTP/1.1 or HTTP/1.0",
            Refusal::BadTarget => "the target is not a path",
            Refusal::TargetIsNotHost => "the authority of the target differs from Host",
            Refusal::FoldedHeader => "a header continues on the next line",
            Refusal::SpaceBeforeColon => "a header has white space before its colon",
            Refusal::BadHeader => "a header is not `name: value`",
            Refusal::NoHost => "Host is missing",
            Refusal::RepeatedHost => "Host occurs more than once",
            Refusal::BadHost => "Host is not a name or address with an optional port",
            Refusal::UnknownExpectation => "Expect is not 100-continue",
            Refusal::TwoLengths => "both Content-Length and Transfer-Encoding are present",
            Refusal::RepeatedLength => "Content-Length occurs more than once",
            Refusal::BadLength => "Content-Length is not a number in plain digits",
            Refusal::BadTransferEncoding => "Transfer-Encoding must be `chunked`, exactly once",
            Refusal::UnknownTransferCoding => "Transfer-Encoding has codings other than `chunked`",
            Refusal::TransferEncodingInOldVersion => "HTTP/1.0 has no Transfer-Encoding",
            Refusal::LengthRequired => "a body is required, but the request has none",
            Refusal::BadChunkSize => "a chunk's size is not 1 to 16 hexadecimal digits",
            Refusal::BadChunkExtension => "a chunk's extensions are malformed",
            Refusal::BadChunkEnd => "a chunk is not followed by a line end",
            Refusal::BadTrailer => "a trailer is not `name: value`",
            Refusal::FirstLineTooLong => "the first line is too long",
            Refusal::HeaderTooLong => "a header is too long",
            Refusal::TooManyHeaders => "the head has too many headers",
            Refusal::HeadTooLong => "the head is too long",
            Refusal::BodyTooLong => "the body is too long",
            Refusal::ExtensionsTooLong => "the chunk extensions are too long",
            Refusal::TrailersTooLong => "the trailers are too long",
            Refusal::TooSlow => "the message did not arrive in time",
            Refusal::Truncated => "the message ended early",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.text())?;
        match self.limit() {
            Some(limit) => write!(out, ", the limit is {limit}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Refusal {}
