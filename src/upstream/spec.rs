//! The description of an upstream.

use std::fmt;
use std::time::Duration;

use crate::client::exchange::ServerUrl;
use crate::limits;
use crate::mcp::upstream::ToolRules;
use crate::tool::{Environment, is_tool_name};

/// The description of one upstream.
#[derive(Clone, Debug)]
pub struct UpstreamSpec {
    /// Its name in the log and in the metrics.
    pub name: String,
    /// The prefix of its tools' names, joined with `_`. May be empty.
    pub prefix: String,
    /// The choice of its tools, and their names before the prefix.
    pub rules: ToolRules,
    /// The program or the URL.
    pub place: UpstreamPlace,
    /// The longest duration of one of its calls.
    pub call_deadline: Duration,
}

/// The place of an upstream.
#[derive(Clone, Debug)]
pub enum UpstreamPlace {
    /// A program that is started here, and speaks on its standard streams.
    Program {
        /// The program and its arguments.
        words: Vec<String>,
        /// Environment variables in addition to `environment`.
        variables: Vec<(String, String)>,
        /// The variables from the environment of this process.
        environment: Environment,
    },
    /// A server that is called over HTTP.
    Url {
        /// An `http://` or `https://` URL.
        url: String,
        /// The key that is sent with each request.
        key: Option<Key>,
    },
}

/// The key for one server. It is sent to no other server, and never shown.
#[derive(Clone)]
pub struct Key(Box<str>);

/// The fault of a description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError(String);

impl fmt::Display for SpecError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for SpecError {}

impl Key {
    /// # Errors
    /// If the key cannot be sent in a header.
    pub fn new(text: &str) -> Result<Key, SpecError> {
        let is_fit = (1..=limits::MODEL_KEY_BYTES_MAX).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_graphic());
        match is_fit {
            true => Ok(Key(text.into())),
            false => Err(SpecError(
                "the key cannot be sent: it is empty, too long, or has characters other than \
                 visible ASCII"
                    .to_owned(),
            )),
        }
    }

    pub(super) fn bearer(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Key")
    }
}

impl UpstreamSpec {
    /// Checks the description.
    ///
    /// # Errors
    /// The first fault.
    pub fn check(&self) -> Result<(), SpecError> {
        let wrong = |text: &str| Err(SpecError(text.to_owned()));
        let is_name = |name: &str| is_tool_name(name) && name.len() <= 32;
        if !is_name(&self.name) {
            return wrong("a name is 1 to 32 letters, digits, `_`, `-` and `.`");
        }
        if !self.prefix.is_empty() && !is_name(&self.prefix) {
            return wrong("a prefix is at most 32 letters, digits, `_`, `-` and `.`");
        }
        match &self.place {
            UpstreamPlace::Program { words, .. } if words.first().is_none_or(String::is_empty) => {
                wrong("its command is missing")
            }
            UpstreamPlace::Program { words, .. } if words.len() > limits::UPSTREAM_WORDS_MAX => {
                wrong("its command has too many words")
            }
            UpstreamPlace::Program { words, variables, .. } => {
                let has_nul = words.iter().any(|word| word.contains('\0'))
                    || variables.iter().any(|(name, value)| {
                        name.is_empty() || name.contains(['\0', '=']) || value.contains('\0')
                    });
                match has_nul {
                    true => wrong(
                        "a word or a variable of its command has a NUL character, or a variable \
                         has a wrong name",
                    ),
                    false => Ok(()),
                }
            }
            UpstreamPlace::Url { url, key } => {
                let server = ServerUrl::parse(url);
                let server = server.map_err(|error| SpecError(format!("its URL: {error}")))?;
                match key.is_some() && !server.is_private() {
                    true => wrong("its key would be sent unencrypted: use https"),
                    false => Ok(()),
                }
            }
        }
    }
}

/// Splits a command into words like a shell that knows quotes only: `'…'`, `"…"`, and a backslash
/// before one character.
///
/// ```
/// use streamdoor::upstream::words_of;
/// let words = words_of(r#"npx -y "a b" 'c"d' e\ f"#).unwrap();
/// assert_eq!(words, ["npx", "-y", "a b", "c\"d", "e f"]);
/// assert!(words_of("npx 'a").is_err());
/// ```
///
/// # Errors
/// If a quotation has no end, or the command ends with a backslash.
pub fn words_of(command: &str) -> Result<Vec<String>, SpecError> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = command.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some('\''), '\'') | (Some('"'), '"') => quote = None,
            (Some('\''), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (_, '\\') => {
                let escaped = chars.next();
                let escaped = escaped
                    .ok_or_else(|| SpecError("the command ends with a backslash".to_owned()))?;
                word.get_or_insert_default().push(escaped);
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err(SpecError("a quotation in the command is not closed".to_owned()));
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(place: UpstreamPlace) -> UpstreamSpec {
        let name = "n".to_owned();
        UpstreamSpec { call_deadline: Duration::from_secs(1), ..UpstreamSpec::new(&name, place) }
    }

    #[test]
    fn words_are_cut_as_a_shell_does() {
        for (command, words) in [
            ("", vec![]),
            ("  a\t b\n", vec!["a", "b"]),
            ("a'b c'd", vec!["ab cd"]),
            ("'' \"\"", vec!["", ""]),
            (r#""a\"b" \\ 'a\'"#, vec!["a\"b", "\\", "a\\"]),
        ] {
            assert_eq!(words_of(command).unwrap(), words, "{command}");
        }
        for broken in ["'", "\"a", "a\\"] {
            assert!(words_of(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn a_description_that_cannot_be_is_refused() {
        let program = |words: &[&str], variables: &[(&str, &str)]| UpstreamPlace::Program {
            words: words.iter().map(|word| (*word).to_owned()).collect(),
            variables: variables.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect(),
            environment: Environment::default(),
        };
        let url = |url: &str, key: Option<&str>| UpstreamPlace::Url {
            url: url.to_owned(),
            key: key.map(|key| Key::new(key).unwrap()),
        };
        for good in [
            program(&["a", ""], &[("B", "")]),
            url("http://127.0.0.1:1/mcp", Some("k")),
            url("http://h/mcp", None),
        ] {
            assert_eq!(spec(good).check(), Ok(()));
        }
        let many: Vec<&str> = vec!["a"; limits::UPSTREAM_WORDS_MAX + 1];
        for bad in [
            program(&[], &[]),
            program(&[""], &[]),
            program(&["a\0"], &[]),
            program(&["a"], &[("", "x")]),
            program(&["a"], &[("A=B", "x")]),
            program(&many, &[]),
            url("h/mcp", None),
            url("http://example.com/mcp", Some("k")),
        ] {
            assert!(spec(bad.clone()).check().is_err(), "{bad:?}");
        }
        for name in ["", "a b", "ä"] {
            let place = program(&["a"], &[]);
            assert!(UpstreamSpec { name: name.into(), ..spec(place.clone()) }.check().is_err());
            let prefixed = UpstreamSpec { prefix: name.into(), ..spec(place) };
            assert_eq!(prefixed.check().is_ok(), name.is_empty());
        }
        for key in ["", "a b", "a\r\nb", "ä"] {
            assert!(Key::new(key).is_err());
        }
        assert_eq!(format!("{:?}", Key::new("secret").unwrap()), "Key");
    }
}
