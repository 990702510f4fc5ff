//! The head of a request, parsed by `httparse` and then checked against further rules. The host and
//! the end of the body must have only one reading.

use std::fmt;
use std::io::BufRead;

use super::body::{BodyLength, is_token};
use super::refusal::Refusal;
use super::target::{RequestTarget, is_authority};
use crate::limits;

/// The method of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// `GET`.
    Get,
    /// `HEAD`: like `GET`, but the response has no body.
    Head,
    /// `POST`.
    Post,
    /// `PUT`.
    Put,
    /// `DELETE`.
    Delete,
    /// `OPTIONS`.
    Options,
    /// Any other method, such as `PATCH`, `TRACE` or an extension. No path allows it.
    Other,
}

/// The HTTP version of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// HTTP/1.0: no chunks, and no second request unless the client asks for it.
    Http10,
    /// HTTP/1.1.
    Http11,
}

/// A header as it was sent, without white space around its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// The name, in the sender's case.
    pub name: &'a str,
    /// The value: visible characters, spaces, tabs, and bytes from 0x80 on.
    pub value: &'a [u8],
}

/// The headers of a message, in their order. They stay in the received bytes. A lookup scans them,
/// because there are few. Most lookups are for a header that is not there: they do not scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers<'a> {
    /// The valid header lines, each with its end.
    lines: &'a [u8],
    /// The bits of all names: see [`bit_of`].
    names: u64,
}

/// Returns one of 64 bits for the name of a header. Names that differ only in case have the same
/// bit.
#[inline]
fn bit_of(name: &[u8]) -> u64 {
    let [first, .., last] = name else { return 1 };
    let (first, last) = (first.to_ascii_lowercase(), last.to_ascii_lowercase());
    1 << ((name.len() as u32 + 7 * u32::from(first) + 13 * u32::from(last)) % u64::BITS)
}

/// The error of a header that may occur once and is repeated, or is not ASCII text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderFault {
    /// The name of the header.
    pub name: &'static str,
}

/// The head of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHead<'a> {
    /// The method.
    pub method: Method,
    /// The target.
    pub target: RequestTarget<'a>,
    /// The HTTP version.
    pub version: Version,
    /// The host in the request, as the client knows it. Only HTTP/1.0 may omit it. The caller
    /// checks whether this server is that host.
    pub host: Option<&'a str>,
    /// The length of the body.
    pub body: BodyLength,
    /// True if the client waits for [`super::CONTINUE`] before it sends the body.
    pub expects_continue: bool,
    /// True if the connection may carry another request.
    pub keeps_alive: bool,
    /// All headers.
    pub headers: Headers<'a>,
}

impl<'a> RequestHead<'a> {
    /// Parses a head that [`super::scan::HeadScan`] has found whole.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<RequestHead<'a>, Refusal> {
        let mut storage = [httparse::EMPTY_HEADER; limits::HTTP_HEADERS_MAX as usize];
        let mut request = httparse::Request::new(&mut storage);
        match request.parse(bytes) {
            Ok(httparse::Status::Complete(used)) if used == bytes.len() => {}
            Ok(_) => return Err(Refusal::BadFirstLine), // It found another end than ours.
            Err(error) => return Err(refusal_of(error, bytes)),
        }
        let version = version_of(request.version);
        let method = Method::parse(request.method.unwrap_or_default())?;
        let target = request.path.unwrap_or_default();
        let target = RequestTarget::parse(target, method == Method::Options)?;
        let headers = Headers::new(bytes, request.headers);
        let said = FramingHeaders::by(request.headers);
        let host = host(&said, version, &target)?;
        let body = framing(&said, version)?.unwrap_or(BodyLength::None);
        Ok(RequestHead {
            method,
            target,
            version,
            host,
            body,
            expects_continue: expects_continue(&said, version)? && body != BodyLength::None,
            keeps_alive: said.keeps_alive(version),
            headers,
        })
    }

    /// Checks that a body was announced, which may be empty, for routes that need one.
    ///
    /// # Errors
    /// [`Refusal::LengthRequired`] if none was announced.
    pub fn require_body(&self) -> Result<(), Refusal> {
        match self.body {
            BodyLength::None => Err(Refusal::LengthRequired),
            _ => Ok(()),
        }
    }
}

impl Method {
    /// All methods that a path may allow.
    pub const ALL: [Method; 6] =
        [Method::Get, Method::Head, Method::Post, Method::Put, Method::Delete, Method::Options];

    /// The name, which is case-sensitive. [`Method::Other`] has no name of its own.
    pub fn name(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Head => "HEAD",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Delete => "DELETE",
            Method::Options => "OPTIONS",
            Method::Other => "another method",
        }
    }

    /// Reads the name. The message that follows `CONNECT` is no body, so nothing after it can be
    /// read.
    fn parse(name: &str) -> Result<Method, Refusal> {
        match Method::ALL.into_iter().find(|method| method.name() == name) {
            Some(method) => Ok(method),
            None if name == "CONNECT" => Err(Refusal::NoTunnel),
            None => Ok(Method::Other),
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl fmt::Display for HeaderFault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "the header {} occurs more than once or is not ASCII", self.name)
    }
}

impl std::error::Error for HeaderFault {}

impl<'a> Headers<'a> {
    /// Takes the headers of a head in which `httparse` found `parsed`. It has checked each line,
    /// and this type splits the lines at the same places.
    pub(super) fn new(head: &'a [u8], parsed: &[httparse::Header<'a>]) -> Headers<'a> {
        let first = parsed.first().map(|header| header.name.as_ptr() as usize);
        let start = first.map_or(head.len(), |first| first - head.as_ptr() as usize);
        let bits = parsed.iter().map(|header| bit_of(header.name.as_bytes()));
        let names = bits.fold(0, |names, bit| names | bit);
        let headers = Headers { lines: &head[start..], names };
        debug_assert!(headers.iter().eq(parsed.iter().map(|header| {
            let (name, value) = (header.name, header.value.trim_ascii());
            Header { name, value }
        })));
        headers
    }

    /// Returns all headers.
    pub fn iter(&self) -> impl Iterator<Item = Header<'a>> + Clone + use<'a> {
        lines_of(self.lines).filter_map(|line| {
            let colon = line.iter().position(|byte| *byte == b':')?;
            let name = std::str::from_utf8(&line[..colon]).ok()?;
            Some(Header { name, value: line[colon + 1..].trim_ascii() })
        })
    }

    /// Returns the values of a name, which is not case-sensitive.
    pub fn all<'n>(&self, name: &'n str) -> impl Iterator<Item = &'a [u8]> + Clone + use<'a, 'n> {
        let is_there = self.names & bit_of(name.as_bytes()) != 0;
        lines_of(if is_there { self.lines } else { &[] }).filter_map(move |line| {
            // A name has no colon. The first colon of the line is here, or the line has another
            // name.
            let (found, rest) = line.split_at_checked(name.len())?;
            let value = rest.strip_prefix(b":")?;
            found.eq_ignore_ascii_case(name.as_bytes()).then(|| value.trim_ascii())
        })
    }

    /// Returns the ASCII values of a name. It is for lists, in which unreadable elements are
    /// skipped.
    pub fn texts<'n>(&self, name: &'n str) -> impl Iterator<Item = &'a str> + Clone + use<'a, 'n> {
        let text =
            |value: &'a [u8]| std::str::from_utf8(value).ok().filter(|text: &&str| text.is_ascii());
        self.all(name).filter_map(text)
    }

    /// Returns the value, as ASCII, of a header that may occur once: `Content-Type`, `Origin`,
    /// `Authorization`, `Last-Event-ID` …
    ///
    /// # Errors
    /// [`HeaderFault`] if it occurs more than once or is not ASCII.
    pub fn only(&self, name: &'static str) -> Result<Option<&'a str>, HeaderFault> {
        let mut values = self.all(name);
        let Some(value) = values.next() else { return Ok(None) };
        match std::str::from_utf8(value) {
            Ok(text) if text.is_ascii() && values.next().is_none() => Ok(Some(text)),
            _ => Err(HeaderFault { name }),
        }
    }
}

/// Returns the lines, each with its end.
fn lines_of<'a>(mut rest: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + Clone + use<'a> {
    std::iter::from_fn(move || {
        let lines = rest;
        let length = rest.skip_until(b'\n').expect("reading from memory cannot fail");
        (length > 0).then(|| &lines[..length])
    })
}

pub(super) fn version_of(minor: Option<u8>) -> Version {
    match minor {
        Some(1) => Version::Http11,
        _ => Version::Http10, // httparse knows no other.
    }
}

/// Returns the reason for an error of `httparse`, which only reports where it stopped.
pub(super) fn refusal_of(error: httparse::Error, head: &[u8]) -> Refusal {
    match error {
        httparse::Error::Version if has_other_version(head) => Refusal::UnknownVersion,
        httparse::Error::Version
        | httparse::Error::Token
        | httparse::Error::Status
        | httparse::Error::NewLine => Refusal::BadFirstLine,
        httparse::Error::TooManyHeaders => Refusal::TooManyHeaders,
        httparse::Error::HeaderName | httparse::Error::HeaderValue => {
            let is_spaced = |line: &[u8]| {
                let colon = line.iter().position(|byte| *byte == b':');
                let name = &line[..colon.unwrap_or(0)];
                let trimmed = name.trim_ascii_end();
                trimmed.len() < name.len() && trimmed.iter().copied().all(is_token)
            };
            // The first invalid line is the one that stopped it.
            let mut lines = head.split(|byte| *byte == b'\n').skip(1);
            let is_good = |line: &&[u8]| {
                let colon = line.iter().position(|byte| *byte == b':').unwrap_or(0);
                colon > 0 && line[..colon].iter().copied().all(is_token)
            };
            match lines.find(|line| !is_good(line)) {
                Some(line) if is_spaced(line) => Refusal::SpaceBeforeColon,
                _ => Refusal::BadHeader,
            }
        }
    }
}

/// True if the first line is one of HTTP, except for its version.
fn has_other_version(head: &[u8]) -> bool {
    let line = head.trim_ascii_start().split(|byte| *byte == b'\r').next().unwrap_or(&[]);
    let mut words = line.split(|byte| *byte == b' ').skip(2);
    let (version, more) = (words.next().unwrap_or(&[]), words.next());
    match version.strip_prefix(b"HTTP/") {
        Some(b"1.0" | b"1.1") => false,
        Some([b'0'..=b'9', b'.', b'0'..=b'9']) => more.is_none(),
        _ => false,
    }
}

/// The headers about the host and the end of the body, collected in one pass.
#[derive(Debug, Default)]
pub(super) struct FramingHeaders<'a> {
    host: SingleHeader<'a>,
    content_length: SingleHeader<'a>,
    transfer_encoding: SingleHeader<'a>,
    expect: SingleHeader<'a>,
    close: bool,
    keep_alive: bool,
}

/// The value of a header that may occur at most once.
#[derive(Clone, Copy, Debug, Default)]
struct SingleHeader<'a> {
    value: Option<&'a [u8]>,
    is_repeated: bool,
}

impl<'a> FramingHeaders<'a> {
    pub fn by(headers: &[httparse::Header<'a>]) -> FramingHeaders<'a> {
        let mut said = FramingHeaders::default();
        for header in headers {
            let value = header.value.trim_ascii();
            let is = |name: &str| header.name.eq_ignore_ascii_case(name);
            let once = match header.name.len() {
                4 if is("host") => &mut said.host,
                6 if is("expect") => &mut said.expect,
                10 if is("connection") => {
                    said.hear_connection(value);
                    continue;
                }
                14 if is("content-length") => &mut said.content_length,
                17 if is("transfer-encoding") => &mut said.transfer_encoding,
                _ => continue,
            };
            once.is_repeated |= once.value.replace(value).is_some();
        }
        said
    }

    fn hear_connection(&mut self, value: &[u8]) {
        for option in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            self.close |= option.eq_ignore_ascii_case(b"close");
            self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
        }
    }

    /// True if another message may follow this one.
    pub fn keeps_alive(&self, version: Version) -> bool {
        !self.close && (self.keep_alive || version == Version::Http11)
    }
}

/// Returns the host. A repeated or invalid one is refused, and so is one that differs from the
/// target's.
fn host<'a>(
    said: &FramingHeaders<'a>,
    version: Version,
    target: &RequestTarget<'a>,
) -> Result<Option<&'a str>, Refusal> {
    if said.host.is_repeated {
        return Err(Refusal::RepeatedHost);
    }
    let Some(host) = said.host.value else {
        return match (version, target.authority) {
            (Version::Http11, _) => Err(Refusal::NoHost),
            (Version::Http10, Some(authority)) if !is_authority(authority) => {
                Err(Refusal::BadTarget)
            }
            (Version::Http10, authority) => Ok(authority),
        };
    };
    let host = std::str::from_utf8(host).map_err(|_| Refusal::BadHost)?;
    if !is_authority(host) {
        return Err(Refusal::BadHost);
    }
    match target.authority {
        Some(authority) if !authority.eq_ignore_ascii_case(host) => Err(Refusal::TargetIsNotHost),
        _ => Ok(Some(host)),
    }
}

/// Returns the announced length of the body; `None` if none was announced. Both sides use it.
pub(super) fn framing(
    said: &FramingHeaders<'_>,
    version: Version,
) -> Result<Option<BodyLength>, Refusal> {
    match (said.content_length.value, said.transfer_encoding.value) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err(Refusal::TwoLengths),
        (Some(_), None) if said.content_length.is_repeated => Err(Refusal::RepeatedLength),
        (Some(length), None) => Ok(Some(BodyLength::Known(parse_length(length)?))),
        (None, Some(_)) if version == Version::Http10 => Err(Refusal::TransferEncodingInOldVersion),
        (None, Some(_)) if said.transfer_encoding.is_repeated => Err(Refusal::BadTransferEncoding),
        (None, Some(coding)) => check_coding(coding).map(|()| Some(BodyLength::Chunked)),
    }
}

/// Accepts `chunked`, in any case. Codings before it are valid, but not supported.
fn check_coding(value: &[u8]) -> Result<(), Refusal> {
    if value.eq_ignore_ascii_case(b"chunked") {
        return Ok(());
    }
    let mut codings = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).rev();
    let is_last_chunked = codings.next().is_some_and(|last| last.eq_ignore_ascii_case(b"chunked"));
    let is_other = |coding: &[u8]| {
        let is_name = !coding.is_empty() && coding.iter().copied().all(is_token);
        is_name && !coding.eq_ignore_ascii_case(b"chunked")
    };
    match is_last_chunked && codings.all(is_other) {
        true => Err(Refusal::UnknownTransferCoding),
        false => Err(Refusal::BadTransferEncoding),
    }
}

/// Parses digits without a sign, and without leading zeros, which some programs read as octal.
fn parse_length(text: &[u8]) -> Result<u64, Refusal> {
    let text = std::str::from_utf8(text).map_err(|_| Refusal::BadLength)?;
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_plain || (text.len() > 1 && text.starts_with('0')) {
        return Err(Refusal::BadLength);
    }
    text.parse().map_err(|_| Refusal::BadLength)
}

fn expects_continue(said: &FramingHeaders<'_>, version: Version) -> Result<bool, Refusal> {
    match said.expect.value {
        None => Ok(false),
        Some(value) if !said.expect.is_repeated && value.eq_ignore_ascii_case(b"100-continue") => {
            Ok(version == Version::Http11) // RFC 9110, section 10.1.1: 1.0 is ignored.
        }
        Some(_) => Err(Refusal::UnknownExpectation),
    }
}
