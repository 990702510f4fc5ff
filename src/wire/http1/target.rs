//! The target of a request: a path, and a query string.
//!
//! A path is first split at its slashes. Each segment is then decoded, once. A segment that would
//! look like two, like none, or like a way upwards is refused and never repaired.

use std::borrow::Cow;
use std::fmt;

use super::refusal::Refusal;

/// The target of a request, as it was sent, without scheme and authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestTarget<'a> {
    /// The path, still percent-encoded. It begins with `/`, or is `*` for the whole server.
    pub path: &'a str,
    /// The text after the first `?`, still percent-encoded; empty if there is none.
    pub query: &'a str,
    /// The authority of an absolute target.
    pub(super) authority: Option<&'a str>,
}

/// The reason why a path or a query string cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// A `%` is not followed by two hexadecimal digits.
    BadEscape,
    /// The decoded text is not UTF-8.
    NotUtf8,
    /// The decoded text has a control character.
    ControlCharacter,
    /// A segment has an encoded slash or a backslash.
    Slash,
    /// A segment is `.` or `..`.
    Dots,
}

impl<'a> RequestTarget<'a> {
    /// Parses the second word of a first line. `allows_all` tells whether it may be `*`.
    pub(super) fn parse(text: &'a str, allows_all: bool) -> Result<RequestTarget<'a>, Refusal> {
        if !text.bytes().all(|byte| matches!(byte, 0x21..0x7F) && byte != b'#') {
            return Err(Refusal::BadTarget);
        }
        if text == "*" {
            let all = RequestTarget { path: "*", query: "", authority: None };
            return if allows_all { Ok(all) } else { Err(Refusal::BadTarget) };
        }
        let (authority, local) = match text.starts_with('/') {
            true => (None, text),
            false => {
                let rest = strip_scheme(text).ok_or(Refusal::BadTarget)?;
                let end = rest.find(['/', '?']).unwrap_or(rest.len());
                (Some(&rest[..end]), &rest[end..])
            }
        };
        let (path, query) = local.split_once('?').unwrap_or((local, ""));
        let path = if path.is_empty() { "/" } else { path };
        Ok(RequestTarget { path, query, authority })
    }

    /// Returns the target of a path without a query string.
    pub fn of_path(path: &'a str) -> RequestTarget<'a> {
        RequestTarget { path, query: "", authority: None }
    }

    /// Returns the decoded segments of the path. `/v1/tools` has two, `/` has none, `/v1/` has an
    /// empty one at its end.
    ///
    /// # Errors
    /// [`DecodeError`], in the place of the segment.
    pub fn segments(&self) -> impl Iterator<Item = Result<Cow<'a, str>, DecodeError>> + use<'a> {
        let path = self.path.strip_prefix('/').unwrap_or(self.path);
        let count = if path.is_empty() { 0 } else { usize::MAX };
        path.split('/').take(count).map(decode_segment)
    }
}

fn strip_scheme(text: &str) -> Option<&str> {
    let (scheme, rest) = text.split_once("://")?;
    let is_ours = ["http", "https"].iter().any(|ours| scheme.eq_ignore_ascii_case(ours));
    is_ours.then_some(rest)
}

fn decode_segment(segment: &str) -> Result<Cow<'_, str>, DecodeError> {
    let text = decode(segment, false)?;
    if text.contains(['/', '\\']) {
        return Err(DecodeError::Slash);
    }
    if text.contains(char::is_control) {
        return Err(DecodeError::ControlCharacter);
    }
    match &*text {
        "." | ".." => Err(DecodeError::Dots),
        _ => Ok(text),
    }
}

/// Decodes `%41`, and `+` as a space if `plus_is_space`. It allocates only if the text contains
/// any.
pub(super) fn decode(text: &str, plus_is_space: bool) -> Result<Cow<'_, str>, DecodeError> {
    let is_special = |byte: u8| byte == b'%' || (plus_is_space && byte == b'+');
    if !text.bytes().any(is_special) {
        return Ok(Cow::Borrowed(text));
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let mut digit = || (bytes.next()? as char).to_digit(16);
                let (high, low) = (digit(), digit());
                let (high, low) = high.zip(low).ok_or(DecodeError::BadEscape)?;
                (high << 4 | low) as u8
            }
            b'+' if plus_is_space => b' ',
            _ => byte,
        });
    }
    let text = String::from_utf8(decoded).map_err(|_| DecodeError::NotUtf8)?;
    match text.contains('\0') {
        true => Err(DecodeError::ControlCharacter),
        false => Ok(Cow::Owned(text)),
    }
}

/// True if the text is `name` or `name:port`, as in `Host` and absolute targets. The name may be an
/// address.
pub(super) fn is_authority(text: &str) -> bool {
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let Some((address, port)) = rest.split_once(']') else { return false };
            let is_address = address.parse::<std::net::Ipv6Addr>().is_ok();
            return is_address && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port));
        }
        None => text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port))),
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_name) && port.is_none_or(is_port)
}

fn is_port(text: &str) -> bool {
    let digits = text.len() <= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    digits && text.parse::<u16>().is_ok()
}

impl fmt::Display for DecodeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            DecodeError::BadEscape => "a `%` is not followed by two hexadecimal digits",
            DecodeError::NotUtf8 => "it is not UTF-8",
            DecodeError::ControlCharacter => "it contains a control character",
            DecodeError::Slash => "a segment contains a slash or backslash",
            DecodeError::Dots => "a segment is `.` or `..`",
        })
    }
}

impl std::error::Error for DecodeError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_or_refused() {
        let table = [
            ("/", Some(("/", "", None))),
            ("/v1/tools?", Some(("/v1/tools", "", None))),
            ("/a?b=c?d", Some(("/a", "b=c?d", None))),
            ("//evil.example/a", Some(("//evil.example/a", "", None))),
            ("/a%2Fb", Some(("/a%2Fb", "", None))),
            ("http://h:1/a?b", Some(("/a", "b", Some("h:1")))),
            ("HTTP://h", Some(("/", "", Some("h")))),
            ("https://h?q=/", Some(("/", "q=/", Some("h")))),
            ("http:///a", Some(("/a", "", Some("")))),
            ("*", None),
            ("", None),
            ("v1/tools", None),
            ("h:80", None),
            ("ftp://h/", None),
            ("file:///etc/passwd", None),
            ("http:/a", None),
            ("/a#b", None),
            ("/ä", None),
            ("/a\u{7f}", None),
            ("?a", None),
        ];
        for (text, expected) in table {
            let target = RequestTarget::parse(text, false).ok();
            let parts = target.map(|target| (target.path, target.query, target.authority));
            assert_eq!(parts, expected, "{text:?}");
        }
        assert_eq!(RequestTarget::parse("*", true).unwrap().path, "*");
    }

    #[test]
    fn segments_are_decoded_once_behind_the_cut() {
        let segments = |path: &str| -> Result<Vec<String>, DecodeError> {
            let target = RequestTarget::parse(path, false).unwrap();
            target.segments().map(|segment| segment.map(Cow::into_owned)).collect()
        };
        let good: [(&str, &[&str]); 8] = [
            ("/", &[]),
            ("/v1/tools", &["v1", "tools"]),
            ("/v1/", &["v1", ""]),
            ("//v1", &["", "v1"]),
            ("/%76%31/a+b", &["v1", "a+b"]),
            ("/%252F", &["%2F"]),
            ("/%C3%A4", &["ä"]),
            ("/...", &["..."]),
        ];
        for (path, expected) in good {
            assert_eq!(segments(path).unwrap(), expected, "{path}");
        }
        let bad = [
            ("/%", DecodeError::BadEscape),
            ("/%4", DecodeError::BadEscape),
            ("/%4g", DecodeError::BadEscape),
            ("/%u0041", DecodeError::BadEscape),
            ("/%+1", DecodeError::BadEscape),
            ("/%FF", DecodeError::NotUtf8),
            ("/%C0%AF", DecodeError::NotUtf8), // A slash, overlong.
            ("/%ED%A0%80", DecodeError::NotUtf8), // Half a surrogate pair.
            ("/a%00b", DecodeError::ControlCharacter),
            ("/a%0D%0Ab", DecodeError::ControlCharacter),
            ("/%C2%85", DecodeError::ControlCharacter),
            ("/a%2Fb", DecodeError::Slash),
            ("/a%2fb", DecodeError::Slash),
            ("/a%5Cb", DecodeError::Slash),
            ("/a\\b", DecodeError::Slash),
            ("/v1/../etc", DecodeError::Dots),
            ("/v1/%2e%2E/etc", DecodeError::Dots),
            ("/./a", DecodeError::Dots),
        ];
        for (path, error) in bad {
            assert_eq!(segments(path), Err(error), "{path}");
        }
    }

    #[test]
    fn an_authority_is_a_name_or_address_and_perhaps_a_port() {
        let good =
            ["localhost", "127.0.0.1:8808", "a-b.example.", "[::1]", "[::1]:80", "h:0", "h:65535"];
        for text in good {
            assert!(is_authority(text), "{text}");
        }
        let bad = [
            "",
            "h:",
            ":80",
            "a b",
            "a,b",
            "a@b",
            "a/b",
            "h:65536",
            "h:+1",
            "h:-1",
            "h:0000080",
            "h:1:2",
            "::1",
            "[::1",
            "[x]",
            "[::1]x",
            "[::1]:x",
            "ä",
            "a%41",
            "h\\",
            "h?",
            "h:1 ",
        ];
        for text in bad {
            assert!(!is_authority(text), "{text}");
        }
    }
}
