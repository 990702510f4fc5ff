//! Where a model is, what it is called there, and who asks.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::limits;

const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

/// How a model is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// OpenAI's Chat Completions, and what is compatible with it.
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

/// A model, and how to get to it.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// What is spoken there.
    pub wire: Wire,
    /// Where.
    pub base_url: BaseUrl,
    /// The model's name there.
    pub model: String,
    /// What lets us ask; servers on this machine want none.
    pub key: Option<Secret>,
}

impl Endpoint {
    /// The path of requests. Bases are as the vendors' own libraries take them: that of Messages
    /// comes without a version, those of OpenAI's wires with one.
    ///
    /// ```
    /// use streamdoor::agent::model::{Endpoint, Wire};
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

/// Where requests go: `http://HOST:PORT/PREFIX` or `https://…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseUrl {
    /// It speaks TLS.
    pub is_tls: bool,
    /// By name or by number, in lower case; without brackets, also where it is an address of IPv6.
    pub host: String,
    /// From 1 to 65535.
    pub port: u16,
    /// What stands before each path: empty, or `/v1` and the like, without a slash at its end.
    pub path_prefix: String,
}

impl BaseUrl {
    /// As a `Host` header names it.
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

/// Takes brackets off an address of IPv6.
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

/// A key. Nothing that prints prints it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Takes a key as it stands in an environment or a file: white space around it is none of it.
    ///
    /// # Errors
    /// [`EndpointError::BadKey`] if it is empty, too long, or has what no header can have.
    pub fn new(text: &str) -> Result<Secret, EndpointError> {
        let text = text.trim();
        let fits = (1..=limits::MODEL_KEY_BYTES_MAX).contains(&text.len());
        match fits && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(Secret(text.into())),
            false => Err(EndpointError::BadKey),
        }
    }

    /// The key itself, for a request's head.
    pub(super) fn reveal(&self) -> &str {
        &self.0
    }

    /// `text` without the key, wherever it stands in it.
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

/// Why a model cannot be asked as it is described.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointError {
    /// The wire is none of the three.
    UnknownWire,
    /// The base URL begins with neither `http://` nor `https://`.
    UnknownScheme,
    /// It has no host, or one with characters that no host has.
    BadHost,
    /// Its port is not a number from 1 to 65535.
    BadPort,
    /// Its path is too long, or has characters that no path has; a query is none of it.
    BadPath,
    /// Names and passwords before the host are not sent.
    Credentials,
    /// The key is empty, too long, or has characters that no header has.
    BadKey,
}

impl fmt::Display for EndpointError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            EndpointError::UnknownWire => "a wire is `chat`, `responses` or `messages`",
            EndpointError::UnknownScheme => "a base URL begins with `http://` or `https://`",
            EndpointError::BadHost => "the host of the base URL is none",
            EndpointError::BadPort => "the port of the base URL is not a number from 1 to 65535",
            EndpointError::BadPath => "the path of the base URL is too long, or is none",
            EndpointError::Credentials => "a base URL has no name and password: there are keys",
            EndpointError::BadKey => "the key is empty, too long, or has characters of no header",
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
