//! The endpoint of a model: its server, its name there, and the key.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::limits;

const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

/// The protocol of a model's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// OpenAI's Chat Completions, and compatible servers.
    ChatCompletions,
    /// OpenAI's Responses.
    Responses,
    /// Anthropic's Messages.
    Messages,
}

impl FromStr for Wire {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Wire, EndpointError> {
        match text {
            "chat" => Ok(Wire::ChatCompletions),
            "responses" => Ok(Wire::Responses),
            "messages" => Ok(Wire::Messages),
            _ => Err(EndpointError::UnknownWire),
        }
    }
}

impl fmt::Display for Wire {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Wire::ChatCompletions => "chat",
            Wire::Responses => "responses",
            Wire::Messages => "messages",
        })
    }
}

/// A model and its server.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// The wire of the server.
    pub wire: Wire,
    /// The base URL of the server.
    pub base_url: BaseUrl,
    /// The name of the model on the server.
    pub model: String,
    /// The key; a server on this machine usually needs none.
    pub key: Option<Secret>,
}

impl Endpoint {
    /// Returns the path of requests. Base URLs are given as in the vendors' own libraries: without
    /// a version for Messages, with one for OpenAI's wires.
    ///
    /// ```
    /// use streamdoor::agents::{Endpoint, Wire};
    ///
    /// let path = |wire, base: &str| {
    ///     let base_url = base.parse().expect("it is one");
    ///     Endpoint { wire, base_url, model: String::new(), key: None }.path()
    /// };
    /// let chat = path(Wire::ChatCompletions, "https://api.openai.com/v1");
    /// assert_eq!(chat, "/v1/chat/completions");
    /// assert_eq!(path(Wire::Messages, "https://api.anthropic.com"), "/v1/messages");
    /// assert_eq!(path(Wire::Messages, "https://api.anthropic.com/v1/"), "/v1/messages");
    /// ```
    pub fn path(&self) -> String {
        let prefix = &self.base_url.path_prefix;
        match self.wire {
            Wire::ChatCompletions => format!("{prefix}/chat/completions"),
            Wire::Responses => format!("{prefix}/responses"),
            Wire::Messages if prefix.ends_with("/v1") => format!("{prefix}/messages"),
            Wire::Messages => format!("{prefix}/v1/messages"),
        }
    }
}

/// The base URL of requests: `http://HOST:PORT/PREFIX` or `https://…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseUrl {
    /// True if the server is reached over TLS.
    pub is_tls: bool,
    /// The host name or address in lower case. An IPv6 address has no brackets.
    pub host: String,
    /// The port, from 1 to 65535.
    pub port: u16,
    /// The prefix of every path: empty, or e.g. `/v1`, without a trailing slash.
    pub path_prefix: String,
}

impl BaseUrl {
    /// Returns the value of the `Host` header.
    pub fn authority(&self) -> String {
        let BaseUrl { is_tls, host, port, .. } = self;
        let host = match host.contains(':') {
            true => Cow::Owned(format!("[{host}]")),
            false => Cow::Borrowed(host),
        };
        let default = if *is_tls { HTTPS_PORT } else { HTTP_PORT };
        if *port == default { host.into_owned() } else { format!("{host}:{port}") }
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        write!(out, "{scheme}://{}{}", self.authority(), self.path_prefix)
    }
}

impl FromStr for BaseUrl {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<BaseUrl, EndpointError> {
        let (scheme, rest) = text.split_once("://").ok_or(EndpointError::UnknownScheme)?;
        let is_tls = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => return Err(EndpointError::UnknownScheme),
        };
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err(EndpointError::Credentials);
        }
        let (host, port) = host_and_port(authority)?;
        let port = match port {
            None => {
                if is_tls {
                    HTTPS_PORT
                } else {
                    HTTP_PORT
                }
            }
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().ok().filter(|port| *port > 0).ok_or(EndpointError::BadPort)?
            }
            Some(_) => return Err(EndpointError::BadPort),
        };
        let is_path_byte =
            |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:@%".contains(&byte);
        if path.len() > limits::MODEL_PATH_BYTES_MAX || !path.bytes().all(is_path_byte) {
            return Err(EndpointError::BadPath);
        }
        let path_prefix = path.trim_end_matches('/').to_owned();
        Ok(BaseUrl { is_tls, host: host.to_ascii_lowercase(), port, path_prefix })
    }
}

/// Splits an authority into host and port, and removes the brackets of an IPv6 address.
fn host_and_port(authority: &str) -> Result<(&str, Option<&str>), EndpointError> {
    let is_host_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let is_ipv6_byte = |byte: u8| byte.is_ascii_hexdigit() || b":.".contains(&byte);
    let (host, behind, is_good) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, behind) = rest.split_once(']').ok_or(EndpointError::BadHost)?;
            (host, behind, host.contains(':') && host.bytes().all(is_ipv6_byte))
        }
        None => {
            let (host, behind) = authority.split_at(authority.find(':').unwrap_or(authority.len()));
            (host, behind, host.bytes().all(is_host_byte))
        }
    };
    if !is_good || host.is_empty() || host.len() > limits::MODEL_HOST_BYTES_MAX {
        return Err(EndpointError::BadHost);
    }
    match behind.strip_prefix(':') {
        Some(port) => Ok((host, Some(port))),
        None if behind.is_empty() => Ok((host, None)),
        None => Err(EndpointError::BadHost),
    }
}

/// A key, which is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Takes a key from an environment variable or a file. Surrounding white space is removed.
    ///
    /// # Errors
    /// [`EndpointError::BadKey`] if it is empty, too long, or contains bytes that are not allowed
    /// in a header.
    pub fn new(text: &str) -> Result<Secret, EndpointError> {
        let text = text.trim();
        let fits = (1..=limits::MODEL_KEY_BYTES_MAX).contains(&text.len());
        match fits && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(Secret(text.into())),
            false => Err(EndpointError::BadKey),
        }
    }

    /// Returns the key itself, for the head of a request.
    pub(super) fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns `text` with `[key]` in place of every occurrence of the key.
    pub fn scrub<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match text.contains(&*self.0) {
            true => Cow::Owned(text.replace(&*self.0, "[key]")),
            false => Cow::Borrowed(text),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Secret")
    }
}

/// The error for an invalid description of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointError {
    /// The wire is none of the three.
    UnknownWire,
    /// The base URL begins with neither `http://` nor `https://`.
    UnknownScheme,
    /// The base URL has no host, or the host contains an invalid character.
    BadHost,
    /// The port is not a number from 1 to 65535.
    BadPort,
    /// The path is too long or contains an invalid character. A query is not allowed either.
    BadPath,
    /// The base URL contains a user name or a password, which are not sent.
    Credentials,
    /// The key is empty, too long, or contains bytes that are not allowed in a header.
    BadKey,
}

impl fmt::Display for EndpointError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            EndpointError::UnknownWire => "a wire is `chat`, `responses` or `messages`",
            EndpointError::UnknownScheme => "a base URL must begin with `http://` or `https://`",
            EndpointError::BadHost => "the host of the base URL is invalid",
            EndpointError::BadPort => "the port of the base URL is not a number from 1 to 65535",
            EndpointError::BadPath => "the path of the base URL is too long or invalid",
            EndpointError::Credentials => {
                "a base URL must not contain a name or password; use a key"
            }
            EndpointError::BadKey => {
                "the key is empty, too long, or has characters that a header cannot have"
            }
        })
    }
}

impl std::error::Error for EndpointError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_urls_are_taken_apart_and_written_again() {
        let table = [
            ("https://api.openai.com/v1", (true, "api.openai.com", 443, "/v1")),
            ("HTTP://LocalHost:8080", (false, "localhost", 8_080, "")),
            ("http://[::1]:81/a/b//", (false, "::1", 81, "/a/b")),
            ("https://127.0.0.1:443/", (true, "127.0.0.1", 443, "")),
            ("http://host_1:443/~x/%20", (false, "host_1", 443, "/~x/%20")),
        ];
        for (text, (is_tls, host, port, path_prefix)) in table {
            let url: BaseUrl = text.parse().unwrap();
            let (host, path_prefix) = (host.to_owned(), path_prefix.to_owned());
            assert_eq!(url, BaseUrl { is_tls, host, port, path_prefix }, "{text}");
            assert_eq!(url.to_string().parse(), Ok(url), "{text}");
        }
    }

    #[test]
    fn what_is_no_base_url_is_refused() {
        let long_host = format!("http://{}/", "a".repeat(254));
        let long_path = format!("http://a/{}", "a".repeat(limits::MODEL_PATH_BYTES_MAX));
        for (text, error) in [
            ("", EndpointError::UnknownScheme),
            ("localhost:80", EndpointError::UnknownScheme),
            ("ws://localhost", EndpointError::UnknownScheme),
            ("http://", EndpointError::BadHost),
            ("http:///v1", EndpointError::BadHost),
            ("http://a b/", EndpointError::BadHost),
            ("http://ä/", EndpointError::BadHost),
            ("http://[::1/", EndpointError::BadHost),
            ("http://[localhost]/", EndpointError::BadHost),
            ("http://[::1]80/", EndpointError::BadHost),
            (&long_host, EndpointError::BadHost),
            ("http://me:secret@host/", EndpointError::Credentials),
            ("http://a:0/", EndpointError::BadPort),
            ("http://a:65536/", EndpointError::BadPort),
            ("http://a:+80/", EndpointError::BadPort),
            ("http://a:/", EndpointError::BadPort),
            ("http://a/?version=1", EndpointError::BadPath),
            ("http://a/#b", EndpointError::BadPath),
            ("http://a/b c", EndpointError::BadPath),
            ("http://a/\r\nx: y", EndpointError::BadPath),
            (&long_path, EndpointError::BadPath),
        ] {
            assert_eq!(text.parse::<BaseUrl>(), Err(error), "{text:?}");
        }
    }

    #[test]
    fn wires_are_called_as_they_are_printed() {
        for wire in [Wire::ChatCompletions, Wire::Responses, Wire::Messages] {
            assert_eq!(wire.to_string().parse(), Ok(wire));
        }
        assert_eq!("".parse::<Wire>(), Err(EndpointError::UnknownWire));
    }

    #[test]
    fn keys_fit_into_a_header_and_are_not_printed() {
        let key = Secret::new("  sk-1\n").unwrap();
        assert_eq!(key.reveal(), "sk-1");
        assert_eq!(format!("{key:?}"), "Secret");
        assert_eq!(key.scrub("a sk-1 b"), "a [key] b");
        let long = "k".repeat(limits::MODEL_KEY_BYTES_MAX + 1);
        for text in ["", " ", "a b", "a\r\nb", "ä", &long] {
            assert_eq!(Secret::new(text).err(), Some(EndpointError::BadKey));
        }
    }
}
